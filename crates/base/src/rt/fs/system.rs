//! The files of a machine, as a runtime provides them.

use std::io;
use std::path::Path;

use super::batch::{Batch, IoRequest};
use super::file::{File, OpenOptions};

/// The files of a machine, as a runtime provides them.
pub trait FileSystem: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<File>;
    /// Makes a directory and those above it.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Renames a file or directory, replacing a file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and all in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory survive a crash.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Whether there is a file or directory of this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Bytes that a user may still write under this directory.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Starts requests; see [`submit`](super::submit). As is, they are done at once, one after another.
    fn submit(&self, requests: Vec<IoRequest>) -> Batch {
        Batch::done(requests.into_iter().map(IoRequest::run).collect())
    }
}
