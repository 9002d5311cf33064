//! Which slot may have a page: a table in remote memory that readers ask, written by the one server that changes it.
//!
//! ```text
//!   key ─ mix ─▶ bucket: 64 bytes, 8 words        word   high half: a part of the mixed key
//!                                                         low half: the slot + 1; word 0: none
//! ```
//!
//! A word is a hint: the slot's name says which page it has. So words may arrive in any order, and one that is left out
//! (its bucket is full, or an older word arrived last) costs its page a way to storage, and nothing else.
//!
//! The server has the whole table in its own memory, too, and gathers the words that are to be written with whatever
//! it writes next.

use cenote_base::PageId;

use super::copy::Copy;
use super::layout::{BUCKET, Layout, RemoteSlot};
use crate::hash::key_of;

/// Words of a bucket.
const WORDS: usize = BUCKET / 8;

/// A word that remote memory lacks: where, and which.
pub type WordWrite = (u64, u64);

/// The server's side. See the module.
pub struct Index {
    layout: Layout,
    buckets: Box<[[u64; WORDS]]>,
    writes: Vec<WordWrite>,
}

impl Index {
    /// Of a memory with these copies; nothing is to be written for them.
    pub fn of(layout: Layout, kept: &[(PageId, Copy)]) -> Self {
        let mut index = Self {
            layout,
            buckets: vec![[0; WORDS]; layout.buckets() as usize].into(),
            writes: Vec::new(),
        };
        for (page, copy) in kept {
            index.enter(*page, copy.slot);
        }
        index.writes.clear();
        index
    }

    /// `slot` has `page` from now on.
    pub fn enter(&mut self, page: PageId, slot: RemoteSlot) {
        let (bucket, word) = self.word_of(page, slot);
        let words = &self.buckets[bucket as usize];
        if !words.contains(&word)
            && let Some(free) = words.iter().position(|word| *word == 0)
        {
            self.set(bucket, free, word);
        }
    }

    /// `slot` does not have `page` any more.
    pub fn leave(&mut self, page: PageId, slot: RemoteSlot) {
        let (bucket, word) = self.word_of(page, slot);
        let at = self.buckets[bucket as usize].iter().position(|found| *found == word);
        if let Some(at) = at {
            self.set(bucket, at, 0);
        }
    }

    fn word_of(&self, page: PageId, slot: RemoteSlot) -> (u32, u64) {
        let mixed = mix(page);
        (self.layout.bucket_of(mixed), word(mixed, slot))
    }

    fn set(&mut self, bucket: u32, place: usize, word: u64) {
        self.buckets[bucket as usize][place] = word;
        let at = self.layout.bucket_at(bucket) + 8 * place as u64;
        self.writes.push((at, word));
    }

    /// What remote memory lacks.
    pub fn take_writes(&mut self) -> Vec<WordWrite> {
        std::mem::take(&mut self.writes)
    }

    /// The whole of it, as it lies in remote memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.buckets
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// What contradicts `copies`: a word of a slot that has no such page. A page without a word is none: it may have
    /// found its bucket full.
    pub fn check(&self, copies: impl Iterator<Item = (PageId, RemoteSlot)>, problems: &mut Vec<String>) {
        let mut words: Vec<(u32, u64)> = copies.map(|(page, slot)| self.word_of(page, slot)).collect();
        words.sort_unstable();
        for (bucket, place) in (0u32..).zip(&self.buckets) {
            let strange = place.iter().filter(|word| **word != 0);
            for word in strange.filter(|word| words.binary_search(&(bucket, **word)).is_err()) {
                problems.push(format!("remote index: bucket {bucket} has word {word:x} of no copy"));
            }
        }
    }
}

/// The slots of `layout` that a bucket's bytes name for `page`; most of the time one, or none.
pub fn slots_in(bucket: &[u8], page: PageId, layout: &Layout) -> Vec<RemoteSlot> {
    let mixed = mix(page);
    let words = bucket.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let of_page = words.filter(|word| *word as u32 != 0 && *word >> 32 == mixed & u64::from(u32::MAX));
    of_page.filter_map(|word| layout.slot(word as u32 - 1)).collect()
}

/// The bucket in which a page's word is.
pub fn bucket_of(page: PageId, layout: &Layout) -> u32 {
    layout.bucket_of(mix(page))
}

fn word(mixed: u64, slot: RemoteSlot) -> u64 {
    mixed << 32 | (slot.place() as u64 + 1)
}

/// The bucket comes from the high half, the part in the word from the low one.
fn mix(page: PageId) -> u64 {
    let key = key_of(page);
    let key = (key ^ key >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let key = (key ^ key >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    key ^ key >> 31
}

#[cfg(test)]
mod tests {
    use super::super::layout::Slabs;
    use super::*;

    fn layout() -> Layout {
        Layout::plan(Layout::len_for(1000), Slabs::default()).expect("fits")
    }

    fn copies(layout: &Layout) -> Vec<(PageId, Copy)> {
        let pages = (0..layout.slots).map(|n| PageId::new(n % 7, n));
        let slots = RemoteSlot::all(0, layout.slots);
        let copy = |slot| Copy {
            slot,
            lsn: cenote_base::Lsn::from_raw(8),
            sum: 0,
        };
        pages.zip(slots.map(copy)).collect()
    }

    fn found(index: &Index, page: PageId) -> Vec<RemoteSlot> {
        let (bytes, bucket) = (index.bytes(), bucket_of(page, &index.layout) as usize);
        slots_in(&bytes[bucket * BUCKET..(bucket + 1) * BUCKET], page, &index.layout)
    }

    #[test]
    fn pages_are_found_where_they_are_and_not_where_they_were() {
        let layout = layout();
        let all = copies(&layout);
        let mut index = Index::of(layout, &all);
        assert!(index.take_writes().is_empty());
        let there = all
            .iter()
            .filter(|(page, copy)| found(&index, *page).contains(&copy.slot));
        assert!(there.count() as u32 > layout.slots * 99 / 100, "few buckets are full");
        let (page, copy) = all[17];
        index.leave(page, copy.slot);
        assert!(!found(&index, page).contains(&copy.slot));
        index.enter(page, copy.slot);
        index.enter(page, copy.slot);
        assert_eq!(found(&index, page), [copy.slot]);
        assert_eq!(index.take_writes().len(), 2, "one word, twice");
        let mut problems = Vec::new();
        let slots = || all.iter().map(|(page, copy)| (*page, copy.slot));
        index.check(slots(), &mut problems);
        assert_eq!(problems, [""; 0]);
        index.check(slots().skip(1), &mut problems);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn a_bucket_of_any_bytes_names_slots_that_there_are() {
        let layout = layout();
        let page = PageId::new(3, 7);
        for word in [u64::MAX, mix(page) << 32, mix(page) << 32 | u64::from(u32::MAX)] {
            assert_eq!(slots_in(&[word.to_le_bytes(); 8].concat(), page, &layout), []);
        }
    }
}
