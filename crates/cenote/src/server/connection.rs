//! A connection from its first byte to its last, on one thread at a time.
//!
//! ```text
//!   accepted ─► Startup ──► Session ◄──► parked        each turn on a thread (`workers`)
//!                  │           │
//!                  └───────────┴──► end: rolled back, off the list, told why, closed
//! ```

use super::auth::Passwords;
use super::parking::Parked;
use super::registry::{Arrival, Refused, Registered};
use super::session::{Conversation, Dialogue, shutting_down};
use super::startup::{self, Request, STARTUP_TIME_MAX, Startup};
use super::wire::{End, Wire};
use super::{Service, Shared};
use crate::log;
use cenote_sql::{SessionInfo, Severity, SqlError, code};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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
pub struct Connection<C> {
    peer: SocketAddr,
    stage: Stage<C>,
    _counted: Counted,
}

enum Stage<C> {
    Startup(Wire, Instant),
    Session(Box<Dialogue<C>>, Registered),
    /// A turn was cut short by a panic between two stages.
    Lost,
}

impl<C: Send> Parked for Box<Connection<C>>
where
    C: Conversation,
{
    fn socket(&self) -> RawFd {
        match &self.stage {
            Stage::Startup(wire, _) => wire.socket(),
            Stage::Session(dialogue, _) => dialogue.wire().socket(),
            Stage::Lost => -1,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Startup(_, deadline) => Some(deadline),
            _ => None,
        }
    }
}

impl<C: Conversation> Connection<C> {
    /// One that was just accepted.
    pub fn new(stream: TcpStream, peer: SocketAddr, counted: Counted) -> Self {
        let deadline = Instant::now() + STARTUP_TIME_MAX;
        Connection {
            peer,
            stage: Stage::Startup(Wire::new(Arc::new(stream)), deadline),
            _counted: counted,
        }
    }

    /// Answers what the client sent, and what it sends, until it pauses (None) or the connection is to end. No panic leaves it.
    pub fn turn<S: Service<Session = C>>(&mut self, shared: &Shared<S>) -> Option<End> {
        let turn = catch_unwind(AssertUnwindSafe(|| self.go_on(shared)));
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

    fn go_on<S: Service<Session = C>>(&mut self, shared: &Shared<S>) -> Option<End> {
        if let Stage::Startup(wire, deadline) = &mut self.stage {
            let begun = match begin(wire, *deadline, self.peer, shared) {
                Ok(begun) => begun,
                Err(end) => return Some(end),
            };
            self.enter(begun);
            if let Stage::Session(dialogue, _) = &mut self.stage
                && let Err(end) = dialogue.greet()
            {
                return Some(end);
            }
        }
        match &mut self.stage {
            Stage::Session(dialogue, _) => dialogue.go_on(),
            _ => Some(End::Closed),
        }
    }

    fn enter(&mut self, (registered, session): (Registered, C)) {
        if let Stage::Startup(mut wire, _) = std::mem::replace(&mut self.stage, Stage::Lost) {
            let entry = registered.entry.clone();
            wire.attach(entry.clone());
            self.stage = Stage::Session(Box::new(Dialogue::new(wire, session, entry)), registered);
        }
    }

    /// Ends it: the session is rolled back before it leaves the list, then the client is told why.
    pub fn end(self, end: End) {
        let peer = self.peer;
        let rolled_back = catch_unwind(AssertUnwindSafe(|| match self.stage {
            Stage::Startup(wire, _) => Some(wire),
            Stage::Session(dialogue, _registered) => Some(dialogue.into_wire()),
            Stage::Lost => None,
        }));
        match rolled_back {
            Ok(Some(mut wire)) => farewell(&mut wire, end, peer),
            Ok(None) => {}
            Err(_) => log::error!("{peer}: the session panicked at its end"),
        }
    }

    /// Ends it because the server stops.
    pub fn end_by_shutdown(self) {
        self.end(shutting_down().into());
    }
}

fn begin<S: Service>(
    wire: &mut Wire,
    deadline: Instant,
    peer: SocketAddr,
    shared: &Shared<S>,
) -> Result<(Registered, S::Session), End> {
    match startup::read_request(wire, deadline)? {
        Request::Session(startup) => {
            let passwords = shared.access.passwords.as_ref();
            authenticate(wire, &startup, passwords, deadline)?;
            open(wire, &startup, peer, shared)
        }
        Request::Cancel { id, secret } => {
            let found = shared.registry.cancel(id, secret);
            let what = if found { "" } else { ": no such session" };
            log::debug!("{peer}: cancel request for session {id}{what}");
            Err(End::Closed)
        }
    }
}

fn authenticate(
    wire: &mut Wire,
    startup: &Startup,
    passwords: Option<&Passwords>,
    deadline: Instant,
) -> Result<(), End> {
    startup::authenticate(wire, startup, passwords, deadline)?;
    wire.begin_session()
}

fn open<S: Service>(
    wire: &Wire,
    startup: &Startup,
    peer: SocketAddr,
    shared: &Shared<S>,
) -> Result<(Registered, S::Session), End> {
    let arrival = Arrival {
        user: startup.user.clone(),
        client: peer.to_string(),
        application_name: startup.setting("application_name").unwrap_or_default().to_owned(),
        stream: wire.stream(),
    };
    let max = shared.access.max_connections;
    let registered = shared.registry.enter(arrival, max).map_err(|why| refused(why, max))?;
    let info = SessionInfo {
        user: startup.user.clone(),
        database: startup.database.clone(),
        pid: registered.entry.id,
        client: peer.to_string(),
        settings: startup.settings.clone(),
    };
    let session = shared.service.open(info).map_err(|error| End::Fatal(error.fatal()))?;
    registered.entry.set_cancel(session.canceller());
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

fn farewell(wire: &mut Wire, end: End, peer: SocketAddr) {
    match end {
        End::Closed => log::debug!("{peer}: closed by the client"),
        End::Lost(cause) => log::info!("{peer}: connection lost: {cause}"),
        End::Fatal(error) => {
            if error.severity() == Severity::Fatal && error.code() != code::ADMIN_SHUTDOWN {
                log::warn!("{peer}: closed: {error}");
            }
            wire.report(b'E', &error);
            wire.flush().ok();
            wire.close();
        }
    }
}
