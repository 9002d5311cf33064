//! A pool of several pods on this machine, by real processes: a manager and memory nodes. The process that starts them
//! is their client.

use crate::server::cenote_program;
use crate::{Error, IoContext, Result};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{Net, NetOptions};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The pool's processes, in the order of their starting. They end when it is dropped.
pub struct Pods {
    manager: String,
    callers: Arc<dyn Callers>,
    processes: Vec<Process>,
    _directory: Directory,
}

/// A process that is ended when dropped.
struct Process(Child);

/// A directory in shared memory, removed when dropped.
struct Directory(PathBuf);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        // The nodes before the manager, which they would miss.
        while self.processes.pop().is_some() {}
    }
}

impl Process {
    /// Starts it, and waits for the line with which it says that it is ready.
    fn start(command: &mut Command) -> Result<(Self, String)> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("starting a process of the pool")?;
        let output = child.stdout.take();
        let process = Self(child);
        let mut lines =
            BufReader::new(output.ok_or_else(|| Error::Refused("a process without output".into()))?).lines();
        for line in lines.by_ref() {
            let line = line.context("reading what a process says")?;
            if line.starts_with("ready:") {
                std::thread::spawn(move || lines.for_each(drop));
                return Ok((process, line));
            }
        }
        Err(Error::Refused("a process of the pool ended before it was ready".into()))
    }
}

impl Directory {
    fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/dev/shm/cenote-pods-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).context("making a directory in /dev/shm")?;
        Ok(Self(path))
    }
}

impl Pods {
    /// Starts a manager, and `nodes` memory nodes of `bytes` in each pod, by `program` (that beside this one if
    /// `None`).
    ///
    /// # Errors
    /// RDMA is not there, which pods reach each other by; a process does not start.
    pub fn start(program: Option<&Path>, pods: &[&str], nodes: usize, bytes: u64) -> Result<Self> {
        let callers: Arc<dyn Callers> = Arc::new(Net::new(NetOptions::default())?);
        let program = program.map_or_else(cenote_program, |program| Ok(program.to_owned()))?;
        let directory = Directory::new()?;
        let mut command = Command::new(&program);
        command
            .args(["manager", "--listen", "127.0.0.1:0", "--dir"])
            .arg(directory.0.join("manager"));
        let (process, line) = Process::start(&mut command)?;
        let manager = line.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut processes = vec![process];
        for (pod, n) in pods.iter().flat_map(|pod| (0..nodes).map(move |n| (pod, n))) {
            let mut command = Command::new(&program);
            command.args(["memory", "--pod", pod, "--manager", &manager]);
            command.args(["--size", &bytes.to_string(), "--region"]);
            command.arg(directory.0.join(format!("{pod}-{n}")));
            processes.push(Process::start(&mut command)?.0);
        }
        Ok(Self {
            manager,
            callers,
            processes,
            _directory: directory,
        })
    }

    /// What its clients and operators show.
    pub fn credentials(&self) -> Credentials {
        Credentials {
            manager: self.manager.clone(),
            tenant: cenote_pool::settings::DEFAULT_TENANT.into(),
            secret: String::new(),
        }
    }

    /// A client in a pod.
    ///
    /// # Errors
    /// Those of the way to the manager.
    pub fn client(&self, pod: &str) -> Result<PoolClient> {
        let options = ClientOptions {
            name: format!("bench in {pod}"),
            pod: Some(pod.into()),
            callers: Some(Arc::clone(&self.callers)),
            ..ClientOptions::default()
        };
        let network: Arc<dyn Network> = Arc::new(Tcp);
        Ok(PoolClient::connect(&network, &self.credentials(), options)?)
    }
}
