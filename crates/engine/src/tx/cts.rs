//! CTS slots: the commit timestamp of each transaction, on pages, by its number.
//!
//! Space `SPACE`, page `1 + seq / PER_PAGE`, 8 bytes each from offset 32; 0: not committed. The slot is written in the
//! commit's mini-transaction, its value patched in under the log's reservation. Pages are made in order, each in a
//! mini-transaction of its own, before a number on it commits. Readers come here only for numbers that left the ring of
//! `status` (long snapshots, and the last run's transactions while one of its losers is being rolled back). Pages wholly below
//! the low-water mark are never asked for: purge gives them back.

use crate::error::Result;
use crate::pool::{BufferPool, Mtr, PageH};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::{PAGE_SIZE, PageId};

/// Space of the CTS pages.
pub(crate) const SPACE: u32 = 0x2000_0000;
/// Page kind.
pub(crate) const KIND_CTS: u8 = 0x22;
const FIRST: usize = 32;
const PER_PAGE: u64 = ((PAGE_SIZE - FIRST) / 8) as u64;
/// Word of page 0: pages made so far.
const AT_PAGES: usize = 32;
/// Word of page 0: pages below this (but the header) have been given back.
const AT_KEPT: usize = 36;

/// The CTS pages.
pub(crate) struct CtsPages {
    /// Pages below this exist, or existed.
    made: AtomicU32,
    /// Pages below this (but the header) have been given back. Written by purge.
    kept_from: AtomicU32,
    making: rt::Mutex<()>,
}

fn page_of(seq: u64) -> u32 {
    1 + (seq / PER_PAGE) as u32
}

fn offset_of(seq: u64) -> usize {
    FIRST + 8 * (seq % PER_PAGE) as usize
}

/// Makes page 0 of the space, which exists and is empty; pages for numbers below `first` are left out.
pub(crate) fn create(pool: &BufferPool, first: u64) -> Result<()> {
    let mut m = pool.mtr();
    let h = m.create(PageId::new(SPACE, 0), KIND_CTS, 0)?;
    m.write_u32(h, AT_PAGES, page_of(first));
    m.write_u32(h, AT_KEPT, 1);
    m.commit();
    Ok(())
}

impl CtsPages {
    /// Opens the space.
    pub(crate) fn open(pool: &BufferPool) -> Result<CtsPages> {
        let header = pool.shared(PageId::new(SPACE, 0))?;
        let (made, kept) = (header.view().u32(AT_PAGES), header.view().u32(AT_KEPT).max(1));
        Ok(CtsPages {
            made: AtomicU32::new(made),
            kept_from: AtomicU32::new(kept),
            making: rt::Mutex::new(()),
        })
    }

    /// Makes pages up to the one of `seq`, where they are missing.
    pub(crate) fn make(&self, pool: &BufferPool, seq: u64) -> Result<()> {
        if page_of(seq) < self.made.load(Ordering::Acquire) {
            return Ok(());
        }
        let _making = self.making.lock();
        let from = self.made.load(Ordering::Acquire);
        for page in from..=page_of(seq) {
            let mut m = pool.mtr();
            let header = m.exclusive(PageId::new(SPACE, 0))?;
            m.create(PageId::new(SPACE, page), KIND_CTS, 0)?;
            m.write_u32(header, AT_PAGES, page + 1);
            m.commit();
            self.made.store(page + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Pages that hold only numbers below `low_water` and have not been given back, when there are many. The caller gives
    /// them back.
    pub(crate) fn take_past(
        &self,
        pool: &BufferPool,
        low_water: u64,
        many: u32,
    ) -> Result<Option<std::ops::Range<u32>>> {
        let (from, to) = (
            self.kept_from.load(Ordering::Acquire),
            page_of(low_water).min(self.made.load(Ordering::Acquire)),
        );
        if to < from + many {
            return Ok(None);
        }
        let mut m = pool.mtr();
        let header = m.exclusive(PageId::new(SPACE, 0))?;
        m.write_u32(header, AT_KEPT, to);
        m.commit();
        self.kept_from.store(to, Ordering::Release);
        Ok(Some(from..to))
    }

    /// Latches the slot's page and marks the slot to be patched at commit.
    pub(crate) fn latch(&self, m: &mut Mtr<'_>, seq: u64) -> Result<PageH> {
        Ok(m.exclusive(PageId::new(SPACE, page_of(seq)))?)
    }

    /// Marks the slot, whose page is latched: the hook of the commit gives the value.
    pub(crate) fn mark(&self, m: &mut Mtr<'_>, h: PageH, seq: u64) {
        m.write_patched_u64(h, offset_of(seq));
    }

    /// The timestamp of `seq`; 0: not committed.
    pub(crate) fn read(&self, pool: &BufferPool, seq: u64) -> Result<u64> {
        if page_of(seq) >= self.made.load(Ordering::Acquire) {
            return Ok(0);
        }
        Ok(pool
            .shared(PageId::new(SPACE, page_of(seq)))?
            .view()
            .u64(offset_of(seq)))
    }
}
