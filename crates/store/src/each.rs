//! Many values by one call, through memory that is used again and again.

use super::Store;
use super::read::Value;
use cenote_base::Result;

impl Store {
    /// Copies values of keys in their order, many together, to the same memory, and tells of each, as long as `each`
    /// wants more. What lies in other pods is under way for all at once.
    pub fn get_each<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        room: &mut Vec<u8>,
        each: impl FnMut(Result<Option<Value>>, &[u8]) -> bool,
    ) {
        self.core.read_each(keys, room, each);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, PutOptions, Store};
    use cenote_space::{Space, SpaceOptions};

    #[test]
    fn many_are_read_by_one_call_as_long_as_more_are_wanted() {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&options).expect("memory");
        let store = Store::create(&space, Options::default()).expect("a store");
        for (key, value) in [(&b"a"[..], &b"1"[..]), (b"b", b"22"), (b"c", b"")] {
            store.put(key, value, PutOptions::default()).expect("room");
        }
        let (mut room, mut seen) = (Vec::new(), Vec::new());
        let keys = [&b"a"[..], b"none", b"b", b"c", b"a"];
        store.get_each(keys, &mut room, |value, bytes| {
            seen.push(value.expect("read").map(|_| bytes.to_vec()));
            seen.len() < 4
        });
        let wanted = [Some(b"1".to_vec()), None, Some(b"22".to_vec()), Some(Vec::new())];
        assert_eq!(seen, wanted);
    }
}
