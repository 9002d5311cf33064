//! Slots of remote memory made ready for other pages (kind `tiered`): pages there that storage lacks changes of are
//! written to storage before their turn comes to lose their slot, in batches, those that are idle for longest first.
//!
//! A page that lost its slot while storage lacked its changes would have to be rebuilt, from its image in storage and
//! up to 500 redo records. So it keeps its slot ([`crate::tiered`]), and without this thread remote memory would fill
//! with such pages, whatever is asked for later.
//!
//! They are written from frames, as all pages are, so that no thread changes them meanwhile unseen: brought up
//! together, written as one batch, and let go at once. They were not asked for, so they have their places among the
//! idle pages of remote memory again, and are the first to go there.

use cenote_base::{PageId, Result};

use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::layout::FRAMES_MIN;
use crate::lists::Hint;
use crate::pool::Pool;
use crate::stats::bump;
use crate::writeback::BATCH;

/// Of all frames, this share (one in so many) may be borrowed for a batch: few enough that eviction, which takes frames
/// of pages that were not asked for first where there are many, leaves them until they are written.
const SHARE: u32 = 32;
const BORROWED_MIN: usize = 8;
const _: () = assert!(
    BORROWED_MIN * 8 <= FRAMES_MIN as usize,
    "frames are left for other pages"
);

impl Pool {
    /// Writes pages of remote memory to storage until enough slots are ready to be given; or as far as it comes: frames
    /// may be short, and pages be in use. A thread does so when they run low.
    ///
    /// # Errors
    /// Those of the log and of storage; then the pages stay as they were.
    pub fn clean_remote(&self) -> Result<()> {
        let most = ((self.frames.count() / SHARE) as usize).clamp(BORROWED_MIN, BATCH);
        while !self.is_stopping() {
            let pages = self.lower.next_to_clean(most);
            if pages.is_empty() || self.clean_some(&pages)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Says how many were written.
    fn clean_some(&self, pages: &[PageId]) -> Result<usize> {
        for some in pages.chunks(self.together_most()) {
            self.bring_some(some, Hint::ToSave);
        }
        let frame_of = |page: &PageId| self.hash.find(&self.frames, key_of(*page));
        let frames: Vec<FrameIndex> = pages.iter().filter_map(frame_of).collect();
        let written = self.write_back(&frames);
        // Also where nothing can be written: frames are for pages that are asked for.
        for frame in frames.into_iter().filter(|frame| !self.is_warm(*frame)) {
            self.evict(frame)?;
        }
        bump(&self.counters().pages_cleaned, *written.as_ref().unwrap_or(&0) as u64);
        written
    }
}
