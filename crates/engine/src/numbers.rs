//! Numbers of spaces, and of objects (tables, indexes, sequences): each given out once as long as there are new ones,
//! then those again that nothing names any more.
//!
//! 1. The meta page holds the next number and how often the range has been gone through. In the first round numbers are
//!    new.
//! 2. From the second on they come in *batches*. A batch is chosen from numbers that nothing has, and is *settled* when
//!    - the checkpoint has passed the log's end of that moment: no replay meets a former space of that number, and none
//!      of its frames is left (they hold checkpoints back);
//!    - every transaction that had a number by then is over and purged: no undo record, and no former version of a
//!      definition, leads to it;
//!    - no backup runs, which would take the new space for the former one that it has copied.
//! 3. The next batch is chosen while half of one is left. If it is not settled when it is needed, a checkpoint is taken
//!    and purge goes round once; then the definition is refused, and says why.
//! 4. A space is there from the moment of its creation. An object is named when its transaction has committed, so a
//!    settled batch is looked through once more: whatever was in progress when it was chosen is over.
//!
//! A crash forgets batches: their numbers come again in the next round.

use crate::error::Error;
use cenote_base::rt;
use cenote_base::{Lsn, TxId};
use std::ops::Range;

/// Numbers in a batch, at most.
const BATCH: u32 = 4096;

/// What numbers are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// Spaces: trees with their files.
    Space,
    /// Tables, primary keys, indexes and sequences.
    Object,
}

/// The numbers of a database's spaces or objects.
pub(crate) struct Numbers {
    pub of: Numbered,
    pub range: Range<u32>,
    pub batches: rt::Mutex<Batches>,
}

#[derive(Default)]
pub(crate) struct Batches {
    /// Used from the end.
    pub ready: Vec<u32>,
    pub next: Option<Batch>,
    /// Behind a batch that was chosen before the first round ended.
    pub behind: Option<Cursor>,
}

/// Numbers that nothing had at a moment.
pub(crate) struct Batch {
    pub numbers: Vec<u32>,
    /// The log's end then.
    pub lsn: Lsn,
    /// The next transaction's number then.
    pub tx: TxId,
}

/// Where the meta page stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The next number to be looked at.
    pub next: u32,
    /// How often the range has been gone through.
    pub round: u32,
}

impl Numbers {
    /// Of the numbers in `range`.
    pub(crate) fn new(of: Numbered, range: Range<u32>) -> Numbers {
        Numbers {
            of,
            range,
            batches: rt::Mutex::default(),
        }
    }

    pub(crate) fn first_again(&self) -> Cursor {
        Cursor {
            next: self.range.start,
            round: 1,
        }
    }

    pub(crate) fn batch(&self) -> u32 {
        (self.range.len() as u32 / 4).clamp(1, BATCH)
    }

    pub(crate) fn none_free(&self) -> Error {
        let of = match self.of {
            Numbered::Space => "no number of a former table or index",
            Numbered::Object => "no id of a former table, index or sequence",
        };
        Error::Limit(format!(
            "{of} can be used again yet: a transaction or snapshot that is older than its end, or a backup, is in progress; \
             end it, and try again"
        ))
    }
}
