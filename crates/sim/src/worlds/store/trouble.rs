//! What befalls the members: they stop and wake up, one by one and with their machines, are fenced, are killed; and
//! where it is wild, ways and programs and a pod go as well.

use cenote_base::random::Random;
use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_space::SharedBytes;

use super::member;
use super::stage::Stage;
use crate::rdma::Faults;
use crate::worlds::pool::processes::{Processes, User};
use crate::worlds::pool::stage::device;
use crate::{Process, World};

pub(super) struct Trouble<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    /// Pairs of a host and the pod that it does not reach.
    cuts: BTreeSet<(usize, usize)>,
    deaths: u32,
    threads: usize,
}

/// One in so many turns of the controller something befalls a member, or the way.
const BEFALLS_ONE_IN: u64 = 60;
/// One in so many turns a visitor is fenced.
const FENCED_ONE_IN: u64 = 300;
/// How long what was fenced stands still at most, and what was not.
const STOPPED_MOST: Nanos = Nanos::from_millis(20);
const PAUSED_MOST: Nanos = Nanos::from_millis(4);
/// Longer than this members do not work, however little they get done.
const MOST: Nanos = Nanos::from_secs(20);

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        let plan = &stage.pool.shared.plan;
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            cuts: BTreeSet::new(),
            deaths: plan.deaths * 2,
            threads: plan.sessions.div_ceil(stage.pool.count()).max(1),
        }
    }

    /// Members work until they have done their share, and all of this comes over them.
    pub fn come(&mut self, cast: &mut Processes<'_>) {
        for host in self.stage.hosts() {
            self.start(cast, host);
        }
        let plan = self.stage.pool.shared.plan.clone();
        let loses = self.stage.wild && self.stage.pool.pods.loses && self.stage.pool.count() > 1;
        let lost_at = if loses { plan.transactions / 2 } else { u64::MAX };
        let (mut next_death, begun) = (self.next_death(0), rt::now());
        while self.stage.pool.turns() < plan.transactions && rt::now().since(begun) < MOST {
            if self.stage.pool.shared.has_failed() {
                break;
            }
            rt::sleep(Nanos::from_micros(50));
            let turns = self.stage.pool.turns();
            if turns >= lost_at && self.stage.pool.alive().len() == self.stage.pool.count() {
                self.lose_a_pod(cast);
            }
            if self.deaths > 0 && turns >= next_death {
                self.deaths -= 1;
                next_death = self.next_death(turns);
                self.kill(cast);
            }
            if self.draw.one_in(BEFALLS_ONE_IN) {
                self.befall(cast);
            }
            if self.draw.one_in(FENCED_ONE_IN) {
                self.fence(cast);
            }
            self.raise(cast);
        }
        self.mend_all();
    }

    fn start(&mut self, cast: &mut Processes<'_>, host: usize) {
        let (stage, threads) = (Arc::clone(&self.stage), self.threads);
        cast.start(host, "member", move |_, mark| member::run(&stage, host, mark, threads));
    }

    fn next_death(&mut self, now: u64) -> u64 {
        let plan = &self.stage.pool.shared.plan;
        let distance = plan.transactions / u64::from(plan.deaths * 2 + 1);
        now + 1 + self.draw.below(2 * distance + 1)
    }

    fn befall(&mut self, cast: &Processes<'_>) {
        match self.draw.below(if self.stage.wild { 8 } else { 3 }) {
            0 => {
                let host = self.draw.pick(&self.stage.hosts());
                self.stage.pool.shared.befalls("faults: pause");
                self.world.pause(host, Nanos(self.draw.below(PAUSED_MOST.raw())));
            }
            1 | 2 => self.stop_one(cast),
            3..6 => self.cut_or_mend(),
            _ => self.change_network(),
        }
    }

    /// One process stands still, at any point of what its threads do; the others of its machine go on.
    fn stop_one(&mut self, cast: &Processes<'_>) {
        let members = cast.users.iter().map(|user| &user.process);
        let all: Vec<&Process> = members.chain(cast.programs.iter().flatten()).collect();
        let running: Vec<&Process> = all.into_iter().filter(|process| process.is_running()).collect();
        if let Some(n) = self.draw.word().checked_rem(running.len() as u64) {
            self.stage.pool.shared.befalls("faults: one process stopped, and woken");
            running[n as usize].pause(Nanos(self.draw.below(PAUSED_MOST.raw())));
        }
    }

    fn change_network(&mut self) {
        self.stage.pool.shared.befalls("faults: another network");
        let faults = Faults {
            resend: Nanos::from_micros(self.draw.pick(&[50, 200, 1000])),
            breaks: self.draw.pick(&[0.0, 0.005, 0.05]),
            straggle: Nanos::from_micros(self.draw.pick(&[50, 1_000, 10_000])),
            ..Faults::random(self.draw.word())
        };
        self.stage.pool.network.set_faults(faults);
    }

    fn cut_or_mend(&mut self) {
        let (from, to) = (
            self.draw.pick(&self.stage.hosts()),
            self.draw.below(self.stage.pool.count() as u64) as usize,
        );
        if from == to {
            return;
        }
        let (calls, desk) = self.stage.pool.nodes(to);
        if self.cuts.remove(&(from, to)) {
            self.stage.pool.network.mend(from, calls);
            self.stage.pool.network.mend(from, desk);
        } else if self.draw.one_in(2) {
            self.stage.pool.shared.befalls("faults: way to a pod cut");
            self.stage.pool.network.cut(from, calls);
            self.stage.pool.network.cut(from, desk);
            self.cuts.insert((from, to));
        }
    }

    fn mend_all(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            let (calls, desk) = self.stage.pool.nodes(to);
            self.stage.pool.network.mend(from, calls);
            self.stage.pool.network.mend(from, desk);
        }
        self.stage.pool.network.set_faults(Faults::default());
    }

    /// A member, or, where it is wild, a program.
    fn kill(&mut self, cast: &mut Processes<'_>) {
        let pods = self.stage.pool.alive();
        if self.stage.wild && self.draw.one_in(2) {
            let pod = self.draw.pick(&pods);
            let running = cast.programs[pod].as_ref().filter(|program| program.is_running());
            if let Some(program) = running.filter(|_| self.stage.pool.is_ready(pod)) {
                self.stage.pool.shared.befalls("deaths: program of a pod killed");
                program.kill();
            }
            return;
        }
        let running: Vec<usize> = (0..cast.users.len())
            .filter(|n| cast.users[*n].process.is_running())
            .collect();
        if let Some(n) = self.draw.word().checked_rem(running.len() as u64) {
            let user = cast.users.swap_remove(running[n as usize]);
            let host = user.process.host();
            self.stage.pool.shared.befalls("deaths: member killed");
            self.end(cast, user);
            self.start(cast, host);
        }
    }

    /// Ends a process, as its host's agent does: what its host's caches have of a shared device is written back and
    /// dropped before others get what was its own.
    fn end(&mut self, cast: &mut Processes<'_>, user: User) {
        user.process.kill();
        let host = user.process.host();
        if let Some(pod) = self
            .stage
            .pool
            .pods
            .twin
            .filter(|pod| *pod == host || self.stage.pool.twin() == Some(host))
        {
            let stage = Arc::clone(&self.stage);
            let agent = self.world.process(host, "agent", move || {
                match SharedBytes::join(&device(pod), Default::default()) {
                    Ok(bytes) => bytes.drop_lines(),
                    Err(error) => stage.fail(format!("an agent: {error}")),
                }
            });
            agent.join();
        }
        cast.bury(user.mark);
    }

    /// A visitor stands still beyond its lease, alone or with its machine; then it wakes up. A member of the twin maps
    /// memory: its agent ends it.
    fn fence(&mut self, cast: &mut Processes<'_>) {
        let hosts = [Some(self.stage.pool.visitors()), self.stage.pool.twin()];
        let hosts: Vec<usize> = hosts.into_iter().flatten().collect();
        let host = self.draw.pick(&hosts);
        let is_awake =
            |user: &User| user.process.is_running() && !self.stage.pool.members().lock().is_fenced(user.mark);
        let found = cast
            .users
            .iter()
            .position(|user| user.process.host() == host && is_awake(user));
        let Some(found) = found else { return };
        let time = Nanos(self.draw.below(STOPPED_MOST.raw()));
        if self.draw.one_in(2) {
            cast.users[found].process.pause(time);
        } else {
            self.world.pause(host, time);
        }
        if host == self.stage.pool.visitors() {
            self.stage.pool.shared.befalls("visitors stopped beyond their lease");
            self.stage.pool.members().lock().fence(cast.users[found].mark);
        } else {
            self.stage.pool.shared.befalls("deaths: member ended for its silence");
            let user = cast.users.swap_remove(found);
            self.end(cast, user);
        }
        self.start(cast, host);
    }

    /// Programs that were killed begin anew, at some time.
    fn raise(&mut self, cast: &mut Processes<'_>) {
        for pod in self.stage.pool.alive() {
            let is_down = cast.programs[pod].as_ref().is_none_or(|program| !program.is_running());
            if is_down && self.draw.one_in(20) {
                self.stage.pool.shared.befalls("programs begun anew");
                cast.start_program(pod);
            }
        }
    }

    /// A pod is gone, with its memory, its program, its members; not the one where the table lies.
    fn lose_a_pod(&mut self, cast: &mut Processes<'_>) {
        let pod = 1 + self.draw.below(self.stage.pool.count() as u64 - 1) as usize;
        self.stage.pool.shared.befalls("deaths: pod lost");
        self.world.lose_host(pod);
        self.world.lose_device(pod);
        self.stage.pool.lose(pod);
        cast.programs[pod] = None;
        let users = std::mem::take(&mut cast.users);
        let (gone, left): (Vec<User>, Vec<User>) = users.into_iter().partition(|user| user.process.host() == pod);
        cast.users = left;
        gone.iter().for_each(|user| cast.bury(user.mark));
    }
}
