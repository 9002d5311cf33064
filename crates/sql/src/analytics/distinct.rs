//! How many values a column has: by the table's statistics, or, where it has none, guessed from the tree of a key or
//! index that begins with it.
//!
//! For the guess a few rows are taken at even distances. Each stands in a group of rows with its value, whose size the
//! tree tells ([`Reader::share`]); of a group of `n` rows a row is one n-th of a value.

use super::snapshot::Snapshot;
use cenote_engine::catalog::Table;
use cenote_engine::{Direction, KeyRange, Reader, RowBatch};
use std::sync::Arc;

/// Rows looked at.
const SAMPLES: usize = 8;
/// A table of fewer rows is not worth the look.
const LEAST_ROWS: usize = 10_000;

/// About how many values a column of a table of so many rows has; None: there are no statistics, and no key or index
/// begins with it.
pub(crate) fn distinct_values(scope: &Snapshot, table: &Arc<Table>, rows: usize, column: usize) -> Option<usize> {
    let analyzed = || {
        let statistics = scope.engine.statistics(table)?;
        statistics.column(column)?.distinct_values(rows as f64)
    };
    match analyzed() {
        Some(values) => Some((values as usize).clamp(1, rows.max(1))),
        None => by_tree(&scope.scope.reader, table, rows, column),
    }
}

fn by_tree(reader: &Reader, table: &Arc<Table>, rows: usize, column: usize) -> Option<usize> {
    let primary = table.primary_key.iter().map(|key| (None, &key.columns, true));
    let indexes = table.indexes.iter().enumerate();
    let secondary = indexes.map(|(i, index)| (Some(i), &index.columns, index.unique));
    let mut leading = primary
        .chain(secondary)
        .filter(|(_, columns, _)| columns.first() == Some(&column));
    let (index, columns, unique) = leading.next()?;
    if unique && columns.len() == 1 {
        return Some(rows);
    }
    if rows < LEAST_ROWS {
        return None;
    }
    // A tree that cannot be read now says so when it is scanned.
    let parts = reader.cut(table, index, KeyRange::all(), SAMPLES).ok()?;
    let values: Vec<f64> = parts
        .into_iter()
        .filter_map(|range| part_of_value(reader, table, (index, column), (range, rows)))
        .collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    (!values.is_empty()).then_some(((mean * rows as f64) as usize).clamp(1, rows))
}

/// Which part of its value the first row of a range is.
fn part_of_value(
    reader: &Reader,
    table: &Arc<Table>,
    (index, column): (Option<usize>, usize),
    (range, rows): (KeyRange, usize),
) -> Option<f64> {
    let scan = match index {
        None => reader.scan(table, range, Direction::Forward),
        Some(index) => reader.index_scan(table, index, range, Direction::Forward),
    };
    let mut batch = RowBatch::new();
    if !scan.batch_rows(1).next_batch(reader, &mut batch).ok()? {
        return None;
    }
    let value = table.layout().column(batch.row(0), column).ok()?.to_owned();
    let mut key = Vec::new();
    match index {
        None => table.key_of_values(&[value], &mut key),
        Some(index) => table.index_key_of_values(&table.indexes[index], &[value], &mut key),
    }
    let share = reader.share(table, index, &KeyRange::prefix(&key)).ok()?;
    Some(1.0 / (share * rows as f64).max(1.0))
}
