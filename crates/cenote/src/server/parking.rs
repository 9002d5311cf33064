//! Connections that wait for their client without a thread: an epoll set, and what belongs to each socket in it.
//!
//! ```text
//!              park: into the map and the set
//!   a worker ─────────────────────────────────────────►  parked ── its time is up (expire) ──► ready
//!       ▲                                                   │ its client sends, leaves, or is ended │
//!       └──── next: out of both ◄───────────────────────────┴───────────────────────────────────────┘
//! ```
//!
//! Of the workers that wait for work one, the leader, waits on the set; it takes one connection, leaves the lead to the
//! next, and serves what it took itself. So a connection is handed over once, by the system.
//!
//! Invariants:
//! - A connection is in the map and in the set, or in neither: then it is ready, or one thread has it. All of this
//!   changes under the map's lock. An event of a connection that has left is ignored: its number is never given again.
//! - A connection whose client sent something before it was parked is ready at once: the set is told of it by the state
//!   of its socket. Where that was read already, the connection says so itself, and is never in the set.
//! - The set reports sockets in the order in which they became ready: connections get threads in turn.
//! - [`Parking::close`] wakes all; what is parked after it is given back.

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use std::collections::{BTreeSet, HashMap, VecDeque};
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
    /// Whether its client has said what its socket does not tell any more.
    fn is_ready(&self) -> bool;
    /// When it is to be looked at though its client says nothing.
    fn deadline(&self) -> Option<Instant>;
    /// Whether it may be closed unheard, to make room for others. It has a deadline, then.
    fn is_expendable(&self) -> bool;
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
    parked: HashMap<usize, Spot<T>>,
    deadlines: BTreeSet<(Instant, usize)>,
    /// Those of the deadlines whose connections may be closed.
    expendable: BTreeSet<(Instant, usize)>,
    /// Those whose time is up, or whose client has said something.
    ready: VecDeque<T>,
    last: usize,
}

struct Spot<T> {
    connection: T,
    deadline: Option<Instant>,
}

impl<T: Parked> Lot<T> {
    fn put(&mut self, token: usize, connection: T) {
        let deadline = connection.deadline();
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, token));
            if connection.is_expendable() {
                self.expendable.insert((deadline, token));
            }
        }
        self.parked.insert(token, Spot { connection, deadline });
    }

    fn take(&mut self, set: &Registry, token: usize) -> Option<T> {
        let Spot { connection, deadline } = self.parked.remove(&token)?;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, token));
            self.expendable.remove(&(deadline, token));
        }
        set.deregister(&mut SourceFd(&connection.socket())).ok();
        Some(connection)
    }
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
            // One at a time: the others are for the threads that lead next.
            poll: Mutex::new((poll, Events::with_capacity(1))),
            set,
            waker,
            lot: Mutex::new(Lot {
                parked: HashMap::new(),
                deadlines: BTreeSet::new(),
                expendable: BTreeSet::new(),
                ready: VecDeque::new(),
                last: WAKER.0,
            }),
            closed: AtomicBool::new(false),
        })
    }

    /// Parks a connection until its socket is ready, or it is itself. Gives it back if that cannot be.
    ///
    /// # Errors
    /// The server closes, or the system cannot watch the socket; the connection comes back.
    pub fn park(&self, connection: T) -> Result<(), (T, Refusal)> {
        let mut lot = lock(&self.lot);
        if self.closed.load(Ordering::Acquire) {
            return Err((connection, Refusal::Closed));
        }
        if connection.is_ready() {
            lot.ready.push_back(connection);
            self.waker.wake().ok();
            return Ok(());
        }
        lot.last += 1;
        let (token, socket) = (lot.last, connection.socket());
        if let Err(error) = self
            .set
            .register(&mut SourceFd(&socket), Token(token), Interest::READABLE)
        {
            return Err((connection, Refusal::System(error)));
        }
        lot.put(token, connection);
        Ok(())
    }

    /// Waits for a connection that is ready. None: the parking is closed.
    pub fn next(&self) -> Option<T> {
        loop {
            if let Some(ready) = self.take_ready() {
                return Some(ready);
            }
            let Some(token) = self.wait()? else { continue };
            let taken = lock(&self.lot).take(&self.set, token);
            if taken.is_some() {
                return taken;
            }
        }
    }

    fn take_ready(&self) -> Option<T> {
        let mut lot = lock(&self.lot);
        let ready = lot.ready.pop_front()?;
        if !lot.ready.is_empty() {
            // For the next leader.
            self.waker.wake().ok();
        }
        Some(ready)
    }

    /// Some(None): it was woken, to look whether any are ready.
    fn wait(&self) -> Option<Option<usize>> {
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
            if let Some(event) = events.iter().next() {
                let token = event.token();
                return Some((token != WAKER).then_some(token.0));
            }
        }
        None
    }

    /// Makes those ready whose deadline has passed.
    pub fn expire(&self, now: Instant) {
        let mut lot = lock(&self.lot);
        while let Some(&(deadline, token)) = lot.deadlines.first() {
            if deadline > now {
                break;
            }
            let taken = lot.take(&self.set, token);
            lot.ready.extend(taken);
        }
        if !lot.ready.is_empty() {
            self.waker.wake().ok();
        }
    }

    /// Takes the expendable connection whose deadline comes first.
    pub fn evict(&self) -> Option<T> {
        let mut lot = lock(&self.lot);
        let &(_, token) = lot.expendable.first()?;
        lot.take(&self.set, token)
    }

    /// Whether a parked connection is so.
    pub fn any(&self, is_so: impl Fn(&T) -> bool) -> bool {
        lock(&self.lot).parked.values().any(|spot| is_so(&spot.connection))
    }

    /// Gives back what is parked and parks nothing any more; [`next`](Self::next) ends for all.
    pub fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Release);
        self.waker.wake().ok();
        let mut lot = lock(&self.lot);
        lot.deadlines.clear();
        lot.expendable.clear();
        let ready: Vec<T> = lot.ready.drain(..).collect();
        let parked = lot.parked.drain().map(|(_, spot)| spot.connection);
        ready.into_iter().chain(parked).collect()
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
        fn is_ready(&self) -> bool {
            false
        }
        fn is_expendable(&self) -> bool {
            self.1.is_some()
        }
    }

    fn parked(parking: &Parking<Waiting>, deadlines: &[Option<Instant>]) -> Vec<UnixStream> {
        let park = |deadline: &Option<Instant>| {
            let (ours, client) = UnixStream::pair().unwrap();
            parking.park(Waiting(ours, *deadline)).ok().unwrap();
            client
        };
        deadlines.iter().map(park).collect()
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
    fn those_whose_time_is_up_are_ready_and_no_others() {
        let parking = Parking::new().unwrap();
        let now = Instant::now();
        let clients = parked(
            &parking,
            &[None, Some(now), Some(now), Some(now + Duration::from_secs(60))],
        );
        parking.expire(now);
        assert_eq!(parking.next().unwrap().1, Some(now));
        assert_eq!(parking.next().unwrap().1, Some(now));
        parking.expire(now);
        assert_eq!(parking.close().len(), 2);
        assert!(parking.next().is_none());
        let (ours, _client) = UnixStream::pair().unwrap();
        assert!(matches!(parking.park(Waiting(ours, None)), Err((_, Refusal::Closed))));
        drop(clients);
    }

    #[test]
    fn the_first_to_be_sent_away_makes_room_for_others() {
        let parking = Parking::new().unwrap();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let clients = parked(&parking, &[None, Some(later), Some(now)]);
        assert_eq!(parking.evict().unwrap().1, Some(now));
        assert_eq!(parking.evict().unwrap().1, Some(later));
        assert!(parking.evict().is_none());
        assert_eq!(parking.close().len(), 1);
        drop(clients);
    }
}
