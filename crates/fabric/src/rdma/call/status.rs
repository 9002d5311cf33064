//! Answers as they travel: a number, and the bytes of the answer or the text of an error.

use cenote_base::{Error, Result};
use std::io;

/// Bytes of an error's text.
const TEXT: usize = 1024;

/// An answer as number and bytes; 0: it is one.
pub fn encode(answer: Result<Vec<u8>>) -> (u32, Vec<u8>) {
    let (number, text) = match answer {
        Ok(bytes) => return (0, bytes),
        Err(Error::Full(text) | Error::OutOfMemory(text)) => (2, text),
        Err(Error::Corrupt(text)) => (3, text),
        Err(Error::Mismatch(text)) => (4, text),
        Err(Error::Poisoned(text) | Error::LogFailed(text)) => (5, text),
        Err(Error::Invalid(text)) => (6, text),
        Err(Error::Busy(text)) => (7, text),
        Err(Error::Timeout(text) | Error::Lost(text)) => (8, text),
        Err(Error::Revoked(text)) => (9, text),
        Err(Error::OutOfBounds(text)) => (10, text),
        Err(error @ (Error::Io { .. } | Error::Canceled | Error::Ahead(_) | Error::Past(_))) => (1, error.to_string()),
    };
    let end = text.floor_char_boundary(TEXT);
    (number, text.as_bytes()[..end].to_vec())
}

/// What came, as an answer.
///
/// # Errors
/// The error that the number stands for; [`Error::Corrupt`] for a number that no node sends.
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
