//! The demonstration: a server is killed in the middle of a write load, twice: with its buffer pool in a CXL region,
//! which outlives it, and in private memory, which does not.

use crate::ledger::{self, Transfers, Verdict};
use crate::load::{self, BUCKET_MS, Progress};
use crate::plot::{Line, Panel};
use crate::quarters::Quarters;
use crate::server::{CenoteOptions, RegionFile, Server};
use crate::table::{lay_out, thousands};
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

/// Runs the demonstration, prints what happens, writes plots; an error if anything acknowledged was lost.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process. [`crate::Error::Lost`] if anything acknowledged was lost.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let mut all = Vec::new();
    for (memory, title) in [
        ("cxl", "buffer pool in a CXL region: instant recovery"),
        ("dram", "classic buffer pool: log replay, cold cache"),
    ] {
        println!("\n== {title} ==");
        all.push(show(options, memory)?);
    }
    report(options, &all)?;
    all.iter().try_for_each(|shown| shown.verdict.must_hold())?;
    println!("Nothing that was acknowledged is lost, and no transfer is half there.");
    Ok(())
}

fn show(options: &Options, memory: &str) -> Result<Shown> {
    let data = options.out.join(format!("data-{memory}"));
    remove_dir(&data)?;
    let server = CenoteOptions {
        program: options.program.clone(),
        data: data.clone(),
        memory: memory.into(),
        memory_size: options.memory_size.clone(),
        port: crate::server::free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    let running = Server::cenote(&server)?;
    println!(
        "started process {} on port {}, ready after {:.1} ms",
        running.id(),
        running.port,
        ms(running.ready)
    );
    fill(&running, options.accounts)?;
    let shown = kill_under_load(options, &server, running)?;
    remove_dir(&data)?;
    Ok(shown)
}

fn remove_dir(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(format!("removing {}", path.display())),
        _ => Ok(()),
    }
}

fn fill(server: &Server, accounts: i64) -> Result<()> {
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

/// Kills `running` under load, restarts it, checks what it holds and stops it.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process.
pub fn kill_under_load(options: &Options, server: &CenoteOptions, mut running: Server) -> Result<Shown> {
    let progress = Progress::new(options.before + options.after + Duration::from_secs(120));
    let workloads = (0..options.threads)
        .map(|w| Transfers::new(w, options.accounts, 4, 42))
        .collect();
    let workers = load::run(server.port, &progress, workloads);
    let mut screen = Screen::stdout();
    screen.watch(&progress, options.before);
    let killed_at = progress.elapsed();
    running.kill();
    println!("{:6.2} s  SIGKILL", killed_at.as_secs_f64());
    let exec_at = progress.elapsed();
    let restarted = Server::cenote(server)?;
    println!(
        "{:6.2} s  ready again, {:.1} ms after exec",
        progress.elapsed().as_secs_f64(),
        ms(restarted.ready)
    );
    screen.watch(&progress, progress.elapsed() + options.after);
    progress.stop();
    let results = load::join(workers);
    let mut client = load::connect(server.port)?;
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
        memory: server.memory.clone(),
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

fn ms(duration: Duration) -> f64 {
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

fn report(options: &Options, all: &[Shown]) -> Result<()> {
    println!("\n{}", table(all));
    for shown in all {
        let fields: Vec<String> = shown.report.iter().map(|(k, v)| format!("{k}={v}")).collect();
        println!("recovery with --memory {}: {}", shown.memory, fields.join("  "));
    }
    let json = options.out.join("demo.json");
    let text = serde_json::to_string_pretty(all).map_err(|e| crate::Error::Plot(e.to_string()))?;
    std::fs::write(&json, text).context("writing demo.json")?;
    let [svg, png] = crate::plot::panels(&options.out.join("demo"), &all.iter().map(panel).collect::<Vec<_>>())?;
    println!(
        "plots: {} {}   data: {}\n",
        svg.display(),
        png.display(),
        json.display()
    );
    Ok(())
}

/// The figures of each run, side by side.
pub fn table(all: &[Shown]) -> String {
    let header = [
        "",
        "tx/s before",
        "ready, ms",
        "first answer, ms",
        "90% again, ms",
        "acknowledged",
        "lost",
        "half done",
    ];
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|s| {
            vec![
                format!("--memory {}", s.memory),
                thousands(s.rate_before),
                format!("{:.1}", s.ready_ms),
                format!("{:.0}", s.first_answer_ms),
                s.recovered_ms.map_or("not in time".into(), |m| format!("{m:.0}")),
                thousands(s.verdict.acknowledged as f64),
                s.verdict.lost.to_string(),
                (s.verdict.unexpected + s.verdict.wrong_balances).to_string(),
            ]
        })
        .collect();
    lay_out(&header, &rows)
}

fn panel(shown: &Shown) -> Panel {
    const TENTH: usize = 5;
    let points = shown.buckets.chunks(TENTH).enumerate().map(|(i, chunk)| {
        let seconds = (i * TENTH) as f64 * BUCKET_MS as f64 / 1000.0;
        (
            seconds,
            f64::from(chunk.iter().sum::<u32>()) * 1000.0 / (chunk.len() as f64 * BUCKET_MS as f64),
        )
    });
    let mode = shown.report.iter().find(|(k, _)| k == "mode").map_or("?", |(_, v)| v);
    Panel {
        title: format!(
            "--memory {}: recovery '{mode}', ready in {:.0} ms",
            shown.memory, shown.ready_ms
        ),
        unit: "transactions / s".into(),
        lines: vec![Line {
            name: "transactions".into(),
            points: points.collect(),
        }],
        marks: vec![(shown.killed_at, "SIGKILL".into())],
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
