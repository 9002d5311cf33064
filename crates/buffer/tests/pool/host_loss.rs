//! The host is lost, and with it what its caches had not written back (rule 5).
//!
//! On one machine a missing flush never shows: the caches stay. So the region is recorded: `fabric` keeps what memory
//! would hold, as only flushes, fences and chance evictions put it there. At a random moment a crash image is made of
//! that and of what was synced in the files, and the pool is opened from both.

use cenote_testkit::record::Recorder;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_base::rt::fs;
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport, Survive};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, THREADS};

/// Somewhat more than there are frames.
const PAGES: u32 = 600;

fn open(files: &MemFs, region: &Path) -> (BufferPool, RecoveryReport) {
    fs::with(Arc::new(files.clone()), || {
        let data = DataDir::open(Path::new("/data")).expect("data directory");
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(region.to_owned());
        config.ring = Some((4 << 20) + 4096);
        config.survive = Survive::Host;
        config.log_limit = 16 << 20;
        BufferPool::open(config, data).expect("pool")
    })
}

/// Works for `time`, then loses the host: what its memory and its disk hold, and the counts noted before.
fn lose(files: &MemFs, region: &Path, random: &mut Random, time: Duration) -> (Vec<u8>, MemFs, Vec<u64>) {
    let (pool, _) = open(files, region);
    let recorder = Recorder::of(pool.region(), random.word());
    let stop = AtomicBool::new(false);
    let noted: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let read_notes = || -> Vec<u64> { noted.iter().map(|n| n.load(Ordering::SeqCst)).collect() };
    let (image, (notes, left)) = std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (pool, stop, noted, files) = (&pool, &stop, &noted, files.clone());
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
        let torn = random.word();
        let crashed = recorder.crash(pool.region(), random.word(), || {
            (read_notes(), files.crash_clone_torn(torn))
        });
        stop.store(true, Ordering::Relaxed);
        crashed
    });
    (image, left, notes)
}

#[test]
fn nothing_acknowledged_is_lost_with_the_host() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let mut files = MemFs::new();
    let (pool, _) = open(&files, &region);
    fs::with(Arc::new(files.clone()), || model::prepare(&pool, PAGES));
    drop(pool);
    let (mut kept, mut repaired) = (0, 0);
    for round in 0..12 {
        let time = Duration::from_millis(5 + random.below(60));
        let (image, left, notes) = lose(&files, &region, &mut random, time);
        std::fs::remove_file(&region).expect("region");
        std::fs::write(&region, image).expect("region");
        files = left;
        let (pool, report) = open(&files, &region);
        assert_eq!(report.mode, Mode::Instant, "round {round}: {:?}", report.remarks);
        assert!(report.remarks.is_empty(), "round {round}: {:?}", report.remarks);
        kept += report.frames_kept;
        repaired += report.frames_repaired();
        fs::with(Arc::new(files.clone()), || model::verify(&pool, PAGES, &notes));
    }
    println!("12 hosts lost: {kept} frames kept, {repaired} repaired");
}
