//! A server that speaks Redis's protocol, in front of the key-value store of the memory pool ([`cenote_kv`]).
//!
//! ```text
//!   sockets ──ready──► loop ──► connection: read ─► batch of requests ─► commands ─► reply: write
//!                        │                                         │
//!                        └── sweep of what has expired ──────────► store ── space ── region, or a grant of the pool
//! ```
//!
//! One thread does everything: no command meets another one half done, and a core does nothing but commands and system
//! calls. It waits for sockets with epoll, edge-triggered: each connection knows itself whether its socket may have
//! more.

mod batch;
mod client;
mod commands;
mod connection;
mod dispatch;
mod glob;
mod hashes;
mod huge;
mod keys;
mod refusal;
mod reply;
mod request;
mod server;
mod statistics;
mod strings;
mod transaction;

use crate::log;
use batch::Batch;
use cenote_kv::Store;
use connection::{Connection, Next};
use dispatch::Shared;
pub use huge::gather;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
pub use statistics::{CONNECTIONS_MAX, Statistics};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LISTENER: Token = Token(usize::MAX);
const STOP: Token = Token(usize::MAX - 1);
/// Between two looks for what has expired, if anything can.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Buckets that one look goes through: about a millisecond.
const SWEEP_BUCKETS: u64 = 8192;
const EVENTS: usize = 1024;

/// Ends a server's loop from another thread.
#[derive(Clone)]
pub struct Stop(Arc<(AtomicBool, Waker)>);

impl Stop {
    /// The loop ends after the commands at hand.
    pub fn stop(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.wake().ok();
    }
}

/// See the module.
pub struct Server {
    poll: Poll,
    listener: TcpListener,
    stop: Stop,
    shared: Shared,
    batch: Batch,
    /// By number; the free ones are listed.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Those whose turn comes again without their sockets' saying anything.
    again: Vec<usize>,
    /// Those whose turn it is.
    ready: Vec<usize>,
    swept_at: u64,
    /// Connections may wait that could not be accepted, for want of descriptors.
    is_short: bool,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_millis() as u64)
}

impl Server {
    /// Serves a store to the clients that connect to `listener`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(listener: std::net::TcpListener, store: Store) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (poll, mut listener) = (Poll::new()?, TcpListener::from_std(listener));
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), STOP)?;
        let mut shared = Shared::new(store, &commands::COMMANDS);
        shared.statistics.began = now();
        Ok(Self {
            poll,
            listener,
            stop: Stop(Arc::new((AtomicBool::new(false), waker))),
            shared,
            batch: Batch::default(),
            connections: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            ready: Vec::new(),
            swept_at: 0,
            is_short: false,
        })
    }

    /// What ends it.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is told to stop; the store then.
    ///
    /// # Errors
    /// Those of waiting for sockets; of a store that may not be used any more ([`Store::check`]).
    pub fn run(mut self) -> io::Result<Store> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.stop.0.0.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => self.shared.now = now(),
            }
            // Those that went on without a word of their sockets', and those whose sockets speak now.
            core::mem::swap(&mut self.again, &mut self.ready);
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    STOP => {}
                    Token(n) => {
                        if let Some(Some(connection)) = self.connections.get_mut(n) {
                            connection.wake(event.is_readable(), event.is_writable(), event.is_read_closed());
                            self.ready.push(n);
                        }
                    }
                }
            }
            if self.is_short {
                self.accept();
            }
            self.serve()?;
            self.sweep();
        }
        Ok(self.shared.store)
    }

    fn timeout(&self) -> Option<Duration> {
        match (self.again.is_empty(), self.shared.store.expiring()) {
            (false, _) => Some(Duration::ZERO),
            (true, 0) if !self.is_short => None,
            (true, _) => Some(SWEEP_EVERY),
        }
    }

    /// All that are ready: first what they ask, then what they are answered.
    fn serve(&mut self) -> io::Result<()> {
        let mut ready = core::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        ready.retain(|n| self.listen(*n));
        // What was read since may be half of a step: no client is answered.
        self.shared.store.check().map_err(io::Error::other)?;
        ready.drain(..).for_each(|n| self.answer(n));
        self.ready = ready;
        Ok(())
    }

    /// Whether it is there still.
    fn listen(&mut self, n: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(n) else {
            return false;
        };
        let is_there = connection.listen(&mut self.shared, &mut self.batch);
        if !is_there {
            self.close(n);
        }
        is_there
    }

    fn answer(&mut self, n: usize) {
        match self.connections[n].as_mut().map_or(Next::Wait, Connection::answer) {
            Next::Wait => {}
            Next::Again => self.again.push(n),
            Next::Close => self.close(n),
        }
    }

    fn close(&mut self, n: usize) {
        if let Some(mut connection) = self.connections[n].take() {
            self.shared.watches.forget(&mut connection.client);
            self.poll.registry().deregister(connection.stream()).ok();
            self.shared.statistics.connections -= 1;
            self.free.push(n);
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.admit(stream) {
                        log::warn!("a connection could not be served: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_short = false;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Such as too many open files. The listener does not report waiting clients again: accept is called
                    // until there are none.
                    if !core::mem::replace(&mut self.is_short, true) {
                        log::warn!("a connection could not be accepted: {error}; trying again");
                    }
                    return;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: mio::net::TcpStream) -> io::Result<()> {
        if self.shared.statistics.connections as usize >= CONNECTIONS_MAX {
            stream.write_all(b"-ERR max number of clients reached\r\n").ok();
            return Ok(());
        }
        stream.set_nodelay(true)?;
        let n = self.free.pop().unwrap_or(self.connections.len());
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(n), interest) {
            self.free.extend((n < self.connections.len()).then_some(n));
            return Err(error);
        }
        self.shared.statistics.accepted += 1;
        self.shared.statistics.connections += 1;
        let connection = Connection::new(stream, self.shared.statistics.accepted);
        match self.connections.get_mut(n) {
            Some(place) => *place = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        Ok(())
    }

    fn sweep(&mut self) {
        let (shared, every) = (&mut self.shared, SWEEP_EVERY.as_millis() as u64);
        if shared.store.expiring() == 0 || shared.now.abs_diff(self.swept_at) < every {
            return;
        }
        self.swept_at = shared.now;
        match shared.store.sweep(shared.now, SWEEP_BUCKETS) {
            Ok(removed) => shared.statistics.swept += removed,
            Err(failure) => log::error!("looking for what has expired: {failure}"),
        }
    }
}
