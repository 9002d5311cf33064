//! Faults of storage drawn from a seed, for worlds that run for a while.

use cenote_base::random::Random;
use cenote_base::rt::Nanos;

/// What goes wrong with files, each with its probability for one operation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FaultPlan {
    /// A sync fails, and what it was for is lost for good.
    pub failed_sync: f64,
    /// A read fails with EIO.
    pub failed_read: f64,
    /// A write fails with EIO, and changes nothing.
    pub failed_write: f64,
    /// A write finds no space.
    pub full: f64,
    /// A read brings one bit flipped; the medium is right.
    pub flipped_read: f64,
    /// A write leaves one bit flipped on the medium.
    pub flipped_write: f64,
    /// A read or write is cut short, as systems may; callers go on.
    pub short: f64,
    /// An operation takes [`FaultPlan::stall_time`] longer.
    pub stall: f64,
    /// See [`FaultPlan::stall`].
    pub stall_time: Nanos,
    /// Files whose paths hold this text are hit; empty: all.
    pub files: String,
}

impl FaultPlan {
    /// Stalls and short transfers: what a correct program does not notice but in time. As strong as `seed` draws.
    pub fn harmless(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut pick = |of: [f64; 4]| random.pick(&of);
        Self {
            short: pick([0.0, 0.0, 0.01, 0.3]),
            stall: pick([0.0, 0.0, 0.001, 0.02]),
            stall_time: Nanos(pick([1e5, 1e6, 1e7, 1e8]) as u64),
            ..Self::default()
        }
    }

    /// As [`FaultPlan::harmless`], and one kind of failure that a program must report, rarely.
    pub fn failing(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xFA11);
        let rate = random.pick(&[0.0005, 0.002, 0.01]);
        let mut plan = Self::harmless(seed);
        match random.below(4) {
            0 => plan.failed_sync = rate,
            1 => plan.failed_read = rate,
            2 => plan.failed_write = rate,
            _ => plan.full = rate,
        }
        plan
    }
}

/// How often each fault has struck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Syncs that failed.
    pub failed_syncs: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Writes that found no space.
    pub full: u64,
    /// Reads that brought a flipped bit.
    pub flipped_reads: u64,
    /// Writes that left a flipped bit.
    pub flipped_writes: u64,
    /// Transfers cut short.
    pub short: u64,
    /// Operations that took longer.
    pub stalls: u64,
}

/// A plan with the generator that draws for it.
#[derive(Debug, Default)]
pub(super) struct Draws {
    pub(super) plan: FaultPlan,
    random: Random,
    pub(super) met: FaultCounts,
}

impl Draws {
    pub(super) fn new(plan: FaultPlan, seed: u64) -> Self {
        Self {
            plan,
            random: Random(seed),
            met: FaultCounts::default(),
        }
    }

    fn hit(&mut self, path: &str, probability: f64) -> bool {
        path.contains(&self.plan.files) && self.random.chance(probability)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// Whether a fault strikes an operation on a file; counts it. Which one is told by its rate and its counter.
    pub(super) fn strikes(
        &mut self,
        path: &str,
        rate: impl FnOnce(&FaultPlan) -> f64,
        count: impl FnOnce(&mut FaultCounts) -> &mut u64,
    ) -> bool {
        let struck = self.hit(path, rate(&self.plan));
        *count(&mut self.met) += u64::from(struck);
        struck
    }

    /// How much longer an operation takes.
    pub(super) fn stalls(&mut self, path: &str) -> Nanos {
        match self.strikes(path, |p| p.stall, |c| &mut c.stalls) {
            true => self.plan.stall_time,
            false => Nanos::ZERO,
        }
    }
}
