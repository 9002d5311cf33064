//! What memory is granted in.

/// Memory is granted and handed out in extents of so many bytes.
pub const EXTENT: u64 = 2 << 20;
