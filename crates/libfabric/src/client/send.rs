//! Works on their way out: packed into messages or started as operations, one doorbell for what is ready.

use super::*;

impl Client {
    /// Puts a batch under way.
    pub(super) fn start(&self, batch: &Arc<Batch>) {
        let mut core = self.core.lock();
        core.posted += batch.len();
        core.queue.push_back(Arc::clone(batch));
        self.pump(&mut core);
        let is_left = !core.queue.is_empty() || !core.outbox.is_empty();
        drop(core);
        if is_left {
            self.unattended.set();
        }
    }

    /// Sends what can be sent.
    pub(super) fn pump(&self, core: &mut Core) {
        self.flush(core);
        let mut ready = Vec::new();
        while core.outbox.is_empty() {
            let Some(batch) = core.queue.pop_front() else {
                break;
            };
            let room = self.feed(core, &batch, &mut ready);
            if !room {
                core.queue.push_front(batch);
                break;
            }
        }
        if core.outbox.is_empty() {
            self.pack_calls(core, &mut ready);
        }
        core.outbox.extend(ready);
        self.flush(core);
    }

    /// Packs a batch's pieces; says whether there was room for all that may be sent now.
    fn feed(&self, core: &mut Core, batch: &Arc<Batch>, ready: &mut Vec<Ready>) -> bool {
        let broken = batch.peer.broken();
        let (mut room, mut more) = (true, true);
        while more {
            let slot = match core.in_flight.len() - core.calling < IN_FLIGHT_MAX {
                true => self.fabric_endpoint.take(),
                false => None,
            };
            let newly = batch.update(|body| match (&broken, slot) {
                (Some(error), slot) => {
                    slot.into_iter().for_each(|s| self.fabric_endpoint.give(s));
                    body.fail_unsent(error);
                    more = false;
                }
                (None, Some(slot)) => {
                    let packed = self.pack(core, batch, body, slot);
                    more = packed.is_some();
                    ready.extend(packed.flatten());
                }
                (None, None) => {
                    room = !matches!(body.next(LARGEST, 0, false), Next::Piece(..));
                    more = false;
                }
            });
            core.count_done(batch, newly);
        }
        room
    }

    /// One message or operation; `None`: there is nothing to be sent now.
    fn pack(&self, core: &mut Core, batch: &Arc<Batch>, body: &mut Body, slot: Slot) -> Option<Option<Ready>> {
        let ready = match batch.peer.path() {
            Path::Served => self.pack_message(core, batch, body, slot),
            Path::OneSided => match body.next(SLOT, 0, false) {
                Next::Piece(piece, _) if body.work(piece).op.is_atomic() => {
                    self.pack_one(core, batch, body, slot, piece)
                }
                Next::Piece(piece, _) => return self.pack_operation(core, batch, body, slot, piece),
                _ => Err(slot),
            },
        };
        match ready {
            Ok(ready) => Some(Some(ready)),
            Err(slot) => {
                self.fabric_endpoint.give(slot);
                None
            }
        }
    }

    fn pack_message(
        &self,
        core: &mut Core,
        batch: &Arc<Batch>,
        body: &mut Body,
        mut slot: Slot,
    ) -> Result<Ready, Slot> {
        let mut writer = Writer::new(self.fabric_endpoint.bytes(&mut slot));
        let (mut pieces, mut answers) = (Vec::new(), protocol::HEAD);
        while let Next::Piece(piece, fenced) = body.next(LARGEST, pieces.len(), true) {
            let item = item_of(body.work(piece), piece, fenced);
            let answer = protocol::answer_size(item.ask, item.len);
            if protocol::ITEM + protocol::filled(item.payload.len()) > writer.room() || answers + answer > SLOT {
                break;
            }
            writer.item(&item);
            answers += answer;
            body.sent(piece);
            pieces.push(piece);
        }
        if pieces.is_empty() {
            return Err(slot);
        }
        let id = core.put_in_flight(What::Message(Arc::clone(batch), pieces), &batch.peer);
        let len = writer.finish(Kind::Works, batch.peer.session(), id);
        Ok(Ready::message(slot, len, &batch.peer, id))
    }

    /// A message of one piece.
    fn pack_one(
        &self,
        core: &mut Core,
        batch: &Arc<Batch>,
        body: &mut Body,
        slot: Slot,
        piece: Piece,
    ) -> Result<Ready, Slot> {
        let item = item_of(body.work(piece), piece, false);
        let ready = self.pack_item(core, batch, &item, slot, What::Message(Arc::clone(batch), vec![piece]));
        body.sent(piece);
        Ok(ready)
    }

    pub(super) fn pack_item(
        &self,
        core: &mut Core,
        batch: &Arc<Batch>,
        item: &Item<'_>,
        mut slot: Slot,
        what: What,
    ) -> Ready {
        let mut writer = Writer::new(self.fabric_endpoint.bytes(&mut slot));
        writer.item(item);
        let id = core.put_in_flight(what, &batch.peer);
        let len = writer.finish(Kind::Works, batch.peer.session(), id);
        Ready::message(slot, len, &batch.peer, id)
    }

    /// A read or write as the provider's own; `Some(None)`: it has failed, and there may be others.
    fn pack_operation(
        &self,
        core: &mut Core,
        batch: &Arc<Batch>,
        body: &mut Body,
        mut slot: Slot,
        piece: Piece,
    ) -> Option<Option<Ready>> {
        let work = body.work(piece);
        let key = work.memory.key.0;
        let known = batch.peer.state.lock().keys.get(&key).copied();
        let Some((target, len)) = known else {
            return self.ask_for_key(core, batch, body, slot, key);
        };
        let at = work
            .memory
            .base
            .saturating_add(work.at)
            .saturating_add(piece.from as u64);
        if at.saturating_add(piece.len as u64) > len {
            self.fabric_endpoint.give(slot);
            let error = out_of_bounds(&batch.peer, work, len);
            body.sent(piece);
            body.came(piece, Err(error), &[]);
            return Some(None);
        }
        let start = match &work.op {
            Op::Write(from) => {
                self.fabric_endpoint.bytes(&mut slot)[..piece.len]
                    .copy_from_slice(&from[piece.from..piece.from + piece.len]);
                Start::Write
            }
            _ => Start::Read,
        };
        body.sent(piece);
        let target = Target {
            peer: batch.peer.target,
            address: target.address.wrapping_add(at),
            ..target
        };
        Some(Some(Ready {
            slot,
            len: piece.len,
            start,
            target,
            quietly: false,
            id: core.put_in_flight(What::Operation(Arc::clone(batch), piece), &batch.peer),
            since: rt::now(),
        }))
    }

    /// Asks what the provider calls a key; the batch goes on with the answer.
    fn ask_for_key(
        &self,
        core: &mut Core,
        batch: &Arc<Batch>,
        body: &mut Body,
        slot: Slot,
        key: u64,
    ) -> Option<Option<Ready>> {
        if body.is_waiting_for_key(true) {
            self.fabric_endpoint.give(slot);
            return None;
        }
        let item = Item {
            ask: Ask::Resolve,
            fenced: false,
            len: 0,
            key,
            at: 0,
            operand: 0,
            new: 0,
            payload: &[],
        };
        Some(Some(self.pack_item(
            core,
            batch,
            &item,
            slot,
            What::Resolve(Arc::clone(batch), key),
        )))
    }

    /// Starts what is ready, with one doorbell for all of it.
    pub(super) fn flush(&self, core: &mut Core) {
        while let Some(ready) = core.outbox.pop_front() {
            let Ready {
                len,
                start,
                target,
                quietly,
                id,
                since,
                ..
            } = ready;
            let more = core.outbox.front().is_some_and(|next| next.start == start);
            let started = match quietly {
                true => self.fabric_endpoint.send(ready.slot, len, &target, id, more),
                false => self.fabric_endpoint.start(ready.slot, len, start, &target, id, more),
            };
            match started {
                Started::Yes => {}
                Started::Later(slot) => {
                    core.outbox.push_front(Ready {
                        slot,
                        len,
                        start,
                        target,
                        quietly,
                        id,
                        since,
                    });
                    return self.unstick(core);
                }
                Started::No(slot, error) => {
                    self.fabric_endpoint.give(slot);
                    self.start_failed(core, id, &error.to_string());
                }
            }
        }
    }

    /// What has been first in the outbox for too long goes: others may have a way.
    fn unstick(&self, core: &mut Core) {
        let late = core
            .outbox
            .front()
            .is_some_and(|r| rt::now().since(r.since) > self.timeout);
        if late && let Some(ready) = core.outbox.pop_front() {
            self.fabric_endpoint.give(ready.slot);
            self.start_failed(core, ready.id, "it takes nothing");
        } else if core.outbox.len() > 1 {
            core.outbox.rotate_left(1);
        }
    }
}

/// A piece, as it is asked for.
pub(super) fn item_of(work: &Work, piece: Piece, fenced: bool) -> Item<'_> {
    let none: &[u8] = &[];
    let (ask, operand, new, payload) = match &work.op {
        Op::Read(_) => (Ask::Read, 0, 0, none),
        Op::Write(from) => (Ask::Write, 0, 0, &from[piece.from..piece.from + piece.len]),
        Op::FetchAdd(add) => (Ask::FetchAdd, *add, 0, none),
        Op::CompareAndSwap { expected, new } => (Ask::CompareAndSwap, *expected, *new, none),
    };
    Item {
        ask,
        fenced,
        len: piece.len as u32,
        key: work.memory.key.0,
        at: work
            .memory
            .base
            .saturating_add(work.at)
            .saturating_add(piece.from as u64),
        operand,
        new,
        payload,
    }
}
