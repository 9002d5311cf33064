//! Changes that are made if a key has what the caller believes: the ground for counters, locks and transactions.
//!
//! A value is known again by its generation, which no other value ever has. A version begins at 1 again where a key was
//! removed in between.

use super::Store;
use super::link::OnEntry;
use super::put::PutOptions;
use super::read::Value;
use cenote_base::Result;

/// What a key must have for a change to be made. A value that has expired is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// A value or none.
    Any,
    /// No value.
    Absent,
    /// A value.
    Present,
    /// The value with this [generation](Value::generation).
    Generation(u64),
}

impl Expected {
    fn on_entry(self) -> OnEntry {
        match self {
            Self::Any => OnEntry::Replace,
            Self::Absent => OnEntry::Keep,
            Self::Present => OnEntry::Present,
            Self::Generation(generation) => OnEntry::Sequence(generation),
        }
    }
}

impl Store {
    /// Puts a value if the key has what is expected, in one step: the value as it is there now, or `None` if the key has
    /// something else. `options.replaces` is not looked at.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn compare_and_put(
        &self,
        key: &[u8],
        value: &[u8],
        expected: Expected,
        options: PutOptions,
    ) -> Result<Option<Value>> {
        let key = self.core.key(key)?;
        let stored = self.core.put_if(&key, value, &options, expected.on_entry())?;
        Ok(stored.map(|header| Value::of(&header)))
    }

    /// Takes a key's value out if it is the one with this generation: whether it was.
    ///
    /// # Errors
    /// As [`Store::remove`].
    pub fn compare_and_remove(&self, key: &[u8], generation: u64) -> Result<bool> {
        self.core.remove_if(&self.core.key(key)?, OnEntry::Sequence(generation))
    }

    /// What there is to know of a key's value, without its bytes.
    ///
    /// # Errors
    /// As [`Store::exists`].
    pub fn value_of(&self, key: &[u8]) -> Result<Option<Value>> {
        let found = self.core.find_fresh(&self.core.key(key)?)?;
        Ok(found.map(|found| Value::of(&found.header)))
    }
}
