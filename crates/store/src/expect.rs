//! The memory of many keys is prefetched at once: what each of them waits for comes at the same time.

use super::Store;
use super::chains::placed;
use super::entry::State;

/// Keys that memory is asked for at once. The processor has some tens of lines under way.
const KEYS: usize = 32;
/// Bytes of an item that a look-up reads: its header, and a short key.
const ITEM: usize = 128;

impl Store {
    /// Asks the processor for what finding these keys will need, as far as it lies in this pod: their buckets, then the
    /// items there. Of many keys those that come first. A hint: nothing is changed, and what is wrong is found when the
    /// keys are.
    pub fn expect<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let (core, space) = (&self.core, self.core.heap.space());
        let view = core.view();
        let mut buckets = Vec::with_capacity(KEYS);
        for key in keys.take(KEYS).filter_map(|key| core.key(key).ok()) {
            let at = view.table.bucket(view.table.bucket_of(key.hash));
            buckets.extend(at.ok().filter(|at| space.is_near(*at)).map(|at| (key.hash, at)));
        }
        space.prefetch(buckets.iter().map(|(_, at)| (*at, super::layout::LINE as usize)));
        let mut items = Vec::with_capacity(KEYS);
        for (hash, at) in buckets {
            let Ok(line) = core.heap.line(at) else { continue };
            let may_be = placed(&line).filter_map(Result::ok).map(|placed| placed.entry);
            let may_be = may_be.filter(|entry| entry.state() == State::Committed && entry.may_be(hash));
            items.extend(may_be.map(|entry| entry.item()).filter(|item| space.is_near(*item)));
        }
        space.prefetch(items.into_iter().map(|item| (item, ITEM)));
    }
}

#[cfg(test)]
mod tests {
    use crate::{KEY_MAX, Options, PutOptions, Store};
    use cenote_space::{Space, SpaceOptions};

    #[test]
    fn any_keys_may_be_expected_and_nothing_comes_of_it() {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&options).expect("memory");
        let store = Store::create(&space, Options::default()).expect("a store");
        store.put(b"there", b"v", PutOptions::default()).expect("room");
        let long = vec![b'k'; KEY_MAX + 1];
        let keys = [&b"there"[..], b"", b"none", &long];
        store.expect(keys.into_iter().cycle().take(100));
        let stats = store.stats().expect("counted");
        assert_eq!((stats.items, stats.hits, stats.misses), (1, 0, 0));
    }
}
