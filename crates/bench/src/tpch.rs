//! TPC-H's 22 queries on any server that speaks PostgreSQL's wire protocol, and the comparison of two servers' answers.
//!
//! ```text
//!   text ──► rows: the eight tables, decided by seed and scale ──► COPY
//!   queries, with the validation parameters ──► wall and processor time, answers ──► answers of another server
//! ```
//!
//! It is no audited TPC-H: there are no refresh functions and no throughput test, and rows are not those of the
//! specification's program, though drawn as it draws them. `docs/bench.md` says what differs.

mod answers;
mod load;
mod options;
mod queries;
mod rows;
mod text;
mod trace;

use crate::oltp::{connect, texts};
use crate::plot::Bars;
use crate::table::{lay_out, median};
use crate::{Error, IoContext, Result, processor};
pub use answers::{Answer, Answers, Outcome, compare};
use indicatif::{ProgressBar, ProgressStyle};
pub use options::Options;
use postgres::Client;
use queries::{QUERIES, Query};
use std::time::{Duration, Instant};
pub use trace::trace;

/// What was measured of one query.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Measured {
    /// Its number.
    pub query: u32,
    /// Seconds of each repetition.
    pub wall: Vec<f64>,
    /// Processor seconds of the server, if its process was named.
    pub processor: Vec<f64>,
    /// Rows, or what went wrong.
    pub result: String,
    /// What the comparison says, if there is one; `right` if nothing.
    pub verdict: Option<String>,
}

impl Measured {
    fn is_wrong(&self) -> bool {
        self.wall.is_empty()
            || self
                .verdict
                .as_deref()
                .is_some_and(|verdict| !verdict.starts_with("right"))
    }
}

/// Loads, runs, compares, and tells.
///
/// # Errors
/// [`Error::Sql`] if the server refuses the data; [`Error::Lost`] if a query failed, or its answer is not that of the
/// other server; [`Error::Io`] of a file.
pub fn run(options: &Options) -> Result<Vec<Measured>> {
    let other = options.compare.as_deref().map(answers::read).transpose()?;
    if let Some(other) = &other {
        other.must_be_of(options)?;
    }
    let mut client = connect(&options.url)?;
    if options.is_loading {
        load::load(&mut client, options)?;
    }
    if options.queries.is_empty() {
        return Ok(Vec::new());
    }
    client.batch_execute(&format!("SET statement_timeout = {}", options.timeout.as_millis()))?;
    let (mut measured, answers) = measure(&mut client, options)?;
    if let Some(other) = &other {
        for its in &mut measured {
            its.verdict = Some(answers::verdict(&answers, other, its.query));
        }
    }
    if let Some(path) = &options.answers {
        answers::write(path, &answers)?;
    }
    tell(options, &measured)?;
    let wrong: Vec<String> = measured.iter().filter(|its| its.is_wrong()).map(complaint).collect();
    match wrong.is_empty() {
        true => Ok(measured),
        false => Err(Error::Lost(wrong.join("\n"))),
    }
}

fn complaint(its: &Measured) -> String {
    let verdict = its.verdict.as_deref().unwrap_or("not compared");
    format!("q{:02}: {}; {verdict}", its.query, its.result)
}

fn measure(client: &mut Client, options: &Options) -> Result<(Vec<Measured>, Answers)> {
    let mut answers = Answers::new(options);
    let mut all = Vec::new();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").expect("a constant template");
    let bar = ProgressBar::new(options.queries.len() as u64).with_style(style);
    for number in &options.queries {
        bar.set_message(format!("q{number:02}"));
        let query = &QUERIES[*number as usize - 1];
        let (measured, outcome) = repeat(client, options, query)?;
        answers.queries.insert(*number, outcome);
        all.push(measured);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((all, answers))
}

/// The warm-up and all repetitions; none of these if the warm-up fails.
fn repeat(client: &mut Client, options: &Options, query: &Query) -> Result<(Measured, Outcome)> {
    let text = query.text(options.scale);
    let mut measured = Measured {
        query: query.number,
        wall: Vec::new(),
        processor: Vec::new(),
        result: String::new(),
        verdict: None,
    };
    let mut outcome = ask(client, &text)?;
    for _ in 0..options.repetitions {
        if matches!(outcome, Outcome::Error(_)) {
            break;
        }
        let before = options.server_pid.map(processor::seconds).transpose()?;
        let began = Instant::now();
        outcome = ask(client, &text)?;
        measured.wall.push(began.elapsed().as_secs_f64());
        let after = options.server_pid.map(processor::seconds).transpose()?;
        measured
            .processor
            .extend(before.zip(after).map(|(before, after)| after - before));
    }
    measured.result = match &outcome {
        Outcome::Answer(answer) => format!("{} rows", answer.rows.len()),
        Outcome::Error(error) => {
            measured.wall.clear();
            measured.processor.clear();
            error.clone()
        }
    };
    Ok((measured, outcome))
}

/// The rows of a query, or what the server says against it. A broken connection is an error of the run.
fn ask(client: &mut Client, text: &str) -> Result<Outcome> {
    match texts(client, text) {
        Ok((columns, rows)) => Ok(Outcome::Answer(Answer { columns, rows })),
        Err(Error::Sql(error)) if error.as_db_error().is_some() => Ok(Outcome::Error(Error::Sql(error).to_string())),
        Err(error) => Err(error),
    }
}

fn tell(options: &Options, measured: &[Measured]) -> Result<()> {
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let row = |its: &Measured| {
        let [low, high] = [f64::min, f64::max].map(|best| its.wall.iter().copied().reduce(best).unwrap_or(f64::NAN));
        let or_none = |values: &[f64]| {
            if values.is_empty() {
                "-".into()
            } else {
                ms(median(values))
            }
        };
        vec![
            format!("q{:02}", its.query),
            or_none(&its.wall),
            if its.wall.is_empty() {
                "-".into()
            } else {
                format!("{} to {}", ms(low), ms(high))
            },
            or_none(&its.processor),
            its.result.lines().next().unwrap_or_default().to_string(),
            its.verdict.clone().unwrap_or_else(|| "-".into()),
        ]
    };
    let header = ["query", "wall ms", "least, most", "processor ms", "result", "compared"];
    println!("{}", lay_out(&header, &measured.iter().map(row).collect::<Vec<_>>()));
    println!("{}", totals(options, measured));
    write(options, measured)
}

/// The last line: sums of the medians.
fn totals(options: &Options, measured: &[Measured]) -> String {
    let sum = |of: fn(&Measured) -> &[f64]| -> f64 {
        let medians = measured.iter().map(|its| median(of(its)));
        medians.filter(|seconds| seconds.is_finite()).sum()
    };
    let processor = match options.server_pid {
        Some(_) => format!(", {:.2} s of the server's processor", sum(|its| &its.processor)),
        None => String::new(),
    };
    let answered = measured.iter().filter(|its| !its.wall.is_empty()).count();
    format!(
        "scale {}: {answered} of {} queries answered in {:.2} s{processor}; medians of {}",
        options.scale,
        measured.len(),
        sum(|its| &its.wall),
        options.repetitions
    )
}

fn write(options: &Options, measured: &[Measured]) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let raw = options.out.join("tpch.json");
    let text = serde_json::to_string_pretty(measured).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing tpch.json")?;
    let middle = |its: &Measured| {
        if its.wall.is_empty() {
            0.0
        } else {
            1e3 * median(&its.wall)
        }
    };
    let bars = Bars {
        title: format!("TPC-H, scale {} (measured)", options.scale),
        unit: "milliseconds".into(),
        labels: measured.iter().map(|its| its.query.to_string()).collect(),
        series: vec![("wall time".into(), measured.iter().map(middle).collect())],
    };
    let [svg, png] = crate::plot::bars(&options.out.join("tpch"), &bars)?;
    println!("plots: {} {}   data: {}", svg.display(), png.display(), raw.display());
    Ok(())
}

/// How long a query may take unless told.
pub const TIMEOUT: Duration = Duration::from_secs(300);
