//! A daemon's requests through one ring, or through two layers.

use super::super::rig::{CXL, LOCAL, NETWORK};
use super::super::rings::{self, Layers, Waited};
use super::super::{paper, why};
use super::{Grid, chart, claim, counted, ends};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress, parallel};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const HOW: &str = "Clients of a pod ask its daemon through rings in memory of the pod. Half of the requests are near, \
    a look-up; half are far: 64 bytes, 1, 4 or 16 KiB, which the daemon's card writes to another pod out of the ring. \
    One layer: all in one ring of 256 KiB, payloads inside. Two layers: near ones in a ring of their own, far ones as \
    entries of a line to be polled, put when their payloads are whole, which lie in another ring. In both the daemon \
    waits for no write. The pool's clients need no daemon for what is near, and post far accesses on their own card: \
    this figure is of Rcmp's design alone. The pool's rings (fabric.md, Rings) have two layers, too.";

const TIMES: [&str; 3] = ["p50", "p99", "p999"];

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn rings(options: &Options, progress: &Progress) -> Result<Figure> {
    let counts: &[u64] = if options.quick { &[8] } else { &[2, 4, 8, 16] };
    let waited = measure(options, counts, progress)?;
    let all = less(counts, &waited, |waited| waited.all);
    let near = less(counts, &waited, |waited| waited.near);
    Ok(Figure {
        name: "rings",
        title: "a daemon's rings, in one layer or two".into(),
        how: HOW.into(),
        profiles: format!("{NETWORK}, {CXL}, {LOCAL}"),
        tables: vec![
            all.table("Less with two layers, all requests, %", "clients"),
            near.table("Less with two layers, near requests, %", "clients"),
            times(counts, &waited, |waited| waited.all).table("Microseconds, all requests", "clients"),
            times(counts, &waited, |waited| waited.near).table("Microseconds, near requests", "clients"),
        ],
        chart: chart(
            "Rings in two layers",
            vec![
                layers(counts, &waited, 0).panel("near requests, p50", "clients", "us"),
                layers(counts, &waited, 1).panel("near requests, p99", "clients", "us"),
            ],
        ),
        claims: [claims("all", &all), claims("near", &near)].concat(),
    })
}

/// One layer and two, by clients.
fn measure(options: &Options, counts: &[u64], progress: &Progress) -> Result<Vec<[Waited; 2]>> {
    let window = Nanos::from_millis(if options.quick { 1 } else { 4 });
    let bar = progress.bar("rings", counts.len() as u64);
    let one = |clients: &u64| {
        let run = |layers| rings::run(layers, *clients, window, options.seed);
        let both = [run(Layers::One)?, run(Layers::Two)?];
        bar.inc(1);
        Ok(both)
    };
    let waited = parallel(counts, one).into_iter().collect();
    bar.finish_and_clear();
    waited
}

fn less(counts: &[u64], waited: &[[Waited; 2]], of: fn(&Waited) -> [f64; 3]) -> Grid {
    let row = |[one, two]: &[Waited; 2]| {
        let both = of(one).into_iter().zip(of(two));
        both.map(|(one, two)| (1.0 - two / one) * 100.0).collect()
    };
    Grid {
        rows: counted(counts.iter().copied()),
        columns: TIMES.into(),
        numbers: waited.iter().map(row).collect(),
    }
}

fn times(counts: &[u64], waited: &[[Waited; 2]], of: fn(&Waited) -> [f64; 3]) -> Grid {
    let columns = ["one, p50", "one, p99", "one, p999", "two, p50", "two, p99", "two, p999"];
    Grid {
        rows: counted(counts.iter().copied()),
        columns: columns.into(),
        numbers: waited.iter().map(|both| both.iter().flat_map(of).collect()).collect(),
    }
}

/// Near requests with one layer and with two, at one of [`TIMES`].
fn layers(counts: &[u64], waited: &[[Waited; 2]], time: usize) -> Grid {
    let row = |both: &[Waited; 2]| both.iter().map(|waited| waited.near[time]).collect();
    Grid {
        rows: counted(counts.iter().copied()),
        columns: vec!["one layer", "two layers"],
        numbers: waited.iter().map(row).collect(),
    }
}

/// The paper's numbers are the most that it has seen.
fn claims(which: &str, less: &Grid) -> Vec<Claim> {
    let one = |(n, (time, paper)): (usize, (&str, f64))| {
        let (_, most) = ends(less.numbers.iter().map(|row| row[n]));
        let what = format!("{time} of {which} requests with two layers: less by, %, most");
        Claim {
            decimals: 1,
            ..claim(what, Paper::About(paper), most, why::RINGS)
        }
    };
    TIMES.into_iter().zip(paper::RINGS).enumerate().map(one).collect()
}
