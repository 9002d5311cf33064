//! A user's side: one rail for many threads and many nodes. Works are packed into messages, or, where a network card does
//! them, started as its operations; what comes back finds its works again.
//!
//! ```text
//!   post ─► queue ─► pump: pack pieces into slots ─► start, one doorbell ─► flights, by id
//!                      ▲                                                      │
//!                      └── turn: completions, answers, what is late ◄─────────┘
//! ```
//!
//! Who turns? Whoever waits. One waiter *leads* (holds the role): it reads the rail's completions, for all. The others sleep on
//! their batch's event; a leader that leaves wakes one of them to lead. A background thread leads when nobody waits:
//! for works whose [`Posted`](crate::rdma::Posted) was dropped, and for what is late.
//!
//! Lock order: role, core, a batch's body. The core's lock is never held while waiting.
//!
//! Invariants:
//! - every flight ends: by its answer, by an error of its start, or when its time is over;
//! - a flight is started once: what may have been done is never tried again, except reads, which change nothing;
//! - a peer that is broken stays so: a new connection is another [`Peer`].

use super::address::NodeAddress;
use super::batch::{Batch, Body, Next, Piece};
use super::protocol::{self, Answer, Ask, Item, Kind, LARGEST, Reader, Status, Writer};
use super::rail::{Complete, Rail, SLOT, SLOTS, Slot, Started};
use super::shim::{self, Start, Target};
use super::{NetOptions, Path};
use crate::rdma::{Endpoint, InFlight, Limits, Op, Posted, Work};
use cenote_base::rt::{self, Event, HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Slots that receive answers; the others send.
const RECEIVING: usize = SLOTS / 3;

/// Flights at once: each may have an answer that wants a slot.
const FLIGHTS: usize = RECEIVING;

/// Works that may be under way.
pub const DEPTH: usize = 512;

/// How long a leader looks for completions before it sleeps.
const SPIN: Nanos = Nanos::from_micros(100);

/// Sleeps: of a leader, of one who waits for a leader, of the background thread with and without something to do.
const LEADER_SLEEP: Nanos = Nanos::from_millis(5);
const FOLLOWER_SLEEP: Nanos = Nanos::from_millis(5);
const BUSY_SLEEP: Nanos = Nanos::from_micros(500);
const IDLE_SLEEP: Nanos = Nanos::from_millis(200);

/// Between questions about what failed.
const ASK_AGAIN: Nanos = Nanos::from_millis(1);

/// A memory node, as it was found by one connection.
pub struct Peer {
    address: NodeAddress,
    name: String,
    target: u64,
    state: Mutex<State>,
    /// When it was last heard of, and asked for a sign of life.
    heard: AtomicU64,
    pinged: AtomicU64,
    /// Since when questions fail; 0: the last did not.
    failing: AtomicU64,
}

#[derive(Default)]
struct State {
    session: u64,
    path: Option<Path>,
    broken: Option<Error>,
    /// What the provider calls registrations: by key, with their length.
    keys: HashMap<u64, (Target, u64)>,
}

impl Peer {
    fn broken(&self) -> Option<Error> {
        self.state.lock().broken.clone()
    }

    fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.path.is_some()
    }

    fn session(&self) -> u64 {
        self.state.lock().session
    }

    fn path(&self) -> Path {
        self.state.lock().path.unwrap_or(Path::Served)
    }

    fn to(&self) -> Target {
        Target {
            peer: self.target,
            ..Target::default()
        }
    }

    fn lost(&self, why: &str) -> Error {
        Error::Lost(format!("memory node {} is lost: {why}", self.name))
    }
}

/// What was started and has not come back.
struct Flight {
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
    /// The flight's id; 0: none hangs on it.
    id: u64,
    since: Nanos,
}

#[derive(Default)]
struct Core {
    flights: HashMap<u64, Flight>,
    /// Ids by age.
    order: VecDeque<u64>,
    last_id: u64,
    queue: VecDeque<Arc<Batch>>,
    outbox: VecDeque<Ready>,
    /// Works under way.
    posted: usize,
    waiters: VecDeque<Arc<Event>>,
    /// Peers by session.
    peers: HashMap<u64, Arc<Peer>>,
    /// Numbers in the address table, and connections that use them.
    targets: HashMap<NodeAddress, (u64, usize)>,
    /// Whatever has failed for good: the rail itself.
    failed: Option<Error>,
    judged: Nanos,
    /// The node is to be asked about them, when there is a connection again.
    doubts: VecDeque<(Arc<Batch>, Doubt)>,
    /// Their question for a key failed: it is asked again.
    unasked: Vec<Arc<Batch>>,
    asked: Nanos,
    /// Batches that nobody waits for; their way is kept until they are done.
    abandoned: Vec<(Arc<Batch>, Arc<Way>)>,
}

/// See the module.
pub struct Client {
    core: Mutex<Core>,
    role: Mutex<()>,
    stop: AtomicBool,
    /// Something is to be done that nobody waits for.
    unattended: Event,
    patience: Nanos,
    own: NodeAddress,
    rail: Rail,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.rail)
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
    pub fn open(options: &NetOptions, provider: &super::Provider, local: Option<&str>) -> Result<Arc<Self>> {
        let rail = Rail::open(provider, local, None)?;
        for _ in 0..RECEIVING {
            rail.take()
                .into_iter()
                .for_each(|slot| give_back(&rail, rail.receive(slot)));
        }
        let client = Arc::new(Client {
            core: Mutex::new(Core::default()),
            role: Mutex::new(()),
            stop: AtomicBool::new(false),
            unattended: Event::new(),
            patience: options.patience,
            own: rail.address()?,
            rail,
        });
        let theirs = Arc::clone(&client);
        rt::try_spawn("rdma-user", move || theirs.attend()).map_err(|e| Error::io("starting an RDMA thread", e))?;
        Ok(Arc::new(Self(client)))
    }

    /// Says hello to a node.
    pub fn connect(self: &Arc<Self>, address: &NodeAddress) -> Result<Arc<Way>> {
        let peer = self.0.greet(address)?;
        Ok(Arc::new(Way {
            handle: Arc::clone(self),
            peer,
        }))
    }
}

fn give_back(rail: &Rail, started: Started) {
    if let Started::Later(slot) | Started::No(slot, _) = started {
        rail.give(slot);
    }
}

impl Client {
    // Connections.

    fn greet(&self, address: &NodeAddress) -> Result<Arc<Peer>> {
        let mut core = self.core.lock();
        if let Some(error) = core.failed.clone() {
            return Err(error);
        }
        let peer = Arc::new(Peer {
            target: self.target(&mut core, address)?,
            name: address.to_string(),
            address: address.clone(),
            state: Mutex::default(),
            heard: AtomicU64::new(rt::now().0),
            pinged: AtomicU64::new(0),
            failing: AtomicU64::new(0),
        });
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
        let target = self.rail.insert(address)?;
        core.targets.insert(address.clone(), (target, 1));
        Ok(target)
    }

    fn send_hello(&self, core: &mut Core, peer: &Arc<Peer>) -> Result<()> {
        let busy = || Error::Busy(format!("{}: all buffers are under way", self.own));
        let mut slot = self.rail.take().ok_or_else(busy)?;
        let mut writer = Writer::new(self.rail.bytes(&mut slot));
        writer.blob(self.own.bytes());
        let id = core.flight(What::Hello, peer);
        let len = writer.finish(Kind::Hello, 0, id);
        core.outbox.push_back(Ready::message(slot, len, peer, id));
        self.flush(core);
        Ok(())
    }

    /// A connection ends: the node is told, its number given back.
    fn forget(&self, peer: &Arc<Peer>) {
        let mut core = self.core.lock();
        let session = peer.session();
        core.peers.remove(&session);
        if session != 0 && peer.broken().is_none() {
            self.send_control(&mut core, peer, Kind::Bye);
        }
        if let Some((target, users)) = core.targets.get_mut(&peer.address) {
            *users -= 1;
            if *users == 0 {
                let target = *target;
                core.targets.remove(&peer.address);
                let (gone, stay) = core.outbox.drain(..).partition(|r| r.target.peer == target);
                core.outbox = stay;
                let gone: VecDeque<Ready> = gone;
                gone.into_iter().for_each(|r| self.rail.give(r.slot));
                self.rail.remove(target);
            }
        }
    }

    fn send_control(&self, core: &mut Core, peer: &Arc<Peer>, kind: Kind) {
        if let Some(mut slot) = self.rail.take() {
            let len = Writer::new(self.rail.bytes(&mut slot)).finish(kind, peer.session(), 0);
            core.outbox.push_back(Ready::message(slot, len, peer, 0));
            self.flush(core);
        }
    }

    // Sending.

    /// Puts a batch under way.
    fn start(&self, batch: &Arc<Batch>) {
        let mut core = self.core.lock();
        core.posted += batch.len();
        core.queue.push_back(Arc::clone(batch));
        self.pump(&mut core);
        let stuck = !core.queue.is_empty() || !core.outbox.is_empty();
        drop(core);
        if stuck {
            self.unattended.set();
        }
    }

    /// Sends what can be sent.
    fn pump(&self, core: &mut Core) {
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
        core.outbox.extend(ready);
        self.flush(core);
    }

    /// Packs a batch's pieces; says whether there was room for all that may be sent now.
    fn feed(&self, core: &mut Core, batch: &Arc<Batch>, ready: &mut Vec<Ready>) -> bool {
        let broken = batch.peer.broken();
        let (mut room, mut more) = (true, true);
        while more {
            let slot = match core.flights.len() < FLIGHTS {
                true => self.rail.take(),
                false => None,
            };
            let newly = batch.update(|body| match (&broken, slot) {
                (Some(error), slot) => {
                    slot.into_iter().for_each(|s| self.rail.give(s));
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
                self.rail.give(slot);
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
        let mut writer = Writer::new(self.rail.bytes(&mut slot));
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
        let id = core.flight(What::Message(Arc::clone(batch), pieces), &batch.peer);
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

    fn pack_item(&self, core: &mut Core, batch: &Arc<Batch>, item: &Item<'_>, mut slot: Slot, what: What) -> Ready {
        let mut writer = Writer::new(self.rail.bytes(&mut slot));
        writer.item(item);
        let id = core.flight(what, &batch.peer);
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
            self.rail.give(slot);
            let error = out_of_bounds(&batch.peer, work, len);
            body.sent(piece);
            body.came(piece, Err(error), &[]);
            return Some(None);
        }
        let start = match &work.op {
            Op::Write(from) => {
                self.rail.bytes(&mut slot)[..piece.len].copy_from_slice(&from[piece.from..piece.from + piece.len]);
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
            id: core.flight(What::Operation(Arc::clone(batch), piece), &batch.peer),
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
            self.rail.give(slot);
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
    fn flush(&self, core: &mut Core) {
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
                true => self.rail.send(ready.slot, len, &target, id, more),
                false => self.rail.start(ready.slot, len, start, &target, id, more),
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
                    self.rail.give(slot);
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
            .is_some_and(|r| rt::now().since(r.since) > self.patience);
        if late && let Some(ready) = core.outbox.pop_front() {
            self.rail.give(ready.slot);
            self.start_failed(core, ready.id, "it takes nothing");
        } else if core.outbox.len() > 1 {
            core.outbox.rotate_left(1);
        }
    }

    // Receiving.

    /// Reads completions and acts on them; how many. Only for the one who has the role.
    fn turn(&self) -> usize {
        let mut done = Vec::new();
        let polled = self.rail.poll(|complete| done.push(complete));
        let count = done.len();
        let now = rt::now();
        let mut core = self.core.lock();
        for complete in done {
            self.complete(&mut core, complete);
        }
        if let Err(error) = polled {
            self.fail_rail(&mut core, &error);
        }
        if now.since(core.judged) > Nanos(self.patience.0 / 16) {
            core.judged = now;
            self.judge(&mut core, now);
        }
        if !(core.doubts.is_empty() && core.unasked.is_empty()) && now.since(core.asked) > ASK_AGAIN {
            self.ask_for_keys(&mut core);
            self.ask_for_verdicts(&mut core, now);
        }
        if count > 0 || !core.outbox.is_empty() || !core.queue.is_empty() {
            self.pump(&mut core);
        }
        count
    }

    fn complete(&self, core: &mut Core, mut complete: Complete) {
        match (complete.received, complete.result) {
            (true, Ok(len)) => {
                self.message(core, &self.rail.bytes(&mut complete.slot)[..len]);
                give_back(&self.rail, self.rail.receive(complete.slot));
            }
            (true, Err(_)) => give_back(&self.rail, self.rail.receive(complete.slot)),
            (false, Ok(_)) => {
                self.operation_done(core, complete.tag, self.rail.bytes(&mut complete.slot));
                self.rail.give(complete.slot);
            }
            (false, Err(error)) => {
                self.rail.give(complete.slot);
                self.start_failed(core, complete.tag, &shim::text(error));
            }
        }
    }

    /// The provider has done its operation. (Messages end with their answers.)
    fn operation_done(&self, core: &mut Core, id: u64, bytes: &[u8]) {
        if let Some(Flight {
            what: What::Operation(..),
            ..
        }) = core.flights.get(&id)
            && let Some(flight) = core.land(id)
            && let What::Operation(batch, piece) = flight.what
        {
            flight.peer.hear();
            let value = piece.len as u64;
            self.came(core, &batch, |body| body.came(piece, Ok(value), &bytes[..piece.len]));
        }
    }

    /// A message that was not delivered, or an operation that failed.
    fn start_failed(&self, core: &mut Core, id: u64, why: &str) {
        let Some(flight) = core.land(id) else {
            return;
        };
        let peer = Arc::clone(&flight.peer);
        match flight.what {
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

    /// A question for a key went down with a connection: nothing was done, and asking again changes nothing. When its time is over the node is
    /// lost.
    fn question_failed(&self, core: &mut Core, peer: &Arc<Peer>, batch: Arc<Batch>, key: u64, why: &str) {
        if peer.has_failed_for(rt::now()) < self.patience {
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

    /// Asks the node about pieces whose operations failed, again and again while there is no connection: asking changes nothing.
    fn ask_for_verdicts(&self, core: &mut Core, now: Nanos) {
        core.asked = now;
        for _ in 0..core.doubts.len() {
            let Some((batch, doubt)) = core.doubts.pop_front() else {
                return;
            };
            if now.since(doubt.since) > self.patience || batch.peer.broken().is_some() {
                self.came(core, &batch, |body| body.came(doubt.piece, Err(doubt.failed), &[]));
            } else if let Some(slot) = self.rail.take() {
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

    fn message(&self, core: &mut Core, bytes: &[u8]) {
        let Some((head, reader)) = Reader::new(bytes) else {
            return;
        };
        match head.kind {
            Kind::Welcome => self.welcome(core, &head, reader.rest()),
            Kind::Results => self.results(core, &head, reader),
            Kind::Pong => core.peers.get(&head.session).into_iter().for_each(|p| p.hear()),
            _ => {}
        }
    }

    fn welcome(&self, core: &mut Core, head: &protocol::Head, facts: &[u8]) {
        let greeted = matches!(core.flights.get(&head.id), Some(Flight { what: What::Hello, .. }));
        let path = facts.first().and_then(|p| Path::from_number(*p));
        if let Some(path) = path.filter(|_| greeted && head.session != 0)
            && let Some(flight) = core.land(head.id)
        {
            let mut state = flight.peer.state.lock();
            (state.session, state.path) = (head.session, Some(path));
            drop(state);
            flight.peer.hear();
            core.peers.insert(head.session, flight.peer);
        }
    }

    fn results(&self, core: &mut Core, head: &protocol::Head, reader: Reader<'_>) {
        let expected = core.flights.get(&head.id).filter(|f| f.peer.session() == head.session);
        let answered = |f: &Flight| match &f.what {
            What::Message(_, pieces) => pieces.len() == head.count as usize,
            What::Verdict(..) | What::Resolve(..) => head.count == 1,
            _ => false,
        };
        if !expected.is_some_and(answered) {
            return;
        }
        let Some(flight) = core.land(head.id) else {
            return;
        };
        flight.peer.hear();
        match flight.what {
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
    fn came(&self, core: &mut Core, batch: &Arc<Batch>, change: impl FnOnce(&mut Body)) {
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

    // What is late, and what is lost.

    /// Asks peers that were silent for long for a sign of life, and ends what has waited too long.
    fn judge(&self, core: &mut Core, now: Nanos) {
        while core.order.front().is_some_and(|id| !core.flights.contains_key(id)) {
            core.order.pop_front();
        }
        let old = |id: &u64| {
            core.flights
                .get(id)
                .map(|f| (*id, now.since(f.since), Arc::clone(&f.peer)))
        };
        let suspect: Vec<_> = core
            .order
            .iter()
            .filter_map(old)
            .take_while(|(_, age, _)| age.0 > self.patience.0 / 4)
            .collect();
        for (id, age, peer) in suspect {
            if self.is_verdict(core, id) {
                // Asking again changes nothing, and the question may have gone down with a connection.
                if let Some(Flight {
                    what: What::Verdict(batch, doubt),
                    ..
                }) = core.land(id)
                {
                    core.doubts.push_back((batch, doubt));
                }
            } else if age > self.patience {
                self.give_up(core, id, &peer, now);
            } else if peer.may_ping(now, Nanos(self.patience.0 / 4)) {
                self.send_control(core, &peer, Kind::Ping);
            }
        }
    }

    fn is_verdict(&self, core: &Core, id: u64) -> bool {
        matches!(
            core.flights.get(&id),
            Some(Flight {
                what: What::Verdict(..),
                ..
            })
        )
    }

    /// Its time is over: the node is alive and has not answered this, or gives no sign of life.
    fn give_up(&self, core: &mut Core, id: u64, peer: &Arc<Peer>, now: Nanos) {
        let Some(flight) = core.land(id) else {
            return;
        };
        let silent = now.since(Nanos(peer.heard.load(Ordering::Relaxed)));
        if silent.0 < self.patience.0 / 2 && !matches!(flight.what, What::Hello) {
            let late = Error::Timeout(format!("memory node {}: no answer in time", peer.name));
            return self.end(core, flight.what, &late);
        }
        let lost = peer.lost(&format!("no sign of life for {} ms", silent.as_millis()));
        self.end(core, flight.what, &lost);
        self.break_peer(core, peer, &lost);
    }

    /// A flight ends with an error.
    fn end(&self, core: &mut Core, what: What, error: &Error) {
        match what {
            What::Hello => {}
            What::Message(batch, pieces) => self.came(core, &batch, |body| {
                let failed = |piece: Piece| body.came(piece, Err(error.clone()), &[]);
                pieces.into_iter().for_each(failed);
            }),
            What::Operation(batch, piece) | What::Verdict(batch, Doubt { piece, .. }) => {
                self.came(core, &batch, |body| body.came(piece, Err(error.clone()), &[]));
            }
            What::Resolve(batch, _) => self.came(core, &batch, |body| {
                body.is_waiting_for_key(false);
                body.fail_next(error);
            }),
        }
    }

    /// All that is under way to a peer ends, and all that comes later.
    fn break_peer(&self, core: &mut Core, peer: &Arc<Peer>, error: &Error) {
        peer.state.lock().broken.get_or_insert_with(|| error.clone());
        core.peers.remove(&peer.session());
        let of_peer = |f: &Flight| Arc::ptr_eq(&f.peer, peer);
        let ids: Vec<u64> = core
            .flights
            .iter()
            .filter(|(_, f)| of_peer(f))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(flight) = core.land(id) {
                self.end(core, flight.what, error);
            }
        }
    }

    /// The rail itself has failed: no peer can be reached any more.
    fn fail_rail(&self, core: &mut Core, error: &Error) {
        core.failed = Some(error.clone());
        let mut peers: Vec<Arc<Peer>> = core.peers.values().cloned().collect();
        peers.extend(core.flights.values().map(|f| Arc::clone(&f.peer)));
        for peer in peers {
            let lost = peer.lost(&error.to_string());
            self.break_peer(core, &peer, &lost);
        }
    }

    // Waiting.

    /// Returns when `done`. `event` wakes whoever sleeps here: it is set when there is news, or when a leader is wanted.
    /// `sleeps` is set before the first sleep: who sets the event need not where nobody does.
    fn wait_until(&self, event: &Arc<Event>, sleeps: &AtomicBool, done: impl Fn() -> bool) {
        let mut registered = false;
        while !done() {
            if let Some(role) = self.role.try_lock() {
                self.lead(&done);
                drop(role);
                self.hand_over();
            } else if registered {
                event.wait_timeout(FOLLOWER_SLEEP);
                event.reset();
            } else {
                self.core.lock().waiters.push_back(Arc::clone(event));
                sleeps.store(true, Ordering::SeqCst);
                registered = true;
            }
        }
        if registered {
            self.core.lock().waiters.retain(|e| !Arc::ptr_eq(e, event));
            // It may have been asked to lead in the meantime.
            if self.role.try_lock().is_some() {
                self.hand_over();
            }
        }
    }

    /// Turns until `done`.
    fn lead(&self, done: &impl Fn() -> bool) {
        let mut busy = rt::now();
        while !done() {
            if self.turn() > 0 {
                busy = rt::now();
            } else {
                let stuck = !self.core.lock().outbox.is_empty();
                let longest = if stuck { Nanos::ZERO } else { LEADER_SLEEP };
                self.rail.pause(rt::now().since(busy), SPIN, longest);
            }
        }
    }

    /// Somebody else leads.
    fn hand_over(&self) {
        let next = self.core.lock().waiters.front().cloned();
        next.into_iter().for_each(|event| event.set());
    }

    /// The background thread's life.
    fn attend(&self) {
        let end = |core: &Core| core.posted == 0 && core.outbox.is_empty();
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Acquire) {
                let since = *stopped.get_or_insert_with(rt::now);
                if end(&self.core.lock()) || rt::now().since(since) > Nanos(self.patience.0 * 2) {
                    return;
                }
            }
            let busy = self.look_after();
            self.unattended.wait_timeout(if busy || stopped.is_some() {
                BUSY_SLEEP
            } else {
                IDLE_SLEEP
            });
            self.unattended.reset();
        }
    }

    /// Turns if nobody leads; whether there is something that nobody waits for.
    fn look_after(&self) -> bool {
        if let Some(role) = self.role.try_lock() {
            while self.turn() > 0 {}
            drop(role);
            self.hand_over();
        }
        let mut core = self.core.lock();
        let (over, rest) = core.abandoned.drain(..).partition(|(batch, _)| batch.is_done());
        core.abandoned = rest;
        let busy = !core.abandoned.is_empty() || !core.queue.is_empty() || !core.outbox.is_empty();
        drop(core);
        // Not under the lock: a way that goes says so to its node.
        let over: Vec<(Arc<Batch>, Arc<Way>)> = over;
        drop(over);
        busy
    }
}

impl Core {
    /// Something starts; its id.
    fn flight(&mut self, what: What, peer: &Arc<Peer>) -> u64 {
        self.last_id += 1;
        let since = rt::now();
        let peer = Arc::clone(peer);
        self.flights.insert(self.last_id, Flight { what, peer, since });
        self.order.push_back(self.last_id);
        self.last_id
    }

    /// It has come back.
    fn land(&mut self, id: u64) -> Option<Flight> {
        let flight = self.flights.remove(&id);
        while self.order.front().is_some_and(|id| !self.flights.contains_key(id)) {
            self.order.pop_front();
        }
        flight
    }

    fn count_done(&mut self, batch: &Batch, newly: bool) {
        if newly {
            self.posted -= batch.len();
        }
    }
}

impl Peer {
    fn hear(&self) {
        self.heard.store(rt::now().0, Ordering::Relaxed);
        self.failing.store(0, Ordering::Relaxed);
    }

    /// For how long questions have failed, as of this failure.
    fn has_failed_for(&self, now: Nanos) -> Nanos {
        match self.failing.load(Ordering::Relaxed) {
            0 => {
                self.failing.store(now.0, Ordering::Relaxed);
                Nanos::ZERO
            }
            since => now.since(Nanos(since)),
        }
    }

    /// Whether it was long enough since it was last asked; then it is.
    fn may_ping(&self, now: Nanos, pause: Nanos) -> bool {
        let last = Nanos(self.pinged.load(Ordering::Relaxed)).max(Nanos(self.heard.load(Ordering::Relaxed)));
        let due = now.since(last) > pause && self.session() != 0;
        if due {
            self.pinged.store(now.0, Ordering::Relaxed);
        }
        due
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

/// A piece, as it is asked for.
fn item_of(work: &Work, piece: Piece, fenced: bool) -> Item<'_> {
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

fn revoked(peer: &Peer, key: u64) -> Error {
    Error::Revoked(format!("memory node {}: no memory under key {key:#x}", peer.name))
}

fn garbled(peer: &Peer) -> Error {
    Error::Corrupt(format!("memory node {}: an answer that makes no sense", peer.name))
}

fn out_of_bounds(peer: &Peer, work: &Work, len: u64) -> Error {
    let (bytes, at) = (work.op.bytes(), work.at);
    Error::OutOfBounds(format!(
        "memory node {}: {bytes} bytes at {at} of memory that has {len}",
        peer.name
    ))
}

/// A connection: its end is told to the node.
pub struct Way {
    handle: Arc<Handle>,
    peer: Arc<Peer>,
}

impl Way {
    /// What the provider calls a registration, once it was used over this way.
    pub fn provider_key(&self, key: u64) -> Option<Target> {
        self.peer.state.lock().keys.get(&key).map(|(target, _)| *target)
    }
}

/// A way, as an endpoint.
#[derive(Debug)]
pub struct Connection(pub Arc<Way>);

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "way to {}", self.peer.name)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.handle.0.forget(&self.peer);
    }
}

impl Endpoint for Connection {
    fn peer(&self) -> &str {
        &self.0.peer.name
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: DEPTH,
            transfer: u64::from(u32::MAX / 2),
        }
    }

    fn post(&self, works: Vec<Work>) -> Posted {
        if works.is_empty() {
            return Posted::done(works);
        }
        let client = &self.0.handle.0;
        let room = || client.core.lock().posted < DEPTH;
        if !room() {
            client.wait_until(&Arc::default(), &AtomicBool::default(), room);
        }
        let batch = Arc::new(Batch::new(Arc::clone(&self.0.peer), works));
        client.start(&batch);
        Posted::new(Box::new(UnderWay {
            way: Arc::clone(&self.0),
            batch,
        }))
    }
}

/// A batch under way, as whoever posted it has it. The way lives as long.
struct UnderWay {
    way: Arc<Way>,
    batch: Arc<Batch>,
}

impl InFlight for UnderWay {
    fn poll(&mut self) -> bool {
        let client = &self.way.handle.0;
        if !self.batch.is_done()
            && let Some(role) = client.role.try_lock()
        {
            client.turn();
            drop(role);
            client.hand_over();
        }
        self.batch.is_done()
    }

    fn wait(self: Box<Self>) -> Vec<Work> {
        let client = &self.way.handle.0;
        client.wait_until(&self.batch.event, &self.batch.slept, || self.batch.is_done());
        self.batch.take()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.batch.is_done() {
            return;
        }
        let client = &self.way.handle.0;
        let mut core = client.core.lock();
        core.abandoned.push((Arc::clone(&self.batch), Arc::clone(&self.way)));
        drop(core);
        client.unattended.set();
    }
}
