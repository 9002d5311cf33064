//! What work costs in a pool of very many frames: what it changes, not what there is. Counted in descriptors that were
//! examined, not in time. (Checkpoints, write-back by age and the dropping of spaces looked at all descriptors, in one
//! thread: 64 M of them in 1 TiB.)

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Lsn, PageId, Result};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::config::{Config, Kind};
use crate::dirty::DirtyFrames;
use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::layout::{FrameState, Geometry};
use crate::open::BufferPool;
use crate::pool::set_state;
use crate::report::RecoveryReport;
use crate::spaces::SpaceFrames;

const SPACE: u32 = 1000;
/// The space of pages that lie in frames, and that no thread is about to use.
const IDLE: u32 = 2000;
/// Frames: descriptors are there, pages of a sparse region.
const FRAMES: u32 = 1_000_000;
/// Pages that are changed.
const CHANGED: u32 = 100;

fn config(frames: u32, region: &Path) -> Config {
    let mut config = Config::new(Kind::Cxl, Geometry::len_for(frames).expect("a length"));
    config.region = Some(region.to_owned());
    config.background = false;
    config.scan_limit = 0;
    config
}

fn open(config: Config) -> (BufferPool, RecoveryReport) {
    let data = DataDir::open(Path::new("/data")).expect("data");
    let (pool, report) = BufferPool::open(config, data).expect("pool");
    for space in [SPACE, SPACE + 1] {
        if !pool.storage().pages().has_space(space) {
            pool.storage().pages().create_space(space).expect("space");
        }
    }
    (pool, report)
}

fn create(pool: &BufferPool, space: u32, pages: u32) {
    for page in 0..pages {
        let mut m = pool.mtr();
        m.create(PageId::new(space, page), 7, 0).expect("create");
        m.commit();
    }
}

/// As if all frames had been used: each has a page, which is clean. They are on no list of the pool, since no thread
/// asks those here.
fn use_all(pool: &BufferPool) {
    for frame in FrameIndex::all(pool.touched()..pool.frames.count()) {
        let d = pool.frames.descriptor(frame);
        d.key.store(key_of(PageId::new(IDLE, frame.raw())), Ordering::Relaxed);
        set_state(d, FrameState::Used);
    }
    let header = pool.frames.header();
    header.frames_touched.store(pool.frames.count(), Ordering::Release);
}

/// Descriptors examined by `work`.
fn examined<T>(pool: &BufferPool, work: impl FnOnce() -> Result<T>) -> u64 {
    let before = pool.stats().counts.descriptors_examined;
    work().expect("done");
    pool.stats().counts.descriptors_examined - before
}

/// A pool with [`FRAMES`] frames in use, and a few pages that were changed; its region, for the next pool.
fn with_many_frames(f: impl FnOnce(&BufferPool, &Path)) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    fs::with(Arc::new(MemFs::new()), || {
        let (pool, _) = open(config(FRAMES, &region));
        create(&pool, SPACE, CHANGED);
        create(&pool, SPACE + 1, CHANGED / 2);
        use_all(&pool);
        f(&pool, &region);
        pool.abandon();
    });
}

#[test]
fn a_checkpoint_and_a_flush_look_at_what_changed() {
    with_many_frames(|pool, _| {
        let dirty = u64::from(CHANGED + CHANGED / 2);
        let looked_at = examined(pool, || pool.checkpoint());
        assert!(looked_at <= dirty, "{looked_at} descriptors for a checkpoint");
        let looked_at = examined(pool, || pool.flush_all());
        assert!(
            looked_at <= 4 * dirty,
            "{looked_at} descriptors for {dirty} dirty pages"
        );
        let looked_at = examined(pool, || pool.checkpoint());
        assert_eq!(looked_at, 0, "nothing is dirty");
        assert_eq!(pool.stats().checkpoint, pool.storage().log().tail());
    });
}

#[test]
fn a_space_that_goes_costs_what_it_has_in_memory() {
    with_many_frames(|pool, _| {
        let looked_at = examined(pool, || pool.discard_space(SPACE + 1));
        assert!(looked_at <= u64::from(CHANGED), "{looked_at} descriptors");
        for page in 0..CHANGED / 2 {
            let key = key_of(PageId::new(SPACE + 1, page));
            assert_eq!(pool.hash.find(&pool.frames, key), None, "page {page}");
        }
        // A range that is longer than what the space has.
        let looked_at = examined(pool, || pool.discard_pages(SPACE, 10..1 << 30));
        assert!(looked_at <= 2 * u64::from(CHANGED), "{looked_at} descriptors");
        let left = (0..CHANGED).filter(|page| {
            let key = key_of(PageId::new(SPACE, *page));
            pool.hash.find(&pool.frames, key).is_some()
        });
        assert_eq!(left.count(), 10);
    });
}

/// A start finds out later, and once, which frames are dirty and whose they are; until then no checkpoint moves.
#[test]
fn frames_that_were_kept_are_looked_at_once() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let (pool, _) = open(config(FRAMES, &region));
        create(&pool, SPACE, CHANGED);
        create(&pool, SPACE + 1, CHANGED / 2);
        use_all(&pool);
        pool.storage().log().flush_all().expect("durable");
        pool.abandon();
    });
    fs::with(Arc::new(files.kill_clone()), || {
        let (pool, _) = open(config(FRAMES, &region));
        assert_eq!(pool.stats().counts.descriptors_examined, 0, "not by the start");
        let oldest = pool.frames.descriptors().iter().map(|d| d.rec.load(Ordering::Relaxed));
        let oldest = oldest.filter(|rec| *rec != Lsn::ZERO).min().expect("dirty pages");
        let looked_at = examined(&pool, || pool.checkpoint());
        assert!(
            (u64::from(FRAMES)..u64::from(FRAMES) + 1000).contains(&looked_at),
            "{looked_at} descriptors"
        );
        assert!(
            pool.checkpoint().expect("taken") <= oldest,
            "dirty frames that were kept count"
        );
        assert!(examined(&pool, || pool.flush_all()) < 1000);
        assert_eq!(pool.checkpoint().expect("taken"), pool.storage().log().tail());
        assert!(examined(&pool, || pool.discard_space(SPACE + 1)) < 1000);
        assert_eq!(pool.hash.find(&pool.frames, key_of(PageId::new(SPACE + 1, 1))), None);
        pool.abandon();
    });
}

/// While a space is dropped whose page a thread still latches, pages of others are written. (The dropping held a lock
/// that each write-back needs, for as long as it took.)
#[test]
fn a_space_that_goes_blocks_no_other() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let (pool, _) = open(config(4096, &dir.path().join("region")));
        create(&pool, SPACE, 1);
        create(&pool, SPACE + 1, 2);
        let key = key_of(PageId::new(SPACE + 1, 1));
        let frame = pool.hash.find(&pool.frames, key).expect("there");
        let held = pool.try_latch_exclusive(frame).expect("a slot").expect("free");
        std::thread::scope(|s| {
            let on_files = |f: fn(&BufferPool) -> Result<()>| {
                let (pool, files) = (&pool, files.clone());
                s.spawn(move || fs::with(Arc::new(files), || f(pool)))
            };
            let dropping = on_files(|pool| pool.discard_space(SPACE + 1));
            while pool
                .hash
                .find(&pool.frames, key_of(PageId::new(SPACE + 1, 0)))
                .is_some()
            {
                rt::sleep(Nanos::from_millis(1));
            }
            let writing = on_files(|pool| pool.flush_before(pool.storage.log().tail()).map(drop));
            let begun = rt::now();
            while !writing.is_finished() && rt::now().since(begun) < Nanos::from_millis(10_000) {
                rt::sleep(Nanos::from_millis(1));
            }
            let (written, dropped) = (writing.is_finished(), dropping.is_finished());
            pool.unlatch(held, false);
            dropping.join().expect("no panic").expect("dropped");
            writing.join().expect("no panic").expect("written");
            assert!(written, "write-back waited for a space that is dropped");
            assert!(!dropped, "a page was dropped that a thread latches");
        });
        assert_eq!(pool.check().problems, Vec::<String>::new());
    });
}

/// A page that is on its way to storage does not leave its frame: the file's blocks may be given back right after.
#[test]
fn a_page_under_way_is_waited_for() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let (pool, _) = open(config(4096, &dir.path().join("region")));
        create(&pool, SPACE, 3);
        for pages in [0..1, 0..u32::MAX] {
            let key = key_of(PageId::new(SPACE, pages.start));
            let frame = pool.hash.find(&pool.frames, key).expect("there");
            assert!(pool.mark_writing(frame));
            std::thread::scope(|s| {
                let (pool, files) = (&pool, files.clone());
                let dropping = s.spawn(move || fs::with(Arc::new(files), || pool.discard_pages(SPACE, pages)));
                rt::sleep(Nanos::from_millis(100));
                assert!(!dropping.is_finished(), "it left while it was written");
                pool.unmark_writing(frame);
                dropping.join().expect("no panic").expect("dropped");
            });
            assert_eq!(pool.hash.find(&pool.frames, key), None);
            create(&pool, SPACE, 1);
        }
    });
}

/// On request: `cargo test --release -p cenote-buffer --lib -- --ignored --nocapture sixty_four_million`.
#[test]
#[ignore = "takes 5 GiB of shared memory, and prints times"]
fn sixty_four_million_frames() {
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let begun = rt::now();
        work();
        println!("{what:<60} {:>10.3} ms", rt::now().since(begun).as_secs_f64() * 1e3);
    };
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    let files = MemFs::new();
    fs::with(Arc::new(files.clone()), || {
        let (pool, _) = open(config(64_000_000, &region));
        create(&pool, SPACE, CHANGED);
        create(&pool, SPACE + 1, CHANGED);
        use_all(&pool);
        timed("a look at all descriptors, one thread (as it was)", &mut || {
            let recs = pool.frames.descriptors().iter().map(|d| d.rec.load(Ordering::Acquire));
            assert!(recs.filter(|rec| *rec != Lsn::ZERO).min().is_some());
        });
        timed("checkpoint, 200 dirty pages", &mut || {
            assert!(pool.checkpoint().is_ok())
        });
        timed("write-back of all, 200 dirty pages", &mut || {
            pool.flush_all().expect("written")
        });
        timed("a space of 100 pages dropped", &mut || {
            pool.discard_space(SPACE + 1).expect("dropped")
        });
        create(&pool, SPACE, CHANGED);
        pool.storage().log().flush_all().expect("durable");
        pool.abandon();
    });
    // Each of these is a process that dies right after its start.
    let mut files = files;
    for (what, scan_limit, survey_part) in [
        ("start, latched frames only", 0, 1 << 14),
        ("start, all descriptors, one thread", u64::MAX, u32::MAX),
        ("start, all descriptors, a thread for each processor", u64::MAX, 1 << 14),
    ] {
        files = files.kill_clone();
        fs::with(Arc::new(files.clone()), || {
            let mut config = config(64_000_000, &region);
            (config.scan_limit, config.survey_part) = (scan_limit, survey_part);
            let mut opened = None;
            timed(what, &mut || opened = Some(open(config.clone())));
            let (pool, report) = opened.expect("opened");
            println!("  {report}");
            if scan_limit == 0 {
                timed("  the look at the frames kept, later, all processors", &mut || {
                    pool.know_all_frames()
                });
            }
            pool.abandon();
        });
    }
}

/// On request, as above: what the lists cost where a frame changes its state, in the best of many rounds.
#[test]
#[ignore = "prints times"]
fn what_a_frame_costs_that_changes_its_state() {
    let best = |what: &str, work: &dyn Fn(u32)| {
        let round = |round: u32| {
            let begun = rt::now();
            (0..10_000).for_each(|i| work(round * 10_000 + i));
            rt::now().since(begun).as_secs_f64() * 1e9 / 1e4
        };
        let least = (0..300).map(round).fold(f64::MAX, f64::min);
        println!("{what:<40} {least:.0} ns");
    };
    let dirty = DirtyFrames::new(1 << 30);
    best("a frame becomes dirty", &|i| {
        dirty.enter(FrameIndex::new(i), Lsn::from_raw(u64::from(i) * 100))
    });
    let spaces = SpaceFrames::new(4_000_000);
    let space = |i: u32| i % 100;
    best("a page comes into a frame", &|i| {
        spaces.enter(FrameIndex::new(i), || key_of(PageId::new(space(i), i)))
    });
    best("a page leaves a frame", &|i| spaces.leave(FrameIndex::new(i), space(i)));
}
