//! A node's part in the replicated log: the Raft library driven by one thread, over this crate's log and peers.
//!
//! ```text
//!  messages of peers ─┐                    ┌─▶ messages to peers
//!  commands ──────────┼─▶ inbox ─▶ thread ─┼─▶ Raft log: written, synced
//!  time ──────────────┘            Raft    └─▶ committed entries ─▶ state ─▶ whoever proposed them
//!                                                     └─▶ `applied`: pages take them from the log
//! ```
//!
//! Each turn: step what has come; carry out what is committed; write new entries and votes; send. Then a sync, during
//! which turns go on where it takes long ([`crate::turns`]). A leader's messages with new entries go out before its own
//! sync, so that the nodes sync side by side.
//!
//! Invariants:
//! - a vote, and the word that an entry was received, are sent only after they are synced;
//! - a command is answered once it is committed and carried out here; or with "unknown" when this node loses the lead,
//!   and its client asks again: commands that come twice are carried out once;
//! - an error of the log ends the node;
//! - a leader whose drive holds up what the others have synced lets one of them lead;
//! - a node that is given a state of the leader's ([`crate::snapshot`]) saves it, begins its log anew behind it, and
//!   ends, to be started anew: then all that was in memory is of the new state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Lsn, Result};
use cenote_storage::nodes::LogEnd;
use prost::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{
    Config, GetEntriesContext, RaftState, RawNode, ReadOnlyOption, Ready, SnapshotStatus, StateRole, Storage,
    StorageError,
};

use crate::awaited::{Awaited, Sync};
use crate::command::Command;
use crate::machine::{Machine, Outcome};
use crate::pages::Checkpoint;
use crate::peers::Peers;
use crate::raft_log::RaftLog;
use crate::snapshot::{Given, Offer, Pending};
use crate::snapshots::Snapshots;
use crate::state_file::StateFile;
use crate::usage::Usage;

/// The unit of Raft's time.
const TICK: Nanos = Nanos::from_millis(50);
/// Ticks between a leader's heartbeats; and without one, before another node wants to lead: so many, or up to twice.
const HEARTBEAT: usize = 2;
const ELECTION: usize = 20;
/// Bytes of entries in one message, and messages under way to a node.
const MESSAGE_BYTES: u64 = 256 << 10;
const IN_FLIGHT: usize = 64;
/// Bytes of entries that are carried out at a time.
const COMMITTED_BYTES: u64 = 4 << 20;
/// Bytes of commands that are proposed and not committed; more are refused.
const UNCOMMITTED_BYTES: u64 = 64 << 20;
/// Bytes of the log in memory alone, with which a node takes no more entries of others.
const UNWRITTEN_MOST: u64 = 64 << 20;
/// Messages of peers that wait; more are dropped, which Raft makes good.
const MESSAGES_MAX: usize = 4096;
/// How long a node that gave up the lead lets others be first, and keeps it if it has it again.
const GIVE_WAY: Nanos = Nanos::from_secs(10);
/// That time is doubled so often at most.
const WAYS_MOST: u32 = 6;
/// A leader whose drive takes so long for what a majority of the others has synced gives up the lead.
const HOLDS_UP: Nanos = Nanos::from_millis(500);
/// What has taken so long may come to that: the others' drives are tried.
const PROBED: Nanos = Nanos::from_millis(100);
/// A tick that comes so much too late says that this machine does not keep up.
const LATE: Nanos = Nanos::from_millis(150);
/// Between two messages about a node that has been away for too long.
const SAID_AGAIN: Nanos = Nanos::from_secs(60);
/// Tickets under way, before those without a waiting client are dropped.
const TICKETS_MAX: usize = 1024;

/// What becomes of a command, or a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What became of it, and the entry that it is.
    Outcome(Outcome, u64),
    /// The state is known to be as new as when it was asked for.
    Current,
    NotLeader {
        leader: u64,
    },
    /// Whether it will be carried out is unknown.
    Unknown,
}

/// Where the answer to one command comes.
#[derive(Default)]
pub(crate) struct Ticket {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

impl Ticket {
    fn answer(&self, answer: Answer) {
        self.answer.lock().get_or_insert(answer);
        self.answered.notify_all();
    }

    fn wait(&self, timeout: Nanos) -> Answer {
        let until = rt::now() + timeout;
        let mut answer = self.answer.lock();
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            let left = until.since(rt::now());
            if left == Nanos::ZERO {
                return Answer::Unknown;
            }
            answer = self.answered.wait_timeout(answer, left).0;
        }
    }
}

enum Job {
    /// With the identity of the directory of the node that sent it.
    Message(Box<Message>, u128),
    Propose {
        command: Vec<u8>,
        ticket: Arc<Ticket>,
    },
    Confirm {
        ticket: Arc<Ticket>,
        what: Confirmed,
    },
}

/// What a majority is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// The state here is as new as when it was asked for.
    State,
    /// This node leads, and has carried out all that was acknowledged before: what is committed and not carried out
    /// here is acknowledged by none, since this node alone would. Its drive is not waited for.
    Lead,
}

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    messages: usize,
    is_closed: bool,
    /// When Raft's time goes on.
    tick_at: Nanos,
    /// Since when the thread that takes turns waits for the drive.
    sync_began: Option<Nanos>,
}

/// What has come since the last turn.
pub(crate) struct Work {
    jobs: VecDeque<Job>,
    ticks: u32,
}

/// Whether a node has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    None,
    /// It cannot go on.
    Failed,
    /// It was given a state, with which it is to be started anew.
    Anew,
}

/// What others may know of the replica.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub leader: u64,
    pub term: u64,
    pub committed: u64,
    pub applied: u64,
    /// The entry that every node is known to have; `None` where this node does not lead.
    pub everywhere: Option<u64>,
    /// The state as of `applied`: the start that has the database, and where its log ends.
    pub epoch: u64,
    pub record: Arc<[u8]>,
    pub control: Option<Arc<[u8]>>,
    pub log: LogEnd,
    pub replaced: Arc<BTreeMap<u64, u128>>,
    pub registered: Arc<BTreeMap<u64, u128>>,
    pub usage: Usage,
    pub snapshots: Arc<Snapshots>,
    /// Why the node has ended.
    pub failed: Option<Error>,
    /// It ends because it was given a state, with which it is to be started anew.
    pub begins_anew: bool,
}

/// What the thread and its users share.
pub(crate) struct Replica {
    pub log: Arc<Mutex<RaftLog>>,
    inbox: Mutex<Inbox>,
    came: Condvar,
    /// A sync that takes long is looked for, or the node ends.
    stalled: Condvar,
    view: Mutex<View>,
    moved: Condvar,
    /// When a tick was late last.
    late_at: AtomicU64,
    /// Until the thread has it.
    machine: Mutex<Option<Machine>>,
}

impl Default for View {
    fn default() -> View {
        View {
            leader: 0,
            term: 0,
            committed: 0,
            applied: 0,
            everywhere: None,
            epoch: 0,
            record: Arc::default(),
            control: None,
            log: LogEnd::at_origin(Lsn::ZERO),
            replaced: Arc::default(),
            registered: Arc::default(),
            usage: Usage::default(),
            snapshots: Arc::default(),
            failed: None,
            begins_anew: false,
        }
    }
}

impl View {
    fn note(&mut self, applied: u64, machine: &Machine) {
        self.applied = applied;
        self.epoch = machine.epoch();
        self.record = Arc::clone(machine.record());
        self.control = machine.control().cloned();
        self.log = machine.log();
        self.replaced = Arc::clone(machine.replaced());
        self.registered = Arc::clone(machine.registered());
        self.usage = machine.usage();
        self.snapshots = Arc::clone(machine.snapshots());
    }
}

impl Replica {
    /// Of a node whose state is `machine`, as of entry `applied`.
    pub fn new(log: RaftLog, machine: Machine, applied: u64) -> Replica {
        let mut view = View::default();
        view.note(applied, &machine);
        Replica {
            log: Arc::new(Mutex::new(log)),
            inbox: Mutex::new(Inbox {
                tick_at: rt::now() + TICK,
                ..Inbox::default()
            }),
            came: Condvar::default(),
            stalled: Condvar::default(),
            view: Mutex::new(view),
            moved: Condvar::default(),
            late_at: AtomicU64::new(0),
            machine: Mutex::new(Some(machine)),
        }
    }

    /// A message of another node.
    pub fn receive(&self, message: Message, identity: u128) {
        let mut inbox = self.inbox.lock();
        if inbox.messages < MESSAGES_MAX {
            inbox.messages += 1;
            inbox.jobs.push_back(Job::Message(Box::new(message), identity));
            drop(inbox);
            self.came.notify_one();
        }
    }

    /// Has a command carried out; waits so long at most.
    pub fn propose(&self, command: Vec<u8>, timeout: Nanos) -> Answer {
        let ticket = Arc::new(Ticket::default());
        let job = Job::Propose {
            command,
            ticket: Arc::clone(&ticket),
        };
        self.ask(job, &ticket, timeout)
    }

    /// Asks a majority whether this node leads still.
    pub fn confirm(&self, what: Confirmed, timeout: Nanos) -> Answer {
        let ticket = Arc::new(Ticket::default());
        let job = Job::Confirm {
            ticket: Arc::clone(&ticket),
            what,
        };
        self.ask(job, &ticket, timeout)
    }

    fn ask(&self, job: Job, ticket: &Ticket, timeout: Nanos) -> Answer {
        {
            let mut inbox = self.inbox.lock();
            if inbox.is_closed {
                return Answer::Unknown;
            }
            inbox.jobs.push_back(job);
        }
        self.came.notify_one();
        ticket.wait(timeout)
    }

    pub fn view(&self) -> View {
        self.view.lock().clone()
    }

    /// The last entry that is carried out; waits a while for one behind `known`. `None`: the node ends.
    pub fn wait_applied(&self, known: u64, timeout: Nanos) -> Option<u64> {
        let view = self.view.lock();
        let is_news = |view: &View| view.applied > known || view.failed.is_some();
        let view = match is_news(&view) {
            true => view,
            false => self.moved.wait_timeout(view, timeout).0,
        };
        match view.failed {
            Some(_) => None,
            None => Some(view.applied),
        }
    }

    /// Ends the thread, and whatever waits for it.
    pub fn close(&self) {
        self.inbox.lock().is_closed = true;
        self.came.notify_all();
        self.stalled.notify_all();
    }

    /// The node cannot go on.
    pub fn fail(&self, error: &Error) {
        self.view.lock().failed.get_or_insert_with(|| error.clone());
        self.moved.notify_all();
        self.close();
    }

    /// Waits a while for the node's end.
    pub fn wait_end(&self, timeout: Nanos) -> End {
        let mut view = self.view.lock();
        if view.failed.is_none() {
            view = self.moved.wait_timeout(view, timeout).0;
        }
        match (&view.failed, view.begins_anew) {
            (None, _) => End::None,
            (Some(_), true) => End::Anew,
            (Some(_), false) => End::Failed,
        }
    }

    // ---- the threads ----

    /// Waits for something to do in a turn; false: the node ends, or the sync is over for which a thread stands in, by
    /// when it began.
    pub fn wait_for_jobs(&self, stands_in: Option<Nanos>) -> bool {
        let mut inbox = self.inbox.lock();
        loop {
            if inbox.is_closed || stands_in.is_some() && inbox.sync_began != stands_in {
                return false;
            }
            let left = inbox.tick_at.since(rt::now());
            if !inbox.jobs.is_empty() || left == Nanos::ZERO {
                return true;
            }
            inbox = self.came.wait_timeout(inbox, left).0;
        }
    }

    fn take_work(&self) -> Work {
        let mut inbox = self.inbox.lock();
        let mut ticks = 0;
        if rt::now().since(inbox.tick_at) > LATE {
            self.late_at.store(rt::now().0, Ordering::Release);
        }
        while inbox.tick_at <= rt::now() {
            ticks += 1;
            // A thread that lost its processor for long does not make up for all of it.
            inbox.tick_at = (inbox.tick_at + TICK).max(Nanos(rt::now().0.saturating_sub(TICK.0)));
        }
        inbox.messages = 0;
        let jobs = std::mem::take(&mut inbox.jobs);
        Work { jobs, ticks }
    }

    /// When this machine did not keep up last, as far as that was seen: what others sent may have waited here.
    pub fn late_at(&self) -> Nanos {
        Nanos(self.late_at.load(Ordering::Acquire))
    }

    pub fn sync_begins(&self) {
        self.inbox.lock().sync_began = Some(rt::now());
    }

    pub fn sync_ends(&self) {
        self.inbox.lock().sync_began = None;
        // The thread that stands in leaves.
        self.came.notify_all();
    }

    /// Waits until a sync has been under way for that long, and says since when; `None`: the node ends.
    pub fn wait_for_stall(&self, long: Nanos) -> Option<Nanos> {
        let mut inbox = self.inbox.lock();
        while !inbox.is_closed {
            let is_long = |began: &Nanos| rt::now().since(*began) >= long && !planted(Fault::DriveWaited);
            if let Some(began) = inbox.sync_began.filter(is_long) {
                return Some(began);
            }
            inbox = self.stalled.wait_timeout(inbox, TICK).0;
        }
        None
    }
}

// ---- the driver ----

/// The log, as the Raft library reads it.
struct LogReader {
    log: Arc<Mutex<RaftLog>>,
    nodes: Vec<u64>,
    offer: Arc<Offer>,
    /// Which node was said to lack entries, and when it is said again.
    said: Mutex<(u64, Nanos)>,
}

fn unreadable(error: Error) -> raft::Error {
    raft::Error::Store(StorageError::Other(Box::new(error)))
}

impl Storage for LogReader {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let conf = raft::eraftpb::ConfState {
            voters: self.nodes.clone(),
            ..Default::default()
        };
        Ok(RaftState::new(self.log.lock().hard_state().clone(), conf))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let log = self.log.lock();
        if low < log.first_index() {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        log.entries(low, high, max.into().unwrap_or(u64::MAX))
            .map_err(unreadable)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let log = self.log.lock();
        let missing = match index < log.first_index() {
            true => StorageError::Compacted,
            false => StorageError::Unavailable,
        };
        log.term(index).ok_or(raft::Error::Store(missing))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.lock().first_index())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.lock().last_index())
    }

    fn snapshot(&self, _: u64, to: u64) -> raft::Result<raft::eraftpb::Snapshot> {
        let first = self.log.lock().first_index();
        let snapshot = self.offer.take(first)?;
        let mut said = self.said.lock();
        if said.0 != to || rt::now() >= said.1 {
            *said = (to, rt::now() + SAID_AGAIN);
            eprintln!(
                "cenote storage: node {to} lacks entries that are not kept here any more (--log-size): it is given the \
                 state as of entry {}, and takes its pages from the others",
                snapshot.get_metadata().index
            );
        }
        Ok(snapshot)
    }
}

/// What a driver is told of its node.
pub(crate) struct Own {
    pub number: u64,
    /// Of its directory.
    pub identity: u128,
    pub state: Arc<StateFile>,
    /// Whether its pages are all there.
    pub is_whole: Arc<AtomicBool>,
}

/// A leader's drive does not come back with a sync, and a majority of the others has synced more.
#[derive(Debug, Clone, Copy)]
struct HoldsUp {
    /// The last entry that it has synced.
    synced: u64,
    since: Nanos,
}

/// What turns are taken with.
pub(crate) struct Driver {
    replica: Arc<Replica>,
    peers: Arc<Peers>,
    raft: RawNode<LogReader>,
    machine: Machine,
    random: Random,
    /// Term and role for which the election time was drawn.
    drawn_for: (u64, StateRole),
    timeout: usize,
    awaited: Awaited,
    /// Proposals and questions under way, by number.
    tickets: BTreeMap<u64, Arc<Ticket>>,
    number: u64,
    /// Questions that ask for the lead alone.
    leads: BTreeSet<u64>,
    /// Questions that a majority has answered, until that entry is carried out.
    confirmed: Vec<(u64, Arc<Ticket>)>,
    /// The term in which it was said that a leader counts on entries that are lost.
    counted_on: u64,
    state: Arc<StateFile>,
    /// Whether this node's own pages are all there: it gives no state otherwise.
    is_whole: Arc<AtomicBool>,
    /// The numbers of all nodes.
    nodes: Vec<u64>,
    offer: Arc<Offer>,
    pending: Pending,
    /// Whether a leader was told how far the node is since it was started.
    has_said: bool,
    /// When it gave up the lead so that another may have it.
    gave_way: Nanos,
    ways_given: u32,
    /// The nodes whose directories it has asked the state to name, in a term.
    registered: (u64, BTreeSet<u64>),
    identity: u128,
    /// When it let another lead since its drive is slow.
    passed_on: Option<Nanos>,
    holds_up: Option<HoldsUp>,
    /// The entry that was proposed when it began to hold up others: a node that has synced it has a drive that works
    /// still.
    probe: u64,
    /// A directory was replaced since the last ready was written.
    has_replaced: bool,
    /// In a turn, or behind one that did not end as it should.
    has_ended: bool,
}

impl Driver {
    /// # Errors
    /// [`Error::Corrupt`] if the log cannot be what it says.
    pub fn new(replica: Arc<Replica>, peers: Arc<Peers>, own: Own, nodes: &[u64]) -> Result<Driver> {
        let number = own.number;
        let offer: Arc<Offer> = Arc::default();
        let applied = replica.view.lock().applied;
        let machine = replica.machine.lock().take();
        let machine = machine.ok_or_else(|| Error::Invalid("a replica has one thread".into()))?;
        let config = Config {
            id: number,
            election_tick: ELECTION,
            heartbeat_tick: HEARTBEAT,
            applied,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            max_uncommitted_size: UNCOMMITTED_BYTES,
            max_committed_size_per_ready: COMMITTED_BYTES,
            ..Config::new(number)
        };
        let reader = LogReader {
            log: Arc::clone(&replica.log),
            nodes: nodes.to_vec(),
            offer: Arc::clone(&offer),
            said: Mutex::default(),
        };
        let quiet = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, reader, &quiet).map_err(raft_error)?;
        let mut driver = Driver {
            replica,
            peers,
            raft,
            machine,
            random: Random(rt::random()),
            drawn_for: (u64::MAX, StateRole::Follower),
            timeout: ELECTION,
            awaited: Awaited::default(),
            tickets: BTreeMap::new(),
            number: 0,
            leads: BTreeSet::new(),
            confirmed: Vec::new(),
            counted_on: 0,
            state: own.state,
            is_whole: own.is_whole,
            nodes: nodes.to_vec(),
            offer,
            pending: Pending::default(),
            has_said: false,
            gave_way: Nanos::ZERO,
            ways_given: 0,
            registered: (0, BTreeSet::new()),
            identity: own.identity,
            passed_on: None,
            holds_up: None,
            probe: 0,
            has_replaced: false,
            has_ended: false,
        };
        // What is committed is carried out before anything is heard: it says which directories count.
        driver.handle_readies()?;
        Ok(driver)
    }

    /// Whether the node has ended, or a turn has ended halfway.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The node ends, as said in `error` if nothing was before; false.
    pub fn end(&mut self, error: &Error) -> bool {
        self.has_ended = true;
        self.replica.fail(error);
        let jobs = std::mem::take(&mut self.replica.inbox.lock().jobs);
        let asked = jobs.into_iter().filter_map(|job| match job {
            Job::Message(..) => None,
            Job::Propose { ticket, .. } | Job::Confirm { ticket, .. } => Some(ticket),
        });
        asked.for_each(|ticket| ticket.answer(Answer::Unknown));
        self.give_up();
        false
    }

    /// One turn; false: the node ends.
    pub fn turn(&mut self) -> Result<bool> {
        let work = self.replica.take_work();
        for job in work.jobs {
            if self.take(job)? {
                return Ok(false);
            }
        }
        for _ in 0..work.ticks {
            self.draw();
            self.raft.tick();
        }
        self.handle_readies()?;
        self.register(self.raft.raft.id, self.identity);
        self.forget_tickets();
        self.offer_state();
        self.give_way();
        self.pass_on();
        self.note();
        Ok(true)
    }

    /// One turn, and a sync that is to follow.
    pub fn turn_and_begin(&mut self, sync: &mut Option<Sync>) -> Result<bool> {
        let goes_on = self.turn()?;
        *sync = self.begin_sync();
        Ok(goes_on)
    }

    fn begin_sync(&mut self) -> Option<Sync> {
        self.awaited.begin(&mut self.replica.log.lock())
    }

    /// A sync is over: what awaited it follows, and another one if there is more to sync.
    pub fn synced(&mut self, sync: Sync, synced: Result<()>, next: &mut Option<Sync>) -> Result<bool> {
        synced?;
        self.awaited.end(sync, &mut self.replica.log.lock());
        self.release();
        self.handle_readies()?;
        self.note();
        *next = self.begin_sync();
        Ok(true)
    }

    /// What awaited no more than is synced by now.
    fn release(&mut self) {
        let (ready, messages) = self.awaited.release();
        self.raft.on_persist_ready(ready);
        self.send(messages);
    }

    /// Takes a job; true: the node ends, to begin anew with a state of the leader's.
    fn take(&mut self, job: Job) -> Result<bool> {
        match job {
            // Of a directory that is lost: what it has promised does not count any more.
            Job::Message(message, identity)
                if !self.machine.is_of(message.from, identity) && !planted(Fault::ReplacedCounts) => {}
            Job::Message(message, _) if message.msg_type() == MessageType::MsgSnapshot => {
                return self.take_state(&message);
            }
            // The drive does not come back: what is in memory alone is bounded, and the leader sends it again.
            Job::Message(message, _)
                if !message.entries.is_empty() && self.replica.log.lock().unwritten() > UNWRITTEN_MOST => {}
            Job::Message(message, identity) => {
                self.register(message.from, identity);
                self.step(*message);
            }
            Job::Propose { command, ticket } => self.propose(command, ticket),
            Job::Confirm { ticket, what } => self.confirm(ticket, what),
        }
        Ok(false)
    }

    /// Its drive holds up what a majority of the others has synced: nothing is acknowledged before it is carried out
    /// here. One of those leads instead, if its drive works still.
    fn pass_on(&mut self) {
        let log = &self.raft.raft.raft_log;
        let (committed, synced) = (log.committed, log.persisted);
        let leads = self.raft.raft.state == StateRole::Leader;
        // No client waits for an entry that was proposed here.
        let is_probe = committed == self.probe && synced + 1 == committed;
        if !leads || committed <= synced || is_probe || self.awaited.takes() < PROBED {
            self.holds_up = None;
            return;
        }
        let Some(held) = self.holds_up.filter(|held| held.synced == synced) else {
            // It is nothing but an entry; where none is taken now, one is later.
            self.holds_up = self.raft.propose(Vec::new(), Vec::new()).ok().map(|()| HoldsUp {
                synced,
                since: rt::now(),
            });
            self.probe = self.raft.raft.raft_log.last_index();
            return;
        };
        let has_just = self.passed_on.is_some_and(|at| rt::now() < at + GIVE_WAY);
        if let Some(next) = self.synced_by_another(self.probe)
            && rt::now().since(held.since) >= HOLDS_UP
            && !has_just
        {
            eprintln!(
                "cenote storage: the drive has taken {} for a sync, and others have synced more: node {next} is \
                 to lead",
                self.awaited.takes()
            );
            self.passed_on = Some(rt::now());
            self.raft.transfer_leader(next);
        }
    }

    /// Another node that has synced that entry.
    fn synced_by_another(&self, entry: u64) -> Option<u64> {
        let raft = &self.raft.raft;
        let mut all = raft.prs().iter();
        all.find_map(|(node, progress)| (*node != raft.id && progress.matched >= entry).then_some(*node))
    }

    /// The node that leads has the state name the directory with which each node came first. A node that was cut off
    /// from another since both began knows it, too, and refuses an empty one in its place.
    fn register(&mut self, node: u64, identity: u128) {
        let raft = &self.raft.raft;
        let leads = raft.state == StateRole::Leader && raft.commit_to_current_term();
        if !leads || self.machine.registered().contains_key(&node) {
            return;
        }
        let term = raft.term;
        if self.registered.0 != term {
            self.registered = (term, BTreeSet::new());
        }
        let command = Command::Register { node, identity }.encode();
        if !self.registered.1.contains(&node) && self.raft.propose(Vec::new(), command).is_ok() {
            self.registered.1.insert(node);
        }
    }

    /// A node that was down while another was replaced may not know that the command is committed: it refuses the new
    /// directory, as a leader too. Another leader tells it. Where it takes a wrong one for a node's, none can: the node
    /// that leads waits for longer each time.
    fn give_way(&mut self) {
        let leads = self.raft.raft.state == StateRole::Leader;
        let waits = Nanos(GIVE_WAY.0 << self.ways_given.min(WAYS_MOST));
        if !leads || rt::now() < self.gave_way + waits || !self.peers.is_refused() {
            return;
        }
        if rt::now() > self.gave_way + Nanos(GIVE_WAY.0 << (WAYS_MOST + 1)) {
            self.ways_given = 0;
        }
        eprintln!("cenote storage: another node does not know this directory yet: it gives up the lead for a while");
        (self.gave_way, self.ways_given) = (rt::now(), self.ways_given + 1);
        let term = self.raft.raft.term;
        self.raft.raft.become_follower(term, raft::INVALID_ID);
    }

    // ---- states that are given ----

    /// Makes the state that a node should be given, and gives another to those from which nothing was heard.
    fn offer_state(&mut self) {
        // Where no node had all pages, nobody could give them.
        if self.offer.is_wanted() && self.is_whole.load(Ordering::Acquire) {
            let entry = self.replica.view.lock().applied;
            let log = self.replica.log.lock();
            if let Some(term) = log.term(entry) {
                let (entry, machine) = ((entry, term), self.machine.clone());
                self.offer
                    .make(&Checkpoint { entry, machine }, log.first_index(), &self.nodes);
            }
        }
        for node in self.pending.overdue(self.raft.raft.prs()) {
            self.raft.report_snapshot(node, SnapshotStatus::Failure);
        }
    }

    /// A state that the leader gives, since it takes this node for one that lacks entries; true: the node ends, to
    /// begin anew with it.
    fn take_state(&mut self, message: &Message) -> Result<bool> {
        // What is no state is no leader's; what is of a former leader counts no more.
        let Ok(given) = Given::of(message) else {
            return Ok(false);
        };
        if message.term < self.raft.raft.term {
            return Ok(false);
        }
        // The log begins anew with a sync of its own; the leader gives the state again.
        if self.awaited.is_under_way() {
            return Ok(false);
        }
        // It is of the leader, as a heartbeat is.
        self.step(Message {
            msg_type: MessageType::MsgHeartbeat.into(),
            from: message.from,
            to: message.to,
            term: message.term,
            ..Message::default()
        });
        let committed = self.raft.raft.raft_log.committed;
        let (index, term) = given.checkpoint.entry;
        let has_it = self.raft.raft.raft_log.match_term(index, term);
        if committed + 1 >= given.first || index <= committed {
            self.say_how_far(message.from);
            return Ok(false);
        }
        if has_it {
            // The library commits up to there, and says so.
            let _ = self.raft.step(message.clone());
            return Ok(false);
        }
        eprintln!(
            "cenote storage: entries {} to {index} are not kept by the other nodes any more: this one begins anew with \
             the state as of entry {index}, and takes its pages from the others",
            committed + 1
        );
        let mut hard = self.replica.log.lock().hard_state().clone();
        if message.term > hard.term {
            (hard.term, hard.vote) = (message.term, 0);
        }
        // The state first: a start that finds it makes the log begin behind it.
        match self.state.save_given(&given.saved()) {
            // The leader gives another.
            Err(Error::Full(_)) => return Ok(false),
            saved => saved?,
        }
        self.replica.view.lock().begins_anew = true;
        self.replica.log.lock().begin_anew((index, term), &hard)?;
        Ok(true)
    }

    /// What is committed here is the leader's, too: it goes on behind that.
    fn say_how_far(&mut self, leader: u64) {
        let answer = Message {
            msg_type: MessageType::MsgAppendResponse.into(),
            from: self.raft.raft.id,
            to: leader,
            term: self.raft.raft.term,
            index: self.raft.raft.raft_log.committed,
            ..Message::default()
        };
        // It leaves with what the library says, after the sync.
        self.raft.raft.msgs.push(answer);
    }

    /// A message of another node, unless no node that keeps its promises would send it here.
    fn step(&mut self, message: Message) {
        if !is_expected(&message) {
            return;
        }
        let last = self.raft.raft.raft_log.last_index();
        let is_beyond = message.msg_type() == MessageType::MsgHeartbeat && message.commit > last;
        if is_beyond && message.term >= self.raft.raft.term {
            // The leader counts on entries that this node has lost.
            if self.counted_on != message.term {
                self.counted_on = message.term;
                eprintln!(
                    "cenote storage: node {} counts on entries up to {}, this node has {last}: it was given another \
                     directory than it had, and takes no part",
                    message.from, message.commit
                );
            }
            return;
        }
        let leader = (message.msg_type() == MessageType::MsgHeartbeat).then_some(message.from);
        // What is stale is an error, and of no interest.
        let _ = self.raft.step(message);
        if leader.is_some_and(|leader| leader == self.raft.raft.leader_id) && !self.has_said {
            self.has_said = true;
            self.say_how_far(self.raft.raft.leader_id);
        }
    }

    fn propose(&mut self, command: Vec<u8>, ticket: Arc<Ticket>) {
        if self.raft.raft.state != StateRole::Leader {
            return ticket.answer(self.not_leader());
        }
        let number = self.next_number();
        match self.raft.propose(number.to_le_bytes().to_vec(), command) {
            Ok(()) => drop(self.tickets.insert(number, ticket)),
            Err(_) => ticket.answer(Answer::Unknown),
        }
    }

    fn confirm(&mut self, ticket: Arc<Ticket>, what: Confirmed) {
        if self.raft.raft.state != StateRole::Leader {
            return ticket.answer(self.not_leader());
        }
        if !self.raft.raft.commit_to_current_term() {
            // The library drops the question without an answer until this leader's first entry is committed.
            return ticket.answer(Answer::Unknown);
        }
        let number = self.next_number();
        self.raft.read_index(number.to_le_bytes().to_vec());
        self.tickets.insert(number, ticket);
        if what == Confirmed::Lead {
            self.leads.insert(number);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn not_leader(&self) -> Answer {
        Answer::NotLeader {
            leader: self.raft.raft.leader_id,
        }
    }

    /// The library draws election times from the system's chance; a simulated run needs its own.
    fn draw(&mut self) {
        let now = (self.raft.raft.term, self.raft.raft.state);
        if now != self.drawn_for {
            self.drawn_for = now;
            self.timeout = ELECTION + self.random.below(ELECTION as u64) as usize;
            if self.gave_way > Nanos::ZERO && rt::now() < self.gave_way + GIVE_WAY {
                self.timeout = 2 * ELECTION - 1;
            }
        }
        self.raft.raft.set_randomized_election_timeout(self.timeout);
    }

    fn handle_readies(&mut self) -> Result<()> {
        while self.raft.has_ready() {
            self.handle_ready()?;
        }
        Ok(())
    }

    fn handle_ready(&mut self) -> Result<()> {
        let mut ready = self.raft.ready();
        if !ready.snapshot().is_empty() {
            return Err(Error::Poisoned("a state was given past this node's own way".into()));
        }
        if ready.ss().is_some_and(|soft| soft.raft_state != StateRole::Leader) {
            self.give_up();
        }
        self.send(ready.take_messages());
        for state in ready.take_read_states() {
            self.was_confirmed(state.index, &state.request_ctx);
        }
        if let Some(hard) = ready.hs() {
            // Before what is committed is carried out: pages may save a state of it at once.
            self.replica.log.lock().set_commit(hard.commit);
        }
        self.apply(ready.take_committed_entries())?;
        let mut messages = ready.take_persisted_messages();
        if planted(Fault::RaftUnsynced) {
            self.send(std::mem::take(&mut messages));
        }
        let has_vote = self.write(&mut ready)?;
        let is_wanted = ready.must_sync() || std::mem::take(&mut self.has_replaced);
        let free = self.awaited.note(ready.number(), is_wanted, has_vote, messages);
        self.send(free);
        self.raft.advance_append_async(ready);
        self.raft.advance_apply();
        self.release();
        Ok(())
    }

    /// Puts new entries and a vote into the log, which are to be synced; whether there is a vote.
    fn write(&self, ready: &mut Ready) -> Result<bool> {
        let mut log = self.replica.log.lock();
        let entries = ready.take_entries();
        let has_entries = !entries.is_empty();
        log.append(entries)?;
        if self.has_replaced {
            // How far is committed is in it by now.
            let hard = log.hard_state().clone();
            log.set_hard_state(&hard)?;
        }
        let Some(hard) = ready.hs() else { return Ok(false) };
        let before = log.hard_state();
        let has_vote = (hard.term, hard.vote) != (before.term, before.vote);
        // How far is committed the node that leads writes beside something else: it knows it from the others.
        if has_vote || has_entries || self.raft.raft.state != StateRole::Leader {
            log.set_hard_state(hard)?;
        }
        Ok(has_vote)
    }

    fn send(&self, messages: Vec<Message>) {
        for message in messages {
            self.peers.send(message.to, message.encode_to_vec());
        }
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<()> {
        let Some(last) = entries.last().map(|entry| entry.index) else {
            return Ok(());
        };
        let mut answers = Vec::new();
        for entry in entries {
            let outcome = carry_out(&mut self.machine, &entry)?;
            if let Some(Outcome::Replaced(node)) = outcome {
                self.forget_progress(node);
            }
            // That it is committed is synced at once: a start that does not know it takes a wrong directory for a
            // node's.
            if matches!(outcome, Some(Outcome::Replaced(_) | Outcome::Registered)) {
                self.has_replaced = true;
            }
            let number = <[u8; 8]>::try_from(entry.context.as_slice()).map(u64::from_le_bytes);
            // A number is this leader's: of another's entries none is answered here.
            let is_own = self.raft.raft.state == StateRole::Leader && entry.term == self.raft.raft.term;
            if let (Ok(number), Some(outcome), true) = (number, outcome, is_own)
                && let Some(ticket) = self.tickets.remove(&number)
            {
                answers.push((ticket, brief(outcome), entry.index));
            }
        }
        let mut view = self.replica.view.lock();
        view.note(last, &self.machine);
        drop(view);
        self.replica.moved.notify_all();
        // A client that is answered finds the state that the answer is about.
        for (ticket, outcome, index) in answers {
            ticket.answer(Answer::Outcome(outcome, index));
        }
        self.confirmed.retain(|(index, ticket)| {
            let waits = *index > last;
            if !waits {
                ticket.answer(Answer::Current);
            }
            waits
        });
        Ok(())
    }

    /// What a node had that lost its directory does not count any more.
    fn forget_progress(&mut self, node: u64) {
        if node == self.raft.raft.id || planted(Fault::ReplacedCounts) {
            return;
        }
        if let Some(progress) = self.raft.raft.mut_prs().get_mut(node) {
            progress.matched = 0;
            progress.become_probe();
        }
    }

    fn was_confirmed(&mut self, index: u64, context: &[u8]) {
        let number = <[u8; 8]>::try_from(context).map(u64::from_le_bytes);
        let Some(ticket) = number.ok().and_then(|number| self.tickets.remove(&number)) else {
            return;
        };
        let number = number.unwrap_or(0);
        // Of entries of former terms another node may have acknowledged some: this term's first lies behind them.
        let is_enough = self.leads.remove(&number) && self.raft.raft.apply_to_current_term();
        match is_enough || index <= self.replica.view.lock().applied {
            true => ticket.answer(Answer::Current),
            false => self.confirmed.push((index, ticket)),
        }
    }

    /// This node does not lead: what becomes of its proposals is the next leader's.
    fn give_up(&mut self) {
        let tickets = std::mem::take(&mut self.tickets).into_values();
        self.leads.clear();
        let confirmed = std::mem::take(&mut self.confirmed)
            .into_iter()
            .map(|(_, ticket)| ticket);
        tickets
            .chain(confirmed)
            .for_each(|ticket| ticket.answer(Answer::Unknown));
    }

    /// Questions that the library dropped, and whose clients have gone.
    fn forget_tickets(&mut self) {
        if self.tickets.len() > TICKETS_MAX {
            self.tickets.retain(|_, ticket| Arc::strong_count(ticket) > 1);
            self.leads.retain(|number| self.tickets.contains_key(number));
        }
    }

    fn note(&self) {
        let raft = &self.raft.raft;
        let mut view = self.replica.view.lock();
        (view.leader, view.term, view.committed) = (raft.leader_id, raft.term, raft.raft_log.committed);
        view.everywhere = match raft.state {
            StateRole::Leader => raft.prs().iter().map(|(_, progress)| progress.matched).min(),
            _ => None,
        };
    }
}

/// Whether a node that keeps to the protocol sends such a message. The library takes others for its own process's.
fn is_expected(message: &Message) -> bool {
    use MessageType::*;
    let is_of_nodes = matches!(
        message.msg_type(),
        MsgAppend
            | MsgAppendResponse
            | MsgSnapshot
            | MsgHeartbeat
            | MsgHeartbeatResponse
            | MsgRequestVote
            | MsgRequestVoteResponse
            | MsgRequestPreVote
            | MsgRequestPreVoteResponse
            | MsgTimeoutNow
    );
    let Some(first) = message.index.checked_add(1) else {
        return false;
    };
    let mut follows = (first..).zip(&message.entries);
    is_of_nodes && follows.all(|(index, entry)| entry.index == index && is_whole(entry))
}

/// Whether an entry is the library's own or a command.
fn is_whole(entry: &Entry) -> bool {
    entry.data.is_empty() || entry.entry_type() == EntryType::EntryNormal && Command::decode(&entry.data).is_ok()
}

fn raft_error(error: raft::Error) -> Error {
    Error::corrupt(format!("the Raft log cannot be used: {error}"))
}

/// What an entry does to the state; `None`: it is Raft's own.
///
/// # Errors
/// [`Error::Corrupt`] for an entry that is no command.
pub(crate) fn carry_out(machine: &mut Machine, entry: &Entry) -> Result<Option<Outcome>> {
    if entry.data.is_empty() || entry.entry_type() != EntryType::EntryNormal {
        return Ok(None);
    }
    Ok(Some(machine.apply(Command::decode(&entry.data)?)))
}

/// An outcome without the bytes that only pages want.
fn brief(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Appended { .. } => Outcome::Done,
        other => other,
    }
}
