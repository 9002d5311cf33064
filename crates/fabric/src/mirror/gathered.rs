//! What is gathered for the next record, by many threads at once.
//!
//! Lines lie in shards by their place, each with a lock of its own, so threads that copy do not wait for each other. What
//! one record has is copied in one *turn*:
//!
//! ```text
//!   turn 7:   copy ─▶ shard 3, now         end_turn ─▶ turn 8 begins ─▶ of each shard, what was copied in turn 7
//!   turn 8:   copy ─▶ shard 3, now; what it had of turn 7 waits as `before`
//! ```
//!
//! Invariants:
//! 1. a copy asks for the turn with its shard's lock held. So of two copies that follow each other the later is in no
//!    earlier turn, whichever shards they are in: a record is what it was when its turn ended, but for copies under way;
//! 2. a turn ends when all shards were emptied of the one before: a shard has lines of two turns at most.

use super::lines::Lines;
use crate::memory::RegionMemory;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A line's shard is that of its 4 KiB, as the locks of lines are.
const SHARD: u64 = super::STRIPE;
const SHARDS: usize = super::STRIPES;
/// Lines that are gathered at most, but for those that are being copied: one range in each shard.
const LINES_MAX: usize = super::journal::LINES_MAX - SHARDS * (SHARD as usize / crate::LINE);

/// See the module.
pub(super) struct Gathered {
    turn: AtomicU64,
    lines: AtomicUsize,
    shards: Box<[Shard]>,
}

#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<Turns>);

#[derive(Default)]
struct Turns {
    /// The one that `now` is of.
    turn: u64,
    now: Lines,
    before: Lines,
}

impl Turns {
    fn go_on_to(&mut self, turn: u64) {
        if self.turn != turn {
            assert!(self.before.is_empty(), "the turn before was taken out");
            core::mem::swap(&mut self.now, &mut self.before);
            self.turn = turn;
        }
    }
}

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
            turn: AtomicU64::new(0),
            lines: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self, off: u64) -> &Mutex<Turns> {
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
        let mut turns = self.shard(off).lock();
        turns.go_on_to(self.turn.load(Ordering::Acquire));
        if turns.now.is_spread() {
            return false;
        }
        let newly = turns.now.take(memory, off, len);
        self.lines.fetch_add(newly, Ordering::AcqRel);
        true
    }

    /// Ends the turn: its lines change places with `into`, which has none. One thread at a time.
    pub(super) fn end_turn(&self, into: &mut Turn) {
        assert!(into.len() == 0, "lines of a former turn are sent");
        let ended = self.turn.fetch_add(1, Ordering::AcqRel);
        for (shard, into) in self.shards.iter().zip(&mut into.0) {
            let mut turns = shard.0.lock();
            let is_ended = turns.turn <= ended;
            core::mem::swap(if is_ended { &mut turns.now } else { &mut turns.before }, into);
        }
        self.lines.fetch_sub(into.len(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::lines::sorted;
    use cenote_base::rt;

    const AREA: u64 = 2 * SHARD * SHARDS as u64;

    fn region() -> crate::Region {
        crate::Region::dram(AREA, Default::default(), Default::default()).expect("memory")
    }

    /// A thread copies a line in each shard in turn, with a number that goes up. Whatever turn has a number has all the
    /// lower ones that no earlier turn had.
    #[test]
    fn a_turn_has_no_copy_without_those_before() {
        let (region, gathered) = (region(), Gathered::new());
        let copies = 200_000_u64;
        let is_over = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=copies {
                    let off = number * SHARD % AREA;
                    region.span(off, 8).set_u64(0, number);
                    while !gathered.take(&region, off, crate::LINE) {
                        std::thread::yield_now();
                    }
                }
                is_over.store(1, Ordering::Release);
            });
            let (mut turn, mut had) = (Turn::new(), 0);
            while had < copies {
                let ends = is_over.load(Ordering::Acquire) == 1;
                gathered.end_turn(&mut turn);
                let numbers = sorted(turn.lines()).into_iter().map(|(_, bytes)| {
                    let word = bytes.first_chunk().expect("a line");
                    u64::from_le_bytes(*word)
                });
                let (most, count) = numbers.fold((had, 0), |(most, count), number| (most.max(number), count + 1));
                // Each shard has a line of an area's two: of a long turn the newest alone.
                assert_eq!(count, (most - had).min(AREA / SHARD), "{had} to {most}");
                had = most;
                turn.clear();
                assert!(!ends || had == copies, "what is over is in this turn");
            }
        });
        assert!(gathered.is_empty());
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
