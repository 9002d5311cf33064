//! The tables that worlds work on, and rows whose contents follow from their key and their tag.

use std::collections::HashMap;
use std::sync::Arc;

use cenote_base::random::mix;
use cenote_engine::{
    ColumnDef, ColumnType, Columns, Datum, DatumRef, Direction, Error, KeyRange, NewIndex, NewTable, Reader, Result,
    RowBatch, RowScan, Table,
};

use crate::check::history::color;
use crate::check::{Key, Tag};

/// Tables of definers are numbered from here.
pub const DEFINED: u8 = 100;
/// Rows of a definer's table.
pub const DEFINED_ROWS: i32 = 3;
/// Positions of the columns.
const ID: usize = 0;
const TAG: usize = 3;
/// The tag of the write that gave the row its text.
const TEXT_OF: usize = 4;
const TEXT: usize = 5;

/// A table's name.
pub fn name(table: u8) -> String {
    match table.checked_sub(DEFINED) {
        Some(n) => format!("d{n}"),
        None => format!("t{table}"),
    }
}

/// The definition of a table: a primary key, an index that is not unique, and one that is, over a column that may be
/// NULL.
pub fn new_table(table: u8) -> NewTable {
    let name = name(table);
    let column = |name: &str, ty, not_null| ColumnDef {
        name: name.into(),
        ty,
        not_null,
        default: None,
    };
    let index = |suffix: &str, column, unique| NewIndex {
        name: format!("{name}_{suffix}"),
        columns: vec![column],
        unique,
        constraint: false,
    };
    NewTable {
        columns: vec![
            column("id", ColumnType::Int4, true),
            column("k", ColumnType::Int4, true),
            column("u", ColumnType::Int4, false),
            column("tag", ColumnType::Int8, true),
            column("text_of", ColumnType::Int8, true),
            column("c", ColumnType::Text, true),
        ],
        primary_key: Some((format!("{name}_pkey"), vec![ID])),
        indexes: vec![index("k", 1, false), index("u", 2, true)],
        name,
    }
}

/// The index that definers add to tables and take away again.
pub fn extra_index(table: u8) -> NewIndex {
    NewIndex {
        name: format!("{}_extra", name(table)),
        columns: vec![TAG, 1],
        unique: false,
        constraint: false,
    }
}

/// How rows are made: the same throughout a world.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Values of the unique column.
    pub uniques: u64,
    /// One row in so many has a large value. 0: none.
    pub large: u64,
    /// Usual length of the text.
    pub length: u64,
}

impl Shape {
    /// The row's bytes.
    ///
    /// # Errors
    /// Those of the row's layout.
    pub fn encode(&self, table: &Table, id: i32, tag: Tag) -> Result<Vec<u8>> {
        self.encode_with_text(table, id, tag, tag)
    }

    fn encode_with_text(&self, table: &Table, id: i32, tag: Tag, text_of: Tag) -> Result<Vec<u8>> {
        let mut row = Vec::new();
        let unique = self.unique(id, tag).map_or(Datum::Null, Datum::Int4);
        let values = [
            Datum::Int4(id),
            Datum::Int4(color(tag)),
            unique,
            Datum::Int8(tag as i64),
            Datum::Int8(text_of as i64),
            Datum::Text(self.text(text_of)),
        ];
        table.layout().encode(&values, &mut row)?;
        Ok(row)
    }

    /// The value of the unique column; `None`: NULL.
    fn unique(&self, id: i32, tag: Tag) -> Option<i32> {
        let hash = mix(tag ^ id as u64);
        hash.is_multiple_of(3).then(|| (hash / 3 % self.uniques) as i32)
    }

    /// A value of the unique column that two of these rows have.
    pub fn repeated(&self, rows: &[(i32, Tag)]) -> Option<String> {
        let mut seen = HashMap::new();
        rows.iter().find_map(|(id, tag)| {
            let unique = self.unique(*id, *tag)?;
            let other = seen.insert(unique, *id)?;
            Some(format!("rows {other} and {id} have the same unique value {unique}"))
        })
    }

    fn text(&self, tag: Tag) -> String {
        let hash = mix(tag);
        let length = match hash.checked_rem(self.large) {
            Some(0) => 3000 + hash / 7 % 12_000,
            _ => hash / 7 % self.length,
        };
        let letters = mix(hash).to_le_bytes().map(|b| (b'a' + b % 26) as char);
        letters.iter().cycle().take(length as usize).collect()
    }

    /// A row's id and tag, if all else in it follows from them. A text that was left on overflow pages is not looked
    /// at.
    ///
    /// # Errors
    /// What of the row does not follow from its id and tag.
    pub fn decode(&self, table: &Table, row: &[u8]) -> std::result::Result<(i32, Tag), String> {
        let layout = table.layout();
        let column = |column| layout.column(row, column);
        let (id, tag, text_of) = match (column(ID), column(TAG), column(TEXT_OF)) {
            (Ok(DatumRef::Int4(id)), Ok(DatumRef::Int8(tag)), Ok(DatumRef::Int8(text))) => {
                (id, tag as Tag, text as Tag)
            }
            other => return Err(format!("{}: a row that is none: {other:?}", table.name)),
        };
        let fail = |error: Error| error.to_string();
        let mut expected = self.encode_with_text(table, id, tag, text_of).map_err(fail)?;
        if layout.is_external(row, TEXT).map_err(fail)? {
            expected = keep_text(table, row, &expected).map_err(fail)?;
        }
        if expected != row {
            return Err(format!(
                "{}[{id}]: {} bytes that do not fit their tag {tag:x}",
                table.name,
                row.len()
            ));
        }
        Ok((id, tag))
    }
}

/// All columns but the text.
pub fn but_the_text() -> Columns {
    Columns::Only((0..TEXT).collect())
}

/// The row `new`, with the text that `old` has.
///
/// # Errors
/// Those of the row's layout.
pub fn keep_text(table: &Table, old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    let layout = table.layout();
    let values: Vec<DatumRef<'_>> = (0..TEXT_OF)
        .map(|column| layout.column(new, column))
        .collect::<Result<_>>()?;
    let mut row = Vec::new();
    layout.with(old, |column| values.get(column).cloned(), &mut row)?;
    Ok(row)
}

/// The encoded primary key.
pub fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

/// Keys from `from` to below `to`.
pub fn range(table: &Table, from: i32, to: i32) -> KeyRange {
    use std::ops::Bound::{Excluded, Included};
    KeyRange {
        lower: Included(key(table, from)),
        upper: Excluded(key(table, to)),
    }
}

/// Rows of one color, in an index over it.
pub fn color_range(table: &Table, color: i32) -> KeyRange {
    let mut prefix = Vec::new();
    table.index_key_of_values(&table.indexes[0], &[Datum::Int4(color)], &mut prefix);
    KeyRange::prefix(&prefix)
}

/// How rows are to be read.
#[derive(Debug, Clone, Copy)]
pub enum Path {
    /// By primary key.
    Primary,
    /// By an index, at this position.
    Index(usize),
}

/// Ids and tags of the rows in a range. An index is asked again for its columns alone. The outer error is the engine's, the
/// inner one a row that cannot be.
///
/// # Errors
/// The engine's; the inner one says what of a row cannot be.
pub fn read(
    reader: &Reader,
    shape: &Shape,
    table: &Arc<Table>,
    path: Path,
    range: KeyRange,
    direction: Direction,
) -> Result<std::result::Result<Vec<(i32, Tag)>, String>> {
    let mut scan = match path {
        Path::Primary => reader.scan(table, range.clone(), direction),
        Path::Index(index) => reader.index_scan(table, index, range.clone(), direction),
    };
    let (mut rows, mut batch, mut columns) = (Vec::new(), RowBatch::new(), Vec::new());
    while scan.next_batch(reader, &mut batch)? {
        for i in 0..batch.len() {
            match shape.decode(table, batch.row(i)) {
                Ok(row) => rows.push(row),
                Err(problem) => return Ok(Err(problem)),
            }
            if let Path::Index(index) = path {
                columns.push(columns_of_entry(table, index, batch.row(i))?);
            }
        }
    }
    if let Path::Index(index) = path {
        let scan = reader.index_scan(table, index, range, direction).index_only();
        let alone = read_alone(reader, table, index, scan)?;
        if alone != columns {
            let name = &table.indexes[index].name;
            return Ok(Err(format!("{name} alone says {alone:?}, its rows {columns:?}")));
        }
    }
    Ok(Ok(rows))
}

/// The columns of all rows that an index's entries give, by these alone.
fn read_alone(reader: &Reader, table: &Table, index: usize, mut scan: RowScan) -> Result<Vec<Vec<Datum>>> {
    let (mut all, mut batch) = (Vec::new(), RowBatch::new());
    while scan.next_batch(reader, &mut batch)? {
        for i in 0..batch.len() {
            all.push(columns_of_entry(table, index, batch.row(i))?);
        }
    }
    Ok(all)
}

fn columns_of_entry(table: &Table, index: usize, row: &[u8]) -> Result<Vec<Datum>> {
    let column = |column: &usize| table.layout().column(row, *column).map(|value| value.to_owned());
    table.columns_of_entries(index).iter().map(column).collect()
}

/// Where a row is, in histories.
pub fn place(table: u8, id: i32) -> Key {
    Key { table, id }
}
