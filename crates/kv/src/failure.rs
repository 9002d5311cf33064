//! Why an operation of the store failed.

use super::entry::STRING_MAX;
use cenote_base::Error;

/// Why something was not done. Nothing has changed then.
#[derive(Debug)]
pub enum Failure {
    /// The key holds the other kind of value.
    WrongKind,
    /// The value, or what is to be added to it, is no integer, or their sum is none.
    NotInteger,
    /// The sum is outside of what an integer can be.
    Overflow,
    /// A string would be longer than [`STRING_MAX`].
    TooLong,
    /// The key is not there.
    Missing,
    /// The memory: [`Error::Full`] if there is no more.
    Memory(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

impl core::error::Error for Failure {}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::WrongKind => "the key holds another kind of value",
            Self::NotInteger => "the value is not an integer or out of range",
            Self::Overflow => "the sum is out of range",
            Self::TooLong => "a string of more than 512 MiB",
            Self::Missing => "there is no such key",
            Self::Memory(error) => return error.fmt(f),
        })
    }
}

/// What an operation of the store answers.
pub type Result<T, E = Failure> = core::result::Result<T, E>;

pub(super) fn check_len(len: usize) -> Result<()> {
    match len as u64 <= STRING_MAX {
        true => Ok(()),
        false => Err(Failure::TooLong),
    }
}
