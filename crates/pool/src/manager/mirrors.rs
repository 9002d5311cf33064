//! Mirrors at the manager: holders ask for them, and say what they have.

use super::leader::Leader;
use crate::grant_table::{Grant, GrantId, Phase};
use crate::wire::{Lent, MirrorRequest, MirrorView, Order, OrderReply, Reply};
use cenote_base::rt;
use cenote_base::{Error, Result};

impl Leader {
    pub(super) fn mirror(&self, tenant: &str, id: GrantId, epoch: u64, what: MirrorRequest) -> Result<Reply> {
        match what {
            MirrorRequest::Look => {
                self.grant_table.look().mirror_for(tenant, id, epoch)?;
            }
            MirrorRequest::Seek => {
                let mirror = self
                    .grant_table
                    .change(|grant_table| grant_table.seek_mirror(tenant, id, epoch, rt::now()))?;
                self.admit_mirror(id, mirror)?;
            }
            MirrorRequest::Whole(mirror) => self
                .grant_table
                .change(|grant_table| grant_table.mirror_is_whole(tenant, id, epoch, mirror))?,
            MirrorRequest::Void(mirror) => self
                .grant_table
                .change(|grant_table| grant_table.mirror_is_void(tenant, id, epoch, mirror))?,
            MirrorRequest::Lost(mirror) => self
                .grant_table
                .change(|grant_table| grant_table.mirror_is_lost(tenant, id, epoch, mirror))?,
            MirrorRequest::Lend { mirror, len, anew } => {
                self.grant_table
                    .change(|grant_table| grant_table.lend_mirror(tenant, id, epoch, mirror))?;
                let lent = self.lend_mirror(tenant, (id, epoch), mirror, len, anew)?;
                let view = self.mirror_view(id).filter(|view| view.grant == mirror);
                return Ok(Reply::Mirror(view.map(|view| MirrorView {
                    lent: Some(lent),
                    ..view
                })));
            }
            MirrorRequest::Unlend(mirror) => {
                // Its journal counts on: it may be lent again, and is not to be refused for want of room then.
                self.order_of_mirror(tenant, (id, epoch), mirror, &Order::Unlend { grant: mirror }, || true)?;
            }
            MirrorRequest::FailOver => {
                self.grant_table
                    .change(|grant_table| grant_table.fail_over(tenant, id, epoch))?;
                return Ok(Reply::Mirror(None));
            }
        }
        Ok(Reply::Mirror(self.mirror_view(id)))
    }

    pub(super) fn mirror_view(&self, id: GrantId) -> Option<MirrorView> {
        self.grant_table.look().mirror_view(id)
    }

    /// Has a mirror's node register it for the holder that asks, and for no other.
    fn lend_mirror(&self, tenant: &str, holder: (GrantId, u64), mirror: GrantId, len: u64, anew: bool) -> Result<Lent> {
        let (bytes, is_whole) = {
            let grant_table = self.grant_table.look();
            let grant = grant_table.grant(mirror)?;
            (grant.bytes, grant.phase == Phase::Whole)
        };
        if is_whole == anew || len > bytes {
            let text = format!("grant {mirror} of {bytes} bytes is not lent so ({len} bytes, anew: {anew})");
            return Err(Error::Invalid(text));
        }
        let grant = mirror;
        // It may have been called whole, or void, since.
        let is_so = || {
            let grant_table = self.grant_table.look();
            grant_table
                .grant(mirror)
                .is_ok_and(|grant| (grant.phase == Phase::Whole) != anew)
        };
        match self.order_of_mirror(tenant, holder, mirror, &Order::Lend { grant, len, anew }, is_so)? {
            OrderReply::Lent(lent) => Ok(lent),
            _ => Err(Error::corrupt("a memory node's answer")),
        }
    }

    /// An order to a mirror's node, given if it is the mirror of that holder's grant still.
    fn order_of_mirror(
        &self,
        tenant: &str,
        (id, epoch): (GrantId, u64),
        mirror: GrantId,
        order: &Order,
        is_so: impl Fn() -> bool,
    ) -> Result<OrderReply> {
        let is_it = || {
            let of = self.grant_table.look().mirror_for(tenant, id, epoch);
            of.map(|of| of == Some(mirror) && is_so())
        };
        let not_it = || Error::Lost(format!("grant {mirror} is not the mirror of grant {id} any more"));
        if !is_it()? {
            return Err(not_it());
        }
        let node = self.grant_table.look().grant(mirror)?.node;
        let ordered = self.link(node)?.order_if(order, || is_it().unwrap_or(false))?;
        ordered.ok_or_else(not_it)
    }

    /// Has a mirror's node make its file, unless it was filled before. One that says that it cannot is left. Of one
    /// that does not answer is unknown: its mirror stays, as it may have been asked for before, and be mapped by now; a
    /// process that maps what is freed is ended.
    fn admit_mirror(&self, id: GrantId, mirror: GrantId) -> Result<()> {
        let (node, whole) = {
            let grant_table = self.grant_table.look();
            (
                grant_table.grant(mirror)?.node,
                grant_table.mirror_view(id).is_some_and(|view| view.whole),
            )
        };
        if whole {
            return Ok(());
        }
        let is_filling = |grant: &Grant| grant.phase == Phase::Filling && grant.mirror_of == Some(id);
        let made = self.admit_if(node, mirror, is_filling);
        if matches!(&made, Err(error) if !matches!(error, Error::Lost(_) | Error::Timeout(_))) {
            self.grant_table.update(|grant_table| {
                grant_table.drop_mirror(id);
            })?;
        }
        match made? {
            Some(_) => Ok(()),
            None => Err(Error::Busy(format!(
                "grant {mirror} does not mirror grant {id} any more"
            ))),
        }
    }

    /// What the holder of a grant that was just opened is told of its mirror. That there is none is no error: it seeks
    /// another.
    pub(super) fn mirror_at_opening(&self, id: GrantId, wanted: bool) -> Result<Option<MirrorView>> {
        let mirror = self.grant_table.look().mirror_of(id).map(|(mirror, _)| mirror);
        let Some(mirror) = mirror else { return Ok(None) };
        if !wanted {
            // No process maps it: the grant's former holder has ended.
            self.grant_table.update(|grant_table| {
                grant_table.drop_mirror(id);
            })?;
        } else if let Err(error) = self.admit_mirror(id, mirror) {
            eprintln!("cenote: manager: the mirror of grant {id}: {error}");
        }
        Ok(self.mirror_view(id))
    }

    /// Whether a process maps the mirror of a grant, as its node says; one that is away says nothing.
    ///
    /// # Errors
    /// [`Error::Busy`], which names them.
    pub(super) fn check_mirror_is_left(&self, id: GrantId) -> Result<()> {
        let mirror = self
            .grant_table
            .look()
            .mirror_of(id)
            .map(|(mirror, grant)| (mirror, grant.node));
        let Some((mirror, node)) = mirror else { return Ok(()) };
        match self.order(node, &Order::Inspect { grant: mirror }) {
            Ok(OrderReply::Holders(holders)) if !holders.is_empty() => Err(Error::Busy(format!(
                "grant {mirror}, the mirror of grant {id}, is in use by {}",
                holders.join(", ")
            ))),
            _ => Ok(()),
        }
    }
}
