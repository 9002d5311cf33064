//! A table that grows, step by step: helpers that come late.

use super::super::chains::{Placed, Table};
use super::super::entry::{Entry, State};
use super::super::link::OnEntry;
use super::super::pods::Pods;
use super::super::replicate::replica_keys;
use super::super::{Options, Put, PutOptions, Store};
use super::{ENTRIES, is_full};
use cenote_base::rt::atomic::Ordering;
use cenote_space::{Class, GlobalAddress, Space, SpaceOptions};

/// A store with a small table.
fn small() -> Store {
    let space = SpaceOptions {
        bytes: 32 << 20,
        ..SpaceOptions::default()
    };
    let options = Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    };
    Store::create(&Space::dram(&space).expect("memory"), options).expect("a store")
}

/// A store whose table has just been followed by a larger one: nothing of it has moved.
fn grown() -> Store {
    let store = small();
    store.put(b"key", b"value", PutOptions::default()).expect("put");
    let alloc = |part, len| store.core.heap.alloc_at(part, len);
    store.core.build(&store.core.view(), alloc).expect("built");
    assert!(store.core.view().previous.is_some());
    store
}

/// The key's word in a table, with its number.
fn word_of(store: &Store, table: &Table, is_its: impl Fn(&Placed) -> bool) -> Option<(usize, Placed)> {
    let key = store.core.key(b"key").expect("a key");
    let entries = table
        .entries(&store.core.heap, table.bucket_of(key.hash))
        .expect("read");
    entries.into_iter().enumerate().find(|(_, placed)| is_its(placed))
}

#[test]
fn where_there_is_no_room_for_a_larger_table_a_sweep_makes_some() {
    // A table that could not grow stayed as it was, and what came to a bucket without room evicted another.
    let store = small();
    let core = &store.core;
    let mut n = 0_u64;
    while store.stats().expect("counted").evicted == 0 {
        store
            .put(&n.to_le_bytes(), &[7; 16_000], PutOptions::default())
            .expect("put");
        n += 1;
    }
    // Nothing is left of other sizes, which a table is made of.
    let of_values = Class::of(16_000).expect("a class");
    for class in Class::all().filter(|class| *class != of_values) {
        while core.heap.alloc(class.size()).is_ok() {}
    }
    while !core.move_some(&core.refresh().expect("read"), 64).expect("moved") {}
    let before = core.refresh().expect("read").table.log2;
    // As if there were many items.
    core.account(0, 10_000, 0).expect("counted");
    core.grow_if_full(10_000).expect("there is no room");
    assert_eq!(core.refresh().expect("read").table.log2, before);
    store.sweep().expect("swept");
    assert_eq!(core.refresh().expect("read").table.log2, before + 2);
    while !core.move_some(&core.refresh().expect("read"), 64).expect("moved") {}
    let is_there = |n: &u64| store.get(&n.to_le_bytes()).expect("asked").is_some();
    // How many there were before depends on where their sizes' slabs lay.
    let gone = (0..n).filter(|n| !is_there(n)).count();
    let most = (10 << 20) / 16_000;
    assert!(
        gone <= most,
        "{gone} of {n} values had to go for a table of 8 MiB at most"
    );
}

#[test]
fn a_helper_that_comes_late_does_not_bring_a_removed_key_back() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let bucket = former.bucket_of(core.key(b"key").expect("a key").hash);
    let is_committed = |placed: &Placed| placed.entry.state() == State::Committed;
    let (word, placed) = word_of(&store, former, is_committed).expect("there");
    // So that its bytes stay, and the helper finds them.
    let pinned = store.exists([&b"key"[..]], true).expect("asked");
    assert!(store.remove(b"key").expect("removed"));
    let frozen = Placed {
        entry: placed.entry.frozen(),
        ..placed
    };
    core.copy_entry(&view.table, former, frozen, (bucket, 0, word))
        .expect("tried");
    assert!(
        word_of(&store, &view.table, is_committed).is_none(),
        "its word was used"
    );
    assert_eq!(store.get(b"key").expect("asked"), None);
    drop(pinned);
}

#[test]
fn a_helper_that_comes_late_does_not_copy_what_lies_there_by_now() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let hash = |key: &[u8]| core.key(key).expect("a key").hash;
    let bucket = former.bucket_of(hash(b"key"));
    let is_committed = |placed: &Placed| placed.entry.state() == State::Committed;
    let (word, placed) = word_of(&store, former, is_committed).expect("there");
    assert!(store.remove(b"key").expect("removed"));
    // Another key, which would have come from the same bucket to another one; say its item lies where that one lay.
    let goes_elsewhere = |key: &Vec<u8>| {
        let is_alike = former.bucket_of(hash(key)) == bucket && hash(key) >> 60 == hash(b"key") >> 60;
        is_alike && view.table.bucket_of(hash(key)) != view.table.bucket_of(hash(b"key"))
    };
    let key = (100..u64::MAX).map(|n| n.to_string().into_bytes()).find(goes_elsewhere);
    let key = key.expect("some");
    let words = || {
        let entries = view
            .table
            .entries(&core.heap, view.table.bucket_of(hash(&key)))
            .expect("read");
        entries.into_iter().filter(is_committed).collect::<Vec<_>>()
    };
    store.put(&key, b"value", PutOptions::default()).expect("put");
    let frozen = Placed {
        entry: words()[0].entry.frozen(),
        ..placed
    };
    // Of another number than the one where the key's entry is: no process has used that.
    core.copy_entry(&view.table, former, frozen, (bucket, 0, (word + 3) % 7))
        .expect("tried");
    assert_eq!(words().len(), 1);
}

/// An item is not freed while an entry names it in the former table: another helper would copy what lies there next.
#[test]
fn what_is_frozen_still_makes_no_room_for_a_line() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let bucket = former.bucket_of(core.key(b"key").expect("a key").hash);
    let is_committed = |placed: &Placed| placed.entry.state() == State::Committed;
    let (word, placed) = word_of(&store, former, is_committed).expect("there");
    let frozen = placed.entry.frozen();
    assert!(
        core.heap
            .swap(placed.at, placed.entry.raw(), frozen.raw())
            .expect("swapped")
    );
    let copied = Placed {
        entry: frozen,
        ..placed
    };
    core.copy_entry(&view.table, former, copied, (bucket, 0, word))
        .expect("copied");
    assert!(word_of(&store, &view.table, is_committed).is_some());
    let may_go = || core.moved_entries(&view.table, former).expect("read").len();
    assert_eq!(may_go(), 0);
    while !core.move_some(&view, 64).expect("moved") {}
    assert_eq!(may_go(), 1);
}

#[test]
fn an_entry_that_one_helper_drops_no_other_copies() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let (word, placed) = word_of(&store, former, |placed| placed.entry.state() == State::Committed).expect("there");
    let bucket = former.bucket_of(core.key(b"key").expect("a key").hash);
    core.heap.free(placed.entry.item()).expect("freed");
    core.forward(&view.table, former, bucket).expect("forwarded");
    for n in 0..4 {
        let target = view
            .table
            .entries(&core.heap, bucket + n * former.buckets())
            .expect("read")[word];
        assert_eq!(target.entry, Entry::GONE, "a late helper writes where it is 0");
    }
}

#[test]
fn an_entry_whose_item_is_not_reached_counts_as_lost_and_not_as_damaged() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let (_, placed) = word_of(&store, former, |placed| placed.entry.state() == State::Committed).expect("there");
    let hash = core.key(b"key").expect("a key").hash;
    let elsewhere = GlobalAddress::new(7, 0, 0, 1).expect("an address");
    let entry = Entry::committed(elsewhere, hash);
    let swapped = core.heap.swap(placed.at, placed.entry.raw(), entry.raw());
    assert!(swapped.expect("swapped"));
    core.forward(&view.table, former, former.bucket_of(hash))
        .expect("forwarded");
    let counted = [&core.counters.lost, &core.counters.damaged].map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(counted, [1, 0]);
    assert_eq!(store.get(b"key").expect("asked"), None);
}

#[test]
fn a_table_is_too_small_however_many_items_there_are() {
    let view = grown().core.view();
    let words = view.table.buckets() * ENTRIES as u64;
    assert!(!is_full(&view.table, words / 2) && is_full(&view.table, words));
    assert!(is_full(&view.table, 100 * words) && !is_full(&view.table, -3_i64 as u64));
}

#[test]
fn a_frozen_entry_is_read_and_who_changes_it_forwards_it_first() {
    let store = grown();
    let (core, view) = (&store.core, store.core.view());
    let former = view.previous.as_ref().expect("not moved yet");
    let (_, placed) = word_of(&store, former, |placed| placed.entry.state() == State::Committed).expect("there");
    // One that moves it has been killed here.
    assert!(
        core.heap
            .swap(placed.at, placed.entry.raw(), placed.entry.frozen().raw())
            .expect("swapped")
    );
    assert_eq!(store.get(b"key").expect("asked"), Some(b"value".to_vec()));
    let replaces = PutOptions {
        replaces: true,
        ..PutOptions::default()
    };
    assert_eq!(
        store.put(b"key", b"other", PutOptions::default()).expect("put"),
        Put::Exists
    );
    assert_eq!(store.put(b"key", b"other", replaces).expect("put"), Put::Stored(2));
    assert_eq!(store.get(b"key").expect("asked"), Some(b"other".to_vec()));
    assert!(word_of(&store, former, |placed| placed.entry.state() != State::Forwarded).is_none());
}

/// It was read where it was frozen, and taken out there: a panic.
#[test]
fn a_replica_whose_entry_goes_to_the_larger_table_is_taken_out_there() {
    let pods = Pods::new(24);
    let options = Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    };
    let store = Store::create(&pods.users[0], options).expect("a store");
    let copied = PutOptions {
        replicas: 1,
        ..PutOptions::default()
    };
    store.put(b"key", b"value", copied).expect("put");
    let core = &store.core;
    core.build(&core.view(), |part, len| core.heap.alloc_at(part, len))
        .expect("built");
    let key = core.key(b"key").expect("a key");
    let replica = replica_keys(&key, 1).nth(1).expect("one");
    let found = core.find(&replica).expect("read").expect("there");
    let frozen = found.place.entry.frozen();
    let swapped = core.heap.swap(found.place.at, found.place.entry.raw(), frozen.raw());
    assert!(swapped.expect("swapped"));
    let found = core.find(&replica).expect("read").expect("it is read where it is");
    assert_eq!(found.place.entry.state(), State::Frozen);
    assert!(
        !core.unlink_found(&found).expect("tried"),
        "it is elsewhere in a moment"
    );
    core.drop_replicas_if(&key, OnEntry::Replace).expect("dropped");
    assert!(core.find(&replica).expect("read").is_none(), "it is gone");
    assert_eq!(store.get(b"key").expect("read").as_deref(), Some(&b"value"[..]));
}
