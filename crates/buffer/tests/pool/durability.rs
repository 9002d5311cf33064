//! Losses that were found by reading: each test tells its story.

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::fs;
use cenote_base::{PAGE_SIZE, PageId, Result};
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport};
use cenote_storage::DataDir;
use cenote_testkit::faulty::{FaultPlan, MemFs};

use crate::model::SPACE;

const VALUE_AT: usize = 64;

fn config(kind: Kind, region: &Path) -> Config {
    let mut config = Config::new(kind, 12 << 20);
    config.region = Some(region.to_owned());
    config.ring = Some((4 << 20) + 4096);
    config.background = false;
    config
}

fn try_open(config: Config) -> Result<(BufferPool, RecoveryReport)> {
    BufferPool::open(config, DataDir::open(Path::new("/data"))?)
}

fn within<T>(files: &MemFs, f: impl FnOnce() -> T) -> T {
    fs::with(Arc::new(files.clone()), f)
}

fn create(pool: &BufferPool, page: PageId, value: u64) {
    let mut m = pool.mtr();
    let h = m.create(page, 7, 0).expect("create");
    m.write_u64(h, VALUE_AT, value);
    m.commit();
}

fn set(pool: &BufferPool, page: PageId, value: u64, noise: usize) {
    let mut m = pool.mtr();
    let h = m.exclusive(page).expect("page");
    m.write_u64(h, VALUE_AT, value);
    m.write(h, 1000, &vec![value as u8 | 1; noise]);
    m.commit();
}

fn value(pool: &BufferPool, page: PageId) -> u64 {
    pool.shared(page).expect("page").view().u64(VALUE_AT)
}

/// A page's image went to the log, because its chain was long, and with it the page's `rec` moved up to the image. A
/// checkpoint then stood at the image, which was not durable yet. The host was lost, and the image with it: the page
/// was found as it had been before all of its records, committed and durable, that the checkpoint had given up.
#[test]
fn a_checkpoint_does_not_lean_on_an_image_that_is_not_durable() {
    let files = MemFs::new();
    let page = PageId::new(SPACE, 1);
    let mut count = 0;
    within(&files, || {
        let (pool, _) = try_open(config(Kind::Dram, Path::new("/none"))).expect("pool");
        pool.storage().pages().create_space(SPACE).expect("space");
        create(&pool, page, 0);
        pool.flush_all().expect("flush");
        while pool.stats().counts.images_logged == 0 {
            pool.storage().log().flush_all().expect("durable");
            count += 1;
            set(&pool, page, count, 4000);
        }
        pool.checkpoint().expect("checkpoint");
    });
    within(&files.crash_clone(), || {
        let (pool, report) = try_open(config(Kind::Dram, Path::new("/none"))).expect("pool");
        assert_eq!(report.mode, Mode::Log);
        assert!(count > 10 && value(&pool, page) >= count - 1, "{}", value(&pool, page));
    });
}

/// Purge had logged a page empty and given its frame and block up. The replay met the page's older records in one
/// stretch and the empty page only in the next: it refused to open the database.
#[test]
fn a_page_that_was_given_up_is_replayed_over_many_stretches() {
    let files = MemFs::new();
    let (gone, kept) = (PageId::new(SPACE, 1), PageId::new(SPACE, 2));
    within(&files, || {
        let (pool, _) = try_open(config(Kind::Dram, Path::new("/none"))).expect("pool");
        pool.storage().pages().create_space(SPACE).expect("space");
        create(&pool, gone, 1);
        create(&pool, kept, 1);
        set(&pool, gone, 2, 100);
        for count in 0..8 {
            set(&pool, kept, count, 4000);
        }
        create(&pool, gone, 0);
        pool.storage().log().flush_all().expect("durable");
        pool.discard_pages(SPACE, 1..2).expect("discarded");
        pool.checkpoint().expect("checkpoint");
    });
    within(&files.crash_clone(), || {
        let mut config = config(Kind::Dram, Path::new("/none"));
        config.replay_stretch = 8000;
        let (pool, _) = try_open(config).expect("pool");
        assert_eq!((value(&pool, gone), value(&pool, kept)), (0, 7));
    });
}

/// A page is damaged in storage, and the log has an older record of it in one stretch and makes it anew only in the
/// next: the database did not open.
#[test]
fn a_damaged_page_is_made_anew_by_a_later_stretch() {
    let files = MemFs::new();
    let (damaged, kept) = (PageId::new(SPACE, 1), PageId::new(SPACE, 2));
    within(&files, || {
        let (pool, _) = try_open(config(Kind::Dram, Path::new("/none"))).expect("pool");
        pool.storage().pages().create_space(SPACE).expect("space");
        create(&pool, damaged, 1);
        create(&pool, kept, 1);
        for count in 0..6 {
            pool.flush_all().expect("flush");
            set(&pool, kept, count, 10);
        }
        pool.checkpoint().expect("checkpoint");
        set(&pool, damaged, 2, 100);
        for count in 0..8 {
            set(&pool, kept, count, 4000);
        }
        create(&pool, damaged, 3);
        pool.storage().log().flush_all().expect("durable");
    });
    let left = files.crash_clone();
    let path = format!("/data/spaces/{SPACE:08x}.pages");
    left.flip(path, PAGE_SIZE as u64 + 5000, 1).expect("there");
    within(&left, || {
        let mut config = config(Kind::Dram, Path::new("/none"));
        config.replay_stretch = 8000;
        let (pool, _) = try_open(config).expect("pool");
        assert_eq!((value(&pool, damaged), value(&pool, kept)), (3, 7));
    });
}

/// A drive misreads a page now and then, and is right the next time. Records of one stretch of the log, passed over
/// since the page could not be read, are not forgotten because the page can be read in the next: the database opens
/// with all of them, or not.
#[test]
fn what_one_stretch_passed_over_no_later_one_hides() {
    let (files, page, other) = (MemFs::new(), PageId::new(SPACE, 1), PageId::new(SPACE, 2));
    let places = [200, 300, 400];
    within(&files, || {
        let (pool, _) = try_open(config(Kind::Dram, Path::new("/none"))).expect("pool");
        pool.storage().pages().create_space(SPACE).expect("space");
        create(&pool, page, 1);
        create(&pool, other, 1);
        pool.flush_all().expect("flush");
        pool.checkpoint().expect("checkpoint");
        for place in places {
            let mut m = pool.mtr();
            let h = m.exclusive(page).expect("page");
            m.write_u64(h, place, 7);
            m.commit();
            (0..3).for_each(|count| set(&pool, other, count, 4000));
        }
        pool.storage().log().flush_all().expect("durable");
    });
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..60 {
        let left = files.crash_clone();
        let plan = FaultPlan {
            flipped_read: 0.3,
            files: ".pages".into(),
            ..FaultPlan::default()
        };
        left.set_plan(plan, seed);
        within(&left, || {
            let mut config = config(Kind::Dram, Path::new("/none"));
            config.replay_stretch = 8000;
            let Ok((pool, _)) = try_open(config) else {
                return refused += 1;
            };
            opened += 1;
            let found = pool.shared(page).expect("page");
            assert_eq!(places.map(|place| found.view().u64(place)), [7; 3], "seed {seed}");
        });
    }
    assert!(opened > 5 && refused > 5, "{opened} opened, {refused} refused");
}

/// The region's ring could not be believed. The start made a new one, and was cut off (killed, or the disk failed)
/// before it had replayed the log. The next start found region and ring in order and took over the frames: those of
/// before, if it was cut off early, those of half a replay, if late.
#[test]
fn a_replay_that_was_cut_off_is_done_again() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    for late in [false, true] {
        let region = dir.path().join(if late { "late" } else { "early" });
        let (first, second) = (PageId::new(SPACE, 1), PageId::new(SPACE + 1, 1));
        let files = MemFs::new();
        within(&files, || {
            let (pool, _) = try_open(config(Kind::Cxl, &region)).expect("pool");
            for page in [first, second] {
                pool.storage().pages().create_space(page.space).expect("space");
                create(&pool, page, 1);
            }
            pool.flush_all().expect("flush");
            for count in 0..if late { 6 } else { 0 } {
                // Until no area of the double-write file is about the second space.
                set(&pool, first, count, 10);
                pool.flush_all().expect("flush");
            }
            pool.checkpoint().expect("checkpoint");
            set(&pool, first, 100, 10);
            set(&pool, second, 100, 10);
            pool.storage().log().flush_all().expect("durable");
        });
        let file = std::fs::File::options().write(true).open(&region).expect("region");
        for mark in [256, 320] {
            std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5; 24], 8192 + mark).expect("mark");
        }
        drop(file);
        within(&files, || {
            files.fail_reads_of(match late {
                // What a start reads of pages first, and what it reads of them in the replay.
                false => "/data/doublewrite".into(),
                true => format!("/data/spaces/{:08x}.pages", second.space),
            });
            try_open(config(Kind::Cxl, &region)).err().expect("the disk fails");
            files.heal();
            let (pool, report) = try_open(config(Kind::Cxl, &region)).expect("pool");
            println!("late {late}: {} {:?}", report.mode.name(), report.remarks);
            assert_eq!((value(&pool, first), value(&pool, second)), (100, 100), "late {late}");
            if !late {
                assert_eq!(report.mode, Mode::Log, "its frames are not believed");
            }
            assert_eq!(pool.check().problems, Vec::<String>::new());
        });
    }
}
