//! Figure 8's world: an instance whose remote memory is made larger and smaller while it serves reads.
//!
//! 1. The instance opens a filled database with remote memory of the first size and reads all of it once.
//! 2. Sessions ask for ranges until the end. At its times a size is set, and a turn of the thread that scales carries
//!    it out: in the pool that thread looks once a second, which is too long for loads of less. Where remote memory is
//!    to be as large as it is needed, nothing but the pool's own thread has to do with its size.
//! 3. Statements are counted in bins; at the end of each bin the pool is asked what it has counted.

use super::super::cost::Costs;
use super::super::mix::Mix;
use super::super::pod::{self, CLIENT_BANDWIDTH, CLIENT_TURN, Dataset, Far, System};
use super::super::workload::{Client, Session, Tables};
use crate::{Error, Result};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error as BaseError, PAGE_SIZE, Result as BaseResult};
use cenote_buffer::RemoteLayout;
use cenote_engine::{Engine, EngineOptions, Growth, RemoteProvider, RemoteSize, RemoteSource, TierStats};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_sim::World;
use cenote_sim::link::Link;
use cenote_sim::rdma::{MemoryNode, Network, Port};
use cenote_testkit::faulty::MemFs;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A load that leaves most of the processors idle, at first.
#[derive(Debug, Clone, Copy)]
pub struct Light {
    /// So long, on average, a session waits between two transactions.
    pub pause: Nanos,
    /// From then on it does not.
    pub until: Nanos,
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Processor time.
    pub costs: Arc<Costs>,
    /// Sessions, one transaction after the other.
    pub sessions: usize,
    /// Whether they wait in between.
    pub light: Option<Light>,
    /// Frames of local memory.
    pub frames: u32,
    /// Slots of the first part of remote memory, and of each slab.
    pub slots: u32,
    /// Slabs at most.
    pub most: u32,
    /// Pages a second that a slab has to save, where remote memory is as large as it is needed.
    pub worth: f64,
    /// From when on, after the load began, there are to be how many slabs, the first from the beginning; none: as many
    /// as are needed.
    pub sizes: Vec<(Nanos, Option<u32>)>,
    /// Statements are counted in bins of so long.
    pub bin: Nanos,
    /// How long the load is.
    pub lasts: Nanos,
}

/// What there was at the end of a bin.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bin {
    /// Statements that ended in it.
    pub statements: u32,
    /// Pages found in remote memory, since the load began.
    pub hits: u64,
    /// Pages that had to come from storage, since the load began.
    pub misses: u64,
    /// Slabs in use.
    pub slabs: u32,
    /// Pages that slabs' ends have moved to other places.
    pub moved: u64,
}

impl Plan {
    fn growth(&self) -> Growth {
        let slab = u64::from(self.slots) * PAGE_SIZE as u64;
        Growth {
            slab,
            most: self.most,
            worth: (self.worth * f64::from(1 << 30) / slab as f64) as u32,
        }
    }

    fn first_len(&self) -> u64 {
        RemoteLayout::first_len_for(self.slots, Some(self.growth()))
    }

    /// The size with so many slabs.
    fn size(&self, slabs: Option<u32>) -> RemoteSize {
        slabs.map_or(RemoteSize::ByNeed, |slabs| {
            RemoteSize::Bytes(self.first_len() + u64::from(slabs) * self.growth().slab)
        })
    }

    /// What a session waits for, so long after the load began.
    fn pause(&self, since: Nanos) -> Nanos {
        let Some(light) = self.light.filter(|light| since < light.until) else {
            return Nanos::ZERO;
        };
        let drawn = Nanos(rt::random() % (2 * light.pause.raw()).max(1));
        drawn.min(light.until.since(since))
    }

    fn bins(&self) -> usize {
        (self.lasts.raw() / self.bin.raw()) as usize
    }

    /// Runs it in a world of one instance.
    ///
    /// # Errors
    /// [`Error::Simulation`] if the world cannot be set up, or if something in it fails.
    pub fn run(&self, dataset: &Dataset, seed: u64) -> Result<Vec<Bin>> {
        let world = pod::world(System::Dram, 1, dataset.scale, seed)?;
        let files = dataset.files(1);
        world.run(|w| self.control(w, &files, dataset, seed)).value
    }

    /// The thread outside: memory and storage, and an instance that uses them.
    fn control(&self, w: &World, files: &[MemFs], data: &Dataset, seed: u64) -> Result<Vec<Bin>> {
        // All that is not in remote memory is in the storage of figures 10, 11 and 15.
        Far::new(w, System::Vanilla(1.0), files, data, seed)?;
        let rack = Rack::new(self, seed)?;
        let source = RemoteSource::growing(rack, self.growth()).map_err(pod::impossible)?;
        let options = pod::with_frames(self.frames, &EngineOptions::tiered("/data", 0, source));
        let told = Arc::new(Mutex::new(Told::default()));
        let (plan, scale, shared) = (self.clone(), data.scale, Arc::clone(&told));
        let instance = w.process(0, "instance", move || {
            let engine = Engine::open(options).expect("a copy of a database that was closed in order");
            plan.set(&engine, plan.sizes[0].1);
            let tables = Tables::open(&engine, scale.tables, scale.rows).expect("its tables");
            tables.warm_up(&engine).expect("readable");
            plan.serve(&engine, &Arc::new(tables), &shared);
            engine.halt();
        });
        while instance.is_running() && lock(&told).bins.len() < self.bins() {
            rt::sleep(self.bin);
        }
        let bins = std::mem::take(&mut lock(&told).bins);
        match bins.len() == self.bins() {
            true => Ok(bins),
            false => Err(Error::Simulation(format!(
                "an instance has ended: {:?}",
                instance.join()
            ))),
        }
    }

    /// The load, and what befalls remote memory meanwhile.
    fn serve(&self, engine: &Arc<Engine>, tables: &Arc<Tables>, told: &Arc<Mutex<Told>>) {
        let began = rt::now();
        let clients = Arc::new(Link::new("clients", CLIENT_BANDWIDTH));
        let session = |i: usize| {
            let (engine, tables, plan) = (engine.clone(), tables.clone(), self.clone());
            let client = Counter {
                began,
                bin: self.bin,
                told: Arc::clone(told),
                clients: Arc::clone(&clients),
            };
            rt::spawn(&format!("session{i}"), move || {
                let mut session = Session::new(&engine, &tables, &plan.costs, client);
                while rt::now() < began + plan.lasts {
                    rt::sleep(plan.pause(rt::now().since(began)));
                    session.transaction(Mix::RangeSelect).expect("nothing fails here");
                }
            })
        };
        let mut threads: Vec<_> = (0..self.sessions).map(session).collect();
        let (plan, scaled) = (self.clone(), engine.clone());
        threads.push(rt::spawn("sizes", move || plan.resize(&scaled, began)));
        let before = remote(engine);
        for bin in 0..self.bins() as u64 {
            rt::sleep((began + Nanos(self.bin.raw() * (bin + 1))).since(rt::now()));
            let now = remote(engine);
            lock(told).end_bin(&before, &now);
        }
        for thread in threads {
            thread.join().expect("no session panics");
        }
    }

    /// Sets one size after the other, each at its time.
    fn resize(&self, engine: &Engine, began: Nanos) {
        for (at, slabs) in &self.sizes[1..] {
            rt::sleep((began + *at).since(rt::now()));
            self.set(engine, *slabs);
        }
    }

    fn set(&self, engine: &Engine, slabs: Option<u32>) {
        engine
            .set_remote_size(self.size(slabs))
            .expect("a size that it may have");
        engine.buffer().scale_remote();
    }
}

fn remote(engine: &Engine) -> TierStats {
    engine.pool_stats().remote.expect("the tiered pool")
}

/// What sessions and the instance tell the thread outside; not part of any simulated memory.
#[derive(Default)]
struct Told {
    counts: Vec<u32>,
    bins: Vec<Bin>,
}

impl Told {
    fn count(&mut self, bin: usize) {
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
    }

    fn end_bin(&mut self, before: &TierStats, now: &TierStats) {
        let statements = self.counts.get(self.bins.len()).copied().unwrap_or_default();
        self.bins.push(Bin {
            statements,
            hits: now.hits - before.hits,
            misses: now.misses - before.misses,
            slabs: now.slabs,
            moved: now.pages_moved,
        });
    }
}

/// Never held at a preemption point.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client at the other end of the instance's other card; its statements are counted.
struct Counter {
    began: Nanos,
    bin: Nanos,
    told: Arc<Mutex<Told>>,
    clients: Arc<Link>,
}

impl Client for Counter {
    fn round_trip(&mut self, bytes: u64) {
        rt::sleep(self.clients.transfer(rt::now(), bytes) + CLIENT_TURN);
    }

    fn done(&mut self, _latency: Nanos) {
        let bin = rt::now().since(self.began).raw() / self.bin.raw();
        lock(&self.told).count(bin as usize);
    }
}

/// What the memory node is called.
const NODE: &str = "memory";

/// A memory node that has the first part of an instance's remote memory, and room for all of its slabs.
struct Rack {
    port: Arc<Port>,
    node: MemoryNode,
    first: Remote,
    slab: u64,
    slabs: Mutex<BTreeMap<u32, Remote>>,
}

impl Rack {
    fn new(plan: &Plan, seed: u64) -> Result<Arc<Rack>> {
        let network = Network::new(&profile::named("rdma").map_err(pod::impossible)?, seed);
        let node = network.add_node(NODE);
        Ok(Arc::new(Rack {
            port: network.port(0),
            first: node.register(plan.first_len()),
            node,
            slab: plan.growth().slab,
            slabs: Mutex::default(),
        }))
    }

    fn reach(&self, memory: Remote) -> BaseResult<RemoteMemory> {
        Ok(RemoteMemory::new(self.port.connect(NODE)?, memory))
    }
}

impl RemoteProvider for Rack {
    fn connect(&self, _: u128) -> BaseResult<RemoteMemory> {
        self.reach(self.first)
    }

    fn slab(&self, _: u128, slab: u32) -> BaseResult<RemoteMemory> {
        let memory = *lock(&self.slabs)
            .entry(slab)
            .or_insert_with(|| self.node.register(self.slab));
        self.reach(memory)
    }

    fn give_back(&self, _: u128, slab: u32) -> BaseResult<()> {
        match lock(&self.slabs).remove(&slab) {
            Some(memory) if !self.node.revoke(memory.key) => Err(BaseError::Lost("it was not registered".into())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(light: Option<Light>) -> Plan {
        Plan {
            costs: Arc::new(Costs::cenote()),
            sessions: 1,
            light,
            frames: 128,
            slots: 64,
            most: 3,
            worth: 8.0,
            sizes: vec![(Nanos::ZERO, Some(0))],
            bin: Nanos::from_millis(5),
            lasts: Nanos::from_millis(52),
        }
    }

    #[test]
    fn sizes_are_those_of_whole_slabs() {
        let plan = plan(None);
        assert_eq!(plan.growth().slab, 1 << 20);
        assert_eq!(plan.growth().worth, 8 << 10, "8 a slab, of which a GiB has 1,024");
        let RemoteSize::Bytes(three) = plan.size(Some(3)) else {
            panic!("a number of slabs is a size");
        };
        assert_eq!(three, plan.first_len() + (3 << 20));
        assert_eq!((plan.size(None), plan.bins()), (RemoteSize::ByNeed, 10));
    }

    #[test]
    fn a_light_load_ends_in_time() {
        let light = Light {
            pause: Nanos::from_millis(16),
            until: Nanos::from_millis(100),
        };
        let plan = plan(Some(light));
        for ms in [0, 50, 99, 100, 200] {
            let pause = plan.pause(Nanos::from_millis(ms));
            assert!(
                pause <= Nanos::from_millis(100_u64.saturating_sub(ms).min(32)),
                "{pause}"
            );
        }
    }

    #[test]
    fn statements_are_of_their_bin() {
        let stats = |hits, misses| TierStats {
            hits,
            misses,
            slabs: 2,
            ..TierStats::default()
        };
        let mut told = Told::default();
        [0, 0, 2].into_iter().for_each(|bin| told.count(bin));
        for hits in [11, 15, 15, 16] {
            told.end_bin(&stats(10, 5), &stats(hits, 8));
        }
        assert_eq!(told.bins.iter().map(|b| b.statements).collect::<Vec<_>>(), [2, 0, 1, 0]);
        let last = told.bins[3];
        assert_eq!((last.hits, last.misses, last.slabs, last.moved), (6, 3, 2, 0));
    }
}
