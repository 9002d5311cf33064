//! A database on storage nodes, simulated: its log is theirs, and so are its pages, which they make of the log.
//!
//! ```text
//!   host 0..2: storage nodes, each with a drive       host 3: the server     host 4: the next one
//!        └──────── connections (profile rdma) ────────────┴───────────────────────┘
//!                                       card ── memory node: one remote memory, of the server that took it last
//! ```
//!
//! 1. [`OnNodes::build`] fills a database on three nodes once, and stops them: their files are what each run begins
//!    with.
//! 2. [`Cluster::start`] starts nodes over copies of these files. Servers of the running world take the database from
//!    each other, and where there is remote memory, that too.
//!
//! Nodes keep as much redo in memory as they usually do, or a 256th of that ([`Redo`]).

use super::super::options::Progress;
use super::super::pod::{Scale, VCPUS, failed, impossible, with_frames};
use super::super::workload::Tables;
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicBool, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_buffer::RemoteLayout;
use cenote_engine::{Engine, EngineOptions, MemoryKind, RemoteSource};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_sim::message::Net;
use cenote_sim::rdma::{MemoryNode, Network};
use cenote_sim::{CacheSpec, Exit, HostSpec, Pace, Process, Topology, World};
use cenote_storage_node::{NodeOptions, NodesClient, StorageNode};
use cenote_testkit::faulty::{Drive, DriveCounters, MemFs};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Storage nodes, on hosts from 0 on.
const NODES: usize = 3;
/// Hosts of servers, behind them.
pub const SERVERS: [usize; 2] = [NODES, NODES + 1];
/// Between two looks whether a node is to stop.
const TURN: Nanos = Nanos::from_millis(1);
/// Bytes of a segment of a node's log, 1 to 32.
const SEGMENT: u64 = 1 << 20;
const MEMORY_NODE: &str = "memory";

/// A database that was filled on nodes, which have stopped: their files.
pub struct OnNodes {
    files: Vec<MemFs>,
    /// Pages that it has.
    pub pages: u32,
    /// Its size.
    pub scale: Scale,
}

impl OnNodes {
    /// Fills one.
    ///
    /// # Errors
    /// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
    pub fn build(scale: Scale, seed: u64, progress: &Progress) -> Result<OnNodes> {
        let world = world(scale, seed)?;
        let files: Vec<MemFs> = (0..NODES).map(|_| MemFs::new()).collect();
        let bar = progress.bar("rows on nodes", scale.tables as u64 * scale.rows as u64);
        let run = |w: &World| {
            let cluster = Cluster::start(w, &files, seed, (Redo::Scaled, None))?;
            let options = cluster.options(SERVERS[0], Memory::Local(2 * scale.memory));
            let (pages, bar) = (Arc::new(Mutex::new(None)), bar.clone());
            let told = Arc::clone(&pages);
            let filler = w.process(SERVERS[0], "filler", move || {
                let filled = fill(&options, scale, &mut |rows| bar.set_position(rows));
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(filled);
            });
            let exit = filler.join();
            cluster.stop()?;
            let pages = pages.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (exit, pages) {
                (Exit::Returned, Some(pages)) => pages.map_err(failed("filling a database on nodes")),
                (exit, _) => Err(Error::Simulation(format!("the filler has ended: {exit:?}"))),
            }
        };
        let pages = world.run(run).value?;
        bar.finish_and_clear();
        Ok(OnNodes { files, pages, scale })
    }

    /// Copies of the nodes' files. To be made outside of a world: a lock guards them.
    pub fn files(&self) -> Vec<MemFs> {
        self.files.iter().map(MemFs::kill_clone).collect()
    }
}

fn fill(options: &EngineOptions, scale: Scale, progress: &mut dyn FnMut(u64)) -> cenote_engine::Result<u32> {
    let engine = Engine::open(options.clone())?;
    Tables::create(&engine, scale.tables, scale.rows, progress)?;
    let pages = engine.pool_stats().frames_in_use;
    engine.shutdown()?;
    Ok(pages)
}

/// A world of nodes and servers.
///
/// # Errors
/// [`Error::Simulation`] if it cannot be set up.
pub fn world(scale: Scale, seed: u64) -> Result<World> {
    let host = |i: usize| HostSpec {
        cache: CacheSpec {
            bytes: scale.cache,
            ways: 16,
        },
        ..HostSpec::new(&name(i), VCPUS)
    };
    let topology = Topology {
        hosts: (0..NODES + SERVERS.len()).map(host).collect(),
        ..Topology::default()
    };
    let world = World::new(seed, Pace::Project, topology).map_err(impossible)?;
    Ok(world.with_step_limit(u64::MAX))
}

fn name(host: usize) -> String {
    format!("host{host}")
}

fn address(host: usize) -> String {
    format!("{}:5450", name(host))
}

/// Bytes of redo that a node keeps in memory until pages have it, of its log behind a checkpoint, and of its log for
/// nodes that lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redo {
    /// 256 MiB each: after a short load nothing is in pages yet.
    Usual,
    /// 1 MiB each, scaled as the data are: pages are made of redo all the time.
    Scaled,
}

impl Redo {
    fn bytes(self) -> u64 {
        match self {
            Redo::Usual => 256 << 20,
            Redo::Scaled => 1 << 20,
        }
    }
}

/// What a server has for pages.
#[derive(Debug, Clone, Copy)]
pub enum Memory {
    /// So many bytes of its own, and nothing behind them but storage nodes.
    Local(u64),
    /// So many frames of its own, in front of the remote memory.
    Remote(u32),
}

/// A running world's nodes, and the memory node.
pub struct Cluster {
    net: Net,
    nodes: Vec<Process>,
    stops: Arc<AtomicBool>,
    drives: Vec<Drive>,
    far: Option<Arc<Far>>,
}

impl Cluster {
    /// Starts nodes over these files, with drives if there is a number of pages for which remote memory has room, or
    /// none. A database is filled without drives, and with little redo kept: its pages are in files in the end.
    ///
    /// # Errors
    /// [`Error::Simulation`]: there is no such profile.
    pub fn start(w: &World, files: &[MemFs], seed: u64, (redo, timed): (Redo, Option<u32>)) -> Result<Cluster> {
        let rdma = profile::named("rdma").map_err(impossible)?;
        let drive = profile::named("storage-local").map_err(impossible)?;
        let mut cluster = Cluster {
            net: Net::new(&rdma, seed),
            nodes: Vec::new(),
            stops: Arc::default(),
            drives: files
                .iter()
                .filter(|_| timed.is_some())
                .map(|_| Drive::of(&drive))
                .collect(),
            far: timed.map(|pages| Far::new(&Network::new(&rdma, seed), pages)),
        };
        for (host, files) in files.iter().enumerate() {
            files.set_sync_time(Nanos::ZERO);
            files.set_drive(cluster.drives.get(host).cloned());
            w.set_files(host, files);
            cluster.nodes.push(cluster.start_node(w, host, redo));
        }
        Ok(cluster)
    }

    fn start_node(&self, w: &World, host: usize, redo: Redo) -> Process {
        let (options, stops) = (node_options(host, redo), Arc::clone(&self.stops));
        let network = self.net.endpoint(&name(host), host);
        w.process(host, "node", move || {
            let node = StorageNode::start(options, network).expect("its files are whole");
            while !stops.load(SeqCst) {
                assert!(node.failure().is_none(), "nothing fails here");
                rt::sleep(TURN);
            }
            node.stop();
        })
    }

    /// Ends the nodes in order.
    ///
    /// # Errors
    /// [`Error::Simulation`] if one has ended otherwise.
    pub fn stop(&self) -> Result<()> {
        self.stops.store(true, SeqCst);
        let exits: Vec<Exit> = self.nodes.iter().map(Process::join).collect();
        match exits.iter().find(|exit| **exit != Exit::Returned) {
            Some(exit) => Err(Error::Simulation(format!("a storage node has ended: {exit:?}"))),
            None => Ok(()),
        }
    }

    /// How a server on a host opens the database.
    pub fn options(&self, host: usize, memory: Memory) -> EngineOptions {
        let addresses: Vec<String> = (0..NODES).map(address).collect();
        let client = NodesClient::new(self.net.endpoint(&name(host), host), "paper", "", &addresses);
        let mut options = match (memory, &self.far) {
            (Memory::Remote(frames), Some(far)) => {
                with_frames(frames, &EngineOptions::tiered("/data", 0, far.source(host)))
            }
            (Memory::Local(bytes), _) => EngineOptions::new("/data", MemoryKind::Dram, bytes),
            (Memory::Remote(_), None) => unreachable!("a world that is measured has remote memory"),
        };
        options.nodes = Some(Arc::new(client));
        options
    }

    /// How a reader on a host follows the database, with so many frames of its own in front of the remote memory.
    ///
    /// # Errors
    /// [`Error::Simulation`]: there is no remote memory.
    pub fn reader_options(&self, host: usize, frames: u32) -> Result<EngineOptions> {
        let none = || Error::Simulation("readers need remote memory here".into());
        let source = self.far.as_ref().ok_or_else(none)?.reader_source(host);
        Ok(EngineOptions {
            remote: Some(source),
            reader: Some("reader".into()),
            ..self.options(host, Memory::Remote(frames))
        })
    }

    /// What the drives of all nodes have done.
    pub fn drives(&self) -> DriveCounters {
        let add = |sum: DriveCounters, drive: &Drive| {
            let one = drive.counters();
            DriveCounters {
                reads: sum.reads + one.reads,
                bytes_read: sum.bytes_read + one.bytes_read,
                writes: sum.writes + one.writes,
                bytes_written: sum.bytes_written + one.bytes_written,
                syncs: sum.syncs + one.syncs,
                busy: sum.busy + one.busy,
            }
        };
        self.drives.iter().fold(DriveCounters::default(), add)
    }
}

fn node_options(host: usize, redo: Redo) -> NodeOptions {
    let nodes: BTreeMap<u64, String> = (0..NODES).map(|host| (host as u64 + 1, address(host))).collect();
    NodeOptions {
        memory: redo.bytes() as usize,
        log_limit: redo.bytes(),
        log_kept: redo.bytes(),
        segment: SEGMENT,
        ..NodeOptions::new("/node".into(), "paper", host as u64 + 1, nodes)
    }
}

/// The remote memory, of the server that has connected last.
struct Far {
    network: Network,
    node: MemoryNode,
    now: Mutex<Remote>,
}

impl Far {
    /// Room for so many pages, and as many to come.
    fn new(network: &Network, pages: u32) -> Arc<Far> {
        let node = network.add_node(MEMORY_NODE);
        let now = Mutex::new(node.register(RemoteLayout::len_for(pages * 2)));
        Arc::new(Far {
            network: network.clone(),
            node,
            now,
        })
    }

    /// The way of a server on a host: it takes the memory from the one before, whose key ends.
    fn source(self: &Arc<Far>, host: usize) -> RemoteSource {
        let (far, port) = (Arc::clone(self), self.network.port(host));
        RemoteSource::new(move |_| {
            let memory = far.take()?;
            Ok(RemoteMemory::new(port.connect(MEMORY_NODE)?, memory))
        })
    }

    /// The way of a reader, whose key only reads.
    fn reader_source(self: &Arc<Far>, host: usize) -> RemoteSource {
        let (far, port) = (Arc::clone(self), self.network.port(host));
        RemoteSource::new(move |_| {
            let key = far.now.lock().unwrap_or_else(PoisonError::into_inner).key;
            let memory = far.node.register_to_read(key);
            let memory = memory.ok_or_else(|| cenote_base::Error::Lost("the memory is given up".into()))?;
            Ok(RemoteMemory::new(port.connect(MEMORY_NODE)?, memory))
        })
    }

    fn take(&self) -> cenote_base::Result<Remote> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let anew = self.node.register_anew(now.key);
        *now = anew.ok_or_else(|| cenote_base::Error::Lost("the memory is given up".into()))?;
        Ok(*now)
    }
}
