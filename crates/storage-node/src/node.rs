//! A storage node: its files, its threads, and the connections that it answers.
//!
//! ```text
//!  connections ──▶ a thread each ──▶ commands, questions ──▶ replica (Raft) ──▶ Raft log
//!                        │                                        │ applied
//!                        └──────────▶ pages, log ◀── ingest ◀─────┘
//!                                       └── merge ──▶ files ──▶ checkpoint: `state`, Raft log cut
//! ```
//!
//! Lock order: a connection's thread holds none while it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use cenote_base::error::IoContext;
use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::message::{Connection, Listener, Network};
use cenote_storage::OwnedRecord;
use cenote_storage::asked::AskedPages;
use cenote_storage::control::database_of;
use cenote_storage::nodes::{ASKED_MAX, Changes, FollowRequest, Newest, OwnerRecord, StorageNodes};
use cenote_storage::redo::verify_page;
use prost::Message as _;
use raft::eraftpb::Message;

use crate::client::NodesClient;
use crate::command::Command;
use crate::demand::Demand;
use crate::machine::{Machine, Outcome};
use crate::members::{Led, Members, Server, ServerRole};
use crate::pages::{Checkpoint, Limits, Pages, Put, records_of};
use crate::peers::Peers;
use crate::positions::Positions;
use crate::raft_log::{RaftLog, SEGMENT};
use crate::readers::Readers;
use crate::replica::{Answer, Confirmed, Driver, End, Own, Replica, carry_out};
use crate::state_file::{Identity, KnownPeers, REPLACED_DIRECTORY, StateFile, load_state};
use crate::turns::Turns;
use crate::wire::{Hello, LOG_MAX, PAGES_MAX, Reply, Request, Status};

/// How long a client's command may take before its client asks again.
const ANSWER_TIMEOUT: Nanos = Nanos::from_millis(2500);
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(5);
/// How long merging waits for a page from another node.
const OTHERS_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Between two looks whether the node ends.
const TURN: Nanos = Nanos::from_millis(200);
/// Connections at a time; more are refused.
const CONNECTIONS_MAX: u64 = 512;
/// More, that may turn out to be other nodes.
const CONNECTIONS_RESERVED: u64 = 64;
/// How long a client may be silent: it connects again.
const IDLE: Nanos = Nanos::from_secs(600);
/// Bytes that a node leaves free on its disk: the log of what is under way, and pages that are merged, find room.
const FREE_MIN: u64 = 512 << 20;
/// Bytes of entries that are taken in at a time.
const INGEST_BYTES: u64 = 4 << 20;
/// Pages that readers have asked for, and that the server has not heard of.
const ASKED_KEPT: usize = 4 * ASKED_MAX;

/// What a storage node is told.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where its files lie.
    pub dir: PathBuf,
    /// The cluster's name: nodes and clients of another are refused.
    pub cluster: String,
    /// What nodes and clients have to know; empty: nothing.
    pub secret: String,
    /// Its number, above zero.
    pub number: u64,
    /// All nodes of the cluster, this one too: number and address.
    pub nodes: BTreeMap<u64, String>,
    /// Where it listens; `None`: at its address in `nodes`.
    pub listen: Option<String>,
    /// Bytes of redo that it keeps in memory until pages have it.
    pub memory: usize,
    /// Bytes of the log behind the last checkpoint from which on pages are merged.
    pub log_limit: u64,
    /// Bytes of the log that it keeps for nodes that lag, if no more is needed.
    pub log_kept: u64,
    /// Bytes of a segment of its log.
    pub segment: u64,
}

impl NodeOptions {
    /// The usual ones.
    pub fn new(dir: PathBuf, cluster: &str, number: u64, nodes: BTreeMap<u64, String>) -> NodeOptions {
        NodeOptions {
            dir,
            cluster: cluster.to_owned(),
            secret: String::new(),
            number,
            nodes,
            listen: None,
            memory: 256 << 20,
            log_limit: 256 << 20,
            log_kept: 256 << 20,
            segment: SEGMENT,
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return wrong("a cluster's name has 1 to 64 bytes");
        }
        if self.nodes.contains_key(&0) || !self.nodes.contains_key(&self.number) {
            return wrong("a node's number is above zero, and one of those of the cluster");
        }
        if self.nodes.len().is_multiple_of(2) || self.nodes.len() > 7 {
            return wrong("a cluster has 1, 3, 5 or 7 storage nodes: an even number survives no more losses");
        }
        Ok(())
    }
}

/// A storage node that runs. Dropping it ends it.
///
/// ```text
///  watch ──▶ Running: files, threads ── given a state of another node ──▶ ends
///    ▲                                                                     │
///    └───────────────────── started anew, at the same address ◀────────────┘
/// ```
pub struct StorageNode {
    life: Arc<Life>,
    watch: Mutex<Option<rt::JoinHandle<()>>>,
    address: String,
}

struct Life {
    options: NodeOptions,
    network: Arc<dyn Network>,
    running: Mutex<Running>,
    /// That of `running`, or of the one before while that is made. Nothing is taken under it.
    current: Mutex<Arc<Shared>>,
    closing: AtomicBool,
    /// Why it could not be started anew.
    failed: Mutex<Option<Error>>,
    _lock: File,
}

/// From one opening of the files to the next.
struct Running {
    shared: Arc<Shared>,
    threads: Vec<rt::JoinHandle<()>>,
    address: String,
}

struct Shared {
    options: NodeOptions,
    identity: Identity,
    replica: Arc<Replica>,
    state: Arc<StateFile>,
    /// Whether no page is lacking here.
    is_whole: Arc<AtomicBool>,
    /// What was said last of pages that are damaged or lacking.
    said: Mutex<String>,
    pages: Pages,
    peers: Arc<Peers>,
    closing: AtomicBool,
    connections: AtomicU64,
    /// Those that are open, to be closed.
    open: Mutex<BTreeMap<u64, Weak<dyn Connection>>>,
    next: AtomicU64,
    positions: Mutex<Positions>,
    /// The disks that the other nodes came with.
    known: Mutex<KnownPeers>,
    readers: Readers,
    /// What they have asked for.
    asked: AskedPages,
    members: Members,
    others: NodesClient,
    full: AtomicBool,
}

impl StorageNode {
    /// Opens the node's files, joins the others and answers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that make no sense; [`Error::Busy`] if another process has the directory or the
    /// address; [`Error::Mismatch`] if the directory is another node's; [`Error::Corrupt`] if what it has promised to
    /// keep is damaged; an I/O error.
    pub fn start(options: NodeOptions, network: Arc<dyn Network>) -> Result<StorageNode> {
        options.check()?;
        let dir = &options.dir;
        fs::create_dir_all(dir).doing(|| format!("making {}", dir.display()))?;
        let lock = lock(dir)?;
        let running = Running::open(options.clone(), Arc::clone(&network))?;
        let address = running.address.clone();
        let life = Arc::new(Life {
            // It is found where it was.
            options: NodeOptions {
                listen: Some(address.clone()),
                ..options
            },
            network,
            current: Mutex::new(Arc::clone(&running.shared)),
            running: Mutex::new(running),
            closing: AtomicBool::new(false),
            failed: Mutex::default(),
            _lock: lock,
        });
        let watched = Arc::clone(&life);
        let watch = rt::spawn("storage-node", move || watched.watch());
        Ok(StorageNode {
            life,
            watch: Mutex::new(Some(watch)),
            address,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it says of itself.
    pub fn status(&self) -> Status {
        self.life.current().status()
    }

    /// Why it has ended, if it has.
    pub fn failure(&self) -> Option<Error> {
        if let Some(error) = self.life.failed.lock().clone() {
            return Some(error);
        }
        let view = self.life.current().replica.view();
        view.failed.filter(|_| !view.begins_anew)
    }

    /// Ends it: nothing is answered any more when this returns.
    pub fn stop(&self) {
        self.life.closing.store(true, Ordering::Release);
        if let Some(watch) = self.watch.lock().take() {
            // One that panicked has said so where it happened.
            let _ = watch.join();
        }
        self.life.running.lock().stop();
    }
}

impl Life {
    fn current(&self) -> Arc<Shared> {
        Arc::clone(&self.current.lock())
    }

    /// Starts the node anew each time it was given a state.
    fn watch(&self) {
        while !self.closing.load(Ordering::Acquire) {
            match self.current().replica.wait_end(TURN) {
                End::None => continue,
                End::Failed => return,
                End::Anew => {}
            }
            let started = catch_unwind(AssertUnwindSafe(|| self.start_anew()));
            let started = started.unwrap_or_else(|_| Err(Error::Poisoned("its start panicked".into())));
            if let Err(error) = started {
                let number = self.options.number;
                eprintln!("cenote storage: node {number} cannot begin anew: {error}");
                self.failed.lock().get_or_insert(error);
                return;
            }
        }
    }

    fn start_anew(&self) -> Result<()> {
        let mut running = self.running.lock();
        running.stop();
        *running = Running::open(self.options.clone(), Arc::clone(&self.network))?;
        *self.current.lock() = Arc::clone(&running.shared);
        Ok(())
    }
}

impl Running {
    fn open(options: NodeOptions, network: Arc<dyn Network>) -> Result<Running> {
        let dir = options.dir.clone();
        let numbers: Vec<u64> = options.nodes.keys().copied().collect();
        let identity = Identity::open(&dir, &options.cluster, options.number, &numbers)?;
        let known = KnownPeers::open(&dir)?;
        let mut saved = load_state(&dir)?;
        // The state was given to it, and what it has besides is of before.
        let anew = saved.lacking.as_ref().is_some_and(|lacking| !lacking.is_begun);
        let checkpoint = saved.checkpoint.clone();
        if anew {
            // They make room, too.
            remove_pages(&dir)?;
        }
        let log = RaftLog::open(&dir.join("raft"), options.segment, checkpoint.entry, anew)?;
        let limits = Limits {
            memory: options.memory,
            log: options.log_limit,
        };
        let mut redo = |wanted: &BTreeMap<PageId, Lsn>| redo_of(&log, &checkpoint, wanted);
        let pages = Pages::open(&dir, identity.identity, &saved, limits, &mut redo)?;
        let state = Arc::new(StateFile::new(&dir));
        if anew {
            pages.begin_lacking()?;
            saved.lacking.iter_mut().for_each(|lacking| lacking.is_begun = true);
            state.save(&saved)?;
        }
        let dropped = dropped_behind(&log, &checkpoint)?;
        check_dropped(pages.missing_spaces(&checkpoint), &dropped, &dir)?;
        pages.set_dropped(dropped);
        let replica = Arc::new(Replica::new(log, checkpoint.machine.clone(), checkpoint.entry.0));
        let hello = Hello {
            cluster: options.cluster.clone(),
            secret: options.secret.clone(),
            to: 0,
            from: options.number,
            identity: identity.identity,
        };
        let mut others = options.nodes.clone();
        let own = others.remove(&options.number).unwrap_or_default();
        let listener = network.listen(options.listen.as_deref().unwrap_or(&own))?;
        let address = listener.address();
        let to_others = client_of(&others, &options, &network);
        let peers = Arc::new(Peers::new(network, hello, &others));
        let is_whole = Arc::new(AtomicBool::new(saved.lacking.is_none()));
        let own = Own {
            number: options.number,
            identity: identity.identity,
            state: Arc::clone(&state),
            is_whole: Arc::clone(&is_whole),
        };
        let driver = Driver::new(Arc::clone(&replica), Arc::clone(&peers), own, &numbers)?;
        let shared = Arc::new(Shared {
            options,
            identity,
            replica,
            state,
            is_whole,
            said: Mutex::default(),
            pages,
            peers,
            closing: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            positions: Mutex::default(),
            known: Mutex::new(known),
            readers: Readers::default(),
            asked: AskedPages::new(ASKED_KEPT),
            members: Members::default(),
            others: to_others,
            full: AtomicBool::new(false),
        });
        let threads = start_threads(&shared, driver, checkpoint, listener);
        Ok(Running {
            shared,
            threads,
            address,
        })
    }

    fn stop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // One that panicked has said so where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for StorageNode {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = fs::open(&path, OpenOptions::CREATE).doing(|| format!("opening {}", path.display()))?;
    let locked = file.lock_exclusive_within(Nanos::from_secs(1));
    match locked.doing(|| format!("locking {}", path.display()))? {
        true => Ok(file),
        false => Err(Error::Busy(format!(
            "{} is in use by another storage node: stop that one first",
            dir.display()
        ))),
    }
}

/// For the other nodes.
fn client_of(others: &BTreeMap<u64, String>, options: &NodeOptions, network: &Arc<dyn Network>) -> NodesClient {
    let addresses: Vec<String> = others.values().cloned().collect();
    NodesClient::new(Arc::clone(network), &options.cluster, &options.secret, &addresses).with_timeout(OTHERS_TIMEOUT)
}

fn start_threads(
    shared: &Arc<Shared>,
    driver: Driver,
    checkpoint: Checkpoint,
    listener: Box<dyn Listener>,
) -> Vec<rt::JoinHandle<()>> {
    let mut threads = shared.peers.start();
    let turns = Turns::new(Arc::clone(&shared.replica), driver);
    let stand_in = Arc::clone(&turns);
    threads.push(rt::spawn("storage-raft", move || turns.take()));
    threads.push(rt::spawn("storage-stand-in", move || stand_in.stand_in()));
    let me = Arc::clone(shared);
    threads.push(rt::spawn("storage-ingest", move || {
        me.or_fail(|| me.ingest(checkpoint))
    }));
    let me = Arc::clone(shared);
    threads.push(rt::spawn("storage-merge", move || me.or_fail(|| me.merge())));
    let me = Arc::clone(shared);
    threads.push(rt::spawn("storage-accept", move || me.accept(&*listener)));
    threads
}

/// Removes pages of before a state that was given, and their copies.
fn remove_pages(dir: &Path) -> Result<()> {
    let doing = || format!("removing the pages of before in {}", dir.display());
    let spaces = dir.join("spaces");
    if fs::exists(&spaces).doing(doing)? {
        for name in fs::list(&spaces).doing(doing)? {
            fs::remove(spaces.join(name)).doing(doing)?;
        }
        fs::sync_dir(&spaces).doing(doing)?;
    }
    let copies = dir.join("doublewrite");
    if fs::exists(&copies).doing(doing)? {
        fs::remove(copies).doing(doing)?;
    }
    fs::sync_dir(dir).doing(doing)
}

/// The records of pages from the checkpoint on, each page's up to its LSN: for pages that a crash tore. Those above its
/// LSN, which may not be committed, are left out.
fn redo_of(
    log: &RaftLog,
    checkpoint: &Checkpoint,
    wanted: &BTreeMap<PageId, Lsn>,
) -> Result<BTreeMap<PageId, Vec<OwnedRecord>>> {
    let mut found: BTreeMap<PageId, Vec<OwnedRecord>> = BTreeMap::new();
    let mut machine = checkpoint.machine.clone();
    for index in checkpoint.entry.0 + 1..=log.last_index() {
        for entry in log.entries(index, index + 1, 0)? {
            let Some(Outcome::Appended { at, groups }) = carry_out(&mut machine, &entry)? else {
                continue;
            };
            for record in records_of(at, &groups)? {
                let (page, lsn, is_base) = (record.get().page, record.get().lsn, record.get().is_base);
                if wanted.get(&page).is_none_or(|until| lsn > *until) {
                    continue;
                }
                let records = found.entry(page).or_default();
                if is_base {
                    records.clear();
                }
                records.push(record);
            }
        }
    }
    Ok(found)
}

/// The spaces that entries behind the checkpoint drop. Where they were carried out before, there is no file, or that of
/// the next space of this number.
fn dropped_behind(log: &RaftLog, checkpoint: &Checkpoint) -> Result<BTreeSet<u32>> {
    let (mut index, mut dropped) = (checkpoint.entry.0 + 1, BTreeSet::new());
    while index <= log.last_index() {
        for entry in log.entries(index, log.last_index() + 1, INGEST_BYTES)? {
            index = entry.index + 1;
            dropped.extend(Command::dropped_space(&entry.data));
        }
    }
    Ok(dropped)
}

/// Files of spaces may be missing where a later entry drops the space: a start takes it in again.
///
/// # Errors
/// [`Error::Corrupt`] if one is not dropped.
fn check_dropped(missing: Vec<u32>, dropped: &BTreeSet<u32>, dir: &Path) -> Result<()> {
    match missing.iter().find(|space| !dropped.contains(space)) {
        None => Ok(()),
        Some(space) => Err(Error::corrupt(format!(
            "the file of space {space} is missing in {}: the other nodes go on without this one; bring the file back",
            dir.display()
        ))),
    }
}

impl Shared {
    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.replica.close();
        self.pages.close();
        self.peers.close();
        let open = std::mem::take(&mut *self.open.lock());
        open.into_values()
            .filter_map(|c| c.upgrade())
            .for_each(|connection| connection.close());
    }

    /// Runs a thread's body; an error of it ends the node.
    fn or_fail(&self, body: impl FnOnce() -> Result<()>) {
        let done = catch_unwind(AssertUnwindSafe(body));
        let done = done.unwrap_or_else(|_| Err(Error::Poisoned("a thread of it panicked".into())));
        if let Err(error) = done {
            if !self.replica.view().begins_anew {
                eprintln!("cenote storage: node {} ends: {error}", self.options.number);
            }
            self.replica.fail(&error);
            self.close();
        }
    }

    // ---- pages ----

    /// Takes committed entries into pages, in order, from the checkpoint on.
    fn ingest(&self, checkpoint: Checkpoint) -> Result<()> {
        let (mut at, mut machine) = (checkpoint.entry.0, checkpoint.machine);
        while !self.is_closing() {
            let Some(applied) = self.replica.wait_applied(at, TURN) else {
                return Ok(());
            };
            while at < applied && self.pages.wait_for_room() {
                let entries = self.replica.log.lock().entries(at + 1, applied + 1, INGEST_BYTES)?;
                for entry in entries {
                    self.ingest_entry(&entry, &mut machine)?;
                    at = entry.index;
                }
            }
        }
        Ok(())
    }

    fn ingest_entry(&self, entry: &raft::eraftpb::Entry, machine: &mut Machine) -> Result<()> {
        let outcome = carry_out(machine, entry)?.unwrap_or(Outcome::Done);
        self.positions.lock().note(entry, &outcome, machine.log().end)?;
        self.pages.ingest((entry.index, entry.term), &outcome, machine)
    }

    /// Merges pages while redo takes up room, saves the state that they have, and cuts the log.
    fn merge(&self) -> Result<()> {
        while !self.is_closing() {
            self.look_at_disk()?;
            self.make_spare()?;
            let log = self.replica.log.lock().bytes();
            let merged = match self.pages.wants_merge(log.saturating_sub(self.log_kept())) {
                true => self.merge_batch()?,
                false => 0,
            };
            let taken = self.take_lacking()?;
            self.save()?;
            let tidied = match self.pages.tidy() {
                // To give blocks back may take some.
                Err(Error::Full(_)) => false,
                tidied => tidied?,
            };
            if merged == 0 && !taken && !tidied {
                rt::sleep(Nanos::from_millis(50));
            }
        }
        Ok(())
    }

    /// Merges a batch of pages; how many. A disk without room has lost nothing: it is tried again.
    fn merge_batch(&self) -> Result<usize> {
        match self.pages.merge(&|id, lsn| self.other_copy(id, lsn)) {
            Err(Error::Full(why)) => {
                if !self.full.swap(true, Ordering::AcqRel) {
                    eprintln!(
                        "cenote storage: node {}: {why}; pages are not merged",
                        self.options.number
                    );
                }
                Ok(0)
            }
            merged => merged,
        }
    }

    /// A page that is damaged here, from another node.
    fn other_copy(&self, id: PageId, lsn: Lsn) -> Result<Box<[u8]>> {
        self.say_once(format!(
            "page {id} is damaged in its file, and is taken from another node"
        ));
        let damaged = || Error::corrupt(format!("page {id} is damaged, and no other node has it"));
        if self.options.nodes.len() == 1 {
            return Err(damaged());
        }
        let (page, read) = self.others.read_pages(&[(id, lsn)]).pop().ok_or_else(damaged)??;
        if read == PageRead::NeverWritten {
            // Where this node's redo is of a page, the space was made anew.
            return Err(Error::Invalid(format!("space {} has no page {id} any more", id.space)));
        }
        match page.len() == PAGE_SIZE {
            true => verify_page(&page, id).map(|()| page),
            false => Err(damaged()),
        }
    }

    /// Takes some of the pages that are lacking here from the other nodes; whether any came.
    fn take_lacking(&self) -> Result<bool> {
        if let Some(entry) = self.pages.lacks_extents() {
            match self.others.spaces_as_of(entry) {
                Ok(spaces) => self.pages.set_extents(&spaces),
                // They may answer yet.
                Err(error) => return Ok(self.say_left(&error)),
            }
        }
        let Some(wanted) = self
            .pages
            .wanted(PAGES_MAX)
            .filter(|_| !self.full.load(Ordering::Acquire))
        else {
            return Ok(false);
        };
        if wanted.pages.is_empty() && !self.has_come_to_given() {
            return Ok(false);
        }
        let mut answers = self.others.read_as_of(wanted.since, &wanted.pages);
        for (id, answer) in wanted.pages.iter().zip(&mut answers) {
            let is_wrong = |page: &[u8]| page.len() != PAGE_SIZE || verify_page(page, *id).is_err();
            if let Ok((page, PageRead::Present)) = answer
                && is_wrong(page)
            {
                *answer = Err(Error::corrupt(format!("page {id} came damaged")));
            }
        }
        match self.pages.put(&wanted, answers) {
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
            Ok(Put::More) => Ok(true),
            Ok(Put::Left(error)) => Ok(self.say_left(&error)),
            Ok(Put::Whole) => {
                self.is_whole.store(true, Ordering::Release);
                eprintln!("cenote storage: node {} has all of its pages", self.options.number);
                Ok(true)
            }
        }
    }

    /// Whether this node has come to all that the others knew when they gave the last page. An entry that is proposed
    /// after that is behind it.
    fn has_come_to_given(&self) -> bool {
        if let Some(has_come) = self.pages.has_come_to_given() {
            return has_come;
        }
        // Nothing changes by it: the node has come with this directory.
        let command = Command::Register {
            node: self.options.number,
            identity: self.identity.identity,
        };
        let proposed = match self.replica.propose(command.encode(), OTHERS_TIMEOUT) {
            Answer::Outcome(_, entry) => Ok(entry),
            _ => self.others.command(&command),
        };
        match proposed {
            Ok(entry) => self.pages.note_given_up_to(entry),
            Err(error) => _ = self.say_left(&error),
        }
        false
    }

    /// Says why pages do not come, once for each reason. No: they are tried later.
    fn say_left(&self, error: &Error) -> bool {
        self.say_once(format!("pages are lacking: {error}"));
        false
    }

    /// Says what is not the last that was said.
    fn say_once(&self, text: String) {
        let mut said = self.said.lock();
        if *said != text {
            eprintln!("cenote storage: node {}: {text}", self.options.number);
            *said = text;
        }
    }

    fn save(&self) -> Result<()> {
        let Some(saved) = self.pages.to_save() else {
            return Ok(());
        };
        match self.state.save(&saved) {
            // A later one is saved when there is room.
            Err(Error::Full(_)) => return Ok(()),
            done => done?,
        }
        let entry = saved.checkpoint.entry.0;
        let lacks = saved.lacking.is_some();
        self.pages.note_saved(saved);
        if lacks && !self.full.load(Ordering::Acquire) {
            // Where others lack pages, too, one that was away has them and lacks this log.
            return Ok(());
        }
        let kept = self.log_kept();
        let (retired, first) = {
            let mut log = self.replica.log.lock();
            (log.compact(entry, kept), log.first_index())
        };
        for segment in retired {
            if let Some(spare) = segment.retire()? {
                self.replica.log.lock().add_spare(spare);
            }
        }
        self.positions.lock().forget_before(first);
        Ok(())
    }

    /// Bytes of the log to be kept. A node that leads keeps what another lacks, up to eight times as much, while there is
    /// room: nothing else brings that node back.
    fn log_kept(&self) -> u64 {
        let least = self.options.log_kept;
        match self.replica.view().everywhere {
            Some(entry) if !self.full.load(Ordering::Acquire) => {
                let lacking = self.replica.log.lock().bytes_behind(entry);
                lacking.clamp(least, least.saturating_mul(8))
            }
            _ => least,
        }
    }

    fn make_spare(&self) -> Result<()> {
        let wanted = self.replica.log.lock().spare_wanted();
        if let Some(wanted) = wanted.filter(|_| !self.full.load(Ordering::Acquire)) {
            match wanted.make() {
                Err(Error::Full(_)) => {}
                made => self.replica.log.lock().add_spare(made?),
            }
        }
        Ok(())
    }

    fn look_at_disk(&self) -> Result<()> {
        let free = self.free_bytes()?;
        let is_full = free < FREE_MIN;
        if self.full.swap(is_full, Ordering::AcqRel) != is_full {
            let number = self.options.number;
            eprintln!("cenote storage: node {number}: {free} bytes are free on its disk, {FREE_MIN} are to be left");
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        let dir = &self.options.dir;
        fs::free_bytes(dir).doing(|| format!("looking for space in {}", dir.display()))
    }

    // ---- connections ----

    fn accept(self: &Arc<Self>, listener: &dyn Listener) {
        let mut threads: Vec<rt::JoinHandle<()>> = Vec::new();
        while !self.is_closing() {
            match listener.accept(TURN) {
                Ok(Some(connection)) => threads.extend(self.welcome(connection)),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("cenote storage: accepting a connection: {error}");
                    rt::sleep(TURN);
                }
            }
            threads.retain(|thread| !thread.is_finished());
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn welcome(self: &Arc<Self>, connection: Arc<dyn Connection>) -> Option<rt::JoinHandle<()>> {
        if self.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX + CONNECTIONS_RESERVED {
            let _ = connection.send(&Reply::Failed(busy()).encode());
            connection.close();
            self.connections.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        self.open.lock().insert(number, Arc::downgrade(&connection));
        let me = Arc::clone(self);
        let talk = move || {
            // A peer's end is the usual one.
            let _ = me.talk(&*connection);
            connection.close();
            me.open.lock().remove(&number);
            me.connections.fetch_sub(1, Ordering::AcqRel);
        };
        match rt::try_spawn("storage-talk", talk) {
            Ok(thread) => Some(thread),
            Err(error) => {
                eprintln!("cenote storage: no thread for a connection: {error}");
                self.open.lock().remove(&number);
                self.connections.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }

    fn talk(&self, connection: &dyn Connection) -> Result<()> {
        let hello = Hello::decode(&connection.receive(HELLO_TIMEOUT)?).and_then(|hello| self.let_in(hello));
        let hello = match hello {
            Ok(hello) => hello,
            Err(error) => return connection.send(&Reply::Failed(error).encode()),
        };
        let node = self.options.number;
        connection.send(&Reply::Welcome { node }.encode())?;
        let mut heard = rt::now();
        while !self.is_closing() {
            let bytes = match connection.receive(TURN) {
                Err(Error::Timeout(_)) if hello.from != 0 || rt::now().since(heard) < IDLE => continue,
                received => received?,
            };
            heard = rt::now();
            match hello.from {
                0 => connection.send(&self.answer(&bytes).encode())?,
                from => self.receive(from, hello.identity, &bytes)?,
            }
        }
        Ok(())
    }

    fn let_in(&self, hello: Hello) -> Result<Hello> {
        let number = self.options.number;
        // Before anything is said of the cluster.
        if !is_same(&hello.secret, &self.options.secret) {
            return Err(Error::Mismatch(format!(
                "node {number} does not let this peer in: its secret is another (--storage-secret-file)"
            )));
        }
        if hello.cluster != self.options.cluster {
            return Err(Error::Mismatch(format!(
                "this is node {number} of the cluster \"{}\", not of \"{}\"",
                self.options.cluster, hello.cluster
            )));
        }
        if hello.to != 0 && hello.to != number {
            return Err(Error::Mismatch(format!("this is node {number}, not node {}", hello.to)));
        }
        if hello.from == 0 {
            return match self.connections.load(Ordering::Acquire) <= CONNECTIONS_MAX {
                true => Ok(hello),
                false => Err(busy()),
            };
        }
        let is_node = hello.from != number && self.options.nodes.contains_key(&hello.from);
        match is_node {
            true => self.check_directory(&hello).map(|()| hello),
            false => Err(Error::Mismatch(format!(
                "node {} is none of the others of the cluster \"{}\"",
                hello.from, self.options.cluster
            ))),
        }
    }

    /// Whether a node comes with the directory that it had, or that took its place.
    fn check_directory(&self, hello: &Hello) -> Result<()> {
        let view = self.replica.view();
        match view.replaced.get(&hello.from) {
            Some(identity) if *identity == hello.identity => Ok(()),
            Some(_) => Err(Error::Mismatch(format!("node {} {REPLACED_DIRECTORY}", hello.from))),
            None => {
                let first = view.registered.get(&hello.from).copied();
                self.known.lock().check(hello.from, hello.identity, first)
            }
        }
    }

    /// A message of another node.
    fn receive(&self, from: u64, identity: u128, bytes: &[u8]) -> Result<()> {
        let message = Message::decode(bytes);
        let message = message.map_err(|error| Error::corrupt(format!("a message of node {from}: {error}")))?;
        if (message.from, message.to) != (from, self.options.number) {
            return Err(Error::corrupt(format!(
                "node {from} sent a message of {}",
                message.from
            )));
        }
        self.replica.receive(message, identity);
        Ok(())
    }

    fn answer(&self, bytes: &[u8]) -> Reply {
        let request = match Request::decode(bytes) {
            Ok(request) => request,
            Err(error) => return Reply::Failed(error),
        };
        let answered = match request {
            Request::Propose(command) => Ok(self.propose(command)),
            Request::Owner => Ok(self.owner()),
            Request::Pages { entry, pages } => {
                assert!(pages.len() <= PAGES_MAX, "a request is checked when it is decoded");
                Ok(Reply::Pages(self.pages.read(entry, &pages)))
            }
            Request::Log { at, length } => self.read_log(at, length).map(Reply::Log),
            Request::Spaces { entry } => self.pages.spaces(entry).map(Reply::Spaces),
            Request::Status => Ok(Reply::Status(self.status())),
            Request::PagesAt { at, pages } => Ok(Reply::Pages(self.pages.read_at(at, &pages))),
            Request::Follow(request) => self.follow(&request).map(Reply::Changes),
            Request::Newest => Ok(self.newest()),
            Request::Readers => Ok(Reply::Readers(self.readers.seen())),
            Request::TakeAsked => Ok(Reply::Asked(self.asked.take())),
            Request::Announce(server) => self.announce(server),
            Request::Members => Ok(self.members()),
            Request::Switch { to } => self.switch(to),
            Request::Claim { after, silent } => self.claim(after, silent),
            Request::Demand(demand) => self.demand(demand),
            Request::Usage => Ok(self.usage()),
            Request::Snapshots => Ok(self.snapshots()),
            Request::SnapshotSpaces(number) => self.pages.snapshot_spaces(number).map(Reply::Spaces),
            Request::SnapshotPages { number, pages } => Ok(Reply::Pages(self.pages.read_snapshot(number, &pages))),
        };
        answered.unwrap_or_else(Reply::Failed)
    }

    fn propose(&self, command: Vec<u8>) -> Reply {
        // What is no command would end every node that carries it out.
        if let Err(error) = Command::decode(&command).and_then(|command| self.check_command(&command)) {
            return Reply::Failed(error);
        }
        match self.replica.propose(command, ANSWER_TIMEOUT) {
            Answer::Outcome(outcome, entry) => self.reply_to(outcome, entry),
            other => unanswered(other),
        }
    }

    fn check_command(&self, command: &Command) -> Result<()> {
        command.check()?;
        match command {
            Command::Replace { node, .. } if !self.options.nodes.contains_key(node) => Err(Error::Invalid(format!(
                "there is no storage node {node} in this cluster"
            ))),
            _ => Ok(()),
        }
    }

    fn reply_to(&self, outcome: Outcome, entry: u64) -> Reply {
        match outcome {
            Outcome::Taken { epoch } => {
                let view = self.replica.view();
                match view.epoch == epoch {
                    true => Reply::Taken {
                        entry,
                        epoch,
                        control: view.control.map(|control| control.to_vec()),
                        log: view.log,
                    },
                    // Taken again meanwhile.
                    false => Reply::TakenBefore { epoch: view.epoch },
                }
            }
            Outcome::TakenBefore { epoch } => Reply::TakenBefore { epoch },
            Outcome::Revoked { epoch } => Reply::Revoked { epoch },
            Outcome::Refused(why) => Reply::Failed(Error::Invalid(why)),
            Outcome::Done
            | Outcome::Appended { .. }
            | Outcome::SpaceMade(_)
            | Outcome::SpaceDropped(_)
            | Outcome::SnapshotMade(_)
            | Outcome::SnapshotDropped(_)
            | Outcome::Replaced(_)
            | Outcome::Registered => Reply::Done { entry },
        }
    }

    fn owner(&self) -> Reply {
        match self.replica.confirm(Confirmed::State, ANSWER_TIMEOUT) {
            Answer::Current => {
                let view = self.replica.view();
                Reply::Owner(OwnerRecord {
                    epoch: view.epoch,
                    record: view.record.to_vec(),
                    control: view.control.map(|control| control.to_vec()),
                })
            }
            other => unanswered(other),
        }
    }

    fn follow(&self, request: &FollowRequest) -> Result<Changes> {
        self.readers.note(request)?;
        self.asked.note(&request.asked);
        self.pages.changes(request.since, request.wait)
    }

    /// What the servers say is for the node that leads, as far as it knows.
    fn led(&self) -> std::result::Result<Led, Box<Reply>> {
        let view = self.replica.view();
        match view.leader == self.options.number {
            true => Ok(Led {
                term: view.term,
                epoch: view.epoch,
                has_database: view.control.is_some(),
                database: view.control.map_or(0, |slot| database_of(&slot)),
            }),
            false => Err(Box::new(Reply::NotLeader { leader: view.leader })),
        }
    }

    /// A server is heard at once. A writer's lease begins with the answer: a majority confirms, behind the moment at which
    /// it was heard, that no later node leads. Readers' words decide nothing.
    fn announce(&self, server: Server) -> Result<Reply> {
        let is_writer = server.role == ServerRole::Writer;
        let mut led = match self.led() {
            Ok(led) => led,
            Err(other) => return Ok(*other),
        };
        self.members.note(led, server)?;
        if is_writer {
            led = match self.confirmed(Confirmed::Lead) {
                Ok(confirmed) if confirmed.term == led.term => confirmed,
                Ok(_) => return Ok(Reply::NotLeader { leader: 0 }),
                Err(other) => return Ok(*other),
            };
        }
        Ok(Reply::Members(self.members.seen(led)))
    }

    fn confirmed(&self, what: Confirmed) -> std::result::Result<Led, Box<Reply>> {
        match self.replica.confirm(what, ANSWER_TIMEOUT) {
            Answer::Current => self.led(),
            other => Err(Box::new(unanswered(other))),
        }
    }

    fn members(&self) -> Reply {
        self.confirmed(Confirmed::Lead)
            .map_or_else(|other| *other, |led| Reply::Members(self.members.seen(led)))
    }

    fn demand(&self, demand: Demand) -> Result<Reply> {
        match self.led() {
            Ok(led) => {
                // One proxy too many has its answer all the same.
                self.members.demand(led, demand).ok();
                Ok(self.members())
            }
            Err(other) => Ok(*other),
        }
    }

    fn usage(&self) -> Reply {
        match self.replica.confirm(Confirmed::State, ANSWER_TIMEOUT) {
            Answer::Current => Reply::Usage(self.replica.view().usage),
            other => unanswered(other),
        }
    }

    fn snapshots(&self) -> Reply {
        match self.replica.confirm(Confirmed::State, ANSWER_TIMEOUT) {
            Answer::Current => Reply::Snapshots((*self.replica.view().snapshots).clone()),
            other => unanswered(other),
        }
    }

    fn claim(&self, after: u64, silent: Nanos) -> Result<Reply> {
        match self.confirmed(Confirmed::State) {
            Ok(led) => {
                self.members.claim(led, after, silent, self.replica.late_at())?;
                Ok(Reply::Members(self.members.seen(led)))
            }
            Err(other) => Ok(*other),
        }
    }

    fn switch(&self, to: u128) -> Result<Reply> {
        match self.led() {
            Ok(led) => {
                self.members.switch(led, to)?;
                Ok(Reply::Members(self.members.seen(led)))
            }
            Err(other) => Ok(*other),
        }
    }

    /// All that was acknowledged before is in front of what this answers: a majority says so.
    fn newest(&self) -> Reply {
        match self.replica.confirm(Confirmed::State, ANSWER_TIMEOUT) {
            Answer::Current => {
                let view = self.replica.view();
                Reply::Newest(Newest {
                    database: view.control.map_or(0, |slot| database_of(&slot)),
                    end: view.log.end,
                })
            }
            other => unanswered(other),
        }
    }

    /// Bytes of the log, out of the entry that brought them.
    fn read_log(&self, at: Lsn, length: u32) -> Result<Vec<u8>> {
        let gone = || Error::Past(format!("the storage nodes' log at {at} is not kept any more"));
        let (index, end) = {
            let positions = self.positions.lock();
            if at >= positions.end() {
                return Err(Error::Timeout(format!(
                    "this storage node has the log up to {}",
                    positions.end()
                )));
            }
            (positions.entry_of(at).ok_or_else(gone)?, positions.end())
        };
        let entry = self
            .replica
            .log
            .lock()
            .entries(index, index + 1, 0)?
            .pop()
            .ok_or_else(gone)?;
        let Command::Append { at: start, redo, .. } = Command::decode(&entry.data)? else {
            return Err(gone());
        };
        let skipped = at.since(start) as usize;
        let most = (length as usize).min(LOG_MAX).min(end.since(at) as usize);
        let rest = redo.get(skipped..).unwrap_or_default();
        Ok(rest[..rest.len().min(most)].to_vec())
    }

    fn status(&self) -> Status {
        let view = self.replica.view();
        let (ingested, pending, saved) = self.pages.progress();
        let (first, last, log_bytes) = {
            let log = self.replica.log.lock();
            (log.first_index(), log.last_index(), log.bytes())
        };
        Status {
            node: self.identity.number,
            identity: self.identity.identity,
            leader: view.leader,
            term: view.term,
            first,
            last,
            committed: view.committed,
            saved,
            epoch: view.epoch,
            log_end: view.log.end.raw(),
            everywhere: view.everywhere.unwrap_or(0),
            ingested: ingested.raw(),
            log_bytes,
            page_bytes: self.pages.bytes_on_disk(),
            snapshot_bytes: self.pages.bytes_of_snapshots(),
            snapshots: self.pages.snapshots(),
            pending_bytes: pending as u64,
            lacking_pages: self.pages.lacking(),
            free_bytes: self.free_bytes().unwrap_or(0),
            is_full: self.full.load(Ordering::Acquire),
        }
    }
}

fn busy() -> Error {
    Error::Busy(format!("this storage node has {CONNECTIONS_MAX} connections already"))
}

/// Compares in a time that says nothing of where the two differ.
fn is_same(given: &str, wanted: &str) -> bool {
    let differs = given.bytes().zip(wanted.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == wanted.len() && differs == 0
}

fn unanswered(answer: Answer) -> Reply {
    match answer {
        Answer::NotLeader { leader } => Reply::NotLeader { leader },
        _ => Reply::Failed(Error::Timeout(
            "the storage node could not tell in time what became of it".into(),
        )),
    }
}
