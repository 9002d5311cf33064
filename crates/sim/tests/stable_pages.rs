//! Pages that are looked at while they are written: a check, or a copy of a running database, found a page damaged
//! whose writer was held up for half a second between two of its blocks.

use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Lsn, PAGE_SIZE, PageId};
use cenote_sim::{explore, run};
use cenote_storage::PageStore;
use cenote_storage::redo::set_page_lsn;
use cenote_testkit::faulty::FaultPlan;

/// The first and the last block of a page, which go to its place by two writes.
fn both_ends() -> Sectors {
    Sectors::of(0, 1).and(Sectors::of(PAGE_SIZE - 1, 1))
}

fn page_of(id: PageId, version: u64) -> Vec<u8> {
    let mut page = vec![7; PAGE_SIZE];
    page[..4].fill(0);
    page[4..12].copy_from_slice(&id.to_bytes());
    set_page_lsn(&mut page, Lsn::from_raw(8 * version));
    page[PAGE_SIZE - 1] = version as u8;
    page
}

/// A store whose space 1 has so many pages of version 1.
fn store(pages: u32) -> Arc<PageStore> {
    let data = Path::new("/data");
    fs::create_dir_all(data).expect("made");
    let (store, _) = PageStore::open(data, 77, None, &mut |_| Ok(Default::default())).expect("opens");
    store.create_space(1).expect("made");
    for number in 0..pages {
        let id = PageId::new(1, number);
        store.write_pages(&[(id, &page_of(id, 1))]).expect("written");
    }
    Arc::new(store)
}

fn change(store: &PageStore, id: PageId, version: u64) {
    let write = PageWrite {
        id,
        bytes: &page_of(id, version),
        changed: both_ends(),
    };
    store.write_changes(&[write]).expect("written");
}

fn damaged(store: &PageStore) -> Vec<PageId> {
    let mut found = Vec::new();
    store.check_all(&mut |id, _| found.push(id)).expect("read");
    found
}

#[test]
fn a_page_whose_writer_is_held_up_is_not_damaged_and_a_damaged_one_is_found() {
    run(1, |sim| {
        let (files, store, written) = (sim.files(), store(2), PageId::new(1, 0));
        let behind = PAGE_SIZE as u64 + 9000;
        files.flip("/data/spaces/00000001.pages", behind, 4).expect("inside");
        let held_up = FaultPlan {
            stall: 1.0,
            stall_time: Nanos::from_millis(2000),
            files: ".pages".into(),
            ..FaultPlan::default()
        };
        files.set_plan(held_up, 1);
        let writer = rt::spawn("writer", {
            let store = store.clone();
            move || change(&store, written, 2)
        });
        // The first block is in place; the other is on its way.
        rt::sleep(Nanos::from_millis(2500));
        files.set_plan(FaultPlan::default(), 1);
        assert_eq!(damaged(&store), [PageId::new(1, 1)]);
        let mut page = vec![0; PAGE_SIZE];
        assert_eq!(store.read_stable(written, &mut page).expect("whole"), PageRead::Present);
        assert_eq!(page[12..], page_of(written, 2)[12..], "as its writer left it");
        writer.join().expect("no panic");
    });
}

/// Writers, a thread that gives space back, and two that check. No check finds a damaged page.
#[test]
fn no_page_seems_damaged_while_pages_are_written_and_given_back() {
    explore(200, |sim| {
        let seed = sim.seed();
        sim.files().set_plan(FaultPlan::harmless(seed), seed);
        let store = store(6);
        let mut threads = vec![rt::spawn("gives back", {
            let store = store.clone();
            move || (0..3).for_each(|_| store.punch(1, 4..6).expect("punched"))
        })];
        for writer in 0..2 {
            let (store, mut random) = (store.clone(), Random(seed ^ writer));
            threads.push(rt::spawn("writes", move || {
                for version in 2..12 {
                    let page = 2 * writer as u32 + random.below(2) as u32;
                    change(&store, PageId::new(1, page), version);
                }
            }));
        }
        for _ in 0..2 {
            let store = store.clone();
            threads.push(rt::spawn("checks", move || {
                (0..8).for_each(|_| assert_eq!(damaged(&store), []));
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}
