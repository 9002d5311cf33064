//! How fast a mounted file system of a space is, read and written from one end to the other, beside a FUSE file system
//! that does nothing but copy: `cargo run --release -p cenote --example mount_speed -- 512MiB`. Both by the same
//! library, with the same settings, in turn; medians of rounds. Memory is touched before, but for what is written the
//! first time: there everything is new, and what it is compared with copies to a new file of tmpfs.
//!
//! Three ways: as programs do by default, through the kernel's pages (`cached`, dropped before each reading); past them
//! (`direct`), where a request is what the program asked for; and tmpfs itself.

use cenote::mount::{Mounted, Options};
use cenote_base::units::ByteSize;
use cenote_fs::{FileSystem, Owner};
use cenote_space::{Space, SpaceOptions};
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ROUNDS: usize = 7;
const FIRST_ROUNDS: usize = 5;
const CHUNK: usize = 1 << 20;
/// `O_DIRECT` of x86-64 and most others.
const DIRECT: i32 = 0o40000;
const NAME: &str = "file";

/// A file of memory, of so many bytes.
struct Copies {
    len: u64,
    memory: Memory,
}

enum Memory {
    Own(RwLock<Vec<u8>>),
    Tmpfs(File),
}

impl Copies {
    /// Of memory that is there already.
    fn touched(len: u64) -> Self {
        let memory = Memory::Own(RwLock::new(vec![1; len as usize]));
        Self { len, memory }
    }

    /// Of a file of tmpfs that has none yet.
    fn new(path: &Path, len: u64) -> Self {
        let options = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = options.expect("a file");
        file.set_len(len).expect("as long");
        let memory = Memory::Tmpfs(file);
        Self { len, memory }
    }

    fn attributes(&self, number: INodeNo) -> FileAttr {
        let is_root = number == INodeNo::ROOT;
        FileAttr {
            ino: number,
            size: if is_root { 0 } else { self.len },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: CHUNK as u32,
            flags: 0,
        }
    }
}

impl Filesystem for Copies {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // As `Mounted` does.
        for requested in [InitFlags::FUSE_AUTO_INVAL_DATA, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(requested);
        }
        let _ = config.set_max_write(CHUNK as u32);
        if let Err(most) = config.set_max_readahead(CHUNK as u32) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&Duration::ZERO, &self.attributes(INodeNo(2)), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }
    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(number));
    }
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&Duration::ZERO, &self.attributes(number));
    }
    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let found = self.attributes(INodeNo(2));
        reply.created(
            &Duration::ZERO,
            &found,
            Generation(0),
            FileHandle(0),
            FopenFlags::empty(),
        );
    }
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut copy = vec![0; size as usize];
        let from = self.len.min(offset) as usize;
        let copy = &mut copy[..(self.len as usize - from).min(size as usize)];
        match &self.memory {
            Memory::Own(bytes) => copy.copy_from_slice(&bytes.read().unwrap()[from..][..copy.len()]),
            Memory::Tmpfs(file) => file.read_exact_at(copy, from as u64).unwrap(),
        }
        reply.data(copy);
    }
    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match &self.memory {
            Memory::Own(bytes) => bytes.write().unwrap()[offset as usize..][..data.len()].copy_from_slice(data),
            Memory::Tmpfs(file) => file.write_all_at(data, offset).unwrap(),
        }
        reply.written(data.len() as u32);
    }
}

/// Seconds for the whole file.
fn timed(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

fn write(path: &Path, len: u64, flags: i32) -> f64 {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(flags)
        .open(path)
        .unwrap();
    let chunk = aligned(7);
    timed(|| (0..len / CHUNK as u64).for_each(|_| file.write_all(&chunk).unwrap()))
}

fn read(path: &Path, len: u64, flags: i32) -> f64 {
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
    file.rewind().unwrap();
    let mut chunk = aligned(0);
    timed(|| (0..len / CHUNK as u64).for_each(|_| file.read_exact(&mut chunk).unwrap()))
}

/// A large allocation begins at a page, or `O_DIRECT` is refused, and said so.
fn aligned(byte: u8) -> Vec<u8> {
    vec![byte; CHUNK]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn mounted<F: Filesystem>(files: F, at: &Path) -> BackgroundSession {
    let options = Options {
        threads: 2,
        name: "mount_speed".into(),
        ..Options::default()
    };
    Session::new(files, at, &options.config())
        .and_then(Session::spawn)
        .expect("mounted")
}

/// What is mounted, and where files of it and of tmpfs are.
struct Stage {
    work: PathBuf,
    sessions: Vec<BackgroundSession>,
    files: [PathBuf; 3],
}

impl Stage {
    fn new(len: u64, copies: impl FnOnce(&Path) -> Copies) -> Self {
        let work = PathBuf::from(format!("/dev/shm/cenote-mount-speed-{}", std::process::id()));
        let places = ["space", "copies", "tmpfs"].map(|name| work.join(name));
        places.iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
        let options = SpaceOptions {
            bytes: len + (64 << 20),
            ..SpaceOptions::default()
        };
        let space = Space::create(&work.join("region"), &options).expect("a space");
        let files = FileSystem::make(&space, Owner { user: 0, group: 0 }).expect("made");
        let copies = mounted(copies(&work.join("memory")), &places[1]);
        let sessions = vec![mounted(Mounted::new(files), &places[0]), copies];
        let files = places.map(|place| place.join(NAME));
        Self { work, sessions, files }
    }

    fn end(self) {
        for session in self.sessions {
            session.umount_and_join().expect("unmounted");
        }
        std::fs::remove_dir_all(&self.work).unwrap();
    }
}

/// A file that is written the first time, each round anew.
fn first_times(len: u64) -> [f64; 3] {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..FIRST_ROUNDS {
        let stage = Stage::new(len, |path| Copies::new(path, len));
        for (path, times) in stage.files.iter().zip(&mut times) {
            times.push(write(path, len, 0));
        }
        stage.end();
    }
    times.map(median)
}

fn main() {
    let len = std::env::args()
        .nth(1)
        .map_or(ByteSize::mib(256), |text| text.parse().expect("a size"))
        .bytes();
    println!(
        "{} in pieces of 1 MiB, GB/s, median of {ROUNDS} rounds in turn",
        ByteSize(len)
    );
    println!("| | space | only copies | ratio | tmpfs |\n|---|---|---|---|---|");
    row(
        "write, the first time (copies: to a new file of tmpfs)",
        len,
        &first_times(len),
    );
    let stage = Stage::new(len, |_| Copies::touched(len));
    for path in &stage.files {
        write(path, len, 0);
    }
    for (name, flags) in [("cached", 0), ("direct", DIRECT)] {
        for (what, work) in [("write", write as fn(&Path, u64, i32) -> f64), ("read", read)] {
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                for (path, times) in stage.files.iter().zip(&mut times) {
                    times.push(work(path, len, flags));
                }
            }
            row(&format!("{what}, {name}"), len, &times.map(median));
        }
    }
    stage.end();
}

fn row(name: &str, len: u64, seconds: &[f64]) {
    let speed: Vec<f64> = seconds.iter().map(|seconds| len as f64 / seconds / 1e9).collect();
    println!(
        "| {name} | {:.2} | {:.2} | {:.2} | {:.2} |",
        speed[0],
        speed[1],
        speed[0] / speed[1],
        speed[2]
    );
}
