//! The world of the memory pool: users in several pods share a space whose extents move, and everything else goes
//! wrong.
//!
//! ```text
//!   pod = a simulated host: its part in coherent memory, a program ([`program`]: keeper, host, mover), users ([`user`])
//!     pod 0 ══ calls, over simulated cards ══ pod 1 ══ … pod 2
//!   visitors: users on a machine of no pod, which map nothing
//!   controller, outside of all: cuts ways, loses messages, stops hosts, kills users and programs, loses a pod,
//!               stops visitors beyond their lease: they are fenced, and wake up
//! ```
//!
//! 1. A founder in each pod lays out words, locks, and texts that the locks protect.
//! 2. Users do what comes to their minds, faults come. Each operation is checked at once against the [`model`], as far
//!    as it can be.
//! 3. All ways are mended, users end, programs end and begin anew. What the parts say of where extents lie has to fit
//!    together.
//! 4. In some worlds users of all pods then do the same, in step: what is as hot here as there stays ([`share`]).
//! 5. An inspector in each pod looks at all that has to be there, then frees it: nothing is left but what no process
//!    knows of ([`end`]).
//!
//! The words of a part are atomics of one host, so all users of a pod are on one, and its memory is coherent.

pub(super) mod end;
mod founder;
pub(super) mod keeper_service;
pub(super) mod members;
pub(super) mod model;
pub(super) mod processes;
mod program;
pub(super) mod role;
mod share;
pub(super) mod stage;
mod trouble;
mod user;

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::mark;

use self::processes::Processes;
use self::role::{EXTENT, Role};
use self::stage::{Stage, device_name};
use self::trouble::Trouble;
use super::plan::Pods;
use super::shared::Shared;
use crate::{DeviceSpec, Process, Topology, World};

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 40_000_000;

/// Hosts are pods, each with the device of its part; the last one is the visitors'.
pub(super) fn topology(hosts: usize, pods: Pods) -> Topology {
    let mut topology = Topology::hosts(hosts + 1, 4);
    for pod in 0..hosts {
        let device = DeviceSpec::new(&device_name(pod), (pods.extents + 2) * EXTENT, "cxl-switch");
        let device = device.expect("a profile of this program");
        topology.devices.push(DeviceSpec {
            coherent: pods.window.is_none(),
            window: pods.window.unwrap_or(0),
            ..device
        });
    }
    topology
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, pods: Pods, world: &World) {
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, pods, draw.word());
    let mut cast = Processes::new(&stage, world);
    // While all is laid out nothing goes wrong: what stands still halfway takes room twice.
    mark::aim(None);
    let wild = Role {
        makes: true,
        moves: true,
        every: pods.every,
    };
    if !cast.start_programs(wild) || !cast.lay_out(&mut draw) {
        return;
    }
    cast.role = Role { makes: false, ..wild };
    mark::aim(shared.plan.hunt.aim);
    Trouble::new(&stage, world, draw.word()).come(&mut cast);
    let is_over = cast.calm_down() && end::settle(&mut cast);
    if is_over && pods.shares && !stage.shared.has_failed() {
        share::in_step(&mut cast, &mut draw);
        end::settle(&mut cast);
    }
    if is_over && !stage.shared.has_failed() {
        end::inspect(&mut cast, &mut draw);
    }
    shared.add("operations", stage.turns());
    shared.add("allocations that no process knows of", stage.model.lock().leaks_most());
    cast.programs.iter().flatten().for_each(Process::kill);
}
