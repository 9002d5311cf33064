//! What is measured: a store in this process, or a server that is started for it and ended after it.

use super::embedded::Embedded;
use super::options::{Options, TargetKind};
use super::pooled::Pooled;
use super::record::Records;
use super::wire::Wire;
use super::worker::Worker;
use crate::server::{self, RegionFile, Server, find_program, free_port};
use crate::{Error, IoContext, Result};
use cenote_libfabric as libfabric;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::process::Command;
use std::sync::Arc;

/// A target that runs.
pub struct Target {
    pub kind: TargetKind,
    pub workers: Vec<Box<dyn Worker>>,
    embedded: Option<Arc<Embedded>>,
    server: Option<Server>,
    _region: Option<Arc<RegionFile>>,
}

impl Target {
    /// Starts one; none if it is not installed, which is said.
    ///
    /// # Errors
    /// [`Error::Server`] if a server does not start or answer; [`Error::Memory`] if the pool has no room; [`Error::Io`]
    /// of a process.
    pub fn start(kind: TargetKind, options: &Options, records: &Arc<Records>) -> Result<Option<Self>> {
        match kind {
            TargetKind::Embedded => Self::embedded(options, records).map(Some),
            TargetKind::Pool => Self::pooled(options, records),
            TargetKind::Kv => {
                let (port, region) = (free_port()?, RegionFile::new());
                let mut command = Command::new(server::cenote_program()?);
                command
                    .args(["kv", "--listen", &format!("127.0.0.1:{port}"), "--memory-size"])
                    .arg(format!("{}MiB", options.memory().div_ceil(1 << 20)))
                    .arg("--region")
                    .arg(region.path());
                let server = Server::other("cenote kv", command, port)?;
                Self::served(kind, server, Some(region), options, records).map(Some)
            }
            TargetKind::Redis => match find_program("redis-server") {
                None => {
                    println!("redis-server is not installed (apt-get install redis-server): it is left out");
                    Ok(None)
                }
                Some(program) => {
                    let port = free_port()?;
                    let mut command = Command::new(program);
                    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
                    command.args(["--save", "", "--appendonly", "no"]);
                    let server = Server::other("redis", command, port)?;
                    Self::served(kind, server, None, options, records).map(Some)
                }
            },
        }
    }

    fn embedded(options: &Options, records: &Arc<Records>) -> Result<Self> {
        let embedded = Embedded::new(options.threads, options.memory())?;
        Ok(Self {
            kind: TargetKind::Embedded,
            workers: (0..options.threads).map(|_| embedded.worker(records)).collect(),
            embedded: Some(embedded),
            server: None,
            _region: None,
        })
    }

    /// None without RDMA, by which pods reach each other, which is said.
    fn pooled(options: &Options, records: &Arc<Records>) -> Result<Option<Self>> {
        if let Err(error) = libfabric::available() {
            println!("{error}: the target pool is left out");
            return Ok(None);
        }
        let pooled = Pooled::new(
            options.program.as_deref(),
            options.pods,
            options.records,
            options.memory(),
        )?;
        Ok(Some(Self {
            kind: TargetKind::Pool,
            workers: (0..options.threads).map(|n| pooled.worker(n, records)).collect(),
            embedded: None,
            server: None,
            _region: None,
        }))
    }

    fn served(
        kind: TargetKind,
        server: Server,
        region: Option<Arc<RegionFile>>,
        options: &Options,
        records: &Arc<Records>,
    ) -> Result<Self> {
        if options.is_pinned {
            pin(&server)?;
        }
        let connections =
            |n| options.connections / options.threads + usize::from(n < options.connections % options.threads);
        let connect = |n| {
            let wire = Wire::connect(server.port, connections(n), options.pipeline, records)?;
            Ok(Box::new(wire) as Box<dyn Worker>)
        };
        Ok(Self {
            kind,
            workers: (0..options.threads).map(connect).collect::<Result<_>>()?,
            embedded: None,
            server: Some(server),
            _region: region,
        })
    }

    /// Memory is put in order, where it is here.
    pub fn gather(&self) {
        if let Some(embedded) = &self.embedded {
            embedded.gather();
        }
    }

    /// Processor time that the server has used, if there is one, and that this process has, in seconds.
    pub fn processor_seconds(&self) -> (f64, f64) {
        let server = self
            .server
            .as_ref()
            .map(|server| processor_seconds(&server.id().to_string()));
        (server.unwrap_or(0.0), processor_seconds("self"))
    }
}

/// Nothing of a process that is gone.
fn processor_seconds(id: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
}

/// The server on the first core, this process on the others.
fn pin(server: &Server) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return Err(Error::Refused("--pin needs two cores".into()));
    }
    let (mut first, mut others) = (CpuSet::new(), CpuSet::new());
    first.set(0);
    (1..cores).for_each(|core| others.set(core));
    let set = |id, cores: &CpuSet| sched_setaffinity(id, cores).map_err(std::io::Error::from);
    set(Pid::from_raw(server.id() as i32), &first).context("pinning the server")?;
    set(None, &others).context("pinning the load")
}
