//! A grant whose holder does not map it, but reaches it over the fabric, from any machine.
//!
//! ```text
//!   holder ── Open, Renew ──▶ manager                    the grant is its own, for a lease at a time
//!          ── Lend ─────────▶ manager ── LendGrant ──▶ memory node: keys drawn anew, the former ones end
//!          ══ one-sided reads and writes, under those keys ══▶ DIR/grant-9
//!   another holder ── Open ─▶ manager ── Fence ──────▶ memory node: keys end; then it is the other's
//! ```
//!
//! Keys are of one holder alone, and end before another gets the memory: nothing that a former holder sends changes it.
//! So the next start of a database takes the memory from the last one without asking whether that lives.

use super::mirror::Cards;
use super::{Credentials, GrantRequest, GrantedMemory, OnRevoked};
use crate::ids::GrantId;
use crate::session::{ANSWER_TIMEOUT, ManagerChannel, unexpected};
use crate::wire::{Reach, Reply, Request};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::rdma::RemoteMemory;
use std::sync::Arc;

/// How long a node may be silent, and a read or a write take: for memory that its holder can do without.
const TIMEOUT: Nanos = Nanos::from_secs(1);

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
    /// Whether it is taken from a holder that there is; else that is an error.
    pub takes: bool,
}

/// Memory that this process holds and reaches over the fabric. Dropping it lets the lease lapse.
pub struct RemoteGrant {
    memory: GrantedMemory,
    /// Over a line of its own: a node may take longer than a lease has time.
    line: ManagerChannel,
    cards: Cards,
}

impl RemoteGrant {
    /// Asks for memory, and keeps the lease from here on.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Busy`] (another holds it, and it is not to be taken); [`Error::Mismatch`] (the label's
    /// memory is of another size, or mapped); [`Error::Lost`]; [`Error::Invalid`].
    pub fn open(
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        requested: RemoteRequest,
        on_revoked: OnRevoked,
    ) -> Result<Self> {
        let takes = requested.takes;
        let requested = GrantRequest {
            label: requested.label,
            description: requested.description,
            bytes: requested.bytes,
            pod: requested.pod,
            keep: None,
            mirror: false,
            host: None,
        };
        let asked = requested.asked(Reach::Remote { takes });
        let memory = GrantedMemory::ask(network, credentials, asked, on_revoked)?;
        Ok(Self {
            memory,
            line: credentials.tenants_channel(network)?,
            cards: Cards::with_timeout(TIMEOUT),
        })
    }

    /// Reaches the memory: under keys drawn now, so what was reached before ends.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is this holder's no more; those of the way to the manager, and to the memory node.
    pub fn connect(&self) -> Result<RemoteMemory> {
        let (grant, epoch) = (self.memory.id(), self.memory.epoch());
        let lent = match self.line.ask(&Request::Lend { grant, epoch }, ANSWER_TIMEOUT)? {
            Reply::Lent(lent) => lent,
            _ => return Err(unexpected()),
        };
        let len = lent.memory.len;
        if len != self.memory.bytes() {
            let text = format!("grant {grant} of {} bytes was lent with {len}", self.memory.bytes());
            return Err(Error::Mismatch(text));
        }
        self.cards.reach(&lent)
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
