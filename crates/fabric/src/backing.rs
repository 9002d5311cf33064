//! What a region's memory is: a file, a device, or nothing but memory; how its length and
//! alignment are known, and how its space is taken before it is used.

use crate::device_range::DeviceRange;
use crate::map::Mapping;
use crate::range::FileRange;
use cenote_base::error::IoContext;
use cenote_base::rt;
use cenote_base::rt::memory::Device;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result, crc};
use rustix::fs::{self, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What a region's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file: in shared memory, or on an fsdax file system.
    File,
    /// A devdax device.
    Devdax,
    /// Anonymous memory of this process; gone with it.
    Dram,
    /// A device of the simulator.
    Simulated,
}

/// What is open.
enum Open {
    File(OwnedFd),
    Simulated(Arc<dyn Device>),
}

/// An open file or device that holds a region, locked for this process.
pub(crate) struct Backing {
    open: Open,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// What lengths and addresses are multiples of.
    pub(crate) align: usize,
    /// Whether it is locked for this process.
    pub(crate) locked: bool,
    /// The part of the file that it is, where it is not all of it.
    range: Option<FileRange>,
}

/// Space is taken in steps of this, so that a failure comes early and another thread may go on.
pub(crate) const RESERVE_STEP: u64 = 16 << 20;

impl Backing {
    /// Opens (or makes) and locks it.
    pub(crate) fn open(path: &Path, create: bool) -> Result<Self> {
        Self::open_at(path, create, None)
    }

    /// As [`Backing::open`]; with a `range`, only that of a file or device that is there.
    pub(crate) fn open_at(path: &Path, create: bool, range: Option<FileRange>) -> Result<Self> {
        if let Some(device) = rt::memory(path) {
            refuse_range(path, range)?;
            return Self::simulated(path, create, device);
        }
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if create && range.is_none() {
            flags |= OFlags::CREATE;
        }
        let named = || format!("region {}", path.display());
        let fd = fs::open(path, flags, Mode::from_raw_mode(0o600))
            .map_err(io::Error::from)
            .doing(named)?;
        lock(&fd, range, &named())?;
        Self::of_file(fd, path, true, range)
    }

    /// Opens what another process has open, or a range of it, beside it: without a lock.
    pub(crate) fn beside_at(path: &Path, range: Option<FileRange>) -> Result<Self> {
        if let Some(device) = rt::memory(path) {
            return Self::of_simulated_range(path, device, range);
        }
        let fd = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .doing(|| format!("region {}", path.display()))?;
        Self::of_file(fd, path, false, range)
    }

    fn of_file(fd: OwnedFd, path: &Path, locked: bool, range: Option<FileRange>) -> Result<Self> {
        let named = || format!("region {}", path.display());
        let stat = fs::fstat(&fd).map_err(io::Error::from).doing(named)?;
        let (kind, align) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => (Kind::Devdax, devdax_align(stat.st_rdev)?),
            FileType::RegularFile => (Kind::File, crate::map::page_size()),
            other => {
                return Err(Error::Mismatch(format!("{}: {other:?} cannot hold one", named())));
            }
        };
        let backing = Self {
            open: Open::File(fd),
            path: path.to_owned(),
            kind,
            align,
            locked,
            range,
        };
        if let Some(range) = range {
            range.check(&backing.named(), backing.whole_len()?, align)?;
        }
        Ok(backing)
    }

    fn simulated(path: &Path, create: bool, device: Arc<dyn Device>) -> Result<Self> {
        let name = format!("region {}", path.display());
        if !create && device.is_empty() {
            return Err(Error::io(name, io::ErrorKind::NotFound.into()));
        }
        until_locked(&name, || Ok(device.try_lock()))?;
        Ok(Self::of_device(path, device, true))
    }

    fn of_simulated_range(path: &Path, device: Arc<dyn Device>, range: Option<FileRange>) -> Result<Self> {
        let mut whole = Self::of_device(path, Arc::clone(&device), false);
        if let Some(range) = range {
            range.check(&whole.named(), device.len(), whole.align)?;
            (whole.open, whole.range) = (Open::Simulated(Arc::new(DeviceRange { device, range })), Some(range));
        }
        Ok(whole)
    }

    fn of_device(path: &Path, device: Arc<dyn Device>, locked: bool) -> Self {
        Self {
            open: Open::Simulated(device),
            path: path.to_owned(),
            kind: Kind::Simulated,
            align: crate::map::page_size(),
            locked,
            range: None,
        }
    }

    fn file(&self) -> Option<&OwnedFd> {
        match &self.open {
            Open::File(fd) => Some(fd),
            Open::Simulated(_) => None,
        }
    }

    /// Maps its first `len` bytes.
    pub(crate) fn map(&self, len: usize) -> Result<Mapping> {
        match &self.open {
            Open::File(fd) => Mapping::shared(fd.as_fd(), len, self.align, self.offset())
                .map_err(|e| Error::io(format!("mapping {}", self.named()), e)),
            Open::Simulated(device) => Ok(Mapping::view(Arc::clone(device), len)),
        }
    }

    /// Whether it is a part of a file or device alone.
    pub(crate) fn is_range(&self) -> bool {
        self.range.is_some()
    }

    /// Where it begins in its file.
    fn offset(&self) -> u64 {
        self.range.map_or(0, |range| range.offset)
    }

    /// Whether other hosts can reach its memory, so that this host's caches are not all there is to it.
    pub(crate) fn is_beyond_caches(&self) -> bool {
        !self.is_memory()
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> Result<u64> {
        match self.range {
            Some(range) => Ok(range.bytes),
            None => self.whole_len(),
        }
    }

    /// That of its file or device.
    fn whole_len(&self) -> Result<u64> {
        let fd = match &self.open {
            Open::File(fd) => fd,
            Open::Simulated(device) => return Ok(device.len()),
        };
        let stat = fs::fstat(fd).map_err(io::Error::from).doing(|| self.named())?;
        match self.kind {
            Kind::Devdax => devdax_attribute(stat.st_rdev, "size"),
            _ => Ok(stat.st_size as u64),
        }
    }

    /// Whether its file still has a name.
    pub(crate) fn has_name(&self) -> bool {
        match self.file() {
            Some(fd) => fs::fstat(fd).is_ok_and(|stat| stat.st_nlink > 0),
            None => self.len().is_ok_and(|len| len > 0),
        }
    }

    /// Whether its space is the machine's memory.
    pub(crate) fn is_memory(&self) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        let tmpfs = |fd| fs::fstatfs(fd).is_ok_and(|s| s.f_type as u64 == TMPFS);
        self.kind == Kind::File && self.file().is_some_and(tmpfs)
    }

    /// Bytes of space that it holds. Of a range that is all: a file does not tell how much it has of each.
    pub(crate) fn allocated(&self) -> Result<u64> {
        let fd = match self.file() {
            Some(fd) if self.kind == Kind::File && !self.is_range() => fd,
            _ => return self.len(),
        };
        let stat = fs::fstat(fd).map_err(io::Error::from).doing(|| self.named())?;
        Ok(stat.st_blocks as u64 * 512)
    }

    /// Empties a file and gives it its length; a device keeps its own, which must suffice.
    pub(crate) fn resize(&self, len: u64) -> Result<()> {
        if let Open::Simulated(device) = &self.open
            && device.len() < len
        {
            device.resize(len).doing(|| self.named())?;
        }
        let is_whole_file = self.kind == Kind::File && !self.is_range();
        let Some(fd) = self.file().filter(|_| is_whole_file) else {
            let have = self.len()?;
            if have < len {
                return Err(Error::Full(format!(
                    "{}: there are {}, {} were asked for",
                    self.named(),
                    ByteSize(have),
                    ByteSize(len)
                )));
            }
            return self.discard();
        };
        let set = |n| fs::ftruncate(fd, n).map_err(io::Error::from).doing(|| self.named());
        // A reader of the pod may have it mapped: what does not end is zeros to it, and no signal.
        if self.whole_len()? > len || !self.empty(fd) {
            set(0)?;
        }
        set(len)
    }

    /// Makes a whole file zeros, and leaves it as long as it is. Not every file system can.
    fn empty(&self, fd: &OwnedFd) -> bool {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let Ok(len) = self.whole_len() else { return false };
        len == 0
            || loop {
                match fs::fallocate(fd, flags, 0, len) {
                    Err(Errno::INTR) => {}
                    done => break done.is_ok(),
                }
            }
    }

    /// Gives the space of a file's range back: it reads as zeros. A device keeps what is there.
    pub(crate) fn discard(&self) -> Result<()> {
        match (self.file(), self.range) {
            (Some(fd), Some(range)) if self.kind == Kind::File => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fs::fallocate(fd, flags, range.offset, range.bytes)
                    .map_err(io::Error::from)
                    .doing(|| format!("emptying {}", self.named()))
            }
            _ => Ok(()),
        }
    }

    /// Takes the space of a range, so that using it cannot fail.
    pub(crate) fn reserve(&self, off: u64, len: u64) -> Result<()> {
        let fd = match self.file() {
            Some(fd) if self.kind == Kind::File && len > 0 => fd,
            _ => return Ok(()),
        };
        match fs::fallocate(fd, FallocateFlags::empty(), self.offset() + off, len) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => self.reserve(off, len),
            Err(e @ (Errno::NOSPC | Errno::NOMEM | Errno::DQUOT)) => Err(self.full(off, e)),
            Err(e) => Err(Error::io(format!("reserving {}", self.named()), e.into())),
        }
    }

    fn full(&self, reserved: u64, errno: Errno) -> Error {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let size = |f: fn(&fs::StatVfs) -> u64| {
            fs::statvfs(dir)
                .map(|s| ByteSize(f(&s) * s.f_frsize).to_string())
                .unwrap_or_default()
        };
        let wanted = self.len().map(|l| ByteSize(l).to_string()).unwrap_or_default();
        Error::Full(format!(
            "{}: no space for more than {} of {wanted} in {} (size {}, free {}; {errno}). \
             Use less (--memory-size), or enlarge it: `mount -o remount,size=8G {}` as root, or in \
             a container start it with `docker run --shm-size=8g`, or put the region elsewhere \
             (--region PATH)",
            self.named(),
            ByteSize(reserved),
            dir.display(),
            size(|s| s.f_blocks),
            size(|s| s.f_bavail),
            dir.display(),
        ))
    }

    /// Takes the space of a range, in steps.
    pub(crate) fn take_space(&self, off: u64, len: u64) -> Result<()> {
        for from in (off..off + len).step_by(RESERVE_STEP as usize) {
            self.reserve(from, RESERVE_STEP.min(off + len - from))?;
        }
        Ok(())
    }

    pub(crate) fn named(&self) -> String {
        match self.range {
            Some(range) => format!("region {} at offset {}", self.path.display(), range.offset),
            None => format!("region {}", self.path.display()),
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Open::Simulated(device) = &self.open
            && self.locked
        {
            device.unlock();
        }
    }
}

/// Which boot of which machine this is: a number made of the kernel's id; 0 if nothing tells.
pub fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        // The machine's own files, also where tests have put others in their place.
        let fd = fs::open(
            "/proc/sys/kernel/random/boot_id",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mut id = [0; 64];
        let length = fd.and_then(|fd| rustix::io::read(fd, &mut id)).unwrap_or(0);
        u64::from(crc::crc32c(&id[..length])) | (length as u64) << 32
    })
}

/// Memory that the machine can still give, in bytes; `None` if nothing tells.
pub(crate) fn available_memory() -> Option<u64> {
    let mut text = [0; 512];
    let file = rt::fs::open(Path::new("/proc/meminfo"), rt::fs::OpenOptions::READ).ok()?;
    let length = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// So often a lock is tried, once in 5 ms: a second, as a child on a busy machine may wait long for its turn.
const LOCK_TRIES: u32 = 200;

/// Locks it for this process. A lock seen for a moment only is not another user: it is of a process that
/// looks at the region ([`crate::peek`]), of a killed process that is not quite gone, or of a child that is about to
/// execute its program.
fn lock(fd: &OwnedFd, range: Option<FileRange>, name: &str) -> Result<()> {
    if let Some(range) = range {
        return until_locked(name, || range.lock(fd, name));
    }
    until_locked(name, || match fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(Error::io(name, e.into())),
    })
}

/// A simulated device holds one region: its lock has no parts.
fn refuse_range(path: &Path, range: Option<FileRange>) -> Result<()> {
    match range {
        None => Ok(()),
        Some(_) => Err(Error::Mismatch(format!(
            "region {}: a simulated device has no locks of ranges",
            path.display()
        ))),
    }
}

fn until_locked(name: &str, attempt: impl Fn() -> Result<bool>) -> Result<()> {
    for _ in 0..LOCK_TRIES {
        if attempt()? {
            return Ok(());
        }
        rt::sleep(rt::Nanos::from_millis(5));
    }
    Err(Error::Busy(format!("{name} is in use by another process")))
}

/// Where the kernel tells of devices.
const DEVICES: &str = "/sys/dev/char";

fn devdax_attribute(device: u64, name: &str) -> Result<u64> {
    attribute_in(Path::new(DEVICES), device, name)
}

/// A number that the kernel tells of a devdax device, in bytes.
fn attribute_in(devices: &Path, device: u64, name: &str) -> Result<u64> {
    let dir = format!("{}:{}", fs::major(device), fs::minor(device));
    let path = devices.join(dir).join(name).display().to_string();
    let fd = fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|_| Error::Mismatch(format!("{path}: not a devdax device")))?;
    let mut text = [0u8; 32];
    let n = rustix::io::read(fd, &mut text).map_err(|e| Error::io(&path, e.into()))?;
    let text = String::from_utf8_lossy(&text[..n]);
    text.trim()
        .parse()
        .map_err(|_| Error::Mismatch(format!("{path}: {text:?} is no number")))
}

/// What a devdax device's mappings must be aligned to.
fn devdax_align(device: u64) -> Result<usize> {
    align_in(Path::new(DEVICES), device)
}

fn align_in(devices: &Path, device: u64) -> Result<usize> {
    let attribute = |name| attribute_in(devices, device, name);
    let align = attribute("align").or_else(|error| attribute("device/align").map_err(|_| error))?;
    match usize::try_from(align) {
        Ok(a) if a.is_power_of_two() => Ok(a),
        _ => Err(Error::Mismatch(format!("devdax alignment {align} is no power of two"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, align_in, attribute_in};
    use rustix::fs::makedev;

    /// What the kernel tells of a devdax device, in a directory in place of `/sys/dev/char`.
    #[test]
    fn a_devdax_device_says_how_it_is_mapped() {
        let devices = tempfile::tempdir().expect("a directory");
        let tell = |minor: u32, name: &str, text: &str| {
            let file = devices.path().join(format!("252:{minor}")).join(name);
            std::fs::create_dir_all(file.parent().expect("inside")).expect("made");
            std::fs::write(file, text).expect("written");
        };
        let align = |minor| align_in(devices.path(), makedev(252, minor));
        tell(1, "align", "2097152\n");
        tell(1, "size", "17179869184\n");
        tell(2, "device/align", "1073741824\n");
        tell(3, "align", "3145728\n");
        tell(4, "align", "many\n");
        assert_eq!(align(1).expect("said"), 2 << 20);
        assert_eq!(align(2).expect("said by its parent"), 1 << 30);
        let size = attribute_in(devices.path(), makedev(252, 1), "size");
        assert_eq!(size.expect("said"), 16 << 30);
        for (minor, says) in [(3, "no power of two"), (4, "is no number"), (5, "not a devdax device")] {
            let error = align(minor).expect_err("refused");
            assert!(
                matches!(&error, Error::Mismatch(text) if text.contains(says)),
                "{error}"
            );
        }
    }

    #[test]
    fn the_machine_tells_what_memory_is_left() {
        let available = super::available_memory().expect("the kernel tells");
        assert!((1 << 20..1 << 50).contains(&available), "{available}");
    }
}
