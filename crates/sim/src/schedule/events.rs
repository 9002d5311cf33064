//! The order that predicts: vCPUs, run queues, and events in the order of time.
//!
//! Each thread on a vCPU has a clock of its own. The one whose clock is least runs, and runs on until it is ahead of
//! the next event by more than a small slack: a discrete-event simulation whose events are stretches of the real code.
//! A thread that waits gives its vCPU to the next of its host's queue, or leaves it idle; a memory stall moves its
//! clock and keeps the vCPU.
//!
//! ```text
//!   ready ──► an idle vCPU? ── yes ──► on it, from the later of both times on, a context switch later
//!                  └── no ──► queue ──► a vCPU whose thread waits, ends, or has used up its slice
//! ```
//!
//! Invariants:
//! - a thread on a vCPU that does not run has one entry in `running` with its clock; entries with another clock, or of
//!   a thread that ended, count for nothing;
//! - vCPUs that are idle, and threads on vCPUs, are as many as the host has; the queue is empty unless no vCPU is idle;
//! - equal times are in the order of thread numbers: nothing is drawn, nothing depends on addresses.

use super::table::{Id, Status, Thread, ThreadTable, now};
use crate::clock::fast;
use crate::spec::Costs;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Not on a vCPU: in its host's queue. (`Thread::place`.)
const ON_VCPU: usize = 0;
const QUEUED: usize = 1;

/// A processor that is idle.
#[derive(Debug, Clone, Copy)]
struct Idle {
    core: u32,
    since: u64,
}

/// A host's processors.
struct Vcpus {
    /// Those that are idle; `None`: there are always enough.
    idle: Option<Vec<Idle>>,
    queue: VecDeque<Id>,
    paused_until: u64,
}

pub(super) struct Events {
    running: BinaryHeap<Reverse<(u64, Id)>>,
    hosts: Vec<Vcpus>,
    costs: Costs,
}

impl Events {
    pub(super) fn new(vcpus: &[Option<u32>], costs: Costs) -> Self {
        let host = |n: &Option<u32>| Vcpus {
            idle: n.map(|n| (0..n).rev().map(|core| Idle { core, since: 0 }).collect()),
            queue: VecDeque::new(),
            paused_until: 0,
        };
        Self {
            running: BinaryHeap::new(),
            hosts: vcpus.iter().map(host).collect(),
            costs,
        }
    }

    pub(super) fn ready(&mut self, threads: &mut [Thread], id: Id, at: u64) {
        let thread = &mut threads[id];
        let host = &mut self.hosts[thread.host];
        thread.clock = thread.clock.max(at).max(host.paused_until);
        let free = match &mut host.idle {
            None => thread.clock,
            Some(idle) => match take_idle(idle, thread.core) {
                Some(vcpu) => {
                    thread.core = vcpu.core;
                    thread.clock.max(vcpu.since) + self.costs.switch
                }
                None => {
                    thread.place = QUEUED;
                    host.queue.push_back(id);
                    return;
                }
            },
        };
        self.dispatch(thread, id, free);
    }

    /// The thread is on a vCPU, from `at` on.
    fn dispatch(&mut self, thread: &mut Thread, id: Id, at: u64) {
        thread.place = ON_VCPU;
        thread.clock = at;
        thread.slice_end = at + self.costs.slice;
        self.running.push(Reverse((at, id)));
    }

    /// A vCPU of a host is free: the next of its queue has it, or none.
    fn free(&mut self, threads: &mut [Thread], (host, core): (usize, u32), at: u64) {
        let vcpus = &mut self.hosts[host];
        let at = at.max(vcpus.paused_until);
        let Some(idle) = &mut vcpus.idle else {
            return;
        };
        match vcpus.queue.pop_front() {
            Some(next) => {
                let start = at.max(threads[next].clock) + self.costs.switch;
                threads[next].core = core;
                self.dispatch(&mut threads[next], next, start);
            }
            None => idle.push(Idle { core, since: at }),
        }
    }

    /// The thread waits or has ended.
    pub(super) fn leave(&mut self, threads: &mut [Thread], id: Id, runs: bool) {
        let (host, place, clock, core) = (threads[id].host, threads[id].place, threads[id].clock, threads[id].core);
        if place == QUEUED {
            self.hosts[host].queue.retain(|q| *q != id);
            return;
        }
        let at = if runs { now() } else { clock };
        threads[id].clock = at;
        self.free(threads, (host, core), at);
    }

    pub(super) fn pause(&mut self, threads: &mut [Thread], host: usize, until: u64, current: Id) {
        self.hosts[host].paused_until = until;
        for (id, thread) in threads.iter_mut().enumerate() {
            let on_vcpu = thread.host == host && thread.status == Status::Ready && thread.place == ON_VCPU;
            if on_vcpu && id != current && thread.clock < until {
                thread.clock = until;
                thread.slice_end = until + self.costs.slice;
                self.running.push(Reverse((until, id)));
            }
        }
        if threads[current].host == host {
            fast(|f| f.now.set(f.now.get().max(until)));
        }
    }

    /// The least clock of a thread on a vCPU that does not run.
    fn least(&mut self, threads: &[Thread]) -> Option<(u64, Id)> {
        while let Some(Reverse((clock, id))) = self.running.peek().copied() {
            let thread = &threads[id];
            if thread.status == Status::Ready && thread.place == ON_VCPU && thread.clock == clock {
                return Some((clock, id));
            }
            self.running.pop();
        }
        None
    }

    /// The running thread goes to the end of its host's queue, if another thread is there.
    fn requeue(&mut self, threads: &mut [Thread], id: Id) -> bool {
        let (host, core) = (threads[id].host, threads[id].core);
        if self.hosts[host].queue.is_empty() {
            return false;
        }
        threads[id].place = QUEUED;
        threads[id].clock = now();
        self.hosts[host].queue.push_back(id);
        self.free(threads, (host, core), now());
        true
    }

    /// The running thread keeps its vCPU and lets others catch up.
    fn stand(&mut self, threads: &mut [Thread], id: Id) {
        threads[id].clock = now();
        self.running.push(Reverse((now(), id)));
    }

    /// A point that has reached a bound: whether the running thread suspends.
    pub(super) fn point(&mut self, table: &mut ThreadTable) -> bool {
        let (current, next) = (table.current, self.next_event(table));
        let late = now() >= table.threads[current].slice_end;
        if late && self.requeue(&mut table.threads, current) {
            return true;
        }
        let ahead = next.is_some_and(|next| now() >= next.saturating_add(self.costs.slack));
        if ahead {
            self.stand(&mut table.threads, current);
        }
        ahead
    }

    /// A turn of a spinning loop: whether there is another thread to go on. `yields`: it would rather give its turn
    /// away.
    pub(super) fn spin(&mut self, table: &mut ThreadTable, yields: bool) -> bool {
        let cost = if yields { self.costs.yielded } else { self.costs.relax };
        fast(|f| f.now.set(f.now.get() + cost));
        let current = table.current;
        if yields && self.requeue(&mut table.threads, current) {
            return true;
        }
        self.point(table)
    }

    /// When something happens apart from the running thread.
    fn next_event(&mut self, table: &mut ThreadTable) -> Option<u64> {
        let deadline = table.next_deadline().map(|d| d.0);
        let clock = self.least(&table.threads).map(|l| l.0);
        deadline.into_iter().chain(clock).min()
    }

    /// The thread that runs next: the one whose clock is least, once the deadlines before it have fired.
    pub(super) fn next(&mut self, table: &mut ThreadTable) -> Option<Id> {
        loop {
            let deadline = table.next_deadline().map(|d| d.0);
            match (self.least(&table.threads), deadline) {
                (Some((clock, id)), d) if d.is_none_or(|d| clock < d) => {
                    self.running.pop();
                    fast(|f| f.now.set(clock));
                    return Some(id);
                }
                (_, Some(_)) => {
                    if let Some((id, deadline)) = table.fire() {
                        self.ready(&mut table.threads, id, deadline.0);
                    }
                }
                (_, None) => return None,
            }
        }
    }

    /// The time and the step at which a point of the running thread asks again.
    pub(super) fn bounds(&mut self, table: &mut ThreadTable) -> (u64, u64) {
        let next = self.next_event(table);
        let ahead = next.map_or(u64::MAX, |n| n.saturating_add(self.costs.slack));
        let running = table.threads.get(table.current);
        let slice = running.map_or(u64::MAX, |t| match self.hosts[t.host].queue.is_empty() {
            true => u64::MAX,
            false => t.slice_end,
        });
        (ahead.min(slice), u64::MAX)
    }
}

/// An idle vCPU for a thread: the one that it was on last, whose caches may have its lines, or any.
fn take_idle(idle: &mut Vec<Idle>, last: u32) -> Option<Idle> {
    match idle.iter().position(|vcpu| vcpu.core == last) {
        Some(at) => Some(idle.swap_remove(at)),
        None => idle.pop(),
    }
}
