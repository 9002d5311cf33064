//! A value that one thread of the machine uses: the one that has made it.
//!
//! A world runs on one thread of the machine, and its memory is plain cells. Programs are given it behind the seam as
//! `Device`s, which have to be `Send` and `Sync`: this is where the two meet.

#![allow(unsafe_code, reason = "one thread alone gets at the value")]

use core::fmt;
use std::mem::ManuallyDrop;

/// See the module. Dropped by another thread, the value is leaked.
pub(crate) struct ThreadOwned<T> {
    owner: usize,
    value: ManuallyDrop<T>,
}

// SAFETY: `get` and `drop` look at the value on the thread that has made it, and on no other. (A later thread may have
// a dead one's mark; it is then the only one.)
unsafe impl<T> Send for ThreadOwned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ThreadOwned<T> {}

/// What tells the running thread of the machine from all others that live: the address of a thread-local.
#[inline(always)]
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    // `LocalKey::with` is no inline function.
    HERE.try_with(|here| std::ptr::from_ref(here).addr())
        .expect("a cell without a destructor")
}

impl<T> ThreadOwned<T> {
    /// A value of the calling thread.
    pub(crate) fn new(value: T) -> Self {
        Self {
            owner: this_thread(),
            value: ManuallyDrop::new(value),
        }
    }

    /// The value. Panics on another thread.
    #[inline(always)]
    pub(crate) fn get(&self) -> &T {
        if self.owner != this_thread() {
            of_another();
        }
        &self.value
    }
}

#[cold]
#[inline(never)]
fn of_another() -> ! {
    panic!("memory of a world that another thread runs")
}

impl<T> Drop for ThreadOwned<T> {
    fn drop(&mut self) {
        if self.owner == this_thread() {
            // SAFETY: the owner's thread, and the value is not used again.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T> fmt::Debug for ThreadOwned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadOwned")
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadOwned;
    use std::cell::Cell;
    use std::sync::Arc;

    #[test]
    fn another_thread_gets_a_panic_and_drops_nothing() {
        let owned = Arc::new(ThreadOwned::new(Cell::new(1)));
        owned.get().set(2);
        let theirs = Arc::clone(&owned);
        let other = std::thread::spawn(move || theirs.get().set(3)).join();
        assert!(other.is_err());
        assert_eq!(owned.get().get(), 2);

        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("dropped on a thread that does not own it");
            }
        }
        let loud = ThreadOwned::new(Loud);
        std::thread::spawn(move || drop(loud)).join().expect("leaked");
    }
}
