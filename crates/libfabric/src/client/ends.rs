//! Works and calls in flight that no thread waits for any more.

use crate::batch::Batch;
use cenote_fabric::rdma::call::Set;

/// Works or calls that end, whether or not a thread waits for them.
pub trait Ends: Send + Sync {
    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}

impl Ends for Batch {
    fn has_ended(&self) -> bool {
        self.is_done()
    }
}

impl Ends for Set {
    fn has_ended(&self) -> bool {
        self.is_done()
    }
}
