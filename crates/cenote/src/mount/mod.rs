//! The pool's file system ([`cenote_fs`]) as a directory of this machine, by FUSE.
//!
//! ```text
//!   programs ─ system calls ─ kernel ─ /dev/fuse ─► threads ─► Mounted ─► FileSystem ─► space
//!                               │                                │
//!                               └─ knows files by number ───────►└─ Known: number → address, until the kernel forgets
//! ```
//!
//! Several processes may have it mounted, so that the kernel is told to keep neither names nor attributes: it asks each
//! time. Pages of content it keeps while a file is open and its time of change and size are what they were
//! ([`InitFlags::FUSE_AUTO_INVAL_DATA`]). Rights are checked by the kernel (`default_permissions`); locks of programs
//! (flock, fcntl) are the kernel's too, and so are of one mount.

mod known;
mod session;

pub use session::{Options, end, run};

use crate::log;
use cenote_fs::{Attributes, Change, Failure, FileSystem, Inode, NAME_MAX, Owner, Rename, kind};
use cenote_space::GlobalAddress;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use known::Known;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel is to ask each time.
const NOT_KEPT: Duration = Duration::ZERO;
/// Bytes of one write.
const WRITE_MAX: u32 = 1 << 20;
/// Names that are asked for at once, when a directory is listed.
const LISTED: usize = 128;
/// Places of `.` and `..` in a directory, before the names'.
const DOTS: u64 = 2;
const EXTENT: u64 = cenote_space::EXTENT;
/// What `fallocate` is asked for.
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;

/// A mounted file system, as FUSE asks for it.
pub struct Mounted {
    files: FileSystem,
    known: Known,
}

type Answer<T> = Result<T, Errno>;

/// The system's error number of a failure. A failure that no program should see goes to the log.
fn errno(failure: Failure) -> Errno {
    static LIMITER: log::Limiter = log::Limiter::new();
    if let Failure::Memory(error) = &failure
        && !matches!(error, cenote_base::Error::Full(_))
        && let Some(left_out) = LIMITER.pass()
    {
        log::warn!("{error} ({left_out} such before)");
    }
    Errno::from_i32(failure.errno())
}

impl Mounted {
    /// What answers for a file system.
    pub fn new(files: FileSystem) -> Self {
        let known = Known::new(files.root());
        Self { files, known }
    }

    fn inode(&self, number: INodeNo) -> Answer<Inode> {
        self.known.find(number.0).ok_or(Errno::ESTALE)
    }

    /// A file that is open. Its handle is its address: the kernel may say that it is closed, and has forgotten its
    /// number, at once.
    fn opened(number: INodeNo, handle: FileHandle) -> Inode {
        Inode {
            address: GlobalAddress::from_raw(handle.0),
            number: number.0,
        }
    }

    fn open_file(&self, number: INodeNo) -> Answer<FileHandle> {
        let inode = self.inode(number)?;
        self.files.open(inode).map_err(errno)?;
        Ok(FileHandle(inode.address.raw()))
    }

    /// An inode that the kernel is told of: it will say when it has forgotten it.
    fn tell(&self, found: &Attributes) -> FileAttr {
        self.known.tell(found.inode);
        attributes(found)
    }

    fn find(&self, directory: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let directory = self.inode(directory)?;
        let found = self.files.find(directory, name.as_bytes()).map_err(errno)?;
        Ok(self.tell(&found))
    }

    fn make(
        &self,
        directory: INodeNo,
        make: impl FnOnce(&FileSystem, Inode) -> Result<Attributes, Failure>,
    ) -> Answer<FileAttr> {
        let directory = self.inode(directory)?;
        Ok(self.tell(&make(&self.files, directory).map_err(errno)?))
    }

    /// With the file open, so that it stays meanwhile.
    fn with_open<T>(&self, inode: Inode, work: impl FnOnce() -> Result<T, Failure>) -> Answer<T> {
        self.files.open(inode).map_err(errno)?;
        let answer = work();
        self.files.close(inode).map_err(errno)?;
        answer.map_err(errno)
    }

    fn set(&self, inode: Inode, size: Option<u64>, change: &Change, is_open: bool) -> Answer<FileAttr> {
        if let Some(size) = size {
            match is_open {
                true => self.files.truncate(inode, size).map_err(errno)?,
                false => self.with_open(inode, || self.files.truncate(inode, size))?,
            }
        }
        let found = match *change == Change::default() {
            true => self.files.attributes(inode),
            false => self.files.set_attributes(inode, change),
        };
        Ok(attributes(&found.map_err(errno)?))
    }

    fn list(&self, inode: Inode, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let above = self.files.above(inode).map_err(errno)?;
        for (place, (number, name)) in [(inode.number, "."), (above.number, "..")].into_iter().enumerate() {
            if offset <= place as u64 && reply.add(INodeNo(number), place as u64 + 1, FileType::Directory, name) {
                return Ok(());
            }
        }
        let mut from = offset.saturating_sub(DOTS);
        loop {
            let some = self.files.list(inode, from, LISTED).map_err(errno)?;
            let Some(last) = some.last() else { return Ok(()) };
            from = last.next;
            for listed in some {
                let (number, name) = (INodeNo(listed.inode.number), OsStr::from_bytes(&listed.name));
                if reply.add(number, listed.next + DOTS, file_type(listed.kind), name) {
                    return Ok(());
                }
            }
        }
    }

    fn allocate(&self, inode: Inode, offset: u64, len: u64, mode: i32) -> Answer<()> {
        let answer = match mode {
            0 => self.files.allocate(inode, offset, len, true),
            KEEP_SIZE => match self.files.allocate(inode, offset, len, false) {
                // Room behind the end is not kept.
                Err(Failure::Invalid) => return Err(Errno::EOPNOTSUPP),
                answer => answer,
            },
            _ if mode == KEEP_SIZE | PUNCH_HOLE => self.files.punch(inode, offset, len),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        answer.map_err(errno)
    }
}

fn owner(request: &Request) -> Owner {
    Owner {
        user: request.uid(),
        group: request.gid(),
    }
}

fn file_type(found: u32) -> FileType {
    match found {
        kind::DIRECTORY => FileType::Directory,
        kind::SYMLINK => FileType::Symlink,
        kind::PIPE => FileType::NamedPipe,
        kind::SOCKET => FileType::Socket,
        kind::CHARACTERS => FileType::CharDevice,
        kind::BLOCKS => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn attributes(found: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(found.inode.number),
        size: found.size,
        blocks: found.taken.div_ceil(512),
        atime: time(found.read_at),
        mtime: time(found.changed_at),
        ctime: time(found.inode_changed_at),
        crtime: UNIX_EPOCH,
        kind: file_type(found.kind()),
        perm: (found.mode & 0o7777) as u16,
        nlink: found.links,
        uid: found.owner.user,
        gid: found.owner.group,
        rdev: found.device,
        blksize: WRITE_MAX,
        flags: 0,
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

fn nanoseconds(time: SystemTime) -> i64 {
    let clamp = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(distance) => clamp(distance),
        Err(before) => -clamp(before.duration()),
    }
}

fn time_or_now(time: TimeOrNow) -> i64 {
    nanoseconds(match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    })
}

fn say_done(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn say_entry(answer: Answer<FileAttr>, reply: ReplyEntry) {
    match answer {
        Ok(found) => reply.entry(&NOT_KEPT, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn say_attributes(answer: Answer<FileAttr>, reply: ReplyAttr) {
    match answer {
        Ok(found) => reply.attr(&NOT_KEPT, &found),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // What an older kernel does not have it does without.
        for requested in [InitFlags::FUSE_AUTO_INVAL_DATA, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(requested);
        }
        let _ = config.set_max_write(WRITE_MAX);
        if let Err(most) = config.set_max_readahead(WRITE_MAX) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        say_entry(self.find(parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.known.forget(number.0, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let inode = match handle {
            Some(handle) => Ok(Self::opened(number, handle)),
            None => self.inode(number),
        };
        let answer = inode.and_then(|inode| self.files.attributes(inode).map_err(errno));
        say_attributes(answer.map(|found| attributes(&found)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            rights: mode,
            user: uid,
            group: gid,
            read_at: atime.map(time_or_now),
            changed_at: mtime.map(time_or_now),
        };
        let inode = match handle {
            Some(handle) => Ok(Self::opened(number, handle)),
            None => self.inode(number),
        };
        let answer = inode.and_then(|inode| self.set(inode, size, &change, handle.is_some()));
        say_attributes(answer, reply);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let answer = self
            .inode(number)
            .and_then(|inode| self.files.read_symlink(inode).map_err(errno));
        match answer {
            Ok(text) => reply.data(&text),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32, reply: ReplyEntry) {
        let make =
            |files: &FileSystem, directory| files.make_node(directory, name.as_bytes(), mode, rdev, owner(request));
        say_entry(self.make(parent, make), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let make =
            |files: &FileSystem, directory| files.make_directory(directory, name.as_bytes(), mode, owner(request));
        say_entry(self.make(parent, make), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let make =
            |files: &FileSystem, directory| files.make_symlink(directory, name.as_bytes(), target, owner(request));
        say_entry(self.make(parent, make), reply);
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let answer = self
            .inode(number)
            .and_then(|inode| self.make(parent, |files, directory| files.link(inode, directory, name.as_bytes())));
        say_entry(answer, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self
            .inode(parent)
            .and_then(|directory| self.files.unlink(directory, name.as_bytes()).map_err(errno));
        say_done(answer, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self
            .inode(parent)
            .and_then(|directory| self.files.remove_directory(directory, name.as_bytes()).map_err(errno));
        say_done(answer, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            _ if flags.is_empty() => Rename::Replace,
            RenameFlags::RENAME_NOREPLACE => Rename::Keep,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let answer = self.inode(parent).and_then(|from| {
            let to = self.inode(new_parent)?;
            let renamed = self
                .files
                .rename((from, name.as_bytes()), (to, new_name.as_bytes()), how);
            renamed.map_err(errno)
        });
        say_done(answer, reply);
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_file(number) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: i32, reply: ReplyCreate) {
        let make = |files: &FileSystem, directory| files.create_open(directory, name.as_bytes(), mode, owner(request));
        let made = self.make(parent, make);
        match made.and_then(|found| Ok((self.inode(found.ino)?, found))) {
            Ok((inode, found)) => {
                let handle = FileHandle(inode.address.raw());
                reply.created(&NOT_KEPT, &found, Generation(0), handle, FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self
            .files
            .read(Self::opened(number, handle), offset, &mut bytes)
            .map_err(errno)
        {
            Ok(len) => reply.data(&bytes[..len]),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self
            .files
            .write(Self::opened(number, handle), offset, data)
            .map_err(errno)
        {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        say_done(self.files.close(Self::opened(number, handle)).map_err(errno), reply);
    }

    fn opendir(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open(request, number, flags, reply);
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list(Self::opened(number, handle), offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(&self, _: &Request, number: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        say_done(self.files.close(Self::opened(number, handle)).map_err(errno), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let parts = self.files.space().stats().parts;
        let all: u64 = parts.iter().map(|part| u64::from(part.extents)).sum();
        let free: u64 = parts.iter().map(|part| u64::from(part.free)).sum();
        let (blocks, free) = (all * EXTENT / 4096, free * EXTENT / 4096);
        // An inode takes 512 bytes; there is no number of them that there can be but by their room.
        reply.statfs(blocks, free, free, blocks * 8, free * 8, 4096, NAME_MAX as u32, 4096);
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        say_done(self.allocate(Self::opened(number, handle), offset, len, mode), reply);
    }
}
