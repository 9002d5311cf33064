//! Pages of remote memory that are in no frame, in the order in which they were used.
//!
//! ```text
//!  oldest                                       youngest
//!   s s U s s s U s s s s s s U s │ U U s U U s s U ...     s: saved, its slot may go to another page
//!       ▲       ▲             ▲                             U: unsaved, storage lacks changes of it
//!       └───────┴─────────────┴── written to storage ahead: then they are saved, at the same place
//! ```
//!
//! So the order stays that of use: an unsaved page loses its slot when its turn comes, if it was written by then.

use std::collections::BTreeMap;
use std::iter;

use cenote_base::PageId;

/// By the time since when each is idle; no two have the same.
#[derive(Default)]
pub struct Idle {
    saved: BTreeMap<u64, PageId>,
    unsaved: BTreeMap<u64, PageId>,
}

impl Idle {
    /// The page is idle since `time`.
    pub fn insert(&mut self, time: u64, page: PageId, is_saved: bool) {
        let side = if is_saved { &mut self.saved } else { &mut self.unsaved };
        let before = side.insert(time, page);
        assert!(
            before.is_none() && self.is_once(time),
            "each page is idle since a time of its own"
        );
    }

    fn is_once(&self, time: u64) -> bool {
        self.saved.contains_key(&time) != self.unsaved.contains_key(&time)
    }

    /// The page that is idle since `time` is idle no more.
    pub fn remove(&mut self, time: u64, page: PageId) {
        let idle = self.saved.remove(&time).or_else(|| self.unsaved.remove(&time));
        assert!(idle.is_none_or(|idle| idle == page), "an idle time is of one page");
    }

    /// None is idle.
    pub fn clear(&mut self) {
        self.saved.clear();
        self.unsaved.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.saved.len() + self.unsaved.len()
    }

    /// The page that is idle since `time`, and whether it is saved.
    pub fn get(&self, time: u64) -> Option<(PageId, bool)> {
        let saved = self.saved.get(&time).map(|page| (*page, true));
        saved.or_else(|| self.unsaved.get(&time).map(|page| (*page, false)))
    }

    /// Those that are saved, and idle since before `before`; oldest first.
    pub fn saved_before(&self, before: u64) -> impl Iterator<Item = PageId> {
        self.saved.range(..before).map(|(_, page)| *page)
    }

    /// The unsaved ones among the `first` oldest; oldest first.
    pub fn unsaved_among(&self, first: usize) -> impl Iterator<Item = PageId> {
        let end = self.times().nth(first).unwrap_or(u64::MAX);
        self.unsaved.range(..end).map(|(_, page)| *page)
    }

    /// Since when each is idle, oldest first.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        let (mut saved, mut unsaved) = (self.saved.keys().peekable(), self.unsaved.keys().peekable());
        iter::from_fn(move || {
            let is_saved = match (saved.peek(), unsaved.peek()) {
                (Some(saved), Some(unsaved)) => saved < unsaved,
                (saved, _) => saved.is_some(),
            };
            if is_saved { saved.next() } else { unsaved.next() }.copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_one_order() {
        let mut idle = Idle::default();
        let page = |time: u64| PageId::new(1, time as u32);
        for time in [3, 1, 4, 15, 9, 2, 6] {
            idle.insert(time, page(time), time % 3 != 0);
        }
        assert_eq!(idle.times().collect::<Vec<_>>(), [1, 2, 3, 4, 6, 9, 15]);
        assert_eq!(idle.saved_before(4).collect::<Vec<_>>(), [page(1), page(2)]);
        let among = |first| idle.unsaved_among(first).collect::<Vec<_>>();
        assert_eq!((among(2), among(3)), (vec![], vec![page(3)]));
        assert_eq!((among(6).len(), among(100).len()), (3, 4));
        assert_eq!(
            (idle.get(3), idle.get(4)),
            (Some((page(3), false)), Some((page(4), true)))
        );
        idle.remove(3, page(3));
        idle.remove(5, page(5));
        assert_eq!((idle.get(3), idle.len()), (None, 6));
    }
}
