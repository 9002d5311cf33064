//! What a manager with many memory nodes and clients costs: processor time while nothing happens, what clients' requests
//! take, and memory.
//!
//! `cargo run --release -p cenote-pool --example nodes -- [NODES] [CLIENTS] [SECONDS]`: 1,000 nodes and 10,000 clients
//! (each in a process beside), and 10 s unless told.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::{Credentials, GrantRequest, GrantedMemory, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::{LEASE_DEFAULT, Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_space::EXTENT;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const EXTENTS: u64 = 16;
const WAIT: Nanos = Nanos::from_secs(600);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [role, manager, directory, count] if role == "nodes" => {
            return nodes(manager, Path::new(directory), count.parse().expect("a number"));
        }
        [role, manager, count] if role == "clients" => {
            return clients(manager, count.parse().expect("a number"));
        }
        _ => {}
    }
    let number = |n: usize, default| arguments.get(n).and_then(|text| text.parse().ok()).unwrap_or(default);
    measure(number(0, 1000), number(1, 10_000), number(2, 10) as u64);
}

/// The process beside: memory nodes, until its input ends.
fn nodes(manager: &str, directory: &Path, count: u64) {
    let start = |n: u64| {
        let options = NodeOptions {
            pod: format!("rack{}", n / 10),
            bytes: EXTENTS * EXTENT,
            directory: directory.join(n.to_string()),
            manager: manager.into(),
            secret: String::new(),
            listen: "127.0.0.1:0".into(),
            calls: None,
        };
        MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node")
    };
    let nodes: Vec<MemoryNode> = (0..count).map(start).collect();
    std::io::stdin().lines().for_each(drop);
    // They end with their process.
    std::mem::forget(nodes);
}

/// The process beside: clients that are idle, until its input ends.
fn clients(manager: &str, count: u64) {
    let clients: Vec<PoolClient> = (0..count).map(|_| client(manager)).collect();
    println!("{} clients came", clients.len());
    std::io::stdin().lines().for_each(drop);
    std::mem::forget(clients);
}

struct Beside(Child);

impl Beside {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("a process"))
    }

    /// Waits until it says something, and says it, too.
    fn tell(&mut self) {
        let mut line = String::new();
        let output = self.0.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        print!("{line}");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn measure(nodes: usize, clients: usize, seconds: u64) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let options = ManagerOptions {
        directory: directory.path().join("manager"),
        listen: "127.0.0.1:0".into(),
        tenants: Default::default(),
        lease: LEASE_DEFAULT,
    };
    let manager = Manager::start(options, &Tcp).expect("a manager");
    let place = directory.path().to_str().expect("a text");
    let _nodes = Beside::start(&["nodes", manager.address(), place, &nodes.to_string()]);
    let began = rt::now();
    let operator = Operator::connect(&Tcp, &credentials(manager.address())).expect("an operator");
    while operator
        .status()
        .expect("a status")
        .nodes
        .iter()
        .filter(|node| node.connected)
        .count()
        < nodes
    {
        assert!(rt::now().since(began) < WAIT, "the nodes come");
        rt::sleep(Nanos::from_millis(500));
    }
    println!("{nodes} nodes; threads: {}, memory: {} MiB", threads(), memory());
    println!("idle: {:.2}% of a core", idle(seconds));
    requests(manager.address());
    let mut idle_clients = Beside::start(&["clients", manager.address(), &clients.to_string()]);
    idle_clients.tell();
    println!("threads: {}, memory: {} MiB", threads(), memory());
    println!("idle: {:.2}% of a core", idle(seconds));
    requests(manager.address());
}

fn credentials(manager: &str) -> Credentials {
    Credentials {
        manager: manager.into(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    }
}

fn client(manager: &str) -> PoolClient {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    PoolClient::connect(&network, &credentials(manager), ClientOptions::default()).expect("a client")
}

/// Opens and gives back.
fn requests(manager: &str) {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let (mut opened, mut released) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let requested = GrantRequest {
            label: format!("label-{n}"),
            description: String::new(),
            bytes: EXTENT,
            pod: None,
            keep: None,
            mirror: false,
            host: None,
        };
        let began = rt::now();
        let memory = GrantedMemory::open(&network, &credentials(manager), requested, Box::new(|_| {}));
        opened.push(rt::now().since(began).raw());
        let began = rt::now();
        memory.expect("granted").release(true).expect("released");
        released.push(rt::now().since(began).raw());
    }
    for (what, mut took) in [("open", opened), ("release", released)] {
        took.sort_unstable();
        println!("{what}: p50 {} us, p90 {} us", took[50] / 1000, took[90] / 1000);
    }
}

/// So long, and how much processor time of this process went by.
fn idle(seconds: u64) -> f64 {
    rt::sleep(Nanos::from_secs(3));
    let before = used();
    rt::sleep(Nanos::from_secs(seconds));
    (used() - before) / seconds as f64 * 100.0
}

/// Seconds of processor time.
fn used() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a file");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("a directory").count()
}

/// In MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a file");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}
