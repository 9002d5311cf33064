//! Atomics of a region at regular distances: checked once, when the array is made, so that each use costs one
//! comparison.

use crate::host::{HostAtomicU64, Spaced};
use crate::raw;
use crate::region::Region;
use cenote_base::rt;
use std::sync::Arc;

/// Aligned words of a region, each `STRIDE` bytes after the other.
pub struct Words<const STRIDE: usize>(Spaced<STRIDE, Region>);

impl<const STRIDE: usize> Words<STRIDE> {
    /// The `count` words at `off`, `off + STRIDE`, and so on.
    ///
    /// # Panics
    /// If they are not all inside of the region, or not aligned to 8 bytes, or overlap: `STRIDE` is a multiple of 8,
    /// and not 0.
    pub fn new(region: Arc<Region>, off: u64, count: usize) -> Self {
        Self(Spaced::new(region, off, count))
    }

    /// The word with this number, if there is one.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<&HostAtomicU64> {
        self.0.get(n)
    }

    /// Asks the processor, or simulated memory, for the line of a word that will be used soon. No access.
    #[inline(always)]
    pub fn prefetch(&self, n: usize) {
        let Some(at) = self.0.place(n) else {
            return;
        };
        match rt::simulated() {
            false => raw::prefetch(at),
            true => rt::prefetch(at),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their region.
    pub fn region(&self) -> &Arc<Region> {
        self.0.owner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt::atomic::Ordering;

    #[test]
    fn words_are_where_they_should_be_and_end_there() {
        let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
        let words = Words::<64>::new(Arc::clone(&region), 8192, 100);
        words.get(99).expect("the last").store(7, Ordering::Relaxed);
        assert_eq!(region.atomic_u64(8192 + 99 * 64).load(Ordering::Relaxed), 7);
        assert!(words.get(100).is_none() && words.get(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn words_outside_of_the_region_are_no_words() {
        let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
        Words::<64>::new(region, 65536 - 64, 2);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn words_that_are_not_aligned_are_no_words() {
        let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
        Words::<64>::new(region, 8196, 2);
    }
    /// The distance is a type's parameter: each use of it is compiled for itself, so the rule is checked when the array
    /// is made.
    #[test]
    fn words_that_overlap_are_no_words() {
        fn make<const STRIDE: usize>() -> bool {
            let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
            let made = std::panic::AssertUnwindSafe(|| drop(Words::<STRIDE>::new(region, 8192, 2)));
            std::panic::catch_unwind(made).is_ok()
        }
        assert!(make::<8>() && make::<64>());
        assert!(!make::<0>() && !make::<4>() && !make::<12>());
    }
}
