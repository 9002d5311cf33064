//! The bytes of a region that hardware keeps coherent among hosts: the only place for atomics that hold among them.

use crate::host::{PodAtomicU32, PodAtomicU64};
use crate::span::Span;

/// The bytes of a region, from its start on, that hardware keeps coherent among hosts: [`crate::Region::window`].
#[derive(Debug, Clone, Copy)]
pub struct Window<'a>(Span<'a>);

impl<'a> Window<'a> {
    pub(crate) fn new(span: Span<'a>) -> Self {
        Self(span)
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the aligned word of `len` bytes at `off` lies, if it is inside.
    fn word(&self, off: u64, len: usize) -> Option<usize> {
        let off = usize::try_from(off).ok()?;
        let inside = self.0.contains(off, len) && off.is_multiple_of(len);
        inside.then_some(off)
    }

    /// The atomic at `off` of the region; `None` outside the window, or where it is not aligned.
    pub fn atomic_u64(&self, off: u64) -> Option<&'a PodAtomicU64> {
        self.word(off, 8).map(|at| self.0.pod_atomic_u64(at))
    }

    /// The atomic at `off` of the region; `None` outside the window, or where it is not aligned.
    pub fn atomic_u32(&self, off: u64) -> Option<&'a PodAtomicU32> {
        self.word(off, 4).map(|at| self.0.pod_atomic_u32(at))
    }
}
