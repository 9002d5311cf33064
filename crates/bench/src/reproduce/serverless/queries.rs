//! Figures 12 and 13, and those parts of 10 and 15 that are of TPC-H.

use super::super::chart::{Chart, Panel, Series};
use super::super::judge::{Claim, Kind, Paper};
use super::super::options::{Options, Progress};
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::paper::QUERIES_GB;
use super::recorded::{Memory, Recorded, Replays, factors};
use super::{COSTS, paper, why};
use crate::Result;

/// Figures of this module.
pub const FIGURES: [&str; 4] = ["fig10-tpch", "fig12", "fig13", "fig15-tpch"];

/// Figure 12's local memory, of the paper's gigabytes; the last holds all.
const LOCAL_GB: [f64; 6] = [10.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Figure 13's.
const REMOTE_GB: [f64; 4] = [32.0, 64.0, 128.0, 256.0];
const FIXED_LOCAL: f64 = 8.0;
/// Remote memory for all pages.
const ALL: f64 = 256.0;
/// Figure 10: as much local memory as PolarDB's, or as much remote memory. The paper's own are not in its text.
const EQUAL: f64 = 32.0;
/// A query is sensitive to memory if four times as much makes it faster by this factor.
const SENSITIVE: f64 = 1.2;
/// A query is one of those that announce pages if it does so for this share of those that it asks for.
const ANNOUNCES: f64 = 0.05;

const POLARDB: Memory = Memory::stored(EQUAL);
const EQUAL_REMOTE: Memory = Memory::remote(FIXED_LOCAL, EQUAL);
const EQUAL_LOCAL: Memory = Memory::remote(EQUAL, ALL);
/// Figure 15: over remote memory, over storage.
const PLACES: [(&str, Memory); 2] = [
    ("remote memory", Memory::remote(FIXED_LOCAL, ALL)),
    ("storage", Memory::stored(FIXED_LOCAL)),
];

fn memories(figure: &str) -> Vec<Memory> {
    match figure {
        "fig10-tpch" => vec![POLARDB, EQUAL_REMOTE, EQUAL_LOCAL],
        "fig12" => LOCAL_GB.map(|gb| Memory::remote(gb, ALL)).into(),
        "fig13" => REMOTE_GB.map(|gb| Memory::remote(FIXED_LOCAL, gb)).into(),
        _ => PLACES
            .iter()
            .flat_map(|(_, memory)| [*memory, memory.one_by_one()])
            .collect(),
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
        "fig10-tpch" => fig10(options, recorded, &replays),
        "fig12" => fig12(options, recorded, &replays),
        "fig13" => fig13(options, recorded, &replays),
        _ => fig15(options, recorded, &replays),
    };
    Ok(names.iter().map(one).collect())
}

/// What is common to all.
fn how(options: &Options, recorded: &Recorded, what: &str) -> String {
    format!(
        "The 22 queries at scale factor {}, traced on a real server (all pages local, one processor, indexes on foreign \
         keys): which of {} pages they ask for, in which order, what they announce, and the processor's time in between. \
         Replayed one after the other on the pool in the simulated host, behind one access to each page. Times of the \
         processor are inputs: as traced (Cenote's), and {:.1} times as long (PolarDB's). Gigabytes are the paper's: of \
         {QUERIES_GB}, for which the pages stand that are asked for. {what}",
        recorded.load.scale(options.quick),
        recorded.pages(),
        factors()[0]
    )
}

fn figure(name: &'static str, title: &str, how: String) -> Figure {
    Figure {
        name,
        title: title.into(),
        how,
        profiles: "rdma, dram, storage".into(),
        tables: Vec::new(),
        chart: None,
        claims: Vec::new(),
    }
}

/// Times of all queries by memory, at a set of costs.
fn times(replays: &Replays, memories: &[Memory], costs: usize) -> Table {
    let mut header = vec!["query".to_string()];
    header.extend(memories.iter().map(|memory| format!("{}, ms", memory.name())));
    let mut table = Table {
        header,
        ..Table::new(&format!("Times of the queries, at {}", COSTS[costs]), &[])
    };
    for (query, name) in replays.parts.iter().enumerate() {
        let cells = memories.iter().map(|memory| replays.time(*memory, costs, query));
        let cells = cells.map(|time| format!("{:.1}", time.as_secs_f64() * 1e3));
        table.rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    table
}

/// All queries together, by memory.
fn sums(replays: &Replays, memories: &[Memory]) -> Table {
    let header = [
        "memory, GB of 200",
        "costs",
        "all queries, s",
        "pages from remote memory",
        "from storage",
    ];
    let mut table = Table::new("All 22 queries", &header);
    for memory in memories {
        for (costs, at) in COSTS.iter().enumerate() {
            let [remote, stored] = replays.pages(*memory, costs);
            table.rows.push(vec![
                memory.name(),
                (*at).into(),
                format!("{:.2}", replays.seconds(*memory, costs)),
                remote.to_string(),
                stored.to_string(),
            ]);
        }
    }
    table
}

fn yes(so: bool) -> f64 {
    f64::from(u8::from(so))
}

fn fig10(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let what = "PolarDB (`M`) is the pool of kind dram in front of storage. The paper's sizes are not in its text: 32 GB \
                are taken where both have as much, 8 GB of local memory in front of as much remote memory.";
    let all = [POLARDB, EQUAL_REMOTE, EQUAL_LOCAL];
    let claim = |memory, costs: usize, what: &str, is_so: fn(f64, f64) -> bool, kind, why| Claim {
        what: format!("{what}, at {} (1: yes)", COSTS[costs]),
        paper: Paper::About(1.0),
        ours: yes(is_so(replays.seconds(memory, costs), replays.seconds(POLARDB, costs))).into(),
        kind,
        decimals: 0,
        why,
    };
    let remote = "as much remote memory as PolarDB has local: slower than PolarDB";
    let local = "as much local memory as PolarDB: faster than PolarDB";
    let of_costs = |costs| {
        [
            claim(
                EQUAL_REMOTE,
                costs,
                remote,
                |ours, theirs| ours > theirs,
                Kind::Result,
                why::QUERIES_EQUAL_REMOTE,
            ),
            claim(
                EQUAL_LOCAL,
                costs,
                local,
                |ours, theirs| ours < theirs,
                Kind::More,
                why::EQUAL_LOCAL,
            ),
        ]
    };
    Figure {
        tables: vec![sums(replays, &all)],
        claims: (0..COSTS.len()).flat_map(of_costs).collect(),
        ..figure(
            "fig10-tpch",
            "TPC-H: remote memory against local memory alone",
            how(options, recorded, what),
        )
    }
}

fn fig12(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let what = "Remote memory has all pages, local memory a part of them.";
    let all = memories("fig12");
    let (least, most) = (all[0], all[all.len() - 1]);
    let saved = |costs| 1.0 - replays.seconds(most, costs) / replays.seconds(least, costs);
    let claim = |costs: usize| Claim {
        what: format!(
            "latency saved by 256 GB in the place of 10 GB, all queries, at {} (share)",
            COSTS[costs]
        ),
        paper: Paper::About(paper::LOCAL_MEMORY),
        ours: saved(costs).into(),
        kind: Kind::Result,
        decimals: 3,
        why: why::QUERIES_LOCAL[costs],
    };
    let line = |costs: usize| {
        let of_all = |memory: &Memory| replays.seconds(*memory, costs) / replays.seconds(most, costs);
        let points = all.iter().map(|memory| (memory.local, of_all(memory)));
        pooling::series(&format!("at {}", COSTS[costs]), points.collect())
    };
    Figure {
        tables: vec![sums(replays, &all), times(replays, &all, 0), times(replays, &all, 1)],
        chart: Some(chart(
            "12",
            "local memory, GB of 200",
            "time, to that with all pages local",
            (0..2).map(line),
        )),
        claims: (0..COSTS.len()).map(claim).collect(),
        ..figure(
            "fig12",
            "TPC-H by the size of local memory",
            how(options, recorded, what),
        )
    }
}

fn chart(number: &str, x: &str, y: &str, series: impl Iterator<Item = Series>) -> Chart {
    Chart {
        title: format!("Figure {number}, TPC-H, traced and simulated (profiles rdma, storage, dram)"),
        panels: vec![Panel {
            title: "all 22 queries".into(),
            x: x.into(),
            y: y.into(),
            series: series.collect(),
            marks: true,
        }],
    }
}

/// How much faster each query is with 128 GB of remote memory than with 32.
fn speedups(replays: &Replays, costs: usize) -> Vec<f64> {
    let [few, many] = [REMOTE_GB[0], REMOTE_GB[2]].map(|gb| Memory::remote(FIXED_LOCAL, gb));
    let time = |memory, query| replays.time(memory, costs, query).as_secs_f64();
    let speedup = |query| time(few, query) / time(many, query);
    (0..replays.parts.len()).map(speedup).collect()
}

fn fig13(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let what = format!(
        "Local memory of {FIXED_LOCAL} GB; remote memory has some of the pages, or all; the others are in storage. A \
         query counts as faster if it is so by a fifth."
    );
    let all = memories("fig13");
    let claims = |costs: usize| {
        let mut speedups = speedups(replays, costs);
        speedups.sort_by(|one, other| other.total_cmp(one));
        let sensitive = speedups.iter().filter(|by| **by >= SENSITIVE).count();
        let most = &speedups[..(speedups.len() * 2).div_ceil(3)];
        let mean = most.iter().sum::<f64>() / most.len() as f64;
        let claim = |what: &str, paper, ours: f64, kind, decimals, why| Claim {
            what: format!("{what}, at {}", COSTS[costs]),
            paper: Paper::About(paper),
            ours: ours.into(),
            kind,
            decimals,
            why,
        };
        let share = sensitive as f64 / speedups.len() as f64;
        let [of_which, by] = [
            "queries that 128 GB make faster than 32 GB (share)",
            "how much faster, the two thirds that gain most",
        ];
        [
            claim(
                of_which,
                paper::SENSITIVE,
                share,
                Kind::Result,
                2,
                why::QUERIES_SHARE[costs],
            ),
            claim(by, paper::SPEEDUP, mean, Kind::Result, 2, why::QUERIES_REMOTE[costs]),
        ]
    };
    let line = |costs: usize| {
        let of_all = |gb| replays.seconds(Memory::remote(FIXED_LOCAL, gb), costs);
        let points = REMOTE_GB.map(|gb| (gb, of_all(gb) / of_all(ALL)));
        pooling::series(&format!("at {}", COSTS[costs]), points.into())
    };
    Figure {
        tables: vec![sums(replays, &all), times(replays, &all, 0), times(replays, &all, 1)],
        chart: Some(chart(
            "13",
            "remote memory, GB of 200",
            "time, to that with all pages in memory",
            (0..2).map(line),
        )),
        claims: (0..COSTS.len()).flat_map(claims).collect(),
        ..figure(
            "fig13",
            "TPC-H by the size of remote memory",
            how(options, recorded, &what),
        )
    }
}

/// Time saved by reading pages together, of a query.
fn saved(replays: &Replays, memory: Memory, costs: usize, query: usize) -> f64 {
    let time = |memory| replays.time(memory, costs, query).as_secs_f64();
    1.0 - time(memory) / time(memory.one_by_one())
}

fn fig15(options: &Options, recorded: &Recorded, replays: &Replays) -> Figure {
    let what = format!(
        "Local memory of {FIXED_LOCAL} GB, the other pages in remote memory, or in storage. Read page by page, or together \
         where a query announces them: lookups of many keys (batched key prepare), and the leaves ahead of a scan. Both \
         look for the leaves of keys beforehand, as the trace does. Compared are those queries whose lookups announce at least {:.0}% of the pages that they ask for.",
        ANNOUNCES * 100.0
    );
    let compared: Vec<usize> = (0..replays.parts.len())
        .filter(|q| replays.announced[*q] >= ANNOUNCES)
        .collect();
    let mean = |memory, costs| {
        let all = compared.iter().map(|query| saved(replays, memory, costs, *query));
        all.sum::<f64>() / compared.len().max(1) as f64
    };
    let claim = |(place, costs): (usize, usize)| Claim {
        what: format!("time saved over {}, at {} (share)", PLACES[place].0, COSTS[costs]),
        paper: Paper::About(paper::PREFETCH[place]),
        ours: mean(PLACES[place].1, costs).into(),
        kind: Kind::More,
        decimals: 3,
        why: why::QUERIES_PREFETCH[place],
    };
    let cases = || (0..COSTS.len()).flat_map(|costs| (0..PLACES.len()).map(move |place| (place, costs)));
    let names: Vec<String> = cases()
        .map(|(place, costs)| format!("{}, at {}", PLACES[place].0, COSTS[costs]))
        .collect();
    let mut header = vec!["query".to_string(), "announced".to_string()];
    header.extend(names);
    let mut table = Table {
        header,
        ..Table::new("Time saved by reading together", &[])
    };
    for (query, name) in replays.parts.iter().enumerate() {
        let cells = cases().map(|(place, costs)| saved(replays, PLACES[place].1, costs, query));
        let announced = format!("{:.1}%", replays.announced[query] * 100.0);
        let cells = cells.map(|share| format!("{:.1}%", share * 100.0));
        table
            .rows
            .push([name.clone(), announced].into_iter().chain(cells).collect());
    }
    Figure {
        tables: vec![table],
        claims: cases().map(claim).collect(),
        ..figure(
            "fig15-tpch",
            "TPC-H: pages read together",
            how(options, recorded, &what),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded::distinct;
    use super::*;

    #[test]
    fn figures_share_replays() {
        let all: Vec<Memory> = FIGURES.iter().flat_map(|name| memories(name)).collect();
        assert_eq!((all.len(), distinct(&all).len()), (17, 14));
    }
}
