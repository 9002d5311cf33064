//! RPC modes by size.

use super::super::modes::{self, Mode, Speed};
use super::super::rig::{LOCAL, NETWORK};
use super::super::{paper, why};
use super::{Grid, chart, claim, counted, ends, neither};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress, parallel};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const HOW: &str = "Clients of one pod ask a program of another for bytes that lie in its memory: pure RPC copies them \
    at both ends, the other two do not. The pool's own reads are pure RPC or, from so many bytes on as each connection \
    measures, direct: one copy less, by messages. The other two are here for the comparison alone.";

/// Clients that saturate one thread.
const MANY: u64 = 16;

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn rpc(options: &Options, progress: &Progress) -> Result<Figure> {
    let sizes: &[u64] = if options.quick {
        &[64, 512, 4096]
    } else {
        &[64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384]
    };
    let alone = sweep(options, sizes, 1, progress)?;
    let busy = sweep(options, sizes, MANY, progress)?;
    let latency = grid(sizes, &alone, |speed| speed.mean_us);
    let rate = grid(sizes, &busy, |speed| speed.rate / 1e6);
    Ok(Figure {
        name: "rpc",
        title: "ways to bring bytes by RPC, by size".into(),
        how: HOW.into(),
        profiles: format!("{NETWORK}, {LOCAL}"),
        tables: vec![
            latency.table("Microseconds, one client", "bytes"),
            rate.table("Million operations a second, 16 clients, one server thread", "bytes"),
        ],
        chart: chart(
            "RPC modes",
            vec![
                latency.panel("one client", "bytes", "us"),
                rate.panel("16 clients, one server thread", "bytes", "M operations/s"),
            ],
        ),
        claims: claims(sizes, &alone, &busy),
    })
}

/// A speed for each size and mode.
type Speeds = Vec<Vec<Speed>>;

fn sweep(options: &Options, sizes: &[u64], clients: u64, progress: &Progress) -> Result<Speeds> {
    let window = Nanos::from_millis(if options.quick { 1 } else { 3 });
    let runs: Vec<_> = sizes
        .iter()
        .flat_map(|size| Mode::ALL.map(|mode| (mode, *size)))
        .collect();
    let bar = progress.bar("RPC modes", runs.len() as u64);
    let one = |(mode, size): &(Mode, u64)| {
        let speed = modes::run(*mode, *size, clients, window, options.seed);
        bar.inc(1);
        speed
    };
    let speeds = parallel(&runs, one).into_iter().collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    Ok(speeds.chunks(Mode::ALL.len()).map(<[Speed]>::to_vec).collect())
}

fn grid(sizes: &[u64], speeds: &Speeds, number: fn(&Speed) -> f64) -> Grid {
    Grid {
        rows: counted(sizes.iter().copied()),
        columns: Mode::ALL.map(Mode::name).into(),
        numbers: speeds.iter().map(|modes| modes.iter().map(number).collect()).collect(),
    }
}

/// The first size at which a mode has 5% more throughput than pure RPC.
fn crossing(sizes: &[u64], busy: &Speeds, mode: usize) -> f64 {
    let is_better = |modes: &Vec<Speed>| modes[mode].rate > modes[0].rate * 1.05;
    let first = busy.iter().position(is_better);
    first.map_or(f64::NAN, |n| sizes[n] as f64)
}

fn claims(sizes: &[u64], alone: &Speeds, busy: &Speeds) -> Vec<Claim> {
    let crossing = |(mode, name): (usize, &str)| Claim {
        decimals: 0,
        ..neither(
            format!("16 clients: bytes from which on {name} has 5% more throughput than pure RPC"),
            Paper::About(paper::CROSSING),
            crossing(sizes, busy, mode),
            why::CROSSING,
        )
    };
    let mut claims: Vec<Claim> = [(1, Mode::OneSided.name()), (2, Mode::ZeroCopy.name())]
        .map(crossing)
        .into();
    claims.extend(adaptive_claims("one client", sizes, alone, why::MODES_ALONE));
    claims.extend(adaptive_claims("16 clients", sizes, busy, why::MODES_BUSY));
    claims
}

/// Rcmp's choice by size: pure RPC or zero-copy, whichever is better.
fn adaptive_claims(clients: &str, sizes: &[u64], speeds: &Speeds, why: &'static str) -> Vec<Claim> {
    let best = |modes: &Vec<Speed>| modes[0].rate.max(modes[2].rate);
    let over_one_sided = ends(speeds.iter().map(|modes| best(modes) / modes[1].rate));
    let large = sizes.iter().zip(speeds).filter(|(size, _)| **size >= 4096);
    let over_rpc = ends(large.map(|(_, modes)| best(modes) / modes[0].rate));
    let names = ["RPC + one-sided", "pure RPC, from 4 KiB on"];
    let mut claims = Vec::new();
    for ((name, paper), ours) in names.into_iter().zip(paper::MODES).zip([over_one_sided, over_rpc]) {
        for (which, paper, ours) in [("least", paper.0, ours.0), ("most", paper.1, ours.1)] {
            let what = format!("{clients}: pure RPC or zero-copy, the better, times {name}, {which}");
            claims.push(claim(what, Paper::About(paper), ours, why));
        }
    }
    claims
}
