//! What outlives all processes of the world: the network, what is known of the database, what nodes say of themselves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::Lsn;
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::Network;
use cenote_fabric::profile;
use cenote_storage_node::{NodeOptions, NodesClient, Status};

use super::model::Model;
use crate::World;
use crate::clock;
use crate::message::Net;
use crate::worlds::shared::Shared;

/// Hosts of nodes, from 0 on; node 1 is on host 0.
pub(super) const NODES: usize = 3;
/// Hosts of writers, behind them.
pub(super) const WRITERS: usize = 2;
/// Pages of a space.
const FEW_PAGES: u64 = 12;
const MANY_PAGES: u64 = 60;
/// Calls succeed that begin so long after the last fault: nodes have chosen a leader, and tried each other again.
const SETTLED: Nanos = Nanos::from_secs(15);

/// A report counts as fresh for so long: nodes make one every 20 ms.
const FRESH: Nanos = Nanos::from_millis(100);

/// Limits of all nodes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    memory: usize,
    log_limit: u64,
    log_kept: u64,
    segment: u64,
}

impl Sizes {
    fn any(has_pieces: bool, waits: bool, draw: &mut Random) -> Sizes {
        let memory = draw.pick(&[16 << 10, 64 << 10, 1 << 20]);
        let log_limit = draw.pick(&[16 << 10, 128 << 10]);
        let (kept, segments) = match (has_pieces, waits) {
            (true, true) => ([4 << 20, 4 << 20], [1 << 20, 1 << 20]),
            // A segment has room for any piece.
            (true, false) => ([16 << 10, 128 << 10], [1 << 20, 1 << 20]),
            (false, true) => ([128 << 10, 256 << 10], [64 << 10, 128 << 10]),
            (false, false) => ([1 << 10, 8 << 10], [32 << 10, 64 << 10]),
        };
        Sizes {
            memory,
            log_limit,
            log_kept: draw.pick(&kept),
            segment: draw.pick(&segments),
        }
    }
}

/// What the controller and the program of a node tell each other.
#[derive(Debug, Default)]
struct Post {
    status: Option<Status>,
    /// When it said so.
    at: Nanos,
    /// It lacked pages when it was heard last, also before it was started again.
    lacks: bool,
    /// Times that it was seen to begin to lack pages: it was given a state.
    states: u64,
    is_to_end: bool,
    /// Checkpoints that it was seen to save.
    checkpoints: u64,
    /// The most that was seen to be in its pages.
    ingested: u64,
    /// Its directory was lost.
    was_lost: bool,
}

pub(super) struct Stage {
    pub shared: Arc<Shared>,
    pub net: Net,
    sizes: Sizes,
    /// Some appends are so long that they go in several pieces.
    pub has_pieces: bool,
    /// Writers wait for nodes that lag.
    waits: bool,
    model: Mutex<Model>,
    posts: [Mutex<Post>; NODES],
    operations: AtomicU64,
    /// The host whose directory was lost, until its new one is let in.
    lost: Mutex<Option<usize>>,
    /// Writers are to end.
    is_over: AtomicBool,
    /// Since when no fault is active.
    whole_since: Mutex<Option<Nanos>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a host's program on the network.
pub(super) fn name_of(host: usize) -> String {
    match host {
        0..NODES => format!("node{host}"),
        _ => format!("database{}", host - NODES),
    }
}

fn address(host: usize) -> String {
    format!("{}:5450", name_of(host))
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, draw: &mut Random) -> Arc<Stage> {
        let has_pieces = draw.one_in(4);
        let waits = draw.one_in(2);
        let sizes = Sizes::any(has_pieces, waits, draw);
        // More than come with one answer: others are merged while a node takes some.
        let pages = if waits {
            FEW_PAGES
        } else {
            draw.pick(&[FEW_PAGES, MANY_PAGES])
        };
        Arc::new(Stage {
            shared: Arc::clone(shared),
            net: Net::new(&profile::named("rdma").expect("a profile of this program"), draw.word()),
            sizes,
            has_pieces,
            waits,
            model: Mutex::new(Model::new(pages)),
            posts: Default::default(),
            operations: AtomicU64::new(0),
            lost: Mutex::new(None),
            is_over: AtomicBool::new(false),
            whole_since: Mutex::new(None),
        })
    }

    /// The model's lock is the machine's own: no preemption point is passed while it is held.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        locked(&self.model)
    }

    pub fn options(&self, host: usize) -> NodeOptions {
        let nodes: BTreeMap<u64, String> = (0..NODES).map(|host| (host as u64 + 1, address(host))).collect();
        NodeOptions {
            memory: self.sizes.memory,
            log_limit: self.sizes.log_limit,
            log_kept: self.sizes.log_kept,
            segment: self.sizes.segment,
            ..NodeOptions::new("/node".into(), "world", host as u64 + 1, nodes)
        }
    }

    pub fn network(&self, host: usize) -> Arc<dyn Network> {
        self.net.endpoint(&name_of(host), host)
    }

    /// Some of the nodes, as a program on a host sees them.
    pub fn client(&self, host: usize, nodes: std::ops::Range<usize>) -> NodesClient {
        let addresses: Vec<String> = nodes.map(address).collect();
        NodesClient::new(self.network(host), "world", "", &addresses)
    }

    // ---- nodes ----

    pub fn clear_post(&self, host: usize) {
        let mut post = locked(&self.posts[host]);
        (post.status, post.is_to_end) = (None, false);
    }

    pub fn ask_end(&self, host: usize) {
        locked(&self.posts[host]).is_to_end = true;
    }

    pub fn is_to_end(&self, host: usize) -> bool {
        locked(&self.posts[host]).is_to_end
    }

    pub fn report(&self, host: usize, status: Status) {
        let mut post = locked(&self.posts[host]);
        let is_new = post.status.as_ref().is_some_and(|before| before.saved < status.saved);
        post.checkpoints += u64::from(is_new);
        post.ingested = post.ingested.max(status.ingested);
        let lacks = status.lacking_pages > 0;
        post.states += u64::from(lacks && !post.lacks);
        (post.lacks, post.at) = (lacks, clock::now());
        post.status = Some(status);
    }

    pub fn status(&self, host: usize) -> Option<Status> {
        locked(&self.posts[host]).status.clone()
    }

    /// Whether every node has all entries and all pages, and knows what is committed, as far as the last reports say.
    pub fn is_everywhere(&self) -> bool {
        let fresh = clock::now().0.saturating_sub(FRESH.0);
        let posts: Vec<_> = self.posts.iter().map(locked).collect();
        let has_pages = |post: &MutexGuard<'_, Post>| post.status.as_ref().is_some_and(|s| s.lacking_pages == 0);
        let knows = |post: &MutexGuard<'_, Post>, all| {
            post.at.0 >= fresh && post.status.as_ref().is_some_and(|s| s.committed >= all)
        };
        let reports = posts.iter().filter_map(|post| Some((post.at.0, post.status.as_ref()?)));
        let newest = reports.max_by_key(|(_, status)| (status.term, status.leader == status.node));
        let committed = newest.map_or(0, |(_, status)| status.committed);
        posts.iter().all(has_pages)
            && posts.iter().all(|post| knows(post, committed))
            && newest.is_some_and(|(at, s)| at >= fresh && s.leader == s.node && s.everywhere >= s.committed.max(1))
    }

    // ---- a directory that was lost ----

    pub fn set_lost(&self, host: Option<usize>) {
        *locked(&self.lost) = host;
        if let Some(host) = host {
            locked(&self.posts[host]).was_lost = true;
        }
    }

    /// Whether a node may lack snapshots: it has lost its directory, or may have been given a state.
    pub fn may_lack_snapshots(&self, host: usize) -> bool {
        let post = locked(&self.posts[host]);
        !self.waits || post.was_lost || post.states > 0
    }

    pub fn lost(&self) -> Option<usize> {
        *locked(&self.lost)
    }

    /// Whether a node is so far behind that the log which it lacks may soon be gone, where that is waited for.
    pub fn lags(&self, end: Lsn) -> bool {
        if !self.waits {
            return false;
        }
        let least = self.posts.iter().map(|post| locked(post).ingested).min();
        end.raw().saturating_sub(least.unwrap_or(0)) > self.sizes.log_kept / 4
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

    /// Whether a call that began then, by the world's time, may fail: a fault was active, or had been shortly before.
    pub fn is_excused(&self, begun: Nanos) -> bool {
        locked(&self.whole_since).is_none_or(|since| begun < since + SETTLED)
    }

    /// Whether no fault is active: there is time.
    pub fn is_whole(&self) -> bool {
        locked(&self.whole_since).is_some()
    }

    pub fn count_operation(&self) {
        self.operations.fetch_add(1, SeqCst);
    }

    pub fn operations(&self) -> u64 {
        self.operations.load(SeqCst)
    }

    pub fn end_writers(&self) {
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
                self.shared.fail(format!("{what}: not within {time}"));
                return false;
            }
            rt::sleep(Nanos::from_millis(5));
        }
    }

    /// Adds to a failure what nodes say of themselves.
    pub fn tell_statuses(&self) {
        for host in 0..NODES {
            self.fail(format!("host {host} says: {:?}", self.status(host)));
        }
    }

    pub fn fail(&self, wrong: String) {
        self.shared.fail(wrong);
    }

    /// What nodes went through.
    pub fn add_counts(&self, world: &World) {
        for host in 0..NODES {
            self.shared
                .add("checkpoints of nodes", locked(&self.posts[host]).checkpoints);
            self.shared
                .add("states given to nodes", locked(&self.posts[host]).states);
            let files = world.files(host).files();
            let segments = files
                .iter()
                .filter_map(|path| path.file_name()?.to_str()?.strip_suffix(".log"));
            let first = segments.filter_map(|name| u64::from_str_radix(name, 16).ok()).min();
            self.shared.add("segments cut off Raft logs", first.unwrap_or(0));
        }
    }
}
