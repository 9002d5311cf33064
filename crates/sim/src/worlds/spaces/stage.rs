//! What outlives all processes of the world: the network, the grant table, what is known of objects and sessions.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::mirror::{JOURNAL, replay};
use cenote_fabric::profile;
use cenote_fabric::rdma::Remote;
pub(super) use cenote_space::EXTENT;
use cenote_space::SessionId;

use crate::rdma::{MemoryNode, Network};
use crate::worlds::pool::model::Model;
use crate::worlds::shared::Shared;

pub(super) const SPACE: u128 = 0x5bace;
pub(super) const KEY: u128 = 0x5ec2e7;
/// Hosts that keep the part, by turns.
pub(super) const NODES: usize = 2;
/// The users' host.
pub(super) const USERS: usize = NODES;
/// Extents of the part.
pub(super) const EXTENTS: u64 = 8;
/// The part's number.
pub(super) const PART: u8 = 1;

/// A mirror, and what was registered for its keeper.
#[derive(Debug, Clone)]
pub(super) struct Lent {
    pub number: u64,
    pub node: MemoryNode,
    pub memory: Remote,
    pub journal: Remote,
}

/// What the manager knows of the part.
#[derive(Debug, Default)]
pub(super) struct GrantTable {
    /// By number: each process that keeps the part has one.
    keeper: u64,
    mirror: Option<Lent>,
    is_whole: bool,
}

/// What a keeper tells in the end.
#[derive(Debug, Clone, Default)]
pub(super) struct Report {
    pub problems: Vec<String>,
    pub objects: u64,
}

/// Where a keeper is called: for accesses, and as a keeper.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    pub calls: MemoryNode,
    pub desk: MemoryNode,
}

pub(super) struct Stage {
    pub shared: Arc<Shared>,
    pub network: Network,
    pub model: Model,
    table: Mutex<GrantTable>,
    nodes: Mutex<Vec<Nodes>>,
    mirrors: AtomicU64,
    /// What a promoted mirror has, until it is in the memory of the next keeper's host.
    image: Mutex<Option<Arc<Vec<u8>>>>,
    /// The keeper that serves, as users look it up.
    current: AtomicU64,
    /// Sessions whose users need them no more.
    over: Mutex<BTreeSet<SessionId>>,
    /// All sessions are over.
    ends_all: AtomicBool,
    calm: AtomicBool,
    turns: AtomicU64,
    values: AtomicU64,
    threads: AtomicU64,
    is_asked: AtomicBool,
    report: Mutex<Option<Report>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn device_name(host: usize) -> String {
    format!("part{host}")
}

/// Where a host's memory lies.
pub(super) fn device(host: usize) -> PathBuf {
    format!("/dev/sim/{}", device_name(host)).into()
}

pub(super) fn calls_name(keeper: u64) -> String {
    format!("calls{keeper}")
}

pub(super) fn desk_name(keeper: u64) -> String {
    format!("desk{keeper}")
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, seed: u64) -> Arc<Self> {
        let network = Network::new(&profile::named("rdma").expect("a profile of this program"), seed);
        Arc::new(Self {
            shared: Arc::clone(shared),
            network,
            model: Model::default(),
            table: Mutex::default(),
            nodes: Mutex::default(),
            mirrors: AtomicU64::new(0),
            image: Mutex::default(),
            current: AtomicU64::new(0),
            over: Mutex::default(),
            ends_all: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            values: AtomicU64::new(0),
            threads: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            report: Mutex::default(),
        })
    }

    // ---- keepers ----

    /// The next keeper, in place of the one that there is: its number.
    pub fn appoint(&self) -> u64 {
        let mut nodes = locked(&self.nodes);
        let number = nodes.len() as u64;
        nodes.push(Nodes {
            calls: self.network.add_node(&calls_name(number)),
            desk: self.network.add_node(&desk_name(number)),
        });
        locked(&self.table).keeper = number;
        number
    }

    pub fn nodes(&self, keeper: u64) -> Nodes {
        locked(&self.nodes)[keeper as usize].clone()
    }

    pub fn is_keeper(&self, keeper: u64) -> bool {
        locked(&self.table).keeper == keeper
    }

    /// Users find this one from here on.
    pub fn serves(&self, keeper: u64) {
        self.current.fetch_max(keeper, SeqCst);
    }

    pub fn current(&self) -> u64 {
        self.current.load(SeqCst)
    }

    // ---- the mirror ----

    /// How long another mirror is sought: its node makes a file, or there is none for a while.
    pub fn seeking(&self) -> Nanos {
        Nanos::from_micros(Random(rt::random()).pick(&[0, 1_000, 50_000, 1_500_000]))
    }

    /// Another mirror, on another node; none if the part has another keeper.
    pub fn lend(&self, keeper: u64, len: u64) -> Option<Lent> {
        let mut table = locked(&self.table);
        if table.keeper != keeper {
            return None;
        }
        let number = self.mirrors.fetch_add(1, SeqCst);
        let node = self.network.add_node(&format!("mirror{number}"));
        let (memory, journal) = (node.register(len), node.register(JOURNAL));
        let lent = Lent {
            number,
            node,
            memory,
            journal,
        };
        table.is_whole = false;
        table.mirror = Some(lent.clone());
        Some(lent)
    }

    /// A keeper says that its mirror is whole.
    pub fn whole(&self, keeper: u64, mirror: u64) {
        let mut table = locked(&self.table);
        let is_its = table.mirror.as_ref().is_some_and(|lent| lent.number == mirror);
        if table.keeper == keeper && is_its {
            table.is_whole = true;
            self.shared.count("mirrors that became whole");
        }
    }

    /// A keeper says that its mirror counts no more. Whether it is heard.
    pub fn void(&self, keeper: u64) -> bool {
        let mut table = locked(&self.table);
        if table.keeper == keeper {
            table.is_whole = false;
            table.mirror = None;
        }
        table.keeper == keeper
    }

    pub fn is_whole(&self) -> bool {
        locked(&self.table).is_whole
    }

    pub fn mirror(&self) -> Option<Lent> {
        locked(&self.table).mirror.clone()
    }

    /// The mirror takes the part's place, if it is whole: the next keeper, which begins with what that has. No
    /// preemption point is passed: its keys end as the table says so.
    pub fn promote(&self) -> Option<u64> {
        let lent = {
            let mut table = locked(&self.table);
            if !std::mem::take(&mut table.is_whole) {
                return None;
            }
            table.mirror.take()?
        };
        let next = self.appoint();
        let journal = lent.node.inspect(lent.journal.key, |bytes| bytes.to_vec());
        let image = lent.node.inspect(lent.memory.key, |bytes| bytes.to_vec());
        lent.node.revoke(lent.memory.key);
        lent.node.revoke(lent.journal.key);
        let (Some(journal), Some(mut image)) = (journal, image) else {
            self.shared.fail("a whole mirror without memory".into());
            return None;
        };
        let len = image.len() as u64;
        let replayed = replay(&journal, len, |at, bytes| {
            image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        match replayed {
            Ok(replayed) => self.shared.add("records replayed", replayed.records),
            Err(error) => self.shared.fail(format!("a journal: {error}")),
        }
        self.shared.befalls("mirrors promoted");
        *locked(&self.image) = Some(Arc::new(image));
        Some(next)
    }

    /// What a promoted mirror has, if it is to be put in its place still.
    pub fn image(&self) -> Option<Arc<Vec<u8>>> {
        locked(&self.image).clone()
    }

    /// It is in its place.
    pub fn placed(&self) {
        *locked(&self.image) = None;
    }

    // ---- sessions ----

    /// Its user needs it no more.
    pub fn leave(&self, session: SessionId) {
        locked(&self.over).insert(session);
    }

    pub fn is_over(&self, session: SessionId) -> bool {
        locked(&self.over).contains(&session)
    }

    pub fn end_all(&self) {
        self.ends_all.store(true, SeqCst);
    }

    pub fn ends_all(&self) -> bool {
        self.ends_all.load(SeqCst)
    }

    pub fn ended_all(&self) {
        self.ends_all.store(false, SeqCst);
    }

    // ---- users ----

    /// Takes one of the operations that are to be done, if users shall go on.
    pub fn take_turn(&self) -> bool {
        self.turns.fetch_add(1, SeqCst);
        !self.calm.load(SeqCst) && !self.shared.has_failed()
    }

    pub fn turns(&self) -> u64 {
        self.turns.load(SeqCst)
    }

    pub fn calm(&self) {
        self.calm.store(true, SeqCst);
    }

    /// A value that no other process writes.
    pub fn new_value(&self) -> u64 {
        self.values.fetch_add(1, SeqCst) + 1
    }

    pub fn new_thread(&self) -> usize {
        self.threads.fetch_add(1, SeqCst) as usize
    }

    // ---- the controller and keepers ----

    /// Waits until `is_so`, for so long of virtual time.
    pub fn wait(&self, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
        let until = rt::now() + time;
        while !is_so() {
            if rt::now() > until || self.shared.has_failed() {
                return false;
            }
            rt::sleep(Nanos::from_micros(100));
        }
        true
    }

    pub fn ask_report(&self) {
        self.is_asked.store(true, SeqCst);
    }

    pub fn is_asked(&self) -> bool {
        self.is_asked.swap(false, SeqCst)
    }

    pub fn report(&self, report: Report) {
        *locked(&self.report) = Some(report);
    }

    pub fn take_report(&self) -> Option<Report> {
        locked(&self.report).take()
    }
}
