//! The names of files and directories in a data directory, and errors that name them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::error::IoContext;
use cenote_base::rt::Nanos;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Result};

/// The directory of the log's segments.
pub(crate) fn log_dir(data: &Path) -> PathBuf {
    data.join("log")
}

/// The directory of the spaces.
pub(crate) fn spaces_dir(data: &Path) -> PathBuf {
    data.join("spaces")
}

/// The name of a space's file, in the directory of the spaces.
pub(crate) fn space_name(space: u32) -> String {
    format!("{space:08x}.pages")
}

/// The space whose file has this name, if it is one's.
pub(crate) fn space_of(name: &str) -> Option<u32> {
    let stem = name.strip_suffix(".pages").filter(|stem| stem.len() == 8)?;
    u32::from_str_radix(stem, 16).ok()
}

/// Adds to an error what was being done, and to which file or directory.
pub(crate) fn doing<T>(result: io::Result<T>, what: &str, path: &Path) -> Result<T> {
    result.doing(|| format!("{what} {}", path.display()))
}

/// An empty directory with the directories of a database in it.
pub(crate) fn prepare(path: &Path) -> Result<()> {
    doing(fs::create_dir_all(path), "making", path)?;
    if !doing(fs::list(path), "listing", path)?.is_empty() {
        return Err(Error::Invalid(format!("the directory {} is not empty", path.display())));
    }
    for dir in [spaces_dir(path), log_dir(path)] {
        doing(fs::create_dir_all(&dir), "making", &dir)?;
    }
    doing(fs::sync_dir(path), "syncing", path)
}

/// How long a start waits for the lock of a killed server, which gives its memory back before its locks.
const LOCK_TIMEOUT: Nanos = Nanos::from_secs(1);

/// Takes a directory for this process, of those of this host.
pub(crate) fn lock(path: &Path) -> Result<Arc<File>> {
    let lock_path = path.join("lock");
    let lock = doing(fs::open(&lock_path, OpenOptions::CREATE), "opening", &lock_path)?;
    match doing(lock.lock_exclusive_within(LOCK_TIMEOUT), "locking", &lock_path)? {
        true => Ok(Arc::new(lock)),
        false => Err(Error::Busy(format!(
            "the data directory {} is in use by another server: stop that one first",
            path.display()
        ))),
    }
}
