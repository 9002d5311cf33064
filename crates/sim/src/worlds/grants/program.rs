//! The manager, and memory nodes: the pool's own, until they are killed.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_space::EXTENT;

use super::machine::Machine;
use super::role::Role;
use super::stage::Stage;
use super::watched::Watched;

/// Where a memory node's files lie.
pub(super) fn directory(node: usize) -> PathBuf {
    format!("/memory/node{node}").into()
}

/// The body of a program's process. It does not end by itself.
pub(super) fn run(stage: &Arc<Stage>, role: Role) {
    let ended = match role {
        Role::Manager(n) => manage(stage, n),
        Role::Node(n) => give_memory(stage, n),
    };
    if let Err(error) = ended {
        stage.shared.fail(format!("{}: {error}", role.name()));
    }
}

fn serve(stage: &Stage, role: Role) -> ! {
    stage.set_ready(role, true);
    loop {
        rt::sleep(Nanos::from_secs(1));
    }
}

fn manage(stage: &Arc<Stage>, n: usize) -> Result<()> {
    let role = Role::Manager(n);
    let options = ManagerOptions {
        directory: "/pool".into(),
        listen: stage.manager(n),
        tenants: stage.tenants(),
        lease: stage.grants.lease,
    };
    let network = stage.net.endpoint(&role.name(), role.host());
    let _manager = match stage.grants.managers {
        1 => Manager::start(options, &*network)?,
        _ => Manager::start_on(Watched::new(stage)?, options, &*network)?,
    };
    serve(stage, role)
}

fn give_memory(stage: &Arc<Stage>, n: usize) -> Result<()> {
    let role = Role::Node(n);
    let options = NodeOptions {
        pod: format!("pod{n}"),
        bytes: stage.grants.extents * EXTENT,
        directory: directory(n),
        manager: stage.managers(),
        secret: String::new(),
        listen: format!("{}:0", role.name()),
        calls: None,
    };
    let network = stage.network(&role.name());
    let node = MemoryNode::start(options, network, Box::new(Machine(Arc::clone(stage))))?;
    while !node.wait_joined(Nanos::from_secs(1)) {}
    serve(stage, role)
}
