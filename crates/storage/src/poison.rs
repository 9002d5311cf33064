//! What a store remembers of the error that ended its life.
//!
//! A failed write or sync is never retried: the system may have dropped the bytes, and the next sync would not say so.
//!
//! Invariants:
//! - the first cause stays; later ones are dropped;
//! - the flag is set only after the cause, so that a thread that sees the flag finds the cause.

use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::{Error, Result};

/// Whether a store has failed, and by which error.
#[derive(Default)]
pub(crate) struct Poison {
    is_set: AtomicBool,
    cause: Mutex<Option<Error>>,
}

impl Poison {
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// From here on [`Poison::check`] fails with the first `cause` that was given.
    pub fn set(&self, cause: impl FnOnce() -> Error) {
        self.cause.lock().get_or_insert_with(cause);
        self.is_set.store(true, Ordering::Release);
    }

    /// Fails once the store has.
    ///
    /// # Errors
    /// The first cause, once the store has failed.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(self.error()) } else { Ok(()) }
    }

    /// The error that ended the store's life; only once there is one.
    #[cold]
    pub fn error(&self) -> Error {
        let cause = self.cause.lock().clone();
        cause.expect("the cause is set before the flag")
    }
}
