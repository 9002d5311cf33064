//! The tables: amounts that add up, and rows of one generation.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::{
    ColumnDef, ColumnType, Datum, DatumRef, Direction, Error, KeyRange, NewIndex, NewTable, Reader, Result, RowBatch,
    RowScan, Table,
};

/// Ids that rows of the first table may have, behind the clock's.
pub(super) const IDS: i32 = 160;
/// The clock's.
pub(super) const CLOCK: i32 = 0;
/// Rows of the second table.
pub(super) const OTHERS: i32 = 5;
/// One row in so many has a large text.
const LARGE: i32 = 11;

pub(super) fn new_table(name: &str) -> NewTable {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    NewTable {
        name: name.into(),
        columns: vec![
            column("id", ColumnType::Int4),
            column("n", ColumnType::Int4),
            column("c", ColumnType::Text),
        ],
        primary_key: Some((format!("{name}_pkey"), vec![0])),
        indexes: vec![new_index(&format!("{name}_n"))],
    }
}

pub(super) fn new_index(name: &str) -> NewIndex {
    NewIndex {
        name: name.into(),
        columns: vec![1],
        unique: false,
        constraint: false,
    }
}

/// A row, whose text follows from the rest.
pub(super) fn row_of(table: &Table, id: i32, n: i32) -> Result<Vec<u8>> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Int4(n), Datum::Text(text_of(id, n))];
    table.layout().encode(&values, &mut row)?;
    Ok(row)
}

fn text_of(id: i32, n: i32) -> String {
    let word = format!("{id}:{n} ");
    match id % LARGE {
        3 => word.repeat(700),
        _ => word.repeat(1 + (id % 7) as usize),
    }
}

pub(super) fn key_of(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

/// Id and number of a row, whose text has to be its own.
pub(super) fn decode(table: &Table, row: &[u8]) -> Result<(i32, i32)> {
    let layout = table.layout();
    match (layout.column(row, 0)?, layout.column(row, 1)?, layout.column(row, 2)?) {
        (DatumRef::Int4(id), DatumRef::Int4(n), DatumRef::Text(text)) if text == text_of(id, n) => Ok((id, n)),
        other => Err(Error::Internal(format!("a row that is none: {other:?}"))),
    }
}

/// The rows that a scan gives, by id. A row that comes twice is an error.
pub(super) fn rows_of(reader: &Reader, table: &Arc<Table>, index: Option<usize>) -> Result<BTreeMap<i32, i32>> {
    let mut scan: RowScan = match index {
        None => reader.scan(table, KeyRange::all(), Direction::Forward),
        Some(index) => reader.index_scan(table, index, KeyRange::all(), Direction::Forward),
    };
    let (mut batch, mut rows) = (RowBatch::new(), BTreeMap::new());
    while scan.next_batch(reader, &mut batch)? {
        for i in 0..batch.len() {
            let (id, n) = decode(table, batch.row(i))?;
            if let Some(before) = rows.insert(id, n) {
                let by = index.map_or("the table".into(), |index| format!("index {index}"));
                let text = format!("row {id} comes twice by {by}: {before}, then {n}");
                return Err(Error::Internal(text));
            }
        }
    }
    Ok(rows)
}
