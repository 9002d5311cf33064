//! A seeded runtime: many threads of the database as coroutines on one thread of the machine.
//!
//! It stands behind the seam of `cenote_base::rt`: every preemption point asks it which thread goes on, every wait and
//! every sleep is its own, and time is virtual. Same seed, same run; the digest of a run says so. It finds what depends
//! on the order of threads: lost updates, lost wake-ups, deadlocks (reported with each waiting thread and its place),
//! broken protocols.
//!
//! ```
//! use cenote_base::rt::{self, Mutex};
//! use std::sync::Arc;
//!
//! cenote_sim::explore(20, |_| {
//!     let counter = Arc::new(Mutex::new(0));
//!     let theirs = counter.clone();
//!     let other = rt::spawn("other", move || *theirs.lock() += 1);
//!     *counter.lock() += 1;
//!     other.join().expect("no panic");
//!     assert_eq!(*counter.lock(), 2);
//! });
//! ```
//!
//! How: [`run`] makes a coroutine for the body and one for each thread it starts. A coroutine
//! suspends to the loop in `run`, which asks `schedule` (plain state, no coroutines) whom to
//! resume. What must hold:
//! - nothing suspends while unwinding: the count of panics is the machine thread's, not the
//!   coroutine's. Preemption points are skipped then; a wait is a bug of the code and aborts;
//! - the code under test blocks through `rt` alone. A standard lock held across a preemption point
//!   stops the machine's thread for good;
//! - nothing depends on addresses: words that are waited on are known by their addresses, but never
//!   ordered by them.

pub mod check;
pub mod clock;
mod coroutine;
pub mod etcd;
pub mod explorer;
pub mod link;
pub mod memory;
pub mod message;
pub mod mutations;
pub mod net;
pub mod rdma;
mod run;
mod runtime;
mod schedule;
mod single;
mod spec;
mod state;
pub mod topology;
pub mod trace;
mod views;
mod world;
pub mod worlds;

pub use run::Outcome;
pub use single::{Sim, explore, run, seeds};
pub use spec::{Machinery, Pace};
pub use state::Exit;
pub use topology::{CacheSpec, DeviceSpec, HostSpec, Topology};
pub use world::{Process, World};
