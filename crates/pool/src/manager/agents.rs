//! The manager and the agents of hosts: what is done for grants that lie on devices which hosts share.
//!
//! An agent's connection has a thread, as a memory node's has: it orders what the phases of grants ask of this host
//! until it is confirmed. An order that is under way at one agent is repeated by no other: the grant names that host
//! until the agent has answered, over a later connection if need be, or the host was lost. So a zeroing that a stopped
//! agent has begun does not go on over the next holder's bytes.

use super::leader::{AGAIN, HELLO_TIMEOUT, Leader, PING_EVERY, TURN, path_of};
use super::links::Link;
use crate::grant_table::{Device, Grant, GrantId, GrantTable, HostLoss, NodeId, Phase};
use crate::host::Process;
use crate::wire::{
    self, AuditReport, GrantedRange, HostHello, HostWelcome, Order, OrderReply, RangeFound, RangeOrder, RangeWork,
    Reply,
};
use cenote_base::rt::{self, Nanos};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Between two looks whether the manager is to stop.
const STOP_TURN: Nanos = Nanos::from_millis(250);
/// How long an agent may take to end what maps the device before it joins.
const CLEAR_TIMEOUT: Nanos = Nanos::from_secs(20);

impl Leader {
    // ---- an agent's connection ----

    pub(super) fn serve_agent(
        &self,
        agent: &HostHello,
        welcome: &HostWelcome,
        connection: &Arc<dyn Connection>,
    ) -> Result<()> {
        self.await_clear(&**connection)?;
        self.grant_table
            .update(|grant_table| grant_table.host_is_clear(agent, welcome.epoch))?;
        let link = Arc::new(Link::new(connection, self.grant_table.leadership()));
        self.agents.add(key(agent), &link);
        self.grant_table.notify();
        let (mut pinged, mut failed) = (rt::now(), false);
        while !self.is_stopping() {
            if link.has_work(if failed { AGAIN } else { PING_EVERY }) || failed {
                failed = self.do_work_of_host(agent, &link)?;
            }
            if rt::now().since(pinged) >= PING_EVERY {
                link.order(&Order::Ping)?;
                pinged = rt::now();
            }
        }
        Ok(())
    }

    pub(super) fn agent_has_left(&self, agent: &HostHello) {
        self.agents.remove(&key(agent));
        self.grant_table
            .change_unstored(|grant_table| grant_table.leave_host(agent.device, &agent.host));
    }

    /// The agent has ended what it was told to end, and noted its host's epoch.
    fn await_clear(&self, connection: &dyn Connection) -> Result<()> {
        let until = rt::now() + CLEAR_TIMEOUT;
        loop {
            match wire::receive::<OrderReply>(connection, STOP_TURN) {
                Ok(_) => return Ok(()),
                Err(Error::Timeout(_)) if rt::now() < until && !self.is_stopping() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Does what grants wait for on this host; says whether some of it failed. An error is the connection's.
    fn do_work_of_host(&self, agent: &HostHello, link: &Link) -> Result<bool> {
        let mut failed = false;
        let work = self.grant_table.look().work_of_host(agent.device, &agent.host);
        for id in work {
            let found = self.grant_table.look().grant(id).cloned();
            let Ok(grant) = found else { continue };
            let work = match grant.phase {
                Phase::Fencing => RangeWork::Fence,
                Phase::Freeing if self.claims_freeing(id, &grant, &agent.host)? => RangeWork::Free,
                _ => continue,
            };
            match link.order(&range_order(id, &grant, work)?) {
                Ok(_) => self.grant_table.update(|grant_table| {
                    grant_table.confirmed(id, grant.epoch, rt::now());
                })?,
                Err(error @ (Error::Lost(_) | Error::Timeout(_))) => return Err(error),
                Err(error) => {
                    eprintln!("cenote: manager: grant {id} stays in quarantine: {error}");
                    failed = true;
                }
            }
        }
        Ok(failed)
    }

    /// Which host frees it is written down before that begins.
    fn claims_freeing(&self, id: GrantId, grant: &Grant, host: &str) -> Result<bool> {
        match grant.host() {
            Some(of) => Ok(of == host),
            None => self
                .grant_table
                .change(|grant_table| Ok(grant_table.claim_freeing(id, host))),
        }
    }

    /// The way to the agent of a host. One that has yet to say that its host is clear is waited for.
    fn agent(&self, device: NodeId, host: &str) -> Result<Arc<Link>> {
        let (until, key) = (rt::now() + HELLO_TIMEOUT, (device, host.to_owned()));
        loop {
            if let Some(link) = self.agents.get(&key) {
                return Ok(link);
            }
            let grant_table = self.grant_table.look();
            let known = grant_table
                .device(device)
                .ok()
                .and_then(|device| device.hosts.get(host));
            let is_coming = known.is_some_and(|host| host.connected);
            if !is_coming || rt::now() > until || self.is_stopping() {
                return Err(Error::Lost(format!("the agent of host \"{host}\" is not connected")));
            }
            self.grant_table.wait(grant_table, TURN);
        }
    }

    fn order_range(&self, id: GrantId, grant: &Grant, work: RangeWork) -> Result<OrderReply> {
        let order = range_order(id, grant, work)?;
        self.agent(grant.node, host_of(id, grant)?)?.order(&order)
    }

    // ---- lost hosts ----

    /// A host is over, as its switch or an operator says. Its agent contradicts that, if it answers: one that was
    /// killed, or cut off with its host, may not be missed yet.
    pub(super) fn host_lost(&self, host: &str, pod: Option<&str>) -> Result<Reply> {
        let lose = || {
            self.grant_table
                .change(|grant_table| grant_table.lose_host(host, pod, rt::now()))
        };
        let loss = match lose() {
            Err(Error::Busy(_)) if !self.answers(host, pod) => {
                self.await_leaving(host, pod);
                lose()
            }
            loss => loss,
        };
        Ok(match loss? {
            HostLoss::Closed => Reply::Done,
            HostLoss::TooEarly(left) => Reply::TooEarly { left: left.raw() },
        })
    }

    /// Devices at which the agent of a host is connected.
    fn connected_at(&self, host: &str, pod: Option<&str>) -> Vec<NodeId> {
        let grant_table = self.grant_table.look();
        let is_there = |device: &Device| {
            let is_meant = pod.is_none_or(|pod| pod == device.pod);
            is_meant && device.hosts.get(host).is_some_and(|host| host.connected)
        };
        let devices = grant_table.devices().filter(|(_, device)| is_there(device));
        devices.map(|(id, _)| id).collect()
    }

    fn answers(&self, host: &str, pod: Option<&str>) -> bool {
        self.connected_at(host, pod).into_iter().any(|device| {
            // One that has yet to join was just heard.
            let Some(link) = self.agents.get(&(device, host.to_owned())) else {
                return true;
            };
            let answers = link.order(&Order::Ping).is_ok();
            if !answers {
                link.close();
            }
            answers
        })
    }

    fn await_leaving(&self, host: &str, pod: Option<&str>) {
        let until = rt::now() + HELLO_TIMEOUT;
        while !self.connected_at(host, pod).is_empty() && rt::now() < until && !self.is_stopping() {
            let grant_table = self.grant_table.look();
            self.grant_table.wait(grant_table, TURN);
        }
    }

    // ---- holders ----

    /// Which processes map the range of a grant that is held. If none does, and the next holder is on another host,
    /// nothing of it stays in this one's caches.
    pub(super) fn inspect_range(&self, id: GrantId, grant: &Grant, next: Option<&str>) -> Result<OrderReply> {
        let write_back = grant.host() != next;
        self.order_range(id, grant, RangeWork::Inspect { write_back })
    }

    /// As [`Leader::admit_if`], of a grant that lies on a device.
    pub(super) fn admit_range(
        &self,
        id: GrantId,
        grant: &Grant,
        is_wanted: impl Fn(&Grant) -> bool,
    ) -> Result<Option<OrderReply>> {
        let is_wanted = || self.grant_table.look().grant(id).is_ok_and(is_wanted);
        let new = grant.range.as_ref().is_some_and(|range| !range.known);
        let order = range_order(id, grant, RangeWork::Admit { new })?;
        let admitted = self
            .agent(grant.node, host_of(id, grant)?)?
            .order_if(&order, is_wanted)?;
        if new && admitted.is_some() {
            self.grant_table.update(|grant_table| grant_table.range_is_known(id))?;
        }
        Ok(admitted)
    }

    /// What a holder maps.
    pub(super) fn place_of(&self, id: GrantId, grant: &Grant) -> Result<(String, Option<GrantedRange>)> {
        let grant_table = self.grant_table.look();
        let Some(range) = &grant.range else {
            return Ok((path_of(&grant_table, grant.node, id)?.display().to_string(), None));
        };
        let name = host_of(id, grant)?;
        let host = grant_table.device(grant.node)?.hosts.get(name);
        let host = host.ok_or_else(|| Error::Lost(format!("host \"{name}\" has left")))?;
        let range = GrantedRange {
            device: grant.node,
            offset: range.offset,
            host: name.into(),
            host_epoch: host.epoch,
        };
        Ok((host.path.clone(), Some(range)))
    }

    /// A holder says that it has mapped its grant. The agent of the host that it has named has to see that: a process
    /// elsewhere could not be fenced.
    pub(super) fn confirm(&self, tenant: &str, id: GrantId, epoch: u64, process: Process) -> Result<Reply> {
        let renew = |table: &mut GrantTable| table.renew(tenant, id, epoch, rt::now(), self.lease());
        self.grant_table.change_unstored(renew)?;
        let grant = self.grant_table.look().grant(id)?.clone();
        if grant.range.is_some() {
            let seen = self.order_range(id, &grant, RangeWork::Confirm(process));
            if matches!(seen, Err(Error::Mismatch(_))) {
                self.grant_table
                    .update(|grant_table| grant_table.not_admitted(id, epoch, rt::now()))?;
            }
            seen?;
            self.grant_table.change_unstored(renew)?;
        }
        Ok(Reply::Done)
    }

    // ---- audits ----

    /// Compares the grant table with each device's directory, and what each host's processes map with both.
    pub(super) fn audit_devices(&self, report: &mut AuditReport) {
        let devices = self.grant_table.look().device_views();
        for device in devices {
            let name = format!("device {} of pod {}", device.id, device.pod);
            if device.devdax {
                report.summary.push(format!("{name}: {APART}"));
            }
            for host in device.hosts.iter().filter(|host| host.open) {
                let name = format!("{name}, host {}", host.name);
                let before = self.grant_table.look().clone();
                let found = self
                    .agent(device.id, &host.name)
                    .and_then(|link| link.order(&Order::List));
                match found {
                    Ok(OrderReply::Ranges(found)) => {
                        let after = self.grant_table.look().clone();
                        compare(&name, (device.id, &host.name), [&before, &after], &found, report);
                    }
                    Ok(_) => report.problems.push(format!("{name}: gave no list")),
                    Err(error) => report.problems.push(format!("{name}: {error}")),
                }
            }
        }
    }
}

const APART: &str = "one device for all tenants: a process that has it open can map another's range";

fn key(agent: &HostHello) -> (NodeId, String) {
    (agent.device, agent.host.clone())
}

fn host_of(id: GrantId, grant: &Grant) -> Result<&str> {
    grant
        .host()
        .ok_or_else(|| Error::Lost(format!("grant {id} has no host any more: its host was lost")))
}

fn range_order(id: GrantId, grant: &Grant, work: RangeWork) -> Result<Order> {
    let range = grant.range.as_ref();
    let range = range.ok_or_else(|| Error::Invalid(format!("grant {id} lies on no device")))?;
    Ok(Order::Range(RangeOrder {
        grant: id,
        epoch: grant.epoch,
        offset: range.offset,
        bytes: grant.bytes,
        work,
    }))
}

/// What the agent of one host finds, against the grant table before and after it was asked.
fn compare(
    name: &str,
    (device, host): (NodeId, &str),
    [before, after]: [&GrantTable; 2],
    found: &[RangeFound],
    report: &mut AuditReport,
) {
    let of_device = |table: &GrantTable| -> BTreeMap<GrantId, Grant> {
        let grants = table.grants().filter(|(_, grant)| grant.node == device);
        grants.map(|(id, grant)| (id, grant.clone())).collect()
    };
    let (before, after) = (of_device(before), of_device(after));
    // What changed meanwhile is not judged.
    let is_steady = |id: &GrantId| match (before.get(id), after.get(id)) {
        (Some(was), Some(is)) => was.phase == is.phase && was.epoch == is.epoch && was.range == is.range,
        (None, None) => true,
        _ => false,
    };
    let granted: u64 = found
        .iter()
        .filter(|range| range.grant.is_some())
        .map(|range| range.bytes)
        .sum();
    let bytes: u64 = found.iter().map(|range| range.bytes).sum();
    report.summary.push(format!(
        "{name}: {} of {} are granted by the directory",
        ByteSize(granted),
        ByteSize(bytes)
    ));
    let mut say = |text: String| report.problems.push(format!("{name}: {text}"));
    for range in found {
        let users = range.users.join(", ");
        match range.grant {
            None if users.is_empty() => {}
            None => say(format!("{users} maps what is free, at {}", range.offset)),
            Some(id) if !is_steady(&id) => {}
            Some(id) => match after.get(&id) {
                None => say(format!(
                    "the range at {} is of grant {id}, which there is not",
                    range.offset
                )),
                Some(grant) => {
                    let offset = grant.range.as_ref().map(|range| range.offset);
                    if (offset, grant.bytes) != (Some(range.offset), range.bytes) {
                        say(format!("grant {id} lies at {} by the directory", range.offset));
                    }
                    if !users.is_empty() && grant.host() != Some(host) {
                        say(format!("{users} maps grant {id}, which this host does not hold"));
                    }
                }
            },
        }
    }
    let is_found = |id: &GrantId| found.iter().any(|range| range.grant == Some(*id));
    let is_lost = |(id, grant): &(&GrantId, &Grant)| {
        let is_known = grant.range.as_ref().is_some_and(|range| range.known);
        matches!(grant.phase, Phase::Held | Phase::Idle) && is_known && is_steady(id) && !is_found(id)
    };
    for (id, grant) in after.iter().filter(is_lost) {
        say(format!(
            "grant {id} is {}, and the directory does not have it",
            grant.phase
        ));
    }
}
