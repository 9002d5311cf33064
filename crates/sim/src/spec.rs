//! What a world is to be: its seed, its pace, its topology, and what processor time costs in it.

use crate::topology::Topology;
use cenote_base::rt::Nanos;

/// How time goes and which thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// To find faults: one clock, the order of threads drawn by the seed, adversarial. vCPUs do not matter.
    Explore,
    /// To predict: each thread has its own clock, vCPUs are taken and queued for, events come in the order of time.
    Project,
}

/// What a host's machinery takes in [`Pace::Project`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machinery {
    /// A thread may be ahead of the next event by so much before it lets others catch up.
    pub slack: Nanos,
    /// From when a vCPU is free for a thread until the thread runs on it.
    pub context_switch: Nanos,
    /// A thread runs for so long while others wait for a vCPU.
    pub time_slice: Nanos,
}

impl Default for Machinery {
    fn default() -> Self {
        Self {
            slack: Nanos::from_micros(1),
            context_switch: Nanos::from_micros(1),
            time_slice: Nanos::from_millis(3),
        }
    }
}

/// What the machinery of a host takes, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// A thread may be ahead of the next event by so much.
    pub(crate) slack: u64,
    /// From when a vCPU is free for a thread until the thread runs.
    pub(crate) switch: u64,
    /// A thread runs for so long while others wait for a vCPU.
    pub(crate) slice: u64,
    /// A turn of a spinning loop, and of one that gives its turn away.
    pub(crate) relax: u64,
    pub(crate) yielded: u64,
}

/// What a world is to be.
#[derive(Debug, Clone)]
pub(crate) struct WorldSpec {
    pub(crate) seed: u64,
    pub(crate) pace: Pace,
    pub(crate) topology: Topology,
    pub(crate) trace: usize,
    pub(crate) step_limit: u64,
    pub(crate) stack_bytes: usize,
    pub(crate) machinery: Machinery,
}

impl WorldSpec {
    pub(crate) fn new(seed: u64, pace: Pace, topology: Topology) -> Self {
        Self {
            seed,
            pace,
            topology,
            trace: 0,
            step_limit: match pace {
                Pace::Explore => 200_000_000,
                Pace::Project => 1_000_000_000_000,
            },
            stack_bytes: 1 << 20,
            machinery: Machinery::default(),
        }
    }

    pub(crate) fn set_stacks(&mut self, bytes: usize) {
        self.stack_bytes = bytes.max(256 << 10);
    }

    /// What a preemption point costs.
    pub(crate) fn step_cost(&self) -> u64 {
        match self.pace {
            Pace::Explore => 25,
            Pace::Project => 0,
        }
    }

    pub(crate) fn costs(&self) -> Costs {
        let Machinery {
            slack,
            context_switch,
            time_slice,
        } = self.machinery;
        Costs {
            slack: slack.0,
            switch: context_switch.0,
            slice: time_slice.0,
            relax: 20,
            yielded: 500,
        }
    }
}
