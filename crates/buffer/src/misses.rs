//! Bringing a page into a frame: claiming a frame, entering it in the hash, reading.

use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Spin};
use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use crate::chain::Chain;
use crate::follow;
use crate::frame_wait::FrameWait;
use crate::hash::{self, key_of};
use crate::index::FrameIndex;
use crate::layout::FrameState;
use crate::lists::{Hint, List, Lists};
use crate::lower::{Fetched, Trace};
use crate::pool::{Pool, transition};
use crate::slots::Latched;
use crate::stats::bump;

impl Pool {
    /// The frame that holds `page`, or did a moment ago; reads the page if there is none.
    #[inline]
    pub(crate) fn fetch(&self, page: PageId, hint: Hint, miss: &mut bool) -> Result<FrameIndex> {
        match self.hash.find(&self.frames, key_of(page)) {
            Some(frame) => Ok(frame),
            None => {
                *miss = true;
                self.missed();
                self.load(page, hint, false)
            }
        }
    }

    /// Reads `page` into a frame, unless it is in one. With `build`, a page never written is zeros.
    ///
    /// A reader's thread whose page can be had only as of a later moment waits for that, without the frame.
    #[cold]
    pub(crate) fn load(&self, page: PageId, hint: Hint, build: bool) -> Result<FrameIndex> {
        let mut until = None;
        loop {
            match self.load_once(page, hint, build) {
                Err(Error::Ahead(position)) => self.wait_followed(position)?,
                done => return done,
            }
            if rt::now() > *until.get_or_insert_with(|| rt::now() + follow::PATIENCE) {
                return Err(Error::Timeout(format!(
                    "page {page} changes faster than this reader follows"
                )));
            }
        }
    }

    fn load_once(&self, page: PageId, hint: Hint, build: bool) -> Result<FrameIndex> {
        let claimed = self.claim()?;
        if let Some(there) = self.publish(claimed, page)? {
            return Ok(there);
        }
        match self.fill(claimed, page, hint, build) {
            Ok(trace) => self.settle(claimed, hint.list(), &trace),
            Err(error) => {
                self.unpublish(claimed)?;
                return Err(error);
            }
        }
        self.unlatch(claimed, true);
        Ok(claimed.frame)
    }

    /// Enters the claimed frame for `page` in the hash. If another has the page, that one is
    /// returned and the claimed frame is free again.
    pub(crate) fn publish(&self, claimed: Latched, page: PageId) -> Result<Option<FrameIndex>> {
        let key = key_of(page);
        let bucket = self.hash.lock(&self.frames, key);
        let there = bucket.find(key);
        if there
            .as_ref()
            .is_ok_and(|found| found.is_none() || planted(Fault::PageTwice))
        {
            self.frames.descriptor(claimed.frame).key.store(key, Ordering::Release);
            bucket.insert(claimed.frame);
            drop(bucket);
            self.spaces.enter(claimed.frame, || key);
            self.lower.enter(page);
            return Ok(None);
        }
        drop(bucket);
        self.free(claimed);
        there
    }

    /// Takes a frame out of the hash and frees it; the latch is released, also where the hash is broken.
    pub(crate) fn unpublish(&self, latched: Latched) -> Result<()> {
        let d = self.frames.descriptor(latched.frame);
        let key = d.key.load(Ordering::Relaxed);
        assert!(key != 0, "a frame leaves the hash by the key of its page");
        self.lower.leave(hash::page_of(key), self.is_warm(latched.frame));
        match self.hash.lock(&self.frames, key).remove(latched.frame) {
            Ok(()) => self.free(latched),
            Err(broken) => {
                self.leave(latched);
                return Err(broken);
            }
        }
        Ok(())
    }

    /// Releases a frame that may be in a broken chain, and so cannot be freed: recovery takes care of it. If it holds a
    /// page, that stays; a page that was being read is not to be found there.
    fn leave(&self, latched: Latched) {
        let d = self.frames.descriptor(latched.frame);
        let loading = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Loading);
        if loading {
            self.clear_key(latched.frame);
            d.seal();
        } else {
            self.lower.enter(hash::page_of(d.key.load(Ordering::Relaxed)));
        }
        self.unlatch(latched, loading);
    }

    fn fill(&self, claimed: Latched, page: PageId, hint: Hint, build: bool) -> Result<Trace> {
        let reading = self.under_way.read(1);
        let fetched = self.lower.read(page, hint)?;
        drop(reading);
        self.take_in(claimed, page, &fetched, build)
    }

    /// Copies what was fetched into the claimed frame.
    pub(crate) fn take_in(&self, claimed: Latched, page: PageId, fetched: &Fetched, build: bool) -> Result<Trace> {
        if fetched.from_storage {
            bump(&self.counters().pages_read, 1);
        }
        if fetched.read == PageRead::NeverWritten && !build {
            return Err(Error::corrupt(format!(
                "page {page} is asked for and was never written"
            )));
        }
        self.frames.page(claimed.frame).copy_in(0, &fetched.bytes);
        // Not of a page that redo was applied to on the way: storage lacks that.
        match (fetched.from_storage, fetched.read) {
            (true, PageRead::Present) if !fetched.trace.is_dirty() => self.changed.none(claimed.frame),
            (true, _) => self.changed.all(claimed.frame),
            (false, _) => self.changed.all_but(claimed.frame, fetched.trace.in_storage),
        }
        Ok(fetched.trace)
    }

    /// The claimed frame's page is whole: it is in use, as clean as its trace says, and on its list.
    pub(crate) fn settle(&self, latched: Latched, list: List, trace: &Trace) {
        let d = self.frames.descriptor(latched.frame);
        d.lsn.store(trace.lsn, Ordering::Relaxed);
        d.head.store(trace.head, Ordering::Relaxed);
        d.rec.store(trace.rec, Ordering::Relaxed);
        if trace.is_dirty() {
            self.became_dirty(latched.frame, trace.rec);
        }
        d.chain.store(trace.chain, Ordering::Relaxed);
        d.recency.store(0, Ordering::Relaxed);
        if self.host && !planted(Fault::LoadFlush) {
            self.persist_page(latched.frame);
        }
        transition(d, &[FrameState::Loading], FrameState::Used);
        self.lists().put(list, latched.frame);
    }

    /// A frame without a page, latched, in no list, in state Loading.
    pub(crate) fn claim(&self) -> Result<Latched> {
        let mut wait = FrameWait::default();
        loop {
            if let Some(claimed) = self.claim_free()? {
                return Ok(claimed);
            }
            self.make_room(&mut wait)?;
        }
    }

    pub(crate) fn claim_free(&self) -> Result<Option<Latched>> {
        let mut lists = self.lists();
        let mut spin = Spin::new();
        loop {
            let Some((frame, fresh)) = self.next_free(&mut lists) else {
                drop(lists);
                self.signals.evict.set();
                return Ok(None);
            };
            mark::pass(Mark::FrameFound);
            let Some(latched) = self.try_latch_exclusive(frame)? else {
                // A thread looks at a frame that held a page a moment ago: gone in no time.
                drop(lists);
                spin.turn();
                lists = self.lists();
                continue;
            };
            if fresh {
                lists.touch_next();
            } else {
                lists.take_off(frame);
            }
            let d = self.frames.descriptor(frame);
            let free = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Free);
            if free && d.key.load(Ordering::Relaxed) == 0 {
                transition(d, &[FrameState::Free], FrameState::Loading);
                self.call_evictor(&lists);
                return Ok(Some(latched));
            }
            // The list lied: a frame in use goes where it belongs.
            lists.put(List::Warm, frame);
            self.unlatch(latched, false);
        }
    }

    /// The first frame of the free list, else one never used (and whether it is one).
    fn next_free(&self, lists: &mut Lists<'_>) -> Option<(FrameIndex, bool)> {
        let header = self.frames.header();
        let first = lists.first(List::Free).unwrap_or_else(|_broken| {
            lists.rebuild();
            lists.first(List::Free).unwrap_or(None)
        });
        if let Some(frame) = first {
            return Some((frame, false));
        }
        let touched = header.frames_touched.load(Ordering::Relaxed);
        let reserved = header.frames_reserved.load(Ordering::Acquire).min(self.frames.count());
        (touched < reserved).then_some((FrameIndex::new(touched), true))
    }

    /// Frees a latched frame that is in no chain of the hash, and releases it.
    pub(crate) fn free(&self, latched: Latched) {
        let d = self.frames.descriptor(latched.frame);
        self.clear_key(latched.frame);
        self.changed.all(latched.frame);
        d.lsn.store(Lsn::ZERO, Ordering::Relaxed);
        d.head.store(RecordAddr::NONE, Ordering::Relaxed);
        d.rec.store(Lsn::ZERO, Ordering::Relaxed);
        d.chain.store(Chain::default(), Ordering::Relaxed);
        d.recency.store(0, Ordering::Relaxed);
        transition(d, &[FrameState::Loading, FrameState::Used], FrameState::Free);
        self.lists().put(List::Free, latched.frame);
        self.unlatch(latched, true);
    }
}
