//! The order that finds faults: any ready thread may be next, as the seed's policy has it.
//!
//! A seed draws a policy, because bugs differ in what shows them: switching at nearly every point, or rarely, or
//! running by priorities that change now and then (as in "probabilistic concurrency testing", Burckhardt et al. 2010).
//! A thread that spins gives way to any other. Sleepers wake without a reason now and then, and time jumps to the next
//! deadline though threads are ready.
//!
//! What happens one point in so many is not drawn at each point, but planned: the number of points until it happens is
//! drawn once, and the points between cost nothing.

use super::{Id, Schedule, Status, Thread, now};
use crate::clock::fast;
use cenote_base::random::Random;
use cenote_base::rt::Wait;

/// How the next thread is chosen.
#[derive(Debug, Clone, Copy)]
enum Policy {
    /// One point in `n` switches, to any thread.
    Uniform(u64),
    /// The ready thread of the highest priority runs; one point in `n` gives it the lowest.
    Priority(u64),
}

/// One point in so many wakes a sleeper without a reason, as the contract allows.
const SPURIOUS: u64 = 4096;
/// One point in so many lets time jump to the next deadline though threads are ready.
const JUMP: u64 = 1024;

pub(super) struct Adversary {
    ready: Vec<Id>,
    random: Random,
    policy: Policy,
    lowest: u64,
    /// The step from which on somebody of higher priority may be there.
    look: u64,
    /// The steps at which the next of each kind comes.
    switch: u64,
    jump: u64,
    spurious: u64,
    /// Paused hosts, until when, and their threads that could go on.
    paused: Vec<(usize, u64)>,
    stopped: Vec<Id>,
}

/// A thread that is stopped, not ready, stands here.
const STOPPED: usize = usize::MAX;

impl Adversary {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = match random.below(8) {
            0 => Policy::Uniform(1),
            1 => Policy::Uniform(2),
            2 | 3 => Policy::Uniform(5),
            4 => Policy::Uniform(20),
            5 => Policy::Uniform(100),
            6 => Policy::Priority(20),
            _ => Policy::Priority(200),
        };
        let mut new = Self {
            ready: Vec::new(),
            random,
            policy,
            lowest: u64::MAX / 2,
            look: u64::MAX,
            switch: 0,
            jump: 0,
            spurious: 0,
            paused: Vec::new(),
            stopped: Vec::new(),
        };
        new.switch = new.gap(new.every());
        new.jump = new.gap(JUMP);
        new.spurious = new.gap(SPURIOUS);
        new
    }

    fn every(&self) -> u64 {
        let (Policy::Uniform(n) | Policy::Priority(n)) = self.policy;
        n
    }

    /// Points until what comes one point in `n` comes: `n` on average, at times much more.
    fn gap(&mut self, n: u64) -> u64 {
        let long = if n > 1 && self.random.one_in(16) { 8 } else { 1 };
        1 + self.random.word() % (2 * n - 1) * long
    }

    pub(super) fn choose(&mut self, among: usize) -> usize {
        self.random.index(among)
    }

    pub(super) fn ready(&mut self, threads: &mut [Thread], id: Id) {
        let thread = &mut threads[id];
        if thread.priority == 0 {
            thread.priority = u64::MAX / 2 + self.random.word() / 2;
        }
        if self.paused.iter().any(|p| p.0 == thread.host) {
            thread.place = STOPPED;
            self.stopped.push(id);
            return;
        }
        thread.place = self.ready.len();
        self.ready.push(id);
        if let Policy::Priority(_) = self.policy {
            self.look = fast(|f| f.steps.get()) + 1;
        }
    }

    pub(super) fn leave(&mut self, threads: &mut [Thread], id: Id) {
        let place = threads[id].place;
        if place == STOPPED {
            self.stopped.retain(|s| *s != id);
            return;
        }
        self.ready.swap_remove(place);
        if let Some(moved) = self.ready.get(place) {
            threads[*moved].place = place;
        }
    }

    pub(super) fn pause(&mut self, threads: &mut [Thread], host: usize, until: u64) {
        self.paused.retain(|p| p.0 != host);
        self.paused.push((host, until));
        let of_host: Vec<Id> = self
            .ready
            .iter()
            .copied()
            .filter(|t| threads[*t].host == host)
            .collect();
        for id in of_host {
            self.leave(threads, id);
            self.ready(threads, id);
        }
    }

    /// Hosts whose pause is over go on.
    fn resume(&mut self, threads: &mut [Thread]) {
        let over = now();
        if self.paused.iter().all(|p| p.1 > over) {
            return;
        }
        self.paused.retain(|p| p.1 > over);
        for id in std::mem::take(&mut self.stopped) {
            self.ready(threads, id);
        }
    }

    fn demote(&mut self, threads: &mut [Thread], id: Id) {
        self.lowest -= 1;
        threads[id].priority = self.lowest;
    }

    fn highest(&self, threads: &[Thread]) -> Option<Id> {
        self.ready.iter().copied().max_by_key(|id| threads[*id].priority)
    }

    /// The running thread does not go on at this point.
    fn switches(&mut self, threads: &mut [Thread], current: Id) -> bool {
        let step = fast(|f| f.steps.get());
        let planned = step >= self.switch;
        if planned {
            self.switch = step + self.gap(self.every());
        }
        if !self.is_ready(threads, current) {
            return true;
        }
        match self.policy {
            _ if self.ready.len() < 2 => false,
            Policy::Uniform(_) => planned,
            Policy::Priority(_) => {
                if planned {
                    self.demote(threads, current);
                }
                let looks = planned || step >= std::mem::replace(&mut self.look, u64::MAX);
                looks && self.highest(threads) != Some(current)
            }
        }
    }

    fn is_ready(&self, threads: &[Thread], id: Id) -> bool {
        threads[id].status == Status::Ready && threads[id].place != STOPPED
    }
}

impl Schedule {
    fn adversary(&mut self) -> (&mut Adversary, &mut Vec<Thread>) {
        match &mut self.order {
            super::Order::Adversary(a) => (a, &mut self.threads),
            super::Order::Events(_) => unreachable!("asked only when exploring"),
        }
    }

    pub(super) fn adversary_point(&mut self) -> bool {
        self.disturb();
        let current = self.current;
        let (adversary, threads) = self.adversary();
        adversary.switches(threads, current)
    }

    pub(super) fn adversary_spin(&mut self) -> bool {
        self.disturb();
        let current = self.current;
        let (adversary, threads) = self.adversary();
        adversary.demote(threads, current);
        adversary.ready.len() > 1 || !adversary.is_ready(threads, current)
    }

    /// Time passes oddly and sleepers wake without a reason, now and then.
    fn disturb(&mut self) {
        let step = fast(|f| f.steps.get());
        let (adversary, _) = self.adversary();
        let (jump, spurious) = (step >= adversary.jump, step >= adversary.spurious);
        if jump {
            adversary.jump = step + adversary.gap(JUMP);
            if let Some(deadline) = self.next_deadline() {
                pass_to(deadline.0);
            }
        }
        if spurious {
            let (adversary, _) = self.adversary();
            adversary.spurious = step + adversary.gap(SPURIOUS);
            self.wake_anyone();
        }
        self.expire();
    }

    fn wake_anyone(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let waiting = self.waiting;
        let mut nth = self.adversary().0.choose(waiting);
        let is_asleep = |t: &Thread| matches!(t.status, Status::Waiting { .. });
        let mut asleep = (0..self.threads.len()).filter(|i| is_asleep(&self.threads[*i]));
        let chosen = asleep.find(|_| {
            nth = nth.wrapping_sub(1);
            nth == usize::MAX
        });
        if let Some(id) = chosen {
            self.wake(id, Wait::Woken, 0);
        }
    }

    fn expire(&mut self) {
        while self.next_deadline().is_some_and(|d| d.0 <= now()) {
            self.fire();
        }
        let (adversary, threads) = self.adversary();
        adversary.resume(threads);
    }

    pub(super) fn adversary_next(&mut self) -> Option<Id> {
        self.expire();
        while self.adversary().0.ready.is_empty() {
            let deadline = self.next_deadline().map(|d| d.0);
            let pause = self.adversary().0.paused.iter().map(|p| p.1).min();
            pass_to(deadline.into_iter().chain(pause).min()?);
            self.expire();
        }
        let (adversary, threads) = self.adversary();
        Some(match adversary.policy {
            Policy::Uniform(_) => adversary.ready[adversary.random.index(adversary.ready.len())],
            Policy::Priority(_) => adversary.highest(threads)?,
        })
    }

    pub(super) fn adversary_bounds(&mut self) -> (u64, u64) {
        let deadline = self.next_deadline().map_or(u64::MAX, |d| d.0);
        let current = self.current;
        let (adversary, threads) = self.adversary();
        let pause = adversary.paused.iter().map(|p| p.1).min().unwrap_or(u64::MAX);
        let stopped = !threads.is_empty() && !adversary.is_ready(threads, current);
        let stop = adversary
            .switch
            .min(adversary.look)
            .min(adversary.jump)
            .min(adversary.spurious);
        (deadline.min(pause), if stopped { 0 } else { stop })
    }
}

/// Time passes, if it is before `time`.
fn pass_to(time: u64) {
    fast(|f| f.now.set(f.now.get().max(time)));
}
