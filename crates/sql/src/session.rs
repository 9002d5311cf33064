//! A session: one client's statements, transaction and settings.

use crate::Sql;
use crate::bind::Bind;
use crate::error::{Result, SqlError};
use crate::output::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Who connects, as the start-up message and the server say.
#[derive(Debug, Clone, Default)]
pub struct SessionInfo {
    /// Role name.
    pub user: String,
    /// Database name.
    pub database: String,
    /// Number that `pg_backend_pid()` answers.
    pub pid: i32,
    /// Client address as text.
    pub client: String,
    /// Settings of the start-up message (`application_name`, `client_encoding`, `options` taken apart, ...).
    pub settings: Vec<(String, String)>,
}

/// Asks a session from another thread to give up its running statement (57014).
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// The running statement fails with 57014 at its next check; an idle session ignores it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One client's state. Lives on one thread; dropping it rolls back.
pub struct Session {
    _sql: Arc<Sql>,
    cancel: CancelHandle,
}

impl Session {
    pub(crate) fn new(sql: Arc<Sql>, _info: SessionInfo) -> Result<Self> {
        Ok(Session { _sql: sql, cancel: CancelHandle::default() })
    }

    /// `Query`: any number of statements. On `Err` the server sends ErrorResponse; in both cases ReadyForQuery follows.
    pub fn simple(&mut self, _text: &str, _out: &mut dyn Output) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Parse`. Type ids of 0, or missing ones, are inferred.
    pub fn parse(&mut self, _name: &str, _text: &str, _types: &[u32]) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Bind`.
    pub fn bind(&mut self, _portal: &str, _statement: &str, _bind: Bind<'_>) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Describe` of a statement: ParameterDescription, then RowDescription or NoData.
    pub fn describe_statement(&mut self, _name: &str, _out: &mut dyn Output) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Describe` of a portal: RowDescription or NoData.
    pub fn describe_portal(&mut self, _name: &str, _out: &mut dyn Output) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Execute`; `max_rows` 0 is without limit.
    pub fn execute(&mut self, _portal: &str, _max_rows: u32, _out: &mut dyn Output) -> Result<()> {
        Err(SqlError::unsupported("this statement"))
    }
    /// `Close` of a statement; an unknown name is no error.
    pub fn close_statement(&mut self, _name: &str) {}
    /// `Close` of a portal; an unknown name is no error.
    pub fn close_portal(&mut self, _name: &str) {}
    /// `Sync`: commits what is not inside an explicit transaction. ReadyForQuery follows, after ErrorResponse on `Err`.
    /// Call it also after an error, where skipping ends.
    pub fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    /// Transaction status for ReadyForQuery: `b'I'`, `b'T'` or `b'E'`.
    pub fn status(&self) -> u8 {
        b'I'
    }
    /// Settings to report at start (ParameterStatus): name and value.
    pub fn reported_settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// A setting's value as SHOW gives it.
    pub fn setting(&self, _name: &str) -> Option<String> {
        None
    }
    /// To be kept with the session's pid and secret for CancelRequest.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }
}
