//! Calls as they travel: parts of requests and answers, put together again; errors as numbers with a text.
//!
//! A part is as long as fits into a message, but for the last; so its beginning says its place, and a bit for each
//! place says which have come.

use super::protocol::{PART, Part};
use crate::rdma::call::LIMIT;
use cenote_base::{Error, Result};
use std::io;

/// Parts of the longest request or answer.
const PLACES: usize = LIMIT.div_ceil(PART);

const _: () = assert!(PLACES <= 32, "a bit for each place");

/// Bytes of an error's text.
const TEXT: usize = 1024;

/// A request or an answer of which not all parts have come.
#[derive(Debug)]
pub struct Whole {
    bytes: Vec<u8>,
    come: u32,
    missing: u32,
}

impl Whole {
    /// Of so many bytes, in a buffer that is there already.
    pub fn new(mut bytes: Vec<u8>, total: u32) -> Self {
        bytes.clear();
        bytes.resize(total as usize, 0);
        let missing = (total as usize).div_ceil(PART).max(1) as u32;
        Self {
            bytes,
            come: 0,
            missing,
        }
    }

    /// Bytes, all parts together.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Puts a part in its place; whether all have come. `None`: it is of something else, or has come already.
    pub fn add(&mut self, part: &Part<'_>) -> Option<bool> {
        let bit = 1 << (part.from as usize / PART);
        if part.total as usize != self.bytes.len() || self.come & bit != 0 {
            return None;
        }
        let from = part.from as usize;
        self.bytes
            .get_mut(from..from + part.payload.len())?
            .copy_from_slice(part.payload);
        self.come |= bit;
        self.missing -= 1;
        Some(self.missing == 0)
    }

    /// What has been put together.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The part of `bytes` that begins at `from`.
pub fn part(call: u64, status: u32, bytes: &[u8], from: usize) -> Part<'_> {
    let end = (from + PART).min(bytes.len());
    Part {
        call,
        total: bytes.len() as u32,
        from: from as u32,
        status,
        payload: &bytes[from..end],
    }
}

/// An answer as number and bytes; 0: it is one.
pub fn encode(answer: Result<Vec<u8>>) -> (u32, Vec<u8>) {
    let (number, text) = match answer {
        Ok(bytes) => return (0, bytes),
        Err(Error::Full(text)) => (2, text),
        Err(Error::Corrupt(text)) => (3, text),
        Err(Error::Mismatch(text)) => (4, text),
        Err(Error::Poisoned(text)) => (5, text),
        Err(Error::Invalid(text)) => (6, text),
        Err(Error::Busy(text)) => (7, text),
        Err(Error::Timeout(text) | Error::Lost(text)) => (8, text),
        Err(Error::Revoked(text)) => (9, text),
        Err(Error::OutOfBounds(text)) => (10, text),
        Err(error @ Error::Io { .. }) => (1, error.to_string()),
    };
    let end = text.floor_char_boundary(TEXT);
    (number, text.as_bytes()[..end].to_vec())
}

/// What came, as an answer.
pub fn decode(peer: &str, status: u32, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Err(match status {
        0 => return Ok(bytes),
        1 => Error::Io {
            doing: format!("memory node {peer}"),
            message: text(bytes),
            kind: io::ErrorKind::Other,
        },
        2 => Error::Full(text(bytes)),
        3 => Error::Corrupt(text(bytes)),
        4 => Error::Mismatch(text(bytes)),
        5 => Error::Poisoned(text(bytes)),
        6 => Error::Invalid(text(bytes)),
        7 => Error::Busy(text(bytes)),
        8 => Error::Timeout(text(bytes)),
        9 => Error::Revoked(text(bytes)),
        10 => Error::OutOfBounds(text(bytes)),
        _ => Error::Corrupt(format!("memory node {peer}: an error that is none")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: &[u8]) -> Vec<Part<'_>> {
        (0..bytes.len().max(1))
            .step_by(PART)
            .map(|from| part(7, 0, bytes, from))
            .collect()
    }

    #[test]
    fn parts_in_any_order_make_the_whole_once() {
        for len in [0, 1, PART - 1, PART, PART + 1, 3 * PART, LIMIT] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut whole = Whole::new(vec![1; 5], len as u32);
            let mut parts = parts(&bytes);
            parts.reverse();
            let last = parts.len() - 1;
            for (i, part) in parts.iter().enumerate() {
                assert_eq!(whole.add(part), Some(i == last), "{len} bytes, part {i}");
                assert_eq!(whole.add(part), None, "twice");
            }
            assert_eq!(whole.into_bytes(), bytes);
        }
    }

    #[test]
    fn a_part_of_something_else_is_refused() {
        let bytes = vec![1; 2 * PART];
        let mut whole = Whole::new(Vec::new(), 2 * PART as u32 + 8);
        assert_eq!(whole.add(&part(7, 0, &bytes, 0)), None);
    }

    #[test]
    fn errors_come_as_what_they_were() {
        let errors = [
            Error::Full("a".into()),
            Error::Corrupt("b".into()),
            Error::Mismatch("c".into()),
            Error::Poisoned("d".into()),
            Error::Invalid("e".into()),
            Error::Busy("f".into()),
            Error::Timeout("g".into()),
            Error::Revoked("h".into()),
            Error::OutOfBounds("i".into()),
        ];
        for error in errors {
            let text = error.to_string();
            let (status, bytes) = encode(Err(error));
            assert_eq!(decode("node", status, bytes).expect_err("an error").to_string(), text);
        }
        let (status, bytes) = encode(Err(Error::Busy("\u{e4}".repeat(2000))));
        assert!(bytes.len() <= TEXT);
        assert!(matches!(decode("node", status, bytes), Err(Error::Busy(_))));
        assert!(matches!(decode("node", 99, vec![0xff]), Err(Error::Corrupt(_))));
    }
}
