//! An undo journal: changes of several words of a space that are all there after a kill, or none.
//!
//! The journal is an object of the space and holds what each word was:
//!
//! ```text
//!   0 u64 count   8 reserved   16 (u64 address of a word, u64 what it was) count times
//! ```
//!
//! 1. the pair (word, what it was) is written behind the others, then `count` says that it is there, then the word is
//!    changed ([`Journal::put`]);
//! 2. `count` = 0 ends the step: all of its words are as they should be ([`Journal::end`]);
//! 3. what the step takes out of use is freed after that, by the journal's owner.
//!
//! The next owner puts the words of a step that was cut off back, the last one first, and then sets `count` to 0
//! ([`Journal::recover`]). Killed in that, the one after it does it again.
//!
//! Invariants:
//! 1. a pair is counted in the journal before its word is changed;
//! 2. the counted pairs are those of one step;
//! 3. one process at a time uses a journal: a lock, or that the space has one user, sees to that.
//!
//! A step whose end or undoing fails, since memory answers with an error, stays in the journal. Its owner changes
//! nothing more then, and leaves the step to the next owner.

use super::{GlobalAddress, Space};
use cenote_base::{Error, Result};

const PAIRS_AT: u64 = 16;
const PAIR: u64 = 16;
const _: () = assert!(
    PAIRS_AT >= size_of::<u64>() as u64 && PAIR == 2 * size_of::<u64>() as u64,
    "the count lies before the pairs, and a pair is two words"
);

/// An undo journal. See the module.
#[derive(Debug)]
pub struct Journal {
    at: GlobalAddress,
    bytes: u64,
    /// Pairs that may be counted in it.
    pairs: u64,
}

/// A place in a step: [`Journal::undo`] takes back what came after it.
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

impl Mark {
    /// Where a step begins.
    pub const BEGIN: Self = Self(0);
}

impl Journal {
    /// The journal in the object of `bytes` bytes at `at`. It counts as empty: an owner that takes it up calls
    /// [`Journal::recover`] first.
    pub const fn new(at: GlobalAddress, bytes: u64) -> Self {
        Self { at, bytes, pairs: 0 }
    }

    /// Pairs that a journal of so many bytes has room for.
    pub const fn room_of(bytes: u64) -> u64 {
        bytes.saturating_sub(PAIRS_AT) / PAIR
    }

    /// Where it lies.
    pub const fn at(&self) -> GlobalAddress {
        self.at
    }

    /// Bytes of its object.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no room for another pair.
    pub const fn is_full(&self) -> bool {
        self.pairs >= Self::room_of(self.bytes)
    }

    /// The place that the step has come to.
    pub const fn mark(&self) -> Mark {
        Mark(self.pairs)
    }

    /// Takes back the step that a former owner did not end, if there is one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if more pairs are counted than there is room for; those of [`Space::store`].
    pub fn recover(&mut self, space: &Space) -> Result<()> {
        let (pairs, room) = (space.load(self.at)?, Self::room_of(self.bytes));
        if pairs > room {
            let at = self.at;
            return Err(Error::Corrupt(format!(
                "the journal at {at} counts {pairs} words and has room for {room}"
            )));
        }
        self.pairs = pairs;
        self.undo(space, Mark::BEGIN)
    }

    /// Changes a word within the step. A word that has the value already takes no pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the journal [is full](Journal::is_full); those of [`Space::store`].
    pub fn put(&mut self, space: &Space, word: GlobalAddress, value: u64) -> Result<()> {
        let was = space.load(word)?;
        if was == value {
            return Ok(());
        }
        if self.is_full() {
            let (at, pairs) = (self.at, self.pairs);
            return Err(Error::Invalid(format!(
                "a step changes more than the {pairs} words that the journal at {at} has room for"
            )));
        }
        let pair = self.pair(self.pairs)?;
        space.store(pair, word.raw())?;
        space.store(inside(pair, 8)?, was)?;
        // A store that fails may be done: from here on the pair counts as counted.
        self.pairs += 1;
        space.store(self.at, self.pairs)?;
        space.store(word, value)
    }

    /// Ends the step: all of its changes are there to stay.
    ///
    /// # Errors
    /// Those of [`Space::store`]. Whether the step has ended is open then: the next owner finds out.
    pub fn end(&mut self, space: &Space) -> Result<()> {
        if self.pairs > 0 {
            space.store(self.at, 0)?;
            self.pairs = 0;
        }
        Ok(())
    }

    /// Takes back what was changed since a mark of the same step.
    ///
    /// # Errors
    /// Those of [`Space::store`]. The step is half done then: [`Journal::recover`] takes the rest of it back.
    pub fn undo(&mut self, space: &Space, to: Mark) -> Result<()> {
        if self.pairs <= to.0 {
            return Ok(());
        }
        for n in (to.0..self.pairs).rev() {
            let pair = self.pair(n)?;
            let word = GlobalAddress::from_raw(space.load(pair)?);
            space.store(word, space.load(inside(pair, 8)?)?)?;
        }
        space.store(self.at, to.0)?;
        self.pairs = to.0;
        Ok(())
    }

    /// Moves it with its pairs to another object of zeros, which the word at `referrer` refers to from then on. The
    /// answer is the former object, which nothing refers to any more.
    ///
    /// # Errors
    /// Those of [`Space::write`]; [`Error::Invalid`] if there is less room. Which of the two objects the word refers
    /// to is open then.
    pub fn move_to(
        &mut self,
        space: &Space,
        at: GlobalAddress,
        bytes: u64,
        referrer: GlobalAddress,
    ) -> Result<GlobalAddress> {
        if Self::room_of(bytes) < self.pairs {
            let pairs = self.pairs;
            return Err(Error::Invalid(format!(
                "{bytes} bytes at {at} are no room for a journal of {pairs} words"
            )));
        }
        let mut held = vec![0; (PAIRS_AT + self.pairs * PAIR) as usize];
        space.read(self.at, &mut held)?;
        space.write(at, &held)?;
        space.store(referrer, at.raw())?;
        self.bytes = bytes;
        Ok(core::mem::replace(&mut self.at, at))
    }

    fn pair(&self, n: u64) -> Result<GlobalAddress> {
        inside(self.at, PAIRS_AT + n * PAIR)
    }
}

fn inside(at: GlobalAddress, bytes: u64) -> Result<GlobalAddress> {
    at.checked_add(bytes)
        .ok_or_else(|| Error::Corrupt(format!("{bytes} bytes behind {at} there is nothing")))
}

#[cfg(test)]
mod tests;
