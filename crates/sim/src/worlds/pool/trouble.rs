//! What befalls the pool while users are at work: ways are cut, connections break, messages are lost or late,
//! hosts and single processes stand still, users and programs are killed, a pod is lost.

use cenote_base::random::Random;
use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};

use super::processes::{Processes, User};
use super::stage::Stage;
use crate::rdma::Faults;
use crate::{Process, World};

pub(super) struct Trouble<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    /// Pairs of a host and the pod that it does not reach.
    cuts: BTreeSet<(usize, usize)>,
    /// Deaths that are still to come.
    deaths: u32,
    threads: usize,
}

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        let plan = &stage.shared.plan;
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            cuts: BTreeSet::new(),
            deaths: plan.deaths * 2,
            threads: plan.sessions.div_ceil(stage.count()).max(1),
        }
    }

    /// Users work until they have done their share, and all of this comes over them.
    pub fn come(&mut self, cast: &mut Processes<'_>) {
        for pod in 0..self.stage.count() {
            self.start_users(cast, pod);
        }
        cast.start_user(self.stage.visitors(), VISITORS);
        let goal = self.stage.shared.plan.transactions;
        let lost_at = match self.stage.pods.loses {
            true => goal / 4 + self.draw.below(goal / 2 + 1),
            false => u64::MAX,
        };
        let mut next_death = self.next_death(0);
        let begun = rt::now();
        while self.stage.turns() < goal && !self.stage.shared.has_failed() && rt::now().since(begun) < MOST {
            rt::sleep(Nanos::from_micros(50));
            if self.stage.turns() >= lost_at && self.stage.alive().len() == self.stage.count() {
                self.lose_a_pod(cast);
            }
            if self.deaths > 0 && self.stage.turns() >= next_death {
                self.deaths -= 1;
                next_death = self.next_death(self.stage.turns());
                self.kill(cast);
            }
            if self.draw.one_in(120) {
                self.befall(cast);
            }
            if self.draw.one_in(FENCED_ONE_IN) {
                self.fence(cast);
            }
            self.raise(cast);
        }
        self.mend_all();
    }

    /// Deaths come at about equal distances.
    fn next_death(&mut self, now: u64) -> u64 {
        let plan = &self.stage.shared.plan;
        let distance = plan.transactions / u64::from(plan.deaths * 2 + 1);
        now + 1 + self.draw.below(2 * distance + 1)
    }

    /// One or two processes, together with all the threads that a pod is to have.
    fn start_users(&mut self, cast: &mut Processes<'_>, pod: usize) {
        let processes = if self.threads > 1 { 2 } else { 1 };
        for _ in 0..processes {
            cast.start_user(pod, self.threads.div_ceil(processes));
        }
    }

    fn befall(&mut self, cast: &Processes<'_>) {
        match self.draw.below(8) {
            0..3 => self.cut_or_mend(),
            3 => {
                let host = self.draw.below(self.stage.count() as u64) as usize;
                self.stage.shared.befalls("faults: pause");
                self.world.pause(host, Nanos(self.draw.below(2_000_000)));
            }
            4..6 => self.stop_one(cast),
            _ => {
                self.stage.shared.befalls("faults: another network");
                let resend = Nanos::from_micros(self.draw.pick(&[50, 200, 1000]));
                let faults = Faults {
                    resend,
                    breaks: self.draw.pick(&[0.0, 0.005, 0.05]),
                    straggle: Nanos::from_micros(self.draw.pick(&[50, 1_000, 10_000, 40_000])),
                    ..Faults::random(self.draw.word())
                };
                self.stage.network.set_faults(faults);
            }
        }
    }

    /// One process stands still, at any point of what its threads do; the others of its machine go on.
    fn stop_one(&mut self, cast: &Processes<'_>) {
        let users = cast.users.iter().map(|user| &user.process);
        let all: Vec<&Process> = users.chain(cast.programs.iter().flatten()).collect();
        let running: Vec<&Process> = all.into_iter().filter(|process| process.is_running()).collect();
        if let Some(n) = self.draw.word().checked_rem(running.len() as u64) {
            self.stage.shared.befalls("faults: one process stopped, and woken");
            running[n as usize].pause(Nanos(self.draw.below(ALONE_MOST.raw())));
        }
    }

    /// A pod's own program is always reached.
    fn cut_or_mend(&mut self) {
        let count = self.stage.count() as u64;
        let (from, to) = (self.draw.below(count) as usize, self.draw.below(count) as usize);
        if from == to {
            return;
        }
        let (calls, keeper_service) = self.stage.nodes(to);
        if self.cuts.remove(&(from, to)) {
            self.stage.network.mend(from, calls);
            self.stage.network.mend(from, keeper_service);
        } else if self.draw.one_in(2) {
            self.stage.shared.befalls("faults: way between pods cut");
            self.stage.network.cut(from, calls);
            self.stage.network.cut(from, keeper_service);
            self.cuts.insert((from, to));
        }
    }

    fn mend_all(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            let (calls, keeper_service) = self.stage.nodes(to);
            self.stage.network.mend(from, calls);
            self.stage.network.mend(from, keeper_service);
        }
        self.stage.network.set_faults(Faults::default());
    }

    /// A user or a program.
    fn kill(&mut self, cast: &mut Processes<'_>) {
        let alive = self.stage.alive();
        let pod = self.draw.pick(&alive);
        if self.draw.one_in(2) {
            let Some(program) = &cast.programs[pod] else { return };
            if program.is_running() && self.stage.is_ready(pod) {
                self.stage.shared.befalls("deaths: program of a pod killed");
                program.kill();
            }
            return;
        }
        let users: Vec<usize> = (0..cast.users.len())
            .filter(|n| cast.users[*n].process.host() == pod && cast.users[*n].process.is_running())
            .collect();
        if let Some(n) = self.draw.word().checked_rem(users.len() as u64) {
            let user = cast.users.swap_remove(users[n as usize]);
            self.stage.shared.befalls("deaths: user killed");
            user.process.kill();
            cast.bury(user.mark);
            let threads = self.threads.div_ceil(2);
            cast.start_user(pod, threads);
        }
    }

    /// A visitor stands still beyond its lease, at any point of what it does, alone or with all others of its machine;
    /// then it wakes up.
    fn fence(&mut self, cast: &mut Processes<'_>) {
        let host = self.stage.visitors();
        let mut running = cast.users.iter().filter(|user| user.process.host() == host);
        let awake = running.find(|user| user.process.is_running() && !self.stage.members().lock().is_fenced(user.mark));
        let Some(user) = awake else {
            return;
        };
        let time = Nanos(self.draw.below(STOPPED_MOST.raw()));
        if self.draw.one_in(2) {
            self.stage.shared.befalls("a visitor alone stopped beyond its lease");
            user.process.pause(time);
        } else {
            self.stage.shared.befalls("visitors stopped beyond their lease");
            self.world.pause(host, time);
        }
        self.stage.members().lock().fence(user.mark);
        cast.start_user(host, VISITORS);
    }

    /// Programs that were killed begin anew, at some time.
    fn raise(&mut self, cast: &mut Processes<'_>) {
        for pod in self.stage.alive() {
            let is_down = cast.programs[pod].as_ref().is_none_or(|program| !program.is_running());
            if is_down && self.draw.one_in(20) {
                self.stage.shared.befalls("programs begun anew");
                cast.start_program(pod);
            }
        }
    }

    /// A pod is gone, with its memory, its program, its users.
    fn lose_a_pod(&mut self, cast: &mut Processes<'_>) {
        let pod = self.draw.below(self.stage.count() as u64) as usize;
        self.stage.shared.befalls("deaths: pod lost");
        self.world.lose_host(pod);
        self.world.lose_device(pod);
        self.stage.lose(pod);
        cast.programs[pod] = None;
        let users = std::mem::take(&mut cast.users);
        let (gone, left) = users.into_iter().partition(|user| user.process.host() == pod);
        cast.users = left;
        let gone: Vec<User> = gone;
        gone.iter().for_each(|user| cast.bury(user.mark));
    }
}

/// Threads of a visitor.
const VISITORS: usize = 2;
/// One in so many turns of the controller visitors are fenced.
const FENCED_ONE_IN: u64 = 400;
/// How long visitors stand still at most: with that, others may have had what was theirs, or not.
const STOPPED_MOST: Nanos = Nanos::from_millis(20);

/// How long one process of a pod stands still at most.
const ALONE_MOST: Nanos = Nanos::from_millis(5);

/// Longer than this users do not work, however little they get done.
const MOST: Nanos = Nanos::from_secs(20);
