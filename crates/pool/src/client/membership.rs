//! This process as a member of a space at one memory node: one connection, made again when it breaks, and signs of life
//! over it. What is asked often goes over a ring, where the node has given it a seat at one; what that does not answer
//! is asked over the connection.
//!
//! Invariants:
//! - nothing that others do can keep it from its signs of life for as long as a lease: above all not a manager that
//!   hangs, which it asks for the node's address;
//! - what has begun at the node and has not ended is said again with each hello, as the node may be another process
//!   since;
//! - it ends when nothing that this process has given up can be done any more, wherever that was asked for: its locks
//!   are others' then;
//! - fenced at one node is fenced at all: [`Standing`];
//! - it ends with a word to the node, however long that takes. Unsaid, the node would end this process for its silence,
//!   whatever it does by then.

use super::connection::Pool;
use super::standing::Standing;
use crate::grant_table::{NodeId, SpaceId};
use crate::host::Process;
use crate::key::Key;
use crate::member::{MemberHello, MemberReply, MemberRequest, MemberWelcome, RingSeat};
use crate::wire::{self, Failure, PartView, SpaceView, VERSION};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use cenote_fabric::rdma::call::{Call, Caller, LIMIT};
use cenote_fabric::ring::{User, UserOptions};
use cenote_space::{Pass, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(2);
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Between two tries to reach a memory node.
pub(super) const RETRY: Nanos = Nanos::from_millis(50);
/// Of a lease, how much passes between two signs of life.
const PINGS: u64 = 4;
/// Between two questions to the manager where a memory node is that does not answer, and how long the answer may take,
/// unless a lease is short: so many of either are in one, as a member that comes to another node later has lost all.
const FIND_AGAIN: Nanos = Nanos::from_secs(1);
const FIND_TIMEOUT: Nanos = Nanos::from_secs(2);
const FINDS: u64 = 8;
const FIND_TIMEOUT_MIN: Nanos = Nanos::from_millis(100);
/// How long a memory node is told again and again that a member leaves, and how often.
const LEAVE_TIMEOUT: Nanos = Nanos::from_secs(600);
const LEAVE_AGAIN: Nanos = Nanos::from_millis(500);

/// Where a process runs that maps nothing of a node's.
const NO_MACHINE: u64 = 0;

const _: () = assert!(PINGS > 1, "a node hears a member several times in a lease");
const _: () = assert!(
    FINDS >= 8,
    "a question, its answer, and the next of each, take half of a lease at most"
);
const _: () = assert!(
    FIND_TIMEOUT_MIN.0 <= FIND_TIMEOUT.0,
    "the time to find a node lies between these"
);

/// This process as a member of a space at one memory node. Dropping it ends that.
pub(super) struct Membership(Arc<Shared>);

/// Told of the node that does not keep this process's parts any more.
pub(super) type OnMoved = Box<dyn Fn(NodeId) + Send + Sync>;

struct Shared {
    pool: Arc<Pool>,
    /// The space's.
    name: String,
    node: NodeId,
    space: SpaceId,
    key: Key,
    standing: Arc<Standing>,
    /// What asks by it; told when another node keeps its parts.
    on_moved: OnMoved,
    /// It maps parts there. Otherwise its process is no matter of the node's, which may not see it.
    maps: bool,
    /// Another node keeps its parts.
    moved: AtomicBool,
    link: Mutex<Link>,
    /// Its seat, as long as that connection lasts.
    ring: Mutex<Option<Arc<dyn Caller>>>,
    /// It has lost its seat: the connection is to be made anew, as another seat comes with a hello.
    wants_ring: AtomicBool,
    /// In nanoseconds.
    lease: AtomicU64,
    /// What its calls are known by there.
    epoch: AtomicU64,
    stop: Event,
}

/// The way to the node.
struct Link {
    address: String,
    /// What it uses there.
    parts: BTreeSet<u8>,
    connection: Option<Arc<dyn Connection>>,
    /// What has begun there, and not ended; of each, whether its end was asked for.
    sessions: BTreeMap<(u8, SessionId), bool>,
    /// When the manager may be asked again where the node is.
    find_at: Nanos,
}

impl Membership {
    /// Begins to be one at the node of `part`, which listens at `address`.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Mismatch`] (it is not let in), [`Error::Lost`]; those of threads.
    pub(super) fn begin(
        (pool, name): (&Arc<Pool>, &str),
        view: &SpaceView,
        part: &PartView,
        address: &str,
        standing: &Arc<Standing>,
        on_moved: OnMoved,
    ) -> Result<Self> {
        let at_node = view.parts.iter().filter(|other| other.node == part.node);
        let shared = Arc::new(Shared {
            pool: Arc::clone(pool),
            name: name.into(),
            node: part.node,
            space: view.id,
            key: view.key,
            standing: Arc::clone(standing),
            on_moved,
            maps: pool.is_near(part),
            moved: AtomicBool::new(false),
            link: Mutex::new(Link {
                parts: at_node.map(|other| other.number).collect(),
                address: address.into(),
                connection: None,
                sessions: BTreeMap::new(),
                find_at: Nanos::ZERO,
            }),
            ring: Mutex::new(None),
            wants_ring: AtomicBool::new(false),
            lease: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            stop: Event::default(),
        });
        shared.ask(&MemberRequest::Ping, &mut 0)?;
        let theirs = Arc::clone(&shared);
        rt::try_spawn("pool member", move || theirs.keep()).map_err(|error| Error::io("starting a thread", error))?;
        Ok(Self(shared))
    }

    /// Asks the node, and counts how often the question was sent.
    ///
    /// # Errors
    /// Those of the node; [`Error::Revoked`] if it is no member any more; [`Error::Lost`] if the node was away for too
    /// long.
    pub(super) fn ask(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        self.0.ask(request, tries)
    }

    /// After how long a silence its node fences it.
    pub(super) fn lease(&self) -> Nanos {
        Nanos(self.0.lease.load(Ordering::Acquire))
    }

    /// Of which node.
    pub(super) fn node(&self) -> NodeId {
        self.0.node
    }

    /// Whether another node keeps what this one did.
    pub(super) fn has_moved(&self) -> bool {
        self.0.moved.load(Ordering::Acquire)
    }

    /// Whether this process was fenced: at all nodes.
    pub(super) fn is_revoked(&self) -> bool {
        self.0.standing.is_revoked()
    }

    /// The manager says so.
    pub(super) fn set_moved(&self) {
        self.0.moved.store(true, Ordering::Release);
    }

    /// By which its node's hosts know it.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it was fenced.
    pub(super) fn pass(&self) -> Result<Pass> {
        self.0.pass()
    }

    /// Another pass, as that one was refused: the node has begun anew.
    ///
    /// # Errors
    /// As [`Membership::ask`].
    pub(super) fn renew(&self, refused: Pass) -> Result<Pass> {
        let member = &self.0;
        // Over another connection if need be: the answer to a hello says whether this process was fenced.
        for _ in 0..2 {
            match member.try_ask(&MemberRequest::Ping, &mut 0) {
                Ok(_) if member.pass()? != refused => break,
                Ok(_) | Err(Error::Revoked(_)) => member.end_connection(),
                Err(error) => return Err(error),
            }
        }
        member.pass()
    }

    /// What has begun in a part as another member is this one's from here on, and its node has heard it when this
    /// returns: before that the part's host would refuse it as ended. After an error it is to be done again.
    ///
    /// # Errors
    /// Those of the way to the node; [`Error::Revoked`] if some of it has ended.
    pub(super) fn take_over(&self, part: u8, from: &Self) -> Result<()> {
        let begun = from.0.link.lock().leave(part);
        let mut link = self.0.link.lock();
        link.parts.insert(part);
        link.sessions.extend(begun);
        if let Some(connection) = link.connection.take() {
            connection.close();
        }
        drop(link);
        self.0.ask_by_link(&MemberRequest::Ping, &mut 0).map(drop)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The thread says so to the node, and ends by itself: it may be the one that drops.
        self.0.stop.set();
    }
}

impl Shared {
    /// Says again and again that this process is there, and in the end that it needs nothing any more.
    fn keep(&self) {
        let mut silent = false;
        while !self
            .stop
            .wait_timeout(Nanos(self.lease.load(Ordering::Acquire) / PINGS))
        {
            if self.wants_ring.swap(false, Ordering::AcqRel) {
                self.end_connection();
            }
            match self.ask(&MemberRequest::Ping, &mut 0) {
                Ok(_) => silent = false,
                Err(Error::Revoked(_)) if self.standing.is_revoked() => return,
                Err(_) if self.moved.load(Ordering::Acquire) => (self.on_moved)(self.node),
                // Whether it is over, the answer to a hello tells.
                Err(Error::Revoked(_)) => self.end_connection(),
                Err(error) => {
                    if !silent {
                        eprintln!("cenote: space \"{}\": {error}; going on, and trying again", self.name);
                    }
                    silent = true;
                }
            }
        }
        if self.has_settled() {
            self.leave();
        }
        self.end_connection();
    }

    /// Waits until nothing that this process has given up can be done any more, in any part: what ends with a membership
    /// is others' then. If that does not come to be so, the node finds the member silent, and sees to it. Another
    /// thread waits for nodes that hang: this one goes on with its signs of life.
    fn has_settled(&self) -> bool {
        if self.standing.is_settled() {
            return true;
        }
        let (ended, over) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let (standing, theirs) = (Arc::clone(&self.standing), (Arc::clone(&ended), Arc::clone(&over)));
        let settle = move || {
            let has_settled = settle_until(&standing, &theirs.1);
            theirs.0.set();
            has_settled
        };
        let Ok(settling) = rt::try_spawn("pool settle", settle) else {
            return self.standing.settle().is_ok();
        };
        while !ended.wait_timeout(Nanos(self.lease.load(Ordering::Acquire) / PINGS)) {
            if matches!(self.try_ask(&MemberRequest::Ping, &mut 0), Err(Error::Revoked(_))) {
                over.set();
                return false;
            }
        }
        settling.join().unwrap_or(false)
    }

    /// Says to the node that this process needs nothing any more. A node that does not hear it would take it for
    /// silent, and end the process if that has opened the space again since: so it is said again, over another
    /// connection.
    fn leave(&self) {
        let until = rt::now() + LEAVE_TIMEOUT;
        loop {
            match self.try_ask(&MemberRequest::Leave, &mut 0) {
                Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_)) if rt::now() < until => rt::sleep(LEAVE_AGAIN),
                _ => return,
            }
        }
    }

    fn end_connection(&self) {
        if let Some(connection) = self.link.lock().connection.take() {
            connection.close();
        }
    }

    /// Asks, and counts how often the question was sent.
    fn ask(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        let answer = self.ask_patiently(request, tries);
        if let Err(error) = &answer
            && self.standing.is_to_be_told()
        {
            (self.pool.options.on_revoked)(error);
        }
        answer
    }

    /// Asks until there is an answer, over one connection after the other: a node that is away comes back.
    fn ask_patiently(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        let until = rt::now() + self.pool.options.timeout;
        loop {
            match self.try_ask(request, tries) {
                Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))
                    if rt::now() < until && !self.moved.load(Ordering::Acquire) => {}
                answer => return answer,
            }
            if self.stop.wait_timeout(RETRY) {
                return Err(Error::Lost(format!("space \"{}\" was closed", self.name)));
            }
        }
    }

    fn pass(&self) -> Result<Pass> {
        self.standing.check(&self.name)?;
        Ok(Pass {
            member: self.standing.member.0,
            epoch: self.epoch.load(Ordering::Acquire),
        })
    }

    fn try_ask(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        match self.ask_by_ring(request, tries) {
            Some(answer) => answer,
            None => self.ask_by_link(request, tries),
        }
    }

    /// Asks over the ring; `None` if there is none, or what it says is to be asked again over the connection, which
    /// knows better.
    fn ask_by_ring(&self, request: &MemberRequest, tries: &mut u32) -> Option<Result<MemberReply>> {
        if !request.is_for_ring() || self.standing.is_revoked() {
            return None;
        }
        let ring = self.seat()?;
        let question = serde_json::to_vec(request).ok().filter(|bytes| bytes.len() <= LIMIT)?;
        *tries += 1;
        let call = Call::new(question).within(ANSWER_TIMEOUT);
        let answer = ring.post(vec![call]).wait().pop()?.into_answer();
        let reply = answer.and_then(|bytes| {
            serde_json::from_slice(&bytes).map_err(|error| Error::corrupt(format!("an answer over the ring: {error}")))
        });
        match reply {
            Ok(MemberReply::Failed(failure)) => match Error::from(failure) {
                // Of this connection's member, or of one before.
                Error::Revoked(_) => None,
                error => Some(Err(error)),
            },
            Ok(reply) => Some(Ok(reply)),
            // It may be full, or slow; only one that is lost is given up.
            Err(Error::Lost(_)) => {
                self.lose(&ring);
                None
            }
            Err(_) => None,
        }
    }

    /// Its seat, unless that is over.
    fn seat(&self) -> Option<Arc<dyn Caller>> {
        let ring = self.ring.lock().clone()?;
        if ring.is_over() {
            self.lose(&ring);
            return None;
        }
        Some(ring)
    }

    fn lose(&self, ring: &Arc<dyn Caller>) {
        let lost = self.ring.lock().take_if(|known| Arc::ptr_eq(known, ring));
        if lost.is_some() {
            self.wants_ring.store(true, Ordering::Release);
        }
    }

    fn ask_by_link(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        let mut link = self.link.lock();
        self.standing.check(&self.name)?;
        link.begin_ending(request);
        let connection = match &link.connection {
            Some(connection) => Arc::clone(connection),
            None => self.connect(&mut link)?,
        };
        *tries += 1;
        match wire::call(&*connection, request, ANSWER_TIMEOUT) {
            Ok(MemberReply::Failed(failure)) => Err(failure.into()),
            Ok(reply) => {
                link.note(request, &reply);
                Ok(reply)
            }
            Err(error) => {
                link.connection = None;
                Err(Error::Lost(error.to_string()))
            }
        }
    }

    /// Begins, or comes back with what has begun before.
    fn connect(&self, link: &mut Link) -> Result<Arc<dyn Connection>> {
        assert!(
            link.connection.is_none(),
            "a member has one connection with its node at a time"
        );
        let connection = self.pool.network.connect(&link.address, CONNECT_TIMEOUT);
        let connection = connection.inspect_err(|_| self.find_again(link))?;
        let hello = MemberHello {
            version: VERSION,
            space: self.space,
            key: self.key,
            member: self.standing.member,
            parts: link.parts.iter().copied().collect(),
            machine: if self.maps { cenote_fabric::boot() } else { NO_MACHINE },
            process: Process::this(),
            name: self.pool.options.name.clone(),
            sessions: link.sessions.keys().copied().collect(),
            ending: link.ending(),
            ring: self.pool.options.rings,
        };
        let answer: std::result::Result<MemberWelcome, Failure> = wire::call(&*connection, &hello, ANSWER_TIMEOUT)?;
        let was_member = self.lease.load(Ordering::Acquire) > 0;
        match answer.map_err(Error::from) {
            Ok(welcome) => {
                self.lease.store(welcome.lease.max(PINGS), Ordering::Release);
                self.epoch.store(welcome.epoch, Ordering::Release);
                link.connection = Some(Arc::clone(&connection));
                self.wants_ring.store(false, Ordering::Release);
                let seat = welcome.ring.and_then(|ring| sit_down(&ring));
                let before = core::mem::replace(&mut *self.ring.lock(), seat);
                drop(before);
                Ok(connection)
            }
            Err(error) => {
                connection.close();
                match error {
                    Error::Revoked(_) if was_member => self.standing.revoke(),
                    // Its node has to be told anew what it keeps, or another listens where it did.
                    Error::Invalid(text) if was_member => {
                        self.find_again(link);
                        return Err(Error::Lost(text));
                    }
                    _ => {}
                }
                Err(error)
            }
        }
    }

    /// The node does not listen where it did: where it does, the manager knows, if it is there. It may hang: then the
    /// node is not to be missed for it when it is back.
    fn find_again(&self, link: &mut Link) {
        if rt::now() < link.find_at {
            return;
        }
        let lease = self.lease.load(Ordering::Acquire);
        link.find_at = rt::now() + find_every(lease);
        let timeout = Nanos(lease / FINDS).clamp(FIND_TIMEOUT_MIN, FIND_TIMEOUT);
        let Ok(view) = self.pool.view_within(&self.name, timeout) else {
            return;
        };
        match view.parts.iter().find(|part| part.node == self.node) {
            Some(part) => link.address = part.members.clone().unwrap_or_else(|| link.address.clone()),
            None => {
                let has_moved = view.parts.iter().any(|part| link.parts.contains(&part.number));
                self.moved.fetch_or(has_moved, Ordering::AcqRel);
            }
        }
    }
}

/// Between two questions where a node is. Without a lease there is nothing to be lost.
fn find_every(lease: u64) -> Nanos {
    match lease {
        0 => FIND_AGAIN,
        lease => Nanos(lease / FINDS).min(FIND_AGAIN),
    }
}

/// Settles, again and again, until that is in vain or `over`; whether it has.
fn settle_until(standing: &Standing, over: &Event) -> bool {
    let until = rt::now() + LEAVE_TIMEOUT;
    while let Err(error) = standing.settle() {
        if matches!(error, Error::Revoked(_)) || rt::now() > until || over.wait_timeout(LEAVE_AGAIN) {
            return false;
        }
    }
    true
}

/// Takes the seat; one that is not to be had is done without.
fn sit_down(ring: &RingSeat) -> Option<Arc<dyn Caller>> {
    let options = UserOptions {
        timeout: ANSWER_TIMEOUT,
        ..UserOptions::default()
    };
    User::join(Path::new(&ring.path), ring.seat(), options).ok()
}

impl Link {
    /// A part is used elsewhere: what has begun there.
    fn leave(&mut self, part: u8) -> BTreeMap<(u8, SessionId), bool> {
        self.parts.remove(&part);
        let sessions = core::mem::take(&mut self.sessions);
        let (begun, rest) = sessions.into_iter().partition(|((of, _), _)| *of == part);
        self.sessions = rest;
        begun
    }

    /// An end that is asked for may be done from here on, whether that is heard or not.
    fn begin_ending(&mut self, request: &MemberRequest) {
        if let MemberRequest::End { part, session } = request
            && let Some(is_ending) = self.sessions.get_mut(&(*part, *session))
        {
            *is_ending = true;
        }
    }

    fn ending(&self) -> Vec<(u8, SessionId)> {
        let ending = self.sessions.iter().filter(|(_, is_ending)| **is_ending);
        ending.map(|(session, _)| *session).collect()
    }

    /// Notes which sessions there are.
    fn note(&mut self, request: &MemberRequest, reply: &MemberReply) {
        match (request, reply) {
            (MemberRequest::Begin { part }, MemberReply::Begun(session)) => {
                self.sessions.insert((*part, *session), false);
            }
            (MemberRequest::End { part, session }, _) => _ = self.sessions.remove(&(*part, *session)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
