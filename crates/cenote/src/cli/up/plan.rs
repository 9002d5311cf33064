//! Which processes a cluster has, and where they listen: decided once, kept in its directory.

use super::super::Failure;
use crate::config::GrowthOptions;
use crate::config_error::ConfigError;
use cenote_base::rt;
use cenote_base::units::ByteSize;
use cenote_engine::Growth;
use cenote_space::EXTENT;
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

const FILE: &str = "cluster.toml";
/// Servers of one cluster, at most.
const SERVERS_MAX: usize = 32;
/// Memory nodes of one cluster, at most.
const MEMORY_NODES_MAX: usize = 16;
/// What a memory node has beyond the memory that servers share.
const NODE_SPARE: u64 = 8 << 20;

/// What a cluster is to have.
#[derive(Debug, Clone)]
pub struct Shape {
    pub servers: usize,
    pub storage_nodes: usize,
    pub memory_nodes: usize,
    /// Whether servers have their pages in memory that all of them map.
    pub pod: bool,
    pub memory_size: ByteSize,
    pub shared_memory: ByteSize,
    /// Up to which size that grows, if it does.
    pub memory_max: Option<ByteSize>,
    /// Seconds without use after which servers pause; 0: never.
    pub pause_after: u32,
    /// Where it is archived.
    pub archive: Option<String>,
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
    /// Seconds without use after which servers pause; 0: never.
    #[serde(default)]
    pub pause_after: u32,
    /// Where the database is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Memory that all servers share, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// The regions of the servers, in shared memory, which stands for that of a CXL pod; none: servers have memory of
    /// their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<PathBuf>,
}

/// Memory that all servers share: of a pool, reached over the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Where the pool's manager listens.
    pub manager: u16,
    /// Its bytes.
    pub bytes: u64,
    /// Up to how many it grows, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// Directories of the memory nodes, in shared memory. They stay when the cluster is down.
    pub memory: Vec<PathBuf>,
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

/// Paths in shared memory that no other cluster has: of directories, or of files.
fn memory_of(what: &str, count: usize) -> Vec<PathBuf> {
    let cluster = rt::random();
    let each = (1..=count).map(|n| format!("/dev/shm/cenote-cluster-{cluster:016x}-{what}-{n}"));
    each.map(PathBuf::from).collect()
}

impl Plan {
    /// The plan that a directory has.
    ///
    /// # Errors
    /// It cannot be read, or makes no cluster.
    pub fn load(dir: &Path) -> Result<Plan, Failure> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path)?;
        let plan: Plan = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        plan.check(&path)?;
        Ok(plan)
    }

    /// The memory that its memory nodes have left.
    pub fn memory_left(&self) -> Vec<PathBuf> {
        let all = self.shared.iter().flat_map(|shared| shared.memory.iter().cloned());
        all.filter(|memory| memory.exists()).collect()
    }

    /// The regions that its servers have left. All of them begin as readers again, with regions made anew.
    pub fn regions_left(&self) -> impl Iterator<Item = &PathBuf> {
        self.regions.iter().filter(|region| region.exists())
    }

    /// Whether it has what is asked for; numbers that it was made with stay.
    pub fn is_of(&self, shape: &Shape) -> bool {
        let has = |shared: &Shared| (shared.memory.len(), shared.bytes, shared.max);
        let shared = self.shared.as_ref().map(has);
        let max = shape.memory_max.map(ByteSize::bytes);
        let wanted = (shape.memory_nodes > 0).then(|| (shape.memory_nodes, shape.shared_memory.bytes(), max));
        let counts = (self.servers.len(), self.storage_nodes.len(), self.memory_size);
        counts == (shape.servers, shape.storage_nodes, shape.memory_size.bytes())
            && (shared, self.pause_after, &self.archive) == (wanted, shape.pause_after, &shape.archive)
            && shape.pod != self.regions.is_empty()
    }

    /// The plan of a directory, or a new one where there is none.
    ///
    /// # Errors
    /// The numbers make no cluster, or another one than the directory has; the file cannot be read or written.
    pub fn load_or_make(dir: &Path, shape: &Shape) -> Result<Plan, Failure> {
        let path = dir.join(FILE);
        if path.exists() {
            return Plan::load(dir);
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
        let is_whole = |shared: &Shared| !shared.memory.is_empty() && shared.growth().is_ok();
        let has_nodes = self.shared.as_ref().is_none_or(is_whole);
        let has_regions = self.regions.is_empty() || self.regions.len() == self.servers.len();
        match !self.servers.is_empty() && matches!(count, 1 | 3 | 5 | 7) && has_nodes && has_regions {
            true => Ok(()),
            false => Err(format!("{}: it makes no cluster", path.display()).into()),
        }
    }

    fn make(shape: &Shape) -> Result<Plan, Failure> {
        if !matches!(shape.storage_nodes, 1 | 3 | 5 | 7) {
            return Err(format!("{} storage nodes: there are 1, 3, 5 or 7 of them", shape.storage_nodes).into());
        }
        if !(1..=SERVERS_MAX).contains(&shape.servers) {
            let most = SERVERS_MAX - 1;
            return Err(format!("{} readers: there are {most} at most", shape.servers.saturating_sub(1)).into());
        }
        if shape.memory_nodes > MEMORY_NODES_MAX {
            let count = shape.memory_nodes;
            return Err(format!("{count} memory nodes: there are {MEMORY_NODES_MAX} at most").into());
        }
        if shape.memory_nodes > 0 && shape.pod {
            return Err("servers have their pages in a pod's memory (--pod), or --memory-nodes behind them".into());
        }
        if shape.pod && shape.pause_after > 0 {
            return Err("--pause-after: a paused server of a --pod would keep its memory".into());
        }
        if shape.memory_nodes == 0 && shape.memory_max.is_some() {
            return Err("--memory-max is for memory that servers share: say how many --memory-nodes have it".into());
        }
        if let Some(max) = shape.memory_max.filter(|max| *max < shape.shared_memory) {
            let shared = shape.shared_memory;
            return Err(format!("--memory-max is {max}; it is at least --shared-memory, {shared}").into());
        }
        growth(shape.shared_memory, shape.memory_max)?;
        let wanted = 2 + shape.servers + shape.storage_nodes;
        let ports = free_ports(shape.port, wanted)?;
        let (proxy, rest) = ports.split_first().ok_or("no port is free")?;
        let (servers, rest) = rest.split_at(shape.servers);
        let (nodes, manager) = rest.split_at(shape.storage_nodes);
        Ok(Plan {
            proxy: *proxy,
            servers: servers.to_vec(),
            storage_nodes: nodes.to_vec(),
            memory_size: shape.memory_size.bytes(),
            pause_after: shape.pause_after,
            archive: shape.archive.clone(),
            shared: (shape.memory_nodes > 0).then(|| Shared {
                manager: manager[0],
                bytes: shape.shared_memory.bytes(),
                max: shape.memory_max.map(ByteSize::bytes),
                memory: memory_of("memory", shape.memory_nodes),
            }),
            regions: match shape.pod {
                true => memory_of("server", shape.servers),
                false => Vec::new(),
            },
        })
    }

    fn pool(&self, shared: &Shared, dir: &Path) -> Vec<Role> {
        let at = format!("127.0.0.1:{}", shared.manager);
        let manager = format!("manager --listen {at} --dir");
        let mut roles = vec![Role::of(
            "manager",
            0,
            &manager,
            [dir.join("manager").display().to_string()],
        )];
        for (memory, n) in shared.memory.iter().zip(1..) {
            let size = exact(shared.node_bytes());
            let arguments = format!("memory --pod memory-{n} --size {size} --manager {at} --region");
            let memory = memory.display().to_string();
            roles.push(Role::of(&format!("memory-{n}"), 0, &arguments, [memory]));
        }
        roles
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
        roles.extend(self.shared.iter().flat_map(|shared| self.pool(shared, dir)));
        let own = exact(self.memory_size);
        let memory = match &self.shared {
            None => format!("--memory-size {own}"),
            Some(Shared {
                manager, bytes, max, ..
            }) => format!(
                "--memory tiered --manager 127.0.0.1:{manager} --memory-size {} --local-memory-size {own}{}",
                exact(*bytes),
                max.map_or_else(String::new, |max| format!(" --memory-max {}", exact(max)))
            ),
        };
        let pause = match self.pause_after {
            0 => String::new(),
            seconds => format!(" --pause-after {seconds}"),
        };
        for (port, n) in self.servers.iter().zip(1..) {
            let name = format!("server-{n}");
            let arguments = format!(
                "run --role auto{pause} --storage {storage} --host {name} --listen 127.0.0.1:{port} {memory} --data"
            );
            let mut role = Role::of(&name, 1, &arguments, [path(&name)]);
            role.arguments.extend(self.in_pod(n - 1));
            // It may have spaces in it.
            let archive = self
                .archive
                .iter()
                .flat_map(|archive| ["--archive".into(), archive.clone()]);
            role.arguments.extend(archive);
            roles.push(role);
        }
        let arguments = format!("proxy --storage {storage} --listen 127.0.0.1:{}", self.proxy);
        roles.push(Role::of("proxy", 2, &arguments, []));
        roles
    }

    /// What tells a server of the pod's memory.
    fn in_pod(&self, server: usize) -> Vec<String> {
        let Some(own) = self.regions.get(server) else {
            return Vec::new();
        };
        let others = self.regions.iter().filter(|region| *region != own);
        let others = others.flat_map(|region| ["--pod-region".into(), region.display().to_string()]);
        let memory = ["--memory", "cxl", "--region"].map(String::from).into_iter();
        memory.chain([own.display().to_string()]).chain(others).collect()
    }

    /// The storage nodes, as `--storage` names them.
    pub fn storage(&self) -> Vec<String> {
        self.storage_nodes
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect()
    }
}

impl Shared {
    fn growth(&self) -> Result<Option<Growth>, ConfigError> {
        growth(ByteSize(self.bytes), self.max.map(ByteSize))
    }

    /// Bytes of each memory node. Each has its share of all, slabs and the first part, since slabs go to the emptiest;
    /// and the first part fits on any of them beside that, when the node that has it is lost.
    fn node_bytes(&self) -> u64 {
        let whole = |bytes: u64| bytes.next_multiple_of(EXTENT);
        let (first, nodes) = (whole(self.bytes), self.memory.len() as u64);
        let growth = self.growth().ok().flatten();
        let (slab, most) = growth.map_or((EXTENT, 0), |growth| (whole(growth.slab), u64::from(growth.most)));
        let share = match nodes {
            1 => slab * most,
            _ if most == 0 => 0,
            _ => (first + slab * most).div_ceil(nodes).next_multiple_of(slab),
        };
        first + share + NODE_SPARE
    }
}

/// A size as a process takes it: for people it would be rounded.
fn exact(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 20) {
        true => format!("{}MiB", bytes >> 20),
        false => bytes.to_string(),
    }
}

/// How memory of this size grows, as its servers decide it.
fn growth(size: ByteSize, max: Option<ByteSize>) -> Result<Option<Growth>, ConfigError> {
    let options = GrowthOptions {
        memory_max: max,
        ..GrowthOptions::default()
    };
    options.decide(true, size)
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
        memory_nodes: 0,
        pod: false,
        memory_size: ByteSize::mib(64),
        shared_memory: ByteSize::mib(128),
        memory_max: None,
        pause_after: 0,
        archive: None,
        port: 21_000,
    };

    #[test]
    fn memory_that_servers_share_has_nodes_and_a_manager() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape {
            memory_nodes: 2,
            ..SHAPE
        };
        let plan = Plan::load_or_make(dir.path(), &shape).unwrap();
        assert_eq!(Plan::load_or_make(dir.path(), &SHAPE).unwrap(), plan, "kept");
        assert!(plan.is_of(&shape) && !plan.is_of(&SHAPE) && plan.memory_left().is_empty());
        let roles = plan.roles(dir.path());
        let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
        assert_eq!(names[3..6], ["manager", "memory-1", "memory-2"]);
        let server = roles.iter().find(|role| role.name == "server-1").unwrap();
        let said = server.arguments.join(" ");
        assert!(
            said.contains("--memory tiered") && said.contains("--memory-size 128MiB --local-memory-size 64MiB"),
            "{said}"
        );
        assert!(!said.contains("--memory-max"), "{said}");
        let node = roles.iter().find(|role| role.name == "memory-1").unwrap();
        assert!(node.arguments.contains(&"136MiB".into()), "{:?}", node.arguments);
        let many = Shape {
            memory_nodes: 17,
            ..SHAPE
        };
        assert!(Plan::make(&many).is_err());
    }

    #[test]
    fn servers_of_a_pod_know_each_others_regions() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { pod: true, ..SHAPE };
        let plan = Plan::load_or_make(dir.path(), &shape).unwrap();
        assert_eq!(Plan::load(dir.path()).unwrap(), plan);
        assert!(plan.is_of(&shape) && !plan.is_of(&SHAPE));
        let roles = plan.roles(dir.path());
        let said = roles
            .iter()
            .find(|role| role.name == "server-2")
            .unwrap()
            .arguments
            .join(" ");
        let [one, two, three] = [0, 1, 2].map(|n| plan.regions[n].display().to_string());
        let memory = format!("--memory cxl --region {two} --pod-region {one} --pod-region {three}");
        assert!(said.ends_with(&memory), "{said}");
        let both = Shape {
            memory_nodes: 1,
            ..shape
        };
        assert!(Plan::make(&both).is_err());
    }

    /// 33 MiB a slab, for which the pool takes 34.
    #[test]
    fn memory_that_grows_has_room_on_all_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape {
            memory_nodes: 2,
            memory_max: Some(ByteSize::mib(128 + 1025)),
            ..SHAPE
        };
        let plan = Plan::load_or_make(dir.path(), &shape).unwrap();
        assert_eq!(Plan::load(dir.path()).unwrap(), plan);
        let fixed = Shape {
            memory_max: None,
            ..shape.clone()
        };
        assert!(plan.is_of(&shape) && !plan.is_of(&fixed));
        let roles = plan.roles(dir.path());
        let said = |name: &str| roles.iter().find(|role| role.name == name).unwrap().arguments.join(" ");
        assert!(
            said("server-3").contains("--memory-max 1153MiB"),
            "{}",
            said("server-3")
        );
        let size = format!(
            "--size {}MiB ",
            128 + (128 + 32 * 34_u64).div_ceil(2).next_multiple_of(34) + 8
        );
        assert!(said("memory-2").contains(&size), "{}", said("memory-2"));

        let none = Shape {
            memory_nodes: 0,
            ..shape.clone()
        };
        let less = Shape {
            memory_max: Some(ByteSize::mib(127)),
            ..shape
        };
        for wrong in [none, less] {
            let refused = Plan::make(&wrong).unwrap_err().to_string();
            assert!(refused.starts_with("--memory-max is"), "{refused}");
        }
    }

    #[test]
    fn a_plan_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::load_or_make(dir.path(), &SHAPE).unwrap();
        let other = Shape { servers: 9, ..SHAPE };
        assert_eq!(Plan::load_or_make(dir.path(), &other).unwrap(), plan);
        assert!(plan.is_of(&SHAPE) && !plan.is_of(&other));
        let roles = plan.roles(dir.path());
        assert_eq!(roles.len(), 7);
        let mut ports = [plan.servers.clone(), plan.storage_nodes.clone(), vec![plan.proxy]].concat();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 7, "each has its own");
        std::fs::write(dir.path().join(FILE), "proxy = 1\nservers = []").unwrap();
        assert!(Plan::load_or_make(dir.path(), &SHAPE).is_err());
    }

    #[test]
    fn each_server_is_told_of_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape {
            archive: Some("/srv/an archive".into()),
            ..SHAPE
        };
        let plan = Plan::load_or_make(dir.path(), &shape).unwrap();
        assert!(plan.is_of(&shape) && !plan.is_of(&SHAPE));
        assert_eq!(Plan::load(dir.path()).unwrap(), plan);
        let roles = plan.roles(dir.path());
        let told = roles.iter().filter(|role| {
            role.arguments
                .ends_with(&["--archive".into(), "/srv/an archive".into()])
        });
        assert_eq!(told.count(), 3);
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
            assert!(Plan::make(&wrong).is_err(), "{wrong:?}");
        }
    }
}
