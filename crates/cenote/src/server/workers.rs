//! The threads that serve connections: as many as have something to do, and a few that wait for work.
//!
//! ```text
//!    waiting ── takes a connection (`Parking::next`) ──► serving ── its client pauses, or leaves ──┐
//!       ▲            the last that waits starts another first                                     │
//!       └──────────────────────── fewer than KEPT wait; else the thread ends ◄────────────────────┘
//! ```
//!
//! Invariants:
//! - While the server runs, one thread at least waits for connections, or is about to: the one that takes a connection
//!   as the last that waits starts the next before it serves.
//! - So a statement that waits, such as for a row lock, keeps no other from its thread: not the one that holds the lock
//!   either.
//! - Where the system has no thread to give, no session ends. The last thread that waits serves those that are inside a
//!   transaction, since others may wait for what they hold; what else is ready is *postponed*, and served in turn as
//!   threads become free. If all threads wait and none can be started, [`relieve`] stops a statement (53000).
//! - A start-up, and a client that is sent away, wait for nothing: the thread that waits serves them itself.
//! - There are never more threads than sessions and [`KEPT`]; sessions are limited.

use super::connection::Connection;
use super::parking::Refusal;
use super::{Service, Shared};
use crate::log;
use cenote_sql::SqlError;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Address space of a thread's stack: it must hold the deepest statement that `sql` lets through, since a stack that
/// overflows takes the process with it. Memory is taken only as deep as statements went.
const STACK_BYTES: usize = 64 << 20;
/// Threads that may wait for work.
const KEPT: usize = 8;
/// Threads that there are at least: one waits while the other serves.
const LEAST: usize = 2;

const INSUFFICIENT_RESOURCES: &str = "53000";
const MORE_THREADS: &str =
    "Raise the limit of processes and threads (ulimit -u, pids.max of the control group), or lower max_connections.";

/// How many threads there are, and what they do.
#[derive(Debug)]
pub struct Workers<T> {
    /// Those that wait for work, or are on their way.
    waiting: AtomicUsize,
    threads: Mutex<usize>,
    gone: Condvar,
    most: usize,
    /// Connections that are ready and wait for a thread.
    postponed: Mutex<VecDeque<T>>,
}

impl<T> Workers<T> {
    /// None yet; `most` at a time.
    pub fn new(most: usize) -> Self {
        Workers {
            waiting: AtomicUsize::new(0),
            threads: Mutex::default(),
            gone: Condvar::new(),
            most: most.max(LEAST),
            postponed: Mutex::default(),
        }
    }

    /// The calling thread waits no longer; says whether it was the last.
    fn leave(&self) -> bool {
        self.waiting.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The calling thread waits again, unless enough others do.
    fn rejoin(&self) -> bool {
        let more = |waiting| (waiting < KEPT).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// The calling thread, which was the last that waited, waits on; `connection` is for another.
    fn postpone(&self, connection: T) {
        lock(&self.postponed).push_back(connection);
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// The connection that was postponed first, if the calling thread, which waits, is not the only one.
    fn take_postponed(&self) -> Option<T> {
        match self.waiting.load(Ordering::Acquire) {
            0 | 1 => None,
            _ => lock(&self.postponed).pop_front(),
        }
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        *lock(&self.threads)
    }

    /// Waits until there is none, so long at most.
    pub fn wait_gone(&self, timeout: Duration) {
        let threads = lock(&self.threads);
        drop(self.gone.wait_timeout_while(threads, timeout, |threads| *threads > 0));
    }

    /// What was postponed, for a server that stops.
    pub fn take_all_postponed(&self) -> VecDeque<T> {
        std::mem::take(&mut *lock(&self.postponed))
    }
}

/// No state behind these locks is ever half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that is counted.
struct Member<S: Service>(Arc<Shared<S>>);

impl<S: Service> Member<S> {
    fn new(shared: &Arc<Shared<S>>) -> io::Result<Self> {
        let mut threads = lock(&shared.workers.threads);
        if *threads >= shared.workers.most {
            return Err(io::Error::other(format!(
                "there are {threads}, as many as there may be"
            )));
        }
        *threads += 1;
        Ok(Member(shared.clone()))
    }
}

impl<S: Service> Drop for Member<S> {
    fn drop(&mut self) {
        *lock(&self.0.workers.threads) -= 1;
        self.0.workers.gone.notify_all();
    }
}

/// Starts the threads that there are at least.
///
/// # Errors
/// The system has none to give.
pub fn start<S: Service>(shared: &Arc<Shared<S>>) -> io::Result<()> {
    (0..LEAST).try_for_each(|_| start_one(shared))
}

fn start_one<S: Service>(shared: &Arc<Shared<S>>) -> io::Result<()> {
    let member = Member::new(shared)?;
    shared.workers.waiting.fetch_add(1, Ordering::AcqRel);
    let builder = thread::Builder::new().name("session".into()).stack_size(STACK_BYTES);
    let started = builder.spawn(move || work(&member.0));
    if started.is_err() {
        shared.workers.waiting.fetch_sub(1, Ordering::AcqRel);
    }
    started.map(drop)
}

fn work<S: Service>(shared: &Arc<Shared<S>>) {
    let workers = &shared.workers;
    while let Some(connection) = workers.take_postponed().or_else(|| shared.parking.next()) {
        if connection.waits_for_nothing() {
            serve(connection, shared);
            continue;
        }
        if workers.leave()
            && let Err(error) = start_one(shared)
            && !connection.in_transaction()
        {
            log_shortage(&error);
            workers.postpone(connection);
            continue;
        }
        serve(connection, shared);
        if !workers.rejoin() {
            return;
        }
    }
}

/// Looked after once a second: starts a thread if none waits, or sessions do. True: it cannot be, and no thread waits.
pub fn relieve<S: Service>(shared: &Arc<Shared<S>>) -> bool {
    let workers = &shared.workers;
    let short = workers.waiting.load(Ordering::Acquire) == 0 || !lock(&workers.postponed).is_empty();
    short && start_one(shared).is_err() && workers.waiting.load(Ordering::Acquire) == 0
}

fn serve<S: Service>(mut connection: Box<Connection<S::Session>>, shared: &Shared<S>) {
    match connection.turn(shared) {
        None => park(connection, shared),
        Some(end) => {
            if let Some(leaving) = connection.end(end) {
                park(leaving, shared);
            }
        }
    }
}

/// Lets a connection wait for its client without a thread.
pub fn park<S: Service>(connection: Box<Connection<S::Session>>, shared: &Shared<S>) {
    match shared.parking.park(connection) {
        Ok(()) => {}
        Err((connection, Refusal::Closed)) => connection.end_by_shutdown(),
        Err((connection, Refusal::System(error))) => connection.end_at_once(cannot_wait(&error).into()),
    }
}

#[cold]
fn log_shortage(error: &io::Error) {
    static LIMITER: log::Limiter = log::Limiter::new();
    if let Some(left_out) = LIMITER.pass() {
        log::error!(
            "no thread for a session that has a statement to run: {error}; it waits for one. {MORE_THREADS} \
             ({left_out} such lines were left out)"
        );
    }
}

/// Why a statement was stopped: [`relieve`].
pub fn no_thread() -> SqlError {
    SqlError::new(
        INSUFFICIENT_RESOURCES,
        "the statement was stopped: all threads of the server wait, and there is none for those that they wait for",
    )
    .with_hint(MORE_THREADS)
}

fn cannot_wait(error: &io::Error) -> SqlError {
    SqlError::new(
        INSUFFICIENT_RESOURCES,
        format!("the system cannot watch the client's socket: {error}"),
    )
    .with_hint("Raise fs.epoll.max_user_watches, or lower max_connections.")
    .fatal()
}
