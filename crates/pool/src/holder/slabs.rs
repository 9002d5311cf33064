//! Slabs: more memory that belongs to a grant which is reached over the fabric. Each is a grant of its own, wherever
//! there is room, and has a number.
//!
//! ```text
//!   holder ── OpenSlabs ─▶ manager: all of them in one change ── Admit, LendGrant ─▶ memory nodes, side by side
//!          ══ one way to each node; over it, all slabs that lie there
//!          ── Renew ─────▶ manager: a lease for each slab, over a connection that begins with its first renewal
//! ```
//!
//! The holder of the first grant may take any slab from another holder, and free it by its number. The manager looks at
//! both at once, so a process that has lost the first grant, and has not heard of it yet, takes no slab from the next
//! one.

use super::mirror::way_to;
use super::remote::RemoteGrant;
use super::{GrantedMemory, OnRevoked, Shared};
use crate::session::unexpected;
use crate::wire::{OpenedSlab, Reply, Request, SlabsRequest};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Endpoint, RemoteMemory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Before slabs are asked for again whose memory is being taken back.
const AGAIN: Nanos = Nanos::from_millis(50);
/// How long that goes on. Taking memory back is short, or stuck: then it holds up no start whose other slabs are there.
const BUSY_PATIENCE: Nanos = Nanos::from_secs(2);
/// With less time left they are not asked for again: they would be taken, and not waited for.
const LEFT_MIN: Nanos = Nanos::from_millis(100);

/// A request for slabs.
pub struct SlabsWanted<'a> {
    /// Their numbers, rising.
    pub slabs: &'a [u32],
    /// Bytes of each; rounded up to whole extents.
    pub bytes: u64,
    /// For people.
    pub description: &'a str,
    /// Only in this pod; anywhere if `None`.
    pub pod: Option<&'a str>,
    /// How long memory nodes are waited for. What is `Busy` is asked for again for 2 s of it at most.
    pub patience: Nanos,
    /// What is to be called when a slab is another's.
    pub on_revoked: &'a dyn Fn(u32) -> OnRevoked,
}

/// A slab that is held, and the way to it.
pub type ReachedSlab = (RemoteGrant, RemoteMemory);

/// The ways to nodes, or why there is none: each is looked for once.
type Ways = BTreeMap<String, Result<Arc<dyn Endpoint>>>;

impl RemoteGrant {
    /// Takes slabs of this memory from whichever process holds them, or makes them, and keeps their leases from here on.
    /// `reached` is given each as it is there, or why it is not: [`Error::Full`], [`Error::Mismatch`] (it has another
    /// size, or is mapped), [`Error::Busy`], [`Error::Timeout`], [`Error::Lost`]. One that is not there holds up no
    /// other.
    ///
    /// # Errors
    /// [`Error::Revoked`] if this memory is another's by now; those of the way to the manager: then `reached` was not
    /// given those that are left.
    pub fn open_slabs(
        &self,
        wanted: &SlabsWanted<'_>,
        reached: &mut dyn FnMut(u32, Result<ReachedSlab>),
    ) -> Result<()> {
        let until = rt::now() + wanted.patience;
        let again_until = rt::now() + wanted.patience.min(BUSY_PATIENCE);
        let mut left = wanted.slabs.to_vec();
        while !left.is_empty() {
            let answers = self.ask_for_slabs(wanted, &left, until)?;
            let busy = self.reach_opened(wanted, left.into_iter().zip(answers), reached);
            if rt::now() + AGAIN + LEFT_MIN > again_until {
                busy.into_iter().for_each(|(slab, error)| reached(slab, Err(error)));
                return Ok(());
            }
            left = busy.into_iter().map(|(slab, _)| slab).collect();
            if !left.is_empty() {
                rt::sleep(AGAIN);
            }
        }
        Ok(())
    }

    /// Those that are `Busy` are left, to be asked for again.
    fn reach_opened(
        &self,
        wanted: &SlabsWanted<'_>,
        answers: impl Iterator<Item = (u32, Result<OpenedSlab>)>,
        reached: &mut dyn FnMut(u32, Result<ReachedSlab>),
    ) -> Vec<(u32, Error)> {
        let (mut ways, mut busy) = (Ways::new(), Vec::new());
        for (slab, answer) in answers {
            match answer {
                Err(error @ Error::Busy(_)) => busy.push((slab, error)),
                Err(error) => reached(slab, Err(error)),
                Ok(opened) => {
                    let on_revoked = (wanted.on_revoked)(slab);
                    reached(slab, self.reach_slab(opened, &mut ways, on_revoked));
                }
            }
        }
        busy
    }

    /// What the manager says of each; half of the time is for it. One that has no thread for them has not begun: all of
    /// them are `Busy`.
    fn ask_for_slabs(&self, wanted: &SlabsWanted<'_>, slabs: &[u32], until: Nanos) -> Result<Vec<Result<OpenedSlab>>> {
        let request = Request::OpenSlabs(SlabsRequest {
            first: self.memory.id(),
            epoch: self.memory.epoch(),
            slabs: slabs.to_vec(),
            bytes: wanted.bytes,
            description: wanted.description.into(),
            pod: wanted.pod.map(str::to_owned),
            within: until.since(rt::now()).raw() / 2,
        });
        let reply = match self.access.ask(&request) {
            Err(error @ Error::Busy(_)) => return Ok(vec![Err(error); slabs.len()]),
            asked => asked?,
        };
        match reply {
            Reply::Slabs(answers) if answers.len() == slabs.len() => {
                Ok(answers.into_iter().map(|answer| answer.map_err(Error::from)).collect())
            }
            _ => Err(unexpected()),
        }
    }

    fn reach_slab(&self, opened: OpenedSlab, ways: &mut Ways, on_revoked: OnRevoked) -> Result<ReachedSlab> {
        let OpenedSlab { opened, lent } = opened;
        let (grant, bytes, len) = (opened.grant, opened.bytes, lent.memory.len);
        if len != bytes {
            return Err(Error::Mismatch(format!(
                "grant {grant} of {bytes} bytes was lent with {len}"
            )));
        }
        let way = ways
            .entry(lent.address.clone())
            .or_insert_with(|| self.access.cards.way(&lent.address));
        let memory = way.clone().map(|way| way_to(&way, &lent))?;
        let shared = Shared::new(&opened, self.memory.shared.every, self.access.lease_channel());
        let held = RemoteGrant {
            memory: GrantedMemory::kept(opened, shared, None, on_revoked),
            access: Arc::clone(&self.access),
        };
        Ok((held, memory))
    }

    /// Frees a slab, whatever process holds it; this one has dropped it before. Where there is none, nothing is done.
    ///
    /// # Errors
    /// [`Error::Revoked`] if this memory is another's by now; [`Error::Mismatch`] if it is no slab; those of the way to
    /// the manager: then it is not known whether it was freed.
    pub fn free_slab(&self, slab: u32) -> Result<()> {
        let request = Request::FreeSlab {
            first: self.memory.id(),
            epoch: self.memory.epoch(),
            slab,
        };
        match self.access.ask(&request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

#[cfg(test)]
mod tests;
