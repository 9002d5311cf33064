//! Versions of pages that snapshots need and the page files have no longer: on disk, each with the stretch of the log
//! in which the page was so.
//!
//! ```text
//!  page 3.7      lsn 100            lsn 250                lsn 900 ──▶ in its file
//!  ───────────────┼──────────────────┼──────────────────────┼──────────────▶ log
//!    version [0, 100): not there   [100, 250)             [250, 900)
//!                        ▲ snapshot as of 180                      ▲ snapshot as of 950: its file, and pending redo
//!
//!  versions/index    32 bytes a slot: 0 u64 page   8 u64 lsn   16 u64 until   24 u32 kind: 0 free, 1 page, 2 not there
//!                                     28 u32 crc32c of 0..28
//!  versions/pages    16 KiB a slot: the page, checksum filled in; a hole where there is none
//!  versions/head     0 u32 magic   4 u32 format   8 u64: snapshots up to this number are not here, since the node was
//!                    given a state without them   16 u32 crc32c; the files below are sealed by one at their end, too
//!  versions/snapshot-N              the spaces that snapshot N has, with their pages
//!  versions/retired-SPACE-POSITION  the file of a space that was dropped at this position
//! ```
//!
//! Invariants:
//! - a version is durable before the page's file has what follows it;
//! - versions of a page do not overlap, so that a lost one is missed, and no older one is taken for it;
//! - a slot is given again when its entry is free on disk.
//!
//! One thread at a time saves and frees (`Pages::merging`); others read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::error::IoContext;
use cenote_base::page_io::PageRead;
use cenote_base::rt::Mutex;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::nodes::PageAnswer;
use cenote_storage::redo::{page_lsn, verify_page};

use crate::codec::{Reader, Writer};
use crate::snapshots::Snapshots;

const MAGIC: u32 = u32::from_le_bytes(*b"CSvr");
const FORMAT: u32 = 1;
/// Bytes of an entry of the index.
const ENTRY: usize = 32;
/// Bytes by which the index grows, of free entries.
const INDEX_GROWS: u64 = 4096;
/// Entries that are read at a time.
const ENTRIES: usize = 1 << 15;
const PAGE: u32 = 1;
const NOT_THERE: u32 = 2;
/// The file that says which snapshots are not here.
/// Where versions are looked at first.
pub(super) const FIRST: (PageId, Lsn) = (PageId::from_raw(0), Lsn::ZERO);
/// Versions that are looked at at a time for those that no snapshot needs.
const TIDY: usize = 1 << 12;

/// See the module.
pub(super) struct Versions {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// There since the first version.
    files: Option<Files>,
    since: u64,
    versions: BTreeMap<(PageId, Lsn), Version>,
    slots: u32,
    free: Vec<u32>,
    retired: BTreeMap<(u32, Lsn), File>,
}

#[derive(Clone)]
struct Files {
    pages: File,
    index: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    until: Lsn,
    slot: u32,
    is_there: bool,
}

/// A snapshot that this node has.
#[derive(Debug)]
pub(super) struct Kept {
    pub end: Lsn,
    /// Its spaces, with their pages, at least.
    pub spaces: BTreeMap<u32, u32>,
}

/// A version that is to be kept: the page was so from `lsn` on, up to `until`, which is not its any more. One that was
/// not there has no LSN of its own: `lsn` is as of when that is wanted.
pub(super) struct Save {
    pub id: PageId,
    pub lsn: Lsn,
    pub until: Lsn,
    /// `None`: the page was not there.
    pub page: Option<Box<[u8]>>,
}

impl Versions {
    /// Those of a node's directory. With what is damaged, if something is: none of them is to be believed then.
    ///
    /// # Errors
    /// An I/O error.
    pub fn open(dir: &Path) -> Result<(Versions, Option<Error>)> {
        let versions = Versions {
            dir: dir.join("versions"),
            state: Mutex::default(),
        };
        match versions.read() {
            Ok(state) => *versions.state.lock() = state,
            Err(damage @ Error::Corrupt(_)) => return Ok((versions, Some(damage))),
            Err(error) => return Err(error),
        }
        Ok((versions, None))
    }

    fn read(&self) -> Result<State> {
        let mut state = State::default();
        if !fs::exists(&self.dir).doing(|| format!("looking for {}", self.dir.display()))? {
            return Ok(state);
        }
        state.since = self.read_head()?;
        for name in fs::list(&self.dir).doing(|| format!("listing {}", self.dir.display()))? {
            if let Some(key) = retired_of(&name) {
                state.retired.insert(key, self.open_file(&name, OpenOptions::READ)?);
            }
        }
        let index = self.dir.join("index");
        if fs::exists(&index).doing(|| format!("looking for {}", index.display()))? {
            let files = self.open_files()?;
            state.read_index(&files.index, &index)?;
            state.files = Some(files);
        }
        Ok(state)
    }

    fn read_head(&self) -> Result<u64> {
        let path = self.dir.join("head");
        let none = || Error::corrupt(format!("{} is missing", path.display()));
        let bytes = self.sealed("head")?.ok_or_else(none)?;
        let field = |at| get_le::<u32>(&bytes, at).unwrap_or(0);
        match (field(0), field(4)) {
            (MAGIC, FORMAT) => Ok(get_le::<u64>(&bytes, 8).unwrap_or(0)),
            (MAGIC, format) => Err(Error::Mismatch(format!(
                "{} has format version {format}, this program knows {FORMAT}",
                path.display()
            ))),
            _ => Err(Error::corrupt(format!("{} is none", path.display()))),
        }
    }

    fn open_files(&self) -> Result<Files> {
        Ok(Files {
            pages: self.open_file("pages", OpenOptions::CREATE)?,
            index: self.open_file("index", OpenOptions::CREATE)?,
        })
    }

    fn open_file(&self, name: &str, options: OpenOptions) -> Result<File> {
        let path = self.dir.join(name);
        fs::open(&path, options).doing(|| format!("opening {}", path.display()))
    }

    fn make_dir(&self) -> Result<()> {
        let doing = || format!("making {}", self.dir.display());
        if fs::exists(self.dir.join("head")).doing(doing)? {
            return Ok(());
        }
        fs::create_dir_all(&self.dir).doing(doing)?;
        self.write_head(0)?;
        fs::sync_dir(self.dir.parent().unwrap_or(&self.dir)).doing(doing)
    }

    fn write_head(&self, since: u64) -> Result<()> {
        self.seal("head", Writer::default().u32(MAGIC).u32(FORMAT).u64(since))
    }

    /// Forgets all versions: snapshots up to this number are not here.
    ///
    /// # Errors
    /// An I/O error.
    pub fn begin_after(&self, number: u64) -> Result<()> {
        let doing = || format!("emptying {}", self.dir.display());
        let mut state = self.state.lock();
        *state = State::default();
        state.since = number;
        if number == 0 && !fs::exists(&self.dir).doing(doing)? {
            return Ok(());
        }
        // First: what is left of a crash in between is of snapshots that are not here.
        fs::create_dir_all(&self.dir).doing(doing)?;
        self.write_head(number)?;
        fs::sync_dir(self.dir.parent().unwrap_or(&self.dir)).doing(doing)?;
        for name in fs::list(&self.dir).doing(doing)?.iter().filter(|name| *name != "head") {
            fs::remove(self.dir.join(name)).doing(doing)?;
        }
        fs::sync_dir(&self.dir).doing(doing)
    }

    /// Those of a state's snapshots that this node has: none, where something is damaged.
    ///
    /// # Errors
    /// An I/O error.
    pub fn kept(&self, damage: Option<Error>, snapshots: &Snapshots) -> Result<BTreeMap<u64, Arc<Kept>>> {
        let (mut kept, mut damage) = (BTreeMap::new(), damage);
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.number > self.since()) {
            match self.spaces_of(snapshot.number) {
                Ok(Some(spaces)) => {
                    let end = snapshot.end;
                    kept.insert(snapshot.number, Arc::new(Kept { end, spaces }));
                }
                Ok(None) => {}
                Err(error @ Error::Corrupt(_)) => damage = Some(error),
                Err(error) => return Err(error),
            }
        }
        self.forget_gone(snapshots)?;
        if let Some(damage) = damage {
            // Those that come behind this state again were here, too.
            let last = self.noted()?.max(snapshots.last());
            eprintln!("cenote storage: {damage}: this node has no snapshots up to number {last}");
            self.begin_after(last)?;
            kept.clear();
        }
        Ok(kept)
    }

    /// Snapshots up to this number are not here.
    pub fn since(&self) -> u64 {
        self.state.lock().since
    }

    // ---- the spaces of a snapshot ----

    /// The spaces that snapshot `number` has here, if they were noted.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; an I/O error.
    pub fn spaces_of(&self, number: u64) -> Result<Option<BTreeMap<u32, u32>>> {
        let Some(bytes) = self.sealed(&snapshot_name(number))? else {
            return Ok(None);
        };
        let mut r = Reader::new(&bytes, "the spaces of a snapshot");
        let spaces = r.each(|r| Ok((r.u32()?, r.u32()?)))?.into_iter().collect();
        r.end()?;
        Ok(Some(spaces))
    }

    /// The last snapshot whose spaces were noted and not forgotten.
    fn noted(&self) -> Result<u64> {
        let names = fs::list(&self.dir).doing(|| format!("listing {}", self.dir.display()))?;
        let numbers = names
            .iter()
            .filter_map(|name| name.strip_prefix("snapshot-")?.parse().ok());
        Ok(numbers.max().unwrap_or(0))
    }

    /// Notes them, durably.
    ///
    /// # Errors
    /// An I/O error.
    pub fn note_spaces(&self, number: u64, spaces: &BTreeMap<u32, u32>) -> Result<()> {
        self.make_dir()?;
        let spaces: Vec<(u32, u32)> = spaces.iter().map(|(space, pages)| (*space, *pages)).collect();
        let fields = Writer::default().each(&spaces, |w, (space, pages)| w.u32(*space).u32(*pages));
        self.seal(&snapshot_name(number), fields)
    }

    /// Forgets those of snapshots that were dropped.
    fn forget_gone(&self, snapshots: &Snapshots) -> Result<()> {
        let doing = || format!("listing {}", self.dir.display());
        if !fs::exists(&self.dir).doing(doing)? {
            return Ok(());
        }
        let there = fs::list(&self.dir).doing(doing)?;
        let numbers = there
            .iter()
            .filter_map(|name| name.strip_prefix("snapshot-")?.parse::<u64>().ok());
        // Later ones are made by entries that come again.
        let is_kept = |number: &u64| *number > snapshots.last() || snapshots.iter().any(|kept| kept.number == *number);
        numbers
            .filter(|number| !is_kept(number))
            .try_for_each(|number| self.forget_spaces(number))
    }

    /// Forgets them; nothing, where there are none.
    ///
    /// # Errors
    /// An I/O error.
    pub fn forget_spaces(&self, number: u64) -> Result<()> {
        self.remove(&snapshot_name(number))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        let doing = || format!("removing {}", path.display());
        match fs::exists(&path).doing(doing)? {
            true => fs::remove(&path).doing(doing),
            false => Ok(()),
        }
    }

    fn seal(&self, name: &str, fields: Writer) -> Result<()> {
        let mut bytes = fields.done();
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        let path = self.dir.join(name);
        fs::replace(&path, &bytes).doing(|| format!("writing {}", path.display()))
    }

    fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.dir.join(name);
        if !fs::exists(&path).doing(|| format!("looking for {}", path.display()))? {
            return Ok(None);
        }
        let mut bytes = fs::read(&path).doing(|| format!("reading {}", path.display()))?;
        let length = bytes.len().saturating_sub(4);
        if get_le::<u32>(&bytes, length) != Some(crc32c(&bytes[..length])) {
            return Err(Error::corrupt(format!("{} is damaged", path.display())));
        }
        bytes.truncate(length);
        Ok(Some(bytes))
    }

    // ---- versions ----

    /// Keeps versions, durably. One that is kept already stays as it is.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing has changed then; another I/O error, after which the node cannot go on.
    pub fn save(&self, saves: &[Save]) -> Result<()> {
        let mut placed = Vec::with_capacity(saves.len());
        let files = {
            let mut state = self.state.lock();
            for save in saves {
                assert!(save.lsn < save.until, "a version was so for a stretch of the log");
                if !state.versions.contains_key(&(save.id, save.lsn)) {
                    placed.push((state.take_slot(), save));
                }
            }
            if placed.is_empty() {
                return Ok(());
            }
            state.files.clone()
        };
        let saved = self.write(files, &placed);
        let is_undone = saved.is_ok() || self.undo(&placed);
        let mut state = self.state.lock();
        match saved {
            Ok(files) => {
                state.files = Some(files);
                placed.iter().for_each(|(slot, save)| state.enter(*slot, save));
                Ok(())
            }
            Err(error) => {
                // Else the next start finds out which of them are free.
                if is_undone {
                    state.free.extend(placed.iter().map(|(slot, _)| *slot));
                }
                Err(error)
            }
        }
    }

    /// Frees the entries on disk that were to be written; whether they are free.
    fn undo(&self, placed: &[(u32, &Save)]) -> bool {
        let undone = self.open_file("index", OpenOptions::WRITE).and_then(|index| {
            let length = index.len().doing(|| "measuring".into())?;
            let there = placed
                .iter()
                .map(|(slot, _)| place(*slot, ENTRY))
                .filter(|at| *at < length);
            for at in there {
                index.write_at(&[0; ENTRY], at).doing(|| "freeing".into())?;
            }
            index.sync_data().doing(|| "syncing".into())
        });
        undone.is_ok()
    }

    /// The pages first: an entry never names what is not there.
    fn write(&self, files: Option<Files>, placed: &[(u32, &Save)]) -> Result<Files> {
        let doing = || format!("writing versions of pages to {}", self.dir.display());
        let files = match files {
            Some(files) => files,
            None => {
                self.make_dir()?;
                let files = self.open_files()?;
                fs::sync_dir(&self.dir).doing(doing)?;
                files
            }
        };
        // A full disk leaves no entry behind whose slot is given again.
        let slots = placed.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0);
        let (there, wanted) = (
            files.index.len().doing(doing)?,
            place(slots, ENTRY).next_multiple_of(INDEX_GROWS),
        );
        if wanted > there {
            files.index.allocate(there, wanted - there).doing(doing)?;
        }
        for (slot, save) in placed {
            if let Some(page) = &save.page {
                files.pages.write_at(page, place(*slot, PAGE_SIZE)).doing(doing)?;
            }
        }
        files.pages.sync_data().doing(doing)?;
        for (slot, save) in placed {
            files.index.write_at(&entry(save), place(*slot, ENTRY)).doing(doing)?;
        }
        files.index.sync_data().doing(doing)?;
        Ok(files)
    }

    /// Whether a version of the page as it was at `at` is here.
    pub fn has(&self, id: PageId, at: Lsn) -> bool {
        let state = self.state.lock();
        let last = state.versions.range((id, Lsn::ZERO)..=(id, at)).next_back();
        last.is_some_and(|(_, version)| version.until > at)
    }

    /// The page as it was at `at`, if that version is here.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged; an I/O error.
    pub fn find(&self, id: PageId, at: Lsn) -> Option<PageAnswer> {
        let (version, lsn, files) = {
            let state = self.state.lock();
            let mut until = state.versions.range((id, Lsn::ZERO)..=(id, at));
            let ((_, lsn), version) = until.next_back().filter(|(_, version)| version.until > at)?;
            (*version, *lsn, state.files.clone()?)
        };
        let mut page = vec![0; PAGE_SIZE].into_boxed_slice();
        if !version.is_there {
            return Some(Ok((page, PageRead::NeverWritten)));
        }
        let place = place(version.slot, PAGE_SIZE);
        let read = files.pages.read_exact_at(&mut page, place);
        let read = read.doing(|| format!("reading a version of page {id} in {}", self.dir.display()));
        Some(
            read.and_then(|()| verify_page(&page, id))
                .and_then(|()| match page_lsn(&page) == lsn {
                    true => Ok((page, PageRead::Present)),
                    false => Err(Error::corrupt(format!(
                        "the version of page {id} as of {lsn} is another"
                    ))),
                }),
        )
    }

    /// Frees some of the versions that ended at `before` or earlier and that no snapshot, as of one of `ends`, needs:
    /// from `after` on, and where to go on; `None`: all were looked at.
    ///
    /// # Errors
    /// An I/O error.
    pub fn tidy(&self, after: (PageId, Lsn), before: Lsn, ends: &[Lsn]) -> Result<Option<(PageId, Lsn)>> {
        let (mut gone, mut last) = (Vec::new(), None);
        let Some(files) = self.state.lock().files.clone() else {
            return Ok(None);
        };
        for (n, (key, version)) in self.state.lock().versions.range(after..).enumerate() {
            if n == TIDY {
                last = Some(*key);
                break;
            }
            let is_needed = ends.iter().any(|end| (key.1..version.until).contains(end));
            if version.until <= before && !is_needed {
                gone.push((*key, version.slot));
            }
        }
        let doing = || format!("freeing versions of pages in {}", self.dir.display());
        for (_, slot) in &gone {
            files.index.write_at(&[0; ENTRY], place(*slot, ENTRY)).doing(doing)?;
            files
                .pages
                .punch(place(*slot, PAGE_SIZE), PAGE_SIZE as u64)
                .doing(doing)?;
        }
        if !gone.is_empty() {
            files.index.sync_data().doing(doing)?;
        }
        let mut state = self.state.lock();
        for (key, slot) in gone {
            assert!(state.versions.remove(&key).is_some(), "one thread at a time frees");
            state.free.push(slot);
        }
        Ok(last)
    }

    // ---- files of spaces that were dropped ----

    /// Where the file of a space goes that is dropped at `at`.
    ///
    /// # Errors
    /// An I/O error of the directory.
    pub fn retired_path(&self, space: u32, at: Lsn) -> Result<PathBuf> {
        self.make_dir()?;
        Ok(self.dir.join(retired_name(space, at)))
    }

    /// The file is there; nothing, where it is not.
    ///
    /// # Errors
    /// An I/O error.
    pub fn note_retired(&self, space: u32, at: Lsn) -> Result<()> {
        let name = retired_name(space, at);
        let path = self.dir.join(&name);
        if fs::exists(&path).doing(|| format!("looking for {}", path.display()))? {
            let file = self.open_file(&name, OpenOptions::READ)?;
            self.state.lock().retired.insert((space, at), file);
        }
        Ok(())
    }

    /// Whether a space was dropped behind `at`, and its file is kept.
    pub fn is_retired(&self, space: u32, at: Lsn) -> bool {
        let state = self.state.lock();
        state.retired.range((space, at)..=(space, Lsn::MAX)).next().is_some()
    }

    /// The page as it was at `at` in the file of its space, where that was dropped since; `None`: it was not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page is damaged, or is as of a later position; an I/O error.
    pub fn find_retired(&self, id: PageId, at: Lsn) -> Option<PageAnswer> {
        let file = {
            let state = self.state.lock();
            let mut later = state.retired.range((id.space, at)..=(id.space, Lsn::MAX));
            later.next()?.1.clone()
        };
        let mut page = vec![0; PAGE_SIZE].into_boxed_slice();
        let read = file.read_at(&mut page, place(id.page, PAGE_SIZE));
        let read = read.doing(|| {
            format!(
                "reading page {id} of a space that was dropped, in {}",
                self.dir.display()
            )
        });
        Some(read.and_then(|read| {
            page[read..].fill(0);
            if page.iter().all(|byte| *byte == 0) {
                return Ok((page, PageRead::NeverWritten));
            }
            verify_page(&page, id)?;
            match page_lsn(&page) <= at {
                true => Ok((page, PageRead::Present)),
                false => Err(not_kept(id, at)),
            }
        }))
    }

    /// Removes the files that no snapshot needs; `needs` says of a space and the position at which it was dropped, and
    /// of the one before at which a space of its number was, whether one does.
    ///
    /// # Errors
    /// An I/O error.
    pub fn tidy_retired(&self, needs: &dyn Fn(u32, (Lsn, Lsn)) -> bool) -> Result<()> {
        let there: Vec<(u32, Lsn)> = self.state.lock().retired.keys().copied().collect();
        for (n, (space, at)) in there.iter().enumerate() {
            let earlier = n.checked_sub(1).map(|n| there[n]).filter(|(other, _)| other == space);
            if !needs(*space, (earlier.map_or(Lsn::ZERO, |(_, at)| at), *at)) {
                self.remove(&retired_name(*space, *at))?;
                self.state.lock().retired.remove(&(*space, *at));
            }
        }
        Ok(())
    }

    /// Whether a file is kept of a space that was dropped at `at` or later.
    pub fn retired_from(&self, at: Lsn) -> bool {
        self.state.lock().retired.keys().any(|(_, dropped)| *dropped >= at)
    }

    /// Bytes that versions take, and files of spaces that were dropped.
    pub fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let files = state.files.iter().flat_map(|files| [&files.pages, &files.index]);
        let all = files.chain(state.retired.values());
        all.map(|file| file.allocated().unwrap_or(0)).sum()
    }
}

/// What is asked for is not here: another node may have it.
pub(super) fn not_kept(id: PageId, at: Lsn) -> Error {
    Error::corrupt(format!("page {id} as of {at} is not kept here"))
}

impl State {
    fn read_index(&mut self, index: &File, path: &Path) -> Result<()> {
        let doing = || format!("reading {}", path.display());
        let length = index.len().doing(doing)?;
        let mut bytes = vec![0; ENTRIES * ENTRY];
        for at in (0..length).step_by(bytes.len()) {
            let read = index.read_at(&mut bytes, at).doing(doing)?;
            for entry in bytes[..read].chunks_exact(ENTRY) {
                let slot = self.slots;
                self.slots += 1;
                let known = entry_of(entry);
                let known = known.ok_or_else(|| Error::corrupt(format!("{} is damaged", path.display())))?;
                match known {
                    Some((key, until, is_there)) if !self.versions.contains_key(&key) => {
                        let version = Version { until, slot, is_there };
                        self.versions.insert(key, version);
                    }
                    _ => self.free.push(slot),
                }
            }
        }
        Ok(())
    }

    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    fn enter(&mut self, slot: u32, save: &Save) {
        let version = Version {
            until: save.until,
            slot,
            is_there: save.page.is_some(),
        };
        let before = self.versions.insert((save.id, save.lsn), version);
        assert!(before.is_none(), "a version is entered once");
    }
}

fn place(number: u32, size: usize) -> u64 {
    u64::from(number) * size as u64
}

fn entry(save: &Save) -> Vec<u8> {
    let kind = if save.page.is_some() { PAGE } else { NOT_THERE };
    let fields = Writer::default().u64(save.id.raw()).lsn(save.lsn).lsn(save.until);
    let mut bytes = fields.u32(kind).done();
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    bytes
}

/// A version's page and LSN, up to where it was so, and whether the page was there.
type Entry = ((PageId, Lsn), Lsn, bool);

/// What an entry says: `Some(None)`: its slot is free; `None`: it is damaged.
fn entry_of(bytes: &[u8]) -> Option<Option<Entry>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    let (page, lsn, until) = (get_le(bytes, 0)?, get_le(bytes, 8)?, get_le(bytes, 16)?);
    let kind = get_le::<u32>(bytes, 24)?;
    let is_good = get_le::<u32>(bytes, 28)? == crc32c(&bytes[..28]) && matches!(kind, PAGE | NOT_THERE) && lsn < until;
    let key = (PageId::from_raw(page), Lsn::from_raw(lsn));
    is_good.then_some(Some((key, Lsn::from_raw(until), kind == PAGE)))
}

fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number}")
}

fn retired_name(space: u32, at: Lsn) -> String {
    format!("retired-{space:08x}-{:016x}", at.raw())
}

fn retired_of(name: &str) -> Option<(u32, Lsn)> {
    let (space, at) = name.strip_prefix("retired-")?.split_once('-')?;
    let at = u64::from_str_radix(at, 16).ok()?;
    Some((u32::from_str_radix(space, 16).ok()?, Lsn::from_raw(at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_testkit::faulty::MemFs;

    use cenote_storage::redo::{set_page_checksum, set_page_lsn};

    fn id(page: u32) -> PageId {
        PageId::new(7, page)
    }

    fn page(id: PageId, lsn: u64) -> Box<[u8]> {
        let mut page = vec![0; PAGE_SIZE];
        page[4..12].copy_from_slice(&id.to_bytes());
        set_page_lsn(&mut page, Lsn::from_raw(lsn));
        page[100] = lsn as u8;
        set_page_checksum(&mut page);
        page.into()
    }

    fn save(number: u32, lsn: u64, until: u64, is_there: bool) -> Save {
        Save {
            id: id(number),
            lsn: Lsn::from_raw(lsn),
            until: Lsn::from_raw(until),
            page: is_there.then(|| page(id(number), lsn)),
        }
    }

    fn open(dir: &Path) -> Versions {
        let (versions, damage) = Versions::open(dir).expect("opened");
        assert!(damage.is_none(), "{damage:?}");
        versions
    }

    /// What a version is: its LSN, zero where the page was not there; `None`: not kept.
    fn found(versions: &Versions, number: u32, at: u64) -> Option<u64> {
        let answer = versions.find(id(number), Lsn::from_raw(at))?;
        Some(match answer.expect("whole") {
            (_, PageRead::NeverWritten) => 0,
            (page, _) => page_lsn(&page).raw(),
        })
    }

    #[test]
    fn a_page_is_found_as_of_each_stretch_of_the_log_and_after_a_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let versions = open(dir.path());
        assert_eq!(found(&versions, 1, 100), None);
        let saves = [save(1, 0, 100, false), save(1, 100, 250, true), save(1, 400, 900, true)];
        versions.save(&saves).expect("saved");
        versions.save(&saves).expect("again");
        for versions in [versions, open(dir.path())] {
            let at = |lsn| found(&versions, 1, lsn);
            assert_eq!(
                (at(0), at(99), at(100), at(249)),
                (Some(0), Some(0), Some(100), Some(100))
            );
            assert_eq!(
                (at(250), at(399), at(400), at(899), at(900)),
                (None, None, Some(400), Some(400), None)
            );
            assert_eq!(found(&versions, 2, 100), None);
        }
    }

    #[test]
    fn what_no_snapshot_needs_makes_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let versions = open(dir.path());
        let saves: Vec<Save> = (1..=6000)
            .map(|number| save(number, 100, 200, number % 2 == 0))
            .collect();
        versions.save(&saves).expect("saved");
        let tidy = |before: u64, ends: &[u64]| {
            let ends: Vec<Lsn> = ends.iter().map(|end| Lsn::from_raw(*end)).collect();
            let (mut after, mut turns) = (Some((PageId::from_raw(0), Lsn::ZERO)), 0);
            while let Some(from) = after {
                after = versions.tidy(from, Lsn::from_raw(before), &ends).expect("freed");
                turns += 1;
            }
            turns
        };
        assert_eq!(tidy(200, &[150]), 2, "a snapshot needs all of them");
        assert_eq!(found(&versions, 2, 150), Some(100));
        tidy(199, &[]);
        assert_eq!(
            found(&versions, 2, 150),
            Some(100),
            "a snapshot may be made that needs them"
        );
        let full = versions.bytes();
        tidy(200, &[99, 200]);
        assert_eq!((found(&versions, 2, 150), found(&versions, 3, 150)), (None, None));
        assert!(versions.bytes() < full / 10, "{} of {full}", versions.bytes());
        versions.save(&[save(9, 300, 310, true)]).expect("saved");
        assert_eq!(versions.state.lock().slots, 6000, "a slot is used again");
        let versions = open(dir.path());
        assert_eq!((found(&versions, 2, 150), found(&versions, 9, 305)), (None, Some(300)));
    }

    #[test]
    fn a_full_disk_has_changed_nothing() {
        let mem = MemFs::new();
        fs::with(Arc::new(mem.clone()), || {
            let versions = open(Path::new("/node"));
            versions.save(&[save(1, 0, 100, false)]).expect("saved");
            mem.set_capacity(Some(mem.used()));
            let more: Vec<Save> = (2..400).map(|number| save(number, 0, 100, false)).collect();
            assert!(matches!(versions.save(&more), Err(Error::Full(_))));
        });
        let after = mem.kill_clone();
        fs::with(Arc::new(after), || {
            let versions = open(Path::new("/node"));
            assert_eq!((found(&versions, 1, 50), found(&versions, 2, 50)), (Some(0), None));
        });
    }

    #[test]
    fn a_crash_while_versions_are_forgotten_leaves_no_snapshot_without_them() {
        let mem = MemFs::new();
        fs::with(Arc::new(mem.clone()), || {
            let versions = open(Path::new("/node"));
            versions.save(&[save(1, 100, 200, true)]).expect("saved");
            versions.note_spaces(2, &BTreeMap::from([(7, 5)])).expect("noted");
        });
        for changes in 0..12 {
            let now = mem.kill_clone();
            now.halt_after(changes);
            let done = fs::with(Arc::new(now.clone()), || {
                open(Path::new("/node")).begin_after(4).is_ok()
            });
            for seed in 0..20 {
                fs::with(Arc::new(now.crash_clone_torn(seed)), || {
                    let versions = open(Path::new("/node"));
                    let is_whole = versions.spaces_of(2).expect("read").is_some();
                    assert!(!is_whole || found(&versions, 1, 150) == Some(100) || versions.since() == 4);
                    assert!(is_whole || versions.since() == 4, "{changes} {seed}");
                    assert!(!done || versions.since() == 4, "{changes} {seed}");
                });
            }
        }
    }

    #[test]
    fn a_damaged_index_is_told_and_a_damaged_page_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let versions = open(dir.path());
        versions
            .save(&[save(1, 100, 200, true), save(2, 100, 200, true)])
            .expect("saved");
        let path = dir.path().join("versions/pages");
        let mut bytes = fs::read(&path).expect("read");
        bytes[50] ^= 1;
        fs::replace(&path, &bytes).expect("written");
        let versions = open(dir.path());
        let answer = versions.find(id(1), Lsn::from_raw(150)).expect("it is there");
        assert!(matches!(answer, Err(Error::Corrupt(_))));
        assert_eq!(found(&versions, 2, 150), Some(100));
        let path = dir.path().join("versions/index");
        let index = fs::read(&path).expect("read");
        for bit in 0..ENTRY * 8 {
            let mut bytes = index.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::replace(&path, &bytes).expect("written");
            assert!(Versions::open(dir.path()).expect("opened").1.is_some(), "bit {bit}");
        }
        let (versions, _) = Versions::open(dir.path()).expect("opened");
        versions.begin_after(4).expect("emptied");
        let versions = open(dir.path());
        assert_eq!((versions.since(), found(&versions, 2, 150)), (4, None));
    }

    #[test]
    fn the_spaces_of_a_snapshot_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let versions = open(dir.path());
        let spaces = BTreeMap::from([(3, 40), (9, 0)]);
        assert_eq!(versions.spaces_of(2).expect("none"), None);
        versions.note_spaces(2, &spaces).expect("noted");
        assert_eq!(open(dir.path()).spaces_of(2).expect("there"), Some(spaces));
        versions.forget_spaces(2).expect("forgotten");
        versions.forget_spaces(2).expect("again");
        assert_eq!(versions.spaces_of(2).expect("none"), None);
    }

    #[test]
    fn a_dropped_space_is_found_by_the_position_at_which_it_was_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let versions = open(dir.path());
        for (at, lsn) in [(500, 100), (900, 600)] {
            let path = versions.retired_path(7, Lsn::from_raw(at)).expect("a path");
            let bytes = [vec![0; PAGE_SIZE], page(id(1), lsn).to_vec()].concat();
            fs::replace(&path, &bytes).expect("written");
            versions.note_retired(7, Lsn::from_raw(at)).expect("noted");
        }
        versions.note_retired(8, Lsn::from_raw(10)).expect("there is none");
        for versions in [versions, open(dir.path())] {
            let at = |number, lsn| versions.find_retired(id(number), Lsn::from_raw(lsn));
            let lsn = |answer: Option<PageAnswer>| page_lsn(&answer.expect("there").expect("whole").0).raw();
            assert_eq!((lsn(at(1, 100)), lsn(at(1, 500)), lsn(at(1, 700))), (100, 100, 600));
            assert!(matches!(at(1, 550), Some(Err(Error::Corrupt(_)))), "it is as of later");
            assert!(at(1, 901).is_none());
            assert!(matches!(at(5, 450), Some(Ok((_, PageRead::NeverWritten)))));
            versions
                .tidy_retired(&|_, (from, to)| from <= Lsn::from_raw(200) && Lsn::from_raw(200) <= to)
                .expect("freed");
            assert!(versions.find_retired(id(1), Lsn::from_raw(700)).is_none());
            assert_eq!(lsn(versions.find_retired(id(1), Lsn::from_raw(200))), 100);
        }
    }
}
