//! Managers, memory nodes and their users, with what a test does not care about filled in; and waiting for what a pool
//! comes to.

use super::TIMEOUT;
use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_libfabric as libfabric;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::{Credentials, GrantRequest, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::ManagerOptions;
use cenote_pool::node::{MemoryNode, NodeCalls, NodeOptions};
use cenote_pool::settings::{DEFAULT_TENANT, Tenants};
use cenote_space::{EXTENT, HostOptions, Hosts};
use std::path::Path;
use std::sync::Arc;

const TURN: Nanos = Nanos::from_millis(10);

pub fn network() -> Arc<dyn Network> {
    Arc::new(Tcp)
}

/// Waits until something is so.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    until_found(what, || is().then_some(()), String::new);
}

/// Waits until there is something; where that is in vain, `instead` says what there is.
pub fn until_found<T>(what: &str, mut find: impl FnMut() -> Option<T>, instead: impl FnOnce() -> String) -> T {
    let began = rt::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        if rt::now().since(began) > TIMEOUT {
            panic!("{what}: in vain: {}", instead());
        }
        rt::sleep(TURN);
    }
}

/// Of tenants without a secret.
pub fn manager_options(directory: &Path, listen: &str, lease: Nanos) -> ManagerOptions {
    ManagerOptions {
        directory: directory.into(),
        listen: listen.into(),
        tenants: Tenants::default(),
        lease,
    }
}

/// Of a node that is not called by others.
pub fn node_options(directory: &Path, manager: &str, pod: &str, extents: u64) -> NodeOptions {
    NodeOptions {
        pod: pod.into(),
        bytes: extents * EXTENT,
        directory: directory.into(),
        manager: manager.into(),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: None,
    }
}

/// A memory node of this process, that its manager knows.
pub fn started_node(options: NodeOptions) -> Result<MemoryNode> {
    let node = MemoryNode::start(options, network(), Box::new(Machine))?;
    assert!(node.wait_joined(TIMEOUT), "the node joins");
    Ok(node)
}

/// Of the tenant that there is without a file of tenants.
pub fn credentials(manager: &str) -> Credentials {
    Credentials {
        manager: manager.into(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    }
}

pub fn operator(manager: &str) -> Operator {
    Operator::connect(&Tcp, &credentials(manager)).expect("connected")
}

/// A user of spaces, in a pod or in all of this machine; what it is told when it is fenced it says.
pub fn client(manager: &str, pod: Option<&str>) -> Result<PoolClient> {
    let options = ClientOptions {
        pod: pod.map(str::to_owned),
        on_revoked: Arc::new(|error| super::say(&format!("revoked: {error}"))),
        ..ClientOptions::default()
    };
    PoolClient::connect(&network(), &credentials(manager), options)
}

/// Memory for one holder.
pub fn requested(label: &str, extents: u64) -> GrantRequest {
    GrantRequest {
        label: label.into(),
        description: "a test".into(),
        bytes: extents * EXTENT,
        pod: None,
        keep: None,
        mirror: false,
        host: None,
    }
}

/// How memory nodes are called by way of a machine's network card.
pub fn calls_of(fabric: &libfabric::MemoryNode) -> NodeCalls {
    let hosts = Arc::new(Hosts::default());
    fabric.serve(Arc::clone(&hosts) as _);
    let net = libfabric::Net::new(libfabric::NetOptions::default()).expect("libfabric");
    NodeCalls {
        address: fabric.address().to_string(),
        callers: Arc::new(net),
        hosts,
        registrar: Some(fabric.registrar()),
        options: HostOptions::default(),
    }
}
