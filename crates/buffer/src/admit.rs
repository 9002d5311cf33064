//! Which mini-transactions may begin while the disk is full.
//!
//! A mini-transaction that has changed a page cannot be refused any more: its redo goes to the log, whatever the disk
//! says. So the log is asked before its first page is latched ([`Pool::admit`]): a comparison, as long as there is
//! room. When there is none, what can be done is done first: pages are written back, so that the log lets go of its
//! older segments and uses them again ([`Pool::squeeze`]). Where that does not help, the caller gets [`Error::Full`].
//!
//! What a thread's mini-transactions are for is said once, for all that it begins ([`Pool::begin_need`]): commits and
//! rollbacks go on in space that is kept for them.

use std::marker::PhantomData;

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_storage::Need;

use crate::need::NeedCell;
use crate::pool::Pool;

/// How long a writer waits for the log to be made shorter.
const TIMEOUT: Nanos = Nanos::from_secs(1);
/// How often he looks.
const TURN: Nanos = Nanos::from_millis(10);

/// While it lives, mini-transactions of this thread are for what it was made for.
pub struct Needing<'p> {
    cell: &'p NeedCell,
    before: u32,
    _here: PhantomData<*const ()>,
}

impl Drop for Needing<'_> {
    fn drop(&mut self) {
        self.cell.0.store(self.before, Ordering::Relaxed);
    }
}

impl Pool {
    /// Says what this thread's mini-transactions are for, until the answer is dropped.
    pub fn begin_need(&self, need: Need) -> Needing<'_> {
        let cell = self.needs.get();
        let before = cell.0.load(Ordering::Relaxed);
        cell.0.store(before.max(need as u32), Ordering::Relaxed);
        Needing {
            cell,
            before,
            _here: PhantomData,
        }
    }

    pub(crate) fn need(&self) -> Need {
        match self.needs.get().0.load(Ordering::Relaxed) {
            0 => Need::Work,
            1 => Need::Cleanup,
            _ => Need::Commit,
        }
    }

    /// Whether a change may be begun.
    ///
    /// # Errors
    /// [`Error::Full`] if the disk is, with what to do; [`Error::LogFailed`] if the log has failed.
    #[inline]
    pub fn admit(&self) -> Result<()> {
        match self.storage.log().admit(Need::Work) {
            Err(Error::Full(_)) => self.admit_pressed(),
            done => done,
        }
    }

    #[cold]
    fn admit_pressed(&self) -> Result<()> {
        let (log, need) = (self.storage.log(), self.need());
        let end = rt::now() + TIMEOUT;
        loop {
            let refused = match log.admit(need) {
                Err(refused @ Error::Full(_)) => refused,
                done => return done,
            };
            if !log.is_recyclable() || rt::now() >= end {
                return Err(refused);
            }
            if !self.background {
                self.squeeze()?;
                return log.admit(need);
            }
            self.signals.flush.set();
            rt::sleep(TURN);
        }
    }

    /// There is no space for further segments: pages are written, so that those in use can be used again.
    pub(crate) fn squeeze(&self) -> Result<()> {
        // What was kept for the archive goes first: it needs no page to be written.
        self.storage.recycle()?;
        if !self.storage.log().is_full() {
            return Ok(());
        }
        let flushed = self.flush_before(self.storage.log().tail());
        self.checkpoint()?;
        flushed.map(drop)
    }
}
