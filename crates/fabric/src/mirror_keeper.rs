//! What a region's user asks of the component that knows its mirror.

use crate::region::Region;
use cenote_base::Result;
use core::fmt;
use std::sync::Arc;

/// Who knows where a region's mirror is, and what it may be believed. The region's user tells it when it begins.
pub trait MirrorKeeper: Send + Sync + fmt::Debug {
    /// The region is about to be made anew. When this returns nothing that the mirror holds will be believed.
    ///
    /// # Errors
    /// It could not be seen to: the region is not to be touched.
    fn before_making(&self) -> Result<()>;

    /// The region was opened or made, and what was in it has not been changed by this process yet. From here on it is
    /// mirrored, as far as there is a mirror.
    ///
    /// # Errors
    /// Its mirror counts as whole, cannot be attached, and that could not be noted: the region is not to be touched.
    fn begin(&self, region: &Arc<Region>) -> Result<()>;
}
