//! The pool, killed between any two steps of any thread; and its host lost there.
//!
//! In the simulator one thread runs while all others stand at a preemption point. So what the first thread copies,
//! region and files, is what a kill at that very step of each of the others leaves: in the middle of a commit, of a
//! miss, of an eviction. Without the region, and with torn files, it is what a power cut leaves. A second run opens the
//! copy, recovers, and looks at the books (`model`, the pool's own).

#[path = "../../buffer/tests/pool/model.rs"]
mod model;

use cenote_testkit::record::Recorder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_buffer::{BufferPool, Config, Kind, Mode, Survive};
use cenote_sim::{Sim, run};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;
use model::{Random, THREADS};

/// A region's file, gone in the end. (Real: a region is mapped.)
struct Region(PathBuf);

impl Region {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-sim-{:x}", rt::os::random()).into())
    }

    fn holding(image: &[u8]) -> Self {
        let region = Self::new();
        std::fs::write(&region.0, image).expect("written");
        region
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What something that ended left behind, and what it had acknowledged.
struct Remains {
    what: &'static str,
    image: Vec<u8>,
    files: MemFs,
    noted: Vec<u64>,
}

fn open(region: &Path, survive: Survive) -> (BufferPool, cenote_buffer::RecoveryReport) {
    let data = DataDir::open(Path::new("/data")).expect("data directory");
    let config = Config {
        region: Some(region.to_owned()),
        ring: Some((4 << 20) + 4096),
        survive,
        log_limit: 16 << 20,
        ..Config::new(Kind::Cxl, 8 << 20)
    };
    BufferPool::open(config, data).expect("pool")
}

/// Works with several threads, and takes what `deaths` at random moments would leave.
fn work(sim: &Sim, pages: u32, survive: Survive, deaths: u32) -> Vec<Remains> {
    let region = Region::new();
    let (pool, _) = open(&region.0, survive);
    model::prepare(&pool, pages);
    let recorder = Recorder::of(pool.region(), rt::random());
    let pool = Arc::new(pool);
    let stop = Arc::new(AtomicBool::new(false));
    let noted: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (pool, stop, noted) = (Arc::clone(&pool), Arc::clone(&stop), Arc::clone(&noted));
            rt::spawn(&format!("worker {thread}"), move || {
                let mut random = Random(rt::random() | 1);
                while !stop.load(Ordering::SeqCst) {
                    if let Some(count) = model::step(&pool, pages, thread, &mut random) {
                        noted[thread as usize].store(count, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    let remains = (0..deaths)
        .map(|_| {
            rt::sleep(Nanos(rt::random() % 400_000));
            let notes = || noted.iter().map(|n| n.as_raw().load(Ordering::SeqCst)).collect();
            if survive == Survive::Host && rt::random().is_multiple_of(2) {
                let torn = rt::random();
                let (image, (files, noted)) = recorder.crash(pool.region(), rt::random(), || {
                    (sim.files().crash_clone_torn(torn), notes())
                });
                return Remains {
                    what: "host lost",
                    image,
                    files,
                    noted,
                };
            }
            if rt::random().is_multiple_of(4) {
                let files = sim.files().crash_clone_torn(rt::random());
                return Remains {
                    what: "power lost",
                    image: Vec::new(),
                    files,
                    noted: notes(),
                };
            }
            let image = pool.region().span(0, pool.region().len()).to_vec();
            Remains {
                what: "killed",
                image,
                files: sim.files().kill_clone(),
                noted: notes(),
            }
        })
        .collect();
    stop.store(true, Ordering::SeqCst);
    workers.into_iter().for_each(|w| w.join().expect("no panic"));
    remains
}

/// Opens what is left, and looks at the books; how many frames were repaired.
fn verify(seed: u64, remains: Remains, pages: u32, survive: Survive) -> u64 {
    let Remains {
        what,
        image,
        files,
        noted,
    } = remains;
    Sim::new(seed)
        .with_files(files)
        .run(|_| {
            let region = if image.is_empty() {
                Region::new()
            } else {
                Region::holding(&image)
            };
            let (pool, report) = open(&region.0, survive);
            let expected = if image.is_empty() { Mode::Log } else { Mode::Instant };
            assert_eq!(report.mode, expected, "{what}: {:?}", report.remarks);
            assert!(
                image.is_empty() || report.remarks.is_empty(),
                "{what}: {:?}",
                report.remarks
            );
            model::verify(&pool, pages, &noted);
            report.frames_repaired()
        })
        .value
}

fn die_and_verify(seeds: u64, pages: u32, survive: Survive) {
    let first = model::seed();
    let (mut steps, mut counted, mut repaired) = (0, 0, 0);
    for seed in first..first + seeds * more_runs() {
        println!("CENOTE_SEED={seed}");
        let outcome = run(seed, |sim| work(sim, pages, survive, 4));
        steps += outcome.steps;
        for left in outcome.value {
            counted += left.noted.iter().sum::<u64>();
            repaired += verify(seed, left, pages, survive);
        }
    }
    println!("{steps} steps, {counted} counts acknowledged, {repaired} frames repaired");
    assert!(counted > 0, "nothing was done");
}

/// How many times as many seeds as usual: `CENOTE_SIM_RUNS`.
fn more_runs() -> u64 {
    std::env::var("CENOTE_SIM_RUNS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}

#[test]
fn killed_at_any_step_with_everything_in_memory() {
    die_and_verify(5, 60, Survive::Process);
}

#[test]
fn killed_at_any_step_while_pages_come_and_go() {
    die_and_verify(4, 500, Survive::Process);
}

#[test]
fn hosts_lost_at_any_step() {
    die_and_verify(5, 100, Survive::Host);
}
