//! Atomics of a region at regular distances: checked once, when the array is made, so that each use costs one comparison.

use crate::Region;
use crate::host::HostAtomicU64;
use core::ptr::NonNull;
use std::sync::Arc;

/// Aligned words of a region, each a stride after the other.
pub struct Words {
    first: NonNull<u8>,
    stride: usize,
    count: usize,
    /// Keeps them mapped.
    region: Arc<Region>,
}

// SAFETY: the words are mapped while the region that it owns a share of lives, and are reached as atomics only.
unsafe impl Send for Words {}
// SAFETY: as above; shared, it offers nothing else.
unsafe impl Sync for Words {}

impl Words {
    /// The `count` words at `off`, `off + stride`, and so on.
    ///
    /// # Panics
    /// If they are not all inside of the region, or not aligned to 8 bytes.
    pub fn new(region: Arc<Region>, off: u64, stride: usize, count: usize) -> Self {
        let len = stride.checked_mul(count).expect("a length in memory");
        let span = region.span(off, len as u64);
        assert!(
            stride >= 8 && stride.is_multiple_of(8),
            "words do not overlap and are aligned"
        );
        assert!(span.as_ptr().cast::<u64>().is_aligned(), "words are aligned");
        let first = NonNull::new(span.as_ptr()).expect("mapped memory is not at null");
        Self {
            first,
            stride,
            count,
            region,
        }
    }

    /// The word with this number, if there is one.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<&HostAtomicU64> {
        if n >= self.count {
            return None;
        }
        // SAFETY: `n < count`, so all of it is inside the region and aligned, as `new` has checked; it is mapped while `self` is.
        Some(unsafe { HostAtomicU64::at(self.first.as_ptr().add(n * self.stride)) })
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
        let words = Words::new(Arc::clone(&region), 8192, 64, 100);
        words.get(99).expect("the last").store(7, Ordering::Relaxed);
        assert_eq!(region.atomic_u64(8192 + 99 * 64).load(Ordering::Relaxed), 7);
        assert!(words.get(100).is_none() && words.get(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn words_outside_of_the_region_are_no_words() {
        let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
        Words::new(region, 65536 - 64, 64, 2);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn words_that_are_not_aligned_are_no_words() {
        let region = Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"));
        Words::new(region, 8196, 64, 2);
    }
}
