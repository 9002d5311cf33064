//! A part that this process does not map: its node is asked, by calls.
//!
//! What is asked is checked there as it is here, by the same code ([`super::act`]), next to the memory. So there is no second table of where things are that could be out of date, and
//! an access is one trip. Several are one message.

pub(super) mod wire;

use super::GlobalAddress;
use super::act::{Act, Outcome};
use super::keeper::{Lifetime, SessionId};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Called, Caller, Callers};
use std::sync::Arc;
use wire::{Hello, Item};

/// Between two looks for an answer, by somebody who may have to stop: longer and longer.
const LOOK_MIN: Nanos = Nanos::from_micros(10);
const LOOK_MAX: Nanos = Nanos::from_millis(1);

/// The way to a part at the node that hosts it, made anew when it breaks.
pub struct Way {
    callers: Arc<dyn Callers>,
    hello: Hello,
    /// Held while the connection is made. Lock order: caller, then peer.
    caller: Mutex<Option<Arc<dyn Caller>>>,
    peer: Mutex<String>,
    /// Who knows where the node is now, if it is not where it was.
    resolver: Option<Resolver>,
}

/// Tells where a node is now; `None` if nobody knows.
pub type Resolver = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Calls that were posted. Dropping it does not stop them.
pub(super) struct UnderWay {
    caller: Arc<dyn Caller>,
    called: Called,
}

impl Way {
    /// To the node called `peer`, which shall know us by `hello`. Nothing is sent before something is asked.
    pub fn new(callers: Arc<dyn Callers>, peer: impl Into<String>, hello: Hello) -> Self {
        Self {
            callers,
            hello,
            caller: Mutex::new(None),
            peer: Mutex::new(peer.into()),
            resolver: None,
        }
    }

    /// The same, with somebody who is asked where the node is when it is not there.
    #[must_use]
    pub fn resolved_by(self, resolver: Resolver) -> Self {
        Self {
            resolver: Some(resolver),
            ..self
        }
    }

    /// The node's address.
    pub fn peer(&self) -> String {
        self.peer.lock().clone()
    }

    fn caller(&self) -> Result<Arc<dyn Caller>> {
        let mut known = self.caller.lock();
        if let Some(caller) = &*known {
            return Ok(Arc::clone(caller));
        }
        let peer = self.peer();
        let mut caller = self.call_on(&peer);
        if caller.is_err()
            && let Some(now) = self.resolver.as_ref().and_then(|resolver| resolver())
            && now != peer
        {
            caller = self.call_on(&now);
            *self.peer.lock() = now;
        }
        *known = Some(Arc::clone(caller.as_ref().map_err(Clone::clone)?));
        caller
    }

    /// Whatever is refused there, be it that the node does not have the part open yet: it says nothing of what is about to be asked.
    fn call_on(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        let greeted = self.callers.caller(peer).and_then(|caller| {
            let mut answer = Vec::new();
            caller.call(&wire::hello(&self.hello)?, &mut answer)?;
            Ok(caller)
        });
        greeted.map_err(|error| match error {
            Error::Lost(_) | Error::Timeout(_) => error,
            other => Error::Lost(format!("part {} is not reached at {peer}: {other}", self.hello.part)),
        })
    }

    /// Asks all with one doorbell. The answers, in the order of the requests.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node cannot be reached: then nothing was asked.
    pub(super) fn post(&self, calls: Vec<Call>) -> Result<Vec<Call>> {
        self.begin(calls).map(|under_way| self.end(under_way))
    }

    /// Asks all with one doorbell, and waits for nothing: [`Way::end`] does.
    ///
    /// # Errors
    /// As [`Way::post`].
    pub(super) fn begin(&self, calls: Vec<Call>) -> Result<UnderWay> {
        let caller = self.caller()?;
        let called = caller.post(calls);
        Ok(UnderWay { caller, called })
    }

    /// The answers to what was begun, in the order of the requests.
    pub(super) fn end(&self, under_way: UnderWay) -> Vec<Call> {
        let UnderWay { caller, called } = under_way;
        let calls = called.wait();
        self.check(&caller, &calls);
        calls
    }

    /// A connection that is over, or whose other end does not know us, is made anew.
    fn check(&self, caller: &Arc<dyn Caller>, calls: &[Call]) {
        let is_over = |call: &Call| matches!(call.result, Err(Error::Lost(_) | Error::Revoked(_)));
        if calls.iter().any(is_over) {
            self.caller.lock().take_if(|known| Arc::ptr_eq(known, caller));
        }
    }

    /// As [`Way::ask`], until whoever asks is to stop: then it may be done still.
    pub(super) fn ask_unless(&self, call: Call, is_over: impl Fn() -> bool) -> Result<Vec<u8>> {
        let asked = self.ask_once_unless(call, &is_over)?;
        match asked.result {
            Err(Error::Revoked(_)) => self.ask_once_unless(asked, &is_over)?.into_answer(),
            _ => asked.into_answer(),
        }
    }

    fn ask_once_unless(&self, call: Call, is_over: &impl Fn() -> bool) -> Result<Call> {
        let caller = self.caller()?;
        let mut called = caller.post(vec![call]);
        let mut pause = LOOK_MIN;
        while !called.poll() {
            if is_over() {
                return Err(Error::Lost("whoever asked is stopping".into()));
            }
            rt::sleep(pause);
            pause = Nanos(pause.raw() * 2).min(LOOK_MAX);
        }
        let mut calls = called.wait();
        self.check(&caller, &calls);
        calls.pop().ok_or_else(lost_call)
    }

    pub(super) fn ask(&self, request: Vec<u8>) -> Result<Vec<u8>> {
        let asked = self.ask_once(Call::new(request))?;
        match asked.result {
            // It was not looked at: the node does not know us, or not any more. Or it was refused, and is again.
            Err(Error::Revoked(_)) => self.ask_once(asked)?.into_answer(),
            _ => asked.into_answer(),
        }
    }

    fn ask_once(&self, call: Call) -> Result<Call> {
        let asked = self.post(vec![call])?.pop();
        asked.ok_or_else(lost_call)
    }
}

impl core::fmt::Debug for Way {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the way to {}", self.peer())
    }
}

fn lost_call() -> Error {
    Error::Lost("a caller lost a call".into())
}

/// A part on another pod, or another machine.
#[derive(Debug, Clone)]
pub struct FarPart {
    /// Its number in the space.
    pub number: u8,
    /// Its pod.
    pub pod: String,
    /// The way to its node.
    pub way: Arc<Way>,
}

impl FarPart {
    /// Does it there, or hears that it has to be done elsewhere.
    ///
    /// # Errors
    /// Those of [`Space::read`](super::Space::read), and of calls: after [`Error::Lost`] and [`Error::Timeout`] it may have been done.
    pub(super) fn act(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        if act.len() > wire::TRANSFER_MAX as u64 {
            return self.act_in_pieces(address, act);
        }
        let request = wire::accesses(wire::ACCESSES, &[Item::of(address, act)]);
        let answer = self.ask_again(request, act.may_repeat())?;
        let mut answers = wire::Answers::new(&answer, 1)?;
        answers.next(act)
    }

    /// Asks, once more if that does no harm: the request may be carried out twice.
    fn ask_again(&self, request: Vec<u8>, may_repeat: bool) -> Result<Vec<u8>> {
        match self.way.ask(request.clone()) {
            Err(Error::Lost(_)) if may_repeat => self.way.ask(request),
            answered => answered,
        }
    }

    /// Does them one after the other, as many as one message takes: the outcomes, up to the first that is not done, or none if it is the first and failed.
    pub(super) fn act_in_order(&self, acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
        let may_repeat = acts.iter().all(|(_, act)| act.may_repeat());
        let (count, request) = sequence(acts);
        let answer = self.ask_again(request, may_repeat)?;
        outcomes_in_order(&answer, &mut acts[..count])
    }

    /// The same, but for the waiting: [`FarPart::end_in_order`] does.
    pub(super) fn begin_in_order(&self, acts: &[(GlobalAddress, Act<'_>)]) -> Result<(usize, UnderWay)> {
        let (count, request) = sequence(acts);
        self.way
            .begin(vec![Call::new(request)])
            .map(|under_way| (count, under_way))
    }

    /// The outcomes of what was begun.
    pub(super) fn end_in_order(
        &self,
        under_way: UnderWay,
        acts: &mut [(GlobalAddress, Act<'_>)],
    ) -> Result<Vec<Outcome>> {
        let answer = self.way.end(under_way).pop().ok_or_else(lost_call)?.into_answer()?;
        outcomes_in_order(&answer, acts)
    }

    /// A long read or write: whatever happens to one of its pieces happens to all.
    fn act_in_pieces(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        let at = |n: usize| {
            let piece = address.checked_add((n * wire::TRANSFER_MAX) as u64);
            piece.ok_or_else(|| Error::OutOfBounds(format!("{} bytes at {address}", n * wire::TRANSFER_MAX)))
        };
        let mut pieces: Vec<(GlobalAddress, Act<'_>)> = Vec::new();
        match act {
            Act::Read(into) => {
                for (n, piece) in into.chunks_mut(wire::TRANSFER_MAX).enumerate() {
                    pieces.push((at(n)?, Act::Read(piece)));
                }
            }
            Act::Write(from) => {
                for (n, piece) in from.chunks(wire::TRANSFER_MAX).enumerate() {
                    pieces.push((at(n)?, Act::Write(piece)));
                }
            }
            _ => return Err(Error::Invalid("a long access that is neither read nor write".into())),
        }
        let mut done = Outcome::Done(0, 0);
        for outcome in self.act_many(&mut pieces)? {
            match outcome? {
                Outcome::Done(..) => {}
                other => done = other,
            }
        }
        Ok(done)
    }

    /// Does all of them, in as few messages as they fit in, with one doorbell: an outcome each.
    pub(super) fn act_many(&self, acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Result<Outcome>>> {
        if acts.iter().any(|(_, act)| act.len() > wire::TRANSFER_MAX as u64) {
            return Ok(acts.iter_mut().map(|(address, act)| self.act(*address, act)).collect());
        }
        let groups = wire::groups(acts);
        let call = |range: &core::ops::Range<usize>| {
            let items: Vec<_> = acts[range.clone()]
                .iter()
                .map(|(address, act)| Item::of(*address, act))
                .collect();
            Call::new(wire::accesses(wire::ACCESSES, &items))
        };
        let calls = self.way.post(groups.iter().map(call).collect())?;
        let mut outcomes = Vec::with_capacity(acts.len());
        for (range, call) in groups.into_iter().zip(calls) {
            let answer = match call.into_answer() {
                // Reads and writes, that may be done again: or the node did not know us.
                Err(Error::Lost(_) | Error::Revoked(_)) => {
                    let again = acts[range].iter_mut();
                    outcomes.extend(again.map(|(address, act)| self.act(*address, act)));
                    continue;
                }
                answered => answered?,
            };
            let mut answers = wire::Answers::new(&answer, range.len())?;
            for (_, act) in &mut acts[range] {
                outcomes.push(answers.next(act));
            }
        }
        Ok(outcomes)
    }

    /// The address that what lies in the space is found by, after setting it if that is wanted.
    pub(super) fn root(&self, set: Option<GlobalAddress>) -> Result<GlobalAddress> {
        wire::read_address(&self.way.ask(wire::root(set))?)
    }

    /// A new object there.
    pub(super) fn alloc(&self, session: SessionId, len: u64, lifetime: Lifetime) -> Result<GlobalAddress> {
        let answer = self.way.ask(wire::alloc(session, len, lifetime))?;
        let raw = answer
            .first_chunk()
            .ok_or_else(|| Error::corrupt("an answer to alloc"))?;
        Ok(GlobalAddress::from_raw(u64::from_le_bytes(*raw)))
    }
}

/// A message with as many of them as it takes, from the first on, and how many those are.
fn sequence(acts: &[(GlobalAddress, Act<'_>)]) -> (usize, Vec<u8>) {
    let count = wire::groups(acts).first().map_or(0, |group| group.end);
    let items: Vec<_> = acts[..count]
        .iter()
        .map(|(address, act)| Item::of(*address, act))
        .collect();
    (count, wire::accesses(wire::SEQUENCE, &items))
}

fn outcomes_in_order(answer: &[u8], acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
    let (count, mut answers) = wire::Answers::of_sequence(answer, acts.len())?;
    acts[..count].iter_mut().map(|(_, act)| answers.next(act)).collect()
}
