//! Why a command is refused, and what its client reads then.

use crate::log;
use cenote_base::Error;
use cenote_kv::Failure;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why a command is refused.
#[derive(Debug)]
pub enum Refusal {
    /// The error text.
    Says(&'static str),
    /// A text that names what was given.
    Text(String),
    /// The store's error.
    Store(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// The outcome of a command: its answer is written, or it is refused.
pub type Done = Result<(), Refusal>;

pub const SYNTAX: Refusal = Refusal::Says("ERR syntax error");
pub const NOT_INTEGER: Refusal = Refusal::Says("ERR value is not an integer or out of range");

/// Of an answer that would be longer than `reply::ANSWER_MAX`.
pub const TOO_MUCH: Refusal = Refusal::Says("ERR the answer is too long: ask for less at a time");

/// The error of a wrong number of strings.
pub fn wrong_number(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

impl Refusal {
    /// The text of the answer.
    #[cold]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Says(text) => Cow::Borrowed(text),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Store(failure) => Cow::Owned(words(failure)),
        }
    }
}

/// Logs what ails the memory: once a second, since each command may meet it.
fn note(error: &Error) {
    static NOTED_AT: AtomicU64 = AtomicU64::new(0);
    let second = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    if NOTED_AT.swap(second, Ordering::Relaxed) != second {
        log::error!("the store: {error}");
    }
}

fn words(failure: &Failure) -> String {
    let text = match failure {
        Failure::WrongKind => "WRONGTYPE Operation against a key holding the wrong kind of value",
        Failure::NotInteger => "ERR value is not an integer or out of range",
        Failure::Overflow => "ERR increment or decrement would overflow",
        Failure::TooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        Failure::Missing => "ERR no such key",
        Failure::Memory(Error::Full(_)) => "OOM command not allowed when used memory > 'maxmemory'.",
        Failure::Memory(error) => {
            note(error);
            return format!("ERR the memory: {error}");
        }
    };
    text.into()
}
