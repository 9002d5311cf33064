//! A grant whose holder does not map it, but reaches it over the fabric, from any machine.
//!
//! ```text
//!   holder ── Open, Renew ──▶ manager                    the grant is its own, for a lease at a time
//!          ── Lend ─────────▶ manager ── LendGrant ──▶ memory node: keys drawn anew, the former ones end
//!          ══ one-sided reads and writes, under those keys ══▶ DIR/grant-9
//!   another holder ── Open ─▶ manager                     it is the other's from here on
//!                  ── Lend ─▶ manager ── LendGrant ──▶ memory node: the former keys end, then there are others
//! ```
//!
//! Keys are of one holder alone, and end before another gets the memory: nothing that a former holder sends changes it.
//! So the next start of a database takes the memory from the last one without asking whether that lives.
//!
//! A grant may have [slabs](super::slabs).

use super::access::RemoteAccess;
use super::{GrantRequest, GrantedMemory, OnRevoked};
use crate::ids::GrantId;
use crate::session::unexpected;
use crate::wire::{Moves, Reach, Reply, Request};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::RemoteMemory;
use std::sync::Arc;

/// A request for memory that is reached over the fabric.
#[derive(Debug, Clone)]
pub struct RemoteRequest {
    /// The tenant's name for it: asked for again, it is the same memory.
    pub label: String,
    /// For people.
    pub description: String,
    /// Its size; rounded up to whole extents.
    pub bytes: u64,
    /// Only in this pod; anywhere if `None`.
    pub pod: Option<String>,
}

/// Memory that this process holds and reaches over the fabric. Dropping it lets the lease lapse.
pub struct RemoteGrant {
    pub(super) memory: GrantedMemory,
    pub(super) access: Arc<RemoteAccess>,
}

impl RemoteGrant {
    /// Asks for memory, and keeps the lease from here on. `takes`: from a holder that there is; else that is an error.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Busy`] (another holds it, and it is not to be taken); [`Error::Mismatch`] (the label's
    /// memory is of another size, or mapped); [`Error::Lost`]; [`Error::Invalid`].
    pub fn open(
        access: &Arc<RemoteAccess>,
        requested: RemoteRequest,
        takes: bool,
        on_revoked: OnRevoked,
    ) -> Result<Self> {
        Self::ask(access, requested, Reach::Remote { takes, moves: None }, on_revoked)
    }

    fn ask(access: &Arc<RemoteAccess>, requested: RemoteRequest, reach: Reach, on_revoked: OnRevoked) -> Result<Self> {
        let requested = GrantRequest {
            label: requested.label,
            description: requested.description,
            bytes: requested.bytes,
            pod: requested.pod,
            keep: None,
            mirror: false,
            host: None,
        };
        let asked = requested.asked(reach);
        let memory = GrantedMemory::ask(&access.network, &access.credentials, asked, on_revoked)?;
        let access = Arc::clone(access);
        Ok(Self { memory, access })
    }

    /// As [`RemoteGrant::open`]; where its memory node is away, other memory takes its place, empty, on another node.
    /// What lies on the one that is away is freed when that is back. `held`: of this process, which does not reach it:
    /// it moves from there also if the manager hears the node.
    ///
    /// # Errors
    /// As there.
    pub fn open_elsewhere(
        access: &Arc<RemoteAccess>,
        requested: RemoteRequest,
        (takes, held): (bool, Option<&RemoteGrant>),
        on_revoked: OnRevoked,
    ) -> Result<Self> {
        let held = held.map(|held| (held.memory.id(), held.memory.epoch()));
        let moves = Some(Moves { held });
        Self::ask(access, requested, Reach::Remote { takes, moves }, on_revoked)
    }

    /// Reaches the memory: under keys drawn now, so what was reached before ends.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is this holder's no more; those of the way to the manager, and to the memory node.
    pub fn connect(&self) -> Result<RemoteMemory> {
        let (grant, epoch) = (self.memory.id(), self.memory.epoch());
        let lent = match self.access.ask(&Request::Lend { grant, epoch })? {
            Reply::Lent(lent) => lent,
            _ => return Err(unexpected()),
        };
        let len = lent.memory.len;
        if len != self.memory.bytes() {
            let text = format!("grant {grant} of {} bytes was lent with {len}", self.memory.bytes());
            return Err(Error::Mismatch(text));
        }
        self.access.cards.reach(&lent)
    }

    /// Its number.
    pub fn id(&self) -> GrantId {
        self.memory.id()
    }

    /// Its pod.
    pub fn pod(&self) -> &str {
        self.memory.pod()
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether it has nothing of before.
    pub fn is_fresh(&self) -> bool {
        self.memory.is_fresh()
    }

    /// Ends the lease. The memory is kept for the next holder, or (`give_back`) freed.
    ///
    /// # Errors
    /// Those of the way to the manager: then the lease lapses by itself, and the memory is kept.
    pub fn release(self, give_back: bool) -> Result<()> {
        self.memory.release(give_back)
    }
}
