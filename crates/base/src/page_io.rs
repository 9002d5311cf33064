//! How frames reach storage: the one trait between `buffer`, which asks, and `storage`, which
//! implements it.

use crate::{Lsn, PageId, Result};

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

/// Storage as a buffer pool sees it.
///
/// The caller's duties: `write_pages` only with pages whose LSN is durable (it asks
/// [`PageIo::ensure_durable`] first), and no two writes of one page at a time. The implementer's:
/// pages handed back have had their checksum and id checked; a batch that was acknowledged is
/// synced and survives torn writes; after a failed sync it refuses further writes for good.
pub trait PageIo: Send + Sync {
    /// Every redo byte below this is synced.
    fn durable_lsn(&self) -> Lsn;

    /// Returns once all redo below `lsn` is synced.
    fn ensure_durable(&self, lsn: Lsn) -> Result<()>;

    /// Reads page `id` into `page` (of [`crate::PAGE_SIZE`] bytes).
    fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead>;

    /// Writes pages (each of [`crate::PAGE_SIZE`] bytes), torn-safe, and syncs them. The page's
    /// checksum is the implementer's to fill in.
    fn write_pages(&self, pages: &[(PageId, &[u8])]) -> Result<()>;
}
