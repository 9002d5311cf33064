//! What a server costs before it does anything: how long until it is ready on an empty directory, and the memory that
//! it holds beside its region with idle connections.

use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::table::{lay_out, median};
use crate::{Error, IoContext, Result, load};
use postgres::Client;
use std::path::PathBuf;
use std::time::Duration;

/// From exec to the `ready` line, at most.
const READY_MAX: Duration = Duration::from_millis(100);
/// Beside the region, with idle connections that have done nothing yet.
const RESIDENT_MAX_MIB: f64 = 150.0;
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where data directories go.
    pub out: PathBuf,
    /// Memory for the buffer pool.
    pub memory_size: String,
    /// Starts of each kind; the median counts.
    pub rounds: u32,
    /// Idle connections.
    pub connections: u32,
}

/// Measures, prints a table; an error if a limit is passed.
///
/// # Errors
/// [`Error::Server`] if a server does not start, answer or stop; [`Error::Sql`] if a statement fails; [`Error::Io`] of
/// a file or process. [`Error::Lost`] if a limit is passed.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let mut rows = Vec::new();
    let mut beyond = Vec::new();
    for kind in ["cxl", "dram"] {
        let ready = (0..options.rounds)
            .map(|_| ready_ms(options, kind))
            .collect::<Result<Vec<f64>>>()?;
        let (most, limit) = (
            ready.iter().fold(0.0, |a, b| f64::max(a, *b)),
            READY_MAX.as_millis() as f64,
        );
        let median = median(&ready);
        rows.push(row(
            &format!("ready on an empty directory, {kind}, ms"),
            median,
            most,
            limit,
        ));
        if median > limit {
            beyond.push(format!("{kind} was ready after {median:.0} ms, {limit:.0} are allowed"));
        }
    }
    let (idle, worked) = resident_mib(options)?;
    let text = |what: &str| {
        format!(
            "resident beside the region, {} connections {what}, MiB",
            options.connections
        )
    };
    rows.push(row(&text("idle"), idle, idle, RESIDENT_MAX_MIB));
    rows.push(row(&text("idle after a query each"), worked, worked, f64::NAN));
    println!("{}", lay_out(&["what", "median", "most", "limit"], &rows));
    if idle > RESIDENT_MAX_MIB {
        beyond.push(format!("{idle:.0} MiB are resident, {RESIDENT_MAX_MIB:.0} are allowed"));
    }
    match beyond.is_empty() {
        true => Ok(()),
        false => Err(Error::Lost(beyond.join("; "))),
    }
}

fn row(what: &str, median: f64, most: f64, limit: f64) -> Vec<String> {
    let limit = if limit.is_nan() {
        "-".into()
    } else {
        format!("{limit:.0}")
    };
    vec![what.into(), format!("{median:.0}"), format!("{most:.0}"), limit]
}

fn start(options: &Options, kind: &str) -> Result<(Server, PathBuf)> {
    let data = options.out.join("footprint-data");
    // What an earlier start left; nothing if there was none.
    let _ = std::fs::remove_dir_all(&data);
    let server = Server::cenote(&CenoteOptions {
        program: options.program.clone(),
        data: data.clone(),
        memory: kind.into(),
        memory_size: options.memory_size.clone(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    })?;
    Ok((server, data))
}

fn end(server: Server, data: &PathBuf) -> Result<()> {
    server.stop(STOP_LIMIT);
    std::fs::remove_dir_all(data).context("removing a data directory")
}

fn ready_ms(options: &Options, kind: &str) -> Result<f64> {
    let (server, data) = start(options, kind)?;
    let ready = server.ready.as_secs_f64() * 1e3;
    end(server, &data)?;
    Ok(ready)
}

/// With connections that have done nothing, and with the same after a query each.
fn resident_mib(options: &Options) -> Result<(f64, f64)> {
    let (server, data) = start(options, "cxl")?;
    let mut clients = (0..options.connections)
        .map(|_| load::connect(server.port))
        .collect::<Result<Vec<Client>>>()?;
    let idle = beside_region_mib(&server)?;
    for client in &mut clients {
        client.simple_query("SELECT 1")?;
    }
    let worked = beside_region_mib(&server)?;
    drop(clients);
    end(server, &data)?;
    Ok((idle, worked))
}

/// All that is resident but shared memory, which is the region.
fn beside_region_mib(server: &Server) -> Result<f64> {
    let path = format!("/proc/{}/status", server.id());
    let text = std::fs::read_to_string(&path).context(format!("reading {path}"))?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
    };
    Ok((kib("RssAnon:").unwrap_or(f64::NAN) + kib("RssFile:").unwrap_or(f64::NAN)) / 1024.0)
}
