//! One data directory: control file, log and pages under one lock.
//!
//! Opening takes two steps, because whether a region may be believed is known only from the
//! control file, and the log needs the ring that lies in the region:
//!
//! 1. [`DataDir::open`] takes the directory for this process ([`crate::owner`]) and reads the control file;
//! 2. the caller opens or makes its region, compares incarnations, writes a new one
//!    ([`ControlFile::update`]);
//! 3. [`DataDir::storage`] opens log and pages with the ring in that region.
//!
//! A database on storage nodes ([`DataDir::on_nodes`]) goes the same way: it is taken, and its control record read, from
//! a majority of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead, PageWrite};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PageId, Result};

use crate::branch::Branch;
use crate::control::{self, Control, ControlFile, Origins};
use crate::files::{doing, lock, log_dir, spaces_dir};
use crate::follower::Follower;
use crate::log::{Log, LogOptions, LogReport, Need, RingPlace, Survive};
use crate::node_pages::NodePages;
use crate::nodes::{Changes, Moment, StorageNodes, Taken};
use crate::owner::{Claim, Ownership};
use crate::pages::{PageStore, PagesReport};

mod pages;
pub use pages::Pages;

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
    place: Place,
    control: Arc<ControlFile>,
    owner: Arc<Ownership>,
    follower: Option<Arc<Follower>>,
    /// The way to the storage nodes of which it may be a branch.
    parent: Option<Arc<dyn StorageNodes>>,
}

enum Place {
    Files {
        path: PathBuf,
        _lock: Arc<File>,
    },
    Nodes {
        nodes: Arc<dyn StorageNodes>,
        taken: Taken,
        scratch: PathBuf,
        lock: Arc<File>,
    },
}

/// Takes the directory of a server whose database is on storage nodes.
fn lock_scratch(scratch: &Path) -> Result<Arc<File>> {
    doing(fs::create_dir_all(scratch), "making", scratch)?;
    let control = scratch.join("control");
    if doing(fs::exists(&control), "looking for", &control)? {
        return Err(Error::Invalid(format!(
            "a database lies in {}: name another directory for a server on storage nodes, or leave the nodes out",
            scratch.display()
        )));
    }
    lock(scratch)
}

/// Says of a directory that the database of the servers there is on storage nodes, and where.
const NODES_FILE: &str = "storage-nodes";

fn note_nodes(scratch: &Path, name: &str) -> Result<()> {
    let path = scratch.join(NODES_FILE);
    let file = doing(fs::open(&path, OpenOptions::TRUNCATE), "making", &path)?;
    doing(file.write_at(name.as_bytes(), 0), "writing", &path)?;
    doing(file.sync_data(), "syncing", &path)?;
    doing(fs::sync_dir(scratch), "syncing", scratch)
}

/// A server that is started there without its nodes would have a new database, and people would miss all of theirs.
fn refuse_where_on_nodes(path: &Path) -> Result<()> {
    let noted = path.join(NODES_FILE);
    if !doing(fs::exists(&noted), "looking for", &noted)? {
        return Ok(());
    }
    let file = doing(fs::open(&noted, OpenOptions::READ), "opening", &noted)?;
    let mut name = [0; 1024];
    let length = doing(file.read_at(&mut name, 0), "reading", &noted)?;
    Err(Error::Invalid(format!(
        "the database of {} is on {}: name them with --storage, or remove {} for a database of the directory's own",
        path.display(),
        String::from_utf8_lossy(&name[..length]),
        noted.display()
    )))
}

impl DataDir {
    /// Takes a data directory for this process, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process of this host has it; [`Error::Revoked`] if a later holder of the same grant
    /// has; [`Error::Invalid`] if its database is on storage nodes; [`Error::Corrupt`] if its control file is gone or
    /// damaged.
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
        let lock = lock(path)?;
        refuse_where_on_nodes(path)?;
        // Before anything is read: whoever had the directory acknowledges nothing from here on.
        let owner = Arc::new(Ownership::claim(path, claim, &|| control::was_stopped(path))?);
        let control = ControlFile::open_or_begin(path, origins, Some(Arc::clone(&owner)))?;
        Ok(DataDir {
            place: Place::Files {
                path: path.to_owned(),
                _lock: lock,
            },
            control: Arc::new(control),
            owner,
            follower: None,
            parent: None,
        })
    }

    /// The same; a branch ([`crate::branch`]) shares pages with a snapshot on these storage nodes.
    #[must_use]
    pub fn with_parent(self, parent: Option<Arc<dyn StorageNodes>>) -> DataDir {
        DataDir { parent, ..self }
    }

    /// Takes the database on storage nodes for this process, as `claim` says, and makes it if there is none. Whoever had
    /// it is refused from then on. `scratch` is a directory of this process, for what need not last.
    ///
    /// # Errors
    /// [`Error::Busy`] if other starts are faster, or another process has `scratch`; [`Error::Invalid`] if a database
    /// lies there, or one is being put on the nodes ([`crate::load`]); [`Error::Revoked`] if a later holder of the same
    /// grant has it; [`Error::Timeout`] if no majority of the nodes answers; [`Error::Corrupt`] if their control record
    /// is damaged.
    pub fn on_nodes(nodes: Arc<dyn StorageNodes>, scratch: &Path, origins: Origins, claim: &Claim) -> Result<DataDir> {
        let lock = lock_scratch(scratch)?;
        let name = nodes.name();
        let dir = Self::taken(nodes, (scratch, lock), origins, claim)?;
        note_nodes(scratch, &name)?;
        Ok(dir)
    }

    /// Takes the database for the process that has been its `reader`, whose directory it has from then on. The reader
    /// goes on until it ends. Nothing is synced here: clients wait.
    ///
    /// # Errors
    /// Those of [`DataDir::on_nodes`].
    ///
    /// # Panics
    /// If `reader` is none.
    pub fn after_reading(reader: &Storage, nodes: Arc<dyn StorageNodes>, claim: &Claim) -> Result<DataDir> {
        match &reader.dir.place {
            Place::Nodes { scratch, lock, .. } if reader.follower().is_some() => {
                Self::taken(nodes, (scratch, Arc::clone(lock)), Origins::default(), claim)
            }
            _ => panic!("a reader takes the database that it has read"),
        }
    }

    fn taken(
        nodes: Arc<dyn StorageNodes>,
        (scratch, lock): (&Path, Arc<File>),
        origins: Origins,
        claim: &Claim,
    ) -> Result<DataDir> {
        let is_whole = |slot: Option<&[u8]>| control::refuse_filling(slot, &nodes.name());
        let is_clean = |slot: Option<&[u8]>| control::is_clean(slot, &nodes.name());
        let (owner, mut taken) = Ownership::claim_on(&nodes, claim, &is_whole, &is_clean)?;
        let owner = Arc::new(owner);
        let control = ControlFile::on_nodes(Arc::clone(&nodes), &mut taken, origins, Arc::clone(&owner))?;
        Ok(DataDir {
            place: Place::Nodes {
                nodes,
                taken,
                scratch: scratch.to_owned(),
                lock,
            },
            control: Arc::new(control),
            owner,
            follower: None,
            parent: None,
        })
    }

    /// Reads the database on storage nodes that another server has, or had: as of the moment at which the nodes are, and
    /// of later ones ([`Storage::follow`]). The server that has it keeps it. `name` is what people call this reader;
    /// `scratch` as of [`DataDir::on_nodes`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the nodes have no database, or one that is being put there; those of
    /// [`DataDir::on_nodes`].
    pub fn reading(nodes: Arc<dyn StorageNodes>, scratch: &Path, name: &str, claim: &Claim) -> Result<DataDir> {
        let lock = lock_scratch(scratch)?;
        let (follower, anew) = Follower::begin(nodes, name)?;
        let follower = Arc::new(follower);
        let nodes: Arc<dyn StorageNodes> = Arc::clone(&follower) as _;
        control::refuse_filling(Some(&anew.control), &nodes.name())?;
        let owner = Arc::new(Ownership::of_reader(&nodes, claim));
        let mut taken = Taken {
            control: Some(anew.control),
            log: anew.log,
            spaces: anew.spaces,
        };
        let control = ControlFile::on_nodes(Arc::clone(&nodes), &mut taken, Origins::default(), Arc::clone(&owner))?;
        note_nodes(scratch, &nodes.name())?;
        Ok(DataDir {
            place: Place::Nodes {
                nodes,
                taken,
                scratch: scratch.to_owned(),
                lock,
            },
            control: Arc::new(control),
            owner,
            follower: Some(follower),
            parent: None,
        })
    }

    /// As of which moment a database on storage nodes was taken, or a later one up to which this process has asked for
    /// nothing but that.
    pub fn taken_at(&self) -> Option<Moment> {
        match &self.place {
            Place::Files { .. } => None,
            Place::Nodes { nodes, taken, .. } => Some(Moment {
                entry: nodes.entry(),
                end: taken.log.end,
            }),
        }
    }

    /// Whether another server has the database, and this process reads it.
    pub fn is_reader(&self) -> bool {
        self.follower.is_some()
    }

    /// The directory of this process: the database's, or the one for what need not last.
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::Files { path, .. } => path,
            Place::Nodes { scratch, .. } => scratch,
        }
    }

    /// The control file.
    pub fn control(&self) -> &ControlFile {
        &self.control
    }

    /// A database with pages has a log: without, it is not a new one but a damaged one.
    fn require_log(path: &Path) -> Result<()> {
        let is_filled = |dir: &Path| -> Result<bool> {
            let exists = doing(fs::exists(dir), "looking for", dir)?;
            Ok(exists && !doing(fs::list(dir), "listing", dir)?.is_empty())
        };
        let (log, spaces) = (log_dir(path), spaces_dir(path));
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
    fn keep_names(path: &Path) -> Result<()> {
        let dirs = [path.to_owned(), log_dir(path), spaces_dir(path)];
        dirs.iter().try_for_each(|dir| doing(fs::sync_dir(dir), "syncing", dir))
    }

    /// Opens log and pages. Torn pages are good after this, and the whole log is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the durable log is damaged; others as of the parts.
    pub fn storage(self, options: StorageOptions) -> Result<(Arc<Storage>, StorageReport)> {
        let found = self.control.get();
        let (log, log_report) = self.log(options, &found)?;
        let control = Arc::clone(&self.control);
        log.set_note_durable(Box::new(move |to| control.update(|c| c.durable = c.durable.max(to))));
        let (pages, pages_report) = match &self.place {
            Place::Files { path, .. } => self.files(path, &log, &found)?,
            Place::Nodes { nodes, taken, .. } => {
                let pages = NodePages::new(Arc::clone(nodes), &taken.spaces, log.durable());
                (Pages::nodes(pages), PagesReport::default())
            }
        };
        if self.follower.is_some() {
            log.refuse_appends("this server is a reader: it changes nothing");
        }
        let report = StorageReport {
            log: log_report,
            pages: pages_report,
        };
        Ok((Arc::new(Storage { log, pages, dir: self }), report))
    }

    fn log(&self, options: StorageOptions, control: &Control) -> Result<(Log, LogReport)> {
        let (dir, nodes) = match &self.place {
            Place::Files { path, .. } => {
                Self::require_log(path)?;
                (log_dir(path), None)
            }
            Place::Nodes { nodes, taken, .. } => (PathBuf::new(), Some((Arc::clone(nodes), taken.log))),
        };
        Log::open(LogOptions {
            dir,
            database: control.database,
            segment_bytes: options.segment_bytes,
            ring: options.ring,
            believe_ring: options.believe_ring,
            survive: options.survive,
            checkpoint: control.checkpoint,
            known_durable: control.durable,
            origin: control.origin,
            background: options.background,
            nodes,
            owner: Some(Arc::clone(&self.owner)),
        })
    }

    fn files(&self, path: &Path, log: &Log, control: &Control) -> Result<(Pages, PagesReport)> {
        let (database, checkpoint) = (control.database, control.checkpoint);
        let mut redo = |wanted: &_| log.redo_of(checkpoint, wanted);
        let owner = Some(Arc::clone(&self.owner));
        // Its files are made first, where they are not there.
        let branch = Branch::open(path, self.parent.as_ref())?;
        let (pages, report) = PageStore::open(path, database, owner, &mut redo)?;
        Self::keep_names(path)?;
        self.owner.handed_over()?;
        let pages = match branch {
            Some(branch) => Pages::branch(pages, branch),
            None => Pages::files(pages),
        };
        Ok((pages, report))
    }
}

/// The storage of a database in one directory.
pub struct Storage {
    log: Log,
    pages: Pages,
    dir: DataDir,
}

impl Storage {
    /// The redo log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The control file.
    pub fn control(&self) -> &ControlFile {
        &self.dir.control
    }

    /// Frees the log before the checkpoint, so far as it is not held any more.
    ///
    /// # Errors
    /// Those of the owner's file; an I/O error: nothing is lost.
    pub fn recycle(&self) -> Result<()> {
        self.dir.owner.check()?;
        self.log.recycle(Lsn::ZERO)
    }

    /// That no other server has the database, as far as it can be asked.
    ///
    /// # Errors
    /// [`Error::Revoked`] if one has; those of asking.
    pub(crate) fn check_owner(&self) -> Result<()> {
        self.dir.owner.ask()
    }

    /// The storage nodes that have it, unless it lies in files.
    pub fn nodes(&self) -> Option<&Arc<dyn StorageNodes>> {
        match &self.dir.place {
            Place::Files { .. } => None,
            Place::Nodes { nodes, .. } => Some(nodes),
        }
    }

    /// What makes it a reader's, if it is one.
    pub fn follower(&self) -> Option<&Arc<Follower>> {
        self.dir.follower.as_ref()
    }

    /// Moves a reader on. `forget` drops what the frames have of the pages that changed; no page is read meanwhile.
    ///
    /// # Errors
    /// That of `forget`: the reader cannot go on then.
    ///
    /// # Panics
    /// If it is no reader's.
    pub fn follow(&self, changes: &Changes, forget: impl FnOnce() -> Result<()>) -> Result<()> {
        let follower = self.follower().expect("a reader follows");
        follower.begin_move(changes.to);
        forget()?;
        if let Some(pages) = self.pages.of_nodes() {
            if let Some(anew) = &changes.anew {
                pages.set_spaces(&anew.spaces);
            }
            for (space, is_there) in &changes.spaces {
                pages.note_space(*space, *is_there);
            }
            pages.note_pages(&changes.pages);
        }
        self.log.follow_to(changes.to.end);
        follower.end_move(changes);
        Ok(())
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
    /// is used. A log of which storage nodes have freed the checkpoint's part is theirs to verify. A damaged page is no
    /// damage where `is_given_back` says that its blocks were given back: a power cut may have left half of them.
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
                // Storage nodes keep what they need for their pages: they are not held.
                Ok(None) | Err(Error::Past(_)) => break,
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
        self.pages.write_pages(pages, &self.log)
    }

    fn write_changes(&self, pages: &[PageWrite<'_>]) -> Result<()> {
        self.pages.write_changes(pages, &self.log)
    }
}

#[cfg(test)]
mod nodes_tests;
#[cfg(test)]
mod tests;
