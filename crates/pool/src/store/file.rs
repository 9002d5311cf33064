//! The grant table in a file, replaced as a whole. The process that has the directory's lock keeps it, until it ends.

use super::{GrantTableStore, Lead, Leadership};
use cenote_base::rt::{Nanos, fs};
use cenote_base::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;

const BOOK: &str = "pool.json";
const LOCK: &str = "lock";
/// How long a former manager may take to end.
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(200);

/// A directory for a grant table.
#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    /// It is made when it is needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }
}

impl GrantTableStore for FileStore {
    fn lead(&self, _name: &str) -> Result<Lead> {
        let directory = &self.directory;
        let failed = |error| Error::io(format!("the pool's directory {}", directory.display()), error);
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = fs::open(directory.join(LOCK), fs::OpenOptions::CREATE).map_err(failed)?;
        if !lock.lock_exclusive_within(LOCK_TIMEOUT).map_err(failed)? {
            let text = format!("{} is in use by another manager", directory.display());
            return Err(Error::Busy(text));
        }
        let path = directory.join(BOOK);
        Ok(Lead::Here(Arc::new(FileLeadership { path, _lock: lock })))
    }
}

struct FileLeadership {
    path: PathBuf,
    /// Held for its lock.
    _lock: fs::File,
}

impl Leadership for FileLeadership {
    fn leads(&self) -> bool {
        true
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }

    fn read(&self) -> Result<Option<Vec<u8>>> {
        let failed = |error| Error::io(format!("reading {}", self.path.display()), error);
        match fs::exists(&self.path).map_err(failed)? {
            true => fs::read(&self.path).map(Some).map_err(failed),
            false => Ok(None),
        }
    }

    fn write(&self, grant_table: &[u8]) -> Result<()> {
        let failed = |error| Error::io(format!("writing {}", self.path.display()), error);
        fs::replace(&self.path, grant_table).map_err(failed)
    }

    /// With its process: there is no other to whom it could be left.
    fn resign(&self) {}
}
