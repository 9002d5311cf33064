//! The store in one process: what each call promises, with several threads and members.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_space::{Space, SpaceOptions};
use cenote_store::{
    Completion, KEY_MAX, Options, Outcome, Put, PutOptions, Queue, Request, Store, VALUE_MAX, Visibility,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../../space/tests/common/random.rs"]
mod random;
use random::{Random, seed};

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

fn space(mib: u64) -> Space {
    Space::dram(&SpaceOptions {
        bytes: mib << 20,
        ..SpaceOptions::default()
    })
    .expect("memory")
}

fn options() -> Options {
    Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    }
}

fn store(mib: u64) -> Store {
    Store::create(&space(mib), options()).expect("a store")
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

#[test]
fn the_first_writer_wins_unless_it_is_replaced() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let store = Store::create(
            &space(32),
            Options {
                visibility,
                ..options()
            },
        )
        .expect("a store");
        assert_eq!(store.visibility(), visibility);
        assert_eq!(store.get(b"a").expect("asked"), None);
        assert_eq!(store.put(b"a", b"one", KEEP).expect("put"), Put::Stored(1));
        assert_eq!(store.put(b"a", b"two", KEEP).expect("put"), Put::Exists);
        assert_eq!(store.get_versioned(b"a").expect("asked"), Some((b"one".to_vec(), 1)));
        assert_eq!(store.put(b"a", b"three", REPLACE).expect("put"), Put::Stored(2));
        assert_eq!(store.get_versioned(b"a").expect("asked"), Some((b"three".to_vec(), 2)));
        assert!(store.remove(b"a").expect("removed") && !store.remove(b"a").expect("removed"));
        assert_eq!(store.get(b"a").expect("asked"), None);
        let stats = store.stats().expect("counted");
        assert_eq!((stats.items, stats.used, stats.damaged), (0, 0, 0));
    }
}

#[test]
fn values_of_all_sizes_come_back() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let store = Store::create(
            &space(160),
            Options {
                visibility,
                ..options()
            },
        )
        .expect("a store");
        let sizes = [
            0,
            1,
            63,
            64,
            65,
            4096,
            16384,
            16385,
            65536,
            1 << 20,
            (1 << 20) + 1,
            5 << 20,
            33 << 20,
        ];
        for (n, len) in sizes.into_iter().enumerate() {
            let (key, bytes) = (format!("{n:>40}"), value(n as u64, 1, len));
            assert_eq!(
                store.put(key.as_bytes(), &bytes, KEEP).expect("put"),
                Put::Stored(1),
                "{len}"
            );
            assert!(
                store.get(key.as_bytes()).expect("asked") == Some(bytes.clone()),
                "{len}"
            );
            let borrow = store.borrow(key.as_bytes()).expect("asked").expect("there");
            let mut middle = vec![0; len / 2];
            borrow.read((len / 4) as u64, &mut middle).expect("inside");
            assert!(middle == bytes[len / 4..][..len / 2], "{len}");
            assert!(borrow.read(len as u64, &mut [0]).is_err());
            assert!(borrow.end().expect("asked"));
        }
        for n in 0..sizes.len() {
            assert!(store.remove(format!("{n:>40}").as_bytes()).expect("removed"));
        }
        assert_eq!(store.stats().expect("counted").used, 0);
    }
}

#[test]
fn what_is_too_long_or_too_short_is_refused() {
    let store = store(32);
    let long = vec![b'k'; KEY_MAX + 1];
    for key in [&b""[..], &long] {
        assert!(matches!(store.put(key, b"", KEEP), Err(Error::Invalid(_))));
        assert!(matches!(store.get(key), Err(Error::Invalid(_))));
    }
    assert!(matches!(store.put(&long[1..], b"v", KEEP), Ok(Put::Stored(1))));
    assert_eq!(store.get(&long[1..]).expect("asked"), Some(b"v".to_vec()));
    assert!(matches!(store.alloc(b"k", VALUE_MAX + 1, KEEP), Err(Error::Invalid(_))));
    assert!(matches!(
        store.put(b"k", b"v", PutOptions { tenant: 256, ..KEEP }),
        Err(Error::Invalid(_))
    ));
    let mut short = [0; 2];
    store.put(b"k", b"four", KEEP).expect("put");
    assert!(matches!(store.get_into(b"k", &mut short), Err(Error::OutOfBounds(_))));
    let mut exact = [0; 4];
    assert_eq!(
        store.get_into(b"k", &mut exact).expect("asked").map(|value| value.len),
        Some(4)
    );
    assert_eq!(&exact, b"four");
    // More than the space has: nothing is kept of it.
    let before = store.space().stats().objects();
    assert!(matches!(store.alloc(b"big", 64 << 20, KEEP), Err(Error::Full(_))));
    assert_eq!(store.space().stats().objects(), before);
}

#[test]
fn several_members_agree_with_a_model_while_the_table_grows() {
    let seed = seed();
    let space = space(64);
    let first = Store::create(&space, options()).expect("a store");
    let members: Vec<_> = (0..3)
        .map(|_| Store::open(&space, options()).expect("opened"))
        .collect();
    std::thread::scope(|scope| {
        for (n, store) in members.iter().enumerate() {
            scope.spawn(move || act_as_a_model(store, n as u64, seed ^ n as u64));
        }
    });
    let stats = first.stats().expect("counted");
    assert!(stats.buckets > 16, "the table has grown: {stats:?}");
    assert_eq!((stats.damaged, stats.lost), (0, 0));
}

/// Of keys of its own: so it knows what there is.
fn act_as_a_model(store: &Store, own: u64, seed: u64) {
    let (mut random, mut model) = (Random(seed), BTreeMap::new());
    for step in 0..30_000_u64 {
        let n = own << 32 | random.below(3000);
        let key = n.to_be_bytes();
        let len = 16 + random.below(200) as usize;
        match random.below(4) {
            0 => {
                let is_new = !model.contains_key(&n);
                let put = store.put(&key, &value(n, step, len), KEEP).expect("put");
                assert_eq!(put != Put::Exists, is_new, "{step}");
                model.entry(n).or_insert((step, len));
            }
            1 => {
                store.put(&key, &value(n, step, len), REPLACE).expect("put");
                model.insert(n, (step, len));
            }
            2 => assert_eq!(
                store.remove(&key).expect("removed"),
                model.remove(&n).is_some(),
                "{step}"
            ),
            _ => {
                let expected = model.get(&n).map(|(step, len)| value(n, *step, *len));
                assert_eq!(store.get(&key).expect("asked"), expected, "{step}");
            }
        }
    }
    for (n, (step, len)) in &model {
        assert_eq!(
            store.get(&n.to_be_bytes()).expect("asked"),
            Some(value(*n, *step, *len))
        );
    }
}

#[test]
fn one_of_many_that_put_a_key_at_once_wins() {
    let space = space(64);
    let first = Store::create(&space, options()).expect("a store");
    let members: Vec<_> = (0..4)
        .map(|_| Store::open(&space, options()).expect("opened"))
        .collect();
    let winners: Vec<AtomicU64> = (0..2000).map(|_| AtomicU64::new(0)).collect();
    let barrier = std::sync::Barrier::new(members.len());
    std::thread::scope(|scope| {
        for (who, store) in members.iter().enumerate() {
            let (winners, barrier) = (&winners, &barrier);
            scope.spawn(move || {
                for (n, winner) in winners.iter().enumerate() {
                    if n % 100 == 0 {
                        barrier.wait();
                    }
                    let bytes = value(n as u64, who as u64, 64);
                    if store.put(&n.to_be_bytes(), &bytes, KEEP).expect("put") == Put::Stored(1) {
                        assert_eq!(winner.swap(who as u64 + 1, Ordering::SeqCst), 0, "two have won {n}");
                    }
                    let seen = store.get(&n.to_be_bytes()).expect("asked").expect("one has won");
                    assert_eq!(seen[..8], (n as u64).to_le_bytes());
                }
            });
        }
    });
    for (n, winner) in winners.iter().enumerate() {
        let who = winner.load(Ordering::SeqCst).checked_sub(1).expect("a winner");
        assert_eq!(
            first.get(&n.to_be_bytes()).expect("asked"),
            Some(value(n as u64, who, 64)),
            "{n}"
        );
    }
    assert_eq!(first.stats().expect("counted").items, winners.len() as u64);
}

#[test]
fn a_reader_sees_one_version_whole_while_it_is_replaced() {
    let space = space(64);
    let first = Store::create(&space, options()).expect("a store");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for who in 0..2 {
            let store = Store::open(&space, options()).expect("opened");
            scope.spawn({
                let stop = &stop;
                move || {
                    for n in 0..6000_u64 {
                        let len = if n % 16 == 0 { 70_000 } else { 100 };
                        store.put(b"hot", &value(7, n << 1 | who, len), REPLACE).expect("put");
                    }
                    stop.store(true, Ordering::SeqCst);
                }
            });
        }
        let store = Store::open(&space, options()).expect("opened");
        let stop = &stop;
        scope.spawn(move || {
            let mut last = 0;
            while !stop.load(Ordering::SeqCst) {
                let Some((bytes, version)) = store.get_versioned(b"hot").expect("asked") else {
                    continue;
                };
                let step = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
                assert!(bytes == value(7, step, bytes.len()), "a mix");
                assert!(version >= last, "version {version} after {last}");
                last = version;
            }
        });
    });
    assert_eq!(first.get_versioned(b"hot").expect("asked").expect("there").1, 12_000);
    assert_eq!(first.stats().expect("counted").items, 1);
}

/// Of many keys at once, while others replace and remove them: each value is whole, and of its key.
#[test]
fn many_are_read_at_once_while_they_are_replaced() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let (space, options) = (
            space(128),
            Options {
                visibility,
                ..options()
            },
        );
        let first = Store::create(&space, options).expect("a store");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let writer = Store::open(&space, options).expect("opened");
            scope.spawn(move || {
                let mut random = Random(7);
                for step in 1..8000_u64 {
                    let n = random.below(100);
                    let len = [20, 700, 40_000][random.below(3) as usize];
                    match random.below(5) {
                        0 => drop(writer.remove(&n.to_be_bytes()).expect("removed")),
                        _ => drop(writer.put(&n.to_be_bytes(), &value(n, step, len), REPLACE)),
                    }
                }
                stop.store(true, Ordering::SeqCst);
            });
            let (names, mut room) = ((0..100_u64).map(u64::to_be_bytes).collect::<Vec<_>>(), Vec::new());
            while !stop.load(Ordering::SeqCst) {
                let mut n = 0;
                first.get_each(names.iter().map(|name| &name[..]), &mut room, |found, bytes| {
                    if found.expect("asked").is_some() {
                        let step = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
                        assert!(bytes == value(n, step, bytes.len()), "a mix");
                    }
                    n += 1;
                    true
                });
                assert_eq!(n, 100);
            }
        });
        assert_eq!(first.stats().expect("counted").damaged, 0);
    }
}

#[test]
fn what_is_above_the_bound_is_evicted_but_for_what_is_pinned_or_asked_for() {
    let store = Store::create(
        &space(64),
        Options {
            bound: 4 << 20,
            ..options()
        },
    )
    .expect("a store");
    let pinned = store
        .put(b"pinned", &value(1, 1, 9000), KEEP)
        .map(|_| store.exists([&b"pinned"[..]], true));
    let pinned = pinned.expect("put").expect("asked");
    for n in 0..5000_u64 {
        store.put(&n.to_be_bytes(), &value(n, n, 8000), KEEP).expect("put");
        store.put(b"hot", &value(2, 1, 100), KEEP).expect("put");
        assert!(store.get(b"hot").expect("asked").is_some(), "{n}");
    }
    let stats = store.stats().expect("counted");
    assert!(stats.used <= 4 << 20 && stats.evicted > 4000, "{stats:?}");
    assert!(pinned.pins[0].holds().expect("asked"));
    assert_eq!(store.get(b"pinned").expect("asked"), Some(value(1, 1, 9000)));
    drop(pinned);
    assert_eq!(store.space().audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_full_space_evicts_without_a_bound_also_what_others_allocated() {
    let space = space(32);
    let one = Store::create(&space, options()).expect("a store");
    let other = Store::open(&space, options()).expect("opened");
    for n in 0..20_000_u64 {
        one.put(&n.to_be_bytes(), &value(n, 1, 8000), KEEP).expect("put");
    }
    for n in 20_000..30_000_u64 {
        other.put(&n.to_be_bytes(), &value(n, 1, 8000), KEEP).expect("put");
        assert_eq!(one.get(&n.to_be_bytes()).expect("asked"), Some(value(n, 1, 8000)));
    }
}

#[test]
fn memory_of_one_size_comes_to_another_size() {
    let space = space(48);
    let sweeps = Options {
        sweeps: true,
        ..options()
    };
    let one = Store::create(&space, sweeps).expect("a store");
    let other = Store::open(&space, sweeps).expect("opened");
    for (round, len) in [8000, 300_000, 100, 1_000_000, 2000, 3_000_000].into_iter().enumerate() {
        // More than there is room for, by the one and then by the other.
        let count = (60 << 20) / (len as u64 + 200).next_power_of_two().max(20_000);
        for (who, store) in [&one, &other].into_iter().enumerate() {
            for n in 0..count {
                let n = n | (round as u64) << 32 | (who as u64) << 48;
                let put = store.put(&n.to_be_bytes(), &value(n, 1, len), KEEP);
                assert_eq!(put.unwrap_or_else(|e| panic!("{len} bytes, {n}: {e}")), Put::Stored(1));
                assert!(one.get(&n.to_be_bytes()).expect("asked") == Some(value(n, 1, len)));
            }
        }
    }
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_tenant_within_its_bound_keeps_what_it_has() {
    let store = store(64);
    store.set_tenant_bound(3, 1 << 20).expect("set");
    let of = |tenant| PutOptions { tenant, ..KEEP };
    for n in 0..50_u64 {
        store.put(&n.to_be_bytes(), &value(n, 1, 1000), of(1)).expect("put");
    }
    for n in 1000..5000_u64 {
        store.put(&n.to_be_bytes(), &value(n, 1, 1000), of(3)).expect("put");
    }
    assert!(store.tenant_stats(3).expect("counted").used <= 1 << 20);
    for n in 0..50_u64 {
        assert!(store.get(&n.to_be_bytes()).expect("asked").is_some(), "{n}");
    }
}

#[test]
fn what_has_expired_is_not_there_and_is_taken_out() {
    let store = store(32);
    let soon = PutOptions {
        time_to_live: Some(Nanos::from_millis(30)),
        ..KEEP
    };
    store.put(b"soon", b"gone", soon).expect("put");
    store
        .put(
            b"later",
            b"there",
            PutOptions {
                time_to_live: Some(Nanos::from_secs(1000)),
                ..KEEP
            },
        )
        .expect("put");
    rt::sleep(Nanos::from_millis(40));
    assert_eq!(store.get(b"soon").expect("asked"), None);
    assert_eq!(store.put(b"soon", b"new", soon).expect("put"), Put::Stored(2));
    rt::sleep(Nanos::from_millis(40));
    store.sweep().expect("swept");
    let stats = store.stats().expect("counted");
    assert_eq!((stats.items, stats.expired), (1, 1));
    assert_eq!(store.get(b"later").expect("asked"), Some(b"there".to_vec()));
}

#[test]
fn a_borrow_outlives_a_removal_and_its_place_is_free_afterwards() {
    let store = store(32);
    let bytes = value(1, 1, 100_000);
    store.put(b"k", &bytes, KEEP).expect("put");
    let before = store.space().stats().objects();
    let borrow = store.borrow(b"k").expect("asked").expect("there");
    assert!(store.remove(b"k").expect("removed"));
    assert_eq!(store.get(b"k").expect("asked"), None);
    store.sweep().expect("swept");
    let mut seen = vec![0; bytes.len()];
    borrow.read(0, &mut seen).expect("inside");
    assert!(seen == bytes && borrow.end().expect("asked"));
    store.sweep().expect("swept");
    assert_eq!(store.space().stats().objects(), before - 2);
}

#[test]
fn a_borrow_outlives_the_member_that_removed_its_value() {
    let (space, bytes) = (space(32), value(1, 1, 100_000));
    let keeps = Store::create(&space, options()).expect("a store");
    keeps.put(b"k", &bytes, KEEP).expect("put");
    let borrow = keeps.borrow(b"k").expect("asked").expect("there");
    let removes = Store::open(&space, options()).expect("opened");
    assert!(removes.remove(b"k").expect("removed"));
    drop(removes);
    let sweeps = Store::open(&space, options()).expect("opened");
    let before = space.stats().objects();
    for n in 0..4_u64 {
        sweeps.sweep().expect("swept");
        sweeps.put(&n.to_be_bytes(), &value(n, 2, 100_000), KEEP).expect("put");
    }
    let mut seen = vec![0; bytes.len()];
    borrow.read(0, &mut seen).expect("inside");
    assert!(seen == bytes && borrow.end().expect("asked"));
    sweeps.sweep().expect("swept");
    assert_eq!(
        space.stats().objects(),
        before + 4 * 2 - 2,
        "freed when it was given back"
    );
}

#[test]
fn a_damaged_value_does_not_keep_its_key() {
    let store = store(32);
    store.put(b"k", &value(1, 1, 1000), KEEP).expect("put");
    let piece = store.borrow(b"k").expect("asked").expect("there").pieces()[0].0;
    store.space().store(piece, 7).expect("written");
    assert_eq!(store.get(b"k").expect("asked"), None);
    assert_eq!(store.put(b"k", b"anew", KEEP).expect("put"), Put::Stored(2));
    assert_eq!(store.put(b"k", b"other", KEEP).expect("put"), Put::Exists);
    assert_eq!(store.get(b"k").expect("asked"), Some(b"anew".to_vec()));
    assert_eq!(store.stats().expect("counted").items, 1);
}

#[test]
fn an_allocation_is_seen_when_it_is_published_and_not_before() {
    for visibility in [Visibility::Coherent, Visibility::Flush] {
        let store = Store::create(
            &space(64),
            Options {
                visibility,
                ..options()
            },
        )
        .expect("a store");
        let (before, bytes) = (store.space().stats().objects(), value(1, 1, 3 << 20));
        let allocation = store.alloc(b"k", bytes.len() as u64, KEEP).expect("room");
        allocation.write(0, &bytes[..1 << 20]).expect("inside");
        assert!(allocation.write(bytes.len() as u64, b"x").is_err());
        drop(allocation);
        assert_eq!(store.space().stats().objects(), before);
        let allocation = store.alloc(b"k", bytes.len() as u64, KEEP).expect("room");
        allocation.write(0, &bytes).expect("inside");
        assert_eq!(store.get(b"k").expect("asked"), None);
        assert_eq!(allocation.publish().expect("published"), Put::Stored(1));
        assert!(store.get(b"k").expect("asked") == Some(bytes));
    }
}

#[test]
fn a_batch_says_how_long_its_prefix_is_that_is_there() {
    let store = store(32);
    let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    let pairs = [0, 1, 3].map(|n| (keys[n], &b"value"[..]));
    assert!(store.put_many(pairs, KEEP).iter().all(Result::is_ok));
    let presence = store.exists(keys, false).expect("asked");
    assert_eq!(
        (presence.prefix, &presence.found[..]),
        (2, &[true, true, false, true, false][..])
    );
    assert_eq!(store.exists(keys, true).expect("asked").pins.len(), 3);
    let mut room = [[0; 5]; 5];
    let got = store.get_many_into(keys.into_iter().zip(room.iter_mut().map(|room| &mut room[..])));
    let found: Vec<_> = got.into_iter().map(|got| got.expect("asked").is_some()).collect();
    assert_eq!(found, presence.found);
    let removed: Vec<_> = store
        .remove_many(keys)
        .into_iter()
        .map(|got| got.expect("asked"))
        .collect();
    assert_eq!(removed, presence.found);
}

/// Waits until so many batches are done.
fn drained(queue: &Queue<Vec<u8>>, batches: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < batches {
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(
            queue.event_fd(),
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut polled, None).expect("polled");
        done.extend(queue.drain());
    }
    done
}

#[test]
fn batches_are_done_without_waiting_and_an_eventfd_tells() {
    let store = store(64);
    let queue: Queue<Vec<u8>> = Queue::new(&store, 3).expect("threads");
    let keys: Vec<Vec<u8>> = (0..100_u64).map(|n| n.to_be_bytes().to_vec()).collect();
    let put = |n: usize| Request::Put(value(n as u64, 1, 5000 + n * 3), KEEP);
    let id = queue
        .submit(keys.iter().cloned().enumerate().map(|(n, key)| (key, put(n))).collect())
        .expect("begun");
    let done = drained(&queue, 1);
    assert_eq!(done[0].id, id);
    assert!(
        done[0]
            .outcomes
            .iter()
            .all(|(_, outcome)| matches!(outcome, Outcome::Put(Put::Stored(1))))
    );
    let get = |key: &Vec<u8>| (key.clone(), Request::Get(vec![0; 6000]));
    let mut ids = vec![queue.submit(keys.iter().map(get).collect()).expect("begun")];
    let exists = [&keys[7], &b"none".to_vec(), &keys[8]].map(|key| (key.clone(), Request::Exists(true)));
    ids.push(queue.submit(exists.into()).expect("begun"));
    ids.push(queue.submit(Vec::new()).expect("begun"));
    let mut done = drained(&queue, 3);
    done.sort_by_key(|batch| batch.id);
    assert_eq!(done.iter().map(|batch| batch.id).collect::<Vec<_>>(), ids);
    for (n, (_, outcome)) in done[0].outcomes.iter().enumerate() {
        assert!(matches!(outcome, Outcome::Got(Some(value)) if value.len == 5000 + n as u64 * 3));
    }
    let [(_, first), (_, none), (_, last)] = &done[1].outcomes[..] else {
        panic!("three keys")
    };
    assert!(matches!(none, Outcome::Exists(false, None)));
    for pinned in [first, last] {
        assert!(matches!(pinned, Outcome::Exists(true, Some(pin)) if pin.holds().expect("asked")));
    }
    queue
        .submit(keys.iter().map(|key| (key.clone(), Request::Remove)).collect())
        .expect("begun");
    let done = drained(&queue, 1);
    assert!(
        done[0]
            .outcomes
            .iter()
            .all(|(_, outcome)| matches!(outcome, Outcome::Removed(true)))
    );
}

#[test]
fn damaged_bytes_are_a_miss_or_an_error_and_never_a_panic() {
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..15 {
        let store = Store::create(
            &space(32),
            Options {
                checksums: true,
                ..options()
            },
        )
        .expect("a store");
        for n in 0..40_u64 {
            store
                .put(
                    &n.to_be_bytes(),
                    &value(n, 1, 60 + 20_000 * usize::from(n % 8 == 0)),
                    KEEP,
                )
                .expect("put");
        }
        let mut objects = Vec::new();
        store
            .space()
            .each_object(|address, len| objects.push((address, len)))
            .expect("told");
        for _ in 0..1 + random.below(30) {
            let (object, len) = objects[random.below(objects.len() as u64) as usize];
            let word = object.checked_add(random.below(len.min(256) / 8) * 8).expect("inside");
            let garbage = match random.below(3) {
                0 => random.word(),
                1 => objects[random.below(objects.len() as u64) as usize].0.raw() | random.below(64),
                _ => random.below(4),
            };
            store.space().store(word, garbage).expect("written");
        }
        for n in 0..40_u64 {
            // Wrong bytes are never given out for a value.
            if let Ok(Some(bytes)) = store.get(&n.to_be_bytes()) {
                assert!(bytes == value(n, 1, bytes.len()), "seed {seed}, round {round}, key {n}");
            }
            let _ = store.put(&n.to_be_bytes(), b"again", REPLACE);
            let _ = store.remove(&n.to_be_bytes());
        }
        let _ = (store.sweep(), store.stats());
    }
}
