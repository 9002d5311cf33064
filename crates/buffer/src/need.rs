//! What a thread's mini-transactions are for.

use cenote_base::rt::atomic::AtomicU32;

/// What a thread's mini-transactions are for at present.
#[derive(Default)]
pub(crate) struct NeedCell(pub AtomicU32);
