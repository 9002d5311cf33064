//! What connections use of their server.

use super::access::Access;
use super::registry::Registry;
use super::session::Conversation;
use cenote_sql::SessionInfo;
use std::sync::Arc;

/// Opens sessions: SQL over the engine, or a test's stand-in.
pub trait Service: Send + Sync + 'static {
    /// A session.
    type Session: Conversation + Send + 'static;
    /// Opens one.
    ///
    /// # Errors
    /// Those of SQL: the database or a setting that the client asks for is not there.
    fn open(&self, info: SessionInfo) -> cenote_sql::Result<Self::Session>;
}

impl Service for Arc<cenote_sql::Sql> {
    type Session = cenote_sql::Session;
    fn open(&self, info: SessionInfo) -> cenote_sql::Result<Self::Session> {
        self.session(info)
    }
}

/// What a connection needs to begin its session.
pub struct Context<S: Service> {
    /// Opens sessions.
    pub service: S,
    /// Which clients may come in.
    pub access: Access,
    /// The sessions there are.
    pub registry: Arc<Registry>,
}
