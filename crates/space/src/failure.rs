//! Errors as messages carry them.

use cenote_base::Error;
use serde::{Deserialize, Serialize};

/// An error in a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    kind: Kind,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Kind {
    Full,
    Corrupt,
    Mismatch,
    Poisoned,
    Invalid,
    Busy,
    Timeout,
    Revoked,
    OutOfBounds,
    Lost,
    Io,
}

impl Failure {
    /// As JSON of at most so many bytes, which are enough for any without a text: the end of its text may be missing.
    pub fn within(mut self, bytes: usize) -> Vec<u8> {
        loop {
            let json = serde_json::to_vec(&self).unwrap_or_default();
            let beyond = json.len().saturating_sub(bytes);
            if beyond == 0 || self.text.is_empty() {
                return json;
            }
            // A character is six bytes of JSON at most for each of its own.
            let shorter = self.text.len().saturating_sub(beyond.div_ceil(6));
            self.text.truncate(self.text.floor_char_boundary(shorter));
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Full(_) | Error::OutOfMemory(_) => Kind::Full,
            Error::Corrupt(_) => Kind::Corrupt,
            Error::Mismatch(_) => Kind::Mismatch,
            Error::Poisoned(_) | Error::LogFailed(_) => Kind::Poisoned,
            Error::Invalid(_) => Kind::Invalid,
            Error::Busy(_) => Kind::Busy,
            Error::Timeout(_) => Kind::Timeout,
            Error::Revoked(_) => Kind::Revoked,
            Error::OutOfBounds(_) => Kind::OutOfBounds,
            Error::Lost(_) => Kind::Lost,
            Error::Io { .. } | Error::Canceled | Error::Ahead(_) | Error::Past(_) => Kind::Io,
        };
        let text = match error {
            Error::Corrupt(text) => text,
            other => other.to_string(),
        };
        Self { kind, text }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let text = failure.text;
        match failure.kind {
            Kind::Full => Error::Full(text),
            Kind::Corrupt => Error::Corrupt(text),
            Kind::Mismatch => Error::Mismatch(text),
            Kind::Poisoned => Error::Poisoned(text),
            Kind::Invalid => Error::Invalid(text),
            Kind::Busy => Error::Busy(text),
            Kind::Timeout => Error::Timeout(text),
            Kind::Revoked => Error::Revoked(text),
            Kind::OutOfBounds => Error::OutOfBounds(text),
            Kind::Lost => Error::Lost(text),
            Kind::Io => Error::io(text, std::io::ErrorKind::Other.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_cut() {
        for text in [
            "\u{1}".repeat(500),
            "\u{e4}\"".repeat(300),
            "short".into(),
            String::new(),
        ] {
            let failure = Failure::from(Error::Busy(text.clone()));
            let json = failure.clone().within(100);
            assert!(json.len() <= 100, "{} bytes", json.len());
            let back: Failure = serde_json::from_slice(&json).expect("JSON");
            assert!(back.kind == failure.kind && failure.text.starts_with(&back.text));
            assert!(back.text.len() >= failure.text.len().min(8), "{}", back.text);
        }
    }
}
