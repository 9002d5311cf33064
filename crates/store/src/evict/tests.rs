//! A full bucket for which there is no memory to get larger.

use super::super::item::body;
use super::super::tier::LOCATION;
use super::super::{Options, PutOptions, SpillOptions, Store};
use super::class_size;
use cenote_space::{Class, Space, SpaceOptions};

/// Bytes of a value.
const LEN: u64 = 16_000;
const BUCKETS: u64 = 1 << 10;

/// One whose memory is full of values, and that has objects of no other size left but for stubs.
fn full(directory: &std::path::Path) -> (Store, u64) {
    let space = SpaceOptions {
        bytes: 24 << 20,
        ..SpaceOptions::default()
    };
    let options = Options {
        buckets: BUCKETS,
        sweeps: false,
        ..Options::default()
    };
    let store = Store::create(&Space::dram(&space).expect("memory"), options).expect("a store");
    let core = &store.core;
    let stub = body(8) + LOCATION as u64;
    let stubs: Vec<_> = (0..2000).map(|_| core.heap.alloc(stub).expect("room")).collect();
    let mut n = 0_u64;
    while store.stats().expect("counted").evicted == 0 {
        store
            .put(&n.to_le_bytes(), &[7; LEN as usize], PutOptions::default())
            .expect("put");
        n += 1;
    }
    for class in Class::all().filter(|class| class.size() != class_size(LEN)) {
        while core.heap.alloc(class.size()).is_ok() {}
    }
    stubs.into_iter().for_each(|stub| core.heap.free(stub).expect("freed"));
    let spills = SpillOptions {
        directory: directory.to_owned(),
        bytes: 256 << 20,
        tenant: None,
    };
    store.spill_to(spills).expect("a directory");
    (store, n)
}

#[test]
fn where_values_are_spilled_a_full_bucket_loses_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, keys) = full(directory.path());
    let core = &store.core;
    let there = || {
        (0..keys)
            .filter(|n| store.get(&n.to_le_bytes()).expect("asked").is_some())
            .count()
    };
    let (before, view) = (there(), core.current().expect("read"));
    // Not those that the clock has emptied.
    for bucket in (BUCKETS / 2..).take(20) {
        core.evict_from(&view.table, bucket, "no room".into()).expect("room");
    }
    assert_eq!(there(), before);
    assert!(store.stats().expect("counted").spilled > 0, "room was made");
}
