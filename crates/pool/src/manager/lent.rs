//! Memory that is reached over the fabric: its node registers it for one holder, and for all readers.

use super::leader::Leader;
use crate::grant_table::{GrantId, NodeId};
use crate::wire::{LentMemory, Order, OrderReply};
use cenote_base::{Error, Result};

impl Leader {
    /// Has a grant's node register it for its holder, and for no other.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more, also when the node comes to it; those of the way there.
    pub(super) fn lend(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<LentMemory> {
        let lendable = || self.grant_table.look().lendable(tenant, id, epoch);
        let (node, len) = lendable()?;
        // A former holder's order that came late would end the next one's keys.
        let order = Order::LendGrant { grant: id, len };
        match self.order_to_lend(node, &order, || lendable().is_ok())? {
            Some(lent) => Ok(lent),
            None => lendable().and_then(|_| Err(changes_hands(id))),
        }
    }

    /// Has the node of a tenant's grant register it to be read. Nothing is noted: readers hold nothing.
    ///
    /// # Errors
    /// Those of [`GrantTable::readable`](crate::grant_table::GrantTable::readable), also when the node comes to it;
    /// [`Error::Busy`] if no holder has reached it yet; those of the way there.
    pub(super) fn lend_to_read(&self, tenant: &str, label: &str) -> Result<LentMemory> {
        let readable = || self.grant_table.look().readable(tenant, label);
        let asked = readable()?;
        let (id, node, len) = asked;
        let order = Order::LendGrantToRead { grant: id, len };
        match self.order_to_lend(node, &order, || readable().is_ok_and(|now| now == asked))? {
            Some(lent) => Ok(lent),
            None => readable().and_then(|_| Err(changes_hands(id))),
        }
    }

    fn order_to_lend(
        &self,
        node: NodeId,
        order: &Order,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<Option<LentMemory>> {
        match self.link(node)?.order_if(order, is_wanted)? {
            Some(OrderReply::LentGrant(lent)) => Ok(Some(lent)),
            Some(_) => Err(Error::corrupt("a memory node's answer")),
            None => Ok(None),
        }
    }
}

fn changes_hands(id: GrantId) -> Error {
    Error::Busy(format!("grant {id} is changing hands"))
}
