//! The world of the memory pool: users in several pods share a space whose extents move, and everything else goes
//! wrong.
//!
//! ```text
//!   pod = a simulated host: its part in coherent memory, a program ([`program`]: keeper, host, mover), users ([`user`])
//!     pod 0 ══ calls, over simulated cards ══ pod 1 ══ … pod 2
//!   controller, outside of all: cuts ways, loses messages, stops hosts, kills users and programs, loses a pod
//! ```
//!
//! 1. A founder in each pod lays out words, locks, and texts that the locks protect.
//! 2. Users do what comes to their minds, faults come. Each operation is checked at once against the [`model`], as far
//!    as it can be.
//! 3. All ways are mended, users end, programs end and begin anew. What the parts say of where extents lie has to fit
//!    together.
//! 4. In some worlds users of all pods then do the same, in step: what is as hot here as there stays ([`share`]).
//! 5. An inspector in each pod looks at all that has to be there, then frees it: nothing is left but what nobody knows
//!    of ([`end`]).
//!
//! The words of a part are atomics of one host, so all users of a pod are on one, and its memory is coherent.

mod end;
mod founder;
mod keeper_service;
mod members;
mod model;
mod program;
mod share;
mod stage;
mod trouble;
mod user;

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::Nanos;
use cenote_base::rt::mark;

use self::members::Mark;
use self::stage::{Phase, Stage, device_name};
use self::trouble::Trouble;
use super::plan::Pods;
use super::shared::Shared;
use crate::{DeviceSpec, Exit, Process, Topology, World};

/// Bytes of an extent.
const EXTENT: u64 = 2 << 20;

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 40_000_000;

/// How a program of a pod is started.
#[derive(Debug, Clone, Copy)]
struct Role {
    /// It makes the part.
    makes: bool,
    /// Hot extents move.
    moves: bool,
    /// Between two looks at what is hot, or empty; zero: none.
    every: Nanos,
}

impl Role {
    /// Nothing moves by itself.
    const STILL: Role = Role {
        makes: false,
        moves: false,
        every: Nanos::ZERO,
    };
}

/// Hosts are pods, each with the device of its part.
pub(super) fn topology(hosts: usize, pods: Pods) -> Topology {
    let mut topology = Topology::hosts(hosts, 4);
    for pod in 0..hosts {
        let device = DeviceSpec::new(&device_name(pod), (pods.extents + 2) * EXTENT, "cxl-switch");
        let device = device.expect("a profile of this program");
        topology.devices.push(DeviceSpec {
            coherent: true,
            ..device
        });
    }
    topology
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, pods: Pods, world: &World) {
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, pods, draw.word());
    let mut cast = Cast::new(&stage, world);
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
    shared.add("allocations that nobody knows of", stage.model.lock().leaks_most());
    cast.programs.iter().flatten().for_each(Process::kill);
}

/// A user that runs.
struct User {
    process: Process,
    mark: Mark,
}

/// All processes.
struct Cast<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    /// By pod.
    programs: Vec<Option<Process>>,
    users: Vec<User>,
    /// How programs are started now.
    role: Role,
}

impl<'w> Cast<'w> {
    fn new(stage: &Arc<Stage>, world: &'w World) -> Self {
        Self {
            stage: Arc::clone(stage),
            world,
            programs: vec![None; stage.count()],
            users: Vec::new(),
            role: Role::STILL,
        }
    }

    // ---- programs ----

    /// Starts those that do not run; whether all serve.
    fn start_programs(&mut self, role: Role) -> bool {
        self.role = role;
        for pod in self.stage.alive() {
            if self.programs[pod].as_ref().is_none_or(|program| !program.is_running()) {
                self.start_program(pod);
            }
        }
        let stage = Arc::clone(&self.stage);
        let all_ready = || stage.alive().iter().all(|pod| stage.is_ready(*pod));
        self.await_that("all pods serve", Nanos::from_secs(30), all_ready)
    }

    fn start_program(&mut self, pod: usize) {
        let (stage, role) = (Arc::clone(&self.stage), self.role);
        stage.clear_post(pod);
        let body = move || program::run(&stage, pod, role);
        self.programs[pod] = Some(self.world.process(pod, "program", body));
    }

    /// Ends all programs in order, and starts them anew.
    fn change_programs(&mut self, role: Role) -> bool {
        let stage = Arc::clone(&self.stage);
        stage.alive().iter().for_each(|pod| stage.ask_end(*pod));
        let programs: Vec<Process> = self.programs.iter().flatten().cloned().collect();
        let all_ended = || programs.iter().all(|program| !program.is_running());
        self.await_that("all programs end", Nanos::from_secs(60), all_ended)
            && programs.iter().all(|program| self.has_ended_well(program))
            && self.start_programs(role)
    }

    fn has_ended_well(&self, process: &Process) -> bool {
        match process.join() {
            Exit::Panicked(why) => {
                self.stage.shared.fail(format!("{}: {why}", process.name()));
                false
            }
            Exit::Returned | Exit::Killed => true,
        }
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    fn await_that(&self, what: &str, time: Nanos, is_so: impl FnMut() -> bool) -> bool {
        let has_come = self.stage.wait(time, is_so);
        if !has_come && !self.stage.shared.has_failed() {
            self.stage.shared.fail(format!("{what}: not within {time}"));
        }
        has_come
    }

    // ---- users ----

    fn new_mark(&self) -> Mark {
        // The second bit is set in the marks of all users.
        self.world.draw() | 2
    }

    fn start(&mut self, pod: usize, name: &str, body: impl FnOnce(&Arc<Stage>, Mark) + Send + 'static) {
        let (stage, mark) = (Arc::clone(&self.stage), self.new_mark());
        let process = self.world.process(pod, name, move || body(&stage, mark));
        self.users.push(User { process, mark });
    }

    fn start_user(&mut self, pod: usize, threads: usize) {
        self.start(pod, "user", move |stage, mark| user::run(stage, pod, mark, threads));
    }

    /// Waits until all users have ended, and buries them.
    fn await_users(&mut self, what: &str, time: Nanos) -> bool {
        let users = std::mem::take(&mut self.users);
        let all_ended = || users.iter().all(|user| !user.process.is_running());
        let have_ended = self.await_that(what, time, all_ended);
        let well = have_ended && users.iter().all(|user| self.has_ended_well(&user.process));
        users.iter().for_each(|user| self.bury(user.mark));
        well
    }

    fn bury(&self, mark: Mark) {
        self.stage.members().lock().died(mark, crate::clock::now());
    }

    fn lay_out(&mut self, draw: &mut Random) -> bool {
        for pod in 0..self.stage.count() {
            let of_pod = Random(draw.word());
            self.start(pod, "founder", move |stage, mark| {
                founder::run(stage, pod, mark, of_pod)
            });
        }
        self.await_users("all is laid out", Nanos::from_secs(60)) && !self.stage.shared.has_failed()
    }

    /// No more faults; users end what they are at.
    fn calm_down(&mut self) -> bool {
        let stage = Arc::clone(&self.stage);
        stage.set_phase(Phase::Calm);
        mark::aim(None);
        let role = self.role;
        // Who waits for a pod that is lost, or for an extent whose home is, waits in vain, but not for ever.
        self.start_programs(role) && self.await_users("all users end", Nanos::from_secs(180))
    }
}
