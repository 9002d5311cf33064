//! Storage nodes as a database sees them: [`StorageNodes`] over connections.
//!
//! What changes something goes to the node that leads, which the nodes themselves say; pages and the log are read from
//! any of them, a page from the same one each time, so that each node's cache has its share. A node that does not answer
//! is passed over for a moment.
//!
//! Invariants:
//! - a command that was not answered is sent again as it was, to the node that leads then; nodes carry it out once;
//! - a call ends: after [`TIMEOUT`] with [`Error::Timeout`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Lsn, PageId, Result};
use cenote_fabric::message::{Connection, Network};
use cenote_storage::nodes::{
    Changes, FollowRequest, LogEnd, Moment, Newest, OwnerRecord, PageAnswer, ReaderSeen, SpaceExtent, StorageNodes,
    Taken,
};
use cenote_storage::redo::GroupRef;

use crate::command::{Command, PIECE_MAX};
use crate::demand::Demand;
use crate::members::{Membership, Server};
use crate::peers::connect;
use crate::snapshots::{Snapshot, check_name};
use crate::usage::Usage;
use crate::wire::{Hello, PAGES_MAX, Reply, Request, Status};

/// How long a call may take.
const TIMEOUT: Nanos = Nanos::from_secs(30);
/// How long one node may take to answer.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(3);
/// Before nodes are asked again of which none leads, or none answers.
const AGAIN: Nanos = Nanos::from_millis(50);
/// How long a node is passed over that did not answer; twice as long each time, up to eight times.
const AWAY: Nanos = Nanos::from_secs(1);
/// The same, where one node may take little time to answer.
const AWAY_SHORT: Nanos = Nanos::from_millis(100);
/// How long a reader does not go back to a node that it left.
const LEFT: Nanos = Nanos::from_secs(10);
/// Idle connections that are kept to a node.
const IDLE_MAX: usize = 32;
/// Requests to a node at a time, each over a connection of its own; others wait. A node takes 512 connections, of other
/// nodes and of the next server, too.
const IN_USE_MAX: usize = 128;

/// See the module.
pub struct NodesClient {
    network: Arc<dyn Network>,
    cluster: String,
    secret: String,
    nodes: Vec<Node>,
    /// Which node led last.
    leader: AtomicUsize,
    epoch: AtomicU64,
    /// Held while a command that comes in turn is under way.
    turn: Mutex<Turn>,
    /// The entry of that one, or of the take: pages are read of the spaces as they are since.
    entry: AtomicU64,
    full: AtomicBool,
    /// The node that a reader follows; `usize::MAX`: none yet.
    followed: AtomicUsize,
    /// How long a call may take.
    timeout: Nanos,
}

/// Commands in turn: all but appends.
#[derive(Default)]
struct Turn {
    /// The number of the last one.
    last: u64,
    /// One of which it is not known whether it was carried out. It has the number of the next.
    unanswered: Option<Command>,
}

struct Node {
    address: String,
    connections: Mutex<Connections>,
    /// One is free.
    freed: Condvar,
    /// When it may be asked again.
    away_until: AtomicU64,
    /// Times in a row that it did not answer.
    silences: AtomicU64,
    /// When it may be asked for pages again: it said that it lacks redo.
    lags_until: AtomicU64,
    /// How long it may take to answer.
    answer_timeout: Nanos,
}

#[derive(Default)]
struct Connections {
    idle: Vec<Arc<dyn Connection>>,
    in_use: usize,
    waiting: usize,
}

impl Node {
    /// Waits for the turn of a request: an idle connection, if there is one. [`Node::end`] follows.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the node does not answer those before.
    fn begin(&self) -> Result<Option<Arc<dyn Connection>>> {
        let until = rt::now() + ANSWER_TIMEOUT;
        let mut there = self.connections.lock();
        let has_to_wait = there.in_use >= IN_USE_MAX;
        while there.in_use >= IN_USE_MAX && !self.is_away() && rt::now() < until {
            there.waiting += 1;
            there = self.freed.wait_timeout(there, until.since(rt::now())).0;
            there.waiting -= 1;
        }
        if there.in_use >= IN_USE_MAX || has_to_wait && self.is_away() {
            // The next one is told the same.
            self.freed.notify_one();
            return Err(Error::Timeout(format!(
                "{IN_USE_MAX} requests wait for the storage node at {}",
                self.address
            )));
        }
        there.in_use += 1;
        Ok(there.idle.pop())
    }

    /// The request of [`Node::begin`] is over; its connection may be used again, if one is given.
    fn end(&self, connection: Option<Arc<dyn Connection>>) {
        let mut there = self.connections.lock();
        assert!(there.in_use > 0, "a request that began ends");
        there.in_use -= 1;
        if there.idle.len() < IDLE_MAX {
            there.idle.extend(connection);
        }
        if there.waiting > 0 {
            self.freed.notify_one();
        }
    }

    fn is_away(&self) -> bool {
        self.away_until.load(Ordering::Acquire) > rt::now().0
    }

    /// Whether its pages are not to be asked for now.
    fn lags(&self) -> bool {
        self.is_away() || self.lags_until.load(Ordering::Acquire) > rt::now().0
    }

    fn set_away(&self) {
        let silences = self.silences.fetch_add(1, Ordering::AcqRel).min(3);
        // Words have to be heard: a node that may take little time is asked again soon, however often it was silent.
        let away = match self.answer_timeout < ANSWER_TIMEOUT {
            true => AWAY_SHORT,
            false => Nanos(AWAY.0 << silences),
        };
        self.away_until.store((rt::now() + away).0, Ordering::Release);
        let idle = std::mem::take(&mut self.connections.lock().idle);
        idle.iter().for_each(|connection| connection.close());
    }
}

impl NodesClient {
    /// For the cluster of that name, whose nodes have these addresses and ask for `secret`, if they have one.
    /// Nothing is asked yet.
    pub fn new(network: Arc<dyn Network>, cluster: &str, secret: &str, addresses: &[String]) -> NodesClient {
        let node = |address: &String| Node {
            address: address.clone(),
            connections: Mutex::default(),
            freed: Condvar::default(),
            away_until: AtomicU64::new(0),
            silences: AtomicU64::new(0),
            lags_until: AtomicU64::new(0),
            answer_timeout: ANSWER_TIMEOUT,
        };
        NodesClient {
            network,
            cluster: cluster.to_owned(),
            secret: secret.to_owned(),
            nodes: addresses.iter().map(node).collect(),
            leader: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            turn: Mutex::default(),
            entry: AtomicU64::new(0),
            full: AtomicBool::new(false),
            followed: AtomicUsize::new(usize::MAX),
            timeout: TIMEOUT,
        }
    }

    /// The same, with calls that take so long at most.
    pub fn with_timeout(self, timeout: Nanos) -> NodesClient {
        NodesClient { timeout, ..self }
    }

    /// The same, where one node may take so long to answer: another is asked then.
    pub fn with_answer_timeout(mut self, answer_timeout: Nanos) -> NodesClient {
        for node in &mut self.nodes {
            node.answer_timeout = answer_timeout;
        }
        self
    }

    /// This start's number, once it has taken the database; else zero.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// What each node says of itself, by address.
    pub fn statuses(&self) -> BTreeMap<String, Result<Status>> {
        self.nodes
            .iter()
            .map(|node| (node.address.clone(), self.status(node)))
            .collect()
    }

    /// Says what a server of the database is, and returns what the node that leads knows of all.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none leads; [`Error::Busy`] if there are too many servers.
    pub fn announce(&self, server: &Server) -> Result<Membership> {
        members_in(self.ask_leader_once(&Request::Announce(server.clone()))?)
    }

    /// The servers of the database, as a node knows them that leads for certain.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn members(&self) -> Result<Membership> {
        members_in(self.ask_leader(&Request::Members)?)
    }

    /// Says what the clients of a proxy need; the servers of the database.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn demand(&self, demand: Demand) -> Result<Membership> {
        members_in(self.ask_leader(&Request::Demand(demand))?)
    }

    /// A server's process, by a number of its own, has used so much since it began.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn report_usage(&self, process: u128, usage: Usage) -> Result<()> {
        let command = Command::Meter { process, usage };
        self.command(&command).map(drop)
    }

    /// What all servers of the database have used, as they have reported.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn usage(&self) -> Result<Usage> {
        match self.ask_leader(&Request::Usage)? {
            Reply::Usage(usage) => Ok(usage),
            other => Err(unexpected(other)),
        }
    }

    /// The server of start `after` has been silent for `silent`: from here on it is not heard for some seconds, in which
    /// another server takes the database.
    ///
    /// # Errors
    /// [`Error::Busy`] if it was heard; [`Error::Timeout`].
    pub fn claim(&self, after: u64, silent: Nanos) -> Result<Membership> {
        members_in(self.ask_leader_once(&Request::Claim { after, silent })?)
    }

    /// Asks the server that has the database to leave it to server `to`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that one cannot have it; [`Error::Timeout`].
    pub fn switch(&self, to: u128) -> Result<Membership> {
        members_in(self.ask_leader(&Request::Switch { to })?)
    }

    /// Lets the directory that node `number` comes with take the place of the one that it had, which is lost. What that
    /// one had does not count from then on, and it is never let in again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no node of that number answers; [`Error::Busy`] while another one lacks pages or log;
    /// [`Error::Timeout`] if no majority of the others answers.
    pub fn replace(&self, number: u64) -> Result<()> {
        let there: Vec<Status> = self.nodes.iter().filter_map(|node| self.status(node).ok()).collect();
        let Some(status) = there.iter().find(|status| status.node == number) else {
            return Err(Error::Invalid(format!(
                "no storage node {number} answers at {}: start it with its new directory first",
                self.name()
            )));
        };
        if let Some(other) = lacking_beside(number, &there) {
            return Err(Error::Busy(format!(
                "storage node {other} lacks log or pages yet: another one is replaced when it has them. (If node \
                 {other} lost its directory, too, stop it until then)"
            )));
        }
        let identity = status.identity;
        let command = Command::Replace { node: number, identity };
        self.command(&command)?;
        // Once more: with this entry a majority has it on disk that the one before is committed, and lets the node in
        // whichever of them leads next.
        self.command(&command).map(drop)
    }

    /// Keeps the database as it is now, with all that was acknowledged before the call, under a name. `made`: the time,
    /// in microseconds since 1970.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is taken, or none, or there is no database, or there are too many;
    /// [`Error::Timeout`].
    pub fn make_snapshot(&self, name: &str, made: u64) -> Result<Snapshot> {
        check_name(name)?;
        self.command(&Command::Snapshot {
            token: rt::random_u128(),
            name: name.to_owned(),
            made,
        })?;
        self.snapshot(name)
    }

    /// The snapshot of that name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Timeout`].
    pub fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let found = self.snapshots()?.into_iter().find(|snapshot| snapshot.name == name);
        found.ok_or_else(|| Error::Invalid(format!("there is no snapshot \"{name}\" on {}", self.name())))
    }

    /// The snapshots that there are, in the order in which they were made.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        match self.ask_leader(&Request::Snapshots)? {
            Reply::Snapshots(snapshots) => Ok(snapshots.iter().cloned().collect()),
            other => Err(unexpected(other)),
        }
    }

    /// Drops a snapshot; one with branches only if `is_forced`: they are lost then.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none, or it has branches; [`Error::Timeout`].
    pub fn drop_snapshot(&self, name: &str, is_forced: bool) -> Result<()> {
        let number = self.snapshot(name)?.number;
        self.command(&Command::DropSnapshot { number, is_forced }).map(drop)
    }

    /// A branch begins at snapshot `number`: the number of its database, and what people call it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the snapshot is gone, or has too many; [`Error::Timeout`].
    pub fn add_branch(&self, number: u64, branch: u128, name: &str) -> Result<()> {
        check_name(name)?;
        let command = Command::AddBranch {
            snapshot: number,
            branch,
            name: name.to_owned(),
        };
        self.command(&command).map(drop)
    }

    /// That branch is gone.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn drop_branch(&self, branch: u128) -> Result<()> {
        self.command(&Command::DropBranch { branch }).map(drop)
    }

    fn status(&self, node: &Node) -> Result<Status> {
        match self.ask(node, &Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// Whether a node that answers is short of disk space. One that does not answer is passed over for a while.
    fn is_one_full(&self) -> bool {
        let there = self.nodes.iter().filter(|node| !node.is_away());
        let statuses = there.map(|node| self.status(node).inspect_err(|_| node.set_away()));
        statuses.flatten().any(|status| status.is_full)
    }

    // ---- one node ----

    /// One request to one node, over a connection of its own while it lasts.
    fn ask(&self, node: &Node, request: &Request) -> Result<Reply> {
        let bytes = request.encode();
        let idle = node.begin()?;
        let answer = self.ask_over(node, idle, &bytes);
        let (reply, connection) =
            answer.map_or_else(|error| (Err(error), None), |(reply, used)| (Ok(reply), Some(used)));
        node.end(connection);
        reply
    }

    /// Over an idle connection, or a new one: with the one that was used.
    fn ask_over(
        &self,
        node: &Node,
        idle: Option<Arc<dyn Connection>>,
        bytes: &[u8],
    ) -> Result<(Reply, Arc<dyn Connection>)> {
        // One that stood idle may be over; a new one is not. A node that does not answer does not on a new one either.
        match idle.map(|connection| talk(node, connection, bytes)) {
            Some(Err(silent @ Error::Timeout(_))) => return Err(silent),
            Some(Ok(answered)) => return Ok(answered),
            None | Some(Err(_)) => {}
        }
        let hello = Hello {
            cluster: self.cluster.clone(),
            secret: self.secret.clone(),
            to: 0,
            from: 0,
            identity: 0,
        };
        let connection = connect(&*self.network, &node.address, &hello, node.answer_timeout);
        // An address that means nothing now is a node that cannot be reached: the others can.
        let connection = connection.map_err(|error| match error {
            Error::Invalid(why) => Error::Lost(why),
            other => other,
        })?;
        talk(node, connection, bytes)
    }

    // ---- the leader ----

    /// Asks the node that leads, until one answers.
    fn ask_leader(&self, request: &Request) -> Result<Reply> {
        self.ask_leader_until(request, false)
    }

    /// As `ask_leader`; `Busy` of the node that leads is its answer.
    fn ask_leader_once(&self, request: &Request) -> Result<Reply> {
        self.ask_leader_until(request, true)
    }

    fn ask_leader_until(&self, request: &Request, busy_is_final: bool) -> Result<Reply> {
        let (until, mut last) = (rt::now() + self.timeout, String::from("none of them answered"));
        while rt::now() < until {
            let (is_nobody_there, mut strangers) = (self.nodes.iter().all(Node::is_away), 0);
            for n in self.leader_first() {
                let node = &self.nodes[n];
                if node.is_away() && !is_nobody_there {
                    continue;
                }
                match self.ask(node, request) {
                    Ok(Reply::NotLeader { leader }) => {
                        last = format!("they take node {leader} for their leader");
                    }
                    Ok(Reply::Failed(busy @ Error::Busy(_))) if busy_is_final => return Err(busy),
                    Ok(Reply::Failed(error @ (Error::Timeout(_) | Error::Busy(_)))) => {
                        last = error.to_string();
                    }
                    Ok(Reply::Failed(error)) => return Err(error),
                    Ok(reply) => {
                        self.leader.store(n, Ordering::Release);
                        return Ok(reply);
                    }
                    Err(error @ Error::Mismatch(_)) => {
                        strangers += 1;
                        // Every node is of another cluster.
                        if strangers == self.nodes.len() {
                            return Err(error);
                        }
                        last = error.to_string();
                    }
                    Err(error) => {
                        last = error.to_string();
                        if matches!(error, Error::Timeout(_)) {
                            node.set_away();
                        }
                    }
                }
            }
            rt::sleep(AGAIN);
        }
        Err(Error::Timeout(format!(
            "no majority of {} answered in {} s: {last}",
            self.name(),
            self.timeout.0 / 1_000_000_000
        )))
    }

    fn leader_first(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.leader.load(Ordering::Acquire), self.nodes.len());
        (0..count).map(move |n| (first + n) % count)
    }

    /// Has a command carried out; by which entry.
    pub(crate) fn command(&self, command: &Command) -> Result<u64> {
        match self.ask_leader(&Request::Propose(command.encode()))? {
            Reply::Done { entry } => Ok(entry),
            Reply::Revoked { epoch } => Err(self.revoked(epoch)),
            other => Err(unexpected(other)),
        }
    }

    fn revoked(&self, epoch: u64) -> Error {
        Error::Revoked(format!(
            "start {epoch} of the database has it, this is start {}",
            self.epoch.load(Ordering::Acquire)
        ))
    }

    /// Has the next command carried out that comes in turn.
    fn in_turn(&self, command: impl Fn(u64, u64) -> Command) -> Result<()> {
        let mut turn = self.turn.lock();
        let epoch = self.epoch.load(Ordering::Acquire);
        // One without an answer is carried out first, or its number would be taken for this one's. It may be this one,
        // asked for again.
        match turn.unanswered.take() {
            Some(before) if before == command(epoch, turn.last + 1) => return self.finish(&mut turn, before),
            Some(before) => self.finish(&mut turn, before)?,
            None => {}
        }
        let next = command(epoch, turn.last + 1);
        self.finish(&mut turn, next)
    }

    fn finish(&self, turn: &mut Turn, command: Command) -> Result<()> {
        match self.command(&command) {
            Ok(entry) => {
                turn.last += 1;
                self.entry.fetch_max(entry, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                let is_unknown = !matches!(error, Error::Invalid(_) | Error::Revoked(_));
                turn.unanswered = is_unknown.then_some(command);
                Err(error)
            }
        }
    }

    // ---- any node ----

    /// Asks nodes in turn, from number `first` on, until one gives what `accept` takes.
    fn ask_any<T>(&self, first: usize, request: &Request, accept: impl Fn(Reply) -> Result<T>) -> Result<T> {
        self.ask_any_saying(first, request, |(_, reply)| accept(reply))
    }

    /// What all nodes that answer say, one after the other.
    fn ask_each<T>(&self, request: &Request, accept: impl Fn(Reply) -> Result<Vec<T>>) -> Result<Vec<T>> {
        let (mut found, mut last) = (Vec::new(), None);
        let mut answered = 0;
        for node in self.nodes.iter().filter(|node| !node.is_away()) {
            let reply = self.ask(node, request).inspect_err(|_| node.set_away());
            match reply.and_then(&accept) {
                Ok(more) => {
                    found.extend(more);
                    answered += 1;
                }
                Err(error) => last = Some(error),
            }
        }
        match (answered, last) {
            (0, Some(error)) => Err(error),
            (0, None) => Err(Error::Timeout(format!("none of {} answers", self.name()))),
            _ => Ok(found),
        }
    }

    /// As [`NodesClient::ask_any`]; says which node answered.
    fn ask_any_saying<T>(
        &self,
        first: usize,
        request: &Request,
        accept: impl Fn((usize, Reply)) -> Result<T>,
    ) -> Result<T> {
        let (until, mut last) = (rt::now() + self.timeout, None);
        loop {
            // Nodes that say for good that they cannot: where all do, no other answer will come.
            let (mut refusals, is_nobody_there) = (0, self.nodes.iter().all(Node::lags));
            for n in (0..self.nodes.len()).map(|n| (first + n) % self.nodes.len()) {
                let node = &self.nodes[n];
                if node.lags() && !is_nobody_there {
                    continue;
                }
                let reply = self.ask(node, request);
                if reply.as_ref().is_err_and(|error| !matches!(error, Error::Mismatch(_))) {
                    node.set_away();
                }
                match reply.and_then(|reply| accept((n, reply))) {
                    Ok(found) => return Ok(found),
                    Err(error @ Error::Invalid(_)) => return Err(error),
                    Err(error) => {
                        match error {
                            Error::Corrupt(_) | Error::Mismatch(_) | Error::Past(_) => refusals += 1,
                            // It may lead all the same: commands are none the worse for it.
                            _ => node.lags_until.store((rt::now() + AWAY).0, Ordering::Release),
                        }
                        last = Some(error);
                    }
                }
            }
            if let Some(error) = last.take_if(|_| refusals == self.nodes.len()) {
                return Err(error);
            }
            if rt::now() >= until {
                let why = last.map_or_else(|| "none of them answers".into(), |error| error.to_string());
                return Err(Error::Timeout(format!(
                    "no node of {} could answer: {why}",
                    self.name()
                )));
            }
            rt::sleep(AGAIN);
        }
    }

    /// The spaces as of an entry or later.
    pub(crate) fn spaces_as_of(&self, entry: u64) -> Result<Vec<SpaceExtent>> {
        let accept = |reply| match reply {
            Reply::Spaces(spaces) => Ok(spaces),
            other => Err(unexpected(other)),
        };
        self.ask_any(self.leader.load(Ordering::Acquire), &Request::Spaces { entry }, accept)
    }

    /// Pages as of an entry or later, of one node as long as that can: they are neighbours.
    pub(crate) fn read_as_of(&self, entry: u64, pages: &[PageId]) -> Vec<PageAnswer> {
        let Some(first) = pages.first() else { return Vec::new() };
        let wanted: Vec<(PageId, Lsn)> = pages.iter().map(|page| (*page, Lsn::ZERO)).collect();
        self.read_part_as_of(entry, self.place_of(*first), &wanted)
    }

    /// Of the node that the reader follows, as long as that can: others may be behind it.
    fn read_part_at(&self, at: Moment, pages: &[PageId]) -> Vec<PageAnswer> {
        let request = Request::PagesAt {
            at,
            pages: pages.to_vec(),
        };
        let first = self.followed.load(Ordering::Acquire) % self.nodes.len();
        match self.ask_any(first, &request, |reply| accept_pages(reply, pages.len())) {
            Ok(found) => found,
            // One bad page is not to hide the others.
            Err(Error::Corrupt(_)) if pages.len() > 1 => {
                pages.iter().flat_map(|page| self.read_part_at(at, &[*page])).collect()
            }
            Err(error) => pages.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn read_snapshot_part(&self, number: u64, first: usize, pages: &[PageId]) -> Vec<PageAnswer> {
        let request = Request::SnapshotPages {
            number,
            pages: pages.to_vec(),
        };
        match self.ask_any(first, &request, |reply| accept_all(reply, pages.len())) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // One bad page is not to hide the others.
            Err(Error::Corrupt(_) | Error::Invalid(_)) if pages.len() > 1 => {
                let one = |page| self.read_snapshot_part(number, first, &[page]);
                pages.iter().flat_map(|page| one(*page)).collect()
            }
            Err(error) => pages.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn read_part(&self, first: usize, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        self.read_part_as_of(self.entry.load(Ordering::Acquire), first, pages)
    }

    fn read_part_as_of(&self, entry: u64, first: usize, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        let request = Request::Pages {
            entry,
            pages: pages.to_vec(),
        };
        match self.ask_any(first, &request, |reply| accept_pages(reply, pages.len())) {
            Ok(found) => found,
            // One bad page is not to hide the others.
            Err(Error::Corrupt(_) | Error::Invalid(_)) if pages.len() > 1 => {
                let one = |page| self.read_part_as_of(entry, first, &[page]);
                pages.iter().flat_map(|page| one(*page)).collect()
            }
            Err(error) => pages.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Which node a page is read from.
    fn place_of(&self, page: PageId) -> usize {
        // Neighbours together, so that what is read together comes from one node.
        let block = PageId::new(page.space, page.page / 64).raw();
        (cenote_base::random::mix(block) % self.nodes.len() as u64) as usize
    }
}

fn accept_pages(reply: Reply, wanted: usize) -> Result<Vec<PageAnswer>> {
    match reply {
        Reply::Pages(found) if found.len() == wanted => {
            // Another node may have what this one lacks.
            let lacking = found.iter().find_map(|answer| match answer {
                Err(error @ (Error::Timeout(_) | Error::Corrupt(_) | Error::Lost(_))) => Some(error.clone()),
                _ => None,
            });
            lacking.map_or(Ok(found), Err)
        }
        Reply::Failed(error) => Err(error),
        other => Err(unexpected(other)),
    }
}

/// The same, where no node may leave a page out: another one has it.
fn accept_all(reply: Reply, wanted: usize) -> Result<Vec<(Box<[u8]>, PageRead)>> {
    accept_pages(reply, wanted)?.into_iter().collect()
}

fn talk(node: &Node, connection: Arc<dyn Connection>, request: &[u8]) -> Result<(Reply, Arc<dyn Connection>)> {
    let answer = connection
        .send(request)
        .and_then(|()| connection.receive(node.answer_timeout));
    match answer.and_then(|bytes| Reply::decode(&bytes)) {
        Ok(reply) => {
            node.silences.store(0, Ordering::Release);
            Ok((reply, connection))
        }
        Err(error) => {
            // Its answer may come yet, and is not the next request's.
            connection.close();
            Err(error)
        }
    }
}

impl fmt::Debug for NodesClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodesClient of {}", self.name())
    }
}

fn members_in(reply: Reply) -> Result<Membership> {
    match reply {
        Reply::Members(members) => Ok(members),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Failed(error) => error,
        other => Error::corrupt(format!("a storage node answered {other:?}")),
    }
}

impl StorageNodes for NodesClient {
    fn name(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        format!("the storage nodes of \"{}\" at {}", self.cluster, addresses.join(", "))
    }

    fn owner(&self) -> Result<OwnerRecord> {
        match self.ask_leader(&Request::Owner)? {
            Reply::Owner(owner) => Ok(owner),
            other => Err(unexpected(other)),
        }
    }

    fn take(&self, former: u64, record: &[u8]) -> Result<Taken> {
        let command = Command::Take {
            former,
            token: rt::random_u128().max(1),
            record: record.to_vec(),
        };
        let (entry, epoch, control, log) = match self.ask_leader(&Request::Propose(command.encode()))? {
            Reply::Taken {
                entry,
                epoch,
                control,
                log,
            } => (entry, epoch, control, log),
            Reply::TakenBefore { epoch } => return Err(Error::Busy(format!("start {epoch} was faster"))),
            other => return Err(unexpected(other)),
        };
        self.epoch.store(epoch, Ordering::Release);
        *self.turn.lock() = Turn::default();
        // A node that lags has other spaces than the former start has left.
        self.entry.fetch_max(entry, Ordering::AcqRel);
        let spaces = self.spaces_as_of(entry)?;
        Ok(Taken { control, log, spaces })
    }

    fn start(&self) -> u64 {
        NodesClient::epoch(self)
    }

    fn entry(&self) -> u64 {
        self.entry.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        let owner = self.owner()?;
        self.full.store(self.is_one_full(), Ordering::Release);
        match owner.epoch == self.epoch.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.revoked(owner.epoch)),
        }
    }

    fn begin(&self, control: &[u8], origin: Lsn) -> Result<()> {
        self.in_turn(|epoch, sequence| Command::Begin {
            epoch,
            sequence,
            control: control.to_vec(),
            origin,
        })
    }

    fn set_control(&self, control: &[u8]) -> Result<()> {
        self.in_turn(|epoch, sequence| Command::Control {
            epoch,
            sequence,
            control: control.to_vec(),
        })
    }

    fn append(&self, at: Lsn, groups: &[u8], end: LogEnd) -> Result<()> {
        check_groups(at, groups, end)?;
        let epoch = self.epoch.load(Ordering::Acquire);
        let pieces = groups.len().div_ceil(PIECE_MAX);
        for (n, redo) in groups.chunks(PIECE_MAX).enumerate() {
            self.command(&Command::Append {
                epoch,
                at: at.advance((n * PIECE_MAX) as u64),
                end: (n + 1 == pieces).then_some(end),
                redo: redo.to_vec(),
            })?;
        }
        Ok(())
    }

    fn read_log(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let from = at.advance(filled as u64);
            let length = (buffer.len() - filled).min(crate::wire::LOG_MAX) as u32;
            let accept = |reply| match reply {
                Reply::Log(bytes) => Ok(bytes),
                other => Err(unexpected(other)),
            };
            let bytes = self.ask_any(
                self.leader.load(Ordering::Acquire),
                &Request::Log { at: from, length },
                accept,
            )?;
            let n = bytes.len().min(buffer.len() - filled);
            if n == 0 {
                break;
            }
            buffer[filled..filled + n].copy_from_slice(&bytes[..n]);
            filled += n;
        }
        Ok(filled)
    }

    fn read_pages(&self, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        let mut places: Vec<(usize, usize)> = pages
            .iter()
            .enumerate()
            .map(|(n, (id, _))| (self.place_of(*id), n))
            .collect();
        places.sort_unstable();
        let mut found: Vec<Option<PageAnswer>> = pages.iter().map(|_| None).collect();
        for group in places.chunk_by(|a, b| a.0 == b.0) {
            for part in group.chunks(PAGES_MAX) {
                let wanted: Vec<(PageId, Lsn)> = part.iter().map(|(_, n)| pages[*n]).collect();
                for ((_, n), answer) in part.iter().zip(self.read_part(part[0].0, &wanted)) {
                    found[*n] = Some(answer);
                }
            }
        }
        found
            .into_iter()
            .map(|answer| answer.expect("each page is answered"))
            .collect()
    }

    fn make_space(&self, space: u32) -> Result<()> {
        self.in_turn(|epoch, sequence| Command::MakeSpace { epoch, sequence, space })
    }

    fn drop_space(&self, space: u32) -> Result<()> {
        self.in_turn(|epoch, sequence| Command::DropSpace { epoch, sequence, space })
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn follow(&self, request: &FollowRequest) -> Result<Changes> {
        let accept = |(n, reply)| match reply {
            Reply::Changes(changes) => {
                self.followed.store(n, Ordering::Release);
                Ok(changes)
            }
            other => Err(unexpected(other)),
        };
        // Readers are spread over the nodes, and each stays where it is.
        let first = match self.followed.load(Ordering::Acquire) {
            usize::MAX => (request.reader % self.nodes.len() as u128) as usize,
            followed => followed,
        };
        self.ask_any_saying(first, &Request::Follow(request.clone()), accept)
    }

    fn read_pages_at(&self, at: Moment, pages: &[PageId]) -> Vec<PageAnswer> {
        let parts = pages.chunks(PAGES_MAX);
        parts.flat_map(|part| self.read_part_at(at, part)).collect()
    }

    fn newest(&self) -> Result<Newest> {
        match self.ask_leader(&Request::Newest)? {
            Reply::Newest(newest) => Ok(newest),
            other => Err(unexpected(other)),
        }
    }

    fn leave_followed(&self) {
        let left = self.followed.load(Ordering::Acquire);
        if let Some(node) = self.nodes.get(left) {
            node.lags_until.store((rt::now() + LEFT).0, Ordering::Release);
            self.followed.store((left + 1) % self.nodes.len(), Ordering::Release);
        }
    }

    fn readers(&self) -> Result<Vec<ReaderSeen>> {
        self.ask_each(&Request::Readers, |reply| match reply {
            Reply::Readers(readers) => Ok(readers),
            other => Err(unexpected(other)),
        })
    }

    fn snapshot_spaces(&self, number: u64) -> Result<Vec<SpaceExtent>> {
        let accept = |reply| match reply {
            Reply::Spaces(spaces) => Ok(spaces),
            other => Err(unexpected(other)),
        };
        let first = self.leader.load(Ordering::Acquire);
        self.ask_any(first, &Request::SnapshotSpaces(number), accept)
    }

    fn read_snapshot(&self, number: u64, pages: &[PageId]) -> Vec<PageAnswer> {
        let mut found: Vec<PageAnswer> = Vec::with_capacity(pages.len());
        for group in pages.chunk_by(|a, b| self.place_of(*a) == self.place_of(*b)) {
            let parts = group.chunks(PAGES_MAX);
            found.extend(parts.flat_map(|part| self.read_snapshot_part(number, self.place_of(part[0]), part)));
        }
        found
    }

    fn take_asked(&self) -> Result<Vec<PageId>> {
        let mut pages = self.ask_each(&Request::TakeAsked, |reply| match reply {
            Reply::Asked(pages) => Ok(pages),
            other => Err(unexpected(other)),
        })?;
        pages.sort_unstable();
        pages.dedup();
        Ok(pages)
    }
}

/// A node beside `number` that lacks pages, or entries that no other keeps: it has not been given its state yet.
fn lacking_beside(number: u64, there: &[Status]) -> Option<u64> {
    let mut others = there.iter().filter(|of| of.node != number);
    let lacking = others.find(|of| of.lacking_pages > 0 || of.lacks_log(there))?;
    Some(lacking.node)
}

/// Redo that is none would end every node: it does not leave the database.
fn check_groups(start: Lsn, groups: &[u8], end: LogEnd) -> Result<()> {
    let mut at = start;
    let mut last = None;
    while at.since(start) < groups.len() as u64 {
        let group = GroupRef::parse(&groups[at.since(start) as usize..], at)?;
        last = Some((group.start(), group.checksum()));
        at = group.end();
    }
    match last == Some((end.last_start, end.last_checksum)) && at == end.end {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "the redo from {start} on does not end at {}",
            end.end
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::message::tcp::Tcp;

    #[test]
    fn requests_to_a_node_wait_for_each_other() {
        let client = NodesClient::new(Arc::new(Tcp), "test", "", &["127.0.0.1:1".into()]);
        let node = &client.nodes[0];
        (0..IN_USE_MAX).for_each(|_| assert!(node.begin().expect("room").is_none()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| node.begin().map(drop));
            while node.connections.lock().waiting == 0 {
                rt::sleep(Nanos::from_millis(1));
            }
            node.end(None);
            waits.join().expect("no panic").expect("its turn");
        });
        assert_eq!(node.connections.lock().in_use, IN_USE_MAX);
        node.set_away();
        let refused = node
            .begin()
            .map(drop)
            .expect_err("the node does not answer those before");
        assert!(
            matches!(&refused, Error::Timeout(why) if why.contains("128 requests")),
            "{refused}"
        );
    }

    #[test]
    fn a_reader_leaves_a_node_that_lags_and_does_not_come_back_at_once() {
        let addresses: Vec<String> = (1..4).map(|port| format!("127.0.0.1:{port}")).collect();
        let client = NodesClient::new(Arc::new(Tcp), "test", "", &addresses);
        client.leave_followed();
        assert_eq!(client.followed.load(Ordering::Acquire), usize::MAX, "it follows none");
        client.followed.store(2, Ordering::Release);
        client.leave_followed();
        assert_eq!(client.followed.load(Ordering::Acquire), 0);
        assert!(client.nodes[2].lags() && !client.nodes[0].lags());
    }

    #[test]
    fn no_node_is_replaced_while_another_lacks_what_it_needs() {
        let status = |node, first, last, lacking_pages| Status {
            node,
            first,
            last,
            lacking_pages,
            ..Status::default()
        };
        let whole = [status(1, 100, 200, 0), status(2, 1, 0, 0), status(3, 90, 195, 0)];
        assert_eq!(lacking_beside(2, &whole), None, "the one that is replaced lacks all");
        assert_eq!(
            lacking_beside(3, &whole),
            Some(2),
            "it was let in, and has not been given its state"
        );
        let behind = [status(1, 100, 200, 0), status(2, 1, 99, 0), status(3, 1, 0, 0)];
        assert_eq!(lacking_beside(3, &behind), None, "the next entry is there");
        let taking = [status(1, 100, 200, 0), status(2, 150, 200, 7), status(3, 1, 0, 0)];
        assert_eq!(lacking_beside(3, &taking), Some(2), "it takes its pages");
    }
}
