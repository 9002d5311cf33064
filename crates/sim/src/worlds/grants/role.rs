//! The programs of the world, and on which hosts they run.

use crate::worlds::plan::FIRST_AGENT;

/// The machine of memory nodes and of their users, of operators and of the switch.
pub(super) const MACHINE: usize = 1;

/// Where a manager runs.
pub(super) fn manager_host(manager: usize) -> usize {
    match manager {
        0 => 0,
        more => MACHINE + more,
    }
}

/// A host that shares the device with others, and has an agent.
pub(super) fn agent_host(agent: usize) -> usize {
    FIRST_AGENT + agent
}

/// Which of those a host is.
pub(super) fn agent_on(host: usize) -> Option<usize> {
    host.checked_sub(agent_host(0))
}

/// As the pool knows it.
pub(super) fn host_name(agent: usize) -> String {
    format!("host-{agent}")
}

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Manager(usize),
    Node(usize),
    Agent(usize),
}

impl Role {
    /// By which others reach it.
    pub fn name(self) -> String {
        match self {
            Role::Manager(n) => format!("manager{n}"),
            Role::Node(n) => format!("node{n}"),
            Role::Agent(n) => format!("agent{n}"),
        }
    }

    pub fn host(self) -> usize {
        match self {
            Role::Manager(n) => manager_host(n),
            Role::Node(_) => MACHINE,
            Role::Agent(n) => agent_host(n),
        }
    }
}
