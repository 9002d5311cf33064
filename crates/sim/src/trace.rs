//! The last steps of a run: each thread's steps, on which host, when. Off unless asked for.

use crate::clock::fast;
use cenote_base::rt::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, by the clock of the thread that did it.
    pub time: Nanos,
    /// The host's name; empty outside of all hosts.
    pub host: Rc<str>,
    /// The thread's number, in the order of starting.
    pub thread: usize,
    /// The thread's name.
    pub name: Rc<str>,
    /// What it did.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.is_empty() { "-" } else { &self.host };
        let Self {
            time,
            thread,
            name,
            what,
            ..
        } = self;
        write!(f, "{:>16} {host:<8} {thread:>4} {name:<16} {what}", time.0)
    }
}

/// Where events are kept, and what threads and hosts are called.
#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    room: usize,
    hosts: Vec<Rc<str>>,
    threads: Vec<Rc<str>>,
}

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static RING: RefCell<Ring> = RefCell::default();
}

/// Whether steps are kept: one load.
#[inline]
pub fn on() -> bool {
    ON.get()
}

/// Keeps a step of the running thread, if steps are kept: `what` is not called otherwise.
#[inline]
pub fn add(what: impl FnOnce() -> String) {
    if on() {
        let text = what();
        add_of(fast(|f| f.thread.get()), fast(|f| f.host.get()), text);
    }
}

#[cold]
fn add_of(thread: usize, host: usize, what: String) {
    RING.with_borrow_mut(|ring| {
        let named = |names: &[Rc<str>], i: usize| names.get(i).cloned().unwrap_or_default();
        let event = Event {
            time: crate::clock::now(),
            host: named(&ring.hosts, host),
            thread,
            name: named(&ring.threads, thread),
            what,
        };
        if ring.events.len() == ring.room {
            ring.events.pop_front();
        }
        ring.events.push_back(event);
    });
}

/// A world begins: keeps its last `room` steps.
pub(crate) fn begin(room: usize, hosts: &[&str]) {
    ON.set(room > 0);
    RING.with_borrow_mut(|ring| {
        *ring = Ring {
            room,
            hosts: hosts.iter().map(|h| (*h).into()).collect(),
            ..Ring::default()
        };
    });
}

/// Thread `id` is called so.
pub(crate) fn name(id: usize, name: &str) {
    if on() {
        RING.with_borrow_mut(|ring| {
            ring.threads.resize(id, "".into());
            ring.threads.push(name.into());
        });
    }
}

/// The world has ended: what is kept stays until the next begins.
pub(crate) fn end() {
    ON.set(false);
}

/// What is kept, oldest first.
pub(crate) fn events() -> Vec<Event> {
    RING.with_borrow(|ring| ring.events.iter().cloned().collect())
}
