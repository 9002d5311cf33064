//! The pages of a database, wherever they are: in files of this host, or on storage nodes.

use std::ops::Range;

use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use crate::branch::{Branch, Branched};
use crate::log::Log;
use crate::node_pages::NodePages;
use crate::page_source::PageSource;
use crate::pages::{InUse, PageStats, PageStore};

/// See the module. The calls are those of [`PageStore`], which says their errors.
pub struct Pages(Kind);

enum Kind {
    Files(Box<PageStore>),
    Branch(Box<PageStore>, Box<Branch>),
    Nodes(NodePages, PageStats),
}

impl Pages {
    pub(super) fn files(store: PageStore) -> Pages {
        Pages(Kind::Files(Box::new(store)))
    }

    pub(super) fn branch(store: PageStore, branch: Branch) -> Pages {
        Pages(Kind::Branch(Box::new(store), Box::new(branch)))
    }

    pub(super) fn nodes(pages: NodePages) -> Pages {
        Pages(Kind::Nodes(pages, PageStats::default()))
    }

    pub(super) fn of_nodes(&self) -> Option<&NodePages> {
        match &self.0 {
            Kind::Files(_) | Kind::Branch(..) => None,
            Kind::Nodes(pages, _) => Some(pages),
        }
    }

    /// What a copy is made of, and from where on the log has to be in it: the pages in files have the redo before the
    /// checkpoint, those of nodes have what was durable at `begin`.
    pub(crate) fn source(&self, checkpoint: Lsn, begin: Lsn) -> (Box<dyn PageSource + '_>, Lsn) {
        match &self.0 {
            Kind::Files(store) => (Box::new(InUse(store)), checkpoint),
            Kind::Branch(store, branch) => (Box::new(Branched(store, branch)), checkpoint),
            Kind::Nodes(pages, _) => (Box::new(pages.as_of(begin)), begin),
        }
    }

    /// See [`PageStore::read_page`].
    ///
    /// # Errors
    /// As there.
    pub fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        match &self.0 {
            Kind::Files(store) => store.read_page(id, page),
            Kind::Branch(store, branch) => {
                let read = store.read_page(id, page)?;
                branch.fill(id, page, read)
            }
            Kind::Nodes(pages, _) => pages.read_page(id, page),
        }
    }

    /// See [`PageStore::read_pages`].
    pub fn read_pages(&self, ids: &[PageId]) -> Vec<Result<(Box<[u8]>, PageRead)>> {
        match &self.0 {
            Kind::Files(store) => store.read_pages(ids),
            Kind::Branch(store, branch) => branch.filled(ids, store.read_pages(ids)),
            Kind::Nodes(pages, _) => pages.read_pages(ids),
        }
    }

    pub(super) fn write_pages(&self, pages: &[(PageId, &[u8])], log: &Log) -> Result<()> {
        let whole = pages.iter().map(|(id, bytes)| PageWrite {
            id: *id,
            bytes,
            changed: Sectors::WHOLE,
        });
        match &self.0 {
            Kind::Files(store) => store.write_pages(pages),
            Kind::Branch(..) | Kind::Nodes(..) => self.write_changes(&whole.collect::<Vec<_>>(), log),
        }
    }

    pub(super) fn write_changes(&self, pages: &[PageWrite<'_>], log: &Log) -> Result<()> {
        match &self.0 {
            Kind::Files(store) => store.write_changes(pages),
            Kind::Branch(store, branch) => {
                store.write_changes(&branch.whole(store, pages)?)?;
                branch.note_written(pages);
                Ok(())
            }
            Kind::Nodes(there, _) => {
                there.drop_pages(pages, log);
                Ok(())
            }
        }
    }

    /// See [`PageStore::create_space`].
    ///
    /// # Errors
    /// As there; those of the nodes.
    pub fn create_space(&self, space: u32) -> Result<()> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.create_space(space),
            Kind::Nodes(pages, _) => pages.create_space(space),
        }
    }

    /// See [`PageStore::drop_space`].
    ///
    /// # Errors
    /// As there; those of the nodes.
    pub fn drop_space(&self, space: u32) -> Result<()> {
        match &self.0 {
            Kind::Files(store) => store.drop_space(space),
            Kind::Branch(store, branch) => {
                branch.forget_space(space)?;
                store.drop_space(space)
            }
            Kind::Nodes(pages, _) => pages.drop_space(space),
        }
    }

    /// Whether a space is there.
    pub fn has_space(&self, space: u32) -> bool {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.has_space(space),
            Kind::Nodes(pages, _) => pages.has_space(space),
        }
    }

    /// The spaces that are there, in order.
    pub fn spaces(&self) -> Vec<u32> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.spaces(),
            Kind::Nodes(pages, _) => pages.spaces(),
        }
    }

    /// See [`PageStore::page_count`].
    ///
    /// # Errors
    /// As there.
    pub fn page_count(&self, space: u32) -> Result<u32> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.page_count(space),
            Kind::Nodes(pages, _) => pages.page_count(space),
        }
    }

    /// See [`PageStore::reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn reserve(&self, space: u32, pages: u32) -> Result<()> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.reserve(space, pages),
            Kind::Nodes(there, _) => there.reserve(space, pages),
        }
    }

    /// See [`PageStore::reserve_again`].
    ///
    /// # Errors
    /// As there.
    pub fn reserve_again(&self, space: u32, pages: Range<u32>) -> Result<()> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.reserve_again(space, pages),
            Kind::Nodes(there, _) => there.reserve(space, pages.end),
        }
    }

    /// See [`PageStore::punch`]. Nodes keep the blocks; the pages are made anew before they are used.
    ///
    /// # Errors
    /// As there.
    pub fn punch(&self, space: u32, pages: Range<u32>) -> Result<()> {
        match &self.0 {
            Kind::Files(store) => store.punch(space, pages),
            Kind::Branch(store, branch) => store.punch(space, branch.not_shared(space, pages)),
            Kind::Nodes(..) => Ok(()),
        }
    }

    /// See [`PageStore::sync`].
    ///
    /// # Errors
    /// As there.
    pub fn sync(&self) -> Result<()> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.sync(),
            Kind::Nodes(..) => Ok(()),
        }
    }

    /// Bytes on disk, all spaces together; of nodes, on each.
    ///
    /// # Errors
    /// An I/O error.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.bytes_on_disk(),
            Kind::Nodes(pages, _) => Ok(pages.bytes()),
        }
    }

    /// See [`PageStore::check_all`].
    ///
    /// # Errors
    /// As there.
    pub fn check_all(&self, found: &mut dyn FnMut(PageId, Error)) -> Result<u64> {
        let is_there = |space| match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.has_space(space),
            Kind::Nodes(pages, _) => pages.keeps_space(space),
        };
        // Nothing is repaired: pages may be in the middle of a write.
        let read_page = |id, page: &mut [u8]| match &self.0 {
            Kind::Branch(store, branch) => {
                let read = store.read_stable(id, page)?;
                branch.fill(id, page, read)
            }
            _ => self.read_page(id, page),
        };
        if let Kind::Files(store) = &self.0 {
            return store.check_all(found);
        }
        let (mut present, mut page) = (0, vec![0; PAGE_SIZE]);
        for space in self.spaces() {
            for number in 0..self.page_count(space).unwrap_or(0) {
                let id = PageId::new(space, number);
                match read_page(id, &mut page) {
                    Ok(PageRead::NeverWritten) => {}
                    Ok(_) => present += 1,
                    Err(_) if !is_there(space) => break,
                    Err(error @ Error::Timeout(_)) => return Err(error),
                    Err(error) => found(id, error),
                }
            }
        }
        Ok(present)
    }

    /// What it has done so far.
    pub fn stats(&self) -> &PageStats {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.stats(),
            Kind::Nodes(_, stats) => stats,
        }
    }

    /// See [`PageStore::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Kind::Files(store) | Kind::Branch(store, _) => store.check(),
            Kind::Nodes(..) => Ok(()),
        }
    }
}
