//! The log's protocols at every preemption point: appenders, leaders and waiters, a crash of the
//! machine or a kill of the process at a moment of the seed's choosing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::mark::{self, Aim, Mark};
use cenote_base::rt::{self, Mutex, Nanos, fs};
use cenote_base::{Lsn, PageId, RecordAddr};
use cenote_fabric::{Identity, Region, RegionOptions};
use cenote_sim::{Exit, Pace, Topology, World, explore, run, seeds};
use cenote_storage::redo::{GroupBuilder, GroupKind};
use cenote_storage::{FIRST_LSN, Log, LogOptions, RING_HEADER, RING_MIN, RingPlace, RingUse, Survive};
use cenote_testkit::faulty::MemFs;

const THREADS: u32 = 4;
const OFFSET: u64 = 4096;

fn region() -> Arc<Region> {
    let length = OFFSET + RING_HEADER + RING_MIN;
    let identity = Identity {
        database: 7,
        ..Identity::default()
    };
    Arc::new(Region::dram(length, identity, RegionOptions::default()).expect("memory"))
}

fn open(region: &Arc<Region>, believe_ring: bool, background: bool) -> (Log, RingUse) {
    let ring = RingPlace {
        region: region.clone(),
        offset: OFFSET,
        length: region.len() - OFFSET,
    };
    let (log, report) = Log::open(LogOptions {
        dir: Path::new("/log").to_owned(),
        database: 7,
        segment_bytes: 64 << 10,
        ring,
        believe_ring,
        survive: Survive::Process,
        checkpoint: FIRST_LSN,
        origin: FIRST_LSN,
        nodes: None,
        owner: None,
        known_durable: Lsn::ZERO,
        background,
    })
    .expect("opens");
    (log, report.ring)
}

/// What each session was told: start of the group, and the number that it wrote.
type Told = Arc<Mutex<BTreeMap<Lsn, u64>>>;

fn session(log: &Log, thread: u32, told: &Told, acknowledged: &Told) {
    let mut builder = GroupBuilder::new();
    for n in 0..6 {
        builder.clear();
        let number = u64::from(thread) << 32 | n;
        let record = builder.page(PageId::new(1, thread), RecordAddr::NONE);
        builder.write(record, 64, &number.to_le_bytes());
        builder.write(record, 8000, &[n as u8; 900]);
        let appended = log.append(builder.finish().expect("short"), None).expect("appended");
        told.lock().insert(appended.start, number);
        if !rt::random().is_multiple_of(3) {
            log.wait_durable(appended.end).expect("durable");
            assert!(log.durable() >= appended.end);
            acknowledged.lock().insert(appended.start, number);
        }
    }
}

/// The groups of a log: start and number.
fn numbers(log: &Log) -> BTreeMap<Lsn, u64> {
    let (mut found, mut scan) = (BTreeMap::new(), log.scan(FIRST_LSN));
    while let Some(group) = scan.next().expect("whole") {
        if group.kind() == GroupKind::Redo {
            let record = group.records().next().expect("one").expect("whole");
            let bytes = &record.bytes()[28..36];
            found.insert(group.start(), u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        }
    }
    found
}

/// What was left at a moment of the seed's choosing.
struct Left {
    /// Groups whose append had returned.
    told: BTreeMap<Lsn, u64>,
    /// Groups whose durability had been waited for.
    acknowledged: BTreeMap<Lsn, u64>,
    killed: MemFs,
    crashed: MemFs,
    region: Arc<Region>,
}

fn run_until_stopped(seed: u64) -> Left {
    run(seed, |sim| {
        let region = region();
        let (log, _) = open(&region, false, seed.is_multiple_of(2));
        let log = Arc::new(log);
        let (told, acknowledged) = (Told::default(), Told::default());
        let sessions: Vec<_> = (0..THREADS)
            .map(|n| {
                let (log, told, acknowledged) = (log.clone(), told.clone(), acknowledged.clone());
                rt::spawn("session", move || session(&log, n, &told, &acknowledged))
            })
            .collect();
        rt::sleep(Nanos(rt::random() % 1_500_000));
        let (acknowledged_before, told_before) = (acknowledged.lock().clone(), told.lock().clone());
        let crashed = sim.files().crash_clone_torn(seed);
        let killed = sim.files().kill_clone();
        // No preemption point since the files were copied: the same moment.
        let image = region.span(0, region.len()).to_vec();
        sessions.into_iter().for_each(|s| s.join().expect("no panic"));
        log.flush_all().expect("durable");
        assert_eq!(numbers(&log), *told.lock());
        Left {
            told: told_before,
            acknowledged: acknowledged_before,
            killed,
            crashed,
            region: Arc::new(Region::from_image(&image).expect("an image")),
        }
    })
    .value
}

fn assert_has(log: &Log, wanted: &BTreeMap<Lsn, u64>, hint: &str) {
    let found = numbers(log);
    for (start, number) in wanted {
        assert_eq!(found.get(start), Some(number), "{hint}: the group at {start}");
    }
}

#[test]
fn whatever_the_order_of_threads_nothing_acknowledged_is_lost() {
    for seed in seeds(60) {
        let left = run_until_stopped(seed);
        fs::with(Arc::new(left.crashed), || {
            let (log, _) = open(&region(), false, false);
            assert_has(&log, &left.acknowledged, &format!("crash, seed {seed}"));
        });
        fs::with(Arc::new(left.killed), || {
            let (log, ring) = open(&left.region, true, false);
            assert_eq!(ring, RingUse::Used, "kill, seed {seed}");
            assert_has(&log, &left.told, &format!("kill, seed {seed}"));
        });
    }
}

/// A transaction that built on a commit whose redo was still being copied committed itself, in whole; the process died,
/// the first commit was void and taken back, and the second stood on rows that never were. It waits for the first one's
/// redo now: here for that of a group whose hook has run.
#[test]
fn what_was_waited_for_is_whole_after_a_kill() {
    for seed in seeds(60) {
        let (image, killed) = run(seed, |sim| {
            let region = region();
            let log = Arc::new(open(&region, false, seed.is_multiple_of(2)).0);
            let place = Arc::new(AtomicU64::new(0));
            let (theirs, noted) = (log.clone(), place.clone());
            let writer = rt::spawn("writer", move || append_noting(&theirs, &noted));
            while place.load(Ordering::SeqCst) == 0 {
                rt::yield_now();
            }
            let end = Lsn::from_raw(place.load(Ordering::SeqCst));
            log.wait_complete(end).expect("whole");
            let left = (region.span(0, region.len()).to_vec(), sim.files().kill_clone());
            writer.join().expect("no panic");
            left
        })
        .value;
        let region = Arc::new(Region::from_image(&image).expect("an image"));
        fs::with(Arc::new(killed), || {
            let (log, ring) = open(&region, true, false);
            assert_eq!(ring, RingUse::Used);
            assert_eq!(numbers(&log).len(), 1, "void, seed {seed}");
        });
    }
}

/// Appends a group and says where it ends as soon as that is known, as commits do.
fn append_noting(log: &Log, noted: &AtomicU64) {
    let mut builder = GroupBuilder::new();
    let record = builder.page(PageId::new(1, 1), RecordAddr::NONE);
    builder.write(record, 64, &7u64.to_le_bytes());
    let mut hook = |end: Lsn, _: &mut [u8]| noted.as_raw().store(end.raw(), Ordering::SeqCst);
    log.append(builder.finish().expect("short"), Some(&mut hook))
        .expect("appended");
}

/// The lead, and a commit that builds on another, gave their turns away for as long as the thread that copies redo had
/// lost its processor: one of theirs burnt, and in a world of 120 million steps all of them used up. They nap, and are
/// not much late for it.
#[test]
fn redo_whose_thread_stands_still_is_waited_for_in_naps() {
    let lead = waited_for_redo_that_stands_still(|log, end| log.wait_durable(end).expect("durable"));
    let builds = waited_for_redo_that_stands_still(|log, end| log.wait_complete(end).expect("whole"));
    for (time, steps) in [lead, builds] {
        assert!((STANDS.0..STANDS.0 * 11 / 10).contains(&time.0), "waited for {time}");
        assert!(steps < 30_000, "{steps} steps, of which 40,000 turns given away");
    }
}

/// How long a thread copies redo: it looks at its clock a thousand times meanwhile.
const STANDS: Nanos = Nanos::from_millis(20);

/// How long the wait took, and the steps of the whole world (seed 1), in which two threads have a processor each.
fn waited_for_redo_that_stands_still(wait: fn(&Log, Lsn)) -> (Nanos, u64) {
    let world = World::new(1, Pace::Project, Topology::hosts(1, 2)).expect("possible");
    mark::aim(Some(Aim {
        at: Mark::GroupReserved,
        one_in: 1,
        most: STANDS,
        until: Some(Mark::DirtyEvicted),
    }));
    let took = Arc::new(AtomicU64::new(0));
    let theirs = took.clone();
    let outcome = world.run(|w| {
        let process = w.process(0, "one", move || {
            let log = Arc::new(open(&region(), false, false).0);
            let place = Arc::new(AtomicU64::new(0));
            let (its, noted) = (log.clone(), place.clone());
            let writer = rt::spawn("writer", move || append_noting(&its, &noted));
            while place.load(Ordering::SeqCst) == 0 {
                rt::yield_now();
            }
            let began = rt::now();
            wait(&log, Lsn::from_raw(place.load(Ordering::SeqCst)));
            theirs.store(rt::now().since(began).0, Ordering::SeqCst);
            writer.join().expect("no panic");
        });
        assert_eq!(process.join(), Exit::Returned);
    });
    mark::aim(None);
    (Nanos(took.load(Ordering::SeqCst)), outcome.steps)
}

#[test]
fn the_same_seed_goes_the_same_way() {
    explore(3, |sim| {
        let (log, _) = open(&region(), false, true);
        let (told, acknowledged) = (Told::default(), Told::default());
        session(&log, sim.seed() as u32 & 3, &told, &acknowledged);
    });
}
