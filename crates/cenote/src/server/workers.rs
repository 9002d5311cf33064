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
//!   threads become free. If all threads wait and none can be started, `turns::relieve` stops a statement (53000).
//! - A start-up, and a client that is sent away, wait for nothing: the thread that waits serves them itself.
//! - There are never more threads than sessions and [`KEPT`]; sessions are limited.

use cenote_sql::SqlError;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Address space of a thread's stack: it must hold the deepest statement that `sql` lets through, since a stack that
/// overflows takes the process with it. Memory is taken only as deep as statements went.
pub const STACK_BYTES: usize = 64 << 20;
/// Threads that may wait for work.
pub const KEPT: usize = 8;
/// Threads that there are at least: one waits while the other serves.
pub const LEAST: usize = 2;

pub const INSUFFICIENT_RESOURCES: &str = "53000";
pub const MORE_THREADS: &str =
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
    pub fn leave(&self) -> bool {
        self.waiting.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The calling thread waits again, unless enough others do.
    pub fn rejoin(&self) -> bool {
        let more = |waiting| (waiting < KEPT).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// The calling thread, which was the last that waited, waits on; `connection` is for another.
    pub fn postpone(&self, connection: T) {
        lock(&self.postponed).push_back(connection);
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// The connection that was postponed first, if the calling thread, which waits, is not the only one.
    pub fn take_postponed(&self) -> Option<T> {
        match self.waiting.load(Ordering::Acquire) {
            0 | 1 => None,
            _ => lock(&self.postponed).pop_front(),
        }
    }

    /// Counts a thread that begins.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub fn enter(&self) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        if *threads >= self.most {
            return Err(io::Error::other(format!(
                "there are {threads}, as many as there may be"
            )));
        }
        *threads += 1;
        Ok(())
    }

    /// Counts a thread that ends.
    pub fn exit(&self) {
        let mut threads = lock(&self.threads);
        assert!(*threads > 0, "a thread that ends was counted when it began");
        *threads -= 1;
        self.gone.notify_all();
    }

    /// A thread that is about to start will wait for work.
    pub fn announce(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// The announced thread could not be started.
    pub fn withdraw(&self) {
        let before = self.waiting.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a thread that is withdrawn was announced");
    }

    /// No thread waits for work.
    pub fn none_waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Connections wait for a thread.
    pub fn is_behind(&self) -> bool {
        !lock(&self.postponed).is_empty()
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

/// Why a statement was stopped: `turns::relieve`.
pub fn no_thread() -> SqlError {
    SqlError::new(
        INSUFFICIENT_RESOURCES,
        "the statement was stopped: all threads of the server wait, and there is none for those that they wait for",
    )
    .with_hint(MORE_THREADS)
}
