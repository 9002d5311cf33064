//! The pool: finding a page's frame, and bringing the page there.
//!
//! ```text
//! optimistic(page) ── hash ──▶ frame ── version ──▶ key still the page's? ──▶ guard     (a hit: no store)
//!        │ not found                     │ latched: wait
//!        ▼                               ▼ other page: again
//!   claim a frame (free list, else evict) ─▶ publish in the hash, latched ─▶ read ─▶ unlatch ─▶ again
//! ```
//!
//! Invariants:
//! - a frame's page and key change only under its exclusive latch, and its version rises then;
//! - one page is in at most one frame: the key is published under its bucket's lock;
//! - a frame without a page has key 0 and is in no chain of the hash.
//!
//! Lock order: see [`crate::lists`]; frames are latched parent before child, left before right, a space's
//! header after its trees' pages, undo pages last (the engine's duty). Write-back and eviction only try latches.

use std::sync::{Arc, OnceLock, Weak};

use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::seam::{Plain, Points, Seam};
use cenote_base::rt::{self, Event, Local, Mutex, Nanos, Spin};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::observe::{Access, Observer};
use cenote_fabric::{Region, coherence};
use cenote_storage::Storage;

use crate::admit::NeedCell;
use crate::dirty::DirtyFrames;
use crate::frame::Frames;
use crate::guard::{OptGuard, SharedGuard};
use crate::hash::{self, PageHash, key_of};
use crate::latch::{self, Owner, Parking};
use crate::layout::{Descriptor, FrameState, LINE};
use crate::lists::{List, Lists};
use crate::lower::{Lower, Trace};
use crate::shortage::{FrameWait, InterruptCell, TransfersInFlight};
use crate::slots::{Entry, Slots};
use crate::spaces::SpaceFrames;
use crate::stats::{Counters, PoolStats, Stats, bump};
use crate::sweep::Sweep;
use crate::{Kind, mtr};

/// A frame that this thread latches exclusively.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latched {
    pub frame: u32,
    pub entry: Entry,
}

/// How a page that is not in the pool comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// It is asked for: it stays as long as pages of its kind do.
    Warm,
    /// A scan passes by: it leaves before pages that were asked for.
    Scan,
}

impl Hint {
    fn list(self) -> List {
        match self {
            Hint::Warm => List::Warm,
            Hint::Scan => List::Cold,
        }
    }
}

/// Frames, and all that is needed to use them. Shared by all threads; [`crate::BufferPool`] owns one and
/// its background threads.
pub struct Pool {
    pub(crate) frames: Frames,
    pub(crate) storage: Arc<Storage>,
    /// Where pages come from and go to.
    pub(crate) lower: Box<dyn Lower>,
    pub(crate) hash: PageHash,
    pub(crate) slots: Slots,
    pub(crate) parking: Parking,
    pub(crate) stats: Stats,
    pub(crate) kind: Kind,
    /// Whether it has threads of its own.
    pub(crate) background: bool,
    pub(crate) owner: Owner,
    /// Survival of a host: lines are flushed (rule 5).
    pub(crate) host: bool,
    pub(crate) list_mutex: Mutex<()>,
    /// Frames whose write-back is under way, a bit each.
    pub(crate) writing: Box<[AtomicU64]>,
    pub(crate) parts: Local<Mutex<Vec<mtr::Parts>>>,
    pub(crate) needs: Local<NeedCell>,
    /// What another thread stops a statement by, for the thread that runs it.
    pub(crate) interrupts: Local<InterruptCell>,
    /// Transfers between frames and storage.
    pub(crate) under_way: TransfersInFlight,
    pub(crate) signals: Signals,
    pub(crate) checkpoint_lsn: AtomicU64,
    pub(crate) checkpoint_mutex: Mutex<()>,
    /// The dirty ones.
    pub(crate) dirty: DirtyFrames,
    /// Those of each space.
    pub(crate) spaces: SpaceFrames,
    /// What the start has not looked at yet.
    pub(crate) sweep: Sweep,
    /// The pool itself, for threads that it starts later.
    pub(crate) me: OnceLock<Weak<Pool>>,
    /// Descriptors that one thread looks at in one go.
    pub(crate) survey_part: u32,
    pub(crate) log_limit: u64,
    pub(crate) flush_turn: Nanos,
    /// Redo that a replay gathers before it applies it, in bytes.
    pub(crate) replay_stretch: usize,
    /// Tests: destructors leave the region as it is, as if the process had died.
    pub(crate) abandoned: AtomicBool,
}

/// What wakes the background threads.
#[derive(Default)]
pub(crate) struct Signals {
    pub stop: AtomicBool,
    /// Memory is still being reserved: frames will come without anybody giving one up.
    pub reserving: AtomicBool,
    /// No more memory can be reserved: the pool goes on with what there is.
    pub reserve_failed: AtomicBool,
    /// Clean free frames run low.
    pub evict: Event,
    /// The log grows long, or somebody wants a checkpoint.
    pub flush: Event,
    /// Pages to read ahead.
    pub prefetch: Event,
    /// The end, for the thread that looks after remote memory.
    pub remote: Event,
    pub wanted: Mutex<Vec<PageId>>,
}

impl Pool {
    // ---- readers ----

    /// The page, without a latch.
    ///
    /// # Errors
    /// Those of reading it from storage; [`Error::Corrupt`] if it was never written.
    #[inline(always)]
    pub fn optimistic(&self, page: PageId) -> Result<OptGuard<'_>> {
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
        match self.hit(seam, page) {
            Some(guard) => Ok(guard),
            None => self.optimistic_slow(page, Hint::Warm),
        }
    }

    /// As [`Pool::optimistic`], for one who passes by: leaves no trace of recency.
    ///
    /// # Errors
    /// As [`Pool::optimistic`].
    pub fn optimistic_hint(&self, page: PageId, hint: Hint) -> Result<OptGuard<'_>> {
        if hint == Hint::Warm {
            return self.optimistic(page);
        }
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

    /// A guard on `frame` if it holds `key` and nobody writes.
    #[inline(always)]
    fn peek<S: Seam>(&self, seam: S, frame: u32, key: u64) -> Option<OptGuard<'_>> {
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

    #[inline(always)]
    pub(crate) fn used<S: Seam>(&self, seam: S, d: &Descriptor) {
        if d.recency.load_by(seam, Ordering::Relaxed) == 0 {
            d.recency.store_by(seam, 1, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn counters(&self) -> &Counters {
        self.stats.mine()
    }

    /// Tells `observer` of the bucket and the descriptor of `frame`: read, or latched and so written.
    #[inline(always)]
    pub(crate) fn announce<O: Observer>(&self, frame: u32, observer: O, descriptor: Access) {
        if O::ON && observer.is_on() {
            self.announce_observed(frame, observer, descriptor);
        }
    }

    /// A simulated device has been told by the atomics themselves.
    #[inline(never)]
    fn announce_observed<O: Observer>(&self, frame: u32, observer: O, descriptor: Access) {
        let (region, geometry) = (self.frames.region(), self.frames.geometry());
        if !region.is_simulated() {
            let key = self.frames.descriptor(frame).key.load(Ordering::Relaxed);
            let bucket = geometry.buckets_at + 4 * self.hash.bucket(key) as u64;
            observer.touch(region, bucket, 4, Access::Read);
            observer.touch(region, self.frames.descriptor_at(frame), LINE as u32, descriptor);
        }
    }

    // ---- latches ----

    /// Waits until `attempt` gives something; `None` if the frame is another page's by then and `attempt` still gives
    /// nothing.
    ///
    /// Nobody waits for the latch of a page that he does not want: the pages that a caller holds and the one that he
    /// waits for are in the order of latching, but the page that moved into the frame meanwhile need not be, and its
    /// holder may wait for the caller.
    fn wait_for<T>(&self, frame: u32, key: u64, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let d = self.frames.descriptor(frame);
        self.parking.until(frame, || match attempt() {
            Some(done) => Some(Some(done)),
            // A frame changes its page under its latch alone, so whoever waits is woken after that.
            None => (d.key.load(Ordering::Relaxed) != key).then_some(None),
        })
    }

    /// Latches `frame` exclusively, if it holds the page of `key`.
    pub(crate) fn latch_exclusive(&self, frame: u32, key: u64) -> Result<Option<Latched>> {
        let entry = self.slots.announce(&self.frames, frame)?;
        let d = self.frames.descriptor(frame);
        let taken = self.wait_for(frame, key, || latch::try_exclusive(&d.latch, self.owner).then_some(()));
        if taken.is_none() {
            self.slots.withdraw(&self.frames, entry);
            return Ok(None);
        }
        self.latched(frame);
        let latched = Latched { frame, entry };
        if d.key.load(Ordering::Relaxed) == key {
            return Ok(Some(latched));
        }
        self.unlatch(latched, false);
        Ok(None)
    }

    /// Latches `frame` exclusively, whatever it holds, unless somebody else does.
    pub(crate) fn try_latch_exclusive(&self, frame: u32) -> Result<Option<Latched>> {
        let entry = self.slots.announce(&self.frames, frame)?;
        if latch::try_exclusive(&self.frames.descriptor(frame).latch, self.owner) {
            self.latched(frame);
            return Ok(Some(Latched { frame, entry }));
        }
        self.slots.withdraw(&self.frames, entry);
        Ok(None)
    }

    /// Rule 5a: the latch is in memory before the page changes.
    pub(crate) fn latched(&self, frame: u32) {
        if self.host && !planted(Fault::LatchFlush) {
            self.persist_descriptor(frame);
        }
    }

    /// Releases `latched`: the latch first, then the slot's entry; then whoever waits is woken.
    pub(crate) fn unlatch(&self, latched: Latched, changed: bool) {
        self.frames.touch_latch(latched.frame);
        let changed = changed && !planted(Fault::LatchVersion);
        latch::release_exclusive(&self.frames.descriptor(latched.frame).latch, changed);
        if self.host {
            self.persist_descriptor(latched.frame);
        }
        self.slots.withdraw(&self.frames, latched.entry);
        self.parking.released(latched.frame);
    }

    pub(crate) fn unlatch_shared(&self, frame: u32) {
        if self.abandoned.as_raw().load(Ordering::Relaxed) {
            return;
        }
        self.frames.touch_latch(frame);
        latch::release_shared(&self.frames.descriptor(frame).latch);
        self.parking.released(frame);
    }

    /// Flushes a descriptor's line and waits for it.
    pub(crate) fn persist_descriptor(&self, frame: u32) {
        coherence::flush(self.frames.region(), self.frames.descriptor_at(frame), LINE);
    }

    /// Flushes a whole page and waits for it.
    pub(crate) fn persist_page(&self, frame: u32) {
        coherence::flush(self.frames.region(), self.frames.geometry().page_at(frame), PAGE_SIZE);
    }

    // ---- misses ----

    /// The frame that holds `page`, or did a moment ago; reads the page if there is none.
    #[inline]
    fn fetch(&self, page: PageId, hint: Hint, miss: &mut bool) -> Result<u32> {
        match self.hash.find(&self.frames, key_of(page)) {
            Some(frame) => Ok(frame),
            None => {
                *miss = true;
                self.load(page, hint, false)
            }
        }
    }

    /// Reads `page` into a frame, unless it is in one. With `build`, a page never written is zeros.
    #[cold]
    pub(crate) fn load(&self, page: PageId, hint: Hint, build: bool) -> Result<u32> {
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
    pub(crate) fn publish(&self, claimed: Latched, page: PageId) -> Result<Option<u32>> {
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
        self.lower.leave(hash::page_of(key));
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

    /// The frame, latched, is of no page any more.
    pub(crate) fn clear_key(&self, frame: u32) {
        let key = self.frames.descriptor(frame).key.swap(0, Ordering::AcqRel);
        if key != 0 {
            self.spaces.leave(frame, hash::page_of(key).space);
        }
    }

    /// The frame, latched, holds changes from `rec` on that storage lacks.
    #[inline]
    pub(crate) fn became_dirty(&self, frame: u32, rec: u64) {
        if !planted(Fault::DirtyUnlisted) {
            self.dirty.enter(frame, rec);
        }
    }

    fn fill(&self, claimed: Latched, page: PageId, hint: Hint, build: bool) -> Result<Trace> {
        let reading = self.under_way.read();
        let fetched = self.lower.read(page, hint)?;
        drop(reading);
        if fetched.from_storage {
            bump(&self.counters().pages_read, 1);
        }
        if fetched.read == PageRead::NeverWritten && !build {
            return Err(Error::corrupt(format!(
                "page {page} is asked for and was never written"
            )));
        }
        self.frames.page(claimed.frame).copy_in(0, &fetched.bytes);
        Ok(fetched.trace)
    }

    /// The claimed frame's page is whole: it is in use, as clean as its trace says, and on its list.
    fn settle(&self, latched: Latched, list: List, trace: &Trace) {
        let d = self.frames.descriptor(latched.frame);
        d.lsn.store(trace.lsn, Ordering::Relaxed);
        d.head.store(trace.head, Ordering::Relaxed);
        d.rec.store(trace.rec, Ordering::Relaxed);
        if trace.rec != 0 {
            self.became_dirty(latched.frame, trace.rec);
        }
        d.chain.store(trace.chain, Ordering::Relaxed);
        d.recency.store(0, Ordering::Relaxed);
        if self.host && !planted(Fault::LoadFlush) {
            self.persist_page(latched.frame);
        }
        set_state(d, FrameState::Used);
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

    fn claim_free(&self) -> Result<Option<Latched>> {
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
                // Somebody looks at a frame that held a page a moment ago: gone in no time.
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
                set_state(d, FrameState::Loading);
                self.call_evictor(&lists);
                return Ok(Some(latched));
            }
            // The list lied: a frame in use goes where it belongs.
            lists.put(List::Warm, frame);
            self.unlatch(latched, false);
        }
    }

    /// The first frame of the free list, else one never used (and whether it is one).
    fn next_free(&self, lists: &mut Lists<'_>) -> Option<(u32, bool)> {
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
        (touched < reserved).then_some((touched, true))
    }

    /// Frees a latched frame that is in no chain of the hash, and releases it.
    pub(crate) fn free(&self, latched: Latched) {
        let d = self.frames.descriptor(latched.frame);
        self.clear_key(latched.frame);
        d.lsn.store(0, Ordering::Relaxed);
        d.head.store(0, Ordering::Relaxed);
        d.rec.store(0, Ordering::Relaxed);
        d.chain.store(0, Ordering::Relaxed);
        d.recency.store(0, Ordering::Relaxed);
        set_state(d, FrameState::Free);
        self.lists().put(List::Free, latched.frame);
        self.unlatch(latched, true);
    }

    pub(crate) fn lists(&self) -> Lists<'_> {
        if planted(Fault::ListLock) {
            return Lists::alone(&self.frames);
        }
        Lists::hold(&self.frames, self.list_mutex.lock())
    }

    // ---- figures ----

    /// What the pool holds and has done.
    pub fn stats(&self) -> PoolStats {
        let header = self.frames.header();
        let reserved = header.frames_reserved.load(Ordering::Relaxed);
        let lists = self.lists();
        let in_use = lists.count(List::Warm) + lists.count(List::Cold);
        drop(lists);
        let counts = self.stats.sum();
        PoolStats {
            tier: self.kind.name(),
            bytes: self.frames.region().len(),
            frames: reserved,
            frames_in_use: in_use,
            frames_free: reserved.saturating_sub(in_use),
            bytes_read: counts.pages_read * PAGE_SIZE as u64,
            bytes_written: counts.pages_written * PAGE_SIZE as u64,
            checkpoint: Lsn::from_raw(self.checkpoint_lsn.load(Ordering::Relaxed)),
            counts,
            remote: self.lower.stats(),
        }
    }

    /// Tests: from now on destructors leave the region as it is, as if the process were dead.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// The storage below.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Looks for remote memory that was lost, and takes it into use again (kind `tiered`). A thread does so each
    /// second.
    pub fn tend_remote(&self) {
        self.lower.tend();
    }

    /// The region in which the frames lie.
    pub fn region(&self) -> &Arc<Region> {
        self.frames.region()
    }

    /// What the frame's descriptor says of its page's redo.
    pub(crate) fn trace_of(&self, frame: u32) -> Trace {
        let d = self.frames.descriptor(frame);
        Trace {
            lsn: d.lsn.load(Ordering::Relaxed),
            head: d.head.load(Ordering::Relaxed),
            rec: d.rec.load(Ordering::Relaxed),
            chain: d.chain.load(Ordering::Relaxed),
        }
    }

    /// The page of a frame in use.
    pub(crate) fn page_in(&self, frame: u32) -> Option<PageId> {
        let key = self.frames.descriptor(frame).key.load(Ordering::Relaxed);
        (key != 0).then(|| hash::page_of(key))
    }
}

/// Sets a frame's state, counts its generation up, and seals the descriptor.
pub(crate) fn set_state(d: &Descriptor, state: FrameState) {
    let generation = (d.state.load(Ordering::Relaxed) >> 8).wrapping_add(1);
    d.state.store(generation << 8 | state as u32, Ordering::Release);
    d.seal();
}

#[cfg(test)]
mod tests;
