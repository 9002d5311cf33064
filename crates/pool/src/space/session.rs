use super::{GlobalAddress, Lifetime, Space};
use cenote_base::Result;
use core::ops::Deref;

/// Allocates objects of a space: one for a thread, or for a few. Everything that a [`Space`] can do, it can too. Dropping it closes it.
pub struct Session {
    space: Space,
}

impl Session {
    /// A new object of at least `len` bytes, all zero, that stays until it is freed.
    ///
    /// # Errors
    /// `Full`; `Invalid` if `len` is 0.
    pub fn alloc(&self, len: u64) -> Result<GlobalAddress> {
        self.alloc_in(len, Lifetime::Space)
    }
    /// A new object of at least `len` bytes, all zero.
    pub fn alloc_in(&self, _len: u64, _lifetime: Lifetime) -> Result<GlobalAddress> {
        todo!()
    }
    /// Its space.
    pub fn space(&self) -> &Space {
        &self.space
    }
    /// Ends it: what has [`Lifetime::Session`] is freed.
    pub fn close(self) -> Result<()> {
        todo!()
    }
}

impl Deref for Session {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}
