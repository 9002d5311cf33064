//! `cenote manager`, `cenote memory`, `cenote pool`: a memory pool's processes, and what operators ask it.

use super::{Failure, print_aligned, say};
use crate::pooled::read_secret;
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::holder::{Credentials, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::{self, Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::Tenants;
use cenote_pool::{GrantId, GrantView, NodeId, NodeView, Phase, PoolStatus};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const MANAGER_DEFAULT: &str = "127.0.0.1:5440";
const JOIN_PATIENCE: Nanos = Nanos::from_secs(2);
const LEASE_SECONDS: std::ops::RangeInclusive<f64> = 0.5..=3600.0;

#[derive(Debug, Args)]
pub struct ManagerArguments {
    /// Where its book is kept; made if missing
    #[arg(long, env = "CENOTE_POOL_DIR", default_value = "./cenote-pool", value_name = "DIR")]
    dir: PathBuf,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, env = "CENOTE_POOL_LISTEN", default_value = MANAGER_DEFAULT, value_name = "ADDR:PORT")]
    listen: String,
    /// TOML file with tenants, quotas, priorities and secrets; needed to listen on anything but the loopback interface
    #[arg(long, env = "CENOTE_POOL_TENANTS", value_name = "FILE")]
    tenants: Option<PathBuf>,
    /// Seconds that a holder may be silent before it is ended and its memory is taken back [default: 10]
    #[arg(long, env = "CENOTE_POOL_LEASE", value_name = "SECONDS")]
    lease: Option<f64>,
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
    #[command(flatten)]
    connect: PoolConnect,
}

/// How a command finds a pool.
#[derive(Debug, Args)]
pub struct PoolConnect {
    /// Where the manager listens
    #[arg(long, env = "CENOTE_MANAGER", default_value = MANAGER_DEFAULT, value_name = "ADDR:PORT")]
    manager: String,
    /// File with the pool's secret, if its tenants file has one
    #[arg(long, env = "CENOTE_POOL_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Memory nodes, tenants and grants
    Status(PoolConnect),
    /// Compare the manager's book with what memory nodes find: every byte is free or somebody's
    Audit(PoolConnect),
    /// Take a grant away from whoever has it, and free its memory
    Free {
        /// Its number, as `cenote pool status` shows it
        #[arg(value_name = "GRANT")]
        grant: u64,
        #[command(flatten)]
        connect: PoolConnect,
    },
    /// Give up a memory node that will not come back, and what lay there
    Forget {
        /// Its number, as `cenote pool status` shows it
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        connect: PoolConnect,
    },
}

/// Runs a manager until it is told to stop.
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
    let options = ManagerOptions {
        directory: arguments.dir,
        listen: arguments.listen,
        tenants,
        lease: lease(arguments.lease)?,
    };
    let manager = Manager::start(options, &Tcp)?;
    say!(
        "ready: manager of pool {:032x} on {}",
        manager.pool(),
        manager.address()
    );
    signals.forever().next();
    drop(manager);
    Ok(ExitCode::SUCCESS)
}

fn lease(seconds: Option<f64>) -> Result<Nanos, Failure> {
    let Some(seconds) = seconds else {
        return Ok(manager::LEASE_DEFAULT);
    };
    match LEASE_SECONDS.contains(&seconds) {
        true => Ok(Nanos((seconds * 1e9) as u64)),
        false => Err(format!("a lease of {seconds} s: it may be 0.5 to 3600").into()),
    }
}

fn is_loopback(listen: &str) -> bool {
    let addresses = listen.to_socket_addrs();
    addresses.is_ok_and(|mut all| all.all(|address| address.ip().is_loopback()))
}

/// Runs a memory node until it is told to stop.
pub fn memory(arguments: MemoryArguments) -> Result<ExitCode, Failure> {
    let metadata = std::fs::metadata(&arguments.region);
    if metadata.is_ok_and(|found| !found.is_dir()) {
        let region = arguments.region.display();
        return Err(format!(
            "{region} is no directory: each grant is a file of its own there, so that nobody maps another's memory. A devdax device cannot be \
             divided like that: give it to one database (cenote run --region {region}), or mount a file system with DAX on it"
        )
        .into());
    }
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let options = NodeOptions {
        pod: arguments.pod.clone(),
        bytes: arguments.size.bytes(),
        directory: std::path::absolute(&arguments.region)?,
        manager: arguments.connect.manager.clone(),
        secret: secret(&arguments.connect)?,
    };
    let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine))?;
    let (size, pod, region) = (arguments.size, &arguments.pod, arguments.region.display());
    match node.wait_joined(JOIN_PATIENCE) {
        true => say!("ready: {size} of pod {pod} in {region}"),
        false => say!(
            "waiting for the manager at {}: {size} of pod {pod} in {region}",
            arguments.connect.manager
        ),
    }
    signals.forever().next();
    drop(node);
    Ok(ExitCode::SUCCESS)
}

fn secret(connect: &PoolConnect) -> Result<String, Failure> {
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
pub fn look(command: PoolCommand) -> Result<ExitCode, Failure> {
    match command {
        PoolCommand::Status(connect) => {
            show(&operator(&connect)?.status()?);
            Ok(ExitCode::SUCCESS)
        }
        PoolCommand::Audit(connect) => audit(&operator(&connect)?),
        PoolCommand::Free { grant, connect } => {
            operator(&connect)?.free(GrantId(grant))?;
            say!("grant {grant} is being freed: its holder is ended, if there is one");
            Ok(ExitCode::SUCCESS)
        }
        PoolCommand::Forget { node, connect } => {
            let number =
                u64::from_str_radix(&node, 16).map_err(|_| format!("\"{node}\" is no number of a memory node"))?;
            operator(&connect)?.forget(NodeId(number))?;
            say!("memory node {node} is forgotten, with its grants");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn audit(operator: &Operator) -> Result<ExitCode, Failure> {
    let report = operator.audit()?;
    report.summary.iter().for_each(|line| say!("{line}"));
    report.problems.iter().for_each(|line| say!("PROBLEM  {line}"));
    say!("{} problems", report.problems.len());
    Ok(match report.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
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
    let mut rows = vec![["grant", "tenant", "size", "pod", "state", "holder", "what"].map(String::from)];
    rows.extend(status.grants.iter().map(grant_row));
    print_aligned(&rows);
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
    [
        grant.id.to_string(),
        grant.tenant.clone(),
        ByteSize(grant.bytes).to_string(),
        grant.pod.clone(),
        state,
        grant.epoch.to_string(),
        format!("{} {}", grant.description, grant.label),
    ]
}
