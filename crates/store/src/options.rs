//! How a store is made and used.

use super::heap::Visibility;

/// How a store is made, and used by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes that all items together may take; what is more is evicted. 0: as much as the space has. (Made with it;
    /// [`Store::set_bound`](super::Store::set_bound) changes it.)
    pub bound: u64,
    /// How bytes come from host to host. (Made with it.)
    pub visibility: Visibility,
    /// Buckets of the first table; it grows. (Made with it.)
    pub buckets: u64,
    /// Whether this process gives long values checksums too where memory is coherent. (Others look at them.)
    pub checksums: bool,
    /// Whether a thread of this process sweeps.
    pub sweeps: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bound: 0,
            visibility: Visibility::Coherent,
            buckets: 1024,
            checksums: false,
            sweeps: true,
        }
    }
}
