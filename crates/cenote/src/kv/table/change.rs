//! A change that depends on what is there: read, computed, and put if nothing has come between; otherwise again.

use super::{Table, refusal};
use crate::kv::refusal::Refusal;
use cenote_base::rt::{self, Nanos};
use cenote_store::{Expected, Value};

/// How long it is tried: the thread's other clients wait meanwhile. Each time another change of the same key was done.
const TIME_MAX: Nanos = Nanos::from_millis(200);
/// How often at least, though a thread that does not run loses its time.
const TURNS_MIN: u32 = 8;

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
        let (mut new, mut turns, began) = (Vec::new(), 0, rt::now());
        while turns < TURNS_MIN || rt::now().since(began) < TIME_MAX {
            turns += 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_space::{Space, SpaceOptions};
    use cenote_store::{Options, PutOptions, Store};

    /// The thread's other clients wait as long.
    #[test]
    fn a_key_that_others_change_all_the_time_is_given_up_soon() {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&options).expect("memory");
        let store = Store::create(&space, Options::default()).expect("a store");
        let mut table = Table::new(store, PutOptions::default());
        let (other, mut turns) = (table.clone(), 0);
        let changed = table.change(b"key", |_, _, new| {
            turns += 1;
            rt::sleep(Nanos::from_millis(10));
            other.set(b"key", b"another's", 0)?;
            new.push(b'v');
            Ok((Change::Put { expires: 0 }, ()))
        });
        assert!(changed.is_err_and(|refusal| refusal.text().starts_with("BUSY ")));
        assert!((TURNS_MIN..=20).contains(&turns), "{turns} turns");
    }
}
