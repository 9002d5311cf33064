//! `cenote proxy`: keeps clients' connections while the servers behind it change.

use super::{Failure, say};
use crate::config::StorageOptions;
use crate::proxy::directory::{Directory, Fixed, servers};
use crate::proxy::members::Members;
use crate::proxy::{self, Options, Reads, Shared, Users};
use crate::{database, log, membership, server};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub struct ProxyArguments {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(
        long,
        env = "CENOTE_PROXY_LISTEN",
        default_value = "127.0.0.1:5432",
        value_name = "ADDR:PORT"
    )]
    listen: String,
    #[command(flatten)]
    storage: StorageOptions,
    /// The servers, where no storage nodes know them: writer=ADDR:PORT,reader=ADDR:PORT,...
    #[arg(long, hide = true, value_name = "SERVERS", conflicts_with_all = ["storage", "servers_file"])]
    servers: Option<String>,
    /// A file that says so, and is read again and again
    #[arg(long, hide = true, value_name = "FILE", conflicts_with = "storage")]
    servers_file: Option<PathBuf>,
    /// Users and passwords, in clear; needed to listen on anything but the loopback interface
    #[arg(long, env = "CENOTE_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Clients at a time
    #[arg(
        long,
        env = "CENOTE_PROXY_MAX_CONNECTIONS",
        default_value_t = 10_000,
        value_name = "N"
    )]
    max_connections: usize,
    /// Sessions of each server
    #[arg(long, env = "CENOTE_PROXY_POOL_SIZE", default_value_t = 100, value_name = "N")]
    pool_size: usize,
    /// Seconds that a statement waits for a session, or for a writer
    #[arg(long, env = "CENOTE_PROXY_WAIT", default_value_t = 30, value_name = "SECONDS")]
    wait: u32,
    /// What reads at readers see: session (a client's own commits), strong (all that was acknowledged), any; writer:
    /// reads go to the writer, too
    #[arg(
        long,
        env = "CENOTE_PROXY_READS",
        default_value = "session",
        value_name = "session|strong|any|writer",
        hide_possible_values = true
    )]
    reads: Reads,
}

/// Runs a proxy until it is told to stop.
///
/// # Errors
/// Arguments that make no sense; the address cannot be had.
pub fn run(arguments: ProxyArguments, started: Instant) -> Result<ExitCode, Failure> {
    let users = arguments.password_file.as_deref().map(Users::read).transpose()?;
    let options = options(&arguments)?;
    warn_of_files(&options);
    let listener = server::bind(&arguments.listen, users.is_some())?;
    let directory = directory(arguments)?;
    let address = listener.local_addr()?;
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let shared = Arc::new(Shared::new(options, directory, users));
    let runtime = proxy::runtime()?;
    let stop = stop_at_signal(signals)?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        say!("ready in {} ms on {address}", started.elapsed().as_millis());
        proxy::serve(listener, shared, stop).await;
        Ok::<_, Failure>(())
    })?;
    runtime.shutdown_timeout(Duration::from_millis(500));
    Ok(ExitCode::SUCCESS)
}

/// Each client has a socket, and each session of a server.
fn warn_of_files(options: &Options) {
    let files = super::run::raise_file_limit().unwrap_or(u64::MAX);
    let needed = (options.max_connections + 4 * options.pool_size) as u64;
    if files < needed {
        log::warn!(
            "this process may open {files} files, and {needed} may be needed: raise the limit (ulimit -n), or lower \
             --max-connections"
        );
    }
}

fn options(arguments: &ProxyArguments) -> Result<Options, Failure> {
    if arguments.pool_size == 0 || arguments.max_connections == 0 {
        return Err("--pool-size and --max-connections are at least 1".into());
    }
    Ok(Options {
        pool_size: arguments.pool_size.min(100_000),
        max_connections: arguments.max_connections,
        wait: Duration::from_secs(arguments.wait.into()),
        reads: arguments.reads,
    })
}

fn directory(arguments: ProxyArguments) -> Result<Arc<dyn Directory>, Failure> {
    match (arguments.servers, arguments.servers_file) {
        (Some(text), _) => Ok(Arc::new(Fixed::new(servers(&text)?))),
        (None, Some(file)) => Ok(Fixed::file(&file)?),
        (None, None) => directory_of(arguments.storage),
    }
}

/// The servers that storage nodes know.
///
/// # Errors
/// None are named; the secret's file cannot be read.
fn directory_of(storage: StorageOptions) -> Result<Arc<dyn Directory>, Failure> {
    match storage.decide()? {
        None => Err("say where the storage nodes are: --storage ADDR:PORT,...".into()),
        Some(storage) => Ok(Members::begin(membership::words(database::client(&storage)?))?),
    }
}

fn stop_at_signal(mut signals: Signals) -> Result<tokio::sync::oneshot::Receiver<()>, Failure> {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.forever().next();
        stop.send(()).ok();
        if signals.forever().next().is_some() {
            std::process::exit(1);
        }
    })?;
    Ok(stopped)
}
