//! Which chains of large values a version shares with the next one.

use crate::tree::LargeRef;

/// Which chains of a version the next one has, too: by their position among `large::refs_of` the version. An undo record
/// holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shared(pub u32);

impl Shared {
    /// Chains of a version that can be shared: those behind are copied.
    pub(crate) const MAX: usize = u32::BITS as usize;

    pub(crate) fn add(&mut self, position: usize) {
        assert!(position < Shared::MAX);
        self.0 |= 1 << position;
    }

    pub(crate) fn contains(self, position: usize) -> bool {
        position < Shared::MAX && self.0 & 1 << position != 0
    }

    /// Those of a version's chains that are shared (`true`), or are not.
    pub(crate) fn select(self, refs: Vec<LargeRef>, shared: bool) -> Vec<LargeRef> {
        let chosen = |position: &usize| self.contains(*position) == shared;
        refs.into_iter()
            .enumerate()
            .filter(|(position, _)| chosen(position))
            .map(|(_, large)| large)
            .collect()
    }
}
