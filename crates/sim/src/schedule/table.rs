//! The threads of a world: how each stands, on which word it sleeps, and until when. Which of the ready ones runs is for
//! the order to say.
//!
//! Invariants:
//! - a thread that waits is on the list of its word and counted in `waiting`; no other thread is;
//! - a timer counts for a thread as long as the thread is in the sleep that the timer names;
//! - what is kept as the next deadline is forgotten when a timer comes or goes, or a sleeper leaves its word's list.

use crate::clock::fast;
use cenote_base::rt::{HashMap, Nanos, Wait};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A thread's number, in the order of starting.
pub(crate) type Id = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Runs, or could.
    Ready,
    Waiting {
        word: usize,
        deadline: Option<Nanos>,
        /// Tells this sleep from others of the thread.
        sleep: u64,
    },
    Ended,
}

pub(super) struct Thread {
    pub(super) name: String,
    pub(super) host: usize,
    pub(super) process: u32,
    pub(super) slot: usize,
    pub(super) status: Status,
    /// Why its last wait ended.
    pub(super) wait: Wait,
    /// Locks that it holds, by the words that count their releases.
    pub(super) holds: Vec<usize>,
    /// The order's own: see there.
    pub(super) priority: u64,
    pub(super) place: usize,
    pub(super) clock: u64,
    pub(super) slice_end: u64,
    /// The vCPU that it is on, or was last.
    pub(super) core: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct ThreadTable {
    pub(super) threads: Vec<Thread>,
    /// The running thread.
    pub(super) current: Id,
    /// By word; a list is never empty.
    sleepers: HashMap<usize, Vec<Id>>,
    /// Deadline, sleep, thread; an entry of an older sleep counts for nothing.
    timers: BinaryHeap<Reverse<(Nanos, u64, Id)>>,
    /// The next deadline, since it was last looked for: points ask for it far more often than it changes.
    next: Option<Option<Nanos>>,
    /// Sleeps so far.
    sleeps: u64,
    /// Threads that wait.
    pub(super) waiting: usize,
}

impl ThreadTable {
    /// The threads that sleep on a word.
    pub(super) fn sleepers(&self, word: usize) -> &[Id] {
        self.sleepers.get(&word).map_or(&[], Vec::as_slice)
    }

    /// The running thread, which has left the order, sleeps on a word.
    pub(super) fn sleep(&mut self, word: usize, deadline: Option<Nanos>) {
        let id = self.current;
        self.sleeps += 1;
        let sleep = self.sleeps;
        let thread = &mut self.threads[id];
        assert_eq!(thread.status, Status::Ready, "the running thread goes to sleep");
        thread.status = Status::Waiting { word, deadline, sleep };
        self.sleepers.entry(word).or_default().push(id);
        self.waiting += 1;
        if let Some(deadline) = deadline {
            self.timers.push(Reverse((deadline, sleep, id)));
            self.next = None;
        }
    }

    /// A sleeper is no longer on its word's list.
    pub(super) fn forget_sleeper(&mut self, word: usize, id: Id) {
        let list = self.sleepers.get_mut(&word).expect("a sleeper is on its word's list");
        list.retain(|s| *s != id);
        if list.is_empty() {
            self.sleepers.remove(&word);
        }
        assert!(self.waiting > 0, "a thread on a word's list is counted as waiting");
        self.waiting -= 1;
        self.next = None;
    }

    /// Makes a sleeper ready, for the order to take it; false if the thread does not sleep.
    pub(super) fn wake(&mut self, id: Id, why: Wait) -> bool {
        let Status::Waiting { word, .. } = self.threads[id].status else {
            return false;
        };
        self.forget_sleeper(word, id);
        self.threads[id].status = Status::Ready;
        self.threads[id].wait = why;
        true
    }

    /// The next deadline of a sleeper.
    #[inline]
    pub(super) fn next_deadline(&mut self) -> Option<Nanos> {
        if let Some(next) = self.next {
            return next;
        }
        let next = self.look_for_deadline();
        self.next = Some(next);
        next
    }

    fn look_for_deadline(&mut self) -> Option<Nanos> {
        while let Some(Reverse((deadline, number, id))) = self.timers.peek() {
            match self.threads[*id].status {
                Status::Waiting { sleep, .. } if sleep == *number => return Some(*deadline),
                _ => _ = self.timers.pop(),
            }
        }
        None
    }

    /// Makes the sleeper with the next deadline ready, for the order to take it; with its deadline.
    pub(super) fn fire(&mut self) -> Option<(Id, Nanos)> {
        self.next = None;
        let Reverse((deadline, _, id)) = self.timers.pop()?;
        self.wake(id, Wait::TimedOut).then_some((id, deadline))
    }
}

/// The running thread's time.
pub(super) fn now() -> u64 {
    fast(|f| f.now.get())
}
