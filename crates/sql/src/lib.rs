//! Statements: parse, plan, execute. PostgreSQL's dialect, types, error codes and encodings are the interface.
//!
//! The path of a statement: [`Session`] receives its text or a bound portal.

mod bind;
mod error;
mod output;
mod session;

pub use bind::Bind;
pub use error::{Names, Result, Severity, SqlError, code};
pub use output::{Field, Format, Formats, Output};
pub use session::{CancelHandle, Session, SessionInfo};

use std::sync::Arc;

/// The database as SQL sees it: shared by all sessions.
pub struct Sql {}

impl Sql {
    /// SQL without an engine yet.
    pub fn new() -> Arc<Sql> {
        Arc::new(Sql {})
    }

    /// A session for one client.
    pub fn session(self: &Arc<Self>, info: SessionInfo) -> Result<Session> {
        Session::new(self.clone(), info)
    }
}
