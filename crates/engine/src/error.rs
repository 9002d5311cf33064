//! Errors of the engine, sorted by what the caller can do about them. Each knows its SQLSTATE.

use crate::types::Datum;
use thiserror::Error;

/// What went wrong. `sqlstate` gives PostgreSQL's code for it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// A unique index holds the key already.
    #[error("duplicate key value violates unique constraint \"{index}\"")]
    UniqueViolation {
        /// Table that holds the index.
        table: String,
        /// Index (or primary key) that refused.
        index: String,
        /// Names of the key's columns.
        columns: Vec<String>,
        /// The values that are there already.
        values: Vec<Datum>,
    },
    /// A row that this transaction must change was changed after its snapshot (repeatable read).
    #[error("could not serialize access due to concurrent {0}")]
    Serialization(&'static str),
    /// Waiting would close a cycle of transactions that wait for each other.
    #[error("deadlock detected: {0}")]
    Deadlock(String),
    /// NOWAIT found a lock taken, or `lock_timeout` has passed.
    #[error("{0}")]
    LockNotAvailable(String),
    /// The cancel flag was set while the statement waited or scanned.
    #[error("canceling statement due to user request")]
    Canceled,
    /// A write in a read-only transaction or database.
    #[error("cannot execute {0} in a read-only transaction")]
    ReadOnly(String),
    /// No such table.
    #[error("relation \"{0}\" does not exist")]
    UndefinedTable(String),
    /// A relation of this name exists.
    #[error("relation \"{0}\" already exists")]
    DuplicateTable(String),
    /// No such index, sequence or column.
    #[error("{0} does not exist")]
    UndefinedObject(String),
    /// Something of that kind and name exists.
    #[error("{0} already exists")]
    DuplicateObject(String),
    /// The table handle is older than the catalog: plan again.
    #[error("relation \"{0}\" was changed by a concurrent definition statement")]
    StaleTable(String),
    /// A second primary key.
    #[error("multiple primary keys for table \"{0}\" are not allowed")]
    MultiplePrimaryKeys(String),
    /// NULL in a column that refuses it.
    #[error("column \"{column}\" of relation \"{table}\" contains null values")]
    NotNull {
        /// Table of the column.
        table: String,
        /// The column.
        column: String,
    },
    /// A text that is no value of the type.
    #[error("invalid input syntax for type {ty}: \"{text}\"")]
    InvalidText {
        /// The type's SQL name.
        ty: &'static str,
        /// What was given.
        text: String,
    },
    /// A value out of its type's range.
    #[error("{0}")]
    OutOfRange(String),
    /// A sequence has no further value.
    #[error("{0}")]
    SequenceLimit(String),
    /// A key, row or name above a fixed limit.
    #[error("{0}")]
    TooLarge(String),
    /// An operation that does not fit the state of the transaction or object.
    #[error("{0}")]
    WrongState(String),
    /// A table that suspended queries of the same session read.
    #[error("{0}")]
    InUse(String),
    /// A reader's snapshot sees what the server has purged, or is not as new as was asked for.
    #[error("snapshot too old: {0}")]
    SnapshotTooOld(String),
    /// Something that this version cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// Storage is full.
    #[error("no space left: {0}")]
    DiskFull(String),
    /// The memory region is full and nothing can be evicted.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// Too many of something that there is a fixed number of: sessions, undo segments.
    #[error("{0}")]
    Limit(String),
    /// A file or device failed.
    #[error("I/O error: {0}")]
    Io(String),
    /// The log failed: nothing more is written. Restart the server; it recovers all acknowledged commits.
    #[error("{0}")]
    Poisoned(String),
    /// A commit has its place in the log, and is not known to be durable: look before it is repeated.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// Bytes that cannot be right.
    #[error("data corrupted: {0}")]
    Corrupt(String),
    /// A directory, region or option that cannot be used.
    #[error("{0}")]
    Config(String),
    /// A rule of the engine itself was broken.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// PostgreSQL's five-character code.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Error::UniqueViolation { .. } => "23505",
            Error::Serialization(_) => "40001",
            Error::Deadlock(_) => "40P01",
            Error::LockNotAvailable(_) => "55P03",
            Error::Canceled => "57014",
            Error::ReadOnly(_) => "25006",
            Error::UndefinedTable(_) => "42P01",
            Error::DuplicateTable(_) => "42P07",
            Error::UndefinedObject(_) => "42704",
            Error::DuplicateObject(_) => "42710",
            Error::StaleTable(_) => "55000",
            Error::MultiplePrimaryKeys(_) => "42P16",
            Error::NotNull { .. } => "23502",
            Error::InvalidText { .. } => "22P02",
            Error::OutOfRange(_) => "22003",
            Error::SequenceLimit(_) => "2200H",
            Error::TooLarge(_) => "54000",
            Error::WrongState(_) => "55000",
            Error::InUse(_) => "55006",
            Error::SnapshotTooOld(_) => "72000",
            Error::Unsupported(_) => "0A000",
            Error::DiskFull(_) => "53100",
            Error::OutOfMemory(_) => "53200",
            Error::Limit(_) => "53400",
            Error::Io(_) | Error::Poisoned(_) => "58030",
            Error::OutcomeUnknown(_) => "08007",
            Error::Corrupt(_) => "XX001",
            Error::Config(_) => "F0000",
            Error::Internal(_) => "XX000",
        }
    }
}

impl From<cenote_base::Error> for Error {
    fn from(error: cenote_base::Error) -> Error {
        use cenote_base::Error as Base;
        match error {
            Base::Full(text) => Error::DiskFull(text),
            Base::OutOfMemory(text) => Error::OutOfMemory(text),
            Base::Canceled => Error::Canceled,
            Base::Corrupt(text) => Error::Corrupt(text),
            Base::Mismatch(text) | Base::Busy(text) | Base::Invalid(text) => Error::Config(text),
            Base::Past(text) => Error::SnapshotTooOld(text),
            Base::Poisoned(text) | Base::LogFailed(text) => Error::Poisoned(text),
            other => Error::Io(other.to_string()),
        }
    }
}
