//! An adversarial file system in memory: it knows what has been synced, and fails as told.
//!
//! [`MemFs`] is used in place of the real files by [`fs::with`](cenote_base::rt::fs::with) or by a simulated runtime.
//! Its rules are the least that a POSIX system promises:
//!
//! | survives a crash | when |
//! |---|---|
//! | bytes and length of a file | they were there at its last successful [`File::sync_data`] |
//! | a name made, renamed or removed | its directory was synced since |
//! | a directory | always (losing those tests nothing) |
//! | anything else | never ([`MemFs::crash_clone`]), or in part by seed ([`MemFs::crash_clone_torn`]): sectors of 512 bytes one by one, lengths, and a head of the changes of names in their order |
//!
//! A failed sync loses the bytes for good: they can still be read, as from a page cache that
//! has dropped its dirty marks, and a later sync that succeeds does not cover them.
//!
//! Faults are set on [`MemFs`]: [`fail_syncs`](MemFs::fail_syncs), [`halt_after`](MemFs::halt_after),
//! [`set_capacity`](MemFs::set_capacity), [`fail_reads_of`](MemFs::fail_reads_of),
//! [`flip`](MemFs::flip), [`tear_transfers`](MemFs::tear_transfers); or drawn from a seed while a world runs
//! ([`FaultPlan`]). [`MemFs::set_drive`] makes operations take time, on a drive that file systems may share.
//!
//! A killed process never closes its files. What it has locked, through its own handle ([`MemFs::of_process`]), is free
//! when its end is told ([`MemFs::end_process`]).

mod disk;
mod drive;
mod plan;

pub use drive::{BUFFERED, Drive, DriveCounters, DriveSpeed};
pub use plan::{FaultCounts, FaultPlan};

use cenote_base::random::Random;
use cenote_base::rt::fs::{Batch, File, FileOps, FileSystem, IoRequest, OpenOptions};
use cenote_base::rt::{self, Mutex, MutexGuard, Nanos};
use disk::{Disk, FileId, NameChange};
use plan::Draws;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often an operation that a stall holds up looks whether the stall is over.
const STALL_TURN: Nanos = Nanos::from_millis(100);

/// Files in memory, with faults. Clones are the same files.
#[derive(Clone, Default)]
pub struct MemFs {
    inner: Arc<Mutex<Inner>>,
    /// Whose the locks are that files opened through this handle take.
    owner: u64,
}

#[derive(Default)]
struct Inner {
    disk: Disk,
    faults: Faults,
    counts: Counts,
    handles: u64,
    drive: Option<Drive>,
    /// Threads that submit a batch, by owner and slot, and when its latest operation is through.
    batches: BTreeMap<(u64, usize), Nanos>,
}

/// What shall go wrong.
#[derive(Default)]
struct Faults {
    /// Syncs that succeed before the failing ones, and how many fail.
    syncs: Option<(u64, u64)>,
    /// Changing operations that are still done.
    changes_left: Option<u64>,
    capacity: Option<u64>,
    unreadable: Vec<(PathBuf, Range<u64>)>,
    /// State of the generator that cuts transfers short.
    tear: Option<Random>,
    sync_time: Nanos,
    /// Until when writes and syncs do not come back.
    stalled_until: Nanos,
    drawn: Draws,
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
        let inner = Inner {
            disk,
            ..Inner::default()
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            owner: 0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The same files, as process `owner` sees them: what it locks, [`MemFs::end_process`] frees.
    pub fn of_process(&self, owner: u64) -> MemFs {
        MemFs {
            inner: Arc::clone(&self.inner),
            owner,
        }
    }

    /// Whether these are the same files.
    pub fn same(&self, other: &MemFs) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Process `owner` has ended, or was killed: whatever it left open is locked no more.
    pub fn end_process(&self, owner: u64) {
        let mut inner = self.lock();
        inner.disk.unlock_all(owner);
        inner.batches.retain(|thread, _| thread.0 != owner);
    }

    /// Crashes in place: all handles see what [`MemFs::crash_clone_torn`] could leave, or with no seed
    /// [`MemFs::crash_clone`], and nothing is locked.
    pub fn crash(&self, seed: Option<u64>) {
        let mut random = seed.map(Random);
        let mut inner = self.lock();
        let mut draw = |n| random.as_mut().map_or(0, |random| random.below(n));
        inner.disk = inner.disk.crashed(&mut draw);
    }

    /// Lets operations take time. `None`: only syncs do, as [`MemFs::set_sync_time`] says.
    pub fn set_drive(&self, drive: Option<Drive>) {
        self.lock().drive = drive;
    }

    /// The drive that it lies on.
    pub fn drive(&self) -> Option<Drive> {
        self.lock().drive.clone()
    }

    /// Draws faults from now on. A plan of nothing ends it.
    pub fn set_plan(&self, plan: FaultPlan, seed: u64) {
        self.lock().faults.drawn = Draws::new(plan, seed);
    }

    /// How often the faults of the plan have struck.
    pub fn faults_met(&self) -> FaultCounts {
        self.lock().faults.drawn.met
    }

    /// As [`MemFs::take_time`], for what changes something: it begins, and comes back, when the drive answers again.
    fn take_time_to_change(&self, path: &Path, time: impl FnOnce(&Drive, Nanos) -> Nanos) {
        self.await_stall();
        self.take_time(path, time);
        self.await_stall();
    }

    fn await_stall(&self) {
        loop {
            let left = self.lock().faults.stalled_until.since(rt::now());
            if left == Nanos::ZERO {
                return;
            }
            rt::sleep(left.min(STALL_TURN));
        }
    }

    /// Takes the time of an operation on a file, unless a batch of this thread's takes it together. No lock is held
    /// where another thread may go on: a process may be killed there, and the files are others' too.
    fn take_time(&self, path: &Path, time: impl FnOnce(&Drive, Nanos) -> Nanos) {
        let now = rt::now();
        let mut inner = self.lock();
        let stall = inner.faults.drawn.stalls(&path.to_string_lossy());
        let drive = inner.drive.clone();
        drop(inner);
        let time = stall + drive.map_or(Nanos::ZERO, |d| time(&d, now));
        if time > Nanos::ZERO && !self.joins_batch(now + time) {
            rt::sleep(time);
        }
    }

    /// Whether the calling thread submits a batch, which then takes until `end`.
    fn joins_batch(&self, end: Nanos) -> bool {
        let mut inner = self.lock();
        let latest = inner.batches.get_mut(&(self.owner, rt::thread_slot()));
        latest.map(|latest| *latest = end.max(*latest)).is_some()
    }

    /// What a crash now leaves, at the least: only what was synced. Faults are not carried over.
    pub fn crash_clone(&self) -> MemFs {
        Self::of(self.lock().disk.crashed(&mut |_| 0))
    }

    /// What a crash now could leave: some of the unsynced too, torn, by `seed`.
    pub fn crash_clone_torn(&self, seed: u64) -> MemFs {
        let mut random = Random(seed);
        Self::of(self.lock().disk.crashed(&mut |n| random.below(n)))
    }

    /// Everything as it stands, synced or not: what a killed process leaves.
    pub fn kill_clone(&self) -> MemFs {
        Self::of(self.lock().disk.unlocked())
    }

    /// What it has been asked to do.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Lets `after` more syncs succeed and then `count` fail with EIO.
    pub fn fail_syncs(&self, after: u64, count: u64) {
        self.lock().faults.syncs = Some((after, count));
    }

    /// Does `changes` more changing operations, then fails every one, as a process that was
    /// stopped there would not have done them.
    pub fn halt_after(&self, changes: u64) {
        self.lock().faults.changes_left = Some(changes);
    }

    /// Bytes that the files take on the disk, as the capacity counts them.
    pub fn used(&self) -> u64 {
        self.lock().disk.used()
    }

    /// Gives the disk a size: beyond it, ENOSPC. `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().faults.capacity = bytes;
    }

    /// Makes reads of a file fail with EIO.
    pub fn fail_reads_of(&self, path: impl Into<PathBuf>) {
        self.fail_reads_at(path, 0..u64::MAX);
    }

    /// Makes reads of some bytes of a file fail with EIO.
    pub fn fail_reads_at(&self, path: impl Into<PathBuf>, bytes: Range<u64>) {
        self.lock().faults.unreadable.push((path.into(), bytes));
    }

    /// Cuts reads and writes short at random, as systems may; callers must go on.
    pub fn tear_transfers(&self, seed: u64) {
        self.lock().faults.tear = Some(Random(seed));
    }

    /// Makes each sync take this long, where there is no drive.
    pub fn set_sync_time(&self, time: Nanos) {
        self.lock().faults.sync_time = time;
    }

    /// Writes and syncs do not come back before `until`, as on a drive that stops answering for a while; an earlier
    /// time ends that. Reads go on.
    pub fn stall_until(&self, until: Nanos) {
        self.lock().faults.stalled_until = until;
    }

    /// Clears all faults, and what has been counted of them.
    pub fn heal(&self) {
        self.lock().faults = Faults::default();
    }

    /// Flips the bits of `mask` in a file's byte at `offset`, on the medium: synced and all.
    ///
    /// # Errors
    /// If there is no such file or byte.
    pub fn flip(&self, path: impl AsRef<Path>, offset: u64, mask: u8) -> io::Result<()> {
        let mut inner = self.lock();
        let id = inner.disk.file(path.as_ref())?;
        inner.disk.node(id).flip(offset, mask)
    }

    /// Flips one bit of one byte, on the medium, in a file whose path holds `part`; `draw(n)` gives a number below `n`.
    /// Says where, if there is such a file with bytes in it.
    pub fn flip_any(&self, part: &str, draw: &mut dyn FnMut(u64) -> u64) -> Option<(PathBuf, u64)> {
        let mut inner = self.lock();
        let holds = |path: &PathBuf| path.to_string_lossy().contains(part);
        let files: Vec<PathBuf> = inner.disk.files().into_iter().filter(holds).collect();
        let path = files.get(draw(files.len().max(1) as u64) as usize)?.clone();
        let id = inner.disk.file(&path).ok()?;
        let node = inner.disk.node(id);
        let (at, len) = node.any_chunk(draw)?;
        let offset = at + draw(len);
        node.flip(offset, 1 << draw(8)).ok()?;
        Some((path, offset))
    }

    /// All files' paths, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        self.lock().disk.files()
    }
}

impl std::fmt::Debug for MemFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemFs({} files)", self.files().len())
    }
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

    /// What a sync takes without a drive.
    fn sync_time(&self) -> Nanos {
        match self.drive {
            Some(_) => Nanos::ZERO,
            None => self.faults.sync_time,
        }
    }

    /// Whether this sync fails.
    fn sync_fails(&mut self, path: &Path) -> bool {
        self.counts.syncs += 1;
        let path = path.to_string_lossy();
        if self
            .faults
            .drawn
            .strikes(&path, |p| p.failed_sync, |c| &mut c.failed_syncs)
        {
            return true;
        }
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
    fn transfer(&mut self, path: &str, len: usize) -> usize {
        let drawn = &mut self.faults.drawn;
        if len > 1 && drawn.strikes(path, |p| p.short, |c| &mut c.short) {
            return 1 + drawn.below(len as u64 - 1) as usize;
        }
        match &mut self.faults.tear {
            Some(random) if len > 1 => 1 + random.index(len),
            _ => len,
        }
    }

    /// The failure that the plan has for this write, if any.
    fn write_fails(&mut self, path: &str) -> io::Result<()> {
        let drawn = &mut self.faults.drawn;
        if drawn.strikes(path, |p| p.failed_write, |c| &mut c.failed_writes) {
            return Err(Errno::IO.into());
        }
        if drawn.strikes(path, |p| p.full, |c| &mut c.full) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
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
        let mut inner = self.lock();
        let id = match inner.disk.file(path) {
            Ok(_) if options.new => return Err(io::ErrorKind::AlreadyExists.into()),
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
        let mut inner = self.lock();
        inner.change()?;
        inner.disk.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.lock();
        inner.change()?;
        inner
            .disk
            .change_name(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.lock();
        inner.change()?;
        inner.disk.file(path)?;
        inner.disk.change_name(NameChange::Remove(path.to_owned()))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        rt::preempt();
        let mut inner = self.lock();
        inner.change()?;
        inner.disk.remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        rt::preempt();
        self.lock().disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.take_time_to_change(dir, Drive::sync);
        rt::preempt();
        let mut inner = self.lock();
        inner.change()?;
        if inner.sync_fails(dir) {
            inner.disk.forget_names(dir);
            return Err(Errno::IO.into());
        }
        inner.disk.sync_dir(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        rt::preempt();
        Ok(self.lock().disk.name(path).is_some())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let inner = self.lock();
        Ok(inner
            .faults
            .capacity
            .unwrap_or(1 << 40)
            .saturating_sub(inner.disk.used()))
    }

    /// Requests are done at once; the batch is complete when the drive is through with the last of them.
    fn submit(&self, requests: Vec<IoRequest>) -> Batch {
        let (thread, now) = ((self.owner, rt::thread_slot()), rt::now());
        self.lock().batches.insert(thread, now);
        let done = requests.into_iter().map(IoRequest::run).collect();
        let ready = self.lock().batches.remove(&thread);
        Batch::done_at(done, ready.unwrap_or(now))
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
        let mut inner = self.fs.lock();
        inner.change()?;
        f(&mut inner)
    }
}

/// Whether a system has it in memory: the file that says who owns a data directory is read at each commit.
fn is_cached(path: &Path) -> bool {
    path.ends_with("owner")
}

impl FileOps for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !is_cached(&self.path) {
            self.fs
                .take_time(&self.path, |drive, now| drive.read(now, buf.len() as u64));
        }
        rt::preempt();
        let mut inner = self.fs.lock();
        let end = offset.saturating_add(buf.len() as u64);
        let is_met =
            |(path, bytes): &(PathBuf, Range<u64>)| *path == self.path && bytes.start < end && offset < bytes.end;
        if inner.faults.unreadable.iter().any(is_met) {
            return Err(Errno::IO.into());
        }
        let path = self.path.to_string_lossy();
        if inner
            .faults
            .drawn
            .strikes(&path, |p| p.failed_read, |c| &mut c.failed_reads)
        {
            return Err(Errno::IO.into());
        }
        let len = inner.transfer(&path, buf.len());
        let read = inner.disk.node(self.id).read(&mut buf[..len], offset);
        let drawn = &mut inner.faults.drawn;
        if read > 0 && drawn.strikes(&path, |p| p.flipped_read, |c| &mut c.flipped_reads) {
            buf[drawn.below(read as u64) as usize] ^= 1 << drawn.below(8);
        }
        Ok(read)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.fs
            .take_time_to_change(&self.path, |drive, now| drive.write(now, buf.len() as u64));
        self.change(|inner| {
            let path = self.path.to_string_lossy();
            inner.write_fails(&path)?;
            let len = inner.transfer(&path, buf.len());
            inner.claim(self.id, offset, len as u64)?;
            inner.disk.node(self.id).write(&buf[..len], offset);
            inner.counts.bytes_written += len as u64;
            let drawn = &mut inner.faults.drawn;
            if len > 0 && drawn.strikes(&path, |p| p.flipped_write, |c| &mut c.flipped_writes) {
                let (at, bit) = (offset + drawn.below(len as u64), drawn.below(8));
                inner.disk.node(self.id).flip(at, 1 << bit)?;
            }
            Ok(len)
        })
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let parts: Vec<&[u8]> = bufs.iter().map(|b| &**b).collect();
        self.write_at(&parts.concat(), offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let time = self.fs.lock().sync_time();
        if time > Nanos::ZERO {
            rt::sleep(time);
        }
        self.fs.take_time_to_change(&self.path, Drive::sync);
        rt::preempt();
        let mut inner = self.fs.lock();
        inner.change()?;
        if inner.sync_fails(&self.path) {
            inner.disk.node(self.id).lose_unsynced();
            return Err(Errno::IO.into());
        }
        inner.disk.node(self.id).sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        rt::preempt();
        Ok(self.fs.lock().disk.node(self.id).len())
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
        Ok(self.fs.lock().disk.node(self.id).used())
    }

    fn lock_exclusive(&self) -> io::Result<bool> {
        rt::preempt();
        Ok(self.fs.lock().disk.lock(self.id, self.handle, self.fs.owner))
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.fs.lock().disk.unlock(self.id, self.handle);
    }
}

#[cfg(test)]
mod tests;
