//! One host and nothing else: the body is a process of it. What most tests of one instance need.

use crate::run::{self, BodyPlace, Outcome};
use crate::spec::{Pace, WorldSpec};
use crate::topology::Topology;
use crate::world::World;
use cenote_base::rt::os;
use cenote_testkit::faulty::MemFs;
use std::ops::Range;

/// A run to be: its seed and its world.
#[derive(Debug, Clone)]
pub struct Sim {
    world: WorldSpec,
    files: MemFs,
}

/// Runs `body` with `seed`; what it returned, and how it went. Panics as the body panics, and on
/// a deadlock, with the seed.
pub fn run<T>(seed: u64, body: impl FnOnce(&Sim) -> T) -> Outcome<T> {
    Sim::new(seed).run(body)
}

/// The seeds a test runs: `count` of them from 1 on, the same on each build. `CENOTE_SEED=n` begins at n,
/// `CENOTE_SEED=random` anywhere; `CENOTE_SIM_RUNS=n` runs n times as many.
///
/// # Panics
/// If one of the two is something else.
pub fn seeds(count: u64) -> Range<u64> {
    let given = |name: &str| std::env::var(name).ok();
    let number = |name: &str, text: String| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number"));
    let first = match given("CENOTE_SEED") {
        Some(text) if text == "random" => os::random() >> 16,
        Some(text) => number("CENOTE_SEED", text),
        None => 1,
    };
    let times = given("CENOTE_SIM_RUNS").map_or(1, |text| number("CENOTE_SIM_RUNS", text));
    first..first + count * times
}

/// Runs `body` under as many seeds as [`seeds`] says. The first is run twice, and must go the same way.
pub fn explore(count: u64, body: impl Fn(&Sim)) {
    let mut seeds = seeds(count);
    let first = seeds.next().unwrap_or(1);
    let once = run(first, &body);
    assert_eq!(once, run(first, &body), "seed {first} did not run the same way twice");
    for seed in seeds {
        run(seed, &body);
    }
}

impl Sim {
    /// With files in memory of its own.
    pub fn new(seed: u64) -> Self {
        let files = MemFs::new();
        files.set_sync_time(crate::state::SYNC_TIME);
        Self {
            world: WorldSpec::new(seed, Pace::Explore, Topology::hosts(1, 1)),
            files,
        }
    }

    /// With these files instead.
    pub fn with_files(self, files: MemFs) -> Self {
        Self { files, ..self }
    }

    /// Fails, as a livelock, after so many preemption points.
    pub fn with_step_limit(mut self, step_limit: u64) -> Self {
        self.world.step_limit = step_limit;
        self
    }

    /// With stacks of so many bytes (1 MiB unless told; not below 256 KiB).
    pub fn with_stacks(mut self, bytes: usize) -> Self {
        self.world.set_stacks(bytes);
        self
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// The files.
    pub fn files(&self) -> &MemFs {
        &self.files
    }

    /// The world, for its faults: host 0 is the only one.
    pub fn world(&self) -> World {
        World::of(self.world.clone())
    }

    /// Runs `body` as the first thread, until it returns.
    pub fn run<T>(self, body: impl FnOnce(&Sim) -> T) -> Outcome<T> {
        run::run(&self.world, Some(&self.files), BodyPlace::FirstHost, || body(&self))
    }
}
