//! Crashes of which only the files are left, damage to the region, and regions that are not to be believed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_base::rt::fs;
use cenote_base::{Error, PageId, Result};
use cenote_buffer::{BufferPool, Config, Geometry, Kind, Mode, RecoveryReport};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, SPACE, THREADS};

const PAGES: u32 = 600;
const SIZE: u64 = 12 << 20;
const RING: u64 = (4 << 20) + 4096;

fn config(kind: Kind, region: &Path) -> Config {
    let mut config = Config::new(kind, SIZE);
    config.region = Some(region.to_owned());
    config.ring = Some(RING);
    config.log_limit = 8 << 20;
    config
}

fn try_open(files: &MemFs, config: Config) -> Result<(BufferPool, RecoveryReport)> {
    fs::with(Arc::new(files.clone()), || {
        BufferPool::open(config, DataDir::open(Path::new("/data"))?)
    })
}

fn open(files: &MemFs, config: Config) -> (BufferPool, RecoveryReport) {
    try_open(files, config).expect("pool")
}

fn verify(files: &MemFs, pool: &BufferPool, notes: &[u64]) {
    fs::with(Arc::new(files.clone()), || model::verify(pool, PAGES, notes));
}

/// Runs the bank for `time`, then calls `at_the_end` with the counts noted, while it still runs.
fn run<T>(
    files: &MemFs,
    pool: &BufferPool,
    random: &mut Random,
    time: Duration,
    at_the_end: impl FnOnce(Vec<u64>) -> T,
) -> T {
    let stop = AtomicBool::new(false);
    let noted: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (stop, noted, files) = (&stop, &noted, files.clone());
            let mut random = Random(random.word() | 1);
            s.spawn(move || {
                fs::with(Arc::new(files), || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(count) = model::step(pool, PAGES, thread, &mut random) {
                            noted[thread as usize].store(count, Ordering::SeqCst);
                        }
                    }
                });
            });
        }
        std::thread::sleep(time);
        let value = at_the_end(noted.iter().map(|n| n.load(Ordering::SeqCst)).collect());
        stop.store(true, Ordering::Relaxed);
        value
    })
}

fn prepared(kind: Kind, region: &Path) -> (MemFs, BufferPool) {
    let files = MemFs::new();
    let (pool, _) = open(&files, config(kind, region));
    fs::with(Arc::new(files.clone()), || model::prepare(&pool, PAGES));
    (files, pool)
}

#[test]
fn only_synced_files_are_left() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    for kind in [Kind::Cxl, Kind::Dram] {
        let (mut files, mut pool) = prepared(kind, &region);
        for round in 0..5 {
            let time = Duration::from_millis(10 + random.below(80));
            let torn = random.word();
            let (notes, left) = run(&files, &pool, &mut random, time, |notes| {
                (notes, files.crash_clone_torn(torn))
            });
            drop(pool);
            if kind == Kind::Cxl {
                std::fs::remove_file(&region).expect("region");
            }
            files = left;
            let (next, report) = open(&files, config(kind, &region));
            assert_eq!(report.mode, Mode::Log, "round {round}: {:?}", report.remarks);
            verify(&files, &next, &notes);
            pool = next;
        }
        drop(pool);
        let _ = std::fs::remove_file(&region);
    }
}

/// The file of a region whose pool ended in the middle of its work, and the files.
fn left_behind(region: &Path, random: &mut Random) -> (MemFs, Vec<u64>) {
    let (files, pool) = prepared(Kind::Cxl, region);
    let notes = run(&files, &pool, random, Duration::from_millis(40), |notes| notes);
    drop(pool);
    (files, notes)
}

fn flip(region: &Path, at: u64, mask: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(region)
        .expect("region");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("byte");
    byte[0] ^= mask;
    file.write_all_at(&byte, at).expect("byte");
}

#[test]
fn flipped_bits_in_descriptors_and_headers_lose_nothing() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let geometry = Geometry::plan(SIZE, RING).expect("plan");
    let (files, notes) = left_behind(&region, &mut random);
    let image = std::fs::read(&region).expect("region");
    for round in 0..20 {
        std::fs::remove_file(&region).expect("region");
        std::fs::write(&region, &image).expect("region");
        let left = files.kill_clone();
        for _ in 0..1 + random.below(3) {
            let at = match round % 4 {
                0 => Geometry::HEADER_AT + random.below(384),
                1 => geometry.buckets_at + random.below(geometry.descriptors_at - geometry.buckets_at),
                _ => geometry.descriptors_at + random.below(u64::from(geometry.frames) * 64),
            };
            flip(&region, at, 1 << random.below(8));
        }
        let (pool, report) = open(&left, config(Kind::Cxl, &region));
        if round % 4 > 1 {
            assert_eq!(report.mode, Mode::Instant, "{:?}", report.remarks);
        }
        verify(&left, &pool, &notes);
    }
}

#[test]
fn a_damaged_region_header_costs_warmth_only() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let (files, notes) = left_behind(&region, &mut random);
    let image = std::fs::read(&region).expect("region");
    for at in [16, 100, 1021, 1030, 1200, 8192 + 3, 8192 + 130, 8192 + 258] {
        std::fs::write(&region, &image).expect("region");
        flip(&region, at, 4);
        let left = files.kill_clone();
        match try_open(&left, config(Kind::Cxl, &region)) {
            Ok((pool, report)) => {
                println!("byte {at}: {} {:?}", report.mode.name(), report.remarks);
                verify(&left, &pool, &notes);
            }
            // A region of unknown owner in a place that was named: refused, and the way out is said.
            Err(error) => {
                println!("byte {at}: {error}");
                assert!(error.to_string().contains("remove"), "{error}");
            }
        }
        let _ = std::fs::remove_file(&region);
    }
}

#[test]
fn two_pools_do_not_share_a_region() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let (files, pool) = prepared(Kind::Cxl, &region);
    let error = try_open(&files, config(Kind::Cxl, &region))
        .err()
        .expect("the directory is taken");
    assert!(matches!(error, Error::Busy(_)), "{error}");
    // A copy of the directory names the same region.
    let error = try_open(&files.kill_clone(), config(Kind::Cxl, &region))
        .err()
        .expect("the region is taken");
    assert!(matches!(error, Error::Busy(_)), "{error}");
    verify(&files, &pool, &[]);
}

#[test]
fn a_region_of_another_database_is_refused_and_untouched() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    drop(prepared(Kind::Cxl, &region));
    let before = std::fs::read(&region).expect("region");
    let error = try_open(&MemFs::new(), config(Kind::Cxl, &region))
        .err()
        .expect("it is another's");
    assert!(error.to_string().contains("belongs to database"), "{error}");
    assert!(before == std::fs::read(&region).expect("region"), "it was touched");
}

#[test]
fn stale_and_resized_regions_are_discarded() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let (files, notes) = left_behind(&region, &mut random);
    let old_files = files.kill_clone();
    // cxl, then dram, then cxl: the region has missed a start.
    let (pool, report) = open(&files, config(Kind::Dram, &region));
    assert_eq!(report.mode, Mode::Log);
    verify(&files, &pool, &notes);
    let more = run(&files, &pool, &mut random, Duration::from_millis(20), |notes| notes);
    drop(pool);
    let (pool, report) = open(&files, config(Kind::Cxl, &region));
    assert_eq!(report.mode, Mode::Log);
    assert!(report.remarks[0].contains("last start"), "{:?}", report.remarks);
    verify(&files, &pool, &more);
    drop(pool);
    // A data directory brought back from a copy: the region is ahead of it.
    let (pool, report) = open(&old_files, config(Kind::Cxl, &region));
    assert_eq!(report.mode, Mode::Log, "{:?}", report.remarks);
    verify(&old_files, &pool, &notes);
    drop(pool);
    // Another size.
    let mut larger = config(Kind::Cxl, &region);
    larger.size = SIZE + (4 << 20);
    let (pool, report) = open(&old_files, larger);
    assert_eq!(report.mode, Mode::Log);
    assert!(report.remarks[0].contains("wanted"), "{:?}", report.remarks);
    verify(&old_files, &pool, &notes);
}

#[test]
fn a_clean_end_keeps_the_region_warm() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let (files, pool) = prepared(Kind::Cxl, &region);
    let notes = run(&files, &pool, &mut random, Duration::from_millis(20), |notes| notes);
    fs::with(Arc::new(files.clone()), || pool.shutdown().expect("shutdown"));
    drop(pool);
    let (pool, report) = open(&files, config(Kind::Cxl, &region));
    assert_eq!((report.mode, report.frames_kept > 100), (Mode::Clean, true));
    verify(&files, &pool, &notes);
}

#[test]
fn a_failed_sync_refuses_changes_and_loses_nothing() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let (files, pool) = prepared(Kind::Cxl, &region);
    let notes = run(&files, &pool, &mut random, Duration::from_millis(10), |notes| notes);
    files.fail_syncs(0, u64::MAX);
    fs::with(Arc::new(files.clone()), || {
        let mut m = pool.mtr();
        let h = m.exclusive(PageId::new(SPACE, 0)).expect("page");
        m.write_u64(h, 16000, 1);
        let end = m.commit();
        pool.storage().log().wait_durable(end).expect_err("the sync fails");
        let error = pool.storage().log().wait_durable(end).expect_err("for good");
        assert!(matches!(error, Error::LogFailed(_)), "{error}");
        let error = pool
            .mtr()
            .exclusive(PageId::new(SPACE, 1))
            .expect_err("no more changes");
        assert!(matches!(error, Error::LogFailed(_)), "{error}");
        assert!(pool.shared(PageId::new(SPACE, 1)).is_ok(), "readers go on");
    });
    drop(pool);
    files.heal();
    let (pool, report) = open(&files, config(Kind::Cxl, &region));
    println!("{report} {:?}", report.remarks);
    verify(&files, &pool, &notes);
}
