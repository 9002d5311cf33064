//! Pages that a process keeps under a lock that it has lost.

use crate::pods::Pods;
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_space::Mode;

/// A process that was stopped beyond its lease read, under the lock that it had had, what it kept, without a word: for
/// as long as it asked for nothing else.
#[test]
fn pages_of_a_lock_that_is_lost_are_not_read_unasked() {
    let pods = Pods::new(4);
    let (east, west) = (pods.users[0].session(), pods.users[1].session());
    let (lock, object) = (east.new_lock().expect("room"), east.alloc(64).expect("room"));
    east.write(object, &[1; 64]).expect("written");
    // As of a lease that is over at once: each look is too old.
    pods.users[1].trust_locks_for(Nanos(1));
    let (held, mut bytes) = (west.lock(lock, Mode::Read).expect("free"), [0; 8]);
    held.read(object, &mut bytes).expect("fetched");
    let (trips, read) = pods.fabric.messages(|| held.read(object, &mut bytes));
    read.expect("held still");
    assert_eq!(
        (trips, bytes),
        (1, [1; 8]),
        "the lock is looked at, the page is not fetched"
    );

    pods.kill(&west);
    let taken = east.lock(lock, Mode::Write).expect("taken over");
    taken.write(object, &[2; 64]).expect("written");
    taken.unlock().expect("held");
    let read = held.read(object, &mut bytes);
    assert!(matches!(read, Err(Error::Revoked(_))), "{read:?}, {bytes:?}");
    let kept = pods.users[1].stats().cache.pages;
    assert_eq!(kept, 0, "no page of before is believed");
    // A look that is not too old costs nothing.
    pods.users[1].trust_locks_for(Nanos::from_secs(3600));
    let again = pods.users[1].session();
    let held = again.lock(lock, Mode::Read).expect("free");
    held.read(object, &mut bytes).expect("fetched");
    let (trips, read) = pods.fabric.messages(|| held.read(object, &mut bytes));
    read.expect("kept");
    assert_eq!((trips, bytes), (0, [2; 8]));
}
