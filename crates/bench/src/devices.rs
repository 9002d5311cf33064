//! One server on several devices: what a workload loses on slower memory, by emulated latency.
//!
//! The same database and the same warm region, opened by `cenote run --device NAME` for one device after the other, in
//! rounds; clients select rows by key, at random, from more than the modelled processor cache holds. Each figure is
//! labelled `emulated`.

use crate::load::{self, Progress, Workload};
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::table::{lay_out, median, thousands};
use crate::{Error, IoContext, Result};
use cenote_base::random::Random;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use postgres::{Client, SimpleQueryMessage, Statement};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Memory as it is, for comparison: no `--device`.
const AS_IT_IS: &str = "none";
/// Bytes of a row beside its key.
const ROW_BYTES: usize = 200;
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What is compared, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where the data directory and the results go.
    pub out: PathBuf,
    /// Names or files as `--device` takes them; `none` is the machine's own memory.
    pub devices: Vec<String>,
    /// Rows of the table.
    pub rows: u32,
    /// Rows that a statement selects, side by side.
    pub range: u32,
    /// Client threads.
    pub threads: u32,
    /// Seconds a measurement.
    pub seconds: u64,
    /// Rounds; the median counts.
    pub rounds: u32,
    /// Memory for the buffer pool.
    pub memory_size: String,
}

/// One measurement.
#[derive(Clone, Debug, serde::Serialize)]
struct Measured {
    statements_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Lines that a statement fetched from the device.
    lines: f64,
    /// Microseconds that these took.
    stalled_us: f64,
}

/// Everything measured on one device.
#[derive(serde::Serialize)]
struct Cell {
    device: String,
    emulated: bool,
    rounds: Vec<Measured>,
}

/// Selects rows by key, at random.
struct Selects {
    statement: Option<Statement>,
    random: Random,
    rows: u32,
    range: u32,
}

impl Workload for Selects {
    fn connected(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error> {
        let text = match self.range {
            1 => "SELECT pad FROM device_rows WHERE id = $1",
            _ => "SELECT pad FROM device_rows WHERE id BETWEEN $1 AND $2",
        };
        self.statement = Some(client.prepare(text)?);
        Ok(())
    }

    fn transaction(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error> {
        let id = self.random.below(u64::from(self.rows - self.range + 1)) as i32;
        let last = id + self.range as i32 - 1;
        let statement = self.statement.as_ref().expect("prepared when it connected");
        match self.range {
            1 => client.query(statement, &[&id]).map(drop),
            _ => client.query(statement, &[&id, &last]).map(drop),
        }
    }
}

/// Runs the comparison, prints a table, writes it and the raw figures.
///
/// # Errors
/// [`Error::Server`] if a server does not start, answer or stop; [`Error::Sql`] if a statement fails; [`Error::Io`] of
/// a file or process. [`Error::Lost`] with the first failed statement of the load.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let server = CenoteOptions {
        program: options.program.clone(),
        data: options.out.join("devices-data"),
        memory: "cxl".into(),
        memory_size: options.memory_size.clone(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    prepare(options, &server)?;
    let mut cells: Vec<Cell> = options.devices.iter().map(|name| cell(name)).collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left").expect("a constant template");
    let bar = ProgressBar::new(u64::from(options.rounds) * cells.len() as u64).with_style(style);
    for _ in 0..options.rounds {
        for cell in &mut cells {
            bar.set_message(cell.device.clone());
            cell.rounds.push(measure(options, &server, &cell.device)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    report(options, &cells)
}

fn cell(name: &str) -> Cell {
    Cell {
        device: name.into(),
        emulated: name != AS_IT_IS,
        rounds: Vec::new(),
    }
}

fn prepare(options: &Options, server: &CenoteOptions) -> Result<()> {
    println!("making a table of {} rows ...", thousands(f64::from(options.rows)));
    let running = Server::cenote(server)?;
    let mut client = load::connect(server.port)?;
    client
        .batch_execute("DROP TABLE IF EXISTS device_rows; CREATE TABLE device_rows (id int PRIMARY KEY, pad text)")?;
    let mut copy = client.copy_in("COPY device_rows FROM STDIN")?;
    let pad = "x".repeat(ROW_BYTES);
    for id in 0..options.rows {
        writeln!(copy, "{id}\t{pad}").context("copying rows")?;
    }
    copy.finish()?;
    running.stop(STOP_LIMIT);
    Ok(())
}

fn measure(options: &Options, server: &CenoteOptions, device: &str) -> Result<Measured> {
    let arguments = ["--device", device];
    let running = Server::cenote_with(server, if device == AS_IT_IS { &[] } else { &arguments })?;
    let mut client = load::connect(server.port)?;
    // The first run brings the pages into the pool and their lines into the modelled cache.
    load_for(options, server.port, Duration::from_secs(options.seconds.div_ceil(4)))?;
    let before = counted(&mut client)?;
    let latency_us = load_for(options, server.port, Duration::from_secs(options.seconds))?;
    let after = counted(&mut client)?;
    running.stop(STOP_LIMIT);
    let statements = latency_us.len().max(1) as f64;
    Ok(Measured {
        statements_per_second: statements / options.seconds as f64,
        p50_us: latency_us.value_at_quantile(0.50) as f64,
        p99_us: latency_us.value_at_quantile(0.99) as f64,
        lines: (after.0 - before.0) / statements,
        stalled_us: (after.1 - before.1) * 1e3 / statements,
    })
}

fn load_for(options: &Options, port: u16, time: Duration) -> Result<Histogram<u64>> {
    let progress = Progress::new(time);
    let selects = (0..options.threads).map(|thread| Selects {
        statement: None,
        random: Random(u64::from(thread) << 32),
        rows: options.rows,
        range: options.range,
    });
    let workers = load::run(port, &progress, selects.collect());
    let mut all = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant bounds are valid");
    for worker in load::join(workers) {
        if let Some(error) = worker.errors.into_iter().next() {
            return Err(Error::Lost(error));
        }
        all.add(worker.latency_us).expect("the same bounds");
    }
    Ok(all)
}

/// Lines fetched and milliseconds that they took, as the server counts; zero where nothing is emulated.
fn counted(client: &mut Client) -> Result<(f64, f64)> {
    let answer = client.simple_query("CENOTE SHOW cenote_memory")?;
    let rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let sums = rows.map(|row| {
        let number = |column: &str| row.get(column).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        (number("lines_read") + number("lines_written"), number("stalled_ms"))
    });
    Ok(sums.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1)))
}

fn report(options: &Options, cells: &[Cell]) -> Result<()> {
    let pick = |cell: &Cell, f: fn(&Measured) -> f64| median(&cell.rounds.iter().map(f).collect::<Vec<_>>());
    let first = cells
        .first()
        .map_or(0.0, |cell| pick(cell, |m| m.statements_per_second));
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|cell| {
            let rate = pick(cell, |m| m.statements_per_second);
            let label = if cell.emulated {
                "emulated "
            } else {
                "measured, no device: "
            };
            let name = if cell.emulated {
                cell.device.as_str()
            } else {
                "own memory"
            };
            vec![
                format!("{label}{name}"),
                thousands(rate),
                format!("{:.2}", rate / first.max(1e-9)),
                format!("{:.0}", pick(cell, |m| m.p50_us)),
                format!("{:.0}", pick(cell, |m| m.p99_us)),
                format!("{:.1}", pick(cell, |m| m.lines)),
                format!("{:.1}", pick(cell, |m| m.stalled_us)),
            ]
        })
        .collect();
    let header = [
        "memory",
        "statements/s",
        "to the first",
        "p50 us",
        "p99 us",
        "lines missed",
        "stalled us",
    ];
    let text = format!(
        "{}\n{} threads, {} row(s) a statement of {} rows of {ROW_BYTES} bytes, {} rounds of {} s (median), pool of {} \
         on this machine; lines and stall are a statement's\n",
        lay_out(&header, &rows),
        options.threads,
        options.range,
        thousands(f64::from(options.rows)),
        options.rounds,
        options.seconds,
        options.memory_size
    );
    println!("{text}");
    let write =
        |name: &str, content: &str| std::fs::write(options.out.join(name), content).context(format!("writing {name}"));
    write("devices.txt", &text)?;
    write(
        "devices.json",
        &serde_json::to_string_pretty(cells).expect("plain figures"),
    )
}
