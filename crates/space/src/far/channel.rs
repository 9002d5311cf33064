//! The way to a part at the node that hosts it, made anew when it breaks; and requests that must be done once, whatever
//! becomes of the connection.
//!
//! A request whose answer is lost has been done, or has not, or will be. To send it again may do it twice, with
//! another's change in between; to forget it may let it come after what its sender does next. So requests that change
//! something have numbers, and the host remembers what it answered to the last ones of each user (RIFL, *Implementing
//! linearizability at large scale*, SOSP 2015):
//!
//! ```text
//!   user                                     host                                  what the host remembers of the user
//!   hello: user, turn 1 ────────────────────▶ ◀─ memory m                            connection 1
//!   number 7 ───────────────────────────────▶ does it ── answer lost                 7: its answer
//!   hello: user, turn 2 ────────────────────▶ ◀─ memory m                            connection 2: what comes by 1 is refused from now on
//!   number 7, again ────────────────────────▶ ◀─ the answer                          8 would be done now
//! ```
//!
//! 1. A request is sent again only to the memory that may know of it. If that is gone (the host began anew, or forgot
//!    the user) whether it was done is not known: [`Error::Lost`].
//! 2. A user that did not hear whether a request was done makes another connection before its next request. So nothing
//!    of before is done after that.
//! 3. What may have been done is tried nowhere else
//!    ([`NoAnswer::may_be_done`](super::question::NoAnswer::may_be_done)).
//! 4. Where something is let go of that another user may have next, a lock above all, the user first
//!    [settles](Channel::settle): what it has given up here is not done any more, or it does not let go.

use super::doubts::Doubts;
use super::fetcher::{FETCHES_TOLD, Fetcher};
use super::modes::{Buffers, Counted, FarMode, FarReads, Line, lost_call};
use super::pass::{Admission, Pass};
use super::question::{Answered, Question, Tried};
use super::wire::{self, DirectFrom, Greeting, Hello, Item};
use crate::GlobalAddress;
use crate::act::{Act, Outcome};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Called, Caller, Callers};
use cenote_fabric::rdma::{Endpoint, Fabric};
use std::sync::Arc;

/// Between two looks for an answer, by a caller that may have to stop: longer and longer.
const LOOK_MIN: Nanos = Nanos::from_micros(10);
const LOOK_MAX: Nanos = Nanos::from_millis(1);
/// How long a node that was not reached is not tried again, but no longer than the try took: one that refuses at once
/// holds up nothing, and may be back at once.
const UNREACHED_MAX: Nanos = Nanos::from_millis(1000);

/// See the module.
pub struct Channel {
    callers: Arc<dyn Callers>,
    hello: Hello,
    /// By what the host knows that requests over several connections are of one user.
    user: u128,
    /// The last number of a request.
    number: AtomicU64,
    /// Held while a connection is made. Lock order: this, then line or peer.
    connecting: Mutex<Connecting>,
    pub(super) line: Mutex<Option<Arc<Line>>>,
    /// Tries to make one that failed. A thread that waits for another's try gets its result.
    failures: AtomicU64,
    peer: Mutex<String>,
    /// Finds the node if it is not where it was.
    resolver: Option<Resolver>,
    reads: FarReads,
    /// As which member we ask; hosts ask as none.
    admission: Option<Arc<dyn Admission>>,
    /// What was given up, and may be done until the next connection is made.
    doubts: Arc<Doubts>,
    /// The ways by which a card reads the node's memory.
    fabric: Option<Arc<dyn Fabric>>,
    pub(super) counted: Counted,
    pub(super) buffers: Buffers,
    is_mirrored: bool,
}

/// Tells where a node is now; `None` if that is not known.
pub type Resolver = Box<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Default)]
struct Connecting {
    /// How many connections there were.
    turn: u64,
    /// What became of the last try, if it failed.
    failed: Option<Unreached>,
}

/// A try that failed.
struct Unreached {
    error: Error,
    /// When the next one may be made.
    until: Nanos,
}

/// Requests that were posted together. Dropping it does not stop them: what they change is in doubt then.
pub struct RequestsInFlight {
    line: Arc<Line>,
    /// None when they are waited for.
    called: Option<Called>,
    questions: Vec<Question>,
    doubts: Arc<Doubts>,
}

impl Drop for RequestsInFlight {
    fn drop(&mut self) {
        if self.questions.iter().any(Question::is_numbered) {
            self.doubts.note_over(&self.line);
        }
    }
}

impl Channel {
    /// To the node called `peer`, which shall know us by `hello`. Nothing is sent before something is asked.
    pub fn new(callers: Arc<dyn Callers>, peer: impl Into<String>, hello: Hello) -> Self {
        Self {
            callers,
            hello,
            user: rt::random_u128(),
            number: AtomicU64::new(0),
            connecting: Mutex::default(),
            line: Mutex::default(),
            failures: AtomicU64::new(0),
            peer: Mutex::new(peer.into()),
            resolver: None,
            reads: FarReads::default(),
            admission: None,
            doubts: Arc::default(),
            fabric: None,
            counted: Counted::default(),
            buffers: Buffers::default(),
            is_mirrored: false,
        }
    }

    /// The same, to a part whose memory comes back elsewhere when its node is lost.
    #[must_use]
    pub fn mirrored(self, is_mirrored: bool) -> Self {
        Self { is_mirrored, ..self }
    }

    /// Whether what the part has is not lost with its node.
    pub fn is_mirrored(&self) -> bool {
        self.is_mirrored
    }

    /// The same, with reads done in this way.
    #[must_use]
    pub fn reading(self, reads: FarReads) -> Self {
        Self { reads, ..self }
    }

    /// The same, as a member of the space.
    #[must_use]
    pub fn admitted_by(self, admission: Arc<dyn Admission>) -> Self {
        let admission = Some(admission);
        Self { admission, ..self }
    }

    /// The same, with what a card reads the memory of nodes by, where they offer it, if that is not the connection for
    /// calls ([`Caller::endpoint`]).
    #[must_use]
    pub fn fetching(self, fabric: Arc<dyn Fabric>) -> Self {
        let fabric = Some(fabric);
        Self { fabric, ..self }
    }

    /// The same, with a resolver that finds the node when it is not where it was.
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

    // ---- connections ----

    pub(super) fn known(&self) -> Option<Arc<Line>> {
        self.line.lock().clone()
    }

    /// The connection; made now if there is none, which takes seconds if the node is not there.
    fn line(&self) -> Result<Arc<Line>> {
        let before = self.failures.load(Ordering::Acquire);
        if let Some(line) = self.known() {
            return Ok(line);
        }
        let mut connecting = self.connecting.lock();
        if let Some(line) = self.known() {
            return Ok(line);
        }
        // Another has just tried in vain, while we waited, or we have: each after the other would wait as long as a
        // call may take.
        if let Some(failed) = &connecting.failed
            && (self.failures.load(Ordering::Acquire) != before || rt::now() < failed.until)
        {
            return Err(failed.error.clone());
        }
        let (noted, began) = (self.doubts.noted(), rt::now());
        match self.connect(&mut connecting.turn) {
            Ok(line) => {
                connecting.failed = None;
                // What came by former ones is refused from here on, and a host that began anew has heard nothing.
                drop(self.doubts.take_abandoned());
                self.doubts.settle(noted);
                let mut known = self.line.lock();
                assert!(known.is_none(), "one thread makes a connection at a time");
                Ok(Arc::clone(known.insert(Arc::new(line))))
            }
            Err(error) => {
                let now = rt::now();
                connecting.failed = Some(Unreached {
                    error: error.clone(),
                    until: now + now.since(began).min(UNREACHED_MAX),
                });
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Makes the connection, if there is none.
    pub(in super::super) fn reach(&self) -> Result<()> {
        self.line().map(drop)
    }

    fn connect(&self, turn: &mut u64) -> Result<Line> {
        let peer = self.peer();
        let line = self.greet(&peer, turn);
        if line.is_err()
            && let Some(now) = self.resolver.as_ref().and_then(|resolver| resolver())
            && now != peer
        {
            let line = self.greet(&now, turn);
            *self.peer.lock() = now;
            return line;
        }
        line
    }

    /// Whether there is nothing to settle.
    pub fn is_settled(&self) -> bool {
        self.doubts.unsettled().is_none()
    }

    /// Nothing that was given up is done any more once this returns.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Timeout`]: the host cannot be reached, and it may be done yet; [`Error::Revoked`].
    pub fn settle(&self) -> Result<()> {
        let Some(noted) = self.doubts.unsettled().filter(|_| !planted(Fault::UnsettledLeave)) else {
            return Ok(());
        };
        self.doubts.take_abandoned().iter().for_each(|line| self.leave(line));
        // The lines over which these were posted have been left: this one is a later one.
        self.line()?;
        self.doubts.settle(noted);
        Ok(())
    }

    /// As the member that this process is, if it is one; a host that began anew does not know it.
    fn greet(&self, peer: &str, turn: &mut u64) -> Result<Line> {
        let Some(admission) = &self.admission else {
            return self
                .greet_as(peer, turn, None)
                .map_err(|error| self.unreached(peer, error));
        };
        let pass = admission.pass()?;
        let greeted = match self.greet_as(peer, turn, Some(pass)) {
            Err(error) if wire::is_unheard(&error) => self.greet_as(peer, turn, Some(admission.renew(pass)?)),
            greeted => greeted,
        };
        greeted.map_err(|error| self.unreached(peer, error))
    }

    /// Whatever is refused there, be it that the node does not have the part open yet: it says nothing of what is about
    /// to be asked. But a member that was fenced is told so.
    fn unreached(&self, peer: &str, error: Error) -> Error {
        match error {
            error @ (Error::Lost(_) | Error::Timeout(_) | Error::Revoked(_)) => error,
            other => Error::Lost(format!("part {} is not reached at {peer}: {other}", self.hello.part)),
        }
    }

    fn greet_as(&self, peer: &str, turn: &mut u64, pass: Option<Pass>) -> Result<Line> {
        *turn += 1;
        let greeting = Greeting {
            hello: self.hello.clone(),
            user: self.user,
            turn: *turn,
            pass,
        };
        let (caller, mut answer) = (self.callers.caller(peer)?, Vec::new());
        caller.call(&wire::greeting(&greeting)?, &mut answer)?;
        let fetcher = self.new_fetcher(&*caller, peer);
        Ok(Line::new(caller, wire::read_memory(&answer)?, self.reads).fetching(fetcher))
    }

    /// What reads the node's memory, where it offers that: otherwise all reads go by calls.
    fn new_fetcher(&self, caller: &dyn Caller, peer: &str) -> Option<Fetcher> {
        if !self.reads.may_fetch() {
            return None;
        }
        let endpoint = || match &self.fabric {
            Some(fabric) => fabric.connect(peer).ok(),
            None => caller.endpoint(),
        };
        self.fetcher_over(caller, endpoint()?)
    }

    fn fetcher_over(&self, caller: &dyn Caller, endpoint: Arc<dyn Endpoint>) -> Option<Fetcher> {
        let mut answer = Vec::new();
        caller.call(&wire::window(), &mut answer).ok()?;
        let window = wire::answered(&answer).ok()?;
        Fetcher::new(endpoint, &window, self.hello.part).ok()
    }

    /// What fetches a read of so many bytes, if that is how it is done over the connection that there is.
    pub(super) fn fetcher(&self, len: u64) -> Option<Arc<Fetcher>> {
        let line = self.known()?;
        let fetcher = line.fetcher(len)?;
        if fetcher.take_outgrown() {
            let endpoint = Arc::clone(fetcher.endpoint());
            let renewed = self.fetcher_over(&*line.caller, endpoint);
            renewed
                .into_iter()
                .for_each(|renewed| line.renew_fetcher(&fetcher, renewed));
            return line.fetcher(len);
        }
        Some(fetcher)
    }

    /// Whether several reads are fetched where one is. Works that the node's thread carries out are three for each
    /// read, and a call has one access: there, of many, a call takes less than half (`examples/modes.rs`), and what is
    /// measured is one.
    pub(in super::super) fn fetches_many(&self, fetcher: &Fetcher) -> bool {
        self.reads != FarReads::Measured || !fetcher.endpoint().fences_are_free()
    }

    fn leave(&self, line: &Arc<Line>) {
        self.line.lock().take_if(|known| Arc::ptr_eq(known, line));
    }

    /// A connection is made anew that is over, or whose other end does not know us.
    fn check(&self, line: &Arc<Line>, call: &Call) {
        let is_over = |error: &Error| matches!(error, Error::Lost(_)) || wire::is_unheard(error);
        if call.result.as_ref().is_err_and(is_over) {
            self.leave(line);
        }
    }

    // ---- requests ----

    /// Which of these reads are direct; none before there is a connection. (None if there are other accesses beside
    /// them: a message that writes what it reads would read it too late.)
    pub(super) fn direct_from(&self, acts: &[(GlobalAddress, Act<'_>)]) -> DirectFrom {
        if !acts.iter().all(|(_, act)| matches!(act, Act::Read(_))) {
            return DirectFrom::NEVER;
        }
        let lens = acts.iter().map(|(_, act)| act.len());
        let direct = self.known().map_or(DirectFrom::NEVER, |line| line.direct_from(lens));
        self.counted.count(acts.len() - direct.count(acts), FarMode::Plain);
        direct
    }

    /// A message of accesses.
    pub(super) fn call_of(&self, kind: u8, acts: &[(GlobalAddress, Act<'_>)], direct: DirectFrom) -> Call {
        let items: Vec<_> = acts
            .iter()
            .map(|(address, act)| Item::of(*address, act, direct))
            .collect();
        let memory = self.memory(direct.memory_of(acts), direct.count(acts));
        Call::new(wire::accesses(kind, &items, self.buffers.any()))
            .into_memory(memory)
            .into_room(self.buffers.any())
    }

    /// What has come of a message of accesses: an outcome each.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: it is no answer to these.
    pub(super) fn outcomes(
        &self,
        call: Call,
        acts: &mut [(GlobalAddress, Act<'_>)],
        direct: DirectFrom,
    ) -> Result<Vec<Result<Outcome>>> {
        let mut answers = wire::Answers::new(&call.answer, acts.len())?.with_memory(&call.memory, direct);
        let outcomes = acts.iter_mut().map(|(_, act)| answers.next(act)).collect();
        self.give_back(call);
        Ok(outcomes)
    }

    /// A call's buffers are used again.
    pub(in super::super) fn give_back(&self, call: Call) {
        let buffers = [call.request, call.answer, call.memory.into_plain()];
        buffers.into_iter().for_each(|buffer| self.buffers.give(buffer));
    }

    /// The low half of the next number; 0 is none.
    fn next_number(&self) -> u32 {
        loop {
            match (self.number.fetch_add(1, Ordering::Relaxed) + 1) as u32 {
                0 => {}
                number => return number,
            }
        }
    }

    /// Asks, and waits: the call, with its answer.
    ///
    /// # Errors
    /// What was answered; [`Error::Lost`] and [`Error::Timeout`] if nothing was.
    pub(in super::super) fn ask(&self, question: Question) -> Answered<Call> {
        self.ask_if_reached(question, &mut None)
    }

    /// The same, unless the node was not reached before, for that reason. It is set if the node is not reached now.
    fn ask_if_reached(&self, mut question: Question, unreached: &mut Option<Error>) -> Answered<Call> {
        loop {
            let line = unreached.clone().map_or_else(|| self.line(), Err);
            let line = line.map_err(|error| question.unanswered(unreached.insert(error).clone()))?;
            let under_way = self.begin_over(line, vec![question])?;
            match self.end_and_leave_late(under_way).pop() {
                Some(Tried::Answered(call)) => return Ok(call),
                Some(Tried::Again(same, error)) => question = same.again(error)?,
                Some(Tried::Failed(no)) => return Err(no),
                None => return Err(lost_call().into()),
            }
        }
    }

    /// Asks all with one doorbell, and waits for nothing: [`Channel::end`] does.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Timeout`] if the node cannot be reached: then nothing was asked.
    pub(in super::super) fn begin(&self, questions: Vec<Question>) -> Result<RequestsInFlight> {
        let line = self.line()?;
        Ok(self.begin_over(line, questions)?)
    }

    /// As [`Channel::begin`], over this connection.
    fn begin_over(&self, line: Arc<Line>, mut questions: Vec<Question>) -> Answered<RequestsInFlight> {
        let mut calls = Vec::with_capacity(questions.len());
        for question in &mut questions {
            let call = question.call(&line, || self.next_number());
            calls.push(call.map_err(|error| question.unanswered(error))?);
        }
        let called = line.caller.post(calls);
        Ok(RequestsInFlight {
            line,
            called: Some(called),
            questions,
            doubts: Arc::clone(&self.doubts),
        })
    }

    /// What came of what was begun, in the order of the requests. What was given up is not done any more after that, if
    /// the host is there.
    fn end_and_leave_late(&self, mut under_way: RequestsInFlight) -> Vec<Tried> {
        let called = under_way.called.take().expect("they are waited for once");
        let mut calls = called.wait().into_iter();
        let questions = core::mem::take(&mut under_way.questions);
        let line = Arc::clone(&under_way.line);
        let (mut is_late, mut is_in_doubt) = (false, false);
        let judge = |question: Question| {
            let Some(call) = calls.next() else {
                return question.vanished();
            };
            self.check(&line, &call);
            is_late |= question.is_late(&call);
            is_in_doubt |= question.is_in_doubt(&call);
            question.judge(line.memory, call)
        };
        let tried = questions.into_iter().map(judge).collect();
        if is_in_doubt {
            self.leave(&line);
            self.doubts.note();
        }
        if is_late {
            self.line().ok();
        }
        tried
    }

    /// The answers to what was begun, in the order of the requests.
    pub(in super::super) fn end(&self, under_way: RequestsInFlight) -> Vec<Answered<Call>> {
        // A node that is away is tried once, and not by each of them.
        let mut unreached = None;
        let end = |tried| match tried {
            Tried::Answered(call) => Ok(call),
            Tried::Failed(no) => Err(no),
            Tried::Again(question, error) => self.ask_if_reached(question.again(error)?, &mut unreached),
        };
        self.end_and_leave_late(under_way).into_iter().map(end).collect()
    }

    /// Asks all with one doorbell, and nothing twice. The answers, in the order of the requests.
    ///
    /// # Errors
    /// As [`Channel::begin`].
    pub(in super::super) fn post(&self, calls: Vec<Call>) -> Result<Vec<Call>> {
        let line = self.line()?;
        let calls = line.caller.post(calls).wait();
        calls.iter().for_each(|call| self.check(&line, call));
        Ok(calls)
    }

    /// Tells the host of reads of these slots, and waits for nothing: what is lost is a little heat.
    pub(in super::super) fn tell_fetched(&self, slots: &[u32]) {
        if let Some(line) = self.known().filter(|_| !slots.is_empty()) {
            let call = |slot: &u32| Call::new(wire::card_reads(*slot, FETCHES_TOLD));
            drop(line.caller.post(slots.iter().map(call).collect()));
        }
    }

    /// Asks, until the caller is to stop: then the request may still be done.
    pub(in super::super) fn ask_unless(&self, call: Call, is_over: impl Fn() -> bool) -> Result<Vec<u8>> {
        let asked = self.ask_once_unless(call, &is_over)?;
        match asked.result.clone() {
            Err(error) if wire::is_unheard(&error) => self.ask_once_unless(asked, &is_over)?.into_answer(),
            _ => asked.into_answer(),
        }
    }

    fn ask_once_unless(&self, call: Call, is_over: &impl Fn() -> bool) -> Result<Call> {
        let line = self.line()?;
        let mut called = line.caller.post(vec![call]);
        let mut pause = LOOK_MIN;
        while !called.poll() {
            if is_over() {
                return Err(Error::Lost("the host that asked is stopping".into()));
            }
            rt::sleep(pause);
            pause = Nanos(pause.raw() * 2).min(LOOK_MAX);
        }
        let call = called.wait().pop().ok_or_else(lost_call)?;
        self.check(&line, &call);
        Ok(call)
    }
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the way to {}", self.peer())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Repeat;
    use super::*;
    use cenote_fabric::rdma::call::CallerId;

    /// A node that answers everything alike, and counts connections.
    #[derive(Debug, Default)]
    struct Node(Arc<AtomicU64>);

    impl Callers for Node {
        fn caller(&self, _: &str) -> Result<Arc<dyn Caller>> {
            let n = self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(Connection(CallerId(n))))
        }
    }

    #[derive(Debug)]
    struct Connection(CallerId);

    impl Caller for Connection {
        fn peer(&self) -> &str {
            "node"
        }

        fn id(&self) -> CallerId {
            self.0
        }

        fn post(&self, mut calls: Vec<Call>) -> Called {
            calls
                .iter_mut()
                .for_each(|call| call.answer = 7u64.to_le_bytes().to_vec());
            Called::done(calls)
        }
    }

    /// A session ended while changes were on their way that no call waited for: they came when others had its locks.
    #[test]
    fn changes_that_nobody_has_waited_for_are_settled() {
        let node = Node::default();
        let connections = Arc::clone(&node.0);
        let hello = Hello {
            space: 1,
            part: 1,
            key: 1,
            pod: "east".into(),
        };
        let channel = Channel::new(Arc::new(node), "node", hello);
        for (repeat, wanted) in [(Repeat::Freely, 1), (Repeat::Numbered, 2)] {
            let question = Question::new(Call::new(wire::root(None)), repeat);
            drop(channel.begin(vec![question]).expect("posted"));
            channel.settle().expect("reached");
            assert_eq!(connections.load(Ordering::Relaxed), wanted, "{repeat:?}");
        }
        let question = Question::new(Call::new(wire::root(None)), Repeat::Numbered);
        channel.ask(question).expect("answered");
        channel.settle().expect("nothing is in doubt");
        assert_eq!(connections.load(Ordering::Relaxed), 2);
    }

    /// A node that says nothing: each try to connect takes as long as a call may.
    #[derive(Debug, Default)]
    struct Silent(Arc<AtomicU64>);

    impl Callers for Silent {
        fn caller(&self, _: &str) -> Result<Arc<dyn Caller>> {
            rt::sleep(Nanos::from_millis(50));
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Error::Timeout("it says nothing".into()))
        }
    }

    /// Each access to a silent node's part held up its thread for as long as a call may take.
    #[test]
    fn a_silent_node_is_tried_now_and_then() {
        let node = Silent::default();
        let tries = Arc::clone(&node.0);
        let hello = Hello {
            space: 1,
            part: 1,
            key: 1,
            pod: "east".into(),
        };
        let channel = Channel::new(Arc::new(node), "node", hello);
        let has_tried = || {
            let before = tries.load(Ordering::Relaxed);
            assert!(matches!(channel.reach(), Err(Error::Timeout(_))));
            tries.load(Ordering::Relaxed) > before
        };
        assert!(has_tried());
        // This thread may be kept from running for as long as the pause takes, but not each time.
        assert!((0..50).any(|_| !has_tried()));
        let is_tried_again = (0..5000).any(|_| {
            rt::sleep(Nanos::from_millis(1));
            has_tried()
        });
        assert!(is_tried_again);
    }
}
