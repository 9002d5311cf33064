//! What changes far memory is done once, though requests and answers are lost or late, extents move and hosts begin
//! anew.

use crate::pods::{Fate, Pods, at, bytes_of, relocate};
use crate::seed;
use cenote_base::random::Random;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Space, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A change of the word at an address.
type Change = fn(&Space, GlobalAddress) -> Result<u64>;

/// Ways to make 0 a 1.
const CHANGES: [(&str, Change); 6] = [
    ("a store", |space, at| space.store(at, 1).map(|()| 0)),
    ("a write", |space, at| space.write(at, &1u64.to_le_bytes()).map(|()| 0)),
    ("a long write", |space, at| {
        let mut bytes = vec![0; 300_000];
        bytes[0] = 1;
        space.write(at, &bytes).map(|()| 0)
    }),
    ("many writes", |space, address| {
        let one = Write {
            address,
            from: &1u64.to_le_bytes(),
        };
        let other = Write {
            address: at(address, 8),
            from: &[0; 8],
        };
        space.write_many(&[one, other]).map(|()| 0)
    }),
    ("an addition", |space, at| space.fetch_add(at, 1)),
    ("a swap", |space, at| space.compare_and_swap(at, 0, 1)),
];

/// A word of the east that both know: 0.
fn word(pods: &Pods) -> GlobalAddress {
    let address = pods.users[0].session().alloc(400_000).expect("room");
    assert_eq!(pods.users[1].load(address).expect("a word"), 0);
    address
}

/// The answer to a store was lost, so it was sent again, and came after what another had written in between: that was
/// gone, though no client had been told of an error.
#[test]
fn what_another_has_written_since_stays() {
    for (name, change) in CHANGES {
        let pods = Pods::new(4);
        let (address, east) = (word(&pods), pods.users[0].clone());
        pods.fabric.answer_is_lost_after(move || {
            assert_eq!(east.compare_and_swap(address, 1, 2).expect("a word"), 1, "it was done");
        });
        assert_eq!(change(&pods.users[1], address).expect("answered at last"), 0, "{name}");
        assert_eq!(pods.users[0].load(address).expect("a word"), 2, "{name}");
    }
}

/// Each message of a large access tried by itself to reach a node that was away: of one with many messages that took
/// minutes.
#[test]
fn a_node_that_is_away_is_tried_once_for_all_messages_of_an_access() {
    let pods = Pods::new(4);
    let address = word(&pods);
    let bytes = vec![1; 400_000];
    let (messages, _) = pods
        .fabric
        .messages(|| pods.users[1].write(address, &bytes).expect("written"));
    assert!(messages > 2, "{messages} messages");
    pods.fabric.next_is(Fate::IsLost);
    pods.fabric.set_cut(true);
    let (tries, written) = pods.fabric.tries(|| pods.users[1].write(address, &bytes));
    assert!(matches!(written, Err(Error::Lost(_))), "{written:?}");
    assert_eq!(tries, 1);
}

#[test]
fn what_did_not_arrive_is_done_when_it_is_sent_again() {
    for (name, change) in CHANGES {
        let pods = Pods::new(4);
        let address = word(&pods);
        pods.fabric.next_is(Fate::IsLost);
        assert_eq!(change(&pods.users[1], address).expect("answered at last"), 0, "{name}");
        assert_eq!(pods.users[0].load(address).expect("a word"), 1, "{name}");
    }
}

/// Whether it was done knows the host that was asked, also if the extent has moved since.
#[test]
fn what_was_done_before_an_extent_moved_is_not_done_where_it_lies_now() {
    for (name, change) in CHANGES {
        for comes in [false, true] {
            let pods = Pods::new(4);
            let (address, east) = (word(&pods), pods.users[0].clone());
            let host = Arc::clone(&pods.hosts[0]);
            let (from, to) = if comes { (2, 1) } else { (1, 2) };
            pods.relocate(address, from).expect("moved");
            // Of the pod where it does not lie.
            let user = &pods.users[usize::from(to) - 1];
            user.load(address).expect("a word");
            pods.fabric.answer_is_lost_after(move || {
                relocate(&host, address, to).expect("moved");
                assert_eq!(east.compare_and_swap(address, 1, 2).expect("a word"), 1, "it was done");
            });
            let changed = change(user, address);
            assert_eq!(changed.expect("answered at last"), 0, "{name}, comes: {comes}");
            assert_eq!(
                pods.users[0].load(address).expect("a word"),
                2,
                "{name}, comes: {comes}"
            );
        }
    }
}

/// A host that began anew does not know what the one before it did: the user that asked is told so.
#[test]
fn a_host_that_begins_anew_does_nothing_a_second_time() {
    for (name, change) in CHANGES {
        let pods = Pods::new(4);
        let (address, east) = (word(&pods), pods.users[0].clone());
        let (restart, next) = (pods.restarting(0), Arc::new(Mutex::new(None)));
        let kept = Arc::clone(&next);
        pods.fabric.answer_is_lost_after(move || {
            *kept.lock().expect("whole") = Some(restart());
            assert_eq!(east.compare_and_swap(address, 1, 2).expect("a word"), 1, "it was done");
        });
        let changed = change(&pods.users[1], address);
        assert!(matches!(changed, Err(Error::Lost(_))), "{name}: {changed:?}");
        assert_eq!(pods.users[0].load(address).expect("a word"), 2, "{name}");
        // What it did not ask the former one for it asks this one for.
        assert_eq!(pods.users[1].fetch_add(address, 1).expect("a word"), 2);
    }
}

/// What was given up as late came after what its sender did next, and undid that.
#[test]
fn what_is_late_does_not_undo_what_comes_after_it() {
    for (name, change) in CHANGES {
        let pods = Pods::new(4);
        let address = word(&pods);
        pods.fabric.next_is(Fate::IsLate);
        let changed = change(&pods.users[1], address);
        assert!(matches!(changed, Err(Error::Timeout(_))), "{name}: {changed:?}");
        pods.users[1].store(address, 0).expect("stored");
        pods.fabric.let_through();
        assert_eq!(pods.users[0].load(address).expect("a word"), 0, "{name}");
    }
}

/// What was given up as late was done when its user had told others that it was not.
#[test]
fn what_is_late_is_not_done_after_it_was_given_up() {
    for (name, change) in CHANGES {
        let pods = Pods::new(4);
        let address = word(&pods);
        pods.fabric.next_is(Fate::IsLate);
        let changed = change(&pods.users[1], address);
        assert!(matches!(changed, Err(Error::Timeout(_))), "{name}: {changed:?}");
        pods.fabric.let_through();
        assert_eq!(pods.users[0].load(address).expect("a word"), 0, "{name}");
    }
}

#[test]
fn a_free_whose_answer_is_lost_has_freed() {
    for fate in [Fate::IsLost, Fate::AnswerIsLost] {
        let pods = Pods::new(4);
        let address = word(&pods);
        pods.fabric.next_is(fate);
        pods.users[1].free(address).expect("freed");
        assert!(matches!(pods.users[0].load(address), Err(Error::Invalid(_))));
    }
}

/// Part of a long write that was done was done again when the rest had to follow its extent elsewhere: over what
/// another had written in between.
#[test]
fn a_long_write_whose_extent_moves_is_done_once() {
    let pods = Pods::new(4);
    let (address, east) = (word(&pods), pods.users[0].clone());
    let (host, moved) = (Arc::clone(&pods.hosts[0]), Arc::new(AtomicU32::new(0)));
    let told = Arc::clone(&moved);
    // All of its pieces are one doorbell: the first is done, the others are asked for again, elsewhere.
    pods.fabric.is_split_by(move || {
        assert_eq!(east.compare_and_swap(address, 1, 2).expect("a word"), 1, "it was done");
        relocate(&host, address, 2).expect("moved");
        told.store(1, Ordering::Relaxed);
    });
    let mut bytes = vec![3; 400_000];
    bytes[..8].copy_from_slice(&1u64.to_le_bytes());
    pods.users[1].write(address, &bytes).expect("written");
    assert_eq!(moved.load(Ordering::Relaxed), 1);
    bytes[..8].copy_from_slice(&2u64.to_le_bytes());
    assert!(bytes_of(&pods.users[0], address, 400_000) == bytes);
}

/// What it costs: nothing. Numbers have place in the head of a request, which has 8 bytes; an access has 32.
#[test]
fn numbers_take_no_bytes() {
    let pods = Pods::new(4);
    let address = word(&pods);
    let bytes = |f: &dyn Fn(&Space)| pods.fabric.bytes(|| f(&pods.users[1])).0;
    assert_eq!(bytes(&|west| _ = west.load(address).expect("a word")), 40);
    assert_eq!(bytes(&|west| west.store(address, 1).expect("stored")), 40);
    assert_eq!(bytes(&|west| west.write(address, &[1; 64]).expect("written")), 104);
}

/// Additions and swaps of both pods while messages are lost, answers too, and extents move: each that was answered is
/// done once, and none of the others twice.
#[test]
fn every_addition_is_made_once() {
    let seed = seed();
    let (pods, mut dice) = (Pods::new(6), Random(seed));
    let sessions = [pods.users[0].session(), pods.users[1].session()];
    let words: Vec<_> = (0..4)
        .map(|n| sessions[n % 2].alloc(64 << (3 * n)).expect("room"))
        .collect();
    let (mut answered, mut given_up) = (0, 0);
    for _ in 0..4000 {
        let fates = [Fate::IsLost, Fate::AnswerIsLost, Fate::AnswerIsLost, Fate::IsLate];
        if dice.index(4) == 0 {
            pods.fabric.next_is(fates[dice.index(fates.len())]);
        }
        let (space, word) = (&pods.users[dice.index(2)], words[dice.index(4)]);
        match dice.index(16) {
            0 => {
                pods.fabric.next_is(Fate::Arrives);
                pods.relocate(word, 1 + dice.index(2) as u8).expect("moved");
            }
            1 => pods.fabric.let_through(),
            n => match add(space, word, n % 2 == 0) {
                Ok(()) => answered += 1,
                // Lost: it was the hello of the first connection, so nothing was asked.
                Err(Error::Timeout(_) | Error::Lost(_)) => given_up += 1,
                Err(error) => panic!("{error}"),
            },
        }
    }
    pods.fabric.next_is(Fate::Arrives);
    pods.fabric.let_through();
    let sum: u64 = words
        .iter()
        .map(|word| pods.users[0].load(*word).expect("a word"))
        .sum();
    // The hosts are there, so what was given up is not done.
    assert_eq!(sum, answered, "{given_up} were given up");
    assert!(answered > 1000);
}

fn add(space: &Space, word: GlobalAddress, by_swap: bool) -> Result<()> {
    if !by_swap {
        return space.fetch_add(word, 1).map(drop);
    }
    // The answer to a load is lost too, sometimes; a load changes nothing.
    let mut seen = space.load(word).or_else(|_| space.load(word))?;
    loop {
        match space.compare_and_swap(word, seen, seen + 1)? {
            found if found == seen => return Ok(()),
            found => seen = found,
        }
    }
}
