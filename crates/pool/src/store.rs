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

use cenote_base::Result;
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
    fn read(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces the grant table: it is safe when this returns.
    ///
    /// # Errors
    /// Those of the store: nothing was written, or the leadership is over.
    fn write(&self, grant_table: &[u8]) -> Result<()>;

    /// Ends it now, so that another can begin.
    fn resign(&self);
}
