//! A session: one client's statements, portals, transaction and settings, wired together.
//!
//! What the parts keep true by themselves stands in their files. What holds between them:
//! - Portals end with their transaction, or with the savepoint that they were made behind.
//! - Settings follow the transaction: its end takes back what SET LOCAL did, its failure all that it changed.
//! - A plan is made again when the catalog or the settings have changed.
//! - Where nothing runs, the session keeps no snapshot but those of its portals.

use super::copying::Copying;
use super::mark::Leaving;
use super::planning::StatementPlanner;
use super::portals::Portals;
use super::prepared::{Compiled, MAX_STATEMENTS, Prepared, PreparedStatements};
use super::report::{self, Report};
use super::settings_history::SettingsHistory;
use super::transaction::{Phase, TransactionModes, TransactionState};
use crate::database::Sql;
use crate::env::{SessionEnv, holder, wall_clock};
use crate::error::{Result, SqlError, code};
use crate::exec::Scratch;
use crate::output::Output;
use crate::parse::{Parsed, Statement, Utility};
use crate::plan::Planned;
use crate::settings::{MAX_STALENESS, Settings};
use crate::watchdog::Watch;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::AtomicU64;
use cenote_engine::{CancelFlag, Charge, Datum, Tx};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a prepared statement beside its text, and for each byte of that, parsed and planned.
const STATEMENT_BYTES: usize = 4 << 10;
const PARSED_BYTES: usize = 32;
/// Settings that take no more than this are not accounted for.
const SETTINGS_BYTES_FREE: usize = 16 << 10;

/// The client that connects, as the start-up message and the server describe it.
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

    /// Whether the running statement is to end.
    pub fn is_canceled(&self) -> bool {
        self.0.is_set()
    }
}

/// How long a statement with `cenote.strong_reads` waits.
const CATCH_UP: Nanos = Nanos::from_secs(10);

/// One client's state. Lives on one thread at a time; dropping it rolls back.
pub struct Session {
    pub(super) sql: Arc<Sql>,
    pub(super) tx: Tx,
    pub(super) env: SessionEnv,
    pub(super) transaction: TransactionState,
    pub(super) settings: SettingsHistory,
    pub(super) statements: PreparedStatements,
    pub(super) portals: Portals,
    /// COPY FROM STDIN that waits for its client.
    pub(super) copying: Option<Box<Copying>>,
    pub(super) scratch: Scratch,
    pub(super) tag: String,
    /// The snapshot that was taken last.
    snapshot: u64,
    /// Memory of a large message that the server holds.
    message: Option<Charge>,
    /// The client is a proxy, and is told all.
    pub(super) report: Option<Box<Report>>,
    /// What becomes of its batch if the server ends.
    pub(super) leaving: Leaving,
}

impl Sql {
    /// A session for one client.
    ///
    /// # Errors
    /// A setting of the start-up message cannot be honoured, or the engine has no room for another session.
    pub fn session(self: &Arc<Self>, info: SessionInfo) -> Result<Session> {
        Session::new(self.clone(), info)
    }
}

impl Session {
    pub(crate) fn new(sql: Arc<Sql>, info: SessionInfo) -> Result<Self> {
        let tx = sql.engine().session(&holder(info.pid, &info.user))?;
        let mut settings = Settings::new(&info.user);
        settings.note_database(sql.engine().database());
        if sql.engine().is_reader() {
            settings.note_reader();
        }
        if let Some(analytics) = sql.analytics() {
            settings.note_query_memory(analytics.memory_limit());
        }
        let report = Report::asked_for(&info.settings, &settings);
        for (name, value) in info.settings.iter().filter(|(name, _)| name != report::ASK) {
            settings.set(name, value, false)?;
        }
        let settings = Arc::new(settings);
        let now = wall_clock();
        let env = SessionEnv {
            user: info.user,
            database: info.database,
            pid: info.pid,
            settings: settings.clone(),
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
            env,
            transaction: TransactionState::new(),
            settings: SettingsHistory::new(settings),
            statements: PreparedStatements::default(),
            portals: Portals::default(),
            copying: None,
            scratch: Scratch::default(),
            tag: String::new(),
            snapshot: 0,
            message: None,
            report,
            leaving: Leaving::default(),
        };
        session.settings_changed();
        Ok(session)
    }

    /// The plan of a prepared statement, good for the catalog as this transaction sees it.
    pub(super) fn plan(&mut self, prepared: &mut Prepared) -> Result<Arc<Planned>> {
        let version = (self.tx.catalog_version(), self.tx.statistics_epoch());
        if let Some(compiled) = &prepared.compiled
            && compiled.fits(version, self.statements.epoch())
            && (compiled.history.is_settled()
                || still_fits(&compiled.planned, &self.tx) && !compiled.history.is_wrong())
        {
            return Ok(compiled.planned.clone());
        }
        self.tx.ensure_snapshot();
        let planned = self.plan_for(prepared, None)?;
        let compiled = Compiled::new(version, self.statements.epoch(), planned);
        let compiled = match prepared.compiled.take() {
            Some(former) => compiled.in_place_of(former),
            None => compiled,
        };
        let planned = compiled.planned.clone();
        prepared.compiled = Some(compiled);
        Ok(planned)
    }

    /// Plans a prepared statement for a run with these parameters; None: for any run.
    pub(super) fn plan_for(&self, prepared: &Prepared, params: Option<&[Datum]>) -> Result<Planned> {
        let learned = prepared
            .compiled
            .as_ref()
            .and_then(|c| c.history.learned(params.is_some()));
        self.planner().plan_for(
            (prepared.statement(), &prepared.parsed.text, &prepared.declared),
            !prepared.template,
            params,
            learned.as_ref(),
        )
    }

    /// Plans a statement that reads or writes rows; `any_shape`: analytics takes what the short path refuses.
    pub(super) fn plan_statement(
        &self,
        statement: &Statement,
        text: &str,
        declared: &[u32],
        any_shape: bool,
    ) -> Result<Planned> {
        self.planner().plan(statement, text, declared, any_shape)
    }

    fn planner(&self) -> StatementPlanner<'_> {
        StatementPlanner {
            tx: &self.tx,
            env: &self.env,
            analytics: self.sql.analytics(),
        }
    }

    /// Before anything is done for a statement: refuses what a failed block refuses, starts the transaction.
    pub(super) fn enter(&mut self, parsed: &Parsed) -> Result<()> {
        if self.transaction.phase() == Phase::Failed && !ends_failure(&parsed.statement) {
            return Err(SqlError::new(
                code::IN_FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        if self.transaction.phase() == Phase::Idle {
            if self.env.cancel.is_set() {
                self.env.cancel.clear();
            }
            self.env.transaction_time = wall_clock();
            let modes = self.settings.next_modes;
            self.begin(modes);
            self.transaction.start(modes);
        }
        Ok(())
    }

    /// Before a statement runs: as `enter`, and takes the snapshot.
    pub(super) fn begin_statement(&mut self, parsed: &Parsed) -> Result<()> {
        self.enter(parsed)?;
        if self.transaction.phase() == Phase::Failed {
            return Ok(());
        }
        if self.transaction.phase() == Phase::Block && self.env.cancel.is_set() {
            self.env.cancel.clear();
        }
        self.env.statement_time = wall_clock();
        if sees(&parsed.statement) {
            self.take_snapshot()?;
        }
        Ok(())
    }

    /// At a reader: what is to be read is as new as the session wants it. Names are looked up behind this.
    pub(super) fn check_staleness(&self) -> Result<()> {
        let engine = self.sql.engine();
        let Some(staleness) = engine.staleness() else {
            return Ok(());
        };
        engine.check_following()?;
        if self.tx.has_fixed_snapshot() {
            return Ok(());
        }
        let most = self.settings.max_staleness_ms;
        if self.settings.read_after > 0 {
            engine.catch_up_to(self.settings.read_after, CATCH_UP, Some(&self.env.cancel))?;
        }
        if self.settings.strong_reads {
            return Ok(engine.catch_up(CATCH_UP, Some(&self.env.cancel))?);
        }
        let age = staleness.age.0 / 1_000_000;
        match most == 0 || age <= most {
            true => Ok(()),
            false => Err(SqlError::new(
                code::SNAPSHOT_TOO_OLD,
                format!("this reader is {age} ms behind, and {MAX_STALENESS} is {most} ms"),
            )
            .with_hint("Storage nodes do not answer it, or it cannot keep up: ask the server, or another reader.")),
        }
    }

    /// A new snapshot for what runs from here on; queries that were bound before keep theirs.
    ///
    /// # Errors
    /// At a reader: it would not be as new as the session wants it.
    pub(super) fn take_snapshot(&mut self) -> Result<()> {
        self.check_staleness()?;
        self.take_snapshot_as_it_is();
        Ok(())
    }

    /// As `take_snapshot`, where the statement's plan was made behind a check.
    pub(super) fn take_snapshot_as_it_is(&mut self) {
        self.portals.give_views(|| self.tx.reader().clone());
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
    pub(super) fn go_on(&mut self, parsed: &Parsed) -> Result<()> {
        self.enter(parsed)?;
        if self.transaction.phase() == Phase::Block && self.env.cancel.is_set() {
            self.env.cancel.clear();
        }
        self.env.statement_time = wall_clock();
        Ok(())
    }

    pub(super) fn begin(&mut self, modes: TransactionModes) {
        self.tx.begin(modes.isolation);
        self.transaction.begun += 1;
        self.transaction.queried = false;
        self.set_read_only(modes.read_only || self.sql.engine().is_reader());
    }

    pub(super) fn set_read_only(&mut self, read_only: bool) {
        self.transaction.read_only = read_only;
        self.tx.set_read_only(read_only);
    }

    /// Nothing runs: a transaction that idles keeps no more from purge than its portals need, which hold snapshots of
    /// their own. A COPY that waits for its data runs.
    pub(super) fn give_up_snapshot(&mut self) {
        if self.transaction.phase() == Phase::Idle || self.copying.is_some() {
            return;
        }
        self.portals.give_views(|| self.tx.reader().clone());
        self.tx.end_statement();
    }

    /// Commits an implicit transaction.
    pub(super) fn end_implicit(&mut self) -> Result<()> {
        if self.transaction.phase() != Phase::Implicit {
            return Ok(());
        }
        self.transaction.end();
        self.commit()
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        self.portals.close_all();
        self.transaction.forget_savepoints();
        let done = if self.tx.is_active() { self.tx.commit() } else { Ok(()) };
        match &done {
            Ok(()) => {
                self.settings.take_before();
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

    pub(super) fn rollback(&mut self) -> Result<()> {
        self.portals.close_all();
        self.transaction.forget_savepoints();
        self.restore_settings();
        if self.tx.is_active() {
            Ok(self.tx.rollback()?)
        } else {
            Ok(())
        }
    }

    fn restore_settings(&mut self) {
        if let Some(before) = self.settings.take_before() {
            self.put_settings(before);
        }
    }

    pub(super) fn put_settings(&mut self, settings: Arc<Settings>) {
        if !Arc::ptr_eq(&self.env.settings, &settings) {
            self.env.settings = settings;
            self.settings_changed();
        }
    }

    /// Changes settings so that the end of the transaction, or the return to a savepoint, can take it back.
    pub(super) fn change_settings<T>(&mut self, change: impl FnOnce(&mut Settings) -> Result<T>) -> Result<T> {
        self.settings.note_before(&self.env.settings);
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

    /// After an error: the implicit transaction is rolled back, a block fails. Gives the error back.
    #[cold]
    pub(super) fn failed(&mut self, error: SqlError) -> SqlError {
        // The server ends, and has stopped the statement: it is another server's to carry out.
        let is_anothers = error.code() == code::QUERY_CANCELED && self.leaving.is_due();
        if !(is_anothers && self.return_to_mark()) {
            self.fail();
        }
        error
    }

    /// A message of the client failed, perhaps before it came here: the implicit transaction is rolled back, a block
    /// fails. Does nothing after an error that this session gave.
    #[cold]
    pub fn fail(&mut self) {
        self.copying = None;
        match self.transaction.phase() {
            Phase::Idle | Phase::Failed => {}
            Phase::Implicit => {
                self.transaction.end();
                self.rollback().ok();
            }
            Phase::Block => {
                self.transaction.fail_block();
                self.portals.drop_behind(self.transaction.depth());
                let (settings, taken_back) = match self.transaction.newest() {
                    Some(kept) => (
                        Some(kept.settings.clone()),
                        self.tx.rollback_to(&kept.savepoint).is_ok(),
                    ),
                    None => (self.settings.before().cloned(), self.tx.rollback().is_ok()),
                };
                if let Some(settings) = settings {
                    self.put_settings(settings);
                }
                if !taken_back {
                    self.portals.close_all();
                    self.transaction.forget_savepoints();
                    self.tx.rollback().ok();
                }
                self.give_up_snapshot();
            }
        }
    }

    /// Takes over settings that the hot path keeps at hand.
    fn settings_changed(&mut self) {
        self.settings.changed(&self.env.settings);
        self.tx.set_lock_timeout(self.env.settings.millis("lock_timeout"));
        self.statements.make_plans_stale();
    }

    /// Transaction status for ReadyForQuery: `b'I'`, `b'T'` or `b'E'`.
    pub fn status(&self) -> u8 {
        match self.transaction.phase() {
            Phase::Idle | Phase::Implicit => b'I',
            Phase::Block => b'T',
            Phase::Failed => b'E',
        }
    }

    /// When a client that pauses is sent away, and why, counted from now: `idle_in_transaction_session_timeout`,
    /// `idle_session_timeout`.
    pub fn idle_limit(&self) -> Option<(Duration, SqlError)> {
        let (setting, code, text) = match self.transaction.phase() {
            Phase::Idle | Phase::Implicit => (
                "idle_session_timeout",
                code::IDLE_SESSION_TIMEOUT,
                "terminating connection due to idle-session timeout",
            ),
            Phase::Block | Phase::Failed => (
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
        if self.transaction.phase() == Phase::Idle {
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

    /// Whether it has what no other session can be given: statements that PREPARE made.
    pub fn holds(&self) -> bool {
        self.statements.has_commanded()
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
        match (self.settings.is_told(&self.env.settings), &self.report) {
            (true, None) => Ok(()),
            (false, None) => self.report_changed(out),
            (_, Some(_)) => self.report_all(out),
        }
    }

    #[cold]
    fn report_changed(&mut self, out: &mut dyn Output) -> Result<()> {
        let changed = self.settings.tell(&self.env.settings);
        changed
            .iter()
            .try_for_each(|(name, value)| out.parameter_status(name, value))
    }

    /// A setting's value as SHOW gives it.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.env.settings.get(name).map(|v| v.into_owned())
    }

    /// To be kept with the session's pid and secret for CancelRequest.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(self.env.cancel.clone())
    }

    pub(super) fn refuse_read_only(&self, what: &str) -> Result<()> {
        if self.transaction.read_only {
            return Err(SqlError::new(
                code::READ_ONLY_TRANSACTION,
                format!("cannot execute {what} in a read-only transaction"),
            ));
        }
        Ok(())
    }

    /// Before a definition: it may not change a table that an open portal reads.
    pub(super) fn note_tables_in_use(&mut self) {
        self.tx.set_in_use(self.portals.tables());
    }

    /// Memory for one more named statement.
    ///
    /// # Errors
    /// 53400: there are too many. 53200: the session may hold no more.
    pub(super) fn room_for_statement(&self, name: &str, text: &str) -> Result<Arc<Charge>> {
        if self.statements.named_count() >= MAX_STATEMENTS {
            return Err(self.too_many(
                "prepared statements",
                MAX_STATEMENTS,
                "Close or deallocate those that are not needed.",
            ));
        }
        self.charge(STATEMENT_BYTES + name.len() + PARSED_BYTES * text.len())
            .map(Arc::new)
    }

    pub(super) fn charge(&self, bytes: usize) -> Result<Charge> {
        let mut charge = Charge::new(&self.env.memory);
        charge.grow(bytes)?;
        Ok(charge)
    }

    #[cold]
    pub(super) fn too_many(&self, what: &str, limit: usize, hint: &str) -> SqlError {
        let text = format!(
            "{} has {limit} {what}, as many as it may",
            holder(self.env.pid, &self.env.user)
        );
        SqlError::new(code::CONFIGURATION_LIMIT, text).with_hint(hint)
    }

    /// A statement begins: it can be cancelled wherever it waits. Starts its clock, if `statement_timeout` is set.
    pub(super) fn watch(&self) -> Result<Option<Watch>> {
        let watch = match self.settings.statement_timeout_ms {
            0 => None,
            millis => {
                let watch = self.sql.watchdog().watch(millis, &self.env.cancel);
                Some(watch.map_err(|error| unwatched(&error))?)
            }
        };
        self.heed();
        Ok(watch)
    }

    /// From here on the cancel flag stops what this thread waits for in memory, until `heed_nothing`.
    pub(super) fn heed(&self) {
        self.sql.engine().heed(&self.env.cancel);
    }

    /// Stops the clock; a cancel that it caused says so.
    pub(super) fn unwatch(&self, watch: Option<Watch>, done: Result<()>) -> Result<()> {
        self.sql.engine().heed_nothing();
        let Some(watch) = watch else { return done };
        let expired = watch.over();
        match done {
            Err(error) if expired && error.code() == code::QUERY_CANCELED => Err(SqlError::new(
                code::QUERY_CANCELED,
                "canceling statement due to statement timeout",
            )),
            done => done,
        }
    }

    /// As `unwatch`; the clock of a COPY that waits for its client runs on.
    pub(super) fn unwatch_unless_copying(&mut self, watch: Option<Watch>, done: Result<()>) -> Result<()> {
        match &mut self.copying {
            Some(copying) if done.is_ok() => {
                copying.watch = watch;
                self.sql.engine().heed_nothing();
                Ok(())
            }
            _ => self.unwatch(watch, done),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.tx.is_active() {
            self.portals.close_all();
            self.tx.rollback().ok();
        }
    }
}

#[cold]
fn unwatched(error: &io::Error) -> SqlError {
    let text = format!("the system has no thread to watch statement_timeout: {error}");
    SqlError::new(code::INSUFFICIENT_RESOURCES, text)
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

/// Whether the tables that a plan joins are about as large as when it was made.
fn still_fits(planned: &Planned, tx: &Tx) -> bool {
    planned.plan.joins().is_none_or(|plan| plan.still_fits(tx))
}
