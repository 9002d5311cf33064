//! The first page of a region: what it is, whose it is, and how far it can be believed.
//!
//! ```text
//!    0  identity, 1 KiB, written once when the region is made
//!         0 magic "CENOTERG"   8 u32 format version    12 u32 region id
//!        16 u128 database id  32 u32 tenant            36 u32 length of the data directory's path
//!        40 u64 length of the region in bytes          48 u64 made at (us since 1970)
//!        56 .. 248  24 geometry words: the owner's layout, opaque here
//!       256 .. 768  the data directory's path (UTF-8, for people)
//!      1020 u32 crc32c of bytes 0..1020
//! 1024  state slot 0, 128 B      1152  state slot 1, 128 B: written in turn
//!         0 u64 sequence (the greater valid one counts)
//!        16 u128 incarnation  32 u64 epoch  40 u32 clean
//!        44 u32 checksum of the redo record at the durable position  48 u64 durable position
//!        56 .. 120  8 words of the owner's
//!       124 u32 crc32c of bytes 0..124
//! 1280  u64 bytes reserved from the start (atomic, checked against the file's blocks)
//! 1288  u64 the boot of the host that used it last, 0 if unknown (atomic; written by the first change of the state
//!       after opening, needed by the next opening: another host's lines may be stale in this one's cache)
//! 1296  64 bytes: the name of the host that used it last (UTF-8, for people)
//! 1360  zero up to 4096
//! ```
//!
//! A process may be killed at any store: a torn state slot fails its checksum and the other one,
//! older by one update, counts. Nothing in here is a pointer.

use crate::LINE;
use crate::span::Span;
use cenote_base::bytes::read_le;
use cenote_base::crc::crc32c;
use cenote_base::{Error, Result};

/// Bytes of a region that its header takes.
pub const HEADER_SIZE: usize = 4096;
/// The version of this format that is written and understood.
pub const FORMAT_VERSION: u32 = 1;
/// Words of geometry that a region's owner may keep.
pub const GEOMETRY_WORDS: usize = 24;
/// Words of state that a region's owner may keep.
pub const STATE_WORDS: usize = 8;

const MAGIC: [u8; 8] = *b"CENOTERG";
/// In place of the magic while a region is being made.
const MAKING: [u8; 8] = *b"CENOTE..";

const VERSION: usize = 8;
const REGION: usize = 12;
const DATABASE: usize = 16;
const TENANT: usize = 32;
const PATH_LEN: usize = 36;
const LENGTH: usize = 40;
const MADE: usize = 48;
const GEOMETRY: usize = 56;
const PATH: usize = 256;
const PATH_MAX: usize = 512;
const IDENTITY_CRC: usize = 1020;
const IDENTITY_SIZE: usize = 1024;

const SLOTS: [usize; 2] = [IDENTITY_SIZE, IDENTITY_SIZE + SLOT_SIZE];
const SLOT_SIZE: usize = 128;
const SEQUENCE: usize = 0;
const INCARNATION: usize = 16;
const EPOCH: usize = 32;
const CLEAN: usize = 40;
const DURABLE_CRC: usize = 44;
const DURABLE: usize = 48;
const WORDS: usize = 56;
const SLOT_CRC: usize = 124;

/// Where the count of reserved bytes lies.
pub(crate) const RESERVED: usize = 1280;
/// Where the host that used it last is noted.
pub(crate) const HOST: usize = 1288;
/// Where its name is noted, for people.
pub(crate) const HOST_NAME: usize = 1296;
/// Bytes of it that are kept.
pub(crate) const HOST_NAME_MAX: usize = 64;

const _: () = {
    assert!(GEOMETRY + 8 * GEOMETRY_WORDS <= PATH);
    assert!(PATH + PATH_MAX <= IDENTITY_CRC);
    assert!(IDENTITY_CRC + 4 == IDENTITY_SIZE);
    assert!(WORDS + 8 * STATE_WORDS <= SLOT_CRC && SLOT_CRC + 4 == SLOT_SIZE);
    assert!(SLOTS[1] + SLOT_SIZE <= RESERVED && RESERVED.is_multiple_of(64));
    assert!(RESERVED + 8 <= HOST && HOST + 8 <= HOST_NAME);
    assert!(HOST_NAME + HOST_NAME_MAX <= HEADER_SIZE);
};

/// What a region is and whose, from its making to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The database (or cluster) that it belongs to.
    pub database: u128,
    /// Its number within the database.
    pub region: u32,
    /// Whose it is, where a pool serves several; 0 otherwise.
    pub tenant: u32,
    /// Its length in bytes, header included. Filled in when it is made.
    pub length: u64,
    /// When it was made, in microseconds since 1970. Filled in when it is made.
    pub made_micros: i64,
    /// The owner's layout, opaque here.
    pub geometry: [u64; GEOMETRY_WORDS],
    /// The data directory, for people; at most 512 bytes are kept.
    pub directory: String,
}

/// How far a region can be believed. The database writes it at start, at stop, and when its log has become durable; its
/// next start needs it (design, section 7, rule 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The start of the database that used it last.
    pub incarnation: u128,
    /// Rises with each start, so that latches of dead processes can be told.
    pub epoch: u64,
    /// Whether the database stopped in order.
    pub clean: bool,
    /// Checksum of the redo record that ends at the durable position.
    pub durable_crc: u32,
    /// A position up to which the log was durable.
    pub durable: u64,
    /// The owner's words.
    pub words: [u64; STATE_WORDS],
}

fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Identity {
    /// The bytes of the identity block.
    pub(crate) fn encode(&self) -> [u8; IDENTITY_SIZE] {
        let mut b = [0; IDENTITY_SIZE];
        let path = truncated(&self.directory, PATH_MAX);
        put(&mut b, 0, &MAGIC);
        put(&mut b, VERSION, &FORMAT_VERSION.to_le_bytes());
        put(&mut b, REGION, &self.region.to_le_bytes());
        put(&mut b, DATABASE, &self.database.to_le_bytes());
        put(&mut b, TENANT, &self.tenant.to_le_bytes());
        put(&mut b, PATH_LEN, &(path.len() as u32).to_le_bytes());
        put(&mut b, LENGTH, &self.length.to_le_bytes());
        put(&mut b, MADE, &self.made_micros.to_le_bytes());
        for (i, word) in self.geometry.iter().enumerate() {
            put(&mut b, GEOMETRY + 8 * i, &word.to_le_bytes());
        }
        put(&mut b, PATH, path.as_bytes());
        let crc = crc32c(&b[..IDENTITY_CRC]);
        put(&mut b, IDENTITY_CRC, &crc.to_le_bytes());
        b
    }

    /// What [`Identity::encode`] wrote; an error that names the field that does not fit.
    pub(crate) fn decode(b: &[u8]) -> Result<Self> {
        if b.len() < IDENTITY_SIZE || b[..8] != MAGIC {
            return Err(Error::Mismatch("magic: this is no Cenote region".into()));
        }
        let version = read_le::<u32>(b, VERSION);
        if version != FORMAT_VERSION {
            return Err(Error::Mismatch(format!(
                "format version: the region has {version}, this program knows {FORMAT_VERSION}"
            )));
        }
        if read_le::<u32>(b, IDENTITY_CRC) != crc32c(&b[..IDENTITY_CRC]) {
            return Err(Error::Corrupt("checksum of the region's header".into()));
        }
        let path_len = read_le::<u32>(b, PATH_LEN) as usize;
        let path = b.get(PATH..PATH + path_len.min(PATH_MAX)).unwrap_or_default();
        Ok(Self {
            database: read_le::<u128>(b, DATABASE),
            region: read_le::<u32>(b, REGION),
            tenant: read_le::<u32>(b, TENANT),
            length: read_le::<u64>(b, LENGTH),
            made_micros: read_le::<u64>(b, MADE) as i64,
            geometry: core::array::from_fn(|i| read_le::<u64>(b, GEOMETRY + 8 * i)),
            directory: String::from_utf8_lossy(path).into_owned(),
        })
    }
}

/// The first line of a region that is being made.
pub(crate) fn making() -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(&MAKING);
    line
}

/// Whether there is nothing behind these first bytes of a file or device that a new region could destroy: zeros, or a
/// region whose making was cut off.
pub(crate) fn is_blank(head: &[u8]) -> bool {
    head.starts_with(&MAKING) || head.iter().all(|b| *b == 0)
}

/// The longest head of `text` of at most `max` bytes.
pub(crate) fn truncated(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The sequence of the state after the one with this sequence. Sequences never wrap: 0 says that a slot is empty, and
/// a smaller one that its state is the older. An update each nanosecond reaches the end after 584 years, so a sequence
/// at the end is no count of updates, and the region is not to be written on.
pub(crate) fn after(sequence: u64) -> u64 {
    sequence.checked_add(1).expect("a state's sequence does not wrap")
}

impl State {
    fn encode(&self, sequence: u64) -> [u8; SLOT_SIZE] {
        let mut b = [0; SLOT_SIZE];
        put(&mut b, SEQUENCE, &sequence.to_le_bytes());
        put(&mut b, INCARNATION, &self.incarnation.to_le_bytes());
        put(&mut b, EPOCH, &self.epoch.to_le_bytes());
        put(&mut b, CLEAN, &u32::from(self.clean).to_le_bytes());
        put(&mut b, DURABLE_CRC, &self.durable_crc.to_le_bytes());
        put(&mut b, DURABLE, &self.durable.to_le_bytes());
        for (i, word) in self.words.iter().enumerate() {
            put(&mut b, WORDS + 8 * i, &word.to_le_bytes());
        }
        let crc = crc32c(&b[..SLOT_CRC]);
        put(&mut b, SLOT_CRC, &crc.to_le_bytes());
        b
    }

    /// The state and its sequence, if the slot is whole.
    fn decode(b: &[u8]) -> Option<(u64, Self)> {
        let whole = read_le::<u32>(b, SLOT_CRC) == crc32c(&b[..SLOT_CRC]);
        let sequence = read_le::<u64>(b, SEQUENCE);
        (whole && sequence > 0).then(|| {
            let state = Self {
                incarnation: read_le::<u128>(b, INCARNATION),
                epoch: read_le::<u64>(b, EPOCH),
                clean: read_le::<u32>(b, CLEAN) == 1,
                durable_crc: read_le::<u32>(b, DURABLE_CRC),
                durable: read_le::<u64>(b, DURABLE),
                words: core::array::from_fn(|i| read_le::<u64>(b, WORDS + 8 * i)),
            };
            (sequence, state)
        })
    }

    /// The newest whole state in the bytes of a header.
    pub(crate) fn newest(header: &[u8]) -> Option<(u64, Self)> {
        SLOTS
            .iter()
            .filter_map(|at| Self::decode(&header[*at..*at + SLOT_SIZE]))
            .max_by_key(|(sequence, _)| *sequence)
    }

    /// Writes it to the slot whose turn it is; says which bytes of the header changed.
    pub(crate) fn write(&self, header: Span<'_>, sequence: u64) -> (usize, usize) {
        assert!(header.len() >= HEADER_SIZE, "state slots lie in a header");
        let at = SLOTS[sequence as usize % 2];
        header.copy_in(at, &self.encode(sequence));
        (at, SLOT_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Identity {
        Identity {
            database: 7 << 100 | 3,
            region: 2,
            length: 1 << 30,
            directory: "/srv/data".into(),
            geometry: core::array::from_fn(|i| i as u64),
            ..Identity::default()
        }
    }

    #[test]
    fn identity_survives_encoding_and_names_what_is_wrong() {
        let b = sample().encode();
        assert_eq!(Identity::decode(&b).expect("valid"), sample());
        let flipped = |at: usize| {
            let mut c = b;
            c[at] ^= 1;
            Identity::decode(&c).expect_err("a flipped bit is found").to_string()
        };
        assert!(flipped(0).contains("magic"));
        assert!(flipped(VERSION).contains("version"));
        for at in [DATABASE, LENGTH, GEOMETRY, PATH, 900, IDENTITY_CRC] {
            assert!(flipped(at).contains("checksum"), "byte {at}");
        }
    }

    #[test]
    fn a_torn_state_gives_the_one_before() {
        let mut header = [0; HEADER_SIZE];
        assert!(State::newest(&header).is_none());
        for sequence in 1..6u64 {
            let state = State {
                durable: sequence * 10,
                ..State::default()
            };
            let before = State::newest(&header);
            let at = SLOTS[sequence as usize % 2];
            let bytes = state.encode(sequence);
            // Torn: only a part of the slot has arrived.
            header[at..at + 60].copy_from_slice(&bytes[..60]);
            assert_eq!(State::newest(&header), before);
            header[at..at + SLOT_SIZE].copy_from_slice(&bytes);
            assert_eq!(State::newest(&header), Some((sequence, state)));
        }
    }

    #[test]
    fn long_paths_are_cut_at_a_character() {
        let identity = Identity {
            directory: "ä".repeat(400),
            ..sample()
        };
        let back = Identity::decode(&identity.encode()).expect("valid");
        assert_eq!(back.directory, "ä".repeat(256));
    }
}
