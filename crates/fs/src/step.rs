//! Changes of several words of the tree that are all there after a kill, or none.
//!
//! The mount that has the tree's lock to write changes words in a [`Step`], by the file system's
//! [journal](cenote_space::journal). What the step takes out of the tree is freed when it has ended, and what it has
//! allocated is freed when it was taken back. An object whose freeing fails then is one that nothing refers to:
//! [`FileSystem::check`](super::FileSystem::check) finds it.
//!
//! If the process dies in between, the mount that gets the lock next is told that its owner died, and puts the words
//! back ([`put_back`]).

use super::Result;
use super::layout::JOURNAL;
use cenote_space::journal::{Journal, Mark};
use cenote_space::{GlobalAddress, Session, Space};

/// Words that change together. To be ended with [`Step::commit`] or [`Step::roll_back`].
pub(super) struct Step<'s> {
    session: &'s Session,
    journal: Journal,
    allocated: Vec<GlobalAddress>,
    freed: Vec<GlobalAddress>,
}

impl<'s> Step<'s> {
    /// The tree's lock is held to write, and the journal is empty.
    pub(super) fn begin(session: &'s Session, journal: GlobalAddress) -> Self {
        Self {
            session,
            journal: Journal::new(journal, JOURNAL),
            allocated: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Changes a word.
    pub(super) fn put(&mut self, word: GlobalAddress, value: u64) -> Result<()> {
        Ok(self.journal.put(self.session, word, value)?)
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
    ///
    /// # Errors
    /// Whether it is done is open: the lock's next owner finds out.
    pub(super) fn commit(mut self) -> Result<()> {
        self.journal.end(self.session)?;
        free_all(self.session, &self.freed);
        Ok(())
    }

    /// Nothing of it was done.
    ///
    /// # Errors
    /// It is half done: the lock's next owner takes the rest of it back.
    pub(super) fn roll_back(mut self) -> Result<()> {
        self.journal.undo(self.session, Mark::BEGIN)?;
        free_all(self.session, &self.allocated);
        Ok(())
    }
}

fn free_all(space: &Space, objects: &[GlobalAddress]) {
    for object in objects {
        // Nothing refers to it, so what the step did holds also if it stays.
        let _ = space.free(*object);
    }
}

/// Takes back a step that did not end.
pub(super) fn put_back(space: &Space, journal: GlobalAddress) -> Result<()> {
    Ok(Journal::new(journal, JOURNAL).recover(space)?)
}
