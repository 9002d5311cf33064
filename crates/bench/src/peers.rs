//! Cenote beside PostgreSQL and MariaDB: sysbench's five OLTP workloads, TPC-C and TATP, alternating, in one run. MariaDB,
//! which speaks another protocol, runs sysbench alone.
//!
//! The comparison is fair where these hold, and the report says how each was set: the same data freshly prepared on
//! each server, the same memory for pages, every commit durable before it is acknowledged, all three running all the
//! time, rounds that alternate between them, the median of the rounds.

use crate::oltp::report::Summary;
use crate::plot::Bars;
use crate::server::{
    self, CenoteOptions, RegionFile, Server, ensure_program, free_port, owned_dir, run_tool, unprivileged,
};
use crate::sysbench::{self, Measured, Shape, Target, WORKLOADS};
use crate::table::{lay_out, median, thousands};
use crate::{Error, IoContext, Result, tatp, tpcc};
use indicatif::{ProgressBar, ProgressStyle};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Workloads of this program, beside sysbench's.
const OWN: [&str; 2] = ["tpcc", "tatp"];
/// What their rounds begin with, which is not measured.
const WARMUP: Duration = Duration::from_secs(2);

/// How long a server may take from its TCP port to its Unix socket.
const SOCKET_LIMIT: Duration = Duration::from_secs(10);

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
    /// Warehouses of TPC-C.
    pub warehouses: i32,
    /// Subscribers of TATP.
    pub subscribers: i32,
    /// How clients reach the servers.
    pub sockets: Sockets,
    /// Which of [`WORKLOADS`], and of `tpcc` and `tatp`.
    pub workloads: Vec<String>,
    /// Which of `cenote`, `cenote-dram`, `postgresql`, `mariadb`.
    pub servers: Vec<String>,
}

/// How clients reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sockets {
    /// TCP over loopback.
    Tcp,
    /// Unix sockets, which cost the kernel less. MariaDB is not measured over them.
    Unix,
}

impl Sockets {
    fn name(self) -> &'static str {
        match self {
            Sockets::Tcp => "TCP over loopback",
            Sockets::Unix => "Unix sockets",
        }
    }
}

/// Everything measured for one workload on one server.
#[derive(serde::Serialize)]
struct Cell {
    workload: String,
    server: String,
    rounds: Vec<Measured>,
    /// Of TPC-C and TATP, each kind of transaction.
    transactions: Vec<Summary>,
}

/// A server that is measured.
struct Peer {
    server: Server,
    target: Target,
}

impl Peer {
    fn url(&self) -> String {
        let Target {
            host,
            user,
            port,
            database,
            ..
        } = &self.target;
        format!("host='{host}' port={port} user={user} dbname={database}")
    }

    /// Workloads of this program need PostgreSQL's protocol.
    fn runs(&self, workload: &str) -> bool {
        self.target.driver == "pgsql" || !OWN.contains(&workload)
    }
}

/// Runs the comparison, prints tables, writes a plot and the raw figures.
///
/// # Errors
/// [`Error::Server`] if a server does not start, answer or stop; [`Error::Sql`] if a statement fails; [`Error::Io`] of
/// a file or process. [`Error::Missing`] if a peer is not installed and cannot be.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let sockets = SocketDir::new()?;
    let sysbench = ensure_program("sysbench", "sysbench")?;
    let mut peers = Vec::new();
    for name in &options.servers {
        let (server, target) = start(options, name, &sockets)?;
        let peer = Peer { server, target };
        prepare(options, &sysbench, &peer)?;
        peers.push(peer);
    }
    let cells = measure(options, &sysbench, &peers)?;
    let targets: Vec<Target> = peers.into_iter().map(|peer| peer.target).collect();
    report(options, &targets, &cells)
}

/// Loads the data of all workloads that the server runs.
fn prepare(options: &Options, sysbench: &PathBuf, peer: &Peer) -> Result<()> {
    let (name, is_in) = (&peer.target.name, |workload: &str| {
        options.workloads.iter().any(|w| w == workload)
    });
    if options.workloads.iter().any(|w| !OWN.contains(&w.as_str())) {
        let rows = thousands(f64::from(options.shape.rows));
        println!("preparing {} tables of {rows} rows on {name} ...", options.shape.tables);
        sysbench::prepare(sysbench, &peer.target, &options.shape)?;
    }
    if is_in("tpcc") && peer.runs("tpcc") {
        println!("loading {} warehouses into {name} ...", options.warehouses);
        tpcc::prepare(&tpcc_options(options, peer))?;
    }
    if is_in("tatp") && peer.runs("tatp") {
        println!("loading {} subscribers into {name} ...", options.subscribers);
        tatp::prepare(&tatp_options(options, peer))?;
    }
    Ok(())
}

fn tpcc_options(options: &Options, peer: &Peer) -> tpcc::Options {
    tpcc::Options {
        url: peer.url(),
        out: None,
        warehouses: options.warehouses,
        sizes: tpcc::Sizes::STANDARD,
        terminals: options.shape.threads,
        measured: Duration::from_secs(options.shape.seconds.into()),
        warmup: WARMUP,
        rounds: 1,
        load: tpcc::Load::Always,
        seed: 1,
        has_waits: false,
        isolation: "read committed".into(),
        server_pid: Some(peer.server.id()),
    }
}

fn tatp_options(options: &Options, peer: &Peer) -> tatp::Options {
    tatp::Options {
        url: peer.url(),
        out: None,
        subscribers: options.subscribers,
        clients: options.shape.threads,
        measured: Duration::from_secs(options.shape.seconds.into()),
        warmup: WARMUP,
        rounds: 1,
        load: tatp::Load::Always,
        seed: 1,
        server_pid: Some(peer.server.id()),
    }
}

fn measure(options: &Options, sysbench: &PathBuf, peers: &[Peer]) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for workload in &options.workloads {
        cells.extend(peers.iter().filter(|peer| peer.runs(workload)).map(|peer| Cell {
            workload: workload.clone(),
            server: peer.target.name.clone(),
            rounds: Vec::new(),
            transactions: Vec::new(),
        }));
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left").expect("a constant template");
    let bar = ProgressBar::new(u64::from(options.rounds) * cells.len() as u64).with_style(style);
    for round in 0..options.rounds {
        for cell in &mut cells {
            bar.set_message(format!("{} on {}", cell.workload, cell.server));
            let peer = peers.iter().find(|peer| peer.target.name == cell.server);
            once(options, sysbench, peer.expect("cells are of peers"), (cell, round))?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

/// One round of a workload on a server.
fn once(options: &Options, sysbench: &PathBuf, peer: &Peer, (cell, round): (&mut Cell, u32)) -> Result<()> {
    let seed = 1 + u64::from(round);
    let summary = match cell.workload.as_str() {
        "tpcc" => {
            let summary = tpcc::summary(&tpcc::round(&tpcc_options(options, peer), seed)?);
            tpcc::must_hold(&peer.url())?;
            summary
        }
        "tatp" => tatp::summary(&tatp::round(&tatp_options(options, peer), seed)?),
        name => {
            cell.rounds
                .push(sysbench::run(sysbench, &peer.target, &options.shape, name)?);
            return Ok(());
        }
    };
    cell.rounds.push(Measured {
        tps: summary.per_second,
        qps: summary.statements_per_second,
        p50_ms: summary.all.p50_ms,
        p99_ms: summary.all.p99_ms,
        errors: summary.all.retries,
    });
    cell.transactions.push(summary);
    Ok(())
}

fn pick(cell: &Cell, of: fn(&Measured) -> f64) -> f64 {
    median(&cell.rounds.iter().map(of).collect::<Vec<_>>())
}

fn report(options: &Options, targets: &[Target], cells: &[Cell]) -> Result<()> {
    let first = targets.first().map_or("", |t| t.name.as_str());
    let against = format!("{first} / it");
    let header = [
        "workload and server",
        "tx/s",
        "statements/s",
        "p50 ms",
        "p99 ms",
        &against,
        "least, most",
        "errors",
    ];
    let groups: Vec<&[Cell]> = cells.chunk_by(|a, b| a.workload == b.workload).collect();
    let rows: Vec<_> = groups
        .iter()
        .flat_map(|group| group.iter().map(|cell| row(group, cell)))
        .collect();
    println!("{}", lay_out(&header, &rows));
    for group in groups.iter().filter(|group| !group[0].transactions.is_empty()) {
        println!("{}", transactions(group));
    }
    println!(
        "measured on this machine: {}, {} threads, {} tables of {} rows, {} warehouses, {} subscribers, {} rounds of {} s \
         (median), {} MiB of page cache each, every commit durable",
        options.sockets.name(),
        options.shape.threads,
        options.shape.tables,
        options.shape.rows,
        options.warehouses,
        options.subscribers,
        options.rounds,
        options.shape.seconds,
        options.memory_mib
    );
    let raw = options.out.join("peers.json");
    let text = serde_json::to_string_pretty(cells).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing peers.json")?;
    let [svg, png] = crate::plot::bars(&options.out.join("peers"), &bars(options, targets, &groups))?;
    println!("plots: {} {}   data: {}", svg.display(), png.display(), raw.display());
    Ok(())
}

/// A workload on a server. The ratio is of the medians; least and most are those of rounds side by side.
fn row(group: &[Cell], cell: &Cell) -> Vec<String> {
    let (first, tps) = (&group[0], pick(cell, |m| m.tps));
    let errors: u64 = cell.rounds.iter().map(|m| m.errors).sum();
    let pairs = first.rounds.iter().zip(&cell.rounds);
    let ratios: Vec<f64> = pairs.map(|(first, its)| first.tps / its.tps.max(1e-9)).collect();
    let [low, high] = [f64::min, f64::max].map(|best| ratios.iter().copied().reduce(best).unwrap_or(f64::NAN));
    vec![
        format!("{:<22} {}", cell.workload, cell.server),
        thousands(tps),
        thousands(pick(cell, |m| m.qps)),
        format!("{:.2}", pick(cell, |m| m.p50_ms)),
        format!("{:.2}", pick(cell, |m| m.p99_ms)),
        format!("{:.2}", pick(first, |m| m.tps) / tps.max(1e-9)),
        format!("{low:.2}, {high:.2}"),
        errors.to_string(),
    ]
}

/// Latencies of each kind of transaction on each server, and how many times the first server's mean the others' are;
/// the last line is the server's processor time a transaction.
fn transactions(group: &[Cell]) -> String {
    let middle =
        |cell: &Cell, of: &dyn Fn(&Summary) -> f64| median(&cell.transactions.iter().map(of).collect::<Vec<_>>());
    let mut header = vec![format!("{}: ms", group[0].workload)];
    for cell in group {
        header.extend([
            format!("{} p50", cell.server),
            "p95".into(),
            "p99".into(),
            "mean".into(),
        ]);
    }
    header.extend(
        group[1..]
            .iter()
            .map(|cell| format!("{} / {}", cell.server, group[0].server)),
    );
    let mut rows = Vec::new();
    for (n, kind) in group[0].transactions[0].kinds.iter().enumerate() {
        let mut row = vec![kind.name.to_string()];
        let mean = |cell: &Cell| middle(cell, &|its| its.kinds[n].mean_ms);
        for cell in group {
            let of: [f64; 3] = [
                middle(cell, &|its| its.kinds[n].p50_ms),
                middle(cell, &|its| its.kinds[n].p95_ms),
                middle(cell, &|its| its.kinds[n].p99_ms),
            ];
            row.extend(of.iter().chain([&mean(cell)]).map(|ms| format!("{ms:.2}")));
        }
        row.extend(
            group[1..]
                .iter()
                .map(|cell| format!("{:.2}", mean(cell) / mean(&group[0]).max(1e-9))),
        );
        rows.push(row);
    }
    let processor = |cell: &Cell| middle(cell, &|its| its.server_us.unwrap_or(f64::NAN) / 1e3);
    let mut last = vec!["processor".to_string()];
    for cell in group {
        last.extend([format!("{:.3}", processor(cell)), "".into(), "".into(), "".into()]);
    }
    last.extend(
        group[1..]
            .iter()
            .map(|cell| format!("{:.2}", processor(cell) / processor(&group[0]).max(1e-9))),
    );
    rows.push(last);
    lay_out(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

/// Transactions a second of each workload and server, in times of the last server that runs it.
fn bars(options: &Options, targets: &[Target], groups: &[&[Cell]]) -> Bars {
    let last = targets.last().map_or("", |t| t.name.as_str());
    let value = |group: &[Cell], name: &str| {
        let its = group
            .iter()
            .find(|cell| cell.server == name)
            .map(|cell| pick(cell, |m| m.tps));
        its.unwrap_or(0.0) / group.last().map_or(1.0, |cell| pick(cell, |m| m.tps)).max(1e-9)
    };
    let line = |target: &Target| {
        let values = groups.iter().map(|group| value(group, &target.name)).collect();
        (target.name.clone(), values)
    };
    Bars {
        title: format!(
            "Transactions a second, {last} = 1 (measured, {} threads)",
            options.shape.threads
        ),
        unit: format!("times {last}"),
        labels: groups.iter().map(|group| group[0].workload.clone()).collect(),
        series: targets.iter().map(line).collect(),
    }
}

/// A directory for Unix sockets that servers of any user may write to, removed when dropped. Its path is short, as a
/// socket's has to be.
struct SocketDir(tempfile::TempDir);

impl SocketDir {
    fn new() -> Result<SocketDir> {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().context("making a directory for sockets")?;
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), everybody).context("making a directory for sockets")?;
        Ok(SocketDir(dir))
    }

    fn text(&self) -> String {
        self.0.path().display().to_string()
    }

    /// PostgreSQL listens for TCP first, and a moment later at its Unix socket.
    fn wait_for(&self, target: &Target) -> Result<()> {
        let path = self.0.path().join(format!(".s.PGSQL.{}", target.port));
        let began = Instant::now();
        while let Err(error) = UnixStream::connect(&path) {
            if began.elapsed() > SOCKET_LIMIT {
                return Err(error).context(format!("waiting for {}", path.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn start(options: &Options, name: &str, sockets: &SocketDir) -> Result<(Server, Target)> {
    let (server, mut target) = start_with(options, name, &sockets.text())?;
    if options.sockets == Sockets::Unix {
        sockets.wait_for(&target)?;
        target.host = sockets.text();
    }
    Ok((server, target))
}

fn start_with(options: &Options, name: &str, sockets: &str) -> Result<(Server, Target)> {
    let data = options.out.join(format!("data-{name}"));
    let _ = std::fs::remove_dir_all(&data);
    match name {
        "cenote" => cenote(options, (name, "cxl"), &data, sockets),
        "cenote-dram" => cenote(options, (name, "dram"), &data, sockets),
        "postgresql" => postgresql(options, &data, sockets),
        "mariadb" if options.sockets == Sockets::Unix => {
            Err(Error::Refused("mariadb is measured over TCP only".into()))
        }
        "mariadb" => mariadb(options, &data),
        _ => Err(Error::Server {
            name: name.into(),
            what: "unknown; known are cenote, cenote-dram, postgresql, mariadb".into(),
        }),
    }
}

fn cenote(options: &Options, (name, memory): (&str, &str), data: &Path, sockets: &str) -> Result<(Server, Target)> {
    let port = free_port()?;
    let started = CenoteOptions {
        program: options.program.clone(),
        data: data.into(),
        memory: memory.into(),
        memory_size: format!("{}MiB", options.memory_mib),
        port,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    let server = Server::cenote_with(&started, &["--socket-dir", sockets])?;
    Ok((server, target(name, "pgsql", port, "cenote", "cenote")))
}

fn target(name: &str, driver: &'static str, port: u16, user: &str, database: &str) -> Target {
    Target {
        name: name.into(),
        driver,
        host: "127.0.0.1".into(),
        port,
        user: user.into(),
        database: database.into(),
    }
}

fn postgresql(options: &Options, data: &Path, sockets: &str) -> Result<(Server, Target)> {
    let settings = [
        format!("unix_socket_directories={sockets}"),
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
    WORKLOADS.into_iter().chain(OWN).map(String::from).collect()
}

/// Where the `cenote` program is.
///
/// # Errors
/// [`Error::Missing`] if it is nowhere.
pub fn program() -> Result<PathBuf> {
    server::cenote_program()
}
