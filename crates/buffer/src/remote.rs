//! Remote memory as the pool's users see it: how large it is to be, and its parts.

/// How large remote memory is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemoteSize {
    /// By what more of it would save.
    #[default]
    ByNeed,
    /// So many bytes, the first part among them; rounded up to slabs.
    Bytes(u64),
}

/// How a part of remote memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartState {
    /// Pages come and go.
    Serving,
    /// It is about to be given back: what is worth it moves elsewhere.
    Leaving,
    /// It is granted, and cannot be reached.
    Away,
}

/// A part of remote memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePart {
    /// Its number; none: the first part, with the directory.
    pub slab: Option<u32>,
    /// The node that it lies on; empty while that is not known.
    pub node: String,
    /// Its size.
    pub bytes: u64,
    /// Pages that fit.
    pub slots: u32,
    /// Pages in it.
    pub slots_in_use: u32,
    /// How it is used.
    pub state: PartState,
}
