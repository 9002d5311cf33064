//! The modelled processor cache: which lines are in it, never their bytes.
//!
//! ```text
//!  Near   512 entries a thread, direct-mapped       [line:63][changed:1]
//!  Cache  sets of up to 16 ways, 64 bytes a set     [tag:30][used:1][changed:1]
//! ```
//!
//! Replacement is by a clock within the set: a way that was used since it was last passed is spared once. All
//! accesses are relaxed and separate: when two threads change one set at a time, a line may lose its entry or have two.

use crate::LINE;
use cenote_base::rt::atomic::{AtomicU32, AtomicU64, Ordering};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};

/// Ways that fit a set's line.
const WAYS_MAX: usize = 16;
/// Lines of a thread's near table: 32 KiB, as an L1 has.
const NEAR: usize = 512;
const CHANGED: u32 = 1;
const USED: u32 = 2;
/// Lines side by side whose sets are so, too.
const RUN: u64 = 64;
const TAG_SHIFT: u32 = 2;
const TAG_MASK: u64 = (1 << 30) - 1;
const _: () = {
    assert!(
        CHANGED & USED == 0 && (CHANGED | USED) >> TAG_SHIFT == 0,
        "flags lie below the tag"
    );
    assert!(
        TAG_MASK << TAG_SHIFT <= u32::MAX as u64,
        "a tag and its flags fit into a word"
    );
};
/// The largest modelled cache: its table takes a sixteenth of it.
const BYTES_MAX: ByteSize = ByteSize::gib(4);
const BYTES_MIN: ByteSize = ByteSize::kib(64);

/// Size and associativity of a processor cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    bytes: u64,
    ways: u32,
}

impl Default for CacheShape {
    /// 32 MiB, 16 ways: what a server's processor has for some of its cores.
    fn default() -> Self {
        CacheShape {
            bytes: 32 << 20,
            ways: WAYS_MAX as u32,
        }
    }
}

impl CacheShape {
    /// # Errors
    /// [`Error::Invalid`] naming what is out of its range.
    pub fn new(bytes: ByteSize, ways: u32) -> Result<CacheShape> {
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(Error::Invalid(format!(
                "a modelled cache of {bytes} cannot be; it may be {BYTES_MIN} to {BYTES_MAX}"
            )));
        }
        if !(1..=WAYS_MAX as u32).contains(&ways) {
            return Err(Error::Invalid(format!(
                "a modelled cache of {ways} ways cannot be; it may have 1 to {WAYS_MAX}"
            )));
        }
        Ok(CacheShape {
            bytes: bytes.bytes(),
            ways,
        })
    }

    /// Bytes of lines that it holds.
    pub fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes)
    }

    /// Places that a line can be at.
    pub fn ways(&self) -> u32 {
        self.ways
    }
}

#[repr(align(64))]
#[derive(Default)]
struct Set([AtomicU32; WAYS_MAX]);

/// Whether a line was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It was.
    There,
    /// It was not, and is now; `returns`: a changed line went for it.
    Missing { returns: bool },
}

/// The last-level cache.
pub(super) struct Cache {
    sets: Box<[Set]>,
    shape: CacheShape,
}

impl Cache {
    pub fn new(shape: CacheShape) -> Cache {
        let sets = shape.bytes / LINE as u64 / u64::from(shape.ways);
        Cache {
            sets: (0..sets.max(1)).map(|_| Set::default()).collect(),
            shape,
        }
    }

    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    pub fn clear(&self) {
        let ways = self.sets.iter().flat_map(|set| &set.0);
        ways.for_each(|way| way.as_raw().store(0, Ordering::Relaxed));
    }

    /// The places that a line can be at. Lines that lie side by side are in sets that do, so that a long access walks
    /// through the table.
    fn ways(&self, line: u64) -> &[AtomicU32] {
        let (run, within) = (line / RUN, line % RUN);
        let first = ((mix(run) >> 32) * self.sets.len() as u64) >> 32;
        let set = (first + within) % self.sets.len() as u64;
        &self.sets[set as usize].0[..self.shape.ways as usize]
    }

    /// Drops a line.
    pub fn forget(&self, line: u64) {
        let held = self.ways(line).iter().map(AtomicU32::as_raw);
        held.filter(|way| way.load(Ordering::Relaxed) >> TAG_SHIFT == tag_of(line))
            .for_each(|way| way.store(0, Ordering::Relaxed));
    }

    /// Looks a line up; one that is missing takes the place of another.
    pub fn take(&self, line: u64, write: bool) -> Found {
        let (ways, tag) = (self.ways(line), tag_of(line));
        let mark = USED | if write { CHANGED } else { 0 };
        for way in ways {
            let entry = way.as_raw().load(Ordering::Relaxed);
            if entry >> TAG_SHIFT == tag {
                // A line that is used all the time is not stored to all the time.
                if entry & mark != mark {
                    way.as_raw().store(entry | mark, Ordering::Relaxed);
                }
                return Found::There;
            }
        }
        let before = replace(ways, (tag >> 7) as usize, tag << TAG_SHIFT | mark);
        Found::Missing {
            returns: before & CHANGED != 0,
        }
    }
}

/// An odd factor: its lower bits keep the lower bits of numbers apart, its upper ones are spread.
fn mix(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn tag_of(line: u64) -> u32 {
    (mix(line) & TAG_MASK) as u32
}

/// Puts `entry` where the first line lies, from `from` on, that was not used since the clock passed; what was there.
fn replace(ways: &[AtomicU32], from: usize, entry: u32) -> u32 {
    for step in 0..ways.len() {
        let way = ways[(from + step) % ways.len()].as_raw();
        let before = way.load(Ordering::Relaxed);
        if before & USED == 0 {
            way.store(entry, Ordering::Relaxed);
            return before;
        }
        way.store(before & !USED, Ordering::Relaxed);
    }
    let way = ways[from % ways.len()].as_raw();
    let before = way.load(Ordering::Relaxed);
    way.store(entry, Ordering::Relaxed);
    before
}

/// The lines that one thread touched last.
pub(super) struct Near([AtomicU64; NEAR]);

impl Default for Near {
    fn default() -> Self {
        Near(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Near {
    #[inline(always)]
    fn entry(&self, line: u64) -> &core::sync::atomic::AtomicU64 {
        self.0[line as usize % NEAR].as_raw()
    }

    /// Whether the line is there, for writing as changed as it will be.
    #[inline(always)]
    pub fn holds(&self, line: u64, write: bool) -> bool {
        let entry = self.entry(line).load(Ordering::Relaxed);
        entry >> 1 == line + 1 && (!write || entry & 1 == 1)
    }

    pub fn forget(&self, line: u64) {
        self.entry(line).store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn keep(&self, line: u64, write: bool) {
        self.entry(line)
            .store((line + 1) << 1 | u64::from(write), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kib: u64, ways: u32) -> CacheShape {
        CacheShape::new(ByteSize::kib(kib), ways).expect("a shape")
    }

    fn misses(cache: &Cache, lines: impl Iterator<Item = u64>) -> usize {
        lines.filter(|line| cache.take(*line, false) != Found::There).count()
    }

    #[test]
    fn what_fits_stays_and_what_does_not_goes() {
        let cache = Cache::new(shape(1024, 16));
        let held = (1 << 20) / LINE as u64;
        // A quarter of its lines fit, but for those of sets that many runs fell in; twice as many do not.
        assert_eq!(misses(&cache, 0..held / 4), held as usize / 4);
        let again = misses(&cache, 0..held / 4);
        assert!(again < held as usize / 40, "{again} misses");
        cache.clear();
        (0..4).for_each(|_| _ = misses(&cache, 0..2 * held));
        let again = misses(&cache, 0..2 * held) as f64 / (2 * held) as f64;
        assert!((0.4..=1.0).contains(&again), "share of misses {again}");
    }

    #[test]
    fn a_line_in_use_outlives_a_scan() {
        let cache = Cache::new(shape(1024, 16));
        let mut missed = 0;
        for scanned in 1000..200_000 {
            missed += misses(&cache, [7].into_iter());
            cache.take(scanned, false);
        }
        assert_eq!(missed, 1, "the line is fetched once");
    }

    #[test]
    fn changed_lines_return_once() {
        let cache = Cache::new(shape(64, 1));
        cache.take(1, true);
        let mut returned = 0;
        for line in 2..100_000 {
            returned += usize::from(cache.take(line, false) == Found::Missing { returns: true });
        }
        assert_eq!(returned, 1);
    }

    #[test]
    fn near_lines_are_told_apart() {
        let near = Near::default();
        assert!(!near.holds(0, false));
        near.keep(0, false);
        assert!(near.holds(0, false) && !near.holds(0, true) && !near.holds(NEAR as u64, false));
        near.keep(0, true);
        assert!(near.holds(0, true));
        near.keep(NEAR as u64, false);
        assert!(!near.holds(0, false), "they share a place");
    }

    #[test]
    fn shapes_out_of_range_are_refused() {
        for (bytes, ways, word) in [
            (ByteSize::kib(1), 16, "64KiB"),
            (ByteSize::gib(64), 16, "4GiB"),
            (ByteSize::mib(1), 17, "16"),
        ] {
            let error = CacheShape::new(bytes, ways).expect_err("out of range").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
