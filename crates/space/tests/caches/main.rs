//! What hangs on locks, pages that are cached and writes that are collected: trips, failures, answers that are lost or
//! come late; [against a model](model); with [processes](killed) that are killed. And that accesses which are sent
//! twice are done [once](once).

mod killed;
mod lost;
mod model;
mod once;
mod pods;
mod settled;

use cenote_base::random::Random;
use cenote_base::rt;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Mode, Session, Timeout};
use pods::{Fate, Pods, at, bytes_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A seed that is printed: `CENOTE_SEED` runs it again.
fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}

/// A lock and an object of so many bytes, both in the east, and sessions in both pods that have begun.
fn in_the_east(pods: &Pods, len: u64) -> (Session, Session, GlobalAddress, GlobalAddress) {
    let (east, west) = (pods.users[0].session(), pods.users[1].session());
    let (lock, object) = (east.new_lock().expect("room"), east.alloc(len).expect("room"));
    for session in [&east, &west] {
        session.lock(lock, Mode::Read).expect("free").unlock().expect("held");
    }
    (east, west, lock, object)
}

#[test]
fn what_was_read_under_a_lock_is_not_fetched_again() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 10_000);
    let fabric = &pods.fabric;
    east.write(object, &[7; 10_000]).expect("written");
    let mut bytes = [0; 64];
    let mut hold = |wanted: u64, at_from: usize, is: u8| {
        let (taking, guard) = fabric.messages(|| west.lock(lock, Mode::Read).expect("free"));
        let (reading, result) = fabric.messages(|| guard.read(at(object, at_from), &mut bytes));
        result.expect("read");
        let (leaving, result) = fabric.messages(|| guard.unlock());
        result.expect("held");
        assert_eq!((taking, reading, leaving), (1, wanted, 1), "from {at_from}");
        assert_eq!(bytes, [is; 64]);
    };
    hold(1, 100, 7);
    hold(0, 100, 7);
    hold(0, 0, 7);
    hold(0, 4000, 7);
    // The next page with it.
    hold(1, 4090, 7);
    hold(0, 4090, 7);
    hold(1, 9936, 7);
    hold(0, 9900, 7);
    let guard = east.lock(lock, Mode::Write).expect("free");
    guard.write(at(object, 100), &[8; 64]).expect("written");
    guard.unlock().expect("held");
    hold(1, 100, 8);
    hold(0, 100, 8);
    hold(1, 9900, 7);
    // A session that takes it to write and changes nothing is a writer.
    drop(east.lock(lock, Mode::Write).expect("free"));
    hold(1, 100, 8);
    let stats = pods.users[1].stats().cache;
    assert_eq!((stats.hits, stats.misses), (6, 6));
    assert!(
        pods.users[0].stats().cache.misses == 0,
        "what is near is read where it is"
    );
}

#[test]
fn what_is_written_under_a_lock_is_one_message() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 10_000);
    let fabric = &pods.fabric;
    let (taking, guard) = fabric.messages(|| west.lock(lock, Mode::Write).expect("free"));
    let (writing, ()) = fabric.messages(|| {
        for n in 0..100u8 {
            guard.write(at(object, 64 * usize::from(n)), &[n; 64]).expect("written");
        }
    });
    let mut bytes = [0; 64];
    let (reading, ()) = fabric.messages(|| guard.read(at(object, 640), &mut bytes).expect("read"));
    assert_eq!(bytes, [10; 64]);
    assert_eq!(bytes_of(&east, object, 6400), [0; 6400], "nothing is there yet");
    let (leaving, result) = fabric.messages(|| guard.unlock());
    result.expect("held");
    assert_eq!((taking, writing, reading, leaving), (1, 0, 0, 1));
    for n in 0..100u8 {
        assert_eq!(bytes_of(&east, at(object, 64 * usize::from(n)), 64), [n; 64]);
    }
    // More than a batch, which flies by itself.
    let guard = west.lock(lock, Mode::Write).expect("free");
    let (writing, ()) = fabric.messages(|| {
        for n in 0..600usize {
            guard.write(at(object, 16 * n), &[n as u8; 16]).expect("written");
        }
    });
    assert_eq!(writing, 2);
    assert_eq!(bytes_of(&east, object, 16), [0; 16], "the first batch is there");
    assert_eq!(bytes_of(&east, at(object, 16 * 599), 16), [0; 16], "the last is not");
    let (syncing, result) = fabric.messages(|| guard.sync());
    result.expect("written");
    assert_eq!(syncing, 1);
    assert_eq!(bytes_of(&east, at(object, 16 * 599), 16), [87; 16]);
    // Large ones are written at once, after what was before.
    guard.write(object, &[1; 8]).expect("written");
    let (writing, result) = fabric.messages(|| guard.write(at(object, 8), &[2; 257]));
    result.expect("written");
    assert_eq!(writing, 2);
    assert_eq!(bytes_of(&east, object, 9), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
    guard.unlock().expect("held");
    let stats = pods.users[1].stats().cache;
    assert_eq!((stats.buffered, stats.flushes), (701, 4));
}

/// A lock that is made anew where one was begins with another version: or what was cached under the first would be
/// believed under it.
#[test]
fn what_was_cached_under_a_former_lock_is_not_read_under_the_next() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 64);
    let read = || {
        let (guard, mut bytes) = (west.lock(lock, Mode::Read).expect("free"), [0; 8]);
        guard.read(object, &mut bytes).expect("read");
        guard.unlock().expect("held");
        bytes
    };
    assert_eq!(read(), [0; 8]);
    east.write(object, &[1; 8]).expect("written");
    assert_eq!(read(), [0; 8], "no session has written under the lock");
    east.make_lock(lock).expect("made anew");
    assert_eq!(read(), [1; 8]);
}

/// The lock lies where it is taken, and what it protects elsewhere: then what is cached costs no trip at all.
#[test]
fn under_a_near_lock_what_is_cached_is_near() {
    let pods = Pods::new(4);
    let (east, west) = (pods.users[0].session(), pods.users[1].session());
    let (lock, object) = (west.new_lock().expect("room"), east.alloc(64).expect("room"));
    let read = || {
        let (guard, mut bytes) = (west.lock(lock, Mode::Read).expect("free"), [0; 64]);
        guard.read(object, &mut bytes).expect("read");
        guard.unlock().expect("held");
        bytes
    };
    assert_eq!(read(), [0; 64]);
    assert_eq!(pods.fabric.messages(read), (0, [0; 64]));
    let guard = west.lock(lock, Mode::Write).expect("free");
    guard.write(object, &[5; 64]).expect("written");
    let (messages, result) = pods.fabric.messages(|| guard.unlock());
    result.expect("held");
    assert_eq!((messages, bytes_of(&east, object, 64)), (1, vec![5; 64]));
    assert_eq!(pods.fabric.messages(read), (1, [5; 64]));
}

#[test]
fn pages_take_so_much_and_the_least_recently_used_go() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 40 * 4096);
    let guard = west.lock(lock, Mode::Read).expect("free");
    let read = |page: usize| {
        let (messages, result) = pods
            .fabric
            .messages(|| guard.read(at(object, 4096 * page), &mut [0; 8]));
        result.expect("read");
        messages
    };
    west.limit_cache(10 * 4300);
    for page in 0..40 {
        assert_eq!((read(page), read(0)), (1, 0), "page {page}");
    }
    let stats = west.stats().cache;
    assert!(stats.pages == 10 && stats.bytes <= 43_000, "{stats:?}");
    assert_eq!((read(39), read(0), read(31), read(30), read(31)), (0, 0, 0, 1, 0));
    west.limit_cache(0);
    assert_eq!((west.stats().cache.pages, west.stats().cache.bytes), (0, 0));
    assert_eq!((read(0), read(0)), (1, 1));
    drop((guard, east));
}

#[test]
fn what_is_not_held_is_not_read_or_written() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 64);
    let refused = |result: Result<()>| assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    refused(west.read_locked(lock, object, &mut [0; 8]));
    refused(west.write_locked(lock, object, &[0; 8]));
    refused(west.sync_locked(lock));
    let guard = west.lock(lock, Mode::Read).expect("free");
    refused(guard.write(object, &[0; 8]));
    refused(guard.sync());
    refused(guard.read(GlobalAddress::NULL, &mut [0; 8]));
    assert!(matches!(
        guard.read(at(object, 60), &mut [0; 8]),
        Err(Error::OutOfBounds(_))
    ));
    guard.read(object, &mut []).expect("nothing");
    guard.unlock().expect("held");
    refused(west.read_locked(lock, object, &mut [0; 8]));
    let guard = west.lock(lock, Mode::Write).expect("free");
    refused(guard.write(GlobalAddress::NULL, &[0; 8]));
    guard.read(object, &mut [0; 8]).expect("read");
    guard.unlock().expect("held");
    drop(east);
}

/// What is wrong with a write that was collected is said later, and the lock is broken: what came after it is not
/// there.
#[test]
fn a_write_that_fails_leaves_the_lock_broken() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 64);
    let freed = east.alloc(64).expect("room");
    east.free(freed).expect("freed");
    for by_sync in [true, false] {
        east.write(object, &[0; 16]).expect("written");
        let guard = west.lock(lock, Mode::Write).expect("free");
        assert!(!guard.owner_died());
        for (address, byte) in [(object, 1), (freed, 2), (at(object, 8), 3)] {
            guard.write(address, &[byte; 8]).expect("collected");
        }
        if by_sync {
            assert!(matches!(guard.sync(), Err(Error::Invalid(_))));
            assert!(matches!(guard.write(object, &[4; 8]), Err(Error::Invalid(_))));
            assert!(matches!(guard.read(object, &mut [0; 8]), Err(Error::Invalid(_))));
        }
        assert!(matches!(guard.unlock(), Err(Error::Invalid(_))));
        assert_eq!(bytes_of(&east, object, 16), [[1; 8], [0; 8]].concat());
        let guard = east.lock(lock, Mode::Read).expect("broken");
        assert!(guard.owner_died(), "the next holder is told");
        guard.unlock().expect("held");
    }
}

#[test]
fn a_session_that_lost_the_lock_writes_no_more() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 64);
    let late = west.lock(lock, Mode::Write).expect("free");
    late.write(object, &[1; 8]).expect("collected");
    pods.kill(&west);
    let guard = east.lock(lock, Mode::Write).expect("taken over");
    assert!(guard.owner_died());
    guard.write(object, &[2; 8]).expect("written");
    assert!(matches!(late.sync(), Err(Error::Revoked(_))));
    guard.unlock().expect("held");
    assert!(matches!(late.unlock(), Err(Error::Revoked(_))));
    assert_eq!(bytes_of(&east, object, 8), [2; 8]);
}

/// Requests and answers are lost at every message of a hold; what was told to have been done was done.
#[test]
fn lost_messages_cost_trips_or_are_told() {
    for fate in [Fate::IsLost, Fate::AnswerIsLost] {
        let pods = Pods::new(4);
        let (east, west, lock, object) = in_the_east(&pods, 10_000);
        let next_is = || pods.fabric.next_is(fate);
        // Taking it: asked again, and done once.
        for mode in [Mode::Read, Mode::Write] {
            next_is();
            let guard = west.try_lock(lock, mode).expect("a lock").expect("it is free");
            assert!(!guard.owner_died());
            guard.unlock().expect("held");
            let guard = east.try_lock(lock, Mode::Write).expect("a lock").expect("it is free");
            guard.unlock().expect("held");
        }
        // Leaving it: tried again.
        let guard = west.lock(lock, Mode::Read).expect("free");
        next_is();
        guard.read(object, &mut [0; 8]).expect("asked again");
        next_is();
        guard.unlock().expect("tried again");
        for count in [0, 1, 300usize] {
            let guard = west.lock(lock, Mode::Write).expect("free");
            assert!(!guard.owner_died());
            for n in 0..count {
                if n == 255 {
                    next_is();
                }
                guard.write(at(object, 16 * n), &[count as u8; 16]).expect("collected");
            }
            next_is();
            guard.sync().expect("tried again");
            guard.write(object, &[9; 8]).expect("collected");
            next_is();
            guard.unlock().expect("tried again");
            let guard = east.try_lock(lock, Mode::Write).expect("a lock").expect("it is free");
            assert!(!guard.owner_died(), "{fate:?}: nothing is broken");
            assert_eq!(bytes_of(&east, object, 8), [9; 8]);
            if count > 1 {
                assert_eq!(
                    bytes_of(&east, at(object, 16), 16 * (count - 1)),
                    vec![44; 16 * (count - 1)]
                );
            }
            guard.unlock().expect("held");
        }
    }
}

/// A thread that frees a slot, gets no answer and tries again does not free the slot that another thread of the session
/// has taken in between.
#[test]
fn a_slot_that_is_being_left_is_not_taken() {
    let pods = Pods::new(4);
    let (east, west, lock, _) = in_the_east(&pods, 64);
    let west = Arc::new(west);
    let (other, got) = (Arc::clone(&west), Arc::new(AtomicBool::new(false)));
    let told = Arc::clone(&got);
    west.acquire(lock, Mode::Read, Timeout::Endless).expect("free");
    pods.fabric.answer_is_lost_after(move || {
        let taken = other.acquire(lock, Mode::Read, Timeout::None);
        told.store(taken.is_ok(), Ordering::Relaxed);
    });
    west.unlock(lock, Mode::Read).expect("tried again");
    let writer = east.try_lock(lock, Mode::Write).expect("a lock");
    let is_read = got.load(Ordering::Relaxed);
    assert_eq!(writer.is_some(), !is_read, "one writes while another reads");
}

/// What is carried out long after its sender gave it up finds that it is too late, be the next writer another session
/// or the same.
#[test]
fn late_messages_change_nothing() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 64);
    for next in [&east, &west] {
        for writes in [true, false] {
            let guard = west.lock(lock, Mode::Write).expect("free");
            assert!(!guard.owner_died());
            if writes {
                guard.write(object, &[1; 8]).expect("collected");
            }
            pods.fabric.next_is(Fate::IsLate);
            assert!(matches!(guard.unlock(), Err(Error::Timeout(_))));
            let guard = next.lock(lock, Mode::Write).expect("left broken");
            assert!(guard.owner_died());
            guard.write(object, &[2; 8]).expect("written");
            guard.sync().expect("written");
            pods.fabric.let_through();
            let other = east.acquire(lock, Mode::Read, Timeout::None);
            assert!(matches!(other, Err(Error::Timeout(_))), "it is held: {other:?}");
            assert_eq!(bytes_of(&east, object, 8), [2; 8]);
            guard.unlock().expect("held");
            pods.fabric.let_through();
        }
    }
}

#[test]
fn a_dead_writer_leaves_a_beginning_of_what_it_wrote() {
    let pods = Pods::new(4);
    let (east, west, lock, object) = in_the_east(&pods, 10_000);
    let guard = west.lock(lock, Mode::Write).expect("free");
    for n in 0..400usize {
        guard.write(at(object, 16 * n), &[1; 16]).expect("collected");
    }
    pods.kill(&west);
    let next = east.lock(lock, Mode::Write).expect("taken over");
    assert!(next.owner_died());
    let written: Vec<bool> = bytes_of(&east, object, 6400)
        .chunks(16)
        .map(|one| one[0] == 1)
        .collect();
    assert_eq!(written.iter().filter(|is| **is).count(), 256, "a batch");
    assert!(written.is_sorted_by(|one, next| one >= next));
    next.unlock().expect("held");
    assert!(guard.unlock().is_err());
}

/// Threads of both pods raise words one after the other under locks, while extents go to and fro: none sees others than
/// whole.
#[test]
fn threads_of_both_pods_see_what_locks_protect_whole() {
    let seed = seed();
    let pods = Pods::new(6);
    let owner = pods.users[0].session();
    let (lock, object) = (owner.new_lock().expect("room"), owner.alloc(512).expect("room"));
    let is_done = Arc::new(AtomicBool::new(false));
    let sessions: Vec<_> = pods.users.iter().map(|user| Arc::new(user.session())).collect();
    let visitor = |n: usize| {
        let (session, is_done) = (Arc::clone(&sessions[n % 2]), Arc::clone(&is_done));
        let (mut dice, mut raised) = (Random(seed.wrapping_add(n as u64)), 0u64);
        rt::spawn("visitor", move || {
            while !is_done.load(Ordering::Relaxed) || raised == 0 {
                let mode = if dice.index(4) == 0 { Mode::Write } else { Mode::Read };
                let guard = session.lock(lock, mode).expect("a lock");
                let mut bytes = [0; 512];
                guard.read(object, &mut bytes).expect("read");
                let word = |n: usize| u64::from_le_bytes(bytes[8 * n..][..8].try_into().expect("8 bytes"));
                assert!((0..64).all(|n| word(n) == word(0)), "{bytes:?}");
                if mode == Mode::Write {
                    for n in 0..64 {
                        guard
                            .write(at(object, 8 * n), &(word(0) + 1).to_le_bytes())
                            .expect("written");
                    }
                    raised += 1;
                }
                guard.unlock().expect("held");
            }
            raised
        })
    };
    let visitors: Vec<_> = (0..4).map(visitor).collect();
    for n in 0..20 {
        let _ = pods.relocate([lock, object][n % 2], 1 + (n / 2 % 2) as u8);
    }
    is_done.store(true, Ordering::Relaxed);
    let raised: u64 = visitors.into_iter().map(|v| v.join().expect("no panic")).sum();
    assert_eq!(bytes_of(&pods.users[1], object, 8), raised.to_le_bytes());
}
