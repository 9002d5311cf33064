//! Deaths at places that are hard to meet by chance: the state is made by hand, step by step.

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::fs;
use cenote_base::rt::{self, atomic::Ordering};
use cenote_base::{Lsn, PageId, RecordAddr};
use cenote_fabric::coherence::WriteBack;
use cenote_fabric::{Region, RegionOptions};
use cenote_storage::redo::GroupBuilder;
use cenote_storage::{DataDir, Origins, Survive};
use cenote_testkit::faulty::MemFs;

use crate::config::{Config, Kind};
use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::lists::List;
use crate::open::{BufferPool, HOST, SURVEYED};
use crate::report::{Mode, RecoveryReport};

const SPACE: u32 = 1000;
const VALUE_AT: usize = 64;

fn open(region: &Path, scan: bool) -> (BufferPool, RecoveryReport) {
    open_from(Origins::default(), region, scan)
}

/// As [`open`]; a database that is made begins at `origins`.
fn open_from(origins: Origins, region: &Path, scan: bool) -> (BufferPool, RecoveryReport) {
    let mut config = Config::new(Kind::Cxl, 12 << 20);
    config.region = Some(region.to_owned());
    config.ring = Some((4 << 20) + 4096);
    config.background = false;
    // Several threads look at the few frames that there are.
    config.survey_part = 8;
    if !scan {
        config.scan_limit = 0;
    }
    let data = DataDir::open_or_begin(Path::new("/data"), origins).expect("data");
    BufferPool::open(config, data).expect("pool")
}

fn set(pool: &BufferPool, page: PageId, value: u64, noise: usize) {
    let mut m = pool.mtr();
    let h = m.exclusive(page).expect("page");
    m.write_u64(h, VALUE_AT, value);
    m.write(h, 1000, &vec![value as u8; noise]);
    m.commit();
}

/// Works with a pool, dies as `work` leaves it, and recovers; both ways of finding suspects.
fn killed(work: impl Fn(&BufferPool), verify: impl Fn(&BufferPool, &RecoveryReport)) {
    killed_from(Origins::default(), work, verify);
}

fn killed_from(origins: Origins, work: impl Fn(&BufferPool), verify: impl Fn(&BufferPool, &RecoveryReport)) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    for scan in [true, false] {
        let (region, after) = (dir.path().join("region"), dir.path().join("after"));
        let files = MemFs::new();
        let pool = fs::with(Arc::new(files.clone()), || {
            let pool = open_from(origins, &region, true).0;
            pool.storage().pages().create_space(SPACE).expect("space");
            work(&pool);
            pool
        });
        std::fs::copy(&region, &after).expect("region");
        fs::with(Arc::new(files.kill_clone()), || {
            let (pool, report) = open(&after, scan);
            assert_eq!(report.mode, Mode::Instant);
            verify(&pool, &report);
            assert_eq!(pool.check().problems, Vec::<String>::new(), "scan {scan}");
        });
        pool.abandon();
        drop(pool);
        [region, after]
            .iter()
            .for_each(|file| std::fs::remove_file(file).expect("file"));
    }
}

/// Addresses of redo records kept 48 bits of the position, 33 days of redo at 100 MB/s, and were compared with whole
/// LSNs: the record of a page's last change seemed to lie before the page's image in storage, and that old image was
/// installed.
#[test]
fn a_latched_page_keeps_its_changes_beyond_every_word_s_old_end() {
    let (page, other) = (PageId::new(SPACE, 1), PageId::new(SPACE, 2));
    let cross = |pool: &BufferPool| (0..150).for_each(|i| set(pool, other, i, 12_000));
    for origin in [
        (1 << 48) - (1 << 20),
        (1 << 56) - (1 << 20),
        RecordAddr::END.raw() - (2 << 40),
    ] {
        let origins = Origins {
            log: Lsn::from_raw(origin),
            ..Origins::default()
        };
        for crossed_before in [true, false] {
            let work = |pool: &BufferPool| {
                for page in [page, other] {
                    let mut m = pool.mtr();
                    m.create(page, 7, 0).expect("create");
                    m.commit();
                }
                if crossed_before {
                    cross(pool);
                }
                set(pool, page, 6, 100);
                pool.flush_all().expect("flush");
                set(pool, page, 7, 100);
                if !crossed_before {
                    cross(pool);
                    set(pool, page, 8, 100);
                }
                pool.storage().log().flush_all().expect("durable");
                let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
                pool.try_latch_exclusive(frame).expect("a slot").expect("free");
            };
            killed_from(origins, work, |pool, report| {
                let expected = if crossed_before { 7 } else { 8 };
                let found = pool.shared(page).expect("page").view().u64(VALUE_AT);
                assert_eq!(found, expected, "from {origin}, crossed before: {crossed_before}");
                assert_eq!(report.frames_repaired(), 1, "{:?}", report.remarks);
                assert_eq!(report.remarks, Vec::<String>::new(), "by its chain, not by a search");
            });
        }
    }
}

/// One thread evicted a page and had taken the frame out of the hash, its key not cleared yet. Another brought the page
/// into a second frame, changed it, and had it latched again when the process died. Recovery repaired the first frame
/// from storage, found the page there when it came to the second, and dropped that one: its committed changes were
/// lost.
#[test]
fn a_page_that_was_leaving_one_frame_and_latched_in_another_keeps_its_changes() {
    let page = PageId::new(SPACE, 1);
    let leave_twice = |pool: &BufferPool| {
        let mut m = pool.mtr();
        m.create(page, 7, 0).expect("create");
        m.commit();
        pool.flush_all().expect("flush");
        let first = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        pool.try_latch_exclusive(first).expect("a slot").expect("free");
        pool.hash
            .lock(&pool.frames, key_of(page))
            .remove(first)
            .expect("removed");
        set(pool, page, 7, 100);
        pool.storage().log().flush_all().expect("durable");
        let second = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        assert!(first < second);
        pool.try_latch_exclusive(second).expect("a slot").expect("free");
    };
    killed(leave_twice, |pool, _| {
        assert_eq!(pool.shared(page).expect("page").view().u64(VALUE_AT), 7);
        assert_ne!(
            pool.frames
                .descriptors()
                .iter()
                .filter(|d| d.rec.load(Ordering::Relaxed) != Lsn::ZERO)
                .count(),
            0
        );
    });
}

/// A thread had its group complete in the log, and stood still before it stamped its page, for as long as others took
/// to write the ring full. The record lay before the part of the ring that recovery looked at: the page was left
/// without it, while the log, and its replay, has it.
#[test]
fn a_record_older_than_the_ring_is_found() {
    let (page, other) = (PageId::new(SPACE, 1), PageId::new(SPACE, 2));
    let stand_still = |pool: &BufferPool| {
        for page in [page, other] {
            let mut m = pool.mtr();
            m.create(page, 7, 0).expect("create");
            m.commit();
        }
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        pool.try_latch_exclusive(frame).expect("a slot").expect("free");
        let d = pool.frames.descriptor(frame);
        let mut group = GroupBuilder::new();
        let record = group.page(page, d.head.load(Ordering::Relaxed));
        group.write(record, VALUE_AT, &7u64.to_le_bytes());
        let log = pool.storage().log();
        let slot = rt::thread_slot() + 1;
        pool.frames
            .header()
            .slots_used
            .fetch_max(slot as u32 + 1, Ordering::SeqCst);
        let floor = &pool.frames.slots()[slot].floor;
        floor.store(log.tail(), Ordering::SeqCst);
        log.append(group.finish().expect("a group"), None).expect("appended");
        (0..600).for_each(|i| set(pool, other, i, 12_000));
        assert!(
            log.ring_scan_start() > floor.load(Ordering::Relaxed),
            "the ring has gone round"
        );
    };
    killed(stand_still, |pool, report| {
        assert_eq!(pool.shared(page).expect("page").view().u64(VALUE_AT), 7);
        assert_eq!(report.frames_repaired(), 1);
    });
}

/// After the loss of a host the count of slots in use was an old one, and a floor beyond it stayed: as soon as the slot
/// was used again, no checkpoint moved beyond that floor, and no shutdown was clean.
#[test]
fn floors_beyond_the_count_of_slots_go_with_their_host() {
    let leave_a_floor = |pool: &BufferPool| {
        let last = pool.frames.slots().last().expect("slots");
        last.floor.store(pool.storage().log().tail(), Ordering::SeqCst);
        pool.frames
            .region()
            .update_state(|s| s.words[crate::open::SURVIVE] = Survive::Host as u64);
    };
    killed(leave_a_floor, |pool, _| {
        let last = pool.frames.slots().last().expect("slots");
        assert_eq!(last.floor.load(Ordering::SeqCst), Lsn::ZERO);
    });
}

/// Where the hash is taken over as it is (regions too large to be looked at whole), a chain that leads nowhere made
/// recovery fail, and with it every start.
#[test]
fn a_broken_chain_of_the_hash_is_no_reason_not_to_start() {
    let page = PageId::new(SPACE, 1);
    let break_chain = |pool: &BufferPool| {
        let mut m = pool.mtr();
        m.create(page, 7, 0).expect("create");
        m.commit();
        set(pool, page, 7, 100);
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        pool.try_latch_exclusive(frame).expect("a slot").expect("free");
        pool.frames.buckets()[pool.hash.bucket(key_of(page))]
            .store(Some(FrameIndex::new(u32::MAX - 6)), Ordering::Release);
    };
    killed(break_chain, |pool, _| {
        assert_eq!(pool.shared(page).expect("page").view().u64(VALUE_AT), 7);
    });
}

/// Which boot it was that filled a region was asked of a file whose length the kernel gives as 0, so nothing was read,
/// and nothing compared: a region that need not survive its host was believed after the host had been started again.
#[test]
fn a_region_that_outlived_its_host_unasked_is_not_believed() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let (region, page) = (dir.path().join("region"), PageId::new(SPACE, 1));
    let reopen = || {
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(region.clone());
        config.ring = Some((4 << 20) + 4096);
        config.background = false;
        let data = DataDir::open(&dir.path().join("data")).expect("data");
        BufferPool::open(config, data).expect("pool")
    };
    let (pool, _) = reopen();
    pool.storage().pages().create_space(SPACE).expect("space");
    let mut m = pool.mtr();
    m.create(page, 7, 0).expect("create");
    m.commit();
    set(&pool, page, 7, 100);
    pool.storage().log().flush_all().expect("durable");
    drop(pool);
    let other_boot = |region: &Region| region.update_state(|s| s.words[HOST] ^= 1 << 40 | 1);
    other_boot(&Region::open(&region, RegionOptions::default()).expect("region"));
    let (pool, report) = reopen();
    assert_eq!(report.mode, Mode::Log);
    assert!(report.remarks[0].contains("restarted"), "{:?}", report.remarks);
    assert_eq!(pool.shared(page).expect("page").view().u64(VALUE_AT), 7);
}

/// Latches hold eight bits of the epoch, so every 255th start looks at all descriptors, however large the region. One
/// died between taking its epoch and looking; the next was not the 255th: a shared count that a process had left 255
/// starts before counted as held, and the page could not be written any more.
#[test]
fn a_start_that_dies_before_its_survey_owes_it_to_the_next() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let (region, after) = (dir.path().join("region"), dir.path().join("after"));
    let (files, page) = (MemFs::new(), PageId::new(SPACE, 1));
    let pool = fs::with(Arc::new(files.clone()), || {
        drop(open(&region, true));
        let pool = open(&region, true).0; // epoch 2
        pool.storage().pages().create_space(SPACE).expect("space");
        let mut m = pool.mtr();
        m.create(page, 7, 0).expect("create");
        m.commit();
        pool.storage().log().flush_all().expect("durable");
        pool
    });
    let reader = pool.shared(page).expect("page");
    std::fs::copy(&region, &after).expect("region");
    drop(reader);
    // 253 starts later, and one that took its epoch and died: 256, which a latch shows as 1.
    let found = Region::open(&after, RegionOptions::default()).expect("region");
    found.update_state(|s| s.epoch = 256);
    drop(found);
    fs::with(Arc::new(files.kill_clone()), || {
        let (pool, report) = open(&after, false);
        assert_eq!(report.mode, Mode::Instant);
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        assert!(
            pool.try_latch_exclusive(frame).expect("a slot").is_some(),
            "the reader of epoch 2 is long dead"
        );
        let state = pool.frames.region().state();
        assert_eq!(state.words[SURVEYED], state.epoch, "surveyed, and noted");
        pool.abandon();
    });
    pool.abandon();
}

/// On a processor without an instruction that writes lines back, a region was filled "to survive its host", and nothing
/// was flushed.
#[test]
fn survival_of_the_host_is_refused_where_nothing_can_be_flushed() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let open = |survive| {
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(dir.path().join("region"));
        (config.survive, config.write_back) = (survive, WriteBack::None);
        let data = DataDir::open(&dir.path().join("data")).expect("data");
        BufferPool::open(config, data).map(drop)
    };
    let refused = open(Survive::Host).expect_err("refused").to_string();
    assert!(refused.contains("--survive process"), "{refused}");
    assert!(!dir.path().join("region").exists(), "and nothing was made");
    open(Survive::Process).expect("what stays in the caches survives a process");
}

/// The page hash is damaged while the database runs. Evicting or discarding a frame of the broken chain gave an error
/// and left the frame latched: the next thread waited for good, and a recovery took it for one that was being changed.
#[test]
fn a_broken_chain_leaves_no_frame_latched() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let region = dir.path().join("region");
    fs::with(Arc::new(MemFs::new()), || {
        let pool = open(&region, true).0;
        pool.storage().pages().create_space(SPACE).expect("space");
        let page = PageId::new(SPACE, 1);
        for number in 1..20 {
            let mut m = pool.mtr();
            m.create(PageId::new(SPACE, number), 7, 0).expect("create");
            m.commit();
        }
        pool.flush_all().expect("flush");
        let frame = pool.hash.find(&pool.frames, key_of(page)).expect("there");
        let latch_is_free = || {
            let latched = pool.try_latch_exclusive(frame).expect("a slot");
            let free = latched.is_some();
            latched.into_iter().for_each(|latched| pool.unlatch(latched, false));
            free
        };
        let head = &pool.frames.buckets()[pool.hash.bucket(key_of(page))];
        let before = head.load(Ordering::SeqCst);
        head.store(Some(FrameIndex::new(u32::MAX - 2)), Ordering::SeqCst);
        pool.frames.descriptor(frame).recency.store(0, Ordering::SeqCst);
        let evicted = pool.evict(frame);
        assert!(latch_is_free(), "{evicted:?}");
        assert!(!evicted.expect("no reason to stop evicting others"));
        let free = pool.stats().frames_free;
        let error = pool.shared(page).err().expect("nowhere to be found").to_string();
        assert!(error.contains("restart"), "{error}");
        assert_eq!(pool.stats().frames_free, free, "the frame that it was to be read into");
        pool.discard_pages(SPACE, 1..2).expect_err("a broken chain");
        pool.discard_space(SPACE).expect_err("a broken chain");
        assert!(latch_is_free());
        // Whole again: nothing was lost.
        head.store(before, Ordering::SeqCst);
        assert_eq!(pool.shared(page).expect("there").view().u64(VALUE_AT), 0);
        pool.discard_space(SPACE).expect("whole");
        assert_eq!(pool.check().problems, Vec::<String>::new());
        drop(pool);
    });
}

/// Pages whose frames are not believed: twins, and a damaged one. They come back by the replay, whose threads take
/// turns.
const DOUBTED: [u32; 7] = [10, 11, 20, 90, 30, 60, 40];

/// Kept, repaired and discarded frames, causes and remarks, and the pages on each list, but for doubted ones.
type Found = (String, Vec<Vec<u32>>);

/// Recovers a copy of `region` that a dead process left, with descriptors looked at in parts of `part` frames.
fn survey_in_parts(region: &Path, files: &MemFs, part: u32) -> Found {
    let copy = region.with_extension(part.to_string());
    std::fs::copy(region, &copy).expect("region");
    fs::with(Arc::new(files.kill_clone()), || {
        let mut config = Config::new(Kind::Cxl, 12 << 20);
        config.region = Some(copy.clone());
        config.ring = Some((4 << 20) + 4096);
        config.background = false;
        config.survey_part = part;
        let (pool, report) = BufferPool::open(config, DataDir::open(Path::new("/data")).expect("data")).expect("pool");
        let lists = [List::Free, List::Warm, List::Cold].map(|list| walked(&pool, list));
        let counts = (report.frames_kept, report.frames_discarded, report.pages_replayed);
        let found = format!("{counts:?} {:?} {:?}", report.repaired, report.remarks);
        assert_eq!(pool.check().problems, Vec::<String>::new(), "parts of {part}");
        pool.abandon();
        (found, lists.to_vec())
    })
}

fn walked(pool: &BufferPool, list: List) -> Vec<u32> {
    let lists = pool.lists();
    let last = lists.last(list).expect("whole");
    let frames = std::iter::successors(last, |frame| lists.before(*frame).expect("whole"));
    let pages = frames.filter_map(|frame| Some(pool.page_in(frame)?.page));
    pages.filter(|page| !DOUBTED.contains(page)).collect()
}

/// Several threads that look at descriptors find what one does: latched and damaged frames, pages in two frames (in one
/// part and in two), and lists that have to be built anew.
#[test]
fn a_survey_by_several_threads_is_that_of_one() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    for lists_break in [false, true] {
        let (region, files) = (dir.path().join(format!("region{lists_break}")), MemFs::new());
        fs::with(Arc::new(files.clone()), || {
            let pool = open(&region, true).0;
            pool.storage().pages().create_space(SPACE).expect("space");
            for page in 0..100 {
                let mut m = pool.mtr();
                m.create(PageId::new(SPACE, page), 7, 0).expect("create");
                m.commit();
            }
            pool.flush_all().expect("flush");
            (0..100).for_each(|page| set(&pool, PageId::new(SPACE, page), 7, 20));
            pool.storage().log().flush_all().expect("durable");
            let frame = |page| {
                pool.hash
                    .find(&pool.frames, key_of(PageId::new(SPACE, page)))
                    .expect("there")
            };
            for [page, twin] in DOUBTED[..6].as_chunks::<2>().0.iter().copied() {
                let d = pool.frames.descriptor(frame(twin));
                d.key.store(key_of(PageId::new(SPACE, page)), Ordering::Relaxed);
                d.seal();
            }
            pool.frames
                .descriptor(frame(DOUBTED[6]))
                .lsn
                .store(Lsn::from_raw(1), Ordering::Relaxed);
            pool.try_latch_exclusive(frame(50)).expect("a slot").expect("free");
            if lists_break {
                pool.frames.descriptor(frame(70)).list_next.store(1, Ordering::Relaxed);
            }
            pool.abandon();
        });
        let alone = survey_in_parts(&region, &files, u32::MAX);
        assert!(alone.0.contains("Latched"), "{}", alone.0);
        for part in [1, 7, 64] {
            assert_eq!(survey_in_parts(&region, &files, part), alone, "parts of {part}");
        }
    }
}
