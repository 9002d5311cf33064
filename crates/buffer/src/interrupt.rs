//! What another thread stops a statement by.

use std::sync::Arc;

use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Stops a statement from another thread.
pub trait Interrupt: Send + Sync {
    /// Whether the statement is asked to give up.
    fn is_set(&self) -> bool;
}

/// What stops the statement that a thread runs.
#[derive(Default)]
pub(crate) struct InterruptCell {
    pub heard: AtomicBool,
    /// Where `flag` lies: it is asked for by each statement, and mostly the one of the statement before.
    pub known: AtomicUsize,
    flag: Mutex<Option<Arc<dyn Interrupt>>>,
}

impl InterruptCell {
    #[cold]
    pub fn learn(&self, flag: Arc<dyn Interrupt>, at: usize) {
        *self.flag.lock() = Some(flag);
        self.known.as_raw().store(at, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.heard.as_raw().load(Ordering::Relaxed) && self.flag.lock().as_ref().is_some_and(|flag| flag.is_set())
    }
}
