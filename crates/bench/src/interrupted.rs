//! A server under load that ends, and its successor: what a client sees of it, and what is lost.

use crate::ledger::{self, Transfers, Verdict};
use crate::load::{self, BUCKET_MS, Progress};
use crate::quarters::Quarters;
use crate::server::Server;
use crate::table::thousands;
use crate::{IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is shown, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where plots and reports go.
    pub out: PathBuf,
    /// Accounts that transfers move between.
    pub accounts: i64,
    /// Client threads.
    pub threads: i64,
    /// Load before the kill.
    pub before: Duration,
    /// Load after the restart.
    pub after: Duration,
    /// Of the buffer pool.
    pub memory_size: String,
}

/// One kind of memory, killed and restarted under load.
#[derive(serde::Serialize)]
pub struct Shown {
    /// `cxl` or `dram`.
    pub memory: String,
    /// Transactions in each 10 ms.
    pub buckets: Vec<u32>,
    /// When the server was killed, seconds since the load began.
    pub killed_at: f64,
    /// From the loss of a host until the pool had it confirmed, in milliseconds; `None` where no host was lost.
    pub confirmed_ms: Option<f64>,
    /// Share of page requests that found their page in memory in the first second after the new server was ready.
    pub hit_rate: f64,
    /// From exec of the new server to its `ready` line, in milliseconds.
    pub ready_ms: f64,
    /// From exec of the new server to the first acknowledged transaction, in milliseconds.
    pub first_answer_ms: f64,
    /// From exec until a tenth of a second reached 90% of the rate of before, in milliseconds.
    pub recovered_ms: Option<f64>,
    /// Transactions a second before the kill.
    pub rate_before: f64,
    /// The server's own report, the lines of `cenote_recovery`.
    pub report: Vec<(String, String)>,
    /// What the check found.
    pub verdict: Verdict,
}

/// The server that goes on.
pub(crate) struct Successor {
    /// From the end of the former one until it was sure to be over.
    pub confirmed_ms: Option<f64>,
    /// When it was started, since the load began.
    pub exec_at: Duration,
    /// Itself.
    pub server: Server,
}

/// Puts `running` under load, ends it by `end`, which starts its successor; checks what that holds and stops it.
///
/// # Errors
/// Those of `end`; [`crate::Error::Server`] if a server does not stop, [`crate::Error::Sql`] if a statement fails.
pub(crate) fn interrupt(
    options: &Options,
    memory: &str,
    running: Server,
    end: impl FnOnce(&Progress, Server) -> Result<Successor>,
) -> Result<Shown> {
    let port = running.port;
    let progress = Progress::new(options.before + options.after + Duration::from_secs(120));
    let workloads = (0..options.threads)
        .map(|w| Transfers::new(w, options.accounts, 4, 42))
        .collect();
    let workers = load::run(port, &progress, workloads);
    let mut screen = Screen::stdout();
    screen.watch(&progress, options.before);
    let killed_at = progress.elapsed();
    let successor = end(&progress, running)?;
    let (restarted, exec_at) = (successor.server, successor.exec_at);
    println!(
        "{:6.2} s  ready again, {:.1} ms after exec",
        progress.elapsed().as_secs_f64(),
        ms(restarted.ready)
    );
    screen.watch(
        &progress,
        progress.elapsed() + options.after.min(Duration::from_secs(1)),
    );
    let hit_rate = hit_rate(&mut load::connect(port)?)?;
    screen.watch(&progress, progress.elapsed() + options.after);
    progress.stop();
    let results = load::join(workers);
    let mut client = load::connect(port)?;
    let report = recovery_report(&mut client)?;
    let verdict = ledger::verify(&mut client, options.accounts, results.iter().map(|r| &r.workload))?;
    let errors: Vec<&String> = results.iter().flat_map(|r| &r.errors).take(3).collect();
    if !errors.is_empty() {
        println!("statements that failed: {errors:?}");
    }
    let ready_ms = ms(restarted.ready);
    drop(client);
    restarted.stop(Duration::from_secs(30));
    let (killed_at, exec_at) = (killed_at.as_secs_f64(), exec_at.as_secs_f64());
    let buckets = until(progress.buckets(), progress.elapsed());
    Ok(Shown {
        memory: memory.into(),
        confirmed_ms: successor.confirmed_ms,
        hit_rate,
        rate_before: rate(&buckets, (killed_at - 1.0).max(0.0), killed_at),
        first_answer_ms: first_answer_ms(&buckets, exec_at),
        recovered_ms: recovered_ms(&buckets, killed_at, exec_at),
        buckets,
        killed_at,
        ready_ms,
        report,
        verdict,
    })
}

/// Where the rate of a load is shown.
struct Screen<W> {
    out: W,
    /// It shows one line, which changes; anything else gets a line each quarter.
    terminal: bool,
}

impl Screen<std::io::Stdout> {
    fn stdout() -> Self {
        let out = std::io::stdout();
        let terminal = out.is_terminal();
        Screen { out, terminal }
    }
}

impl<W: Write> Screen<W> {
    /// Shows the rate, which is looked at every tenth of a second, until `end` (since the load began).
    fn watch(&mut self, progress: &Progress, end: Duration) {
        let begin = progress.elapsed();
        let all = end.saturating_sub(begin);
        let (mut peak, mut quarters) = (1.0_f64, Quarters::default());
        while progress.elapsed() < end {
            std::thread::sleep(Duration::from_millis(100));
            let rate = progress.rate(Duration::from_millis(200));
            peak = peak.max(rate);
            let now = progress.elapsed();
            let shown = format!("{:6.2} s  {:>8} transactions/s", now.as_secs_f64(), thousands(rate));
            let done = now.saturating_sub(begin);
            // An output that cannot be written to shows nothing; the run goes on.
            let _ = if self.terminal {
                let bar = "#".repeat((rate / peak * 40.0) as usize);
                write!(self.out, "\r{shown}  {bar:<40}").and_then(|()| self.out.flush())
            } else if quarters
                .due(done.as_millis() as u64, all.as_millis() as u64, done)
                .is_some()
            {
                writeln!(self.out, "{shown}")
            } else {
                Ok(())
            };
        }
        if self.terminal && !all.is_zero() {
            let _ = writeln!(self.out);
        }
    }
}

/// The rows of the view `cenote_recovery` as (name, value).
///
/// # Errors
/// [`crate::Error::Sql`] if the view cannot be read.
pub fn recovery_report(client: &mut postgres::Client) -> Result<Vec<(String, String)>> {
    let mut report = Vec::new();
    for message in client.simple_query("SELECT * FROM cenote_recovery")? {
        if let postgres::SimpleQueryMessage::Row(row) = message {
            let columns = row.columns().iter().enumerate();
            report.extend(columns.map(|(i, c)| (c.name().to_string(), row.get(i).unwrap_or("").to_string())));
        }
    }
    Ok(report)
}

/// Share of page requests since the server's start that found their page in a frame.
fn hit_rate(client: &mut postgres::Client) -> Result<f64> {
    let mut sums = [0.0, 0.0];
    for message in client.simple_query("SELECT hits, misses FROM cenote_memory")? {
        if let postgres::SimpleQueryMessage::Row(row) = message {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += row.get(i).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
            }
        }
    }
    Ok(sums[0] / (sums[0] + sums[1]).max(1.0))
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn until(mut buckets: Vec<u32>, elapsed: Duration) -> Vec<u32> {
    buckets.truncate((elapsed.as_millis() as u64 / BUCKET_MS) as usize);
    while buckets.last() == Some(&0) {
        buckets.pop();
    }
    buckets
}

/// Transactions a second between two moments (seconds).
pub fn rate(buckets: &[u32], from: f64, to: f64) -> f64 {
    let index = |s: f64| ((s * 1000.0) as usize / BUCKET_MS as usize).min(buckets.len());
    let span = &buckets[index(from)..index(to).max(index(from))];
    if span.is_empty() {
        0.0
    } else {
        f64::from(span.iter().sum::<u32>()) * 1000.0 / (span.len() as f64 * BUCKET_MS as f64)
    }
}

/// From exec to the end of the first bucket with a finished transaction.
pub fn first_answer_ms(buckets: &[u32], exec_at: f64) -> f64 {
    let exec = (exec_at * 1000.0 / BUCKET_MS as f64) as usize;
    let first = (exec..buckets.len()).find(|i| buckets[*i] > 0).unwrap_or(buckets.len());
    ((first + 1) as f64 * BUCKET_MS as f64 - exec_at * 1000.0).max(0.0)
}

/// From exec to the first tenth of a second with 90% of the rate of the last two seconds before the kill.
pub fn recovered_ms(buckets: &[u32], killed_at: f64, exec_at: f64) -> Option<f64> {
    let before = rate(buckets, (killed_at - 2.0).max(0.0), killed_at);
    let tenths = (buckets.len() as f64 * BUCKET_MS as f64 / 1000.0 - exec_at) * 10.0;
    (0..tenths.max(0.0) as usize)
        .map(|t| exec_at + t as f64 / 10.0)
        .find(|t| rate(buckets, *t, t + 0.1) >= 0.9 * before)
        .map(|t| (t + 0.1 - exec_at) * 1000.0)
}

pub(crate) fn fill(server: &Server, accounts: i64) -> Result<()> {
    let style = ProgressStyle::with_template("loading  {bar:40} {pos}/{len} rows").expect("a constant template");
    let bar = ProgressBar::new(accounts as u64).with_style(style);
    let mut client = load::connect(server.port)?;
    let (mut quarters, began) = (Quarters::default(), Instant::now());
    ledger::prepare(&mut client, accounts, |rows| {
        bar.set_position(rows);
        if bar.is_hidden()
            && let Some(percent) = quarters.due(rows, accounts as u64, began.elapsed())
        {
            println!("loading  {percent:>3}% of {} rows", thousands(accounts as f64));
        }
    })?;
    bar.finish();
    Ok(())
}

pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(format!("removing {}", path.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `make demo > log` left one line of 8,000 characters: the rate was written ten times a second behind a carriage
    /// return.
    #[test]
    fn an_output_that_is_no_terminal_gets_lines() {
        let progress = Progress::new(Duration::from_secs(5));
        let shown = |terminal| {
            let mut screen = Screen {
                out: Vec::new(),
                terminal,
            };
            screen.watch(&progress, progress.elapsed() + Duration::from_millis(350));
            String::from_utf8(screen.out).expect("text")
        };
        let plain = shown(false);
        assert!(!plain.contains('\r'), "{plain:?}");
        assert_eq!(plain.lines().count(), 1, "{plain:?}");
        let drawn = shown(true);
        assert!(drawn.starts_with('\r') && drawn.ends_with('\n'), "{drawn:?}");
    }

    #[test]
    fn gaps_are_measured_from_exec() {
        // 1 s at 10 a bucket, 0.2 s of nothing, then again; the server was started 50 ms after it died.
        let mut buckets = vec![10; 100];
        buckets.extend([0; 20]);
        buckets.extend([10; 100]);
        assert_eq!(rate(&buckets, 0.0, 1.0), 1000.0);
        assert_eq!(first_answer_ms(&buckets, 1.05).round(), 160.0);
        assert_eq!(recovered_ms(&buckets, 1.0, 1.05).map(f64::round), Some(300.0));
        assert_eq!(recovered_ms(&buckets[..120], 1.0, 1.05), None);
    }
}
