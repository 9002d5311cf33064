//! Those parts of figures 10 and 11 that are of TPC-C.

use super::super::chart::{Chart, Panel, Series};
use super::super::judge::{Claim, Kind, Paper};
use super::super::options::{Options, Progress};
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::paper::{self, DATA_GB};
use super::recorded::{Memory, Recorded, Replays, TERMINALS, distinct, factors};
use super::{COSTS, why};
use crate::Result;

/// Figures of this module.
pub const FIGURES: [&str; 2] = ["fig10-tpcc", "fig11-tpcc"];

/// The part that is compared: the one before lets memory settle.
const MEASURED: usize = 1;
/// Figure 11's local memory; the last holds all.
const LOCAL_GB: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, DATA_GB];

/// Figure 10: PolarDB's, and ours that is compared with it.
const PAIRS: [(Memory, Memory); 3] = [
    (Memory::stored(4.0), Memory::remote(0.5, 4.0)),
    (Memory::stored(4.0), Memory::remote(4.0, DATA_GB)),
    (Memory::stored(DATA_GB), Memory::remote(DATA_GB, DATA_GB)),
];

fn memories(figure: &str) -> Vec<Memory> {
    match figure {
        "fig10-tpcc" => PAIRS.iter().flat_map(|(theirs, ours)| [*theirs, *ours]).collect(),
        _ => LOCAL_GB.map(|gb| Memory::remote(gb, DATA_GB)).into(),
    }
}

/// Runs those of [`FIGURES`] that are named, and draws them.
///
/// # Errors
/// As of [`Recorded::replay`].
pub fn figures(options: &Options, names: &[&str], recorded: &Recorded, progress: &Progress) -> Result<Vec<Figure>> {
    let all: Vec<Memory> = names.iter().flat_map(|name| memories(name)).collect();
    let replays = recorded.replay(options, &all, progress)?;
    let one = |name: &&str| match *name {
        "fig10-tpcc" => fig10(options, recorded, &replays),
        _ => fig11(options, recorded, &replays),
    };
    Ok(names.iter().map(one).collect())
}

fn how(options: &Options, recorded: &Recorded, what: &str) -> String {
    format!(
        "TPC-C's five transactions with {:.0} warehouses by {TERMINALS} terminals without waits, traced on a real server \
         (all pages local, one processor): which of {} pages its threads ask for, in which order and whether they change \
         them, and the processor's time in between. Replayed on the pool in the simulated host of 16 vCPUs by as many \
         threads, each of which takes the next few statements of the trace until there are none; what is compared comes \
         behind a part that lets memory settle. Times in which clients, locks and the log were waited for are not in it. \
         Times of the processor are inputs: as traced (Cenote's), and {:.1} times as long (PolarDB's). Gigabytes are the \
         paper's: of {DATA_GB}, for which the pages stand that are asked for. {what}",
        recorded.load.scale(options.quick),
        recorded.pages(),
        factors()[0]
    )
}

fn time(replays: &Replays, memory: Memory, costs: usize) -> f64 {
    replays.time(memory, costs, MEASURED).as_secs_f64()
}

fn table(replays: &Replays, memories: &[Memory]) -> Table {
    let header = [
        "memory, GB of 24",
        "costs",
        "seconds",
        "local hits",
        "remote pages in, thousand/s",
        "storage pages in, thousand/s",
    ];
    let mut table = Table::new("The transactions of the trace", &header);
    for memory in memories {
        for (costs, at) in COSTS.iter().enumerate() {
            let part = replays.part(*memory, costs, MEASURED);
            let seconds = part.time.as_secs_f64();
            let a_second = |pages: u64| format!("{:.1}", pages as f64 / seconds / 1e3);
            table.rows.push(vec![
                memory.name(),
                (*at).into(),
                format!("{seconds:.3}"),
                format!("{:.1}%", 100.0 * part.hits as f64 / (part.hits + part.misses) as f64),
                a_second(part.remote),
                a_second(part.stored),
            ]);
        }
    }
    table
}

fn fig10(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let what = "PolarDB (`M`) is the pool of kind dram in front of storage.";
    let all = distinct(&memories("fig10-tpcc"));
    let of_costs = |costs: usize| {
        // Throughput of ours to theirs.
        let ratio = |(theirs, ours): (Memory, Memory)| time(replays, theirs, costs) / time(replays, ours, costs);
        let [remote, local, close] = PAIRS.map(ratio);
        let claim = |what: &str, ours: f64, kind, decimals, why| Claim {
            what: format!("{what}, at {}", COSTS[costs]),
            paper: Paper::About(1.0),
            ours: ours.into(),
            kind,
            decimals,
            why,
        };
        let yes = |so: bool| f64::from(u8::from(so));
        let below = "as much remote memory as PolarDB has local: throughput below PolarDB's (1: yes)";
        let above = "as much local memory as PolarDB: throughput above PolarDB's (1: yes)";
        [
            claim(
                below,
                yes(remote < 1.0),
                Kind::Result,
                0,
                why::TRANSACTIONS_EQUAL_REMOTE,
            ),
            claim(above, yes(local > 1.0), Kind::More, 0, why::EQUAL_LOCAL),
            claim(
                "all local: throughput to PolarDB's",
                close,
                Kind::More,
                2,
                why::ALL_LOCAL,
            ),
        ]
    };
    Figure {
        name: "fig10-tpcc",
        title: "TPC-C: remote memory against local memory alone".into(),
        how: how(options, recorded, what),
        profiles: "rdma, dram, storage".into(),
        tables: vec![table(replays, &all)],
        chart: None,
        claims: (0..COSTS.len()).flat_map(of_costs).collect(),
    }
}

/// Throughput by the size of local memory, to that with all pages local: less what is lost.
fn of_all(replays: &Replays, gb: f64, costs: usize) -> f64 {
    let of = |gb| time(replays, Memory::remote(gb, DATA_GB), costs);
    of(DATA_GB) / of(gb)
}

fn fig11(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let claim = |costs: usize| Claim {
        what: format!("throughput lost with 0.5 GB local, at {} (share)", COSTS[costs]),
        paper: Paper::About(paper::TRANSACTIONS_LOSS),
        ours: (1.0 - of_all(replays, LOCAL_GB[0], costs)).into(),
        kind: Kind::Less,
        decimals: 3,
        why: why::TRANSACTIONS_LOSS[costs],
    };
    let line = |costs: usize| -> Series {
        let points = LOCAL_GB.map(|gb| (gb, of_all(replays, gb, costs) * 100.0));
        pooling::series(&format!("at {}", COSTS[costs]), points.into())
    };
    Figure {
        name: "fig11-tpcc",
        title: "TPC-C by the size of local memory".into(),
        how: how(
            options,
            recorded,
            "Remote memory has all pages, local memory a part of them.",
        ),
        profiles: "rdma, dram, storage".into(),
        tables: vec![table(replays, &memories("fig11-tpcc"))],
        chart: Some(Chart {
            title: "Figure 11, TPC-C, traced and simulated (profiles rdma, dram)".into(),
            panels: vec![Panel {
                title: "transactions".into(),
                x: "local memory, GB of 24".into(),
                y: "throughput, % of all local".into(),
                series: (0..COSTS.len()).map(line).collect(),
                marks: true,
            }],
        }),
        claims: (0..COSTS.len()).map(claim).collect(),
    }
}
