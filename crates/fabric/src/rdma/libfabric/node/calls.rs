//! Calls at a node: requests put together and given to its program, answers cut and sent; who has called, and whether he
//! is still there.

use super::desk::Outgoing;
use super::*;
use crate::rdma::call::{Answer, CallerId, Serve};
use crate::rdma::libfabric::calls::{Whole, part};
use crate::rdma::libfabric::protocol::Part;
use crate::rdma::libfabric::shim::Start;

/// Requests of one session that are put together at once. A user sends one after the other; a network may mix a few.
const GATHERED: usize = 16;

/// Bytes of such requests, of all sessions.
const GATHERED_BYTES: usize = 64 << 20;

impl Server {
    /// Parts of requests. What is no part ends the message; what came before it was asked.
    pub(super) fn calls(&mut self, head: &protocol::Head, mut reader: Reader<'_>) {
        let program = self.shared.program.lock().clone();
        if let Some(session) = self.sessions.get_mut(&head.session) {
            session.called = true;
        }
        for _ in 0..head.count {
            let Some(part) = reader.part() else {
                return;
            };
            if part.is_all() {
                self.ask(program.as_deref(), head.session, part.call, part.payload);
            } else if let Some(request) = self.gather(head.session, &part) {
                self.ask(program.as_deref(), head.session, part.call, &request);
            }
        }
    }

    fn ask(&self, program: Option<&dyn Serve>, session: u64, call: u64, request: &[u8]) {
        let caller = CallerId(session);
        let answer = Answer::new(caller, call, Arc::clone(&self.desk) as _);
        match program {
            Some(program) => program.serve(caller, request, answer),
            None => answer.fail(Error::Invalid("this memory node serves no calls".into())),
        }
    }

    /// Adds a part to its request, and gives that if it is whole.
    fn gather(&mut self, session: u64, part: &Part<'_>) -> Option<Vec<u8>> {
        let gathered = &mut self.sessions.get_mut(&session)?.gathered;
        if !gathered.contains_key(&part.call) {
            let total = part.total as usize;
            if gathered.len() >= GATHERED || self.gathered + total > GATHERED_BYTES {
                let answer = Answer::new(CallerId(session), part.call, Arc::clone(&self.desk) as _);
                answer.fail(Error::Busy(
                    "this memory node has too many large requests in hand".into(),
                ));
                return None;
            }
            self.gathered += total;
            gathered.insert(part.call, Whole::new(Vec::new(), part.total));
        }
        let whole = gathered.get_mut(&part.call)?;
        if !whole.add(part)? {
            return None;
        }
        let request = gathered.remove(&part.call)?.into_bytes();
        self.gathered -= request.len();
        Some(request)
    }

    /// A session is over: what it has half sent is dropped, and the program told.
    pub(super) fn end_calls(&mut self, id: u64, session: &Session) {
        self.gathered -= session.gathered.values().map(Whole::len).sum::<usize>();
        if session.called
            && let Some(program) = self.shared.program.lock().clone()
        {
            program.ended(CallerId(id));
        }
    }

    /// Sends answers, as long as there are slots: those of one session that come one after the other in one message.
    pub(super) fn send_answers(&mut self) {
        self.desk.collect(&mut self.answers);
        while let Some(first) = self.answers.front() {
            let session = first.session;
            if !self.sessions.contains_key(&session) {
                self.answers.pop_front();
                continue;
            }
            let Some(mut slot) = self.shared.rail.take() else {
                return;
            };
            let shared = Arc::clone(&self.shared);
            let len = self.pack_answers(session, shared.rail.bytes(&mut slot));
            self.send(slot, len, session);
        }
    }

    fn pack_answers(&mut self, session: u64, into: &mut [u8]) -> usize {
        let mut writer = Writer::new(into);
        while let Some(first) = self.answers.front_mut().filter(|a| a.session == session) {
            let part = part(first.call, first.status, &first.bytes, first.sent);
            if part.size() > writer.room() {
                break;
            }
            writer.part(&part);
            first.sent += part.payload.len();
            if first.sent == first.bytes.len() {
                self.answers.pop_front();
            }
        }
        writer.finish(Kind::Answers, session, 0)
    }

    /// Whether there are answers that wait for a slot.
    pub(super) fn owes_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Asks callers that were silent for a sign of life; gives up those that were for too long. Users without calls
    /// hold nothing here, and are left alone.
    pub(super) fn watch(&mut self) {
        let (now, silence) = (rt::now(), self.shared.silence);
        if now.since(self.watched) < Nanos(silence.0 / 16) {
            return;
        }
        self.watched = now;
        let callers = self.sessions.iter_mut().filter(|(_, s)| s.called);
        let (mut gone, mut ask) = (Vec::new(), Vec::new());
        for (id, session) in callers {
            if now.since(session.heard) > silence {
                gone.push(*id);
            } else if now.since(session.heard.max(session.asked)) > Nanos(silence.0 / 4) {
                session.asked = now;
                ask.push((*id, session.peer));
            }
        }
        gone.into_iter().for_each(|id| self.end_session(id));
        ask.into_iter().for_each(|(id, peer)| self.ping(id, peer));
    }

    /// With a completion: where a user has died, that tells.
    fn ping(&mut self, id: u64, peer: u64) {
        let shared = Arc::clone(&self.shared);
        let Some(mut slot) = shared.rail.take() else {
            return;
        };
        let len = Writer::new(shared.rail.bytes(&mut slot)).finish(Kind::Ping, id, 0);
        let target = Target {
            peer,
            ..Target::default()
        };
        match shared.rail.start(slot, len, Start::Send, &target, id, false) {
            Started::Yes => {}
            Started::Later(slot) => shared.rail.give(slot),
            Started::No(slot, _) => {
                shared.rail.give(slot);
                self.end_session(id);
            }
        }
    }

    /// The node is closed: for the program all callers have ended.
    pub(super) fn end_all_calls(&mut self) {
        self.desk.close();
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end_session(id));
    }
}

/// Answers that are not sent, as the server has them.
pub(super) type Answers = VecDeque<Outgoing>;
