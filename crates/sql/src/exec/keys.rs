//! Keys of rows that a statement has found and is about to change, or has changed: charged to the session.

use crate::error::Result;
use cenote_engine::{Account, Charge};
use std::collections::HashSet;
use std::sync::Arc;

/// Memory of a key in a set, beside the key.
const SET_BYTES: usize = 64;

/// A list of keys, end to end in one buffer.
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    memory: Charge,
}

impl Keys {
    /// Empty.
    pub fn new(account: &Arc<Account>) -> Keys {
        Keys {
            bytes: Vec::new(),
            ends: Vec::new(),
            memory: Charge::new(account),
        }
    }

    /// Adds a key.
    ///
    /// # Errors
    /// 53200: the session may gather no more.
    pub fn push(&mut self, key: &[u8]) -> Result<()> {
        self.memory.grow(key.len() + size_of::<usize>())?;
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The keys, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// A set of keys.
#[derive(Default)]
pub struct Seen {
    keys: HashSet<Vec<u8>>,
    memory: Option<Charge>,
}

impl Seen {
    /// Adds a key; false if it is there already.
    ///
    /// # Errors
    /// 53200: the session may gather no more.
    pub fn insert(&mut self, key: Vec<u8>, account: &Arc<Account>) -> Result<bool> {
        let memory = self.memory.get_or_insert_with(|| Charge::new(account));
        memory.grow(key.len() + SET_BYTES)?;
        Ok(self.keys.insert(key))
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }
}
