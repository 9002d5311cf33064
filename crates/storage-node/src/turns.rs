//! The threads that drive a node's replica: one takes turns, and another does while that one waits for the drive.
//!
//! ```text
//!  raft       turn ─▶ written ─▶ sync, without the driver's lock ─▶ messages that it was awaited with ─▶ turn
//!  stand-in                      │ longer than STALL, seen within a tick: turns, until it is over
//! ```
//!
//! A drive may take seconds for a sync where others use it, or where it fails slowly. Elections and leases must not
//! depend on that: the node goes on to send and answer heartbeats, and says what it promises only behind the sync.
//!
//! Invariants:
//! - one sync at a time, begun and ended by the thread that takes turns; the driver's lock is not held meanwhile;
//! - a thread that finds that a turn was not ended, by an error or a panic, ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};

use crate::replica::{Driver, Replica};

/// A sync that takes so long holds nothing up any more but what awaits it.
pub(crate) const STALL: Nanos = Nanos::from_millis(10);
/// A drive that has not synced for so long is spoken of.
const SPOKEN_OF: Nanos = Nanos::from_secs(5);

/// See the module.
pub(crate) struct Turns {
    replica: Arc<Replica>,
    /// The outermost of this crate's locks.
    driver: Mutex<Driver>,
}

impl Turns {
    pub fn new(replica: Arc<Replica>, driver: Driver) -> Arc<Turns> {
        let driver = Mutex::new(driver);
        Arc::new(Turns { replica, driver })
    }

    /// The body of the thread that takes turns, and syncs.
    pub fn take(&self) {
        while self.replica.wait_for_jobs(None) {
            let mut sync = None;
            if !self.with(|driver| driver.turn_and_begin(&mut sync)) {
                return;
            }
            while let Some(mut begun) = sync.take() {
                self.replica.sync_begins();
                // One that panics must not leave a node behind that answers and keeps nothing.
                let synced = catch_unwind(AssertUnwindSafe(|| begun.run()))
                    .unwrap_or_else(|_| Err(Error::Poisoned("the Raft log cannot go on".into())));
                self.replica.sync_ends();
                if !self.with(|driver| driver.synced(begun, synced, &mut sync)) {
                    return;
                }
            }
        }
        // The node is stopped.
        self.with(|_| Ok(false));
    }

    /// The body of the thread that takes turns while the other one waits for the drive.
    pub fn stand_in(&self) {
        while let Some(began) = self.replica.wait_for_stall(STALL) {
            let mut is_spoken_of = false;
            while self.replica.wait_for_jobs(Some(began)) {
                if !self.with(Driver::turn) {
                    return;
                }
                if !is_spoken_of && rt::now().since(began) > SPOKEN_OF {
                    is_spoken_of = true;
                    eprintln!("cenote storage: the drive has taken {SPOKEN_OF} for a sync, and is waited for");
                }
            }
        }
    }

    /// Part of a turn; false: the node ends.
    fn with(&self, part: impl FnOnce(&mut Driver) -> Result<bool>) -> bool {
        let mut driver = self.driver.lock();
        if driver.has_ended() {
            return false;
        }
        let done = catch_unwind(AssertUnwindSafe(|| part(&mut driver)));
        // The library has no other way to say that it cannot go on.
        let done = done.unwrap_or_else(|_| Err(Error::Poisoned("the Raft library cannot go on".into())));
        match done {
            Ok(true) => true,
            Ok(false) => driver.end(&Error::Lost("the storage node was stopped".into())),
            Err(error) => driver.end(&error),
        }
    }
}
