//! Spaces at the manager: tenants ask for them, memory nodes make and keep their parts.

use super::leader::{Leader, OPEN_TIMEOUT, TURN};
use super::links::Link;
use crate::grant_table::{Grant, GrantId, GrantTable, Making, NodeId, PartsOf, Phase, SpaceId, must_hear};
use crate::key::Key;
use crate::wire::{AuditReport, Order, OrderReply, Reply, SpaceRequest};
use cenote_base::rt::{self, Nanos};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::collections::BTreeMap;

impl Leader {
    pub(super) fn create_space(&self, tenant: &str, requested: &SpaceRequest) -> Result<Reply> {
        let new = (SpaceId(rt::random_u128()), Key::draw()?);
        let parts = self.begin_making(|grant_table, now| grant_table.create_space(tenant, requested, new, now))?;
        self.wait_made(&parts)?;
        self.wait_whole(&parts);
        Ok(Reply::Space(
            self.grant_table.look().space_view(tenant, &requested.name)?,
        ))
    }

    /// Waits for mirrors of new parts: those that take longer are waited for by no client.
    fn wait_whole(&self, parts: &[GrantId]) {
        let until = rt::now() + OPEN_TIMEOUT;
        loop {
            let grant_table = self.grant_table.look();
            let is_mirrored = |id: &GrantId| grant_table.part_order(*id).is_some_and(|order| order.mirrored);
            let is_whole = |id: &GrantId| {
                let mirror = grant_table.mirror_of(*id);
                !is_mirrored(id) || mirror.is_some_and(|(_, mirror)| mirror.phase == Phase::Whole)
            };
            if parts.iter().all(is_whole) || rt::now() > until || self.is_stopping() {
                return;
            }
            self.grant_table.wait(grant_table, TURN);
        }
    }

    pub(super) fn grow_space(&self, tenant: &str, requested: &SpaceRequest) -> Result<Reply> {
        let parts = self.begin_making(|grant_table, now| grant_table.grow_space(tenant, requested, now))?;
        self.wait_made(&parts)?;
        Ok(Reply::Space(
            self.grant_table.look().space_view(tenant, &requested.name)?,
        ))
    }

    /// Enters what is to be made, once there is room for it and no other space has the name.
    fn begin_making(&self, mut enter: impl FnMut(&mut GrantTable, Nanos) -> Result<Making>) -> Result<Vec<GrantId>> {
        let began = rt::now();
        loop {
            match self.grant_table.change(|grant_table| enter(grant_table, rt::now()))? {
                Making::Begun(parts) => return Ok(parts),
                Making::Wait if rt::now().since(began) < OPEN_TIMEOUT && !self.is_stopping() => rt::sleep(TURN),
                Making::Wait => {
                    let text = "memory for it, or its name, is being taken back from its former owner: try again, and see `cenote pool status`";
                    return Err(Error::Busy(text.into()));
                }
            }
        }
    }

    /// Returns when the nodes keep what they were to make. If one cannot, or that takes too long, it is taken back.
    fn wait_made(&self, parts: &[GrantId]) -> Result<()> {
        let until = rt::now() + OPEN_TIMEOUT;
        loop {
            {
                let grant_table = self.grant_table.look();
                let phase = |id: &GrantId| grant_table.grant(*id).map(|grant| grant.phase).ok();
                let phases: Vec<_> = parts.iter().map(phase).collect();
                if phases.iter().all(|phase| *phase == Some(Phase::Kept)) {
                    return Ok(());
                }
                if phases
                    .iter()
                    .any(|phase| !matches!(phase, Some(Phase::Kept | Phase::Keeping)))
                {
                    break;
                }
                if rt::now() <= until && !self.is_stopping() {
                    self.grant_table.wait(grant_table, TURN);
                    continue;
                }
            }
            self.grant_table.update(|grant_table| {
                parts.iter().for_each(|id| grant_table.not_kept(*id));
            })?;
        }
        let why = self.not_made.take(parts);
        let untold = parts.iter().find_map(|id| self.untold(*id));
        parts.iter().for_each(|id| self.told.is_over(*id));
        let silent = || {
            Error::Busy(
                "a memory node that was to give memory for it does not answer: try again, and see `cenote pool status`"
                    .into(),
            )
        };
        Err(why.or(untold.map(must_hear)).unwrap_or_else(silent))
    }

    /// A node could not make a part.
    pub(super) fn not_kept(&self, id: GrantId, error: Error) -> Result<()> {
        eprintln!("cenote: manager: grant {id} is taken back: {error}");
        let is_awaited = |grant: &Grant| grant.phase == Phase::Keeping;
        self.not_made
            .keep(id, error, || self.grant_table.look().grant(id).is_ok_and(is_awaited));
        self.grant_table.update(|grant_table| {
            grant_table.not_kept(id);
        })
    }

    /// Says to a node that has come which parts it keeps. An error is the connection's.
    pub(super) fn remind(&self, node: NodeId, link: &Link) -> Result<()> {
        let orders: Vec<_> = {
            let grant_table = self.grant_table.look();
            grant_table
                .kept_by(node)
                .into_iter()
                .filter_map(|id| grant_table.part_order(id))
                .collect()
        };
        for order in orders {
            let (grant, part, space) = (order.grant, order.part, order.space);
            match link.order(&Order::Keep(order)) {
                Err(error @ (Error::Lost(_) | Error::Timeout(_))) => return Err(error),
                Err(error) => eprintln!("cenote: manager: grant {grant}, part {part} of space {space}: {error}"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Says to a node where the other parts are of spaces that it keeps some of, whenever that is another than before.
    pub(super) fn tell_peers(&self, node: NodeId, link: &Link, told: &mut BTreeMap<SpaceId, PartsOf>) -> Result<()> {
        let spaces = self.grant_table.look().spaces_at(node);
        told.retain(|space, _| spaces.contains_key(space));
        for (space, all) in spaces {
            if told.get(&space) == Some(&all) {
                continue;
            }
            let (parts, lost, coming) = all.clone();
            let kept = parts.iter().map(|part| part.number);
            let numbers: Vec<_> = kept.chain(coming.iter().copied()).map(|n| (space, n)).collect();
            let order = Order::Peers {
                space,
                parts,
                lost,
                coming,
            };
            match link.order(&order) {
                Err(error @ (Error::Lost(_) | Error::Timeout(_))) => return Err(error),
                Err(error) => eprintln!("cenote: manager: space {space}: {error}"),
                // Parts wait for it that are being made.
                Ok(_) if self.told.note(node, numbers.into_iter()) => self.links.work_for_all(),
                Ok(_) => {}
            }
            told.insert(space, all);
        }
        Ok(())
    }

    /// A part that its node has made is kept, and members hear of it, once all nodes of its space know of it: whether
    /// they do.
    pub(super) fn keep_if_told(&self, id: GrantId, epoch: u64) -> Result<bool> {
        if self.untold(id).is_some() {
            return Ok(false);
        }
        self.grant_table.update(|grant_table| {
            grant_table.confirmed(id, epoch, rt::now());
        })?;
        self.told.is_over(id);
        Ok(true)
    }

    /// The first node of a part's space that does not know of it.
    pub(super) fn untold(&self, id: GrantId) -> Option<NodeId> {
        let (part, nodes) = self.grant_table.look().nodes_with(id)?;
        let number = (part.space, part.number);
        nodes.into_iter().find(|node| !self.told.knows(*node, number))
    }

    /// Has the memory nodes look at a tenant's space.
    pub(super) fn audit_space(&self, tenant: &str, name: &str) -> Result<AuditReport> {
        let view = self.grant_table.look().space_view(tenant, name)?;
        let mut report = AuditReport::default();
        for part in view.parts {
            let (number, bytes) = (part.number, ByteSize(part.bytes));
            let place = format!("part {number} on memory node {} of pod {}", part.node, part.pod);
            report.summary.push(format!("{place}: {bytes}"));
            self.audit_parts(&place, part.node, &[part.grant], &mut report);
        }
        Ok(report)
    }

    /// Has a node look at parts that it keeps.
    pub(super) fn audit_parts(&self, name: &str, node: NodeId, parts: &[GrantId], report: &mut AuditReport) {
        for grant in parts.iter().copied() {
            let problems = match self.order(node, &Order::Check { grant }) {
                Ok(OrderReply::Problems(problems)) => problems,
                Ok(_) => vec!["no answer that fits".into()],
                Err(error) => vec![error.to_string()],
            };
            let is_kept = || {
                self.grant_table
                    .look()
                    .grant(grant)
                    .is_ok_and(|grant| grant.phase == Phase::Kept)
            };
            if !problems.is_empty() && is_kept() {
                let named = |problem: &String| format!("{name}: grant {grant}: {problem}");
                report.problems.extend(problems.iter().map(named));
            }
        }
    }
}
