//! The way of a reader to the remote memory that another server fills: it reads, and changes nothing.
//!
//! ```text
//!   1st doorbell   watermark, and of each page its bucket of the index
//!   2nd doorbell   of each slot that a bucket names: name, page; a doorbell for each part that has some
//! ```
//!
//! A slab is reached when the index names a slot in it; until then its pages come from storage.
//!
//! The watermark comes first: a name that is there afterwards lacks no change up to it ([`crate::known_changes`]).

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::rdma::{Key, Work};

use super::copy::Copy;
use super::index::{bucket_of, slots_in};
use super::layout::{BUCKET, HEADER, Header, Layout, NAME, Name, Part, RemoteSlot, WATERMARK, WATERMARK_AT, Watermark};
use super::link::believed;
use super::source::{RemoteSource, SLABS_MAX};
use super::ways::{Failure, Ways};

/// A page as a name and its slot have it.
pub struct Seen {
    pub lsn: Lsn,
    pub bytes: Box<[u8]>,
}

/// What one look found.
pub struct Look {
    /// As of which position names were true before the look; zero: not known.
    pub watermark: Lsn,
    /// Of each page, in order.
    pub pages: Vec<Option<Seen>>,
    /// Slots whose bytes did not fit their name: they were being written, most likely.
    pub torn: u64,
}

/// See the module.
pub struct ReadLink {
    ways: Ways,
    layout: Layout,
    /// Slabs with pages that were asked for, and no way there: bits.
    wanted: AtomicU64,
}

impl ReadLink {
    /// Connects to what a server of this database has filled.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if none has; those of the endpoint.
    pub fn connect(source: &RemoteSource, (database, patience): (u128, Nanos)) -> Result<Self> {
        let memory = source.connect(database, patience)?;
        let mut bytes = [0; HEADER];
        memory.read(0, &mut bytes)?;
        let header = Header::decode(&bytes).filter(|header| header.database == database);
        let header = header.filter(|header| header.slabs.most <= SLABS_MAX);
        let layout = header.and_then(|header| {
            let layout = Layout::plan(memory.len(), header.slabs).ok()?;
            (header.slots == layout.slots).then_some(layout)
        });
        match layout {
            Some(layout) => Ok(Self {
                ways: Ways::new(memory, layout.slabs.most),
                layout,
                wanted: AtomicU64::new(0),
            }),
            None => Err(Error::Mismatch(format!(
                "the remote memory at {} is not filled by this database's server",
                memory.endpoint().peer()
            ))),
        }
    }

    /// Reaches slabs that were wanted. What fails is tried again when it is wanted again.
    pub fn reach_wanted(&self, source: &RemoteSource, (database, patience): (u128, Nanos)) {
        let wanted = self.wanted.as_raw().swap(0, Ordering::Relaxed);
        let begun = rt::now();
        for slab in (0..self.layout.slabs.most).filter(|slab| wanted & 1 << slab != 0) {
            let left = Nanos(patience.0.saturating_sub(rt::now().since(begun).0));
            let reached = source.slab(database, slab, left);
            if let Ok(memory) = reached
                && memory.len() >= self.layout.slab_len()
            {
                self.ways.set(slab, Some(memory));
            }
        }
    }

    /// A slab cannot be read: it may have been given back, and be another grant by now.
    fn lose(&self, slab: u32, way: Option<Key>) {
        if let Some(key) = way {
            self.ways.drop_way(slab, key);
        }
        self.wanted.as_raw().fetch_or(1 << slab, Ordering::Relaxed);
    }

    /// The node, for messages.
    pub fn peer(&self) -> &str {
        self.ways.first().endpoint().peer()
    }

    /// Bytes of the parts that are reached, and pages that they have room for.
    pub fn size(&self) -> (u64, u32) {
        let slabs = self.ways.reached().len() as u32;
        let bytes = self.ways.first().len() + u64::from(slabs) * self.layout.slab_len();
        (bytes, self.layout.first + slabs * self.layout.slabs.slots)
    }

    /// The slabs that are reached.
    pub fn slabs(&self) -> u32 {
        self.ways.reached().len() as u32
    }

    /// Looks for pages.
    ///
    /// # Errors
    /// Those of the endpoint.
    pub fn look(&self, pages: &[PageId]) -> Result<Look> {
        let bucket = |page: &PageId| self.layout.bucket_at(bucket_of(*page, &self.layout));
        let buckets = pages.iter().map(|page| (Part::First, bucket(page), BUCKET));
        let watermark = std::iter::once((Part::First, WATERMARK_AT, WATERMARK));
        let read: Result<Vec<Box<[u8]>>, Failure> = self.read(watermark.chain(buckets)).into_iter().collect();
        let mut read = read.map_err(|failure| failure.error)?.into_iter();
        let watermark = read.next().and_then(|bytes| Watermark::decode(&bytes));
        let mut look = Look {
            watermark: watermark.map_or(Lsn::ZERO, |watermark| watermark.lsn),
            pages: pages.iter().map(|_| None).collect(),
            torn: 0,
        };
        let Some(watermark) = watermark else { return Ok(look) };
        let named = |(n, bucket): (usize, Box<[u8]>)| {
            let slots = slots_in(&bucket, pages[n], &self.layout);
            slots.into_iter().map(move |slot| (n, slot))
        };
        let slots: Vec<(usize, RemoteSlot)> = read.enumerate().flat_map(named).collect();
        self.read_slots(pages, &slots, watermark.tag, &mut look)?;
        Ok(look)
    }

    fn read_slots(&self, pages: &[PageId], slots: &[(usize, RemoteSlot)], tag: u64, look: &mut Look) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let both = |(_, slot): &(usize, RemoteSlot)| {
            let (part, at) = self.layout.page_at(*slot);
            [(Part::First, self.layout.name_at(*slot), NAME), (part, at, PAGE_SIZE)]
        };
        let mut read = self.read(slots.iter().flat_map(both)).into_iter();
        for (n, slot) in slots {
            let (Some(name), Some(bytes)) = (read.next(), read.next()) else {
                break;
            };
            let name = name.map_err(|failure| failure.error)?;
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(Failure {
                    part: Part::Slab(slab),
                    way,
                    ..
                }) => {
                    self.lose(slab, way);
                    continue;
                }
                Err(failure) => return Err(failure.error),
            };
            let name = Name::decode(&name).filter(|name| name.tag == tag && name.page == pages[*n]);
            let Some(name) = name.filter(|name| name.lsn != Lsn::ZERO) else {
                continue;
            };
            let copy = Copy {
                slot: *slot,
                lsn: name.lsn,
                sum: name.sum,
            };
            match believed(bytes, name.page, copy) {
                Ok(bytes) => look.pages[*n] = Some(Seen { lsn: name.lsn, bytes }),
                Err(_) => look.torn += 1,
            }
        }
        Ok(())
    }

    fn read(&self, places: impl Iterator<Item = (Part, u64, usize)>) -> Vec<Result<Box<[u8]>, Failure>> {
        let mut batch = self.ways.batch();
        let mut parts = Vec::new();
        for (part, at, len) in places {
            batch.add(part, |memory| Work::read(memory, at, vec![0; len].into()));
            parts.push(part);
        }
        let each = batch.carry_out().into_iter().zip(parts);
        each.map(|(work, part)| work?.into_bytes().map_err(|error| Failure { part, way: None, error }))
            .collect()
    }
}
