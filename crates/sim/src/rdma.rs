//! Simulated network cards: the one-sided verbs of [`cenote_fabric::rdma`] in virtual time, with faults.
//!
//! A [`Network`] joins hosts, each with a card, and memory nodes ([`MemoryNode`]), each with memory and a card. A
//! process reaches nodes through a [`Port`]. What a work costs:
//!
//! ```text
//!   post: doorbell (processor) ─► card: operations a second, queue depth
//!         ─► my card's direction ─► the node's card's direction         waits for the bytes of others
//!         ─► the published time of a transfer of that size, alone       (PolarCXLMem, table 2)
//!                 half-way: the memory is read or written               at the end: complete
//! ```
//!
//! Works take effect in the order of those half-way times, whenever a thread looks next at the network: an event needs
//! no thread of its own. So a work of a process that has died since it connected is still under way, and is done, in
//! part or not at all, by the seed. The memory of a node outlives all processes.
//!
//! Faults ([`Faults`]): a message is lost and sent again after a while, at last given up ([`Error::Timeout`]); is late;
//! a work's parts go their own ways, so that others see it half done; a host and a node are cut off from each other, or
//! the node is lost ([`Error::Lost`], when the card has given up). Connections of calls break, and requests that were
//! given up come late.
//!
//! Calls go over the same cards to the program of a node, which has a thread of its own: see `calls`.
//!
//! Invariants: a work is done at most once (a card repeats answers, not operations); the lock here is never held at a
//! preemption point.

mod calls;

pub use calls::Serving;

use crate::link::{Counters, Link};
use crate::{clock, state};
use calls::Calls;
use cenote_base::random::Random;
use cenote_base::rt::{self, HashMap, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::profile::Profile;
use cenote_fabric::rdma::loopback::Memory;
use cenote_fabric::rdma::{Endpoint, Fabric, InFlight, Key, Limits, Op, Posted, Remote, Work};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes wrong on the way. Rates are probabilities of one message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// A message, request or answer, is lost.
    pub loss: f64,
    /// A message is late by up to so much.
    pub delay: Nanos,
    /// Works of a batch, and the parts of a large one, are done in any order.
    pub reorder: bool,
    /// When a card sends again. (Assumed; a setting of real cards, from microseconds to seconds.)
    pub resend: Nanos,
    /// How often it does.
    pub resends: u32,
    /// A connection of calls breaks under a message: all that its caller has under way there is lost for him, and he
    /// may connect anew at once.
    pub breaks: f64,
    /// A request whose caller has given it up comes all the same, half of the time, and later by up to so much.
    pub straggle: Nanos,
}

impl Default for Faults {
    /// None.
    fn default() -> Self {
        Self {
            loss: 0.0,
            delay: Nanos::ZERO,
            reorder: false,
            resend: Nanos::from_millis(1),
            resends: 7,
            breaks: 0.0,
            straggle: Nanos::ZERO,
        }
    }
}

impl Faults {
    /// All kinds, as strong as `seed` draws: for worlds that look for faults.
    pub fn random(seed: u64) -> Self {
        let mut dice = Random(seed);
        Self {
            loss: dice.pick(&[0.0, 0.0, 0.01, 0.1]),
            delay: Nanos::from_micros(dice.pick(&[0, 5, 100, 1000])),
            reorder: dice.pick(&[false, true]),
            resends: dice.pick(&[7, 7, 7, 1]),
            ..Self::default()
        }
    }
}

/// Bytes that travel, and are seen, together.
const PACKET: u64 = 4096;

/// Hosts and memory nodes, joined by cards. Clones are the same network.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    profile: Profile,
    state: Mutex<State>,
}

struct State {
    dice: Random,
    faults: Faults,
    nodes: Vec<Node>,
    cards: Vec<Arc<Card>>,
    /// The card of a host.
    of_host: BTreeMap<usize, usize>,
    /// Hosts and nodes that do not hear each other.
    cuts: BTreeSet<(usize, usize)>,
    /// What is to happen, by time and then in the order of planning.
    events: BTreeMap<(Nanos, u64), Event>,
    batches: HashMap<u64, Batch>,
    counted: u64,
    polling: Nanos,
    calls: Calls,
}

struct Node {
    memory: Memory,
    card: Arc<Card>,
}

/// A network card: a link for each direction, and one for its operations.
#[derive(Debug)]
struct Card {
    inbound: Link,
    outbound: Link,
    operations: Option<Link>,
}

impl Card {
    fn new(name: &str, bandwidth: Option<f64>, operations: Option<f64>) -> Arc<Self> {
        let speed = bandwidth.unwrap_or(f64::MAX);
        Arc::new(Self {
            inbound: Link::new(format!("{name} card in"), speed),
            outbound: Link::new(format!("{name} card out"), speed),
            operations: operations.map(|n| Link::new(format!("{name} card operations"), n)),
        })
    }
}

/// What has gone over a card.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CardCounters {
    /// To its host: what reads bring.
    pub inbound: Counters,
    /// From its host: what writes send.
    pub outbound: Counters,
    /// Operations that it began.
    pub operations: u64,
}

/// A part of a work arrives at the node.
struct Event {
    batch: u64,
    index: usize,
    part: Range<u64>,
}

/// Works that were posted together.
struct Batch {
    node: usize,
    host: usize,
    /// Of the process that posted them.
    life: Life,
    /// They will not be asked for.
    dropped: bool,
    broken: Arc<AtomicBool>,
    works: Vec<OperationInFlight>,
}

/// A work under way.
struct OperationInFlight {
    work: Work,
    resent: u32,
    /// When it is complete, as far as is known; then for good.
    complete: Nanos,
    /// From its effect to its completion.
    back: Nanos,
    parts_left: usize,
    done: bool,
}

impl Batch {
    fn is_done(&self) -> bool {
        self.works.iter().all(|f| f.done)
    }

    fn complete(&self) -> Nanos {
        self.works.iter().map(|f| f.complete).max().unwrap_or(Nanos::ZERO)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({})", self.0.profile.name)
    }
}

impl Network {
    /// Without hosts; its cards and links as `profile` says.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let state = State {
            dice: Random(seed),
            faults: Faults::default(),
            nodes: Vec::new(),
            cards: Vec::new(),
            of_host: BTreeMap::new(),
            cuts: BTreeSet::new(),
            events: BTreeMap::new(),
            batches: HashMap::default(),
            counted: 0,
            polling: Nanos::from_micros(10),
            calls: Calls::default(),
        };
        Self(Arc::new(Inner {
            profile: profile.clone(),
            state: Mutex::new(state),
        }))
    }

    /// Never held at a preemption point.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with all that has happened until now.
    fn today(&self) -> MutexGuard<'_, State> {
        let now = state::true_now();
        let mut state = self.state();
        state.catch_up(now);
        state
    }

    /// Adds a memory node; in place of one of the same name, which is lost.
    pub fn add_node(&self, name: &str) -> MemoryNode {
        let mut state = self.today();
        let profile = &self.0.profile;
        let card = Card::new(name, profile.device.bandwidth.or(profile.bandwidth), None);
        for node in state.nodes.iter_mut().filter(|n| n.memory.name() == name) {
            node.memory.lose();
        }
        let memory = Memory::new(name);
        state.nodes.push(Node { memory, card });
        MemoryNode {
            network: self.clone(),
            index: state.nodes.len() - 1,
        }
    }

    /// Hosts of one machine share a card. To be said before they use it.
    pub fn share_card(&self, hosts: impl IntoIterator<Item = usize>) {
        let mut state = self.state();
        let card = state.add_card("shared", &self.0.profile);
        for host in hosts {
            state.of_host.insert(host, card);
        }
    }

    /// A process's way into the network.
    pub fn port(&self, host: usize) -> Arc<Port> {
        Arc::new(Port {
            network: self.clone(),
            host,
            closed: Arc::default(),
        })
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.today().faults = faults;
    }

    /// Cuts a host and a node off from each other, until [`Network::mend`].
    pub fn cut(&self, host: usize, node: &MemoryNode) {
        self.today().cuts.insert((host, node.index));
    }

    /// Ends a cut.
    pub fn mend(&self, host: usize, node: &MemoryNode) {
        self.today().cuts.remove(&(host, node.index));
    }

    /// What has gone over a host's card.
    pub fn card(&self, host: usize) -> CardCounters {
        let mut state = self.today();
        let card = state.card(host, &self.0.profile);
        CardCounters {
            inbound: card.inbound.counters(),
            outbound: card.outbound.counters(),
            operations: card.operations.as_ref().map_or(0, |o| o.counters().bytes),
        }
    }

    /// Waits until `time`.
    fn wait_until(&self, time: Nanos) {
        let left = time - state::true_now();
        let projects = state::is_running() && state::with(|s| s.schedule.projects());
        if projects && left <= self.state().polling {
            rt::spend(left);
            rt::preempt();
        } else {
            rt::sleep(clock::host_span(left));
        }
    }
}

/// A memory node of a network.
#[derive(Debug, Clone)]
pub struct MemoryNode {
    network: Network,
    index: usize,
}

impl MemoryNode {
    fn with<T>(&self, f: impl FnOnce(&mut Memory) -> T) -> T {
        f(&mut self.network.today().nodes[self.index].memory)
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.with(|m| m.name().to_owned())
    }

    /// Registers `len` bytes of zeros.
    pub fn register(&self, len: u64) -> Remote {
        self.with(|m| m.register(len))
    }

    /// See [`Memory::register_anew`].
    pub fn register_anew(&self, key: Key) -> Option<Remote> {
        self.with(|m| m.register_anew(key))
    }

    /// See [`Memory::register_to_read`].
    pub fn register_to_read(&self, of: Key) -> Option<Remote> {
        self.with(|m| m.register_to_read(of))
    }

    /// Takes a registration back; says whether there was one.
    pub fn revoke(&self, key: Key) -> bool {
        self.with(|m| m.revoke(key))
    }

    /// What the node's own processor sees of a registration.
    pub fn inspect<T>(&self, key: Key, f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        self.with(|m| m.inspect(key).map(f))
    }

    /// The node is lost, with all its memory.
    pub fn lose(&self) {
        self.with(Memory::lose);
        self.tell_server();
    }
}

/// A process's way into a network.
#[derive(Debug)]
pub struct Port {
    network: Network,
    host: usize,
    closed: Arc<AtomicBool>,
}

impl Port {
    /// As if the process had died, for one that no world runs: what it has under way is done, in part or not at all,
    /// and no thread asks for it.
    pub fn close(&self) {
        let _until_now = self.network.today();
        self.closed.store(true, Relaxed);
    }

    /// Its host.
    pub fn host(&self) -> usize {
        self.host
    }
}

impl Port {
    /// The newest node of that name, if it can be reached.
    fn find(&self, peer: &str) -> Result<usize> {
        let state = self.network.today();
        let newest = state.nodes.iter().rposition(|n| n.memory.name() == peer);
        let Some(node) = newest else {
            let names: Vec<&str> = state.nodes.iter().map(|n| n.memory.name()).collect();
            let names = names.join(", ");
            return Err(Error::Invalid(format!("no memory node \"{peer}\"; there are: {names}")));
        };
        let found = &state.nodes[node];
        if found.memory.is_lost() {
            return Err(found.memory.gone());
        }
        if state.cuts.contains(&(self.host, node)) {
            return Err(unreachable(peer));
        }
        Ok(node)
    }
}

impl Fabric for Port {
    fn connect(&self, peer: &str) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(QueuePair {
            network: self.network.clone(),
            peer: peer.to_owned(),
            node: self.find(peer)?,
            host: self.host,
            life: Life::new(&self.closed),
            broken: Arc::default(),
            queue: Mutex::default(),
        }))
    }
}

/// Whether the process that connected lives.
#[derive(Clone)]
struct Life {
    closed: Arc<AtomicBool>,
    /// Set when it ends, if a world runs it.
    ended: Option<Arc<AtomicU32>>,
}

impl Life {
    fn new(closed: &Arc<AtomicBool>) -> Self {
        let process = clock::process() as usize;
        let of_world = state::is_running() && process > 0;
        Self {
            closed: Arc::clone(closed),
            ended: of_world.then(|| state::with(|s| Arc::clone(&s.processes[process].ended))),
        }
    }

    fn is_over(&self) -> bool {
        self.closed.load(Relaxed) || self.ended.as_ref().is_some_and(|e| e.load(Relaxed) == 1)
    }
}

fn unreachable(peer: &str) -> Error {
    Error::Lost(format!(
        "memory node {peer} does not answer: it is lost, or the way to it"
    ))
}

/// An endpoint of a host towards a node.
struct QueuePair {
    network: Network,
    peer: String,
    node: usize,
    host: usize,
    life: Life,
    broken: Arc<AtomicBool>,
    /// When the works in the queue are complete, as far as was known.
    queue: Mutex<BinaryHeap<Reverse<Nanos>>>,
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair(host {} to {})", self.host, self.peer)
    }
}

/// Works that a queue pair holds where the profile does not say. (Assumed.)
const DEPTH: usize = 128;

impl QueuePair {
    fn depth(&self) -> usize {
        self.network.0.profile.depth.unwrap_or(DEPTH)
    }

    /// When a work that is posted at `now` finds room in the queue.
    fn room(&self, now: Nanos) -> Nanos {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.peek().is_some_and(|first| first.0 <= now) {
            queue.pop();
        }
        match queue.len() >= self.depth() {
            true => queue.pop().map_or(now, |first| first.0),
            false => now,
        }
    }

    fn begin(&self, works: Vec<Work>, now: Nanos) -> u64 {
        let mut state = self.network.state();
        state.catch_up(now);
        state.counted += 1;
        let id = state.counted;
        let flights = works.into_iter().map(|w| OperationInFlight::new(w, now)).collect();
        state.batches.insert(
            id,
            Batch {
                node: self.node,
                host: self.host,
                life: self.life.clone(),
                dropped: false,
                broken: Arc::clone(&self.broken),
                works: flights,
            },
        );
        self.plan_all(&mut state, id, now);
        id
    }

    fn plan_all(&self, state: &mut State, id: u64, now: Nanos) {
        let broken = self.broken.load(Relaxed);
        for index in 0..state.batches[&id].works.len() {
            let flight = state.flight(id, index);
            let wrong = if broken {
                Some(unreachable(&self.peer))
            } else {
                flight.work.check().err()
            };
            match wrong {
                Some(error) => flight.finish(Err(error), now),
                None => {
                    let complete = state.plan(id, index, self.room(now), &self.network.0.profile);
                    let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.push(Reverse(complete));
                }
            }
        }
    }
}

impl Endpoint for QueuePair {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: self.depth(),
            transfer: 1 << 30,
        }
    }

    fn post(&self, works: Vec<Work>) -> Posted {
        if works.is_empty() {
            return Posted::done(works);
        }
        rt::spend(Nanos(self.network.0.profile.doorbell_ns as u64));
        let batch = self.begin(works, state::true_now());
        Posted::new(Box::new(Waiting {
            network: self.network.clone(),
            batch,
        }))
    }
}

/// A batch whose operations will be asked for, or not.
struct Waiting {
    network: Network,
    batch: u64,
}

impl Waiting {
    /// Whether all are complete; if not, when to look again.
    fn complete(&self) -> Result<(), Nanos> {
        let now = state::true_now();
        let mut state = self.network.state();
        state.catch_up(now);
        let batch = &state.batches[&self.batch];
        match batch.is_done() && batch.complete() <= now {
            true => Ok(()),
            false => Err(batch.complete().max(now + Nanos(1))),
        }
    }
}

impl InFlight for Waiting {
    fn poll(&mut self) -> bool {
        self.complete().is_ok()
    }

    fn wait(self: Box<Self>) -> Vec<Work> {
        while let Err(later) = self.complete() {
            self.network.wait_until(later);
        }
        let batch = self.network.state().batches.remove(&self.batch);
        batch.map_or(Vec::new(), |b| b.works.into_iter().map(|f| f.work).collect())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.network.state();
        if let Some(batch) = state.batches.get_mut(&self.batch) {
            batch.dropped = true;
            state.forget(self.batch);
        }
    }
}

impl OperationInFlight {
    fn new(work: Work, now: Nanos) -> Self {
        Self {
            work,
            resent: 0,
            complete: now,
            back: Nanos::ZERO,
            parts_left: 0,
            done: false,
        }
    }

    fn finish(&mut self, result: Result<u64>, complete: Nanos) {
        self.work.result = result;
        self.complete = complete;
        self.done = true;
    }
}

/// What a part of a work meets at the node's end.
enum Fate {
    Arrives,
    /// Is lost, and sent again at that time.
    Again(Nanos),
    /// Waits for the works before it, until that time at least.
    Held(Nanos),
    Fails(Error),
}

impl State {
    fn add_card(&mut self, name: &str, profile: &Profile) -> usize {
        let bandwidth = profile.host_port.bandwidth.or(profile.bandwidth);
        self.cards.push(Card::new(name, bandwidth, profile.operations));
        self.cards.len() - 1
    }

    fn card(&mut self, host: usize, profile: &Profile) -> Arc<Card> {
        let card = match self.of_host.get(&host) {
            Some(card) => *card,
            None => self.add_card(&format!("host {host}"), profile),
        };
        self.of_host.insert(host, card);
        Arc::clone(&self.cards[card])
    }

    fn flight(&mut self, batch: u64, index: usize) -> &mut OperationInFlight {
        let batch = self.batches.get_mut(&batch).expect("events go with their batch");
        &mut batch.works[index]
    }

    /// Sends a work at `now`: plans its arrival at the node; when it will be complete if all goes well.
    fn plan(&mut self, id: u64, index: usize, now: Nanos, profile: &Profile) -> Nanos {
        let (node, host) = (self.batches[&id].node, self.batches[&id].host);
        let (mine, theirs) = (self.card(host, profile), Arc::clone(&self.nodes[node].card));
        let start = self.after_fence(id, index, now);
        let work = &self.flight(id, index).work;
        let (bytes, alone) = (work.op.bytes(), alone(&work.op, profile));
        let way = match work.op {
            Op::Write(_) => [&mine.outbound, &theirs.inbound],
            _ => [&theirs.outbound, &mine.inbound],
        };
        let mut at = start + mine.operations.as_ref().map_or(Nanos::ZERO, |o| o.wait(start, 1));
        way.iter().for_each(|link| at += link.wait(at, bytes));
        let late = self.late();
        let back = Nanos(alone.0 / 2);
        let complete = at + late + alone;
        let flight = self.flight(id, index);
        (flight.back, flight.complete) = (back, complete);
        self.arrive(id, index, at + late, complete - back, bytes);
        complete
    }

    /// Not before all earlier works of its batch are complete, if it is fenced.
    fn after_fence(&mut self, id: u64, index: usize, now: Nanos) -> Nanos {
        let works = &self.batches[&id].works;
        let before = works[..index].iter().map(|f| f.complete).max();
        before.filter(|_| works[index].work.fenced).map_or(now, |b| b.max(now))
    }

    fn late(&mut self) -> Nanos {
        match self.faults.delay.0 {
            0 => Nanos::ZERO,
            most => Nanos(self.dice.below(most + 1)),
        }
    }

    /// Plans the events of a work that arrives at `to`; its parts at any time from `from` on, if they go their own
    /// ways.
    fn arrive(&mut self, batch: u64, index: usize, from: Nanos, to: Nanos, bytes: u64) {
        let parts = if self.faults.reorder { bytes.div_ceil(PACKET) } else { 1 };
        self.flight(batch, index).parts_left = parts as usize;
        for part in 0..parts {
            let (time, part) = match parts {
                1 => (to, 0..bytes),
                _ => {
                    let time = from + Nanos(self.dice.below(to.since(from).0 + 1));
                    (time, part * PACKET..((part + 1) * PACKET).min(bytes))
                }
            };
            self.counted += 1;
            self.events.insert((time, self.counted), Event { batch, index, part });
        }
    }

    /// Lets everything happen that was planned until `now`.
    fn catch_up(&mut self, now: Nanos) {
        while let Some(first) = self.events.first_entry().filter(|e| e.key().0 <= now) {
            let ((time, _), event) = first.remove_entry();
            let id = event.batch;
            if !self.is_wanted(&event) {
                continue;
            }
            match self.fate(&event, time) {
                Fate::Arrives => self.happen(event, time),
                Fate::Again(later) => self.put_off(event, later, 1),
                Fate::Held(later) => self.put_off(event, later, 0),
                Fate::Fails(error) => self.fail(&event, error, time),
            }
            self.forget(id);
        }
        self.catch_up_calls(now);
    }

    /// A work that has failed leaves parts behind.
    fn is_wanted(&self, event: &Event) -> bool {
        let batch = self.batches.get(&event.batch);
        batch.is_some_and(|b| !b.works[event.index].done)
    }

    fn fate(&mut self, event: &Event, time: Nanos) -> Fate {
        if let Some(fate) = self.held_by_fence(event, time) {
            return fate;
        }
        let batch = &self.batches[&event.batch];
        let (flight, node) = (&batch.works[event.index], &self.nodes[batch.node]);
        let severed = node.memory.is_lost() || self.cuts.contains(&(batch.host, batch.node));
        let lost = severed || event.part.start == 0 && self.dice.chance(self.faults.loss);
        if !lost {
            return Fate::Arrives;
        }
        if flight.resent < self.faults.resends {
            return Fate::Again(time + self.faults.resend);
        }
        if severed {
            batch.broken.store(true, Relaxed);
            return Fate::Fails(unreachable(node.memory.name()));
        }
        Fate::Fails(Error::Timeout(format!(
            "memory node {}: no answer in time",
            node.memory.name()
        )))
    }

    /// A fenced work whose predecessors are not done waits for them, and fails if one has failed.
    fn held_by_fence(&self, event: &Event, time: Nanos) -> Option<Fate> {
        let works = &self.batches[&event.batch].works;
        let before = &works[..event.index];
        if !works[event.index].work.fenced {
            return None;
        }
        if let Some(error) = before
            .iter()
            .filter(|f| f.done)
            .find_map(|f| f.work.result.clone().err())
        {
            return Some(Fate::Fails(error));
        }
        let latest = before.iter().filter(|f| !f.done).map(|f| f.complete).max()?;
        Some(Fate::Held(latest.max(time + Nanos(1))))
    }

    fn put_off(&mut self, event: Event, later: Nanos, resent: u32) {
        let flight = self.flight(event.batch, event.index);
        flight.resent += resent;
        flight.complete = flight.complete.max(later + flight.back);
        self.counted += 1;
        self.events.insert((later, self.counted), event);
    }

    fn fail(&mut self, event: &Event, error: Error, time: Nanos) {
        self.flight(event.batch, event.index).finish(Err(error), time);
    }

    /// A part of a work reaches the memory.
    fn happen(&mut self, event: Event, time: Nanos) {
        let whole = self.survives(&event);
        let answer_lost = self.dice.chance(self.faults.loss);
        let late = if answer_lost { self.faults.resend } else { Nanos::ZERO };
        let Some(part) = whole else {
            return self.fail(&event, Error::Lost("its sender has died".into()), time);
        };
        let batch = self.batches.get_mut(&event.batch).expect("events go with their batch");
        let flight = &mut batch.works[event.index];
        let result = self.nodes[batch.node].memory.carry_out_part(&mut flight.work, part);
        flight.parts_left -= 1;
        if flight.parts_left == 0 || result.is_err() {
            let complete = flight.complete.max(time + flight.back) + late;
            flight.finish(result, complete);
        }
    }

    /// What of a part is done: all; of a dead sender's, all, some or nothing.
    fn survives(&mut self, event: &Event) -> Option<Range<u64>> {
        let batch = &self.batches[&event.batch];
        let whole = event.part.clone();
        if !batch.life.is_over() {
            return Some(whole);
        }
        match (self.dice.below(3), &batch.works[event.index].work.op) {
            (0, _) => None,
            (1, Op::Write(_)) => {
                let some = self.dice.below(whole.end - whole.start + 1);
                Some(whole.start..whole.start + some)
            }
            _ => Some(whole),
        }
    }

    /// Drops a batch that is done and will not be asked for.
    fn forget(&mut self, id: u64) {
        let unasked = |b: &Batch| b.is_done() && (b.dropped || b.life.is_over());
        if self.batches.get(&id).is_some_and(unasked) {
            self.batches.remove(&id);
        }
    }
}

/// The published time of a transfer alone, without the doorbell, which the processor has spent.
fn alone(op: &Op, profile: &Profile) -> Nanos {
    let time = match op {
        Op::Write(bytes) => profile.write_time(bytes.len() as u64),
        _ => profile.read_time(op.bytes()),
    };
    Nanos((time - profile.doorbell_ns).max(1.0) as u64)
}
