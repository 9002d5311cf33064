//! `cenote host`: the agent of a host, at a device that the pod's hosts share.

use super::audit::NOT_APART;
use super::pool::{PoolConnect, secret};
use super::{Failure, say};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::agent::{AgentOptions, HostAgent, Making};
use cenote_pool::host::Machine;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const JOIN_TIMEOUT: Nanos = Nanos::from_secs(2);

#[derive(Debug, Args)]
pub struct HostArguments {
    /// The pod whose hosts share the device
    #[arg(long, env = "CENOTE_POD", value_name = "POD")]
    pod: String,
    /// A file in shared memory or on an fsdax file system, or a devdax device
    #[arg(long, env = "CENOTE_POOL_DEVICE", value_name = "PATH")]
    device: PathBuf,
    /// This host's name in the pool [default: the machine's]
    #[arg(long, env = "CENOTE_HOST", value_name = "NAME")]
    name: Option<String>,
    /// Make the device's file, of this size, if there is none
    #[arg(long, env = "CENOTE_POOL_SIZE", value_name = "SIZE", conflicts_with = "format")]
    size: Option<ByteSize>,
    /// Write an empty directory on a device that holds nothing: once, on one host
    #[arg(long)]
    format: bool,
    #[command(flatten)]
    connect: PoolConnect,
}

/// Runs an agent until it is told to stop.
///
/// # Errors
/// The device cannot be used, or has no directory of the pool.
pub fn run(arguments: HostArguments) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let making = match (arguments.format, arguments.size) {
        (true, _) => Making::Format,
        (false, Some(size)) => Making::File(size.bytes()),
        (false, None) => Making::None,
    };
    let options = AgentOptions {
        pod: arguments.pod.clone(),
        host: arguments.name.clone(),
        device: std::path::absolute(&arguments.device)?,
        making,
        manager: arguments.connect.manager.clone(),
        secret: secret(&arguments.connect)?,
    };
    let agent = HostAgent::start(options, Arc::new(Tcp), Box::new(Machine))?;
    let joined = agent.wait_joined(JOIN_TIMEOUT);
    let (size, name, pod) = (ByteSize(agent.bytes()), agent.host(), &arguments.pod);
    let (device, epoch) = (arguments.device.display(), agent.epoch());
    match joined {
        true => say!("ready: host {name} of pod {pod}, epoch {epoch}, {size} on {device}"),
        false => say!(
            "waiting for the manager at {}: host {name} of pod {pod}, {size} on {device}",
            arguments.connect.manager
        ),
    }
    say!("{device}: {NOT_APART}");
    signals.forever().next();
    Ok(ExitCode::SUCCESS)
}
