//! The running thread and its time: all that a preemption point looks at, in cells of the machine's thread.
//!
//! In [`Pace::Explore`](crate::Pace::Explore) there is one clock for all; in [`Pace::Project`](crate::Pace::Project)
//! each thread has its own, a little ahead of the others at most. Both are read and moved here, without asking which. A
//! point adds to the clock and to the count of steps, and compares both with a bound that the schedule has set
//! ([`Fast::due`]): unless one is reached, that is all.
//!
//! That is the world's true time, in which its events happen. A host's own clock drifts from it ([`host_now`]):
//! programs measure by theirs, and what stands for a network, a card or a device by the world's.

use cenote_base::rt::Nanos;
use std::cell::Cell;

/// What time it is when a world begins.
pub(crate) const START: Nanos = Nanos::from_secs(1);

/// What a preemption point looks at, and nothing more.
pub(crate) struct Fast {
    /// The running thread's time.
    pub(crate) now: Cell<u64>,
    /// The time from which on a point asks the schedule.
    pub(crate) limit: Cell<u64>,
    /// Points passed, by all threads.
    pub(crate) steps: Cell<u64>,
    /// The step at which a point asks the schedule.
    pub(crate) stop: Cell<u64>,
    /// What a point costs.
    pub(crate) step_cost: Cell<u64>,
    pub(crate) thread: Cell<usize>,
    pub(crate) slot: Cell<usize>,
    pub(crate) host: Cell<usize>,
    /// What the host's clock gains in a million.
    pub(crate) drift: Cell<i32>,
    pub(crate) process: Cell<u32>,
    /// The vCPU that the running thread is on, as lines name their owner ([`crate::memory::owner`]).
    pub(crate) owner: Cell<u16>,
    /// Memory is modelled: accesses are announced.
    pub(crate) observes: Cell<bool>,
    /// The view that the last touched atomic was in: first address, length.
    pub(crate) view: Cell<(usize, usize)>,
    /// From the first address of the running host's views, bytes to the end of the last: most atomics are outside.
    pub(crate) views: Cell<(usize, usize)>,
}

thread_local! {
    static FAST: Fast = const {
        Fast {
            now: Cell::new(0),
            limit: Cell::new(0),
            steps: Cell::new(0),
            stop: Cell::new(0),
            step_cost: Cell::new(0),
            thread: Cell::new(0),
            slot: Cell::new(0),
            host: Cell::new(0),
            drift: Cell::new(0),
            process: Cell::new(0),
            owner: Cell::new(crate::memory::owner(0)),
            observes: Cell::new(false),
            view: Cell::new((0, 0)),
            views: Cell::new((0, 0)),
        }
    };
}

/// Calls `f` with the cells. (`LocalKey::with` is no inline function, and would be a call at each point.)
#[inline(always)]
pub(crate) fn fast<T>(f: impl FnOnce(&Fast) -> T) -> T {
    FAST.try_with(f).expect("cells without a destructor")
}

impl Fast {
    /// Counts a point; whether the schedule is to be asked.
    #[inline(always)]
    pub(crate) fn due(&self) -> bool {
        let now = self.now.get() + self.step_cost.get();
        let steps = self.steps.get() + 1;
        self.now.set(now);
        self.steps.set(steps);
        now >= self.limit.get() || steps >= self.stop.get()
    }
}

/// Parts that a drift is counted in.
const MILLION: u128 = 1_000_000;

/// How far a host's clock goes in a million of the world's nanoseconds.
fn rate() -> u128 {
    fast(|f| (MILLION as i64 + i64::from(f.drift.get())) as u128)
}

fn span(of: u128) -> Nanos {
    Nanos(u64::try_from(of).unwrap_or(u64::MAX))
}

/// How far a host's clock has gone in so many nanoseconds of the world. (In one word, where that holds it: dividing two
/// takes ten times as long, and threads that wait ask for the time at each turn.)
fn drifted(of_world: u64) -> u64 {
    match of_world.checked_mul(rate() as u64) {
        Some(parts) => parts / MILLION as u64,
        None => span(u128::from(of_world) * rate() / MILLION).0,
    }
}

/// What the clock of the running thread's host shows: all clocks agree when a world begins, and go apart from then on.
#[inline]
pub fn host_now() -> Nanos {
    let now = now();
    match fast(|f| f.drift.get()) {
        0 => now,
        _ => START + Nanos(drifted(now.since(START).0)),
    }
}

/// How long the world takes until the running host's clock has gone so far, or a nanosecond further.
pub fn world_span(of_host: Nanos) -> Nanos {
    match fast(|f| f.drift.get()) {
        0 => of_host,
        _ => span((u128::from(of_host.0) * MILLION).div_ceil(rate()) + 1),
    }
}

/// How far the running host's clock goes while the world takes so long, or a nanosecond further.
pub fn host_span(of_world: Nanos) -> Nanos {
    match fast(|f| f.drift.get()) {
        0 => of_world,
        _ => span((u128::from(of_world.0) * rate()).div_ceil(MILLION) + 1),
    }
}

/// The running thread's time: the world's, whatever its host's clock shows.
#[inline]
pub fn now() -> Nanos {
    Nanos(fast(|f| f.now.get()))
}

/// Makes `time` pass for the running thread, which keeps its vCPU: a memory stall, or work. No preemption point.
#[inline]
pub fn charge(time: Nanos) {
    fast(|f| {
        f.now.set(f.now.get() + time.0);
    });
}

/// The running thread's number, in the order of starting, within its world.
#[inline]
pub fn thread() -> usize {
    fast(|f| f.thread.get())
}

/// The running thread's host; the number of hosts if it runs outside of all.
#[inline]
pub fn host() -> usize {
    fast(|f| f.host.get())
}

/// The running thread's process; 0 outside of all hosts.
#[inline]
pub fn process() -> u32 {
    fast(|f| f.process.get())
}

/// The running thread's slot, within its process.
#[inline]
pub(crate) fn slot() -> usize {
    fast(|f| f.slot.get())
}

/// The running thread's vCPU, as an owner of lines.
#[inline]
pub(crate) fn owner() -> u16 {
    fast(|f| f.owner.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drifting_clock_shows_the_same_by_one_word_and_by_two() {
        for drift in [-500, -1, 0, 7, 500] {
            fast(|f| f.drift.set(drift));
            let least_of_two = u64::MAX / rate() as u64 + 1;
            for at in [0, 1, 999_999, 1_000_000, least_of_two - 1, least_of_two, 1 << 50] {
                let shown = span(u128::from(at) * rate() / MILLION).0;
                assert_eq!(drifted(at), shown, "{at}, {drift} in a million");
            }
        }
        fast(|f| f.drift.set(0));
    }
}
