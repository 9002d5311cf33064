//! Which extents of other slots lie in this part's memory, and where.
//!
//! Pairs of an extent's address and the slot that it lies in, four a line; an extent is in one of two lines. The keeper
//! alone writes them, under its lock. A reader believes the slot's descriptor, not the pair: the descriptor says again
//! which extent it is. So a pair that is read while it changes misleads no reader.

use super::GlobalAddress;
use super::layout::{Layout, MIGRATED_A_LINE, MIGRATED_COUNT, migrated_lines};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::Seam;
use cenote_base::{Error, Result};
use cenote_fabric::{HostAtomicU64, LINE, Region, Words};
use std::sync::Arc;

const PAIR: usize = LINE / MIGRATED_A_LINE;
const _: () = assert!(PAIR == 16);
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The table, as this process has it mapped.
pub(super) struct MigratedExtents {
    keys: Words<PAIR>,
    slots: Words<PAIR>,
    lines: usize,
    region: Arc<Region>,
}

impl MigratedExtents {
    pub(super) fn new(region: &Arc<Region>, layout: Layout) -> Self {
        let lines = migrated_lines(layout.slots);
        assert!(lines.is_power_of_two(), "a mask chooses one of {lines} lines");
        assert!(
            lines * MIGRATED_A_LINE >= 2 * layout.slots as usize,
            "the table may come to be more than half full"
        );
        let words = |field| Words::new(Arc::clone(region), layout.migrated_at + field, lines * MIGRATED_A_LINE);
        Self {
            keys: words(0),
            slots: words(8),
            lines,
            region: Arc::clone(region),
        }
    }

    fn count(&self) -> &HostAtomicU64 {
        self.region.atomic_u64(MIGRATED_COUNT)
    }

    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty<S: Seam>(&self, seam: S) -> bool {
        self.count().load_by(seam, Ordering::Relaxed) == 0
    }

    #[inline(always)]
    fn pairs(&self, migrated: u64) -> impl Iterator<Item = usize> + use<> {
        let hash = migrated.wrapping_mul(SPREAD);
        // An extent's address ends with 21 zeros, and so does this.
        let lines = [hash >> 48, hash >> 32].map(|bits| bits as usize & (self.lines - 1));
        lines
            .into_iter()
            .flat_map(|line| line * MIGRATED_A_LINE..(line + 1) * MIGRATED_A_LINE)
    }

    /// The slot that an extent may lie in.
    #[inline(always)]
    pub(super) fn find<S: Seam>(&self, seam: S, migrated: GlobalAddress) -> Option<u32> {
        let mut pairs = self.pairs(migrated.raw());
        let pair = pairs.find(|pair| {
            let key = self.keys.get(*pair);
            key.is_some_and(|key| key.load_by(seam, Ordering::Acquire) == migrated.raw())
        })?;
        u32::try_from(self.slots.get(pair)?.load_by(seam, Ordering::Acquire)).ok()
    }

    /// Adds one.
    ///
    /// # Errors
    /// [`Error::Full`]: both lines are, though the table is not.
    pub(super) fn insert(&self, migrated: GlobalAddress, slot: u32) -> Result<()> {
        assert!(!migrated.is_null(), "null marks a free pair");
        self.remove(migrated);
        let free = |pair: &usize| self.keys.get(*pair).is_some_and(|key| key.load(Ordering::Acquire) == 0);
        let pair = self.pairs(migrated.raw()).find(free);
        let pair =
            pair.ok_or_else(|| Error::Full(format!("no place in the table of migrated extents for {migrated}")))?;
        let (key, place) = (self.keys.get(pair), self.slots.get(pair));
        place.expect("a pair").store(slot.into(), Ordering::Release);
        key.expect("a pair").store(migrated.raw(), Ordering::Release);
        self.count().fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Whether there would be a place for it.
    pub(super) fn has_place(&self, migrated: GlobalAddress) -> bool {
        let is_free = |pair: usize| self.keys.get(pair).is_some_and(|key| key.load(Ordering::Acquire) == 0);
        self.pairs(migrated.raw()).any(is_free)
    }

    /// Takes one out, if it is there.
    pub(super) fn remove(&self, migrated: GlobalAddress) {
        for pair in self.pairs(migrated.raw()) {
            let key = self.keys.get(pair).expect("a pair");
            if key.load(Ordering::Acquire) == migrated.raw() {
                key.store(0, Ordering::Release);
                self.count().fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Takes all out but those that are right: for a keeper that begins. Those stay in their places, since in another
    /// order not all might find one.
    pub(super) fn retain(&self, is_right: impl Fn(GlobalAddress, u32) -> bool) {
        let mut kept = 0;
        for pair in 0..self.keys.len() {
            let (key, slot) = (
                self.keys.get(pair).expect("a pair"),
                self.slots.get(pair).expect("a pair"),
            );
            let (migrated, slot) = (key.load(Ordering::Acquire), slot.load(Ordering::Acquire));
            if migrated == 0 {
                continue;
            }
            let is_found = self.pairs(migrated).any(|place| place == pair);
            let is_right = u32::try_from(slot).is_ok_and(|slot| is_right(GlobalAddress::from_raw(migrated), slot));
            match is_found && is_right {
                true => kept += 1,
                false => key.store(0, Ordering::Release),
            }
        }
        self.count().store(kept, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Slot, Use};
    use super::super::{Class, Keeper, Lifetime, LocalKeeper, Part, PartOptions};
    use super::*;
    use crate::extent::EXTENT;
    use cenote_base::rt::seam::Points;

    fn part() -> Arc<Part> {
        let options = PartOptions {
            space: 7,
            part: 2,
            tenant: 0,
            bytes: 13 * EXTENT,
            movable: true,
            region: cenote_fabric::RegionOptions::default(),
        };
        Arc::new(Part::dram(&options).expect("memory"))
    }

    /// Migrated extents whose first line is `first`, and their second is too, or is not.
    fn migrated_extents(table: &MigratedExtents, first: usize, same: bool) -> impl Iterator<Item = GlobalAddress> {
        (0..1 << 16)
            .map(|slot| GlobalAddress::new(1, slot, 0, 1).expect("an address"))
            .filter(move |migrated| {
                let lines: Vec<usize> = table.pairs(migrated.raw()).map(|pair| pair / MIGRATED_A_LINE).collect();
                lines[0] == first && (lines[MIGRATED_A_LINE] == first) == same
            })
    }

    /// The second line was the first one of the table for all migrated extents of a small part, so that two full lines
    /// were a full table.
    #[test]
    fn migrated_extents_are_spread_over_all_lines() {
        let part = part();
        let table = &part.moving().expect("it moves").migrated_extents;
        let mut found = vec![[0; 2]; table.lines];
        for migrated in (0..1000).map(|slot| GlobalAddress::new(1, slot, 0, 1).expect("an address")) {
            let lines: Vec<usize> = table.pairs(migrated.raw()).map(|pair| pair / MIGRATED_A_LINE).collect();
            found[lines[0]][0] += 1;
            found[lines[MIGRATED_A_LINE]][1] += 1;
        }
        let fair = 1000 / table.lines;
        assert!(
            found.iter().flatten().all(|n| (fair / 2..fair * 2).contains(n)),
            "{found:?}"
        );
    }

    /// A keeper that began listed its migrated extents in the order of their slots, and in that order not all found a
    /// place: one was not found any more.
    #[test]
    fn a_listed_extent_keeps_its_place() {
        let part = part();
        let table = &part.moving().expect("it moves").migrated_extents;
        let only = migrated_extents(table, 0, true).next().expect("one");
        let others: Vec<_> = migrated_extents(table, 0, false).take(4).collect();
        let in_order = [(only, 5)].into_iter().chain(others.into_iter().zip(0..));
        let class = Class::of(64).expect("a class");
        for (migrated, slot) in in_order.clone() {
            table.insert(migrated, slot).expect("a place");
            let (generation, used) = (0, Use::Lent);
            part.state(slot)
                .store(Slot { generation, used }.encode(), Ordering::Release);
            let (generation, used) = (1, Use::Slab(class, Lifetime::Space));
            part.migrated_state(slot)
                .store(Slot { generation, used }.encode(), Ordering::Release);
            part.migrated(slot).store(migrated.raw(), Ordering::Release);
            let empty = 1 << super::super::address::GENERATION_SHIFT;
            (0..class.words()).for_each(|word| part.live(slot, word).store(empty, Ordering::Release));
        }
        // A pair without a migrated extent goes.
        let unlisted = GlobalAddress::new(3, 1, 0, 1).expect("an address");
        table.insert(unlisted, 9).expect("a place");
        let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
        for (migrated, slot) in in_order {
            assert_eq!(table.find(Points, migrated), Some(slot));
        }
        assert_eq!(table.find(Points, unlisted), None);
        assert_eq!(table.count().load(Ordering::Acquire), 5);
        assert_eq!(keeper.audit().expect("an audit"), Vec::<String>::new());
    }
}
