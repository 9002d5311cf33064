//! What is gathered for the next record, by many threads at once.
//!
//! Lines lie in shards by their place, each with a lock of its own, so threads that copy do not wait for each other:
//!
//! ```text
//!   copy ─▶ lock of shard 3: memory is read, lines are kept
//!   end_turn ─▶ locks of all shards: what all of them have is one record's
//! ```
//!
//! Invariant: when a turn ends no copy is under way, since memory is read with the shard's lock held. So a record has
//! nothing that was stored after its turn ended, whichever shards that is in, and all that was copied before.

use super::lines::Lines;
use crate::memory::RegionMemory;
use cenote_base::rt::atomic::{AtomicUsize, Ordering};
use cenote_base::rt::{Mutex, MutexGuard};

/// A line's shard is that of its 4 KiB, as the locks of lines are.
const SHARD: u64 = super::STRIPE;
const SHARDS: usize = super::STRIPES;
/// Lines that are gathered at most, but for those that are being copied: one range in each shard.
const LINES_MAX: usize = super::journal::LINES_MAX - SHARDS * (SHARD as usize / crate::LINE);

/// See the module.
pub(super) struct Gathered {
    lines: AtomicUsize,
    shards: Box<[Shard]>,
}

#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<Lines>);

/// The lines of a turn, or none: memory for them, a part for each shard.
#[derive(Default)]
pub(super) struct Turn(Box<[Lines]>);

impl Turn {
    pub(super) fn new() -> Self {
        Self((0..SHARDS).map(|_| Lines::default()).collect())
    }

    pub(super) fn lines(&self) -> &[Lines] {
        &self.0
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Lines::len).sum()
    }

    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(Lines::clear);
    }
}

impl Gathered {
    pub(super) fn new() -> Self {
        Self {
            lines: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self, off: u64) -> &Mutex<Lines> {
        &self.shards[(off / SHARD) as usize % SHARDS].0
    }

    /// Whether what a thread has copied is in no record yet. Exact for the calling thread's copies.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.load(Ordering::Acquire) == 0
    }

    /// Copies whole lines of one shard, unless a turn has to end before.
    #[must_use]
    pub(super) fn take(&self, memory: &RegionMemory, off: u64, len: usize) -> bool {
        assert!(
            off % SHARD + len as u64 <= SHARD,
            "a range lies within the lines of one lock"
        );
        if self.lines.load(Ordering::Acquire) >= LINES_MAX {
            return false;
        }
        let mut lines = self.shard(off).lock();
        if lines.is_spread() {
            return false;
        }
        let newly = lines.take(memory, off, len);
        self.lines.fetch_add(newly, Ordering::AcqRel);
        true
    }

    /// Ends the turn: its lines change places with `into`, which has none. One thread at a time.
    pub(super) fn end_turn(&self, into: &mut Turn) {
        assert!(into.len() == 0, "lines of a former turn are sent");
        let mut shards: Vec<MutexGuard<'_, Lines>> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        for (lines, into) in shards.iter_mut().zip(&mut into.0) {
            core::mem::swap(&mut **lines, into);
        }
        drop(shards);
        self.lines.fetch_sub(into.len(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::lines::sorted;
    use cenote_base::rt;
    use cenote_base::rt::atomic::AtomicBool;

    const AREA: u64 = 2 * SHARD * SHARDS as u64;

    fn region() -> crate::Region {
        crate::Region::dram(AREA, Default::default(), Default::default()).expect("memory")
    }

    /// A thread stores a number in a line of each shard in turn, and copies it.
    #[test]
    fn a_turn_has_no_copy_without_those_before() {
        let (region, gathered) = (region(), Gathered::new());
        let copies = 200_000_u64;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=copies {
                    store_and_copy(&region, &gathered, number * SHARD % AREA, number);
                }
                is_over.store(true, Ordering::Release);
            });
            let mut had = 0;
            while had < copies {
                let ends = is_over.load(Ordering::Acquire);
                let numbers = numbers_of_a_turn(&gathered);
                let most = numbers.iter().map(|(_, number)| *number).fold(had, u64::max);
                // Each shard has a line of an area's two: of a long turn the newest alone.
                assert_eq!(numbers.len() as u64, (most - had).min(AREA / SHARD), "{had} to {most}");
                had = most;
                assert!(!ends || had == copies, "what is over is in this turn");
            }
        });
        assert!(gathered.is_empty());
    }

    /// A thread copies a range that another stores to, as a filling does. What the other stores there it stores after
    /// it has copied as much elsewhere: so a turn that has the one has the other, or one before has.
    #[test]
    fn a_turn_has_nothing_that_was_stored_after_it() {
        let (region, gathered) = (region(), Gathered::new());
        let (first, filled) = (0, AREA - SHARD);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    while !gathered.take(&region, filled, SHARD as usize) {}
                }
            });
            scope.spawn(|| {
                for number in 1.. {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    store_and_copy(&region, &gathered, first, number);
                    region.span(filled + SHARD - 64, 8).set_u64(0, number);
                }
            });
            let mut copied = 0;
            for _ in 0..20_000 {
                let numbers = numbers_of_a_turn(&gathered);
                let of = |at: u64| {
                    numbers
                        .iter()
                        .find(|(off, _)| *off == at)
                        .map_or(0, |(_, number)| *number)
                };
                copied = of(first).max(copied);
                let stored = of(filled + SHARD - 64);
                is_over.store(stored > copied, Ordering::Release);
                assert!(stored <= copied, "{stored} was stored after {copied} was copied");
            }
            is_over.store(true, Ordering::Release);
        });
    }

    fn store_and_copy(region: &crate::Region, gathered: &Gathered, off: u64, number: u64) {
        region.span(off, 8).set_u64(0, number);
        while !gathered.take(region, off, crate::LINE) {
            std::thread::yield_now();
        }
    }

    /// The first word of each piece of a turn, and where that lies; of a whole range of its last line.
    fn numbers_of_a_turn(gathered: &Gathered) -> Vec<(u64, u64)> {
        let mut turn = Turn::new();
        gathered.end_turn(&mut turn);
        let numbers = sorted(turn.lines()).into_iter().map(|(at, bytes)| {
            let last = bytes.len() - crate::LINE;
            let word = bytes[last..].first_chunk().expect("a line");
            (at + last as u64, u64::from_le_bytes(*word))
        });
        numbers.collect()
    }

    #[test]
    fn what_is_gathered_is_bounded() {
        let (region, gathered) = (region(), Gathered::new());
        let blocks = (0..AREA / SHARD).map(|block| block * SHARD);
        let taken = blocks.filter(|off| gathered.take(&region, *off, SHARD as usize));
        assert_eq!(taken.count(), LINES_MAX * crate::LINE / SHARD as usize);
        let mut turn = Turn::new();
        gathered.end_turn(&mut turn);
        assert_eq!(turn.len(), LINES_MAX);
        assert!(gathered.is_empty() && gathered.take(&region, 0, crate::LINE));
        let at = rt::random() % (AREA / SHARD) * SHARD;
        assert!(gathered.take(&region, at, 2 * crate::LINE));
    }
}
