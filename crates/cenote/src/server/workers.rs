//! The threads that serve connections: as many as have something to do, and a few that wait for work.
//!
//! ```text
//!    waiting ── takes a connection (`Parking::next`) ──► serving ── its client pauses, or leaves ──┐
//!       ▲            the last that waits starts another first                                     │
//!       └──────────────────────── fewer than KEPT wait; else the thread ends ◄────────────────────┘
//! ```
//!
//! Invariants:
//! - While the server runs, one thread at least waits for connections, or is about to: the one that takes a connection as
//!   the last that waits starts the next before it serves. Where the system has no thread to give, that connection ends
//!   (53000), which rolls back what it held.
//! - So a statement that waits, such as for a row lock, keeps no other from its thread: not the one that holds the lock either.
//! - There are never more threads than connections and [`KEPT`]; connections are limited.

use super::connection::Connection;
use super::parking::Refusal;
use super::{Service, Shared};
use cenote_sql::SqlError;
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

const INSUFFICIENT_RESOURCES: &str = "53000";

/// How many threads there are, and what they do.
#[derive(Debug, Default)]
pub struct Workers {
    /// Those that wait for work, or are on their way.
    waiting: AtomicUsize,
    threads: Mutex<usize>,
    gone: Condvar,
}

impl Workers {
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

    /// How many there are.
    pub fn threads(&self) -> usize {
        *self.lock()
    }

    /// Waits until there is none, so long at most.
    pub fn wait_gone(&self, patience: Duration) {
        drop(
            self.gone
                .wait_timeout_while(self.lock(), patience, |threads| *threads > 0),
        );
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that is counted.
struct Member<S: Service>(Arc<Shared<S>>);

impl<S: Service> Member<S> {
    fn new(shared: &Arc<Shared<S>>) -> Self {
        *shared.workers.lock() += 1;
        Member(shared.clone())
    }
}

impl<S: Service> Drop for Member<S> {
    fn drop(&mut self) {
        *self.0.workers.lock() -= 1;
        self.0.workers.gone.notify_all();
    }
}

/// Starts a thread that waits for work.
///
/// # Errors
/// The system has none to give.
pub fn start<S: Service>(shared: &Arc<Shared<S>>) -> io::Result<()> {
    let member = Member::new(shared);
    shared.workers.waiting.fetch_add(1, Ordering::AcqRel);
    let builder = thread::Builder::new().name("session".into()).stack_size(STACK_BYTES);
    let started = builder.spawn(move || work(&member.0));
    if started.is_err() {
        shared.workers.waiting.fetch_sub(1, Ordering::AcqRel);
    }
    started.map(drop)
}

fn work<S: Service>(shared: &Arc<Shared<S>>) {
    while let Some(connection) = shared.parking.next() {
        match shared.workers.leave().then(|| start(shared)) {
            Some(Err(error)) => connection.end(no_thread(&error).into()),
            _ => serve(connection, shared),
        }
        if !shared.workers.rejoin() {
            return;
        }
    }
}

fn serve<S: Service>(mut connection: Box<Connection<S::Session>>, shared: &Shared<S>) {
    match connection.turn(shared) {
        None => park(connection, shared),
        Some(end) => connection.end(end),
    }
}

/// Lets a connection wait for its client without a thread.
pub fn park<S: Service>(connection: Box<Connection<S::Session>>, shared: &Shared<S>) {
    match shared.parking.park(connection) {
        Ok(()) => {}
        Err((connection, Refusal::Closed)) => connection.end_by_shutdown(),
        Err((connection, Refusal::System(error))) => connection.end(cannot_wait(&error).into()),
    }
}

fn no_thread(error: &io::Error) -> SqlError {
    SqlError::new(INSUFFICIENT_RESOURCES, format!("the system has no thread for the session: {error}"))
        .with_hint("Raise the limit of processes and threads (ulimit -u, the pids limit of the control group), or lower max_connections.")
        .fatal()
}

fn cannot_wait(error: &io::Error) -> SqlError {
    SqlError::new(
        INSUFFICIENT_RESOURCES,
        format!("the system cannot watch the client's socket: {error}"),
    )
    .with_hint("Raise fs.epoll.max_user_watches, or lower max_connections.")
    .fatal()
}
