//! YCSB's core workloads on the pool's key-value store, in this process and behind `cenote kv`, on a table in a space
//! of several pods, and on Redis, in one run.
//!
//! ```text
//!   choose ──► workload: operations, decided by the seed ──► worker ─┬─ embedded: calls of cenote_kv::Store
//!                                                              ▲     ├─ pooled: a table in a space, load and store,
//!                                                              │     │          other pods over RDMA
//!                                       record: keys, values ──┘     └─ wire: resp ──► cenote kv, redis-server
//! ```
//!
//! All targets get the same streams. Each is loaded once; then rounds go from one target to the next, workload by
//! workload, and the median counts. Each worker is a thread with operations, and connections, of its own. What a round
//! of D has inserted is removed after it.

pub mod choose;
mod embedded;
mod options;
mod pooled;
pub mod record;
mod report;
mod resp;
mod target;
mod wire;
mod worker;
pub mod workload;

use crate::Result;
use indicatif::{ProgressBar, ProgressStyle};
pub use options::{Length, Options, TargetKind};
use record::Records;
use report::{Cell, Measured};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use target::Target;
use worker::{Counts, Until, Worker};
use workload::{Distribution, Stream, Workload};

/// Progress is shown of what takes longer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the comparison, prints a table, writes a plot and the raw figures.
///
/// # Errors
/// A server that does not start or answer; a target that answers wrongly.
pub fn run(options: &Options) -> Result<()> {
    report::prepare(options)?;
    let records = Arc::new(Records::new(options.layout, options.fields, options.field_bytes));
    let mut targets = Vec::new();
    for kind in &options.targets {
        if let Some(mut target) = Target::start(*kind, options, &records)? {
            load(options, &mut target)?;
            targets.push(target);
        }
    }
    let cells = measure(options, &mut targets)?;
    report::tell(options, &targets, &cells)
}

fn load(options: &Options, target: &mut Target) -> Result<()> {
    println!("loading {} records into {} ...", options.records, target.kind.name());
    let workers = target.workers.len() as u64;
    let streams = (0..workers).map(|n| Stream::load(options.records, (n, workers), options.seed));
    let (_, loaded) = together(&mut target.workers, streams.collect(), Until::Exhausted)?;
    report::must_be_right(target.kind, &loaded)?;
    target.gather();
    Ok(())
}

fn measure(options: &Options, targets: &mut [Target]) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left").expect("a constant template");
    let (mixes, began) = (options.mixes(), Instant::now());
    let bar = ProgressBar::hidden().with_style(style);
    bar.set_length(mixes.len() as u64 * u64::from(options.rounds) * targets.len() as u64);
    for (workload, distribution) in mixes {
        let first = cells.len();
        cells.extend(targets.iter().map(|target| Cell {
            workload,
            distribution: (workload != Workload::D).then_some(distribution),
            target: target.kind,
            rounds: Vec::new(),
        }));
        for round in 0..options.rounds {
            for (cell, target) in cells[first..].iter_mut().zip(&mut *targets) {
                if began.elapsed() > TIMEOUT && bar.is_hidden() {
                    bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
                }
                bar.set_message(format!("{workload:?} on {}", target.kind.name()));
                let seed = options.seed + u64::from(round);
                cell.rounds.push(once(options, target, (workload, distribution), seed)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

/// One round on one target.
fn once(
    options: &Options,
    target: &mut Target,
    (workload, distribution): (Workload, Distribution),
    seed: u64,
) -> Result<Measured> {
    let workers = target.workers.len() as u64;
    let stream = |n| {
        let (records, inserts) = (options.records, options.inserts());
        Stream::new(workload, distribution, records, (n, workers), seed, inserts)
    };
    let mut streams: Vec<_> = (0..workers).map(stream).collect();
    let until = match options.length {
        Length::Seconds(seconds) => Until::At(Instant::now() + Duration::from_secs_f64(seconds)),
        Length::Operations(all) => Until::Done(all.div_ceil(workers)),
    };
    let before = target.processor_seconds();
    let (time, counts);
    ((time, counts), streams) = carry_out(&mut target.workers, streams, until)?;
    let after = target.processor_seconds();
    report::must_be_right(target.kind, &counts)?;
    let undo = streams.iter().map(Stream::undo).collect();
    report::must_be_right(target.kind, &together(&mut target.workers, undo, Until::Exhausted)?.1)?;
    let at = |share: f64| counts.latency_ns.value_at_quantile(share) as f64 / 1e3;
    Ok(Measured {
        operations_per_second: counts.operations as f64 / time.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        server_us: (after.0 - before.0) * 1e6 / counts.operations.max(1) as f64,
        load_us: (after.1 - before.1) * 1e6 / counts.operations.max(1) as f64,
        missing: counts.missing,
        errors: counts.errors,
    })
}

fn together(workers: &mut [Box<dyn Worker>], streams: Vec<Stream>, until: Until) -> Result<(Duration, Counts)> {
    Ok(carry_out(workers, streams, until)?.0)
}

/// All workers at the same time, each with its stream: how long the longest took, what all of them count, and the
/// streams.
fn carry_out(
    workers: &mut [Box<dyn Worker>],
    mut streams: Vec<Stream>,
    until: Until,
) -> Result<((Duration, Counts), Vec<Stream>)> {
    let barrier = Barrier::new(workers.len());
    let results: Vec<Result<(Duration, Counts)>> = std::thread::scope(|scope| {
        let start = |(worker, stream)| scope.spawn(|| timed(&barrier, worker, stream, until));
        let started: Vec<_> = workers.iter_mut().zip(&mut streams).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no worker panics");
        started.into_iter().map(join).collect()
    });
    let (mut time, mut all) = (Duration::ZERO, Counts::default());
    for result in results {
        let (took, counts) = result?;
        time = time.max(took);
        all.add(counts);
    }
    Ok(((time, all), streams))
}

fn timed(
    barrier: &Barrier,
    worker: &mut Box<dyn Worker>,
    stream: &mut Stream,
    until: Until,
) -> Result<(Duration, Counts)> {
    barrier.wait();
    let began = Instant::now();
    let counts = worker.run(stream, until)?;
    Ok((began.elapsed(), counts))
}

#[cfg(test)]
mod tests;
