//! A thread that spins while a sync runs, where that makes the sync shorter.
//!
//! On many virtual machines a processor that has gone idle is slow to see that the disk is done. A sync of 90 us was
//! measured to take 4 ms (a tick) when all threads slept, and 90 us when any thread was running. So during a sync one
//! thread, a waiter or else one kept for this, yields its processor again and again. That costs the threads that have
//! work nothing. It does so only while syncs are seen to be the shorter for it. The spinner tries the other way now and
//! then, ever more rarely while the answer stays the same.

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Event, Nanos};

/// Syncs between two tries of the other way, at first and at most.
const RETRY: u64 = 64;
const RETRY_MAX: u64 = 8192;
/// Syncs at the beginning that take turns between both ways.
const LEARNING: u64 = 8;
/// Spinning has to make a sync shorter by this factor (a half more).
const WORTH: (u64, u64) = (3, 2);
/// How long a thread spins at most, should the sync hang.
const SPIN_MAX: Nanos = Nanos::from_micros(1000);
/// The same in yields, where time stands still.
const TURNS_MAX: u32 = 20_000;

#[derive(Default)]
pub(super) struct SyncSpinner {
    /// Smoothed nanoseconds of a sync: without a spinning thread, with one.
    times: [AtomicU64; 2],
    syncs: AtomicU64,
    retry_at: AtomicU64,
    retry_every: AtomicU64,
    /// A sync is running during which a thread shall spin.
    wanted: AtomicBool,
    /// A thread spins.
    spins: AtomicBool,
    call: Event,
}

/// One sync under way.
pub(super) struct Sync {
    begun: Nanos,
    spin: bool,
    trial: bool,
}

impl SyncSpinner {
    /// A sync begins; `spare` says that a thread of [`SyncSpinner::serve`] can be called.
    pub fn begin(&self, spare: bool) -> Sync {
        let n = self.syncs.fetch_add(1, Ordering::Relaxed);
        let better = self.is_better();
        let trial = n >= LEARNING && n >= self.retry_at.load(Ordering::Relaxed);
        let spin = if n < LEARNING { n % 2 == 1 } else { better != trial };
        if spin {
            self.wanted.store(true, Ordering::Release);
            if spare && !self.spins.load(Ordering::Relaxed) {
                self.call.set();
            }
        }
        Sync {
            begun: rt::now(),
            spin,
            trial,
        }
    }

    /// The sync ended: notes how long it took.
    pub fn end(&self, sync: Sync) {
        self.wanted.store(false, Ordering::Release);
        let took = rt::now().since(sync.begun).raw();
        let before = self.is_better();
        let time = &self.times[usize::from(sync.spin)];
        let old = time.load(Ordering::Relaxed);
        let smooth = if old == 0 { took } else { old - old / 4 + took / 4 };
        time.store(smooth.max(1), Ordering::Relaxed);
        if sync.trial {
            self.plan_trial(self.is_better() == before);
        }
    }

    fn plan_trial(&self, confirmed: bool) {
        let every = self.retry_every.load(Ordering::Relaxed).max(RETRY);
        let every = if confirmed { (every * 2).min(RETRY_MAX) } else { RETRY };
        self.retry_every.store(every, Ordering::Relaxed);
        self.retry_at
            .store(self.syncs.load(Ordering::Relaxed) + every, Ordering::Relaxed);
    }

    fn is_better(&self) -> bool {
        let [alone, spinning] = [0, 1].map(|i| self.times[i].load(Ordering::Relaxed));
        spinning * WORTH.0 < alone * WORTH.1
    }

    /// Spins if the running sync wants it and no other thread does, until the sync or `waits` ends.
    pub fn spin(&self, waits: impl Fn() -> bool) {
        if !self.wanted.load(Ordering::Acquire) || self.spins.swap(true, Ordering::Acquire) {
            return;
        }
        let end = rt::now() + SPIN_MAX;
        for _ in 0..TURNS_MAX {
            if !self.wanted.load(Ordering::Acquire) || !waits() || rt::now() >= end {
                break;
            }
            rt::yield_now();
        }
        let was_spinning = self.spins.swap(false, Ordering::Release);
        assert!(was_spinning, "one thread at a time spins for a sync");
    }

    /// The body of a thread that spins for the syncs for which no waiter does.
    pub fn serve(&self, closing: &AtomicBool) {
        while !closing.load(Ordering::Acquire) {
            self.call.wait();
            self.call.reset();
            self.spin(|| true);
        }
    }

    /// Wakes the thread of [`SyncSpinner::serve`], so that it sees that it is to end.
    pub fn stop(&self) {
        self.call.set();
    }
}
