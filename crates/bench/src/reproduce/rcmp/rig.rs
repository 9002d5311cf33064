//! A run: pods in a simulated world, one system, one load, and what came of it.
//!
//! 1. Each pod is a host with processors, its own DRAM, a network card and some memory nodes. Its process starts what
//!    serves ([`Kind::serve`]).
//! 2. When all serve, each pod opens the memory as its clients see it ([`Kind::open`]) and starts its clients.
//! 3. They run until the window ends; what ends inside of it is counted.
//!
//! All systems poll: waiting for a message takes no context switch.

use super::load::{Client, Load};
use super::store::{Costs, Layout, Store};
use super::{coherent, ethernet, object, pool, swap};
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_fabric::rdma::Remote;
use cenote_fabric::rdma::call::Serve;
use cenote_sim::rdma::{Faults, MemoryNode, Network, Serving};
use cenote_sim::{CacheSpec, DeviceSpec, Exit, HostSpec, Machinery, Pace, Process, Topology, World};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Network cards.
pub const NETWORK: &str = "rcmp-rdma";
/// Memory of a pod, and that of a host.
pub const CXL: &str = "rcmp-cross-node";
/// Memory of a host.
pub const LOCAL: &str = "rcmp-node-local";
/// Hardware threads of the paper's servers: two Xeon Gold 5218R.
const VCPUS: u32 = 80;

/// The systems that are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Cenote's pool, which follows Rcmp.
    Pool(pool::Options),
    /// Page swapping, as Fastswap.
    Swap,
    /// Objects by one-sided reads, as FaRM.
    Object,
    /// Caches kept coherent by directories, as GAM.
    Coherent,
    /// CXL over Ethernet: a proxy in each pod.
    Ethernet,
}

impl Kind {
    /// All, the pool as it is by default.
    pub fn all() -> [Kind; 5] {
        [
            Kind::Pool(pool::Options::default()),
            Kind::Swap,
            Kind::Object,
            Kind::Coherent,
            Kind::Ethernet,
        ]
    }

    /// For tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pool(_) => "Cenote",
            Kind::Swap => "page swapping (Fastswap)",
            Kind::Object => "objects (FaRM)",
            Kind::Coherent => "coherent caches (GAM)",
            Kind::Ethernet => "CXL over Ethernet",
        }
    }

    /// Whether it keeps in the host's own memory what it has read.
    pub fn caches(self) -> bool {
        matches!(self, Kind::Swap | Kind::Coherent)
    }

    /// Starts what serves in a pod. It goes on until the nodes are lost.
    fn serve(self, rig: &Arc<Rig>, pod: usize) -> Served {
        match self {
            Kind::Pool(options) => Served::Pool(pool::serve(rig, pod, options)),
            Kind::Swap | Kind::Ethernet => Served::Nothing,
            Kind::Object => {
                object::serve(rig, pod);
                Served::Nothing
            }
            Kind::Coherent => Served::Coherent(coherent::serve(rig, pod)),
        }
    }

    /// The memory as the clients of a pod see it, when all pods serve.
    fn open(self, rig: &Arc<Rig>, pod: usize, served: &Served) -> Arc<dyn Store> {
        match (self, served) {
            (Kind::Pool(_), Served::Pool(hosts)) => Arc::new(pool::open(rig, pod, hosts)),
            (Kind::Coherent, Served::Coherent(cache)) => Arc::clone(cache) as Arc<dyn Store>,
            (Kind::Object, _) => Arc::new(object::open(rig, pod)),
            (Kind::Ethernet, _) => Arc::new(ethernet::open(rig, pod)),
            _ => Arc::new(swap::open(rig, pod)),
        }
    }
}

/// What a pod has to keep while it serves.
enum Served {
    Nothing,
    Pool(pool::Hosts),
    Coherent(Arc<coherent::Cache>),
}

/// How large everything is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Where bytes lie.
    pub layout: Layout,
    /// Clients of each pod.
    pub clients: usize,
    /// Bytes of a host's own memory that a system may keep copies in.
    pub local: u64,
    /// A host's processor cache.
    pub cache: u64,
    /// Bytes of an object, where the system has objects.
    pub object: u64,
}

/// The paper's data are 64 times as large: 100 million items of 64 bytes.
pub const BYTES: u64 = 96 << 20;

impl Shape {
    /// Pods of so many clients each. The paper's sizes, each by 64: 6.4 GB of data, 1 GB of own memory, 27.5 MB of
    /// cache.
    pub fn of(pods: usize, clients: usize, servers: usize) -> Shape {
        let grain = (pods * servers) as u64 * 2 * super::store::SEGMENT;
        Shape {
            layout: Layout {
                pods,
                servers,
                bytes: BYTES.next_multiple_of(grain),
            },
            clients,
            local: 16 << 20,
            cache: 512 << 10,
            object: 64,
        }
    }
}

/// A run to be.
#[derive(Debug, Clone)]
pub struct Run {
    /// Which system.
    pub kind: Kind,
    /// How large.
    pub shape: Shape,
    /// What clients do.
    pub load: Load,
    /// Before counting.
    pub settle: Nanos,
    /// Counted.
    pub window: Nanos,
    /// Messages are late by up to so much, so that they overtake each other. Nothing in the experiments.
    pub late: Nanos,
    /// Of the simulation.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Operations a second, of all pods.
    pub rate: f64,
    /// Mean latency of an operation.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Operations a second of each pod.
    pub by_pod: Vec<f64>,
    /// What the stores tell, each of its pod.
    pub told: Vec<(&'static str, u64)>,
}

impl Measured {
    /// A number that the stores tell, of all pods together.
    pub fn told(&self, name: &str) -> u64 {
        self.told
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, value)| value)
            .sum()
    }
}

/// A running world, as all its pods know it. Not part of any simulated memory.
pub struct Rig {
    /// How large.
    pub shape: Shape,
    /// Processor time.
    pub costs: Costs,
    /// The cards.
    pub network: Network,
    /// Memory nodes, by lane.
    pub nodes: Vec<MemoryNode>,
    /// Their memory, where it is registered.
    pub memory: Vec<OnceLock<Remote>>,
    /// What serves coherent caches, by pod.
    pub caches: Vec<MemoryNode>,
    /// Where the pool's segments are, by lane.
    pub segments: Vec<OnceLock<Vec<pool::Segment>>>,
    /// Who keeps the pool's parts, by lane, while its pod runs.
    pub keepers: Vec<Mutex<Option<Arc<cenote_space::LocalKeeper>>>>,
    serving: AtomicU64,
    settled: AtomicU64,
    done: AtomicU64,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    latency: Option<Histogram<u64>>,
    by_pod: BTreeMap<usize, u64>,
    told: Vec<(&'static str, u64)>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("3 digits are few")
}

/// Between two looks whether all pods are as far.
const TURN: Nanos = Nanos::from_micros(20);

impl Rig {
    fn new(run: &Run) -> Result<Rig> {
        let profile = profile::named(NETWORK).map_err(impossible)?;
        let (network, layout) = (Network::new(&profile, run.seed), run.shape.layout);
        network.set_faults(Faults {
            delay: run.late,
            ..Faults::default()
        });
        let lanes = 0..layout.lanes();
        Ok(Rig {
            shape: run.shape,
            costs: Costs::default(),
            nodes: lanes.clone().map(|lane| network.add_node(&name(lane))).collect(),
            caches: (0..layout.pods).map(|pod| network.add_node(&cache_name(pod))).collect(),
            memory: lanes.clone().map(|_| OnceLock::new()).collect(),
            segments: lanes.clone().map(|_| OnceLock::new()).collect(),
            keepers: lanes.map(|_| Mutex::default()).collect(),
            network,
            serving: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            done: AtomicU64::new(0),
            counted: Mutex::default(),
        })
    }

    /// The registered memory of a node.
    pub fn remote(&self, lane: usize) -> Remote {
        *self.memory[lane]
            .get()
            .expect("it was registered before anybody serves")
    }

    /// Registers memory of so many bytes at a node, filled by `fill`.
    pub fn register(&self, lane: usize, bytes: u64, fill: impl FnOnce(&mut [u8])) {
        let remote = self.nodes[lane].register(bytes);
        self.nodes[lane].inspect(remote.key, fill);
        self.memory[lane].set(remote).expect("once");
    }

    /// Starts a program that serves a node, in a thread of its own; it goes on until the node is lost.
    pub fn serve(&self, node: &MemoryNode, program: Arc<dyn Serve>) {
        let (theirs, cost) = (node.clone(), self.costs.message + self.costs.message);
        rt::spawn("program", move || {
            let serving = Serving {
                cost,
                ..Serving::default()
            };
            theirs.serve(&*program, serving);
        });
        while !node.is_served() {
            rt::sleep(Nanos::from_micros(1));
        }
    }

    fn arrive_and_wait(&self, at: &AtomicU64) {
        at.fetch_add(1, SeqCst);
        while at.load(SeqCst) < self.shape.layout.pods as u64 {
            rt::sleep(TURN);
        }
    }

    fn add(&self, pod: usize, latency: &Histogram<u64>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.by_pod.entry(pod).or_default() += latency.len();
        let all = counted.latency.get_or_insert_with(histogram);
        all.add(latency).expect("of the same kind");
    }

    fn measured(&self, window: Nanos) -> Measured {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let latency = counted.latency.take().unwrap_or_else(histogram);
        Measured {
            rate: latency.len() as f64 / window.as_secs_f64(),
            mean_us: latency.mean() / 1e3,
            p50_us: latency.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latency.value_at_quantile(0.99) as f64 / 1e3,
            by_pod: counted
                .by_pod
                .values()
                .map(|n| *n as f64 / window.as_secs_f64())
                .collect(),
            told: std::mem::take(&mut counted.told),
        }
    }
}

/// What a memory node is called.
pub fn name(lane: usize) -> String {
    format!("memory{lane}")
}

/// What a pod's coherent cache is called.
pub fn cache_name(pod: usize) -> String {
    format!("cache{pod}")
}

/// Where the pool's part of a lane lies.
pub fn device(lane: usize) -> std::path::PathBuf {
    format!("/dev/sim/part{lane}").into()
}

pub(super) fn impossible(error: cenote_base::Error) -> Error {
    Error::Simulation(error.to_string())
}

/// Everybody polls. And nobody is ahead of the others by more than a little: messages take two microseconds here, and a
/// program that serves would take them up to the slack too early.
pub(super) fn machinery() -> Machinery {
    Machinery {
        context_switch: Nanos::ZERO,
        slack: Nanos(20),
        ..Machinery::default()
    }
}

fn topology(run: &Run) -> Result<Topology> {
    let (shape, layout) = (run.shape, run.shape.layout);
    let mut topology = Topology::default();
    for pod in 0..layout.pods {
        topology.hosts.push(HostSpec {
            cache: CacheSpec {
                bytes: shape.cache,
                ways: 16,
            },
            memory: profile::named(LOCAL).map_err(impossible)?,
            ..HostSpec::new(&format!("pod{pod}"), VCPUS)
        });
    }
    if let Kind::Pool(_) = run.kind {
        let bytes = pool::part_bytes(layout.lane_bytes());
        for lane in 0..layout.lanes() {
            topology.devices.push(DeviceSpec {
                coherent: true,
                ..DeviceSpec::new(&format!("part{lane}"), bytes, CXL).map_err(impossible)?
            });
        }
    }
    Ok(topology)
}

impl Run {
    /// Runs it.
    pub fn go(&self) -> Result<Measured> {
        let world = World::new(self.seed, Pace::Project, topology(self)?).map_err(impossible)?;
        let world = world.with_machinery(machinery()).with_stacks(256 << 10);
        let rig = Arc::new(Rig::new(self)?);
        let exits = world.run(|w| self.start(w, &rig)).value;
        match exits.into_iter().find(|exit| *exit != Exit::Returned) {
            Some(exit) => Err(Error::Simulation(format!(
                "{}: a pod has ended: {exit:?}",
                self.kind.name()
            ))),
            None => Ok(rig.measured(self.window)),
        }
    }

    fn start(&self, w: &World, rig: &Arc<Rig>) -> Vec<Exit> {
        let pod = |pod: usize| {
            let (run, rig) = (self.clone(), Arc::clone(rig));
            w.process(pod, "pod", move || run.pod(&rig, pod))
        };
        let pods: Vec<Process> = (0..self.shape.layout.pods).map(pod).collect();
        loop {
            // Whoever fails leaves the others waiting for him.
            let is_bad = |pod: &Process| !pod.is_running() && pod.join() != Exit::Returned;
            let bad = pods.iter().any(is_bad);
            if bad || pods.iter().all(|pod| !pod.is_running()) {
                pods.iter().filter(|pod| pod.is_running()).for_each(Process::kill);
                return pods
                    .iter()
                    .map(Process::join)
                    .filter(|exit| !bad || *exit != Exit::Killed)
                    .collect();
            }
            rt::sleep(Nanos::from_micros(200));
        }
    }

    /// The body of a pod's process.
    fn pod(&self, rig: &Arc<Rig>, pod: usize) {
        let served = self.kind.serve(rig, pod);
        rig.arrive_and_wait(&rig.serving);
        let store = self.kind.open(rig, pod, &served);
        rig.arrive_and_wait(&rig.settled);
        let begin = rt::now() + self.settle;
        let start = |n: usize| self.client(rig, &store, (pod, n), begin);
        let clients: Vec<_> = (0..self.shape.clients).map(start).collect();
        for client in clients {
            if let Err(panic) = client.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let mut told = store.tells();
        if let Served::Pool(hosts) = &served {
            told.extend(pool::tells(hosts));
        }
        rig.counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .told
            .extend(told);
        rig.arrive_and_wait(&rig.done);
        let nodes = rig.shape.layout.of_pod(pod).map(|lane| &rig.nodes[lane]);
        nodes.chain([&rig.caches[pod]]).for_each(MemoryNode::lose);
        for lane in rig.shape.layout.of_pod(pod) {
            drop(rig.keepers[lane].lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        drop((store, served));
    }

    fn client(&self, rig: &Arc<Rig>, store: &Arc<dyn Store>, who: (usize, usize), begin: Nanos) -> rt::JoinHandle<()> {
        let (run, rig, store) = (self.clone(), Arc::clone(rig), Arc::clone(store));
        rt::spawn("client", move || {
            let mut client = Client::new(&run.load, run.shape.layout, who, run.seed);
            let (end, mut latency) = (begin + run.window, histogram());
            let mut before = rt::now();
            while before < end {
                client.operate(&*store).expect("nothing fails here");
                let now = rt::now();
                if now >= begin && now < end {
                    latency
                        .record(now.since(before).raw().max(1))
                        .expect("it grows as needed");
                }
                before = now;
            }
            rig.add(who.0, &latency);
        })
    }
}
