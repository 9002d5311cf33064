//! What a reader knows of changes: as of which position names in remote memory have to be true for each page.
//!
//! The server that changes the database ends the name of a copy that lacks a change, some milliseconds behind the
//! change, and then says up to which position of the log it has done so: the *watermark* (`crate::tiered`). A reader is
//! told which pages have changed, move by move. So a name says the truth of a page for a reader if the watermark, read
//! **before** the name, is at or beyond the last move that changed the page. Of a page that has not changed since the
//! reader began, the position at which it began takes that place.
//!
//! Invariant: each change up to the reader's moment is at or below what [`KnownChanges::needed`] says of its page.

use cenote_base::rt::HashMap;
use cenote_base::{Lsn, PageId};
use cenote_storage::nodes::Changes;

/// Pages that are remembered, at most. Those that the watermark has passed are not needed.
const PAGES_MAX: usize = 1 << 20;
/// So many, before those are looked for.
const PAGES_USUAL: usize = 1 << 14;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownChanges {
    /// All changes up to here count for all pages.
    floor: Lsn,
    /// The end of the last move that changed a page, if that is behind the floor.
    pages: HashMap<PageId, Lsn>,
    /// The highest watermark seen.
    watermark: Lsn,
}

impl KnownChanges {
    /// Of a reader that begins at this position.
    pub fn begin(at: Lsn) -> Self {
        Self {
            floor: at,
            ..Self::default()
        }
    }

    /// A move, before its end.
    pub fn note(&mut self, changes: &Changes) {
        let end = changes.to.end;
        assert!(end >= self.floor, "a reader is not led back");
        if changes.anew.is_some() {
            return self.raise(end);
        }
        // Another has the numbers of a space that was dropped, if any has: its pages are changed by its making.
        self.changed(&changes.pages, end);
    }

    /// These pages have changed, the last time at or below `end`.
    pub fn changed(&mut self, pages: &[PageId], end: Lsn) {
        self.pages.extend(pages.iter().map(|page| (*page, end)));
        let passed = self.watermark.min(end);
        if self.pages.len() > PAGES_USUAL && passed > self.floor {
            self.pages.retain(|_, at| *at > passed);
            self.floor = passed;
        }
        if self.pages.len() > PAGES_MAX {
            self.raise(end);
        }
    }

    /// A move of a reader that reaches no remote memory: nothing but its end has to be known.
    pub fn pass(&mut self, changes: &Changes) {
        self.raise(changes.to.end);
    }

    fn raise(&mut self, to: Lsn) {
        self.pages.clear();
        self.floor = to;
    }

    /// The position as of which a name of `page` has to be true.
    pub fn needed(&self, page: PageId) -> Lsn {
        self.pages.get(&page).copied().unwrap_or_default().max(self.floor)
    }

    /// A watermark was seen.
    pub fn seen(&mut self, watermark: Lsn) {
        self.watermark = self.watermark.max(watermark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_storage::nodes::Moment;

    fn moved(end: u64, pages: std::ops::Range<u32>) -> Changes {
        let to = Moment {
            entry: end,
            end: Lsn::from_raw(end),
        };
        Changes {
            database: 1,
            to,
            epoch: 1,
            anew: None,
            spaces: Vec::new(),
            pages: pages.map(|page| PageId::new(1, page)).collect(),
        }
    }

    #[test]
    fn a_name_is_as_of_the_last_change_that_is_known() {
        let mut known = KnownChanges::begin(Lsn::from_raw(100));
        known.note(&moved(200, 3..5));
        known.note(&moved(300, 4..6));
        let needed = |known: &KnownChanges, page| known.needed(PageId::new(1, page)).raw();
        assert_eq!([2, 3, 4, 5].map(|page| needed(&known, page)), [100, 200, 300, 300]);
        known.seen(Lsn::from_raw(250));
        // Many changes: what the watermark has passed is forgotten, and is asked of all pages.
        known.note(&moved(400, 10..10 + PAGES_USUAL as u32));
        assert_eq!([2, 3, 4, 10].map(|page| needed(&known, page)), [250, 250, 300, 400]);
        known.note(&moved(500, 0..PAGES_MAX as u32 + 1));
        assert_eq!(needed(&known, u32::MAX), 500, "too many: all count as changed");
    }
}
