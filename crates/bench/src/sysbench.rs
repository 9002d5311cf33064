//! sysbench as a child process: its command lines, and what it prints, read.

use crate::{Error, IoContext, Result};
use std::path::PathBuf;
use std::process::Command;

/// The five OLTP workloads, in the order in which they are run.
pub const WORKLOADS: [&str; 5] = [
    "oltp_point_select",
    "oltp_read_only",
    "oltp_read_write",
    "oltp_update_non_index",
    "oltp_write_only",
];

/// How a server is reached.
#[derive(Clone, Debug)]
pub struct Target {
    /// For tables.
    pub name: String,
    /// `pgsql` or `mysql`.
    pub driver: &'static str,
    /// Address, or the directory of a Unix socket.
    pub host: String,
    /// Port, which names a Unix socket too.
    pub port: u16,
    /// User name.
    pub user: String,
    /// Database name.
    pub database: String,
}

/// The size of the data and of the load.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Tables `sbtest1..n`.
    pub tables: u32,
    /// Rows a table.
    pub rows: u32,
    /// Client threads.
    pub threads: u32,
    /// Seconds a measurement.
    pub seconds: u32,
}

/// One measurement.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Measured {
    /// Transactions a second.
    pub tps: f64,
    /// Statements a second.
    pub qps: f64,
    /// Latency of a transaction in milliseconds, median.
    pub p50_ms: f64,
    /// Latency of a transaction in milliseconds, 99th percentile.
    pub p99_ms: f64,
    /// Errors that sysbench went on after.
    pub errors: u64,
}

fn command(program: &PathBuf, target: &Target, shape: &Shape, workload: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(workload);
    command.arg(format!("--db-driver={}", target.driver));
    let prefix = target.driver;
    command.arg(format!("--{prefix}-host={}", target.host));
    command.arg(format!("--{prefix}-port={}", target.port));
    command.arg(format!("--{prefix}-user={}", target.user));
    command.arg(format!("--{prefix}-db={}", target.database));
    command
        .arg(format!("--tables={}", shape.tables))
        .arg(format!("--table-size={}", shape.rows));
    command
}

fn output(mut command: Command, what: &str) -> Result<String> {
    let output = command.output().context(format!("starting {what}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(text);
    }
    Err(Error::Output {
        tool: what.into(),
        what: "result".into(),
        tail: tail(&text),
    })
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Creates and fills the tables.
///
/// # Errors
/// [`Error::Output`] or [`Error::Io`] if sysbench fails or cannot be started.
pub fn prepare(program: &PathBuf, target: &Target, shape: &Shape) -> Result<()> {
    let mut command = command(program, target, shape, "oltp_read_write");
    command.arg("--threads=2").arg("prepare");
    output(command, &format!("sysbench prepare on {}", target.name)).map(drop)
}

/// Runs one workload.
///
/// # Errors
/// As of [`prepare`]; [`Error::Output`] if its report cannot be read.
pub fn run(program: &PathBuf, target: &Target, shape: &Shape, workload: &str) -> Result<Measured> {
    let mut command = command(program, target, shape, workload);
    command
        .arg(format!("--threads={}", shape.threads))
        .arg(format!("--time={}", shape.seconds));
    command.args(["--histogram=on", "--report-interval=0", "run"]);
    let text = output(command, &format!("sysbench {workload} on {}", target.name))?;
    parse(&text).ok_or_else(|| Error::Output {
        tool: "sysbench".into(),
        what: "throughput".into(),
        tail: tail(&text),
    })
}

/// Reads a report of sysbench 1.0.
pub fn parse(text: &str) -> Option<Measured> {
    let per_second = |label: &str| {
        let line = text.lines().find(|l| l.trim_start().starts_with(label))?;
        line.split('(').nth(1)?.split_whitespace().next()?.parse::<f64>().ok()
    };
    let errors = text.lines().find(|l| l.trim_start().starts_with("ignored errors:"));
    let errors = errors
        .and_then(|l| l.split(':').nth(1)?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let histogram = histogram(text);
    Some(Measured {
        tps: per_second("transactions:")?,
        qps: per_second("queries:")?,
        p50_ms: percentile(&histogram, 0.50),
        p99_ms: percentile(&histogram, 0.99),
        errors,
    })
}

/// Lines such as `       0.131 |****        2345`: (milliseconds, count).
fn histogram(text: &str) -> Vec<(f64, u64)> {
    let line = |l: &str| {
        let (value, rest) = l.split_once('|')?;
        Some((
            value.trim().parse().ok()?,
            rest.split_whitespace().last()?.trim_start_matches('*').parse().ok()?,
        ))
    };
    text.lines().filter_map(line).collect()
}

fn percentile(histogram: &[(f64, u64)], share: f64) -> f64 {
    let total: u64 = histogram.iter().map(|h| h.1).sum();
    let mut seen = 0;
    for (value, count) in histogram {
        seen += count;
        if seen as f64 >= total as f64 * share {
            return *value;
        }
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = "Latency histogram (values are in milliseconds)\n       value  ------------- distribution ------------- count\n\
                           0.125 |**********                               90\n       0.250 |*                                        9\n\
                           9.000 |                                         1\n SQL statistics:\n    transactions:   100    (10.00 per sec.)\n    \
                    queries:    2000   (200.50 per sec.)\n    ignored errors:   3      (0.00 per sec.)\n";
        let measured = parse(text).expect("a whole report");
        assert_eq!((measured.tps, measured.qps, measured.errors), (10.0, 200.5, 3));
        assert_eq!((measured.p50_ms, measured.p99_ms), (0.125, 0.25));
        assert!(parse("FATAL: no connection").is_none());
    }
}
