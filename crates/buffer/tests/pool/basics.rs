//! The pool by its public face: what is written is read, over eviction, restarts and both kinds.

use std::path::Path;

use cenote_base::random::Random;
use cenote_base::{Error, PageId};
use cenote_buffer::{BufferPool, Config, Hint, Kind, Mode, PAGES_MAX, RecoveryReport};
use cenote_storage::DataDir;

const SPACE: u32 = 1000;

fn config(kind: Kind, dir: &Path, size: u64) -> Config {
    let mut config = Config::new(kind, size);
    config.region = Some(dir.join("region"));
    config.ring = Some((4 << 20) + 4096);
    config
}

fn open(kind: Kind, dir: &Path, size: u64) -> (BufferPool, RecoveryReport) {
    let data = DataDir::open(&dir.join("data")).expect("data directory");
    let (pool, report) = BufferPool::open(config(kind, dir, size), data).expect("pool");
    if !pool.storage().pages().has_space(SPACE) {
        pool.storage().pages().create_space(SPACE).expect("space");
    }
    (pool, report)
}

fn create(pool: &BufferPool, page: u32, value: u64) {
    let mut m = pool.mtr();
    let h = m.create(PageId::new(SPACE, page), 7, 0).expect("create");
    m.write_u64(h, 64, value);
    m.write_u64(h, 16376, !value);
    m.commit();
}

fn read(pool: &BufferPool, page: u32) -> (u64, u64) {
    loop {
        let guard = pool.optimistic(PageId::new(SPACE, page)).expect("page");
        let values = (guard.view().u64(64), guard.view().u64(16376));
        if guard.valid() {
            return values;
        }
    }
}

#[test]
fn pages_survive_eviction_and_every_kind_of_restart() {
    for kind in [Kind::Cxl, Kind::Dram] {
        let dir = tempfile::tempdir().expect("dir");
        let size = 16 << 20;
        let (pool, report) = open(kind, dir.path(), size);
        assert_eq!(report.mode, Mode::Clean);
        // Frames are fewer than 16 MiB hold.
        let pages = 5 * 1024;
        for page in 0..pages {
            create(&pool, page, page as u64);
        }
        for page in (0..pages).rev() {
            assert_eq!(read(&pool, page), (page as u64, !(page as u64)), "{kind:?}");
        }
        assert!(
            pool.stats().counts.evictions > 2 * pages as u64 - 2048,
            "{:?}",
            pool.stats()
        );
        assert_eq!(pool.check().problems, Vec::<String>::new());

        // As the end of a process leaves it (its threads apart, which have nothing to do here).
        pool.storage().log().flush_all().expect("flush");
        drop(pool);
        let (pool, report) = open(kind, dir.path(), size);
        println!("{kind:?}: {report}");
        assert_eq!(report.mode, if kind == Kind::Cxl { Mode::Instant } else { Mode::Log });
        assert_eq!(report.repaired, Vec::new());
        for page in 0..pages {
            assert_eq!(read(&pool, page), (page as u64, !(page as u64)), "{kind:?}");
        }
        assert_eq!(pool.check().problems, Vec::<String>::new());
        create(&pool, 3, 33);

        pool.shutdown().expect("shutdown");
        drop(pool);
        let (pool, report) = open(kind, dir.path(), size);
        println!("{kind:?}: {report}");
        assert_eq!(report.mode, Mode::Clean);
        assert_eq!(report.frames_kept > 0, kind == Kind::Cxl);
        assert_eq!(read(&pool, 3), (33, !33));
        assert_eq!(read(&pool, pages - 1).0, pages as u64 - 1);
    }
}

#[test]
fn a_page_that_was_never_made_is_an_error() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Dram, dir.path(), 16 << 20);
    let error = pool.optimistic(PageId::new(SPACE, 9)).err().expect("an error");
    assert!(error.to_string().contains("never written"), "{error}");
    assert!(matches!(pool.optimistic(PageId::new(77, 0)), Err(Error::Invalid(_))));
    assert_eq!(pool.check().problems, Vec::<String>::new());
}

#[test]
fn threads_add_up() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 16 << 20);
    for page in 0..40 {
        create(&pool, page, 0);
    }
    std::thread::scope(|s| {
        for t in 0..4u32 {
            let pool = &pool;
            s.spawn(move || {
                for i in 0..5000u32 {
                    let (a, b) = ((i * 7 + t) % 40, (i * 13 + t * 5) % 40);
                    let mut m = pool.mtr();
                    let (low, high) = (a.min(b), a.max(b));
                    let h = m.exclusive(PageId::new(SPACE, low)).expect("page");
                    let g = m.exclusive(PageId::new(SPACE, high)).expect("page");
                    let (x, y) = (m.view(h).u64(64), m.view(g).u64(64));
                    m.write_u64(h, 64, x + 1);
                    m.write_u64(h, 16376, !(x + 1));
                    if low != high {
                        m.write_u64(g, 64, y + 1);
                        m.write_u64(g, 16376, !(y + 1));
                    }
                    m.commit();
                    let (x, nx) = read(pool, a);
                    assert_eq!(x, !nx);
                }
            });
        }
    });
    let total: u64 = (0..40).map(|p| read(&pool, p).0).sum();
    let expected: u64 = (0..4u32)
        .flat_map(|t| {
            (0..5000u32).map(move |i| {
                if (i * 7 + t) % 40 == (i * 13 + t * 5) % 40 {
                    1
                } else {
                    2
                }
            })
        })
        .sum();
    assert_eq!(total, expected);
    assert_eq!(pool.check().problems, Vec::<String>::new());
}

#[test]
fn a_value_is_patched_in_the_order_of_the_log() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 16 << 20);
    create(&pool, 1, 0);
    let mut m = pool.mtr();
    let h = m.exclusive(PageId::new(SPACE, 1)).expect("page");
    m.write_u64(h, 64, 5);
    m.write_patched_u64(h, 72);
    m.write_u64(h, 80, 6);
    let end = m.commit_with(&mut |end, patch| {
        assert_eq!(patch.len(), 1);
        patch.set_all(end.raw());
    });
    let guard = pool.optimistic(PageId::new(SPACE, 1)).expect("page");
    assert_eq!(
        (guard.view().u64(64), guard.view().u64(72), guard.view().u64(80)),
        (5, end.raw(), 6)
    );
    pool.storage().log().wait_durable(end).expect("durable");
    drop(pool);
    std::fs::remove_file(dir.path().join("region")).expect("region");
    let (pool, report) = open(Kind::Cxl, dir.path(), 16 << 20);
    assert_eq!(report.mode, Mode::Log);
    let guard = pool.optimistic(PageId::new(SPACE, 1)).expect("page");
    assert_eq!(
        (guard.view().u64(64), guard.view().u64(72), guard.view().u64(80)),
        (5, end.raw(), 6)
    );
}

#[test]
fn a_scan_of_everything_leaves_what_was_asked_for() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 16 << 20);
    let frames = pool.stats().frames.max(600);
    for page in 0..frames * 4 {
        create(&pool, page, page as u64);
    }
    let asked_for: Vec<PageId> = (0..frames / 2).map(|page| PageId::new(SPACE, page)).collect();
    let ask = || {
        asked_for
            .iter()
            .for_each(|page| drop(pool.shared(*page).expect("page")))
    };
    (0..3).for_each(|_| ask());
    let before = pool.stats().counts;
    ask();
    assert_eq!(pool.stats().counts.misses, before.misses, "it fits");
    for page in 0..frames * 4 {
        let ahead: Vec<PageId> = (page + 1..page + 17).map(|p| PageId::new(SPACE, p)).collect();
        if page % 16 == 0 {
            pool.prefetch(&ahead);
        }
        pool.optimistic_hint(PageId::new(SPACE, page), Hint::Scan)
            .expect("page");
    }
    let (before, pages) = (pool.stats().counts, asked_for.len() as u64);
    ask();
    let missed = pool.stats().counts.misses - before.misses;
    println!(
        "{missed} of {pages} pages went with the scan; {:?}",
        pool.stats().counts
    );
    assert!(missed * 10 < pages, "{missed} of {pages} pages went with the scan");
}

#[test]
fn a_space_that_goes_is_neither_written_nor_found_again() {
    for crash in [false, true] {
        let dir = tempfile::tempdir().expect("dir");
        let (pool, _) = open(Kind::Cxl, dir.path(), 16 << 20);
        pool.storage().pages().create_space(SPACE + 1).expect("space");
        for page in 0..50 {
            create(&pool, page, 1);
            let mut m = pool.mtr();
            let h = m.create(PageId::new(SPACE + 1, page), 7, 0).expect("create");
            m.write_u64(h, 64, 2);
            m.commit();
        }
        pool.storage().log().flush_all().expect("flush");
        if crash {
            // The space goes, and the process before it could drop the frames.
            pool.storage().pages().drop_space(SPACE + 1).expect("drop");
            drop(pool);
            let (pool, report) = open(Kind::Cxl, dir.path(), 16 << 20);
            assert_eq!(report.mode, Mode::Instant);
            pool.flush_all()
                .expect("frames of a space that is gone are in no thread's way");
            assert_eq!(read(&pool, 7).0, 1);
            continue;
        }
        pool.discard_pages(SPACE + 1, 10..20).expect("discard");
        pool.discard_space(SPACE + 1).expect("discard");
        pool.storage().pages().drop_space(SPACE + 1).expect("drop");
        assert!(pool.optimistic(PageId::new(SPACE + 1, 3)).is_err());
        pool.flush_all().expect("flush");
        assert_eq!(pool.check().problems, Vec::<String>::new());
        assert_eq!(read(&pool, 7).0, 1);
    }
}

#[test]
fn a_mini_transaction_of_many_whole_pages_fits_the_log() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 32 << 20);
    let mut m = pool.mtr();
    let (mut random, mut noise) = (Random(1), 0);
    for page in 0..PAGES_MAX as u32 {
        let h = m.create(PageId::new(SPACE, page), 7, 0).expect("create");
        for at in (32..16384).step_by(8) {
            noise = random.word();
            m.write_u64(h, at, noise | 1);
        }
        // Far more redo than the page is long: its image is logged.
        for at in (64..16000).step_by(96) {
            m.write(h, at, &noise.to_le_bytes());
            m.write(h, 16000 - at, &[page as u8; 100]);
        }
    }
    assert!(m.exclusive(PageId::new(SPACE, 500)).is_err(), "one page too many");
    let end = m.commit();
    pool.storage().log().wait_durable(end).expect("durable");
    let before: Vec<u64> = (0..PAGES_MAX as u32).map(|p| read(&pool, p).0).collect();
    drop(pool);
    std::fs::remove_file(dir.path().join("region")).expect("region");
    let (pool, report) = open(Kind::Cxl, dir.path(), 32 << 20);
    assert_eq!((report.mode, report.pages_replayed), (Mode::Log, PAGES_MAX as u64));
    assert_eq!(
        (0..PAGES_MAX as u32).map(|p| read(&pool, p).0).collect::<Vec<_>>(),
        before
    );
}
