//! Answers of a part that is mirrored: they are sent when what was done until then is in the mirror. A thread that
//! serves calls does not wait for that: those of the mirror's node may wait for it in turn. One fence settles all
//! answers that have come together meanwhile.

use super::{HostState, Task};
use cenote_base::rt::Nanos;
use cenote_fabric::rdma::call::Answer;

impl HostState {
    /// Sends an answer, at once if there is nothing to wait for.
    pub(super) fn reply(&self, answer: Answer) {
        if self.part.is_settled() {
            return answer.send();
        }
        let is_first = {
            let mut unsettled = self.unsettled.lock();
            unsettled.push(answer);
            unsettled.len() == 1
        };
        if is_first {
            self.tell(Task::Work, Nanos::ZERO);
        }
    }

    /// Sends those that wait. What comes meanwhile waits for the next turn.
    pub(super) fn send_settled(&self) {
        let waiting = core::mem::take(&mut *self.unsettled.lock());
        if waiting.is_empty() {
            return;
        }
        match self.part.settle() {
            Ok(()) => waiting.into_iter().for_each(Answer::send),
            Err(error) => waiting.into_iter().for_each(|answer| answer.fail(error.clone())),
        }
    }
}
