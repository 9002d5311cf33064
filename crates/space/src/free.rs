//! Which slots of a part are free, and which of them is next.
//!
//! A slot that was handed out often is given a rest: among those of least wear (its generation, in bands) the lowest
//! goes first, so that memory that was never touched stays so while there is other, and no slot's generations are used
//! up long before those of its neighbours.

use std::collections::BTreeSet;

/// Handings out that make no difference: a thirty-second of what a slot has.
const BAND: u32 = 1 << 13;

/// The free slots of a part.
pub(super) struct FreeSlots {
    by_wear: BTreeSet<(u32, u32)>,
    /// The generation of each that is free.
    generations: Vec<Option<u32>>,
}

impl FreeSlots {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            by_wear: BTreeSet::new(),
            generations: vec![None; slots as usize],
        }
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.generations[slot as usize].is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.by_wear.len()
    }

    pub(super) fn add(&mut self, slot: u32, generation: u32) {
        // A client may have written to the descriptor of a slot that is free, so that it comes to be freed again.
        self.remove(slot);
        self.generations[slot as usize] = Some(generation);
        let is_new = self.by_wear.insert((generation / BAND, slot));
        assert!(is_new, "slot {slot} is free twice");
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(generation) = self.generations[slot as usize].take() {
            let was_there = self.by_wear.remove(&(generation / BAND, slot));
            assert!(was_there, "slot {slot} is free, and not by wear");
        }
    }

    /// The next one. It stays free until it is removed.
    pub(super) fn next(&self) -> Option<u32> {
        let next = self.by_wear.first().map(|(_, slot)| *slot);
        assert!(
            next.is_none_or(|slot| self.contains(slot)),
            "{next:?} is free by wear alone"
        );
        next
    }

    /// The first of the next `n` that are neighbours: the lowest that there are.
    pub(super) fn next_run(&self, n: u32) -> Option<u32> {
        if n == 1 {
            return self.next();
        }
        let mut length = 0;
        for (slot, free) in self.generations.iter().enumerate() {
            length = if free.is_some() { length + 1 } else { 0 };
            if length == n {
                return Some(slot as u32 + 1 - n);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_worn_and_lowest_goes_first() {
        let mut free = FreeSlots::new(6);
        for (slot, generation) in [(5, 1), (4, BAND - 1), (3, BAND), (1, 0), (0, 3 * BAND)] {
            free.add(slot, generation);
        }
        assert_eq!((free.next_run(3), free.next_run(4)), (Some(3), None));
        let mut order = Vec::new();
        while let Some(slot) = free.next() {
            free.remove(slot);
            order.push(slot);
        }
        assert_eq!(order, [1, 4, 5, 3, 0]);
        assert!(free.len() == 0 && !free.contains(1) && free.next_run(1).is_none());
    }
}
