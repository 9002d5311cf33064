//! The memory's state as its views reach it: one call at a time.

use super::state::State;
use std::cell::{Cell, RefCell};
use std::mem::{self, ManuallyDrop};

/// What views share.
pub(crate) struct Shared {
    /// Borrowed for good when the world is over, and by a call that has failed.
    state: RefCell<State>,
    is_over: Cell<bool>,
    /// Ends the running process: it has accessed a device that is gone.
    pub(super) machine_check: fn(),
}

impl Shared {
    pub(super) fn new(state: State, machine_check: fn()) -> Self {
        Self {
            state: RefCell::new(state),
            is_over: Cell::new(false),
            machine_check,
        }
    }

    /// Whether a call is under way, or has failed.
    pub(super) fn is_busy(&self) -> bool {
        self.state.try_borrow().is_err()
    }

    /// The world is over: its memory goes, and any later use is a panic. What a failed call has left is leaked.
    pub(super) fn end(&self) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.release_all();
            self.is_over.set(true);
            mem::forget(state);
        }
    }

    /// The state, for the length of a call that may not come here again. A call that panics leaves the state half
    /// changed: later ones panic, too.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let Ok(state) = self.state.try_borrow_mut() else {
            self.refuse()
        };
        let mut state = ManuallyDrop::new(state);
        let result = f(&mut state);
        drop(ManuallyDrop::into_inner(state));
        result
    }

    #[cold]
    fn refuse(&self) -> ! {
        assert!(!self.is_over.get(), "memory of a world that is over");
        panic!("the memory is asked by itself");
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Shared")
    }
}
