//! Statistics as a transaction sees and writes them.
//!
//! They are rows of the catalog, so they commit and roll back with their transaction. They are no definitions: nothing
//! waits for them, no snapshot is bound by them, and a version behind the snapshot of a transaction at repeatable read
//! is replaced like any other. Their writer shares the table's lock, as writers of rows do, so that a table that is
//! being dropped gets none.

use super::locks::table_lock;
use super::read::Reader;
use super::{Isolation, Tx};
use crate::api::{Change, Changed, Columns, Insert};
use crate::catalog::Table;
use crate::catalog::known_statistics::NewStatistics;
use crate::catalog::statistics::{key_of_statistics, row_of_statistics, statistics_of};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::statistics::Statistics;
use cenote_base::Cts;
use std::sync::Arc;

/// Rows changed, by table, and statistics written.
pub(super) type News = (Vec<(u32, u64)>, Vec<NewStatistics>);

/// Set in an epoch that only one transaction sees.
const PRIVATE: u64 = 1 << 63;

impl Tx {
    /// What is known of a table's contents: the newest that has committed, or this transaction's own. None: nothing, or
    /// it cannot be read.
    pub fn statistics(&self, table: &Table) -> Option<Arc<Statistics>> {
        match self.analyzed.iter().rev().find(|new| new.table == table.id) {
            Some(own) => own.statistics.clone(),
            None => self.engine().statistics(table),
        }
    }

    /// Changes whenever [`Tx::statistics`] may give others than before, of whatever table. One atomic load.
    #[inline]
    pub fn statistics_epoch(&self) -> u64 {
        match self.analyzed.last() {
            None => self.engine().statistics_epoch(),
            Some(own) => own.statistics.as_ref().map_or(0, |own| own.serial) | PRIVATE,
        }
    }

    /// Keeps a table's statistics, from its commit on for all. `changes`: the count when the sample was begun.
    ///
    /// # Errors
    /// The table was dropped, or replaced, since `table` was read; a lock was not to be had; those of writing the row.
    pub(crate) fn put_statistics(&mut self, table: &Table, statistics: Statistics, changes: u64) -> Result<()> {
        self.ready_to_write()?;
        self.lock_table(table_lock(table.id), false)?;
        match self.table_by_id(table.id)? {
            None => return Err(Error::UndefinedTable(table.name.clone())),
            Some(now) if now.space != table.space => return Err(Error::StaleTable(table.name.clone())),
            Some(_) => {}
        }
        let own = self.engine().catalog.own.clone();
        let row = row_of_statistics(&own, table, &statistics)?;
        while !self.replace_statistics(table.id, Change::Update(row.clone()))? {
            if self.insert(&own, &row)? == Insert::Done {
                break;
            }
        }
        self.analyzed.push(NewStatistics {
            table: table.id,
            statistics: Some(Arc::new(statistics)),
            changes,
        });
        Ok(())
    }

    /// The table goes: so do its statistics.
    pub(super) fn drop_statistics(&mut self, table: u32) -> Result<()> {
        self.replace_statistics(table, Change::Delete)?;
        self.analyzed.push(NewStatistics {
            table,
            statistics: None,
            changes: 0,
        });
        Ok(())
    }

    /// Changes the row if there is one, whatever the snapshot sees.
    fn replace_statistics(&mut self, table: u32, change: Change) -> Result<bool> {
        let own = self.engine().catalog.own.clone();
        let key = key_of_statistics(&own, table);
        let isolation = std::mem::replace(&mut self.isolation, Isolation::ReadCommitted);
        let changed = self.change_newest(&own, &key, &Columns::All, &|_, _| Ok::<_, Error>(change.clone()));
        self.isolation = isolation;
        Ok(matches!(changed?, Changed::Done { .. }))
    }

    /// A row was changed: counted for the next automatic analysis once this commits.
    #[inline]
    pub(super) fn count_change(&mut self, table: &Table) {
        self.count_changes(table, 1);
    }

    /// So many rows were changed.
    #[inline]
    pub(super) fn count_changes(&mut self, table: &Table, count: u64) {
        self.rows += count;
        match self.changed.last_mut() {
            Some((id, rows)) if *id == table.id => *rows += count,
            _ => self.count_changes_of_another(table.id, count),
        }
    }

    #[cold]
    fn count_changes_of_another(&mut self, table: u32, count: u64) {
        // The last is the one that is looked at first.
        match self.changed.iter().position(|(id, _)| *id == table) {
            Some(at) => {
                let last = self.changed.len() - 1;
                self.changed.swap(at, last);
                self.changed[last].1 += count;
            }
            None => self.changed.push((table, count)),
        }
    }

    /// What the others get to know of tables once the commit is durable, for [`Tx::tell_of_tables`].
    pub(super) fn news_of_tables(&mut self) -> News {
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.analyzed))
    }

    /// The commit is durable: whoever hears of it sees its rows.
    pub(super) fn tell_of_tables(&mut self, (mut changed, analyzed): News, at: Cts) {
        let known = &self.engine().catalog.statistics;
        changed.iter().for_each(|(table, rows)| known.count(*table, *rows));
        if !analyzed.is_empty() {
            known.publish(&analyzed, at);
        }
        // Its memory serves the next transaction.
        changed.clear();
        self.changed = changed;
    }
}

impl Engine {
    /// Rises with each publication of statistics: for caches of plans, which look then whether those of their tables
    /// are still the same (`Statistics::serial`). One atomic load.
    #[inline]
    pub fn statistics_epoch(&self) -> u64 {
        self.catalog.statistics.epoch()
    }

    /// What is known of a table's contents, by the newest analysis that has committed. None: nothing, or it cannot be
    /// read.
    pub fn statistics(self: &Arc<Self>, table: &Table) -> Option<Arc<Statistics>> {
        let known = &self.catalog.statistics;
        if let Some(found) = known.get(table.id) {
            return found;
        }
        let epoch = known.epoch();
        let found = self.read_statistics(table);
        if let Ok(found) = &found {
            known.learn(table.id, found.clone(), epoch);
        }
        found.unwrap_or(None)
    }

    /// Errors: the row cannot be read. Damaged statistics are none.
    fn read_statistics(self: &Arc<Self>, table: &Table) -> Result<Option<Arc<Statistics>>> {
        let own = &self.catalog.own;
        let mut reader = Reader::new(self);
        reader.refresh();
        let mut row = Vec::new();
        if !reader.get(own, &key_of_statistics(own, table.id), &mut row)? {
            return Ok(None);
        }
        Ok(statistics_of(own, &row, table).ok().map(Arc::new))
    }
}
