//! Where a manager's grant table is kept, and which of several managers keeps it.
//!
//! ```text
//!              lead                      read, write …                    resign, or it is lost
//!   GrantTableStore ──────▶ Lead::Here(Leadership) ─────────────▶ Leadership ──────────────────────────────────▶ (over, for good)
//!       │
//!       └───────────▶ Lead::Elsewhere: another manager has it; ask again later
//! ```
//!
//! Duties of a store:
//! - one leadership at a time: a later one begins only when the earlier one is over, and `leads` of the earlier one was
//!   false before that;
//! - a leadership that is over writes nothing any more, whatever it believes;
//! - what was written is what the next one reads, and what failed is not there, or not after the next write. If it
//!   cannot be told which of the two, the leadership is over.
//!
//! [`file`]: one manager, a directory. [`etcd`]: several managers, of which one leads.

pub mod etcd;
pub mod file;

use cenote_base::crc::crc32c;
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a grant table is kept.
pub trait GrantTableStore: Send + Sync {
    /// Begins to keep the grant table, if no other manager does. Others are told `name`.
    ///
    /// # Errors
    /// [`Error::Busy`](cenote_base::Error::Busy) if another has it for as long as it runs.
    /// [`Error::Lost`](cenote_base::Error::Lost) and [`Error::Timeout`](cenote_base::Error::Timeout): the store is
    /// away; ask again.
    fn lead(&self, name: &str) -> Result<Lead>;
}

/// The keeper of a grant table.
pub enum Lead {
    /// The manager that asked.
    Here(Arc<dyn Leadership>),
    /// Another; its name, if it is known.
    Elsewhere(Option<String>),
}

/// The time in which one manager keeps the grant table. Dropping the last handle ends it.
pub trait Leadership: Send + Sync {
    /// Whether it is not over. No other's begins before this has become false.
    fn leads(&self) -> bool;

    /// Asks the store itself whether it is not over: a clock that stood still, as on a machine that was suspended, does
    /// not know.
    ///
    /// # Errors
    /// It is over, or no store answers.
    fn confirm(&self) -> Result<()>;

    /// The grant table; `None` if there has never been one.
    ///
    /// # Errors
    /// Those of the store.
    fn read(&self) -> Result<Option<Stored>>;

    /// Writes what a change of the grant table has changed, all of it or nothing: it is safe when this returns.
    ///
    /// # Errors
    /// Those of the store: nothing was written, or the leadership is over.
    fn write(&self, change: &Change) -> Result<()>;

    /// Ends it now, so that another can begin.
    fn resign(&self);
}

/// What a record is called: `grant/7`.
pub type Name = String;

/// All records of a grant table: JSON, each on one line.
pub type RecordSet = BTreeMap<Name, String>;

/// Records that are another by a change of the grant table; `None`: it is there no more.
pub type Change = BTreeMap<Name, Option<String>>;

/// A grant table as its store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// As records.
    Records(RecordSet),
    /// As one value, as former programs wrote it. The next change puts all records, and takes its place.
    Former(Vec<u8>),
}

/// A record with its checksum, which is of its name, too.
pub(crate) fn seal(name: &str, record: &str) -> String {
    format!("{:08x} {record}", checksum(name, record))
}

/// What [`seal`] wrote.
///
/// # Errors
/// [`Error::Corrupt`].
pub(crate) fn unseal(name: &str, sealed: &str) -> Result<String> {
    let (sum, record) = sealed.split_once(' ').unwrap_or((sealed, ""));
    match sum == format!("{:08x}", checksum(name, record)) {
        true => Ok(record.to_owned()),
        false => Err(Error::corrupt(format!(
            "the checksum of record \"{}\" of the pool's grant table",
            name.escape_debug()
        ))),
    }
}

fn checksum(name: &str, record: &str) -> u32 {
    crc32c(format!("{name}\n{record}").as_bytes())
}

/// Carries a change out on a book.
pub(crate) fn apply(book: &mut RecordSet, change: &Change) {
    for (name, record) in change {
        match record {
            Some(record) => _ = book.insert(name.clone(), record.clone()),
            None => _ = book.remove(name),
        }
    }
}
