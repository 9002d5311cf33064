//! Fuzzy checkpoints: from where would a recovery without the region have to read the log?
//!
//! From the least `rec` of all dirty frames, frames kept over a restart included, or, if less, from where a commit may
//! be that has its place in the log and has not stamped its pages yet. No thread is stopped to find out: tail and
//! floors of running commits are read first, then the frames.
//!
//! Why that order is right. Let a commit take its place at `s`. It stores a floor at or below `s` before, and
//! removes it after it has stamped its frames. If the checkpoint sees the floor, it stays at or below `s`. If it
//! looked before the floor was stored, the tail it read before that is at or below `s`. If it looked after
//! the floor was removed, the frames it reads later say `rec` at or below `s`, or were written back since.
//!
//! An image in the log moves a page's `rec` up to itself, and with it the checkpoint: the records before it are given
//! up. So it has to be durable before the checkpoint counts, else a lost host takes the image, and the records are gone
//! already.
//!
//! The log is kept short by writing the frames with the oldest `rec` back, ever more of them as it grows.
//!
//! Neither looks at all descriptors: the dirty frames are known by age ([`crate::dirty`]).

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, PageId, Result};

use crate::dirty::{Stretch, Walk};
use crate::index::FrameIndex;
use crate::latch;
use crate::layout::FRAMES_MIN;
use crate::lists::Hint;
use crate::pool::Pool;
use crate::slots;
use crate::stats::bump;
use crate::writeback::BATCH;

/// Dirty frames that are gathered at once, and written in batches by age.
const GATHERED: usize = 16 * BATCH;
const _: () = assert!(
    FRAMES_MIN / 8 > 0,
    "a frame is free for a page that comes up from the tier below"
);
/// How long threads that change the remaining pages go on, between two rounds of [`Pool::flush_all`].
const TURN: Nanos = Nanos::from_millis(1);

impl Pool {
    /// Takes a checkpoint: notes in the control file where recovery begins, and lets the log
    /// before that be reused. Returns the position.
    ///
    /// # Errors
    /// Those of storage; the former checkpoint stands then.
    pub fn checkpoint(&self) -> Result<Lsn> {
        let _one = self.checkpoint_mutex.lock();
        let position = self.oldest_unsaved();
        let before = self.checkpoint_lsn.load(Ordering::Relaxed);
        if position > before {
            // Groups whose stamps were seen lie below the tail of now.
            let log = self.storage.log();
            if !planted(Fault::CheckpointBeforeImage) {
                log.wait_durable(log.tail())?;
            }
            self.storage.checkpoint(position)?;
            let replaced = self.checkpoint_lsn.swap(position, Ordering::Relaxed);
            assert!(
                replaced == before,
                "one checkpoint is taken at a time, and each is behind the last one"
            );
            mark::pass(Mark::CheckpointMoved);
        }
        Ok(position.max(before))
    }

    /// At or below every change that is not in storage.
    fn oldest_unsaved(&self) -> Lsn {
        let mut oldest = self.storage.log().tail();
        let floor = slots::least_floor(&self.frames).filter(|_| !planted(Fault::CheckpointFloor));
        if let Some(floor) = floor {
            oldest = oldest.min(floor);
        }
        let in_frames = self.oldest_in_frames();
        mark::pass(Mark::FramesAsked);
        if planted(Fault::CheckpointTail) {
            oldest = floor.unwrap_or(Lsn::MAX).min(self.storage.log().tail());
        }
        oldest = oldest.min(in_frames);
        // After the frames: a page that leaves one is noted below before its frame is clean.
        match self.lower.oldest_unsaved() {
            None => oldest,
            Some(below) => oldest.min(below),
        }
    }

    /// The least `rec` of all dirty frames; above every position if there is none.
    fn oldest_in_frames(&self) -> Lsn {
        self.know_all_frames();
        let passes_latched = planted(Fault::CheckpointLatched);
        let latched =
            |frame: FrameIndex| latch::is_exclusive(self.frames.descriptor(frame).latch.load(Ordering::Acquire));
        let oldest = self.walk_dirty(|walk| walk.oldest(|frame| !(passes_latched && latched(frame))));
        oldest.unwrap_or(Lsn::MAX)
    }

    /// Walks along the dirty frames, and counts what it looks at.
    fn walk_dirty<T>(&self, walk: impl FnOnce(&mut Walk<'_, &dyn Fn(FrameIndex) -> Lsn>) -> T) -> T {
        let rec_of = |frame: FrameIndex| self.frames.descriptor(frame).rec.load(Ordering::Acquire);
        let mut along = self.dirty.walk(&rec_of as &dyn Fn(FrameIndex) -> Lsn);
        let result = walk(&mut along);
        bump(&self.counters().descriptors_examined, along.looked_at());
        result
    }

    /// Frames that were ever used.
    pub(crate) fn touched(&self) -> u32 {
        let touched = self.frames.header().frames_touched.load(Ordering::Acquire);
        touched.min(self.frames.count())
    }

    /// Writes back what was dirty before `before`, oldest first; says how many pages were written.
    pub(crate) fn flush_before(&self, before: Lsn) -> Result<usize> {
        self.know_all_frames();
        // What becomes dirty from here on is not met, or the log would be followed without end.
        let end = self.storage.log().tail();
        let (mut at, mut written) = (Some(Stretch::FIRST), 0);
        while let Some(from) = at {
            let (dirty, next) = self.walk_dirty(|walk| walk.gather(from, before, end, GATHERED));
            let frames: Vec<FrameIndex> = dirty.into_iter().map(|(_, frame)| frame).collect();
            for batch in frames.chunks(BATCH) {
                written += self.write_back(batch)?;
                if self.signals.stop.load(Ordering::Relaxed) && before != Lsn::MAX {
                    return Ok(written + self.flush_below(before)?);
                }
            }
            assert!(
                next.is_none_or(|next| next > from),
                "a walk by age goes on behind the stretch that it gathered"
            );
            at = next;
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
            let frames: Result<Vec<FrameIndex>> = pages.iter().filter_map(|page| self.bring_up(*page)).collect();
            match self.write_back(&frames?)? {
                // All of them are being used, or were evicted again: they are met in the next turn.
                0 => return Ok(written),
                some => written += some,
            }
        }
    }

    /// A frame for a page that the tier below was seen to have changes of; `None` if the page was given up since, with
    /// all its changes.
    fn bring_up(&self, page: PageId) -> Option<Result<FrameIndex>> {
        match self.load(page, Hint::ToSave, false) {
            Err(_) if !self.lower.is_unsaved(page) => None,
            loaded => Some(loaded),
        }
    }

    /// Writes back all that is dirty now; what becomes dirty meanwhile may stay so.
    ///
    /// # Errors
    /// Those of the log and of storage.
    pub fn flush_all(&self) -> Result<()> {
        let now = self.storage.log().tail();
        // What is being changed at this moment is met again in the next round.
        for _ in 0..1000 {
            let written = self.flush_before(Lsn::MAX)?;
            let below = self.lower.oldest_unsaved();
            if self.oldest_in_frames().min(below.unwrap_or(Lsn::MAX)) >= now {
                return Ok(());
            }
            if written == 0 {
                rt::sleep(TURN);
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
        let length = tail.since(self.checkpoint_lsn.load(Ordering::Relaxed));
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
}
