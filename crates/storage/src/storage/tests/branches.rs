//! Databases in files that begin as a snapshot of one on nodes.

use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageWrite, Sectors};
use cenote_base::random::Random;
use cenote_base::rt::fs::with;
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, PageId, Result};
use cenote_testkit::faulty::MemFs;

use super::super::nodes_tests::{FakeNodes, Kept, start as start_on};
use super::{Known, Toy, assert_known, start, work};
use crate::branch::{self, Held, Parent};
use crate::files::spaces_dir;
use crate::load::load_within;
use crate::nodes::StorageNodes;
use crate::testing::{place, region};
use crate::{Claim, DataDir, StorageOptions, restore};
use cenote_base::rt::fs;

const BRANCH: &str = "/branch";

/// A database on nodes, of which snapshot 1 is kept, and what that has.
fn parent(seed: u64) -> (Arc<Mutex<Kept>>, Toy, Known) {
    let (kept, mut known, mut rng) = (Arc::default(), Known::new(), Random(seed));
    let toy = Toy::of(start_on(&kept, &region(), false).expect("opened").0);
    (0..3).for_each(|_| work(&toy, &mut known, &mut rng));
    (kept, toy, known)
}

fn make(kept: &Arc<Mutex<Kept>>) -> Result<()> {
    let (end, control, spaces) = kept.lock().keep();
    let parent = Parent {
        branch: 99,
        database: 7,
        snapshot: 1,
        name: "monday".into(),
        is_own: true,
        end,
        nodes: vec!["a:1".into(), "b:2".into()],
        cluster: "shop".into(),
        secret_file: String::new(),
    };
    branch::make(Path::new(BRANCH), parent, &control, &spaces)
}

/// A start of the branch.
fn open(kept: &Arc<Mutex<Kept>>) -> Result<Toy> {
    let dir = DataDir::open(Path::new(BRANCH))?.with_parent(Some(FakeNodes::new(kept)));
    let region = region();
    let mut options = StorageOptions::new(place(&region));
    (options.segment_bytes, options.background) = (64 << 10, false);
    Ok(Toy::of(dir.storage(options)?.0))
}

/// As a checkpoint, of pages that are changed in their first sector alone.
fn write_what_changed(toy: &Toy) {
    let frames = toy.frames.lock().clone();
    toy.storage.ensure_durable(toy.storage.log().tail()).expect("durable");
    let write = |(id, bytes): (&PageId, &'_ Vec<u8>)| (*id, bytes.clone());
    let pages: Vec<(PageId, Vec<u8>)> = frames.iter().map(write).collect();
    let writes = pages.iter().map(|(id, bytes)| PageWrite {
        id: *id,
        bytes,
        changed: Sectors::of(0, 80),
    });
    toy.storage.write_changes(&writes.collect::<Vec<_>>()).expect("written");
}

#[test]
fn a_branch_goes_on_from_its_snapshot_through_crashes_and_its_parent_does_too() {
    for seed in 0..10 {
        let (mut files, mut rng) = (MemFs::new(), Random(seed + 100));
        let (kept, toy, mut of_parent) = with(Arc::new(MemFs::new()), || parent(seed));
        let mut known = of_parent.clone();
        with(Arc::new(files.clone()), || make(&kept).expect("made"));
        assert!(files.used() < 100 << 10, "nothing is copied: {}", files.used());
        for round in 0..4 {
            let hint = format!("seed {seed} round {round}");
            work(&toy, &mut of_parent, &mut rng);
            files = with(Arc::new(files.clone()), || {
                let branch = open(&kept).expect("opened");
                assert_known(&branch, &known, &hint);
                write_what_changed(&branch);
                work(&branch, &mut known, &mut rng);
                let report = branch.storage.check(&|_| false).expect("checked");
                assert_eq!(report.damage, Vec::<String>::new(), "{hint}");
                files.crash_clone_torn(rng.word())
            });
        }
        assert_known(&toy, &of_parent, &format!("seed {seed}: the parent"));
        with(Arc::new(files), || {
            assert_known(&open(&kept).expect("opened"), &known, "the last")
        });
    }
}

#[test]
fn a_space_that_the_branch_drops_is_new_when_it_is_made_again() {
    let files = MemFs::new();
    let (kept, _toy, known) = with(Arc::new(MemFs::new()), || parent(5));
    let shared = known.keys().find(|id| id.space == 2).copied().expect("a page");
    with(Arc::new(files.clone()), || {
        make(&kept).expect("made");
        let branch = open(&kept).expect("opened");
        branch.storage.pages().drop_space(2).expect("dropped");
    });
    let files = files.crash_clone();
    with(Arc::new(files), || {
        let branch = open(&kept).expect("opened");
        assert!(!branch.storage.pages().has_space(2));
        branch.storage.pages().create_space(2).expect("made again");
        assert_eq!(branch.get(shared), 0, "it is not the snapshot's page");
        branch.set(PageId::new(2, 39), 5);
        assert_eq!((branch.get(PageId::new(2, 39)), branch.get(shared)), (5, 0));
    });
}

/// What is given back of pages that the snapshot has too does not become those.
#[test]
fn pages_that_are_given_back_stay_those_of_the_branch() {
    let (kept, _toy, known) = with(Arc::new(MemFs::new()), || parent(6));
    let (id, value) = known.iter().next().expect("a page");
    with(Arc::new(MemFs::new()), || {
        make(&kept).expect("made");
        let branch = open(&kept).expect("opened");
        branch.set(*id, value + 1);
        branch.set(PageId::new(id.space, 45), 9);
        branch.checkpoint();
        branch.storage.pages().punch(id.space, 0..46).expect("given back");
        branch.frames.lock().clear();
        assert_ne!(
            branch.get(*id),
            *value,
            "the page as it was before the branch changed it"
        );
        assert_eq!(branch.get(PageId::new(id.space, 45)), 0);
    });
}

#[test]
fn a_branch_becomes_a_database_of_its_own() {
    let (kept, _toy, mut known) = with(Arc::new(MemFs::new()), || parent(7));
    with(Arc::new(MemFs::new()), || {
        make(&kept).expect("made");
        let branch = open(&kept).expect("opened");
        work(&branch, &mut known, &mut Random(8));
        branch.storage.backup(Path::new("/backup")).expect("copied");
        branch.checkpoint();
        branch.storage.control().update(|c| c.clean = true).expect("shut down");
        drop(branch);
        let others: Arc<Mutex<Kept>> = Arc::default();
        let (parent, nodes): (Arc<dyn StorageNodes>, Arc<dyn StorageNodes>) =
            (FakeNodes::new(&kept), FakeNodes::new(&others));
        let data = (Path::new(BRANCH), Some(&parent));
        load_within(data, &nodes, &Claim::machine(), &|_, _| {}, Nanos::ZERO).expect("put there");
        kept.lock().snapshot = None;
        restore(Path::new("/backup"), Path::new("/restored")).expect("restored");
        assert_known(&start(Path::new("/restored"), &region()).0, &known, "the copy");
        let toy = Toy::of(start_on(&others, &region(), false).expect("opened").0);
        assert_known(&toy, &known, "on nodes");
    });
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let (kept, _toy, known) = with(Arc::new(MemFs::new()), || parent(9));
    let id = *known.keys().next().expect("a page");
    with(Arc::new(MemFs::new()), || {
        make(&kept).expect("made");
        let again = make(&kept).expect_err("refused").to_string();
        assert!(again.contains("is not empty"), "{again}");
        let region = region();
        let alone = DataDir::open(Path::new(BRANCH)).expect("taken");
        let alone = alone
            .storage(StorageOptions::new(place(&region)))
            .err()
            .expect("refused")
            .to_string();
        assert!(alone.contains("has a branch") && alone.contains("a:1,b:2"), "{alone}");
        let branch = open(&kept).expect("opened");
        kept.lock().snapshot = None;
        let mut page = vec![0; cenote_base::PAGE_SIZE];
        let gone = branch.storage.read_page(id, &mut page).expect_err("gone");
        assert!(
            matches!(&gone, Error::Lost(why) if why.contains("\"monday\"")),
            "{gone}"
        );
        drop(branch);
        let lost = open(&kept).err().expect("refused").to_string();
        assert!(lost.contains("\"monday\""), "{lost}");
        let path = spaces_dir(Path::new(BRANCH)).join("00000001.pages");
        fs::remove(&path).expect("removed");
        let missing = open(&kept).err().expect("refused").to_string();
        assert!(missing.contains("00000001.pages is missing"), "{missing}");
        let path = Path::new(BRANCH).join("branch");
        let mut bytes = fs::read(&path).expect("read");
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            fs::replace(&path, &bytes).expect("written");
            assert!(branch::parent(Path::new(BRANCH)).is_err(), "byte {at}");
            bytes[at] ^= 4;
        }
        fs::replace(&path, &bytes).expect("written");
        let held = Held::take(Path::new(BRANCH)).expect("taken");
        held.relocate(vec!["c:3".into()], "shop".into(), "/secret".into())
            .expect("noted");
        let parent = branch::parent(Path::new(BRANCH)).expect("whole").expect("a branch");
        assert_eq!(
            (parent.nodes, parent.secret_file.as_str()),
            (vec!["c:3".to_owned()], "/secret")
        );
        // A drop that was cut off after any of its steps is no database, and is finished by another.
        fs::remove(Path::new(BRANCH).join("control")).expect("removed");
        drop(held);
        let unfinished = open(&kept).err().expect("refused").to_string();
        assert!(unfinished.contains("was not finished"), "{unfinished}");
        let held = Held::take(Path::new(BRANCH)).expect("taken");
        held.remove().expect("removed");
        assert_eq!(branch::parent(Path::new(BRANCH)).expect("none"), None);
        assert!(Held::take(Path::new(BRANCH)).is_err());
    });
}
