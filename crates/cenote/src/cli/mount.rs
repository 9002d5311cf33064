//! `cenote mount` and `cenote fs`: a file system in a space.

use super::space::TenantConnect;
use super::{Failure, say};
use crate::calls;
use crate::log;
use crate::mount::{self, Options};
use cenote_base::Error;
use cenote_base::units::ByteSize;
use cenote_fabric::{RegionOptions, is_blank};
use cenote_fs::{FileSystem, Owner, Report};
use cenote_pool::client::ClientOptions;
use cenote_pool::host::{Host, Machine};
use cenote_space::{Neighbour, Service, Space, SpaceOptions};
use clap::{Args, Subcommand};
use rustix::process::{getgid, getuid};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE_DEFAULT: ByteSize = ByteSize::gib(1);
const SIZE_MIN: ByteSize = ByteSize::mib(32);
/// How long a keeper that has the region may take until it listens.
const KEEPER_TIME_MAX: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(20);
const THREADS_MAX: usize = 64;

#[derive(Debug, Args)]
pub struct MountArguments {
    /// Where: a directory that exists
    #[arg(value_name = "DIR")]
    at: PathBuf,
    /// The region that holds the file system: a file in shared memory; made if it is not there
    #[arg(
        long,
        env = "CENOTE_FS_REGION",
        value_name = "PATH",
        required_unless_present = "space"
    )]
    region: Option<PathBuf>,
    /// Bytes of memory, if the region is made now [default: 1GiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "space")]
    size: Option<ByteSize>,
    /// The space of a pool that holds the file system, on any of its memory nodes
    #[arg(long, value_name = "NAME", conflicts_with = "region")]
    space: Option<String>,
    /// Make a file system in the space, which holds nothing; one mount does that
    #[arg(long, requires = "space")]
    make: bool,
    /// The pod that this mount is in, if memory of others on this machine is to be far [default: all of this machine is
    /// near]
    #[arg(long, env = "CENOTE_POD", value_name = "POD", requires = "space")]
    pod: Option<String>,
    #[command(flatten)]
    connect: TenantConnect,
    /// Nothing can be changed through this mount
    #[arg(long)]
    read_only: bool,
    /// Other users may use it, as the rights of files allow (needs `user_allow_other` in /etc/fuse.conf, unless root
    /// mounts)
    #[arg(long)]
    allow_other: bool,
    /// Threads that answer the kernel [default: one a core, 2 at least and 8 at most]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Verify a file system: every directory, file and block, and every object of the space
    Check {
        /// The region that holds it; while it is mounted, this is one more process that uses it
        #[arg(long, value_name = "PATH", required_unless_present = "space")]
        region: Option<PathBuf>,
        /// The space of a pool that holds it, all of whose memory nodes are there
        #[arg(long, value_name = "NAME", conflicts_with = "region")]
        space: Option<String>,
        #[command(flatten)]
        connect: TenantConnect,
        /// Free what killed processes have left, if it is mounted nowhere
        #[arg(long)]
        free: bool,
    },
}

/// A space of this machine, kept by this process, or by another one that has it open; or one of a pool.
struct Opened {
    space: Space,
    /// Where it is, for people.
    name: String,
    /// Others reach the keeper by it.
    service: Option<Service>,
    /// A file system is made here if there is none.
    makes: bool,
    /// Whether it is used by calls, and survives the loss of a memory node.
    is_mirrored: bool,
}

/// Mounts, and serves until it is unmounted.
///
/// # Errors
/// The arguments contradict each other; the memory cannot be opened; the system does not mount it.
pub fn run(arguments: &MountArguments, started: Instant) -> Result<ExitCode, Failure> {
    check(arguments)?;
    let opened = match (&arguments.region, &arguments.space) {
        (_, Some(name)) => open_in_pool(name, arguments)?,
        (Some(region), None) => open(region, arguments.size)?,
        (None, None) => {
            return Err("no file system is named: give --region FILE, or --space NAME for one in a pool".into());
        }
    };
    let opened = Arc::new(opened);
    let files = mount(&opened)?;
    let signals = Signals::new([SIGTERM, SIGINT])?;
    say!("memory     {}", describe(&opened));
    let options = Options {
        read_only: arguments.read_only,
        allow_other: arguments.allow_other,
        threads: arguments.threads.unwrap_or_else(threads),
        name: opened.name.clone(),
    };
    let ready = || {
        say!(
            "ready in {} ms at {}",
            started.elapsed().as_millis(),
            arguments.at.display()
        )
    };
    let kept = Arc::clone(&opened);
    let leave = move || wait_for_others(&kept);
    mount::run(files, &arguments.at, &options, signals, ready, leave)?;
    wait_for_others(&opened);
    log::info!("unmounted");
    Ok(ExitCode::SUCCESS)
}

fn check(arguments: &MountArguments) -> Result<(), Failure> {
    if !arguments.at.is_dir() {
        return Err(format!("{} is no directory: make it first", arguments.at.display()).into());
    }
    if arguments.size.is_some_and(|size| size < SIZE_MIN) {
        return Err(format!("--size is too small for a file system: give at least {SIZE_MIN}").into());
    }
    match arguments.threads {
        Some(0) | Some(THREADS_MAX..) => {
            Err(format!("--threads is out of range: give 1 to {}", THREADS_MAX - 1).into())
        }
        _ => Ok(()),
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8))
}

fn describe(opened: &Opened) -> String {
    if opened.is_mirrored {
        let (name, parts) = (&opened.name, opened.space.far_parts().count());
        return format!(
            "{name}, mirrored, used by calls (parts: {parts}); it survives killed processes, and the loss of a memory \
             node while its mirrors are whole"
        );
    }
    let length = ByteSize(opened.space.parts().map(|part| part.region().len()).sum());
    let far = match opened.space.far_parts().count() {
        0 => String::new(),
        1 => ", and 1 part of another pod".into(),
        n => format!(", and {n} parts of other pods"),
    };
    let name = &opened.name;
    format!("{length} in {name}{far}; it survives killed processes, not a lost host")
}

/// A space of a pool. Its memory nodes keep it: mounts begin and end in any order.
fn open_in_pool(name: &str, arguments: &MountArguments) -> Result<Opened, Failure> {
    let options = ClientOptions {
        pod: arguments.pod.clone(),
        callers: calls::callers().ok(),
        on_revoked: Arc::new(|error| {
            log::error!("{error}");
            mount::end();
        }),
        ..ClientOptions::default()
    };
    let pool = super::space::client_with(&arguments.connect, options)?;
    let space = pool.open_space(name)?;
    let is_mirrored = pool.spaces()?.iter().any(|known| known.name == name && known.mirrored);
    Ok(Opened {
        space,
        name: format!("space {name}"),
        service: None,
        makes: arguments.make,
        is_mirrored,
    })
}

/// For a look: of what cannot be reached nothing could be said.
fn open_all_in_pool(name: &str, connect: &TenantConnect) -> Result<Opened, Failure> {
    let options = ClientOptions {
        callers: calls::callers().ok(),
        ..ClientOptions::default()
    };
    let pool = super::space::client_with(connect, options)?;
    let space = pool.open_whole_space(name)?;
    let lost = pool.spaces()?.into_iter().filter(|known| known.name == name);
    lost.flat_map(|known| known.lost)
        .for_each(|part| say!("part {part} of the space is lost: what lay there is among the problems"));
    Ok(Opened {
        space,
        name: format!("space {name}"),
        service: None,
        makes: false,
        is_mirrored: false,
    })
}

/// What is found at a region.
enum Found {
    /// Another process keeps it.
    Kept(Neighbour),
    /// No process had it: this one has it now.
    Free(Space),
}

/// For a mount: the region is made if it is not there, and others can join.
fn open(region: &Path, size: Option<ByteSize>) -> Result<Opened, Failure> {
    let look = || match !region.exists() || is_blank(region) {
        true => make(region, size),
        false => find(region),
    };
    match patiently(region, look)? {
        Found::Kept(keeper) => join(region, keeper),
        Found::Free(space) => keep(space, region),
    }
}

/// For a look: nothing is made, and no process can join, since it would lose the memory when the look ends.
fn open_to_look(region: &Path) -> Result<Opened, Failure> {
    if !region.exists() {
        return Err(format!(
            "the region {} does not exist: name another with --region",
            region.display()
        )
        .into());
    }
    match patiently(region, || find(region))? {
        Found::Kept(keeper) => join(region, keeper),
        Found::Free(space) => Ok(Opened {
            space,
            name: region.display().to_string(),
            service: None,
            makes: false,
            is_mirrored: false,
        }),
    }
}

/// Looks again while a process has the region and does not listen: that process begins or ends.
fn patiently(region: &Path, look: impl Fn() -> Result<Option<Found>, Failure>) -> Result<Found, Failure> {
    let until = Instant::now() + KEEPER_TIME_MAX;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > until {
            let (path, users) = (region.display(), Machine.holders(region)?.join(", "));
            let text = format!("{path} is in use by {users}, and no process listens at {path}.keeper");
            return Err(format!("{text}: end the process that uses it, and mount again").into());
        }
        std::thread::sleep(TURN);
    }
}

fn make(region: &Path, size: Option<ByteSize>) -> Result<Option<Found>, Failure> {
    let options = SpaceOptions {
        bytes: size.unwrap_or(SIZE_DEFAULT).bytes(),
        region: RegionOptions::default(),
        ..SpaceOptions::default()
    };
    match Space::create(region, &options) {
        Ok(space) => Ok(Some(Found::Free(space))),
        // Another process makes it at this moment, or has just done so.
        Err(Error::Busy(_)) => Ok(None),
        Err(_) if region.exists() && !is_blank(region) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn find(region: &Path) -> Result<Option<Found>, Failure> {
    // Without a keeper no process has the memory mapped for long: one whose keeper was killed ends by itself. If no
    // process has this file, a listener keeps another one: this file was put in the place of the kept one.
    if Machine.holders(region)?.is_empty() {
        return match Space::open(region, RegionOptions::default()) {
            Err(Error::Busy(_)) => Ok(None),
            opened => Ok(Some(Found::Free(opened?))),
        };
    }
    Ok(Neighbour::connect(&socket(region)).ok().map(Found::Kept))
}

/// Where the keeper of a region listens.
fn socket(region: &Path) -> PathBuf {
    let mut path = region.as_os_str().to_owned();
    path.push(".keeper");
    path.into()
}

fn keep(space: Space, region: &Path) -> Result<Opened, Failure> {
    let keeper = space.keeper(1).ok_or("the space has no part 1")?;
    let service = Some(Service::start(&socket(region), keeper)?);
    Ok(Opened {
        space,
        name: region.display().to_string(),
        service,
        makes: true,
        is_mirrored: false,
    })
}

/// Joins what another process keeps. This process ends with its keeper, which hands out memory and says which processes
/// live.
fn join(region: &Path, keeper: Neighbour) -> Result<Opened, Failure> {
    let mut line = UnixStream::connect(socket(region))?;
    let space = Space::join(region, RegionOptions::default(), Arc::new(keeper))?;
    std::thread::spawn(move || {
        // Nothing is said on it; it ends with its other side.
        let _ = line.read(&mut [0]);
        log::error!("the process that keeps the memory is gone: mount again");
        mount::end();
    });
    Ok(Opened {
        space,
        name: format!("{}, kept by another process", region.display()),
        service: None,
        makes: false,
        is_mirrored: false,
    })
}

/// A process that [makes](Opened::makes) a missing file system makes it; all others wait for it.
fn mount(opened: &Opened) -> Result<FileSystem, Failure> {
    if opened.makes {
        let owner = Owner {
            user: getuid().as_raw(),
            group: getgid().as_raw(),
        };
        return Ok(FileSystem::mount_or_make(&opened.space, owner)?);
    }
    let until = Instant::now() + KEEPER_TIME_MAX;
    while opened.space.root()?.is_null() && Instant::now() < until {
        std::thread::sleep(TURN);
    }
    Ok(FileSystem::mount(&opened.space)?)
}

/// The keeper of the space ends last, unless another signal comes.
fn wait_for_others(opened: &Opened) {
    let Some(service) = &opened.service else { return };
    let Ok(mut signals) = Signals::new([SIGTERM, SIGINT]) else {
        return;
    };
    if service.connections() > 0 {
        log::info!("unmounted here; the memory is kept for other processes");
    }
    while service.connections() > 0 && signals.pending().next().is_none() {
        std::thread::sleep(TURN);
    }
}

/// Runs a command about file systems.
///
/// # Errors
/// The memory cannot be opened.
pub fn look(command: FsCommand) -> Result<ExitCode, Failure> {
    let FsCommand::Check {
        region,
        space,
        connect,
        free,
    } = command;
    let opened = match (region, space) {
        (_, Some(name)) => open_all_in_pool(&name, &connect)?,
        (Some(region), None) => open_to_look(&region)?,
        (None, None) => {
            return Err("no file system is named: give --region FILE, or --space NAME for one in a pool".into());
        }
    };
    let files = FileSystem::mount(&opened.space)?;
    let report = files.check(free)?;
    tell(&report, free);
    match opened.space.far_parts().count() {
        0 => {}
        far => say!("{far} parts lie on other machines: what nothing refers to there is found by a check there"),
    }
    let problems = opened.space.audit()?;
    problems.iter().for_each(|problem| say!("problem: {problem}"));
    match report.problems.is_empty() && problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

fn tell(report: &Report, free: bool) {
    let Report {
        directories,
        files,
        others,
        orphans,
        ..
    } = report;
    say!(
        "{directories} directories, {files} files of {}, {others} others, {orphans} open without a name",
        ByteSize(report.bytes)
    );
    let (objects, bytes) = (report.unreferenced, ByteSize(report.unreferenced_bytes));
    match (objects, report.is_alone) {
        (0, _) => say!("nothing lies there that nothing refers to"),
        (_, false) => say!("{objects} objects ({bytes}) that nothing refers to; others use it, and may be about to"),
        _ if report.are_freed => say!("freed {objects} objects ({bytes}) that killed processes have left"),
        _ if free => say!("{objects} objects ({bytes}) that nothing refers to are kept, because of the problems"),
        _ => say!("{objects} objects ({bytes}) that killed processes have left: `--free` frees them"),
    }
    report.problems.iter().for_each(|problem| say!("problem: {problem}"));
    if report.problems.is_empty() {
        say!("no problems");
    }
}
