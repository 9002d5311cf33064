//! Locks that a session could not let go of: something that was given up under them may be done yet, in a part that
//! cannot be reached. They stay the session's, and are left broken when that part can be reached again, with the next
//! lock that the process takes, or when the session ends.

use super::layout::BROKEN;
use super::words::Words;
use crate::{GlobalAddress, Space};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Result};

/// See the module: a lock, and what stands in it.
#[derive(Default)]
pub(crate) struct Unleft {
    locks: Mutex<Vec<(GlobalAddress, u64)>>,
    count: AtomicU64,
}

impl Unleft {
    fn set(&self, locks: Vec<(GlobalAddress, u64)>) {
        let mut known = self.locks.lock();
        known.extend(locks);
        self.count.store(known.len() as u64, Ordering::Release);
    }

    fn take(&self) -> Vec<(GlobalAddress, u64)> {
        let mut known = self.locks.lock();
        self.count.store(0, Ordering::Release);
        core::mem::take(&mut *known)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl Space {
    /// Leaves a lock to the next holder to repair what it protects: at once, if nothing of this one can come after that.
    ///
    /// # Errors
    /// Why it stays this session's; those of leaving it.
    pub(super) fn leave_to_repair(&self, lock: GlobalAddress, session: u64) -> Result<bool> {
        if let Err(error) = self.settle() {
            self.unleft().set(vec![(lock, session)]);
            return Err(error);
        }
        Words { space: self, at: lock }.swap(0, session, BROKEN)
    }

    /// Leaves the locks that could not be left before, as far as that can be done now.
    pub(super) fn leave_late(&self) {
        if self.unleft().is_empty() || self.settle().is_err() {
            return;
        }
        let mut locks = self.unleft().take();
        // One that is lost, or no lock any more, is nothing to leave.
        locks.retain(|(lock, session)| {
            let left = Words { space: self, at: *lock }.swap(0, *session, BROKEN);
            matches!(left, Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_)))
        });
        self.unleft().set(locks);
    }
}
