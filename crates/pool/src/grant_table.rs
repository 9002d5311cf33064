//! The manager's grant table: which memory is whose. Plain data and its rules, without threads, clocks or network.
//!
//! ```text
//!            open                     lapse, free                confirmed
//!   (none) ───────▶ Held(epoch) ──────────────────▶ Fencing ───────────────▶ Idle
//!                     ▲   │ release                                          │ │
//!                     │   └────────────────────────────────────────────────▶ │ │ give back, kept too long,
//!                     └──────────────────────────────── open: epoch + 1 ─────┘ │ reclaimed, free
//!                                                                              ▼
//!                                              (none) ◀── confirmed ──────  Freeing
//! ```
//!
//! What is reached over the fabric goes from a holder to the next without having been idle: Held(epoch + 1).
//!
//! A grant may be a part of a space, which has no holder: its memory node keeps it ([`spaces`]). It may have a mirror
//! on another memory node ([`mirrors`]). It may lie at a range of a device that hosts share ([`devices`]): then what is
//! said here of its node is done by the agent of its host.
//!
//! Invariants:
//! - each byte of a memory node is free or of one grant; a grant counts until its node has *confirmed* that no process
//!   has it mapped and its memory is given up (quarantine: a lapsed holder may be in the middle of a copy, design
//!   section 6);
//! - `epoch` rises with each holder and with each fencing: a process with another epoch is not the holder;
//! - ids of grants are never used again, also where an older copy of the grant table was put back: nodes say which they
//!   have seen;
//! - a tenant's grants are within its quota when the last of them was made;
//! - what was acknowledged is in the [store](crate::store) first: the manager writes it before it answers;
//! - `term` rises with each manager that begins to lead: a manager with an older one leads no more.

pub use crate::ids::{GrantId, NodeId, Phase, SpaceId, SpacePhase};
use crate::settings::{Tenant, Tenants};
use crate::wire::{GrantView, NodeHello, NodeView, OpenRequest, Reach, TenantView};
use cenote_base::rt::Nanos;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::mirror::JOURNAL;
use cenote_space::EXTENT;
pub use devices::{Device, DeviceHost, RangeOf};
pub(crate) use hosts::SETTLING;
pub use hosts::{HostLoss, check_host_name};
use records::{Collection, Record, Records, Weight};
use serde::{Deserialize, Serialize};
pub(crate) use spaces::must_hear;
pub use spaces::{Making, PartOf, PartsOf, SpaceRecord};
use std::collections::{BTreeMap, BTreeSet};

/// No grant comes to have such a number: a node that names one lies.
const GRANT_MAX: u64 = 1 << 62;
/// How long a memory node may take to join a manager that has begun to lead: it notices first that the former one says
/// nothing any more, which takes 10 s.
pub(crate) const NODES_COME_WITHIN: Nanos = Nanos::from_secs(12);
const NO_MIRROR_OF_REMOTE: &str =
    "memory that is reached over the fabric has no mirror: what it keeps is in storage as well";
/// Characters of a description that are kept.
const DESCRIPTION_MAX: usize = 512;

/// Memory that a tenant was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Whose.
    pub tenant: String,
    /// The tenant's name for it.
    pub label: String,
    /// For people.
    pub description: String,
    /// Whole extents.
    pub bytes: u64,
    /// Where it lies: a memory node, or a device.
    pub node: NodeId,
    /// Rises with each holder.
    pub epoch: u64,
    /// What is happening to it.
    pub phase: Phase,
    /// How long it is kept while idle, in seconds; `None`: until it is given back.
    pub keep: Option<u64>,
    /// Which part of which space it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartOf>,
    /// The grant that it mirrors, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_of: Option<GrantId>,
    /// Where on a device it lies, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeOf>,
    /// It is, or was, a mirror that its node lends: there is a journal beside it, or room for one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lent: bool,
    /// Its holder reaches it over the fabric.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// When its lease lapses (held), or since when it has been idle. Not kept: a manager that starts gives every holder
    /// a whole lease.
    #[serde(skip)]
    pub time: Nanos,
    /// How often its lease was renewed. Not kept either.
    #[serde(skip)]
    pub renewals: u64,
}

impl Grant {
    /// Goes to another phase.
    fn enter(&mut self, next: Phase) {
        assert!(
            self.phase.may_become(next),
            "a grant that is {} does not become {next}",
            self.phase
        );
        self.phase = next;
    }

    /// Bytes of its node: its own, and its journal's.
    fn taken(&self) -> u64 {
        self.bytes.saturating_add(if self.lent { JOURNAL } else { 0 })
    }

    /// It is a part of a space, which its memory node keeps: also while that takes it up.
    fn is_kept(&self) -> bool {
        self.part.is_some() && matches!(self.phase, Phase::Keeping | Phase::Kept | Phase::Fencing)
    }

    /// What time makes of it.
    fn due(&self, now: Nanos) -> Option<Phase> {
        let until = |secs: u64| self.time.raw().saturating_add(secs.saturating_mul(1_000_000_000));
        match self.phase {
            Phase::Held if now > self.time => Some(Phase::Fencing),
            Phase::Idle if self.keep.is_some_and(|secs| now.raw() > until(secs)) => Some(Phase::Freeing),
            _ => None,
        }
    }
}

/// Bytes that are granted, or not confirmed free.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    nodes: BTreeMap<NodeId, u64>,
    tenants: BTreeMap<String, u64>,
}

/// Its node, tenant and bytes are its own for as long as it is there; whether it is lent changes by
/// [`GrantTable::set_lent`].
impl Record for Grant {
    type Totals = Usage;

    fn add_to(&self, usage: &mut Usage) {
        let add = |has: &mut u64| *has = has.saturating_add(self.taken());
        add(usage.nodes.entry(self.node).or_default());
        add(usage.tenants.entry(self.tenant.clone()).or_default());
    }

    fn take_from(&self, usage: &mut Usage) {
        take(&mut usage.nodes, &self.node, self.taken());
        take(&mut usage.tenants, &self.tenant, self.taken());
    }
}

fn take<K: Ord>(usage: &mut BTreeMap<K, u64>, of: &K, bytes: u64) {
    let left = usage.get_mut(of).map(|has| {
        // A table that was read may say anything: it is looked at as a whole after that.
        *has = has.saturating_sub(bytes);
        *has
    });
    if left == Some(0) {
        usage.remove(of);
    }
}

impl Record for Node {
    type Totals = ();
}

impl Record for Device {
    type Totals = ();
}

impl Record for SpaceRecord {
    type Totals = ();
}

/// A mirror takes the place of its grant on any machine that reaches it, and a range goes from host to host by itself.
fn check_no_mirror_wanted(id: GrantId, requested: &OpenRequest) -> Result<()> {
    match requested.mirror {
        false => Ok(()),
        true => Err(Error::Mismatch(format!(
            "grant {id} lies on a device that hosts share, and ranges of devices have no mirrors: ask for none \
             (--mirror), or free it first (cenote pool free {id}), so that it comes to lie on a memory node"
        ))),
    }
}

/// The same label is the same memory, reached in the same way.
fn check_reach(id: GrantId, is_remote: bool, requested: &OpenRequest) -> Result<()> {
    let (is, wanted) = match (is_remote, requested.reach) {
        (true, Reach::Remote { .. }) | (false, Reach::Mapped) => return Ok(()),
        (true, Reach::Mapped) => ("is reached over the fabric", "is to be mapped"),
        (false, _) => ("is mapped by its holders", "is to be reached over the fabric"),
    };
    Err(Error::Mismatch(format!(
        "grant {id} {is}, and {wanted} now: ask for it as before, or free it first (cenote pool free {id})"
    )))
}

/// No node can tell whether a holder lives that reaches its memory over the fabric, and none has to: the next holder
/// reaches it when it is lent to that, and the node ends the former one's keys first.
fn check_takes(id: GrantId, reach: Reach) -> Result<()> {
    match reach {
        Reach::Remote { takes: true, .. } => Ok(()),
        _ => Err(Error::Busy(format!("grant {id} has another holder"))),
    }
}

/// What people are shown.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(DESCRIPTION_MAX).collect()
}

/// A memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its pod.
    pub pod: String,
    /// Memory that it has.
    pub bytes: u64,
    /// Where its files lie.
    pub directory: String,
    /// Whose processes it can see and end.
    #[serde(skip)]
    pub machine: u64,
    /// Whether it is connected.
    #[serde(skip)]
    pub connected: bool,
    /// Where members of spaces find it.
    #[serde(skip)]
    pub members: String,
    /// Where it is called over the fabric, if it can be.
    #[serde(skip)]
    pub calls: Option<String>,
}

impl Node {
    /// Whether it has joined since this manager began to lead: what is not kept of it is known then.
    fn has_joined(&self) -> bool {
        self.connected || !self.members.is_empty()
    }

    /// Whether it fences members of others. Of one that has not joined since this manager began to lead that is not
    /// known: it may.
    fn may_have_calls(&self) -> bool {
        self.calls.is_some() || !self.has_joined()
    }
}

/// All of it. What is not kept is in `tenants`, `nodes_come`, and each node's and grant's skipped fields. How it is
/// kept: [`kept`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantTable {
    /// The pool's id.
    pub pool: u128,
    /// How often a manager has begun to lead with it.
    term: u64,
    next: u64,
    nodes: Records<NodeId, Node>,
    grants: Records<GrantId, Grant>,
    devices: Records<NodeId, Device>,
    spaces: Records<SpaceId, SpaceRecord>,
    tenants: Tenants,
    /// Memory nodes of the former manager that have not joined by then are away.
    nodes_come: Nanos,
    /// What its records come to.
    weight: Weight,
    /// What is not in a record was so before the change.
    before: (u64, u64, Weight),
}

/// What an order to open came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// It is held with this epoch, once its node has admitted it.
    Admit(GrantId, u64),
    /// Its former holder has a lease still: whether it lives, its node can tell.
    Ask(GrantId, u64),
    /// It is being fenced or freed, or memory is being reclaimed for it: soon.
    Wait,
}

impl GrantTable {
    /// An empty one.
    pub fn new(pool: u128, tenants: Tenants) -> Self {
        Self {
            pool,
            term: 0,
            next: 1,
            nodes: Records::default(),
            grants: Records::default(),
            devices: Records::default(),
            spaces: Records::default(),
            tenants,
            nodes_come: Nanos::ZERO,
            weight: Weight::default(),
            before: (0, 1, Weight::default()),
        }
    }

    /// Its collections of records, and what their names begin with.
    fn collections(&mut self) -> [(&'static str, &mut dyn Collection); 4] {
        [
            ("node", &mut self.nodes),
            ("grant", &mut self.grants),
            ("device", &mut self.devices),
            ("space", &mut self.spaces),
        ]
    }

    /// A manager begins to lead with it; returns the term.
    pub fn begin_term(&mut self) -> u64 {
        self.term += 1;
        self.term
    }

    /// For so long the manager heard no holder, which is no holder's fault.
    pub fn no_holder_was_heard(&mut self, time: Nanos) {
        let held = self.grants.unkept_mut().filter(|grant| grant.phase == Phase::Held);
        held.for_each(|grant| grant.time = Nanos(grant.time.raw().saturating_add(time.raw())));
    }

    // ---- looking ----

    /// A grant.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this number.
    pub fn grant(&self, id: GrantId) -> Result<&Grant> {
        self.grants
            .get(&id)
            .ok_or_else(|| Error::Invalid(format!("there is no grant {id}")))
    }

    /// All grants.
    pub fn grants(&self) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.grants.iter().map(|(id, grant)| (*id, grant))
    }

    /// A memory node.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this number.
    pub fn node(&self, id: NodeId) -> Result<&Node> {
        self.nodes
            .get(&id)
            .ok_or_else(|| Error::Invalid(format!("there is no memory node {id}")))
    }

    /// The tenants' quotas and priorities.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Bytes of a node that are granted, or not confirmed free.
    pub fn granted(&self, node: NodeId) -> u64 {
        self.grants.totals().nodes.get(&node).copied().unwrap_or(0)
    }

    /// Bytes of these nodes that are free.
    fn free_of_all(&self, nodes: &[NodeId]) -> Vec<(NodeId, u64)> {
        nodes.iter().map(|id| (*id, self.free_of(*id))).collect()
    }

    fn granted_to(&self, tenant: &str) -> u64 {
        self.grants.totals().tenants.get(tenant).copied().unwrap_or(0)
    }

    /// Grants that holders of a tenant have.
    pub fn held_by(&self, tenant: &str) -> u32 {
        let held = |grant: &&Grant| grant.phase == Phase::Held && grant.tenant == tenant;
        u32::try_from(self.grants.values().filter(held).count()).unwrap_or(u32::MAX)
    }

    /// Grants of `node` that it has something to do for.
    pub fn work_of(&self, node: NodeId) -> Vec<GrantId> {
        let todo = |g: &Grant| g.node == node && matches!(g.phase, Phase::Fencing | Phase::Freeing | Phase::Keeping);
        self.grants.iter().filter(|(_, g)| todo(g)).map(|(id, _)| *id).collect()
    }

    // ---- memory nodes ----

    /// A memory node says that it is there.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it belongs to another pool, [`Error::Busy`] if one with its number is connected,
    /// [`Error::Full`] if it is less than what it has granted, [`Error::Corrupt`].
    pub fn join(&mut self, hello: &NodeHello) -> Result<()> {
        crate::settings::check_name("a pod's name", &hello.pod)?;
        if hello.pool.is_some_and(|pool| pool != self.pool) {
            return Err(Error::Mismatch(format!(
                "{} belongs to another pool; empty it to give it to this one",
                hello.directory
            )));
        }
        let known = self.nodes.get(&hello.id);
        if known.is_some_and(|node| node.connected) {
            return Err(Error::Busy(format!("memory node {} is connected already", hello.id)));
        }
        if known.is_none() && hello.pool.is_some() {
            return Err(Error::Mismatch(format!(
                "memory node {} was forgotten by this pool; empty {} to bring it back as a new one",
                hello.id, hello.directory
            )));
        }
        if hello.last.0 >= GRANT_MAX {
            return Err(Error::corrupt(format!("a grant's number: {}", hello.last)));
        }
        let bytes = hello.bytes / EXTENT * EXTENT;
        let granted = self.granted(hello.id);
        if bytes < granted {
            return Err(Error::Full(format!(
                "memory node {} offers {} and has granted {}: start it with as much, or free some first",
                hello.id,
                ByteSize(bytes),
                ByteSize(granted)
            )));
        }
        let node = Node {
            pod: hello.pod.clone(),
            bytes,
            directory: hello.directory.clone(),
            machine: hello.machine,
            connected: true,
            members: hello.members.clone(),
            calls: hello.calls.clone(),
        };
        self.nodes.insert(hello.id, node);
        // What lies there and is in no grant table is not handed out as new memory.
        self.next = self.next.max(hello.last.0 + 1);
        Ok(())
    }

    /// A memory node is not heard any more.
    pub fn leave(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.connected = false;
        }
    }

    /// A memory node will not come back: what lay there is gone.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is connected.
    pub fn forget(&mut self, id: NodeId) -> Result<()> {
        if self.devices.contains_key(&id) {
            return self.forget_device(id);
        }
        if self.node(id)?.connected {
            return Err(Error::Busy(format!("memory node {id} is connected: stop it first")));
        }
        self.nodes.remove(&id);
        self.promote_from(id);
        self.lose_parts(id);
        self.grants.retain(|_, grant| grant.node != id);
        self.settle_mirrors();
        self.settle_spaces();
        Ok(())
    }

    // ---- holders ----

    /// A tenant wants memory.
    ///
    /// # Errors
    /// [`Error::Full`] (pool or quota), [`Error::Mismatch`] (another size than it has), [`Error::Lost`] (its memory
    /// node is not there), [`Error::Invalid`].
    pub fn open(&mut self, tenant: &str, requested: &OpenRequest, now: Nanos, lease: Nanos) -> Result<Opening> {
        slabs::check_is_no_slab(requested)?;
        self.open_labelled(tenant, requested, now, lease)
    }

    /// An error comes before anything is changed: slabs are opened together, and one that is refused is no other's
    /// matter.
    fn open_labelled(&mut self, tenant: &str, requested: &OpenRequest, now: Nanos, lease: Nanos) -> Result<Opening> {
        crate::settings::check_name("a label", &requested.label)?;
        let bytes = requested
            .bytes
            .checked_next_multiple_of(EXTENT)
            .filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| Error::Invalid(format!("{} bytes cannot be granted", requested.bytes)))?;
        match self.labelled(tenant, &requested.label).map(|(id, _)| id) {
            Some(id) if self.moves(id, requested, now) => self.open_elsewhere(id, bytes, requested, now, lease),
            Some(id) => self.open_again(id, bytes, requested, now, lease),
            None => self.open_new(tenant, bytes, requested, now, lease),
        }
    }

    fn open_again(
        &mut self,
        id: GrantId,
        bytes: u64,
        requested: &OpenRequest,
        now: Nanos,
        lease: Nanos,
    ) -> Result<Opening> {
        let (phase, has, node, epoch, is_on_device, is_remote) = {
            let grant = self.grant(id)?;
            let is_on_device = grant.range.is_some();
            (
                grant.phase,
                grant.bytes,
                grant.node,
                grant.epoch,
                is_on_device,
                grant.remote,
            )
        };
        let (bytes, host) = (self.whole_on(node, bytes), requested.host.as_deref());
        if phase == Phase::Freeing {
            // Its node has to confirm it, and one that is away does not.
            if is_remote {
                self.check_connected(node)?;
            }
            return self.check_former_host(id).map(|()| Opening::Wait);
        }
        if has != bytes {
            return Err(Error::Mismatch(format!(
                "grant {id} has {} and {} are asked for: give it back first (cenote pool free {id}), or ask for as much",
                ByteSize(has),
                ByteSize(bytes)
            )));
        }
        check_reach(id, is_remote, requested)?;
        match is_on_device {
            _ if is_remote => self.check_connected(node).and_then(|()| self.check_called(node))?,
            true => {
                check_no_mirror_wanted(id, requested)?;
                self.check_hosts(id, host)?;
            }
            false => {
                self.check_connected(node)?;
                self.check_machine(node, requested.machine)?;
            }
        }
        if requested.mirror && self.is_mirror_awaited(id, now) {
            return Ok(Opening::Wait);
        }
        match phase {
            Phase::Idle => {}
            Phase::Held if is_remote => check_takes(id, requested.reach)?,
            Phase::Held => return Ok(Opening::Ask(id, epoch)),
            _ => return Ok(Opening::Wait),
        }
        let grant = self.grants.get_mut(&id).expect("it was found");
        grant.keep = requested.keep;
        grant.description = printable(&requested.description);
        self.hold(id, host, now, lease)
    }

    /// A node that was started anew may not be reached over the fabric any more.
    fn check_called(&self, id: NodeId) -> Result<()> {
        match self.node(id)?.calls {
            Some(_) => Ok(()),
            None => Err(Error::Invalid(format!(
                "the memory lies on memory node {id}, which is not reached over the fabric: start it with --rdma"
            ))),
        }
    }

    fn check_connected(&self, id: NodeId) -> Result<()> {
        let node = self.node(id)?;
        match node.connected {
            true => Ok(()),
            false => Err(Error::Lost(format!(
                "memory node {id} of pod {} is not there: start it again, or give it up (cenote pool forget {id})",
                node.pod
            ))),
        }
    }

    /// A node can end the processes of its own machine alone: a holder elsewhere could not be fenced.
    fn check_machine(&self, id: NodeId, machine: u64) -> Result<()> {
        let node = self.node(id)?;
        match node.machine == machine {
            true => Ok(()),
            false => Err(Error::Mismatch(format!(
                "the memory lies on memory node {id} of pod {}, which runs on another machine and could not fence a holder here",
                node.pod
            ))),
        }
    }

    fn hold(&mut self, id: GrantId, host: Option<&str>, now: Nanos, lease: Nanos) -> Result<Opening> {
        let grant = self.grants.get_mut(&id).expect("a grant that was found");
        grant.epoch += u64::from(!planted(Fault::EpochSame) || grant.epoch == 0);
        assert!(
            grant.part.is_none() && grant.mirror_of.is_none(),
            "grant {id} is a part of a space or a mirror, which no holder has"
        );
        assert!(grant.epoch > 0, "a holder's epoch is at least 1");
        grant.enter(Phase::Held);
        grant.set_host(host);
        grant.time = Nanos(now.raw() + lease.raw());
        Ok(Opening::Admit(id, grant.epoch))
    }

    /// The former holder of a grant that is asked for again is not alive, as its node says: the next may have it. When
    /// its node was asked, it had been renewed so often: a holder that has renewed it since maps it by now, and is
    /// alive.
    ///
    /// # Errors
    /// [`Error::Busy`] if another holder was faster.
    pub fn take_over(
        &mut self,
        (id, epoch, renewals): (GrantId, u64, u64),
        host: Option<&str>,
        now: Nanos,
        lease: Nanos,
    ) -> Result<Opening> {
        let Some(grant) = self.grants.get(&id) else {
            return Err(Error::Busy(format!("grant {id} was just freed")));
        };
        if grant.epoch != epoch || grant.phase != Phase::Held {
            return Err(Error::Busy(format!("grant {id} was just given to another holder")));
        }
        if grant.renewals != renewals && !planted(Fault::TakenUnheard) {
            return Err(Error::Busy(format!(
                "grant {id} is in use by a process that has just begun"
            )));
        }
        if grant.range.is_some() {
            self.check_hosts(id, host)?;
        }
        self.hold(id, host, now, lease)
    }

    fn open_new(
        &mut self,
        tenant: &str,
        bytes: u64,
        requested: &OpenRequest,
        now: Nanos,
        lease: Nanos,
    ) -> Result<Opening> {
        if requested.mirror && requested.reach != Reach::Mapped {
            return Err(Error::Invalid(NO_MIRROR_OF_REMOTE.into()));
        }
        let priority = self.limits(tenant)?.priority;
        let least = bytes.saturating_mul(if requested.mirror { 2 } else { 1 });
        self.check_quota(tenant, least)?;
        let Some(node) = self.place(bytes, requested) else {
            return self.reclaim(bytes, requested, priority);
        };
        let of_mirror = match requested.mirror {
            true => self.check_place_of_mirror(bytes, node, requested, priority)?,
            false => Some(0),
        };
        let Some(of_mirror) = of_mirror else {
            return Ok(Opening::Wait);
        };
        let (bytes, host) = (self.whole_on(node, bytes), requested.host.as_deref());
        self.check_quota(tenant, bytes.saturating_add(of_mirror))?;
        let grant = Grant {
            tenant: tenant.into(),
            label: requested.label.clone(),
            description: printable(&requested.description),
            bytes,
            node,
            epoch: 0,
            phase: Phase::Idle,
            keep: requested.keep,
            part: None,
            mirror_of: None,
            range: self.hole(node, bytes).map(RangeOf::new),
            lent: false,
            remote: requested.reach != Reach::Mapped,
            time: now,
            renewals: 0,
        };
        let id = self.add_grant(grant);
        let opening = self.hold(id, host, now, lease)?;
        Ok(if requested.mirror {
            self.mirror_new(opening, requested, now)
        } else {
            opening
        })
    }

    /// A grant that is new, with the next number.
    fn add_grant(&mut self, grant: Grant) -> GrantId {
        assert!(
            grant.bytes > 0 && grant.bytes.is_multiple_of(EXTENT),
            "a grant of {} bytes is no whole extents",
            grant.bytes
        );
        assert!(
            self.free_of(grant.node)
                >= if grant.range.is_some() {
                    grant.bytes
                } else {
                    grant.taken()
                },
            "a memory node grants no more than it has free"
        );
        let id = GrantId(self.next);
        self.next += 1;
        let former = self.grants.insert(id, grant);
        assert!(former.is_none(), "a grant's number is never used again");
        id
    }

    fn check_quota(&self, tenant: &str, bytes: u64) -> Result<()> {
        let (has, quota) = (self.granted_to(tenant), self.limits(tenant)?.quota);
        match quota.filter(|quota| has.saturating_add(bytes) > *quota) {
            None => Ok(()),
            Some(quota) => Err(Error::Full(format!(
                "tenant \"{tenant}\" has {} of its quota of {}; {} more are too much",
                ByteSize(has),
                ByteSize(quota),
                ByteSize(bytes)
            ))),
        }
    }

    fn limits(&self, tenant: &str) -> Result<&Tenant> {
        let limits = self.tenants.tenants.get(tenant);
        limits.ok_or_else(|| Error::Invalid(format!("there is no tenant \"{tenant}\"")))
    }

    /// Bytes that a memory node has free, or a device in one piece.
    fn free_of(&self, id: NodeId) -> u64 {
        if self.devices.contains_key(&id) {
            return self.largest_hole(id);
        }
        self.nodes
            .get(&id)
            .map_or(0, |node| node.bytes.saturating_sub(self.granted(id)))
    }

    /// Connected nodes of the request's pod and machine, and devices of its pod and host.
    fn nodes_for(&self, requested: &OpenRequest) -> Vec<NodeId> {
        let is_remote = requested.reach != Reach::Mapped;
        let is_reached = |node: &Node| match is_remote {
            true => node.calls.is_some(),
            false => node.machine == requested.machine,
        };
        let fits = |node: &Node| {
            node.connected && is_reached(node) && requested.pod.as_ref().is_none_or(|pod| node.pod == *pod)
        };
        let left = self.node_left(requested);
        let nodes = self.nodes.iter().filter(|(id, node)| fits(node) && left != Some(**id));
        let nodes = nodes.map(|(id, _)| *id);
        let devices = if is_remote {
            Vec::new()
        } else {
            self.devices_for(requested)
        };
        devices.into_iter().chain(nodes).collect()
    }

    /// The one of them with most room. A device before a node: what lies there can go on from another host.
    fn place(&self, bytes: u64, requested: &OpenRequest) -> Option<NodeId> {
        let free = self.free_of_all(&self.nodes_for(requested)).into_iter();
        let fitting = free.filter(|(id, free)| *free >= self.whole_on(*id, bytes));
        let most = fitting.max_by_key(|(id, free)| (self.devices.contains_key(id), *free));
        most.map(|(id, _)| id)
    }

    /// Where memory is short, idle grants of tenants with less priority go: least priority first, then idle longest.
    fn reclaim(&mut self, bytes: u64, requested: &OpenRequest, priority: u8) -> Result<Opening> {
        let nodes = self.nodes_for(requested);
        for node in &nodes {
            if let Some(victims) = self.victims(*node, bytes, priority) {
                self.give_up(victims);
                return Ok(Opening::Wait);
            }
        }
        Err(self.full(bytes, requested, &nodes))
    }

    /// What has to go so that a node has so much room, if that is enough.
    fn victims(&self, node: NodeId, bytes: u64, priority: u8) -> Option<Vec<GrantId>> {
        if self.devices.contains_key(&node) {
            return self.victims_in_a_row(node, bytes, priority);
        }
        let mut room = self.free_of(node) + self.freeing(node);
        let mut victims = Vec::new();
        for (id, bytes_of) in self.reclaimable(node, priority) {
            if room < bytes {
                room += bytes_of;
                victims.push(id);
            }
        }
        (room >= bytes).then_some(victims)
    }

    /// Frees what is reclaimed. A mirror may have gone with its grant, which stands before it.
    fn give_up(&mut self, victims: Vec<GrantId>) {
        for id in victims {
            let phase = self.grants[&id].phase;
            assert!(
                matches!(phase, Phase::Idle | Phase::Filling | Phase::Whole | Phase::Freeing),
                "grant {id} is {phase}: only what no process uses is reclaimed"
            );
            self.set_freeing(id);
        }
    }

    /// Room that a node is about to have.
    fn freeing(&self, node: NodeId) -> u64 {
        let freeing = |g: &&Grant| g.node == node && g.phase == Phase::Freeing;
        self.grants.values().filter(freeing).map(Grant::taken).sum()
    }

    /// Room that a node can come to have.
    fn reclaimable_to(&self, node: NodeId, priority: u8) -> u64 {
        let idle: u64 = self.reclaimable(node, priority).iter().map(|(_, bytes)| bytes).sum();
        self.free_of(node) + self.freeing(node) + idle
    }

    /// What may go for a tenant of this priority, in this order, and the room that each leaves.
    fn reclaimable(&self, node: NodeId, priority: u8) -> Vec<(GrantId, u64)> {
        let of = |grant: &Grant| self.tenants.tenants.get(&grant.tenant).map_or(0, |t| t.priority);
        let mut idle: Vec<_> = self
            .grants
            .iter()
            .filter(|(_, g)| g.node == node && self.is_unused(g) && of(g) < priority)
            .map(|(id, g)| (of(g), g.time, *id, g.taken()))
            .collect();
        idle.sort_unstable();
        idle.into_iter().map(|(.., id, bytes)| (id, bytes)).collect()
    }

    /// It is idle, or mirrors what is.
    fn is_unused(&self, grant: &Grant) -> bool {
        let is_idle = |id: GrantId| self.grants.get(&id).is_some_and(|of| of.phase == Phase::Idle);
        let is_mirror = matches!(grant.phase, Phase::Filling | Phase::Whole);
        grant.phase == Phase::Idle || (is_mirror && grant.mirror_of.is_some_and(is_idle))
    }

    fn full(&self, bytes: u64, requested: &OpenRequest, nodes: &[NodeId]) -> Error {
        let pod = requested.pod.as_deref();
        let of_device = |id| self.devices.get(id).map_or(0, |device| device.bytes);
        let of = |id| self.nodes.get(id).map_or_else(|| of_device(id), |node| node.bytes);
        let whole: u64 = nodes.iter().map(of).sum();
        let most = nodes.iter().map(|id| self.free_of(*id)).max().unwrap_or(0);
        let place = pod.map_or("the pool".into(), |pod| format!("pod {pod}"));
        let is_remote = requested.reach != Reach::Mapped;
        Error::Full(match nodes.is_empty() {
            true if is_remote => format!(
                "{place} has no memory node that is connected and reached over the fabric (cenote memory --rdma starts \
                 one)"
            ),
            true if !self.devices.is_empty() => format!(
                "{place} has no memory node on this machine that is connected (cenote memory starts one), and no device \
                 that this host has joined (cenote host); what is to be mirrored lies on memory nodes alone"
            ),
            true => format!(
                "{place} has no memory node on this machine that is connected (cenote memory starts one), and no device that this host has joined (cenote host)"
            ),
            false => format!(
                "no memory node or device of {place} has {} free (together they have {}, the most on one is {}); see `cenote pool status`",
                ByteSize(bytes),
                ByteSize(whole),
                ByteSize(most)
            ),
        })
    }

    /// Its node could not admit a holder: one that never had a holder goes away again.
    pub fn not_admitted(&mut self, id: GrantId, epoch: u64, now: Nanos) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        if grant.phase == Phase::Held && grant.epoch == epoch {
            grant.enter(if epoch == 1 { Phase::Freeing } else { Phase::Fencing });
            grant.epoch += 1;
            grant.time = now;
        }
        self.settle_mirrors();
    }

    /// A grant as its holder has it.
    fn held(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<&Grant> {
        let grant = self.grants.get(&id).filter(|grant| grant.tenant == tenant);
        match grant {
            Some(grant) if (grant.epoch == epoch || planted(Fault::EpochCheck)) && grant.phase == Phase::Held => {
                Ok(grant)
            }
            _ => Err(Error::Revoked(format!(
                "grant {id} is not held with epoch {epoch} any more: its lease lapsed, or it was taken back"
            ))),
        }
    }

    fn held_mut(&mut self, tenant: &str, id: GrantId, epoch: u64) -> Result<&mut Grant> {
        self.held(tenant, id, epoch)?;
        Ok(self.grants.get_mut(&id).expect("it was found"))
    }

    /// The holder is there still.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more.
    pub fn renew(&mut self, tenant: &str, id: GrantId, epoch: u64, now: Nanos, lease: Nanos) -> Result<()> {
        let grant = self.held_mut(tenant, id, epoch)?;
        grant.time = Nanos(now.raw() + lease.raw());
        grant.renewals += 1;
        Ok(())
    }

    /// The memory of a holder that reaches it over the fabric: where it lies, and its length.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more; [`Error::Invalid`] if it maps its memory.
    pub fn lendable(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<(NodeId, u64)> {
        let grant = self.held(tenant, id, epoch)?;
        match grant.remote {
            true => Ok((grant.node, grant.bytes)),
            false => Err(Error::Invalid(format!(
                "grant {id} is mapped by its holder, and not lent"
            ))),
        }
    }

    /// The memory of a tenant's label that may be read over the fabric: which it is, where it lies, and its length. It
    /// may have no holder now: it keeps what the last one wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Mismatch`] if it is mapped; [`Error::Busy`] while it goes from one
    /// holder to the next, or is freed.
    pub fn readable(&self, tenant: &str, label: &str) -> Result<(GrantId, NodeId, u64)> {
        let found = self.labelled(tenant, label);
        let none = || Error::Invalid(format!("tenant \"{tenant}\" has no grant \"{label}\""));
        let (id, grant) = found.ok_or_else(none)?;
        if !grant.remote {
            let text = format!("grant {id} is mapped by its holders, and is not read over the fabric");
            return Err(Error::Mismatch(text));
        }
        match grant.phase {
            Phase::Held | Phase::Idle => Ok((id, grant.node, grant.bytes)),
            phase => Err(Error::Busy(format!("grant {id} is {phase}: try again"))),
        }
    }

    fn labelled(&self, tenant: &str, label: &str) -> Option<(GrantId, &Grant)> {
        let same = |grant: &Grant| grant.tenant == tenant && grant.label == label;
        self.grants().find(|(_, grant)| same(grant))
    }

    /// The holder needs it no more; `give_back`: nor does its tenant.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more.
    pub fn release(&mut self, tenant: &str, id: GrantId, epoch: u64, give_back: bool, now: Nanos) -> Result<()> {
        let grant = self.held_mut(tenant, id, epoch)?;
        // Whether it has let go of the mapping is its node's to confirm.
        grant.enter(if give_back { Phase::Freeing } else { Phase::Fencing });
        grant.epoch += 1;
        grant.time = now;
        self.settle_mirrors();
        Ok(())
    }

    // ---- time and confirmations ----

    /// Whether [`GrantTable::tick`] would change anything.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.grants.values().any(|grant| grant.due(now).is_some())
    }

    /// Lapses leases, and gives up what was idle for too long.
    pub fn tick(&mut self, now: Nanos) {
        let lapse = |grant: &mut Grant| {
            if let Some(next) = grant.due(now) {
                grant.enter(next);
                grant.epoch += 1;
            }
        };
        self.grants.change_each(|grant| grant.due(now).is_some(), lapse);
        self.settle_mirrors();
    }

    /// A grant's node has done what its phase asks for, and no process has it mapped.
    pub fn confirmed(&mut self, id: GrantId, epoch: u64, now: Nanos) {
        let Some(grant) = self.grants.get_mut(&id).filter(|grant| grant.epoch == epoch) else {
            return;
        };
        match grant.phase {
            Phase::Fencing => {
                assert!(
                    grant.mirror_of.is_none(),
                    "grant {id} is a mirror: it has no holder to be fenced"
                );
                grant.enter(if grant.part.is_some() { Phase::Kept } else { Phase::Idle });
                grant.set_host(None);
                grant.time = now;
                // A mirror that takes a grant's place was closed: its journal is gone.
                self.set_lent(id, false);
            }
            Phase::Freeing => drop(self.grants.remove(&id)),
            Phase::Keeping => {
                assert!(grant.part.is_some(), "grant {id} is kept, so it is a part of a space");
                grant.enter(Phase::Kept);
                grant.time = now;
            }
            Phase::Held | Phase::Idle | Phase::Kept | Phase::Filling | Phase::Whole => {}
        }
        self.settle_spaces();
    }

    /// An operator takes it away from its holder.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this number, or it is part of a space, or a mirror.
    pub fn free(&mut self, id: GrantId) -> Result<()> {
        self.check_alone(id)?;
        self.check_no_mirror(id)?;
        self.set_freeing(id);
        Ok(())
    }

    fn set_freeing(&mut self, id: GrantId) {
        if let Some(grant) = self.grants.get_mut(&id).filter(|grant| grant.phase != Phase::Freeing) {
            grant.enter(Phase::Freeing);
            grant.epoch += 1;
        }
        self.settle_mirrors();
    }

    // ---- views and checks ----

    /// Nodes, as people see them.
    pub fn node_views(&self) -> Vec<NodeView> {
        let view = |(id, node): (&NodeId, &Node)| NodeView {
            id: *id,
            pod: node.pod.clone(),
            bytes: node.bytes,
            granted: self.granted(*id),
            connected: node.connected,
            directory: node.directory.clone(),
        };
        self.nodes.iter().map(view).collect()
    }

    /// Tenants, as people see them.
    pub fn tenant_views(&self) -> Vec<TenantView> {
        let view = |(name, tenant): (&String, &Tenant)| TenantView {
            name: name.clone(),
            quota: tenant.quota,
            priority: tenant.priority,
            granted: self.granted_to(name),
        };
        self.tenants.tenants.iter().map(view).collect()
    }

    /// Grants, as people see them.
    pub fn grant_views(&self, now: Nanos) -> Vec<GrantView> {
        let view = |(id, grant): (&GrantId, &Grant)| GrantView {
            id: *id,
            tenant: grant.tenant.clone(),
            label: grant.label.clone(),
            description: grant.description.clone(),
            bytes: grant.bytes,
            node: grant.node,
            pod: self.pod_of(grant.node).into(),
            epoch: grant.epoch,
            phase: grant.phase,
            mirror_of: grant.mirror_of,
            offset: grant.range.as_ref().map(|range| range.offset),
            host: grant.host().map(str::to_owned),
            remote: grant.remote,
            time: match grant.phase {
                Phase::Held => grant.time.since(now).raw(),
                _ => now.since(grant.time).raw(),
            },
        };
        self.grants.iter().map(view).collect()
    }

    /// What contradicts the invariants.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.problems_of_spaces();
        problems.extend(self.problems_of_mirrors());
        problems.extend(self.problems_of_grants());
        problems.extend(self.problems_of_devices());
        for (id, node) in self.nodes.iter() {
            let granted = self.granted(*id);
            if granted > node.bytes {
                let (bytes, granted) = (ByteSize(node.bytes), ByteSize(granted));
                problems.push(format!("memory node {id} has {bytes} and granted {granted}"));
            }
        }
        problems
    }

    fn problems_of_grants(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut labels = BTreeSet::new();
        for (id, grant) in self.grants.iter() {
            if id.0 == 0 || id.0 >= self.next {
                problems.push(format!("grant {id} has a number that is not given yet"));
            }
            if !self.nodes.contains_key(&grant.node) && !self.devices.contains_key(&grant.node) {
                let node = grant.node;
                problems.push(format!("grant {id} lies on memory node {node}, which is unknown"));
            }
            if grant.bytes == 0 || !grant.bytes.is_multiple_of(EXTENT) {
                problems.push(format!("grant {id} has {} bytes, no whole extents", grant.bytes));
            }
            if !labels.insert((&grant.tenant, &grant.label)) {
                let (tenant, label) = (&grant.tenant, &grant.label);
                problems.push(format!("tenant \"{tenant}\" has label \"{label}\" twice"));
            }
            // Epochs rise from 1 on with each holder: with 0 a former holder's would come again.
            let had_holder = matches!(grant.phase, Phase::Held | Phase::Fencing | Phase::Idle);
            if had_holder && grant.epoch == 0 {
                problems.push(format!("grant {id} is {} and has had no epoch", grant.phase));
            }
        }
        problems
    }
}

mod devices;
mod hosts;
mod kept;
mod mirrors;
mod moves;
mod ranges;
mod records;
mod slabs;
mod spaces;
#[cfg(test)]
mod tests;
