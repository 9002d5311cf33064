//! Locks that lie in the space: for one writer or for readers, of any process that uses the space.
//!
//! A lock is 16 words, by an allocation of its own ([`Session::new_lock`]) or within an object ([`Space::make_lock`]):
//!
//! ```text
//!   word 0       the writer: it has the lock, or waits for the readers to leave
//!   words 1..15  readers: a slot for a session
//!   each         "lock" 16 bits | session 48 bits: 0 nobody, all ones: a writer died here, and what it did was not repaired
//! ```
//!
//! Sessions stand there by their number in the lock's part, which is never used again. Everything is done with the public words of a [`Space`], so a lock works
//! wherever they do.
//!
//! - A writer takes word 0 from nobody by compare-and-swap, then waits until all slots are free. Readers that come meanwhile wait: it does not starve.
//! - A reader takes a slot by compare-and-swap, *then* looks at word 0, by adding nothing to it. If a writer is there it leaves its slot, and waits. One of the
//!   two changes word 0 first: if the reader, the writer sees its slot; if the writer, the reader sees the writer.
//! - Threads of one session share its slot, and stand in line for word 0 in a table of the process.
//!
//! ```text
//!                    lock(Write): word 0 ← me                      all slots free
//!   free(word 0 = 0) ─────────────────────────► waits for readers ─────────────────► held
//!      ▲   ▲                                      │ patience is out                    │ │
//!      │   └──────────────────────────────────────┘                                    │ │ its session ends
//!      └───────────────────────────── unlock ──────────────────────────────────────────┘ ▼
//!                                                    who comes next: word 0 ← me, `owner_died`
//! ```
//!
//! The dead are not waited for. Who waits asks the part's keeper now and then whether the session it waits for is alive. A slot of a dead reader is freed by whoever finds
//! it. From a dead writer the lock is taken over, by compare-and-swap from that session's number; so by one alone, who is told ([`Guard::owner_died`]) and has to repair what the
//! lock protects. It has the lock as a writer, whatever it asked for. If it dies too, the next one takes over from it, and is told the same.
//!
//! Invariants:
//! 1. a word is changed from what was seen there: nobody frees what another has taken;
//! 2. word 0 goes from a dead writer to a living one, never to nobody: that something is to be repaired is not forgotten until somebody unlocks;
//! 3. a session that ends while it holds a lock has lost it, as its numbers are nobody's any more: its [`Guard::unlock`] says so.
//!
//! Lock order: the table of the session comes after everything, and is not held while anything is waited for. Which lock of a space comes before which is its users' to say.

use super::keeper::SessionId;
use super::{GlobalAddress, Session, Space};
use cenote_base::rt::{self, Condvar, HashMap, Mutex, Nanos, Spin};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;

/// Bytes of a lock.
pub const LOCK_BYTES: u64 = 8 * WORDS;
const WORDS: u64 = 16;
/// Readers' slots are the words from 1 on.
const SLOTS: u64 = WORDS - 1;
const SESSION_BITS: u32 = 48;
const SESSION_MASK: u64 = (1 << SESSION_BITS) - 1;
/// Nobody: what each word of a new lock holds.
const NOBODY: u64 = 0x10cc << SESSION_BITS;
/// A writer has left without having repaired, or without having finished, what the lock protects.
const BROKEN: u64 = NOBODY | SESSION_MASK;

/// How long somebody is waited for before the keeper is asked about him, and between two questions.
const ASK_AFTER: Nanos = Nanos::from_millis(2);
const ASK_EVERY: Nanos = Nanos::from_millis(20);
/// Sleeps between two looks begin with this, and double up to the other.
const SLEEP_FIRST: Nanos = Nanos(20_000);
const SLEEP_MOST: Nanos = Nanos::from_millis(1);

/// What a lock is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

/// How long a lock is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// So long.
    For(Nanos),
    /// For as long as its owners live.
    Endless,
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// For what: as was asked for, or to write after a writer died.
    pub mode: Mode,
    /// The last writer died, or left it [broken](Guard::leave_broken).
    pub owner_died: bool,
}

/// A lock that is held. Dropping it unlocks.
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

    /// Whether the last writer died, or left it [broken](Self::leave_broken), so that what the lock protects may be half changed. Who is told so has it
    /// alone, and repairs that before it unlocks: nobody is told again.
    pub fn owner_died(&self) -> bool {
        self.held.owner_died
    }

    /// Lets go of it.
    ///
    /// # Errors
    /// [`Error::Revoked`] if the session has ended, and another one has taken the lock over.
    pub fn unlock(mut self) -> Result<()> {
        self.is_left = true;
        self.session.unlock(self.lock, self.held.mode)
    }

    /// Lets go of it, and leaves it to the next one to repair what it protects, as if this one had died. Of a lock that is held to read: as
    /// [`Guard::unlock`].
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    pub fn leave_broken(mut self) -> Result<()> {
        self.is_left = true;
        match self.held.mode {
            Mode::Read => self.session.leave_slot(self.lock),
            Mode::Write => self.session.leave_word(self.lock, BROKEN),
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
            // Whoever has lost it hears so from `unlock`.
            let _ = self.session.unlock(self.lock, self.held.mode);
        }
    }
}

impl Space {
    /// Makes the [`LOCK_BYTES`] at `at`, inside of an object, a lock that nobody has. What held it before has lost it.
    ///
    /// # Errors
    /// As [`Space::store`].
    pub fn make_lock(&self, at: GlobalAddress) -> Result<()> {
        let words = Words { space: self, at };
        (0..WORDS).try_for_each(|n| self.store(words.word(n)?, NOBODY))
    }
}

impl Session {
    /// A new lock, an object of its own; [`Space::free`] frees it, when nobody uses it any more.
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
        let held = self.acquire(lock, mode, Patience::Endless)?;
        Ok(self.guard(lock, held))
    }

    /// Takes a lock if it can be had at once: from nobody, or from the dead.
    ///
    /// # Errors
    /// As [`Session::lock`].
    pub fn try_lock(&self, lock: GlobalAddress, mode: Mode) -> Result<Option<Guard<'_>>> {
        match self.acquire(lock, mode, Patience::None) {
            Ok(held) => Ok(Some(self.guard(lock, held))),
            Err(Error::Timeout(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for a lock, for so long at most.
    ///
    /// # Errors
    /// As [`Session::lock`]; [`Error::Timeout`].
    pub fn lock_within(&self, lock: GlobalAddress, mode: Mode, patience: Nanos) -> Result<Guard<'_>> {
        let held = self.acquire(lock, mode, Patience::For(patience))?;
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

    /// Takes a lock without a guard: for those who keep account themselves, by address. [`Session::unlock`] is its end.
    ///
    /// # Errors
    /// As [`Session::lock`]; [`Error::Timeout`] if patience ran out.
    pub fn acquire(&self, lock: GlobalAddress, mode: Mode, patience: Patience) -> Result<Held> {
        let mut waiting = Waiting::new(lock, patience);
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
        self.locks.note(lock, taken.as_ref().ok().copied());
        Ok(match taken? {
            Taken::Slot(_) => Held {
                mode: Mode::Read,
                owner_died: false,
            },
            Taken::Word { owner_died } => Held {
                mode: Mode::Write,
                owner_died,
            },
        })
    }

    /// This thread is the only one of the session's that takes the lock.
    fn take(&self, lock: GlobalAddress, mode: Mode, waiting: &mut Waiting) -> Result<Taken> {
        let me = Me {
            words: Words { space: self, at: lock },
            session: self.locks.word_in(self, lock.part())?,
        };
        match mode {
            Mode::Read => me.read(waiting),
            Mode::Write => me.write(waiting),
        }
    }

    /// Lets go of a lock that this session holds so.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the session does not hold it so; [`Error::Revoked`] if it has ended, and another one has taken the lock over.
    pub fn unlock(&self, lock: GlobalAddress, mode: Mode) -> Result<()> {
        match mode {
            Mode::Read => self.leave_slot(lock),
            Mode::Write => self.leave_word(lock, NOBODY),
        }
    }

    fn leave_slot(&self, lock: GlobalAddress) -> Result<()> {
        match self.locks.leave_slot(lock)? {
            Some(slot) => self.let_go(lock, slot, NOBODY),
            None => Ok(()),
        }
    }

    fn leave_word(&self, lock: GlobalAddress, becomes: u64) -> Result<()> {
        self.locks.leave_word(lock)?;
        let left = self.let_go(lock, 0, becomes);
        self.locks.make_way(lock);
        left
    }

    fn let_go(&self, lock: GlobalAddress, word: u64, becomes: u64) -> Result<()> {
        let (words, mine) = (Words { space: self, at: lock }, self.locks.word_in(self, lock.part())?);
        match words.swap(word, mine, becomes)? {
            true => Ok(()),
            false => Err(Error::Revoked(format!(
                "the lock at {lock} is not this session's any more: it was taken over as a dead one's"
            ))),
        }
    }
}

/// What came of taking a lock.
#[derive(Debug, Clone, Copy)]
enum Taken {
    /// A reader's slot.
    Slot(u64),
    /// The writer's word, and all readers have left.
    Word { owner_died: bool },
}

/// The words of a lock.
#[derive(Clone, Copy)]
struct Words<'s> {
    space: &'s Space,
    at: GlobalAddress,
}

impl Words<'_> {
    fn word(&self, n: u64) -> Result<GlobalAddress> {
        let at = self.at.checked_add(8 * n);
        at.ok_or_else(|| Error::Invalid(format!("no lock is at {}", self.at)))
    }

    /// Who stands in a word.
    fn load(&self, n: u64) -> Result<u64> {
        self.checked(self.space.load(self.word(n)?)?)
    }

    /// The same, in an order with all changes of the word: those that it does not see come after it, and see what was done before it.
    fn load_in_order(&self, n: u64) -> Result<u64> {
        self.checked(self.space.fetch_add(self.word(n)?, 0)?)
    }

    /// Whether it was done.
    fn swap(&self, n: u64, from: u64, to: u64) -> Result<bool> {
        let found = self.space.compare_and_swap(self.word(n)?, from, to)?;
        Ok(self.checked(found)? == from)
    }

    fn checked(&self, word: u64) -> Result<u64> {
        match word & !SESSION_MASK == NOBODY {
            true => Ok(word),
            false => Err(Error::Invalid(format!("no lock is at {}: {word:#018x}", self.at))),
        }
    }
}

/// A session at a lock.
struct Me<'s> {
    words: Words<'s>,
    /// What it writes into words.
    session: u64,
}

impl Me<'_> {
    fn write(&self, waiting: &mut Waiting) -> Result<Taken> {
        loop {
            match self.words.load(0)? {
                NOBODY if self.words.swap(0, NOBODY, self.session)? => return self.clear(waiting, false),
                NOBODY => {}
                // Of the session's threads this one alone takes the lock: an answer was lost on the way from a far part.
                found if found == self.session => return self.clear(waiting, true),
                found if self.is_gone(found, waiting)? => {
                    if self.words.swap(0, found, self.session)? {
                        return self.clear(waiting, true);
                    }
                }
                _ => waiting.turn()?,
            }
        }
    }

    /// Word 0 is this session's: waits until all slots are free.
    fn clear(&self, waiting: &mut Waiting, owner_died: bool) -> Result<Taken> {
        match (1..=SLOTS).try_for_each(|slot| self.clear_slot(slot, waiting)) {
            Ok(()) => Ok(Taken::Word { owner_died }),
            Err(error) => {
                self.words
                    .swap(0, self.session, if owner_died { BROKEN } else { NOBODY })?;
                Err(error)
            }
        }
    }

    fn clear_slot(&self, slot: u64, waiting: &mut Waiting) -> Result<()> {
        loop {
            match self.words.load(slot)? {
                NOBODY => return Ok(()),
                found if self.is_gone(found, waiting)? => {
                    self.words.swap(slot, found, NOBODY)?;
                }
                _ => waiting.turn()?,
            }
        }
    }

    fn read(&self, waiting: &mut Waiting) -> Result<Taken> {
        loop {
            match self.words.load(0)? {
                NOBODY => match self.enter()? {
                    Some(taken) => return Ok(taken),
                    None => self.make_room(waiting)?,
                },
                found if found == self.session => return self.clear(waiting, true),
                found if self.is_gone(found, waiting)? => {
                    if self.words.swap(0, found, self.session)? {
                        return self.clear(waiting, true);
                    }
                }
                _ => waiting.turn()?,
            }
        }
    }

    /// Takes a slot, and leaves it again if a writer has come.
    fn enter(&self) -> Result<Option<Taken>> {
        for n in 0..SLOTS {
            let slot = 1 + (self.session + n) % SLOTS;
            if self.words.load(slot)? == NOBODY && self.words.swap(slot, NOBODY, self.session)? {
                if self.words.load_in_order(0)? == NOBODY {
                    return Ok(Some(Taken::Slot(slot)));
                }
                self.words.swap(slot, self.session, NOBODY)?;
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// After a writer has come, or with all slots taken: frees those of the dead, or waits.
    fn make_room(&self, waiting: &mut Waiting) -> Result<()> {
        let mut is_made = false;
        if waiting.may_ask() {
            for slot in 1..=SLOTS {
                let found = self.words.load(slot)?;
                is_made |= self.is_dead(found)? && self.words.swap(slot, found, NOBODY)?;
            }
        }
        if is_made { Ok(()) } else { waiting.turn() }
    }

    /// Whether who stands in a word will never leave it. The keeper is asked if it is time to.
    fn is_gone(&self, word: u64, waiting: &mut Waiting) -> Result<bool> {
        Ok(word == BROKEN || waiting.may_ask() && self.is_dead(word)?)
    }

    fn is_dead(&self, word: u64) -> Result<bool> {
        if word == self.session || word == NOBODY {
            return Ok(false);
        }
        let keeper = self.words.space.keeper_of(self.words.at.part())?;
        Ok(!keeper.is_alive(SessionId(word & SESSION_MASK))?)
    }
}

/// Somebody who waits: how long he does, and when he asks the keeper.
struct Waiting {
    lock: GlobalAddress,
    patience: Patience,
    spin: Spin,
    /// When the waiting began: with the first turn.
    began: Option<Nanos>,
    sleep: Nanos,
    ask_at: Nanos,
}

impl Waiting {
    fn new(lock: GlobalAddress, patience: Patience) -> Self {
        Self {
            lock,
            patience,
            spin: Spin::new(),
            began: None,
            sleep: SLEEP_FIRST,
            ask_at: Nanos(0),
        }
    }

    /// One turn: spins first, then sleeps for longer and longer.
    fn turn(&mut self) -> Result<()> {
        match self.spin.is_out() {
            false if self.patience != Patience::None => self.spin.turn(),
            _ => rt::sleep(self.pause()?),
        }
        Ok(())
    }

    /// How long the next sleep is.
    fn pause(&mut self) -> Result<Nanos> {
        let now = rt::now();
        let began = *self.began.get_or_insert(now);
        if self.ask_at == Nanos(0) {
            self.ask_at = began + ASK_AFTER;
        }
        let left = match self.patience {
            Patience::Endless => self.sleep,
            Patience::For(time) => (began + time).since(now),
            Patience::None => Nanos(0),
        };
        if left == Nanos(0) {
            return Err(Error::Timeout(format!("the lock at {} is not free yet", self.lock)));
        }
        let pause = left.min(self.sleep);
        self.sleep = Nanos(2 * self.sleep.raw()).min(SLEEP_MOST);
        Ok(pause)
    }

    /// Whether it is time to ask the keeper. Who has no patience asks at once.
    fn may_ask(&mut self) -> bool {
        if self.patience == Patience::None {
            return true;
        }
        let now = rt::now();
        let is_time = self.ask_at != Nanos(0) && now >= self.ask_at;
        if is_time {
            self.ask_at = now + ASK_EVERY;
        }
        is_time
    }
}

/// What a session's threads have of locks.
#[derive(Default)]
pub(super) struct Locks {
    table: Mutex<Table>,
    /// A lock of the table can be had by another thread.
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    locks: HashMap<GlobalAddress, Local>,
    /// The session's number in each part where it has asked for a lock.
    ids: BTreeMap<u8, SessionId>,
    /// Threads that wait for a change.
    waiting: u32,
}

/// A lock that threads of this session have, or take.
#[derive(Debug, Default, Clone, Copy)]
struct Local {
    /// One of them takes it in the space, or has the writer's word.
    is_busy: bool,
    has_word: bool,
    /// Those who share the slot.
    readers: u32,
    slot: u64,
}

impl Locks {
    /// What the session writes into locks of a part.
    fn word_in(&self, session: &Session, part: u8) -> Result<u64> {
        let known = self.table.lock().ids.get(&part).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let id = session.begin_in(part)?;
                self.table.lock().ids.insert(part, id);
                id
            }
        };
        match id.0 < SESSION_MASK {
            true => Ok(NOBODY | id.0),
            false => Err(Error::Invalid(format!("session {} is too many for locks", id.0))),
        }
    }

    /// Whether the slot of another reader is shared from now on. If not, this thread is to take one, and is the only one who does.
    fn share(&self, session: &Session, lock: GlobalAddress, waiting: &mut Waiting) -> Result<bool> {
        loop {
            let mut table = self.table.lock();
            let local = table.locks.entry(lock).or_default();
            if !local.is_busy && local.readers == 0 {
                local.is_busy = true;
                return Ok(false);
            }
            // A writer that waits comes first, of whatever process.
            if !local.is_busy
                && (Words {
                    space: session,
                    at: lock,
                })
                .load(0)?
                    == NOBODY
            {
                local.readers += 1;
                return Ok(true);
            }
            self.wait(table, waiting)?;
        }
    }

    /// Waits until this thread is the only one of the session that takes the lock.
    fn stand_in_line(&self, lock: GlobalAddress, waiting: &mut Waiting) -> Result<()> {
        loop {
            let mut table = self.table.lock();
            let local = table.locks.entry(lock).or_default();
            if !local.is_busy {
                local.is_busy = true;
                return Ok(());
            }
            self.wait(table, waiting)?;
        }
    }

    fn wait(&self, mut table: rt::MutexGuard<'_, Table>, waiting: &mut Waiting) -> Result<()> {
        let pause = waiting.pause()?;
        table.waiting += 1;
        let (mut table, _) = self.changed.wait_timeout(table, pause);
        table.waiting -= 1;
        Ok(())
    }

    /// What came of taking the lock.
    fn note(&self, lock: GlobalAddress, taken: Option<Taken>) {
        let mut table = self.table.lock();
        let local = table.locks.entry(lock).or_default();
        match taken {
            Some(Taken::Word { .. }) => local.has_word = true,
            Some(Taken::Slot(slot)) => {
                (local.is_busy, local.readers, local.slot) = (false, 1, slot);
            }
            None => local.is_busy = false,
        }
        self.tidy(table, lock);
    }

    /// One reader less: the slot, if it was the last.
    fn leave_slot(&self, lock: GlobalAddress) -> Result<Option<u64>> {
        let mut table = self.table.lock();
        let local = table.locks.get_mut(&lock).filter(|local| local.readers > 0);
        let local = local.ok_or_else(|| not_held(lock, "to read"))?;
        local.readers -= 1;
        let slot = (local.readers == 0).then_some(local.slot);
        self.tidy(table, lock);
        Ok(slot)
    }

    fn leave_word(&self, lock: GlobalAddress) -> Result<()> {
        let mut table = self.table.lock();
        let local = table.locks.get_mut(&lock).filter(|local| local.has_word);
        local.ok_or_else(|| not_held(lock, "to write"))?.has_word = false;
        Ok(())
    }

    /// The word has been left: the next thread may take it.
    fn make_way(&self, lock: GlobalAddress) {
        let mut table = self.table.lock();
        if let Some(local) = table.locks.get_mut(&lock) {
            local.is_busy = false;
        }
        self.tidy(table, lock);
    }

    fn tidy(&self, mut table: rt::MutexGuard<'_, Table>, lock: GlobalAddress) {
        let local = table.locks.get(&lock);
        if local.is_some_and(|local| !local.is_busy && local.readers == 0) {
            table.locks.remove(&lock);
        }
        let is_awaited = table.waiting > 0;
        drop(table);
        if is_awaited {
            self.changed.notify_all();
        }
    }
}

#[cold]
fn not_held(lock: GlobalAddress, how: &str) -> Error {
    Error::Invalid(format!("this session does not hold the lock at {lock} {how}"))
}
