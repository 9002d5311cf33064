//! Peers that come over connections, any number of them, and a fixed number of threads that answer them.
//!
//! ```text
//!   accept ─► unknown ── hello ─► known ──┬── a request that waits for nobody ─► short ─► answered ─┐
//!                │                        ├── one that may wait ─────────────► long ──► answered ─┤
//!                │ silent for 5 s,        └── ◀── the connection tells when there is more ◀─────────┘
//!                │ or others want its place
//!                ▼
//!              closed
//! ```
//!
//! A connection that can tell when something has come needs no thread while it is idle. (One that cannot, as in the
//! simulator, has a thread of its own; what is said here of answers holds there, too.) Threads are of two classes:
//! *short* ones read messages and answer what waits for nobody (a lease is renewed there), *long* ones answer what may
//! wait for memory nodes, or for memory. So no number of clients that wait keeps a lease from being renewed.
//!
//! Invariants:
//! - a peer has one request under way at a time, and its next message is not read before that is answered;
//! - peers are answered in turn by tenant, not by connection, and a tenant has a quarter of a class's threads at most;
//! - [`Peers::leave`] is called once for each peer that was let in.

use crate::acceptor::{Place, Room};
use crate::limits::ServiceLimits;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

/// Between two looks whether to go on.
const TURN: Nanos = Nanos::from_millis(100);
/// Before what failed is tried again.
const AGAIN: Nanos = Nanos::from_secs(1);
/// How long a peer may take to say what it is.
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(5);
const IDLE: Nanos = Nanos::from_secs(10);
/// Of the threads of a class, a tenant has one in so many at most.
const SHARE_OF: usize = 4;
/// How peers that are not known yet share threads: as one tenant.
const UNKNOWN: &str = "";

/// What answers peers.
pub(crate) trait Peers: Send + Sync {
    /// What is known of a peer.
    type Peer: Send;

    /// A peer has said what it is. It is answered here.
    ///
    /// # Errors
    /// It is not let in; it was told why.
    fn greet(&self, hello: &[u8], visit: &Arc<Visit>) -> Result<Greeted<Self::Peer>>;

    /// Whether answering a request may wait for others.
    fn may_wait(&self, request: &[u8]) -> bool;

    /// Answers a request.
    ///
    /// # Errors
    /// The connection is over.
    fn answer(&self, peer: &mut Self::Peer, request: &[u8], visit: &Arc<Visit>) -> Result<()>;

    /// A peer's connection is over.
    fn leave(&self, peer: Self::Peer);
}

/// What becomes of a peer that has said hello.
pub(crate) enum Greeted<P> {
    Stays(P),
    /// It is served by a thread of its own.
    Thread(Box<dyn FnOnce() + Send>),
}

/// A connection that is there.
pub(crate) struct Visit {
    pub(crate) connection: Arc<dyn Connection>,
    pub(crate) place: Place,
    since: Nanos,
    /// Which tenant's share of threads it has.
    share: OnceLock<Arc<str>>,
    is_trusted: AtomicBool,
}

impl Visit {
    /// It shares threads as this tenant's.
    pub(crate) fn share_as(&self, tenant: &str) {
        self.share.get_or_init(|| tenant.into());
    }

    /// It has shown that it has a right to be there: it stays however long it is silent.
    pub(crate) fn trust(&self) {
        self.is_trusted.store(true, Ordering::Release);
    }

    pub(crate) fn shares_as(&self, tenant: &str) -> bool {
        self.share.get().is_some_and(|share| **share == *tenant)
    }

    fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Acquire)
    }

    fn share(&self) -> Arc<str> {
        self.share.get().map_or_else(|| UNKNOWN.into(), Arc::clone)
    }
}

/// See the module.
pub(crate) struct Service<P: Send + 'static> {
    shared: Arc<Shared<P>>,
    threads: Mutex<Vec<rt::JoinHandle<()>>>,
}

type DynPeers<P> = dyn Peers<Peer = P>;

struct Shared<P> {
    /// For messages.
    name: &'static str,
    peers: OnceLock<Weak<DynPeers<P>>>,
    room: Arc<Room>,
    limits: ServiceLimits,
    /// All connections, by the order in which they came; and those that are not trusted yet.
    visits: Mutex<BTreeMap<u64, Weak<Visit>>>,
    strangers: Mutex<BTreeMap<u64, Weak<Visit>>>,
    number: AtomicU64,
    short: Class<P>,
    long: Class<P>,
}

/// A conversation with a peer.
struct Talk<P> {
    number: u64,
    visit: Arc<Visit>,
    state: Mutex<State<P>>,
}

enum State<P> {
    Unknown,
    Known(P),
    Over,
}

/// Something has come; or a request that is to be answered.
struct Item<P> {
    talk: Arc<Talk<P>>,
    request: Option<Vec<u8>>,
}

struct Class<P> {
    line: Mutex<Line<P>>,
    more: Condvar,
}

/// Items by tenant, and whose turn it is.
struct Line<P> {
    turns: VecDeque<Arc<str>>,
    items: BTreeMap<Arc<str>, VecDeque<Item<P>>>,
    running: BTreeMap<Arc<str>, usize>,
    stop: bool,
}

impl<P: Send + 'static> Service<P> {
    pub(crate) fn new(name: &'static str, limits: ServiceLimits) -> Self {
        let shared = Shared {
            name,
            peers: OnceLock::new(),
            room: Arc::new(Room::new(limits.connections, limits.unknown)),
            limits,
            visits: Mutex::default(),
            strangers: Mutex::default(),
            number: AtomicU64::new(0),
            short: Class::default(),
            long: Class::default(),
        };
        Self {
            shared: Arc::new(shared),
            threads: Mutex::default(),
        }
    }

    /// Lets connections in until it is over.
    pub(crate) fn accept(&self, listener: &dyn Listener, peers: Weak<DynPeers<P>>, is_over: impl Fn() -> bool) {
        // Once for each service.
        self.shared.peers.set(peers).ok();
        let mut swept = rt::now();
        while !is_over() {
            match listener.accept(TURN) {
                Ok(Some(connection)) => self.let_in(connection),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("cenote: {}: {error}", self.shared.name);
                    rt::sleep(AGAIN);
                }
            }
            if rt::now().since(swept) > TURN {
                swept = rt::now();
                self.shared.sweep(swept);
            }
        }
    }

    fn let_in(&self, connection: Arc<dyn Connection>) {
        let shared = &self.shared;
        let (place, are_many) = shared.room.place(&connection);
        if are_many {
            shared.evict(|visit| visit.share.get().is_none());
        }
        let tells = connection.tells();
        let talk = shared.begin(connection, place);
        match tells {
            true => self.start().map_or_else(|_| shared.end(&talk), |()| shared.arm(&talk)),
            false => shared.spawn(talk),
        }
    }

    /// Its threads begin with the first connection that needs them.
    fn start(&self) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        let ServiceLimits { short, long, .. } = self.shared.limits;
        for n in 0..short + long {
            let shared = Arc::clone(&self.shared);
            let body = move || shared.run(if n < short { &shared.short } else { &shared.long });
            threads.push(rt::try_spawn("pool service", body)?);
        }
        Ok(())
    }

    /// Lets the one go that came first, of those that have not shown a right to be there and fit.
    pub(crate) fn evict(&self, fits: impl Fn(&Visit) -> bool) {
        self.shared.evict(fits);
    }

    /// Ends all connections that there are.
    pub(crate) fn close_connections(&self) {
        let visits: Vec<_> = self.shared.visits.lock().values().cloned().collect();
        let there = visits.iter().filter_map(Weak::upgrade);
        there.for_each(|visit| visit.connection.close());
    }

    /// Ends all connections, when no more come, and returns when nothing is done for any of them.
    pub(crate) fn close(&self) {
        while self.shared.room.count() > 0 {
            self.close_connections();
            rt::sleep(Nanos::from_millis(5));
        }
        for class in [&self.shared.short, &self.shared.long] {
            class.line.lock().stop = true;
            class.more.notify_all();
        }
        let threads = core::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| _ = thread.join());
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.shared.room.count()
    }
}

impl<P: Send + 'static> Shared<P> {
    // ---- coming and going ----

    fn begin(&self, connection: Arc<dyn Connection>, place: Place) -> Arc<Talk<P>> {
        let visit = Arc::new(Visit {
            connection,
            place,
            since: rt::now(),
            share: OnceLock::new(),
            is_trusted: AtomicBool::new(false),
        });
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.visits.lock().insert(number, Arc::downgrade(&visit));
        self.strangers.lock().insert(number, Arc::downgrade(&visit));
        Arc::new(Talk {
            number,
            visit,
            state: Mutex::new(State::Unknown),
        })
    }

    /// Those that have not shown a right to be there go in time.
    fn sweep(&self, now: Nanos) {
        let mut strangers = self.strangers.lock();
        strangers.retain(|_, visit| match visit.upgrade() {
            Some(visit) if !visit.is_trusted() => {
                let is_late = now.since(visit.since) > HELLO_TIMEOUT;
                if is_late {
                    visit.connection.close();
                }
                !is_late
            }
            _ => false,
        });
    }

    fn evict(&self, fits: impl Fn(&Visit) -> bool) {
        let mut strangers = self.strangers.lock();
        let found = strangers.iter().find_map(|(number, visit)| {
            let visit = visit.upgrade().filter(|visit| !visit.is_trusted() && fits(visit))?;
            Some((*number, visit))
        });
        if let Some((number, visit)) = found {
            strangers.remove(&number);
            visit.connection.close();
        }
    }

    fn peers(&self) -> Option<Arc<DynPeers<P>>> {
        self.peers.get().and_then(Weak::upgrade)
    }

    fn end(&self, talk: &Talk<P>) {
        talk.visit.connection.close();
        let state = core::mem::replace(&mut *talk.state.lock(), State::Over);
        if let (State::Known(peer), Some(peers)) = (state, self.peers()) {
            peers.leave(peer);
        }
        self.visits.lock().remove(&talk.number);
        self.strangers.lock().remove(&talk.number);
    }

    // ---- connections that tell ----

    /// When something has come, a short thread looks.
    fn arm(self: &Arc<Self>, talk: &Arc<Talk<P>>) {
        let told = Told {
            shared: Arc::clone(self),
            talk: Arc::clone(talk),
        };
        talk.visit.connection.when_ready(Box::new(move || drop(told)));
    }

    fn run(self: &Arc<Self>, class: &Class<P>) {
        let threads = match core::ptr::eq(class, &self.short) {
            true => self.limits.short,
            false => self.limits.long,
        };
        while let Some((share, item)) = class.next((threads / SHARE_OF).max(1)) {
            let talk = Arc::clone(&item.talk);
            // Threads are few: one that an answer ended would be missed.
            if catch_unwind(AssertUnwindSafe(|| self.work(item))).is_err() {
                self.end(&talk);
            }
            class.done(&share);
        }
    }

    fn work(self: &Arc<Self>, Item { talk, request }: Item<P>) {
        let received = match request {
            Some(request) => return self.go_on(&talk, self.answer(&talk, &request)),
            None => talk.visit.connection.try_receive(),
        };
        match received {
            Ok(Some(message)) if self.may_wait(&talk, &message) => self.long.add(Item {
                talk,
                request: Some(message),
            }),
            Ok(Some(message)) => self.go_on(&talk, self.take(&talk, &message)),
            Ok(None) => self.arm(&talk),
            Err(_) => self.end(&talk),
        }
    }

    /// Whether there is more to come.
    fn go_on(self: &Arc<Self>, talk: &Arc<Talk<P>>, outcome: Result<bool>) {
        match outcome {
            Ok(true) => self.arm(talk),
            Ok(false) => {}
            Err(_) => self.end(talk),
        }
    }

    fn may_wait(&self, talk: &Talk<P>, message: &[u8]) -> bool {
        let is_known = matches!(*talk.state.lock(), State::Known(_));
        is_known && self.peers().is_some_and(|peers| peers.may_wait(message))
    }

    // ---- messages ----

    /// A hello or a request.
    fn take(self: &Arc<Self>, talk: &Arc<Talk<P>>, message: &[u8]) -> Result<bool> {
        let is_unknown = matches!(*talk.state.lock(), State::Unknown);
        match is_unknown {
            true => self.greet(talk, message),
            false => self.answer(talk, message),
        }
    }

    fn greet(self: &Arc<Self>, talk: &Arc<Talk<P>>, hello: &[u8]) -> Result<bool> {
        let peers = self.peers().ok_or_else(over)?;
        match peers.greet(hello, &talk.visit)? {
            Greeted::Stays(peer) => {
                *talk.state.lock() = State::Known(peer);
                Ok(true)
            }
            Greeted::Thread(serve) => {
                let (shared, talk) = (Arc::clone(self), Arc::clone(talk));
                let body = move || {
                    serve();
                    shared.end(&talk);
                };
                rt::try_spawn("pool connection", body).map_err(|error| Error::io("starting a thread", error))?;
                Ok(false)
            }
        }
    }

    fn answer(&self, talk: &Talk<P>, request: &[u8]) -> Result<bool> {
        let peers = self.peers().ok_or_else(over)?;
        match &mut *talk.state.lock() {
            State::Known(peer) => peers.answer(peer, request, &talk.visit).map(|()| true),
            State::Unknown | State::Over => Err(over()),
        }
    }

    // ---- connections that do not tell ----

    fn spawn(self: &Arc<Self>, talk: Arc<Talk<P>>) {
        let (shared, theirs) = (Arc::clone(self), Arc::clone(&talk));
        let spawned = rt::try_spawn("pool connection", move || shared.serve(&theirs));
        if spawned.is_err() {
            self.end(&talk);
        }
    }

    fn serve(self: &Arc<Self>, talk: &Arc<Talk<P>>) {
        loop {
            let taken = match talk.visit.connection.receive(TURN) {
                Ok(message) => self.take(talk, &message),
                Err(Error::Timeout(_)) => continue,
                Err(error) => Err(error),
            };
            match taken {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => return self.end(talk),
            }
        }
    }
}

fn over() -> Error {
    Error::Lost("it is over".into())
}

/// Dropped, by whom ever, it says that something has come.
struct Told<P: Send + 'static> {
    shared: Arc<Shared<P>>,
    talk: Arc<Talk<P>>,
}

impl<P: Send + 'static> Drop for Told<P> {
    fn drop(&mut self) {
        self.shared.short.add(Item {
            talk: Arc::clone(&self.talk),
            request: None,
        });
    }
}

impl<P> Default for Class<P> {
    fn default() -> Self {
        Self {
            line: Mutex::new(Line {
                turns: VecDeque::new(),
                items: BTreeMap::new(),
                running: BTreeMap::new(),
                stop: false,
            }),
            more: Condvar::default(),
        }
    }
}

impl<P> Class<P> {
    fn add(&self, item: Item<P>) {
        let share = item.talk.visit.share();
        let mut line = self.line.lock();
        let items = line.items.entry(Arc::clone(&share)).or_default();
        items.push_back(item);
        if items.len() == 1 {
            line.turns.push_back(share);
        }
        drop(line);
        self.more.notify_one();
    }

    /// The next item of the tenant whose turn it is, of those that have less than a share of threads.
    fn next(&self, share: usize) -> Option<(Arc<str>, Item<P>)> {
        let mut line = self.line.lock();
        loop {
            if line.stop {
                return None;
            }
            if let Some(next) = line.take(share) {
                return Some(next);
            }
            (line, _) = self.more.wait_timeout(line, IDLE);
        }
    }

    fn done(&self, share: &Arc<str>) {
        let mut line = self.line.lock();
        let left = line.running.get_mut(share).expect("a thread runs for it");
        *left -= 1;
        if *left == 0 {
            line.running.remove(share);
        }
    }
}

impl<P> Line<P> {
    fn take(&mut self, share: usize) -> Option<(Arc<str>, Item<P>)> {
        for _ in 0..self.turns.len() {
            let tenant = self.turns.pop_front()?;
            if self.running.get(&tenant).is_some_and(|threads| *threads >= share) {
                self.turns.push_back(tenant);
                continue;
            }
            let items = self.items.get_mut(&tenant)?;
            let item = items.pop_front()?;
            match items.is_empty() {
                true => _ = self.items.remove(&tenant),
                false => self.turns.push_back(Arc::clone(&tenant)),
            }
            *self.running.entry(Arc::clone(&tenant)).or_default() += 1;
            return Some((tenant, item));
        }
        None
    }
}

#[cfg(test)]
mod tests;
