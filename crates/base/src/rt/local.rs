//! A value for each thread, by thread slot.

use super::seam::Seam;
use super::{MAX_THREADS, thread_slot};
use std::sync::OnceLock;

/// A line or two of its own, so that neighbours do not share one.
#[repr(align(128))]
struct Padded<T>(T);
const _: () = assert!(
    align_of::<Padded<u8>>() >= 128 && size_of::<Padded<u8>>() >= 128,
    "two threads' values lie on lines of their own, and so do the pairs that a processor fetches"
);

/// A value for each thread slot, made when first asked for.
///
/// A value belongs to the *slot*: a thread that gets the slot of one that ended finds its value.
/// That suits counters, caches and arenas; what must be fresh for a thread is reset by it. The
/// value is shared (`T: Sync`), so that [`Local::iter`] can sum over all threads: counters are
/// relaxed atomics that only their own thread writes.
pub struct Local<T> {
    slots: Box<[OnceLock<Box<Padded<T>>>]>,
    init: fn() -> T,
}

impl<T: Sync + Send> Local<T> {
    /// With `init` making each value.
    pub fn new(init: fn() -> T) -> Self {
        Self {
            slots: (0..MAX_THREADS).map(|_| OnceLock::new()).collect(),
            init,
        }
    }

    /// This thread's value.
    #[inline]
    pub fn get(&self) -> &T {
        self.of(thread_slot())
    }

    /// This thread's value, within an operation that has asked: see [`super::seam`].
    #[inline(always)]
    pub fn get_by<S: Seam>(&self, seam: S) -> &T {
        self.of(seam.slot())
    }

    /// Calls `f` with this thread's value.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(self.get())
    }

    /// The value of a slot that the caller knows to be its own.
    #[inline]
    pub fn of(&self, slot: usize) -> &T {
        &self.slots[slot].get_or_init(|| Box::new(Padded((self.init)()))).0
    }

    /// The values made so far, of all threads, live or ended.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|s| s.get().map(|v| &v.0))
    }
}

impl<T: Sync + Send + Default> Default for Local<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<T> std::fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local")
    }
}
