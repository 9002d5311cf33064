//! Storage nodes as people run them, each a process of the program, and servers on them.

use crate::moved::{Writer, count, signal};
use crate::pool::Daemon;
use crate::program::{Data, Process, cenote, free_ports, output};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

mod branches;
mod cluster;
mod copies;
mod pausing;
mod readers;
mod shared_memory;

pub struct Nodes {
    /// Ended before their directory is removed.
    daemons: Vec<Option<Daemon>>,
    directory: tempfile::TempDir,
    ports: Vec<u16>,
}

impl Nodes {
    pub fn start() -> Nodes {
        let ports = free_ports(3);
        let mut nodes = Nodes {
            directory: tempfile::tempdir().unwrap(),
            ports,
            daemons: vec![None, None, None],
        };
        (0..3).for_each(|n| nodes.start_node(n));
        nodes
    }

    fn node(&self, n: usize) -> Command {
        let all = self.ports.iter().enumerate();
        let all: Vec<String> = all.map(|(n, port)| format!("{}=127.0.0.1:{port}", n + 1)).collect();
        let number = (n + 1).to_string();
        let mut command = cenote(&["storage", "--node", &number, "--nodes", &all.join(",")]);
        command.args(["--memory-size", "4MiB"]).arg("--dir");
        command.arg(self.directory.path().join(&number));
        command
    }

    fn start_node(&mut self, n: usize) {
        self.daemons[n] = Some(Daemon::start(self.node(n)));
    }

    fn kill(&mut self, n: usize) {
        drop(self.daemons[n].take());
    }

    fn addresses(&self) -> String {
        let addresses: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        addresses.join(",")
    }

    pub fn run(&self, data: &Data, memory: &str) -> Command {
        let mut command = cenote(&[
            "run",
            "--memory",
            memory,
            "--memory-size",
            "64MiB",
            "--listen",
            "127.0.0.1:0",
        ]);
        command.args(["--storage", &self.addresses(), "--data", data.text()]);
        command
    }

    pub fn server(&self, data: &Data, memory: &str) -> Process {
        Process::spawn(self.run(data, memory))
    }

    fn status(&self) -> (bool, String) {
        output(&mut cenote(&["storage", "status", "--storage", &self.addresses()]))
    }

    /// The node that leads, once one does.
    fn leader(&self) -> usize {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let (_, text) = self.status();
            let port = text
                .lines()
                .find(|line| line.contains(" leader"))
                .and_then(|line| line.split_whitespace().next());
            let port = port.and_then(|address| address.rsplit(':').next()?.parse::<u16>().ok());
            if let Some(n) = port.and_then(|port| self.ports.iter().position(|known| *known == port)) {
                return n;
            }
            assert!(Instant::now() < deadline, "no node leads: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn make_table(server: &Process) {
    let make = "CREATE TABLE t (n int PRIMARY KEY)";
    server.client().batch_execute(make).unwrap();
}

/// Every node is killed once under load, the leader too; then the server with its directory. A server on another
/// directory, as on another machine, has every row that was acknowledged.
#[test]
fn no_row_is_lost_whichever_process_is_killed() {
    let mut nodes = Nodes::start();
    let data = Data::new();
    let mut server = nodes.server(&data, "dram");
    make_table(&server);
    let writer = Writer::start(&server, 0);
    writer.reaches(100);
    for round in 0..3 {
        let victim = if round == 0 { nodes.leader() } else { round };
        nodes.kill(victim);
        let reached = writer.acknowledged();
        writer.reaches(reached + 100);
        nodes.start_node(victim);
        let reached = writer.acknowledged();
        writer.reaches(reached + 50);
    }
    server.kill();
    let acknowledged = writer.end();
    drop(data);
    let elsewhere = Data::new();
    let mut server = nodes.server(&elsewhere, "dram");
    let found = count(&server, 0, i32::MAX);
    assert!(found >= i64::from(acknowledged), "{found} of {acknowledged}");
    let (ok, text) = nodes.status();
    assert!(ok && text.contains("follower") && text.contains("leader"), "{text}");
    assert!(server.stop().success());
    // All of the nodes at once: what was acknowledged is on their disks.
    (0..3).for_each(|n| nodes.kill(n));
    (0..3).for_each(|n| nodes.start_node(n));
    let (ok, text) = output(cenote(&["check", "--storage", &nodes.addresses()]).args(["--data", elsewhere.text()]));
    assert!(ok && text.contains("all is well"), "{text}");
    let server = nodes.server(&elsewhere, "dram");
    assert_eq!(count(&server, 0, i32::MAX), found);
}

/// A node's disk is lost under load. Its new directory takes the place of the lost one at an operator's word, and
/// counts as soon as it is let in: another node may go then.
#[test]
fn a_lost_directory_is_replaced_under_load() {
    let mut nodes = Nodes::start();
    let data = Data::new();
    let server = nodes.server(&data, "dram");
    make_table(&server);
    let writer = Writer::start(&server, 0);
    writer.reaches(200);
    let lost = nodes.leader();
    nodes.kill(lost);
    let number = (lost + 1).to_string();
    std::fs::remove_dir_all(nodes.directory.path().join(&number)).unwrap();
    let mut replace = cenote(&["storage", "replace", "--node", &number, "--storage", &nodes.addresses()]);
    let (ok, text) = output(&mut replace);
    assert!(!ok && text.contains("start it with its new directory"), "{text}");
    nodes.start_node(lost);
    let (ok, text) = output(&mut replace);
    assert!(ok && text.contains("is let in"), "{text}");
    let deadline = Instant::now() + TIMEOUT;
    let port = format!(":{} ", nodes.ports[lost]);
    loop {
        let (_, text) = nodes.status();
        let line = text.lines().find(|line| line.contains(&port)).unwrap_or_default();
        if line.contains("follower") && line.contains("nothing") && !line.contains(" 0 ") {
            break;
        }
        assert!(Instant::now() < deadline, "node {number} does not come back: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let reached = writer.acknowledged();
    nodes.kill((lost + 1) % 3);
    writer.reaches(reached + 200);
    let acknowledged = i64::from(writer.end());
    let found = count(&server, 0, i32::MAX);
    assert!(found >= acknowledged, "{found} of {acknowledged}");
}

/// A server that is stopped while another takes the database acknowledges nothing when it goes on, and ends.
#[test]
fn a_server_that_was_passed_over_ends() {
    let nodes = Nodes::start();
    let (one, other) = (Data::new(), Data::new());
    let mut former = nodes.server(&one, "dram");
    make_table(&former);
    let first = Writer::start(&former, 0);
    first.reaches(50);
    signal(&former, Signal::STOP);
    std::thread::sleep(Duration::from_millis(300));
    let before = first.acknowledged();
    let next = nodes.server(&other, "dram");
    let found = count(&next, 0, i32::MAX);
    assert!(found >= i64::from(before), "{found} of {before}");
    signal(&former, Signal::CONT);
    let deadline = Instant::now() + TIMEOUT;
    while former.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the former server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    // What was on its way to the nodes before may be acknowledged late: the next server has it.
    let acknowledged = i64::from(first.end());
    assert!(
        acknowledged <= found,
        "{acknowledged} were acknowledged, and {found} are there"
    );
    assert_eq!(count(&next, 0, i32::MAX), found, "nothing came since");
}

/// With a region the server finds its pages as they were, and what only its ring had.
#[test]
fn a_region_is_found_again_beside_nodes() {
    let nodes = Nodes::start();
    let data = Data::new();
    let mut server = nodes.server(&data, "cxl");
    make_table(&server);
    let writer = Writer::start(&server, 0);
    writer.reaches(200);
    server.kill();
    let acknowledged = writer.end();
    let server = nodes.server(&data, "cxl");
    let said = server.said.join("\n");
    assert!(said.contains("recovery   instant"), "{said}");
    let found = count(&server, 0, i32::MAX);
    assert!(found >= i64::from(acknowledged), "{found} of {acknowledged}");
    // The region is this directory's, though the database is not there.
    let (ok, text) = output(&mut cenote(&["region", "list"]));
    assert!(ok && text.contains(data.text()), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let nodes = Nodes::start();
    let refused = |command: &mut Command, why: &str| {
        let (ok, text) = output(command);
        assert!(!ok && text.contains(why), "{text}");
    };
    refused(&mut cenote(&["storage"]), "--node N --nodes");
    refused(
        &mut cenote(&["storage", "--node", "4", "--nodes", "1=127.0.0.1:1"]),
        "node 4 is none",
    );
    refused(
        &mut cenote(&["storage", "--node", "1", "--nodes", "1=0.0.0.0:6001"]),
        "--storage-secret-file",
    );
    refused(&mut nodes.node(1), "in use by another storage node");
    let data = Data::new();
    let mut stranger = nodes.run(&data, "dram");
    refused(
        stranger.args(["--storage-cluster", "another"]),
        "of the cluster \"cenote\", not of \"another\"",
    );
    // A directory that has a database of its own.
    let mut own = Process::start(data.path());
    assert!(own.stop().success());
    refused(&mut nodes.run(&data, "dram"), "a database lies in");
}
