//! The control file: the few facts that are needed before anything else can be read.
//!
//! Two slots, each in a block of its own. A change writes the older slot and syncs it, so that
//! one of them is always whole; the one with the higher sequence number counts.
//!
//! ```text
//! slot   0 u64 magic       8 u32 format version  12 u32 flags: 1 clean, 2 being filled
//!       16 u128 database  32 u128 incarnation    48 u64 sequence
//!       56 u64 checkpoint LSN                    64 u64 durable LSN, at least
//!       72 u64 TxId ceiling                      80 u64 zero, reserved
//!       88 64 x u64 words of the engine         600 u64 origin LSN
//!      608 u32 crc32c of 0..608
//! ```
//!
//! | field | writer | reader |
//! |---|---|---|
//! | database | creation | region, ring, segments, spaces: is this mine? |
//! | incarnation | each start, before serving | is this region of the last process? |
//! | clean | shutdown sets it, start clears it | the recovery report |
//! | being filled | what puts a database on storage nodes, until all of it is there | a start there, which is refused |
//! | checkpoint | the buffer's checkpoint | log recovery begins there |
//! | durable | every change | log recovery: damage or torn end? |
//! | TxId ceiling | the engine, in blocks | ids are never given twice |
//! | origin | creation | the log: it begins there, and is a new one while it has not been beyond |
//!
//! Versions: 1 (16 bits of stream and 48 of position in the addresses of redo records) is refused. 2 and 3 have the
//! same control file as 4; what rows and undo records may say of large values is new in 3, and of rows with another
//! primary key in 4, statistics in the catalog in 5, undo records of several inserts in 6, and the file `owner` and names
//! of log segments with a generation in 7. Each is a part of the next. So 2 to 6 are opened, and become 7 with the first
//! change of the control file: each start makes one before anything else is written but the log. 7 is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::error::IoContext;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, OpenOptions, Replacement};
use cenote_base::rt::{self, Mutex};
use cenote_base::{Error, Lsn, RecordAddr, Result, crc};

use crate::files::{log_dir, spaces_dir};
use crate::nodes::{LogEnd, StorageNodes, Taken};
use crate::owner::Ownership;

/// Words that the engine may use as it likes.
pub const ENGINE_WORDS: usize = 64;
/// The format of a data directory that this program writes.
pub const FORMAT_VERSION: u32 = 7;
/// The oldest one that it reads, and makes a later one of.
const FORMAT_READ: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"CenCtrl\0");
const SLOT: u64 = 4096;
const ENGINE: usize = 88;
const ORIGIN: usize = ENGINE + 8 * ENGINE_WORDS;
const SUM: usize = ORIGIN + 8;
/// Where the sum of a slot of version 1 lies.
const SUM_OF_1: usize = ORIGIN;
const CLEAN: u32 = 1;
const FILLING: u32 = 2;

const _: () = assert!(
    SUM + 4 <= SLOT as usize,
    "a slot is one block, which a drive writes whole or not"
);

/// The contents of the control file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The database's id, for good.
    pub database: u128,
    /// Random, new with each start.
    pub incarnation: u128,
    /// Whether the last process shut down: all pages written, nothing to recover.
    pub clean: bool,
    /// It is being put on storage nodes, and not all of it is there.
    pub is_filling: bool,
    /// Redo before this is in the pages.
    pub checkpoint: Lsn,
    /// The log reaches this, durably, at least.
    pub durable: Lsn,
    /// Transaction numbers ([`cenote_base::TxId::seq`]) from here on have not been given out.
    pub tx_ceiling: u64,
    /// The engine's own.
    pub engine: [u64; ENGINE_WORDS],
    /// The log's first position.
    pub origin: Lsn,
}

/// Where the numbers of a new database begin. Tests begin near the ends of the words that hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origins {
    /// First position of the log: a multiple of 4096, above zero and below [`RecordAddr::END`].
    pub log: Lsn,
    /// First number of a transaction, above zero.
    pub tx: u64,
}

impl Default for Origins {
    fn default() -> Origins {
        Origins {
            log: crate::log::FIRST_LSN,
            tx: 1,
        }
    }
}

impl Origins {
    fn check(&self) -> Result<()> {
        let is_place = self.log > Lsn::ZERO && self.log.raw().is_multiple_of(SLOT) && self.log < RecordAddr::END;
        if !is_place || self.tx == 0 {
            return Err(Error::Invalid(format!("a database cannot begin at {self:?}")));
        }
        Ok(())
    }
}

impl Control {
    fn new(database: u128, origins: Origins) -> Control {
        Control {
            database,
            incarnation: 0,
            clean: true,
            is_filling: false,
            checkpoint: origins.log,
            durable: origins.log,
            tx_ceiling: origins.tx,
            engine: [0; ENGINE_WORDS],
            origin: origins.log,
        }
    }

    /// The record of a copy of this database that is being put on nodes, where the log begins at `origin`.
    pub(crate) fn being_filled(&self, origin: Lsn) -> Control {
        Control {
            incarnation: 0,
            clean: true,
            is_filling: true,
            checkpoint: origin,
            durable: origin,
            origin,
            ..*self
        }
    }

    pub(crate) fn encode(&self, sequence: u64) -> [u8; SLOT as usize] {
        let mut slot = [0; SLOT as usize];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &FORMAT_VERSION.to_le_bytes());
        let flags = if self.clean { CLEAN } else { 0 } | if self.is_filling { FILLING } else { 0 };
        put(12, &flags.to_le_bytes());
        put(16, &self.database.to_le_bytes());
        put(32, &self.incarnation.to_le_bytes());
        for (i, word) in self.words(sequence).iter().enumerate() {
            put(48 + 8 * i, &word.to_le_bytes());
        }
        for (i, word) in self.engine.iter().enumerate() {
            put(ENGINE + 8 * i, &word.to_le_bytes());
        }
        slot[ORIGIN..SUM].copy_from_slice(&self.origin.raw().to_le_bytes());
        let sum = crc::crc32c(&slot[..SUM]);
        slot[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    fn words(&self, sequence: u64) -> [u64; 4] {
        [sequence, self.checkpoint.raw(), self.durable.raw(), self.tx_ceiling]
    }

    fn decode(slot: &[u8]) -> Option<(u64, Control)> {
        if get_le::<u64>(slot, 0)? != MAGIC || get_le::<u32>(slot, SUM)? != crc::crc32c(&slot[..SUM]) {
            return None;
        }
        let mut control = Control::new(get_le::<u128>(slot, 16)?, Origins::default());
        control.incarnation = get_le::<u128>(slot, 32)?;
        let flags = get_le::<u32>(slot, 12)?;
        (control.clean, control.is_filling) = (flags & CLEAN != 0, flags & FILLING != 0);
        control.checkpoint = Lsn::from_raw(get_le::<u64>(slot, 56)?);
        control.durable = Lsn::from_raw(get_le::<u64>(slot, 64)?);
        control.tx_ceiling = get_le::<u64>(slot, 72)?;
        for (i, word) in control.engine.iter_mut().enumerate() {
            *word = get_le::<u64>(slot, ENGINE + 8 * i)?;
        }
        control.origin = Lsn::from_raw(get_le::<u64>(slot, ORIGIN)?);
        Some((get_le::<u64>(slot, 48)?, control))
    }
}

/// Where the slots lie.
enum Place {
    /// In a file of the data directory, two of them.
    File { path: PathBuf, file: File },
    /// On storage nodes, which keep one.
    Nodes(Arc<dyn StorageNodes>),
}

impl Place {
    fn name(&self) -> String {
        match self {
            Place::File { path, .. } => path.display().to_string(),
            Place::Nodes(nodes) => format!("the control record on {}", nodes.name()),
        }
    }

    fn write(&self, slot: &[u8], sequence: u64) -> Result<()> {
        match self {
            Place::File { path, file } => {
                let written = file.write_at(slot, (sequence + 1) % 2 * SLOT);
                let sync = || match planted(Fault::ControlSync) {
                    true => Ok(()),
                    false => file.sync_data(),
                };
                written
                    .and_then(|()| sync())
                    .doing(|| format!("writing {}", path.display()))
            }
            Place::Nodes(nodes) => nodes.set_control(slot),
        }
    }
}

/// The control file, open.
pub struct ControlFile {
    place: Place,
    state: Mutex<Slots>,
    owner: Option<Arc<Ownership>>,
}

/// The newest slot, and whether a write of one failed.
struct Slots {
    sequence: u64,
    control: Control,
    failed: bool,
}

impl ControlFile {
    /// Opens the control file of a data directory, or makes it, with a new database id.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither slot is whole, [`Error::Mismatch`] for another format version.
    pub fn open(data: &Path) -> Result<ControlFile> {
        Self::open_or_begin(data, Origins::default(), None)
    }

    /// As [`ControlFile::open`], for the owner of the data directory; one that is made says that the database begins at
    /// `origins`.
    pub(crate) fn open_or_begin(data: &Path, origins: Origins, owner: Option<Arc<Ownership>>) -> Result<ControlFile> {
        let path = data.join("control");
        if !fs::exists(&path).doing(|| format!("looking for {}", path.display()))? {
            Self::create(data, &path, origins, owner.as_deref())?;
        }
        let mut file = fs::open(&path, OpenOptions::WRITE).doing(|| format!("opening {}", path.display()))?;
        let (sequence, control) = newest(&path.display().to_string(), &slots_of(&path, &file)?)?;
        if let Some(owner) = owner.as_ref().filter(|owner| owner.has_moved()) {
            file = replace(&path, sequence, &control, owner)?;
        }
        Ok(Self::at(Place::File { path, file }, sequence, control, owner))
    }

    fn at(place: Place, sequence: u64, control: Control, owner: Option<Arc<Ownership>>) -> ControlFile {
        ControlFile {
            place,
            state: Mutex::new(Slots {
                sequence,
                control,
                failed: false,
            }),
            owner,
        }
    }

    /// The control record of a database that was taken on storage nodes, which is made there if it is a new one. The
    /// nodes have applied all redo: recovery begins at the end of their log.
    ///
    /// # Errors
    /// Those of [`ControlFile::open`]; those of the nodes.
    pub(crate) fn on_nodes(
        nodes: Arc<dyn StorageNodes>,
        taken: &mut Taken,
        origins: Origins,
        owner: Arc<Ownership>,
    ) -> Result<ControlFile> {
        let name = Place::Nodes(Arc::clone(&nodes)).name();
        let (sequence, mut control) = match &taken.control {
            Some(slot) => {
                refuse_filling(Some(slot), &nodes.name())?;
                newest(&name, slot)?
            }
            None => {
                origins.check()?;
                let control = Control::new(rt::random_u128(), origins);
                nodes.begin(&control.encode(1), origins.log)?;
                taken.log = LogEnd::at_origin(origins.log);
                (1, control)
            }
        };
        if control.durable > taken.log.end {
            return Err(Error::corrupt(format!(
                "the log on {} ends at {}, and was durable up to {}",
                nodes.name(),
                taken.log.end,
                control.durable
            )));
        }
        (control.checkpoint, control.durable) = (taken.log.end, taken.log.end);
        Ok(Self::at(Place::Nodes(nodes), sequence, control, Some(owner)))
    }

    fn create(data: &Path, path: &Path, origins: Origins, owner: Option<&Ownership>) -> Result<()> {
        origins.check()?;
        let branch = data.join("branch");
        if fs::exists(&branch).doing(|| format!("looking for {}", branch.display()))? {
            return Err(Error::Invalid(format!(
                "the branch in {} was not finished, or is being dropped: drop it, and make another",
                data.display()
            )));
        }
        for dir in [log_dir(data), spaces_dir(data)] {
            let exists = fs::exists(&dir).doing(|| format!("looking for {}", dir.display()))?;
            if exists
                && !fs::list(&dir)
                    .doing(|| format!("listing {}", dir.display()))?
                    .is_empty()
            {
                return Err(Error::corrupt(format!(
                    "{} is missing though there are files in {}: an unfinished or damaged copy? \
                     Restore the data directory from a backup",
                    path.display(),
                    dir.display()
                )));
            }
        }
        let control = Control::new(rt::random_u128(), origins);
        publish(path, &two_slots(&control, 1), owner)
    }

    /// Makes the control file of a copy, durably.
    pub(crate) fn write_new(data: &Path, control: &Control) -> Result<()> {
        publish(&data.join("control"), &two_slots(control, 1), None)
    }

    /// Its contents now.
    pub fn get(&self) -> Control {
        self.state.lock().control.clone()
    }

    /// One slot with its contents now.
    pub(crate) fn record(&self) -> Vec<u8> {
        let state = self.state.lock();
        state.control.encode(state.sequence).to_vec()
    }

    /// Changes it, durably. Concurrent changes are made one after another.
    ///
    /// # Errors
    /// An I/O error; [`Error::Poisoned`] after an earlier one, since then it is not known which
    /// copy would be found; [`Error::Revoked`] if the data directory is another's.
    pub fn update(&self, change: impl FnOnce(&mut Control)) -> Result<()> {
        let mut state = self.state.lock();
        if state.failed {
            return Err(Error::Poisoned(format!(
                "{} could not be written earlier: see to the disk, then restart",
                self.place.name()
            )));
        }
        if let Some(owner) = &self.owner {
            owner.check()?;
        }
        let mut next = state.control.clone();
        change(&mut next);
        assert!(
            (next.database, next.origin) == (state.control.database, state.control.origin),
            "id and origin of a database stay as they were made"
        );
        assert!(
            next.checkpoint >= state.control.checkpoint && next.tx_ceiling >= state.control.tx_ceiling,
            "checkpoint and ceiling only grow: from {:?} to {next:?}",
            state.control
        );
        let sequence = state.sequence + 1;
        let slot = next.encode(sequence);
        assert!(
            Control::decode(&slot).is_some_and(|read| read == (sequence, next.clone())),
            "a slot reads back as it is written"
        );
        let written = self.place.write(&slot, sequence);
        // Nodes that do not answer have lost nothing: the next change says all of it again.
        state.failed = written.as_ref().is_err_and(|error| !matches!(error, Error::Timeout(_)));
        if let (Err(Error::Revoked(reason)), Some(owner)) = (&written, &self.owner) {
            owner.was_refused(reason);
        }
        written?;
        (state.sequence, state.control) = (sequence, next);
        Ok(())
    }
}

/// Another file with the same contents, in this program's version. A former owner may have the one before open, and write
/// to it yet.
fn replace(path: &Path, sequence: u64, control: &Control, owner: &Ownership) -> Result<File> {
    publish(path, &two_slots(control, sequence), Some(owner))?;
    fs::open(path, OpenOptions::WRITE).doing(|| format!("opening {}", path.display()))
}

/// Whether the last process that had the database shut it down, or there is none yet.
pub fn was_stopped(data: &Path) -> Result<bool> {
    let path = data.join("control");
    if !fs::exists(&path).doing(|| format!("looking for {}", path.display()))? {
        return Ok(true);
    }
    let file = fs::open(&path, OpenOptions::READ).doing(|| format!("opening {}", path.display()))?;
    is_clean(Some(&slots_of(&path, &file)?), &path.display().to_string())
}

/// Whether `slots`, of a control file or record that is called `name`, say that the last process that had the database
/// shut it down; without any there is no database.
///
/// # Errors
/// Those of [`ControlFile::open`].
pub fn is_clean(slots: Option<&[u8]>, name: &str) -> Result<bool> {
    slots.map_or(Ok(true), |slots| Ok(newest(name, slots)?.1.clean))
}

/// A control record on the nodes called `name` that says that its database is being filled ([`crate::load`]), with its
/// sequence number; `None` for any other.
///
/// # Errors
/// Those of [`ControlFile::open`].
pub(crate) fn filling(slots: Option<&[u8]>, name: &str) -> Result<Option<(u64, Control)>> {
    let Some(slots) = slots else { return Ok(None) };
    let (sequence, control) = newest(name, slots)?;
    Ok(control.is_filling.then_some((sequence, control)))
}

/// The number of the database whose control record this is; zero: it is none.
pub fn database_of(slot: &[u8]) -> u128 {
    newest("of the storage nodes", slot).map_or(0, |(_, control)| control.database)
}

/// Refuses a database of which not all is there.
///
/// # Errors
/// [`Error::Invalid`]; those of [`ControlFile::open`].
pub fn refuse_filling(slots: Option<&[u8]>, name: &str) -> Result<()> {
    match filling(slots, name)? {
        None => Ok(()),
        Some(_) => Err(Error::Invalid(format!(
            "a database is being loaded onto {name}, or that was not finished: wait for it, or load it again with \
             `cenote storage load`"
        ))),
    }
}

fn slots_of(path: &Path, file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 2 * SLOT as usize];
    file.read_at(&mut bytes, 0)
        .doing(|| format!("reading {}", path.display()))?;
    Ok(bytes)
}

/// The slot that counts, with its sequence number.
pub(crate) fn newest(name: &str, slots: &[u8]) -> Result<(u64, Control)> {
    let slots = slots.chunks_exact(SLOT as usize);
    check_versions(name, slots.clone())?;
    let newest = slots.filter_map(Control::decode).max_by_key(|(sequence, _)| *sequence);
    newest.ok_or_else(|| {
        Error::corrupt(format!(
            "both copies in the control file {name} are damaged; restore the data directory from a backup"
        ))
    })
}

/// A file with one slot written.
fn two_slots(control: &Control, sequence: u64) -> Vec<u8> {
    let mut bytes = vec![0; 2 * SLOT as usize];
    let at = ((sequence + 1) % 2 * SLOT) as usize;
    bytes[at..at + SLOT as usize].copy_from_slice(&control.encode(sequence));
    bytes
}

fn publish(path: &Path, bytes: &[u8], owner: Option<&Ownership>) -> Result<()> {
    let doing = || format!("replacing {}", path.display());
    let next = Replacement::write(path, bytes).doing(doing)?;
    // An owner that takes the directory after this look removes `next`, or finds what it became.
    owner.map_or(Ok(()), Ownership::check)?;
    next.publish().doing(doing)
}

fn check_versions<'a>(name: &str, slots: impl Iterator<Item = &'a [u8]>) -> Result<()> {
    for slot in slots {
        let version = get_le::<u32>(slot, 8).unwrap_or(0);
        let whole = |sum: usize| get_le::<u32>(slot, sum) == Some(crc::crc32c(&slot[..sum]));
        let known = get_le::<u64>(slot, 0) == Some(MAGIC) && !(FORMAT_READ..=FORMAT_VERSION).contains(&version);
        if known && (whole(SUM) || version == 1 && whole(SUM_OF_1)) {
            return Err(Error::Mismatch(format!(
                "{name} has format version {version}, this program knows {FORMAT_VERSION}: use the program that wrote \
                 it{}",
                match version {
                    1 => " (Cenote at commit a9e4830 or before), dump the database there and load it here",
                    _ => "",
                }
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flip(path: &Path, at: u64) {
        let file = fs::open(path, OpenOptions::WRITE).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("reads");
        file.write_at(&[byte[0] ^ 1], at).expect("writes");
    }

    #[test]
    fn the_newer_whole_slot_counts_and_two_damaged_ones_are_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = ControlFile::open(dir.path()).expect("made");
        let database = file.get().database;
        for n in 1..=5 {
            file.update(|c| c.tx_ceiling = n).expect("written");
        }
        drop(file);
        let path = dir.path().join("control");
        let again = ControlFile::open(dir.path()).expect("opens").get();
        assert_eq!((again.database, again.tx_ceiling), (database, 5));
        flip(&path, SLOT + 90); // sequence 6 lies in the second slot
        assert_eq!(ControlFile::open(dir.path()).expect("opens").get().tx_ceiling, 4);
        flip(&path, 90);
        let error = ControlFile::open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains("both copies"), "{error}");
    }

    /// Commit timestamps come from positions of the log, and need no ceiling: the word that was kept for one was read
    /// and never written. Its bytes stay where they were, so that all behind them does.
    #[test]
    fn the_bytes_of_a_slot_stay_where_they_were() {
        let mut control = Control::new(7, Origins::default());
        (control.tx_ceiling, control.engine[0], control.engine[ENGINE_WORDS - 1]) = (9, 11, 13);
        let slot = control.encode(5);
        let word = |at: usize| get_le::<u64>(&slot, at).expect("inside");
        let places = [48, 56, 64, 72, 80, 88, 592, 600];
        let first = crate::log::FIRST_LSN.raw();
        assert_eq!(places.map(word), [5, first, first, 9, 0, 11, 13, first]);
    }

    #[test]
    fn a_directory_of_version_1_names_the_program_that_reads_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut slot = Control::new(7, Origins::default()).encode(1);
        slot[8..12].copy_from_slice(&1u32.to_le_bytes());
        let sum = crc::crc32c(&slot[..SUM_OF_1]);
        slot[SUM_OF_1..SUM_OF_1 + 4].copy_from_slice(&sum.to_le_bytes());
        fs::replace(dir.path().join("control"), &[slot, slot].concat()).expect("written");
        let error = ControlFile::open(dir.path()).err().expect("refused").to_string();
        assert!(
            error.contains("format version 1") && error.contains("a9e4830"),
            "{error}"
        );
    }

    /// A directory of a version from 2 on is opened. From the first change on it is one of version 5, which the programs
    /// that know only those refuse since they look at both slots; a later version is refused.
    #[test]
    fn a_directory_of_a_former_version_becomes_one_of_this() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("control");
        let put = |version: u32| {
            let mut slot = Control::new(7, Origins::default()).encode(1);
            slot[8..12].copy_from_slice(&version.to_le_bytes());
            let sum = crc::crc32c(&slot[..SUM]);
            slot[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
            fs::replace(&path, &[slot, slot].concat()).expect("written");
        };
        let versions = || {
            let mut bytes = vec![0; 2 * SLOT as usize];
            let file = fs::open(&path, OpenOptions::WRITE).expect("opens");
            file.read_exact_at(&mut bytes, 0).expect("reads");
            let mut versions: Vec<_> = bytes
                .chunks_exact(SLOT as usize)
                .map(|slot| get_le::<u32>(slot, 8))
                .collect();
            versions.sort_unstable();
            versions
        };
        for former in [2, 3, 4, 5, 6] {
            put(former);
            let file = ControlFile::open(dir.path()).expect("opens");
            assert_eq!(file.get().database, 7);
            file.update(|control| control.tx_ceiling = 9).expect("written");
            assert_eq!(versions(), [Some(former), Some(FORMAT_VERSION)]);
            drop(file);
            assert_eq!(ControlFile::open(dir.path()).expect("opens").get().tx_ceiling, 9);
        }
        put(FORMAT_VERSION + 1);
        let error = ControlFile::open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains("format version 8"), "{error}");
    }

    #[test]
    fn a_lost_control_file_is_not_taken_for_a_new_database() {
        let dir = tempfile::tempdir().expect("a directory");
        ControlFile::open(dir.path()).expect("made");
        let log = log_dir(dir.path());
        fs::create_dir_all(&log).expect("made");
        fs::open(log.join("x.log"), OpenOptions::CREATE).expect("made");
        fs::remove(dir.path().join("control")).expect("removed");
        assert!(ControlFile::open(dir.path()).is_err());
    }
}
