//! The world of grants: the pool's own manager, memory nodes, holders and operators as programs of simulated hosts,
//! over simulated connections.
//!
//! The world of leaders has several managers, each on a host of its own, and their grant table in a simulated etcd
//! ([`Etcd`](crate::etcd::Etcd)).
//!
//! ```text
//!   host 0: manager, its grant table in a file; host 2 and on: more managers host 1: memory nodes, whose grants are
//!   files ([`machine`] tells which process maps them); holders ([`holder`]); an operator ([`operator`]) controller,
//!   outside of all: kills programs, cuts ways between them, stops hosts, makes messages late
//! ```
//!
//! 1. Holders open grants by label, map their files, write and read, and let go in all ways there are. The [`model`]
//!    says which process may use which memory, and what is in it.
//! 2. All ways are mended, holders end; what is held lapses. Then the manager's grant table, the nodes' files and the
//!    model have to agree ([`end`]).
//! 3. Heirs open each label: what has to be there is there. All is given back, and nothing is left.
//!
//! A memory node sees and ends processes of its own machine alone, so nodes and holders share one.
//!
//! The world of hosts has no memory nodes. Its holders are on several hosts, which have an agent each and share one
//! device, incoherent but for a window of as many bytes as the seed says, often none:
//!
//! ```text
//!   host-0: agent, holders ── cache ──┐     (as the pool calls them: hosts 4 to 6 of the simulation)
//!   host-1: agent, holders ── cache ──┼── device: directory, ranges
//!   host-2: agent, holders ── cache ──┘
//!   switch: cuts a host off, or finds it lost, and says so; in some worlds it says so of one that is not ([`switch`])
//! ```
//!
//! - A killed process leaves its lines in its host's cache; a lost host's are lost, but for those that it has flushed.
//! - A holder that names another host than its own is not let in.
//! - What a host that was wrongly called lost has, or had, is not judged any more.
//! - In the end all hosts are lost with all that their caches hold, and what is free is zeros.

mod bytes;
pub(super) mod device;
mod doubts;
mod end;
mod holder;
mod hosts;
mod label;
mod leaderships;
mod machine;
mod machines;
mod model;
mod operator;
mod processes;
mod program;
mod role;
mod sight;
mod stage;
mod switch;
mod trouble;
mod watched;

use cenote_base::random::Random;
use std::sync::Arc;

use self::processes::Processes;
use self::stage::Stage;
use self::trouble::Trouble;
use super::plan::Grants;
use super::shared::Shared;
use crate::{Process, World};

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 40_000_000;

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, grants: Grants, world: &World) {
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, grants, &mut draw);
    let mut cast = Processes::new(&stage, world);
    if cast.start_programs() {
        cast.start_switch(Random(draw.word()));
        Trouble::new(&stage, world, draw.word()).come(&mut cast);
        if cast.calm_down() {
            end::inspect(&mut cast);
        }
    }
    shared.add("operations", stage.turns());
    cast.everybody().for_each(Process::kill);
}
