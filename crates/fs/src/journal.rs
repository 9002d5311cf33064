//! Changes of several words that are all there after a kill, or none.
//!
//! The mount that has the tree's lock to write changes words in a [`Step`]. The journal, an object of the space, holds
//! what each word was:
//!
//! 1. the pair (word, what it was) is written behind the others, then the count says that it is there, then the word is
//!    changed;
//! 2. count = 0 ends the step;
//! 3. what the step takes out of the tree is freed after that.
//!
//! If the process dies in between, the mount that gets the lock next is told that its owner died, and puts the words
//! back, the last one first ([`put_back`]). Killed in that, the next one does it again.

use super::layout::{PAIRS_AT, PAIRS_MAX, at};
use super::{Failure, Result};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Session, Space};

/// Words that change together. To be ended with [`Step::commit`] or [`Step::roll_back`].
pub(super) struct Step<'s> {
    session: &'s Session,
    journal: GlobalAddress,
    pairs: u64,
    allocated: Vec<GlobalAddress>,
    freed: Vec<GlobalAddress>,
}

impl<'s> Step<'s> {
    /// The tree's lock is held to write, and the journal is empty.
    pub(super) fn begin(session: &'s Session, journal: GlobalAddress) -> Self {
        Self {
            session,
            journal,
            pairs: 0,
            allocated: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Changes a word.
    pub(super) fn put(&mut self, word: GlobalAddress, value: u64) -> Result<()> {
        let was = self.session.load(word)?;
        if was == value {
            return Ok(());
        }
        if self.pairs == PAIRS_MAX {
            return Err(Failure::Memory(Error::Invalid("a step of too many words".into())));
        }
        let pair = at(self.journal, PAIRS_AT + 16 * self.pairs);
        self.session.store(pair, word.raw())?;
        self.session.store(at(pair, 8), was)?;
        self.pairs += 1;
        self.session.store(self.journal, self.pairs)?;
        Ok(self.session.store(word, value)?)
    }

    /// Adds to a word.
    pub(super) fn add(&mut self, word: GlobalAddress, n: i64) -> Result<()> {
        let value = self.session.load(word)?.wrapping_add_signed(n);
        self.put(word, value)
    }

    /// A new object of zeros, freed if the step is taken back.
    pub(super) fn alloc(&mut self, len: u64) -> Result<GlobalAddress> {
        let address = self.session.alloc(len)?;
        self.allocated.push(address);
        Ok(address)
    }

    /// Frees an object when the step has ended well.
    pub(super) fn free(&mut self, address: GlobalAddress) {
        self.freed.push(address);
    }

    /// It is done.
    pub(super) fn commit(self) -> Result<()> {
        if self.pairs > 0 {
            self.session.store(self.journal, 0)?;
        }
        Ok(self.freed.iter().try_for_each(|address| self.session.free(*address))?)
    }

    /// Nothing of it was done.
    pub(super) fn roll_back(self) -> Result<()> {
        put_back(self.session, self.journal)?;
        Ok(self
            .allocated
            .iter()
            .try_for_each(|address| self.session.free(*address))?)
    }
}

/// Takes back a step that did not end.
pub(super) fn put_back(space: &Space, journal: GlobalAddress) -> Result<()> {
    let pairs = space.load(journal)?;
    if pairs > PAIRS_MAX {
        return Err(Error::Corrupt(format!("a journal of {pairs} words")).into());
    }
    for n in (0..pairs).rev() {
        let pair = at(journal, PAIRS_AT + 16 * n);
        let word = GlobalAddress::from_raw(space.load(pair)?);
        space.store(word, space.load(at(pair, 8))?)?;
    }
    Ok(space.store(journal, 0)?)
}
