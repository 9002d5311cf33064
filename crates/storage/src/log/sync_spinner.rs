//! Keeping a processor awake while a sync runs, where that makes it shorter.
//!
//! On many virtual machines a processor that has gone idle is slow to see that the disk is done: a
//! sync of 90 us was measured to take 4 ms (a tick) when everything slept, and 90 us when any
//! thread was running. So during a sync one thread, a waiter or else one kept for this, gives its
//! turn away again and again, which costs nobody who has work to do anything, if, and only if,
//! syncs have been seen to be the shorter for it. Both ways are tried now and then, ever more rarely
//! while the answer stays the same.

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Event, Nanos};

/// Syncs between two tries of the other way, at first and at most.
const RETRY: u64 = 64;
const RETRY_MAX: u64 = 8192;
/// Syncs at the beginning that take turns between both ways.
const LEARNING: u64 = 8;
/// A company has to make a sync shorter by this factor (a half more).
const WORTH: (u64, u64) = (3, 2);
/// The longest company, should the sync hang.
const COMPANY_MAX: Nanos = Nanos::from_micros(1000);
/// The same in turns, where time stands still.
const TURNS_MAX: u32 = 20_000;

#[derive(Default)]
pub(super) struct SyncSpinner {
    /// Smoothed nanoseconds of a sync: without company, with it.
    times: [AtomicU64; 2],
    syncs: AtomicU64,
    retry_at: AtomicU64,
    retry_every: AtomicU64,
    /// A sync that wants company is running.
    wanted: AtomicBool,
    /// Somebody keeps it company.
    kept: AtomicBool,
    call: Event,
}

/// One sync under way.
pub(super) struct Sync {
    begun: Nanos,
    company: bool,
    trial: bool,
}

impl SyncSpinner {
    /// A sync begins; `spare` says that a thread of [`SyncSpinner::serve`] can be called.
    pub fn begin(&self, spare: bool) -> Sync {
        let n = self.syncs.fetch_add(1, Ordering::Relaxed);
        let better = self.is_better();
        let trial = n >= LEARNING && n >= self.retry_at.load(Ordering::Relaxed);
        let company = if n < LEARNING { n % 2 == 1 } else { better != trial };
        if company {
            self.wanted.store(true, Ordering::Release);
            if spare && !self.kept.load(Ordering::Relaxed) {
                self.call.set();
            }
        }
        Sync {
            begun: rt::now(),
            company,
            trial,
        }
    }

    /// It ended.
    pub fn end(&self, sync: Sync) {
        self.wanted.store(false, Ordering::Release);
        let took = rt::now().since(sync.begun).raw();
        let before = self.is_better();
        let time = &self.times[usize::from(sync.company)];
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
        let [alone, kept] = [0, 1].map(|i| self.times[i].load(Ordering::Relaxed));
        kept * WORTH.0 < alone * WORTH.1
    }

    /// Keeps the running sync company if it wants it and nobody else does, until it or `waits`
    /// ends.
    pub fn keep(&self, waits: impl Fn() -> bool) {
        if !self.wanted.load(Ordering::Acquire) || self.kept.swap(true, Ordering::Acquire) {
            return;
        }
        let end = rt::now() + COMPANY_MAX;
        for _ in 0..TURNS_MAX {
            if !self.wanted.load(Ordering::Acquire) || !waits() || rt::now() >= end {
                break;
            }
            rt::yield_now();
        }
        let was_kept = self.kept.swap(false, Ordering::Release);
        assert!(was_kept, "one thread at a time keeps a sync company");
    }

    /// The body of a thread that keeps syncs company for which no waiter does.
    pub fn serve(&self, closing: &AtomicBool) {
        while !closing.load(Ordering::Acquire) {
            self.call.wait();
            self.call.reset();
            self.keep(|| true);
        }
    }

    /// Wakes the thread of [`SyncSpinner::serve`], so that it sees that it is to end.
    pub fn stop(&self) {
        self.call.set();
    }
}
