//! What a part has whose changes reach a mirror ([`super::mirrored`]).

use cenote_base::rt::atomic::AtomicBool;
use cenote_base::rt::{Mutex, MutexGuard};

/// See the module.
#[derive(Default)]
pub(super) struct Mirrored {
    step: Mutex<()>,
    /// This process keeps the part no more.
    pub(super) withdrawn: AtomicBool,
}

/// While it lives no other access to the part is in the middle of its step.
pub(super) struct Step<'a> {
    _one: Option<MutexGuard<'a, ()>>,
}

impl<'a> Step<'a> {
    /// Of a part that is mirrored, or is not.
    pub(super) fn begin(mirrored: Option<&'a Mirrored>) -> Self {
        Self {
            _one: mirrored.map(|mirrored| mirrored.step.lock()),
        }
    }
}
