//! The threads that share a round of purge.
//!
//! 1. The thread that begins a round (the purge thread, or VACUUM) lists the segments with transactions that are past.
//! 2. Where there is more than one, it opens the round to the crew; each thread takes the next segment of the list
//!    until none is left. A segment is one thread's in a round.
//! 3. It closes the round and waits until the crew has left it. So all threads work with one horizon at a time.
//!
//! A thread of the crew sleeps between rounds, and costs nothing then.

use crate::error::Error;
use crate::tx::CancelFlag;
use crate::undo::Segment;
use cenote_base::Cts;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Threads that purge, the purge thread included.
const THREADS_MAX: usize = 8;
const _: () = assert!(THREADS_MAX >= 2, "a round is shared with one thread at least");

/// How many threads help the purge thread: one a core.
pub(crate) fn helpers() -> usize {
    rt::cores().clamp(2, THREADS_MAX) - 1
}

/// The work of a round.
pub(super) struct Round {
    pub horizon: Cts,
    segments: Vec<Arc<Segment>>,
    next: AtomicUsize,
    pub passed: AtomicU64,
    /// Ends the round before its time.
    cancel: Option<Arc<CancelFlag>>,
    /// What the first segment that failed failed with.
    pub failed: rt::Mutex<Option<Error>>,
}

impl Round {
    pub fn new(horizon: Cts, segments: Vec<Arc<Segment>>, cancel: Option<Arc<CancelFlag>>) -> Round {
        Round {
            horizon,
            segments,
            next: AtomicUsize::new(0),
            passed: AtomicU64::new(0),
            cancel,
            failed: rt::Mutex::new(None),
        }
    }

    /// A segment that no other thread has taken.
    pub fn take(&self) -> Option<&Segment> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        self.segments.get(at).map(|segment| &**segment)
    }

    /// Whether the statement that it is done for is to stop.
    pub fn is_canceled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_set())
    }

    /// Whether there is work for more than one.
    pub fn is_shared(&self) -> bool {
        self.segments.len() > 1
    }
}

#[derive(Default)]
struct State {
    open: Option<Arc<Round>>,
    /// How many rounds were opened.
    rounds: u64,
    /// Threads of the crew in the open round, or in the one that was closed last.
    working: usize,
    ended: bool,
}

/// Where the crew waits for rounds.
#[derive(Default)]
pub(crate) struct Crew {
    state: rt::Mutex<State>,
    changed: rt::Condvar,
}

impl Crew {
    /// Opens a round to the crew.
    pub(super) fn open(&self, round: &Arc<Round>) {
        let mut state = self.state.lock();
        assert!(state.open.is_none(), "one round is open at a time");
        state.open = Some(round.clone());
        state.rounds += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Closes the round and waits until the crew has left it. A stop of the engine does not end the wait: it ends the
    /// work of the crew, and until then the next round, with another horizon, must not begin.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.open = None;
        while state.working > 0 {
            state = self.changed.wait(state);
        }
    }

    /// Joins the next round that is opened, not one of the first `seen`. None: there will be none.
    pub(super) fn join(&self, seen: &mut u64) -> Option<Arc<Round>> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(round) = state.open.clone().filter(|_| state.rounds > *seen) {
                *seen = state.rounds;
                state.working += 1;
                return Some(round);
            }
            state = self.changed.wait(state);
        }
    }

    /// Does this thread's part of a round that it has joined, and leaves it. A panic fails the round, and ends neither
    /// the thread nor the wait of the threads that close the round.
    pub(super) fn take_part(&self, round: &Round, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let error = Error::Internal("a thread of purge has panicked".into());
            round.failed.lock().get_or_insert(error);
        }
        let mut state = self.state.lock();
        assert!(state.working > 0, "a thread leaves a round that it has joined");
        state.working -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Sends the crew home.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that panicked in a round was counted among those at work for ever: the round was never closed, purge
    /// stopped for good, and VACUUM and definitions waited for it.
    #[test]
    fn a_panic_fails_the_round_and_does_not_keep_it_open() {
        let (crew, round) = (
            Crew::default(),
            Arc::new(Round::new(Cts::from_raw(1), Vec::new(), None)),
        );
        crew.open(&round);
        let mut seen = 0;
        let joined = crew.join(&mut seen).expect("it is open");
        crew.take_part(&joined, || panic!("in the middle of a segment"));
        assert_eq!(crew.state.lock().working, 0, "no helper is waited for");
        crew.close();
        assert!(matches!(*round.failed.lock(), Some(Error::Internal(_))));
    }

    /// At a stop the round was closed at once: the thread that had opened it went on, and let others begin a round of
    /// another horizon, while helpers were in the middle of segments with the old one.
    #[test]
    fn a_stop_does_not_close_a_round_before_its_helpers_have_left() {
        let (crew, at_work, may_go) = (Crew::default(), rt::Event::new(), rt::Event::new());
        let round = Arc::new(Round::new(Default::default(), Vec::new(), None));
        crew.open(&round);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let joined = crew.join(&mut 0).expect("it is open");
                crew.take_part(&joined, || {
                    at_work.set();
                    may_go.wait();
                });
            });
            at_work.wait();
            crew.end();
            let closer = threads.spawn(|| crew.close());
            rt::sleep(rt::Nanos::from_millis(200));
            assert!(!closer.is_finished(), "a helper is at work");
            may_go.set();
            closer.join().expect("no panic");
        });
        assert_eq!(crew.state.lock().working, 0);
    }
}
