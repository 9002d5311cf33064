//! Far accesses of members of this machine: forwarded to the hosts of other parts, over the connections that this node
//! has with them for its moves. So members need no card, and N of them with M nodes have one connection for each pair
//! of nodes.
//!
//! ```text
//!   member ── ring ──► relay ── queue ──► forwarder of part 7 ── call ──► its host
//!     ▲                                        │ posts each request as it comes, and looks for all answers
//!     └────────────── its slot ◄───────────────┘
//! ```
//!
//! A forwarder is a thread for each far part that was asked for something. One request that is slow there holds up no
//! other, and a part that cannot be reached holds up none for other parts.
//!
//! Invariants:
//! - of a member whose seat has ended nothing new is posted; what was posted is counted until it is answered, or cannot
//!   be done any more: what was given up until there is another connection, or none to be had. Fencing is not confirmed
//!   before that count is 0;
//! - a request is counted when it is taken out of the queue, alone, with a connection at hand. So what waits for a part
//!   that is away is nobody's yet, and is refused when its seat ends;
//! - what has waited for long is refused: whoever asked has been told that it was late, and may have done something
//!   else since;
//! - a hello of a member is answered when nothing that came before it waits or is under way any more, and there is a
//!   way to the part. So what a member has given up, at this or a former seat, is not done after what it asks then;
//! - what changes something goes from here on under a number of this node's. It is not posted again: if its answer is
//!   lost the member hears so;
//! - what is forwarded is what users may ask for: accesses, sequences, allocations, the root. Orders of hosts are not.

use super::parts::Kept;
use crate::relay::{self, Forward};
use cenote_base::Error;
use cenote_base::rt::{self, Condvar, Mutex, MutexGuard, Nanos, Spin};
use cenote_fabric::rdma::call::{Answer, CallerId};
use cenote_space::{Channel, Forwarded, RelayLine, Relayed, is_hello, is_users_request, relayed_hello};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Requests for one part that wait, or are under way, at a time.
const WAITING_MAX: usize = 4096;
/// How long a forwarder looks for answers at every turn, before it naps between two looks.
const LOOK: Nanos = Nanos::from_micros(100);
const NAP_MIN: Nanos = Nanos::from_micros(10);
const NAP_MAX: Nanos = Nanos::from_millis(1);
/// Bytes of a seat's requests for one part that wait.
const BYTES_MAX: usize = 4 << 20;
/// How long the way to a part may be unknown.
const KNOWN_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Threads for parts that this node has not heard of: the manager may be about to tell.
const UNKNOWN_MAX: usize = 2;
/// How long a request may wait.
const WAIT_MAX: Nanos = Nanos::from_secs(5);
/// How long threads are waited for in the end: longer than a connection and a call may take.
const CLOSE_TIMEOUT: Nanos = Nanos::from_secs(20);
/// A forwarder that has nothing to do for so long ends.
const IDLE: Nanos = Nanos::from_secs(2);

/// Of one part: what is forwarded to the others of its space.
#[derive(Default)]
pub(super) struct Relay {
    forwarders: Mutex<BTreeMap<u8, Arc<Forwarder>>>,
}

#[derive(Default)]
struct Forwarder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    /// Of members that say who they are.
    hellos: Vec<Hello>,
    /// How many of both have come: the turn of the last.
    came: u64,
    /// By seat: requests that were posted, and may be done yet.
    posted: BTreeMap<CallerId, usize>,
    /// Of those, what was given up, since when.
    late: Vec<(CallerId, Nanos)>,
    runs: bool,
    is_closed: bool,
}

struct Hello {
    caller: CallerId,
    answer: Answer,
    came: Nanos,
    turn: u64,
}

struct Request {
    caller: CallerId,
    forwarded: Forwarded,
    answer: Answer,
    came: Nanos,
    turn: u64,
}

impl Request {
    fn refuse(self, error: Error) {
        let error = self.forwarded.unanswered(error);
        relay::answer(self.answer, Err(error));
    }
}

/// A request that was posted.
struct RequestInFlight {
    caller: CallerId,
    under_way: Relayed,
    answer: Answer,
    turn: u64,
}

/// The way to a part, if the manager has told of it.
fn channel(kept: &Weak<Kept>, part: u8) -> Option<Arc<Channel>> {
    let kept = kept.upgrade()?;
    Some(kept.host.as_ref()?.peer(part)?.channel)
}

impl Relay {
    /// Forwards a request, or refuses it. Does not block.
    pub(super) fn forward(&self, kept: &Arc<Kept>, caller: CallerId, forward: Forward<'_>, answer: Answer) {
        let is_hello = is_hello(forward.request);
        if !is_hello && !is_users_request(forward.request) {
            let error = Error::Invalid("this is not forwarded for members".into());
            return relay::answer(answer, Err(error));
        }
        let Some(forwarder) = self.forwarder(kept, forward.part) else {
            return relay::answer(answer, Err(no_way(forward.part)));
        };
        let came = rt::now();
        if is_hello {
            // The node has said who it is. What its member asks it is asked as one of the node's pod.
            forwarder.refuse(caller);
            let turn = 0;
            let hello = Hello {
                caller,
                answer,
                came,
                turn,
            };
            return forwarder.add_hello(kept, forward.part, hello);
        }
        let request = Request {
            caller,
            forwarded: Forwarded::new(forward.request.to_vec()),
            answer,
            came,
            turn: 0,
        };
        forwarder.add(kept, forward.part, request);
    }

    fn forwarder(&self, kept: &Kept, part: u8) -> Option<Arc<Forwarder>> {
        let is_known = |part| kept.host.as_ref().is_some_and(|host| host.peer(part).is_some());
        let mut forwarders = self.forwarders.lock();
        if !is_known(part) {
            let others = forwarders.iter().filter(|(other, _)| **other != part);
            let unknown = others.filter(|(other, forwarder)| forwarder.state.lock().runs && !is_known(**other));
            if unknown.count() >= UNKNOWN_MAX {
                return None;
            }
        }
        Some(Arc::clone(forwarders.entry(part).or_default()))
    }

    /// Whether nothing of a seat is on its way. What waits of it is refused.
    pub(super) fn has_nothing_of(&self, caller: CallerId) -> bool {
        let forwarders: Vec<_> = self.forwarders.lock().values().cloned().collect();
        let still = forwarders.iter().filter(|forwarder| !forwarder.refuse(caller));
        still.count() == 0
    }

    /// Ends its threads, and waits for them: what they have posted is answered or given up then.
    pub(super) fn close(&self) {
        let forwarders: Vec<_> = self.forwarders.lock().values().cloned().collect();
        forwarders.iter().for_each(|forwarder| forwarder.close());
        let until = rt::now() + CLOSE_TIMEOUT;
        while forwarders.iter().any(|forwarder| forwarder.state.lock().runs) && rt::now() < until {
            rt::sleep(NAP_MAX);
        }
    }
}

fn no_way(part: u8) -> Error {
    Error::Lost(format!("this memory node knows no way to part {part}"))
}

impl State {
    fn bytes_of(&self, caller: CallerId) -> usize {
        let its = self.waiting.iter().filter(|request| request.caller == caller);
        its.map(|request| request.forwarded.size()).sum()
    }

    fn has_room_for(&self, request: &Request) -> bool {
        self.waiting.len() < WAITING_MAX && self.bytes_of(request.caller) + request.forwarded.size() <= BYTES_MAX
    }

    /// When the first one came that needs the way to the part.
    fn oldest(&self) -> Option<Nanos> {
        let waiting = self.waiting.front().map(|request| request.came);
        let greeted = self.hellos.first().map(|hello| hello.came);
        let late = self.late.first().map(|(_, since)| *since);
        waiting.into_iter().chain(greeted).chain(late).min()
    }

    /// One that was posted is not done any more.
    fn is_done(&mut self, caller: CallerId) {
        if let Some(count) = self.posted.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                self.posted.remove(&caller);
            }
        }
    }

    /// What was given up is not done any more, or that cannot be known.
    fn settle_late(&mut self) {
        for (caller, _) in core::mem::take(&mut self.late) {
            self.is_done(caller);
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.came += 1;
        self.came
    }

    /// Those before which nothing came that waits, or is under way: the oldest of these.
    fn take_hellos(&mut self, under_way: Option<u64>) -> Vec<Hello> {
        let waiting = self.waiting.front().map(|request| request.turn);
        let oldest = waiting.into_iter().chain(under_way).min();
        let is_due = |hello: &mut Hello| oldest.is_none_or(|oldest| hello.turn < oldest);
        self.hellos.extract_if(.., is_due).collect()
    }
}

impl Forwarder {
    fn add(self: &Arc<Self>, kept: &Arc<Kept>, part: u8, mut request: Request) {
        let mut state = self.state.lock();
        if state.is_closed || !state.has_room_for(&request) {
            drop(state);
            return request.refuse(too_many(part));
        }
        request.turn = state.next_turn();
        state.waiting.push_back(request);
        self.start(kept, part, state);
    }

    fn add_hello(self: &Arc<Self>, kept: &Arc<Kept>, part: u8, mut hello: Hello) {
        let mut state = self.state.lock();
        if state.is_closed || state.hellos.len() >= WAITING_MAX {
            drop(state);
            return relay::answer(hello.answer, Err(too_many(part)));
        }
        hello.turn = state.next_turn();
        state.hellos.push(hello);
        self.start(kept, part, state);
    }

    /// Its thread has something to do.
    fn start(self: &Arc<Self>, kept: &Arc<Kept>, part: u8, mut state: MutexGuard<'_, State>) {
        let starts = !core::mem::replace(&mut state.runs, true);
        drop(state);
        self.changed.notify_all();
        if starts {
            let (theirs, kept) = (Arc::clone(self), Arc::downgrade(kept));
            let thread = rt::try_spawn("pool relay", move || theirs.run(&kept, part));
            if thread.is_err() {
                self.state.lock().runs = false;
                self.fail_waiting(&Error::Busy("the memory node has no thread to forward with".into()));
            }
        }
    }

    /// All that waits fails.
    fn fail_waiting(&self, error: &Error) {
        let mut state = self.state.lock();
        state.settle_late();
        let (waiting, hellos) = (core::mem::take(&mut state.waiting), core::mem::take(&mut state.hellos));
        drop(state);
        waiting.into_iter().for_each(|request| request.refuse(error.clone()));
        for hello in hellos {
            relay::answer(hello.answer, Err(error.clone()));
        }
    }

    /// Refuses what waits of a seat; whether nothing of it is under way.
    fn refuse(&self, caller: CallerId) -> bool {
        let mut state = self.state.lock();
        let (refused, others): (VecDeque<_>, _) = core::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|request| request.caller == caller);
        state.waiting = others;
        let hellos: Vec<_> = state.hellos.extract_if(.., |hello| hello.caller == caller).collect();
        let is_over = !state.posted.contains_key(&caller);
        drop(state);
        // Not with the lock held: it tells the ring.
        let over = || Error::Lost("whoever asks has said anew who he is, or is gone".into());
        refused.into_iter().for_each(|request| request.refuse(over()));
        hellos
            .into_iter()
            .for_each(|hello| relay::answer(hello.answer, Err(over())));
        is_over
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
        self.fail_waiting(&Error::Lost(
            "this memory node forwards nothing for the part any more".into(),
        ));
    }

    // ---- its thread ----

    fn run(&self, kept: &Weak<Kept>, part: u8) {
        let mut flying: Vec<RequestInFlight> = Vec::new();
        let (mut since, mut nap, mut spin) = (rt::now(), NAP_MIN, Spin::new());
        while self.goes_on(flying.is_empty()) {
            let mut has_done = self.post_next(kept, part, &mut flying);
            has_done |= self.answer(&mut flying);
            if has_done {
                (since, nap, spin) = (rt::now(), NAP_MIN, Spin::new());
            } else if rt::now().since(since) < LOOK {
                spin.turn();
            } else {
                rt::sleep(nap);
                nap = Nanos(nap.raw() * 2).min(NAP_MAX);
            }
        }
    }

    /// Waits for something to do, if nothing is under way. False: there will be nothing more.
    fn goes_on(&self, is_idle: bool) -> bool {
        let mut state = self.state.lock();
        if is_idle && state.oldest().is_none() && !state.is_closed {
            (state, _) = self.changed.wait_timeout(state, IDLE);
        }
        state.runs = !is_idle || state.oldest().is_some();
        state.runs
    }

    /// Answers who says hello, and posts the next request, if there is a way to go. Whether there was something to do.
    fn post_next(&self, kept: &Weak<Kept>, part: u8, flying: &mut Vec<RequestInFlight>) -> bool {
        let Some(came) = self.state.lock().oldest() else {
            return false;
        };
        let Some(channel) = channel(kept, part) else {
            // The manager may be about to tell.
            let is_known_late = rt::now().since(came) > KNOWN_TIMEOUT;
            if is_known_late {
                self.fail_waiting(&no_way(part));
            }
            return is_known_late;
        };
        let line = match RelayLine::to(&channel) {
            Ok(line) => line,
            Err(error) => {
                self.fail_waiting(&error);
                return true;
            }
        };
        let under_way = flying.iter().map(|flying| flying.turn).min();
        let mut state = self.state.lock();
        state.settle_late();
        let hellos = state.take_hellos(under_way);
        drop(state);
        let request = self.take();
        let has_done = !hellos.is_empty() || request.is_some();
        for hello in hellos {
            relay::answer(hello.answer, Ok(relayed_hello()));
        }
        if let Some(request) = request {
            self.post(line, request, flying);
        }
        has_done
    }

    fn post(&self, line: RelayLine, request: Request, flying: &mut Vec<RequestInFlight>) {
        let Request {
            caller,
            forwarded,
            answer,
            turn,
            ..
        } = request;
        match line.post(forwarded) {
            Ok(under_way) => flying.push(RequestInFlight {
                caller,
                under_way,
                answer,
                turn,
            }),
            Err(error) => {
                self.state.lock().is_done(caller);
                relay::answer(answer, Err(error));
            }
        }
    }

    /// The next request, which counts as posted from here on.
    fn take(&self) -> Option<Request> {
        loop {
            let mut state = self.state.lock();
            let request = state.waiting.pop_front()?;
            if rt::now().since(request.came) <= WAIT_MAX {
                *state.posted.entry(request.caller).or_default() += 1;
                return Some(request);
            }
            drop(state);
            request.refuse(Error::Busy(
                "the request has waited at the memory node for too long".into(),
            ));
        }
    }

    /// Passes on the answers that are there; whether there were any.
    fn answer(&self, flying: &mut Vec<RequestInFlight>) -> bool {
        let before = flying.len();
        let mut at = 0;
        while at < flying.len() {
            if !flying[at].under_way.poll() {
                at += 1;
                continue;
            }
            let RequestInFlight {
                caller,
                under_way,
                answer,
                ..
            } = flying.swap_remove(at);
            let (answered, is_open) = under_way.end();
            let mut state = self.state.lock();
            match is_open {
                true => state.late.push((caller, rt::now())),
                false => state.is_done(caller),
            }
            drop(state);
            relay::answer(answer, answered);
        }
        flying.len() < before
    }
}

fn too_many(part: u8) -> Error {
    Error::Busy(format!("too many requests for part {part} wait at the memory node"))
}
