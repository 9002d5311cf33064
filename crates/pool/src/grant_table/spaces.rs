//! Spaces in the grant table. A space is a tenant's; its memory is parts, each of them a grant that its memory node
//! *keeps*: it has no holder and no lease, and it is never reclaimed.
//!
//! ```text
//!            create                  all parts are kept              drop
//!   (none) ─────────▶ Making ───────────────────────────▶ Ready ───────────────▶ Dropping ──── all parts freed ───▶ (none)
//!                       │ a node cannot, or too long, or the manager dies           ▲
//!                       └───────────────────────────────────────────────────────────┘
//!
//!            create, grow            confirmed                       drop
//!   (none) ─────────▶ Keeping ──────────────────────────▶ Kept ────────────────▶ Freeing ──── confirmed ───────────▶ (none)
//!                       │ as above                                                  ▲
//!                       └───────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - no client hears of a part before it is `Kept`, and of a space before it is `Ready`. So what is being made when the
//!   manager dies is taken back: no client can miss it;
//! - a part's number is never used again in its space: addresses name it;
//! - a space's name is taken until the last of its memory is confirmed free.

use super::{EXTENT, Grant, GrantId, GrantTable, Node, NodeId, Phase, SpaceId, SpacePhase};
use crate::key::Key;
use crate::wire::{PartOrder, PartSummary, PartView, SpaceRequest, SpaceSummary, SpaceView};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Bytes of the smallest part.
pub(crate) const PART_MIN: u64 = 2 * EXTENT;
const _: () = assert!(PART_MIN <= super::GRANT_MAX, "a part is a grant");

/// All parts of a space, the numbers of those that were lost with their memory nodes, and of those that are being made.
pub type PartsOf = (Vec<PartView>, Vec<u8>, Vec<u8>);

/// Which part of which space a grant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOf {
    /// The space.
    pub space: SpaceId,
    /// Its number there, from 1 on.
    pub number: u8,
}

/// A tenant's space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// Its number.
    pub id: SpaceId,
    /// Whose.
    pub tenant: String,
    /// The tenant's name for it.
    pub name: String,
    /// What members show to nodes.
    pub key: Key,
    /// What is happening to it.
    pub phase: SpacePhase,
    /// The number of its last part.
    last: u8,
    /// Parts that were lost with their memory nodes.
    pub(super) lost: Vec<u8>,
    /// Whether each part has a mirror, or is to have one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    mirrored: bool,
}

impl SpaceRecord {
    /// Goes to another phase.
    fn enter(&mut self, next: SpacePhase) {
        assert!(
            self.phase.may_become(next),
            "a space that is {} does not become {next}",
            self.phase
        );
        self.phase = next;
    }
}

/// What a request for a space came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Making {
    /// Its nodes are to make these.
    Begun(Vec<GrantId>),
    /// One of the name is being dropped, or memory is being reclaimed for it: soon.
    Wait,
}

/// Words of a part are changed on one host, by a node that keeps it there.
const DEVICE_ALONE: &str = "; it has a device that hosts share, and parts of spaces lie on memory nodes alone";

impl GrantTable {
    // ---- what tenants ask ----

    /// A tenant wants a space. `id` and `key` are new.
    ///
    /// # Errors
    /// [`Error::Full`] (pool or quota), [`Error::Invalid`].
    pub fn create_space(
        &mut self,
        tenant: &str,
        requested: &SpaceRequest,
        (id, key): (SpaceId, Key),
        now: Nanos,
    ) -> Result<Making> {
        crate::settings::check_name("a space's name", &requested.name)?;
        match self.space_named(tenant, &requested.name).map(|space| space.phase) {
            Some(SpacePhase::Dropping) => return Ok(Making::Wait),
            Some(_) => {
                let name = &requested.name;
                return Err(Error::Invalid(format!(
                    "tenant \"{tenant}\" has a space \"{name}\" already"
                )));
            }
            None => {}
        }
        let Some(shares) = self.shares(tenant, requested, None)? else {
            return Ok(Making::Wait);
        };
        let record = SpaceRecord {
            id,
            tenant: tenant.into(),
            name: requested.name.clone(),
            key,
            phase: SpacePhase::Making,
            last: 0,
            lost: Vec::new(),
            mirrored: requested.mirrored,
        };
        self.spaces.insert(id, record);
        Ok(Making::Begun(self.add_parts(id, &shares, now)?))
    }

    /// A tenant wants more memory for a space.
    ///
    /// # Errors
    /// As [`GrantTable::create_space`], and those of [`GrantTable::open_space`].
    pub fn grow_space(&mut self, tenant: &str, requested: &SpaceRequest, now: Nanos) -> Result<Making> {
        let id = self.open_space(tenant, &requested.name)?.id;
        self.check_all_hear(id)?;
        match self.shares(tenant, requested, Some(id))? {
            Some(shares) => Ok(Making::Begun(self.add_parts(id, &shares, now)?)),
            None => Ok(Making::Wait),
        }
    }

    /// A space that a tenant may use.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tenant has none of this name, [`Error::Busy`] if it is not ready.
    pub fn open_space(&self, tenant: &str, name: &str) -> Result<&SpaceRecord> {
        let space = self.space_named(tenant, name);
        let space = space.ok_or_else(|| Error::Invalid(format!("tenant \"{tenant}\" has no space \"{name}\"")))?;
        match space.phase {
            SpacePhase::Ready => Ok(space),
            phase => Err(Error::Busy(format!(
                "space \"{name}\" of tenant \"{tenant}\" is {phase}"
            ))),
        }
    }

    /// A tenant needs a space no more: every process that has it open is ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tenant has none of this name.
    pub fn drop_space(&mut self, tenant: &str, name: &str) -> Result<()> {
        let space = self.space_named(tenant, name);
        let id = space.map(|space| space.id);
        let id = id.ok_or_else(|| Error::Invalid(format!("tenant \"{tenant}\" has no space \"{name}\"")))?;
        self.set_dropping(id);
        Ok(())
    }

    fn space_named(&self, tenant: &str, name: &str) -> Option<&SpaceRecord> {
        self.spaces
            .values()
            .find(|space| space.tenant == tenant && space.name == name)
    }

    pub(super) fn space(&self, id: SpaceId) -> Option<&SpaceRecord> {
        self.spaces.get(&id)
    }

    fn is_mirrored(&self, id: SpaceId) -> bool {
        self.space(id).is_some_and(|space| space.mirrored)
    }

    fn space_mut(&mut self, id: SpaceId) -> Option<&mut SpaceRecord> {
        self.spaces.get_mut(&id)
    }

    fn parts(&self, id: SpaceId) -> impl Iterator<Item = (GrantId, &Grant, u8)> {
        let of = move |grant: &Grant| grant.part.filter(|part| part.space == id);
        self.grants
            .iter()
            .filter_map(move |(grant_id, grant)| Some((*grant_id, grant, of(grant)?.number)))
    }

    // ---- memory ----

    /// How much of a request each node is to give: as much as the others, or all that it has. `None`: memory is being
    /// reclaimed for it.
    fn shares(
        &mut self,
        tenant: &str,
        requested: &SpaceRequest,
        grown: Option<SpaceId>,
    ) -> Result<Option<Vec<(NodeId, u64)>>> {
        let priority = self.limits(tenant)?.priority;
        let bytes = requested
            .bytes
            .checked_next_multiple_of(EXTENT)
            .filter(|bytes| *bytes > 0);
        let bytes =
            bytes.ok_or_else(|| Error::Invalid(format!("a space of {} bytes cannot be made", requested.bytes)))?;
        let nodes = self.nodes_of(requested.pods.as_deref())?;
        self.check_calls(&nodes, grown)?;
        let Some(shares) = spread(bytes.max(PART_MIN), self.free_of_all(&nodes)) else {
            return self.reclaim_shares(bytes, &nodes, priority).map(|()| None);
        };
        let is_mirrored = requested.mirrored || grown.is_some_and(|id| self.is_mirrored(id));
        let all: u64 = shares.iter().map(|(_, bytes)| bytes).sum();
        let of_mirrors = match is_mirrored {
            true => self.check_places_of_mirrors(&shares)?,
            false => 0,
        };
        self.check_quota(tenant, all.saturating_add(of_mirrors))?;
        Ok(Some(shares))
    }

    /// All nodes of a space that fence members of others are there: they have to know of a new part before members do.
    fn check_all_hear(&self, id: SpaceId) -> Result<()> {
        // What is taken back was no client's ever.
        let kept = self.parts(id).filter(|(_, grant, _)| grant.is_kept());
        let nodes = kept.map(|(_, grant, _)| grant.node);
        let is_away = |id: &NodeId| {
            let node = self.nodes.get(id);
            node.is_some_and(|node| node.may_have_calls() && !node.connected)
        };
        match nodes.into_iter().find(is_away) {
            Some(node) => Err(must_hear(node)),
            None => Ok(()),
        }
    }

    /// Nodes that are called over the fabric tell each other which members are fenced, and no other node: a space lies
    /// on such nodes, or on others.
    fn check_calls(&self, nodes: &[NodeId], grown: Option<SpaceId>) -> Result<()> {
        let parts = grown.into_iter().flat_map(|id| self.parts(id));
        let of_parts = parts.map(|(_, grant, _)| grant.node);
        let all = nodes.iter().copied().chain(of_parts);
        let known = all.filter_map(|id| Some((id, self.nodes.get(&id).filter(|node| node.connected)?)));
        let (called, others): (Vec<_>, Vec<_>) = known.partition(|(_, node)| node.calls.is_some());
        match (called.first(), others.first()) {
            (Some((called, here)), Some((other, there))) => Err(Error::Invalid(format!(
                "a space lies on memory nodes that are all called over the fabric, or none: node {called} (pod {}) is, \
                 node {other} (pod {}) is not. Name other pods, or start it with --rdma",
                here.pod, there.pod
            ))),
            _ => Ok(()),
        }
    }

    fn nodes_of(&self, pods: Option<&[String]>) -> Result<Vec<NodeId>> {
        let of = |pod: &String| {
            let nodes = self.nodes.iter().filter(|(_, node)| node.connected && node.pod == *pod);
            let nodes: Vec<_> = nodes.map(|(id, _)| *id).collect();
            let none = || {
                let has_device = self.devices().any(|(_, device)| device.pod == *pod);
                let device = if has_device { DEVICE_ALONE } else { "" };
                Error::Full(format!(
                    "pod {pod} has no memory node that is connected (cenote memory starts one){device}"
                ))
            };
            if nodes.is_empty() { Err(none()) } else { Ok(nodes) }
        };
        let all = self.nodes.values().filter(|node| node.connected).map(|node| &node.pod);
        let pods: BTreeSet<&String> = match pods {
            Some(pods) => pods.iter().collect(),
            None => all.collect(),
        };
        if pods.is_empty() {
            return Err(Error::Full(
                "the pool has no memory node that is connected (cenote memory starts one)".into(),
            ));
        }
        Ok(pods.into_iter().map(of).collect::<Result<Vec<_>>>()?.concat())
    }

    /// As if all that may be reclaimed were free: what has to go then for each node's share, and nothing else.
    fn reclaim_shares(&mut self, bytes: u64, nodes: &[NodeId], priority: u8) -> Result<()> {
        let most = |node: &NodeId| (*node, self.reclaimable_to(*node, priority));
        let shares = spread(bytes.max(PART_MIN), nodes.iter().map(most).collect());
        let of_share = |(node, share): &(NodeId, u64)| self.victims(*node, *share, priority);
        let victims: Option<Vec<_>> = shares.and_then(|shares| shares.iter().map(of_share).collect());
        let Some(victims) = victims else {
            let free: u64 = nodes.iter().map(|id| self.free_of(*id)).sum();
            return Err(Error::Full(format!(
                "{} are asked for, and the {} memory nodes that are connected there have {} free together; see `cenote pool status`",
                ByteSize(bytes),
                nodes.len(),
                ByteSize(free)
            )));
        };
        self.give_up(victims.concat());
        Ok(())
    }

    fn add_parts(&mut self, id: SpaceId, shares: &[(NodeId, u64)], now: Nanos) -> Result<Vec<GrantId>> {
        assert!(!shares.is_empty(), "space {id} gets a part from one node at least");
        let space = self.space_mut(id).expect("a space that was found");
        let (tenant, name, last) = (space.tenant.clone(), space.name.clone(), space.last);
        let new_last = u8::try_from(usize::from(last) + shares.len());
        space.last = new_last.map_err(|_| {
            Error::Full(format!(
                "space \"{name}\" has had {last} parts, {} more are too many: 255 are the most",
                shares.len()
            ))
        })?;
        let mut added = Vec::new();
        for (number, (node, bytes)) in (last + 1..=u8::MAX).zip(shares) {
            let grant = Grant {
                tenant: tenant.clone(),
                // No tenant's own label has a slash.
                label: format!("{name}/{number}"),
                description: "space".into(),
                bytes: *bytes,
                node: *node,
                epoch: 1,
                phase: Phase::Keeping,
                keep: None,
                part: Some(PartOf { space: id, number }),
                mirror_of: None,
                range: None,
                lent: false,
                remote: false,
                time: now,
                renewals: 0,
            };
            added.push(self.add_grant(grant));
        }
        assert_eq!(added.len(), shares.len(), "each share of space {id} becomes a part");
        Ok(added)
    }

    // ---- phases ----

    /// A part's node cannot make it, or it takes too long: it is taken back, and the whole space if no client has heard
    /// of that.
    pub fn not_kept(&mut self, grant_id: GrantId) {
        let Some(grant) = self.grants.get(&grant_id).filter(|grant| grant.phase == Phase::Keeping) else {
            return;
        };
        let space = grant.part.map(|part| part.space);
        self.set_freeing(grant_id);
        let making = space.filter(|id| self.space(*id).is_some_and(|space| space.phase == SpacePhase::Making));
        making.into_iter().for_each(|id| self.set_dropping(id));
    }

    fn set_dropping(&mut self, id: SpaceId) {
        if let Some(space) = self.space_mut(id) {
            space.enter(SpacePhase::Dropping);
        }
        let parts: Vec<GrantId> = self.parts(id).map(|(grant, ..)| grant).collect();
        parts.into_iter().for_each(|grant| self.set_freeing(grant));
        assert!(
            self.parts(id).all(|(_, grant, _)| grant.phase == Phase::Freeing),
            "space {id} is dropped: all of its parts are freed"
        );
        self.settle_spaces();
    }

    /// What follows from the phases of parts.
    pub(super) fn settle_spaces(&mut self) {
        // Of each space with parts, whether all of them are kept.
        let mut all_kept: BTreeMap<SpaceId, bool> = BTreeMap::new();
        for grant in self.grants.values() {
            if let Some(part) = grant.part {
                *all_kept.entry(part.space).or_insert(true) &= grant.phase == Phase::Kept;
            }
        }
        let is_made =
            |space: &SpaceRecord| space.phase == SpacePhase::Making && all_kept.get(&space.id).copied().unwrap_or(true);
        self.spaces.change_each(is_made, |space| space.enter(SpacePhase::Ready));
        self.spaces
            .retain(|id, space| space.phase != SpacePhase::Dropping || all_kept.contains_key(id));
    }

    /// What was being made when the manager died: the client that asked for it has heard nothing.
    pub(super) fn undo_unheard(&mut self) {
        let keeping = |(id, grant): (&GrantId, &Grant)| (grant.phase == Phase::Keeping).then_some(*id);
        let keeping: Vec<GrantId> = self.grants.iter().filter_map(keeping).collect();
        keeping.into_iter().for_each(|id| self.not_kept(id));
        assert!(
            self.grants.values().all(|grant| grant.phase != Phase::Keeping),
            "no part is being made when a manager begins"
        );
    }

    /// A memory node will not come back.
    pub(super) fn lose_parts(&mut self, node: NodeId) {
        let lost: Vec<PartOf> = self
            .grants
            .values()
            .filter(|g| g.node == node)
            .filter_map(|g| g.part)
            .collect();
        for part in lost {
            match self.space_mut(part.space) {
                Some(space) if space.phase == SpacePhase::Making => space.enter(SpacePhase::Dropping),
                Some(space) => space.lost.push(part.number),
                None => continue,
            }
        }
        let dropping: Vec<SpaceId> = self
            .spaces
            .values()
            .filter(|s| s.phase == SpacePhase::Dropping)
            .map(|s| s.id)
            .collect();
        dropping.into_iter().for_each(|id| self.set_dropping(id));
    }

    pub(super) fn check_alone(&self, id: GrantId) -> Result<()> {
        let grant = self.grant(id)?;
        match grant.part.and_then(|part| Some((part.number, self.space(part.space)?))) {
            None => Ok(()),
            Some((number, space)) => Err(Error::Invalid(format!(
                "grant {id} is part {number} of space \"{}\" of tenant \"{}\": drop the space (cenote pool space drop)",
                space.name, space.tenant
            ))),
        }
    }

    // ---- views and checks ----

    /// What a part's node is told.
    pub fn part_order(&self, grant_id: GrantId) -> Option<PartOrder> {
        let grant = self.grants.get(&grant_id)?;
        let part = grant.part?;
        let space = self.space(part.space)?;
        grant.is_kept().then(|| PartOrder {
            grant: grant_id,
            space: space.id,
            part: part.number,
            tenant: space.tenant.clone(),
            bytes: grant.bytes,
            key: space.key,
            make: grant.phase == Phase::Keeping,
            mirrored: space.mirrored,
        })
    }

    /// Parts that a node keeps.
    pub fn kept_by(&self, node: NodeId) -> Vec<GrantId> {
        let kept = |(_, grant): &(&GrantId, &Grant)| grant.node == node && grant.phase == Phase::Kept;
        self.grants.iter().filter(kept).map(|(id, _)| *id).collect()
    }

    /// A space, as its clients see it.
    ///
    /// # Errors
    /// As [`GrantTable::open_space`].
    pub fn space_view(&self, tenant: &str, name: &str) -> Result<SpaceView> {
        let space = self.open_space(tenant, name)?;
        Ok(SpaceView {
            id: space.id,
            key: space.key,
            parts: self.part_views(space.id),
        })
    }

    fn part_views(&self, space: SpaceId) -> Vec<PartView> {
        let kept = self.parts(space).filter(|(_, grant, _)| grant.phase == Phase::Kept);
        let mut parts: Vec<_> = kept
            .filter_map(|(id, grant, number)| self.part_view(id, grant, number))
            .collect();
        parts.sort_by_key(|part| part.number);
        parts
    }

    /// The spaces that a node keeps parts of, with all their parts.
    pub fn spaces_at(&self, node: NodeId) -> BTreeMap<SpaceId, PartsOf> {
        let here = |grant: &&Grant| grant.node == node && grant.is_kept();
        let parts = self.grants.values().filter(here).filter_map(|grant| grant.part);
        let mut all: BTreeMap<SpaceId, PartsOf> = parts.map(|part| (part.space, PartsOf::default())).collect();
        for (id, grant) in self.grants.iter() {
            let of_space = grant.part.and_then(|part| Some((part, all.get_mut(&part.space)?)));
            let Some((part, (parts, _, coming))) = of_space else {
                continue;
            };
            match grant.phase {
                Phase::Kept => parts.extend(self.part_view(*id, grant, part.number)),
                // Being made, or a mirror that takes a part's place: until it is kept, no set of nodes without it is
                // all.
                Phase::Keeping | Phase::Fencing => coming.push(part.number),
                _ => {}
            }
        }
        for (id, (parts, lost, coming)) in &mut all {
            parts.sort_by_key(|part| part.number);
            coming.sort_unstable();
            *lost = self.space(*id).map_or_else(Vec::new, |space| space.lost.clone());
        }
        all
    }

    /// Which part a grant is, and the nodes that have to know of it before members do: those of its space that fence
    /// members of others.
    pub fn nodes_with(&self, id: GrantId) -> Option<(PartOf, BTreeSet<NodeId>)> {
        let part = self.grants.get(&id).and_then(|grant| grant.part)?;
        let parts = self.parts(part.space).filter(|(_, grant, _)| grant.is_kept());
        let has_calls = |id: &NodeId| self.nodes.get(id).is_some_and(Node::may_have_calls);
        let nodes = parts.map(|(_, grant, _)| grant.node).filter(has_calls);
        Some((part, nodes.collect()))
    }

    fn part_view(&self, id: GrantId, grant: &Grant, number: u8) -> Option<PartView> {
        let node = self.nodes.get(&grant.node)?;
        Some(PartView {
            number,
            grant: id,
            bytes: grant.bytes,
            node: grant.node,
            pod: node.pod.clone(),
            machine: node.machine,
            path: Path::new(&node.directory)
                .join(format!("grant-{id}"))
                .display()
                .to_string(),
            members: node.connected.then(|| node.members.clone()),
            calls: node.calls.clone().filter(|_| node.connected),
            mirrored: grant.part.is_some_and(|part| self.is_mirrored(part.space)),
        })
    }

    /// Spaces, as people see them; those of one tenant, or of all: in the order in which they were made.
    pub fn space_summaries(&self, tenant: Option<&str>) -> Vec<SpaceSummary> {
        let mut parts = self.parts_by_space();
        let asked = self
            .spaces
            .values()
            .filter(|space| tenant.is_none_or(|tenant| space.tenant == tenant));
        let summary = |space: &SpaceRecord| self.summary(space, parts.remove(&space.id).unwrap_or_default());
        let mut all: Vec<_> = asked.map(summary).collect();
        all.sort_by_key(|space| space.parts.iter().map(|part| part.grant).min());
        all
    }

    fn parts_by_space(&self) -> BTreeMap<SpaceId, Vec<(GrantId, &Grant, u8)>> {
        let mut parts: BTreeMap<SpaceId, Vec<_>> = BTreeMap::new();
        for (id, grant) in self.grants.iter() {
            if let Some(part) = grant.part {
                parts.entry(part.space).or_default().push((*id, grant, part.number));
            }
        }
        parts
    }

    fn summary(&self, space: &SpaceRecord, parts: Vec<(GrantId, &Grant, u8)>) -> SpaceSummary {
        let part = |(id, grant, number): (GrantId, &Grant, u8)| PartSummary {
            number,
            grant: id,
            bytes: grant.bytes,
            node: grant.node,
            pod: self
                .nodes
                .get(&grant.node)
                .map(|node| node.pod.clone())
                .unwrap_or_default(),
            phase: grant.phase,
            connected: self.nodes.get(&grant.node).is_some_and(|node| node.connected),
        };
        let mut parts: Vec<_> = parts.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.number);
        SpaceSummary {
            id: space.id,
            tenant: space.tenant.clone(),
            name: space.name.clone(),
            phase: space.phase,
            parts,
            lost: space.lost.clone(),
            mirrored: space.mirrored,
        }
    }

    pub(super) fn problems_of_spaces(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut names = BTreeSet::new();
        let parts = self.parts_by_space();
        for (id, space) in self.spaces.iter() {
            if !names.insert((&space.tenant, &space.name)) {
                let (tenant, name) = (&space.tenant, &space.name);
                problems.push(format!("tenant \"{tenant}\" has space \"{name}\" twice"));
            }
            if space.id != *id {
                problems.push(format!("space {id} says that it is {}", space.id));
            }
            problems.extend(problems_of_numbers(space, parts.get(id).map_or(&[], Vec::as_slice)));
        }
        problems.extend(self.problems_of_parts());
        problems
    }

    fn problems_of_parts(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (id, grant) in self.grants.iter() {
            let is_kept = matches!(grant.phase, Phase::Kept | Phase::Keeping);
            let fits = match grant.part {
                Some(part) => self
                    .space(part.space)
                    .is_some_and(|space| !is_kept || space.phase != SpacePhase::Dropping),
                None => !is_kept,
            };
            // A mirror that takes a part's place is fenced first.
            let is_promoted = |part: PartOf| grant.phase == Phase::Fencing && self.is_mirrored(part.space);
            let has_holder = matches!(grant.phase, Phase::Held | Phase::Idle | Phase::Fencing);
            let is_held = has_holder && grant.part.is_some_and(|part| !is_promoted(part));
            if !fits || is_held {
                problems.push(format!("grant {id} is {}, and its space says otherwise", grant.phase));
            }
        }
        problems
    }
}

/// A part's number is given once in its space, to a part that is there or was lost.
fn problems_of_numbers(space: &SpaceRecord, parts: &[(GrantId, &Grant, u8)]) -> Vec<String> {
    let (mut problems, mut numbers, id) = (Vec::new(), BTreeSet::new(), space.id);
    let is_given = |number: u8| (1..=space.last).contains(&number);
    for number in space.lost.iter().copied() {
        if !numbers.insert(number) || !is_given(number) {
            problems.push(format!("space {id} has lost part {number}, which does not fit"));
        }
    }
    for (grant_id, grant, number) in parts {
        if !numbers.insert(*number) || !is_given(*number) || grant.tenant != space.tenant {
            problems.push(format!(
                "grant {grant_id} is part {number} of space {id}, which does not fit"
            ));
        }
    }
    problems
}

/// A node of a space does not hear of its growth.
pub(crate) fn must_hear(node: NodeId) -> Error {
    Error::Busy(format!(
        "memory node {node}, which keeps parts of the space, is not connected, and has to know of its new memory first: \
         start it, or see `cenote pool status`"
    ))
}

/// Spreads `bytes` over nodes with so much free: each gives the same, or all that it has; `None` if that is not enough.
/// What is too little for all of them goes to those with most room.
pub(super) fn spread(bytes: u64, mut free: Vec<(NodeId, u64)>) -> Option<Vec<(NodeId, u64)>> {
    free.retain(|(_, free)| *free >= PART_MIN);
    free.sort_by_key(|(id, free)| (*free, *id));
    let most = usize::try_from(bytes.div_ceil(PART_MIN)).unwrap_or(usize::MAX);
    free.drain(..free.len().saturating_sub(most));
    let (mut left, mut shares) = (bytes, Vec::new());
    for (n, (id, room)) in free.iter().enumerate() {
        let even = left.div_ceil((free.len() - n) as u64).next_multiple_of(EXTENT);
        let share = even.max(PART_MIN).min(room / EXTENT * EXTENT);
        assert!(
            share >= PART_MIN && share <= *room,
            "a node with {room} bytes free does not give a part of {share}"
        );
        left = left.saturating_sub(share);
        shares.push((*id, share));
    }
    shares.sort_unstable();
    (left == 0).then_some(shares)
}
