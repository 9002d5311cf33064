//! A child of `fork` has its parent's handles, and they are not its own: two processes would keep one part, or allocate
//! in one session. So each handle knows how often its process's forefathers had forked when it was made.

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::sync::Once;

static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCHED: Once = Once::new();

/// Forks that led to this process, since they are watched.
#[inline(always)]
pub(super) fn forks() -> u64 {
    FORKS.as_raw().load(Ordering::Relaxed)
}

/// From now on they are.
pub(super) fn watch() {
    WATCHED.call_once(|| {
        // SAFETY: a function that may run in a child of fork: it changes a word.
        let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // Without memory for its entry it is not called, and a child that uses its parent's handles is not noticed.
    });
}

extern "C" fn in_child() {
    FORKS.as_raw().fetch_add(1, Ordering::Relaxed);
}
