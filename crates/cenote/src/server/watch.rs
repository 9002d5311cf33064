//! Notices clients that vanished while their statement runs: the statement is cancelled, so that a transaction which
//! waits for a lock, or holds some, does not outlive the one it worked for. Clients of idle sessions need no watching:
//! their connection is parked, and the end of it wakes it. Wakes those whose time is up. And keeps the server from
//! standing still when the system has no more threads.

use super::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Statements that run longer than this are looked after.
const PERIOD: Duration = Duration::from_secs(1);

/// For so many looks all threads may wait, with none to be had, before a statement is stopped.
const STUCK_MAX: u32 = 5;

/// Watches until `stopping`; the thread that sets it unparks this one. `look_too` is called each time, and says whether
/// all threads wait with none to be had.
pub fn run(registry: &Registry, stopping: &AtomicBool, look_too: impl Fn() -> bool) {
    let mut running = BTreeMap::new();
    let mut stuck = 0;
    while !stopping.load(Ordering::Acquire) {
        running = look(registry, &running);
        stuck = if look_too() { stuck + 1 } else { 0 };
        if stuck >= STUCK_MAX {
            stop_one(registry, &running);
        }
        thread::park_timeout(PERIOD);
    }
}

/// Stops the statement that keeps a thread, of the session that came last.
fn stop_one(registry: &Registry, running: &BTreeMap<i32, u64>) {
    let active = registry.active();
    let waits = active
        .iter()
        .rev()
        .find(|entry| entry.keeps_thread() && running.get(&entry.id) == Some(&entry.statements()));
    if let Some(entry) = waits {
        entry.stop_for_thread();
    }
}

/// Looks after the sessions that run the same statement as the last time; returns what each runs now.
fn look(registry: &Registry, before: &BTreeMap<i32, u64>) -> BTreeMap<i32, u64> {
    let mut now = BTreeMap::new();
    for entry in registry.active() {
        let statement = entry.statements();
        if before.get(&entry.id) == Some(&statement) && entry.client_left() {
            entry.cancel();
        }
        now.insert(entry.id, statement);
    }
    now
}
