//! Fuzzy checkpoints: from where would a recovery without the region have to read the log?
//!
//! From the least `rec` of all dirty frames, frames kept over a restart included, or, if less, from where a
//! commit may be that has its place in the log and has not stamped its pages yet. Nobody is stopped
//! to find out: tail and floors of running commits are read first, then the frames.
//!
//! Why that order is right. Let a commit take its place at `s`. It stores a floor at or below `s` before, and
//! removes it after it has stamped its frames. If the checkpoint sees the floor, it stays at or below `s`. If it
//! looked before the floor was stored, the tail it read before that is at or below `s`. If it looked after
//! the floor was removed, the frames it reads later say `rec` at or below `s`, or were written back since.
//!
//! An image in the log moves a page's `rec` up to itself, and with it the checkpoint: the records before it are given up. So it has to
//! be durable before the checkpoint counts, else a lost host takes the image, and the records are gone already.
//!
//! The log is kept short by writing the frames with the oldest `rec` back, ever more of them as it grows.

use std::ops::Range;

use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Lsn, PageId, Result};

use crate::latch;
use crate::layout::FrameState;
use crate::pool::{Hint, Pool};
use crate::slots;
use crate::writeback::BATCH;

impl Pool {
    /// Takes a checkpoint: notes in the control file where recovery begins, and lets the log
    /// before that be reused. Returns the position.
    ///
    /// # Errors
    /// Those of storage; the former checkpoint stands then.
    pub fn checkpoint(&self) -> Result<Lsn> {
        let _one = self.checkpoint_mutex.lock();
        let position = self.oldest_unsaved();
        let before = Lsn::from_raw(self.checkpoint_lsn.load(Ordering::Relaxed));
        if position > before {
            // Groups whose stamps were seen lie below the tail of now.
            let log = self.storage.log();
            if !planted(Fault::CheckpointBeforeImage) {
                log.wait_durable(log.tail())?;
            }
            self.storage.checkpoint(position)?;
            self.checkpoint_lsn.store(position.raw(), Ordering::Relaxed);
            mark::pass(Mark::CheckpointMoved);
        }
        Ok(position.max(before))
    }

    /// At or below every change that is not in storage.
    fn oldest_unsaved(&self) -> Lsn {
        let mut oldest = self.storage.log().tail().raw();
        let floor = slots::least_floor(&self.frames).filter(|_| !planted(Fault::CheckpointFloor));
        if let Some(floor) = floor {
            oldest = oldest.min(floor.raw());
        }
        oldest = oldest.min(self.oldest_in_frames());
        if planted(Fault::CheckpointTail) {
            oldest = self.storage.log().tail().raw().min(self.oldest_in_frames());
        }
        // After the frames: a page that leaves one is noted below before its frame is clean.
        match self.lower.oldest_unsaved() {
            0 => Lsn::from_raw(oldest),
            below => Lsn::from_raw(oldest.min(below)),
        }
    }

    /// The least `rec` of all dirty frames.
    fn oldest_in_frames(&self) -> u64 {
        let passes_latched = planted(Fault::CheckpointLatched);
        let (mut oldest, frames) = (u64::MAX, &self.frames.descriptors()[..self.touched()]);
        for d in frames {
            if passes_latched && latch::is_exclusive(d.latch.load(Ordering::Acquire)) {
                continue;
            }
            let rec = d.rec.load(Ordering::Acquire);
            if rec != 0 {
                oldest = oldest.min(rec);
            }
        }
        oldest
    }

    /// Frames that were ever used.
    pub(crate) fn touched(&self) -> usize {
        let touched = self.frames.header().frames_touched.load(Ordering::Acquire);
        touched.min(self.frames.count()) as usize
    }

    /// Dirty frames whose oldest change is below `before`, oldest first.
    fn dirty_before(&self, before: Lsn) -> Vec<u32> {
        let mut dirty: Vec<(u64, u32)> = self.frames.descriptors()[..self.touched()]
            .iter()
            .zip(0u32..)
            .map(|(d, frame)| (d.rec.load(Ordering::Relaxed), frame))
            .filter(|(rec, _)| *rec != 0 && *rec < before.raw())
            .collect();
        dirty.sort_unstable();
        dirty.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Writes back what was dirty before `before`; says how many pages were written.
    pub(crate) fn flush_before(&self, before: Lsn) -> Result<usize> {
        let mut written = 0;
        for batch in self.dirty_before(before).chunks(BATCH) {
            written += self.write_back(batch)?;
            if self.signals.stop.load(Ordering::Relaxed) && before != Lsn::MAX {
                break;
            }
        }
        Ok(written + self.flush_below(before)?)
    }

    /// Brings pages whose changes only the tier below has into frames, and writes them back; says how many.
    fn flush_below(&self, before: Lsn) -> Result<usize> {
        let at_once = (self.frames.count() as usize / 8).min(BATCH);
        let mut written = 0;
        loop {
            let pages = self.lower.unsaved_before(before, at_once);
            let stopping = self.signals.stop.load(Ordering::Relaxed) && before != Lsn::MAX;
            if pages.is_empty() || stopping {
                return Ok(written);
            }
            let frames: Result<Vec<u32>> = pages.iter().filter_map(|page| self.bring_up(*page)).collect();
            match self.write_back(&frames?)? {
                // All of them are being used, or were evicted again: they are met in the next turn.
                0 => return Ok(written),
                some => written += some,
            }
        }
    }

    /// A frame for a page that the tier below was seen to have changes of; `None` if the page was given up since, with all its changes.
    fn bring_up(&self, page: PageId) -> Option<Result<u32>> {
        match self.load(page, Hint::Scan, false) {
            Err(_) if !self.lower.is_unsaved(page) => None,
            loaded => Some(loaded),
        }
    }

    /// Writes back all that is dirty now.
    ///
    /// # Errors
    /// Those of the log and of storage.
    pub fn flush_all(&self) -> Result<()> {
        // What is being changed at this moment is met again in the next round.
        for _ in 0..1000 {
            let none_left = || self.dirty_before(Lsn::MAX).is_empty() && self.lower.oldest_unsaved() == 0;
            if self.flush_before(Lsn::MAX)? == 0 && none_left() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The background's turn: flushes as far as the log's length asks for, and takes a checkpoint.
    pub(crate) fn keep_log_short(&self) -> Result<()> {
        let tail = self.storage.log().tail();
        if self.storage.log().is_full() && self.storage.log().is_recyclable() {
            return self.squeeze();
        }
        let length = tail.since(Lsn::from_raw(self.checkpoint_lsn.load(Ordering::Relaxed)));
        if length > self.log_limit / 2 {
            // At half the limit the older half of what may stay is written, beyond it all but a quarter.
            let keep = if length > self.log_limit {
                self.log_limit / 8
            } else {
                self.log_limit / 4
            };
            let before = Lsn::from_raw(tail.raw().saturating_sub(keep));
            mark::pass(Mark::LogLong);
            self.flush_before(before)?;
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Drops the frames of `space` without writing them: the space is going away. The engine
    /// has made sure that nobody uses it any more.
    ///
    /// # Errors
    /// [`cenote_base::Error::Corrupt`] if the page hash is broken.
    pub fn discard_space(&self, space: u32) -> Result<()> {
        self.discard_everywhere(space, 0..u32::MAX, || self.discard(|page| page.space == space))
    }

    /// Out of the frames, out of the tier below, and, where a page came up from there meanwhile, out of the frames again.
    fn discard_everywhere(&self, space: u32, pages: Range<u32>, discard: impl Fn() -> Result<()>) -> Result<()> {
        discard()?;
        match self.lower.forget(space, pages) {
            true => discard(),
            false => Ok(()),
        }
    }

    /// Drops the frames of pages `pages` of `space` without writing them.
    ///
    /// # Errors
    /// As [`Pool::discard_space`].
    pub fn discard_pages(&self, space: u32, pages: Range<u32>) -> Result<()> {
        self.discard_everywhere(space, pages.clone(), || self.discard_frames_of(space, pages.clone()))
    }

    fn discard_frames_of(&self, space: u32, pages: Range<u32>) -> Result<()> {
        if (pages.len() as u64) < self.touched() as u64 / 8 {
            let _gate = self.write_gate.write();
            for page in pages {
                let id = PageId::new(space, page);
                let key = crate::hash::key_of(id);
                // Under the bucket's lock: a look without it can miss.
                let found = self.hash.lock(&self.frames, key).find(key)?;
                if let Some(frame) = found {
                    self.discard_frame(frame, |found| found == id)?;
                }
            }
            return Ok(());
        }
        self.discard(|page| page.space == space && pages.contains(&page.page))
    }

    fn discard(&self, which: impl Fn(PageId) -> bool) -> Result<()> {
        let _gate = self.write_gate.write();
        for frame in 0..self.touched() as u32 {
            if self.page_in(frame).is_some_and(&which) {
                self.discard_frame(frame, &which)?;
            }
        }
        Ok(())
    }

    /// The latch is only tried: whoever holds it may be waiting for the gate. If it is one who uses the
    /// page, he is about to let go; if not, the frame holds another page by then.
    fn discard_frame(&self, frame: u32, which: impl Fn(PageId) -> bool) -> Result<()> {
        while self.page_in(frame).is_some_and(&which) {
            let Some(latched) = self.try_latch_exclusive(frame)? else {
                rt::yield_now();
                continue;
            };
            let d = self.frames.descriptor(frame);
            let used = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Used);
            if used && self.page_in(frame).is_some_and(&which) {
                return self.unpublish(latched);
            }
            self.unlatch(latched, false);
        }
        Ok(())
    }
}
