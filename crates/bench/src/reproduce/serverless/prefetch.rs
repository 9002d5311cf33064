//! Figure 15: statements over many keys, whose pages are read one by one or together.

use super::super::chart::{Chart, Panel};
use super::super::cost::Costs;
use super::super::judge::{Claim, Kind, Paper};
use super::super::keys::{self, Times};
use super::super::options::{self, Options, Progress};
use super::super::pod::{Dataset, System};
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::{COSTS, paper, why};
use crate::Result;
use cenote_base::rt::Nanos;

/// Share of the pages that local memory has.
const LOCAL: f64 = 0.125;
/// Where the others are.
const PLACES: [(&str, System); 2] = [
    ("remote memory", System::Tiered(LOCAL)),
    ("storage", System::Vanilla(LOCAL)),
];

/// Times page by page, and together, of a place at a set of costs.
struct Pair {
    place: usize,
    /// Of [`COSTS`].
    costs: usize,
    times: [Times; 2],
}

impl Pair {
    /// Kinds of statements, with both times.
    fn kinds(&self) -> [(&'static str, [Nanos; 2]); 3] {
        [
            ("index read", self.times.map(|t| t.index_read)),
            ("index join", self.times.map(|t| t.index_join)),
            ("scan", self.times.map(|t| t.scan)),
        ]
    }

    /// What the first two, which know their keys, save on average: a share of the time.
    fn saved(&self) -> f64 {
        let [read, join, _] = self.kinds().map(|(_, times)| saved(times));
        f64::midpoint(read, join)
    }
}

fn saved([alone, together]: [Nanos; 2]) -> f64 {
    1.0 - together.as_secs_f64() / alone.as_secs_f64()
}

/// Runs all and draws it.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig15(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let sets = Costs::both();
    let all = || (0..sets.len()).flat_map(|costs| (0..PLACES.len()).map(move |place| (costs, place)));
    let cases: Vec<(usize, usize, bool)> = all().flat_map(|(c, p)| [(c, p, false), (c, p, true)]).collect();
    let bar = progress.bar("prefetching", cases.len() as u64);
    let times = options::parallel(&cases, |(costs, place, together)| {
        let how = (options.seed, options.quick);
        let times = keys::measure(dataset, PLACES[*place].1, *together, &sets[*costs], how);
        bar.inc(1);
        times
    });
    bar.finish_and_clear();
    let times: Vec<Times> = times.into_iter().collect::<Result<_>>()?;
    let pairs = all().zip(times.chunks_exact(2)).map(|((costs, place), times)| Pair {
        place,
        costs,
        times: [times[0], times[1]],
    });
    Ok(figure(&pairs.collect::<Vec<_>>()))
}

fn figure(pairs: &[Pair]) -> Figure {
    Figure {
        name: "fig15",
        title: "prefetching by an index: pages read together".into(),
        how: format!(
            "One session; an eighth of the pages ({:.1}%) in local memory, all of them in remote memory, or in storage. \
             Statements of 300 rows, whole rows by a range of a secondary index (*index read*) or by primary keys that \
             lie anywhere (*index join*, the inner side), and scans of a table. Page by page, or with the pages of the \
             next keys read together (batched key prepare; `Tuning::brings`). In place of the paper's TPC-H queries: \
             what they wait for is these reads. The two that know their keys are compared on average.",
            LOCAL * 100.0
        ),
        profiles: "rdma, dram, storage".into(),
        tables: vec![table(pairs)],
        chart: Some(Chart {
            title: "Figure 15, simulated (profiles rdma, storage, dram)".into(),
            panels: PLACES
                .iter()
                .enumerate()
                .map(|(place, _)| panel(pairs, place))
                .collect(),
        }),
        claims: pairs.iter().map(claim).collect(),
    }
}

fn table(pairs: &[Pair]) -> Table {
    let mut table = Table::new(
        "A statement of 300 rows, or a scan",
        &[
            "the others are in",
            "costs",
            "statement",
            "page by page, us",
            "together, us",
            "time saved",
        ],
    );
    for pair in pairs {
        for (kind, times) in pair.kinds() {
            let [alone, together] = times.map(|t| t.raw() as f64 / 1000.0);
            table.rows.push(vec![
                PLACES[pair.place].0.into(),
                COSTS[pair.costs].into(),
                kind.into(),
                format!("{alone:.0}"),
                format!("{together:.0}"),
                format!("{:.1}%", saved(times) * 100.0),
            ]);
        }
    }
    table
}

/// Time together over time alone, for each kind in turn.
fn panel(pairs: &[Pair], place: usize) -> Panel {
    let line = |pair: &Pair| {
        let kinds = pair.kinds().into_iter().take(2).enumerate();
        let points = kinds.map(|(i, (_, times))| (i as f64 + 1.0, (1.0 - saved(times)) * 100.0));
        pooling::series(&format!("at {}", COSTS[pair.costs]), points.collect())
    };
    Panel {
        title: format!("over {}", PLACES[place].0),
        x: "1: index read, 2: index join".into(),
        y: "time together, % of page by page".into(),
        series: pairs.iter().filter(|pair| pair.place == place).map(line).collect(),
        marks: true,
    }
}

fn claim(pair: &Pair) -> Claim {
    Claim {
        what: format!(
            "time saved over {}, at {} (share)",
            PLACES[pair.place].0, COSTS[pair.costs]
        ),
        paper: Paper::About(paper::PREFETCH[pair.place]),
        ours: pair.saved().into(),
        kind: Kind::More,
        decimals: 3,
        why: why::PREFETCH[pair.place],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_two_is_compared() {
        let times = |index_read, index_join, scan| Times {
            index_read: Nanos(index_read),
            index_join: Nanos(index_join),
            scan: Nanos(scan),
        };
        let pair = Pair {
            place: 0,
            costs: 0,
            times: [times(100, 100, 100), times(80, 60, 10)],
        };
        assert!((claim(&pair).ours.median() - 0.3).abs() < 1e-9);
        assert_eq!(table(&[pair]).rows[2][5], "90.0%");
    }
}
