//! Memory that holders reach over the fabric: its node registers it for one of them.

use super::leader::Leader;
use crate::grant_table::GrantId;
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
        match self.link(node)?.order_if(&order, || lendable().is_ok())? {
            Some(OrderReply::LentGrant(lent)) => Ok(lent),
            Some(_) => Err(Error::corrupt("a memory node's answer")),
            None => lendable().and_then(|_| Err(Error::Busy(format!("grant {id} is changing hands")))),
        }
    }
}
