//! Sorting index entries, of which there may be more than memory holds.
//!
//! 1. Entries are gathered end to end in one buffer; only their places are sorted. A place has the first bytes of its
//!    entry, which decide most comparisons without a look at the buffer.
//! 2. Where the buffer may not grow any more (it has its share of the memory of statements, or the session has no
//!    more), it is written as a sorted *run* to a file of its own, and filled anew.
//! 3. At the end the runs are merged, [`FAN_IN`] at a time, until so few are left that the last merge gives the result.
//!
//! So a sort is never refused for lack of memory: beside its charge it holds [`BUFFER_MIN`] at most, and
//! [`FAN_IN`] x [`READ_BYTES`] while it merges.
//!
//! ```text
//! run    u16 length │ u16 split │ u8 older │ entry      and so on; each entry once
//! ```
//! A run's checksum is kept in memory, and compared where its reading ends: the last entry is not given out before.
//!
//! Runs are not synced: a run is removed when it is merged or the sort goes, and a start removes what a killed process
//! left.

use crate::error::{Error, Result};
use crate::key::MAX_KEY_BYTES;
use crate::memory::{Account, Charge};
use crate::tx::CancelFlag;
use cenote_base::crc;
use cenote_base::rt::atomic::{self, AtomicU64};
use cenote_base::rt::fs::{self, File, OpenOptions};
use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A buffer grows to this size whatever others hold, in bytes; what it grows to beyond that is charged.
const BUFFER_MIN: usize = 64 << 10;
/// A buffer gets this part of the memory of all statements.
const BUFFER_PART: u64 = 8;
/// Runs that are merged at a time.
const FAN_IN: usize = 32;
/// Bytes of a run that are read or written at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes before an entry in a run.
const ENTRY_HEADER: usize = 5;
/// Entries between two looks whether the statement is to stop.
const CANCEL_INTERVAL: usize = 4096;
const _: () = {
    assert!(FAN_IN > 1, "a merge makes fewer runs of more");
    assert!(ENTRY_HEADER < READ_BYTES, "a read has the header of an entry");
};

/// Where sorts put their runs: a directory, removed at each start.
pub(crate) struct RunFiles {
    dir: PathBuf,
    next: AtomicU64,
}

impl RunFiles {
    /// Removes what a killed process left in `dir`.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(dir: PathBuf) -> Result<RunFiles> {
        if fs::exists(&dir).map_err(|e| failed("looking for", &dir, e))? {
            fs::remove_dir_all(&dir).map_err(|e| failed("removing", &dir, e))?;
        }
        Ok(RunFiles {
            dir,
            next: AtomicU64::new(0),
        })
    }

    fn create(&self) -> Result<(PathBuf, File)> {
        fs::create_dir_all(&self.dir).map_err(|e| failed("making", &self.dir, e))?;
        let path = self
            .dir
            .join(format!("run-{}", self.next.fetch_add(1, atomic::Ordering::Relaxed)));
        let file = fs::open(&path, OpenOptions::TRUNCATE).map_err(|e| failed("making", &path, e))?;
        Ok((path, file))
    }
}

fn failed(doing: &str, path: &Path, error: std::io::Error) -> Error {
    cenote_base::Error::io(format!("{doing} {}, which a sort needs", path.display()), error).into()
}

/// An index entry on its way through a sort.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry<'a> {
    /// Index columns and primary key.
    pub key: Cow<'a, [u8]>,
    /// Bytes of the first part.
    pub split: u16,
    /// It is not of the newest version of its row. Of equal entries that of the newest one comes first.
    pub older: bool,
}

/// Bytes of an entry that its place has: three integers of an index with their marks.
const HEAD: usize = 16;
/// Bit of a place's `split`: the entry is not of the newest version of its row.
const OLDER: u16 = 1 << 15;
const _: () = assert!(
    MAX_KEY_BYTES < OLDER as usize,
    "the length of a first part leaves its top bit free"
);

/// Place of an entry in the buffer.
#[derive(Clone, Copy)]
struct Place {
    /// The entry's first bytes, big endian; zeros where it has less.
    head: [u64; HEAD / 8],
    at: u32,
    len: u16,
    /// And [`OLDER`].
    split: u16,
}
const _: () = assert!(
    size_of::<Place>() == HEAD + 8,
    "many places lie in a cache line's reach"
);

impl Place {
    fn of(key: &[u8], at: usize, split: u16, newest: bool) -> Place {
        let mut head = [0; HEAD];
        let len = key.len().min(HEAD);
        head[..len].copy_from_slice(&key[..len]);
        let head = u128::from_be_bytes(head);
        Place {
            head: [(head >> 64) as u64, head as u64],
            at: at as u32,
            len: key.len() as u16,
            split: if newest { split } else { split | OLDER },
        }
    }

    fn head(&self) -> u128 {
        u128::from(self.head[0]) << 64 | u128::from(self.head[1])
    }

    /// As their entries compare.
    #[inline]
    fn compare(&self, other: &Place, bytes: &[u8]) -> Ordering {
        let (a, b) = (self.head(), other.head());
        if a != b {
            return a.cmp(&b);
        }
        self.entry(bytes).cmp(&other.entry(bytes))
    }

    fn entry(self, bytes: &[u8]) -> Entry<'_> {
        Entry {
            key: Cow::Borrowed(&bytes[self.at as usize..][..usize::from(self.len)]),
            split: self.split & !OLDER,
            older: self.split & OLDER != 0,
        }
    }
}

/// Gathers entries; gives them in order, each once.
pub(crate) struct Sorter<'f> {
    files: &'f RunFiles,
    cancel: Arc<CancelFlag>,
    bytes: Vec<u8>,
    places: Vec<Place>,
    memory: Charge,
    /// Bytes that the buffer may grow to.
    share: usize,
    runs: Vec<Run>,
}

impl<'f> Sorter<'f> {
    /// An empty one; its buffer is charged to `account`.
    pub(crate) fn new(files: &'f RunFiles, account: &Arc<Account>, cancel: &Arc<CancelFlag>) -> Sorter<'f> {
        let share = usize::try_from(account.memory().limit() / BUFFER_PART).unwrap_or(usize::MAX);
        Sorter {
            files,
            cancel: cancel.clone(),
            bytes: Vec::new(),
            places: Vec::new(),
            memory: Charge::new(account),
            share: share.max(BUFFER_MIN),
            runs: Vec::new(),
        }
    }

    /// Adds an entry whose first part has `split` bytes. Errors: a run cannot be written.
    pub(crate) fn push(&mut self, key: &[u8], split: u16, newest: bool) -> Result<()> {
        let more = key.len() + size_of::<Place>();
        let all = self.bytes.len() + self.places.len() * size_of::<Place>() + more;
        let is_full = all > self.share || self.bytes.len() + key.len() > u32::MAX as usize;
        if is_full || all > BUFFER_MIN && self.memory.grow(more).is_err() {
            self.spill()?;
        }
        assert!(
            usize::from(split) <= key.len() && key.len() <= MAX_KEY_BYTES,
            "an entry's first part is a part of it, and the tree takes it"
        );
        self.places.push(Place::of(key, self.bytes.len(), split, newest));
        self.bytes.extend_from_slice(key);
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.places.sort_unstable_by(|a, b| a.compare(b, bytes));
        self.places
            .dedup_by(|next, kept| next.head == kept.head && next.entry(bytes).key == kept.entry(bytes).key);
    }

    /// Writes the buffer as a run, and gives its memory up with the charge: others may be given it.
    fn spill(&mut self) -> Result<()> {
        self.sort();
        let bytes = &self.bytes;
        let entries = self.places.iter().map(|place| Ok(place.entry(bytes)));
        let run = Run::write(self.files, &self.cancel, entries)?;
        assert!(run.len > 0 || self.places.is_empty(), "a run holds what was gathered");
        self.runs.push(run);
        (self.bytes, self.places) = (Vec::new(), Vec::new());
        self.memory.clear();
        Ok(())
    }

    /// Ends the gathering. Errors: a run cannot be written or read.
    pub(crate) fn finish(mut self) -> Result<Sorted<'f>> {
        if !self.runs.is_empty() && !self.places.is_empty() {
            self.spill()?;
        }
        self.sort();
        while self.runs.len() > FAN_IN {
            let some: Vec<_> = self.runs.drain(..FAN_IN).collect();
            let merged = Run::write(self.files, &self.cancel, Merge::of(&some)?)?;
            self.runs.push(merged);
        }
        assert!(
            self.runs.len() <= FAN_IN && (self.runs.is_empty() || self.places.is_empty()),
            "one merge reads all runs, and nothing lies beside them"
        );
        Ok(Sorted(self))
    }
}

/// All entries that a sort was given.
pub(crate) struct Sorted<'f>(Sorter<'f>);

impl Sorted<'_> {
    /// The entries in order, each once.
    pub(crate) fn entries(&self) -> Result<Box<dyn Iterator<Item = Result<Entry<'_>>> + '_>> {
        let sorter = &self.0;
        if sorter.runs.is_empty() {
            let entries = sorter.places.iter().map(|place| Ok(place.entry(&sorter.bytes)));
            return Ok(Box::new(watched(entries, &sorter.cancel)));
        }
        Ok(Box::new(watched(Merge::of(&sorter.runs)?, &sorter.cancel)))
    }

    /// How many runs the last merge reads.
    #[cfg(test)]
    fn runs(&self) -> usize {
        self.0.runs.len()
    }
}

/// The entries, until the statement is to stop.
fn watched<'e>(
    entries: impl Iterator<Item = Result<Entry<'e>>>,
    cancel: &CancelFlag,
) -> impl Iterator<Item = Result<Entry<'e>>> {
    entries.enumerate().map(|(at, entry)| match at % CANCEL_INTERVAL {
        0 => cancel.check().and(entry),
        _ => entry,
    })
}

/// A sorted run in a file, which goes with it.
struct Run {
    path: PathBuf,
    len: u64,
    crc: u32,
}

impl Run {
    fn write<'e>(
        files: &RunFiles,
        cancel: &CancelFlag,
        entries: impl Iterator<Item = Result<Entry<'e>>>,
    ) -> Result<Run> {
        let (path, file) = files.create()?;
        let mut run = Run { path, len: 0, crc: 0 };
        let mut buffer = Vec::with_capacity(READ_BYTES);
        for entry in watched(entries, cancel) {
            let entry = entry?;
            if buffer.len() + ENTRY_HEADER + entry.key.len() > READ_BYTES {
                run.append(&file, &mut buffer)?;
            }
            buffer.extend_from_slice(&(entry.key.len() as u16).to_le_bytes());
            buffer.extend_from_slice(&entry.split.to_le_bytes());
            buffer.push(u8::from(entry.older));
            buffer.extend_from_slice(&entry.key);
        }
        run.append(&file, &mut buffer)?;
        Ok(run)
    }

    fn append(&mut self, file: &File, buffer: &mut Vec<u8>) -> Result<()> {
        let written = file.write_at(buffer, self.len);
        written.map_err(|e| failed("writing", &self.path, e))?;
        self.len += buffer.len() as u64;
        self.crc = crc::append(self.crc, buffer);
        buffer.clear();
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // One that stays goes with the next start.
        fs::remove(&self.path).ok();
    }
}

/// A run that is read from its beginning.
struct RunReader<'r> {
    run: &'r Run,
    file: File,
    /// Where the file is read on.
    at: u64,
    /// Checksum of what lies before.
    crc: u32,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out.
    used: usize,
}

impl<'r> RunReader<'r> {
    fn open(run: &'r Run) -> Result<RunReader<'r>> {
        let file = fs::open(&run.path, OpenOptions::READ).map_err(|e| failed("opening", &run.path, e))?;
        Ok(RunReader {
            run,
            file,
            at: 0,
            crc: 0,
            buffer: Vec::new(),
            used: 0,
        })
    }

    /// The next `len` bytes.
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        if self.buffer.len() - self.used < len {
            self.fill(len)?;
        }
        self.used += len;
        assert!(self.used <= self.buffer.len(), "what is given out was read");
        Ok(&self.buffer[self.used - len..self.used])
    }

    fn fill(&mut self, len: usize) -> Result<()> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let kept = self.buffer.len();
        let left = usize::try_from(self.run.len - self.at).unwrap_or(usize::MAX);
        let more = left.min(READ_BYTES.max(len) - kept);
        self.buffer.resize(kept + more, 0);
        let read = self.file.read_exact_at(&mut self.buffer[kept..], self.at);
        read.map_err(|e| failed("reading", &self.run.path, e))?;
        self.at += more as u64;
        self.crc = crc::append(self.crc, &self.buffer[kept..]);
        let is_whole = self.at < self.run.len || self.crc == self.run.crc;
        match is_whole && self.buffer.len() >= len {
            true => Ok(()),
            false => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> Error {
        Error::Corrupt(format!(
            "{}, a run of a sort, is not as it was written",
            self.run.path.display()
        ))
    }

    fn next(&mut self) -> Result<Option<Entry<'static>>> {
        if self.used == self.buffer.len() && self.at == self.run.len {
            return Ok(None);
        }
        let header = self.take(ENTRY_HEADER)?;
        let (len, split) = (
            u16::from_le_bytes([header[0], header[1]]),
            u16::from_le_bytes([header[2], header[3]]),
        );
        let older = header[4] != 0;
        if split > len {
            return Err(self.damaged());
        }
        let key = Cow::Owned(self.take(usize::from(len))?.to_vec());
        Ok(Some(Entry { key, split, older }))
    }
}

/// Runs that are merged.
struct Merge<'r> {
    runs: Vec<RunReader<'r>>,
    /// The first entry left of each run that has one.
    first: BinaryHeap<Reverse<(Entry<'static>, usize)>>,
    last: Vec<u8>,
    begun: bool,
}

impl<'r> Merge<'r> {
    fn of(runs: &'r [Run]) -> Result<Merge<'r>> {
        let mut merge = Merge {
            runs: runs.iter().map(RunReader::open).collect::<Result<_>>()?,
            first: BinaryHeap::with_capacity(runs.len()),
            last: Vec::new(),
            begun: false,
        };
        (0..runs.len()).try_for_each(|run| merge.read(run))?;
        Ok(merge)
    }

    fn read(&mut self, run: usize) -> Result<()> {
        if let Some(entry) = self.runs[run].next()? {
            self.first.push(Reverse((entry, run)));
        }
        Ok(())
    }

    /// The first entry; the next of its run takes its place.
    fn take_first(&mut self) -> Option<Result<Entry<'static>>> {
        let mut first = self.first.peek_mut()?;
        let run = first.0.1;
        Some(match self.runs[run].next() {
            Ok(Some(next)) => Ok(std::mem::replace(&mut first.0.0, next)),
            Ok(None) => Ok(PeekMut::pop(first).0.0),
            Err(error) => Err(error),
        })
    }

    /// Whether it is the entry that was given last.
    fn is_repeated(&mut self, entry: &Entry<'_>) -> bool {
        if self.begun && self.last == *entry.key {
            return true;
        }
        self.begun = true;
        self.last.clear();
        self.last.extend_from_slice(&entry.key);
        false
    }
}

impl<'r> Iterator for Merge<'r> {
    type Item = Result<Entry<'r>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.take_first()? {
                Ok(entry) if self.is_repeated(&entry) => {}
                next => return Some(next),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use std::collections::BTreeMap;

    fn files(dir: &Path) -> RunFiles {
        RunFiles::open(dir.join("sort-tmp")).expect("a directory")
    }

    fn left(files: &RunFiles) -> usize {
        fs::list(&files.dir).map_or(0, |names| names.len())
    }

    /// Against a map, with from no run at all to merges of merges; entries come twice, as the newest and as an older
    /// one.
    #[test]
    fn entries_come_back_in_order_and_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        for (count, limit, least_runs) in [
            (0, 1 << 30, 0),
            (1_000, 1 << 30, 0),
            (3_000, 64 << 10, 2),
            (120_000, 0, 2),
        ] {
            let memory = Memory::new(limit, 2);
            let mut sorter = Sorter::new(&files, &memory.account("a test"), &Arc::default());
            let mut model = BTreeMap::new();
            for i in 0..count as u64 {
                let number = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (count as u64 / 2 + 1);
                let mut key = number.to_be_bytes().to_vec();
                key.resize(8 + (number % 50) as usize, b'x');
                let newest = i % 3 == 0;
                sorter.push(&key, (number % 8) as u16, newest).expect("sorted");
                let kept = model.entry(key).or_insert(((number % 8) as u16, !newest));
                kept.1 &= !newest;
            }
            let sorted = sorter.finish().expect("sorted");
            assert!(sorted.runs() >= least_runs, "{} runs of {count}", sorted.runs());
            assert!(sorted.runs() <= FAN_IN);
            assert_eq!(sorted.runs(), left(&files));
            let got = sorted.entries().expect("readable").map(|entry| {
                let entry = entry.expect("readable");
                (entry.key.into_owned(), (entry.split, entry.older))
            });
            assert!(got.eq(model), "{count} entries in {limit} bytes");
            drop(sorted);
            assert_eq!((left(&files), memory.used()), (0, 0));
        }
    }

    /// A sort that had written a run kept the memory of its buffer, and had given up the charge for it.
    #[test]
    fn a_buffer_that_was_written_is_given_up_with_its_charge() {
        let dir = tempfile::tempdir().expect("a directory");
        let (files, memory) = (files(dir.path()), Memory::new(64 << 20, 2));
        let mut sorter = Sorter::new(&files, &memory.account("a test"), &Arc::default());
        let mut i = 0_u64;
        while sorter.runs.is_empty() {
            sorter
                .push(&[&i.to_be_bytes()[..], &[0; 100]].concat(), 8, true)
                .expect("sorted");
            i += 1;
        }
        let held = sorter.bytes.capacity() + sorter.places.capacity() * size_of::<Place>();
        assert!(held <= BUFFER_MIN, "{held} bytes, {} charged", memory.used());
    }

    /// What came back from the disk was believed: an index would have been made of other keys, or the process have
    /// panicked at a length.
    #[test]
    fn a_run_that_is_not_as_it_was_written_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let entry = |i: u64| {
            let key = Cow::Owned(i.to_be_bytes().to_vec());
            Ok(Entry {
                key,
                split: 4,
                older: false,
            })
        };
        let run = Run::write(&files, &CancelFlag::default(), (0..20_000).map(entry)).expect("written");
        let read = || {
            let mut reader = RunReader::open(&run)?;
            while reader.next()?.is_some() {}
            Ok::<_, Error>(())
        };
        read().expect("whole");
        let file = fs::open(&run.path, OpenOptions::WRITE).expect("there");
        // A length, a split, a key; in the first buffer, the middle and the last.
        for at in [0, 2, 9, run.len / 2, run.len - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("readable");
            file.write_at(&[byte[0] ^ 0x40], at).expect("writable");
            assert!(matches!(read(), Err(Error::Corrupt(_))), "byte {at}");
            file.write_at(&byte, at).expect("writable");
        }
        read().expect("whole again");
    }

    #[test]
    fn a_sort_that_is_to_stop_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let (memory, cancel) = (Memory::new(0, 2), Arc::<CancelFlag>::default());
        let mut sorter = Sorter::new(&files, &memory.account("a test"), &cancel);
        for i in 0..10_000_u32 {
            sorter.push(&i.to_be_bytes(), 4, true).expect("sorted");
        }
        assert!(left(&files) > 0);
        cancel.set();
        assert!(matches!(sorter.finish(), Err(Error::Canceled)));
        assert_eq!(left(&files), 0);
    }

    #[test]
    fn a_start_removes_what_a_killed_process_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let before = files(dir.path());
        before.create().expect("a file");
        assert_eq!(left(&before), 1);
        assert_eq!(left(&files(dir.path())), 0);
    }
}
