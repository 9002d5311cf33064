//! Worlds: random work on the real engine, in the simulator, under faults; with a model beside it.
//!
//! 1. A seed draws a [`Plan`]: how many sessions, rows, statements; how the threads are ordered.
//! 2. The engine lives several lives ([`life`]). In each, sessions run random transactions and note them ([`session`]).
//! 3. A life ends by a fault at some step of some thread: its process is killed, its power cut, its disk fails.
//! 4. The next one recovers what is left. Its rows tell which commits survived; the checkers ([`crate::check`]) judge
//!    that, and every read and write of the life before.
//! 5. The last life ends in order: nothing is held, all is written, all checks pass.
//!
//! A killed process leaves its memory to the machine: nothing may be torn down in it. So a long exploration runs
//! its seeds in child processes ([`crate::explore`]).

mod backup;
mod contents;
mod death;
mod definer;
mod far;
mod grants;
pub mod hunt;
mod leaving;
mod life;
mod mirrors;
mod name;
mod pages;
pub mod panics;
mod plan;
mod pod;
mod pool;
mod readers;
pub mod rows;
mod scene;
mod servers;
mod session;
mod shared;
mod site;
mod spaces;
mod sql;
mod storage_nodes;
mod store;
mod story;

pub use name::Name;
pub use plan::{Grants, Limits, Pages, Plan, Pods, Tier};
pub use pod::{Verdict, run};
pub use shared::{Shared, Tally};
