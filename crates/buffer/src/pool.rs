//! The pool: what its parts share, and latches of frames.
//!
//! Invariants:
//! - a frame's page and key change only under its exclusive latch, and its version rises then;
//! - one page is in at most one frame: the key is published under its bucket's lock;
//! - a frame without a page has key 0 and is in no chain of the hash.
//!
//! Lock order: see [`crate::lists`]; frames are latched parent before child, left before right, a space's
//! header after its trees' pages, undo pages last (the engine's duty). Write-back and eviction only try latches.

use std::sync::{Arc, OnceLock, Weak};

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::seam::Seam;
use cenote_base::rt::{Event, Local, Mutex, Nanos};
use cenote_base::{Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::observe::{Access, Observer};
use cenote_fabric::{Region, coherence};
use cenote_storage::Storage;

use crate::access_trace::{AccessObserver, Observed, PageAccess};
use crate::changed::ChangedSectors;
use crate::config::{Kept, Kind};
use crate::dirty::DirtyFrames;
use crate::expectation::Expectation;
use crate::filling::Filling;
use crate::frame::Frames;
use crate::hash::{self, PageHash};
use crate::in_flight::TransfersInFlight;
use crate::index::FrameIndex;
use crate::interrupt::InterruptCell;
use crate::latch::{self, Owner, Parking};
use crate::layout::{Descriptor, FrameState, LINE};
use crate::lists::{List, Lists};
use crate::lower::{Lower, Trace};
use crate::need::NeedCell;
use crate::overtaken::OvertakenFrames;
use crate::parts::Parts;
use crate::remote::{RemotePart, RemoteSize};
use crate::slots::{Latched, Slots};
use crate::spaces::SpaceFrames;
use crate::stats::{Counters, PoolStats, Stats};
use crate::sweep::Sweep;
use crate::words::LsnWord;

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
    /// What storage lacks of each frame's page.
    pub(crate) changed: ChangedSectors,
    pub(crate) parts: Local<Mutex<Vec<Parts>>>,
    pub(crate) needs: Local<NeedCell>,
    /// Whether threads bring what they are about to ask for, and which expect to miss some.
    pub(crate) brings: bool,
    pub(crate) expectations: Local<Expectation>,
    /// What hears of page accesses, if anything does.
    pub(crate) observed: Observed,
    /// What another thread stops a statement by, for the thread that runs it.
    pub(crate) interrupts: Local<InterruptCell>,
    /// Transfers between frames and storage.
    pub(crate) under_way: TransfersInFlight,
    pub(crate) signals: Signals,
    pub(crate) checkpoint_lsn: LsnWord,
    pub(crate) checkpoint_mutex: Mutex<()>,
    /// Held by the thread that moves a reader on.
    pub(crate) following: Mutex<()>,
    /// Frames with changes that readers of remote memory have not been told of, where there may be some.
    pub(crate) overtaken: Option<OvertakenFrames>,
    /// Held by the thread that tells them, and by one that gives pages up.
    pub(crate) telling: Mutex<()>,
    /// Held by the thread that fills remote memory.
    pub(crate) filling: Mutex<Filling>,
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
    /// Memory is still being reserved: frames will come without a thread giving one up.
    pub reserving: AtomicBool,
    /// No more memory can be reserved: the pool goes on with what there is.
    pub reserve_failed: AtomicBool,
    /// The end, for the thread that reserves memory.
    pub reserve: Event,
    /// Clean free frames run low.
    pub evict: Event,
    /// The log grows long, or a thread wants a checkpoint.
    pub flush: Event,
    /// Pages to read ahead.
    pub prefetch: Event,
    /// Slots of remote memory that are ready to be given run low.
    pub clean: Event,
    /// The end, for the thread that looks after remote memory.
    pub remote: Event,
    pub scale: Event,
    /// The end, for the thread that fills it for readers.
    pub fill: Event,
    pub wanted: Mutex<Vec<PageId>>,
}

impl Pool {
    // ---- latches ----

    /// Waits until `attempt` gives something; `None` if the frame is another page's by then and `attempt` still gives
    /// nothing.
    ///
    /// No thread waits for the latch of a page that it does not want: the pages that a caller holds and the one that it
    /// waits for are in the order of latching, but the page that moved into the frame meanwhile need not be, and its
    /// holder may wait for the caller.
    pub(crate) fn wait_for<T>(&self, frame: FrameIndex, key: u64, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let d = self.frames.descriptor(frame);
        self.parking.until(frame, || match attempt() {
            Some(done) => Some(Some(done)),
            // A frame changes its page under its latch alone, so waiting threads are woken after that.
            None => (d.key.load(Ordering::Relaxed) != key).then_some(None),
        })
    }

    /// Latches `frame` exclusively, if it holds the page of `key`.
    pub(crate) fn latch_exclusive(&self, frame: FrameIndex, key: u64) -> Result<Option<Latched>> {
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

    /// Latches `frame` exclusively, whatever it holds, unless another thread does.
    pub(crate) fn try_latch_exclusive(&self, frame: FrameIndex) -> Result<Option<Latched>> {
        let entry = self.slots.announce(&self.frames, frame)?;
        if latch::try_exclusive(&self.frames.descriptor(frame).latch, self.owner) {
            self.latched(frame);
            return Ok(Some(Latched { frame, entry }));
        }
        self.slots.withdraw(&self.frames, entry);
        Ok(None)
    }

    /// Rule 5a: the latch is in memory before the page changes.
    pub(crate) fn latched(&self, frame: FrameIndex) {
        if self.host && !planted(Fault::LatchFlush) {
            self.persist_descriptor(frame);
        }
    }

    /// Releases `latched`: the latch first, then the slot's entry; then waiting threads are woken.
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

    pub(crate) fn unlatch_shared(&self, frame: FrameIndex) {
        if self.abandoned.as_raw().load(Ordering::Relaxed) {
            return;
        }
        self.frames.touch_latch(frame);
        latch::release_shared(&self.frames.descriptor(frame).latch);
        self.parking.released(frame);
    }

    // What becomes of a page is promised by the log's mark alone, which is waited for: up to there the order counts.

    /// Flushes a descriptor's line, before what is flushed later.
    pub(crate) fn persist_descriptor(&self, frame: FrameIndex) {
        coherence::flush_in_order(self.frames.region(), self.frames.descriptor_at(frame), LINE);
    }

    /// Flushes a whole page, before what is flushed later.
    pub(crate) fn persist_page(&self, frame: FrameIndex) {
        coherence::flush_in_order(self.frames.region(), self.frames.geometry().page_at(frame), PAGE_SIZE);
    }

    // ---- what all parts use ----

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
    pub(crate) fn announce<O: Observer>(&self, frame: FrameIndex, observer: O, descriptor: Access) {
        if O::ON && observer.is_on() {
            self.announce_observed(frame, observer, descriptor);
        }
    }

    /// A simulated device has been told by the atomics themselves.
    #[inline(never)]
    fn announce_observed<O: Observer>(&self, frame: FrameIndex, observer: O, descriptor: Access) {
        let (region, geometry) = (self.frames.region(), self.frames.geometry());
        if !region.is_simulated() {
            let key = self.frames.descriptor(frame).key.load(Ordering::Relaxed);
            let bucket = geometry.buckets_at + 4 * self.hash.bucket(key) as u64;
            observer.touch(region, bucket, 4, Access::Read);
            observer.touch(region, self.frames.descriptor_at(frame), LINE as u32, descriptor);
        }
    }

    pub(crate) fn lists(&self) -> Lists<'_> {
        if planted(Fault::ListLock) {
            return Lists::alone(&self.frames);
        }
        Lists::hold(&self.frames, self.list_mutex.lock())
    }

    /// The frame, latched, is of no page any more.
    pub(crate) fn clear_key(&self, frame: FrameIndex) {
        let key = self.frames.descriptor(frame).key.swap(0, Ordering::AcqRel);
        if key != 0 {
            self.spaces.leave(frame, hash::page_of(key).space);
        }
    }

    /// The frame, latched, holds changes from `rec` on that storage lacks.
    #[inline]
    pub(crate) fn became_dirty(&self, frame: FrameIndex, rec: Lsn) {
        if !planted(Fault::DirtyUnlisted) {
            self.dirty.enter(frame, rec);
        }
    }

    // ---- accesses ----

    /// From here on `observer` hears of every page that is asked for; `None`: nothing does.
    pub fn observe_accesses(&self, observer: Option<Arc<dyn AccessObserver>>) {
        self.observed.set(observer);
    }

    /// `page` is about to be asked for.
    #[inline(always)]
    pub(crate) fn asked(&self, page: PageId, access: PageAccess) {
        if self.observed.is_on() {
            self.observed.tell(page, access);
        }
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
            checkpoint: self.checkpoint_lsn.load(Ordering::Relaxed),
            counts,
            remote: self.lower.stats(),
            pod: self.lower.pod_stats(),
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
    pub fn maintain_remote(&self) {
        self.lower.maintain();
    }

    /// Has remote memory grow or shrink, if it is to (kind `tiered`). A thread does so each second.
    pub fn scale_remote(&self) {
        self.lower.scale(&|| false);
    }

    /// Lets remote memory grow or shrink to a size (kind `tiered`); a thread carries it out.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none, or it has one size.
    pub fn set_remote_size(&self, size: RemoteSize) -> Result<()> {
        self.lower.set_remote_size(size)
    }

    /// The parts of remote memory (kind `tiered`).
    pub fn remote_parts(&self) -> Vec<RemotePart> {
        self.lower.remote_parts()
    }

    /// Its memory, and what else the pool of the server keeps that this process becomes: of a reader whose threads have
    /// ended.
    pub fn kept(&self) -> Kept {
        Kept {
            region: Arc::clone(self.frames.region()),
            known: self.lower.known_changes(),
        }
    }

    /// The region in which the frames lie.
    pub fn region(&self) -> &Arc<Region> {
        self.frames.region()
    }

    /// What the frame's descriptor says of its page's redo.
    pub(crate) fn trace_of(&self, frame: FrameIndex) -> Trace {
        let d = self.frames.descriptor(frame);
        Trace {
            lsn: d.lsn.load(Ordering::Relaxed),
            head: d.head.load(Ordering::Relaxed),
            rec: d.rec.load(Ordering::Relaxed),
            chain: d.chain.load(Ordering::Relaxed),
            in_storage: self.changed.in_storage(frame),
        }
    }

    /// Whether the page of a frame was asked for, and not merely passed by.
    pub(crate) fn is_warm(&self, frame: FrameIndex) -> bool {
        List::of(self.frames.descriptor(frame).list_prev.load(Ordering::Relaxed)) == List::Warm
    }

    /// The page of a frame in use.
    pub(crate) fn page_in(&self, frame: FrameIndex) -> Option<PageId> {
        let key = self.frames.descriptor(frame).key.load(Ordering::Relaxed);
        (key != 0).then(|| hash::page_of(key))
    }
}

/// Moves a latched frame from one of the states `from` to `to`, as [`FrameState`] draws it.
pub(crate) fn transition(d: &Descriptor, from: &[FrameState], to: FrameState) {
    let before = FrameState::of(d.state.load(Ordering::Relaxed));
    assert!(
        before.is_some_and(|before| from.contains(&before)),
        "a frame goes from {before:?} to {to:?}"
    );
    set_state(d, to);
}

/// Sets a frame's state whatever it was, in recovery; counts its generation up, and seals the descriptor.
pub(crate) fn set_state(d: &Descriptor, state: FrameState) {
    let generation = (d.state.load(Ordering::Relaxed) >> 8).wrapping_add(1);
    d.state.store(generation << 8 | state as u32, Ordering::Release);
    d.seal();
}

#[cfg(test)]
mod tests;
