//! What a manager that leads does: everything of one leadership.

use super::holders::Holders;
use super::links::{Link, Links};
use super::not_made::NotMade;
use super::reaching::Reaching;
use super::stored::StoredGrantTable;
use super::told::Told;
use crate::grant_table::{Grant, GrantId, GrantTable, NODES_COME_WITHIN, NodeId, Opening, Phase};
use crate::settings::Tenants;
use crate::store::Leadership;
use crate::wire::{
    self, AuditReport, GrantFile, Hello, HostWelcome, NodeHello, OpenRequest, Opened, Order, OrderReply, PoolStatus,
    Reply, Request, Role, VERSION, Welcome,
};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How long a lease lasts, unless told.
pub const LEASE_DEFAULT: Nanos = Nanos::from_secs(10);
pub(super) const TURN: Nanos = Nanos::from_millis(50);
pub(super) const HELLO_TIMEOUT: Nanos = Nanos::from_secs(5);
pub(super) const PING_EVERY: Nanos = Nanos::from_secs(2);
/// How long a client that opens a grant waits for what is being fenced, freed or reclaimed.
pub(super) const OPEN_TIMEOUT: Nanos = Nanos::from_secs(15);
const _: () = assert!(
    NODES_COME_WITHIN.0 < OPEN_TIMEOUT.0,
    "a client that opens waits until a node has come or counts as away"
);
/// How long for a former holder that is ending just now.
pub(super) const ENDING_TIMEOUT: Nanos = Nanos::from_secs(3);
/// Before an order that failed is given again.
pub(super) const AGAIN: Nanos = Nanos::from_secs(1);
/// A turn that is later than this was held up: no holder was heard meanwhile.
pub(super) const LATE: Nanos = Nanos::from_millis(500);

/// What a manager is started with.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// Where the grant table is, unless it has another [store](Manager::start_on).
    pub directory: PathBuf,
    /// Where it listens.
    pub listen: String,
    /// The tenants' quotas and priorities.
    pub tenants: Tenants,
    /// How long a lease lasts.
    pub lease: Nanos,
}

/// A manager that leads. Each part of it keeps its own invariants.
pub(super) struct Leader {
    options: ManagerOptions,
    pool: u128,
    term: u64,
    pub(super) grant_table: Arc<StoredGrantTable>,
    pub(super) links: Arc<Links<NodeId>>,
    pub(super) agents: Arc<Links<(NodeId, String)>>,
    pub(super) not_made: NotMade,
    pub(super) told: Told,
    pub(super) holders: Holders,
    pub(super) reaching: Arc<Reaching>,
    stop: AtomicBool,
}

impl Leader {
    /// Begins a leadership: reads the grant table, or begins one.
    pub(super) fn begin(
        options: &ManagerOptions,
        leadership: Arc<dyn Leadership>,
        reaching: &Arc<Reaching>,
    ) -> Result<Self> {
        let (grant_table, term) = StoredGrantTable::begin(leadership, options.tenants.clone(), options.lease)?;
        let pool = grant_table.look().pool;
        Ok(Self {
            options: options.clone(),
            pool,
            term,
            links: grant_table.links(),
            agents: grant_table.agents(),
            grant_table: Arc::new(grant_table),
            not_made: NotMade::default(),
            told: Told::default(),
            holders: Holders::default(),
            reaching: Arc::clone(reaching),
            stop: AtomicBool::new(false),
        })
    }

    /// The pool's id.
    pub(super) fn pool(&self) -> u128 {
        self.pool
    }

    /// The number of its leadership.
    pub(super) fn term(&self) -> u64 {
        self.term
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.grant_table.notify();
        self.links.work_for_all();
        self.agents.work_for_all();
    }

    /// Ends the leadership. What is under way finds out by itself.
    pub(super) fn end(&self) {
        self.stop();
        self.grant_table.resign();
    }

    pub(super) fn lease(&self) -> Nanos {
        self.options.lease
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) || !self.grant_table.leads()
    }

    /// Lapses leases until the leadership is over.
    pub(super) fn lapse(&self) {
        let mut turned = rt::now();
        while !self.is_stopping() {
            let now = rt::now();
            if now.since(turned) > LATE {
                self.grant_table
                    .change_unstored(|grant_table| grant_table.no_holder_was_heard(now.since(turned)));
            }
            turned = now;
            // This process may be stopped at any point here: what lapses is what had lapsed when the turn began.
            let due = self.grant_table.look().is_due(now);
            if due && let Err(error) = self.grant_table.update(|grant_table| grant_table.tick(now)) {
                eprintln!("cenote: manager: {error}");
                rt::sleep(AGAIN);
            }
            rt::sleep(TURN);
        }
    }

    // ---- connections ----

    /// Tenants that there may be.
    pub(super) fn tenants(&self) -> usize {
        self.options.tenants.tenants.len()
    }

    pub(super) fn welcome(&self) -> Result<Welcome> {
        self.grant_table.check_leads()?;
        Ok(Welcome {
            pool: self.pool,
            term: self.term,
            lease: self.options.lease.raw(),
            host: None,
        })
    }

    /// Whether a peer is what it says to be.
    pub(super) fn authenticate(&self, hello: &Hello) -> Result<()> {
        if hello.version != VERSION {
            return Err(Error::Mismatch(format!(
                "the manager speaks version {VERSION} of the pool's protocol, this program {}",
                hello.version
            )));
        }
        match &hello.role {
            Role::Tenant(name) => self.options.tenants.admit(name, &hello.secret).map(drop),
            Role::Operator | Role::Node(_) | Role::Host(_) | Role::Keeper(_) => {
                self.options.tenants.admit_staff(&hello.secret)
            }
        }
    }

    /// A memory node, or an agent, that comes is in the grant table from here on.
    pub(super) fn admit_peer(&self, hello: &Hello) -> Result<Option<HostWelcome>> {
        match &hello.role {
            Role::Node(node) => self
                .grant_table
                .change(|grant_table| grant_table.join(node))
                .map(|()| None),
            Role::Host(agent) => self
                .grant_table
                .change(|grant_table| grant_table.join_host(agent))
                .map(Some),
            Role::Tenant(_) | Role::Operator | Role::Keeper(_) => Ok(None),
        }
    }

    /// A memory node, or an agent, is gone.
    pub(super) fn dismiss(&self, role: &Role) {
        match role {
            Role::Node(node) => {
                self.links.remove(&node.id);
                // A part that it has made is not open there when it comes again: it is ordered anew. What it is told then
                // is not to be forgotten: it cannot come before it has left.
                let making = self.grant_table.look().work_of(node.id);
                self.told.is_gone(node.id, &making);
                self.grant_table
                    .change_unstored(|grant_table| grant_table.leave(node.id));
                self.links.work_for_all();
            }
            Role::Host(agent) => self.agent_has_left(agent),
            Role::Tenant(_) | Role::Operator | Role::Keeper(_) => {}
        }
    }

    /// What is answered, if this manager may. A process that hears that it is the holder no more ends itself, and one
    /// that hears of another mirror, or none, copies to its own no more: the store is asked before that is said.
    pub(super) fn checked(&self, answer: Result<Reply>) -> Reply {
        let may = match &answer {
            Err(Error::Revoked(_)) | Ok(Reply::Mirror(_)) => self.grant_table.confirm(),
            _ => self.grant_table.check_leads(),
        };
        may.and(answer).unwrap_or_else(|error| Reply::Failed(error.into()))
    }

    // ---- memory nodes ----

    pub(super) fn serve_node(&self, node: &NodeHello, connection: &Arc<dyn Connection>) -> Result<()> {
        // It has noted whose it is.
        let _: OrderReply = wire::receive(&**connection, HELLO_TIMEOUT)?;
        let link = Arc::new(Link::new(connection, self.grant_table.leadership()));
        self.links.add(node.id, &link);
        self.grant_table.notify();
        self.remind(node.id, &link)?;
        // Where it is is news to nodes that keep parts of the same spaces.
        self.links.work_for_all();
        let mut pinged = rt::now();
        let mut told = BTreeMap::new();
        let mut failed = false;
        while !self.is_stopping() {
            if link.has_work(if failed { AGAIN } else { PING_EVERY }) || failed {
                failed = self.do_work(node.id, &link)?;
                self.tell_peers(node.id, &link, &mut told)?;
            }
            if rt::now().since(pinged) >= PING_EVERY {
                link.order(&Order::Ping)?;
                pinged = rt::now();
            }
        }
        Ok(())
    }

    /// Does what grants of this node wait for; says whether some of it failed. An error is the connection's.
    pub(super) fn do_work(&self, node: NodeId, link: &Link) -> Result<bool> {
        let mut failed = false;
        let work = self.grant_table.look().work_of(node);
        for id in work {
            let found = self.grant_table.look().grant(id).map(|g| (g.phase, g.epoch));
            let Ok((phase, epoch)) = found else { continue };
            let order = match phase {
                Phase::Fencing => Order::Fence { grant: id },
                Phase::Freeing => Order::Free { grant: id },
                Phase::Keeping if self.told.is_made(id) => {
                    failed |= !self.keep_if_told(id, epoch)?;
                    continue;
                }
                Phase::Keeping => match self.grant_table.look().part_order(id) {
                    Some(order) => Order::Keep(order),
                    None => continue,
                },
                Phase::Held | Phase::Idle | Phase::Kept | Phase::Filling | Phase::Whole => continue,
            };
            match link.order(&order).and_then(|_| self.take_up(id, phase, link)) {
                Ok(()) if phase == Phase::Keeping => {
                    self.told.set_made(id);
                    failed |= !self.keep_if_told(id, epoch)?;
                }
                Ok(()) => self.grant_table.update(|grant_table| {
                    grant_table.confirmed(id, epoch, rt::now());
                })?,
                Err(error @ (Error::Lost(_) | Error::Timeout(_))) => return Err(error),
                Err(error) if phase == Phase::Keeping => self.not_kept(id, error)?,
                Err(error) => {
                    eprintln!("cenote: manager: grant {id} stays in quarantine: {error}");
                    failed = true;
                }
            }
        }
        Ok(failed)
    }

    /// A mirror that takes a part's place, and that no former keeper writes to any more: its node keeps the part.
    fn take_up(&self, id: GrantId, phase: Phase, link: &Link) -> Result<()> {
        let part = self.grant_table.look().part_order(id);
        match part.filter(|_| phase == Phase::Fencing) {
            Some(part) => link.order(&Order::Keep(part)).map(drop),
            None => Ok(()),
        }
    }

    /// What a memory node asks of the mirror of a part that it keeps.
    pub(super) fn ask_of_keeper(&self, node: NodeId, request: Request) -> Result<Reply> {
        match request {
            Request::Mirror { grant, what, .. } => {
                let (tenant, epoch) = self.grant_table.look().kept_part(node, grant)?;
                self.mirror(&tenant, grant, epoch, what)
            }
            _ => Err(Error::Invalid(
                "that is asked of the manager by tenants or operators".into(),
            )),
        }
    }

    pub(super) fn order(&self, node: NodeId, order: &Order) -> Result<OrderReply> {
        self.link(node)?.order(order)
    }

    /// The way to a node. One that was just let in has yet to note whose it is: it is waited for.
    pub(super) fn link(&self, node: NodeId) -> Result<Arc<Link>> {
        let until = rt::now() + HELLO_TIMEOUT;
        loop {
            if let Some(link) = self.links.get(&node) {
                return Ok(link);
            }
            let grant_table = self.grant_table.look();
            let is_coming = grant_table.node(node).is_ok_and(|node| node.connected);
            if !is_coming || rt::now() > until || self.is_stopping() {
                return Err(Error::Lost(format!("memory node {node} is not connected")));
            }
            self.grant_table.wait(grant_table, TURN);
        }
    }

    // ---- holders ----

    pub(super) fn ask_of_tenant(self: &Arc<Self>, tenant: &str, request: Request) -> Result<Reply> {
        let (now, lease) = (rt::now(), self.options.lease);
        match request {
            Request::Open(requested) => self.open(tenant, &requested).map(Reply::Opened),
            Request::Confirm { grant, epoch, process } => self.confirm(tenant, grant, epoch, process),
            Request::Renew { grant, epoch } => {
                self.grant_table
                    .change_unstored(|grant_table| grant_table.renew(tenant, grant, epoch, now, lease))?;
                Ok(Reply::Done)
            }
            Request::Release {
                grant,
                epoch,
                give_back,
            } => {
                self.grant_table
                    .change(|grant_table| grant_table.release(tenant, grant, epoch, give_back, now))?;
                Ok(Reply::Done)
            }
            Request::Lend { grant, epoch } => self.lend(tenant, grant, epoch).map(Reply::Lent),
            Request::LendToRead { label } => self.lend_to_read(tenant, &label).map(Reply::Lent),
            Request::FreeSlab { first, epoch, slab } => {
                self.grant_table
                    .change(|grant_table| grant_table.free_slab(tenant, (first, epoch), slab))?;
                Ok(Reply::Done)
            }
            Request::OpenSlabs(requested) => self.open_slabs(tenant, &requested).map(Reply::Slabs),
            Request::Mirror { grant, epoch, what } => {
                self.grant_table.look().check_no_part(tenant, grant)?;
                self.mirror(tenant, grant, epoch, what)
            }
            Request::CreateSpace(requested) => self.create_space(tenant, &requested),
            Request::OpenSpace { name } => Ok(Reply::Space(self.grant_table.look().space_view(tenant, &name)?)),
            Request::GrowSpace(requested) => self.grow_space(tenant, &requested),
            Request::DropSpace { tenant: None, name } => {
                self.grant_table
                    .change(|grant_table| grant_table.drop_space(tenant, &name))?;
                Ok(Reply::Done)
            }
            Request::AuditSpace { name } => Ok(Reply::Audit(self.audit_space(tenant, &name)?)),
            Request::Spaces => Ok(Reply::Spaces(self.grant_table.look().space_summaries(Some(tenant)))),
            _ => Err(Error::Invalid("that is asked of the manager by operators".into())),
        }
    }

    pub(super) fn open(&self, tenant: &str, requested: &OpenRequest) -> Result<Opened> {
        let began = rt::now();
        loop {
            let opening = self
                .grant_table
                .change(|grant_table| grant_table.open(tenant, requested, rt::now(), self.options.lease))?;
            let waited = rt::now().since(began);
            match opening {
                Opening::Admit(id, epoch) => match self.admit(id, epoch, requested.mirror)? {
                    Some(opened) => return Ok(opened),
                    None => continue,
                },
                Opening::Ask(id, epoch) => match self.take_over(id, epoch, requested) {
                    Err(Error::Busy(_)) if waited < ENDING_TIMEOUT => {}
                    Ok(None) => continue,
                    Ok(Some(opened)) => return Ok(opened),
                    Err(error) => return Err(error),
                },
                Opening::Wait if waited < OPEN_TIMEOUT && !self.is_stopping() => {}
                Opening::Wait => {
                    let text = "memory for it is being taken back from its former holder: try again, and see `cenote pool status`";
                    return Err(Error::Busy(text.into()));
                }
            }
            rt::sleep(TURN);
        }
    }

    /// The former holder has a lease still. If its node says that no process uses the memory, it is dead, and a next
    /// one need not wait. `None`: the grant is gone meanwhile.
    pub(super) fn take_over(&self, id: GrantId, epoch: u64, requested: &OpenRequest) -> Result<Option<Opened>> {
        let found = self
            .grant_table
            .look()
            .grant(id)
            .map(|grant| (grant.clone(), grant.renewals));
        let Ok((grant, renewals)) = found else {
            return Ok(None);
        };
        let host = requested.host.as_deref();
        let inspected = match grant.range {
            Some(_) => self.inspect_range(id, &grant, host)?,
            None => self.order(grant.node, &Order::Inspect { grant: id })?,
        };
        let OrderReply::Holders(holders) = inspected else {
            return Err(Error::corrupt("a memory node's answer"));
        };
        if !holders.is_empty() {
            return Err(Error::Busy(format!("grant {id} is in use by {}", holders.join(", "))));
        }
        self.check_mirror_is_left(id)?;
        match self
            .grant_table
            .change(|table| table.take_over((id, epoch, renewals), host, rt::now(), self.options.lease))?
        {
            Opening::Admit(id, epoch) => self.admit(id, epoch, requested.mirror),
            Opening::Ask(..) | Opening::Wait => Err(Error::Busy(format!("grant {id} is being taken back"))),
        }
    }

    /// Its node makes the grant's file, if it is new. `None`: it has to be opened anew, as the memory was lost, and the
    /// mirror is the grant from here on, or the grant was freed meanwhile.
    pub(super) fn admit(&self, id: GrantId, epoch: u64, mirror: bool) -> Result<Option<Opened>> {
        let Ok(grant) = self.grant_table.look().grant(id).cloned() else {
            return Ok(None);
        };
        let is_held = |grant: &Grant| grant.phase == Phase::Held && grant.epoch == epoch;
        let admitted = match grant.range {
            Some(_) => self.admit_range(id, &grant, is_held),
            None => self.admit_if(grant.node, id, is_held),
        };
        let Some(admitted) = admitted.transpose() else {
            return Ok(None);
        };
        let is_lost = matches!(
            admitted,
            Ok(OrderReply::Admitted { fresh: true }) | Err(Error::Io { .. })
        );
        if is_lost
            && self
                .grant_table
                .change(|grant_table| Ok(grant_table.memory_was_lost(id, epoch)))?
        {
            eprintln!("cenote: manager: the memory of grant {id} is lost: its mirror takes its place");
            return Ok(None);
        }
        let fresh = match admitted {
            Ok(OrderReply::Admitted { fresh }) => fresh,
            other => {
                self.grant_table.update(|grant_table| {
                    grant_table.not_admitted(id, epoch, rt::now());
                })?;
                return Err(other.err().unwrap_or_else(|| Error::corrupt("a memory node's answer")));
            }
        };
        let mirror = self.mirror_at_opening(id, mirror)?;
        let (path, range) = self.place_of(id, &grant)?;
        let pod = self.grant_table.look().pod_of(grant.node).to_owned();
        Ok(Some(Opened {
            grant: id,
            epoch,
            bytes: grant.bytes,
            pod,
            path,
            fresh,
            mirror,
            range,
        }))
    }

    /// Has a grant's node make its file, if that is still wanted when it is its turn: what was freed meanwhile would be
    /// there again, and of no holder.
    pub(super) fn admit_if(
        &self,
        node: NodeId,
        id: GrantId,
        is_wanted: impl Fn(&Grant) -> bool,
    ) -> Result<Option<OrderReply>> {
        let is_wanted = || self.grant_table.look().grant(id).is_ok_and(is_wanted);
        self.link(node)?.order_if(&Order::Admit { grant: id }, is_wanted)
    }

    // ---- operators ----

    pub(super) fn ask_of_operator(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Status => Ok(Reply::Status(self.status())),
            Request::Audit => Ok(Reply::Audit(self.audit())),
            Request::Free { grant } => self
                .grant_table
                .change(|grant_table| grant_table.free(grant))
                .map(|()| Reply::Done),
            Request::Forget { node } => self
                .grant_table
                .change(|grant_table| grant_table.forget(node))
                .map(|()| Reply::Done),
            Request::HostLost { host, pod } => self.host_lost(&host, pod.as_deref()),
            Request::DropSpace {
                tenant: Some(tenant),
                name,
            } => self
                .grant_table
                .change(|grant_table| grant_table.drop_space(&tenant, &name))
                .map(|()| Reply::Done),
            _ => Err(Error::Invalid("memory is granted to tenants".into())),
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        let grant_table = self.grant_table.look();
        PoolStatus {
            pool: self.pool,
            lease: self.options.lease.raw(),
            nodes: grant_table.node_views(),
            devices: grant_table.device_views(),
            tenants: grant_table.tenant_views(),
            grants: grant_table.grant_views(rt::now()),
            spaces: grant_table.space_summaries(None),
        }
    }

    /// Compares the grant table with what nodes find. Grants that change meanwhile are looked at as they were before
    /// and after.
    pub(super) fn audit(&self) -> AuditReport {
        let mut report = AuditReport {
            problems: self.grant_table.look().problems(),
            ..AuditReport::default()
        };
        let nodes = self.grant_table.look().node_views();
        for node in nodes {
            let name = format!("memory node {} of pod {}", node.id, node.pod);
            let before = of_node(&self.grant_table.look(), node.id);
            match self.order(node.id, &Order::List) {
                Ok(OrderReply::Files(files)) => {
                    let after = of_node(&self.grant_table.look(), node.id);
                    compare(&name, [before, after], &files, &mut report);
                    let parts = self.grant_table.look().kept_by(node.id);
                    self.audit_parts(&name, node.id, &parts, &mut report);
                }
                Ok(_) => report.problems.push(format!("{name}: gave no list")),
                Err(error) => report.problems.push(format!("{name}: {error}")),
            }
        }
        self.audit_devices(&mut report);
        report
    }
}

/// A node's grants: phase, epoch, bytes, and whether a process may map it.
type GrantsOfNode = BTreeMap<GrantId, (Phase, u64, u64, bool)>;

fn of_node(grant_table: &GrantTable, node: NodeId) -> GrantsOfNode {
    let grants = grant_table.grants().filter(|(_, grant)| grant.node == node);
    grants
        .map(|(id, grant)| (id, (grant.phase, grant.epoch, grant.bytes, grant_table.may_be_used(id))))
        .collect()
}

fn compare(name: &str, tables: [GrantsOfNode; 2], files: &[GrantFile], report: &mut AuditReport) {
    let [before, after] = tables;
    let granted: u64 = after.values().map(|grant| grant.2).sum();
    let used: u64 = files.iter().map(|file| file.len).sum();
    report.summary.push(format!(
        "{name}: {} in {} grants, {} in {} files",
        ByteSize(granted),
        after.len(),
        ByteSize(used),
        files.len()
    ));
    for file in files {
        let id = file.grant;
        match (before.get(&id), after.get(&id)) {
            (None, None) => report.problems.push(format!("{name}: grant-{id} is of no grant")),
            (Some(was), Some(is)) if was == is => {
                if file.len > is.2 {
                    let (len, bytes) = (ByteSize(file.len), ByteSize(is.2));
                    report
                        .problems
                        .push(format!("{name}: grant-{id} has {len}, {bytes} were granted"));
                }
                if !is.3 && !file.holders.is_empty() {
                    let holders = file.holders.join(", ");
                    report
                        .problems
                        .push(format!("{name}: grant {id} has no holder, but {holders} uses it"));
                }
            }
            // It changed meanwhile.
            _ => {}
        }
    }
    for (id, was) in &before {
        let there = files.iter().any(|file| file.grant == *id);
        if !there && after.get(id) == Some(was) && matches!(was.0, Phase::Held | Phase::Kept | Phase::Whole) {
            report
                .problems
                .push(format!("{name}: grant {id} is {}, but its file is gone", was.0));
        }
    }
}

/// Where a grant's file lies.
pub(super) fn path_of(grant_table: &GrantTable, node: NodeId, id: GrantId) -> Result<PathBuf> {
    Ok(Path::new(&grant_table.node(node)?.directory).join(format!("grant-{id}")))
}
