//! A run: pods in a simulated world, one system, one load, and the numbers that they give.
//!
//! 1. Each pod is a host with processors, its own DRAM, a network card and some memory nodes. Its process starts the
//!    programs that serve ([`Kind::serve`]).
//! 2. When all serve, each pod opens the memory as its clients see it ([`Kind::open`]) and starts its clients.
//! 3. The clients run until the window ends; operations that end inside of it are counted.
//!
//! All systems poll: waiting for a message takes no context switch.

use super::load::{Client, Load};
use super::rig::{CXL, LOCAL, Measured, Rig, Shape, histogram, impossible, machinery};
use super::store::Store;
use super::{coherent, ethernet, object, pool, swap};
use crate::{Error, Result};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_sim::rdma::MemoryNode;
use cenote_sim::{CacheSpec, DeviceSpec, Exit, HostSpec, Pace, Process, Topology, World};
use std::sync::{Arc, PoisonError};

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

    /// Starts the programs that serve in a pod. They go on until the nodes are lost.
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
            (Kind::Pool(options), Served::Pool(hosts)) => Arc::new(pool::open(rig, pod, hosts, options)),
            (Kind::Coherent, Served::Coherent(cache)) => Arc::clone(cache) as Arc<dyn Store>,
            (Kind::Object, _) => Arc::new(object::open(rig, pod)),
            (Kind::Ethernet, _) => Arc::new(ethernet::open(rig, pod)),
            _ => Arc::new(swap::open(rig, pod)),
        }
    }
}

/// The part of a system that a pod keeps while it serves.
enum Served {
    Nothing,
    Pool(pool::Hosts),
    Coherent(Arc<coherent::Cache>),
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
    ///
    /// # Errors
    /// [`Error::Simulation`] if the world cannot be set up, or if a pod ends before its time.
    pub fn go(&self) -> Result<Measured> {
        self.digested().map(|(measured, _)| measured)
    }

    /// Runs it; beside the numbers a word that stands for every choice of the simulation.
    ///
    /// # Errors
    /// As [`Run::go`].
    pub fn digested(&self) -> Result<(Measured, u64)> {
        let world = World::new(self.seed, Pace::Project, topology(self)?).map_err(impossible)?;
        let world = world.with_machinery(machinery()).with_stacks(256 << 10);
        let rig = Arc::new(Rig::new(self.shape, self.late, self.seed)?);
        let outcome = world.run(|w| self.start(w, &rig));
        match outcome.value.into_iter().find(|exit| *exit != Exit::Returned) {
            Some(exit) => Err(Error::Simulation(format!(
                "{}: a pod has ended: {exit:?}",
                self.kind.name()
            ))),
            None => Ok((rig.measured(self.window), outcome.digest)),
        }
    }

    fn start(&self, w: &World, rig: &Arc<Rig>) -> Vec<Exit> {
        let pod = |pod: usize| {
            let (run, rig) = (self.clone(), Arc::clone(rig));
            w.process(pod, "pod", move || run.pod(&rig, pod))
        };
        let pods: Vec<Process> = (0..self.shape.layout.pods).map(pod).collect();
        loop {
            // A pod that fails leaves the others waiting for it.
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
        rig.add_told(told);
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
