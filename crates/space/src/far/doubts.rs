//! What was given up over the way to a part and may be done yet, as far as no later connection rules that out.

use super::modes::Line;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// See the module. Doubts are counted: to settle those of before takes a while, and leaves those that came meanwhile.
#[derive(Default)]
pub(super) struct Doubts {
    noted: AtomicU64,
    /// So many of them, from the first on, are none any more.
    settled: AtomicU64,
    /// Connections of requests that no call has waited for. They are to be left before a doubt is settled.
    abandoned: Mutex<Vec<Arc<Line>>>,
}

impl Doubts {
    /// Something was given up, and its connection has been left.
    pub(super) fn note(&self) {
        self.noted.fetch_add(1, Ordering::AcqRel);
    }

    /// Something was given up over a connection that may be the one that is used still.
    pub(super) fn note_over(&self, line: &Arc<Line>) {
        self.abandoned.lock().push(Arc::clone(line));
        self.note();
    }

    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// How many there were up to now, if some of them are not settled.
    pub(super) fn unsettled(&self) -> Option<u64> {
        let noted = self.noted();
        (self.settled.load(Ordering::Acquire) < noted).then_some(noted)
    }

    pub(super) fn take_abandoned(&self) -> Vec<Arc<Line>> {
        core::mem::take(&mut *self.abandoned.lock())
    }

    /// A connection was made after so many of them were noted.
    pub(super) fn settle(&self, noted: u64) {
        self.settled.fetch_max(noted, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was given up while a way was settled counted as settled too.
    #[test]
    fn a_doubt_that_comes_meanwhile_stays() {
        let doubts = Doubts::default();
        assert_eq!(doubts.unsettled(), None);
        doubts.note();
        let before = doubts.unsettled().expect("one");
        doubts.note();
        doubts.settle(before);
        assert_eq!(doubts.unsettled(), Some(2));
        doubts.settle(2);
        doubts.settle(1);
        assert_eq!(doubts.unsettled(), None);
    }
}
