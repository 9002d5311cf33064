//! Statistics as rows of the catalog's table.
//!
//! The row of a table's statistics has the table's id with a bit above all ids, so definitions are a range without
//! them: the start reads none.

use super::Table;
use super::state::{KIND_STATISTICS, catalog_row, key_of_number};
use crate::error::{Error, Result};
use crate::statistics::{self, Statistics};
use crate::types::DatumRef;

/// Added to a table's id.
const STATISTICS: i64 = 1 << 32;

/// Primary key of a table's statistics in the catalog.
pub(crate) fn key_of_statistics(own: &Table, table: u32) -> Vec<u8> {
    key_of_number(own, i64::from(table) | STATISTICS)
}

/// The catalog's row of a table's statistics.
pub(crate) fn row_of_statistics(own: &Table, table: &Table, statistics: &Statistics) -> Result<Vec<u8>> {
    let number = i64::from(table.id) | STATISTICS;
    catalog_row(
        own,
        number,
        KIND_STATISTICS,
        &table.name,
        statistics::encode(statistics)?,
    )
}

/// The statistics of a whole catalog row. Errors: it is damaged.
pub(crate) fn statistics_of(own: &Table, row: &[u8], table: &Table) -> Result<Statistics> {
    match own.layout().column(row, 3)? {
        DatumRef::Bytes(bytes) => Ok(fit(statistics::decode(bytes)?, table)),
        _ => Err(Error::Corrupt("catalog row without statistics".into())),
    }
}

/// Without what is of another column, or of an index that is gone.
fn fit(mut statistics: Statistics, table: &Table) -> Statistics {
    statistics.columns.resize(table.columns.len(), None);
    for (known, column) in statistics.columns.iter_mut().zip(&table.columns) {
        known.take_if(|known| known.ty != column.ty);
    }
    let width = |id: u32| {
        let primary = table
            .primary_key
            .iter()
            .map(|primary| (primary.id, primary.columns.len()));
        let mut keys = primary.chain(table.indexes.iter().map(|index| (index.id, index.columns.len())));
        keys.find(|(key, _)| *key == id).map(|(_, columns)| columns)
    };
    statistics.keys.retain(|key| width(key.id) == Some(key.distinct.len()));
    statistics
}
