//! Frames of the log on their way to its files: written and synced by a thread that holds no lock which others want, so
//! that none waits for a drive.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cenote_base::error::IoContext;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Result};

use super::segments::{make_zeros, path_of};

/// What is to be done to the log's files, in this order.
#[derive(Debug)]
pub(super) enum Change {
    /// A segment begins: a spare one, if there is one.
    Begin { number: u64, spare: Option<PathBuf> },
    /// Frames, within a segment.
    Write { at: u64, bytes: Vec<u8> },
}

/// The changes that are not done yet.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<Change>);

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn begin(&mut self, number: u64, spare: Option<PathBuf>) {
        self.0.push(Change::Begin { number, spare });
    }

    /// Frames that follow each other are one write.
    pub fn write(&mut self, at: u64, frame: Vec<u8>) {
        if let Some(Change::Write { at: before, bytes }) = self.0.last_mut()
            && *before + bytes.len() as u64 == at
        {
            return bytes.extend(frame);
        }
        self.0.push(Change::Write { at, bytes: frame });
    }
}

/// Changes that are to be done and synced, and up to where the log survives then.
pub(crate) struct Unsynced {
    pub(super) dir: PathBuf,
    pub(super) segment: u64,
    pub(super) changes: Changes,
    /// Those that have bytes which are not synced, and those that were made.
    pub(super) files: BTreeMap<u64, File>,
    pub(super) to: u64,
}

impl Unsynced {
    /// # Errors
    /// An I/O error, after which the log is not to be used.
    pub fn sync(&mut self) -> Result<()> {
        self.write()?;
        for (number, file) in &self.files {
            file.sync_data()
                .doing(|| format!("syncing {}", path_of(&self.dir, *number).display()))?;
        }
        Ok(())
    }

    /// Does the changes, which are not synced then.
    ///
    /// # Errors
    /// As of [`Unsynced::sync`].
    pub fn write(&mut self) -> Result<()> {
        for change in std::mem::take(&mut self.changes.0) {
            match change {
                Change::Begin { number, spare } => {
                    let file = self.begin(number, spare)?;
                    self.files.insert(number, file);
                }
                Change::Write { at, bytes } => self.write_at(at, &bytes)?,
            }
        }
        Ok(())
    }

    fn begin(&self, number: u64, spare: Option<PathBuf>) -> Result<File> {
        let path = path_of(&self.dir, number);
        let spare = match spare {
            Some(spare) => spare,
            None => make_zeros(&self.dir.join("new"), self.segment)?,
        };
        let begun = (|| {
            fs::rename(&spare, &path)?;
            // Before its bytes change: by its former name it may be a segment that is needed still.
            fs::sync_dir(&self.dir)?;
            fs::open(&path, OpenOptions::WRITE)
        })();
        begun.doing(|| format!("making {}", path.display()))
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let number = at / self.segment;
        let path = path_of(&self.dir, number);
        let file = self
            .files
            .get(&number)
            .ok_or_else(|| Error::corrupt(format!("segment {} is missing", path.display())))?;
        file.write_at(bytes, at % self.segment)
            .doing(|| format!("writing {}", path.display()))
    }
}
