//! Grants of the memory pool between simulated programs: stories that the world of grants has told first.

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::profile;
use cenote_pool::holder::{Credentials, GrantRequest, GrantedMemory, Operator};
use cenote_pool::host::{Host, Process};
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::{DEFAULT_TENANT, Tenants};
use cenote_pool::{GrantId, Phase};
use cenote_sim::message::Net;
use cenote_sim::{Pace, Topology, World};
use cenote_space::EXTENT;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const LEASE: Nanos = Nanos::from_secs(1);
const TIMEOUT: Nanos = Nanos::from_secs(60);
const MANAGER: &str = "manager:1";

/// A machine on which no process maps anything.
struct Idle;

impl Host for Idle {
    fn holders(&self, _: &Path) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn end_holders(&self, _: &Path, _: Nanos) -> Result<()> {
        Ok(())
    }

    fn end_others(&self, _: &Path, _: &[Process], _: Nanos) -> Result<()> {
        Ok(())
    }

    fn is_there(&self, _: Process) -> bool {
        false
    }

    fn is_seen(&self, _: Process) -> bool {
        true
    }

    fn end_process(&self, _: Process, _: &[PathBuf], _: Nanos) -> Result<()> {
        Ok(())
    }
}

fn credentials() -> Credentials {
    Credentials {
        manager: MANAGER.into(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    }
}

fn open(net: &Net, who: &str) -> Result<GrantedMemory> {
    let requested = GrantRequest {
        label: "db".into(),
        description: "a test".into(),
        bytes: EXTENT,
        pod: None,
        keep: None,
        mirror: false,
        host: None,
    };
    let network: Arc<dyn Network> = net.endpoint(who, 0);
    GrantedMemory::open(&network, &credentials(), requested, Box::new(|_| {}))
}

fn operator(net: &Net) -> Operator {
    Operator::connect(&*net.endpoint("operator", 0), &credentials()).expect("the manager answers")
}

fn phase(net: &Net) -> Option<Phase> {
    let status = operator(net).status().expect("a status");
    status.grants.first().map(|grant| grant.phase)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = rt::now();
    while !is_so() {
        assert!(rt::now().since(began) < TIMEOUT, "{what}: it does not come");
        rt::sleep(Nanos::from_millis(50));
    }
}

/// A manager and a memory node, for so many seeds.
fn pool(seeds: u64, story: impl Fn(&Net)) {
    for seed in cenote_sim::seeds(seeds) {
        let world = World::new(seed, Pace::Explore, Topology::hosts(1, 1)).expect("a possible topology");
        world.run(|_| {
            let net = Net::new(&profile::named("rdma").expect("a profile of this program"), seed);
            let options = ManagerOptions {
                directory: "/pool".into(),
                listen: MANAGER.into(),
                tenants: Tenants::default(),
                lease: LEASE,
            };
            let manager = Manager::start(options, &*net.endpoint("manager", 0)).expect("it leads");
            // A story that fails ends here: nothing is waited for.
            let _manager = ManuallyDrop::new(manager);
            let options = NodeOptions {
                pod: "pod".into(),
                bytes: 4 * EXTENT,
                directory: "/memory".into(),
                manager: MANAGER.into(),
                secret: String::new(),
                listen: "node:0".into(),
                calls: None,
            };
            let node = MemoryNode::start(options, net.endpoint("node", 0), Box::new(Idle)).expect("it starts");
            let node = ManuallyDrop::new(node);
            assert!(node.wait_joined(TIMEOUT));
            story(&net);
        });
    }
}

/// The answer to a process that opened a grant came when its lease had lapsed, and another had used it. It was
/// believed, until the next sign of life was refused.
#[test]
fn a_grant_that_comes_after_its_lease_is_not_used() {
    pool(5, |net| {
        // The node has yet to make its file when it is granted; so the way can be cut before the answer is on it.
        net.cut("manager", "node");
        let (theirs, error) = (net.clone(), Arc::new(Mutex::new(None)));
        let told = Arc::clone(&error);
        let late = rt::spawn("late", move || {
            *told.lock().expect("no panic") = open(&theirs, "late").err()
        });
        until("it is granted", || phase(net) == Some(Phase::Held));
        net.cut("manager", "late");
        net.mend("manager", "node");
        until("its lease lapses", || phase(net) == Some(Phase::Idle));
        let next = open(net, "next").expect("no process has it");
        assert!(next.epoch() > 1);
        next.release(false).expect("released");
        net.mend("manager", "late");
        late.join().expect("no panic");
        let error = error.lock().expect("no panic").take();
        assert!(matches!(error, Some(Error::Revoked(_))), "{error:?}");
    });
}

/// A grant was freed while its opening waited for its node: first its file was removed, then it was made, and was no
/// holder's for ever.
#[test]
fn what_was_freed_is_not_made_again() {
    pool(20, |net| {
        open(net, "first")
            .and_then(|memory| memory.release(false))
            .expect("room");
        until("it is idle", || phase(net) == Some(Phase::Idle));
        // The node's next order, a sign of life, waits; what comes after it waits for that.
        net.cut("manager", "node");
        rt::sleep(Nanos::from_secs(4));
        let theirs = net.clone();
        let opening = rt::spawn("opens", move || {
            let memory = open(&theirs, "second").expect("another one");
            memory.release(true).expect("given back");
        });
        until("it is held", || phase(net) == Some(Phase::Held));
        operator(net).free(GrantId(1)).expect("freed");
        net.mend("manager", "node");
        opening.join().expect("no panic");
        until("all is free", || phase(net).is_none());
        let report = operator(net).audit().expect("an audit");
        assert_eq!(report.problems, Vec::<String>::new());
    });
}
