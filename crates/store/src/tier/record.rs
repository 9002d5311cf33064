//! A value in a segment file, and where it lies as the item says that stands for it.
//!
//! ```text
//! location   0 owner     8 segment    16 place in it    24 bytes of the value    32 generation
//! record     0 "CENSPILL"              8 generation     16 u32 bytes of the key  20 u32 checksum of the value
//!           24 bytes of the value     32 zeros          60 u32 checksum: bytes 0 to 60, key
//!           64 key │ value │ zeros up to a multiple of 64
//! ```

use super::super::item::{KEY_MAX, VALUE_MAX};
use cenote_base::crc;

/// Bytes of a location.
pub(in super::super) const LOCATION: usize = 40;
/// Bytes of a record before its key.
pub(super) const HEAD: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"CENSPILL");
const CRC: usize = 60;

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Location {
    pub owner: u64,
    pub segment: u64,
    pub offset: u64,
    pub len: u64,
    /// The sequence of the item that had the value in memory.
    pub generation: u64,
}

impl Location {
    pub(in super::super) fn encode(&self) -> [u8; LOCATION] {
        let mut bytes = [0; LOCATION];
        let words = [self.owner, self.segment, self.offset, self.len, self.generation];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// `None` if it says what no location does.
    pub(in super::super) fn decode(bytes: &[u8; LOCATION]) -> Option<Self> {
        let word = |n: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[8 * n + byte]));
        let location = Self {
            owner: word(0),
            segment: word(1),
            offset: word(2),
            len: word(3),
            generation: word(4),
        };
        let end = location.offset.checked_add(location.len);
        (location.len <= VALUE_MAX && end.is_some()).then_some(location)
    }
}

/// Bytes of a record.
pub(super) fn record_len(key_len: usize, value_len: u64) -> u64 {
    ((HEAD + key_len) as u64 + value_len).next_multiple_of(HEAD as u64)
}

/// A record whose value is to be written behind its key: see [`seal`].
pub(super) fn begin(key: &[u8], value_len: usize) -> Vec<u8> {
    let mut record = vec![0; record_len(key.len(), value_len as u64) as usize];
    record[HEAD..HEAD + key.len()].copy_from_slice(key);
    record
}

/// Writes the head of a record whose key and value are in place.
pub(super) fn seal(record: &mut [u8], key_len: usize, value_len: usize, generation: u64) {
    let value = crc::crc32c(&record[HEAD + key_len..][..value_len]);
    record[..8].copy_from_slice(&MAGIC.to_le_bytes());
    record[8..16].copy_from_slice(&generation.to_le_bytes());
    record[16..20].copy_from_slice(&(key_len as u32).to_le_bytes());
    record[20..24].copy_from_slice(&value.to_le_bytes());
    record[24..32].copy_from_slice(&(value_len as u64).to_le_bytes());
    let checksum = head_checksum(record, key_len);
    record[CRC..HEAD].copy_from_slice(&checksum.to_le_bytes());
}

fn head_checksum(record: &[u8], key_len: usize) -> u32 {
    crc::append(crc::crc32c(&record[..CRC]), &record[HEAD..HEAD + key_len])
}

/// The checksum of the value behind a head and a key, if they are those of the value that is meant.
pub(super) fn value_checksum(head: &[u8], key: &[u8], location: &Location) -> Option<u32> {
    if key.len() > KEY_MAX || head.len() != HEAD + key.len() {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| head[at + byte]));
    let short = |at: usize| u32::from_le_bytes(core::array::from_fn(|byte| head[at + byte]));
    let is_it = word(0) == MAGIC && word(8) == location.generation && word(24) == location.len;
    let has_key = short(16) as usize == key.len() && head[HEAD..] == *key;
    (is_it && has_key && short(CRC) == head_checksum(head, key.len())).then(|| short(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_key_and_generation_and_any_bit_of_its_head_counts() {
        let location = Location {
            owner: 1,
            segment: 2,
            offset: 64,
            len: 5,
            generation: 9,
        };
        assert_eq!(Location::decode(&location.encode()), Some(location));
        let mut record = begin(b"key", 5);
        record[HEAD + 3..][..5].copy_from_slice(b"value");
        seal(&mut record, 3, 5, 9);
        assert_eq!(record.len() as u64, record_len(3, 5));
        let head = &record[..HEAD + 3];
        assert_eq!(value_checksum(head, b"key", &location), Some(crc::crc32c(b"value")));
        assert_eq!(value_checksum(head, b"kez", &location), None);
        let other = Location {
            generation: 8,
            ..location
        };
        assert_eq!(value_checksum(head, b"key", &other), None);
        for bit in 0..8 * head.len() {
            let mut damaged = head.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(value_checksum(&damaged, b"key", &location), None, "bit {bit}");
        }
    }
}
