//! A memory node: memory of a pod, handed out as a file a grant.
//!
//! ```text
//!  DIR/node.json     its number, its pool;           locked while the node runs
//!  DIR/grant-7       a grant's memory: made empty when it is granted, removed when it is freed
//!  DIR/fenced.json   members that were fenced and live on
//!  DIR/keep-7        which part of which space grant 7 is, if it is one
//!  DIR/ring-7        over which members of this machine ask for what is part of it; made anew by each start
//! ```
//!
//! DIR lies in the pod's shared memory: a tmpfs or an fsdax file system that all hosts of the pod mount. A grant's file
//! is its own mapping: a process that maps one maps nothing of another. New memory is zero, since new files are. A
//! devdax device cannot be cut like that.
//!
//! The node does what the manager orders, one order at a time, over the one connection that it has; it begins a new one
//! only when the orders of the last are done, so none of those comes late. Each order may come twice.
//!
//! Of a grant that is a part of a space it is the keeper ([`parts`]): it hands out extents to the space's [`members`],
//! which connect to it, whether the manager is there or not.
//!
//! It keeps nothing in its head that cannot be found again: it can be killed at any moment, and the next start goes on.

mod fenced;
mod members;
mod membership;
mod parts;
mod rings;

use crate::acceptor::Acceptor;
use crate::grant_table::{GrantId, NodeId};
use crate::host::Host;
use crate::manager::LEASE_DEFAULT;
use crate::managers::{Greeted, Managers};
use crate::wire::{self, GrantFile, Hello, NodeHello, Order, OrderReply, Role, VERSION, Welcome};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Event, Nanos, fs};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener, Network};
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::{Region, RegionOptions};
use cenote_space::{HostOptions, Hosts};
use membership::Membership;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IDENTITY: &str = "node.json";
const GRANT_PREFIX: &str = "grant-";
/// Made and removed when the node starts.
const PROBE: &str = "probe";
/// How long ending a holder may take.
const END_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Between two tries to reach the manager.
const RETRY: Nanos = Nanos::from_millis(200);
/// The manager says something within this time, or is gone.
const SILENCE_MAX: Nanos = Nanos::from_secs(10);
/// When it has said nothing for so long, others are asked whether they lead, as often as that. It says something every
/// two seconds.
const DOUBT_AFTER: Nanos = Nanos::from_secs(3);
const DOUBT_EVERY: Nanos = Nanos::from_secs(1);
/// How long each of them may take to say so.
const DOUBT_TIMEOUT: Nanos = Nanos::from_secs(1);
const TURN: Nanos = Nanos::from_millis(100);

/// How a memory node is called over the fabric, by users and nodes of other pods.
#[derive(Clone)]
pub struct NodeCalls {
    /// Where it is reached.
    pub address: String,
    /// The way to others.
    pub callers: Arc<dyn Callers>,
    /// What serves its calls: the node adds its parts.
    pub hosts: Arc<Hosts>,
    /// What moves, and when.
    pub options: HostOptions,
}

impl core::fmt::Debug for NodeCalls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "called at {}", self.address)
    }
}

/// What a memory node is started with.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The pod whose hosts can map its files.
    pub pod: String,
    /// Memory that it offers.
    pub bytes: u64,
    /// Where the files lie.
    pub directory: PathBuf,
    /// The manager's address; of several, with commas in between: one of them leads.
    pub manager: String,
    /// The pool's secret, if it has one.
    pub secret: String,
    /// Where it listens for members of spaces. With port 0 it takes the port that it had before, or a free one.
    pub listen: String,
    /// How it is called over the fabric, if it can be.
    pub calls: Option<NodeCalls>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Identity {
    id: NodeId,
    pool: Option<u128>,
    /// Where it listened last: members look for it there.
    #[serde(default)]
    members: Option<String>,
    /// How long a lease lasts in the pool, in nanoseconds.
    #[serde(default)]
    lease: Option<u64>,
    /// The latest term that a manager of the pool had: one with an older term leads no more.
    #[serde(default)]
    term: u64,
}

/// A memory node that runs. Dropping it stops it; the memory stays.
pub struct MemoryNode {
    inner: Arc<NodeState>,
    threads: Vec<rt::JoinHandle<()>>,
}

struct NodeState {
    options: NodeOptions,
    managers: Managers,
    network: Arc<dyn Network>,
    host: Arc<dyn Host>,
    /// Held for its lock.
    _lock: fs::File,
    stop: AtomicBool,
    /// Set while the manager has accepted it.
    joined: Event,
    /// Where it listens for members.
    address: String,
    /// How long a member may be silent, in nanoseconds.
    lease: AtomicU64,
    parts: parts::Parts,
    membership: Membership,
    /// For members.
    acceptor: Acceptor,
}

impl MemoryNode {
    /// Takes the directory, and joins the pool as soon as the manager answers.
    ///
    /// # Errors
    /// [`Error::Busy`] if another node runs there; [`Error::Full`] if the file system is smaller than what is offered;
    /// [`Error::Mismatch`] if it does not show which processes map a file; those of files.
    pub fn start(options: NodeOptions, network: Arc<dyn Network>, host: Box<dyn Host>) -> Result<Self> {
        crate::settings::check_name("a pod's name", &options.pod)?;
        let (inner, listener) = Self::prepare(options, network, host)?;
        Ok(Self::run(inner, listener))
    }

    /// Takes the directory, and the parts that it keeps. No client is heard yet.
    fn prepare(
        options: NodeOptions,
        network: Arc<dyn Network>,
        host: Box<dyn Host>,
    ) -> Result<(Arc<NodeState>, Box<dyn Listener>)> {
        let managers = Managers::parse(&options.manager)?;
        let lock = take(&options.directory)?;
        check_room(&options)?;
        check_seen(&options.directory, &*host)?;
        let identity = read_identity(&options.directory)?;
        let listener = listen(&*network, &options.listen, identity.members.as_deref())?;
        let host: Arc<dyn Host> = host.into();
        let rings = Arc::new(rings::Rings::new(&host));
        let inner = Arc::new(NodeState {
            address: listener.address(),
            lease: AtomicU64::new(identity.lease.unwrap_or(LEASE_DEFAULT.raw())),
            parts: parts::Parts::find(&options.directory, hosting(&options), Arc::clone(&rings))?,
            membership: Membership::new(fenced::Fenced::read(&options.directory)?),
            acceptor: Acceptor::new("memory node", members::CONNECTIONS_MAX, members::STRANGERS_MAX),
            options,
            managers,
            network,
            host,
            _lock: lock,
            stop: AtomicBool::new(false),
            joined: Event::default(),
        });
        rings.serve(&inner);
        inner.note(|identity| identity.members = Some(inner.address.clone()))?;
        inner.open_parts(&mut BTreeSet::new());
        Ok((inner, listener))
    }

    fn run(inner: Arc<NodeState>, listener: Box<dyn Listener>) -> Self {
        let (obeying, accepting, watching) = (Arc::clone(&inner), Arc::clone(&inner), Arc::clone(&inner));
        let threads = vec![
            rt::spawn("memory node", move || obeying.run()),
            rt::spawn("pool members", move || accepting.accept(&*listener)),
            rt::spawn("pool watch", move || watching.watch()),
        ];
        Self { inner, threads }
    }

    /// Where it listens for members of spaces.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Waits until the manager has accepted it; false if that did not happen in time.
    pub fn wait_joined(&self, timeout: Nanos) -> bool {
        self.inner.joined.wait_timeout(timeout)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        self.inner.membership.close_connections();
        self.inner.parts.close_rings();
        if let Some(calls) = &self.inner.options.calls {
            calls.hosts.clear();
        }
        // Threads of connections have parts open.
        self.inner.acceptor.wait_empty();
    }
}

fn hosting(options: &NodeOptions) -> Option<parts::Hosting> {
    let calls = options.calls.as_ref()?;
    Some(parts::Hosting {
        hosts: Arc::clone(&calls.hosts),
        callers: Arc::clone(&calls.callers),
        options: HostOptions {
            pod: options.pod.clone(),
            ..calls.options.clone()
        },
    })
}

/// Listens where members look for it, if it is free to choose.
fn listen(network: &dyn Network, wanted: &str, former: Option<&str>) -> Result<Box<dyn Listener>> {
    let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.to_owned());
    let is_free_to_choose = wanted.ends_with(":0");
    let former = former.filter(|former| is_free_to_choose && host(former) == host(wanted));
    match former.map(|former| network.listen(former)) {
        Some(Ok(listener)) => Ok(listener),
        _ => network.listen(wanted),
    }
}

/// Locks the directory for this process, and makes what a new one needs.
fn take(directory: &Path) -> Result<fs::File> {
    let failed = |what: &str, error| Error::io(format!("{what} {}", directory.display()), error);
    fs::create_dir_all(directory).map_err(|e| failed("making", e))?;
    let lock = fs::open(directory.join("lock"), fs::OpenOptions::CREATE).map_err(|e| failed("opening", e))?;
    match lock.lock_exclusive_within(Nanos::from_millis(200)) {
        Ok(true) => {}
        Ok(false) => {
            let text = format!("{} is in use by another memory node", directory.display());
            return Err(Error::Busy(text));
        }
        Err(error) => return Err(failed("locking", error)),
    }
    let identity = directory.join(IDENTITY);
    if !fs::exists(&identity).map_err(|e| failed("looking into", e))? {
        let id = NodeId(rt::random());
        let new = Identity {
            id,
            pool: None,
            members: None,
            lease: None,
            term: 0,
        };
        write_identity(directory, &new)?;
    }
    Ok(lock)
}

fn write_identity(directory: &Path, identity: &Identity) -> Result<()> {
    let text = serde_json::to_string(identity).map_err(|e| Error::Invalid(e.to_string()))?;
    fs::replace(directory.join(IDENTITY), text.as_bytes())
        .map_err(|error| Error::io(format!("writing into {}", directory.display()), error))
}

fn read_identity(directory: &Path) -> Result<Identity> {
    let path = directory.join(IDENTITY);
    let bytes = fs::read(&path).map_err(|error| Error::io(format!("reading {}", path.display()), error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::corrupt(format!(
            "{} does not say which memory node this is: {error}. If nothing of the directory is needed, empty it",
            path.display()
        ))
    })
}

/// A manager that does not know yet that another leads gives no orders here.
fn check_term(identity: &Identity, welcome: &Welcome) -> Result<()> {
    let known = identity.pool == Some(welcome.pool);
    match known && welcome.term < identity.term {
        false => Ok(()),
        true => Err(Error::Mismatch(format!(
            "this memory node has obeyed the pool's manager of term {}, and this one is of term {}: it leads no more, or its grant table is an old copy",
            identity.term, welcome.term
        ))),
    }
}

/// What is offered has to be there, grants that exist included.
fn check_room(options: &NodeOptions) -> Result<()> {
    let directory = &options.directory;
    let doing = || format!("asking for the space of {}", directory.display());
    let free = fs::free_bytes(directory).map_err(|e| Error::io(doing(), e))?;
    let mut used = 0;
    for grant in grants_in(directory)? {
        let file = fs::open(grant_path(directory, grant), fs::OpenOptions::READ).map_err(|e| Error::io(doing(), e))?;
        used += file.allocated().map_err(|e| Error::io(doing(), e))?;
    }
    if free.saturating_add(used) < options.bytes {
        return Err(Error::Full(format!(
            "{} has room for {} and {} are offered: offer less (--size), or enlarge it (`mount -o remount,size=... `)",
            directory.display(),
            ByteSize(free + used),
            ByteSize(options.bytes)
        )));
    }
    Ok(())
}

/// The processes that map a file of the directory have to be seen: else no process could be fenced, and memory in use
/// would be taken for free. On some file systems (btrfs, overlayfs) `/proc` names a mapped file by another device than
/// the file's own.
fn check_seen(directory: &Path, host: &dyn Host) -> Result<()> {
    if rt::simulated() {
        return Ok(());
    }
    let path = directory.join(PROBE);
    parts::remove_file(&path)?;
    let (options, len) = (RegionOptions::default(), 1 << 20);
    match Region::create(&path, len, cenote_fabric::Identity::default(), options) {
        // All of it is granted: it was seen when the node was new.
        Err(Error::Full(_)) => return parts::remove_file(&path),
        // A process that has its lock counts as a user of it too.
        made => drop(made?),
    }
    let mapped = Region::join(&path, options)?;
    let seen = host.holders(&path);
    drop(mapped);
    parts::remove_file(&path)?;
    match seen?.is_empty() {
        false => Ok(()),
        true => Err(Error::Mismatch(format!(
            "{}: /proc does not show which processes map files there, so none could be fenced: give memory from a tmpfs, or another file system",
            directory.display()
        ))),
    }
}

fn sync_directory(directory: &Path) -> Result<()> {
    fs::sync_dir(directory).map_err(|error| Error::io(format!("syncing {}", directory.display()), error))
}

fn grant_path(directory: &Path, grant: GrantId) -> PathBuf {
    directory.join(format!("{GRANT_PREFIX}{grant}"))
}

fn grants_in(directory: &Path) -> Result<Vec<GrantId>> {
    numbered(directory, GRANT_PREFIX)
}

/// Numbers of the files of a kind.
fn numbered(directory: &Path, prefix: &str) -> Result<Vec<GrantId>> {
    let names = fs::list(directory).map_err(|error| Error::io(format!("listing {}", directory.display()), error))?;
    let number = |name: &String| name.strip_prefix(prefix)?.parse().ok().map(GrantId);
    let mut grants: Vec<GrantId> = names.iter().filter_map(number).collect();
    grants.sort_unstable();
    Ok(grants)
}

/// The greatest number of a grant that has left anything here, whether the manager knows of it or not.
fn last_grant(directory: &Path) -> Result<GrantId> {
    let (memory, notes) = (grants_in(directory)?, parts::notes_in(directory)?);
    Ok(memory.into_iter().chain(notes).max().unwrap_or_default())
}

impl NodeState {
    fn run(&self) {
        let mut said = String::new();
        let mut next = None;
        while !self.is_stopping() {
            let ended = self.serve(next.take());
            self.joined.reset();
            if let Ok(Some(later)) = ended {
                next = Some(later);
            } else if let Err(error) = ended
                && !self.is_stopping()
            {
                let text = error.to_string();
                if text != said {
                    eprintln!("cenote: memory node: {text}; trying again");
                    said = text;
                }
                rt::sleep(RETRY);
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// One connection with the manager, from its beginning to its end: a new one, or the one that was accepted from a
    /// manager that took over. The next one, if another has taken over again.
    fn serve(&self, greeted: Option<Greeted>) -> Result<Option<Greeted>> {
        let identity = read_identity(&self.options.directory)?;
        let (connection, welcome) = match greeted {
            Some(greeted) => greeted,
            None => self
                .managers
                .greet(&*self.network, &self.hello(&identity)?, SILENCE_MAX)?,
        };
        let joined = self.join(&*connection, &identity, &welcome);
        let served = joined.and_then(|()| self.obey(&*connection, &welcome));
        connection.close();
        if !matches!(served, Ok(Some(_))) {
            self.managers.turn_away();
        }
        served
    }

    /// The manager says nothing. Another may lead by now, and need not wait until this one is given up.
    fn later_manager(&self, now: &Welcome) -> Result<Option<Greeted>> {
        let hello = self.hello(&read_identity(&self.options.directory)?)?;
        let is_later = |welcome: &Welcome| welcome.pool == now.pool && welcome.term > now.term;
        let others = &self.managers;
        Ok(others.greet_others(&*self.network, &hello, DOUBT_TIMEOUT, is_later))
    }

    fn hello(&self, identity: &Identity) -> Result<Hello> {
        Ok(Hello {
            version: VERSION,
            role: Role::Node(NodeHello {
                id: identity.id,
                pool: identity.pool,
                pod: self.options.pod.clone(),
                bytes: self.options.bytes,
                directory: self.options.directory.display().to_string(),
                machine: cenote_fabric::boot(),
                members: self.address.clone(),
                calls: self.options.calls.as_ref().map(|calls| calls.address.clone()),
                last: last_grant(&self.options.directory)?,
            }),
            secret: self.options.secret.clone(),
        })
    }

    fn join(&self, connection: &dyn Connection, identity: &Identity, welcome: &Welcome) -> Result<()> {
        check_term(identity, welcome)?;
        self.lease.store(welcome.lease, Ordering::Release);
        self.note(|identity| {
            (identity.pool, identity.lease) = (Some(welcome.pool), Some(welcome.lease));
            identity.term = welcome.term;
        })?;
        // The manager gives no order before it hears that the node knows whose it is.
        wire::send(connection, &OrderReply::Done)?;
        self.joined.set();
        Ok(())
    }

    /// Changes what the next start finds.
    fn note(&self, change: impl FnOnce(&mut Identity)) -> Result<()> {
        let before = read_identity(&self.options.directory)?;
        let mut identity = before.clone();
        change(&mut identity);
        match identity == before {
            true => Ok(()),
            false => write_identity(&self.options.directory, &identity),
        }
    }

    fn lease(&self) -> Nanos {
        Nanos(self.lease.load(Ordering::Acquire))
    }

    fn obey(&self, connection: &dyn Connection, welcome: &Welcome) -> Result<Option<Greeted>> {
        let (mut heard, mut asked) = (rt::now(), rt::now());
        while !self.is_stopping() {
            match wire::receive::<Order>(connection, TURN) {
                Ok(order) => {
                    let reply = self
                        .execute(&order)
                        .unwrap_or_else(|error| OrderReply::Failed(error.into()));
                    wire::answer(connection, &reply, OrderReply::Failed)?;
                    heard = rt::now();
                }
                Err(Error::Timeout(_)) => {
                    let silent = rt::now().since(heard);
                    if silent >= DOUBT_AFTER && rt::now().since(asked) >= DOUBT_EVERY {
                        if let Some(later) = self.later_manager(welcome)? {
                            return Ok(Some(later));
                        }
                        asked = rt::now();
                    }
                    if silent >= SILENCE_MAX {
                        return Err(Error::Lost("the manager says nothing".into()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn execute(&self, order: &Order) -> Result<OrderReply> {
        let directory = &self.options.directory;
        match *order {
            Order::Ping => Ok(OrderReply::Done),
            Order::Admit { grant } => self.admit(grant),
            Order::Inspect { grant } => Ok(OrderReply::Holders(self.host.holders(&grant_path(directory, grant))?)),
            Order::Fence { grant } => {
                if !planted(Fault::GrantFence) {
                    self.host.end_holders(&grant_path(directory, grant), END_TIMEOUT)?;
                }
                Ok(OrderReply::Done)
            }
            Order::Free { grant } => self.free(grant),
            Order::Keep(ref part) => {
                self.parts.keep(part, self.lease())?;
                Ok(OrderReply::Done)
            }
            Order::Peers {
                space,
                ref parts,
                ref lost,
            } => {
                self.parts.set_peers(space, parts, lost);
                Ok(OrderReply::Done)
            }
            Order::Check { grant } => self.parts.check(grant).map(OrderReply::Problems),
            Order::List => self.list(),
        }
    }

    fn admit(&self, grant: GrantId) -> Result<OrderReply> {
        let path = grant_path(&self.options.directory, grant);
        let failed = |error| Error::io(format!("making {}", path.display()), error);
        let file = fs::open(&path, fs::OpenOptions::CREATE).map_err(failed)?;
        let fresh = file.len().map_err(failed)? == 0;
        fs::sync_dir(&self.options.directory).map_err(failed)?;
        Ok(OrderReply::Admitted { fresh })
    }

    fn free(&self, grant: GrantId) -> Result<OrderReply> {
        let path = grant_path(&self.options.directory, grant);
        if let Some(part) = self.parts.close(grant) {
            self.membership.forget_part(part.space, part.part);
        }
        if !planted(Fault::FreeFence) {
            self.host.end_holders(&path, END_TIMEOUT)?;
        }
        parts::remove_file(&path)?;
        sync_directory(&self.options.directory)?;
        self.parts.forget(grant)?;
        Ok(OrderReply::Done)
    }

    fn list(&self) -> Result<OrderReply> {
        let directory = &self.options.directory;
        let mut files = Vec::new();
        for grant in grants_in(directory)? {
            let path = grant_path(directory, grant);
            let file = fs::open(&path, fs::OpenOptions::READ).and_then(|file| file.len());
            let len = file.map_err(|error| Error::io(format!("looking at {}", path.display()), error))?;
            let holders = self.host.holders(&path)?;
            files.push(GrantFile { grant, len, holders });
        }
        Ok(OrderReply::Files(files))
    }
}

#[cfg(test)]
mod tests;
