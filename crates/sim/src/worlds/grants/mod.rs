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

mod end;
mod holder;
mod label;
mod leaderships;
mod machine;
mod machines;
mod model;
mod operator;
mod processes;
mod program;
mod role;
mod stage;
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
        Trouble::new(&stage, world, draw.word()).come(&mut cast);
        if cast.calm_down() {
            end::inspect(&mut cast);
        }
    }
    shared.add("operations", stage.turns());
    cast.everybody().for_each(Process::kill);
}
