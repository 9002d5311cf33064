//! What goes into memory that calls lend, written there by the provider; its answer comes after. (A card does that
//! alone; providers in software when the caller's side looks for completions.)
//!
//! ```text
//!   source ─► slot ─► write ┐
//!   source ─► slot ─► write ┤ all of them have been started
//!                           ├─ no message comes behind a write that failed ─► answer
//!                           └─ else: all of them are complete, delivered ─► answer
//! ```
//!
//! The bytes go through slots, as all that a provider is given: they are read by whole words, and their source is done
//! with them when the write begins.

use super::*;

/// In the tag of a completion: it is a write of this number. Sessions do not have it.
const WRITE: u64 = 1 << 63;

impl Server {
    /// Writes the next stretch of a session's first answer. After the last the answer goes its way, or waits for what
    /// is under way.
    pub(super) fn write_stretch(&mut self, id: u64, mut slot: Slot) {
        let shared = Arc::clone(&self.shared);
        let Some(session) = self.sessions.get_mut(&id) else {
            return shared.fabric_endpoint.give(slot);
        };
        let (peer, first) = (session.peer, session.answers.front_mut());
        let stretch = first.and_then(|first| {
            let stretch = first.read_stretch(shared.fabric_endpoint.bytes(&mut slot))?;
            first.writes += 1;
            Some((stretch, first.call))
        });
        let Some((stretch, call)) = stretch else {
            return shared.fabric_endpoint.give(slot);
        };
        let held = session.load.hold();
        session.unstarted += 1;
        let start = shared.write;
        if stretch.is_last && start == Start::Write {
            session
                .written
                .extend(session.answers.pop_front().map(|answer| (call, answer)));
        }
        let target = Target {
            peer,
            address: stretch.window.address,
            key: stretch.window.key,
        };
        let tag = self.new_write(id, call);
        self.try_send(Waiting {
            slot,
            len: stretch.len,
            session: id,
            since: rt::now(),
            start,
            target,
            tag,
            held,
        });
    }

    fn new_write(&mut self, session: u64, call: u64) -> u64 {
        self.last_write += 1;
        let former = self.writes.insert(self.last_write, (session, call));
        assert!(
            former.is_none() && self.last_write < WRITE,
            "the number of a write is used once"
        );
        WRITE | self.last_write
    }

    /// A write is under way: messages are behind it.
    pub(super) fn write_started(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.unstarted = session.unstarted.saturating_sub(1);
        }
    }

    /// If that was a write, it is over; its session. The answer that has waited for it can go.
    pub(super) fn wrote(&mut self, tag: u64) -> Option<u64> {
        let number = (tag & WRITE != 0).then_some(tag & !WRITE)?;
        let (id, call) = self.writes.remove(&number)?;
        if let Some(session) = self.sessions.get_mut(&id) {
            let is_owing = !session.answers.is_empty();
            session.wrote(call);
            if !is_owing && !session.answers.is_empty() {
                self.owing.push_back(id);
            }
        }
        Some(id)
    }
}

impl Session {
    fn wrote(&mut self, call: u64) {
        let Some(answer) = self.written.get_mut(&call) else {
            // It is not wholly written yet, or has gone behind its writes.
            let first = self.answers.front_mut().filter(|first| first.call == call);
            first
                .into_iter()
                .for_each(|first| first.writes = first.writes.saturating_sub(1));
            return;
        };
        answer.writes = answer.writes.saturating_sub(1);
        if answer.writes == 0 {
            self.answers.extend(self.written.remove(&call));
        }
    }
}
