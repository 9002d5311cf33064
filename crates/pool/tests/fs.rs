//! Processes that have one file system mounted and are killed in the middle of anything; others go on meanwhile.
//!
//! The processes are this test program started again, with `CENOTE_FS` set: then [`another_process`] is what it does.

use cenote_base::rt;
use cenote_fabric::RegionOptions;
use cenote_pool::book::EXTENT;
use cenote_pool::fs::{Change, FileSystem, Inode, Owner, Rename, kind};
use cenote_pool::space::{Neighbour, Service, Space, SpaceOptions};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

const ME: Owner = Owner { user: 1, group: 1 };
/// Directories that all processes use.
const DIRECTORIES: u64 = 3;
/// Bytes that a file may have.
const LONGEST: u64 = 200_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A seed that is printed: `CENOTE_SEED` runs it again.
fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}

/// What another process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    part: PathBuf,
    keeper: PathBuf,
    seed: u64,
}

/// What another process does until it is killed: two threads of one mount.
#[test]
fn another_process() {
    let Ok(task) = std::env::var("CENOTE_FS") else {
        return;
    };
    let task: Task = serde_json::from_str(&task).expect("a task");
    let keeper = Arc::new(Neighbour::connect(&task.keeper).expect("a keeper"));
    let space = Space::join(&task.part, RegionOptions::default(), keeper).expect("a space");
    let files = Arc::new(FileSystem::mount(&space).expect("mounted"));
    let worker = |n: u64| {
        let (files, seed) = (Arc::clone(&files), task.seed + n);
        rt::spawn("worker", move || work(&files, &mut Random(seed)))
    };
    let workers: Vec<_> = (0..2).map(worker).collect();
    for worker in workers {
        if worker.join().is_err() {
            // Its words are on the error output; the starter sees that it ended.
            std::process::exit(1);
        }
    }
}

fn work(files: &FileSystem, random: &mut Random) {
    loop {
        let directories = [0; 2].map(|_| directory(files, random.below(DIRECTORIES)));
        let (name, other) = (name(random), self::name(random));
        // What another process has made or removed meanwhile is no failure; what is corrupt is.
        let answer = match random.below(9) {
            0..3 => write(files, directories[0], &name, random),
            3 => files.make_directory(directories[0], &name, 0o755, ME).map(drop),
            4 => files.unlink(directories[0], &name),
            5 => files.remove_directory(directories[0], &name),
            6 => {
                let how = if random.below(2) == 0 {
                    Rename::Replace
                } else {
                    Rename::Exchange
                };
                files.rename((directories[0], &name), (directories[1], &other), how)
            }
            7 => files
                .find(directories[0], &name)
                .and_then(|found| files.link(found.inode, directories[1], &other).map(drop)),
            _ => files.make_symlink(directories[0], &name, &[b'x'; 400], ME).map(drop),
        };
        if let Err(failure) = answer {
            let is_expected = !matches!(failure, cenote_pool::fs::Failure::Memory(_));
            assert!(is_expected, "{failure}");
        }
        say("done");
    }
}

fn directory(files: &FileSystem, n: u64) -> Inode {
    files
        .find(files.root(), format!("directory {n}").as_bytes())
        .expect("there")
        .inode
}

fn name(random: &mut Random) -> Vec<u8> {
    format!("name {}", random.below(12)).into_bytes()
}

/// A file whose bytes are all of one letter, whoever writes them.
fn write(files: &FileSystem, directory: Inode, name: &[u8], random: &mut Random) -> cenote_pool::fs::Result<()> {
    let found = match files.find(directory, name) {
        Ok(found) => {
            files.open(found.inode)?;
            found
        }
        Err(_) => files.create_open(directory, name, 0o644, ME)?,
    };
    let change = |random: &mut Random| {
        let offset = random.below(LONGEST / 2);
        let bytes = vec![b'x'; random.below(LONGEST / 2) as usize];
        files.write(found.inode, offset, &bytes)?;
        files.truncate(found.inode, random.below(LONGEST))?;
        files.set_attributes(found.inode, &Change::default())
    };
    let answer = change(random);
    files.close(found.inode)?;
    answer.map(drop)
}

fn say(text: &str) {
    let line = format!("\nfs: {text}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("written");
}

/// Another process; killed when dropped.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(task: &Task) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["another_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("CENOTE_FS", serde_json::to_string(task).expect("text"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    /// Reads so many reports. It must not end by itself.
    fn hear(&mut self, reports: u64) {
        let mut heard = 0;
        while heard < reports {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("readable") > 0, "it ended");
            heard += u64::from(line.trim() == "fs: done");
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mounts_that_are_killed_leave_a_tree_in_order_to_the_others() {
    const PROCESSES: usize = 3;
    const ROUNDS: u64 = 60;
    let mut random = Random(seed());
    let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (part, socket) = (home.path().join("part"), home.path().join("keeper"));
    let options = SpaceOptions {
        bytes: 160 * EXTENT,
        ..SpaceOptions::default()
    };
    let space = Space::create(&part, &options).expect("made");
    let service = Service::start(&socket, space.keeper(1).expect("kept here")).expect("a socket");
    let files = FileSystem::make(&space, ME).expect("made");
    for n in 0..DIRECTORIES {
        let name = format!("directory {n}");
        files
            .make_directory(files.root(), name.as_bytes(), 0o755, ME)
            .expect("made");
    }
    let start = |random: &mut Random| {
        Other::start(&Task {
            part: part.clone(),
            keeper: socket.clone(),
            seed: random.below(1 << 40),
        })
    };
    let mut others: Vec<_> = (0..PROCESSES).map(|_| start(&mut random)).collect();
    for _ in 0..ROUNDS {
        let victim = random.below(PROCESSES as u64) as usize;
        others[victim].hear(1 + random.below(150));
        others[victim] = start(&mut random);
        let report = files.check(false).expect("looked at");
        assert_eq!(report.problems, Vec::<String>::new());
        look(&files);
    }
    drop(others);
    while service.connections() > 0 {
        rt::yield_now();
    }
    drop(files);
    let files = FileSystem::mount(&space).expect("mounted");
    let report = files.check(true).expect("looked at");
    assert_eq!((report.orphans, report.problems.len()), (0, 0), "{report:?}");
    // An operation of each of two threads, and a file that it was about to free.
    assert!(
        report.unreferenced <= 2 * 20 * (ROUNDS + PROCESSES as u64),
        "{report:?}"
    );
    assert_eq!(files.check(false).expect("looked at").unreferenced, 0);
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// Every file that can be opened is of one letter, or of zeros where nothing was written.
fn look(files: &FileSystem) {
    for n in 0..DIRECTORIES {
        for listed in files.list(directory(files, n), 0, usize::MAX).expect("a directory") {
            if listed.kind != kind::FILE || files.open(listed.inode).is_err() {
                continue;
            }
            let mut bytes = vec![0; LONGEST as usize];
            let len = files.read(listed.inode, 0, &mut bytes).expect("a file");
            assert!(bytes[..len].iter().all(|byte| matches!(byte, b'x' | 0)));
            files.close(listed.inode).expect("open");
        }
    }
}
