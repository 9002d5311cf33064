//! Which processes a cluster has, and where they listen: decided once, kept in its directory.

use super::super::Failure;
use cenote_base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

const FILE: &str = "cluster.toml";
/// Servers of one cluster, at most.
const SERVERS_MAX: usize = 32;

/// What a cluster is to have.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub servers: usize,
    pub storage_nodes: usize,
    pub memory_size: ByteSize,
    /// The first port.
    pub port: u16,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Where clients connect: the proxy.
    pub proxy: u16,
    /// Where servers listen, on the loopback interface.
    pub servers: Vec<u16>,
    /// Where storage nodes listen.
    pub storage_nodes: Vec<u16>,
    /// Bytes of memory for pages of each server.
    pub memory_size: u64,
}

/// A process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// What it is called: its directory and its log are named so.
    pub name: String,
    /// What `cenote` is called with.
    pub arguments: Vec<String>,
    /// Those with higher numbers are started later, and ended earlier.
    pub stage: u8,
}

/// Whether a directory has a cluster.
pub fn is_cluster(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

impl Plan {
    /// The plan of a directory, or a new one where there is none.
    ///
    /// # Errors
    /// The numbers make no cluster, or another one than the directory has; the file cannot be read or written.
    pub fn load_or_make(dir: &Path, shape: Shape) -> Result<Plan, Failure> {
        let path = dir.join(FILE);
        if path.exists() {
            let text = std::fs::read_to_string(&path)?;
            let plan: Plan = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            plan.check(&path)?;
            return Ok(plan);
        }
        let plan = Plan::make(shape)?;
        let text = format!(
            "# The cluster of this directory: ports on 127.0.0.1. Storage nodes stay as they are for good.\n{}",
            toml::to_string(&plan)?
        );
        let beside = dir.join("cluster.toml.new");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, &path)?;
        Ok(plan)
    }

    fn check(&self, path: &Path) -> Result<(), Failure> {
        let count = self.storage_nodes.len();
        match !self.servers.is_empty() && matches!(count, 1 | 3 | 5 | 7) {
            true => Ok(()),
            false => Err(format!("{}: it makes no cluster", path.display()).into()),
        }
    }

    fn make(shape: Shape) -> Result<Plan, Failure> {
        if !matches!(shape.storage_nodes, 1 | 3 | 5 | 7) {
            return Err(format!("{} storage nodes: there are 1, 3, 5 or 7 of them", shape.storage_nodes).into());
        }
        if !(1..=SERVERS_MAX).contains(&shape.servers) {
            let most = SERVERS_MAX - 1;
            return Err(format!("{} readers: there are {most} at most", shape.servers.saturating_sub(1)).into());
        }
        let wanted = 1 + shape.servers + shape.storage_nodes;
        let ports = free_ports(shape.port, wanted)?;
        let (proxy, rest) = ports.split_first().ok_or("no port is free")?;
        let (servers, nodes) = rest.split_at(shape.servers);
        Ok(Plan {
            proxy: *proxy,
            servers: servers.to_vec(),
            storage_nodes: nodes.to_vec(),
            memory_size: shape.memory_size.bytes(),
        })
    }

    /// All processes, in the order in which they are started.
    pub fn roles(&self, dir: &Path) -> Vec<Role> {
        let path = |name: &str| -> String { dir.join(name).display().to_string() };
        let nodes: Vec<String> = self
            .storage_nodes
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let numbered: Vec<String> = nodes.iter().zip(1..).map(|(at, n)| format!("{n}={at}")).collect();
        let (storage, numbered) = (nodes.join(","), numbered.join(","));
        let mut roles = Vec::new();
        for n in 1..=nodes.len() {
            let name = format!("storage-{n}");
            let arguments = format!("storage --node {n} --nodes {numbered} --dir");
            roles.push(Role::of(&name, 0, &arguments, [path(&name)]));
        }
        for (port, n) in self.servers.iter().zip(1..) {
            let name = format!("server-{n}");
            let size = ByteSize(self.memory_size);
            let arguments = format!(
                "run --role auto --storage {storage} --host {name} --listen 127.0.0.1:{port} --memory-size {size} --data"
            );
            roles.push(Role::of(&name, 1, &arguments, [path(&name)]));
        }
        let arguments = format!("proxy --storage {storage} --listen 127.0.0.1:{}", self.proxy);
        roles.push(Role::of("proxy", 2, &arguments, []));
        roles
    }

    /// The storage nodes, as `--storage` names them.
    pub fn storage(&self) -> Vec<String> {
        self.storage_nodes
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect()
    }
}

impl Role {
    fn of<const N: usize>(name: &str, stage: u8, arguments: &str, paths: [String; N]) -> Role {
        let words = arguments.split(' ').map(str::to_owned);
        Role {
            name: name.to_owned(),
            arguments: words.chain(paths).collect(),
            stage,
        }
    }

    /// Where it writes what it says.
    pub fn log(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.log", self.name))
    }
}

/// Ports on which no process listens, from `first` on.
fn free_ports(first: u16, count: usize) -> Result<Vec<u16>, Failure> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let found: Vec<u16> = (first..=u16::MAX).filter(is_free).take(count).collect();
    match found.len() == count {
        true => Ok(found),
        false => Err(format!("from port {first} on, {} of {count} ports are free", found.len()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        servers: 3,
        storage_nodes: 3,
        memory_size: ByteSize::mib(64),
        port: 21_000,
    };

    #[test]
    fn a_plan_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::load_or_make(dir.path(), SHAPE).unwrap();
        let other = Shape { servers: 9, ..SHAPE };
        assert_eq!(Plan::load_or_make(dir.path(), other).unwrap(), plan);
        let roles = plan.roles(dir.path());
        assert_eq!(roles.len(), 7);
        let mut ports = [plan.servers.clone(), plan.storage_nodes.clone(), vec![plan.proxy]].concat();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 7, "each has its own");
        std::fs::write(dir.path().join(FILE), "proxy = 1\nservers = []").unwrap();
        assert!(Plan::load_or_make(dir.path(), SHAPE).is_err());
    }

    #[test]
    fn numbers_that_make_no_cluster_are_refused() {
        for wrong in [
            Shape {
                storage_nodes: 2,
                ..SHAPE
            },
            Shape { servers: 40, ..SHAPE },
            Shape {
                port: u16::MAX,
                ..SHAPE
            },
        ] {
            assert!(Plan::make(wrong).is_err(), "{wrong:?}");
        }
    }
}
