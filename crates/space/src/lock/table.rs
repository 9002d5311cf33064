//! The locks that a session's threads have, and how its threads wait for each other.

use super::hold::Hold;
use super::layout::{Mode, NO_SESSION, SESSION_MASK, not_held};
use super::waiting::Waiting;
use super::words::{Taken, Words};
use crate::keeper::SessionId;
use crate::{GlobalAddress, Space};
use cenote_base::rt::{self, Condvar, HashMap, Mutex};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a session's threads have of locks.
#[derive(Default)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
    /// A lock of the table can be had by another thread.
    changed: Condvar,
}

#[derive(Default)]
struct LockTable {
    locks: HashMap<GlobalAddress, LocalLock>,
    /// The session's number in each part where it has asked for a lock.
    ids: BTreeMap<u8, SessionId>,
    /// Threads that wait for a change.
    waiting: u32,
}

/// A lock that threads of this session have, or take.
#[derive(Default)]
struct LocalLock {
    /// One of them takes it in the space, or has the writer's word.
    is_busy: bool,
    /// How it is held to write, by the thread that has the word. Threads can share the slot then too: of a session that
    /// its keeper has ended, another session frees the slot, so that a thread that waits for it goes on.
    word: Option<Arc<Hold>>,
    /// Threads that share the slot, and how it is held to read.
    readers: u32,
    slot: Option<(u64, Arc<Hold>)>,
}

impl LocalLock {
    /// How it is held, by whichever of them.
    fn hold(&self) -> Option<&Arc<Hold>> {
        self.word.as_ref().or(self.slot.as_ref().map(|(_, hold)| hold))
    }
}

/// The slot that a session's last reader leaves.
pub(super) struct Leaving {
    pub(super) slot: u64,
    /// No other thread of the session stands in line: then this one calls [`Locks::make_way`].
    pub(super) is_first: bool,
}

impl Locks {
    /// What the session writes into locks of a part; `begin` makes it known to the part's keeper.
    pub(super) fn word_in(&self, part: u8, begin: impl FnOnce() -> Result<SessionId>) -> Result<u64> {
        let known = self.table.lock().ids.get(&part).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let id = begin()?;
                self.table.lock().ids.insert(part, id);
                id
            }
        };
        match id.0 < SESSION_MASK {
            true => Ok(NO_SESSION | id.0),
            false => Err(Error::Invalid(format!("session {} is too many for locks", id.0))),
        }
    }

    /// Whether the slot of another reader is shared from now on. If not, this thread is to take one, and is the only
    /// one that does.
    pub(super) fn share(&self, space: &Space, lock: GlobalAddress, waiting: &mut Waiting) -> Result<bool> {
        loop {
            let mut table = self.table.lock();
            let local = table.locks.entry(lock).or_default();
            if !local.is_busy && local.readers == 0 {
                local.is_busy = true;
                return Ok(false);
            }
            if local.is_busy {
                self.wait(table, waiting)?;
                continue;
            }
            drop(table);
            // A writer that waits comes first, of whatever process.
            let words = Words { space, at: lock };
            let is_awaited = words.load(0)? != NO_SESSION;
            let mut table = self.table.lock();
            let local = table.locks.get_mut(&lock);
            let shared = local.filter(|local| !is_awaited && !local.is_busy && local.readers > 0);
            if let Some(local) = shared {
                local.readers += 1;
                return Ok(true);
            }
            if is_awaited {
                self.wait(table, waiting)?;
            }
        }
    }

    /// Waits until this thread is the only one of the session that takes the lock.
    pub(super) fn stand_in_line(&self, lock: GlobalAddress, waiting: &mut Waiting) -> Result<()> {
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

    fn wait(&self, mut table: rt::MutexGuard<'_, LockTable>, waiting: &mut Waiting) -> Result<()> {
        let pause = waiting.pause()?;
        table.waiting += 1;
        let (mut table, _) = self.changed.wait_timeout(table, pause);
        assert!(table.waiting > 0, "a thread that waited was not counted");
        table.waiting -= 1;
        Ok(())
    }

    /// What came of taking the lock.
    pub(super) fn note(&self, lock: GlobalAddress, taken: Option<(Taken, Arc<Hold>)>) {
        let mut table = self.table.lock();
        let local = table.locks.entry(lock).or_default();
        assert!(
            local.is_busy,
            "the lock at {lock} was taken by a thread that did not stand in line"
        );
        assert!(local.word.is_none(), "the lock at {lock} was taken twice");
        match taken {
            Some((Taken::Word { .. }, hold)) => local.word = Some(hold),
            Some((Taken::Slot { slot, .. }, hold)) => {
                assert_eq!(local.readers, 0, "readers of one session have one slot");
                (local.is_busy, local.readers, local.slot) = (false, 1, Some((slot, hold)));
            }
            None => local.is_busy = false,
        }
        self.tidy(table, lock);
    }

    /// How a lock is held.
    pub(super) fn held(&self, lock: GlobalAddress) -> Result<Arc<Hold>> {
        let table = self.table.lock();
        let hold = table.locks.get(&lock).and_then(LocalLock::hold);
        hold.map(Arc::clone).ok_or_else(|| not_held(lock, "at all"))
    }

    /// One reader less: what is to be left, if it was the last. Until [`Locks::make_way`] no thread of the session
    /// takes a slot: it would be freed with this one, if an answer is lost and the freeing is tried again.
    pub(super) fn leave_slot(&self, lock: GlobalAddress) -> Result<Option<Leaving>> {
        let mut table = self.table.lock();
        let local = table.locks.get_mut(&lock).filter(|local| local.readers > 0);
        let local = local.ok_or_else(|| not_held(lock, Mode::Read.purpose()))?;
        local.readers -= 1;
        if local.readers > 0 {
            return Ok(None);
        }
        let (slot, _) = local.slot.take().expect("readers have a slot");
        let is_first = !local.is_busy;
        local.is_busy = true;
        Ok(Some(Leaving { slot, is_first }))
    }

    /// The session ends: of what its threads have written under locks that they have still, nothing is done after this,
    /// but what was given up.
    pub(crate) fn abandon(&self, space: &Space) {
        let table = self.table.lock();
        let held: Vec<_> = table.locks.values().filter_map(|local| local.word.clone()).collect();
        drop(table);
        held.iter().for_each(|hold| hold.abandon(space));
    }

    /// The word is about to be left; until [`Locks::make_way`] no thread of the session takes it.
    pub(super) fn leave_word(&self, lock: GlobalAddress) -> Result<Arc<Hold>> {
        let mut table = self.table.lock();
        let hold = table.locks.get_mut(&lock).and_then(|local| {
            let is_free = local.word.is_some() && !local.is_busy;
            assert!(!is_free, "the lock at {lock} is held and may be taken");
            local.word.take()
        });
        hold.ok_or_else(|| not_held(lock, Mode::Write.purpose()))
    }

    /// The word has been left: the next thread may take it.
    pub(super) fn make_way(&self, lock: GlobalAddress) {
        let mut table = self.table.lock();
        if let Some(local) = table.locks.get_mut(&lock) {
            assert!(
                local.is_busy && local.word.is_none(),
                "the lock at {lock} was not left before"
            );
            local.is_busy = false;
        }
        self.tidy(table, lock);
    }

    fn tidy(&self, mut table: rt::MutexGuard<'_, LockTable>, lock: GlobalAddress) {
        let local = table.locks.get(&lock);
        assert!(
            local.is_none_or(|local| local.is_busy || local.word.is_none()),
            "the lock at {lock} is held and may be taken"
        );
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
