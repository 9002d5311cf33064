//! Where extents away from home lay last: a stale entry costs one trip.

use crate::GlobalAddress;
use cenote_base::rt::atomic::{AtomicU64, Ordering};

/// Extents whose last known part is remembered.
const REMEMBERED: usize = 4096;
const PART: u64 = 0xff;
/// The bits of a hash above this choose the entry.
const HASH_SHIFT: u32 = 52;

const _: () = assert!(REMEMBERED == 1 << (u64::BITS - HASH_SHIFT));
// The part stands where an extent's address has zeros.
const _: () = assert!(PART < crate::EXTENT);

/// Where extents that are away from home last were. A wrong one costs a trip.
pub(super) struct LocationCache(Box<[AtomicU64]>);

impl Default for LocationCache {
    fn default() -> Self {
        Self((0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }
}

impl LocationCache {
    fn word(&self, extent: GlobalAddress) -> &AtomicU64 {
        &self.0[(extent.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> HASH_SHIFT) as usize]
    }

    pub(super) fn of(&self, address: GlobalAddress) -> u8 {
        let extent = address.extent();
        let word = self.word(extent).load(Ordering::Relaxed);
        if word & !PART == extent.raw() && word & PART != 0 {
            (word & PART) as u8
        } else {
            address.part()
        }
    }

    pub(super) fn set(&self, address: GlobalAddress, part: u8) {
        let extent = address.extent();
        self.word(extent)
            .store(extent.raw() | u64::from(part), Ordering::Relaxed);
    }
}
