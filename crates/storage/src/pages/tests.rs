//! Pages against torn writes, crashes at any point, damage, and failing disks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt;
use cenote_base::rt::fs::faulty::{Drive, DriveSpeed, MemFs};
use cenote_base::rt::fs::{FileSystem, with};
use cenote_base::{Lsn, PageId};

use super::*;
use crate::redo::set_page_lsn;
use crate::testing::{DATABASE, Rng};

fn files(fs: &MemFs) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

fn dir() -> &'static Path {
    Path::new("/data")
}

fn open() -> (PageStore, PagesReport) {
    cenote_base::rt::fs::create_dir_all(dir()).expect("made");
    PageStore::open(dir(), DATABASE).expect("opens")
}

/// A page's bytes without its checksum, which the store fills in.
fn page_of(id: PageId, lsn: u64, rng: &mut Rng) -> Vec<u8> {
    let mut page = vec![rng.next() as u8 | 1; PAGE_SIZE];
    page[..4].fill(0);
    page[4..12].copy_from_slice(&id.to_bytes());
    set_page_lsn(&mut page, Lsn::from_raw(lsn));
    page
}

/// What each page holds as far as the test has been told: acknowledged, or being written.
#[derive(Default)]
struct Model {
    known: BTreeMap<PageId, Vec<u8>>,
    attempted: BTreeMap<PageId, Vec<u8>>,
    lsn: u64,
}

impl Model {
    fn write(&mut self, store: &PageStore, rng: &mut Rng) -> Result<()> {
        let mut batch: BTreeMap<PageId, Vec<u8>> = BTreeMap::new();
        for _ in 0..1 + rng.below(12) {
            self.lsn += 8;
            let id = PageId::new(1 + rng.below(3) as u32, rng.below(20) as u32);
            batch.insert(id, page_of(id, self.lsn, rng));
        }
        self.attempted = batch.clone();
        let pages: Vec<(PageId, &[u8])> = batch.iter().map(|(id, p)| (*id, &**p)).collect();
        store.write_pages(&pages)?;
        self.known.extend(batch);
        Ok(())
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
    for seed in 0..80 {
        let mut rng = Rng(seed);
        let (mut fs, mut model) = (MemFs::new(), Model::default());
        for round in 0..5 {
            let hint = format!("seed {seed} round {round}");
            fs = with(files(&fs), || {
                let (store, _) = open();
                for space in (1..=3).filter(|s| !store.has_space(*s)) {
                    store.create_space(space).expect("made");
                }
                model.assert_pages(&store, &hint);
                fs.halt_after(rng.below(120) as u64);
                while model.write(&store, &mut rng).is_ok() {}
                fs.crash_clone_torn(rng.next())
            });
        }
    }
}

/// Two pages torn in place, one of them with a whole copy in the area: one is repaired where it
/// is read, the other an error that says which.
#[test]
fn a_torn_page_is_rebuilt_at_reading_or_is_an_error() {
    let (fs, mut rng) = (MemFs::new(), Rng(1));
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
        let wrong = page_of(PageId::new(1, 5), 8, &mut Rng(1));
        store.write_pages(&[(PageId::new(1, 3), &wrong)]).expect("written");
        let error = store.read_page(PageId::new(1, 3), &mut vec![0; PAGE_SIZE]);
        assert!(error.expect_err("refused").to_string().contains("1:5"));
    });
}

#[test]
fn spaces_are_made_and_dropped_durably_and_old_copies_stay_away() {
    let (fs, mut rng) = (MemFs::new(), Rng(1));
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

/// The process ended with the failed sync; the next one finds the page in its place, as the system still shows it, and a power cut leaves
/// what the disk has.
#[test]
fn what_a_failed_sync_dropped_is_written_again() {
    for after in 0..6 {
        let (fs, mut rng, id) = (MemFs::new(), Rng(1), PageId::new(1, 3));
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
    let (fs, mut rng, mut model) = (MemFs::new(), Rng(6), Model::default());
    let crashed = with(files(&fs), || {
        let (store, _) = open();
        (1..=3).for_each(|s| store.create_space(s).expect("made"));
        model.write(&store, &mut rng).expect("written");
        fs.set_capacity(Some(4_300_000));
        let full = loop {
            let id = PageId::new(1, 24 + rng.below(100_000) as u32);
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
    let mut rng = Rng(space.into());
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
    let (fs, mut rng) = (MemFs::new(), Rng(1));
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
            .write_pages(&[(id, &page_of(id, 8, &mut Rng(1)))])
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

/// A sync that fails when a file is closed to make room for others was answered once and then forgotten: the next sync of all
/// spaces left the file out, and the copies of its pages were written over.
#[test]
fn a_sync_that_fails_when_files_are_closed_is_not_forgotten() {
    let fs = MemFs::new();
    with(files(&fs), || {
        let (store, _) = open();
        let id = PageId::new(1, 3);
        store.create_space(1).expect("made");
        store
            .write_pages(&[(id, &page_of(id, 8, &mut Rng(1)))])
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
        let error = store.write_pages(&[(id, &page_of(id, 16, &mut Rng(2)))]);
        assert!(matches!(error, Err(Error::Poisoned(_))), "{error:?}");
    });
}

/// Opening looked for each page of the areas on its own: 200 reads, one after the other. And it read all copies, though
/// the pages are where they belong but for those that were being written.
#[test]
fn opening_reads_places_at_once_and_few_copies() {
    let (fs, mut rng) = (MemFs::new(), Rng(9));
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

/// What lies in place and in the areas after a crash is put together by hand: for each page the newest copy that is whole counts,
/// unless what is in place is newer.
#[test]
fn the_newest_whole_copy_counts() {
    let (fs, mut rng) = (MemFs::new(), Rng(10));
    let ids: Vec<PageId> = (0..5).map(|n| PageId::new(1, n)).collect();
    let versions: Vec<Vec<Vec<u8>>> = (1..4)
        .map(|v| ids.iter().map(|id| page_of(*id, 8 * v, &mut rng)).collect())
        .collect();
    let in_place = |number: usize| number as u64 * PAGE_SIZE as u64;
    let copy = |area: u64, slot: usize| area * (BATCH as u64 + 1) * PAGE_SIZE as u64 + in_place(slot + 1);
    with(files(&fs), || {
        let (store, _) = open();
        store.create_space(1).expect("made");
        for version in &versions {
            let batch: Vec<(PageId, &[u8])> = ids.iter().zip(version).map(|(id, p)| (*id, &**p)).collect();
            store.write_pages(&batch).expect("written");
        }
        drop(store);
        let open = |name: &str| rt::fs::open(dir().join(name), rt::fs::OpenOptions::WRITE).expect("there");
        let (space, areas) = (open("spaces/00000001.pages"), open("doublewrite"));
        // The area of a batch is the one with its bytes.
        let area_of = |bytes: &[u8]| {
            let mut found = vec![0; PAGE_SIZE];
            let holds = |area: &u64| {
                areas.read_exact_at(&mut found, copy(*area, 0)).expect("there");
                found[4..] == bytes[4..]
            };
            (0..4).find(holds).expect("in an area")
        };
        let old = |number: usize, version: usize| {
            let mut page = versions[version][number].clone();
            set_page_checksum(&mut page);
            space.write_at(&page, in_place(number)).expect("written");
        };
        let newest = area_of(&versions[2][0]);
        // Page 0 as it is; 1: the last write in place never came; 2: torn in place; 3: torn, and the newest copy, too;
        // 4: the newest copy is torn, and in place is the version before.
        old(1, 0);
        space.write_at(&[1; 512], in_place(2) + 512).expect("written");
        space.write_at(&[1; 512], in_place(3) + 512).expect("written");
        areas.write_at(&[1; 512], copy(newest, 3) + 512).expect("written");
        areas.write_at(&[1; 512], copy(newest, 4) + 512).expect("written");
        old(4, 1);
    });
    with(files(&fs), || {
        let (store, report) = open();
        assert_eq!(report.restored, ids[1..4]);
        for (number, version) in [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)] {
            let mut page = vec![0; PAGE_SIZE];
            assert_eq!(
                store.read_page(ids[number], &mut page).expect("whole"),
                PageRead::Present
            );
            assert!(page[4..] == versions[version][number][4..], "page {number}");
        }
    });
}
