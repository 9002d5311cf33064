//! Tables and transactions: rows in B+trees, MVCC with undo, locks, catalog, recovery.

pub mod api;
pub mod catalog;
pub mod error;
mod interim;
pub mod key;
pub mod row;
pub mod space;
pub mod tree;
pub mod types;

pub use api::{
    Change, Direction, EngineOptions, Insert, Isolation, LockStrength, Locked, MemoryKind, Outcome, RowBatch, Survive, Wait,
};
pub use catalog::{ColumnDef, IndexDef, NewIndex, NewSequence, NewTable, PrimaryKey, SequenceDef, Table, TableDef};
pub use error::{Error, Result};
pub use interim::{CancelFlag, CheckReport, Engine, Reader, RecoveryReport, RowScan, Savepoint, Tx};
pub use key::KeyRange;
pub use row::RowLayout;
pub use types::{ColumnType, Datum, DatumRef, Numeric};
