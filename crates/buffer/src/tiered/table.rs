//! The owner's side of the directory: which page lies in which slot, which may go, and what storage lacks.
//!
//! It is the page address table of PolarDB Serverless, kept by the one host that changes it. A page is *registered*
//! while it is in a frame: then its slot is not given to another. Slots of pages that are in no frame are *idle*, in
//! the order in which the pages left their frames ([`Idle`]); when slots run out, the first of those go that are saved.
//! A page is *saved* if it can be read from below as any other: storage has it, or storage nodes make it out of redo.
//! Those that are not are written to storage before their turn comes ([`Table::next_to_clean`]).
//!
//! A slab that is *leaving* gives its slots to no page, and its copies end, some at a time: their names are emptied
//! first, then the entries give them up, unless a page was written to its slot in between. A page that is worth it gets
//! a place elsewhere at that moment; until it is written there it waits like the others that fade.
//!
//! Invariants:
//! - a slot is free, or fading, or of exactly one entry, or an orphan: being written for a page that was given up; or
//!   of a slab that is leaving, or is not there;
//! - a slab's list of its pages has exactly the entries whose copy is in it;
//! - `idle` holds exactly the entries that have a copy and are not registered, on their side;
//! - a slot that is given to another page was of one that is saved;
//! - `unsaved` holds exactly the entries whose trace says that storage lacks changes;
//! - an entry has a copy, or such a trace, or is gone;
//! - the copy of a page in no frame is its newest state (its LSN is not 0).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use cenote_base::rt::HashSet;
use cenote_base::{Lsn, PageId};

use super::copy::{Copy, Entry};
use super::ghosts::Ghosts;
use super::idle::Idle;
use super::index::{Index, WordWrite};
use super::layout::{Part, RemoteSlot};
use super::link::Link;
use super::standby::Standby;
use crate::lower::Trace;

/// Idle entries looked at for one that storage nodes have whole, before the oldest goes whatever it is.
const LOOK: usize = 32;
/// Of the slots, this share (one in so many) is kept ready to be given: free, or of the pages that are idle for
/// longest, saved. But no more than so many.
const READY_SHARE: usize = 8;
const READY_MOST: usize = 4096;
/// Pages are written to storage ahead when a quarter of that is not ready; whether it is, is asked when an eighth has
/// been given.
const LACKING_SHARE: usize = 4;
const GIVEN_SHARE: usize = 8;
/// As [`LOOK`], where a slab is leaving.
const LOOK_LEAVING: usize = 1024;
/// Idle entries looked at for those that would go with a slab: the lock is held meanwhile.
const COLD_LOOK: usize = 1 << 14;

/// A slab that is there.
struct Slab {
    /// Of each slot the page that has it.
    pages: Vec<Option<PageId>>,
    /// How many there are.
    used: u32,
    is_leaving: bool,
    /// It is leaving, and cannot be reached.
    is_lost: bool,
}

/// A copy that is to end, as its slab is leaving.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    pub page: PageId,
    pub copy: Copy,
    /// Whether the page is in no frame, so that its bytes can be read and written elsewhere.
    pub is_idle: bool,
}

/// What has gone where, for the policy.
#[derive(Debug, Default, Clone, Copy)]
pub struct Uses {
    /// Pages asked for that a slab more would have had.
    pub misses_of_a_slab: u64,
    /// Pages asked for that were among those a slab less would not have.
    pub hits_of_a_slab: u64,
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
    idle: Idle,
    /// Storage nodes make pages out of redo: what they lack is no reason to keep a page.
    has_nodes: bool,
    /// Slots that were given, or that there were none to give of, since it was asked which pages are to be written to
    /// storage.
    given: usize,
    unsaved: BTreeSet<(Lsn, PageId)>,
    free: Vec<RemoteSlot>,
    /// Pages whose slot was given to another, whose name there may still be read: they wait.
    fading: HashSet<PageId>,
    /// Slots that are being written just now; of those, the ones whose page was given up since.
    written: HashSet<RemoteSlot>,
    orphans: HashSet<RemoteSlot>,
    /// Slots of no entry whose names a caller empties; then it frees them.
    emptied: HashSet<RemoteSlot>,
    /// Slots whose names are being emptied, as their slab is leaving, and that were not written since.
    ending: HashSet<RemoteSlot>,
    /// Those that are there.
    slabs: Vec<Option<Slab>>,
    /// What readers find pages by, where there may be some.
    index: Option<Index>,
    /// What is known of the copies while there is no way to the first part, where readers are told of changes.
    standby: Option<Standby>,
    clock: u64,
    /// Copies of all parts.
    copies: u32,
    /// Pages that lost their slots last.
    ghosts: Ghosts,
    /// Idle pages from before this time would go with a slab.
    cold_before: u64,
    /// For how many such pages each of those stands.
    cold_weight: u64,
    uses: Uses,
}

impl Table {
    /// Without remote memory. `has_nodes`: storage is storage nodes.
    pub fn new(has_nodes: bool) -> Self {
        Self {
            has_nodes,
            ..Self::default()
        }
    }

    /// Begins with all slots of `link` free. `index`: what remote memory has of it.
    pub fn attach(&mut self, link: Arc<Link>, index: Option<Index>) {
        self.drop_copies();
        self.index = index;
        self.free = slots_of(&link, Part::First).rev().collect();
        self.slabs = (0..link.layout.slabs.most).map(|_| None).collect();
        self.ghosts = Ghosts::new(link.layout.slabs.slots as usize);
        self.link = Some(link);
    }

    /// There is no way to remote memory any more, and no copy. `has_standby`: which there were stays known.
    pub fn lose(&mut self, has_standby: bool) {
        if let Some(link) = self.link.clone().filter(|_| has_standby) {
            // As a whole: the table is locked.
            let entries = std::mem::take(&mut self.entries);
            let unsaved = self.unsaved.iter().map(|(_, page)| *page);
            self.entries = unsaved.filter_map(|page| Some((page, *entries.get(&page)?))).collect();
            let slabs = (0..).zip(&self.slabs);
            let lost = slabs.filter(|(_, slab)| slab.as_ref().is_some_and(|slab| slab.is_lost));
            let lost = lost.map(|(slab, _)| slab).collect();
            self.standby = Some(Standby::of(&link, entries, lost));
        }
        self.drop_copies();
    }

    /// What is known of copies while there is no way to them.
    pub fn standby(&mut self) -> Option<&mut Standby> {
        self.standby.as_mut()
    }

    /// None of it is known any more.
    pub fn drop_standby(&mut self) {
        self.standby = None;
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
        self.emptied.clear();
        self.ending.clear();
        self.slabs.clear();
        self.copies = 0;
        self.cold_before = 0;
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

    /// Pages that have a copy.
    pub fn slots_in_use(&self) -> usize {
        self.copies as usize
    }

    /// Slots that a page may have.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Pages that fit the parts that are there.
    pub fn slots(&self) -> u32 {
        let Some(link) = &self.link else { return 0 };
        let slabs = self.slabs.iter().flatten().count() as u32;
        link.layout.first + slabs * link.layout.slabs.slots
    }

    pub fn is_fading(&self, page: PageId) -> bool {
        self.fading.contains(&page)
    }

    // ---- registration ----

    /// The page is in a frame.
    pub fn register(&mut self, page: PageId) {
        if let Some(standby) = &mut self.standby {
            standby.register(page);
        }
        let Some(entry) = self.entries.get_mut(&page) else {
            return;
        };
        let was_in_none = !std::mem::replace(&mut entry.registered, true);
        if was_in_none && entry.copy.is_some() {
            self.idle.remove(entry.idle_since, page);
        }
    }

    /// The page is in no frame, and counts as used now; unless it was there to be saved, and not `asked` for: then it
    /// has the place among the idle ones that it had before.
    pub fn unregister(&mut self, page: PageId, asked: bool) {
        self.clock += 1;
        if let Some(standby) = &mut self.standby {
            standby.unregister(page, asked, self.clock);
        }
        let Some(entry) = self.entries.get_mut(&page) else {
            return;
        };
        entry.leave(asked, self.clock);
        if entry.copy.is_some() {
            let (time, is_saved) = (entry.idle_since, entry.is_saved(self.has_nodes));
            self.idle.insert(time, page, is_saved);
        }
        self.tidy(page);
    }

    /// The page, whose copy is about to be read, is asked for.
    pub fn asked(&mut self, page: PageId) {
        let Some(entry) = self.entries.get_mut(&page) else {
            return;
        };
        entry.keeps_age = false;
        let is_cold = (1..self.cold_before).contains(&entry.idle_since);
        self.uses.hits_of_a_slab += u64::from(is_cold) * self.cold_weight;
    }

    /// The page, whose copy is about to be read, is to be saved, and nothing asks for it.
    pub fn keep_age(&mut self, page: PageId) {
        self.entries.entry(page).and_modify(|entry| entry.keeps_age = true);
    }

    /// A reader has used the page. Says whether it is in remote memory; then it counts as used now.
    pub fn touch(&mut self, page: PageId) -> bool {
        let entry = self.entries.get(&page).filter(|entry| entry.copy.is_some());
        let Some(entry) = entry else { return false };
        match entry.registered {
            // It leaves its frame as one that was used.
            true => _ = self.entries.entry(page).and_modify(|entry| entry.keeps_age = false),
            false => {
                self.asked(page);
                self.register(page);
                self.unregister(page, true);
            }
        }
        true
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
        !self.free.is_empty() || self.may_go(u64::MAX).next().is_some()
    }

    /// Pages in no frame whose slot may go to another, oldest first: few, so that the table's lock is not held for
    /// all pages of a slab that is leaving.
    fn may_go(&self, before: u64) -> impl Iterator<Item = PageId> {
        let old = self.idle.saved_before(before).take(LOOK_LEAVING);
        old.filter(|page| !self.is_leaving(*page) && !self.fading.contains(page))
    }

    /// A slot for the state of `page` that is about to be written; what is in the slot counts for nothing until
    /// [`Table::placed`]. `None` when all slots are of pages that are registered or not saved, or the page's is in a
    /// slab that was just lost.
    pub fn place(&mut self, page: PageId) -> Option<Place> {
        if self.is_in_lost_slab(page) {
            return None;
        }
        if let Some(copy) = self.entries.get_mut(&page).and_then(|entry| entry.copy.as_mut()) {
            copy.lsn = Lsn::ZERO;
            let slot = copy.slot;
            self.written.insert(slot);
            self.ending.remove(&slot);
            return Some(Place { slot, evicted: None });
        }
        let (slot, evicted) = match self.free.pop() {
            Some(slot) => (slot, None),
            None => match self.evict_one(u64::MAX) {
                Some((slot, page)) => (slot, Some(page)),
                None => {
                    self.refuse();
                    return None;
                }
            },
        };
        self.begin_copy(page, slot, evicted);
        if let Some(entry) = self.entries.get_mut(&page) {
            (entry.registered, entry.idle_since) = (true, 0);
        }
        Some(Place { slot, evicted })
    }

    /// `page` has `slot` from here on, which is being written.
    fn begin_copy(&mut self, page: PageId, slot: RemoteSlot, evicted: Option<PageId>) {
        assert!(self.link.is_some(), "a slot is given only while there is remote memory");
        assert!(evicted != Some(page), "a page does not make room for itself");
        let nothing_yet = Copy {
            slot,
            lsn: Lsn::ZERO,
            sum: 0,
        };
        self.give(page, nothing_yet);
        self.given += 1;
        let new = self.written.insert(slot);
        assert!(new, "slot {slot} is given when no write of it is under way");
        if let Some(index) = &mut self.index {
            index.enter(page, slot);
        }
    }

    fn give(&mut self, page: PageId, copy: Copy) {
        let before = self.entries.entry(page).or_default().copy.replace(copy);
        assert!(before.is_none(), "page {page} has one slot");
        self.copies += 1;
        if let Some((slab, place)) = self.place_in_slab(copy.slot) {
            let before = slab.pages[place].replace(page);
            assert!(before.is_none(), "slot {} is of one page", copy.slot);
            slab.used += 1;
        }
    }

    /// The page's copy is none any more.
    fn give_up(&mut self, page: PageId, copy: Copy) {
        assert!(self.copies > 0, "there is a copy that is given up");
        self.copies -= 1;
        self.ending.remove(&copy.slot);
        if let Some((slab, place)) = self.place_in_slab(copy.slot) {
            let before = slab.pages[place].take();
            assert!(before == Some(page), "slot {} is of page {page}", copy.slot);
            slab.used -= 1;
        }
        if let Some(index) = &mut self.index {
            index.leave(page, copy.slot);
        }
    }

    /// The slab of a slot, and the slot's place in it; none: it is in the first part.
    fn place_in_slab(&mut self, slot: RemoteSlot) -> Option<(&mut Slab, usize)> {
        let layout = self.link.as_ref()?.layout;
        let Part::Slab(slab) = layout.part_of(slot) else {
            return None;
        };
        let first = layout.slots_of(Part::Slab(slab)).start as usize;
        let of_slot = self.slabs[slab as usize].as_mut();
        let of_slot = of_slot.unwrap_or_else(|| panic!("slot {slot} is a page's, and slab {slab} is not there"));
        Some((of_slot, slot.place() - first))
    }

    /// Takes the slot of the saved page that was idle longest, from before `before`. Of those that storage nodes may
    /// lack changes of, one that they have whole, if there is one at hand.
    fn evict_one(&mut self, before: u64) -> Option<(RemoteSlot, PageId)> {
        let page = {
            let mut old = self.may_go(before).take(LOOK).peekable();
            let oldest = old.peek().copied();
            let saved = |page: &PageId| self.entries.get(page).is_some_and(|entry| !entry.trace.is_dirty());
            old.find(saved).or(oldest)?
        };
        let slot = self.take_copy(page)?.slot;
        // Its name is not emptied: another takes its place.
        self.emptied.remove(&slot);
        self.fading.insert(page);
        self.ghosts.add(page);
        Some((slot, page))
    }

    fn is_leaving(&self, page: PageId) -> bool {
        self.slab_with(page).is_some_and(|slab| slab.is_leaving)
    }

    /// Its copy ends as soon as its name is empty; until then the page has no other.
    fn is_in_lost_slab(&self, page: PageId) -> bool {
        self.slab_with(page).is_some_and(|slab| slab.is_lost)
    }

    fn slab_with(&self, page: PageId) -> Option<&Slab> {
        let copy = self.entries.get(&page)?.copy?;
        self.slab_of(copy.slot)
    }

    fn slab_of(&self, slot: RemoteSlot) -> Option<&Slab> {
        match self.link.as_ref()?.layout.part_of(slot) {
            Part::First => None,
            Part::Slab(slab) => self.slabs.get(slab as usize)?.as_ref(),
        }
    }

    /// Whether a slot may be given to a page: its part is there, and stays.
    fn is_served(&self, slot: RemoteSlot) -> bool {
        let in_first = self
            .link
            .as_ref()
            .is_some_and(|link| link.layout.part_of(slot) == Part::First);
        in_first || self.slab_of(slot).is_some_and(|slab| !slab.is_leaving)
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
            self.emptied.insert(written.slot);
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
        let new = self.emptied.insert(slot);
        assert!(new, "slot {slot} is emptied by one caller");
        Some(slot)
    }

    /// The copy of `page` is no copy; its slot is the caller's, which frees it when it is empty. `None`: there is none,
    /// or it is being written.
    pub fn take_copy(&mut self, page: PageId) -> Option<Copy> {
        let entry = self.entries.get_mut(&page)?;
        let copy = entry.copy.take()?;
        if !entry.registered {
            self.idle.remove(entry.idle_since, page);
        }
        self.give_up(page, copy);
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

    /// The slot is empty. That of a slab which is leaving, or has left, is no page's any more.
    pub fn free(&mut self, slot: RemoteSlot) {
        self.emptied.remove(&slot);
        if !self.is_served(slot) {
            return;
        }
        assert!(self.free.len() < self.slots() as usize, "a slot becomes free once");
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
        if entry.copy.is_some() && !entry.registered {
            let (time, is_saved) = (entry.idle_since, entry.is_saved(self.has_nodes));
            self.idle.remove(time, page);
            self.idle.insert(time, page, is_saved);
        }
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

    // ---- slots that are ready to be given ----

    /// Slots that are to be ready.
    fn ready_wanted(&self) -> usize {
        (self.slots() as usize / READY_SHARE).clamp(1, READY_MOST)
    }

    /// There was no slot to give.
    pub fn refuse(&mut self) {
        self.given += 1;
    }

    /// Whether it is time to ask [`Table::next_to_clean`].
    pub fn wants_cleaning(&self) -> bool {
        let wanted = self.ready_wanted();
        !self.has_nodes && self.free.len() < wanted && self.given > wanted / GIVEN_SHARE
    }

    /// Pages in no frame that are to be written to storage, so that slots are ready to be given to others: those that
    /// are not saved among the oldest ones, at most `most`, oldest first. None while enough slots are ready.
    pub fn next_to_clean(&mut self, most: usize) -> Vec<PageId> {
        self.given = 0;
        let wanted = self.ready_wanted();
        let lacking = wanted.saturating_sub(self.free.len());
        let mut unsaved: Vec<PageId> = self.idle.unsaved_among(lacking).collect();
        let others = lacking.saturating_sub(self.idle.len());
        if (unsaved.len() + others) * LACKING_SHARE <= wanted {
            return Vec::new();
        }
        unsaved.retain(|page| !self.fading.contains(page));
        unsaved.truncate(most);
        unsaved
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
                self.give_up(*page, copy);
                if !entry.registered {
                    self.idle.remove(entry.idle_since, *page);
                }
            }
        }
        slots
    }

    /// Enters a page found at the start.
    pub fn adopt(&mut self, page: PageId, copy: Copy, trace: Trace) {
        self.clock += 1;
        let entry = Entry {
            idle_since: self.clock,
            ..Entry::default()
        };
        let before = self.entries.insert(page, entry);
        assert!(before.is_none(), "page {page} is found once at the start");
        self.give(page, copy);
        self.idle.insert(self.clock, page, true);
        self.note(page, trace);
    }

    /// Enters copies that were known while remote memory was away, and that its directory has by now. The slots of
    /// those whose pages have changed since that was written, or have another copy: the caller's, to be emptied.
    #[must_use]
    pub fn adopt_again(&mut self, kept: &[(PageId, Copy)]) -> Vec<RemoteSlot> {
        let mut stale = Vec::new();
        for (page, copy) in kept {
            let known = self.standby.as_ref().and_then(|standby| standby.entry(*page, *copy));
            let has_copy = self.entries.get(page).is_some_and(|entry| entry.copy.is_some());
            match known.filter(|_| !has_copy && self.is_served(copy.slot)) {
                Some(known) => self.enter_again(*page, *copy, known),
                None => stale.push(self.give_up_name(*page, *copy)),
            }
        }
        stale
    }

    /// The page may have an entry: one that says what storage lacks.
    fn enter_again(&mut self, page: PageId, copy: Copy, known: Entry) {
        let entry = self.entries.entry(page).or_insert(Entry {
            trace: Trace::saved(copy.lsn),
            ..Entry::default()
        });
        (entry.registered, entry.idle_since) = (known.registered, known.idle_since);
        let is_saved = entry.is_saved(self.has_nodes);
        self.give(page, copy);
        if !known.registered {
            self.idle.insert(known.idle_since, page, is_saved);
        }
    }

    fn give_up_name(&mut self, page: PageId, copy: Copy) -> RemoteSlot {
        if let Some(index) = &mut self.index {
            index.leave(page, copy.slot);
        }
        let new = self.emptied.insert(copy.slot);
        assert!(new, "slot {} is of one page", copy.slot);
        copy.slot
    }

    /// Takes `slot` off the free ones; at the start only.
    pub fn retain_free(&mut self, keep: impl Fn(RemoteSlot) -> bool) {
        self.free.retain(|slot| keep(*slot));
    }

    // ---- slabs ----

    /// The slab is there, and empty. Not yet, where a write to it, or of its names, is under way still from before.
    #[must_use]
    pub fn add_slab(&mut self, slab: u32) -> bool {
        let Some(link) = self.link.clone().filter(|_| !self.is_written(slab)) else {
            return false;
        };
        let place = &mut self.slabs[slab as usize];
        if place.is_some() {
            return false;
        }
        *place = Some(Slab {
            pages: vec![None; link.layout.slabs.slots as usize],
            used: 0,
            is_leaving: false,
            is_lost: false,
        });
        // The slots of lower numbers go first, so that slabs of higher ones are emptied more easily.
        self.free.splice(0..0, slots_of(&link, Part::Slab(slab)).rev());
        true
    }

    /// The slabs that are there and stay, and those that are leaving.
    pub fn slabs(&self) -> (Vec<u32>, Vec<u32>) {
        let there = (0..)
            .zip(&self.slabs)
            .filter_map(|(n, slab)| Some((n, slab.as_ref()?.is_leaving)));
        let (leaving, staying): (Vec<_>, Vec<_>) = there.partition(|(_, is_leaving)| *is_leaving);
        let number = |(slab, _)| slab;
        (
            staying.into_iter().map(number).collect(),
            leaving.into_iter().map(number).collect(),
        )
    }

    /// Pages in a slab; `None` if it is not there.
    pub fn pages_in(&self, slab: u32) -> Option<u32> {
        Some(self.slabs.get(slab as usize)?.as_ref()?.used)
    }

    /// No page gets a slot of the slab from here on.
    pub fn leave_slab(&mut self, slab: u32) {
        let Some(layout) = self.link.as_ref().map(|link| link.layout) else {
            return;
        };
        if let Some(Some(slab)) = self.slabs.get_mut(slab as usize) {
            slab.is_leaving = true;
        }
        self.free.retain(|slot| layout.part_of(*slot) != Part::Slab(slab));
    }

    /// Copies of a slab that is leaving, at most `most`, from the place `from` on: their names are to be emptied. Not
    /// those that are being written. And the place behind them; `None` at the slab's end.
    pub fn begin_ending(&mut self, slab: u32, from: usize, most: usize) -> (Vec<Ending>, Option<usize>) {
        let Some(of_slab) = self.slabs.get(slab as usize).and_then(Option::as_ref) else {
            return (Vec::new(), None);
        };
        assert!(of_slab.is_leaving, "copies end in slab {slab} when it is leaving");
        let mut endings = Vec::new();
        let mut next = None;
        for (place, page) in of_slab.pages.iter().enumerate().skip(from) {
            if endings.len() == most {
                next = Some(place);
                break;
            }
            let Some(page) = *page else { continue };
            let entry = self.entries.get(&page);
            let copy = entry.and_then(|entry| entry.copy);
            if let (Some(entry), Some(copy)) = (entry, copy.filter(|copy| !self.written.contains(&copy.slot))) {
                let is_idle = !entry.registered;
                endings.push(Ending { page, copy, is_idle });
            }
        }
        self.ending.extend(endings.iter().map(|ending| ending.copy.slot));
        (endings, next)
    }

    /// The name of this copy is empty: it is none any more, unless it was written since. `moves`: the page gets a place
    /// elsewhere if it is in no frame, and some other has been idle for longer or a slot is free; one that is not
    /// saved, if there is any place. It waits until it is written there.
    pub fn end(&mut self, ending: &Ending, moves: bool) -> Option<Place> {
        let entry = *self.entries.get(&ending.page)?;
        let is_same = entry.copy.is_some_and(|copy| copy.slot == ending.copy.slot);
        if !is_same || !self.ending.remove(&ending.copy.slot) {
            return None;
        }
        let moves = moves && !entry.registered && entry.copy == Some(ending.copy);
        let before = match entry.is_saved(self.has_nodes) {
            true => entry.idle_since,
            false => u64::MAX,
        };
        let place = if moves { self.place_before(before) } else { None };
        // Not tidied away where the page is to have another place.
        let page = ending.page;
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.copy = None;
        }
        self.give_up(page, ending.copy);
        match place {
            None => {
                if !entry.registered {
                    self.idle.remove(entry.idle_since, page);
                }
                self.ghosts.add(page);
                self.tidy(page);
            }
            Some(place) => {
                self.begin_copy(page, place.slot, place.evicted);
                self.fading.insert(page);
            }
        }
        place
    }

    /// A slot that is free, or that of a page which has been idle since before `before`.
    fn place_before(&mut self, before: u64) -> Option<Place> {
        if let Some(slot) = self.free.pop() {
            return Some(Place { slot, evicted: None });
        }
        let (slot, page) = self.evict_one(before)?;
        Some(Place {
            slot,
            evicted: Some(page),
        })
    }

    /// The slab cannot be reached any more: it is leaving, and nothing is written there. What is being written now is
    /// no copy: the writing threads empty its names. Says whether the slab was there.
    #[must_use]
    pub fn lose_slab(&mut self, slab: u32) -> bool {
        let Some(Some(of_slab)) = self.slabs.get_mut(slab as usize) else {
            return false;
        };
        if std::mem::replace(&mut of_slab.is_lost, true) {
            return false;
        }
        self.leave_slab(slab);
        let written = |page: &PageId| {
            let copy = self.entries.get(page).and_then(|entry| entry.copy);
            copy.is_some_and(|copy| self.written.contains(&copy.slot))
        };
        let pages = self.slabs[slab as usize]
            .iter()
            .flat_map(|slab| slab.pages.iter().flatten());
        let written: Vec<PageId> = pages.copied().filter(written).collect();
        for page in written {
            let taken = self.take_copy(page);
            assert!(taken.is_none(), "a slot that is being written is the writing thread's");
        }
        true
    }

    /// Whether a slab that is leaving has no page any more, and nothing is being written to it; then it is there no
    /// more.
    #[must_use]
    pub fn remove_slab(&mut self, slab: u32) -> bool {
        let is_empty = self.pages_in(slab).is_none_or(|pages| pages == 0) && !self.is_written(slab);
        if is_empty {
            self.lost_slab(slab);
        }
        is_empty
    }

    /// The slab is there no more; writes to it may be under way.
    pub fn lost_slab(&mut self, slab: u32) {
        assert!(
            self.pages_in(slab).is_none_or(|pages| pages == 0),
            "slab {slab} is empty"
        );
        if let Some(place) = self.slabs.get_mut(slab as usize) {
            *place = None;
        }
    }

    fn is_written(&self, slab: u32) -> bool {
        let Some(link) = &self.link else { return false };
        let mut written = self.written.iter().chain(&self.orphans).chain(&self.emptied);
        written.any(|slot| link.layout.part_of(*slot) == Part::Slab(slab))
    }

    /// Looks which pages would go with a slab: those count from here on when they are asked for.
    pub fn mark_cold(&mut self) {
        let slots = self.link.as_ref().map_or(0, |link| link.layout.slabs.slots as usize);
        let kept = slots.saturating_sub(self.free.len());
        let looked = kept.min(COLD_LOOK);
        self.cold_weight = kept.div_ceil(looked.max(1)) as u64;
        self.cold_before = match looked {
            0 => 0,
            looked => self.idle.times().nth(looked - 1).map_or(u64::MAX, |last| last + 1),
        };
    }

    /// A page that is in no slot is asked for.
    pub fn missed(&mut self, page: PageId) {
        // What free slots will have is no reason for more of them.
        let is_ghost = self.ghosts.take(page) && self.free.is_empty();
        self.uses.misses_of_a_slab += u64::from(is_ghost);
    }

    /// What was counted since the start.
    pub fn uses(&self) -> Uses {
        self.uses
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
            let is_there = self.idle.get(entry.idle_since) == Some((*page, entry.is_saved(self.has_nodes)));
            if idle != is_there {
                problem(format!("page {page} is on the wrong side of the idle ones"));
            }
            if (entry.trace.is_dirty()) != self.unsaved.contains(&(entry.trace.rec, *page)) {
                problem(format!("page {page} is on the wrong side of the unsaved ones"));
            }
            if entry.copy.is_some_and(|copy| !used.insert(copy.slot)) {
                problem(format!("the slot of page {page} is taken twice"));
            }
            let is_moving = self.fading.contains(page);
            if idle && !is_moving && entry.copy.is_some_and(|copy| copy.lsn == Lsn::ZERO) {
                problem(format!("page {page} is in no frame, and its copy is nothing"));
            }
            if entry.copy.is_none() && !entry.trace.is_dirty() {
                problem(format!("page {page} has an entry for nothing"));
            }
        }
        self.check_slabs(&mut problem);
        if self.idle.len() > self.entries.len() || self.unsaved.len() > self.entries.len() {
            problem("more pages in the lists than entries".into());
        }
        // While copies are entered again it has those that are to come.
        if let Some(index) = self.index.as_ref().filter(|_| self.standby.is_none()) {
            let copies = self.entries.iter();
            index.check(
                copies.filter_map(|(page, entry)| Some((*page, entry.copy?.slot))),
                problems,
            );
        }
    }

    fn check_slabs(&self, problem: &mut impl FnMut(String)) {
        let copies = self
            .entries
            .iter()
            .filter_map(|(page, entry)| Some((*page, entry.copy?)));
        let copies: Vec<(PageId, Copy)> = copies.collect();
        if copies.len() != self.copies as usize {
            problem(format!("{} copies, counted as {}", copies.len(), self.copies));
        }
        let Some(link) = &self.link else { return };
        let mut in_slabs = 0;
        for (page, copy) in copies {
            let Part::Slab(slab) = link.layout.part_of(copy.slot) else {
                continue;
            };
            in_slabs += 1;
            let first = link.layout.slots_of(Part::Slab(slab)).start as usize;
            let held = self
                .slab_of(copy.slot)
                .map(|slab| slab.pages[copy.slot.place() - first]);
            if held != Some(Some(page)) {
                problem(format!("slab {slab} does not know of page {page}"));
            }
        }
        let held = self
            .slabs
            .iter()
            .flatten()
            .flat_map(|slab| &slab.pages)
            .flatten()
            .count();
        if held != in_slabs {
            problem(format!("slabs know of {held} pages, and have {in_slabs}"));
        }
        if let Some(slot) = self.free.iter().find(|slot| !self.is_served(**slot)) {
            problem(format!("slot {slot} is free, and its slab is not there"));
        }
    }
}

fn slots_of(link: &Link, part: Part) -> impl DoubleEndedIterator<Item = RemoteSlot> + use<> {
    let slots = link.layout.slots_of(part);
    RemoteSlot::all(slots.start, slots.end)
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Layout, Slabs};
    use super::super::link::Former;
    use super::super::source::{Growth, RemoteSource};
    use super::*;
    use cenote_base::PAGE_SIZE;
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

    /// A table with slots of a first part and of a slab, and its way.
    fn with_slab(node: &Node, incarnation: u128) -> (Table, Arc<Link>) {
        let growth = Growth {
            slab: 4 * PAGE_SIZE as u64,
            most: 1,
            worth: 1,
        };
        let register = |len| {
            let (node, memory) = (node.clone(), node.memory().register(len));
            RemoteSource::fixed(RemoteMemory::new(node.endpoint(), memory))
        };
        let first = register(Layout::first_len_for(2, Some(growth)));
        let patience = Nanos::from_secs(60);
        let memory = first.connect(1, patience).expect("there");
        let layout = Layout::plan(memory.len(), Slabs::of(Some(growth))).expect("room");
        let link = Link::of(memory, layout, incarnation);
        link.ways
            .set(0, Some(register(growth.slab).connect(1, patience).expect("there")));
        let (mut table, link) = (Table::default(), Arc::new(link));
        table.attach(Arc::clone(&link), Some(Index::of(layout, &[])));
        assert!(table.add_slab(0));
        (table, link)
    }

    fn former(incarnation: u128) -> Former {
        Former {
            incarnations: [0, incarnation],
            granted: 1,
            same_slabs: true,
            remark: None,
        }
    }

    /// While there is no way to remote memory pages change, come and go: what is there again is what has not changed.
    #[test]
    fn what_has_not_changed_while_remote_memory_was_away_is_there_again() {
        let node = Node::new("far");
        let (mut table, _) = with_slab(&node, 1);
        let pages: Vec<PageId> = (0..6).map(|page| PageId::new(3, page)).collect();
        for page in &pages {
            let slot = table.place(*page).expect("room").slot;
            assert_eq!(table.placed(*page, written(slot)), None);
        }
        let [in_first, changed, left, entered, dropped, stale] = pages[..] else {
            panic!("six pages")
        };
        let copies = |table: &Table| -> Vec<Copy> {
            let copy = |page: &PageId| table.get(*page).and_then(|entry| entry.copy);
            pages.iter().filter_map(copy).collect()
        };
        let before = copies(&table);
        for page in [left, entered] {
            table.unregister(page, true);
        }
        let other = PageId::new(3, 99);
        assert_eq!(
            table.place(other).map(|place| place.evicted),
            Some(Some(left)),
            "it is the oldest"
        );
        table.lose(true);
        assert_eq!((table.slots_in_use(), table.slots()), (0, 0));
        let standby = table.standby().expect("it is known");
        standby.changed(changed, Lsn::from_raw(16));
        standby.changed(entered, Lsn::from_raw(8));
        standby.forget(3, dropped.page..dropped.page + 1);
        table.register(entered);
        table.unregister(stale, true);
        table.unregister(in_first, true);

        // Another first part: what was in the former one is gone, what is in the slab is not.
        let (fresh, link) = with_slab(&node, 2);
        let standby = table.standby().expect("it is known");
        assert_eq!(standby.parts_there(&link, &former(1)), [Part::First, Part::Slab(0)]);
        assert_eq!(standby.parts_there(&link, &former(7)), [Part::Slab(0)]);
        let first = standby.copies(None, 1);
        let behind = standby.copies(Some(first[0].0), 9);
        assert_eq!(first, [(in_first, before[0])]);
        let all = standby.copies(None, 9);
        assert_eq!([&first[..], &behind[..]].concat(), all);
        let in_slab = |(_, copy): &(PageId, Copy)| link.layout.part_of(copy.slot) != Part::First;
        let kept: Vec<(PageId, Copy)> = all.into_iter().filter(in_slab).collect();
        assert_eq!(kept, [(entered, before[3]), (stale, before[5])]);
        // It changes when the directory has been written, and is taken off it.
        standby.changed(stale, Lsn::from_raw(16));
        drop(fresh);
        table.attach(Arc::clone(&link), Some(Index::of(link.layout, &kept)));
        assert!(table.add_slab(0));
        table.retain_free(|slot| kept.iter().all(|(_, copy)| copy.slot != slot));
        assert_eq!(table.adopt_again(&kept), [before[5].slot]);
        table.drop_standby();
        assert!(!table.take_index_writes().is_empty(), "readers do not find it there");
        table.free(before[5].slot);
        let entry = table.get(entered).copied().expect("it is there again");
        assert_eq!((entry.copy, entry.registered), (Some(before[3]), true));
        assert_eq!((table.slots_in_use(), table.free_slots()), (1, 5));
        assert!(table.standby().is_none());
        let mut problems = Vec::new();
        table.check(&mut problems);
        assert_eq!(problems, [""; 0]);
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

    /// Of two idle pages the one that a reader used last stays; what a frame has, and what has no copy, is as it was.
    #[test]
    fn a_page_that_readers_use_stays_longer() {
        let mut table = table(2);
        let [old, young, third] = [1, 2, 3].map(|page| PageId::new(3, page));
        for page in [old, young] {
            let slot = table.place(page).expect("room").slot;
            assert_eq!(table.placed(page, written(slot)), None);
            table.register(page);
            assert!(table.touch(page), "a frame has it, and so has remote memory");
        }
        table.unregister(old, true);
        table.unregister(young, true);
        assert!(table.touch(old));
        assert!(!table.touch(third), "remote memory does not have it");
        assert_eq!(table.place(third).and_then(|place| place.evicted), Some(young));
        let mut problems = Vec::new();
        table.check(&mut problems);
        assert_eq!(problems, [""; 0]);
    }

    fn checked(table: &Table) {
        let mut problems = Vec::new();
        table.check(&mut problems);
        assert_eq!(problems, [""; 0]);
    }

    /// The page is in a slot and in no frame; dirty: storage lacks changes of it from `rec` on.
    fn put(table: &mut Table, page: PageId, rec: u64) {
        let slot = table.place(page).expect("room").slot;
        assert_eq!(table.placed(page, written(slot)), None);
        table.note(page, lacking(rec));
        table.unregister(page, true);
    }

    fn lacking(rec: u64) -> Trace {
        Trace {
            rec: Lsn::from_raw(rec),
            ..Trace::saved(Lsn::from_raw(8))
        }
    }

    /// It was the oldest of those at hand that lost its slot, whatever storage lacked of it.
    #[test]
    fn a_page_that_would_be_rebuilt_keeps_its_slot_until_it_is_saved() {
        let mut table = table(2);
        let [dirty, clean, third, fourth] = [1, 2, 3, 4].map(|page| PageId::new(3, page));
        put(&mut table, dirty, 4);
        put(&mut table, clean, 0);
        assert_eq!(table.place(third).and_then(|place| place.evicted), Some(clean));
        assert!(!table.has_room(), "the other slot is of a page in a frame");
        assert_eq!(table.place(fourth), None);
        assert_eq!(table.next_to_clean(9), [dirty]);
        table.saved(dirty, Lsn::from_raw(8), true);
        checked(&table);
        assert_eq!(table.next_to_clean(9), []);
        assert_eq!(table.place(fourth).and_then(|place| place.evicted), Some(dirty));
    }

    /// Of 16 slots two are kept ready. A page that was in a frame only to be saved is as old as it was.
    #[test]
    fn the_oldest_pages_are_saved_in_time() {
        let mut table = table(16);
        let pages: Vec<PageId> = (0..16).map(|page| PageId::new(3, page)).collect();
        for (n, page) in pages.iter().enumerate() {
            let is_ready = table.free_slots() < 2 || table.next_to_clean(9).is_empty();
            assert!(is_ready, "slots are free");
            put(&mut table, *page, n as u64 + 1);
        }
        assert!(table.wants_cleaning(), "all slots were given since");
        assert_eq!(table.next_to_clean(1), pages[..1]);
        assert!(!table.wants_cleaning(), "it was asked");
        assert_eq!(table.next_to_clean(9), pages[..2]);
        for page in &pages[..2] {
            table.keep_age(*page);
            table.register(*page);
            table.saved(*page, Lsn::from_raw(8), true);
            table.unregister(*page, false);
        }
        assert_eq!(table.next_to_clean(9), []);
        checked(&table);
        let others = [90, 91].map(|page| PageId::new(3, page));
        let lost = others.map(|page| table.place(page).and_then(|place| place.evicted));
        assert_eq!(lost, [Some(pages[0]), Some(pages[1])]);
    }

    /// Storage nodes make a page out of redo: it is read from there, and goes when its turn comes.
    #[test]
    fn what_storage_nodes_lack_is_no_reason_to_keep_a_page() {
        let mut table = Table {
            has_nodes: true,
            ..table(2)
        };
        let [old, young, third] = [1, 2, 3].map(|page| PageId::new(3, page));
        put(&mut table, old, 4);
        put(&mut table, young, 4);
        assert!(table.next_to_clean(9).is_empty() && !table.wants_cleaning());
        assert_eq!(table.place(third).and_then(|place| place.evicted), Some(old));
        checked(&table);
    }

    /// Pages come, go, change, and are saved, in any order.
    #[test]
    fn whatever_happens_no_page_loses_its_slot_before_it_is_saved() {
        let mut random = cenote_base::random::Random(1);
        let mut table = table(9);
        for step in 1..20_000 {
            let page = PageId::new(3, random.below(20) as u32);
            let is_dirty = |table: &Table, page| table.get(page).is_some_and(|entry| entry.trace.is_dirty());
            let registered = table.get(page).is_some_and(|entry| entry.registered);
            match random.below(4) {
                0 if !registered => table.register(page),
                1 if registered => {
                    table.note(page, lacking(step * random.below(2)));
                    table.unregister(page, random.below(2) == 0);
                }
                2 => table.saved(page, Lsn::from_raw(8), true),
                _ => {
                    let dirty: Vec<PageId> = table.unsaved.iter().map(|(_, page)| *page).collect();
                    let Some(place) = table.place(page) else { continue };
                    assert!(place.evicted.is_none_or(|page| !dirty.contains(&page)), "step {step}");
                    assert_eq!(table.placed(page, written(place.slot)), None);
                    place.evicted.iter().for_each(|page| table.faded(*page));
                    if !registered {
                        table.register(page);
                    }
                }
            }
            assert!(table.next_to_clean(9).iter().all(|page| is_dirty(&table, *page)));
            checked(&table);
        }
    }
}
