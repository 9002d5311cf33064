//! Who goes on: the state of all threads, virtual time, and the choices, as a pure machine.
//!
//! ```text
//!            spawn                    wait                    
//!   (none) ───────► Ready ◄──────► running ───────► Waiting ──┐
//!                     ▲               │ return                │ wake, deadline,
//!                     │               ▼                       │ or at random
//!                     │             Ended                     │
//!                     └───────────────────────────────────────┘
//! ```
//!
//! A seed draws a policy, because bugs differ in what shows them: switching at nearly every point,
//! or rarely, or running by priorities that change now and then (as in "probabilistic concurrency
//! testing", Burckhardt et al. 2010). A thread that spins gives way to any other.

use cenote_base::rt::{MAX_THREADS, Nanos, Wait, os};
use std::fmt::Write;

/// A thread's number, in the order of starting.
pub(crate) type Id = usize;

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        os::mix(self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    Waiting { word: usize, deadline: Option<Nanos> },
    Ended,
}

struct Thread {
    name: String,
    slot: usize,
    status: Status,
    /// Why its last wait ended.
    wait: Wait,
    priority: u64,
}

/// How the next thread is chosen.
enum Policy {
    /// One point in `n` switches, to any thread.
    Uniform(u64),
    /// The ready thread of the highest priority runs; one point in `n` gives it the lowest.
    Priority(u64),
}

/// What to do next.
pub(crate) enum Next {
    Run(Id),
    /// All that are left wait for each other.
    Deadlock,
}

/// Virtual time between two preemption points.
const STEP: Nanos = Nanos(25);
/// One point in so many wakes a sleeper without a reason, as the contract allows.
const SPURIOUS: u64 = 4096;
/// One point in so many lets time jump to the next deadline though threads are ready.
const JUMP: u64 = 1024;

pub(crate) struct Schedule {
    threads: Vec<Thread>,
    ready: Vec<Id>,
    waiting: Vec<Id>,
    slots: Vec<bool>,
    pub(crate) current: Id,
    pub(crate) now: Nanos,
    pub(crate) steps: u64,
    pub(crate) step_limit: u64,
    pub(crate) digest: u64,
    /// For the program's own draws, so that they do not depend on the policy's.
    pub(crate) program: Random,
    random: Random,
    policy: Policy,
    lowest: u64,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
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
        Self {
            threads: Vec::new(),
            ready: Vec::new(),
            waiting: Vec::new(),
            slots: Vec::new(),
            current: 0,
            now: Nanos::from_secs(1),
            steps: 0,
            step_limit: u64::MAX,
            digest: seed,
            program: Random(os::mix(seed ^ 0x5EED)),
            random,
            policy,
            lowest: u64::MAX / 2,
        }
    }

    /// Mixes something into the digest.
    pub(crate) fn note(&mut self, word: u64) {
        self.digest = os::mix(self.digest.rotate_left(17) ^ word);
    }

    /// A new thread, ready; `None` if all slots are taken.
    pub(crate) fn start(&mut self, name: &str) -> Option<Id> {
        let free = self.slots.iter().position(|taken| !taken);
        let slot = free.unwrap_or(self.slots.len());
        if slot >= MAX_THREADS {
            return None;
        }
        if free.is_none() {
            self.slots.push(true);
        }
        self.slots[slot] = true;
        let priority = u64::MAX / 2 + self.random.next() / 2;
        let (status, wait) = (Status::Ready, Wait::Woken);
        let id = self.threads.len();
        self.threads.push(Thread {
            name: name.into(),
            slot,
            status,
            wait,
            priority,
        });
        self.ready.push(id);
        self.note(id as u64);
        Some(id)
    }

    /// A thread's body has returned.
    pub(crate) fn end(&mut self, id: Id) {
        self.slots[self.threads[id].slot] = false;
        self.threads[id].status = Status::Ended;
        self.ready.retain(|r| *r != id);
        self.note(!(id as u64));
    }

    pub(crate) fn slot(&self) -> usize {
        self.threads[self.current].slot
    }

    /// Threads that have not ended.
    pub(crate) fn left(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    /// A preemption point of the running thread: whether it suspends.
    pub(crate) fn point(&mut self) -> bool {
        self.steps += 1;
        self.now += STEP;
        self.disturb();
        match self.policy {
            _ if self.ready.len() < 2 => false,
            Policy::Uniform(n) => self.random.one_in(n),
            Policy::Priority(n) => {
                if self.random.one_in(n) {
                    self.demote(self.current);
                }
                self.highest() != Some(self.current)
            }
        }
    }

    /// The running thread spins: whether there is another to go on.
    pub(crate) fn spin(&mut self) -> bool {
        self.point();
        self.demote(self.current);
        self.ready.len() > 1
    }

    fn demote(&mut self, id: Id) {
        self.lowest -= 1;
        self.threads[id].priority = self.lowest;
    }

    fn highest(&self) -> Option<Id> {
        self.ready.iter().copied().max_by_key(|id| self.threads[*id].priority)
    }

    /// Time passes oddly and sleepers wake without a reason, now and then.
    fn disturb(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if self.random.one_in(JUMP)
            && let Some(next) = self.next_deadline()
        {
            self.now = self.now.max(next);
        }
        if self.random.one_in(SPURIOUS) {
            let id = self.waiting[self.random.below(self.waiting.len())];
            self.wake(id, Wait::Woken);
        }
        self.expire();
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let deadline = |id: &Id| match self.threads[*id].status {
            Status::Waiting { deadline, .. } => deadline,
            _ => None,
        };
        self.waiting.iter().filter_map(deadline).min()
    }

    fn expire(&mut self) {
        let now = self.now;
        let late = |t: &Thread| matches!(t.status, Status::Waiting { deadline: Some(d), .. } if d <= now);
        let due: Vec<Id> = self
            .waiting
            .iter()
            .copied()
            .filter(|i| late(&self.threads[*i]))
            .collect();
        for id in due {
            self.wake(id, Wait::TimedOut);
        }
    }

    fn wake(&mut self, id: Id, why: Wait) {
        self.waiting.retain(|w| *w != id);
        self.ready.push(id);
        self.threads[id].status = Status::Ready;
        self.threads[id].wait = why;
    }

    /// The running thread sleeps on a word.
    pub(crate) fn sleep(&mut self, word: usize, timeout: Option<Nanos>) {
        let id = self.current;
        let deadline = timeout.map(|t| self.now + t);
        self.threads[id].status = Status::Waiting { word, deadline };
        self.ready.retain(|r| *r != id);
        self.waiting.push(id);
    }

    /// Why the running thread's sleep ended.
    pub(crate) fn awoken(&self) -> Wait {
        self.threads[self.current].wait
    }

    /// Wakes at most `count` sleepers on a word, in any order.
    pub(crate) fn wake_word(&mut self, word: usize, count: usize) -> usize {
        let on_word = |id: &Id| matches!(self.threads[*id].status, Status::Waiting { word: w, .. } if w == word);
        let mut sleepers: Vec<Id> = self.waiting.iter().copied().filter(on_word).collect();
        let mut woken = 0;
        while woken < count && !sleepers.is_empty() {
            let id = sleepers.swap_remove(self.random.below(sleepers.len()));
            self.wake(id, Wait::Woken);
            woken += 1;
        }
        woken
    }

    /// Chooses who runs next; with nobody ready, time goes to the next deadline.
    pub(crate) fn next(&mut self) -> Next {
        self.expire();
        if self.ready.is_empty() {
            let Some(deadline) = self.next_deadline() else {
                return Next::Deadlock;
            };
            self.now = self.now.max(deadline);
            self.expire();
        }
        let id = match self.policy {
            Policy::Uniform(_) => self.ready[self.random.below(self.ready.len())],
            Policy::Priority(_) => self.highest().unwrap_or(self.ready[0]),
        };
        self.current = id;
        self.note(id as u64 ^ self.steps << 16);
        Next::Run(id)
    }

    /// A line about a thread.
    pub(crate) fn describe(&self, id: Id) -> String {
        let t = &self.threads[id];
        let mut text = format!("thread {id} \"{}\" (slot {})", t.name, t.slot);
        if let Status::Waiting { word, deadline } = t.status {
            let shared = self
                .waiting
                .iter()
                .filter(|o| matches!(self.threads[**o].status, Status::Waiting { word: w, .. } if w == word));
            let _ = write!(text, " waits on word {word:#x} ({} do)", shared.count());
            if let Some(d) = deadline {
                let _ = write!(text, " until {d}");
            }
        }
        text
    }
}
