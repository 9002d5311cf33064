//! A remote copy of a page.

/// Where a page's remote copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub slot: u32,
    /// The page's LSN in it; 0: not there yet, or it is not known what is there.
    pub lsn: u64,
    /// The page's checksum in it.
    pub sum: u32,
}
