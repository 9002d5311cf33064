//! The tiered pool: what it keeps in remote memory, and what becomes of the bank when that, the way to it, or the host
//! is lost.
//!
//! Remote memory is a node in this process that outlives pools. The way to it can be cut, which leaves any part of what
//! was under way done. A cut before files are copied is a partition followed by the loss of the host: what remote
//! memory has then is older than what storage may have got meanwhile, and must not be believed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_base::rt::fs;
use cenote_base::{Error, PAGE_SIZE, PageId};
use cenote_buffer::{BufferPool, Config, Geometry, Kind, Mode, RecoveryReport, RemoteLayout, RemoteSource, TierStats};
use cenote_fabric::rdma::loopback::Node;
use cenote_fabric::rdma::{Endpoint, Limits, Op, Posted, Remote, RemoteMemory, Work};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, SPACE, THREADS};

pub const PAGES: u32 = 600;
const RING: u64 = (4 << 20) + 4096;
/// Fewer frames than pages.
const FRAMES: u32 = 160;

/// A memory node, and whether it can be reached.
#[derive(Clone)]
pub struct Far {
    node: Node,
    memory: Remote,
    cut: Arc<AtomicBool>,
    /// Pages that were read with one doorbell, at most.
    together: Arc<AtomicU64>,
}

/// A way that can be cut. What is under way at that moment is done, done in part, or not done.
pub struct CuttableLink {
    node: Node,
    cut: Arc<AtomicBool>,
    together: Arc<AtomicU64>,
    random: AtomicU64,
}

impl fmt::Debug for CuttableLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CuttableLink")
    }
}

impl Endpoint for CuttableLink {
    fn peer(&self) -> &str {
        "far"
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: 64,
            transfer: 1 << 20,
        }
    }

    fn post(&self, mut works: Vec<Work>) -> Posted {
        let mut random = Random(self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) | 1);
        let was_cut = self.cut.load(Ordering::SeqCst);
        let reads = |work: &&Work| matches!(work.op, Op::Read(_)) && work.op.bytes() == PAGE_SIZE as u64;
        self.together
            .fetch_max(works.iter().filter(reads).count() as u64, Ordering::Relaxed);
        let order: Vec<usize> = (0..works.len())
            .map(|i| if random.below(2) == 0 { i } else { works.len() - 1 - i })
            .collect();
        let mut done = vec![false; works.len()];
        for i in order.into_iter().chain(0..works.len()) {
            let lost = self.cut.load(Ordering::SeqCst);
            let work = &mut works[i];
            if std::mem::replace(&mut done[i], true) {
                continue;
            }
            if lost {
                if !was_cut {
                    let part = random.below(work.op.bytes() + 1);
                    let _ = self.node.memory().carry_out_part(work, 0..part);
                }
                work.result = Err(Error::Lost("the way is cut".into()));
            } else {
                self.node.memory().carry_out(work);
            }
        }
        Posted::done(works)
    }
}

impl Far {
    fn new(slots: u32) -> Self {
        Self::of(Node::new("far"), RemoteLayout::len_for(slots))
    }

    /// So much memory of a node.
    pub fn of(node: Node, len: u64) -> Self {
        let memory = node.memory().register(len);
        Self {
            node,
            memory,
            cut: Arc::default(),
            together: Arc::default(),
        }
    }

    fn source(&self) -> RemoteSource {
        let far = self.clone();
        RemoteSource::new(move |_| far.connect())
    }

    /// The memory over a way, if that is not cut.
    pub fn connect(&self) -> Result<RemoteMemory, Error> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(Error::Lost("the way is cut".into()));
        }
        let way = CuttableLink {
            node: self.node.clone(),
            cut: Arc::clone(&self.cut),
            together: Arc::clone(&self.together),
            random: AtomicU64::new(cenote_base::rt::random()),
        };
        Ok(RemoteMemory::new(Arc::new(way), self.memory))
    }

    /// The way is whole.
    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// The same memory, over ways that are whole.
    pub fn mended(&self) -> Self {
        Self {
            node: self.node.clone(),
            memory: self.memory,
            cut: Arc::default(),
            together: Arc::default(),
        }
    }

    fn flip(&self, at: u64, mask: u8) {
        let mut memory = self.node.memory();
        memory.inspect(self.memory.key).expect("registered")[at as usize] ^= mask;
    }
}

pub fn config(remote: Option<RemoteSource>) -> Config {
    let geometry_len = (FRAMES as u64 + 40) * (PAGE_SIZE as u64 + 68) + RING + (1 << 20);
    let kind = if remote.is_some() { Kind::Tiered } else { Kind::Dram };
    let mut config = Config::new(kind, geometry_len);
    config.remote = remote;
    config.ring = Some(RING);
    config.log_limit = 8 << 20;
    config
}

fn open(files: &MemFs, far: Option<&Far>) -> (BufferPool, RecoveryReport) {
    opened(files, config(far.map(Far::source)))
}

pub fn opened(files: &MemFs, config: Config) -> (BufferPool, RecoveryReport) {
    fs::with(Arc::new(files.clone()), || {
        BufferPool::open(config, DataDir::open(Path::new("/data"))?)
    })
    .expect("pool")
}

pub fn with<T>(files: &MemFs, body: impl FnOnce() -> T) -> T {
    fs::with(Arc::new(files.clone()), body)
}

fn prepared(far: &Far) -> (MemFs, BufferPool) {
    let files = MemFs::new();
    let (pool, _) = open(&files, Some(far));
    with(&files, || model::prepare(&pool, PAGES));
    (files, pool)
}

pub fn verify(files: &MemFs, pool: &BufferPool, notes: &[u64]) {
    with(files, || model::verify(pool, PAGES, notes));
}

pub fn remote(pool: &BufferPool) -> TierStats {
    pool.stats().remote.expect("a tiered pool")
}

/// Reads all pages.
pub fn read_all(files: &MemFs, pool: &BufferPool) {
    with(files, || {
        for page in 0..PAGES + THREADS {
            pool.shared(PageId::new(SPACE, page)).expect("page");
        }
    });
}

/// Runs the bank for `time`, with something going on beside it, then calls `at_the_end` with the counts noted, while it
/// still runs.
pub fn run<T>(
    files: &MemFs,
    pool: &BufferPool,
    random: &mut Random,
    time: Duration,
    beside: impl FnOnce(),
    at_the_end: impl FnOnce(Vec<u64>) -> T,
) -> T {
    let stop = AtomicBool::new(false);
    let noted: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (stop, noted, files) = (&stop, &noted, files.clone());
            let mut random = Random(random.word() | 1);
            s.spawn(move || {
                with(&files, || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(count) = model::step(pool, PAGES, thread, &mut random) {
                            noted[thread as usize].store(count, Ordering::SeqCst);
                        }
                    }
                });
            });
        }
        std::thread::sleep(time);
        beside();
        let value = at_the_end(noted.iter().map(|n| n.load(Ordering::SeqCst)).collect());
        stop.store(true, Ordering::Relaxed);
        value
    })
}

pub fn work(files: &MemFs, pool: &BufferPool, random: &mut Random, millis: u64) -> Vec<u64> {
    run(files, pool, random, Duration::from_millis(millis), || {}, |notes| notes)
}

#[test]
fn pages_that_do_not_fit_come_from_remote_memory() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    let notes = work(&files, &pool, &mut random, 60);
    read_all(&files, &pool);
    let before = (remote(&pool), pool.stats().counts.pages_read);
    read_all(&files, &pool);
    let after = (remote(&pool), pool.stats().counts.pages_read);
    assert!(after.0.hits > before.0.hits + u64::from(PAGES) / 2, "{after:?}");
    assert_eq!(after.1, before.1, "all of it is in remote memory: storage is not asked");
    assert_eq!(after.0.bytes_read, after.0.hits * PAGE_SIZE as u64);
    assert_eq!((after.0.losses, after.0.pages_refused), (0, 0));
    println!("{:?}", pool.stats());
    verify(&files, &pool, &notes);
}

/// Each of them was a trip.
#[test]
fn pages_that_are_brought_come_with_one_doorbell() {
    let far = Far::new(PAGES + THREADS);
    let (files, pool) = prepared(&far);
    // Nothing is brought into frames to be saved meanwhile.
    with(&files, || pool.flush_all()).expect("saved");
    read_all(&files, &pool);
    far.together.store(0, Ordering::Relaxed);
    let before = pool.stats();
    // The first ones have left their frames for the last ones.
    let pages: Vec<PageId> = (0..24).map(|page| PageId::new(SPACE, page)).collect();
    with(&files, || pool.bring(&pages));
    let brought = pool.stats().counts.pages_prefetched - before.counts.pages_prefetched;
    let together = far.together.load(Ordering::Relaxed);
    println!("{brought} pages, {together} at a time");
    assert!(brought > 0 && together > 1, "{brought} pages, {together} at a time");
    assert_eq!(
        pool.stats().counts.pages_read,
        before.counts.pages_read,
        "storage is not asked"
    );
    with(&files, || {
        for page in &pages {
            drop(pool.shared(*page).expect("page"));
        }
    });
    let missed = pool.stats().counts.misses - before.counts.misses;
    // The evictor may have taken some of them already.
    assert!(
        missed + brought >= pages.len() as u64 && missed < pages.len() as u64,
        "{missed} of those were missed"
    );
    assert!(pool.misses_lately(), "a thread that has missed expects to");
    verify(&files, &pool, &[]);
}

/// A copy that is damaged comes from storage, and a page that nobody has is left to the one that asks for it.
#[test]
fn what_cannot_be_brought_is_left_to_the_one_that_asks() {
    let far = Far::new(PAGES + THREADS);
    let (files, pool) = prepared(&far);
    read_all(&files, &pool);
    let layout = RemoteLayout::len_for(PAGES + THREADS);
    (1..=u64::from(PAGES + THREADS)).for_each(|n| far.flip(layout - n * PAGE_SIZE as u64 + 500, 1));
    let pages = [1, 2, PAGES + 100, 3].map(|page| PageId::new(SPACE, page));
    with(&files, || pool.bring(&pages));
    assert!(remote(&pool).pages_refused > 0);
    let error = with(&files, || pool.shared(pages[2]).map(drop)).expect_err("nobody has made it");
    assert!(error.to_string().contains("never written"), "{error}");
    with(&files, || drop(pool.shared(pages[3]).expect("it comes from storage")));
}

#[test]
fn a_killed_process_finds_its_pages_in_remote_memory() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (mut files, mut pool) = prepared(&far);
    for round in 0..6 {
        let torn = random.word();
        let (left, notes) = run(
            &files,
            &pool,
            &mut random,
            Duration::from_millis(20 + 10 * round),
            || {},
            |notes| (files.crash_clone_torn(torn), notes),
        );
        drop(pool);
        files = left;
        let (next, report) = open(&files, Some(&far));
        println!("{report} {:?} {:?}", report.remarks, remote(&next));
        assert_eq!(report.mode, Mode::Log);
        // How many depends on how far the work came before the kill.
        assert!(report.remote_kept > 0, "{report}");
        verify(&files, &next, &notes);
        pool = next;
    }
}

#[test]
fn a_clean_end_leaves_remote_memory_warm() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    let notes = work(&files, &pool, &mut random, 30);
    read_all(&files, &pool);
    with(&files, || pool.shutdown().expect("shutdown"));
    drop(pool);
    let (pool, report) = open(&files, Some(&far));
    assert_eq!((report.mode, report.redo_bytes_read), (Mode::Clean, 0));
    assert!(report.remote_kept >= u64::from(PAGES), "{report}");
    verify(&files, &pool, &notes);
    assert_eq!(pool.stats().counts.pages_read, 0, "storage is not asked");
}

/// Slots for a third of the pages: some that only remote memory has whole are evicted there, and rebuilt from their
/// redo.
#[test]
fn remote_memory_that_is_too_small_loses_nothing() {
    let far = Far::new(PAGES / 3);
    let mut random = Random(model::seed());
    let (mut files, mut pool) = prepared(&far);
    for _ in 0..4 {
        let torn = random.word();
        let (left, notes) = run(
            &files,
            &pool,
            &mut random,
            Duration::from_millis(80),
            || {},
            |notes| (files.crash_clone_torn(torn), notes),
        );
        let stats = remote(&pool);
        println!("{stats:?}");
        assert!(stats.evictions > 0 && stats.slots_in_use > 150, "{stats:?}");
        verify(&files, &pool, &[]);
        drop(pool);
        files = left;
        let (next, _) = open(&files, Some(&far));
        verify(&files, &next, &notes);
        pool = next;
    }
}

#[test]
fn a_lost_node_costs_warmth_only() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    work(&files, &pool, &mut random, 30);
    let lose = || far.node.memory().lose();
    let notes = run(&files, &pool, &mut random, Duration::from_millis(20), lose, |notes| {
        notes
    });
    let mut more = notes.clone();
    while remote(&pool).slots != 0 {
        more = work(&files, &pool, &mut random, 30);
    }
    verify(&files, &pool, &notes);
    let stats = remote(&pool);
    assert_eq!((stats.losses, stats.slots, stats.slots_in_use), (1, 0, 0), "{stats:?}");
    assert!(stats.pages_rebuilt > 0, "some were nowhere else: {stats:?}");
    with(&files, || pool.shutdown().expect("shutdown"));
    drop(pool);
    let (pool, report) = open(&files, Some(&far));
    assert!(
        report.remarks.iter().any(|r| r.contains("storage alone")),
        "{:?}",
        report.remarks
    );
    assert_eq!(report.mode, Mode::Clean);
    verify(&files, &pool, &more);
}

/// A partition, storage goes on, the host is lost, the way is there again: what remote memory has is older than
/// storage.
#[test]
fn what_missed_a_write_to_storage_is_not_believed() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    work(&files, &pool, &mut random, 30);
    let notes = run(
        &files,
        &pool,
        &mut random,
        Duration::from_millis(20),
        || far.cut(),
        |notes| notes,
    );
    with(&files, || {
        pool.flush_all().expect("flushed");
        pool.checkpoint().expect("checkpoint");
    });
    let left = files.kill_clone();
    drop(pool);
    let (pool, report) = open(&left, Some(&far.mended()));
    assert_eq!(report.remote_kept, 0, "{report}");
    verify(&left, &pool, &notes);
}

#[test]
fn a_way_that_is_mended_is_used_again() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    work(&files, &pool, &mut random, 20);
    for _ in 0..4 {
        run(
            &files,
            &pool,
            &mut random,
            Duration::from_millis(10),
            || far.cut(),
            |_| (),
        );
        // Until a thread wanted something from there.
        while remote(&pool).slots != 0 {
            work(&files, &pool, &mut random, 10);
        }
        far.cut.store(false, Ordering::SeqCst);
        let mend = || with(&files, || pool.maintain_remote());
        run(&files, &pool, &mut random, Duration::from_millis(10), mend, |_| ());
        let mut notes = work(&files, &pool, &mut random, 20);
        while remote(&pool).slots_in_use == 0 {
            notes = work(&files, &pool, &mut random, 20);
        }
        assert!(remote(&pool).slots >= PAGES);
        verify(&files, &pool, &notes);
    }
    assert_eq!(remote(&pool).losses, 4);
}

#[test]
fn flipped_bits_in_remote_memory_are_found() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (mut files, mut pool) = prepared(&far);
    let len = RemoteLayout::len_for(PAGES + THREADS);
    let mut refused = 0;
    for _ in 0..4 {
        for _ in 0..5 {
            work(&files, &pool, &mut random, 10);
            for _ in 0..100 {
                far.flip(random.below(len), 1 << random.below(8));
            }
        }
        let torn = random.word();
        let (left, notes) = run(
            &files,
            &pool,
            &mut random,
            Duration::from_millis(10),
            || {},
            |notes| (files.crash_clone_torn(torn), notes),
        );
        read_all(&files, &pool);
        refused += remote(&pool).pages_refused;
        drop(pool);
        files = left;
        let (next, report) = open(&files, Some(&far));
        println!("{report} {:?}", report.remarks);
        read_all(&files, &next);
        verify(&files, &next, &notes);
        pool = next;
    }
    assert!(refused > 0);
}

/// Random lives: killed, power lost, node lost, partitions before or at the same time, started as `dram` in between,
/// copied back.
#[test]
fn random_deaths_of_hosts_and_nodes() {
    let rounds: u32 = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(12);
    let mut random = Random(model::seed());
    let small = random.below(2) == 0;
    let mut far = Far::new(if small { PAGES / 3 } else { PAGES + THREADS });
    let (mut files, mut pool) = prepared(&far);
    let (mut kept, mut rebuilt) = (0, 0);
    for round in 0..rounds {
        // Storage gets pages whose copies in remote memory are old.
        if random.below(2) == 0 {
            work(&files, &pool, &mut random, 20);
            with(&files, || {
                pool.flush_all().and_then(|()| pool.checkpoint()).expect("saved")
            });
        }
        let time = Duration::from_millis(random.below(40));
        let (cut_first, cut_last) = (random.below(3) == 0, random.below(2) == 0);
        let (torn, power) = (random.word(), random.below(2) == 0);
        let wait = Duration::from_millis(random.below(20));
        let beside = || {
            if cut_first {
                far.cut();
                std::thread::sleep(wait);
            }
        };
        let (left, notes) = run(&files, &pool, &mut random, time, beside, |notes| {
            let left = if power {
                files.crash_clone_torn(torn)
            } else {
                files.kill_clone()
            };
            if cut_last {
                far.cut();
            }
            (left, notes)
        });
        rebuilt += pool.stats().remote.map_or(0, |tier| tier.pages_rebuilt);
        drop(pool);
        files = left;
        far = if random.below(6) == 0 {
            Far::new(if small { PAGES / 3 } else { PAGES + THREADS })
        } else {
            far.mended()
        };
        let kind = (random.below(8) != 0).then_some(&far);
        let (next, report) = open(&files, kind);
        println!("round {round}: {report} {:?}", report.remarks);
        kept += report.remote_kept;
        verify(&files, &next, &notes);
        pool = next;
    }
    println!("{kept} pages kept, {rebuilt} rebuilt");
    assert!(kept > 0, "remote memory was never of use");
}

#[test]
fn spaces_that_are_dropped_are_forgotten() {
    let far = Far::new(PAGES + THREADS);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&far);
    work(&files, &pool, &mut random, 30);
    read_all(&files, &pool);
    assert!(remote(&pool).slots_in_use > 300);
    with(&files, || {
        pool.discard_pages(SPACE, 0..PAGES / 2).expect("discarded");
        assert!(remote(&pool).slots_in_use <= PAGES / 2 + THREADS);
        pool.storage().pages().drop_space(SPACE).expect("dropped");
        pool.discard_space(SPACE).expect("discarded");
        assert_eq!(remote(&pool).slots_in_use, 0);
        pool.checkpoint().expect("nothing is owed to storage");
        assert_eq!(pool.check().problems, Vec::<String>::new());
    });
}

#[test]
fn kinds_and_remote_memory_belong_together() {
    let far = Far::new(100);
    let files = MemFs::new();
    let refused = |config: Config| {
        let opened = with(&files, || {
            BufferPool::open(config, DataDir::open(Path::new("/data")).expect("directory"))
        });
        matches!(opened, Err(Error::Invalid(_)))
    };
    assert!(refused(Config {
        remote: None,
        ..config(Some(far.source()))
    }));
    assert!(refused(Config {
        kind: Kind::Dram,
        ..config(Some(far.source()))
    }));
}

#[test]
fn local_sizes_are_exact() {
    for frames in [200, 1000, 3333] {
        for kind in [Kind::Dram, Kind::Tiered] {
            let far = Far::new(100);
            let size = Geometry::len_for(frames).expect("a size");
            let mut config = Config::new(kind, size);
            config.remote = (kind == Kind::Tiered).then(|| far.source());
            config.background = false;
            let files = MemFs::new();
            with(&files, || {
                let (pool, _) =
                    BufferPool::open(config, DataDir::open(Path::new("/data")).expect("directory")).expect("pool");
                pool.region().reserve_to(size).expect("reserved");
                assert_eq!(pool.stats().bytes, size);
                assert_eq!(
                    Geometry::plan(size, Geometry::ring_for(size)).expect("plan").frames,
                    frames
                );
            });
        }
    }
}
