//! A store of a real process that is killed at any moment: what the next one finds is what the model is after some
//! number of operations, whole, and no fewer than were reported as done.
//!
//! What the process does is [`another_process`].

#[path = "../../space/tests/common/mod.rs"]
mod common;

use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_kv::{Entry, Keep, Store};
use cenote_space::{Space, SpaceOptions};
use common::{Process, say, task};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const ROUNDS: u64 = 12;

/// What is done as the operation of a number: the same in every process.
enum Operation {
    Set(String, String),
    Remove(String),
    Add(String),
    SetField(String, String, String),
    Rename(String, String),
    /// Several keys, as one step.
    SetAll(Vec<String>, String),
}

type Model = BTreeMap<String, BTreeMap<String, String>>;

/// What a number is mixed to.
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

fn operation(n: u64) -> Operation {
    let random = |which: u64, below: u64| mixed(n * 8 + which) % below;
    let key = |which: u64| format!("key{}", random(which, 200));
    let value = || n.to_string().repeat(1 + random(3, 40).pow(2) as usize);
    match random(0, 10) {
        0..3 => Operation::Set(key(1), value()),
        3 => Operation::Remove(key(1)),
        4 => Operation::Add(format!("count{}", random(1, 5))),
        5..8 => Operation::SetField(format!("hash{}", random(1, 3)), key(2), value()),
        8 => Operation::Rename(key(1), key(2)),
        _ => Operation::SetAll((0..5).map(|m| format!("key{}", random(m, 200))).collect(), value()),
    }
}

/// On the model a string is a hash with a field of no name.
fn apply(model: &mut Model, operation: Operation) {
    let string = |value: String| BTreeMap::from([(String::new(), value)]);
    match operation {
        Operation::Set(key, value) => _ = model.insert(key, string(value)),
        Operation::Remove(key) => _ = model.remove(&key),
        Operation::Add(key) => {
            let held = model.get(&key).map_or(0, |held| held[""].parse().expect("a number"));
            model.insert(key, string((held + 3u64).to_string()));
        }
        Operation::SetField(key, field, value) => _ = model.entry(key).or_default().insert(field, value),
        Operation::Rename(from, to) => {
            if let Some(held) = model.remove(&from) {
                model.insert(to, held);
            }
        }
        Operation::SetAll(keys, value) => keys
            .into_iter()
            .for_each(|key| _ = model.insert(key, string(value.clone()))),
    }
}

fn perform(store: &mut Store, operation: &Operation) -> cenote_kv::Result<()> {
    match operation {
        Operation::Set(key, value) => store.set(key.as_bytes(), value.as_bytes(), Keep::At(0), 1),
        Operation::Remove(key) => store.remove(key.as_bytes(), 1).map(drop),
        Operation::Add(key) => store.add(key.as_bytes(), 3, 1).map(drop),
        Operation::SetField(key, field, value) => store
            .set_field(key.as_bytes(), field.as_bytes(), value.as_bytes(), 1)
            .map(drop),
        Operation::Rename(from, to) => match store.rename(from.as_bytes(), to.as_bytes(), 1) {
            Err(cenote_kv::Failure::Missing) => Ok(()),
            done => done,
        },
        Operation::SetAll(keys, value) => store.at_once(|store| {
            keys.iter()
                .try_for_each(|key| store.set(key.as_bytes(), value.as_bytes(), Keep::At(0), 1))
        }),
    }
}

/// What another process does until it is killed: operations from a number on, each reported when it is done.
#[test]
fn another_process() {
    let Some((path, first)) = task::<(PathBuf, u64)>() else {
        return;
    };
    let space = Space::open(&path, RegionOptions::default()).expect("a space");
    let mut store = Store::open(&space).expect("a store");
    for n in first.. {
        perform(&mut store, &operation(n)).expect("room");
        say(&n.to_string());
    }
}

/// Operations that were reported as done, from a process that is killed a while after the first of them.
fn killed(path: &Path, first: u64, after: Nanos) -> u64 {
    let mut other = Process::start(&(path, first));
    let begun = other.says();
    rt::sleep(after);
    other.kill();
    let last = other.last_said().unwrap_or(begun);
    1 + last.parse::<u64>().expect("it does something")
}

fn text(store: &Store, entry: &Entry) -> String {
    let mut out = Vec::new();
    let len = store.len_of(entry).expect("a string");
    store.append_value(entry, 0, len, &mut out).expect("there");
    String::from_utf8(out).expect("text")
}

fn name(store: &Store, entry: &Entry) -> String {
    let mut out = Vec::new();
    store.append_key(entry, &mut out).expect("there");
    String::from_utf8(out).expect("text")
}

fn contents(store: &Store) -> Model {
    let (mut entries, mut cursor) = (Vec::new(), 0);
    loop {
        cursor = store.scan(cursor, 1, |entry| entries.push(*entry)).expect("scanned");
        if cursor == 0 {
            break;
        }
    }
    let held = |entry: &Entry| {
        if !entry.is_hash() {
            return BTreeMap::from([(String::new(), text(store, entry))]);
        }
        let mut fields = Vec::new();
        let mut cursor = 0;
        loop {
            cursor = store
                .scan_fields(entry, cursor, |field| fields.push(*field))
                .expect("a hash");
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(store.fields_of(entry).expect("a hash"), fields.len() as u64);
        fields
            .iter()
            .map(|field| (name(store, field), text(store, field)))
            .collect()
    };
    entries.iter().map(|entry| (name(store, entry), held(entry))).collect()
}

#[test]
fn a_killed_process_leaves_whole_operations() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    let options = SpaceOptions {
        bytes: 256 << 20,
        ..SpaceOptions::default()
    };
    Space::create(&path, &options).expect("a space");
    let (mut model, mut done) = (Model::new(), 0);
    for round in 0..ROUNDS {
        let reported = killed(&path, done, Nanos::from_millis(60 + 7 * round));
        (done..reported).for_each(|n| apply(&mut model, operation(n)));
        done = reported;
        let space = Space::open(&path, RegionOptions::default()).expect("a space");
        let (store, found) = Store::open_reporting(&space).expect("a store");
        let there = contents(&store);
        assert_eq!((store.len(), found.is_closed), (there.len() as u64, false));
        if there != model {
            // The one that was being done when the process was killed is done, too.
            apply(&mut model, operation(done));
            done += 1;
        }
        assert!(there == model, "round {round}, {done} operations");
        drop(store);
        let (_, found) = Store::open_reporting(&space).expect("a store");
        assert_eq!(
            found.freed, 2,
            "the start before has freed all but its empty table in reserve"
        );
        assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
    }
    assert!(done >= ROUNDS, "{done} operations");
}
