//! The world of servers: several servers of one database, which of them has it, and when they pause.
//!
//! ```text
//!   host 0..2: storage nodes     host 3..5: servers ([`server`])     host 6: a proxy ([`proxy`])
//!   controller: kills nodes and servers, cuts power and ways, pauses hosts, asks for switches ([`trouble`])
//! ```
//!
//! Words, claims, leases and decisions are the product's own, over its storage nodes; what a server opens and serves is
//! not: time passes instead. So thousands of changes of the server that has the database are seen.
//!
//! 1. A server that has the database answers while its lease holds. No answer of a start comes when a later one has
//!    begun to serve: that would be an old one.
//! 2. The proxy's client works, and rests for longer than servers wait before they pause. When nothing is wrong it is
//!    served within seconds, whoever is paused then; and no server takes the database from one that is there.
//! 3. In the end the client rests, and all servers pause.
//!
//! Clocks of hosts go apart by as much as leases allow for.

mod proxy;
mod server;
mod stage;
mod trouble;

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::mark;

use self::stage::{NODES, SERVERS, Stage};
use self::trouble::Trouble;
use super::shared::Shared;
use crate::{Topology, World};

/// Preemption points of a world, at most.
pub(super) const STEPS_MOST: u64 = 200_000_000;

/// A host for each node and each server, and the proxy's.
pub(super) fn topology() -> Topology {
    Topology::hosts(NODES + SERVERS + 1, 4)
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, world: &World) {
    mark::aim(None);
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, &mut draw);
    let mut trouble = Trouble::new(&stage, world, draw.word());
    trouble.begin();
    trouble.come();
    trouble.calm_down();
    stage.add_counts();
    trouble.end();
}
