//! Memory that another process holds and reaches over the fabric, as processes of the same tenant read it.
//!
//! ```text
//!   reader ── LendToRead ─▶ manager ── LendGrantToRead ─▶ memory node: one key for all readers, which only reads
//!          ══ one-sided reads, under that key ══▶ DIR/grant-9 ◀══ reads and writes, under the holder's ══ holder
//! ```
//!
//! A reader has no lease, and neither the manager nor the node knows of it. Its key ends whenever the holder's do; then
//! it connects anew. The holder does not wait for readers: what they read may be half written, or of another time, so
//! they check it by what it says of itself.

use super::access::RemoteAccess;
use crate::session::unexpected;
use crate::wire::{Reply, Request};
use cenote_base::Result;
use cenote_fabric::rdma::RemoteMemory;
use std::sync::Arc;

/// The way to read a tenant's memory that is reached over the fabric.
pub struct RemoteReader {
    access: Arc<RemoteAccess>,
    label: String,
}

impl RemoteReader {
    /// Of the tenant's memory of this name. Nothing is asked yet.
    pub fn new(access: &Arc<RemoteAccess>, label: impl Into<String>) -> Self {
        Self {
            access: Arc::clone(access),
            label: label.into(),
        }
    }

    /// Reaches the memory as it lies now, to be read and no more. When a read is refused
    /// ([`Error::Revoked`](cenote_base::Error::Revoked)) it is reached anew.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if the tenant has no such memory;
    /// [`Error::Mismatch`](cenote_base::Error::Mismatch) if it is mapped by its holders;
    /// [`Error::Busy`](cenote_base::Error::Busy) if no holder has reached it yet, or it is going to another;
    /// [`Error::Lost`](cenote_base::Error::Lost) if its memory node is away; those of the way to the manager, and to
    /// the memory node.
    pub fn connect(&self) -> Result<RemoteMemory> {
        let label = self.label.clone();
        match self.access.ask(&Request::LendToRead { label })? {
            Reply::Lent(lent) => self.access.cards.reach(&lent),
            _ => Err(unexpected()),
        }
    }
}
