//! The world of mirrored spaces: users call the keeper of a part whose changes reach a mirror on another machine, and
//! the keeper goes, with its memory or without.
//!
//! ```text
//!  users' host                      node's host, device                              mirror's node
//!    user, user ── calls, over cards ─▶ keeper 1: part ── store, copy; fence ── cards ─▶ image, journal
//!       │                               its mirror thread ─ fills ─ the table: whole ─ lost? void, another is sought
//!       └─ looks up the keeper ──▶ keeper 2, on the other host: the image with its journal in place ◀── promoted
//! ```
//!
//! The grant table is the world's own: which keeper the part has, which mirror, and whether that is whole. What befalls
//! a keeper ([`trouble`]): its host is lost with its memory; it is taken for lost and lives on; its process is killed
//! and begins anew on the memory that is there; its mirror's node is lost; ways are cut and mended. A keeper without a
//! whole mirror keeps its memory: the pool promises nothing else.
//!
//! 1. A founder lays out words, locks, and texts that the locks protect.
//! 2. Users allocate, write, lock, change words, free; each operation is checked against the model of the world of the
//!    pool. What was acknowledged is there, also after a promotion; what was not may be there, or a beginning of it.
//! 3. In the end the keeper's host is lost once more, an inspector looks at everything through the next keeper, frees
//!    it, and nothing is left but what no user knows of ([`end`]).
//!
//! A keeper that lives on answers reads until it hears that it is none any more, as `docs/mirrors.md` says. So what is
//! read is compared under locks, and where the same user has written it: no read of a word that others change.

mod end;
mod keeper;
mod service;
mod stage;
mod trouble;
mod user;

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::mark;

use self::stage::{EXTENT, EXTENTS, NODES, Stage, device_name};
use self::trouble::Trouble;
use super::shared::Shared;
use crate::{DeviceSpec, Topology, World};

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 200_000_000;

/// Two hosts with a device each, and the users'.
pub(super) fn topology() -> Topology {
    let mut topology = Topology::hosts(NODES + 1, 4);
    for host in 0..NODES {
        let device = DeviceSpec::new(&device_name(host), (EXTENTS + 2) * EXTENT, "cxl-switch");
        topology.devices.push(DeviceSpec {
            coherent: true,
            ..device.expect("a profile of this program")
        });
    }
    topology
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, world: &World) {
    mark::aim(None);
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, draw.word());
    let mut trouble = Trouble::new(&stage, world, draw.word());
    if trouble.begin() {
        trouble.come();
        trouble.calm_down();
    }
    if !shared.has_failed() {
        end::inspect(&mut trouble);
    }
    shared.add("operations", stage.turns());
    shared.add("allocations that no process knows of", stage.model.lock().leaks_most());
    trouble.end();
}
