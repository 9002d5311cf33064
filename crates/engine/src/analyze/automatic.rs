//! Analyses without being asked, as PostgreSQL's autovacuum makes them: of each table of which more rows have changed
//! since the last analysis than a share of it.
//!
//! Each transaction counts the rows that it changes by itself, and adds them to its tables' counters when it commits
//! (`catalog::statistics`). Counters begin anew with each start: a table that has no statistics then is analyzed if it
//! seems to have rows, and one that has them if it seems to be another size by now.

use super::Analysis;
use crate::api::Isolation;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::tx::Tx;
use cenote_base::rt;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use std::sync::{Arc, Weak};

/// PostgreSQL's `autovacuum_analyze_threshold` and `autovacuum_analyze_scale_factor`.
const THRESHOLD: f64 = 50.0;
const SHARE: f64 = 0.1;
/// How long the thread waits for a table that is being defined, in milliseconds.
const LOCK_TIMEOUT: u64 = 1000;
/// A table is taken for another size if it seems to have so many times the rows, or so few.
const RESIZED: f64 = 2.0;

/// The thread: looks at all tables every so often.
pub(crate) fn run(engine: &Weak<Engine>, signal: &rt::Event, every: Nanos) {
    loop {
        signal.wait_timeout(every);
        signal.reset();
        let Some(engine) = engine.upgrade() else { return };
        if engine.is_stopping() {
            return;
        }
        engine.analyze_changed();
    }
}

impl Engine {
    /// How many analyses the thread has made.
    pub fn automatic_analyses(&self) -> u64 {
        self.automatic.analyses.load(Ordering::Relaxed)
    }

    /// Analyzes the tables that have changed enough. What fails is tried again next time.
    pub(crate) fn analyze_changed(self: &Arc<Self>) {
        let mut tx = self.tx();
        tx.set_lock_timeout(LOCK_TIMEOUT);
        *self.automatic.cancel.lock() = Some(tx.cancel_flag());
        for table in self.catalog.current().tables.values() {
            if self.is_stopping() {
                break;
            }
            // Most tables, most of the time: nothing is read for them.
            if self.catalog.statistics.changes_since(table.id) == Some(0) {
                continue;
            }
            let changes = self.catalog.statistics.changes(table.id);
            match self.needs_analysis_now(&mut tx, table) {
                Some(true) if tx.analyze_alone(table, &Analysis::default()).is_ok() => {
                    self.automatic.analyses.fetch_add(1, Ordering::Relaxed);
                }
                Some(false) => self.catalog.statistics.note_looked_at(table.id, changes),
                Some(true) | None => {}
            }
        }
        *self.automatic.cancel.lock() = None;
    }

    /// As `needs_analysis`, of the table as it is by now; None: it is gone. A snapshot keeps a table that is dropped
    /// meanwhile from purge, which removes its pages.
    fn needs_analysis_now(self: &Arc<Self>, tx: &mut Tx, table: &Table) -> Option<bool> {
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        let now = tx.table_by_id(table.id).ok().flatten();
        let needs = now.map(|now| self.needs_analysis(&now));
        tx.end_statement();
        tx.rollback().ok()?;
        needs
    }

    fn needs_analysis(self: &Arc<Self>, table: &Table) -> bool {
        let changed = self.catalog.statistics.changes_since(table.id).map(|rows| rows as f64);
        let known = self.statistics(table).map(|statistics| statistics.rows);
        match (changed, known) {
            (Some(changed), known) => is_due(changed, known.unwrap_or(0.0)),
            (None, None) => is_due(self.row_estimate(table) as f64, 0.0),
            (None, Some(rows)) => {
                let now = self.row_estimate(table) as f64;
                let resized = now > RESIZED * rows || rows > RESIZED * now;
                resized && is_due((now - rows).abs(), rows)
                    || is_due(self.catalog.statistics.changes(table.id) as f64, rows)
            }
        }
    }
}

fn is_due(changed: f64, rows: f64) -> bool {
    changed > THRESHOLD + SHARE * rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::testing::{indexed, write};

    /// A table is dropped between the look at the catalog and its analysis: its pages, which purge removes, are not
    /// read, and its id gets no count of rows, which stayed for good.
    #[test]
    fn a_table_that_is_dropped_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        let mut tx = engine.begin(Isolation::ReadCommitted);
        (0..100).for_each(|id| write(&mut tx, &table, id, std::iter::once(0)));
        tx.commit().expect("committed");
        assert_eq!(engine.needs_analysis_now(&mut tx, &table), Some(true));
        // It keeps the pages.
        let mut old = engine.begin(Isolation::RepeatableRead);
        old.begin_statement();
        tx.begin(Isolation::ReadCommitted);
        tx.drop_table(&table).expect("dropped");
        tx.commit().expect("committed");
        let analyzed = engine.analyze(&table, &Analysis::default());
        assert!(matches!(analyzed, Err(Error::UndefinedTable(_))), "{analyzed:?}");
        assert_eq!(engine.row_count(table.id).expect("readable"), None);
        drop(old);
        engine.vacuum().expect("purged");
        assert_eq!(engine.needs_analysis_now(&mut tx, &table), None);
        assert!(engine.analyze(&table, &Analysis::default()).is_err());
        assert_eq!(engine.check().expect("checked").problems, Vec::<String>::new());
        drop(tx);
        engine.shutdown().expect("shut down");
    }

    #[test]
    fn the_threshold_is_postgresqls() {
        assert!(!is_due(50.0, 0.0) && is_due(51.0, 0.0));
        assert!(!is_due(150.0, 1000.0) && is_due(151.0, 1000.0));
    }
}
