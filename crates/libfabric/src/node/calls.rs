//! Calls at a node: requests are put together and given to its program, answers are cut and sent, and callers that have
//! gone are noticed.

use super::reply_queue::Through;
use super::*;
use crate::calls::Whole;
use crate::protocol::{Part, Window};
use crate::shim::Start;
use cenote_fabric::rdma::call::{Answer, Answering, CallerId, Serve};

/// Requests of one session that are put together at once. A user sends one after the other; a network may mix a few. So
/// the oldest of more was given up by its user, which may do that in the middle.
const GATHERED: usize = 16;

/// Bytes of such requests, of all sessions.
const GATHERED_BYTES: usize = 64 << 20;

/// Buffers that are kept, to be used again.
const SPARES: usize = 16;

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
                self.ask(program.as_deref(), head.session, &part, part.payload);
            } else if let Some((request, window)) = self.gather(head.session, &part) {
                let last = Part { window, ..part };
                self.ask(program.as_deref(), head.session, &last, &request);
                self.keep(request);
            }
        }
    }

    /// A buffer that was used before, if there is one.
    fn spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// A buffer is not needed any more.
    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spares.len() < SPARES && buffer.capacity() > 0 {
            self.spares.push(buffer);
        }
    }

    /// Gives the program a request, of which this was the last part to come.
    fn ask(&mut self, program: Option<&dyn Serve>, session: u64, part: &Part<'_>, request: &[u8]) {
        let caller = CallerId(session);
        let reply_queue = Arc::clone(&self.reply_queue);
        let to: Arc<dyn Answering> = match part.window {
            Some(window) => Arc::new(Through(reply_queue, window)),
            None => reply_queue,
        };
        let answer = Answer::new(caller, part.call, to)
            .with_room(part.status as usize)
            .into_buffer(self.spare());
        match program {
            Some(program) => program.serve(caller, request, answer),
            None => answer.fail(Error::Invalid("this memory node serves no calls".into())),
        }
    }

    /// Adds a part to its request, and gives that if it is whole.
    fn gather(&mut self, session: u64, part: &Part<'_>) -> Option<(Vec<u8>, Option<Window>)> {
        if !self.sessions.get(&session)?.gathered.contains_key(&part.call) {
            self.begin_gathering(session, part);
        }
        let gathered = &mut self.sessions.get_mut(&session)?.gathered;
        let request = gathered.get_mut(&part.call)?;
        let is_whole = request.whole.add(part)?;
        if part.from == 0 {
            request.window = part.window;
        }
        if !is_whole {
            return None;
        }
        let Gathered { whole, window, .. } = gathered.remove(&part.call)?;
        let request = whole.into_bytes();
        self.forget_gathered(request.len());
        Some((request, window))
    }

    /// Makes room for a request, of which this is the first part to come.
    fn begin_gathering(&mut self, session: u64, part: &Part<'_>) {
        let total = part.total as usize;
        let own = |server: &Self| server.sessions.get(&session).map_or(0, |s| s.gathered.len());
        if own(self) >= GATHERED {
            self.drop_oldest(Some(session));
        }
        while self.gathered + total > GATHERED_BYTES && self.drop_oldest(None) {}
        let (whole, number) = (Whole::new(self.spare(), part.total), self.begun);
        if let Some(session) = self.sessions.get_mut(&session) {
            let window = None;
            let former = session.gathered.insert(part.call, Gathered { whole, window, number });
            assert!(former.is_none(), "a request begins once");
            self.gathered += total;
            self.begun += 1;
        }
    }

    /// So many bytes of incomplete requests are kept no more.
    fn forget_gathered(&mut self, bytes: usize) {
        assert!(
            self.gathered >= bytes,
            "the bytes of a request are counted while it is incomplete"
        );
        self.gathered -= bytes;
    }

    /// Drops the incomplete request that began first, of one session or of all; whether there was one. If a caller
    /// waits for its answer after all, he is told.
    fn drop_oldest(&mut self, of: Option<u64>) -> bool {
        let asked = self.sessions.iter().filter(|(id, _)| of.is_none_or(|of| of == **id));
        let requests = asked.flat_map(|(id, session)| session.gathered.iter().map(|(call, g)| (g.number, *id, *call)));
        let Some((_, id, call)) = requests.min() else {
            return false;
        };
        if let Some(request) = self
            .sessions
            .get_mut(&id)
            .and_then(|session| session.gathered.remove(&call))
        {
            self.forget_gathered(request.whole.len());
        }
        let answer = Answer::new(CallerId(id), call, Arc::clone(&self.reply_queue) as _);
        answer.fail(Error::Busy(
            "this memory node has too many large requests in hand".into(),
        ));
        true
    }

    /// A session is over: what it has half sent is dropped, and the program told.
    pub(super) fn end_calls(&mut self, id: u64, session: &Session) {
        self.forget_gathered(session.gathered.values().map(|g| g.whole.len()).sum());
        if session.called
            && let Some(program) = self.shared.program.lock().clone()
        {
            program.ended(CallerId(id));
        }
    }

    /// Sends answers, as long as there are slots: those of one session that fit into one message.
    pub(super) fn send_answers(&mut self) {
        self.collect_answers();
        self.is_starved = false;
        for _ in 0..self.owing.len() {
            let Some(session) = self.owing.pop_front() else {
                return;
            };
            while self.may_be_answered(session) {
                let Some(slot) = self.shared.fabric_endpoint.take() else {
                    self.owing.push_front(session);
                    self.is_starved = true;
                    return;
                };
                self.send_some_answers(session, slot);
            }
            if self.sessions.get(&session).is_some_and(|s| !s.answers.is_empty()) {
                self.owing.push_back(session);
            }
        }
    }

    /// Hands the answers of the reply queue to their sessions. A session that takes none, and asks for ever more, is
    /// ended.
    fn collect_answers(&mut self) {
        let reply_queue = Arc::clone(&self.reply_queue);
        reply_queue.collect(&mut self.answered);
        while let Some(answer) = self.answered.pop_front() {
            let id = answer.session;
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if session.answers.is_empty() {
                self.owing.push_back(id);
            }
            session.waiting += answer.weight;
            session.answers.push_back(answer);
            if session.waiting > WAITING {
                self.end_session(id);
            }
        }
    }

    /// Whether a session has answers that wait, and not too much is under way to it, or written by all.
    fn may_be_answered(&self, session: u64) -> bool {
        let Some(session) = self.sessions.get(&session) else {
            return false;
        };
        let may_write = self.writes.len() < WRITES;
        let first = session.answers.front();
        first.is_some_and(|first| may_write || !first.is_written()) && !session.load.is_full() && session.unstarted == 0
    }

    fn send_some_answers(&mut self, id: u64, mut slot: Slot) {
        let shared = Arc::clone(&self.shared);
        let Some(session) = self.sessions.get_mut(&id) else {
            return shared.fabric_endpoint.give(slot);
        };
        if session.answers.front().is_some_and(Outgoing::is_written) {
            return self.write_stretch(id, slot);
        }
        let mut sent = Vec::new();
        let len = session.pack_answers(id, shared.fabric_endpoint.bytes(&mut slot), &mut sent);
        sent.into_iter().for_each(|buffer| self.keep(buffer));
        self.send(slot, len, id);
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
        let Some(mut slot) = shared.fabric_endpoint.take() else {
            return;
        };
        let len = Writer::new(shared.fabric_endpoint.bytes(&mut slot)).finish(Kind::Ping, id, 0);
        let target = Target {
            peer,
            ..Target::default()
        };
        let place = slot.index();
        match shared.fabric_endpoint.start(slot, len, Start::Send, &target, id, false) {
            Started::Yes => {
                self.under_way[place] = self.sessions.get(&id).map(|session| session.load.hold());
            }
            Started::Later(slot) => shared.fabric_endpoint.give(slot),
            Started::No(slot, _) => {
                shared.fabric_endpoint.give(slot);
                self.end_session(id);
            }
        }
    }

    /// The node is closed: for the program all callers have ended.
    pub(super) fn end_all_calls(&mut self) {
        self.reply_queue.close();
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end_session(id));
    }
}

impl Session {
    /// Packs as many parts as fit; the buffers of answers that are wholly sent then are in `sent`.
    fn pack_answers(&mut self, id: u64, into: &mut [u8], sent: &mut Vec<Vec<u8>>) -> usize {
        let mut writer = Writer::new(into);
        while let Some(first) = self.answers.front_mut().filter(|first| !first.is_written()) {
            match first.pack(&mut writer) {
                Packed::Nothing => break,
                Packed::Part => {}
                Packed::Last => {
                    assert!(self.waiting >= first.weight, "an answer's bytes wait until it is sent");
                    self.waiting -= first.weight;
                    sent.extend(self.answers.pop_front().map(|answer| answer.bytes));
                }
            }
        }
        writer.finish(Kind::Answers, id, 0)
    }
}
