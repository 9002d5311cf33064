//! Members of other pods are fenced by what their calls are checked for: a process that maps nothing, holds a lock, is
//! stopped beyond its lease and woken, finds each access refused, and nothing that others have written since is
//! overwritten. Calls go over libfabric, between processes.

mod common;

use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::Callers;
use cenote_fs::{Failure, FileSystem, Owner};
use cenote_libfabric::{self as libfabric, Net, NetOptions, Provider};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_space::{EXTENT, GlobalAddress, HostOptions, Hosts, Mode, Session, Space};
use common::{
    Process, TIMEOUT, credentials, manager_options, network, node_options, operator, say, started_node, task, until,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Long enough that a busy machine is not taken for a silent process.
const LEASE: Nanos = Nanos::from_secs(3);
/// How often a member that was fenced tries each kind of access.
const TRIES: usize = 30;
const SPACE: &str = "shared";

/// What another process is told to be: a member of no node's pod, so that all is far.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Member {
    manager: String,
    work: Work,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Work {
    Lock {
        lock: GlobalAddress,
        /// What the lock protects, in each part.
        words: Vec<GlobalAddress>,
    },
    /// Mounts the file system.
    Files,
}

const ME: Owner = Owner { user: 1, group: 1 };

#[test]
fn another_process() {
    if let Some(member) = task::<Member>() {
        let net = Net::new(NetOptions::default()).expect("libfabric");
        let space = open(&member.manager, "nowhere", Arc::new(net));
        let wrong = match &member.work {
            Work::Lock { lock, words } => hold_and_come_back(&space, *lock, words),
            Work::Files => mount_and_come_back(&space),
        };
        say(&format!("wrong: {wrong:?}"));
        common::hold();
    }
}

/// Waits until the starter says something.
fn wait() {
    std::io::stdin().read_line(&mut String::new()).expect("told");
}

/// Mounts the file system, writes a file, and says so; when it is told something, it tries to go on. What was not
/// refused.
fn mount_and_come_back(space: &Space) -> Vec<String> {
    let files = FileSystem::mount(space).expect("mounted");
    let file = files.create_open(files.root(), b"file", 0o644, ME).expect("made").inode;
    files.write(file, 0, &[1; 10_000]).expect("written");
    say("written");
    wait();
    let mut wrong = Vec::new();
    for n in 0..TRIES {
        let made = files.create_open(files.root(), format!("{n}").as_bytes(), 0o644, ME);
        let tries = [files.write(file, 0, &[6; 10_000]).map(drop), made.map(drop)];
        let is_refused = |tried: &Result<(), Failure>| matches!(tried, Err(Failure::Memory(Error::Revoked(_))));
        let not_refused = tries.iter().filter(|tried| !is_refused(tried));
        wrong.extend(not_refused.map(|tried| format!("{tried:?}")));
    }
    wrong
}

/// Takes the lock, writes, and says so; when it is told something, it tries to go on. What was not refused.
fn hold_and_come_back(space: &Space, lock: GlobalAddress, words: &[GlobalAddress]) -> Vec<String> {
    let session = space.session();
    let guard = session.lock(lock, Mode::Write).expect("the lock");
    for word in words {
        space.store(*word, 1).expect("stored");
        guard.write(*word, &2u64.to_le_bytes()).expect("collected");
    }
    say("locked");
    wait();
    let mut wrong = Vec::new();
    let mut judge = |what: &str, result: Result<(), Error>| {
        if !matches!(result, Err(Error::Revoked(_))) {
            wrong.push(format!("{what}: {result:?}"));
        }
    };
    for _ in 0..TRIES {
        for word in words {
            judge("store", space.store(*word, 666));
            judge("fetch_add", space.fetch_add(*word, 1).map(drop));
            judge("compare_and_swap", space.compare_and_swap(*word, 7, 666).map(drop));
            judge("write", space.write(*word, &[6; 8]));
            judge("load", space.load(*word).map(drop));
        }
    }
    judge("sync", guard.sync());
    judge("unlock", guard.unlock());
    judge("lock", session.lock_within(lock, Mode::Write, LEASE).map(drop));
    judge("alloc", session.alloc(64).map(drop));
    wrong
}

fn open(manager: &str, pod: &str, callers: Arc<dyn Callers>) -> Space {
    let options = ClientOptions {
        pod: Some(pod.into()),
        callers: Some(callers),
        ..ClientOptions::default()
    };
    let client = PoolClient::connect(&network(), &credentials(manager), options).expect("a client");
    client.open_space(SPACE).expect("a space")
}

const PODS: [&str; 2] = ["east", "west"];

/// A memory node, and what it is called by.
type Node = (MemoryNode, libfabric::MemoryNode);

/// A manager and a memory node in each of two pods, in this process.
struct Pool {
    nodes: [Option<Node>; 2],
    manager: Manager,
    net: Arc<Net>,
    directory: tempfile::TempDir,
}

impl Pool {
    /// `None`, and a line about it, where there is no libfabric.
    fn new() -> Option<Self> {
        let net = Net::new(NetOptions::default());
        let net = net
            .inspect_err(|error| println!("skipped: no libfabric: {error}"))
            .ok()?;
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let options = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
        let mut pool = Self {
            nodes: [None, None],
            manager: Manager::start(options, &Tcp).expect("a manager"),
            net: Arc::new(net),
            directory,
        };
        (0..2).for_each(|n| pool.start_node(n));
        pool.make_space();
        Some(pool)
    }

    fn start_node(&mut self, n: usize) {
        let hosts = Arc::new(Hosts::default());
        let called = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(Provider::tcp())).expect("a node");
        called.serve(Arc::clone(&hosts) as _);
        let calls = NodeCalls {
            registrar: None,
            address: called.address().to_string(),
            callers: Arc::clone(&self.net) as _,
            hosts,
            options: HostOptions {
                every: Nanos::ZERO,
                ..HostOptions::default()
            },
        };
        let directory = self.directory.path().join(PODS[n]);
        let options = NodeOptions {
            calls: Some(calls),
            ..node_options(&directory, self.manager.address(), PODS[n], 16)
        };
        self.nodes[n] = Some((started_node(options).expect("a memory node"), called));
    }

    /// A lock in the east, and a word in each pod.
    fn places(east: &Session, west: &Space) -> (GlobalAddress, Vec<GlobalAddress>) {
        let lock = east.new_lock().expect("room");
        let words = vec![east.alloc(64).expect("room"), west.session().alloc(64).expect("room")];
        assert_eq!(lock.part(), words[0].part());
        assert_ne!(words[0].part(), words[1].part());
        (lock, words)
    }

    /// A member that holds the lock, and has written.
    fn holder(&self, lock: GlobalAddress, words: &[GlobalAddress]) -> Process {
        let words = words.to_vec();
        let member = Process::start(&Member {
            manager: self.manager.address().into(),
            work: Work::Lock { lock, words },
        });
        assert_eq!(member.says(), "locked");
        member
    }

    /// The member goes on: all that it tries is refused, and nothing of it is there.
    fn wake(&self, mut member: Process, space: &Space, words: &[GlobalAddress]) {
        member.signal(Signal::CONT);
        member.tell("go on");
        assert_eq!(member.says(), "wrong: []");
        for word in words {
            assert_eq!(
                space.load(*word).expect("a word"),
                7,
                "what was stored since is overwritten"
            );
        }
        member.kill();
    }

    fn audit(&self) {
        let problems = operator(self.manager.address()).audit().expect("an audit").problems;
        assert_eq!(problems, Vec::<String>::new());
    }

    fn space(&self, pod: &str) -> Space {
        open(self.manager.address(), pod, Arc::clone(&self.net) as _)
    }

    fn make_space(&self) {
        let client = PoolClient::connect(
            &network(),
            &credentials(self.manager.address()),
            ClientOptions::default(),
        );
        let made = client.and_then(|client| client.create_space(SPACE, 16 * EXTENT, None));
        made.expect("a space");
    }
}

/// A member that held a lock was stopped beyond its lease, and another took the lock and stored; woken, each of its
/// stores and adds succeeded, and overwrote that. Of what the lock protects, some lies in the lock's part and some in
/// another.
#[test]
fn a_member_of_another_pod_that_wakes_up_is_refused() {
    let Some(pool) = Pool::new() else { return };
    let (east, west) = (pool.space("east"), pool.space("west"));
    let session = east.session();
    let (lock, words) = Pool::places(&session, &west);
    let member = pool.holder(lock, &words);
    member.signal(Signal::STOP);
    let guard = session.lock_within(lock, Mode::Write, TIMEOUT).expect("taken over");
    assert!(guard.owner_died());
    words.iter().for_each(|word| east.store(*word, 7).expect("stored"));
    pool.wake(member, &east, &words);
    guard.unlock().expect("held still");
    pool.audit();
    // Before the nodes, which would be waited for.
    drop((session, east, west));
}

/// While a node cannot be reached nobody knows what may land there yet: the lock of a fenced member stays its own until
/// that node is back, and has confirmed that it refuses the member.
#[test]
fn a_lock_is_handed_over_when_all_nodes_have_confirmed() {
    hand_over_late(false);
}

/// The lock's node began anew meanwhile, and knows of the member from what it wrote down alone.
#[test]
fn a_node_that_begins_anew_hands_over_when_all_others_have_confirmed() {
    hand_over_late(true);
}

fn hand_over_late(begins_anew: bool) {
    let Some(mut pool) = Pool::new() else { return };
    let (east, west) = (pool.space("east"), pool.space("west"));
    let session = east.session();
    let (lock, words) = Pool::places(&session, &west);
    let member = pool.holder(lock, &words);
    member.signal(Signal::STOP);
    pool.nodes[1] = None;
    if begins_anew {
        pool.nodes[0] = None;
        pool.start_node(0);
    }
    let taken = session.lock_within(lock, Mode::Write, Nanos(3 * LEASE.raw())).map(drop);
    assert!(matches!(taken, Err(Error::Timeout(_))), "{taken:?}");
    pool.start_node(1);
    let guard = session.lock_within(lock, Mode::Write, TIMEOUT).expect("taken over");
    assert!(guard.owner_died());
    words.iter().for_each(|word| east.store(*word, 7).expect("stored"));
    pool.wake(member, &east, &words);
    guard.unlock().expect("held still");
    pool.audit();
    drop((session, east, west));
}

/// As with locks and words: the file system's journal and contents are words and bytes of the space.
#[test]
fn a_mount_of_another_pod_that_wakes_up_is_refused() {
    let Some(pool) = Pool::new() else { return };
    let east = pool.space("east");
    let files = FileSystem::make(&east, ME).expect("made");
    let mut member = Process::start(&Member {
        manager: pool.manager.address().into(),
        work: Work::Files,
    });
    assert_eq!(member.says(), "written");
    member.signal(Signal::STOP);
    until("the mount is over", || files.check(false).expect("looked at").is_alone);
    let file = files.find(files.root(), b"file").expect("it is there").inode;
    files.write(file, 0, &[7; 10_000]).expect("written");
    member.signal(Signal::CONT);
    member.tell("go on");
    assert_eq!(member.says(), "wrong: []");
    let mut found = vec![0; 10_000];
    files.read(file, 0, &mut found).expect("read");
    assert!(found == [7; 10_000], "what was written since is overwritten");
    member.kill();
    let report = files.check(false).expect("looked at");
    assert_eq!((report.files, report.problems), (1, Vec::new()));
    drop((files, east));
}
