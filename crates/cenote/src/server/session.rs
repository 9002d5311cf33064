//! The conversation with one client, on one thread at a time, from the first message to the last.
//!
//! ```text
//!            Query ─────────────► run all statements ──────────────┐
//! waiting ◄───────────────────────────── ReadyForQuery, one write ─┤
//!    │                                                             │
//!    └─ Parse, Bind, Describe, Execute, Close ── ok ─► gathering ─ Sync
//!                                        └─ error ─► skipping ──── Sync (the error goes out at once)
//! ```
//! A Query or Execute of COPY FROM STDIN is answered with CopyInResponse only; the messages that follow are its data,
//! until CopyDone, CopyFail or an error give the rest of the answer. Between them the session may have no thread, as
//! between any two messages.
//!
//! Nothing is written between two Syncs unless the client asks (Flush), a result streams, a message fails, or COPY
//! hands the turn over. Statements and portals belong to [`Session`]; this file frames messages and keeps the
//! order of answers.

use super::auth::fill_random;
use super::context::ServerStatements;
use super::input::{Fields, Message};
use super::registry::{Entry, State, shown};
use super::wire::{End, Incoming, PAUSE_MAX, Wire, copy_failed, protocol_violation, unexpected_in_copy};
use super::workers::no_thread;
use crate::log;
use cenote_sql::{Bind, CARRIED, LEFT, Result, Session, Severity, SqlError, code};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prepared statements whose texts are kept to be shown.
const STATEMENTS_KNOWN_MAX: usize = 1000;
/// Longest name of such a statement.
const STATEMENT_NAME_BYTES_MAX: usize = 256;
/// How often a COPY whose client says nothing looks whether it was cancelled.
const COPY_LOOK: Duration = Duration::from_secs(1);

/// How a message failed.
enum Failure {
    /// The statement failed; the session goes on.
    Statement(SqlError),
    /// The session ends.
    Session(End),
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Failure::Statement(error)
    }
}

impl From<End> for Failure {
    fn from(end: End) -> Self {
        Failure::Session(end)
    }
}

/// A session that has begun.
pub struct Dialogue {
    sql: Session,
    statements: Arc<dyn ServerStatements>,
    wire: Wire,
    entry: Arc<Entry>,
    /// An extended-protocol message failed: all is skipped until Sync.
    skipping: bool,
    /// The text of a Query, or the name in a message, while it is carried out.
    text: String,
    /// A COPY came by a Query, which ReadyForQuery follows, and not by Execute.
    copy_by_query: bool,
    /// Parameter types of a Parse.
    types: Vec<u32>,
    shown: ShownStatement,
    /// The client's pauses are short: its session waits for it on its thread.
    busy: bool,
    /// Whether the session has had a turn.
    begun: bool,
    /// The client has said that it leaves.
    has_left: bool,
    /// Messages came since the client was told that the server is ready, and were begun.
    in_batch: bool,
    /// Since when the session has no thread.
    paused: Option<Instant>,
    /// When the client has said nothing for too long, and what it is told.
    limit: Option<(Instant, SqlError)>,
    /// When the session is to be looked at, though its client says nothing.
    deadline: Option<Instant>,
}

/// Keeps `cenote_sessions` true for prepared statements: the text belongs to a name, and runs come by the name.
#[derive(Default)]
struct ShownStatement {
    texts: BTreeMap<String, Arc<str>>,
    published: Option<Arc<str>>,
}

impl ShownStatement {
    fn parsed(&mut self, name: &str, text: &str, entry: &Entry) {
        let text = shown(text);
        if name.len() > STATEMENT_NAME_BYTES_MAX {
            return entry.set_query(text);
        }
        match self.texts.get_mut(name) {
            Some(known) if **known == *text => {}
            Some(known) => *known = text.into(),
            None => {
                // Names that SQL deallocated are not told here.
                if self.texts.len() >= STATEMENTS_KNOWN_MAX {
                    self.texts.clear();
                }
                self.texts.insert(name.to_owned(), text.into());
            }
        }
        self.bound(name, entry);
    }

    fn bound(&mut self, name: &str, entry: &Entry) {
        let text = self.texts.get(name);
        let same = matches!((text, &self.published), (Some(text), Some(published)) if Arc::ptr_eq(text, published));
        if let (Some(text), false) = (text, same) {
            entry.set_query(text);
            self.published = Some(text.clone());
        }
    }

    fn simple(&mut self, text: &str, entry: &Entry) {
        entry.set_query(text);
        self.published = None;
    }
}

impl Dialogue {
    /// Begins a session on a connection whose startup is done.
    pub fn new(wire: Wire, sql: Session, statements: Arc<dyn ServerStatements>, entry: Arc<Entry>) -> Self {
        Dialogue {
            sql,
            statements,
            wire,
            entry,
            skipping: false,
            text: String::new(),
            types: Vec::new(),
            shown: ShownStatement::default(),
            copy_by_query: false,
            busy: false,
            begun: false,
            has_left: false,
            in_batch: false,
            paused: None,
            limit: None,
            deadline: None,
        }
    }

    /// The server stops, and what comes is not begun.
    pub fn ended(&self) -> SqlError {
        match self.in_batch {
            true => shutting_down(),
            false => shutting_down().with_detail(NOT_BEGUN),
        }
    }

    /// The session ends. Where the server does, what its client's batch has done is taken back, if it can be and
    /// nothing of the answer has left; so the batch can be sent to the next server, and an open block be left to it.
    pub fn leave(&mut self, end: End) -> End {
        let is_servers = matches!(&end, End::Fatal(error) if error.code() == code::ADMIN_SHUTDOWN);
        if !is_servers || !self.entry.is_ending() {
            return end;
        }
        if self.in_batch && !self.wire.has_sent() && self.sql.return_to_mark() {
            self.wire.out().forget();
            self.in_batch = false;
        }
        if !self.in_batch && !self.has_left && self.wire.alive().is_ok() {
            self.leave_block();
        }
        self.ended().into()
    }

    /// At a reader nothing can be left in the database: the proxy has it.
    fn leave_block(&mut self) {
        match self.sql.carry_away() {
            Ok(Some(text)) => return self.wire.out().parameter_status(CARRIED, &text),
            Ok(None) => {}
            Err(error) => return log::info!("session {}: {error}", self.entry.id),
        }
        let mut token = [0; 16];
        fill_random(&mut token);
        let token = u128::from_be_bytes(token);
        match self.sql.leave_to_next(token) {
            Ok(true) => self.wire.out().parameter_status(LEFT, &format!("{token:032x}")),
            Ok(false) => {}
            Err(error) => log::info!("session {}: {error}", self.entry.id),
        }
    }

    /// Answers the client until it pauses (None) or the session ends.
    pub fn go_on(&mut self) -> Option<End> {
        if let Some(since) = self.paused.take() {
            // Thousands that connect, and say something at once, would each keep a thread.
            self.busy = self.begun && since.elapsed() < PAUSE_MAX;
        }
        self.begun = true;
        self.entry.set_parked(false);
        loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break self.pause(),
                Err(End::Closed | End::Lost(_)) if self.entry.is_ending() => break Some(self.ended().into()),
                Err(end) => break Some(end),
            }
        }
    }

    /// Without a thread from here on, and with little memory. Ends the session where its client has paused for too
    /// long.
    fn pause(&mut self) -> Option<End> {
        let now = Instant::now();
        let copying = self.sql.is_copying();
        if self.limit.is_none() && !copying {
            self.limit = self.sql.idle_limit().map(|(time, error)| (now + time, error));
        }
        if let Some((_, error)) = self.limit.take_if(|(until, _)| now >= *until) {
            return Some(error.into());
        }
        let look = copying.then_some(now + COPY_LOOK);
        self.deadline = self.limit.as_ref().map(|(until, _)| *until).or(look);
        self.sql.pause();
        self.wire.shrink();
        self.text = String::new();
        self.types = Vec::new();
        self.paused = Some(now);
        self.entry.set_parked(true);
        None
    }

    /// When the session, which pauses, is to be looked at.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether a transaction is open, by a block, or a pipeline that waits for its Sync, or a COPY: others may wait for
    /// it.
    pub fn in_transaction(&self) -> bool {
        self.entry.state() != State::Idle
    }

    /// The connection.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Ends the session, which rolls back; what remains is the connection.
    pub fn into_wire(self) -> Wire {
        self.wire
    }

    /// Whether the session has not had its first turn, and its first message came with the start-up.
    pub fn begins_with_input(&self) -> bool {
        !self.begun && self.wire.has_input()
    }

    /// Tells the client what it must know before its first statement, and lets it pause.
    ///
    /// # Errors
    /// [`End`]: the connection broke.
    pub fn greet(&mut self) -> std::result::Result<(), End> {
        for (name, value) in self.sql.reported_settings() {
            self.wire.out().parameter_status(name, &value);
        }
        let (id, secret) = (self.entry.id.to_be_bytes(), self.entry.secret().to_be_bytes());
        self.wire.out().message(b'K', &[id, secret].concat());
        let status = self.sql.status();
        self.wire.out().ready_for_query(status);
        self.wire.flush_now()?;
        self.pause().map_or(Ok(()), Err)
    }

    fn ready(&mut self) -> std::result::Result<(), End> {
        // Fails where the connection is lost, and then the flush does.
        self.sql.report_settings(&mut self.wire).ok();
        let status = self.sql.status();
        self.wire.out().ready_for_query(status);
        self.in_batch = false;
        // Before the client knows, so that what it asks next about its sessions is true.
        self.entry.set_holds(self.sql.holds(), self.sql.stays_because());
        self.entry.waits(status);
        self.wire.flush()
    }

    /// Answers one message; false: none came.
    fn step(&mut self) -> std::result::Result<bool, End> {
        let sql = &mut self.sql;
        let mut room = |bytes| sql.hold_message(bytes);
        match self.wire.next_message_or_pause(self.busy, &mut room)? {
            Some(Incoming::Message(message)) => {
                self.limit = None;
                self.take(message).map(|()| true)
            }
            Some(Incoming::Refused(tag, error)) => {
                self.limit = None;
                self.refuse(tag, error).map(|()| true)
            }
            None if self.sql.is_copying() => self.look_after_copy().map(|()| false),
            None => Ok(false),
        }
    }

    fn take(&mut self, message: Message) -> std::result::Result<(), End> {
        self.has_left |= message.tag == b'X';
        // What came before the shutdown is not begun: nothing would cancel it. The end of a batch that was begun is: its
        // client would not know whether a COMMIT in it was carried out.
        let ends_batch = self.in_batch && message.tag == b'S' && !self.sql.is_copying();
        if self.entry.is_ending() && !ends_batch {
            return Err(self.ended().into());
        }
        if !self.in_batch && !matches!(message.tag, b'S' | b'X') {
            self.in_batch = true;
            self.wire.begin_answer();
            self.sql.mark_batch();
        }
        match message.tag {
            b'X' => Err(End::Closed),
            _ if self.sql.is_copying() => self.copy_message(message),
            b'S' => self.sync(),
            // What remains of a COPY that failed.
            b'd' | b'c' | b'f' => Ok(()),
            _ if self.skipping => Ok(()),
            b'Q' => self.query(message),
            b'F' => self.function_call(),
            _ => self.extended(message),
        }
    }

    /// Answers a message that was dropped as it would one that failed.
    #[cold]
    fn refuse(&mut self, tag: u8, error: SqlError) -> std::result::Result<(), End> {
        match tag {
            _ if self.sql.is_copying() => self.after_copy(Err(error)),
            _ if self.skipping || tag == b'd' => Ok(()),
            b'P' | b'B' => self.extended_failed(error),
            _ => {
                self.settle(Err(error))?;
                self.ready()
            }
        }
    }

    fn query(&mut self, message: Message) -> std::result::Result<(), End> {
        self.entry.started();
        let result = match copy_text(self.wire.body(message), &mut self.text) {
            Ok(()) => {
                self.shown.simple(&self.text, &self.entry);
                self.simple()
            }
            Err(error) => Err(error),
        };
        self.copy_by_query = true;
        self.after_query(result)
    }

    fn simple(&mut self) -> Result<()> {
        match self.statements.answer(&mut self.sql, &self.text, &mut self.wire) {
            Some(answered) => answered,
            None => self.sql.simple(&self.text, &mut self.wire),
        }
    }

    /// The rest of the answer to a Query, unless a COPY has to end first.
    fn after_query(&mut self, result: Result<()>) -> std::result::Result<(), End> {
        if result.is_ok() && self.sql.is_copying() {
            return self.wire.alive();
        }
        self.settle(result)?;
        self.ready()
    }

    fn copy_message(&mut self, message: Message) -> std::result::Result<(), End> {
        let result = match message.tag {
            b'd' => self.sql.copy_data(self.wire.body(message)),
            b'c' => self.sql.copy_done(&mut self.wire),
            b'f' => Err(copy_failed(self.wire.body(message))),
            // As in PostgreSQL, for clients that send them with the Execute.
            b'H' | b'S' => Ok(()),
            tag => Err(unexpected_in_copy(tag)),
        };
        self.after_copy(result)
    }

    fn look_after_copy(&mut self) -> std::result::Result<(), End> {
        match self.sql.copy_look() {
            Ok(()) => Ok(()),
            failed => self.after_copy(failed),
        }
    }

    fn after_copy(&mut self, result: Result<()>) -> std::result::Result<(), End> {
        match result {
            result if self.copy_by_query => self.after_query(result),
            Ok(()) => self.wire.alive(),
            Err(error) => self.extended_failed(error),
        }
    }

    fn function_call(&mut self) -> std::result::Result<(), End> {
        self.settle(Err(SqlError::unsupported("the function call protocol")))?;
        self.ready()
    }

    fn sync(&mut self) -> std::result::Result<(), End> {
        self.skipping = false;
        let result = self.sql.sync();
        self.settle(result)?;
        self.ready()
    }

    /// Reports the error of a statement or of its message, which fails the transaction, and ends the session where it
    /// cannot go on.
    fn settle(&mut self, result: Result<()>) -> std::result::Result<(), End> {
        self.wire.alive()?;
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.severity() == Severity::Fatal => Err(End::Fatal(error)),
            // The shutdown cancelled the statement; the client is told why.
            Err(error) if error.code() == code::QUERY_CANCELED && self.entry.is_ending() => {
                Err(End::Fatal(shutting_down()))
            }
            Err(error) => {
                let stopped = error.code() == code::QUERY_CANCELED && self.entry.was_stopped_for_thread();
                let error = if stopped { no_thread() } else { error };
                self.sql.fail();
                if is_grave(&error) {
                    log_grave(&error, self.entry.id);
                }
                self.wire.report(b'E', &error);
                Ok(())
            }
        }
    }

    fn extended(&mut self, message: Message) -> std::result::Result<(), End> {
        match self.answer(message) {
            Ok(()) => Ok(()),
            Err(Failure::Session(end)) => Err(end),
            Err(Failure::Statement(error)) => self.extended_failed(error),
        }
    }

    fn extended_failed(&mut self, error: SqlError) -> std::result::Result<(), End> {
        self.skipping = true;
        self.settle(Err(error))?;
        // The client may wait for it without a Sync, above all one that sends COPY data.
        self.wire.flush()
    }

    fn answer(&mut self, message: Message) -> std::result::Result<(), Failure> {
        match message.tag {
            b'P' => self.parse(message),
            b'B' => self.bind(message),
            b'D' => self.describe(message),
            b'E' => self.execute(message),
            b'C' => self.close(message),
            b'H' => Ok(self.wire.flush()?),
            tag => {
                let text = format!("unexpected message of type '{}'", char::from(tag));
                Err(End::Fatal(protocol_violation(text).fatal()).into())
            }
        }
    }

    fn parse(&mut self, message: Message) -> std::result::Result<(), Failure> {
        let mut body = Fields(self.wire.body(message));
        let name = name(&mut body)?;
        let text = utf8(body.cstr().ok_or_else(malformed)?)?;
        let count = body.count().ok_or_else(malformed)?;
        self.types.clear();
        for _ in 0..count {
            self.types.push(body.i32().ok_or_else(malformed)? as u32);
        }
        all_read(&body)?;
        self.entry.started();
        self.shown.parsed(name, text, &self.entry);
        self.sql.parse(name, text, &self.types)?;
        self.wire.out().empty(b'1');
        Ok(())
    }

    fn bind(&mut self, message: Message) -> std::result::Result<(), Failure> {
        let mut body = Fields(self.wire.body(message));
        let portal = name(&mut body)?;
        let statement = name(&mut body)?;
        self.shown.bound(statement, &self.entry);
        self.sql.bind(portal, statement, Bind::from_wire(body.0)?)?;
        self.wire.out().empty(b'2');
        Ok(())
    }

    fn describe(&mut self, message: Message) -> std::result::Result<(), Failure> {
        self.with_target(message, |sql, kind, name, wire| match kind {
            b'S' => sql.describe_statement(name, wire),
            _ => sql.describe_portal(name, wire),
        })
    }

    fn close(&mut self, message: Message) -> std::result::Result<(), Failure> {
        self.with_target(message, |sql, kind, name, wire| {
            match kind {
                b'S' => sql.close_statement(name),
                _ => sql.close_portal(name),
            }
            wire.out().empty(b'3');
            Ok(())
        })
    }

    /// Runs `act` with the statement or portal that a Describe or Close names.
    fn with_target(
        &mut self,
        message: Message,
        act: impl FnOnce(&mut Session, u8, &str, &mut Wire) -> Result<()>,
    ) -> std::result::Result<(), Failure> {
        let mut body = Fields(self.wire.body(message));
        let kind = body
            .u8()
            .filter(|kind| matches!(kind, b'S' | b'P'))
            .ok_or_else(malformed)?;
        name(&mut body)?.clone_into(&mut self.text);
        all_read(&body)?;
        act(&mut self.sql, kind, &self.text, &mut self.wire)?;
        Ok(self.wire.alive()?)
    }

    fn execute(&mut self, message: Message) -> std::result::Result<(), Failure> {
        let mut body = Fields(self.wire.body(message));
        name(&mut body)?.clone_into(&mut self.text);
        let max_rows = body.i32().ok_or_else(malformed)?;
        all_read(&body)?;
        self.entry.started();
        self.copy_by_query = false;
        let result = self
            .sql
            .execute(&self.text, u32::try_from(max_rows).unwrap_or(0), &mut self.wire);
        self.wire.alive()?;
        Ok(result?)
    }
}

/// Whether the operator must know: out of space or memory, files that fail, damage, our own faults.
fn is_grave(error: &SqlError) -> bool {
    let code = error.code();
    code.starts_with("58") || code.starts_with("XX") || (code.starts_with("53") && code != "53300")
}

#[cold]
fn log_grave(error: &SqlError, session: i32) {
    static LIMITER: log::Limiter = log::Limiter::new();
    match LIMITER.pass() {
        Some(0) => log::error!("session {session}: {error}"),
        Some(left_out) => log::error!("session {session}: {error} ({left_out} such lines were left out)"),
        None => {}
    }
}

/// The end of a session because the server shuts down.
/// Detail of 57P01: of what the client has sent since it was told that the server is ready, nothing was begun. So it can
/// be sent to another server.
pub const NOT_BEGUN: &str = "Nothing that was sent since the last answer was begun.";

/// The server stops.
pub fn shutting_down() -> SqlError {
    SqlError::new(
        code::ADMIN_SHUTDOWN,
        "terminating connection due to administrator command",
    )
    .fatal()
}

fn copy_text(body: &[u8], into: &mut String) -> Result<()> {
    let text = match body.split_last() {
        Some((0, text)) if !text.contains(&0) => text,
        _ => return Err(malformed()),
    };
    into.clear();
    into.push_str(utf8(text)?);
    Ok(())
}

fn name<'a>(body: &mut Fields<'a>) -> Result<&'a str> {
    utf8(body.cstr().ok_or_else(malformed)?)
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let byte = bytes[error.valid_up_to()];
        SqlError::new(
            code::BAD_ENCODING,
            format!("invalid byte sequence for encoding \"UTF8\": 0x{byte:02x}"),
        )
    })
}

fn all_read(body: &Fields<'_>) -> Result<()> {
    match body.is_empty() {
        true => Ok(()),
        false => Err(malformed()),
    }
}

#[cold]
fn malformed() -> SqlError {
    protocol_violation("invalid message format")
}
