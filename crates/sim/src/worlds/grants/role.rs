//! The programs of the world, and on which hosts they run.

/// The machine of memory nodes and of all users.
pub(super) const MACHINE: usize = 1;

/// Where a manager runs.
pub(super) fn manager_host(manager: usize) -> usize {
    match manager {
        0 => 0,
        more => MACHINE + more,
    }
}

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Manager(usize),
    Node(usize),
}

impl Role {
    /// By which others reach it.
    pub fn name(self) -> String {
        match self {
            Role::Manager(n) => format!("manager{n}"),
            Role::Node(n) => format!("node{n}"),
        }
    }

    pub fn host(self) -> usize {
        match self {
            Role::Manager(n) => manager_host(n),
            Role::Node(_) => MACHINE,
        }
    }
}
