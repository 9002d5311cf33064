//! Connections that wait for their client without a thread: an epoll set, and what belongs to each socket in it.
//!
//! ```text
//!              park: into the map and the set
//!   a worker ─────────────────────────────────────────►  parked
//!       ▲                                                   │ its client sends, leaves, or is ended
//!       └──── next: out of both ◄───────────────────────────┘
//! ```
//!
//! Of the workers that wait for work one, the leader, waits on the set; it takes one connection, leaves the lead to the
//! next, and serves what it took itself. So a connection is handed over once, by the system.
//!
//! Invariants:
//! - A connection is in the map and in the set, or in neither and one thread has it; both change under the map's lock. An
//!   event of a connection that has left is ignored: its number is never given again.
//! - A connection whose client sent something before it was parked is ready at once: the set is told of it by the state
//!   of its socket.
//! - [`Parking::close`] wakes all; what is parked after it is given back.

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const WAKER: Token = Token(0);
/// A set that cannot be waited on is tried again after so long.
const RETRY: Duration = Duration::from_millis(100);

/// What can be parked: it has a socket.
pub trait Parked: Send {
    /// The socket, which stays open while it is parked.
    fn socket(&self) -> RawFd;
    /// When it has waited long enough.
    fn deadline(&self) -> Option<Instant>;
}

/// Why a connection could not be parked.
#[derive(Debug)]
pub enum Refusal {
    /// The server stops.
    Closed,
    /// The system takes no socket more into the set.
    System(io::Error),
}

/// Parked connections.
pub struct Parking<T> {
    poll: Mutex<(Poll, Events)>,
    set: Registry,
    waker: Waker,
    lot: Mutex<Lot<T>>,
    closed: AtomicBool,
}

struct Lot<T> {
    parked: HashMap<usize, T>,
    deadlines: BTreeSet<(Instant, usize)>,
    last: usize,
}

impl<T: Parked> Parking<T> {
    /// Nothing is parked yet.
    ///
    /// # Errors
    /// The system has no epoll set to give.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let set = poll.registry().try_clone()?;
        let waker = Waker::new(&set, WAKER)?;
        Ok(Parking {
            // One at a time: the others are for those who lead next.
            poll: Mutex::new((poll, Events::with_capacity(1))),
            set,
            waker,
            lot: Mutex::new(Lot {
                parked: HashMap::new(),
                deadlines: BTreeSet::new(),
                last: WAKER.0,
            }),
            closed: AtomicBool::new(false),
        })
    }

    /// Parks a connection until its socket is ready. Gives it back if that cannot be.
    pub fn park(&self, connection: T) -> Result<(), (T, Refusal)> {
        let mut lot = lock(&self.lot);
        if self.closed.load(Ordering::Acquire) {
            return Err((connection, Refusal::Closed));
        }
        lot.last += 1;
        let (token, socket) = (lot.last, connection.socket());
        if let Err(error) = self
            .set
            .register(&mut SourceFd(&socket), Token(token), Interest::READABLE)
        {
            return Err((connection, Refusal::System(error)));
        }
        let deadline = connection.deadline();
        lot.deadlines.extend(deadline.map(|deadline| (deadline, token)));
        lot.parked.insert(token, connection);
        Ok(())
    }

    fn take(&self, lot: &mut Lot<T>, token: usize) -> Option<T> {
        let connection = lot.parked.remove(&token)?;
        if let Some(deadline) = connection.deadline() {
            lot.deadlines.remove(&(deadline, token));
        }
        self.set.deregister(&mut SourceFd(&connection.socket())).ok();
        Some(connection)
    }

    /// Waits for a connection that is ready. None: the parking is closed.
    pub fn next(&self) -> Option<T> {
        loop {
            let token = self.wait()?;
            let taken = self.take(&mut lock(&self.lot), token);
            if taken.is_some() {
                return taken;
            }
        }
    }

    fn wait(&self) -> Option<usize> {
        let mut lead = lock(&self.poll);
        let (poll, events) = &mut *lead;
        while !self.closed.load(Ordering::Acquire) {
            match poll.poll(events, None) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    crate::log::error!("cannot wait for clients: {error}");
                    std::thread::sleep(RETRY);
                    continue;
                }
            }
            let ready = events.iter().map(|event| event.token()).find(|token| *token != WAKER);
            if let Some(token) = ready {
                return Some(token.0);
            }
        }
        None
    }

    /// Those whose deadline has passed.
    pub fn take_overdue(&self, now: Instant) -> Vec<T> {
        let mut lot = lock(&self.lot);
        let mut overdue = Vec::new();
        while let Some(&(deadline, token)) = lot.deadlines.first() {
            if deadline > now {
                break;
            }
            overdue.extend(self.take(&mut lot, token));
        }
        overdue
    }

    /// Gives back what is parked and parks nothing any more; [`next`](Self::next) ends for all.
    pub fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Release);
        self.waker.wake().ok();
        let mut lot = lock(&self.lot);
        lot.deadlines.clear();
        lot.parked.drain().map(|(_, connection)| connection).collect()
    }
}

/// No state behind these locks is ever half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    struct Waiting(UnixStream, Option<Instant>);

    impl Parked for Waiting {
        fn socket(&self) -> RawFd {
            self.0.as_raw_fd()
        }
        fn deadline(&self) -> Option<Instant> {
            self.1
        }
    }

    #[test]
    fn what_was_sent_before_is_not_waited_for() {
        let parking = Parking::new().unwrap();
        let (ours, mut client) = UnixStream::pair().unwrap();
        client.write_all(b"x").unwrap();
        parking.park(Waiting(ours, None)).ok().unwrap();
        let back = parking.next().unwrap();
        // Parked again with the byte still unread: it is ready again.
        parking.park(back).ok().unwrap();
        assert!(parking.next().is_some());
        assert_eq!(parking.close().len(), 0);
    }

    #[test]
    fn those_whose_time_is_up_are_given_back_and_no_others() {
        let parking = Parking::new().unwrap();
        let now = Instant::now();
        let clients: Vec<UnixStream> = [None, Some(now), Some(now + Duration::from_secs(60))]
            .into_iter()
            .map(|deadline| {
                let (ours, client) = UnixStream::pair().unwrap();
                parking.park(Waiting(ours, deadline)).ok().unwrap();
                client
            })
            .collect();
        assert_eq!(parking.take_overdue(now).len(), 1);
        assert_eq!(parking.take_overdue(now).len(), 0);
        assert_eq!(parking.close().len(), 2);
        assert!(parking.next().is_none());
        let (ours, _client) = UnixStream::pair().unwrap();
        assert!(matches!(parking.park(Waiting(ours, None)), Err((_, Refusal::Closed))));
        drop(clients);
    }
}
