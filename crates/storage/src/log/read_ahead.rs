//! Reading the log's files forwards, ahead of the scan that looks at the bytes.
//!
//! A few large reads are under way while the scan looks at the bytes before them. So a scan takes as long as the
//! transfer of its bytes, and not as long as all waits for the drive. A scan holds [`DEPTH`] reads of [`CHUNK_MAX`]
//! bytes at most. Bytes mean nothing until the scan has verified their group, so reading on behind the end of the log
//! costs time only.

use std::collections::VecDeque;

use cenote_base::error::IoContext;
use cenote_base::rt::fs::{self, Batch, IoRequest};
use cenote_base::{Error, Lsn, Result};

use super::segments::Segments;
use crate::reads::whole;

/// Bytes of the first read, and of reads once a scan has gone on for a while.
const CHUNK_MIN: usize = 256 << 10;
const CHUNK_MAX: usize = 1 << 20;
/// Reads under way.
const DEPTH: usize = 4;

const _: () = assert!(CHUNK_MIN > 0 && CHUNK_MIN <= CHUNK_MAX, "reads grow from the first");

/// The reads of one scan.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// The last read that came: its position and its bytes.
    here: Option<(Lsn, Box<[u8]>)>,
    /// Reads under way, each behind the one before.
    in_flight: VecDeque<ReadInFlight>,
    /// Where the next read begins, and of how many bytes it is.
    next: Lsn,
    chunk: usize,
}

struct ReadInFlight {
    at: Lsn,
    batch: Batch,
}

impl ReadAhead {
    /// Bytes at `at`, as many as have come and fit into `buffer`, none at or above `until`; 0 if the segment is
    /// missing.
    ///
    /// # Errors
    /// An I/O error of a read or of opening a segment; [`Error::Corrupt`] or [`Error::Mismatch`] if a segment's header
    /// does not fit.
    pub fn read(&mut self, segments: &Segments, at: Lsn, until: Lsn, buffer: &mut [u8]) -> Result<usize> {
        if self.rest(at).is_none() {
            self.advance(segments, at, until)?;
        }
        let Some(rest) = self.rest(at) else { return Ok(0) };
        let length = rest.len().min(buffer.len()).min(until.since(at) as usize);
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    /// The last read, from `at` on.
    fn rest(&self, at: Lsn) -> Option<&[u8]> {
        let (start, bytes) = self.here.as_ref()?;
        let skipped = at.raw().checked_sub(start.raw())?;
        bytes.get(skipped as usize..).filter(|rest| !rest.is_empty())
    }

    /// Waits for the bytes at `at`, with more to come behind them.
    fn advance(&mut self, segments: &Segments, at: Lsn, until: Lsn) -> Result<()> {
        self.here = None;
        if self.in_flight.front().is_none_or(|read| read.at != at) {
            // The scan went elsewhere: the reads under way are of no use.
            *self = ReadAhead {
                next: at,
                chunk: CHUNK_MIN,
                ..ReadAhead::default()
            };
        }
        self.fill(segments, until)?;
        let Some(read) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.here = Some((read.at, read.complete(segments)?));
        self.fill(segments, until)
    }

    /// Starts the next reads, until enough are under way.
    fn fill(&mut self, segments: &Segments, until: Lsn) -> Result<()> {
        while self.in_flight.len() < DEPTH && self.next < until {
            let wanted = until.since(self.next).min(self.chunk as u64) as usize;
            let Some((file, offset, length)) = segments.locate(self.next, wanted)? else {
                return Ok(());
            };
            assert!(length > 0, "a read at {} is of no bytes", self.next);
            let request = IoRequest::read(file, offset, vec![0; length].into(), 0);
            self.in_flight.push_back(ReadInFlight {
                at: self.next,
                batch: fs::submit(vec![request]),
            });
            self.next = self.next.advance(length as u64);
            self.chunk = (2 * self.chunk).min(CHUNK_MAX);
        }
        Ok(())
    }
}

impl ReadInFlight {
    /// Its bytes, once they are there; all of them.
    fn complete(self, segments: &Segments) -> Result<Box<[u8]>> {
        let place = || format!("reading log {}", segments.place(self.at));
        match self.batch.complete().pop() {
            Some(request) => whole(request).doing(place),
            None => Err(Error::corrupt(place())),
        }
    }
}
