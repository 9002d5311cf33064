//! `cenote kv`: a key-value server from its first line to its last.

use super::{Failure, say};
use crate::config::PoolSettings;
use crate::kv::{Server, Stop, gather};
use crate::{log, pooled};
use cenote_base::units::ByteSize;
use cenote_fabric::{FileRange, RegionOptions, is_blank_at};
use cenote_kv::{Found, Store};
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_space::{Space, SpaceOptions};
use clap::{Args, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The grant's label unless an option names another.
const LABEL_DEFAULT: &str = "kv";
const MEMORY_SIZE_DEFAULT: ByteSize = ByteSize::gib(1);
const MEMORY_SIZE_MIN: ByteSize = ByteSize::mib(8);

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
    /// Address and port to listen on; port 0 takes a free one. There are no passwords: loopback addresses alone
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
    #[arg(long, env = "CENOTE_KV_LABEL", value_name = "LABEL")]
    label: Option<String>,
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
    let listener = bind(&arguments.listen)?;
    let address = listener.local_addr()?;
    let (path, range) = place(&arguments, address.port())?;
    let space = open(&path, range, &arguments)?;
    let (store, found) = Store::open_reporting(&space)?;
    say!("memory     {}", describe(&space, &path));
    say!("data       {}", tell(found));
    // Until here a signal ends the process at once; from here on it is answered with a stop in order.
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let server = Server::new(listener, store)?;
    stop_at_signal(signals, server.stopper());
    gather(&space);
    say!("connect    redis-cli -h {} -p {}", address.ip(), address.port());
    say!("ready in {} ms on {address}", started.elapsed().as_millis());
    server.run()?.close()?;
    log::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Settings that contradict each other.
fn check(arguments: &KvArguments) -> Result<(), Failure> {
    let of_pool = [
        arguments.manager.is_some(),
        arguments.pod.is_some(),
        arguments.tenant.is_some(),
        arguments.tenant_secret_file.is_some(),
        arguments.label.is_some(),
    ];
    match arguments.memory {
        KvMemory::Region if of_pool.contains(&true) => {
            let options = "--manager, --pod, --tenant, --tenant-secret-file and --label";
            Err(format!("{options} need --memory pool: add it, or leave them out").into())
        }
        KvMemory::Pool if arguments.manager.is_none() => {
            Err("memory is pool: say where its manager listens with --manager ADDR:PORT".into())
        }
        KvMemory::Pool if arguments.region.is_some() => {
            Err("--region contradicts --memory pool: leave one of them out".into())
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

fn bind(listen: &str) -> Result<TcpListener, Failure> {
    let unknown = |_| format!("--listen {listen} is no address: give one with a port, such as 127.0.0.1:6380");
    let addresses: Vec<_> = listen.to_socket_addrs().map_err(unknown)?.collect();
    if !addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(format!(
            "--listen {listen}: cenote kv has no passwords; listen on a loopback address, such as 127.0.0.1:6380"
        )
        .into());
    }
    let failed = |error| format!("cannot listen on {listen}: {error}; name another address with --listen");
    Ok(TcpListener::bind(&addresses[..]).map_err(failed)?)
}

/// The file of the memory and the part of it, which are the pool's from here on if it is one of the pool.
fn place(arguments: &KvArguments, port: u16) -> Result<(PathBuf, Option<FileRange>), Failure> {
    let Some(manager) = &arguments.manager else {
        let path = arguments.region.clone();
        let path = path.unwrap_or_else(|| Path::new(cenote_fabric::SHM_DIR).join(format!("cenote-kv-{port}")));
        return Ok((path, None));
    };
    let pool = PoolSettings {
        manager: manager.clone(),
        pod: arguments.pod.clone(),
        tenant: arguments.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.into()),
        secret_file: arguments.tenant_secret_file.clone(),
        // A store's words are not written back, so there is nothing to mirror.
        mirror: false,
    };
    let label = arguments.label.as_deref().unwrap_or(LABEL_DEFAULT);
    let label = format!("kv-{label}");
    let taken = pooled::take_labelled(&pool, None, label, "key-value store".into(), size(arguments))?;
    Ok((taken.path, taken.range))
}

fn open(path: &Path, range: Option<FileRange>, arguments: &KvArguments) -> Result<Space, Failure> {
    let options = RegionOptions {
        range,
        ..RegionOptions::default()
    };
    if !path.exists() || is_blank_at(path, range) {
        return Ok(Space::create(
            path,
            &SpaceOptions {
                bytes: size(arguments).bytes(),
                region: options,
                ..SpaceOptions::default()
            },
        )?);
    }
    let space = Space::open(path, options)?;
    let length = ByteSize(space.parts().map(|part| part.region().len()).sum());
    if arguments
        .memory_size
        .is_some_and(|wanted| wanted.bytes().abs_diff(length.bytes()) >= 4 << 20)
    {
        log::warn!(
            "{} has {length}, and stays so: --memory-size is for memory that is made",
            path.display()
        );
    }
    Ok(space)
}

fn describe(space: &Space, path: &Path) -> String {
    let length = ByteSize(space.parts().map(|part| part.region().len()).sum());
    format!(
        "{length} in {}; it survives a killed process, not a lost host",
        path.display()
    )
}

fn tell(found: Found) -> String {
    match found {
        Found { keys: 0, freed: 0, .. } => "none".into(),
        Found {
            keys, is_closed: true, ..
        } => format!("{keys} keys, closed in order"),
        Found { keys, freed, .. } => {
            format!("{keys} keys, found after a kill; {freed} objects of what was being done are freed")
        }
    }
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
