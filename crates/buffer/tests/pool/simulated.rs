//! Under the seeded runtime: threads interleaved at every preemption point, and the process stopped between any two.
//!
//! All coroutines run on one thread, so a copy of the region that one of them makes is what a process killed at that
//! moment would leave. The run goes on to its end afterwards (which finds lost wake-ups and deadlocks); then the copy
//! is recovered.

use cenote_testkit::record::Recorder;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_base::PageId;
use cenote_base::rt::{self, fs};
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport, Survive};
use cenote_sim::Sim;
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, THREADS};

const PAGES: u32 = 180;
const SIZE: u64 = 7 << 20;

fn open(region: &Path, scan: bool) -> (BufferPool, RecoveryReport) {
    open_as(region, scan, Survive::Process)
}

fn open_as(region: &Path, scan: bool, survive: Survive) -> (BufferPool, RecoveryReport) {
    let mut config = Config::new(Kind::Cxl, SIZE);
    config.region = Some(region.to_owned());
    config.ring = Some((4 << 20) + 4096);
    config.segment_bytes = 1 << 20;
    config.log_limit = 1 << 20;
    config.survive = survive;
    config.survey_part = 16;
    if !scan {
        config.scan_limit = 0;
    }
    BufferPool::open(config, DataDir::open(Path::new("/data")).expect("data")).expect("pool")
}

/// What a process killed in the middle left.
struct Left {
    region: Vec<u8>,
    files: MemFs,
    noted: Vec<u64>,
}

fn work_and_be_killed(sim: &Sim, region: &Path, seed: u64) -> Left {
    let pool = open(region, true).0;
    let kill = || (std::fs::read(region).expect("region"), sim.files().kill_clone());
    work_until(pool, seed, |_| kill())
}

fn work_and_lose_the_host(sim: &Sim, region: &Path, seed: u64) -> Left {
    let pool = open_as(region, true, Survive::Host).0;
    let recorder = Recorder::of(pool.region(), seed);
    let lose = |pool: &BufferPool| recorder.crash(pool.region(), seed, || sim.files().crash_clone_torn(seed));
    work_until(pool, seed, lose)
}

/// Works, and at a random moment has `end` make a copy of what would be left; goes on for a moment, and ends in order.
fn work_until(pool: BufferPool, seed: u64, end: impl FnOnce(&BufferPool) -> (Vec<u8>, MemFs)) -> Left {
    let mut random = Random(seed | 1);
    model::prepare(&pool, PAGES);
    let (pool, stop) = (Arc::new(pool), Arc::new(AtomicBool::new(false)));
    let noted: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (pool, stop, noted) = (pool.clone(), stop.clone(), noted.clone());
            let mut random = Random(random.word() | 1);
            rt::spawn("worker", move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(count) = model::step(&pool, PAGES, thread, &mut random) {
                        noted[thread as usize].store(count, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for _ in 0..random.below(30_000) {
        rt::preempt();
    }
    let noted: Vec<u64> = noted.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    let (region, files) = end(&pool);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().expect("a worker"));
    assert_eq!(pool.check().problems, Vec::<String>::new());
    Left { region, files, noted }
}

/// Recovers, and is killed in the middle of that too.
fn recover_and_be_killed(sim: &Sim, region: &Path, seed: u64, noted: Vec<u64>) -> Left {
    let mut random = Random(seed | 1);
    let (path, files, when) = (region.to_owned(), sim.files().clone(), random.below(4000));
    let killer = rt::spawn("killer", move || {
        for _ in 0..when {
            rt::preempt();
        }
        (std::fs::read(&path).expect("region"), files.kill_clone())
    });
    let (pool, _) = open(region, seed & 2 == 0);
    let (region, files) = killer.join().expect("killer");
    drop(pool);
    Left { region, files, noted }
}

fn put(region: &Path, bytes: &[u8]) {
    std::fs::remove_file(region).expect("region");
    std::fs::write(region, bytes).expect("region");
}

#[test]
fn killed_between_any_two_steps() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let runs = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(30);
    let (mut repaired, mut voided, mut undone) = (0, 0, 0);
    for _ in 0..runs {
        let seed = random.word();
        let mut left = Sim::new(seed).run(|sim| work_and_be_killed(sim, &region, seed)).value;
        put(&region, &left.region);
        if seed & 1 == 0 {
            let sim = Sim::new(seed).with_files(left.files);
            left = sim
                .run(|sim| recover_and_be_killed(sim, &region, seed, left.noted))
                .value;
            put(&region, &left.region);
        }
        fs::with(Arc::new(left.files), || {
            let (pool, report) = open(&region, seed & 4 == 0);
            assert_eq!(report.mode, Mode::Instant, "seed {seed}: {:?}", report.remarks);
            assert!(report.remarks.is_empty(), "seed {seed}: {:?}", report.remarks);
            repaired += report.frames_repaired();
            voided += report.voided;
            undone += u64::from(report.lists_repaired);
            model::verify(&pool, PAGES, &left.noted);
        });
        std::fs::remove_file(&region).expect("region");
    }
    println!("{runs} runs: {repaired} repaired, {voided} voided, {undone} times lists were in a change");
}

/// Fills a fresh pool, and is killed at it.
fn fill_and_be_killed(sim: &Sim, region: &Path, seed: u64) -> Left {
    let mut random = Random(seed | 1);
    let pool = Arc::new(open(region, true).0);
    pool.storage().pages().create_space(model::SPACE).expect("space");
    let noted: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (pool, noted) = (pool.clone(), noted.clone());
            rt::spawn("worker", move || {
                for i in 0..40 {
                    let mut m = pool.mtr();
                    m.create(PageId::new(model::SPACE, i * THREADS + thread), 7, 0)
                        .expect("create");
                    let end = m.commit();
                    if i % 8 == 0 {
                        pool.storage().log().wait_durable(end).expect("durable");
                        noted[thread as usize].store(u64::from(i) + 1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for _ in 0..random.below(4_000) {
        rt::preempt();
    }
    let noted = noted.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    let (region, files) = (std::fs::read(region).expect("region"), sim.files().kill_clone());
    threads.into_iter().for_each(|t| t.join().expect("a worker"));
    Left { region, files, noted }
}

#[test]
fn killed_while_frames_are_used_for_the_first_time() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let runs = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(60);
    for _ in 0..runs {
        let seed = random.word();
        let left = Sim::new(seed).run(|sim| fill_and_be_killed(sim, &region, seed)).value;
        put(&region, &left.region);
        fs::with(Arc::new(left.files), || {
            let (pool, report) = open(&region, seed & 1 == 0);
            assert_eq!(report.mode, Mode::Instant, "seed {seed}: {:?}", report.remarks);
            assert!(report.remarks.is_empty(), "seed {seed}: {:?}", report.remarks);
            for (thread, noted) in (0..).zip(&left.noted) {
                for i in 0..*noted as u32 {
                    pool.shared(PageId::new(model::SPACE, i * THREADS + thread))
                        .expect("a page seen durable");
                }
            }
            // Every frame can be had.
            for page in 1000..1000 + 2 * pool.stats().frames {
                let mut m = pool.mtr();
                m.create(PageId::new(model::SPACE, page), 7, 0).expect("create");
                m.commit();
            }
            assert_eq!(pool.check().problems, Vec::<String>::new(), "seed {seed}");
        });
        std::fs::remove_file(&region).expect("region");
    }
}

#[test]
fn the_host_lost_between_any_two_steps() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let runs = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(15);
    let mut repaired = 0;
    for _ in 0..runs {
        let seed = random.word();
        let left = Sim::new(seed)
            .run(|sim| work_and_lose_the_host(sim, &region, seed))
            .value;
        put(&region, &left.region);
        fs::with(Arc::new(left.files), || {
            let (pool, report) = open_as(&region, true, Survive::Host);
            assert_eq!(report.mode, Mode::Instant, "seed {seed}: {:?}", report.remarks);
            assert!(report.remarks.is_empty(), "seed {seed}: {:?}", report.remarks);
            repaired += report.frames_repaired();
            model::verify(&pool, PAGES, &left.noted);
        });
        std::fs::remove_file(&region).expect("region");
    }
    println!("{runs} hosts lost: {repaired} repaired");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let digest = || {
        let run = Sim::new(77).run(|sim| work_and_be_killed(sim, &region, 77));
        std::fs::remove_file(&region).expect("region");
        (run.digest, run.steps)
    };
    assert_eq!(digest(), digest());
}

/// Pages written by one `flush_all`, beside threads that change pages all the while.
fn written_beside_writers(seed: u64) -> u64 {
    let run = Sim::new(seed).run(|_| {
        let config = Config::new(Kind::Dram, SIZE);
        let dir = DataDir::open(Path::new("/data")).expect("data");
        let pool = Arc::new(BufferPool::open(config, dir).expect("pool").0);
        model::prepare(&pool, 8);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pool, stop) = (pool.clone(), stop.clone());
                let mut random = Random((seed + u64::from(thread)) | 1);
                rt::spawn("writer", move || {
                    while !stop.load(Ordering::Relaxed) {
                        model::step(&pool, 8, thread, &mut random);
                    }
                })
            })
            .collect();
        let before = pool.stats().counts.pages_written;
        pool.flush_all().expect("written");
        let written = pool.stats().counts.pages_written - before;
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        written
    });
    run.value
}

/// A flush of all pages went round until nothing at all was dirty: a thousand times beside threads that change pages
/// all the while.
#[test]
fn what_becomes_dirty_behind_a_flush_is_not_followed() {
    for seed in 1..=3 {
        let written = written_beside_writers(seed);
        assert!((1..200).contains(&written), "seed {seed}: {written} pages written");
    }
}
