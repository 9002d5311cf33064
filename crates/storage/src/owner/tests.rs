//! Two hosts with one data directory, of which the first is stopped, and wakes up when the second has gone on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cenote_base::Lsn;
use cenote_base::page_io::PageIo;
use cenote_base::rt::fs::with;
use cenote_fabric::Region;
use cenote_testkit::faulty::MemFs;

use super::*;
use crate::control::ControlFile;
use crate::log::{Log, LogOptions};
use crate::redo::GroupBuilder;
use crate::testing::{blank, group, place, region};
use crate::{DataDir, Origins, Storage, StorageOptions};
use cenote_base::{PageId, RecordAddr};

const DATA: &str = "/data";

/// Two hosts have no locks in common.
fn unlock_in(data: &Path) {
    let lock = data.join("lock");
    if fs::exists(&lock).expect("asked") {
        fs::remove(&lock).expect("removed");
    }
}

fn claim(host: &str, lost: &Arc<AtomicU64>) -> Claim {
    let lost = Arc::clone(lost);
    Claim {
        on_lost: Some(Arc::new(move |_| {
            lost.fetch_add(1, Ordering::SeqCst);
        })),
        ..Claim::of(Origin::host(host, 1))
    }
}

fn claimed(data: &Path, claim: &Claim) -> Ownership {
    Ownership::claim(data, claim, &|| Ok(true)).expect("claimed")
}

fn open(claim: &Claim, region: &Arc<Region>, believe_ring: bool) -> Arc<Storage> {
    unlock_in(Path::new(DATA));
    let dir = DataDir::open_as(Path::new(DATA), Origins::default(), claim).expect("taken");
    let mut options = StorageOptions::new(place(region));
    (options.segment_bytes, options.background, options.believe_ring) = (64 << 10, false, believe_ring);
    let (storage, _) = dir.storage(options).expect("opens");
    storage.control().update(|c| c.incarnation += 1).expect("written");
    storage
}

/// Appends a group that is told by `text`.
fn append(storage: &Storage, text: &str) -> Lsn {
    let mut bytes = group(&mut GroupBuilder::new(), 1, RecordAddr::NONE, text.as_bytes());
    storage.log().append(&mut bytes, None).expect("a place").end
}

fn commit(storage: &Storage, text: &str) -> Result<()> {
    let end = append(storage, text);
    storage.log().wait_durable(end)
}

fn groups(storage: &Storage) -> usize {
    let mut scan = storage.log().scan(storage.control().get().checkpoint);
    let mut found = 0;
    while scan.next().expect("whole").is_some() {
        found += 1;
    }
    found
}

fn bytes_of(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let names = fs::list(dir).expect("listed");
    let read = |name: String| {
        let bytes = fs::read(Path::new(dir).join(&name)).expect("read");
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// A start on another host goes on in files of its own. The former instance, which wakes up, writes into what it has
/// open: nothing of it is in the log of the new one, it tells nobody, and it ends.
#[test]
fn one_that_wakes_up_acknowledges_nothing_and_reaches_no_file_of_the_next() {
    with(Arc::new(MemFs::new()), || {
        for believe_ring in [true, false] {
            let _ = fs::remove_dir_all(DATA);
            let (lost, region) = (Arc::new(AtomicU64::new(0)), region());
            let former = open(&claim("a", &lost), &region, false);
            commit(&former, "one").expect("acknowledged");
            commit(&former, "two").expect("acknowledged");
            // Stopped with redo in its ring; the region's copy is what the next host finds.
            let late = append(&former, "late");
            let next = open(&claim("b", &lost), &crate::testing::copy_of(&region), believe_ring);
            let kept = if believe_ring { 3 } else { 2 };
            assert_eq!(groups(&next), kept);
            commit(&next, "three").expect("acknowledged");
            let before = (bytes_of("/data/log"), fs::read("/data/control").expect("read"));

            assert!(matches!(former.log().wait_durable(late), Err(Error::LogFailed(_))));
            assert_eq!(lost.load(Ordering::SeqCst), 1, "it is told to end, once");
            assert!(matches!(
                former.control().update(|c| c.tx_ceiling += 9),
                Err(Error::Revoked(_))
            ));
            let page = (PageId::new(1, 0), &*blank());
            assert!(former.write_pages(&[page]).is_err());
            assert!(former.pages().create_space(7).is_err());
            assert!(former.check_writable(crate::Need::Work).is_err());
            assert_eq!(bytes_of("/data/log"), before.0);
            assert_eq!(fs::read("/data/control").expect("read"), before.1);

            commit(&next, "five").expect("acknowledged");
            drop(next);
            let again = open(&claim("b", &lost), &crate::testing::region(), false);
            assert_eq!(groups(&again), kept + 2);
        }
    });
}

/// The log's files when it has moved twice: those of former owners are gone, and the log goes on over many segments.
#[test]
fn a_log_that_moves_goes_on_over_its_segments() {
    with(Arc::new(MemFs::new()), || {
        let lost = Arc::new(AtomicU64::new(0));
        let mut region = region();
        let long = "x".repeat(9_000);
        for (turn, host) in ["a", "b", "b", "a"].into_iter().enumerate() {
            let storage = open(&claim(host, &lost), &region, turn > 0);
            assert_eq!(groups(&storage), turn * 20, "{host}");
            (0..20).for_each(|_| commit(&storage, &long).expect("acknowledged"));
            region = crate::testing::copy_of(&region);
        }
        let names = fs::list("/data/log").expect("listed");
        let generation = |name: &String| name.split_once('-').map_or(0, |(_, g)| g.len());
        let generations: Vec<usize> = names.iter().map(generation).collect();
        assert!(generations.is_sorted(), "{names:?}");
        assert!(generations[0] == 0 && generations.last() > Some(&0), "{names:?}");
    });
}

/// Files that a former owner makes late do not count, whatever their number.
#[test]
fn segments_of_former_owners_mean_nothing() {
    with(Arc::new(MemFs::new()), || {
        let lost = Arc::new(AtomicU64::new(0));
        let region = region();
        let former = open(&claim("a", &lost), &region, false);
        commit(&former, "one").expect("acknowledged");
        drop(open(&claim("b", &lost), &crate::testing::region(), false));
        let old = fs::read(Path::new("/data/log").join(&fs::list("/data/log").expect("listed")[0])).expect("read");
        for name in [
            "0000000000000003.log",
            "0000000000000000.log",
            "00000000000000ff-0fffffffffffffff.log",
        ] {
            fs::replace(Path::new("/data/log").join(name), &old).expect("written");
        }
        let storage = open(&claim("b", &lost), &crate::testing::region(), false);
        assert_eq!(groups(&storage), 1);
        commit(&storage, "two").expect("acknowledged");
        drop(storage);
        let storage = open(&claim("b", &lost), &crate::testing::region(), false);
        assert_eq!(groups(&storage), 2);
        let names = fs::list("/data/log").expect("listed");
        assert!(
            !names
                .iter()
                .any(|name| name.ends_with("-0fffffffffffffff.log") || name.starts_with("0000000000000003.")),
            "{names:?}"
        );
    });
}

/// A start is stopped at each step between its claim and its first flush, while another takes the directory, and
/// serves. Woken, it changes no file of the other's: the control file and the log are as they were.
#[test]
fn a_start_that_another_has_overtaken_touches_nothing() {
    for believe_ring in [true, false] {
        for stop in ["claimed", "control read"] {
            with(Arc::new(MemFs::new()), || {
                let (lost, region) = (Arc::new(AtomicU64::new(0)), region());
                let former = open(&claim("a", &lost), &region, false);
                commit(&former, "one").expect("acknowledged");
                let copy = crate::testing::copy_of(&region);
                let data = Path::new(DATA);
                let slow = Arc::new(claimed(data, &claim("b", &lost)));
                let control = |owner| ControlFile::open_or_begin(data, Origins::default(), Some(owner));
                let early = (stop == "control read").then(|| control(Arc::clone(&slow)).expect("read"));
                let winner = open(&claim("c", &lost), &crate::testing::copy_of(&region), believe_ring);
                commit(&winner, "two").expect("acknowledged");
                let state = || (bytes_of("/data/log"), fs::read("/data/control").expect("read"));
                let before = state();

                let late = early.map_or_else(|| control(Arc::clone(&slow)), Ok);
                assert_eq!(late.is_ok(), stop == "control read");
                let found = winner.control().get();
                let opened = Log::open(LogOptions {
                    database: found.database,
                    believe_ring,
                    checkpoint: found.checkpoint,
                    nodes: None,
                    owner: Some(slow),
                    ..crate::testing::log_options(&data.join("log"), &copy)
                });
                assert!(opened.is_err(), "{stop}");
                assert_eq!(state(), before, "{stop}");
                commit(&winner, "three").expect("acknowledged");
                drop(winner);
                let again = open(&claim("c", &lost), &crate::testing::region(), false);
                assert_eq!(groups(&again), 3, "{stop}");
            });
        }
    }
}

/// A start that read `owner` and was stopped before it wrote there does not write over that of another.
#[test]
fn a_start_that_was_stopped_over_its_claim_takes_nothing() {
    with(Arc::new(MemFs::new()), || {
        let (data, path) = (Path::new(DATA), Path::new(DATA).join("owner"));
        fs::create_dir_all(data).expect("made");
        drop(claimed(data, &Claim::of(Origin::host("a", 1))));
        let former = Owner::found(&path).expect("read");
        let slow = Ownership::after(
            Place::File(path.clone()),
            former.as_ref(),
            &Claim::of(Origin::host("b", 1)),
        );
        let next = Replacement::write(&path, &slow.owner.encode()).expect("written");
        let winner = claimed(data, &Claim::of(Origin::host("c", 1)));
        assert!(next.publish().is_err(), "what it had written is gone");
        winner.check().expect("the directory's owner");
        assert_eq!(fs::list(data).expect("listed"), ["owner"]);
    });
}

#[test]
fn a_former_holder_of_the_same_grant_is_refused() {
    with(Arc::new(MemFs::new()), || {
        let holder = |host: &str, grant, epoch| Claim {
            holding: Some(Holding { grant, epoch }),
            ..Claim::of(Origin::host(host, 1))
        };
        let open = |claim: &Claim| DataDir::open_as(Path::new(DATA), Origins::default(), claim).map(drop);
        open(&holder("a", 7, 4)).expect("the first");
        open(&holder("b", 7, 5)).expect("the next holder");
        let refused = open(&holder("a", 7, 4)).expect_err("a former one").to_string();
        assert!(
            refused.contains("holder 5 of grant 7") && refused.contains("host b"),
            "{refused}"
        );
        open(&holder("a", 9, 1)).expect("another grant");
        open(&Claim::of(Origin::host("c", 1))).expect("no pool");
    });
}

/// A tool, or a server without a pool, does not take the directory from under a server in a pool's memory.
#[test]
fn a_holder_that_has_not_stopped_keeps_its_directory() {
    with(Arc::new(MemFs::new()), || {
        let plain = Claim::of(Origin::host("c", 1));
        let holder = |host: &str, epoch| Claim {
            holding: Some(Holding { grant: 7, epoch }),
            ..Claim::of(Origin::host(host, 1))
        };
        let storage = open(&holder("a", 5), &region(), false);
        storage.control().update(|c| c.clean = false).expect("written");
        unlock_in(Path::new(DATA));
        let refused = DataDir::open_as(Path::new(DATA), Origins::default(), &plain);
        let refused = refused.err().expect("the directory is held");
        assert!(matches!(refused, Error::Busy(_)), "{refused}");
        assert!(
            refused.to_string().contains("on host a, epoch 1, which holds grant 7"),
            "{refused}"
        );
        commit(&storage, "one").expect("the holder goes on");
        storage.control().update(|c| c.clean = true).expect("written");
        drop(storage);
        let tool = open(&plain, &region(), false);
        tool.control().update(|c| c.clean = false).expect("written");
        drop(tool);
        drop(open(&plain, &region(), false));
        unlock_in(Path::new(DATA));
        let former = DataDir::open_as(Path::new(DATA), Origins::default(), &holder("a", 4));
        assert!(
            matches!(former.err(), Some(Error::Revoked(_))),
            "the holding is on record yet"
        );
        drop(open(&holder("a", 5), &region(), false));
    });
}

/// A start that took the directory and was killed before it had files of its own leaves that to the next.
#[test]
fn a_handover_that_was_cut_off_is_made_by_the_next_start() {
    with(Arc::new(MemFs::new()), || {
        let (lost, region) = (Arc::new(AtomicU64::new(0)), region());
        let former = open(&claim("a", &lost), &region, false);
        commit(&former, "one").expect("acknowledged");
        let stale = fs::open("/data/control", OpenOptions::WRITE).expect("open on the former host");
        drop(claimed(Path::new(DATA), &claim("b", &lost)));
        let next = open(&claim("b", &lost), &crate::testing::copy_of(&region), true);
        commit(&next, "two").expect("acknowledged");
        let before = fs::read("/data/control").expect("read");
        stale.write_at(&[0xAB; 4096], 0).expect("written late");
        assert_eq!(fs::read("/data/control").expect("read"), before);
        assert!(
            !Owner::found(Path::new("/data/owner"))
                .expect("read")
                .expect("there")
                .is_unfinished
        );
        commit(&next, "three").expect("its own still");
    });
}

/// A full table of files, or short memory, is no reason to end: it is looked again. That the file is gone is one.
#[test]
fn a_look_that_fails_for_the_moment_is_made_again() {
    with(Arc::new(MemFs::new()), || {
        fs::create_dir_all(DATA).expect("made");
        let lost = Arc::new(AtomicU64::new(0));
        let owner = claimed(Path::new(DATA), &claim("a", &lost));
        let path = Path::new(DATA).join("owner");
        let mut failures = 10;
        let looked = owner.check_by(&path, || match failures {
            0 => Owner::bytes(&path),
            _ => {
                failures -= 1;
                Err(io::Error::from_raw_os_error(24))
            }
        });
        looked.expect("looked again");
        let gone = owner.check_by(&path, || Err(io::ErrorKind::NotFound.into()));
        assert!(matches!(gone, Err(Error::Revoked(_))));
        assert_eq!(lost.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_damaged_owner_is_an_error_and_a_later_format_is_refused_by_name() {
    with(Arc::new(MemFs::new()), || {
        let path = Path::new(DATA).join("owner");
        let open = || DataDir::open(Path::new(DATA)).map(drop);
        open().expect("made");
        let whole = fs::read(&path).expect("read");
        let spoil = |places: &[usize]| {
            let mut bytes = whole.clone();
            places.iter().for_each(|at| bytes[*at] ^= 1);
            fs::replace(&path, &bytes).expect("written");
        };
        spoil(&[40]);
        open().expect("the other copy counts");
        spoil(&[40, COPIES[1] + 20]);
        let error = open().expect_err("damaged").to_string();
        assert!(error.contains("both copies"), "{error}");
        let mut later = whole.clone();
        for at in COPIES {
            later[at + 8] = 9;
            let sum = crc::crc32c(&later[at..at + SUM]);
            later[at + SUM..at + SIZE].copy_from_slice(&sum.to_le_bytes());
        }
        fs::replace(&path, &later).expect("written");
        let error = open().expect_err("refused").to_string();
        assert!(error.contains("format version 9"), "{error}");
    });
}

/// What a look costs beside a sync, and what a start on another host copies: `cargo test --release -p cenote-storage
/// owner -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn measure() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("data");
    let open = |host: &str| {
        let claim = Claim::of(Origin::host(host, 1));
        let begun = std::time::Instant::now();
        let dir = DataDir::open_as(&path, Origins::default(), &claim).expect("taken");
        let (storage, _) = dir.storage(StorageOptions::new(place(&region()))).expect("opens");
        storage.control().update(|c| c.incarnation += 1).expect("written");
        println!("opened on {host} in {:?}", begun.elapsed());
        storage
    };
    let storage = open("a");
    let long = "x".repeat(200_000);
    let begun = std::time::Instant::now();
    (0..60).for_each(|_| commit(&storage, &long).expect("acknowledged"));
    println!("a commit of 200 kB, synced: {:?}", begun.elapsed() / 60);
    drop(storage);
    let owner = claimed(&path, &Claim::of(Origin::host("a", 1)));
    let begun = std::time::Instant::now();
    (0..100_000).for_each(|_| owner.check().expect("still its own"));
    println!("a look: {:?}", begun.elapsed() / 100_000);
    for host in ["a", "b", "b", "a"] {
        unlock_in(&path);
        drop(open(host));
    }
}
