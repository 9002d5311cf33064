//! The owner's side of the directory: which page lies in which slot, which may go, and what storage lacks.
//!
//! It is the page address table of PolarDB Serverless, kept by the one host that changes it. A page is *registered*
//! while it is in a frame: then its slot is not given to another. Slots of pages that are in no frame are *idle*, in
//! the order in which the pages left their frames; the first of them go when slots run out.
//!
//! Invariants:
//! - a slot is free, or fading, or of exactly one entry, or an orphan: being written for a page that was given up;
//! - `idle` holds exactly the entries that have a copy and are not registered;
//! - `unsaved` holds exactly the entries whose trace says that storage lacks changes;
//! - an entry has a copy, or such a trace, or is gone;
//! - the copy of a page in no frame is its newest state (its LSN is not 0).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use cenote_base::rt::HashSet;
use cenote_base::{Lsn, PageId};

use super::copy::Copy;
use super::index::{Index, WordWrite};
use super::layout::RemoteSlot;
use super::link::Link;
use crate::lower::Trace;

/// Idle entries looked at for one that storage has, before the oldest goes whatever it is.
const LOOK: usize = 32;

/// What is known of a page.
#[derive(Debug, Default, Clone, Copy)]
pub struct Entry {
    pub copy: Option<Copy>,
    /// It is in a frame.
    pub registered: bool,
    idle_since: u64,
    /// As of when it left its frame, or was found at the start.
    pub trace: Trace,
}

impl Entry {
    /// Found at the start, and newer than storage perhaps; which redo it has is not known before the log is replayed.
    pub fn is_unproven(&self) -> bool {
        self.trace.is_dirty() && self.trace.head.is_none()
    }
}

/// A slot for a page, and the page that was in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub slot: RemoteSlot,
    pub evicted: Option<PageId>,
}

/// See the module. One lock is around all of it; it is never held while bytes move.
#[derive(Default)]
pub struct Table {
    /// The way to remote memory; `None` while there is none.
    pub link: Option<Arc<Link>>,
    entries: BTreeMap<PageId, Entry>,
    idle: BTreeMap<u64, PageId>,
    unsaved: BTreeSet<(Lsn, PageId)>,
    free: Vec<RemoteSlot>,
    /// Pages whose slot was given to another, whose name there may still be read: they wait.
    fading: HashSet<PageId>,
    /// Slots that are being written just now; of those, the ones whose page was given up since.
    written: HashSet<RemoteSlot>,
    orphans: HashSet<RemoteSlot>,
    /// What readers find pages by, where there may be some.
    index: Option<Index>,
    clock: u64,
}

impl Table {
    /// Begins with all slots of `link` free. `index`: what remote memory has of it.
    pub fn attach(&mut self, link: Arc<Link>, index: Option<Index>) {
        self.drop_copies();
        self.index = index;
        self.free = RemoteSlot::all(0, link.layout.slots).rev().collect();
        self.link = Some(link);
    }

    /// Forgets whatever is remote; what storage lacks stays known.
    pub fn drop_copies(&mut self) {
        self.link = None;
        self.index = None;
        self.idle.clear();
        self.free.clear();
        self.fading.clear();
        self.written.clear();
        self.orphans.clear();
        self.entries.retain(|_, entry| {
            entry.copy = None;
            entry.trace.is_dirty()
        });
    }

    pub fn get(&self, page: PageId) -> Option<&Entry> {
        self.entries.get(&page)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&PageId, &Entry)> {
        self.entries.iter()
    }

    /// The pages of `pages` of a space that have an entry.
    pub fn pages_of(&self, space: u32, pages: Range<u32>) -> Vec<PageId> {
        if pages.is_empty() {
            return Vec::new();
        }
        let range = PageId::new(space, pages.start)..PageId::new(space, pages.end);
        self.entries.range(range).map(|(page, _)| *page).collect()
    }

    /// Slots that are not free.
    pub fn slots_in_use(&self) -> usize {
        let slots = self.link.as_ref().map_or(0, |link| link.layout.slots as usize);
        slots.saturating_sub(self.free.len())
    }

    pub fn is_fading(&self, page: PageId) -> bool {
        self.fading.contains(&page)
    }

    // ---- registration ----

    /// The page is in a frame.
    pub fn register(&mut self, page: PageId) {
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.registered = true;
            let idle = self.idle.remove(&entry.idle_since);
            assert!(idle.is_none_or(|idle| idle == page), "an idle time is of one page");
        }
    }

    /// The page is in no frame.
    pub fn unregister(&mut self, page: PageId) {
        self.clock += 1;
        let Some(entry) = self.entries.get_mut(&page) else {
            return;
        };
        entry.registered = false;
        if entry.copy.is_some() {
            entry.idle_since = self.clock;
            let before = self.idle.insert(self.clock, page);
            assert!(before.is_none(), "each page becomes idle at a time of its own");
        }
        self.tidy(page);
    }

    fn tidy(&mut self, page: PageId) {
        let gone = |entry: &Entry| entry.copy.is_none() && !entry.trace.is_dirty();
        if self.entries.get(&page).is_some_and(gone) {
            self.entries.remove(&page);
        }
    }

    // ---- slots ----

    /// Whether a page without a copy could get one.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || !self.idle.is_empty()
    }

    /// A slot for the state of `page` that is about to be written; what is in the slot counts for nothing until
    /// [`Table::placed`]. `None` when all slots are of registered pages.
    pub fn place(&mut self, page: PageId) -> Option<Place> {
        if let Some(copy) = self.entries.get_mut(&page).and_then(|entry| entry.copy.as_mut()) {
            copy.lsn = Lsn::ZERO;
            let slot = copy.slot;
            self.written.insert(slot);
            return Some(Place { slot, evicted: None });
        }
        let (slot, evicted) = match self.free.pop() {
            Some(slot) => (slot, None),
            None => self.evict_one().map(|(slot, page)| (slot, Some(page)))?,
        };
        assert!(self.link.is_some(), "a slot is given only while there is remote memory");
        assert!(evicted != Some(page), "a page does not make room for itself");
        let entry = self.entries.entry(page).or_default();
        let before = entry.copy.replace(Copy {
            slot,
            lsn: Lsn::ZERO,
            sum: 0,
        });
        assert!(before.is_none(), "page {page} has one slot");
        self.written.insert(slot);
        entry.registered = true;
        if let Some(index) = &mut self.index {
            index.enter(page, slot);
        }
        Some(Place { slot, evicted })
    }

    /// Takes the slot of the page that was idle longest; of those, one that storage has, if there is one at hand.
    fn evict_one(&mut self) -> Option<(RemoteSlot, PageId)> {
        let saved = |page: &&PageId| self.entries.get(page).is_some_and(|entry| !entry.trace.is_dirty());
        let first = self.idle.values().take(LOOK).find(saved).or(self.idle.values().next());
        let page = *first?;
        let slot = self.take_copy(page)?.slot;
        self.fading.insert(page);
        Some((slot, page))
    }

    /// `written` is in its slot. `Some`: the page has lost that slot meanwhile, which the caller empties and frees.
    #[must_use]
    pub fn placed(&mut self, page: PageId, written: Copy) -> Option<RemoteSlot> {
        assert!(
            self.written.remove(&written.slot),
            "slot {} was being written",
            written.slot
        );
        if self.orphans.remove(&written.slot) {
            return Some(written.slot);
        }
        if let Some(copy) = self.entries.get_mut(&page).and_then(|entry| entry.copy.as_mut()) {
            assert!(
                copy.slot == written.slot,
                "page {page} has the slot that was written for it"
            );
            *copy = written;
        }
        None
    }

    /// The slot no longer says that it holds `page`.
    pub fn faded(&mut self, page: PageId) {
        self.fading.remove(&page);
    }

    /// The slot, which no entry has any more, is the caller's; or, while it is being written, the writing thread's: the
    /// name may come yet, whatever another thread writes there now.
    fn release(&mut self, slot: RemoteSlot) -> Option<RemoteSlot> {
        if self.written.contains(&slot) {
            let new = self.orphans.insert(slot);
            assert!(new, "slot {slot} is given up once");
            return None;
        }
        Some(slot)
    }

    /// The copy of `page` is no copy; its slot is the caller's, which frees it when it is empty. `None`: there is none,
    /// or it is being written.
    pub fn take_copy(&mut self, page: PageId) -> Option<Copy> {
        let entry = self.entries.get_mut(&page)?;
        let copy = entry.copy.take()?;
        if !entry.registered {
            let idle = self.idle.remove(&entry.idle_since);
            assert!(idle.is_none_or(|idle| idle == page), "an idle time is of one page");
        }
        if let Some(index) = &mut self.index {
            index.leave(page, copy.slot);
        }
        self.tidy(page);
        self.release(copy.slot).map(|_| copy)
    }

    /// Of pages that have changed up to these LSNs: the slots whose copies lack that. They count as none from here on.
    pub fn overtaken(&mut self, changed: &[(PageId, Lsn)]) -> Vec<RemoteSlot> {
        let mut slots = Vec::new();
        for (page, lsn) in changed {
            let copy = self.entries.get_mut(page).and_then(|entry| entry.copy.as_mut());
            if let Some(copy) = copy
                && copy.lsn != Lsn::ZERO
                && copy.lsn != *lsn
            {
                copy.lsn = Lsn::ZERO;
                slots.push(copy.slot);
            }
        }
        slots
    }

    /// Words of the index that remote memory lacks: for the next that writes there.
    pub fn take_index_writes(&mut self) -> Vec<WordWrite> {
        self.index.as_mut().map(Index::take_writes).unwrap_or_default()
    }

    /// The slot is empty.
    pub fn free(&mut self, slot: RemoteSlot) {
        let layout = self.link.as_ref().map(|link| link.layout);
        let slots = layout.map_or(0, |layout| layout.slots);
        assert!(
            layout.is_some_and(|layout| layout.has(slot)),
            "slot {slot} is one of {slots}"
        );
        assert!(self.free.len() < slots as usize, "a slot becomes free once");
        assert!(
            !self.written.contains(&slot),
            "slot {slot} is free when no write is under way"
        );
        self.free.push(slot);
    }

    // ---- what storage lacks ----

    /// Notes with which redo the page left its frame.
    pub fn note(&mut self, page: PageId, trace: Trace) {
        // A page that leaves a trace for the first time is still in its frame.
        let entry = self.entries.entry(page).or_insert(Entry {
            registered: true,
            ..Entry::default()
        });
        let before = std::mem::replace(&mut entry.trace, trace);
        if before.is_dirty() {
            let noted = self.unsaved.remove(&(before.rec, page));
            assert!(noted, "page {page} was among the unsaved ones");
        }
        if trace.is_dirty() {
            let new = self.unsaved.insert((trace.rec, page));
            assert!(new, "page {page} is among the unsaved ones once");
        }
        self.tidy(page);
    }

    /// Storage has the page as of `lsn`, which is all if `all`.
    pub fn saved(&mut self, page: PageId, lsn: Lsn, all: bool) {
        let Some(entry) = self.entries.get(&page) else { return };
        let mut trace = entry.trace;
        if trace.is_dirty() {
            trace.rec = if all { Lsn::ZERO } else { trace.rec.max(lsn) };
            self.note(page, trace);
        }
    }

    /// The least position of a change that storage lacks, if there is one.
    pub fn oldest_unsaved(&self) -> Option<Lsn> {
        self.unsaved.first().map(|(rec, _)| *rec)
    }

    /// Pages in no frame with such a change from before `before`, oldest first.
    pub fn unsaved_before(&self, before: Lsn, most: usize) -> Vec<PageId> {
        let old = self.unsaved.range(..(before, PageId::default())).map(|(_, page)| *page);
        let idle = |page: &PageId| self.entries.get(page).is_some_and(|entry| !entry.registered);
        old.filter(idle).take(most).collect()
    }

    // ---- giving up ----

    /// Removes all that is known of `pages`; their slots are the caller's, but for those that are being written.
    pub fn forget(&mut self, pages: &[PageId]) -> Vec<RemoteSlot> {
        let mut slots = Vec::new();
        for page in pages {
            let Some(entry) = self.entries.remove(page) else {
                continue;
            };
            if entry.trace.is_dirty() {
                let noted = self.unsaved.remove(&(entry.trace.rec, *page));
                assert!(noted, "page {page} was among the unsaved ones");
            }
            if let Some(copy) = entry.copy {
                slots.extend(self.release(copy.slot));
                if let Some(index) = &mut self.index {
                    index.leave(*page, copy.slot);
                }
                if !entry.registered {
                    self.idle.remove(&entry.idle_since);
                }
            }
        }
        slots
    }

    /// Enters a page found at the start.
    pub fn adopt(&mut self, page: PageId, copy: Copy, trace: Trace) {
        self.clock += 1;
        let entry = Entry {
            copy: Some(copy),
            registered: false,
            idle_since: self.clock,
            trace: Trace::default(),
        };
        let before = self.entries.insert(page, entry);
        assert!(before.is_none(), "page {page} is found once at the start");
        self.idle.insert(self.clock, page);
        self.note(page, trace);
    }

    /// Takes `slot` off the free ones; at the start only.
    pub fn retain_free(&mut self, keep: impl Fn(RemoteSlot) -> bool) {
        self.free.retain(|slot| keep(*slot));
    }

    // ---- check ----

    /// What contradicts the invariants.
    pub fn check(&self, problems: &mut Vec<String>) {
        let mut problem = |text: String| problems.push(format!("remote directory: {text}"));
        let mut used: HashSet<RemoteSlot> = self.free.iter().chain(&self.orphans).copied().collect();
        if used.len() != self.free.len() + self.orphans.len() {
            problem("a slot is free twice".into());
        }
        for (page, entry) in &self.entries {
            let idle = entry.copy.is_some() && !entry.registered;
            if idle != (self.idle.get(&entry.idle_since) == Some(page)) {
                problem(format!("page {page} is on the wrong side of the idle ones"));
            }
            if (entry.trace.is_dirty()) != self.unsaved.contains(&(entry.trace.rec, *page)) {
                problem(format!("page {page} is on the wrong side of the unsaved ones"));
            }
            if entry.copy.is_some_and(|copy| !used.insert(copy.slot)) {
                problem(format!("the slot of page {page} is taken twice"));
            }
            if idle && entry.copy.is_some_and(|copy| copy.lsn == Lsn::ZERO) {
                problem(format!("page {page} is in no frame, and its copy is nothing"));
            }
            if entry.copy.is_none() && !entry.trace.is_dirty() {
                problem(format!("page {page} has an entry for nothing"));
            }
        }
        if self.idle.len() > self.entries.len() || self.unsaved.len() > self.entries.len() {
            problem("more pages in the lists than entries".into());
        }
        if let Some(index) = &self.index {
            let copies = self.entries.iter();
            index.check(
                copies.filter_map(|(page, entry)| Some((*page, entry.copy?.slot))),
                problems,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::link::RemoteSource;
    use super::*;
    use cenote_base::rt::Nanos;
    use cenote_fabric::rdma::RemoteMemory;
    use cenote_fabric::rdma::loopback::Node;

    fn table(slots: u32) -> Table {
        let node = Node::new("far");
        let memory = node.memory().register(Layout::len_for(slots));
        let source = RemoteSource::fixed(RemoteMemory::new(node.endpoint(), memory));
        let link = Link::connect(&source, (1, Nanos::from_secs(60)), 1).expect("there");
        let mut table = Table::default();
        table.attach(Arc::new(link), None);
        table
    }

    fn written(slot: RemoteSlot) -> Copy {
        Copy {
            slot,
            lsn: Lsn::from_raw(8),
            sum: 1,
        }
    }

    /// A page is given up while its copy is being written, and is written anew elsewhere before that is over: the first
    /// slot is no other page's until the write that may name it has ended, and was emptied.
    #[test]
    fn a_slot_that_is_being_written_is_given_up_behind_the_write() {
        let (mut table, page) = (table(2), PageId::new(3, 7));
        let first = table.place(page).expect("room").slot;
        assert_eq!(table.forget(&[page]), [], "it is the writing thread's");
        let second = table.place(page).expect("room").slot;
        assert_ne!(first, second);
        assert_eq!(table.place(PageId::new(3, 8)), None, "no slot is free");
        assert_eq!(table.placed(page, written(first)), Some(first));
        assert_eq!(table.placed(page, written(second)), None);
        let mut problems = Vec::new();
        table.free(first);
        table.check(&mut problems);
        assert_eq!(problems, [""; 0]);
        assert_eq!(table.place(PageId::new(3, 8)).map(|place| place.slot), Some(first));
        assert_eq!(table.forget(&[page]), [second]);
    }
}
