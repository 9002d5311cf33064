//! All processes of the world: the controller starts them, waits for them, and looks how they end.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos, mark};

use super::role::{MACHINE, Role, agent_host};
use super::stage::Stage;
use super::{holder, operator, program, switch};
use crate::{Exit, Process, World};

/// All processes.
pub(super) struct Processes<'w> {
    pub(super) stage: Arc<Stage>,
    pub(super) world: &'w World,
    /// By role.
    pub(super) programs: Vec<(Role, Option<Process>)>,
    /// By slot; the last is the operator.
    pub(super) users: Vec<Option<Process>>,
    /// In a world of hosts.
    switch: Option<Process>,
}

impl<'w> Processes<'w> {
    pub(super) fn new(stage: &Arc<Stage>, world: &'w World) -> Self {
        let nodes = (0..stage.grants.nodes).map(Role::Node);
        let agents = (0..stage.grants.hosts).map(Role::Agent);
        Self {
            stage: Arc::clone(stage),
            world,
            programs: (0..stage.grants.managers)
                .map(Role::Manager)
                .chain(nodes)
                .chain(agents)
                .map(|role| (role, None))
                .collect(),
            users: Vec::new(),
            switch: None,
        }
    }

    pub(super) fn everybody(&self) -> impl Iterator<Item = &Process> {
        let programs = self.programs.iter().filter_map(|(_, process)| process.as_ref());
        programs.chain(self.users.iter().flatten()).chain(&self.switch)
    }

    pub(super) fn start(&self, host: usize, name: &str, body: impl FnOnce(&Arc<Stage>) + Send + 'static) -> Process {
        let stage = Arc::clone(&self.stage);
        let process = self.world.process(host, name, move || body(&stage));
        self.stage.machine().began(&process);
        process
    }

    // ---- programs ----

    /// Starts those that do not run; whether all of them serve.
    pub(super) fn start_programs(&mut self) -> bool {
        for n in 0..self.programs.len() {
            self.start_program(n);
        }
        let stage = Arc::clone(&self.stage);
        let all_ready = || {
            self.let_in();
            self.programs.iter().all(|(role, _)| stage.is_ready(*role))
        };
        self.await_that(
            "managers, memory nodes and agents serve",
            Nanos::from_secs(60),
            all_ready,
        )
    }

    pub(super) fn is_down(&self, n: usize) -> bool {
        let process = self.programs[n].1.as_ref();
        process.is_none_or(|process| !process.is_running())
    }

    pub(super) fn start_program(&mut self, n: usize) {
        if self.is_down(n) {
            let role = self.programs[n].0;
            self.stage.set_ready(role, false);
            let process = self.start(role.host(), &role.name(), move |stage| program::run(stage, role));
            self.programs[n].1 = Some(process);
        }
    }

    // ---- users ----

    /// A holder is on any host whose loss is no news to the pool.
    pub(super) fn start_user(&mut self, slot: usize, mut draw: Random) {
        let (holders, hosts) = (self.stage.holders(), self.stage.grants.hosts);
        let on = (hosts > 0).then(|| draw.below(hosts as u64) as usize);
        self.users.resize(holders + 1, None);
        if slot < holders && on.is_some_and(|host| self.stage.hosts().is_word_due(host)) {
            return;
        }
        let process = match slot < holders {
            true => self.start(on.map_or(MACHINE, agent_host), "holder", move |stage| {
                holder::run(stage, slot, on, draw)
            }),
            false => self.start(MACHINE, "operator", move |stage| operator::run(stage, draw)),
        };
        self.users[slot] = Some(process);
    }

    // ---- hosts that share the device ----

    pub(super) fn start_switch(&mut self, draw: Random) {
        if self.stage.grants.hosts > 0 {
            self.switch = Some(self.start(MACHINE, "switch", move |stage| switch::run(stage, draw)));
        }
    }

    /// A host is lost, or cut off from the device, which ends its processes as well.
    pub(super) fn lose_host(&self, host: usize, cut: bool) {
        self.stage.model().host_lost(host);
        self.stage.hosts().lose(host, cut);
        match cut {
            true => self.world.cut_link(agent_host(host), 0),
            false => self.world.lose_host(agent_host(host)),
        }
    }

    /// The switch lets hosts in again that were cut off, when the pool knows that they were lost.
    pub(super) fn let_in(&self) {
        let hosts = self.stage.hosts().take_cut_off();
        hosts
            .into_iter()
            .for_each(|host| self.world.mend_link(agent_host(host), 0));
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    pub(super) fn await_that(&self, what: &str, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
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
    pub(super) fn await_end(&self, what: &str, time: Nanos, processes: &[Process]) -> bool {
        let have_ended = self.await_that(what, time, || processes.iter().all(|process| !process.is_running()));
        have_ended && processes.iter().all(|process| self.has_ended_well(process))
    }

    pub(super) fn has_ended_well(&self, process: &Process) -> bool {
        match process.join() {
            Exit::Panicked(why) => {
                self.stage.shared.fail(format!("{}: {why}", process.name()));
                false
            }
            Exit::Returned | Exit::Killed => true,
        }
    }

    /// No more faults; users end what they are at.
    pub(super) fn calm_down(&mut self) -> bool {
        self.stage.calm_down();
        mark::aim(None);
        let users: Vec<Process> = self.users.iter().flatten().cloned().collect();
        // A process that opens a grant waits for half a minute at most, and for the answer to a sign of life.
        self.right_wrongs();
        self.start_programs() && self.await_end("all users end", Nanos::from_secs(120), &users) && self.say_words()
    }

    /// Hosts that were wrongly called lost are lost now, with what their caches held; whether there were any.
    fn right_wrongs(&self) -> bool {
        let wronged = self.stage.hosts().wronged();
        wronged.iter().for_each(|host| self.lose_host(*host, false));
        !wronged.is_empty()
    }

    /// The switch says what it has yet to say, and ends. What it was about to say wrongly may come in between.
    fn say_words(&mut self) -> bool {
        loop {
            let switch: Vec<Process> = self.switch.iter().cloned().collect();
            if !self.await_end("all words are said", Nanos::from_secs(120), &switch) {
                return false;
            }
            if !self.right_wrongs() {
                return self.start_programs();
            }
            self.start_switch(Random(0));
            if !self.start_programs() {
                return false;
            }
        }
    }
}
