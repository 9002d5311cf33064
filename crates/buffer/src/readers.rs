//! Finding a page's frame, and holding it to read.
//!
//! ```text
//! optimistic(page) ── hash ──▶ frame ── version ──▶ key still the page's? ──▶ guard     (a hit: no store)
//!        │ not found                     │ latched: wait
//!        ▼                               ▼ other page: again
//!   claim a frame (free list, else evict) ─▶ publish in the hash, latched ─▶ read ─▶ unlatch ─▶ again
//! ```

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::{Plain, Points, Seam};
use cenote_base::{PageId, Result, rt};

use crate::access_trace::PageAccess;
use crate::guard::{OptGuard, SharedGuard};
use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::latch;
use crate::lists::Hint;
use crate::pool::Pool;
use crate::slots::Latched;
use crate::stats::bump;

impl Pool {
    /// The page, without a latch.
    ///
    /// # Errors
    /// Those of reading it from storage; [`Error::Corrupt`] if it was never written.
    #[inline(always)]
    pub fn optimistic(&self, page: PageId) -> Result<OptGuard<'_>> {
        self.asked(page, PageAccess::Read);
        let hit = if rt::simulated() {
            self.hit_simulated(page)
        } else {
            self.hit(Plain, page)
        };
        match hit {
            Some(guard) => Ok(guard),
            None => self.optimistic_slow(page, Hint::Warm),
        }
    }

    /// As [`Pool::optimistic`], within an operation that has asked what its preemption points are.
    ///
    /// # Errors
    /// As [`Pool::optimistic`].
    #[inline(always)]
    pub fn optimistic_by<S: Seam>(&self, seam: S, page: PageId) -> Result<OptGuard<'_>> {
        if !S::PLAIN {
            return self.optimistic(page);
        }
        self.asked(page, PageAccess::Read);
        match self.hit(seam, page) {
            Some(guard) => Ok(guard),
            None => self.optimistic_slow(page, Hint::Warm),
        }
    }

    /// As [`Pool::optimistic`], for a caller that passes by: leaves no trace of recency.
    ///
    /// # Errors
    /// As [`Pool::optimistic`].
    pub fn optimistic_hint(&self, page: PageId, hint: Hint) -> Result<OptGuard<'_>> {
        if hint == Hint::Warm {
            return self.optimistic(page);
        }
        self.asked(page, PageAccess::Pass);
        let key = key_of(page);
        match self
            .hash
            .find(&self.frames, key)
            .and_then(|frame| self.peek(Points, frame, key))
        {
            Some(guard) => {
                bump(&self.counters().hits, 1);
                Ok(guard)
            }
            None => self.optimistic_slow(page, hint),
        }
    }

    /// The hot path: whether its steps are preemption points was asked once, by the caller.
    #[inline(always)]
    fn hit<S: Seam>(&self, seam: S, page: PageId) -> Option<OptGuard<'_>> {
        let key = key_of(page);
        let frame = self.hash.find_by(seam, &self.frames, key)?;
        let guard = self.peek(seam, frame, key)?;
        self.used(seam, self.frames.descriptor(frame));
        bump(&self.stats.mine_by(seam).hits, 1);
        Some(guard)
    }

    #[cold]
    #[inline(never)]
    fn hit_simulated(&self, page: PageId) -> Option<OptGuard<'_>> {
        self.hit(Points, page)
    }

    /// A guard on `frame` if it holds `key` and no thread writes.
    #[inline(always)]
    fn peek<S: Seam>(&self, seam: S, frame: FrameIndex, key: u64) -> Option<OptGuard<'_>> {
        let d = self.frames.descriptor(frame);
        let word = d.latch.load_by(seam, Ordering::Acquire);
        // The key is read after the version: a frame that changes its page changes its version.
        let same = d.key.load_by(seam, Ordering::Relaxed) == key;
        (same && !latch::is_exclusive(word)).then(|| OptGuard::new(self, d, frame, latch::version(word)))
    }

    #[cold]
    #[inline(never)]
    fn optimistic_slow(&self, page: PageId, hint: Hint) -> Result<OptGuard<'_>> {
        let key = key_of(page);
        let mut miss = false;
        loop {
            let frame = self.fetch(page, hint, &mut miss)?;
            let d = self.frames.descriptor(frame);
            let word = self.wait_for(frame, key, || {
                let word = d.latch.load(Ordering::Acquire);
                (!latch::is_exclusive(word)).then_some(word)
            });
            if let Some(word) = word
                && d.key.load(Ordering::Relaxed) == key
            {
                self.count_access(miss);
                return Ok(OptGuard::new(self, d, frame, latch::version(word)));
            }
        }
    }

    /// The page, held against writers.
    ///
    /// # Errors
    /// As [`Pool::optimistic`].
    pub fn shared(&self, page: PageId) -> Result<SharedGuard<'_>> {
        self.asked(page, PageAccess::Read);
        let key = key_of(page);
        let mut miss = false;
        loop {
            let frame = self.fetch(page, Hint::Warm, &mut miss)?;
            let d = self.frames.descriptor(frame);
            let latched = self.wait_for(frame, key, || latch::try_shared(&d.latch, self.owner).then_some(()));
            if latched.is_none() {
                continue;
            }
            if d.key.load(Ordering::Relaxed) == key {
                self.count_access(miss);
                self.used(Points, d);
                return Ok(SharedGuard::new(self, frame, page));
            }
            self.unlatch_shared(frame);
        }
    }

    /// The page's frame, latched exclusively.
    pub(crate) fn exclusive(&self, page: PageId) -> Result<Latched> {
        self.asked(page, PageAccess::Write);
        let key = key_of(page);
        let mut miss = false;
        loop {
            let frame = self.fetch(page, Hint::Warm, &mut miss)?;
            if let Some(latched) = self.latch_exclusive(frame, key)? {
                self.count_access(miss);
                self.used(Points, self.frames.descriptor(frame));
                return Ok(latched);
            }
        }
    }

    fn count_access(&self, miss: bool) {
        let mine = self.counters();
        bump(if miss { &mine.misses } else { &mine.hits }, 1);
    }
}
