//! What the tests with real processes have in common: [processes](process) that are started and killed, [pools](pool)
//! of managers and memory nodes, [spaces](space) and what clients do in them, and choices that a seed repeats.

#![allow(dead_code, unused_imports, reason = "each of the test programs uses some of it")]

mod pool;
mod process;
mod space;

pub use pool::{
    TIMEOUT, client, credentials, manager_options, network, node_options, operator, requested, started_node, until,
    until_found,
};
pub use process::{Process, hold, say, task};
pub use space::{join, keep, objects_beside, tables, take_out, work};

use cenote_base::rt;

/// Numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A seed that is printed: `CENOTE_SEED` runs it again.
pub fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}
