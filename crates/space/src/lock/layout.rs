//! What the words of a lock hold, and how a lock is asked for.

use crate::GlobalAddress;
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_base::rt::fault::{Fault, planted};

/// Bytes of a lock.
pub const LOCK_BYTES: u64 = 8 * WORDS;
pub(super) const WORDS: u64 = 16;
/// Readers' slots are the words from 1 on.
pub(super) const SLOTS: u64 = WORDS - 2;
/// The word of the version.
pub(super) const VERSION: u64 = WORDS - 1;
pub(super) const SESSION_BITS: u32 = 48;
pub(super) const SESSION_MASK: u64 = (1 << SESSION_BITS) - 1;
/// No session: what each word of a new lock holds, but for the version. All words of a lock begin with the same 16
/// bits.
pub(super) const NO_SESSION: u64 = 0x10cc << SESSION_BITS;
/// A writer has left without having repaired, or without having finished, what the lock protects.
pub(super) const BROKEN: u64 = NO_SESSION | SESSION_MASK;

// The writer's word, the readers' slots and the version lie apart, and fill a lock.
const _: () = assert!(1 + SLOTS == VERSION && VERSION + 1 == WORDS);
const _: () = assert!(NO_SESSION & SESSION_MASK == 0 && NO_SESSION != 0);
// No session's number reads as "broken": the locks' table admits smaller ones only.
const _: () = assert!(BROKEN & SESSION_MASK == SESSION_MASK && BROKEN & !SESSION_MASK == NO_SESSION);
const _: () = assert!(LOCK_BYTES.is_multiple_of(crate::GRAIN));

/// What a lock is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

impl Mode {
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Mode::Read => "to read",
            Mode::Write => "to write",
        }
    }
}

/// How long a lock is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// Not at all.
    None,
    /// So long.
    For(Nanos),
    /// For as long as its owners live.
    Endless,
}

/// The version after that one.
pub(super) fn next(version: u64) -> u64 {
    if planted(Fault::VersionKept) {
        return version;
    }
    assert!(
        version & !SESSION_MASK == NO_SESSION,
        "{version:#x} is no lock's version"
    );
    NO_SESSION | version.wrapping_add(1) & SESSION_MASK
}

#[cold]
pub(super) fn taken_over(lock: GlobalAddress) -> Error {
    Error::Revoked(format!(
        "the lock at {lock} is not this session's any more: it was taken over as a dead one's"
    ))
}

#[cold]
pub(super) fn not_held(lock: GlobalAddress, how: &str) -> Error {
    Error::Invalid(format!("this session does not hold the lock at {lock} {how}"))
}
