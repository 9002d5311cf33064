//! Runs move extent by extent, and are used, locked and freed wherever these lie.

use super::super::super::{GlobalAddress, Lifetime, LocalKeeper, Mode, Part, PartOptions, Placement, audit_placements};
use super::super::HostOptions;
use super::{EXTENT, Pods, SPACE, eventually, lively, part, read};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::RegionOptions;
use std::collections::BTreeMap;
use std::sync::Arc;

fn placements(pods: &Pods) -> BTreeMap<u8, Placement> {
    let of = |n: usize| (n as u8 + 1, pods.hosts[n].keeper().placement());
    (0..pods.hosts.len()).map(of).collect()
}

fn check(pods: &Pods) {
    pods.audit();
    assert_eq!(audit_placements(&placements(pods)), Vec::<String>::new());
}

fn pattern(len: u64, salt: u64) -> Vec<u8> {
    (0..len).map(|n| ((n * 7 + salt) >> 3) as u8).collect()
}

fn extents_of(run: GlobalAddress, count: u64) -> Vec<GlobalAddress> {
    (0..count).map(|n| run + n * EXTENT).collect()
}

/// A run stayed where it was allocated, however hot it was elsewhere.
#[test]
fn a_run_is_right_wherever_its_extents_go() {
    let pods = Pods::still(8);
    let session = pods.users[0].session();
    let run = session.alloc(2 * EXTENT + 100).expect("room");
    let mut bytes = pattern(3 * EXTENT, 0);
    pods.users[0].write(run, &bytes).expect("written");
    for (salt, (piece, to)) in (1..).zip([(1, 2), (0, 2), (1, 1), (2, 2), (0, 1), (2, 1)]) {
        pods.relocate(run + piece * EXTENT, to).expect("moved");
        for user in &pods.users {
            assert!(
                read(user, run, bytes.len()).expect("read") == bytes,
                "piece {piece} in part {to}"
            );
            assert_eq!(user.size_of(run + 2 * EXTENT + 5).expect("a size"), 3 * EXTENT);
            let beyond = read(user, run + EXTENT, 2 * EXTENT as usize + 1);
            assert!(matches!(beyond, Err(Error::OutOfBounds(_))), "{beyond:?}");
            let after = user.write(run + (3 * EXTENT - 8), &[1; 9]);
            assert!(matches!(after, Err(Error::OutOfBounds(_))), "{after:?}");
            let inside = user.free(run + EXTENT);
            assert!(matches!(inside, Err(Error::Invalid(_))), "{inside:?}");
        }
        // From the middle of the first extent to the middle of the last.
        let text = pattern(2 * EXTENT, salt);
        let at = EXTENT as usize / 2;
        pods.users[salt as usize % 2]
            .write(run + at as u64, &text)
            .expect("written");
        bytes[at..at + text.len()].copy_from_slice(&text);
        let word = 2 * EXTENT as usize - 8;
        let added = pods.users[1].fetch_add(run + word as u64, 1).expect("a word");
        bytes[word..word + 8].copy_from_slice(&(added + 1).to_le_bytes());
        check(&pods);
    }
}

#[test]
fn a_run_is_freed_wherever_its_extents_lie() {
    let mut pods = Pods::still(9);
    for freeing in 0..2 {
        let session = pods.users[0].session();
        let run = session.alloc(3 * EXTENT).expect("room");
        pods.users[1].write(run, &pattern(3 * EXTENT, 3)).expect("written");
        [0, 2]
            .iter()
            .for_each(|n| pods.relocate(run + n * EXTENT, 2).expect("moved"));
        pods.users[freeing].free(run).expect("freed");
        for user in &pods.users {
            for extent in extents_of(run, 3) {
                assert!(
                    matches!(user.load(extent), Err(Error::Invalid(_))),
                    "{extent} was freed"
                );
            }
            assert!(matches!(user.free(run), Err(Error::Invalid(_))), "it was freed");
        }
        for n in [0, 2] {
            let ended = pods.hosts[0].inner.requested(run + n * EXTENT, None);
            ended.expect("it is empty, and ends");
        }
        check(&pods);
        let stats = pods.users[0].stats();
        assert_eq!(
            (stats.parts[0].runs, stats.parts[0].away, stats.parts[0].free),
            (0, 0, 9)
        );
        drop(session);
        if freeing == 0 {
            pods.restart();
        }
    }
    // All of it can be had again, and is zero.
    let again = pods.users[1].session().alloc_at(1, 8 * EXTENT).expect("room");
    assert!(
        read(&pods.users[0], again, 8 * EXTENT as usize)
            .expect("read")
            .iter()
            .all(|byte| *byte == 0)
    );
    check(&pods);
}

/// A process is killed after it has freed some of the pieces: what is left is freed by the next that frees the run.
#[test]
fn a_run_that_was_freed_in_part_is_freed_again() {
    let pods = Pods::still(8);
    let session = pods.users[0].session();
    let run = session.alloc(3 * EXTENT).expect("room");
    pods.relocate(run + EXTENT, 2).expect("moved");
    let mut free = crate::act::Act::FreePiece;
    pods.users[1].act(run + 2 * EXTENT, &mut free).expect("freed");
    assert!(read(&pods.users[0], run, 2 * EXTENT as usize).is_ok());
    assert!(read(&pods.users[0], run, 3 * EXTENT as usize).is_err());
    pods.users[0].free(run).expect("freed");
    assert!(pods.users[0].load(run).is_err() && pods.users[1].load(run + EXTENT).is_err());
    pods.hosts[0].inner.requested(run + EXTENT, None).expect("it is empty");
    check(&pods);
}

/// A keeper that is killed while it hands a run out leaves its last pieces, and no first one.
#[test]
fn a_run_that_was_never_handed_out_is_free() {
    let part = part(1, 6);
    let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    let former = part.state(1).load(Ordering::Acquire);
    part.lay_pieces(1, 3, 1);
    part.state(1).store(former, Ordering::Release);
    drop(keeper);
    let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    assert_eq!(
        crate::keeper::Keeper::audit(&keeper).expect("an audit"),
        Vec::<String>::new()
    );
    assert_eq!(crate::stats::of(&part).free, 6);
}

/// A slot that had only lent its memory was taken for one that was never used, and a run in it for zero: it began with
/// what another extent had left there.
#[test]
fn memory_that_was_lent_is_not_new() {
    let pods = Pods::still(6);
    let session = pods.users[0].session();
    let object = session.alloc(EXTENT / 2).expect("room");
    pods.users[0].write(object, &pattern(EXTENT / 2, 5)).expect("written");
    [2, 1]
        .iter()
        .for_each(|to| pods.relocate(object.extent(), *to).expect("moved"));
    let run = session.alloc_at(2, 6 * EXTENT).expect("all of it is free");
    let bytes = read(&pods.users[1], run, 6 * EXTENT as usize).expect("read");
    assert!(bytes.iter().all(|byte| *byte == 0));
    check(&pods);
}

/// A run that is not zero yet stays where its session fills it.
#[test]
fn a_run_that_is_being_handed_out_stays() {
    let pods = Pods::still(6);
    let keeper = crate::keeper::Keeper::begin(&**pods.hosts[0].keeper()).expect("a session");
    let taken = crate::keeper::Keeper::take_run(&**pods.hosts[0].keeper(), keeper, 2 * EXTENT, Lifetime::Space);
    let run = taken.expect("room").address;
    assert!(
        matches!(pods.relocate(run, 2), Err(Error::Busy(_))),
        "its session fills it"
    );
    pods.parts[0].set_ready(run.slot(), 2);
    pods.relocate(run, 2).expect("moved");
    check(&pods);
}

/// What is written under a lock across two extents that lie apart is all there, and read as it was written.
#[test]
fn locked_accesses_go_across_extents() -> Result<()> {
    let pods = Pods::still(8);
    let [east, west] = [0, 1].map(|n| pods.users[n].session());
    let (lock, run) = (east.new_lock()?, east.alloc(2 * EXTENT)?);
    pods.relocate(run + EXTENT, 2)?;
    for (n, session) in [&east, &west, &east].into_iter().enumerate() {
        let text = [n as u8 + 1; 200];
        let guard = session.lock(lock, Mode::Write)?;
        guard.write(run + 64, &text)?;
        guard.write(run + (EXTENT - 90), &text)?;
        guard.write(run + (EXTENT + 300), &text)?;
        guard.unlock()?;
        for session in [&east, &west] {
            let guard = session.lock(lock, Mode::Read)?;
            for at in [64, EXTENT - 90, EXTENT + 300] {
                let mut back = [0; 200];
                guard.read(run + at, &mut back)?;
                assert_eq!(back, text, "at {at}");
            }
            guard.unlock()?;
        }
    }
    check(&pods);
    Ok(())
}

/// No write is lost while the extents that it goes across move to and fro.
#[test]
fn nothing_is_lost_while_extents_of_runs_move() {
    let pods = Pods::still(10);
    let session = pods.users[0].session();
    let runs: Vec<_> = (0..2).map(|_| session.alloc(2 * EXTENT).expect("room")).collect();
    let done = Arc::new(AtomicBool::new(false));
    let worker = |n: usize| {
        let (space, run, done) = (pods.users[n].clone(), runs[n], Arc::clone(&done));
        rt::spawn("worker", move || {
            let mut added = 0u64;
            while !done.load(Ordering::Acquire) {
                let text = [added as u8; 4000];
                space.write(run + (EXTENT - 2000), &text).expect("written");
                space
                    .fetch_add(run + (added % 2) * EXTENT + (added % 2) * 4000, 1)
                    .expect("added");
                let back = read(&space, run + (EXTENT - 2000), 4000).expect("read");
                assert!(back == text, "worker {n}: what was written last is not there");
                added += 1;
            }
            added
        })
    };
    let workers: Vec<_> = (0..2).map(worker).collect();
    let mut moved = 0;
    for n in 0..40u64 {
        let extent = runs[n as usize % 2] + (n / 2 % 2) * EXTENT;
        moved += u32::from(pods.relocate(extent, (1 + (n / 4 + 1) % 2) as u8).is_ok());
    }
    done.store(true, Ordering::Release);
    let added: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
    let words = runs.iter().flat_map(|run| [*run, *run + EXTENT + 4000]);
    let found: u64 = words.map(|address| pods.users[1].load(address).expect("a word")).sum();
    assert_eq!(found, added, "{moved} moves");
    assert!(moved > 0);
    check(&pods);
}

/// The extent of a run that is hot elsewhere goes there; the others stay.
#[test]
fn what_is_hot_of_a_run_goes_where_it_is_used() {
    let pods = Pods::new(8, lively());
    let session = pods.users[0].session();
    let run = session.alloc(3 * EXTENT).expect("room");
    let hot = run + EXTENT;
    eventually(|| {
        pods.users[1].fetch_add(hot, 1).expect("added");
        placements(&pods)[&1].away.contains_key(&hot)
    });
    assert_eq!(placements(&pods)[&1].away.len(), 1);
}

/// Memory is full of a run and what else there is; extents of it that are cold go to the file for what is hot there.
#[test]
fn cold_extents_of_a_run_go_to_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = PartOptions {
        space: SPACE,
        part: 2,
        tenant: 0,
        bytes: 13 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    let mut pods = Pods::new(
        9,
        HostOptions {
            every: Nanos::ZERO,
            ..lively()
        },
    );
    pods.users.clear();
    pods.hosts.clear();
    pods.nodes = Arc::default();
    pods.options = lively();
    pods.parts[1] = Arc::new(Part::create(&dir.path().join("part-2"), &options).expect("a file"));
    pods.start();
    let (east, session) = (&pods.users[0], pods.users[0].session());
    let run = session.alloc_at(1, 8 * EXTENT).expect("room");
    let bytes = pattern(8 * EXTENT, 9);
    east.write(run, &bytes).expect("written");
    let hot = session.alloc(64).expect("room in the file");
    assert_eq!(hot.part(), 2, "memory is full");
    eventually(|| {
        east.fetch_add(hot, 1).expect("added");
        let placed = placements(&pods);
        placed[&2].away.contains_key(&hot.extent()) && !placed[&1].away.is_empty()
    });
    assert!(
        read(east, run, bytes.len()).expect("read") == bytes,
        "memory and file have it together"
    );
}
