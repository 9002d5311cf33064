//! The pages that a node lacks which was given a state without them, and how they come from the others.
//!
//! ```text
//!  state as of entry S ──▶ log goes on behind S ──▶ redo is pending, as ever
//!        │
//!        └──▶ pages, in order, from the other nodes, each at least as of S ──▶ files
//!             ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░░░░░
//!                          here    next     lacking
//! ```
//!
//! So a node that comes back has the log at once, and counts for commits; pages follow.
//!
//! Invariants:
//! - a page that is lacking is not believed from its file: a reader asks another node, and a merge passes it over,
//!   unless redo makes it from nothing;
//! - a page is not replaced by an older one;
//! - nothing is written to a space that was dropped here since: `merging` is held from the question to the write;
//! - no page is lacking any more only where this node has come to all that the others knew when they gave them: a
//!   snapshot in between would have later pages, and none of spaces that were dropped there.

use std::collections::{BTreeMap, BTreeSet};

use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, PAGE_SIZE, PageId, Result};
use cenote_storage::nodes::{PageAnswer, SpaceExtent};
use cenote_storage::redo;

use super::{Checkpoint, Index, Pages};
use crate::codec::{Reader, Writer};

/// Behind every page.
const NONE_LEFT: PageId = PageId::new(u32::MAX, u32::MAX);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// Pages have to be at least as of this entry.
    pub since: u64,
    /// The spaces that there were then, as long as they are there.
    pub spaces: BTreeSet<u32>,
    /// Pages before this one are here, by space and number.
    pub next: PageId,
    /// The files of before are gone, and those of `spaces` are made.
    pub is_begun: bool,
}

/// Pages that are to be taken from other nodes, at least as of an entry.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub since: u64,
    pub pages: Vec<PageId>,
    /// What is lacking afterwards begins here.
    next: PageId,
}

/// What became of pages that other nodes gave.
#[derive(Debug)]
pub(crate) enum Put {
    /// They are here; others are lacking.
    More,
    /// Nothing is lacking any more.
    Whole,
    /// One could not be given.
    Left(Error),
}

impl Lacking {
    /// All pages of a state.
    pub fn all_of(checkpoint: &Checkpoint) -> Lacking {
        Lacking {
            since: checkpoint.entry.0,
            spaces: checkpoint.machine.spaces().collect(),
            next: PageId::from_raw(0),
            is_begun: false,
        }
    }

    pub fn has(&self, page: PageId) -> bool {
        self.spaces.contains(&page.space) && page.raw() >= self.next.raw()
    }

    pub fn encode(&self, writer: Writer) -> Writer {
        let spaces: Vec<u32> = self.spaces.iter().copied().collect();
        writer
            .u64(self.since)
            .each(&spaces, |w, space| w.u32(*space))
            .u64(self.next.raw())
            .u8(self.is_begun.into())
    }

    /// # Errors
    /// [`Error::Corrupt`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Lacking> {
        Ok(Lacking {
            since: r.u64()?,
            spaces: r.each(|r| r.u32())?.into_iter().collect(),
            next: PageId::from_raw(r.u64()?),
            is_begun: r.u8()? == 1,
        })
    }

    /// The first `most` pages that are lacking, where spaces have so many.
    fn first(&self, extents: &BTreeMap<u32, u32>, most: usize) -> Wanted {
        let (mut pages, mut next) = (Vec::new(), self.next);
        for space in self.spaces.range(self.next.space..) {
            let from = if *space == self.next.space { self.next.page } else { 0 };
            let count = extents.get(space).copied().unwrap_or(0);
            let room = (most - pages.len()) as u32;
            let until = count.min(from.saturating_add(room)).max(from);
            pages.extend((from..until).map(|page| PageId::new(*space, page)));
            next = PageId::new(*space, until);
            if pages.len() == most {
                break;
            }
        }
        Wanted {
            since: self.since,
            pages,
            next,
        }
    }
}

/// What a reader is told: another node has the page.
pub(super) fn not_here(page: PageId) -> Error {
    Error::Timeout(format!(
        "this storage node takes its pages from the others, and has not come to page {page}"
    ))
}

impl Index {
    pub(super) fn lacks(&self, page: PageId) -> bool {
        self.lacking.as_ref().is_some_and(|lacking| lacking.has(page))
    }
}

impl Pages {
    /// Makes the files of all spaces whose pages are lacking.
    ///
    /// # Errors
    /// An I/O error.
    pub fn begin_lacking(&self) -> Result<()> {
        let spaces = match &self.index.lock().lacking {
            Some(lacking) => lacking.spaces.clone(),
            None => return Ok(()),
        };
        self.begin_without_snapshots()?;
        for space in &spaces {
            if !self.store.has_space(*space) {
                self.store.create_space(*space)?;
            }
        }
        let mut index = self.index.lock();
        index.spaces.extend(spaces.iter().map(|space| (*space, 0)));
        index.lacking.iter_mut().for_each(|lacking| lacking.is_begun = true);
        Ok(())
    }

    /// The entry as of which spaces have to be known before pages are taken, if that is not known yet.
    pub fn lacks_extents(&self) -> Option<u64> {
        let index = self.index.lock();
        let lacking = index.lacking.as_ref()?;
        index.extents.is_none().then_some(lacking.since)
    }

    /// How many pages spaces have, as of [`Pages::lacks_extents`] or later.
    pub fn set_extents(&self, spaces: &[SpaceExtent]) {
        let mut index = self.index.lock();
        for extent in spaces {
            if let Some(pages) = index.spaces.get_mut(&extent.space) {
                *pages = (*pages).max(extent.pages);
            }
        }
        index.extents = Some(spaces.iter().map(|extent| (extent.space, extent.pages)).collect());
    }

    /// Pages to be taken from other nodes, `most` of them; none are left where it names none.
    pub fn wanted(&self, most: usize) -> Option<Wanted> {
        let index = self.index.lock();
        Some(index.lacking.as_ref()?.first(index.extents.as_ref()?, most))
    }

    /// Whether this node has come to all that the others knew when they gave its pages; `None`: how far that is has to
    /// be noted.
    pub fn has_come_to_given(&self) -> Option<bool> {
        let index = self.index.lock();
        Some(index.entry.0 >= index.given_up_to?)
    }

    /// The last page was given before this entry: all pages can be merged, or redo up to there might find no room.
    pub fn note_given_up_to(&self, entry: u64) {
        let mut index = self.index.lock();
        index.given_up_to = Some(entry);
        index.lacking.iter_mut().for_each(|lacking| lacking.next = NONE_LEFT);
    }

    /// Pages that are lacking, about.
    pub fn lacking(&self) -> u64 {
        let index = self.index.lock();
        let Some(lacking) = &index.lacking else { return 0 };
        let Some(extents) = &index.extents else { return 1 };
        let left = lacking.spaces.range(lacking.next.space..).map(|space| {
            let here = if *space == lacking.next.space {
                lacking.next.page
            } else {
                0
            };
            u64::from(extents.get(space).copied().unwrap_or(0).saturating_sub(here))
        });
        left.sum::<u64>().max(1)
    }

    /// Writes what other nodes gave, up to the first page that they could not give, which is left for later; what
    /// became of it.
    ///
    /// # Errors
    /// Those of [`PageStore::write_changes`](cenote_storage::PageStore::write_changes), after which the node cannot go
    /// on.
    pub fn put(&self, wanted: &Wanted, answers: Vec<PageAnswer>) -> Result<Put> {
        assert_eq!(wanted.pages.len(), answers.len(), "each page was answered");
        let _alone = self.merging.lock();
        let (mut newer, mut next, mut left) = (Vec::new(), wanted.next, None);
        for (id, answer) in wanted.pages.iter().zip(answers) {
            match answer {
                Ok((page, PageRead::Present)) if self.is_newer(*id, &page) => newer.push((*id, page)),
                // The others have dropped its space, and this node comes to that entry, too.
                Ok(_) | Err(Error::Invalid(_)) => {}
                Err(error) => {
                    (next, left) = (*id, Some(error));
                    break;
                }
            }
        }
        let writes = newer.iter().map(|(id, bytes)| PageWrite {
            id: *id,
            bytes,
            changed: Sectors::WHOLE,
        });
        self.store.write_changes(&writes.collect::<Vec<_>>())?;
        let mut index = self.index.lock();
        newer
            .iter()
            .for_each(|(id, page)| index.merged(*id, redo::page_lsn(page)));
        if let Some(lacking) = &mut index.lacking {
            assert!(next.raw() >= lacking.next.raw(), "pages are taken in order");
            lacking.next = next;
        }
        let is_done = wanted.pages.is_empty();
        if is_done {
            index.lacking = None;
        }
        drop(index);
        self.changed.notify_all();
        Ok(match left {
            None if is_done => Put::Whole,
            None => Put::More,
            Some(error) => Put::Left(error),
        })
    }

    /// Whether the page is to be written: its space is as it was, and what is there is older. With `merging` held.
    fn is_newer(&self, id: PageId, page: &[u8]) -> bool {
        let is_lacking = self.index.lock().lacks(id);
        let mut here = vec![0; PAGE_SIZE];
        let read = is_lacking && self.store.has_space(id.space);
        read && match self.store.read_stable(id, &mut here) {
            Ok(PageRead::Present) if !planted(Fault::LackingOlder) => redo::page_lsn(&here) < redo::page_lsn(page),
            Ok(_) | Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_wanted_in_order_and_once() {
        let mut lacking = Lacking {
            since: 9,
            spaces: [3, 5, 8].into(),
            next: PageId::from_raw(0),
            is_begun: true,
        };
        let extents = BTreeMap::from([(3, 2), (8, 4)]);
        let mut taken = Vec::new();
        loop {
            let wanted = lacking.first(&extents, 3);
            assert!(wanted.pages.iter().all(|page| lacking.has(*page)));
            if wanted.pages.is_empty() {
                break;
            }
            taken.extend(wanted.pages);
            lacking.next = wanted.next;
            assert!(!taken.iter().any(|page| lacking.has(*page)));
        }
        let all = [(3, 0), (3, 1), (8, 0), (8, 1), (8, 2), (8, 3)];
        assert_eq!(taken, all.map(|(space, page)| PageId::new(space, page)));
        assert!(!lacking.has(PageId::new(4, 0)), "it was made since");
        let bytes = lacking.encode(Writer::default()).done();
        let again = Lacking::decode(&mut Reader::new(&bytes, "a test")).expect("whole");
        assert_eq!(again, lacking);
    }
}
