//! Processor time of a Cenote server a statement: sysbench's statements, one kind at a time, over the wire.
//!
//! The kernel counts the nanoseconds that the server's threads ran (`/proc/PID/task/*/schedstat`): user and system time
//! of protocol, statement and engine, without the client's. Writes come in transactions of [`WRITES`], so that making
//! the log durable, which sessions share under load, hardly counts. `reproduce` takes these numbers as an input; see
//! `reproduce::cost`.

use crate::load;
use crate::server::{CenoteOptions, RegionFile, Server, cenote_program, free_port};
use crate::table::lay_out;
use crate::{IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::types::ToSql;
use postgres::{Client, Statement};
use std::path::Path;
use std::time::{Duration, Instant};

const ROWS: i32 = 100_000;
const LENGTH_C: usize = 120;
/// Writes of a transaction.
const WRITES: u64 = 50;

/// A kind of statement: its name, its text, its parameters.
type Kind = (&'static str, &'static str, fn(&mut u64) -> Vec<Box<dyn ToSql + Sync>>);

fn random(state: &mut u64) -> i32 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    1 + ((*state >> 33) % ROWS as u64) as i32
}

fn text(len: usize) -> String {
    "0123456789-".chars().cycle().take(len).collect()
}

fn one_id(state: &mut u64) -> Vec<Box<dyn ToSql + Sync>> {
    vec![Box::new(random(state))]
}

const KINDS: [Kind; 5] = [
    ("point-select", "SELECT c FROM sbtest1 WHERE id = $1", one_id),
    (
        "range-select",
        "SELECT c FROM sbtest1 WHERE id BETWEEN $1 AND $1 + 99",
        one_id,
    ),
    ("update, index", "UPDATE sbtest1 SET k = k + 1 WHERE id = $1", one_id),
    ("update, no index", "UPDATE sbtest1 SET c = $2 WHERE id = $1", |s| {
        vec![Box::new(random(s)), Box::new(text(LENGTH_C))]
    }),
    ("delete and insert", "", one_id),
];

/// Starts a server in a folder, measures each kind for so long, prints microseconds a statement.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process.
pub fn run(dir: &Path, seconds: u64) -> Result<()> {
    let server = CenoteOptions {
        program: cenote_program()?,
        data: dir.to_owned(),
        memory: "cxl".into(),
        memory_size: "512MiB".into(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    let running = Server::cenote(&server)?;
    let mut client = load::connect(server.port)?;
    prepare(&mut client)?;
    let mut rows = Vec::new();
    for kind in &KINDS {
        let micros = measure(&mut client, running.id(), kind, Duration::from_secs(seconds))?;
        rows.push(vec![kind.0.to_string(), format!("{micros:.1}")]);
    }
    let micros = transactions(&mut client, running.id(), Duration::from_secs(seconds))?;
    rows.push(vec!["BEGIN and COMMIT of a read".into(), format!("{micros:.1}")]);
    println!("\n{}", lay_out(&["statement", "us of the server's processor"], &rows));
    Ok(())
}

fn prepare(client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE sbtest1 (id INTEGER PRIMARY KEY, k INTEGER NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)",
    )?;
    let bar = ProgressBar::new(ROWS as u64).with_message("filling");
    bar.set_style(ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}").expect("a valid template"));
    let (c, pad) = (text(LENGTH_C), text(60));
    for first in (1..=ROWS).step_by(500) {
        let row = |id: i32| format!("({id}, {}, '{c}', '{pad}')", (id.wrapping_mul(7919)).rem_euclid(ROWS));
        let rows: Vec<String> = (first..first + 500).map(row).collect();
        client.batch_execute(&format!("INSERT INTO sbtest1 VALUES {}", rows.join(",")))?;
        bar.inc(500);
    }
    client.batch_execute("CREATE INDEX k_1 ON sbtest1 (k)")?;
    bar.finish_and_clear();
    Ok(())
}

/// Nanoseconds that the process's threads have run.
fn processor_ns(pid: u32) -> Result<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("reading the server's threads")?;
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Ok(tasks.flatten().filter_map(|t| of(t.path())).sum())
}

/// Runs `step` again and again; microseconds of the server's processor a turn.
fn timed(pid: u32, limit: Duration, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WRITES {
        step()?;
    }
    let (before, start, mut count) = (processor_ns(pid)?, Instant::now(), 0u64);
    while start.elapsed() < limit {
        step()?;
        count += 1;
    }
    Ok((processor_ns(pid)? - before) as f64 / count as f64 / 1e3)
}

fn measure(client: &mut Client, pid: u32, kind: &Kind, limit: Duration) -> Result<f64> {
    let mut state = 7;
    if kind.1.is_empty() {
        return delete_and_insert(client, pid, limit);
    }
    let statement = client.prepare(kind.1)?;
    if !statement.columns().is_empty() {
        return timed(pid, limit, || execute(client, &statement, (kind.2)(&mut state)));
    }
    let turn = timed(pid, limit, || {
        client.batch_execute("BEGIN")?;
        for _ in 0..WRITES {
            execute(client, &statement, (kind.2)(&mut state))?;
        }
        Ok(client.batch_execute("COMMIT")?)
    })?;
    Ok(turn / WRITES as f64)
}

fn execute(client: &mut Client, statement: &Statement, values: Vec<Box<dyn ToSql + Sync>>) -> Result<()> {
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(AsRef::as_ref).collect();
    if statement.columns().is_empty() {
        client.execute(statement, &values)?;
    } else {
        client.query(statement, &values)?;
    }
    Ok(())
}

fn delete_and_insert(client: &mut Client, pid: u32, limit: Duration) -> Result<f64> {
    let delete = client.prepare("DELETE FROM sbtest1 WHERE id = $1")?;
    let insert = client.prepare("INSERT INTO sbtest1 VALUES ($1, $2, $3, $4)")?;
    let (c, pad) = (text(LENGTH_C), text(60));
    let mut state = 11;
    let turn = timed(pid, limit, || {
        client.batch_execute("BEGIN")?;
        for _ in 0..WRITES {
            let id = random(&mut state);
            client.execute(&delete, &[&id])?;
            client.execute(&insert, &[&id, &random(&mut state), &c, &pad])?;
        }
        Ok(client.batch_execute("COMMIT")?)
    })?;
    Ok(turn / WRITES as f64)
}

/// BEGIN, a point-select, COMMIT; the point-select's own time is to be taken away by the reader.
fn transactions(client: &mut Client, pid: u32, limit: Duration) -> Result<f64> {
    let [begin, commit, point] = ["BEGIN", "COMMIT", KINDS[0].1].map(|text| client.prepare(text));
    let (begin, commit, point) = (begin?, commit?, point?);
    let mut state = 13;
    timed(pid, limit, || {
        client.execute(&begin, &[])?;
        client.query(&point, &[&random(&mut state)])?;
        client.execute(&commit, &[])?;
        Ok(())
    })
}
