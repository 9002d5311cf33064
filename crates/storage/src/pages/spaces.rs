//! The files of the spaces: opened when needed, closed when many are open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, IoRequest, OpenOptions};
use cenote_base::rt::{HashSet, Mutex, RwLock};
use cenote_base::{Error, PAGE_SIZE, PageId, Result};

use crate::files::{doing, space_name, space_of};
use crate::reads::padded;
use crate::redo::verify_page;

/// Files kept open; systems allow a process 1024 by default, and connections need some.
const OPEN_MAX: usize = 400;
/// Pages that a file grows by at least, and at most; in between by an eighth of its length.
const GROW_MIN: u64 = 4;
const GROW_MAX: u64 = 1024;
const _: () = assert!(0 < GROW_MIN && GROW_MIN <= GROW_MAX, "a file that grows gets longer");
/// A space holds at most this many pages (32 TiB), so that damaged page numbers are noticed.
const PAGES_MAX: u32 = 1 << 31;

pub(crate) struct Spaces {
    dir: PathBuf,
    files: RwLock<SpaceFiles>,
    dropped: RwLock<HashSet<u32>>,
    clock: AtomicU64,
}

/// The spaces. Opening or syncing a file must not take longer where there are more of them.
struct SpaceFiles {
    all: BTreeSet<u32>,
    open: BTreeMap<u32, SpaceFile>,
}

/// The error for a space that is not there.
pub(super) fn no_space(space: u32) -> Error {
    Error::Invalid(format!("there is no space {space} in the data directory"))
}

/// An open space.
#[derive(Clone)]
pub(crate) struct SpaceFile(Arc<OpenSpace>);

struct OpenSpace {
    file: File,
    path: PathBuf,
    /// Written since it was synced.
    dirty: AtomicBool,
    /// A sync failed: the system may have dropped the pages, and the next sync would not say so.
    failed: AtomicBool,
    /// Pages whose space is taken: the file's length.
    pages: AtomicU64,
    growing: Mutex<()>,
    /// Held during a sync, so that a thread that finds the file clean knows that the sync has ended.
    syncing: Mutex<()>,
    used: AtomicU64,
}

impl Spaces {
    /// The spaces in `dir`, which is made if it is missing.
    ///
    /// # Errors
    /// An I/O error of the directory.
    pub fn open(dir: &Path) -> Result<Spaces> {
        doing(fs::create_dir_all(dir), "making", dir)?;
        let names = doing(fs::list(dir), "listing", dir)?;
        let files = SpaceFiles {
            all: names.iter().filter_map(|name| space_of(name)).collect(),
            open: BTreeMap::new(),
        };
        Ok(Spaces {
            dir: dir.to_owned(),
            files: RwLock::new(files),
            dropped: RwLock::default(),
            clock: AtomicU64::new(0),
        })
    }

    fn path(&self, space: u32) -> PathBuf {
        self.dir.join(space_name(space))
    }

    pub fn all(&self) -> Vec<u32> {
        self.files.read().all.iter().copied().collect()
    }

    pub fn exists(&self, space: u32) -> bool {
        self.files.read().all.contains(&space)
    }

    /// The file of a space; `None` if there is no such space.
    ///
    /// # Errors
    /// An I/O error of opening it, or of the sync of one that is closed for it.
    pub fn find(&self, space: u32) -> Result<Option<SpaceFile>> {
        if let Some(file) = self.files.read().open.get(&space) {
            return Ok(Some(self.touched(file)));
        }
        self.reopen(space)
    }

    /// The file of a space, which has to be there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not; those of [`Spaces::find`].
    pub fn get(&self, space: u32) -> Result<SpaceFile> {
        self.find(space)?.ok_or_else(|| no_space(space))
    }

    /// Reads a page as it is in place, and repairs nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged; [`Error::Invalid`] if there is no such space; an I/O error.
    pub fn read_in_place(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        self.get(id.space)?.read(id.page, page)?;
        if page.iter().all(|b| *b == 0) {
            return Ok(PageRead::NeverWritten);
        }
        verify_page(page, id).map(|()| PageRead::Present)
    }

    fn touched(&self, file: &SpaceFile) -> SpaceFile {
        let now = self.clock.load(Ordering::Relaxed);
        if file.0.used.load(Ordering::Relaxed) != now {
            file.0.used.store(now, Ordering::Relaxed);
        }
        file.clone()
    }

    fn reopen(&self, space: u32) -> Result<Option<SpaceFile>> {
        let mut files = self.files.write();
        if let Some(file) = files.open.get(&space) {
            return Ok(Some(file.clone()));
        }
        if !files.all.contains(&space) {
            return Ok(None);
        }
        close_some(&mut files.open)?;
        let file = SpaceFile::open(self.path(space), OpenOptions::WRITE)?;
        self.clock.fetch_add(1, Ordering::Relaxed);
        files.open.insert(space, self.touched(&file));
        Ok(Some(file))
    }

    /// Makes the file of a space that no other thread makes at the same time; the space is there after
    /// [`Spaces::settle`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space exists; an I/O error.
    pub fn create(&self, space: u32) -> Result<SpaceFile> {
        let mut files = self.files.write();
        if files.all.contains(&space) {
            return Err(Error::Invalid(format!("space {space} exists already")));
        }
        close_some(&mut files.open)?;
        SpaceFile::open(self.path(space), OpenOptions::TRUNCATE)
    }

    /// Makes a new file and its name durable, and the space known.
    ///
    /// # Errors
    /// An I/O error of a sync.
    pub fn settle(&self, space: u32, file: SpaceFile) -> Result<()> {
        doing(file.0.file.sync_data(), "syncing", &file.0.path)?;
        if !planted(Fault::NameSync) {
            doing(fs::sync_dir(&self.dir), "syncing", &self.dir)?;
        }
        self.dropped.write().remove(&space);
        let mut files = self.files.write();
        files.all.insert(space);
        files.open.insert(space, file);
        Ok(())
    }

    /// Whether the space was removed since the store was opened.
    pub fn was_dropped(&self, space: u32) -> bool {
        self.dropped.read().contains(&space)
    }

    /// Removes a space, durably, if it exists.
    ///
    /// # Errors
    /// An I/O error of the removal or of the sync.
    pub fn remove(&self, space: u32) -> Result<()> {
        self.leave(space, |path| doing(fs::remove(path), "removing", path))
    }

    /// The same; its file, which has to be synced, is `to` from then on.
    ///
    /// # Errors
    /// An I/O error of the renaming or of the sync.
    pub fn retire(&self, space: u32, to: &Path) -> Result<()> {
        self.leave(space, |path| {
            doing(fs::rename(path, to), "renaming", path)?;
            let dir = to.parent().unwrap_or(to);
            doing(fs::sync_dir(dir), "syncing", dir)
        })
    }

    fn leave(&self, space: u32, leave: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let mut files = self.files.write();
        if files.all.contains(&space) {
            // First: where the disk is full it is tried again.
            leave(&self.path(space))?;
        }
        self.dropped.write().insert(space);
        files.open.remove(&space);
        match files.all.remove(&space) {
            true => doing(fs::sync_dir(&self.dir), "syncing", &self.dir),
            false => Ok(()),
        }
    }

    /// Syncs every space that was written since it was synced.
    ///
    /// # Errors
    /// Those of [`SpaceFile::sync_if_dirty`]; spaces behind the first that fails are not synced.
    pub fn sync_dirty(&self) -> Result<()> {
        let open: Vec<SpaceFile> = self.files.read().open.values().cloned().collect();
        open.iter().try_for_each(SpaceFile::sync_if_dirty)
    }
}

/// Where many files are open, closes the half that was used longest ago, synced.
fn close_some(open: &mut BTreeMap<u32, SpaceFile>) -> Result<()> {
    if open.len() < OPEN_MAX {
        return Ok(());
    }
    let used = |(n, file): (&u32, &SpaceFile)| (file.0.used.load(Ordering::Relaxed), *n);
    let mut by_use: Vec<(u64, u32)> = open.iter().map(used).collect();
    by_use.sort_unstable();
    for (_, space) in &by_use[..OPEN_MAX / 2] {
        let Some(file) = open.get(space).filter(|file| Arc::strong_count(&file.0) == 1) else {
            continue;
        };
        file.sync_if_dirty()?;
        open.remove(space);
    }
    Ok(())
}

impl SpaceFile {
    fn open(path: PathBuf, options: OpenOptions) -> Result<SpaceFile> {
        let file = doing(fs::open(&path, options), "opening", &path)?;
        let length = doing(file.len(), "measuring", &path)?;
        Ok(SpaceFile(Arc::new(OpenSpace {
            file,
            path,
            dirty: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            pages: AtomicU64::new(length / PAGE_SIZE as u64),
            growing: Mutex::new(()),
            syncing: Mutex::new(()),
            used: AtomicU64::new(0),
        })))
    }

    fn offset(page: u32) -> u64 {
        u64::from(page) * PAGE_SIZE as u64
    }

    /// Reads a page; zeros where the file ends.
    ///
    /// # Errors
    /// An I/O error, with the file.
    pub fn read(&self, number: u32, page: &mut [u8]) -> Result<()> {
        let n = doing(self.0.file.read_at(page, Self::offset(number)), "reading", &self.0.path)?;
        page[n..].fill(0);
        Ok(())
    }

    /// The request for a page, to be read along with others.
    pub fn request(&self, number: u32, tag: u64) -> IoRequest {
        let buffer = vec![0; PAGE_SIZE].into();
        IoRequest::read(self.0.file.clone(), Self::offset(number), buffer, tag)
    }

    /// The page that such a request has read; zeros where the file ends.
    ///
    /// # Errors
    /// The I/O error of the read, with the file.
    pub fn answer(&self, request: IoRequest) -> Result<Box<[u8]>> {
        doing(padded(request), "reading", &self.0.path)
    }

    /// A page of which some blocks of `block` bytes may not be readable: those are zeros.
    pub fn readable_blocks(&self, number: u32, block: usize) -> Box<[u8]> {
        let mut page = vec![0; PAGE_SIZE];
        for (start, bytes) in (0..PAGE_SIZE).step_by(block).zip(page.chunks_exact_mut(block)) {
            let at = Self::offset(number) + start as u64;
            // What was read of a block that fails is not believed; behind the file's end are zeros.
            if self.0.file.read_at(bytes, at).is_err() {
                bytes.fill(0);
            }
        }
        page.into()
    }

    /// The request that writes a page again, along with others.
    pub fn rewrite(&self, number: u32, page: Box<[u8]>, tag: u64) -> IoRequest {
        IoRequest::write(self.0.file.clone(), Self::offset(number), vec![page], tag)
    }

    /// The outcome of such a request.
    ///
    /// # Errors
    /// The I/O error of the write, with the file.
    pub fn rewritten(&self, request: IoRequest) -> Result<()> {
        self.mark_dirty();
        doing(request.result, "writing", &self.0.path).map(drop)
    }

    /// Writes a page.
    ///
    /// # Errors
    /// As of [`SpaceFile::write_at`].
    pub fn write(&self, number: u32, page: &[u8]) -> Result<()> {
        assert!(page.len() == PAGE_SIZE, "a page is written whole");
        self.write_at(Self::offset(number), &[page])
    }

    /// Writes bytes in a row.
    ///
    /// # Errors
    /// An I/O error, with the file; some of the bytes may be written then.
    pub fn write_at(&self, offset: u64, bytes: &[&[u8]]) -> Result<()> {
        let written = self.0.file.write_vectored_at(bytes, offset);
        // After the write: a sync that began before may not cover it.
        self.0.dirty.store(true, Ordering::Release);
        let end = offset + bytes.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        self.0.pages.fetch_max(end / PAGE_SIZE as u64, Ordering::AcqRel);
        doing(written, "writing", &self.0.path)
    }

    /// The next sync of all spaces includes this one.
    pub fn mark_dirty(&self) {
        self.0.dirty.store(true, Ordering::Release);
    }

    /// Syncs the file if it was written since it was synced.
    ///
    /// # Errors
    /// The I/O error of the sync; [`Error::Poisoned`] after an earlier one.
    pub fn sync_if_dirty(&self) -> Result<()> {
        let _syncing = self.0.syncing.lock();
        if self.0.failed.load(Ordering::Acquire) {
            let path = self.0.path.display();
            return Err(Error::Poisoned(format!(
                "{path} could not be synced earlier: see to the disk, then restart"
            )));
        }
        if self.0.dirty.swap(false, Ordering::AcqRel) {
            let synced = self.0.file.sync_data();
            self.0.failed.store(synced.is_err(), Ordering::Release);
            doing(synced, "syncing", &self.0.path)?;
        }
        Ok(())
    }

    /// Takes the space on disk for the first `pages` pages.
    ///
    /// # Errors
    /// [`Error::Full`] if there is none; [`Error::Invalid`] if no space holds that many pages; an I/O error.
    pub fn reserve(&self, pages: u32) -> Result<()> {
        if pages > PAGES_MAX {
            return Err(Error::Invalid(format!(
                "{} cannot hold {pages} pages",
                self.0.path.display()
            )));
        }
        if u64::from(pages) <= self.0.pages.load(Ordering::Acquire) {
            return Ok(());
        }
        let _growing = self.0.growing.lock();
        let have = self.0.pages.load(Ordering::Acquire);
        let wanted = u64::from(pages);
        if wanted <= have {
            return Ok(());
        }
        let target = wanted.max(have + (have / 8).clamp(GROW_MIN, GROW_MAX));
        assert!(have < target, "a file grows from {have} to {target} pages");
        self.allocate(have..target)
    }

    /// Takes the space on disk for pages that were punched.
    ///
    /// # Errors
    /// [`Error::Full`] if there is none; an I/O error.
    pub fn reserve_again(&self, pages: std::ops::Range<u32>) -> Result<()> {
        let _growing = self.0.growing.lock();
        self.allocate(u64::from(pages.start)..u64::from(pages.end))
    }

    /// With `growing` held.
    fn allocate(&self, pages: std::ops::Range<u64>) -> Result<()> {
        let size = PAGE_SIZE as u64;
        let grown = self
            .0
            .file
            .allocate(pages.start * size, (pages.end - pages.start) * size);
        doing(grown, "making room in", &self.0.path).map_err(|error| match error {
            Error::Full(text) => Error::Full(format!(
                "{text}; what was committed is safe: make space in that file system, and go on"
            )),
            other => other,
        })?;
        self.0.dirty.store(true, Ordering::Release);
        self.0.pages.fetch_max(pages.end, Ordering::AcqRel);
        Ok(())
    }

    /// Pages that the file has room for.
    ///
    /// # Errors
    /// An I/O error, with the file.
    pub fn pages(&self) -> Result<u32> {
        let length = doing(self.0.file.len(), "measuring", &self.0.path)?;
        Ok(u32::try_from(length.div_ceil(PAGE_SIZE as u64)).unwrap_or(u32::MAX))
    }

    /// Gives back the space on disk of pages, which read as never written then.
    ///
    /// # Errors
    /// An I/O error, with the file.
    pub fn punch(&self, pages: std::ops::Range<u32>) -> Result<()> {
        let (start, end) = (Self::offset(pages.start), Self::offset(pages.end));
        if start >= end {
            return Ok(());
        }
        let punched = self.0.file.punch(start, end - start);
        // After it, as after a write.
        self.mark_dirty();
        doing(punched, "punching", &self.0.path)
    }

    /// Bytes that the file takes on disk.
    ///
    /// # Errors
    /// An I/O error, with the file.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        doing(self.0.file.allocated(), "measuring", &self.0.path)
    }
}
