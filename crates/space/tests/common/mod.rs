//! What the tests with real processes have in common: [processes](process) that are started and killed, [spaces](space)
//! and what clients do in them, and choices that a seed repeats. Tests of `kv`, `fs` and `pool` take these files too.

#![allow(dead_code, unused_imports, reason = "each of the test programs uses some of it")]

mod process;
mod random;
mod space;

pub use process::{Process, TIMEOUT, hold, say, task};
pub use random::{Random, seed};
pub use space::{join, keep, objects_beside, tables, take_out, work};
