//! What the short path hands over: SELECT of any other shape, and the system's views.

use crate::error::Result;
use crate::output::{Field, Formats};
use crate::settings::Settings;
use bytes::BytesMut;
use cenote_base::rt;
use cenote_engine::{CancelFlag, ColumnType, Datum, Definitions, Reader};
use sqlparser::ast::Query;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that all queries together may hold where nothing else is said.
pub const DEFAULT_QUERY_MEMORY: u64 = 256 << 20;

/// What a query may see and must know of the session that runs it.
#[derive(Clone)]
pub struct Scope {
    /// Snapshot of the statement, with this transaction's own writes.
    pub reader: Reader,
    /// Tables and sequences as this transaction sees them.
    pub definitions: Definitions,
    /// Role name.
    pub user: String,
    /// Database name.
    pub database: String,
    /// `pg_backend_pid()`.
    pub pid: i32,
    /// Start of the transaction, microseconds since 2000 UTC: what `now()` gives.
    pub transaction_time: i64,
    /// Start of the statement, microseconds since 2000 UTC.
    pub statement_time: i64,
    /// Set when the query is to stop with 57014.
    pub cancel: Arc<CancelFlag>,
    /// The session's settings: time zone, `current_setting`, `search_path`.
    pub settings: Arc<Settings>,
}

/// Columns and parameters of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Result columns.
    pub fields: Vec<Field>,
    /// Type ids of the parameters, inferred where 0 was given.
    pub param_types: Vec<u32>,
}

/// A query that analytics runs, maybe again and again, and what analytics keeps of it between runs. Both live as long as
/// the statement's plan.
pub struct ForeignQuery {
    query: Query,
    kept: rt::Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl ForeignQuery {
    /// A query of which nothing is kept yet.
    pub fn new(query: Query) -> ForeignQuery {
        ForeignQuery {
            query,
            kept: rt::Mutex::new(None),
        }
    }

    /// What was kept last.
    pub fn kept(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.kept.lock().clone()
    }

    /// Keeps this, in place of what was kept.
    pub fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        *self.kept.lock() = Some(kept);
    }
}

impl Deref for ForeignQuery {
    type Target = Query;

    fn deref(&self) -> &Query {
        &self.query
    }
}

impl fmt::Debug for ForeignQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.query.fmt(f)
    }
}

/// Plans and runs queries of any shape over the engine's tables and snapshot. Implemented by [`crate::analytics`].
///
/// The caller's duty: the transaction behind `Scope::reader` lives as long as the rows do.
pub trait Analytics: Send + Sync {
    /// What a query takes and gives; runs nothing.
    fn describe(&self, scope: &Scope, query: &Query, param_types: &[u32]) -> Result<Description>;
    /// Starts a query. Parameters come with their type ids.
    fn query(&self, scope: &Scope, query: &ForeignQuery, params: &[(Datum, u32)]) -> Result<Box<dyn Rows>>;
    /// Bytes that all queries together may hold: `SHOW query_memory`.
    fn memory_limit(&self) -> u64 {
        DEFAULT_QUERY_MEMORY
    }
    /// The plan, a line each.
    fn explain(&self, scope: &Scope, query: &Query, params: &[(Datum, u32)], analyze: bool) -> Result<Vec<String>>;
}

/// A running query, pulled row by row so that portals can suspend. Dropping it stops the query.
pub trait Rows: Send {
    /// Result columns.
    fn fields(&self) -> &[Field];
    /// Moves to the next row; false at the end.
    fn next(&mut self) -> Result<bool>;
    /// Appends length and bytes of each column of the current row.
    fn encode(&self, formats: Formats<'_>, settings: &Settings, out: &mut BytesMut) -> Result<()>;
    /// The current row.
    fn datums(&self) -> Result<Vec<Datum>>;
    /// Bytes that it holds of its rows.
    fn held_bytes(&self) -> usize {
        0
    }
    /// Ids of the user tables that it reads.
    fn tables(&self) -> &[u32] {
        &[]
    }
    /// Starts over, once at the end: as if `row` were the only row of the table that FROM names first, with everything
    /// else as `reader` sees it.
    fn again(&mut self, reader: Reader, row: &[u8]) -> Result<()>;
}

/// Views whose rows the server knows: `cenote_recovery`, `cenote_memory`, `cenote_sessions`.
pub trait SystemViews: Send + Sync {
    /// Names of the views.
    fn names(&self) -> Vec<String>;
    /// Columns of a view.
    fn columns(&self, view: &str) -> Option<Vec<(&'static str, ColumnType)>>;
    /// Rows of a view, computed now.
    fn rows(&self, view: &str) -> Vec<Vec<Datum>>;
}
