//! What a session reads and writes under a lock that it holds.

use super::hold::Hold;
use super::layout::{Mode, not_held};
use crate::{GlobalAddress, Session};
use cenote_base::Result;
use std::sync::Arc;

impl Session {
    /// Reads what a lock protects, that this session holds. Held to read, far bytes come with those around them, and
    /// stay in the process, to be read without a trip until a session writes under the lock: [`Space::limit_cache`].
    /// Held to write, what was [written](Session::write_locked) is read.
    ///
    /// # Errors
    /// As [`Space::read`]; [`Error::Invalid`] if the session does not hold the lock.
    pub fn read_locked(&self, lock: GlobalAddress, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        let hold = self.locks.held(lock)?;
        match hold.mode() {
            Mode::Read => self.read_under(hold.under(), || hold.check_held(self), address, into),
            Mode::Write => hold.buffer.lock().read(self, address, into),
        }
    }

    /// Writes what a lock protects, that this session holds to write. Small writes to far memory, and what comes after
    /// them, are collected, and written in their order: in the background, and at the latest by
    /// [`Session::sync_locked`] or when the lock is unlocked. Others see none of it sooner than by taking the lock; if
    /// this process is killed the last of them are missing, and the next holder is told that its [owner
    /// died](super::Guard::owner_died).
    ///
    /// # Errors
    /// As [`Space::write`], also of writes before; after an error of those the lock can only be left, and is broken
    /// then. [`Error::Invalid`] if the session does not hold the lock to write.
    pub fn write_locked(&self, lock: GlobalAddress, address: GlobalAddress, from: &[u8]) -> Result<()> {
        let hold = self.held_to_write(lock)?;
        let mut buffer = hold.buffer.lock();
        buffer.write(&hold, self, address, from)
    }

    /// Returns when all that was written under a lock, that this session holds to write, is in its place.
    ///
    /// # Errors
    /// As [`Session::write_locked`].
    pub fn sync_locked(&self, lock: GlobalAddress) -> Result<()> {
        let hold = self.held_to_write(lock)?;
        let mut buffer = hold.buffer.lock();
        buffer.flush(&hold, self)
    }

    fn held_to_write(&self, lock: GlobalAddress) -> Result<Arc<Hold>> {
        let hold = self.locks.held(lock)?;
        match hold.mode() {
            Mode::Write => Ok(hold),
            Mode::Read => Err(not_held(lock, Mode::Write.purpose())),
        }
    }
}
