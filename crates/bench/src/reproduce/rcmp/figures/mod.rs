//! The experiments, each a figure.

mod hot;
mod latency;
mod locks;
mod rings;
mod rpc;
mod throughput;
mod ycsb;

pub use hot::hot;
pub use latency::latency;
pub use locks::locks;
pub use rings::rings;
pub use rpc::rpc;
pub use throughput::{clients, pods};
pub use ycsb::ycsb;

use super::super::chart::{Chart, Panel, Series};
use super::super::judge::{Claim, Kind as Of, Paper};
use super::super::options::{Options, Progress, parallel};
use super::super::report::Table;
use super::load::Load;
use super::rig::{CXL, LOCAL, Measured, NETWORK, Shape};
use super::run::{Kind, Run};
use crate::Result;
use cenote_base::rt::Nanos;

/// What is simulated by.
fn profiles() -> String {
    format!("{NETWORK}, {CXL}, {LOCAL}")
}

/// A run as all experiments have it: counting begins when caches are full, and moves that the first few accesses have
/// caused by chance are over.
fn run(options: &Options, kind: Kind, shape: Shape, load: Load, window: Nanos) -> Run {
    let settle = match kind {
        Kind::Swap | Kind::Coherent => Nanos(250_000_000 / shape.clients as u64),
        Kind::Pool(_) => Nanos::from_millis(8),
        Kind::Object | Kind::Ethernet => Nanos::from_micros(400),
    };
    Run {
        kind,
        shape,
        load,
        settle,
        window,
        late: Nanos::ZERO,
        seed: options.seed,
    }
}

/// All runs, as many at a time as there are processors, in order.
fn all(runs: &[Run], what: &str, progress: &Progress) -> Result<Vec<Measured>> {
    let bar = progress.bar(what, runs.len() as u64);
    let results = parallel(runs, |run| {
        let measured = run.go();
        bar.inc(1);
        measured
    });
    bar.finish_and_clear();
    results.into_iter().collect()
}

/// Numbers by something that is varied, and by what is compared.
struct Grid {
    /// What is varied, as words and as a place on an axis.
    rows: Vec<(String, f64)>,
    columns: Vec<&'static str>,
    numbers: Vec<Vec<f64>>,
}

impl Grid {
    /// Of runs of all systems for each row.
    fn of_systems(rows: Vec<(String, f64)>, runs: &[Measured], number: impl Fn(&Measured) -> f64) -> Grid {
        let numbers = runs.chunks(Kind::all().len());
        Grid {
            rows,
            columns: Kind::all().map(Kind::name).into(),
            numbers: numbers.map(|runs| runs.iter().map(&number).collect()).collect(),
        }
    }

    /// With each number as a multiple of the one of a column.
    fn to(&self, column: usize) -> Grid {
        let times = |row: &Vec<f64>| row.iter().map(|n| n / row[column]).collect();
        Grid {
            rows: self.rows.clone(),
            columns: self.columns.clone(),
            numbers: self.numbers.iter().map(times).collect(),
        }
    }

    /// Without a row, whose numbers are of another scale.
    fn without(&self, row: &str) -> Grid {
        let kept = |n: &usize| self.rows[*n].0 != row;
        let rows = (0..self.rows.len()).filter(kept);
        Grid {
            rows: rows.clone().map(|n| self.rows[n].clone()).collect(),
            columns: self.columns.clone(),
            numbers: rows.map(|n| self.numbers[n].clone()).collect(),
        }
    }

    /// Without its first column, which is a ratio.
    fn behind_first(&self) -> Grid {
        Grid {
            rows: self.rows.clone(),
            columns: self.columns[1..].to_vec(),
            numbers: self.numbers.iter().map(|row| row[1..].to_vec()).collect(),
        }
    }

    fn table(&self, name: &str, first: &str) -> Table {
        let header: Vec<&str> = [first].into_iter().chain(self.columns.iter().copied()).collect();
        let mut table = Table::new(name, &header);
        for ((label, _), numbers) in self.rows.iter().zip(&self.numbers) {
            let cells = numbers.iter().map(|n| format!("{n:.2}"));
            table.rows.push([label.clone()].into_iter().chain(cells).collect());
        }
        table
    }

    fn panel(&self, title: &str, x: &str, y: &str) -> Panel {
        let line = |(n, column): (usize, &&'static str)| {
            let points = self.rows.iter().zip(&self.numbers);
            series(column, points.map(|((_, x), numbers)| (*x, numbers[n])).collect())
        };
        panel(title, (x, y), self.columns.iter().enumerate().map(line).collect())
    }
}

/// Numbers as rows.
fn counted(numbers: impl IntoIterator<Item = u64>) -> Vec<(String, f64)> {
    numbers.into_iter().map(|n| (n.to_string(), n as f64)).collect()
}

fn panel(title: &str, (x, y): (&str, &str), series: Vec<Series>) -> Panel {
    Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        series,
        marks: true,
    }
}

fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        points,
        paper: false,
    }
}

fn chart(title: &str, panels: Vec<Panel>) -> Option<Chart> {
    Some(Chart {
        title: format!("{title} (simulated)"),
        panels,
    })
}

/// A comparison in which more is better.
fn claim(what: impl Into<String>, paper: Paper, ours: f64, why: &'static str) -> Claim {
    Claim {
        kind: Of::More,
        what: what.into(),
        paper,
        ours: ours.into(),
        decimals: 2,
        why,
    }
}

/// One in which less is better.
fn less(what: impl Into<String>, paper: Paper, ours: f64, why: &'static str) -> Claim {
    Claim {
        kind: Of::Less,
        ..claim(what, paper, ours, why)
    }
}

/// One of another system, or of a place on an axis: neither is better.
fn neither(what: impl Into<String>, paper: Paper, ours: f64, why: &'static str) -> Claim {
    Claim {
        kind: Of::Result,
        ..claim(what, paper, ours, why)
    }
}

/// The least and the most.
fn ends(of: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let ends = (f64::INFINITY, 0.0);
    of.into_iter()
        .fold(ends, |(least, most), n| (n.min(least), n.max(most)))
}
