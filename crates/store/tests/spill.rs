//! Values that go to files and come back: by which processes they are read, and that nothing dead or damaged is.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_space::{Space, SpaceOptions};
use cenote_store::{Expected, Options, Put, PutOptions, SpillOptions, Store, Visibility};
use std::path::{Path, PathBuf};

#[path = "../../space/tests/common/random.rs"]
mod random;
use random::{Random, seed};

const LEN: usize = 100_000;
const REPLACE: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: true,
    replicas: 0,
};
const KEEP: PutOptions = PutOptions {
    replaces: false,
    ..REPLACE
};

fn space() -> Space {
    space_of(64)
}

fn space_of(mib: u64) -> Space {
    let options = SpaceOptions {
        bytes: mib << 20,
        ..SpaceOptions::default()
    };
    Space::dram(&options).expect("memory")
}

/// Of 4 MiB in memory: some forty values.
fn options() -> Options {
    Options {
        bound: 4 << 20,
        buckets: 16,
        sweeps: false,
        ..Options::default()
    }
}

fn to(directory: &Path, mib: u64) -> SpillOptions {
    SpillOptions {
        directory: directory.to_owned(),
        bytes: mib << 20,
        tenant: None,
    }
}

fn spilling(directory: &Path, mib: u64) -> Store {
    let store = Store::create(&space(), options()).expect("a store");
    store.spill_to(to(directory, mib)).expect("a directory");
    store
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Bytes that say of themselves which key and version they are of.
fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = Random(key << 20 ^ version);
    let mut bytes: Vec<u8> = [key.to_le_bytes(), version.to_le_bytes()].concat();
    while bytes.len() < len {
        bytes.extend(random.word().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn put(store: &Store, n: u64, version: u64) {
    store.put(&key(n), &value(n, version, LEN), REPLACE).expect("put");
    assert!(store.flush_spilled(Nanos::from_secs(60)), "the disk is stuck");
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let owners = std::fs::read_dir(directory).expect("the directory");
    let files = owners.flat_map(|owner| std::fs::read_dir(owner.expect("an owner").path()).expect("its files"));
    let all = files.map(|file| file.expect("a file").path());
    all.filter(|path| path.file_name().is_some_and(|name| name != "owner"))
        .collect()
}

fn hits(store: &Store, keys: u64, version: u64) -> usize {
    let is_hit = |n: &u64| match store.get(&key(*n)).expect("asked") {
        Some(bytes) => {
            assert!(bytes == value(*n, version, LEN), "key {n} has another value");
            true
        }
        None => false,
    };
    (0..keys).filter(is_hit).count()
}

#[test]
fn what_is_evicted_is_read_from_files_and_comes_back() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options {
            visibility,
            ..options()
        };
        let store = Store::create(&space(), options).expect("a store");
        store.spill_to(to(directory.path(), 64)).expect("a directory");
        (0..120).for_each(|n| put(&store, n, 1));
        let stats = store.stats().expect("counted");
        assert!(stats.in_files >= 80 && stats.used <= 4 << 20, "{stats:?}");
        assert_eq!((stats.items, stats.unspilled), (120, 0));
        assert_eq!(hits(&store, 120, 1), 120);
        assert!(store.stats().expect("counted").spill_hits >= 80);
        // Of two reads the second brings it back; a borrow does at once.
        assert!(store.get(&key(0)).expect("asked").is_some());
        let before = store.stats().expect("counted").spill_hits;
        assert!(store.get(&key(0)).expect("asked").is_some());
        assert_eq!(store.stats().expect("counted").spill_hits, before);
        let borrow = store.borrow(&key(1)).expect("asked").expect("there");
        let mut bytes = vec![0; LEN];
        borrow.read(0, &mut bytes).expect("read");
        assert!(bytes == value(1, 1, LEN) && borrow.end().expect("asked"));
        let presence = store.exists([&key(2)[..], &key(3)], true).expect("asked");
        assert_eq!((presence.prefix, presence.pins.len()), (2, 2));
        drop(presence);
        for n in 0..120 {
            assert!(store.remove(&key(n)).expect("removed"), "{n}");
        }
        let stats = store.stats().expect("counted");
        assert_eq!((stats.items, stats.used, stats.in_files), (0, 0, 0));
    }
}

#[test]
fn what_was_removed_replaced_or_has_expired_stays_dead() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = spilling(directory.path(), 64);
    let soon = PutOptions {
        time_to_live: Some(Nanos::from_millis(300)),
        ..KEEP
    };
    store.put(b"soon", &value(900, 1, LEN), soon).expect("put");
    let began = rt::now();
    (0..90).for_each(|n| put(&store, n, 1));
    // Another member, which has no directory, removes and replaces.
    let other = Store::open(store.space(), options()).expect("opened");
    assert!(
        other.get(&key(0)).expect("asked").is_none(),
        "it does not reach the file"
    );
    assert!(other.remove(&key(0)).expect("removed"));
    assert_eq!(other.put(&key(1), b"new", REPLACE).expect("put"), Put::Stored(2));
    assert!(other.remove(&key(2)).expect("removed"));
    assert_eq!(other.put(&key(2), b"newer", KEEP).expect("put"), Put::Stored(1));
    assert_eq!(store.get(&key(0)).expect("asked"), None);
    assert_eq!(store.get(&key(1)).expect("asked"), Some(b"new".to_vec()));
    assert_eq!(store.get(&key(2)).expect("asked"), Some(b"newer".to_vec()));
    rt::sleep(Nanos::from_millis(350) - rt::now().since(began));
    assert_eq!(store.get(b"soon").expect("asked"), None);
    assert!(matches!(store.put(b"soon", b"again", KEEP), Ok(Put::Stored(_))));
}

#[test]
fn first_writers_and_generations_hold_for_what_is_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = spilling(directory.path(), 64);
    put(&store, 0, 1);
    let before = store.value_of(&key(0)).expect("asked").expect("there");
    (1..90).for_each(|n| put(&store, n, 1));
    assert_eq!(store.value_of(&key(0)).expect("asked"), Some(before));
    assert_eq!(store.put(&key(0), b"no", KEEP).expect("put"), Put::Exists);
    let compare = |generation| {
        let put = store.compare_and_put(&key(0), b"mine", Expected::Generation(generation), KEEP);
        put.expect("put")
    };
    assert_eq!(compare(before.generation + 1), None);
    let mine = compare(before.generation).expect("it was still the same");
    assert_eq!(mine.version, 2);
    assert_eq!(store.get(&key(0)).expect("asked"), Some(b"mine".to_vec()));
    // One that cannot read it: no writer has come first.
    let other = Store::open(store.space(), options()).expect("opened");
    let spilled = (1..90).find(|n| other.value_of(&key(*n)).expect("asked").is_none());
    let spilled = spilled.expect("some are in files");
    assert_eq!(other.put(&key(spilled), b"other", KEEP).expect("put"), Put::Stored(2));
    assert_eq!(store.get(&key(spilled)).expect("asked"), Some(b"other".to_vec()));
}

#[test]
fn a_damaged_or_lost_file_is_a_miss() {
    let seed = seed();
    let mut random = Random(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let store = spilling(directory.path(), 64);
    (0..90).for_each(|n| put(&store, n, 1));
    for path in segments(directory.path()) {
        let mut bytes = std::fs::read(&path).expect("read");
        for _ in 0..20 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        std::fs::write(&path, &bytes).expect("written");
    }
    let some = hits(&store, 90, 1);
    assert!((40..90).contains(&some), "{some}");
    for path in segments(directory.path()) {
        let len = std::fs::metadata(&path).expect("there").len();
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(len / 2))
            .expect("cut");
    }
    hits(&store, 90, 1);
    // What came back has pushed others out, which may be on their way to a file still.
    assert!(store.flush_spilled(Nanos::from_secs(60)), "the disk is stuck");
    segments(directory.path())
        .iter()
        .for_each(|path| std::fs::remove_file(path).expect("removed"));
    let left = hits(&store, 90, 1);
    assert!(left <= 45, "what is in memory: {left}");
    for n in 0..90 {
        assert!(store.put(&key(n), &value(n, 1, LEN), KEEP).is_ok());
    }
}

#[test]
fn files_are_bounded_and_the_oldest_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = spilling(directory.path(), 8);
    for n in 0..400 {
        put(&store, n, 1);
        let bytes: u64 = segments(directory.path())
            .iter()
            .filter_map(|path| path.metadata().ok())
            .map(|m| m.len())
            .sum();
        assert!(bytes <= 8 << 20, "{bytes} bytes of files");
    }
    let some = hits(&store, 400, 1);
    assert!((60..140).contains(&some), "{some} of 400, where there is room for 120");
    assert!(store.get(&key(0)).expect("asked").is_none());
    // Stubs of segments that were dropped go too.
    store.sweep().expect("swept");
    let stats = store.stats().expect("counted");
    assert!(stats.in_files <= 100, "{stats:?}");
    // What is longer than a part of it is not spilled, and what is short would gain nothing.
    assert!(matches!(
        store.spill_to(to(directory.path(), 8)),
        Err(Error::Invalid(_))
    ));
    let small = SpillOptions {
        bytes: 100,
        tenant: Some(1),
        ..to(directory.path(), 8)
    };
    assert!(matches!(store.spill_to(small), Err(Error::Invalid(_))));
}

#[test]
fn a_process_that_starts_again_has_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let space = space();
    let first = Store::create(&space, options()).expect("a store");
    first.spill_to(to(directory.path(), 64)).expect("a directory");
    (0..90).for_each(|n| put(&first, n, 1));
    // While it lives another has a directory of its own, and reads the first one's.
    let second = Store::open(&space, options()).expect("opened");
    second.spill_to(to(directory.path(), 64)).expect("a directory");
    let reader = Store::open(&space, options()).expect("opened");
    reader.spill_to(to(directory.path(), 0)).expect("only read");
    assert_eq!(hits(&reader, 90, 1), 90);
    assert_eq!(std::fs::read_dir(directory.path()).expect("owners").count(), 2);
    drop((first, second, reader));
    let again = Store::open(&space, options()).expect("opened");
    assert!(hits(&again, 90, 1) < 60, "it has no directory yet");
    again.spill_to(to(directory.path(), 64)).expect("a directory");
    assert_eq!(hits(&again, 90, 1), 90);
    (90..120).for_each(|n| put(&again, n, 1));
    assert_eq!(hits(&again, 120, 1), 120);
    assert_eq!(std::fs::read_dir(directory.path()).expect("owners").count(), 2);
    drop(again);
    // Another store takes nothing of it for its own, and what is of no use goes.
    let other = spilling(directory.path(), 64);
    assert_eq!(hits(&other, 90, 1), 0);
    assert_eq!(std::fs::read_dir(directory.path()).expect("owners").count(), 1);
}

#[test]
fn members_that_spill_agree_with_a_model() {
    let seed = seed();
    let (directory, space) = (tempfile::tempdir().expect("a directory"), space_of(160));
    let bound = Options {
        bound: 2 << 20,
        ..options()
    };
    let first = Store::create(&space, bound).expect("a store");
    let members: Vec<_> = (0..3)
        .map(|_| Store::open(&space, options()).expect("opened"))
        .collect();
    std::thread::scope(|scope| {
        for (own, store) in members.iter().enumerate() {
            store.spill_to(to(directory.path(), 16)).expect("a directory");
            scope.spawn(move || act_as_a_model(store, own as u64, seed ^ own as u64));
        }
    });
    let stats: Vec<_> = members.iter().map(|store| store.stats().expect("counted")).collect();
    assert!(stats.iter().all(|stats| stats.damaged == 0), "{stats:?}");
    assert!(stats.iter().map(|stats| stats.spill_hits).sum::<u64>() > 0, "{stats:?}");
    drop(members);
    for n in (0..3).flat_map(|own| (0..200).map(move |n| own << 32 | n)) {
        first.remove(&key(n)).expect("removed");
    }
    first.sweep().expect("swept");
    let stats = first.stats().expect("counted");
    assert_eq!((stats.items, stats.used, stats.in_files), (0, 0, 0));
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// Of keys of its own: what is there is what it put last.
fn act_as_a_model(store: &Store, own: u64, seed: u64) {
    let (mut random, mut versions) = (Random(seed), vec![None; 200]);
    for step in 1..1500_u64 {
        let at = random.below(200);
        let (n, len) = (own << 32 | at, [700, 5000, 50_000][random.below(3) as usize]);
        match random.below(8) {
            0..3 => {
                store.put(&key(n), &value(n, step, len), REPLACE).expect("put");
                versions[at as usize] = Some((step, len));
            }
            3 => {
                store.remove(&key(n)).expect("removed");
                versions[at as usize] = None;
            }
            4 => drop(store.exists([&key(n)[..]], true).expect("asked")),
            _ => {
                let Some(bytes) = store.get(&key(n)).expect("asked") else {
                    continue;
                };
                let (step, len) = versions[at as usize].expect("it was removed");
                assert!(bytes == value(n, step, len), "key {n} has another value");
            }
        }
    }
}

#[test]
fn what_is_in_a_file_is_taken_out_by_its_generation() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = spilling(directory.path(), 64);
    (0..120).for_each(|n| put(&store, n, 1));
    assert!(store.stats().expect("counted").in_files >= 80);
    for n in 0..120 {
        let value = store.value_of(&key(n)).expect("asked").expect("there");
        let other = value.generation + (1 << 40);
        assert!(!store.compare_and_remove(&key(n), other).expect("asked"));
        assert!(
            store.compare_and_remove(&key(n), value.generation).expect("removed"),
            "{n}"
        );
        assert_eq!(store.get(&key(n)).expect("asked"), None);
    }
}

#[test]
fn of_first_writers_over_what_none_of_them_can_read_one_wins() {
    let (directory, space) = (tempfile::tempdir().expect("a directory"), space());
    let store = Store::create(&space, options()).expect("a store");
    store.spill_to(to(directory.path(), 64)).expect("a directory");
    (0..120).for_each(|n| put(&store, n, 1));
    let writers = [0, 1].map(|_| Store::open(&space, options()).expect("opened"));
    let barrier = std::sync::Barrier::new(2);
    let wins = |writer: &Store| {
        let win = |n: u64| {
            barrier.wait();
            writer.put(&key(n), b"first", KEEP).expect("put") != Put::Exists
        };
        (0..80).map(win).collect::<Vec<_>>()
    };
    let [one, other] = std::thread::scope(|scope| {
        let threads = writers.each_ref().map(|writer| scope.spawn(|| wins(writer)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert!(
        one.iter().zip(&other).all(|(one, other)| !(*one && *other)),
        "two first writers"
    );
    assert!(
        one.iter().chain(&other).filter(|win| **win).count() > 40,
        "few were in files"
    );
}

#[test]
fn what_is_squeezed_out_is_read_from_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        buckets: 64,
        sweeps: false,
        ..Options::default()
    };
    let store = Store::create(&space_of(32), options).expect("a store");
    store.spill_to(to(directory.path(), 256)).expect("a directory");
    // Nothing of the large one's size is there that the clock could evict: the squeeze makes room for it.
    const SMALL: usize = 12_000;
    let mut keys = 0;
    while store.stats().expect("counted").spilled == 0 {
        store.put(&key(keys), &value(keys, 1, SMALL), KEEP).expect("put");
        assert!(store.flush_spilled(Nanos::from_secs(60)), "the disk is stuck");
        keys += 1;
    }
    let before = store.stats().expect("counted");
    store.put(b"large", &value(0, 1, 700_000), KEEP).expect("put");
    assert!(store.flush_spilled(Nanos::from_secs(60)), "the disk is stuck");
    let after = store.stats().expect("counted");
    let (evicted, spilled) = (after.evicted - before.evicted, after.spilled - before.spilled);
    assert!(evicted > 0, "the large one needs extents");
    println!("{evicted} evicted, {spilled} spilled");
    assert!(spilled * 10 >= evicted * 8, "{evicted} evicted, {spilled} spilled");
}
