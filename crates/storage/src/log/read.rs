//! Reading the log back: one record, a page's chain, or everything from a position on.
//!
//! Bytes come from the ring while they are there, else from the files. Nothing is believed
//! before the checksum of its whole group has been verified: a record says how far into its group
//! it lies.

use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use super::{Core, Log};
use crate::log::segments::Segments;
use crate::redo::{GROUP_HEADER, GroupHeader, GroupRef, MAX_GROUP, OFFSET_MASK, PageRecordRef, RECORD_HEADER, u32_at};

/// A way to read the stream: fills as much of the buffer as there is.
type ReadFn = fn(&Core, Lsn, &mut [u8]) -> Result<usize>;

/// Bytes read ahead by a scan.
const WINDOW: usize = 2 * MAX_GROUP;

/// A page record copied out of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    address: RecordAddr,
    lsn: Lsn,
    bytes: Box<[u8]>,
}

impl OwnedRecord {
    /// A copy that outlives the group.
    pub fn copy(record: &PageRecordRef<'_>) -> OwnedRecord {
        OwnedRecord {
            address: record.address,
            lsn: record.lsn,
            bytes: record.bytes().into(),
        }
    }

    /// The record, to be applied.
    pub fn get(&self) -> PageRecordRef<'_> {
        PageRecordRef::from_copy(&self.bytes, self.address, self.lsn)
            .expect("the bytes were a record when they were copied")
    }
}

impl Log {
    /// The page record at `address`, its group verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or it is damaged, or its segment is gone.
    pub fn read_record(&self, address: RecordAddr) -> Result<OwnedRecord> {
        self.core.read_record(address, &mut Vec::new())
    }

    /// All durable groups from `from` on, which has to be a group's start. What becomes durable
    /// later is not included.
    pub fn scan(&self, from: Lsn) -> Scan<'_> {
        Scan {
            core: &self.core,
            at: from,
            until: self.durable(),
            window: Window::default(),
        }
    }

    /// The records that build `page` from its state at `base_lsn` (zero: from nothing), oldest
    /// first, following the chain back from `head`. They begin with the first record that is
    /// above `base_lsn`, or with the newest that needs none before it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the chain leads to another page, forwards, or to a damaged record.
    pub fn collect_chain(&self, page: PageId, head: RecordAddr, base_lsn: Lsn) -> Result<Vec<OwnedRecord>> {
        let (mut chain, mut at, mut group) = (Vec::new(), head, Vec::new());
        // Groups do not overlap: a record that begins before `base_lsn` ends by it.
        while !at.is_none() && at.position() >= base_lsn.raw() {
            let record = self.core.read_record(at, &mut group)?;
            let found = record.get();
            if found.page != page || found.prev.position() >= at.position() {
                return Err(Error::corrupt(format!(
                    "the redo chain of page {page} leads to record {at}, which is of page {} and points to {}",
                    found.page, found.prev
                )));
            }
            at = if found.is_base { RecordAddr::NONE } else { found.prev };
            chain.push(record);
        }
        chain.reverse();
        Ok(chain)
    }
}

impl Core {
    /// The record at `address`; from the files if what the ring has is damaged.
    fn read_record(&self, address: RecordAddr, group: &mut Vec<u8>) -> Result<OwnedRecord> {
        self.record_by(Self::read, address, group)
            .or_else(|_| self.record_by(Self::read_durable, address, group))
    }

    fn record_by(&self, read: ReadFn, address: RecordAddr, group: &mut Vec<u8>) -> Result<OwnedRecord> {
        let at = Lsn::from_raw(address.position());
        let none = || self.placed(Error::corrupt(format!("there is no redo record at {address}")), at);
        if at >= self.tail() || !at.raw().is_multiple_of(8) {
            return Err(none());
        }
        let mut header = [0; RECORD_HEADER];
        if read(self, at, &mut header)? < RECORD_HEADER {
            return Err(none());
        }
        let offset = u64::from(u32_at(&header, 20).unwrap_or(0) & OFFSET_MASK);
        let start = Lsn::from_raw(at.raw().checked_sub(offset).ok_or_else(none)?);
        let group = self.group_by(read, start, group)?;
        Ok(OwnedRecord::copy(&group.record_at(offset as usize)?))
    }

    fn group_by<'a>(&self, read: ReadFn, start: Lsn, group: &'a mut Vec<u8>) -> Result<GroupRef<'a>> {
        let short = || self.placed(Error::corrupt(format!("no whole redo group at {start}")), start);
        group.resize(GROUP_HEADER, 0);
        if read(self, start, group)? < GROUP_HEADER {
            return Err(short());
        }
        let header = GroupHeader::parse(group, start).ok_or_else(short)?;
        group.resize(header.length, 0);
        if read(self, start, group)? < header.length {
            return Err(short());
        }
        GroupRef::parse(group, start).map_err(|e| self.placed(e, start))
    }

    fn placed(&self, error: Error, at: Lsn) -> Error {
        Error::corrupt(format!("{error} ({})", self.segments.place(at)))
    }

    /// Reads up to `buffer.len()` bytes at `at`: from the ring if they are there, else what is in
    /// the files up to the first missing segment.
    fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let tail = self.tail();
        if at >= self.ring_floor(tail) && at < tail {
            let length = buffer.len().min(tail.since(at) as usize);
            self.ring.read(at, &mut buffer[..length]);
            if self.ring.still_holds(at) {
                return Ok(length);
            }
        }
        self.read_durable(at, buffer)
    }

    /// As [`Core::read`], from the files alone.
    pub(super) fn read_durable(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let length = buffer.len().min(self.durable().since(at) as usize);
        read_files(&self.segments, at, &mut buffer[..length])
    }

    fn ring_floor(&self, tail: Lsn) -> Lsn {
        self.ring.floor(tail).max(self.ring_start)
    }

    /// See [`Log::ring_scan_start`].
    pub(super) fn ring_scan_start(&self) -> Lsn {
        let tail = self.tail();
        let floor = self.ring_floor(tail);
        self.ring.first_boundary(floor, tail).unwrap_or(tail)
    }
}

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

/// A stretch of the stream in memory, moved along by a reader.
#[derive(Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    start: Lsn,
    filled: usize,
}

impl Window {
    /// Bytes from `at` on, `wanted` of them if the source has that many.
    pub fn get(&mut self, at: Lsn, wanted: usize, read: impl FnOnce(Lsn, &mut [u8]) -> Result<usize>) -> Result<&[u8]> {
        let end = self.start.advance(self.filled as u64);
        if at < self.start || at.advance(wanted as u64) > end {
            self.bytes.resize(WINDOW, 0);
            self.filled = 0;
            self.filled = read(at, &mut self.bytes)?;
            self.start = at;
        }
        Ok(&self.bytes[at.since(self.start) as usize..self.filled])
    }

    /// What was read is not to be trusted.
    pub fn forget(&mut self) {
        self.filled = 0;
    }

    /// The group at `at`, or why there is none.
    pub fn group(
        &mut self,
        at: Lsn,
        mut read: impl FnMut(Lsn, &mut [u8]) -> Result<usize>,
    ) -> Result<Result<GroupRef<'_>>> {
        let bytes = self.get(at, GROUP_HEADER, &mut read)?;
        let length = GroupHeader::parse(bytes, at).map_or(GROUP_HEADER, |h| h.length);
        Ok(GroupRef::parse(self.get(at, length, &mut read)?, at))
    }
}

/// The groups of the log in order; see [`Log::scan`].
pub struct Scan<'a> {
    core: &'a Core,
    at: Lsn,
    until: Lsn,
    window: Window,
}

impl Scan<'_> {
    /// The next group; `None` at the end of what was durable when the scan began.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place, if what was durable is damaged; an I/O error.
    #[allow(clippy::should_implement_trait, reason = "the group borrows from the scan")]
    pub fn next(&mut self) -> Result<Option<GroupRef<'_>>> {
        if self.at >= self.until {
            return Ok(None);
        }
        let (at, core) = (self.at, self.core);
        if self.window.group(at, |at, buffer| core.read(at, buffer))?.is_err() {
            // Damaged in the ring, perhaps: the files have it too.
            self.window.forget();
        }
        let group = self
            .window
            .group(at, |at, buffer| core.read_durable(at, buffer))?
            .map_err(|e| core.placed(e, at))?;
        self.at = group.end();
        Ok(Some(group))
    }

    /// Where the next group begins.
    pub fn position(&self) -> Lsn {
        self.at
    }
}
