//! What all processes of the world have in common, and what outlives them: the network, its members, what is known of
//! objects, what the controller wants.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_fabric::rdma::call::Callers;
use cenote_space::{Channel, FarReads, Hello, Moved, Placement};

use super::members::{Mark, Members};
use super::model::Model;
use crate::rdma::{MemoryNode, Network};
use crate::worlds::plan::Pods;
use crate::worlds::shared::Shared;

pub(in crate::worlds) const SPACE: u128 = 0x5bace;
pub(in crate::worlds) const KEY: u128 = 0x5ec2e7;

/// Looks at what has to come, before it is said that it does not: 2 s of them.
const LOOKS_LEAST: u32 = 10_000;

/// How the users of each pod read what lies in others.
const READS: [FarReads; 4] = [
    FarReads::DirectFrom(8),
    FarReads::Measured,
    FarReads::OneSidedFrom(8),
    FarReads::Plain,
];

/// A part's number.
pub(in crate::worlds) fn part_number(pod: usize) -> u8 {
    pod as u8 + 1
}

/// The pod of a part.
pub(in crate::worlds) fn pod_of(part: u8) -> usize {
    usize::from(part).wrapping_sub(1)
}

pub(in crate::worlds) fn pod_name(pod: usize) -> String {
    format!("pod{pod}")
}

pub(in crate::worlds) fn keeper_name(pod: usize) -> String {
    format!("desk{pod}")
}

/// What users and programs are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::worlds) enum Phase {
    /// Faults come.
    Wild,
    /// Users end what they are at.
    Calm,
}

/// What a program of a pod tells when it is asked.
#[derive(Debug, Clone, Default)]
pub(in crate::worlds) struct Report {
    /// What the keeper finds wrong.
    pub problems: Vec<String>,
    /// Where extents lie.
    pub placement: Placement,
    /// What has moved since the program began.
    pub moved: Moved,
}

/// What all parts tell, by number.
pub(in crate::worlds) type Reports = BTreeMap<u8, Report>;

/// Between the controller and the program of a pod.
#[derive(Debug, Default)]
struct Post {
    is_asked: bool,
    is_to_end: bool,
    is_ready: bool,
    report: Option<Report>,
}

/// A pod, as the network knows it.
struct Pod {
    calls: MemoryNode,
    keeper_service: MemoryNode,
    lost: AtomicBool,
    post: Mutex<Post>,
}

pub(in crate::worlds) struct Stage {
    pub shared: Arc<Shared>,
    pub pods: Pods,
    pub network: Network,
    pub(super) model: Model,
    members: Mutex<Members>,
    all: Vec<Pod>,
    calm: AtomicBool,
    turns: AtomicU64,
    values: AtomicU64,
    running: AtomicU32,
    /// What parts told when nothing moved any more.
    settled: Mutex<Option<Reports>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its lock is the machine's own.
pub(in crate::worlds) struct MembersOf<'s>(&'s Mutex<Members>);

impl<'s> MembersOf<'s> {
    pub fn lock(&self) -> MutexGuard<'s, Members> {
        lock(self.0)
    }
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, pods: Pods, seed: u64) -> Arc<Stage> {
        let network = Network::new(&profile::named("rdma").expect("a profile of this program"), seed);
        let pod = |pod: usize| Pod {
            calls: network.add_node(&pod_name(pod)),
            keeper_service: network.add_node(&keeper_name(pod)),
            lost: AtomicBool::new(false),
            post: Mutex::default(),
        };
        Arc::new(Stage {
            all: (0..shared.plan.hosts).map(pod).collect(),
            shared: Arc::clone(shared),
            pods,
            network,
            model: Model::default(),
            members: Mutex::default(),
            calm: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            values: AtomicU64::new(0),
            running: AtomicU32::new(0),
            settled: Mutex::default(),
        })
    }

    pub fn members(&self) -> MembersOf<'_> {
        MembersOf(&self.members)
    }

    /// How many pods there are, lost ones included.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The machine of no pod: its users map nothing.
    pub fn visitors(&self) -> usize {
        self.all.len()
    }

    /// The second host of a pod, if there is one.
    pub fn twin(&self) -> Option<usize> {
        self.pods.twin.map(|_| self.all.len() + 1)
    }

    /// Whether what a member had is others' by now.
    pub fn is_over(&self, mark: Mark) -> bool {
        self.members().lock().is_over(mark, &self.alive())
    }

    /// Pods that are there.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.count()).filter(|pod| !self.is_lost(*pod)).collect()
    }

    pub fn is_lost(&self, pod: usize) -> bool {
        self.all.get(pod).is_some_and(|pod| pod.lost.load(SeqCst))
    }

    /// The pod is gone, as far as the network goes.
    pub fn lose(&self, pod: usize) {
        self.all[pod].lost.store(true, SeqCst);
        self.all[pod].calls.lose();
        self.all[pod].keeper_service.lose();
    }

    /// Where a pod is called, and where its keeper is asked.
    pub fn nodes(&self, pod: usize) -> (&MemoryNode, &MemoryNode) {
        (&self.all[pod].calls, &self.all[pod].keeper_service)
    }

    // ---- phases ----

    pub fn set_phase(&self, phase: Phase) {
        self.calm.store(phase == Phase::Calm, SeqCst);
    }

    pub fn phase(&self) -> Phase {
        match self.calm.load(SeqCst) {
            true => Phase::Calm,
            false => Phase::Wild,
        }
    }

    /// Takes one of the operations that are to be done, if users shall go on.
    pub fn take_turn(&self) -> bool {
        self.turns.fetch_add(1, SeqCst);
        self.phase() == Phase::Wild && !self.shared.has_failed()
    }

    pub fn turns(&self) -> u64 {
        self.turns.load(SeqCst)
    }

    /// A value that no other process writes.
    pub fn new_value(&self) -> u64 {
        self.values.fetch_add(1, SeqCst) + 1
    }

    /// One more number of a thread.
    pub fn new_thread(&self) -> usize {
        self.running.fetch_add(1, SeqCst) as usize
    }

    // ---- the controller and programs ----

    /// The program of a pod serves.
    pub fn set_ready(&self, pod: usize) {
        lock(&self.all[pod].post).is_ready = true;
    }

    pub fn is_ready(&self, pod: usize) -> bool {
        lock(&self.all[pod].post).is_ready
    }

    /// Another program is about to begin.
    pub fn clear_post(&self, pod: usize) {
        *lock(&self.all[pod].post) = Post::default();
    }

    pub fn ask_report(&self, pod: usize) {
        let mut post = lock(&self.all[pod].post);
        (post.is_asked, post.report) = (true, None);
    }

    pub fn take_report(&self, pod: usize) -> Option<Report> {
        lock(&self.all[pod].post).report.take()
    }

    pub fn is_asked(&self, pod: usize) -> bool {
        std::mem::take(&mut lock(&self.all[pod].post).is_asked)
    }

    pub fn report(&self, pod: usize, report: Report) {
        lock(&self.all[pod].post).report = Some(report);
    }

    pub fn ask_end(&self, pod: usize) {
        lock(&self.all[pod].post).is_to_end = true;
    }

    pub fn is_to_end(&self, pod: usize) -> bool {
        lock(&self.all[pod].post).is_to_end
    }

    // ---- the space ----

    /// The way from one pod's host to another's.
    pub fn channel(&self, from: usize, to: usize) -> Arc<Channel> {
        Arc::new(self.way(from, to))
    }

    /// The way from a pod, or from the machine of no pod, to the host of another.
    pub fn way(&self, from: usize, to: usize) -> Channel {
        let hello = Hello {
            space: SPACE,
            part: part_number(to),
            key: KEY,
            pod: pod_name(from),
        };
        let channel = Channel::new(self.network.port(from) as Arc<dyn Callers>, pod_name(to), hello);
        // Cards read what its host's caches have of a part that other hosts write to.
        let reads = if self.pods.twin.is_some() {
            FarReads::Plain
        } else {
            READS[from % READS.len()]
        };
        channel.reading(reads)
    }

    /// Waits until `is_so`, for so long of virtual time, and for so many looks: the schedule's adversary lets time jump
    /// to the next deadline, which is 10 s ahead where all others are ready, and nobody gets a turn then.
    pub fn wait(&self, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
        let (until, mut looks) = (rt::now() + time, 0);
        while !is_so() {
            looks += 1;
            if (rt::now() > until && looks > LOOKS_LEAST) || self.shared.has_failed() {
                return false;
            }
            rt::sleep(Nanos::from_micros(200));
        }
        true
    }

    /// Nothing moves any more, and this is what parts tell.
    pub fn keep(&self, reports: Reports) {
        *lock(&self.settled) = Some(reports);
    }

    /// What they told then.
    pub fn settled(&self) -> Option<Reports> {
        lock(&self.settled).clone()
    }

    /// What all programs that are there tell, by part.
    pub fn reports(&self) -> Option<Reports> {
        let alive = self.alive();
        alive.iter().for_each(|pod| self.ask_report(*pod));
        let mut reports = BTreeMap::new();
        let all_there = self.wait(Nanos::from_secs(30), || {
            for pod in &alive {
                if let Some(report) = self.take_report(*pod) {
                    reports.insert(part_number(*pod), report);
                }
            }
            reports.len() == alive.len()
        });
        all_there.then_some(reports)
    }
}

/// Where a pod's part lies.
pub(in crate::worlds) fn device(pod: usize) -> std::path::PathBuf {
    format!("/dev/sim/{}", device_name(pod)).into()
}

pub(in crate::worlds) fn device_name(pod: usize) -> String {
    format!("part{pod}")
}
