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

use super::Credentials;
use super::mirror::Cards;
use crate::session::{ANSWER_TIMEOUT, ManagerChannel, unexpected};
use crate::wire::{Reply, Request};
use cenote_base::Result;
use cenote_base::rt::Nanos;
use cenote_fabric::message::Network;
use cenote_fabric::rdma::RemoteMemory;
use std::sync::Arc;

/// How long a read may take: a reader has another way to what is there, and a node that is lost without a word holds up
/// each thread for so long.
const READ_TIMEOUT: Nanos = Nanos::from_millis(300);

/// The way to read a tenant's memory that is reached over the fabric.
pub struct RemoteReader {
    line: ManagerChannel,
    label: String,
    cards: Cards,
}

impl RemoteReader {
    /// Of the tenant's memory of this name. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if the credentials name no managers.
    pub fn new(network: &Arc<dyn Network>, credentials: &Credentials, label: impl Into<String>) -> Result<Self> {
        Ok(Self {
            line: credentials.tenants_channel(network)?,
            label: label.into(),
            cards: Cards::with_timeout(READ_TIMEOUT),
        })
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
        let asked = self.line.ask(&Request::LendToRead { label }, ANSWER_TIMEOUT);
        // There may be many readers, which ask seldom: none keeps a connection of its tenant's share.
        self.line.session.lock().take();
        match asked? {
            Reply::Lent(lent) => self.cards.reach(&lent),
            _ => Err(unexpected()),
        }
    }
}
