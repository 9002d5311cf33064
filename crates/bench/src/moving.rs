//! The demonstration's last act: a database loses its host under load, and goes on on another host of the pod.
//!
//! ```text
//!   manager ── agent a ── database ┐ killed together, as host a         both hosts reach the data directory,
//!      │                           └──▶ `cenote pool host-lost a`       and the device that the pool grants of
//!      └────── agent b ── database, started when that is confirmed
//! ```
//!
//! Each host has process numbers and a `/proc` of its own ([`crate::host`]), and the device is a file in shared memory.
//! What a client sees of it is as on two machines; that a lost host's caches are lost too is what the simulator is for.

use crate::host::Host;
use crate::interrupted::{Options, Shown, Successor, fill, interrupt, ms, remove_dir};
use crate::load::Progress;
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::{Error, IoContext, Result};
use cenote_base::units::ByteSize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const POD: &str = "rack";
const HOSTS: [&str; 2] = ["a", "b"];
const LEASE_SECONDS: &str = "2";
/// How long the manager may take to see that an agent is gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pool's processes, and the device.
struct Pool {
    program: PathBuf,
    /// The manager's address.
    manager: String,
    agents: Vec<Server>,
    hosts: Vec<Host>,
    _manager: Server,
    device: Arc<RegionFile>,
}

impl Pool {
    /// A manager in `dir`, and the agents of two hosts on one device of `bytes`.
    fn start(program: &Path, dir: &Path, bytes: &str) -> Result<Pool> {
        let port = free_port()?;
        let manager = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command
            .args(["manager", "--lease", LEASE_SECONDS, "--listen", &manager, "--dir"])
            .arg(dir.join("manager"));
        let process = Server::daemon("manager", command)?;
        let mut pool = Pool {
            program: program.into(),
            manager,
            agents: Vec::new(),
            hosts: vec![Host::new()?, Host::new()?],
            _manager: process,
            device: RegionFile::new(),
        };
        for (number, host) in HOSTS.iter().enumerate() {
            let mut command = pool.hosts[number].command(program);
            command
                .args(["host", "--pod", POD, "--name", host, "--manager", &pool.manager])
                .args(["--size", bytes, "--device"])
                .arg(pool.device.path());
            pool.agents
                .push(Server::daemon(&format!("agent of host {host}"), command)?);
        }
        Ok(pool)
    }

    fn database(&self, number: usize, options: &CenoteOptions) -> Result<Server> {
        let arguments = ["--manager", &self.manager, "--pod", POD, "--host", HOSTS[number]];
        let command = self.hosts[number].command(&self.program);
        Server::cenote_by(command, options, &arguments)
    }

    /// The operator's word that a host is cut off, as soon as the manager does not hear its agent any more.
    fn host_lost(&self, host: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.say_lost(host) {
                Err(Error::Refused(why)) if why.contains("is connected") && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                said => return said,
            }
        }
    }

    fn say_lost(&self, host: &str) -> Result<()> {
        let output = Command::new(&self.program)
            .args(["pool", "host-lost", host, "--manager", &self.manager])
            .stdin(Stdio::null())
            .output()
            .context("starting cenote pool host-lost")?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::Refused(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }
}

/// Runs the act; what is shown of it.
///
/// # Errors
/// Those of [`interrupt`], and of the pool's processes.
pub fn show(options: &Options) -> Result<Shown> {
    let dir = directory(&options.out)?;
    remove_dir(&dir)?;
    std::fs::create_dir_all(&dir).context("creating a directory for the pool")?;
    let mut pool = Pool::start(&options.program, &dir, &device_size(&options.memory_size)?)?;
    let database = CenoteOptions {
        program: options.program.clone(),
        data: dir.join("database"),
        memory: "pool".into(),
        memory_size: options.memory_size.clone(),
        port: free_port()?,
        survive: "host".into(),
        region: RegionFile::new(),
    };
    let running = pool.database(0, &database)?;
    println!(
        "started process {} on host a, port {}, ready after {:.1} ms",
        running.id(),
        running.port,
        ms(running.ready)
    );
    fill(&running, options.accounts)?;
    let shown = interrupt(options, "pool, another host", running, |progress, running| {
        move_to_b(&mut pool, &database, progress, running)
    });
    drop(pool);
    remove_dir(&dir)?;
    shown
}

/// From the root on: the namespaces of a host begin there, and not where this process runs.
fn directory(out: &Path) -> Result<PathBuf> {
    std::path::absolute(out.join("data-pool")).context("finding the directory for the pool")
}

fn move_to_b(pool: &mut Pool, database: &CenoteOptions, progress: &Progress, mut running: Server) -> Result<Successor> {
    let now = || progress.elapsed().as_secs_f64();
    let lost = Instant::now();
    pool.hosts[0].lose();
    pool.agents[0].kill();
    running.kill();
    println!("{:6.2} s  host a is lost: its agent and its database are killed", now());
    pool.host_lost(HOSTS[0])?;
    let confirmed = lost.elapsed();
    println!(
        "{:6.2} s  confirmed after {:.0} ms: cenote pool host-lost a",
        now(),
        ms(confirmed)
    );
    let exec_at = progress.elapsed();
    Ok(Successor {
        confirmed_ms: Some(ms(confirmed)),
        exec_at,
        server: pool.database(1, database)?,
    })
}

/// A device has room for the database, and for what the pool keeps there itself.
fn device_size(memory_size: &str) -> Result<String> {
    let bytes = memory_size
        .parse::<ByteSize>()
        .map_err(|problem| Error::Refused(format!("{memory_size}: {problem}")))?;
    Ok((bytes.bytes().next_multiple_of(2 << 20) + (64 << 20)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second demonstration found the database of the first, in the root directory.
    #[test]
    fn hosts_find_the_directory_from_anywhere() {
        let here = std::env::current_dir().expect("there is one");
        let found = directory(Path::new("demo-out")).expect("found");
        assert_eq!(found, here.join("demo-out/data-pool"));
    }
}
