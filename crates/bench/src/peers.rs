//! Cenote beside PostgreSQL and MariaDB: sysbench's five OLTP workloads, alternating, in one run.
//!
//! The comparison is fair where these hold, and the report says how each was set: the same data freshly prepared on
//! each server, the same memory for pages, every commit durable before it is acknowledged, all three running all the
//! time, rounds that alternate between them, the median of the rounds.

use crate::plot::Bars;
use crate::server::{
    self, CenoteOptions, RegionFile, Server, ensure_program, free_port, owned_dir, run_tool, unprivileged,
};
use crate::sysbench::{self, Measured, Shape, Target, WORKLOADS};
use crate::table::{lay_out, median, thousands};
use crate::{Error, IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// What is compared, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where data directories and results go.
    pub out: PathBuf,
    /// Data and load.
    pub shape: Shape,
    /// Rounds; the median counts.
    pub rounds: u32,
    /// Of each server's page cache, MiB.
    pub memory_mib: u32,
    /// Which of [`WORKLOADS`].
    pub workloads: Vec<String>,
    /// Which of `cenote`, `cenote-dram`, `postgresql`, `mariadb`.
    pub servers: Vec<String>,
}

/// Everything measured for one workload on one server.
#[derive(serde::Serialize)]
struct Cell {
    workload: String,
    server: String,
    rounds: Vec<Measured>,
}

/// Runs the comparison, prints tables, writes a plot and the raw figures.
///
/// # Errors
/// [`Error::Server`] if a server does not start, answer or stop; [`Error::Sql`] if a statement fails; [`Error::Io`] of
/// a file or process. [`Error::Missing`] if a peer is not installed and cannot be.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let sysbench = ensure_program("sysbench", "sysbench")?;
    let mut servers = Vec::new();
    let mut targets = Vec::new();
    for name in &options.servers {
        let (server, target) = start(options, name)?;
        servers.push(server);
        println!(
            "preparing {} tables of {} rows on {} ...",
            options.shape.tables,
            thousands(f64::from(options.shape.rows)),
            name
        );
        sysbench::prepare(&sysbench, &target, &options.shape)?;
        targets.push(target);
    }
    let cells = measure(options, &sysbench, &targets)?;
    report(options, &targets, &cells)
}

fn measure(options: &Options, sysbench: &PathBuf, targets: &[Target]) -> Result<Vec<Cell>> {
    let new = |w: &String, t: &Target| Cell {
        workload: w.clone(),
        server: t.name.clone(),
        rounds: Vec::new(),
    };
    let mut cells: Vec<Cell> = options
        .workloads
        .iter()
        .flat_map(|w| targets.iter().map(move |t| new(w, t)))
        .collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left").expect("a constant template");
    let bar = ProgressBar::new(u64::from(options.rounds) * cells.len() as u64).with_style(style);
    for _ in 0..options.rounds {
        for (cell, target) in cells.iter_mut().zip(targets.iter().cycle()) {
            bar.set_message(format!("{} on {}", cell.workload, cell.server));
            cell.rounds
                .push(sysbench::run(sysbench, target, &options.shape, &cell.workload)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

fn report(options: &Options, targets: &[Target], cells: &[Cell]) -> Result<()> {
    let pick = |cell: &Cell, f: fn(&Measured) -> f64| median(&cell.rounds.iter().map(f).collect::<Vec<_>>());
    let mut rows = Vec::new();
    let mut series: Vec<(String, Vec<f64>)> = targets.iter().map(|t| (t.name.clone(), Vec::new())).collect();
    for chunk in cells.chunks(targets.len().max(1)) {
        let first = pick(&chunk[0], |m| m.tps);
        for (cell, line) in chunk.iter().zip(&mut series) {
            let tps = pick(cell, |m| m.tps);
            let errors: u64 = cell.rounds.iter().map(|m| m.errors).sum();
            line.1.push(tps / pick(&chunk[chunk.len() - 1], |m| m.tps).max(1e-9));
            rows.push(vec![
                format!("{:<22} {}", cell.workload, cell.server),
                thousands(tps),
                thousands(pick(cell, |m| m.qps)),
                format!("{:.2}", pick(cell, |m| m.p50_ms)),
                format!("{:.2}", pick(cell, |m| m.p99_ms)),
                format!("{:.2}", first / tps.max(1e-9)),
                errors.to_string(),
            ]);
        }
    }
    let first = targets.first().map_or("", |t| t.name.as_str());
    let against = format!("{first} / it");
    println!(
        "{}",
        lay_out(
            &[
                "workload and server",
                "tx/s",
                "statements/s",
                "p50 ms",
                "p99 ms",
                &against,
                "errors"
            ],
            &rows
        )
    );
    println!(
        "measured on this machine: {} threads, {} tables of {} rows, {} rounds of {} s (median), {} MiB of page cache \
         each, every commit durable",
        options.shape.threads,
        options.shape.tables,
        options.shape.rows,
        options.rounds,
        options.shape.seconds,
        options.memory_mib
    );
    let raw = options.out.join("peers.json");
    let text = serde_json::to_string_pretty(cells).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing peers.json")?;
    let last = targets.last().map_or("", |t| t.name.as_str());
    let bars = Bars {
        title: format!(
            "Transactions a second, {last} = 1 (measured, {} threads)",
            options.shape.threads
        ),
        unit: format!("times {last}"),
        labels: options.workloads.clone(),
        series,
    };
    let [svg, png] = crate::plot::bars(&options.out.join("peers"), &bars)?;
    println!("plots: {} {}   data: {}", svg.display(), png.display(), raw.display());
    Ok(())
}

fn start(options: &Options, name: &str) -> Result<(Server, Target)> {
    let data = options.out.join(format!("data-{name}"));
    let _ = std::fs::remove_dir_all(&data);
    match name {
        "cenote" => cenote(options, name, &data, "cxl"),
        "cenote-dram" => cenote(options, name, &data, "dram"),
        "postgresql" => postgresql(options, &data),
        "mariadb" => mariadb(options, &data),
        _ => Err(Error::Server {
            name: name.into(),
            what: "unknown; known are cenote, cenote-dram, postgresql, mariadb".into(),
        }),
    }
}

fn cenote(options: &Options, name: &str, data: &Path, memory: &str) -> Result<(Server, Target)> {
    let port = free_port()?;
    let server = Server::cenote(&CenoteOptions {
        program: options.program.clone(),
        data: data.into(),
        memory: memory.into(),
        memory_size: format!("{}MiB", options.memory_mib),
        port,
        survive: "process".into(),
        region: RegionFile::new(),
    })?;
    Ok((server, target(name, "pgsql", port, "cenote", "cenote")))
}

fn target(name: &str, driver: &'static str, port: u16, user: &str, database: &str) -> Target {
    Target {
        name: name.into(),
        driver,
        port,
        user: user.into(),
        database: database.into(),
    }
}

fn postgresql(options: &Options, data: &Path) -> Result<(Server, Target)> {
    let settings = [
        format!("shared_buffers={}MB", options.memory_mib),
        "max_wal_size=4GB".into(),
        "fsync=on".into(),
        "synchronous_commit=on".into(),
        "full_page_writes=on".into(),
    ];
    let server = Server::postgresql(data, &[], &settings)?;
    let port = server.port;
    Ok((server, target("postgresql", "pgsql", port, "postgres", "postgres")))
}

fn mariadb(options: &Options, data: &Path) -> Result<(Server, Target)> {
    let mariadbd = ensure_program("mariadbd", "mariadb-server")?;
    let install = ensure_program("mariadb-install-db", "mariadb-server")?;
    let data = owned_dir(data, "mysql")?;
    let port = free_port()?;
    let dir = format!("--datadir={}", data.display());
    let mut command = unprivileged(&install, "mysql");
    run_tool(
        command.args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            &dir,
        ]),
        "mariadb-install-db",
    )?;
    // Accounts are made by a file that the server runs as it starts: no second client is needed.
    let accounts = data.join("accounts.sql");
    let text = "CREATE DATABASE IF NOT EXISTS sbtest;\nCREATE USER IF NOT EXISTS 'sbtest'@'%';\n\
        GRANT ALL ON sbtest.* TO 'sbtest'@'%';\n";
    std::fs::write(&accounts, text).context("writing accounts.sql")?;
    let mut command = unprivileged(&mariadbd, "mysql");
    command.args(["--no-defaults", &dir, "--bind-address=127.0.0.1", "--skip-log-bin"]);
    command
        .arg(format!("--port={port}"))
        .arg(format!("--socket={}/mariadb.sock", data.display()));
    command
        .arg(format!("--pid-file={}/mariadb.pid", data.display()))
        .arg(format!("--init-file={}", accounts.display()));
    command.arg(format!("--innodb-buffer-pool-size={}M", options.memory_mib));
    command.args([
        "--innodb-flush-log-at-trx-commit=1",
        "--innodb-doublewrite=1",
        "--innodb-log-file-size=1G",
    ]);
    let server = Server::other("mariadb", command, port)?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok((server, target("mariadb", "mysql", port, "sbtest", "sbtest")))
}

/// The default list of servers.
pub fn all_servers() -> Vec<String> {
    ["cenote", "mariadb", "postgresql"].map(String::from).to_vec()
}

/// The default list of workloads.
pub fn all_workloads() -> Vec<String> {
    WORKLOADS.map(String::from).to_vec()
}

/// Where the `cenote` program is.
///
/// # Errors
/// [`Error::Missing`] if it is nowhere.
pub fn program() -> Result<PathBuf> {
    server::cenote_program()
}
