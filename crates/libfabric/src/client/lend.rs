//! Lends buffers to calls, and takes them back: see [`lender`](super::lender) for their life and its rules.

use super::lender::{BUFFERS, Buffer, BufferCache, PAUSE, QUARANTINED};
use super::*;
use crate::fabric_endpoint::Access;
use crate::registered_memory::LentMemory;
use cenote_fabric::rdma::call::{LIMIT, Memory, Registered};
use std::any::Any;

/// A buffer at its user.
struct Lent {
    /// The endpoint lives as long.
    client: Arc<Client>,
    on_loan: Option<OnLoan>,
}

impl Registered for Lent {
    fn bytes(&self) -> &[u8] {
        let Some(OnLoan { buffer, len, .. }) = &self.on_loan else {
            return &[];
        };
        buffer.memory.bytes(*len)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(OnLoan { buffer, len, .. }) = &mut self.on_loan else {
            return &mut [];
        };
        buffer.memory.bytes_mut(*len)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(OnLoan { session, buffer, .. }) = self.on_loan.take() {
            let over = self.client.lender.lock().give(session, buffer);
            self.client.retire(over);
        }
    }
}

impl Client {
    /// A buffer for a call to that peer.
    pub(super) fn lend(&self, peer: &Peer, len: usize) -> Option<Memory> {
        let session = peer.session();
        if len > LIMIT || !peer.state.lock().writes || peer.broken().is_some() {
            return None;
        }
        let buffer = self.buffer(session)?;
        Some(self.at_user(OnLoan { session, buffer, len }))
    }

    fn buffer(&self, session: u64) -> Option<Buffer> {
        let mut lender = self.lender.lock();
        if lender.quarantine.len() >= QUARANTINED {
            return None;
        }
        let buffer_cache = lender.buffer_caches.get_mut(&session)?;
        if let Some(buffer) = buffer_cache.rest.pop() {
            return Some(buffer);
        }
        if buffer_cache.made >= BUFFERS {
            return None;
        }
        let made = self.make_buffer(&mut lender)?;
        lender.buffer_caches.get_mut(&session)?.made += 1;
        Some(made)
    }

    /// If it cannot be made calls go on without, and it is tried again after a while.
    fn make_buffer(&self, lender: &mut Lender) -> Option<Buffer> {
        if lender.refused.is_some_and(|at| rt::now().since(at) < PAUSE) {
            return None;
        }
        let memory = match lender.spare.pop() {
            Some(memory) => memory,
            None => self.map_memory()?,
        };
        let access = Access::Written;
        let registered = self
            .fabric_endpoint
            .register(&memory.mapping(), LIMIT, access, rt::random());
        lender.made(memory, registered)
    }

    fn map_memory(&self) -> Option<LentMemory> {
        let memory = LentMemory::map(LIMIT).ok()?;
        self.lent.lock().push(memory.mapping());
        Some(memory)
    }

    fn at_user(&self, on_loan: OnLoan) -> Memory {
        match self.me.upgrade() {
            Some(client) => Memory::Registered(Box::new(Lent {
                client,
                on_loan: Some(on_loan),
            })),
            None => Memory::default(),
        }
    }

    /// A call is under way that lends a buffer of this connection: its user does not have it meanwhile.
    pub(super) fn take_on_loan(&self, session: u64, memory: &mut Memory) -> Option<OnLoan> {
        let Memory::Registered(registered) = memory else {
            return None;
        };
        let registered: &mut dyn Any = registered.as_mut();
        let lent: &mut Lent = registered.downcast_mut()?;
        let is_ours = core::ptr::eq(&*lent.client, self);
        let on_loan = lent.on_loan.take_if(|on_loan| is_ours && on_loan.session == session)?;
        *memory = Memory::default();
        Some(on_loan)
    }

    /// The node does not write to it any more: the call was answered, or not sent.
    pub(super) fn end_loan(&self, asked: &Asked, on_loan: OnLoan) {
        let memory = self.at_user(on_loan);
        asked.set.with(asked.index, |call| call.memory = memory);
    }

    /// The call ends without an answer. If the node was never told where to write its user has the buffer again, else
    /// the buffer goes into quarantine.
    pub(super) fn end_unanswered(&self, asked: &Asked, on_loan: OnLoan) {
        match asked.named {
            true => self.quarantine(asked, on_loan),
            false => self.end_loan(asked, on_loan),
        }
    }

    /// The call was not answered: it gets other memory, as it may be asked again.
    fn quarantine(&self, asked: &Asked, on_loan: OnLoan) {
        let OnLoan { session, buffer, len } = on_loan;
        asked.set.with(asked.index, |call| call.memory = vec![0; len].into());
        let mut lender = self.lender.lock();
        if let Some(buffer_cache) = lender.buffer_caches.get_mut(&session) {
            // 0: it was counted for a former connection that had the same number.
            buffer_cache.made = buffer_cache.made.saturating_sub(1);
        }
        let former = lender.quarantine.insert(asked.id, (session, buffer));
        assert!(former.is_none(), "a call lends one buffer, and its number is used once");
    }

    /// A connection begins.
    pub(super) fn begin_lending(&self, session: u64) {
        self.lender.lock().buffer_caches.insert(session, BufferCache::default());
    }

    /// A connection has ended: what is to be closed, without a lock. What its node may be writing to stays as it is.
    pub(super) fn end_lending(&self, session: u64) -> Vec<Buffer> {
        let buffer_cache = self.lender.lock().buffer_caches.remove(&session);
        buffer_cache.unwrap_or_default().rest
    }

    /// Keys end, which may wait for what is under way, so under no lock; memory is used again if they did.
    pub(super) fn retire(&self, buffers: impl IntoIterator<Item = Buffer>) {
        for Buffer {
            registration, memory, ..
        } in buffers
        {
            if registration.close() {
                self.lender.lock().spare.push(memory);
            }
        }
    }

    /// An answer came for a call that was given up.
    pub(super) fn answered_late(&self, session: u64, call: u64) {
        let over = self.lender.lock().take_out(session, call);
        self.retire(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryNode, NodeOptions, Provider, available};
    use cenote_fabric::rdma::call::{Answer, Call, Caller, CallerId};

    /// Keeps what it is asked, answers when it is told.
    type Kept = Arc<Mutex<Vec<Answer>>>;

    struct Seven(usize);

    impl call::Source for Seven {
        fn size(&self) -> usize {
            self.0
        }

        fn read(&mut self, _: usize, into: &mut [u8]) {
            into.fill(7);
        }
    }

    fn node() -> (MemoryNode, Kept) {
        let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
        let kept = Kept::default();
        let theirs = Arc::clone(&kept);
        node.serve(Arc::new(
            move |_: CallerId, request: &[u8], answer: Answer| match request {
                b"keep" => theirs.lock().push(answer),
                _ => {
                    let room = answer.room();
                    answer.send_from(Box::new(Seven(room)));
                }
            },
        ));
        (node, kept)
    }

    fn channel(node: &MemoryNode, handle: &Arc<Handle>) -> Connection {
        Connection(handle.connect(node.address()).expect("reachable"))
    }

    fn one(caller: &Connection, request: &str, memory: Memory, within: Nanos) -> Call {
        let call = Call::new(request).into_memory(memory).within(within);
        Caller::post(caller, vec![call]).wait().pop().expect("one")
    }

    /// At rest and made, of a connection; in quarantine; mapped.
    fn counts(caller: &Connection) -> (usize, usize, usize, usize) {
        let client = &caller.0.handle.0;
        let lender = client.lender.lock();
        let buffer_cache = lender.buffer_caches.get(&caller.0.peer.session());
        let (rest, made) = buffer_cache.map_or((0, 0), |buffer_cache| (buffer_cache.rest.len(), buffer_cache.made));
        (rest, made, lender.quarantine.len(), client.lent.lock().len())
    }

    #[test]
    fn a_buffer_is_registered_once_and_comes_back() {
        if available().is_err() {
            return;
        }
        let (node, _) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        for len in [8, LIMIT, 50_000] {
            let lent = caller.lend(len).expect("there is");
            assert_eq!(counts(&caller), (0, 1, 0, 1));
            let call = one(&caller, "fill", lent, Nanos::from_secs(60));
            assert!(
                call.result.is_ok() && matches!(call.memory, Memory::Registered(_)),
                "{call:?}"
            );
            assert!(call.memory.iter().all(|byte| *byte == 7));
            drop(call);
            assert_eq!(counts(&caller), (1, 1, 0, 1));
        }
        let all: Vec<_> = (0..BUFFERS + 3).filter_map(|_| caller.lend(8)).collect();
        assert_eq!((all.len(), counts(&caller)), (BUFFERS, (0, BUFFERS, 0, BUFFERS)));
        // What is at its user when its connection ends is memory still, and then serves others.
        let (client, mapped) = (Arc::clone(&handle.0), BUFFERS);
        drop(caller);
        assert!(all.iter().all(|lent| lent.len() == 8));
        drop(all);
        assert_eq!(client.lender.lock().spare.len(), mapped);
        let caller = channel(&node, &handle);
        let call = one(
            &caller,
            "fill",
            caller.lend(100).expect("there is"),
            Nanos::from_secs(60),
        );
        assert!(call.result.is_ok() && *call.memory == [7; 100]);
        assert_eq!(counts(&caller), (0, 1, 0, mapped), "nothing is mapped anew");
        drop((call, caller, handle));
        node.close();
    }

    #[test]
    fn a_buffer_whose_call_was_not_answered_is_kept_until_it_was() {
        if available().is_err() {
            return;
        }
        let (node, kept) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        let lent = caller.lend(1000).expect("there is");
        let call = one(&caller, "keep", lent, Nanos::from_millis(20));
        assert!(
            matches!(call.result, Err(Error::Timeout(_))) && *call.memory == [0; 1000],
            "{call:?}"
        );
        drop(call);
        assert_eq!(counts(&caller), (0, 0, 1, 1));
        let other = caller.lend(1000).expect("another");
        assert_eq!(counts(&caller), (0, 1, 1, 2));
        while kept.lock().is_empty() {
            rt::sleep(Nanos::from_micros(100));
        }
        kept.lock().pop().expect("kept").send_from(Box::new(Seven(1000)));
        while counts(&caller).2 > 0 {
            caller.0.handle.0.try_turn();
            rt::sleep(Nanos::from_micros(100));
        }
        assert_eq!(counts(&caller), (1, 2, 0, 2), "the answer came after all");
        drop((other, caller, handle));
        node.close();
    }

    /// A node is free to give a number to two connections: the second one does not count the first one's buffers.
    #[test]
    fn a_buffer_of_a_former_connection_of_that_number_is_not_counted() {
        if available().is_err() {
            return;
        }
        let (node, _) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        let lent = caller.lend(1000).expect("there is");
        let session = caller.0.peer.session();
        handle.0.end_lending(session);
        handle.0.begin_lending(session);
        let call = one(&caller, "keep", lent, Nanos::from_millis(20));
        assert!(matches!(call.result, Err(Error::Timeout(_))), "{call:?}");
        assert_eq!(counts(&caller), (0, 0, 1, 1));
        assert!(caller.lend(8).is_some(), "buffers are lent as before");
        drop((caller, handle));
        node.close();
    }

    /// A software provider may write to it as long as the endpoint is open, and whatever is done with its key.
    #[test]
    fn a_buffer_that_a_lost_node_may_write_to_stays_where_it_is() {
        if available().is_err() {
            return;
        }
        let (node, _) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        let call = one(
            &caller,
            "keep",
            caller.lend(1000).expect("there is"),
            Nanos::from_millis(20),
        );
        assert!(call.result.is_err());
        let client = Arc::clone(&handle.0);
        drop(caller);
        let mut lender = client.lender.lock();
        assert_eq!((lender.quarantine.len(), lender.spare.len()), (1, 0));
        for call in 0..QUARANTINED as u64 {
            let buffer = client.make_buffer(&mut lender).expect("made");
            lender.quarantine.insert(u64::MAX - call, (1, buffer));
        }
        drop(lender);
        let caller = channel(&node, &handle);
        assert!(caller.lend(8).is_none(), "there is an end to it");
        drop((caller, client, handle));
        node.close();
    }

    /// Of what was not sent no answer can come: in quarantine it would be for as long as the endpoint is open.
    #[test]
    fn a_buffer_of_a_call_that_was_never_sent_is_its_users_again() {
        if available().is_err() {
            return;
        }
        let (node, _) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        let lent = caller.lend(1000).expect("there is");
        let fabric_endpoint = &handle.0.fabric_endpoint;
        let mut full: Vec<Slot> = core::iter::from_fn(|| fabric_endpoint.take()).collect();
        let call = one(&caller, "fill", lent, Nanos::from_millis(20));
        assert!(matches!(call.result, Err(Error::Timeout(_))), "{call:?}");
        assert_eq!(counts(&caller), (0, 1, 0, 1));
        full.drain(..).for_each(|slot| fabric_endpoint.give(slot));
        let call = one(&caller, "fill", call.memory, Nanos::from_secs(60));
        assert!(call.result.is_ok() && *call.memory == [7; 1000], "{call:?}");
        drop(call);
        assert_eq!(counts(&caller), (1, 1, 0, 1), "the same one");
        drop((caller, handle));
        node.close();
    }

    #[test]
    fn memory_that_cannot_be_registered_is_kept_for_later() {
        if available().is_err() {
            return;
        }
        let (node, _) = node();
        let handle = Handle::open(&NetOptions::default(), &Provider::tcp(), Some("127.0.0.1")).expect("opened");
        let caller = channel(&node, &handle);
        let client = &handle.0;
        let memory = client.map_memory().expect("mapped");
        let refused = Err(Error::Busy("no memory can be locked".into()));
        assert!(client.lender.lock().made(memory, refused).is_none());
        client.lender.lock().refused = Some(rt::now() + Nanos::from_secs(3600));
        assert!(caller.lend(8).is_none(), "not at once");
        client.lender.lock().refused = None;
        assert!(caller.lend(8).is_some());
        assert_eq!(client.lent.lock().len(), 1, "nothing is mapped anew");
        drop((caller, handle));
        node.close();
    }
}
