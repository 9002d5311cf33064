//! Replicas of a key that two change at the same moment; room in a part of another pod.

use super::super::fill::Filling;
use super::super::find::Found;
use super::super::link::{Linked, OnEntry};
use super::super::pods::Pods;
use super::super::{Options, PutOptions, Store};
use super::replica_keys;

const COPIED: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: true,
    replicas: 1,
};

fn members(pods: &Pods) -> [Store; 2] {
    let options = Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    };
    let east = Store::create(&pods.users[0], options).expect("a store");
    let west = Store::open_at(&pods.users[1], east.address(), options).expect("opened");
    [east, west]
}

#[test]
fn a_comparison_that_fails_leaves_the_replicas_of_the_one_that_won() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    east.put(b"key", b"first", COPIED).expect("put");
    let core = &east.core;
    let key = core.key(b"key").expect("a key");
    let found = core.find(&key).expect("read").expect("there");
    // The comparison has seen the first value, and another wins.
    west.put(b"key", b"second", COPIED).expect("put");
    for replica in core.replicas_of(&key, Some(&found)).expect("read") {
        core.drop_replica(&replica).expect("dropped");
    }
    let replica = replica_keys(&key, 1).nth(1).expect("one");
    assert!(
        core.find(&replica).expect("read").is_some(),
        "the winner's replica stays"
    );
    // One that read them before the other won drops what it read, and no other.
    let found = core.find(&key).expect("read").expect("there");
    let read = core.replicas_of(&key, Some(&found)).expect("read");
    assert_eq!(read.len(), 1);
    west.put(b"key", b"third", COPIED).expect("put");
    read.iter()
        .for_each(|replica| core.drop_replica(replica).expect("dropped"));
    assert!(
        core.find(&replica).expect("read").is_some(),
        "the winner's replica stays"
    );
}

#[test]
fn a_member_of_another_pod_knows_about_how_much_a_part_there_has() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    let near = east.core.capacity_there().expect("known");
    let mut n = 0_u64;
    while east.stats().expect("counted").evicted == 0 {
        east.put(&n.to_le_bytes(), &[7; 200_000], PutOptions::default())
            .expect("put");
        n += 1;
    }
    let far = west.core.capacity_there().expect("told");
    assert!(far > near / 3 && far < 2 * near, "{far} of {near}");
}

/// What a put has linked, and not yet copied: its item is pinned meanwhile.
fn linked(store: &Store, value: &[u8], replicas: u8) -> (Filling, Option<Found>) {
    let core = &store.core;
    let key = core.key(b"key").expect("a key");
    let mut filling = core.begin(&key, value.len() as u64, 0, 0).expect("room");
    core.fill(&mut filling, value).expect("filled");
    filling.header.set_replicas(replicas);
    core.finish(&mut filling).expect("finished");
    core.member.pin_own(&core.heap, filling.item).expect("pinned");
    let item = filling.item;
    let linked = core.link(&key, item, OnEntry::Replace, |before| {
        core.set_version(&mut filling, before + 1)
    });
    match linked.expect("linked") {
        Linked::In(replaced) => (filling, replaced),
        other => panic!("{other:?}"),
    }
}

/// The version of the key's replica.
fn replica_version(store: &Store) -> Option<u64> {
    let key = store.core.key(b"key").expect("a key");
    let replica = replica_keys(&key, 1).nth(1).expect("one");
    store
        .core
        .find(&replica)
        .expect("read")
        .map(|found| found.header.version)
}

/// The first put's copies took the place of the second's, and then were taken out, as its value was replaced.
#[test]
fn a_put_that_is_replaced_while_it_copies_leaves_the_replicas_of_the_next() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    let (first, replaced) = linked(&east, b"first", 1);
    west.put(b"key", b"second", COPIED).expect("put");
    assert_eq!(replica_version(&west), Some(2));
    let key = east.core.key(b"key").expect("a key");
    east.core.stored(&key, &first, replaced).expect("stored");
    assert_eq!(replica_version(&west), Some(2), "the second's replica stays");
    assert_eq!(west.stats().expect("counted").unreplicated, 0);
}

/// What it has replaced had got replicas after it had looked for some.
#[test]
fn a_put_without_replicas_leaves_none_of_what_it_has_replaced() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    let key = east.core.key(b"key").expect("a key");
    east.core.drop_replicas_if(&key, OnEntry::Replace).expect("none");
    west.put(b"key", b"first", COPIED).expect("put");
    let (second, replaced) = linked(&east, b"second", 0);
    east.core.stored(&key, &second, replaced).expect("stored");
    assert_eq!(replica_version(&west), None);
}

/// One put a value, and was killed before it had looked whether that was removed while it copied: so a replica is left
/// of a version that later puts, which begin anew, do not come to for long.
fn with_a_stale_replica(east: &Store, west: &Store) {
    (0..4).for_each(|_| _ = west.put(b"key", b"before", COPIED).expect("put"));
    let key = east.core.key(b"key").expect("a key");
    let found = east.core.find(&key).expect("read").expect("there");
    let replica = replica_keys(&key, 1).nth(1).expect("one");
    let stale = east.core.find(&replica).expect("read").expect("there");
    assert!(east.core.unlink_found(&found).expect("unlinked"));
    east.core
        .retire(found.place.entry.item(), found.header, false)
        .expect("retired");
    assert_eq!(replica_version(east), Some(stale.header.version));
}

/// Its copies were refused, and counted as made, and the removed value was read when the first item was lost.
#[test]
fn a_replica_of_a_removed_value_gives_way() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    with_a_stale_replica(&east, &west);
    east.put(b"key", b"after", COPIED).expect("put");
    assert_eq!(replica_version(&west), Some(1), "it is the new value's");
    assert_eq!(east.stats().expect("counted").unreplicated, 0);
}

/// A put without copies replaced a value, and left a replica of a removed one that was later.
#[test]
fn a_plain_put_leaves_no_replica_of_a_removed_value() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    let (_first, _) = linked(&east, b"after", 1);
    let replica = replica_keys(&east.core.key(b"key").expect("a key"), 1)
        .nth(1)
        .expect("one");
    assert!(east.core.find(&replica).expect("read").is_none(), "it has not copied");
    let later = |value| {
        let mut filling = west.core.begin(&replica, 5, 0, 0).expect("room");
        west.core.fill(&mut filling, value).expect("filled");
        filling.header.set_is_replica();
        west.core.finish_as(&mut filling, 9).expect("finished");
        let linked = west.core.link(&replica, filling.item, OnEntry::Replace, |_| Ok(()));
        assert!(matches!(linked, Ok(Linked::In(None))), "{linked:?}");
        west.core
            .count(super::super::layout::root::REPLICAS, 1)
            .expect("counted");
        let word = west.core.word(super::super::layout::root::REPLICATED).expect("there");
        west.core.heap.store(word, 1).expect("noted");
    };
    later(b"stale");
    assert_eq!(replica_version(&east), Some(9));
    let plain = PutOptions { replicas: 0, ..COPIED };
    east.put(b"key", b"plain", plain).expect("put");
    assert_eq!(replica_version(&east), None);
}

/// A put of a key that has nothing looks for replicas whose first item was forgotten, while another puts.
#[test]
fn one_that_looks_for_replicas_of_nothing_leaves_those_of_one_that_comes() {
    let pods = Pods::new(24);
    let [east, west] = members(&pods);
    let key = east.core.key(b"key").expect("a key");
    east.core.note_forgotten().expect("noted");
    // It has found nothing, and another comes before it has read the replicas.
    west.put(b"key", b"first", COPIED).expect("put");
    assert!(east.core.replicas_of(&key, None).expect("read").is_empty());
    // A replica that is left, whose first item is forgotten, goes.
    let found = east.core.find(&key).expect("read").expect("there");
    assert!(east.core.unlink_found(&found).expect("unlinked"));
    assert_eq!(replica_version(&west), Some(1));
    east.core.drop_replicas_if(&key, OnEntry::Keep).expect("dropped");
    assert_eq!(replica_version(&west), None);
}
