//! The agent of a host: the pod's presence on one host, at one device that the pod's hosts share.
//!
//! ```text
//!            admit, inspect, confirm, fence, free, list, ping
//!   manager ─────────────────────────────────────────────────▶ agent of host a ──── finds, ends ───▶ processes of host a
//!      └──────────────────────────────────────────────────────▶ agent of host b                          │ load, store
//!                                                                 │ notes whose ranges are                ▼
//!                                                                 └──────────────────▶ the device: [directory] [extents]
//! ```
//!
//! What a memory node is for its files an agent is for the ranges of a device, on its own host: it does what the
//! manager orders, one order at a time, over the one connection that it has, and begins a new one only when the orders
//! of the last are done. Orders are idempotent. It keeps nothing in its head that cannot be found again: its death ends
//! no holder, and its next start takes up.
//!
//! It joins with its host's epoch. When that was closed (the host was lost, as its switch or an operator said) it ends
//! every process of its host that maps the device before it joins anew: what they held may be another host's by now.

mod orders;

use crate::device::{HostRecord, PoolDevice};
use crate::follower::{Follower, check_term, follow};
use crate::grant_table::check_host_name;
use crate::holder::Credentials;
use crate::host::{RangeHost, machine_name};
use crate::managers::Managers;
use crate::session::ManagerSession;
use crate::wire::{self, Hello, HostHello, HostWelcome, Order, OrderReply, Role, VERSION, Welcome};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Event, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Kind;
use cenote_fabric::message::{Connection, Network};
use orders::Ranges;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How long an agent that was killed may take to be gone.
const ENDING_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Between two looks whether it is.
const TURN: Nanos = Nanos::from_millis(100);

/// What an agent does with a device that has no directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Making {
    /// Refuses it.
    None,
    /// Makes a file of so many bytes, if there is none, and formats it.
    File(u64),
    /// Formats what is there and holds nothing. Done once, on one host.
    Format,
}

/// What an agent is started with.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The pod whose hosts share the device.
    pub pod: String,
    /// The host's name; `None`: the machine's.
    pub host: Option<String>,
    /// A file in shared memory or on an fsdax file system, or a devdax device.
    pub device: PathBuf,
    /// What to do if it has no directory.
    pub making: Making,
    /// The manager's address; of several, with commas in between: one of them leads.
    pub manager: String,
    /// The pool's secret, if it has one.
    pub secret: String,
}

/// An agent that runs. Dropping it stops it; holders go on.
pub struct HostAgent {
    state: Arc<AgentState>,
    thread: Option<rt::JoinHandle<()>>,
}

struct AgentState {
    options: AgentOptions,
    managers: Managers,
    network: Arc<dyn Network>,
    ranges: Ranges,
    stop: AtomicBool,
    /// Set while the manager has accepted it.
    joined: Event,
    /// With which it has joined; 0 before.
    epoch: AtomicU64,
}

impl HostAgent {
    /// Opens the device, and joins the pool as soon as the manager answers.
    ///
    /// # Errors
    /// [`Error::Busy`] if another agent of this host has the device; [`Error::Mismatch`], [`Error::Corrupt`] if it has no
    /// directory of this program, or `/proc` does not show which processes map it; [`Error::Invalid`] for a name;
    /// [`Error::Full`]; those of files, and of the way to the manager if a directory is to be made.
    pub fn start(options: AgentOptions, network: Arc<dyn Network>, host: Box<dyn RangeHost>) -> Result<Self> {
        crate::settings::check_name("a pod's name", &options.pod)?;
        let name = options.host.clone().or_else(machine_name).unwrap_or_default();
        check_host_name(&name)?;
        let managers = Managers::parse(&options.manager)?;
        make(&options, &*network, &managers)?;
        let device = PoolDevice::open(&options.device)?;
        check_seen(&device, &*host)?;
        let state = Arc::new(AgentState {
            options,
            managers,
            network,
            ranges: Ranges::new(name, host, device),
            stop: AtomicBool::new(false),
            joined: Event::default(),
            epoch: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&state);
        let thread = rt::spawn("host agent", move || follow(&*theirs));
        let thread = Some(thread);
        Ok(Self { state, thread })
    }

    /// Waits until the manager has accepted it; false if that did not happen in time.
    pub fn wait_joined(&self, timeout: Nanos) -> bool {
        self.state.joined.wait_timeout(timeout)
    }

    /// The host's name.
    pub fn host(&self) -> &str {
        &self.state.ranges.name
    }

    /// The host's epoch, 0 before it has joined.
    pub fn epoch(&self) -> u64 {
        self.state.epoch.load(Ordering::Acquire)
    }

    /// Bytes of the device that can be granted.
    pub fn bytes(&self) -> u64 {
        self.state.ranges.device.extents().bytes
    }

    /// Whether it is a devdax device: nothing but the processes' own good will keeps its ranges apart.
    pub fn is_devdax(&self) -> bool {
        self.state.ranges.device.kind() == Kind::Devdax
    }
}

impl Drop for HostAgent {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Makes the directory, if that is asked for. The pool's number is in it from the beginning, so a device never belongs
/// to two pools.
fn make(options: &AgentOptions, network: &dyn Network, managers: &Managers) -> Result<()> {
    let path = &options.device;
    let is_there = || rt::fs::exists(path).map_err(|error| Error::io(format!("looking for {}", path.display()), error));
    let pool = || {
        let credentials = Credentials {
            manager: options.manager.clone(),
            tenant: String::new(),
            secret: options.secret.clone(),
        };
        let hello = credentials.hello(Role::Operator);
        Ok::<u128, Error>(ManagerSession::begin_patiently(network, managers, &hello)?.welcome.pool)
    };
    match options.making {
        Making::None => Ok(()),
        Making::Format => PoolDevice::format(path, pool()?),
        Making::File(_) if is_there()? => Ok(()),
        Making::File(bytes) => match PoolDevice::make(path, bytes, pool()?) {
            // Another agent was faster.
            Err(_) if is_there()? => Ok(()),
            made => made,
        },
    }
}

/// The processes that map the device have to be seen: else none could be fenced. Agents map its directory; one of this
/// host that was stopped would go on with what it has begun when it wakes up, so there is one only.
fn check_seen(device: &PoolDevice, host: &dyn RangeHost) -> Result<()> {
    let until = rt::now() + ENDING_TIMEOUT;
    loop {
        let agents = host.users(device.path(), device.head())?;
        match agents.len() {
            0 => {
                return Err(Error::Mismatch(format!(
                    "{}: /proc does not show which processes map it, so none could be fenced: use a file in a tmpfs, an fsdax file system, or a devdax device",
                    device.path().display()
                )));
            }
            1 => return Ok(()),
            _ if rt::now() < until => rt::sleep(TURN),
            _ => {
                return Err(Error::Busy(format!(
                    "{} has another agent on this host ({}): stop it first",
                    device.path().display(),
                    agents.join(", ")
                )));
            }
        }
    }
}

impl Follower for AgentState {
    fn name(&self) -> &'static str {
        "host agent"
    }

    fn managers(&self) -> &Managers {
        &self.managers
    }

    fn network(&self) -> &dyn Network {
        &*self.network
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn joined(&self) -> &Event {
        &self.joined
    }

    fn hello(&self) -> Result<Hello> {
        let (extents, ranges) = (self.ranges.device.extents(), self.ranges.device.ranges()?);
        let noted = self.ranges.device.host(&self.ranges.name)?.map_or(0, |host| host.epoch);
        let joined = self.epoch.load(Ordering::Acquire);
        let hello = HostHello {
            device: self.ranges.device.id(),
            pool: self.ranges.device.pool(),
            pod: self.options.pod.clone(),
            host: self.ranges.name.clone(),
            epoch: if joined > 0 { joined } else { noted },
            path: absolute(&self.options.device),
            start: extents.offset,
            bytes: extents.bytes,
            granule: self.ranges.device.granule(),
            devdax: self.ranges.device.kind() == Kind::Devdax,
            sight: self.ranges.host.sight(),
            last: ranges.iter().map(|range| range.place.grant).max().unwrap_or_default(),
            used: ranges.iter().any(|range| range.is_granted()),
        };
        Ok(Hello {
            version: VERSION,
            role: Role::Host(hello),
            secret: self.options.secret.clone(),
        })
    }

    fn join(&self, connection: &dyn Connection, welcome: &Welcome) -> Result<()> {
        let host = welcome.host.as_ref();
        let host = host.ok_or_else(|| Error::corrupt("the manager's answer to the agent of a host"))?;
        let noted = self.ranges.device.host(&self.ranges.name)?.map_or(0, |host| host.term);
        check_term("host", noted, welcome)?;
        if host.clear {
            self.ranges.end_all()?;
        }
        self.note(host, welcome.term)?;
        // The manager gives no order, and grants nothing here, before it hears that.
        wire::send(connection, &OrderReply::Done)?;
        self.epoch.store(host.epoch, Ordering::Release);
        self.joined.set();
        Ok(())
    }

    fn execute(&self, order: &Order) -> Result<OrderReply> {
        self.ranges.execute(order)
    }

    /// The host's name is another machine's by now: what its processes held is not theirs any more.
    fn has_failed(&self, error: &Error) {
        if matches!(error, Error::Revoked(_))
            && let Err(error) = self.ranges.end_all()
        {
            eprintln!("cenote: host agent: {error}");
        }
    }
}

impl AgentState {
    fn note(&self, host: &HostWelcome, term: u64) -> Result<()> {
        let record = HostRecord {
            name: self.ranges.name.clone(),
            epoch: host.epoch,
            term,
        };
        self.ranges.device.note_host(host.number, &record)
    }
}

/// As a holder, which may have another directory, finds it.
fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}
