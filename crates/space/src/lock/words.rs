//! The words of a lock, and how a session takes and leaves them. Steps that follow each other are one sequence, so that
//! one trip is enough for a lock that lies in another pod.

use super::layout::{BROKEN, NO_SESSION, SESSION_MASK, SLOTS, VERSION, WORDS, next, taken_over};
use super::waiting::Waiting;
use crate::act::{Act, Step};
use crate::keeper::SessionId;
use crate::{GlobalAddress, Space};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Result};

/// What came of taking a lock. The version is that of what it protects, for as long as it is held to read, or until it
/// was held to write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Taken {
    /// A reader's slot.
    Slot { slot: u64, version: u64 },
    /// The writer's word, and all readers have left.
    Word { owner_died: bool, version: u64 },
}

/// The words of a lock.
#[derive(Clone, Copy)]
pub(super) struct Words<'s> {
    pub(super) space: &'s Space,
    pub(super) at: GlobalAddress,
}

impl Words<'_> {
    pub(super) fn word(&self, n: u64) -> Result<GlobalAddress> {
        assert!(n < WORDS, "a lock has no word {n}");
        let at = self.at.checked_add(8 * n);
        at.ok_or_else(|| Error::Invalid(format!("no lock is at {}", self.at)))
    }

    /// The session that stands in a word.
    pub(super) fn load(&self, n: u64) -> Result<u64> {
        self.checked(self.space.load(self.word(n)?)?)
    }

    /// Whether it was done.
    pub(super) fn swap(&self, n: u64, from: u64, to: u64) -> Result<bool> {
        let found = self.space.compare_and_swap(self.word(n)?, from, to)?;
        Ok(self.checked(found)? == from)
    }

    pub(super) fn checked(&self, word: u64) -> Result<u64> {
        match word & !SESSION_MASK == NO_SESSION {
            true => Ok(word),
            false => Err(Error::Invalid(format!("no lock is at {}: {word:#018x}", self.at))),
        }
    }

    /// Swaps the writer's word, *then* reads the others.
    fn swap_and_look(&self, from: u64, to: u64) -> Result<[u64; WORDS as usize]> {
        let mut steps = [const { (GlobalAddress::NULL, Act::Load) }; WORDS as usize];
        for (n, step) in steps.iter_mut().enumerate() {
            step.0 = self.word(n as u64)?;
        }
        steps[0].1 = Act::Swap {
            expected: from,
            new: to,
        };
        self.follow(&mut steps)
    }

    /// Does the steps; what they found, which must be a lock's.
    fn follow<const N: usize>(&self, steps: &mut [Step<'_>; N]) -> Result<[u64; N]> {
        let mut found = [0; N];
        self.space.act_in_order(steps, &mut found)?;
        found.iter().try_for_each(|word| self.checked(*word).map(drop))?;
        Ok(found)
    }

    /// Frees a reader's slot. If the answer is lost it is tried again, and nothing to be done is as good.
    pub(super) fn leave_slot(&self, slot: u64, session: u64) -> Result<()> {
        assert!((1..=SLOTS).contains(&slot), "word {slot} is no reader's slot");
        match self.swap(slot, session, NO_SESSION) {
            Ok(true) => Ok(()),
            Ok(false) => Err(taken_over(self.at)),
            Err(Error::Lost(_)) => self.swap(slot, session, NO_SESSION).map(drop),
            Err(error) => Err(error),
        }
    }

    /// Whether the session has begun and not ended.
    pub(super) fn is_alive(&self, session: u64) -> Result<bool> {
        let keeper = self.space.keeper_of(self.at.part())?;
        keeper.is_alive(SessionId(session & SESSION_MASK))
    }
}

/// A session at a lock.
pub(super) struct Me<'s> {
    pub(super) words: Words<'s>,
    /// What it writes into words.
    pub(super) session: u64,
}

impl Me<'_> {
    pub(super) fn write(&self, waiting: &mut Waiting) -> Result<Taken> {
        // It swaps before it looks: a look would be a trip, and mostly the lock is free.
        let mut found = NO_SESSION;
        loop {
            if found == NO_SESSION {
                let words = self.or_undo((0, NO_SESSION), self.words.swap_and_look(NO_SESSION, self.session))?;
                if words[0] == NO_SESSION {
                    return self.clear(&words, waiting, false);
                }
                found = words[0];
            }
            if let Some(taken) = self.take_over(found, waiting)? {
                return Ok(taken);
            }
            found = self.words.load(0)?;
            if found != NO_SESSION && found != self.session && found != BROKEN {
                waiting.turn()?;
            }
        }
    }

    /// The writer's word holds this. If no living session is behind it any more, the lock is taken to write, and its
    /// owner died.
    fn take_over(&self, found: u64, waiting: &mut Waiting) -> Result<Option<Taken>> {
        assert_ne!(found, NO_SESSION, "a free lock is taken, not taken over");
        // Of the session's threads this one alone takes the lock: if its own number is there, an answer was lost on the
        // way from a far part.
        let is_gone = found == self.session || self.is_gone(found, waiting)?;
        if !is_gone {
            return Ok(None);
        }
        if found == self.session {
            // What it has given up is not to come after what it does now.
            self.words.space.settle()?;
        }
        let mut words = self.or_undo((0, BROKEN), self.words.swap_and_look(found, self.session))?;
        if words[0] != found {
            return Ok(None);
        }
        // So what the last one sent, and what comes late, finds that it is not its time any more.
        let version = &mut words[VERSION as usize];
        while !self.words.swap(VERSION, *version, next(*version))? {
            *version = self.words.load(VERSION)?;
        }
        *version = next(*version);
        self.clear(&words, waiting, !planted(Fault::OwnerUntold)).map(Some)
    }

    /// Word 0 is this session's: waits until all slots are free, as far as they were not when it was taken.
    fn clear(&self, words: &[u64; WORDS as usize], waiting: &mut Waiting, owner_died: bool) -> Result<Taken> {
        let mut taken = (1..=SLOTS).filter(|slot| words[*slot as usize] != NO_SESSION);
        match taken.try_for_each(|slot| self.clear_slot(slot, waiting)) {
            Ok(()) => Ok(Taken::Word {
                owner_died,
                version: words[VERSION as usize],
            }),
            Err(error) => {
                self.words
                    .swap(0, self.session, if owner_died { BROKEN } else { NO_SESSION })?;
                Err(error)
            }
        }
    }

    fn clear_slot(&self, slot: u64, waiting: &mut Waiting) -> Result<()> {
        loop {
            match self.words.load(slot)? {
                NO_SESSION => return Ok(()),
                found if self.is_gone(found, waiting)? => {
                    self.words.swap(slot, found, NO_SESSION)?;
                }
                _ => waiting.turn()?,
            }
        }
    }

    pub(super) fn read(&self, waiting: &mut Waiting) -> Result<Taken> {
        let (mut slot, mut found) = (1 + self.session % SLOTS, NO_SESSION);
        loop {
            if found == NO_SESSION {
                if let Some(taken) = self.enter(slot)? {
                    return Ok(taken);
                }
                found = self.words.load(0)?;
                if found == NO_SESSION {
                    slot = self.find_slot(slot, waiting)?;
                    continue;
                }
            }
            match self.take_over(found, waiting)? {
                Some(taken) => return Ok(taken),
                None => waiting.turn()?,
            }
            found = self.words.load(0)?;
        }
    }

    /// Takes a slot, *then* looks whether a writer has come, and leaves it again if so.
    fn enter(&self, slot: u64) -> Result<Option<Taken>> {
        assert!((1..=SLOTS).contains(&slot), "word {slot} is no reader's slot");
        let words = &self.words;
        let swap = Act::Swap {
            expected: NO_SESSION,
            new: self.session,
        };
        // Adding nothing to the writer's word is a change in an order with all others: those that it does not see come
        // after it, and see the slot.
        let mut steps = [
            (words.word(slot)?, swap),
            (words.word(0)?, Act::Add(0)),
            (words.word(VERSION)?, Act::Load),
        ];
        let [found, writer, version] = self.or_undo((slot, NO_SESSION), words.follow(&mut steps))?;
        match (found, writer) {
            (NO_SESSION, _) if planted(Fault::ReaderLook) => Ok(Some(Taken::Slot { slot, version })),
            (NO_SESSION, NO_SESSION) => Ok(Some(Taken::Slot { slot, version })),
            (NO_SESSION, _) => words.leave_slot(slot, self.session).map(|()| None),
            _ => Ok(None),
        }
    }

    /// What was found; after an error it is not known whether the word was taken, so it is put back as far as that can
    /// be done.
    fn or_undo<const N: usize>(&self, (word, becomes): (u64, u64), found: Result<[u64; N]>) -> Result<[u64; N]> {
        if found.is_err() {
            let _ = self.words.swap(word, self.session, becomes);
        }
        found
    }

    /// A slot that is free, after looking at all; with all of them taken, one of the dead is freed, or it is waited.
    /// `last` was not free.
    fn find_slot(&self, last: u64, waiting: &mut Waiting) -> Result<u64> {
        let may_ask = waiting.may_ask();
        for n in 0..SLOTS {
            let slot = 1 + (last + n) % SLOTS;
            let found = self.words.load(slot)?;
            if found == NO_SESSION || may_ask && self.is_dead(found)? && self.words.swap(slot, found, NO_SESSION)? {
                return Ok(slot);
            }
        }
        waiting.turn().map(|()| last)
    }

    /// Whether the session that stands in a word will never leave it. The keeper is asked if it is time to.
    fn is_gone(&self, word: u64, waiting: &mut Waiting) -> Result<bool> {
        Ok(word == BROKEN || waiting.may_ask() && self.is_dead(word)?)
    }

    fn is_dead(&self, word: u64) -> Result<bool> {
        if word == self.session || word == NO_SESSION {
            return Ok(false);
        }
        self.words.is_alive(word).map(|is_alive| !is_alive)
    }
}
