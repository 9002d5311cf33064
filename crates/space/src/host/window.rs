//! What users' cards may read of a part, by which keys; and what its host hears of such reads.
//!
//! ```text
//!   offered ── a member asks, inside of its gate ──► a key of its own ──┬─ its gate is closed: it was fenced, or left
//!                                                                       ├─ its connection is over, or asks anew
//!                                                                       └─ the part is closed ──────────────────► revoked
//! ```
//!
//! Invariants:
//! 1. a key is one user's, for one part, and for reading no more than the part has reserved: reading beyond would take
//!    memory that no one has counted;
//! 2. a gate is quiet when its keys have ended as well, and no key is made but inside of the gate: a member that was
//!    fenced reads nothing more, and hears so by the call that its next read becomes;
//! 3. a part that is withdrawn has no key and gives none. Its memory is granted to others after that.

use super::hosts::KnownUser;
use super::read_keys::{Offer, ReadKey, not_offered};
use super::{Host, HostState, Job};
use crate::far::FETCHES_TOLD;
use crate::far::wire::{self, Window};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::Registrar;
use cenote_fabric::rdma::call::Answer;
use cenote_fabric::{LINE, Mapping};
use std::sync::Arc;

impl Host {
    /// Lets the cards of users read the part's memory, which is all of `memory`: from its first byte on. It is
    /// registered for each of them.
    ///
    /// # Errors
    /// Those of [`Host::withdraw`].
    pub fn offer(&self, registrar: Arc<dyn Registrar>, memory: Mapping) -> Result<()> {
        self.withdraw()?;
        *self.inner.offer.lock() = Some(Arc::new(Offer::new(registrar, memory)));
        Ok(())
    }

    /// No card reads the part's memory once this has returned: reads go by calls.
    ///
    /// # Errors
    /// [`Error::Io`] if the provider did not end a key: to be done again.
    pub fn withdraw(&self) -> Result<()> {
        let offer = self.inner.offer.lock().clone();
        offer.map_or(Ok(()), |offer| offer.end())?;
        *self.inner.offer.lock() = None;
        Ok(())
    }
}

impl KnownUser {
    /// Registering may take a while with a card, so a worker does it.
    pub(super) fn ask_window(self: &Arc<Self>, host: &HostState, answer: Answer) {
        let user = Arc::clone(self);
        host.add_job(Job::Window(Box::new(move |host| user.window(host)), answer));
    }

    /// What the user's card may read, by a key in the place of the one that it had. Its member may have been fenced
    /// while this waited.
    fn window(&self, host: &HostState) -> Result<Vec<u8>> {
        let _inside = self.enter(&wire::window())?;
        let offer = host.offer.lock().clone().ok_or_else(not_offered)?;
        let (key, window) = host.new_window(&offer)?;
        self.keep_key(Arc::new(key));
        wire::json(0, &window)
    }
}

impl HostState {
    fn new_window(&self, offer: &Arc<Offer>) -> Result<(ReadKey, Window)> {
        let reserved = self.part.region().reserved().min(offer.memory.len() as u64);
        let len = reserved / LINE as u64 * LINE as u64;
        let (read_key, base) = offer.new_key(len)?;
        let (key, slots) = (read_key.key, self.part.slots());
        let window = Window { key, base, len, slots };
        Ok((read_key, window))
    }

    /// Reads that a user's card did count as far ones.
    pub(super) fn serve_card_reads(&self, pod: &str, rest: &[u8], answer: Answer) {
        match wire::read_card_reads(rest) {
            Ok((slot, reads)) if slot < self.part.slots() => {
                let reads = reads.min(FETCHES_TOLD) as usize;
                self.count_far(pod, &vec![(slot, false); reads]);
                answer.send();
            }
            Ok(_) => answer.fail(Error::corrupt("the slot that a card has read")),
            Err(error) => answer.fail(error),
        }
    }
}
