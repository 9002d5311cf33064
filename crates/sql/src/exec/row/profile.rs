//! Measures what the nodes do, for EXPLAIN ANALYZE.

use super::{Context, State, step};
use crate::error::Result;
use crate::plan::row::{Node, NodeRun, Profile};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::observe;

/// The node's next row, measured.
#[cold]
pub(super) fn measured(node: &Node, state: &mut State, cx: &mut Context<'_>, profile: &Profile) -> Result<bool> {
    let before = observe::seen_so_far();
    let start = rt::now();
    let found = step(node, state, cx);
    let time = Nanos(rt::now().since(start).raw());
    let seen = before.zip(observe::seen_so_far());
    let run = NodeRun {
        rows: u64::from(matches!(found, Ok(true))),
        runs: 0,
        time,
        traffic: seen.map_or_else(Default::default, |(before, after)| after.traffic.since(before.traffic)),
    };
    profile.add(node, run);
    found
}
