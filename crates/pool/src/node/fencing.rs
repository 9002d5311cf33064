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
/// How long a node that could not be told, or did not confirm all, is left alone about a space.
const AGAIN: Nanos = Nanos::from_millis(500);
/// How long calls may be under way of a member that leaves. They wait for nothing.
const LEAVE_TIMEOUT: Nanos = Nanos::from_secs(1);
const LEAVE_TURN: Nanos = Nanos::from_millis(1);

/// The members that other nodes are told of, and which of those have confirmed it.
#[derive(Default)]
pub(super) struct Spread(Mutex<BTreeMap<MemberId, Told>>);

/// The parts of a space at other nodes.
type Elsewhere = BTreeMap<NodeId, Vec<u8>>;
/// Where telling failed.
type Again = BTreeMap<(SpaceId, NodeId), Failed>;

/// A node has not confirmed all that it was told of for a space: it is told of one member after the other then.
#[derive(Clone, Copy)]
struct Failed {
    due: Nanos,
    /// The last one that it did not confirm, if it was told of each.
    last: Option<MemberId>,
}

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

    /// Those of a space that a node has not confirmed, as many as a message tells of: from those after one on.
    fn unconfirmed(&self, space: SpaceId, node: NodeId, last: Option<MemberId>) -> Vec<MemberId> {
        let told = self.0.lock();
        let is_open = |told: &Told| told.space == space && !told.is_done && !told.confirmed.contains(&node);
        let open = told.iter().filter(|(_, told)| is_open(told));
        let mut open: Vec<MemberId> = open.map(|(id, _)| *id).collect();
        let after = open.partition_point(|id| last.is_some_and(|last| *id <= last));
        open.rotate_left(after);
        open.truncate(MEMBERS_MAX);
        open
    }

    fn confirm(&self, node: NodeId, members: &[MemberId]) {
        let mut told = self.0.lock();
        for id in members {
            if let Some(told) = told.get_mut(id) {
                told.confirmed.insert(node);
            }
        }
    }

    /// Tells these nodes of a space's members, as far as they are due.
    fn tell(
        &self,
        space: SpaceId,
        elsewhere: &Elsewhere,
        again: &mut Again,
        tell: impl Fn(&[u8], &[MemberId]) -> Result<()>,
    ) {
        for (node, parts) in elsewhere {
            let failed = again.get(&(space, *node)).copied();
            let members = self.unconfirmed(space, *node, failed.and_then(|failed| failed.last));
            if members.is_empty() || failed.is_some_and(|failed| rt::now() <= failed.due) {
                continue;
            }
            let tell = |members: &[MemberId]| tell(parts, members);
            let failed = match failed {
                None => tell(&members).map(|()| self.confirm(*node, &members)).map_err(|_| None),
                Some(_) => self.tell_each(*node, &members, tell).map_err(Some),
            };
            match failed {
                Ok(()) => _ = again.remove(&(space, *node)),
                Err(last) => {
                    let due = rt::now() + AGAIN;
                    again.insert((space, *node), Failed { due, last });
                }
            }
        }
    }

    /// Tells a node of one member after the other: those that it can confirm do not wait for the others.
    ///
    /// # Errors
    /// The last one that it has not confirmed.
    fn tell_each(
        &self,
        node: NodeId,
        members: &[MemberId],
        tell: impl Fn(&[MemberId]) -> Result<()>,
    ) -> core::result::Result<(), MemberId> {
        let mut done = Ok(());
        for id in members {
            match tell(&[*id]) {
                Ok(()) => self.confirm(node, &[*id]),
                // Each of the others would take as long. They come first next time.
                Err(Error::Lost(_) | Error::Timeout(_)) => return Err(*id),
                Err(_) => done = Err(*id),
            }
        }
        done
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
        self.remember_fenced(space, ids)?;
        // All of them are to be told of, also if the first is not confirmed.
        Ok(ids.iter().filter(|id| !self.spread.is_done(space, **id)).count() == 0)
    }

    /// Members that were fenced may live on: they do not come back, here or where a mirror takes a part's place.
    ///
    /// # Errors
    /// Those of files; [`Error::Busy`] or [`Error::Lost`] while a mirror cannot be told.
    pub(super) fn remember_fenced(&self, space: SpaceId, ids: &[MemberId]) -> Result<()> {
        self.membership.remember_fenced(ids)?;
        if ids.is_empty() {
            return Ok(());
        }
        let numbers: Vec<u128> = ids.iter().map(|id| id.0).collect();
        if self.parts.is_opening_mirrored(space) {
            return Err(Error::Busy(format!("a mirrored part of space {space} is not open yet")));
        }
        let parts = self.parts.of_space(space);
        parts.iter().try_for_each(|kept| kept.note_fenced(&numbers))
    }

    /// Whether a member was fenced, here or where a part of its space was before.
    pub(super) fn was_fenced(&self, space: SpaceId, id: MemberId) -> bool {
        let mut parts = self.parts.of_space(space).into_iter();
        self.membership.is_fenced(id) || parts.any(|kept| kept.keeper.part().has_fenced(id.0))
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
        let mut again = Again::new();
        while !self.is_stopping() {
            rt::sleep(TURN);
            let spaces = self.spread.spaces();
            again.retain(|(space, _), _| spaces.contains(space));
            for space in spaces {
                self.spread_in(space, &mut again);
            }
        }
    }

    fn spread_in(&self, space: SpaceId, again: &mut Again) {
        let Some(elsewhere) = self.parts.elsewhere(space) else {
            return;
        };
        self.spread
            .tell(space, &elsewhere, again, |parts, members| match self.is_stopping() {
                false => self.tell(space, parts, members),
                true => Err(Error::Lost("the node is stopping".into())),
            });
        self.spread.judge(space, &elsewhere.into_keys().collect());
    }

    /// Tells a node that has these parts.
    fn tell(&self, space: SpaceId, parts: &[u8], members: &[MemberId]) -> Result<()> {
        let here = self.parts.of_space(space);
        let host = here.iter().find_map(|kept| kept.host.as_ref());
        let host = host.ok_or_else(|| Error::Busy("no part of the space is served here".into()))?;
        let numbers = || members.iter().map(|id| id.0).collect();
        let is_mirrored = here.iter().any(|kept| kept.order.mirrored);
        tell_by(parts, is_mirrored, |part| host.fence_at(part, numbers()))
    }
}

/// By the first of its parts that is served. Of a mirrored space by each: a part that it keeps no more is at another node,
/// of which the manager has not told yet, and which has to confirm it too.
fn tell_by(parts: &[u8], is_mirrored: bool, tell: impl Fn(u8) -> Result<()>) -> Result<()> {
    if is_mirrored {
        return parts.iter().try_for_each(|part| tell(*part));
    }
    let mut told = Err(Error::Invalid("a node without parts".into()));
    for part in parts {
        told = tell(*part);
        if told.is_ok() {
            break;
        }
    }
    told
}

impl Fencing for NodeState {
    fn fence(&self, space: u128, members: &[u128]) -> Result<()> {
        let ids: Vec<MemberId> = members.iter().map(|id| MemberId(*id)).collect();
        // Before all else: one that is no member yet is not to become one.
        self.remember_fenced(SpaceId(space), &ids)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const NODE: NodeId = NodeId(5);

    fn elsewhere() -> Elsewhere {
        BTreeMap::from([(NODE, vec![1])])
    }

    /// Of all that were told: whether a node has confirmed.
    fn spread(space: SpaceId, members: core::ops::Range<u128>) -> Spread {
        let spread = Spread::default();
        members.for_each(|n| assert!(!spread.is_done(space, MemberId(n))));
        spread
    }

    fn turns(spread: &Spread, spaces: &[SpaceId], tell: impl Fn(SpaceId, &[MemberId]) -> Result<()>) {
        let mut again = Again::new();
        for _ in 0..4 {
            for space in spaces {
                spread.tell(*space, &elsewhere(), &mut again, |_, members| tell(*space, members));
                spread.judge(*space, &BTreeSet::from([NODE]));
            }
            again.values_mut().for_each(|failed| failed.due = Nanos::ZERO);
        }
    }

    /// One member whose process did not end kept all others of its space from being confirmed.
    #[test]
    fn a_member_that_cannot_be_confirmed_holds_up_no_others() {
        for stuck in [
            Error::Busy("it does not end".into()),
            Error::Timeout("it takes long".into()),
        ] {
            let (space, stuck_id) = (SpaceId(1), MemberId(0));
            let spread = spread(space, 0..10);
            turns(&spread, &[space], |_, members| match members.contains(&stuck_id) {
                true => Err(stuck.clone()),
                false => Ok(()),
            });
            assert!((1..10).all(|n| spread.is_done(space, MemberId(n))), "{stuck:?}");
            assert!(!spread.is_done(space, stuck_id));
        }
    }

    /// A part's mirror had taken its place at a third node, which was not asked, and where the member could write: the
    /// part's former node confirmed for both, by another part.
    #[test]
    fn a_node_confirms_for_the_mirrored_parts_that_it_keeps_still() {
        let moved = |part: u8| match part {
            1 => Err(Error::Lost("not here any more".into())),
            _ => Ok(()),
        };
        assert!(tell_by(&[1, 2], true, moved).is_err() && tell_by(&[2, 1], true, moved).is_err());
        assert!(tell_by(&[2, 3], true, moved).is_ok());
        assert!(tell_by(&[1, 2], false, moved).is_ok() && tell_by(&[1], false, moved).is_err());
    }

    /// A node that did not confirm for one space was never told of another one's members.
    #[test]
    fn a_space_whose_members_cannot_be_confirmed_holds_up_no_others() {
        let (stuck, other) = (SpaceId(1), SpaceId(2));
        let spread = spread(stuck, 0..1);
        assert!(!spread.is_done(other, MemberId(1)));
        turns(&spread, &[stuck, other], |space, _| match space == stuck {
            true => Err(Error::Lost("no way".into())),
            false => Ok(()),
        });
        assert!(spread.is_done(other, MemberId(1)) && !spread.is_done(stuck, MemberId(0)));
    }

    /// A node that is away takes a try's time at a turn, and not one of each member.
    #[test]
    fn a_node_that_is_away_is_asked_once_a_turn() {
        let tried = RefCell::new(0);
        let spread = spread(SpaceId(1), 0..100);
        turns(&spread, &[SpaceId(1)], |_, _| {
            *tried.borrow_mut() += 1;
            Err(Error::Lost("away".into()))
        });
        assert_eq!(tried.into_inner(), 4);
    }
}
