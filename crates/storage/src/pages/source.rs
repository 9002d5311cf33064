//! Files of a database in use, to be copied.

use cenote_base::{PageId, Result};

use super::PageStore;
use crate::nodes::PageAnswer;
use crate::page_source::{PageSource, one_by_one};

/// Pages are read as they are in storage at that moment.
pub(crate) struct InUse<'a>(pub &'a PageStore);

impl PageSource for InUse<'_> {
    fn spaces(&self) -> Vec<u32> {
        self.0.spaces()
    }

    fn has_space(&self, space: u32) -> bool {
        self.0.has_space(space)
    }

    fn page_count(&self, space: u32) -> Result<u32> {
        self.0.page_count(space)
    }

    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        one_by_one(ids, |id, page| self.0.read_stable(id, page))
    }
}
