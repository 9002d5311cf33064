//! What the tests with real processes have in common: [processes](process) that are started and killed, [pools](pool)
//! of managers and memory nodes, [spaces](space) and what clients do in them, and choices that a seed repeats.

#![allow(dead_code, unused_imports, reason = "each of the test programs uses some of it")]

mod pool;
#[path = "../../../space/tests/common/process.rs"]
mod process;
#[path = "../../../space/tests/common/random.rs"]
mod random;
#[path = "../../../space/tests/common/space.rs"]
mod space;

pub use pool::{
    calls_of, client, credentials, manager_options, network, node_options, operator, requested, started_node, until,
    until_found,
};
pub use process::{Process, TIMEOUT, hold, say, task};
pub use random::{Random, seed};
pub use space::{join, keep, objects_beside, tables, take_out, work};
