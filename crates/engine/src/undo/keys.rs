//! The keys of rows that one undo record stands for: those of an insert of several rows into one leaf.
//!
//! The record's key is what all of them begin with; where another record holds the row before, it holds a list:
//!
//! ```text
//! list   for each key   u16 length of the rest │ rest
//! ```
//! Taking such a record back takes no mark a row: a row is its own mark, since only rows that are still as the record
//! made them name it in their trailers.

use crate::error::{Error, Result};

/// Bytes of a list that a record has at most, beyond its first key: a record does not cross a page, so a long one would
/// leave more of a page unused.
const LIST_MAX: usize = 2048;

/// How many of `keys` one record takes; one at least.
pub(crate) fn fitting<'k>(keys: impl Iterator<Item = &'k [u8]>) -> usize {
    let mut bytes = 0;
    let fit = keys.take_while(|key| {
        bytes += 2 + key.len();
        bytes <= LIST_MAX
    });
    fit.count().max(1)
}

/// Writes the list of `keys`, which rise, to `list` (cleared first); gives what they all begin with.
pub(crate) fn pack<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone, list: &mut Vec<u8>) -> &'k [u8] {
    let (first, last) = (keys.clone().next().unwrap_or(&[]), keys.clone().last().unwrap_or(&[]));
    // What the least and the greatest have in common, those between have, too.
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    list.clear();
    for key in keys {
        assert!(key.starts_with(&first[..common]), "the keys of a record rise");
        list.extend_from_slice(&((key.len() - common) as u16).to_le_bytes());
        list.extend_from_slice(&key[common..]);
    }
    &first[..common]
}

/// The keys that begin with `start` and go on as in `list`.
pub(crate) fn unpack(start: &[u8], mut list: &[u8]) -> Result<Vec<Vec<u8>>> {
    let cut_off = || Error::Corrupt("undo record: its list of keys is cut off".into());
    let mut keys = Vec::new();
    while let Some((length, rest)) = list.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length));
        let (end, rest) = rest.split_at_checked(length).ok_or_else(cut_off)?;
        keys.push([start, end].concat());
        list = rest;
    }
    match list.is_empty() {
        true => Ok(keys),
        false => Err(cut_off()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn keys_come_back(keys in proptest::collection::btree_set(proptest::collection::vec(0..3u8, 0..9), 1..40)) {
            let keys: BTreeSet<Vec<u8>> = keys;
            let sorted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut list = Vec::new();
            let start = pack(sorted.iter().copied(), &mut list);
            prop_assert!(unpack(start, &list).unwrap().iter().eq(keys.iter()));
            for cut in 0..list.len() {
                let some = unpack(start, &list[..cut]);
                prop_assert!(some.is_err() || some.unwrap().len() < keys.len());
            }
        }
    }

    #[test]
    fn a_record_takes_one_key_however_long() {
        let (long, short) = ([7; LIST_MAX], [7; 8]);
        assert_eq!(fitting([&long[..], &short].into_iter()), 1);
        assert_eq!(fitting(std::iter::repeat_n(&short[..], 1000)), LIST_MAX / 10);
    }
}
