//! The threads of hosts: a fixed number of them, for any number of parts.
//!
//! ```text
//!   policy ──► executors ──► workers ──► serve ◄── resolvers
//! ```
//!
//! What a host has to do is a [`Task`] of one of four classes, and each class has threads of its own. Threads of one
//! class wait for those of the next at most, here or on other nodes, and never for each other: so no class starves
//! another, and hosts that order each other about do not wait in a circle, however few threads there are.
//!
//! Invariants:
//! - a host has one thread of a class at a time: its worker carries out one order after the other, its executor moves
//!   one extent;
//! - hosts of a class take turns; one that has more to do goes to the end of the line;
//! - a tenant has all threads of a class but one at most: what its parts wait for (a node that is offline, for as long
//!   as a call may take) delays the parts of no other;
//! - after [`Shared::leave`] no thread runs a task of that host, or will.

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Condvar, HashMap, HashSet, Mutex, MutexGuard, Nanos};
use cenote_base::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Of a thread that has nothing to wait for but to be woken.
const IDLE: Nanos = Nanos::from_secs(10);

/// What a host has to do, by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Orders and allocations.
    Work,
    /// Moves of the part's own extents.
    Execute,
    /// What moves, and when.
    Watch,
    /// Migrated extents without news.
    Resolve,
}

/// A host, as its crew knows it.
pub(super) trait Tasks: Send + Sync {
    /// Of all hosts of the crew.
    fn number(&self) -> u64;
    /// Whose part it is.
    fn tenant(&self) -> u32;
    /// Nothing of it is to be done any more.
    fn is_stopping(&self) -> bool;
    /// Does a piece of a task; says when there is more.
    fn run(&self, task: Task) -> Next;
}

const TASKS: [(Task, &str); 4] = [
    (Task::Work, "pool worker"),
    (Task::Execute, "pool executor"),
    (Task::Watch, "pool policy"),
    (Task::Resolve, "pool resolver"),
];

/// When a host has something to do again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// When it says so.
    Told,
    /// At once, when it is its turn.
    Now,
    At(Nanos),
}

/// Threads for hosts. Dropping it ends them, when none has a task any more.
pub struct Crew {
    pub(super) shared: Arc<Shared>,
    threads: Mutex<Vec<rt::JoinHandle<()>>>,
}

/// What hosts know of their crew.
pub(super) struct Shared {
    classes: [Class; TASKS.len()],
    /// Threads of a class that a tenant has at most.
    share: usize,
    /// Of the next host.
    number: AtomicU64,
}

#[derive(Default)]
struct Class {
    line: Mutex<Line>,
    more: Condvar,
}

/// Hosts of one class.
#[derive(Default)]
struct Line {
    /// Those that have something to do, in their order, and their numbers.
    ready: VecDeque<Arc<dyn Tasks>>,
    queued: HashSet<u64>,
    /// Those that will have.
    due: BTreeMap<(Nanos, u64), Arc<dyn Tasks>>,
    times: HashMap<u64, Nanos>,
    /// Those that a thread works for, and their tenants.
    running: Vec<(u64, u32)>,
    /// Of those, when they were told to have something to do next.
    told: HashMap<u64, Nanos>,
    /// A thread waits until the next one is due.
    is_timed: bool,
    stop: bool,
}

impl Crew {
    /// With so many threads of each class; one at least.
    ///
    /// # Errors
    /// Those of starting threads.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            classes: Default::default(),
            share: (threads - 1).max(1),
            number: AtomicU64::new(1),
        });
        let crew = Self {
            shared,
            threads: Mutex::default(),
        };
        for (task, name) in (0..threads).flat_map(|_| TASKS) {
            let shared = Arc::clone(&crew.shared);
            let thread = rt::try_spawn(name, move || shared.run(task));
            let thread = thread.map_err(|error| Error::io("starting a thread of hosts", error))?;
            crew.threads.lock().push(thread);
        }
        Ok(crew)
    }

    /// Threads that it has.
    pub fn threads(&self) -> usize {
        self.threads.lock().len()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for class in &self.shared.classes {
            class.line.lock().stop = true;
            class.more.notify_all();
        }
        let threads = core::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl core::fmt::Debug for Crew {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} threads for hosts", self.threads())
    }
}

impl Shared {
    pub(super) fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    fn class(&self, task: Task) -> &Class {
        &self.classes[task as usize]
    }

    /// A host has something to do at `when`, or earlier if that was said before.
    pub(super) fn tell(&self, task: Task, host: &Arc<dyn Tasks>, when: Nanos) {
        let class = self.class(task);
        let mut line = class.line.lock();
        if line.running.iter().any(|(number, _)| *number == host.number()) {
            let told = line.told.entry(host.number()).or_insert(when);
            *told = (*told).min(when);
            return;
        }
        line.put(host, when);
        drop(line);
        class.more.notify_one();
    }

    /// Ends all tasks of a host, which is stopping, and waits for those that threads are at.
    pub(super) fn leave(&self, host: u64) {
        for class in &self.classes {
            let mut line = class.line.lock();
            line.remove(host);
            while line.running.iter().any(|(number, _)| *number == host) {
                (line, _) = class.more.wait_timeout(line, Nanos::from_millis(20));
                line.remove(host);
            }
        }
    }

    fn run(&self, task: Task) {
        while let Some(host) = self.next(task) {
            let next = match host.is_stopping() {
                true => Next::Told,
                false => host.run(task),
            };
            self.done(task, &host, next);
        }
    }

    /// The next host whose turn it is.
    fn next(&self, task: Task) -> Option<Arc<dyn Tasks>> {
        let class = self.class(task);
        let mut line = class.line.lock();
        loop {
            if line.stop {
                return None;
            }
            let now = rt::now();
            line.collect(now);
            if let Some(host) = line.take(self.share) {
                if !line.ready.is_empty() || !line.due.is_empty() {
                    // Another thread waits for what comes next.
                    class.more.notify_one();
                }
                return Some(host);
            }
            line = class.wait(line, now);
        }
    }

    fn done(&self, task: Task, host: &Arc<dyn Tasks>, next: Next) {
        let class = self.class(task);
        let mut line = class.line.lock();
        let at = line.running.iter().position(|(number, _)| *number == host.number());
        line.running.swap_remove(at.expect("a thread works for it"));
        let told = line.told.remove(&host.number());
        let next = match next {
            Next::Told => None,
            Next::Now => Some(Nanos::ZERO),
            Next::At(time) => Some(time),
        };
        let when = told.into_iter().chain(next).min();
        if let Some(when) = when.filter(|_| !host.is_stopping()) {
            line.put(host, when);
        }
        drop(line);
        if host.is_stopping() {
            // Whoever ends it waits.
            class.more.notify_all();
        }
    }
}

impl Class {
    /// One thread waits for what is due next, the others until they are woken.
    fn wait<'a>(&'a self, mut line: MutexGuard<'a, Line>, now: Nanos) -> MutexGuard<'a, Line> {
        let due = line.due.first_key_value().map(|((time, _), _)| *time);
        let Some(due) = due.filter(|_| !line.is_timed) else {
            return self.more.wait_timeout(line, IDLE).0;
        };
        line.is_timed = true;
        let (mut line, _) = self.more.wait_timeout(line, due.since(now).min(IDLE));
        line.is_timed = false;
        line
    }
}

impl Line {
    fn put(&mut self, host: &Arc<dyn Tasks>, when: Nanos) {
        let number = host.number();
        if self.queued.contains(&number) {
            return;
        }
        match self.times.get(&number) {
            Some(time) if *time <= when => return,
            Some(time) => _ = self.due.remove(&(*time, number)),
            None => {}
        }
        self.times.insert(number, when);
        self.due.insert((when, number), Arc::clone(host));
        if when == Nanos::ZERO {
            self.collect(Nanos::ZERO);
        }
    }

    /// What is due by now has something to do.
    fn collect(&mut self, now: Nanos) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, number), host) = entry.remove_entry();
            self.times.remove(&number);
            self.queued.insert(number);
            self.ready.push_back(host);
        }
    }

    /// The first host whose tenant has not its share of threads.
    fn take(&mut self, share: usize) -> Option<Arc<dyn Tasks>> {
        let has_share = |host: &Arc<dyn Tasks>| {
            let its = self.running.iter().filter(|(_, tenant)| *tenant == host.tenant());
            its.count() < share
        };
        let at = self.ready.iter().position(has_share)?;
        let host = self.ready.remove(at)?;
        self.queued.remove(&host.number());
        self.running.push((host.number(), host.tenant()));
        Some(host)
    }

    fn remove(&mut self, number: u64) {
        self.ready.retain(|host| host.number() != number);
        self.queued.remove(&number);
        if let Some(time) = self.times.remove(&number) {
            self.due.remove(&(time, number));
        }
    }
}
