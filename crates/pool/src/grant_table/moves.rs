//! Memory that is reached over the fabric, whose node is lost: its label gets other memory, on another node.
//!
//! ```text
//!   "db" ── grant 4, on a node that is away         "db/lost-4" ── grant 4, freed when the node is back
//!                                            ──▶
//!                                                   "db" ── grant 9, on another node, empty
//! ```
//!
//! A slab moves when it was freed: its holder frees what it does not reach, and asks for the same number again.
//!
//! No node has to confirm it: keys of the former memory reach nothing that the label names any more. The slabs of a
//! grant follow its label ([`super::slabs`]).

use super::{Grant, GrantId, GrantTable, Node, NodeId, Opening, check_reach, check_takes};
use crate::ids::{Phase, is_slab_label};
use crate::wire::{Moves, OpenRequest, Reach};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};

/// Whether it is the client's that asks.
fn is_held(id: GrantId, grant: &Grant, requested: &OpenRequest) -> bool {
    match requested.reach {
        Reach::Remote {
            moves: Some(Moves { held }),
            ..
        } => held == Some((id, grant.epoch)),
        _ => false,
    }
}

impl GrantTable {
    /// Whether a request has the label move from this grant. A node that may yet join a manager which has just begun to
    /// lead is waited for.
    pub(super) fn moves(&self, id: GrantId, requested: &OpenRequest, now: Nanos) -> bool {
        let Some(grant) = self.grants.get(&id) else {
            return false;
        };
        let has_left = |node: &Node| !node.connected && (node.has_joined() || now >= self.nodes_come);
        let is_away = self.nodes.get(&grant.node).is_some_and(has_left);
        let wants = matches!(requested.reach, Reach::Remote { moves: Some(_), .. });
        // A slab that is held lies where it lies until its holder has freed it.
        let may = !is_slab_label(&grant.label) || grant.phase == Phase::Freeing;
        // The holder may fail to reach a node that the manager hears.
        let is_own = grant.phase == Phase::Held && is_held(id, grant, requested);
        wants && may && grant.remote && (is_away || is_own)
    }

    /// The node that a request moves away from: what it asks for does not lie there.
    pub(super) fn node_left(&self, requested: &OpenRequest) -> Option<NodeId> {
        match requested.reach {
            Reach::Remote {
                moves: Some(Moves { held: Some((id, _)) }),
                ..
            } => self.grants.get(&id).map(|grant| grant.node),
            _ => None,
        }
    }

    /// The label's memory is made anew, on a node that is there; nothing is changed where there is no room.
    ///
    /// # Errors
    /// [`Error::Busy`] if another holds it, and it is not to be taken; those of new memory.
    pub(super) fn open_elsewhere(
        &mut self,
        id: GrantId,
        bytes: u64,
        requested: &OpenRequest,
        now: Nanos,
        lease: Nanos,
    ) -> Result<Opening> {
        let former = self.grant(id)?;
        let (tenant, label) = (former.tenant.clone(), format!("{}/lost-{id}", former.label));
        check_reach(id, former.remote, requested)?;
        if former.phase == Phase::Held && !is_held(id, former, requested) {
            check_takes(id, requested.reach)?;
        }
        let node = former.node;
        let no_room = |error| match error {
            Error::Full(why) => Error::Lost(format!(
                "memory node {node} is not reached, and no other takes its place: {why}"
            )),
            error => error,
        };
        let opening = self.open_new(&tenant, bytes, requested, now, lease).map_err(no_room)?;
        if let Opening::Admit(new, _) = opening {
            assert!(new != id, "other memory is another grant");
            if let Some(former) = self.grants.get_mut(&id) {
                former.label = label;
            }
            self.set_freeing(id);
        }
        Ok(opening)
    }
}
