//! What the database holds: tables, columns, indexes, sequences.
//!
//! `Table` is an immutable description with what the engine derives from it (row layout). A definition statement makes
//! a new `Table` with a higher version; handles of the old one stay valid for reading under older snapshots and are
//! refused for writing (`Error::StaleTable`).

mod codec;
mod cow;
mod defs;
pub(crate) mod known_statistics;
pub(crate) mod spaces;
pub(crate) mod state;
pub(crate) mod statistics;

pub use defs::{ColumnDef, IndexDef, NewIndex, NewSequence, NewTable, PrimaryKey, SequenceDef, TableDef};
pub use state::Definitions;

use crate::covered::EntryRows;
use crate::error::{Error, Result};
use crate::key;
use crate::row::RowLayout;
use crate::types::Datum;
use cenote_base::rt::atomic::AtomicU64;
use std::ops::Deref;

/// A table as statements use it: its definition and the layout of its rows.
#[derive(Debug)]
pub struct Table {
    def: TableDef,
    layout: RowLayout,
    /// How the entries of each index are read.
    entry_rows: Vec<EntryRows>,
    /// The state of all definitions in which writers and purge were last known to keep up all its indexes.
    pub(crate) kept_up: AtomicU64,
}

impl Deref for Table {
    type Target = TableDef;
    fn deref(&self) -> &TableDef {
        &self.def
    }
}

impl Table {
    /// The handle of a definition.
    pub fn new(def: TableDef) -> Table {
        let types: Vec<_> = def.columns.iter().map(|c| c.ty).collect();
        let layout = RowLayout::new(&types);
        let primary = def.primary_key.as_ref().map_or(&[][..], |p| &p.columns);
        let entry_rows = def.indexes.iter().map(|i| EntryRows::new(&layout, &i.columns, primary));
        Table {
            entry_rows: entry_rows.collect(),
            layout,
            def,
            kept_up: AtomicU64::new(0),
        }
    }

    /// The definition.
    pub fn def(&self) -> &TableDef {
        &self.def
    }

    /// How rows are laid out.
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Columns whose values the entries of an index (by its position) give, rising: those of the index and of the primary
    /// key whose values their key keeps as they are.
    pub fn columns_of_entries(&self, index: usize) -> &[usize] {
        self.entry_rows[index].covered()
    }

    pub(crate) fn entry_rows(&self, index: usize) -> &EntryRows {
        &self.entry_rows[index]
    }

    /// Position of a column by its name.
    pub fn column_named(&self, name: &str) -> Option<usize> {
        self.def.columns.iter().position(|c| c.name == name)
    }

    /// Position of an index by its name.
    pub fn index_named(&self, name: &str) -> Option<usize> {
        self.def.indexes.iter().position(|i| i.name == name)
    }

    /// Whether rows are keyed by a hidden row number, for want of a primary key.
    pub fn has_hidden_key(&self) -> bool {
        self.def.primary_key.is_none()
    }

    /// Primary key bytes of a row.
    ///
    /// # Errors
    /// [`Error::Internal`]: the table has no primary key. [`Error::Corrupt`]: the bytes are no row of the table.
    pub fn key_of_row(&self, row: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let primary = self
            .def
            .primary_key
            .as_ref()
            .ok_or_else(|| Error::Internal("table without a primary key".into()))?;
        out.clear();
        self.push_columns(&primary.columns, row, out)?;
        key::check_len(out)
    }

    /// Key bytes from the first values of the primary key (all of them for a whole key, fewer for a prefix).
    pub fn key_of_values(&self, values: &[Datum], out: &mut Vec<u8>) {
        let columns = self
            .def
            .primary_key
            .as_ref()
            .map(|p| p.columns.as_slice())
            .unwrap_or_default();
        out.clear();
        self.push_values(columns, values, out);
    }

    /// Bytes of an index's columns of a row (without the primary key that the tree's entry adds).
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the bytes are no row of the table.
    pub fn index_key_of_row(&self, index: &IndexDef, row: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.push_columns(&index.columns, row, out)
    }

    /// Bytes of the first columns of an index from values: a prefix for `KeyRange`.
    pub fn index_key_of_values(&self, index: &IndexDef, values: &[Datum], out: &mut Vec<u8>) {
        out.clear();
        self.push_values(&index.columns, values, out);
    }

    /// Whether one of the index's columns is NULL in the row (then it can collide with nothing).
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the bytes are no row of the table.
    pub fn index_key_has_null(&self, index: &IndexDef, row: &[u8]) -> Result<bool> {
        for column in &index.columns {
            if self.layout.is_null(row, *column)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error for a row that collides in an index (None: in the primary key).
    pub fn unique_violation(&self, index: Option<usize>, row: &[u8]) -> Error {
        match (index, &self.def.primary_key) {
            (Some(i), _) => self.violation_of(&self.def.indexes[i].name, &self.def.indexes[i].columns, row),
            (None, Some(primary)) => self.violation_of(&primary.name, &primary.columns, row),
            (None, None) => Error::Internal("hidden row number used twice".into()),
        }
    }

    pub(crate) fn violation_of(&self, index: &str, columns: &[usize], row: &[u8]) -> Error {
        Error::UniqueViolation {
            table: self.def.name.clone(),
            index: index.to_string(),
            columns: columns.iter().map(|c| self.def.columns[*c].name.clone()).collect(),
            values: columns
                .iter()
                .map(|c| self.layout.column(row, *c).map_or(Datum::Null, |d| d.to_owned()))
                .collect(),
        }
    }

    fn push_columns(&self, columns: &[usize], row: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for column in columns {
            key::push(
                self.layout.column_type(*column),
                &self.layout.column(row, *column)?,
                out,
            );
        }
        Ok(())
    }

    fn push_values(&self, columns: &[usize], values: &[Datum], out: &mut Vec<u8>) {
        for (column, value) in columns.iter().zip(values) {
            key::push_datum(self.layout.column_type(*column), value, out);
        }
    }
}
