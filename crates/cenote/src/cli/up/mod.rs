//! `cenote up`: a cluster on one machine, a process for each role; `cenote down` ends it.
//!
//! ```text
//!   cenote up ──▶ plan: which processes, on which ports (DIR/cluster.toml, made once)
//!        └──────▶ supervisor: starts them, starts again what ends, ends them in order (DIR/supervisor.pid, locked)
//! ```
//!
//! In the foreground the supervisor draws the cluster; with `--detach` it is a process of its own.

mod picture;
mod plan;
mod supervise;

use super::{Failure, say};
use crate::database;
use cenote_base::units::ByteSize;
use clap::Args;
use plan::Plan;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use supervise::{Supervised, is_running, running_pid};

/// How long a cluster has to be ready.
const READY: Duration = Duration::from_secs(120);
/// How long it has to end.
const END: Duration = Duration::from_secs(40);
const TURN: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct UpArguments {
    /// Readers beside the writer: any of them takes the database when the writer is lost
    #[arg(long, default_value_t = 2, value_name = "N")]
    readers: usize,
    /// Storage nodes: 1, 3, 5 or 7
    #[arg(long, default_value_t = 3, value_name = "N")]
    storage_nodes: usize,
    /// Memory nodes: their memory is behind that of each server, and all share it; 0: none
    #[arg(long, default_value_t = 0, value_name = "N")]
    memory_nodes: usize,
    /// Let the memory of servers stand for that of a CXL pod: readers read pages in the frames of the writer
    #[arg(long, conflicts_with = "memory_nodes")]
    pod: bool,
    /// Bytes of memory for pages of each server, its own
    #[arg(long, default_value_t = ByteSize::mib(256), value_name = "SIZE")]
    memory_size: ByteSize,
    /// With memory nodes: bytes that all servers share
    #[arg(long, default_value_t = ByteSize::mib(512), value_name = "SIZE")]
    shared_memory: ByteSize,
    /// With memory nodes: bytes up to which that grows while the load needs it [default: it does not grow]
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<ByteSize>,
    /// Seconds without use after which servers pause, all of them in the end: the next client resumes them, and clients
    /// stay connected meanwhile; 0: never
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pause_after: u32,
    /// Directory, or s3://BUCKET/PREFIX, in which the database is archived: `cenote restore` makes it again as it was
    /// at any moment; none: the database is not archived
    #[arg(long, value_name = "DIR|URL")]
    archive: Option<String>,
    /// First of the ports on 127.0.0.1: where clients connect; where it is taken, others are
    #[arg(long, default_value_t = 5433, value_name = "PORT")]
    port: u16,
    #[command(flatten)]
    place: ClusterPlace,
    /// Return when the cluster is ready, and leave it running
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
pub struct DownArguments {
    #[command(flatten)]
    place: ClusterPlace,
    /// Remove its directory afterwards, with all data
    #[arg(long)]
    remove: bool,
}

#[derive(Debug, Args)]
pub struct ClusterPlace {
    /// Directory of the cluster: what each process keeps, and its log
    #[arg(
        long,
        env = "CENOTE_CLUSTER_DIR",
        default_value = "./cenote-cluster",
        value_name = "DIR"
    )]
    dir: PathBuf,
}

/// A directory as it is named from anywhere; a URL as it is.
fn absolute(archive: &str) -> Result<String, Failure> {
    crate::objects::open(archive)?;
    Ok(match archive.contains("://") {
        true => archive.to_owned(),
        false => std::path::absolute(archive)?.display().to_string(),
    })
}

/// Starts a cluster, or goes on with the one that is in the directory.
///
/// # Errors
/// It runs already; it is not ready within two minutes; numbers that make no cluster.
pub fn up(arguments: &UpArguments) -> Result<ExitCode, Failure> {
    let dir = std::path::absolute(&arguments.place.dir)?;
    std::fs::create_dir_all(&dir)?;
    // Before the plan is made: of two that begin at once one makes it.
    let lock = supervise::lock(&dir)?;
    let shape = plan::Shape {
        servers: arguments.readers + 1,
        storage_nodes: arguments.storage_nodes,
        memory_nodes: arguments.memory_nodes,
        pod: arguments.pod,
        memory_size: arguments.memory_size,
        shared_memory: arguments.shared_memory,
        memory_max: arguments.memory_max,
        pause_after: arguments.pause_after,
        archive: arguments.archive.as_deref().map(absolute).transpose()?,
        port: arguments.port,
    };
    let plan = Plan::load_or_make(&dir, &shape)?;
    if plan.shared.is_some() {
        // Else each process would say so by itself, again and again.
        cenote_libfabric::available().map_err(|error| format!("memory nodes are reached by libfabric: {error}"))?;
    }
    match arguments.detach {
        true => {
            drop(lock);
            if !plan.is_of(&shape) {
                let dir = dir.display();
                say!("the cluster in {dir} stays as it was made; others begin in directories of their own");
            }
            detach(&dir, &plan)
        }
        false => supervise(&dir, &plan, lock),
    }
}

fn supervise(dir: &Path, plan: &Plan, lock: File) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    let mut cluster = Supervised::start(dir, plan, lock)?;
    picture::tell_plan(plan, dir);
    let ready = cluster.wait_ready(plan, READY)?;
    if ready {
        picture::tell_ready(plan, begun.elapsed());
        cluster.run(|seen| picture::draw(plan, seen));
    }
    say!("stopping");
    cluster.stop();
    say!("stopped; `cenote up` goes on where this ended");
    Ok(ExitCode::SUCCESS)
}

/// A supervisor of its own, which is waited for until the cluster is ready.
fn detach(dir: &Path, plan: &Plan) -> Result<ExitCode, Failure> {
    if let Some(pid) = running_pid(dir)? {
        return Err(
            format!("this cluster runs already: process {pid} supervises it; end it with `cenote down`").into(),
        );
    }
    let begun = Instant::now();
    let log = std::fs::File::create(dir.join("supervisor.log"))?;
    let mut command = Command::new(database::PROGRAM);
    command.arg0("cenote").arg("up").arg("--dir").arg(dir);
    let supervisor = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    let mut supervisor = supervisor?;
    picture::tell_plan(plan, dir);
    while begun.elapsed() < READY {
        if let Some(status) = supervisor.try_wait()? {
            let said = std::fs::read_to_string(dir.join("supervisor.log")).unwrap_or_default();
            let last = said.lines().last().unwrap_or("it said nothing").to_owned();
            return Err(format!("the supervisor ended ({status}): {last}").into());
        }
        if supervise::is_ready(plan) {
            picture::tell_ready(plan, begun.elapsed());
            say!("           end it with: cenote down --dir {}", dir.display());
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(TURN);
    }
    Err(format!(
        "the cluster is not ready within {} s; see the logs in {}",
        READY.as_secs(),
        dir.display()
    )
    .into())
}

/// Ends the cluster of a directory.
///
/// # Errors
/// There is none; it does not end.
pub fn down(arguments: &DownArguments) -> Result<ExitCode, Failure> {
    let dir = std::path::absolute(&arguments.place.dir)?;
    if !plan::is_cluster(&dir) {
        return Err(format!("there is no cluster in {}", dir.display()).into());
    }
    let pid = running_pid(&dir)?;
    if let Some(pid) = pid {
        say!("stopping the cluster in {}", dir.display());
        supervise::signal_end(pid)?;
    }
    let begun = Instant::now();
    while is_running(&dir)? {
        if begun.elapsed() > END {
            return Err(format!("process {} has not ended within {} s", pid.unwrap_or(0), END.as_secs()).into());
        }
        std::thread::sleep(TURN);
    }
    // Those of a supervisor that was killed.
    let left = supervise::end_leftovers(&dir)?;
    match (pid, left) {
        (None, 0) => say!("it did not run"),
        _ => say!("stopped in {} ms", begun.elapsed().as_millis()),
    }
    let plan = Plan::load(&dir)?;
    plan.regions_left().try_for_each(std::fs::remove_file)?;
    let memory = plan.memory_left();
    if arguments.remove {
        // The directory last: it says which memory is its own.
        memory.iter().try_for_each(std::fs::remove_dir_all)?;
        std::fs::remove_dir_all(&dir)?;
        say!("{} is removed", dir.display());
    } else if !memory.is_empty() {
        say!("its shared memory is kept, warm for the next `cenote up`; --remove frees it");
    }
    Ok(ExitCode::SUCCESS)
}
