//! Statements: parse, plan, execute. PostgreSQL's dialect, types, error codes and encodings are the interface.
//!
//! The path of a statement: [`Session`] receives its text or a bound portal.

#[cfg(feature = "analytics")]
pub mod analytics;
mod bind;
mod ddl;
mod engine_error;
mod env;
mod error;
mod exec;
mod expr;
mod hook;
mod names;
mod output;
mod parse;
mod plan;
mod session;
mod settings;
pub mod types;

pub use bind::Bind;
pub use error::{Names, Result, Severity, SqlError, code};
pub use hook::{Analytics, Description, Rows, Scope, SystemViews};
pub use output::{Field, Format, Formats, Output};
pub use session::{CancelHandle, Session, SessionInfo};
pub use settings::{SERVER_VERSION, SERVER_VERSION_NUM, Settings};
pub use types::zone::Zone;

use cenote_engine::Engine;
use session::Watchdog;
use std::sync::Arc;

/// The database as SQL sees it: shared by all sessions.
pub struct Sql {
    engine: Arc<Engine>,
    analytics: Option<Arc<dyn Analytics>>,
    watchdog: Watchdog,
}

impl Sql {
    /// SQL over an engine. `analytics` plans what the short path does not know; without it such statements are 0A000.
    pub fn new(engine: Arc<Engine>, analytics: Option<Arc<dyn Analytics>>) -> Arc<Sql> {
        Arc::new(Sql {
            engine,
            analytics,
            watchdog: Watchdog::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What plans queries that the short path does not know.
    pub fn analytics(&self) -> Option<&Arc<dyn Analytics>> {
        self.analytics.as_ref()
    }

    /// Statements that run with a `statement_timeout`.
    pub fn statements_watched(&self) -> usize {
        self.watchdog.watched()
    }

    pub(crate) fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    /// A session for one client. Errors: a setting of the start-up message that cannot be honoured.
    pub fn session(self: &Arc<Self>, info: SessionInfo) -> Result<Session> {
        Session::new(self.clone(), info)
    }
}
