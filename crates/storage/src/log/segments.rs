//! The log's files: segments of equal size, each a header block and a part of the stream.
//!
//! Segment `n` holds the stream's bytes from `n * payload` on. Segments are made ahead of their
//! use, with their space taken, and those no longer needed are renamed into new ones: so writing
//! the log neither allocates nor changes a file's length, and a sync has only data to write.
//!
//! ```text
//! NNNNNNNNNNNNNNNN.log   0 u64 magic and version  8 u64 payload bytes  16 u128 database
//!                       32 u64 number n          40 u64 first LSN      48 u32 crc32c of 0..48
//!                     4096 payload
//! N...N-G...G.log        the same, of generation G: those above are of generation 0
//! N...N-G...G.log.aside  one whose generation no start has recorded; it means nothing, and is for people to look at
//! spare-N.log            a segment to reuse; its bytes mean nothing (spare-N-G.log, of generation G)
//! ```
//!
//! The *generation* rises when the data directory comes to another host ([`crate::owner`]). An instance that ran on the
//! former host may have segments open yet, and write to them late. So the first start on the new one gives the segment
//! in which the log ends, and all behind it, files of its own generation ([`Segments::own_from`]), and reuses none of
//! before.
//!
//! Invariants:
//! - a segment has its name only when its header and its space are synced;
//! - the bytes of a reused segment are of lower LSNs, so no group in them fits its position; of a
//!   segment that held bytes *above* the log's end, nothing is kept;
//! - generations do not fall along the numbers: a file of a lower one behind a higher one is a former owner's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cenote_base::bytes::get_le;
use cenote_base::error::IoContext;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{Mutex, MutexGuard};
use cenote_base::{Error, Lsn, Result, crc};

use super::ring::BLOCK;

pub(crate) const SEGMENT_HEADER: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"CenLog02");
const ZEROS: usize = 1 << 20;
const SEGMENT_MIN: u64 = 64 << 10;
const _: () = assert!(
    SEGMENT_HEADER.is_multiple_of(BLOCK) && SEGMENT_MIN.is_multiple_of(BLOCK),
    "a block of the stream is a block of its file"
);
/// Segments kept for reuse; more are removed.
const SPARES: usize = 4;

pub(crate) struct Segments {
    dir: PathBuf,
    database: u128,
    payload: u64,
    /// Of the files that are made.
    generation: u64,
    /// The last one that was on record.
    believed: u64,
    list: Mutex<SegmentList>,
    /// Held while a segment is made. Taken before `list`.
    making: Mutex<()>,
    /// Number of the first segment that is not there yet.
    prepared: AtomicU64,
}

/// The segments that are there.
#[derive(Default)]
struct SegmentList {
    /// Segments in use or prepared.
    live: BTreeMap<u64, Segment>,
    spares: Vec<PathBuf>,
    next_spare: u64,
    /// Files of former owners, that mean nothing.
    foreign: Vec<PathBuf>,
}

/// A segment that is there; its file is opened when first needed.
struct Segment {
    generation: u64,
    file: Option<File>,
}

/// Which files in the directory of the segments are the log's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Generations {
    /// The last one that counts, of those that are found.
    pub believed: u64,
    /// That of the files that are made.
    pub own: u64,
}

impl Segments {
    /// The segments in `dir`, which is made if it is missing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if segments cannot have `payload` bytes; an I/O error of the directory.
    pub fn open(dir: &Path, database: u128, payload: u64, generations: Generations) -> Result<Segments> {
        if payload < SEGMENT_MIN || !payload.is_multiple_of(SEGMENT_HEADER) {
            return Err(Error::Invalid(format!(
                "log segments of {payload} bytes: a multiple of {SEGMENT_HEADER}, at least {SEGMENT_MIN}, is needed"
            )));
        }
        fs::create_dir_all(dir).doing(|| format!("making {}", dir.display()))?;
        let mut list = SegmentList::default();
        for name in fs::list(dir).doing(|| format!("listing {}", dir.display()))? {
            list.adopt(dir, &name, generations);
        }
        list.drop_fallen(dir);
        let segments = Segments {
            dir: dir.to_owned(),
            database,
            payload,
            generation: generations.own,
            believed: generations.believed,
            list: Mutex::new(list),
            making: Mutex::new(()),
            prepared: AtomicU64::new(0),
        };
        segments.publish_prepared(&segments.list.lock());
        Ok(segments)
    }

    /// The payload of the segments that are in `dir`, as the first whole header says; `None` if there is none.
    ///
    /// # Errors
    /// An I/O error, with the file.
    pub fn recorded_payload(dir: &Path) -> Result<Option<u64>> {
        if !fs::exists(dir).doing(|| format!("looking for {}", dir.display()))? {
            return Ok(None);
        }
        let names = fs::list(dir).doing(|| format!("listing {}", dir.display()))?;
        for name in names.iter().filter(|n| number_of_name(n).is_some()) {
            let path = dir.join(name);
            let mut header = [0; 64];
            let file = fs::open(&path, OpenOptions::READ).doing(|| format!("opening {}", path.display()))?;
            file.read_at(&mut header, 0)
                .doing(|| format!("reading {}", path.display()))?;
            if get_le::<u64>(&header, 0) == Some(MAGIC)
                && get_le::<u32>(&header, 48) == Some(crc::crc32c(&header[..48]))
            {
                return Ok(get_le::<u64>(&header, 8));
            }
        }
        Ok(None)
    }

    pub fn payload(&self) -> u64 {
        self.payload
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The first that is there.
    pub fn first(&self) -> Option<u64> {
        self.list.lock().live.keys().next().copied()
    }

    pub fn number_of(&self, at: Lsn) -> u64 {
        at.raw() / self.payload
    }

    pub fn start_of(&self, number: u64) -> Lsn {
        Lsn::from_raw(number * self.payload)
    }

    /// The path of a segment that is made.
    fn own_path(&self, number: u64) -> PathBuf {
        self.dir.join(name_of(number, self.generation))
    }

    /// The path of a segment that is there, or of the one that would be made.
    fn path(&self, number: u64) -> PathBuf {
        self.path_in(&self.list.lock(), number)
    }

    fn path_in(&self, list: &SegmentList, number: u64) -> PathBuf {
        let generation = list.live.get(&number).map_or(self.generation, |s| s.generation);
        self.dir.join(name_of(number, generation))
    }

    /// Where position `at` lies, in words for people.
    pub fn place(&self, at: Lsn) -> String {
        let offset = SEGMENT_HEADER + at.raw() % self.payload;
        format!("segment {} at offset {offset}", self.path(self.number_of(at)).display())
    }

    /// The numbers of the segments that are there.
    pub fn numbers(&self) -> Vec<u64> {
        self.list.lock().live.keys().copied().collect()
    }

    /// The position up to which segments are there, without a gap from the newest in use.
    pub fn prepared_end(&self) -> Lsn {
        self.start_of(self.prepared.load(Ordering::Acquire))
    }

    fn publish_prepared(&self, list: &SegmentList) {
        let end = list.live.last_key_value().map_or(0, |(n, _)| n + 1);
        self.prepared.store(end, Ordering::Release);
    }

    // ---- making ----

    /// Makes segment `number` if it is missing. `quick` takes its space without writing zeros.
    ///
    /// # Errors
    /// [`Error::Full`] when there is no space for it; nothing has changed then.
    pub fn prepare(&self, number: u64, quick: bool) -> Result<()> {
        if self.list.lock().live.contains_key(&number) {
            return Ok(());
        }
        // The lead and the background may both make the next one: the second of them finds it made.
        let _making = self.making.lock();
        if self.list.lock().live.contains_key(&number) {
            return Ok(());
        }
        let spare = self.list.lock().spares.pop();
        let made = match &spare {
            Some(path) => self.make(number, path, true),
            None => self.make_new(number, quick),
        };
        let file = made.doing(|| format!("preparing log segment {}", self.own_path(number).display()))?;
        let mut list = self.list.lock();
        let before = list.live.insert(number, self.own(file));
        assert!(before.is_none(), "segment {number} is made by one thread, and once");
        self.publish_prepared(&list);
        Ok(())
    }

    fn own(&self, file: File) -> Segment {
        Segment {
            generation: self.generation,
            file: Some(file),
        }
    }

    /// The path of a segment in the making. Not that of another generation, whose maker may rename it yet.
    fn making_path(&self) -> PathBuf {
        self.dir.join(match self.generation {
            0 => String::from("new.log"),
            generation => format!("new-{generation:016x}.log"),
        })
    }

    fn make_new(&self, number: u64, quick: bool) -> std::io::Result<File> {
        let path = self.making_path();
        let made = self
            .take_space(&path, quick)
            .and_then(|()| self.make(number, &path, false));
        if made.is_err() {
            // Half a segment would take up the space that is short.
            let _ = fs::remove(&path);
        }
        made
    }

    // ---- handing over ----

    /// Whether a segment from `number` on, or anything beside, is of another generation than this start's.
    pub fn has_foreign_from(&self, number: u64) -> bool {
        let list = self.list.lock();
        let is_foreign = |(_, s): (&u64, &Segment)| s.generation != self.generation;
        list.live.range(number..).any(is_foreign) || !list.foreign.is_empty()
    }

    /// Whether segment `number` is there, as a file of this start's generation.
    pub fn is_own(&self, number: u64) -> bool {
        let list = self.list.lock();
        list.live.get(&number).is_some_and(|s| s.generation == self.generation)
    }

    /// Makes segment `number` anew, as a file of this start's generation that `fill` has written to.
    pub fn make_copy(&self, number: u64, fill: impl FnOnce(&File) -> std::io::Result<()>) -> std::io::Result<()> {
        let path = self.making_path();
        let _making = self.making.lock();
        let made = self
            .take_space(&path, true)
            .and_then(|()| fill(&fs::open(&path, OpenOptions::WRITE)?))
            .and_then(|()| self.make(number, &path, false));
        let file = made.inspect_err(|_| drop(fs::remove(&path)))?;
        let mut list = self.list.lock();
        let former = self.path_in(&list, number);
        assert!(
            former != self.own_path(number),
            "a copy takes the place of another's file"
        );
        list.live.insert(number, self.own(file));
        list.foreign.push(former);
        Ok(())
    }

    /// Removes what is not of this start's generation: segments from `number` on, and what means nothing.
    pub fn forget_foreign(&self, number: u64) -> Result<()> {
        let mut list = self.list.lock();
        let is_foreign = |(_, s): &(&u64, &Segment)| s.generation != self.generation;
        let gone: Vec<u64> = list.live.range(number..).filter(is_foreign).map(|(n, _)| *n).collect();
        let mut paths = std::mem::take(&mut list.foreign);
        for number in gone {
            paths.push(self.path_in(&list, number));
            list.live.remove(&number);
        }
        self.publish_prepared(&list);
        drop(list);
        for path in paths {
            let is_recorded = generation_in(&path).is_none_or(|it| it <= self.believed);
            let done = match is_recorded {
                true => fs::remove(&path),
                false => fs::rename(&path, path.with_extension("log.aside")),
            };
            match done {
                // A former owner may have renamed or removed it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.doing(|| format!("removing {}, which is a former owner's", path.display()))?,
            }
        }
        Ok(())
    }

    fn take_space(&self, path: &Path, quick: bool) -> std::io::Result<()> {
        let file = fs::open(path, OpenOptions::TRUNCATE)?;
        file.allocate(0, SEGMENT_HEADER + self.payload)?;
        let zeros = vec![0; ZEROS];
        let mut at = 0;
        while !quick && at < SEGMENT_HEADER + self.payload {
            let n = ZEROS.min((SEGMENT_HEADER + self.payload - at) as usize);
            file.write_at(&zeros[..n], at)?;
            at += n as u64;
        }
        file.sync_data()
    }

    /// Gives the file at `path` the header of segment `number`, then its name.
    fn make(&self, number: u64, path: &Path, reused: bool) -> std::io::Result<File> {
        let file = fs::open(path, OpenOptions::WRITE)?;
        if reused && file.len()? != SEGMENT_HEADER + self.payload {
            return Err(std::io::Error::other("a spare segment has the wrong length"));
        }
        file.write_at(&self.header(number), 0)?;
        file.sync_data()?;
        fs::rename(path, self.own_path(number))?;
        if !planted(Fault::NameSync) {
            fs::sync_dir(&self.dir)?;
        }
        Ok(file)
    }

    fn header(&self, number: u64) -> [u8; SEGMENT_HEADER as usize] {
        let mut header = [0; SEGMENT_HEADER as usize];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&self.payload.to_le_bytes());
        header[16..32].copy_from_slice(&self.database.to_le_bytes());
        header[32..40].copy_from_slice(&number.to_le_bytes());
        header[40..48].copy_from_slice(&self.start_of(number).raw().to_le_bytes());
        let sum = crc::crc32c(&header[..48]);
        header[48..52].copy_from_slice(&sum.to_le_bytes());
        header
    }

    // ---- reading and writing ----

    /// The open file of segment `number`, its header checked; `None` if it is missing.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the segment has another format version; [`Error::Corrupt`] if its header does not fit or
    /// it is cut short; an I/O error.
    pub fn file(&self, number: u64) -> Result<Option<File>> {
        let mut list = self.list.lock();
        match list.live.get(&number) {
            None => Ok(None),
            Some(Segment { file: Some(file), .. }) => Ok(Some(file.clone())),
            Some(_) => self.open_live(&mut list, number).map(Some),
        }
    }

    fn open_live(&self, list: &mut MutexGuard<'_, SegmentList>, number: u64) -> Result<File> {
        let path = self.path_in(list, number);
        let file = fs::open(&path, OpenOptions::WRITE).doing(|| format!("opening {}", path.display()))?;
        let mut header = [0; SEGMENT_HEADER as usize];
        file.read_at(&mut header, 0)
            .doing(|| format!("reading {}", path.display()))?;
        self.check_header(&header, number, &path)?;
        let length = file.len().doing(|| format!("measuring {}", path.display()))?;
        if length < SEGMENT_HEADER + self.payload {
            return Err(Error::corrupt(format!(
                "log segment {} is cut short: {length} bytes of {}",
                path.display(),
                SEGMENT_HEADER + self.payload
            )));
        }
        if let Some(segment) = list.live.get_mut(&number) {
            segment.file = Some(file.clone());
        }
        Ok(file)
    }

    fn check_header(&self, header: &[u8; SEGMENT_HEADER as usize], number: u64, path: &Path) -> Result<()> {
        let expected = self.header(number);
        if header[..8] != expected[..8] && header[..6] == expected[..6] {
            return Err(Error::Mismatch(format!(
                "log segment {} has format version {}, this program knows 02",
                path.display(),
                String::from_utf8_lossy(&header[6..8])
            )));
        }
        for (range, field) in [
            (0..8, "magic"),
            (8..16, "size"),
            (16..32, "database id"),
            (32..48, "number"),
            (48..52, "checksum"),
        ] {
            if header[range.clone()] != expected[range] {
                return Err(Error::corrupt(format!(
                    "the header of log segment {} has a wrong {field}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Reads at position `at` to the end of its segment at most; how many bytes (0: no segment).
    ///
    /// # Errors
    /// An I/O error with the place; those of [`Segments::file`].
    pub fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let Some((file, offset, wanted)) = self.locate(at, buffer.len())? else {
            return Ok(0);
        };
        file.read_exact_at(&mut buffer[..wanted], offset)
            .doing(|| format!("reading log {}", self.place(at)))?;
        Ok(wanted)
    }

    /// Where the `length` bytes at position `at` lie, or those of them that are in its segment: file, offset, how many.
    /// `None` if the segment is missing.
    ///
    /// # Errors
    /// Those of [`Segments::file`].
    pub fn locate(&self, at: Lsn, length: usize) -> Result<Option<(File, u64, usize)>> {
        let within = at.raw() % self.payload;
        let length = length.min((self.payload - within) as usize);
        let file = self.file(self.number_of(at))?;
        Ok(file.map(|file| (file, SEGMENT_HEADER + within, length)))
    }

    /// Fills `buffer` from position `at` on, across segments; false if one is missing.
    ///
    /// # Errors
    /// Those of [`Segments::read`].
    pub fn read_exact(&self, mut at: Lsn, mut buffer: &mut [u8]) -> Result<bool> {
        while !buffer.is_empty() {
            let n = self.read(at, buffer)?;
            if n == 0 {
                return Ok(false);
            }
            at = at.advance(n as u64);
            buffer = &mut buffer[n..];
        }
        Ok(true)
    }

    /// Writes whole blocks at position `at`, within one segment, which has to be there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the segment is missing; an I/O error with the place; those of [`Segments::file`].
    pub fn write(&self, at: Lsn, blocks: &[u8]) -> Result<()> {
        let (within, length) = (at.raw() % self.payload, blocks.len() as u64);
        assert!(
            within.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK),
            "the log is written in whole blocks: {length} bytes at {at}"
        );
        assert!(
            within + length <= self.payload,
            "{length} bytes at {at} reach into the next segment"
        );
        let file = self.file(self.number_of(at))?.ok_or_else(|| self.missing(at))?;
        file.write_at(blocks, SEGMENT_HEADER + within)
            .doing(|| format!("writing log {}", self.place(at)))
    }

    /// Makes what was written in segment `number` durable.
    ///
    /// # Errors
    /// As of [`Segments::write`]. After an error of the sync nothing may be believed durable that it covered.
    pub fn sync(&self, number: u64) -> Result<()> {
        let file = self.file(number)?.ok_or_else(|| self.missing(self.start_of(number)))?;
        file.sync_data()
            .doing(|| format!("syncing log segment {}", self.path(number).display()))
    }

    pub fn missing(&self, at: Lsn) -> Error {
        Error::corrupt(format!(
            "log segment {} is missing",
            self.path(self.number_of(at)).display()
        ))
    }

    // ---- retiring ----

    /// Segments wholly before `before` become spares, or are removed.
    ///
    /// # Errors
    /// An I/O error of a rename or removal, with the segment.
    pub fn retire(&self, before: Lsn) -> Result<()> {
        let keep = self.number_of(before);
        loop {
            let mut list = self.list.lock();
            let Some(number) = list.live.keys().next().copied().filter(|n| *n < keep) else {
                return Ok(());
            };
            let path = self.path_in(&list, number);
            let is_own = list
                .live
                .remove(&number)
                .is_some_and(|s| s.generation == self.generation);
            let reuse = is_own && list.spares.len() < SPARES;
            let spare = self.dir.join(spare_name(list.next_spare, self.generation));
            list.next_spare += 1;
            drop(list);
            let done = if reuse {
                fs::rename(&path, &spare)
            } else {
                fs::remove(&path)
            };
            done.doing(|| format!("retiring log segment {}", path.display()))?;
            mark::pass(Mark::SegmentRetired);
            if reuse {
                self.list.lock().spares.push(spare);
            }
        }
    }

    /// Makes sure that no byte from `end` on can be taken for the log's: removes later segments, zeroes the rest of its
    /// own as far as it is not zeros already (`used_to`), and syncs both. The only segment there is stays, though the
    /// log ends where it begins: a directory without one is that of a lost log, wherever this start ends.
    ///
    /// # Errors
    /// An I/O error, with the segment.
    pub fn truncate(&self, end: Lsn, used_to: Lsn) -> Result<()> {
        assert!(
            end <= used_to && used_to <= self.start_of(self.number_of(end) + 1),
            "bytes from {end} to {used_to} are of the segment in which the log ends"
        );
        let first_gone = self.number_of(end) + u64::from(!end.raw().is_multiple_of(self.payload));
        let mut list = self.list.lock();
        let kept = list.live.keys().next().copied().filter(|n| *n == self.number_of(end));
        let later = list.live.range(first_gone..).map(|(n, _)| *n);
        let gone: Vec<u64> = later.filter(|n| Some(*n) != kept).collect();
        // From the last on: a process that is stopped here leaves no gap.
        for number in gone.into_iter().rev() {
            let path = self.path_in(&list, number);
            fs::remove(&path).doing(|| format!("removing {}, which lies beyond the log's end", path.display()))?;
            list.live.remove(&number);
        }
        self.publish_prepared(&list);
        drop(list);
        fs::sync_dir(&self.dir).doing(|| format!("syncing {}", self.dir.display()))?;
        self.zero(end, used_to)
    }

    /// Zeroes positions of one segment, if it is there, and syncs it.
    fn zero(&self, from: Lsn, to: Lsn) -> Result<()> {
        let Some(file) = self.file(self.number_of(from))? else {
            return Ok(());
        };
        let doing = || format!("clearing the log behind {}", self.place(from));
        let (mut at, zeros) = (from, vec![0; ZEROS]);
        while at < to {
            let n = to.since(at).min(ZEROS as u64);
            file.write_at(&zeros[..n as usize], SEGMENT_HEADER + at.raw() % self.payload)
                .doing(doing)?;
            at = at.advance(n);
        }
        file.sync_data().doing(doing)
    }
}

impl SegmentList {
    fn adopt(&mut self, dir: &Path, name: &str, generations: Generations) {
        if let Some((number, generation)) = number_of_name(name) {
            let is_newer = self.live.get(&number).is_none_or(|known| known.generation < generation);
            let former = match (generation <= generations.believed, is_newer) {
                (true, true) => self.live.insert(number, Segment { generation, file: None }),
                _ => return self.foreign.push(dir.join(name)),
            };
            let path = |former: Segment| dir.join(name_of(number, former.generation));
            self.foreign.extend(former.map(path));
        } else if let Some((number, generation)) = spare_of_name(name) {
            self.next_spare = self.next_spare.max(number + 1);
            match generation == generations.own {
                true => self.spares.push(dir.join(name)),
                false => self.foreign.push(dir.join(name)),
            }
        }
    }

    /// Files of a lower generation behind those of a higher one were made by a former owner.
    fn drop_fallen(&mut self, dir: &Path) {
        let mut highest = 0;
        let mut fallen = Vec::new();
        for (number, segment) in &self.live {
            highest = highest.max(segment.generation);
            if segment.generation < highest {
                fallen.push((*number, segment.generation));
            }
        }
        for (number, generation) in fallen {
            self.live.remove(&number);
            self.foreign.push(dir.join(name_of(number, generation)));
        }
    }
}

/// Fills `buffer` from `at` on, up to the first segment that is missing; how many bytes.
pub(super) fn read_files(segments: &Segments, mut at: Lsn, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let n = segments.read(at, &mut buffer[filled..])?;
        if n == 0 {
            break;
        }
        filled += n;
        at = at.advance(n as u64);
    }
    Ok(filled)
}

fn name_of(number: u64, generation: u64) -> String {
    match generation {
        0 => format!("{number:016x}.log"),
        _ => format!("{number:016x}-{generation:016x}.log"),
    }
}

fn generation_in(path: &Path) -> Option<u64> {
    number_of_name(path.file_name()?.to_str()?).map(|(_, generation)| generation)
}

/// Number and generation of the segment whose file has this name, if it is one's.
fn number_of_name(name: &str) -> Option<(u64, u64)> {
    let stem = name.strip_suffix(".log")?;
    let (number, generation) = stem.split_once('-').unwrap_or((stem, "0000000000000000"));
    if number.len() != 16 || generation.len() != 16 {
        return None;
    }
    let word = |text| u64::from_str_radix(text, 16).ok();
    Some((word(number)?, word(generation)?))
}

fn spare_name(number: u64, generation: u64) -> String {
    match generation {
        0 => format!("spare-{number}.log"),
        _ => format!("spare-{number}-{generation:016x}.log"),
    }
}

/// Number and generation of the spare segment whose file has this name, if it is one's.
fn spare_of_name(name: &str) -> Option<(u64, u64)> {
    let stem = name.strip_prefix("spare-")?.strip_suffix(".log")?;
    let (number, generation) = stem.split_once('-').unwrap_or((stem, "0"));
    // Of one whose number cannot be read only the space is of use.
    Some((number.parse().unwrap_or(0), u64::from_str_radix(generation, 16).ok()?))
}
