//! Pages against torn writes, crashes at any point, damage, and failing disks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::rt;
use cenote_base::rt::fs::{FileSystem, with};
use cenote_base::{Lsn, PageId};
use cenote_testkit::faulty::{Drive, DriveSpeed, MemFs};

use super::*;
use crate::log::OwnedRecord;
use crate::redo::{GroupBuilder, PageRecordRef, page_lsn, set_page_lsn};
use crate::testing::DATABASE;
use cenote_base::RecordAddr;
use cenote_base::random::Random;

fn files(fs: &MemFs) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

fn dir() -> &'static Path {
    Path::new("/data")
}

fn open() -> (PageStore, PagesReport) {
    cenote_base::rt::fs::create_dir_all(dir()).expect("made");
    open_by(&Redo::default())
}

/// Redo of pages, as the log has it from the checkpoint on.
type Redo = BTreeMap<PageId, Vec<OwnedRecord>>;

fn open_by(redo: &Redo) -> (PageStore, PagesReport) {
    try_open(redo).expect("opens")
}

fn try_open(redo: &Redo) -> Result<(PageStore, PagesReport)> {
    PageStore::open(dir(), DATABASE, None, &mut |wanted| {
        let up_to = |(id, until): (&PageId, &Lsn)| {
            let records = redo.get(id).into_iter().flatten();
            (*id, records.filter(|r| r.get().lsn <= *until).cloned().collect())
        };
        Ok(wanted.iter().map(up_to).collect())
    })
}

/// The record of `page` after which it has LSN `lsn`: its one record in a group that ends there.
fn record(id: PageId, prev: u64, lsn: u64, change: impl Fn(&mut GroupBuilder, usize)) -> OwnedRecord {
    let mut builder = GroupBuilder::new();
    let record = builder.page(id, RecordAddr::new(0, Lsn::from_raw(prev)));
    change(&mut builder, record);
    let at = builder
        .finish()
        .map(|group| lsn - group.len() as u64)
        .expect("short enough");
    let (from, length) = (builder.record_offset(record), builder.record_len(record));
    let bytes = &builder.finished()[from as usize..][..length];
    let address = RecordAddr::new(0, Lsn::from_raw(at + u64::from(from)));
    OwnedRecord::copy(&PageRecordRef::from_copy(bytes, address, Lsn::from_raw(lsn)).expect("a record"))
}

/// A record that makes the page what it is, from nothing.
fn image(id: PageId, page: &[u8]) -> OwnedRecord {
    record(id, 0, page_lsn(page).raw(), |b, r| b.image(r, page))
}

/// A page's bytes without its checksum, which the store fills in.
fn page_of(id: PageId, lsn: u64, rng: &mut Random) -> Vec<u8> {
    let mut page = vec![rng.word() as u8 | 1; PAGE_SIZE];
    page[..4].fill(0);
    page[4..12].copy_from_slice(&id.to_bytes());
    set_page_lsn(&mut page, Lsn::from_raw(lsn));
    page
}

/// The page with a few bytes changed, and where.
fn change_of(before: &[u8], lsn: u64, rng: &mut Random) -> (Vec<u8>, Sectors) {
    let (mut page, mut changed) = (before.to_vec(), Sectors::of(0, 1));
    set_page_lsn(&mut page, Lsn::from_raw(lsn));
    for _ in 0..1 + rng.index(3) {
        let (at, length) = (64 + rng.index(PAGE_SIZE - 2064), 1 + rng.index(2000));
        page[at..at + length].fill(rng.word() as u8 | 1);
        changed = changed.and(Sectors::of(at, length));
    }
    (page, changed)
}

fn writes(pages: &[(PageId, Vec<u8>, Sectors)]) -> Vec<PageWrite<'_>> {
    pages
        .iter()
        .map(|(id, bytes, changed)| PageWrite {
            id: *id,
            bytes,
            changed: *changed,
        })
        .collect()
}

/// What each page holds as far as the test has been told: acknowledged, or being written.
#[derive(Default)]
struct Model {
    known: BTreeMap<PageId, Vec<u8>>,
    attempted: BTreeMap<PageId, Vec<u8>>,
    lsn: u64,
}

/// LSNs of versions of a page are at least as far apart as an image is long.
const STEP: u64 = 1 << 15;

impl Model {
    fn write(&mut self, store: &PageStore, rng: &mut Random) -> Result<()> {
        let mut batch: BTreeMap<PageId, (Vec<u8>, Sectors)> = BTreeMap::new();
        for _ in 0..1 + rng.index(12) {
            self.lsn += STEP;
            let id = PageId::new(1 + rng.index(3) as u32, rng.index(20) as u32);
            let version = match self.known.get(&id) {
                Some(before) if rng.index(3) > 0 => change_of(before, self.lsn, rng),
                _ => (page_of(id, self.lsn, rng), Sectors::WHOLE),
            };
            batch.insert(id, version);
        }
        self.attempted = batch.iter().map(|(id, (page, _))| (*id, page.clone())).collect();
        let write = |(id, (bytes, changed)): (&PageId, &(Vec<u8>, Sectors))| (*id, bytes.clone(), *changed);
        let pages: Vec<_> = batch.iter().map(write).collect();
        store.write_changes(&writes(&pages))?;
        self.known.extend(std::mem::take(&mut self.attempted));
        Ok(())
    }

    /// The log keeps what is not written yet.
    fn redo(&self) -> Redo {
        let images = self.attempted.iter().map(|(id, page)| (*id, vec![image(*id, page)]));
        images.collect()
    }

    /// The same with bits that have rotted; the number of pages that cannot be read.
    fn assert_not_older(&mut self, store: &PageStore, hint: &str) -> usize {
        let mut lost = 0;
        let all: Vec<PageId> = self.known.keys().chain(self.attempted.keys()).copied().collect();
        for id in all {
            let Ok(page) = read(store, id) else {
                lost += 1;
                continue;
            };
            // Zeros are an error for a reader that misses a page there.
            if page.iter().all(|b| *b == 0) {
                lost += usize::from(self.known.contains_key(&id));
                continue;
            }
            let fits = [self.known.get(&id), self.attempted.get(&id)].contains(&Some(&page));
            assert!(fits, "{hint}: page {id} has LSN {}", page_lsn(&page));
            self.known.insert(id, page);
        }
        lost
    }

    fn assert_pages(&mut self, store: &PageStore, hint: &str) {
        for space in 1..=3 {
            for number in 0..24 {
                let id = PageId::new(space, number);
                let mut page = vec![7; PAGE_SIZE];
                let read = store.read_page(id, &mut page).expect(hint);
                page[..4].fill(0);
                let fits = |wanted: Option<&Vec<u8>>| match wanted {
                    Some(wanted) => read == PageRead::Present && *wanted == page,
                    None => read == PageRead::NeverWritten && page.iter().all(|b| *b == 0),
                };
                let attempted = self.attempted.get(&id);
                assert!(
                    fits(self.known.get(&id)) || attempted.is_some() && fits(attempted),
                    "{hint}: page {id} is {read:?}"
                );
                if read == PageRead::Present {
                    self.known.insert(id, page);
                }
            }
        }
    }
}

/// The disk stops at any operation, then the machine crashes: acknowledged pages are there, a
/// batch under way is there page by page, old or new, and nothing is torn.
#[test]
fn pages_survive_crashes_at_any_point_untorn() {
    let mut rebuilt = 0;
    for seed in 0..80 {
        let mut rng = Random(seed);
        let (mut fs, mut model) = (MemFs::new(), Model::default());
        for round in 0..5 {
            let hint = format!("seed {seed} round {round}");
            fs = with(files(&fs), || {
                let (store, report) = open_by(&model.redo());
                assert_eq!(report.lost, [], "{hint}");
                rebuilt += report.rebuilt.len();
                for space in (1..=3).filter(|s| !store.has_space(*s)) {
                    store.create_space(space).expect("made");
                }
                model.assert_pages(&store, &hint);
                fs.halt_after(rng.index(120) as u64);
                while model.write(&store, &mut rng).is_ok() {}
                fs.crash_clone_torn(rng.word())
            });
        }
    }
    assert!(rebuilt > 0, "no batch was cut off");
}

/// As above, with kills in between, and bits that rot in the files: a page may be an error then, but never an older
/// version. What was acknowledged is beyond the checkpoint, or not.
#[test]
fn rot_and_crashes_never_make_a_page_older() {
    let (mut lost, mut rotten) = (0, 0);
    for seed in 0..120 {
        let mut rng = Random(seed);
        let (mut fs, mut model, mut kept) = (MemFs::new(), Model::default(), Redo::new());
        for round in 0..8 {
            let hint = format!("seed {seed} round {round}");
            for _ in 0..[0, 0, 10, 60][rng.index(4)] {
                rotten += usize::from(rot(&fs, &mut rng));
            }
            fs = with(files(&fs), || {
                kept.extend(model.redo());
                let (store, _) = open_by(&kept);
                for space in (1..=3).filter(|s| !store.has_space(*s)) {
                    store.create_space(space).expect("made");
                }
                lost += model.assert_not_older(&store, &hint);
                fs.halt_after(rng.index(60) as u64);
                kept.clear();
                while model.write(&store, &mut rng).is_ok() {
                    if rng.index(4) > 0 {
                        kept.clear();
                    } else {
                        kept.extend(model.redo());
                    }
                }
                match rng.index(2) {
                    0 => fs.kill_clone(),
                    _ => fs.crash_clone_torn(rng.word()),
                }
            });
            fs.heal();
        }
    }
    assert!(rotten > 1000 && lost > 0, "{rotten} bits, {lost} pages lost");
}

/// A bit flips in a page or a copy.
fn rot(fs: &MemFs, rng: &mut Random) -> bool {
    let part = [".pages", "doublewrite"][rng.index(2)];
    fs.flip_any(part, &mut |n| rng.index(n as usize) as u64).is_some()
}

/// Two pages torn in place, one of them with a whole copy in the area: one is repaired where it
/// is read, the other an error that says which.
#[test]
fn a_torn_page_is_rebuilt_at_reading_or_is_an_error() {
    let (fs, mut rng) = (MemFs::new(), Random(1));
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        let ids: Vec<PageId> = (0..2).map(|n| PageId::new(1, n)).collect();
        let old = page_of(ids[0], 8, &mut rng);
        let new = page_of(ids[1], 16, &mut rng);
        store.write_pages(&[(ids[0], &old)]).expect("written");
        for _ in 0..4 {
            store.write_pages(&[(ids[1], &new)]).expect("written");
        }
        for n in 0..2 {
            fs.flip("/data/spaces/00000001.pages", n * PAGE_SIZE as u64 + 5000, 4)
                .expect("inside");
        }
        let mut page = vec![0; PAGE_SIZE];
        assert_eq!(store.read_page(ids[1], &mut page).expect("rebuilt"), PageRead::Rebuilt);
        assert_eq!(page[4..], new[4..]);
        assert_eq!(store.read_page(ids[1], &mut page).expect("in place"), PageRead::Present);
        let error = store.read_page(ids[0], &mut page).expect_err("damaged").to_string();
        assert!(error.contains("1:0"), "{error}");
        let mut damaged = Vec::new();
        let present = store.check_all(&mut |id, _| damaged.push(id)).expect("checked");
        assert_eq!((present, damaged), (1, vec![ids[0]]));
    });
}

#[test]
fn a_page_in_the_place_of_another_is_noticed() {
    let fs = MemFs::new();
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        let wrong = page_of(PageId::new(1, 5), 8, &mut Random(1));
        store.write_pages(&[(PageId::new(1, 3), &wrong)]).expect("written");
        let error = store.read_page(PageId::new(1, 3), &mut vec![0; PAGE_SIZE]);
        assert!(error.expect_err("refused").to_string().contains("1:5"));
    });
}

#[test]
fn spaces_are_made_and_dropped_durably_and_old_copies_stay_away() {
    let (fs, mut rng) = (MemFs::new(), Random(1));
    let id = PageId::new(9, 2);
    let crashed = with(files(&fs), || {
        let (store, _) = open();
        store.create_space(9).expect("made");
        assert!(store.create_space(9).is_err());
        store
            .write_pages(&[(id, &page_of(id, 800, &mut rng))])
            .expect("written");
        assert_eq!(store.page_count(9).expect("there"), 4);
        store.drop_space(9).expect("dropped");
        assert!(!store.has_space(9));
        // A write-back that was under way does no harm.
        store
            .write_pages(&[(id, &page_of(id, 808, &mut rng))])
            .expect("left out");
        store.create_space(9).expect("made anew");
        assert!(store.write_pages(&[(PageId::new(77, 0), &[0; PAGE_SIZE])]).is_err());
        fs.crash_clone()
    });
    with(files(&crashed), || {
        let (store, report) = open();
        assert_eq!((store.spaces(), report.restored), (vec![9], vec![]));
        let read = store.read_page(id, &mut vec![1; PAGE_SIZE]).expect("read");
        assert_eq!(read, PageRead::NeverWritten);
    });
}

/// The process ended with the failed sync; the next one finds the page in its place, as the system still shows it, and
/// a power cut leaves what the disk has.
#[test]
fn what_a_failed_sync_dropped_is_written_again() {
    for after in 0..6 {
        let (fs, mut rng, id) = (MemFs::new(), Random(1), PageId::new(1, 3));
        let page = page_of(id, 8, &mut rng);
        with(files(&fs), || {
            let (store, _) = open();
            store.create_space(1).expect("made");
            store.write_pages(&[(id, &page)]).expect("written");
            fs.fail_syncs(after, 1);
            let others = (10..14).map(|n| PageId::new(1, n));
            let _ = others
                .map(|id| store.write_pages(&[(id, &page_of(id, 8, &mut rng))]))
                .count();
            let _ = store.sync();
        });
        let found = fs.kill_clone();
        with(files(&found), || {
            let (store, _) = open();
            for n in 20..30 {
                let id = PageId::new(1, n);
                store.write_pages(&[(id, &page_of(id, 16, &mut rng))]).expect("written");
            }
            store.sync().expect("synced");
        });
        with(files(&found.crash_clone()), || {
            let (store, _) = open();
            let mut read = vec![0; PAGE_SIZE];
            let kind = store.read_page(id, &mut read).expect("there");
            assert_ne!(kind, PageRead::NeverWritten, "after {after} syncs");
            assert_eq!(read[4..], page[4..], "after {after} syncs");
        });
    }
}

#[test]
fn a_failed_sync_poisons_the_store_and_a_full_disk_does_not() {
    let (fs, mut rng, mut model) = (MemFs::new(), Random(6), Model::default());
    let crashed = with(files(&fs), || {
        let (store, _) = open();
        (1..=3).for_each(|s| store.create_space(s).expect("made"));
        model.write(&store, &mut rng).expect("written");
        fs.set_capacity(Some(4_300_000));
        let full = loop {
            let id = PageId::new(1, 24 + rng.index(100_000) as u32);
            if let Err(e) = store.write_pages(&[(id, &page_of(id, 8, &mut rng))]) {
                break e;
            }
        };
        assert!(matches!(full, Error::Full(_)), "{full}");
        assert!(store.reserve(2, 1 << 20).is_err());
        fs.set_capacity(None);
        model.write(&store, &mut rng).expect("there is space again");
        fs.fail_syncs(2, 1);
        while model.write(&store, &mut rng).is_ok() {}
        assert!(matches!(model.write(&store, &mut rng), Err(Error::Poisoned(_))));
        assert!(matches!(store.sync(), Err(Error::Poisoned(_))));
        fs.crash_clone()
    });
    // The failed batch and those after it were refused; what was acknowledged is there.
    model.attempted.clear();
    with(files(&crashed), || {
        let (store, _) = open();
        let mut page = vec![0; PAGE_SIZE];
        for (id, wanted) in &model.known {
            assert_eq!(store.read_page(*id, &mut page).expect("there"), PageRead::Present);
            assert!(page_lsn(&page) >= page_lsn(wanted), "page {id}");
        }
    });
}

/// Writers of different pages at the same time share areas and syncs.
#[test]
fn concurrent_batches_are_all_there() {
    let fs = MemFs::new();
    fs.set_sync_time(rt::Nanos::from_micros(30));
    let crashed = with(files(&fs), || {
        let (store, _) = open();
        (1..=6).for_each(|s| store.create_space(s).expect("made"));
        let store = Arc::new(store);
        let threads: Vec<_> = (1..=6)
            .map(|space| {
                let store = store.clone();
                rt::spawn("writer", move || write_rounds(&store, space))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        fs.crash_clone()
    });
    with(files(&crashed), || {
        let (store, _) = open();
        let mut page = vec![0; PAGE_SIZE];
        for space in 1..=6 {
            for number in 0..10 {
                store.read_page(PageId::new(space, number), &mut page).expect("whole");
                assert_eq!(page_lsn(&page).raw(), 80, "page {space}:{number}");
            }
        }
    });
}

fn write_rounds(store: &PageStore, space: u32) {
    let mut rng = Random(space.into());
    for round in 1..=10 {
        let pages: Vec<(PageId, Vec<u8>)> = (0..10)
            .map(|n| PageId::new(space, n))
            .map(|id| (id, page_of(id, round * 8, &mut rng)))
            .collect();
        let batch: Vec<(PageId, &[u8])> = pages.iter().map(|(id, p)| (*id, &**p)).collect();
        store.write_pages(&batch).expect("written");
    }
}

#[test]
fn pages_given_back_read_as_never_written() {
    let (fs, mut rng) = (MemFs::new(), Random(1));
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        for n in 0..10 {
            let id = PageId::new(1, n);
            store.write_pages(&[(id, &page_of(id, 8, &mut rng))]).expect("written");
        }
        let before = store.bytes_on_disk().expect("measured");
        store.punch(1, 2..8).expect("punched");
        assert!(store.bytes_on_disk().expect("measured") <= before - 6 * PAGE_SIZE as u64);
        let mut page = vec![0; PAGE_SIZE];
        for n in 0..10 {
            let read = store.read_page(PageId::new(1, n), &mut page).expect("read");
            assert_eq!(read == PageRead::NeverWritten, (2..8).contains(&n), "page {n}");
        }
    });
}

/// The copy of a page of a dropped space came back in a new space of that number, when its process was not the one
/// that had written the copy: what is in the areas at opening was not remembered.
#[test]
fn copies_of_a_former_process_do_not_come_back_in_a_new_space() {
    let fs = MemFs::new();
    let id = PageId::new(5, 3);
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(5).expect("made");
        store
            .write_pages(&[(id, &page_of(id, 8, &mut Random(1)))])
            .expect("written");
        drop(store);
        let (store, _) = open();
        store.drop_space(5).expect("dropped");
        store.create_space(5).expect("made");
        drop(store);
    });
    with(files(&fs.crash_clone()), || {
        let mut page = vec![7; PAGE_SIZE];
        let read = open().0.read_page(id, &mut page).expect("read");
        assert_eq!(read, PageRead::NeverWritten);
    });
}

/// A process that made the areas empty for a new space was killed before that was synced. The next one saw them empty,
/// made the space without emptying them, and lost power: the copies of the former space came back.
#[test]
fn areas_that_look_empty_after_a_kill_are_made_empty_again() {
    let id = PageId::new(5, 3);
    for changes in 0..12 {
        let fs = MemFs::new();
        with(files(&fs), || {
            let (store, _) = open();
            store.create_space(5).expect("made");
            store
                .write_pages(&[(id, &page_of(id, 8, &mut Random(1)))])
                .expect("written");
            store.drop_space(5).expect("dropped");
            fs.halt_after(changes);
            let _ = store.create_space(5);
        });
        let found = fs.kill_clone();
        with(files(&found), || {
            let (store, _) = open();
            store.drop_space(5).expect("dropped");
            store.create_space(5).expect("made");
        });
        with(files(&found.crash_clone()), || {
            let mut page = vec![7; PAGE_SIZE];
            let read = open().0.read_page(id, &mut page).expect("read");
            assert_eq!(read, PageRead::NeverWritten, "killed after {changes} changes");
        });
    }
}

/// A sync that fails when a file is closed to make room for others was answered once and then forgotten: the next sync
/// of all spaces left the file out, and the copies of its pages were written over.
#[test]
fn a_sync_that_fails_when_files_are_closed_is_not_forgotten() {
    let fs = MemFs::new();
    with(files(&fs), || {
        let (store, _) = open();
        let id = PageId::new(1, 3);
        store.create_space(1).expect("made");
        store
            .write_pages(&[(id, &page_of(id, 8, &mut Random(1)))])
            .expect("written");
        for space in 2..=400 {
            store.create_space(space).expect("made");
        }
        fs.fail_syncs(0, 1);
        store
            .create_space(401)
            .expect_err("files are closed, one of them dirty");
        fs.heal();
        store.sync().expect_err("what was written may be lost");
        let error = store.write_pages(&[(id, &page_of(id, 16, &mut Random(2)))]);
        assert!(matches!(error, Err(Error::Poisoned(_))), "{error:?}");
    });
}

/// Opening looked for each page of the areas on its own: 200 reads, one after the other. And it read all copies, though
/// the pages are where they belong but for those that were being written.
#[test]
fn opening_reads_places_at_once_and_few_copies() {
    let (fs, mut rng) = (MemFs::new(), Random(9));
    let drive = Drive::new(DriveSpeed {
        read_latency: rt::Nanos::from_millis(20),
        sync_latency: rt::Nanos::ZERO,
        bytes_per_second: 1e18,
        operations_per_second: 1e18,
    });
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        let pages: Vec<(PageId, Vec<u8>)> = (0..4 * BATCH as u32)
            .map(|n| (PageId::new(1, n), page_of(PageId::new(1, n), 8, &mut rng)))
            .collect();
        let batch: Vec<(PageId, &[u8])> = pages.iter().map(|(id, p)| (*id, &**p)).collect();
        store.write_pages(&batch).expect("written");
    });
    let fs = fs.kill_clone();
    fs.set_drive(Some(drive.clone()));
    with(files(&fs), || {
        let begun = rt::now();
        let (_, report) = open();
        assert_eq!(report.restored, []);
        let took = rt::now().since(begun);
        assert!(took < rt::Nanos::from_millis(1000), "two waits, not 264: {took:?}");
    });
    let used = drive.counters();
    assert_eq!(
        (used.reads, used.bytes_read),
        (4 + 4 * BATCH as u64, (4 + 4 * BATCH as u64) * PAGE_SIZE as u64)
    );
}

/// Where things lie in the files of pages: space 1, and an area.
fn in_place(number: usize) -> u64 {
    number as u64 * PAGE_SIZE as u64
}

fn in_area(area: usize, slot: usize) -> u64 {
    (area * (BATCH + 1)) as u64 * PAGE_SIZE as u64 + in_place(slot + 1)
}

fn file(name: &str) -> rt::fs::File {
    rt::fs::open(dir().join(name), rt::fs::OpenOptions::WRITE).expect("there")
}

const SPACE: &str = "spaces/00000001.pages";

/// Which copy is of this version.
fn copy_of(version: &[u8]) -> u64 {
    let (areas, mut found) = (file("doublewrite"), vec![0; PAGE_SIZE]);
    let holds = |at: &u64| {
        let read = areas.read_exact_at(&mut found, *at);
        read.is_ok() && found[4..] == version[4..]
    };
    let all = (0..4).flat_map(|area| (0..BATCH).map(move |slot| in_area(area, slot)));
    all.into_iter().find(holds).expect("in an area")
}

/// Bits flip, or never arrived.
fn damage(file_of: &str, at: u64) {
    file(file_of).write_at(&[1; 512], at + 512).expect("written");
}

fn read(store: &PageStore, id: PageId) -> Result<Vec<u8>> {
    let mut page = vec![0; PAGE_SIZE];
    store.read_page(id, &mut page)?;
    page[..4].fill(0);
    Ok(page)
}

/// `count` versions of some pages of space 1, each version a batch, in an empty store.
fn versions_of(ids: &[PageId], count: u64, rng: &mut Random) -> Vec<Vec<Vec<u8>>> {
    let (store, _) = open();
    store.create_space(1).expect("made");
    let version = |v: u64| {
        let pages: Vec<Vec<u8>> = ids.iter().map(|id| page_of(*id, v * STEP, rng)).collect();
        write_version(&store, ids, &pages);
        pages
    };
    (1..=count).map(version).collect()
}

fn write_version(store: &PageStore, ids: &[PageId], pages: &[Vec<u8>]) {
    let batch: Vec<(PageId, &[u8])> = ids.iter().zip(pages).map(|(id, p)| (*id, &**p)).collect();
    store.write_pages(&batch).expect("written");
}

fn ids(count: u32) -> Vec<PageId> {
    (0..count).map(|n| PageId::new(1, n)).collect()
}

/// Puts an older version in place, as if the writes after it had not arrived.
fn put_old(number: usize, version: &[u8]) {
    let mut page = version.to_vec();
    set_page_checksum(&mut page);
    file(SPACE).write_at(&page, in_place(number)).expect("written");
}

/// What lies in place and in the areas after a crash is put together by hand: for each page the newest version counts,
/// wherever it is whole; where it is not, no older one does.
#[test]
fn the_newest_version_counts() {
    let (fs, mut rng, ids) = (MemFs::new(), Random(10), ids(5));
    let versions = with(files(&fs), || {
        let versions = versions_of(&ids, 3, &mut rng);
        // Page 0 as it is; 1: the last write in place never came; 2: torn in place; 3: damaged, and the newest copy,
        // too; 4: the newest copy is damaged, and in place is the version before.
        put_old(1, &versions[0][1]);
        damage(SPACE, in_place(2));
        damage(SPACE, in_place(3));
        damage("doublewrite", copy_of(&versions[2][3]));
        damage("doublewrite", copy_of(&versions[2][4]));
        put_old(4, &versions[1][4]);
        versions
    });
    with(files(&fs), || {
        let (store, report) = open();
        assert_eq!((report.restored, report.lost), (ids[1..3].to_vec(), ids[3..].to_vec()));
        for number in 0..3 {
            assert!(
                read(&store, ids[number]).expect("whole") == versions[2][number],
                "page {number}"
            );
        }
        for lost in &ids[3..] {
            assert!(matches!(read(&store, *lost), Err(Error::Corrupt(_))), "page {lost}");
        }
        // It is not found later either, when nothing in the areas tells of it any more.
        for v in 10..20 {
            write_version(&store, &ids[..1], &[page_of(ids[0], v * STEP, &mut rng)]);
        }
        drop(store);
        let (store, _) = open();
        for lost in &ids[3..] {
            assert!(matches!(read(&store, *lost), Err(Error::Corrupt(_))), "page {lost}");
        }
        // Until there is a new version.
        write_version(&store, &ids[3..], &versions[2][3..]);
        assert!(read(&store, ids[4]).expect("whole") == versions[2][4]);
    });
}

/// The story: a start ended at the first place that could not be read, whatever the areas had of that page.
#[test]
fn a_place_that_cannot_be_read_gets_its_copy_or_nothing_is_changed() {
    let (fs, mut rng, ids) = (MemFs::new(), Random(12), ids(3));
    let versions = with(files(&fs), || versions_of(&ids, 2, &mut rng));
    let newest = |number: usize| with(files(&fs), || copy_of(&versions[1][number]));
    let page = |at: u64| at..at + PAGE_SIZE as u64;
    let (space, areas) = (dir().join(SPACE), dir().join("doublewrite"));

    let copy = fs.kill_clone();
    copy.fail_reads_of(&space);
    with(files(&copy), || {
        let (store, report) = open();
        assert_eq!((report.restored, report.lost), (ids.clone(), Vec::new()));
        copy.heal();
        for (id, wanted) in ids.iter().zip(&versions[1]) {
            assert!(read(&store, *id).expect("whole") == *wanted, "page {id}");
        }
    });

    // Page 1's newest copy cannot be read, or is damaged: that page is the one that is named, and page 0, which could
    // be put back, is left as it is.
    for is_damaged in [false, true] {
        let copy = fs.kill_clone();
        if is_damaged {
            with(files(&copy), || damage("doublewrite", newest(1)));
        } else {
            copy.fail_reads_at(&areas, page(newest(1)));
        }
        with(files(&copy), || damage(SPACE, in_place(0)));
        copy.fail_reads_at(&space, page(in_place(1)));
        let before = copy.counts();
        with(files(&copy), || {
            let Err(error) = try_open(&Redo::new()) else {
                panic!("page {} is believed", ids[1])
            };
            let (is_io, said) = (matches!(error, Error::Io { .. }), error.to_string());
            assert!(
                is_io && said.contains(&format!("page {} cannot", ids[1])) && said.contains(SPACE),
                "{said}"
            );
            assert_eq!(copy.counts().bytes_written, before.bytes_written, "nothing was changed");
            // The log has it.
            let (store, report) = open_by(&Redo::from([(ids[1], vec![image(ids[1], &versions[1][1])])]));
            assert_eq!((report.rebuilt, report.lost), (ids[1..2].to_vec(), Vec::new()));
            copy.heal();
            for (id, wanted) in ids.iter().zip(&versions[1]) {
                assert!(read(&store, *id).expect("whole") == *wanted, "page {id}");
            }
        });
    }

    // Page 2 is older in its place, and its newest copy cannot be read: it is not lost for that, and is there when the
    // copy is.
    let copy = fs.kill_clone();
    with(files(&copy), || put_old(2, &versions[0][2]));
    copy.fail_reads_at(&areas, page(newest(2)));
    with(files(&copy), || {
        let error = try_open(&Redo::new()).err().expect("its newest version is not known");
        assert!(error.to_string().contains("doublewrite"), "{error}");
        copy.heal();
        let (store, report) = open();
        assert_eq!((report.restored, report.lost), (ids[2..].to_vec(), Vec::new()));
        assert!(read(&store, ids[2]).expect("whole") == versions[1][2]);
    });
}

/// Page 0 is damaged in place, and so is its newest copy (version 2): an older copy is whole, as is page 1's older
/// version in place.
fn without_newest(fs: &MemFs, ids: &[PageId]) -> Vec<Vec<Vec<u8>>> {
    with(files(fs), || {
        let versions = versions_of(ids, 2, &mut Random(11));
        damage(SPACE, in_place(0));
        damage("doublewrite", copy_of(&versions[1][0]));
        damage("doublewrite", copy_of(&versions[1][1]));
        put_old(1, &versions[0][1]);
        versions
    })
}

/// The log still has what the newest version brought: the page is built, and whatever point of that a crash stops, the
/// next start builds it.
#[test]
fn redo_builds_the_newest_version_and_may_be_cut_off() {
    let ids = ids(2);
    for cut in 0..40 {
        let fs = MemFs::new();
        let versions = without_newest(&fs, &ids);
        let mut fs = fs.kill_clone();
        let redo: Redo = ids
            .iter()
            .zip(&versions[1])
            .map(|(id, page)| (*id, vec![image(*id, page)]))
            .collect();
        fs.halt_after(cut);
        fs = with(files(&fs), || {
            let _ = try_open(&redo);
            fs.crash_clone_torn(cut)
        });
        with(files(&fs), || {
            let (store, report) = open_by(&redo);
            assert_eq!(report.lost, [], "cut {cut}");
            for (id, wanted) in ids.iter().zip(&versions[1]) {
                assert!(read(&store, *id).expect("whole") == *wanted, "page {id}, cut {cut}");
            }
        });
    }
}

/// Redo that begins beyond the base, or passes a version that was listed, or ends before the newest, builds nothing.
#[test]
fn redo_with_a_gap_builds_nothing() {
    let (fs, ids) = (MemFs::new(), ids(2));
    let versions = without_newest(&fs, &ids);
    let change = |prev, lsn| record(ids[0], prev, lsn, |b, r| b.write(r, 100, b"changed"));
    let follows = STEP - 64;
    let cases = [
        (vec![change(follows, 2 * STEP)], true),
        (vec![change(0, 2 * STEP)], true),
        (vec![change(follows, STEP + 512), change(STEP + 400, 2 * STEP)], true),
        (vec![change(STEP, 2 * STEP)], false),
        (vec![change(STEP + 400, 2 * STEP)], false),
        (vec![change(follows, STEP + 512)], false),
        (vec![], false),
    ];
    for (number, (records, builds)) in cases.into_iter().enumerate() {
        with(files(&fs.kill_clone()), || {
            let (store, report) = open_by(&Redo::from([(ids[0], records)]));
            assert_eq!(report.rebuilt == ids[..1], builds, "case {number}");
            let mut wanted = versions[0][0].clone();
            wanted[100..107].copy_from_slice(b"changed");
            set_page_lsn(&mut wanted, Lsn::from_raw(2 * STEP));
            match read(&store, ids[0]) {
                Ok(page) => assert!(builds && page == wanted, "case {number}"),
                Err(error) => assert!(!builds && matches!(error, Error::Corrupt(_)), "case {number}"),
            }
        });
    }
}

/// A batch is cut off at any sector, its head or its tail being what arrived, while the writes in place of the batch
/// before are torn: each page has the version before or the new one.
#[test]
fn a_batch_that_is_cut_off_at_any_sector_leaves_whole_pages() {
    let ids = ids(2);
    for round in [1, 4] {
        let (fs, mut rng) = (MemFs::new(), Random(12));
        // Before, and after: the last batch lies in an area of its own, or over another.
        let (known, attempted, before, after) = with(files(&fs), || {
            let mut versions = versions_of(&ids, round, &mut rng);
            let areas = file("doublewrite");
            let bytes = || {
                let mut bytes = vec![0; areas.len().expect("measured") as usize];
                areas.read_exact_at(&mut bytes, 0).expect("read");
                bytes
            };
            let before = bytes();
            let (store, _) = open();
            let attempted: Vec<Vec<u8>> = ids.iter().map(|id| page_of(*id, 9 * STEP, &mut rng)).collect();
            write_version(&store, &ids, &attempted);
            (versions.pop().expect("some"), attempted, before, bytes())
        });
        let redo: Redo = ids
            .iter()
            .zip(&attempted)
            .map(|(id, page)| (*id, vec![image(*id, page)]))
            .collect();
        let changed: Vec<usize> = (0..after.len())
            .step_by(512)
            .filter(|at| before[*at..at + 512] != after[*at..at + 512])
            .collect();
        for (cut, head) in (0..changed.len()).flat_map(|cut| [(cut, true), (cut, false)]) {
            with(files(&fs.kill_clone()), || {
                let areas = file("doublewrite");
                areas.write_at(&before, 0).expect("written");
                let arrived = if head { &changed[..cut] } else { &changed[cut..] };
                for at in arrived {
                    areas.write_at(&after[*at..at + 512], *at as u64).expect("written");
                }
                put_old(0, &known[0]);
                put_old(1, &known[1]);
                // Round 1: the only batch is this one's predecessor, whole in its area.
                damage(SPACE, in_place(0));
                let (store, report) = open_by(&redo);
                assert_eq!(report.lost, [], "cut {cut}");
                for (number, id) in ids.iter().enumerate() {
                    let page = read(&store, *id).expect("whole");
                    assert!(
                        page == known[number] || page == attempted[number],
                        "page {id}, cut {cut}, {head}"
                    );
                }
            });
        }
    }
}

/// A start took the areas in the order of the file, not of their batches: it wrote over the newest copy of a page and
/// left an older one, which the next start put back where the page in place had rotted.
#[test]
fn a_newer_copy_is_never_written_over_before_an_older_one() {
    let (ids, other) = (ids(1), PageId::new(1, 9));
    for (before, after) in (1..8).flat_map(|before| (0..8).map(move |after| (before, after))) {
        let (fs, mut rng) = (MemFs::new(), Random(before));
        with(files(&fs), || {
            let versions = versions_of(&ids, before, &mut rng);
            let newest = &versions[before as usize - 1][0];
            let (store, _) = open();
            for v in 0..after {
                write_version(&store, &[other], &[page_of(other, (20 + v) * STEP, &mut rng)]);
            }
            drop(store);
            damage(SPACE, in_place(0));
            let (store, _) = open();
            match read(&store, ids[0]) {
                Ok(page) => assert!(page == *newest, "stale after {before} and {after} batches"),
                Err(_) => assert!(after >= 4, "its copy is there after {before} and {after} batches"),
            }
        });
    }
}

/// While an area is written over, the list before is still there, until the new one is whole.
#[test]
fn a_list_that_is_cut_off_leaves_the_one_before() {
    let (fs, ids) = (MemFs::new(), ids(1));
    with(files(&fs), || {
        versions_of(&ids, 5, &mut Random(14));
        // The fifth batch lies over the first.
        let areas = file("doublewrite");
        let mut header = vec![0; PAGE_SIZE];
        for wanted in [5, 1] {
            areas.read_exact_at(&mut header, 0).expect("there");
            let list = lists::newest(&header, DATABASE).expect("known").expect("whole");
            assert_eq!(list.entries[0].lsn.raw(), wanted * STEP);
            for copy in [list.turn, list.turn + 2] {
                areas.write_at(&[7; 512], copy as u64 * 4096).expect("written");
            }
        }
    });
}

/// Writers side by side may write over a newer batch before an older one. The list that is left says that the older one
/// is settled, so that it is not needed for what a crash tore; and the one that is gone may have been newer.
#[test]
fn a_settled_copy_is_put_back_only_if_no_newer_one_can_have_been_there() {
    let (id, other) = (PageId::new(1, 0), PageId::new(1, 1));
    for (settled, newer, is_back) in [(0, 7, true), (5, 6, true), (5, 7, false)] {
        let (fs, mut rng) = (MemFs::new(), Random(13));
        with(files(&fs), || {
            let (store, _) = open();
            store.create_space(1).expect("made");
            drop(store);
            let lay = |area: usize, sequence, settled, id, rng: &mut Random| {
                let mut page = page_of(id, STEP, rng);
                set_page_checksum(&mut page);
                let entry = lists::Entry {
                    id,
                    lsn: Lsn::from_raw(STEP),
                    sum: get_le::<u32>(&page, 0).expect("four bytes"),
                    sectors: Sectors::WHOLE,
                };
                let list = lists::List {
                    sequence,
                    turn: 0,
                    settled: [settled, 0, 0, 0],
                    entries: vec![entry],
                };
                let mut header = vec![0; PAGE_SIZE];
                lists::put(&mut header, &list, DATABASE);
                let at = in_area(area, 0);
                file("doublewrite")
                    .write_at(&header, at - PAGE_SIZE as u64)
                    .expect("written");
                file("doublewrite").write_at(&page, at).expect("written");
                file(SPACE)
                    .write_at(&page, in_place(id.page as usize))
                    .expect("written");
            };
            lay(0, 5, 0, id, &mut rng);
            lay(1, newer, settled, other, &mut rng);
            damage(SPACE, in_place(0));
            let (store, _) = open();
            assert_eq!(read(&store, id).is_ok(), is_back, "settled {settled}, newer {newer}");
        });
    }
}

/// A page and three versions of it, each behind the first a change of a part, written one after the other.
fn versions_by_parts(id: PageId, rng: &mut Random) -> Vec<Vec<u8>> {
    let (store, _) = open();
    store.create_space(1).expect("made");
    let mut versions = vec![page_of(id, STEP, rng)];
    store.write_pages(&[(id, &versions[0])]).expect("written");
    for v in 2..=3 {
        let (page, changed) = change_of(&versions[versions.len() - 1], v * STEP, rng);
        let write = [(id, page, changed)];
        store.write_changes(&writes(&write)).expect("written");
        let [(_, page, _)] = write;
        versions.push(page);
    }
    versions
}

/// Each sector in place as of one of the versions.
fn put_mixture(versions: &[Vec<u8>], rng: &mut Random) {
    let mut whole = versions.to_vec();
    whole.iter_mut().for_each(|page| set_page_checksum(page));
    for at in (0..PAGE_SIZE).step_by(Sectors::BYTES) {
        let version = &whole[rng.index(whole.len())];
        file(SPACE)
            .write_at(&version[at..at + Sectors::BYTES], at as u64)
            .expect("written");
    }
}

/// Copies have parts of a page only. Whichever sectors of two writes arrived in its place, the copies of both make the
/// newest version of it.
#[test]
fn copies_of_parts_make_the_newest_version_of_whatever_arrived() {
    let id = PageId::new(1, 0);
    for seed in 0..60 {
        let (fs, mut rng) = (MemFs::new(), Random(100 + seed));
        with(files(&fs), || {
            let versions = versions_by_parts(id, &mut rng);
            put_mixture(&versions, &mut rng);
            let (store, report) = open();
            assert!(report.lost.is_empty(), "seed {seed}");
            assert!(read(&store, id).expect("whole") == versions[2], "seed {seed}");
            // And once more, since what was put back may be torn in its turn.
            drop(store);
            put_mixture(&versions, &mut rng);
            let (store, _) = open();
            assert!(read(&store, id).expect("whole") == versions[2], "seed {seed}, again");
        });
    }
}

/// A power cut took a block that was being written: the drive cannot read it any more. The copy has all of that block,
/// also what did not change; the page's other blocks are read in their place.
#[test]
fn a_block_that_the_drive_has_lost_is_made_of_its_copy() {
    let id = PageId::new(1, 0);
    for seed in 0..20 {
        let (fs, mut rng) = (MemFs::new(), Random(500 + seed));
        let (versions, last) = with(files(&fs), || {
            let (store, _) = open();
            store.create_space(1).expect("made");
            let first = page_of(id, STEP, &mut rng);
            store.write_pages(&[(id, &first)]).expect("written");
            let (second, changed) = change_of(&first, 2 * STEP, &mut rng);
            let write = [(id, second.clone(), changed)];
            store.write_changes(&writes(&write)).expect("written");
            // The first copy is of a settled batch.
            file("doublewrite")
                .write_at(&[9; PAGE_SIZE], in_area(0, 0))
                .expect("written");
            ([first, second], changed)
        });
        for block in (0..PAGE_SIZE as u64).step_by(4096) {
            let was_written = last
                .in_blocks(4096)
                .ranges()
                .any(|range| range.contains(&(block as usize)));
            let copy = fs.kill_clone();
            copy.fail_reads_at(dir().join(SPACE), block..block + 4096);
            with(files(&copy), || match try_open(&Redo::new()) {
                Ok((store, report)) => {
                    assert!(was_written && report.lost.is_empty(), "seed {seed}, block {block}");
                    copy.heal();
                    assert!(
                        read(&store, id).expect("whole") == versions[1],
                        "seed {seed}, block {block}"
                    );
                }
                Err(error) => assert!(!was_written, "seed {seed}, block {block}: {error}"),
            });
        }
    }
}

/// The area of a settled batch is being written over when the power goes: its list is there still, and its copies are
/// not. They are not laid under the newer copy.
#[test]
fn a_settled_copy_that_is_spoilt_does_not_spoil_the_newer_one() {
    let id = PageId::new(1, 0);
    for seed in 0..40 {
        let (fs, mut rng) = (MemFs::new(), Random(300 + seed));
        with(files(&fs), || {
            let versions = versions_by_parts(id, &mut rng);
            // Batches lie in the areas in their order.
            file("doublewrite")
                .write_at(&[9; 2048], in_area(1, 0))
                .expect("written");
            put_mixture(&versions[1..], &mut rng);
            let (store, report) = open();
            assert!(report.lost.is_empty(), "seed {seed}");
            assert!(read(&store, id).expect("whole") == versions[2], "seed {seed}");
        });
    }
}

/// A part that was not said to be changed is not written: the caller's duty is one that a read notices.
#[test]
fn what_changed_and_was_not_said_to_is_noticed() {
    let (fs, mut rng, id) = (MemFs::new(), Random(5), PageId::new(1, 0));
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        let mut page = page_of(id, STEP, &mut rng);
        store.write_pages(&[(id, &page)]).expect("written");
        page[9000..9100].fill(0);
        let write = [(id, page, Sectors::NONE)];
        store.write_changes(&writes(&write)).expect("written");
        assert!(matches!(read(&store, id), Err(Error::Corrupt(_))));
    });
}
