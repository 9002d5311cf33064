//! Remote memory between frames and storage, moved by whole pages: the tiered pool.
//!
//! Frames lie in local DRAM; behind them is the memory of another machine, reached by one-sided verbs
//! ([`cenote_fabric::rdma`]), larger and slower; behind that, storage. It is what PolarDB Serverless has (section 3.1
//! of its paper: register, read, write, LRU, write-back) and what PolarCXLMem is compared with. `docs/tiered.md` tells
//! it at length.
//!
//! ```text
//!  frames (DRAM)        table (DRAM): page ─▶ slot, registered, what storage lacks
//!     │  ▲                  │
//!     │  └── read 16 KiB ───┤ registered and there: one one-sided read
//!     └───── write 16 KiB ──┴─▶ slots, directory (remote)         else storage, and a copy goes to a slot
//! ```
//!
//! Remote memory holds nothing that storage and log could not rebuild. So each of its failures, whatever it is, costs
//! warmth only: the page is rebuilt from its image in storage and its chain of redo ([`rebuild`]); an error of the way
//! there gives up the whole tier, which is taken into use again, empty, when it can be reached.
//!
//! Invariants:
//! - a page that no frame has is as new in its slot as it ever was, or its trace in the table says which redo leads
//!   there;
//! - **no copy that remote memory names is older than the page in storage**: before storage gets a page, its copy is
//!   written too, or emptied, or the control file disowns the whole of remote memory. So a start that finds a name of
//!   the last start at recovery needs no look at storage;
//! - a page that would have to be rebuilt keeps its slot from others: it is written to storage before its turn comes,
//!   and a page for which there is no other slot goes to storage itself;
//! - redo is durable before a page is written to remote memory: what is found there is never newer than the log;
//! - bytes from there are believed when checksum, page id and LSN are those expected;
//! - where storage nodes have the database, other servers read what is here ([`reader`]): the name of a copy that lacks
//!   a change is ended some milliseconds behind the change, and the *watermark* says up to which position of the log
//!   that has been done.
//!
//! Lock order: `turn` (one thread scales, or takes lost memory into use) → a frame's latch → `owning` (both held while
//! bytes move) → the table (never held then) → `scaling`; under the table, too, the list of ways.

mod copy;
mod ghosts;
mod idle;
mod index;
mod layout;
mod link;
mod look;
mod policy;
mod reader;
mod rebuild;
mod scale;
mod scaling;
mod source;
mod standby;
mod table;
mod ways;

use std::ops::Range;
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead, PageWrite};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Lsn, PageId, Result};
use cenote_storage::{Storage, redo};

use self::copy::Copy;
use self::index::Index;
pub use self::layout::Layout as RemoteLayout;
use self::layout::Part;
pub use self::layout::RemoteSlot;
use self::link::{Former, Found, Link};
pub(crate) use self::reader::ReaderTier;
use self::scaling::Scaling;
pub use self::source::{Growth, RemoteProvider, RemoteSource, SLABS_MAX};
use self::table::Table;
use self::ways::Failure;
use crate::known_changes::KnownChanges;
use crate::lists::Hint;
use crate::lower::{EvictionStep, Fetched, Lower, Outgoing, Trace, read_storage, read_storage_many, with_below};
use crate::remote::{RemotePart, RemoteSize};
use crate::report::RecoveryReport;
use crate::stats::TierStats;

/// Pages that readers have used, and that are looked up at once.
const TOUCHED_MOST: usize = 64;
/// Copies that are looked at, or entered again, under the table's lock at once.
const AT_ONCE: usize = 1 << 12;
/// Copies of a part that are read to see whether it is the memory that it was.
const SAMPLE: usize = 8;
/// How long a page waits for the name of its former slot to be overwritten, between two looks.
const FADING_TURN: Nanos = Nanos::from_micros(5);
/// Redo that a start reads for names of before, in bytes: a watermark is some milliseconds behind.
const SCANNED_MAX: u64 = 64 << 20;
/// How long a start waits for the way to remote memory; then it begins without, and looks for it.
const START_PATIENCE: Nanos = Nanos::from_secs(30);
/// The same of a reader that has taken the database, and each later look.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// How long a part is looked for where it was, before it is made anew elsewhere.
const MOVE_AFTER: Nanos = Nanos::from_secs(5);
/// So often the next move waits for twice as long.
const MOVES_SLOWER: u32 = 6;

/// The tier. See the module.
pub(crate) struct Tier {
    storage: Arc<Storage>,
    source: RemoteSource,
    table: Mutex<Table>,
    /// Whether readers may look for pages in it.
    is_shared: bool,
    /// Remote memory was given up: the control file must say so before storage gets a page.
    to_disown: AtomicBool,
    /// What is known of its slabs. Taken under the table at most, and nothing under it.
    scaling: Mutex<Scaling>,
    /// Held by the one thread that scales.
    turn: Mutex<()>,
    /// Held by a thread that changes whose remote memory is.
    owning: Mutex<()>,
    /// Since when remote memory has been looked for in vain, and how often its first part was made anew meanwhile.
    away: Mutex<Option<(Nanos, u32)>>,
    /// What failed last.
    said: Mutex<String>,
    counts: TierCounts,
}

#[derive(Default)]
struct TierCounts {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    written: AtomicU64,
    rebuilt: AtomicU64,
    refused: AtomicU64,
    losses: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.as_raw().fetch_add(1, Ordering::Relaxed);
}

impl Tier {
    /// Connects and takes over what the last start left. Where there is nothing to reach, the pool begins without.
    /// `read`: what a reader knew that this process has been until now; its frames are kept, and no log is replayed.
    ///
    /// # Errors
    /// None where the memory cannot be reached; those of the control file.
    pub fn open(
        storage: &Arc<Storage>,
        source: RemoteSource,
        read: Option<&KnownChanges>,
        report: &mut RecoveryReport,
    ) -> Result<Self> {
        let is_shared = storage.nodes().is_some();
        let tier = Self {
            storage: Arc::clone(storage),
            scaling: Mutex::new(Scaling::new(&source)),
            turn: Mutex::new(()),
            source,
            table: Mutex::new(Table::new(is_shared)),
            is_shared,
            to_disown: AtomicBool::new(true),
            owning: Mutex::new(()),
            away: Mutex::default(),
            said: Mutex::default(),
            counts: TierCounts::default(),
        };
        match tier.take_over(read, report) {
            // The control file's own errors are the start's.
            Err(error) if tier.storage.pages().check().is_err() => return Err(error),
            Err(error) => {
                let remark = format!("remote memory cannot be used: {error}; the pool goes on with storage alone");
                eprintln!("cenote: {remark}");
                report.remarks.push(remark);
            }
            Ok(()) => {}
        }
        Ok(tier)
    }

    // ---- whose it is ----

    fn connect(&self, patience: Nanos) -> Result<Link> {
        let database = self.storage.control().get().database;
        Link::connect(&self.source, (database, patience), rt::random_u128())
    }

    fn take_over(&self, read: Option<&KnownChanges>, report: &mut RecoveryReport) -> Result<()> {
        let control = self.storage.control().get();
        let patience = if read.is_some() { PATIENCE } else { START_PATIENCE };
        let link = self.connect(patience)?;
        let former = link.former(&control)?;
        self.reach_slabs(&link, &former, patience);
        let found = match former.remark {
            None => link.find(&control)?,
            Some(_) => Found::default(),
        };
        report.remarks.extend(former.remark);
        // Storage nodes have all: no replay brings the copies forward.
        let since = match read {
            Some(known) => Some(known.clone()),
            None => self.is_shared.then(|| self.changes_since(found.watermark)),
        };
        let mut kept = Vec::new();
        for (slot, name) in found.names {
            let believed = name.lsn != Lsn::ZERO
                && name.lsn <= self.storage.durable_lsn()
                && self.storage.pages().has_space(name.page.space)
                && since
                    .as_ref()
                    .is_none_or(|known| known.needed(name.page) <= found.watermark);
            let copy = Copy {
                slot,
                lsn: name.lsn,
                sum: name.sum,
            };
            match believed {
                true => kept.push((name.page, copy)),
                false => report.remote_discarded += 1,
            }
        }
        report.remote_discarded += drop_twice(&mut kept);
        report.remote_kept = kept.len() as u64;
        // A change that storage lacks is not before the checkpoint.
        let checkpoint = control.checkpoint;
        let trace = |copy: &Copy| Trace {
            lsn: copy.lsn,
            rec: match copy.lsn > checkpoint && !self.is_shared {
                true => checkpoint,
                false => Lsn::ZERO,
            },
            ..Trace::default()
        };
        let adopt = |table: &mut Table| {
            kept.iter()
                .for_each(|(page, copy)| table.adopt(*page, *copy, trace(copy)))
        };
        let (link, ()) = self.own(link, control.incarnation, &kept, adopt)?;
        link.open_to_readers();
        Ok(())
    }

    /// The pages that the log changes behind a watermark: as a reader would know them that began there.
    fn changes_since(&self, watermark: Lsn) -> KnownChanges {
        let end = self.storage.durable_lsn();
        let all = KnownChanges::begin(Lsn::MAX);
        if watermark == Lsn::ZERO || watermark > end || end.since(watermark) > SCANNED_MAX {
            return all;
        }
        let mut known = KnownChanges::begin(watermark);
        let mut scan = self.storage.log().scan(watermark);
        loop {
            match scan.next() {
                Ok(None) => return known,
                // Nodes may keep no log so old.
                Err(_) => return all,
                Ok(Some(group)) => {
                    let pages = group.records().map(|record| record.map(|record| record.page));
                    let Ok(pages) = pages.collect::<Result<Vec<PageId>>>() else {
                        return all;
                    };
                    known.changed(&pages, end);
                }
            }
        }
    }

    /// Makes remote memory this start's, with the slots of `kept` and no others in use; `adopt` enters those.
    fn own<T>(
        &self,
        link: Link,
        former: u128,
        kept: &[(PageId, Copy)],
        adopt: impl FnOnce(&mut Table) -> T,
    ) -> Result<(Arc<Link>, T)> {
        let database = self.storage.control().get().database;
        let index = self.is_shared.then(|| Index::of(link.layout, kept));
        let used: rt::HashSet<RemoteSlot> = kept.iter().map(|(_, copy)| copy.slot).collect();
        let _owning = self.owning.lock();
        link.begin((database, self.granted()), former, kept, index.as_ref())?;
        self.storage.control().update(|c| c.incarnation = link.incarnation)?;
        link.complete(database, self.granted())?;
        let mut table = self.table.lock();
        let (slabs, link) = (link.ways.reached(), Arc::new(link));
        table.attach(Arc::clone(&link), index);
        let added = slabs.into_iter().all(|slab| table.add_slab(slab));
        assert!(added, "no write is under way to memory that a start takes over");
        table.retain_free(|slot| !used.contains(&slot));
        assert!(
            table.free_slots() + kept.len() == table.slots() as usize,
            "each copy that a start keeps has a slot of its own, and all others are free"
        );
        let adopted = adopt(&mut table);
        self.to_disown.store(false, Ordering::SeqCst);
        Ok((link, adopted))
    }

    /// Takes remote memory that was lost into use again: with the copies that are there still, where the standby knows
    /// of some. Says how many.
    fn take_again(&self) -> Result<usize> {
        self.check_owner()?;
        let link = self.connect(PATIENCE)?;
        let former = link.former(&self.storage.control().get())?;
        self.reach_slabs(&link, &former, PATIENCE);
        let kept = self.copies_there(&link, &former);
        if let Some(standby) = self.table.lock().standby() {
            standby.tried(link.incarnation);
        }
        let (link, ()) = self.own(link, 0, &kept, |_| ())?;
        let lost = || Error::Lost("remote memory was lost again".into());
        let stale = self.adopt_again(&link, &kept).ok_or_else(lost)?;
        if !kept.is_empty() {
            mark::pass(Mark::StandbyKept);
        }
        if !stale.is_empty() {
            mark::pass(Mark::StandbyOvertaken);
        }
        // Until then no watermark is written, whatever readers are to be told meanwhile.
        stale.chunks(AT_ONCE).for_each(|some| self.empty(&link, some));
        self.with_table(&link, |_| link.open_to_readers()).ok_or_else(lost)?;
        *self.away.lock() = None;
        Ok(kept.len() - stale.len())
    }

    /// The copies that the standby knows and that are there over a new way.
    fn copies_there(&self, link: &Link, former: &Former) -> Vec<(PageId, Copy)> {
        let mut parts = match self.table.lock().standby() {
            Some(standby) => standby.parts_there(link, former),
            None => return Vec::new(),
        };
        let (mut kept, mut after) = (Vec::new(), None);
        loop {
            let some = match self.table.lock().standby() {
                Some(standby) => standby.copies(after, AT_ONCE),
                None => return Vec::new(),
            };
            after = some.last().map(|(page, _)| *page);
            let is_last = some.len() < AT_ONCE;
            kept.extend(some);
            if is_last {
                break;
            }
        }
        kept.retain(|(_, copy)| parts.contains(&link.layout.part_of(copy.slot)));
        parts.retain(|part| is_same_memory(link, *part, &kept));
        kept.retain(|(_, copy)| parts.contains(&link.layout.part_of(copy.slot)));
        kept
    }

    /// Enters them, some at a time: threads that look for pages wait for the table. The slots of those that are stale;
    /// `None`: remote memory was lost again.
    fn adopt_again(&self, link: &Arc<Link>, kept: &[(PageId, Copy)]) -> Option<Vec<RemoteSlot>> {
        let mut stale = Vec::new();
        for some in kept.chunks(AT_ONCE) {
            stale.extend(self.with_table(link, |table| table.adopt_again(some))?);
        }
        self.with_table(link, Table::drop_standby)?;
        Some(stale)
    }

    /// Remote memory was looked for in vain. When that has gone on for long the first part is made anew elsewhere; says
    /// whether it was. Each further move waits for twice as long: it may be this server that reaches nothing.
    fn move_if_long_away(&self) -> Result<bool> {
        let (since, moves) = *self.away.lock().get_or_insert_with(|| (rt::now(), 0));
        let patience = Nanos(MOVE_AFTER.raw() << moves.min(MOVES_SLOWER));
        if rt::now().since(since) < patience {
            return Ok(false);
        }
        self.check_owner()?;
        let moved = self.source.elsewhere(self.database(), PATIENCE);
        // An answer that comes late is a move as well; what was not asked, or refused, is none.
        if matches!(moved, Ok(()) | Err(Error::Timeout(_))) {
            *self.away.lock() = Some((rt::now(), moves + 1));
        }
        moved.map(|()| true)
    }

    /// Remote memory is taken from the server that has it: by one that has the database, and no other.
    fn check_owner(&self) -> Result<()> {
        match self.storage.nodes() {
            Some(nodes) => nodes.check(),
            None => Ok(()),
        }
    }

    /// What goes wrong again and again is said once.
    fn say(&self, error: &Error) {
        let mut said = self.said.lock();
        let text = error.to_string();
        if *said != text {
            eprintln!("cenote: remote memory cannot be used: {text}");
            *said = text;
        }
    }

    /// A part of remote memory, or the way to it, failed: it is given up. With the first part all of it.
    fn lose(&self, link: &Arc<Link>, failure: &Failure) {
        match failure.slab() {
            Some(slab) => self.lose_slab(link, slab, failure),
            None => self.lose_all(link, &failure.error),
        }
    }

    fn lose_all(&self, link: &Arc<Link>, error: &Error) {
        let mut table = self.table.lock();
        if table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            self.to_disown.store(true, Ordering::SeqCst);
            table.lose(self.is_shared);
            count(&self.counts.losses);
            drop(table);
            eprintln!("cenote: remote memory: {error}; going on with storage, nothing is lost");
        }
    }

    /// No later start may believe what remote memory has: storage is about to get what it lacks.
    fn disown(&self) -> Result<()> {
        if !self.to_disown.load(Ordering::SeqCst) || planted(Fault::StillOwned) {
            return Ok(());
        }
        let _owning = self.owning.lock();
        if self.to_disown.load(Ordering::SeqCst) {
            let nobody = rt::random_u128();
            self.storage.control().update(|c| c.incarnation = nobody)?;
            self.to_disown.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    // ---- pages out ----

    /// Writes pages to their slots; those for which there is none stay out.
    fn write(&self, pages: Vec<Outgoing>) {
        let (link, placed, evicted, index) = {
            let mut table = self.table.lock();
            let Some(link) = table.link.clone() else { return };
            let (mut placed, mut evicted) = (Vec::new(), Vec::new());
            for outgoing in pages {
                if let Some(place) = table.place(outgoing.page) {
                    evicted.extend(place.evicted);
                    placed.push((place.slot, outgoing));
                }
            }
            (link, placed, evicted, table.take_index_writes())
        };
        assert!(
            evicted.len() <= placed.len(),
            "at most one page makes room for each that is written"
        );
        if placed.is_empty() {
            return;
        }
        let (copies, failures) = link.write(placed, index);
        failures.iter().for_each(|failure| self.lose(&link, failure));
        // Of a slab that was lost the copies are none: their names are emptied here.
        self.note_written(&link, &copies, &evicted);
    }

    fn note_written(&self, link: &Arc<Link>, copies: &[(PageId, Copy)], evicted: &[PageId]) {
        let written = copies.len() as u64;
        self.counts.written.as_raw().fetch_add(written, Ordering::Relaxed);
        let gone = evicted.len() as u64;
        self.counts.evictions.as_raw().fetch_add(gone, Ordering::Relaxed);
        let orphans = {
            let mut table = self.table.lock();
            if !table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
                return;
            }
            evicted.iter().for_each(|page| table.faded(*page));
            let placed = copies.iter().map(|(page, copy)| table.placed(*page, *copy));
            placed.flatten().collect::<Vec<RemoteSlot>>()
        };
        // The page was given up while it was written: its name must not stand.
        self.empty(link, &orphans);
    }

    /// Empties slots that are of no entry any more, and frees them.
    fn empty(&self, link: &Arc<Link>, slots: &[RemoteSlot]) {
        if slots.is_empty() {
            return;
        }
        let index = {
            let mut table = self.table.lock();
            let is_current = table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link));
            if is_current {
                table.take_index_writes()
            } else {
                Vec::new()
            }
        };
        match link.clear(slots, index) {
            Err(error) => self.lose(link, &error),
            Ok(()) => {
                let mut table = self.table.lock();
                if table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
                    slots.iter().for_each(|slot| table.free(*slot));
                }
            }
        }
    }

    // ---- pages in ----

    /// The page out of remote memory, if it is there and as it should be.
    fn read_remote(&self, page: PageId, hint: Hint) -> Option<Fetched> {
        let (link, copy, trace) = {
            let mut table = self.table.lock();
            let entry = *table.get(page)?;
            let found = (table.link.clone()?, entry.copy?, entry.trace);
            match hint {
                Hint::ToSave => table.keep_age(page),
                _ => table.asked(page),
            }
            found
        };
        let read = link.read(page, copy);
        self.found(&link, (page, copy, trace), read)
    }

    /// As [`Tier::read_remote`], with one doorbell; in the order of `pages`.
    fn read_remote_many(&self, pages: &[PageId], hint: Hint) -> Vec<Option<Fetched>> {
        let mut fetched: Vec<Option<Fetched>> = pages.iter().map(|_| None).collect();
        let (link, there) = {
            let mut table = self.table.lock();
            let Some(link) = table.link.clone() else { return fetched };
            let copy_of = |(n, page): (usize, &PageId)| {
                let entry = table.get(*page)?;
                Some((n, entry.copy?, entry.trace))
            };
            let there: Vec<(usize, Copy, Trace)> = pages.iter().enumerate().filter_map(copy_of).collect();
            there.iter().for_each(|(n, ..)| match hint {
                Hint::ToSave => table.keep_age(pages[*n]),
                _ => table.asked(pages[*n]),
            });
            (link, there)
        };
        let copies: Vec<(PageId, Copy)> = there.iter().map(|(n, copy, _)| (pages[*n], *copy)).collect();
        if copies.is_empty() {
            return fetched;
        }
        let read = link.read_many(&copies).into_iter();
        for ((n, copy, trace), bytes) in there.into_iter().zip(read) {
            fetched[n] = self.found(&link, (pages[n], copy, trace), bytes);
        }
        fetched
    }

    /// What a read of remote memory came to.
    fn found(
        &self,
        link: &Arc<Link>,
        (page, copy, trace): (PageId, Copy, Trace),
        read: Result<Box<[u8]>, Failure>,
    ) -> Option<Fetched> {
        match read {
            Ok(bytes) => {
                count(&self.counts.hits);
                Some(Fetched {
                    bytes,
                    read: PageRead::Present,
                    from_storage: false,
                    trace: trace_of(trace, copy.lsn),
                })
            }
            Err(Failure {
                error: Error::Corrupt(why),
                ..
            }) => {
                self.refuse(link, page, &why);
                None
            }
            Err(failure) => {
                self.lose(link, &failure);
                None
            }
        }
    }

    /// The copy of `page` is not what it should be: it is no copy any more.
    fn refuse(&self, link: &Arc<Link>, page: PageId, why: &str) {
        let times = self.counts.refused.as_raw().fetch_add(1, Ordering::Relaxed) + 1;
        // Memory that goes bad does so for many pages.
        if times.is_power_of_two() {
            let peer = link.peer();
            eprintln!(
                "cenote: remote memory of {peer}: {why}; the page is read from storage (this happened {times} times)"
            );
        }
        let taken = {
            let mut table = self.table.lock();
            let current = table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link));
            if current { table.take_copy(page) } else { None }
        };
        if let Some(copy) = taken {
            self.empty(link, &[copy.slot]);
        }
    }

    /// The page without its remote copy: from storage, and by its redo where storage lacks some.
    fn read_below(&self, page: PageId) -> Result<Fetched> {
        count(&self.counts.misses);
        let trace = {
            let mut table = self.table.lock();
            table.missed(page);
            match table.get(page) {
                // Which redo it has, the replay that is under way will say, record by record.
                Some(entry) if entry.is_unproven() => {
                    table.note(page, Trace::default());
                    None
                }
                Some(entry) if entry.trace.is_dirty() => Some(entry.trace),
                _ => None,
            }
        };
        match trace {
            None => read_storage(&self.storage, page),
            Some(trace) => {
                count(&self.counts.rebuilt);
                rebuild::rebuild(&self.storage, page, trace)
            }
        }
    }

    /// As [`Tier::read_below`], of those that storage has whole; in the order of `pages`. The others are rebuilt by the
    /// threads that ask for them: that may take long, and others wait for these.
    fn read_below_many(&self, pages: &[PageId]) -> Vec<Result<Fetched>> {
        let is_whole = {
            let mut table = self.table.lock();
            pages.iter().for_each(|page| table.missed(*page));
            let lacks = |page: &PageId| table.get(*page).is_some_and(|entry| entry.trace.is_dirty());
            pages.iter().map(|page| !lacks(page)).collect::<Vec<_>>()
        };
        let whole = pages.iter().zip(&is_whole).filter(|(_, is_whole)| **is_whole);
        let whole: Vec<PageId> = whole.map(|(page, _)| *page).collect();
        whole.iter().for_each(|_| count(&self.counts.misses));
        let mut read = read_storage_many(&self.storage, &whole).into_iter();
        let each = is_whole.into_iter().zip(pages).map(|(is_whole, page)| match is_whole {
            true => read.next().expect("each page is read"),
            false => Err(Error::Busy(format!("page {page} has to be rebuilt"))),
        });
        each.collect()
    }
}

/// What came from storage as it is to be written to a slot, if it is.
fn to_keep(page: PageId, fetched: &Fetched) -> Option<Outgoing> {
    let is_clean = fetched.read != PageRead::NeverWritten && !fetched.trace.is_dirty();
    let lsn = fetched.trace.lsn;
    (is_clean && lsn != Lsn::ZERO).then(|| Outgoing {
        page,
        lsn,
        bytes: fetched.bytes.clone(),
    })
}

/// The trace of a page that is read with this LSN.
fn trace_of(noted: Trace, lsn: Lsn) -> Trace {
    match noted.is_dirty() {
        true => Trace { lsn, ..noted },
        false => Trace {
            in_storage: noted.in_storage,
            ..Trace::saved(lsn)
        },
    }
}

/// Whether copies are where they were, as some of them show: a slab may have been freed, and be other memory.
fn is_same_memory(link: &Link, part: Part, kept: &[(PageId, Copy)]) -> bool {
    let of_part = kept.iter().filter(|(_, copy)| link.layout.part_of(copy.slot) == part);
    let count = of_part.clone().count();
    let some: Vec<(PageId, Copy)> = of_part.step_by((count / SAMPLE).max(1)).copied().collect();
    some.is_empty() || link.read_many(&some).iter().any(Result::is_ok)
}

/// Two names for one page: neither is believed. Says how many were dropped.
fn drop_twice(kept: &mut Vec<(PageId, Copy)>) -> u64 {
    let mut times: rt::HashMap<PageId, u32> = rt::HashMap::default();
    for (page, _) in kept.iter() {
        *times.entry(*page).or_default() += 1;
    }
    let before = kept.len();
    kept.retain(|(page, _)| times[page] == 1);
    (before - kept.len()) as u64
}

impl Lower for Tier {
    fn read(&self, page: PageId, hint: Hint) -> Result<Fetched> {
        if let Some(fetched) = self.read_remote(page, hint) {
            return Ok(fetched);
        }
        let fetched = self.read_below(page)?;
        // What a scan passes by does not drive out what was asked for.
        if hint.is_asked() {
            self.write(to_keep(page, &fetched).into_iter().collect());
        }
        Ok(fetched)
    }

    fn read_many(&self, pages: &[PageId], hint: Hint) -> Vec<Result<Fetched>> {
        with_below(pages, self.read_remote_many(pages, hint), |missing| {
            let below = self.read_below_many(missing);
            if hint.is_asked() {
                let read = missing.iter().zip(&below);
                let kept = read.filter_map(|(page, read)| to_keep(*page, read.as_ref().ok()?));
                self.write(kept.collect());
            }
            below
        })
    }

    fn enter(&self, page: PageId) {
        loop {
            let mut table = self.table.lock();
            if !table.is_fading(page) {
                return table.register(page);
            }
            drop(table);
            rt::sleep(FADING_TURN);
        }
    }

    fn leave(&self, page: PageId, asked: bool) {
        self.table.lock().unregister(page, asked);
    }

    fn way_out(&self, page: PageId, trace: &Trace, wanted: bool) -> EvictionStep {
        let mut table = self.table.lock();
        let copy = table.get(page).and_then(|entry| entry.copy);
        let dirty = trace.is_dirty();
        match copy {
            _ if table.link.is_none() => match dirty {
                true => EvictionStep::Save,
                false => EvictionStep::Free,
            },
            Some(copy) if copy.lsn == trace.lsn => EvictionStep::Free,
            Some(_) => EvictionStep::Push,
            None if !dirty && !wanted => EvictionStep::Free,
            None if table.has_room() => EvictionStep::Push,
            None => {
                table.refuse();
                match dirty {
                    true => EvictionStep::Save,
                    false => EvictionStep::Free,
                }
            }
        }
    }

    fn let_go(&self, page: PageId, trace: &Trace) -> bool {
        let mut table = self.table.lock();
        if let Some(standby) = table.standby() {
            standby.changed(page, trace.lsn);
        }
        let copy = table.get(page).and_then(|entry| entry.copy);
        let whole = match copy {
            Some(copy) => copy.lsn == trace.lsn,
            None => !trace.is_dirty(),
        };
        if whole {
            let rec = if planted(Fault::LostTrace) {
                Lsn::ZERO
            } else {
                trace.rec
            };
            table.note(page, Trace { rec, ..*trace });
        }
        whole
    }

    fn push(&self, pages: Vec<Outgoing>) {
        self.write(pages);
    }

    fn before_save(&self, pages: &[PageWrite<'_>]) -> Result<()> {
        let stale: Vec<Outgoing> = {
            let table = self.table.lock();
            let is_stale = |page: PageId, lsn: Lsn| {
                let copy = table.get(page).and_then(|entry| entry.copy);
                copy.is_none_or(|copy| copy.lsn != lsn)
            };
            let outgoing = pages
                .iter()
                .map(|write| (write.id, redo::page_lsn(write.bytes), write.bytes));
            let stale = outgoing.filter(|(page, lsn, _)| table.link.is_some() && is_stale(*page, *lsn));
            stale
                .map(|(page, lsn, bytes)| Outgoing {
                    page,
                    lsn,
                    bytes: bytes.into(),
                })
                .collect()
        };
        if !planted(Fault::StaleCopy) {
            self.write(stale);
        }
        self.disown()
    }

    fn saved(&self, page: PageId, lsn: Lsn, all: bool) {
        self.table.lock().saved(page, lsn, all);
    }

    fn forget(&self, space: u32, pages: Range<u32>) -> bool {
        let (link, slots) = {
            let mut table = self.table.lock();
            if let Some(standby) = table.standby() {
                standby.forget(space, pages.clone());
            }
            let which = table.pages_of(space, pages);
            (table.link.clone(), table.forget(&which))
        };
        if let Some(link) = link {
            self.empty(&link, &slots);
        }
        true
    }

    fn oldest_unsaved(&self) -> Option<Lsn> {
        self.table.lock().oldest_unsaved()
    }

    fn unsaved_before(&self, before: Lsn, most: usize) -> Vec<PageId> {
        self.table.lock().unsaved_before(before, most)
    }

    fn wants_cleaning(&self) -> bool {
        self.table.lock().wants_cleaning()
    }

    fn next_to_clean(&self, most: usize) -> Vec<PageId> {
        self.table.lock().next_to_clean(most)
    }

    fn is_unsaved(&self, page: PageId) -> bool {
        self.table.lock().get(page).is_some_and(|entry| entry.trace.is_dirty())
    }

    fn forsake(&self) -> bool {
        let mut table = self.table.lock();
        let pages: Vec<PageId> = table.entries().map(|(page, _)| *page).collect();
        let had = table.link.is_some() || !pages.is_empty();
        self.to_disown.store(true, Ordering::SeqCst);
        table.drop_copies();
        table.drop_standby();
        table.forget(&pages);
        had
    }

    fn replayed(&self) {
        let (link, slots) = {
            let mut table = self.table.lock();
            // The log has no redo for it, so storage lacks none: what is in the slot is not what its name says.
            let strange = table
                .entries()
                .filter(|(_, entry)| entry.is_unproven() && !entry.registered);
            let strange: Vec<PageId> = strange.map(|(page, _)| *page).collect();
            (table.link.clone(), table.forget(&strange))
        };
        if let Some(link) = link {
            self.empty(&link, &slots);
        }
    }

    fn incarnation(&self) -> Option<u128> {
        self.table.lock().link.as_ref().map(|link| link.incarnation)
    }

    fn needs_maintenance(&self) -> bool {
        true
    }

    fn needs_cleaning(&self) -> bool {
        !self.is_shared
    }

    fn has_readers(&self) -> bool {
        self.is_shared
    }

    fn changed(&self, pages: &[(PageId, Lsn)]) {
        let (link, slots) = {
            let mut table = self.table.lock();
            if let Some(standby) = table.standby() {
                pages.iter().for_each(|(page, lsn)| standby.changed(*page, *lsn));
            }
            let Some(link) = table.link.clone() else { return };
            (link, table.overtaken(pages))
        };
        if slots.is_empty() || planted(Fault::NameStands) {
            return;
        }
        // Memory that is lost gets no watermark any more.
        if let Err(error) = link.clear(&slots, Vec::new()) {
            self.lose(&link, &error);
        }
    }

    fn told_changes(&self, to: Lsn) {
        let link = self.table.lock().link.clone();
        if let Some(link) = link
            && let Err(error) = link.raise_watermark(to)
        {
            self.lose(&link, &error);
        }
    }

    /// An eighth of all slots is left to pages that leave their frames: no other page gets the slot of one in a frame.
    fn room_for_frames(&self) -> usize {
        let table = self.table.lock();
        let kept = table.slots() as usize / 8;
        table.free_slots().saturating_sub(kept)
    }

    fn lacks_copy(&self, page: PageId) -> bool {
        let table = self.table.lock();
        table.link.is_some() && table.get(page).is_none_or(|entry| entry.copy.is_none())
    }

    fn used_by_readers(&self, pages: &[PageId]) -> Vec<PageId> {
        let mut lacking = Vec::new();
        // A few at a time: misses of the server wait for the table.
        for some in pages.chunks(TOUCHED_MOST) {
            let mut table = self.table.lock();
            if table.link.is_none() {
                return Vec::new();
            }
            lacking.extend(some.iter().filter(|page| !table.touch(**page)));
        }
        lacking
    }

    /// Takes remote memory that was lost into use again.
    fn maintain(&self) {
        if self.table.lock().link.is_some() {
            return;
        }
        // The thread that scales may be about to change what is granted.
        let _one = self.turn.lock();
        let taken = self.take_again().or_else(|error| match self.move_if_long_away() {
            Ok(true) => self.take_again(),
            Ok(false) => Err(error),
            Err(why) => Err(Error::Lost(format!(
                "{error}; and it is not made anew elsewhere: {why}"
            ))),
        });
        match taken {
            Ok(kept) => eprintln!("cenote: remote memory is in use again, with {kept} pages of before"),
            Err(error) => self.say(&error),
        }
    }

    fn check(&self, problems: &mut Vec<String>) {
        let (link, idle) = {
            let table = self.table.lock();
            table.check(problems);
            let idle = table.entries().filter(|(_, entry)| !entry.registered);
            let written = |(page, entry): (&PageId, &copy::Entry)| {
                let copy = entry.copy.filter(|copy| copy.lsn != Lsn::ZERO)?;
                Some((*page, copy))
            };
            let idle: Vec<(PageId, Copy)> = idle.filter_map(written).collect();
            (table.link.clone(), idle)
        };
        let Some(link) = link else { return };
        for (page, copy) in idle {
            // It may have changed since; then the entry is another.
            let same = || {
                self.table
                    .lock()
                    .get(page)
                    .is_some_and(|e| !e.registered && e.copy == Some(copy))
            };
            if let Err(failure) = link.read(page, copy)
                && let Error::Corrupt(why) = failure.error
                && same()
            {
                problems.push(format!("remote memory: {why}"));
            }
        }
    }

    fn scales(&self) -> bool {
        self.source.scales()
    }

    fn scale(&self, is_over: &dyn Fn() -> bool) {
        self.scale_once(is_over);
    }

    fn set_remote_size(&self, size: RemoteSize) -> Result<()> {
        self.set_size(size)
    }

    fn remote_parts(&self) -> Vec<RemotePart> {
        self.parts()
    }

    fn stats(&self) -> Option<TierStats> {
        let scaled = self.scale_stats();
        let (slots, in_use) = {
            let table = self.table.lock();
            (table.slots(), table.slots_in_use() as u32)
        };
        let get = |counter: &AtomicU64| counter.as_raw().load(Ordering::Relaxed);
        let (hits, written) = (get(&self.counts.hits), get(&self.counts.written));
        Some(TierStats {
            slots,
            slots_in_use: in_use,
            slots_free: slots - in_use.min(slots),
            hits,
            misses: get(&self.counts.misses),
            evictions: get(&self.counts.evictions),
            pages_rebuilt: get(&self.counts.rebuilt),
            pages_refused: get(&self.counts.refused),
            losses: get(&self.counts.losses),
            bytes_read: hits * cenote_base::PAGE_SIZE as u64,
            bytes_written: written * cenote_base::PAGE_SIZE as u64,
            ..scaled
        })
    }
}
