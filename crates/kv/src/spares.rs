//! Objects of entries that were replaced, kept for those that come next.
//!
//! Setting a key anew takes an object and gives one back, most often of the same size. From here it is the one that was
//! given back last: its lines are in the processor's cache, no live bit is searched, set or cleared, and nothing is
//! zeroed that is written anyway.
//!
//! To the space they are allocated, and nothing refers to them: as what a kill leaves behind, the next start frees
//! them. A store that is closed frees them itself.

use cenote_space::{Class, GlobalAddress};

/// Bytes of the longest.
pub(super) const PACKED_MAX: usize = 2048;
/// The largest that are kept, in bytes.
const BYTES_MAX: u64 = PACKED_MAX as u64;
/// Classes up to there.
const CLASSES: usize = 24;
/// Of one class.
const KEPT_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Spares([Vec<GlobalAddress>; CLASSES]);

impl Spares {
    fn of(&mut self, bytes: u64) -> Option<&mut Vec<GlobalAddress>> {
        let class = Class::of(bytes).filter(|_| bytes > 0 && bytes <= BYTES_MAX)?;
        self.0.get_mut(usize::from(class.number()))
    }

    /// One with room for so many bytes. What it holds is what it held.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64) -> Option<GlobalAddress> {
        self.of(bytes)?.pop()
    }

    /// Keeps an object that was allocated for so many bytes. False if it is one too many, or too large: it is to be
    /// freed.
    #[inline]
    pub(super) fn keep(&mut self, at: GlobalAddress, bytes: u64) -> bool {
        let kept = self.of(bytes).filter(|kept| kept.len() < KEPT_MAX);
        kept.map(|kept| kept.push(at)).is_some()
    }

    /// All of them, which are not kept any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = GlobalAddress> {
        self.0.iter_mut().flat_map(|kept| kept.drain(..))
    }

    /// How many they are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_place_for_each_class_up_to_the_largest() {
        let class = Class::of(BYTES_MAX).expect("small");
        assert_eq!((usize::from(class.number()) + 1, class.size()), (CLASSES, BYTES_MAX));
    }

    #[test]
    fn the_last_of_a_size_comes_first_and_there_are_not_too_many() {
        let (mut spares, at) = (Spares::default(), GlobalAddress::from_raw);
        assert!(spares.keep(at(1), 64) && spares.keep(at(2), 1) && spares.keep(at(3), 65));
        assert_eq!(
            (spares.take(64), spares.take(64), spares.take(64)),
            (Some(at(2)), Some(at(1)), None)
        );
        assert_eq!(
            (spares.take(128), spares.take(0), spares.take(BYTES_MAX + 1)),
            (Some(at(3)), None, None)
        );
        assert!(!spares.keep(at(4), BYTES_MAX + 1));
        let kept = (0..100).filter(|n| spares.keep(at(*n), BYTES_MAX)).count();
        assert_eq!(
            (kept, spares.len(), spares.drain().count(), spares.len()),
            (KEPT_MAX, KEPT_MAX, KEPT_MAX, 0)
        );
    }
}
