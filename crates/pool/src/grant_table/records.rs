//! Records of the grant table: collections of things by number, that know what a change has touched.
//!
//! A change of the grant table is written as the records that it changed, and undone by what they were before: neither
//! looks at the rest of the table, nor copies it.
//!
//! What is asked of all of them again and again (the bytes of a node's grants) is kept with them as they come and go
//! ([`Record::Totals`]).
//!
//! Invariants:
//! - whatever a change may have changed was noted before, as it was: by [`Records::get_mut`] and its like;
//! - between two changes nothing is noted;
//! - what totals are made of does not change while a record is there.

use crate::store::{Change, Name};
use cenote_base::crc::crc32c;
use cenote_base::random::mix;
use cenote_base::{Error, Result};
use core::ops::Deref;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// What is kept in a collection.
pub trait Record {
    /// What all of them come to, if that is asked for.
    type Totals: Default + Clone + PartialEq + Eq + core::fmt::Debug;

    /// It has come.
    fn add_to(&self, _: &mut Self::Totals) {}

    /// It is gone.
    fn take_from(&self, _: &mut Self::Totals) {}
}

/// Things by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records<K: Ord, V: Record> {
    all: BTreeMap<K, V>,
    totals: V::Totals,
    /// What was touched since the last change, as it was before.
    before: BTreeMap<K, Option<V>>,
}

impl<K: Ord, V: Record> Default for Records<K, V> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            totals: V::Totals::default(),
            before: BTreeMap::new(),
        }
    }
}

impl<K: Ord, V: Record> Deref for Records<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.all
    }
}

impl<K: Ord + Clone, V: Clone + Record> Records<K, V> {
    /// What all of them come to.
    pub(super) fn totals(&self) -> &V::Totals {
        &self.totals
    }

    /// Puts one, or none, where another was.
    fn put(&mut self, key: K, value: Option<V>) -> Option<V> {
        value.iter().for_each(|value| value.add_to(&mut self.totals));
        let former = match value {
            Some(value) => self.all.insert(key, value),
            None => self.all.remove(&key),
        };
        former.iter().for_each(|former| former.take_from(&mut self.totals));
        former
    }

    fn touch(&mut self, key: &K) {
        if !self.before.contains_key(key) {
            self.before.insert(key.clone(), self.all.get(key).cloned());
        }
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.all.contains_key(key) {
            self.touch(key);
        }
        self.all.get_mut(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.touch(&key);
        self.put(key, Some(value))
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.touch(key);
        self.put(key.clone(), None)
    }

    /// What the change has touched, as it was before.
    pub(super) fn touched(&self) -> impl Iterator<Item = (&K, &Option<V>)> {
        self.before.iter()
    }

    /// Removes those that do not stay.
    pub(super) fn retain(&mut self, stays: impl Fn(&K, &V) -> bool) {
        let gone: Vec<K> = self
            .all
            .iter()
            .filter(|(key, value)| !stays(key, value))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| _ = self.remove(key));
    }

    /// Changes those that it is said of.
    pub(super) fn change_each(&mut self, is_meant: impl Fn(&V) -> bool, mut change: impl FnMut(&mut V)) {
        let meant: Vec<K> = self
            .all
            .iter()
            .filter(|(_, value)| is_meant(value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in meant {
            self.get_mut(&key).into_iter().for_each(&mut change);
        }
    }

    /// All of them, to change what is not kept of them: no change notes that.
    pub(super) fn unkept_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.all.values_mut()
    }
}

impl<K: Ord + Clone, V: Clone + Record> FromIterator<(K, V)> for Records<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut records = Self::default();
        all.into_iter()
            .for_each(|(key, value)| _ = records.put(key, Some(value)));
        records
    }
}

/// What all records come to, but for `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Weight {
    /// Changes so far.
    pub(super) change: u64,
    pub(super) records: u64,
    pub(super) sum: u64,
}

impl Weight {
    pub(super) fn replace(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        if let Some(before) = before {
            self.records = self.records.wrapping_sub(1);
            self.sum = self.sum.wrapping_sub(weight_of(name, before));
        }
        if let Some(now) = now {
            self.records = self.records.wrapping_add(1);
            self.sum = self.sum.wrapping_add(weight_of(name, now));
        }
    }
}

fn weight_of(name: &str, record: &str) -> u64 {
    let halves = [name, record].map(|text| u64::from(crc32c(text.as_bytes())));
    mix(halves[0] << 32 | halves[1])
}

/// A collection, whatever it is of.
pub(super) trait Collection {
    /// What the change has put and removed, under names that begin with `kind`; and what all records come to by it.
    fn changed(&self, kind: &str, change: &mut Change, weight: &mut Weight);

    /// All records, as a change that puts them.
    fn all(&self, kind: &str, change: &mut Change);

    /// Takes a record over that the store has.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none of this kind.
    fn load(&mut self, number: &str, record: &str) -> Result<()>;

    /// The change is made.
    fn keep(&mut self);

    /// The change is not made.
    fn undo(&mut self);
}

impl<K, V> Collection for Records<K, V>
where
    K: Ord + Clone + Serialize + DeserializeOwned,
    V: Clone + Record + Serialize + DeserializeOwned,
{
    fn changed(&self, kind: &str, change: &mut Change, weight: &mut Weight) {
        for (key, before) in &self.before {
            let name = name_of(kind, key);
            let (before, now) = (before.as_ref().map(text), self.all.get(key).map(text));
            if before != now {
                weight.replace(&name, before.as_deref(), now.as_deref());
                change.insert(name, now);
            }
        }
    }

    fn all(&self, kind: &str, change: &mut Change) {
        change.extend(
            self.all
                .iter()
                .map(|(key, value)| (name_of(kind, key), Some(text(value)))),
        );
    }

    fn load(&mut self, number: &str, record: &str) -> Result<()> {
        let (key, value) = (read(number)?, read(record)?);
        self.put(key, Some(value));
        Ok(())
    }

    fn keep(&mut self) {
        self.before.clear();
    }

    fn undo(&mut self) {
        for (key, before) in core::mem::take(&mut self.before) {
            self.put(key, before);
        }
    }
}

fn name_of(kind: &str, key: &impl Serialize) -> Name {
    format!("{kind}/{}", text(key))
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::corrupt(error.to_string()))
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a record has no keys that JSON lacks")
}
