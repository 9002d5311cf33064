//! The world of storage nodes: three of them keep a database's log by Raft and make pages of it, writers take the
//! database from each other, and everything else goes wrong.
//!
//! ```text
//!   host 0..2: node ── its files: Raft log, state, pages        host 3, 4: writer, readers ([`writer`])
//!      └───────── connections, each way by itself cut and mended, late, broken ─────────┘
//!   controller: kills a node, cuts its power, or that of all, takes its files; cuts ways; kills writers, pauses
//!               them, starts another beside one that lives on ([`trouble`])
//!   operator: on host 3 or 4, lets the new directory of a node in ([`operator`])
//! ```
//!
//! 1. A writer takes the database, makes and drops spaces, appends groups that change random pages, sets control
//!    records, makes and drops snapshots, reads pages and the log back. The [`model`] has each page in all its
//!    versions, and each snapshot with its pages ([`snapshots`], [`views`]).
//! 2. Another takes it. Where the log ends must be behind all that was acknowledged; the one append or space that was
//!    not answered is there as a whole or not at all; and nothing of the former writer appears any more.
//! 3. Now and then nothing is wrong for a while: all calls succeed then.
//! 4. In the end all is mended. Writers end, each node alone has every page as the model has it, and every page of each
//!    snapshot that it has, also after a power cut of all ([`end`]).
//!
//! Memory, log and segments of nodes are small: pages are merged, checkpoints saved, segments cut within a run. In half
//! of the worlds a writer waits for a node that lags, so that others keep the log that it lacks. In the other half it
//! does not, less is kept, and there may be more pages: nodes are given states, and take their pages from others.
//!
//! A directory is lost only while no other is needed for what it had: every node has all entries and all pages, and
//! those that were lost before are let in. Whatever befalls the other two then, nothing acknowledged may be lost.

mod end;
mod model;
mod node;
mod operator;
mod snapshots;
mod stage;
mod trouble;
mod views;
mod writer;

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::mark;

use self::stage::{NODES, Stage, WRITERS};
use self::trouble::Trouble;
use super::shared::Shared;
use crate::{Topology, World};

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 200_000_000;

/// A host for each node, and those of writers.
pub(super) fn topology() -> Topology {
    Topology::hosts(NODES + WRITERS, 4)
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, world: &World) {
    mark::aim(None);
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, &mut draw);
    let mut trouble = Trouble::new(&stage, world, draw.word());
    trouble.begin();
    trouble.come();
    if trouble.calm_down() {
        end::inspect(&mut trouble);
    }
    shared.add("operations", stage.operations());
    stage.add_counts(world);
    trouble.end();
}
