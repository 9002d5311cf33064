//! The common part of errors, by what a caller can do about them.
//!
//! Layers above have enums of their own and wrap this one; `storage`, `fabric` and `buffer`
//! speak it directly. A half-finished durable operation poisons what it was done to:
//! [`Error::Poisoned`], or [`Error::LogFailed`], repeats for good and says what to do.

use std::io;

use crate::ids::Lsn;

/// The result of an operation on storage or memory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong below the tables.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A file or device failed.
    #[error("{doing}: {message}")]
    Io {
        /// What was being done, and to what.
        doing: String,
        /// What the system said.
        message: String,
        /// The kind of the system's error.
        kind: io::ErrorKind,
    },
    /// Space ran out; the text says where, and how to get more.
    #[error("{0}")]
    Full(String),
    /// Memory ran out; the text says of what, and how to give more.
    #[error("{0}")]
    OutOfMemory(String),
    /// What waited was asked to give up; it has changed nothing.
    #[error("canceled")]
    Canceled,
    /// Bytes that do not hold what they should; the text says which and how it shows.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// A region, file or setting that does not fit; the text names the field.
    #[error("{0}")]
    Mismatch(String),
    /// An earlier failure made it unsafe to go on; the text says what to do.
    #[error("{0}")]
    Poisoned(String),
    /// The redo log failed and takes no more changes, for good; the text says by what, and what to do.
    #[error("{0}")]
    LogFailed(String),
    /// A request that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Something else holds what is needed (a lock file, a region).
    #[error("{0}")]
    Busy(String),
    /// No answer in time: whether it was done, once or not at all, is unknown.
    #[error("{0}")]
    Timeout(String),
    /// The right to remote memory was taken back: ask its owner again.
    #[error("{0}")]
    Revoked(String),
    /// A range that is not, or not wholly, inside of the memory it was meant for.
    #[error("{0}")]
    OutOfBounds(String),
    /// A peer that is gone, and what it did not store elsewhere with it; the text says which.
    #[error("{0}")]
    Lost(String),
    /// What is asked for as of a position of the log is there as of this later one.
    #[error("it is there as of position {0} of the log, and no earlier one")]
    Ahead(Lsn),
    /// What is asked for as of a position of the log is not kept any more; the text says what.
    #[error("{0}")]
    Past(String),
}

impl Error {
    /// An I/O error with what was being done; running out of space becomes [`Error::Full`].
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        let doing = doing.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full(format!("{doing}: {source}")),
            kind => Error::Io {
                doing,
                message: source.to_string(),
                kind,
            },
        }
    }

    /// Bytes that do not hold what they should.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Error::Corrupt(what.into())
    }
}

/// Says what was being done when an I/O call failed.
pub trait IoContext<T> {
    /// Turns an I/O error into an [`Error`] that says what was being done.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::io(doing(), e))
    }
}
