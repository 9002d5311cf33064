//! Eviction: frames for new pages.
//!
//! A background thread keeps a reserve of free frames, so that a miss finds one at once. It walks a list
//! from its cold end (see [`crate::lists`] for which), gives frames that were used a second chance, has the dirty
//! ones written back in a batch, and frees the clean ones. A thread that finds no free frame does the same
//! for itself.
//!
//! Where remote memory lies below (kind `tiered`), the dirty ones are handed to that instead, and may go though storage
//! lacks their changes: which, the tier below has noted ([`crate::lower`]). Those that it has no place for are written
//! to storage, and a thread makes places there ([`crate::clean`]).
//!
//! Evicting one frame, in order: latch it (tried only); it is in use, clean and was not used; take it out of
//! the hash under its bucket's lock; clear its key; put it on the free list; release, with a new version, so
//! that optimistic readers who still look at it learn that it changed.

use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Nanos};

use crate::frame_wait::FrameWait;
use crate::index::FrameIndex;
use crate::layout::FrameState;
use crate::lists::{Broken, List, Lists};
use crate::lower::EvictionStep;
use crate::pool::Pool;
use crate::stats::bump;
use crate::writeback::BATCH;

/// Candidates gathered in one walk.
const GATHER: usize = BATCH;
const _: () = assert!(GATHER >= 32, "a refill frees at least 32 frames at a time");
/// The cold list may hold this share (one in so many) of the frames in use before it is the first to give.
const COLD_SHARE: u32 = 16;
/// How long a thread that needs a frame lets the thread work that reserves memory.
const RESERVE_TURN: Nanos = Nanos::from_micros(100);

impl Pool {
    /// Free frames that the background keeps in reserve.
    pub(crate) fn reserve_target(&self) -> u32 {
        (self.frames.count() / 32).clamp(8, 1024)
    }

    pub(crate) fn free_now(&self, lists: &Lists<'_>) -> u32 {
        let header = self.frames.header();
        let reserved = header.frames_reserved.load(Ordering::Relaxed).min(self.frames.count());
        let fresh = reserved.saturating_sub(header.frames_touched.load(Ordering::Relaxed));
        lists.count(List::Free).saturating_add(fresh)
    }

    /// Wakes the evictor when the reserve is half used.
    pub(crate) fn call_evictor(&self, lists: &Lists<'_>) {
        let low = self.free_now(lists) < self.reserve_target() / 2;
        if low && !self.is_reserving() && !self.signals.evict.is_set() {
            self.signals.evict.set();
        }
    }

    /// The background's work: frees frames until the reserve is whole. Says whether it is.
    pub(crate) fn refill(&self) -> Result<bool> {
        for _ in 0..64 {
            if self.is_reserving() {
                return Ok(true);
            }
            let lacking = {
                let lists = self.lists();
                self.reserve_target().saturating_sub(self.free_now(&lists))
            };
            if lacking == 0 {
                return Ok(true);
            }
            self.evict_some((lacking as usize).clamp(32, GATHER))?;
        }
        Ok(false)
    }

    fn is_reserving(&self) -> bool {
        self.signals.reserving.load(Ordering::Acquire)
    }

    /// A foreground thread needs a frame and there is none: evicts for itself.
    ///
    /// # Errors
    /// Those of writing back; those of [`FrameWait::turn`].
    pub(crate) fn make_room(&self, wait: &mut FrameWait) -> Result<()> {
        if self.is_reserving() {
            rt::sleep(RESERVE_TURN);
            return Ok(());
        }
        match self.evict_for_itself()? {
            true => Ok(()),
            false => wait.turn(self),
        }
    }

    /// Whether there are frames now.
    pub(crate) fn evict_for_itself(&self) -> Result<bool> {
        if self.reserve_on_demand() {
            return Ok(true);
        }
        bump(&self.counters().foreground_evictions, 1);
        self.signals.evict.set();
        Ok(self.evict_some(16)? > 0)
    }

    /// Frees up to `wanted` frames; writes dirty ones back on the way. Says how many were freed.
    pub(crate) fn evict_some(&self, wanted: usize) -> Result<usize> {
        let victims = self.gather(wanted);
        let of = |way: EvictionStep| victims.iter().copied().filter(|f| self.way_out(*f) == way).collect();
        let pushed: Vec<FrameIndex> = of(EvictionStep::Push);
        let mut written = self.push_down(&pushed);
        // Asked after the push: what the tier below would not take goes to storage.
        let dirty: Vec<FrameIndex> = of(EvictionStep::Save);
        if written.is_ok() && !dirty.is_empty() && !planted(Fault::EvictDirty) {
            mark::pass(Mark::DirtyEvicted);
            written = self.write_back(&dirty).map(drop);
        }
        if !victims.is_empty() && self.lower.wants_cleaning() {
            self.signals.clean.set();
        }
        let mut freed = 0;
        for frame in victims {
            freed += self.evict(frame)? as usize;
        }
        // Where nothing can be written (a full disk), clean pages still make room for readers.
        if freed == 0 { written.map(|_| 0) } else { Ok(freed) }
    }

    /// What has to happen before the page of `frame` may leave it; a guess, which [`Pool::evict`] verifies.
    fn way_out(&self, frame: FrameIndex) -> EvictionStep {
        let Some(page) = self.page_in(frame) else {
            return EvictionStep::Free;
        };
        self.lower.way_out(page, &self.trace_of(frame), self.is_warm(frame))
    }

    /// Frames at the cold ends whose second chance is used up. They go to the other end, so that the next search finds
    /// others; eviction takes them off from there.
    fn gather(&self, wanted: usize) -> Vec<FrameIndex> {
        let mut lists = self.lists();
        let mut victims = Vec::with_capacity(wanted);
        let in_use = lists.count(List::Warm).saturating_add(lists.count(List::Cold));
        let mut steps = (in_use as usize).saturating_mul(2).min(wanted * 8 + 64);
        while victims.len() < wanted && steps > 0 {
            steps -= 1;
            match self.next_victim(&mut lists) {
                Ok(Some((frame, true))) => victims.push(frame),
                Ok(Some((_, false))) => {}
                Ok(None) => break,
                Err(Broken) => lists.rebuild(),
            }
        }
        victims
    }

    /// The frame at the cold end, turned to the other; and whether it may go.
    fn next_victim(&self, lists: &mut Lists<'_>) -> Result<Option<(FrameIndex, bool)>, Broken> {
        let (cold, warm) = (lists.count(List::Cold), lists.count(List::Warm));
        let list = if cold > (warm / COLD_SHARE).max(8) || warm == 0 {
            List::Cold
        } else {
            List::Warm
        };
        let Some(frame) = lists.last(list)? else {
            return Ok(None);
        };
        let d = self.frames.descriptor(frame);
        let used = d.recency.load(Ordering::Relaxed) != 0;
        if used {
            d.recency.store(0, Ordering::Relaxed);
        }
        lists.put(if used { List::Warm } else { list }, frame);
        Ok(Some((frame, !used)))
    }

    /// Frees `frame` if it is in use, clean, idle and was not used since it was chosen.
    pub(crate) fn evict(&self, frame: FrameIndex) -> Result<bool> {
        let Some(latched) = self.try_latch_exclusive(frame)? else {
            return Ok(false);
        };
        let d = self.frames.descriptor(frame);
        let used = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Used);
        let idle = d.recency.load(Ordering::Relaxed) == 0;
        // A thread that writes the page somewhere has copied it, and counts on the frame to stay.
        let page = self.page_in(frame).filter(|_| used && idle && !self.is_writing(frame));
        let lets_go = |page| planted(Fault::EvictDirty) || self.lower.let_go(page, &self.trace_of(frame));
        if !page.is_some_and(lets_go) {
            self.unlatch(latched, false);
            return Ok(false);
        }
        // A frame in a broken chain stays where it is: others can be evicted. A thread that asks for its page is told.
        let freed = self.unpublish(latched).is_ok();
        bump(&self.counters().evictions, u64::from(freed));
        Ok(freed)
    }
}
