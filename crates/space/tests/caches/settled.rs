//! A session that lives lets go of a lock only when nothing that it has given up can be done any more: where the lock lies
//! in one part and what it protects in another, no look at the lock stops what comes late.

use crate::pods::{Fate, Pods, bytes_of};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Keeper, Mode, Session, Timeout};

/// A lock in the east, and what it protects in the west.
fn lock_and_object(pods: &Pods) -> (GlobalAddress, GlobalAddress) {
    let lock = pods.users[0].session().new_lock().expect("room");
    let object = pods.users[1].session().alloc(64).expect("room");
    assert_ne!(lock.part(), object.part());
    pods.users[1].write(object, &[1; 64]).expect("written");
    // Its way is there before others cannot be made.
    pods.users[1].load(lock).expect("connected");
    (lock, object)
}

/// Takes the lock in the east, and writes: the write is given up, and the west cannot be reached.
fn give_up(pods: &Pods, session: &Session, (lock, object): (GlobalAddress, GlobalAddress), is_collected: bool) {
    let guard = session.lock(lock, Mode::Write).expect("free");
    pods.users[0].read(object, &mut [0; 64]).expect("connected");
    if is_collected {
        guard.write(object, &[6; 64]).expect("collected");
    }
    pods.fabric.next_is(Fate::IsLate);
    pods.fabric.set_cut(true);
    if !is_collected {
        let written = pods.users[0].write(object, &[6; 64]);
        assert!(matches!(written, Err(Error::Timeout(_))), "{written:?}");
    }
    let left = guard.unlock();
    assert!(matches!(left, Err(Error::Timeout(_) | Error::Lost(_))), "{left:?}");
}

/// Another session has the lock, and writes; what was given up comes after that.
fn write_after(pods: &Pods, (lock, object): (GlobalAddress, GlobalAddress)) {
    let session = pods.users[1].session();
    let guard = session.lock(lock, Mode::Write).expect("left");
    assert!(guard.owner_died());
    guard.write(object, &[7; 64]).expect("written");
    guard.unlock().expect("held");
    pods.fabric.let_through();
    assert_eq!(bytes_of(&pods.users[1], object, 64), [7; 64], "what was given up came");
}

/// The lock was left broken at once, another session took it and wrote, and the write that was given up landed over that.
#[test]
fn a_lock_is_left_when_what_was_given_up_cannot_come() {
    for is_collected in [true, false] {
        let pods = Pods::new(4);
        let places = lock_and_object(&pods);
        let session = pods.users[0].session();
        give_up(&pods, &session, places, is_collected);
        let other = pods.users[1].session();
        let taken = other.try_lock(places.0, Mode::Write).expect("asked");
        assert!(taken.is_none(), "what was given up may come");
        // Nor is it taken again by the one that has it, as it cannot know either.
        assert!(session.try_lock(places.0, Mode::Write).is_err());
        pods.fabric.set_cut(false);
        let another = session.new_lock().expect("room");
        session
            .lock(another, Mode::Write)
            .expect("free")
            .unlock()
            .expect("held");
        write_after(&pods, places);
    }
}

/// With its session a lock is another's: it ended, though a write of it could come.
#[test]
fn a_session_ends_when_what_was_given_up_cannot_come() {
    let pods = Pods::new(4);
    let places = lock_and_object(&pods);
    let session = pods.users[0].session();
    let id = session.begin_in(places.0.part()).expect("begun");
    give_up(&pods, &session, places, true);
    let ended = session.close();
    assert!(matches!(ended, Err(Error::Lost(_))), "{ended:?}");
    let keeper = pods.hosts[0].keeper();
    assert!(keeper.is_alive(id).expect("asked"), "what was given up may come");
    pods.fabric.set_cut(false);
    // As the process ends, and its memory nodes have confirmed that nothing of it can come.
    pods.users[0].read(places.1, &mut [0; 64]).expect("reached");
    keeper.end(id).expect("ended");
    write_after(&pods, places);
}

/// A session ended with a lock held, while what it had collected was on its way: the next holder wrote, and that came
/// after it.
#[test]
fn a_session_ends_when_what_is_on_its_way_has_landed() {
    let pods = Pods::new(4);
    let places = lock_and_object(&pods);
    let session = pods.users[0].session();
    let id = session.begin_in(places.0.part()).expect("begun");
    session.acquire(places.0, Mode::Write, Timeout::Endless).expect("free");
    pods.users[0].read(places.1, &mut [0; 64]).expect("connected");
    pods.fabric.next_is(Fate::IsLate);
    // So many that they are on their way.
    for _ in 0..256 {
        session.write_locked(places.0, places.1, &[6; 64]).expect("collected");
    }
    pods.fabric.set_cut(true);
    let ended = session.close();
    assert!(matches!(ended, Err(Error::Lost(_))), "{ended:?}");
    let keeper = pods.hosts[0].keeper();
    assert!(keeper.is_alive(id).expect("asked"), "what is on its way may come");
    pods.fabric.set_cut(false);
    // As the process ends, and its memory nodes have confirmed that nothing of it can come.
    pods.users[0].read(places.1, &mut [0; 64]).expect("reached");
    keeper.end(id).expect("ended");
    write_after(&pods, places);
}
