//! Which thread goes on: the state of all threads, virtual time, and the choices, as a machine without coroutines.
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
//! What is common lies here and in [`table`]: the threads, the word on which each sleeps, the deadlines. *Which* ready
//! thread runs, and when it gives way, is the order's: [`adversary`] for [`Pace::Explore`](crate::Pace::Explore),
//! [`events`] for
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
mod table;

use crate::clock::{START, fast};
use crate::spec::{Costs, Pace};
use crate::{trace, views};
use adversary::{Adversary, Paused};
use cenote_base::random::mix;
use cenote_base::rt::{HashMap, Nanos, Wait};
use events::Events;
pub(crate) use table::Id;
use table::{Status, Thread, ThreadTable, now};

/// What to do next.
pub(crate) enum Next {
    Run(Id),
    /// No thread goes on, for this reason.
    Stuck(&'static str),
}

enum Order {
    Adversary(Adversary),
    Events(Events),
}

pub(crate) struct Schedule {
    table: ThreadTable,
    /// The thread at whose end the run ends.
    main: Id,
    ended: usize,
    /// When a thread last went on for another reason than a deadline.
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
            table: ThreadTable::default(),
            main: 0,
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
        let id = self.table.threads.len();
        self.table.threads.push(Thread {
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
        let thread = &mut self.table.threads[id];
        let status = std::mem::replace(&mut thread.status, Status::Ended);
        match status {
            Status::Ended => return,
            Status::Ready => self.leave(id),
            Status::Waiting { word, .. } => self.table.forget_sleeper(word, id),
        }
        self.ended += 1;
        self.progress = now();
        self.note(!(id as u64));
        self.arm();
    }

    fn leave(&mut self, id: Id) {
        match &mut self.order {
            Order::Adversary(a) => a.leave(&mut self.table.threads, id),
            Order::Events(e) => e.leave(&mut self.table.threads, id, id == self.table.current),
        }
    }

    fn ready(&mut self, id: Id, at: u64) {
        match &mut self.order {
            Order::Adversary(a) => a.ready(&mut self.table.threads, id),
            Order::Events(e) => e.ready(&mut self.table.threads, id, at),
        }
    }

    pub(crate) fn main(&mut self, id: Id) {
        self.main = id;
    }

    /// The process of the world's body.
    pub(crate) fn main_process(&self) -> u32 {
        self.table.threads[self.main].process
    }

    pub(crate) fn is_ended(&self, id: Id) -> bool {
        self.table.threads[id].status == Status::Ended
    }

    /// The slot of a thread, within its process.
    pub(crate) fn place_of(&self, id: Id) -> (u32, usize) {
        (self.table.threads[id].process, self.table.threads[id].slot)
    }

    /// Threads that have not ended.
    pub(crate) fn left(&self) -> usize {
        self.table.threads.len() - self.ended
    }

    /// A preemption point that has reached a bound: whether the running thread suspends.
    pub(crate) fn point(&mut self) -> bool {
        if fast(|f| f.steps.get()) >= self.step_limit {
            return true;
        }
        let switch = match &mut self.order {
            Order::Adversary(a) => a.point(&mut self.table),
            Order::Events(e) => e.point(&mut self.table),
        };
        self.go_on_or_suspend(switch)
    }

    /// The running thread spins: whether there is another to go on. `yields`: it would rather give its turn away.
    pub(crate) fn spin(&mut self, yields: bool) -> bool {
        let switch = match &mut self.order {
            Order::Adversary(a) => a.spin(&mut self.table),
            Order::Events(e) => e.spin(&mut self.table, yields),
        };
        self.go_on_or_suspend(switch || fast(|f| f.steps.get()) >= self.step_limit)
    }

    /// Bounds are for a thread that goes on. Where it suspends, [`Schedule::run`] sets those of the next.
    fn go_on_or_suspend(&mut self, suspends: bool) -> bool {
        if !suspends {
            self.arm();
        }
        suspends
    }

    /// The running thread sleeps on a word.
    pub(crate) fn sleep(&mut self, word: usize, timeout: Option<Nanos>) {
        let deadline = timeout.map(|t| Nanos(now().saturating_add(t.0)));
        self.leave(self.table.current);
        self.table.sleep(word, deadline);
        self.number(word);
    }

    fn number(&mut self, word: usize) -> usize {
        let next = self.words.len() + 1;
        *self.words.entry(word).or_insert(next)
    }

    /// Why the running thread's sleep ended.
    pub(crate) fn awoken(&self) -> Wait {
        self.table.threads[self.table.current].wait
    }

    /// Wakes at most `count` sleepers on a word.
    pub(crate) fn wake_word(&mut self, word: usize, count: usize) -> usize {
        let mut woken = 0;
        while woken < count {
            let list = self.table.sleepers(word);
            if list.is_empty() {
                break;
            }
            let chosen = match &mut self.order {
                Order::Adversary(a) => a.choose(list.len()),
                Order::Events(_) => 0,
            };
            let id = list[chosen];
            if self.table.wake(id, Wait::Woken) {
                self.ready(id, now());
            }
            woken += 1;
        }
        if woken > 0 {
            self.progress = now();
            trace::add(|| format!("wakes {woken} on word {}", self.words[&word]));
            self.arm();
        }
        woken
    }

    /// No thread of a host goes on until then.
    pub(crate) fn pause(&mut self, host: usize, until: u64) {
        match &mut self.order {
            Order::Adversary(a) => a.pause(&mut self.table.threads, Paused::Host(host), until),
            Order::Events(e) => e.pause(&mut self.table.threads, host, until, self.table.current),
        }
        self.arm();
    }

    /// No thread of a process goes on until then.
    pub(crate) fn pause_process(&mut self, process: u32, until: u64) {
        match &mut self.order {
            Order::Adversary(a) => a.pause(&mut self.table.threads, Paused::Process(process), until),
            Order::Events(_) => panic!("a projection stops hosts, and no process of its own"),
        }
        self.arm();
    }

    /// Chooses the thread that runs next; with none ready, time goes to the next deadline.
    pub(crate) fn next(&mut self) -> Next {
        let next = match &mut self.order {
            Order::Adversary(a) => a.next(&mut self.table),
            Order::Events(e) => e.next(&mut self.table),
        };
        let Some(id) = next else {
            return Next::Stuck("deadlock: no thread can go on");
        };
        if self.stalled() {
            return Next::Stuck("livelock: for ten minutes of virtual time nothing but deadlines has come");
        }
        self.run(id);
        Next::Run(id)
    }

    fn stalled(&self) -> bool {
        let asleep = matches!(
            self.table.threads[self.main].status,
            Status::Waiting { deadline: None, .. }
        );
        asleep && now().saturating_sub(self.progress) > STALLED
    }

    /// `id` is the running thread from now on.
    fn run(&mut self, id: Id) {
        self.table.current = id;
        let thread = &self.table.threads[id];
        fast(|f| {
            f.thread.set(id);
            f.slot.set(thread.slot);
            f.process.set(thread.process);
            f.owner.set(crate::memory::owner(thread.core));
            f.drift.set(self.drifts.get(thread.host).copied().unwrap_or(0));
        });
        if fast(|f| f.host.replace(thread.host)) != thread.host {
            views::enter();
        }
        let (steps, now) = fast(|f| (f.steps.get(), f.now.get()));
        self.note(id as u64 ^ steps << 16 ^ now.rotate_left(40));
        trace::add(|| "goes on".into());
        self.arm();
    }

    /// Sets the bounds at which a point of the running thread asks again.
    fn arm(&mut self) {
        let (limit, stop) = match &mut self.order {
            Order::Adversary(a) => a.bounds(&mut self.table),
            Order::Events(e) => e.bounds(&mut self.table),
        };
        fast(|f| {
            f.limit.set(limit);
            f.stop.set(stop.min(self.step_limit));
        });
    }

    pub(crate) fn took(&mut self, word: usize) {
        self.table.threads[self.table.current].holds.push(word);
    }

    pub(crate) fn gave(&mut self, word: usize) {
        let holds = &mut self.table.threads[self.table.current].holds;
        if let Some(at) = holds.iter().rposition(|w| *w == word) {
            holds.swap_remove(at);
        }
    }

    /// What a thread is called.
    pub(crate) fn name(&self, id: Id) -> &str {
        self.table.threads.get(id).map_or("", |t| &t.name)
    }

    /// A line about a thread, for a report; `hosts` are the hosts' names.
    pub(crate) fn describe(&mut self, id: Id, hosts: &[String]) -> String {
        let thread = |i: Id, t: &Thread| {
            let host = hosts.get(t.host).map_or(String::new(), |h| format!(" of host \"{h}\""));
            format!("thread {i} \"{}\"{host}", t.name)
        };
        let mut text = thread(id, &self.table.threads[id]);
        if let Status::Waiting { word, deadline, .. } = self.table.threads[id].status {
            let shared = self.table.sleepers(word).len();
            text += &format!(" waits on word {} (with {} others)", self.number(word), shared - 1);
            let holders = self
                .table
                .threads
                .iter()
                .enumerate()
                .filter(|(_, t)| t.holds.contains(&word));
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
