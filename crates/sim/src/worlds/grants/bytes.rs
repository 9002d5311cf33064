//! A grant's bytes as a holder has them: a file's, or those of a range of the device that hosts share.

use std::path::Path;

use cenote_base::rt::{Nanos, fs};
use cenote_base::{Error, Result};
use cenote_fabric::{FileRange, RegionMemory, SharedDevice};

use super::model::offset;
use super::stage::Stage;

/// See the module.
pub(super) enum Bytes {
    File(fs::File),
    Range(RegionMemory),
}

/// A word's bytes in a range. Not in its first lines: a processor prefetches nothing that a process does not map, and
/// the simulator's go on for four lines beyond what is accessed, whichever range they are of.
pub(super) fn offset_in_range(word: usize) -> u64 {
    4096 + offset(word)
}

impl Bytes {
    /// As a region is: the file is locked, if it is to be, then mapped.
    pub fn of_file(stage: &Stage, path: &Path) -> Result<Self> {
        let failed = |error| Error::io(format!("mapping {}", path.display()), error);
        let file = fs::open(path, fs::OpenOptions::WRITE).map_err(failed)?;
        if stage.grants.locks && !file.lock_exclusive_within(Nanos::from_millis(100)).map_err(failed)? {
            return Err(Error::Busy(format!("{} is in use by another process", path.display())));
        }
        stage.machine().map(path);
        Ok(Self::File(file))
    }

    pub fn of_range(stage: &Stage, path: &Path, range: FileRange) -> Result<Self> {
        let memory = SharedDevice::open(path)?.map(range)?;
        stage.machine().map_range(range);
        Ok(Self::Range(memory))
    }

    pub fn write(&self, word: usize, value: u64) -> std::io::Result<()> {
        match self {
            Self::File(file) => file.write_at(&value.to_le_bytes(), offset(word)).map(drop),
            Self::Range(memory) => {
                memory.span(offset_in_range(word), 8).copy_in(0, &value.to_le_bytes());
                Ok(())
            }
        }
    }

    pub fn read(&self, word: usize) -> std::io::Result<u64> {
        let mut found = [0; 8];
        match self {
            Self::File(file) => file.read_exact_at(&mut found, offset(word))?,
            Self::Range(memory) => found.copy_from_slice(&memory.span(offset_in_range(word), 8).to_vec()),
        }
        Ok(u64::from_le_bytes(found))
    }
}
