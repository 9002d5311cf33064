//! Opening, checking and copying the database that settings mean.

use crate::config::{ARCHIVE_LAG, DataOptions, Memory, Role, RunOptions, Settings, StorageSettings};
use crate::remote_memory::Label;
use crate::{log, pooled, regions, remote_memory};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_engine::{Claim, Engine, EngineOptions, Result};
use cenote_fabric::Origin;
use cenote_fabric::message::tcp::Tcp;
use cenote_storage::branch::{self, Parent};
use cenote_storage::nodes::StorageNodes;
use cenote_storage_node::NodesClient;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// How long a reader waits for any storage node, before a statement is told.
const READER_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Opens the database, making it if it is new.
///
/// # Errors
/// The engine's: the directory or region is in use, belongs to another database, or is damaged.
pub fn open(settings: &Settings) -> Result<Arc<Engine>> {
    open_keeping(settings, None)
}

fn open_keeping(settings: &Settings, archive_lag: Option<u64>) -> Result<Arc<Engine>> {
    let mut options = options(settings)?;
    options.archive_lag = options.archive_lag.or(archive_lag);
    options.nodes = settings.storage.as_ref().map(nodes).transpose()?;
    options.parent = match &settings.storage {
        Some(_) => None,
        None => parent(&settings.data)?,
    };
    match settings.role {
        Role::Reader => open_reader(settings),
        Role::Writer | Role::Auto => Engine::open(options),
    }
}

/// Opens the database of storage nodes for reading.
///
/// # Errors
/// As of [`open`]; there is no database, or it is being made.
pub fn open_reader(settings: &Settings) -> Result<Arc<Engine>> {
    let mut options = options(settings)?;
    if let Some(storage) = &settings.storage {
        options.nodes = Some(Arc::new(client(storage)?.with_timeout(READER_TIMEOUT)));
    }
    options.reader = Some(reader_name(settings));
    if let (Memory::Tiered, Some(pool)) = (settings.memory, &settings.pool) {
        options.remote = Some(remote_memory::reach_to_read(pool)?);
    }
    Engine::open(options)
}

/// How a server takes the database of storage nodes, as `client` reaches them, from start `after` and no other.
///
/// # Errors
/// The memory cannot be had.
pub fn writer_after(settings: &Settings, client: &Arc<NodesClient>, after: u64) -> Result<EngineOptions> {
    let mut options = options(settings)?;
    options.nodes = Some(Arc::clone(client) as _);
    if let Some(claim) = &mut options.claim {
        claim.after = Some(after);
        claim.on_lost = Some(Arc::new(|error| restart(&error.to_string())));
    }
    Ok(options)
}

/// This program, as long as it runs.
pub const PROGRAM: &str = "/proc/self/exe";
static IS_ENDING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From here on this process does not begin anew.
pub fn end_for_good() {
    IS_ENDING.store(true, Ordering::SeqCst);
}

/// Nor from the moment at which it is told to end, whatever it does then.
///
/// # Errors
/// Those of the system.
pub fn end_at_signals() -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&IS_ENDING))?;
    }
    Ok(())
}

/// This process begins anew, as the same program with the same arguments: it has lost what it had, and may be a reader.
pub fn restart(why: &str) {
    use std::os::unix::process::CommandExt;
    if IS_ENDING.load(Ordering::SeqCst) {
        log::warn!("{why}: the process ends here");
        std::process::exit(1);
    }
    log::warn!("{why}: this server begins anew");
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    // The program that runs, though another may have its name by now.
    let failed = std::process::Command::new(PROGRAM).arg0(name).args(arguments).exec();
    log::error!("it cannot: {failed}; the process ends here");
    std::process::exit(1);
}

fn options(settings: &Settings) -> Result<EngineOptions> {
    // Absolute: the region names it, and `cenote region list` runs in any directory.
    let data = std::path::absolute(&settings.data).unwrap_or_else(|_| settings.data.clone());
    let mut options = EngineOptions::new(data.clone(), settings.memory.into(), settings.memory_size.bytes());
    let mut claim = Claim::of(settings.host.as_deref().map_or_else(Origin::machine, named));
    claim.on_lost = Some(Arc::new(pooled::end));
    match &settings.pool {
        Some(pool) if settings.memory == Memory::Tiered => {
            let label = match settings.storage {
                Some(_) => Label::OfDatabase,
                None => Label::of_directory(&data)?,
            };
            let remote = remote_memory::reach(pool, label, &data, settings.memory_size, settings.growth)?;
            options = EngineOptions::tiered(data, settings.own_size().bytes(), remote);
        }
        Some(pool) => {
            let taken = pooled::take(pool, settings.host.clone(), &data, settings.memory_size)?;
            (options.region, options.mirror) = (Some(taken.path), taken.mirror);
            options.range = taken.range;
            claim.holding = Some(taken.holding);
            claim.host = taken.origin.unwrap_or(claim.host);
        }
        None => options.region = settings.region.clone(),
    }
    options.pod_regions.clone_from(&settings.pod_regions);
    options.claim = Some(claim);
    options.numa_node = settings.numa_node;
    options.archive_lag = settings.archive.as_ref().map(|archive| archive.lag.bytes());
    options.survive = settings.survive.into();
    let seconds = u64::from(settings.analyze_every);
    options.analyze_every = (seconds > 0).then(|| Nanos::from_secs(seconds));
    Ok(options)
}

/// What people call a server: its host's name and where it listens.
pub fn reader_name(settings: &Settings) -> String {
    let host = settings
        .host
        .clone()
        .unwrap_or_else(|| Origin::machine().name().to_owned());
    let name = format!("{host} {}", settings.listen);
    name[..name.floor_char_boundary(64)].to_owned()
}

/// The storage nodes that settings mean.
///
/// # Errors
/// The secret's file cannot be read.
pub fn client(storage: &StorageSettings) -> cenote_base::Result<NodesClient> {
    let secret = storage.secret_file.as_deref().map(pooled::read_secret).transpose()?;
    let secret = secret.unwrap_or_default();
    Ok(NodesClient::new(
        Arc::new(Tcp),
        &storage.cluster,
        &secret,
        &storage.nodes,
    ))
}

/// The same, as what a database asks.
///
/// # Errors
/// As there.
pub fn nodes(storage: &StorageSettings) -> Result<Arc<dyn StorageNodes>> {
    Ok(Arc::new(client(storage)?))
}

/// The storage nodes with which a data directory shares pages, if it has a branch.
///
/// # Errors
/// The file that says so is damaged; the secret's file cannot be read.
pub fn parent(data: &Path) -> Result<Option<Arc<dyn StorageNodes>>> {
    let Some(parent) = branch::parent(data)? else {
        return Ok(None);
    };
    let client = client(&storage_of(&parent))?.with_timeout(READER_TIMEOUT);
    Ok(Some(Arc::new(client)))
}

/// Where a branch finds them.
pub fn storage_of(parent: &Parent) -> StorageSettings {
    StorageSettings {
        nodes: parent.nodes.clone(),
        cluster: parent.cluster.clone(),
        secret_file: (!parent.secret_file.is_empty()).then(|| parent.secret_file.clone().into()),
    }
}

/// A host that has a name, and no pool that counts its lives: those of its machine do.
fn named(name: &str) -> Origin {
    Origin::host(name, Origin::machine().number())
}

/// Opens the database; an error if there is none. Unless settings ask for something else, memory is taken as it is
/// found: a region as large as it is, so that looking at a database does not cost its warmth; none where there is none.
///
/// # Errors
/// There is no database; otherwise as [`open`].
pub fn open_existing(
    settings: &Settings,
) -> std::result::Result<Arc<Engine>, Box<dyn std::error::Error + Send + Sync>> {
    let is_empty = std::fs::read_dir(&settings.data).map(|mut entries| entries.next().is_none());
    if settings.storage.is_none() && is_empty.unwrap_or(true) {
        let data = settings.data.display();
        return Err(format!(
            "there is no database in {data}; name its directory with --data, or make one with `cenote \
            run --data {data}`"
        )
        .into());
    }
    if let Some(storage) = &settings.storage {
        refuse_beside_a_server(storage)?;
    }
    // The log that is not archived yet is left to the server, whatever this command was told of an archive.
    Ok(open_keeping(&as_found(settings), Some(ARCHIVE_LAG.bytes()))?)
}

/// Recovers the database in a data directory, if it was not shut down, and shuts it down.
///
/// # Errors
/// As of [`open_existing`].
pub fn shut_down(data: &Path) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let settings = Settings::resolve(RunOptions {
        data: DataOptions {
            data: Some(data.to_owned()),
            ..DataOptions::default()
        },
        ..RunOptions::default()
    })?;
    if settings.storage.is_some() {
        let data = data.display();
        return Err(format!("the settings in {data} name storage nodes: the database is there, not in {data}").into());
    }
    if !cenote_storage::control::was_stopped(data)? {
        open_existing(&settings)?.shutdown()?;
        eprintln!(
            "the database in {} was not shut down, and was recovered",
            data.display()
        );
    }
    Ok(())
}

/// To open a database on storage nodes is to take it: a server that has it would end.
fn refuse_beside_a_server(
    storage: &StorageSettings,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client = client(storage)?;
    let name = client.name();
    let owner = client.owner()?;
    if owner.control.is_none() {
        return Err(format!("there is no database on {name}; make one with `cenote run --storage`").into());
    }
    match cenote_storage::control::is_clean(owner.control.as_deref(), &name)? {
        true => Ok(()),
        false => Err(format!(
            "a server has the database on {name}, or did not stop in order: ask it (--connect ADDR:PORT), or start one \
             and stop it"
        )
        .into()),
    }
}

fn as_found(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.analyze_every = 0;
    match regions::length_for(&settings.data) {
        Some(len) if settings.memory == Memory::Cxl && !settings.memory_size_given => {
            settings.memory_size = ByteSize(len)
        }
        None if !settings.memory_given && settings.region.is_none() => settings.memory = Memory::Dram,
        _ => {}
    }
    settings
}

/// Makes a data directory from a backup.
pub fn restore(from: &Path, data: &Path) -> cenote_base::Result<cenote_storage::BackupReport> {
    cenote_storage::restore(from, data)
}
