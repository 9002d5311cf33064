//! The paper's host, simulated: up to twelve instances of the engine, sixteen vCPUs each, that share a host's links.
//!
//! 1. A database is filled once, in files in memory ([`Dataset`]); each instance gets a copy.
//! 2. [`Pod::run`] makes a world of the instances of one system: CXL (frames in a switch's memory), DRAM (frames in the
//!    host's own), tiered (some of the frames in DRAM, all in remote memory over RDMA) or vanilla (some in DRAM, the
//!    rest in storage).
//! 3. Each instance opens its database and reads it once. Then come the phases, one after the other: so many instances
//!    active, so many sessions each, one mix. A phase settles before its window is counted.
//!
//! Scale: 1 to 256. A database of 24 MiB stands for 6 GiB, and a cache of 256 KiB for the share of 64 MiB that an
//! instance has of two sockets' caches. Rates need no scaling: a statement misses as many lines, and costs as much
//! time.

use super::cost::Costs;
use super::mirrors::{Mirrors, Survival};
use super::mix::Mix;
use super::workload::{Client, Pick, Session, Tables};
use crate::{Error, Result};
use cenote_base::PAGE_SIZE;
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_buffer::{FRAMES_MIN, RemoteLayout};
use cenote_engine::{Engine, EngineOptions, MemoryKind, RemoteSource};
use cenote_fabric::profile::{self, Width};
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_sim::link::Link;
use cenote_sim::rdma::Network;
use cenote_sim::topology::LinkSpec;
use cenote_sim::{CacheSpec, DeviceSpec, Exit, HostSpec, Pace, Process, Sim, Topology, World};
use cenote_testkit::faulty::{Drive, DriveCounters, MemFs};
use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, PoisonError};

/// vCPUs of an instance, and instances of a host, in the paper.
pub const VCPUS: u32 = 16;
/// Instances of a host of 192 vCPUs.
pub const INSTANCES: usize = 12;

/// Where an instance's pages are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum System {
    /// All in CXL memory behind a switch.
    Cxl,
    /// All in the host's own memory.
    Dram,
    /// This share in the host's own memory, all in remote memory over RDMA.
    Tiered(f64),
    /// As tiered, with room in remote memory for a share alone; the rest is in storage.
    Limited {
        /// In the host's own memory.
        local: f64,
        /// In remote memory.
        remote: f64,
    },
    /// This share in the host's own memory, all in storage.
    Vanilla(f64),
}

impl System {
    /// For tables and legends.
    pub fn name(self) -> String {
        match self {
            System::Cxl => "CXL".into(),
            System::Dram => "DRAM".into(),
            System::Tiered(local) => format!("RDMA, {:.0}% local", local * 100.0),
            System::Limited { local, remote } => {
                format!("RDMA, {:.0}% local, {:.0}% remote", local * 100.0, remote * 100.0)
            }
            System::Vanilla(local) if local >= 1.0 => "vanilla".into(),
            System::Vanilla(local) => format!("vanilla, {:.0}% local", local * 100.0),
        }
    }

    /// Share of the pages that the host's own memory has.
    fn local(self) -> f64 {
        match self {
            System::Cxl | System::Dram => 1.0,
            System::Tiered(local) | System::Limited { local, .. } | System::Vanilla(local) => local,
        }
    }

    /// Slots of remote memory for so many pages; with `Tiered` also for those to come. `None`: there is none.
    fn slots(self, pages: u32) -> Option<u32> {
        match self {
            System::Tiered(_) => Some(pages * 2),
            System::Limited { remote, .. } => Some((f64::from(pages) * remote) as u32),
            System::Cxl | System::Dram | System::Vanilla(_) => None,
        }
    }
}

/// How large the data of one instance are.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Tables.
    pub tables: u32,
    /// Rows a table.
    pub rows: i32,
    /// Memory for all pages and the pool's own.
    pub memory: u64,
    /// Cache of an instance.
    pub cache: u64,
}

impl Scale {
    /// Of full and quick runs: 100,000 rows, some 1,900 pages.
    pub fn usual() -> Scale {
        Scale {
            tables: 4,
            rows: 25_000,
            memory: 64 << 20,
            cache: 256 << 10,
        }
    }

    /// Four times the rows: 96 MiB of them, some 6,600 pages, of which a forty-eighth is more than the least pool.
    pub fn large() -> Scale {
        Scale {
            rows: 100_000,
            memory: 256 << 20,
            ..Scale::usual()
        }
    }
}

/// A filled database, in files.
pub struct Dataset {
    files: MemFs,
    /// Pages that it has.
    pub pages: u32,
    /// Its size.
    pub scale: Scale,
}

impl Dataset {
    /// Fills one; `progress` hears of rows. By the seeded runtime, so that it is the same every time.
    ///
    /// # Errors
    /// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
    pub fn build(scale: Scale, seed: u64, progress: &mut dyn FnMut(u64)) -> Result<Dataset> {
        let fill = |engine: &Arc<Engine>| Tables::create(engine, scale.tables, scale.rows, progress).map(drop);
        Dataset::filled(scale, seed, fill).map(|(dataset, ())| dataset)
    }

    /// As [`Dataset::build`], filled by `fill`, whose value is given.
    ///
    /// # Errors
    /// As of [`Dataset::build`].
    pub fn filled<T>(
        scale: Scale,
        seed: u64,
        fill: impl FnOnce(&Arc<Engine>) -> cenote_engine::Result<T>,
    ) -> Result<(Dataset, T)> {
        let sim = Sim::new(seed).with_step_limit(u64::MAX);
        let files = sim.files().clone();
        let filled = |_: &Sim| -> cenote_engine::Result<(u32, T)> {
            let engine = Engine::open(EngineOptions::new("/data", MemoryKind::Dram, 2 * scale.memory))?;
            let value = fill(&engine)?;
            let pages = engine.pool_stats().frames_in_use;
            engine.shutdown()?;
            Ok((pages, value))
        };
        let (pages, value) = sim.run(filled).value.map_err(failed("filling a database"))?;
        files.set_sync_time(Nanos::ZERO);
        Ok((Dataset { files, pages, scale }, value))
    }

    /// Files for so many instances, each with its own copy. To be made outside of a world: a lock guards the files.
    pub fn files(&self, instances: usize) -> Vec<MemFs> {
        (0..instances).map(|_| self.files.kill_clone()).collect()
    }
}

/// An engine's error, with what was tried.
pub(crate) fn failed(what: &str) -> impl Fn(cenote_engine::Error) -> Error + '_ {
    move |error| Error::Simulation(format!("{what}: {error}"))
}

/// A part of a run: a load, and how it is counted.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Processor time.
    pub costs: Arc<Costs>,
    /// Statements.
    pub mix: Mix,
    /// Which rows they ask for.
    pub pick: Pick,
    /// Instances that work.
    pub active: usize,
    /// Sessions of each.
    pub threads: usize,
    /// A session's transaction: sessions begin within this time, or all would ask for the same at once.
    pub turn: Nanos,
    /// Before counting.
    pub settle: Nanos,
    /// Counted.
    pub window: Nanos,
}

/// What a phase came to.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Statements a second, of all instances.
    pub qps: f64,
    /// Mean latency of a statement.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Bytes a second from and to the memory that is not the host's own: CXL or RDMA.
    pub far_bytes: f64,
    /// Bytes a second from and to the host's own memory, as far as the pool lies there.
    pub near_bytes: f64,
    /// Of the bytes over RDMA, those a second that came to the host, and those that left it.
    pub rdma: [f64; 2],
    /// Bytes a second that storage gave.
    pub storage_read: f64,
    /// Share of the time in which the storage that all instances share was transferring.
    pub storage_busy: f64,
}

impl Measured {
    /// GB/s of CXL or RDMA.
    pub fn far_gbps(&self) -> f64 {
        self.far_bytes / 1e9
    }

    /// Pages a second from remote memory, and to it.
    pub fn swapped(&self) -> [f64; 2] {
        self.rdma.map(|bytes| bytes / PAGE_SIZE as f64)
    }

    /// Pages a second from storage.
    pub fn stored_pages(&self) -> f64 {
        self.storage_read / PAGE_SIZE as f64
    }

    /// Far bytes a statement.
    pub fn bytes_a_query(&self) -> f64 {
        self.far_bytes / self.qps
    }
}

/// A world of instances, to be run.
///
/// # Errors
/// [`Error::Simulation`] if a host has no room for so many instances, or the world cannot be set up.
pub fn world(system: System, instances: usize, scale: Scale, seed: u64) -> Result<World> {
    World::new(seed, Pace::Project, topology(system, instances, scale)?).map_err(impossible)
}

pub(crate) fn impossible(error: cenote_base::Error) -> Error {
    Error::Simulation(error.to_string())
}

/// One host of the paper's: to the simulator each instance is a host of its own, and they share the links.
fn topology(system: System, instances: usize, scale: Scale) -> Result<Topology> {
    if instances == 0 || instances > INSTANCES {
        return Err(Error::Simulation(format!(
            "{instances} instances: a host of {} vCPUs has room for 1 to {INSTANCES} of {VCPUS}",
            INSTANCES as u32 * VCPUS
        )));
    }
    let mut topology = Topology::default();
    for i in 0..instances {
        topology.hosts.push(HostSpec {
            cache: CacheSpec {
                bytes: scale.cache,
                ways: 16,
            },
            ..HostSpec::new(&format!("instance{i}"), VCPUS)
        });
        if system == System::Cxl {
            topology.devices.push(DeviceSpec {
                coherent: true,
                dense: true,
                ..DeviceSpec::new(&format!("cxl{i}"), scale.memory, "cxl-switch").map_err(impossible)?
            });
        }
    }
    if system == System::Cxl {
        topology.links = shared_way(instances)?;
    }
    Ok(topology)
}

/// The way from the host to its CXL memory, which all instances share: port, switch, memory box.
fn shared_way(instances: usize) -> Result<Vec<LinkSpec>> {
    let profile = profile::named("cxl-switch").map_err(impossible)?;
    let link = |name: &str, width: Width| {
        width.bandwidth.map(|bandwidth| LinkSpec {
            name: name.into(),
            bandwidth,
            half_duplex: false,
            loaded: profile.loaded.clone(),
            joins: (0..instances).map(|i| (i, i)).collect(),
        })
    };
    let links = [
        link(HOST_PORT, profile.host_port),
        link("switch", profile.switch),
        link("memory box", profile.device),
    ];
    Ok(links.into_iter().flatten().collect())
}

/// How often processes look whether it goes on.
const POLL: Nanos = Nanos::from_micros(200);
/// Idle time before a phase that writes, in which purge removes what the one before has left: it looks each 50 ms.
const PURGED: Nanos = Nanos::from_millis(120);

/// The link whose bytes are counted.
const HOST_PORT: &str = "host port";

/// A world to be of one system's instances.
pub struct Pod<'a> {
    /// Which system.
    pub system: System,
    /// How many instances there are.
    pub instances: usize,
    /// Their data.
    pub dataset: &'a Dataset,
    /// Of the simulation.
    pub seed: u64,
    /// What the instances' memory survives.
    pub survival: Survival,
}

impl Pod<'_> {
    /// Runs the phases; `progress` hears of each that is done.
    ///
    /// # Errors
    /// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
    pub fn run(&self, phases: Vec<Phase>, progress: &(dyn Fn() + Sync)) -> Result<Vec<Measured>> {
        let world = world(self.system, self.instances, self.dataset.scale, self.seed)?;
        let shared = Arc::new(Shared::new(phases));
        let files = self.dataset.files(self.instances);
        world.run(|w| self.control(w, &files, &shared, progress)).value
    }

    /// The thread outside of all hosts: starts the instances and leads them through the phases.
    fn control(
        &self,
        w: &World,
        files: &[MemFs],
        shared: &Arc<Shared>,
        progress: &(dyn Fn() + Sync),
    ) -> Result<Vec<Measured>> {
        let mut far = Far::new(w, self.system, files, self.dataset, self.seed)?;
        far.survival = Mirrors::of(self.survival, self.instances, self.dataset.scale.memory, self.seed)?;
        let start = |i: usize| {
            let (shared, options, scale) = (shared.clone(), far.options(i), self.dataset.scale);
            w.process(i, "instance", move || instance(i, &options, scale, &shared))
        };
        let processes: Vec<Process> = (0..self.instances).map(start).collect();
        shared.wait_for(&processes, self.instances)?;
        let mut results = Vec::new();
        for (i, phase) in shared.phases.iter().enumerate() {
            results.push(self.phase(&far, shared, i, phase, &processes)?);
            progress();
        }
        Ok(results)
    }

    fn phase(&self, far: &Far, shared: &Shared, i: usize, phase: &Phase, processes: &[Process]) -> Result<Measured> {
        if phase.mix.writes() {
            rt::sleep(PURGED);
        }
        let begin = rt::now() + POLL + POLL + phase.settle;
        shared.begin.store(begin.raw(), SeqCst);
        shared.ready.store(0, SeqCst);
        shared.current.store(i as u64 + 1, SeqCst);
        rt::sleep(begin.since(rt::now()));
        let before = far.bytes();
        rt::sleep((begin + phase.window).since(rt::now()));
        let after = far.bytes();
        shared.wait_for(processes, self.instances)?;
        Ok(shared.take().measured(phase.window, &before, &after))
    }
}

/// Bytes that have moved since the world began, and for how long storage was transferring.
struct Bytes {
    far: u64,
    /// Over RDMA: to the host, and from it.
    rdma: [u64; 2],
    near: u64,
    storage: DriveCounters,
}

/// The memory of a running world's instances that is not the hosts' own, and how they come by it.
pub(crate) struct Far {
    world: World,
    system: System,
    scale: Scale,
    /// Frames of a pool that has some of the pages.
    frames: u32,
    network: Option<(Network, Vec<Remote>)>,
    drive: Drive,
    survival: Mirrors,
}

impl Far {
    /// Gives each instance its copy of the database on the storage that they share, and sets up memory nodes where
    /// there are some: one an instance, so that the host's network card is what is shared.
    pub(crate) fn new(w: &World, system: System, files: &[MemFs], dataset: &Dataset, seed: u64) -> Result<Far> {
        let instances = files.len();
        let drive = Drive::of(&profile::named("storage").map_err(impossible)?);
        for (host, files) in files.iter().enumerate() {
            files.set_drive(Some(drive.clone()));
            w.set_files(host, files);
        }
        let slots = system.slots(dataset.pages);
        let network = slots.map(|slots| network(instances, slots, seed)).transpose()?;
        Ok(Far {
            world: w.clone(),
            system,
            scale: dataset.scale,
            frames: ((f64::from(dataset.pages) * system.local()) as u32).max(FRAMES_MIN),
            network,
            drive,
            survival: Mirrors::default(),
        })
    }

    /// What the storage has done.
    pub(crate) fn drive(&self) -> DriveCounters {
        self.drive.counters()
    }

    /// How a new process of an instance opens its database.
    pub(crate) fn options(&self, instance: usize) -> EngineOptions {
        self.survival.give(instance, self.memory(instance))
    }

    fn memory(&self, instance: usize) -> EngineOptions {
        let whole = |kind| EngineOptions::new("/data", kind, self.scale.memory);
        match (self.system, &self.network) {
            (System::Cxl, _) => EngineOptions {
                region: Some(format!("/dev/sim/cxl{instance}").into()),
                ..whole(MemoryKind::Cxl)
            },
            (_, Some((network, memory))) => {
                let (port, memory) = (network.port(instance), memory[instance]);
                let connect = move |_| Ok(RemoteMemory::new(port.connect(&node_name(instance))?, memory));
                with_frames(
                    self.frames,
                    &EngineOptions::tiered("/data", 0, RemoteSource::new(connect)),
                )
            }
            (System::Vanilla(share), _) if share < 1.0 => with_frames(self.frames, &whole(MemoryKind::Dram)),
            _ => whole(MemoryKind::Dram),
        }
    }

    fn bytes(&self) -> Bytes {
        let card = self.network.as_ref().map(|(network, _)| network.card(0));
        let rdma = card.map_or([0; 2], |card| [card.inbound.bytes, card.outbound.bytes]);
        let far = match card {
            Some(_) => rdma.iter().sum(),
            None => self.world.links().named(HOST_PORT).map(|l| l.counters().bytes).sum(),
        };
        let own = self.world.traffic().into_iter().filter(|t| t.device.is_none());
        let near = own.map(|t| t.moved.bytes_fetched() + t.moved.bytes_written()).sum();
        let storage = self.drive();
        Bytes {
            far,
            rdma,
            near,
            storage,
        }
    }
}

/// With as many frames as are wanted, or a few more: some numbers of frames no size of memory gives.
pub(crate) fn with_frames(frames: u32, options: &EngineOptions) -> EngineOptions {
    let mut numbers = frames..frames + 64;
    let found = numbers.find_map(|n| options.clone().with_frames(n).ok());
    found.expect("one of the next few is possible")
}

fn node_name(instance: usize) -> String {
    format!("memory{instance}")
}

/// A memory node an instance, with room for so many pages; one network card of the host.
fn network(instances: usize, slots: u32, seed: u64) -> Result<(Network, Vec<Remote>)> {
    let network = Network::new(&profile::named("rdma").map_err(impossible)?, seed);
    network.share_card(0..instances);
    let node = |i| network.add_node(&node_name(i)).register(RemoteLayout::len_for(slots));
    let memory = (0..instances).map(node).collect();
    Ok((network, memory))
}

/// What instances and controller share; not part of any simulated memory.
struct Shared {
    phases: Vec<Phase>,
    /// The phase under way, from 1.
    current: AtomicU64,
    /// When its counting begins.
    begin: AtomicU64,
    /// Instances that are done with what they were told.
    ready: AtomicU64,
    counted: Mutex<Counted>,
    /// The network card towards the clients.
    clients: Link,
}

/// Bytes a second towards the clients: 100 Gbps, of which as much is usable as of the RDMA card's.
pub(super) const CLIENT_BANDWIDTH: f64 = 12e9;
/// From a reply's leaving to the client's next statement, when nothing waits: assumed, of a data centre's TCP.
pub const CLIENT_TURN: Nanos = Nanos::from_micros(20);

#[derive(Default)]
struct Counted {
    latency: Option<Histogram<u64>>,
}

impl Counted {
    fn measured(self, window: Nanos, before: &Bytes, after: &Bytes) -> Measured {
        let latency = self.latency.unwrap_or_else(histogram);
        let a_second = |count: u64| count as f64 / window.as_secs_f64();
        Measured {
            qps: a_second(latency.len()),
            mean_us: latency.mean() / 1e3,
            p99_us: latency.value_at_quantile(0.99) as f64 / 1e3,
            far_bytes: a_second(after.far - before.far),
            near_bytes: a_second(after.near - before.near),
            rdma: [0, 1].map(|way| a_second(after.rdma[way] - before.rdma[way])),
            storage_read: a_second(after.storage.bytes_read - before.storage.bytes_read),
            storage_busy: after.storage.busy.since(before.storage.busy).as_secs_f64() / window.as_secs_f64(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(2).expect("2 digits are few")
}

impl Shared {
    fn new(phases: Vec<Phase>) -> Shared {
        Shared {
            phases,
            current: AtomicU64::new(0),
            begin: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            counted: Mutex::default(),
            clients: Link::new("clients", CLIENT_BANDWIDTH),
        }
    }

    /// Waits until `count` instances are ready; an error if one has ended before.
    fn wait_for(&self, processes: &[Process], count: usize) -> Result<()> {
        while self.ready.load(SeqCst) < count as u64 {
            // An instance that has done its last phase returns while others are at it.
            let exits = processes.iter().filter(|p| !p.is_running()).map(Process::join);
            if let Some(exit) = exits.into_iter().find(|e| *e != Exit::Returned) {
                return Err(Error::Simulation(format!("an instance has ended: {exit:?}")));
            }
            rt::sleep(POLL);
        }
        Ok(())
    }

    fn take(&self) -> Counted {
        std::mem::take(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, latency: &Histogram<u64>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let all = counted.latency.get_or_insert_with(histogram);
        all.add(latency).expect("of the same kind");
    }
}

/// The body of an instance's process.
fn instance(me: usize, options: &EngineOptions, scale: Scale, shared: &Arc<Shared>) {
    let engine = Engine::open(options.clone()).expect("a copy of a database that was closed in order");
    let tables = Tables::open(&engine, scale.tables, scale.rows).expect("its tables");
    tables.warm_up(&engine).expect("readable");
    let tables = Arc::new(tables);
    shared.ready.fetch_add(1, SeqCst);
    for (i, phase) in shared.phases.iter().enumerate() {
        while shared.current.load(SeqCst) <= i as u64 {
            rt::sleep(POLL);
        }
        if me < phase.active {
            load(&engine, &tables, phase, shared);
        }
        shared.ready.fetch_add(1, SeqCst);
    }
    engine.halt();
}

/// One phase of one instance: sessions until the window has ended.
fn load(engine: &Arc<Engine>, tables: &Arc<Tables>, phase: &Phase, shared: &Arc<Shared>) {
    let begin = Nanos(shared.begin.load(SeqCst));
    let session = |i: usize| {
        let (engine, tables, phase, shared) = (engine.clone(), tables.clone(), phase.clone(), shared.clone());
        rt::spawn(&format!("session{i}"), move || {
            let client = Counter {
                begin,
                end: begin + phase.window,
                latency: histogram(),
                shared: shared.clone(),
            };
            rt::sleep(Nanos(rt::random() % phase.turn.raw().max(1)));
            let mut session = Session::new(&engine, &tables, &phase.costs, client).with(phase.pick);
            while rt::now() < begin + phase.window {
                session.transaction(phase.mix).expect("nothing fails here");
            }
            shared.add(&session.client().latency);
        })
    };
    let sessions: Vec<_> = (0..phase.threads).map(session).collect();
    for session in sessions {
        session.join().expect("no session panics");
    }
}

/// A client that counts the statements that end inside of the window.
struct Counter {
    begin: Nanos,
    end: Nanos,
    latency: Histogram<u64>,
    shared: Arc<Shared>,
}

impl Client for Counter {
    fn round_trip(&mut self, bytes: u64) {
        rt::sleep(self.shared.clients.transfer(rt::now(), bytes) + CLIENT_TURN);
    }

    fn done(&mut self, latency: Nanos) {
        let now = rt::now();
        if now >= self.begin && now < self.end {
            self.latency.record(latency.raw().max(1)).expect("it grows as needed");
        }
    }
}
