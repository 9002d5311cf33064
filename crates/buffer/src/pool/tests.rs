//! Waiting for a latch while the frame changes its page.

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, fs};
use cenote_base::{Error, Lsn, PageId};
use cenote_storage::{DataDir, Need};
use cenote_testkit::faulty::MemFs;

use crate::config::{Config, Kind};
use crate::hash::key_of;
use crate::interrupt::Interrupt;
use crate::open::BufferPool;

const SPACE: u32 = 1000;

fn open() -> BufferPool {
    let mut config = Config::new(Kind::Dram, 12 << 20);
    config.ring = Some((4 << 20) + 4096);
    config.background = false;
    BufferPool::open(config, DataDir::open(Path::new("/data")).expect("data"))
        .expect("pool")
        .0
}

/// A thread waits for `page`; its frame is evicted and gets another page, which is latched at once, and stays so until
/// the thread has what it wants. (It waited for the other page's latch, and three threads that did so at a time waited
/// for each other.)
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
            // Released, and latched again before another thread could.
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

/// A pool without a frame to give, as if statements had them all.
fn without_frames(f: impl FnOnce(&BufferPool)) {
    fs::with(Arc::new(MemFs::new()), || {
        let pool = open();
        pool.signals.reserve_failed.store(true, Ordering::Relaxed);
        pool.frames.header().frames_reserved.store(0, Ordering::Release);
        f(&pool);
    });
}

struct Stop(std::sync::atomic::AtomicBool);

impl Interrupt for Stop {
    fn is_set(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// All frames are in use, and nothing is under way that could end that.
#[test]
fn a_shortage_of_frames_is_told_as_one() {
    without_frames(|pool| {
        let error = pool.claim().expect_err("there is no frame");
        assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
        assert!(error.to_string().contains("--memory-size"), "{error}");
    });
}

/// A write-back that took longer than 2 s, on a drive that stalled, made threads that waited for its frames fail with
/// "give more memory".
#[test]
fn a_frame_is_waited_for_while_a_transfer_is_under_way() {
    without_frames(|pool| {
        let writing = pool.under_way.write(1);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| pool.claim().map(|claimed| pool.free(claimed)));
            rt::sleep(Nanos::from_millis(3000));
            assert!(!waiter.is_finished(), "it gave up");
            pool.frames.header().frames_reserved.store(1, Ordering::Release);
            waiter.join().expect("no panic").expect("the frame that came free");
        });
        drop(writing);
    });
}

#[test]
fn a_wait_for_a_frame_can_be_cancelled_but_not_in_a_commit() {
    without_frames(|pool| {
        let stop = Arc::new(Stop(true.into()));
        let _writing = pool.under_way.write(1);
        pool.heed(&stop);
        assert!(matches!(pool.claim(), Err(Error::Canceled)));
        pool.heed_nothing();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                pool.heed(&stop);
                let _need = pool.begin_need(Need::Commit);
                pool.claim().map(|claimed| pool.free(claimed))
            });
            rt::sleep(Nanos::from_millis(100));
            assert!(!waiter.is_finished(), "a commit is not given up");
            pool.frames.header().frames_reserved.store(1, Ordering::Release);
            waiter.join().expect("no panic").expect("the frame that came free");
        });
    });
}

/// A flush of all pages gave up after a thousand rounds without a pause, which took milliseconds, while a thread
/// latched a page: that stayed dirty. In the simulator, where no thread goes on beside such rounds, they took all steps
/// of a run.
#[test]
fn a_page_that_is_latched_for_a_while_is_flushed_with_all() {
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let pool = open();
        pool.storage().pages().create_space(SPACE).expect("space");
        let page = PageId::new(SPACE, 1);
        let mut m = pool.mtr();
        m.create(page, 7, 0).expect("create");
        m.commit();
        let mut m = pool.mtr();
        m.exclusive(page).expect("page");
        std::thread::scope(|s| {
            let (pool, files) = (&pool, files.clone());
            let flusher = s.spawn(move || fs::with(Arc::new(files), || pool.flush_all()));
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(m);
            flusher.join().expect("no panic").expect("flushed");
        });
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        assert_eq!(
            pool.frames.descriptor(frame).rec.load(Ordering::Relaxed),
            Lsn::ZERO,
            "it is saved"
        );
    });
}
