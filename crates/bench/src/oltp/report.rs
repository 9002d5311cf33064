//! What is told of rounds: a table a kind of transaction, the raw figures, a plot.

use super::{Counts, Round};
use crate::plot::Bars;
use crate::table::{lay_out, median, thousands};
use crate::{Error, IoContext, Result};
use std::path::Path;

/// One kind of transaction in one round, or in all of them.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Transactions that ended.
    pub ended: u64,
    /// Of these, those that missed.
    pub missed: u64,
    /// Runs that the server gave up as victims.
    pub retries: u64,
    /// Latencies in milliseconds.
    pub p50_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The mean.
    pub mean_ms: f64,
}

impl Kind {
    /// Of counts.
    pub fn new(name: &'static str, counts: &Counts) -> Self {
        let at = |share| counts.latency_ns.value_at_quantile(share) as f64 / 1e6;
        Self {
            name,
            ended: counts.ended,
            missed: counts.missed,
            retries: counts.retries,
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            mean_ms: counts.latency_ns.mean() / 1e6,
        }
    }
}

/// A round as it is written.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Transactions a second.
    pub per_second: f64,
    /// Of the benchmark's own unit, such as tpmC.
    pub score: f64,
    /// Statements a second.
    pub statements_per_second: f64,
    /// Processor time of the server a transaction, in microseconds, if its process was named.
    pub server_us: Option<f64>,
    /// All transactions together.
    pub all: Kind,
    /// Each kind.
    pub kinds: Vec<Kind>,
}

impl Summary {
    /// Of a round; `score` is the benchmark's own number for it.
    pub fn new(names: &[&'static str], round: &Round, score: f64) -> Self {
        let server_us = |seconds: f64| seconds * 1e6 / round.ended().max(1) as f64;
        Self {
            per_second: round.rate(),
            score,
            statements_per_second: round.statements as f64 / round.seconds,
            server_us: round.server_seconds.map(server_us),
            all: Kind::new("all", &round.together()),
            kinds: kinds(names, &round.kinds),
        }
    }
}

fn kinds(names: &[&'static str], counts: &[Counts]) -> Vec<Kind> {
    names
        .iter()
        .zip(counts)
        .map(|(name, counts)| Kind::new(name, counts))
        .collect()
}

/// All rounds together, kind by kind.
pub fn merged(names: &[&'static str], rounds: &[Round]) -> Vec<Kind> {
    let mut all = vec![Counts::new(); names.len()];
    for round in rounds {
        all.iter_mut().zip(&round.kinds).for_each(|(all, its)| all.add(its));
    }
    kinds(names, &all)
}

/// The table of kinds. `missed` is what the benchmark calls missed transactions.
pub fn table(kinds: &[Kind], missed: &str) -> String {
    let all = kinds.iter().map(|kind| kind.ended).sum::<u64>().max(1) as f64;
    let share = |part: u64, of: f64| format!("{:.2}", 100.0 * part as f64 / of.max(1.0));
    let row = |kind: &Kind| {
        vec![
            kind.name.to_string(),
            thousands(kind.ended as f64),
            share(kind.ended, all),
            share(kind.missed, kind.ended as f64),
            kind.retries.to_string(),
            format!("{:.2}", kind.p50_ms),
            format!("{:.2}", kind.p95_ms),
            format!("{:.2}", kind.p99_ms),
        ]
    };
    let header = [
        "transaction",
        "ended",
        "%",
        missed,
        "retries",
        "p50 ms",
        "p95 ms",
        "p99 ms",
    ];
    lay_out(&header, &kinds.iter().map(row).collect::<Vec<_>>())
}

/// The median of rounds, and their least and most.
pub fn spread(summaries: &[Summary], of: impl Fn(&Summary) -> f64) -> String {
    let values: Vec<f64> = summaries.iter().map(of).collect();
    let [low, high] = [f64::min, f64::max].map(|best| values.iter().copied().reduce(best).unwrap_or(f64::NAN));
    match values.len() {
        0 | 1 => thousands(median(&values)),
        _ => format!(
            "{} ({} to {})",
            thousands(median(&values)),
            thousands(low),
            thousands(high)
        ),
    }
}

/// One line of a run: the benchmark's own number, transactions and statements a second, retries, processor time.
pub fn line(score: &str, summaries: &[Summary]) -> String {
    let retries: u64 = summaries.iter().map(|round| round.all.retries).sum();
    let processor = match summaries.iter().all(|round| round.server_us.is_some()) {
        true => format!(
            ", {} us of the server's processor each",
            spread(summaries, |round| round.server_us.unwrap_or(f64::NAN))
        ),
        false => String::new(),
    };
    format!(
        "{score}{} transactions a second{processor}, {} statements a second, {retries} runs given up and run again",
        spread(summaries, |round| round.per_second),
        spread(summaries, |round| round.statements_per_second)
    )
}

/// Writes `NAME.json` and the plot of latencies to `out`.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written; [`Error::Plot`] if the plot cannot be drawn.
pub fn write(out: &Path, name: &str, kinds: &[Kind], figures: &impl serde::Serialize) -> Result<()> {
    std::fs::create_dir_all(out).context("creating the output folder")?;
    let raw = out.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(figures).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context(format!("writing {name}.json"))?;
    let values = |of: fn(&Kind) -> f64| kinds.iter().map(of).collect::<Vec<_>>();
    let bars = Bars {
        title: format!("{name}: latency of each transaction (measured)"),
        unit: "milliseconds".into(),
        labels: kinds.iter().map(|kind| kind.name.to_string()).collect(),
        series: vec![
            ("p50".into(), values(|kind| kind.p50_ms)),
            ("p95".into(), values(|kind| kind.p95_ms)),
            ("p99".into(), values(|kind| kind.p99_ms)),
        ],
    };
    let [svg, png] = crate::plot::bars(&out.join(name), &bars)?;
    println!("plots: {} {}   data: {}", svg.display(), png.display(), raw.display());
    Ok(())
}
