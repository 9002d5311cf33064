//! One data directory: control file, log and pages under one lock.
//!
//! Opening takes two steps, because whether a region may be believed is known only from the
//! control file, and the log needs the ring that lies in the region:
//!
//! 1. [`DataDir::open`] takes the directory for this process ([`crate::owner`]) and reads the control file;
//! 2. the caller opens or makes its region, compares incarnations, writes a new one
//!    ([`ControlFile::update`]);
//! 3. [`DataDir::storage`] opens log and pages with the ring in that region.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead, PageWrite};
use cenote_base::rt::Nanos;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PageId, Result};

use crate::control::{self, Control, ControlFile, Origins};
use crate::files::{doing, log_dir, spaces_dir};
use crate::log::{Log, LogOptions, LogReport, Need, RingPlace, Survive};
use crate::owner::{Claim, Ownership};
use crate::pages::{PageStore, PagesReport};

/// How to open the log and the pages of a data directory.
pub struct StorageOptions {
    /// Where the redo ring lies.
    pub ring: RingPlace,
    /// Whether the ring is that of the last process, as far as the caller can know.
    pub believe_ring: bool,
    /// What the ring is to survive.
    pub survive: Survive,
    /// Payload bytes of a log segment, a multiple of 4096; 16 MiB is good.
    pub segment_bytes: u64,
    /// Whether the log has a thread of its own, which prepares segments and writes before a commit asks.
    pub background: bool,
}

impl StorageOptions {
    /// The usual ones, with the ring at `ring`.
    pub fn new(ring: RingPlace) -> StorageOptions {
        StorageOptions {
            ring,
            believe_ring: false,
            survive: Survive::Process,
            segment_bytes: 16 << 20,
            background: true,
        }
    }
}

/// The reports of opening log and pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageReport {
    /// The log's part.
    pub log: LogReport,
    /// The pages' part.
    pub pages: PagesReport,
}

/// A data directory, taken for this process.
pub struct DataDir {
    path: PathBuf,
    control: Arc<ControlFile>,
    owner: Arc<Ownership>,
    _lock: File,
}

/// How long a start waits for the lock of a killed server, which gives its memory back before its locks.
const LOCK_TIMEOUT: Nanos = Nanos::from_secs(1);

impl DataDir {
    /// Takes a data directory for this process, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process of this host has it; [`Error::Revoked`] if a later holder of the same grant
    /// has; [`Error::Corrupt`] if its control file is gone or damaged.
    pub fn open(path: &Path) -> Result<DataDir> {
        Self::open_or_begin(path, Origins::default())
    }

    /// As [`DataDir::open`]; a database that is made begins at `origins`, one that is there keeps its own.
    ///
    /// # Errors
    /// Those of [`DataDir::open`]; [`Error::Invalid`] if nothing can begin there.
    pub fn open_or_begin(path: &Path, origins: Origins) -> Result<DataDir> {
        Self::open_as(path, origins, &Claim::machine())
    }

    /// As [`DataDir::open_or_begin`], as `claim` says.
    ///
    /// # Errors
    /// Those of [`DataDir::open_or_begin`].
    pub fn open_as(path: &Path, origins: Origins, claim: &Claim) -> Result<DataDir> {
        if !doing(fs::exists(path), "looking for", path)? {
            doing(fs::create_dir_all(path), "making", path)?;
            let parent = path.parent().unwrap_or(path);
            doing(fs::sync_dir(parent), "syncing", parent)?;
        }
        let lock_path = path.join("lock");
        let lock = doing(fs::open(&lock_path, OpenOptions::CREATE), "opening", &lock_path)?;
        if !doing(lock.lock_exclusive_within(LOCK_TIMEOUT), "locking", &lock_path)? {
            return Err(Error::Busy(format!(
                "the data directory {} is in use by another server: stop that one first",
                path.display()
            )));
        }
        // Before anything is read: whoever had the directory acknowledges nothing from here on.
        let owner = Arc::new(Ownership::claim(path, claim, &|| control::was_stopped(path))?);
        let control = ControlFile::open_or_begin(path, origins, Some(Arc::clone(&owner)))?;
        Ok(DataDir {
            path: path.to_owned(),
            control: Arc::new(control),
            owner,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control file.
    pub fn control(&self) -> &ControlFile {
        &self.control
    }

    /// A database with pages has a log: without, it is not a new one but a damaged one.
    fn require_log(&self) -> Result<()> {
        let is_filled = |dir: &Path| -> Result<bool> {
            let exists = doing(fs::exists(dir), "looking for", dir)?;
            Ok(exists && !doing(fs::list(dir), "listing", dir)?.is_empty())
        };
        let (log, spaces) = (log_dir(&self.path), spaces_dir(&self.path));
        if is_filled(&log)? || !is_filled(&spaces)? {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "there are pages in {} and no redo log in {}: bring its files back, or restore from a backup",
            spaces.display(),
            log.display()
        )))
    }

    /// The files that were found stay there: a process that made one may have been killed before it synced the
    /// directory, and no other step does, though from here on commits rely on it.
    fn keep_names(&self) -> Result<()> {
        let dirs = [self.path.clone(), log_dir(&self.path), spaces_dir(&self.path)];
        dirs.iter().try_for_each(|dir| doing(fs::sync_dir(dir), "syncing", dir))
    }

    /// Opens log and pages. Torn pages are good after this, and the whole log is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the durable log is damaged; others as of the parts.
    pub fn storage(self, options: StorageOptions) -> Result<(Arc<Storage>, StorageReport)> {
        let Control {
            database,
            checkpoint,
            durable,
            origin,
            ..
        } = self.control.get();
        self.require_log()?;
        let (log, log_report) = Log::open(LogOptions {
            dir: log_dir(&self.path),
            database,
            segment_bytes: options.segment_bytes,
            ring: options.ring,
            believe_ring: options.believe_ring,
            survive: options.survive,
            checkpoint,
            known_durable: durable,
            origin,
            background: options.background,
            owner: Some(Arc::clone(&self.owner)),
        })?;
        let control = Arc::clone(&self.control);
        log.set_note_durable(Box::new(move |to| control.update(|c| c.durable = c.durable.max(to))));
        let mut redo = |wanted: &_| log.redo_of(checkpoint, wanted);
        let owner = Some(Arc::clone(&self.owner));
        let (pages, pages_report) = PageStore::open(&self.path, database, owner, &mut redo)?;
        self.keep_names()?;
        self.owner.handed_over()?;
        let report = StorageReport {
            log: log_report,
            pages: pages_report,
        };
        Ok((Arc::new(Storage { log, pages, dir: self }), report))
    }
}

/// The storage of a database in one directory.
pub struct Storage {
    log: Log,
    pages: PageStore,
    dir: DataDir,
}

impl Storage {
    /// The redo log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The pages.
    pub fn pages(&self) -> &PageStore {
        &self.pages
    }

    /// The control file.
    pub fn control(&self) -> &ControlFile {
        &self.dir.control
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Notes that all redo before `checkpoint` (a group's start, or the log's end) is in the
    /// pages as written by [`PageStore::write_pages`], then frees the log before it. A position that the log has only
    /// in memory is made durable first: a control file never names more than the files have.
    ///
    /// # Errors
    /// Those of the log, where the position cannot be made durable or lies beyond its end, and of
    /// [`ControlFile::update`]; the old checkpoint counts then.
    pub fn checkpoint(&self, checkpoint: Lsn) -> Result<()> {
        self.log.wait_durable(checkpoint)?;
        let durable = self.log.durable();
        assert!(
            checkpoint <= durable,
            "the checkpoint {checkpoint} is durable in the log before the control file names it: {durable}"
        );
        if planted(Fault::RecycleFirst) {
            self.log.recycle(checkpoint)?;
        }
        self.control().update(|c| {
            c.checkpoint = c.checkpoint.max(checkpoint);
            c.durable = c.durable.max(durable);
        })?;
        // Segments are renamed and removed by their names, which the next owner's may be.
        self.dir.owner.check()?;
        self.log.recycle(if planted(Fault::RecycleAll) {
            durable
        } else {
            checkpoint
        })
    }

    /// Whether work for `need` may be begun.
    ///
    /// # Errors
    /// [`Error::Full`] if the disk is full, [`Error::LogFailed`] if the log has failed, [`Error::Poisoned`] if pages have.
    pub fn check_writable(&self, need: Need) -> Result<()> {
        self.pages.check()?;
        self.log.admit(need)
    }

    /// Verifies the checksums of the log from the checkpoint on and of all pages in storage. May run while the database
    /// is used. A damaged page is no damage where `is_given_back` says that its blocks were given back: a power cut may
    /// have left half of them.
    ///
    /// # Errors
    /// An I/O error of a whole file; damage is in the report.
    pub fn check(&self, is_given_back: &dyn Fn(PageId) -> bool) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        // A checkpoint meanwhile must not recycle the segments that this reads.
        let _hold = self.log.hold();
        let mut scan = self.log.scan(self.control().get().checkpoint);
        loop {
            match scan.next() {
                Ok(Some(group)) => {
                    report.groups += 1;
                    report.log_bytes += group.end().since(group.start());
                }
                Ok(None) => break,
                Err(e) => {
                    report.damage.push(e.to_string());
                    break;
                }
            }
        }
        report.pages = self.pages.check_all(&mut |id, e| {
            if !is_given_back(id) {
                report.damage.push(e.to_string());
            }
        })?;
        Ok(report)
    }
}

/// The findings of [`Storage::check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Redo groups verified.
    pub groups: u64,
    /// Bytes of the log verified.
    pub log_bytes: u64,
    /// Pages present and verified.
    pub pages: u64,
    /// A line for each thing that is damaged.
    pub damage: Vec<String>,
}

impl PageIo for Storage {
    fn durable_lsn(&self) -> Lsn {
        self.log.durable()
    }

    fn ensure_durable(&self, lsn: Lsn) -> Result<()> {
        self.log.wait_durable(lsn)
    }

    fn read_page(&self, id: PageId, page: &mut [u8]) -> Result<PageRead> {
        self.pages.read_page(id, page)
    }

    fn read_pages(&self, ids: &[PageId]) -> Vec<Result<(Box<[u8]>, PageRead)>> {
        self.pages.read_pages(ids)
    }

    fn write_pages(&self, pages: &[(PageId, &[u8])]) -> Result<()> {
        self.pages.write_pages(pages)
    }

    fn write_changes(&self, pages: &[PageWrite<'_>]) -> Result<()> {
        self.pages.write_changes(pages)
    }
}

#[cfg(test)]
mod tests;
