//! A mirror's files at its memory node: what is lent to a holder on another machine, and what is left when it is not.

use super::journal::{JOURNAL, Replayed, replay};
use crate::backing::{Backing, Kind};
use crate::map::Mapping;
use cenote_base::rt::fs::{self, OpenOptions};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::path::Path;

/// Maps `len` bytes of a mirror's file, or of its journal's, to be registered: all of them have space. `anew`: what was
/// there is lost. It is not locked.
///
/// # Errors
/// [`Error::Full`]; [`Error::Mismatch`] if it has another length; those of files.
pub fn map_lent(path: &Path, len: u64, anew: bool) -> Result<Mapping> {
    let backing = Backing::beside_at(path, None)?;
    if anew {
        backing.resize(len)?;
    }
    let have = backing.len()?;
    if have < len || (have != len && backing.kind == Kind::File) {
        let (have, len) = (ByteSize(have), ByteSize(len));
        let text = format!(
            "{}: length: the file has {have}, what is lent of it {len}",
            backing.named()
        );
        return Err(Error::Mismatch(text));
    }
    backing.take_space(0, len)?;
    let bytes = usize::try_from(len).map_err(|_| Error::Invalid(format!("{len} bytes to map")))?;
    backing.map(bytes)
}

/// Puts what a journal has into the mirror's file. Nothing writes to either any more. It may be done again.
///
/// # Errors
/// [`Error::Mismatch`] if it is no journal; those of files.
pub fn apply(journal: &Path, mirror: &Path) -> Result<Replayed> {
    let failed = |what: &Path| {
        let name = what.display().to_string();
        move |error| Error::io(name, error)
    };
    let bytes = fs::read(journal).map_err(failed(journal))?;
    if bytes.len() as u64 != JOURNAL && bytes.iter().all(|byte| *byte == 0) {
        // It was being made.
        return Ok(Replayed::default());
    }
    let file = fs::open(mirror, OpenOptions::WRITE).map_err(failed(mirror))?;
    let len = file.len().map_err(failed(mirror))?;
    replay(&bytes, len, |at, run| file.write_at(run, at).map_err(failed(mirror)))
}
