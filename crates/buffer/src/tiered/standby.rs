//! What the server knows of its copies in remote memory while the first part of that is away: the directory of the
//! memory, but for what has changed since. It is the standby of what lies in the first part (the *home* of PolarDB
//! Serverless, section 3.1.1): where that is lost with its node, it is written anew elsewhere, and the pages in slabs
//! are there still.
//!
//! Invariants:
//! - a copy that is known here has each change of its page that readers were told of, and of a page in no frame all:
//!   one that a change overtakes is forgotten, as the table's copies are;
//! - a page is *registered* here if it is in a frame, and idle since it left its last one.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Lsn, PageId};

use super::copy::{Copy, Entry};
use super::layout::{Layout, Part};
use super::link::{Former, Link};

/// See the module.
pub struct Standby {
    layout: Layout,
    /// Who wrote the directory, or began to: this server, each time that it took the memory.
    incarnations: Vec<u128>,
    entries: BTreeMap<PageId, Entry>,
    /// Slabs that were lost before.
    lost: Vec<u32>,
}

impl Standby {
    /// Of what the table has had.
    pub fn of(link: &Link, entries: BTreeMap<PageId, Entry>, lost: Vec<u32>) -> Self {
        Self {
            layout: link.layout,
            incarnations: vec![link.incarnation],
            entries,
            lost,
        }
    }

    // ---- while it is away ----

    /// The page is in a frame.
    pub fn register(&mut self, page: PageId) {
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.registered = true;
        }
    }

    /// The page is in no frame from this time on.
    pub fn unregister(&mut self, page: PageId, asked: bool, time: u64) {
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.leave(asked, time);
        }
    }

    /// The page has this LSN by now.
    pub fn changed(&mut self, page: PageId, lsn: Lsn) {
        let copy = self.entries.get(&page).and_then(|entry| entry.copy);
        if copy.is_some_and(|copy| copy.lsn != lsn) && !planted(Fault::StandbyStale) {
            self.entries.remove(&page);
        }
    }

    /// These pages of a space are given up.
    pub fn forget(&mut self, space: u32, pages: Range<u32>) {
        if pages.is_empty() {
            return;
        }
        let range = PageId::new(space, pages.start)..PageId::new(space, pages.end);
        let given_up: Vec<PageId> = self.entries.range(range).map(|(page, _)| *page).collect();
        given_up.iter().for_each(|page| _ = self.entries.remove(page));
    }

    // ---- when it is there again ----

    /// The directory is about to be written by another incarnation.
    pub fn tried(&mut self, incarnation: u128) {
        self.incarnations.push(incarnation);
    }

    /// The parts whose copies are there over a new way: slabs that it reaches; the first one, if it is the same memory.
    pub fn parts_there(&self, link: &Link, former: &Former) -> Vec<Part> {
        if self.layout != link.layout {
            return Vec::new();
        }
        let slabs = link.ways.reached().into_iter();
        let slabs = slabs.filter(|slab| !self.lost.contains(slab)).map(Part::Slab);
        let is_same = former
            .incarnations
            .iter()
            .any(|known| self.incarnations.contains(known));
        let first = is_same.then_some(Part::First);
        first.into_iter().chain(slabs).collect()
    }

    /// Copies that are whole, of pages behind `after`; at most so many.
    pub fn copies(&self, after: Option<PageId>, most: usize) -> Vec<(PageId, Copy)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.entries.range((from, Bound::Unbounded));
        let copies = entries.filter_map(|(page, entry)| Some((*page, entry.copy?)));
        copies.filter(|(_, copy)| copy.lsn != Lsn::ZERO).take(most).collect()
    }

    /// What is known of a page, if this is its copy still.
    pub fn entry(&self, page: PageId, copy: Copy) -> Option<Entry> {
        let entry = self.entries.get(&page)?;
        (entry.copy == Some(copy)).then_some(*entry)
    }
}
