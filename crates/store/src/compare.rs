//! Changes that are made if a key has what the caller believes: the ground for counters, locks and transactions.
//!
//! A value is known again by its generation, which no other value ever has. A version begins at 1 again where a key was
//! removed in between. (What was spilled to a file has its generation still; what is in memory again has another.)

use super::Store;
use super::core::{Core, Key};
use super::link::OnEntry;
use super::put::PutOptions;
use super::read::{Attempt, Value};
use cenote_base::{Error, Result};

/// How often a comparison begins anew.
const TURNS: u32 = 100;

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

impl Store {
    /// Puts a value if the key has what is expected, in one step: the value as it is there now, or `None` if the key
    /// has something else. `options.replaces` is not looked at.
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
        self.compare_and_put_until(key, value, expected, options.expires(), options)
    }

    /// As [`compare_and_put`](Self::compare_and_put), of a value that is there until a time, in microseconds since
    /// 1970; 0: without end. So a value that takes another's place has its expiry and none later.
    /// `options.time_to_live` is not looked at.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn compare_and_put_until(
        &self,
        key: &[u8],
        value: &[u8],
        expected: Expected,
        expires: u64,
        options: PutOptions,
    ) -> Result<Option<Value>> {
        let key = self.core.key(key)?;
        let put = |on_entry| self.core.put_if(&key, value, (&options, expires), on_entry);
        let stored = match expected {
            Expected::Any => put(OnEntry::Replace)?,
            Expected::Absent => put(OnEntry::Keep)?,
            Expected::Present => put(OnEntry::Present)?,
            Expected::Generation(generation) => self.core.with_generation(&key, generation, put)?,
        };
        Ok(stored.map(|header| Value::of(&header)))
    }

    /// Takes a key's value out if it is the one with this generation: whether it was.
    ///
    /// # Errors
    /// As [`Store::remove`].
    pub fn compare_and_remove(&self, key: &[u8], generation: u64) -> Result<bool> {
        let key = self.core.key(key)?;
        let remove = |on_entry| Ok(self.core.remove_if(&key, on_entry)?.then_some(()));
        Ok(self.core.with_generation(&key, generation, remove)?.is_some())
    }

    /// What there is to know of a key's value, without its bytes.
    ///
    /// # Errors
    /// As [`Store::exists`].
    pub fn value_of(&self, key: &[u8]) -> Result<Option<Value>> {
        let key = self.core.key(key)?;
        for _ in 0..TURNS {
            let Some(found) = self.core.find_fresh(&key)? else {
                return Ok(None);
            };
            if let Attempt::Done(value) = self.core.value_at(&found, &key)? {
                return Ok(value);
            }
        }
        Err(Error::Busy("the value is replaced faster than it is looked at".into()))
    }
}

impl Core {
    /// Does a step that the item of the value with this generation allows; again if the value has gone to a file, or
    /// come from there, meanwhile.
    fn with_generation<T>(
        &self,
        key: &Key<'_>,
        generation: u64,
        mut step: impl FnMut(OnEntry) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for _ in 0..TURNS {
            let Some(found) = self.find_fresh(key)? else {
                return Ok(None);
            };
            let Attempt::Done(value) = self.value_at(&found, key)? else {
                continue;
            };
            if value.is_none_or(|value| value.generation != generation) {
                return Ok(None);
            }
            let done = step(OnEntry::Sequence(found.header.control.sequence()))?;
            if done.is_some() {
                return Ok(done);
            }
        }
        Err(Error::Busy(
            "the value goes to files and back faster than it is compared".into(),
        ))
    }
}
