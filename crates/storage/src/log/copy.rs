//! A copy of part of the log, for a backup or out of one, as segments of another database.

use std::path::Path;

use cenote_base::{Error, Lsn, Result};

use super::recover::find_end;
use super::ring::{BLOCK, block_of};
use super::segments::{Generations, Segments, read_files};
use super::state::LogState;

const CHUNK: usize = 1 << 20;

/// Reads the log of an archive.
pub(crate) type ReadArchive<'a> = dyn Fn(Lsn, &mut [u8]) -> Result<usize> + 'a;

/// Where a copy of the log is read from.
pub(crate) enum LogSource<'a> {
    /// A log in use: what is durable of it.
    Live(&'a LogState),
    /// The files of a backup.
    Files(Segments),
    /// An archive: how much it fills of a buffer, from a position on; and the bytes of a segment.
    Archive(&'a ReadArchive<'a>, u64),
}

impl LogSource<'_> {
    /// The log of a backup.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `dir` has no segment with a whole header; an I/O error.
    pub fn of_copy(dir: &Path, database: u128) -> Result<LogSource<'static>> {
        let payload = Segments::recorded_payload(dir)?
            .ok_or_else(|| Error::corrupt(format!("there are no log segments in {}", dir.display())))?;
        let generations = Generations::default();
        Ok(LogSource::Files(Segments::open(dir, database, payload, generations)?))
    }

    fn payload(&self) -> u64 {
        match self {
            LogSource::Live(log) => log.medium.segment_bytes(),
            LogSource::Files(segments) => segments.payload(),
            LogSource::Archive(_, segment_bytes) => *segment_bytes,
        }
    }

    fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<()> {
        let read = match self {
            LogSource::Live(log) => log.read_durable(at, buffer)?,
            LogSource::Files(segments) => read_files(segments, at, buffer)?,
            LogSource::Archive(read, _) => read(at, buffer)?,
        };
        if read < buffer.len() {
            return Err(Error::corrupt(format!(
                "the log ends {read} bytes after {at}, {} are needed",
                buffer.len()
            )));
        }
        Ok(())
    }
}

/// Part of the log that is written as segments of another database.
pub(crate) struct LogCopy<'a> {
    source: LogSource<'a>,
    to: Segments,
    from: Lsn,
    /// The first block that is not there, or not all of it.
    at: Lsn,
    buffer: Vec<u8>,
}

impl<'a> LogCopy<'a> {
    /// From `from` on, in the directory `dir`, which is empty, for the database `database`.
    ///
    /// # Errors
    /// An I/O error.
    pub fn new(source: LogSource<'a>, dir: &Path, database: u128, from: Lsn) -> Result<LogCopy<'a>> {
        let to = Segments::open(dir, database, source.payload(), Generations::default())?;
        let at = block_of(from);
        to.prepare(to.number_of(at), true)?;
        Ok(LogCopy {
            source,
            to,
            from,
            at,
            buffer: vec![0; CHUNK],
        })
    }

    /// Copies it up to `end`, a group's end.
    ///
    /// # Errors
    /// Those of the source; an I/O error.
    pub fn copy_to(&mut self, end: Lsn) -> Result<()> {
        let (mut at, to) = (self.at, &self.to);
        while at < end {
            let number = to.number_of(at);
            to.prepare(number, true)?;
            let length = end.min(to.start_of(number + 1)).since(at).min(CHUNK as u64) as usize;
            let blocks = &mut self.buffer[..length.next_multiple_of(BLOCK as usize)];
            // What its first block has before it need not be there any more.
            let before = if at < self.from {
                self.from.since(at) as usize
            } else {
                0
            };
            blocks[..before].fill(0);
            if before < length {
                self.source
                    .read(at.advance(before as u64), &mut blocks[before..length])?;
            }
            blocks[length..].fill(0);
            to.write(at, blocks)?;
            at = at.advance(length as u64);
            if at == end || to.number_of(at) != number {
                to.sync(number)?;
            }
        }
        // The last block is written again when there is more of it.
        self.at = self.at.max(block_of(at));
        Ok(())
    }

    /// Copies what is left of it up to `end`, and verifies all of it.
    ///
    /// # Errors
    /// Those of [`LogCopy::copy_to`]; [`Error::Corrupt`] if it cannot be read back.
    pub fn finish(mut self, end: Lsn) -> Result<()> {
        self.copy_to(end)?;
        let found = find_end(&self.to, self.from, end)?.mark.durable;
        match found == end {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "the log was copied up to {end}, but can be read up to {found}"
            ))),
        }
    }
}
