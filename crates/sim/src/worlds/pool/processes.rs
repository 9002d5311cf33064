//! All processes of the world: the controller starts them, waits for them, and looks how they end.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{Nanos, mark};

use super::members::Mark;
use super::role::Role;
use super::stage::{Phase, Stage};
use super::{founder, program, user};
use crate::{Exit, Process, World, clock};

/// A user that runs.
pub(in crate::worlds) struct User {
    pub(in crate::worlds) process: Process,
    pub(in crate::worlds) mark: Mark,
}

/// All processes.
pub(in crate::worlds) struct Processes<'w> {
    pub(in crate::worlds) stage: Arc<Stage>,
    pub(in crate::worlds) world: &'w World,
    /// By pod.
    pub(in crate::worlds) programs: Vec<Option<Process>>,
    pub(in crate::worlds) users: Vec<User>,
    /// How programs are started now.
    pub(in crate::worlds) role: Role,
}

impl<'w> Processes<'w> {
    pub(in crate::worlds) fn new(stage: &Arc<Stage>, world: &'w World) -> Self {
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
    pub(in crate::worlds) fn start_programs(&mut self, role: Role) -> bool {
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

    pub(in crate::worlds) fn start_program(&mut self, pod: usize) {
        let (stage, role) = (Arc::clone(&self.stage), self.role);
        stage.clear_post(pod);
        let body = move || program::run(&stage, pod, role);
        self.programs[pod] = Some(self.world.process(pod, "program", body));
    }

    /// Ends all programs in order, and starts them anew.
    pub(in crate::worlds) fn change_programs(&mut self, role: Role) -> bool {
        let stage = Arc::clone(&self.stage);
        stage.alive().iter().for_each(|pod| stage.ask_end(*pod));
        let programs: Vec<Process> = self.programs.iter().flatten().cloned().collect();
        let all_ended = || programs.iter().all(|program| !program.is_running());
        self.await_that("all programs end", Nanos::from_secs(60), all_ended)
            && programs.iter().all(|program| self.has_ended_well(program))
            && self.start_programs(role)
    }

    pub(in crate::worlds) fn has_ended_well(&self, process: &Process) -> bool {
        match process.join() {
            Exit::Panicked(why) => {
                self.stage.shared.fail(format!("{}: {why}", process.name()));
                false
            }
            Exit::Returned | Exit::Killed => true,
        }
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    pub(in crate::worlds) fn await_that(&self, what: &str, time: Nanos, is_so: impl FnMut() -> bool) -> bool {
        let has_come = self.stage.wait(time, is_so);
        if !has_come && !self.stage.shared.has_failed() {
            self.stage.shared.fail(format!("{what}: not within {time}"));
        }
        has_come
    }

    // ---- users ----

    pub(in crate::worlds) fn new_mark(&self) -> Mark {
        // The second bit is set in the marks of all users.
        self.world.draw() | 2
    }

    pub(in crate::worlds) fn start(
        &mut self,
        pod: usize,
        name: &str,
        body: impl FnOnce(&Arc<Stage>, Mark) + Send + 'static,
    ) {
        let (stage, mark) = (Arc::clone(&self.stage), self.new_mark());
        let process = self.world.process(pod, name, move || body(&stage, mark));
        self.users.push(User { process, mark });
    }

    pub(in crate::worlds) fn start_user(&mut self, pod: usize, threads: usize) {
        self.start(pod, "user", move |stage, mark| user::run(stage, pod, mark, threads));
    }

    /// Waits until all users have ended, and buries them.
    pub(in crate::worlds) fn await_users(&mut self, what: &str, time: Nanos) -> bool {
        let users = std::mem::take(&mut self.users);
        let all_ended = || users.iter().all(|user| !user.process.is_running());
        let have_ended = self.await_that(what, time, all_ended);
        let well = have_ended && users.iter().all(|user| self.has_ended_well(&user.process));
        users.iter().for_each(|user| self.bury(user.mark));
        well
    }

    pub(in crate::worlds) fn bury(&self, mark: Mark) {
        self.stage.members().lock().died(mark, clock::now());
    }

    pub(in crate::worlds) fn lay_out(&mut self, draw: &mut Random) -> bool {
        for pod in 0..self.stage.count() {
            let of_pod = Random(draw.word());
            self.start(pod, "founder", move |stage, mark| {
                founder::run(stage, pod, mark, of_pod)
            });
        }
        self.await_users("all is laid out", Nanos::from_secs(60)) && !self.stage.shared.has_failed()
    }

    /// No more faults; users end what they are at.
    pub(in crate::worlds) fn calm_down(&mut self) -> bool {
        let stage = Arc::clone(&self.stage);
        stage.set_phase(Phase::Calm);
        mark::aim(None);
        let role = self.role;
        // A process that waits for a pod that is lost, or for an extent whose home is, waits in vain, but not for ever.
        self.start_programs(role) && self.await_users("all users end", Nanos::from_secs(180))
    }
}
