//! The waiters of a group commit, and the lead that passes from one to the next.
//!
//! Of the threads that wait for durability one *leads*. The others queue; each has a word of its own to sleep on. When
//! the lead's flush ends, it hands the lead to the first waiter that is not covered, then wakes the covered ones.
//!
//! Invariants:
//! - at most one thread leads: `led` is true from the moment a thread takes the lead until it passes the lead on;
//! - a thread is in the queue once at most, and its word leaves `WAITING` or `SLEEPING` only after it left the queue.

use cenote_base::Lsn;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::{self, Local, Mutex, Nanos};

use super::sync_spinner::SyncSpinner;

/// Between two looks of a waiter at how far the log has come.
pub(super) const LOOK: Nanos = Nanos::from_secs(5);
/// Looks, a minute, after which a waiter gives up where nothing at all has become durable: the lead's write or sync
/// does not come back. The waiter counts looks, so that a suspended machine does not look like a dead drive.
pub(super) const LOOKS_MAX: u64 = 12;

const WAITING: u32 = 0;
const SLEEPING: u32 = 1;
const DONE: u32 = 2;
const LEAD: u32 = 3;

#[derive(Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    words: Local<Word>,
    pub sync_spinner: SyncSpinner,
}

#[derive(Default)]
struct Word(AtomicU32);

#[derive(Default)]
struct Queue {
    led: bool,
    waiting: Vec<Waiter>,
}

struct Waiter {
    lsn: Lsn,
    slot: usize,
}

/// What a waiter does next.
pub(crate) enum Turn {
    /// Flush, then [`Waiters::pass_on`].
    Lead,
    /// Look whether it is durable now.
    Look,
    /// The log makes no progress.
    Stalled,
}

/// How far the log had come when a waiter looked, and how many looks ago that was new.
pub(super) struct Progress {
    durable: Lsn,
    looks: u64,
}

impl Progress {
    pub fn new(durable: Lsn) -> Progress {
        Progress { durable, looks: 0 }
    }

    /// Notes a look; whether the log has come no further for too long.
    pub fn is_stalled(&mut self, durable: Lsn) -> bool {
        if durable != self.durable {
            *self = Progress::new(durable);
        }
        self.looks += 1;
        self.looks >= LOOKS_MAX
    }
}

impl Waiters {
    /// Leads if no thread does, else waits until this thread gets the lead or `lsn` is covered. It asks `covered` under
    /// the queue's lock, which the lead takes after each flush, and `stalled` now and then while it sleeps.
    pub fn enter(&self, lsn: Lsn, covered: impl Fn() -> bool, stalled: impl FnMut() -> bool) -> Turn {
        let slot = rt::thread_slot();
        let word = &self.words.of(slot).0;
        {
            let mut queue = self.queue.lock();
            if covered() {
                return Turn::Look;
            }
            if !queue.led {
                queue.led = true;
                return Turn::Lead;
            }
            word.store(WAITING, Ordering::Relaxed);
            queue.waiting.push(Waiter { lsn, slot });
        }
        self.await_word(slot, stalled)
    }

    /// Whether a thread leads: a flush is under way.
    pub fn is_led(&self) -> bool {
        self.queue.lock().led
    }

    /// Leads if no thread does; does not wait.
    pub fn try_lead(&self) -> bool {
        let mut queue = self.queue.lock();
        !std::mem::replace(&mut queue.led, true)
    }

    /// Takes the waiter of `slot` out of the queue; false if it has been signalled already.
    fn leave(&self, slot: usize) -> bool {
        let mut queue = self.queue.lock();
        let before = queue.waiting.len();
        queue.waiting.retain(|waiter| waiter.slot != slot);
        queue.waiting.len() < before
    }

    fn await_word(&self, slot: usize, mut stalled: impl FnMut() -> bool) -> Turn {
        let word = &self.words.of(slot).0;
        self.sync_spinner.spin(|| word.load(Ordering::Acquire) == WAITING);
        if word
            .compare_exchange(WAITING, SLEEPING, Ordering::Acquire, Ordering::Acquire)
            .is_ok()
        {
            while word.load(Ordering::Acquire) == SLEEPING {
                let wait = rt::wait(word, SLEEPING, Some(LOOK));
                if wait == rt::Wait::TimedOut && stalled() && self.leave(slot) {
                    return Turn::Stalled;
                }
            }
        }
        if word.load(Ordering::Acquire) == LEAD {
            Turn::Lead
        } else {
            Turn::Look
        }
    }

    /// Ends the caller's lead: hands it to the first waiter that is not covered, then wakes the covered ones (all, if
    /// the log is poisoned).
    pub fn pass_on(&self, durable: Lsn, all: bool) {
        let mut queue = self.queue.lock();
        assert!(queue.led, "only the thread that leads passes the lead on");
        let covered = |w: &Waiter| all || w.lsn <= durable;
        let next = queue
            .waiting
            .iter()
            .position(|w| !covered(w))
            .map(|i| queue.waiting.remove(i));
        queue.led = next.is_some();
        if let Some(next) = next {
            self.signal(next.slot, LEAD);
        }
        queue.waiting.retain(|w| {
            let done = covered(w);
            if done {
                self.signal(w.slot, DONE);
            }
            !done
        });
    }

    fn signal(&self, slot: usize, state: u32) {
        let word = &self.words.of(slot).0;
        let before = word.swap(state, Ordering::Release);
        assert!(
            before == WAITING || before == SLEEPING,
            "a waiter is signalled once, while it is in the queue: its word was {before}"
        );
        if before == SLEEPING {
            rt::wake(word, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A thread that waited for a lead whose sync never came back waited for ever.
    #[test]
    fn a_waiter_whose_lead_makes_no_progress_leaves_the_queue() {
        let waiters = Arc::new(Waiters::default());
        assert!(waiters.try_lead());
        // A look takes `LOOK`: this test, two of them.
        let behind = waiters.clone();
        let waiter = rt::spawn("waiter", move || {
            let mut looks = 0;
            let stalled = || {
                looks += 1;
                looks == 2
            };
            matches!(behind.enter(Lsn::from_raw(10), || false, stalled), Turn::Stalled)
        });
        assert!(waiter.join().expect("no panic"), "it learns of it");
        assert!(waiters.queue.lock().waiting.is_empty());
        waiters.pass_on(Lsn::from_raw(10), false);
        assert!(!waiters.is_led(), "no thread was left to lead");
    }

    #[test]
    fn progress_of_any_kind_begins_the_wait_anew() {
        let mut progress = Progress::new(Lsn::from_raw(1));
        for durable in [1, 2] {
            let stalled = (1..=LOOKS_MAX).map(|_| progress.is_stalled(Lsn::from_raw(durable)));
            assert_eq!(stalled.filter(|stalled| *stalled).count(), 1, "at the last look");
        }
    }
}
