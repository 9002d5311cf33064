//! The memory of many keys is prefetched at once: what each of them waits for comes at the same time.

use super::{Store, entry};
use cenote_space::GlobalAddress;

/// Keys that memory is asked for at once. The processor has some tens of lines under way.
pub const PREFETCHED_KEYS: usize = 32;

/// Entries of a bucket that are asked for.
const CHAIN_AHEAD: usize = 3;

impl Store {
    /// Asks the processor for what finding these keys will need: their buckets, then the entries there, the first of
    /// each, then those second ones that a first one sends to, and so on. Of more than [`PREFETCHED_KEYS`] keys those that
    /// come first. A hint: nothing is changed, and what is wrong is found when the keys are.
    #[inline]
    pub fn expect<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let (mut places, mut count) = ([(0, GlobalAddress::NULL); PREFETCHED_KEYS], 0);
        for (place, key) in places.iter_mut().zip(keys) {
            let hash = self.hash(key);
            *place = (hash, self.table.place_of(&self.heap, hash));
            self.heap.expect(place.1, size_of::<u64>());
            count += 1;
        }
        let places = &mut places[..count];
        for (_, at) in &mut *places {
            *at = self.heap.word(*at).unwrap_or(GlobalAddress::NULL);
            self.heap.expect(*at, entry::EXPECTED);
        }
        for _ in 1..CHAIN_AHEAD {
            for (hash, at) in &mut *places {
                *at = entry::behind(&self.heap, *at, *hash).unwrap_or(GlobalAddress::NULL);
                self.heap.expect(*at, entry::EXPECTED);
            }
        }
    }
}
