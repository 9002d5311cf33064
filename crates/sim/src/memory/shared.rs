//! The memory's state as its views reach it: one thread of the machine, one call at a time.

#![allow(unsafe_code, reason = "a cell that its one owner opens for the length of a call")]

use super::state::State;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What views share.
pub(crate) struct Shared {
    /// The thread that may use it: the address of a thread-local; 0: none yet; `usize::MAX`: the world is over.
    owner: AtomicUsize,
    busy: Cell<bool>,
    state: UnsafeCell<State>,
    /// Ends the running process: it has accessed a device that is gone.
    pub(super) machine_check: fn(),
}

// SAFETY: only the owner, one thread, gets at the state and the cells (`check`).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

const OVER: usize = usize::MAX;

#[inline(always)]
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.try_with(|here| std::ptr::from_ref(here).addr()).unwrap_or(OVER)
}

impl Shared {
    pub(super) fn new(state: State, machine_check: fn()) -> Self {
        Self {
            owner: AtomicUsize::new(0),
            busy: Cell::new(false),
            state: UnsafeCell::new(state),
            machine_check,
        }
    }

    /// Whether a call is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// The world is over: any later use is a panic.
    pub(super) fn end(&self) {
        self.owner.store(OVER, Relaxed);
    }

    /// Only the owner comes past here.
    #[inline(always)]
    pub(super) fn check(&self) {
        if self.owner.load(Relaxed) != this_thread() {
            self.claim();
        }
    }

    #[cold]
    fn claim(&self) {
        let claimed = self.owner.compare_exchange(0, this_thread(), Relaxed, Relaxed);
        match claimed {
            Ok(_) => {}
            Err(OVER) => panic!("memory of a world that is over"),
            Err(_) => panic!("memory of a world that another thread runs"),
        }
    }

    /// The state, for the length of a call that may not come here again.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.check();
        assert!(!self.busy.replace(true), "the memory is asked by itself");
        // SAFETY: one thread (`check`), and one call at a time (`busy`).
        let result = f(unsafe { &mut *self.state.get() });
        self.busy.set(false);
        result
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Shared")
    }
}
