//! When remote memory grows and shrinks by itself: by what a slab more would save, and what the last one saves.
//!
//! ```text
//!   pages in remote memory, by when they were used last      pages that lost their slot
//!   ┌───────────────────────────────┬──────────────────┐     ┌──────────────────┐
//!   │                               │ a slab's worth   │     │ a slab's worth   │
//!   └───────────────────────────────┴──────────────────┘     └──────────────────┘
//!                          hits here: what one slab less      misses here: what one more
//!                          would cost                         would save
//! ```
//!
//! Both are counted, in pages a second, and compared with what a slab has to be worth. A hit ratio alone would not say
//! it: one of 99% may leave a slab's worth of pages that are asked for all the time, and one of 50% none that a slab
//! would hold.

use cenote_base::rt::Nanos;

use super::source::Growth;

/// How often it decides.
pub const PERIOD: Nanos = Nanos::from_secs(2);
/// So many times in a row the last slab is worth too little before it goes.
const IDLE_PERIODS: u32 = 30;
/// A slab that is worth this part of what a new one has to be worth stays.
const KEEPS: f64 = 0.5;

/// What was counted in a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub period: Nanos,
    /// Pages read from storage that a slab more would have had.
    pub misses_of_a_slab: u64,
    /// Pages read that would not have been there with a slab less.
    pub hits_of_a_slab: u64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Stay,
    Grow,
    Shrink,
}

/// See the module.
#[derive(Debug)]
pub struct Policy {
    /// Pages a second that a slab has to save.
    worth: f64,
    idle: u32,
}

impl Policy {
    /// By the worth of a GiB.
    pub fn new(growth: Growth) -> Self {
        Self {
            worth: f64::from(growth.worth) * growth.slab as f64 / (1u64 << 30) as f64,
            idle: 0,
        }
    }

    /// What the period that is over says.
    pub fn step(&mut self, sample: Sample) -> Step {
        let seconds = sample.period.as_secs_f64().max(1e-3);
        if sample.misses_of_a_slab as f64 / seconds >= self.worth {
            self.idle = 0;
            return Step::Grow;
        }
        self.idle = match sample.hits_of_a_slab as f64 / seconds < self.worth * KEEPS {
            true => self.idle + 1,
            false => 0,
        };
        if self.idle < IDLE_PERIODS {
            return Step::Stay;
        }
        self.idle = 0;
        Step::Shrink
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::new(Growth {
            slab: 1 << 28,
            most: 8,
            worth: 100,
        })
    }

    fn sample(misses: u64, hits: u64) -> Sample {
        Sample {
            period: PERIOD,
            misses_of_a_slab: misses,
            hits_of_a_slab: hits,
        }
    }

    #[test]
    fn a_slab_is_taken_for_what_it_saves() {
        let mut policy = policy();
        assert_eq!(policy.step(sample(49, 1000)), Step::Stay, "24.5 a second, of 25");
        assert_eq!(policy.step(sample(50, 0)), Step::Grow);
    }

    #[test]
    fn a_slab_goes_when_it_saved_too_little_for_long() {
        let mut policy = policy();
        for _ in 1..IDLE_PERIODS {
            assert_eq!(policy.step(sample(0, 24)), Step::Stay);
        }
        assert_eq!(policy.step(sample(0, 25)), Step::Stay, "it begins anew");
        for _ in 1..IDLE_PERIODS {
            assert_eq!(policy.step(sample(0, 24)), Step::Stay);
        }
        assert_eq!(policy.step(sample(0, 24)), Step::Shrink);
        assert_eq!(policy.step(sample(0, 0)), Step::Stay, "one at a time");
    }

    /// Between what a new slab has to be worth and what an old one has to, nothing changes.
    #[test]
    fn it_does_not_swing() {
        let mut policy = policy();
        for _ in 0..IDLE_PERIODS * 3 {
            assert_eq!(policy.step(sample(49, 26)), Step::Stay);
        }
    }
}
