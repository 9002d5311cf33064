//! ANALYZE: statistics of a table's contents from a sample of its rows, and the thread that does it by itself.
//!
//! 1. The clustered tree gives a random sample of its newest versions (`tree::sample`); each is made the version that
//!    the transaction's snapshot sees. Rows that are gone are left out, and the table's rows are estimated without them.
//! 2. Of each column the values go to `statistics::summary`, of each index the keys of its columns. Long values on
//!    overflow pages are not read: their lengths stand in the row.
//! 3. The result is kept in the catalog (`tx::statistics`).
//!
//! It locks no rows and blocks no writer; the table's lock is shared, as by writers, once the sample is done.

mod automatic;
pub(crate) mod shared;

pub(crate) use automatic::run;

use crate::api::Isolation;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key;
use crate::large;
use crate::memory::Charge;
use crate::statistics::summary::{Keys, Scale, Values, distinct_prefixes};
use crate::statistics::{ColumnStatistics, DEFAULT_TARGET, KeyStatistics, MAX_TARGET, ROWS_PER_ENTRY, Statistics};
use crate::tree::{BTree, Sample};
use crate::tx::Tx;
use cenote_base::rt;
use std::borrow::Cow;
use std::sync::Arc;

/// 2000-01-01 in microseconds since 1970.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// Bytes of rows that are kept of a sample, at most; of more every other one is.
const ROWS_BYTES_MAX: usize = 64 << 20;
/// Rows between two looks at whether to stop.
const ROWS_A_STEP: usize = 1000;

/// What of a table is to be analyzed.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// Entries of lists of common values and buckets of histograms: 1 to [`MAX_TARGET`].
    pub target: u32,
    /// Positions of the columns; None: all of them, and all indexes.
    pub columns: Option<Vec<usize>>,
}

impl Default for Analysis {
    fn default() -> Analysis {
        Analysis {
            target: DEFAULT_TARGET,
            columns: None,
        }
    }
}

impl Analysis {
    fn contains(&self, column: usize) -> bool {
        self.columns.as_ref().is_none_or(|columns| columns.contains(&column))
    }
}

/// What an analysis has looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Analyzed {
    /// Leaves of the table, and how many of them were read.
    pub leaves: (u64, u64),
    /// Rows in the sample, and entries of it that the snapshot does not see.
    pub sampled: (u64, u64),
    /// Rows of the table, estimated.
    pub rows: f64,
}

/// Rows that the snapshot sees, in the order of the primary key.
struct Rows {
    rows: Vec<Vec<u8>>,
    _memory: Charge,
    /// Entries that it sees no row of.
    unseen: u64,
    /// Rows that are seen, of which only every `stride`-th is kept.
    seen: u64,
}

impl Tx {
    /// Analyzes a table: what is found is for all to see once this transaction has committed, and for itself at once.
    ///
    /// # Errors
    /// Those of reading rows; the sample is more than the session's memory holds (53200); the table was dropped or
    /// replaced meanwhile; a lock was not to be had; those of writing the catalog; 57014.
    pub fn analyze(&mut self, table: &Arc<Table>, what: &Analysis) -> Result<Analyzed> {
        let changes = self.engine().catalog.statistics.changes(table.id);
        let target = what.target.clamp(1, MAX_TARGET);
        let sample = self.sample(table, (target * ROWS_PER_ENTRY) as usize)?;
        let (leaves, entries, picked) = (sample.leaves, sample.entries, sample.values.len() as f64);
        let rows = self.rows_of(table, sample)?;
        let share = if picked > 0.0 { rows.seen as f64 / picked } else { 0.0 };
        let scale = Scale {
            sampled: rows.rows.len() as f64,
            rows: (entries * share).round().max(rows.rows.len() as f64),
            target: target as usize,
        };
        let statistics = self.statistics_of(table, what, (&rows.rows, scale))?;
        self.put_statistics(table, statistics, changes)?;
        // Behind it, which shares the table's lock: a table that is dropped leaves no count.
        self.engine().put_row_count(table.id, scale.rows as u64)?;
        Ok(Analyzed {
            leaves,
            sampled: (rows.seen, rows.unseen),
            rows: scale.rows,
        })
    }

    fn sample(&self, table: &Table, wanted: usize) -> Result<Sample> {
        let pool = &self.engine().pool;
        let mut sampler = BTree { space: table.space }.sampler(wanted, rt::random());
        while sampler.step(pool)? {
            self.reader().cancel.check()?;
        }
        Ok(sampler.finish())
    }

    /// The rows of a sample that the snapshot sees, without values that lie on overflow pages.
    fn rows_of(&self, table: &Table, sample: Sample) -> Result<Rows> {
        let (reader, pool) = (self.reader(), &self.engine().pool);
        let (mut rows, mut bytes, mut stride) = (Vec::new(), 0, 1);
        let (mut seen, mut unseen) = (0u64, 0u64);
        let mut memory = Charge::new(self.account());
        for (i, mut value) in sample.values.into_iter().enumerate() {
            if i % ROWS_A_STEP == 0 {
                reader.cancel.check()?;
            }
            if !reader.visible_version(&mut value)? {
                unseen += 1;
                continue;
            }
            seen += 1;
            if !(seen - 1).is_multiple_of(stride) {
                continue;
            }
            let row = match large::open(pool, table, &value)? {
                Cow::Borrowed(_) => value,
                Cow::Owned(row) => row,
            };
            bytes += row.len();
            memory.grow(row.len())?;
            rows.push(row);
            if bytes > ROWS_BYTES_MAX && rows.len() > 1 {
                let mut at = 0;
                rows.retain(|_| (at % 2 == 0, at += 1).0);
                bytes = rows.iter().map(Vec::len).sum();
                stride *= 2;
            }
        }
        Ok(Rows {
            rows,
            _memory: memory,
            unseen,
            seen,
        })
    }

    fn statistics_of(&self, table: &Table, what: &Analysis, (rows, scale): (&[Vec<u8>], Scale)) -> Result<Statistics> {
        let former = what.columns.as_ref().and_then(|_| self.statistics(table));
        let mut columns = Vec::with_capacity(table.columns.len());
        for column in 0..table.columns.len() {
            self.reader().cancel.check()?;
            columns.push(match what.contains(column) {
                true => Some(column_of(table, column, rows, scale)?),
                false => former.as_ref().and_then(|former| former.column(column).cloned()),
            });
        }
        let mut keys = Vec::new();
        let primary = table.primary_key.iter().map(|primary| (primary.id, &primary.columns));
        let indexes = table.indexes.iter().map(|index| (index.id, &index.columns));
        for (id, key_columns) in primary.chain(indexes) {
            self.reader().cancel.check()?;
            if key_columns.iter().all(|column| what.contains(*column)) {
                let distinct = prefixes_of(table, key_columns, rows, scale)?;
                keys.push(KeyStatistics { id, distinct });
            } else if let Some(former) = &former {
                keys.extend(former.keys.iter().find(|key| key.id == id).cloned());
            }
        }
        Ok(Statistics {
            serial: self.engine().catalog.statistics.next_serial(),
            at_micros: rt::wall_micros() - EPOCH_MICROS,
            rows: scale.rows,
            columns,
            keys,
        })
    }
}

fn column_of(table: &Table, column: usize, rows: &[Vec<u8>], scale: Scale) -> Result<ColumnStatistics> {
    let layout = table.layout();
    let ty = layout.column_type(column);
    let mut values = Values::new(ty);
    for row in rows {
        if layout.is_null(row, column)? {
            values.push_null();
        } else if let Some(len) = large::len_outside(table, row, column)? {
            values.push_wide(len);
        } else {
            let width = layout.column_bytes(row, column)?.map_or(0, <[u8]>::len);
            values.push(&layout.column(row, column)?, width);
        }
    }
    Ok(values.summary(scale))
}

/// Distinct keys of each prefix of these columns.
fn prefixes_of(table: &Table, columns: &[usize], rows: &[Vec<u8>], scale: Scale) -> Result<Vec<f64>> {
    if rows.is_empty() {
        return Ok(vec![0.0; columns.len()]);
    }
    let (layout, mut keys, mut ends) = (table.layout(), Keys::default(), Vec::with_capacity(rows.len()));
    let mut key = Vec::new();
    for row in rows {
        key.clear();
        let mut end = Vec::with_capacity(columns.len());
        for column in columns {
            // No index has a value that lies outside but as a key of its own length: its handle tells it apart.
            match large::len_outside(table, row, *column)? {
                Some(len) => key.extend_from_slice(&len.to_be_bytes()),
                None => key::push(layout.column_type(*column), &layout.column(row, *column)?, &mut key),
            }
            end.push(key.len() as u32);
        }
        keys.push(|out| out.extend_from_slice(&key));
        ends.push(end);
    }
    Ok(distinct_prefixes(&keys, &ends, scale))
}

impl Engine {
    /// Analyzes a table in a transaction of its own.
    ///
    /// # Errors
    /// As [`Tx::analyze`], and those of the commit.
    pub fn analyze(self: &Arc<Self>, table: &Arc<Table>, what: &Analysis) -> Result<Analyzed> {
        let mut tx = self.tx();
        tx.analyze_alone(table, what)
    }
}

impl Tx {
    /// Analyzes a table, wholly in one transaction: none is in progress. A table that is replaced meanwhile is looked at
    /// again.
    ///
    /// # Errors
    /// As [`Tx::analyze`], and those of the commit.
    pub fn analyze_alone(&mut self, table: &Arc<Table>, what: &Analysis) -> Result<Analyzed> {
        let mut table = table.clone();
        loop {
            self.begin(Isolation::ReadCommitted);
            self.begin_statement();
            // Purge may have removed a table that was dropped before the snapshot: its pages are not to be read.
            let analyzed = match self.table_by_id(table.id)? {
                None => Err(Error::UndefinedTable(table.name.clone())),
                Some(now) if now.space != table.space => Err(Error::StaleTable(table.name.clone())),
                Some(_) => self.analyze(&table, what),
            };
            let now = self.table_by_id(table.id)?;
            self.end_statement();
            match (analyzed, now) {
                (Ok(analyzed), _) => return self.commit().map(|()| analyzed),
                (Err(Error::StaleTable(_)), Some(now)) => {
                    self.rollback()?;
                    table = now;
                }
                (Err(error), _) => {
                    self.rollback()?;
                    return Err(error);
                }
            }
        }
    }
}
