//! Which extents of other slots lie in this part's memory, and where.
//!
//! Pairs of an extent's address and the slot that it lies in, four a line; an extent is in one of two lines. The keeper alone writes them, under its lock. Whoever reads believes
//! the slot's descriptor, not the pair: that says again which extent it is. So a pair that is read while it changes misleads nobody.

use super::GlobalAddress;
use super::layout::{GUESTS, GUESTS_A_LINE, Layout, guest_lines};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::Seam;
use cenote_base::{Error, Result};
use cenote_fabric::{HostAtomicU64, LINE, Region, Words};
use std::sync::Arc;

const PAIR: usize = LINE / GUESTS_A_LINE;
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The table, as this process has it mapped.
pub(super) struct Guests {
    keys: Words<PAIR>,
    slots: Words<PAIR>,
    lines: usize,
    region: Arc<Region>,
}

impl Guests {
    pub(super) fn new(region: &Arc<Region>, layout: Layout) -> Self {
        let lines = guest_lines(layout.slots);
        let words = |field| Words::new(Arc::clone(region), layout.guests_at + field, lines * GUESTS_A_LINE);
        Self {
            keys: words(0),
            slots: words(8),
            lines,
            region: Arc::clone(region),
        }
    }

    fn count(&self) -> &HostAtomicU64 {
        self.region.atomic_u64(GUESTS)
    }

    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty<S: Seam>(&self, seam: S) -> bool {
        self.count().load_by(seam, Ordering::Relaxed) == 0
    }

    #[inline(always)]
    fn pairs(&self, guest: u64) -> impl Iterator<Item = usize> + use<> {
        let hash = guest.wrapping_mul(SPREAD);
        let lines = [hash >> 40, hash >> 16].map(|bits| bits as usize & (self.lines - 1));
        lines
            .into_iter()
            .flat_map(|line| line * GUESTS_A_LINE..(line + 1) * GUESTS_A_LINE)
    }

    /// The slot that an extent may lie in.
    #[inline(always)]
    pub(super) fn find<S: Seam>(&self, seam: S, guest: GlobalAddress) -> Option<u32> {
        let mut pairs = self.pairs(guest.raw());
        let pair = pairs.find(|pair| {
            let key = self.keys.get(*pair);
            key.is_some_and(|key| key.load_by(seam, Ordering::Acquire) == guest.raw())
        })?;
        u32::try_from(self.slots.get(pair)?.load_by(seam, Ordering::Acquire)).ok()
    }

    /// Adds one.
    ///
    /// # Errors
    /// [`Error::Full`]: both lines are, though the table is not.
    pub(super) fn insert(&self, guest: GlobalAddress, slot: u32) -> Result<()> {
        self.remove(guest);
        let free = |pair: &usize| self.keys.get(*pair).is_some_and(|key| key.load(Ordering::Acquire) == 0);
        let pair = self.pairs(guest.raw()).find(free);
        let pair = pair.ok_or_else(|| Error::Full(format!("no place in the table of guests for {guest}")))?;
        let (key, place) = (self.keys.get(pair), self.slots.get(pair));
        place.expect("a pair").store(slot.into(), Ordering::Release);
        key.expect("a pair").store(guest.raw(), Ordering::Release);
        self.count().fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Whether there would be a place for it.
    pub(super) fn has_place(&self, guest: GlobalAddress) -> bool {
        let is_free = |pair: usize| self.keys.get(pair).is_some_and(|key| key.load(Ordering::Acquire) == 0);
        self.pairs(guest.raw()).any(is_free)
    }

    /// Takes one out, if it is there.
    pub(super) fn remove(&self, guest: GlobalAddress) {
        for pair in self.pairs(guest.raw()) {
            let key = self.keys.get(pair).expect("a pair");
            if key.load(Ordering::Acquire) == guest.raw() {
                key.store(0, Ordering::Release);
                self.count().fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Takes all out: for a keeper that begins.
    pub(super) fn clear(&self) {
        for pair in 0..self.keys.len() {
            self.keys.get(pair).expect("a pair").store(0, Ordering::Release);
        }
        self.count().store(0, Ordering::Release);
    }
}
