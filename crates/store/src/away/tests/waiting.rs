//! Values whose items are there and whose chunks are away.

use super::super::super::item::body;
use super::super::super::layout::{member, root};
use super::super::super::{PutOptions, Store};
use super::{KEEP, Three, is_there};
use cenote_base::Error;

/// Bytes of a value in one chunk.
const LEN: usize = 17_000;
const EAST: u8 = 1;
const WEST: u8 = 2;

/// The next value that is put has its item in the east, and its chunk in a part.
fn make_room(store: &Store, part: u8) {
    let core = &store.core;
    for (part, len) in [(EAST, body(8) + 8), (part, LEN as u64)] {
        let object = core.heap.alloc_at(part, len).expect("room");
        core.give_pooled(object).expect("given");
    }
}

fn put(store: &Store, n: u64, part: u8) {
    make_room(store, part);
    let replace = PutOptions { replaces: true, ..KEEP };
    store.put(&n.to_le_bytes(), &[7; LEN], replace).expect("put");
}

/// Each kept an intent until its part came back: then no put found one.
#[test]
fn puts_have_intents_however_much_waits() {
    let three = Three::new(1 << 10, true);
    let (far, many) = (&three.far, member::INTENTS_MAX + 20);
    (0..many).for_each(|n| put(far, n, WEST));
    let first = far.core.find(&far.core.key(&0_u64.to_le_bytes()).expect("a key"));
    let first = first.expect("read").expect("there").place.entry.item();
    three.set_away(true);
    (0..many).for_each(|n| put(far, n, EAST));
    assert_eq!(far.core.retired.lock().len() as u64, many);
    three.set_away(false);
    assert!(is_there(far, first));
    far.core.free_retired().expect("freed");
    assert!(!is_there(far, first) && far.core.retired.lock().is_empty());
}

#[test]
fn what_was_begun_keeps_few_intents_while_it_waits() {
    let three = Three::new(1 << 10, true);
    let core = &three.far.core;
    let key = core.key(&[1; 8]).expect("a key");
    let many = member::INTENTS_MAX + 20;
    for _ in 0..many {
        make_room(&three.far, WEST);
        let filling = core.begin(&key, LEN as u64, 0, 0).expect("begun");
        three.set_away(true);
        core.abandon(filling).expect("it waits");
        three.set_away(false);
    }
    assert_eq!(core.retired.lock().len() as u64, many);
    core.free_retired().expect("freed");
    assert!(core.retired.lock().is_empty());
}

/// Hundreds were taken out with each put, and nothing was freed by it.
#[test]
fn what_would_wait_is_not_evicted() {
    let three = Three::new(16, true);
    let (core, many) = (&three.far.core, 40);
    (0..many).for_each(|n| put(&three.far, n, WEST));
    three.set_away(true);
    let items = || three.far.stats().expect("counted").items;
    core.heap
        .store(core.word(root::BOUND).expect("a word"), 1 << 16)
        .expect("bound");
    assert!(matches!(core.make_room(0, 1 << 10), Err(Error::Full(_))));
    assert_eq!(items(), many);
    let view = core.current().expect("read");
    for bucket in 0..16 {
        // It makes room for a line: nothing of the bucket can go.
        core.evict_from(&view.table, bucket, "no room".into()).expect("room");
        for (placed, header) in core.candidates(&view.table, bucket, 1).expect("read") {
            assert!(!core.squeeze_out(placed, header).expect("looked at"));
        }
    }
    assert_eq!(items(), many);
    three.set_away(false);
    core.make_room(0, 1 << 10).expect("room");
    assert!(items() < 4, "what is back is evicted");
}
