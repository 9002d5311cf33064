//! `statement_timeout`: one thread for all sessions, started by the first that asks, sets the cancel flag of a statement whose time is up.

use super::Session;
use crate::error::{Result, SqlError, code};
use cenote_engine::CancelFlag;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const EXPIRED: u8 = 2;

/// A statement that is watched.
pub struct Watch(AtomicU8);

type Entry = (Reverse<Instant>, u64);

#[derive(Default)]
struct Queue {
    times: BinaryHeap<Entry>,
    watches: std::collections::HashMap<u64, (Arc<Watch>, Arc<CancelFlag>)>,
    next: u64,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The thread that watches statements, if it was needed.
#[derive(Default)]
pub struct Watchdog(OnceLock<Arc<Shared>>);

impl Watchdog {
    fn watch(&self, millis: u64, cancel: Arc<CancelFlag>) -> Arc<Watch> {
        let shared = self.0.get_or_init(start);
        let watch = Arc::new(Watch(AtomicU8::new(RUNNING)));
        let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let id = queue.next;
        queue.next += 1;
        queue.watches.insert(id, (watch.clone(), cancel));
        queue
            .times
            .push((Reverse(Instant::now() + Duration::from_millis(millis)), id));
        shared.changed.notify_one();
        watch
    }
}

/// The thread ends when the database does: it holds only a weak reference.
fn start() -> Arc<Shared> {
    let shared = Arc::new(Shared {
        queue: Mutex::default(),
        changed: Condvar::new(),
    });
    let weak = Arc::downgrade(&shared);
    let spawned = std::thread::Builder::new()
        .name("statement-timeout".into())
        .spawn(move || {
            while let Some(shared) = weak.upgrade() {
                step(&shared);
            }
        });
    drop(spawned);
    shared
}

/// Ends what is due, then waits for the next (a while at most).
fn step(shared: &Shared) {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    while let Some((Reverse(time), id)) = queue.times.peek().copied() {
        if time > now {
            break;
        }
        queue.times.pop();
        if let Some((watch, cancel)) = queue.watches.remove(&id)
            && watch
                .0
                .compare_exchange(RUNNING, EXPIRED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            cancel.set();
        }
    }
    let wait = queue
        .times
        .peek()
        .map_or(Duration::from_millis(200), |(Reverse(time), _)| {
            time.saturating_duration_since(now)
        });
    drop(shared.changed.wait_timeout(queue, wait.min(Duration::from_millis(200))));
}

impl Session {
    /// A statement begins: it can be cancelled wherever it waits. Starts its clock, if `statement_timeout` is set.
    pub(super) fn watch(&self) -> Option<Arc<Watch>> {
        self.sql.engine().heed(&self.env.cancel);
        if self.statement_timeout_ms == 0 {
            return None;
        }
        Some(
            self.sql
                .watchdog()
                .watch(self.statement_timeout_ms, self.env.cancel.clone()),
        )
    }

    /// Stops the clock; a cancel that it caused says so.
    pub(super) fn unwatch(&self, watch: Option<Arc<Watch>>, done: Result<()>) -> Result<()> {
        self.sql.engine().heed_nothing();
        let Some(watch) = watch else { return done };
        let expired = watch
            .0
            .compare_exchange(RUNNING, ENDED, Ordering::AcqRel, Ordering::Relaxed)
            .is_err();
        match done {
            Err(error) if expired && error.code() == code::QUERY_CANCELED => Err(SqlError::new(
                code::QUERY_CANCELED,
                "canceling statement due to statement timeout",
            )),
            done => done,
        }
    }
}
