//! A remote copy of a page.

use cenote_base::Lsn;

use super::layout::RemoteSlot;

/// Where a page's remote copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub slot: RemoteSlot,
    /// The page's LSN in it; zero: not there yet, or it is not known what is there.
    pub lsn: Lsn,
    /// The page's checksum in it.
    pub sum: u32,
}
