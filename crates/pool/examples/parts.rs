//! What a memory node with many parts costs, in a process of its own: threads, processor time while nothing happens,
//! and what a member's request takes over its ring.
//!
//! `cargo run --release -p cenote-pool --example parts -- [PARTS] [SECONDS]`: 1,000 parts and 10 s unless told.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::loopback::Nodes;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::host::Machine;
use cenote_pool::manager::{LEASE_DEFAULT, Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_space::{EXTENT, HostOptions, Hosts, Space};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Of one part.
const EXTENTS: u64 = 2;
const WAIT: Nanos = Nanos::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, manager, directory, parts] = &*arguments
        && role == "node"
    {
        return node(Path::new(directory), manager, parts.parse().expect("a number"));
    }
    let number = |n: usize, default| arguments.get(n).and_then(|text| text.parse().ok()).unwrap_or(default);
    measure(number(0, 1000), number(1, 10));
}

fn measure(parts: u64, seconds: u64) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = manager(directory.path());
    let node = Beside::start(directory.path(), manager.address(), parts);
    println!("threads of the node before: {}", node.threads());
    println!("idle before: {:.2}% of a core", node.idle(seconds));
    let began = rt::now();
    let client = client(manager.address());
    for n in 0..parts {
        client
            .create_space(&format!("space-{n}"), EXTENTS * EXTENT, None)
            .expect("a space");
    }
    println!("{parts} spaces made in {} ms", rt::now().since(began).raw() / 1_000_000);
    println!("threads with {parts} parts: {}", node.threads());
    println!("idle: {:.2}% of a core", node.idle(seconds));
    println!("processor time so far: {}", node.by_thread());
    let open: Vec<Space> = (0..parts.min(100)).map(|n| open(&client, n)).collect();
    println!("idle with {} members: {:.2}% of a core", open.len(), node.idle(seconds));
    requests(&open);
}

fn manager(directory: &Path) -> Manager {
    let options = ManagerOptions {
        directory: directory.join("manager"),
        listen: "127.0.0.1:0".into(),
        tenants: Default::default(),
        lease: LEASE_DEFAULT,
    };
    Manager::start(options, &Tcp).expect("a manager")
}

/// The process beside: a memory node, until its input ends.
fn node(directory: &Path, manager: &str, parts: u64) {
    let (hosts, nodes) = (Arc::new(Hosts::default()), Arc::new(Nodes::default()));
    nodes.add("node").serve(Arc::clone(&hosts) as _);
    let options = NodeOptions {
        pod: "rack1".into(),
        bytes: (parts + 1) * (EXTENTS + 1) * EXTENT,
        directory: directory.join("node"),
        manager: manager.into(),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: Some(NodeCalls {
            address: "node".into(),
            callers: nodes,
            hosts,
            registrar: None,
            options: HostOptions::default(),
        }),
    };
    let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node");
    assert!(node.wait_joined(WAIT), "the manager takes the node");
    println!("joined");
    std::io::stdin().lines().for_each(drop);
}

fn client(manager: &str) -> PoolClient {
    let credentials = Credentials {
        manager: manager.into(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    };
    let network: Arc<dyn Network> = Arc::new(Tcp);
    PoolClient::connect(&network, &credentials, ClientOptions::default()).expect("a client")
}

fn open(client: &PoolClient, n: u64) -> Space {
    client.open_space(&format!("space-{n}")).expect("it is there")
}

/// The node's process, and what it costs.
struct Beside(Child);

impl Beside {
    fn start(directory: &Path, manager: &str, parts: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["node", manager])
            .arg(directory)
            .arg(parts.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        assert_eq!(line, "joined\n");
        Self(child)
    }

    /// So long, after a rest, and how much processor time went by.
    fn idle(&self, seconds: u64) -> f64 {
        rt::sleep(Nanos::from_secs(2));
        let before = self.ticks();
        rt::sleep(Nanos::from_secs(seconds));
        // A tick is 10 ms.
        (self.ticks() - before) as f64 / seconds as f64
    }

    fn file(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0.id()).into()
    }

    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(self.file("stat")).expect("a file");
        ticks(&stat)
    }

    /// Processor time of each kind of thread so far, those that have some.
    fn by_thread(&self) -> String {
        let mut all = BTreeMap::<String, u64>::new();
        for task in std::fs::read_dir(self.file("task")).expect("a directory").flatten() {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let name = stat.split(['(', ')']).nth(1).unwrap_or("").to_owned();
            *all.entry(name).or_default() += ticks(&stat);
        }
        let all = all.iter().filter(|(_, ticks)| **ticks > 0);
        let shown = all.map(|(name, ticks)| format!("{name} {} ms", ticks * 10));
        shown.collect::<Vec<_>>().join(", ")
    }

    fn threads(&self) -> usize {
        std::fs::read_dir(self.file("task")).expect("a directory").count()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Of a process's or thread's `stat`: processor time, in ticks.
fn ticks(stat: &str) -> u64 {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

/// Requests of one member, over its ring: one after the other, and after pauses.
fn requests(open: &[Space]) {
    for pause in [Nanos::ZERO, Nanos::from_millis(5)] {
        let mut took = Vec::new();
        for round in 0..400 {
            let space = &open[round % open.len().min(4)];
            rt::sleep(pause);
            let began = rt::now();
            let address = space.session().alloc(1 << 10).expect("room");
            took.push(rt::now().since(began).raw());
            space.free(address).expect("freed");
        }
        took.sort_unstable();
        let at = |q: usize| took[took.len() * q / 100] as f64 / 1e3;
        println!(
            "begin and take, {} ms between: p50 {:.1} us, p90 {:.1} us",
            pause.raw() / 1_000_000,
            at(50),
            at(90)
        );
    }
}
