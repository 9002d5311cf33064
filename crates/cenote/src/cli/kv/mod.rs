//! `cenote kv`: a key-value server from its first line to its last.

mod listen;
mod private;
mod shared;

use super::{Failure, say};
use crate::config::PoolSettings;
use crate::kv::{self, COMMANDS, Metrics, Server, Settings, Stop, TABLE_COMMANDS, gather, metrics_of_table};
use crate::log;
use cenote_base::units::ByteSize;
use cenote_kv::Store;
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_store::REPLICAS_MAX;
use clap::{Args, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const MEMORY_SIZE_DEFAULT: ByteSize = ByteSize::gib(1);
const MEMORY_SIZE_MIN: ByteSize = ByteSize::mib(8);
const THREADS_MAX: usize = 256;

/// Where the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvMemory {
    /// A region file.
    Region,
    /// A grant of a memory pool.
    Pool,
}

#[derive(Debug, Args)]
pub struct KvArguments {
    /// Address and port to listen on; port 0 takes a free one. Anything but loopback needs --secret-file, or
    /// --tls-client-authority
    #[arg(
        long,
        env = "CENOTE_KV_LISTEN",
        default_value = "127.0.0.1:6380",
        value_name = "ADDR:PORT"
    )]
    listen: String,
    /// Where the memory is: a region file of this machine, or a memory pool's
    #[arg(
        long,
        env = "CENOTE_KV_MEMORY",
        default_value = "region",
        value_name = "region|pool",
        hide_possible_values = true
    )]
    memory: KvMemory,
    /// Bytes of memory, if it is made now [default: 1GiB]
    #[arg(long, env = "CENOTE_KV_MEMORY_SIZE", value_name = "SIZE")]
    memory_size: Option<ByteSize>,
    /// The region: a file in shared memory, an fsdax file or a devdax device [default: /dev/shm/cenote-kv-PORT]
    #[arg(long, env = "CENOTE_KV_REGION", value_name = "PATH")]
    region: Option<PathBuf>,
    /// With --memory pool: where the pool's manager listens; of several, with commas in between
    #[arg(long, env = "CENOTE_MANAGER", value_name = "ADDR:PORT,...")]
    manager: Option<String>,
    /// With --memory pool: the pod whose memory it is to be, that is, this host's [default: any]
    #[arg(long, env = "CENOTE_POD", value_name = "POD")]
    pod: Option<String>,
    /// With --memory pool: which tenant of the pool this is [default: default]
    #[arg(long, env = "CENOTE_TENANT", value_name = "NAME")]
    tenant: Option<String>,
    /// With --memory pool: file with the tenant's secret, where the manager asks for one
    #[arg(long, env = "CENOTE_TENANT_SECRET_FILE", value_name = "FILE")]
    tenant_secret_file: Option<PathBuf>,
    /// With --memory pool: the grant's name, by which the next start finds its data again [default: kv]
    #[arg(long, env = "CENOTE_KV_LABEL", value_name = "LABEL", conflicts_with = "space")]
    label: Option<String>,
    /// With --memory pool: serve the table that all share, in the pool's space of this name. With --memory-size the
    /// space is made if it is not there
    #[arg(long, env = "CENOTE_KV_SPACE", value_name = "NAME")]
    space: Option<String>,
    /// With --space and --memory-size: the space, if it is made now, is mirrored. It survives the loss of a memory node
    /// with its memory, and is used by calls alone. One that is there has to be mirrored
    #[arg(long, env = "CENOTE_KV_MIRROR", requires = "space")]
    mirror: bool,
    /// With --space: values have so many copies on other memory nodes, 3 at most [default: 0]
    #[arg(long, env = "CENOTE_KV_REPLICAS", value_name = "N", requires = "space")]
    replicas: Option<u8>,
    /// With --space, if the table is made now: its bytes are written back and invalidated, for hosts whose caches the
    /// memory does not keep coherent
    #[arg(long, env = "CENOTE_KV_FLUSH", requires = "space")]
    flush: bool,
    /// With --space: threads that serve clients [default: one a core]
    #[arg(long, env = "CENOTE_KV_THREADS", value_name = "N", requires = "space")]
    threads: Option<usize>,
    /// Clients at a time; more are refused
    #[arg(long, env = "CENOTE_KV_MAX_CONNECTIONS", default_value_t = kv::CONNECTIONS_MAX, value_name = "N")]
    max_connections: usize,
    /// File whose first line clients have to say with AUTH (as the user `default`) before anything else
    #[arg(long, env = "CENOTE_KV_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// TLS: the server's certificate, with its chain, in a PEM file
    #[arg(long, env = "CENOTE_KV_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// TLS: the certificate's private key, in a PEM file
    #[arg(long, env = "CENOTE_KV_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// TLS: clients need a certificate of one of the authorities in this PEM file
    #[arg(
        long,
        env = "CENOTE_KV_TLS_CLIENT_AUTHORITY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_client_authority: Option<PathBuf>,
    /// Where Prometheus finds what is counted, by HTTP at /metrics, in clear and without a secret
    #[arg(long, env = "CENOTE_KV_METRICS", value_name = "ADDR:PORT")]
    metrics: Option<String>,
}

impl KvArguments {
    fn pool(&self, manager: &str) -> PoolSettings {
        PoolSettings {
            manager: manager.into(),
            pod: self.pod.clone(),
            tenant: self.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.into()),
            secret_file: self.tenant_secret_file.clone(),
            // The words of a store of one's own are not written back, so there is nothing to mirror. A space that is
            // mirrored is so by itself.
            mirror: false,
        }
    }
}

/// Runs a server until it is told to stop.
///
/// # Errors
/// The arguments contradict each other; memory or address cannot be had; the store has failed.
pub fn run(arguments: KvArguments, started: Instant) -> Result<ExitCode, Failure> {
    check(&arguments)?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).ok();
    let settings = listen::settings(&arguments)?;
    let listener = listen::bind(&arguments)?;
    let metrics = arguments.metrics.as_deref().map(listen::bind_metrics).transpose()?;
    match arguments.space {
        Some(ref name) => serve_table(name, &arguments, Sockets { listener, metrics }, settings, started)?,
        None => serve_own(&arguments, Sockets { listener, metrics }, settings, started)?,
    }
    log::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What is listened to.
struct Sockets {
    listener: TcpListener,
    metrics: Option<TcpListener>,
}

/// Serves a store that is this server's alone.
fn serve_own(arguments: &KvArguments, sockets: Sockets, settings: Settings, started: Instant) -> Result<(), Failure> {
    let address = sockets.listener.local_addr()?;
    let (path, range) = private::place(arguments, address.port())?;
    let space = private::open(&path, range, arguments)?;
    let (store, found) = Store::open_reporting(&space)?;
    say!("memory     {}", private::describe(&space, &path));
    say!("data       {}", private::tell(found));
    // Until here a signal ends the process at once; from here on it is answered with a stop in order.
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let is_tls = settings.tls.is_some();
    let server = Server::new(sockets.listener, vec![store], &COMMANDS, settings)?;
    stop_at_signal(signals, server.stopper());
    gather(&space);
    if let Some(listener) = sockets.metrics {
        serve_metrics(listener, vec![Box::new(server.metrics())])?;
    }
    tell_ready(address, is_tls, started);
    Ok(server.run()?.close()?)
}

/// Serves the table that all share, in a space.
fn serve_table(
    name: &str,
    arguments: &KvArguments,
    sockets: Sockets,
    settings: Settings,
    started: Instant,
) -> Result<(), Failure> {
    let table = shared::open(name, arguments)?;
    say!("memory     {}", shared::describe(&table, name));
    let served = serve_opened(&table, arguments, sockets, settings, started);
    // However it ends: others wait for what it has of the space, and what does not leave has to be found out.
    shared::leave(table);
    served
}

fn serve_opened(
    table: &shared::Opened,
    arguments: &KvArguments,
    sockets: Sockets,
    settings: Settings,
    started: Instant,
) -> Result<(), Failure> {
    let (address, threads) = (sockets.listener.local_addr()?, arguments.threads.unwrap_or_else(cores));
    say!("data       {}, {threads} threads", shared::tell(table)?);
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let (is_tls, told) = (settings.tls.is_some(), metrics_of_table(&table.store));
    let tables = vec![table.table.clone(); threads];
    let server = Server::new(sockets.listener, tables, &TABLE_COMMANDS, settings)?;
    stop_at_signal(signals, server.stopper());
    if let Some(listener) = sockets.metrics {
        serve_metrics(listener, vec![Box::new(server.metrics()), Box::new(told)])?;
    }
    tell_ready(address, is_tls, started);
    server.run()?;
    Ok(())
}

fn serve_metrics(listener: TcpListener, sources: Vec<kv::Source>) -> Result<(), Failure> {
    say!("metrics    http://{}/metrics", listener.local_addr()?);
    Ok(Metrics::serve(listener, sources)?)
}

fn tell_ready(address: SocketAddr, is_tls: bool, started: Instant) {
    let tls = if is_tls { " --tls" } else { "" };
    say!("connect    redis-cli -h {} -p {}{tls}", address.ip(), address.port());
    say!("ready in {} ms on {address}", started.elapsed().as_millis());
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX))
}

/// Settings that contradict each other.
fn check(arguments: &KvArguments) -> Result<(), Failure> {
    let of_pool = [
        arguments.manager.is_some(),
        arguments.pod.is_some(),
        arguments.tenant.is_some(),
        arguments.tenant_secret_file.is_some(),
        arguments.label.is_some(),
        arguments.space.is_some(),
    ];
    match arguments.memory {
        KvMemory::Region if of_pool.contains(&true) => {
            let options = "--manager, --pod, --tenant, --tenant-secret-file, --label and --space";
            Err(format!("{options} need --memory pool: add it, or leave them out").into())
        }
        KvMemory::Pool if arguments.manager.is_none() => {
            Err("memory is pool: say where its manager listens with --manager ADDR:PORT".into())
        }
        KvMemory::Pool if arguments.region.is_some() => {
            Err("--region contradicts --memory pool: leave one of them out".into())
        }
        _ if matches!(arguments.threads, Some(0) | Some(THREADS_MAX..)) => {
            Err(format!("--threads is out of range: give 1 to {}", THREADS_MAX - 1).into())
        }
        _ if arguments.max_connections == 0 => Err("--max-connections is 0: give at least 1".into()),
        _ if arguments.replicas.is_some_and(|replicas| replicas > REPLICAS_MAX) => {
            Err(format!("--replicas is out of range: give 0 to {REPLICAS_MAX}").into())
        }
        _ if size(arguments) < MEMORY_SIZE_MIN => {
            Err(format!("--memory-size is {}: give at least {MEMORY_SIZE_MIN}", size(arguments)).into())
        }
        _ => Ok(()),
    }
}

fn size(arguments: &KvArguments) -> ByteSize {
    arguments.memory_size.unwrap_or(MEMORY_SIZE_DEFAULT)
}

/// A second signal ends the process as if killed.
fn stop_at_signal(mut signals: Signals, stop: Stop) {
    std::thread::spawn(move || {
        signals.forever().next();
        stop.stop();
        signals.forever().next();
        std::process::exit(1);
    });
}
