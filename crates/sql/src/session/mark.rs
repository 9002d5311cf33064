//! Where a session stood when a batch of its client began: if the server goes before the batch is answered, the session
//! returns there, and the batch can be sent to another server as if it had not come to this one.

use super::transaction::Phase;
use crate::settings::Settings;
use cenote_engine::Savepoint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a session stood.
pub struct Mark {
    /// How far its transaction was.
    pub phase: Phase,
    /// Which transaction it was, of the session's.
    pub begun: u64,
    /// Of a block: the place in the engine's transaction.
    pub savepoint: Option<Savepoint>,
    /// Settings in force.
    pub settings: Arc<Settings>,
    /// Access mode.
    pub read_only: bool,
    /// Whether a query had run.
    pub queried: bool,
    /// Timestamp of the last commit.
    pub committed: u64,
    /// How often statements of PREPARE had come or gone.
    pub prepared: u64,
    /// Rows that the transaction had changed.
    pub rows: u64,
    /// How often a sequence had been set.
    pub sequences_set: u64,
    /// Whether a portal was open that cannot be left out.
    pub has_portals: bool,
}

/// What a session knows of its server's end.
#[derive(Default)]
pub struct Leaving {
    /// Whether the server ends.
    pub ends: Option<Arc<AtomicBool>>,
    /// Where the client's batch began.
    pub mark: Option<Mark>,
    /// The session stands there: of the batch nothing is left.
    pub is_back: bool,
}

impl Leaving {
    /// Whether the server ends, and a batch may be left to another one.
    pub fn is_due(&self) -> bool {
        let ends = self.ends.as_ref();
        self.mark.is_some() && ends.is_some_and(|ends| ends.load(Ordering::Acquire))
    }
}
