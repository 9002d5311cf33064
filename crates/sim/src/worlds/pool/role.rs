//! How a program of a pod is started, and what all of them know.

use cenote_base::rt::Nanos;

/// Bytes of an extent.
pub(in crate::worlds) const EXTENT: u64 = 2 << 20;

/// How a program of a pod is started.
#[derive(Debug, Clone, Copy)]
pub(in crate::worlds) struct Role {
    /// It makes the part.
    pub(in crate::worlds) makes: bool,
    /// Hot extents move.
    pub(in crate::worlds) moves: bool,
    /// Between two looks at what is hot, or empty; zero: none.
    pub(in crate::worlds) every: Nanos,
}

impl Role {
    /// Nothing moves by itself.
    pub(in crate::worlds) const STILL: Role = Role {
        makes: false,
        moves: false,
        every: Nanos::ZERO,
    };
}
