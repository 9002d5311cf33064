//! What a member's requests cost over a ring and over TCP, and far accesses by way of the memory node and over the
//! member's own connection.
//!
//! `cargo run --release -p cenote-pool --example relayed -- [SECONDS]`: so long for each cell, 1 unless told. A manager
//! and the memory nodes of two pods run in another process; calls go over libfabric's tcp on the loopback interface.
//! Rounds of both kinds come in turn, and each number is the median of the rounds'.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_libfabric::{self as libfabric, Net, NetOptions, Provider};
use cenote_pool::client::{ClientOptions, Far, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::host::Machine;
use cenote_pool::manager::{LEASE_DEFAULT, Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_pool::settings::{DEFAULT_TENANT, Tenants};
use cenote_space::EXTENT;
use cenote_space::{Class, GlobalAddress, HostOptions, Hosts, Lifetime, Read, Space};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const PODS: [&str; 2] = ["east", "west"];
const ROUNDS: usize = 7;
const BATCH: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [role, directory] if role == "pool" => serve(Path::new(directory)),
        _ => measure(arguments.first().and_then(|s| s.parse().ok()).unwrap_or(1.0)),
    }
}

// ---- the pool's process ----

fn serve(directory: &Path) {
    let manager = ManagerOptions {
        directory: directory.join("manager"),
        listen: "127.0.0.1:0".into(),
        tenants: Tenants::default(),
        lease: LEASE_DEFAULT,
    };
    let manager = Manager::start(manager, &Tcp).expect("a manager");
    let _nodes = PODS.map(|pod| start_node(directory, pod, manager.address()));
    println!("{}", manager.address());
    // Until whoever measures has ended.
    std::io::stdin().lines().for_each(drop);
}

fn start_node(directory: &Path, pod: &str, manager: &str) -> (MemoryNode, libfabric::MemoryNode) {
    let hosts = Arc::new(Hosts::default());
    let called = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(Provider::tcp())).expect("libfabric");
    called.serve(Arc::clone(&hosts) as _);
    let options = NodeOptions {
        pod: pod.into(),
        bytes: 40 * EXTENT,
        directory: directory.join(pod),
        manager: manager.into(),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: Some(NodeCalls {
            address: called.address().to_string(),
            callers: Arc::new(Net::new(NetOptions::default()).expect("libfabric")),
            hosts,
            options: HostOptions {
                every: Nanos::ZERO,
                ..HostOptions::default()
            },
        }),
    };
    let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node");
    assert!(node.wait_joined(Nanos::from_secs(30)), "it joins");
    (node, called)
}

// ---- who measures ----

struct Pool {
    child: Child,
    directory: PathBuf,
    manager: String,
}

impl Pool {
    fn start() -> Self {
        let directory = PathBuf::from(format!("/dev/shm/cenote-pool-rings-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("pool")
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let mut manager = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut manager).expect("an address");
        Self {
            child,
            directory,
            manager: manager.trim().into(),
        }
    }

    fn client(&self, pod: &str, options: ClientOptions) -> PoolClient {
        let credentials = Credentials {
            manager: self.manager.clone(),
            tenant: DEFAULT_TENANT.into(),
            secret: String::new(),
        };
        let options = ClientOptions {
            pod: Some(pod.into()),
            ..options
        };
        PoolClient::connect(&(Arc::new(Tcp) as Arc<dyn Network>), &credentials, options).expect("a client")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

/// Does it again and again in so many threads: thousand times a second; microseconds that one took, p50 and p99.
fn run(seconds: f64, threads: usize, act: &(dyn Fn() + Sync)) -> [f64; 3] {
    let until = rt::now() + Nanos((seconds * 1e9) as u64);
    let work = || {
        let mut took = Vec::new();
        while rt::now() < until {
            let begun = rt::now();
            act();
            took.push(rt::now().since(begun).raw());
        }
        took
    };
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().expect("no panic"))
            .collect()
    });
    all.sort_unstable();
    let at = |share: f64| all[(all.len() as f64 * share) as usize] as f64 / 1000.0;
    [all.len() as f64 / seconds / 1000.0, at(0.5), at(0.99)]
}

/// Both kinds in turn; a row each, and their ratio.
fn compare(what: &str, seconds: f64, threads: usize, kinds: [(&str, &(dyn Fn() + Sync)); 2]) {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..2 * ROUNDS {
        rounds[round % 2].push(run(seconds / ROUNDS as f64, threads, kinds[round % 2].1));
    }
    let medians = rounds.map(|rounds| {
        [0, 1, 2].map(|n| {
            let mut figures: Vec<f64> = rounds.iter().map(|round| round[n]).collect();
            figures.sort_unstable_by(f64::total_cmp);
            figures[ROUNDS / 2]
        })
    });
    for ((name, _), [rate, p50, p99]) in kinds.iter().zip(medians) {
        println!("| {what}, {threads} threads | {name} | {rate:.1} | {p50:.1} | {p99:.1} |");
    }
}

fn take_of(space: &Space) -> impl Fn() + Sync + use<> {
    let part = space.parts().next().expect("a part").number();
    let keeper = space.keeper(part).expect("its keeper");
    let (session, class) = (keeper.begin().expect("a session"), Class::of(64).expect("a class"));
    move || {
        let extent = keeper.take(session, class, Lifetime::Session).expect("room");
        keeper.give_back(session, &[extent]).expect("taken back");
    }
}

fn read_of(space: &Space, address: GlobalAddress) -> impl Fn() + Sync + use<> {
    let space = space.clone();
    move || space.read(address, &mut [0; 64]).expect("read")
}

fn batch_of(space: &Space, address: GlobalAddress) -> impl Fn() + Sync + use<> {
    let space = space.clone();
    move || {
        let mut bytes = [[0; 64]; BATCH];
        let mut reads: Vec<_> = bytes.iter_mut().map(|into| Read { address, into }).collect();
        space.read_many(&mut reads).expect("read");
    }
}

fn measure(seconds: f64) {
    let pool = Pool::start();
    let rings = |rings| ClientOptions {
        rings,
        ..ClientOptions::default()
    };
    pool.client(PODS[0], rings(true))
        .create_space("heap", 24 * EXTENT, None)
        .expect("a space");
    let open = |pod, options| pool.client(pod, options).open_space("heap").expect("open");
    let [by_ring, by_tcp] = [true, false].map(|on| open(PODS[0], rings(on)));
    println!("| | | 1000/s | p50 us | p99 us |\n|---|---|---|---|---|");
    let takes = (take_of(&by_ring), take_of(&by_tcp));
    for threads in [1, 4] {
        compare(
            "take, give back",
            seconds,
            threads,
            [("ring", &takes.0), ("TCP", &takes.1)],
        );
    }
    let address = by_ring.session().alloc(64).expect("room");
    let direct = ClientOptions {
        callers: Some(Arc::new(Net::new(NetOptions::default()).expect("libfabric"))),
        ..ClientOptions::default()
    };
    let relayed = ClientOptions {
        far: Far::Relay,
        ..ClientOptions::default()
    };
    let (relayed, direct) = (open(PODS[1], relayed), open(PODS[1], direct));
    for threads in [1, 4] {
        let reads = (read_of(&relayed, address), read_of(&direct, address));
        compare(
            "far read, 64 B",
            seconds,
            threads,
            [("relayed", &reads.0), ("direct", &reads.1)],
        );
    }
    let batches = (batch_of(&relayed, address), batch_of(&direct, address));
    compare(
        "16 far reads at once",
        seconds,
        1,
        [("relayed", &batches.0), ("direct", &batches.1)],
    );
}
