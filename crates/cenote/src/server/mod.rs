//! The PostgreSQL server: accepts connections and gives each a thread while it has something to do.
//!
//! A statement is synchronous from the socket to the engine and back; waiting for a lock or for the log blocks its
//! thread and no other. A session keeps its thread as long as its client's pauses are short, and has none in longer
//! ones (`parking`), nor has a client that has not begun its session, or that is sent away. The socket is bound before
//! the database is opened ([`bind`]) and served afterwards ([`Server::start`]): a client that connects in between waits
//! in the socket's backlog and is not refused.

pub mod access;
pub mod auth;
mod connection;
mod context;
pub mod input;
mod listener;
pub mod output;
mod parking;
pub mod registry;
pub mod session;
pub mod socket;
pub mod startup;
mod turns;
mod watch;
pub mod wire;
mod workers;

use crate::log;
pub use access::{Access, BindError, bind};
use connection::{Connection, Counted};
pub use context::{Context, ServerStatements};
use listener::Listener;
pub use listener::{LocalError, LocalListener};
use parking::Parking;
use registry::Registry;
use socket::{Peer, Socket};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use turns::Shared;
use workers::Workers;

/// Connections beyond the limit that may be told so, or bring a cancel request.
const SPARE_CONNECTIONS: usize = 32;
/// How long a planned end waits for blocks that cannot be left to the next server.
const BLOCKS_MAX: Duration = Duration::from_secs(3);
/// How long a stop waits for threads that tell the last clients why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The sessions there are.
    pub registry: Arc<Registry>,
    address: SocketAddr,
    listeners: Vec<Arc<Listener>>,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Server {
    /// Serves the connections of `listener` and, where there is one, of `local`, those that wait already included.
    ///
    /// # Errors
    /// The system gives no thread, or nothing to wait for sockets with.
    pub fn start(listener: TcpListener, local: Option<LocalListener>, context: Context) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let listeners: Vec<_> = std::iter::once(Listener::Tcp(listener))
            .chain(local.map(Listener::Local))
            .map(Arc::new)
            .collect();
        let stopping = Arc::new(AtomicBool::new(false));
        let registry = context.registry.clone();
        let shared = Arc::new(Shared {
            workers: Workers::new(context.access.max_threads),
            context,
            connections: Arc::default(),
            parking: Parking::new()?,
        });
        turns::start(&shared)?;
        let mut threads = Vec::new();
        for listener in &listeners {
            let (accepting, stop, to) = (listener.clone(), stopping.clone(), shared.clone());
            threads.push(named("accept").spawn(move || accept(&accepting, &stop, &to))?);
        }
        let (watched, stop, late) = (registry.clone(), stopping.clone(), shared.clone());
        threads.push(named("watch").spawn(move || watch::run(&watched, &stop, || look_after(&late)))?);
        Ok(Server {
            registry,
            address,
            listeners,
            stopping,
            threads,
            shared,
        })
    }

    /// Where it listens for TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Threads that serve connections, or wait for one.
    pub fn session_threads(&self) -> usize {
        self.shared.workers.threads()
    }

    /// Lets no client in any more, if no client would see that it ends: see [`Registry::close_if_unused`]. A connection
    /// that is about to become a session is one that would.
    pub fn close_if_unused(&self, may_end: bool) -> bool {
        let is_opening = self.shared.connections.load(Ordering::Relaxed) > self.registry.count();
        !is_opening && self.registry.close_if_unused(may_end)
    }

    /// Before an end that is planned: see [`Registry::wait_for_blocks`].
    pub fn wait_for_blocks(&self) {
        self.registry.wait_for_blocks(BLOCKS_MAX, |id, reason| {
            log::info!("the transaction of session {id} cannot go to the next server, and is waited for: {reason}");
        });
    }

    /// Ends all sessions, and gives their statements `grace` before; then stops.
    pub fn hand_over(&mut self, grace: Duration, timeout: Duration) -> usize {
        self.registry.end_softly(grace);
        self.stop(timeout)
    }

    /// Ends all sessions, and accepts no client any more; returns how many did not end within `timeout`. A client that
    /// connects meanwhile is told so: an address that refuses connections has no session that could answer.
    pub fn stop(&mut self, timeout: Duration) -> usize {
        let left = self.registry.end_all(timeout);
        self.stopping.store(true, Ordering::Release);
        // Wakes the acceptors: their accept fails from now on.
        for listener in &self.listeners {
            rustix::net::shutdown(&**listener, rustix::net::Shutdown::Both).ok();
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().ok();
        }
        close(&self.shared, LAST_WORDS);
        left
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.into())
}

/// Ends all threads that have no connection, and the connections that have no session.
fn close(shared: &Shared, timeout: Duration) {
    // Clients that were told why their connection ends have a moment to read it.
    let deadline = Instant::now() + timeout;
    while shared.parking.any(|connection| connection.is_leaving()) && Instant::now() < deadline {
        shared.parking.expire(Instant::now());
        thread::sleep(Duration::from_millis(5));
    }
    drop((shared.parking.close(), shared.workers.take_all_postponed()));
    shared.workers.wait_gone(timeout);
}

fn accept(listener: &Listener, stopping: &AtomicBool, shared: &Shared) {
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

/// Parks a connection until its client says what it wants.
fn welcome(stream: Socket, peer: Peer, shared: &Shared) {
    if shared.connections.load(Ordering::Relaxed) >= shared.context.access.max_connections + SPARE_CONNECTIONS
        && !make_room(shared)
    {
        log::warn!("{peer}: closed unheard, too many connections");
        return;
    }
    if let Err(error) = stream.prepare(wire::PAUSE_MAX) {
        log::debug!("{peer}: cannot prepare the socket: {error}");
        return;
    }
    let connection = Connection::new(stream, peer, Counted::new(&shared.connections));
    turns::park(Box::new(connection), shared);
}

/// Closes the connection that has taken longest over its start-up: clients that never finish it take no other's place.
fn make_room(shared: &Shared) -> bool {
    let evicted = shared.parking.evict();
    static LIMITER: log::Limiter = log::Limiter::new();
    if let (Some(connection), Some(left_out)) = (&evicted, LIMITER.pass()) {
        let peer = connection.peer();
        log::warn!(
            "{peer}: closed before its session began, too many connections ({left_out} such lines were left out)"
        );
    }
    evicted.is_some()
}

/// Once a second; says whether all threads wait with none to be had.
fn look_after(shared: &Arc<Shared>) -> bool {
    shared.parking.expire(Instant::now());
    turns::relieve(shared)
}
