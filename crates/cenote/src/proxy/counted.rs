//! Numbers of what is there: one more while it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of those that are counted, while it is there.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// One more.
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
