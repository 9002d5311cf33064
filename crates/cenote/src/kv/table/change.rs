//! A change that depends on what is there: read, computed, and put if nothing has come between; otherwise again.

use super::{Table, refusal};
use crate::kv::refusal::Refusal;
use cenote_store::{Expected, Value};

/// How often it is tried. Each time another change of the same key was done.
const TURNS: u32 = 10_000;

/// What becomes of the key.
pub enum Change {
    /// It stays as it is.
    None,
    /// It gets the new value, until a time in microseconds since 1970; 0: for ever.
    Put { expires: u64 },
    /// It goes.
    Remove,
}

impl Table {
    /// Changes a key as `decide` says, which is told what is there and its bytes, and may write new ones.
    ///
    /// # Errors
    /// That of `decide`; the store's; that others change the key all the time.
    pub fn change<T>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Value>, &[u8], &mut Vec<u8>) -> Result<(Change, T), Refusal>,
    ) -> Result<T, Refusal> {
        let mut new = Vec::new();
        for _ in 0..TURNS {
            let found = self.read(key)?;
            new.clear();
            let (change, told) = decide(found, self.bytes(), &mut new)?;
            if self.apply(key, found, &change, &new)? {
                return Ok(told);
            }
        }
        Err(Refusal::Says("BUSY others change this key all the time: try again"))
    }

    /// Whether nothing had come between.
    fn apply(&self, key: &[u8], found: Option<Value>, change: &Change, new: &[u8]) -> Result<bool, Refusal> {
        let done = match (change, found) {
            (Change::None, _) | (Change::Remove, None) => Ok(true),
            (Change::Remove, Some(value)) => self.store.compare_and_remove(key, value.generation),
            (Change::Put { expires }, found) => {
                let expected = found.map_or(Expected::Absent, |value| Expected::Generation(value.generation));
                let put = self
                    .store
                    .compare_and_put_until(key, new, expected, *expires, self.options);
                put.map(|put| put.is_some())
            }
        };
        done.map_err(refusal)
    }
}
