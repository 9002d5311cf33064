//! A holder uses memory of the pool: it asks the manager for a grant, and sends heartbeats.
//!
//! A holder that the manager does not hear for the time of a lease is *fenced*: the memory node ends its process before
//! another process gets the memory. A manager that is away fences no holder, so a holder that cannot reach it goes on.
//!
//! The answer to a holder that opens a grant may come late: when its lease has lapsed, and another has had the grant
//! since. Its node finds processes that *map* the memory, so one that maps it later is not found. So a holder [maps it,
//! then asks once more](GrantedMemory::open_mapped) whether it is still its own, and only then uses it.

mod access;
pub(crate) mod mirror;
mod reading;
mod remote;
mod slabs;

pub use access::RemoteAccess;
pub use reading::RemoteReader;
pub use remote::{RemoteGrant, RemoteRequest};
pub use slabs::{ReachedSlab, SlabsWanted};

use crate::grant_table::{GrantId, NodeId, SETTLING};
use crate::host::{Process, machine_name};
use crate::managers::Managers;
use crate::session::{ANSWER_TIMEOUT, ManagerChannel, ManagerSession, TAKEOVER_TIMEOUT, unexpected};
use crate::wire::{
    AuditReport, Hello, MirrorRequest, OpenRequest, Opened, PoolStatus, Reach, Reply, Request, Role, VERSION,
};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::{FileRange, Foothold, MirrorKeeper};
use mirror::{GrantMirror, Lines, MirrorOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of a lease, how much passes between two signs of life.
const RENEWALS: u64 = 4;
const _: () = assert!(RENEWALS > 1, "a manager hears a holder several times in a lease");
/// At least so long an answer to a sign of life is waited for; otherwise half of a lease, so that over another
/// connection, with another manager if there is one, it still comes in time.
const RENEW_TIMEOUT_MIN: Nanos = Nanos::from_secs(1);
/// How long an agent may take to look which processes map a range.
const CONFIRM_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Longer than a manager that has just begun to lead needs to tell whether a host is heard.
const HOST_LOST_TIMEOUT: Nanos = Nanos::from_secs(60);
const _: () = assert!(HOST_LOST_TIMEOUT.raw() > 2 * SETTLING.raw(), "it can tell in time");
/// Between two tries to be told.
const HOST_LOST_AGAIN: Nanos = Nanos::from_secs(1);
/// Between two tries to hear that a grant is still this holder's.
const CONFIRM_AGAIN: Nanos = Nanos::from_millis(200);

/// The credentials of a client.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The manager's address; of several, with commas in between: one of them leads.
    pub manager: String,
    /// The tenant's name; unused by operators.
    pub tenant: String,
    /// The tenant's, or the pool's secret; empty where the pool has none.
    pub secret: String,
}

/// A request for memory.
#[derive(Debug, Clone)]
pub struct GrantRequest {
    /// The tenant's name for it: asked for again, it is the same memory.
    pub label: String,
    /// For people.
    pub description: String,
    /// Its size; rounded up to whole extents.
    pub bytes: u64,
    /// Only in this pod; anywhere if `None`.
    pub pod: Option<String>,
    /// How long it is kept while it has no holder, in seconds; `None`: until it is given back.
    pub keep: Option<u64>,
    /// Whether it is to be mirrored on another memory node: see [`GrantedMemory::mirror`].
    pub mirror: bool,
    /// The host that this process runs on, as its agent calls it; `None`: by the machine's name.
    pub host: Option<String>,
}

impl GrantRequest {
    fn asked(self, reach: Reach) -> OpenRequest {
        OpenRequest {
            label: self.label,
            description: self.description,
            bytes: self.bytes,
            pod: self.pod,
            keep: self.keep,
            machine: cenote_fabric::boot(),
            mirror: self.mirror,
            host: self.host.or_else(machine_name),
            reach,
        }
    }
}

/// Called when the grant is this holder's no more. What it was used for has to end: the process is about to be ended.
pub type OnRevoked = Box<dyn Fn(&Error) + Send>;

impl Credentials {
    /// What is said first in a role.
    pub(crate) fn hello(&self, role: Role) -> Hello {
        Hello {
            version: VERSION,
            role,
            secret: self.secret.clone(),
        }
    }

    /// As a tenant.
    pub(crate) fn tenants_hello(&self) -> Hello {
        self.hello(Role::Tenant(self.tenant.clone()))
    }

    /// A channel to the manager, as a tenant; nothing is asked yet.
    fn tenants_channel(&self, network: &Arc<dyn Network>) -> Result<ManagerChannel> {
        Ok(ManagerChannel {
            network: Arc::clone(network),
            managers: Managers::parse(&self.manager)?,
            hello: self.tenants_hello(),
            session: Mutex::default(),
        })
    }
}

/// Memory that this process holds. Dropping it lets the lease lapse; [`GrantedMemory::release`] ends it in order.
pub struct GrantedMemory {
    opened: Opened,
    shared: Arc<Shared>,
    thread: Option<rt::JoinHandle<()>>,
    mirror: Option<Arc<GrantMirror>>,
    /// Shows that this process maps it, until the caller does, which may be at any time.
    foothold: Option<Foothold>,
}

struct Shared {
    line: ManagerChannel,
    grant: GrantId,
    epoch: u64,
    on_device: bool,
    every: Nanos,
    stop: Arc<Event>,
    revoked: AtomicBool,
}

impl GrantedMemory {
    /// Asks for memory, and keeps the lease from here on.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Busy`] (another process holds it), [`Error::Mismatch`], [`Error::Lost`],
    /// [`Error::Invalid`], [`Error::Revoked`] (it came too late: ask again).
    pub fn open(
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        requested: GrantRequest,
        on_revoked: OnRevoked,
    ) -> Result<Self> {
        let take = |memory: &Self| Foothold::at(&memory.path(), memory.range());
        let (mut memory, foothold) = Self::open_mapped(network, credentials, requested, on_revoked, take)?;
        memory.foothold = foothold;
        Ok(memory)
    }

    /// As [`GrantedMemory::open`], where the caller maps the memory, by `map`, and does nothing else with it before
    /// this returns. If that is an error it is mapped no more.
    ///
    /// # Errors
    /// As [`GrantedMemory::open`]; those of `map`.
    pub fn open_mapped<T>(
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        requested: GrantRequest,
        on_revoked: OnRevoked,
        map: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        let asked = requested.asked(Reach::Mapped);
        let memory = Self::ask(network, credentials, asked, on_revoked)?;
        let mapped = map(&memory)?;
        if !planted(Fault::GrantConfirm) {
            memory.shared.confirm()?;
        }
        Ok((memory, mapped))
    }

    fn ask(
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        asked: OpenRequest,
        on_revoked: OnRevoked,
    ) -> Result<Self> {
        let (managers, hello) = (Managers::parse(&credentials.manager)?, credentials.tenants_hello());
        let session = ManagerSession::begin_patiently(&**network, &managers, &hello)?;
        let is_mirrored = asked.mirror;
        let opened = open_whole(&session, &Request::Open(asked))?;
        mark::pass(Mark::GrantAnswered);
        let every = Nanos(session.welcome.lease / RENEWALS);
        let line = ManagerChannel {
            network: Arc::clone(network),
            managers,
            hello,
            session: Mutex::new(Some(session)),
        };
        let shared = Shared::new(&opened, every, line);
        let mirror = match is_mirrored {
            true => Some(shared.mirrored(network, credentials, &opened)?),
            false => None,
        };
        Ok(Self::kept(opened, shared, mirror, on_revoked))
    }

    /// Keeps the lease from here on.
    fn kept(opened: Opened, shared: Arc<Shared>, mirror: Option<Arc<GrantMirror>>, on_revoked: OnRevoked) -> Self {
        let theirs = Arc::clone(&shared);
        let thread = rt::spawn("pool lease", move || theirs.keep(&on_revoked));
        Self {
            opened,
            shared,
            thread: Some(thread),
            mirror,
            foothold: None,
        }
    }

    /// Keeps it mirrored, if the options ask for it. A process that uses the memory as a region calls this before the
    /// region is made, and tells it of the region when that was opened or made, before anything is flushed; and keeps
    /// to host survival, since what is not written back is not mirrored.
    pub fn mirror(&self) -> Option<Arc<dyn MirrorKeeper>> {
        let mirror = self.mirror.as_ref()?;
        Some(Arc::clone(mirror) as Arc<dyn MirrorKeeper>)
    }

    /// The file or device to map: all of it, or its [range](GrantedMemory::range).
    pub fn path(&self) -> PathBuf {
        PathBuf::from(&self.opened.path)
    }

    /// What to map of the file, if that is not all of it: the memory lies on a device that hosts share. Given as
    /// [`RegionOptions::range`](cenote_fabric::RegionOptions).
    pub fn range(&self) -> Option<FileRange> {
        let range = self.opened.range.as_ref()?;
        Some(FileRange {
            offset: range.offset,
            bytes: self.opened.bytes,
        })
    }

    /// Where it begins in the file.
    pub fn offset(&self) -> u64 {
        self.opened.range.as_ref().map_or(0, |range| range.offset)
    }

    /// The device that hosts share, if it lies on one.
    pub fn device(&self) -> Option<NodeId> {
        self.opened.range.as_ref().map(|range| range.device)
    }

    /// The host that holds it; only of memory on a device that hosts share.
    pub fn host(&self) -> Option<&str> {
        self.opened.range.as_ref().map(|range| &*range.host)
    }

    /// Rises each time that this host was lost to the pool: what lines of a region were in its caches then is gone. 0
    /// for memory that is on no device that hosts share.
    pub fn host_epoch(&self) -> u64 {
        self.opened.range.as_ref().map_or(0, |range| range.host_epoch)
    }

    /// Its pod.
    pub fn pod(&self) -> &str {
        &self.opened.pod
    }

    /// Its number.
    pub fn id(&self) -> GrantId {
        self.opened.grant
    }

    /// The holder's number.
    pub fn epoch(&self) -> u64 {
        self.opened.epoch
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.opened.bytes
    }

    /// Whether it has nothing of before.
    pub fn is_fresh(&self) -> bool {
        self.opened.fresh
    }

    /// Ends the lease. The memory must not be mapped any more: a process that maps it is ended. It is kept for the next
    /// holder, or (`give_back`) freed.
    ///
    /// # Errors
    /// Those of the way to the manager: then the lease lapses by itself, and the memory is kept.
    pub fn release(mut self, give_back: bool) -> Result<()> {
        self.end_thread();
        self.foothold = None;
        let request = Request::Release {
            grant: self.opened.grant,
            epoch: self.opened.epoch,
            give_back,
        };
        self.shared.order(&request, ANSWER_TIMEOUT)
    }

    fn end_thread(&mut self) {
        self.shared.stop.set();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
        if let Some(mirror) = self.mirror.take() {
            mirror.end();
        }
    }
}

impl Drop for GrantedMemory {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Shared {
    fn new(opened: &Opened, every: Nanos, line: ManagerChannel) -> Arc<Self> {
        Arc::new(Self {
            line,
            grant: opened.grant,
            epoch: opened.epoch,
            on_device: opened.range.is_some(),
            every,
            stop: Arc::default(),
            revoked: AtomicBool::new(false),
        })
    }

    fn renewal(&self) -> Request {
        Request::Renew {
            grant: self.grant,
            epoch: self.epoch,
        }
    }

    /// Names this process, for the agent of its host to find.
    fn confirmation(&self) -> Request {
        Request::Confirm {
            grant: self.grant,
            epoch: self.epoch,
            process: Process::this(),
        }
    }

    /// It is this holder's, and mapped: a fencing from here on finds this process. A manager that starts anew is waited
    /// for.
    ///
    /// # Errors
    /// [`Error::Revoked`]; those of the way to the manager.
    fn confirm(&self) -> Result<()> {
        let until = rt::now() + TAKEOVER_TIMEOUT;
        let (request, timeout) = match self.on_device {
            true => (self.confirmation(), CONFIRM_TIMEOUT),
            false => (self.renewal(), RENEW_TIMEOUT_MIN.max(self.every)),
        };
        loop {
            match self.order(&request, timeout) {
                Err(Error::Lost(_) | Error::Timeout(_)) if rt::now() < until => rt::sleep(CONFIRM_AGAIN),
                confirmed => return confirmed,
            }
        }
    }

    fn keep(&self, on_revoked: &OnRevoked) {
        let renew = self.renewal();
        let timeout = Nanos(2 * self.every.raw()).max(RENEW_TIMEOUT_MIN);
        let mut silent = false;
        while !self.stop.wait_timeout(self.every) {
            match self.order_again(&renew, timeout) {
                Ok(()) => silent = false,
                Err(error @ Error::Revoked(_)) => {
                    self.revoked.store(true, Ordering::Release);
                    return on_revoked(&error);
                }
                Err(error) => {
                    if !silent {
                        eprintln!("cenote: the pool's manager: {error}; going on, and trying again");
                    }
                    silent = true;
                }
            }
        }
    }

    /// As [`Shared::order`]; over a connection that turns out to be lost, it is asked again at once, over another: half
    /// of the lease would be over before the next turn is.
    fn order_again(&self, request: &Request, timeout: Nanos) -> Result<()> {
        match self.order(request, timeout) {
            Err(Error::Lost(_)) if !self.stop.is_set() => self.order(request, timeout),
            answer => answer,
        }
    }

    /// Asks for what is done, or not.
    fn order(&self, request: &Request, timeout: Nanos) -> Result<()> {
        match self.line.ask(request, timeout)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// What keeps it mirrored. Over a line of its own: a mirror may take longer than a lease has time.
    fn mirrored(
        &self,
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        opened: &Opened,
    ) -> Result<Arc<GrantMirror>> {
        let line = Arc::new(ManagerChannel {
            network: Arc::clone(network),
            managers: Managers::parse(&credentials.manager)?,
            hello: credentials.tenants_hello(),
            session: Mutex::default(),
        });
        let (which, stop) = ((self.grant, self.epoch), Arc::clone(&self.stop));
        let options = MirrorOptions {
            every: self.every,
            // What is lost is told to the manager at once; it may be starting anew.
            patience: Nanos(8 * self.every.raw()),
            cards: Arc::default(),
            on_revoked: Box::new(|| ()),
        };
        Ok(GrantMirror::new(
            Lines::one(&line),
            which,
            options,
            stop,
            opened.mirror.clone(),
        ))
    }
}

/// Opens a grant; if its memory is broken, and its mirror is not, the mirror in its place.
fn open_whole(session: &ManagerSession, request: &Request) -> Result<Opened> {
    let open = || match session.ask(request)? {
        Reply::Opened(opened) => Ok(opened),
        _ => Err(unexpected()),
    };
    let opened = open()?;
    let whole = opened.mirror.as_ref().filter(|mirror| mirror.whole && !opened.fresh);
    match whole.is_some_and(|mirror| !is_region(&opened.path) && is_region(&mirror.path)) {
        false => Ok(opened),
        true => {
            eprintln!(
                "cenote: grant {}: {} is broken: its mirror takes its place",
                opened.grant, opened.path
            );
            let (grant, epoch) = (opened.grant, opened.epoch);
            let what = MirrorRequest::FailOver;
            session.ask(&Request::Mirror { grant, epoch, what })?;
            open()
        }
    }
}

/// Whether a file is what its header says.
fn is_region(path: &str) -> bool {
    let found = cenote_fabric::peek(Path::new(path)).and_then(|found| found.content);
    let length = rt::fs::open(path, rt::fs::OpenOptions::READ).and_then(|file| file.len());
    found.is_ok_and(|(identity, _)| length.is_ok_and(|length| length == identity.length))
}

/// What operators ask of a pool.
pub struct Operator(ManagerSession);

impl Operator {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Lost`] if the manager is not there; [`Error::Invalid`] if the secret is wrong.
    pub fn connect(network: &dyn Network, credentials: &Credentials) -> Result<Self> {
        let managers = Managers::parse(&credentials.manager)?;
        ManagerSession::begin_patiently(network, &managers, &credentials.hello(Role::Operator)).map(Self)
    }

    /// The pool at this moment.
    ///
    /// # Errors
    /// Those of the way to the manager.
    pub fn status(&self) -> Result<PoolStatus> {
        match self.0.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    /// Compares the manager's grant table with what memory nodes find.
    ///
    /// # Errors
    /// Those of the way to the manager.
    pub fn audit(&self) -> Result<AuditReport> {
        match self.0.ask(&Request::Audit)? {
            Reply::Audit(report) => Ok(report),
            _ => Err(unexpected()),
        }
    }

    /// Takes a grant away from its holder, and frees its memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this number.
    pub fn free(&self, grant: GrantId) -> Result<()> {
        self.0.ask(&Request::Free { grant }).map(drop)
    }

    /// Ends every process that has a tenant's space open, and frees its memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this name.
    pub fn drop_space(&self, tenant: &str, name: &str) -> Result<()> {
        let (tenant, name) = (Some(tenant.into()), name.into());
        self.0.ask(&Request::DropSpace { tenant, name }).map(drop)
    }

    /// A host is over, as its switch or an operator knows: none of its processes reaches a device any more. What they
    /// held goes to the next. A manager that has just begun to lead cannot tell yet whether the host is heard: it is
    /// asked again until it can, and `waits` is told how long that takes at most.
    ///
    /// # Errors
    /// [`Error::Busy`] if its agent is connected, [`Error::Invalid`] if there is none of this name, or several;
    /// [`Error::Timeout`] if the manager could not tell for longer than it may take.
    pub fn host_lost(&self, host: &str, pod: Option<&str>, mut waits: impl FnMut(Nanos)) -> Result<()> {
        let until = rt::now() + HOST_LOST_TIMEOUT;
        let request = Request::HostLost {
            host: host.into(),
            pod: pod.map(str::to_owned),
        };
        loop {
            let left = match self.0.ask(&request)? {
                Reply::Done => return Ok(()),
                Reply::TooEarly { left } => Nanos(left),
                _ => return Err(unexpected()),
            };
            if rt::now() > until {
                return Err(Error::Timeout(format!(
                    "the manager cannot tell yet whether the agent of host \"{host}\" is heard"
                )));
            }
            waits(left);
            rt::sleep(left.min(HOST_LOST_AGAIN));
        }
    }

    /// Gives up a memory node that will not come back, and what lay there.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is connected, [`Error::Invalid`] if there is none of this number.
    pub fn forget(&self, node: NodeId) -> Result<()> {
        self.0.ask(&Request::Forget { node }).map(drop)
    }
}
