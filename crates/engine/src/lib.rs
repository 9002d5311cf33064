//! Tables and transactions: rows in B+trees, MVCC with undo, locks, catalog, recovery.
//!
//! | module | its idea |
//! |---|---|
//! | `types`, `row`, `key` | values, rows and keys as bytes |
//! | `tree`, `space` | the B+tree on slotted pages |
//! | `undo` | what rows were before: segments of records |
//! | `tx` | transactions: status, snapshots, locks, reading, writing, commit, rollback, definitions |
//! | `catalog`, `counters` | what the database holds; sequences and row counts |
//! | `statistics`, `analyze` | what the planner knows of tables' contents, from samples |
//! | `large` | values on overflow pages |
//! | `memory` | what statements may gather, by session |
//! | `purge`, `recovery`, `check` | what is past goes; what had not ended is taken back; all is verified |
//! | `engine` | the whole, opened |

mod analyze;
pub mod api;
mod backup;
pub mod catalog;
mod check;
mod circle;
mod counters;
mod covered;
mod engine;
pub mod error;
mod follow;
pub mod key;
mod large;
mod left;
mod losers;
mod memory;
mod meta;
mod numbering;
mod numbers;
mod open;
mod pool;
mod promote;
mod purge;
mod readers;
mod recovery;
mod report;
pub mod row;
mod sequences;
mod sort;
pub mod space;
pub mod statistics;
mod system;
#[cfg(test)]
mod testing;
pub mod tree;
mod tx;
pub mod types;
mod undo;
mod versions;

pub use analyze::{Analysis, Analyzed};
pub use api::{
    Change, Changed, Claim, Columns, Direction, EngineOptions, Growth, Insert, Isolation, LockStrength, Locked,
    MemoryKind, Origins, Outcome, PartState, RemotePart, RemoteProvider, RemoteSize, RemoteSource, RowBatch, Survive,
    Tuning, Wait,
};
pub use catalog::{
    ColumnDef, Definitions, IndexDef, NewIndex, NewSequence, NewTable, PrimaryKey, SequenceDef, Table, TableDef,
};
/// Traces of page accesses.
pub mod trace {
    pub use cenote_buffer::{AccessObserver, MARK_BYTES, PageAccess, TraceDecoder, TraceEncoder, TraceEvent, Traced};
}
pub use cenote_storage::nodes::ReaderSeen;
pub use engine::{Engine, PodStats, PoolStats, TierStats};
pub use error::{Error, Result};
pub use follow::Staleness;
pub use key::KeyRange;
pub use memory::{Account, Charge, Memory};
pub use promote::Promotion;
pub use report::{CheckReport, RecoveryReport};
pub use row::{ColumnReader, RowLayout};
pub use statistics::{ColumnStatistics, KeyStatistics, Statistics};
pub use tx::{CancelFlag, CarriedSnapshot, Decide, NewRows, Reader, Refused, RowScan, Savepoint, TakenUp, Tx};
pub use types::{ColumnType, Datum, DatumRef, Numeric};
