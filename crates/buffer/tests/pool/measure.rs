//! Figures, on request: `cargo test --release -p cenote-buffer --test pool -- --ignored --nocapture measure`.

use std::path::Path;
use std::time::Instant;

use cenote_base::PageId;
use cenote_buffer::{BufferPool, Config, Kind, RecoveryReport};
use cenote_storage::DataDir;

const SPACE: u32 = 1000;

fn open(kind: Kind, dir: &Path, size: u64, scan_limit: u64) -> (BufferPool, RecoveryReport) {
    let data = DataDir::open(&dir.join("data")).expect("data directory");
    let mut config = Config::new(kind, size);
    config.region = Some(dir.join("region"));
    config.scan_limit = scan_limit;
    BufferPool::open(config, data).expect("pool")
}

fn fill(pool: &BufferPool, pages: u32) {
    if !pool.storage().pages().has_space(SPACE) {
        pool.storage().pages().create_space(SPACE).expect("space");
    }
    for page in 0..pages {
        let mut m = pool.mtr();
        let h = m.create(PageId::new(SPACE, page), 7, 0).expect("create");
        m.write_u64(h, 64, page as u64);
        m.commit();
    }
}

#[test]
#[ignore = "takes 4 GiB of shared memory and some seconds"]
fn measure_start() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let begun = Instant::now();
    let (pool, report) = open(Kind::Cxl, dir.path(), 4 << 30, 64 << 30);
    println!("empty: {:?}, {report}", begun.elapsed());
    fill(&pool, 200_000);
    pool.storage().log().flush_all().expect("flush");
    drop(pool);
    for scan_limit in [64 << 30, 0, 64 << 30] {
        let begun = Instant::now();
        let (pool, report) = open(Kind::Cxl, dir.path(), 4 << 30, scan_limit);
        println!("scan up to {scan_limit}: {:?}, {report}", begun.elapsed());
        drop(pool);
    }
}

#[test]
#[ignore = "takes seconds"]
fn measure_hits_and_commits() {
    for kind in [Kind::Cxl, Kind::Dram] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
        let (pool, _) = open(kind, dir.path(), 256 << 20, 64 << 30);
        fill(&pool, 10_000);
        let count = 20_000_000u32;
        let begun = Instant::now();
        let mut sum = 0u64;
        for i in 0..count {
            let guard = pool
                .optimistic(PageId::new(SPACE, i.wrapping_mul(2654435761) % 10_000))
                .expect("page");
            sum = sum.wrapping_add(guard.view().u64(64));
            assert!(guard.valid());
        }
        println!(
            "{kind:?}: {:.1} ns a hit over 10000 pages ({sum})",
            begun.elapsed().as_nanos() as f64 / count as f64
        );
        let begun = Instant::now();
        for i in 0..count {
            let guard = pool.optimistic(PageId::new(SPACE, i % 16)).expect("page");
            sum = sum.wrapping_add(guard.view().u64(64));
            assert!(guard.valid());
        }
        println!(
            "{kind:?}: {:.1} ns a hit over 16 pages ({sum})",
            begun.elapsed().as_nanos() as f64 / count as f64
        );
        let count = 1_000_000u32;
        let begun = Instant::now();
        for i in 0..count {
            let mut m = pool.mtr();
            let h = m.exclusive(PageId::new(SPACE, i % 1000)).expect("page");
            m.write_u64(h, 64, sum);
            m.write(h, 100, &[7; 100]);
            m.commit();
        }
        println!(
            "{kind:?}: {:.0} ns a small mini-transaction, {:?}",
            begun.elapsed().as_nanos() as f64 / count as f64,
            pool.stats().counts
        );
    }
}

#[test]
#[ignore = "takes seconds"]
fn measure_eviction() {
    let dir = tempfile::tempdir().expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 128 << 20, 64 << 30);
    let pages = pool.stats().frames * 5;
    let begun = Instant::now();
    fill(&pool, pages);
    println!("{pages} pages made in {:?}", begun.elapsed());
    let begun = Instant::now();
    let (mut random, count) = (crate::model::Random(88172645463325252), 100_000u32);
    for _ in 0..count {
        let page = PageId::new(SPACE, random.below(pages as u64) as u32);
        while !pool.optimistic(page).expect("page").valid() {}
    }
    println!(
        "random reads: {:.1} us each, {:?}",
        begun.elapsed().as_micros() as f64 / count as f64,
        pool.stats()
    );
    let begun = Instant::now();
    for _ in 0..count {
        let mut m = pool.mtr();
        let h = m
            .exclusive(PageId::new(SPACE, random.below(pages as u64) as u32))
            .expect("page");
        m.write_u64(h, 64, 1);
        m.commit();
    }
    println!(
        "random writes: {:.1} us each, {:?}",
        begun.elapsed().as_micros() as f64 / count as f64,
        pool.stats()
    );
}

/// Under callgrind, with CENOTE_HITS of n and of 2n: the difference is what n hits execute.
#[test]
#[ignore = "for callgrind"]
fn measure_instructions() {
    let hits: u32 = std::env::var("CENOTE_HITS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(100_000);
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let (pool, _) = open(Kind::Cxl, dir.path(), 24 << 20, 64 << 30);
    fill(&pool, 100);
    let mut sum = 0u64;
    for i in 0..hits {
        let guard = pool.optimistic(PageId::new(SPACE, i % 64)).expect("page");
        sum = sum.wrapping_add(guard.view().u64(64));
        assert!(guard.valid());
    }
    println!("{sum}");
}

#[test]
#[ignore = "takes seconds"]
fn measure_replay() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    let (pool, _) = open(Kind::Dram, dir.path(), 512 << 20, 0);
    fill(&pool, 20_000);
    pool.flush_all().expect("flush");
    pool.checkpoint().expect("checkpoint");
    let mut random = crate::model::Random(88172645463325252);
    for i in 0..1_000_000u64 {
        let mut m = pool.mtr();
        let h = m
            .exclusive(PageId::new(SPACE, random.below(20_000) as u32))
            .expect("page");
        m.write_u64(h, 64, i);
        m.write(h, 4000, &[i as u8; 100]);
        m.commit();
    }
    pool.storage().log().flush_all().expect("flush");
    drop(pool);
    for kind in [Kind::Dram, Kind::Cxl] {
        let (pool, report) = open(kind, dir.path(), 512 << 20, 0);
        println!("{kind:?}: {report}");
        drop(pool);
    }
}
