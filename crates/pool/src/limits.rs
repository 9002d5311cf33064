//! How many clients a manager, or a memory node, has connections and threads for. What is beyond is refused by name, or
//! waits for its turn (`docs/limits.md`).

use cenote_base::{Error, Result};

/// The most that an operator may ask for: numbers beyond are mistakes.
const CONNECTIONS_MOST: u32 = 1 << 20;
const THREADS_MOST: usize = 4096;

/// Of the clients of a process that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Connections of tenants' clients, of which each tenant has an equal share.
    pub connections: u32,
    /// Connections of clients that have not said what they are.
    pub unknown: u32,
    /// Threads that answer what waits for nothing: there are few, as each answer is short.
    pub short: usize,
    /// Threads that answer what may wait for memory, or for memory nodes.
    pub long: usize,
}

impl ServiceLimits {
    /// Of a manager.
    pub const MANAGER: Self = Self {
        connections: 16_384,
        unknown: 512,
        short: 4,
        long: 64,
    };
    /// Of a memory node.
    pub const MEMORY_NODE: Self = Self {
        long: 32,
        ..Self::MANAGER
    };

    /// Whether clients can be served with them.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the limit.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, n: u64, most: u64| match (1..=most).contains(&n) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("{n} {what}: give 1 to {most}"))),
        };
        within("connections", self.connections.into(), CONNECTIONS_MOST.into())?;
        within(
            "connections of unknown clients",
            self.unknown.into(),
            CONNECTIONS_MOST.into(),
        )?;
        within("threads", self.short as u64, THREADS_MOST as u64)?;
        within("threads", self.long as u64, THREADS_MOST as u64)
    }
}

/// Of a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLimits {
    /// Of the clients of spaces.
    pub clients: ServiceLimits,
    /// Threads of each class that parts share, and threads that their rings share; 0: as its
    /// [calls' options](cenote_space::HostOptions) say, which is as many as there are cores, two at least.
    pub threads: usize,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            clients: ServiceLimits::MEMORY_NODE,
            threads: 0,
        }
    }
}

impl NodeLimits {
    /// Whether a node can run with them.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the limit.
    pub fn check(&self) -> Result<()> {
        self.clients.check()?;
        match self.threads <= THREADS_MOST {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{} threads: give 0 (as many as cores) to {THREADS_MOST}",
                self.threads
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_be_are_refused_by_name() {
        ServiceLimits::MANAGER.check().expect("they can be");
        NodeLimits::default().check().expect("they can be");
        let none = ServiceLimits {
            connections: 0,
            ..ServiceLimits::MANAGER
        };
        let refused = none.check().expect_err("no client comes in").to_string();
        assert!(refused.contains("0 connections: give 1 to"), "{refused}");
        let many = NodeLimits {
            threads: THREADS_MOST + 1,
            ..NodeLimits::default()
        };
        let refused = many.check().expect_err("a mistake").to_string();
        assert!(refused.contains("4097 threads: give 0"), "{refused}");
    }
}
