//! How threads serve connections in turn: which thread takes which connection, and what happens without a thread.
//! The invariants are those of `workers`.

use super::connection::Connection;
use super::context::Context;
use super::parking::{Parking, Refusal};
use super::workers::{INSUFFICIENT_RESOURCES, LEAST, MORE_THREADS, STACK_BYTES, Workers};
use crate::log;
use cenote_sql::SqlError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;

/// What the threads of a server share.
pub struct Shared {
    /// What connections use.
    pub context: Context,
    /// Open connections.
    pub connections: Arc<AtomicUsize>,
    /// Connections without a thread.
    pub parking: Parking<Box<Connection>>,
    /// The threads.
    pub workers: Workers<Box<Connection>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// A thread that is counted.
struct Member(Arc<Shared>);

impl Member {
    fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        shared.workers.enter()?;
        Ok(Member(shared.clone()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.workers.exit();
    }
}

/// Starts the threads that there are at least.
///
/// # Errors
/// The system has none to give.
pub fn start(shared: &Arc<Shared>) -> io::Result<()> {
    (0..LEAST).try_for_each(|_| start_one(shared))
}

fn start_one(shared: &Arc<Shared>) -> io::Result<()> {
    let member = Member::new(shared)?;
    shared.workers.announce();
    let builder = thread::Builder::new().name("session".into()).stack_size(STACK_BYTES);
    let started = builder.spawn(move || work(&member.0));
    if started.is_err() {
        shared.workers.withdraw();
    }
    started.map(drop)
}

fn work(shared: &Arc<Shared>) {
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
pub fn relieve(shared: &Arc<Shared>) -> bool {
    let workers = &shared.workers;
    let short = workers.none_waits() || workers.is_behind();
    short && start_one(shared).is_err() && workers.none_waits()
}

fn serve(mut connection: Box<Connection>, shared: &Shared) {
    match connection.turn(&shared.context) {
        None => park(connection, shared),
        Some(end) => {
            if let Some(leaving) = connection.end(end) {
                park(leaving, shared);
            }
        }
    }
}

/// Lets a connection wait for its client without a thread.
pub fn park(connection: Box<Connection>, shared: &Shared) {
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

fn cannot_wait(error: &io::Error) -> SqlError {
    SqlError::new(
        INSUFFICIENT_RESOURCES,
        format!("the system cannot watch the client's socket: {error}"),
    )
    .with_hint("Raise fs.epoll.max_user_watches, or lower max_connections.")
    .fatal()
}
