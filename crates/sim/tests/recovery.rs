//! What recovery waits for: a pool is killed under load and opened again, on a drive behind a network that takes its
//! time.
//!
//! Threads change pages, a few of them all the time and others now and then, and stand still with latches held, so that
//! the kill meets pages in the middle of a change, whose redo lies far apart in the log. The drive counts what the next
//! process reads. Same seed, same numbers: so the bounds here are bounds, and not what a machine happened to do.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

use cenote_base::rt::{self, Nanos};
use cenote_base::{PAGE_SIZE, PageId};
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport};
use cenote_fabric::profile::named;
use cenote_sim::{DeviceSpec, HostSpec, Pace, Topology, World};
use cenote_storage::DataDir;
use cenote_testkit::faulty::{Drive, DriveCounters};

const SPACE: u32 = 1000;
const PAGES: u32 = 900;
const THREADS: u32 = 12;
/// Threads that stand still hold latches for so long, and the kill comes after so long.
const STILL: Nanos = Nanos::from_micros(300);
const LOAD: Nanos = Nanos::from_millis(400);
/// Double-write areas, pages in each, and what the profile `storage` takes for a read and for a byte.
const AREAS: u64 = 4;
const BATCH: u64 = 64;
const READ: Nanos = Nanos::from_micros(60);
const BYTES_PER_MS: u64 = 3_000_000;

/// What a recovery came to.
#[derive(Debug, Clone, PartialEq)]
struct Recovered {
    mode: Mode,
    repaired: u64,
    records: u64,
    replayed: u64,
    redo: u64,
    took: Nanos,
    reads: u64,
    bytes: u64,
    written: u64,
}

fn topology() -> Topology {
    Topology {
        hosts: vec![HostSpec::new("host", 16)],
        devices: vec![DeviceSpec {
            coherent: true,
            ..DeviceSpec::new("cxl", 48 << 20, "cxl-switch").expect("known")
        }],
        ..Topology::default()
    }
}

fn open(kind: Kind) -> (BufferPool, RecoveryReport) {
    let data = DataDir::open(Path::new("/data")).expect("data");
    let config = Config {
        region: (kind == Kind::Cxl).then(|| "/dev/sim/cxl".into()),
        ring: Some((4 << 20) + 4096),
        ..Config::new(kind, 40 << 20)
    };
    BufferPool::open(config, data).expect("pool")
}

fn fill(pool: &BufferPool) {
    pool.storage().pages().create_space(SPACE).expect("space");
    for number in 0..PAGES {
        let mut m = pool.mtr();
        m.create(PageId::new(SPACE, number), 7, 0).expect("room");
        m.commit();
    }
    pool.flush_all().expect("written");
    pool.checkpoint().expect("noted");
}

/// Changes pages until it is killed: one of its own each time, and any other.
fn change(pool: &BufferPool, thread: u32) {
    for step in 0u64.. {
        let own = PageId::new(SPACE, thread);
        let other = PageId::new(SPACE, THREADS + (rt::random() % u64::from(PAGES - THREADS)) as u32);
        let mut m = pool.mtr();
        for page in [own, other] {
            let h = m.exclusive(page).expect("a page");
            m.write_u64(h, 64, step);
            m.write(h, 200 + (step as usize * 97) % 8000, &[step as u8; 90]);
        }
        if step % 8 == u64::from(thread % 8) {
            rt::sleep(STILL);
        }
        m.commit();
        pool.storage().log().flush_all().expect("durable");
    }
}

fn load(pool: BufferPool) {
    fill(&pool);
    let pool = Arc::new(pool);
    let start = |thread| {
        let pool = Arc::clone(&pool);
        rt::spawn("changes", move || change(&pool, thread))
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    threads.into_iter().for_each(|t| drop(t.join()));
}

/// Kills a pool under load and recovers.
fn killed(kind: Kind, seed: u64) -> Recovered {
    let world = World::new(seed, Pace::Project, topology()).expect("possible");
    let outcome = world.run(|w| {
        let drive = Drive::of(&named("storage").expect("known"));
        w.files(0).set_drive(Some(drive.clone()));
        let first = w.process(0, "killed", move || load(open(kind).0));
        rt::sleep(LOAD);
        first.kill();
        recover(w, kind, &drive)
    });
    outcome.value
}

fn recover(w: &World, kind: Kind, drive: &Drive) -> Recovered {
    let told: Arc<Mutex<Option<(RecoveryReport, DriveCounters)>>> = Arc::default();
    let (theirs, used, before) = (told.clone(), drive.clone(), drive.counters());
    let second = w.process(0, "recovers", move || {
        let (pool, report) = open(kind);
        let counters = used.counters();
        assert_eq!(pool.check().problems, Vec::<String>::new());
        *theirs.lock().expect("whole") = Some((report, counters));
    });
    second.join();
    let (report, now) = told.lock().expect("whole").take().expect("it recovered");
    let recovered = Recovered {
        mode: report.mode,
        repaired: report.frames_repaired(),
        records: report.repaired.iter().map(|r| u64::from(r.records)).sum(),
        replayed: report.pages_replayed,
        redo: report.redo_bytes_read,
        took: report.duration,
        reads: now.reads - before.reads,
        bytes: now.bytes_read - before.bytes_read,
        written: now.bytes_written - before.bytes_written,
    };
    println!("{recovered:?}");
    recovered
}

/// Each record of a page's chain was three reads of the log, one after the other, page after page; and the start looked
/// for each page of the double-write area on its own.
#[test]
fn instant_recovery_reads_little_and_waits_seldom() {
    // A kill may come where no page is latched: three seeds are wanted that leave pages worth repairing.
    let mut worth = 0;
    for seed in 1..20 {
        let found = killed(Kind::Cxl, seed);
        assert_eq!(found.mode, Mode::Instant);
        if found.repaired < 3 || found.records < 100 {
            continue;
        }
        worth += 1;
        // Areas, the places of their pages, and the copies of those that were being written; the images of the
        // repaired; their chains.
        let start = AREAS + AREAS * BATCH + BATCH;
        assert!(found.reads <= start + found.repaired + found.records + 10, "{found:?}");
        // The longest chain's records at most, one after the other, while all else is transferred.
        let transfer = Nanos::from_micros(1000 * found.bytes / BYTES_PER_MS);
        assert!(found.took <= transfer + Nanos(READ.raw() * 100), "{found:?}");
        assert_eq!(found, killed(Kind::Cxl, seed), "the same every time");
        if worth == 3 {
            return;
        }
    }
    panic!("{worth} of 19 seeds left pages worth repairing");
}

/// Pages were read one by one as their turn came, and the log in windows, each when the one before had been used up.
#[test]
fn replay_takes_as_long_as_its_transfers() {
    for seed in 1..3 {
        let found = killed(Kind::Dram, seed);
        assert_eq!(found.mode, Mode::Log);
        assert!(found.replayed > u64::from(PAGES) / 2, "{found:?}");
        let log = 2 * found.redo + (64 << 20);
        let pages = found.replayed + AREAS * BATCH + BATCH;
        assert!(found.reads <= pages + log / (1 << 20) + 40, "{found:?}");
        assert!(found.bytes <= pages * PAGE_SIZE as u64 + log, "{found:?}");
        // Two segments are prepared; nothing is written where nothing has to be cleared.
        assert!(found.written <= (32 << 20) + (128 << 10), "{found:?}");
        let transfer = Nanos::from_micros(1000 * found.bytes / BYTES_PER_MS);
        assert!(found.took <= transfer + transfer + Nanos(READ.raw() * 100), "{found:?}");
        assert_eq!(found, killed(Kind::Dram, seed), "the same every time");
    }
}
