//! A cache of the statistics that were read in the catalog, and counts of changes.
//!
//! A planner's first question about a table reads its row, and what is found, even nothing,
//! stays in the cache until a transaction that has written other statistics has committed, durably, or dropped the
//! table.
//!
//! Whoever reads a row notes the *epoch* before, and what it has read enters the cache only if no statistics were
//! published since. So the cache never holds what is older than the newest publication of the table.

use crate::statistics::Statistics;
use cenote_base::Cts;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Tables in the cache, at most; then it begins anew.
const KNOWN_MAX: usize = 4096;
/// Counters of changes; tables share one whose ids are equal modulo this.
const COUNTERS: usize = 4096;

/// What a transaction has done to a table's statistics.
#[derive(Clone)]
pub(crate) struct NewStatistics {
    pub table: u32,
    /// None: the table is dropped.
    pub statistics: Option<Arc<Statistics>>,
    /// [`KnownStatistics::changes`] when the sample was begun.
    pub changes: u64,
}

/// Statistics of all tables, as far as they were asked for.
pub(crate) struct KnownStatistics {
    known: rt::RwLock<rt::HashMap<u32, Option<Arc<Statistics>>>>,
    /// Places of the newest commits that were told of, by table.
    published: rt::Mutex<rt::HashMap<u32, Cts>>,
    epoch: AtomicU64,
    serial: AtomicU64,
    /// Rows that committed transactions have changed since the start, by table.
    changes: Box<[AtomicU64]>,
    /// What those counts were when a table was last analyzed.
    analyzed: rt::Mutex<rt::HashMap<u32, u64>>,
}

impl KnownStatistics {
    pub(crate) fn new() -> KnownStatistics {
        KnownStatistics {
            known: rt::RwLock::default(),
            epoch: AtomicU64::new(1),
            // Beyond those of former runs.
            serial: AtomicU64::new(rt::wall_micros().max(1) as u64),
            changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            analyzed: rt::Mutex::default(),
            published: rt::Mutex::default(),
        }
    }

    /// Rises with each publication.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A serial that no other statistics have.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// What is known of a table; None: it was not looked for.
    pub(crate) fn get(&self, table: u32) -> Option<Option<Arc<Statistics>>> {
        self.known.read().get(&table).cloned()
    }

    /// Notes what was read in the catalog after `epoch` was.
    pub(crate) fn learn(&self, table: u32, found: Option<Arc<Statistics>>, epoch: u64) {
        let mut known = self.known.write();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(table, found);
    }

    /// Others may have been written by another server.
    pub(crate) fn forget_all(&self) {
        let mut known = self.known.write();
        known.clear();
        // Under the lock: see `learn`.
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A transaction has committed at this place, durably, which has changed these. One that committed later, and was told
    /// of earlier, stays.
    pub(crate) fn publish(&self, changed: &[NewStatistics], at: Cts) {
        let mut analyzed = self.analyzed.lock();
        let mut published = self.published.lock();
        if published.len() >= KNOWN_MAX {
            published.clear();
        }
        let mut known = self.known.write();
        for new in changed {
            let newest = published.entry(new.table).or_insert(at);
            if *newest > at {
                continue;
            }
            *newest = at;
            if new.statistics.is_some() {
                analyzed.insert(new.table, new.changes);
            } else {
                analyzed.remove(&new.table);
            }
            known.insert(new.table, new.statistics.clone());
        }
        // Under the lock: see `learn`.
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Rows of the table that were changed since the start.
    pub(crate) fn changes(&self, table: u32) -> u64 {
        self.changes[table as usize % COUNTERS].load(Ordering::Relaxed)
    }

    /// A transaction has committed that has changed so many rows.
    #[inline]
    pub(crate) fn count(&self, table: u32, rows: u64) {
        self.changes[table as usize % COUNTERS].fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows that were changed since the table was analyzed; None: it was not, since the start.
    pub(crate) fn changes_since(&self, table: u32) -> Option<u64> {
        let then = self.analyzed.lock().get(&table).copied();
        then.map(|then| self.changes(table).saturating_sub(then))
    }

    /// The table was looked at when its count was this, and needs no analysis until it has changed.
    pub(crate) fn note_looked_at(&self, table: u32, changes: u64) {
        self.analyzed.lock().entry(table).or_insert(changes);
    }
}
