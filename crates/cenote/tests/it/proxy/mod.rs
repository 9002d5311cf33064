//! `cenote proxy` between real clients and real servers.

use crate::program::{Data, Process, cenote};
use postgres::error::SqlState;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

mod blocks;
mod fake;
mod loss;
mod pooling;
mod reads;
mod wire;

const TIMEOUT: Duration = Duration::from_secs(180);

/// A proxy whose servers a file names.
struct Proxy {
    process: Process,
    servers: PathBuf,
    directory: tempfile::TempDir,
}

impl Proxy {
    fn start(servers: &str, arguments: &[&str]) -> Proxy {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers");
        std::fs::write(&file, servers).unwrap();
        let mut command = cenote(&["proxy", "--listen", "127.0.0.1:0", "--servers-file"]);
        command.arg(&file).args(arguments);
        Proxy {
            process: Process::spawn(command),
            servers: file,
            directory,
        }
    }

    /// The file is replaced as a whole.
    fn name(&self, servers: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, servers).unwrap();
        std::fs::rename(new, &self.servers).unwrap();
    }

    fn client(&self) -> postgres::Client {
        self.process.client()
    }

    /// A column of `SHOW cenote.proxy`, of its first row.
    fn shows(&self, column: &str) -> String {
        shows(&mut self.client(), column)
    }
}

fn shows(client: &mut postgres::Client, column: &str) -> String {
    let rows = client.simple_query("SHOW cenote.proxy").unwrap();
    let row = rows.iter().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    row.unwrap().get(column).unwrap().to_owned()
}

fn writer_at(port: u16) -> String {
    format!("writer=127.0.0.1:{port}")
}

/// A server's command, at a port of its own: it can be started again at the same address.
fn server_at(data: &Data, port: u16) -> Command {
    let mut command = cenote(&[
        "run",
        "--memory",
        "dram",
        "--memory-size",
        "64MiB",
        "--data",
        data.text(),
    ]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A writer with a proxy before it.
fn pair(arguments: &[&str]) -> (Data, Process, Proxy) {
    let data = Data::new();
    let server = Process::start(data.path());
    let proxy = Proxy::start(&writer_at(server.port), arguments);
    (data, server, proxy)
}

fn code_of(error: &postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
