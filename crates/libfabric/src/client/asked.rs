//! A call in flight, as its user's side keeps it: the parts of its answer, and what it lends.

use super::lender::OnLoan;
use crate::calls::{FILL, FILLED, Places, Whole};
use crate::protocol::Part;
use cenote_base::rt::Nanos;
use cenote_fabric::rdma::call::Set;
use std::sync::Arc;

/// A call under way.
pub(super) struct Asked {
    pub(super) set: Arc<Set>,
    pub(super) index: usize,
    /// Its number.
    pub(super) id: u64,
    /// What it lends, if the node can write to that.
    pub(super) on_loan: Option<OnLoan>,
    /// The node is told of it, or may be.
    pub(super) named: bool,
    /// When its time is over, if it has one of its own.
    pub(super) end: Option<Nanos>,
    /// Other calls of the message that bears this one's number.
    pub(super) beside: Vec<u64>,
    /// The answer, of which not all parts have come.
    whole: Option<Whole>,
    /// What has come of what goes into its memory.
    filled: Option<Places>,
    /// Status and bytes of the answer, while parts for the memory are missing.
    answer: Option<(u32, Vec<u8>)>,
}

impl Asked {
    /// A call that is about to be sent, under this number.
    pub(super) fn new(set: Arc<Set>, index: usize, id: u64, on_loan: Option<OnLoan>, end: Option<Nanos>) -> Self {
        Self {
            set,
            index,
            id,
            on_loan,
            named: false,
            end,
            beside: Vec::new(),
            whole: None,
            filled: None,
            answer: None,
        }
    }

    /// Takes a part of an answer, or of what goes into the call's memory. What makes no sense is nothing.
    pub(super) fn take(&mut self, part: &Part<'_>) {
        if part.status & FILL != 0 {
            self.fill(part);
        } else if self.answer.is_none()
            && let Some(bytes) = self.gather(part)
        {
            self.answer = Some((part.status, bytes));
        }
    }

    /// Puts a part where it belongs in the call's memory, which only the call has as long as it is in flight.
    fn fill(&mut self, part: &Part<'_>) {
        let (from, len) = (part.from as usize, part.payload.len());
        let filled = &mut self.filled;
        self.set.with(self.index, |call| {
            if part.total as usize <= call.memory.len()
                && filled.get_or_insert_with(|| Places::new(part.total)).take(part)
            {
                call.memory[from..from + len].copy_from_slice(part.payload);
            }
        });
    }

    /// Puts a part of the answer in its place; the answer, if it is whole.
    fn gather(&mut self, part: &Part<'_>) -> Option<Vec<u8>> {
        let room = || self.set.with(self.index, |call| core::mem::take(&mut call.answer));
        if part.is_all() {
            let mut bytes = room();
            bytes.clear();
            bytes.extend_from_slice(part.payload);
            return Some(bytes);
        }
        let mut whole = self.whole.take().unwrap_or_else(|| Whole::new(room(), part.total));
        if whole.add(part) == Some(true) {
            return Some(whole.into_bytes());
        }
        self.whole = Some(whole);
        None
    }

    /// Status and bytes of the answer, once all that belongs to it is there.
    pub(super) fn answer(&mut self) -> Option<(u32, Vec<u8>)> {
        let is_filled = self.filled.as_ref().is_some_and(Places::is_whole);
        let ready = self.answer.take_if(|(status, _)| *status & FILLED == 0 || is_filled);
        ready.map(|(status, bytes)| (status & !FILLED, bytes))
    }
}

/// A call that is not wholly sent.
pub(super) struct Unsent {
    pub(super) id: u64,
    pub(super) sent: usize,
}
