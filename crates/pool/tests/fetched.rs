//! Far objects are read by the reader's own card, by a key of its own: the node serves no call for it, whatever is
//! written and moved meanwhile; and no key outlives its member, its space or its part. Over libfabric, between
//! processes.

mod common;

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::{Answer, CallerId, Serve};
use cenote_fabric::rdma::{Fabric, Key, Registrar, Remote, RemoteMemory};
use cenote_libfabric::{self as libfabric, Net, NetOptions, Path, Provider};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_space::{EXTENT, FarReads, GlobalAddress, HostOptions, Hosts, Space};
use common::{Process, credentials, manager_options, network, node_options, say, started_node, task, until};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Long enough that a busy machine is not taken for a silent process.
const LEASE: Nanos = Nanos::from_secs(3);
const SPACE: &str = "shared";
const PODS: [&str; 2] = ["east", "west"];
const WORDS: usize = 128;
const READS: usize = 60;

/// What another process is told: to read these objects, all of which are far.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reader {
    manager: String,
    objects: Vec<GlobalAddress>,
}

#[test]
fn another_process() {
    if let Some(reader) = task::<Reader>() {
        let net = Arc::new(Net::new(NetOptions::default()).expect("libfabric"));
        let space = open(&reader.manager, &net).expect("a space");
        follow(&space, &reader.objects);
    }
}

fn open(manager: &str, net: &Arc<Net>) -> Result<Space> {
    let options = ClientOptions {
        pod: Some("nowhere".into()),
        callers: Some(Arc::clone(net) as _),
        far_reads: FarReads::FetchedFrom(1),
        ..ClientOptions::default()
    };
    PoolClient::connect(&network(), &credentials(manager), options)?.open_space(SPACE)
}

/// Reads whenever it is told to, and says what it found, until it is told to end.
fn follow(space: &Space, objects: &[GlobalAddress]) {
    let mut versions = vec![0; objects.len()];
    loop {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("told");
        let found = (0..READS).try_for_each(|n| look(space, objects, &mut versions, n % objects.len()));
        let fetched: u64 = space.stats().far.iter().map(|far| far.fetched).sum();
        match found {
            Ok(()) => say(&format!("read {fetched}")),
            Err(error) => say(&format!("failed: {error}")),
        }
    }
}

/// Each word of an object names it, with a version that is not older than what was read before.
fn look(space: &Space, objects: &[GlobalAddress], versions: &mut [u64], n: usize) -> Result<()> {
    let mut bytes = [0; WORDS * 8];
    space.read(objects[n], &mut bytes)?;
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut newest = versions[n];
    for word in words {
        let (object, version) = ((word >> 48) as usize, word & ((1 << 48) - 1));
        if object != n + 1 || version < versions[n] {
            let text = format!("{word:#x} in object {n}, which was at {} before", versions[n]);
            return Err(Error::Corrupt(text));
        }
        newest = newest.max(version);
    }
    versions[n] = newest;
    Ok(())
}

/// All words of an object at once.
fn write(space: &Space, objects: &[GlobalAddress], n: usize, version: u64) -> Result<()> {
    let word = (n as u64 + 1) << 48 | version;
    let bytes: Vec<u8> = (0..WORDS).flat_map(|_| word.to_le_bytes()).collect();
    space.write(objects[n], &bytes)
}

/// Counts what a node is asked.
struct Counting {
    hosts: Arc<Hosts>,
    calls: Arc<AtomicU64>,
}

impl Serve for Counting {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        self.calls.fetch_add(1, Ordering::AcqRel);
        self.hosts.serve(caller, request, answer);
    }

    fn ended(&self, caller: CallerId) {
        self.hosts.ended(caller);
    }
}

/// Remembers what was registered to be read, and does not end as many keys at once as is said.
#[derive(Debug)]
struct Noting {
    registrar: Arc<dyn Registrar>,
    busy: Arc<AtomicU64>,
    made: Arc<Mutex<Vec<(String, Remote)>>>,
}

impl Registrar for Noting {
    fn address(&self) -> String {
        self.registrar.address()
    }

    fn register(&self, memory: Mapping) -> Result<Remote> {
        self.registrar.register(memory)
    }

    fn register_to_read(&self, memory: &Arc<Mapping>, len: u64) -> Result<Remote> {
        let remote = self.registrar.register_to_read(memory, len)?;
        self.made.lock().push((self.address(), remote));
        Ok(remote)
    }

    fn revoke(&self, key: Key) -> Result<bool> {
        let less = |left: u64| left.checked_sub(1);
        if self
            .busy
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
            .is_ok()
        {
            return Err(Error::io(
                "ending a registration",
                std::io::ErrorKind::ResourceBusy.into(),
            ));
        }
        self.registrar.revoke(key)
    }
}

/// A manager and a memory node in each of two pods, in this process.
struct Pool {
    nodes: Vec<(MemoryNode, libfabric::MemoryNode)>,
    manager: Manager,
    net: Arc<Net>,
    calls: Arc<AtomicU64>,
    busy: Arc<AtomicU64>,
    keys: Arc<Mutex<Vec<(String, Remote)>>>,
    directory: tempfile::TempDir,
}

impl Pool {
    /// `None`, and a line about it, where there is no libfabric.
    fn new(path: Path, options: &HostOptions) -> Option<Self> {
        let net = Net::new(NetOptions::default());
        let net = net
            .inspect_err(|error| println!("skipped: no libfabric: {error}"))
            .ok()?;
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let manager = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
        let mut pool = Self {
            nodes: Vec::new(),
            manager: Manager::start(manager, &Tcp).expect("a manager"),
            net: Arc::new(net),
            calls: Arc::default(),
            busy: Arc::default(),
            keys: Arc::default(),
            directory,
        };
        PODS.into_iter().for_each(|pod| pool.start_node(pod, path, options));
        pool.make_space(SPACE);
        Some(pool)
    }

    fn start_node(&mut self, pod: &str, path: Path, options: &HostOptions) {
        let hosts = Arc::new(Hosts::default());
        let called = libfabric::MemoryNode::start(&libfabric::NodeOptions {
            path: Some(path),
            ..libfabric::NodeOptions::new(Provider::tcp())
        });
        let called = called.expect("a node");
        called.serve(Arc::new(Counting {
            hosts: Arc::clone(&hosts),
            calls: Arc::clone(&self.calls),
        }));
        let registrar = Noting {
            registrar: called.registrar(),
            busy: Arc::clone(&self.busy),
            made: Arc::clone(&self.keys),
        };
        let calls = NodeCalls {
            registrar: Some(Arc::new(registrar)),
            address: called.address().to_string(),
            callers: Arc::clone(&self.net) as _,
            hosts,
            options: options.clone(),
        };
        let directory = self.directory.path().join(pod);
        let options = NodeOptions {
            calls: Some(calls),
            ..node_options(&directory, self.manager.address(), pod, 16)
        };
        self.nodes.push((started_node(options).expect("a memory node"), called));
    }

    fn make_space(&self, name: &str) {
        let made = self.client("east").create_space(name, 16 * EXTENT, None);
        made.expect("a space");
    }

    fn client(&self, pod: &str) -> PoolClient {
        let options = ClientOptions {
            pod: Some(pod.into()),
            callers: Some(Arc::clone(&self.net) as _),
            ..ClientOptions::default()
        };
        PoolClient::connect(&network(), &credentials(self.manager.address()), options).expect("a client")
    }

    /// Objects of the east, of version 1.
    fn objects(space: &Space) -> Vec<GlobalAddress> {
        let session = space.session();
        let objects: Vec<_> = (0..8).map(|_| session.alloc(WORDS as u64 * 8).expect("room")).collect();
        (0..objects.len()).for_each(|n| write(space, &objects, n, 1).expect("written"));
        objects
    }

    fn reader(&self, objects: &[GlobalAddress]) -> Process {
        Process::start(&Reader {
            manager: self.manager.address().into(),
            objects: objects.to_vec(),
        })
    }

    /// No key that there was reads anything.
    fn keys_are_over(&self) -> bool {
        let keys = self.keys.lock().clone();
        keys.iter().all(|(address, remote)| {
            let endpoint = self.net.connect(address).expect("the node is there");
            let read = RemoteMemory::new(endpoint, *remote).read(0, &mut [0; 64]);
            matches!(read, Err(Error::Revoked(_)))
        })
    }
}

fn still() -> HostOptions {
    let every = Nanos::ZERO;
    HostOptions {
        every,
        ..HostOptions::default()
    }
}

/// What the process has fetched so far.
fn read(process: &mut Process) -> u64 {
    process.tell("read");
    let said = process.says();
    let fetched = said.strip_prefix("read ").and_then(|count| count.parse().ok());
    fetched.unwrap_or_else(|| panic!("{said}"))
}

/// Reads went by calls, one of the node's each, though its fabric can do them.
#[test]
fn a_node_serves_no_call_for_what_is_fetched() {
    for path in [Path::Served, Path::OneSided] {
        let Some(pool) = Pool::new(path, &still()) else { return };
        let east = pool.client("east").open_space(SPACE).expect("a space");
        let objects = Pool::objects(&east);
        let mut process = pool.reader(&objects);
        // The first opens the way, the second looks at the slot.
        let before = read(&mut process);
        let calls = pool.calls.load(Ordering::Acquire);
        for round in 0..2 {
            for version in 1..200 {
                let n = version as usize % objects.len();
                write(&east, &objects, n, round * 200 + version + 1).expect("written");
            }
            assert!(
                read(&mut process) >= before + READS as u64 * (round + 1),
                "all were fetched"
            );
        }
        // One in 64 reads of a slot is told, so that what is hot moves.
        let more = pool.calls.load(Ordering::Acquire) - calls;
        assert!(
            more <= 2 * READS as u64 / 64 + 1,
            "{more} calls for {} reads",
            2 * READS
        );
        process.kill();
    }
}

/// What is written and moved while it is read is of the object, and never older than before.
#[test]
fn what_is_fetched_is_right_while_extents_move() {
    let lively = HostOptions {
        every: Nanos::from_millis(20),
        stay: Nanos::from_millis(50),
        ..HostOptions::default()
    };
    let Some(pool) = Pool::new(Path::Served, &lively) else {
        return;
    };
    let users = PODS.map(|pod| pool.client(pod).open_space(SPACE).expect("a space"));
    let objects = Pool::objects(&users[0]);
    let mut process = pool.reader(&objects);
    let mut version = 1;
    // Each pod makes them hot in turn.
    for turn in 1..=4 {
        let user = &users[turn % 2];
        until("they come", || {
            for _ in 0..200 {
                version += 1;
                (0..objects.len()).for_each(|n| write(user, &objects, n, version).expect("written"));
            }
            read(&mut process);
            (users[1].stats().parts[0].migrated_extents > 0) == (turn % 2 == 1)
        });
    }
    assert!(read(&mut process) > 0, "some were fetched");
    process.kill();
}

/// A member that was stopped beyond its lease reads nothing by the key that it had, and hears that it was fenced.
#[test]
fn a_fenced_member_reads_nothing_by_its_key() {
    let Some(pool) = Pool::new(Path::Served, &still()) else {
        return;
    };
    let east = pool.client("east").open_space(SPACE).expect("a space");
    let objects = Pool::objects(&east);
    let mut process = pool.reader(&objects);
    read(&mut process);
    assert!(!pool.keys_are_over(), "it has a key");
    process.signal(Signal::STOP);
    until("it is fenced", || pool.keys_are_over());
    process.signal(Signal::CONT);
    process.tell("read");
    let said = process.says();
    assert!(said.starts_with("failed: ") && said.contains("fenced"), "{said}");
    process.kill();
}

/// The memory of a space that is dropped is another tenant's next: no key of before reads it.
#[test]
fn no_key_outlives_its_space() {
    let Some(pool) = Pool::new(Path::Served, &still()) else {
        return;
    };
    let east = pool.client("east").open_space(SPACE).expect("a space");
    let objects = Pool::objects(&east);
    let mut process = pool.reader(&objects);
    read(&mut process);
    assert!(!pool.keys_are_over(), "it has a key");
    drop(east);
    // The first tries do not end the key: the part is not freed by them.
    pool.busy.store(2, Ordering::Release);
    let client = pool.client("east");
    until("its memory is free", || {
        client.drop_space(SPACE).ok();
        pool.keys_are_over()
    });
    assert_eq!(pool.busy.load(Ordering::Acquire), 0, "it was tried");
    pool.make_space("another's");
    assert!(pool.keys_are_over());
    process.tell("read");
    let said = process.says();
    assert!(said.starts_with("failed: "), "{said}");
    process.kill();
}
