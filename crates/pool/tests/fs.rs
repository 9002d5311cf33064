//! Processes that have one file system mounted and are killed in the middle of anything; others go on meanwhile.
//!
//! What the processes do is [`another_process`].

mod common;

use cenote_base::rt;
use cenote_pool::fs::{Change, FileSystem, Inode, Owner, Rename, kind};
use common::{Process, Random, join, keep, say, seed, task};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const ME: Owner = Owner { user: 1, group: 1 };
/// Directories that all processes use.
const DIRECTORIES: u64 = 3;
/// Bytes that a file may have.
const LONGEST: u64 = 200_000;

/// What another process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    directory: PathBuf,
    seed: u64,
}

/// What another process does until it is killed: two threads of one mount.
#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let files = Arc::new(FileSystem::mount(&join(&task.directory)).expect("mounted"));
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
        say("working");
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

#[test]
fn mounts_that_are_killed_leave_a_tree_in_order_to_the_others() {
    const PROCESSES: usize = 3;
    const ROUNDS: u64 = 60;
    let mut random = Random(seed());
    let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, service) = keep(home.path(), 160);
    let files = FileSystem::make(&space, ME).expect("made");
    for n in 0..DIRECTORIES {
        let name = format!("directory {n}");
        files
            .make_directory(files.root(), name.as_bytes(), 0o755, ME)
            .expect("made");
    }
    let start = |random: &mut Random| {
        Process::start(&Task {
            directory: home.path().into(),
            seed: random.below(1 << 30),
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
