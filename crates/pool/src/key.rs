//! A space's key: a process that shows it to a memory node is a member. The manager draws it, and tells it to the
//! space's tenant and to the nodes.

use cenote_base::rt::{self, fs};
use cenote_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// See the module. It is not printed.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(u128);

impl Key {
    /// A new one, which no one can guess: from the system's random source, since [`rt::random`] is none for secrets. A
    /// simulated machine has no other.
    ///
    /// # Errors
    /// Those of reading.
    pub fn draw() -> Result<Self> {
        if rt::simulated() {
            return Ok(Self(rt::random_u128()));
        }
        let mut bytes = [0; 16];
        let source = fs::open("/dev/urandom", fs::OpenOptions::READ);
        source
            .and_then(|source| source.read_exact_at(&mut bytes, 0))
            .map_err(|error| Error::io("drawing a space's key", error))?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// Its number, to be shown.
    pub fn number(self) -> u128 {
        self.0
    }

    /// From its number.
    #[cfg(test)]
    pub fn of(number: u128) -> Self {
        Self(number)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_not_printed() {
        let (one, other) = (Key::draw().expect("drawn"), Key::draw().expect("drawn"));
        assert_ne!(one, other);
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        let text = serde_json::to_string(&one).expect("text");
        assert_eq!(serde_json::from_str::<Key>(&text).expect("a key"), one);
    }
}
