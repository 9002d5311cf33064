//! A branch: a database in files that begins as a snapshot of one on storage nodes, and has only the pages that it has
//! changed.
//!
//! ```text
//!  data directory of the branch                         storage nodes of the database that it comes from
//!    spaces/  pages that the branch has written           snapshot 7: pages as of a position
//!       └── a hole ── read ────────────────────────────▶     └── kept there until the branch is dropped
//!    log, control file: its own, from that position on
//! ```
//!
//! The file `branch`, sealed by a checksum at its end:
//!
//! ```text
//!  0 u64 magic   8 u32 version   12 u128 the branch's database   28 u128 the one that it comes from
//!  44 u64 snapshot   52 u64 end   name, cluster, secret file, nodes: text behind its length
//!  u32 made   u32 own   spaces that it shares: number, pages
//! ```
//!
//! Invariants:
//! - a page that the file of its space has is the branch's own; a hole is as the snapshot has it;
//! - a page is written whole, and the space for it taken, the first time that a process writes it;
//! - a space that was dropped is shared no more, durably, before its file is removed: the next one of its number has
//!   holes that are empty.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::rt::Mutex;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result};

use crate::codec::{Reader, Writer};
use crate::control::{self, Control, ControlFile};
use crate::files::{doing, lock, log_dir, prepare, space_name, spaces_dir};
use crate::node_pages::checked;
use crate::nodes::{PageAnswer, SpaceExtent, StorageNodes};
use crate::page_source::PageSource;
use crate::pages::{InUse, PageStore};
use crate::redo::page_lsn;

const MAGIC: u64 = u64::from_le_bytes(*b"CenBrnch");
const VERSION: u32 = 1;
/// The log begins at a multiple of this.
const BLOCK: u64 = 4096;

/// Where a branch comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The number of the branch's own database, by which the nodes know the branch.
    pub branch: u128,
    /// The database that it is a branch of.
    pub database: u128,
    /// The number of the snapshot that it begins with, and what people call that.
    pub snapshot: u64,
    /// See `snapshot`.
    pub name: String,
    /// The snapshot was made for the branch, and goes with it.
    pub is_own: bool,
    /// The snapshot is as of this position.
    pub end: Lsn,
    /// The addresses of the storage nodes that have it.
    pub nodes: Vec<String>,
    /// The name of their cluster.
    pub cluster: String,
    /// The file with their secret; empty: they ask for none.
    pub secret_file: String,
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Noted {
    parent: Parent,
    /// The files of the spaces were made.
    is_made: bool,
    /// The spaces that it shares, with the pages that they have there, at least.
    spaces: BTreeMap<u32, u32>,
}

/// Where the branch in a data directory comes from; `None`: it is none.
///
/// # Errors
/// [`Error::Corrupt`] if the file is damaged; an I/O error.
pub fn parent(data: &Path) -> Result<Option<Parent>> {
    Ok(Noted::read(data)?.map(|noted| noted.parent))
}

/// Makes a branch in the directory `data`, which must be empty or missing: of a snapshot whose control record is
/// `slot`, and that has these spaces. Nothing is copied.
///
/// # Errors
/// [`Error::Invalid`] if the directory is not empty, or the snapshot is of a database that was being put on the nodes;
/// [`Error::Corrupt`] if the control record is damaged; an I/O error.
pub fn make(data: &Path, parent: Parent, slot: &[u8], spaces: &[SpaceExtent]) -> Result<()> {
    let name = format!("the control record of snapshot \"{}\"", parent.name);
    control::refuse_filling(Some(slot), &name)?;
    let (_, control) = control::newest(&name, slot)?;
    let at = Lsn::from_raw(parent.end.raw().next_multiple_of(BLOCK));
    if at >= RecordAddr::END {
        return Err(Error::Full(format!("the log of a branch cannot begin at {at}")));
    }
    prepare(data)?;
    let database = parent.branch;
    let noted = Noted {
        parent,
        is_made: false,
        spaces: spaces.iter().map(|extent| (extent.space, extent.pages)).collect(),
    };
    noted.write(data)?;
    let control = Control {
        database,
        incarnation: 0,
        clean: false,
        is_filling: false,
        checkpoint: at,
        durable: at,
        origin: at,
        ..control
    };
    // The last: a directory without one is not finished.
    ControlFile::write_new(data, &control)
}

fn path_of(data: &Path) -> PathBuf {
    data.join("branch")
}

impl Noted {
    fn write(&self, data: &Path) -> Result<()> {
        let (parent, mut w) = (&self.parent, Writer::default());
        w.u64(MAGIC).u32(VERSION);
        w.bytes(&parent.branch.to_le_bytes())
            .bytes(&parent.database.to_le_bytes());
        w.u64(parent.snapshot).lsn(parent.end);
        for text in [
            &parent.name,
            &parent.cluster,
            &parent.secret_file,
            &parent.nodes.join(","),
        ] {
            w.counted(text.as_bytes());
        }
        w.u32(self.is_made.into())
            .u32(parent.is_own.into())
            .u32(self.spaces.len() as u32);
        for (space, pages) in &self.spaces {
            w.u32(*space).u32(*pages);
        }
        let sum = crc32c(&w.0);
        w.u32(sum);
        let path = path_of(data);
        doing(fs::replace(&path, &w.0), "writing", &path)
    }

    fn read(data: &Path) -> Result<Option<Noted>> {
        let path = path_of(data);
        if !doing(fs::exists(&path), "looking for", &path)? {
            return Ok(None);
        }
        let bytes = doing(fs::read(&path), "reading", &path)?;
        let (name, length) = (path.display().to_string(), bytes.len().saturating_sub(4));
        if get_le::<u32>(&bytes, length) != Some(crc32c(&bytes[..length])) || get_le::<u64>(&bytes, 0) != Some(MAGIC) {
            return Err(Error::corrupt(format!("{name} is damaged")));
        }
        let mut r = Reader::new(&bytes[8..length], &name);
        match r.u32()? {
            VERSION => Noted::fields(r).map(Some),
            version => Err(Error::Mismatch(format!(
                "{name} has version {version}, this program knows {VERSION}"
            ))),
        }
    }

    fn fields(mut r: Reader<'_>) -> Result<Noted> {
        let mut number = || Ok::<_, Error>(get_le::<u128>(r.bytes(16)?, 0).unwrap_or(0));
        let (branch, database) = (number()?, number()?);
        let (snapshot, end) = (r.u64()?, r.lsn()?);
        let mut text = || Ok::<_, Error>(String::from_utf8_lossy(r.counted()?).into_owned());
        let (name, cluster, secret_file, nodes) = (text()?, text()?, text()?, text()?);
        let (is_made, is_own) = (r.u32()? == 1, r.u32()? == 1);
        let spaces = r.many(|r| Ok((r.u32()?, r.u32()?)))?.into_iter().collect();
        r.end()?;
        let parent = Parent {
            branch,
            database,
            snapshot,
            name,
            is_own,
            end,
            nodes: nodes.split(',').map(str::to_owned).collect(),
            cluster,
            secret_file,
        };
        Ok(Noted {
            parent,
            is_made,
            spaces,
        })
    }
}

/// A branch in use.
pub(crate) struct Branch {
    data: PathBuf,
    noted: Mutex<Noted>,
    nodes: Arc<dyn StorageNodes>,
    /// Pages that this process has written, a bit for each page of a space that is shared.
    written: Mutex<BTreeMap<u32, Vec<u64>>>,
}

impl Branch {
    /// The branch in a data directory, if it is one, whose files are made where they are not.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is one and there is no way to its storage nodes; [`Error::Corrupt`] if a file is
    /// missing; [`Error::Lost`] if its snapshot is; those of [`parent`].
    pub fn open(data: &Path, nodes: Option<&Arc<dyn StorageNodes>>) -> Result<Option<Branch>> {
        let Some(mut noted) = Noted::read(data)? else {
            return Ok(None);
        };
        let nodes = nodes.ok_or_else(|| {
            Error::Invalid(format!(
                "{} has a branch, whose pages are on storage nodes at {}, and this command does not ask them",
                data.display(),
                noted.parent.nodes.join(",")
            ))
        })?;
        match noted.is_made {
            false => noted.make_files(data)?,
            true => noted.check_files(data)?,
        }
        let number = noted.parent.snapshot;
        let branch = Branch {
            data: data.to_owned(),
            noted: Mutex::new(noted),
            nodes: Arc::clone(nodes),
            written: Mutex::default(),
        };
        // Told at once, and not by the first statement that needs it. Nodes that do not answer may do so later.
        match nodes.snapshot_spaces(number) {
            Err(gone @ Error::Past(_)) => Err(branch.gone(gone)),
            _ => Ok(Some(branch)),
        }
    }

    /// Drops the space from those that are shared, durably.
    ///
    /// # Errors
    /// An I/O error: it is shared still.
    pub fn forget_space(&self, space: u32) -> Result<()> {
        let mut noted = self.noted.lock();
        if let Some(pages) = noted.spaces.remove(&space) {
            noted
                .write(&self.data)
                .inspect_err(|_| _ = noted.spaces.insert(space, pages))?;
        }
        self.written.lock().remove(&space);
        Ok(())
    }

    fn shares(&self, id: PageId) -> bool {
        self.noted
            .lock()
            .spaces
            .get(&id.space)
            .is_some_and(|pages| id.page < *pages)
    }

    // ---- reading ----

    /// Pages as the branch has them: where the store has a hole, as the snapshot has them.
    pub fn filled(&self, ids: &[PageId], mut found: Vec<PageAnswer>) -> Vec<PageAnswer> {
        assert_eq!(ids.len(), found.len(), "each page is answered");
        let is_hole = |answer: &PageAnswer| matches!(answer, Ok((_, PageRead::NeverWritten)));
        let holes: Vec<usize> = (0..ids.len())
            .filter(|n| is_hole(&found[*n]) && self.shares(ids[*n]))
            .collect();
        if holes.is_empty() {
            return found;
        }
        let wanted: Vec<PageId> = holes.iter().map(|n| ids[*n]).collect();
        for (n, answer) in holes.iter().zip(self.of_snapshot(&wanted)) {
            found[*n] = answer;
        }
        found
    }

    /// One page, where the store has read it.
    ///
    /// # Errors
    /// Those of the nodes.
    pub fn fill(&self, id: PageId, page: &mut [u8], read: PageRead) -> Result<PageRead> {
        if read != PageRead::NeverWritten || !self.shares(id) {
            return Ok(read);
        }
        let (bytes, read) = self.of_snapshot(&[id]).remove(0)?;
        page.copy_from_slice(&bytes);
        Ok(read)
    }

    /// Bytes of the network, before they are believed.
    fn of_snapshot(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        let (number, end) = {
            let noted = self.noted.lock();
            (noted.parent.snapshot, noted.parent.end)
        };
        let found = self.nodes.read_snapshot(number, ids);
        assert_eq!(found.len(), ids.len(), "each page is answered");
        let one = |(id, answer): (&PageId, PageAnswer)| match checked(*id, answer.map_err(|error| self.gone(error)))? {
            (page, PageRead::Present) if page_lsn(&page) > end => Err(Error::corrupt(format!(
                "page {id} of the snapshot as of {end} came as of {}",
                page_lsn(&page)
            ))),
            page => Ok(page),
        };
        ids.iter().zip(found).map(one).collect()
    }

    /// A snapshot that is not kept any more does not come back.
    fn gone(&self, error: Error) -> Error {
        let Error::Past(why) = error else { return error };
        let noted = self.noted.lock();
        Error::Lost(format!(
            "the snapshot \"{}\" that this branch shares its pages with is gone from {}: {why}",
            noted.parent.name,
            self.nodes.name()
        ))
    }

    // ---- writing ----

    /// The same writes, those whole of which the store may have a hole, for which space is taken.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing has changed then.
    pub fn whole<'p>(&self, store: &PageStore, pages: &[PageWrite<'p>]) -> Result<Vec<PageWrite<'p>>> {
        let whole = |write: &PageWrite<'p>| {
            let id = write.id;
            if !self.shares(id) || self.was_written(id) || !store.has_space(id.space) {
                return Ok(*write);
            }
            store.reserve_again(id.space, id.page..id.page + 1)?;
            Ok(PageWrite {
                changed: Sectors::WHOLE,
                ..*write
            })
        };
        pages.iter().map(whole).collect()
    }

    fn was_written(&self, id: PageId) -> bool {
        let written = self.written.lock();
        let word = written
            .get(&id.space)
            .and_then(|words| words.get(id.page as usize / 64));
        word.is_some_and(|word| word & (1 << (id.page % 64)) != 0)
    }

    /// They are written.
    pub fn note_written(&self, pages: &[PageWrite<'_>]) {
        for id in pages.iter().map(|write| write.id).filter(|id| self.shares(*id)) {
            let mut written = self.written.lock();
            let (words, at) = (written.entry(id.space).or_default(), id.page as usize / 64);
            words.resize(words.len().max(at + 1), 0);
            words[at] |= 1 << (id.page % 64);
        }
    }

    /// The pages of which blocks may be given back. A hole where the snapshot has a page would be that page, as it was
    /// before the branch changed it.
    pub fn not_shared(&self, space: u32, pages: Range<u32>) -> Range<u32> {
        let shared = self.noted.lock().spaces.get(&space).copied().unwrap_or(0);
        pages.start.max(shared).min(pages.end)..pages.end
    }
}

impl Noted {
    /// Files of holes, as long as those of the snapshot.
    fn make_files(&mut self, data: &Path) -> Result<()> {
        let dir = spaces_dir(data);
        for (space, pages) in &self.spaces {
            let path = dir.join(space_name(*space));
            let file = doing(fs::open(&path, OpenOptions::CREATE), "making", &path)?;
            let length = u64::from(*pages) * PAGE_SIZE as u64;
            doing(file.set_len(length), "extending", &path)?;
            doing(file.sync_data(), "syncing", &path)?;
        }
        doing(fs::sync_dir(&dir), "syncing", &dir)?;
        self.is_made = true;
        self.write(data)
    }

    /// A file that is gone would be taken for one of holes.
    fn check_files(&self, data: &Path) -> Result<()> {
        for space in self.spaces.keys() {
            let path = spaces_dir(data).join(space_name(*space));
            if !doing(fs::exists(&path), "looking for", &path)? {
                return Err(Error::corrupt(format!(
                    "{} is missing, which has what the branch changed: bring it back",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// The pages of a branch in use, to be copied: whole.
pub(crate) struct Branched<'a>(pub &'a PageStore, pub &'a Branch);

impl PageSource for Branched<'_> {
    fn spaces(&self) -> Vec<u32> {
        self.0.spaces()
    }

    fn has_space(&self, space: u32) -> bool {
        self.0.has_space(space)
    }

    fn page_count(&self, space: u32) -> Result<u32> {
        self.0.page_count(space)
    }

    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        self.1.filled(ids, InUse(self.0).read(ids))
    }
}

/// The directory of a branch, or of one that was not finished, which this process has; no server takes it meanwhile.
#[derive(Debug)]
pub struct Held {
    data: PathBuf,
    _lock: Arc<File>,
}

impl Held {
    /// Takes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no branch; [`Error::Busy`] if a server has it.
    pub fn take(data: &Path) -> Result<Held> {
        match Noted::read(data)? {
            None => Err(Error::Invalid(format!("{} has no branch", data.display()))),
            Some(_) => Ok(Held {
                data: data.to_owned(),
                _lock: lock(data)?,
            }),
        }
    }

    /// Notes that the storage nodes of the branch are elsewhere, or ask for another secret.
    ///
    /// # Errors
    /// Those of [`parent`].
    pub fn relocate(&self, nodes: Vec<String>, cluster: String, secret_file: String) -> Result<()> {
        let none = || Error::Invalid(format!("{} has no branch", self.data.display()));
        let mut noted = Noted::read(&self.data)?.ok_or_else(none)?;
        noted.parent = Parent {
            nodes,
            cluster,
            secret_file,
            ..noted.parent
        };
        noted.write(&self.data)
    }

    /// Removes all that the branch has, but the lock.
    ///
    /// # Errors
    /// An I/O error; the rest is removed by another call.
    pub fn remove(&self) -> Result<()> {
        let data = &self.data;
        let dirs = [log_dir(data), spaces_dir(data)];
        // The last: what is left until then is known to be a branch's.
        let files = ["control", "doublewrite", "owner", "branch"].map(|name| data.join(name));
        for path in dirs.iter().chain(&files) {
            if !doing(fs::exists(path), "looking for", path)? {
                continue;
            }
            let removed = match dirs.contains(path) {
                true => fs::remove_dir_all(path),
                false => fs::remove(path),
            };
            doing(removed, "removing", path)?;
            doing(fs::sync_dir(data), "syncing", data)?;
        }
        Ok(())
    }
}
