//! Transfers between frames and storage that have not come back.

use cenote_base::rt::atomic::{AtomicU32, Ordering};

/// Transfers between frames and storage that have not come back, in pages.
#[derive(Default)]
pub(crate) struct TransfersInFlight {
    pub writes: AtomicU32,
    pub reads: AtomicU32,
}

/// A transfer; it is over when this is dropped.
pub(crate) struct Transfer<'a>(&'a AtomicU32, u32);

impl TransfersInFlight {
    /// Pages on their way to storage.
    pub fn write(&self, pages: usize) -> Transfer<'_> {
        Transfer::begin(&self.writes, pages as u32)
    }

    /// Pages on their way from storage.
    pub fn read(&self, pages: usize) -> Transfer<'_> {
        Transfer::begin(&self.reads, pages as u32)
    }
}

impl<'a> Transfer<'a> {
    fn begin(count: &'a AtomicU32, pages: u32) -> Self {
        count.as_raw().fetch_add(pages, Ordering::Relaxed);
        Transfer(count, pages)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let before = self.0.as_raw().fetch_sub(self.1, Ordering::Relaxed);
        assert!(before >= self.1, "a transfer that ends was counted when it began");
    }
}
