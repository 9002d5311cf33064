//! `cenote storage`: a storage node from its first line to its last, and what it is asked.

use super::archive::local_time;
use super::{Failure, print_aligned, say};
use crate::archiving::now;
use crate::config::{STORAGE_CLUSTER_DEFAULT, StorageOptions};
use crate::database;
use crate::pooled::read_secret;
use cenote_base::units::ByteSize;
use cenote_engine::Claim;
use cenote_fabric::message::tcp::Tcp;
use cenote_storage::nodes::StorageNodes;
use cenote_storage_node::{NodeOptions, Status, StorageNode};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether the node has failed.
const TURN: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct StorageArguments {
    #[command(subcommand)]
    command: Option<StorageCommand>,
    #[command(flatten)]
    node: NodeArguments,
}

#[derive(Debug, Subcommand)]
pub enum StorageCommand {
    /// Show storage nodes: which leads, how far each has come, what its disk holds
    Status(StorageOptions),
    /// Let a node that lost its directory, and was started with a new one, take its place again
    Replace(ReplaceArguments),
    /// Keep the database as it is now under a name: pages that change later are kept as they were
    Snapshot(SnapshotArguments),
    /// List snapshots, their branches, and which nodes have them
    Snapshots(StorageOptions),
    /// Drop a snapshot, and what only it needs
    DropSnapshot(DropArguments),
    /// Put a copy of the database in a data directory on nodes that have none; it has to be stopped, and stays as it is
    Load(LoadArguments),
}

#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Data directory of the database
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
pub struct SnapshotArguments {
    /// What it is called
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
pub struct DropArguments {
    #[command(flatten)]
    snapshot: SnapshotArguments,
    /// Also where it has branches: what they have not changed is lost
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub struct ReplaceArguments {
    /// The node's number
    #[arg(long, value_name = "N")]
    node: u64,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
pub struct NodeArguments {
    /// This node's number, one of those of --nodes
    #[arg(long, env = "CENOTE_STORAGE_NODE", value_name = "N")]
    node: Option<u64>,
    /// All nodes of the cluster, this one too: 1, 3, 5 or 7 of them; the same for each, for good
    #[arg(long, env = "CENOTE_STORAGE_NODES", value_name = "N=ADDR:PORT,...")]
    nodes: Option<String>,
    /// Where it keeps log and pages; made if missing
    #[arg(
        long,
        env = "CENOTE_STORAGE_DIR",
        default_value = "./cenote-storage",
        value_name = "DIR"
    )]
    dir: PathBuf,
    /// The cluster's name: nodes and servers of another are refused
    #[arg(long, env = "CENOTE_STORAGE_CLUSTER", default_value = STORAGE_CLUSTER_DEFAULT, value_name = "NAME")]
    storage_cluster: String,
    /// Address and port to listen on, where it is not the one in --nodes
    #[arg(long, env = "CENOTE_STORAGE_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// File with a secret that nodes and servers have to know; needed to listen on anything but the loopback interface
    #[arg(long, env = "CENOTE_STORAGE_SECRET_FILE", value_name = "FILE")]
    storage_secret_file: Option<PathBuf>,
    /// Bytes of redo that it keeps in memory before pages on disk have it
    #[arg(long, env = "CENOTE_STORAGE_MEMORY", default_value_t = ByteSize::mib(256), value_name = "SIZE")]
    memory_size: ByteSize,
    /// Bytes of the log that it keeps, though its pages have them, for nodes that were away
    #[arg(long, env = "CENOTE_STORAGE_LOG", default_value_t = ByteSize::gib(1), value_name = "SIZE")]
    log_size: ByteSize,
}

/// Runs a storage node until it is told to stop, or shows nodes.
///
/// # Errors
/// Arguments that make no sense; those of [`StorageNode::start`].
pub fn run(arguments: StorageArguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Some(StorageCommand::Status(options)) => status(options),
        Some(StorageCommand::Replace(arguments)) => replace(arguments),
        Some(StorageCommand::Snapshot(arguments)) => snapshot(arguments),
        Some(StorageCommand::Snapshots(options)) => snapshots(options),
        Some(StorageCommand::DropSnapshot(arguments)) => drop_snapshot(arguments),
        Some(StorageCommand::Load(arguments)) => load(arguments),
        None => serve(&arguments.node),
    }
}

fn serve(arguments: &NodeArguments) -> Result<ExitCode, Failure> {
    let options = options(arguments)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (number, count) = (options.number, options.nodes.len());
    let dir = options.dir.display().to_string();
    let node = StorageNode::start(options, Arc::new(Tcp))?;
    let address = node.address();
    say!("ready: storage node {number} of {count} in {dir}, on {address}");
    loop {
        if signals.pending().next().is_some() {
            node.stop();
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(error) = node.failure() {
            return Err(format!("storage node {number}: {error}").into());
        }
        std::thread::sleep(TURN);
    }
}

fn options(arguments: &NodeArguments) -> Result<NodeOptions, Failure> {
    let (Some(number), Some(nodes)) = (arguments.node, &arguments.nodes) else {
        return Err("say which node this is, and where all of them are: --node N --nodes N=ADDR:PORT,...".into());
    };
    let nodes = nodes_of(nodes)?;
    let own = nodes
        .get(&number)
        .ok_or_else(|| format!("node {number} is none of --nodes"))?;
    let listen = arguments.listen.as_ref().unwrap_or(own);
    let secret = arguments.storage_secret_file.as_deref().map(read_secret).transpose()?;
    if secret.is_none() && !is_loopback(listen)? {
        return Err(format!(
            "{listen} can be reached by other machines: give every node and server a secret with --storage-secret-file"
        )
        .into());
    }
    let dir = std::path::absolute(&arguments.dir)?;
    let mut options = NodeOptions::new(dir, &arguments.storage_cluster, number, nodes.clone());
    options.secret = secret.unwrap_or_default();
    options.listen = arguments.listen.clone();
    options.memory = usize::try_from(arguments.memory_size.bytes())?.max(1 << 20);
    options.log_kept = arguments.log_size.bytes();
    Ok(options)
}

fn nodes_of(text: &str) -> Result<BTreeMap<u64, String>, Failure> {
    let mut nodes = BTreeMap::new();
    for part in text.split(',') {
        let node = part
            .trim()
            .split_once('=')
            .and_then(|(number, address)| Some((number.parse().ok()?, address)));
        let Some((number, address)) = node.filter(|(_, address)| address.contains(':')) else {
            return Err(format!("--nodes {text}: it is N=ADDR:PORT of each node, with commas in between").into());
        };
        if nodes.insert(number, address.to_owned()).is_some() {
            return Err(format!("--nodes {text}: node {number} is there twice").into());
        }
    }
    Ok(nodes)
}

fn is_loopback(address: &str) -> Result<bool, Failure> {
    let mut found = address
        .to_socket_addrs()
        .map_err(|error| format!("\"{address}\" is no ADDR:PORT: {error}"))?;
    Ok(found.all(|address| address.ip().is_loopback()))
}

fn snapshot(arguments: SnapshotArguments) -> Result<ExitCode, Failure> {
    let client = database::client(&arguments.storage.required()?)?;
    let owner = client.owner()?;
    cenote_storage::control::refuse_filling(owner.control.as_deref(), &client.name())?;
    let snapshot = client.make_snapshot(&arguments.name, now())?;
    say!(
        "snapshot \"{}\" is the database as of {} of its log",
        snapshot.name,
        snapshot.end
    );
    Ok(ExitCode::SUCCESS)
}

fn drop_snapshot(arguments: DropArguments) -> Result<ExitCode, Failure> {
    let name = arguments.snapshot.name;
    let client = database::client(&arguments.snapshot.storage.required()?)?;
    client.drop_snapshot(&name, arguments.force)?;
    say!("snapshot \"{name}\" is dropped");
    Ok(ExitCode::SUCCESS)
}

fn snapshots(options: StorageOptions) -> Result<ExitCode, Failure> {
    let client = database::client(&options.required()?)?;
    let there = client.snapshots()?;
    let statuses = client.statuses();
    let all: Vec<Status> = statuses.into_values().filter_map(Result::ok).collect();
    let mut rows = vec![
        ["name", "made", "as of", "nodes", "branches"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for snapshot in there {
        let with = all.iter().filter(|status| status.snapshots.contains(&snapshot.number));
        let nodes: Vec<String> = with.map(|status| status.node.to_string()).collect();
        let branches: Vec<&str> = snapshot.branches.values().map(String::as_str).collect();
        rows.push(vec![
            snapshot.name,
            local_time(snapshot.made),
            snapshot.end.to_string(),
            nodes.join(", "),
            branches.join(", "),
        ]);
    }
    print_aligned(&rows);
    let bytes = all.iter().map(|status| status.snapshot_bytes).max().unwrap_or(0);
    say!("they take {} on a node, beside the pages", ByteSize(bytes));
    Ok(ExitCode::SUCCESS)
}

fn status(options: StorageOptions) -> Result<ExitCode, Failure> {
    let storage = options.required()?;
    let found = database::client(&storage)?.statuses();
    let head = [
        "address",
        "node",
        "role",
        "term",
        "log ends",
        "pages up to",
        "log",
        "pages",
        "pending",
        "lacks",
        "free",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let all: Vec<Status> = found.values().filter_map(|status| status.clone().ok()).collect();
    let answering = found
        .iter()
        .filter_map(|(address, status)| Some((address, status.as_ref().ok()?)));
    rows.extend(answering.map(|(address, status)| row(address, status, &all)));
    print_aligned(&rows);
    let silent = found
        .iter()
        .filter_map(|(address, status)| Some((address, status.as_ref().err()?)));
    silent.for_each(|(address, error)| say!("  {address} does not answer: {error}"));
    // A majority of the cluster has to be there.
    Ok(match 2 * all.len() > found.len() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn replace(arguments: ReplaceArguments) -> Result<ExitCode, Failure> {
    let storage = arguments.storage.required()?;
    let number = arguments.node;
    database::client(&storage)?.replace(number)?;
    say!("node {number} is let in with the directory that it has now, and takes what it lacks from the others");
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: LoadArguments) -> Result<ExitCode, Failure> {
    let storage = arguments.storage.required()?;
    let data = &arguments.data;
    database::shut_down(data)?;
    let nodes = database::nodes(&storage)?;
    say!("copying the database in {} to {}", data.display(), nodes.name());
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} pages  {eta} left")?;
    let bar = ProgressBar::new(0).with_style(style);
    let tell = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let parent = database::parent(data)?;
    let report = cenote_storage::load(data, parent.as_ref(), &nodes, &Claim::machine(), &tell)?;
    bar.finish_and_clear();
    say!(
        "{} have it: {} pages in {} spaces, {} of redo; start it with: cenote run --storage {}",
        nodes.name(),
        report.pages,
        report.spaces,
        ByteSize(report.log_bytes),
        storage.nodes.join(",")
    );
    Ok(ExitCode::SUCCESS)
}

fn row(address: &str, status: &Status, all: &[Status]) -> Vec<String> {
    let role = match status.leader {
        0 => "no leader",
        leader if leader == status.node => "leader",
        _ => "follower",
    };
    let size = |bytes| ByteSize(bytes).to_string();
    let free = match status.is_full {
        true => format!("{} (nearly full)", size(status.free_bytes)),
        false => size(status.free_bytes),
    };
    let lacks = match status.lacking_pages {
        _ if status.lacks_log(all) => "log, pages".to_owned(),
        0 => "nothing".to_owned(),
        pages => size(pages.saturating_mul(cenote_base::PAGE_SIZE as u64)),
    };
    vec![
        address.to_owned(),
        status.node.to_string(),
        role.to_owned(),
        status.term.to_string(),
        status.log_end.to_string(),
        status.ingested.to_string(),
        size(status.log_bytes),
        size(status.page_bytes),
        size(status.pending_bytes),
        lacks,
        free,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_once_each() {
        let nodes = nodes_of("1=a:1, 2=b:2,3=c:3").expect("nodes");
        assert_eq!(nodes.len(), 3);
        assert_eq!(nodes[&2], "b:2");
        for wrong in ["a:1", "1=a:1,1=b:2", "x=a:1", "1=a", ""] {
            assert!(nodes_of(wrong).is_err(), "{wrong}");
        }
        assert!(is_loopback("127.0.0.1:1").expect("an address"));
        assert!(!is_loopback("0.0.0.0:1").expect("an address"));
    }
}
