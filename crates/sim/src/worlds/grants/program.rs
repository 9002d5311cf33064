//! The manager, memory nodes, and agents of hosts: the pool's own, until they are killed.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::FileRange;
use cenote_pool::agent::{AgentOptions, HostAgent, Making};
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_space::EXTENT;

use super::device::{self, DIRECTORY};
use super::machine::Machine;
use super::role::{Role, host_name};
use super::sight::HostSight;
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
        Role::Agent(n) => be_agent(stage, n),
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

fn be_agent(stage: &Arc<Stage>, n: usize) -> Result<()> {
    let (role, life) = (Role::Agent(n), stage.hosts().life(n));
    let formats = n == 0 && !stage.has_device();
    match formats {
        true => size_device(stage)?,
        false => await_device(stage),
    }
    let (offset, bytes) = (0, DIRECTORY);
    stage.machine().map_range(FileRange { offset, bytes });
    let agent = loop {
        match start_agent(stage, n, life, formats) {
            // The switch has cut the host off.
            Err(Error::Io {
                kind: ErrorKind::NotFound,
                ..
            }) => rt::sleep(Nanos::from_millis(100)),
            started => break started?,
        }
    };
    stage.set_device();
    while !agent.wait_joined(Nanos::from_secs(1)) {}
    stage.hosts().is_told(n, life);
    serve(stage, role)
}

fn size_device(stage: &Stage) -> Result<()> {
    let sized = rt::memory(&device::path()).map(|device| device.resize(device::bytes(stage.grants)));
    sized.unwrap_or(Ok(())).map_err(|error| Error::io("the device", error))
}

fn await_device(stage: &Stage) {
    while !stage.has_device() {
        rt::sleep(Nanos::from_millis(20));
    }
}

fn start_agent(stage: &Arc<Stage>, n: usize, life: u64, formats: bool) -> Result<HostAgent> {
    let options = AgentOptions {
        pod: "pod".into(),
        host: Some(host_name(n)),
        device: device::path(),
        making: if formats { Making::Format } else { Making::None },
        manager: stage.managers(),
        secret: String::new(),
    };
    let sight = HostSight {
        stage: Arc::clone(stage),
        host: n,
        life,
    };
    HostAgent::start(
        options,
        stage.network_of(&Role::Agent(n).name(), Some(n)),
        Box::new(sight),
    )
}
