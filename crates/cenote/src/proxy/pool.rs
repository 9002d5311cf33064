//! The sessions of one server: so many at a time, in turns.
//!
//! ```text
//! take ── waits for a permit, first come first served ──► idle session of the user, the client's last if it is there
//!                                                     └─► or a new one, for which an idle one of another user may go
//! give back ── idle, for ten seconds at most       retire ── the server is no longer one of the directory's
//! ```
//!
//! Invariants: a session in use has a permit, but for those of blocks that go on behind a switch while all permits are
//! taken; sessions with permits and idle ones together are no more than permits.

use super::backend::{Backend, Failure};
use super::counted::Counted;
use super::directory::ServerAt;
use super::passwords::Users;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant as Deadline;

/// An idle session is closed after this time: a server with sessions does not pause, and a new one costs a millisecond.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// A server that did not let the proxy in is not asked again for so long, where there is another.
const AVOIDED_FOR: Duration = Duration::from_millis(500);

/// A server has no room for one more session.
pub const TOO_MANY_CONNECTIONS: &str = "53300";

/// Why there is no session.
#[derive(Debug)]
pub enum NoSession {
    /// The time is over.
    Busy,
    /// The server is none of the database's any more.
    Retired,
    /// It was asked.
    Failed(Failure),
}

/// The sessions of a server.
pub struct Pool {
    /// `HOST:PORT`.
    pub address: String,
    /// The number of its database; zero: that is not known.
    database: u128,
    /// Whether it is a reader.
    pub is_reader: bool,
    size: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<HashMap<String, Vec<Backend>>>,
    waiting: AtomicUsize,
    retired: watch::Sender<bool>,
    failed_at: Mutex<Option<Instant>>,
}

/// A session in use; dropped, it is closed.
pub struct Lease {
    backend: Backend,
    user: String,
    /// Where it belongs.
    pub pool: Arc<Pool>,
    /// It is used for a read that a reader may carry out.
    pub reading: Option<Counted>,
    /// None: beyond the pool's size.
    _permit: Option<OwnedSemaphorePermit>,
}

/// One that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// Of a server, with no session yet.
    pub fn new(server: &ServerAt, is_reader: bool, size: usize) -> Pool {
        Pool {
            address: server.address.clone(),
            database: server.database,
            is_reader,
            size,
            permits: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            waiting: AtomicUsize::new(0),
            retired: watch::Sender::new(false),
            failed_at: Mutex::default(),
        }
    }

    /// A session of a user, the one that `client` had last if it is there.
    ///
    /// # Errors
    /// [`NoSession`].
    pub async fn take(
        self: &Arc<Self>,
        user: &str,
        client: u64,
        users: Option<&Users>,
        until: Deadline,
    ) -> Result<Lease, NoSession> {
        let permit = self.permit(until).await?;
        let backend = match self.take_idle(user, client) {
            Some(backend) => backend,
            None => self.connect(user, users).await?,
        };
        self.lend(backend, user, Some(permit))
    }

    /// A session for a block that goes on: clients that have all others may wait for it, so it waits for none.
    ///
    /// # Errors
    /// [`NoSession`].
    pub async fn take_beyond(self: &Arc<Self>, user: &str, users: Option<&Users>) -> Result<Lease, NoSession> {
        let backend = self.connect(user, users).await?;
        self.lend(backend, user, self.permits.clone().try_acquire_owned().ok())
    }

    fn lend(
        self: &Arc<Self>,
        backend: Backend,
        user: &str,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Lease, NoSession> {
        if *self.retired.borrow() {
            return Err(NoSession::Retired);
        }
        Ok(Lease {
            backend,
            user: user.to_owned(),
            pool: self.clone(),
            reading: None,
            _permit: permit,
        })
    }

    async fn permit(self: &Arc<Self>, until: Deadline) -> Result<OwnedSemaphorePermit, NoSession> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let mut retired = self.retired.subscribe();
        tokio::select! {
            biased;
            _ = retired.wait_for(|retired| *retired) => Err(NoSession::Retired),
            permit = tokio::time::timeout_at(until, self.permits.clone().acquire_owned()) => match permit {
                Ok(Ok(permit)) => Ok(permit),
                Ok(Err(_)) => Err(NoSession::Retired),
                Err(_) => Err(NoSession::Busy),
            },
        }
    }

    fn take_idle(&self, user: &str, client: u64) -> Option<Backend> {
        let mut idle = lock(&self.idle);
        let sessions = idle.get_mut(user)?;
        let own = sessions.iter().position(|backend| backend.owner == client);
        let mut next = own.or(sessions.len().checked_sub(1));
        while let Some(at) = next {
            let backend = sessions.swap_remove(at);
            if !backend.is_gone() {
                return Some(backend);
            }
            next = sessions.len().checked_sub(1);
        }
        None
    }

    async fn connect(&self, user: &str, users: Option<&Users>) -> Result<Backend, NoSession> {
        self.make_room();
        let mut retired = self.retired.subscribe();
        // A server that begins anew takes connections, and answers none for long.
        let connected = tokio::select! {
            biased;
            () = async { drop(retired.wait_for(|retired| *retired).await) } => return Err(NoSession::Retired),
            connected = Backend::connect(&self.address, user, users) => connected,
        };
        let connected = match connected {
            // It has left the database to another, which the directory is about to say.
            Ok(backend) if !backend.is_of(self.database) => Err(Failure::Gone(format!(
                "{} is a server of another database now",
                self.address
            ))),
            Ok(backend) if backend.is_readers() != self.is_reader => {
                Err(Failure::Gone("it is no longer what it was (writer, reader)".into()))
            }
            connected => connected,
        };
        let fails_all = match &connected {
            Ok(_) => false,
            Err(Failure::Gone(_)) => true,
            Err(Failure::Refused(refusal)) => refusal.code == TOO_MANY_CONNECTIONS,
        };
        *lock(&self.failed_at) = fails_all.then(Instant::now);
        connected.map_err(NoSession::Failed)
    }

    /// One idle session fewer, where there are as many as may be.
    fn make_room(&self) {
        let mut idle = lock(&self.idle);
        let count: usize = idle.values().map(Vec::len).sum();
        if count + self.in_use() > self.size
            && let Some(sessions) = idle.values_mut().max_by_key(|sessions| sessions.len())
            && !sessions.is_empty()
        {
            sessions.remove(0);
        }
    }

    fn give_back(&self, user: &str, mut backend: Backend) {
        let says_more = backend.inbound.len() > 0;
        if *self.retired.borrow() || backend.is_spoilt || backend.holds || says_more {
            return;
        }
        backend.inbound.shrink();
        backend.idle_since = Instant::now();
        let mut idle = lock(&self.idle);
        match idle.get_mut(user) {
            Some(sessions) => sessions.push(backend),
            None => drop(idle.insert(user.to_owned(), vec![backend])),
        }
    }

    /// The server is gone: sessions in use are told, idle ones closed.
    pub fn retire(&self) {
        self.retired.send_replace(true);
        self.permits.close();
        lock(&self.idle).clear();
    }

    /// Tells when it is retired.
    pub fn retirement(&self) -> watch::Receiver<bool> {
        self.retired.subscribe()
    }

    /// Whether the last try to enter it failed just now.
    pub fn is_avoided(&self) -> bool {
        self.has_failed_within(AVOIDED_FOR)
    }

    /// Whether the last try to enter it failed, so long ago at most.
    pub fn has_failed_within(&self, time: Duration) -> bool {
        lock(&self.failed_at).is_some_and(|at| at.elapsed() < time)
    }

    /// Closes idle sessions that are old or gone.
    pub fn sweep(&self) {
        let mut idle = lock(&self.idle);
        let stays = |backend: &mut Backend| backend.idle_since.elapsed() < IDLE_TIME_MAX && !backend.is_gone();
        idle.values_mut().for_each(|sessions| sessions.retain_mut(stays));
        idle.retain(|_, sessions| !sessions.is_empty());
    }

    /// Sessions in use.
    pub fn in_use(&self) -> usize {
        self.size.saturating_sub(self.permits.available_permits())
    }

    /// Sessions in use and idle ones.
    pub fn open(&self) -> usize {
        self.in_use() + lock(&self.idle).values().map(Vec::len).sum::<usize>()
    }

    /// Clients that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sessions in use and clients that wait for one.
    pub fn load(&self) -> usize {
        self.in_use() + self.waiting()
    }
}

impl Lease {
    /// The session goes back to its pool.
    pub fn give_back(self) {
        let Lease {
            backend,
            user,
            pool,
            reading: _,
            _permit,
        } = self;
        if _permit.is_some() {
            pool.give_back(&user, backend);
        }
    }
}

impl Deref for Lease {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        &self.backend
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Backend {
        &mut self.backend
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
