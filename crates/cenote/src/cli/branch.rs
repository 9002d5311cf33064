//! `cenote branch`: databases that begin as a snapshot of one on storage nodes, and share its pages.

use super::archive::local_time;
use super::{Failure, print_aligned, say};
use crate::archiving::now;
use crate::config::{StorageOptions, StorageSettings};
use crate::database;
use cenote_base::units::ByteSize;
use cenote_storage::branch::{self, Held, Parent};
use cenote_storage::nodes::{SpaceExtent, StorageNodes};
use cenote_storage_node::{NodesClient, Snapshot, check_name};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum BranchCommand {
    /// Make one, of a snapshot or of the database as it is now: nothing is copied, `cenote run --data DIR` serves it
    Create(CreateArguments),
    /// Show where a branch comes from, and how much of it is its own
    Status(DataArguments),
    /// Remove a branch: its own pages, and its hold on the snapshot
    Drop(DropArguments),
    /// The storage nodes that it shares pages with have other addresses now
    Move(MoveArguments),
}

#[derive(Debug, Args)]
pub struct DataArguments {
    /// Data directory of the branch
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

#[derive(Debug, Args)]
pub struct CreateArguments {
    #[command(flatten)]
    data: DataArguments,
    /// The snapshot that it begins with (`cenote storage snapshots`) [default: one that is made now, and goes with it]
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// What people call it [default: the directory's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
pub struct DropArguments {
    #[command(flatten)]
    data: DataArguments,
    /// Also where the storage nodes do not answer: they keep the snapshot then
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub struct MoveArguments {
    #[command(flatten)]
    data: DataArguments,
    #[command(flatten)]
    storage: StorageOptions,
}

/// # Errors
/// Arguments that make no sense; what storage nodes refuse; an I/O error.
pub fn run(command: BranchCommand) -> Result<ExitCode, Failure> {
    match command {
        BranchCommand::Create(arguments) => create(arguments)?,
        BranchCommand::Status(arguments) => status(&arguments.data)?,
        BranchCommand::Drop(arguments) => drop_branch(&arguments.data.data, arguments.force)?,
        BranchCommand::Move(arguments) => relocate(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn create(arguments: CreateArguments) -> Result<(), Failure> {
    let storage = arguments.storage.required()?;
    let data = std::path::absolute(&arguments.data.data)?;
    if std::fs::read_dir(&data).map_or(0, Iterator::count) > 0 {
        return Err(format!("{} is not empty: a branch needs a directory of its own", data.display()).into());
    }
    let client = database::client(&storage)?;
    let name = arguments.name.unwrap_or_else(|| name_of(&data));
    check_name(&name)?;
    let snapshot = match &arguments.snapshot {
        Some(name) => client.snapshot(name)?,
        None => client.make_snapshot(&own_name(&name), now())?,
    };
    let is_own = arguments.snapshot.is_none();
    let made = make(&client, (&data, &name), (&snapshot, is_own), storage);
    if made.is_err() && is_own {
        client.drop_snapshot(&snapshot.name, true).ok();
    }
    let pages = made?;
    say!(
        "{} is a branch of snapshot \"{}\", and shares {} with it; start it with: cenote run --data {}",
        data.display(),
        snapshot.name,
        ByteSize(pages * cenote_base::PAGE_SIZE as u64),
        data.display()
    );
    Ok(())
}

/// Makes the branch; how many pages it shares.
fn make(
    client: &NodesClient,
    (data, name): (&Path, &str),
    (snapshot, is_own): (&Snapshot, bool),
    storage: StorageSettings,
) -> Result<u64, Failure> {
    let spaces = client.snapshot_spaces(snapshot.number)?;
    let (number, place) = (cenote_base::rt::random_u128().max(1), Place::of(storage)?);
    let parent = Parent {
        branch: number,
        database: cenote_storage::control::database_of(&snapshot.control),
        snapshot: snapshot.number,
        name: snapshot.name.clone(),
        is_own,
        end: snapshot.end,
        nodes: place.nodes,
        cluster: place.cluster,
        secret_file: place.secret_file,
    };
    // Before there is a branch: its snapshot cannot go from under it.
    let added = client.add_branch(snapshot.number, number, name);
    let made = added.and_then(|()| branch::make(data, parent, &snapshot.control, &spaces));
    if made.is_err() {
        client.drop_branch(number).ok();
    }
    made?;
    Ok(spaces.iter().map(|space: &SpaceExtent| u64::from(space.pages)).sum())
}

/// Where storage nodes are, as a branch notes it.
struct Place {
    nodes: Vec<String>,
    cluster: String,
    secret_file: String,
}

impl Place {
    fn of(storage: StorageSettings) -> Result<Place, Failure> {
        let secret_file = storage.secret_file.map(std::path::absolute).transpose()?;
        Ok(Place {
            nodes: storage.nodes,
            cluster: storage.cluster,
            secret_file: secret_file.map_or_else(String::new, |path| path.display().to_string()),
        })
    }
}

/// The snapshot that is made for a branch, and goes with it.
fn own_name(branch: &str) -> String {
    let short = &branch[..branch.floor_char_boundary(16)];
    format!("branch {short} of {}", local_time(now()))
}

fn name_of(data: &Path) -> String {
    let name = data.file_name().map_or("branch".into(), |name| name.to_string_lossy());
    let printable: String = name.chars().filter(|c| !c.is_control()).collect();
    printable[..printable.floor_char_boundary(32)].to_owned()
}

fn parent_of(data: &Path) -> Result<Parent, Failure> {
    branch::parent(data)?.ok_or_else(|| format!("{} has no branch", data.display()).into())
}

fn status(data: &Path) -> Result<(), Failure> {
    let parent = parent_of(data)?;
    let client = database::client(&database::storage_of(&parent))?;
    let answer = client
        .snapshots()
        .map(|there| there.into_iter().find(|s| s.number == parent.snapshot));
    let kept = match answer {
        Ok(Some(snapshot)) => format!("kept; made {}", local_time(snapshot.made)),
        Ok(None) => "gone: what was not changed is lost".to_owned(),
        Err(error) => format!("not known: {error}"),
    };
    let shared = client.snapshot_spaces(parent.snapshot).map_or_else(
        |_| "not known".to_owned(),
        |spaces| {
            let pages: u64 = spaces.iter().map(|space| u64::from(space.pages)).sum();
            ByteSize(pages * cenote_base::PAGE_SIZE as u64).to_string()
        },
    );
    let rows = [
        (
            "snapshot",
            format!("\"{}\", number {}, as of {}", parent.name, parent.snapshot, parent.end),
        ),
        ("of database", format!("{:032x}", parent.database)),
        ("on", parent.nodes.join(", ")),
        ("it is", kept),
        ("snapshot's pages", shared),
        ("own pages", ByteSize(own_bytes(data)?).to_string()),
    ];
    print_aligned(&rows.map(|(what, is)| [what.to_owned(), is]));
    Ok(())
}

/// Bytes on disk of the pages that the branch has written.
fn own_bytes(data: &Path) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(data.join("spaces"))? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

fn drop_branch(data: &Path, is_forced: bool) -> Result<(), Failure> {
    let parent = parent_of(data)?;
    let held = Held::take(data)?;
    let client = database::client(&database::storage_of(&parent))?;
    match release(&client, &parent) {
        Err(error) if !is_forced => {
            return Err(format!("{error}; with --force the branch is removed all the same").into());
        }
        Err(error) => say!("the storage nodes keep snapshot \"{}\": {error}", parent.name),
        Ok(()) => {}
    }
    held.remove()?;
    remove_rest(data);
    say!("the branch in {} is removed", data.display());
    Ok(())
}

/// What a server leaves beside the database; and the directory, where nothing of anybody else is in it.
fn remove_rest(data: &Path) {
    for name in ["cenote.address", "lock"] {
        std::fs::remove_file(data.join(name)).ok();
    }
    std::fs::remove_dir(data).ok();
}

/// The branch holds its snapshot no more; the one that was made for it goes.
fn release(client: &NodesClient, parent: &Parent) -> Result<(), Failure> {
    client.drop_branch(parent.branch)?;
    let there = client.snapshots()?.into_iter().find(|s| s.number == parent.snapshot);
    match there {
        Some(snapshot) if parent.is_own && snapshot.branches.is_empty() => {
            Ok(client.drop_snapshot(&snapshot.name, false)?)
        }
        _ => Ok(()),
    }
}

fn relocate(arguments: MoveArguments) -> Result<(), Failure> {
    let data = arguments.data.data;
    let parent = parent_of(&data)?;
    let storage = arguments.storage.required()?;
    let client = database::client(&storage)?;
    let is_there = client
        .snapshots()?
        .iter()
        .any(|s| (s.number, s.end) == (parent.snapshot, parent.end));
    if !is_there {
        return Err(format!("{} have no snapshot \"{}\"", client.name(), parent.name).into());
    }
    let place = Place::of(storage)?;
    Held::take(&data)?.relocate(place.nodes, place.cluster, place.secret_file)?;
    say!(
        "the branch in {} shares pages with {} from its next start on",
        data.display(),
        client.name()
    );
    Ok(())
}
