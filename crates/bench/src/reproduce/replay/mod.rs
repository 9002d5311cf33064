//! A trace of page accesses (`cenote trace`), replayed on the simulated host: what the same workload would take with
//! other sizes of local and remote memory.
//!
//! The pool is the real one, with its eviction, its remote memory and its read-ahead; what is in the pages is not: a
//! database of as many pages stands for them. Between two accesses a thread spends the time that the processor took
//! there when the trace was made, which is measured, and contains what the machine's own memory took. Time in which
//! nothing was computed (clients, locks, the log) is in no trace, and so in no result.
//!
//! | module | |
//! |---|---|
//! | [`workload`] | a trace, its pages numbered |
//! | [`stage`] | a database of as many pages, and a world that has it |
//! | [`command`] | `cenote replay` |

pub mod command;
pub mod stage;
pub mod workload;

pub use stage::{PartMeasured, Run, Stage};
pub use workload::{Part, Workload};
