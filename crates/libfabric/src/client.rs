//! A user's side: one endpoint for many threads and many nodes. Works are packed into messages, or, where a network
//! card does them, started as its operations; what comes back finds its works again.
//!
//! ```text
//!   post ─► queue ─► pump: pack pieces into slots ─► start, one doorbell ─► operations in flight, by id
//!                      ▲                                                      │
//!                      └── turn: completions, answers, late operations ◄──────┘
//! ```
//!
//! Waiting threads take turns. One of them *leads* (holds the role): it reads the endpoint's completions, for all. The
//! others sleep on their batch's event, and a leader that leaves wakes one of them to lead. While no thread waits a
//! background thread leads: for works whose [`Posted`](cenote_fabric::rdma::Posted) was dropped, and for late ones.
//!
//! Lock order: role, core, a batch's body or the lender. The core's lock is never held while waiting.
//!
//! Invariants:
//! - every operation in flight ends: by its answer, by an error of its start, or when its time is over;
//! - an operation is started once: one that may have been done is never tried again, except a read, which changes
//!   nothing;
//! - a peer that is broken stays so: a new connection is another [`Peer`].

mod asked;
mod calls;
mod endpoint;
mod ends;
mod late;
mod lend;
mod lender;
mod peer;
mod receive;
mod send;
mod wait;

pub use endpoint::Connection;
pub use peer::Peer;

use asked::{Asked, Unsent};
use ends::Ends;
use lender::{Lender, OnLoan};
use peer::{garbled, out_of_bounds, revoked};

use super::address::{NodeAddress, Provider};
use super::batch::{Batch, Body, Next, Piece};
use super::fabric_endpoint::{Complete, FabricEndpoint, SLOT, SLOTS, Slot, Started};
use super::options::{NetOptions, Path};
use super::protocol::{self, Answer, Ask, Item, Kind, LARGEST, Reader, Status, Writer};
use super::shim::{self, Start, Target};
use cenote_base::rt::{self, Event, HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use cenote_fabric::rdma::call;
use cenote_fabric::rdma::{Op, Work};
use core::fmt;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Slots that receive answers; the others send.
const RECEIVING: usize = SLOTS / 3;

/// Operations in flight at once: each may have an answer that needs a slot.
const IN_FLIGHT_MAX: usize = RECEIVING;

/// Works that may be under way.
pub const DEPTH: usize = 512;
const _: () = {
    assert!(RECEIVING < SLOTS, "slots are left to send from");
    assert!(IN_FLIGHT_MAX <= DEPTH, "operations in flight are of works under way");
};

/// How long a leader looks for completions before it sleeps.
const SPIN: Nanos = Nanos::from_micros(100);

/// Sleeps: of a leader, of a thread that waits for a leader, of the background thread with and without work.
const LEADER_SLEEP: Nanos = Nanos::from_millis(5);
const FOLLOWER_SLEEP: Nanos = Nanos::from_millis(5);
const BUSY_SLEEP: Nanos = Nanos::from_micros(500);
const IDLE_SLEEP: Nanos = Nanos::from_millis(200);

/// Between questions about what failed.
const ASK_AGAIN: Nanos = Nanos::from_millis(1);

/// What was started and has not come back.
struct OperationInFlight {
    what: What,
    peer: Arc<Peer>,
    since: Nanos,
}

enum What {
    Hello,
    /// A message with those pieces.
    Message(Arc<Batch>, Vec<Piece>),
    /// One piece as the provider's operation.
    Operation(Arc<Batch>, Piece),
    /// What became of a piece whose operation failed.
    Verdict(Arc<Batch>, Doubt),
    /// Asks for the provider's name of a key.
    Resolve(Arc<Batch>, u64),
    /// A call of the node's program.
    Call(Asked),
}

/// A piece whose operation failed: was it wrong, or did it fall with another's connection?
struct Doubt {
    piece: Piece,
    failed: Error,
    since: Nanos,
}

/// Ready to be started.
struct Ready {
    slot: Slot,
    len: usize,
    start: Start,
    target: Target,
    /// Whether it may go without a word of whether it went: where connections break by others' errors, it may not.
    quietly: bool,
    /// The id of its operation in flight; 0: it has none.
    id: u64,
    since: Nanos,
}

#[derive(Default)]
struct Core {
    in_flight: HashMap<u64, OperationInFlight>,
    /// Ids by age.
    order: VecDeque<u64>,
    last_id: u64,
    queue: VecDeque<Arc<Batch>>,
    outbox: VecDeque<Ready>,
    /// Works under way.
    posted: usize,
    /// Calls under way, those that are not wholly sent, and when those end that have a time of their own.
    calling: usize,
    unsent: VecDeque<Unsent>,
    ends: BinaryHeap<Reverse<(Nanos, u64)>>,
    waiters: VecDeque<Arc<Event>>,
    /// Peers by session.
    peers: HashMap<u64, Arc<Peer>>,
    /// Numbers in the address table, and connections that use them.
    targets: HashMap<NodeAddress, (u64, usize)>,
    /// Whatever has failed for good: the endpoint itself.
    failed: Option<Error>,
    judged: Nanos,
    /// The node is to be asked about them, when there is a connection again.
    doubts: VecDeque<(Arc<Batch>, Doubt)>,
    /// Their question for a key failed: it is asked again.
    unasked: Vec<Arc<Batch>>,
    asked: Nanos,
    /// Works and calls that no thread waits for; their channel is kept until they have ended.
    abandoned: Vec<(Arc<dyn Ends>, Arc<Channel>)>,
}

/// See the module.
pub struct Client {
    core: Mutex<Core>,
    role: Mutex<()>,
    stop: AtomicBool,
    /// There is work for which no thread waits.
    unattended: Event,
    timeout: Nanos,
    own: NodeAddress,
    me: Weak<Client>,
    /// Before the endpoint: registrations end before it does.
    lender: Mutex<Lender>,
    fabric_endpoint: FabricEndpoint,
    /// Memory that nodes could write to: behind the endpoint, which may write to it until it is closed.
    lent: Mutex<Vec<Arc<Mapping>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fabric_endpoint)
    }
}

/// The users' hold on a client: its background thread ends after the last of them.
#[derive(Debug)]
pub struct Handle(Arc<Client>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.unattended.set();
    }
}

impl Handle {
    /// A client at an own address.
    ///
    /// # Errors
    /// [`Error::Invalid`] if libfabric is not there, [`Error::Io`] if the provider, the address or a thread is not to
    /// be had.
    pub fn open(options: &NetOptions, provider: &Provider, local: Option<&str>) -> Result<Arc<Self>> {
        let fabric_endpoint = FabricEndpoint::open(provider, local, None)?;
        for _ in 0..RECEIVING {
            fabric_endpoint
                .take()
                .into_iter()
                .for_each(|slot| give_back(&fabric_endpoint, fabric_endpoint.receive(slot)));
        }
        let own = fabric_endpoint.address()?;
        let client = Arc::new_cyclic(|me| Client {
            core: Mutex::new(Core::default()),
            role: Mutex::new(()),
            stop: AtomicBool::new(false),
            unattended: Event::new(),
            timeout: options.timeout,
            own,
            me: Weak::clone(me),
            lender: Mutex::default(),
            fabric_endpoint,
            lent: Mutex::default(),
        });
        let theirs = Arc::clone(&client);
        rt::try_spawn("rdma-user", move || theirs.attend()).map_err(|e| Error::io("starting an RDMA thread", e))?;
        Ok(Arc::new(Self(client)))
    }

    /// Says hello to a node.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node does not answer in time, [`Error::Busy`] if all buffers are in use; the endpoint's
    /// error if that has failed.
    pub fn connect(self: &Arc<Self>, address: &NodeAddress) -> Result<Arc<Channel>> {
        let peer = self.0.greet(address)?;
        Ok(Arc::new(Channel {
            handle: Arc::clone(self),
            peer,
        }))
    }
}

/// A connection: its end is told to the node.
pub struct Channel {
    handle: Arc<Handle>,
    peer: Arc<Peer>,
}

impl Channel {
    /// What the provider calls a registration, once it was used over this way.
    pub fn provider_key(&self, key: u64) -> Option<Target> {
        self.peer.state.lock().keys.get(&key).map(|(target, _)| *target)
    }
}

impl Channel {
    /// No thread waits for it any more: it goes on, if it has not ended, and keeps its channel.
    fn let_go(self: &Arc<Self>, what: Arc<dyn Ends>) {
        if what.has_ended() {
            return;
        }
        let client = &self.handle.0;
        client.core.lock().abandoned.push((what, Arc::clone(self)));
        client.unattended.set();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel to {}", self.peer.name)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.handle.0.forget(&self.peer);
    }
}

fn give_back(fabric_endpoint: &FabricEndpoint, started: Started) {
    if let Started::Later(slot) | Started::No(slot, _) = started {
        fabric_endpoint.give(slot);
    }
}

impl Client {
    fn greet(&self, address: &NodeAddress) -> Result<Arc<Peer>> {
        let mut core = self.core.lock();
        if let Some(error) = core.failed.clone() {
            return Err(error);
        }
        let target = self.target(&mut core, address)?;
        let peer = Arc::new(Peer::new(address, target));
        let sent = self.send_hello(&mut core, &peer);
        drop(core);
        let settled = sent.map(|()| self.wait_until(&Arc::default(), &AtomicBool::default(), || peer.is_settled()));
        match settled.err().or_else(|| peer.broken()) {
            None => Ok(peer),
            Some(error) => {
                self.forget(&peer);
                Err(error)
            }
        }
    }

    fn target(&self, core: &mut Core, address: &NodeAddress) -> Result<u64> {
        if let Some((target, users)) = core.targets.get_mut(address) {
            *users += 1;
            return Ok(*target);
        }
        let target = self.fabric_endpoint.insert(address)?;
        core.targets.insert(address.clone(), (target, 1));
        Ok(target)
    }

    fn send_hello(&self, core: &mut Core, peer: &Arc<Peer>) -> Result<()> {
        let busy = || Error::Busy(format!("{}: all buffers are under way", self.own));
        let mut slot = self.fabric_endpoint.take().ok_or_else(busy)?;
        let mut writer = Writer::new(self.fabric_endpoint.bytes(&mut slot));
        writer.blob(self.own.bytes());
        let id = core.put_in_flight(What::Hello, peer);
        let len = writer.finish(Kind::Hello, 0, id);
        core.outbox.push_back(Ready::message(slot, len, peer, id));
        self.flush(core);
        Ok(())
    }

    /// A connection ends: the node is told, its number given back.
    fn forget(&self, peer: &Arc<Peer>) {
        let session = peer.session();
        self.say_goodbye(peer, session);
        let over = self.end_lending(session);
        self.retire(over);
    }

    fn say_goodbye(&self, peer: &Arc<Peer>, session: u64) {
        let mut core = self.core.lock();
        core.peers.remove(&session);
        if session != 0 && peer.broken().is_none() {
            self.send_control(&mut core, peer, Kind::Bye);
        }
        if let Some((target, users)) = core.targets.get_mut(&peer.address) {
            assert!(
                *users > 0,
                "a connection gives its place in the address table back once"
            );
            *users -= 1;
            if *users == 0 {
                let target = *target;
                core.targets.remove(&peer.address);
                let (gone, stay) = core.outbox.drain(..).partition(|r| r.target.peer == target);
                core.outbox = stay;
                let gone: VecDeque<Ready> = gone;
                gone.into_iter().for_each(|r| self.fabric_endpoint.give(r.slot));
                self.fabric_endpoint.remove(target);
            }
        }
    }

    fn send_control(&self, core: &mut Core, peer: &Arc<Peer>, kind: Kind) {
        if let Some(mut slot) = self.fabric_endpoint.take() {
            let len = Writer::new(self.fabric_endpoint.bytes(&mut slot)).finish(kind, peer.session(), 0);
            core.outbox.push_back(Ready::message(slot, len, peer, 0));
            self.flush(core);
        }
    }
}

impl Core {
    /// Something starts; its id.
    fn put_in_flight(&mut self, what: What, peer: &Arc<Peer>) -> u64 {
        self.last_id += 1;
        let since = rt::now();
        let peer = Arc::clone(peer);
        let former = self
            .in_flight
            .insert(self.last_id, OperationInFlight { what, peer, since });
        assert!(former.is_none(), "the number of an operation in flight is used once");
        self.order.push_back(self.last_id);
        self.last_id
    }

    /// It has come back.
    fn take_from_flight(&mut self, id: u64) -> Option<OperationInFlight> {
        let operation = self.in_flight.remove(&id);
        if operation.as_ref().is_some_and(|f| matches!(f.what, What::Call(_))) {
            assert!(
                self.calling > 0,
                "a call in operation is counted from its begin to its end"
            );
            self.calling -= 1;
        }
        while self.order.front().is_some_and(|id| !self.in_flight.contains_key(id)) {
            self.order.pop_front();
        }
        operation
    }

    fn count_done(&mut self, batch: &Batch, newly: bool) {
        if newly {
            assert!(
                self.posted >= batch.len(),
                "the works of a batch are counted until it is done"
            );
            self.posted -= batch.len();
        }
    }
}

impl Ready {
    fn message(slot: Slot, len: usize, peer: &Peer, id: u64) -> Self {
        Self {
            slot,
            len,
            start: Start::Send,
            target: peer.to(),
            quietly: peer.path() == Path::Served,
            id,
            since: rt::now(),
        }
    }
}
