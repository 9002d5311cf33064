//! Calls over simulated cards: [`cenote_fabric::rdma::call`] in virtual time, with the faults of the verbs.
//!
//! The program of a node runs in a thread of its own, that which [serves](MemoryNode::serve): a simulated process as a
//! rule, so that it may take locks, and be killed. The node's memory outlives it; its callers are lost, and so are
//! those of a program before.
//!
//! ```text
//!   post: doorbell ─► my card: an operation, my direction ─► the node's direction ─► one way of a message of that size
//!                                       at the node: inbox ─► the server's thread: processor time, Serve::serve
//!   answer: the node's direction ─► mine ─► one way of a message of its size ─► complete
//! ```
//!
//! One way of a message is what a write of its size takes, less the way back of the smallest.
//!
//! A call has one event to come, beside the one that ends its time:
//!
//! ```text
//!   Request ──arrives──► Look, again and again while the program has it ──answered──► Answer ──arrives──► complete
//!     └ lost: again, at last Timeout or Lost    └ no server, twice: Lost                   └ lost: again, at last Timeout or Lost
//! ```
//!
//! A connection may break under a message (`Faults::breaks`), and a request that its caller has given up come all the
//! same (`Faults::straggle`): it is served if the node has not told the end of that connection, and its answer goes
//! nowhere.
//!
//! Events happen when a thread looks at the network. A thread sleeps until the next event that concerns it, and is
//! woken when an earlier one is planned: by `post`, by an answer, by a connection's end.
//!
//! Invariants: a request enters the inbox once, and leaves it once; nothing of a caller is served after its end was
//! told.

use super::{Life, MemoryNode, Network, Port, State, unreachable};
use crate::{clock, state};
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::profile::Profile;
use cenote_fabric::rdma::call::{
    Answer, Answered, Answering, Call, Called, Caller, CallerId, Callers, CallsInFlight, LIMIT, Memory, Registered,
    Serve, TIMEOUT,
};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a message has beside a request or an answer.
const HEAD: u64 = 48;

/// What serving takes, and when it gives callers up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Serving {
    /// Processor time of a call, beside what the program itself takes. (Assumed: a message taken and one sent.)
    pub cost: Nanos,
    /// How long a caller that has called may be silent before its end is told.
    pub silence: Nanos,
    /// Bytes a second that a processor copies into its card's buffers: answers, and what goes into memory that callers
    /// lend of their own. What goes into memory that a card writes to, it fetches beside the program. None: neither
    /// takes time of its own.
    pub copies: Option<f64>,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            cost: Nanos(600),
            silence: Nanos::from_millis(50),
            copies: None,
        }
    }
}

/// A time, and a number that makes it unique.
type Key = (Nanos, u64);

/// The group of calls whose callers have given them up.
const NOBODYS: u64 = 0;

/// All calls of a network.
#[derive(Default)]
pub(super) struct Calls {
    groups: BTreeMap<u64, Group>,
    under_way: BTreeMap<u64, Asked>,
    events: BTreeMap<Key, (Event, u64)>,
    /// By node: what serves there.
    servers: BTreeMap<usize, Server>,
    counted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The request arrives at the node.
    Request,
    /// Is a server there?
    Look,
    /// The answer arrives at the caller.
    Answer,
    /// The call's time is over.
    Late,
}

/// Calls that were posted together. (Not a `call::Set`: its lock is a preemption point, and the network's is held
/// here.)
struct Group {
    calls: Vec<Call>,
    /// What they are called while they are under way.
    numbers: Vec<u64>,
    left: usize,
    /// They will not be asked for.
    dropped: bool,
}

/// A call under way.
struct Asked {
    line: Line,
    group: u64,
    index: usize,
    /// Moves on when an event of the call is planned that its waiter does not know.
    news: Arc<AtomicU32>,
    /// While it is on its way.
    request: Vec<u8>,
    /// Bytes of memory that it lends.
    room: usize,
    /// The node's card writes to them by itself.
    by_card: bool,
    answer: Option<Result<Reply>>,
    resent: u32,
    next: Option<Key>,
    late: Key,
}

/// An answer, and what goes into the caller's memory.
type Reply = (Vec<u8>, Vec<u8>);

/// The caller, and the node that it calls.
#[derive(Clone)]
struct Line {
    caller: CallerId,
    host: usize,
    node: usize,
    /// The server that drew the caller's number.
    server: u64,
    /// Of the connected caller.
    life: Life,
    broken: Arc<AtomicBool>,
}

/// A program that serves.
struct Server {
    number: u64,
    life: Life,
    /// Moves on when there is something to do, or an earlier event was planned.
    news: Arc<AtomicU32>,
    inbox: VecDeque<u64>,
    callers: BTreeMap<CallerId, Session>,
}

struct Session {
    line: Line,
    called: bool,
    /// The caller has been dropped.
    closing: bool,
    heard: Nanos,
}

/// A request, and how much memory it lends.
type Request = (Vec<u8>, usize);

/// What a server does next.
enum Step {
    Serve(CallerId, u64, Request),
    Ended(CallerId),
    /// Nothing, until that time.
    Sleep(Nanos),
    Over,
}

fn tell(news: &AtomicU32) {
    news.fetch_add(1, Ordering::Release);
    rt::wake(news, usize::MAX);
}

impl MemoryNode {
    /// Serves calls with `program`, in the calling thread, until the node is lost or another serves in its place. If
    /// the thread's process is killed, callers find no server.
    pub fn serve(&self, program: &dyn Serve, serving: Serving) {
        let (number, news) = self.begin_serving();
        loop {
            let seen = news.load(Ordering::Acquire);
            match self.step(number, serving) {
                Step::Serve(caller, call, (request, room)) => {
                    rt::spend(serving.cost);
                    let to = Arc::new(Replies {
                        node: self.clone(),
                        copies: serving.copies,
                    });
                    let answer = Answer::new(caller, call, to).with_room(room);
                    program.serve(caller, &request, answer);
                }
                Step::Ended(caller) => program.ended(caller),
                Step::Sleep(until) => {
                    let left = (until != Nanos::MAX).then(|| clock::host_span(until - state::true_now()));
                    rt::wait(&news, seen, left);
                }
                Step::Over => return,
            }
        }
    }

    /// Whether a program serves calls now.
    pub fn is_served(&self) -> bool {
        let state = self.network.today();
        let server = state.calls.servers.get(&self.index);
        server.is_some_and(|s| !s.life.is_over())
    }

    fn begin_serving(&self) -> (u64, Arc<AtomicU32>) {
        let life = Life::new(&Arc::default());
        let news = Arc::new(AtomicU32::new(0));
        let mut state = self.network.today();
        let number = state.calls.count();
        let server = Server {
            number,
            life,
            news: Arc::clone(&news),
            inbox: VecDeque::new(),
            callers: BTreeMap::new(),
        };
        let before = state.calls.servers.insert(self.index, server);
        drop(state);
        before.iter().for_each(|s| tell(&s.news));
        (number, news)
    }

    fn step(&self, number: u64, serving: Serving) -> Step {
        let now = state::true_now();
        let mut state = self.network.state();
        state.catch_up(now);
        state.serve_next(self.index, number, serving, now)
    }

    /// The node's server is told to look.
    pub(super) fn tell_server(&self) {
        let state = self.network.state();
        let news = state.calls.servers.get(&self.index).map(|s| Arc::clone(&s.news));
        drop(state);
        news.iter().for_each(|n| tell(n));
    }
}

/// Where a node's answers go.
#[derive(Clone)]
struct Replies {
    node: MemoryNode,
    copies: Option<f64>,
}

impl Replies {
    /// Whether the node's card fetches what goes into the memory of a call.
    fn is_by_card(&self, call: u64) -> bool {
        let state = self.node.network.state();
        self.copies.is_some() && state.calls.under_way.get(&call).is_some_and(|asked| asked.by_card)
    }

    /// The program's thread copies so many bytes, which has taken so long.
    fn spend_copying(&self, bytes: usize, took: Nanos) {
        if let Some(speed) = self.copies {
            let whole = Nanos((bytes as f64 * 1e9 / speed) as u64);
            rt::spend(Nanos(whole.raw().saturating_sub(took.raw())));
        }
    }

    fn settle(&self, answer: Answered) -> Reply {
        // Where sources are read others may come between.
        let began = rt::now();
        let (bytes, filled) = answer.settle();
        self.spend_copying(filled.len(), rt::now().since(began));
        self.spend_copying(bytes.len(), Nanos::ZERO);
        (bytes, filled)
    }

    fn send(&self, call: u64, answer: Result<Reply>) {
        let now = state::true_now();
        let network = &self.node.network;
        let mut state = network.state();
        state.catch_up(now);
        let news = state.send_answer(call, answer, now, &network.0.profile);
        drop(state);
        news.iter().for_each(|n| tell(n));
    }
}

impl Answering for Replies {
    fn answered(&self, _: CallerId, call: u64, answer: Result<Answered>) {
        let by_card = answer.as_ref().is_ok_and(|answer| answer.source.is_some()) && self.is_by_card(call);
        if !by_card {
            return self.send(call, answer.map(|answer| self.settle(answer)));
        }
        let card = self.clone();
        rt::spawn("card", move || card.send(call, answer.map(Answered::settle)));
    }
}

impl Calls {
    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    fn plan(&mut self, time: Nanos, event: Event, call: u64) -> Key {
        let key = (time, self.count());
        self.events.insert(key, (event, call));
        key
    }

    /// The next event of a call.
    fn plan_next(&mut self, time: Nanos, event: Event, call: u64) {
        let key = self.plan(time, event, call);
        if let Some(asked) = self.under_way.get_mut(&call)
            && let Some(before) = asked.next.replace(key)
        {
            self.events.remove(&before);
        }
    }

    /// A call is complete.
    fn complete(&mut self, call: u64, answer: Result<Reply>) {
        if let Some(asked) = self.under_way.remove(&call) {
            self.events.remove(&asked.late);
            asked.next.into_iter().for_each(|key| {
                self.events.remove(&key);
            });
            self.finish(asked.group, asked.index, asked.request, answer);
        }
    }

    /// For its caller a call is complete; it goes on without him.
    fn let_down(&mut self, call: u64, error: Error) {
        if let Some(asked) = self.under_way.get_mut(&call) {
            let group = std::mem::replace(&mut asked.group, NOBODYS);
            let (index, request) = (asked.index, asked.request.clone());
            asked.resent = 0;
            self.finish(group, index, request, Err(error));
        }
    }

    fn finish(&mut self, id: u64, index: usize, request: Vec<u8>, answer: Result<Reply>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let call = &mut group.calls[index];
        call.request = request;
        (call.answer, call.result) = match answer {
            Ok((bytes, filled)) => {
                call.memory[..filled.len()].copy_from_slice(&filled);
                (bytes, Ok(()))
            }
            Err(error) => (Vec::new(), Err(error)),
        };
        group.left -= 1;
        if group.dropped && group.left == 0 {
            self.groups.remove(&id);
        }
    }

    /// The first event that a server of `node` has to run for.
    fn next_request(&self, node: usize) -> Nanos {
        let first = self
            .events
            .iter()
            .find(|(_, (event, call))| *event == Event::Request && self.under_way[call].line.node == node);
        first.map_or(Nanos::MAX, |(key, _)| key.0)
    }
}

impl State {
    /// Whether no message passes between a caller and its server.
    fn is_severed(&self, line: &Line) -> bool {
        let node = &self.nodes[line.node];
        let server = self.calls.servers.get(&line.node);
        node.memory.is_lost()
            || self.cuts.contains(&(line.host, line.node))
            || server.is_none_or(|s| s.number != line.server || s.life.is_over())
    }

    /// Whether it is an answer of a server that has died since, and arrives all the same.
    fn is_left_behind(&mut self, event: Event, line: &Line) -> bool {
        let way = !self.nodes[line.node].memory.is_lost() && !self.cuts.contains(&(line.host, line.node));
        event == Event::Answer && way && self.dice.chance(0.5)
    }

    /// Whether the server, being there, does not know the caller: it, or another before it, has told its end.
    fn is_unknown(&self, line: &Line) -> bool {
        let server = self.calls.servers.get(&line.node);
        server.is_some_and(|s| !s.life.is_over() && !s.callers.contains_key(&line.caller))
    }

    /// Starts calls; their group.
    fn ask_all(&mut self, line: &Line, calls: Vec<Call>, news: &Arc<AtomicU32>, now: Nanos, profile: &Profile) -> u64 {
        let (group, left) = (self.calls.count(), calls.len());
        let begun = Group {
            calls,
            numbers: Vec::with_capacity(left),
            left,
            dropped: false,
        };
        self.calls.groups.insert(group, begun);
        let broken = line.broken.load(Relaxed);
        for index in 0..left {
            let call = &mut self.calls.groups.get_mut(&group).expect("it has calls left").calls[index];
            let lost = broken.then(|| unreachable(self.nodes[line.node].memory.name()));
            let wrong = call.check().err().or(lost);
            let (request, timeout) = (std::mem::take(&mut call.request), call.timeout);
            let room = (call.memory.len(), matches!(call.memory, Memory::Registered(_)));
            match wrong {
                Some(error) => self.calls.finish(group, index, request, Err(error)),
                None => self.ask((line, news), (group, index), (request, room), timeout, now, profile),
            }
        }
        group
    }

    fn ask(
        &mut self,
        (line, news): (&Line, &Arc<AtomicU32>),
        (group, index): (u64, usize),
        (request, (room, by_card)): (Vec<u8>, (usize, bool)),
        timeout: Option<Nanos>,
        now: Nanos,
        profile: &Profile,
    ) {
        let call = self.calls.count();
        let bytes = request.len() as u64 + HEAD;
        let late = self.calls.plan(now + timeout.unwrap_or(TIMEOUT), Event::Late, call);
        let (mine, theirs) = (self.card(line.host, profile), Arc::clone(&self.nodes[line.node].card));
        let mut at = now + mine.operations.as_ref().map_or(Nanos::ZERO, |o| o.wait(now, 1));
        at += mine.outbound.wait(at, bytes);
        at += theirs.inbound.wait(at, bytes);
        at += one_way(bytes, profile) + self.late();
        let asked = Asked {
            line: line.clone(),
            group,
            index,
            news: Arc::clone(news),
            request,
            room,
            by_card,
            answer: None,
            resent: 0,
            next: None,
            late,
        };
        self.calls.under_way.insert(call, asked);
        let its = self.calls.groups.get_mut(&group).expect("it has calls left");
        its.numbers.push(call);
        self.calls.plan_next(at, Event::Request, call);
    }

    /// An answer leaves the node; whom to tell.
    fn send_answer(
        &mut self,
        call: u64,
        answer: Result<Reply>,
        now: Nanos,
        profile: &Profile,
    ) -> Option<Arc<AtomicU32>> {
        let line = self.calls.under_way.get(&call)?.line.clone();
        let bytes = answer.as_ref().map_or(0, |(a, filled)| (a.len() + filled.len()) as u64) + HEAD;
        let (mine, theirs) = (self.card(line.host, profile), Arc::clone(&self.nodes[line.node].card));
        let mut at = now + theirs.outbound.wait(now, bytes);
        at += mine.inbound.wait(at, bytes);
        at += one_way(bytes, profile) + self.late();
        let asked = self.calls.under_way.get_mut(&call)?;
        (asked.answer, asked.resent) = (Some(answer), 0);
        let news = Arc::clone(&asked.news);
        self.calls.plan_next(at, Event::Answer, call);
        Some(news)
    }

    /// Lets everything happen that was planned for calls until `now`.
    pub(super) fn catch_up_calls(&mut self, now: Nanos) {
        while let Some(first) = self.calls.events.first_entry().filter(|e| e.key().0 <= now) {
            let ((time, _), (event, call)) = first.remove_entry();
            self.happens(event, call, time);
        }
    }

    fn happens(&mut self, event: Event, call: u64, time: Nanos) {
        let Some(asked) = self.calls.under_way.get_mut(&call) else {
            return;
        };
        if event == Event::Late {
            let late = Error::Timeout(format!(
                "{}: no answer in time",
                self.nodes[asked.line.node].memory.name()
            ));
            return match self.faults.straggle.0 > 0 && self.dice.chance(0.5) {
                true => self.calls.let_down(call, late),
                false => self.calls.complete(call, Err(late)),
            };
        }
        asked.next = None;
        let line = asked.line.clone();
        if event == Event::Request && line.life.is_over() && self.dice.chance(0.5) {
            return self
                .calls
                .complete(call, Err(Error::Lost("its sender has died".into())));
        }
        let severed = self.is_severed(&line) && !self.is_left_behind(event, &line);
        if !severed && event != Event::Answer && self.is_unknown(&line) {
            return self.lose_call(call, &line);
        }
        if !severed && event != Event::Look && self.dice.chance(self.faults.breaks) {
            return self.break_line(event, call, &line, time);
        }
        let lost = severed || event != Event::Look && self.dice.chance(self.faults.loss);
        match lost {
            true => self.again(event, call, severed, time),
            false => self.arrives(event, call, time),
        }
    }

    /// A message was lost, or no server is there: again, or not any more.
    fn again(&mut self, event: Event, call: u64, severed: bool, time: Nanos) {
        let faults = self.faults;
        let Some(asked) = self.calls.under_way.get_mut(&call) else {
            return;
        };
        asked.resent += 1;
        let line = asked.line.clone();
        if asked.resent <= faults.resends {
            return self.calls.plan_next(time + faults.resend, event, call);
        }
        let name = self.nodes[line.node].memory.name();
        if severed {
            line.broken.store(true, Relaxed);
            let lost = unreachable(name);
            return self.give_up(event, call, lost, time);
        }
        let late = Error::Timeout(format!("memory node {name}: no answer in time"));
        self.give_up(event, call, late, time);
    }

    /// A connection is over. What is under way over it is lost for its caller.
    fn break_line(&mut self, event: Event, call: u64, line: &Line, time: Nanos) {
        line.broken.store(true, Relaxed);
        let lost = unreachable(self.nodes[line.node].memory.name());
        self.give_up(event, call, lost.clone(), time);
        let all = self.calls.under_way.iter();
        let of_line = all.filter(|(other, asked)| **other != call && asked.line.caller == line.caller);
        let others: Vec<u64> = of_line.map(|(other, _)| *other).collect();
        for other in others {
            self.calls.let_down(other, lost.clone());
        }
    }

    /// No caller waits for a call any more, at an event of it. A request may come all the same.
    fn give_up(&mut self, event: Event, call: u64, error: Error, time: Nanos) {
        let most = self.faults.straggle.0;
        let comes = event == Event::Request && most > 0 && self.dice.chance(0.5);
        if !comes {
            return self.calls.complete(call, Err(error));
        }
        let later = time + Nanos(1 + self.dice.below(most));
        self.calls.let_down(call, error);
        self.calls.plan_next(later, Event::Request, call);
    }

    fn lose_call(&mut self, call: u64, line: &Line) {
        line.broken.store(true, Relaxed);
        let lost = unreachable(self.nodes[line.node].memory.name());
        self.calls.complete(call, Err(lost));
    }

    fn arrives(&mut self, event: Event, call: u64, time: Nanos) {
        let look = time + self.faults.resend;
        let Some(asked) = self.calls.under_way.get_mut(&call) else {
            return;
        };
        asked.resent = 0;
        match event {
            Event::Request => {
                let node = asked.line.node;
                let server = self.calls.servers.get_mut(&node);
                server.into_iter().for_each(|s| s.inbox.push_back(call));
                self.calls.plan_next(look, Event::Look, call);
            }
            Event::Answer => {
                let none = || Err(Error::Invalid("an answer without one".into()));
                let answer = asked.answer.take().unwrap_or_else(none);
                self.calls.complete(call, answer);
            }
            Event::Look | Event::Late => self.calls.plan_next(look, Event::Look, call),
        }
    }

    fn serve_next(&mut self, node: usize, number: u64, serving: Serving, now: Nanos) -> Step {
        let lost = self.nodes[node].memory.is_lost();
        let Some(server) = self
            .calls
            .servers
            .get_mut(&node)
            .filter(|s| s.number == number && !lost)
        else {
            return Step::Over;
        };
        while let Some(call) = server.inbox.pop_front() {
            let Some(asked) = self.calls.under_way.get_mut(&call) else {
                // Its time was over before it was looked at.
                continue;
            };
            if let Some(session) = server.callers.get_mut(&asked.line.caller) {
                (session.called, session.heard) = (true, now);
                let request = (asked.request.clone(), asked.room);
                return Step::Serve(asked.line.caller, call, request);
            }
        }
        if let Some(caller) = self.ended_caller(node, serving.silence, now) {
            return Step::Ended(caller);
        }
        let server = &self.calls.servers[&node];
        let watch = server.callers.values().any(|s| s.called || s.closing);
        let look = if watch {
            now + Nanos(serving.silence.0 / 4)
        } else {
            Nanos::MAX
        };
        Step::Sleep(self.calls.next_request(node).min(look))
    }

    /// A caller that has said that it goes, or was silent for too long; its number ends.
    fn ended_caller(&mut self, node: usize, silence: Nanos, now: Nanos) -> Option<CallerId> {
        let callers = &self.calls.servers[&node].callers;
        let hears = |s: &Session| !s.line.life.is_over() && !self.is_severed(&s.line);
        let heard: Vec<(CallerId, bool)> = callers.iter().map(|(id, s)| (*id, hears(s))).collect();
        for (id, hears) in heard {
            let server = self.calls.servers.get_mut(&node)?;
            let session = server.callers.get_mut(&id)?;
            session.heard = if hears { now } else { session.heard };
            let (called, silent) = (session.called, now.since(session.heard));
            let is_open = |calls: &BTreeMap<u64, Asked>| calls.values().any(|a| a.line.caller == id);
            if hears && session.closing && !is_open(&self.calls.under_way) || silent > silence {
                server.callers.remove(&id);
                if called {
                    return Some(id);
                }
            }
        }
        None
    }
}

/// What a message takes from card to card, alone.
fn one_way(bytes: u64, profile: &Profile) -> Nanos {
    let time = profile.write_time(bytes) - profile.write_time(1) / 2.0 - profile.doorbell_ns / 2.0;
    Nanos(time.max(1.0) as u64)
}

impl Callers for Port {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        let now = state::true_now();
        let node = self.find(peer)?;
        let life = Life::new(&self.closed);
        let mut state = self.network.today();
        let id = CallerId(state.calls.count());
        let server = state.calls.servers.get_mut(&node).filter(|s| !s.life.is_over());
        let server = server.ok_or_else(|| unreachable(peer))?;
        let line = Line {
            caller: id,
            host: self.host,
            node,
            server: server.number,
            life,
            broken: Arc::default(),
        };
        let session = Session {
            line: line.clone(),
            called: false,
            closing: false,
            heard: now,
        };
        server.callers.insert(id, session);
        Ok(Arc::new(Telephone {
            network: self.network.clone(),
            peer: peer.to_owned(),
            line,
        }))
    }
}

/// A connection of a host to the program of a node.
struct Telephone {
    network: Network,
    peer: String,
    line: Line,
}

impl fmt::Debug for Telephone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "caller {} (host {} to {})",
            self.line.caller.0, self.line.host, self.peer
        )
    }
}

impl Telephone {
    fn node(&self) -> MemoryNode {
        MemoryNode {
            network: self.network.clone(),
            index: self.line.node,
        }
    }
}

impl Caller for Telephone {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn id(&self) -> CallerId {
        self.line.caller
    }

    fn post(&self, calls: Vec<Call>) -> Called {
        if calls.is_empty() {
            return Called::done(calls);
        }
        let profile = &self.network.0.profile;
        rt::spend(Nanos(profile.doorbell_ns as u64));
        let (now, news) = (state::true_now(), Arc::new(AtomicU32::new(0)));
        let mut state = self.network.state();
        state.catch_up(now);
        let group = state.ask_all(&self.line, calls, &news, now, profile);
        drop(state);
        self.node().tell_server();
        Called::new(Box::new(Waiting {
            network: self.network.clone(),
            group,
            news,
        }))
    }

    /// The node's card reaches all memory. What comes when its call is over goes nowhere, as its key is of that call.
    fn lend(&self, len: usize) -> Option<Memory> {
        (len <= LIMIT).then(|| Memory::Registered(Box::new(Lent(vec![0; len]))))
    }
}

/// Memory that a node's card writes to.
struct Lent(Vec<u8>);

impl Registered for Lent {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Telephone {
    fn drop(&mut self) {
        let mut state = self.network.state();
        let server = state.calls.servers.get_mut(&self.line.node);
        let session = server.and_then(|s| s.callers.get_mut(&self.line.caller));
        session.into_iter().for_each(|s| s.closing = true);
        drop(state);
        self.node().tell_server();
    }
}

/// Calls whose answers will be asked for, or not.
struct Waiting {
    network: Network,
    group: u64,
    news: Arc<AtomicU32>,
}

impl Waiting {
    /// When to look again; `None`: all are complete.
    fn next_look(&self) -> Option<Nanos> {
        let now = state::true_now();
        let mut state = self.network.state();
        state.catch_up(now);
        let (calls, group) = (&state.calls, state.calls.groups.get(&self.group));
        let group = group.filter(|g| g.left > 0)?;
        let under_way = group.numbers.iter().filter_map(|call| calls.under_way.get(call));
        let mine = under_way.filter(|a| a.group == self.group);
        let next = mine.flat_map(|a| [Some(a.late.0), a.next.map(|n| n.0)]).flatten().min();
        Some(next.unwrap_or(now).max(now + Nanos(1)))
    }
}

impl CallsInFlight for Waiting {
    fn poll(&mut self) -> bool {
        self.next_look().is_none()
    }

    fn wait(self: Box<Self>) -> Vec<Call> {
        loop {
            let seen = self.news.load(Ordering::Acquire);
            let Some(next) = self.next_look() else {
                let group = self.network.state().calls.groups.remove(&self.group);
                return group.map_or(Vec::new(), |g| g.calls);
            };
            let left = next - state::true_now();
            let projects = state::is_running() && state::with(|s| s.schedule.projects());
            if projects && left <= self.network.state().polling {
                rt::spend(left);
                rt::preempt();
            } else {
                rt::wait(&self.news, seen, Some(clock::host_span(left)));
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.network.state();
        if let Some(group) = state.calls.groups.get_mut(&self.group) {
            group.dropped = true;
            if group.left == 0 {
                state.calls.groups.remove(&self.group);
            }
        }
    }
}
