//! Databases on nodes that are copied to files, and the other way.

use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::PageIo;
use cenote_base::random::Random;
use cenote_base::rt::fs::with;
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Lsn, PageId, Result};
use cenote_testkit::faulty::MemFs;

use super::super::nodes_tests::{FakeNodes, Kept, Meanwhile, start as start_on};
use super::{Known, Toy, assert_known, start, work};
use crate::load::{LoadReport, load_within};
use crate::nodes::StorageNodes;
use crate::testing::region;
use crate::{Claim, restore};

fn on_nodes(kept: &Arc<Mutex<Kept>>) -> Arc<Toy> {
    Arc::new(Toy::of(start_on(kept, &region(), false).expect("opened").0))
}

/// While it is copied a page is changed, and nodes have that before the database knows.
#[test]
fn a_copy_of_what_is_on_nodes_has_all_that_was_acknowledged() {
    for seed in 0..8 {
        with(Arc::new(MemFs::new()), || {
            let (kept, mut known, mut rng) = (Arc::default(), Known::new(), Random(seed));
            let toy = on_nodes(&kept);
            (0..2).for_each(|_| work(&toy, &mut known, &mut rng));
            let late = PageId::new(1, 5);
            known.insert(late, 1);
            toy.set(late, 1);
            let (other, nodes) = (Arc::clone(&toy), Arc::clone(&kept));
            kept.lock().meanwhile.1 = Some(Box::new(move || {
                let end = other.change(late, 2);
                nodes.lock().unanswered = 1;
                other.storage.ensure_durable(end).expect_err("not answered");
                assert!(other.storage.log().durable() < nodes.lock().at_origin().end);
            }));
            let report = toy.storage.backup(Path::new("/backup")).expect("copied");
            assert_eq!(report.lsn, kept.lock().at_origin().end, "seed {seed}");
            let restored = restore(Path::new("/backup"), Path::new("/restored")).expect("restored");
            assert_eq!((restored.lsn, restored.pages), (report.lsn, report.pages));
            let (copy, _) = start(Path::new("/restored"), &region());
            known.insert(late, 2);
            assert_known(&copy, &known, &format!("seed {seed}"));
        });
    }
}

/// A space is dropped while it is copied, or nodes have dropped it and the answer is on its way: redo of before is for
/// pages that the copy lacks.
#[test]
fn a_copy_has_nothing_of_a_space_that_is_dropped_meanwhile() {
    for is_answered in [true, false] {
        with(Arc::new(MemFs::new()), || {
            let kept: Arc<Mutex<Kept>> = Arc::default();
            let toy = on_nodes(&kept);
            for space in [1, 2] {
                toy.storage.pages().create_space(space).expect("made");
                (0..70).for_each(|n| toy.set(PageId::new(space, n), n.into()));
            }
            let (other, nodes) = (Arc::clone(&toy), Arc::clone(&kept));
            let drops = move || {
                other.set(PageId::new(1, 69), 7);
                nodes.lock().unanswered = u32::from(!is_answered);
                let dropped = other.storage.pages().drop_space(1);
                assert_eq!(dropped.is_ok(), is_answered, "{dropped:?}");
            };
            kept.lock().meanwhile = Meanwhile(1, Some(Box::new(drops)));
            let report = toy.storage.backup(Path::new("/backup")).expect("copied");
            assert_eq!((report.spaces, report.pages), (1, 70));
            restore(Path::new("/backup"), Path::new("/restored")).expect("restored");
            let (copy, _) = start(Path::new("/restored"), &region());
            assert_eq!(copy.storage.pages().spaces(), [2]);
            assert_eq!(copy.get(PageId::new(2, 69)), 69);
        });
    }
}

/// A database in `/data`, shut down.
fn in_files(seed: u64) -> Known {
    let (mut known, mut rng) = (Known::new(), Random(seed));
    let (toy, _) = start(Path::new("/data"), &region());
    (0..3).for_each(|_| work(&toy, &mut known, &mut rng));
    toy.checkpoint();
    toy.storage.control().update(|c| c.clean = true).expect("shut down");
    known
}

fn put_within(kept: &Arc<Mutex<Kept>>, patience: Nanos) -> Result<LoadReport> {
    let nodes: Arc<dyn StorageNodes> = FakeNodes::new(kept);
    let told = |done, all| assert!(done <= all);
    load_within((Path::new("/data"), None), &nodes, &Claim::machine(), &told, patience)
}

fn put(kept: &Arc<Mutex<Kept>>) -> Result<LoadReport> {
    put_within(kept, Nanos::ZERO)
}

#[test]
fn what_is_in_files_is_put_on_nodes() {
    for seed in 0..8 {
        with(Arc::new(MemFs::new()), || {
            let (known, kept) = (in_files(seed), Arc::default());
            let report = put(&kept).expect("put there");
            assert_eq!(report.pages, known.len() as u64, "seed {seed}");
            let toy = on_nodes(&kept);
            assert_known(&toy, &known, &format!("seed {seed}"));
            assert!(!toy.storage.control().get().is_filling);
            let (files, _) = start(Path::new("/data"), &region());
            assert_known(&files, &known, "the files are as they were");
            let controls = [&*toy, &files].map(|toy| toy.storage.control().get());
            assert_ne!(controls[0].database, controls[1].database);
            assert!(controls[0].origin >= files.storage.log().durable(), "positions rise");
            // It goes on there.
            let id = PageId::new(2, 7);
            toy.set(id, 77);
            drop(toy);
            assert_eq!(on_nodes(&kept).get(id), 77);
        });
    }
}

#[test]
fn what_was_put_there_in_part_is_no_database_and_is_put_there_again() {
    with(Arc::new(MemFs::new()), || {
        let known = in_files(3);
        let mut ends = 0;
        for heard in 0.. {
            let kept: Arc<Mutex<Kept>> = Arc::default();
            kept.lock().heard = Some(heard);
            if put(&kept).is_ok() {
                break;
            }
            kept.lock().heard = None;
            if kept.lock().at_origin().end > Lsn::ZERO {
                let epoch = kept.lock().epoch;
                let refused = start_on(&kept, &region(), false)
                    .map(drop)
                    .expect_err("not all is there");
                assert!(
                    matches!(&refused, Error::Invalid(why) if why.contains("being loaded")),
                    "{refused}"
                );
                assert_eq!(
                    kept.lock().epoch,
                    epoch,
                    "nothing is taken from the one that puts it there"
                );
            }
            put(&kept).expect("put there again");
            assert_known(&on_nodes(&kept), &known, &format!("after {heard} changes"));
            ends += 1;
        }
        assert!(ends >= 5, "a load is {ends} changes");
    });
}

#[test]
fn what_nodes_do_not_answer_or_have_no_room_for_is_tried_again() {
    with(Arc::new(MemFs::new()), || {
        let known = in_files(2);
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let will_be = |full, deaf| {
            let mut kept = kept.lock();
            (kept.full, kept.deaf) = (full, deaf);
        };
        will_be(2, 0);
        put(&kept).expect_err("it has no patience");
        will_be(2, 2);
        put_within(&kept, Nanos::from_secs(60)).expect("put there");
        let left = {
            let kept = kept.lock();
            (kept.full, kept.deaf)
        };
        assert_eq!(left, (0, 0));
        assert_known(&on_nodes(&kept), &known, "in the end");
    });
}

#[test]
fn databases_are_not_put_where_others_are_nor_before_they_are_shut_down() {
    with(Arc::new(MemFs::new()), || {
        let known = in_files(1);
        let kept: Arc<Mutex<Kept>> = Arc::default();
        put(&kept).expect("put there");
        let epoch = kept.lock().epoch;
        let refused = put(&kept).expect_err("there is one");
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("have a database")),
            "{refused}"
        );
        assert_eq!(kept.lock().epoch, epoch, "nothing is taken from a server");
        assert_known(&on_nodes(&kept), &known, "it is whole");
        drop(start(Path::new("/data"), &region()));
        let refused = put(&Arc::default()).expect_err("in use");
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("not shut down")),
            "{refused}"
        );
    });
}

/// Positions of the second database would be ahead of the log.
#[test]
fn nodes_that_were_filled_with_an_earlier_log_are_not_filled_on() {
    with(Arc::new(MemFs::new()), || {
        in_files(1);
        let kept: Arc<Mutex<Kept>> = Arc::default();
        kept.lock().heard = Some(2);
        put(&kept).expect_err("it ends early");
        kept.lock().heard = None;
        let (toy, _) = start(Path::new("/data"), &region());
        (0..200).for_each(|n| toy.set(PageId::new(1, 1), n));
        toy.checkpoint();
        toy.storage.control().update(|c| c.clean = true).expect("shut down");
        drop(toy);
        let refused = put(&kept).expect_err("its log is behind");
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("before it went on")),
            "{refused}"
        );
        // Another database.
        let (other, epoch) = (Arc::new(MemFs::new()), kept.lock().epoch);
        let refused = with(other, || {
            in_files(5);
            put(&kept).expect_err("another one")
        });
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("with another database")),
            "{refused}"
        );
        assert_eq!(kept.lock().epoch, epoch, "nothing is taken");
    });
}
