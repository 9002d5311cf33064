//! The double-write area: where pages are safe while they are written in place.
//!
//! ```text
//! file "doublewrite": AREAS areas, each
//!      0 header: the list of the batch (see `lists`)
//!  16384 copies, in the order of the list: of each page the blocks of 4 KiB that changed since it was written last
//! ```
//!
//! A start sees a batch if its list is whole. A copy that lacks blocks is laid over what is in place: those blocks are
//! there as they were, whichever others were torn, or lost by the drive that was writing them. Where two batches have changed a page and neither is known to be in
//! place, the older copy is laid over it first. What comes of it counts if its checksum and id are as listed. A
//! batch that was cut off while it was written had no page in place yet, and no checkpoint has relied on it.
//!
//! Invariants:
//! - all bytes that are written in place are in the copy, those too that do not change, and the copy is synced before;
//! - an area is held by one writer from [`Areas::take`] until its pages are in place;
//! - a thread makes areas empty only while it holds them all, and after a sync of the spaces since then;
//! - a list says which batches were *settled* (in their places, and synced) when it was filled. An area is written over
//!   only when its batch is settled; so a batch that wrote over a newer copy of a page lists the older ones as settled;
//! - `recent` says which page's newest copy lies where, for repair at reading.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cenote_base::bytes::get_le;
use cenote_base::page_io::{PageWrite, Sectors};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, IoRequest, OpenOptions};
use cenote_base::rt::{Condvar, HashMap, Mutex, MutexGuard};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use super::lists::{self, AREAS, BATCH, Entry, List};
use crate::files::doing;
use crate::reads::{at_once, padded};
use crate::redo::{page_lsn, verify_page};

const AREA_BYTES: u64 = ((BATCH + 1) * PAGE_SIZE) as u64;
/// What every write of a page changes: its checksum and its LSN.
const HEAD: Sectors = Sectors::of(0, 1);
/// What is written at least: a file system's and a drive's block, which a power cut may take whole.
pub(super) const BLOCK: usize = 4096;

pub(super) struct Areas {
    path: PathBuf,
    file: File,
    database: u128,
    areas: [Mutex<Area>; AREAS],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    sequence: AtomicU64,
    /// The sequence number of the batch in the area while its pages in place may not be synced;
    /// else zero.
    unsettled: [AtomicU64; AREAS],
    /// The newest batch of each area whose pages are in their places.
    placed: Mutex<[u64; AREAS]>,
    /// The newest batch of each area whose pages are synced there.
    settled: [AtomicU64; AREAS],
    /// One thread at a time takes them all.
    taking_all: Mutex<()>,
    recent: Mutex<HashMap<PageId, Place>>,
    /// A process before may have left copies, of whatever spaces. Its lists may come back even where they are not seen:
    /// it may have made the areas empty, and been killed before that was synced.
    has_former: AtomicBool,
}

/// The bytes of an area, and its list.
#[derive(Default)]
struct Area {
    /// The header, as it is on disk until the area is filled; then the copies, too.
    bytes: Vec<u8>,
    /// The pages of the batch, whole.
    pages: Vec<u8>,
    list: List,
}

/// Where a copy lies: in which area, how many bytes behind its header; and what it has of its page.
#[derive(Debug, Clone, Copy)]
struct Place {
    area: usize,
    offset: usize,
    sectors: Sectors,
}

impl Place {
    fn at(&self) -> u64 {
        assert!(
            self.area < AREAS && self.offset + self.sectors.bytes() <= BATCH * PAGE_SIZE,
            "a copy lies in its area: {self:?}"
        );
        self.area as u64 * AREA_BYTES + (PAGE_SIZE + self.offset) as u64
    }

    /// Puts the copy's bytes over `page`.
    fn lay_over(&self, copy: &[u8], page: &mut [u8]) {
        let mut rest = copy;
        for range in self.sectors.ranges() {
            let (bytes, behind) = rest.split_at(range.len());
            page[range].copy_from_slice(bytes);
            rest = behind;
        }
    }
}

/// Where the copies of a list lie.
fn places(area: usize, entries: &[Entry]) -> impl Iterator<Item = Place> {
    entries.iter().scan(0, move |behind, entry| {
        let (offset, sectors) = (*behind, entry.sectors);
        *behind += sectors.bytes();
        Some(Place { area, offset, sectors })
    })
}

/// A page of a batch, to be written in place.
pub(super) struct Placing<'a> {
    pub id: PageId,
    /// Which one of the batch.
    pub index: usize,
    pub bytes: &'a [u8],
    pub sectors: Sectors,
}

/// How far the batch of a held area has come.
///
/// ```text
/// Taken ─ fill ─► Filled ─ write ─► Written ─ publish ─► Published ─ placed ─► Placed
/// ```
///
/// A writer that fails gives the area back as it is; the store is poisoned then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Taken,
    Filled,
    Written,
    Published,
    Placed,
}

/// An area in the hands of one writer.
pub(super) struct Held<'a> {
    step: Step,
    areas: &'a Areas,
    index: usize,
    area: MutexGuard<'a, Area>,
}

/// All areas in the hands of one thread.
pub(super) struct All<'a> {
    areas: &'a Areas,
    held: [Held<'a>; AREAS],
    _taking: MutexGuard<'a, ()>,
}

/// A copy of a page: its place, and what its list says of it.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    place: Place,
    sum: u32,
    /// The LSN of the version; zero if the list does not say.
    pub lsn: Lsn,
    /// Whether no newer list of the page can have been written over.
    pub sure: bool,
}

impl Listed {
    /// Whether `page`, which was read as page `id`, is whole and this very version.
    pub fn is(&self, page: &[u8], id: PageId) -> bool {
        get_le::<u32>(page, 0) == Some(self.sum) && verify_page(page, id).is_ok()
    }

    /// Puts the bytes of the copy over `page`, which is in place, with older copies over it.
    pub fn lay_over(&self, copy: &[u8], page: &mut [u8]) {
        self.place.lay_over(copy, page);
    }
}

impl Areas {
    /// The areas of a data directory; makes their file if it is missing.
    ///
    /// # Errors
    /// An I/O error; [`Error::Full`] if there is no space for the file.
    pub fn open(data: &Path, database: u128) -> Result<Areas> {
        let path = data.join("doublewrite");
        let file = doing(fs::open(&path, OpenOptions::CREATE), "opening", &path)?;
        let length = doing(file.len(), "measuring", &path)?;
        if length < AREA_BYTES * AREAS as u64 {
            doing(file.allocate(0, AREA_BYTES * AREAS as u64), "making room in", &path)?;
            doing(file.sync_data(), "syncing", &path)?;
            doing(fs::sync_dir(data), "syncing", data)?;
        }
        Ok(Areas {
            path,
            file,
            database,
            areas: Default::default(),
            free: Mutex::new((0..AREAS).rev().collect()),
            freed: Condvar::new(),
            sequence: AtomicU64::new(1),
            unsettled: Default::default(),
            placed: Default::default(),
            settled: Default::default(),
            taking_all: Mutex::new(()),
            recent: Mutex::new(HashMap::default()),
            has_former: AtomicBool::new(length > 0),
        })
    }

    // ---- at opening ----

    /// Where copies of pages lie, as the lists of the areas say; of each page the newest first. Their checksums are
    /// those that the copies had when they were made. From here on the areas are written over in the order of their
    /// batches.
    ///
    /// # Errors
    /// An I/O error; [`Error::Mismatch`] if a list is of another database or of a later format.
    pub fn listed(&self) -> Result<BTreeMap<PageId, Vec<Listed>>> {
        let mut lists = Vec::new();
        for (index, header) in self.headers()?.into_iter().enumerate() {
            let found = lists::newest(&header, self.database)
                .map_err(|why| Error::Mismatch(format!("{} {why}", self.path.display())))?;
            self.areas[index].lock().bytes = header.into_vec();
            if let Some(list) = found {
                self.adopt(index, &list);
                lists.push((index, list));
            }
        }
        lists.sort_unstable_by_key(|(index, list)| Reverse((list.sequence, *index)));
        self.order_free(&lists);
        let mut listed: BTreeMap<PageId, Vec<Listed>> = BTreeMap::new();
        for (area, list) in &lists {
            let sure = self.is_sure(*area, list.sequence, &lists);
            for (place, entry) in places(*area, &list.entries).zip(&list.entries) {
                let copy = Listed {
                    place,
                    sum: entry.sum,
                    lsn: entry.lsn,
                    sure,
                };
                listed.entry(entry.id).or_default().push(copy);
            }
        }
        Ok(listed)
    }

    /// Goes on from the batch that a process before has left in an area.
    fn adopt(&self, index: usize, list: &List) {
        self.sequence
            .fetch_max(list.sequence.saturating_add(1), Ordering::Relaxed);
        self.unsettled[index].store(list.sequence.max(1), Ordering::Release);
        self.placed.lock()[index] = list.sequence.max(1);
        for (settled, batch) in self.settled.iter().zip(list.settled) {
            settled.fetch_max(batch, Ordering::AcqRel);
            self.sequence.fetch_max(batch.saturating_add(1), Ordering::Relaxed);
        }
        self.areas[index].lock().list.turn = list.turn;
    }

    /// The area with the oldest batch is taken first. `lists`: the newest first.
    fn order_free(&self, lists: &[(usize, List)]) {
        let age = |index: &usize| lists.iter().position(|(area, _)| area == index).unwrap_or(AREAS);
        self.free.lock().sort_by_key(age);
    }

    /// Whether no list of a newer batch than `sequence` in `area` can have been written over: it is not settled, or all
    /// newer ones are here.
    fn is_sure(&self, area: usize, sequence: u64, lists: &[(usize, List)]) -> bool {
        let newer = lists.iter().filter(|(_, list)| list.sequence > sequence).count() as u64;
        let newest = lists.first().map_or(sequence, |(_, list)| list.sequence);
        sequence > self.settled[area].load(Ordering::Acquire) || newest - sequence == newer
    }

    fn headers(&self) -> Result<Vec<Box<[u8]>>> {
        let request = |index: usize| {
            let buffer = vec![0; PAGE_SIZE].into();
            IoRequest::read(self.file.clone(), index as u64 * AREA_BYTES, buffer, index as u64)
        };
        self.read_all((0..AREAS).map(request).collect()).collect()
    }

    fn read_all(&self, requests: Vec<IoRequest>) -> impl Iterator<Item = Result<Box<[u8]>>> {
        let read = |request| doing(padded(request), "reading", &self.path);
        at_once(requests).into_iter().map(read)
    }

    /// Writes copies where they lie once more, with their headers, and syncs them.
    ///
    /// # Errors
    /// An I/O error.
    pub fn write_again<'a>(&self, copies: impl Iterator<Item = (Listed, &'a [u8])>) -> Result<()> {
        let write = |bytes: &[u8], at| doing(self.file.write_at(bytes, at), "writing", &self.path);
        for (header, area) in self.headers()?.iter().zip(0..) {
            write(header, area * AREA_BYTES)?;
        }
        for (copy, bytes) in copies {
            write(bytes, copy.place.at())?;
        }
        doing(self.file.sync_data(), "syncing", &self.path)
    }

    /// The bytes of listed copies, in order: whole or not, whatever lies there.
    pub fn copies(&self, listed: &[Listed]) -> Vec<Result<Box<[u8]>>> {
        let request = |(copy, tag): (&Listed, u64)| {
            let buffer = vec![0; copy.place.sectors.bytes()].into();
            IoRequest::read(self.file.clone(), copy.place.at(), buffer, tag)
        };
        self.read_all(listed.iter().zip(0..).map(request).collect()).collect()
    }

    // ---- while writing ----

    /// A free area, or the first that becomes free.
    pub fn take(&self) -> Held<'_> {
        let free = self.free.lock();
        let mut free = self.freed.wait_while(free, |f| f.is_empty());
        let index = free.pop().expect("not empty, as just waited for");
        drop(free);
        Held {
            areas: self,
            step: Step::Taken,
            index,
            area: self.areas[index].lock(),
        }
    }

    /// The batches that are in place now. A sync of the spaces that begins after this settles them.
    pub fn in_place(&self) -> [u64; AREAS] {
        *self.placed.lock()
    }

    /// The spaces have been synced since `batches` were in place.
    pub fn settled(&self, batches: [u64; AREAS]) {
        for (area, sequence) in batches.into_iter().enumerate() {
            self.settled[area].fetch_max(sequence, Ordering::AcqRel);
            // A newer batch in the area keeps its own flag.
            let _ = self.unsettled[area].compare_exchange(sequence, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes where the newest copies of the batch's pages are.
    pub fn publish(&self, held: &mut Held<'_>) {
        let written = if planted(Fault::DoubleWrite) {
            Step::Filled
        } else {
            Step::Written
        };
        held.passes(written, Step::Published);
        let List { sequence, entries, .. } = &held.area.list;
        self.unsettled[held.index].store(*sequence, Ordering::Release);
        let mut recent = self.recent.lock();
        recent.retain(|_, place| place.area != held.index);
        for (place, entry) in places(held.index, entries).zip(entries) {
            recent.insert(entry.id, place);
        }
    }

    /// Whether an area may have pages of `space`, of this process or of one before.
    pub fn holds(&self, space: u32) -> bool {
        self.has_former.load(Ordering::Acquire) || self.recent.lock().keys().any(|id| id.space == space)
    }

    /// All areas: no batch is being written then.
    pub fn take_all(&self) -> All<'_> {
        let taking = self.taking_all.lock();
        All {
            areas: self,
            held: std::array::from_fn(|_| self.take()),
            _taking: taking,
        }
    }

    /// Repairs a page that was read damaged by its newest copy in the areas, if there is one that does it.
    ///
    /// # Errors
    /// An I/O error of the read.
    pub fn copy_of(&self, id: PageId, page: &mut [u8]) -> Result<bool> {
        let Some(place) = self.recent.lock().get(&id).copied() else {
            return Ok(false);
        };
        let (mut copy, mut repaired) = (vec![0; place.sectors.bytes()], page.to_vec());
        doing(self.file.read_at(&mut copy, place.at()), "reading", &self.path)?;
        place.lay_over(&copy, &mut repaired);
        if verify_page(&repaired, id).is_err() {
            return Ok(false);
        }
        page.copy_from_slice(&repaired);
        Ok(true)
    }
}

impl All<'_> {
    /// Makes all areas empty. All spaces have to be synced since they were taken.
    ///
    /// # Errors
    /// An I/O error of a write or of the sync.
    pub fn clear(mut self) -> Result<()> {
        let areas = self.areas;
        for h in &mut self.held {
            assert!(h.step == Step::Taken, "an area that is made empty has no batch");
            h.area.bytes.clear();
            h.area.bytes.resize(PAGE_SIZE, 0);
            let at = h.index as u64 * AREA_BYTES;
            doing(areas.file.write_at(&h.area.bytes, at), "clearing", &areas.path)?;
            areas.unsettled[h.index].store(0, Ordering::Release);
        }
        areas.recent.lock().clear();
        doing(areas.file.sync_data(), "syncing", &areas.path)?;
        areas.has_former.store(false, Ordering::Release);
        Ok(())
    }
}

impl Held<'_> {
    /// Goes one step on.
    fn passes(&mut self, from: Step, to: Step) {
        assert!(
            self.step == from,
            "area {} goes from {from:?} to {to:?}, and is {:?}",
            self.index,
            self.step
        );
        self.step = to;
    }

    /// Whether the spaces have to be synced before this area may be written.
    pub fn needs_sync(&self) -> bool {
        self.areas.unsettled[self.index].load(Ordering::Acquire) != 0
    }

    /// Copies pages in, lets `finish` fill in their checksums, and makes the header.
    pub fn fill(&mut self, batch: &[PageWrite<'_>], finish: impl Fn(&mut [u8])) {
        assert!(
            (1..=BATCH).contains(&batch.len()),
            "a batch of {} pages fills no area",
            batch.len()
        );
        assert!(
            !self.needs_sync() || planted(Fault::AreaReuse),
            "area {} is filled before its last batch is settled",
            self.index
        );
        self.passes(Step::Taken, Step::Filled);
        let Area { bytes, pages, list } = &mut *self.area;
        bytes.resize(PAGE_SIZE, 0);
        pages.clear();
        list.entries.clear();
        for write in batch {
            let at = pages.len();
            pages.extend_from_slice(write.bytes);
            let page = &mut pages[at..];
            finish(page);
            let sectors = write.changed.and(HEAD).in_blocks(BLOCK);
            sectors.ranges().for_each(|range| bytes.extend_from_slice(&page[range]));
            list.entries.push(Entry {
                id: write.id,
                lsn: page_lsn(page),
                sum: get_le::<u32>(page, 0).unwrap_or(0),
                sectors,
            });
        }
        list.sequence = self.areas.sequence.fetch_add(1, Ordering::Relaxed);
        list.turn = 1 - list.turn;
        list.settled = std::array::from_fn(|i| self.areas.settled[i].load(Ordering::Acquire));
        lists::put(&mut bytes[..PAGE_SIZE], list, self.areas.database);
    }

    /// Writes the area and syncs it. The list goes last: a batch that a killed process had not finished is not listed,
    /// and a start need not look for its redo.
    ///
    /// # Errors
    /// An I/O error of a write or of the sync.
    pub fn write(&mut self) -> Result<()> {
        self.passes(Step::Filled, Step::Written);
        let areas = self.areas;
        let write = |bytes: &[u8], at| doing(areas.file.write_at(bytes, at), "writing", &areas.path);
        let base = self.index as u64 * AREA_BYTES;
        write(&self.area.bytes[PAGE_SIZE..], base + PAGE_SIZE as u64)?;
        for place in lists::places(self.area.list.turn) {
            write(&self.area.bytes[place.clone()], base + place.start as u64)?;
        }
        if planted(Fault::DoubleWriteSync) {
            return Ok(());
        }
        doing(areas.file.sync_data(), "syncing", &areas.path)
    }

    /// The pages in the order of their places.
    pub fn in_order(&self) -> Vec<Placing<'_>> {
        let Area { pages, list, .. } = &*self.area;
        let whole = list.entries.iter().zip(pages.chunks_exact(PAGE_SIZE)).enumerate();
        let placing = |(index, (entry, bytes)): (usize, (&Entry, _))| Placing {
            id: entry.id,
            index,
            bytes,
            sectors: entry.sectors,
        };
        let mut sorted: Vec<_> = whole.map(placing).collect();
        sorted.sort_unstable_by_key(|placing| placing.id);
        sorted
    }

    /// The batch's pages are in their places.
    pub fn placed(&mut self) {
        self.passes(Step::Published, Step::Placed);
        self.areas.placed.lock()[self.index] = self.area.list.sequence;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The area's own lock is released right after; the next writer waits for it.
        let mut free = self.areas.free.lock();
        assert!(!free.contains(&self.index), "area {} is given back once", self.index);
        free.insert(0, self.index);
        drop(free);
        self.areas.freed.notify_one();
    }
}
