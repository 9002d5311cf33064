//! An item: what a key has. A header of one line, the key, then the value, or the addresses of its chunks.
//!
//! ```text
//!  0  u64 control: sequence 48 | 0 | hits 2 | state 2
//!  8  u64 hash                       16 u32 bytes of the key    20 u32 tenant
//! 24  u64 bytes of the value         32 u64 version             40 u64 expires: microseconds since 1970, 0 never
//! 48  u32 chunks, 0: the value is inline
//! 52  u32 flags: bit 0 the value has a checksum, 1 spilled, 2 a replica; bits 8-15 replicas
//! 56  u32 checksum of the value      60 u32 checksum: sequence, bytes 8 to 60, key, addresses of chunks
//! 64  key, padded to 8 │ value, or 8 bytes a chunk
//! ```
//!
//! The control word is the item's life: *filling* → *live* (it may be linked) → *dead* (it is about to be freed). The
//! sequence is no other item's, ever. So whoever finds the same sequence, live, before and after it has read the bytes
//! has read this item's, and a compare-and-swap that expects a control word changes no other object.

use cenote_base::crc;
use cenote_space::{GlobalAddress, SLAB_OBJECT_MAX};
use core::ops::Range;

/// Bytes of the header.
pub(super) const HEADER: usize = 64;
/// A key's bytes at most.
pub const KEY_MAX: usize = 4096;
/// A value's bytes at most.
pub const VALUE_MAX: u64 = 1 << 30;
/// Values up to here lie behind their key; longer ones in chunks.
pub(super) const INLINE_MAX: u64 = 16 << 10;
/// Bytes of a chunk but for the last: the largest object that is not a run, so that no value needs extents side by
/// side.
pub(super) const CHUNK: u64 = SLAB_OBJECT_MAX;
/// How often a hit counts.
pub(super) const HITS_MAX: u64 = 3;

const STATE_MASK: u64 = 3;
const HITS_SHIFT: u32 = 2;
const SEQUENCE_SHIFT: u32 = 16;
const HAS_CHECKSUM: u32 = 1;
const IS_SPILLED: u32 = 2;
const IS_REPLICA: u32 = 4;
const REPLICAS_SHIFT: u32 = 8;

const _: () = assert!(VALUE_MAX / CHUNK * 8 + (HEADER + KEY_MAX) as u64 <= SLAB_OBJECT_MAX);

/// A control word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Control(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    None = 0,
    Filling = 1,
    Live = 2,
    Dead = 3,
}

impl Control {
    pub(super) fn new(sequence: u64, life: Life) -> Self {
        Self(sequence << SEQUENCE_SHIFT | life as u64)
    }

    pub(super) fn sequence(self) -> u64 {
        self.0 >> SEQUENCE_SHIFT
    }

    pub(super) fn life(self) -> Life {
        match self.0 & STATE_MASK {
            1 => Life::Filling,
            2 => Life::Live,
            3 => Life::Dead,
            _ => Life::None,
        }
    }

    pub(super) fn hits(self) -> u64 {
        self.0 >> HITS_SHIFT & HITS_MAX
    }

    pub(super) fn with_hits(self, hits: u64) -> Self {
        Self(self.0 & !(HITS_MAX << HITS_SHIFT) | hits << HITS_SHIFT)
    }

    /// Whether both are the same item's, alive.
    pub(super) fn is_same_live(self, other: Self) -> bool {
        self.sequence() == other.sequence() && self.life() == Life::Live && other.life() == Life::Live
    }
}

/// See the module. Of bytes that may be anything: [`Header::is_whole`] says whether they are an item's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub control: Control,
    pub hash: u64,
    pub key_len: u32,
    pub tenant: u32,
    pub value_len: u64,
    pub version: u64,
    pub expires: u64,
    pub chunks: u32,
    pub flags: u32,
    pub value_crc: u32,
    pub crc: u32,
}

impl Header {
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Self {
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
        let short = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
        Self {
            control: Control(long(0)),
            hash: long(8),
            key_len: short(16),
            tenant: short(20),
            value_len: long(24),
            version: long(32),
            expires: long(40),
            chunks: short(48),
            flags: short(52),
            value_crc: short(56),
            crc: short(60),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let longs = [
            (0, self.control.0),
            (8, self.hash),
            (24, self.value_len),
            (32, self.version),
            (40, self.expires),
        ];
        for (at, long) in longs {
            bytes[at..at + 8].copy_from_slice(&long.to_le_bytes());
        }
        let lengths = [
            (16, self.key_len),
            (20, self.tenant),
            (48, self.chunks),
            (52, self.flags),
        ];
        for (at, short) in lengths.into_iter().chain([(56, self.value_crc), (60, self.crc)]) {
            bytes[at..at + 4].copy_from_slice(&short.to_le_bytes());
        }
        bytes
    }

    /// The checksum that it should have, with the key and the list of chunks that lie behind it.
    pub(super) fn checksum(&self, key: &[u8], list: &[u8]) -> u32 {
        let sequence = crc::crc32c(&self.control.sequence().to_le_bytes());
        let header = crc::append(sequence, &self.encode()[8..60]);
        crc::append(crc::append(header, key), list)
    }

    /// Whether its lengths fit together.
    pub(super) fn is_sane(&self) -> bool {
        let chunks = chunks(self.value_len).len() as u64;
        self.key_len as usize <= KEY_MAX && self.value_len <= VALUE_MAX && u64::from(self.chunks) == chunks
    }

    pub(super) fn has_checksum(&self) -> bool {
        self.flags & HAS_CHECKSUM != 0
    }

    pub(super) fn set_value_checksum(&mut self, checksum: Option<u32>) {
        self.flags = self.flags & !HAS_CHECKSUM | u32::from(checksum.is_some());
        self.value_crc = checksum.unwrap_or(0);
    }

    /// How many other items have its value, at most.
    pub(super) fn replicas(&self) -> u32 {
        self.flags >> REPLICAS_SHIFT & 0xff
    }

    pub(super) fn set_replicas(&mut self, replicas: u8) {
        self.flags = self.flags & (HAS_CHECKSUM | IS_SPILLED | IS_REPLICA) | u32::from(replicas) << REPLICAS_SHIFT;
    }

    /// Whether it is another item's copy.
    pub(super) fn is_replica(&self) -> bool {
        self.flags & IS_REPLICA != 0
    }

    pub(super) fn set_is_replica(&mut self) {
        self.flags |= IS_REPLICA;
    }

    /// Whether it stands for a value in a file, and says where that is.
    pub(super) fn is_spilled(&self) -> bool {
        self.flags & IS_SPILLED != 0
    }

    pub(super) fn set_spilled(&mut self) {
        self.flags |= IS_SPILLED;
    }

    pub(super) fn has_expired(&self, now: impl FnOnce() -> u64) -> bool {
        self.expires != 0 && self.expires <= now()
    }

    /// Bytes from the item's first on to its value, or to its chunks' addresses.
    pub(super) fn body(&self) -> u64 {
        body(self.key_len as usize)
    }

    /// Bytes of the item's own object.
    pub(super) fn object_len(&self) -> u64 {
        let inline = if self.chunks == 0 {
            self.value_len
        } else {
            8 * u64::from(self.chunks)
        };
        self.body() + inline
    }
}

/// As [`Header::body`].
pub(super) fn body(key_len: usize) -> u64 {
    (HEADER + key_len.next_multiple_of(8)) as u64
}

/// The chunks of a value of so many bytes, each a range of it; none if it lies behind its key.
pub(super) fn chunks(value_len: u64) -> impl ExactSizeIterator<Item = Range<u64>> + Clone {
    let n = if value_len <= INLINE_MAX {
        0
    } else {
        value_len.min(VALUE_MAX).div_ceil(CHUNK)
    };
    (0..n as u32).map(move |n| {
        let from = u64::from(n) * CHUNK;
        from..(from + CHUNK).min(value_len)
    })
}

/// What the object of a value of so many bytes takes of the space, its chunks included.
pub(super) fn footprint(key_len: usize, value_len: u64) -> u64 {
    let list = 8 * chunks(value_len).len() as u64;
    let inline = if list == 0 { value_len } else { list };
    let chunks: u64 = chunks(value_len).map(|chunk| class_size(chunk.end - chunk.start)).sum();
    class_size(body(key_len) + inline) + chunks
}

/// What an object of so many bytes takes.
pub(super) fn class_size(len: u64) -> u64 {
    cenote_space::Class::of(len).map_or(len, cenote_space::Class::size)
}

/// Addresses of chunks, as they stand in an item.
pub(super) fn addresses(list: &[u8]) -> impl Iterator<Item = GlobalAddress> {
    let (words, _) = list.as_chunks::<8>();
    words
        .iter()
        .map(|word| GlobalAddress::from_raw(u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written() {
        let mut header = Header {
            control: Control::new(7, Life::Live).with_hits(2),
            hash: 1,
            key_len: 3,
            tenant: 4,
            value_len: 5,
            version: 6,
            expires: 8,
            chunks: 0,
            flags: 0,
            value_crc: 0,
            crc: 9,
        };
        header.set_value_checksum(Some(10));
        assert_eq!(Header::decode(&header.encode()), header);
        assert!(header.is_sane() && header.has_checksum());
        assert_eq!((header.control.hits(), header.control.life()), (2, Life::Live));
    }

    #[test]
    fn the_checksum_covers_key_sequence_and_lengths_but_not_hits() {
        let zero = Header::decode(&[0; HEADER]);
        let sum = zero.checksum(b"key", b"");
        assert_ne!(sum, zero.checksum(b"kez", b""));
        assert_ne!(sum, Header { value_len: 1, ..zero }.checksum(b"key", b""));
        assert_ne!(
            sum,
            Header {
                control: Control::new(1, Life::Live),
                ..zero
            }
            .checksum(b"key", b"")
        );
        let hit = Header {
            control: zero.control.with_hits(3),
            ..zero
        };
        assert_eq!(sum, hit.checksum(b"key", b""));
    }

    #[test]
    fn chunks_cover_a_value() {
        assert_eq!(chunks(INLINE_MAX).len(), 0);
        assert_eq!(chunks(CHUNK + 1).collect::<Vec<_>>(), [0..CHUNK, CHUNK..CHUNK + 1]);
        assert_eq!(chunks(VALUE_MAX).len(), 1024);
        assert_eq!(chunks(u64::MAX).len(), 1024);
    }
}
