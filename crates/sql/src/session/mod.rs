//! A session: one client's statements, transaction and settings.
//!
//! ```text
//!            statement                 BEGIN
//!   Idle ───────────────▶ Implicit ───────────▶ Block ──error──▶ Failed
//!     ▲                      │                    │                │
//!     └── end of message, ───┴── COMMIT, ROLLBACK ┴── ROLLBACK ────┘      Failed ──ROLLBACK TO──▶ Block
//!         Sync, error
//! ```
//! All statements of one message (up to Sync) outside a block are one implicit transaction. A failed block has given its locks back:
//! it was rolled back to its newest savepoint, or wholly where it has none.

mod copy;
mod extended;
mod planning;
mod run;
mod utility;
mod watchdog;

pub use watchdog::Watchdog;

use crate::Sql;
use crate::error::{Result, SqlError, code};
use crate::exec::Scratch;
use crate::exec::env::{SessionEnv, wall_clock};
use crate::output::Output;
use crate::parse::template::{Template, template};
use crate::parse::{Parsed, Statement, Utility, parse};
use crate::settings::Settings;
use crate::types::text::parse_datum;
use cenote_engine::{CancelFlag, Isolation, Savepoint, Tx};
use extended::Portal;
use planning::Prepared;
use std::collections::HashMap;
use std::sync::Arc;

/// Texts whose statements a session keeps parsed and planned.
const CACHED_TEXTS: usize = 256;
/// Longest text that is kept, in bytes.
const CACHED_TEXT_BYTES: usize = 16 << 10;

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
#[derive(Debug, Clone)]
pub struct CancelHandle(Arc<CancelFlag>);

impl CancelHandle {
    /// The running statement fails with 57014 at its next check; an idle session ignores it.
    pub fn cancel(&self) {
        self.0.set();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Implicit,
    Block,
    Failed,
}

/// One client's state. Lives on one thread at a time; dropping it rolls back.
pub struct Session {
    sql: Arc<Sql>,
    tx: Tx,
    env: SessionEnv,
    state: State,
    savepoints: Vec<(String, Savepoint)>,
    /// Settings that the connection began with, and that the transaction began with.
    start: Settings,
    before: Option<Arc<Settings>>,
    read_only: bool,
    lock_timeout_ms: u64,
    /// Isolation and access mode of the next transaction.
    next_isolation: Isolation,
    /// Whether the transaction has run a query: its isolation is settled then.
    queried: bool,
    next_read_only: bool,
    statement_timeout_ms: u64,
    /// Raised when plans become stale for a reason other than the catalog.
    epoch: u64,
    texts: HashMap<String, Vec<Prepared>>,
    /// Statements by their text without literals; None: they stay in.
    templates: HashMap<String, Option<Prepared>>,
    prepared: HashMap<String, Prepared>,
    unnamed: Option<Prepared>,
    portals: HashMap<String, Portal>,
    unnamed_portal: Portal,
    /// Whether a query may have been bound that has not begun.
    any_fresh: bool,
    scratch: Scratch,
    tag: String,
}

impl Session {
    pub(crate) fn new(sql: Arc<Sql>, info: SessionInfo) -> Result<Self> {
        let tx = sql.engine().session(&holder(info.pid, &info.user))?;
        let mut settings = Settings::new(&info.user);
        for (name, value) in &info.settings {
            settings.set(name, value, false)?;
        }
        let now = wall_clock();
        let env = SessionEnv {
            user: info.user,
            database: info.database,
            pid: info.pid,
            settings: Arc::new(settings.clone()),
            transaction_time: now,
            statement_time: now,
            last_values: Default::default(),
            last_sequence: Default::default(),
            cancel: tx.cancel_flag(),
            memory: tx.account().clone(),
            random: std::cell::Cell::new(now as u64 ^ (info.pid as u64) << 32),
        };
        let mut session = Session {
            sql,
            tx,
            env,
            state: State::Idle,
            savepoints: Vec::new(),
            start: settings,
            before: None,
            read_only: false,
            lock_timeout_ms: 0,
            next_isolation: Isolation::ReadCommitted,
            queried: false,
            next_read_only: false,
            statement_timeout_ms: 0,
            epoch: 0,
            texts: HashMap::new(),
            templates: HashMap::new(),
            prepared: HashMap::new(),
            unnamed: None,
            portals: HashMap::new(),
            unnamed_portal: Portal::default(),
            any_fresh: false,
            scratch: Scratch::default(),
            tag: String::new(),
        };
        session.settings_changed();
        Ok(session)
    }

    /// `Query`: any number of statements. On `Err` the server sends ErrorResponse; in both cases ReadyForQuery follows.
    pub fn simple(&mut self, text: &str, out: &mut dyn Output) -> Result<()> {
        self.unnamed = None;
        self.unnamed_portal.close();
        if let Some(done) = self.simple_template(text, out) {
            return done.map_err(|e| self.failed(e));
        }
        let mut statements = match self.statements(text, &[]) {
            Ok(statements) => statements,
            Err(error) => return Err(self.failed(error)),
        };
        if statements.is_empty() {
            return out.empty_query();
        }
        let done = statements.iter_mut().try_for_each(|s| self.simple_statement(s, out));
        let done = done.and_then(|()| self.end_implicit());
        self.keep(text, statements);
        done.map_err(|e| self.failed(e))
    }

    /// Runs a text by its template; None: it has none that the short path knows, or a literal is wrong (then the text itself says where).
    fn simple_template(&mut self, text: &str, out: &mut dyn Output) -> Option<Result<()>> {
        if self.state == State::Failed {
            return None;
        }
        let found = template(text)?;
        let mut prepared = match self.templates.get_mut(&found.key) {
            Some(known) => known.take()?,
            None => Prepared::template(&found)?,
        };
        let entered = self.begin_statement(&prepared.parsed);
        let bound = entered.and_then(|()| self.bind_template(&mut prepared, &found));
        let Ok(mut portal) = bound else {
            self.keep_template(found.key, None);
            return None;
        };
        let Some(portal) = &mut portal else {
            self.keep_template(found.key, Some(prepared));
            return None;
        };
        let watch = self.watch();
        let done = self.run_portal_with(portal, &mut prepared, 0, true, out);
        let done = self.unwatch(watch, done).and_then(|()| self.end_implicit());
        self.keep_template(found.key, Some(prepared));
        Some(done)
    }

    /// The portal of a template; None: a literal is no value of its type.
    fn bind_template(&mut self, prepared: &mut Prepared, found: &Template) -> Result<Option<Portal>> {
        let planned = self.plan(prepared)?;
        if planned.params.len() != found.literals.len() {
            return Err(SqlError::internal("a template with other parameters"));
        }
        let cx = self.env.text_context();
        let values = found
            .literals
            .iter()
            .zip(&planned.params)
            .map(|((_, literal), ty)| parse_datum(literal, *ty, cx));
        let Ok(params) = values.collect::<Result<Vec<_>>>() else {
            return Ok(None);
        };
        Ok(Some(Portal {
            planned: Some(planned),
            params,
            ..Portal::default()
        }))
    }

    fn keep_template(&mut self, key: String, prepared: Option<Prepared>) {
        if self.templates.len() >= CACHED_TEXTS {
            self.templates.clear();
        }
        self.templates.insert(key, prepared);
    }

    fn simple_statement(&mut self, prepared: &mut Prepared, out: &mut dyn Output) -> Result<()> {
        self.begin_statement(&prepared.parsed)?;
        let mut portal = Portal::default();
        let watch = self.watch();
        let done = self.run_simple(prepared, &mut portal, out);
        self.unwatch(watch, done)
    }

    /// Statements of a text, from the cache if they are there. `keep` gives them back.
    fn statements(&mut self, text: &str, types: &[u32]) -> Result<Vec<Prepared>> {
        if let Some(cached) = self.texts.get_mut(text)
            && cached.first().is_some_and(|p| *p.declared == *types)
        {
            return Ok(std::mem::take(cached));
        }
        let parsed = parse(text)?;
        Ok(parsed
            .into_iter()
            .map(|p| Prepared::new(Arc::new(p), types.to_vec()))
            .collect())
    }

    fn keep(&mut self, text: &str, statements: Vec<Prepared>) {
        let worth = text.len() <= CACHED_TEXT_BYTES
            && statements
                .iter()
                .all(|p| p.compiled.is_some() || is_bracket(&p.parsed.statement));
        if let Some(place) = self.texts.get_mut(text) {
            *place = statements;
        } else if worth {
            if self.texts.len() >= CACHED_TEXTS {
                self.texts.clear();
            }
            self.texts.insert(text.to_string(), statements);
        }
    }

    /// Before anything is done for a statement: refuses what a failed block refuses, starts the transaction.
    fn enter(&mut self, parsed: &Parsed) -> Result<()> {
        if self.state == State::Failed && !ends_failure(&parsed.statement) {
            return Err(SqlError::new(
                code::IN_FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        if self.state == State::Idle {
            if self.env.cancel.is_set() {
                self.env.cancel.clear();
            }
            self.env.transaction_time = wall_clock();
            self.begin(self.next_isolation, self.next_read_only);
            self.state = State::Implicit;
        }
        Ok(())
    }

    /// Before a statement runs: as `enter`, and takes the snapshot.
    fn begin_statement(&mut self, parsed: &Parsed) -> Result<()> {
        self.enter(parsed)?;
        if self.state == State::Failed {
            return Ok(());
        }
        if self.state == State::Block && self.env.cancel.is_set() {
            self.env.cancel.clear();
        }
        self.env.statement_time = wall_clock();
        self.tx.begin_statement();
        if self.any_fresh {
            self.give_views();
        }
        Ok(())
    }

    /// Before a portal goes on that has begun, or that knows its snapshot.
    fn go_on(&mut self, parsed: &Parsed) -> Result<()> {
        self.enter(parsed)?;
        if self.state == State::Block && self.env.cancel.is_set() {
            self.env.cancel.clear();
        }
        Ok(())
    }

    fn begin(&mut self, isolation: Isolation, read_only: bool) {
        self.tx.begin(isolation);
        self.queried = false;
        self.set_read_only(read_only);
    }

    fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
        self.tx.set_read_only(read_only);
    }

    fn default_isolation(&self) -> Isolation {
        match self.env.settings.get("default_transaction_isolation").as_deref() {
            Some("repeatable read") => Isolation::RepeatableRead,
            _ => Isolation::ReadCommitted,
        }
    }

    /// Commits an implicit transaction.
    fn end_implicit(&mut self) -> Result<()> {
        if self.state != State::Implicit {
            return Ok(());
        }
        self.state = State::Idle;
        self.commit()
    }

    fn commit(&mut self) -> Result<()> {
        self.drop_portals();
        self.savepoints.clear();
        let done = if self.tx.is_active() { self.tx.commit() } else { Ok(()) };
        match &done {
            Ok(()) => {
                self.before = None;
                if !self.env.settings.has_local() {
                    return Ok(());
                }
                Arc::make_mut(&mut self.env.settings).end_transaction();
                self.settings_changed();
            }
            Err(_) => self.restore_settings(),
        }
        Ok(done?)
    }

    fn rollback(&mut self) -> Result<()> {
        self.drop_portals();
        self.savepoints.clear();
        self.restore_settings();
        if self.tx.is_active() {
            Ok(self.tx.rollback()?)
        } else {
            Ok(())
        }
    }

    fn restore_settings(&mut self) {
        if let Some(before) = self.before.take() {
            self.env.settings = before;
            self.settings_changed();
        }
    }

    fn drop_portals(&mut self) {
        if !self.portals.is_empty() {
            self.portals.clear();
        }
        self.unnamed_portal.close();
    }

    /// After an error: the implicit transaction is rolled back, a block fails. Gives the error back.
    #[cold]
    fn failed(&mut self, error: SqlError) -> SqlError {
        self.fail();
        error
    }

    /// A message of the client failed, perhaps before it came here: the implicit transaction is rolled back, a block fails.
    /// Does nothing after an error that this session gave.
    #[cold]
    pub fn fail(&mut self) {
        match self.state {
            State::Idle | State::Failed => {}
            State::Implicit => {
                self.state = State::Idle;
                self.rollback().ok();
            }
            State::Block => {
                self.state = State::Failed;
                self.drop_portals_behind(self.savepoints.len());
                let taken_back = match self.savepoints.last() {
                    Some((_, savepoint)) => self.tx.rollback_to(savepoint).is_ok(),
                    None => self.tx.rollback().is_ok(),
                };
                if !taken_back {
                    self.drop_portals();
                    self.savepoints.clear();
                    self.tx.rollback().ok();
                }
            }
        }
    }

    /// Takes over settings that the hot path keeps at hand.
    fn settings_changed(&mut self) {
        self.lock_timeout_ms = self.env.settings.millis("lock_timeout");
        self.statement_timeout_ms = self.env.settings.millis("statement_timeout");
        self.next_isolation = self.default_isolation();
        self.next_read_only = self.env.settings.is_on("default_transaction_read_only");
        self.tx.set_lock_timeout(self.lock_timeout_ms);
        self.epoch += 1;
    }

    /// Transaction status for ReadyForQuery: `b'I'`, `b'T'` or `b'E'`.
    pub fn status(&self) -> u8 {
        match self.state {
            State::Idle | State::Implicit => b'I',
            State::Block => b'T',
            State::Failed => b'E',
        }
    }

    /// The client pauses: gives back memory that statements of the session use again and again.
    pub fn pause(&mut self) {
        if self.state == State::Idle {
            self.scratch = Scratch::default();
            self.tag = String::new();
        }
    }

    /// Settings to report at start (ParameterStatus): name and value.
    pub fn reported_settings(&self) -> Vec<(&'static str, String)> {
        self.env.settings.reported()
    }

    /// A setting's value as SHOW gives it.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.env.settings.get(name).map(|v| v.into_owned())
    }

    /// To be kept with the session's pid and secret for CancelRequest.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(self.env.cancel.clone())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.tx.is_active() {
            self.unnamed_portal.close();
            self.portals.clear();
            self.tx.rollback().ok();
        }
    }
}

/// A session's name where others are refused what it holds.
pub(crate) fn holder(pid: i32, user: &str) -> String {
    format!("session {pid} of {user}")
}

/// What stands around statements, again and again.
fn is_bracket(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Utility(Utility::Begin(_) | Utility::Commit { .. } | Utility::Rollback { .. })
    )
}

/// What a failed block lets through.
fn ends_failure(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Utility(Utility::Commit { .. } | Utility::Rollback { .. } | Utility::RollbackTo(_))
    )
}
