//! Which pages the last entries have changed, for readers that follow: they drop what they have of those.
//!
//! ```text
//!   known since ──▶ entry 17: pages 3.4, 3.9 │ entry 19: space 7 made │ entry 20: pages 3.4 ──▶ now
//!                   └── of a reader that was there at 18: 3.4 and space 7 ──────────────────┘
//! ```
//!
//! Kept in memory only, up to a number of pages. A reader that comes from before is told so, and begins anew.

use std::collections::{BTreeSet, VecDeque};

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Lsn, PageId};
use cenote_storage::OwnedRecord;
use cenote_storage::nodes::Moment;

/// Changed pages that are kept, with what holds them: 8 MiB.
const KEPT_MAX: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct History {
    /// What entries behind this one have changed is known.
    since: u64,
    entries: VecDeque<Changed>,
    kept: usize,
}

#[derive(Debug)]
struct Changed {
    at: Moment,
    pages: Box<[PageId]>,
    space: Option<(u32, bool)>,
}

/// What several entries have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// Up to which moment, where not to the last entry.
    pub cut_at: Option<Moment>,
    pub pages: BTreeSet<PageId>,
    pub spaces: Vec<(u32, bool)>,
}

impl History {
    /// Of a node that has taken in entries up to this one.
    pub fn new(entry: u64) -> History {
        History {
            since: entry,
            ..History::default()
        }
    }

    /// An entry brought redo of these records.
    pub fn note_records(&mut self, entry: u64, end: Lsn, records: &[OwnedRecord]) {
        let pages: BTreeSet<PageId> = records.iter().map(|record| record.get().page).collect();
        self.note(Changed {
            at: Moment { entry, end },
            pages: pages.into_iter().collect(),
            space: None,
        });
    }

    /// An entry made a space, or dropped it.
    pub fn note_space(&mut self, entry: u64, end: Lsn, space: u32, is_there: bool) {
        self.note(Changed {
            at: Moment { entry, end },
            pages: Box::default(),
            space: Some((space, is_there)),
        });
    }

    /// With an entry another start took the database: a reader that is about to be that start is told at once.
    pub fn note_taken(&mut self, entry: u64, end: Lsn) {
        self.note(Changed {
            at: Moment { entry, end },
            pages: Box::default(),
            space: None,
        });
    }

    fn note(&mut self, changed: Changed) {
        assert!(changed.at.entry > self.since, "entries come in order, each once");
        self.kept += changed.cost();
        self.entries.push_back(changed);
        while self.kept > KEPT_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            self.kept -= oldest.cost();
            self.since = oldest.at.entry;
        }
    }

    /// Whether an entry behind this one has changed something.
    pub fn has_news(&self, entry: u64) -> bool {
        entry < self.since || self.entries.back().is_some_and(|last| last.at.entry > entry)
    }

    /// What was changed behind `entry`, about so many pages and spaces at most. `None`: that is not known.
    pub fn behind(&self, entry: u64, most: usize) -> Option<Sum> {
        if entry < self.since {
            return None;
        }
        let first = self.entries.partition_point(|changed| changed.at.entry <= entry);
        let (mut sum, mut cut_at, mut count) = (Sum::default(), None, 0);
        for changed in self.entries.iter().skip(first) {
            count += changed.cost();
            if count > most {
                // More than fits comes with the next question; what no answer holds, with none.
                sum.cut_at = Some(cut_at?);
                return Some(sum);
            }
            cut_at = Some(changed.at);
            let untold = usize::from(planted(Fault::ChangeUntold));
            sum.pages.extend(changed.pages.iter().skip(untold).copied());
            sum.spaces.extend(changed.space);
        }
        Some(sum)
    }
}

impl Changed {
    fn cost(&self) -> usize {
        // What holds them takes as much as some pages.
        self.pages.len() + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(entry: u64, pages: &[u32]) -> Changed {
        Changed {
            at: Moment {
                entry,
                end: Lsn::from_raw(entry * 100),
            },
            pages: pages.iter().map(|page| PageId::new(3, *page)).collect(),
            space: None,
        }
    }

    #[test]
    fn a_reader_is_told_what_changed_behind_it_each_page_once() {
        let mut history = History::new(10);
        history.note(changed(12, &[1, 2]));
        history.note_space(13, Lsn::from_raw(1200), 7, true);
        history.note(changed(15, &[2, 5]));
        assert!(history.has_news(14) && !history.has_news(15));
        assert_eq!(history.behind(9, 100), None, "it comes from before");
        let all = history.behind(10, 100).expect("known");
        let pages: Vec<u32> = all.pages.iter().map(|page| page.page).collect();
        assert_eq!((pages, all.spaces, all.cut_at), (vec![1, 2, 5], vec![(7, true)], None));
        let rest = history.behind(13, 100).expect("known");
        assert_eq!(rest.pages.len(), 2);
        assert_eq!(history.behind(15, 100).expect("known"), Sum::default());
    }

    #[test]
    fn much_comes_in_parts_and_what_fits_nowhere_anew() {
        let mut history = History::new(0);
        history.note(changed(1, &[1, 2, 3]));
        history.note(changed(2, &[4, 5, 6]));
        let part = history.behind(0, 12).expect("known");
        assert_eq!((part.pages.len(), part.cut_at.map(|at| at.entry)), (3, Some(1)));
        let rest = history.behind(1, 12).expect("known");
        assert_eq!((rest.pages.len(), rest.cut_at), (3, None));
        assert_eq!(history.behind(0, 3), None, "one entry is more than an answer holds");
    }

    #[test]
    fn old_entries_are_forgotten() {
        let mut history = History::new(0);
        let pages: Vec<u32> = (0..KEPT_MAX as u32 / 2).collect();
        (1..=4).for_each(|entry| history.note(changed(entry, &pages)));
        assert!(history.kept <= KEPT_MAX);
        assert_eq!(history.behind(0, usize::MAX), None);
        assert!(history.behind(3, usize::MAX).is_some());
    }
}
