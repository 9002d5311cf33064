//! Two that link one key, step by step, in words of their own choice.

use super::super::chains::Placed;
use super::super::core::Core;
use super::super::entry::{Entry, State};
use super::super::{Options, Put, PutOptions, Store};
use super::{Linked, OnEntry, Settled};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Space, SpaceOptions};

/// A store, and the words of the key's bucket.
fn bucket(key: &[u8]) -> (Store, Vec<Placed>) {
    let space = SpaceOptions {
        bytes: 32 << 20,
        ..SpaceOptions::default()
    };
    let options = Options {
        buckets: 16,
        sweeps: false,
        ..Options::default()
    };
    let store = Store::create(&Space::dram(&space).expect("memory"), options).expect("a store");
    let words = words(&store.core, key);
    (store, words)
}

fn words(core: &Core, key: &[u8]) -> Vec<Placed> {
    let (view, key) = (core.view(), core.key(key).expect("a key"));
    view.table
        .entries(&core.heap, view.table.bucket_of(key.hash))
        .expect("read")
}

/// An item that is ready to be linked, as a tentative entry in a word.
fn place(core: &Core, key: &[u8], word: &Placed) -> Entry {
    let key = core.key(key).expect("a key");
    let mut filling = core.begin(&key, 3, 0, 0).expect("room");
    core.fill(&mut filling, b"one").expect("filled");
    core.finish(&mut filling).expect("finished");
    let entry = Entry::committed(filling.item, key.hash);
    assert!(
        core.heap
            .swap(word.at, word.entry.raw(), entry.tentative().raw())
            .expect("swapped")
    );
    entry
}

/// Steps 3 and 4 of one that has placed its entry: whether it is committed.
fn go_on(core: &Core, key: &[u8], word: &Placed, entry: Entry) -> bool {
    let (view, key) = (core.view(), core.key(key).expect("a key"));
    let bucket = view.table.bucket_of(key.hash);
    loop {
        match core.settle(&view.table, bucket, &key, word.at).expect("read") {
            Settled::Again => {}
            Settled::No => return false,
            Settled::Alone => {
                return core
                    .heap
                    .swap(word.at, entry.tentative().raw(), entry.raw())
                    .expect("swapped");
            }
        }
    }
}

#[test]
fn what_is_replaced_is_not_another_that_came_to_lie_there() {
    let (store, _) = bucket(b"key");
    let core = &store.core;
    store.put(b"key", b"one", PutOptions::default()).expect("put");
    let key = core.key(b"key").expect("a key");
    let mut filling = core.begin(&key, 3, 0, 0).expect("room");
    core.fill(&mut filling, b"two").expect("filled");
    core.finish(&mut filling).expect("finished");
    let mut versions = Vec::new();
    let linked = core.link(&key, filling.item, OnEntry::Replace, |before| {
        versions.push(before);
        if versions.len() == 1 {
            // Others come in between: as often as it takes to use a place again.
            let place = committed_item(core, b"key");
            let replaces = PutOptions {
                replaces: true,
                ..PutOptions::default()
            };
            for _ in 0..20_000 {
                assert!(store.remove(b"key").expect("removed"));
                store.put(b"key", b"one", PutOptions::default()).expect("put");
                store.put(b"key", b"2nd", replaces).expect("put");
                if committed_item(core, b"key") == place {
                    break;
                }
            }
        }
        Ok(())
    });
    assert!(matches!(linked, Ok(Linked::In(Some(_)))));
    assert_eq!(versions, [1, 2], "the first swap has failed");
}

#[test]
fn what_is_removed_is_not_another_that_came_to_lie_there() {
    // A removal had read the key's item. Until its swap the item was freed and its place used again, by whatever has
    // the same word: that went in its stead.
    let (store, _) = bucket(b"key");
    let core = &store.core;
    store.put(b"key", b"one", PutOptions::default()).expect("put");
    let key = core.key(b"key").expect("a key");
    let found = core.find(&key).expect("asked").expect("there");
    let is_again = || {
        assert!(store.remove(b"key").expect("removed"));
        store.put(b"key", b"two", PutOptions::default()).expect("put");
        let now = core.find(&key).expect("asked").expect("there");
        now.place.at == found.place.at && now.place.entry == found.place.entry
    };
    assert!((0..20_000).any(|_| is_again()), "its place is used again");
    assert!(!core.unlink_found(&found).expect("swapped"));
    assert_eq!(store.get(b"key").expect("asked"), Some(b"two".to_vec()));
    assert!(store.remove(b"key").expect("removed"));
}

#[test]
fn a_bucket_gets_no_more_lines_than_are_read() {
    let (store, _) = bucket(b"key");
    let (core, view) = (&store.core, store.core.view());
    let of_key = view.table.bucket_of(core.key(b"key").expect("a key").hash);
    let mut added = 0;
    while view.table.add_line(&core.heap, of_key).is_ok() {
        added += 1;
        assert!(added < 64, "it ends");
    }
    assert_eq!(added, 63);
    assert!(matches!(view.table.add_line(&core.heap, of_key), Err(Error::Full(_))));
    assert_eq!(words(core, b"key").len(), 64 * 7);
    assert_eq!(
        store.put(b"key", b"one", PutOptions::default()).expect("put"),
        Put::Stored(1)
    );
}

fn committed_item(core: &Core, key: &[u8]) -> GlobalAddress {
    let is_committed = |placed: &Placed| placed.entry.state() == State::Committed;
    words(core, key)
        .into_iter()
        .find(is_committed)
        .expect("there")
        .entry
        .item()
}

fn committed(core: &Core, key: &[u8]) -> usize {
    let is_committed = |placed: &&Placed| placed.entry.state() == State::Committed;
    words(core, key).iter().filter(is_committed).count()
}

#[test]
fn one_that_comes_late_loses_to_one_that_is_committed() {
    let (store, words) = bucket(b"key");
    let entry = place(&store.core, b"key", &words[5]);
    assert_eq!(
        store.get(b"key").expect("asked"),
        None,
        "a tentative entry is no reader's"
    );
    assert_eq!(
        store.put(b"key", b"two", PutOptions::default()).expect("put"),
        Put::Stored(1)
    );
    assert!(!go_on(&store.core, b"key", &words[5], entry));
    assert_eq!(committed(&store.core, b"key"), 1);
    assert_eq!(store.get(b"key").expect("asked"), Some(b"two".to_vec()));
}

#[test]
fn of_two_that_have_placed_their_entries_one_is_committed() {
    for first in 0..2 {
        let (store, words) = bucket(b"key");
        let core = &store.core;
        let placed = [
            (&words[5], place(core, b"key", &words[5])),
            (&words[2], place(core, b"key", &words[2])),
        ];
        let (one, other) = (placed[first], placed[1 - first]);
        assert!(go_on(core, b"key", one.0, one.1), "it aborts the other");
        assert!(!go_on(core, b"key", other.0, other.1));
        assert_eq!(committed(core, b"key"), 1);
    }
}

#[test]
fn one_that_has_looked_before_the_other_came_is_aborted_by_it() {
    let (store, words) = bucket(b"key");
    let core = &store.core;
    let (view, key) = (core.view(), core.key(b"key").expect("a key"));
    let one = place(core, b"key", &words[5]);
    let alone = core
        .settle(&view.table, view.table.bucket_of(key.hash), &key, words[5].at)
        .expect("read");
    assert!(matches!(alone, Settled::Alone));
    let other = place(core, b"key", &words[2]);
    assert!(go_on(core, b"key", &words[2], other));
    let late = core
        .heap
        .swap(words[5].at, one.tentative().raw(), one.raw())
        .expect("swapped");
    assert!(!late, "its word was taken from it");
    assert_eq!(committed(core, b"key"), 1);
}
