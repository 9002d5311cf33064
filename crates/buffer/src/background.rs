//! The pool's threads.
//!
//! | thread | keeps | woken by |
//! |---|---|---|
//! | `pool-reserve` | memory reserved ahead of the frames that are handed out; what was kept over a restart mapped; all of it in huge pages; then ends | start |
//! | `pool-evict` | a reserve of free frames | a claim that finds it half used |
//! | `pool-flush` | the log short: write-back by age, checkpoints; first a look at the frames kept | time, and commits that make it long |
//! | `pool-follow` | a reader at what the database's server has changed, in place of `pool-flush` | storage nodes |
//! | `pool-clean` | slots of remote memory ready to be given: pages there that storage lacks changes of are written back | time, and evictions that were given many |
//! | `pool-prefetch` | prefetched pages | [`Pool::prefetch`] |
//! | `pool-remote` | the way to remote memory, and to the frames of a pod's server; what readers are told | time |
//! | `pool-hash` | the hash that a start has found written back, for readers on other hosts; then ends | start |
//!
//! An error in the background (a full disk, a failed sync) is not lost: the log or the page store is poisoned or full,
//! and threads that change pages are told. The threads try again, slowly.

use std::sync::Arc;

use cenote_base::PAGE_SIZE;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, JoinHandle, Nanos};
use cenote_fabric::coherence;

use crate::index::FrameIndex;
use crate::layout::LINE;
use crate::pool::Pool;

/// A checkpoint is taken at least this often while there is something to note.
const CHECKPOINT_EVERY: Nanos = Nanos::from_millis(30_000);
/// How often remote memory that was lost is looked for.
const REMOTE_TURN: Nanos = Nanos::from_millis(1000);
/// How often its readers are told what has changed.
const TELL_TURN: Nanos = Nanos::from_millis(10);
/// Bytes mapped in advance at once.
const MAP_STEP: u64 = 8 << 20;
/// Bytes of the hash that are written back at once.
const HASH_STEP: usize = 1 << 20;
/// A step of gathering huge pages that takes longer than this has copied.
const COPIED: Nanos = Nanos::from_micros(200);
/// Between two looks for what readers have asked for.
const FILL_TURN: Nanos = Nanos::from_millis(500);
/// Before an error's cause is met again.
const PAUSE: Nanos = Nanos::from_millis(200);

/// Starts them.
pub(crate) fn start(pool: &Arc<Pool>) -> Vec<JoinHandle<()>> {
    pool.signals.reserving.store(true, Ordering::Release);
    let spawn = |name: &str, body: fn(&Pool)| {
        let pool = Arc::clone(pool);
        rt::spawn(name, move || body(&pool))
    };
    let mut threads = vec![
        spawn("pool-reserve", Pool::serve_reserve),
        spawn("pool-evict", Pool::serve_evict),
        spawn("pool-prefetch", Pool::serve_prefetches),
    ];
    if pool.hash.writes_back() {
        threads.push(spawn("pool-hash", Pool::write_hash_back));
    }
    match pool.is_reader() {
        true => threads.push(spawn("pool-follow", Pool::serve_follow)),
        false => threads.push(spawn("pool-flush", Pool::serve_flush)),
    }
    if pool.lower.needs_maintenance() {
        threads.push(spawn("pool-remote", Pool::serve_remote));
    }
    if pool.lower.needs_cleaning() {
        threads.push(spawn("pool-clean", Pool::serve_clean));
    }
    if pool.lower.has_readers() {
        threads.push(spawn("pool-fill", Pool::serve_fill));
    }
    if pool.lower.scales() {
        threads.push(spawn("pool-scale", Pool::serve_scale));
    }
    threads
}

impl Pool {
    pub(crate) fn is_stopping(&self) -> bool {
        self.signals.stop.load(Ordering::Acquire)
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.signals.stop.store(true, Ordering::Release);
        self.signals.reserve.set();
        self.signals.evict.set();
        self.signals.flush.set();
        self.signals.prefetch.set();
        self.signals.clean.set();
        self.signals.remote.set();
        self.signals.scale.set();
        self.signals.fill.set();
    }

    fn serve_reserve(&self) {
        let (geometry, kept) = (*self.frames.geometry(), FrameIndex::new(self.touched()));
        while !self.is_stopping() && self.reserve_on_demand() {}
        self.signals.reserving.store(false, Ordering::Release);
        self.map_kept(geometry.descriptors_at, geometry.page_at(kept));
        self.use_huge_pages(self.frames.region().reserved());
    }

    /// Has the region lie in huge pages, at a quarter of one processor. That there are none to be had is no error.
    fn use_huge_pages(&self, end: u64) {
        let mut at = 0;
        while at < end && !self.is_stopping() && !rt::simulated() {
            let began = rt::now();
            let Ok(next) = self.frames.region().collapse_step(at, end) else {
                return;
            };
            at = next;
            let took = rt::now().since(began);
            if took > COPIED {
                // A step of a busy machine takes seconds: the end does not wait for three times that.
                self.signals.reserve.wait_timeout(took + took + took);
            }
        }
    }

    /// Maps the part of a region that a former process left in use: met one by one, its pages cost a fault for every 4
    /// KiB, ten times what this takes. What cannot be mapped in advance is mapped when it is used.
    fn map_kept(&self, from: u64, to: u64) {
        let mut at = from;
        while at < to && !self.is_stopping() {
            let length = MAP_STEP.min(to - at);
            if self.frames.region().populate(at, length).is_err() {
                return;
            }
            at += length;
        }
    }

    /// Reserves a step of what is not reserved yet and hands out its frames; says whether there was any. Memory that
    /// is not to be had is said once.
    pub(crate) fn reserve_on_demand(&self) -> bool {
        let end = self.frames.geometry().end();
        if self.frames.region().reserved() >= end || self.signals.reserve_failed.load(Ordering::Relaxed) {
            return false;
        }
        match self.frames.region().reserve_step(end) {
            Ok(_) => self.note_reserved(),
            // Its keeper detaches it, and then there may be room.
            Err(_) if self.frames.region().has_mirror_failed() => return false,
            Err(error) => {
                self.signals.reserve_failed.store(true, Ordering::Relaxed);
                eprintln!("cenote: memory for the buffer pool: {error}; going on with what there is");
            }
        }
        true
    }

    /// Frames below the region's reserved bytes may be used.
    pub(crate) fn note_reserved(&self) {
        let geometry = self.frames.geometry();
        let bytes = self.frames.region().reserved().saturating_sub(geometry.pages_at);
        let frames = (bytes / PAGE_SIZE as u64).min(geometry.frames as u64) as u32;
        self.frames.header().frames_reserved.store(frames, Ordering::Release);
    }

    fn serve_evict(&self) {
        while !self.is_stopping() {
            self.signals.evict.wait();
            self.signals.evict.reset();
            match self.refill() {
                Ok(true) => {}
                Ok(false) => rt::sleep(Nanos::from_millis(1)),
                Err(_) => rt::sleep(PAUSE),
            }
        }
    }

    fn serve_flush(&self) {
        let mut last = rt::now();
        while !self.is_stopping() && self.sweep_part() {}
        while !self.is_stopping() {
            self.signals.flush.wait_timeout(self.flush_turn);
            self.signals.flush.reset();
            let mut done = self.keep_log_short();
            if done.is_ok() && rt::now().since(last) > CHECKPOINT_EVERY {
                last = rt::now();
                done = self.checkpoint().map(|_| ());
            }
            if done.is_err() && !self.is_stopping() {
                rt::sleep(PAUSE);
            }
        }
    }

    /// Writes back the hash that a start has found or built: a hint for readers on other hosts.
    fn write_hash_back(&self) {
        let (region, geometry) = (self.frames.region(), *self.frames.geometry());
        let touched = u64::from(self.touched().min(geometry.frames)) * LINE as u64;
        let buckets = u64::from(geometry.buckets) * 4;
        for (from, len) in [(geometry.buckets_at, buckets), (geometry.descriptors_at, touched)] {
            for at in (0..len).step_by(HASH_STEP) {
                if self.is_stopping() {
                    return;
                }
                coherence::flush(region, from + at, (len - at).min(HASH_STEP as u64) as usize);
            }
        }
    }

    fn serve_remote(&self) {
        let turn = if self.overtaken.is_some() {
            TELL_TURN
        } else {
            REMOTE_TURN
        };
        let mut looked = rt::now();
        while !self.signals.remote.wait_timeout(turn) && !self.is_stopping() {
            self.tell_readers();
            if rt::now().since(looked) >= REMOTE_TURN {
                looked = rt::now();
                self.lower.maintain();
            }
        }
    }

    fn serve_clean(&self) {
        while !self.is_stopping() {
            self.signals.clean.wait_timeout(self.flush_turn);
            self.signals.clean.reset();
            if self.clean_remote().is_err() && !self.is_stopping() {
                rt::sleep(PAUSE);
            }
        }
    }

    fn serve_scale(&self) {
        while !self.signals.scale.wait_timeout(REMOTE_TURN) && !self.is_stopping() {
            self.lower.scale(&|| self.is_stopping());
        }
    }

    /// What fails is said by the threads that need it.
    fn serve_fill(&self) {
        while !self.signals.fill.wait_timeout(FILL_TURN) && !self.is_stopping() {
            let _ = self.fill_remote();
        }
    }

    fn serve_prefetches(&self) {
        while !self.is_stopping() {
            self.signals.prefetch.wait();
            self.signals.prefetch.reset();
            self.read_ahead();
        }
    }
}
