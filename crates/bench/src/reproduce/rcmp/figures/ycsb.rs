//! YCSB on a hash table.

use super::super::load::{Load, Mix, Pick, pairs};
use super::super::rig::{BYTES, Shape};
use super::super::run::Kind;
use super::super::store::UNIT;
use super::super::{paper, why};
use super::{Grid, all, chart, claim, ends, profiles, run};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

/// Clients of a pod.
const CLIENTS: usize = 8;
/// The column that others are compared with: page swapping.
const SWAP: usize = 1;

fn how() -> String {
    format!(
        "A table of {} slots of 64 bytes, half of them used at first; keys are hashed without collisions. {CLIENTS} \
         clients in each of two pods, 4 that serve. E's scans of up to 100 keys are as many look-ups: at once where a \
         system reads many at once (ours, objects, CXL over Ethernet), one after the other else. Numbers are times \
         page swapping's throughput; of that each pod has a memory of its own.",
        BYTES / UNIT
    )
}

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn ycsb(options: &Options, progress: &Progress) -> Result<Figure> {
    let mixes: &[Mix] = if options.quick { &[Mix::A, Mix::C] } else { &Mix::ALL };
    let (mut tables, mut panels, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    for (what, pick) in [("uniform", Pick::Uniform), ("Zipf 0.99", Pick::zipf(pairs(BYTES)))] {
        let grid = sweep(options, mixes, &pick, progress)?;
        let times = grid.to(SWAP);
        claims.extend(compared(mixes, what, &times));
        tables.push(times.table(&format!("Times page swapping, {what}"), "workload"));
        tables.push(grid.table(&format!("Million operations a second, {what}"), "workload"));
        panels.push(times.without("E").panel(
            what,
            "workload (1 is A, 6 is F; E: see the table)",
            "times page swapping",
        ));
    }
    Ok(Figure {
        name: "ycsb",
        title: "YCSB on a hash table, two pods".into(),
        how: how(),
        profiles: profiles(),
        tables,
        chart: chart("YCSB", panels),
        claims,
    })
}

fn sweep(options: &Options, mixes: &[Mix], pick: &Pick, progress: &Progress) -> Result<Grid> {
    let window = Nanos::from_millis(if options.quick { 2 } else { 8 });
    let of_mix = |mix: &Mix| {
        let load = Load::Ycsb {
            mix: *mix,
            pick: pick.clone(),
        };
        Kind::all().map(|kind| run(options, kind, Shape::of(2, CLIENTS, 4), load.clone(), window))
    };
    let runs: Vec<_> = mixes.iter().flat_map(of_mix).collect();
    let measured = all(&runs, "YCSB", progress)?;
    let rows = mixes.iter().map(|mix| (format!("{mix:?}"), *mix as u8 as f64 + 1.0));
    Ok(Grid::of_systems(rows.collect(), &measured, |run| run.rate / 1e6))
}

/// The paper's number for a workload is of both distributions together. E's is none.
fn compared(mixes: &[Mix], what: &str, times: &Grid) -> Vec<Claim> {
    let why = if what == "uniform" {
        why::YCSB_UNIFORM
    } else {
        why::YCSB_ZIPF
    };
    let ours = || mixes.iter().zip(&times.numbers).filter(|(mix, _)| **mix != Mix::E);
    let mut claims: Vec<Claim> = ours()
        .map(|(mix, times)| {
            let paper = match mix {
                Mix::A | Mix::F => paper::YCSB.1,
                _ => paper::YCSB.0,
            };
            let what = format!("{mix:?}, {what}, ours, times page swapping");
            claim(what, Paper::About(paper), times[0], why)
        })
        .collect();
    if what != "uniform" {
        let (_, most) = ends(ours().map(|(_, times)| times[0]));
        let what = format!("the most of all but E, {what}, ours, times page swapping");
        claims.push(claim(what, Paper::About(paper::YCSB.2), most, why));
    }
    claims
}
