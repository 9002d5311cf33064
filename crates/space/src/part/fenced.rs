//! Members that were fenced, in the part itself: where a mirror takes the part's place its node knows them too.
//!
//! The last [`FENCED`] of them are there, by the lower half of their numbers, which are random. What is not there any
//! more is as what a node has forgotten.

use super::Part;
use crate::layout::{FENCED, FENCED_AT, FENCED_COUNT};
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;
use cenote_fabric::HostAtomicU64;

fn word(member: u128) -> u64 {
    (member as u64).max(1)
}

impl Part {
    fn fenced(&self, n: u64) -> &HostAtomicU64 {
        self.region.atomic_u64(FENCED_AT + n % FENCED * 8)
    }

    /// Whether a member was fenced while this part, or what it is the mirror of, was kept.
    pub fn has_fenced(&self, member: u128) -> bool {
        (0..FENCED).any(|n| self.fenced(n).load(Ordering::Acquire) == word(member))
    }

    /// Notes members that are being fenced, before another may have what they had. When this returns the mirror has it.
    /// Of a part without a mirror nothing is noted: its node's own note is as safe as its memory.
    ///
    /// # Errors
    /// As [`Part::settle`]: to be done again.
    pub fn note_fenced(&self, members: &[u128]) -> Result<()> {
        if !self.is_mirrored() {
            return Ok(());
        }
        for member in members {
            let _step = self.step();
            if !self.has_fenced(*member) {
                self.add_fenced(*member);
            }
        }
        self.settle()
    }

    fn add_fenced(&self, member: u128) {
        let count = self.region.atomic_u64(FENCED_COUNT);
        let n = count.load(Ordering::Acquire);
        self.fenced(n).store(word(member), Ordering::Release);
        self.changed(FENCED_AT + n % FENCED * 8, 8);
        // A part that is found without it has the next one in the same place.
        count.store(n.wrapping_add(1), Ordering::Release);
        self.changed_page();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EXTENT, PartOptions};
    use cenote_fabric::RegionOptions;

    #[test]
    fn the_last_that_were_fenced_are_found_in_the_part() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (path, region) = (directory.path().join("part"), RegionOptions::default());
        let options = PartOptions {
            space: 7,
            part: 1,
            tenant: 0,
            bytes: 4 * EXTENT,
            movable: true,
            region,
        };
        let part = Part::create(&path, &options).expect("a part");
        part.note_fenced(&[1]).expect("nothing to do");
        assert!(!part.has_fenced(1), "it has no mirror");
        let part = part.into_mirrored();
        let numbers = |n: core::ops::Range<u64>| n.map(|n| u128::from(n) << 64 | u128::from(n)).collect::<Vec<_>>();
        part.note_fenced(&numbers(0..FENCED)).expect("noted");
        part.note_fenced(&numbers(5..10)).expect("noted again");
        drop(part);
        let part = Part::open(&path, region).expect("the part").into_mirrored();
        assert!(numbers(0..FENCED).iter().all(|member| part.has_fenced(*member)));
        part.note_fenced(&numbers(FENCED..FENCED + 2)).expect("noted");
        assert!(!part.has_fenced(numbers(0..2)[1]) && numbers(2..FENCED + 2).iter().all(|n| part.has_fenced(*n)));
    }
}
