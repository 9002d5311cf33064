//! Replicas of a key that two change at the same moment; room in a part of another pod.

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
    for replica in core.replicas_of(&key, &found).expect("read") {
        core.drop_replica(&replica).expect("dropped");
    }
    let replica = replica_keys(&key, 1).nth(1).expect("one");
    assert!(
        core.find(&replica).expect("read").is_some(),
        "the winner's replica stays"
    );
    // One that read them before the other won drops what it read, and no other.
    let found = core.find(&key).expect("read").expect("there");
    let read = core.replicas_of(&key, &found).expect("read");
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
