//! The world of grants: the pool's own manager, memory nodes, holders and operators as programs of simulated hosts,
//! over simulated connections.
//!
//! The world of leaders has several managers, each on a host of its own, and their grant table in a simulated etcd
//! ([`Etcd`](crate::etcd::Etcd)).
//!
//! ```text
//!   host 0: manager, its grant table in a file; host 2 and on: more managers
//!   host 1: memory nodes, whose grants are files ([`machine`] tells who maps them); holders ([`holder`]); an operator ([`operator`])
//!   controller, outside of all: kills programs, cuts ways between them, stops hosts, makes messages late
//! ```
//!
//! 1. Holders open grants by label, map their files, write and read, and let go in all ways there are. The [`model`]
//!    says who may use which memory, and what is in it.
//! 2. All ways are mended, holders end; what is held lapses. Then the manager's grant table, the nodes' files and the
//!    model have to agree ([`end`]).
//! 3. Heirs open each label: what has to be there is there. All is given back, and nothing is left.
//!
//! A memory node sees and ends processes of its own machine alone, so nodes and holders share one.

mod end;
mod holder;
mod leaderships;
mod machine;
mod model;
mod operator;
mod program;
mod stage;
mod trouble;

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos, mark};

use self::program::Role;
use self::stage::Stage;
use self::trouble::Trouble;
use super::plan::Grants;
use super::shared::Shared;
use crate::{Exit, Process, World};

/// Preemption points of a world, at most: some ten times what most have.
pub(super) const STEPS_MOST: u64 = 40_000_000;

/// The machine of memory nodes and of all users.
const MACHINE: usize = 1;

/// Where a manager runs.
fn manager_host(manager: usize) -> usize {
    match manager {
        0 => 0,
        more => MACHINE + more,
    }
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, grants: Grants, world: &World) {
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, grants, &mut draw);
    let mut cast = Cast::new(&stage, world);
    if cast.start_programs() {
        Trouble::new(&stage, world, draw.word()).come(&mut cast);
        if cast.calm_down() {
            end::inspect(&mut cast);
        }
    }
    shared.add("operations", stage.turns());
    cast.everybody().for_each(Process::kill);
}

/// All processes.
struct Cast<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    /// By role.
    programs: Vec<(Role, Option<Process>)>,
    /// By slot; the last is the operator.
    users: Vec<Option<Process>>,
}

impl<'w> Cast<'w> {
    fn new(stage: &Arc<Stage>, world: &'w World) -> Self {
        let nodes = (0..stage.grants.nodes).map(Role::Node);
        Self {
            stage: Arc::clone(stage),
            world,
            programs: (0..stage.grants.managers)
                .map(Role::Manager)
                .chain(nodes)
                .map(|role| (role, None))
                .collect(),
            users: Vec::new(),
        }
    }

    fn everybody(&self) -> impl Iterator<Item = &Process> {
        let programs = self.programs.iter().filter_map(|(_, process)| process.as_ref());
        programs.chain(self.users.iter().flatten())
    }

    fn start(&self, host: usize, name: &str, body: impl FnOnce(&Arc<Stage>) + Send + 'static) -> Process {
        let stage = Arc::clone(&self.stage);
        let process = self.world.process(host, name, move || body(&stage));
        self.stage.machine().began(&process);
        process
    }

    // ---- programs ----

    /// Starts those that do not run; whether all of them serve.
    fn start_programs(&mut self) -> bool {
        for n in 0..self.programs.len() {
            self.start_program(n);
        }
        let stage = Arc::clone(&self.stage);
        let all_ready = || self.programs.iter().all(|(role, _)| stage.is_ready(*role));
        self.await_that("managers and memory nodes serve", Nanos::from_secs(60), all_ready)
    }

    fn is_down(&self, n: usize) -> bool {
        let process = self.programs[n].1.as_ref();
        process.is_none_or(|process| !process.is_running())
    }

    fn start_program(&mut self, n: usize) {
        if self.is_down(n) {
            let role = self.programs[n].0;
            self.stage.set_ready(role, false);
            let process = self.start(role.host(), &role.name(), move |stage| program::run(stage, role));
            self.programs[n].1 = Some(process);
        }
    }

    // ---- users ----

    fn start_user(&mut self, slot: usize, draw: Random) {
        let holders = self.stage.holders();
        let process = match slot < holders {
            true => self.start(MACHINE, "holder", move |stage| holder::run(stage, slot, draw)),
            false => self.start(MACHINE, "operator", move |stage| operator::run(stage, draw)),
        };
        self.users.resize(holders + 1, None);
        self.users[slot] = Some(process);
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    fn await_that(&self, what: &str, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
        let until = rt::now() + time;
        while !is_so() {
            if rt::now() > until || self.stage.shared.has_failed() {
                if !self.stage.shared.has_failed() {
                    self.stage.shared.fail(format!("{what}: not within {time}"));
                }
                return false;
            }
            rt::sleep(Nanos::from_millis(5));
        }
        true
    }

    /// Waits until these have ended, and looks how.
    fn await_end(&self, what: &str, time: Nanos, processes: &[Process]) -> bool {
        let have_ended = self.await_that(what, time, || processes.iter().all(|process| !process.is_running()));
        have_ended && processes.iter().all(|process| self.has_ended_well(process))
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

    /// No more faults; users end what they are at.
    fn calm_down(&mut self) -> bool {
        self.stage.calm_down();
        mark::aim(None);
        let users: Vec<Process> = self.users.iter().flatten().cloned().collect();
        // Who opens a grant waits for half a minute at most, and for the answer to a sign of life.
        self.start_programs() && self.await_end("all users end", Nanos::from_secs(120), &users)
    }
}
