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
