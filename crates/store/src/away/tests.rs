//! A mirrored space one of whose parts is away, and comes back.

use super::super::heap::offset;
use super::super::pods::Pods;
use super::super::{Options, Put, PutOptions, Store};
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_space::GlobalAddress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const KEEP: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: false,
    replicas: 0,
};

/// Members in the two pods, and one elsewhere, from whose view the west is away now and then.
struct Three {
    pods: Pods,
    east: Store,
    west: Store,
    far: Store,
    is_away: Arc<AtomicBool>,
}

impl Three {
    fn new(buckets: u64, is_mirrored: bool) -> Self {
        let (pods, is_away) = (Pods::new(24), Arc::new(AtomicBool::new(false)));
        let options = Options {
            buckets,
            sweeps: false,
            ..Options::default()
        };
        let east = Store::create(&pods.users[0], options).expect("a store");
        let open = |space| Store::open_at(space, east.address(), options).expect("opened");
        let (west, far) = (open(&pods.users[1]), open(&pods.far_user(is_mirrored, &is_away)));
        Self {
            pods,
            east,
            west,
            far,
            is_away,
        }
    }

    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
        // A try that failed puts off the next one for as long as it took, which a busy machine may make long.
        let (heap, in_west) = (&self.far.core.heap, GlobalAddress::new(2, 0, 0, 1).expect("an address"));
        while !is_away && heap.load(in_west).is_err_and(|error| heap.is_away(&error)) {
            cenote_base::rt::sleep(Nanos::from_millis(1));
        }
    }
}

fn is_timeout<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Timeout(_)))
}

#[test]
fn of_many_keys_those_that_are_away_are_errors_and_the_others_are_read() {
    let three = Three::new(1 << 10, true);
    let names = [&b"east 1"[..], b"west 1", b"none", b"east 2", b"west 2"];
    for name in names {
        match name[0] {
            b'e' => assert_eq!(three.east.put(name, name, KEEP).expect("put"), Put::Stored(1)),
            b'w' => assert_eq!(three.west.put(name, name, KEEP).expect("put"), Put::Stored(1)),
            _ => {}
        }
    }
    for is_away in [false, true, false] {
        three.set_away(is_away);
        let wanted = |name: &[u8]| match name[0] {
            b'w' if is_away => None,
            b'n' => Some(None),
            _ => Some(Some(name.to_vec())),
        };
        let mut rooms = [[0; 6]; 5];
        let pairs = names.iter().zip(&mut rooms).map(|(name, room)| (*name, &mut room[..]));
        let values = three.far.get_many_into(pairs.collect::<Vec<_>>());
        for ((name, value), room) in names.iter().zip(values).zip(rooms) {
            assert!(value.is_ok() || is_timeout(&value), "{value:?}");
            assert_eq!(value.ok().map(|value| value.map(|_| room.to_vec())), wanted(name));
        }
        let mut seen = Vec::new();
        three.far.get_each(names, &mut Vec::new(), |value, bytes| {
            seen.push(value.ok().map(|value| value.map(|_| bytes.to_vec())));
            true
        });
        assert_eq!(seen, names.map(wanted));
        let presence = three.far.exists(names, false);
        assert_eq!(is_timeout(&presence), is_away);
        let scanned = three.far.scan(0, 1 << 20);
        assert_eq!(is_timeout(&scanned), is_away);
        assert!(is_away || presence.expect("asked").found == [true, true, false, true, true]);
        assert!(is_away || scanned.expect("told").keys.len() == 4);
    }
    three.set_away(true);
    assert!(is_timeout(&three.far.clear()), "what is away comes back");
    three.set_away(false);
    three.far.clear().expect("cleared");
    assert_eq!(three.east.stats().expect("counted").items, 0);
}

/// What one dead member had begun in a part that is away kept all that a sweep does from being done.
#[test]
fn a_sweep_goes_on_with_what_is_there() {
    for is_mirrored in [true, false] {
        let three = Three::new(256, is_mirrored);
        let room = three.west.alloc(b"begun", 100, KEEP).expect("room");
        core::mem::forget(room);
        three.pods.kill(three.west.core.heap.first());
        let soon = PutOptions {
            time_to_live: Some(Nanos::from_millis(1)),
            ..KEEP
        };
        three.east.put(b"expires", b"soon", soon).expect("put");
        cenote_base::rt::sleep(Nanos::from_millis(2));
        three.set_away(true);
        assert!(three.far.sweep().is_err(), "it says what it has not done");
        let stats = three.far.stats().expect("counted");
        assert_eq!((stats.expired, stats.items, stats.orphans), (1, 0, 0));
        three.set_away(false);
        three.far.sweep().expect("swept");
        assert_eq!(three.far.stats().expect("counted").orphans, 1);
    }
}

fn is_there(store: &Store, item: GlobalAddress) -> bool {
    store.core.header_at(item).expect("read").is_some()
}

#[test]
fn what_cannot_be_freed_as_its_part_is_away_is_freed_later() {
    let three = Three::new(1 << 10, true);
    let core = &three.far.core;
    three.west.put(b"key", b"value", KEEP).expect("put");
    let key = core.key(b"key").expect("a key");
    let found = core.find(&key).expect("read").expect("there");
    let item = found.place.entry.item();
    assert!(core.unlink_found(&found).expect("unlinked"));
    three.set_away(true);
    core.retire(item, found.header, false).expect("it waits");
    core.free_retired().expect("it waits still");
    three.set_away(false);
    assert!(is_there(&three.far, item));
    core.free_retired().expect("freed");
    assert!(!is_there(&three.far, item), "its memory is free");
}

#[test]
fn what_was_being_filled_when_its_part_went_away_is_freed_later() {
    let three = Three::new(1 << 10, true);
    let core = &three.far.core;
    for len in [100, 1 << 21] {
        let key = core.key(b"key").expect("a key");
        let filling = core.begin_in(Some(2), &key, len, (0, 0)).expect("room");
        let objects: Vec<_> = filling.pieces().map(|(piece, _)| piece.expect("an address")).collect();
        let item = filling.item;
        three.set_away(true);
        core.abandon(filling).expect("it waits");
        three.set_away(false);
        assert!(is_there(&three.far, item));
        core.free_retired().expect("freed");
        assert!(!is_there(&three.far, item), "its memory is free");
        let space = three.far.space();
        assert!(
            objects.iter().all(|object| space.load(*object).is_err()),
            "its chunks are"
        );
    }
}

fn log2(store: &Store) -> u32 {
    store.core.refresh().expect("read").table.log2
}

#[test]
fn a_table_does_not_begin_to_grow_while_a_part_is_away() {
    for is_mirrored in [true, false] {
        let three = Three::new(16, is_mirrored);
        let core = &three.far.core;
        let before = log2(&three.far);
        three.set_away(true);
        core.grow_if_full(100).expect("it waits");
        core.grow_if_full(100).expect("it waits still");
        assert_eq!(log2(&three.far), before);
        if !is_mirrored {
            // What is away may be so for good.
            core.grow_if_full(500).expect("grown");
            assert_eq!(log2(&three.far), before + 2);
            continue;
        }
        core.grow_if_full(500).expect("it waits");
        assert_eq!(log2(&three.far), before);
        three.set_away(false);
        *core.table_waits_until.lock() = Nanos::ZERO;
        core.grow_if_full(100).expect("grown");
        assert_eq!(log2(&three.far), before + 2);
    }
}

/// An entry whose item was away held up the puts of all keys whose buckets had not moved.
#[test]
fn where_a_bucket_waits_to_be_moved_others_are_changed() {
    let three = Three::new(16, true);
    let (core, name) = (&three.far.core, |n: u64| n.to_be_bytes());
    let bucket = |n: u64| core.key(&name(n)).expect("a key").hash & 15;
    // The first bucket to be moved waits.
    let away = (0..).find(|n| bucket(*n) == 0).expect("some");
    three.west.put(&name(away), b"away", KEEP).expect("put");
    core.build(&core.view(), |part, len| core.heap.alloc_at(part, len))
        .expect("built");
    three.set_away(true);
    for n in (0..40).filter(|n| bucket(*n) != 0) {
        assert_eq!(three.far.put(&name(n), b"there", KEEP).expect("put"), Put::Stored(1));
    }
    assert!(is_timeout(&three.far.get(&name(away))));
    assert!(is_timeout(&three.far.put(&name(away), b"anew", KEEP)));
    three.set_away(false);
    while !core.move_some(&core.refresh().expect("read"), 64).expect("moved") {}
    assert_eq!(three.far.get(&name(away)).expect("asked"), Some(b"away".to_vec()));
    assert_eq!(three.far.stats().expect("counted").lost, 0);
}

#[test]
fn nothing_of_an_item_is_freed_before_all_of_it_can_be() {
    let three = Three::new(1 << 10, true);
    let core = &three.far.core;
    let key = core.key(b"key").expect("a key");
    let filling = core.begin_in(Some(1), &key, 1 << 21, (0, 0)).expect("room");
    let (item, header) = (filling.item, filling.header);
    // One of its chunks lies in the west.
    let (first, _) = filling.pieces().next().expect("a chunk");
    core.heap.free(first.expect("an address")).expect("freed");
    let chunk = core.heap.alloc_at(2, 1 << 20).expect("room");
    let place = offset(item, header.body()).expect("inside");
    core.heap.store(place, chunk.raw()).expect("noted");
    core.retired.lock().push((item, header, None));
    three.set_away(true);
    core.free_retired().expect("it waits");
    assert!(is_there(&three.far, item));
    three.set_away(false);
    core.free_retired().expect("freed");
    assert!(
        !is_there(&three.far, item) && core.heap.load(chunk).is_err(),
        "all of it is free"
    );
}

mod waiting;
