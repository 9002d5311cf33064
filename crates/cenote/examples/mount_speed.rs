//! How fast a mounted file system of a space is, read and written from one end to the other, beside a FUSE file system that does nothing but copy: `cargo run --release -p cenote
//! --example mount_speed -- 512MiB`. Both by the same library, with the same settings, in turn; medians of rounds. Memory is tmpfs's in both cases, and touched before.
//!
//! Three ways: as programs do by default, through the kernel's pages (`cached`, dropped before each reading); past them (`direct`), where a request is what the program asked for; and tmpfs itself.

use cenote::mount::{Mounted, Options};
use cenote_base::units::ByteSize;
use cenote_pool::fs::{FileSystem, Owner};
use cenote_pool::space::{Space, SpaceOptions};
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ROUNDS: usize = 7;
const CHUNK: usize = 1 << 20;
/// `O_DIRECT` of x86-64 and most others.
const DIRECT: i32 = 0o40000;
const NAME: &str = "file";

/// A file of memory.
struct Copies {
    bytes: RwLock<Vec<u8>>,
}

impl Copies {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let is_root = number == INodeNo::ROOT;
        FileAttr {
            ino: number,
            size: if is_root {
                0
            } else {
                self.bytes.read().unwrap().len() as u64
            },
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
        for wish in [InitFlags::FUSE_AUTO_INVAL_DATA, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(wish);
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
        let bytes = self.bytes.read().unwrap();
        let from = bytes.len().min(offset as usize);
        let len = (bytes.len() - from).min(copy.len());
        copy[..len].copy_from_slice(&bytes[from..from + len]);
        drop(bytes);
        reply.data(&copy[..len]);
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
        self.bytes.write().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
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

fn main() {
    let len = std::env::args()
        .nth(1)
        .map_or(ByteSize::mib(256), |text| text.parse().expect("a size"))
        .bytes();
    let work = PathBuf::from(format!("/dev/shm/cenote-mount-speed-{}", std::process::id()));
    let [ours, copies, plain] = ["space", "copies", "tmpfs"].map(|name| work.join(name));
    [&ours, &copies, &plain]
        .iter()
        .for_each(|path| std::fs::create_dir_all(path).unwrap());
    let options = SpaceOptions {
        bytes: len + (64 << 20),
        ..SpaceOptions::default()
    };
    let space = Space::create(&work.join("region"), &options).expect("a space");
    let files = FileSystem::make(&space, Owner { user: 0, group: 0 }).expect("made");
    let sessions = [
        mounted(Mounted::new(files), &ours),
        mounted(
            Copies {
                bytes: RwLock::new(vec![1; len as usize]),
            },
            &copies,
        ),
    ];
    println!(
        "{} in pieces of 1 MiB, GB/s, median of {ROUNDS} rounds in turn",
        ByteSize(len)
    );
    println!("| | space | only copies | ratio | tmpfs |\n|---|---|---|---|---|");
    let places = [ours.join(NAME), copies.join(NAME), plain.join(NAME)];
    // The first time memory is taken from the system: told by itself.
    let first: Vec<f64> = places.iter().map(|path| write(path, len, 0)).collect();
    row("write, the first time (the copies have their memory)", len, &first);
    for (name, flags) in [("cached", 0), ("direct", DIRECT)] {
        for (what, work) in [("write", write as fn(&Path, u64, i32) -> f64), ("read", read)] {
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                for (path, times) in places.iter().zip(&mut times) {
                    times.push(work(path, len, flags));
                }
            }
            row(&format!("{what}, {name}"), len, &times.map(median));
        }
    }
    for session in sessions {
        session.umount_and_join().expect("unmounted");
    }
    drop(space);
    std::fs::remove_dir_all(&work).unwrap();
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
