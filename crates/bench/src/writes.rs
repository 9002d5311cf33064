//! What random updates write to the drive where the data is some times the memory: each page is read, changed a little
//! and driven out again.
//!
//! Each server is started anew, with so much memory for pages, and loaded with one table of rows of some 200 bytes. A
//! part of the updates runs first, uncounted, until the memory is full of pages that were changed. Then bytes are
//! counted by what the server's processes hand to files (`wchar` of `/proc/PID/io`; sockets are not in it) over a number
//! of updates, each a transaction that is durable when it is acknowledged. What the system counts as sent to a drive
//! (`write_bytes`) is whole folios, and says little of a log. The servers get as much log between two checkpoints.

use crate::draw::Draw;
use crate::oltp::{Client, Statement, connect};
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::table::{lay_out, thousands};
use crate::{Error, IoContext, Result, processor};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a row, about, on any of the servers.
const ROW_BYTES: u64 = 200;
/// Letters of the column that an update writes anew.
const TEXT: usize = 160;
/// Text that is sent in one piece when loading.
const PIECE: usize = 1 << 18;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where data directories and results go.
    pub out: PathBuf,
    /// Memory for pages, MiB.
    pub memory_mib: u32,
    /// The table is so many times as large.
    pub times: u32,
    /// Updates that are counted.
    pub updates: u32,
    /// Clients that make them, each with a connection.
    pub clients: u32,
    /// Which of `cenote`, `cenote-dram` and `postgresql`.
    pub servers: Vec<String>,
    /// Same seed, same rows and updates.
    pub seed: u64,
}

impl Options {
    fn rows(&self) -> i32 {
        let bytes = (u64::from(self.memory_mib) << 20) * u64::from(self.times);
        i32::try_from(bytes / ROW_BYTES).unwrap_or(i32::MAX)
    }
}

/// What one server wrote.
#[derive(Debug, serde::Serialize)]
struct Figures {
    server: String,
    updates: u32,
    bytes: u64,
    /// Of these, its log, where it says so.
    log_bytes: Option<u64>,
    seconds: f64,
    processor_seconds: f64,
}

/// Measures all servers, one after the other, and tells.
///
/// # Errors
/// [`Error::Server`] if a server does not start; [`Error::Sql`] and [`Error::Statement`] if a statement fails;
/// [`Error::Io`] of a file or process.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let measured = options.servers.iter().map(|name| measure(options, name));
    let all = measured.collect::<Result<Vec<Figures>>>()?;
    let header = [
        "server",
        "bytes an update",
        "of them log",
        "MB in all",
        "times the last",
        "CPU us",
    ];
    let last = all.last().map_or(1, |figures| figures.bytes.max(1)) as f64;
    let rows: Vec<Vec<String>> = all.iter().map(|figures| row(figures, last)).collect();
    println!("{}", lay_out(&header, &rows));
    println!(
        "{} updates of one row of {} at random, {} clients, {} MiB for pages, {} MiB of rows",
        options.updates,
        options.rows(),
        options.clients,
        options.memory_mib,
        options.memory_mib * options.times
    );
    let raw = options.out.join("writes.json");
    let text = serde_json::to_string_pretty(&all).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing writes.json")
}

fn row(figures: &Figures, last: f64) -> Vec<String> {
    let each = |bytes: u64| bytes as f64 / f64::from(figures.updates);
    vec![
        figures.server.clone(),
        thousands(each(figures.bytes)),
        figures.log_bytes.map_or("".into(), |bytes| thousands(each(bytes))),
        format!("{:.1}", figures.bytes as f64 / 1e6),
        format!("{:.2}", figures.bytes as f64 / last),
        format!("{:.0}", figures.processor_seconds * 1e6 / f64::from(figures.updates)),
    ]
}

fn measure(options: &Options, name: &str) -> Result<Figures> {
    let data = options.out.join(format!("data-{name}"));
    let _ = std::fs::remove_dir_all(&data);
    let (server, url) = start(options, name, &data)?;
    println!("loading {} rows into {name} ...", options.rows());
    load(options, &url)?;
    println!("updating on {name} ...");
    let mut clients = connected(options, &url)?;
    update(options, &mut clients, (0, options.updates / 2))?;
    let log = log_position(&url)?;
    let (began, before, processor) = (Instant::now(), written(server.id())?, processor::seconds(server.id())?);
    update(options, &mut clients, (1, options.updates))?;
    let figures = Figures {
        server: name.into(),
        updates: options.updates,
        bytes: written(server.id())? - before,
        log_bytes: log_position(&url)?.zip(log).map(|(after, before)| after - before),
        seconds: began.elapsed().as_secs_f64(),
        processor_seconds: processor::seconds(server.id())? - processor,
    };
    drop((clients, server));
    let _ = std::fs::remove_dir_all(&data);
    Ok(figures)
}

fn start(options: &Options, name: &str, data: &Path) -> Result<(Server, String)> {
    if name == "postgresql" {
        let settings = [
            format!("shared_buffers={}MB", options.memory_mib),
            // Half of it is the distance of Cenote's checkpoints, too.
            "max_wal_size=1GB".into(),
            "checkpoint_timeout=1h".into(),
            "full_page_writes=on".into(),
        ];
        let server = Server::postgresql(data, &[], &settings)?;
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
        return Ok((server, url));
    }
    let memory = match name {
        "cenote" => "cxl",
        "cenote-dram" => "dram",
        _ => {
            return Err(Error::Refused(format!(
                "{name} is unknown; known are cenote, cenote-dram, postgresql"
            )));
        }
    };
    let server = Server::cenote(&CenoteOptions {
        program: options.program.clone(),
        data: data.into(),
        memory: memory.into(),
        memory_size: format!("{}MiB", options.memory_mib),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    })?;
    let url = format!("postgres://cenote@127.0.0.1:{}/cenote", server.port);
    Ok((server, url))
}

fn load(options: &Options, url: &str) -> Result<()> {
    let mut client = connect(url)?;
    client.batch_execute("CREATE TABLE w (id int4 PRIMARY KEY, n int4 NOT NULL, t text NOT NULL)")?;
    let mut writer = client.copy_in("COPY w FROM STDIN")?;
    let mut text = String::new();
    for id in 1..=options.rows() {
        let _ = writeln!(text, "{id}\t0\t{}", text_of(options.seed, u64::from(id.unsigned_abs())));
        if text.len() >= PIECE {
            writer.write_all(text.as_bytes()).context("sending rows")?;
            text.clear();
        }
    }
    writer.write_all(text.as_bytes()).context("sending rows")?;
    writer.finish()?;
    client.batch_execute("VACUUM ANALYZE w")?;
    client.batch_execute("CHECKPOINT")?;
    Ok(())
}

fn text_of(seed: u64, number: u64) -> String {
    Draw::new(seed, [300, number]).letters(TEXT as i32, TEXT as i32)
}

fn connected(options: &Options, url: &str) -> Result<Vec<(Client, Statement)>> {
    let connect = |_| {
        let mut client = Client::connect(url)?;
        let statement = client.prepare("UPDATE w SET n = n + 1, t = $2 WHERE id = $1")?;
        Ok((client, statement))
    };
    (0..options.clients).map(connect).collect()
}

/// Makes `count` updates, spread over the clients; `part` decides which.
fn update(options: &Options, clients: &mut [(Client, Statement)], (part, count): (u64, u32)) -> Result<()> {
    std::thread::scope(|scope| {
        let start = |(number, client)| {
            let its = count / options.clients + u32::from(number < count % options.clients);
            let draw = Draw::new(options.seed, [301 + part, u64::from(number)]);
            scope.spawn(move || update_as(client, draw, options.rows(), its))
        };
        let started: Vec<_> = (0..).zip(clients).map(start).collect();
        started
            .into_iter()
            .try_for_each(|client| client.join().expect("no client panics"))
    })
}

fn update_as((client, statement): &mut (Client, Statement), mut draw: Draw, rows: i32, count: u32) -> Result<()> {
    for _ in 0..count {
        let (id, text) = (draw.number(1, rows), draw.letters(TEXT as i32, TEXT as i32));
        match client.execute(statement, &[&id, &text])? {
            1 => {}
            n => return Err(Error::Lost(format!("an update of row {id} has changed {n} rows"))),
        }
    }
    Ok(())
}

/// How many bytes of log there are, of a server that says so.
fn log_position(url: &str) -> Result<Option<u64>> {
    let asked = connect(url)?.query_one("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::text", &[]);
    Ok(asked.ok().and_then(|row| row.get::<_, String>(0).parse().ok()))
}

/// Bytes that a process and all under it have handed to files; those that have ended are in their parent's sum.
fn written(pid: u32) -> Result<u64> {
    let read = |id: u32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/io")).context(format!("reading /proc/{id}/io"))?;
        Ok(parse(&text))
    };
    processor::tree(pid)?.into_iter().map(read).sum()
}

fn parse(io: &str) -> u64 {
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_are_a_line_of_proc() {
        let text = "rchar: 3\nwchar: 8192\nread_bytes: 7\nwrite_bytes: 65536\ncancelled_write_bytes: 4096\n";
        assert_eq!(parse(text), 8192);
        assert_eq!(parse(""), 0);
    }

    #[test]
    fn what_this_process_writes_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let before = written(std::process::id()).expect("this process");
        let mut file = std::fs::File::create(dir.path().join("some")).expect("made");
        file.write_all(&vec![1; 1 << 20]).expect("written");
        let after = written(std::process::id()).expect("this process");
        assert!(after - before >= 1 << 20, "{before} {after}");
    }
}
