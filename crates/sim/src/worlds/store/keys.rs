//! Keys and values of the world: a value says which put wrote it, and all of its bytes follow from that.

use cenote_base::random::mix;
use cenote_base::rt::Nanos;
use cenote_store::PutOptions;

/// What is done with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first writer wins.
    Kept,
    /// Each put replaces.
    Replaced,
    /// It is there for a while.
    Lapsing,
    /// Replaced, with copies in other parts.
    Copied,
}

impl Kind {
    /// Of a key's number; where there is one part there are no copies.
    pub fn of(key: usize, parts: usize) -> Kind {
        match key % 8 {
            0..3 => Kind::Kept,
            3..6 => Kind::Replaced,
            6 => Kind::Lapsing,
            _ if parts > 1 => Kind::Copied,
            _ => Kind::Replaced,
        }
    }

    pub fn options(self) -> PutOptions {
        PutOptions {
            tenant: 0,
            time_to_live: (self == Kind::Lapsing).then_some(LAPSES),
            replaces: matches!(self, Kind::Replaced | Kind::Copied),
            replicas: u8::from(self == Kind::Copied),
        }
    }
}

/// How long what lapses is there.
pub(super) const LAPSES: Nanos = Nanos::from_millis(3);

/// A key's bytes.
pub(super) fn name(key: usize) -> Vec<u8> {
    let mut name = (key as u64).to_be_bytes().to_vec();
    // Some are longer than what is compared at once.
    name.resize(8 + if key.is_multiple_of(11) { 300 } else { key % 5 }, b'k');
    name
}

/// The value of a put: its number, then what follows from it.
pub(super) fn value(stamp: u64, len: usize) -> Vec<u8> {
    let word = |n: usize| match n {
        0 => stamp,
        _ => mix(stamp << 24 | n as u64),
    };
    let words = (0..len.div_ceil(8)).map(|n| word(n).to_le_bytes());
    words.flatten().take(len).collect()
}

/// The put that a value says it is of.
pub(super) fn stamp_of(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|word| u64::from_le_bytes(*word))
}
