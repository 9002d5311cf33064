//! The rig of a run: network, memory nodes and counters, which the pods and the systems under test share.

use super::store::{Costs, Layout, SEGMENT};
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_fabric::rdma::Remote;
use cenote_fabric::rdma::call::Serve;
use cenote_sim::Machinery;
use cenote_sim::rdma::{Faults, MemoryNode, Network, Serving};
use cenote_space::{GlobalAddress, LocalKeeper};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

/// Network cards.
pub const NETWORK: &str = "rcmp-rdma";
/// Memory of a pod, and that of a host.
pub const CXL: &str = "rcmp-cross-node";
/// Memory of a host.
pub const LOCAL: &str = "rcmp-node-local";
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
        let grain = (pods * servers) as u64 * 2 * SEGMENT;
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

/// The numbers of a run.
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

/// A segment of the pool, and its lock.
#[derive(Debug, Clone, Copy)]
pub struct PoolSegment {
    /// Its bytes.
    pub bytes: GlobalAddress,
    /// Its lock.
    pub lock: GlobalAddress,
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
    pub segments: Vec<OnceLock<Vec<PoolSegment>>>,
    /// The keepers of the pool's parts, by lane, while their pod runs.
    pub keepers: Vec<Mutex<Option<Arc<LocalKeeper>>>>,
    pub(super) serving: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) done: AtomicU64,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    latency: Option<Histogram<u64>>,
    by_pod: BTreeMap<usize, u64>,
    told: Vec<(&'static str, u64)>,
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("3 digits are few")
}

/// Between two looks whether all pods are as far.
const TURN: Nanos = Nanos::from_micros(20);

impl Rig {
    /// The rig of a run; messages are late by up to `late`.
    ///
    /// # Errors
    /// [`Error::Simulation`] if there is no profile of the network.
    pub fn new(shape: Shape, late: Nanos, seed: u64) -> Result<Rig> {
        let profile = profile::named(NETWORK).map_err(impossible)?;
        let (network, layout) = (Network::new(&profile, seed), shape.layout);
        network.set_faults(Faults {
            delay: late,
            ..Faults::default()
        });
        let lanes = 0..layout.lanes();
        Ok(Rig {
            shape,
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
            .expect("it was registered before any program serves")
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
                copies: Some(copies()),
                ..Serving::default()
            };
            theirs.serve(&*program, serving);
        });
        while !node.is_served() {
            rt::sleep(Nanos::from_micros(1));
        }
    }

    /// Notes that a pod is as far as `at` counts, and waits for the others.
    pub(super) fn arrive_and_wait(&self, at: &AtomicU64) {
        at.fetch_add(1, SeqCst);
        while at.load(SeqCst) < self.shape.layout.pods as u64 {
            rt::sleep(TURN);
        }
    }

    /// Counts the operations of a client.
    pub(super) fn add(&self, pod: usize, latency: &Histogram<u64>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.by_pod.entry(pod).or_default() += latency.len();
        let all = counted.latency.get_or_insert_with(histogram);
        all.add(latency).expect("of the same kind");
    }

    /// Adds numbers that a store tells.
    pub(super) fn add_told(&self, told: Vec<(&'static str, u64)>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.told.extend(told);
    }

    /// The numbers of the run, whose window was `window`.
    pub(super) fn measured(&self, window: Nanos) -> Measured {
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

/// Bytes a second that a processor copies from its host's memory.
pub fn copies() -> f64 {
    static SPEED: LazyLock<f64> = LazyLock::new(|| {
        let speed = profile::named(LOCAL).expect("a built-in profile").stream_bandwidth;
        speed.expect("the profile says so")
    });
    *SPEED
}

/// The name of a memory node.
pub fn name(lane: usize) -> String {
    format!("memory{lane}")
}

/// The name of a pod's coherent cache.
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

/// All threads poll, and the clocks of all are nearly the same: messages take two microseconds here, and a
/// program that serves would take them up to the slack too early.
pub(super) fn machinery() -> Machinery {
    Machinery {
        context_switch: Nanos::ZERO,
        slack: Nanos(20),
        ..Machinery::default()
    }
}
