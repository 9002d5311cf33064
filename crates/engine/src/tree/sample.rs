//! A random sample of a tree's entries: PostgreSQL's two stages (`acquire_sample_rows`), with leaves for blocks.
//!
//! 1. *Survey*: the pages above the leaves are walked in key order and their children counted, so that each leaf has a
//!    number. That is one page for some hundreds of leaves.
//! 2. *Read*: of the leaves as many as rows are wanted are chosen, each set of that size with the same chance (Knuth's
//!    algorithm S), and read in key order. Of their entries a reservoir keeps as many as are wanted, each with the same
//!    chance (Li's algorithm L, which skips what it will not keep: only entries that enter the reservoir are copied).
//!
//! A tree of no more leaves than rows are wanted is passed wholly, leaf by leaf, and its sample is a simple random one.
//! In a larger one entries of one leaf come a little more often together than by chance, about one leaf an entry.
//! A leaf that is chosen stands for the keys that it had when the page above it was read: split or merged since, just
//! those are read. One that came between the two stages is never chosen, unless all are.
//!
//! Nothing is latched or held between steps. Leaves are asked for with the scan hint, which leaves warm pages alone, and
//! in advance, since their numbers stand in the page above.

use cenote_base::random::Random;
use cenote_fabric::observe::Asks;

use super::layout::{Header, PAGE_SIZE, PageRead, child_at, copy_key, copy_value, upper_fence};
use super::pages::{Hint, Pool};
use super::search::{child_slot, lower_bound};
use super::{Attempt, BTree, Result, until_done};

/// Leaves that are asked for in advance.
const READ_AHEAD: usize = 16;
/// Bytes of entries that a sample may hold.
const BYTES_MAX: usize = 64 << 20;
/// Pages above the leaves that a step passes.
const PAGES_A_STEP: usize = 16;

/// A sample being taken.
pub(crate) struct Sampler {
    tree: BTree,
    random: Random,
    wanted: usize,
    stage: Stage,
    /// Where the next page above the leaves begins.
    at: Vec<u8>,
    /// Leaves that the survey has found.
    leaves: u64,
    /// Leaves passed by, and those read.
    passed: u64,
    read: u64,
    reservoir: Reservoir,
}

/// What is being done; see the module.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Survey,
    Read { leaves: u64 },
    Done,
}

/// The entries of a sample.
pub(crate) struct Sample {
    /// Values in the order of the keys.
    pub values: Vec<Vec<u8>>,
    /// Entries of the tree, estimated by those of the leaves that were read.
    pub entries: f64,
    /// Leaves, and those of them that were read.
    pub leaves: (u64, u64),
}

impl BTree {
    /// Begins to sample `wanted` entries.
    pub(crate) fn sampler(&self, wanted: usize, seed: u64) -> Sampler {
        Sampler {
            tree: *self,
            random: Random(seed),
            wanted: wanted.max(1),
            stage: Stage::Survey,
            at: Vec::new(),
            leaves: 0,
            passed: 0,
            read: 0,
            reservoir: Reservoir::default(),
        }
    }
}

/// Leaves below a page, and where it ends.
struct Below {
    leaves: Vec<Chosen>,
    /// Children that were passed by, the chosen ones among them.
    passed: u64,
    fence: Option<Vec<u8>>,
}

/// A leaf that is to be read.
struct Chosen {
    page: u32,
    /// Where it begins, and ends.
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

impl Sampler {
    /// Goes on; false when it is done. A step is short, so that the caller may stop between.
    ///
    /// # Errors
    /// Those of reading pages.
    pub(crate) fn step(&mut self, pool: &Pool) -> Result<bool> {
        match self.stage {
            Stage::Survey => self.survey(pool)?,
            Stage::Read { leaves } => self.read_some(pool, leaves)?,
            Stage::Done => {}
        }
        Ok(self.stage != Stage::Done)
    }

    /// What was sampled.
    pub(crate) fn finish(self) -> Sample {
        // Leaves that were split since the survey are among those that were read.
        let leaves = self.leaves.max(self.read);
        let share = if self.read > 0 {
            leaves as f64 / self.read as f64
        } else {
            0.0
        };
        let entries = self.reservoir.seen as f64 * share;
        let mut kept = self.reservoir.kept;
        kept.sort_unstable_by_key(|(at, _)| *at);
        Sample {
            values: kept.into_iter().map(|(_, value)| value).collect(),
            entries,
            leaves: (leaves, self.read),
        }
    }

    /// Goes to the page that begins at `fence`, or on to the stage behind.
    fn advance(&mut self, fence: Option<Vec<u8>>, behind: Stage) {
        // A fence that does not lead on is for `check` to report.
        match fence.filter(|fence| *fence > self.at) {
            Some(fence) => self.at = fence,
            None => (self.at, self.stage) = (Vec::new(), behind),
        }
    }

    fn survey(&mut self, pool: &Pool) -> Result<()> {
        for _ in 0..PAGES_A_STEP {
            let (children, fence) = until_done(|| self.try_survey(pool))?;
            self.leaves += children as u64;
            let leaves = self.leaves.min(self.wanted as u64);
            self.advance(fence, Stage::Read { leaves });
            if self.stage != Stage::Survey {
                break;
            }
        }
        Ok(())
    }

    fn try_survey(&self, pool: &Pool) -> Attempt<(usize, Option<Vec<u8>>)> {
        let Some(path) = self.tree.descend_to(pool, Asks, 1, &self.at)? else {
            return Ok(None);
        };
        let page = path.node.view;
        let children = match path.node.level {
            0 => 1,
            _ => Header::read(page).count(),
        };
        let fence = upper_fence(page);
        Ok(path.node.guard.valid().then_some((children, fence)))
    }

    /// Reads the chosen leaves below a page.
    fn read_some(&mut self, pool: &Pool, to_read: u64) -> Result<()> {
        let mut random = self.random.clone();
        let below = until_done(|| {
            random = self.random.clone();
            self.try_choose(pool, to_read, &mut random)
        })?;
        self.random = random;
        self.passed += below.passed;
        for (i, leaf) in below.leaves.iter().enumerate() {
            if i % READ_AHEAD == 0 && below.leaves.len() > 1 {
                let ahead = below.leaves[i..].iter().take(READ_AHEAD);
                let wanted: Vec<_> = ahead.map(|leaf| self.tree.page(leaf.page)).collect();
                pool.prefetch(&wanted);
            }
            self.read_leaf(pool, leaf)?;
        }
        self.advance(below.fence, Stage::Done);
        Ok(())
    }

    fn try_choose(&self, pool: &Pool, to_read: u64, random: &mut Random) -> Attempt<Below> {
        let Some(path) = self.tree.descend_to(pool, Asks, 1, &self.at)? else {
            return Ok(None);
        };
        let (page, header) = (path.node.view, Header::read(path.node.view));
        let mut below = Below {
            leaves: Vec::new(),
            passed: 0,
            fence: upper_fence(page),
        };
        let children = if path.node.level == 0 { 1 } else { header.count() };
        for slot in 0..children {
            let left = self.leaves.saturating_sub(self.passed + below.passed);
            let wanted = to_read.saturating_sub(self.read + below.leaves.len() as u64);
            below.passed += 1;
            // All of them, those that came since the survey too; else algorithm S.
            if to_read < self.leaves && random.below(left) >= wanted {
                continue;
            }
            below.leaves.push(match path.node.level {
                0 => Chosen {
                    page: path.node.no,
                    from: self.at.clone(),
                    to: below.fence.clone(),
                },
                _ => Chosen {
                    page: child_at(page, slot),
                    from: key_at(page, &header, slot),
                    to: match slot + 1 < children {
                        true => Some(key_at(page, &header, slot + 1)),
                        false => below.fence.clone(),
                    },
                },
            });
        }
        Ok(path.node.guard.valid().then_some(below))
    }

    /// Reads the entries of a leaf, and of what it was split into since.
    fn read_leaf(&mut self, pool: &Pool, leaf: &Chosen) -> Result<()> {
        let mut from = leaf.from.clone();
        loop {
            let (picked, random, fence) = until_done(|| self.try_read_leaf(pool, &from, leaf.to.as_deref()))?;
            (self.reservoir, self.random) = (picked.apply(std::mem::take(&mut self.reservoir)), random);
            self.reservoir.shrink(BYTES_MAX, &mut self.random);
            let is_before_end = |fence: &Vec<u8>| *fence > from && leaf.to.as_ref().is_none_or(|to| fence < to);
            match fence.filter(is_before_end) {
                Some(fence) => from = fence,
                None => break,
            }
        }
        self.read += 1;
        Ok(())
    }

    fn try_read_leaf(&self, pool: &Pool, from: &[u8], to: Option<&[u8]>) -> Attempt<LeafRead> {
        let choose = |page| child_slot(page, from);
        let Some(path) = self.tree.descend(pool, Asks, (0, Hint::Scan), choose)? else {
            return Ok(None);
        };
        let (page, count) = (path.node.view, Header::read(path.node.view).count());
        // Of a leaf that was merged with others since, only what was asked for.
        let first = lower_bound(page, from).slot;
        let end = to.map_or(count, |to| lower_bound(page, to).slot).max(first);
        let mut random = self.random.clone();
        let capacity = self.capacity(count);
        let picked = self
            .reservoir
            .pick((end - first) as u64, capacity, &mut random, |slot| {
                let mut value = Vec::new();
                copy_value(page, first + slot as usize, &mut value);
                value
            });
        let fence = upper_fence(page);
        Ok(path.node.guard.valid().then_some((picked, random, fence)))
    }

    /// Entries that the sample holds, at most: by the first leaf, of which it could hold [`BYTES_MAX`].
    fn capacity(&self, entries_of_leaf: usize) -> usize {
        match self.reservoir.capacity {
            0 => self.wanted.min(BYTES_MAX / PAGE_SIZE * entries_of_leaf.max(1)),
            known => known,
        }
    }
}

/// What a leaf does to the reservoir and the random numbers, and its upper fence.
type LeafRead = (Picked, Random, Option<Vec<u8>>);

fn key_at(page: impl PageRead, header: &Header, slot: usize) -> Vec<u8> {
    let mut key = Vec::new();
    copy_key(page, header, slot, &mut key);
    key
}

/// Entries kept of those seen so far, each with the same chance.
#[derive(Default)]
struct Reservoir {
    /// With their place among all that were seen.
    kept: Vec<(u64, Vec<u8>)>,
    seen: u64,
    /// Once it is full: the next that enters, and the greatest of the random keys that algorithm L thinks of.
    next: u64,
    weight: f64,
    capacity: usize,
    /// Of the values kept.
    bytes: usize,
}

/// What a leaf does to the reservoir: computed from a page that may still turn out to have changed.
struct Picked {
    /// Where each goes, its place among all, its value.
    entries: Vec<(usize, u64, Vec<u8>)>,
    seen: u64,
    next: u64,
    weight: f64,
    capacity: usize,
}

impl Reservoir {
    fn pick(&self, count: u64, capacity: usize, random: &mut Random, value: impl Fn(u64) -> Vec<u8>) -> Picked {
        let mut picked = Picked {
            entries: Vec::new(),
            seen: self.seen + count,
            next: self.next,
            weight: self.weight,
            capacity,
        };
        let vacant = (capacity - self.kept.len().min(capacity)) as u64;
        for slot in 0..count.min(vacant) {
            picked
                .entries
                .push((self.kept.len() + slot as usize, self.seen + slot, value(slot)));
        }
        if vacant > 0 && count >= vacant {
            (picked.weight, picked.next) = (1.0, self.seen + vacant - 1);
            picked.skip(random);
        }
        while count >= vacant && picked.next < picked.seen {
            let slot = picked.next - self.seen;
            picked.entries.push((random.index(capacity), picked.next, value(slot)));
            picked.skip(random);
        }
        picked
    }
}

impl Reservoir {
    /// Halves the sample, by chance, while its entries have more bytes. What enters from then on is drawn as if the sample
    /// had been so small from the begin: the greatest of its random keys is taken at its mean.
    fn shrink(&mut self, bytes_max: usize, random: &mut Random) {
        while self.kept.len() > 1 && self.bytes > bytes_max {
            let capacity = self.kept.len() / 2;
            while self.kept.len() > capacity {
                self.bytes -= self.kept.swap_remove(random.index(self.kept.len())).1.len();
            }
            self.capacity = capacity;
            self.weight = capacity as f64 / (self.seen + 1) as f64;
            let uniform = ((random.word() >> 11) + 1) as f64 / ((1u64 << 53) + 1) as f64;
            let skipped = (uniform.ln() / (1.0 - self.weight).ln()).floor();
            self.next = self.seen.saturating_add(skipped as u64);
        }
        assert!(
            self.kept.len() <= 1 || self.bytes <= bytes_max,
            "a sample keeps to its memory"
        );
    }
}

impl Picked {
    /// Draws the next that enters.
    fn skip(&mut self, random: &mut Random) {
        let mut uniform = || ((random.word() >> 11) + 1) as f64 / ((1u64 << 53) + 1) as f64;
        self.weight *= (uniform().ln() / self.capacity as f64).exp();
        let skipped = (uniform().ln() / (1.0 - self.weight).ln()).floor();
        // As an integer it stops at the greatest.
        self.next = self.next.saturating_add(skipped as u64).saturating_add(1);
    }

    fn apply(self, mut reservoir: Reservoir) -> Reservoir {
        assert!(reservoir.seen <= self.seen, "entries that were seen stay seen");
        for (at, place, value) in self.entries {
            reservoir.bytes += value.len();
            match at < reservoir.kept.len() {
                true => reservoir.bytes -= std::mem::replace(&mut reservoir.kept[at], (place, value)).1.len(),
                false => reservoir.kept.push((place, value)),
            }
        }
        assert!(
            reservoir.kept.len() <= self.capacity,
            "a reservoir holds no more than it may"
        );
        Reservoir {
            kept: reservoir.kept,
            seen: self.seen,
            next: self.next,
            weight: self.weight,
            capacity: self.capacity,
            bytes: reservoir.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves of different lengths, `rounds` times; how often each entry was kept.
    fn kept(leaves: &[u64], capacity: usize, rounds: u64) -> Vec<u64> {
        let total: u64 = leaves.iter().sum();
        let mut counts = vec![0; total as usize];
        for seed in 0..rounds {
            let (mut reservoir, mut random) = (Reservoir::default(), Random(seed * 7919));
            for leaf in leaves {
                let first = reservoir.seen;
                let value = |slot: u64| (first + slot).to_le_bytes().to_vec();
                reservoir = reservoir.pick(*leaf, capacity, &mut random, value).apply(reservoir);
            }
            assert_eq!(reservoir.kept.len(), capacity.min(total as usize));
            for (place, value) in &reservoir.kept {
                assert_eq!(value[..], place.to_le_bytes());
                counts[*place as usize] += 1;
            }
        }
        counts
    }

    #[test]
    fn each_entry_is_kept_with_the_same_chance() {
        let (leaves, rounds, capacity) = ([3, 0, 40, 1, 17, 139, 100], 20_000, 20);
        let counts = kept(&leaves, capacity, rounds);
        let expected = rounds as f64 * capacity as f64 / counts.len() as f64;
        for (place, count) in counts.iter().enumerate() {
            // Five standard deviations.
            let allowed = 5.0 * expected.sqrt();
            assert!(
                (*count as f64 - expected).abs() < allowed,
                "entry {place}: {count}, expected {expected}"
            );
        }
    }

    #[test]
    fn what_fits_is_kept_whole() {
        for (leaves, capacity) in [(vec![10, 10], 20), (vec![5, 0, 7], 100), (vec![20], 20), (vec![], 5)] {
            assert!(kept(&leaves, capacity, 3).iter().all(|count| *count == 3));
        }
    }

    /// The first leaves of a table had short rows, the others long ones, and the sample was of any size.
    #[test]
    fn a_sample_of_long_values_is_halved_and_stays_even() {
        let (leaves, rounds, bytes_max) = (20u64, 2_000, 8_000);
        let mut counts = [0f64; 2];
        for seed in 0..rounds {
            let (mut reservoir, mut random) = (Reservoir::default(), Random(seed * 7919));
            for leaf in 0..leaves {
                let len = if leaf < leaves / 2 { 8 } else { 200 };
                let capacity = if reservoir.capacity == 0 {
                    500
                } else {
                    reservoir.capacity
                };
                let picked = reservoir.pick(50, capacity, &mut random, |_| vec![0; len]);
                reservoir = picked.apply(reservoir);
                reservoir.shrink(bytes_max, &mut random);
                assert!(reservoir.bytes <= bytes_max, "{} bytes", reservoir.bytes);
            }
            let is_late = |place: u64| usize::from(place >= 50 * leaves / 2);
            reservoir
                .kept
                .iter()
                .for_each(|(place, _)| counts[is_late(*place)] += 1.0);
        }
        let ratio = counts[0] / counts[1];
        assert!((0.9..1.1).contains(&ratio), "early to late {ratio}");
    }
}
