//! The order that finds faults: any ready thread may be next, as the seed's policy has it.
//!
//! A seed draws a policy, because bugs differ in what shows them: switching at nearly every point, or rarely, or
//! running by priorities that change now and then (as in "probabilistic concurrency testing", Burckhardt et al. 2010).
//! A thread that spins gives way to any other. Sleepers wake without a reason now and then, and time jumps to the next
//! deadline though threads are ready.
//!
//! What happens one point in so many is not drawn at each point, but planned: the number of points until it happens is
//! drawn once, and the points between cost nothing.

use super::table::{Id, Status, Thread, ThreadTable, now};
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
    /// The step from which on a thread of higher priority may be there.
    look: u64,
    /// The steps at which the next of each kind comes.
    switch: u64,
    jump: u64,
    spurious: u64,
    /// Paused hosts and processes, until when, and their threads that could go on.
    paused: Vec<(Paused, u64)>,
    stopped: Vec<Id>,
}

/// Whose threads do not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paused {
    Host(usize),
    Process(u32),
}

impl Paused {
    fn has(self, thread: &Thread) -> bool {
        match self {
            Self::Host(host) => thread.host == host,
            Self::Process(process) => thread.process == process,
        }
    }
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
        if self.paused.iter().any(|p| p.0.has(thread)) {
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

    pub(super) fn pause(&mut self, threads: &mut [Thread], whose: Paused, until: u64) {
        self.paused.retain(|p| p.0 != whose);
        self.paused.push((whose, until));
        let theirs: Vec<Id> = self.ready.iter().copied().filter(|t| whose.has(&threads[*t])).collect();
        for id in theirs {
            self.leave(threads, id);
            self.ready(threads, id);
        }
    }

    /// Hosts and processes whose pause is over go on.
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

    /// A point that has reached a bound: whether the running thread suspends.
    pub(super) fn point(&mut self, table: &mut ThreadTable) -> bool {
        self.disturb(table);
        let current = table.current;
        self.switches(&mut table.threads, current)
    }

    /// A turn of a spinning loop: whether there is another thread to go on.
    pub(super) fn spin(&mut self, table: &mut ThreadTable) -> bool {
        self.disturb(table);
        let current = table.current;
        self.demote(&mut table.threads, current);
        self.ready.len() > 1 || !self.is_ready(&table.threads, current)
    }

    /// Time passes oddly and sleepers wake without a reason, now and then.
    fn disturb(&mut self, table: &mut ThreadTable) {
        let step = fast(|f| f.steps.get());
        let (jump, spurious) = (step >= self.jump, step >= self.spurious);
        if jump {
            self.jump = step + self.gap(JUMP);
            if let Some(deadline) = table.next_deadline() {
                pass_to(deadline.0);
            }
        }
        if spurious {
            self.spurious = step + self.gap(SPURIOUS);
            self.wake_anyone(table);
        }
        self.expire(table);
    }

    fn wake_anyone(&mut self, table: &mut ThreadTable) {
        if table.waiting == 0 {
            return;
        }
        let nth = self.choose(table.waiting);
        let is_asleep = |id: &Id| matches!(table.threads[*id].status, Status::Waiting { .. });
        let chosen = (0..table.threads.len()).filter(is_asleep).nth(nth);
        if let Some(id) = chosen
            && table.wake(id, Wait::Woken)
        {
            self.ready(&mut table.threads, id);
        }
    }

    fn expire(&mut self, table: &mut ThreadTable) {
        while table.next_deadline().is_some_and(|d| d.0 <= now()) {
            if let Some((id, _)) = table.fire() {
                self.ready(&mut table.threads, id);
            }
        }
        self.resume(&mut table.threads);
    }

    /// The thread that runs next. Where none is ready, time goes to the next deadline; `None` if there is none either.
    pub(super) fn next(&mut self, table: &mut ThreadTable) -> Option<Id> {
        self.expire(table);
        while self.ready.is_empty() {
            let deadline = table.next_deadline().map(|d| d.0);
            let pause = self.paused.iter().map(|p| p.1).min();
            pass_to(deadline.into_iter().chain(pause).min()?);
            self.expire(table);
        }
        Some(match self.policy {
            Policy::Uniform(_) => self.ready[self.random.index(self.ready.len())],
            Policy::Priority(_) => self.highest(&table.threads)?,
        })
    }

    /// The time and the step at which a point of the running thread asks again.
    pub(super) fn bounds(&mut self, table: &mut ThreadTable) -> (u64, u64) {
        let deadline = table.next_deadline().map_or(u64::MAX, |d| d.0);
        let pause = self.paused.iter().map(|p| p.1).min().unwrap_or(u64::MAX);
        let stopped = !table.threads.is_empty() && !self.is_ready(&table.threads, table.current);
        let stop = self.switch.min(self.look).min(self.jump).min(self.spurious);
        (deadline.min(pause), if stopped { 0 } else { stop })
    }
}

/// Time passes, if it is before `time`.
fn pass_to(time: u64) {
    fast(|f| f.now.set(f.now.get().max(time)));
}
