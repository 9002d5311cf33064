//! The processes of a cluster: started, started again when they end, and ended in order.
//!
//! The supervisor keeps `supervisor.pid` locked: a second one is refused, and a killed one's lock goes with it. What a
//! killed supervisor leaves is found by `processes`, a line with number, time of its beginning and name of each, and ended
//! only where the process of that number began then.

use super::super::Failure;
use super::super::cluster::is_paused;
use super::plan::{Plan, Role};
use crate::{database, log, membership};
use cenote_storage_node::{Membership, NodesClient, ServerRole};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOCK: &str = "supervisor.pid";
const PROCESSES: &str = "processes";
/// Between two looks at the processes.
const TURN: Duration = Duration::from_millis(50);
/// Between two pictures.
const PICTURE: Duration = Duration::from_millis(500);
/// How long a process has to end in order.
const END: Duration = Duration::from_secs(15);
/// Before a process is started again: its address refuses meanwhile, by which others see that it has ended. Twice as long
/// each time, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(600);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After a process that lived for so long it begins anew with the first pause.
const SETTLED: Duration = Duration::from_secs(10);

/// See the module.
pub struct Supervised {
    dir: PathBuf,
    processes: Vec<Process>,
    client: NodesClient,
    signals: Signals,
    /// What went wrong last.
    said: String,
    _lock: File,
}

struct Process {
    role: Role,
    child: Option<Child>,
    begun: Instant,
    pause: Duration,
    starts: u32,
}

impl Supervised {
    /// Starts all processes.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(dir: &Path, plan: &Plan, lock: File) -> Result<Supervised, Failure> {
        end_leftovers(dir)?;
        let process = |role: Role| Process {
            role,
            child: None,
            begun: Instant::now(),
            pause: Duration::ZERO,
            starts: 0,
        };
        let mut cluster = Supervised {
            dir: dir.to_owned(),
            processes: plan.roles(dir).into_iter().map(process).collect(),
            client: client(plan)?,
            signals: Signals::new([SIGTERM, SIGINT, SIGHUP])?,
            said: String::new(),
            _lock: lock,
        };
        if let Err(error) = cluster.keep_running() {
            cluster.stop();
            return Err(error);
        }
        Ok(cluster)
    }

    /// Waits until the cluster serves clients; false: it is to end.
    ///
    /// # Errors
    /// It takes longer than `timeout`: the processes have ended then.
    pub fn wait_ready(&mut self, plan: &Plan, timeout: Duration) -> Result<bool, Failure> {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            if self.signals.pending().next().is_some() {
                return Ok(false);
            }
            self.keep_running()?;
            if is_ready(plan) {
                return Ok(true);
            }
            std::thread::sleep(TURN);
        }
        self.stop();
        Err(format!(
            "the cluster is not ready within {} s; see the logs in {}",
            timeout.as_secs(),
            self.dir.display()
        )
        .into())
    }

    /// Keeps the processes running, and shows them, until it is to end.
    pub fn run(&mut self, mut show: impl FnMut(Option<&Membership>)) {
        let mut next = Instant::now();
        while self.signals.pending().next().is_none() {
            self.keep_on();
            if Instant::now() >= next {
                show(self.client.members().ok().as_ref());
                next = Instant::now() + PICTURE;
            }
            std::thread::sleep(TURN);
        }
    }

    /// Starts those that do not run.
    fn keep_running(&mut self) -> Result<(), Failure> {
        for n in 0..self.processes.len() {
            if self.processes[n].keep_running(&self.dir)? {
                self.note()?;
            }
        }
        Ok(())
    }

    /// As `keep_running`; what goes wrong is tried again.
    fn keep_on(&mut self) {
        if let Err(error) = self.keep_running() {
            let text = error.to_string();
            if self.said != text {
                log::warn!("{text}");
                self.said = text;
            }
        }
    }

    fn note(&self) -> Result<(), Failure> {
        let line = |process: &Process| {
            let child = process.child.as_ref()?;
            let id = child.id();
            Some(format!("{id} {} {}\n", begun_at(id)?, process.role.name))
        };
        let text: String = self.processes.iter().filter_map(line).collect();
        Ok(std::fs::write(self.dir.join(PROCESSES), text)?)
    }

    /// Ends all, the last stage first.
    pub fn stop(&mut self) {
        for stage in (0..=2).rev() {
            let of_stage = || self.processes.iter().filter(|process| process.role.stage == stage);
            of_stage()
                .filter_map(|process| process.child.as_ref())
                .for_each(|child| {
                    signal_end(child.id()).ok();
                });
            for process in self.processes.iter_mut().filter(|process| process.role.stage == stage) {
                process.wait_end();
            }
        }
        std::fs::remove_file(self.dir.join(PROCESSES)).ok();
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Process {
    /// True: it was started.
    fn keep_running(&mut self, dir: &Path) -> Result<bool, Failure> {
        if let Some(child) = &mut self.child {
            let Some(status) = child.try_wait()? else {
                return Ok(false);
            };
            log::warn!(
                "{} ended ({status}); its log: {}",
                self.role.name,
                self.role.log(dir).display()
            );
            self.child = None;
            self.pause = match self.begun.elapsed() > SETTLED {
                true => PAUSE,
                false => (self.pause * 2).clamp(PAUSE, PAUSE_MAX),
            };
            self.begun = Instant::now();
        }
        if self.begun.elapsed() < self.pause {
            return Ok(false);
        }
        self.child = Some(start(&self.role, dir, self.starts > 0)?);
        (self.begun, self.starts) = (Instant::now(), self.starts + 1);
        Ok(true)
    }

    fn wait_end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let until = Instant::now() + END;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        log::warn!(
            "{} has not ended within {} s, and is killed",
            self.role.name,
            END.as_secs()
        );
        child.kill().ok();
        child.wait().ok();
    }
}

fn start(role: &Role, dir: &Path, again: bool) -> Result<Child, Failure> {
    use std::os::unix::process::CommandExt;
    let out = OpenOptions::new()
        .create(true)
        .append(again)
        .truncate(!again)
        .write(true)
        .open(role.log(dir))?;
    // The program that runs, though another may have its name by now.
    let mut command = Command::new(database::PROGRAM);
    command
        .arg0("cenote")
        .args(&role.arguments)
        // Ctrl-C is the supervisor's: it ends them in order.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out);
    command
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", role.name).into())
}

fn client(plan: &Plan) -> Result<NodesClient, Failure> {
    let storage = crate::config::StorageOptions {
        storage: Some(plan.storage().join(",")),
        storage_cluster: None,
        storage_secret_file: None,
    };
    match storage.decide()? {
        Some(storage) => Ok(membership::words(database::client(&storage)?)),
        None => Err("the cluster has no storage nodes".into()),
    }
}

/// Whether all servers are there, one of which has the database unless all are paused, and clients can connect.
pub fn is_ready(plan: &Plan) -> bool {
    let Ok(seen) = client(plan).and_then(|client| Ok(client.members()?)) else {
        return false;
    };
    use ServerRole::{Paused, Reader, Writer};
    let is_up = |role: ServerRole| matches!(role, Writer | Reader | Paused);
    let there = seen.servers.iter().filter(|one| is_up(one.server.role)).count();
    let has_writer = seen.writer().is_some_and(|one| one.server.role == Writer) || is_paused(&seen);
    has_writer && there >= plan.servers.len() && std::net::TcpStream::connect(("127.0.0.1", plan.proxy)).is_ok()
}

/// Takes the directory for this supervisor.
///
/// # Errors
/// Another one has it.
pub fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join(LOCK);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(format!(
            "the cluster in {} runs already; end it with `cenote down`",
            dir.display()
        )
        .into());
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Whether a supervisor has the directory.
///
/// # Errors
/// Those of the system.
pub fn is_running(dir: &Path) -> Result<bool, Failure> {
    let path = dir.join(LOCK);
    if !path.exists() {
        return Ok(false);
    }
    let file = File::open(path)?;
    Ok(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// The supervisor's process, if there is one.
///
/// # Errors
/// Those of the system.
pub fn running_pid(dir: &Path) -> Result<Option<u32>, Failure> {
    if !is_running(dir)? {
        return Ok(None);
    }
    Ok(std::fs::read_to_string(dir.join(LOCK))?.trim().parse().ok())
}

/// Tells a process to end.
///
/// # Errors
/// There is none.
pub fn signal_end(pid: u32) -> Result<(), Failure> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("it is no process")?;
    Ok(kill_process(pid, Signal::TERM)?)
}

/// When a process began, in the system's ticks since it was started; `None`: there is none.
fn begun_at(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which is in brackets and may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    let state = rest.split_whitespace().next()?;
    let is_there = state != "Z";
    is_there.then(|| rest.split_whitespace().nth(19)?.parse().ok())?
}

/// Ends what a killed supervisor has left; returns how many there were.
///
/// # Errors
/// Those of the system; one does not end.
pub fn end_leftovers(dir: &Path) -> Result<usize, Failure> {
    let text = std::fs::read_to_string(dir.join(PROCESSES)).unwrap_or_default();
    // A number that another process has by now began at another time.
    let is_left = |(pid, begun): &(u32, u64)| begun_at(*pid) == Some(*begun);
    let noted = text.lines().filter_map(|line| {
        let (pid, rest) = line.split_once(' ')?;
        Some((pid.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
    });
    let left: Vec<(u32, u64)> = noted.filter(is_left).collect();
    for process in left.iter().rev() {
        let pid = process.0;
        // One that has ended meanwhile is none.
        signal_end(pid).ok();
        let until = Instant::now() + END;
        while is_left(process) {
            if Instant::now() > until {
                return Err(format!("process {pid} of a supervisor that was killed does not end").into());
            }
            std::thread::sleep(TURN);
        }
    }
    std::fs::remove_file(dir.join(PROCESSES)).ok();
    Ok(left.len())
}
