//! The parts together: a toy database of a few pages, run, crashed, checked, backed up, restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::fs::with;
use cenote_base::rt::{self, Mutex};
use cenote_base::{PAGE_SIZE, RecordAddr};
use cenote_fabric::Region;
use cenote_testkit::faulty::MemFs;

use super::*;
use crate::RingUse;
use crate::redo::{GroupBuilder, apply, page_lsn};
use crate::restore;
use crate::testing::{blank, place, region};
use cenote_base::random::Random;

mod archived;
mod branches;
mod copies;

/// Pages with their redo: what a buffer does, with all frames in a map.
struct Toy {
    storage: Arc<Storage>,
    frames: Mutex<BTreeMap<PageId, Vec<u8>>>,
}

fn start(path: &Path, region: &Arc<Region>) -> (Toy, StorageReport) {
    let dir = DataDir::open(path).expect("taken");
    dir.control()
        .update(|c| (c.incarnation, c.clean) = (rt::random_u128(), false))
        .expect("written");
    let mut options = StorageOptions::new(place(region));
    (options.segment_bytes, options.background) = (64 << 10, false);
    let (storage, report) = dir.storage(options).expect("opens");
    (Toy::of(storage), report)
}

impl Toy {
    /// Of what recovery makes of it.
    fn of(storage: Arc<Storage>) -> Toy {
        let toy = Toy {
            storage,
            frames: Mutex::default(),
        };
        toy.recover();
        toy
    }

    /// Classic recovery: every record from the checkpoint on, where the page has not seen it.
    fn recover(&self) {
        let mut scan = self.storage.log().scan(self.storage.control().get().checkpoint);
        while let Some(group) = scan.next().expect("whole") {
            for record in group.records() {
                let record = record.expect("whole");
                if !self.storage.pages().has_space(record.page.space) {
                    continue;
                }
                let mut frames = self.frames.lock();
                let page = frames.entry(record.page).or_insert_with(|| self.read(record.page));
                if page_lsn(page) < record.lsn {
                    apply(page, &record).expect("applies");
                }
            }
        }
    }

    fn read(&self, id: PageId) -> Vec<u8> {
        let mut page = blank();
        self.storage.read_page(id, &mut page).expect("read");
        page
    }

    /// Puts `value` into a page, durably.
    fn set(&self, id: PageId, value: u64) {
        let end = self.change(id, value);
        self.storage.ensure_durable(end).expect("durable");
    }

    /// Puts `value` into a page: where the log has it.
    fn change(&self, id: PageId, value: u64) -> Lsn {
        let mut frames = self.frames.lock();
        let page = frames.entry(id).or_insert_with(|| self.read(id));
        let mut builder = GroupBuilder::new();
        let record = builder.page(id, RecordAddr::NONE);
        if page_lsn(page) == Lsn::ZERO {
            let pages = self.storage.pages();
            pages.reserve(id.space, id.page + 1).expect("room");
            builder.init(record, 1, 0);
            page[4..12].copy_from_slice(&id.to_bytes());
            (page[12], page[14]) = (1, 1);
        }
        builder.write(record, 64, &value.to_le_bytes());
        page[64..72].copy_from_slice(&value.to_le_bytes());
        let appended = self
            .storage
            .log()
            .append(builder.finish().expect("short"), None)
            .expect("appended");
        crate::redo::set_page_lsn(page, appended.end);
        appended.end
    }

    fn get(&self, id: PageId) -> u64 {
        let mut frames = self.frames.lock();
        let page = frames.entry(id).or_insert_with(|| self.read(id));
        u64::from_le_bytes(page[64..72].try_into().expect("8 bytes"))
    }

    /// Writes all frames and notes that the log before is not needed.
    fn checkpoint(&self) {
        let frames = self.frames.lock().clone();
        let end = self.storage.log().tail();
        self.storage.ensure_durable(end).expect("durable");
        let pages: Vec<(PageId, &[u8])> = frames.iter().map(|(id, p)| (*id, &**p)).collect();
        self.storage.write_pages(&pages).expect("written");
        self.storage.checkpoint(end).expect("noted");
    }
}

/// What a run of the toy has acknowledged.
type Known = BTreeMap<PageId, u64>;

fn work(toy: &Toy, known: &mut Known, rng: &mut Random) {
    for space in (1..=3).filter(|s| !toy.storage.pages().has_space(*s)) {
        toy.storage.pages().create_space(space).expect("made");
    }
    for _ in 0..rng.index(120) {
        let id = PageId::new(1 + rng.index(3) as u32, rng.index(30) as u32);
        let value = rng.word();
        toy.set(id, value);
        known.insert(id, value);
        if rng.index(25) == 0 {
            toy.checkpoint();
        }
    }
}

fn assert_known(toy: &Toy, known: &Known, hint: &str) {
    for (id, value) in known {
        assert_eq!(toy.get(*id), *value, "{hint}: page {id}");
    }
}

#[test]
fn what_was_committed_survives_crash_after_crash() {
    for seed in 0..15 {
        let (mut fs, mut known, mut rng) = (MemFs::new(), Known::new(), Random(seed));
        for round in 0..5 {
            fs = with(Arc::new(fs.clone()), || {
                let (toy, _) = start(Path::new("/data"), &region());
                assert_known(&toy, &known, &format!("seed {seed} round {round}"));
                work(&toy, &mut known, &mut rng);
                let report = toy.storage.check(&|_| false).expect("checked");
                assert_eq!(report.damage, Vec::<String>::new());
                fs.crash_clone_torn(rng.word())
            });
        }
    }
}

#[test]
fn one_directory_serves_one_process() {
    let fs = MemFs::new();
    with(Arc::new(fs.clone()), || {
        let held = DataDir::open(Path::new("/data")).expect("taken");
        let error = DataDir::open(Path::new("/data")).err().expect("refused");
        assert!(matches!(error, Error::Busy(_)), "{error}");
        drop(held);
        DataDir::open(Path::new("/data")).expect("free again");
    });
}

/// Killed between making a file and syncing its directory: the next process finds the file and uses it, and a power cut
/// takes it.
#[test]
fn a_file_that_is_found_stays() {
    let (files, path, page) = (MemFs::new(), Path::new("/data"), PageId::new(7, 0));
    with(Arc::new(files.clone()), || {
        let region = region();
        start(path, &region).0.storage.pages().create_space(6).expect("made");
        fs::open(spaces_dir(path).join("00000007.pages"), OpenOptions::TRUNCATE).expect("made");
    });
    let found = files.kill_clone();
    with(Arc::new(found.clone()), || {
        let (toy, _) = start(path, &region());
        toy.set(page, 42);
        toy.checkpoint();
    });
    with(Arc::new(found.crash_clone()), || {
        let (toy, _) = start(path, &region());
        assert!(toy.storage.pages().has_space(7), "committed pages lie there");
        assert_eq!(toy.get(page), 42);
    });
}

/// Bits flipped in a page and in its newest copy: the log from the checkpoint on builds it; if it is from before the
/// checkpoint, the page is an error, for all that an older copy is whole.
#[test]
fn a_page_that_rotted_with_its_copy_is_built_by_redo_or_is_an_error() {
    let (path, page) = (Path::new("/data"), PageId::new(1, 2));
    for passed in [false, true] {
        let files = MemFs::new();
        with(Arc::new(files.clone()), || {
            let (toy, _) = start(path, &region());
            toy.storage.pages().create_space(1).expect("made");
            toy.set(page, 1);
            toy.checkpoint();
            toy.set(page, 2);
            toy.set(page, 3);
            let newest = toy.frames.lock()[&page].clone();
            toy.storage.write_pages(&[(page, &newest)]).expect("written");
            if passed {
                toy.storage.checkpoint(toy.storage.log().tail()).expect("noted");
            }
        });
        let size = PAGE_SIZE as u64;
        // The second batch lies in the second area.
        let copy = (crate::pages::BATCH as u64 + 2) * size;
        files.flip("/data/doublewrite", copy + 5000, 1).expect("there");
        files
            .flip("/data/spaces/00000001.pages", 2 * size + 5000, 1)
            .expect("there");
        with(Arc::new(files.kill_clone()), || {
            let (toy, report) = start(path, &region());
            let found = if passed {
                report.pages.lost
            } else {
                report.pages.rebuilt
            };
            assert_eq!(found, [page]);
            match passed {
                false => assert_eq!(toy.get(page), 3),
                true => assert!(matches!(
                    toy.storage.read_page(page, &mut blank()),
                    Err(Error::Corrupt(_))
                )),
            }
        });
    }
}

/// A batch with a page was cut off by a power cut while it was written; the page had changed meanwhile, whole, and the
/// checkpoint had passed the version in the batch. The page was called lost and spoilt in its place, though redo makes
/// it anew.
#[test]
fn a_page_that_redo_makes_anew_behind_a_batch_that_was_cut_off_is_not_lost() {
    let (path, page) = (Path::new("/data"), PageId::new(1, 2));
    let files = MemFs::new();
    with(Arc::new(files.clone()), || {
        let (toy, _) = start(path, &region());
        toy.storage.pages().create_space(1).expect("made");
        toy.set(page, 1);
        toy.checkpoint();
        toy.set(page, 2);
        let in_flight = toy.frames.lock()[&page].clone();
        let passed = toy.storage.log().tail();
        toy.frames.lock().insert(page, blank());
        toy.set(page, 3);
        toy.storage.checkpoint(passed).expect("noted");
        // The copy and its list, and nothing in place.
        files.halt_after(2);
        toy.storage.write_pages(&[(page, &in_flight)]).expect_err("power goes");
    });
    let left = files.kill_clone();
    let copy = (crate::pages::BATCH as u64 + 2) * PAGE_SIZE as u64;
    left.flip("/data/doublewrite", copy + 5000, 1).expect("there");
    with(Arc::new(left), || {
        let (toy, report) = start(path, &region());
        assert_eq!(report.pages.lost, []);
        assert_eq!(toy.get(page), 3);
    });
}

#[test]
fn a_database_whose_log_is_gone_is_not_taken_for_a_new_one() {
    let (fs, mut known) = (MemFs::new(), Known::new());
    with(Arc::new(fs.clone()), || {
        let (toy, _) = start(Path::new("/data"), &region());
        work(&toy, &mut known, &mut Random(3));
        drop(toy);
        rt::fs::remove_dir_all("/data/log").expect("removed");
        let dir = DataDir::open(Path::new("/data")).expect("taken");
        let error = dir
            .storage(StorageOptions::new(place(&region())))
            .err()
            .expect("refused");
        assert!(error.to_string().contains("no redo log"), "{error}");
    });
}

/// A backup is taken while pages change: what was acknowledged before it is in the copy, what is
/// restored from the copy is consistent, and neither shares an id with the original.
#[test]
fn a_backup_under_load_can_be_restored() {
    for seed in 0..3 {
        let fs = MemFs::new();
        with(Arc::new(fs.clone()), || {
            let (mut known, mut rng) = (Known::new(), Random(seed));
            let (toy, _) = start(Path::new("/data"), &region());
            work(&toy, &mut known, &mut rng);
            let toy = Arc::new(toy);
            let busy = keep_busy(&toy, seed);
            let report = toy.storage.backup(Path::new("/backup")).expect("copied");
            busy.join().expect("no panic");
            assert!(
                report.lsn <= toy.storage.durable_lsn() && report.spaces >= 3,
                "{report:?}"
            );
            let again = toy.storage.backup(Path::new("/backup"));
            assert!(again.is_err(), "a directory that is not empty is refused");

            let restored = restore(Path::new("/backup"), Path::new("/restored")).expect("restored");
            assert_eq!((restored.lsn, restored.pages), (report.lsn, report.pages));
            let (copy, opened) = start(Path::new("/restored"), &region());
            assert_eq!(opened.log.ring, RingUse::NotOffered);
            assert_known(&copy, &known, &format!("seed {seed}"));
            let mut scan = copy.storage.log().scan(copy.storage.control().get().checkpoint);
            while let Some(group) = scan.next().expect("whole") {
                let spaces = group.records().map(|r| r.expect("whole").page.space);
                spaces.for_each(|s| assert!(copy.storage.pages().has_space(s), "space {s} is missing"));
            }
            let ids = [&toy, &copy].map(|t| t.storage.control().get().database);
            assert_ne!(ids[0], ids[1]);
        });
    }
}

/// Changes pages of space 4 and makes spaces meanwhile.
fn keep_busy(toy: &Arc<Toy>, seed: u64) -> rt::JoinHandle<()> {
    let toy = toy.clone();
    rt::spawn("busy", move || {
        let mut rng = Random(seed + 1000);
        for n in 4..40 {
            toy.storage.pages().create_space(n).expect("made");
            for _ in 0..20 {
                toy.set(PageId::new(n, rng.index(30) as u32), rng.word());
            }
            toy.checkpoint();
        }
    })
}

#[test]
fn a_damaged_backup_is_refused() {
    let (fs, mut rng) = (MemFs::new(), Random(1));
    let mut known = Known::new();
    with(Arc::new(fs.clone()), || {
        let (toy, _) = start(Path::new("/data"), &region());
        (0..3).for_each(|_| work(&toy, &mut known, &mut rng));
        toy.checkpoint();
        toy.set(PageId::new(1, 1), 5);
        toy.storage.backup(Path::new("/backup")).expect("copied");
    });
    let pages = Path::new("/backup/spaces/00000001.pages");
    let log = fs
        .files()
        .into_iter()
        .filter(|p| p.starts_with("/backup/log"))
        .min()
        .expect("a segment");
    let end = fs.clone();
    for (file, at) in [(pages, PAGE_SIZE as u64 + 500), (&log, 20)] {
        let copy = end.kill_clone();
        copy.flip(file, at, 1).expect("inside");
        with(Arc::new(copy), || {
            let error = restore(Path::new("/backup"), Path::new("/restored")).expect_err("refused");
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            assert!(
                DataDir::open(Path::new("/restored")).is_err(),
                "half a restored database is none"
            );
        });
    }
}

/// Appends a group that no thread waits for: its end, which only the ring has.
fn append_unsynced(toy: &Toy) -> Lsn {
    let mut builder = GroupBuilder::new();
    let record = builder.page(PageId::new(1, 1), RecordAddr::NONE);
    builder.init(record, 1, 0);
    let group = builder.finish().expect("short");
    toy.storage.log().append(group, None).expect("appended").end
}

/// A checkpoint at a position that is not durable would be one that a power cut leaves beyond the log's end.
#[test]
fn a_checkpoint_makes_its_position_durable_first() {
    let fs = MemFs::new();
    with(Arc::new(fs.clone()), || {
        let (toy, _) = start(Path::new("/data"), &region());
        let end = append_unsynced(&toy);
        assert!(toy.storage.log().durable() < end, "the ring alone has the group");
        toy.storage.checkpoint(end).expect("noted");
        assert_eq!(toy.storage.control().get().checkpoint, end);
    });
    with(Arc::new(fs.crash_clone()), || {
        let (toy, _) = start(Path::new("/data"), &region());
        let (checkpoint, durable) = (toy.storage.control().get().checkpoint, toy.storage.log().durable());
        assert!(
            checkpoint <= durable,
            "{checkpoint} after a power cut, and the log ends at {durable}"
        );
    });
}

#[test]
fn a_checkpoint_that_cannot_be_made_durable_leaves_the_old_one() {
    let fs = MemFs::new();
    with(Arc::new(fs.clone()), || {
        let (toy, _) = start(Path::new("/data"), &region());
        let before = toy.storage.control().get();
        let end = append_unsynced(&toy);
        let beyond = toy
            .storage
            .checkpoint(end.advance(8))
            .expect_err("beyond the log's end");
        assert!(matches!(beyond, Error::Corrupt(_)), "{beyond}");
        fs.fail_syncs(0, u64::MAX);
        toy.storage.checkpoint(end).expect_err("the sync of the log fails");
        assert_eq!(toy.storage.control().get(), before);
    });
}
