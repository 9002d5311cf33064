//! What purge's threads and the engine share.

use super::crew::Crew;
use cenote_base::Cts;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{HashMap, HashSet, Mutex};
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct Purge {
    /// Wakes the thread.
    pub signal: Arc<rt::Event>,
    /// One round at a time.
    pub round: rt::Mutex<()>,
    /// The threads that share it.
    pub crew: Arc<Crew>,
    /// Held while a record of the catalog is purged: several may name the same files.
    pub definitions: rt::Mutex<()>,
    /// Greatest horizon that was worked with: no snapshot in use, or to come, is older.
    horizon: AtomicU64,
    pub records: AtomicU64,
    /// Versions that were looked at to decide on index entries.
    pub walked: AtomicU64,
    /// How long the horizon has been the same.
    pub(super) standing: rt::Mutex<Standing>,
    /// Spaces whose free pages may be given back.
    pub freed: Freed,
    /// What the last round failed with.
    pub error: rt::Mutex<Option<String>>,
}

impl Purge {
    /// Greatest horizon that was worked with.
    pub(crate) fn horizon(&self) -> Cts {
        Cts::from_raw(self.horizon.load(Ordering::SeqCst))
    }

    /// A round works with this horizon: announced before it latches its first row.
    pub(crate) fn announce(&self, horizon: Cts) {
        self.horizon.fetch_max(horizon.raw(), Ordering::SeqCst);
    }
}

/// How long the oldest snapshot has been the same.
#[derive(Default)]
pub(super) struct Standing {
    pub horizon: Cts,
    pub since: rt::Nanos,
}

/// Spaces to look at.
#[derive(Default)]
pub(crate) struct Freed {
    /// In which pages were freed.
    pub spaces: Mutex<HashSet<u32>>,
    /// How long a free list was in which no runs were found that would be worth it.
    pub fruitless: Mutex<HashMap<u32, u32>>,
}
