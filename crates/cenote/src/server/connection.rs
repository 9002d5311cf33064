//! A connection from its first byte to its last, on one thread at a time.
//!
//! ```text
//!   accepted ─► Startup ──► Session ──┐      each parked between its turns, each turn on a thread (`workers`)
//!                  │           │      │
//!                  └───────────┴──► end: rolled back, off the list, told why ──► Leaving ──► closed
//! ```
//!
//! `Startup` and `Leaving` wait for nothing: their turns need no thread of their own.

use super::context::Context;
use super::parking::Parked;
use super::registry::{Arrival, Refused, Registered};
use super::session::{Dialogue, shutting_down};
use super::socket::{Peer, Socket};
use super::startup::{Login, Request, STARTUP_TIME_MAX, Startup};
use super::wire::{End, LINGER, Wire, startup_too_late};
use crate::log;
use cenote_sql::{Session, SessionInfo, Severity, SqlError, code};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What a proxy asks for in its start-up packet.
const REPORT: &str = "_cenote.report";
const TOO_MANY_CONNECTIONS: &str = "53300";

/// One of the connections that are counted.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// One more, until it is dropped.
    pub fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Counted(connections.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's connection, with its session once it has one.
pub struct Connection {
    peer: Peer,
    stage: Stage,
    _counted: Counted,
}

enum Stage {
    Startup(Wire, Login, Instant),
    Session(Box<Dialogue>, Registered),
    /// The client was told why, and reads it; what it still sends is dropped, until then at most.
    Leaving(Wire, Instant),
    /// A turn was cut short by a panic between two stages.
    Lost,
}

impl Parked for Box<Connection> {
    fn socket(&self) -> RawFd {
        match &self.stage {
            Stage::Startup(wire, ..) | Stage::Leaving(wire, _) => wire.socket(),
            Stage::Session(dialogue, _) => dialogue.wire().socket(),
            Stage::Lost => -1,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Startup(.., deadline) | Stage::Leaving(_, deadline) => Some(*deadline),
            Stage::Session(dialogue, _) => dialogue.deadline(),
            Stage::Lost => None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(&self.stage, Stage::Session(dialogue, _) if dialogue.begins_with_input())
    }

    fn is_expendable(&self) -> bool {
        self.waits_for_nothing()
    }
}

impl Connection {
    /// One that was just accepted.
    pub fn new(stream: Socket, peer: Peer, counted: Counted) -> Self {
        let deadline = Instant::now() + STARTUP_TIME_MAX;
        Connection {
            peer,
            stage: Stage::Startup(Wire::new(Arc::new(stream)), Login::default(), deadline),
            _counted: counted,
        }
    }

    /// The client's address.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether its turns wait neither for the client nor for another session.
    pub fn waits_for_nothing(&self) -> bool {
        matches!(self.stage, Stage::Startup(..) | Stage::Leaving(..))
    }

    /// Whether others may wait for what its transaction holds.
    pub fn in_transaction(&self) -> bool {
        matches!(&self.stage, Stage::Session(dialogue, _) if dialogue.in_transaction())
    }

    /// Whether the client was told why the connection ends.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving(..))
    }

    /// Answers what the client sent, and what it sends, until it pauses (None) or the connection is to end. No panic
    /// leaves it.
    pub fn turn(&mut self, context: &Context) -> Option<End> {
        let turn = catch_unwind(AssertUnwindSafe(|| self.go_on(context)));
        turn.unwrap_or_else(|_| {
            log::error!(
                "{}: the session panicked; it is closed, its transaction rolled back",
                self.peer
            );
            let error = SqlError::internal("internal error: the session cannot go on");
            Some(
                error
                    .with_hint("The server's log says more. Connect again.")
                    .fatal()
                    .into(),
            )
        })
    }

    fn go_on(&mut self, context: &Context) -> Option<End> {
        match &mut self.stage {
            Stage::Startup(wire, login, deadline) => {
                let begun = begin(wire, login, *deadline, self.peer, context).transpose()?;
                begun.and_then(|begun| self.enter(begun, context)).err()
            }
            Stage::Session(dialogue, _) => dialogue.go_on(),
            Stage::Leaving(wire, deadline) => {
                let stays = wire.drop_input() && Instant::now() < *deadline;
                (!stays).then_some(End::Closed)
            }
            Stage::Lost => Some(End::Closed),
        }
    }

    /// The session begins; its first message is for the next turn, which may wait.
    fn enter(&mut self, (registered, session): (Registered, Session), context: &Context) -> Result<(), End> {
        let Stage::Startup(mut wire, ..) = std::mem::replace(&mut self.stage, Stage::Lost) else {
            return Err(End::Closed);
        };
        let entry = registered.entry.clone();
        wire.attach(entry.clone());
        wire.rest_on(context.lease.clone());
        let mut dialogue = Box::new(Dialogue::new(wire, session, context.statements.clone(), entry));
        let greeted = dialogue.greet();
        self.stage = Stage::Session(dialogue, registered);
        greeted
    }

    /// Ends it: the session is rolled back, or its block left to the next server, before it leaves the list, then the
    /// client is told why. What is given back has to be parked until the client has read that.
    pub fn end(mut self: Box<Self>, end: End) -> Option<Box<Self>> {
        let peer = self.peer;
        let stage = std::mem::replace(&mut self.stage, Stage::Lost);
        let rolled_back = catch_unwind(AssertUnwindSafe(|| match stage {
            Stage::Startup(wire, ..) => Some((wire, end)),
            Stage::Session(mut dialogue, _registered) => {
                let end = dialogue.leave(end);
                Some((dialogue.into_wire(), end))
            }
            Stage::Leaving(..) | Stage::Lost => None,
        }));
        let Ok(ended) = rolled_back else {
            log::error!("{peer}: the session panicked at its end");
            return None;
        };
        let (mut wire, end) = ended?;
        if !farewell(&mut wire, end, peer) {
            return None;
        }
        self.stage = Stage::Leaving(wire, Instant::now() + LINGER);
        Some(self)
    }

    /// As [`end`](Self::end), where nothing can be parked.
    pub fn end_at_once(self: Box<Self>, end: End) {
        let leaving = match self.is_leaving() {
            true => Some(self),
            false => self.end(end),
        };
        if let Some(Stage::Leaving(mut wire, _)) = leaving.map(|connection| connection.stage) {
            wire.linger();
        }
    }

    /// Ends it because the server stops.
    pub fn end_by_shutdown(self: Box<Self>) {
        let error = match &self.stage {
            Stage::Session(dialogue, _) => dialogue.ended(),
            _ => shutting_down(),
        };
        self.end_at_once(error.into());
    }
}

/// Goes on with a start-up; None: the client has to say more.
fn begin(
    wire: &mut Wire,
    login: &mut Login,
    deadline: Instant,
    peer: Peer,
    context: &Context,
) -> Result<Option<(Registered, Session)>, End> {
    match login.go_on(wire, context.access.passwords.as_ref())? {
        None if Instant::now() >= deadline => Err(startup_too_late()),
        None => {
            wire.shrink();
            Ok(None)
        }
        Some(Request::Session(startup)) => open(wire, &startup, peer, context).map(Some),
        Some(Request::Cancel { id, secret }) => {
            let found = context.registry.cancel(id, secret);
            let what = if found { "" } else { ": no such session" };
            log::debug!("{peer}: cancel request for session {id}{what}");
            Err(End::Closed)
        }
    }
}

fn open(wire: &Wire, startup: &Startup, peer: Peer, context: &Context) -> Result<(Registered, Session), End> {
    let arrival = Arrival {
        user: startup.user.clone(),
        client: peer.to_string(),
        application_name: startup.setting("application_name").unwrap_or_default().to_owned(),
        has_proxy: startup.setting(REPORT).is_some(),
        stream: wire.stream(),
    };
    let max = context.access.max_connections;
    let registered = context.registry.enter(arrival, max).map_err(|why| refused(why, max))?;
    let info = SessionInfo {
        user: startup.user.clone(),
        database: startup.database.clone(),
        pid: registered.entry.id,
        client: peer.to_string(),
        settings: startup.settings.clone(),
    };
    let mut session = context.sql.session(info).map_err(|error| End::Fatal(error.fatal()))?;
    registered.entry.set_cancel(session.cancel_handle());
    session.heed_end(registered.entry.ending());
    log::debug!("{peer}: session {} of {} begins", registered.entry.id, startup.user);
    Ok((registered, session))
}

fn refused(why: Refused, max: usize) -> End {
    match why {
        Refused::Closing => shutting_down().into(),
        Refused::Full => {
            let error = SqlError::new(TOO_MANY_CONNECTIONS, "sorry, too many clients already");
            error
                .with_detail(format!("There are {max} sessions, as many as max_connections allows."))
                .with_hint("Raise max_connections in cenote.toml or with --max-connections.")
                .fatal()
                .into()
        }
    }
}

/// Tells the client why its connection ends; false: it has left, or does not read it.
fn farewell(wire: &mut Wire, end: End, peer: Peer) -> bool {
    match end {
        End::Closed => log::debug!("{peer}: closed by the client"),
        End::Lost(cause) => log::info!("{peer}: connection lost: {cause}"),
        End::Fatal(error) => {
            if error.severity() == Severity::Fatal && error.code() != code::ADMIN_SHUTDOWN {
                log::warn!("{peer}: closed: {error}");
            }
            wire.report(b'E', &error);
            let told = wire.last_words().is_ok();
            wire.end_output();
            return told;
        }
    }
    false
}
