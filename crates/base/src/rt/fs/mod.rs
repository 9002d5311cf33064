//! Files, behind the seam.
//!
//! [`FileSystem`] and [`FileOps`] are what a runtime implements; [`File`] and the free functions
//! are what a database uses. The operating system's is [`OsFileSystem`]. The crate `testkit` has
//! one that keeps files in memory, knows what has been synced, and fails as told.
//!
//! What holds for all of them: a write is readable at once, and survives a crash only after
//! [`File::sync_data`] of that file; a name survives only after [`sync_dir`] of its directory.
//! **A failed sync is final**: what was unsynced may be lost though a later sync succeeds, so it is never retried
//! (design, section 8).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod batch;
mod file;
mod os;
mod system;

pub use batch::{Batch, IoOp, IoRequest};
pub use file::{File, FileOps, OpenOptions};
pub use os::OsFileSystem;
pub use system::FileSystem;

use super::file_system;

/// Runs `f` with `files` in place of the operating system's, on this thread and on those that it
/// starts. A runtime that was entered keeps its own.
pub fn with<T>(files: Arc<dyn FileSystem>, f: impl FnOnce() -> T) -> T {
    super::os::with_files(Some(files), f)
}

/// Whether an error says that the system is short of something for the moment, or was disturbed, and nothing of the
/// file.
pub fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::INTR,
        Errno::STALE,
        Errno::AGAIN,
    ];
    passing
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Opens a file.
///
/// # Errors
/// Those of the file system: `NotFound` if the file is missing and is not to be made, `AlreadyExists` if it must not
/// exist.
pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<File> {
    file_system().open(path.as_ref(), options)
}

/// Makes a directory and those above it.
///
/// # Errors
/// Those of the file system.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    file_system().create_dir_all(path.as_ref())
}

/// Renames a file or directory, replacing a file. Survives a crash after [`sync_dir`].
///
/// # Errors
/// Those of the file system: `NotFound` if there is no `from`.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    file_system().rename(from.as_ref(), to.as_ref())
}

/// Removes a file.
///
/// # Errors
/// Those of the file system: `NotFound` if there is no such file.
pub fn remove(path: impl AsRef<Path>) -> io::Result<()> {
    file_system().remove(path.as_ref())
}

/// Removes a directory and all in it.
///
/// # Errors
/// Those of the file system: `NotFound` if there is no such directory.
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    file_system().remove_dir_all(path.as_ref())
}

/// The names in a directory, sorted.
///
/// # Errors
/// Those of the file system: `NotFound` if there is no such directory.
pub fn list(dir: impl AsRef<Path>) -> io::Result<Vec<String>> {
    file_system().list(dir.as_ref())
}

/// Makes the names in a directory survive a crash.
///
/// # Errors
/// Those of the file system. Names that were not synced may be lost, whatever a later sync says.
pub fn sync_dir(dir: impl AsRef<Path>) -> io::Result<()> {
    file_system().sync_dir(dir.as_ref())
}

/// Whether there is a file or directory of this name.
///
/// # Errors
/// Those of the file system; a missing file is no error.
pub fn exists(path: impl AsRef<Path>) -> io::Result<bool> {
    file_system().exists(path.as_ref())
}

/// Bytes that may still be written under this directory.
///
/// # Errors
/// Those of the file system.
pub fn free_bytes(dir: impl AsRef<Path>) -> io::Result<u64> {
    file_system().free_bytes(dir.as_ref())
}

/// Starts requests; [`Batch::complete`] waits for them. Requests of one batch must not overlap.
pub fn submit(requests: Vec<IoRequest>) -> Batch {
    file_system().submit(requests)
}

/// The whole of a file.
///
/// # Errors
/// Those of [`open`] and of [`File::read_exact_at`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::READ)?;
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Replaces a small file so that after a crash it holds either the old or the new bytes: written
/// under another name, synced, renamed, directory synced.
///
/// # Errors
/// Those of the file system; the file holds either the old or the new bytes then, too.
pub fn replace(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    Replacement::write(path, bytes)?.publish()
}

/// New bytes of a small file, synced under a name of their own. Dropped, they are gone.
///
/// The name is drawn: two processes that replace one file, on one host or two, do not write to one file. Of one that is
/// stopped after the other has renamed, nothing reaches what the other made.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    next: PathBuf,
}

impl Replacement {
    /// Writes and syncs `bytes` beside `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let next = path.with_extension(format!("{:016x}.next", super::random()));
        let file = open(&next, OpenOptions::NEW)?;
        let written = Self { path, next };
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        Ok(written)
    }

    /// Gives them the file's name, durably.
    ///
    /// # Errors
    /// Those of the file system; the file holds either the old or the new bytes then.
    pub fn publish(mut self) -> io::Result<()> {
        rename(&self.next, &self.path)?;
        self.next = PathBuf::new();
        sync_dir(self.path.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.next.as_os_str().is_empty() {
            let _ = remove(&self.next);
        }
    }
}

/// Removes what processes that were killed over a [`replace`] of `path` have left. One that runs yet fails.
///
/// # Errors
/// Those of the file system.
pub fn remove_unpublished(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let dir = path.parent().unwrap_or(Path::new("."));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_left = |name: &&String| {
        let rest = name.strip_prefix(&*stem).and_then(|rest| rest.strip_suffix(".next"));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.') && !rest[1..].contains('.'))
    };
    for name in list(dir)?.iter().filter(is_left) {
        match remove(dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}
