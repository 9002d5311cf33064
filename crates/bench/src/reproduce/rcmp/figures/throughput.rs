//! Throughput by clients and by pods.

use super::super::load::{Load, Pick};
use super::super::rig::{Measured, Shape};
use super::super::run::Kind;
use super::super::store::UNIT;
use super::super::{paper, why};
use super::{Grid, all, chart, claim, counted, neither, profiles, run};
use crate::Result;
use crate::reproduce::judge::Paper;
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const CLIENTS: &str = "Random reads and writes of 64 bytes, half and half, over all memory. What serves in each pod \
    (daemons of the pool, writers of objects, homes of lines, proxies) is one thread, or four: the paper says that one \
    daemon becomes the bottleneck, and that several go on. It gives no numbers. In page swapping no thread serves: four \
    spread its pages over more cards.";
const PODS: &str = "As before, with 8 clients and 4 that serve in each pod. All memory together is as large as before: \
    with more pods a smaller share of it is near, one half of two, one fifth of five.";

fn measure(options: &Options, shapes: &[Shape], what: &str, progress: &Progress) -> Result<Vec<Measured>> {
    let load = Load::Random {
        size: UNIT,
        writes: 50,
        pick: Pick::Uniform,
    };
    let window = Nanos::from_millis(if options.quick { 1 } else { 3 });
    let of_shape = |shape: &Shape| Kind::all().map(|kind| run(options, kind, *shape, load.clone(), window));
    let runs: Vec<_> = shapes.iter().flat_map(of_shape).collect();
    all(&runs, what, progress)
}

fn millions(run: &Measured) -> f64 {
    run.rate / 1e6
}

/// Throughput of two pods by clients, with one that serves in each and with four.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn clients(options: &Options, progress: &Progress) -> Result<Figure> {
    let counts: &[u64] = if options.quick { &[2, 16] } else { &[1, 2, 4, 8, 16, 32] };
    let (mut tables, mut panels) = (Vec::new(), Vec::new());
    for serving in [1, 4] {
        let shapes: Vec<_> = counts.iter().map(|n| Shape::of(2, *n as usize, serving)).collect();
        let measured = measure(options, &shapes, "clients", progress)?;
        let grid = Grid::of_systems(counted(counts.iter().copied()), &measured, millions);
        let name = format!("Million operations a second, {serving} serving in each of two pods");
        tables.push(grid.table(&name, "clients a pod"));
        panels.push(grid.panel(&format!("{serving} serving a pod"), "clients a pod", "M operations/s"));
    }
    Ok(Figure {
        name: "clients",
        title: "throughput of two pods by clients".into(),
        how: CLIENTS.into(),
        profiles: profiles(),
        tables,
        chart: chart("Throughput by clients", panels),
        claims: Vec::new(),
    })
}

/// Throughput by pods.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn pods(options: &Options, progress: &Progress) -> Result<Figure> {
    let counts: &[u64] = if options.quick { &[2, 5] } else { &[1, 2, 3, 4, 5] };
    let shapes: Vec<_> = counts.iter().map(|n| Shape::of(*n as usize, 8, 4)).collect();
    let measured = measure(options, &shapes, "pods", progress)?;
    let rows = counted(counts.iter().copied());
    let grid = Grid::of_systems(rows.clone(), &measured, millions);
    let each = Grid::of_systems(rows, &measured, |run| millions(run) / run.by_pod.len() as f64);
    let at = |pods: u64| counts.iter().position(|n| *n == pods).unwrap_or(0);
    let growth = |system: usize| grid.numbers[at(5)][system] / grid.numbers[at(2)][system];
    let linear = Paper::About(paper::FIVE_TO_TWO);
    Ok(Figure {
        name: "pods",
        title: "throughput by pods".into(),
        how: PODS.into(),
        profiles: profiles(),
        tables: vec![
            grid.table("Million operations a second", "pods"),
            each.table("Million operations a second and pod", "pods"),
        ],
        chart: chart(
            "Throughput by pods",
            vec![grid.panel("8 clients, 4 serving a pod", "pods", "M operations/s")],
        ),
        claims: vec![
            claim("ours, five pods to two (linear)", linear, growth(0), why::PODS),
            neither("page swapping, five pods to two (linear)", linear, growth(1), why::PODS),
        ],
    })
}
