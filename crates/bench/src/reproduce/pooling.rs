//! Figures 1, 3, 7, 8 and 9: instances of one host, from one to twelve, over the three kinds of memory.
//!
//! One world a system serves figures 3 and 7 to 9: its phases are all mixes, both sets of costs, and each number of
//! active instances. Figure 1 is a single instance with several sizes of its local buffer.

use super::chart::{Chart, Panel, Series};
use super::cost::Costs;
use super::judge::{Claim, Kind, Paper};
use super::mirrors::Survival;
use super::mix::Mix;
use super::options::{Options, Progress};
use super::paper;
use super::pod::{CLIENT_TURN, Dataset, INSTANCES, Measured, Phase, Pod, System, VCPUS};
use super::report::{Figure, Table};
use super::workload::Pick;
use crate::Result;
use cenote_base::rt::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Local share of the tiered baseline in figures 7 to 9, as the paper has it.
pub const LOCAL: f64 = 0.3;
/// Mixes of figures 3 and 7 to 9, with the sessions that the paper gives each.
const MIXES: [(Mix, usize); 3] = [(Mix::PointSelect, 48), (Mix::RangeSelect, 32), (Mix::ReadWrite, 48)];

/// Numbers of active instances.
fn counts(quick: bool) -> &'static [usize] {
    if quick {
        &[1, 3, 4, 8, 12]
    } else {
        &[1, 2, 3, 4, 5, 6, 8, 10, 12]
    }
}

/// How long a phase settles and is counted: so many transactions of a session that waits for its vCPUs alone.
/// Transactions of twenty statements also have a time that is long enough where links are saturated: there they take
/// some 15 ms, and a window that has no whole one counts the statements that all sessions begin with.
pub(super) fn phase(costs: &Arc<Costs>, mix: Mix, active: usize, threads: usize, quick: bool) -> Phase {
    let (settle, window) = match (mix.writes(), quick) {
        (false, true) => (8, 24),
        (false, false) => (15, 40),
        (true, true) => (3, 4),
        (true, false) => (4, 8),
    };
    let (processor, statements) = costs.of(mix);
    let least = |ms| Nanos::from_millis(if mix.writes() { ms } else { 0 });
    let turn = Nanos(processor.raw() * threads as u64 / u64::from(VCPUS)) + Nanos(CLIENT_TURN.raw() * statements);
    Phase {
        costs: costs.clone(),
        mix,
        pick: Pick::Uniform,
        active,
        threads,
        turn,
        settle: Nanos(turn.raw() * settle).max(least(8)),
        window: Nanos(turn.raw() * window).max(least(16)),
    }
}

/// A number of a measurement: its unit, as a column's heading has it, and its decimals in a table.
type Shown = (&'static str, fn(&Measured) -> f64, usize);

/// What the tables of figures 7 to 9 show of each system.
fn shown(mix: Mix) -> Vec<Shown> {
    let mut shown: Vec<Shown> = vec![
        ("kQPS", |m| m.qps / 1e3, 0),
        ("us", |m| m.mean_us, 0),
        ("p99 us", |m| m.p99_us, 0),
        ("GB/s", Measured::far_gbps, 2),
        ("bytes/query", Measured::bytes_a_query, 0),
    ];
    if mix.writes() {
        shown.push(("storage busy %", |m| m.storage_busy * 100.0, 0));
    }
    shown
}

/// What a phase was: system's name, costs' name, mix, active instances.
type Key = (String, &'static str, &'static str, usize);

/// All measurements of figures 3 and 7 to 9.
pub struct Sweep {
    points: BTreeMap<Key, Measured>,
    counts: &'static [usize],
}

impl Sweep {
    /// Runs a world for each system, two at a time.
    ///
    /// # Errors
    /// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
    pub fn run(
        options: &Options,
        dataset: &Dataset,
        progress: &Progress,
        mixes: &[Mix],
        systems: &[System],
    ) -> Result<Sweep> {
        let counts = counts(options.quick);
        let plan = plan(options.quick, counts, mixes);
        let bar = progress.bar("instances", (plan.len() * systems.len()) as u64);
        let mut points = BTreeMap::new();
        let worlds = super::options::parallel(systems, |system| {
            let pod = Pod {
                system: *system,
                instances: INSTANCES,
                dataset,
                seed: options.seed,
                survival: Survival::Process,
            };
            pod.run(plan.clone(), &|| bar.inc(1))
        });
        for (system, measured) in systems.iter().zip(worlds) {
            for (phase, measured) in plan.iter().zip(measured?) {
                let key = (system.name(), phase.costs.name, phase.mix.name(), phase.active);
                points.insert(key, measured);
            }
        }
        bar.finish_and_clear();
        Ok(Sweep { points, counts })
    }

    fn get(&self, system: System, costs: &'static str, mix: Mix, active: usize) -> Measured {
        let key = (system.name(), costs, mix.name(), active);
        self.points.get(&key).cloned().unwrap_or_default()
    }

    fn curve(&self, system: System, costs: &'static str, mix: Mix, of: fn(&Measured) -> f64) -> Vec<(f64, f64)> {
        let point = |n: &usize| (*n as f64, of(&self.get(system, costs, mix, *n)));
        self.counts.iter().map(point).collect()
    }

    /// The first number of instances whose throughput is within 5% of the greatest.
    pub fn saturated_at(&self, system: System, costs: &'static str, mix: Mix) -> usize {
        let curve = self.curve(system, costs, mix, |m| m.qps);
        let most = curve.iter().map(|p| p.1).fold(0.0, f64::max);
        let first = curve.iter().find(|p| p.1 >= 0.95 * most);
        first.map_or(0, |p| p.0 as usize)
    }

    /// How far CXL is below DRAM at most, up to so many instances; negative where it is above throughout.
    pub fn behind_dram(&self, costs: &'static str, mix: Mix, up_to: usize) -> f64 {
        let below = |n: &&usize| **n <= up_to;
        let behind =
            |n: &usize| 1.0 - self.get(System::Cxl, costs, mix, *n).qps / self.get(System::Dram, costs, mix, *n).qps;
        self.counts.iter().filter(below).map(behind).fold(f64::MIN, f64::max)
    }

    /// Bytes over RDMA to bytes over CXL, a second, with one instance.
    pub fn bytes_ratio(&self, costs: &'static str, mix: Mix) -> f64 {
        let tiered = self.get(System::Tiered(LOCAL), costs, mix, 1);
        tiered.far_bytes / self.get(System::Cxl, costs, mix, 1).far_bytes
    }
}

/// What only reads comes first: it is to find the pages as they were filled.
fn plan(quick: bool, counts: &[usize], mixes: &[Mix]) -> Vec<Phase> {
    let mut phases = Vec::new();
    for (mix, threads) in MIXES.iter().filter(|m| mixes.contains(&m.0)) {
        for costs in Costs::both().map(Arc::new) {
            for active in counts {
                phases.push(phase(&costs, *mix, *active, *threads, quick));
            }
        }
    }
    phases
}

const COSTS: [(&str, &str); 2] = [
    ("paper", "the paper's cost a statement"),
    ("cenote", "Cenote's cost a statement"),
];

pub(super) fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        points,
        paper: false,
    }
}

fn panel(title: &str, y: &str, series: Vec<Series>) -> Panel {
    Panel {
        title: title.into(),
        x: "instances".into(),
        y: y.into(),
        series,
        marks: true,
    }
}

/// What bounds fast instances besides memory.
const REPLIES: &str = "Replies leave the host by a card of 12 GB/s, which bounds range-selects (13 KB each) at 0.91 \
    million a second and read-write (2.7 KB a statement) at 4.4 million, whatever memory they come from.";

const PROFILES: &str = "cxl-switch, dram, rdma, storage";

/// Figure 3: CXL against DRAM.
pub fn fig3(sweep: &Sweep) -> Figure {
    let mut panels = Vec::new();
    let mut tables = Vec::new();
    for (costs, at) in COSTS {
        let mut table = Table::new(
            &format!("Throughput by instances, at {at}"),
            &[
                "instances",
                "mix",
                "DRAM kQPS",
                "CXL kQPS",
                "CXL behind DRAM",
                "CXL GB/s",
            ],
        );
        for (mix, _) in MIXES {
            let of = |system: System| series(&system.name(), sweep.curve(system, costs, mix, |m| m.qps / 1e6));
            panels.push(panel(
                &format!("{}, {at}", mix.name()),
                "million queries/s",
                vec![of(System::Dram), of(System::Cxl)],
            ));
            for n in sweep.counts {
                let (dram, cxl) = (
                    sweep.get(System::Dram, costs, mix, *n),
                    sweep.get(System::Cxl, costs, mix, *n),
                );
                table.rows.push(vec![
                    n.to_string(),
                    mix.name().into(),
                    format!("{:.0}", dram.qps / 1e3),
                    format!("{:.0}", cxl.qps / 1e3),
                    format!("{:.1}%", (1.0 - cxl.qps / dram.qps) * 100.0),
                    format!("{:.2}", cxl.far_gbps()),
                ]);
            }
        }
        tables.push(table);
    }
    Figure {
        name: "fig3",
        title: "buffer pool in CXL memory against DRAM".into(),
        how: format!(
            "One to twelve instances of 16 vCPUs; 48 sessions each for point-select and read-write, 32 for \
             range-select. Frames in CXL memory behind a switch, or in the host's own memory. {REPLIES}"
        ),
        profiles: PROFILES.into(),
        tables,
        chart: Some(Chart {
            title: "Figure 3, simulated (profiles cxl-switch, dram)".into(),
            panels,
        }),
        claims: COSTS
            .iter()
            .flat_map(|(costs, at)| behind_dram(sweep, costs, at))
            .collect(),
    }
}

/// How far CXL is behind DRAM with a set of costs: with the paper's, and with those of Cenote, whose shorter statements
/// hide less.
fn behind_dram(sweep: &Sweep, costs: &'static str, at: &str) -> Vec<Claim> {
    let mixes = [(Mix::PointSelect, 12), (Mix::RangeSelect, 8), (Mix::ReadWrite, 11)];
    let claim = |((mix, up_to), paper): ((Mix, usize), f64)| Claim {
        what: format!(
            "{}, at {at}: CXL behind DRAM at most, to {up_to} instances (share)",
            mix.name()
        ),
        paper: Paper::AtMost(paper),
        ours: sweep.behind_dram(costs, mix, up_to).into(),
        kind: Kind::Less,
        decimals: 3,
        why: super::why::BEHIND_DRAM,
    };
    mixes.into_iter().zip(paper::FIG_3).map(claim).collect()
}

/// Figures 7, 8 and 9: CXL against tiered over RDMA.
pub fn against_rdma(sweep: &Sweep, name: &'static str) -> Figure {
    let (index, mix, threads) = match name {
        "fig7" => (0, Mix::PointSelect, 48),
        "fig8" => (1, Mix::RangeSelect, 32),
        _ => (2, Mix::ReadWrite, 48),
    };
    let tiered = System::Tiered(LOCAL);
    let mut panels = Vec::new();
    let mut tables = Vec::new();
    for (costs, at) in COSTS {
        let both = |of: fn(&Measured) -> f64| {
            [System::Cxl, tiered]
                .map(|s| series(&s.name(), sweep.curve(s, costs, mix, of)))
                .into_iter()
                .collect::<Vec<_>>()
        };
        panels.push(panel(
            &format!("throughput, {at}"),
            "million queries/s",
            both(|m| m.qps / 1e6),
        ));
        panels.push(panel("mean latency", "microseconds", both(|m| m.mean_us)));
        panels.push(panel("bandwidth of CXL or RDMA", "GB/s", both(Measured::far_gbps)));
        let shown = shown(mix);
        let mut columns = vec!["instances".to_string()];
        for (what, ..) in &shown {
            columns.extend([format!("CXL {what}"), format!("RDMA {what}")]);
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(&format!("{}, at {at}", mix.name()), &columns);
        for n in sweep.counts {
            let (cxl, rdma) = (
                sweep.get(System::Cxl, costs, mix, *n),
                sweep.get(tiered, costs, mix, *n),
            );
            let mut row = vec![n.to_string()];
            for &(_, of, decimals) in &shown {
                row.push(format!("{:.decimals$}", of(&cxl)));
                row.push(format!("{:.decimals$}", of(&rdma)));
            }
            table.rows.push(row);
        }
        tables.push(table);
    }
    Figure {
        name,
        title: format!("{}, CXL against RDMA with 30% local", mix.name()),
        how: format!(
            "One to twelve instances of 16 vCPUs, {threads} sessions each. CXL: all frames behind the switch. RDMA: \
             the tiered pool, 30% of the pages in local frames, all in remote memory, whole pages of 16 KiB moved \
             through one NIC of the host. {REPLIES}"
        ),
        profiles: PROFILES.into(),
        tables,
        chart: Some(Chart {
            title: format!(
                "Figure {}, {}, simulated (profiles cxl-switch, rdma)",
                &name[3..],
                mix.name()
            ),
            panels,
        }),
        claims: claims_against_rdma(sweep, name, index, mix),
    }
}

fn claims_against_rdma(sweep: &Sweep, name: &str, index: usize, mix: Mix) -> Vec<Claim> {
    let tiered = System::Tiered(LOCAL);
    let saturated = claim(
        "instances at which RDMA is saturated",
        (Kind::Result, f64::from(paper::SATURATED_AT[index])),
        sweep.saturated_at(tiered, "paper", mix) as f64,
        super::why::SATURATION[index],
    );
    let mut claims = vec![Claim {
        decimals: 0,
        ..saturated
    }];
    if name != "fig9" {
        claims.push(claim(
            "GB/s over RDMA when saturated (the NIC's width)",
            (Kind::Input, paper::SATURATED_GBPS),
            sweep.get(tiered, "paper", mix, 12).far_gbps(),
            super::why::SATURATED_GBPS,
        ));
    }
    if name == "fig7" {
        claims.extend(claims_of_figure_7(sweep));
    }
    let ratio = match name {
        "fig7" => Some((paper::BYTES_RATIO.0, super::why::BYTES_POINT)),
        "fig9" => Some((paper::BYTES_RATIO.1, super::why::BYTES_READ_WRITE)),
        _ => None,
    };
    claims.extend(ratio.map(|(paper, why)| {
        let what = "bytes over RDMA to bytes over CXL, one instance";
        claim(what, (Kind::More, paper), sweep.bytes_ratio("paper", mix), why)
    }));
    claims
}

fn claim(what: &str, (kind, paper): (Kind, f64), ours: f64, why: &'static str) -> Claim {
    Claim {
        what: what.into(),
        paper: Paper::About(paper),
        ours: ours.into(),
        kind,
        decimals: 2,
        why,
    }
}

fn claims_of_figure_7(sweep: &Sweep) -> [Claim; 5] {
    let at = |system, n| sweep.get(system, "paper", Mix::PointSelect, n);
    let (cxl, rdma) = (at(System::Cxl, 12), at(System::Tiered(LOCAL), 12));
    [
        claim(
            "CXL, 12 instances, million queries/s (the cost of a query)",
            (Kind::Input, paper::FIG_7_MQPS.0),
            cxl.qps / 1e6,
            super::why::CXL_MQPS,
        ),
        claim(
            "RDMA, 12 instances, million queries/s",
            (Kind::Result, paper::FIG_7_MQPS.1),
            rdma.qps / 1e6,
            super::why::SATURATED_GBPS,
        ),
        claim(
            "CXL to RDMA, 12 instances, throughput",
            (Kind::More, paper::FIG_7_MQPS.0 / paper::FIG_7_MQPS.1),
            cxl.qps / rdma.qps,
            super::why::SATURATED_GBPS,
        ),
        claim(
            "RDMA, one instance, GB/s",
            (Kind::Result, paper::FIG_7_ONE_GBPS),
            at(System::Tiered(LOCAL), 1).far_gbps(),
            super::why::ONE_GBPS,
        ),
        claim(
            "CXL, 12 instances to one, throughput",
            (Kind::More, 12.0),
            cxl.qps / at(System::Cxl, 1).qps,
            super::why::CXL_MQPS,
        ),
    ]
}

/// Figure 1: one tiered instance, by the size of its local buffer.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig1(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let shares: &[f64] = if options.quick {
        &[0.1, 0.5]
    } else {
        &[0.1, 0.3, 0.5, 0.7, 0.9]
    };
    let mixes = [(Mix::PointSelect, 48), (Mix::ReadWrite, 48)];
    let costs = Arc::new(Costs::paper());
    let plan: Vec<Phase> = mixes
        .iter()
        .map(|m| phase(&costs, m.0, 1, m.1, options.quick))
        .collect();
    let bar = progress.bar("local buffers", (shares.len() * plan.len()) as u64);
    let worlds = super::options::parallel(shares, |share| {
        let pod = Pod {
            system: System::Tiered(*share),
            instances: 1,
            dataset,
            seed: options.seed,
            survival: Survival::Process,
        };
        pod.run(plan.clone(), &|| bar.inc(1))
    });
    let worlds: Vec<Vec<Measured>> = worlds.into_iter().collect::<Result<_>>()?;
    bar.finish_and_clear();
    Ok(figure_1(shares, &worlds))
}

fn figure_1(shares: &[f64], worlds: &[Vec<Measured>]) -> Figure {
    Figure {
        name: "fig1",
        title: "RDMA bandwidth by the size of the local buffer".into(),
        how: "One instance of 16 vCPUs, 48 sessions, the tiered pool: a share of the pages in local frames, all in \
              remote memory."
            .into(),
        profiles: "rdma, dram, storage".into(),
        tables: vec![figure_1_table(shares, worlds)],
        chart: Some(Chart {
            title: "Figure 1, simulated (profiles rdma, dram)".into(),
            panels: figure_1_panels(shares, worlds),
        }),
        claims: figure_1_claims(shares, worlds),
    }
}

fn figure_1_table(shares: &[f64], worlds: &[Vec<Measured>]) -> Table {
    let mut table = Table::new(
        "Throughput and bandwidth by the local buffer's share, at the paper's cost a statement",
        &["local", "point-select kQPS", "GB/s", "read-write kQPS", "GB/s"],
    );
    for (share, m) in shares.iter().zip(worlds) {
        let mut row = vec![format!("{:.0}%", share * 100.0)];
        for m in m {
            row.push(format!("{:.0}", m.qps / 1e3));
            row.push(format!("{:.2}", m.far_gbps()));
        }
        table.rows.push(row);
    }
    table
}

fn figure_1_panels(shares: &[f64], worlds: &[Vec<Measured>]) -> Vec<Panel> {
    let curve = |i: usize, of: fn(&Measured) -> f64| -> Vec<(f64, f64)> {
        shares.iter().zip(worlds).map(|(s, m)| (s * 100.0, of(&m[i]))).collect()
    };
    let papers = |pick: fn(&(f64, f64, f64)) -> f64| Series {
        name: "RDMA, paper".into(),
        points: paper::FIG_1.iter().map(|p| (p.0 * 100.0, pick(p))).collect(),
        paper: true,
    };
    let local = |mut panel: Panel| {
        panel.x = "local buffer, % of the pages".into();
        panel
    };
    vec![
        local(panel(
            "throughput",
            "million queries/s",
            vec![
                series("point-select, RDMA", curve(0, |m| m.qps / 1e6)),
                series("read-write", curve(1, |m| m.qps / 1e6)),
            ],
        )),
        local(panel(
            "point-select",
            "GB/s over RDMA",
            vec![series("RDMA", curve(0, Measured::far_gbps)), papers(|p| p.1)],
        )),
        local(panel(
            "read-write",
            "GB/s over RDMA",
            vec![series("RDMA", curve(1, Measured::far_gbps)), papers(|p| p.2)],
        )),
    ]
}

fn figure_1_claims(shares: &[f64], worlds: &[Vec<Measured>]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (share, point, read_write) in paper::FIG_1 {
        let Some(at) = shares.iter().position(|s| *s == share) else {
            continue;
        };
        let rows = [
            (0, "point-select", point, super::why::FIG_1_POINT),
            (1, "read-write", read_write, super::why::FIG_1_READ_WRITE),
        ];
        for (i, mix, paper, why) in rows {
            claims.push(Claim {
                what: format!("{:.0}% local, {mix}, GB/s over RDMA", share * 100.0),
                paper: Paper::About(paper),
                ours: worlds[at][i].far_gbps().into(),
                kind: Kind::Result,
                decimals: 1,
                why,
            });
        }
    }
    claims
}
