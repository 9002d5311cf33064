//! Messages between simulated hosts: lost, late, out of order, twice, or not let through, by the seed.
//!
//! A process binds a [`Mailbox`] to an [`Address`] and sends to others'. A message costs what its size costs on the
//! way: the sender's link, then a latency. Without faults messages of one sender to one address arrive once and in
//! order; with them nothing is promised, and what needs more is built above. Binding an address anew drops what came
//! for the one before, as when a process is started again.
//!
//! Nothing here holds a lock at a preemption point, so a process may be killed anywhere.

use crate::link::{Counters, Link};
use crate::{clock, state};
use cenote_base::random::Random;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::Profile;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The host.
    pub host: usize,
    /// Which of its mailboxes.
    pub port: u16,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its sender.
    pub from: Address,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// What goes wrong with messages. Rates are probabilities of one message.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// It is lost.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is late by up to so much.
    pub delay: Nanos,
    /// A late one may be overtaken.
    pub reorder: bool,
}

impl Faults {
    /// All kinds, as strong as `seed` draws.
    pub fn random(seed: u64) -> Self {
        let mut dice = Random(seed);
        Self {
            loss: dice.pick(&[0.0, 0.0, 0.01, 0.2]),
            duplicate: dice.pick(&[0.0, 0.0, 0.01, 0.2]),
            delay: Nanos::from_micros(dice.pick(&[0, 10, 1000, 50_000])),
            reorder: dice.pick(&[false, true]),
        }
    }
}

/// The network. Clones are the same.
#[derive(Clone)]
pub struct Messages(Arc<Inner>);

struct Inner {
    profile: Profile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dice: Option<Random>,
    faults: Faults,
    boxes: BTreeMap<Address, Arc<Inbox>>,
    links: BTreeMap<usize, Arc<Link>>,
    /// Pairs, from and to, that do not hear each other.
    cuts: BTreeSet<(usize, usize)>,
    /// When the last message of a pair arrives: later ones do not overtake it.
    latest: BTreeMap<(Address, Address), Nanos>,
    sent: u64,
    lost: u64,
    queued: u64,
}

#[derive(Default)]
struct Inbox {
    /// By arrival, then by sending.
    messages: Mutex<BTreeMap<(Nanos, u64), Message>>,
    /// Moves on with each message: receivers wait on it.
    arrivals: AtomicU32,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Messages({} mailboxes)", self.state().boxes.len())
    }
}

impl Messages {
    /// With no mailbox. A message takes as long as a write of its size under `profile`.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let state = State {
            dice: Some(Random(seed)),
            ..State::default()
        };
        Self(Arc::new(Inner {
            profile: profile.clone(),
            state: Mutex::new(state),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mailbox at an address; one that was bound before gets nothing more.
    pub fn bind(&self, address: Address) -> Mailbox {
        let inbox = Arc::new(Inbox::default());
        self.state().boxes.insert(address, Arc::clone(&inbox));
        Mailbox {
            network: self.clone(),
            address,
            inbox,
        }
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// No host of one group hears one of the other.
    pub fn partition(&self, one: &[usize], other: &[usize]) {
        let mut state = self.state();
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            state.cuts.extend([(a, b), (b, a)]);
        }
    }

    /// Everyone hears everyone again.
    pub fn mend(&self) {
        self.state().cuts.clear();
    }

    /// Messages sent, and how many of them were lost.
    pub fn sent(&self) -> (u64, u64) {
        let state = self.state();
        (state.sent, state.lost)
    }

    /// What has left a host.
    pub fn counters(&self, host: usize) -> Counters {
        self.state()
            .links
            .get(&host)
            .map_or(Counters::default(), |l| l.counters())
    }

    fn send(&self, from: Address, to: Address, bytes: Vec<u8>) {
        let now = state::true_now();
        let arrived = self.state().deliver(&self.0.profile, now, from, to, bytes);
        // Outside of the lock: a preemption point.
        if let Some(inbox) = arrived {
            inbox.arrivals.fetch_add(1, Ordering::Release);
            rt::wake(&inbox.arrivals, usize::MAX);
        }
    }
}

impl State {
    /// Puts a message where it will arrive, or loses it.
    fn deliver(
        &mut self,
        profile: &Profile,
        now: Nanos,
        from: Address,
        to: Address,
        bytes: Vec<u8>,
    ) -> Option<Arc<Inbox>> {
        self.sent += 1;
        let waits = self.link(profile, from.host).wait(now, bytes.len() as u64);
        let arrival = now + waits + Nanos(profile.write_time(bytes.len() as u64) as u64);
        let faults = self.faults;
        let inbox = self.boxes.get(&to).cloned();
        let severed = self.cuts.contains(&(from.host, to.host)) || inbox.is_none();
        if severed || self.dice().chance(faults.loss) {
            self.lost += 1;
            return None;
        }
        let inbox = inbox?;
        for _ in 0..1 + u8::from(self.dice().chance(faults.duplicate)) {
            let time = self.arrival(from, to, arrival);
            self.queued += 1;
            let message = Message {
                from,
                bytes: bytes.clone(),
            };
            inbox.queue().insert((time, self.queued), message);
        }
        Some(inbox)
    }

    fn dice(&mut self) -> &mut Random {
        self.dice.as_mut().expect("a network is made with a seed")
    }

    fn link(&mut self, profile: &Profile, host: usize) -> &Link {
        let speed = profile.host_port.bandwidth.or(profile.bandwidth).unwrap_or(f64::MAX);
        let link = || Arc::new(Link::new(format!("host {host} messages"), speed));
        self.links.entry(host).or_insert_with(link)
    }

    /// When it arrives: late perhaps, and not before what was sent before it, unless that is allowed.
    fn arrival(&mut self, from: Address, to: Address, arrival: Nanos) -> Nanos {
        let most = self.faults.delay.0;
        let mut time = arrival + Nanos(if most == 0 { 0 } else { self.dice().below(most + 1) });
        if !self.faults.reorder {
            let latest = self.latest.entry((from, to)).or_default();
            *latest = time.max(*latest);
            time = *latest;
        }
        time
    }
}

impl Inbox {
    fn queue(&self) -> MutexGuard<'_, BTreeMap<(Nanos, u64), Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first message that has arrived; else when the next one will.
    fn take(&self, now: Nanos) -> Result<Message, Option<Nanos>> {
        let mut queue = self.queue();
        match queue.first_entry() {
            None => Err(None),
            Some(first) if first.key().0 > now => Err(Some(first.key().0)),
            Some(first) => Ok(first.remove()),
        }
    }
}

/// Where a process sends from, and receives.
#[derive(Clone)]
pub struct Mailbox {
    network: Messages,
    address: Address,
    inbox: Arc<Inbox>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({:?})", self.address)
    }
}

impl Mailbox {
    /// Its address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Sends; does not say whether it arrives.
    pub fn send(&self, to: Address, bytes: impl Into<Vec<u8>>) {
        self.network.send(self.address, to, bytes.into());
    }

    /// The next message; `None` when none has arrived in time.
    pub fn receive(&self, timeout: Option<Nanos>) -> Option<Message> {
        let end = timeout.map_or(Nanos::MAX, |t| state::true_now() + clock::world_span(t));
        loop {
            let seen = self.inbox.arrivals.load(Ordering::Acquire);
            let now = state::true_now();
            let next = match self.inbox.take(now) {
                Ok(message) => return Some(message),
                Err(next) => next.unwrap_or(Nanos::MAX).min(end),
            };
            if now >= end {
                return None;
            }
            let timeout = (next != Nanos::MAX).then(|| clock::host_span(next - now));
            rt::wait(&self.inbox.arrivals, seen, timeout);
        }
    }
}
