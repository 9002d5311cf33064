//! What all clients of a proxy share.

use super::backend::Greeting;
use super::directory::{Directory, Need, ServerAt, Servers};
use super::passwords::Users;
use super::pool::Pool;
use super::state::{Start, Values};
use super::statements::Interned;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{RwLock, watch};

/// Texts that are known to be the writer's, at most.
const WRITERS_TEXTS_MAX: usize = 10_000;
/// Starts of clients that are remembered, at most.
const STARTS_MAX: usize = 1000;

/// Which reads may go to readers, and what they see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Reads {
    /// What the client itself has committed, at least.
    Session,
    /// All that was acknowledged before.
    Strong,
    /// What the reader has.
    Any,
    /// None: the writer answers all.
    Writer,
}

/// How a proxy behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sessions of a server.
    pub pool_size: usize,
    /// Clients at a time.
    pub max_connections: usize,
    /// How long a client waits for a session, or for a writer.
    pub wait: Duration,
    /// See there.
    pub reads: Reads,
}

/// A server's session that carries out a client's statement: where, its number and secret.
pub type Target = RwLock<Option<(String, [u8; 8])>>;

/// A client as CancelRequest finds it.
pub struct Known {
    /// What the request must know besides the number.
    pub secret: i32,
    /// Where its statement is. Read while a request is on its way: until then the session stays the client's.
    pub target: Arc<Target>,
}

/// A start that a server has accepted: what the client began with, what that means, what it is told.
pub type Accepted = (Start, Arc<Values>, Greeting);

/// See the module.
pub struct Shared {
    /// How it behaves.
    pub options: Options,
    /// Where servers are.
    pub directory: Arc<dyn Directory>,
    /// Users that may enter; None: each client of this machine.
    pub users: Option<Users>,
    /// Prepared statements.
    pub interned: Interned,
    /// Set when no more clients are served.
    pub stopping: watch::Sender<bool>,
    /// Clients that are connected, with those that have no session yet.
    pub connections: Arc<AtomicUsize>,
    /// Clients that wait for a writer.
    pub without_writer: AtomicUsize,
    /// Reads that readers may carry out, under way or waiting for a session.
    pub reads: Arc<AtomicUsize>,
    /// The last client's number.
    pub last_client: AtomicU64,
    /// Clients by the number that they are told.
    pub clients: Mutex<HashMap<i32, Known>>,
    pools: Mutex<HashMap<(ServerAt, bool), Arc<Pool>>>,
    writers_texts: Mutex<HashSet<u64>>,
    starts: Mutex<HashMap<(String, Start), Accepted>>,
}

impl Shared {
    /// With no client, and no session of a server.
    pub fn new(options: Options, directory: Arc<dyn Directory>, users: Option<Users>) -> Shared {
        Shared {
            options,
            directory,
            users,
            interned: Interned::default(),
            stopping: watch::Sender::new(false),
            connections: Arc::default(),
            without_writer: AtomicUsize::new(0),
            reads: Arc::default(),
            last_client: AtomicU64::new(0),
            clients: Mutex::default(),
            pools: Mutex::default(),
            writers_texts: Mutex::default(),
            starts: Mutex::default(),
        }
    }

    /// The sessions of a server of the directory.
    pub fn pool(&self, server: &ServerAt, is_reader: bool) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        let pool = pools.entry((server.clone(), is_reader));
        let new = || Arc::new(Pool::new(server, is_reader, self.options.pool_size));
        pool.or_insert_with(new).clone()
    }

    /// All there are, by address.
    pub fn all_pools(&self) -> Vec<Arc<Pool>> {
        let mut pools: Vec<_> = lock(&self.pools).values().cloned().collect();
        pools.sort_by(|a, b| (a.is_reader, &a.address).cmp(&(b.is_reader, &b.address)));
        pools
    }

    /// What clients need just now.
    pub fn need(&self) -> Need {
        Need {
            waiting: self.without_writer.load(Ordering::Relaxed),
            load: self.reads.load(Ordering::Relaxed),
        }
    }

    /// Retires the sessions of servers that are none of these.
    pub fn retire_others(&self, servers: &Servers) {
        lock(&self.pools).retain(|(server, is_reader), pool| {
            let stays = match is_reader {
                true => servers.readers.contains(server),
                false => servers.writer.as_ref() == Some(server),
            };
            if !stays {
                pool.retire();
            }
            stays
        });
    }

    /// Whether a reader has refused one of these texts.
    pub fn are_writers(&self, texts: &[u64]) -> bool {
        let known = lock(&self.writers_texts);
        texts.iter().any(|text| known.contains(text))
    }

    /// A reader has refused these texts.
    pub fn note_writers(&self, texts: &[u64]) {
        let mut known = lock(&self.writers_texts);
        if known.len() + texts.len() > WRITERS_TEXTS_MAX {
            known.clear();
        }
        known.extend(texts);
    }

    /// What a server made of such a start before.
    pub fn accepted(&self, user: &str, start: &Start) -> Option<Accepted> {
        lock(&self.starts).get(&(user.to_owned(), start.clone())).cloned()
    }

    /// A server has accepted a start.
    pub fn note_accepted(&self, user: &str, accepted: Accepted) {
        let mut starts = lock(&self.starts);
        if starts.len() >= STARTS_MAX {
            starts.clear();
        }
        starts.insert((user.to_owned(), accepted.0.clone()), accepted);
    }
}

/// Locks, whatever has become of the thread before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
