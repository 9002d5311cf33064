//! What users' cards may read of a part, and what its host hears of that.

use super::{Host, HostState};
use crate::far::FETCHES_TOLD;
use crate::far::wire::{self, Window};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::Remote;
use cenote_fabric::rdma::call::Answer;

impl Host {
    /// Lets the cards of users read the part's memory, as it is registered: all of the part, from its first byte on.
    /// `None`: no more, for connections to come. Who takes the registration back says so here before; reads fail then,
    /// and go by calls. A registration ends before its memory is granted to others.
    pub fn offer(&self, memory: Option<Remote>) {
        *self.inner.window.lock() = memory.map(|memory| Window {
            key: memory.key.0,
            base: memory.base,
            len: memory.len,
            slots: self.inner.part.slots(),
        });
    }
}

impl HostState {
    /// What users' cards may read; an error if that is nothing.
    pub(super) fn serve_window(&self, answer: &mut Vec<u8>) -> Result<()> {
        let window = *self.window.lock();
        let window = window.ok_or_else(|| Error::Invalid("the part's memory is read by calls only".into()))?;
        *answer = wire::json(0, &window)?;
        Ok(())
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
