//! `statement_timeout`: one thread for all sessions, started by the first that asks, stops the statement whose time is
//! up.
//!
//! ```text
//!   begin ─► entry in the queue ──────────► end: the entry leaves, the flag moves on to the next number
//!                 └── time is up: the entry leaves, the flag stops this statement number, or nothing
//! ```
//!
//! Invariants:
//! - There is an entry for each statement that runs with a limit, and no other.
//! - The thread names the statement that it stops; [`CancelFlag`] compares the number and sets the flag as one change.
//! - The thread goes on where it was started: all sessions of a database run under one runtime.

use cenote_base::rt::{self, Condvar, Mutex, MutexGuard, Nanos};
use cenote_engine::CancelFlag;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

/// When an entry is due; a number makes it one of a kind.
type Key = (Nanos, u64);

#[derive(Default)]
struct Queue {
    entries: BTreeMap<Key, (Arc<CancelFlag>, u64)>,
    last: u64,
    /// Until when the thread waits, unless a session wakes it; None: until a session does.
    waits_until: Option<Nanos>,
    over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// A statement that runs with a limit, until this is dropped.
pub struct Watch {
    shared: Arc<Shared>,
    key: Key,
    cancel: Arc<CancelFlag>,
}

impl Watch {
    /// The statement is over: its entry leaves. Whether its time had run out.
    pub fn over(&self) -> bool {
        self.shared.lock().entries.remove(&self.key);
        self.cancel.end_statement()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over();
    }
}

/// The thread that watches statements, if it was needed.
#[derive(Default)]
pub struct Watchdog {
    thread: OnceLock<Arc<Shared>>,
    starting: Mutex<()>,
}

impl Watchdog {
    /// The statement that begins stops after so long, unless the watch is dropped before.
    ///
    /// # Errors
    /// The system has no thread to watch it.
    pub fn watch(&self, millis: u64, cancel: &Arc<CancelFlag>) -> io::Result<Watch> {
        let shared = self.shared()?.clone();
        let statement = cancel.begin_statement();
        let mut queue = shared.lock();
        queue.last += 1;
        let due = Nanos(rt::now().raw().saturating_add(Nanos::from_millis(millis).raw()));
        let key = (due, queue.last);
        queue.entries.insert(key, (cancel.clone(), statement));
        if queue.waits_until.is_none_or(|until| due < until) {
            queue.waits_until = Some(due);
            shared.changed.notify_one();
        }
        drop(queue);
        Ok(Watch {
            shared,
            key,
            cancel: cancel.clone(),
        })
    }

    /// Statements that are watched.
    pub fn watched(&self) -> usize {
        self.thread.get().map_or(0, |shared| shared.lock().entries.len())
    }

    fn shared(&self) -> io::Result<&Arc<Shared>> {
        if let Some(shared) = self.thread.get() {
            return Ok(shared);
        }
        let _one = self.starting.lock();
        if self.thread.get().is_none() {
            let started = start()?;
            return Ok(self.thread.get_or_init(|| started));
        }
        self.shared()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(shared) = self.thread.get() {
            shared.lock().over = true;
            shared.changed.notify_one();
        }
    }
}

fn start() -> io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared::default());
    let its = shared.clone();
    // It ends by itself, when `over` is set.
    drop(rt::try_spawn("statement-timeout", move || run(&its))?);
    Ok(shared)
}

fn run(shared: &Shared) {
    let mut queue = shared.lock();
    while !queue.over {
        let now = rt::now();
        expire_due(&mut queue, now);
        let first = queue.entries.first_key_value().map(|((due, _), _)| *due);
        // Where the entry that woke the thread has left already, it waits all the same: the next statement of its
        // session, whose time is up later, need not wake it.
        queue.waits_until = first.or(queue.waits_until.filter(|until| *until > now));
        queue = match queue.waits_until {
            None => shared.changed.wait(queue),
            Some(due) => shared.changed.wait_timeout(queue, due.since(now)).0,
        };
    }
}

fn expire_due(queue: &mut Queue, now: Nanos) {
    while let Some(first) = queue.entries.first_entry() {
        if first.key().0 > now {
            break;
        }
        let (cancel, statement) = first.remove();
        cancel.expire(statement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_passes_stops_its_statement_and_leaves() {
        let dog = Watchdog::default();
        let flag = Arc::new(CancelFlag::default());
        let late = dog.watch(3_600_000, &Arc::default()).unwrap();
        let watch = dog.watch(1, &flag).unwrap();
        while !flag.is_set() || dog.watched() != 1 {
            rt::sleep(Nanos::from_millis(1));
        }
        assert!(watch.over() && !flag.is_set());
        drop(late);
        assert_eq!(dog.watched(), 0);
    }

    /// Entries stayed until their time was up: with a limit of an hour, those of all statements of an hour.
    #[test]
    fn statements_that_ended_are_not_watched() {
        let dog = Watchdog::default();
        let flag = Arc::new(CancelFlag::default());
        for _ in 0..100_000 {
            let watch = dog.watch(3_600_000, &flag).unwrap();
            assert_eq!(dog.watched(), 1);
            assert!(!watch.over());
        }
        assert_eq!(dog.watched(), 0);
    }
}
