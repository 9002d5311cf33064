//! A session: one client's statements, transaction and settings.
//!
//! ```text
//!            statement                 BEGIN
//!   Idle ───────────────▶ Implicit ───────────▶ Block ──error──▶ Failed
//!     ▲                      │                    │                │
//!     └── end of message, ───┴── COMMIT, ROLLBACK ┴── ROLLBACK ────┘      Failed ──ROLLBACK TO──▶ Block
//!         Sync, error
//! ```
//! All statements of one message (up to Sync) outside a block are one implicit transaction. A failed block has given
//! its locks back: it was rolled back to its newest savepoint, or wholly where it has none.

mod copy;
mod extended;
mod planning;
mod run;
mod utility;
mod watchdog;

pub use watchdog::Watchdog;

use crate::Sql;
use crate::env::{SessionEnv, holder, wall_clock};
use crate::error::{Result, SqlError, code};
use crate::exec::Scratch;
use crate::output::Output;
use crate::parse::template::{Template, template};
use crate::parse::{Parsed, Statement, Utility, parse};
use crate::settings::Settings;
use crate::types::text::parse_datum;
use cenote_base::rt::atomic::AtomicU64;
use cenote_engine::{CancelFlag, Charge, Isolation, Savepoint, Tx};
use copy::Copying;
use extended::Portal;
use planning::Prepared;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Texts whose statements a session keeps parsed and planned.
const CACHED_TEXTS: usize = 256;
/// Longest text that is kept, in bytes.
const CACHED_TEXT_BYTES: usize = 16 << 10;

/// Settings that take no more than this are not accounted for.
const SETTINGS_BYTES_FREE: usize = 16 << 10;

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

/// A savepoint of the session's transaction, and what was in force when it was made. Its name is of 63 bytes at most.
struct Mark {
    name: String,
    place: Savepoint,
    settings: Arc<Settings>,
    read_only: bool,
}

/// One client's state. Lives on one thread at a time; dropping it rolls back.
pub struct Session {
    sql: Arc<Sql>,
    tx: Tx,
    env: SessionEnv,
    state: State,
    savepoints: Vec<Mark>,
    /// Settings that the connection began with.
    start: Arc<Settings>,
    /// Settings that the transaction began with, once it may have changed any.
    before: Option<Arc<Settings>>,
    /// Settings that the client was told of.
    told: Arc<Settings>,
    /// Whether the text that runs has several statements: a transaction block for those who ask.
    several: bool,
    read_only: bool,
    lock_timeout_ms: u64,
    /// Isolation and access mode of the next transaction.
    next_isolation: Isolation,
    /// Isolation and access mode that the transaction had before it set any.
    first_modes: (Isolation, bool),
    /// Whether the transaction has run a query: its isolation is settled then.
    queried: bool,
    next_read_only: bool,
    statement_timeout_ms: u64,
    /// Raised when plans become stale for a reason other than the catalog.
    epoch: u64,
    /// The snapshot that was taken last.
    snapshot: u64,
    texts: HashMap<String, Vec<Prepared>>,
    /// Statements by their text without literals; None: they stay in.
    templates: HashMap<String, Option<Prepared>>,
    prepared: HashMap<String, Prepared>,
    unnamed: Option<Prepared>,
    /// In an order, so that a simulated session does the same each time.
    portals: BTreeMap<String, Portal>,
    unnamed_portal: Portal,
    /// Whether a query may have been bound that has not begun.
    any_fresh: bool,
    /// COPY FROM STDIN that waits for its client.
    copying: Option<Box<Copying>>,
    scratch: Scratch,
    tag: String,
    /// Memory of a large message that the server holds.
    message: Option<Charge>,
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
            changes: Default::default(),
        };
        let mut session = Session {
            sql,
            tx,
            state: State::Idle,
            savepoints: Vec::new(),
            told: env.settings.clone(),
            env,
            start: Arc::new(settings),
            before: None,
            several: false,
            read_only: false,
            lock_timeout_ms: 0,
            next_isolation: Isolation::ReadCommitted,
            first_modes: (Isolation::ReadCommitted, false),
            queried: false,
            next_read_only: false,
            statement_timeout_ms: 0,
            epoch: 0,
            snapshot: 0,
            texts: HashMap::new(),
            templates: HashMap::new(),
            prepared: HashMap::new(),
            unnamed: None,
            portals: BTreeMap::new(),
            unnamed_portal: Portal::default(),
            any_fresh: false,
            copying: None,
            scratch: Scratch::default(),
            tag: String::new(),
            message: None,
        };
        session.settings_changed();
        Ok(session)
    }

    /// `Query`: any number of statements. On `Err` the server sends ErrorResponse; in both cases ReadyForQuery follows,
    /// unless the session [waits for COPY data](Self::is_copying) then.
    pub fn simple(&mut self, text: &str, out: &mut dyn Output) -> Result<()> {
        self.unnamed = None;
        self.unnamed_portal.close();
        if let Some(done) = self.simple_template(text, out) {
            return done.map_err(|e| self.failed(e));
        }
        let statements = match self.statements(text, &[]) {
            Ok(statements) => statements,
            Err(error) => return Err(self.failed(error)),
        };
        if statements.is_empty() {
            return out.empty_query();
        }
        self.simple_from(text, statements, 0, out)
    }

    /// Runs the statements of a text from the `next`th on, up to its end or to a COPY that waits for its client.
    fn simple_from(
        &mut self,
        text: &str,
        mut statements: Vec<Prepared>,
        next: usize,
        out: &mut dyn Output,
    ) -> Result<()> {
        self.several = statements.len() > 1;
        for at in next..statements.len() {
            let done = self.simple_statement(&mut statements[at], out);
            if let Err(error) = done {
                self.keep(text, statements);
                return Err(self.failed(error));
            }
            if let Some(copying) = &mut self.copying {
                copying.rest = Some((text.to_string(), statements, at + 1));
                return Ok(());
            }
        }
        let done = self.end_implicit();
        self.give_up_snapshot();
        self.keep(text, statements);
        done.map_err(|e| self.failed(e))
    }

    /// Runs a text by its template; None: it has none that the short path knows, or a literal is wrong (then the text
    /// itself says where).
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
        let done = self.watch().and_then(|watch| {
            let done = self.run_portal_with(portal, &mut prepared, 0, true, out);
            self.unwatch(watch, done)
        });
        let done = done.and_then(|()| self.end_implicit());
        self.give_up_snapshot();
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
        let watch = self.watch()?;
        let done = self.run_simple(prepared, &mut portal, out);
        self.unwatch_unless_copying(watch, done)
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
            self.first_modes = (self.next_isolation, self.next_read_only);
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
        if sees(&parsed.statement) {
            self.take_snapshot();
        }
        Ok(())
    }

    /// A new snapshot for what runs from here on; queries that were bound before keep theirs.
    fn take_snapshot(&mut self) {
        if self.any_fresh {
            self.give_views();
        }
        self.tx.begin_statement();
        self.snapshot = self.tx.snapshot();
    }

    /// Position of the log up to which the statement that took its snapshot last has seen commits. For tools and tests.
    pub fn snapshot(&self) -> u64 {
        self.snapshot
    }

    /// Where the timestamp of the session's last commit is noted: see [`Tx::committed_at`]. For tools and tests.
    pub fn committed_at(&self) -> Arc<AtomicU64> {
        self.tx.committed_at()
    }

    /// Before a portal goes on that has begun, or that knows its snapshot.
    fn go_on(&mut self, parsed: &Parsed) -> Result<()> {
        self.enter(parsed)?;
        if self.state == State::Block && self.env.cancel.is_set() {
            self.env.cancel.clear();
        }
        self.env.statement_time = wall_clock();
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

    /// Nothing runs: a transaction that idles keeps no more from purge than its portals need, which hold snapshots of
    /// their own. A COPY that waits for its data runs.
    fn give_up_snapshot(&mut self) {
        if self.state == State::Idle || self.copying.is_some() {
            return;
        }
        if self.any_fresh {
            self.give_views();
        }
        self.tx.end_statement();
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
            self.put_settings(before);
        }
    }

    fn put_settings(&mut self, settings: Arc<Settings>) {
        if !Arc::ptr_eq(&self.env.settings, &settings) {
            self.env.settings = settings;
            self.settings_changed();
        }
    }

    /// Changes settings so that the end of the transaction, or the return to a savepoint, can take it back.
    fn change_settings<T>(&mut self, change: impl FnOnce(&mut Settings) -> Result<T>) -> Result<T> {
        if self.before.is_none() {
            self.before = Some(self.env.settings.clone());
        }
        let mut settings = Settings::clone(&self.env.settings);
        let done = change(&mut settings)?;
        settings.memory = match settings.bytes() {
            ..=SETTINGS_BYTES_FREE => None,
            bytes => Some(Arc::new(self.charge(bytes)?)),
        };
        self.env.settings = Arc::new(settings);
        self.settings_changed();
        Ok(done)
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

    /// A message of the client failed, perhaps before it came here: the implicit transaction is rolled back, a block
    /// fails. Does nothing after an error that this session gave.
    #[cold]
    pub fn fail(&mut self) {
        self.copying = None;
        match self.state {
            State::Idle | State::Failed => {}
            State::Implicit => {
                self.state = State::Idle;
                self.rollback().ok();
            }
            State::Block => {
                self.state = State::Failed;
                self.drop_portals_behind(self.savepoints.len());
                let (settings, taken_back) = match self.savepoints.last() {
                    Some(mark) => (Some(mark.settings.clone()), self.tx.rollback_to(&mark.place).is_ok()),
                    None => (self.before.clone(), self.tx.rollback().is_ok()),
                };
                if let Some(settings) = settings {
                    self.put_settings(settings);
                }
                if !taken_back {
                    self.drop_portals();
                    self.savepoints.clear();
                    self.tx.rollback().ok();
                }
                self.give_up_snapshot();
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

    /// When a client that pauses is sent away, and why, counted from now: `idle_in_transaction_session_timeout`,
    /// `idle_session_timeout`.
    pub fn idle_limit(&self) -> Option<(Duration, SqlError)> {
        let (setting, code, text) = match self.state {
            State::Idle | State::Implicit => (
                "idle_session_timeout",
                code::IDLE_SESSION_TIMEOUT,
                "terminating connection due to idle-session timeout",
            ),
            State::Block | State::Failed => (
                "idle_in_transaction_session_timeout",
                code::IDLE_IN_TRANSACTION_TIMEOUT,
                "terminating connection due to idle-in-transaction timeout",
            ),
        };
        let millis = self.env.settings.millis(setting);
        (millis > 0).then(|| (Duration::from_millis(millis), SqlError::new(code, text).fatal()))
    }

    /// The client pauses: gives back memory that statements of the session use again and again.
    pub fn pause(&mut self) {
        if self.state == State::Idle {
            self.scratch = Scratch::default();
            self.tag = String::new();
        }
    }

    /// The server holds so many bytes of a message of the client, and none of the one before: a part of what the
    /// session gathers.
    ///
    /// # Errors
    /// 53200: the session may hold no more; the message is dropped.
    pub fn hold_message(&mut self, bytes: usize) -> Result<()> {
        self.message = None;
        if bytes > 0 {
            self.message = Some(self.charge(bytes)?);
        }
        Ok(())
    }

    /// Settings to report at start (ParameterStatus): name and value.
    pub fn reported_settings(&self) -> Vec<(&'static str, String)> {
        self.env.settings.reported()
    }

    /// Before ReadyForQuery: tells the client which of the settings that it follows have other values than it knows.
    ///
    /// # Errors
    /// The connection is lost.
    #[inline]
    pub fn report_settings(&mut self, out: &mut dyn Output) -> Result<()> {
        match Arc::ptr_eq(&self.told, &self.env.settings) {
            true => Ok(()),
            false => self.report_changed(out),
        }
    }

    #[cold]
    fn report_changed(&mut self, out: &mut dyn Output) -> Result<()> {
        let told = std::mem::replace(&mut self.told, self.env.settings.clone());
        let (before, now) = (told.reported(), self.env.settings.reported());
        for ((name, value), (_, former)) in now.iter().zip(before) {
            if *value != former {
                out.parameter_status(name, value)?;
            }
        }
        Ok(())
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

/// What stands around statements, again and again.
fn is_bracket(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Utility(Utility::Begin(..) | Utility::Commit { .. } | Utility::Rollback { .. })
    )
}

/// Whether a statement has a snapshot. One that only controls its transaction, or settings, has none: at repeatable
/// read the first that does decides what the transaction sees.
fn sees(statement: &Statement) -> bool {
    use Utility::*;
    !matches!(
        statement,
        Statement::Utility(
            Begin(..)
                | Commit { .. }
                | Rollback { .. }
                | Savepoint(_)
                | Release(_)
                | RollbackTo(_)
                | SetTransaction(_)
                | SetSessionTransaction(_)
                | Set { .. }
                | Show(_)
                | ShowAll
                | Reset(_)
                | ResetAll
        )
    )
}

/// What a failed block lets through.
fn ends_failure(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Utility(Utility::Commit { .. } | Utility::Rollback { .. } | Utility::RollbackTo(_))
    )
}
