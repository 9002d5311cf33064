//! Processes that have one file system mounted and are killed in the middle of anything; others go on meanwhile, or
//! look at what is left.
//!
//! What the processes do is [`another_process`].

#[path = "../../pool/tests/common/mod.rs"]
mod common;

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_fs::{Change, FileSystem, Inode, Owner, Rename, kind};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::manager::Manager;
use cenote_space::EXTENT;
use cenote_space::Space;
use common::{
    Process, Random, client, credentials, join, keep, manager_options, network, node_options, say, seed, started_node,
    task, until, until_found,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const ME: Owner = Owner { user: 1, group: 1 };
/// Directories that all processes use.
const DIRECTORIES: u64 = 3;
/// The space of a pool that holds a file system.
const SPACE: &str = "files";
/// Bytes that a file may have.
const LONGEST: u64 = 200_000;

/// What another process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    place: Place,
    seed: u64,
}

/// Where a file system lies.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Place {
    /// In a part that a process keeps in this directory.
    Directory(PathBuf),
    /// In a space of the pool of this manager.
    Pool(String),
}

impl Place {
    fn open(&self) -> Space {
        match self {
            Self::Directory(directory) => join(directory),
            Self::Pool(manager) => client(manager, None)
                .and_then(|pool| pool.open_whole_space(SPACE))
                .expect("opened"),
        }
    }

    /// A process that has it mounted.
    fn mount(&self, random: &mut Random) -> Process {
        Process::start(&Task {
            place: self.clone(),
            seed: random.below(1 << 30),
        })
    }
}

/// What another process does until it is killed: two threads of one mount.
#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let files = Arc::new(FileSystem::mount(&task.place.open()).expect("mounted"));
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
            let is_expected = !matches!(failure, cenote_fs::Failure::Memory(_));
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

/// A file whose bytes are all of one letter, whichever mount writes them.
fn write(files: &FileSystem, directory: Inode, name: &[u8], random: &mut Random) -> cenote_fs::Result<()> {
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

fn made(space: &Space) -> FileSystem {
    let files = FileSystem::make(space, ME).expect("made");
    for n in 0..DIRECTORIES {
        let name = format!("directory {n}");
        let directory = files.make_directory(files.root(), name.as_bytes(), 0o755, ME);
        directory.expect("made");
    }
    files
}

#[test]
fn mounts_that_are_killed_leave_a_tree_in_order_to_the_others() {
    const PROCESSES: usize = 3;
    const ROUNDS: u64 = 60;
    let mut random = Random(seed());
    let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, service) = keep(home.path(), 160);
    let files = made(&space);
    let place = Place::Directory(home.path().into());
    let mut others: Vec<_> = (0..PROCESSES).map(|_| place.mount(&mut random)).collect();
    for _ in 0..ROUNDS {
        let victim = random.below(PROCESSES as u64) as usize;
        others[victim].hear(1 + random.below(150));
        others[victim] = place.mount(&mut random);
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

/// In a space of a pool no mount keeps it open: the check is the only one that has it mounted, once the memory nodes
/// have missed the killed.
#[test]
fn what_killed_mounts_left_in_a_pool_is_found_and_freed() {
    const ROUNDS: usize = 4;
    let mut random = Random(seed());
    let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = manager_options(&home.path().join("manager"), "127.0.0.1:0", Nanos::from_secs(5));
    let manager = Manager::start(manager, &Tcp).expect("a manager");
    let address = manager.address();
    let node = |pod: &str| started_node(node_options(&home.path().join(pod), address, pod, 80)).expect("a node");
    let mut nodes = ["a", "b"].map(|pod| (pod, Some(node(pod))));
    let pool = client(address, None).expect("connected");
    pool.create_space(SPACE, 140 * EXTENT, None).expect("made");
    drop(made(&pool.open_space(SPACE).expect("opened")));
    let place = Place::Pool(address.into());
    for _ in 0..ROUNDS {
        let mut mounts = [0; 2].map(|_| place.mount(&mut random));
        mounts.iter_mut().for_each(|mount| mount.hear(1 + random.below(150)));
        drop(mounts);
        let space = place.open();
        let files = FileSystem::mount(&space).expect("mounted");
        let look_alone = || Some(files.check(false).expect("looked at")).filter(|report| report.is_alone);
        let report = until_found("the end of the killed", look_alone, String::new);
        assert_eq!(report.problems, Vec::<String>::new());
        look(&files);
        drop(files);
        // What they had open without a name is freed by the next mount.
        let files = FileSystem::mount(&space).expect("mounted");
        let report = files.check(false).expect("looked at");
        assert_eq!((report.orphans, report.problems), (0, Vec::new()));
        let freed = files.check(true).expect("looked at");
        assert_eq!((freed.unreferenced, freed.are_freed), (report.unreferenced, true));
        assert_eq!(files.check(false).expect("looked at").unreferenced, 0);
        assert_eq!(files.space().audit().expect("audited"), Vec::<String>::new());
    }

    // What is broken is said, and then nothing is freed.
    let files = FileSystem::mount(&place.open()).expect("mounted");
    let victim = files.create(files.root(), b"victim", 0o644, ME).expect("made");
    files.space().session().alloc(100).expect("room");
    files.space().free(victim.inode.address).expect("there");
    let report = files.check(true).expect("looked at");
    let names_it = |problem: &String| problem.contains("\"victim\" in directory 1");
    assert!(report.problems.iter().any(names_it) && !report.are_freed, "{report:?}");
    assert_eq!(files.check(false).expect("looked at").unreferenced, report.unreferenced);
    drop(files);

    // Of what cannot be reached nothing is said.
    let second = pool.spaces().expect("asked")[0].parts[1].clone();
    let (_, gone) = nodes.iter_mut().find(|(pod, _)| second.pod == *pod).expect("its node");
    *gone = None;
    until("its end", || !pool.spaces().expect("asked")[0].parts[1].connected);
    let options = ClientOptions {
        timeout: Nanos::from_millis(200),
        ..ClientOptions::default()
    };
    let hasty = PoolClient::connect(&network(), &credentials(address), options).expect("connected");
    assert_eq!(hasty.open_space(SPACE).expect("the other part").parts().count(), 1);
    let refused = hasty.open_whole_space(SPACE);
    let names_it = |text: &str| text.contains(&format!("of pod {}, where part 2 lies", second.pod));
    assert!(
        matches!(&refused, Err(Error::Lost(text)) if names_it(text)),
        "{refused:?}"
    );
}
