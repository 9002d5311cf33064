//! What comes back: completions, answers, and what became of operations that failed.

use super::send::item_of;
use super::*;

impl Client {
    /// Reads completions and acts on them; how many. Only for the thread that has the role.
    pub(super) fn turn(&self) -> usize {
        let mut done = Vec::new();
        let polled = self.fabric_endpoint.poll(|complete| done.push(complete));
        let count = done.len();
        let now = rt::now();
        let mut core = self.core.lock();
        for complete in done {
            self.complete(&mut core, complete);
        }
        if let Err(error) = polled {
            self.fail_endpoint(&mut core, &error);
        }
        if now.since(core.judged) > Nanos(self.timeout.0 / 16) {
            core.judged = now;
            self.judge(&mut core, now);
        }
        if !(core.doubts.is_empty() && core.unasked.is_empty()) && now.since(core.asked) > ASK_AGAIN {
            self.ask_for_keys(&mut core);
            self.ask_for_verdicts(&mut core, now);
        }
        self.end_late_calls(&mut core, now);
        if count > 0 || !core.outbox.is_empty() || !core.queue.is_empty() || !core.unsent.is_empty() {
            self.pump(&mut core);
        }
        count
    }

    fn complete(&self, core: &mut Core, mut complete: Complete) {
        match (complete.received, complete.result) {
            (true, Ok(len)) => {
                self.message(core, &self.fabric_endpoint.bytes(&mut complete.slot)[..len]);
                give_back(&self.fabric_endpoint, self.fabric_endpoint.receive(complete.slot));
            }
            (true, Err(_)) => give_back(&self.fabric_endpoint, self.fabric_endpoint.receive(complete.slot)),
            (false, Ok(_)) => {
                self.operation_done(core, complete.tag, self.fabric_endpoint.bytes(&mut complete.slot));
                self.fabric_endpoint.give(complete.slot);
            }
            (false, Err(error)) => {
                self.fabric_endpoint.give(complete.slot);
                self.start_failed(core, complete.tag, &shim::text(error));
            }
        }
    }

    /// The provider has done its operation. (Messages end with their answers.)
    fn operation_done(&self, core: &mut Core, id: u64, bytes: &[u8]) {
        if let Some(OperationInFlight {
            what: What::Operation(..),
            ..
        }) = core.in_flight.get(&id)
            && let Some(operation) = core.take_from_flight(id)
            && let What::Operation(batch, piece) = operation.what
        {
            operation.peer.hear();
            let value = piece.len as u64;
            self.came(core, &batch, |body| body.came(piece, Ok(value), &bytes[..piece.len]));
        }
    }

    /// A message that was not delivered, or an operation that failed.
    pub(super) fn start_failed(&self, core: &mut Core, id: u64, why: &str) {
        let Some(operation) = core.take_from_flight(id) else {
            return;
        };
        let peer = Arc::clone(&operation.peer);
        match operation.what {
            // A wrong key breaks a connection, with all that was under way on it: what was it?
            What::Operation(batch, piece) => {
                let failed = Error::Timeout(format!("memory node {}: {why}", peer.name));
                let since = rt::now();
                core.doubts.push_back((batch, Doubt { piece, failed, since }));
            }
            What::Verdict(batch, doubt) => core.doubts.push_back((batch, doubt)),
            What::Resolve(batch, key) if peer.path() == Path::OneSided => {
                self.question_failed(core, &peer, batch, key, why);
            }
            what if peer.path() == Path::OneSided && !matches!(what, What::Hello) => {
                let unknown = Error::Timeout(format!("memory node {}: the connection broke: {why}", peer.name));
                self.end_beside(core, &what, &unknown);
                self.end(core, what, &unknown);
                self.send_control(core, &peer, Kind::Ping);
            }
            what => {
                let lost = peer.lost(why);
                self.end(core, what, &lost);
                self.break_peer(core, &peer, &lost);
            }
        }
    }

    /// A question for a key went down with a connection: nothing was done, and asking again changes nothing. When its
    /// time is over the node is lost.
    fn question_failed(&self, core: &mut Core, peer: &Arc<Peer>, batch: Arc<Batch>, key: u64, why: &str) {
        if peer.has_failed_for(rt::now()) < self.timeout {
            core.unasked.push(batch);
            return;
        }
        let lost = peer.lost(why);
        self.end(core, What::Resolve(batch, key), &lost);
        self.break_peer(core, peer, &lost);
    }

    fn ask_for_keys(&self, core: &mut Core) {
        for batch in core::mem::take(&mut core.unasked) {
            self.came(core, &batch, |body| {
                body.is_waiting_for_key(false);
            });
        }
    }

    /// Asks the node about pieces whose operations failed, again and again while there is no connection: asking changes
    /// nothing.
    fn ask_for_verdicts(&self, core: &mut Core, now: Nanos) {
        core.asked = now;
        for _ in 0..core.doubts.len() {
            let Some((batch, doubt)) = core.doubts.pop_front() else {
                return;
            };
            if now.since(doubt.since) > self.timeout || batch.peer.broken().is_some() {
                self.came(core, &batch, |body| body.came(doubt.piece, Err(doubt.failed), &[]));
            } else if let Some(slot) = self.fabric_endpoint.take() {
                self.ask_for_verdict(core, batch, doubt, slot);
            } else {
                core.doubts.push_back((batch, doubt));
            }
        }
    }

    /// A read is done by the answer itself.
    fn ask_for_verdict(&self, core: &mut Core, batch: Arc<Batch>, doubt: Doubt, slot: Slot) {
        let mut ready = None;
        batch.update(|body| {
            let item = item_of(body.work(doubt.piece), doubt.piece, false);
            let fits = item.ask == Ask::Read && item.len as usize <= LARGEST;
            let item = Item {
                ask: if fits { Ask::Read } else { Ask::Check },
                payload: &[],
                ..item
            };
            ready = Some(self.pack_item(core, &batch, &item, slot, What::Verdict(Arc::clone(&batch), doubt)));
        });
        core.outbox.extend(ready);
        self.flush(core);
    }

    pub(super) fn message(&self, core: &mut Core, bytes: &[u8]) {
        let Some((head, reader)) = Reader::new(bytes) else {
            return;
        };
        match head.kind {
            Kind::Welcome => self.welcome(core, &head, reader.rest()),
            Kind::Results => self.results(core, &head, reader),
            Kind::Answers => self.answers(core, &head, reader),
            Kind::Ping => {
                if let Some(peer) = core.peers.get(&head.session).cloned() {
                    self.send_control(core, &peer, Kind::Pong);
                }
            }
            Kind::Pong => core.peers.get(&head.session).into_iter().for_each(|p| p.hear()),
            _ => {}
        }
    }

    fn welcome(&self, core: &mut Core, head: &protocol::Head, facts: &[u8]) {
        let greeted = matches!(
            core.in_flight.get(&head.id),
            Some(OperationInFlight { what: What::Hello, .. })
        );
        let path = facts.first().and_then(|p| Path::from_number(*p));
        if let Some(path) = path.filter(|_| greeted && head.session != 0)
            && let Some(operation) = core.take_from_flight(head.id)
        {
            let mut state = operation.peer.state.lock();
            (state.session, state.path) = (head.session, Some(path));
            state.writes = facts.get(1) == Some(&1) && self.fabric_endpoint.writes();
            drop(state);
            self.begin_lending(head.session);
            operation.peer.hear();
            core.peers.insert(head.session, operation.peer);
        }
    }

    fn results(&self, core: &mut Core, head: &protocol::Head, reader: Reader<'_>) {
        let expected = core
            .in_flight
            .get(&head.id)
            .filter(|f| f.peer.session() == head.session);
        let answered = |f: &OperationInFlight| match &f.what {
            What::Message(_, pieces) => pieces.len() == head.count as usize,
            What::Verdict(..) | What::Resolve(..) => head.count == 1,
            _ => false,
        };
        if !expected.is_some_and(answered) {
            return;
        }
        let Some(operation) = core.take_from_flight(head.id) else {
            return;
        };
        operation.peer.hear();
        match operation.what {
            What::Message(batch, pieces) => self.message_done(core, &batch, &pieces, reader),
            What::Verdict(batch, doubt) => self.verdict(core, &batch, doubt, reader),
            What::Resolve(batch, key) => self.resolved(core, &batch, key, reader),
            _ => {}
        }
    }

    fn message_done(&self, core: &mut Core, batch: &Arc<Batch>, pieces: &[Piece], mut reader: Reader<'_>) {
        self.came(core, batch, |body| {
            for piece in pieces {
                let answer = reader.answer();
                let (result, bytes) = outcome(&batch.peer, body, *piece, answer);
                let short = result.is_ok() && bytes.len() < piece.len && matches!(body.work(*piece).op, Op::Read(_));
                body.came(*piece, if short { Err(garbled(&batch.peer)) } else { result }, bytes);
            }
        });
    }

    fn verdict(&self, core: &mut Core, batch: &Arc<Batch>, doubt: Doubt, mut reader: Reader<'_>) {
        let (answer, piece) = (reader.answer(), doubt.piece);
        self.came(core, batch, |body| {
            let (result, bytes) = outcome(&batch.peer, body, piece, answer);
            match result {
                Err(error) => {
                    batch.peer.state.lock().keys.remove(&body.work(piece).memory.key.0);
                    body.came(piece, Err(error), &[]);
                }
                Ok(_) if bytes.len() == piece.len => body.came(piece, result, bytes),
                // It can be reached: the operation was done, or was not.
                Ok(_) => body.came(piece, Err(doubt.failed), &[]),
            }
        });
    }

    fn resolved(&self, core: &mut Core, batch: &Arc<Batch>, key: u64, mut reader: Reader<'_>) {
        let answer = reader.answer();
        let words = answer.and_then(|a| <&[u8; 24]>::try_from(a.payload).ok());
        let word = |bytes: &[u8; 24], i: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[i]);
        if let Some(bytes) = words {
            let target = Target {
                peer: batch.peer.target,
                address: word(bytes, 0),
                key: word(bytes, 1),
            };
            batch.peer.state.lock().keys.insert(key, (target, word(bytes, 2)));
        }
        let error = answer.map_or_else(|| garbled(&batch.peer), |_| revoked(&batch.peer, key));
        self.came(core, batch, |body| {
            body.is_waiting_for_key(false);
            if words.is_none() {
                body.fail_next(&error);
            }
        });
    }

    /// Something of a batch has come back: it may be done, or go on.
    pub(super) fn came(&self, core: &mut Core, batch: &Arc<Batch>, change: impl FnOnce(&mut Body)) {
        let mut goes_on = false;
        let newly = batch.update(|body| {
            change(body);
            goes_on = !body.is_open() && body.next(LARGEST, 0, false) != Next::Nothing;
        });
        core.count_done(batch, newly);
        let queued = core.queue.iter().any(|b| Arc::ptr_eq(b, batch));
        if goes_on && !newly && !queued {
            core.queue.push_back(Arc::clone(batch));
        }
    }
}

/// What an answer says of a piece. A read that was only asked about brings nothing.
fn outcome<'a>(peer: &Peer, body: &Body, piece: Piece, answer: Option<Answer<'a>>) -> (Result<u64>, &'a [u8]) {
    let Some(answer) = answer else {
        return (Err(garbled(peer)), &[]);
    };
    let work = body.work(piece);
    let reads = matches!(work.op, Op::Read(_));
    let result = match answer.status {
        Status::Done if reads && answer.payload.len() != piece.len && !answer.payload.is_empty() => Err(garbled(peer)),
        Status::Done => Ok(answer.value),
        Status::Revoked => Err(revoked(peer, work.memory.key.0)),
        Status::OutOfBounds => Err(out_of_bounds(peer, work, answer.value)),
        Status::Invalid => Err(Error::Invalid(format!(
            "memory node {}: makes no sense: {:?}",
            peer.name, work.op
        ))),
        Status::Skipped => Err(body.failure().unwrap_or_else(|| garbled(peer))),
    };
    (result, answer.payload)
}
