//! The explorer behind `cenote sim`: seeds in child processes, the first failure shrunk and told.
//!
//! ```text
//!  cenote-sim ── starts ──▶ worker processes, one a core: seed after seed, a line for each
//!      │ reads lines: "begin 17", "ok 17 …", "fail 17 …"
//!      ├ a worker ends after some seeds or bytes (killed engines leave their memory): a new one goes on
//!      ├ a worker that dies or falls silent: its seed has failed
//!      └ the first failure: the same seed under lower limits, until nothing can be left out
//! ```

pub mod explore;
pub mod shrink;
pub mod worker;

pub use explore::{Order, Summary, explore};
