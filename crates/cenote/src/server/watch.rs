//! Notices clients that vanished while their statement runs: the statement is cancelled, so that a transaction which waits
//! for a lock, or holds some, does not outlive the one it worked for. Clients of idle sessions need no watching: their
//! session waits in a read, which ends.

use super::registry::{Registry, State};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Statements that run longer than this are looked after.
const PERIOD: Duration = Duration::from_secs(1);

/// Watches until `stopping`; whoever sets that unparks this thread.
pub fn run(registry: &Registry, stopping: &AtomicBool) {
    let mut running = BTreeMap::new();
    while !stopping.load(Ordering::Acquire) {
        running = look(registry, &running);
        thread::park_timeout(PERIOD);
    }
}

/// Looks after the sessions that run the same statement as the last time; returns what each runs now.
fn look(registry: &Registry, before: &BTreeMap<i32, u64>) -> BTreeMap<i32, u64> {
    let mut now = BTreeMap::new();
    for entry in registry.sessions() {
        if entry.state() != State::Active {
            continue;
        }
        let statement = entry.statements();
        if before.get(&entry.id) == Some(&statement) && entry.client_left() {
            entry.cancel();
        }
        now.insert(entry.id, statement);
    }
    now
}
