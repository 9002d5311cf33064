//! A memory node: registered memory, and the thread that lets the provider go on and carries out what comes as
//! messages.
//!
//! ```text
//!   slot received ─► head ─┬ Hello ─► session ─► Welcome
//!                          ├ Works ─► registry locked: items in order ─► Results
//!                          ├ Calls ─► program asked ─► reply queue ─► Answers        │ no room: outbox, tried again
//!                          └ Ping  ─► Pong           ▲ answers of other threads
//! ```
//!
//! Invariants:
//! - items are carried out by the one thread, under the registry's lock: a revocation that has returned has seen the
//!   end of all items under its key, and no later one finds it;
//! - a slot that was received is used until its answers are written, and then receives again: messages of a user that
//!   sends faster than the node answers wait in the provider's queue;
//! - a peer that does not take what is sent to it costs slots that wait for [`OUTBOX_TIMEOUT`] at most, and its
//!   session. What the provider has taken for it stays there: so answers to calls wait while [`load::HELD`] slots are
//!   under way to their address, and delay no other session. Writes to callers' memory are complete when the caller's
//!   side says so: [`WRITES`] are under way at most, and slots remain for all that is no write;
//! - nothing that comes is believed: see [`protocol`](super::protocol).

mod calls;
mod load;
mod reply_queue;
mod write;

use super::address::NodeAddress;
use super::calls::Whole;
use super::fabric_endpoint::{Access, Complete, FabricEndpoint, Registration, SLOTS, Slot, Started};
use super::options::{NodeOptions, Path, own_name};
use super::protocol::{self, ANSWER, Ask, HEAD, Item, Kind, Reader, Status, Window, Writer};
use super::registered_memory::{Holding, RegisteredMemory, Registry, exchange};
use super::shim::{Start, Target};
use cenote_base::rt::{self, HashMap, JoinHandle, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use cenote_fabric::rdma::call::Serve;
use cenote_fabric::rdma::{Key, Registrar, Remote};
use core::fmt;
use load::{Held, Load};
use reply_queue::{Outgoing, Packed, ReplyQueue};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slots that receive.
const RECEIVING: usize = SLOTS / 2;

/// How long the thread looks for more before it sleeps: not at all. On a busy machine a thread that sleeps is woken at
/// once, and one that spins has to wait for its turn.
const SPIN: Nanos = Nanos::ZERO;

/// The longest sleep: what the provider does without a word to us waits for that long.
const SLEEP: Nanos = Nanos::from_millis(20);

/// How long an answer may wait for its way.
const OUTBOX_TIMEOUT: Nanos = Nanos::from_secs(2);

/// Slots of writes to callers' memory, of all sessions.
const WRITES: usize = SLOTS / 4;
const _: () = assert!(RECEIVING + WRITES < SLOTS, "slots are left for answers");

/// Bytes of answers that may wait so: more than all calls that a user has under way can have. A session with more of
/// them ends.
const WAITING: usize = 256 << 20;

/// Sessions at once; the one that was silent for longest goes.
const SESSIONS: usize = 4096;

/// A memory node in this process. Dropping it, or [`MemoryNode::close`], ends it: all keys first.
pub struct MemoryNode {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: NodeAddress,
}

struct Shared {
    /// Before the endpoint: registrations end before it does.
    registry: Mutex<Registry>,
    /// Of keys that were taken back, and that the provider did not end.
    unended: Mutex<HashMap<u64, Registration>>,
    /// What calls are for.
    program: Mutex<Option<Arc<dyn Serve>>>,
    stop: AtomicBool,
    path: Path,
    /// Answers' bytes are written to callers' memory, where that can be written to; how.
    writes: bool,
    write: Start,
    silence: Nanos,
    fabric_endpoint: FabricEndpoint,
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory node {} ({} registrations)",
            self.address,
            self.shared.registry.lock().len()
        )
    }
}

impl MemoryNode {
    /// Starts a node.
    ///
    /// # Errors
    /// [`Error::Invalid`] if RDMA is not there, [`Error::Io`] if the provider or the address is not.
    pub fn start(options: &NodeOptions) -> Result<Self> {
        let provider = &options.provider;
        let name = options.name.clone().or_else(|| own_name(provider));
        let fabric_endpoint = FabricEndpoint::open(provider, name.as_deref(), options.port)?;
        let write = fabric_endpoint.ordered_write();
        Self::with(options, fabric_endpoint, write)
    }

    fn with(options: &NodeOptions, fabric_endpoint: FabricEndpoint, write: Start) -> Result<Self> {
        let provider = &options.provider;
        let address = fabric_endpoint.address()?;
        let shared = Arc::new(Shared {
            registry: Mutex::new(Registry::default()),
            unended: Mutex::default(),
            program: Mutex::new(None),
            stop: AtomicBool::new(false),
            silence: options.silence,
            path: options.path.unwrap_or_else(|| Path::of(provider)),
            writes: options.writes && fabric_endpoint.writes(),
            write,
            fabric_endpoint,
        });
        let theirs = Arc::clone(&shared);
        let body = move || Server::new(theirs).run();
        let thread = rt::try_spawn("rdma-node", body).map_err(|e| Error::io("starting a memory node's thread", e))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            address,
        })
    }

    /// Where it is reached.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Registers `len` bytes of zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length of 0, [`Error::Io`] if memory cannot be mapped or registered.
    pub fn register(&self, len: u64) -> Result<Remote> {
        self.shared.register(RegisteredMemory::own(len)?, Access::All)
    }

    /// Takes a key back. Once this has returned, nothing under it reads or changes memory. Says whether there was one.
    ///
    /// # Errors
    /// [`Error::Io`] if the provider did not end it: to be done again.
    pub fn revoke(&self, key: Key) -> Result<bool> {
        self.shared.revoke(key)
    }

    /// What registers memory of other parts of this program, beside [`MemoryNode::register`].
    pub fn registrar(&self) -> Arc<dyn Registrar> {
        Arc::new(NodeRegistrar {
            shared: Arc::clone(&self.shared),
            address: self.address.clone(),
        })
    }

    /// Its program: what calls are for, in place of the one before. The node's thread calls it.
    pub fn serve(&self, program: Arc<dyn Serve>) {
        *self.shared.program.lock() = Some(program);
    }

    /// What the node's own processor sees of a registration.
    ///
    /// # Errors
    /// [`Error::Revoked`], [`Error::OutOfBounds`].
    pub fn inspect(&self, key: Key, at: u64, into: &mut [u8]) -> Result<()> {
        let registered_memory = self.shared.registry.lock().registered_memory(key.0).cloned();
        let registered_memory =
            registered_memory.ok_or_else(|| Error::Revoked(format!("no memory under key {}", key.0)))?;
        let whole = Remote {
            key,
            base: 0,
            len: registered_memory.len() as u64,
        };
        whole.check(at, into.len() as u64)?;
        registered_memory.read(at, into);
        Ok(())
    }

    /// Ends the node: its keys, its thread, its endpoint. Returns when all is over.
    pub fn close(mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }

    fn end(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.fabric_endpoint.wake();
    }
}

impl Shared {
    fn register(&self, registered_memory: RegisteredMemory, access: Access) -> Result<Remote> {
        let mut registry = self.registry.lock();
        let (key, len) = (registry.new_key(), registered_memory.len() as u64);
        let registered = match self.path {
            Path::Served => None,
            Path::OneSided => {
                let fabric_endpoint = &self.fabric_endpoint;
                let mapping = registered_memory.mapping();
                Some(fabric_endpoint.register(mapping, registered_memory.len(), access, key)?)
            }
        };
        registry.insert(
            key,
            Holding {
                registered,
                registered_memory,
                access,
            },
        );
        Ok(Remote {
            key: Key(key),
            base: 0,
            len,
        })
    }

    fn revoke(&self, key: Key) -> Result<bool> {
        let holding = self.registry.lock().remove(key.0);
        let was_there = holding.is_some();
        let registration = holding.and_then(|holding| holding.registered).map(|(it, _)| it);
        let registration = registration.or_else(|| self.unended.lock().remove(&key.0));
        let Some(mut registration) = registration else {
            return Ok(was_there);
        };
        // Not under the lock: the provider may wait for what is under way.
        if let Err(error) = registration.try_close() {
            self.unended.lock().insert(key.0, registration);
            return Err(error);
        }
        Ok(true)
    }
}

/// What [`MemoryNode::registrar`] gives.
struct NodeRegistrar {
    shared: Arc<Shared>,
    address: NodeAddress,
}

impl NodeRegistrar {
    fn check_running(&self) -> Result<()> {
        match self.shared.stop.load(Ordering::Acquire) {
            true => Err(Error::Lost(format!("memory node {} has ended", self.address))),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for NodeRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registrar of memory node {}", self.address)
    }
}

impl Registrar for NodeRegistrar {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn register(&self, memory: Mapping) -> Result<Remote> {
        self.check_running()?;
        self.shared.register(RegisteredMemory::of(memory)?, Access::All)
    }

    fn register_to_read(&self, memory: &Arc<Mapping>, len: u64) -> Result<Remote> {
        self.check_running()?;
        self.shared
            .register(RegisteredMemory::first(memory, len)?, Access::Read)
    }

    fn revoke(&self, key: Key) -> Result<bool> {
        self.shared.revoke(key)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.end();
    }
}

/// An answer that waits for its way.
struct Waiting {
    slot: Slot,
    len: usize,
    session: u64,
    since: Nanos,
    start: Start,
    target: Target,
    /// What comes back with its completion.
    tag: u64,
    held: Held,
}

/// A request of which not all parts have come.
struct Gathered {
    whole: Whole,
    /// Of its first part.
    window: Option<Window>,
    /// Those that begin later have a higher one.
    number: u64,
}

/// A user that has said hello.
struct Session {
    peer: u64,
    address: NodeAddress,
    heard: Nanos,
    /// When it was asked for a sign of life.
    asked: Nanos,
    /// It has called: the program is to be told its end.
    called: bool,
    /// Requests of which not all parts have come.
    gathered: HashMap<u64, Gathered>,
    /// Answers that are not wholly sent, and their bytes.
    answers: VecDeque<Outgoing>,
    waiting: usize,
    /// Slots under way to its address.
    load: Load,
    /// Writes to its memory that have not been started yet: answers would overtake them.
    unstarted: usize,
    /// Answers of which nothing but the completion of such writes is missing, by call.
    written: HashMap<u64, Outgoing>,
}

/// The node's thread.
struct Server {
    shared: Arc<Shared>,
    sessions: HashMap<u64, Session>,
    /// Numbers in the endpoint's address table, and sessions that use them.
    peers: HashMap<NodeAddress, (u64, usize)>,
    /// Of addresses that have a session, or slots under way.
    loads: HashMap<NodeAddress, Load>,
    /// By slot: what is under way.
    under_way: Vec<Option<Held>>,
    outbox: VecDeque<Waiting>,
    /// Received, and not yet looked at for want of a slot to answer in.
    backlog: VecDeque<(Slot, usize)>,
    reply_queue: Arc<ReplyQueue>,
    /// Answers as they come from the reply queue.
    answered: VecDeque<Outgoing>,
    /// Sessions with answers that are not sent.
    owing: VecDeque<u64>,
    /// There was no slot for an answer that may be sent.
    is_starved: bool,
    /// Bytes of requests of which not all parts have come, and how many have begun to come.
    gathered: usize,
    begun: u64,
    /// Buffers of requests and answers, to be used again: large ones are page faults each time, if they are not.
    spares: Vec<Vec<u8>>,
    /// Writes to callers' memory that are under way: of which session and call.
    writes: HashMap<u64, (u64, u64)>,
    last_write: u64,
    watched: Nanos,
}

/// Wakes the node's thread, as long as the node is there.
fn waker(shared: &Arc<Shared>) -> Box<dyn Fn() + Send + Sync> {
    let shared = Arc::downgrade(shared);
    Box::new(move || {
        if let Some(shared) = shared.upgrade() {
            shared.fabric_endpoint.wake();
        }
    })
}

impl Server {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            reply_queue: Arc::new(ReplyQueue::new(waker(&shared))),
            answered: VecDeque::new(),
            owing: VecDeque::new(),
            is_starved: false,
            gathered: 0,
            begun: 0,
            spares: Vec::new(),
            writes: HashMap::default(),
            last_write: 0,
            watched: rt::now(),
            shared,
            sessions: HashMap::default(),
            peers: HashMap::default(),
            loads: HashMap::default(),
            under_way: (0..SLOTS).map(|_| None).collect(),
            outbox: VecDeque::new(),
            backlog: VecDeque::new(),
        }
    }

    fn run(mut self) {
        self.receive_all();
        let mut busy = rt::now();
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.turn() {
                busy = rt::now();
            } else {
                self.rest(rt::now().since(busy));
            }
        }
        self.end_all_calls();
        self.shared.registry.lock().clear();
    }

    fn rest(&mut self, idle: Nanos) {
        let waits = !self.outbox.is_empty() || self.is_starved;
        let longest = if waits { Nanos::ZERO } else { SLEEP };
        if self.reply_queue.leave() {
            self.shared.fabric_endpoint.pause(idle, SPIN, longest);
        }
        self.reply_queue.come_back();
    }

    fn receive_all(&self) {
        for _ in 0..RECEIVING {
            if let Some(slot) = self.shared.fabric_endpoint.take() {
                self.receive(slot);
            }
        }
    }

    fn receive(&self, slot: Slot) {
        if let Started::Later(slot) | Started::No(slot, _) = self.shared.fabric_endpoint.receive(slot) {
            self.shared.fabric_endpoint.give(slot);
        }
    }

    /// Whether anything happened.
    fn turn(&mut self) -> bool {
        let mut done = Vec::new();
        let shared = Arc::clone(&self.shared);
        let polled = shared.fabric_endpoint.poll(|complete| done.push(complete));
        if polled.is_err() {
            // The queue is broken, or the process ends: not to be found out in a hurry.
            rt::sleep(Nanos::from_millis(1));
        }
        let any = !done.is_empty();
        done.into_iter().for_each(|complete| self.complete(complete));
        self.watch();
        self.send_waiting();
        self.send_answers();
        while !self.is_starved
            && let Some((slot, len)) = self.backlog.pop_front()
        {
            if let Some((slot, len)) = self.message(slot, len) {
                self.backlog.push_front((slot, len));
                break;
            }
            self.send_answers();
        }
        any
    }

    fn complete(&mut self, complete: Complete) {
        match (complete.received, complete.result) {
            (true, Ok(len)) => self.backlog.push_back((complete.slot, len)),
            (true, Err(_)) => self.receive(complete.slot),
            (false, sent) => {
                self.under_way[complete.slot.index()] = None;
                self.shared.fabric_endpoint.give(complete.slot);
                let session = self.wrote(complete.tag).unwrap_or(complete.tag);
                if sent.is_err() {
                    self.end_session(session);
                }
            }
        }
    }

    /// Looks at a message; gives it back if there is no slot to answer in.
    fn message(&mut self, mut slot: Slot, len: usize) -> Option<(Slot, usize)> {
        let shared = Arc::clone(&self.shared);
        let Some(answer) = shared.fabric_endpoint.take() else {
            return Some((slot, len));
        };
        let bytes = &shared.fabric_endpoint.bytes(&mut slot)[..len];
        let unsent = match Reader::new(bytes) {
            Some((head, reader)) => self.act(&head, reader, answer),
            None => Some(answer),
        };
        if let Some(answer) = unsent {
            shared.fabric_endpoint.give(answer);
        }
        self.receive(slot);
        None
    }

    /// Gives the slot for the answer back if there is none.
    fn act(&mut self, head: &protocol::Head, reader: Reader<'_>, mut answer: Slot) -> Option<Slot> {
        if head.kind == Kind::Hello {
            return self.hello(head, reader.rest(), answer);
        }
        let Some(session) = self.sessions.get_mut(&head.session) else {
            return Some(answer);
        };
        session.heard = rt::now();
        let shared = Arc::clone(&self.shared);
        let writer = Writer::new(shared.fabric_endpoint.bytes(&mut answer));
        let len = match head.kind {
            Kind::Ping => writer.finish(Kind::Pong, head.session, head.id),
            Kind::Works => match self.works(head, reader, writer) {
                Some(len) => len,
                None => return Some(answer),
            },
            Kind::Calls => {
                self.calls(head, reader);
                return Some(answer);
            }
            Kind::Bye => {
                self.end_session(head.session);
                return Some(answer);
            }
            _ => return Some(answer),
        };
        self.send(answer, len, head.session);
        None
    }

    fn hello(&mut self, head: &protocol::Head, name: &[u8], mut answer: Slot) -> Option<Slot> {
        let address = NodeAddress::new(self.shared.fabric_endpoint.provider().clone(), name.to_vec());
        let Some(session) = address.ok().and_then(|a| self.begin_session(a)) else {
            return Some(answer);
        };
        let shared = Arc::clone(&self.shared);
        let mut writer = Writer::new(shared.fabric_endpoint.bytes(&mut answer));
        writer.blob(&[self.shared.path as u8, u8::from(self.shared.writes)]);
        let len = writer.finish(Kind::Welcome, session, head.id);
        self.send(answer, len, session);
        None
    }

    fn begin_session(&mut self, address: NodeAddress) -> Option<u64> {
        if self.sessions.len() >= SESSIONS {
            let silent = self.sessions.iter().min_by_key(|(_, s)| s.heard).map(|(id, _)| *id);
            self.end_session(silent?);
        }
        let peer = match self.peers.get_mut(&address) {
            Some((peer, users)) => {
                *users += 1;
                *peer
            }
            None => {
                let peer = self.shared.fabric_endpoint.insert(&address).ok()?;
                self.peers.insert(address.clone(), (peer, 1));
                peer
            }
        };
        let load = self.load(&address);
        let id = rt::random() >> 1 | 1;
        let heard = rt::now();
        self.sessions.insert(
            id,
            Session {
                peer,
                address,
                heard,
                asked: heard,
                called: false,
                gathered: HashMap::default(),
                answers: VecDeque::new(),
                waiting: 0,
                load,
                unstarted: 0,
                written: HashMap::default(),
            },
        );
        Some(id)
    }

    fn load(&mut self, address: &NodeAddress) -> Load {
        if !self.loads.contains_key(address) {
            self.loads.retain(|_, load| !load.is_idle());
        }
        self.loads.entry(address.clone()).or_default().clone()
    }

    fn end_session(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.end_calls(id, &session);
        let Some((_, users)) = self.peers.get_mut(&session.address) else {
            return;
        };
        assert!(*users > 0, "a session gives its place in the address table back once");
        *users -= 1;
        if *users == 0 {
            self.peers.remove(&session.address);
            self.forget_waiting(session.peer);
            self.shared.fabric_endpoint.remove(session.peer);
        }
    }

    fn forget_waiting(&mut self, peer: u64) {
        let (gone, stay) = self.outbox.drain(..).partition(|w| w.target.peer == peer);
        self.outbox = stay;
        let gone: VecDeque<Waiting> = gone;
        gone.into_iter().for_each(|w| self.drop_waiting(w));
    }

    fn drop_waiting(&mut self, waiting: Waiting) {
        self.shared.fabric_endpoint.give(waiting.slot);
        self.wrote(waiting.tag);
    }

    fn send(&mut self, slot: Slot, len: usize, session: u64) {
        let Some(to) = self.sessions.get_mut(&session) else {
            return self.shared.fabric_endpoint.give(slot);
        };
        let held = to.load.hold();
        let target = Target {
            peer: to.peer,
            ..Target::default()
        };
        self.try_send(Waiting {
            slot,
            len,
            session,
            since: rt::now(),
            start: Start::Send,
            target,
            tag: session,
            held,
        });
    }

    /// Says whether there was room, or no need of it.
    fn try_send(&mut self, mut waiting: Waiting) -> bool {
        let Waiting {
            len,
            start,
            target,
            tag,
            ..
        } = waiting;
        let shared = Arc::clone(&self.shared);
        let fabric_endpoint = &shared.fabric_endpoint;
        let (is_message, place) = (start == Start::Send, waiting.slot.index());
        let started = match is_message {
            true => fabric_endpoint.send(waiting.slot, len, &target, tag, false),
            false => fabric_endpoint.start(waiting.slot, len, start, &target, tag, false),
        };
        match started {
            Started::Yes => {
                // Of few bytes no completion tells.
                if !is_message || !fabric_endpoint.is_few(len) {
                    self.under_way[place] = Some(waiting.held);
                }
                if !is_message {
                    self.write_started(waiting.session);
                }
                true
            }
            Started::Later(slot) => {
                waiting.slot = slot;
                self.outbox.push_back(waiting);
                false
            }
            Started::No(slot, _) => {
                fabric_endpoint.give(slot);
                self.wrote(tag);
                self.end_session(waiting.session);
                true
            }
        }
    }

    /// Tries once what waits. A peer that has not taken anything for long loses its session.
    fn send_waiting(&mut self) {
        for _ in 0..self.outbox.len() {
            let Some(waiting) = self.outbox.pop_front() else {
                return;
            };
            let (session, late) = (waiting.session, rt::now().since(waiting.since) > OUTBOX_TIMEOUT);
            if !self.sessions.contains_key(&session) {
                self.drop_waiting(waiting);
                continue;
            }
            if !self.try_send(waiting) && late {
                self.end_session(session);
            }
        }
    }

    /// Carries out items; the length of the answers. `None`: it was no message.
    fn works(&self, head: &protocol::Head, mut reader: Reader<'_>, mut writer: Writer<'_>) -> Option<usize> {
        let registry = self.shared.registry.lock();
        let mut failed = false;
        for _ in 0..head.count {
            let item = reader.item()?;
            if protocol::answer_size(item.ask, item.len) > writer.room() {
                return None;
            }
            let status = match failed && item.fenced {
                true => answer(&mut writer, Status::Skipped, 0),
                false => carry_out(&registry, &item, &mut writer),
            };
            failed |= status != Status::Done;
        }
        Some(writer.finish(Kind::Results, head.session, head.id))
    }
}

fn answer(writer: &mut Writer<'_>, status: Status, value: u64) -> Status {
    writer.answer(status, value, 0, |_| {});
    status
}

fn carry_out(registry: &Registry, item: &Item<'_>, writer: &mut Writer<'_>) -> Status {
    let holding = match registry.find(item) {
        Ok(holding) => holding,
        Err((status, value)) => return answer(writer, status, value),
    };
    let registered_memory = &holding.registered_memory;
    match item.ask {
        Ask::Read => {
            let len = item.len as usize;
            writer.answer(Status::Done, u64::from(item.len), len, |into| {
                registered_memory.read(item.at, into)
            });
            Status::Done
        }
        Ask::Write => {
            registered_memory.write(item.at, item.payload);
            answer(writer, Status::Done, u64::from(item.len))
        }
        Ask::CompareAndSwap | Ask::FetchAdd => answer(writer, Status::Done, exchange(registered_memory, item)),
        Ask::Check => answer(writer, Status::Done, 0),
        Ask::Resolve => resolve(holding, writer),
    }
}

/// How the provider is told of a registration.
fn resolve(holding: &Holding, writer: &mut Writer<'_>) -> Status {
    let Some((_, target)) = &holding.registered else {
        return answer(writer, Status::Invalid, 0);
    };
    let words = [target.address, target.key, holding.registered_memory.len() as u64];
    writer.answer(Status::Done, 0, 24, |into| {
        for (place, word) in into.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
    });
    Status::Done
}

const _: () = assert!(HEAD.is_multiple_of(8) && ANSWER.is_multiple_of(8));

#[cfg(test)]
mod tests;
