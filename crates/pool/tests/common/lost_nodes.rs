//! A pool whose memory nodes are lost with their memory: a process each, in a mount namespace where the other nodes'
//! directories are empty. The test program's `another_process` calls [`be_a_node`].

#![allow(dead_code, reason = "each of the test programs uses some of it")]

use super::common::{
    Process, TIMEOUT, calls_of, credentials, hold, manager_options, network, node_options, operator, say, task,
    until_found,
};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_libfabric as libfabric;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::{Phase, PoolStatus};
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

const LEASE: Nanos = Nanos::from_secs(4);
/// Set where the namespace is made already.
const HIDDEN: &str = "CENOTE_TEST_HIDDEN";

/// Whether these tests can run here; if not, a line says why.
pub fn can_run() -> bool {
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

/// What a memory node's process is told.
#[derive(Serialize, Deserialize)]
struct Task {
    manager: String,
    directory: PathBuf,
    pod: String,
    extents: u64,
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

/// A memory node, until it is killed: where this process is told to be one.
pub fn be_a_node() {
    let Some(task) = task::<Task>() else { return };
    hide(&task.hidden);
    let provider = libfabric::Provider::tcp();
    let fabric = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(provider)).expect("a node");
    let options = NodeOptions {
        calls: Some(calls_of(&fabric)),
        ..node_options(&task.directory, &task.manager, &task.pod, task.extents)
    };
    let node = MemoryNode::start(options, network(), Box::new(Machine)).expect("a node");
    assert!(node.wait_joined(TIMEOUT), "it joins");
    say("joined");
    hold();
}

/// A manager of this process, and memory nodes in others, each without the directories of the rest.
pub struct Pool {
    directory: tempfile::TempDir,
    pub manager: Manager,
    pub nodes: Vec<Process>,
    extents: u64,
}

impl Pool {
    pub fn new(nodes: usize, extents: u64) -> Self {
        Self::leased(nodes, extents, LEASE)
    }

    pub fn leased(nodes: usize, extents: u64, lease: Nanos) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let options = manager_options(&directory.path().join("manager"), "127.0.0.1:0", lease);
        let mut pool = Self {
            directory,
            manager: Manager::start(options, &Tcp).expect("a manager"),
            nodes: Vec::new(),
            extents,
        };
        // All of them are to be hidden from each other.
        (0..8).for_each(|n| std::fs::create_dir(pool.node_directory(n)).expect("made"));
        (0..nodes).for_each(|_| pool.add_node());
        pool
    }

    pub fn add_node(&mut self) {
        let n = self.nodes.len();
        let node = self.start_node(n);
        self.nodes.push(node);
    }

    pub fn start_node(&self, n: usize) -> Process {
        self.start_node_by(n, self.manager.address())
    }

    /// One that reaches the manager there.
    pub fn start_node_by(&self, n: usize, manager: &str) -> Process {
        let node = Process::start(&Task {
            manager: manager.into(),
            directory: self.node_directory(n),
            pod: format!("pod-{n}"),
            extents: self.extents,
            hidden: (0..8)
                .filter(|other| *other != n)
                .map(|other| self.node_directory(other))
                .collect(),
        });
        assert_eq!(node.says(), "joined");
        node
    }

    pub fn node_directory(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("node-{n}"))
    }

    /// Its machine is gone, with its memory, and an operator says so.
    pub fn lose(&mut self, n: usize) {
        self.nodes[n].kill();
        std::fs::remove_dir_all(self.node_directory(n)).expect("removed");
        self.forget(n);
    }

    /// An operator says that it is gone, as soon as the manager misses it.
    pub fn forget(&self, n: usize) {
        let pod = format!("pod-{n}");
        let missed = |pool: &Self| {
            let nodes = pool.status().nodes;
            nodes.into_iter().find(|node| node.pod == pod && !node.connected)
        };
        let id = self.until("the manager misses it", missed).id;
        operator(self.manager.address()).forget(id).expect("forgotten");
    }

    pub fn status(&self) -> PoolStatus {
        operator(self.manager.address()).status().expect("a status")
    }

    pub fn until<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        until_found(what, || found(self), || format!("{:?}", self.status().grants))
    }

    /// Until each part has a mirror that is whole.
    pub fn until_whole(&self) {
        self.until("whole mirrors", |pool| {
            let grants = pool.status().grants;
            let count = |phase| grants.iter().filter(|grant| grant.phase == phase).count();
            (count(Phase::Kept) > 0 && count(Phase::Whole) == count(Phase::Kept)).then_some(())
        });
    }

    /// In which node the parts of the space lie.
    pub fn places(&self) -> Vec<usize> {
        let parts = self.status().spaces.remove(0).parts;
        parts
            .iter()
            .map(|part| {
                part.pod
                    .rsplit('-')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .expect("a number")
            })
            .collect()
    }

    pub fn client(&self) -> PoolClient {
        let quick = libfabric::NetOptions {
            timeout: Nanos::from_secs(1),
            ..libfabric::NetOptions::default()
        };
        let net = libfabric::Net::new(quick).expect("libfabric");
        let options = ClientOptions {
            callers: Some(Arc::new(net)),
            ..ClientOptions::default()
        };
        PoolClient::connect(&network(), &credentials(self.manager.address()), options).expect("a client")
    }

    pub fn audit(&self) {
        self.until("a clean audit", |pool| {
            let report = operator(pool.manager.address()).audit().expect("an audit");
            report.problems.is_empty().then_some(())
        });
    }
}

/// Whether a node that is lost, or about to be replaced, is the reason.
pub fn is_away(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))
}

/// Tries until no node is missed for it.
pub fn patiently<T>(what: &str, mut act: impl FnMut() -> Result<T>) -> T {
    let found = || match act() {
        Err(error) if is_away(&error) => None,
        done => Some(done.unwrap_or_else(|error| panic!("{what}: {error}"))),
    };
    until_found(what, found, || "it is away".into())
}
