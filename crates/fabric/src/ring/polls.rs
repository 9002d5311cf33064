//! The first layer: which slots something was put into, in the order in which that became so.
//!
//! An entry is one word, and is put there, and taken, by one compare-and-swap: there is no moment between reserving it
//! and filling it in which a process could die and hold up what comes after. Each word carries the *lap* of its place,
//! so that a place is used once a lap by the side that puts, and then once by the side that takes, however late a
//! compare-and-swap comes.
//!
//! ```text
//!            put: the slot                 take: the next lap
//!   lap | 0 ───────────────► lap | slot+1 ────────────────────► lap+1 | 0
//! ```
//!
//! The tail only says where to look first: a user that finds an entry there moves it on for the other. The head is the
//! node's own, outside of the region. So what a user can break by writing anything anywhere is found at the head, made
//! good there, and costs time: an entry is a hint, and the slots say what was asked.

use super::layout::{self, Layout};
use crate::{HostAtomicU64, Region};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};

/// The bits of an entry that name the slot, plus 1. Those above, up to the lap, are written 0 and ignored: former users
/// wrote a part of the slot's turn there.
const SLOT_MASK: u32 = (1 << 21) - 1;
const _: () = assert!(
    layout::SEATS_MAX * layout::SLOTS_MAX < SLOT_MASK,
    "an entry has room for each slot's number"
);

/// How often an entry is tried to be put: it comes to that if a user has written nonsense, or others are very quick.
const TRIES: u32 = 256;

/// What is put there for a slot.
fn item(slot: u32) -> u32 {
    slot + 1
}

fn found(item: u32) -> Found {
    match (item & SLOT_MASK).checked_sub(1) {
        Some(slot) => Found::Slot(slot),
        None => Found::Broken,
    }
}

fn entry(lap: u32, item: u32) -> u64 {
    u64::from(lap) << 32 | u64::from(item)
}

fn lap_and_item(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn lap_of(place: u64, cells: u64) -> u32 {
    (place / cells) as u32
}

fn tail(region: &Region) -> &HostAtomicU64 {
    region.atomic_u64(layout::TAIL)
}

/// Puts a slot there. False: it could not be, and the node has to be told to look for itself.
pub fn put(region: &Region, layout: &Layout, slot: u32) -> bool {
    let (tail, cells) = (tail(region), layout.cells());
    for _ in 0..TRIES {
        let place = tail.load(Ordering::SeqCst);
        let cell = region.atomic_u64(layout.cell(place));
        let (word, this) = (cell.load(Ordering::SeqCst), lap_of(place, cells));
        match lap_and_item(word) {
            (lap, 0) if lap == this => {
                let new = entry(this, item(slot));
                if cell
                    .compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
                {
                    move_on(tail, place);
                    return true;
                }
            }
            // Another user was quicker, and has not moved the tail yet.
            (lap, _) if lap == this || lap == this.wrapping_add(1) => move_on(tail, place),
            _ => rt::relax(),
        }
    }
    false
}

fn move_on(end: &AtomicU64, place: u64) {
    // If another user did it, the tail is right as well.
    end.compare_exchange(place, place.wrapping_add(1), Ordering::SeqCst, Ordering::SeqCst)
        .ok();
}

/// What is found at the head.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The number of a slot, of all seats' slots.
    Slot(u32),
    Nothing,
    /// A user has written nonsense; it is made good.
    Broken,
}

/// The head of the polling ring, for any number of consumers.
#[derive(Debug, Default)]
pub struct Head(AtomicU64);

impl Head {
    /// Takes the first entry, if there is one.
    pub fn take(&self, region: &Region, layout: &Layout) -> Found {
        for _ in 0..TRIES {
            let place = self.0.load(Ordering::SeqCst);
            let cell = region.atomic_u64(layout.cell(place));
            let (word, this) = (cell.load(Ordering::SeqCst), lap_of(place, layout.cells()));
            let next = entry(this.wrapping_add(1), 0);
            if self.0.load(Ordering::SeqCst) != place {
                // What was read is of a later lap, maybe.
                continue;
            }
            let take = || {
                cell.compare_exchange(word, next, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            };
            match lap_and_item(word) {
                (lap, 0) if lap == this => return Found::Nothing,
                (lap, item) if lap == this => {
                    if take() {
                        move_on(&self.0, place);
                        return found(item);
                    }
                }
                // Another consumer is about to move on; or nonsense that looks like it, which is gone over all the
                // same.
                (lap, 0) if lap == this.wrapping_add(1) => move_on(&self.0, place),
                _ => {
                    if take() {
                        move_on(&self.0, place);
                        return Found::Broken;
                    }
                }
            }
        }
        // A user writes nonsense as fast as it is skipped.
        Found::Broken
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self, region: &Region, layout: &Layout) -> bool {
        let place = self.0.load(Ordering::SeqCst);
        let word = region.atomic_u64(layout.cell(place)).load(Ordering::SeqCst);
        word == entry(lap_of(place, layout.cells()), 0)
    }

    /// Puts the tail back to where it can be, if a user has written nonsense there.
    pub fn mend_tail(&self, region: &Region, layout: &Layout) {
        let (place, end) = (self.0.load(Ordering::SeqCst), tail(region).load(Ordering::SeqCst));
        if end.wrapping_sub(place) > layout.cells() {
            let swapped = tail(region).compare_exchange(end, place, Ordering::SeqCst, Ordering::SeqCst);
            // Others have moved it meanwhile: then it is looked at next time.
            swapped.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn ring(seats: u32, slots: u32) -> (Arc<Region>, Layout) {
        let layout = Layout::new(seats, slots).expect("it can be");
        let region = Region::dram(layout.len(), layout.identity(0), Default::default()).expect("memory");
        (Arc::new(region), layout)
    }

    #[test]
    fn entries_come_out_as_they_went_in_for_many_laps() {
        let (region, layout) = ring(2, 4);
        let head = Head::default();
        assert_eq!(head.take(&region, &layout), Found::Nothing);
        for round in 0..100u32 {
            let some = round % 8 + 1;
            (0..some).for_each(|slot| assert!(put(&region, &layout, slot)));
            for slot in 0..some {
                assert_eq!(head.take(&region, &layout), Found::Slot(slot), "round {round}");
            }
            assert_eq!(head.take(&region, &layout), Found::Nothing);
        }
    }

    /// Each slot is put by one thread, and again only after it was taken, as users do.
    #[test]
    fn many_threads_put_and_take_everything_once() {
        const ROUNDS: u64 = 2000;
        let (region, layout) = ring(4, 8);
        let head = Arc::new(Head::default());
        let taken: Arc<Vec<AtomicU64>> = Arc::new((0..32).map(|_| AtomicU64::new(0)).collect());
        let total = Arc::new(AtomicU64::new(0));
        let users = (0..4u32).map(|user| {
            let (region, taken) = (Arc::clone(&region), Arc::clone(&taken));
            rt::spawn("user", move || {
                for round in 0..ROUNDS {
                    let slot = user * 8 + (round % 8) as u32;
                    let mut spin = rt::Spin::new();
                    while taken[slot as usize].load(Ordering::SeqCst) < round / 8 {
                        spin.turn();
                    }
                    assert!(put(&region, &layout, slot));
                }
            })
        });
        let users: Vec<_> = users.collect();
        let nodes = (0..2).map(|_| {
            let (region, taken) = (Arc::clone(&region), Arc::clone(&taken));
            let (head, total) = (Arc::clone(&head), Arc::clone(&total));
            rt::spawn("node", move || {
                while total.load(Ordering::SeqCst) < 4 * ROUNDS {
                    match head.take(&region, &layout) {
                        Found::Slot(slot) => {
                            taken[slot as usize].fetch_add(1, Ordering::SeqCst);
                            total.fetch_add(1, Ordering::SeqCst);
                        }
                        Found::Nothing => rt::yield_now(),
                        Found::Broken => panic!("no writer wrote nonsense"),
                    }
                }
            })
        });
        let nodes: Vec<_> = nodes.collect();
        users
            .into_iter()
            .chain(nodes)
            .for_each(|thread| thread.join().expect("no panic"));
        assert!(taken.iter().all(|count| count.load(Ordering::SeqCst) == ROUNDS / 8));
    }

    /// Of a former user: bits above the slot's number.
    #[test]
    fn bits_above_the_slot_are_ignored() {
        let (region, layout) = ring(2, 4);
        let former = entry(0, 7 << 21 | 4);
        region.atomic_u64(layout.cell(0)).store(former, Ordering::SeqCst);
        let head = Head::default();
        assert_eq!(head.take(&region, &layout), Found::Slot(3));
        assert_eq!(head.take(&region, &layout), Found::Nothing);
        assert!(put(&region, &layout, 5));
        let word = region.atomic_u64(layout.cell(1)).load(Ordering::SeqCst);
        assert_eq!(word, entry(0, 6), "they are written 0");
    }

    /// A thread that put an entry and was stopped before it moved the tail on delayed no other.
    #[test]
    fn a_user_that_stops_in_between_is_helped() {
        let (region, layout) = ring(2, 4);
        let cell = region.atomic_u64(layout.cell(0));
        cell.store(entry(0, 3), Ordering::SeqCst);
        assert!(put(&region, &layout, 5));
        let head = Head::default();
        assert_eq!(head.take(&region, &layout), Found::Slot(2));
        assert_eq!(head.take(&region, &layout), Found::Slot(5));
        assert_eq!(head.take(&region, &layout), Found::Nothing);
    }

    #[test]
    fn nonsense_is_made_good() {
        let (region, layout) = ring(2, 4);
        let (head, seed) = (Head::default(), rt::random());
        println!("CENOTE_SEED={seed}");
        for n in 0..layout.cells() {
            region
                .atomic_u64(layout.cell(n))
                .store(cenote_base::random::mix(seed ^ n), Ordering::SeqCst);
        }
        tail(&region).store(cenote_base::random::mix(seed), Ordering::SeqCst);
        put(&region, &layout, 1);
        // However it comes, it takes a look at each place at most twice.
        let ends = (0..=2 * layout.cells()).any(|_| head.take(&region, &layout) == Found::Nothing);
        assert!(ends, "the head comes to an end");
        (0..2 * layout.cells()).for_each(|_| _ = head.take(&region, &layout));
        head.mend_tail(&region, &layout);
        let (mut seen, mut put_in) = (BTreeSet::new(), 0);
        for slot in 0..8 {
            put_in += u32::from(put(&region, &layout, slot));
            if let Found::Slot(slot) = head.take(&region, &layout) {
                seen.insert(slot);
            }
        }
        assert_eq!((put_in, seen.len()), (8, 8), "it works again");
    }
}
