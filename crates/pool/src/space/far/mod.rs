//! A part that this process does not map: its node is asked, by calls.
//!
//! What is asked is checked there as it is here, by the same code ([`super::act`]), next to the memory. So there is no second table of where things are that could be out of date, and
//! an access is one trip. Several are one message. The bytes of large reads may come by themselves: [`modes`].

pub(super) mod modes;
pub(super) mod wire;

use super::GlobalAddress;
use super::act::{Act, Outcome};
use super::keeper::{Lifetime, SessionId};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Called, Callers};
use modes::{Buffers, Counted, FarReads, Line};
use std::sync::Arc;
use wire::{DirectFrom, Hello, Item};

/// Between two looks for an answer, by somebody who may have to stop: longer and longer.
const LOOK_MIN: Nanos = Nanos::from_micros(10);
const LOOK_MAX: Nanos = Nanos::from_millis(1);

/// The way to a part at the node that hosts it, made anew when it breaks.
pub struct Way {
    callers: Arc<dyn Callers>,
    hello: Hello,
    /// Held while the connection is made. Lock order: line, then peer.
    line: Mutex<Option<Arc<Line>>>,
    peer: Mutex<String>,
    /// Who knows where the node is now, if it is not where it was.
    resolver: Option<Resolver>,
    reads: FarReads,
    counted: Counted,
    buffers: Buffers,
}

/// Tells where a node is now; `None` if nobody knows.
pub type Resolver = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Calls that were posted. Dropping it does not stop them.
pub(super) struct UnderWay {
    line: Arc<Line>,
    called: Called,
}

impl Way {
    /// To the node called `peer`, which shall know us by `hello`. Nothing is sent before something is asked.
    pub fn new(callers: Arc<dyn Callers>, peer: impl Into<String>, hello: Hello) -> Self {
        Self {
            callers,
            hello,
            line: Mutex::new(None),
            peer: Mutex::new(peer.into()),
            resolver: None,
            reads: FarReads::default(),
            counted: Counted::default(),
            buffers: Buffers::default(),
        }
    }

    /// The same, with reads done in this way.
    #[must_use]
    pub fn reading(self, reads: FarReads) -> Self {
        Self { reads, ..self }
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

    fn line(&self) -> Result<Arc<Line>> {
        let mut known = self.line.lock();
        if let Some(line) = &*known {
            return Ok(Arc::clone(line));
        }
        let peer = self.peer();
        let mut line = self.call_on(&peer);
        if line.is_err()
            && let Some(now) = self.resolver.as_ref().and_then(|resolver| resolver())
            && now != peer
        {
            line = self.call_on(&now);
            *self.peer.lock() = now;
        }
        *known = Some(Arc::clone(line.as_ref().map_err(Clone::clone)?));
        line
    }

    /// Whatever is refused there, be it that the node does not have the part open yet: it says nothing of what is about to be asked.
    fn call_on(&self, peer: &str) -> Result<Arc<Line>> {
        let greeted = self.callers.caller(peer).and_then(|caller| {
            let mut answer = Vec::new();
            caller.call(&wire::hello(&self.hello)?, &mut answer)?;
            Ok(Arc::new(Line::new(caller, self.reads)))
        });
        greeted.map_err(|error| match error {
            Error::Lost(_) | Error::Timeout(_) => error,
            other => Error::Lost(format!("part {} is not reached at {peer}: {other}", self.hello.part)),
        })
    }

    /// Which of these reads are direct; none before there is a connection. (None if there are others beside them: who writes what he reads in the same message would
    /// read it too late.)
    fn direct_from(&self, acts: &[(GlobalAddress, Act<'_>)]) -> DirectFrom {
        if !acts.iter().all(|(_, act)| matches!(act, Act::Read(_))) {
            return DirectFrom::NEVER;
        }
        let line = self.line.lock().clone();
        let lens = acts.iter().map(|(_, act)| act.len());
        let direct = line.map_or(DirectFrom::NEVER, |line| line.direct_from(lens));
        self.counted.count(acts.len(), direct.count(acts));
        direct
    }

    /// A message of accesses.
    fn call_of(&self, acts: &[(GlobalAddress, Act<'_>)], direct: DirectFrom) -> Call {
        let items: Vec<_> = acts
            .iter()
            .map(|(address, act)| Item::of(*address, act, direct))
            .collect();
        let memory = self.buffers.take(direct.memory_of(acts));
        Call::new(wire::accesses(wire::ACCESSES, &items, self.buffers.any()))
            .into_memory(memory)
            .into_room(self.buffers.any())
    }

    /// What has come of a message of accesses: an outcome each.
    fn outcomes(
        &self,
        call: Call,
        acts: &mut [(GlobalAddress, Act<'_>)],
        direct: DirectFrom,
    ) -> Result<Vec<Result<Outcome>>> {
        call.result?;
        let mut answers = wire::Answers::new(&call.answer, acts.len())?.with_memory(&call.memory, direct);
        let outcomes = acts.iter_mut().map(|(_, act)| answers.next(act)).collect();
        let Call {
            request,
            answer,
            memory,
            ..
        } = call;
        [request, answer, memory]
            .into_iter()
            .for_each(|buffer| self.buffers.give(buffer));
        Ok(outcomes)
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
        let line = self.line()?;
        let called = line.caller.post(calls);
        Ok(UnderWay { line, called })
    }

    /// The answers to what was begun, in the order of the requests.
    pub(super) fn end(&self, under_way: UnderWay) -> Vec<Call> {
        let UnderWay { line, called } = under_way;
        let calls = called.wait();
        self.check(&line, &calls);
        calls
    }

    /// A connection that is over, or whose other end does not know us, is made anew.
    fn check(&self, line: &Arc<Line>, calls: &[Call]) {
        let is_over = |call: &Call| matches!(call.result, Err(Error::Lost(_) | Error::Revoked(_)));
        if calls.iter().any(is_over) {
            self.line.lock().take_if(|known| Arc::ptr_eq(known, line));
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
        let line = self.line()?;
        let mut called = line.caller.post(vec![call]);
        let mut pause = LOOK_MIN;
        while !called.poll() {
            if is_over() {
                return Err(Error::Lost("whoever asked is stopping".into()));
            }
            rt::sleep(pause);
            pause = Nanos(pause.raw() * 2).min(LOOK_MAX);
        }
        let mut calls = called.wait();
        self.check(&line, &calls);
        calls.pop().ok_or_else(lost_call)
    }

    pub(super) fn ask(&self, request: Vec<u8>) -> Result<Vec<u8>> {
        self.ask_call(Call::new(request))?.into_answer()
    }

    /// The call again, answered.
    fn ask_call(&self, call: Call) -> Result<Call> {
        let asked = self.ask_once(call)?;
        let asked = match asked.result {
            // It was not looked at: the node does not know us, or not any more. Or it was refused, and is again.
            Err(Error::Revoked(_)) => self.ask_once(asked)?,
            _ => asked,
        };
        asked.result.clone().map(|()| asked)
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

/// A connection that a user's request can be forwarded over, at once.
pub(crate) struct RelayLine {
    way: Arc<Way>,
    line: Arc<Line>,
}

impl RelayLine {
    /// Waits for the connection, if there is none: for seconds, if the node is not there.
    pub(crate) fn to(way: &Arc<Way>) -> Result<Self> {
        let (line, way) = (way.line()?, Arc::clone(way));
        Ok(Self { way, line })
    }

    /// Posts it, and waits for nothing.
    pub(crate) fn post(self, request: Vec<u8>) -> Relayed {
        let Self { way, line } = self;
        let called = line.caller.post(vec![Call::new(request)]);
        let under_way = UnderWay { line, called };
        Relayed { way, under_way }
    }
}

/// A user's request that is forwarded for him.
pub(crate) struct Relayed {
    way: Arc<Way>,
    under_way: UnderWay,
}

impl Relayed {
    /// Whether it is answered. Never blocks.
    pub(crate) fn poll(&mut self) -> bool {
        self.under_way.called.poll()
    }

    /// The answer. Waits for it.
    pub(crate) fn end(self) -> Result<Vec<u8>> {
        let Self { way, under_way } = self;
        way.end(under_way).pop().ok_or_else(lost_call)?.into_answer()
    }
}

/// Whether a message says who asks, and asks for nothing.
pub(crate) fn is_hello(request: &[u8]) -> bool {
    request.first() == Some(&wire::HELLO)
}

/// Whether users ask for that, and not hosts of each other.
pub(crate) fn is_users_request(request: &[u8]) -> bool {
    let kinds = [wire::ACCESSES, wire::SEQUENCE, wire::ALLOC, wire::ROOT];
    request.first().is_some_and(|kind| kinds.contains(kind))
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
        let may_repeat = act.may_repeat();
        let mut acts = [(address, act.reborrow())];
        let direct = self.way.direct_from(&acts);
        let call = self.ask_again(may_repeat, || self.way.call_of(&acts, direct))?;
        let outcome = self.way.outcomes(call, &mut acts, direct)?.pop();
        outcome.unwrap_or_else(|| Err(lost_call()))
    }

    /// Asks, once more if that does no harm: the request may be carried out twice.
    fn ask_again(&self, may_repeat: bool, call: impl Fn() -> Call) -> Result<Call> {
        match self.way.ask_call(call()) {
            Err(Error::Lost(_)) if may_repeat => self.way.ask_call(call()),
            answered => answered,
        }
    }

    /// Does them one after the other, as many as one message takes: the outcomes, up to the first that is not done, or none if it is the first and failed.
    pub(super) fn act_in_order(&self, acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
        let may_repeat = acts.iter().all(|(_, act)| act.may_repeat());
        let (count, request) = sequence(acts);
        let call = self.ask_again(may_repeat, || Call::new(request.clone()))?;
        outcomes_in_order(&call.answer, &mut acts[..count])
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
        let direct = self.way.direct_from(acts);
        let groups = wire::groups(acts, direct);
        let call = |range: &core::ops::Range<usize>| self.way.call_of(&acts[range.clone()], direct);
        let calls = self.way.post(groups.iter().map(call).collect())?;
        let mut outcomes = Vec::with_capacity(acts.len());
        for (range, call) in groups.into_iter().zip(calls) {
            if matches!(call.result, Err(Error::Lost(_) | Error::Revoked(_))) {
                // Reads and writes, that may be done again: or the node did not know us.
                let again = acts[range].iter_mut();
                outcomes.extend(again.map(|(address, act)| self.act(*address, act)));
                continue;
            }
            outcomes.extend(self.way.outcomes(call, &mut acts[range], direct)?);
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
    let groups = wire::groups(acts, DirectFrom::NEVER);
    let count = groups.first().map_or(0, |group| group.end);
    let items: Vec<_> = acts[..count]
        .iter()
        .map(|(address, act)| Item::of(*address, act, DirectFrom::NEVER))
        .collect();
    (count, wire::accesses(wire::SEQUENCE, &items, Vec::new()))
}

fn outcomes_in_order(answer: &[u8], acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
    let (count, mut answers) = wire::Answers::of_sequence(answer, acts.len())?;
    acts[..count].iter_mut().map(|(_, act)| answers.next(act)).collect()
}
