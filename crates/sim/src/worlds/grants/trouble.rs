//! What befalls the pool: ways are cut, messages late, hosts stand still, processes are killed or cannot be, power is
//! cut.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};

use super::processes::Processes;
use super::role::{MACHINE, Role, agent_host, manager_host};
use super::stage::{OPERATOR, Stage, holder_name};
use crate::clock;
use crate::etcd;
use crate::message::Faults;
use crate::{Process, World};

/// Between two looks at what is to happen.
const TURN: Nanos = Nanos::from_millis(10);
/// Longer than this users do not work, however little they get done.
const MOST: Nanos = Nanos::from_secs(120);
/// A process that hangs does so for up to so long: longer than a memory node waits.
const HANGS_MOST: Nanos = Nanos::from_secs(9);

pub(super) struct Trouble<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    /// Deaths that are still to come.
    deaths: u32,
}

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            deaths: stage.shared.plan.deaths * 4,
        }
    }

    /// Users work until they have done their share, and all of this comes over them.
    pub fn come(&mut self, cast: &mut Processes<'_>) {
        for slot in 0..=self.stage.holders() {
            self.start_user(cast, slot);
        }
        let goal = self.stage.shared.plan.transactions / 4;
        let (begun, mut next_death) = (rt::now(), self.next_death(0, goal));
        while self.stage.turns() < goal && !self.stage.shared.has_failed() && rt::now().since(begun) < MOST {
            rt::sleep(TURN);
            if self.deaths > 0 && self.stage.turns() >= next_death {
                self.deaths -= 1;
                next_death = self.next_death(self.stage.turns(), goal);
                self.kill(cast);
            }
            if self.draw.one_in(60) {
                self.befall(cast);
            }
            self.raise(cast);
        }
    }

    /// Deaths come at about equal distances.
    fn next_death(&mut self, now: u64, goal: u64) -> u64 {
        let distance = goal / u64::from(self.stage.shared.plan.deaths * 4 + 1);
        now + 1 + self.draw.below(2 * distance + 1)
    }

    fn start_user(&mut self, cast: &mut Processes<'_>, slot: usize) {
        let of_user = Random(self.draw.word());
        cast.start_user(slot, of_user);
    }

    fn befall(&mut self, cast: &Processes<'_>) {
        if self.stage.grants.managers > 1 && self.draw.one_in(2) {
            return self.befall_etcd();
        }
        match self.draw.below(8) {
            0..4 => self.cut_or_mend(),
            4 => self.pause(),
            5 => {
                self.stage.shared.befalls("faults: another network");
                self.stage.net.set_faults(Faults::random(self.draw.word()));
            }
            6 => self.hang(cast),
            _ => self.stage.net.mend_all(),
        }
    }

    /// What a manager that leads rests on: its own way to etcd, or all of etcd.
    fn befall_etcd(&mut self) {
        let (stage, any) = (Arc::clone(&self.stage), self.any_manager());
        let leader = stage.leaderships().leader.clone();
        let leader = (0..stage.grants.managers).find(|n| stage.manager(*n) == leader);
        let manager = leader.filter(|_| !self.draw.one_in(3)).unwrap_or(any);
        let shared = &stage.shared;
        // A cut lasts for longer than a lease, as a rule; an etcd that comes back begins all leases anew.
        match self.draw.below(24) {
            0..6 => {
                shared.befalls("faults: way to etcd cut");
                shared.step(format!("manager{manager} is cut off from etcd"));
                stage.etcd.cut(manager_host(manager));
            }
            13..16 => self.besiege(manager),
            6 => (0..stage.grants.managers).for_each(|n| stage.etcd.mend(manager_host(n))),
            7 => {
                shared.befalls("faults: etcd goes");
                stage.etcd.stop();
            }
            8..12 => stage.etcd.start(),
            12 => {
                shared.befalls("faults: another way to etcd");
                stage.etcd.set_faults(etcd::Faults::random(self.draw.word()));
            }
            _ => {}
        }
    }

    /// A manager that leads is cut off from etcd, and the others stand still until its lease lapses there: then they
    /// ask at once.
    fn besiege(&mut self, leader: usize) {
        let stage = Arc::clone(&self.stage);
        let Some(lapses) = stage.etcd.lapses_at() else { return };
        stage
            .shared
            .befalls("faults: leader cut off from etcd, and followed at once");
        stage.etcd.cut(manager_host(leader));
        let most = 1 + self.draw.pick(&[0, 5_000_000]);
        let time = lapses.since(clock::now()) + Nanos(self.draw.below(most));
        for other in (0..stage.grants.managers).filter(|n| *n != leader) {
            stage.etcd.mend(manager_host(other));
            self.world.pause(manager_host(other), time);
        }
    }

    fn any_manager(&mut self) -> usize {
        match self.stage.grants.managers {
            1 => 0,
            many => self.draw.below(many as u64) as usize,
        }
    }

    /// Between a manager and another process, one way or both.
    fn cut_or_mend(&mut self) {
        let (holders, nodes) = (self.stage.holders(), self.stage.grants.nodes);
        let all = holders + nodes + self.stage.grants.hosts + 1;
        let peer = match self.draw.below(all as u64) as usize {
            n if n < holders => holder_name(n),
            n if n < holders + nodes => Role::Node(n - holders).name(),
            n if n + 1 < all => Role::Agent(n - holders - nodes).name(),
            _ => OPERATOR.into(),
        };
        let manager = Role::Manager(self.any_manager()).name();
        let ways = [(&*manager, &*peer), (&*peer, &*manager)];
        let cuts = self.draw.below(4);
        for (n, (from, to)) in ways.into_iter().enumerate() {
            match cuts {
                3 => self.stage.net.mend(from, to),
                2 => self.cut(from, to),
                cut if cut == n as u64 => self.cut(from, to),
                _ => {}
            }
        }
    }

    fn cut(&self, from: &str, to: &str) {
        self.stage.shared.count("faults: way cut");
        self.stage.shared.step(format!("the way from {from} to {to} is cut"));
        self.stage.net.cut(from, to);
    }

    /// For less than a lease, or more.
    fn pause(&mut self) {
        let (managers, hosts) = (self.stage.grants.managers, self.stage.grants.hosts);
        let host = match self.draw.below((managers + hosts + 1) as u64) as usize {
            n if n < managers => manager_host(n),
            n if n < managers + hosts => agent_host(n - managers),
            _ => MACHINE,
        };
        let lease = self.stage.grants.lease.max(Nanos::from_secs(self.stage.grants.ttl));
        let time = Nanos(self.draw.below(3 * lease.raw()));
        self.stage.shared.count("faults: pause");
        self.stage.shared.step(format!("host {host} is paused for {time}"));
        self.world.pause(host, time);
    }

    fn hang(&mut self, cast: &Processes<'_>) {
        let holders: Vec<u32> = cast.users.iter().flatten().map(Process::id).collect();
        let process = self.draw.pick(&holders);
        let time = Nanos(self.draw.below(HANGS_MOST.raw()));
        self.stage.shared.count("faults: process that cannot be ended");
        self.stage
            .shared
            .step(format!("process {process} cannot be ended for {time}"));
        self.stage.machine().hang(process, clock::now() + time);
    }

    /// A user or a program.
    fn kill(&mut self, cast: &mut Processes<'_>) {
        match self.draw.below(8) {
            0..3 => {
                let slot = self.draw.below(self.stage.holders() as u64 + 1) as usize;
                if let Some(user) = cast.users[slot].as_ref().filter(|user| user.is_running()) {
                    self.stage.shared.befalls("deaths: user killed");
                    user.kill();
                }
            }
            4 if self.stage.grants.hosts > 0 => self.lose_host(cast),
            3 => {
                self.stage.shared.befalls("deaths: manager's host lost");
                let manager = self.any_manager();
                self.world.lose_host(manager_host(manager));
            }
            _ => {
                let n = self.draw.below(cast.programs.len() as u64) as usize;
                let (role, process) = &cast.programs[n];
                if let Some(process) = process.as_ref().filter(|process| process.is_running()) {
                    self.stage.shared.befalls(match role {
                        Role::Manager(_) => "deaths: manager killed",
                        Role::Node(_) => "deaths: memory node killed",
                        Role::Agent(_) => "deaths: agent killed",
                    });
                    process.kill();
                }
            }
        }
    }

    /// One that shares the device, with what its caches hold of it.
    fn lose_host(&mut self, cast: &Processes<'_>) {
        let host = self.draw.below(self.stage.grants.hosts as u64) as usize;
        let cut = self.draw.one_in(3);
        let how = if cut { "cut off by the switch" } else { "lost" };
        self.stage.shared.befalls(&format!("deaths: host {how}"));
        self.stage.shared.step(format!("host {host} is {how}"));
        cast.lose_host(host, cut);
    }

    /// A killed process begins anew, at some time.
    fn raise(&mut self, cast: &mut Processes<'_>) {
        cast.let_in();
        // It was called lost, wrongly: it is booted, as it has to be.
        let wronged = self.stage.hosts().wronged();
        for host in wronged {
            if self.draw.one_in(60) {
                cast.lose_host(host, false);
            }
        }
        for n in 0..cast.programs.len() {
            if cast.is_down(n) && self.draw.one_in(40) {
                self.stage.shared.befalls("programs begun anew");
                cast.start_program(n);
            }
        }
        for slot in 0..cast.users.len() {
            let is_down = cast.users[slot].as_ref().is_none_or(|user| !user.is_running());
            if is_down && self.draw.one_in(40) {
                self.start_user(cast, slot);
            }
        }
    }
}
