//! The store of several processes, which are killed at any moment.
//!
//! Each worker process writes keys of its own, first writer wins and replaced, and notes in a table of words what it is
//! sure of; readers check that what they see is whole. After each kill the others must free within two seconds what the
//! dead one pinned and was filling.

#![allow(
    dead_code,
    reason = "what tests of several crates have in common is more than one uses"
)]

#[path = "../../space/tests/common/process.rs"]
mod process;
#[path = "../../space/tests/common/random.rs"]
mod random;

use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_space::{GlobalAddress, Neighbour, Service, Space, SpaceOptions};
use cenote_store::{Options, Put, PutOptions, Store};
use process::{Process, hold, say, task};
use random::{Random, seed};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WORKERS: u64 = 3;
/// Keys of a worker, each with a word in its table: version that is there for sure, of a replaced value.
const KEYS: u64 = 400;
/// Not a worker: it borrows a value, and holds on.
const BORROWER: u64 = u64::MAX;
const REPLACE: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: true,
    replicas: 0,
};
const KEEP: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: false,
    replicas: 0,
};

#[derive(Serialize, Deserialize)]
struct Task {
    directory: PathBuf,
    worker: u64,
    seed: u64,
    table: u64,
}

/// A space of one part, kept by this process: others join it.
fn keep(directory: &Path, mib: u64) -> (Space, Service) {
    let options = SpaceOptions {
        bytes: mib << 20,
        ..SpaceOptions::default()
    };
    let space = Space::create(&directory.join("part"), &options).expect("made");
    let service = Service::start(&directory.join("keeper"), space.keeper(1).expect("kept here")).expect("a socket");
    (space, service)
}

fn join(directory: &Path) -> Space {
    let keeper = Neighbour::connect(&directory.join("keeper")).expect("a keeper");
    Space::join(&directory.join("part"), RegionOptions::default(), Arc::new(keeper)).expect("a space")
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = Random(key << 24 ^ version);
    let len = match random.below(20) {
        0 => 1_200_000,
        1..4 => 40_000,
        _ => 24 + random.below(500),
    };
    let mut bytes: Vec<u8> = [key.to_le_bytes(), version.to_le_bytes()].concat();
    while (bytes.len() as u64) < len {
        bytes.extend(random.word().to_le_bytes());
    }
    bytes
}

/// The value's own word of what it is, if it is whole.
fn checked(key: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    assert!(
        bytes == value(key, version),
        "key {key} has a mix of bytes, or another's"
    );
    version
}

fn name(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let space = join(&task.directory);
    let store = Store::open(&space, Options::default()).expect("a store");
    if task.worker == BORROWER {
        let borrow = store.borrow(b"held").expect("asked").expect("there");
        say(&borrow.pieces()[0].0.raw().to_string());
        return hold();
    }
    let mut random = Random(task.seed);
    let table = GlobalAddress::from_raw(task.table);
    let word = |n: u64| table.checked_add(8 * (task.worker * KEYS + n)).expect("inside");
    let mut pins = Vec::new();
    for step in 1_u64.. {
        let n = random.below(KEYS);
        let key = task.worker * KEYS + n;
        match random.below(10) {
            // What is noted is there: nothing is evicted here, and nobody else writes this key.
            0..4 => {
                let next = space.load(word(n)).expect("the table") + 1;
                store.put(&name(key), &value(key, next), REPLACE).expect("put");
                space.store(word(n), next).expect("the table");
            }
            4 => {
                // Shared keys: first writer wins.
                let key = WORKERS * KEYS + n;
                store.put(&name(key), &value(key, task.worker), KEEP).expect("put");
                let seen = store.get(&name(key)).expect("asked").expect("one has won");
                assert!(checked(key, &seen) < WORKERS);
            }
            5 => pins.extend(store.borrow(&name(key)).expect("asked")),
            6 => pins.clear(),
            7 => drop(
                store
                    .alloc(b"never published", 100 + random.below(3 << 20), KEEP)
                    .expect("room"),
            ),
            _ => {
                let key = random.below(WORKERS * KEYS);
                if let Some(bytes) = store.get(&name(key)).expect("asked") {
                    checked(key, &bytes);
                }
            }
        }
        pins.truncate(100);
        if step % 50 == 0 {
            say("working");
        }
    }
}

#[test]
fn what_was_put_is_there_whichever_process_is_killed() {
    let seed = seed();
    let mut random = Random(seed);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, _service) = keep(directory.path(), 1800);
    let store = Store::create(
        &space,
        Options {
            buckets: 16,
            ..Options::default()
        },
    )
    .expect("a store");
    let session = space.session();
    let table = session.alloc(8 * WORKERS * KEYS).expect("room");
    let start = |worker: u64, seed: u64| {
        Process::start(&Task {
            directory: directory.path().into(),
            worker,
            seed,
            table: table.raw(),
        })
    };
    let mut workers: Vec<_> = (0..WORKERS).map(|n| start(n, random.word())).collect();
    let mut winners = vec![None; KEYS as usize];
    for _ in 0..12 {
        workers.iter_mut().for_each(|worker| worker.progress(1));
        rt::sleep(Nanos::from_micros(random.below(30_000)));
        let n = random.below(WORKERS) as usize;
        workers[n].kill();
        check(&store, &space, table, n as u64, &mut winners);
        workers[n] = start(n as u64, random.word());
    }
    workers.iter_mut().for_each(Process::kill);
    (0..WORKERS).for_each(|n| check(&store, &space, table, n, &mut winners));
    nothing_is_left(&store, &space);
}

#[test]
fn a_borrowed_place_is_used_again_when_its_process_is_over_and_not_when_it_is_silent() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, _service) = keep(directory.path(), 64);
    let store = Store::create(&space, Options::default()).expect("a store");
    let bytes = vec![9; 10_000];
    store.put(b"held", &bytes, KEEP).expect("put");
    let mut borrower = Process::start(&Task {
        directory: directory.path().into(),
        worker: BORROWER,
        seed: 0,
        table: 0,
    });
    let at = GlobalAddress::from_raw(borrower.says().parse().expect("an address"));
    borrower.signal(Signal::STOP);
    assert!(store.remove(b"held").expect("removed"));
    // It says nothing for several sweeps, while others want such places: it may wake up and read.
    let began = rt::now();
    for n in 0_u64.. {
        store
            .put(&(n % 50).to_be_bytes(), &vec![n as u8; 10_000], REPLACE)
            .expect("put");
        if n > 2000 && rt::now().since(began) > Nanos::from_millis(1800) {
            break;
        }
    }
    let mut found = vec![0; bytes.len()];
    space.read(at, &mut found).expect("it is there still");
    assert!(found == bytes, "its place has another's bytes");
    borrower.kill();
    for _ in 0..200 {
        if space.read(at, &mut found).is_err() || found != bytes {
            return;
        }
        store.sweep().expect("swept");
        rt::sleep(Nanos::from_millis(50));
    }
    panic!("its process is over, and its place is not free");
}

/// What a worker that is dead had put.
fn check(store: &Store, space: &Space, table: GlobalAddress, worker: u64, winners: &mut [Option<u64>]) {
    for n in 0..KEYS {
        let key = worker * KEYS + n;
        let noted = space
            .load(table.checked_add(8 * key).expect("inside"))
            .expect("the table");
        let found = store
            .get(&name(key))
            .expect("asked")
            .map_or(0, |bytes| checked(key, &bytes));
        // It may have been killed between the put and the note.
        assert!(
            found == noted || found == noted + 1,
            "key {key}: version {found}, {noted} is noted"
        );
        space
            .store(table.checked_add(8 * key).expect("inside"), found)
            .expect("the table");
    }
    for (n, winner) in winners.iter_mut().enumerate() {
        let key = WORKERS * KEYS + n as u64;
        let found = store.get(&name(key)).expect("asked").map(|bytes| checked(key, &bytes));
        assert!(
            winner.is_none() || *winner == found,
            "key {key} had {winner:?}, has {found:?}"
        );
        *winner = found;
    }
}

/// All members but this one are dead: within two seconds nothing is pinned, and what was being filled is free.
fn nothing_is_left(store: &Store, space: &Space) {
    rt::sleep(Nanos::from_secs(2));
    let mut left = 0;
    for key in 0..(WORKERS + 1) * KEYS {
        left += u64::from(store.remove(&name(key)).expect("removed"));
    }
    assert!(left > 0, "there were values");
    assert_eq!(store.put(b"one more", b"value", KEEP).expect("put"), Put::Stored(1));
    store.sweep().expect("swept");
    // What lies in a pool is free: a value that was replaced by one of another size left it there.
    let owned: HashSet<_> = store.objects().expect("told").into_iter().map(|(at, _)| at).collect();
    let (mut large, mut objects) = (0, 0);
    let each = |at, len| {
        let is_lost = !owned.contains(&at);
        objects += u64::from(is_lost);
        large += u64::from(is_lost && len > 8192 && len < 1 << 20);
    };
    space.each_object(each).expect("told");
    // Each kill loses two objects at most: one that was taken and not yet noted, one that was replaced and not yet free.
    println!(
        "{objects} objects are left, {large} of them large; {:?}",
        store.stats().expect("counted")
    );
    assert!(large <= 2 * (12 + WORKERS), "{large} large objects are left");
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}
