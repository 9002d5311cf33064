//! What tests of several crates use, and no program does.
//!
//! - [`contract`]: tests that every implementation of a trait of `fabric` must pass;
//! - [`faulty`]: an adversarial file system in memory: it knows what has been synced, and fails as told;
//! - [`hosts`]: hosts as namespaces of this machine, with links between them;
//! - [`record`]: a recorder of a region's flushes and fences, which shows what a lost host would leave behind.

pub mod contract;
pub mod faulty;
pub mod hosts;
pub mod record;
