//! Fencing that holds at all nodes of a space: docs/fencing.md.
//!
//! ```text
//!   this node                                        each other node that is called over the fabric
//!   silent for a lease: fenced, its gate closed ──── fence: members ──▶ remembered; its process ended if it maps a part here
//!                                                                       its gate closed, and quiet
//!   its sessions end: others may have its locks ◀──── done ────────────
//! ```
//!
//! Invariants:
//! - a member's sessions end when each node of its space has confirmed that nothing of it can land there any more; a
//!   node that cannot be reached is waited for, until it is back or its parts are gone for good;
//! - a node confirms without waiting for others: so nodes that fence the same member do not wait in a circle;
//! - a node that has begun anew knows no members: it confirms nothing of a space before it has ended each process that
//!   maps a part of it and is no member;
//! - a node that has confirmed does not let the member in again, also when it began anew.

use super::NodeState;
use crate::grant_table::{NodeId, SpaceId};
use crate::member::MemberId;
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_space::Fencing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// Between two looks for members that other nodes are to be told of.
const TURN: Nanos = Nanos::from_millis(20);
/// Members that one message tells of.
const MEMBERS_MAX: usize = 256;
/// How long a node that could not be told is left alone.
const AGAIN: Nanos = Nanos::from_millis(500);
/// How long calls may be under way of a member that leaves. They wait for nothing.
const LEAVE_TIMEOUT: Nanos = Nanos::from_secs(1);
const LEAVE_TURN: Nanos = Nanos::from_millis(1);

/// The members that other nodes are told of, and which of those have confirmed it.
#[derive(Default)]
pub(super) struct Spread(Mutex<BTreeMap<MemberId, Told>>);

struct Told {
    space: SpaceId,
    confirmed: BTreeSet<NodeId>,
    is_done: bool,
}

impl Spread {
    /// Whether all others have confirmed a member's end. They are told from here on.
    fn is_done(&self, space: SpaceId, id: MemberId) -> bool {
        let mut told = self.0.lock();
        let new = || Told {
            space,
            confirmed: BTreeSet::new(),
            is_done: false,
        };
        told.entry(id).or_insert_with(new).is_done
    }

    fn forget(&self, id: MemberId) {
        self.0.lock().remove(&id);
    }

    fn spaces(&self) -> BTreeSet<SpaceId> {
        let told = self.0.lock();
        told.values()
            .filter(|told| !told.is_done)
            .map(|told| told.space)
            .collect()
    }

    /// Those of a space that a node has not confirmed, as many as a message tells of.
    fn unconfirmed(&self, space: SpaceId, node: NodeId) -> Vec<MemberId> {
        let told = self.0.lock();
        let is_open = |told: &Told| told.space == space && !told.is_done && !told.confirmed.contains(&node);
        let open = told.iter().filter(|(_, told)| is_open(told));
        open.map(|(id, _)| *id).take(MEMBERS_MAX).collect()
    }

    fn confirm(&self, node: NodeId, members: &[MemberId]) {
        let mut told = self.0.lock();
        for id in members {
            if let Some(told) = told.get_mut(id) {
                told.confirmed.insert(node);
            }
        }
    }

    /// Members of a space are done when all of these nodes have confirmed them.
    fn judge(&self, space: SpaceId, nodes: &BTreeSet<NodeId>) {
        for told in self.0.lock().values_mut().filter(|told| told.space == space) {
            told.is_done |= nodes.is_subset(&told.confirmed);
        }
    }
}

// ---- calls of members ----

impl NodeState {
    /// What a member's calls are known by; 0 where none are served.
    pub(super) fn admit_calls(&self, space: SpaceId, id: MemberId) -> Result<u64> {
        self.parts.hosts().map_or(Ok(0), |hosts| hosts.admit(space.0, id.0))
    }

    /// No call of a member is served any more.
    ///
    /// # Errors
    /// [`Error::Busy`] while one is under way: it looks once, as other members wait.
    pub(super) fn close_calls(&self, space: SpaceId, id: MemberId) -> Result<()> {
        match self.parts.hosts().is_none_or(|hosts| hosts.close(space.0, id.0)) {
            true => Ok(()),
            false => Err(Error::Busy("a member's calls are under way".into())),
        }
    }

    /// The same of a member that leaves, and has nothing under way that it waits for.
    pub(super) fn end_calls(&self, id: MemberId) {
        let Some((space, _)) = self.membership.ending(id) else {
            return;
        };
        let until = rt::now() + LEAVE_TIMEOUT;
        while self.close_calls(space, id).is_err() && rt::now() < until {
            rt::sleep(LEAVE_TURN);
        }
    }

    pub(super) fn forget_calls(&self, space: SpaceId, id: MemberId) {
        self.spread.forget(id);
        self.known.forget(id);
        if let Some(hosts) = self.parts.hosts() {
            hosts.forget(space.0, id.0);
        }
    }
}

// ---- other nodes ----

impl NodeState {
    /// Whether nothing of a fenced member can land at other nodes any more; they are told, if it has anything that others
    /// may wait for.
    pub(super) fn is_confirmed(&self, space: SpaceId, id: MemberId) -> bool {
        self.parts.hosts().is_none() || !self.membership.has_sessions(id) || self.spread.is_done(space, id)
    }

    /// The same of members of the process before, which did not come back: they do not come any more.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn are_confirmed(&self, space: SpaceId, ids: &[MemberId]) -> Result<bool> {
        if self.parts.hosts().is_none() {
            return Ok(true);
        }
        self.membership.remember_fenced(ids)?;
        // All of them are to be told of, also if the first is not confirmed.
        Ok(ids.iter().filter(|id| !self.spread.is_done(space, **id)).count() == 0)
    }

    /// From here on, this node fences what others have fenced.
    pub(super) fn fence_for_others(self: &Arc<Self>) {
        if let Some(hosts) = self.parts.hosts() {
            let this: Weak<Self> = Arc::downgrade(self);
            hosts.set_fencing(this);
        }
    }

    /// The thread that tells other nodes: it may have to wait for them.
    pub(super) fn spread_fences(&self) {
        let mut again: BTreeMap<NodeId, Nanos> = BTreeMap::new();
        while !self.is_stopping() {
            rt::sleep(TURN);
            for space in self.spread.spaces() {
                self.spread_in(space, &mut again);
            }
        }
    }

    fn spread_in(&self, space: SpaceId, again: &mut BTreeMap<NodeId, Nanos>) {
        let Some(elsewhere) = self.parts.elsewhere(space) else {
            return;
        };
        for (node, parts) in &elsewhere {
            let is_due = again.get(node).is_none_or(|due| rt::now() > *due);
            let members = self.spread.unconfirmed(space, *node);
            if members.is_empty() || !is_due || self.is_stopping() {
                continue;
            }
            match self.tell(space, parts, &members) {
                Ok(()) => self.spread.confirm(*node, &members),
                Err(_) => _ = again.insert(*node, rt::now() + AGAIN),
            }
        }
        self.spread.judge(space, &elsewhere.into_keys().collect());
    }

    /// Tells a node that has these parts, by the first of them that is served.
    fn tell(&self, space: SpaceId, parts: &[u8], members: &[MemberId]) -> Result<()> {
        let here = self.parts.of_space(space);
        let host = here.iter().find_map(|kept| kept.host.as_ref());
        let host = host.ok_or_else(|| Error::Busy("no part of the space is served here".into()))?;
        let numbers = || members.iter().map(|id| id.0).collect();
        let mut told = Err(Error::Invalid("a node without parts".into()));
        for part in parts {
            told = host.fence_at(*part, numbers());
            if told.is_ok() {
                break;
            }
        }
        told
    }
}

impl Fencing for NodeState {
    fn fence(&self, space: u128, members: &[u128]) -> Result<()> {
        let ids: Vec<MemberId> = members.iter().map(|id| MemberId(*id)).collect();
        // Before all else: one that is no member yet is not to become one.
        self.membership.remember_fenced(&ids)?;
        let fence = |id: &MemberId| self.fence_here(SpaceId(space), *id);
        ids.iter().map(fence).fold(Ok(()), Result::and)
    }
}

impl NodeState {
    fn fence_here(&self, space: SpaceId, id: MemberId) -> Result<()> {
        if let Some(fencing) = self.membership.begin_fencing(id) {
            if let Some(process) = fencing.process {
                self.end_process(process, &fencing, "was fenced by another memory node")?;
            }
            self.check_quiet(id, &fencing.name)?;
        }
        // It may have been one under a former process of this node, and map a part still.
        if !self.membership.is_member(id) && self.parts.may_have_strangers(space) {
            return Err(Error::Busy("processes of before are not ended yet: ask again".into()));
        }
        self.close_calls(space, id)?;
        if !self.membership.is_member(id)
            && let Some(hosts) = self.parts.hosts()
        {
            // It is remembered as fenced, and so does not come.
            hosts.forget(space.0, id.0);
        }
        Ok(())
    }
}
