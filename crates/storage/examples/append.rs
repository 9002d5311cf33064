//! What appending to the log and committing cost: `cargo run --release -p cenote-storage --example
//! append [DIR]`. Prints nanoseconds an append (a group of one record of 200 bytes) by threads, and
//! commits a second with their latency, on real files in DIR (default: the system's temporary one).
//! With a second argument `append`, one thread appends and nothing else is done (for callgrind).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::page_io::PageIo;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr, Result};
use cenote_fabric::{Identity, Region, RegionOptions};
use cenote_storage::redo::GroupBuilder;
use cenote_storage::{DataDir, FIRST_LSN, Log, LogOptions, RingPlace, StorageOptions, Survive};

const RING: u64 = 64 << 20;

fn open(dir: &Path, survive: Survive) -> Result<Log> {
    let region = Region::dram(RING + 8192, Identity::default(), RegionOptions::default())?;
    region.reserve_to(region.len())?;
    let length = region.len() - 4096;
    let (log, _) = Log::open(LogOptions {
        dir: dir.to_owned(),
        database: 1,
        segment_bytes: 16 << 20,
        ring: RingPlace {
            region: Arc::new(region),
            offset: 4096,
            length,
        },
        believe_ring: false,
        survive,
        checkpoint: FIRST_LSN,
        origin: FIRST_LSN,
        nodes: None,
        owner: None,
        known_durable: Lsn::ZERO,
        background: true,
    })?;
    Ok(log)
}

fn group(builder: &mut GroupBuilder, thread: usize) -> &mut [u8] {
    builder.clear();
    let record = builder.begin_page(PageId::new(1, thread as u32), RecordAddr::NONE);
    builder.write(record, 64, &[thread as u8; 150]);
    builder.write(record, 900, &[thread as u8; 20]);
    builder.finish().expect("a short group")
}

/// Runs `each` on every thread, `count` times; nanoseconds of one call, sorted.
fn times(threads: usize, count: usize, each: impl Fn(usize) + Send + Sync + 'static) -> (Nanos, Vec<u64>) {
    let each = Arc::new(each);
    let begun = rt::now();
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let each = each.clone();
            rt::spawn("worker", move || {
                let mut times = Vec::with_capacity(count);
                for _ in 0..count {
                    let from = rt::now();
                    each(thread);
                    times.push(rt::now().since(from).raw());
                }
                times
            })
        })
        .collect();
    let mut all: Vec<u64> = workers
        .into_iter()
        .flat_map(|w| w.join().expect("workers do not panic"))
        .collect();
    all.sort_unstable();
    (rt::now().since(begun), all)
}

fn at(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1000.0
}

fn appends(dir: &Path, threads: usize, survive: Survive) -> Result<()> {
    let log = open(dir, survive)?;
    let mut builder = GroupBuilder::new();
    let bytes = group(&mut builder, 0).to_vec();
    // As many as fit into a part of the ring, so that the disk does not count.
    let count = (RING / 3) as usize / bytes.len() / threads;
    let (took, _) = times(threads, 1, move |_| {
        let mut bytes = bytes.clone();
        for _ in 0..count {
            log.append(&mut bytes, None).expect("appended");
        }
    });
    let per = took.raw() as f64 / (count * threads) as f64;
    println!("append  {survive:?} {threads} threads: {per:.0} ns each (wall, all threads together)");
    Ok(())
}

fn commits(dir: &Path, threads: usize) -> Result<()> {
    let log = open(dir, Survive::Process)?;
    let count = 4000 / threads;
    let (took, sorted) = times(threads, count, move |thread| {
        let mut builder = GroupBuilder::new();
        let end = log.append(group(&mut builder, thread), None).expect("appended").end;
        log.wait_durable(end).expect("durable");
    });
    println!(
        "commit  {threads} threads: {:.0} a second, p50 {:.0} us, p99 {:.0} us",
        sorted.len() as f64 / took.as_secs_f64(),
        at(&sorted, 50),
        at(&sorted, 99)
    );
    Ok(())
}

fn build() {
    let stop = AtomicBool::new(false);
    let mut builder = GroupBuilder::new();
    let (begun, count) = (rt::now(), 2_000_000);
    for thread in 0..count {
        if group(&mut builder, thread & 7).is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
    }
    let per = rt::now().since(begun).raw() as f64 / count as f64;
    println!("build   one group of one record, two writes: {per:.0} ns");
}

/// How long opening takes after a kill: double-write areas full, so many bytes of the ring not durable.
fn open_again(dir: &Path, undurable: u64) -> Result<()> {
    let region = Region::dram(RING + 8192, Identity::default(), RegionOptions::default())?;
    region.reserve_to(region.len())?;
    let (length, region) = (region.len() - 4096, Arc::new(region));
    let options = |believe_ring| StorageOptions {
        believe_ring,
        background: false,
        ..StorageOptions::new(RingPlace {
            region: region.clone(),
            offset: 4096,
            length,
        })
    };
    let (storage, _) = DataDir::open(dir)?.storage(options(false))?;
    storage.pages().create_space(1)?;
    let mut pages = vec![vec![7u8; PAGE_SIZE]; 256];
    for (page, bytes) in pages.iter_mut().enumerate() {
        bytes[4..12].copy_from_slice(&PageId::new(1, page as u32).to_bytes());
    }
    let batch: Vec<(PageId, &[u8])> = pages
        .iter()
        .zip(0..)
        .map(|(p, n)| (PageId::new(1, n), &p[..]))
        .collect();
    storage.write_pages(&batch)?;
    let mut builder = GroupBuilder::new();
    let mut bytes = group(&mut builder, 0).to_vec();
    for _ in 0..undurable as usize / bytes.len() {
        storage.log().append(&mut bytes, None)?;
    }
    drop(storage);
    let begun = rt::now();
    let (_, report) = DataDir::open(dir)?.storage(options(true))?;
    let took = rt::now().since(begun);
    println!(
        "open    with its ring, {} MiB of it not durable yet: {took} ({:?})",
        undurable >> 20,
        report.log.ring
    );
    Ok(())
}

fn main() -> Result<()> {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    if std::env::args().nth(2).is_some() {
        return appends(&base.join("cenote-append"), 1, Survive::Process);
    }
    build();
    for undurable in [64 << 10, 4 << 20, RING / 2] {
        let dir = base.join(format!("cenote-append-{}-o", std::process::id()));
        open_again(&dir, undurable)?;
        rt::fs::remove_dir_all(&dir).ok();
    }
    for (n, threads) in [1, 2, 8].into_iter().enumerate() {
        let fresh = |kind: &str| base.join(format!("cenote-append-{}-{kind}{n}", std::process::id()));
        for (kind, run) in [("p", Survive::Process), ("h", Survive::Host)] {
            let dir = fresh(kind);
            appends(&dir, threads, run)?;
            rt::fs::remove_dir_all(&dir).ok();
        }
        let dir = fresh("c");
        commits(&dir, threads)?;
        rt::fs::remove_dir_all(&dir).ok();
    }
    Ok(())
}
