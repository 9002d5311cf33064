//! A pool of real processes on loopback: what happens when any of them is killed, stops, or lies.
//!
//! What the processes of holders do is [`another_process`].

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::{Identity, Region, RegionOptions};
use cenote_pool::Phase;
use cenote_pool::holder::{Credentials, GrantedMemory, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::{DEFAULT_TENANT, Tenants};
use common::{
    Process, TIMEOUT, hold, manager_options, network, node_options, requested, say, started_node, task, until,
    until_found,
};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// What a machine that does much else keeps, too.
const LEASE: Nanos = Nanos::from_secs(2);
const MARK_AT: usize = 8192;

struct Pool {
    directory: tempfile::TempDir,
    manager: Option<Manager>,
    address: String,
    nodes: Vec<Option<MemoryNode>>,
    tenants: Tenants,
}

impl Pool {
    /// A manager, and a memory node of 8 extents for each of `pods`.
    fn new(pods: &[&str]) -> Self {
        Self::with(pods, Tenants::default())
    }

    fn with(pods: &[&str], tenants: Tenants) -> Self {
        let mut pool = Self {
            directory: tempfile::tempdir_in("/dev/shm").expect("a directory"),
            manager: None,
            address: "127.0.0.1:0".into(),
            nodes: Vec::new(),
            tenants,
        };
        pool.start_manager();
        for (n, pod) in pods.iter().enumerate() {
            pool.nodes.push(Some(pool.node(n, pod, 8).expect("started")));
        }
        pool
    }

    fn start_manager(&mut self) {
        let options = ManagerOptions {
            tenants: self.tenants.clone(),
            ..self.manager_options(&self.address)
        };
        let manager = Manager::start(options, &Tcp).expect("a manager");
        self.address = manager.address().into();
        self.manager = Some(manager);
    }

    fn manager_options(&self, listen: &str) -> ManagerOptions {
        manager_options(&self.directory.path().join("manager"), listen, LEASE)
    }

    fn node_options(&self, n: usize, pod: &str, extents: u64) -> NodeOptions {
        let directory = self.directory.path().join(format!("node-{n}"));
        NodeOptions {
            secret: self.tenants.secret.clone().unwrap_or_default(),
            ..node_options(&directory, &self.address, pod, extents)
        }
    }

    fn node(&self, n: usize, pod: &str, extents: u64) -> Result<MemoryNode> {
        started_node(self.node_options(n, pod, extents))
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            secret: self.tenants.secret.clone().unwrap_or_default(),
            ..common::credentials(&self.address)
        }
    }

    fn operator(&self) -> Operator {
        Operator::connect(&Tcp, &self.credentials()).expect("connected")
    }

    fn open(&self, label: &str, extents: u64) -> Result<GrantedMemory> {
        GrantedMemory::open(
            &network(),
            &self.credentials(),
            requested(label, extents),
            Box::new(|_| {}),
        )
    }

    /// A process that holds a grant, and has it mapped.
    fn holder(&self, label: &str, mark: u64) -> Process {
        self.holder_that(label, mark, false)
    }

    fn holder_that(&self, label: &str, mark: u64, gives_back: bool) -> Process {
        Process::start_silent(&Task {
            manager: self.address.clone(),
            label: label.into(),
            mark,
            gives_back,
        })
    }

    fn phase(&self, label: &str) -> Option<Phase> {
        let status = self.operator().status().expect("a status");
        let grant = status.grants.iter().find(|grant| grant.label == label);
        grant.map(|grant| grant.phase)
    }

    fn until(&self, label: &str, wanted: Option<Phase>) {
        let is_so = || (self.phase(label) == wanted).then_some(());
        until_found(label, is_so, || format!("{:?}", self.phase(label)));
    }

    /// Until the first node is connected, or is not.
    fn until_connected(&self, wanted: bool) {
        until("the node", || {
            let nodes = self.operator().status().expect("a status").nodes;
            nodes.first().is_some_and(|node| node.connected == wanted)
        });
    }

    fn audited(&self) {
        let report = self.operator().audit().expect("an audit");
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// What a holder is told.
#[derive(Serialize, Deserialize)]
struct Task {
    manager: String,
    label: String,
    /// What it leaves.
    mark: u64,
    gives_back: bool,
}

/// What a holder does: opens, maps, says what mark it finds, leaves its own, and holds on until its input ends.
#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let (credentials, requested) = (common::credentials(&task.manager), requested(&task.label, 2));
    let revoked = Box::new(|error: &Error| say(&format!("revoked: {error}")));
    let memory = match GrantedMemory::open(&network(), &credentials, requested, revoked) {
        Ok(memory) => memory,
        Err(error) => return say(&format!("refused: {error}")),
    };
    let region = match memory.is_fresh() {
        true => Region::create(
            &memory.path(),
            memory.bytes(),
            Identity::default(),
            RegionOptions::default(),
        ),
        false => Region::open(&memory.path(), RegionOptions::default()),
    };
    let region = region.expect("the region");
    region.reserve(0, 16 << 10).expect("room");
    let mark = region.span(0, 16 << 10);
    say(&format!("found {} epoch {}", mark.u64(MARK_AT), memory.epoch()));
    mark.set_u64(MARK_AT, task.mark);
    say("ready");
    hold();
    drop(region);
    memory.release(task.gives_back).expect("released");
    say("released");
}

#[test]
fn a_killed_holder_finds_its_memory_again_at_once() {
    let pool = Pool::new(&["a"]);
    let mut holder = pool.holder("db", 77);
    assert!(holder.says().starts_with("found 0 epoch 1"));
    assert_eq!(holder.says(), "ready");
    holder.kill();
    let began = rt::now();
    let mut next = pool.holder("db", 78);
    assert_eq!(next.says(), "found 77 epoch 2");
    assert!(rt::now().since(began) < Nanos::from_secs(20));
    assert_eq!(next.says(), "ready");
    // Its input ends: it releases in order, and the memory is kept.
    next.close_input();
    assert_eq!(next.says(), "released");
    pool.until("db", Some(Phase::Idle));
    let mut last = pool.holder_that("db", 0, true);
    assert!(last.says().starts_with("found 78"));
    last.close_input();
    assert_eq!(last.says(), "ready");
    assert_eq!(last.says(), "released");
    pool.until("db", None);
    pool.audited();
}

#[test]
fn two_holders_of_one_grant_are_one_too_many() {
    let pool = Pool::new(&["a"]);
    let one = pool.holder("db", 1);
    assert!(one.says().starts_with("found 0"));
    assert_eq!(one.says(), "ready");
    let other = pool.holder("db", 2);
    let said = other.says();
    assert!(said.contains(&format!("in use by process {}", one.pid())), "{said}");
}

/// A holder that says nothing for a lease is ended before the memory is idle; it wakes up to nothing.
#[test]
fn a_stopped_holder_is_fenced() {
    let pool = Pool::new(&["a"]);
    let mut holder = pool.holder("db", 5);
    holder.says();
    assert_eq!(holder.says(), "ready");
    holder.signal(rustix::process::Signal::STOP);
    pool.until("db", Some(Phase::Idle));
    assert!(holder.has_ended(), "it was ended before its memory was idle");
    pool.audited();
    let next = pool.holder("db", 6);
    assert!(next.says().starts_with("found 5"));
}

#[test]
fn grants_do_not_overlap_and_come_back() {
    let pool = Pool::new(&["a"]);
    let one = pool.open("one", 3).expect("room");
    let other = pool.open("other", 5).expect("room");
    assert_ne!(one.path(), other.path());
    let third = pool.open("third", 1).err().expect("full");
    assert!(matches!(&third, Error::Full(text) if text.contains("2MiB")), "{third}");
    let path = one.path();
    one.release(true).expect("released");
    pool.until("one", None);
    assert!(!path.exists());
    let again = pool.open("third", 3).expect("room again");
    assert!(again.is_fresh());
    pool.audited();
}

/// The operator takes it away: the holder is told or ended, and the memory is free.
#[test]
fn a_freed_grant_has_no_holder() {
    let pool = Pool::new(&["a"]);
    let mut holder = pool.holder("db", 5);
    holder.says();
    assert_eq!(holder.says(), "ready");
    let grant = pool.operator().status().expect("a status").grants[0].id;
    pool.operator().free(grant).expect("freed");
    pool.until("db", None);
    assert!(holder.ended().code().is_none(), "it was killed");
    let unknown = pool.operator().free(grant);
    assert!(matches!(unknown, Err(Error::Invalid(_))), "{unknown:?}");
    pool.audited();
    let next = pool.holder("db", 6);
    assert!(next.says().starts_with("found 0 "), "another's bytes");
}

/// The story: the manager's machine was lost in the middle of a renewal, and was there again soon. The holder waited
/// for the answer of before until its lease had lapsed with the new one.
#[test]
fn a_renewal_that_is_not_answered_is_sent_again() {
    // A manager that the test plays.
    let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
    let credentials = common::credentials(&listener.address());
    let greeted = |timeout: Nanos| {
        let connection = listener.accept(timeout).expect("no error").expect("it comes again");
        connection.receive(TIMEOUT).expect("a hello");
        let welcome = format!(r#"{{"Ok":{{"pool":1,"term":1,"lease":{}}}}}"#, LEASE.raw());
        connection.send(welcome.as_bytes()).expect("sent");
        connection
    };
    let opening = std::thread::spawn(move || {
        GrantedMemory::open(&network(), &credentials, requested("db", 1), Box::new(|_| {})).expect("opened")
    });
    let first = greeted(TIMEOUT);
    first.receive(TIMEOUT).expect("a request");
    let opened = r#"{"Opened":{"grant":1,"epoch":1,"bytes":2097152,"pod":"a","path":"/nowhere/grant-1","fresh":true}}"#;
    first.send(opened.as_bytes()).expect("sent");
    first.receive(TIMEOUT).expect("it asks again before it uses it");
    first.send(b"\"Done\"").expect("sent");
    let _memory = opening.join().expect("no panic");
    let renewal = first.receive(TIMEOUT).expect("a renewal");
    // It was not answered for as long as anything is waited for before.
    let again = greeted(Nanos::from_secs(20));
    assert_eq!(again.receive(TIMEOUT).expect("the same"), renewal);
    again.send(b"\"Done\"").expect("sent");
}

/// The manager is killed and started again: the holder goes on, and so does its lease.
#[test]
fn a_manager_comes_and_goes() {
    let mut pool = Pool::new(&["a"]);
    let mut holder = pool.holder("db", 5);
    holder.says();
    assert_eq!(holder.says(), "ready");
    pool.manager = None;
    rt::sleep(Nanos(3 * LEASE.raw()));
    assert!(!holder.has_ended(), "no process is fenced meanwhile");
    pool.start_manager();
    pool.until("db", Some(Phase::Held));
    rt::sleep(Nanos(2 * LEASE.raw()));
    assert_eq!(pool.phase("db"), Some(Phase::Held));
    assert!(pool.nodes[0].as_ref().expect("it runs").wait_joined(TIMEOUT));
    holder.kill();
    assert_eq!(pool.holder("db", 6).says(), "found 5 epoch 2");
}

/// A manager with an older grant table than the memory node knows of gives it no orders: it would give away what is
/// another's by now.
#[test]
fn a_manager_with_an_old_book_is_not_obeyed() {
    let mut pool = Pool::new(&["a"]);
    let grant_table = pool.directory.path().join("manager/pool.records");
    let old = std::fs::read(&grant_table).expect("a book");
    for _ in 0..2 {
        pool.manager = None;
        pool.start_manager();
    }
    pool.until_connected(true);
    drop(pool.open("db", 2).expect("room"));
    pool.manager = None;
    let now = std::fs::read(&grant_table).expect("a book");
    std::fs::write(&grant_table, old).expect("written");
    pool.start_manager();
    let refused = pool.open("other", 2).err().expect("no manager grants it");
    assert!(matches!(&refused, Error::Full(_) | Error::Lost(_)), "{refused}");
    assert!(
        !pool.nodes[0]
            .as_ref()
            .expect("it runs")
            .wait_joined(Nanos::from_millis(500))
    );
    pool.manager = None;
    std::fs::write(&grant_table, now).expect("written");
    pool.start_manager();
    pool.until_connected(true);
    assert!(pool.open("db", 2).expect("the same").epoch() > 1);
}

/// The memory node is killed and started again: memory and holders are there; meanwhile nothing is granted from it.
#[test]
fn a_memory_node_comes_and_goes() {
    let mut pool = Pool::new(&["a"]);
    let mut holder = pool.holder("db", 5);
    holder.says();
    assert_eq!(holder.says(), "ready");
    pool.nodes[0] = None;
    pool.until_connected(false);
    let lost = pool.open("db", 2).err().expect("not there");
    assert!(matches!(&lost, Error::Lost(_)), "{lost}");
    assert!(matches!(pool.open("new", 1).err(), Some(Error::Full(_))));
    holder.kill();
    rt::sleep(Nanos(2 * LEASE.raw()));
    assert_eq!(
        pool.phase("db"),
        Some(Phase::Fencing),
        "in quarantine until the node says so"
    );
    pool.nodes[0] = Some(pool.node(0, "a", 8).expect("started again"));
    assert!(pool.holder("db", 6).says().starts_with("found 5"));
    pool.audited();
}

/// The story: memory was asked for when its node had just been let in, and had not yet noted whose it is. Its manager
/// said that it is not there.
#[test]
fn a_node_that_is_just_joining_is_waited_for() {
    let pool = Pool::new(&[]);
    // A memory node that the test plays.
    let connection = Tcp.connect(&pool.address, TIMEOUT).expect("connected");
    let hello = format!(
        r#"{{"version":11,"role":{{"Node":{{"id":5,"pool":null,"pod":"a","bytes":16777216,"directory":"/","machine":{},"members":"","calls":null,"last":0}}}},"secret":""}}"#,
        cenote_fabric::boot()
    );
    connection.send(hello.as_bytes()).expect("sent");
    let welcome = connection.receive(TIMEOUT).expect("a welcome");
    assert!(welcome.starts_with(b"{\"Ok\""), "{}", String::from_utf8_lossy(&welcome));
    let credentials = pool.credentials();
    let opening = std::thread::spawn(move || {
        GrantedMemory::open(&network(), &credentials, requested("db", 1), Box::new(|_| {})).map(drop)
    });
    pool.until("db", Some(Phase::Held));
    rt::sleep(Nanos::from_millis(300));
    connection.send(b"\"Done\"").expect("sent");
    while !opening.is_finished() {
        let Ok(order) = connection.receive(Nanos::from_millis(100)) else {
            continue;
        };
        let is_wish = order.starts_with(b"{\"Admit\"");
        let reply: &[u8] = if is_wish {
            br#"{"Admitted":{"fresh":true}}"#
        } else {
            b"\"Done\""
        };
        connection.send(reply).expect("sent");
    }
    opening.join().expect("no panic").expect("opened");
}

#[test]
fn twins_and_strangers_are_refused() {
    let mut pool = Pool::new(&["a"]);
    let twin = MemoryNode::start(pool.node_options(0, "a", 8), network(), Box::new(Machine));
    assert!(matches!(twin.err(), Some(Error::Busy(_))));
    let second = pool.manager_options("127.0.0.1:0");
    assert!(matches!(Manager::start(second, &Tcp).err(), Some(Error::Busy(_))));
    let huge = pool.node_options(1, "a", 1 << 30);
    let huge = MemoryNode::start(huge, network(), Box::new(Machine)).err();
    assert!(matches!(huge, Some(Error::Full(_))), "{huge:?}");
    // A directory of another pool.
    pool.nodes[0] = None;
    let other = Pool::new(&[]);
    let options = NodeOptions {
        manager: other.address.clone(),
        ..pool.node_options(0, "a", 8)
    };
    let stranger = MemoryNode::start(options, network(), Box::new(Machine)).expect("it starts, and tries");
    assert!(!stranger.wait_joined(Nanos::from_millis(500)));
    assert!(other.operator().status().expect("a status").nodes.is_empty());
}

#[test]
fn secrets_are_asked_for() {
    let tenants = Tenants::parse("secret = \"pool\"\n[[tenant]]\nname = \"a\"\nsecret = \"x\"\n").expect("good");
    let pool = Pool::with(&["a"], tenants);
    let ask = |tenant: &str, secret: &str| {
        let credentials = Credentials {
            tenant: tenant.into(),
            secret: secret.into(),
            ..pool.credentials()
        };
        GrantedMemory::open(&network(), &credentials, requested("db", 1), Box::new(|_| {}))
    };
    assert!(ask("a", "x").is_ok());
    for (tenant, secret) in [("a", ""), ("a", "pool"), ("b", "x"), (DEFAULT_TENANT, "")] {
        assert!(
            matches!(ask(tenant, secret).err(), Some(Error::Invalid(_))),
            "{tenant} {secret}"
        );
    }
    let nobody = Credentials {
        secret: "x".into(),
        ..pool.credentials()
    };
    assert!(Operator::connect(&Tcp, &nobody).is_err());
}

/// Whatever is said to the manager, it goes on.
#[test]
fn garbage_is_answered_with_the_end() {
    let pool = Pool::new(&["a"]);
    for seed in 0..20u64 {
        let mut raw = std::net::TcpStream::connect(&pool.address).expect("connected");
        let bytes: Vec<u8> = (0..200).map(|i| (seed * 31 + i * 7) as u8).collect();
        let _ = raw.write_all(&bytes);
        let connection = Tcp.connect(&pool.address, TIMEOUT).expect("connected");
        connection.send(&bytes).expect("sent");
        assert!(matches!(connection.receive(TIMEOUT), Err(Error::Lost(_))));
    }
    assert!(pool.open("db", 1).is_ok());
}

/// A grant table that was tampered with is refused, and said.
#[test]
fn a_damaged_book_is_refused() {
    let mut pool = Pool::new(&["a"]);
    let _memory = pool.open("db", 1).expect("room");
    pool.manager = None;
    let path = pool.directory.path().join("manager/pool.records");
    let text = std::fs::read_to_string(&path).expect("readable");
    std::fs::write(&path, text.replace("\"db\"", "\"no\"")).expect("written");
    let refused = Manager::start(pool.manager_options("127.0.0.1:0"), &Tcp).err();
    assert!(
        matches!(&refused, Some(Error::Corrupt(text)) if text.contains("checksum")),
        "{refused:?}"
    );
    assert!(Path::new(&path).exists());
}
