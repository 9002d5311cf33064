//! Figure 10: remote memory behind local memory, against local memory in front of storage.
//!
//! Three pairs, as the paper has them: as much local memory there as remote memory here; as much local memory in both;
//! and all of the data local in both. The paper says of each which is faster, and no number.

use super::super::chart::{Chart, Panel};
use super::super::cost::Costs;
use super::super::judge::{Claim, Kind, Paper};
use super::super::mirrors::Survival;
use super::super::options::{self, Options, Progress};
use super::super::pod::{Dataset, Measured, Phase, Pod, System};
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::super::workload::Pick;
use super::local::{phase, share};
use super::paper::DATA_GB;
use super::{COSTS, why};
use crate::Result;
use std::sync::Arc;

/// A vCPU each, or three, of which two may wait.
const SESSIONS: [usize; 2] = [16, 48];
/// Memory in gigabytes of 24, as the paper has it: of PolarDB (`M`), local and remote (`LM`, `RM`).
const NAMES: [&str; 5] = ["M 4", "LM 0.5, RM 4", "LM 4, RM 24", "M 24", "LM 24, RM 24"];
/// Of the systems: this one to that one.
const PAIRS: [(usize, usize); 3] = [(1, 0), (2, 0), (4, 3)];

fn systems() -> [System; 5] {
    let some = share(4.0);
    [
        System::Vanilla(some),
        System::Limited {
            local: share(0.5),
            remote: some,
        },
        System::Tiered(some),
        System::Vanilla(share(DATA_GB)),
        System::Tiered(share(DATA_GB)),
    ]
}

/// Measurements of each system: by costs, then by sessions.
struct Systems(Vec<Vec<Measured>>);

impl Systems {
    fn get(&self, system: usize, costs: usize, sessions: usize) -> &Measured {
        &self.0[system][costs * SESSIONS.len() + sessions]
    }

    /// Throughput of the first of a pair to that of the other.
    fn ratio(&self, (one, other): (usize, usize), costs: usize, sessions: usize) -> f64 {
        self.get(one, costs, sessions).qps / self.get(other, costs, sessions).qps
    }
}

/// Runs all and draws it.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig10(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let of_costs = |costs: Arc<Costs>| SESSIONS.map(|n| phase(&costs, Pick::Uniform, n, options.quick));
    let plan: Vec<Phase> = Costs::both().map(Arc::new).into_iter().flat_map(of_costs).collect();
    let systems = systems();
    let bar = progress.bar("equal memory", (systems.len() * plan.len()) as u64);
    let worlds = options::parallel(&systems, |system| {
        let pod = Pod {
            system: *system,
            instances: 1,
            dataset,
            seed: options.seed,
            survival: Survival::Process,
        };
        pod.run(plan.clone(), &|| bar.inc(1))
    });
    bar.finish_and_clear();
    Ok(figure(&Systems(worlds.into_iter().collect::<Result<_>>()?)))
}

fn figure(all: &Systems) -> Figure {
    Figure {
        name: "fig10",
        title: "remote memory against local memory alone, in front of storage".into(),
        how: "One instance of 16 vCPUs, read-write, rows asked for uniformly, in place of TPC-C. PolarDB (`M`) is the \
              pool of kind dram: a part of the pages in local frames, all in storage (one link of 3 GB/s, 60 us a \
              read). Ours has local frames (`LM`) in front of remote memory (`RM`). Gigabytes are the paper's: of 24. \
              Where the paper does not say how large the other part is, 0.5 GB local or 24 GB remote are taken. By 16 \
              sessions, one a vCPU, and by 48, two thirds of which may wait at no cost. The paper says of each pair \
              which is faster; that is what is compared."
            .into(),
        profiles: "rdma, dram, storage".into(),
        tables: vec![table(all), ratios(all)],
        chart: Some(Chart {
            title: "Figure 10, simulated (profiles rdma, dram, storage)".into(),
            panels: (0..COSTS.len()).map(|costs| panel(all, costs)).collect(),
        }),
        claims: claims(all),
    }
}

fn table(all: &Systems) -> Table {
    let mut table = Table::new(
        "Read-write, uniform",
        &[
            "memory, GB of 24",
            "costs",
            "sessions",
            "kQPS",
            "us",
            "p99 us",
            "remote pages in, thousand/s",
            "out",
            "storage pages in, thousand/s",
            "storage busy %",
        ],
    );
    for (system, name) in NAMES.iter().enumerate() {
        for (costs, at) in COSTS.iter().enumerate() {
            for (n, sessions) in SESSIONS.iter().enumerate() {
                let m = all.get(system, costs, n);
                let [inward, out] = m.swapped().map(|pages| format!("{:.1}", pages / 1e3));
                table.rows.push(vec![
                    (*name).into(),
                    (*at).into(),
                    sessions.to_string(),
                    format!("{:.0}", m.qps / 1e3),
                    format!("{:.0}", m.mean_us),
                    format!("{:.0}", m.p99_us),
                    inward,
                    out,
                    format!("{:.1}", m.stored_pages() / 1e3),
                    format!("{:.0}", m.storage_busy * 100.0),
                ]);
            }
        }
    }
    table
}

/// What a pair is of, and what the paper says of the first's throughput.
const SAID: [(&str, &str); 3] = [
    ("as much remote memory as PolarDB has local", "below PolarDB's"),
    ("as much local memory as PolarDB", "above PolarDB's"),
    ("all local in both", "close"),
];

fn ratios(all: &Systems) -> Table {
    let mut table = Table::new(
        "Throughput to PolarDB's",
        &[
            "pair",
            "memory",
            "costs",
            "the paper says",
            "16 sessions",
            "48 sessions",
        ],
    );
    for (pair, (what, said)) in PAIRS.iter().zip(SAID) {
        for (costs, at) in COSTS.iter().enumerate() {
            let mut row = vec![
                what.to_string(),
                format!("{} to {}", NAMES[pair.0], NAMES[pair.1]),
                (*at).into(),
                said.into(),
            ];
            row.extend([0, 1].map(|n| format!("{:.2}", all.ratio(*pair, costs, n))));
            table.rows.push(row);
        }
    }
    table
}

fn panel(all: &Systems, costs: usize) -> Panel {
    let line = |(n, sessions): (usize, &usize)| {
        let points = PAIRS.iter().enumerate();
        let points = points.map(|(i, pair)| (i as f64 + 1.0, all.ratio(*pair, costs, n)));
        pooling::series(&format!("{sessions} sessions"), points.collect())
    };
    Panel {
        title: format!("at {}", COSTS[costs]),
        x: "1: RM = M, 2: LM = M, 3: all local".into(),
        y: "throughput to PolarDB's".into(),
        series: SESSIONS.iter().enumerate().map(line).collect(),
        marks: true,
    }
}

/// Of the first two pairs the direction, since the paper gives no more; of the third the ratio.
fn claims(all: &Systems) -> Vec<Claim> {
    let cases = (0..COSTS.len()).flat_map(|costs| (0..SESSIONS.len()).map(move |n| (costs, n)));
    let of_case = |(costs, n): (usize, usize)| {
        let at = format!("{} sessions, at {}", SESSIONS[n], COSTS[costs]);
        let ratio = |pair: usize| all.ratio(PAIRS[pair], costs, n);
        let yes = |so: bool| f64::from(u8::from(so));
        let claim = |what: String, ours: f64, kind: Kind, why: &'static str| Claim {
            what,
            paper: Paper::About(1.0),
            ours: ours.into(),
            kind,
            decimals: 0,
            why,
        };
        let [remote, local, _] = SAID.map(|(what, said)| format!("{what}, {at}: throughput {said} (1: yes)"));
        let close = Claim {
            decimals: 2,
            ..claim(
                format!("all local, {at}: throughput to PolarDB's"),
                ratio(2),
                Kind::More,
                why::ALL_LOCAL,
            )
        };
        [
            claim(remote, yes(ratio(0) < 1.0), Kind::Result, why::EQUAL_REMOTE),
            claim(local, yes(ratio(1) > 1.0), Kind::More, why::EQUAL_LOCAL),
            close,
        ]
    };
    cases.flat_map(of_case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_the_papers_or_not() {
        let world = |qps: f64| {
            vec![
                Measured {
                    qps,
                    ..Measured::default()
                };
                COSTS.len() * SESSIONS.len()
            ]
        };
        let all = Systems([100.0, 90.0, 130.0, 200.0, 190.0].map(world).into());
        let ours: Vec<f64> = claims(&all).iter().take(3).map(|c| c.ours.median()).collect();
        assert_eq!(ours, [1.0, 1.0, 0.95]);
        assert_eq!(claims(&all).len(), 12);
        let other = Systems([100.0, 110.0, 80.0, 200.0, 190.0].map(world).into());
        let ours: Vec<f64> = claims(&other).iter().take(2).map(|c| c.ours.median()).collect();
        assert_eq!(ours, [0.0, 0.0]);
        assert_eq!(ratios(&other).rows.len(), PAIRS.len() * COSTS.len());
    }
}
