//! What the planner knows of a table's contents: computed from a sample of its rows, as PostgreSQL's ANALYZE does.
//!
//! 1. [`summary`] makes a column's numbers of the values of a sample, and counts the distinct keys of index prefixes.
//! 2. [`codec`] writes them for the catalog and checks what it reads.
//!
//! They are hints: nothing of a result depends on them, and a table without them is planned by guesses. How they are
//! gathered is in `analyze`, where they are kept in `catalog::statistics`; see docs/statistics.md.

mod codec;
pub(crate) mod summary;

pub(crate) use codec::{decode, encode};

use crate::types::{ColumnType, Datum};

/// Entries of a list of common values and buckets of a histogram, unless the caller asks for others.
pub const DEFAULT_TARGET: u32 = 100;
/// The most that may be asked for.
pub const MAX_TARGET: u32 = 10_000;
/// Rows of the sample for each entry: Chaudhuri, Motwani and Narasayya, "Random sampling for histogram construction"
/// (SIGMOD 1998), with PostgreSQL's error bounds.
pub const ROWS_PER_ENTRY: u32 = 300;

/// Statistics of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    /// Differs from that of every other statistics of the table: how a kept plan notices that they have changed.
    pub serial: u64,
    /// When they were made: microseconds since 2000-01-01, UTC.
    pub at_micros: i64,
    /// Rows of the table then.
    pub rows: f64,
    /// By the columns' positions; none: not analyzed, or the column's type is another by now.
    pub columns: Vec<Option<ColumnStatistics>>,
    /// Of the primary key and the indexes, in no order.
    pub keys: Vec<KeyStatistics>,
}

/// Statistics of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnStatistics {
    /// The type that its values have.
    pub ty: ColumnType,
    /// Share of rows in which it is NULL.
    pub null_fraction: f64,
    /// Bytes of a value that is not NULL, on average.
    pub width: f64,
    /// Distinct values but for NULL, as PostgreSQL's `n_distinct`: negative, a multiple of the rows; 0, unknown.
    pub distinct: f64,
    /// The most common values and their shares of all rows, falling.
    pub common: Vec<(Datum, f64)>,
    /// Bounds of buckets that hold equally many of the other values, rising; at least two, or none.
    pub bounds: Vec<Datum>,
    /// How the order of values follows that of the primary key: -1 to 1.
    pub correlation: Option<f64>,
}

/// Distinct keys of an index or of the primary key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyStatistics {
    /// Object id of the index or the primary key.
    pub id: u32,
    /// Of the first column, the first two, and so on, in `n_distinct`'s convention; NULLs are values here.
    pub distinct: Vec<f64>,
}

impl Statistics {
    /// What is known of a column.
    pub fn column(&self, column: usize) -> Option<&ColumnStatistics> {
        self.columns.get(column)?.as_ref()
    }

    /// Distinct keys of the first `columns` columns of an index (or primary key), by its object id, in a table that
    /// has `rows` rows now.
    pub fn distinct_keys(&self, id: u32, columns: usize, rows: f64) -> Option<f64> {
        let key = self.keys.iter().find(|key| key.id == id)?;
        let distinct = key.distinct.get(columns.checked_sub(1)?)?;
        absolute(*distinct, rows)
    }
}

impl ColumnStatistics {
    /// Distinct values in a table that has `rows` rows now; none where that is unknown.
    pub fn distinct_values(&self, rows: f64) -> Option<f64> {
        absolute(self.distinct, rows)
    }

    /// Share of rows that the common values have together.
    pub fn common_fraction(&self) -> f64 {
        self.common.iter().map(|(_, share)| share).sum()
    }
}

/// A number in `n_distinct`'s convention, in a table of so many rows: at least one.
fn absolute(distinct: f64, rows: f64) -> Option<f64> {
    match distinct {
        0.0 => None,
        some if some < 0.0 => Some((-some * rows).max(1.0)),
        some => Some(some.max(1.0)),
    }
}
