//! A pool of two pods in one process: a manager, a memory node in each pod, and clients. Calls between pods go over
//! libfabric where it is there, else through memory.

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::rdma::loopback::Nodes;
use cenote_fs::{Failure, FileSystem, Owner};
use cenote_libfabric::{self as libfabric, Net, NetOptions, Provider};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_space::EXTENT;
use cenote_space::{GlobalAddress, HostOptions, Hosts, Space};
use common::{client, credentials, manager_options, network, node_options, operator, started_node, until, until_found};
use std::collections::BTreeMap;
use std::sync::Arc;

const PODS: [&str; 2] = ["east", "west"];
const LEASE: Nanos = Nanos::from_secs(5);

/// How nodes are called.
enum Fabric {
    Memory(Arc<Nodes>),
    Libfabric(Arc<Net>),
}

impl Fabric {
    fn callers(&self) -> Arc<dyn Callers> {
        match self {
            Fabric::Memory(nodes) => Arc::clone(nodes) as _,
            Fabric::Libfabric(net) => Arc::clone(net) as _,
        }
    }

    /// Begins to be called; what has to be held for that.
    fn called(&self, n: usize, options: HostOptions) -> (NodeCalls, Option<libfabric::MemoryNode>) {
        let hosts = Arc::new(Hosts::default());
        let (address, node) = match self {
            Fabric::Memory(nodes) => {
                let name = format!("{}-{}", PODS[n], rt::random());
                nodes.add(&name).serve(Arc::clone(&hosts) as _);
                (name, None)
            }
            Fabric::Libfabric(_) => {
                let node = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(Provider::tcp())).expect("a node");
                node.serve(Arc::clone(&hosts) as _);
                (node.address().to_string(), Some(node))
            }
        };
        let callers = self.callers();
        let calls = NodeCalls {
            address,
            callers,
            hosts,
            registrar: None,
            options,
        };
        (calls, node)
    }
}

struct Pool {
    fabric: Fabric,
    nodes: Vec<Option<(MemoryNode, Option<libfabric::MemoryNode>)>>,
    manager: Manager,
    options: HostOptions,
    directory: tempfile::TempDir,
}

impl Pool {
    fn new(fabric: Fabric, options: HostOptions) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let manager = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
        let mut pool = Self {
            fabric,
            nodes: (0..2).map(|_| None).collect(),
            manager: Manager::start(manager, &Tcp).expect("a manager"),
            options,
            directory,
        };
        (0..2).for_each(|n| pool.start_node(n));
        pool
    }

    fn start_node(&mut self, n: usize) {
        let (calls, held) = self.fabric.called(n, self.options.clone());
        let directory = self.directory.path().join(PODS[n]);
        let options = NodeOptions {
            calls: Some(calls),
            ..node_options(&directory, self.manager.address(), PODS[n], 32)
        };
        self.nodes[n] = Some((started_node(options).expect("a memory node"), held));
    }

    fn client(&self, n: usize) -> PoolClient {
        let options = ClientOptions {
            pod: Some(PODS[n].into()),
            callers: Some(self.fabric.callers()),
            ..ClientOptions::default()
        };
        PoolClient::connect(&network(), &credentials(self.manager.address()), options).expect("a client")
    }

    fn audit(&self) {
        assert_eq!(
            operator(self.manager.address()).audit().expect("an audit").problems,
            Vec::<String>::new()
        );
    }
}

/// Each kind of fabric that is there.
fn fabrics() -> Vec<Fabric> {
    let mut all = vec![Fabric::Memory(Arc::default())];
    match Net::new(NetOptions::default()) {
        Ok(net) => all.push(Fabric::Libfabric(Arc::new(net))),
        Err(error) => println!("without libfabric: {error}"),
    }
    all
}

fn lively() -> HostOptions {
    HostOptions {
        every: Nanos::from_millis(20),
        stay: Nanos::from_millis(50),
        ..HostOptions::default()
    }
}

fn spaces(pool: &Pool) -> Vec<Space> {
    pool.client(0)
        .create_space("shared", 24 * EXTENT, None)
        .expect("a space");
    (0..2)
        .map(|n| pool.client(n).open_space("shared").expect("open"))
        .collect()
}

#[test]
fn two_pods_share_a_space() {
    for fabric in fabrics() {
        let pool = Pool::new(
            fabric,
            HostOptions {
                every: Nanos::ZERO,
                ..lively()
            },
        );
        let spaces = spaces(&pool);
        for space in &spaces {
            assert_eq!((space.parts().count(), space.far_parts().count()), (1, 1));
        }
        let session = spaces[0].session();
        let address = session.alloc(10_000).expect("room");
        assert_eq!(
            spaces[1].far_parts().next().map(|far| far.number),
            Some(address.part()),
            "it is near the process that allocated it"
        );
        spaces[1].write(address, &[3; 10_000]).expect("written");
        let mut back = vec![0; 10_000];
        spaces[0].read(address, &mut back).expect("read");
        assert!(back == [3; 10_000]);
        spaces[1].set_root(address).expect("a root");
        assert_eq!(spaces[0].root().expect("a root"), address);
        fill_up(&spaces[0]);
        pool.audit();
    }
}

/// All of the pool's memory is to be had from one pod, and comes back.
fn fill_up(space: &Space) {
    let session = space.session();
    let mut parts = [0; 3];
    let mut all = Vec::new();
    let full = loop {
        match session.alloc(EXTENT / 2) {
            Ok(address) => {
                parts[usize::from(address.part())] += 1;
                all.push(address);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full(_)), "{full}");
    assert!(parts[1] > 10 && parts[2] > 10, "{parts:?}");
    all.iter().for_each(|address| space.free(*address).expect("freed"));
}

/// Adds to words of both pods until they have come to the pod that uses them.
#[test]
fn extents_come_to_the_pod_that_uses_them() {
    for fabric in fabrics() {
        let pool = Pool::new(fabric, lively());
        let spaces = spaces(&pool);
        let address = spaces[0].session().alloc(64).expect("room");
        let mut added = 0;
        until("it comes", || {
            // A thousand at once: what is hot is what is used often.
            (0..1000).for_each(|_| _ = spaces[1].fetch_add(address, 1).expect("added"));
            added += 1000;
            spaces[1].stats().parts[0].migrated_extents > 0
        });
        assert_eq!(spaces[0].load(address).expect("a word"), added);
        told_of(&pool, &spaces, address);
        pool.audit();
    }
}

/// Of a run the extent that another pod uses comes there, and it is read and freed whole from both.
#[test]
fn a_run_s_extent_comes_to_the_pod_that_uses_it() {
    for fabric in fabrics() {
        let pool = Pool::new(fabric, lively());
        let spaces = spaces(&pool);
        let run = spaces[0].session().alloc(3 * EXTENT).expect("room");
        let mut bytes: Vec<u8> = (0..3 * EXTENT).map(|n| ((n * 7) >> 3) as u8).collect();
        spaces[1].write(run, &bytes).expect("written");
        let used = run.checked_add(EXTENT).expect("inside");
        spaces[1].store(used, 0).expect("stored");
        let mut added = 0u64;
        until("it comes", || {
            (0..1000).for_each(|_| _ = spaces[1].fetch_add(used, 1).expect("added"));
            added += 1000;
            spaces[1].stats().parts[0].migrated_extents > 0
        });
        bytes[EXTENT as usize..][..8].copy_from_slice(&added.to_le_bytes());
        for space in &spaces {
            let mut back = vec![0; bytes.len()];
            space.read(run, &mut back).expect("read");
            assert!(back == bytes, "it lies apart, and is one object");
        }
        spaces[1].free(run).expect("freed");
        assert!(spaces[0].load(used).is_err(), "it was freed where it lies");
        pool.audit();
    }
}

/// A process that maps the memory that an object lies in is told of it, once, wherever it came from.
fn told_of(pool: &Pool, spaces: &[Space], address: GlobalAddress) {
    let everywhere = client(pool.manager.address(), None).expect("a client");
    let whole = everywhere.open_whole_space("shared").expect("open");
    let told = [&spaces[0], &spaces[1], &whole].map(|space| {
        let mut told = 0;
        let count = |object, _| told += u32::from(object == address);
        space.each_object(count).expect("looked at");
        told
    });
    assert_eq!(told, [0, 1, 1]);
}

/// A file system over two pods is looked at from one of them. While the other is away nothing is said of what it has.
#[test]
fn a_file_system_over_two_pods_is_looked_at_from_one() {
    const ME: Owner = Owner { user: 1, group: 1 };
    let mut pool = Pool::new(Fabric::Memory(Arc::default()), lively());
    let files = spaces(&pool);
    let files = [FileSystem::make(&files[0], ME), FileSystem::mount(&files[1])].map(|files| files.expect("mounted"));
    for (n, files) in files.iter().enumerate() {
        let name = PODS[n].as_bytes();
        let file = files.create_open(files.root(), name, 0o644, ME).expect("made").inode;
        files.write(file, 0, &[7; 300_000]).expect("written");
        files.close(file).expect("open");
    }
    let [east, west] = files;
    drop(west);
    let report = until_found(
        "one mount",
        || Some(east.check(false).expect("looked at")).filter(|r| r.is_alone),
        String::new,
    );
    assert_eq!((report.files, report.problems), (2, Vec::new()));
    // The superblock does not refer to the mount that is gone any more: what is away is a file.
    assert!(east.check(true).expect("looked at").are_freed);
    pool.nodes[1] = None;
    let refused = east.check(true);
    let is_of_the_way = matches!(&refused, Err(Failure::Memory(Error::Lost(_) | Error::Timeout(_))));
    assert!(is_of_the_way, "{refused:?}");
    pool.start_node(1);
    let report = until_found("the other pod", || east.check(false).ok(), String::new);
    assert_eq!((report.files, report.problems), (2, Vec::new()));
}

/// A node that does not know of a new part would end what a fenced member had though that may still write there: a
/// space does not grow while one of its nodes is away.
#[test]
fn a_space_grows_when_all_its_nodes_know_of_it() {
    let fabric = fabrics().into_iter().next().expect("one");
    let mut pool = Pool::new(fabric, lively());
    let spaces = spaces(&pool);
    pool.nodes[1] = None;
    let here = PODS[0].to_owned();
    let grow = |pool: &Pool| {
        pool.client(0)
            .grow_space("shared", 4 * EXTENT, Some(core::slice::from_ref(&here)))
    };
    let refused = grow(&pool);
    let is_told = |text: &str| text.contains("has to know");
    assert!(
        matches!(&refused, Err(Error::Busy(text)) if is_told(text)),
        "{refused:?}"
    );
    pool.start_node(1);
    until_found("the space to grow", || grow(&pool).ok(), String::new);
    let session = spaces[0].session();
    let grown = (0..200).find_map(|_| session.alloc(EXTENT / 2).ok().filter(|address| address.part() > 2));
    assert!(grown.is_some(), "the new part is used");
    drop(spaces);
}

/// A space that has grown has two parts on a node. Of those the first was not served to the other pod any more.
#[test]
fn a_space_that_has_grown_is_served_whole() {
    for fabric in fabrics() {
        let pool = Pool::new(fabric, lively());
        let spaces = spaces(&pool);
        pool.client(0)
            .grow_space("shared", 24 * EXTENT, None)
            .expect("more of it");
        let session = spaces[0].session();
        let mut by_part = BTreeMap::new();
        while by_part.len() < 4 {
            let address = session.alloc(EXTENT / 2).expect("room in each part");
            by_part.entry(address.part()).or_insert(address);
        }
        for address in by_part.values() {
            spaces[1].store(*address, address.raw()).expect("stored");
            for space in &spaces {
                assert_eq!(space.load(*address).expect("a word"), address.raw());
            }
        }
        // Each comes to the pod that uses it, whichever of the parts it is from.
        let of_east = by_part
            .values()
            .filter(|address| spaces[0].parts().any(|part| part.number() == address.part()));
        for (n, address) in (1..).zip(of_east) {
            let migrated_extents = || {
                spaces[1]
                    .stats()
                    .parts
                    .iter()
                    .map(|part| part.migrated_extents)
                    .sum::<u32>()
            };
            while migrated_extents() < n {
                // Many at once: on a busy machine an addition a look was never hot.
                (0..1000).for_each(|_| _ = spaces[1].fetch_add(*address, 1).expect("added"));
            }
        }
        pool.audit();
    }
}

/// A node that starts anew is called elsewhere; no member loses anything.
#[test]
fn a_node_that_comes_back_is_found() {
    for fabric in fabrics() {
        let mut pool = Pool::new(fabric, lively());
        let spaces = spaces(&pool);
        let address = spaces[0].session().alloc(64).expect("room");
        spaces[1].store(address, 7).expect("stored");
        pool.nodes[0] = None;
        spaces[0].store(address, 8).expect("a process that maps it goes on");
        pool.start_node(0);
        assert_eq!(patiently(|| spaces[1].load(address)), 8);
        pool.audit();
    }
}

fn patiently(f: impl Fn() -> Result<u64>) -> u64 {
    let find = || match f() {
        Ok(value) => Some(value),
        Err(Error::Lost(_) | Error::Timeout(_) | Error::Invalid(_)) => None,
        Err(error) => panic!("{error}"),
    };
    until_found("an answer", find, || format!("{:?}", f()))
}

#[test]
fn a_lost_pod_costs_what_lay_there_and_nothing_else() {
    let mut pool = Pool::new(
        Fabric::Memory(Arc::default()),
        HostOptions {
            every: Nanos::ZERO,
            ..lively()
        },
    );
    let spaces = spaces(&pool);
    let (near, far) = (spaces[1].session().alloc(64), spaces[0].session().alloc(64));
    let (near, far) = (near.expect("room"), far.expect("room"));
    pool.nodes[0] = None;
    spaces[1].store(near, 1).expect("it is here");
    let lost = spaces[1].load(far);
    assert!(
        matches!(lost, Err(Error::Lost(_) | Error::Timeout(_) | Error::Invalid(_))),
        "{lost:?}"
    );
}

/// Accesses of all kinds and lengths to another pod, from several threads.
#[test]
fn accesses_of_all_lengths_reach_another_pod() {
    let quiet = HostOptions {
        every: Nanos::ZERO,
        ..lively()
    };
    let pool = Pool::new(Fabric::Memory(Arc::default()), quiet);
    let spaces = spaces(&pool);
    let threads = (0..4u64).map(|n| {
        let (here, there) = (spaces[0].clone(), spaces[1].clone());
        rt::spawn("user", move || {
            let session = here.session();
            for len in [64, 500, 5000, 120_000, 131_072, 300_000] {
                let address = session.alloc(len).expect("room");
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
                there.write(address, &bytes).expect("written");
                let mut back = vec![0; len as usize];
                there.read(address, &mut back).expect("read");
                assert!(back == bytes, "{len}");
                there.store(address, n).expect("stored");
                assert_eq!(there.fetch_add(address, 5).expect("added"), n);
                assert_eq!(there.compare_and_swap(address, n + 5, 1).expect("swapped"), n + 5);
                assert_eq!(here.load(address).expect("a word"), 1);
                here.free(address).expect("freed");
                let refused = there.load(address);
                assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(spaces[1].asked() > 0);
    // A client without a fabric does not reach the other pod.
    let options = ClientOptions {
        pod: Some(PODS[0].into()),
        ..ClientOptions::default()
    };
    let alone = PoolClient::connect(&network(), &credentials(pool.manager.address()), options).expect("a client");
    assert_eq!(alone.open_space("shared").expect("open").far_parts().count(), 0);
    pool.audit();
}
