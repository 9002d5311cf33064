//! Definitions: what CREATE statements say and the catalog's tables keep.

use crate::types::ColumnType;

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnDef {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: ColumnType,
    /// Whether NULL is refused (by `sql`, on the way in).
    pub not_null: bool,
    /// Text of the DEFAULT expression, kept for `sql`.
    pub default: Option<String>,
}

/// The primary key: columns by which rows are clustered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrimaryKey {
    /// Object id, for pg_class.
    pub id: u32,
    /// Name of the constraint and its index.
    pub name: String,
    /// Positions of the columns, in key order.
    pub columns: Vec<usize>,
}

/// A secondary index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDef {
    /// Object id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Space of its tree.
    pub space: u32,
    /// Positions of the columns, in key order.
    pub columns: Vec<usize>,
    /// Whether equal keys without NULL are refused.
    pub unique: bool,
    /// Whether a UNIQUE constraint made it (rather than CREATE UNIQUE INDEX).
    pub constraint: bool,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDef {
    /// Object id: stays the same through TRUNCATE and ALTER.
    pub id: u32,
    /// Name (all tables are in the schema `public`).
    pub name: String,
    /// Space of the clustered tree and its overflow pages.
    pub space: u32,
    /// Columns in order.
    pub columns: Vec<ColumnDef>,
    /// Primary key; None: rows are keyed by a hidden row number.
    pub primary_key: Option<PrimaryKey>,
    /// Secondary indexes.
    pub indexes: Vec<IndexDef>,
    /// Rises with each definition statement that changes this table.
    pub version: u64,
}

/// A sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceDef {
    /// Object id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// First value.
    pub start: i64,
    /// Step; not zero.
    pub increment: i64,
    /// Least value.
    pub min: i64,
    /// Greatest value.
    pub max: i64,
    /// Whether it starts again at the other end.
    pub cycle: bool,
    /// Table id and column that own it (serial): dropped with the table.
    pub owned_by: Option<(u32, usize)>,
}

/// A table to create.
#[derive(Debug, Clone, Default)]
pub struct NewTable {
    /// Name.
    pub name: String,
    /// Columns.
    pub columns: Vec<ColumnDef>,
    /// Name and columns of the primary key.
    pub primary_key: Option<(String, Vec<usize>)>,
    /// Indexes of UNIQUE constraints.
    pub indexes: Vec<NewIndex>,
}

/// An index to create.
#[derive(Debug, Clone)]
pub struct NewIndex {
    /// Name.
    pub name: String,
    /// Positions of the columns.
    pub columns: Vec<usize>,
    /// Whether equal keys are refused.
    pub unique: bool,
    /// Whether it belongs to a constraint.
    pub constraint: bool,
}

/// A sequence to create.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Name.
    pub name: String,
    /// First value.
    pub start: i64,
    /// Step; not zero.
    pub increment: i64,
    /// Least value.
    pub min: i64,
    /// Greatest value.
    pub max: i64,
    /// Whether it starts again at the other end.
    pub cycle: bool,
    /// Owner, for serial columns.
    pub owned_by: Option<(u32, usize)>,
}

impl NewSequence {
    /// An ascending sequence from 1 with PostgreSQL's defaults, up to `max`.
    pub fn ascending(name: &str, max: i64) -> NewSequence {
        NewSequence {
            name: name.to_string(),
            start: 1,
            increment: 1,
            min: 1,
            max,
            cycle: false,
            owned_by: None,
        }
    }
}
