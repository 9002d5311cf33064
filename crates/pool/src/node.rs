//! A memory node: memory of a pod, handed out as a file a grant.
//!
//! ```text
//!  DIR/node.json     its number, its pool;           locked while the node runs
//!  DIR/grant-7       a grant's memory: made empty when it is granted, removed when it is freed
//!  DIR/fenced.json   members that were fenced and live on
//!  DIR/member-F00    a member that has sessions
//!  DIR/keep-7        which part of which space grant 7 is, if it is one
//!  DIR/journal-7     what a holder on another machine has sent to grant 7, a mirror; while it is lent ([`lent`])
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

mod directory;
mod fenced;
mod fencing;
mod known;
mod lent;
mod members;
mod membership;
mod mirroring;
mod parts;
mod rings;

use crate::follower::{Follower, check_term, follow};
use crate::grant_table::{GrantId, NodeId};
use crate::host::Host;
use crate::limits::NodeLimits;
use crate::manager::LEASE_DEFAULT;
use crate::managers::Managers;
use crate::service::Service;
use crate::wire::{self, GrantFile, Hello, NodeHello, Order, OrderReply, Role, VERSION, Welcome};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Event, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener, Network};
use cenote_fabric::rdma::Registrar;
use cenote_fabric::rdma::call::Callers;
use cenote_space::{Crew, HostOptions, Hosts};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// How long ending a holder may take.
const END_TIMEOUT: Nanos = Nanos::from_secs(5);

/// How a memory node is called over the fabric, by users and nodes of other pods.
#[derive(Clone)]
pub struct NodeCalls {
    /// Where it is reached.
    pub address: String,
    /// The way to others.
    pub callers: Arc<dyn Callers>,
    /// What serves its calls: the node adds its parts.
    pub hosts: Arc<Hosts>,
    /// Registers mirrors for holders on other machines, and parts for readers there, if it can.
    pub registrar: Option<Arc<dyn Registrar>>,
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

/// A memory node that runs. Dropping it stops it; the memory stays.
pub struct MemoryNode {
    state: Arc<NodeState>,
    threads: Vec<rt::JoinHandle<()>>,
}

/// What the threads of a memory node share. Each part of it keeps its own invariants.
struct NodeState {
    options: NodeOptions,
    managers: Managers,
    network: Arc<dyn Network>,
    host: Arc<dyn Host>,
    directory: directory::Directory,
    stop: AtomicBool,
    /// Set while the manager has accepted it.
    joined: Event,
    /// Where it listens for members.
    address: String,
    /// How long a member may be silent, in nanoseconds.
    lease: AtomicU64,
    parts: parts::Parts,
    membership: membership::Membership,
    spread: fencing::Spread,
    known: known::Known,
    lending: lent::Lending,
    /// For members.
    service: Service<members::Peer>,
}

impl MemoryNode {
    /// Takes the directory, and joins the pool as soon as the manager answers.
    ///
    /// # Errors
    /// [`Error::Busy`] if another node runs there; [`Error::Full`] if the file system is smaller than what is offered;
    /// [`Error::Mismatch`] if it does not show which processes map a file; those of files.
    pub fn start(options: NodeOptions, network: Arc<dyn Network>, host: Box<dyn Host>) -> Result<Self> {
        Self::start_limited(options, NodeLimits::default(), network, host)
    }

    /// As [`MemoryNode::start`], with other limits.
    ///
    /// # Errors
    /// As [`MemoryNode::start`]; [`Error::Invalid`] for limits with which no client could be served.
    pub fn start_limited(
        options: NodeOptions,
        limits: NodeLimits,
        network: Arc<dyn Network>,
        host: Box<dyn Host>,
    ) -> Result<Self> {
        limits.check()?;
        crate::settings::check_name("a pod's name", &options.pod)?;
        let (state, listener) = Self::prepare(options, limits, network, host)?;
        Ok(Self::run(state, listener))
    }

    /// Takes the directory, and the parts that it keeps. No client is heard yet.
    fn prepare(
        options: NodeOptions,
        limits: NodeLimits,
        network: Arc<dyn Network>,
        host: Box<dyn Host>,
    ) -> Result<(Arc<NodeState>, Box<dyn Listener>)> {
        let managers = Managers::parse(&options.manager)?;
        let directory = directory::Directory::take(&options.directory)?;
        directory.check_room(options.bytes)?;
        directory.check_seen(&*host)?;
        let identity = directory.identity()?;
        let listener = listen(&*network, &options.listen, identity.members.as_deref())?;
        let host: Arc<dyn Host> = host.into();
        let threads = threads(&options, limits);
        let rings = Arc::new(rings::Rings::new(&host, threads)?);
        let state = Arc::new(NodeState {
            address: listener.address(),
            lease: AtomicU64::new(identity.lease.unwrap_or(LEASE_DEFAULT.raw())),
            parts: parts::Parts::find(
                &options.directory,
                hosting(&options, threads, &network, identity.id)?,
                Arc::clone(&rings),
            )?,
            membership: membership::Membership::new(fenced::Fenced::read(&options.directory)?),
            spread: fencing::Spread::default(),
            known: known::Known::read(&options.directory)?,
            lending: lent::Lending::new(
                &options.directory,
                options.calls.as_ref().and_then(|calls| calls.registrar.clone()),
            ),
            service: Service::new("memory node", limits.clients),
            options,
            managers,
            network,
            host,
            directory,
            stop: AtomicBool::new(false),
            joined: Event::default(),
        });
        rings.serve(&state);
        state.fence_for_others();
        state
            .directory
            .note(|identity| identity.members = Some(state.address.clone()))?;
        state.open_parts(&mut BTreeSet::new());
        Ok((state, listener))
    }

    fn run(state: Arc<NodeState>, listener: Box<dyn Listener>) -> Self {
        let (obeying, accepting, watching) = (Arc::clone(&state), Arc::clone(&state), Arc::clone(&state));
        let telling = Arc::clone(&state);
        let opening = state.options.calls.is_some().then(|| Arc::clone(&state));
        let mut threads = vec![
            rt::spawn("memory node", move || follow(&*obeying)),
            rt::spawn("pool members", move || accepting.accept(&*listener)),
            rt::spawn("pool watch", move || watching.watch()),
            rt::spawn("pool fences", move || telling.spread_fences()),
        ];
        threads.extend(opening.map(|opening| rt::spawn("pool opening", move || opening.open_mirrored_parts())));
        Self { state, threads }
    }

    /// Where it listens for members of spaces.
    pub fn address(&self) -> &str {
        &self.state.address
    }

    /// Waits until the manager has accepted it; false if that did not happen in time.
    pub fn wait_joined(&self, timeout: Nanos) -> bool {
        self.state.joined.wait_timeout(timeout)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        self.state.parts.wake_opening();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        self.state.membership.close_connections();
        self.state.parts.close_rings();
        self.state.parts.end_mirrors();
        self.state.lending.end();
        if let Some(calls) = &self.state.options.calls {
            calls.hosts.clear();
        }
        // What is done for a connection may have parts open.
        self.state.service.close();
    }
}

/// Threads of each class that parts share.
fn threads(options: &NodeOptions, limits: NodeLimits) -> usize {
    let calls = options.calls.as_ref();
    let told = calls.map_or_else(HostOptions::default, |calls| calls.options.clone());
    match limits.threads {
        0 => told.shared_threads(),
        threads => threads,
    }
}

fn hosting(
    options: &NodeOptions,
    threads: usize,
    network: &Arc<dyn Network>,
    id: NodeId,
) -> Result<Option<parts::Hosting>> {
    let Some(calls) = &options.calls else { return Ok(None) };
    let managers = Managers::parse(&options.manager)?;
    Ok(Some(parts::Hosting {
        mirroring: Some(mirroring::Mirroring::new(network, managers, id, &options.secret)),
        crew: Arc::new(Crew::new(threads)?),
        hosts: Arc::clone(&calls.hosts),
        callers: Arc::clone(&calls.callers),
        registrar: calls.registrar.clone(),
        options: HostOptions {
            pod: options.pod.clone(),
            ..calls.options.clone()
        },
    }))
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

impl Follower for NodeState {
    fn name(&self) -> &'static str {
        "memory node"
    }

    fn managers(&self) -> &Managers {
        &self.managers
    }

    fn network(&self) -> &dyn Network {
        &*self.network
    }

    fn is_stopping(&self) -> bool {
        Self::is_stopping(self)
    }

    fn joined(&self) -> &Event {
        &self.joined
    }

    fn hello(&self) -> Result<Hello> {
        let identity = self.directory.identity()?;
        Ok(Hello {
            version: VERSION,
            role: Role::Node(NodeHello {
                id: identity.id,
                pool: identity.pool,
                pod: self.options.pod.clone(),
                bytes: self.options.bytes,
                directory: self.directory.path().display().to_string(),
                machine: cenote_fabric::boot(),
                members: self.address.clone(),
                calls: self.options.calls.as_ref().map(|calls| calls.address.clone()),
                last: self.last_grant()?,
            }),
            secret: self.options.secret.clone(),
        })
    }

    fn join(&self, connection: &dyn Connection, welcome: &Welcome) -> Result<()> {
        let identity = self.directory.identity()?;
        let is_known = identity.pool == Some(welcome.pool);
        check_term("memory node", if is_known { identity.term } else { 0 }, welcome)?;
        self.lease.store(welcome.lease, Ordering::Release);
        self.directory.note(|identity| {
            (identity.pool, identity.lease) = (Some(welcome.pool), Some(welcome.lease));
            identity.term = welcome.term;
        })?;
        // The manager gives no order before it hears that the node knows whose it is.
        wire::send(connection, &OrderReply::Done)?;
        self.joined.set();
        Ok(())
    }

    fn execute(&self, order: &Order) -> Result<OrderReply> {
        match *order {
            Order::Ping => {}
            Order::Admit { grant } => {
                let fresh = self.directory.make_grant(grant)?;
                return Ok(OrderReply::Admitted { fresh });
            }
            Order::Inspect { grant } => {
                return self.holders(grant).map(OrderReply::Holders);
            }
            // A mirror that has taken a part's place: it was fenced before it was noted, and this process may map it by
            // now, also while the part waits for the manager.
            Order::Fence { grant } if self.parts.is_noted(grant) => {}
            Order::Fence { grant } => {
                let path = self.directory.grant_path(grant);
                self.lending.close(grant, &path)?;
                if !planted(Fault::GrantFence) {
                    self.host.end_holders(&path, END_TIMEOUT)?;
                }
            }
            Order::Free { grant } => self.free(grant)?,
            Order::Lend { grant, len, anew } => {
                let path = self.directory.grant_path(grant);
                return self.lending.lend(grant, &path, len, anew).map(OrderReply::Lent);
            }
            Order::LendGrant { grant, len } => {
                let path = self.directory.grant_path(grant);
                return self.lending.lend_grant(grant, &path, len).map(OrderReply::LentGrant);
            }
            Order::LendGrantToRead { grant, len } => {
                let path = self.directory.grant_path(grant);
                let lent = self.lending.lend_grant_to_read(grant, &path, len);
                return lent.map(OrderReply::LentGrant);
            }
            Order::Unlend { grant } => self.lending.close(grant, &self.directory.grant_path(grant))?,
            Order::Keep(ref part) => self.parts.keep(part, self.lease())?,
            Order::Peers {
                space,
                ref parts,
                ref lost,
                ref coming,
            } => self.parts.set_peers(space, parts, lost, coming),
            Order::Check { grant } => return self.parts.check(grant).map(OrderReply::Problems),
            Order::Range(_) => return Err(Error::Invalid("a memory node has no ranges of a device".into())),
            Order::List => return self.list(),
        }
        Ok(OrderReply::Done)
    }
}

impl NodeState {
    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The greatest number of a grant that has left anything here, whether the manager knows of it or not.
    fn last_grant(&self) -> Result<GrantId> {
        let (memory, notes) = (self.directory.grants()?, parts::notes_in(self.directory.path())?);
        let journals = self.lending.journals()?;
        Ok(memory
            .into_iter()
            .chain(notes)
            .chain(journals)
            .max()
            .unwrap_or_default())
    }

    fn lease(&self) -> Nanos {
        Nanos(self.lease.load(Ordering::Acquire))
    }

    /// The processes that map a grant's file. This one does not count that maps it for a holder elsewhere.
    fn holders(&self, grant: GrantId) -> Result<Vec<String>> {
        match self.lending.has(grant) {
            true => Ok(Vec::new()),
            false => self.host.holders(&self.directory.grant_path(grant)),
        }
    }

    fn free(&self, grant: GrantId) -> Result<()> {
        self.lending.forget(grant)?;
        if let Some(part) = self.parts.close(grant)? {
            self.membership.forget_part(part.space, part.part);
        }
        if !planted(Fault::FreeFence) {
            let path = self.directory.grant_path(grant);
            self.host.end_holders(&path, END_TIMEOUT)?;
        }
        self.directory.remove_grant(grant)?;
        self.parts.forget(grant)
    }

    fn list(&self) -> Result<OrderReply> {
        let mut files = Vec::new();
        for grant in self.directory.grants()? {
            let len = self.directory.grant_len(grant)?;
            let holders = self.holders(grant)?;
            files.push(GrantFile { grant, len, holders });
        }
        Ok(OrderReply::Files(files))
    }
}

#[cfg(test)]
mod tests;
