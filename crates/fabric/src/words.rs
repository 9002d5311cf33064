//! Atomics of a region at regular distances: checked once, when the array is made, so that each use costs one
//! comparison.

use crate::host::HostAtomicU64;
use crate::raw;
use crate::region::Region;
use cenote_base::rt;
use core::ptr::NonNull;
use std::sync::Arc;

/// Aligned words of a region, each `STRIDE` bytes after the other.
pub struct Words<const STRIDE: usize> {
    first: NonNull<u8>,
    count: usize,
    /// Keeps them mapped.
    region: Arc<Region>,
}

// SAFETY: the words are mapped while the region that it owns a share of lives, and are reached as atomics only.
unsafe impl<const STRIDE: usize> Send for Words<STRIDE> {}
// SAFETY: as above; shared, it offers nothing else.
unsafe impl<const STRIDE: usize> Sync for Words<STRIDE> {}

impl<const STRIDE: usize> Words<STRIDE> {
    /// The `count` words at `off`, `off + STRIDE`, and so on.
    ///
    /// # Panics
    /// If they are not all inside of the region, or not aligned to 8 bytes.
    pub fn new(region: Arc<Region>, off: u64, count: usize) -> Self {
        const {
            assert!(
                STRIDE >= 8 && STRIDE.is_multiple_of(8),
                "words do not overlap and are aligned"
            )
        };
        let len = STRIDE.checked_mul(count).expect("a length in memory");
        let span = region.span(off, len as u64);
        assert!(span.as_ptr().cast::<u64>().is_aligned(), "words are aligned");
        let first = NonNull::new(span.as_ptr()).expect("mapped memory is not at null");
        Self { first, count, region }
    }

    /// The word with this number, if there is one.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<&HostAtomicU64> {
        if n >= self.count {
            return None;
        }
        // SAFETY: `n < count`, so all of it is inside the region and aligned, as `new` has checked; it is mapped while
        // `self` is.
        Some(unsafe { HostAtomicU64::at(self.first.as_ptr().add(n * STRIDE)) })
    }

    /// Asks the processor, or simulated memory, for the line of a word that will be used soon. No access.
    #[inline(always)]
    pub fn prefetch(&self, n: usize) {
        if n >= self.count {
            return;
        }
        let at = self.first.as_ptr().wrapping_add(n * STRIDE);
        match rt::simulated() {
            false => raw::prefetch(at),
            true => rt::prefetch(at),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Their region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
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
}
