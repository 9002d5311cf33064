//! Notices clients that vanished while their statement runs: the statement is cancelled, so that a transaction which waits
//! for a lock, or holds some, does not outlive the one it worked for. Clients of idle sessions need no watching: their
//! connection is parked, and the end of it wakes it. And sends those away that take too long to begin a session.

use super::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Statements that run longer than this are looked after.
const PERIOD: Duration = Duration::from_secs(1);

/// Watches until `stopping`; whoever sets that unparks this thread. `look_too` is called each time.
pub fn run(registry: &Registry, stopping: &AtomicBool, look_too: impl Fn()) {
    let mut running = BTreeMap::new();
    while !stopping.load(Ordering::Acquire) {
        running = look(registry, &running);
        look_too();
        thread::park_timeout(PERIOD);
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
