//! Settings of a server: what they are, where they come from, and which of two wins.
//!
//! ```text
//! command line  >  environment (CENOTE_...)  >  TOML file  >  default
//! ```
//!
//! The file is the one named by `--config`, else `cenote.toml` in the data directory if there is one. A key that no
//! setting has is an error that names it. Each setting is defined once, in [`RunOptions`] with its help, and once in
//! [`FileOptions`].

mod growing;

pub use growing::GrowthOptions;

use crate::config_error::ConfigError;
use crate::device::Device;
use crate::log::Level;
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_cluster::Pausing;
use cenote_engine::{Growth, MemoryKind, Survive};
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_sql::DEFAULT_QUERY_MEMORY;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the data lies by default.
pub const DATA_DEFAULT: &str = "./cenote-data";
/// Where the server listens by default.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:5433";
/// What storage nodes call their cluster, unless it is said.
pub const STORAGE_CLUSTER_DEFAULT: &str = "cenote";
const MAX_CONNECTIONS_DEFAULT: usize = 5000;
/// The statements of all sessions may run at once, a thread each, and threads that use the database are numbered below
/// 8,192; the rest is the server's own.
const CONNECTIONS_MAX: usize = 8000;
/// The same in memory below [`MEMORY_SIZE_LARGE`], which has place for 1,024 threads.
const CONNECTIONS_MAX_SMALL: usize = 900;
/// Memory with at least `cenote_buffer`'s `FRAMES_LARGE` frames.
const MEMORY_SIZE_LARGE: ByteSize = ByteSize::mib(48);
/// A quarter of the machine's memory is taken, but no more than this unless asked for.
const MEMORY_SIZE_DEFAULT_MAX: ByteSize = ByteSize::gib(4);
/// The local part of tiered memory, unless it is said.
const LOCAL_SIZE_MAX: ByteSize = ByteSize::gib(128);
/// The redo ring and some hundred frames.
const MEMORY_SIZE_MIN: ByteSize = ByteSize::mib(16);
/// A session gets half of it: room for a few thousand rows.
const STATEMENT_MEMORY_MIN: ByteSize = ByteSize::mib(1);
/// A sort or a join needs some memory even where it spills.
const QUERY_MEMORY_MIN: ByteSize = ByteSize::mib(16);
/// The file looked for in the data directory.
const FILE_NAME: &str = "cenote.toml";

/// What one processor does at a time, and as much again that waits for storage or for its client, twice.
const READS_PER_PROCESSOR: u32 = 4;
/// Seconds of changes that wait for the archive, hours between its bases.
const ARCHIVE_EVERY: u32 = 10;
const ARCHIVE_BASE_EVERY: u32 = 24;
/// Of the log, for an archive that does not answer.
pub const ARCHIVE_LAG: ByteSize = ByteSize::gib(1);
/// A few segments.
const ARCHIVE_LAG_MIN: ByteSize = ByteSize::mib(64);
/// Seconds between two looks for tables that have changed, as PostgreSQL's `autovacuum_naptime`.
const ANALYZE_EVERY: u32 = 60;

/// Kind of memory, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// A region outside of the process: it outlives the server, which recovers in an instant with a warm cache.
    Cxl,
    /// Private memory: the classic buffer pool; recovery replays the log and the cache is cold.
    Dram,
    /// A region that the memory pool grants: as `cxl`, in the memory of a pod.
    Pool,
    /// A local cache in front of memory of the pool on any machine, which is reached over the fabric: recovery replays
    /// the log over pages that are there still.
    Tiered,
}

impl From<Memory> for MemoryKind {
    fn from(memory: Memory) -> Self {
        match memory {
            Memory::Cxl | Memory::Pool => MemoryKind::Cxl,
            Memory::Dram => MemoryKind::Dram,
            Memory::Tiered => MemoryKind::Tiered,
        }
    }
}

/// What the region survives, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Survival {
    /// A killed process.
    Process,
    /// A lost host with the dirty lines of its CPU caches; needs memory that outlives the host.
    Host,
}

impl From<Survival> for Survive {
    fn from(survival: Survival) -> Self {
        match survival {
            Survival::Process => Survive::Process,
            Survival::Host => Survive::Host,
        }
    }
}

/// How much is logged, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What an operator has to act on.
    Error,
    /// And what was not as it should be.
    Warn,
    /// And what happens.
    Info,
    /// And each connection.
    Debug,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Level::Error,
            LogLevel::Warn => Level::Warn,
            LogLevel::Info => Level::Info,
            LogLevel::Debug => Level::Debug,
        }
    }
}

/// Which database is meant: enough to find a server that runs.
#[derive(Debug, Clone, Default, Args)]
pub struct DataOptions {
    /// Data directory, made if missing [default: ./cenote-data]
    #[arg(long, env = "CENOTE_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// TOML file with settings [default: cenote.toml in the data directory, if there is one]
    #[arg(long, env = "CENOTE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which archive keeps a database.
#[derive(Debug, Clone, Default, Args)]
pub struct ArchiveOptions {
    /// Directory, or s3://BUCKET/PREFIX, that gets the log as it becomes durable, and copies of all pages from time to
    /// time: `cenote restore` makes the database of it as it was at any moment [default: none]
    #[arg(long, env = "CENOTE_ARCHIVE", value_name = "DIR|URL")]
    pub archive: Option<String>,
    /// With --archive: seconds of changes that the loss of all else may cost, at most [default: 10]
    #[arg(long, env = "CENOTE_ARCHIVE_EVERY", value_name = "SECONDS")]
    pub archive_every: Option<u32>,
    /// With --archive: hours between two copies of all pages: a restore reads one, and the log behind it [default: 24]
    #[arg(long, env = "CENOTE_ARCHIVE_BASE_EVERY", value_name = "HOURS")]
    pub archive_base_every: Option<u32>,
    /// With --archive: days of moments that are kept; what only earlier ones need is removed [default: all]
    #[arg(long, env = "CENOTE_ARCHIVE_KEEP", value_name = "DAYS")]
    pub archive_keep: Option<u32>,
    /// With --archive: bytes of the log that are kept for an archive that does not answer; beyond that it has a gap
    /// [default: 1GiB]
    #[arg(long, env = "CENOTE_ARCHIVE_LAG", value_name = "SIZE")]
    pub archive_lag: Option<ByteSize>,
}

/// How the memory of a database is set up.
#[derive(Debug, Clone, Default, Args)]
pub struct MemoryOptions {
    /// Kind of memory [default: cxl]
    #[arg(
        long,
        env = "CENOTE_MEMORY",
        value_name = "cxl|dram|pool|tiered",
        hide_possible_values = true
    )]
    pub memory: Option<Memory>,
    /// Bytes of memory for pages, such as 512MiB or 4GiB [default: a quarter of the machine's, at most 4GiB]
    #[arg(long, env = "CENOTE_MEMORY_SIZE", value_name = "SIZE")]
    pub memory_size: Option<ByteSize>,
    /// With --memory tiered: bytes of this process's own memory in front of that [default: an eighth of it, at most
    /// 128GiB]
    #[arg(long, env = "CENOTE_LOCAL_MEMORY_SIZE", value_name = "SIZE")]
    pub local_memory_size: Option<ByteSize>,
    /// How it grows.
    #[command(flatten)]
    pub growth: GrowthOptions,
    /// The region: a file in shared memory, an fsdax file or a devdax device [default: /dev/shm/cenote-<database id>]
    #[arg(long, env = "CENOTE_REGION", value_name = "PATH")]
    pub region: Option<PathBuf>,
    /// With --role reader or auto: the region of another server of the database, in memory that this host shares with
    /// that one's (its CXL pod). While that server writes, pages are read in its frames. May be given several times
    #[arg(long = "pod-region", env = "CENOTE_POD_REGION", value_name = "PATH")]
    pub pod_regions: Vec<PathBuf>,
    /// Bind the memory to this NUMA node, such as a CXL device that shows as one
    #[arg(long, env = "CENOTE_NUMA_NODE", value_name = "N")]
    pub numa_node: Option<u32>,
    /// What the region survives: a killed process, or a lost host with its CPU caches [default: process]
    #[arg(
        long,
        env = "CENOTE_SURVIVE",
        value_name = "process|host",
        hide_possible_values = true
    )]
    pub survive: Option<Survival>,
    /// This host's name, where several hosts reach the data directory [default: told by the pool, or by the machine]
    #[arg(long, env = "CENOTE_HOST", value_name = "NAME")]
    pub host: Option<String>,
    /// With --memory pool or tiered: where the pool's manager listens; of several, with commas in between
    #[arg(long, env = "CENOTE_MANAGER", value_name = "ADDR:PORT,...")]
    pub manager: Option<String>,
    /// With --memory pool: the pod whose memory it is to be, that is, this host's; with tiered any [default: any]
    #[arg(long, env = "CENOTE_POD", value_name = "POD")]
    pub pod: Option<String>,
    /// With --memory pool or tiered: which tenant of the pool this is [default: default]
    #[arg(long, env = "CENOTE_TENANT", value_name = "NAME")]
    pub tenant: Option<String>,
    /// With --memory pool or tiered: file with the tenant's secret, where the manager asks for one
    #[arg(long, env = "CENOTE_TENANT_SECRET_FILE", value_name = "FILE")]
    pub tenant_secret_file: Option<PathBuf>,
    /// With --memory pool: keep a second copy of the memory on another memory node, which takes its place when it is
    /// lost; implies --survive host
    #[arg(
        long,
        env = "CENOTE_MIRROR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "true|false",
        hide_possible_values = true
    )]
    pub mirror: Option<bool>,
}

/// Where log and pages are, if not in the data directory.
#[derive(Debug, Clone, Default, Args)]
pub struct StorageOptions {
    /// Storage nodes that keep log and pages, all of them; the data directory then has what need not last [default:
    /// none, files of the data directory]
    #[arg(long, env = "CENOTE_STORAGE", value_name = "ADDR:PORT,...")]
    pub storage: Option<String>,
    /// With --storage: the name of the storage nodes' cluster [default: cenote]
    #[arg(long, env = "CENOTE_STORAGE_CLUSTER", value_name = "NAME")]
    pub storage_cluster: Option<String>,
    /// With --storage: file with the secret that the storage nodes ask for
    #[arg(long, env = "CENOTE_STORAGE_SECRET_FILE", value_name = "FILE")]
    pub storage_secret_file: Option<PathBuf>,
}

/// What a server does with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads and changes it: one server at a time.
    Writer,
    /// Reads what the writer has committed.
    Reader,
    /// One of the two: it takes the database when no server has it, and is a reader otherwise.
    Auto,
}

/// All settings of a server, where they are given on the command line or in the environment.
#[derive(Debug, Clone, Default, Args)]
pub struct RunOptions {
    /// Which database.
    #[command(flatten)]
    pub data: DataOptions,
    /// In which storage.
    #[command(flatten)]
    pub storage: StorageOptions,
    /// With --storage: whether this server changes the database, as one can, reads what that one has committed, or is
    /// either (auto): a reader that takes the database when no server has it [default: writer]
    #[arg(
        long,
        env = "CENOTE_ROLE",
        value_name = "writer|reader|auto",
        hide_possible_values = true
    )]
    pub role: Option<Role>,
    /// With --storage: where other machines reach this server [default: the address that it listens on]
    #[arg(long, env = "CENOTE_ADVERTISE", value_name = "ADDR:PORT")]
    pub advertise: Option<String>,
    /// With --role auto: seconds without use after which this server pauses: it leaves the database, gives its memory
    /// back, and serves again when a client needs it; 0: never [default: 0]
    #[arg(long, env = "CENOTE_PAUSE_AFTER", value_name = "SECONDS")]
    pub pause_after: Option<u32>,
    /// With --pause-after: reads of proxies' clients at a time for each server: for more, a paused one serves, too
    /// [default: four for each processor]
    #[arg(long, env = "CENOTE_READS_PER_SERVER", value_name = "N")]
    pub reads_per_server: Option<u32>,
    /// Which archive keeps it.
    #[command(flatten)]
    pub archive: ArchiveOptions,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:5433]
    #[arg(long, env = "CENOTE_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Directory for a Unix socket beside it, `.s.PGSQL.PORT`, which `psql -h DIR` finds; with or without passwords as
    /// the address [default: none]
    #[arg(long, env = "CENOTE_SOCKET_DIR", value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
    /// In which memory.
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Let the memory be as slow as a device: dram, cxl-direct, cxl-switch, cxl-fpga, any other of `cenote devices`, or
    /// a file with a profile. Emulated, with any --memory [default: as fast as it is]
    #[arg(long, env = "CENOTE_DEVICE", value_name = "PROFILE")]
    pub device: Option<String>,
    /// With --device: size of the modelled processor cache [default: 32MiB]
    #[arg(long, env = "CENOTE_DEVICE_CACHE", value_name = "SIZE")]
    pub device_cache: Option<ByteSize>,
    /// Users and passwords (see `cenote help password`); needed to listen on anything but the loopback interface
    #[arg(long, env = "CENOTE_PASSWORD_FILE", value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Sessions at a time [default: 5000, or as many as the limit of open files allows]
    #[arg(long, alias = "max-sessions", env = "CENOTE_MAX_CONNECTIONS", value_name = "N")]
    pub max_connections: Option<usize>,
    /// Bytes in which the statements of all sessions may gather rows, keys and locks; one session gets half of it
    /// [default: a quarter of the machine's, at least 64MiB]
    #[arg(long, env = "CENOTE_STATEMENT_MEMORY", value_name = "SIZE")]
    pub statement_memory: Option<ByteSize>,
    /// Seconds after which tables that have changed much are analyzed for the planner; 0: only by ANALYZE [default: 60]
    #[arg(long, env = "CENOTE_ANALYZE_EVERY", value_name = "SECONDS")]
    pub analyze_every: Option<u32>,
    /// Bytes that queries of many rows may hold, all together, before they spill to disk or are refused
    /// [default: 256MiB]
    #[arg(long, env = "CENOTE_QUERY_MEMORY", value_name = "SIZE")]
    pub query_memory: Option<ByteSize>,
    /// How much to log on standard error [default: info]
    #[arg(
        long,
        env = "CENOTE_LOG_LEVEL",
        value_name = "error|warn|info|debug",
        hide_possible_values = true
    )]
    pub log_level: Option<LogLevel>,
}

/// All settings of a server, where they are given in a file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOptions {
    data: Option<PathBuf>,
    storage: Option<String>,
    storage_cluster: Option<String>,
    storage_secret_file: Option<PathBuf>,
    role: Option<Role>,
    advertise: Option<String>,
    pause_after: Option<u32>,
    reads_per_server: Option<u32>,
    archive: Option<String>,
    archive_every: Option<u32>,
    archive_base_every: Option<u32>,
    archive_keep: Option<u32>,
    archive_lag: Option<String>,
    listen: Option<String>,
    socket_dir: Option<PathBuf>,
    memory: Option<Memory>,
    memory_size: Option<String>,
    local_memory_size: Option<String>,
    memory_max: Option<String>,
    memory_slab: Option<String>,
    memory_worth: Option<u32>,
    region: Option<PathBuf>,
    pod_regions: Option<Vec<PathBuf>>,
    numa_node: Option<u32>,
    survive: Option<Survival>,
    host: Option<String>,
    manager: Option<String>,
    pod: Option<String>,
    tenant: Option<String>,
    tenant_secret_file: Option<PathBuf>,
    mirror: Option<bool>,
    device: Option<String>,
    device_cache: Option<String>,
    password_file: Option<PathBuf>,
    max_connections: Option<usize>,
    statement_memory: Option<String>,
    analyze_every: Option<u32>,
    query_memory: Option<String>,
    log_level: Option<LogLevel>,
}

/// All settings of a server, decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Data directory.
    pub data: PathBuf,
    /// The storage nodes that have log and pages, if any do.
    pub storage: Option<StorageSettings>,
    /// What it does with the database.
    pub role: Role,
    /// Where other machines reach it, if that is not the address that it listens on.
    pub advertise: Option<String>,
    /// When it pauses, if it does.
    pub pausing: Option<Pausing>,
    /// Which archive keeps the database, if one does.
    pub archive: Option<ArchiveSettings>,
    /// ADDR:PORT.
    pub listen: String,
    /// Directory of a Unix socket for clients of this machine.
    pub socket_dir: Option<PathBuf>,
    /// Kind of memory.
    pub memory: Memory,
    /// Whether an option or the file sets the kind.
    pub memory_given: bool,
    /// Bytes of memory.
    pub memory_size: ByteSize,
    /// Whether an option or the file sets the size.
    pub memory_size_given: bool,
    /// Bytes of this process's own memory in front of it, if it is tiered.
    pub local_memory_size: Option<ByteSize>,
    /// How far the memory behind that grows, if it does.
    pub growth: Option<Growth>,
    /// Region, if not the one named after the database.
    pub region: Option<PathBuf>,
    /// Those of other servers of its pod.
    pub pod_regions: Vec<PathBuf>,
    /// NUMA node that the memory is bound to.
    pub numa_node: Option<u32>,
    /// What the region survives.
    pub survive: Survival,
    /// This host's name, if one is given.
    pub host: Option<String>,
    /// The memory pool, if the memory is its.
    pub pool: Option<PoolSettings>,
    /// The device whose latency is emulated, if one is.
    pub device: Option<Device>,
    /// Users and passwords.
    pub password_file: Option<PathBuf>,
    /// Sessions at a time.
    pub max_connections: usize,
    /// Whether an option or the file sets the number.
    pub max_connections_given: bool,
    /// Bytes that the statements of all sessions may gather.
    pub statement_memory: ByteSize,
    /// Seconds after which tables that have changed much are analyzed; 0: never.
    pub analyze_every: u32,
    /// Bytes that all queries of many rows may hold.
    pub query_memory: ByteSize,
    /// How much to log.
    pub log_level: LogLevel,
    /// The file that was read, if one was.
    pub file: Option<PathBuf>,
}

/// Which archive, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchiveSettings {
    /// A directory, or s3://BUCKET/PREFIX.
    pub url: String,
    /// Changes wait for so long at most.
    pub every: Duration,
    /// Between two copies of all pages.
    pub base_every: Duration,
    /// Days of moments that are kept; none: all.
    pub keep_days: Option<u32>,
    /// Bytes of the log that are kept for one that does not answer.
    pub lag: ByteSize,
}

impl ArchiveOptions {
    /// With what the file says of the rest.
    fn or(self, file: &mut FileOptions, lag: Option<ByteSize>) -> ArchiveOptions {
        ArchiveOptions {
            archive: self.archive.or(file.archive.take()),
            archive_every: self.archive_every.or(file.archive_every),
            archive_base_every: self.archive_base_every.or(file.archive_base_every),
            archive_keep: self.archive_keep.or(file.archive_keep),
            archive_lag: lag,
        }
    }
}

/// The archive that is meant.
///
/// # Errors
/// Something is said of an archive, and none is named; a value makes no sense.
fn decide_archive(
    ArchiveOptions {
        archive: url,
        archive_every: every,
        archive_base_every: base_every,
        archive_keep: keep_days,
        archive_lag: lag,
    }: ArchiveOptions,
) -> Result<Option<ArchiveSettings>, ConfigError> {
    let refused = |problem: &str| Err(ConfigError::Value(problem.into()));
    let Some(url) = url else {
        let is_more_given = every.or(base_every).or(keep_days).is_some() || lag.is_some();
        return match is_more_given {
            true => {
                refused("archive_every, archive_base_every, archive_keep and archive_lag are for --archive DIR|URL")
            }
            false => Ok(None),
        };
    };
    if [every, base_every, keep_days].contains(&Some(0)) {
        return refused("archive_every, archive_base_every and archive_keep are 1 or more");
    }
    let lag = lag.unwrap_or(ARCHIVE_LAG);
    if lag < ARCHIVE_LAG_MIN {
        return refused(&format!("archive_lag is {lag}; the least is {ARCHIVE_LAG_MIN}"));
    }
    crate::objects::open(&url).map_err(|error| ConfigError::Value(error.to_string()))?;
    let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 3600);
    Ok(Some(ArchiveSettings {
        url,
        every: Duration::from_secs(every.unwrap_or(ARCHIVE_EVERY).into()),
        base_every: hours(base_every.unwrap_or(ARCHIVE_BASE_EVERY)),
        keep_days,
        lag,
    }))
}

/// Which storage nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageSettings {
    /// ADDR:PORT of each.
    pub nodes: Vec<String>,
    /// The name of their cluster.
    pub cluster: String,
    /// Where the secret is that they ask for, if they do.
    pub secret_file: Option<PathBuf>,
}

impl StorageOptions {
    /// Decides them; some have to be named.
    ///
    /// # Errors
    /// None is.
    pub fn required(self) -> Result<StorageSettings, ConfigError> {
        let none = || ConfigError::Value("say where the storage nodes are: --storage ADDR:PORT,...".into());
        self.decide()?.ok_or_else(none)
    }

    /// Decides them.
    ///
    /// # Errors
    /// Something is said of nodes, and none is named.
    pub fn decide(self) -> Result<Option<StorageSettings>, ConfigError> {
        let is_more_given = self.storage_cluster.is_some() || self.storage_secret_file.is_some();
        let Some(nodes) = self.storage else {
            let problem = "storage_cluster and storage_secret_file are for --storage ADDR:PORT,...";
            return match is_more_given {
                true => Err(ConfigError::Value(problem.into())),
                false => Ok(None),
            };
        };
        let nodes: Vec<String> = nodes.split(',').map(|node| node.trim().to_owned()).collect();
        if nodes.iter().any(|node| !node.contains(':')) {
            let problem = format!(
                "storage is {:?}: it is ADDR:PORT of each storage node, with commas in between",
                nodes.join(",")
            );
            return Err(ConfigError::Value(problem));
        }
        Ok(Some(StorageSettings {
            nodes,
            cluster: self.storage_cluster.unwrap_or_else(|| STORAGE_CLUSTER_DEFAULT.into()),
            secret_file: self.storage_secret_file,
        }))
    }
}

/// Which memory of which pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// ADDR:PORT of its manager.
    pub manager: String,
    /// The pod, if it matters.
    pub pod: Option<String>,
    /// Which tenant this is.
    pub tenant: String,
    /// Where its secret is, if it has one.
    pub secret_file: Option<PathBuf>,
    /// Whether the memory is mirrored on another memory node.
    pub mirror: bool,
}

impl Settings {
    /// Decides all settings.
    ///
    /// # Errors
    /// A file that cannot be read, a key or value that no server can have.
    pub fn resolve(options: RunOptions) -> Result<Settings, ConfigError> {
        let (path, file) = find_file(&options.data)?.unzip();
        let mut file = file.unwrap_or_default();
        let size = |key, given, text| decide_size(key, given, text, path.as_deref());
        let memory_size = size("memory_size", options.memory.memory_size, &file.memory_size)?;
        let statement_memory = size("statement_memory", options.statement_memory, &file.statement_memory)?;
        let query_memory = size("query_memory", options.query_memory, &file.query_memory)?;
        let device_cache = size("device_cache", options.device_cache, &file.device_cache)?;
        let local = size(
            "local_memory_size",
            options.memory.local_memory_size,
            &file.local_memory_size,
        )?;
        let growth = growth_given(options.memory.growth, &file, path.as_deref())?;
        let archive_lag = size("archive_lag", options.archive.archive_lag, &file.archive_lag)?;
        let archive = decide_archive(options.archive.or(&mut file, archive_lag))?;
        let role = options.role.or(file.role).unwrap_or(Role::Writer);
        let memory = match (options.memory.memory.or(file.memory), role) {
            (None, Role::Reader | Role::Auto) => Some(Memory::Dram),
            (given, _) => given,
        };
        let pool = decide_pool(
            memory,
            PoolOptions {
                manager: options.memory.manager.or(file.manager),
                pod: options.memory.pod.or(file.pod),
                tenant: options.memory.tenant.or(file.tenant),
                secret_file: options.memory.tenant_secret_file.or(file.tenant_secret_file),
                mirror: options.memory.mirror.or(file.mirror),
            },
        )?;
        let survive = decide_survival(options.memory.survive.or(file.survive), pool.as_ref())?;
        let max_connections = options.max_connections.or(file.max_connections);
        let memory_size = memory_size.map_or_else(|| (default_memory_size(), false), |size| (size, true));
        let local_memory_size = decide_local(memory, local, memory_size.0)?;
        let growth = growth.decide(memory == Some(Memory::Tiered), memory_size.0)?;
        let settings = Settings {
            data: options.data.data.or(file.data).unwrap_or_else(|| DATA_DEFAULT.into()),
            storage: StorageOptions {
                storage: options.storage.storage.or(file.storage),
                storage_cluster: options.storage.storage_cluster.or(file.storage_cluster),
                storage_secret_file: options.storage.storage_secret_file.or(file.storage_secret_file),
            }
            .decide()?,
            role,
            pausing: decide_pausing(
                role,
                options.pause_after.or(file.pause_after),
                options.reads_per_server.or(file.reads_per_server),
            )?,
            archive,
            advertise: options.advertise.or(file.advertise),
            listen: options.listen.or(file.listen).unwrap_or_else(|| LISTEN_DEFAULT.into()),
            socket_dir: options.socket_dir.or(file.socket_dir),
            memory: memory.unwrap_or(Memory::Cxl),
            memory_given: memory.is_some(),
            memory_size: memory_size.0,
            memory_size_given: memory_size.1,
            local_memory_size,
            growth,
            region: options.memory.region.or(file.region),
            pod_regions: pod_regions(options.memory.pod_regions, file.pod_regions),
            numa_node: options.memory.numa_node.or(file.numa_node),
            survive,
            host: decide_host(options.memory.host.or(file.host))?,
            pool,
            device: decide_device(options.device.or(file.device), device_cache)?,
            password_file: options.password_file.or(file.password_file),
            max_connections: max_connections.unwrap_or_else(|| {
                MAX_CONNECTIONS_DEFAULT.min(connections_max(local_memory_size.unwrap_or(memory_size.0)))
            }),
            max_connections_given: max_connections.is_some(),
            statement_memory: statement_memory.unwrap_or_else(default_statement_memory),
            analyze_every: options.analyze_every.or(file.analyze_every).unwrap_or(ANALYZE_EVERY),
            query_memory: query_memory.unwrap_or(ByteSize(DEFAULT_QUERY_MEMORY)),
            log_level: options.log_level.or(file.log_level).unwrap_or(LogLevel::Info),
            file: path,
        };
        settings.check()
    }

    /// Bytes in which frames and sessions have their places: of tiered memory the local ones.
    pub fn own_size(&self) -> ByteSize {
        self.local_memory_size.unwrap_or(self.memory_size)
    }

    /// Bytes that the memory of all servers may grow to.
    pub fn memory_max(&self) -> ByteSize {
        let more = self.growth.map_or(0, |growth| growth.slab * u64::from(growth.most));
        ByteSize(self.memory_size.bytes() + more)
    }

    fn check(self) -> Result<Settings, ConfigError> {
        let most = connections_max(self.own_size());
        if !(1..=most).contains(&self.max_connections) {
            let mut problem = format!("max_connections is {}; it may be 1 to {most}", self.max_connections);
            if most < CONNECTIONS_MAX {
                problem += &format!(
                    " in memory of {}, and {CONNECTIONS_MAX} from {MEMORY_SIZE_LARGE} on",
                    self.own_size()
                );
            }
            return Err(ConfigError::Value(problem));
        }
        if self
            .local_memory_size
            .is_some_and(|size| size < MEMORY_SIZE_MIN || size > self.memory_size)
        {
            let problem = format!(
                "local_memory_size is {}; it may be {MEMORY_SIZE_MIN} to memory_size, {}",
                self.own_size(),
                self.memory_size
            );
            return Err(ConfigError::Value(problem));
        }
        if self.memory_size < MEMORY_SIZE_MIN {
            let problem = format!("memory_size is {}; the least is {MEMORY_SIZE_MIN}", self.memory_size);
            return Err(ConfigError::Value(problem));
        }
        if self.query_memory < QUERY_MEMORY_MIN {
            let problem = format!("query_memory is {}; the least is {QUERY_MEMORY_MIN}", self.query_memory);
            return Err(ConfigError::Value(problem));
        }
        if self.statement_memory < STATEMENT_MEMORY_MIN {
            let problem = format!(
                "statement_memory is {}; the least is {STATEMENT_MEMORY_MIN}",
                self.statement_memory
            );
            return Err(ConfigError::Value(problem));
        }
        let is_own = self.pool.is_none() || self.local_memory_size.is_some();
        let in_ram = is_own && self.region.as_ref().is_none_or(|region| region.starts_with("/dev/shm"));
        let most = ByteSize::mib((usable_memory() / 10 * 9) >> 20);
        if in_ram && self.own_size() > most {
            let key = if self.local_memory_size.is_some() {
                "local_memory_size"
            } else {
                "memory_size"
            };
            let problem = format!(
                "{key} is {}, more than nine tenths of this machine's memory ({most}): reserving it would starve \
                 everything else; ask for less, or name a device with --region",
                self.own_size()
            );
            return Err(ConfigError::Value(problem));
        }
        if self.memory != Memory::Cxl && self.region.is_some() {
            let problem = "a region is for --memory cxl; with another kind leave --region out";
            return Err(ConfigError::Value(problem.into()));
        }
        self.check_role()?;
        Ok(self)
    }

    /// Refuses memory that a server of this role does not have.
    fn check_role(&self) -> Result<(), ConfigError> {
        let role = match self.role {
            Role::Writer if !self.pod_regions.is_empty() => {
                let problem = "pod_regions are read by readers: say --role reader or auto, or leave them out";
                return Err(ConfigError::Value(problem.into()));
            }
            Role::Writer => return Ok(()),
            Role::Reader => "reader",
            Role::Auto => "auto",
        };
        if self.storage.is_none() {
            return Err(ConfigError::Value(format!(
                "role is {role}: say where the storage nodes are that have the database, with --storage"
            )));
        }
        if self.memory == Memory::Tiered && !self.pod_regions.is_empty() {
            let problem = "pod_regions are for servers that have their pages in a region, or in private memory: with \
                           --memory tiered they share memory of the pool";
            return Err(ConfigError::Value(problem.into()));
        }
        if self.region.as_ref().is_some_and(|own| self.pod_regions.contains(own)) {
            let problem = "pod_regions are those of other servers: each has a region of its own";
            return Err(ConfigError::Value(problem.into()));
        }
        if self.memory == Memory::Cxl && self.pausing.is_some() {
            let problem = "pause_after is for servers without a region: one that is paused would keep its memory";
            return Err(ConfigError::Value(problem.into()));
        }
        let has_own_region = self.memory == Memory::Cxl && self.region.is_some();
        if !matches!(self.memory, Memory::Dram | Memory::Tiered) && !has_own_region {
            return Err(ConfigError::Value(format!(
                "role is {role}, whose pages are in private memory: leave memory out, or set it to dram, or to tiered \
                 for memory of the pool behind it, which all servers of the database share, or to cxl with a --region \
                 of its own"
            )));
        }
        Ok(())
    }
}

/// Those of the options, else those of the file.
fn pod_regions(given: Vec<PathBuf>, file: Option<Vec<PathBuf>>) -> Vec<PathBuf> {
    match given.is_empty() {
        true => file.unwrap_or_default(),
        false => given,
    }
}

/// The local cache of tiered memory: as PolarDB Serverless has it (3.1.3) unless it is said.
fn decide_local(
    memory: Option<Memory>,
    given: Option<ByteSize>,
    memory_size: ByteSize,
) -> Result<Option<ByteSize>, ConfigError> {
    match (memory, given) {
        (Some(Memory::Tiered), given) => {
            let usual = ByteSize::mib((memory_size.bytes() / 8) >> 20);
            let usual = usual.min(LOCAL_SIZE_MAX).max(MEMORY_SIZE_MIN);
            Ok(Some(given.unwrap_or(usual)))
        }
        (_, None) => Ok(None),
        (_, Some(_)) => Err(ConfigError::Value("local_memory_size is for --memory tiered".into())),
    }
}

/// What is said of memory that grows.
fn growth_given(given: GrowthOptions, file: &FileOptions, path: Option<&Path>) -> Result<GrowthOptions, ConfigError> {
    Ok(GrowthOptions {
        memory_max: decide_size("memory_max", given.memory_max, &file.memory_max, path)?,
        memory_slab: decide_size("memory_slab", given.memory_slab, &file.memory_slab, path)?,
        memory_worth: given.memory_worth.or(file.memory_worth),
    })
}

/// How many sessions memory of that size has place for.
fn connections_max(memory_size: ByteSize) -> usize {
    match memory_size < MEMORY_SIZE_LARGE {
        true => CONNECTIONS_MAX_SMALL,
        false => CONNECTIONS_MAX,
    }
}

/// When a server pauses. It has to be one that takes the database again.
fn decide_pausing(role: Role, after: Option<u32>, reads: Option<u32>) -> Result<Option<Pausing>, ConfigError> {
    let wrong = |problem: &str| Err(ConfigError::Value(problem.into()));
    match (after.unwrap_or(0), reads) {
        (0, None) => Ok(None),
        (0, Some(_)) => wrong("reads_per_server is for servers that pause: set pause_after, too"),
        (_, Some(0)) => wrong("reads_per_server is 0; it is at least 1"),
        _ if role != Role::Auto => wrong("pause_after is for --role auto: another server may have the database then"),
        (after, reads) => Ok(Some(Pausing {
            after: Nanos::from_secs(after.into()),
            reads: reads.unwrap_or_else(|| READS_PER_PROCESSOR * processors()),
        })),
    }
}

fn processors() -> u32 {
    let found = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(found).unwrap_or(u32::MAX / READS_PER_PROCESSOR)
}

struct PoolOptions {
    manager: Option<String>,
    pod: Option<String>,
    tenant: Option<String>,
    secret_file: Option<PathBuf>,
    mirror: Option<bool>,
}

/// A mirror gets what is written back, which is what surviving the host asks for.
fn decide_survival(given: Option<Survival>, pool: Option<&PoolSettings>) -> Result<Survival, ConfigError> {
    match (given, pool.is_some_and(|pool| pool.mirror)) {
        (Some(Survival::Process), true) => Err(ConfigError::Value(
            "mirrored memory survives the host: leave survive out, or set it to host".into(),
        )),
        (_, true) => Ok(Survival::Host),
        (given, false) => Ok(given.unwrap_or(Survival::Process)),
    }
}

/// A host's name stands in headers and messages.
fn decide_host(given: Option<String>) -> Result<Option<String>, ConfigError> {
    let is_name = |name: &String| (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    match given {
        Some(name) if !is_name(&name) => Err(ConfigError::Value(format!(
            "host is {name:?}: a name is 1 to 64 letters, digits and signs"
        ))),
        given => Ok(given),
    }
}

fn decide_pool(memory: Option<Memory>, options: PoolOptions) -> Result<Option<PoolSettings>, ConfigError> {
    let PoolOptions {
        manager,
        pod,
        tenant,
        secret_file,
        mirror,
    } = options;
    let given = manager.is_some() || pod.is_some() || tenant.is_some() || secret_file.is_some() || mirror == Some(true);
    let problem = match (memory, manager) {
        (Some(Memory::Tiered), Some(_)) if mirror == Some(true) => {
            "mirror is for --memory pool: what tiered memory keeps is in storage as well"
        }
        (Some(Memory::Pool | Memory::Tiered), Some(manager)) => {
            return Ok(Some(PoolSettings {
                manager,
                pod,
                tenant: tenant.unwrap_or_else(|| DEFAULT_TENANT.into()),
                secret_file,
                mirror: mirror.unwrap_or(false),
            }));
        }
        (Some(Memory::Pool), None) => "memory is pool: say where its manager listens with --manager ADDR:PORT",
        (Some(Memory::Tiered), None) => {
            "memory is tiered, over memory of the pool: say where its manager listens with --manager ADDR:PORT"
        }
        _ if given => {
            "manager, pod, tenant and tenant_secret_file are for --memory pool or tiered, mirror is for --memory pool"
        }
        _ => return Ok(None),
    };
    Err(ConfigError::Value(problem.into()))
}

fn decide_size(
    key: &str,
    given: Option<ByteSize>,
    text: &Option<String>,
    path: Option<&Path>,
) -> Result<Option<ByteSize>, ConfigError> {
    match (given, text, path) {
        (Some(size), ..) => Ok(Some(size)),
        (None, Some(text), Some(path)) => match text.parse() {
            Ok(size) => Ok(Some(size)),
            Err(error) => Err(ConfigError::File {
                path: path.to_owned(),
                problem: format!("{key}: {error}"),
            }),
        },
        _ => Ok(None),
    }
}

fn decide_device(name: Option<String>, cache: Option<ByteSize>) -> Result<Option<Device>, ConfigError> {
    match (name, cache) {
        (Some(name), cache) => Device::new(&name, cache).map(Some),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(ConfigError::Value(
            "device_cache is the modelled cache in front of an emulated device: name one with --device".into(),
        )),
    }
}

/// The file that `--config` names must be there; the one in the data directory may.
fn find_file(options: &DataOptions) -> Result<Option<(PathBuf, FileOptions)>, ConfigError> {
    let (path, in_data) = match &options.config {
        Some(path) => (path.clone(), false),
        None => (
            options
                .data
                .clone()
                .unwrap_or_else(|| DATA_DEFAULT.into())
                .join(FILE_NAME),
            true,
        ),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let problem = |problem: String| ConfigError::File {
                path: path.clone(),
                problem,
            };
            let file: FileOptions =
                toml::from_str(&text).map_err(|error| problem(error.to_string().trim_end().into()))?;
            if in_data && file.data.is_some() {
                return Err(problem(
                    "`data` has no meaning in a file inside the data directory".into(),
                ));
            }
            Ok(Some((path, file)))
        }
        Err(error) if in_data && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path, source }),
    }
}

/// What the statements of all sessions may gather: a quarter of what this process may use.
fn default_statement_memory() -> ByteSize {
    ByteSize::mib(((usable_memory() / 4) >> 20).max(64))
}

/// A quarter of what this process may use, at most 4 GiB, in whole MiB.
fn default_memory_size() -> ByteSize {
    let quarter = (usable_memory() / 4).min(MEMORY_SIZE_DEFAULT_MAX.bytes());
    ByteSize::mib((quarter >> 20).max(64))
}

/// What this process may use: the machine's memory, or less where its control groups say so.
fn usable_memory() -> u64 {
    machine_memory().min(cgroup_limit().unwrap_or(u64::MAX))
}

fn machine_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

/// The least limit of the control groups that this process is in, of either version.
fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        match (parts.next(), parts.next()) {
            (Some(""), Some(path)) => limits_upwards("/sys/fs/cgroup", path, "memory.max"),
            (Some(names), Some(path)) if names.split(',').any(|name| name == "memory") => {
                limits_upwards("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
            }
            _ => Vec::new(),
        }
    });
    limits.min()
}

fn limits_upwards(root: &str, path: &str, file: &str) -> Vec<u64> {
    let inside = Path::new(path.trim_start_matches('/'));
    let read = |group: &Path| {
        std::fs::read_to_string(Path::new(root).join(group).join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    inside.ancestors().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(dir: &Path, file: &str, change: impl FnOnce(&mut RunOptions)) -> Result<Settings, ConfigError> {
        std::fs::write(dir.join(FILE_NAME), file).unwrap();
        let mut options = RunOptions::default();
        options.data.data = Some(dir.to_owned());
        change(&mut options);
        Settings::resolve(options)
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let settings = resolve(
            dir.path(),
            "memory = \"dram\"\nmemory_size = \"64MiB\"\nmax_connections = 7\n",
            |options| {
                options.memory.memory_size = Some(ByteSize::mib(32));
            },
        )
        .unwrap();
        assert_eq!(settings.memory, Memory::Dram);
        assert_eq!(settings.memory_size, ByteSize::mib(32));
        assert_eq!(settings.max_connections, 7);
        assert_eq!(settings.listen, LISTEN_DEFAULT);
        assert_eq!(settings.survive, Survival::Process);
    }

    #[test]
    fn the_memory_of_statements_is_given_or_a_quarter() {
        let dir = tempfile::tempdir().unwrap();
        let of = |file: &str, asked| resolve(dir.path(), file, |options| options.statement_memory = asked);
        let size = |file, asked| of(file, asked).unwrap().statement_memory;
        assert!(size("", None) >= ByteSize::mib(64));
        assert_eq!(size("statement_memory = \"2GiB\"", None), ByteSize::gib(2));
        assert_eq!(
            size("statement_memory = \"2GiB\"", Some(ByteSize::mib(3))),
            ByteSize::mib(3)
        );
        let refused = of("", Some(ByteSize(4096))).unwrap_err().to_string();
        assert!(refused.contains("statement_memory is 4KiB"), "{refused}");
        let refused = of("statement_memory = \"much\"", None).unwrap_err().to_string();
        assert!(refused.contains("statement_memory"), "{refused}");
    }

    #[test]
    fn servers_pause_only_if_they_take_the_database_again() {
        let dir = tempfile::tempdir().unwrap();
        let of = |file: &str| resolve(dir.path(), file, |options| options.storage.storage = Some("a:1".into()));
        assert_eq!(of("role = \"auto\"").unwrap().pausing, None);
        let pausing = of("role = \"auto\"\npause_after = 300\nreads_per_server = 9")
            .unwrap()
            .pausing;
        let (after, reads) = (Nanos::from_secs(300), 9);
        assert_eq!(pausing, Some(Pausing { after, reads }));
        for wrong in [
            "role = \"writer\"\npause_after = 300",
            "role = \"auto\"\nreads_per_server = 9",
            "role = \"auto\"\npause_after = 1\nreads_per_server = 0",
        ] {
            let refused = of(wrong).unwrap_err().to_string();
            assert!(
                refused.contains("pause_after") || refused.contains("reads_per_server"),
                "{refused}"
            );
        }
    }

    #[test]
    fn tables_are_analyzed_every_minute_unless_told_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let of = |file: &str, asked| {
            let settings = resolve(dir.path(), file, |options| options.analyze_every = asked);
            settings.unwrap().analyze_every
        };
        assert_eq!((of("", None), of("analyze_every = 5", None)), (60, 5));
        assert_eq!(of("analyze_every = 5", Some(0)), 0);
    }

    #[test]
    fn the_memory_of_queries_is_given_or_256_mib() {
        let dir = tempfile::tempdir().unwrap();
        let of = |file: &str, asked| resolve(dir.path(), file, |options| options.query_memory = asked);
        let size = |file, asked| of(file, asked).unwrap().query_memory;
        assert_eq!(size("", None), ByteSize::mib(256));
        assert_eq!(size("query_memory = \"2GiB\"", None), ByteSize::gib(2));
        assert_eq!(
            size("query_memory = \"2GiB\"", Some(ByteSize::mib(99))),
            ByteSize::mib(99)
        );
        let refused = of("", Some(ByteSize::mib(1))).unwrap_err().to_string();
        assert!(refused.contains("query_memory is 1MiB"), "{refused}");
    }

    /// Sessions whose statements all wait have a thread each, and the region a latch slot for each thread.
    #[test]
    fn no_more_sessions_than_memory_has_latch_slots_for() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = |size: u64, asked: Option<usize>| {
            let change = |options: &mut RunOptions| {
                options.memory.memory_size = Some(ByteSize::mib(size));
                options.max_connections = asked;
            };
            resolve(dir.path(), "", change).map(|settings| settings.max_connections)
        };
        assert_eq!(sessions(32, None).unwrap(), CONNECTIONS_MAX_SMALL);
        assert_eq!(sessions(48, None).unwrap(), MAX_CONNECTIONS_DEFAULT);
        assert_eq!(sessions(48, Some(8000)).unwrap(), 8000);
        let says = |size, asked, what: &str| {
            let error = sessions(size, Some(asked)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says(48, 8001, "1 to 8000");
        says(32, 5000, "8000 from 48MiB on");
        for (size, most) in [
            (16, CONNECTIONS_MAX_SMALL),
            (47, CONNECTIONS_MAX_SMALL),
            (48, CONNECTIONS_MAX),
        ] {
            let len = size << 20;
            let plan = cenote_buffer::Geometry::plan(len, cenote_buffer::Geometry::ring_for(len)).unwrap();
            assert!(plan.threads() >= most + 100, "{size} MiB: {} threads", plan.threads());
        }
    }

    /// What is mirrored is what is written back: so a mirror asks for survival of the host.
    #[test]
    fn a_mirror_is_for_the_pool_and_survives_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let pool = "memory = \"pool\"\nmanager = \"127.0.0.1:1\"\n";
        let mirrored = format!("{pool}mirror = true\n");
        let settings = resolve(dir.path(), &mirrored, |_| ()).unwrap();
        assert!(settings.pool.is_some_and(|pool| pool.mirror));
        assert_eq!(settings.survive, Survival::Host);
        let without = resolve(dir.path(), &mirrored, |options| options.memory.mirror = Some(false)).unwrap();
        assert!(without.pool.is_some_and(|pool| !pool.mirror));
        assert_eq!(without.survive, Survival::Process);
        let says = |file: &str, what: &str| {
            let error = resolve(dir.path(), file, |_| ()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says(&format!("{mirrored}survive = \"process\"\n"), "survives the host");
        says("mirror = true\n", "for --memory pool");
    }

    #[test]
    fn tiered_memory_has_a_local_part_and_a_pool() {
        let dir = tempfile::tempdir().unwrap();
        let tiered = "memory = \"tiered\"\nmanager = \"127.0.0.1:1\"\n";
        let local = |rest: &str| {
            let settings = resolve(dir.path(), &format!("{tiered}{rest}"), |_| ());
            settings.map(|settings| settings.local_memory_size.expect("it is tiered"))
        };
        assert_eq!(local("memory_size = \"1GiB\"\n").unwrap(), ByteSize::mib(128));
        assert_eq!(local("memory_size = \"20MiB\"\n").unwrap(), MEMORY_SIZE_MIN);
        assert_eq!(
            local("memory_size = \"4TiB\"\nlocal_memory_size = \"1GiB\"\n").unwrap(),
            ByteSize::mib(1024)
        );
        let says = |text: &str, what: &str| {
            let error = resolve(dir.path(), text, |_| ()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says("memory = \"tiered\"\n", "--manager ADDR:PORT");
        says(&format!("{tiered}mirror = true\n"), "mirror is for --memory pool");
        says("local_memory_size = \"1GiB\"\n", "for --memory tiered");
        let more = "memory_size = \"64MiB\"\nlocal_memory_size = \"1GiB\"\n";
        says(&format!("{tiered}{more}"), "it may be");
    }

    #[test]
    fn memory_that_grows_is_set_as_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let tiered = "memory = \"tiered\"\nmanager = \"127.0.0.1:1\"\nmemory_size = \"1GiB\"\n";
        let grows = format!("{tiered}memory_max = \"3GiB\"\nmemory_slab = \"256MiB\"\nmemory_worth = 9\n");
        let settings = resolve(dir.path(), &grows, |_| ()).unwrap();
        let growth = settings.growth.expect("it grows");
        assert_eq!((growth.slab, growth.most, growth.worth), (256 << 20, 8, 9));
        assert_eq!(settings.memory_max(), ByteSize::gib(3));
        let change = |options: &mut RunOptions| {
            options.memory.growth.memory_max = Some(ByteSize::gib(2));
            options.memory.growth.memory_worth = Some(4);
        };
        let growth = resolve(dir.path(), &grows, change).unwrap().growth.expect("it grows");
        assert_eq!((growth.most, growth.worth), (4, 4), "the command line wins");
        let settings = resolve(dir.path(), tiered, |_| ()).unwrap();
        assert_eq!((settings.growth, settings.memory_max()), (None, ByteSize::gib(1)));
        let refused = resolve(dir.path(), "memory_max = \"300GiB\"\n", |_| ())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("for --memory tiered"), "{refused}");
    }

    /// A region of 100 GiB was once reserved on a machine of 24, in the background, until nothing else could run.
    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let huge = |options: &mut RunOptions| options.memory.memory_size = Some(ByteSize::mib(1 << 40));
        let error = resolve(dir.path(), "", huge).unwrap_err().to_string();
        assert!(error.contains("this machine's memory"), "{error}");
        let on_a_device = |options: &mut RunOptions| {
            huge(options);
            options.memory.region = Some("/dev/dax0.0".into());
        };
        assert!(resolve(dir.path(), "", on_a_device).is_ok());
    }

    #[test]
    fn an_unknown_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = resolve(dir.path(), "memory-size = \"1GiB\"\n", |_| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("memory-size") && error.contains("memory_size") && error.contains("line 1"),
            "{error}"
        );
        let error = resolve(dir.path(), "memory_size = \"lots\"\n", |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("memory_size") && error.contains("lots"), "{error}");
        let error = resolve(dir.path(), "data = \"x\"\n", |_| ()).unwrap_err().to_string();
        assert!(error.contains("data"), "{error}");
        let error = resolve(dir.path(), "", |options| {
            options.data.config = Some("/nowhere/x.toml".into())
        })
        .unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
    }

    #[test]
    fn devices_are_named_or_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str| {
            let name = name.to_owned();
            resolve(dir.path(), "", move |options| options.device = Some(name)).map(|settings| settings.device.unwrap())
        };
        assert_eq!(device("cxl-switch").unwrap().profile.load_latency_ns, 549.0);
        let error = device("floppy").unwrap_err().to_string();
        assert!(
            error.contains("device: ") && error.contains("floppy") && error.contains("cxl-direct"),
            "{error}"
        );
        let file = dir.path().join("ours.profiles");
        let path = file.to_str().unwrap();
        std::fs::write(&file, "[lab]\nsource = \"ours\"\nload_latency_ns = 300\n").unwrap();
        assert_eq!(device(path).unwrap().profile.name, "lab");
        std::fs::write(&file, "[lab]\nload_latency_ns = -4\n").unwrap();
        assert!(device(path).unwrap_err().to_string().contains("ours.profiles"));
        let two = "[a]\nsource = \"x\"\nload_latency_ns = 300\n[b]\nsource = \"x\"\nload_latency_ns = 400\n";
        std::fs::write(&file, two).unwrap();
        let error = device(path).unwrap_err().to_string();
        assert!(
            error.contains("ours.profiles:NAME") && error.contains("a, b"),
            "{error}"
        );
        assert_eq!(device(&format!("{path}:a")).unwrap().profile.load_latency_ns, 300.0);
        let error = device(&format!("{path}:c")).unwrap_err().to_string();
        assert!(error.contains("a, b"), "{error}");
    }

    #[test]
    fn a_modelled_cache_needs_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let error = resolve(dir.path(), "device_cache = \"8MiB\"\n", |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--device"), "{error}");
        let error = resolve(dir.path(), "device = \"dram\"\ndevice_cache = \"8KiB\"\n", |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("device_cache") && error.contains("64KiB"), "{error}");
        let settings = resolve(dir.path(), "device = \"dram\"\ndevice_cache = \"8MiB\"\n", |_| ()).unwrap();
        assert_eq!(settings.device.unwrap().cache.bytes(), ByteSize::mib(8));
    }

    #[test]
    fn the_default_size_is_sane() {
        let size = default_memory_size();
        assert!(size >= ByteSize::mib(64) && size <= MEMORY_SIZE_DEFAULT_MAX, "{size}");
    }
}
