//! A user's calls: packed into messages, as many as fit; answers find their calls by number.
//!
//! A call is in flight from the moment it is posted, so that its time runs while it waits to be sent. One that ends
//! before it was sent is never sent.

use super::*;
use crate::calls::part;
use crate::protocol::Part;
use cenote_fabric::rdma::Endpoint;
use cenote_fabric::rdma::call::status::decode;
use cenote_fabric::rdma::call::{Call, Called, Caller, CallerId, CallsInFlight, Memory, Set};
use std::cmp::Reverse;

/// Calls that may be in flight; `post` waits for room beyond.
const DEPTH: usize = 1024;

impl Client {
    /// Puts calls in flight.
    fn ask(&self, peer: &Arc<Peer>, set: &Arc<Set>) {
        let mut core = self.core.lock();
        let broken = peer.broken();
        for index in 0..set.len() {
            let (wrong, timeout) = set.with(index, |call| (call.check().err(), call.timeout));
            match wrong.or_else(|| broken.clone()) {
                Some(error) => {
                    set.complete(index, Err(error));
                }
                None => {
                    let session = peer.session();
                    let on_loan = set.with(index, |call| self.take_on_loan(session, &mut call.memory));
                    core.begin(peer, (set, index), on_loan, timeout);
                }
            }
        }
        self.pump(&mut core);
        let is_left = !core.unsent.is_empty() || !core.outbox.is_empty();
        drop(core);
        if is_left {
            self.unattended.set();
        }
    }

    /// Packs what is to be sent, as long as there are slots.
    pub(super) fn pack_calls(&self, core: &mut Core, ready: &mut Vec<Ready>) {
        while core.drop_ended() {
            let Some(mut slot) = self.fabric_endpoint.take() else {
                return;
            };
            match core.pack_message(self.fabric_endpoint.bytes(&mut slot)) {
                Some((len, peer, id)) => ready.push(Ready::message(slot, len, &peer, id)),
                None => return self.fabric_endpoint.give(slot),
            }
        }
    }

    /// Parts of answers.
    pub(super) fn answers(&self, core: &mut Core, head: &protocol::Head, mut reader: Reader<'_>) {
        core.peers.get(&head.session).into_iter().for_each(|p| p.hear());
        for _ in 0..head.count {
            let Some(part) = reader.part() else {
                return;
            };
            if !core.in_flight.contains_key(&part.call) {
                self.answered_late(head.session, part.call);
            }
            if let Some((status, bytes)) = core.gather(head.session, &part)
                && let Some(OperationInFlight {
                    what: What::Call(mut asked),
                    peer,
                    ..
                }) = core.take_from_flight(part.call)
            {
                if let Some(on_loan) = asked.on_loan.take() {
                    self.end_loan(&asked, on_loan);
                }
                asked.set.answer(asked.index, decode(&peer.name, status, bytes));
            }
        }
    }

    /// Ends calls whose own time is over.
    pub(super) fn end_late_calls(&self, core: &mut Core, now: Nanos) {
        while let Some(Reverse((_, id))) = core.ends.peek().filter(|e| e.0.0 <= now).copied() {
            core.ends.pop();
            if let Some(operation) = core.take_from_flight(id) {
                let late = Error::Timeout(format!("memory node {}: no answer in time", operation.peer.name));
                self.end(core, operation.what, &late);
            }
        }
    }
}

impl Core {
    fn begin(
        &mut self,
        peer: &Arc<Peer>,
        (set, index): (&Arc<Set>, usize),
        on_loan: Option<OnLoan>,
        timeout: Option<Nanos>,
    ) {
        let end = timeout.map(|p| rt::now() + p);
        let asked = Asked::new(Arc::clone(set), index, self.last_id + 1, on_loan, end);
        let id = self.put_in_flight(What::Call(asked), peer);
        self.ends.extend(end.map(|end| Reverse((end, id))));
        self.forget_ends();
        self.unsent.push_back(Unsent { id, sent: 0 });
        self.calling += 1;
    }

    /// Calls that were answered long before their time: it is not remembered until it is over.
    fn forget_ends(&mut self) {
        if self.ends.len() > 2 * self.calling + DEPTH {
            let in_flight = &self.in_flight;
            self.ends.retain(|Reverse((_, id))| in_flight.contains_key(id));
        }
    }

    fn asked(&mut self, id: u64) -> Option<(&mut Asked, &Arc<Peer>)> {
        match self.in_flight.get_mut(&id) {
            Some(OperationInFlight {
                what: What::Call(asked),
                peer,
                ..
            }) => Some((asked, peer)),
            _ => None,
        }
    }

    /// Forgets calls that have ended before they were sent; whether there is one to be sent.
    fn drop_ended(&mut self) -> bool {
        while let Some(first) = self.unsent.front() {
            if self.in_flight.contains_key(&first.id) {
                return true;
            }
            self.unsent.pop_front();
        }
        false
    }

    /// A message of the next calls, all to one node; its length and number.
    fn pack_message(&mut self, into: &mut [u8]) -> Option<(usize, Arc<Peer>, u64)> {
        let (mut writer, mut beside) = (Writer::new(into), Vec::new());
        let first = self.unsent.front()?.id;
        let to = Arc::clone(self.asked(first)?.1);
        while self.drop_ended() && self.pack_part(&to, &mut writer, &mut beside) {}
        beside.retain(|id| *id != first);
        if let Some((asked, _)) = self.asked(first) {
            asked.beside = beside;
        }
        Some((writer.finish(Kind::Calls, to.session(), first), to, first))
    }

    /// Packs a part of the first call, if it goes to that node, and fits.
    fn pack_part(&mut self, to: &Arc<Peer>, writer: &mut Writer<'_>, packed: &mut Vec<u64>) -> bool {
        let Some(Unsent { id, sent }) = self.unsent.pop_front() else {
            return false;
        };
        let next = match self.asked(id) {
            Some((asked, peer)) if Arc::ptr_eq(peer, to) => asked.set.with(asked.index, |call| {
                let on_loan = asked.on_loan.as_ref();
                let lends = on_loan.map_or(call.memory.len(), OnLoan::len);
                let part = Part {
                    window: on_loan.filter(|_| sent == 0).map(OnLoan::window),
                    ..part(id, lends as u32, &call.request, sent)
                };
                let fits = part.size() <= writer.room();
                if fits {
                    writer.part(&part);
                    asked.named |= part.window.is_some();
                }
                fits.then_some((sent + part.payload.len(), call.request.len()))
            }),
            _ => None,
        };
        match next {
            Some((sent, total)) => {
                packed.push(id);
                if sent < total {
                    self.unsent.push_front(Unsent { id, sent });
                }
                true
            }
            None => {
                self.unsent.push_front(Unsent { id, sent });
                false
            }
        }
    }

    /// Takes a part of an answer; the answer, if all of it is there. A part of a call that is not in flight is ignored.
    fn gather(&mut self, session: u64, part: &Part<'_>) -> Option<(u32, Vec<u8>)> {
        let (asked, peer) = self.asked(part.call)?;
        if peer.session() != session {
            return None;
        }
        asked.take(part);
        asked.answer()
    }
}

impl Caller for Connection {
    fn peer(&self) -> &str {
        &self.0.peer.name
    }

    fn id(&self) -> CallerId {
        CallerId(self.0.peer.session())
    }

    fn post(&self, calls: Vec<Call>) -> Called {
        if calls.is_empty() {
            return Called::done(calls);
        }
        let client = &self.0.handle.0;
        let room = || client.core.lock().calling < DEPTH;
        if !room() {
            client.wait_until(&Arc::default(), &AtomicBool::default(), room);
        }
        let set = Arc::new(Set::new(calls));
        client.ask(&self.0.peer, &set);
        Called::new(Box::new(Answers {
            channel: Arc::clone(&self.0),
            set,
        }))
    }

    fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        Some(Arc::new(Self(Arc::clone(&self.0))))
    }

    fn lend(&self, len: usize) -> Option<Memory> {
        self.0.handle.0.lend(&self.0.peer, len)
    }
}

/// Calls in flight, as the thread that posted them has them. The channel lives as long.
struct Answers {
    channel: Arc<Channel>,
    set: Arc<Set>,
}

impl CallsInFlight for Answers {
    fn poll(&mut self) -> bool {
        if !self.set.is_done() {
            self.channel.handle.0.try_turn();
        }
        self.set.is_done()
    }

    fn wait(self: Box<Self>) -> Vec<Call> {
        let client = &self.channel.handle.0;
        client.wait_until(&self.set.event, &self.set.slept, || self.set.is_done());
        self.set.take()
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let set: Arc<dyn Ends> = Arc::clone(&self.set) as _;
        self.channel.let_go(set);
    }
}

const _: () = assert!(call::LIMIT <= u32::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{FILL, FILLED};
    use crate::{MemoryNode, NodeOptions, Provider, available};
    use cenote_fabric::rdma::call::Answer;

    /// A message of answers with these parts: status, place in so many bytes, and how many it has of them.
    fn answers(session: u64, call: u64, parts: &[(u32, u32, u32, usize)]) -> Vec<u8> {
        let mut bytes = vec![0; SLOT];
        let mut writer = Writer::new(&mut bytes);
        for (status, total, from, len) in parts {
            writer.part(&Part {
                call,
                total: *total,
                from: *from,
                status: *status,
                window: None,
                payload: &[5; 200][..*len],
            });
        }
        let len = writer.finish(Kind::Answers, session, 0);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn what_does_not_belong_into_a_call_s_memory_does_not_get_there() {
        if available().is_err() {
            return;
        }
        let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&kept);
        node.serve(Arc::new(move |_: CallerId, _: &[u8], answer: Answer| {
            theirs.lock().push(answer)
        }));
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let channel = handle.connect(node.address()).expect("reachable");
        let call = Call::new("call")
            .into_memory(vec![9; 100])
            .within(Nanos::from_secs(3600));
        let mut called = Caller::post(&Connection(Arc::clone(&channel)), vec![call]);
        let client = &channel.handle.0;
        let (id, session) = (client.core.lock().last_id, channel.peer.session());
        let hear = |parts: &[(u32, u32, u32, usize)]| {
            let message = answers(session, id, parts);
            client.message(&mut client.core.lock(), &message);
        };
        // Of another call, of another session, of more than there is, beyond its end.
        client.message(
            &mut client.core.lock(),
            &answers(session, id + 1, &[(FILL, 100, 0, 100)]),
        );
        client.message(
            &mut client.core.lock(),
            &answers(session + 2, id, &[(FILL, 100, 0, 100)]),
        );
        hear(&[(FILL, 101, 0, 101), (FILL, 50, 40, 10)]);
        // The answer is there, and what belongs to it is not.
        hear(&[(FILLED, 3, 0, 3)]);
        assert!(!called.poll());
        hear(&[(FILL, 60, 0, 60), (FILL, 60, 0, 60), (FILL, 70, 0, 70)]);
        let call = called.wait().pop().expect("one");
        assert!(call.result.is_ok() && call.answer == [5; 3], "{call:?}");
        assert_eq!(*call.memory, [[5; 60].as_slice(), &[9; 40]].concat());
        drop((channel, handle));
        node.close();
    }

    #[test]
    fn calls_that_were_answered_leave_nothing_behind_until_their_time_is_over() {
        if available().is_err() {
            return;
        }
        let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
        node.serve(Arc::new(|_: CallerId, request: &[u8], answer: Answer| {
            answer.with(request)
        }));
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let channel = handle.connect(node.address()).expect("reachable");
        let caller = Connection(Arc::clone(&channel));
        for _ in 0..10 {
            let call = || Call::new("call").within(Nanos::from_secs(3600));
            let calls = Caller::post(&caller, (0..DEPTH).map(|_| call()).collect()).wait();
            assert!(calls.iter().all(|call| call.result.is_ok()));
        }
        let ends = channel.handle.0.core.lock().ends.len();
        assert!(ends < 5 * DEPTH, "{ends} of {}", 10 * DEPTH);
        drop((caller, channel, handle));
        node.close();
    }
}
