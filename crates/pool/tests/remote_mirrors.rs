//! Mirrors on another machine, by real processes over TCP: the holder does not see its mirror's file. Whichever side is
//! lost, what was flushed and acknowledged is there, and a former holder that wakes up changes nothing of it.
//!
//! A holder has a mount namespace of its own, in which the memory nodes' directories but its own node's are empty. What
//! the processes of holders do is [`another_process`].

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::mirror::JOURNAL;
use cenote_fabric::{Identity, Region, RegionOptions, coherence};
use cenote_libfabric as libfabric;
use cenote_pool::holder::{GrantRequest, GrantedMemory};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::{GrantView, Phase, PoolStatus};
use cenote_space::EXTENT;
use common::{
    Process, TIMEOUT, calls_of, credentials, manager_options, network, node_options, operator, say, task, until_found,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const LEASE: Nanos = Nanos::from_millis(2500);
const EXTENTS: u64 = 2;
/// Two lines far from each other: the first is flushed before the second is written.
const FIRST: u64 = 8192;
const SECOND: u64 = 1 << 20;
/// Set where the namespace is made already.
const HIDDEN: &str = "CENOTE_TEST_HIDDEN";

/// Whether these tests can run here; if not, a line says why.
fn can_run() -> bool {
    let made = Command::new("unshare").args(["-m", "true"]).output();
    let why = match (made.is_ok_and(|made| made.status.success()), libfabric::available()) {
        (false, _) => "no right to make mount namespaces".to_owned(),
        (_, Err(error)) => error.to_string(),
        _ => return true,
    };
    assert!(std::env::var("CI").is_err(), "skipped: {why}");
    println!("skipped: {why}");
    false
}

struct Node {
    memory: MemoryNode,
    /// Its machine's network card.
    fabric: libfabric::MemoryNode,
}

struct Pool {
    directory: tempfile::TempDir,
    manager: Manager,
    nodes: Vec<Option<Node>>,
}

impl Pool {
    fn new(nodes: usize) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let options = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
        let mut pool = Self {
            directory,
            manager: Manager::start(options, &Tcp).expect("a manager"),
            nodes: Vec::new(),
        };
        (0..nodes).for_each(|_| pool.add_node());
        pool
    }

    fn add_node(&mut self) {
        self.nodes.push(None);
        self.start_node(self.nodes.len() - 1);
    }

    fn start_node(&mut self, n: usize) {
        let provider = libfabric::Provider::tcp();
        let fabric = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(provider)).expect("a node");
        let options = NodeOptions {
            calls: Some(calls_of(&fabric)),
            ..node_options(
                &self.node_directory(n),
                self.manager.address(),
                &format!("pod-{n}"),
                // And a journal.
                2 * EXTENTS + JOURNAL / EXTENT,
            )
        };
        let memory = MemoryNode::start(options, network(), Box::new(Machine)).expect("a node");
        assert!(memory.wait_joined(TIMEOUT), "it joins");
        self.nodes[n] = Some(Node { memory, fabric });
    }

    /// The node's process ends.
    fn stop_node(&mut self, n: usize) {
        let node = self.nodes[n].take().expect("a node");
        node.fabric.close();
        drop(node.memory);
    }

    /// Its machine is gone, with its memory, and an operator says so.
    fn lose(&mut self, n: usize) {
        let pod = format!("pod-{n}");
        let find = |status: &PoolStatus| status.nodes.iter().find(|node| node.pod == pod).cloned();
        let id = find(&self.status()).expect("a node").id;
        self.stop_node(n);
        std::fs::remove_dir_all(self.node_directory(n)).expect("removed");
        self.until("the manager misses it", |pool| {
            find(&pool.status()).filter(|node| !node.connected)
        });
        operator(self.manager.address()).forget(id).expect("forgotten");
    }

    fn node_directory(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("node-{n}"))
    }

    fn status(&self) -> PoolStatus {
        operator(self.manager.address()).status().expect("a status")
    }

    fn until<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        until_found(what, || found(self), || format!("{:?}", self.status().grants))
    }

    fn until_whole(&self) -> GrantView {
        self.until("a whole mirror", |pool| {
            let grants = pool.status().grants;
            grants.into_iter().find(|grant| grant.phase == Phase::Whole)
        })
    }

    /// A holder whose machine has the `n`th node; what it acknowledges goes to a file of this name.
    fn holder(&self, n: usize, acknowledged: &str) -> Process {
        let others = (0..self.nodes.len()).filter(|other| *other != n);
        Process::start(&Task {
            manager: self.manager.address().into(),
            acknowledged: self.directory.path().join(acknowledged),
            hidden: others.map(|other| self.node_directory(other)).collect(),
        })
    }

    /// One that runs where it found the memory: the number that it found.
    fn holder_of(&self, n: usize, acknowledged: &str) -> (Process, Found) {
        let refused = |said: &str| said.starts_with("refused") && !said.contains("another machine");
        self.until("memory", |pool| {
            let holder = pool.holder(n, acknowledged);
            let said = holder.says();
            (!refused(&said)).then(|| (holder, Found::parse(&said)))
        })
    }

    /// The last number that a holder said to be safe.
    fn acknowledged(&self, name: &str) -> u64 {
        let bytes = std::fs::read(self.directory.path().join(name)).unwrap_or_default();
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn until_acknowledged(&self, name: &str, more: u64) {
        let from = self.acknowledged(name);
        self.until("acknowledged writes", |pool| {
            (pool.acknowledged(name) > from + more).then_some(())
        });
    }

    fn has_journal(&self, n: usize) -> bool {
        let names = std::fs::read_dir(self.node_directory(n)).expect("a directory");
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.any(|name| name.starts_with("journal-"))
    }
}

/// What a holder found.
#[derive(Debug)]
struct Found {
    fresh: bool,
    first: u64,
    second: u64,
}

impl Found {
    fn parse(said: &str) -> Self {
        let words: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [fresh, first, second] = words[..] else {
            panic!("{said}");
        };
        let fresh = fresh == 1;
        Self { fresh, first, second }
    }

    /// Nothing of what was acknowledged is missing, and nothing is ahead of what was flushed before.
    fn check(&self, safe: u64) {
        assert!(!self.fresh, "it is the memory of before");
        let is_so = self.first >= safe && self.second >= safe && self.first >= self.second;
        assert!(is_so, "{safe} was acknowledged: {self:?}");
    }
}

/// What a holder is told.
#[derive(Serialize, Deserialize)]
struct Task {
    manager: String,
    /// The file for what is safe.
    acknowledged: PathBuf,
    /// Directories that are not on its machine.
    hidden: Vec<PathBuf>,
}

/// Goes on as this program in a mount namespace where those directories are empty.
fn hide(directories: &[PathBuf]) {
    if directories.is_empty() || std::env::var(HIDDEN).is_ok() {
        return;
    }
    let there = directories.iter().filter(|directory| directory.exists());
    let names: Vec<String> = there.map(|directory| directory.display().to_string()).collect();
    let script = "for d in $HIDE; do mount -t tmpfs none $d || exit 9; done; exec \"$@\"";
    let error = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().expect("this program"))
        .args(std::env::args_os().skip(1))
        .env("HIDE", names.join(" "))
        .env(HIDDEN, "1")
        .exec();
    panic!("{error}");
}

fn region_of(memory: &GrantedMemory) -> Result<Arc<Region>> {
    let (path, options) = (memory.path(), RegionOptions::default());
    let region = match memory.is_fresh() {
        true => Region::create(&path, memory.bytes(), Identity::default(), options)?,
        false => Region::open(&path, options)?,
    };
    Ok(Arc::new(region))
}

/// What a holder does: opens, says what it finds, and writes numbers until it is ended.
#[test]
fn another_process() {
    let Some(Task {
        manager,
        acknowledged,
        hidden,
    }) = task()
    else {
        return;
    };
    hide(&hidden);
    let requested = GrantRequest {
        mirror: true,
        ..common::requested("db", EXTENTS)
    };
    let revoked = Box::new(|_: &Error| std::process::exit(3));
    let memory = match GrantedMemory::open(&network(), &credentials(&manager), requested, revoked) {
        Ok(memory) => memory,
        Err(error) => return say(&format!("refused: {error}")),
    };
    if !memory.path().exists() {
        return say("refused: it is not on this machine");
    }
    let keeper = memory.mirror().expect("it was wished for");
    if memory.is_fresh() {
        keeper.before_making().expect("the manager is there");
    }
    let region = match region_of(&memory) {
        Ok(region) => region,
        Err(error) => return say(&format!("refused: {error}")),
    };
    assert!(hidden.iter().all(|directory| is_empty(directory)), "they are not seen");
    keeper.begin(&region).expect("mirrored, or not");
    region.reserve_to(2 << 20).expect("room");
    let word = |at: u64| region.span(at, 8).u64(0);
    let mut n = word(FIRST);
    say(&format!("{} {n} {}", u8::from(memory.is_fresh()), word(SECOND)));
    let options = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(acknowledged);
    let acknowledged = options.expect("a file");
    loop {
        n += 1;
        for at in [FIRST, SECOND] {
            region.span(at, 8).set_u64(0, n);
            coherence::flush(&region, at, 8);
        }
        acknowledged.write_all_at(&n.to_le_bytes(), 0).expect("written");
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

/// A pool whose holder, on the machine of the node that this says, has a whole mirror elsewhere, and has written.
fn running(nodes: usize) -> (Pool, Process, usize, usize) {
    let pool = Pool::new(nodes);
    // Where it will be is not known before: a holder that does not see it is refused, and another is begun.
    let (_, holder, n) = pool.until("memory", |pool| {
        (0..nodes).find_map(|n| {
            let holder = pool.holder(n, "acknowledged");
            let said = holder.says();
            (!said.starts_with("refused")).then(|| (Found::parse(&said), holder, n))
        })
    });
    let mirror = pool.until_whole();
    let place = mirror
        .pod
        .rsplit('-')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert_ne!(place, n);
    assert!(pool.has_journal(place), "it is lent, and not mapped");
    pool.until_acknowledged("acknowledged", 100);
    (pool, holder, n, place)
}

/// The holder's machine is gone, its memory included, in the middle of a write. The mirror's machine goes on with what
/// was acknowledged; and has a mirror again, when there is a node for it.
#[test]
fn a_lost_machine_is_replaced_by_its_mirrors() {
    if !can_run() {
        return;
    }
    let (mut pool, mut holder, n, place) = running(2);
    holder.kill();
    let safe = pool.acknowledged("acknowledged");
    pool.lose(n);
    let (_next, found) = pool.holder_of(place, "acknowledged");
    found.check(safe);
    assert!(!pool.has_journal(place), "what had come is in its place");
    pool.until_acknowledged("acknowledged", 100);
    pool.add_node();
    pool.until_whole();
    pool.until_acknowledged("acknowledged", 100);
    pool.until("a clean audit", |pool| {
        let report = operator(pool.manager.address()).audit().expect("an audit");
        report.problems.is_empty().then_some(())
    });
}

/// A mirror's journal was counted neither towards its node's room nor its tenant's quota.
#[test]
fn a_journal_counts() {
    if !can_run() {
        return;
    }
    let (pool, _holder, _, place) = running(2);
    let status = pool.status();
    let pod = format!("pod-{place}");
    let node = status.nodes.iter().find(|node| node.pod == pod).expect("a node");
    assert_eq!(node.granted, EXTENTS * EXTENT + JOURNAL);
    assert_eq!(status.tenants[0].granted, 2 * EXTENTS * EXTENT + JOURNAL);
}

/// A holder on a machine that was taken for lost stands still, and goes on when its mirror has another holder: it writes
/// nothing into it.
#[test]
fn a_woken_holder_writes_nothing_into_a_promoted_mirror() {
    if !can_run() {
        return;
    }
    let (mut pool, former, n, place) = running(2);
    former.signal(Signal::STOP);
    let safe = pool.acknowledged("acknowledged");
    pool.lose(n);
    let (mut next, found) = pool.holder_of(place, "of the next");
    found.check(safe);
    pool.until_acknowledged("of the next", 100);
    former.signal(Signal::CONT);
    let began = rt::now();
    while rt::now().since(began) < LEASE {
        pool.until_acknowledged("of the next", 10);
    }
    next.kill();
    let safe = pool.acknowledged("of the next");
    let (_third, found) = pool.holder_of(place, "of the next");
    found.check(safe);
}

/// A holder whose mirror's machine is lost goes on, and has a mirror elsewhere soon. That one is as good.
#[test]
fn a_lost_mirror_does_not_stop_its_holder() {
    if !can_run() {
        return;
    }
    let (mut pool, mut holder, n, place) = running(2);
    pool.lose(place);
    pool.until_acknowledged("acknowledged", 100);
    pool.add_node();
    let mirror = pool.until_whole();
    assert_eq!(mirror.pod, "pod-2");
    pool.until_acknowledged("acknowledged", 100);
    holder.kill();
    let safe = pool.acknowledged("acknowledged");
    pool.lose(n);
    pool.holder_of(2, "acknowledged").1.check(safe);
}

/// The mirror's node starts anew: its keys are gone, the holder says that the mirror is void before it goes on, and
/// fills it again.
#[test]
fn a_restarted_mirror_is_filled_again() {
    if !can_run() {
        return;
    }
    let (mut pool, mut holder, n, place) = running(2);
    pool.stop_node(place);
    pool.until("the table knows", |pool| {
        let grants = pool.status().grants;
        grants.iter().all(|grant| grant.phase != Phase::Whole).then_some(())
    });
    pool.until_acknowledged("acknowledged", 100);
    pool.start_node(place);
    pool.until_whole();
    pool.until_acknowledged("acknowledged", 100);
    holder.kill();
    let safe = pool.acknowledged("acknowledged");
    pool.lose(n);
    pool.holder_of(place, "acknowledged").1.check(safe);
}

/// The holder is killed and started again, often: its mirror is filled again each time, with keys of the latest holder.
#[test]
fn a_restarted_holder_goes_on_with_its_mirror() {
    if !can_run() {
        return;
    }
    let (mut pool, mut holder, n, place) = running(2);
    let mirror = pool.until_whole();
    for _ in 0..5 {
        holder.kill();
        let safe = pool.acknowledged("acknowledged");
        let (next, found) = pool.holder_of(n, "acknowledged");
        found.check(safe);
        holder = next;
        pool.until_acknowledged("acknowledged", 10);
        assert_eq!(pool.until_whole().id, mirror.id);
    }
    holder.kill();
    let safe = pool.acknowledged("acknowledged");
    pool.lose(n);
    pool.holder_of(place, "acknowledged").1.check(safe);
}
