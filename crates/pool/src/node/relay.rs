//! Far accesses of members of this machine: forwarded to the hosts of other parts, over the connections that this node has with them for its moves. So members need no card, and N of them with M
//! nodes have one connection for each pair of nodes.
//!
//! ```text
//!   member ── ring ──► relay ── queue ──► forwarder of part 7 ── call ──► its host
//!     ▲                                        │ posts each request as it comes, and looks for all answers
//!     └────────────── its slot ◄───────────────┘
//! ```
//!
//! A forwarder is a thread for each far part that was asked for something. One request that is slow there holds up no other, and a part that cannot be reached holds up none for other parts.
//!
//! Invariants:
//! - of a member whose seat has ended nothing is posted any more; what was posted is counted until it is answered, or given up. Fencing is not confirmed before that count is 0;
//! - what is forwarded is what users may ask for: accesses, sequences, allocations, the root. Orders of hosts are not.

use super::parts::Kept;
use crate::relay::{self, Forward};
use crate::space::{Relayed, Way, is_hello, is_users_request};
use cenote_base::rt::{self, Condvar, Mutex, Nanos, Spin};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, CallerId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Requests for one part that wait, or are under way, at a time.
const WAITING_MAX: usize = 4096;
/// How long a forwarder looks for answers at every turn, before it naps between two looks.
const LOOK: Nanos = Nanos::from_micros(100);
const NAP_MIN: Nanos = Nanos::from_micros(10);
const NAP_MAX: Nanos = Nanos::from_millis(1);
/// How long the way to a part may be unknown.
const KNOWN_PATIENCE: Nanos = Nanos::from_secs(1);
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
    /// By seat: requests that were posted and not answered.
    posted: BTreeMap<CallerId, usize>,
    runs: bool,
    is_closed: bool,
}

struct Request {
    caller: CallerId,
    bytes: Vec<u8>,
    answer: Answer,
}

/// A request that was posted.
struct Flying {
    caller: CallerId,
    under_way: Relayed,
    answer: Answer,
}

impl Relay {
    /// Forwards a request, or refuses it. Does not block.
    pub(super) fn forward(&self, kept: &Arc<Kept>, caller: CallerId, forward: Forward<'_>, answer: Answer) {
        if is_hello(forward.request) {
            // The node has said who it is. What its member asks it is asked as one of the node's pod.
            return relay::answer(answer, Ok(Vec::new()));
        }
        if !is_users_request(forward.request) {
            let error = Error::Invalid("this is not forwarded for members".into());
            return relay::answer(answer, Err(error));
        }
        let forwarder = Arc::clone(self.forwarders.lock().entry(forward.part).or_default());
        let request = Request {
            caller,
            bytes: forward.request.to_vec(),
            answer,
        };
        forwarder.add(kept, forward.part, request);
    }

    /// Whether nothing of a seat is on its way. What waits of it is refused.
    pub(super) fn has_nothing_of(&self, caller: CallerId) -> bool {
        let forwarders: Vec<_> = self.forwarders.lock().values().cloned().collect();
        let still = forwarders.iter().filter(|forwarder| !forwarder.refuse(caller));
        still.count() == 0
    }

    /// Ends its threads.
    pub(super) fn close(&self) {
        for forwarder in core::mem::take(&mut *self.forwarders.lock()).into_values() {
            let mut state = forwarder.state.lock();
            state.is_closed = true;
            state.waiting.clear();
            drop(state);
            forwarder.changed.notify_all();
        }
    }
}

impl Forwarder {
    fn add(self: &Arc<Self>, kept: &Arc<Kept>, part: u8, request: Request) {
        let mut state = self.state.lock();
        if state.is_closed || state.waiting.len() >= WAITING_MAX {
            drop(state);
            let error = Error::Busy(format!("too many requests for part {part} wait at the memory node"));
            return relay::answer(request.answer, Err(error));
        }
        state.waiting.push_back(request);
        let starts = !core::mem::replace(&mut state.runs, true);
        drop(state);
        self.changed.notify_all();
        if starts {
            let (theirs, kept) = (Arc::clone(self), Arc::downgrade(kept));
            let thread = rt::try_spawn("pool relay", move || theirs.run(&kept, part));
            if thread.is_err() {
                self.give_up();
            }
        }
    }

    /// There is no thread to be had.
    fn give_up(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.runs = false;
            core::mem::take(&mut state.waiting)
        };
        for request in waiting {
            relay::answer(
                request.answer,
                Err(Error::Busy("the memory node has no thread to forward with".into())),
            );
        }
    }

    fn refuse(&self, caller: CallerId) -> bool {
        let mut state = self.state.lock();
        state.waiting.retain(|request| request.caller != caller);
        !state.posted.contains_key(&caller)
    }

    // ---- its thread ----

    fn run(&self, kept: &Weak<Kept>, part: u8) {
        let mut flying: Vec<Flying> = Vec::new();
        let (mut since, mut nap, mut spin) = (rt::now(), NAP_MIN, Spin::new());
        loop {
            let Some(requests) = self.next(flying.is_empty()) else {
                return;
            };
            let mut has_done = !requests.is_empty();
            flying.extend(
                requests
                    .into_iter()
                    .filter_map(|request| self.post(kept, part, request)),
            );
            has_done |= self.answer(&mut flying);
            if has_done || flying.is_empty() {
                (since, nap, spin) = (rt::now(), NAP_MIN, Spin::new());
            } else if rt::now().since(since) < LOOK {
                spin.turn();
            } else {
                rt::sleep(nap);
                nap = Nanos(nap.raw() * 2).min(NAP_MAX);
            }
        }
    }

    /// What has come, if anything; `None`: there will be nothing more.
    fn next(&self, is_idle: bool) -> Option<VecDeque<Request>> {
        let mut state = self.state.lock();
        if is_idle && state.waiting.is_empty() && !state.is_closed {
            (state, _) = self.changed.wait_timeout(state, IDLE);
        }
        if is_idle && state.waiting.is_empty() {
            state.runs = false;
            return None;
        }
        let requests = core::mem::take(&mut state.waiting);
        for request in &requests {
            *state.posted.entry(request.caller).or_default() += 1;
        }
        Some(requests)
    }

    /// Without a way to the part: the manager may be about to tell.
    fn way(&self, kept: &Weak<Kept>, part: u8) -> Result<Arc<Way>> {
        let until = rt::now() + KNOWN_PATIENCE;
        loop {
            let kept = kept.upgrade();
            let host = kept.as_ref().and_then(|kept| kept.host.as_ref());
            let Some(host) = host.filter(|_| !self.state.lock().is_closed) else {
                return Err(Error::Lost(
                    "this memory node forwards nothing for the part any more".into(),
                ));
            };
            if let Some(peer) = host.peer(part) {
                return Ok(peer.way);
            }
            if rt::now() > until {
                return Err(Error::Lost(format!("this memory node knows no way to part {part}")));
            }
            rt::sleep(NAP_MAX);
        }
    }

    fn post(&self, kept: &Weak<Kept>, part: u8, request: Request) -> Option<Flying> {
        let Request { caller, bytes, answer } = request;
        match self.way(kept, part).and_then(|way| Relayed::begin(&way, bytes)) {
            Ok(under_way) => Some(Flying {
                caller,
                under_way,
                answer,
            }),
            Err(error) => {
                self.is_done(caller);
                relay::answer(answer, Err(error));
                None
            }
        }
    }

    /// Passes on the answers that are there; whether there were any.
    fn answer(&self, flying: &mut Vec<Flying>) -> bool {
        let before = flying.len();
        let mut at = 0;
        while at < flying.len() {
            if !flying[at].under_way.poll() {
                at += 1;
                continue;
            }
            let Flying {
                caller,
                under_way,
                answer,
            } = flying.swap_remove(at);
            let answered = under_way.end();
            self.is_done(caller);
            relay::answer(answer, answered);
        }
        flying.len() < before
    }

    fn is_done(&self, caller: CallerId) {
        let mut state = self.state.lock();
        if let Some(count) = state.posted.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                state.posted.remove(&caller);
            }
        }
    }
}
