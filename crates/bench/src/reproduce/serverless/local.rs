//! Figure 11: one instance over remote memory that has all pages, by the size of its local memory.
//!
//! A world for each size; its phases are both distributions of rows at both sets of costs. The largest size has room
//! for all pages and for those to come: it is what the others are compared with.

use super::super::chart::{Chart, Panel, Series};
use super::super::cost::Costs;
use super::super::judge::{Claim, Kind, Paper};
use super::super::mirrors::Survival;
use super::super::mix::Mix;
use super::super::options::{self, Options, Progress};
use super::super::pod::{Dataset, Measured, Phase, Pod, System};
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::super::workload::Pick;
use super::paper::{self, DATA_GB};
use super::recorded::ALL;
use super::{COSTS, why};
use crate::Result;
use cenote_base::rt::Nanos;
use std::sync::Arc;

/// Sessions of the instance.
pub const SESSIONS: usize = 48;
const PICKS: [Pick; 2] = [Pick::Uniform, Pick::Special];
/// Gigabytes of local memory, the last of them all.
fn sizes(quick: bool) -> &'static [f64] {
    if quick {
        &[0.5, 2.0, 8.0, DATA_GB]
    } else {
        &[0.5, 1.0, 2.0, 4.0, 8.0, 16.0, DATA_GB]
    }
}

/// So much of the paper's data, as a share of ours.
pub fn share(gb: f64) -> f64 {
    if gb < DATA_GB { gb / DATA_GB } else { ALL }
}

/// Read-write by so many sessions. It settles for as long as it takes to bring what a distribution makes hot.
pub fn phase(costs: &Arc<Costs>, pick: Pick, sessions: usize, quick: bool) -> Phase {
    let (settle, window) = if quick { (30, 30) } else { (80, 80) };
    Phase {
        pick,
        settle: Nanos::from_millis(settle),
        window: Nanos::from_millis(window),
        ..pooling::phase(costs, Mix::ReadWrite, 1, sessions, quick)
    }
}

/// Measurements of a size: uniform and skewed at PolarDB's cost, then both at Cenote's.
type Sized = Vec<Measured>;

/// Runs all and draws it.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig11(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let sizes = sizes(options.quick);
    let of_costs = |costs: Arc<Costs>| PICKS.map(|pick| phase(&costs, pick, SESSIONS, options.quick));
    let plan: Vec<Phase> = Costs::both().map(Arc::new).into_iter().flat_map(of_costs).collect();
    let bar = progress.bar("local memory", (sizes.len() * plan.len()) as u64);
    let worlds = options::parallel(sizes, |gb| {
        let pod = Pod {
            system: System::Tiered(share(*gb)),
            instances: 1,
            dataset,
            seed: options.seed,
            survival: Survival::Process,
        };
        pod.run(plan.clone(), &|| bar.inc(1))
    });
    bar.finish_and_clear();
    let worlds: Vec<Sized> = worlds.into_iter().collect::<Result<_>>()?;
    Ok(figure(&Sizes { sizes, worlds }))
}

/// All sizes, and what came of them.
struct Sizes {
    sizes: &'static [f64],
    worlds: Vec<Sized>,
}

impl Sizes {
    fn get(&self, size: usize, costs: usize, pick: usize) -> &Measured {
        &self.worlds[size][costs * PICKS.len() + pick]
    }

    /// Throughput as a share of that with all pages local.
    fn of_all(&self, size: usize, costs: usize, pick: usize) -> f64 {
        let all = self.sizes.len() - 1;
        self.get(size, costs, pick).qps / self.get(all, costs, pick).qps
    }

    fn curve(&self, of: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        self.sizes.iter().enumerate().map(|(i, gb)| (*gb, of(i))).collect()
    }
}

fn figure(all: &Sizes) -> Figure {
    Figure {
        name: "fig11",
        title: "read-write by the size of local memory".into(),
        how: format!(
            "One instance of 16 vCPUs, {SESSIONS} sessions, the tiered pool: remote memory has all pages, local memory \
             a part of them, from a forty-eighth (0.5 of 24 GB) to all. Rows are asked for uniformly, or as sysbench's \
             distribution `special` does by default: three quarters from 1% of the ids, the others about the middle. \
             Both by the same world, one after the other."
        ),
        profiles: "rdma, dram, storage".into(),
        tables: (0..COSTS.len()).map(|costs| table(all, costs)).collect(),
        chart: Some(Chart {
            title: "Figure 11, simulated (profiles rdma, dram)".into(),
            panels: (0..COSTS.len()).flat_map(|costs| panels(all, costs)).collect(),
        }),
        claims: claims(all),
    }
}

fn table(all: &Sizes, costs: usize) -> Table {
    let mut table = Table::new(
        &format!("Read-write by local memory, at {}", COSTS[costs]),
        &[
            "local, of 24 GB",
            "rows",
            "kQPS",
            "of all local",
            "us",
            "p99 us",
            "pages in, thousand/s",
            "pages out, thousand/s",
            "pages in a statement",
            "pages out a statement",
            "GB/s",
        ],
    );
    for (size, gb) in all.sizes.iter().enumerate() {
        for (pick, of) in PICKS.iter().enumerate() {
            let m = all.get(size, costs, pick);
            let [inward, out] = m.swapped();
            table.rows.push(vec![
                format!("{gb}"),
                of.name().into(),
                format!("{:.0}", m.qps / 1e3),
                format!("{:.1}%", all.of_all(size, costs, pick) * 100.0),
                format!("{:.0}", m.mean_us),
                format!("{:.0}", m.p99_us),
                format!("{:.1}", inward / 1e3),
                format!("{:.1}", out / 1e3),
                format!("{:.2}", inward / m.qps),
                format!("{:.2}", out / m.qps),
                format!("{:.2}", m.far_gbps()),
            ]);
        }
    }
    table
}

/// Throughput, then pages that move.
fn panels(all: &Sizes, costs: usize) -> [Panel; 2] {
    let panel = |title: String, y: &str, series: Vec<Series>| Panel {
        title,
        x: "local memory, GB of 24".into(),
        y: y.into(),
        series,
        marks: true,
    };
    let lines = |of: &dyn Fn(usize, usize) -> f64| -> Vec<Series> {
        let line = |(i, pick): (usize, &Pick)| pooling::series(pick.name(), all.curve(|size| of(size, i)));
        PICKS.iter().enumerate().map(line).collect()
    };
    let mut throughput = lines(&|size, pick| all.of_all(size, costs, pick) * 100.0);
    throughput.extend(PICKS.iter().zip(paper::LOSS).map(|(pick, loss)| Series {
        paper: true,
        ..pooling::series(&format!("{}, paper", pick.name()), vec![(0.5, (1.0 - loss) * 100.0)])
    }));
    let moved = |size, pick| all.get(size, costs, pick).swapped().iter().sum::<f64>() / 1e3;
    [
        panel(
            format!("throughput, {}", COSTS[costs]),
            "% of that with all local",
            throughput,
        ),
        panel("pages swapped".into(), "thousand a second, both ways", lines(&moved)),
    ]
}

fn claims(all: &Sizes) -> Vec<Claim> {
    let cases = (0..COSTS.len()).flat_map(|costs| (0..PICKS.len()).map(move |pick| (costs, pick)));
    let claim = |(costs, pick): (usize, usize)| Claim {
        what: format!(
            "{}, 0.5 of 24 GB local, at {}: throughput lost (share)",
            PICKS[pick].name(),
            COSTS[costs]
        ),
        paper: Paper::AtMost(paper::LOSS[pick]),
        ours: (1.0 - all.of_all(0, costs, pick)).into(),
        kind: Kind::Less,
        decimals: 3,
        why: why::LOSS[costs],
    };
    cases.map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(qps: f64) -> Measured {
        Measured {
            qps,
            rdma: [16384.0 * qps, 0.0],
            ..Measured::default()
        }
    }

    #[test]
    fn what_is_lost_is_lost_of_all_local() {
        let world = |qps: [f64; 4]| qps.map(measured).into();
        let all = Sizes {
            sizes: &[0.5, DATA_GB],
            worlds: vec![world([80.0, 90.0, 40.0, 60.0]), world([100.0, 100.0, 100.0, 80.0])],
        };
        let lost: Vec<f64> = claims(&all).iter().map(|c| c.ours.median()).collect();
        let expected = [0.2, 0.1, 0.6, 0.25];
        assert!(
            lost.iter().zip(expected).all(|(lost, e)| (lost - e).abs() < 1e-9),
            "{lost:?}"
        );
        let rows = table(&all, 0).rows;
        assert_eq!((rows.len(), &rows[0][3][..], &rows[0][8][..]), (4, "80.0%", "1.00"));
    }

    #[test]
    fn the_largest_size_has_room_for_more() {
        assert!(share(DATA_GB) > 1.0 && share(0.5) < 1.0 / 47.0);
    }
}
