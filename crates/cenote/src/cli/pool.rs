//! `cenote manager`, `cenote memory`, `cenote pool`: a memory pool's processes, and what operators ask it.

use super::audit::{self, MANAGER_DEFAULT};
use super::space::{self, SpaceCommand};
use super::{Failure, print_aligned, say};
use crate::calls::{self, Called};
use crate::etcd::{EtcdFiles, EtcdTransport};
use crate::pooled::read_secret;
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_fabric::message::tcp::Tcp;
use cenote_libfabric as libfabric;
use cenote_pool::holder::{Credentials, Operator};
use cenote_pool::host::Machine;
use cenote_pool::limits::{NodeLimits, ServiceLimits};
use cenote_pool::manager::{self, Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::Tenants;
use cenote_pool::store::GrantTableStore;
use cenote_pool::store::etcd::{self, Endpoint, EtcdOptions, EtcdStore};
use cenote_pool::store::file::FileStore;
use cenote_pool::{DeviceView, GrantId, GrantView, HostView, NodeId, NodeView, Phase, PoolStatus};
use cenote_space::HostOptions;
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const MEMORY_LISTEN_DEFAULT: &str = "127.0.0.1:0";
const JOIN_TIMEOUT: Nanos = Nanos::from_secs(2);
const LEASE_SECONDS: std::ops::RangeInclusive<f64> = 0.5..=3600.0;

#[derive(Debug, Args)]
pub struct ManagerArguments {
    /// Where its grant table is kept, unless it is in etcd; made if missing
    #[arg(long, env = "CENOTE_POOL_DIR", default_value = "./cenote-pool", value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, env = "CENOTE_POOL_LISTEN", default_value = MANAGER_DEFAULT, value_name = "ADDR:PORT")]
    listen: String,
    /// TOML file with tenants, quotas, priorities and secrets; needed to listen on anything but the loopback interface
    #[arg(long, env = "CENOTE_POOL_TENANTS", value_name = "FILE")]
    tenants: Option<PathBuf>,
    /// Seconds that a holder may be silent before it is ended and its memory is taken back [default: 10]
    #[arg(long, env = "CENOTE_POOL_LEASE", value_name = "SECONDS")]
    lease: Option<f64>,
    /// Connections of clients at a time; a tenant has an equal share
    #[arg(long, env = "CENOTE_POOL_CONNECTIONS", default_value_t = ServiceLimits::MANAGER.connections, value_name = "N")]
    connections: u32,
    /// Threads that answer what waits for memory or for memory nodes; a tenant has a quarter of them at a time
    #[arg(long, env = "CENOTE_POOL_THREADS", default_value_t = ServiceLimits::MANAGER.long, value_name = "N")]
    threads: usize,
}

// A grant table in etcd: several managers can be started on it, and one of them leads. (Flattened: a doc comment would
// be the command's.)
#[derive(Debug, Args)]
pub struct EtcdArguments {
    /// Keep the grant table in this etcd: http://HOST:PORT or https://HOST:PORT, several with commas in between. Of
    /// several managers one leads, the others take over
    #[arg(
        long,
        env = "CENOTE_POOL_ETCD",
        value_name = "URL,...",
        value_delimiter = ',',
        conflicts_with = "dir"
    )]
    etcd: Vec<String>,
    /// What the keys of this pool begin with there
    #[arg(
        long,
        env = "CENOTE_POOL_ETCD_PREFIX",
        default_value = etcd::PREFIX_DEFAULT,
        value_name = "PREFIX",
        requires = "etcd"
    )]
    etcd_prefix: String,
    /// Name of a user of that etcd, if it asks for one
    #[arg(long, env = "CENOTE_POOL_ETCD_USER", value_name = "NAME", requires_all = ["etcd", "etcd_password_file"])]
    etcd_user: Option<String>,
    /// File with that user's password
    #[arg(
        long,
        env = "CENOTE_POOL_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    etcd_password_file: Option<PathBuf>,
    /// PEM file with the certificates of the authorities that sign for that etcd [default: the public ones]
    #[arg(
        long,
        env = "CENOTE_POOL_ETCD_CERT_AUTHORITY",
        value_name = "FILE",
        requires = "etcd"
    )]
    etcd_cert_authority: Option<PathBuf>,
    /// PEM file with this manager's certificate, if that etcd asks clients for one
    #[arg(long, env = "CENOTE_POOL_ETCD_CERT", value_name = "FILE", requires_all = ["etcd", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// PEM file with the private key of that certificate
    #[arg(long, env = "CENOTE_POOL_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MemoryArguments {
    /// The pod whose hosts can map this memory
    #[arg(long, env = "CENOTE_POD", value_name = "POD")]
    pod: String,
    /// How much memory it gives
    #[arg(long, env = "CENOTE_POOL_SIZE", value_name = "SIZE")]
    size: ByteSize,
    /// Directory in shared memory, or on an fsdax file system that all hosts of the pod mount; made if missing
    #[arg(long, env = "CENOTE_POOL_REGION", value_name = "PATH")]
    region: PathBuf,
    /// Address and port where clients of spaces find it; port 0 takes the one that it had before, or a free one
    #[arg(long, env = "CENOTE_MEMORY_LISTEN", default_value = MEMORY_LISTEN_DEFAULT, value_name = "ADDR:PORT")]
    listen: String,
    /// Provider of libfabric over which other pods reach this memory: tcp;ofi_rxm, verbs, efa, shm; or none
    #[arg(
        long,
        env = "CENOTE_POOL_RDMA",
        default_value = "tcp;ofi_rxm",
        value_name = "PROVIDER"
    )]
    rdma: String,
    /// This machine's own IP address there [default: the loopback interface, reached from this machine alone]
    #[arg(long, env = "CENOTE_POOL_RDMA_ADDRESS", value_name = "ADDR")]
    rdma_address: Option<String>,
    /// Connections of clients at a time; a tenant has an equal share
    #[arg(
        long,
        env = "CENOTE_MEMORY_CONNECTIONS",
        default_value_t = ServiceLimits::MEMORY_NODE.connections,
        value_name = "N"
    )]
    connections: u32,
    /// Threads of each of the four classes that serve parts of spaces, and threads that serve their rings; 0: as many
    /// as cores, two at least
    #[arg(long, env = "CENOTE_MEMORY_THREADS", default_value_t = 0, value_name = "N")]
    threads: usize,
    #[command(flatten)]
    connect: PoolConnect,
}

/// How a command finds a pool.
#[derive(Debug, Args)]
pub struct PoolConnect {
    /// Where the manager listens; of several, with commas in between
    #[arg(long, env = "CENOTE_MANAGER", default_value = MANAGER_DEFAULT, value_name = "ADDR:PORT,...")]
    pub(super) manager: String,
    /// File with the pool's secret, if its tenants file has one
    #[arg(long, env = "CENOTE_POOL_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// See `cenote-bench pool-demo --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Start two pods of two memory nodes on loopback, and show under load where extents are, what moves, and what is
    /// local
    Demo(DemoArguments),
    /// Memory nodes, devices and their hosts, tenants and grants
    Status(PoolConnect),
    /// Compare the manager's grant table with what memory nodes find: every byte is free or granted
    Audit(PoolConnect),
    /// Revoke a grant, end the process that holds it, and free its memory
    Free {
        /// Its number, as `cenote pool status` shows it
        #[arg(value_name = "GRANT")]
        grant: u64,
        #[command(flatten)]
        connect: PoolConnect,
    },
    /// A tenant's spaces: heaps that many of its processes share
    #[command(subcommand)]
    Space(SpaceCommand),
    /// Close the epochs of a host that is over: none of its processes reaches a device any more. What they held goes to
    /// the next holder
    HostLost {
        /// Its name, as `cenote pool status` shows it
        #[arg(value_name = "NAME")]
        host: String,
        /// Its pod, if several pods have a host of this name
        #[arg(long, env = "CENOTE_POD", value_name = "POD")]
        pod: Option<String>,
        #[command(flatten)]
        connect: PoolConnect,
    },
    /// Give up a memory node, or a device, that will not come back, and what lay there
    Forget {
        /// Its number, as `cenote pool status` shows it
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        connect: PoolConnect,
    },
}

/// Runs a manager until it is told to stop.
///
/// # Errors
/// The tenants' file, the directory, etcd or the address cannot be used.
pub fn manager(arguments: ManagerArguments) -> Result<ExitCode, Failure> {
    let tenants = match &arguments.tenants {
        Some(file) => {
            let text =
                std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            Tenants::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
        None => Tenants::default(),
    };
    if tenants.is_open() && !is_loopback(&arguments.listen) {
        let listen = &arguments.listen;
        return Err(
            format!("{listen} is not a loopback address: name the tenants and their secrets with --tenants").into(),
        );
    }
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let store = grant_table_store(&arguments)?;
    let options = ManagerOptions {
        directory: arguments.dir,
        listen: arguments.listen,
        tenants,
        lease: lease(arguments.lease)?,
    };
    let limits = ServiceLimits {
        connections: arguments.connections,
        long: arguments.threads,
        ..ServiceLimits::MANAGER
    };
    let manager = Manager::start_limited(store, options, limits, &Tcp)?;
    match manager.pool() {
        Ok(pool) => say!("ready: manager of pool {pool:032x} on {}", manager.address()),
        Err(error) => say!("waiting on {}: {error}", manager.address()),
    }
    signals.forever().next();
    drop(manager);
    Ok(ExitCode::SUCCESS)
}

fn grant_table_store(arguments: &ManagerArguments) -> Result<Arc<dyn GrantTableStore>, Failure> {
    let etcd = &arguments.etcd;
    if etcd.etcd.is_empty() {
        return Ok(Arc::new(FileStore::new(&arguments.dir)));
    }
    if is_unspecified(&arguments.listen) {
        let listen = &arguments.listen;
        return Err(format!(
            "--listen {listen}: nodes and clients are told this address; give one that they can reach"
        )
        .into());
    }
    let user = match (&etcd.etcd_user, &etcd.etcd_password_file) {
        (Some(name), Some(file)) => Some((name.clone(), read_secret(file)?)),
        _ => None,
    };
    let options = EtcdOptions {
        endpoints: etcd.etcd.clone(),
        prefix: etcd.etcd_prefix.clone(),
        user,
        ..EtcdOptions::default()
    };
    let files = EtcdFiles {
        authority: etcd.etcd_cert_authority.clone(),
        identity: etcd.etcd_cert.clone().zip(etcd.etcd_key.clone()),
    };
    if files != EtcdFiles::default() {
        refuse_plain(&etcd.etcd)?;
    }
    Ok(Arc::new(EtcdStore::over(
        &options,
        Arc::new(EtcdTransport::new(&files)?),
    )?))
}

/// Certificates protect nothing on the way to a member that is asked without TLS.
fn refuse_plain(urls: &[String]) -> Result<(), Failure> {
    for url in urls {
        if !Endpoint::parse(url)?.tls {
            return Err(format!("{url}: certificates are given for etcd, so give https://HOST:PORT").into());
        }
    }
    Ok(())
}

fn lease(seconds: Option<f64>) -> Result<Nanos, Failure> {
    let Some(seconds) = seconds else {
        return Ok(manager::LEASE_DEFAULT);
    };
    match LEASE_SECONDS.contains(&seconds) {
        true => Ok(Nanos((seconds * 1e9) as u64)),
        false => Err(format!("a lease of {seconds} s is out of range: give 0.5 to 3600").into()),
    }
}

fn is_loopback(listen: &str) -> bool {
    let addresses = listen.to_socket_addrs();
    addresses.is_ok_and(|mut all| all.all(|address| address.ip().is_loopback()))
}

/// Whether an address is none that can be reached, such as 0.0.0.0.
fn is_unspecified(listen: &str) -> bool {
    let addresses = listen.to_socket_addrs();
    addresses.is_ok_and(|mut all| all.any(|address| address.ip().is_unspecified()))
}

/// Runs a memory node until it is told to stop.
///
/// # Errors
/// The directory cannot be used, or the manager refuses the node.
pub fn memory(arguments: MemoryArguments) -> Result<ExitCode, Failure> {
    let metadata = std::fs::metadata(&arguments.region);
    if metadata.is_ok_and(|found| !found.is_dir()) {
        let region = arguments.region.display();
        return Err(format!(
            "{region} is no directory: each grant is a file of its own there, so that no tenant maps another's \
             memory. A devdax device cannot be divided like that: give it to one database (cenote run --region \
             {region}), mount a file system with DAX on it, or have ranges of it granted to tenants that trust each \
             other (cenote host --device {region})"
        )
        .into());
    }
    if is_unspecified(&arguments.listen) {
        let listen = &arguments.listen;
        return Err(format!("--listen {listen}: clients are told this address; give one that they can reach").into());
    }
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let called = called(&arguments)?;
    let options = NodeOptions {
        pod: arguments.pod.clone(),
        bytes: arguments.size.bytes(),
        directory: std::path::absolute(&arguments.region)?,
        manager: arguments.connect.manager.clone(),
        secret: secret(&arguments.connect)?,
        listen: arguments.listen.clone(),
        calls: called.as_ref().map(|called| called.calls.clone()),
    };
    let limits = NodeLimits {
        clients: ServiceLimits {
            connections: arguments.connections,
            ..ServiceLimits::MEMORY_NODE
        },
        threads: arguments.threads,
    };
    let node = MemoryNode::start_limited(options, limits, Arc::new(Tcp), Box::new(Machine))?;
    let (size, pod, region) = (arguments.size, &arguments.pod, arguments.region.display());
    let address = node.address();
    match node.wait_joined(JOIN_TIMEOUT) {
        true => say!("ready: {size} of pod {pod} in {region}, for members of spaces at {address}"),
        false => say!(
            "waiting for the manager at {}: {size} of pod {pod} in {region}, for members of spaces at {address}",
            arguments.connect.manager
        ),
    }
    if let Some(called) = &called {
        say!("called by other pods at {}", called.calls.address);
    }
    signals.forever().next();
    drop(node);
    drop(called);
    Ok(ExitCode::SUCCESS)
}

/// How other pods reach this memory, if they can.
fn called(arguments: &MemoryArguments) -> Result<Option<Called>, Failure> {
    if arguments.rdma == calls::NONE {
        return Ok(None);
    }
    if let Err(error) = libfabric::available() {
        say!("other pods cannot reach this memory: {}", calls::text(&error));
        return Ok(None);
    }
    let address = arguments.rdma_address.as_deref();
    Ok(Some(calls::called(&arguments.rdma, address, HostOptions::default())?))
}

pub(super) fn secret(connect: &PoolConnect) -> Result<String, Failure> {
    match &connect.secret_file {
        Some(file) => Ok(read_secret(file)?),
        None => Ok(String::new()),
    }
}

fn operator(connect: &PoolConnect) -> Result<Operator, Failure> {
    let credentials = Credentials {
        manager: connect.manager.clone(),
        tenant: String::new(),
        secret: secret(connect)?,
    };
    Ok(Operator::connect(&Tcp, &credentials)?)
}

/// Answers an operator.
///
/// # Errors
/// The manager cannot be reached, or refuses what is asked.
pub fn look(command: PoolCommand) -> Result<ExitCode, Failure> {
    match command {
        PoolCommand::Demo(demo) => super::delegate::run("pool-demo", &demo.arguments),
        PoolCommand::Status(connect) => {
            show(&operator(&connect)?.status()?);
            Ok(ExitCode::SUCCESS)
        }
        PoolCommand::Audit(connect) => Ok(audit::tell(&operator(&connect)?.audit()?)),
        PoolCommand::Space(command) => space::run(command),
        PoolCommand::Free { grant, connect } => {
            operator(&connect)?.free(GrantId(grant))?;
            say!("grant {grant} is being freed: its holder is ended, if there is one");
            Ok(ExitCode::SUCCESS)
        }
        PoolCommand::HostLost { host, pod, connect } => {
            let waits = |left: Nanos| {
                let left = left.as_secs_f64().ceil();
                say!("the manager has just begun to lead: it can tell within {left} s whether host {host} is heard");
            };
            operator(&connect)?.host_lost(&host, pod.as_deref(), waits)?;
            say!("host {host} is lost: what its processes held has no holder now");
            Ok(ExitCode::SUCCESS)
        }
        PoolCommand::Forget { node, connect } => {
            let number = u64::from_str_radix(&node, 16)
                .map_err(|_| format!("\"{node}\" is no number of a memory node or device"))?;
            operator(&connect)?.forget(NodeId(number))?;
            say!("{node} is forgotten, with its grants; of those with a whole mirror that takes the place");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show(status: &PoolStatus) {
    say!(
        "pool {:032x}, leases of {:.1} s",
        status.pool,
        Nanos(status.lease).as_secs_f64()
    );
    say!("");
    let mut rows = vec![["memory node", "pod", "size", "granted", "free", "state", "files"].map(String::from)];
    rows.extend(status.nodes.iter().map(node_row));
    print_aligned(&rows);
    show_devices(status);
    say!("");
    let mut rows = vec![["tenant", "granted", "quota", "priority"].map(String::from)];
    rows.extend(status.tenants.iter().map(|tenant| {
        let quota = tenant.quota.map_or("none".into(), |quota| ByteSize(quota).to_string());
        [
            tenant.name.clone(),
            ByteSize(tenant.granted).to_string(),
            quota,
            tenant.priority.to_string(),
        ]
    }));
    print_aligned(&rows);
    say!("");
    let mut rows = vec![["grant", "tenant", "size", "where", "state", "holder", "what"].map(String::from)];
    rows.extend(status.grants.iter().map(grant_row));
    print_aligned(&rows);
    if !status.spaces.is_empty() {
        say!("");
        print_aligned(&space::rows(&status.spaces));
    }
}

/// What hosts share, which of them have joined it, and what it cannot do.
fn show_devices(status: &PoolStatus) {
    if status.devices.is_empty() {
        return;
    }
    say!("");
    let mut rows = vec![["device", "pod", "size", "granted", "host", "epoch", "state"].map(String::from)];
    for device in &status.devices {
        rows.extend(device_rows(device));
    }
    print_aligned(&rows);
    say!("a device: {}", audit::NOT_APART);
}

fn device_rows(device: &DeviceView) -> Vec<[String; 7]> {
    let kind = if device.devdax { " (devdax)" } else { "" };
    let row = |host: [String; 3]| {
        let [name, epoch, state] = host;
        let (size, granted) = (ByteSize(device.bytes), ByteSize(device.granted));
        let id = format!("{}{kind}", device.id);
        [
            id,
            device.pod.clone(),
            size.to_string(),
            granted.to_string(),
            name,
            epoch,
            state,
        ]
    };
    let of = |host: &HostView| {
        let state = match (host.open, host.connected) {
            (true, true) => "there",
            (true, false) => "SILENT: what it holds is in quarantine",
            (false, true) => "joining",
            (false, false) => "lost",
        };
        [host.name.clone(), host.epoch.to_string(), state.into()]
    };
    device.hosts.iter().map(|host| row(of(host))).collect()
}

fn node_row(node: &NodeView) -> [String; 7] {
    [
        node.id.to_string(),
        node.pod.clone(),
        ByteSize(node.bytes).to_string(),
        ByteSize(node.granted).to_string(),
        ByteSize(node.bytes.saturating_sub(node.granted)).to_string(),
        if node.connected { "there" } else { "GONE" }.into(),
        node.directory.clone(),
    ]
}

fn grant_row(grant: &GrantView) -> [String; 7] {
    let seconds = Nanos(grant.time).as_secs_f64();
    let state = match grant.phase {
        Phase::Held => format!("held, lease {seconds:.1} s"),
        Phase::Idle => format!("idle for {seconds:.0} s"),
        phase => phase.to_string(),
    };
    let state = match grant.mirror_of {
        Some(of) => format!("mirror of {of}, {state}"),
        None if grant.remote => format!("over the fabric, {state}"),
        None => state,
    };
    let place = match (grant.offset, &grant.host) {
        (None, _) => grant.pod.clone(),
        (Some(offset), None) => format!("{} {} at {offset:#x}", grant.pod, grant.node),
        (Some(offset), Some(host)) => format!("{} {} at {offset:#x}, host {host}", grant.pod, grant.node),
    };
    [
        grant.id.to_string(),
        grant.tenant.clone(),
        ByteSize(grant.bytes).to_string(),
        place,
        state,
        grant.epoch.to_string(),
        format!("{} {}", grant.description, grant.label),
    ]
}
