//! Mirrors of grants, in the grant table: a second piece of memory on another memory node, which gets what the holder
//! writes back.
//!
//! ```text
//!          open, seek                holder: whole
//!  (none) ────────────▶ Filling ─────────────────────▶ Whole ──────▶ the grant: Fencing, with a label and an epoch of its own,
//!                          │  ▲    holder: made anew     │  promote   and what was the grant is Freeing
//!                          │  └──────────────────────────┤
//!                          ▼   lost, not wanted, its grant goes
//!                       Freeing ◀────────────────────────┘
//! ```
//!
//! A mirror is a grant of its own, so that its bytes count as any: towards its node's room and its tenant's quota. It
//! has no holder; the holder of what it mirrors maps both, or writes to it over the fabric.
//!
//! Invariants:
//! - a mirror lies on another memory node than what it mirrors, and a grant has one that is not being freed at most;
//! - it is `Whole` only while it has all that its grant's holder has flushed: the holder says that it is when it is,
//!   and ends to copy only after the grant table says that it is not;
//! - only a whole one is promoted, with a new epoch and by way of `Fencing`: every process that maps it, such as the
//!   former holder, is ended before another gets it;
//! - what was promoted from is never the grant again: its number is gone with it.

use super::{Grant, GrantId, GrantTable, NO_MIRROR_OF_REMOTE, NodeId, Opening, Phase};
use crate::wire::{MirrorView, OpenRequest};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::mirror::JOURNAL;
use std::collections::BTreeMap;
use std::path::Path;

impl GrantTable {
    // ---- looking ----

    /// The mirror of a grant, if it has one that is not being freed.
    pub fn mirror_of(&self, id: GrantId) -> Option<(GrantId, &Grant)> {
        let is_it = |g: &Grant| g.mirror_of == Some(id) && g.phase != Phase::Freeing;
        let mut mirrors = self.grants.iter().filter(|(_, grant)| is_it(grant));
        mirrors.next().map(|(id, grant)| (*id, grant))
    }

    /// The mirror of a grant that its holder asks about.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more.
    pub fn mirror_for(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<Option<GrantId>> {
        self.mirrorable(tenant, id, epoch)?;
        Ok(self.mirror_of(id).map(|(mirror, _)| mirror))
    }

    /// What its holder is told of a grant's mirror.
    pub fn mirror_view(&self, id: GrantId) -> Option<MirrorView> {
        let (mirror, grant) = self.mirror_of(id)?;
        let node = self.nodes.get(&grant.node)?;
        Some(MirrorView {
            grant: mirror,
            pod: node.pod.clone(),
            path: Path::new(&node.directory)
                .join(format!("grant-{mirror}"))
                .display()
                .to_string(),
            whole: grant.phase == Phase::Whole,
            machine: node.machine,
            lent: None,
        })
    }

    /// A grant as its holder has it; or a part as its memory node keeps it.
    fn mirrorable(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<&Grant> {
        let is_kept = |grant: &&Grant| grant.is_kept() && grant.tenant == tenant && grant.epoch == epoch;
        match self.grants.get(&id).filter(is_kept) {
            Some(part) => Ok(part),
            None => {
                let grant = self.held(tenant, id, epoch)?;
                let no_mirror = || Error::Invalid(NO_MIRROR_OF_REMOTE.into());
                (!grant.remote).then_some(grant).ok_or_else(no_mirror)
            }
        }
    }

    /// The tenant and the epoch of a part that a memory node keeps.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it keeps it no more.
    pub fn kept_part(&self, node: NodeId, id: GrantId) -> Result<(String, u64)> {
        let kept = self
            .grants
            .get(&id)
            .filter(|grant| grant.node == node && grant.is_kept());
        let kept =
            kept.ok_or_else(|| Error::Revoked(format!("grant {id} is no part that memory node {node} keeps")))?;
        Ok((kept.tenant.clone(), kept.epoch))
    }

    /// The mirror of a part is its memory node's matter, and no tenant's: it would take the place of a part that is
    /// served, or be called whole by a process that does not know.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part of one of the tenant's spaces.
    pub fn check_no_part(&self, tenant: &str, id: GrantId) -> Result<()> {
        let grant = self.grants.get(&id).filter(|grant| grant.tenant == tenant);
        let part = grant.and_then(|grant| Some((grant, grant.part?)));
        match part.map(|(grant, part)| (part.number, grant.node, self.space(part.space))) {
            None => Ok(()),
            Some((number, node, space)) => {
                let space = space.map_or("", |space| &space.name);
                Err(Error::Invalid(format!(
                    "grant {id} is part {number} of space \"{space}\": its mirror is asked for by memory node {node}, \
                     which keeps it, and takes its place when that is lost (cenote pool forget {node})"
                )))
            }
        }
    }

    /// Whether a process may map a grant: as its holder, or its former one until that is ended.
    pub fn may_be_used(&self, id: GrantId) -> bool {
        self.grants.get(&id).is_none_or(|grant| !self.is_unused(grant))
    }

    /// Whether a whole mirror lies on a node that may be on its way to this manager. On which machine it is is not
    /// known yet: its holder would take it for one that it cannot map, and give it up.
    pub(super) fn is_mirror_awaited(&self, id: GrantId, now: Nanos) -> bool {
        let whole = self.mirror_of(id).filter(|(_, mirror)| mirror.phase == Phase::Whole);
        let node = whole.and_then(|(_, mirror)| self.nodes.get(&mirror.node));
        node.is_some_and(|node| !node.has_joined() && now < self.nodes_come)
    }

    // ---- what holders say ----

    /// The holder wants a mirror: the one that there is, or one that is to be filled.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more; [`Error::Full`] (other nodes, quota); [`Error::Busy`] while it
    /// is not known where the grant's node runs.
    pub fn seek_mirror(&mut self, tenant: &str, id: GrantId, epoch: u64, now: Nanos) -> Result<GrantId> {
        let bytes = self.mirrorable(tenant, id, epoch)?.bytes;
        if let Some((mirror, _)) = self.mirror_of(id) {
            return Ok(mirror);
        }
        self.check_quota(tenant, bytes)?;
        let node = self.grant(id)?.node;
        let machine = self.machine_of(node)?;
        let Some((place, need)) = self.place_mirror(node, bytes, machine) else {
            return Err(self.no_place(bytes, node, machine));
        };
        self.check_quota(tenant, need)?;
        Ok(self.add_mirror(id, place, now))
    }

    /// The mirror has all that the holder has flushed, and gets what it flushes from here on.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more, [`Error::Lost`] if the grant has another mirror, or none.
    pub fn mirror_is_whole(&mut self, tenant: &str, id: GrantId, epoch: u64, mirror: GrantId) -> Result<()> {
        self.set_mirror(tenant, id, epoch, mirror, Phase::Whole)
    }

    /// The holder makes the memory anew: what the mirror has is to be believed no more.
    ///
    /// # Errors
    /// As [`GrantTable::mirror_is_whole`].
    pub fn mirror_is_void(&mut self, tenant: &str, id: GrantId, epoch: u64, mirror: GrantId) -> Result<()> {
        self.set_mirror(tenant, id, epoch, mirror, Phase::Filling)
    }

    fn set_mirror(&mut self, tenant: &str, id: GrantId, epoch: u64, mirror: GrantId, phase: Phase) -> Result<()> {
        self.mirrorable(tenant, id, epoch)?;
        if self.mirror_of(id).is_none_or(|(is, _)| is != mirror) {
            return Err(not_its(mirror, id));
        }
        if let Some(grant) = self.grants.get_mut(&mirror) {
            grant.enter(phase);
        }
        Ok(())
    }

    /// The holder cannot map the mirror: its node lends it, with a journal beside it, which counts as the mirror does.
    ///
    /// # Errors
    /// As [`GrantTable::mirror_is_whole`]; [`Error::Full`] (node, quota); [`Error::Lost`] if its node is not there:
    /// then no journal counts.
    pub fn lend_mirror(&mut self, tenant: &str, id: GrantId, epoch: u64, mirror: GrantId) -> Result<()> {
        if self.mirror_for(tenant, id, epoch)? != Some(mirror) {
            return Err(not_its(mirror, id));
        }
        let (lent, node) = self.grant(mirror).map(|grant| (grant.lent, grant.node))?;
        self.check_connected(node)?;
        if lent {
            return Ok(());
        }
        self.check_quota(tenant, JOURNAL)?;
        if self.free_of(node) < JOURNAL {
            let journal = ByteSize(JOURNAL);
            return Err(Error::Full(format!(
                "memory node {node} has no {journal} free for a mirror's journal"
            )));
        }
        self.set_lent(mirror, true);
        Ok(())
    }

    /// A mirror's journal is gone, or about to come.
    pub fn set_lent(&mut self, id: GrantId, lent: bool) {
        let Some(grant) = self.grants.get(&id).filter(|grant| grant.lent != lent).cloned() else {
            return;
        };
        // It counts anew.
        self.grants.insert(id, Grant { lent, ..grant });
    }

    /// The holder has no use of a mirror, or it is broken; it does not map it any more.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more.
    pub fn mirror_is_lost(&mut self, tenant: &str, id: GrantId, epoch: u64, mirror: GrantId) -> Result<()> {
        self.mirrorable(tenant, id, epoch)?;
        if self.mirror_of(id).is_some_and(|(is, _)| is == mirror) {
            self.set_freeing(mirror);
        }
        Ok(())
    }

    /// The holder has found its memory broken, and maps neither side: the mirror is to be the grant.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more, [`Error::Lost`] if there is no whole mirror.
    pub fn fail_over(&mut self, tenant: &str, id: GrantId, epoch: u64) -> Result<()> {
        self.mirrorable(tenant, id, epoch)?;
        match self.promote(id) {
            true => Ok(()),
            false => Err(Error::Lost(format!("grant {id} has no mirror that is whole"))),
        }
    }

    // ---- what the manager finds ----

    /// Its memory was not there, or could not be reached, when it was to be held with this epoch: whether its mirror
    /// becomes the grant.
    pub fn memory_was_lost(&mut self, id: GrantId, epoch: u64) -> bool {
        let is_so = self.grant(id).is_ok_and(|g| g.phase == Phase::Held && g.epoch == epoch);
        is_so && self.promote(id)
    }

    /// Its holder does without a mirror, or its node cannot make it; no process maps it.
    pub fn drop_mirror(&mut self, id: GrantId) {
        if let Some((mirror, _)) = self.mirror_of(id) {
            self.set_freeing(mirror);
        }
    }

    /// If a grant has a whole mirror that becomes the grant, and the grant's memory is freed.
    fn promote(&mut self, id: GrantId) -> bool {
        let mirror = self.mirror_of(id).filter(|(_, mirror)| mirror.phase == Phase::Whole);
        let Some((mirror, _)) = mirror else { return false };
        let Some(lost) = self.grants.get_mut(&id).filter(|lost| lost.phase != Phase::Freeing) else {
            return false;
        };
        let was = lost.clone();
        // No tenant's own label has a slash.
        lost.label = format!("{}/lost-{id}", was.label);
        lost.part = None;
        lost.enter(Phase::Freeing);
        lost.epoch = was.epoch + 1;
        if let Some(grant) = self.grants.get_mut(&mirror) {
            assert!(
                grant.mirror_of == Some(id) && grant.bytes == was.bytes,
                "a mirror takes the place of what it mirrors"
            );
            assert!(grant.node != was.node, "a mirror does not lie where its grant was lost");
            *grant = Grant {
                node: grant.node,
                // The process that has held either is the holder no more.
                epoch: was.epoch.max(grant.epoch) + 1,
                phase: Phase::Fencing,
                mirror_of: None,
                lent: grant.lent,
                ..was
            };
        }
        assert!(
            self.mirror_of(id).is_none(),
            "the former memory of a promoted grant has no mirror"
        );
        true
    }

    /// A memory node will not come back: what was mirrored elsewhere is there.
    pub(super) fn promote_from(&mut self, node: NodeId) {
        let there = self.grants.iter().filter(|(_, grant)| grant.node == node);
        let there: Vec<GrantId> = there.map(|(id, _)| *id).collect();
        there.into_iter().for_each(|id| _ = self.promote(id));
    }

    /// What follows from the phases of grants: a mirror goes with what it mirrors.
    pub(super) fn settle_mirrors(&mut self) {
        let is_gone = |id: GrantId| self.grants.get(&id).is_none_or(|grant| grant.phase == Phase::Freeing);
        let is_left = |grant: &Grant| grant.phase != Phase::Freeing && grant.mirror_of.is_some_and(is_gone);
        let left = self.grants.iter().filter(|(_, grant)| is_left(grant));
        let left: Vec<GrantId> = left.map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| self.set_freeing(id));
        let is_gone = |id: GrantId| self.grants.get(&id).is_none_or(|grant| grant.phase == Phase::Freeing);
        let goes_too = |grant: &Grant| grant.phase == Phase::Freeing || !grant.mirror_of.is_some_and(is_gone);
        assert!(self.grants.values().all(goes_too), "a mirror goes with what it mirrors");
    }

    // ---- places ----

    /// What the mirrors of a space's parts that are to be made take, each beside all parts.
    ///
    /// # Errors
    /// [`Error::Full`] if one of them has no room, [`Error::Invalid`].
    pub(super) fn check_places_of_mirrors(&self, shares: &[(NodeId, u64)]) -> Result<u64> {
        let mut free: BTreeMap<NodeId, u64> = self.nodes.keys().map(|id| (*id, self.free_of(*id))).collect();
        for (id, bytes) in shares {
            if self.node(*id)?.calls.is_none() {
                let text = "a mirrored space lies on memory nodes that are called over the fabric: node";
                return Err(Error::Invalid(format!("{text} {id} is not (cenote memory --rdma)")));
            }
            free.entry(*id).and_modify(|free| *free = free.saturating_sub(*bytes));
        }
        let mut all = 0_u64;
        for (id, bytes) in shares {
            let machine = self.node(*id)?.machine;
            let free_of = |other| free.get(&other).copied().unwrap_or(0);
            let place = self.place_mirror_in(*id, *bytes, machine, free_of);
            let (place, need) = place.ok_or_else(|| self.no_place(*bytes, *id, machine))?;
            free.entry(place).and_modify(|free| *free -= need);
            all = all.saturating_add(need);
        }
        Ok(all)
    }

    /// Connected memory nodes where a holder on a machine can mirror what lies on `node`: they are mapped there, or
    /// written over the fabric.
    fn nodes_beside(&self, node: NodeId, machine: u64) -> Vec<NodeId> {
        let nodes = self.nodes.iter().filter(|(id, other)| {
            let is_reached = other.machine == machine || other.calls.is_some();
            other.connected && is_reached && **id != node
        });
        nodes.map(|(id, _)| *id).collect()
    }

    /// Where a mirror comes to lie, and what it takes there.
    fn place_mirror(&self, node: NodeId, bytes: u64, machine: u64) -> Option<(NodeId, u64)> {
        self.place_mirror_in(node, bytes, machine, |id| self.free_of(id))
    }

    /// On another machine if there is room, as that outlives this one; in another pod; then where most room is.
    fn place_mirror_in(
        &self,
        node: NodeId,
        bytes: u64,
        machine: u64,
        free_of: impl Fn(NodeId) -> u64,
    ) -> Option<(NodeId, u64)> {
        let pod = |id: NodeId| self.nodes.get(&id).map(|node| &node.pod);
        let beside = self.nodes_beside(node, machine).into_iter();
        let needs = beside.map(|id| (id, self.mirror_takes(id, bytes, machine)));
        needs
            .filter(|(id, need)| free_of(*id) >= *need)
            .max_by_key(|(id, _)| (self.is_elsewhere(*id, machine), pod(*id) != pod(node), free_of(*id)))
    }

    /// Where a node runs. The table keeps that of no node: a manager that has just begun hears it when the node joins.
    fn machine_of(&self, id: NodeId) -> Result<u64> {
        let node = self.node(id)?;
        match node.has_joined() {
            true => Ok(node.machine),
            false => Err(Error::Busy(format!(
                "memory node {id} has not joined since this manager began to lead: whether a mirror would be on \
                 another machine is not known yet, ask again"
            ))),
        }
    }

    fn is_elsewhere(&self, node: NodeId, machine: u64) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.machine != machine)
    }

    /// What a mirror takes of a node for a holder on a machine: with its journal, if it is to be lent.
    fn mirror_takes(&self, node: NodeId, bytes: u64, machine: u64) -> u64 {
        let journal = if self.is_elsewhere(node, machine) { JOURNAL } else { 0 };
        bytes.saturating_add(journal)
    }

    fn add_mirror(&mut self, id: GrantId, node: NodeId, now: Nanos) -> GrantId {
        assert!(self.mirror_of(id).is_none(), "grant {id} has one mirror at most");
        let of = &self.grants[&id];
        assert!(
            of.phase == Phase::Held || of.is_kept(),
            "grant {id} is held, or a part that is kept: only such a grant gets a mirror"
        );
        let grant = Grant {
            // No tenant's own label has a slash.
            label: format!("{}/mirror-{}", of.label, self.next),
            node,
            epoch: 0,
            phase: Phase::Filling,
            keep: None,
            part: None,
            mirror_of: Some(id),
            range: None,
            // Its journal counts from here on: no other grant takes its room before the holder asks for it.
            lent: self.is_elsewhere(node, self.nodes.get(&of.node).map_or(0, |node| node.machine)),
            time: now,
            ..of.clone()
        };
        assert!(node != of.node, "a mirror lies on another node than what it mirrors");
        self.add_grant(grant)
    }

    /// What the mirror of a grant that is new on `node` takes; `None`: memory is being reclaimed for it.
    ///
    /// # Errors
    /// [`Error::Full`] if no other node has room.
    pub(super) fn check_place_of_mirror(
        &mut self,
        bytes: u64,
        node: NodeId,
        requested: &OpenRequest,
        priority: u8,
    ) -> Result<Option<u64>> {
        let machine = requested.machine;
        if let Some((_, need)) = self.place_mirror(node, bytes, machine) {
            return Ok(Some(need));
        }
        let beside = self.nodes_beside(node, machine);
        let victims = |id: &NodeId| self.victims(*id, self.mirror_takes(*id, bytes, machine), priority);
        match beside.iter().find_map(victims) {
            Some(victims) => {
                self.give_up(victims);
                Ok(None)
            }
            None => Err(self.no_place(bytes, node, requested.machine)),
        }
    }

    /// Gives a grant that was not told to any client yet its mirror.
    pub(super) fn mirror_new(&mut self, opening: Opening, requested: &OpenRequest, now: Nanos) -> Opening {
        if let Opening::Admit(id, _) = opening
            && let Ok((node, bytes)) = self.grant(id).map(|grant| (grant.node, grant.bytes))
            && let Some((place, _)) = self.place_mirror(node, bytes, requested.machine)
        {
            self.add_mirror(id, place, now);
        }
        opening
    }

    pub(super) fn no_place(&self, bytes: u64, node: NodeId, machine: u64) -> Error {
        let beside = self.nodes_beside(node, machine);
        let (others, bytes) = (beside.len(), ByteSize(bytes));
        let journal = match beside.iter().any(|id| self.is_elsewhere(*id, machine)) {
            true => format!(", with {} more for its journal on another machine", ByteSize(JOURNAL)),
            false => String::new(),
        };
        Error::Full(format!(
            "a mirror lies on another memory node than what it mirrors, and of the {others} others that are connected, \
             on this machine or reached over the fabric, none has {bytes} free{journal} (cenote memory starts one)"
        ))
    }

    // ---- checks ----

    /// # Errors
    /// [`Error::Invalid`] for a mirror.
    pub(super) fn check_no_mirror(&self, id: GrantId) -> Result<()> {
        match self.grant(id)?.mirror_of {
            None => Ok(()),
            Some(of) => Err(Error::Invalid(format!(
                "grant {id} is the mirror of grant {of}, and goes when that does, or when its holder does without (no --mirror)"
            ))),
        }
    }

    pub(super) fn problems_of_mirrors(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (id, grant) in self.grants.iter() {
            let is_mirror = matches!(grant.phase, Phase::Filling | Phase::Whole);
            let fits = match grant.mirror_of {
                None => !is_mirror,
                Some(_) if grant.phase == Phase::Freeing => true,
                Some(of) => is_mirror && self.fits(*id, grant, of),
            };
            if !fits {
                problems.push(format!(
                    "grant {id} is {}, and what it mirrors says otherwise",
                    grant.phase
                ));
            }
        }
        problems
    }

    fn fits(&self, id: GrantId, mirror: &Grant, of: GrantId) -> bool {
        let is_only = self.mirror_of(of).is_some_and(|(only, _)| only == id);
        let fits = |of: &Grant| {
            let is_alone = of.mirror_of.is_none() && of.phase != Phase::Freeing;
            is_alone && of.node != mirror.node && of.bytes == mirror.bytes && of.tenant == mirror.tenant
        };
        is_only && self.grants.get(&of).is_some_and(fits) && mirror.part.is_none()
    }
}

fn not_its(mirror: GrantId, id: GrantId) -> Error {
    Error::Lost(format!("grant {mirror} is not the mirror of grant {id} any more"))
}
