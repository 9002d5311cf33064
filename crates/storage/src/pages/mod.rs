//! Pages in files: one file a space, torn pages made good by a double-write area.
//!
//! The store first writes what changed of a batch of pages in a row to the double-write area and syncs it. Then the
//! blocks that changed go to their own places, which are synced only when the area is needed again. So a page is
//! durable, and safe from being torn, as soon as [`PageStore::write_changes`] returns, for one sequential write and one
//! sync a batch.
//!
//! Invariants:
//! - a page is written in place only after its copy in the area is synced;
//! - an area is written anew only after all spaces that its last batch went to are synced;
//! - at opening, each page of a valid batch whose copy in place is damaged or older is put back, and no page is
//!   believed that is older than a batch says (`restore`);
//! - pages of a former process are written again before any other page (`former`);
//! - a page is called damaged only if it is so while no writer is at it ([`PageStore::read_stable`]);
//! - a failed sync poisons the store, which writes nothing from then on.
//!
//! Lock order: an area, then `without_area`, then `spaces`, then `recent`.

mod doublewrite;
mod former;
mod lists;
mod restore;
mod source;
mod spaces;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, IoRequest};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Error, PAGE_SIZE, PageId, Result};

use crate::files::spaces_dir;
use crate::owner::Ownership;
use crate::poison::Poison;
use crate::redo::{set_page_checksum, verify_page};
use doublewrite::{Areas, Placing};
use former::FormerPages;
pub(crate) use source::InUse;
use spaces::SpaceFile;
pub(crate) use spaces::Spaces;

pub use lists::BATCH;
pub use restore::{PagesReport, Redo};

/// Counters, since opening.
#[derive(Debug, Default)]
pub struct PageStats {
    /// Pages read.
    pub read: AtomicU64,
    /// Pages written in place.
    pub written: AtomicU64,
    /// Batches synced to the double-write area.
    pub batches: AtomicU64,
}

/// The store of pages.
pub struct PageStore {
    spaces: Spaces,
    areas: Areas,
    poison: Poison,
    stats: PageStats,
    former: FormerPages,
    /// Held while pages are changed in place by other than batches: a repair at reading, space given back.
    without_area: Mutex<()>,
    owner: Option<Arc<Ownership>>,
}

impl PageStore {
    /// Opens the pages of a data directory and repairs what a crash tore, with `redo` where copies do not do.
    ///
    /// # Errors
    /// An I/O error, one of `redo`; [`Error::Mismatch`] for the double-write file of another database or of a later
    /// format.
    pub fn open(
        data: &Path,
        database: u128,
        owner: Option<Arc<Ownership>>,
        redo: &mut Redo<'_>,
    ) -> Result<(PageStore, PagesReport)> {
        let spaces = Spaces::open(&spaces_dir(data))?;
        let areas = Areas::open(data, database)?;
        let restored = restore::restore(&spaces, &areas, redo)?;
        let store = PageStore {
            spaces,
            areas,
            poison: Poison::default(),
            stats: PageStats::default(),
            former: FormerPages::new(restored.former),
            without_area: Mutex::new(()),
            owner,
        };
        let built: Vec<(PageId, &[u8])> = restored.built.iter().map(|(id, page)| (*id, &**page)).collect();
        store.write_pages(&built)?;
        Ok((store, restored.report))
    }

    /// Writes again what the process before may not have made durable: before this one writes anything, or believes a
    /// sync.
    fn settle_former(&self) -> Result<()> {
        self.former.write_again(|result| self.guarded(|| result))
    }

    /// Syncs all spaces; what is written so far is durable then.
    fn sync_spaces(&self) -> Result<()> {
        self.settle_former()?;
        self.guarded(|| self.spaces.sync_dirty())
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if its checksum or id does not fit and no copy can replace it;
    /// [`Error::Invalid`] if there is no such space.
    pub fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        self.space(id.space)?.read(id.page, page)?;
        self.checked(id, page)
    }

    /// Reads pages, all of them under way at the same time; in the order of `ids`, each as [`PageStore::read_page`]
    /// has it.
    pub fn read_pages(&self, ids: &[PageId]) -> Vec<Result<(Box<[u8]>, PageRead)>> {
        let files: Vec<Result<SpaceFile>> = ids.iter().map(|id| self.space(id.space)).collect();
        let requests = ids.iter().zip(&files).enumerate();
        let requests = requests.filter_map(|(n, (id, file))| Some(file.as_ref().ok()?.request(id.page, n as u64)));
        let mut done: Vec<Option<IoRequest>> = ids.iter().map(|_| None).collect();
        for request in fs::submit(requests.collect()).complete() {
            let place = &mut done[request.tag as usize];
            assert!(place.replace(request).is_none(), "each request is answered once");
        }
        let read = |((id, file), done): ((&PageId, Result<SpaceFile>), Option<IoRequest>)| {
            let mut page = file?.answer(done.expect("each request is answered"))?;
            let read = self.checked(*id, &mut page)?;
            Ok((page, read))
        };
        ids.iter().zip(files).zip(done).map(read).collect()
    }

    /// A page as it was read: whole, or from a copy.
    fn checked(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        self.stats.read.fetch_add(1, Ordering::Relaxed);
        if page.iter().all(|b| *b == 0) {
            return Ok(PageRead::NeverWritten);
        }
        match verify_page(page, id) {
            Err(_) if planted(Fault::PageChecksum) => Ok(PageRead::Present),
            Ok(()) => Ok(PageRead::Present),
            Err(e) => self.rebuild(id, page, e),
        }
    }

    /// Reads a page that another thread may write; repairs nothing. A page that is read damaged may be in the middle of
    /// a write, for as long as its writer is held up. So it is read once more while nothing is written in place.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged though no writer is at it; [`Error::Invalid`] if there is no such space; an
    /// I/O error.
    pub fn read_stable(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        match self.spaces.read_in_place(id, page) {
            Err(Error::Corrupt(_)) => {
                let _batches = self.areas.take_all();
                let _others = self.without_area.lock();
                self.spaces.read_in_place(id, page)
            }
            read => read,
        }
    }

    /// A damaged page, from the double-write area if its newest copy is there.
    fn rebuild(&self, id: PageId, page: &mut [u8], damage: Error) -> Result<PageRead> {
        if !self.areas.copy_of(id, page)? {
            return Err(damage);
        }
        // What is damaged may be a page that the next owner is writing.
        self.check_change()?;
        let _whole = self.without_area.lock();
        self.space(id.space)?.write(id.page, page)?;
        Ok(PageRead::Rebuilt)
    }

    /// As [`PageStore::write_changes`], of pages of which nothing is known to be in place.
    ///
    /// # Errors
    /// As of [`PageStore::write_changes`].
    pub fn write_pages(&self, pages: &[(PageId, &[u8])]) -> Result<()> {
        let whole = pages.iter().map(|(id, bytes)| PageWrite {
            id: *id,
            bytes,
            changed: Sectors::WHOLE,
        });
        self.write_changes(&whole.collect::<Vec<_>>())
    }

    /// Writes what changed of pages, safe from being torn; they are durable when this returns. No page may be in two
    /// calls at once. Their redo has to be durable. Pages of spaces that were dropped since the store was opened are
    /// left out.
    ///
    /// # Errors
    /// [`Error::Full`] if a file could not grow: nothing is lost, the pages are as they were;
    /// [`Error::Poisoned`] after a failed sync, for good.
    pub fn write_changes(&self, pages: &[PageWrite<'_>]) -> Result<()> {
        for batch in pages.chunks(BATCH) {
            self.check_change()?;
            self.write_batch(batch)?;
        }
        Ok(())
    }

    fn write_batch(&self, batch: &[PageWrite<'_>]) -> Result<()> {
        let (mut pages, mut files) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for write in batch {
            let PageWrite { id, bytes, .. } = write;
            if bytes.len() != PAGE_SIZE {
                return Err(Error::Invalid(format!("page {id} of {} bytes", bytes.len())));
            }
            let file = match self.spaces.find(id.space)? {
                None if self.spaces.was_dropped(id.space) => continue,
                None => return Err(spaces::no_space(id.space)),
                Some(file) => file,
            };
            // The file takes the space before anything is written, so that a full disk changes nothing.
            file.reserve(id.page.saturating_add(1))?;
            pages.push(*write);
            files.push(file);
        }
        if pages.is_empty() {
            Ok(())
        } else {
            self.write_safely(&pages, &files)
        }
    }

    fn write_safely(&self, pages: &[PageWrite<'_>], files: &[SpaceFile]) -> Result<()> {
        assert_eq!(
            pages.len(),
            files.len(),
            "each page of a batch has the file of its space"
        );
        self.settle_former()?;
        assert!(
            !self.former.is_owed(),
            "former pages are written again before any other"
        );
        let mut area = self.areas.take();
        // A writer that failed meanwhile has left copies in the area that nothing else has.
        self.check()?;
        if area.needs_sync() {
            self.settle_areas()?;
            mark::pass(Mark::AreaReused);
        }
        area.fill(pages, set_page_checksum);
        if !planted(Fault::DoubleWrite) {
            self.guarded(|| area.write())?;
        }
        self.areas.publish(&mut area);
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.guarded(|| in_place(&area.in_order(), files))?;
        mark::pass(Mark::PagesWritten);
        area.placed();
        self.stats.written.fetch_add(pages.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Makes durable what was written in place out of areas, whose copies are not needed from then on.
    fn settle_areas(&self) -> Result<()> {
        if planted(Fault::AreaReuse) {
            return Ok(());
        }
        let batches = self.areas.in_place();
        self.sync_spaces()?;
        self.areas.settled(batches);
        Ok(())
    }

    /// Makes a space durably: its file is empty and there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it exists; [`Error::Poisoned`] from then on if a sync fails.
    pub fn create_space(&self, space: u32) -> Result<()> {
        self.check_change()?;
        // Old copies of pages of a space of this number must not come back.
        self.forget(space)?;
        let file = self.spaces.create(space)?;
        self.guarded(|| self.spaces.settle(space, file))
    }

    /// Removes a space, durably, if it exists. No thread may use it from then on.
    ///
    /// # Errors
    /// An I/O error; [`Error::Poisoned`] if the store has failed.
    pub fn drop_space(&self, space: u32) -> Result<()> {
        self.check_change()?;
        self.spaces.remove(space)
    }

    /// As [`PageStore::drop_space`]; the file is kept under another name, `to`, with all that was written to it,
    /// durably.
    ///
    /// # Errors
    /// As there.
    pub fn retire_space(&self, space: u32, to: &Path) -> Result<()> {
        self.check_change()?;
        self.settle_former()?;
        if let Some(file) = self.spaces.find(space)? {
            self.guarded(|| file.sync_if_dirty())?;
        }
        self.spaces.retire(space, to)
    }

    fn forget(&self, space: u32) -> Result<()> {
        if !self.areas.holds(space) {
            return Ok(());
        }
        self.sync_spaces()?;
        let all = self.areas.take_all();
        self.check()?;
        // A batch that was written meanwhile would be in no area, and not for certain in its places.
        if !planted(Fault::AreasCleared) {
            self.sync_spaces()?;
        }
        self.guarded(|| all.clear())
    }

    /// Whether a space is there.
    pub fn has_space(&self, space: u32) -> bool {
        self.spaces.exists(space)
    }

    /// The spaces that are there, in order.
    pub fn spaces(&self) -> Vec<u32> {
        self.spaces.all()
    }

    /// Pages that the file of a space has room for (its length).
    ///
    /// # Errors
    /// An I/O error; [`Error::Invalid`] if there is no such space.
    pub fn page_count(&self, space: u32) -> Result<u32> {
        self.space(space)?.pages()
    }

    /// Takes the space on disk for the first `pages` pages, in steps, so that writing them later
    /// cannot run out of it.
    ///
    /// # Errors
    /// [`Error::Full`]; nothing has changed then.
    pub fn reserve(&self, space: u32, pages: u32) -> Result<()> {
        self.space(space)?.reserve(pages)
    }

    /// Takes the space on disk for `pages`, which were given back by [`PageStore::punch`], anew.
    ///
    /// # Errors
    /// [`Error::Full`]; nothing has changed then.
    pub fn reserve_again(&self, space: u32, pages: std::ops::Range<u32>) -> Result<()> {
        self.space(space)?.reserve_again(pages)
    }

    /// Gives back the disk space of pages, durably; they read as never written. They may not be in use. A power cut may
    /// leave some of their blocks: a check then finds damaged pages where they are used again and not written yet.
    ///
    /// # Errors
    /// An I/O error; [`Error::Poisoned`] from then on if the sync fails.
    pub fn punch(&self, space: u32, pages: std::ops::Range<u32>) -> Result<()> {
        self.check_change()?;
        self.settle_former()?;
        let file = self.space(space)?;
        {
            let _whole = self.without_area.lock();
            file.punch(pages)?;
        }
        self.guarded(|| file.sync_if_dirty())
    }

    /// Syncs all spaces: nothing depends on the double-write area then.
    ///
    /// # Errors
    /// [`Error::Poisoned`] from then on if it fails.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        self.sync_spaces()
    }

    /// Bytes on disk, all spaces together.
    ///
    /// # Errors
    /// An I/O error.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        self.spaces().into_iter().map(|s| self.space(s)?.bytes_on_disk()).sum()
    }

    /// Reads every page of every space; each that is damaged is handed to `found`, with the error.
    /// Returns the number of pages that are present.
    ///
    /// # Errors
    /// An I/O error of a whole file.
    pub fn check_all(&self, found: &mut dyn FnMut(PageId, Error)) -> Result<u64> {
        let (mut present, mut page) = (0, vec![0; PAGE_SIZE]);
        for space in self.spaces() {
            let pages = match self.page_count(space) {
                // The space was dropped since the spaces were listed.
                Err(_) if !self.has_space(space) => continue,
                pages => pages?,
            };
            for number in 0..pages {
                let id = PageId::new(space, number);
                match self.read_stable(id, &mut page) {
                    Ok(PageRead::NeverWritten) => {}
                    Ok(_) => present += 1,
                    Err(_) if !self.has_space(space) => break,
                    Err(e) => found(id, e),
                }
            }
        }
        Ok(present)
    }

    /// What it has done so far.
    pub fn stats(&self) -> &PageStats {
        &self.stats
    }

    fn space(&self, space: u32) -> Result<SpaceFile> {
        self.spaces.get(space)
    }

    /// Runs `f`, which must not fail halfway; if it does, the store is poisoned.
    fn guarded<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        f().inspect_err(|e| {
            self.poison.set(|| {
                Error::Poisoned(format!(
                    "the page files failed and take no more changes ({e}); what was committed is safe \
                     in the log: see to the disk, then restart"
                ))
            });
        })
    }

    /// Whether an error has ended the store's life.
    ///
    /// # Errors
    /// [`Error::Poisoned`], with the error.
    pub fn check(&self) -> Result<()> {
        self.poison.check()
    }

    /// Whether files may be changed: the store has not failed, and the data directory is this process's. A process that
    /// is stopped behind this look, and goes on when another has the directory, writes all the same: that none does is
    /// for its host's agent to see to.
    fn check_change(&self) -> Result<()> {
        self.check()?;
        let lost = |e: Error| self.poison.set(|| Error::Poisoned(e.to_string()));
        match &self.owner {
            Some(owner) => owner.check().inspect_err(|e| lost(e.clone())),
            None => Ok(()),
        }
    }
}

/// A part of a page on its way to its place.
struct Piece<'a> {
    id: PageId,
    index: usize,
    /// Where it lies in its page.
    start: usize,
    bytes: &'a [u8],
}

impl Piece<'_> {
    fn offset(&self) -> u64 {
        u64::from(self.id.page) * PAGE_SIZE as u64 + self.start as u64
    }

    fn is_followed_by(&self, next: &Piece<'_>) -> bool {
        self.id.space == next.id.space && self.offset() + self.bytes.len() as u64 == next.offset()
    }
}

/// Writes the blocks that changed to their places, neighbours in one call.
fn in_place(pages: &[Placing<'_>], files: &[SpaceFile]) -> Result<()> {
    let mut pieces = Vec::with_capacity(2 * pages.len());
    for page in pages {
        pieces.extend(page.sectors.ranges().map(|range| Piece {
            id: page.id,
            index: page.index,
            start: range.start,
            bytes: &page.bytes[range],
        }));
    }
    for run in pieces.chunk_by(Piece::is_followed_by) {
        let bytes: Vec<&[u8]> = run.iter().map(|piece| piece.bytes).collect();
        files[run[0].index].write_at(run[0].offset(), &bytes)?;
    }
    Ok(())
}
