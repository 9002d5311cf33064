//! A member of another pod, in C and in Python, that is stopped beyond its lease while it holds a lock: another process
//! has the lock then, and what the member tries when it wakes up is refused, all of it.

mod common;

use cenote_base::rt::Nanos;
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_libfabric::{self as libfabric, Net, NetOptions, Provider};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::{Credentials, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_pool::settings::{DEFAULT_TENANT, Tenants};
use cenote_space::{EXTENT, GlobalAddress, HostOptions, Hosts, Mode, Space};
use common::{C99, Place, is_here, repository};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Long enough that a busy machine is not taken for a silent process.
const LEASE: Nanos = Nanos::from_secs(3);
const TIMEOUT: Nanos = Nanos::from_secs(120);
const SPACE: &str = "shared";
const PODS: [&str; 2] = ["east", "west"];

/// A manager and a memory node in each of two pods, in this process.
struct Pool {
    // Before what they are called by, and the manager.
    nodes: Vec<(MemoryNode, libfabric::MemoryNode)>,
    manager: Manager,
    net: Arc<Net>,
}

impl Pool {
    /// `None`, and a line about it, where there is no libfabric.
    fn new(directory: &Path) -> Option<Self> {
        let net = Net::new(NetOptions::default());
        let net = net.inspect_err(|error| println!("skipped: no libfabric: {error}"));
        let options = ManagerOptions {
            directory: directory.join("manager"),
            listen: "127.0.0.1:0".into(),
            tenants: Tenants::default(),
            lease: LEASE,
        };
        let mut pool = Self {
            nodes: Vec::new(),
            net: Arc::new(net.ok()?),
            manager: Manager::start(options, &Tcp).expect("a manager"),
        };
        PODS.iter().for_each(|pod| pool.start_node(directory, pod));
        let made = pool.client(None).create_space(SPACE, 16 * EXTENT, None);
        made.expect("a space");
        Some(pool)
    }

    fn start_node(&mut self, directory: &Path, pod: &str) {
        let hosts = Arc::new(Hosts::default());
        let called = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(Provider::tcp())).expect("a node");
        called.serve(Arc::clone(&hosts) as _);
        let options = NodeOptions {
            pod: pod.into(),
            bytes: 16 * EXTENT,
            directory: directory.join(pod),
            manager: self.manager.address().into(),
            secret: String::new(),
            listen: "127.0.0.1:0".into(),
            calls: Some(NodeCalls {
                registrar: None,
                address: called.address().to_string(),
                callers: Arc::clone(&self.net) as _,
                hosts,
                // Nothing moves meanwhile.
                options: HostOptions {
                    every: Nanos::ZERO,
                    ..HostOptions::default()
                },
            }),
        };
        let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node");
        assert!(node.wait_joined(TIMEOUT), "it joins");
        self.nodes.push((node, called));
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            manager: self.manager.address().into(),
            tenant: DEFAULT_TENANT.into(),
            secret: String::new(),
        }
    }

    fn client(&self, pod: Option<&str>) -> PoolClient {
        let options = ClientOptions {
            pod: pod.map(str::to_owned),
            callers: Some(Arc::clone(&self.net) as _),
            ..ClientOptions::default()
        };
        let network: Arc<dyn Network> = Arc::new(Tcp);
        PoolClient::connect(&network, &self.credentials(), options).expect("a client")
    }

    fn space(&self, pod: &str) -> Space {
        self.client(Some(pod)).open_space(SPACE).expect("a space")
    }

    fn problems(&self) -> Vec<String> {
        let operator = Operator::connect(&Tcp, &self.credentials()).expect("connected");
        operator.audit().expect("an audit").problems
    }
}

/// A member in another language; its process ends with it.
struct Member {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
    lock: GlobalAddress,
    /// One in each pod.
    words: Vec<GlobalAddress>,
}

impl Member {
    /// One that holds a lock in the east, and has written.
    fn start(mut program: Command, pool: &Pool, east: &Space, west: &Space) -> Self {
        let (east, west) = (east.session(), west.session());
        let lock = east.new_lock().expect("room");
        let words = [&east, &west].map(|session| session.alloc(64).expect("room"));
        assert_ne!(words[0].part(), words[1].part());
        program.arg(pool.manager.address()).arg(lock.to_string());
        program.args(words.map(|word| word.to_string()));
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut member = Self {
            process,
            lines,
            lock,
            words: words.to_vec(),
        };
        assert_eq!(member.says(), "locked");
        member
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal).expect("a process of this test");
    }

    /// Goes on: how many of its tries were not refused.
    fn wake(&mut self) -> String {
        self.signal(Signal::CONT);
        let mut input = self.process.stdin.take().expect("a pipe");
        writeln!(input, "go on").expect("told");
        self.says()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The story: a member in Python held a lock, was stopped beyond its lease and fenced; another took the lock and
/// stored; woken, thirty of thirty stores and adds of the first succeeded, and overwrote that.
#[test]
fn a_member_that_wakes_up_is_refused() {
    let place = Place::new();
    let Some(pool) = Pool::new(&place.file("pool")) else {
        return;
    };
    let tests = repository().join("crates/capi/tests");
    let mut programs = vec![place.command(place.compile(C99, &tests.join("c/fenced.c")))];
    if is_here("python3") {
        let mut python = place.python(&["-W", "error"]);
        python.arg(tests.join("python/fenced.py"));
        programs.push(python);
    }
    let (east, west) = (pool.space("east"), pool.space("west"));
    let start = |program| Member::start(program, &pool, &east, &west);
    let mut members: Vec<Member> = programs.into_iter().map(start).collect();
    members.iter().for_each(|member| member.signal(Signal::STOP));
    for member in &mut members {
        let session = east.session();
        let guard = session
            .lock_within(member.lock, Mode::Write, TIMEOUT)
            .expect("taken over");
        assert!(guard.owner_died());
        let words = &member.words;
        words.iter().for_each(|word| east.store(*word, 7).expect("stored"));
        assert_eq!(member.wake(), "wrong: 0");
        for word in &member.words {
            assert_eq!(
                east.load(*word).expect("a word"),
                7,
                "what was stored since is overwritten"
            );
        }
        guard.unlock().expect("held still");
    }
    assert_eq!(pool.problems(), Vec::<String>::new());
    drop(members);
    // Before the nodes, which would be waited for.
    drop((east, west));
}
