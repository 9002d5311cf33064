//! Remote memory that is full of pages that storage lacks changes of, in virtual time: what it costs then beside a pool
//! that has none.
//!
//! A load of changes, most of them of few pages, over more pages than frames and slots together. A page of remote
//! memory that lost its slot while storage lacked its changes was rebuilt from its image in storage and its chain of
//! redo: far more than the storage's own read, which a pool without remote memory has.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, PageId};
use cenote_buffer::{BufferPool, Config, Geometry, Kind, RemoteLayout, RemoteSource};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, RemoteMemory};
use cenote_sim::rdma::Network;
use cenote_sim::{Exit, Pace, Topology, World};
use cenote_storage::DataDir;
use cenote_testkit::faulty::{Drive, DriveCounters, MemFs};

use crate::model::{self, SPACE};

const PAGES: u32 = 3000;
/// A twentieth of the pages, and a fifth.
const FRAMES: u32 = 150;
const SLOTS: u32 = 600;
const SESSIONS: u64 = 4;
const VCPUS: u32 = 4;
/// Visits of a session to pages: before it is measured, and then; and changes of a visit, as of a few rows.
const WARM_UP: u64 = 4000;
const VISITS: u64 = 4000;
const CHANGES: u64 = 8;
/// Of a page the number of its changes; and what each of them writes, of one of so many rows.
const COUNT_AT: usize = 64;
const ROWS_AT: usize = 128;
const ROWS: u64 = 60;
const ROW: usize = 200;

/// What a load came to.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    time: Nanos,
    misses: u64,
    from_remote: u64,
    rebuilt: u64,
    evicted: u64,
    read: u64,
    written: u64,
    drive: Drives,
}

/// What the drive did in the time.
#[derive(Debug, Clone, Copy, Default)]
struct Drives {
    reads: u64,
    syncs: u64,
    bytes_read: u64,
    bytes_written: u64,
}

/// Runs the load; `remote`: with remote memory.
fn measure(seed: u64, remote: bool) -> Measured {
    let world = World::new(seed, Pace::Project, Topology::hosts(1, VCPUS)).expect("a possible topology");
    let files = MemFs::new();
    let drive = Drive::of(&profile::named("storage").expect("known"));
    files.set_drive(Some(drive.clone()));
    let ran = world.run(|w| {
        w.set_files(0, &files);
        let network = Network::new(&profile::named("rdma").expect("known"), seed);
        let node = network.add_node("far");
        let memory = node.register(RemoteLayout::len_for(SLOTS));
        let port = network.port(0);
        let source = RemoteSource::new(move |_| Ok(RemoteMemory::new(port.connect("far")?, memory)));
        let measured: Arc<Mutex<Measured>> = Arc::default();
        let told = Arc::clone(&measured);
        let server = w.process(0, "server", move || {
            *told.lock().expect("no panic") = serve(seed, &drive, remote.then_some(source));
        });
        assert_eq!(server.join(), Exit::Returned);
        *measured.lock().expect("no panic")
    });
    ran.value
}

fn serve(seed: u64, drive: &Drive, remote: Option<RemoteSource>) -> Measured {
    let frames = (FRAMES..)
        .find_map(|frames| Geometry::len_for(frames).ok())
        .expect("a size");
    let mut config = Config::new(if remote.is_some() { Kind::Tiered } else { Kind::Dram }, frames);
    config.remote = remote;
    let (pool, _) = BufferPool::open(config, DataDir::open(Path::new("/data")).expect("directory")).expect("pool");
    model::prepare(&pool, PAGES);
    pool.flush_all().and_then(|()| pool.checkpoint()).expect("saved");
    let pool = Arc::new(pool);
    let before = work(&pool, seed, WARM_UP, &vec![0; PAGES as usize]);
    let (begun, counted) = (rt::now(), counted(&pool, drive.counters()));
    let done = work(&pool, seed ^ 1, VISITS, &before);
    let time = rt::now().since(begun);
    let measured = since(counted, self::counted(&pool, drive.counters()));
    verify(&pool, &done);
    Measured { time, ..measured }
}

/// As many visits by each session; adds the changes of each page to `before`.
fn work(pool: &Arc<BufferPool>, seed: u64, visits: u64, before: &[u64]) -> Vec<u64> {
    let session = |n: u64| {
        let pool = Arc::clone(pool);
        rt::spawn("session", move || session(&pool, Random(seed << 8 | n), visits))
    };
    let sessions: Vec<_> = (0..SESSIONS).map(session).collect();
    let mut all = before.to_vec();
    for session in sessions {
        let done = session.join().expect("a session");
        all.iter_mut().zip(done).for_each(|(all, done)| *all += done);
    }
    all
}

fn session(pool: &BufferPool, mut random: Random, visits: u64) -> Vec<u64> {
    let mut done = vec![0; PAGES as usize];
    for n in 0..visits {
        // Low numbers are the ones that are asked for most.
        let below = 1 + random.below(u64::from(PAGES));
        let page = random.below(below) as u32;
        let last = (0..CHANGES).map(|_| change(pool, PageId::new(SPACE, page))).last();
        done[page as usize] += CHANGES;
        if n % 10 == 9 {
            let log = pool.storage().log();
            log.wait_durable(last.expect("a visit changes the page"))
                .expect("durable");
        }
    }
    done
}

fn change(pool: &BufferPool, page: PageId) -> Lsn {
    rt::spend(Nanos::from_micros(2));
    let mut m = pool.mtr();
    let h = m.exclusive(page).expect("page");
    let count = m.view(h).u64(COUNT_AT) + 1;
    m.write_u64(h, COUNT_AT, count);
    m.write(h, ROWS_AT + ROW * (count % ROWS) as usize, &[count as u8; ROW]);
    m.commit()
}

/// Each page has all of its changes.
fn verify(pool: &BufferPool, done: &[u64]) {
    for (page, done) in (0..).zip(done) {
        let guard = pool.shared(PageId::new(SPACE, page)).expect("page");
        assert_eq!(guard.view().u64(COUNT_AT), *done, "page {page}");
    }
    assert_eq!(pool.check().problems, Vec::<String>::new());
}

fn counted(pool: &BufferPool, drive: DriveCounters) -> Measured {
    let stats = pool.stats();
    let tier = stats.remote.unwrap_or_default();
    Measured {
        time: Nanos::ZERO,
        misses: stats.counts.misses,
        from_remote: tier.hits,
        rebuilt: tier.pages_rebuilt,
        evicted: tier.evictions,
        read: stats.counts.pages_read,
        written: stats.counts.pages_written,
        drive: Drives {
            reads: drive.reads,
            syncs: drive.syncs,
            bytes_read: drive.bytes_read,
            bytes_written: drive.bytes_written,
        },
    }
}

fn since(before: Measured, after: Measured) -> Measured {
    Measured {
        time: Nanos::ZERO,
        misses: after.misses - before.misses,
        from_remote: after.from_remote - before.from_remote,
        rebuilt: after.rebuilt - before.rebuilt,
        evicted: after.evicted - before.evicted,
        read: after.read - before.read,
        written: after.written - before.written,
        drive: Drives {
            reads: after.drive.reads - before.drive.reads,
            syncs: after.drive.syncs - before.drive.syncs,
            bytes_read: after.drive.bytes_read - before.drive.bytes_read,
            bytes_written: after.drive.bytes_written - before.drive.bytes_written,
        },
    }
}

/// It was 3.5 times as slow as without remote memory under TPC-C: each page that needed a slot took one of a page that
/// storage lacked changes of.
#[test]
fn full_of_changed_pages_it_is_no_slower_than_without() {
    let seed = model::seed();
    let (with, without) = (measure(seed, true), measure(seed, false));
    println!("with remote memory: {with:?}\nwithout: {without:?}");
    assert!(
        with.evicted > u64::from(SLOTS),
        "remote memory is full, and its slots change hands: {with:?}"
    );
    assert!(with.from_remote > with.misses / 4, "it is used: {with:?}");
    assert_eq!(with.rebuilt, 0, "no page loses its slot before storage has it");
    assert!(with.time < without.time, "{} against {}", with.time, without.time);
}
