//! What outlives all processes of the world.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{CarriedSnapshot, Engine, EngineOptions, MemoryKind, Result, Survive};
use cenote_fabric::message::Network;
use cenote_fabric::profile;
use cenote_storage_node::{NodeOptions, NodesClient};

use crate::message::Net;
use crate::worlds::far::Far;
use crate::worlds::plan::Tier;
use crate::worlds::shared::Shared;
use crate::{DeviceSpec, clock};

/// Hosts of nodes, from 0 on.
pub(super) const NODES: usize = 3;
/// Hosts of servers, behind them.
pub(super) const SERVERS: usize = 2;
/// Hosts of readers, behind those.
pub(super) const READERS: usize = 2;
/// How the refusal of a region ends that another process has.
const IN_USE: &str = "is in use by another process";
/// Bytes of a server's memory in the pod: room for the most frames.
const DEVICE_BYTES: u64 = 16 << 20;
/// Transactions that wait to go on at another server; of more the oldest is given up.
const CARRIED_MAX: usize = 8;
/// What begins so long after the last fault has to succeed.
const SETTLED: Nanos = Nanos::from_secs(20);

pub(super) struct Stage {
    pub shared: Arc<Shared>,
    pub net: Net,
    /// Of a node: bytes of redo in memory, and of its log.
    memory: usize,
    log_limit: u64,
    /// Frames of a reader's pool, and of the server's.
    frames: (u32, u32),
    /// Remote memory behind them, where there is some.
    pub far: Option<Arc<Far>>,
    /// Servers and readers have their frames in memory of a pod, which is not coherent; readers read the server's.
    in_pod: bool,
    /// The last step of the clock that was acknowledged.
    acknowledged: AtomicI64,
    steps: AtomicU64,
    looks: AtomicU64,
    too_old: AtomicU64,
    rests: AtomicBool,
    still: AtomicBool,
    is_over: AtomicBool,
    /// The number of the reader that is to have the database; zero: none.
    asked: AtomicU64,
    whole_since: Mutex<Option<Nanos>>,
    /// Transactions that go on at another server.
    carried: Mutex<VecDeque<Carried>>,
    /// What the server's rows are in the end.
    last: Mutex<Option<BTreeMap<i32, i32>>>,
}

/// The memory of the pod that server or reader `n` has its frames in.
pub(super) fn device(n: usize) -> DeviceSpec {
    DeviceSpec::new(&format!("pod{n}"), DEVICE_BYTES, "cxl-switch").expect("a profile of this program")
}

/// A transaction between two servers: its snapshot, and what it has read.
pub(super) struct Carried {
    pub snapshot: CarriedSnapshot,
    pub rows: BTreeMap<i32, i32>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a host's program on the network.
pub(super) fn name_of(host: usize) -> String {
    format!("host{host}")
}

fn address(host: usize) -> String {
    format!("{}:5450", name_of(host))
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, draw: &mut Random) -> Arc<Stage> {
        let mut of_far = Random(draw.word());
        let far = (!of_far.one_in(3)).then(|| {
            let tier = Tier {
                frames: 0,
                slots: of_far.pick(&[40, 150, 600]),
            };
            Far::new(tier, NODES..NODES + SERVERS + READERS, &mut of_far)
        });
        Arc::new(Stage {
            shared: Arc::clone(shared),
            net: Net::new(&profile::named("rdma").expect("a profile of this program"), draw.word()),
            memory: draw.pick(&[32 << 10, 256 << 10, 2 << 20]),
            log_limit: draw.pick(&[32 << 10, 1 << 20]),
            frames: match far {
                None => (draw.pick(&[128, 400]), draw.pick(&[128, 400])),
                // Pages leave them, and are looked for again.
                Some(_) => (128, 128),
            },
            in_pod: far.is_none() && !of_far.one_in(3),
            far,
            acknowledged: AtomicI64::new(0),
            steps: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            too_old: AtomicU64::new(0),
            rests: AtomicBool::new(false),
            still: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            whole_since: Mutex::new(None),
            carried: Mutex::default(),
            last: Mutex::new(None),
        })
    }

    pub fn node_options(&self, host: usize) -> NodeOptions {
        let nodes: BTreeMap<u64, String> = (0..NODES).map(|host| (host as u64 + 1, address(host))).collect();
        NodeOptions {
            memory: self.memory,
            log_limit: self.log_limit,
            log_kept: 8 << 20,
            // A segment has room for any piece of the log.
            segment: 1 << 20,
            ..NodeOptions::new("/node".into(), "world", host as u64 + 1, nodes)
        }
    }

    pub fn network(&self, host: usize) -> Arc<dyn Network> {
        self.net.endpoint(&name_of(host), host)
    }

    /// How the engine of a server or a reader is opened on a host.
    pub fn engine_options(&self, host: usize, number: u64, is_reader: bool) -> Result<EngineOptions> {
        let addresses: Vec<String> = (0..NODES).map(address).collect();
        let client = NodesClient::new(self.network(host), "world", "", &addresses);
        let data = format!("/data{number}");
        let mut options = match &self.far {
            None => EngineOptions::new(data, MemoryKind::Dram, 0),
            Some(far) if is_reader => EngineOptions::tiered(data, 0, far.reader_source(host)),
            Some(far) => EngineOptions::tiered(data, 0, far.server_source(host)),
        };
        if self.in_pod {
            options.memory = MemoryKind::Cxl;
            options.survive = Survive::Host;
            options.region = Some(device(host - NODES).path());
            if is_reader {
                options.pod_regions = (0..SERVERS + READERS).map(|n| device(n).path()).collect();
            }
        }
        options.nodes = Some(Arc::new(client));
        options.reader = is_reader.then(|| format!("reader {number}"));
        options.tuning = self.shared.plan.tuning;
        options.origins = self.shared.plan.origins;
        options.with_frames(if is_reader { self.frames.0 } else { self.frames.1 })
    }

    /// Opens a reader. Where a server that was one has its host's memory in the pod, it has private memory.
    pub fn open_reader(&self, host: usize, number: u64) -> Result<Arc<Engine>> {
        let options = self.engine_options(host, number, true)?;
        match Engine::open(options.clone()) {
            Err(error) if self.in_pod && error.to_string().ends_with(IN_USE) => Engine::open(EngineOptions {
                memory: MemoryKind::Dram,
                survive: Survive::Process,
                region: None,
                ..options
            }),
            opened => opened,
        }
    }

    /// How a reader's engine goes on as the server's: over the same frames.
    pub fn promotion_options(&self, host: usize, number: u64) -> Result<EngineOptions> {
        let reader = self.engine_options(host, number, true)?;
        let server = self.engine_options(host, number, false)?;
        Ok(EngineOptions {
            memory_size: reader.memory_size,
            ..server
        })
    }

    // ---- what is known ----

    pub fn note_acknowledged(&self, clock: i32) {
        self.acknowledged.fetch_max(clock.into(), SeqCst);
        self.steps.fetch_add(1, SeqCst);
    }

    pub fn acknowledged(&self) -> i64 {
        self.acknowledged.load(SeqCst)
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(SeqCst)
    }

    pub fn count_look(&self) {
        self.looks.fetch_add(1, SeqCst);
    }

    pub fn looks(&self) -> u64 {
        self.looks.load(SeqCst)
    }

    pub fn count_too_old(&self) {
        self.too_old.fetch_add(1, SeqCst);
    }

    /// A transaction is to go on elsewhere.
    pub fn put_carried(&self, carried: Carried) {
        let mut waiting = locked(&self.carried);
        waiting.push_back(carried);
        if waiting.len() > CARRIED_MAX {
            waiting.pop_front();
        }
    }

    /// The one that waits for longest.
    pub fn take_carried(&self) -> Option<Carried> {
        locked(&self.carried).pop_front()
    }

    pub fn set_last(&self, rows: BTreeMap<i32, i32>) {
        *locked(&self.last) = Some(rows);
    }

    pub fn last(&self) -> Option<BTreeMap<i32, i32>> {
        locked(&self.last).clone()
    }

    // ---- time ----

    /// No fault is active from here on, or one is.
    pub fn set_whole(&self, is_whole: bool) {
        let mut since = locked(&self.whole_since);
        match is_whole {
            true => _ = since.get_or_insert_with(clock::now),
            false => *since = None,
        }
    }

    /// A fault of before takes effect now: what began may fail for a while yet.
    pub fn unsettle(&self) {
        if let Some(since) = &mut *locked(&self.whole_since) {
            *since = clock::now();
        }
    }

    /// Whether what began then may fail.
    pub fn is_excused(&self, begun: Nanos) -> bool {
        locked(&self.whole_since).is_none_or(|since| begun < since + SETTLED)
    }

    /// The server is to change nothing from here on.
    pub fn rest(&self) {
        self.rests.store(true, SeqCst);
    }

    /// The server changes no rows for a while, or does again.
    pub fn set_still(&self, still: bool) {
        self.still.store(still, SeqCst);
    }

    pub fn is_still(&self) -> bool {
        self.still.load(SeqCst)
    }

    pub fn rests(&self) -> bool {
        self.rests.load(SeqCst)
    }

    /// This reader is to have the database.
    pub fn ask(&self, number: u64) {
        assert!(number != 0, "the first process is a server");
        self.asked.store(number, SeqCst);
    }

    /// None is to have it; says whether one was, and has not heard of it.
    pub fn withdraw(&self) -> bool {
        self.asked.swap(0, SeqCst) != 0
    }

    /// Whether it is this one. Another may have begun on its host meanwhile.
    pub fn takes_asked(&self, number: u64) -> bool {
        self.asked.compare_exchange(number, 0, SeqCst, SeqCst).is_ok()
    }

    pub fn end_all(&self) {
        self.is_over.store(true, SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(SeqCst) || self.shared.has_failed()
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    pub fn await_that(&self, what: &str, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
        let until = rt::now() + time;
        loop {
            if self.shared.has_failed() {
                return false;
            }
            if is_so() {
                return true;
            }
            if rt::now() > until {
                self.fail(format!("{what}: not within {time}"));
                return false;
            }
            rt::sleep(Nanos::from_millis(5));
        }
    }

    pub fn fail(&self, wrong: String) {
        self.shared.fail(wrong);
    }

    pub fn add_counts(&self) {
        self.shared.add("operations", self.steps());
        self.shared.add("looks of readers", self.looks());
        self.shared.add("snapshots too old", self.too_old.load(SeqCst));
    }
}
