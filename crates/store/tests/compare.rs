//! Changes that depend on what a key has, and going over all keys.

use cenote_base::rt::{self, Nanos};
use cenote_space::{Space, SpaceOptions};
use cenote_store::{Expected, Options, Put, PutOptions, Store, Value};
use std::collections::BTreeMap;

fn store() -> Store {
    let space = SpaceOptions {
        bytes: 64 << 20,
        ..SpaceOptions::default()
    };
    let options = Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    };
    Store::create(&Space::dram(&space).expect("memory"), options).expect("a store")
}

fn put(store: &Store, value: &[u8], expected: Expected) -> Option<Value> {
    store
        .compare_and_put(b"key", value, expected, PutOptions::default())
        .expect("put")
}

#[test]
fn a_value_is_put_where_the_key_has_what_is_expected() {
    let store = store();
    assert_eq!(put(&store, b"no", Expected::Present), None);
    assert_eq!(put(&store, b"no", Expected::Generation(1)), None);
    assert_eq!(store.value_of(b"key").expect("asked"), None);
    let one = put(&store, b"one", Expected::Absent).expect("put");
    assert_eq!((one.len, one.version, one.expires), (3, 1, 0));
    assert_eq!(put(&store, b"no", Expected::Absent), None);
    let two = put(&store, b"two!", Expected::Generation(one.generation)).expect("put");
    assert_eq!(two.version, 2);
    assert_eq!(put(&store, b"no", Expected::Generation(one.generation)), None);
    let got = store.get_value(b"key").expect("asked").expect("there");
    assert_eq!(got, (b"two!".to_vec(), two));
    assert_eq!(store.value_of(b"key").expect("asked"), Some(two));
    assert_eq!(put(&store, b"three", Expected::Present).expect("put").version, 3);
    assert_eq!(put(&store, b"four", Expected::Any).expect("put").version, 4);
}

#[test]
fn a_value_that_was_removed_and_put_again_is_another() {
    let store = store();
    let one = put(&store, b"same", Expected::Absent).expect("put");
    assert!(store.compare_and_remove(b"key", one.generation).expect("removed"));
    let again = put(&store, b"same", Expected::Absent).expect("put");
    assert_eq!((again.len, again.version), (one.len, one.version));
    assert!(!store.compare_and_remove(b"key", one.generation).expect("asked"));
    assert_eq!(put(&store, b"no", Expected::Generation(one.generation)), None);
    assert_eq!(store.get(b"key").expect("asked"), Some(b"same".to_vec()));
}

#[test]
fn a_value_that_has_expired_is_none() {
    let store = store();
    let soon = PutOptions {
        time_to_live: Some(Nanos::from_millis(5)),
        ..PutOptions::default()
    };
    let one = store.compare_and_put(b"key", b"one", Expected::Absent, soon);
    let one = one.expect("put").expect("new");
    assert!(one.expires > 0);
    rt::sleep(Nanos::from_millis(20));
    assert_eq!(put(&store, b"no", Expected::Generation(one.generation)), None);
    assert_eq!(put(&store, b"no", Expected::Present), None);
    assert!(!store.compare_and_remove(b"key", one.generation).expect("asked"));
    assert!(store.scan(0, 1000).expect("scanned").keys.is_empty());
    assert!(put(&store, b"two", Expected::Absent).is_some());
}

#[test]
fn a_value_that_takes_anothers_place_may_have_its_expiry() {
    let store = store();
    let soon = PutOptions {
        time_to_live: Some(Nanos::from_secs(100)),
        ..PutOptions::default()
    };
    let one = store.compare_and_put(b"key", b"one", Expected::Absent, soon);
    let one = one.expect("put").expect("new");
    let expected = Expected::Generation(one.generation);
    let two = store.compare_and_put_until(b"key", b"two", expected, one.expires, PutOptions::default());
    let two = two.expect("put").expect("it was still the same");
    assert_eq!((two.version, two.expires), (2, one.expires));
    let past = store.compare_and_put_until(b"key", b"no", Expected::Present, 1, soon);
    assert_eq!(past.expect("put").map(|value| value.expires), Some(1));
    assert_eq!(store.get(b"key").expect("asked"), None);
}

/// Each adds one to the same number, so many times: none is lost.
#[test]
fn of_several_that_compare_the_same_one_is_in() {
    let store = store();
    put(&store, &0_u64.to_le_bytes(), Expected::Absent).expect("put");
    let add = || {
        let (bytes, value) = store.get_value(b"key").expect("asked").expect("there");
        let n = u64::from_le_bytes(bytes.try_into().expect("8 bytes")) + 1;
        put(&store, &n.to_le_bytes(), Expected::Generation(value.generation)).is_some()
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..500).for_each(|_| while !add() {}));
        }
    });
    let bytes = store.get(b"key").expect("asked").expect("there");
    assert_eq!(bytes, 1500_u64.to_le_bytes());
}

#[test]
fn all_keys_are_scanned_while_the_table_grows() {
    let store = store();
    let key = |n: u32| format!("key {n}").into_bytes();
    let put = |n: u32| store.put(&key(n), b"value", PutOptions::default()).expect("put");
    (0..300).for_each(|n| assert!(matches!(put(n), Put::Stored(1))));
    let (mut seen, mut cursor, mut next) = (BTreeMap::new(), 0, 300);
    let before = store.stats().expect("counted").buckets;
    loop {
        let scanned = store.scan(cursor, 10).expect("scanned");
        for key in scanned.keys {
            *seen.entry(key).or_insert(0) += 1;
        }
        cursor = scanned.cursor;
        if cursor == 0 {
            break;
        }
        // What is put and removed meanwhile may be told of or not.
        if next < 3000 {
            (next..next + 100).for_each(|n| assert!(matches!(put(n), Put::Stored(1))));
            assert!(store.remove(&key(next)).expect("removed"));
            next += 100;
        }
    }
    assert!(store.stats().expect("counted").buckets > before, "the table has grown");
    assert!((0..300).all(|n| seen.contains_key(&key(n))));
    let scanned = store.scan(0, usize::MAX).expect("scanned");
    let mut keys = scanned.keys;
    keys.sort();
    keys.dedup();
    assert_eq!(
        (keys.len() as u64, scanned.cursor),
        (store.stats().expect("counted").items, 0)
    );
    for cursor in [1, 7, u64::MAX, 1 << 63] {
        store.scan(cursor, 3).expect("any cursor is possible");
    }
}

#[test]
fn a_scan_tells_of_some_megabytes_of_keys_at_once() {
    let store = store();
    for n in 0..2500_u32 {
        let mut key = vec![b'k'; 4000];
        key[..4].copy_from_slice(&n.to_be_bytes());
        store.put(&key, b"value", PutOptions::default()).expect("put");
    }
    let (mut cursor, mut keys, mut calls) = (0, 0, 0);
    loop {
        let scanned = store.scan(cursor, usize::MAX).expect("scanned");
        assert!(scanned.keys.iter().map(Vec::len).sum::<usize>() < 5 << 20);
        (cursor, keys, calls) = (scanned.cursor, keys + scanned.keys.len(), calls + 1);
        if cursor == 0 {
            break;
        }
    }
    assert!(keys == 2500 && calls > 1, "{keys} keys in {calls} calls");
}
