//! The world of the shared store: members on several hosts of several pods put, get, lend and remove, and everything
//! else goes wrong.
//!
//! ```text
//!   pod = a simulated host, its part and its program, as in the world of the pool; the root and the table lie in pod 0
//!     pod 0: program, members ── device ── its twin: members that map bytes alone (in half of the worlds)
//!        ║ calls                                       visitors: members that map nothing
//!     pod 1: program, members ══ pod 2 ...
//!   controller: stops and wakes processes, one by one and by machines, fences them, kills them; in every other world
//!               cuts ways, loses messages, kills programs, loses a pod besides
//! ```
//!
//! Memory is coherent, and the store's mode too, or neither; the first bytes of the device may be. Values say which put
//! wrote them, so each read is checked against the [`model`]. In the end members that are left agree on what is there,
//! and each object of the space is free or the store's ([`end`]).

mod end;
mod keys;
mod member;
mod model;
mod stage;
mod trouble;

use cenote_base::random::Random;
use cenote_base::rt::mark;
use std::sync::Arc;

use self::stage::Stage;
use self::trouble::Trouble;
use super::plan::Pods;
use super::pool;
use super::pool::processes::Processes;
use super::pool::role::Role;
use super::shared::Shared;
use crate::{HostSpec, Process, Topology, World};

/// As in the world of the pool, with one processor a host: a process has a session for each. A pod's second host is the
/// last one.
pub(super) fn topology(hosts: usize, pods: Pods) -> Topology {
    let mut topology = pool::topology(hosts, pods);
    if pods.twin.is_some() {
        topology.hosts.push(HostSpec::new("twin", 1));
    }
    topology.hosts.iter_mut().for_each(|host| host.vcpus = 1);
    topology
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, pods: Pods, world: &World) {
    let mut draw = Random(world.draw());
    let pool = pool::stage::Stage::new(shared, pods, draw.word());
    let stage = Stage::new(&pool, &mut draw);
    let mut cast = Processes::new(&pool, world);
    mark::aim(None);
    let wild = Role {
        makes: true,
        moves: true,
        every: pods.every,
    };
    if !cast.start_programs(wild) || !member::found(&stage, &mut cast) {
        return;
    }
    cast.role = Role { makes: false, ..wild };
    mark::aim(shared.plan.hunt.aim);
    Trouble::new(&stage, world, draw.word()).come(&mut cast);
    if cast.calm_down() && pool::end::settle(&mut cast) && !shared.has_failed() {
        end::inspect(&stage, &mut cast);
    }
    shared.add("operations", pool.turns());
    cast.programs.iter().flatten().for_each(Process::kill);
}
