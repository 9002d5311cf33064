//! Locks that lie in the space: for one writer or for readers, of any process that uses the space.
//!
//! A lock is 16 words, by an allocation of its own ([`Session::new_lock`]) or within an object ([`Space::make_lock`]):
//!
//! ```text
//!   word 0       the writer: it has the lock, or waits for the readers to leave
//!   words 1..14  readers: a slot for a session
//!   each         "lock" 16 bits | session 48 bits: 0 none, all ones: a writer died here, and what it did was not repaired
//!   word 15      "lock" 16 bits | version 48 bits: another one after each writer
//! ```
//!
//! Sessions stand there by their number in the lock's part, which is never used again. Everything is done with the
//! public words of a [`Space`], so a lock works wherever they do; steps that follow each other are
//! [one sequence](super::sequence), so taking and leaving a lock that is free are a trip each, wherever it lies.
//!
//! - A writer takes word 0, if it is free, by compare-and-swap, then waits until all slots are free. Readers that come
//!   meanwhile wait: it does not starve.
//! - A reader takes a slot by compare-and-swap, *then* looks at word 0, by adding nothing to it. If a writer is there
//!   it leaves its slot, and waits. One of the two changes word 0 first: if the reader, the writer sees its slot; if
//!   the writer, the reader sees the writer.
//! - Threads of one session share its slot, and stand in line for word 0 in a table of the process.
//! - A session that takes the lock reads the version *after* that. A writer makes it another one *before* it lets go,
//!   so while it is the same no writer has held the lock: [cached pages](super::cache) rely on that. A new lock begins
//!   with a random one.
//!
//! ```text
//!                    lock(Write): word 0 ← me                      all slots free
//!   free(word 0 = 0) ─────────────────────────► waits for readers ─────────────────► held
//!      ▲   ▲                                      │ timeout is out                    │ │
//!      │   └──────────────────────────────────────┘                                    │ │ its session ends
//!      └──────────── unlock: writes, word 15 + 1, word 0 ← 0 ──────────────────────────┘ ▼
//!                                                    the next holder: word 0 ← me, word 15 + 1, `owner_died`
//! ```
//!
//! No session waits for a dead one. A waiting session asks the part's keeper now and then whether the session that it
//! waits for is alive. Any session that finds a dead reader's slot frees it. From a dead writer one session takes the
//! lock over, by compare-and-swap from the dead session's number. It is told ([`Guard::owner_died`]), and has to repair
//! what the lock protects. It has the lock as a writer, whatever it asked for. If it dies too, the next one takes over
//! from it, and is told the same.
//!
//! Invariants:
//! 1. a word is changed from what was seen there: no session frees what another has taken;
//! 2. word 0 goes from a dead writer to a living one, and is not freed in between: so the need of repair is not
//!    forgotten until a holder unlocks;
//! 3. a session that ends while it holds a lock has lost it, as no session has its numbers any more: its
//!    [`Guard::unlock`] says so;
//! 4. no two holds to write have the same session and version: what one of them has sent, and comes late, is known by
//!    that;
//! 5. a session lets go of a lock only when nothing that it has given up in any part can be done after that.
//!
//! Lock order: a hold's buffer → the session's table. The table is not held while anything is waited for. Which lock of
//! a space comes before which is its users' to say.

mod buffer;
mod hold;
mod late;
mod layout;
mod session;
mod table;
mod waiting;
mod words;

use super::act::Act;
use super::{GlobalAddress, Session, Space};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use hold::Hold;
pub(super) use late::Unleft;
pub use layout::{LOCK_BYTES, Mode, Timeout};
use layout::{NO_SESSION, SESSION_MASK, VERSION, WORDS};
use std::sync::Arc;
pub(super) use table::Locks;
use waiting::Waiting;
use words::{Me, Taken, Words};

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// For what: as was asked for, or to write after a writer died.
    pub mode: Mode,
    /// The last writer died, or left it [broken](Guard::leave_broken).
    pub owner_died: bool,
}

/// A lock that is held. Dropping it unlocks; only [`Guard::unlock`] returns the errors of writes, and the next holder
/// is told of them.
#[must_use]
pub struct Guard<'s> {
    session: &'s Session,
    lock: GlobalAddress,
    held: Held,
    is_left: bool,
}

impl Guard<'_> {
    /// For what it is held: to write if a writer died before, whatever was asked for.
    pub fn mode(&self) -> Mode {
        self.held.mode
    }

    /// Whether the last writer died, or left it [broken](Self::leave_broken), so that what the lock protects may be
    /// half changed. A session that is told so has the lock alone, and repairs that before it unlocks: no other session
    /// is told.
    pub fn owner_died(&self) -> bool {
        self.held.owner_died
    }

    /// As [`Session::read_locked`].
    ///
    /// # Errors
    /// As [`Session::read_locked`].
    pub fn read(&self, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        self.session.read_locked(self.lock, address, into)
    }

    /// As [`Session::write_locked`].
    ///
    /// # Errors
    /// As [`Session::write_locked`].
    pub fn write(&self, address: GlobalAddress, from: &[u8]) -> Result<()> {
        self.session.write_locked(self.lock, address, from)
    }

    /// As [`Session::sync_locked`].
    ///
    /// # Errors
    /// As [`Session::sync_locked`].
    pub fn sync(&self) -> Result<()> {
        self.session.sync_locked(self.lock)
    }

    /// Lets go of it. What was [written](Self::write) is written before.
    ///
    /// # Errors
    /// [`Error::Revoked`] if the session has ended, and another one has taken the lock over. Those of the writes: then
    /// it is left [broken](Self::leave_broken).
    pub fn unlock(mut self) -> Result<()> {
        self.is_left = true;
        self.session.unlock(self.lock, self.held.mode)
    }

    /// Lets go of it, and leaves it to the next one to repair what it protects, as if this one had died: of what was
    /// [written](Self::write) and not [synced](Self::sync) the last may be missing. Of a lock that is held to read: as
    /// [`Guard::unlock`].
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    pub fn leave_broken(mut self) -> Result<()> {
        self.is_left = true;
        match self.held.mode {
            Mode::Read => self.session.leave_slot(self.lock),
            Mode::Write => self.session.leave_broken(self.lock),
        }
    }
}

impl core::fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the lock at {}: {:?}", self.lock, self.held)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.is_left {
            // Only `unlock` tells a session that it has lost the lock.
            let _ = self.session.unlock(self.lock, self.held.mode);
        }
    }
}

impl Space {
    /// Makes the [`LOCK_BYTES`] at `at`, inside of an object, a free lock. What held it before has lost it.
    ///
    /// # Errors
    /// As [`Space::store`].
    pub fn make_lock(&self, at: GlobalAddress) -> Result<()> {
        let words = Words { space: self, at };
        let mut steps = [const { (GlobalAddress::NULL, Act::Store(NO_SESSION)) }; WORDS as usize];
        for (n, step) in steps.iter_mut().enumerate() {
            step.0 = words.word(n as u64)?;
        }
        // Whatever was cached under a lock that was here before must not come to be valid again.
        steps[VERSION as usize].1 = Act::Store(NO_SESSION | rt::random() & SESSION_MASK);
        self.act_in_order(&mut steps, &mut [0; WORDS as usize])
    }
}

impl Session {
    /// A new lock, an object of its own; [`Space::free`] frees it, when no session uses it any more.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub fn new_lock(&self) -> Result<GlobalAddress> {
        let at = self.alloc(LOCK_BYTES)?;
        self.make_lock(at)?;
        Ok(at)
    }

    /// Waits for a lock. A thread that has it already waits for itself, for ever.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no lock is at `lock`; those of the keeper of its part, and of the way to it.
    pub fn lock(&self, lock: GlobalAddress, mode: Mode) -> Result<Guard<'_>> {
        let held = self.acquire(lock, mode, Timeout::Endless)?;
        Ok(self.guard(lock, held))
    }

    /// Takes a lock if it can be had at once: it is free, or its holder is dead.
    ///
    /// # Errors
    /// As [`Session::lock`].
    pub fn try_lock(&self, lock: GlobalAddress, mode: Mode) -> Result<Option<Guard<'_>>> {
        match self.acquire(lock, mode, Timeout::None) {
            Ok(held) => Ok(Some(self.guard(lock, held))),
            Err(Error::Timeout(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for a lock, for so long at most.
    ///
    /// # Errors
    /// As [`Session::lock`]; [`Error::Timeout`].
    pub fn lock_within(&self, lock: GlobalAddress, mode: Mode, timeout: Nanos) -> Result<Guard<'_>> {
        let held = self.acquire(lock, mode, Timeout::For(timeout))?;
        Ok(self.guard(lock, held))
    }

    fn guard(&self, lock: GlobalAddress, held: Held) -> Guard<'_> {
        Guard {
            session: self,
            lock,
            held,
            is_left: false,
        }
    }

    /// Takes a lock without a guard: for callers that keep account themselves, by address. [`Session::unlock`] is its
    /// end.
    ///
    /// # Errors
    /// As [`Session::lock`]; [`Error::Timeout`] if timeout ran out.
    pub fn acquire(&self, lock: GlobalAddress, mode: Mode, timeout: Timeout) -> Result<Held> {
        self.leave_late();
        let mut waiting = Waiting::new(lock, timeout);
        if mode == Mode::Read && self.locks.share(self, lock, &mut waiting)? {
            return Ok(Held {
                mode,
                owner_died: false,
            });
        }
        if mode == Mode::Write {
            self.locks.stand_in_line(lock, &mut waiting)?;
        }
        let taken = self.take(lock, mode, &mut waiting);
        self.locks.note(lock, taken.as_ref().ok().cloned());
        let (taken, hold) = taken?;
        let owner_died = matches!(taken, Taken::Word { owner_died: true, .. });
        let asked = mode;
        let mode = hold.mode();
        assert!(
            asked == Mode::Read || mode == Mode::Write,
            "a writer has the lock as a reader"
        );
        Ok(Held { mode, owner_died })
    }

    /// This thread is the only one of the session's that takes the lock.
    fn take(&self, lock: GlobalAddress, mode: Mode, waiting: &mut Waiting) -> Result<(Taken, Arc<Hold>)> {
        let me = Me {
            words: Words { space: self, at: lock },
            session: self.locks.word_in(lock.part(), || self.begin_in(lock.part()))?,
        };
        let was_unleft = self.unleft().claim(lock, me.session);
        // Before the lock is looked at: the answer may be old when it is read.
        let looked = rt::now();
        let taken = match mode {
            Mode::Read => me.read(waiting),
            Mode::Write => me.write(waiting),
        };
        if was_unleft && taken.is_err() {
            self.unleft().add(lock, me.session);
        }
        let taken = taken?;
        Ok((taken, Arc::new(Hold::new(lock, me.session, taken, looked))))
    }

    /// Lets go of a lock that this session holds so.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the session does not hold it so; those of [`Guard::unlock`].
    pub fn unlock(&self, lock: GlobalAddress, mode: Mode) -> Result<()> {
        match mode {
            Mode::Read => self.leave_slot(lock),
            Mode::Write => self.leave_word(lock, |hold| hold.release(self)),
        }
    }

    fn leave_slot(&self, lock: GlobalAddress) -> Result<()> {
        let Some(leaving) = self.locks.leave_slot(lock)? else {
            return Ok(());
        };
        let words = Words { space: self, at: lock };
        let mine = self.locks.word_in(lock.part(), || self.begin_in(lock.part()));
        let left = mine.and_then(|mine| words.leave_slot(leaving.slot, mine));
        if leaving.is_first {
            self.locks.make_way(lock);
        }
        left
    }

    /// Lets go of a lock that this session holds to write, as [`Guard::leave_broken`] does.
    ///
    /// # Errors
    /// As [`Session::unlock`].
    pub fn leave_broken(&self, lock: GlobalAddress) -> Result<()> {
        self.leave_word(lock, |hold| hold.leave_broken(self))
    }

    fn leave_word(&self, lock: GlobalAddress, leave: impl FnOnce(&Hold) -> Result<()>) -> Result<()> {
        let left = leave(&*self.locks.leave_word(lock)?);
        self.locks.make_way(lock);
        left
    }
}
