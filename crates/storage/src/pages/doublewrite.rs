//! The double-write area: where pages are safe while they are written in place.
//!
//! ```text
//! file "doublewrite": AREAS areas, each
//!      0 u64 magic  8 u128 database  24 u64 sequence  32 u32 pages  36 u32 crc32c of the header
//!        (this field zero)   64 BATCH x { u32 space  u32 page  u32 checksum  u32 0 }
//!  16384 the pages, in the order of the list, checksums filled in
//! ```
//!
//! A batch counts if its header's checksum fits; of its pages those count whose own checksum and
//! id do. A batch that was cut off while it was written had no page in place yet.
//!
//! Invariants: an area is held by one writer from [`Areas::take`] until its pages are in place;
//! `recent` says which page's newest copy lies where, for repair at reading.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fs::{self, File, IoRequest, OpenOptions};
use cenote_base::rt::{Condvar, HashMap, HashSet, Mutex, MutexGuard};
use cenote_base::{Error, PAGE_SIZE, PageId, Result, crc};

use super::doing;
use crate::reads::{at_once, padded};
use crate::redo::{u32_at, u64_at, verify_page};

/// Pages in a batch, at most.
pub const BATCH: usize = 64;
/// Batches that may be in flight, and be written before a sync of the spaces is needed.
const AREAS: usize = 4;

const MAGIC: u64 = u64::from_le_bytes(*b"CenDblW1");
const AREA_BYTES: u64 = ((BATCH + 1) * PAGE_SIZE) as u64;
const LIST: usize = 64;
const LIST_ENTRY: usize = 16;

const _: () = assert!(LIST + BATCH * LIST_ENTRY <= PAGE_SIZE);

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
    clearing: Mutex<()>,
    recent: Mutex<HashMap<PageId, (usize, usize)>>,
    /// Spaces of which there were copies at opening.
    found: Mutex<HashSet<u32>>,
}

/// The bytes of an area and what is in them.
struct Area {
    bytes: Vec<u8>,
    pages: Vec<(PageId, usize)>,
    sequence: u64,
}

/// An area in the hands of one writer.
pub(super) struct Held<'a> {
    areas: &'a Areas,
    index: usize,
    area: MutexGuard<'a, Area>,
}

/// Where a copy of a page lies, and its checksum.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    area: usize,
    slot: usize,
    sum: u32,
}

impl Listed {
    fn at(&self) -> u64 {
        self.area as u64 * AREA_BYTES + ((self.slot + 1) * PAGE_SIZE) as u64
    }

    /// Whether `page`, which was read as page `id`, is whole and this very copy.
    pub fn is(&self, page: &[u8], id: PageId) -> bool {
        u32_at(page, 0) == Some(self.sum) && verify_page(page, id).is_ok()
    }
}

impl Areas {
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
            areas: std::array::from_fn(|_| {
                Mutex::new(Area {
                    bytes: Vec::new(),
                    pages: Vec::new(),
                    sequence: 0,
                })
            }),
            free: Mutex::new((0..AREAS).rev().collect()),
            freed: Condvar::new(),
            sequence: AtomicU64::new(1),
            unsettled: Default::default(),
            clearing: Mutex::new(()),
            recent: Mutex::new(HashMap::default()),
            found: Mutex::new(HashSet::default()),
        })
    }

    // ---- at opening ----

    /// Where copies of pages lie, as the headers of the areas say; of each page the newest first. Their checksums are those
    /// that the copies had when they were made.
    pub fn listed(&self) -> Result<BTreeMap<PageId, Vec<Listed>>> {
        let mut batches = Vec::new();
        for (index, header) in self.headers()?.into_iter().enumerate() {
            if let Some(count) = self.check_header(&header)? {
                let sequence = u64_at(&header, 24).unwrap_or(0);
                self.sequence.fetch_max(sequence + 1, Ordering::Relaxed);
                self.unsettled[index].store(sequence.max(1), Ordering::Release);
                batches.push((sequence, index, count, header));
            }
        }
        batches.sort_unstable_by_key(|(sequence, index, ..)| Reverse((*sequence, *index)));
        let mut listed: BTreeMap<PageId, Vec<Listed>> = BTreeMap::new();
        for (_, area, count, header) in &batches {
            for (slot, (id, sum)) in (0..*count).filter_map(|i| Some((i, listed_page(header, i)?))) {
                let copy = Listed { area: *area, slot, sum };
                listed.entry(id).or_default().push(copy);
                self.found.lock().insert(id.space);
            }
        }
        Ok(listed)
    }

    fn headers(&self) -> Result<Vec<Box<[u8]>>> {
        let request = |index: usize| {
            let buffer = vec![0; PAGE_SIZE].into();
            IoRequest::read(self.file.clone(), index as u64 * AREA_BYTES, buffer, index as u64)
        };
        self.read_all((0..AREAS).map(request).collect())
    }

    fn read_all(&self, requests: Vec<IoRequest>) -> Result<Vec<Box<[u8]>>> {
        let read = |request| doing(padded(request), "reading", &self.path);
        at_once(requests).into_iter().map(read).collect()
    }

    /// Writes copies where they lie once more, with their headers, and syncs them.
    pub fn write_again<'a>(&self, copies: impl Iterator<Item = (Listed, &'a [u8])>) -> Result<()> {
        let write = |bytes: &[u8], at| doing(self.file.write_at(bytes, at), "writing", &self.path);
        for (header, area) in self.headers()?.iter().zip(0..) {
            write(header, area * AREA_BYTES)?;
        }
        for (copy, bytes) in copies {
            write(bytes, copy.at())?;
        }
        doing(self.file.sync_data(), "syncing", &self.path)
    }

    /// The bytes of listed copies, in order: whole or not, whatever lies there.
    pub fn copies(&self, listed: &[Listed]) -> Result<Vec<Box<[u8]>>> {
        let request =
            |(copy, tag): (&Listed, u64)| IoRequest::read(self.file.clone(), copy.at(), vec![0; PAGE_SIZE].into(), tag);
        self.read_all(listed.iter().zip(0..).map(request).collect())
    }

    /// The number of pages of a batch; `None` if there is no whole header.
    fn check_header(&self, header: &[u8]) -> Result<Option<usize>> {
        let count = u32_at(header, 32).unwrap_or(0) as usize;
        if u64_at(header, 0) != Some(MAGIC) || count > BATCH || u32_at(header, 36) != Some(header_sum(header)) {
            return Ok(None);
        }
        if header[8..24] != self.database.to_le_bytes() {
            return Err(Error::Mismatch(format!(
                "{} is of another database",
                self.path.display()
            )));
        }
        Ok(Some(count))
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
            index,
            area: self.areas[index].lock(),
        }
    }

    /// The batches that are in place now. A sync of the spaces that begins after this settles them.
    pub fn in_place(&self) -> [u64; AREAS] {
        let free = self.free.lock();
        std::array::from_fn(|i| {
            if free.contains(&i) {
                self.unsettled[i].load(Ordering::Acquire)
            } else {
                0
            }
        })
    }

    /// The spaces have been synced since `batches` were in place.
    pub fn settled(&self, batches: [u64; AREAS]) {
        for (flag, sequence) in self.unsettled.iter().zip(batches).filter(|(_, s)| *s != 0) {
            // A newer batch in the area keeps its own flag.
            let _ = flag.compare_exchange(sequence, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes where the newest copies of the batch's pages are.
    pub fn publish(&self, held: &Held<'_>) {
        self.unsettled[held.index].store(held.area.sequence, Ordering::Release);
        let mut recent = self.recent.lock();
        recent.retain(|_, (area, _)| *area != held.index);
        for (slot, (id, _)) in held.area.pages.iter().enumerate() {
            recent.insert(*id, (held.index, slot));
        }
    }

    /// Whether an area may have pages of `space`, of this process or of one before.
    pub fn holds(&self, space: u32) -> bool {
        self.found.lock().contains(&space) || self.recent.lock().keys().any(|id| id.space == space)
    }

    /// Makes all areas empty. All spaces have to be synced.
    pub fn clear(&self) -> Result<()> {
        let _clearing = self.clearing.lock();
        let held: Vec<Held<'_>> = (0..AREAS).map(|_| self.take()).collect();
        for h in &held {
            let zeros = [0; LIST];
            doing(
                self.file.write_at(&zeros, h.index as u64 * AREA_BYTES),
                "clearing",
                &self.path,
            )?;
            self.unsettled[h.index].store(0, Ordering::Release);
        }
        self.recent.lock().clear();
        self.found.lock().clear();
        doing(self.file.sync_data(), "syncing", &self.path)
    }

    /// Copies the newest copy of a page out of the areas, if there is one and it is whole.
    pub fn copy_of(&self, id: PageId, page: &mut [u8]) -> Result<bool> {
        let Some((area, slot)) = self.recent.lock().get(&id).copied() else {
            return Ok(false);
        };
        let at = area as u64 * AREA_BYTES + ((slot + 1) * PAGE_SIZE) as u64;
        let mut copy = vec![0; PAGE_SIZE];
        doing(self.file.read_at(&mut copy, at), "reading", &self.path)?;
        if verify_page(&copy, id).is_err() {
            return Ok(false);
        }
        page.copy_from_slice(&copy);
        Ok(true)
    }
}

impl Held<'_> {
    /// Whether the spaces have to be synced before this area may be written.
    pub fn needs_sync(&self) -> bool {
        self.areas.unsettled[self.index].load(Ordering::Acquire) != 0
    }

    /// Copies pages in, lets `finish` fill in their checksums, and makes the header.
    pub fn fill(&mut self, batch: &[(PageId, &[u8])], finish: impl Fn(&mut [u8])) {
        let Area { bytes, pages, sequence } = &mut *self.area;
        bytes.resize(AREA_BYTES as usize, 0);
        pages.clear();
        let (header, body) = bytes.split_at_mut(PAGE_SIZE);
        for (slot, (id, page)) in batch.iter().enumerate() {
            let copy = &mut body[slot * PAGE_SIZE..(slot + 1) * PAGE_SIZE];
            copy.copy_from_slice(page);
            finish(copy);
            let entry = &mut header[LIST + slot * LIST_ENTRY..LIST + (slot + 1) * LIST_ENTRY];
            entry[..8].copy_from_slice(&id.to_bytes());
            entry[8..12].copy_from_slice(&copy[..4]);
            pages.push((*id, slot));
        }
        *sequence = self.areas.sequence.fetch_add(1, Ordering::Relaxed);
        seal_header(header, self.areas.database, *sequence, batch.len());
    }

    /// Writes the area and syncs it.
    pub fn write(&self) -> Result<()> {
        let length = (self.area.pages.len() + 1) * PAGE_SIZE;
        let base = self.index as u64 * AREA_BYTES;
        let areas = self.areas;
        doing(
            areas.file.write_at(&self.area.bytes[..length], base),
            "writing",
            &areas.path,
        )?;
        doing(areas.file.sync_data(), "syncing", &areas.path)
    }

    /// The pages in the order of their places: id, index in the batch, bytes.
    pub fn in_order(&self) -> Vec<(PageId, usize, &[u8])> {
        let Area { bytes, pages, .. } = &*self.area;
        let at = |slot: usize| &bytes[(slot + 1) * PAGE_SIZE..(slot + 2) * PAGE_SIZE];
        let mut sorted: Vec<_> = pages.iter().map(|(id, slot)| (*id, *slot, at(*slot))).collect();
        sorted.sort_unstable_by_key(|p| p.0);
        sorted
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The area's own lock is let go right after; whoever takes the area waits for it.
        self.areas.free.lock().insert(0, self.index);
        self.areas.freed.notify_one();
    }
}

fn listed_page(header: &[u8], index: usize) -> Option<(PageId, u32)> {
    let at = LIST + index * LIST_ENTRY;
    let id = PageId::from_bytes(header.get(at..at + 8)?.try_into().ok()?);
    Some((id, u32_at(header, at + 8)?))
}

fn header_sum(header: &[u8]) -> u32 {
    let sum = crc::append(crc::crc32c(&header[..36]), &[0; 4]);
    crc::append(sum, &header[40..])
}

fn seal_header(header: &mut [u8], database: u128, sequence: u64, count: usize) {
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..24].copy_from_slice(&database.to_le_bytes());
    header[24..32].copy_from_slice(&sequence.to_le_bytes());
    header[32..36].copy_from_slice(&(count as u32).to_le_bytes());
    header[LIST + count * LIST_ENTRY..].fill(0);
    let sum = header_sum(header);
    header[36..40].copy_from_slice(&sum.to_le_bytes());
}
