//! The PostgreSQL server: accepts connections and gives each a thread of its own.
//!
//! A session is synchronous from the socket to the engine and back; waiting for a lock or for the log blocks its thread and
//! no other. The socket is bound before the database is opened ([`bind`]) and served afterwards ([`Server::start`]): who
//! connects in between waits in the socket's backlog and is not refused.

pub mod auth;
pub mod input;
pub mod output;
pub mod registry;
pub mod session;
pub mod startup;
mod watch;
pub mod wire;

use crate::log;
use auth::Passwords;
use cenote_sql::{SessionInfo, Severity, SqlError, code};
use registry::{Arrival, Refused, Registry};
use session::{Conversation, Dialogue};
use startup::{Request, STARTUP_TIME_MAX, Startup};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wire::{End, Wire};

/// Address space of a session's stack: it must hold the deepest statement that `sql` lets through, since a stack that
/// overflows takes the process with it. Memory is taken only as deep as statements went.
const STACK_BYTES: usize = 64 << 20;
/// Connections beyond the limit that may be told so, or bring a cancel request.
const SPARE_CONNECTIONS: usize = 32;
/// After so long without a word the kernel asks whether the client's machine is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// Bytes sent that nobody acknowledged for so long mean that the client's machine is gone.
const UNACKNOWLEDGED_MS_MAX: u32 = 120_000;

const TOO_MANY_CONNECTIONS: &str = "53300";

/// Opens sessions: SQL over the engine, or a test's stand-in.
pub trait Service: Send + Sync + 'static {
    /// A session.
    type Session: Conversation;
    /// Opens one.
    fn open(&self, info: SessionInfo) -> cenote_sql::Result<Self::Session>;
}

impl Service for Arc<cenote_sql::Sql> {
    type Session = cenote_sql::Session;
    fn open(&self, info: SessionInfo) -> cenote_sql::Result<Self::Session> {
        self.session(info)
    }
}

/// Whom to let in.
#[derive(Debug)]
pub struct Access {
    /// Without a password file everybody is let in, which is why it is then only the loopback interface that is served.
    pub passwords: Option<Passwords>,
    /// Sessions at a time.
    pub max_connections: usize,
}

/// An address that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// It is not an address.
    #[error("cannot understand the listen address {0:?}; it is ADDRESS:PORT, such as 127.0.0.1:5433")]
    Address(String),
    /// It would let everybody in from everywhere.
    #[error(
        "refusing to listen on {0} without passwords: anybody who reaches it could read and change everything. \
         Listen on 127.0.0.1, or make a password file (cenote password USER >> passwords) and give it with --password-file passwords"
    )]
    Open(SocketAddr),
    /// The operating system refuses it.
    #[error("cannot listen on {address}: {source}{}", in_use_hint(.source))]
    Socket {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

fn in_use_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ". Another server has this port: choose another one with --listen, or 127.0.0.1:0 for any free one"
        }
        io::ErrorKind::PermissionDenied => ". Ports below 1024 are for root: choose a higher one with --listen",
        _ => "",
    }
}

/// Binds the address; connections wait from now on. Port 0 takes a free one.
pub fn bind(listen: &str, with_passwords: bool) -> Result<TcpListener, BindError> {
    let unknown = || BindError::Address(listen.to_owned());
    let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(|_| unknown())?.collect();
    let address = *addresses
        .iter()
        .find(|address| address.is_ipv4())
        .or(addresses.first())
        .ok_or_else(unknown)?;
    if !with_passwords && !is_loopback(address.ip()) {
        return Err(BindError::Open(address));
    }
    TcpListener::bind(address).map_err(|source| BindError::Socket { address, source })
}

fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Who is connected.
    pub registry: Arc<Registry>,
    listener: Arc<TcpListener>,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves the connections of `listener`, those that wait already included.
    pub fn start<S: Service>(
        listener: TcpListener,
        service: S,
        access: Access,
        registry: Arc<Registry>,
    ) -> io::Result<Server> {
        let listener = Arc::new(listener);
        let stopping = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            service,
            access,
            registry: registry.clone(),
            connections: AtomicUsize::new(0),
        });
        let (accepting, stop) = (listener.clone(), stopping.clone());
        let acceptor = named("accept").spawn(move || accept(&accepting, &stop, &shared))?;
        let (watched, stop) = (registry.clone(), stopping.clone());
        let watcher = named("watch").spawn(move || watch::run(&watched, &stop))?;
        Ok(Server {
            registry,
            listener,
            stopping,
            threads: vec![acceptor, watcher],
        })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Lets nobody in any more and ends all sessions; returns how many did not end within `patience`.
    pub fn stop(&mut self, patience: Duration) -> usize {
        self.stopping.store(true, Ordering::Release);
        // Wakes the acceptor: its accept fails from now on.
        rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).ok();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().ok();
        }
        self.registry.end_all(patience)
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.into()).stack_size(STACK_BYTES)
}

struct Shared<S> {
    service: S,
    access: Access,
    registry: Arc<Registry>,
    connections: AtomicUsize,
}

fn accept<S: Service>(listener: &TcpListener, stopping: &AtomicBool, shared: &Arc<Shared<S>>) {
    while !stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, peer)) => welcome(stream, peer, shared),
            Err(_) if stopping.load(Ordering::Acquire) => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of file descriptors, most likely: sessions that end give some back.
                log::error!("cannot accept a connection: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn welcome<S: Service>(stream: TcpStream, peer: SocketAddr, shared: &Arc<Shared<S>>) {
    if shared.connections.load(Ordering::Relaxed) >= shared.access.max_connections + SPARE_CONNECTIONS {
        log::warn!("{peer}: closed unheard, too many connections");
        return;
    }
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let serving = shared.clone();
    let spawned = thread::Builder::new()
        .name("session".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            serve(stream, peer, &serving);
            serving.connections.fetch_sub(1, Ordering::Relaxed);
        });
    if let Err(error) = spawned {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        log::error!("{peer}: closed, no thread for it: {error}");
    }
}

/// A connection from its first byte to its last. No panic leaves it.
fn serve<S: Service>(stream: TcpStream, peer: SocketAddr, shared: &Shared<S>) {
    if let Err(error) = prepare_socket(&stream) {
        log::debug!("{peer}: cannot prepare the socket: {error}");
        return;
    }
    let stream = Arc::new(stream);
    let mut wire = Wire::new(stream.clone());
    let ended = catch_unwind(AssertUnwindSafe(|| converse(&mut wire, stream, peer, shared)));
    let end = ended.unwrap_or_else(|_| {
        log::error!("{peer}: the session panicked; it is closed, its transaction rolled back");
        let error = SqlError::internal("internal error: the session cannot go on");
        End::Fatal(error.with_hint("The server's log says more. Connect again.").fatal())
    });
    farewell(&mut wire, end, peer);
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

fn prepare_socket(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX)?;
    Ok(())
}

fn converse<S: Service>(wire: &mut Wire, stream: Arc<TcpStream>, peer: SocketAddr, shared: &Shared<S>) -> End {
    let deadline = Instant::now() + STARTUP_TIME_MAX;
    let startup = match startup::read_request(wire, deadline) {
        Ok(Request::Session(startup)) => startup,
        Ok(Request::Cancel { id, secret }) => {
            let found = shared.registry.cancel(id, secret);
            log::debug!(
                "{peer}: cancel request for session {id}{}",
                if found { "" } else { ": no such session" }
            );
            return End::Closed;
        }
        Err(end) => return end,
    };
    match begin(wire, stream, peer, shared, &startup, deadline) {
        Ok((registered, session)) => {
            log::debug!("{peer}: session {} of {} begins", registered.entry.id, startup.user);
            let entry = registered.entry.clone();
            wire.attach(entry.clone());
            // The session is dropped, and so rolled back, before it leaves the list.
            Dialogue::new(wire, session, entry).run()
        }
        Err(end) => end,
    }
}

fn begin<S: Service>(
    wire: &mut Wire,
    stream: Arc<TcpStream>,
    peer: SocketAddr,
    shared: &Shared<S>,
    startup: &Startup,
    deadline: Instant,
) -> Result<(registry::Registered, S::Session), End> {
    startup::authenticate(wire, startup, shared.access.passwords.as_ref(), deadline)?;
    wire.no_deadline()?;
    let arrival = Arrival {
        user: startup.user.clone(),
        client: peer.to_string(),
        application_name: startup.setting("application_name").unwrap_or_default().to_owned(),
        stream,
    };
    let registered = shared
        .registry
        .enter(arrival, shared.access.max_connections)
        .map_err(refused)?;
    let info = SessionInfo {
        user: startup.user.clone(),
        database: startup.database.clone(),
        pid: registered.entry.id,
        client: peer.to_string(),
        settings: startup.settings.clone(),
    };
    let session = shared.service.open(info).map_err(|error| End::Fatal(error.fatal()))?;
    registered.entry.set_cancel(session.canceller());
    Ok((registered, session))
}

fn refused(why: Refused) -> End {
    match why {
        Refused::Closing => session::shutting_down().into(),
        Refused::Full => {
            let error = SqlError::new(TOO_MANY_CONNECTIONS, "sorry, too many clients already");
            error
                .with_hint("Raise max_connections in cenote.toml or with --max-connections.")
                .fatal()
                .into()
        }
    }
}
