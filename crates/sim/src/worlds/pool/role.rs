//! How a program of a pod is started, and what all of them know.

use cenote_base::rt::Nanos;

/// Bytes of an extent.
pub(super) const EXTENT: u64 = 2 << 20;

/// How a program of a pod is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    /// It makes the part.
    pub(super) makes: bool,
    /// Hot extents move.
    pub(super) moves: bool,
    /// Between two looks at what is hot, or empty; zero: none.
    pub(super) every: Nanos,
}

impl Role {
    /// Nothing moves by itself.
    pub(super) const STILL: Role = Role {
        makes: false,
        moves: false,
        every: Nanos::ZERO,
    };
}
