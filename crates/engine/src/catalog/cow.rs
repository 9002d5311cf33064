//! A map that is cloned for the price of its shards' reference counts, and whose clones share what neither has changed.
//!
//! The committed catalog is read by all sessions and changed by a definition now and then: each change makes a new one.
//! With all definitions in one map that copied as many entries as there are; here it copies one shard of [`SHARDS`].

use cenote_base::rt::FixedState;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// With 10,000 entries a shard holds some 40.
const SHARDS: usize = 256;

/// A map of shared shards, by hash.
#[derive(Debug, Clone)]
pub(crate) struct CowMap<K, V> {
    /// None: empty so far.
    shards: Vec<Option<Arc<BTreeMap<K, V>>>>,
}

impl<K, V> Default for CowMap<K, V> {
    fn default() -> Self {
        CowMap { shards: Vec::new() }
    }
}

fn shard_of<Q: Hash + ?Sized>(key: &Q) -> usize {
    (FixedState.hash_one(key) >> 40) as usize % SHARDS
}

impl<K: Ord + Hash + Clone, V: Clone> CowMap<K, V> {
    /// The value of a key.
    pub(crate) fn get<Q: Ord + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.shards.get(shard_of(key))?.as_ref()?.get(key)
    }

    /// Whether the key is there.
    pub(crate) fn contains_key<Q: Ord + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Enters a value; the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, || None);
        }
        let shard = self.shards[shard_of(&key)].get_or_insert_default();
        Arc::make_mut(shard).insert(key, value)
    }

    /// Takes a key out; its value.
    pub(crate) fn remove<Q: Ord + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let shard = self.shards.get_mut(shard_of(key))?.as_mut()?;
        match shard.contains_key(key) {
            true => Arc::make_mut(shard).remove(key),
            false => None,
        }
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flatten().flat_map(|shard| shard.iter())
    }

    /// All values in the order of their keys.
    pub(crate) fn values(&self) -> Vec<&V> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shares_all_but_the_shards_that_change() {
        let mut map: CowMap<String, u32> = CowMap::default();
        for i in 0..10_000 {
            assert_eq!(map.insert(format!("t{i:05}"), i), None);
        }
        let before = map.clone();
        assert_eq!(map.insert("t00007".into(), 70), Some(7));
        assert_eq!(map.remove("t00008"), Some(8));
        assert_eq!(map.remove("missing"), None);
        let copied = before.shards.iter().zip(&map.shards).filter(|(a, b)| match (a, b) {
            (Some(a), Some(b)) => !Arc::ptr_eq(a, b),
            _ => true,
        });
        assert!(copied.count() <= 2);
        assert_eq!((before.get("t00007"), before.get("t00008")), (Some(&7), Some(&8)));
        assert_eq!((map.get("t00007"), map.get("t00008")), (Some(&70), None));
        assert!(before.contains_key("t00008") && !map.contains_key("t00008"));
        let values: Vec<u32> = before.values().into_iter().copied().collect();
        assert_eq!(values, (0..10_000).collect::<Vec<_>>(), "in the order of the keys");
    }
}
