//! What a memory node with many parts costs: threads, processor time while nothing happens, and what a member's
//! request takes over its ring.
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
use std::path::Path;
use std::sync::Arc;

/// Of one part.
const EXTENTS: u64 = 2;
const WAIT: Nanos = Nanos::from_secs(60);

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    let (parts, seconds) = (*numbers.first().unwrap_or(&1000), *numbers.get(1).unwrap_or(&10));
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = manager(directory.path());
    let node = node(directory.path(), manager.address(), parts);
    assert!(node.wait_joined(WAIT), "the manager takes the node");
    println!("threads before: {}", threads());
    let began = rt::now();
    let client = client(manager.address());
    for n in 0..parts {
        client
            .create_space(&format!("space-{n}"), EXTENTS * EXTENT, None)
            .expect("a space");
    }
    println!("{parts} spaces made in {} ms", rt::now().since(began).raw() / 1_000_000);
    println!("threads with {parts} parts: {}", threads());
    println!("idle: {:.2}% of a core", idle(seconds));
    println!("processor time so far: {}", by_thread());
    let open: Vec<Space> = (0..parts.min(100)).map(|n| open(&client, n)).collect();
    println!("idle with {} members: {:.2}% of a core", open.len(), idle(seconds));
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

fn node(directory: &Path, manager: &str, parts: u64) -> MemoryNode {
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
    MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node")
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

/// Of the sleeping kind: so long, and how much processor time of this process went by.
fn idle(seconds: u64) -> f64 {
    rt::sleep(Nanos::from_secs(2));
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

/// Processor time of each kind of thread so far, those that have some.
fn by_thread() -> String {
    let mut all = std::collections::BTreeMap::<String, u64>::new();
    for task in std::fs::read_dir("/proc/self/task").expect("a directory").flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let name = stat.split(['(', ')']).nth(1).unwrap_or("").to_owned();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        *all.entry(name).or_default() += ticks(11) + ticks(12);
    }
    let all = all.iter().filter(|(_, ticks)| **ticks > 0);
    all.map(|(name, ticks)| format!("{name} {} ms", ticks * 10))
        .collect::<Vec<_>>()
        .join(", ")
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("a directory").count()
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
