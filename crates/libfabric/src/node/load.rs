//! How many slots are under way to an address.

use std::cell::Cell;
use std::rc::Rc;

/// Slots under way to an address, beyond which answers to its sessions wait.
pub(super) const HELD: usize = 8;

/// Slots under way to an address, for whichever of its sessions, those that are over too: the provider has one
/// connection for all of them, and gives them back when its peer lets it.
#[derive(Clone, Default)]
pub(super) struct Load(Rc<Cell<usize>>);

impl Load {
    pub fn hold(&self) -> Held {
        self.0.set(self.0.get() + 1);
        Held(self.clone())
    }

    pub fn is_full(&self) -> bool {
        self.0.get() >= HELD
    }

    /// Only the table has it.
    pub fn is_idle(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

/// One of them, until it is dropped.
pub(super) struct Held(Load);

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.0.0.get();
        assert!(held > 0, "what is held is counted");
        self.0.0.set(held - 1);
    }
}
