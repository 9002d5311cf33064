//! What a region's user asks of the component that knows its mirror.

use crate::region::Region;
use cenote_base::Result;
use core::fmt;
use std::sync::Arc;

/// Knows where a region's mirror is, and how far the mirror may be believed. The region's user calls it when it begins.
pub trait MirrorKeeper: Send + Sync + fmt::Debug {
    /// The region is about to be made anew. After this has returned, no start believes what the mirror holds.
    ///
    /// # Errors
    /// The keeper could not see to that: the caller must not touch the region.
    fn before_making(&self) -> Result<()>;

    /// The region was opened or made, and what was in it has not been changed by this process yet. From here on it is
    /// mirrored, as far as there is a mirror.
    ///
    /// # Errors
    /// Its mirror counts as whole, cannot be attached, and that could not be noted: the caller must not touch the
    /// region.
    fn begin(&self, region: &Arc<Region>) -> Result<()>;
}
