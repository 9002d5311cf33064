//! Remote memory that grows and shrinks by slabs, each on a node of its own, while the bank is worked on; and what
//! becomes of the bank when slabs, or the host, are lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cenote_base::rt::Nanos;
use cenote_base::{Error, PAGE_SIZE, PageId};
use cenote_buffer::{
    BufferPool, Growth, PartState, RecoveryReport, RemoteLayout, RemoteProvider, RemoteSize, RemoteSource,
};
use cenote_fabric::rdma::RemoteMemory;
use cenote_fabric::rdma::loopback::Node;
use cenote_testkit::faulty::MemFs;

use crate::model::{self, Random, SPACE, THREADS};
use crate::tiered::{self, Far, PAGES, read_all, remote, run, verify, with, work};

/// Pages of a slab, and of the first part.
const SLAB: u32 = 100;
const MOST: u32 = 6;
const ALL: u32 = PAGES + THREADS;

const GROWTH: Growth = Growth {
    slab: SLAB as u64 * PAGE_SIZE as u64,
    most: MOST,
    worth: 1,
};

/// The pool of memory: nodes that outlive a start.
struct Rack {
    growth: Growth,
    first: Far,
    slabs: Mutex<BTreeMap<u32, Far>>,
    /// Slabs that there is room for.
    room: AtomicU32,
    /// How often slabs were asked for together.
    together: AtomicU32,
}

impl Rack {
    fn new(growth: Growth) -> Arc<Self> {
        let len = RemoteLayout::first_len_for(SLAB, Some(growth));
        Arc::new(Self {
            growth,
            first: Far::of(Node::new("far"), len),
            slabs: Mutex::default(),
            room: AtomicU32::new(MOST),
            together: AtomicU32::new(0),
        })
    }

    /// The same memory for the next start, over ways that are whole.
    fn next(&self) -> Arc<Self> {
        let slabs = self.slabs().iter().map(|(slab, far)| (*slab, far.mended())).collect();
        Arc::new(Self {
            growth: self.growth,
            first: self.first.mended(),
            slabs: Mutex::new(slabs),
            room: AtomicU32::new(MOST),
            together: AtomicU32::new(0),
        })
    }

    /// As [`Rack::next`], where slabs are of another size.
    fn resized(&self, growth: Growth) -> Arc<Self> {
        let next = Arc::into_inner(self.next()).expect("nobody else has it");
        Arc::new(Self { growth, ..next })
    }

    fn slabs(&self) -> MutexGuard<'_, BTreeMap<u32, Far>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn source(self: &Arc<Self>) -> RemoteSource {
        RemoteSource::growing(Arc::clone(self) as Arc<dyn RemoteProvider>, self.growth).expect("slabs of this size")
    }
}

impl RemoteProvider for Rack {
    fn connect(&self, _: u128) -> cenote_base::Result<RemoteMemory> {
        self.first.connect()
    }

    fn slab(&self, _: u128, slab: u32) -> cenote_base::Result<RemoteMemory> {
        let mut slabs = self.slabs();
        let full = slabs.len() as u32 >= self.room.load(Ordering::SeqCst);
        if full && !slabs.contains_key(&slab) {
            return Err(Error::Full("the rack has no more memory".into()));
        }
        let new = || Far::of(Node::new(format!("slab {slab}")), self.growth.slab);
        slabs.entry(slab).or_insert_with(new).connect()
    }

    fn slabs(
        &self,
        database: u128,
        slabs: &[u32],
        _: Nanos,
        reached: &mut dyn FnMut(u32, cenote_base::Result<RemoteMemory>),
    ) {
        self.together.fetch_add(1, Ordering::SeqCst);
        slabs.iter().for_each(|slab| reached(*slab, self.slab(database, *slab)));
    }

    fn give_back(&self, _: u128, slab: u32) -> cenote_base::Result<()> {
        if self.first.connect().is_err() {
            return Err(Error::Lost("the manager is away".into()));
        }
        self.slabs().remove(&slab);
        Ok(())
    }
}

fn open(files: &MemFs, rack: &Arc<Rack>) -> (BufferPool, RecoveryReport) {
    let mut config = tiered::config(Some(rack.source()));
    // Scaled by the test.
    config.background = true;
    tiered::opened(files, config)
}

fn prepared(rack: &Arc<Rack>) -> (MemFs, BufferPool) {
    let files = MemFs::new();
    let (pool, _) = open(&files, rack);
    with(&files, || model::prepare(&pool, PAGES));
    (files, pool)
}

/// Bytes of the first part and so many slabs.
fn size(rack: &Rack, slabs: u32) -> RemoteSize {
    let first = RemoteLayout::first_len_for(SLAB, Some(rack.growth));
    RemoteSize::Bytes(first + u64::from(slabs) * rack.growth.slab)
}

/// Sets the size, and has it so.
fn scale(files: &MemFs, pool: &BufferPool, rack: &Rack, slabs: u32) {
    pool.set_remote_size(size(rack, slabs))
        .expect("a size that it may have");
    eventually(|| {
        with(files, || pool.scale_remote());
        remote(pool).slabs == slabs && rack.slabs().len() as u32 == slabs
    });
}

fn eventually(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to it");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// With enough slabs storage is not asked any more; with fewer it is; what is worth it has moved.
#[test]
fn what_fits_is_kept_while_it_grows_and_shrinks() {
    let rack = Rack::new(GROWTH);
    let (files, pool) = prepared(&rack);
    assert_eq!(remote(&pool).slots, SLAB);
    scale(&files, &pool, &rack, MOST);
    for _ in 0..3 {
        read_all(&files, &pool);
    }
    let before = pool.stats().counts.pages_read;
    read_all(&files, &pool);
    assert_eq!(pool.stats().counts.pages_read, before, "all of it is in remote memory");
    let full = remote(&pool);
    assert_eq!(
        (full.slots, full.slabs, full.slabs_taken),
        (SLAB * (MOST + 1), MOST, MOST.into())
    );
    scale(&files, &pool, &rack, 2);
    let less = remote(&pool);
    assert_eq!((less.slots, less.slabs_returned), (SLAB * 3, u64::from(MOST - 2)));
    assert!(
        less.slots_in_use <= SLAB * 3 && less.slots_in_use > SLAB * 2,
        "{less:?}"
    );
    assert!(
        less.pages_moved > 0,
        "free slots took pages of slabs that went: {less:?}"
    );
    // Of all pages some are in frames, as many in remote memory as that has room for, and the rest is read.
    let read = pool.stats().counts.pages_read;
    with(&files, || {
        for page in (0..PAGES).rev() {
            drop(pool.shared(PageId::new(SPACE, page)).expect("page"));
        }
    });
    let (hits, read) = (remote(&pool).hits - less.hits, pool.stats().counts.pages_read - read);
    assert!(hits > 60, "{hits} hits, {read} pages read from storage");
    verify(&files, &pool, &[]);
    scale(&files, &pool, &rack, 0);
    assert_eq!((remote(&pool).slots, remote(&pool).losses), (SLAB, 0));
    verify(&files, &pool, &[]);
}

/// Sizes change all the time, then the process or the host dies; nothing is lost, and no slab is left behind.
#[test]
fn random_sizes_and_deaths() {
    let rounds: u32 = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(10);
    let mut random = Random(model::seed());
    let mut rack = Rack::new(GROWTH);
    let (mut files, mut pool) = prepared(&rack);
    let (mut kept, mut moved) = (0, 0);
    for round in 0..rounds {
        for _ in 0..random.below(4) {
            let slabs = random.below(u64::from(MOST) + 1) as u32;
            pool.set_remote_size(size(&rack, slabs)).expect("a size");
            let cut = (random.below(3) == 0).then(|| random.below(u64::from(MOST)) as u32);
            let beside = || {
                with(&files, || pool.scale_remote());
                let cut = cut.and_then(|slab| rack.slabs().get(&slab).cloned());
                if let Some(far) = cut {
                    far.cut();
                }
            };
            run(&files, &pool, &mut random, Duration::from_millis(10), beside, |_| ());
            if random.below(2) == 0 {
                with(&files, || {
                    pool.flush_all().and_then(|()| pool.checkpoint()).expect("saved")
                });
            }
            rack.slabs().values().for_each(Far::mend);
        }
        let (torn, power) = (random.word(), random.below(2) == 0);
        pool.set_remote_size(size(&rack, random.below(u64::from(MOST) + 1) as u32))
            .expect("a size");
        let scaled = || with(&files, || pool.scale_remote());
        let (left, notes) = run(&files, &pool, &mut random, Duration::from_millis(20), scaled, |notes| {
            let left = match power {
                true => files.crash_clone_torn(torn),
                false => files.kill_clone(),
            };
            rack.first.cut();
            rack.slabs().values().for_each(Far::cut);
            (left, notes)
        });
        moved += remote(&pool).pages_moved;
        drop(pool);
        files = left;
        rack = rack.next();
        let (next, report) = open(&files, &rack);
        println!("round {round}: {report} {:?} {:?}", report.remarks, remote(&next));
        kept += report.remote_kept;
        verify(&files, &next, &notes);
        pool = next;
        scale(&files, &pool, &rack, random.below(u64::from(MOST) + 1) as u32);
        verify(&files, &pool, &[]);
    }
    println!("{kept} pages kept, {moved} moved");
    assert!(kept > 0 && moved > 0, "{kept} pages kept, {moved} moved");
}

/// A slab's node is lost: its pages come from storage, those of the others are there still, and it is used again when
/// it is reached. Its pages of before count for nothing.
#[test]
fn a_lost_slab_costs_its_own_pages() {
    let rack = Rack::new(GROWTH);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&rack);
    scale(&files, &pool, &rack, MOST);
    (0..3).for_each(|_| read_all(&files, &pool));
    let before = remote(&pool);
    let lost = rack.slabs()[&2].clone();
    lost.cut();
    eventually(|| {
        read_all(&files, &pool);
        remote(&pool).losses == 1
    });
    let after = remote(&pool);
    assert_eq!((after.slabs, after.slots), (MOST - 1, before.slots - SLAB));
    let parts = pool.remote_parts();
    let away = parts.iter().find(|part| part.slab == Some(2)).map(|part| part.state);
    assert_eq!(away, Some(PartState::Away), "{parts:?}");
    // The frames' pages change, and storage gets them.
    let notes = work(&files, &pool, &mut random, 30);
    with(&files, || {
        pool.flush_all().and_then(|()| pool.checkpoint()).expect("saved")
    });
    verify(&files, &pool, &notes);
    lost.mend();
    eventually(|| {
        with(&files, || pool.scale_remote());
        remote(&pool).slabs == MOST
    });
    // A start that finds the slab as it was believes none of what it had before it was lost.
    let left = files.kill_clone();
    rack.first.cut();
    rack.slabs().values().for_each(Far::cut);
    drop(pool);
    let next = rack.next();
    let (pool, report) = open(&left, &next);
    assert!(report.remote_kept > u64::from(SLAB), "{report}");
    assert_eq!(remote(&pool).slabs, MOST, "a start goes on with all slabs");
    verify(&left, &pool, &notes);
}

/// A slab's node stays away: it is given back, and made anew, and the memory has its size again.
#[test]
fn a_slab_that_stays_away_is_made_anew() {
    let rack = Rack::new(GROWTH);
    let mut random = Random(model::seed());
    let (files, pool) = prepared(&rack);
    scale(&files, &pool, &rack, MOST);
    (0..3).for_each(|_| read_all(&files, &pool));
    let lost = rack.slabs()[&2].clone();
    lost.cut();
    eventually(|| {
        read_all(&files, &pool);
        remote(&pool).losses == 1
    });
    let notes = work(&files, &pool, &mut random, 30);
    with(&files, || pool.scale_remote());
    assert_eq!(remote(&pool).slabs, MOST - 1, "it is waited for");
    // The rack gives out another in its place.
    eventually(|| {
        with(&files, || pool.scale_remote());
        remote(&pool).slabs == MOST
    });
    assert!(lost.connect().is_err(), "the former one is away still");
    (0..3).for_each(|_| read_all(&files, &pool));
    verify(&files, &pool, &notes);
}

/// A slab is lost for good, with the host, just before a start: the start goes on with the others.
#[test]
fn a_start_does_without_a_slab() {
    let rack = Rack::new(GROWTH);
    let (files, pool) = prepared(&rack);
    scale(&files, &pool, &rack, 4);
    (0..3).for_each(|_| read_all(&files, &pool));
    let left = files.kill_clone();
    rack.first.cut();
    rack.slabs().values().for_each(Far::cut);
    drop(pool);
    let next = rack.next();
    next.slabs()[&1].cut();
    let (pool, report) = open(&left, &next);
    assert!(report.remote_kept > u64::from(SLAB) * 2, "{report}");
    assert_eq!(remote(&pool).slabs, 3);
    assert_eq!(next.together.load(Ordering::SeqCst), 1, "one request for all of them");
    verify(&left, &pool, &[]);
    next.slabs()[&1].mend();
    eventually(|| {
        with(&left, || pool.scale_remote());
        remote(&pool).slabs == 4
    });
    verify(&left, &pool, &[]);
}

/// Where the pool has no more, it stays as it is, and says so; a size out of range is refused.
#[test]
fn what_cannot_be_is_refused() {
    let rack = Rack::new(GROWTH);
    let (files, pool) = prepared(&rack);
    rack.room.store(2, Ordering::SeqCst);
    pool.set_remote_size(size(&rack, 4)).expect("a size that it may have");
    for _ in 0..20 {
        with(&files, || pool.scale_remote());
    }
    assert_eq!(remote(&pool).slabs, 2);
    assert_eq!(rack.slabs().keys().copied().collect::<Vec<_>>(), [0, 1]);
    let error = pool.set_remote_size(size(&rack, MOST + 1)).expect_err("out of range");
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    scale(&files, &pool, &rack, 0);
    pool.set_remote_size(RemoteSize::Bytes(1))
        .expect("the first part stays");
    with(&files, || pool.scale_remote());
    assert_eq!(remote(&pool).slots, SLAB);
    verify(&files, &pool, &[]);
    let whole = Growth { most: 65, ..GROWTH };
    assert!(RemoteSource::growing(rack, whole).is_err());
}

/// Slabs of another size: those of before are given back, and remote memory begins empty.
#[test]
fn slabs_of_a_former_size_are_given_back() {
    let rack = Rack::new(GROWTH);
    let (files, pool) = prepared(&rack);
    scale(&files, &pool, &rack, 5);
    with(&files, || pool.shutdown().expect("shutdown"));
    drop(pool);
    let half = Growth {
        slab: GROWTH.slab / 2,
        ..GROWTH
    };
    let next = rack.resized(half);
    let (pool, report) = open(&files, &next);
    assert!(
        report.remarks.iter().any(|r| r.contains("another size")),
        "{:?}",
        report.remarks
    );
    eventually(|| {
        with(&files, || pool.scale_remote());
        next.slabs().is_empty()
    });
    scale(&files, &pool, &next, 2);
    assert_eq!(remote(&pool).slab_bytes, half.slab);
    verify(&files, &pool, &[]);
}

/// By what more would save: pages are read again and again that do not fit, so it grows; then nothing is asked for, and
/// it keeps what it has for a while. In any order: of pages that are read round and round, by which LRU keeps none, a
/// slab more would save none either.
#[test]
fn it_grows_by_need() {
    let rack = Rack::new(GROWTH);
    let (files, pool) = prepared(&rack);
    let mut random = Random(model::seed());
    assert!(remote(&pool).by_need);
    let begun = Instant::now();
    while remote(&pool).slabs < MOST - 1 {
        with(&files, || {
            for _ in 0..ALL {
                let page = random.below(u64::from(ALL)) as u32;
                drop(pool.shared(PageId::new(SPACE, page)).expect("page"));
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", remote(&pool));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(remote(&pool).misses_of_a_slab > 0);
    assert!(remote(&pool).slots + 160 > ALL, "it holds nearly all by now");
    verify(&files, &pool, &[]);
}
