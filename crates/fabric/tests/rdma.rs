//! The contract of one-sided verbs, on memory of this process.

use cenote_base::Error;
use cenote_fabric::rdma::call::{Caller, Callers};
use cenote_fabric::rdma::loopback::{Node, Nodes};
use cenote_fabric::rdma::{Endpoint, Fabric, Remote};
use cenote_testkit::contract::calls;
use cenote_testkit::contract::verbs::{self as contract, Bench};
use std::sync::Arc;

struct Loopback(Node);

impl Bench for Loopback {
    fn connect(&self) -> Arc<dyn Endpoint> {
        self.0.endpoint()
    }

    fn register(&self, len: u64) -> Remote {
        self.0.memory().register(len)
    }

    fn revoke(&self, memory: Remote) {
        assert!(self.0.memory().revoke(memory.key));
    }

    fn lose(&self) {
        self.0.memory().lose();
    }
}

/// Calls of a node of this process.
struct Served(Node);

impl calls::Bench for Served {
    fn caller(&self) -> Arc<dyn Caller> {
        self.0.caller().expect("not lost")
    }

    fn lose(&self) {
        self.0.memory().lose();
    }
}

#[test]
fn loopback_keeps_the_contract_of_calls() {
    let node = Node::new("node");
    node.serve(Arc::<calls::Program>::default());
    let bench: Arc<dyn calls::Bench> = Arc::new(Served(node));
    calls::threads_lend_side_by_side(&bench);
    calls::all(&bench);
}

#[test]
fn a_node_without_a_program_says_so() {
    let nodes = Nodes::default();
    let node = nodes.add("a");
    let caller = nodes.caller("a").expect("there");
    let error = caller.call(b"hello?", &mut Vec::new()).expect_err("no program");
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    node.memory().lose();
    assert!(matches!(nodes.caller("a"), Err(Error::Lost(_))));
}

#[test]
fn loopback_keeps_the_contract() {
    let bench: Arc<dyn Bench> = Arc::new(Loopback(Node::new("node")));
    contract::all(&bench);
}

#[test]
fn nodes_are_found_by_name() {
    let nodes = Nodes::default();
    let node = nodes.add("a");
    nodes.add("b");
    assert_eq!(nodes.connect("a").expect("there").peer(), "a");
    let error = nodes.connect("c").expect_err("none").to_string();
    assert!(error.contains("there are: a, b"), "{error}");
    node.memory().lose();
    assert!(matches!(nodes.connect("a"), Err(Error::Lost(_))));
}

#[test]
fn memory_outlives_its_users() {
    let node = Node::new("node");
    let memory = node.memory().register(4096);
    {
        let remote = cenote_fabric::rdma::RemoteMemory::new(node.endpoint(), memory);
        remote.write(100, b"left behind").expect("written");
    }
    let mut left = node.memory();
    assert_eq!(&left.inspect(memory.key).expect("registered")[100..111], b"left behind");
}
