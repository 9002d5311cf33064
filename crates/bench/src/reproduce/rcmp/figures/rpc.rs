//! How bytes come from another pod by RPC, by size: the pool's own choice beside each way alone.

use super::super::load::{Load, Pick};
use super::super::modes::{self, Mode, Speed};
use super::super::pool;
use super::super::rig::{CXL, LOCAL, NETWORK, Shape};
use super::super::run::Kind;
use super::super::{paper, why};
use super::{Grid, all, chart, claim, counted, ends, neither, run};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress, parallel};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;
use cenote_space::FarReads;

const HOW: &str = "Clients read items of another pod, each size in a run of its own. *The pool's choice*: each \
    connection measures by itself from which size on a read is plain (the host copies the bytes into its answer), \
    direct (one copy less) or one-sided (the host's card writes them), and reads so. *Always plain* is the pool \
    without that choice: pure RPC. In both each pod's clients read from the other pod, and a pod's numbers are shown. \
    The other three are small programs without the pool's look-ups and checks: pure RPC, RPC + one-sided (the address \
    by RPC, then the bytes), and zero-copy (the server's card writes into the client's buffer). They are faster by \
    what those cost; the pool is held to them all the same.";

/// Clients that saturate one thread.
const MANY: u64 = 16;
const COLUMNS: [&str; 5] = [
    "the pool's choice",
    "the pool, always plain",
    "pure RPC, bare",
    "RPC + one-sided, bare",
    "zero-copy, bare",
];
const PLAIN: usize = 1;
const ONE_SIDED: usize = 3;

/// Speeds by size and column, and from how many bytes on the pool's connections do not read plainly; none: never.
struct Sweep {
    speeds: Vec<Vec<Speed>>,
    choice: Option<u64>,
}

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn rpc(options: &Options, progress: &Progress) -> Result<Figure> {
    let sizes: &[u64] = if options.quick {
        &[64, 512, 4096]
    } else {
        &[64, 256, 512, 1024, 2048, 4096, 8192, 16_384]
    };
    let alone = sweep(options, sizes, 1, progress)?;
    let busy = sweep(options, sizes, MANY, progress)?;
    let latency = grid(sizes, &alone, |speed| speed.mean_us);
    let rate = grid(sizes, &busy, |speed| speed.rate / 1e6);
    let times = [
        ("one client", grid(sizes, &alone, |speed| speed.rate).to(ONE_SIDED)),
        ("16 clients", rate.to(ONE_SIDED)),
    ];
    let ratio =
        |(who, grid): &(&str, Grid)| grid.table(&format!("Throughput, times that of RPC + one-sided, {who}"), "bytes");
    let tables = times.iter().map(ratio).chain([
        latency.table("Microseconds, one client", "bytes"),
        rate.table("Million operations a second, 16 clients, one server thread", "bytes"),
    ]);
    Ok(Figure {
        name: "rpc",
        title: "ways to bring bytes by RPC, by size".into(),
        how: HOW.into(),
        profiles: format!("{NETWORK}, {CXL}, {LOCAL}"),
        tables: tables.collect(),
        chart: chart(
            "RPC",
            vec![
                latency.panel("one client", "bytes", "us"),
                rate.panel("16 clients, one server thread", "bytes", "M operations/s"),
            ],
        ),
        claims: claims(sizes, &alone, &busy),
    })
}

fn sweep(options: &Options, sizes: &[u64], clients: u64, progress: &Progress) -> Result<Sweep> {
    let (chosen, choice) = pool_sweep(options, sizes, clients, FarReads::Measured, progress)?;
    let (plain, _) = pool_sweep(options, sizes, clients, FarReads::Plain, progress)?;
    let bare = bare_sweep(options, sizes, clients, progress)?;
    let rows = chosen.into_iter().zip(plain).zip(bare);
    let row = |((chosen, plain), bare): ((Speed, Speed), Vec<Speed>)| [vec![chosen, plain], bare].concat();
    Ok(Sweep {
        speeds: rows.map(row).collect(),
        choice,
    })
}

fn pool_sweep(
    options: &Options,
    sizes: &[u64],
    clients: u64,
    reads: FarReads,
    progress: &Progress,
) -> Result<(Vec<Speed>, Option<u64>)> {
    let setting = pool::Options {
        moves: false,
        reads,
        ..pool::Options::default()
    };
    let one = |size: &u64| {
        let load = Load::Random {
            size: *size,
            writes: 0,
            pick: Pick::Near(0),
        };
        let (shape, window) = (Shape::of(2, clients as usize, 1), window(options));
        let mut run = run(options, Kind::Pool(setting), shape, load, window);
        // A connection measures for 20 ms at most, at the first read that is large enough.
        run.settle = Nanos::from_millis(21);
        run
    };
    let runs: Vec<_> = sizes.iter().map(one).collect();
    let measured = all(&runs, "RPC, pool", progress)?;
    let from = measured.iter().flat_map(|run| &run.told);
    let from = from.filter(|(name, bytes)| *name == "not plain from" && *bytes > 0);
    let choice = from.map(|(_, bytes)| *bytes).max();
    // Two pods do the same beside each other.
    let speed = |run: &super::Measured| Speed {
        rate: run.rate / 2.0,
        mean_us: run.mean_us,
    };
    Ok((measured.iter().map(speed).collect(), choice))
}

fn window(options: &Options) -> Nanos {
    Nanos::from_millis(if options.quick { 1 } else { 3 })
}

fn bare_sweep(options: &Options, sizes: &[u64], clients: u64, progress: &Progress) -> Result<Vec<Vec<Speed>>> {
    let of_size = |size: &u64| Mode::ALL.map(|mode| (mode, *size));
    let runs: Vec<_> = sizes.iter().flat_map(of_size).collect();
    let bar = progress.bar("RPC, bare", runs.len() as u64);
    let one = |(mode, size): &(Mode, u64)| {
        let speed = modes::run(*mode, *size, clients, window(options), options.seed);
        bar.inc(1);
        speed
    };
    let speeds = parallel(&runs, one).into_iter().collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    Ok(speeds.chunks(Mode::ALL.len()).map(<[Speed]>::to_vec).collect())
}

fn grid(sizes: &[u64], sweep: &Sweep, number: fn(&Speed) -> f64) -> Grid {
    let row = |speeds: &Vec<Speed>| speeds.iter().map(number).collect();
    Grid {
        rows: counted(sizes.iter().copied()),
        columns: COLUMNS.into(),
        numbers: sweep.speeds.iter().map(row).collect(),
    }
}

fn claims(sizes: &[u64], alone: &Sweep, busy: &Sweep) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (who, sweep, why) in [
        ("one client", alone, why::MODES_ALONE),
        ("16 clients", busy, why::MODES_BUSY),
    ] {
        claims.push(Claim {
            decimals: 0,
            ..neither(
                format!("{who}: bytes from which on the pool's connections do not read plainly"),
                Paper::About(paper::CROSSING),
                sweep.choice.map_or(f64::NAN, |bytes| bytes as f64),
                why::CROSSING,
            )
        });
        claims.extend(choice_claims(who, sizes, sweep, why));
    }
    claims
}

/// The pool's own choice of mode, beside RPC + one-sided and pure RPC.
fn choice_claims(who: &str, sizes: &[u64], sweep: &Sweep, why: &'static str) -> Vec<Claim> {
    let times = |row: &Vec<Speed>, other: usize| row[0].rate / row[other].rate;
    let over_one_sided = ends(sweep.speeds.iter().map(|row| times(row, ONE_SIDED)));
    let large = sizes.iter().zip(&sweep.speeds).filter(|(size, _)| **size >= 4096);
    let over_plain = ends(large.map(|(_, row)| times(row, PLAIN)));
    let names = ["RPC + one-sided", "always plain, from 4 KiB on"];
    let mut claims = Vec::new();
    for ((name, paper), ours) in names.into_iter().zip(paper::MODES).zip([over_one_sided, over_plain]) {
        for (which, paper, ours) in [("least", paper.0, ours.0), ("most", paper.1, ours.1)] {
            let what = format!("{who}: the pool's choice, times {name}, {which}");
            claims.push(claim(what, Paper::About(paper), ours, why));
        }
    }
    claims
}
