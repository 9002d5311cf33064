//! What callers do, one by one and in batches with a result a key.

use super::Store;
use super::borrow::Pin;
use super::put::{Put, PutOptions};
use super::read::Value;
use cenote_base::Result;

/// Which keys of a batch are there.
#[derive(Default)]
pub struct Presence {
    /// By key.
    pub found: Vec<bool>,
    /// How many of the first keys are all there.
    pub prefix: usize,
    /// Where pins were asked for: one for each key that is there.
    pub pins: Vec<Pin>,
}

impl Store {
    /// Puts a value.
    ///
    /// # Errors
    /// [`Invalid`](cenote_base::Error::Invalid): the key or the value is too long, or the tenant is none; [`Full`](cenote_base::Error::Full): there is no room and
    /// nothing to evict; [`Lost`](cenote_base::Error::Lost): the key's place in the table lies in a part that is not there; those of the
    /// space. After [`Lost`](cenote_base::Error::Lost) and [`Timeout`](cenote_base::Error::Timeout) it was put or not.
    pub fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Put> {
        self.core.put(key, value, &options)
    }

    /// Copies a key's value; what is lost, damaged, expired or evicted is not there. `into` may be longer.
    ///
    /// # Errors
    /// [`OutOfBounds`](cenote_base::Error::OutOfBounds) if `into` is too short: the text says how long the value is; [`Invalid`](cenote_base::Error::Invalid) if the key
    /// is none; those of the space.
    pub fn get_into(&self, key: &[u8], into: &mut [u8]) -> Result<Option<Value>> {
        self.core.read_to(key, into)
    }

    /// A copy of a key's value.
    ///
    /// # Errors
    /// As [`Store::get_into`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_versioned(key)?.map(|(bytes, _)| bytes))
    }

    /// A copy of a key's value, and what there is to know of it.
    ///
    /// # Errors
    /// As [`Store::get_into`].
    pub fn get_value(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Value)>> {
        let mut bytes = Vec::new();
        let value = self.core.read_to(key, &mut bytes)?;
        Ok(value.map(|value| (bytes, value)))
    }

    /// A copy of a key's value, and its version.
    ///
    /// # Errors
    /// As [`Store::get_into`].
    pub fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        Ok(self.get_value(key)?.map(|(bytes, value)| (bytes, value.version)))
    }

    /// Takes a key's value out: whether there was one.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.core.remove(key)
    }

    /// Puts many, each with a result of its own.
    pub fn put_many<'a>(
        &self,
        pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        options: PutOptions,
    ) -> Vec<Result<Put>> {
        pairs
            .into_iter()
            .map(|(key, value)| self.put(key, value, options))
            .collect()
    }

    /// Copies many, each with a result of its own. What lies in other pods is under way for all at once.
    pub fn get_many_into<'a>(
        &self,
        pairs: impl IntoIterator<Item = (&'a [u8], &'a mut [u8])>,
    ) -> Vec<Result<Option<Value>>> {
        self.core.read_many_into(pairs.into_iter().collect())
    }

    /// Takes many out, each with a result of its own.
    pub fn remove_many<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Vec<Result<bool>> {
        keys.into_iter().map(|key| self.remove(key)).collect()
    }

    /// Which keys are there, and, if they are to be pinned, a pin for each.
    ///
    /// # Errors
    /// [`Full`](cenote_base::Error::Full) if this process pins as many as it can; those of the space.
    pub fn exists<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>, pins: bool) -> Result<Presence> {
        let (core, mut presence) = (&self.core, Presence::default());
        let keys: Vec<_> = keys.into_iter().map(|key| core.key(key)).collect::<Result<_>>()?;
        let together = match pins {
            false => core.are_there(&keys),
            true => vec![None; keys.len()],
        };
        for (key, known) in keys.into_iter().zip(together) {
            let is_there = match known {
                Some(is_there) => is_there,
                None if !pins => match core.find_fresh(&key)? {
                    Some(found) => core.is_there(&found, &key)?,
                    None => false,
                },
                None => match core.pin_key(&key)? {
                    Some((found, slot)) => {
                        presence
                            .pins
                            .push(Pin::of(core, found.place.entry.item(), found.header, slot));
                        true
                    }
                    None => false,
                },
            };
            presence.prefix += usize::from(is_there && presence.prefix == presence.found.len());
            presence.found.push(is_there);
        }
        Ok(presence)
    }
}
