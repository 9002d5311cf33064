//! An event: something that happens once (until it is reset), and the threads that wait for it.

use super::{Nanos, Wait, now, preempt, wait_raw, wake_raw};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set or not set; waiting returns when it is set.
#[derive(Debug, Default)]
pub struct Event(AtomicU32);

impl Event {
    /// Not set.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets it and wakes all waiting threads. They see what was written before.
    pub fn set(&self) {
        preempt();
        let before = self.0.swap(1, Ordering::Release);
        assert!(before <= 1, "an event is set or not");
        if before == 0 {
            wake_raw(&self.0, usize::MAX);
        }
    }

    /// Unsets it; says whether it was set.
    pub fn reset(&self) -> bool {
        preempt();
        let before = self.0.swap(0, Ordering::Acquire);
        assert!(before <= 1, "an event is set or not");
        before == 1
    }

    /// Whether it is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        preempt();
        self.0.load(Ordering::Acquire) == 1
    }

    /// Returns when it is set.
    pub fn wait(&self) {
        while !self.is_set() {
            wait_raw(&self.0, 0, None);
        }
    }

    /// Returns when it is set or the time has passed; says whether it is set.
    pub fn wait_timeout(&self, timeout: Nanos) -> bool {
        let end = now() + timeout;
        while !self.is_set() {
            let left = end.since(now());
            if left == Nanos::ZERO || wait_raw(&self.0, 0, Some(left)) == Wait::TimedOut {
                return self.is_set();
            }
        }
        true
    }
}
