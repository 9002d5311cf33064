//! The way of a reader to the remote memory that another server fills: it reads, and changes nothing.
//!
//! ```text
//!   1st doorbell   watermark, and of each page its bucket of the index
//!   2nd doorbell   of each slot that a bucket names: name, page
//! ```
//!
//! The watermark comes first: a name that is there afterwards lacks no change up to it ([`crate::known_changes`]).

use cenote_base::rt::Nanos;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::rdma::{RemoteMemory, Work};

use super::copy::Copy;
use super::index::{bucket_of, slots_in};
use super::layout::{BUCKET, HEADER, Header, Layout, NAME, Name, RemoteSlot, WATERMARK, WATERMARK_AT, Watermark};
use super::link::{RemoteSource, believed};

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
    memory: RemoteMemory,
    layout: Layout,
}

impl ReadLink {
    /// Connects to what a server of this database has filled.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if none has; those of the endpoint.
    pub fn connect(source: &RemoteSource, (database, patience): (u128, Nanos)) -> Result<Self> {
        let memory = source.connect(database, patience)?;
        let layout = Layout::plan(memory.len())?;
        let mut bytes = [0; HEADER];
        memory.read(0, &mut bytes)?;
        let header = Header::decode(&bytes);
        match header {
            Some(header) if header.database == database && header.slots == layout.slots => Ok(Self { memory, layout }),
            _ => Err(Error::Mismatch(format!(
                "the remote memory at {} is not filled by this database's server",
                memory.endpoint().peer()
            ))),
        }
    }

    /// The node, for messages.
    pub fn peer(&self) -> &str {
        self.memory.endpoint().peer()
    }

    /// Bytes of the memory, and pages that it has room for.
    pub fn size(&self) -> (u64, u32) {
        (self.memory.len(), self.layout.slots)
    }

    /// Looks for pages.
    ///
    /// # Errors
    /// Those of the endpoint.
    pub fn look(&self, pages: &[PageId]) -> Result<Look> {
        let mut works = vec![self.read(WATERMARK_AT, WATERMARK)];
        let bucket = |page: &PageId| self.layout.bucket_at(bucket_of(*page, &self.layout));
        works.extend(pages.iter().map(|page| self.read(bucket(page), BUCKET)));
        let mut read = self.post(works)?.into_iter();
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
            [
                self.read(self.layout.name_at(*slot), NAME),
                self.read(self.layout.page_at(*slot), PAGE_SIZE),
            ]
        };
        let mut read = self.post(slots.iter().flat_map(both).collect())?.into_iter();
        for (n, slot) in slots {
            let (Some(name), Some(bytes)) = (read.next(), read.next()) else {
                break;
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

    fn read(&self, at: u64, len: usize) -> Work {
        Work::read(self.memory.memory(), at, vec![0; len].into())
    }

    fn post(&self, works: Vec<Work>) -> Result<Vec<Box<[u8]>>> {
        let works = self.memory.endpoint().post(works).wait();
        works.into_iter().map(Work::into_bytes).collect()
    }
}
