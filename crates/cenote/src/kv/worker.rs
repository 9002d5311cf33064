//! A thread of the server: its connections, and a loop over those that have something to say.
//!
//! It waits for sockets with epoll, edge-triggered: each connection knows itself whether its socket may have more. What
//! all ready sockets have is read and run before the first answer is sent. A client that is idle costs a descriptor and
//! some hundred bytes.

use super::acceptor::{Arrival, Inbox};
use super::batch::Batch;
use super::board::Board;
use super::clock::now;
use super::connection::{Connection, Next};
use super::dispatch::{Command, Data, Shared};
use super::stop::Stop;
use super::stream::Stream;
use crate::log;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::{ServerConfig, ServerConnection};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

const WAKER: Token = Token(usize::MAX);
/// Between two looks for what has expired, if anything can.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Buckets that one look goes through: about a millisecond.
const SWEEP_BUCKETS: u64 = 8192;
const EVENTS: usize = 1024;

/// What a connection begins with.
#[derive(Clone)]
pub struct Reception {
    /// How it is encrypted, if it is.
    pub tls: Option<Arc<ServerConfig>>,
    /// How long it may take to say the secret, and to come to terms on TLS.
    pub time: Duration,
}

/// See the module.
pub struct Worker<D: Data> {
    poll: Poll,
    inbox: Arc<Inbox>,
    reception: Reception,
    shared: Shared<D>,
    batch: Batch<D>,
    /// By number; the free ones are listed.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Those whose turn comes again without their sockets' saying anything.
    again: Vec<usize>,
    /// Those whose turn it is.
    ready: Vec<usize>,
    /// Until when which connection, by its place and number, has to have arrived: the first one first.
    arriving: VecDeque<(u64, usize, u64)>,
    swept_at: u64,
}

impl<D: Data> Worker<D> {
    /// The thread with this number, and what wakes it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(
        data: D,
        commands: &'static [Command<D>],
        board: &Arc<Board>,
        thread: usize,
        reception: Reception,
    ) -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let worker = Self {
            poll,
            inbox: Arc::new(Inbox::new(Arc::clone(&waker))),
            reception,
            shared: Shared::new(data, commands, board, thread),
            batch: Batch::default(),
            connections: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            ready: Vec::new(),
            arriving: VecDeque::new(),
            swept_at: 0,
        };
        Ok((worker, waker))
    }

    /// Where it finds its clients.
    pub fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Serves until the server is stopped; the data then.
    ///
    /// # Errors
    /// Those of waiting for sockets; of data that may not be used any more ([`Data::check`]).
    pub fn run(mut self, stop: &Stop) -> io::Result<D> {
        let mut events = Events::with_capacity(EVENTS);
        while !stop.is_stopped() {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => self.shared.now = now(),
            }
            // Those that went on without a word of their sockets', and those whose sockets speak now.
            core::mem::swap(&mut self.again, &mut self.ready);
            for event in &events {
                match event.token() {
                    WAKER => self.receive(),
                    Token(n) => {
                        if let Some(Some(connection)) = self.connections.get_mut(n) {
                            connection.wake(event.is_readable(), event.is_writable(), event.is_read_closed());
                            self.ready.push(n);
                        }
                    }
                }
            }
            self.serve()?;
            self.end_late();
            self.sweep();
        }
        Ok(self.shared.store)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let sweep = self.shared.store.expiring().then_some(SWEEP_EVERY);
        let left = |(until, _, _): &(u64, usize, u64)| Duration::from_millis(until.saturating_sub(now()).max(1));
        let arrival = self.arriving.front().map(left);
        sweep.into_iter().chain(arrival).min()
    }

    /// All that are ready: first what they ask, then what they are answered.
    fn serve(&mut self) -> io::Result<()> {
        let mut ready = core::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        ready.retain(|n| self.listen(*n));
        // What was read since may be half of a step: no client is answered.
        let checked = self.shared.store.check();
        checked.map_err(|refusal| io::Error::other(refusal.text().into_owned()))?;
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
        let Some(connection) = self.connections[n].as_mut() else {
            return;
        };
        let waiting = connection.waiting();
        let next = connection.answer();
        let sent = waiting - connection.waiting();
        self.shared.counters.bytes_out.add(sent as u64);
        match next {
            Next::Wait => {}
            Next::Again => self.again.push(n),
            Next::Close => self.close(n),
        }
    }

    fn close(&mut self, n: usize) {
        if let Some(mut connection) = self.connections[n].take() {
            self.shared.watches.forget(&mut connection.client);
            connection.stream().end();
            self.poll.registry().deregister(connection.stream().socket()).ok();
            drop(connection);
            self.shared.counters.closed.add(1);
            self.free.push(n);
        }
    }

    /// New clients.
    fn receive(&mut self) {
        for (socket, number) in self.inbox.take() {
            if let Err(error) = self.admit((socket, number)) {
                self.shared.counters.closed.add(1);
                log::warn!("a connection could not be served: {error}");
            }
        }
    }

    fn admit(&mut self, (mut socket, number): Arrival) -> io::Result<()> {
        let n = self.free.pop().unwrap_or(self.connections.len());
        let interest = Interest::READABLE | Interest::WRITABLE;
        let session = self
            .reception
            .tls
            .as_ref()
            .map(|tls| ServerConnection::new(Arc::clone(tls)));
        let registered = self.poll.registry().register(&mut socket, Token(n), interest);
        let session = registered.and_then(|()| session.transpose().map_err(io::Error::other));
        let session = session.inspect_err(|_| self.free.extend((n < self.connections.len()).then_some(n)))?;
        let stream = match session {
            Some(session) => Stream::tls(socket, session),
            None => Stream::Plain(socket),
        };
        let connection = Connection::new(stream, number, self.shared.board.secret.is_none());
        if connection.is_arriving() {
            let until = self.shared.now + self.reception.time.as_millis() as u64;
            self.arriving.push_back((until, n, number));
        }
        match self.connections.get_mut(n) {
            Some(place) => *place = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        Ok(())
    }

    /// Ends the connections that had their time, and did not say the secret.
    fn end_late(&mut self) {
        while let Some((until, n, number)) = self.arriving.front().copied()
            && until <= self.shared.now
        {
            self.arriving.pop_front();
            let late = self.connections[n].as_ref();
            if late.is_some_and(|late| late.client.id == number && late.is_arriving()) {
                self.shared.counters.expired.add(1);
                self.close(n);
            }
        }
    }

    fn sweep(&mut self) {
        let (shared, every) = (&mut self.shared, SWEEP_EVERY.as_millis() as u64);
        if !shared.store.expiring() || shared.now.abs_diff(self.swept_at) < every {
            return;
        }
        self.swept_at = shared.now;
        match shared.store.sweep(shared.now, SWEEP_BUCKETS) {
            Ok(removed) => shared.counters.swept.add(removed),
            Err(refusal) => log::error!("looking for what has expired: {}", refusal.text()),
        }
    }
}
