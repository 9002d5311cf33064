//! Starting threads, waiting for their results, and spinning politely.

use super::{Event, Join, Mutex, Nanos, entered, os, relax, seamed, sleep, yield_now};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a thread panicked with.
pub type Panic = Box<dyn Any + Send + 'static>;

struct Outcome<T> {
    done: Event,
    value: Mutex<Option<Result<T, Panic>>>,
}

/// A started thread. Dropping it lets the thread run on by itself.
pub struct JoinHandle<T> {
    outcome: Arc<Outcome<T>>,
    thread: Box<dyn Join>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end; its value, or what it panicked with.
    ///
    /// # Errors
    /// What the thread panicked with.
    pub fn join(self) -> Result<T, Panic> {
        self.outcome.done.wait();
        self.thread.join();
        self.outcome
            .value
            .lock()
            .take()
            .expect("a thread sets its value before its event")
    }

    /// Whether the body has ended.
    pub fn is_finished(&self) -> bool {
        self.outcome.done.is_set()
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Processors that the process may use; simulated processes have two.
pub fn cores() -> usize {
    if seamed() { 2 } else { os::cores() }
}

/// Starts a thread called `name` (15 bytes of it are seen in tools).
///
/// # Panics
/// If the system has no more threads to give: for the few threads that a database has by design.
/// Sessions and the like use [`try_spawn`].
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    try_spawn(name, body).expect("the system refused a background thread")
}

/// Starts a thread called `name`; an error when the system, or [`super::MAX_THREADS`], has none
/// to give.
///
/// # Errors
/// If all thread slots are taken, or the runtime starts no thread.
pub fn try_spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let outcome = Arc::new(Outcome {
        done: Event::new(),
        value: Mutex::new(None),
    });
    let theirs = Arc::clone(&outcome);
    let body = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(body));
        let before = theirs.value.lock().replace(result);
        assert!(before.is_none(), "a thread ends once");
        theirs.done.set();
    });
    let thread = if seamed() {
        entered().spawn(name, body)?
    } else {
        os::spawn(name, body)?
    };
    Ok(JoinHandle { outcome, thread })
}

/// A spinning loop's timeout: pauses that double, then turns given away, then, in a loop that calls [`Spin::wait`],
/// naps that double.
///
/// ```
/// # use cenote_base::rt::{Spin, atomic::{AtomicBool, Ordering}};
/// # let ready = AtomicBool::new(true);
/// let mut spin = Spin::new();
/// while !ready.load(Ordering::Acquire) {
///     spin.turn();
/// }
/// ```
#[derive(Debug, Default)]
pub struct Spin(u32);

const _: () = assert!(
    Spin::NAP.0 << Spin::DOUBLINGS <= 2_000_000,
    "the longest nap takes 2 ms at most"
);

impl Spin {
    /// Turns before the processor is given away.
    const PAUSES: u32 = 6;
    /// Turns given away before the first nap: together some 50 us, longer than nearly all waits whose other side has
    /// its processor.
    const GIVEN: u32 = 64;
    /// The first nap, and how often naps double: up to 1.28 ms.
    const NAP: Nanos = Nanos::from_micros(20);
    const DOUBLINGS: u32 = 6;

    /// Fresh.
    pub const fn new() -> Self {
        Self(0)
    }

    /// One turn.
    pub fn turn(&mut self) {
        if self.0 < Self::PAUSES {
            for _ in 0..1 << self.0 {
                relax();
            }
            self.0 += 1;
        } else {
            yield_now();
        }
    }

    /// One turn of a loop that waits for another thread's next few steps. That thread may have lost its processor in
    /// the middle of them: then this one naps, and does not burn its own for as long. No nap is much longer than the
    /// wait before it, so the wait is at most about twice as long as it had to be.
    pub fn wait(&mut self) {
        let naps = match self.0.checked_sub(Self::PAUSES) {
            Some(given) => given.checked_sub(Self::GIVEN),
            None => return self.turn(),
        };
        match naps {
            Some(naps) => {
                assert!(naps <= Self::DOUBLINGS, "naps double {} times at most", Self::DOUBLINGS);
                sleep(Nanos(Self::NAP.0 << naps));
            }
            None => yield_now(),
        }
        self.0 = (self.0 + 1).min(Self::PAUSES + Self::GIVEN + Self::DOUBLINGS);
    }

    /// Whether timeout is out, and sleeping is better than another turn.
    pub const fn is_out(&self) -> bool {
        self.0 >= Self::PAUSES
    }
}
