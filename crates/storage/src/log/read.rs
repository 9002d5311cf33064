//! Reading the log back: one record, or everything from a position on.
//!
//! Bytes come from the ring while they are there, else from the files. A record says how far into its group it lies;
//! the reader verifies the checksum of the whole group before it believes the record.

use std::collections::BTreeMap;

use cenote_base::bytes::get_le;
use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use super::read_ahead::ReadAhead;
use super::ring::RING_MIN;
use super::state::LogState;
use crate::redo::{GROUP_HEADER, GroupHeader, GroupRef, MAX_GROUP, OFFSET_MASK, PageRecordRef, RECORD_HEADER};

/// A way to read the stream: fills as much of the buffer as there is.
type Read<'a> = dyn FnMut(Lsn, &mut [u8]) -> Result<usize> + 'a;

/// Bytes that a window asks for at a time.
const WINDOW: usize = 2 * MAX_GROUP;

const _: () = assert!(
    WINDOW as u64 <= RING_MIN,
    "what a window asks for lies in a ring at most once"
);

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

impl LogState {
    /// The record at `address`; from the files if the bytes of the ring, or of `files`, are damaged.
    pub(super) fn read_record(
        &self,
        address: RecordAddr,
        group: &mut Vec<u8>,
        files: &mut Read<'_>,
    ) -> Result<OwnedRecord> {
        let mut by_ring = |at, buffer: &mut [u8]| match self.read_ring(at, buffer) {
            0 => files(at, buffer),
            n => Ok(n),
        };
        self.record_by(&mut by_ring, address, group)
            .or_else(|_| self.record_by(&mut |at, buffer| self.read_durable(at, buffer), address, group))
    }

    fn record_by(&self, read: &mut Read<'_>, address: RecordAddr, group: &mut Vec<u8>) -> Result<OwnedRecord> {
        let at = address.position();
        let none = || self.placed(Error::corrupt(format!("there is no redo record at {address}")), at);
        if at >= self.tail() || !at.raw().is_multiple_of(8) {
            return Err(none());
        }
        let mut header = [0; RECORD_HEADER];
        if read(at, &mut header)? < RECORD_HEADER {
            return Err(none());
        }
        let offset = u64::from(get_le::<u32>(&header, 20).unwrap_or(0) & OFFSET_MASK);
        let start = Lsn::from_raw(at.raw().checked_sub(offset).ok_or_else(none)?);
        let group = self.group_by(read, start, group)?;
        Ok(OwnedRecord::copy(&group.record_at(offset as usize)?))
    }

    fn group_by<'a>(&self, read: &mut Read<'_>, start: Lsn, group: &'a mut Vec<u8>) -> Result<GroupRef<'a>> {
        let short = || self.placed(Error::corrupt(format!("no whole redo group at {start}")), start);
        group.resize(GROUP_HEADER, 0);
        if read(start, group)? < GROUP_HEADER {
            return Err(short());
        }
        let header = GroupHeader::parse(group, start).ok_or_else(short)?;
        group.resize(header.length, 0);
        if read(start, group)? < header.length {
            return Err(short());
        }
        GroupRef::parse(group, start).map_err(|e| self.placed(e, start))
    }

    fn placed(&self, error: Error, at: Lsn) -> Error {
        Error::corrupt(format!("{error} ({})", self.medium.place(at)))
    }

    /// Reads up to `buffer.len()` bytes at `at` from the ring; 0 if they are not there.
    fn read_ring(&self, at: Lsn, buffer: &mut [u8]) -> usize {
        let tail = self.tail();
        if at < self.ring_floor(tail) || at >= tail {
            return 0;
        }
        let length = buffer.len().min(tail.since(at) as usize);
        self.ring.read(at, &mut buffer[..length]);
        if self.ring.still_holds(at) { length } else { 0 }
    }

    /// Reads up to `buffer.len()` durable bytes at `at` from the files, up to the first missing segment.
    pub(super) fn read_durable(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let length = buffer.len().min(self.durable().since(at) as usize);
        self.medium.read(at, &mut buffer[..length])
    }

    /// Bytes at `at` below `until`: from the ring if they are there, else from the files, prefetched up to where the
    /// ring begins.
    fn read_on(&self, ahead: &mut ReadAhead, at: Lsn, until: Lsn, buffer: &mut [u8]) -> Result<usize> {
        match self.read_ring(at, buffer) {
            0 => {
                let ring = self.ring_floor(self.tail());
                let until = if at < ring { until.min(ring) } else { until };
                self.medium.read_on(ahead, at, until, buffer)
            }
            n => Ok(n),
        }
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

/// A stretch of the stream in memory, moved along by a reader.
#[derive(Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    start: Lsn,
    filled: usize,
}

impl Window {
    /// Bytes from `at` on, `wanted` of them if the source has that many. The source may give fewer at a time than it is
    /// asked for.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get(
        &mut self,
        at: Lsn,
        wanted: usize,
        mut read: impl FnMut(Lsn, &mut [u8]) -> Result<usize>,
    ) -> Result<&[u8]> {
        assert!(wanted <= WINDOW, "a window does not hold {wanted} bytes");
        let end = self.start.advance(self.filled as u64);
        if at < self.start || at > end {
            (self.start, self.filled) = (at, 0);
        }
        if at.advance(wanted as u64) > self.start.advance(self.filled as u64) {
            self.move_to(at);
            while self.filled < wanted {
                let end = at.advance(self.filled as u64);
                match read(end, &mut self.bytes[self.filled..])? {
                    0 => break,
                    n => self.filled += n,
                }
                assert!(
                    self.filled <= self.bytes.len(),
                    "a source gives no more than it is asked for"
                );
            }
        }
        Ok(&self.bytes[at.since(self.start) as usize..self.filled])
    }

    /// Drops the bytes before `at`.
    fn move_to(&mut self, at: Lsn) {
        assert!(
            self.start <= at && at.since(self.start) <= self.filled as u64,
            "the window moves forwards, and not behind its end"
        );
        self.bytes.resize(WINDOW, 0);
        let passed = at.since(self.start) as usize;
        self.bytes.copy_within(passed..self.filled, 0);
        (self.start, self.filled) = (at, self.filled - passed);
    }

    /// Drops what was read, which is not to be trusted.
    pub fn forget(&mut self) {
        self.filled = 0;
    }

    /// The group at `at`, or why there is none.
    ///
    /// # Errors
    /// Those of `read`.
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
    state: &'a LogState,
    at: Lsn,
    until: Lsn,
    window: Window,
    ahead: ReadAhead,
}

impl<'a> Scan<'a> {
    /// All groups from `from` on that are durable now.
    pub(super) fn new(state: &'a LogState, from: Lsn) -> Scan<'a> {
        Scan {
            state,
            at: from,
            until: state.durable(),
            window: Window::default(),
            ahead: ReadAhead::default(),
        }
    }

    /// The next group; `None` at the position that was durable when the scan began.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place, if a durable group is damaged; an I/O error.
    #[allow(clippy::should_implement_trait, reason = "the group borrows from the scan")]
    pub fn next(&mut self) -> Result<Option<GroupRef<'_>>> {
        if self.at >= self.until {
            return Ok(None);
        }
        let (at, until, state) = (self.at, self.until, self.state);
        let ahead = &mut self.ahead;
        let found = self
            .window
            .group(at, |at, buffer| state.read_on(ahead, at, until, buffer))?;
        if found.is_err() {
            // The ring may be damaged there; the files have the group too.
            self.window.forget();
        }
        let group = self
            .window
            .group(at, |at, buffer| state.read_durable(at, buffer))?
            .map_err(|e| state.placed(e, at))?;
        assert!(at < group.end(), "a scan goes forwards");
        self.at = group.end();
        Ok(Some(group))
    }

    /// Where the next group begins.
    pub fn position(&self) -> Lsn {
        self.at
    }
}

/// See [`super::Log::redo_of`].
pub(super) fn redo_of(mut scan: Scan<'_>, pages: &BTreeMap<PageId, Lsn>) -> Result<BTreeMap<PageId, Vec<OwnedRecord>>> {
    let mut found: BTreeMap<PageId, Vec<OwnedRecord>> = BTreeMap::new();
    while let Some(group) = scan.next()? {
        for record in group.records() {
            let record = record?;
            let until = pages.get(&record.page);
            if until.is_none_or(|until| record.lsn > *until && !record.is_base) {
                continue;
            }
            let records = found.entry(record.page).or_default();
            if record.is_base {
                records.clear();
            }
            records.push(OwnedRecord::copy(&record));
        }
    }
    Ok(found)
}
