//! A part's host: serves users of other pods, and moves extents to where they are used (Rcmp, section 5.3).
//!
//! ```text
//!   calls ──► serve: accesses, fetches ─── at once                      policy: heat ─► offer ─► relocate
//!               │                                                          │
//!               ├ orders, allocations ──► worker: the steps of moves here  │
//!               └ relocations ──────────► executor ◄───────────────────────┘  the moves of this part's own extents, one after the other
//!
//!             resolver: migrated extents without news of their move ─► serve, at their homes
//! ```
//!
//! The order of waiting: policy → executors → workers → serve; resolver → serve. No thread waits the other way, so
//! hosts that order each other about do not wait in a circle. The threads are a [`Crew`]'s, each of one class; hosts of
//! a memory node share one.

mod crew;
mod gates;
mod hosts;
mod image;
mod obey;
mod orphans;
mod policy;
mod read_keys;
mod relocate;
mod replies;
mod settled;
mod step_state;
mod steps;
mod transfer;
mod window;

#[cfg(test)]
mod tests;

pub use crew::Crew;
pub use gates::Fencing;
pub use hosts::Hosts;

use super::GlobalAddress;
use super::far::Channel;
use super::far::wire::{self, Head};
use super::heat::{Heat, HeatOptions};
use super::keeper::{Keeper, SessionId};
use super::local::LocalKeeper;
use super::part::Part;
use super::presence::KEEPER;
use super::session::PartSession;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{Condvar, HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Call};
use crew::{Next, Task, Tasks};
use gates::{Gate, Gates};
use replies::{Replies, User};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use step_state::Steps;

/// Orders and allocations that wait at a time, and requests.
const WAITING_MAX: usize = 4096;
/// Bytes of the name of a user's pod.
const POD_MAX: usize = 256;
/// The most that a question may take that its host answers at once.
const WHERE_TIMEOUT: Nanos = Nanos::from_secs(2);

/// What a host is told.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Its pod.
    pub pod: String,
    /// What users of the space are known by.
    pub key: u128,
    /// Whether users have to be members that were [admitted](Hosts::admit).
    pub members_only: bool,
    /// What makes an extent hot.
    pub heat: HeatOptions,
    /// An extent moves when it is so much hotter elsewhere. 1 and more.
    pub margin: f64,
    /// Between two looks at what is hot; zero: nothing moves by itself.
    pub every: Nanos,
    /// Extents that leave at each look, at most.
    pub moves: usize,
    /// An extent that has come stays so long.
    pub stay: Nanos,
    /// Free slots that migrated extents leave alone.
    pub kept: usize,
    /// Threads of each class, where hosts share a [`Crew`]; 0: as many as there are cores, two at least.
    pub threads: usize,
    /// How long another host may take for what it is ordered to do. For a migrated extent that has waited half as long
    /// the resolver asks its home.
    pub timeout: Nanos,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            pod: String::new(),
            key: 0,
            members_only: false,
            heat: HeatOptions::default(),
            margin: 2.0,
            every: Nanos::from_millis(200),
            moves: 16,
            stay: Nanos::from_secs(1),
            kept: 0,
            threads: 0,
            timeout: Nanos::from_secs(10),
        }
    }
}

impl HostOptions {
    /// Threads of each class, where hosts share them.
    pub fn shared_threads(&self) -> usize {
        match self.threads {
            0 => cenote_base::rt::cores().max(2),
            threads => threads,
        }
    }
}

/// Another part of the space.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its pod.
    pub pod: String,
    /// The way to its host.
    pub channel: Arc<Channel>,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Extents that left this part's memory.
    pub left: u64,
    /// Extents that came.
    pub came: u64,
    /// Moves that failed, and were undone.
    pub failed: u64,
    /// Accesses served to users of other pods.
    pub served: u64,
}

#[derive(Default)]
struct Counters {
    left: AtomicU64,
    came: AtomicU64,
    failed: AtomicU64,
    served: AtomicU64,
}

/// What hosts order each other to do. Each is carried out once at most, and may be late: then its sender has gone on
/// without it. So what changes an extent names the migration epoch that it belongs to (`freeze`, drawn anew for each
/// move), and does nothing if that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Order {
    Freeze {
        extent: GlobalAddress,
        freeze: u64,
    },
    Thaw {
        extent: GlobalAddress,
        freeze: u64,
    },
    Receive {
        extent: GlobalAddress,
        state: u64,
        from: u8,
        freeze: u64,
    },
    Settle {
        extent: GlobalAddress,
        freeze: u64,
    },
    LetGo {
        extent: GlobalAddress,
        freeze: u64,
    },
    /// Where does it lie, which is yours?
    Where {
        extent: GlobalAddress,
    },
    /// Move it, which is yours, to that part.
    Relocate {
        extent: GlobalAddress,
        to: u8,
    },
    /// End it, which is yours, if it holds nothing.
    Reclaim {
        extent: GlobalAddress,
    },
    /// Its home is gone for good. I have it frozen in this epoch: do not use it, if it has come to you in that and was
    /// not used yet.
    GiveUp {
        extent: GlobalAddress,
        freeze: Option<u64>,
    },
    /// Its home is gone for good. I have it frozen in this epoch, or it has come to me in that and was not used yet:
    /// what do you have of it?
    Have {
        extent: GlobalAddress,
        freeze: Option<u64>,
    },
    /// Would you have it, of so much heat to your pod?
    Offer {
        heat: f64,
    },
    /// These members are fenced: nothing of them is to land in your memory any more.
    Fence {
        members: Vec<u128>,
    },
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Ordered {
    Done,
    Frozen {
        state: u64,
        is_empty: bool,
    },
    Slot(u32),
    /// It lies in that slot of that part.
    At {
        part: u8,
        slot: u32,
    },
    /// It is on its way.
    Moving,
    /// There is no such extent any more, or not here.
    Gone,
    /// It is used here.
    InUse,
    /// It has come here in that epoch, and was not used yet.
    NotUsed,
    Welcome,
    /// If that one goes, which has so much.
    Instead {
        victim: GlobalAddress,
        heat: f64,
    },
    Unwelcome,
}

/// Makes a key for a user's card: the answer.
type WindowRequest = Box<dyn FnOnce(&HostState) -> Result<Vec<u8>> + Send>;

/// What the worker does.
enum Job {
    Order(Order, Answer),
    Alloc(Vec<u8>, Option<Arc<Gate>>, Answer),
    Window(WindowRequest, Answer),
}

impl Job {
    fn fail(self, error: Error) {
        let (Job::Order(_, answer) | Job::Alloc(_, _, answer) | Job::Window(_, answer)) = self;
        answer.fail(error);
    }
}

/// A move that is wanted: of which extent, and where to; or its end.
struct MoveRequest {
    extent: GlobalAddress,
    to: Option<u8>,
    told: Told,
}

/// What gets the result of a request.
enum Told {
    Answer(Answer),
    Here(Arc<Outcomes>),
}

/// The end of a request, for a thread of this process.
#[derive(Default)]
struct Outcomes {
    outcome: Mutex<Option<Result<()>>>,
    set: Condvar,
}

#[cfg(test)]
fn told_here() -> (Arc<Outcomes>, Told) {
    let outcomes = Arc::new(Outcomes::default());
    (Arc::clone(&outcomes), Told::Here(outcomes))
}

/// A queue that a thread works off. An item for which there is no room goes back to its caller.
struct Queue<T> {
    items: Mutex<VecDeque<T>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            items: Mutex::new(VecDeque::new()),
        }
    }
}

impl<T> Queue<T> {
    fn add(&self, item: T) -> core::result::Result<(), T> {
        let mut items = self.items.lock();
        if items.len() >= WAITING_MAX {
            return Err(item);
        }
        items.push_back(item);
        assert!(items.len() <= WAITING_MAX, "{} items wait in a queue", items.len());
        Ok(())
    }

    /// The next item, and when there is another.
    fn take(&self) -> (Option<T>, Next) {
        let mut items = self.items.lock();
        let item = items.pop_front();
        let next = if items.is_empty() { Next::Told } else { Next::Now };
        (item, next)
    }
}

/// A part's host. Dropping it ends what its threads do for it.
pub struct Host {
    inner: Arc<HostState>,
    /// Its threads.
    _crew: Arc<Crew>,
}

/// Heat of extents in other pods: by slot, then by pod.
type FarHeats = HashMap<u32, BTreeMap<String, Heat>>;

struct HostState {
    /// At its crew, which is one tenant's, and of which this is the host.
    number: u64,
    tenant: u32,
    crew: Arc<crew::Shared>,
    me: Weak<HostState>,
    part: Arc<Part>,
    keeper: Arc<LocalKeeper>,
    options: HostOptions,
    peers: Mutex<BTreeMap<u8, Peer>>,
    /// Parts that the space had, and that are gone for good.
    gone: Mutex<BTreeSet<u8>>,
    /// Other parts to which the way is not known: nothing is decided without them. Lock order: peers, then this.
    unreached: Mutex<BTreeSet<u8>>,
    /// Sessions of users that do not map the part.
    part_sessions: Mutex<BTreeMap<SessionId, PartSession>>,
    /// Accesses of other pods, by slot.
    far: Mutex<FarHeats>,
    /// Accesses from here, by slot, and when the extent came.
    near: Mutex<Vec<Near>>,
    /// Held for each change of what lies here, so that an epoch is compared and its extent changed at once. Lock order:
    /// steps, then frozen or the keeper.
    steps: Mutex<Steps>,
    /// Extents that are frozen here, and in which epoch. Held while a piece of one is read: a thaw takes the extent out
    /// first.
    frozen: Mutex<BTreeMap<GlobalAddress, u64>>,
    /// What its users have had done.
    replies: Replies,
    /// Of the members of its node.
    gates: OnceLock<Arc<Gates>>,
    /// The extent that is being moved.
    under_way: Mutex<Option<GlobalAddress>>,
    work: Queue<Job>,
    move_requests: Queue<MoveRequest>,
    counters: Counters,
    /// When the policy looked.
    looks: policy::Looks,
    /// What probes are answered with.
    probe: Arc<[u8]>,
    /// What users' cards may read.
    offer: Mutex<Option<Arc<read_keys::Offer>>>,
    /// Answers that wait until what they say is in the part's mirror.
    unsettled: Mutex<Vec<Answer>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy, Default)]
struct Near {
    heat: Heat,
    since: Nanos,
}

impl Host {
    /// Begins to host a part that this process keeps, with a thread of each class of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its extents cannot move; those of starting threads.
    pub fn start(keeper: Arc<LocalKeeper>, options: HostOptions) -> Result<Self> {
        Self::start_with(keeper, options, Arc::new(Crew::new(1)?))
    }

    /// As [`Host::start`], with threads that it shares with others.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its extents cannot move.
    pub fn start_with(keeper: Arc<LocalKeeper>, options: HostOptions, crew: Arc<Crew>) -> Result<Self> {
        let part = Arc::clone(keeper.part());
        if !part.is_movable() {
            return Err(Error::Invalid(format!("{}: its extents cannot move", part.name())));
        }
        let slots = part.slots() as usize;
        let inner = Arc::new_cyclic(|me| HostState {
            number: crew.shared.next_number(),
            tenant: part.tenant(),
            crew: Arc::clone(&crew.shared),
            me: Weak::clone(me),
            part,
            keeper,
            options,
            peers: Mutex::default(),
            gone: Mutex::default(),
            unreached: Mutex::default(),
            part_sessions: Mutex::default(),
            far: Mutex::default(),
            near: Mutex::new(vec![Near::default(); slots]),
            steps: Mutex::default(),
            frozen: Mutex::default(),
            replies: Replies::default(),
            gates: OnceLock::new(),
            under_way: Mutex::new(None),
            work: Queue::default(),
            move_requests: Queue::default(),
            counters: Counters::default(),
            looks: policy::Looks::default(),
            probe: transfer::probe_bytes(),
            offer: Mutex::new(None),
            unsettled: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        inner.begin();
        Ok(Self { inner, _crew: crew })
    }

    /// Its part.
    pub fn part(&self) -> &Arc<Part> {
        &self.inner.part
    }

    /// Its part's keeper.
    pub fn keeper(&self) -> &Arc<LocalKeeper> {
        &self.inner.keeper
    }

    /// Another part of the space, and the way to its host; or another way to one that is known.
    pub fn set_peer(&self, part: u8, peer: Peer) {
        self.inner.peers.lock().insert(part, peer);
    }

    /// All other parts of the space, and the ways to their hosts, and those to which the way is not known. They replace
    /// what was known before.
    pub fn set_peers(&self, peers: BTreeMap<u8, Peer>, unreached: BTreeSet<u8>) {
        let mut known = self.inner.peers.lock();
        *self.inner.unreached.lock() = unreached;
        *known = peers;
    }

    /// Other parts of the space to which the way is not known, as [`Host::set_peers`] was told.
    pub fn unreached(&self) -> BTreeSet<u8> {
        self.inner.unreached.lock().clone()
    }

    /// The parts that are gone for good, with what lay there: the host waits for them no more. What they had lent to
    /// others stays where it is in use.
    pub fn set_gone(&self, parts: BTreeSet<u8>) {
        *self.inner.gone.lock() = parts;
    }

    /// Whether a part is gone for good, as far as that was told.
    pub fn is_gone(&self, part: u8) -> bool {
        self.inner.gone.lock().contains(&part)
    }

    /// What is known of another part.
    pub fn peer(&self, part: u8) -> Option<Peer> {
        self.inner.peers.lock().get(&part).cloned()
    }

    /// Processes of these marks ([`Part::join_marked`]) are gone: none of their threads is in the middle of an access.
    pub fn give_up(&self, is_gone: impl Fn(u64) -> bool) {
        if let Some(moving) = self.inner.part.moving() {
            let is_gone = |mark| mark != KEEPER && is_gone(mark);
            moving.presence.give_up(is_gone);
        }
    }

    /// Moves an extent of this part to another part of the space, and waits for it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no slab of this part; [`Error::Full`], [`Error::Busy`], [`Error::Lost`]: then it
    /// stays where it is, or is known there only.
    pub fn relocate(&self, extent: GlobalAddress, to: u8) -> Result<()> {
        self.inner.requested(extent, Some(to))
    }

    /// Tells the host of another part that members are fenced; returns when nothing of them can land there any more.
    ///
    /// # Errors
    /// [`Error::Busy`] if that is not so yet; those of the way there.
    pub fn fence_at(&self, part: u8, members: Vec<u128>) -> Result<()> {
        self.inner.order(part, &Order::Fence { members }).map(drop)
    }

    /// What happened so far.
    pub fn moved(&self) -> Moved {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.inner.counters;
        Moved {
            left: of(&counters.left),
            came: of(&counters.came),
            failed: of(&counters.failed),
            served: of(&counters.served),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        self.inner.crew.leave(self.inner.number);
        self.inner.refuse_all();
        self.withdraw().ok();
    }
}

impl Tasks for HostState {
    fn number(&self) -> u64 {
        self.number
    }

    fn tenant(&self) -> u32 {
        self.tenant
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, task: Task) -> Next {
        match task {
            Task::Work => self.work(),
            Task::Execute => self.execute_request(),
            Task::Watch => self.watch(),
            Task::Resolve => {
                self.resolve();
                self.clear_sessions();
                Next::At(self.next_question())
            }
        }
    }
}

impl HostState {
    /// Space and part.
    fn place_in_pool(&self) -> (u128, u8) {
        (self.part.space(), self.part.number())
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether its part's users are answered here.
    fn is_served(&self) -> bool {
        !self.is_stopping() && self.part.is_served()
    }

    /// There is something to do at that time.
    fn tell(&self, task: Task, when: Nanos) {
        if let Some(me) = self.me.upgrade() {
            self.crew.tell(task, &(me as Arc<dyn Tasks>), when);
        }
    }

    /// What has to be done again and again begins.
    fn begin(&self) {
        self.tell(Task::Watch, self.first_look());
        self.tell(Task::Resolve, self.next_question());
    }

    /// What has come by a call of a user. Does not block.
    fn serve(self: &Arc<Self>, (user, pod, gate): (&User, &str, Option<&Arc<Gate>>), request: &[u8], answer: Answer) {
        match wire::split(request) {
            Ok((head, rest)) if head.number != 0 => self.serve_once((user, pod), head, rest, answer),
            Ok((head, rest)) => match head.kind {
                wire::ACCESSES | wire::SEQUENCE => self.serve_accesses(pod, head, rest, answer),
                wire::PROBE => self.serve_probe(rest, answer),
                wire::FETCH => self.serve_fetch(rest, answer),
                wire::CARD_READS => self.serve_card_reads(pod, rest, answer),
                _ => self.serve_other(gate, request, (head.kind, rest), answer),
            },
            Err(error) => answer.fail(error),
        }
    }

    /// What must be done once: all at once, and its answer is remembered. So nothing of it is sent later.
    fn serve_once(&self, (user, pod): (&User, &str), head: Head, rest: &[u8], mut answer: Answer) {
        let connection = answer.caller();
        let work = |into: &mut Vec<u8>| match head.kind {
            wire::ACCESSES | wire::SEQUENCE => self.carry_out(pod, head, rest, 0, into).map(drop),
            wire::ROOT => self.serve_root(rest, into),
            _ => Err(Error::corrupt("a request of no kind that has a number")),
        };
        let asked = (head.number, head.is_again);
        match user.once(connection, asked, answer.bytes(), work) {
            Ok(()) => self.reply(answer),
            Err(error) => answer.fail(error),
        }
    }

    fn serve_other(&self, gate: Option<&Arc<Gate>>, request: &[u8], (kind, rest): (u8, &[u8]), mut answer: Answer) {
        match self.answer_other(kind, rest, answer.bytes()) {
            Ok(None) => self.reply(answer),
            Ok(Some(rest)) if rest.is_empty() => self.defer(request, answer),
            Ok(Some(rest)) => self.add_job(Job::Alloc(rest, gate.cloned(), answer)),
            Err(error) => answer.fail(error),
        }
    }

    /// What is answered at once; or what is to be done later: what is to be allocated, nothing for an order.
    fn answer_other(&self, kind: u8, rest: &[u8], answer: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        match kind {
            wire::ROOT => self.serve_root(rest, answer).map(|()| None),
            wire::ALLOC => Ok(Some(rest.to_vec())),
            wire::ORDER => self.take_order(wire::from_json(rest)?, answer),
            _ => Err(Error::corrupt("a request of no kind")),
        }
    }

    fn serve_root(&self, rest: &[u8], answer: &mut Vec<u8>) -> Result<()> {
        let change = wire::read_root(rest)?;
        let _step = self.part.step();
        match change {
            wire::RootChange::None => {}
            wire::RootChange::Set(address) => self.part.set_root(address),
            wire::RootChange::Swap(address, was) => self.part.swap_root(was, address),
        }
        answer.extend(self.part.root().load(Ordering::Acquire).to_le_bytes());
        Ok(())
    }

    /// Answers an order at once, if that takes no time: then there is nothing to defer.
    fn take_order(&self, order: Order, answer: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        let ordered = match order {
            Order::Where { extent } => self.place(extent)?,
            Order::Offer { heat } => self.consider(heat),
            _ => return Ok(Some(Vec::new())),
        };
        *answer = wire::json(0, &ordered)?;
        Ok(None)
    }

    fn defer(&self, request: &[u8], answer: Answer) {
        let order = wire::split(request).and_then(|(_, rest)| wire::from_json::<Order>(rest));
        match order {
            Ok(Order::Relocate { extent, to }) => self.add_request(extent, Some(to), Told::Answer(answer)),
            Ok(Order::Reclaim { extent }) => self.add_request(extent, None, Told::Answer(answer)),
            Ok(order) => self.add_job(Job::Order(order, answer)),
            Err(error) => answer.fail(error),
        }
    }

    fn add_job(&self, job: Job) {
        match self.work.add(job) {
            Ok(()) => self.tell(Task::Work, Nanos::ZERO),
            Err(job) => job.fail(Error::Busy(format!(
                "{WAITING_MAX} orders wait for {}",
                self.part.name()
            ))),
        }
    }

    /// The threads have ended: what waits for them gets an error.
    fn refuse_all(&self) {
        let stopping = || Error::Lost("the host is stopping".into());
        let unsettled = core::mem::take(&mut *self.unsettled.lock());
        unsettled.into_iter().for_each(|answer| answer.fail(stopping()));
        let jobs = core::mem::take(&mut *self.work.items.lock());
        jobs.into_iter().for_each(|job| job.fail(stopping()));
        let move_requests = core::mem::take(&mut *self.move_requests.items.lock());
        move_requests
            .into_iter()
            .for_each(|requested| relocate::tell(requested.told, Err(stopping())));
    }

    /// The worker: orders and allocations, one after the other.
    fn work(&self) -> Next {
        self.send_settled();
        let (job, next) = self.work.take();
        match job {
            Some(Job::Order(order, answer)) => match self.obey(&order).and_then(|ordered| wire::json(0, &ordered)) {
                Ok(bytes) => answer.with(&bytes),
                Err(error) => answer.fail(error),
            },
            Some(Job::Alloc(rest, gate, answer)) => match self.alloc_for(gate.as_deref(), &rest) {
                Ok(address) => {
                    let mut answer = answer;
                    answer.bytes().extend(address.raw().to_le_bytes());
                    self.reply(answer);
                }
                Err(error) => answer.fail(error),
            },
            Some(Job::Window(request, answer)) => match request(self) {
                Ok(bytes) => answer.with(&bytes),
                Err(error) => answer.fail(error),
            },
            None => {}
        }
        next
    }

    /// Drops the part sessions of sessions that have ended.
    fn clear_sessions(&self) {
        let is_alive = |session: &SessionId| self.keeper.is_alive(*session).unwrap_or(true);
        self.part_sessions.lock().retain(|session, _| is_alive(session));
    }

    /// Its member may have been fenced while this waited.
    fn alloc_for(&self, gate: Option<&Gate>, rest: &[u8]) -> Result<GlobalAddress> {
        let _inside = gate.map(Gate::enter).transpose()?;
        self.alloc(rest)
    }

    fn alloc(&self, rest: &[u8]) -> Result<GlobalAddress> {
        let (session, len, lifetime) = wire::read_alloc(rest)?;
        if len == 0 {
            return Err(Error::Invalid("an object has one byte at least".into()));
        }
        if !self.keeper.is_alive(session)? {
            self.part_sessions.lock().remove(&session);
            return Err(Error::Revoked(format!("session {} has ended", session.0)));
        }
        let keeper: Arc<dyn Keeper> = Arc::clone(&self.keeper) as _;
        let mut part_sessions = self.part_sessions.lock();
        let part_session = part_sessions.entry(session);
        let made = part_session
            .or_insert_with(|| PartSession::of(Arc::clone(&self.part), keeper, session))
            .alloc(len, lifetime)?;
        self.part.made_shared(made).map(|()| made)
    }

    fn channel(&self, part: u8) -> Result<Arc<Channel>> {
        let channel = self.peers.lock().get(&part).map(|peer| Arc::clone(&peer.channel));
        channel.ok_or_else(|| Error::Invalid(format!("the way to part {part} is not known")))
    }

    /// Whether a part can be told anything at all.
    fn check_way(&self, part: u8) -> Result<()> {
        match part == self.part.number() {
            true => Ok(()),
            false => self.channel(part).map(drop),
        }
    }

    /// Orders the host of a part, which may be this one.
    fn order(&self, part: u8, order: &Order) -> Result<Ordered> {
        if part == self.part.number() {
            return self.obey(order);
        }
        let channel = self.channel(part)?;
        let timeout = match order {
            // An order in turn, and its own ones before.
            Order::Relocate { .. } | Order::Reclaim { .. } => Nanos(self.options.timeout.raw() * 3),
            Order::Where { .. } | Order::Fence { .. } => self.options.timeout.min(WHERE_TIMEOUT),
            _ => self.options.timeout,
        };
        let call = Call::new(wire::json(wire::ORDER, order)?).within(timeout);
        wire::answered(&channel.ask_unless(call, || self.is_stopping())?)
    }
}
