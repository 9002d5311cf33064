//! Connections between simulated programs: [`cenote_fabric::message`] in virtual time, with cut ways, late messages and
//! programs that die.
//!
//! ```text
//!   Endpoint "node0"  ── connect("manager:5440") ──▶  Endpoint "manager"
//!        send ─► link of its host ─► the time of a write of that size ─► late? ─► receive
//! ```
//!
//! A program is reached by its [`Endpoint`]'s name, whichever process is behind it just now. What goes wrong:
//!
//! | fault | what is seen |
//! |---|---|
//! | cut, from one endpoint to another | what is sent, and what is under way, arrives after [`Net::mend`], in its order: late, and once. No connection is made meanwhile |
//! | a killed process | its connections end, when that can be heard: not through a cut. What it sent last arrives or not |
//! | [`Faults::delay`] | a message is late, and with it those after it |
//! | [`Faults::breaks`] | a connection ends with a message, which arrives or not |
//!
//! Invariants: of one direction messages arrive in order, and none after one that did not; the lock here is never held
//! at a preemption point.

use crate::link::Link;
use crate::runtime::RUNTIME;
use crate::{clock, state};
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos, Runtime};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener, MESSAGE_MAX, Network};
use cenote_fabric::profile::Profile;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes wrong with connections, beside cuts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// A message is late by up to so much.
    pub delay: Nanos,
    /// The probability that a message ends its connection.
    pub breaks: f64,
}

impl Faults {
    /// As strong as `seed` draws.
    pub fn random(seed: u64) -> Self {
        let mut dice = Random(seed);
        Self {
            delay: Nanos::from_micros(dice.pick(&[0, 100, 5_000, 200_000])),
            breaks: dice.pick(&[0.0, 0.0, 0.002, 0.02]),
        }
    }
}

/// Where ports begin that the system chooses.
const FIRST_PORT: u16 = 40_000;
/// Between two tries to reach an endpoint that is cut off.
const CONNECT_AGAIN: Nanos = Nanos::from_millis(100);
/// After a way was mended, it takes up to so long until what was held goes on.
const SEND_AGAIN: u64 = 200_000_000;

/// All programs, and the ways between them. Clones are the same.
#[derive(Clone)]
pub struct Net(Arc<Inner>);

struct Inner {
    profile: Profile,
    state: Mutex<State>,
}

struct State {
    dice: Random,
    faults: Faults,
    links: BTreeMap<usize, Link>,
    /// From whom to whom nothing comes.
    cuts: BTreeSet<(Arc<str>, Arc<str>)>,
    listeners: BTreeMap<String, Backlog>,
    connections: BTreeMap<u64, [Half; 2]>,
    /// Of the next connection, or listener.
    number: u64,
    port: u16,
}

/// A listener is there.
struct Backlog {
    number: u64,
    owner: Owner,
    /// Connections that are not accepted yet.
    come: VecDeque<u64>,
    word: Arc<AtomicU32>,
}

/// A program, in one of its lives.
#[derive(Clone)]
struct Owner {
    name: Arc<str>,
    host: usize,
    process: u32,
}

impl Owner {
    fn is_gone(&self) -> bool {
        state::is_running() && state::with(|s| s.has_ended(self.process))
    }
}

/// One side of a connection, and what comes to it.
struct Half {
    owner: Owner,
    /// The peer's name.
    from: Arc<str>,
    /// In the order of arrival; `None`: the end.
    items: VecDeque<(Nanos, Option<Vec<u8>>)>,
    /// When the last of them arrives, or has arrived.
    latest: Nanos,
    has_end: bool,
    /// It was closed here, or the end was met.
    closed: bool,
    /// Moves when something is another than before.
    word: Arc<AtomicU32>,
}

/// Held by a cut.
const NEVER: Nanos = Nanos::MAX;

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net({} connections)", self.lock().connections.len())
    }
}

/// A thread that waits for one of these looks again.
fn tell(words: impl IntoIterator<Item = Arc<AtomicU32>>) {
    for word in words {
        word.fetch_add(1, SeqCst);
        if state::is_running() {
            RUNTIME.wake(&word, usize::MAX);
        }
    }
}

impl Net {
    /// Without hosts. A message takes as long as a write of its size under `profile`.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let state = State {
            dice: Random(seed),
            faults: Faults::default(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            number: 0,
            port: FIRST_PORT,
        };
        Self(Arc::new(Inner {
            profile: profile.clone(),
            state: Mutex::new(state),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The network as a program of this name sees it, on a host.
    pub fn endpoint(&self, name: &str, host: usize) -> Arc<Endpoint> {
        Arc::new(Endpoint {
            net: self.clone(),
            name: name.into(),
            host,
        })
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Nothing comes from one program to another, until that is mended; the other way stays as it is.
    pub fn cut(&self, from: &str, to: &str) {
        let mut state = self.lock();
        state.cuts.insert((from.into(), to.into()));
        state.hold(&(from.into(), to.into()), clock::now());
    }

    /// What was held comes now, and what comes after it.
    pub fn mend(&self, from: &str, to: &str) {
        let words = {
            let mut state = self.lock();
            state.cuts.remove(&(from.into(), to.into()));
            state.release(&(from.into(), to.into()), clock::now())
        };
        tell(words);
    }

    /// As [`Net::mend`], all.
    pub fn mend_all(&self) {
        let cuts = self.lock().cuts.clone();
        cuts.iter().for_each(|(from, to)| self.mend(from, to));
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn is_cut(&self, from: &Arc<str>, to: &Arc<str>) -> bool {
        self.cuts.contains(&(Arc::clone(from), Arc::clone(to)))
    }

    /// What is on its way from one to another.
    fn between<'s>(
        connections: &'s mut BTreeMap<u64, [Half; 2]>,
        way: &'s (Arc<str>, Arc<str>),
    ) -> impl Iterator<Item = &'s mut Half> {
        let is_on_it = move |half: &&mut Half| half.from == way.0 && half.owner.name == way.1;
        connections.values_mut().flatten().filter(is_on_it)
    }

    fn hold(&mut self, way: &(Arc<str>, Arc<str>), now: Nanos) {
        for half in Self::between(&mut self.connections, way) {
            for (arrival, _) in half.items.iter_mut().filter(|(arrival, _)| *arrival > now) {
                *arrival = NEVER;
                half.latest = NEVER;
            }
        }
    }

    fn release(&mut self, way: &(Arc<str>, Arc<str>), now: Nanos) -> Vec<Arc<AtomicU32>> {
        let (dice, mut words) = (&mut self.dice, Vec::new());
        for half in Self::between(&mut self.connections, way).filter(|half| half.latest == NEVER) {
            half.latest = now + Nanos(dice.below(SEND_AGAIN));
            for (arrival, _) in half.items.iter_mut().filter(|(arrival, _)| *arrival == NEVER) {
                *arrival = half.latest;
            }
            words.push(Arc::clone(&half.word));
        }
        words
    }

    /// What a message takes on its way.
    fn takes(&mut self, profile: &Profile, host: usize, now: Nanos, bytes: usize) -> Nanos {
        let speed = profile.host_port.bandwidth.or(profile.bandwidth).unwrap_or(f64::MAX);
        let link = || Link::new(format!("host {host} connections"), speed);
        let waits = self.links.entry(host).or_insert_with(link).wait(now, bytes as u64);
        let late = match self.faults.delay.0 {
            0 => 0,
            most => self.dice.below(most + 1),
        };
        waits + Nanos(profile.write_time(bytes as u64) as u64 + late)
    }

    /// Puts something on the way to side `to` of a connection; and the thread to be told.
    fn put(&mut self, profile: &Profile, number: u64, to: usize, item: Option<Vec<u8>>) -> Option<Arc<AtomicU32>> {
        let [from, at] = {
            let halves = self.connections.get(&number)?;
            [halves[1 - to].owner.clone(), halves[to].owner.clone()]
        };
        let now = clock::now();
        let takes = self.takes(profile, from.host, now, item.as_ref().map_or(64, Vec::len));
        let is_cut = self.is_cut(&from.name, &at.name);
        let half = &mut self.connections.get_mut(&number)?[to];
        if half.has_end {
            return None;
        }
        half.has_end = item.is_none();
        half.latest = if is_cut { NEVER } else { half.latest.max(now + takes) };
        half.items.push_back((half.latest, item));
        Some(Arc::clone(&half.word))
    }

    /// What the death of a side's process does: the other one hears that it has ended, and perhaps not what it said
    /// last.
    fn bury(&mut self, profile: &Profile, number: u64) -> Vec<Arc<AtomicU32>> {
        let mut words = Vec::new();
        for dead in 0..2 {
            let Some(halves) = self.connections.get_mut(&number) else {
                return words;
            };
            let (is_gone, other) = (halves[dead].owner.is_gone(), &mut halves[1 - dead]);
            if !is_gone || other.has_end {
                continue;
            }
            if self.dice.below(2) == 0 {
                let now = clock::now();
                other.items.retain(|(arrival, _)| *arrival <= now);
            }
            halves[dead].closed = true;
            words.extend(self.put(profile, number, 1 - dead, None));
        }
        words
    }

    /// The side is not used any more.
    fn close(&mut self, profile: &Profile, number: u64, side: usize) -> Vec<Arc<AtomicU32>> {
        let Some(halves) = self.connections.get_mut(&number) else {
            return Vec::new();
        };
        halves[side].closed = true;
        let mut words = vec![Arc::clone(&halves[side].word)];
        words.extend(self.put(profile, number, 1 - side, None));
        self.forget(number);
        words
    }

    /// Forgets a connection that neither side uses.
    fn forget(&mut self, number: u64) {
        let is_over = |halves: &[Half; 2]| halves.iter().all(|half| half.closed);
        if self.connections.get(&number).is_some_and(is_over) {
            self.connections.remove(&number);
        }
    }

    /// Two halves of a new connection, from the first to the second; its number.
    fn join(&mut self, owners: [Owner; 2], now: Nanos) -> u64 {
        let number = self.next_number();
        let names = owners.clone().map(|owner| owner.name);
        let half = |owner: Owner, from: &Arc<str>| Half {
            owner,
            from: Arc::clone(from),
            items: VecDeque::new(),
            latest: now,
            has_end: false,
            closed: false,
            word: Arc::default(),
        };
        let [one, other] = owners;
        let halves = [half(one, &names[1]), half(other, &names[0])];
        for (side, half) in halves.iter().enumerate() {
            // A thread that waits for a message of the dead is woken.
            let peer = halves[1 - side].owner.process;
            state::with(|s| s.watch_end(peer, &half.word));
        }
        self.connections.insert(number, halves);
        number
    }

    fn word(&self, number: u64, side: usize) -> Arc<AtomicU32> {
        self.connections
            .get(&number)
            .map(|halves| Arc::clone(&halves[side].word))
            .unwrap_or_default()
    }
}

/// Name and port.
fn parse(address: &str) -> Result<(&str, u16)> {
    let parsed = address
        .rsplit_once(':')
        .and_then(|(name, port)| Some((name, port.parse().ok()?)));
    parsed
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| Error::Invalid(format!("\"{address}\" is no NAME:PORT")))
}

/// When the timeout of a program on the running host is over: it measures by its host's clock, messages come by the
/// world's.
fn end_of(timeout: Nanos) -> Nanos {
    Nanos(clock::now().raw().saturating_add(clock::world_span(timeout).raw()))
}

/// Waits until something of `word` is another than `seen`, or it is `until`.
fn wait(word: &AtomicU32, seen: u32, until: Nanos) {
    let timeout = (until != Nanos::MAX).then(|| clock::host_span(until.since(clock::now())));
    RUNTIME.wait(word, seen, timeout);
}

/// The network, as a program sees it.
pub struct Endpoint {
    net: Net,
    name: Arc<str>,
    host: usize,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.name)
    }
}

impl Endpoint {
    fn owner(&self) -> Owner {
        Owner {
            name: Arc::clone(&self.name),
            host: self.host,
            process: clock::process(),
        }
    }

    /// Whether messages go there and back: an endpoint that is cut off hears nothing.
    fn reaches(&self, name: &str) -> bool {
        let (state, name) = (self.net.lock(), name.into());
        !state.is_cut(&self.name, &name) && !state.is_cut(&name, &self.name)
    }

    /// Tries once.
    fn call(&self, address: &str) -> Result<Side> {
        let (number, words) = {
            let mut state = self.net.lock();
            let now = clock::now();
            let there = state.listeners.get(address).map(|backlog| backlog.owner.clone());
            let Some(there) = there.filter(|owner| !owner.is_gone()) else {
                return Err(Error::Lost(format!(
                    "no process answers at {address}: connection refused"
                )));
            };
            let number = state.join([self.owner(), there], now);
            let backlog = state.listeners.get_mut(address).expect("it was there just now");
            backlog.come.push_back(number);
            (number, vec![Arc::clone(&backlog.word)])
        };
        tell(words);
        Ok(Side::new(&self.net, number, 0, address.to_owned()))
    }
}

impl Network for Endpoint {
    fn listen(&self, address: &str) -> Result<Box<dyn Listener>> {
        rt::preempt();
        let (name, mut port) = parse(address)?;
        if *name != *self.name {
            return Err(Error::Invalid(format!("{address} is not an address of {}", self.name)));
        }
        let mut state = self.net.lock();
        if port == 0 {
            port = state.port;
            state.port += 1;
        }
        let address = format!("{name}:{port}");
        if state
            .listeners
            .get(&address)
            .is_some_and(|backlog| !backlog.owner.is_gone())
        {
            return Err(Error::Busy(format!("{address} is in use by another process")));
        }
        let (number, word) = (state.next_number(), Arc::<AtomicU32>::default());
        let backlog = Backlog {
            number,
            owner: self.owner(),
            come: VecDeque::new(),
            word: Arc::clone(&word),
        };
        state.listeners.insert(address.clone(), backlog);
        Ok(Box::new(Incoming {
            net: self.net.clone(),
            address,
            number,
            word,
        }))
    }

    fn connect(&self, address: &str, timeout: Nanos) -> Result<Arc<dyn Connection>> {
        let (name, _) = parse(address)?;
        let until = end_of(timeout);
        while !self.reaches(name) {
            let left = until.since(clock::now());
            if left == Nanos::ZERO {
                return Err(Error::Lost(format!(
                    "no process answers at {address}: connection timed out"
                )));
            }
            rt::sleep(clock::host_span(left.min(CONNECT_AGAIN)));
        }
        // There and back.
        let takes = self.net.lock().takes(&self.net.0.profile, self.host, clock::now(), 64);
        rt::sleep(clock::host_span(Nanos(2 * takes.raw())));
        Ok(Arc::new(self.call(address)?))
    }
}

/// The listener.
struct Incoming {
    net: Net,
    address: String,
    number: u64,
    word: Arc<AtomicU32>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({})", self.address)
    }
}

impl Incoming {
    fn take(&self) -> Option<Side> {
        let mut state = self.net.lock();
        let backlog = state
            .listeners
            .get_mut(&self.address)
            .filter(|backlog| backlog.number == self.number)?;
        let number = backlog.come.pop_front()?;
        let peer = state
            .connections
            .get(&number)
            .map_or_else(String::new, |halves| halves[0].owner.name.to_string());
        drop(state);
        Some(Side::new(&self.net, number, 1, peer))
    }
}

impl Listener for Incoming {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn accept(&self, timeout: Nanos) -> Result<Option<Arc<dyn Connection>>> {
        rt::preempt();
        let until = end_of(timeout);
        loop {
            let seen = self.word.load(SeqCst);
            if let Some(side) = self.take() {
                return Ok(Some(Arc::new(side)));
            }
            if clock::now() >= until {
                return Ok(None);
            }
            wait(&self.word, seen, until);
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let words: Vec<_> = {
            let mut state = self.net.lock();
            let is_ours = |backlog: &Backlog| backlog.number == self.number;
            if !state.listeners.get(&self.address).is_some_and(is_ours) {
                return;
            }
            let backlog = state.listeners.remove(&self.address);
            let come = backlog.map(|backlog| backlog.come).unwrap_or_default();
            let close = |number| state.close(&self.net.0.profile, number, 1);
            come.into_iter().flat_map(close).collect()
        };
        tell(words);
    }
}

/// A program's side of a connection. Dropping it ends the connection.
struct Side {
    net: Net,
    number: u64,
    side: usize,
    peer: String,
    word: Arc<AtomicU32>,
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Side({} of connection {})", self.side, self.number)
    }
}

/// What there is for the receiver.
enum Arrived {
    Message(Vec<u8>),
    Nothing(Nanos),
    End,
}

impl Side {
    fn new(net: &Net, number: u64, side: usize, peer: String) -> Self {
        Self {
            word: net.lock().word(number, side),
            net: net.clone(),
            number,
            side,
            peer,
        }
    }

    fn lost<T>(&self) -> Result<T> {
        Err(Error::Lost(format!("the connection with {} is lost", self.peer)))
    }

    fn take(&self) -> Arrived {
        let mut state = self.net.lock();
        // Threads that wait on the other side have heard of the death by themselves.
        state.bury(&self.net.0.profile, self.number);
        let Some(halves) = state.connections.get_mut(&self.number) else {
            return Arrived::End;
        };
        let half = &mut halves[self.side];
        if half.closed {
            return Arrived::End;
        }
        let next = half.items.front().map_or(NEVER, |(arrival, _)| *arrival);
        if next > clock::now() {
            return Arrived::Nothing(next);
        }
        match half.items.pop_front() {
            Some((_, Some(message))) => Arrived::Message(message),
            _ => {
                half.closed = true;
                state.forget(self.number);
                Arrived::End
            }
        }
    }

    /// Sends, or finds that the connection is over.
    fn put(&self, message: &[u8]) -> Option<Vec<Arc<AtomicU32>>> {
        let (mut state, profile) = (self.net.lock(), &self.net.0.profile);
        let mut words = state.bury(profile, self.number);
        let halves = state.connections.get(&self.number)?;
        let (own, now) = (&halves[self.side], clock::now());
        let has_ended = own
            .items
            .iter()
            .any(|(arrival, item)| item.is_none() && *arrival <= now);
        if own.closed || has_ended {
            return None;
        }
        if halves[1 - self.side].closed {
            // It goes where no receiver is; that the end is on its way is not known here.
            return Some(words);
        }
        let breaks = state.faults.breaks;
        let is_broken = state.dice.chance(breaks);
        if !is_broken || state.dice.below(2) == 0 {
            words.extend(state.put(profile, self.number, 1 - self.side, Some(message.to_vec())));
        }
        if is_broken {
            words.extend(state.put(profile, self.number, 0, None));
            words.extend(state.put(profile, self.number, 1, None));
        }
        Some(words)
    }
}

impl Connection for Side {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        rt::preempt();
        if message.len() > MESSAGE_MAX {
            return Err(Error::Invalid(format!("a message of {} bytes", message.len())));
        }
        match self.put(message) {
            Some(words) => {
                tell(words);
                Ok(())
            }
            None => self.lost(),
        }
    }

    fn receive(&self, timeout: Nanos) -> Result<Vec<u8>> {
        rt::preempt();
        let until = end_of(timeout);
        loop {
            let seen = self.word.load(SeqCst);
            let next = match self.take() {
                Arrived::Message(message) => return Ok(message),
                Arrived::End => return self.lost(),
                Arrived::Nothing(next) => next,
            };
            if clock::now() >= until {
                return Err(Error::Timeout(format!("{} has sent nothing in time", self.peer)));
            }
            wait(&self.word, seen, next.min(until));
        }
    }

    fn close(&self) {
        let words = self.net.lock().close(&self.net.0.profile, self.number, self.side);
        tell(words);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.close();
    }
}
