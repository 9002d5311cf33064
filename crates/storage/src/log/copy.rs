//! A copy of part of the log, for a backup or out of one, as segments of another database.

use std::path::Path;

use cenote_base::{Error, Lsn, Result};

use super::recover::find_end;
use super::ring::{BLOCK, block_of};
use super::segments::{Generations, Segments, read_files};
use super::state::LogState;

const CHUNK: usize = 1 << 20;

/// Where a copy of the log is read from.
pub(crate) enum LogSource<'a> {
    /// A log in use: what is durable of it.
    Live(&'a LogState),
    /// The files of a backup.
    Files(Segments),
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
        }
    }

    fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<()> {
        let read = match self {
            LogSource::Live(log) => log.read_durable(at, buffer)?,
            LogSource::Files(segments) => read_files(segments, at, buffer)?,
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

/// Writes the log from `from` to `to` into `dir`, which is empty, for database `database`, and
/// verifies it there. Returns its bytes.
pub(crate) fn copy_log(source: &LogSource<'_>, dir: &Path, database: u128, from: Lsn, to: Lsn) -> Result<u64> {
    let segments = Segments::open(dir, database, source.payload(), Generations::default())?;
    let mut buffer = vec![0; CHUNK];
    let mut at = block_of(from);
    segments.prepare(segments.number_of(at), true)?;
    while at < to {
        let number = segments.number_of(at);
        segments.prepare(number, true)?;
        let length = to.min(segments.start_of(number + 1)).since(at).min(CHUNK as u64) as usize;
        let blocks = &mut buffer[..length.next_multiple_of(BLOCK as usize)];
        source.read(at, &mut blocks[..length])?;
        blocks[length..].fill(0);
        segments.write(at, blocks)?;
        at = at.advance(length as u64);
        if at == to || segments.number_of(at) != number {
            segments.sync(number)?;
        }
    }
    let end = find_end(&segments, from, to)?.mark.durable;
    if end != to {
        return Err(Error::corrupt(format!(
            "the log was copied up to {to}, but can be read up to {end}"
        )));
    }
    Ok(to.since(from))
}
