//! Locks that a session could not let go of: something that was given up under them may be done yet, in a part that
//! cannot be reached. They stay the session's, and are left broken when that part can be reached again, with the next
//! lock that the process takes, or when the session ends.

use super::layout::BROKEN;
use super::words::Words;
use crate::{GlobalAddress, Space};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Result};

/// See the module. Lock order: a hold's buffer → this. It is held over the swaps that leave locks: a session that takes
/// one of them again [claims](Unleft::claim) it first, so that no lock is left under its holder.
#[derive(Default)]
pub(crate) struct Unleft {
    listed: Mutex<Listed>,
    count: AtomicU64,
}

#[derive(Default)]
struct Listed {
    locks: Vec<Entry>,
    /// The number of the next entry.
    next: u64,
}

/// A lock, and what stands in it.
struct Entry {
    number: u64,
    lock: GlobalAddress,
    session: u64,
}

impl Unleft {
    pub(super) fn add(&self, lock: GlobalAddress, session: u64) {
        let mut listed = self.listed.lock();
        let number = listed.next;
        listed.next += 1;
        listed.locks.push(Entry { number, lock, session });
        self.count(&listed);
    }

    /// A session is about to take a lock: it is not left late from here on. Whether it was to be.
    pub(super) fn claim(&self, lock: GlobalAddress, session: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut listed = self.listed.lock();
        let before = listed.locks.len();
        listed
            .locks
            .retain(|entry| (entry.lock, entry.session) != (lock, session));
        self.count(&listed);
        listed.locks.len() < before
    }

    fn count(&self, listed: &Listed) {
        self.count.store(listed.locks.len() as u64, Ordering::Release);
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
            self.unleft().add(lock, session);
            return Err(error);
        }
        Words { space: self, at: lock }.swap(0, session, BROKEN)
    }

    /// Leaves the locks that could not be left before, as far as that can be done now.
    pub(super) fn leave_late(&self) {
        if self.unleft().is_empty() {
            return;
        }
        // What is given up from here on may come after this has settled: locks that are listed since stay.
        let settled = self.unleft().listed.lock().next;
        if self.settle().is_err() {
            return;
        }
        // Another thread that leaves them does it for this one too.
        let Some(mut listed) = self.unleft().listed.try_lock() else {
            return;
        };
        // One that is lost, or no lock any more, is nothing to leave.
        listed.locks.retain(|entry| {
            let words = Words {
                space: self,
                at: entry.lock,
            };
            let left = || words.swap(0, entry.session, BROKEN);
            entry.number >= settled || matches!(left(), Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_)))
        });
        self.unleft().count(&listed);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Mode, Space, SpaceOptions, Timeout};

    /// A lock was listed to be left, and its session took it again: it was left under the new holder, and another had
    /// it too.
    #[test]
    fn a_lock_that_its_session_takes_again_is_not_left_late() {
        let space = Space::dram(&SpaceOptions::default()).expect("memory");
        let session = space.session();
        let lock = session.new_lock().expect("room");
        let number = session.begin_in(lock.part()).expect("begun");
        let word = session.locks.word_in(lock.part(), || Ok(number)).expect("a number");
        session.acquire(lock, Mode::Write, Timeout::Endless).expect("free");
        // As if it could not be left: it is the session's still, and no thread's.
        session.leave_word(lock, |_| Ok(())).expect("held");
        session
            .locks
            .stand_in_line(lock, &mut super::super::Waiting::new(lock, Timeout::None))
            .expect("free");
        space.unleft().add(lock, word);
        let mut waiting = super::super::Waiting::new(lock, Timeout::None);
        let taken = session.take(lock, Mode::Write, &mut waiting);
        session.locks.note(lock, taken.as_ref().ok().cloned());
        taken.expect("its own");
        space.leave_late();
        let other = space.session().try_lock(lock, Mode::Write).map(|guard| guard.is_some());
        assert!(matches!(other, Ok(false)), "two writers: {other:?}");
        session.unlock(lock, Mode::Write).expect("held still");
    }
}
