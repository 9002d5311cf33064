//! Giving pages up: frames lose them unwritten.
//!
//! A space that goes away has its frames on lists ([`crate::spaces`]), so that it costs what it has in memory. Few
//! pages of a space that stays are looked up one by one. Write-back, eviction and the dropping of other spaces go on
//! meanwhile.
//!
//! Invariants:
//! - the engine has made sure that no thread uses the pages any more. What still meets them is write-back, eviction,
//!   and prefetching;
//! - a page that is being written somewhere stays in its frame until that is over (its bit in `writing`): when a
//!   discard returns, nothing that it gave up reaches storage or remote memory any more;
//! - latches are only tried, and none is held while waiting: a thread that has one may be waiting for a frame.

use std::ops::Range;

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{PageId, Result};

use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::layout::FrameState;
use crate::pool::Pool;
use crate::stats::bump;

/// How long frames that are in use are left alone, between two looks.
const TURN: Nanos = Nanos::from_micros(20);

impl Pool {
    /// Drops the frames of `space` without writing them: the space is going away. The engine has made sure that no
    /// thread uses it any more.
    ///
    /// # Errors
    /// [`cenote_base::Error::Corrupt`] if the page hash is broken.
    pub fn discard_space(&self, space: u32) -> Result<()> {
        self.discard_everywhere(space, 0..u32::MAX, || self.discard_listed(space, |_| true))
    }

    /// Drops the frames of pages `pages` of `space` without writing them.
    ///
    /// # Errors
    /// As [`Pool::discard_space`].
    pub fn discard_pages(&self, space: u32, pages: Range<u32>) -> Result<()> {
        self.discard_everywhere(space, pages.clone(), || self.discard_range(space, pages.clone()))
    }

    /// Out of the frames, out of the tier below, and, where a page came up from there meanwhile, out of the frames
    /// again.
    fn discard_everywhere(&self, space: u32, pages: Range<u32>, discard: impl Fn() -> Result<()>) -> Result<()> {
        // Frames lose pages here before the tier does: readers must not be told meanwhile that all its names are true.
        let _untold = self.overtaken.is_some().then(|| self.telling.lock());
        discard()?;
        match self.lower.forget(space, pages.clone()) {
            // What came up meanwhile may have got a slot, too.
            true => discard().map(|()| _ = self.lower.forget(space, pages)),
            false => Ok(()),
        }
    }

    /// Page by page, or along the space's lists: by whichever is shorter.
    fn discard_range(&self, space: u32, pages: Range<u32>) -> Result<()> {
        if pages.len() > self.spaces.blocks() && pages.len() > self.frames_of(space) {
            return self.discard_listed(space, |page| pages.contains(&page));
        }
        let mut found = Vec::new();
        for page in pages {
            let page = PageId::new(space, page);
            // Under the bucket's lock: a look without it can miss.
            let frame = self.hash.lock(&self.frames, key_of(page)).find(key_of(page))?;
            found.extend(frame.map(|frame| (frame, page)));
        }
        self.discard_frames(found)
    }

    /// Frames with a page of `space`.
    fn frames_of(&self, space: u32) -> usize {
        self.know_all_frames();
        (0..self.spaces.blocks())
            .map(|block| self.spaces.count(block, space))
            .sum()
    }

    fn discard_listed(&self, space: u32, which: impl Fn(u32) -> bool) -> Result<()> {
        self.know_all_frames();
        let mut found = Vec::new();
        for block in 0..self.spaces.blocks() {
            let listed = self.spaces.of_block(block, space);
            bump(&self.counters().descriptors_examined, listed.len() as u64);
            let pages = listed
                .into_iter()
                .filter_map(|frame| Some((frame, self.page_in(frame)?)));
            found.extend(pages.filter(|(_, page)| page.space == space && which(page.page)));
        }
        self.discard_frames(found)
    }

    pub(crate) fn discard_frames(&self, mut left: Vec<(FrameIndex, PageId)>) -> Result<()> {
        loop {
            let mut in_use = Vec::new();
            for (frame, page) in left {
                if !self.discard_frame(frame, page)? {
                    in_use.push((frame, page));
                }
            }
            if in_use.is_empty() {
                return Ok(());
            }
            left = in_use;
            rt::sleep(TURN);
        }
    }

    /// Whether `page` has left `frame`. Not while a thread holds the latch (it uses the page, and is about to let go,
    /// or has another page put in the frame), nor while it is being written.
    fn discard_frame(&self, frame: FrameIndex, page: PageId) -> Result<bool> {
        if self.page_in(frame) != Some(page) {
            return Ok(true);
        }
        let Some(latched) = self.try_latch_exclusive(frame)? else {
            return Ok(false);
        };
        let there = self.page_in(frame) == Some(page);
        let state = self.frames.descriptor(frame).state.load(Ordering::Relaxed);
        // A frame that is not latched and holds a page is in use.
        assert!(
            !there || FrameState::of(state) == Some(FrameState::Used),
            "frame {frame}"
        );
        if there && !self.is_writing(frame) {
            self.unpublish(latched)?;
            return Ok(true);
        }
        self.unlatch(latched, false);
        Ok(!there)
    }
}

#[cfg(test)]
mod tests;
