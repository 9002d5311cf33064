//! An adversarial file system in memory: it knows what has been synced, and fails as told.
//!
//! [`MemFs`] is used in place of the real files by [`super::with`] or by a simulated runtime. Its
//! rules are the least that a POSIX system promises:
//!
//! | survives a crash | when |
//! |---|---|
//! | bytes and length of a file | they were there at its last successful [`File::sync_data`](super::File::sync_data) |
//! | a name made, renamed or removed | its directory was synced since |
//! | a directory | always (losing those tests nothing) |
//! | anything else | never ([`MemFs::crash_clone`]), or in part by seed ([`MemFs::crash_clone_torn`]): sectors of 512 bytes one by one, lengths, and a head of the changes of names in their order |
//!
//! A failed sync loses the bytes for good: they can still be read, as from a page cache that
//! has dropped its dirty marks, and a later sync that succeeds does not cover them.
//!
//! Faults are set on [`MemFs`]: [`fail_syncs`](MemFs::fail_syncs), [`halt_after`](MemFs::halt_after),
//! [`set_capacity`](MemFs::set_capacity), [`fail_reads_of`](MemFs::fail_reads_of),
//! [`flip`](MemFs::flip), [`tear_transfers`](MemFs::tear_transfers).

mod disk;

use super::{File, FileOps, FileSystem, OpenOptions};
use crate::rt::{self, Mutex, Nanos};
use disk::{Disk, FileId, Name, NameChange};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files in memory, with faults. Clones are the same files.
#[derive(Clone, Default)]
pub struct MemFs(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    disk: Disk,
    faults: Faults,
    counts: Counts,
    handles: u64,
}

/// What shall go wrong.
#[derive(Default)]
struct Faults {
    /// Syncs that succeed before the failing ones, and how many fail.
    syncs: Option<(u64, u64)>,
    /// Changing operations that are still done.
    changes_left: Option<u64>,
    capacity: Option<u64>,
    unreadable: Vec<PathBuf>,
    /// State of the generator that cuts transfers short.
    tear: Option<u64>,
    sync_time: Nanos,
}

/// What a [`MemFs`] has been asked to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that change something: the points at which [`MemFs::halt_after`] can stop.
    pub changes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl MemFs {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    fn of(disk: Disk) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            disk,
            ..Inner::default()
        })))
    }

    /// What a crash now leaves, at the least: only what was synced. Faults are not carried over.
    pub fn crash_clone(&self) -> MemFs {
        Self::of(self.0.lock().disk.crashed(&mut |_| 0))
    }

    /// What a crash now could leave: some of the unsynced too, torn, by `seed`.
    pub fn crash_clone_torn(&self, seed: u64) -> MemFs {
        let mut state = seed;
        Self::of(self.0.lock().disk.crashed(&mut |n| next(&mut state) % n))
    }

    /// Everything as it stands, synced or not: what a killed process leaves.
    pub fn kill_clone(&self) -> MemFs {
        Self::of(self.0.lock().disk.unlocked())
    }

    /// What it has been asked to do.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Lets `after` more syncs succeed and then `count` fail with EIO.
    pub fn fail_syncs(&self, after: u64, count: u64) {
        self.0.lock().faults.syncs = Some((after, count));
    }

    /// Does `changes` more changing operations, then fails every one, as a process that was
    /// stopped there would not have done them.
    pub fn halt_after(&self, changes: u64) {
        self.0.lock().faults.changes_left = Some(changes);
    }

    /// Bytes that the files take on the disk, as the capacity counts them.
    pub fn used(&self) -> u64 {
        self.0.lock().disk.used()
    }

    /// Gives the disk a size: beyond it, ENOSPC. `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().faults.capacity = bytes;
    }

    /// Makes reads of a file fail with EIO.
    pub fn fail_reads_of(&self, path: impl Into<PathBuf>) {
        self.0.lock().faults.unreadable.push(path.into());
    }

    /// Cuts reads and writes short at random, as systems may; callers must go on.
    pub fn tear_transfers(&self, seed: u64) {
        self.0.lock().faults.tear = Some(seed);
    }

    /// Makes each sync take this long.
    pub fn set_sync_time(&self, time: Nanos) {
        self.0.lock().faults.sync_time = time;
    }

    /// Clears all faults.
    pub fn heal(&self) {
        self.0.lock().faults = Faults::default();
    }

    /// Flips the bits of `mask` in a file's byte at `offset`, on the medium: synced and all.
    ///
    /// # Errors
    /// If there is no such file or byte.
    pub fn flip(&self, path: impl AsRef<Path>, offset: u64, mask: u8) -> io::Result<()> {
        let mut inner = self.0.lock();
        let id = inner.disk.file(path.as_ref())?;
        inner.disk.node(id).flip(offset, mask)
    }

    /// All files' paths, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        self.0.lock().disk.files()
    }
}

impl std::fmt::Debug for MemFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemFs({} files)", self.files().len())
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    rt::os::mix(*state)
}

impl Inner {
    /// Counts a changing operation, or says that the process was stopped before it.
    fn change(&mut self) -> io::Result<()> {
        match &mut self.faults.changes_left {
            Some(0) => return Err(io::Error::other("halted by the test")),
            Some(left) => *left -= 1,
            None => {}
        }
        self.counts.changes += 1;
        Ok(())
    }

    /// Whether this sync fails.
    fn sync_fails(&mut self) -> bool {
        self.counts.syncs += 1;
        match &mut self.faults.syncs {
            Some((after, _)) if *after > 0 => *after -= 1,
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                return true;
            }
            _ => {}
        }
        false
    }

    /// How much of a transfer of `len` bytes is done.
    fn transfer(&mut self, len: usize) -> usize {
        match &mut self.faults.tear {
            Some(state) if len > 1 => 1 + (next(state) % len as u64) as usize,
            _ => len,
        }
    }

    /// Makes sure that a range may take space.
    fn claim(&mut self, id: FileId, offset: u64, len: u64) -> io::Result<()> {
        let Some(capacity) = self.faults.capacity else {
            return Ok(());
        };
        let more = self.disk.node(id).missing(offset, len);
        if self.disk.used() + more > capacity {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }
}

impl FileSystem for MemFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<File> {
        rt::preempt();
        let mut inner = self.0.lock();
        let id = match inner.disk.file(path) {
            Ok(_) if options.create_new => return Err(Errno::EXIST.into()),
            Ok(id) => id,
            Err(e) if e.kind() == io::ErrorKind::NotFound && options.create => {
                inner.change()?;
                inner.disk.create(path)?
            }
            Err(e) => return Err(e),
        };
        if options.truncate {
            inner.change()?;
            inner.disk.node(id).set_len(0);
        }
        inner.handles += 1;
        let (handle, fs, path) = (inner.handles, self.clone(), path.to_owned());
        Ok(File::new(Arc::new(MemFile {
            fs,
            id,
            handle,
            path,
            writable: options.write,
        })))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.0.lock();
        inner.change()?;
        inner.disk.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.0.lock();
        inner.change()?;
        inner
            .disk
            .change_name(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.0.lock();
        inner.change()?;
        inner.disk.file(path)?;
        inner.disk.change_name(NameChange::Remove(path.to_owned()))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.0.lock();
        inner.change()?;
        inner.disk.remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        rt::preempt();
        self.0.lock().disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.0.lock();
        inner.change()?;
        if inner.sync_fails() {
            inner.disk.forget_names(dir);
            return Err(Errno::IO.into());
        }
        inner.disk.sync_dir(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        rt::preempt();
        Ok(self.0.lock().disk.name(path).is_some())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let inner = self.0.lock();
        Ok(inner
            .faults
            .capacity
            .unwrap_or(1 << 40)
            .saturating_sub(inner.disk.used()))
    }
}

struct MemFile {
    fs: MemFs,
    id: FileId,
    handle: u64,
    path: PathBuf,
    writable: bool,
}

impl MemFile {
    /// Runs a changing operation.
    fn change<T>(&self, f: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        rt::preempt();
        if !self.writable {
            return Err(Errno::BADF.into());
        }
        let mut inner = self.fs.0.lock();
        inner.change()?;
        f(&mut inner)
    }
}

impl FileOps for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        rt::preempt();
        let mut inner = self.fs.0.lock();
        if inner.faults.unreadable.contains(&self.path) {
            return Err(Errno::IO.into());
        }
        let len = inner.transfer(buf.len());
        Ok(inner.disk.node(self.id).read(&mut buf[..len], offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.change(|inner| {
            let len = inner.transfer(buf.len());
            inner.claim(self.id, offset, len as u64)?;
            inner.disk.node(self.id).write(&buf[..len], offset);
            inner.counts.bytes_written += len as u64;
            Ok(len)
        })
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(&all, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let time = self.fs.0.lock().faults.sync_time;
        if time > Nanos::ZERO {
            rt::sleep(time);
        }
        rt::preempt();
        let mut inner = self.fs.0.lock();
        inner.change()?;
        if inner.sync_fails() {
            inner.disk.node(self.id).lose_unsynced();
            return Err(Errno::IO.into());
        }
        inner.disk.node(self.id).sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        rt::preempt();
        Ok(self.fs.0.lock().disk.node(self.id).len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|inner| {
            inner.disk.node(self.id).set_len(len);
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|inner| {
            inner.claim(self.id, offset, len)?;
            inner.disk.node(self.id).allocate(offset, len);
            Ok(())
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|inner| {
            inner.disk.node(self.id).punch(offset, len);
            Ok(())
        })
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.fs.0.lock().disk.node(self.id).used())
    }

    fn lock_exclusive(&self) -> io::Result<bool> {
        rt::preempt();
        Ok(self.fs.0.lock().disk.lock(self.id, self.handle))
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.fs.0.lock().disk.unlock(self.id, self.handle);
    }
}

impl Name {
    fn file(self) -> io::Result<FileId> {
        match self {
            Name::File(id) => Ok(id),
            Name::Dir => Err(Errno::ISDIR.into()),
        }
    }
}

#[cfg(test)]
mod tests;
