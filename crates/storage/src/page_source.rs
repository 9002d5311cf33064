//! Pages that are copied, wherever they are.

use cenote_base::page_io::PageRead;
use cenote_base::{PAGE_SIZE, PageId, Result};

use crate::nodes::PageAnswer;

/// What pages are copied from: a database in use, or a copy.
pub(crate) trait PageSource {
    /// The spaces that are there.
    fn spaces(&self) -> Vec<u32>;

    /// Whether a space is there.
    fn has_space(&self, space: u32) -> bool;

    /// Pages of a space, those that were never written among them.
    ///
    /// # Errors
    /// There is no such space; an I/O error.
    fn page_count(&self, space: u32) -> Result<u32>;

    /// Pages, verified, in their order.
    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer>;
}

/// The pages, each by `read`.
pub(crate) fn one_by_one(ids: &[PageId], read: impl Fn(PageId, &mut [u8]) -> Result<PageRead>) -> Vec<PageAnswer> {
    let one = |id: &PageId| {
        let mut page = vec![0; PAGE_SIZE].into_boxed_slice();
        let read = read(*id, &mut page)?;
        Ok((page, read))
    };
    ids.iter().map(one).collect()
}
