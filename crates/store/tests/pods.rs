//! The store of members in two pods, whose table and values lie in both; extents move meanwhile.

#![allow(
    dead_code,
    reason = "what tests of several crates have in common is more than one uses"
)]

#[path = "../../space/tests/caches/pods.rs"]
mod pods;
#[path = "../../space/tests/common/random.rs"]
mod random;

use cenote_base::Error;
use cenote_space::{GlobalAddress, Keeper, Space};
use cenote_store::{Expected, Options, Put, PutOptions, Store, Visibility};
use pods::Pods;
use random::{Random, seed};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEEP: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: false,
    replicas: 0,
};
const REPLACE: PutOptions = PutOptions { replaces: true, ..KEEP };

fn members(pods: &Pods, visibility: Visibility) -> [Store; 2] {
    members_with(pods, 16, visibility)
}

fn members_with(pods: &Pods, buckets: u64, visibility: Visibility) -> [Store; 2] {
    let options = Options {
        buckets,
        sweeps: false,
        visibility,
        ..Options::default()
    };
    let east = Store::create(&pods.users[0], options).expect("a store");
    let west = Store::open_at(&pods.users[1], east.address(), options).expect("opened");
    [east, west]
}

fn value(n: u64, step: u64, len: u64) -> Vec<u8> {
    let mut random = Random(n << 30 ^ step);
    let words = (0..len.div_ceil(8)).map(|_| random.word().to_le_bytes());
    words.flatten().take(len as usize).collect()
}

/// Moves the extent of some object, if it can be moved now.
fn move_something(pods: &Pods, random: &mut Random) {
    let mut objects = Vec::new();
    let space = &pods.users[random.index(2)];
    space.each_object(|address, _| objects.push(address)).expect("told");
    // A member that has put nothing yet has none.
    if objects.is_empty() {
        return;
    }
    let object: GlobalAddress = objects[random.index(objects.len())];
    let _ = pods.relocate(object, 3 - object.part());
}

fn as_a_model(visibility: Visibility) {
    let seed = seed();
    let (mut random, pods) = (Random(seed), Pods::new(100));
    let stores = members(&pods, visibility);
    let mut model: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for step in 1..6000_u64 {
        let (n, store) = (random.below(400), &stores[random.index(2)]);
        // Of few sizes, as each has extents of its own in each process.
        let key = n.to_be_bytes();
        let len = if random.one_in(100) {
            2_000_000
        } else {
            30 + 600 * random.below(2)
        };
        match random.below(8) {
            0 | 1 => {
                let put = store.put(&key, &value(n, step, len), KEEP).expect("put");
                assert_eq!(put == Put::Exists, model.contains_key(&n), "seed {seed}, step {step}");
                model.entry(n).or_insert((step, len));
            }
            2 | 3 => {
                store.put(&key, &value(n, step, len), REPLACE).expect("put");
                model.insert(n, (step, len));
            }
            4 => assert_eq!(
                store.remove(&key).expect("removed"),
                model.remove(&n).is_some(),
                "seed {seed}, {step}"
            ),
            5 if step % 4 == 0 => see_many(store, &model, &mut random, (seed, step)),
            _ => {
                let wanted = model.get(&n).map(|(step, len)| value(n, *step, *len));
                assert!(store.get(&key).expect("asked") == wanted, "seed {seed}, step {step}");
            }
        }
        if random.one_in(40) {
            move_something(&pods, &mut random);
        }
    }
    for store in &stores {
        for (n, (step, len)) in &model {
            assert!(
                store.get(&n.to_be_bytes()).expect("asked") == Some(value(*n, *step, *len)),
                "seed {seed}"
            );
        }
        let stats = store.stats().expect("counted");
        assert_eq!(
            (stats.items, stats.evicted, stats.damaged, stats.lost),
            (model.len() as u64, 0, 0, 0)
        );
    }
    assert!(stores[0].stats().expect("counted").buckets > 16, "the table has grown");
}

/// As the model says, of some keys at once.
fn see_many(store: &Store, model: &BTreeMap<u64, (u64, u64)>, random: &mut Random, at: (u64, u64)) {
    let keys: Vec<u64> = (0..20).map(|_| random.below(400)).collect();
    let names: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let wanted = keys
        .iter()
        .map(|n| model.get(n).map(|(step, len)| value(*n, *step, *len)));
    let wanted: Vec<_> = wanted.collect();
    let presence = store.exists(names.iter().map(|name| &name[..]), false).expect("asked");
    assert_eq!(
        presence.found,
        wanted.iter().map(Option::is_some).collect::<Vec<_>>(),
        "{at:?}"
    );
    let (mut room, mut seen) = (Vec::new(), Vec::new());
    store.get_each(names.iter().map(|name| &name[..]), &mut room, |value, bytes| {
        seen.push(value.expect("asked").map(|_| bytes.to_vec()));
        true
    });
    assert!(seen == wanted, "{at:?}");
    let lens = wanted.iter().map(|bytes| bytes.as_ref().map_or(0, Vec::len));
    let mut rooms: Vec<_> = lens.map(|len| vec![0; len]).collect();
    let pairs = names
        .iter()
        .zip(&mut rooms)
        .map(|(name, room)| (&name[..], &mut room[..]));
    let values = store.get_many_into(pairs);
    for ((value, room), wanted) in values.into_iter().zip(&rooms).zip(&wanted) {
        let bytes = value.expect("asked").map(|value| &room[..value.len as usize]);
        assert!(bytes == wanted.as_deref(), "{at:?}");
    }
}

#[test]
fn many_keys_of_another_pod_take_a_few_trips() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let pods = Pods::new(100);
        let [east, west] = members_with(&pods, 4096, visibility);
        for n in 0..100_u64 {
            let len = if n % 20 == 0 { 200_000 } else { 500 };
            east.put(&n.to_be_bytes(), &value(n, 1, len), KEEP).expect("put");
        }
        let names: Vec<_> = (0..100_u64).map(u64::to_be_bytes).collect();
        let mut rooms = vec![vec![0; 200_000]; 100];
        let get = |keys: usize, rooms: &mut Vec<Vec<u8>>| {
            let pairs = names.iter().zip(rooms).map(|(name, room)| (&name[..], &mut room[..]));
            west.get_many_into(pairs.take(keys))
        };
        // Hits are counted in the items first, until they count no more.
        (0..20).for_each(|_| drop(get(100, &mut rooms)));
        let (trips, values) = pods.fabric.posts(|| get(100, &mut rooms));
        for (n, found) in values.into_iter().enumerate() {
            let len = found.expect("asked").expect("there").len;
            assert!(rooms[n][..len as usize] == value(n as u64, 1, len), "{n}");
        }
        let (of_one, _) = pods.fabric.posts(|| get(1, &mut rooms));
        // A few keys have the tag of another's entry, or a bucket of two lines, and are asked for alone.
        println!("{visibility:?}: {trips} trips for 100 keys, {of_one} for one");
        assert!(trips <= 3 * of_one + 12, "{trips} trips for 100 keys, {of_one} for one");
        let keys = || names.iter().map(|name| &name[..]);
        let (trips, presence) = pods.fabric.posts(|| west.exists(keys(), false).expect("asked"));
        assert!(presence.prefix == 100 && trips <= 12, "{trips} trips");
    }
}

#[test]
fn members_of_two_pods_agree_with_a_model_while_extents_move() {
    as_a_model(Visibility::Coherent);
}

#[test]
fn so_they_do_where_bytes_are_written_back() {
    as_a_model(Visibility::Flush);
}

#[test]
fn members_of_two_pods_evict_and_pin_together() {
    let pods = Pods::new(40);
    let [east, west] = members(&pods, Visibility::Coherent);
    east.set_bound(8 << 20).expect("set");
    east.put(b"pinned", &value(1, 1, 5000), KEEP).expect("put");
    let pinned = west.exists([&b"pinned"[..]], true).expect("asked");
    assert_eq!(pinned.pins.len(), 1);
    for n in 0..3000_u64 {
        let store = if n % 2 == 0 { &east } else { &west };
        store.put(&n.to_be_bytes(), &value(n, 1, 5000), KEEP).expect("put");
    }
    assert!(pinned.pins[0].holds().expect("asked"));
    assert_eq!(east.get(b"pinned").expect("asked"), Some(value(1, 1, 5000)));
    let stats = east.stats().expect("counted");
    assert!(stats.used <= 8 << 20 && stats.evicted > 1000, "{stats:?}");
    // A far value has no bytes that could be used in place, but can be read.
    let borrow = west.borrow(b"pinned").expect("asked").expect("there");
    let mut bytes = vec![0; 5000];
    borrow.read(0, &mut bytes).expect("read");
    assert!(bytes == value(1, 1, 5000) && borrow.end().expect("asked"));
}

/// A member that has lost the west.
fn without_the_west(pods: &Pods, east: &Store) -> Store {
    let space = Space::new(pods.users[0].id());
    let keeper = Arc::clone(pods.hosts[0].keeper()) as Arc<dyn Keeper>;
    space
        .attach(Arc::clone(pods.hosts[0].part()), keeper)
        .expect("attached");
    let options = Options {
        sweeps: false,
        ..Options::default()
    };
    Store::open_at(&space, east.address(), options).expect("opened")
}

#[test]
fn what_is_lost_with_a_part_is_a_miss_unless_it_has_replicas() {
    let pods = Pods::new(40);
    // What is forgotten may take others of its bucket along that are lost too: in a table of 16 buckets, often.
    let [east, west] = members_with(&pods, 1 << 14, Visibility::Coherent);
    let copied = PutOptions { replicas: 1, ..KEEP };
    let lens = [50, 5000, 40_000, 1_500_000];
    let name = |kind: u64, n: usize| [kind, n as u64].map(u64::to_be_bytes).concat();
    for (n, len) in lens.into_iter().enumerate() {
        // The west allocates in its own part.
        west.put(&name(1, n), &value(1, n as u64, len), KEEP).expect("put");
        west.put(&name(2, n), &value(2, n as u64, len), copied).expect("put");
        west.put(&name(3, n), &value(3, 99, len), copied).expect("put");
        west.put(
            &name(3, n),
            &value(3, n as u64, len),
            PutOptions { replicas: 1, ..REPLACE },
        )
        .expect("put");
        west.put(&name(4, n), &value(4, n as u64, len), copied).expect("put");
        assert!(east.remove(&name(4, n)).expect("removed"));
    }
    assert!(matches!(
        west.put(b"k", b"v", PutOptions { replicas: 2, ..KEEP }),
        Err(Error::Invalid(_))
    ));
    assert_eq!(west.stats().expect("counted").unreplicated, 0);
    let alone = without_the_west(&pods, &east);
    for (n, len) in lens.into_iter().enumerate() {
        assert_eq!(alone.get(&name(1, n)).expect("asked"), None);
        assert!(
            alone.get(&name(2, n)).expect("asked") == Some(value(2, n as u64, len)),
            "{len}"
        );
        assert_eq!(
            alone.get_versioned(&name(3, n)).expect("asked"),
            Some((value(3, n as u64, len), 2))
        );
        assert_eq!(alone.get(&name(4, n)).expect("asked"), None);
        // What is lost is not there: it can be put.
        assert_eq!(alone.put(&name(1, n), b"anew", KEEP).expect("put"), Put::Stored(1));
        assert_eq!(east.get(&name(1, n)).expect("asked"), Some(b"anew".to_vec()));
        assert!(alone.remove(&name(1, n)).expect("removed"));
    }
    assert!(alone.stats().expect("counted").lost >= 4);
    for n in 0..lens.len() {
        assert!(east.remove(&name(2, n)).expect("removed") && east.remove(&name(3, n)).expect("removed"));
    }
    assert_eq!(east.stats().expect("counted").items, 4, "but for what was forgotten");
}

/// Changes what a get tells of, as clients of Redis do: a comparison that fails is made again.
fn change(store: &Store, key: &[u8], mut step: impl FnMut(u64) -> bool) {
    let is_done = (0..3).any(|_| {
        let (_, value) = store.get_value(key).expect("asked").expect("there");
        step(value.generation)
    });
    assert!(is_done, "what was read is never what is compared");
}

#[test]
fn what_only_a_replica_has_is_changed_as_it_is_read() {
    let pods = Pods::new(40);
    let [east, west] = members_with(&pods, 1 << 14, Visibility::Coherent);
    let copied = PutOptions { replicas: 1, ..KEEP };
    let names = [b"lock", b"gone", b"next", b"same", b"last"];
    for name in names {
        west.put(name, b"owner", copied).expect("put");
    }
    assert_eq!(west.stats().expect("counted").items, 5, "replicas are no values");
    let alone = without_the_west(&pods, &east);
    let found = alone.exists(names.map(|name| &name[..]), false).expect("asked").found;
    assert_eq!(found, [true; 5]);
    assert_eq!(alone.value_of(b"lock").expect("asked").map(|value| value.len), Some(5));
    // A lock that is held is not given to another.
    assert_eq!(alone.put(b"lock", b"thief", KEEP).expect("put"), Put::Exists);
    assert_eq!(alone.get(b"lock").expect("asked"), Some(b"owner".to_vec()));
    assert_eq!(east.get(b"lock").expect("asked"), Some(b"owner".to_vec()));
    assert!(alone.remove(b"gone").expect("removed") && !alone.remove(b"gone").expect("asked"));
    alone.put(b"next", b"newer", REPLACE).expect("put");
    change(&alone, b"same", |generation| {
        let put = alone.compare_and_put(b"same", b"other", Expected::Generation(generation), KEEP);
        put.expect("put").is_some()
    });
    change(&alone, b"last", |generation| {
        alone.compare_and_remove(b"last", generation).expect("removed")
    });
    for (name, value) in names
        .into_iter()
        .zip([Some("owner"), None, Some("newer"), Some("other"), None])
    {
        let wanted = value.map(|value| value.as_bytes().to_vec());
        assert_eq!(alone.get(name).expect("asked"), wanted);
        assert_eq!(east.get(name).expect("asked"), wanted);
        // What comes now is lost again, and has no replica: none of before is read in its place.
        west.put(name, b"later", REPLACE).expect("put");
        assert_eq!(alone.get(name).expect("asked"), None);
    }
}

#[test]
fn a_store_that_is_cleared_has_nothing_of_what_is_lost() {
    let pods = Pods::new(40);
    let [east, west] = members_with(&pods, 1 << 10, Visibility::Coherent);
    let copied = PutOptions { replicas: 1, ..KEEP };
    let name = |n: u64| n.to_be_bytes();
    for n in 0..200 {
        let (store, options) = if n % 2 == 0 { (&west, copied) } else { (&east, KEEP) };
        store.put(&name(n), b"value", options).expect("put");
    }
    let alone = without_the_west(&pods, &east);
    assert_eq!(alone.clear().expect("cleared"), 300);
    for n in 0..200 {
        assert_eq!(alone.get(&name(n)).expect("asked"), None);
        assert_eq!(west.get(&name(n)).expect("asked"), None);
    }
    for n in 0..200 {
        assert_eq!(east.put(&name(n), b"again", KEEP).expect("put"), Put::Stored(1));
    }
    assert_eq!(east.clear().expect("cleared"), 200);
}

#[test]
fn a_key_is_found_behind_another_that_is_lost() {
    let pods = Pods::new(40);
    // The keys of a bucket are several, and one in sixteen may be another.
    let [east, west] = members_with(&pods, 64, Visibility::Coherent);
    let name = |n: u64| n.to_be_bytes();
    (0..190).for_each(|n| assert!(matches!(west.put(&name(n), b"far", KEEP), Ok(Put::Stored(1)))));
    (190..260).for_each(|n| assert!(matches!(east.put(&name(n), b"near", KEEP), Ok(Put::Stored(1)))));
    let alone = without_the_west(&pods, &east);
    for n in 190..260 {
        assert_eq!(alone.get(&name(n)).expect("asked"), Some(b"near".to_vec()), "{n}");
        assert_eq!(alone.put(&name(n), b"no", KEEP).expect("put"), Put::Exists);
    }
    assert!(
        (0..190).all(|n| west.get(&name(n)).expect("asked").is_some()),
        "none was forgotten"
    );
}

#[test]
fn a_put_that_meets_what_is_lost_holds_nothing_afterwards() {
    let pods = Pods::new(40);
    let [east, west] = members(&pods, Visibility::Coherent);
    let name = |n: u64| n.to_be_bytes();
    for n in 0..600 {
        west.put(&name(n), b"far", KEEP).expect("put");
    }
    let alone = without_the_west(&pods, &east);
    // More than a member fills at once: what has failed at first, as the key's item was lost, is not noted still.
    for n in 0..600 {
        alone.put(&name(n), b"near", REPLACE).expect("put");
        assert_eq!(east.get(&name(n)).expect("asked"), Some(b"near".to_vec()));
    }
}
