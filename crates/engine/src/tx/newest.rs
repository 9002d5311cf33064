//! The newest version of a row, as a writer finds it.

use crate::undo::record::Trailer;
use cenote_base::TxId;

/// Newest version of a row.
pub(super) enum Newest {
    /// There is no version.
    Missing,
    /// One that was the newest at a moment at which its transaction was known to stand (or is this one).
    Row {
        trailer: Trailer,
        /// The snapshot does not see it.
        moved: bool,
    },
    /// One of a transaction in progress.
    InProgress(TxId),
}

/// A transaction in progress whose version of a row stands in the way, and that row's key.
pub(super) struct Blocker {
    pub by: TxId,
    pub key: Vec<u8>,
}

impl Blocker {
    pub fn new(by: TxId, key: &[u8]) -> Blocker {
        Blocker { by, key: key.to_vec() }
    }
}
