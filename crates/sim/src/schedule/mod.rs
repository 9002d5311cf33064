//! Who goes on: the state of all threads, virtual time, and the choices, as a machine without coroutines.
//!
//! ```text
//!            start                    sleep
//!   (none) ───────► Ready ◄──────► running ───────► Waiting ──┐
//!                     ▲               │ return                │ wake, deadline,
//!                     │               ▼                       │ or (Explore) at random
//!                     │             Ended ◄─── kill ── any    │
//!                     └───────────────────────────────────────┘
//! ```
//!
//! What is common lies here: the threads, who sleeps on which word, the deadlines. *Which* ready thread runs, and when
//! it gives way, is the order's: [`adversary`] for [`Pace::Explore`](crate::Pace::Explore), [`events`] for
//! [`Pace::Project`](crate::Pace::Project).
//!
//! Invariants:
//! - a thread is in exactly one place: it runs, or it is in the order's ready structure, or on one word's list; an
//!   ended one is in none;
//! - the running thread's time is in [`fast`], and after each change here its bounds are set anew ([`Schedule::arm`]):
//!   no point passes a deadline or a planned switch unseen;
//! - no choice depends on an address: words are looked up by address, never walked in its order.

mod adversary;
mod events;

use crate::clock::fast;
use crate::trace;
use crate::world::Pace;
use adversary::Adversary;
use cenote_base::random::mix;
use cenote_base::rt::{HashMap, Nanos, Wait};
pub(crate) use events::Costs;
use events::Events;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A thread's number, in the order of starting.
pub(crate) type Id = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Runs, or could.
    Ready,
    Waiting {
        word: usize,
        deadline: Option<Nanos>,
        /// Tells this sleep from others of the thread.
        sleep: u64,
    },
    Ended,
}

struct Thread {
    name: String,
    host: usize,
    process: u32,
    slot: usize,
    status: Status,
    /// Why its last wait ended.
    wait: Wait,
    /// Locks that it holds, by the words that count their releases.
    holds: Vec<usize>,
    /// The order's own: see there.
    priority: u64,
    place: usize,
    clock: u64,
    slice_end: u64,
    /// The vCPU that it is on, or was last.
    core: u32,
}

/// What to do next.
pub(crate) enum Next {
    Run(Id),
    /// Nobody goes on, for this reason.
    Stuck(&'static str),
}

enum Order {
    Adversary(Adversary),
    Events(Events),
}

pub(crate) struct Schedule {
    threads: Vec<Thread>,
    current: Id,
    /// The thread at whose end the run ends.
    main: Id,
    sleepers: HashMap<usize, Vec<Id>>,
    /// Deadline, sleep, thread; an entry of an older sleep counts for nothing.
    timers: BinaryHeap<Reverse<(Nanos, u64, Id)>>,
    sleeps: u64,
    waiting: usize,
    ended: usize,
    /// When somebody last went on for another reason than a deadline.
    progress: u64,
    order: Order,
    /// By host, what its clock gains in a million. (Outside of all: nothing.)
    pub(crate) drifts: Vec<i32>,
    pub(crate) step_limit: u64,
    pub(crate) digest: u64,
    /// Words that were waited on, numbered as they came, for reports.
    words: HashMap<usize, usize>,
}

/// With the first thread asleep without a deadline and nothing but deadlines for so long, nothing will come any more.
const STALLED: u64 = 600_000_000_000;
/// What time it is when a world begins.
pub(crate) const START: Nanos = Nanos::from_secs(1);

impl Schedule {
    /// Whether threads have clocks of their own, and events come in the order of time.
    pub(crate) fn projects(&self) -> bool {
        matches!(self.order, Order::Events(_))
    }

    pub(crate) fn new(seed: u64, pace: Pace, vcpus: &[Option<u32>], costs: Costs) -> Self {
        let order = match pace {
            Pace::Explore => Order::Adversary(Adversary::new(seed)),
            Pace::Project => Order::Events(Events::new(vcpus, costs)),
        };
        Self {
            threads: Vec::new(),
            current: 0,
            main: 0,
            sleepers: HashMap::default(),
            timers: BinaryHeap::new(),
            sleeps: 0,
            waiting: 0,
            ended: 0,
            progress: START.0,
            order,
            drifts: Vec::new(),
            step_limit: u64::MAX,
            digest: seed,
            words: HashMap::default(),
        }
    }

    /// Mixes something into the digest.
    pub(crate) fn note(&mut self, word: u64) {
        self.digest = mix(self.digest.rotate_left(17) ^ word);
    }

    /// A new thread, ready.
    pub(crate) fn start(&mut self, name: &str, host: usize, process: u32, slot: usize) -> Id {
        let id = self.threads.len();
        self.threads.push(Thread {
            name: name.into(),
            host,
            process,
            slot,
            status: Status::Ready,
            wait: Wait::Woken,
            holds: Vec::new(),
            priority: 0,
            place: 0,
            clock: now(),
            slice_end: 0,
            core: 0,
        });
        trace::name(id, name);
        self.note(id as u64);
        self.progress = now();
        self.ready(id, now());
        self.arm();
        id
    }

    /// A thread's body has returned, or it was killed.
    pub(crate) fn end(&mut self, id: Id) {
        let thread = &mut self.threads[id];
        let status = std::mem::replace(&mut thread.status, Status::Ended);
        match status {
            Status::Ended => return,
            Status::Ready => self.leave(id),
            Status::Waiting { word, .. } => self.forget_sleeper(word, id),
        }
        self.ended += 1;
        self.progress = now();
        self.note(!(id as u64));
        self.arm();
    }

    fn leave(&mut self, id: Id) {
        match &mut self.order {
            Order::Adversary(a) => a.leave(&mut self.threads, id),
            Order::Events(e) => e.leave(&mut self.threads, id, id == self.current),
        }
    }

    fn ready(&mut self, id: Id, at: u64) {
        match &mut self.order {
            Order::Adversary(a) => a.ready(&mut self.threads, id),
            Order::Events(e) => e.ready(&mut self.threads, id, at),
        }
    }

    fn forget_sleeper(&mut self, word: usize, id: Id) {
        let list = self.sleepers.get_mut(&word).expect("a sleeper is on its word's list");
        list.retain(|s| *s != id);
        if list.is_empty() {
            self.sleepers.remove(&word);
        }
        self.waiting -= 1;
    }

    pub(crate) fn main(&mut self, id: Id) {
        self.main = id;
    }

    /// The process of the world's body.
    pub(crate) fn main_process(&self) -> u32 {
        self.threads[self.main].process
    }

    pub(crate) fn is_ended(&self, id: Id) -> bool {
        self.threads[id].status == Status::Ended
    }

    /// The slot of a thread, within its process.
    pub(crate) fn place_of(&self, id: Id) -> (u32, usize) {
        (self.threads[id].process, self.threads[id].slot)
    }

    /// Threads that have not ended.
    pub(crate) fn left(&self) -> usize {
        self.threads.len() - self.ended
    }

    /// A preemption point that has reached a bound: whether the running thread suspends.
    pub(crate) fn point(&mut self) -> bool {
        if fast(|f| f.steps.get()) >= self.step_limit {
            return true;
        }
        let switch = match &self.order {
            Order::Adversary(_) => self.adversary_point(),
            Order::Events(_) => self.events_point(),
        };
        self.arm();
        switch
    }

    /// The running thread spins: whether there is another to go on. `patient`: it would rather give its turn away.
    pub(crate) fn spin(&mut self, patient: bool) -> bool {
        let switch = match &self.order {
            Order::Adversary(_) => self.adversary_spin(),
            Order::Events(_) => self.events_spin(patient),
        };
        self.arm();
        switch || fast(|f| f.steps.get()) >= self.step_limit
    }

    /// The running thread sleeps on a word.
    pub(crate) fn sleep(&mut self, word: usize, timeout: Option<Nanos>) {
        let id = self.current;
        let deadline = timeout.map(|t| Nanos(now().saturating_add(t.0)));
        self.sleeps += 1;
        let sleep = self.sleeps;
        self.leave(id);
        self.threads[id].status = Status::Waiting { word, deadline, sleep };
        self.sleepers.entry(word).or_default().push(id);
        self.waiting += 1;
        if let Some(deadline) = deadline {
            self.timers.push(Reverse((deadline, sleep, id)));
        }
        self.number(word);
    }

    fn number(&mut self, word: usize) -> usize {
        let next = self.words.len() + 1;
        *self.words.entry(word).or_insert(next)
    }

    /// Why the running thread's sleep ended.
    pub(crate) fn awoken(&self) -> Wait {
        self.threads[self.current].wait
    }

    /// Wakes at most `count` sleepers on a word.
    pub(crate) fn wake_word(&mut self, word: usize, count: usize) -> usize {
        let mut woken = 0;
        while woken < count {
            let Some(list) = self.sleepers.get(&word) else {
                break;
            };
            let chosen = match &mut self.order {
                Order::Adversary(a) => a.choose(list.len()),
                Order::Events(_) => 0,
            };
            let id = list[chosen];
            self.wake(id, Wait::Woken, now());
            woken += 1;
        }
        if woken > 0 {
            self.progress = now();
            trace::add(|| format!("wakes {woken} on word {}", self.words[&word]));
            self.arm();
        }
        woken
    }

    /// A sleeper is ready again.
    fn wake(&mut self, id: Id, why: Wait, at: u64) {
        if let Status::Waiting { word, .. } = self.threads[id].status {
            self.forget_sleeper(word, id);
            self.threads[id].status = Status::Ready;
            self.threads[id].wait = why;
            self.ready(id, at);
        }
    }

    /// The next deadline of a sleeper.
    fn next_deadline(&mut self) -> Option<Nanos> {
        while let Some(Reverse((deadline, number, id))) = self.timers.peek() {
            match self.threads[*id].status {
                Status::Waiting { sleep, .. } if sleep == *number => return Some(*deadline),
                _ => _ = self.timers.pop(),
            }
        }
        None
    }

    /// Wakes the sleeper with the next deadline.
    fn fire(&mut self) {
        if let Some(Reverse((deadline, _, id))) = self.timers.pop() {
            self.wake(id, Wait::TimedOut, deadline.0);
        }
    }

    /// Nobody on a host goes on until then.
    pub(crate) fn pause(&mut self, host: usize, until: u64) {
        match &mut self.order {
            Order::Adversary(a) => a.pause(&mut self.threads, host, until),
            Order::Events(e) => e.pause(&mut self.threads, host, until, self.current),
        }
        self.arm();
    }

    /// Chooses who runs next; with nobody ready, time goes to the next deadline.
    pub(crate) fn next(&mut self) -> Next {
        let next = match &self.order {
            Order::Adversary(_) => self.adversary_next(),
            Order::Events(_) => self.events_next(),
        };
        let Some(id) = next else {
            return Next::Stuck("deadlock: nobody can go on");
        };
        if self.stalled() {
            return Next::Stuck("livelock: for ten minutes of virtual time nothing but deadlines has come");
        }
        self.run(id);
        Next::Run(id)
    }

    fn stalled(&self) -> bool {
        let asleep = matches!(self.threads[self.main].status, Status::Waiting { deadline: None, .. });
        asleep && now().saturating_sub(self.progress) > STALLED
    }

    /// `id` is the running thread from now on.
    fn run(&mut self, id: Id) {
        self.current = id;
        let thread = &self.threads[id];
        fast(|f| {
            f.thread.set(id);
            f.slot.set(thread.slot);
            f.process.set(thread.process);
            f.owner.set(crate::memory::owner(thread.core));
            f.drift.set(self.drifts.get(thread.host).copied().unwrap_or(0));
        });
        if fast(|f| f.host.replace(thread.host)) != thread.host {
            crate::views::enter();
        }
        let (steps, now) = fast(|f| (f.steps.get(), f.now.get()));
        self.note(id as u64 ^ steps << 16 ^ now.rotate_left(40));
        trace::add(|| "goes on".into());
        self.arm();
    }

    /// Sets the bounds at which a point of the running thread asks again.
    fn arm(&mut self) {
        let (limit, stop) = match &self.order {
            Order::Adversary(_) => self.adversary_bounds(),
            Order::Events(_) => self.events_bounds(),
        };
        fast(|f| {
            f.limit.set(limit);
            f.stop.set(stop.min(self.step_limit));
        });
    }

    pub(crate) fn took(&mut self, word: usize) {
        self.threads[self.current].holds.push(word);
    }

    pub(crate) fn gave(&mut self, word: usize) {
        let holds = &mut self.threads[self.current].holds;
        if let Some(at) = holds.iter().rposition(|w| *w == word) {
            holds.swap_remove(at);
        }
    }

    /// What a thread is called.
    pub(crate) fn name(&self, id: Id) -> &str {
        self.threads.get(id).map_or("", |t| &t.name)
    }

    /// A line about a thread, for a report; `hosts` are the hosts' names.
    pub(crate) fn describe(&mut self, id: Id, hosts: &[String]) -> String {
        let thread = |i: Id, t: &Thread| {
            let host = hosts.get(t.host).map_or(String::new(), |h| format!(" of host \"{h}\""));
            format!("thread {i} \"{}\"{host}", t.name)
        };
        let mut text = thread(id, &self.threads[id]);
        if let Status::Waiting { word, deadline, .. } = self.threads[id].status {
            let shared = self.sleepers[&word].len();
            text += &format!(" waits on word {} (with {} others)", self.number(word), shared - 1);
            let holders = self.threads.iter().enumerate().filter(|(_, t)| t.holds.contains(&word));
            for (i, holder) in holders {
                let ended = if holder.status == Status::Ended { ", ended" } else { "" };
                text += &format!(", held by {}{ended}", thread(i, holder));
            }
            if let Some(d) = deadline {
                text += &format!(" until {d}");
            }
        }
        text
    }
}

/// The running thread's time.
fn now() -> u64 {
    fast(|f| f.now.get())
}
