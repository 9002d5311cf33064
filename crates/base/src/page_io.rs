//! How frames reach storage: the one trait between `buffer`, which asks, and `storage`, which
//! implements it.

use crate::{Lsn, PAGE_SIZE, PageId, Result};
use std::ops::Range;

/// What a page read from storage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageRead {
    /// The page as it was last written.
    Present,
    /// Never written (or all zeros): valid only where redo builds it. The buffer holds zeros.
    NeverWritten,
    /// The page was torn and has been rebuilt from the double-write area.
    Rebuilt,
}

/// Parts of a page: a bit for each of its [`Sectors::COUNT`] sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sectors(u32);

impl Sectors {
    /// Bytes of a sector: what a drive writes whole or not at all.
    pub const BYTES: usize = 512;
    /// Sectors of a page.
    pub const COUNT: usize = PAGE_SIZE / Self::BYTES;
    /// No part.
    pub const NONE: Sectors = Sectors(0);
    /// The whole page.
    pub const WHOLE: Sectors = Sectors(u32::MAX);

    /// Those of a bit pattern, the first sector lowest.
    pub const fn from_raw(raw: u32) -> Sectors {
        Sectors(raw)
    }

    /// The bit pattern.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Those that `length` bytes from `offset` on touch.
    pub const fn of(offset: usize, length: usize) -> Sectors {
        if length == 0 {
            return Sectors::NONE;
        }
        let (first, last) = (offset / Self::BYTES, (offset + length - 1) / Self::BYTES);
        assert!(last < Self::COUNT, "the bytes lie in the page");
        Sectors((u32::MAX >> (Self::COUNT - 1 - (last - first))) << first)
    }

    /// These and those.
    #[must_use]
    pub const fn and(self, others: Sectors) -> Sectors {
        Sectors(self.0 | others.0)
    }

    /// Whether it is the whole page.
    pub const fn is_whole(self) -> bool {
        self.0 == u32::MAX
    }

    /// Bytes of all of them.
    pub const fn bytes(self) -> usize {
        self.0.count_ones() as usize * Self::BYTES
    }

    /// All sectors of the blocks of `bytes` (a multiple of a sector's) in which these lie.
    #[must_use]
    pub fn in_blocks(self, bytes: usize) -> Sectors {
        let block = Sectors::of(0, bytes).0;
        let starts = (0..PAGE_SIZE).step_by(bytes).map(|at| block << (at / Self::BYTES));
        Sectors(
            starts
                .filter(|block| self.0 & block != 0)
                .fold(0, |all, block| all | block),
        )
    }

    /// Where they lie in the page, in order, neighbours as one.
    pub fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let mut rest = u64::from(self.0);
        std::iter::from_fn(move || {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first.min(63)).trailing_ones() as usize;
            if count == 0 {
                return None;
            }
            rest &= !(((1 << count) - 1) << first);
            Some(first * Self::BYTES..(first + count) * Self::BYTES)
        })
    }
}

const _: () = assert!(Sectors::COUNT == u32::BITS as usize && PAGE_SIZE.is_multiple_of(Sectors::BYTES));

/// A page on its way to storage.
#[derive(Debug, Clone, Copy)]
pub struct PageWrite<'a> {
    /// Which page.
    pub id: PageId,
    /// All of it.
    pub bytes: &'a [u8],
    /// Where it may differ from what storage has.
    pub changed: Sectors,
}

/// Storage as a buffer pool sees it.
///
/// The caller's duties: `write_pages` and `write_changes` only with pages whose LSN is durable (it asks
/// [`PageIo::ensure_durable`] first), and no two writes of one page at a time. Outside of what a write says is changed,
/// a page is byte for byte what `read_page` gave as present, or what was written last, by this process. The
/// implementer's: pages handed back have had their checksum and id checked; a batch that was acknowledged is
/// synced and survives torn writes; after a failed sync it refuses further writes for good.
pub trait PageIo: Send + Sync {
    /// Every redo byte below this is synced.
    fn durable_lsn(&self) -> Lsn;

    /// Returns once all redo below `lsn` is synced.
    fn ensure_durable(&self, lsn: Lsn) -> Result<()>;

    /// Reads page `id` into `page` (of [`crate::PAGE_SIZE`] bytes).
    fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead>;

    /// Reads pages, side by side; in the order of `ids`.
    fn read_pages(&self, ids: &[PageId]) -> Vec<Result<(Box<[u8]>, PageRead)>>;

    /// Writes pages (each of [`crate::PAGE_SIZE`] bytes), torn-safe, and syncs them. The page's
    /// checksum is the implementer's to fill in.
    fn write_pages(&self, pages: &[(PageId, &[u8])]) -> Result<()>;

    /// As `write_pages`; of each page what has changed.
    fn write_changes(&self, pages: &[PageWrite<'_>]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_those_that_bytes_touch() {
        assert_eq!(Sectors::of(0, PAGE_SIZE), Sectors::WHOLE);
        assert_eq!(Sectors::of(100, 0), Sectors::NONE);
        assert_eq!(Sectors::of(511, 2).raw(), 0b11);
        assert_eq!(Sectors::of(PAGE_SIZE - 1, 1).raw(), 1 << 31);
        for (offset, length) in (0..PAGE_SIZE)
            .step_by(97)
            .map(|at| (at, (at * 7) % (PAGE_SIZE - at) + 1))
        {
            let touched = |n: usize| n * Sectors::BYTES < offset + length && (n + 1) * Sectors::BYTES > offset;
            let raw = (0..Sectors::COUNT)
                .filter(|n| touched(*n))
                .fold(0, |raw, n| raw | 1 << n);
            assert_eq!(Sectors::of(offset, length).raw(), raw, "{offset} {length}");
        }
    }

    #[test]
    fn ranges_cover_the_sectors_and_neighbours_are_one() {
        let ranges = |raw| Sectors::from_raw(raw).ranges().collect::<Vec<_>>();
        assert_eq!(ranges(0), []);
        assert!(ranges(u32::MAX).into_iter().eq(std::iter::once(0..PAGE_SIZE)));
        assert_eq!(ranges(0b1101), [0..512, 1024..2048]);
        assert!(
            ranges(1 << 31)
                .into_iter()
                .eq(std::iter::once(PAGE_SIZE - 512..PAGE_SIZE))
        );
        let blocks = Sectors::from_raw(1 << 9 | 1).in_blocks(4096);
        assert_eq!(blocks.raw(), 0xFFFF);
        assert_eq!((blocks.bytes(), Sectors::NONE.in_blocks(4096)), (8192, Sectors::NONE));
    }
}
