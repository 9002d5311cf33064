//! `cenote pool space`: a tenant's spaces, which are heaps that many of its processes share.

use super::audit::{self, MANAGER_DEFAULT};
use super::{Failure, print_aligned, say};
use crate::pooled::read_secret;
use cenote_base::units::ByteSize;
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_pool::{PartSummary, SpaceSummary};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// How a tenant finds a pool.
#[derive(Debug, Args)]
pub struct TenantConnect {
    /// Where the manager listens; of several, with commas in between
    #[arg(long, env = "CENOTE_MANAGER", default_value = MANAGER_DEFAULT, value_name = "ADDR:PORT,...")]
    manager: String,
    /// Which tenant of the pool this is
    #[arg(long, env = "CENOTE_TENANT", default_value = DEFAULT_TENANT, value_name = "NAME")]
    tenant: String,
    /// File with the tenant's secret, where the manager asks for one
    #[arg(long, env = "CENOTE_TENANT_SECRET_FILE", value_name = "FILE")]
    tenant_secret_file: Option<PathBuf>,
}

/// How much memory, and where.
#[derive(Debug, Args)]
pub struct Memory {
    /// How much memory it gets
    #[arg(long, value_name = "SIZE")]
    size: ByteSize,
    /// Spread over the memory nodes of these pods alone [default: over all]
    #[arg(long, value_name = "POD", value_delimiter = ',')]
    pods: Option<Vec<String>>,
}

#[derive(Debug, Subcommand)]
pub enum SpaceCommand {
    /// Make a space, its memory spread evenly over memory nodes
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        memory: Memory,
        /// Mirror each of its parts on another memory node: the space survives the loss of one with its memory, and is
        /// used by calls alone
        #[arg(long)]
        mirror: bool,
        #[command(flatten)]
        connect: TenantConnect,
    },
    /// The tenant's spaces, and where they lie
    List(TenantConnect),
    /// Give a space more memory; clients that have it open find it
    Grow {
        /// Its name
        name: String,
        #[command(flatten)]
        memory: Memory,
        #[command(flatten)]
        connect: TenantConnect,
    },
    /// End all processes that have a space open, and free its memory
    Drop {
        /// Its name
        name: String,
        #[command(flatten)]
        connect: TenantConnect,
    },
    /// Have the memory nodes look at all of a space: every extent is free or in use
    Audit {
        /// Its name
        name: String,
        #[command(flatten)]
        connect: TenantConnect,
    },
}

/// Answers a tenant.
///
/// # Errors
/// The manager cannot be reached, or refuses what is asked.
pub fn run(command: SpaceCommand) -> Result<ExitCode, Failure> {
    match command {
        SpaceCommand::Create {
            name,
            memory,
            mirror,
            connect,
        } => {
            let pool = client(&connect)?;
            create(&pool, &name, memory.size, memory.pods.as_deref(), mirror)?;
            tell(&pool, &name)
        }
        SpaceCommand::Grow { name, memory, connect } => {
            let pool = client(&connect)?;
            pool.grow_space(&name, memory.size.bytes(), memory.pods.as_deref())?;
            tell(&pool, &name)
        }
        SpaceCommand::List(connect) => {
            print_aligned(&rows(&client(&connect)?.spaces()?));
            Ok(ExitCode::SUCCESS)
        }
        SpaceCommand::Drop { name, connect } => {
            client(&connect)?.drop_space(&name)?;
            say!("space {name} is being dropped: processes that have it open are ended");
            Ok(ExitCode::SUCCESS)
        }
        SpaceCommand::Audit { name, connect } => Ok(audit::tell(&client(&connect)?.audit_space(&name)?)),
    }
}

fn client(connect: &TenantConnect) -> Result<PoolClient, Failure> {
    client_with(connect, ClientOptions::default())
}

/// A tenant's client, for programs that use spaces directly.
///
/// # Errors
/// The secret cannot be read; the manager cannot be reached or refuses the tenant.
pub fn client_with(connect: &TenantConnect, options: ClientOptions) -> Result<PoolClient, Failure> {
    let secret = connect.tenant_secret_file.as_deref().map(read_secret).transpose()?;
    let credentials = Credentials {
        manager: connect.manager.clone(),
        tenant: connect.tenant.clone(),
        secret: secret.unwrap_or_default(),
    };
    let network: Arc<dyn Network> = Arc::new(Tcp);
    Ok(PoolClient::connect(&network, &credentials, options)?)
}

/// Makes a space, mirrored or not.
///
/// # Errors
/// Those of [`PoolClient::create_space`].
pub fn create(
    pool: &PoolClient,
    name: &str,
    size: ByteSize,
    pods: Option<&[String]>,
    mirror: bool,
) -> cenote_base::Result<()> {
    match mirror {
        true => pool.create_mirrored_space(name, size.bytes(), pods),
        false => pool.create_space(name, size.bytes(), pods),
    }
}

/// Shows a space as it is now.
fn tell(pool: &PoolClient, name: &str) -> Result<ExitCode, Failure> {
    let spaces: Vec<_> = pool.spaces()?.into_iter().filter(|space| space.name == name).collect();
    print_aligned(&rows(&spaces));
    Ok(ExitCode::SUCCESS)
}

/// A table of spaces.
pub fn rows(spaces: &[SpaceSummary]) -> Vec<[String; 5]> {
    let mut rows = vec![["space", "tenant", "size", "state", "parts"].map(String::from)];
    rows.extend(spaces.iter().map(row));
    rows
}

fn row(space: &SpaceSummary) -> [String; 5] {
    let lost = space.lost.iter().map(|number| format!("{number}: LOST"));
    let parts: Vec<String> = space.parts.iter().map(part).chain(lost).collect();
    let mirrored = if space.mirrored { ", mirrored" } else { "" };
    [
        space.name.clone(),
        space.tenant.clone(),
        ByteSize(space.bytes()).to_string(),
        format!("{}{mirrored}", space.phase),
        parts.join(", "),
    ]
}

fn part(part: &PartSummary) -> String {
    let node = if part.connected { "" } else { " (memory node GONE)" };
    format!("{}: {} in {}{node}", part.number, ByteSize(part.bytes), part.pod)
}
