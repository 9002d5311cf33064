//! Accepts clients, and hands each to the thread that has the fewest.
//!
//! There are so many connections at a time and no more: one that comes then is told so. Clients for which there is no
//! descriptor wait until others go.

use super::board::Board;
use super::stop::Stop;
use crate::{log, sockets};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LISTENER: Token = Token(0);
const STOP: Token = Token(1);
/// Between two tries to accept clients for which there was no descriptor.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const EVENTS: usize = 16;

/// A client that was accepted, and its number.
pub type Arrival = (TcpStream, u64);

/// Where a thread finds its new clients.
pub struct Inbox {
    arrivals: Mutex<Vec<Arrival>>,
    waker: Arc<Waker>,
}

impl Inbox {
    /// One whose thread is woken by this.
    pub fn new(waker: Arc<Waker>) -> Self {
        Self {
            arrivals: Mutex::default(),
            waker,
        }
    }

    /// All that have come since.
    pub fn take(&self) -> Vec<Arrival> {
        core::mem::take(&mut self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, arrival: Arrival) -> io::Result<()> {
        self.arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(arrival);
        self.waker.wake()
    }
}

/// See the module.
pub struct Acceptor {
    poll: Poll,
    listener: TcpListener,
    board: Arc<Board>,
    inboxes: Vec<Arc<Inbox>>,
    /// Clients that each thread was given.
    given: Vec<u64>,
    /// Connections may wait that could not be accepted, for want of descriptors.
    is_short: bool,
    /// What a client is told that is one too many: nothing where it expects TLS.
    refusal: &'static [u8],
    is_full: bool,
}

impl Acceptor {
    /// For a listener, and what wakes it to be stopped.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(
        listener: std::net::TcpListener,
        board: Arc<Board>,
        inboxes: Vec<Arc<Inbox>>,
        is_tls: bool,
    ) -> io::Result<(Self, Arc<Waker>)> {
        listener.set_nonblocking(true)?;
        let (poll, mut listener) = (Poll::new()?, TcpListener::from_std(listener));
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), STOP)?);
        let refusal = if is_tls {
            &b""[..]
        } else {
            b"-ERR max number of clients reached\r\n"
        };
        let acceptor = Self {
            poll,
            listener,
            board,
            given: vec![0; inboxes.len()],
            inboxes,
            is_short: false,
            refusal,
            is_full: false,
        };
        Ok((acceptor, waker))
    }

    /// Accepts until the server is stopped.
    ///
    /// # Errors
    /// Those of waiting for clients.
    pub fn run(mut self, stop: &Stop) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while !stop.is_stopped() {
            let timeout = self.is_short.then_some(AGAIN_AFTER);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => self.accept(),
            }
        }
        Ok(())
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
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
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

    fn admit(&mut self, mut stream: TcpStream) -> io::Result<()> {
        let most = self.board.connections_max;
        let is_full = self.board.connections() >= most as u64;
        if is_full {
            self.board.refused.add(1);
            if !core::mem::replace(&mut self.is_full, true) {
                log::warn!("{most} clients are connected: more are refused (--max-connections)");
            }
            stream.write_all(self.refusal).ok();
            return Ok(());
        }
        self.is_full = false;
        stream.set_nodelay(true)?;
        sockets::notice_loss(&stream)?;
        let thread = self.emptiest();
        self.board.accepted.add(1);
        self.given[thread] += 1;
        self.inboxes[thread].put((stream, self.board.accepted.get()))
    }

    /// The thread with the fewest clients.
    fn emptiest(&self) -> usize {
        let has = |n: &usize| self.given[*n].saturating_sub(self.board.threads[*n].closed.get());
        (0..self.inboxes.len()).min_by_key(has).unwrap_or(0)
    }
}
