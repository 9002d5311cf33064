//! Pages that readers of a database have asked for, on their way to the server that fills remote memory for them: at a
//! reader until it asks a node for changes, at a node until the server asks for them.
//!
//! Soft: pages are dropped where there are too many, and where nothing has taken them for [`KEPT`]. One that is in use
//! is asked for again.

use std::collections::BTreeSet;

use cenote_base::PageId;
use cenote_base::rt::{self, Mutex, Nanos};

/// How long pages wait to be taken.
const KEPT: Nanos = Nanos::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct AskedPages {
    most: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    pages: BTreeSet<PageId>,
    /// When they were taken, or given up, last.
    since: Nanos,
}

impl AskedPages {
    /// So many pages wait at most.
    pub fn new(most: usize) -> AskedPages {
        AskedPages {
            most,
            waiting: Mutex::default(),
        }
    }

    /// These were asked for.
    pub fn note(&self, pages: &[PageId]) {
        if !pages.is_empty() {
            self.note_at(pages, rt::now());
        }
    }

    fn note_at(&self, pages: &[PageId], now: Nanos) {
        let mut waiting = self.waiting.lock();
        if now.since(waiting.since) > KEPT {
            *waiting = Waiting {
                since: now,
                ..Waiting::default()
            };
        }
        for page in pages {
            if waiting.pages.len() >= self.most {
                break;
            }
            waiting.pages.insert(*page);
        }
        assert!(waiting.pages.len() <= self.most, "no more pages wait than may");
    }

    /// Those that wait, each once, in order.
    pub fn take(&self) -> Vec<PageId> {
        let mut waiting = self.waiting.lock();
        waiting.since = rt::now();
        std::mem::take(&mut waiting.pages).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|page| PageId::new(7, page)).collect()
    }

    #[test]
    fn each_page_waits_once_and_no_more_of_them_than_may() {
        let asked = AskedPages::new(5);
        asked.note(&pages(2..5));
        asked.note(&pages(0..4));
        assert_eq!(asked.take(), pages(0..5));
        asked.note(&pages(0..9));
        assert_eq!(asked.take(), pages(0..5));
        assert_eq!(asked.take(), pages(0..0));
    }

    #[test]
    fn pages_that_nothing_takes_are_given_up() {
        let asked = AskedPages::new(5);
        asked.note(&pages(0..3));
        asked.note_at(&pages(8..9), rt::now() + KEPT + Nanos::from_millis(1));
        assert_eq!(asked.take(), pages(8..9));
    }
}
