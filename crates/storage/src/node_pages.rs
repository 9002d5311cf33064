//! Pages on storage nodes, which make them of the redo that they have.
//!
//! A page that is written back is dropped: its redo is durable on a majority, and the nodes apply it. What is kept of it
//! is its LSN, so that the page that is read later is no older: one LSN for each of [`BUCKETS`] sets of pages, the
//! highest. A page that this process has not dropped is as the log's end was when the process began.
//!
//! Invariants:
//! - a page is dropped only when its redo is durable;
//! - the LSN that is asked for is at least that of the page when it left its frame, and is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_base::page_io::{PageRead, PageWrite};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use crate::log::Log;
use crate::nodes::{PageAnswer, SpaceExtent, StorageNodes};
use crate::page_source::PageSource;
use crate::redo::{page_lsn, verify_page};

/// Sets of pages for which an LSN is kept: 512 KiB.
const BUCKETS: usize = 1 << 16;
/// Pages that are asked for at a time.
const READ_MAX: usize = 32;

/// See the module.
pub struct NodePages {
    nodes: Arc<dyn StorageNodes>,
    /// Pages that a space has had, by space.
    spaces: Mutex<BTreeMap<u32, u32>>,
    /// Spaces that nodes may have dropped already.
    going: Mutex<BTreeSet<u32>>,
    dropped: DroppedLsns,
}

/// The LSNs at which pages were dropped.
struct DroppedLsns {
    /// Where the log ended when this process began.
    begin: Lsn,
    highest: Box<[AtomicU64]>,
}

impl DroppedLsns {
    fn new(begin: Lsn) -> DroppedLsns {
        DroppedLsns {
            begin,
            highest: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn bucket(&self, id: PageId) -> &AtomicU64 {
        let mixed = id.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.highest[(mixed >> 48) as usize % BUCKETS]
    }

    fn note(&self, id: PageId, lsn: Lsn) {
        self.bucket(id).fetch_max(lsn.raw(), Ordering::AcqRel);
    }

    fn of(&self, id: PageId) -> Lsn {
        Lsn::from_raw(self.bucket(id).load(Ordering::Acquire)).max(self.begin)
    }
}

impl NodePages {
    pub(crate) fn new(nodes: Arc<dyn StorageNodes>, spaces: &[SpaceExtent], begin: Lsn) -> NodePages {
        NodePages {
            nodes,
            spaces: Mutex::new(spaces.iter().map(|s| (s.space, s.pages)).collect()),
            going: Mutex::default(),
            dropped: DroppedLsns::new(begin),
        }
    }

    pub(crate) fn read_pages(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        let mut found = Vec::with_capacity(ids.len());
        for part in ids.chunks(READ_MAX) {
            let asked: Vec<(PageId, Lsn)> = part.iter().map(|id| (*id, self.dropped.of(*id))).collect();
            found.extend(self.nodes.read_pages(&asked));
        }
        assert_eq!(found.len(), ids.len(), "each page is answered");
        ids.iter().zip(found).map(|(id, answer)| checked(*id, answer)).collect()
    }

    /// The same pages, each at least as of `lsn`, which is durable.
    pub(crate) fn as_of(&self, lsn: Lsn) -> NodePagesAsOf<'_> {
        NodePagesAsOf { pages: self, lsn }
    }

    pub(crate) fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        let answer = self.read_pages(&[id]).pop();
        let (bytes, read) = answer.unwrap_or_else(|| Err(Error::corrupt(format!("no answer for page {id}"))))?;
        page.copy_from_slice(&bytes);
        Ok(read)
    }

    pub(crate) fn drop_pages(&self, pages: &[PageWrite<'_>], log: &Log) {
        for page in pages {
            let lsn = page_lsn(page.bytes);
            assert!(
                lsn <= log.durable(),
                "page {} is dropped before its redo, {lsn}, is durable",
                page.id
            );
            self.dropped.note(page.id, lsn);
            self.grow(page.id.space, page.id.page.saturating_add(1));
        }
    }

    /// The space has at least so many pages.
    fn grow(&self, space: u32, pages: u32) {
        if let Some(there) = self.spaces.lock().get_mut(&space) {
            *there = pages.max(*there);
        }
    }

    pub(crate) fn create_space(&self, space: u32) -> Result<()> {
        if self.has_space(space) {
            return Err(Error::Invalid(format!("space {space} exists")));
        }
        self.nodes.make_space(space)?;
        self.spaces.lock().insert(space, 0);
        Ok(())
    }

    pub(crate) fn drop_space(&self, space: u32) -> Result<()> {
        if self.has_space(space) {
            // It stays so if no answer comes: the caller asks once more.
            self.going.lock().insert(space);
            self.nodes.drop_space(space)?;
            self.spaces.lock().remove(&space);
            self.going.lock().remove(&space);
        }
        Ok(())
    }

    /// Another process made the space, or dropped it.
    pub(crate) fn note_space(&self, space: u32, is_there: bool) {
        let mut spaces = self.spaces.lock();
        match is_there {
            true => _ = spaces.entry(space).or_insert(0),
            false => _ = spaces.remove(&space),
        }
    }

    /// These are the spaces, as other processes have them.
    pub(crate) fn set_spaces(&self, spaces: &[SpaceExtent]) {
        *self.spaces.lock() = spaces.iter().map(|s| (s.space, s.pages)).collect();
    }

    /// Another process has changed these pages.
    pub(crate) fn note_pages(&self, pages: &[PageId]) {
        let mut spaces = self.spaces.lock();
        for page in pages {
            if let Some(there) = spaces.get_mut(&page.space) {
                *there = page.page.saturating_add(1).max(*there);
            }
        }
    }

    /// Whether a space is there, and nobody is dropping it.
    pub(crate) fn keeps_space(&self, space: u32) -> bool {
        self.has_space(space) && !self.going.lock().contains(&space)
    }

    pub(crate) fn has_space(&self, space: u32) -> bool {
        self.spaces.lock().contains_key(&space)
    }

    pub(crate) fn spaces(&self) -> Vec<u32> {
        self.spaces.lock().keys().copied().collect()
    }

    pub(crate) fn page_count(&self, space: u32) -> Result<u32> {
        let there = self.spaces.lock().get(&space).copied();
        there.ok_or_else(|| no_space(space))
    }

    pub(crate) fn reserve(&self, space: u32, pages: u32) -> Result<()> {
        self.page_count(space)?;
        if self.nodes.is_full() {
            return Err(Error::Full(format!(
                "the disks of {} are nearly full, and space {space} cannot grow; what was committed is safe: make \
                 room there, and go on",
                self.nodes.name()
            )));
        }
        self.grow(space, pages);
        Ok(())
    }

    /// Bytes of all pages that spaces have had.
    pub(crate) fn bytes(&self) -> u64 {
        self.spaces
            .lock()
            .values()
            .map(|pages| u64::from(*pages) * PAGE_SIZE as u64)
            .sum()
    }
}

/// What is copied, without what only frames have.
pub(crate) struct NodePagesAsOf<'a> {
    pages: &'a NodePages,
    lsn: Lsn,
}

impl PageSource for NodePagesAsOf<'_> {
    fn spaces(&self) -> Vec<u32> {
        let all = self.pages.spaces().into_iter();
        all.filter(|space| self.pages.keeps_space(*space)).collect()
    }

    fn has_space(&self, space: u32) -> bool {
        self.pages.keeps_space(space)
    }

    fn page_count(&self, space: u32) -> Result<u32> {
        self.pages.page_count(space)
    }

    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        let asked: Vec<(PageId, Lsn)> = ids.iter().map(|id| (*id, self.lsn)).collect();
        let found = self.pages.nodes.read_pages(&asked);
        assert_eq!(found.len(), ids.len(), "each page is answered");
        ids.iter().zip(found).map(|(id, answer)| checked(*id, answer)).collect()
    }
}

fn no_space(space: u32) -> Error {
    Error::Invalid(format!("there is no space {space}"))
}

/// Bytes of the network, before they are believed.
pub(crate) fn checked(id: PageId, answer: PageAnswer) -> PageAnswer {
    let (page, read) = answer?;
    if page.len() != PAGE_SIZE {
        return Err(Error::corrupt(format!("page {id} came as {} bytes", page.len())));
    }
    if read != PageRead::NeverWritten {
        verify_page(&page, id)?;
    }
    Ok((page, read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_asked_for_as_it_was_dropped() {
        let dropped = DroppedLsns::new(Lsn::from_raw(100));
        let (a, b) = (PageId::new(3, 7), PageId::new(3, 8));
        assert_eq!(dropped.of(a), Lsn::from_raw(100), "as the log ended at the beginning");
        dropped.note(a, Lsn::from_raw(500));
        dropped.note(a, Lsn::from_raw(300));
        dropped.note(b, Lsn::from_raw(50));
        assert_eq!(dropped.of(a), Lsn::from_raw(500), "the highest counts");
        assert_eq!(dropped.of(b), Lsn::from_raw(100));
    }

    #[test]
    fn buckets_are_used_evenly() {
        let dropped = DroppedLsns::new(Lsn::ZERO);
        (0..20_000).for_each(|n| dropped.note(PageId::new(n % 5, n / 5), Lsn::from_raw(8)));
        let used = dropped
            .highest
            .iter()
            .filter(|word| word.load(Ordering::Relaxed) > 0)
            .count();
        assert!(used > 15_000, "{used} buckets for 20,000 pages");
    }
}
