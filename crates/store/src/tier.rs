//! Values in files: what eviction takes from memory is written to segments by a thread, in batches, and read again.
//!
//! ```text
//!   evict ─► reserve a place ─► waiting (memory, bounded) ─► thread: a batch, one write ─► segment file
//!                   │                  ▲ read by this process meanwhile                      ▲ read by all that reach it
//!                   └─► the item that stands for the value says the place
//! ```
//!
//! 1. A place is reserved before it is written, so that an item can say it at once. Until it is written others find
//!    nothing there, which is a miss.
//! 2. What is read is the value that is meant if its head says the same key and generation, and both checksums hold.
//! 3. No one waits for a disk but for a value that lies there: what does not fit into the memory for what waits is not
//!    taken. After a failed write none is taken for a while.
//! 4. Numbers of segments only grow. The oldest are dropped to keep the bound.

mod record;
mod segments;

pub(super) use record::{LOCATION, Location};

use cenote_base::error::IoContext;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::rt::{self, Condvar, HashMap, JoinHandle, Mutex, Nanos};
use cenote_base::{Error, Result, crc};
use record::{HEAD, record_len, value_checksum};
use segments::{Directory, Segments, directory_of};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that wait to be written, at most.
const WAITING_MAX: u64 = 64 << 20;
/// Bytes of a segment, at most, but for its last record.
const SEGMENT_MAX: u64 = 64 << 20;
/// Bytes that are written at once, but for the last record.
const BATCH_BYTES: u64 = 8 << 20;
/// Parts of a tier's bytes that a record, or what waits, may have.
const SHARE: u64 = 4;
/// How long nothing is taken after a write has failed.
const PAUSE: Nanos = Nanos::from_secs(1);
/// The smallest tier.
const BYTES_MIN: u64 = 1 << 20;

/// Where this process spills values to, and reads those that others have spilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillOptions {
    /// A directory for this store, the same for all processes that are to read each other's values: each has one of its
    /// own in it. A process that does not reach the files of another, as they are another machine's, has a miss.
    pub directory: PathBuf,
    /// Bytes of files that this process's values may take, from 1 MiB on; the oldest go. 0: it spills nothing, and
    /// reads what others have spilled.
    pub bytes: u64,
    /// Whose values: of this tenant alone, or of all for which there is no other directory.
    pub tenant: Option<u32>,
}

/// How a read of a location ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Whole,
    /// It is not there, or is damaged, and will never be there again.
    Gone,
    /// This process does not reach it.
    Elsewhere,
    /// A fault that passes: it may be there.
    NotNow,
}

/// See the module.
pub(super) struct Tier {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    options: SpillOptions,
    /// `None` if it is only for reading.
    directory: Option<Directory>,
    state: Mutex<State>,
    changed: Condvar,
    oldest: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct State {
    segment: u64,
    offset: u64,
    waiting: VecDeque<Place>,
    bytes: u64,
    /// What waits, and what is being written.
    records: HashMap<Place, Arc<Vec<u8>>>,
    paused_until: Nanos,
    ends: bool,
}

/// A segment, and a place in it.
type Place = (u64, u64);

/// Records that follow each other in a segment.
type Batch = Vec<(Place, Arc<Vec<u8>>)>;

impl Tier {
    /// # Errors
    /// [`Error::Invalid`] if it is too small; [`Error::Io`].
    pub(super) fn open(options: SpillOptions, store: u64) -> Result<Self> {
        if options.bytes == 0 {
            return Ok(Self::with(options, None, 0));
        }
        if options.bytes < BYTES_MIN {
            let bytes = options.bytes;
            return Err(Error::Invalid(format!(
                "{bytes} bytes for spilled values: {BYTES_MIN} are the least"
            )));
        }
        let directory = Directory::take(&options.directory, store)?;
        let segments = Segments::of(&directory.path, options.bytes)?;
        let tier = Self::with(options, Some(directory), segments.next());
        tier.shared.oldest.store(segments.oldest(), Ordering::Relaxed);
        let shared = Arc::clone(&tier.shared);
        let thread = rt::try_spawn("store-spill", move || shared.write_all(segments));
        let thread = thread.doing(|| "starting a thread that writes spilled values".into())?;
        *tier.thread.lock() = Some(thread);
        Ok(tier)
    }

    fn with(options: SpillOptions, directory: Option<Directory>, segment: u64) -> Self {
        let state = State {
            segment,
            ..State::default()
        };
        Self {
            shared: Arc::new(Shared {
                options,
                directory,
                state: Mutex::new(state),
                changed: Condvar::new(),
                oldest: AtomicU64::new(0),
                failed: AtomicU64::new(0),
            }),
            thread: Mutex::new(None),
        }
    }

    /// Whether it takes values, and whose.
    pub(super) fn takes(&self) -> Option<Option<u32>> {
        self.shared.directory.as_ref().map(|_| self.shared.options.tenant)
    }

    pub(super) fn options(&self) -> &SpillOptions {
        &self.shared.options
    }

    /// Values that were taken and then not written.
    pub(super) fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Whether a location is one of this tier's whose segment was dropped.
    pub(super) fn has_dropped(&self, location: &Location) -> bool {
        let owner = self.shared.directory.as_ref().map(|directory| directory.owner);
        owner == Some(location.owner) && location.segment < self.shared.oldest.load(Ordering::Relaxed)
    }

    /// Takes a value that `read` copies: where it will lie. `None` if it is too long, or too much waits.
    pub(super) fn take(
        &self,
        key: &[u8],
        len: u64,
        generation: u64,
        read: impl FnOnce(&mut [u8]) -> Result<bool>,
    ) -> Result<Option<Location>> {
        let Some(directory) = &self.shared.directory else {
            return Ok(None);
        };
        let bytes = record_len(key.len(), len);
        if !self.shared.has_room(bytes) {
            return Ok(None);
        }
        let mut record = record::begin(key, len as usize);
        if !read(&mut record[HEAD + key.len()..][..len as usize])? {
            return Ok(None);
        }
        record::seal(&mut record, key.len(), len as usize, generation);
        let (segment, offset) = self.shared.push(record);
        Ok(Some(Location {
            owner: directory.owner,
            segment,
            offset,
            len,
            generation,
        }))
    }

    /// Reads a value, whichever process has written it.
    pub(super) fn read(&self, location: &Location, key: &[u8], into: &mut [u8]) -> Read {
        if let Some(record) = self.shared.waiting_at(location) {
            return copy_from(&record, location, key, into);
        }
        self.shared.look_in_file(location, key, |file, at, checksum| {
            file.read_exact_at(into, at)?;
            Ok(crc::crc32c(into) == checksum)
        })
    }

    /// Whether a value's record is there: its head is looked at.
    ///
    /// # Errors
    /// [`Error::Busy`] if that is not known now.
    pub(super) fn has(&self, location: &Location, key: &[u8]) -> Result<bool> {
        if self.shared.waiting_at(location).is_some() {
            return Ok(true);
        }
        let end = |file: &File, at: u64| Ok(file.len()? >= at + location.len);
        match self.shared.look_in_file(location, key, |file, at, _| end(file, at)) {
            Read::NotNow => Err(Error::Busy("a file of spilled values cannot be read now".into())),
            read => Ok(read == Read::Whole),
        }
    }

    /// Waits until nothing is left to be written, for so long at most: whether it is so.
    pub(super) fn flush(&self, time: Nanos) -> bool {
        let (until, mut state) = (rt::now() + time, self.shared.state.lock());
        while !state.records.is_empty() {
            let now = rt::now();
            if now >= until {
                return false;
            }
            (state, _) = self.shared.changed.wait_timeout(state, until - now);
        }
        true
    }
}

impl Drop for Tier {
    /// What waits is written: so much is bounded.
    fn drop(&mut self) {
        self.shared.state.lock().ends = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().take() {
            let _ = thread.join();
        }
    }
}

fn copy_from(record: &[u8], location: &Location, key: &[u8], into: &mut [u8]) -> Read {
    let (head, value) = record.split_at((HEAD + key.len()).min(record.len()));
    match (value_checksum(head, key, location), value.get(..into.len())) {
        (Some(_), Some(value)) => {
            into.copy_from_slice(value);
            Read::Whole
        }
        _ => Read::Gone,
    }
}

impl Shared {
    fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.lock();
        let most = (self.options.bytes / SHARE).min(WAITING_MAX);
        state.bytes + bytes <= most && state.paused_until <= rt::now()
    }

    fn push(&self, record: Vec<u8>) -> Place {
        let mut state = self.state.lock();
        let most = (self.options.bytes / SHARE).min(SEGMENT_MAX);
        if state.offset >= most {
            (state.segment, state.offset) = (state.segment + 1, 0);
        }
        let (place, bytes) = ((state.segment, state.offset), record.len() as u64);
        state.offset += bytes;
        state.bytes += bytes;
        state.waiting.push_back(place);
        state.records.insert(place, Arc::new(record));
        drop(state);
        self.changed.notify_all();
        place
    }

    fn waiting_at(&self, location: &Location) -> Option<Arc<Vec<u8>>> {
        let is_own = self.directory.as_ref()?.owner == location.owner;
        let state = is_own.then(|| self.state.lock())?;
        state.records.get(&(location.segment, location.offset)).map(Arc::clone)
    }

    /// Opens a value's file, and looks at its head; `rest` gets the place of the value, and its checksum.
    fn look_in_file(
        &self,
        location: &Location,
        key: &[u8],
        rest: impl FnOnce(&File, u64, u32) -> std::io::Result<bool>,
    ) -> Read {
        let directory = directory_of(&self.options.directory, location.owner);
        let read = || -> std::io::Result<bool> {
            let file = fs::open(directory.join(location.segment.to_string()), OpenOptions::READ)?;
            let mut head = vec![0; HEAD + key.len()];
            file.read_exact_at(&mut head, location.offset)?;
            match value_checksum(&head, key, location) {
                Some(checksum) => rest(&file, location.offset + head.len() as u64, checksum),
                None => Ok(false),
            }
        };
        match read() {
            Ok(true) => Read::Whole,
            // Of another that lives: it may be written still.
            Ok(false) => self.gone_if_own(location),
            Err(error) if fs::is_passing(&error) => Read::NotNow,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {
                self.gone_if_own(location)
            }
            Err(_) => Read::Elsewhere,
        }
    }

    fn gone_if_own(&self, location: &Location) -> Read {
        let is_own = self.directory.as_ref().is_some_and(|own| own.owner == location.owner);
        if is_own { Read::Gone } else { Read::Elsewhere }
    }

    fn write_all(&self, mut segments: Segments) {
        while let Some(batch) = self.next_batch() {
            let parts: Vec<&[u8]> = batch.iter().map(|(_, record)| &record[..]).collect();
            let (segment, offset) = batch[0].0;
            let written = segments.write(segment, offset, &parts);
            self.oldest.store(segments.oldest(), Ordering::Relaxed);
            self.has_written(&batch, written.is_ok());
        }
    }

    /// Records that follow each other in a segment.
    fn next_batch(&self) -> Option<Batch> {
        let state = self.state.lock();
        let mut state = self
            .changed
            .wait_while(state, |state| state.waiting.is_empty() && !state.ends);
        let (mut batch, mut bytes): (Batch, u64) = (Vec::new(), 0);
        while bytes < BATCH_BYTES
            && let Some(place) = state.waiting.pop_front()
        {
            if batch.first().is_some_and(|((segment, _), _)| *segment != place.0) {
                state.waiting.push_front(place);
                break;
            }
            let Some(record) = state.records.get(&place) else {
                continue;
            };
            bytes += record.len() as u64;
            batch.push((place, Arc::clone(record)));
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn has_written(&self, batch: &[(Place, Arc<Vec<u8>>)], is_done: bool) {
        let mut state = self.state.lock();
        for (place, record) in batch {
            state.records.remove(place);
            state.bytes -= record.len() as u64;
        }
        if !is_done {
            state.paused_until = rt::now() + PAUSE;
            self.failed.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        drop(state);
        self.changed.notify_all();
    }
}
