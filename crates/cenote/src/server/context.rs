//! What connections use of their server.

use super::access::Access;
use super::registry::Registry;
use cenote_cluster::Lease;
use cenote_sql::{Output, Result, Session, Sql};
use std::sync::Arc;

/// Statements that the server answers itself, in front of SQL.
pub trait ServerStatements: Send + Sync + 'static {
    /// Answers `text`, the whole of a Query, if it is such a statement; None: it is for SQL.
    fn answer(&self, session: &mut Session, text: &str, out: &mut dyn Output) -> Option<Result<()>>;
}

/// What a connection needs to begin its session.
pub struct Context {
    /// Opens sessions.
    pub sql: Arc<Sql>,
    /// Sees the text of each Query before SQL does.
    pub statements: Arc<dyn ServerStatements>,
    /// Which clients may come in.
    pub access: Access,
    /// The sessions there are.
    pub registry: Arc<Registry>,
    /// What answers rest on, where another server may take the database.
    pub lease: Option<Arc<Lease>>,
}
