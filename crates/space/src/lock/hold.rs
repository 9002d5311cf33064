//! A lock that is held: what is read and written under it, and how it is left.
//!
//! What lies in this pod is read and written at once. Of what lies elsewhere a reader [caches](crate::cache) pages, and
//! a writer [collects](super::buffer) small writes.

use super::buffer::{Batch, Buffer};
use super::layout::{Mode, NO_SESSION, VERSION, next, taken_over};
use super::words::{Taken, Words};
use crate::act::{Act, Step};
use crate::cache::Under;
use crate::route::Turns;
use crate::{GlobalAddress, Space};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};

/// How a session has a lock, from taking it to leaving it.
pub(super) struct Hold {
    lock: GlobalAddress,
    mode: Mode,
    /// What stands in the lock.
    session: u64,
    /// Held to read: of what the lock protects. Held to write: of what it was before; leaving the lock changes the
    /// version.
    version: u64,
    /// When the lock was last looked at, or before.
    looked: AtomicU64,
    pub(super) buffer: Mutex<Buffer>,
}

impl Hold {
    pub(super) fn new(lock: GlobalAddress, session: u64, taken: Taken, looked: Nanos) -> Self {
        let (mode, version) = match taken {
            Taken::Slot { version, .. } => (Mode::Read, version),
            Taken::Word { version, .. } => (Mode::Write, version),
        };
        Self {
            lock,
            mode,
            session,
            version,
            looked: AtomicU64::new(looked.raw()),
            buffer: Mutex::default(),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn lock(&self) -> GlobalAddress {
        self.lock
    }

    pub(super) fn under(&self) -> Under {
        Under {
            lock: self.lock,
            version: self.version,
        }
    }

    /// Held to read, in a part that this process does not map: whether it is held still, as far as a look tells that is
    /// not older than it may be. A process that maps the lock's part is ended when it is fenced.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is not, or the process was fenced: no page is believed any more then. Those of the way.
    pub(super) fn check_held(&self, space: &Space) -> Result<()> {
        let (trust, now) = (space.lock_trust(), rt::now());
        let looked = Nanos(self.looked.load(Ordering::Acquire));
        if trust == Nanos::ZERO || !space.is_far(self.lock) || now.since(looked) < trust {
            return Ok(());
        }
        let found = space.load(self.words(space).word(VERSION)?);
        let is_same = match found {
            Ok(version) => version == self.version,
            Err(Error::Revoked(why)) => {
                space.forget_pages();
                return Err(Error::Revoked(why));
            }
            Err(error) => return Err(error),
        };
        if !is_same {
            space.forget_pages();
            return Err(taken_over(self.lock));
        }
        self.looked.fetch_max(now.raw(), Ordering::AcqRel);
        Ok(())
    }

    fn words<'s>(&self, space: &'s Space) -> Words<'s> {
        Words { space, at: self.lock }
    }

    /// The beginning of a sequence that is to be done during this hold alone: if it comes late, it finds another writer
    /// or, after the same one, another version.
    pub(super) fn fence(&self, space: &Space) -> Result<[Step<'static>; 2]> {
        let words = self.words(space);
        let version = (words.word(VERSION)?, Act::Expect(self.version));
        Ok([(words.word(0)?, Act::Expect(self.session)), version])
    }

    /// Writes what was collected, makes the version another one, and lets go, in this order: so a session that takes
    /// the lock and finds the version that it knows, finds what it knows. One message if all of it lies in one far
    /// part.
    pub(super) fn release(&self, space: &Space) -> Result<()> {
        let mut buffer = self.buffer.lock();
        let released = buffer
            .land(self, space)
            .and_then(|()| space.settle())
            .and_then(|()| self.release_after(space, buffer.rest()));
        match released {
            Err(Error::Revoked(_)) => Err(taken_over(self.lock)),
            Err(error) => {
                // The next holder repairs what is half written. If this fails too, it does so when the session has
                // ended.
                let _ = space.leave_to_repair(self.lock, self.session);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn release_after(&self, space: &Space, writes: &Batch) -> Result<()> {
        let words = self.words(space);
        if writes.is_empty() && !space.is_far(self.lock) {
            space.compare_and_swap(words.word(VERSION)?, self.version, next(self.version))?;
            return self.let_go(&words);
        }
        let (mut done, mut turns, mut is_second) = (0, Turns::default(), false);
        loop {
            let (mut steps, fenced) = self.last_steps(space, writes, done)?;
            let mut found = vec![0; steps.len()];
            let awaited = match space.go_on(&mut steps, &mut found) {
                Ok(n) if n == steps.len() => return self.judge(found[n - 1]),
                // The version is another already.
                Ok(n) if n + 1 == steps.len() => return self.let_go(&words),
                Ok(n) => {
                    done += n.saturating_sub(fenced);
                    steps[n].0
                }
                Err(Error::Lost(_)) if !is_second => {
                    is_second = true;
                    if self.is_released(&words)? {
                        return Ok(());
                    }
                    // The next try may go another way.
                    space.settle()?;
                    self.lock
                }
                Err(error) => return Err(error),
            };
            turns.wait(space, awaited)?;
        }
    }

    /// The writes from one on, and then what lets go; how many steps stand before the writes.
    fn last_steps<'a>(&self, space: &Space, writes: &'a Batch, from: usize) -> Result<(Vec<Step<'a>>, usize)> {
        let words = self.words(space);
        let mut steps: Vec<Step<'a>> = self.fence(space)?.into();
        let fenced = steps.len();
        steps.extend(writes.steps(from));
        let swap = |expected, new| Act::Swap { expected, new };
        steps.push((words.word(VERSION)?, swap(self.version, next(self.version))));
        steps.push((words.word(0)?, swap(self.session, NO_SESSION)));
        Ok((steps, fenced))
    }

    /// After an answer was lost: whether the lock was let go of. Only this session does that, if it lives.
    fn is_released(&self, words: &Words<'_>) -> Result<bool> {
        let (writer, version) = (words.load(0)?, words.space.load(words.word(VERSION)?)?);
        if writer == self.session && version == self.version {
            return Ok(false);
        }
        if writer == self.session {
            return self.let_go(words).map(|()| true);
        }
        match words.is_alive(self.session)? {
            true => Ok(true),
            false => Err(taken_over(self.lock)),
        }
    }

    fn let_go(&self, words: &Words<'_>) -> Result<()> {
        self.judge(words.space.compare_and_swap(words.word(0)?, self.session, NO_SESSION)?)
    }

    fn judge(&self, found: u64) -> Result<()> {
        match found == self.session {
            true => Ok(()),
            false => Err(taken_over(self.lock)),
        }
    }

    /// What was collected and not written is not to be written.
    pub(super) fn abandon(&self, space: &Space) {
        self.buffer.lock().abandon(self, space);
    }

    /// Lets go of it as if the session had died.
    pub(super) fn leave_broken(&self, space: &Space) -> Result<()> {
        self.abandon(space);
        match space.leave_to_repair(self.lock, self.session)? {
            true => Ok(()),
            false => Err(taken_over(self.lock)),
        }
    }
}
