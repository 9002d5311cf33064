//! What is told of the measurements: a table, a plot, the raw figures.

use super::options::{Length, Options, TargetKind};
use super::record::Layout;
use super::target::Target;
use super::worker::Counts;
use super::workload::{Distribution, Workload};
use crate::plot::Bars;
use crate::table::{lay_out, median, thousands};
use crate::{Error, IoContext, Result};

/// One round on one target.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Measured {
    pub operations_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Processor time, microseconds an operation: of the server (0 of the embedded store, which has none), and of the
    /// load.
    pub server_us: f64,
    pub load_us: f64,
    pub missing: u64,
    pub errors: u64,
}

/// Everything measured of one workload on one target.
#[derive(serde::Serialize)]
pub struct Cell {
    pub workload: Workload,
    pub distribution: Option<Distribution>,
    pub target: TargetKind,
    pub rounds: Vec<Measured>,
}

const HEADER: [&str; 9] = [
    "workload and target",
    "operations/s",
    "p50 us",
    "p99 us",
    "server us/op",
    "load us/op",
    "to redis",
    "lowest, highest",
    "by processor time",
];

/// Makes the folder for what is written.
///
/// # Errors
/// [`Error::Io`] if it cannot be made.
pub fn prepare(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")
}

/// Numbers of a target that loses records or answers with errors mean nothing.
///
/// # Errors
/// [`Error::Refused`] with the numbers and the first error of the target, if there are such operations.
pub fn must_be_right(kind: TargetKind, counts: &Counts) -> Result<()> {
    if counts.missing + counts.errors == 0 {
        return Ok(());
    }
    let first = counts.first_error.as_deref().unwrap_or("none");
    Err(Error::Refused(format!(
        "{}: {} of {} operations found no record or not all of it, {} failed; the first error: {first}",
        kind.name(),
        counts.missing,
        counts.operations,
        counts.errors
    )))
}

/// Prints the table, writes the plot and the figures.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written; [`Error::Plot`] if the plot cannot be drawn.
pub fn tell(options: &Options, targets: &[Target], cells: &[Cell]) -> Result<()> {
    let mixes: Vec<&[Cell]> = cells.chunks(targets.len().max(1)).collect();
    let rows: Vec<_> = mixes
        .iter()
        .flat_map(|mix| mix.iter().map(|cell| row(mix, cell)))
        .collect();
    let table = lay_out(&HEADER, &rows);
    println!("\n{table}\n{}", conditions(options));
    let raw = options.out.join("ycsb.json");
    let text = serde_json::to_string_pretty(cells).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing ycsb.json")?;
    std::fs::write(
        options.out.join("ycsb.txt"),
        format!("{table}\n{}\n", conditions(options)),
    )
    .context("writing ycsb.txt")?;
    let [svg, png] = crate::plot::bars(&options.out.join("ycsb"), &bars(options, targets, &mixes))?;
    println!("plots: {} {}   data: {}", svg.display(), png.display(), raw.display());
    Ok(())
}

fn middle(cell: &Cell, of: impl Fn(&Measured) -> f64) -> f64 {
    median(&cell.rounds.iter().map(of).collect::<Vec<_>>())
}

fn rate(cell: &Cell) -> f64 {
    middle(cell, |measured| measured.operations_per_second)
}

fn name(cell: &Cell) -> String {
    let of = match (cell.workload, cell.distribution) {
        (Workload::D, _) | (_, None) => "latest",
        (_, Some(Distribution::Zipfian)) => "zipfian",
        (_, Some(Distribution::Uniform)) => "uniform",
    };
    format!("{:?} {of}", cell.workload)
}

/// Of each round, how many times as fast as Redis in the same round.
fn ratios(mix: &[Cell], cell: &Cell) -> Option<Vec<f64>> {
    let times = |its: &Measured, redis: &Measured| its.operations_per_second / redis.operations_per_second.max(1e-9);
    compared(mix, cell, times)
}

/// Of each round, how many times the processor time of Redis, both sides together, is that of this one.
fn savings(mix: &[Cell], cell: &Cell) -> Option<Vec<f64>> {
    let spent = |of: &Measured| (of.server_us + of.load_us).max(1e-9);
    compared(mix, cell, |its, redis| spent(redis) / spent(its))
}

fn compared(mix: &[Cell], cell: &Cell, how: impl Fn(&Measured, &Measured) -> f64) -> Option<Vec<f64>> {
    let redis = mix.iter().find(|cell| cell.target == TargetKind::Redis)?;
    let pairs = cell.rounds.iter().zip(&redis.rounds);
    Some(pairs.map(|(its, other)| how(its, other)).collect())
}

fn row(mix: &[Cell], cell: &Cell) -> Vec<String> {
    let us = |of: fn(&Measured) -> f64| format!("{:.2}", middle(cell, of));
    let has_server = !matches!(cell.target, TargetKind::Embedded | TargetKind::Pool);
    let other = |ratios: Option<Vec<f64>>| ratios.filter(|_| cell.target != TargetKind::Redis);
    let shown = |ratios: Option<Vec<f64>>| other(ratios).map_or("-".into(), |ratios| format!("{:.2}", median(&ratios)));
    let range = |ratios: Vec<f64>| {
        let (low, high) = ratios
            .iter()
            .fold((f64::MAX, 0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        format!("{low:.2}, {high:.2}")
    };
    vec![
        format!("{:<10} {}", name(cell), cell.target.name()),
        thousands(rate(cell)),
        format!("{:.1}", middle(cell, |measured| measured.p50_us)),
        format!("{:.1}", middle(cell, |measured| measured.p99_us)),
        if has_server {
            us(|measured| measured.server_us)
        } else {
            "-".into()
        },
        us(|measured| measured.load_us),
        shown(ratios(mix, cell)),
        other(ratios(mix, cell)).map_or("-".into(), range),
        shown(savings(mix, cell)),
    ]
}

/// How it was measured: what a reader must know to believe the table.
fn conditions(options: &Options) -> String {
    let layout = match options.layout {
        Layout::Hash => format!("hashes of {} fields of {} bytes", options.fields, options.field_bytes),
        Layout::Value => format!("values of {} bytes", options.fields * options.field_bytes),
    };
    let length = match options.length {
        Length::Seconds(seconds) => format!("{seconds} s"),
        Length::Operations(all) => format!("{} operations", thousands(all as f64)),
    };
    let pinned = if options.is_pinned {
        "servers on the first core, load on the others; "
    } else {
        ""
    };
    let (threads, connections, pipeline) = (options.threads, options.connections, options.pipeline);
    format!(
        "measured on this machine: {} records, {layout}; {threads} load threads; to servers {connections} connections, \
         {pipeline} commands at a time each; {pinned}{} rounds of {length}, interleaved, medians; seed {}\n\
         An operation of embedded is timed once in 16; of a server it takes from the sending of its pipeline to its \
         own answer. By processor time: how many times that of Redis, server and load together, is its own; other work \
         on the machine changes that least. Redis without persistence, cenote kv and embedded in shared memory that \
         survives the process; pool: {} memory nodes, each in a pod of its own. A scan of E is 1 to 100 look-ups.",
        thousands(options.records as f64),
        options.rounds,
        options.seed,
        options.pods,
    )
}

fn bars(options: &Options, targets: &[Target], mixes: &[&[Cell]]) -> Bars {
    let has_redis = targets.iter().any(|target| target.kind == TargetKind::Redis);
    let value = |mix: &[Cell], n: usize| match ratios(mix, &mix[n]) {
        Some(ratios) => median(&ratios),
        None => rate(&mix[n]),
    };
    let series = |n: usize| mixes.iter().map(|mix| value(mix, n)).collect();
    let unit = if has_redis {
        "times redis"
    } else {
        "operations a second"
    };
    Bars {
        title: format!(
            "YCSB: {unit} (measured, {} threads, {} connections)",
            options.threads, options.connections
        ),
        unit: unit.into(),
        labels: mixes.iter().filter_map(|mix| mix.first()).map(name).collect(),
        series: targets
            .iter()
            .enumerate()
            .map(|(n, target)| (target.kind.name().into(), series(n)))
            .collect(),
    }
}
