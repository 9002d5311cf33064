//! Two hosts reach one data directory. The one that has it stands still at any moment, the other takes it over by
//! force, and the first wakes up: what either was told to be durable is in the log in the end, and the first ends.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::fault::{self, Fault};
use cenote_base::rt::{self, Mutex, Nanos, fs};
use cenote_base::{PageId, RecordAddr, Result};
use cenote_fabric::{Identity, Origin, Region, RegionOptions};
use cenote_sim::{Exit, Pace, Topology, World, seeds};
use cenote_storage::redo::{GroupBuilder, GroupKind};
use cenote_storage::{Claim, DataDir, Origins, RING_HEADER, RING_MIN, RingPlace, Storage, StorageOptions};

const DATA: &str = "/data";
const OFFSET: u64 = 4096;
/// Groups that an instance appends at most.
const GROUPS: u64 = 400;

/// Numbers of groups that are durable, as their writers were told.
type Told = Arc<Mutex<BTreeSet<u64>>>;

/// Opens the directory on a host that knows of no other's locks.
fn open(host: usize) -> Result<Arc<Storage>> {
    let lock = Path::new(DATA).join("lock");
    if fs::exists(&lock).expect("asked") {
        fs::remove(&lock).expect("removed");
    }
    let length = OFFSET + RING_HEADER + RING_MIN;
    let region = Arc::new(Region::dram(length, Identity::default(), RegionOptions::default()).expect("memory"));
    let claim = Claim::of(Origin::host(&format!("host-{host}"), 1));
    let dir = DataDir::open_as(Path::new(DATA), Origins::default(), &claim)?;
    let options = StorageOptions {
        segment_bytes: 64 << 10,
        background: rt::random().is_multiple_of(2),
        ..StorageOptions::new(RingPlace {
            region,
            offset: OFFSET,
            length: RING_HEADER + RING_MIN,
        })
    };
    let (storage, _) = dir.storage(options)?;
    storage.control().update(|c| c.incarnation = rt::random_u128())?;
    Ok(storage)
}

fn commit(storage: &Storage, number: u64) -> Result<()> {
    let mut builder = GroupBuilder::new();
    let record = builder.page(PageId::new(1, 1), RecordAddr::NONE);
    builder.write(record, 64, &number.to_le_bytes());
    builder.write(record, 8000, &[number as u8; 700]);
    let appended = storage.log().append(builder.finish().expect("short"), None)?;
    storage.log().wait_durable(appended.end)
}

/// Opens, and commits from several threads until that is refused. A start may be passed over before it is done.
fn work(host: usize, told: &Told) {
    let Ok(storage) = open(host) else { return };
    let life = host as u64 + 1;
    let threads = (0..3).map(|thread| {
        let (storage, told) = (Arc::clone(&storage), Arc::clone(told));
        rt::spawn("session", move || {
            for n in 0..GROUPS {
                let number = life << 32 | thread << 16 | n;
                if commit(&storage, number).is_err() {
                    return;
                }
                told.lock().insert(number);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// The numbers of all groups that are in the log.
fn numbers(storage: &Storage) -> BTreeSet<u64> {
    let (mut found, mut scan) = (BTreeSet::new(), storage.log().scan(storage.control().get().checkpoint));
    while let Some(group) = scan.next().expect("whole") {
        if group.kind() == GroupKind::Redo {
            let record = group.records().next().expect("one").expect("whole");
            found.insert(u64::from_le_bytes(record.bytes()[28..36].try_into().expect("8 bytes")));
        }
    }
    found
}

/// One host stands still, another takes over, and the first wakes up. How many groups the first was told of.
fn take_over(seed: u64) -> usize {
    println!("CENOTE_SEED={seed}");
    let world = World::new(seed, Pace::Explore, Topology::hosts(2, 2)).expect("a possible topology");
    let outcome = world.run(|w| {
        let files = w.files(0);
        w.set_files(1, &files);
        files.set_sync_time(Nanos::from_micros(w.draw() % 100));
        let told = Told::default();
        let made = w.process(0, "made", || drop(open(0).expect("it opens")));
        assert_eq!(made.join(), Exit::Returned);
        let theirs = Arc::clone(&told);
        let first = w.process(0, "first", move || work(0, &theirs));
        rt::sleep(Nanos(w.draw() % 3_000_000));
        w.pause(0, Nanos(w.draw() % 3_000_000));
        let theirs = Arc::clone(&told);
        let next = w.process(1, "next", move || work(1, &theirs));
        assert_eq!((first.join(), next.join()), (Exit::Returned, Exit::Returned));
        let theirs = Arc::clone(&told);
        let last = w.process(1, "last", move || {
            let found = numbers(&open(1).expect("it opens"));
            let lost: Vec<_> = theirs.lock().difference(&found).copied().collect();
            assert!(lost.is_empty(), "acknowledged, and not in the log: {lost:x?}");
        });
        assert_eq!(last.join(), Exit::Returned);
        told.lock().iter().filter(|number| **number >> 32 == 1).count()
    });
    outcome.value
}

#[test]
fn nothing_that_either_host_acknowledged_is_lost() {
    let acknowledged: Vec<usize> = seeds(40).map(take_over).collect();
    println!("the first was told of {acknowledged:?}");
    let cut_off = acknowledged.iter().filter(|n| **n > 0 && **n < 3 * GROUPS as usize);
    assert!(cut_off.count() > 0, "no take-over came in the middle: {acknowledged:?}");
}

#[test]
fn an_owner_that_does_not_look_is_found() {
    let _broken = fault::plant(Fault::OwnerUnasked);
    let unnoticed = |seed| catch_unwind(|| take_over(seed)).is_ok();
    assert!(
        !seeds(20).all(unnoticed),
        "the former owner told of commits that no log has, unnoticed"
    );
}

#[test]
fn a_log_that_goes_on_in_the_former_owners_files_is_found() {
    let _broken = fault::plant(Fault::LogFilesKept);
    let unnoticed = |seed| catch_unwind(|| take_over(seed)).is_ok();
    assert!(
        !seeds(60).all(unnoticed),
        "the former owner wrote into the log, unnoticed"
    );
}
