//! Throughput by clients and by pods.

use super::super::load::{Load, Pick};
use super::super::rig::{Measured, Shape};
use super::super::run::Kind;
use super::super::store::UNIT;
use super::super::{paper, why};
use super::{Grid, all, chart, claim, counted, neither, profiles, run};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const CLIENTS: &str = "Random reads and writes of 64 bytes, half and half, over all memory. What serves in each pod \
    (daemons of the pool, writers of objects, homes of lines, proxies) is one thread, or four: the paper says that \
    throughput is linear in clients up to a point, that one daemon becomes the bottleneck, and that several go on. \
    Linear means here that a client does as much as one of the fewest. In page swapping no thread serves: four spread \
    its pages over more cards.";
const PODS: &str = "As before, with 8 clients and 4 that serve in each pod. All memory together is as large as before, \
    and used alike: with more pods a smaller share of it is near, all in one, one half of two, one fifth of five. \
    Beside it half of the accesses are near in any number of pods: what more pods cost by themselves.";

fn measure(options: &Options, shapes: &[(Shape, Pick)], what: &str, progress: &Progress) -> Result<Vec<Measured>> {
    let window = Nanos::from_millis(if options.quick { 1 } else { 3 });
    let of_shape = |(shape, pick): &(Shape, Pick)| {
        let load = Load::Random {
            size: UNIT,
            writes: 50,
            pick: pick.clone(),
        };
        Kind::all().map(|kind| run(options, kind, *shape, load.clone(), window))
    };
    let runs: Vec<_> = shapes.iter().flat_map(of_shape).collect();
    all(&runs, what, progress)
}

fn millions(run: &Measured) -> f64 {
    run.rate / 1e6
}

/// What a client, or a pod, does, as a share of what each did where there were as many as in row `to`.
fn shares(grid: &Grid, counts: &[u64], to: usize) -> Grid {
    let each = |(row, count): (&Vec<f64>, &u64)| row.iter().map(|n| n / *count as f64).collect::<Vec<_>>();
    let each: Vec<Vec<f64>> = grid.numbers.iter().zip(counts).map(each).collect();
    let share = |row: &Vec<f64>| row.iter().zip(&each[to]).map(|(n, one)| n / one).collect();
    Grid {
        rows: grid.rows.clone(),
        columns: grid.columns.clone(),
        numbers: each.iter().map(share).collect(),
    }
}

/// Throughput of two pods by clients, with one that serves in each and with four.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn clients(options: &Options, progress: &Progress) -> Result<Figure> {
    let counts: &[u64] = if options.quick { &[2, 16] } else { &[1, 2, 4, 8, 16, 32] };
    let (mut ratios, mut rates, mut panels, mut claims) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for serving in [1, 4] {
        let shape = |n: &u64| (Shape::of(2, *n as usize, serving), Pick::Uniform);
        let shapes: Vec<_> = counts.iter().map(shape).collect();
        let measured = measure(options, &shapes, "clients", progress)?;
        let grid = Grid::of_systems(counted(counts.iter().copied()), &measured, millions);
        let linear = shares(&grid, counts, 0);
        claims.extend(linear_claims(counts, &linear, serving));
        let name = format!("A client's throughput, to that of the first row (linear: 1), {serving} serving a pod");
        ratios.push(linear.table(&name, "clients a pod"));
        let name = format!("Million operations a second, {serving} serving in each of two pods");
        rates.push(grid.table(&name, "clients a pod"));
        panels.push(grid.panel(&format!("{serving} serving a pod"), "clients a pod", "M operations/s"));
    }
    Ok(Figure {
        name: "clients",
        title: "throughput of two pods by clients".into(),
        how: CLIENTS.into(),
        profiles: profiles(),
        tables: ratios.into_iter().chain(rates).collect(),
        chart: chart("Throughput by clients", panels),
        claims,
    })
}

fn linear_claims(counts: &[u64], linear: &Grid, serving: usize) -> Vec<Claim> {
    let of = |count: u64| counts.iter().position(|n| *n == count);
    let paper = Paper::About(paper::LINEAR);
    let one = |(count, system): (u64, usize)| {
        let share = linear.numbers[of(count)?][system];
        let what = format!(
            "{}, {serving} serving, {count} clients a pod, to linear",
            linear.columns[system]
        );
        Some(match system {
            0 => claim(what, paper, share, why::CLIENTS),
            _ => neither(what, paper, share, why::CLIENTS),
        })
    };
    // Where one daemon is too few the paper has no number.
    let told: &[(u64, usize)] = if serving == 1 {
        &[(4, 0)]
    } else {
        &[(8, 0), (16, 0), (32, 0), (16, 1)]
    };
    told.iter().copied().filter_map(one).collect()
}

/// Throughput by pods.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn pods(options: &Options, progress: &Progress) -> Result<Figure> {
    let counts: &[u64] = if options.quick { &[2, 5] } else { &[1, 2, 3, 4, 5] };
    let two = counts.iter().position(|n| *n == 2).unwrap_or(0);
    let (mut ratios, mut rates, mut panels, mut claims) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (what, pick) in [("all used alike", Pick::Uniform), ("half near", Pick::Near(50))] {
        let shape = |n: &u64| (Shape::of(*n as usize, 8, 4), pick.clone());
        let shapes: Vec<_> = counts.iter().map(shape).collect();
        let measured = measure(options, &shapes, "pods", progress)?;
        let grid = Grid::of_systems(counted(counts.iter().copied()), &measured, millions);
        let linear = shares(&grid, counts, two);
        claims.extend(pod_claims(counts, &linear, what));
        let name = format!("A pod's throughput, to that of one of two (linear: 1), {what}");
        ratios.push(linear.table(&name, "pods"));
        rates.push(grid.table(&format!("Million operations a second, {what}"), "pods"));
        panels.push(grid.panel(&format!("8 clients, 4 serving a pod, {what}"), "pods", "M operations/s"));
    }
    Ok(Figure {
        name: "pods",
        title: "throughput by pods".into(),
        how: PODS.into(),
        profiles: profiles(),
        tables: ratios.into_iter().chain(rates).collect(),
        chart: chart("Throughput by pods", panels),
        claims,
    })
}

/// Ours and page swapping's, of all numbers of pods but two.
fn pod_claims(counts: &[u64], linear: &Grid, what: &str) -> Vec<Claim> {
    let paper = Paper::About(paper::LINEAR);
    let one = |(row, count): (&Vec<f64>, &u64)| {
        let name = |system: &str| format!("{system}, {what}, a pod of {count} to one of two");
        let why = if what == "half near" { why::PODS_HALF } else { why::PODS };
        [
            claim(name("ours"), paper, row[0], why),
            neither(name("page swapping"), paper, row[1], why::PODS_SWAP),
        ]
    };
    let rows = linear.numbers.iter().zip(counts).filter(|(_, count)| **count != 2);
    rows.flat_map(one).collect()
}
