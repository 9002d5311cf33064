//! Memory that calls lend: bytes of the caller's own, or a buffer that the node writes to by itself.
//!
//! ```text
//!   Caller::lend ─► Memory ─► Call::into_memory ─► post ·· the node's card writes, the node answers ·· ─► Memory again
//!                                                   └ no answer: other memory comes back; the buffer is not used
//!                                                     while a write may be on its way
//! ```

use core::any::Any;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// A buffer of a connection, which its node can write to by itself while it is lent. Dropped, it goes back to where it
/// came from.
pub trait Registered: Any + Send {
    /// Its bytes, while it is not lent.
    fn bytes(&self) -> &[u8];

    /// Its bytes, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// See the module.
pub enum Memory {
    /// Bytes of the caller's own.
    Plain(Vec<u8>),
    /// A buffer of a connection ([`Caller::lend`](super::Caller::lend)). Over any other it is memory like its own.
    Registered(Box<dyn Registered>),
}

impl Memory {
    /// Bytes of one's own; none if it was a buffer of a connection, which goes back there.
    pub fn into_plain(self) -> Vec<u8> {
        match self {
            Memory::Plain(bytes) => bytes,
            Memory::Registered(_) => Vec::new(),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Plain(Vec::new())
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Memory::Plain(bytes)
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Plain(bytes) => bytes,
            Memory::Registered(buffer) => buffer.bytes(),
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Plain(bytes) => bytes,
            Memory::Registered(buffer) => buffer.bytes_mut(),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Memory::Plain(_) => "plain",
            Memory::Registered(_) => "registered",
        };
        write!(f, "{} bytes, {kind}", self.len())
    }
}
