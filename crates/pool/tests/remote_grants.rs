//! Memory that holders reach over the fabric, by one-sided verbs over TCP: it is one holder's at a time, keeps what it
//! has, and what a former holder sends changes nothing. Others of its tenant read it.

mod common;

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::RemoteMemory;
use cenote_libfabric as libfabric;
use cenote_pool::holder::{
    GrantedMemory, OnRevoked, ReachedSlab, RemoteAccess, RemoteGrant, RemoteRequest, SlabsWanted,
};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::{Phase, RemoteReader, slab_label};
use common::{TIMEOUT, calls_of, credentials, manager_options, network, node_options, operator, requested, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEASE: Nanos = Nanos::from_millis(2500);
const BYTES: u64 = 4 << 20;
const SLAB: u64 = 2 << 20;

struct Pool {
    directory: tempfile::TempDir,
    manager: Manager,
    node: Option<(MemoryNode, libfabric::MemoryNode)>,
}

impl Pool {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let options = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
        let manager = Manager::start(options, &Tcp).expect("a manager");
        let mut pool = Self {
            directory,
            manager,
            node: None,
        };
        pool.start_node();
        pool
    }

    fn start_node(&mut self) {
        self.node = Some(self.started("node"));
    }

    fn started(&self, directory: &str) -> (MemoryNode, libfabric::MemoryNode) {
        let fabric = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(libfabric::Provider::tcp()));
        let fabric = fabric.expect("a node");
        let options = NodeOptions {
            calls: Some(calls_of(&fabric)),
            ..node_options(
                &self.directory.path().join(directory),
                self.manager.address(),
                "far",
                40,
            )
        };
        let memory = MemoryNode::start(options, network(), Box::new(Machine)).expect("a node");
        assert!(memory.wait_joined(TIMEOUT), "it joins");
        (memory, fabric)
    }

    /// The node's process ends; its files stay.
    fn stop_node(&mut self) {
        let (memory, fabric) = self.node.take().expect("a node");
        fabric.close();
        drop(memory);
    }

    fn open(&self, takes: bool, revoked: &Arc<AtomicUsize>) -> Result<RemoteGrant, Error> {
        let (requested, on_revoked) = Self::requested(revoked);
        RemoteGrant::open(&self.access(), requested, takes, on_revoked)
    }

    /// Elsewhere, if its node is away.
    fn move_held(&self, held: &RemoteGrant, revoked: &Arc<AtomicUsize>) -> Result<RemoteGrant, Error> {
        let (requested, on_revoked) = Self::requested(revoked);
        RemoteGrant::open_elsewhere(&self.access(), requested, (false, Some(held)), on_revoked)
    }

    fn requested(revoked: &Arc<AtomicUsize>) -> (RemoteRequest, OnRevoked) {
        let requested = RemoteRequest {
            label: "database".into(),
            description: "a test's".into(),
            bytes: BYTES,
            pod: None,
        };
        let revoked = Arc::clone(revoked);
        let on_revoked = Box::new(move |_: &Error| _ = revoked.fetch_add(1, Ordering::SeqCst));
        (requested, on_revoked)
    }

    fn reader(&self, label: &str) -> RemoteReader {
        let credentials = credentials(self.manager.address());
        let access = RemoteAccess::to_read(&network(), &credentials).expect("a reader");
        RemoteReader::new(&access, label)
    }

    fn access(&self) -> Arc<RemoteAccess> {
        RemoteAccess::to_hold(&network(), &credentials(self.manager.address())).expect("a holder")
    }
}

fn read(memory: &RemoteMemory, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).expect("read");
    bytes
}

/// Whether libfabric is here; if not, a line says why.
fn can_run() -> bool {
    let Err(error) = libfabric::available() else {
        return true;
    };
    assert!(std::env::var("CI").is_err(), "skipped: {error}");
    println!("skipped: {error}");
    false
}

#[test]
fn it_is_one_holders_and_keeps_what_it_has() {
    if !can_run() {
        return;
    }
    let pool = Pool::new();
    let (first_lost, second_lost) = (Arc::default(), Arc::default());
    let first = pool.open(true, &first_lost).expect("granted");
    assert!(first.is_fresh() && first.bytes() == BYTES);
    let memory = first.connect().expect("reached");
    memory.write(BYTES - 8192, &[7; 8192]).expect("written");
    let refused = pool.open(false, &second_lost);
    assert!(matches!(refused, Err(Error::Busy(_))), "{:?}", refused.err());
    // Keys that are drawn anew end the former ones.
    let again = first.connect().expect("reached");
    assert!(memory.write(0, &[1; 64]).is_err(), "a former key");
    again.write(0, &[2; 64]).expect("written");

    let second = pool.open(true, &second_lost).expect("taken");
    assert!(!second.is_fresh() && second.id() == first.id());
    let theirs = second.connect().expect("reached");
    for _ in 0..30 {
        assert!(again.write(0, &[3; 64]).is_err(), "it is another's");
    }
    let connected = first.connect().map(drop);
    assert!(matches!(connected, Err(Error::Revoked(_))), "{connected:?}");
    assert_eq!(read(&theirs, 0, 64), [2; 64]);
    assert_eq!(read(&theirs, BYTES - 8192, 8192), [7; 8192]);
    until("the first hears of it", || first_lost.load(Ordering::SeqCst) == 1);
    assert_eq!(second_lost.load(Ordering::SeqCst), 0);
    second.release(true).expect("given back");
    let grants = || operator(pool.manager.address()).status().expect("a status").grants;
    until("it is free", || grants().is_empty());
    assert!(theirs.write(0, &[4; 64]).is_err(), "nothing is there");
}

/// What a node's process registered ends with it. The memory is there again when it is.
#[test]
fn a_node_that_begins_anew_is_reached_anew() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new();
    let lost = Arc::default();
    let grant = pool.open(true, &lost).expect("granted");
    grant.connect().expect("reached").write(0, &[9; 4096]).expect("written");
    pool.stop_node();
    assert!(grant.connect().is_err(), "no node is there");
    pool.start_node();
    let memory = grant.connect().expect("reached");
    assert_eq!(read(&memory, 0, 4096), [9; 4096]);
    let status = operator(pool.manager.address()).status().expect("a status");
    let [view] = &status.grants[..] else {
        panic!("{:?}", status.grants)
    };
    assert!(view.remote && view.phase == Phase::Held, "{view:?}");
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}

/// Readers reach what its holder writes, whichever that is, and change nothing. Their keys end with the holder's.
#[test]
fn others_read_it() {
    if !can_run() {
        return;
    }
    let pool = Pool::new();
    let lost = Arc::default();
    let readers = [(); 2].map(|()| pool.reader("database"));
    let none = readers[0].connect().map(drop);
    assert!(matches!(none, Err(Error::Invalid(_))), "{none:?}");
    let first = pool.open(true, &lost).expect("granted");
    let early = readers[0].connect().map(drop);
    assert!(
        matches!(early, Err(Error::Busy(_))),
        "no holder has reached it: {early:?}"
    );

    let memory = first.connect().expect("reached");
    let reached = readers.each_ref().map(|reader| reader.connect().expect("reached"));
    for byte in [5, 6] {
        memory.write(BYTES - 64, &[byte; 64]).expect("written");
        for reader in &reached {
            assert_eq!(reader.len(), BYTES);
            assert_eq!(read(reader, BYTES - 64, 64), [byte; 64]);
        }
    }
    readers[0]
        .connect()
        .expect("reached")
        .write(BYTES - 64, &[1; 64])
        .expect_err("it only reads");
    assert_eq!(read(&memory, BYTES - 64, 64), [6; 64]);

    let second = pool.open(true, &lost).expect("taken");
    let theirs = second.connect().expect("reached");
    let over = reached[1].read(0, &mut [0; 64]);
    assert!(matches!(over, Err(Error::Revoked(_))), "{over:?}");
    let again = readers[1].connect().expect("reached");
    theirs.write(0, &[7; 64]).expect("written");
    assert_eq!(read(&again, 0, 64), [7; 64]);
    assert_eq!(read(&again, BYTES - 64, 64), [6; 64]);

    second.release(true).expect("given back");
    let none = || matches!(readers[1].connect(), Err(Error::Invalid(_)));
    until("it is free", none);
    again.read(0, &mut [0; 64]).expect_err("nothing is there");
}

/// Slabs of a grant, each with the way to it.
fn open_slabs(first: &RemoteGrant, slabs: &[u32]) -> Result<Vec<ReachedSlab>, Error> {
    let wanted = SlabsWanted {
        slabs,
        bytes: SLAB,
        description: "a test's",
        pod: None,
        patience: TIMEOUT,
        on_revoked: &|_| Box::new(|_| ()),
    };
    let mut opened = Vec::new();
    first.open_slabs(&wanted, &mut |_, reached| opened.push(reached))?;
    opened.into_iter().collect()
}

/// Slabs of a grant go with it from one holder to the next, all with one request; they are read, and freed by number.
#[test]
fn slabs_go_with_their_grant() {
    if !can_run() {
        return;
    }
    let pool = Pool::new();
    let lost = Arc::<AtomicUsize>::default();
    let numbers: Vec<u32> = (0..30).collect();
    let first = pool.open(true, &lost).expect("granted");
    first.free_slab(0).expect("there is none");
    let slabs = open_slabs(&first, &numbers).expect("granted");
    for ((_, memory), number) in slabs.iter().zip(0..) {
        memory.write(0, &[number; 64]).expect("written");
    }

    let next = pool.open(true, &lost).expect("taken");
    for refused in [open_slabs(&first, &[0, 1]).map(drop), first.free_slab(0)] {
        assert!(matches!(refused, Err(Error::Revoked(_))), "{refused:?}");
    }
    slabs[0].0.connect().expect("it is not taken yet");
    let began = rt::now();
    let mut taken = open_slabs(&next, &numbers).expect("taken");
    println!("{} slabs were taken in {}", taken.len(), rt::now().since(began));
    for (((grant, memory), (former, before)), number) in taken.iter().zip(&slabs).zip(0..) {
        assert!(grant.id() == former.id() && !grant.is_fresh());
        assert_eq!(read(memory, 0, 64), [number; 64]);
        assert!(before.write(0, &[99; 64]).is_err(), "it is another's");
    }
    let reader = pool.reader(&slab_label("database", 8));
    assert_eq!(read(&reader.connect().expect("reached"), 0, 64), [8; 64]);
    // Their leases are renewed, though no connection for that was there when they were taken.
    rt::sleep(Nanos(LEASE.raw() * 3 / 2));
    taken[29].0.connect().expect("it is held still");
    assert_eq!(
        lost.load(Ordering::SeqCst),
        1,
        "the former holder of the first part hears of it"
    );

    let (grant, memory) = taken.swap_remove(8);
    drop(grant);
    next.free_slab(8).expect("freed");
    let grants = || operator(pool.manager.address()).status().expect("a status").grants;
    until("it is free", || grants().len() == 30);
    assert!(memory.write(0, &[4; 64]).is_err(), "nothing is there");
    let again = open_slabs(&next, &[8]).expect("granted");
    assert!(again[0].0.is_fresh(), "another one");
}

/// Readers need no holder, but its node. Memory that is mapped is not read over the fabric.
#[test]
fn readers_need_its_node_alone() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new();
    let credentials = credentials(pool.manager.address());
    let mapped = GrantedMemory::open(&network(), &credentials, requested("mapped", 1), Box::new(|_| ()));
    let mapped = mapped.expect("granted");
    let refused = pool.reader("mapped").connect().map(drop);
    assert!(matches!(refused, Err(Error::Mismatch(_))), "{refused:?}");
    mapped.release(true).expect("given back");

    let lost = Arc::default();
    let grant = pool.open(true, &lost).expect("granted");
    grant.connect().expect("reached").write(0, &[9; 64]).expect("written");
    grant.release(false).expect("kept");
    let reader = pool.reader("database");
    let reached = || reader.connect().ok();
    common::until_found("it is idle", reached, String::new);
    pool.stop_node();
    let away = || matches!(reader.connect(), Err(Error::Lost(_)));
    until("the manager hears its node no more", away);
    pool.start_node();
    assert_eq!(read(&reader.connect().expect("reached anew"), 0, 64), [9; 64]);
}

/// The node of a first part is lost: its label comes to lie on another, its slabs there go on with what they have. What
/// lay on the lost node is freed when that is back.
#[test]
fn a_first_part_moves_from_a_lost_node() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new();
    let lost = Arc::<AtomicUsize>::default();
    let first = pool.open(true, &lost).expect("granted");
    first.connect().expect("reached").write(0, &[1; 64]).expect("written");
    let other = pool.started("other");
    // The emptier of the two.
    let slabs = open_slabs(&first, &[3]).expect("granted");
    slabs[0].1.write(0, &[3; 64]).expect("written");
    let (kept, former) = (slabs[0].0.id(), first.id());
    drop(slabs);

    pool.stop_node();
    let moved = || match pool.move_held(&first, &lost) {
        Ok(moved) => Some(moved),
        Err(error) => {
            println!("{error}");
            None
        }
    };
    let moved = common::until_found("the manager hears its node no more", moved, String::new);
    assert!(moved.is_fresh() && moved.id() != former, "other memory");
    let memory = moved.connect().expect("reached");
    assert_eq!(read(&memory, 0, 64), [0; 64]);
    let slabs = open_slabs(&moved, &[3]).expect("granted");
    assert!(slabs[0].0.id() == kept && !slabs[0].0.is_fresh());
    assert_eq!(read(&slabs[0].1, 0, 64), [3; 64]);
    let reader = pool.reader("database").connect().expect("reached");
    memory.write(64, &[8; 64]).expect("written");
    assert_eq!(read(&reader, 64, 64), [8; 64]);

    let grants = || operator(pool.manager.address()).status().expect("a status").grants;
    assert_eq!(
        grants().len(),
        3,
        "what lies on the lost node counts until that has freed it"
    );
    let again = pool.started("node");
    until("it is freed", || grants().len() == 2);
    assert_eq!(read(&memory, 64, 64), [8; 64]);
    drop((again, other));
}
