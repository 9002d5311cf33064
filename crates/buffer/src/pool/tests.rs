//! Waiting for a latch while the frame changes its page.

use std::path::Path;
use std::sync::Arc;

use cenote_base::PageId;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, fs, fs::faulty::MemFs};
use cenote_storage::DataDir;

use crate::hash::key_of;
use crate::open::{BufferPool, Config, Kind};

const SPACE: u32 = 1000;

fn open() -> BufferPool {
    let mut config = Config::new(Kind::Dram, 12 << 20);
    config.ring = Some((4 << 20) + 4096);
    config.background = false;
    BufferPool::open(config, DataDir::open(Path::new("/data")).expect("data"))
        .expect("pool")
        .0
}

/// A thread waits for `page`; its frame is evicted and gets another page, which is latched at once, and stays so until the thread
/// has what it wants. (It waited for the other page's latch, and three threads that did so at a time waited for each other.)
fn the_frame_moves_on(get: fn(&BufferPool, PageId)) {
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let pool = open();
        pool.storage().pages().create_space(SPACE).expect("space");
        let (page, other) = (PageId::new(SPACE, 1), PageId::new(SPACE, 2));
        for page in [page, other] {
            let mut m = pool.mtr();
            m.create(page, 7, 0).expect("create");
            m.commit();
        }
        pool.flush_all().expect("flush");
        pool.discard_pages(SPACE, 2..3).expect("discarded");
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        let held = pool.try_latch_exclusive(frame).expect("a slot").expect("free");
        std::thread::scope(|s| {
            let (pool, files) = (&pool, files.clone());
            let waiter = s.spawn(move || fs::with(Arc::new(files), || get(pool, page)));
            while pool.parking.waiters(frame) == 0 {
                rt::sleep(Nanos::from_millis(1));
            }
            let d = pool.frames.descriptor(frame);
            pool.hash
                .lock(&pool.frames, key_of(page))
                .remove(frame)
                .expect("removed");
            d.key.store(key_of(other), Ordering::Release);
            pool.hash.lock(&pool.frames, key_of(other)).insert(frame);
            // Released, and latched again before anybody else could.
            pool.parking.released(frame);
            waiter.join().expect("no panic");
        });
        pool.unlatch(held, true);
    });
}

#[test]
fn an_exclusive_latch_is_not_waited_for_in_a_frame_of_another_page() {
    the_frame_moves_on(|pool, page| {
        pool.mtr().exclusive(page).expect("page");
    });
}

#[test]
fn a_shared_latch_is_not_waited_for_in_a_frame_of_another_page() {
    the_frame_moves_on(|pool, page| drop(pool.shared(page).expect("page")));
}

#[test]
fn an_optimistic_reader_does_not_wait_for_a_frame_of_another_page() {
    the_frame_moves_on(|pool, page| {
        pool.optimistic(page).expect("page");
    });
}
