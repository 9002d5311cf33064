//! The region's memory is lost, and its mirror is there: a second memory that got the lines which were flushed, and
//! nothing else.
//!
//! While threads work, the mirror is filled, left, and taken again, as a pool does it. At a random moment all copying
//! is held up; what the mirror has then, and what was synced in the files, is all that is left. The pool is opened from
//! both.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use cenote_base::rt::fs;
use cenote_buffer::{BufferPool, Config, Geometry, Kind, Mode, RecoveryReport, Survive};
use cenote_fabric::{MirrorFile, MirrorKeeper, Region, RegionMemory, Side};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, THREADS};

/// Somewhat more than there are frames.
const PAGES: u32 = 600;

/// In the pool's header: the word that says what a cut-off recovery owes.
const SURVEYING_AT: usize = 64 + 4;

/// A mirror whose copies can be held up.
struct Gated {
    file: MirrorFile,
    gate: Arc<RwLock<()>>,
}

impl Side for Gated {
    fn reserve_to(&self, end: u64) -> cenote_base::Result<()> {
        self.file.reserve_to(end)
    }

    fn copy(&self, memory: &RegionMemory, off: u64, len: usize) {
        let _open = self.gate.read().expect("no panic");
        self.file.copy(memory, off, len);
    }

    fn fence(&self) {
        self.file.fence();
    }

    fn is_apart(&self) -> bool {
        self.file.is_apart()
    }
}

/// Keeps a mirror in a file; whole from one start to the next, unless the region is made anew.
#[derive(Debug, Default)]
struct Keeper {
    path: PathBuf,
    gate: Arc<RwLock<()>>,
    is_whole: AtomicBool,
    /// What it was told, for the tests.
    told: Mutex<Vec<&'static str>>,
}

impl Keeper {
    fn attach(&self, region: &Region) {
        let file = match self.is_whole.load(Ordering::SeqCst) {
            true => MirrorFile::open(&self.path, region.len()),
            false => MirrorFile::create(&self.path, region.len()),
        };
        let (file, gate) = (file.expect("the mirror"), Arc::clone(&self.gate));
        region.attach_mirror(Arc::new(Gated { file, gate })).expect("room");
    }

    fn fill(&self, region: &Region) {
        let (mut at, mut next) = (0, region.fill_mirror_step(0));
        while next > at {
            (at, next) = (next, region.fill_mirror_step(next));
        }
        self.is_whole.store(true, Ordering::SeqCst);
    }
}

impl MirrorKeeper for Keeper {
    fn before_making(&self) -> cenote_base::Result<()> {
        self.told.lock().expect("no panic").push("before making");
        self.is_whole.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn begin(&self, region: &Arc<Region>) -> cenote_base::Result<()> {
        self.told.lock().expect("no panic").push("begin");
        self.attach(region);
        Ok(())
    }
}

fn open(files: &MemFs, region: &Path, mirror: Option<&Arc<Keeper>>) -> (BufferPool, RecoveryReport) {
    fs::with(Arc::new(files.clone()), || {
        let data = DataDir::open(Path::new("/data")).expect("data directory");
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(region.to_owned());
        config.ring = Some((4 << 20) + 4096);
        config.survive = Survive::Host;
        config.log_limit = 16 << 20;
        config.mirror = mirror.map(|keeper| Arc::clone(keeper) as Arc<dyn MirrorKeeper>);
        BufferPool::open(config, data).expect("pool")
    })
}

/// Works for `time`, then loses the region: what the mirror and the disk hold, and the counts noted before.
fn lose(
    (files, region): (&MemFs, &Path),
    keeper: &Arc<Keeper>,
    random: &mut Random,
    time: Duration,
) -> (Vec<u8>, MemFs, Vec<u64>) {
    let (pool, _) = open(files, region, Some(keeper));
    let stop = AtomicBool::new(false);
    let noted: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let read_notes = || -> Vec<u64> { noted.iter().map(|n| n.load(Ordering::SeqCst)).collect() };
    std::thread::scope(|s| {
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
        if random.below(3) == 0 {
            // The mirror is lost, and another is filled.
            std::thread::sleep(time / 4);
            pool.region().detach_mirror();
            keeper.is_whole.store(false, Ordering::SeqCst);
            std::thread::sleep(time / 4);
            keeper.attach(pool.region());
        }
        if !keeper.is_whole.load(Ordering::SeqCst) {
            keeper.fill(pool.region());
        }
        std::thread::sleep(time);
        let held = keeper.gate.write().expect("no panic");
        let image = std::fs::read(&keeper.path).expect("the mirror");
        let left = (image, read_notes(), files.crash_clone_torn(random.word()));
        stop.store(true, Ordering::Relaxed);
        drop(held);
        (left.0, left.2, left.1)
    })
}

#[test]
fn nothing_acknowledged_is_lost_with_the_region() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let keeper = Arc::new(Keeper {
        path: dir.path().join("mirror"),
        ..Keeper::default()
    });
    let mut files = MemFs::new();
    let (pool, _) = open(&files, &region, Some(&keeper));
    fs::with(Arc::new(files.clone()), || model::prepare(&pool, PAGES));
    drop(pool);
    assert_eq!(*keeper.told.lock().expect("no panic"), ["before making", "begin"]);
    keeper.is_whole.store(false, Ordering::SeqCst);
    let (mut kept, mut repaired) = (0, 0);
    for round in 0..12 {
        let time = Duration::from_millis(5 + random.below(60));
        let (image, left, notes) = lose((&files, &region), &keeper, &mut random, time);
        // The mirror's memory is the region from here on, and its mirror is made anew.
        std::fs::remove_file(&region).expect("region");
        std::fs::write(&region, image).expect("region");
        files = left;
        let (pool, report) = open(&files, &region, None);
        assert_eq!(report.mode, Mode::Instant, "round {round}: {:?}", report.remarks);
        assert!(report.remarks.is_empty(), "round {round}: {:?}", report.remarks);
        kept += report.frames_kept;
        repaired += report.frames_repaired();
        fs::with(Arc::new(files.clone()), || model::verify(&pool, PAGES, &notes));
        drop(pool);
        keeper.is_whole.store(false, Ordering::SeqCst);
    }
    println!("12 regions lost: {kept} frames kept, {repaired} repaired");
}

/// A start that has ended says so in the mirror too: what it takes for owed is replayed from the log, and nothing is
/// owed any more.
#[test]
fn a_mirror_of_a_region_that_was_recovered_owes_no_replay() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let keeper = Arc::new(Keeper {
        path: dir.path().join("mirror"),
        ..Keeper::default()
    });
    let files = MemFs::new();
    let (pool, _) = open(&files, &region, Some(&keeper));
    let in_region = std::fs::read(&region).expect("the region");
    let in_mirror = std::fs::read(&keeper.path).expect("the mirror");
    let at = Geometry::HEADER_AT as usize + SURVEYING_AT;
    assert_eq!(in_region[at..at + 4], [0; 4]);
    assert_eq!(in_mirror[at..at + 4], [0; 4]);
    drop(pool);
}

/// The process is killed, or stops in order, and starts again on its region; its mirror was whole and is whole still,
/// without being filled.
#[test]
fn a_mirror_is_whole_over_restarts() {
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let keeper = Arc::new(Keeper {
        path: dir.path().join("mirror"),
        ..Keeper::default()
    });
    let files = MemFs::new();
    let (pool, _) = open(&files, &region, Some(&keeper));
    fs::with(Arc::new(files.clone()), || model::prepare(&pool, PAGES));
    keeper.fill(pool.region());
    drop(pool);
    for round in 0..6 {
        if round % 2 == 1 {
            let (pool, _) = open(&files, &region, Some(&keeper));
            fs::with(Arc::new(files.clone()), || pool.shutdown()).expect("in order");
        }
        let (image, left, notes) = lose((&files, &region), &keeper, &mut random, Duration::from_millis(20));
        let other = dir.path().join("other");
        std::fs::write(&other, image).expect("region");
        let (pool, report) = open(&left, &other, None);
        assert_eq!(report.mode, Mode::Instant, "round {round}: {:?}", report.remarks);
        fs::with(Arc::new(left.clone()), || model::verify(&pool, PAGES, &notes));
        drop(pool);
        // Back to the region, which was only left by its process.
        std::fs::remove_file(&other).expect("removed");
    }
}

#[test]
fn a_mirror_is_for_regions_that_survive_their_host() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let files = MemFs::new();
    fs::with(Arc::new(files), || {
        let data = DataDir::open(Path::new("/data")).expect("data directory");
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(dir.path().join("region"));
        config.mirror = Some(Arc::new(Keeper::default()));
        let refused = BufferPool::open(config, data).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("survives its host")));
    });
}
