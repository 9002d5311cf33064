//! Mirrored grants, by real processes: whichever side is lost, and whichever process is killed, what was flushed and
//! acknowledged is there.
//!
//! What the processes of holders do is [`another_process`]. `CENOTE_SEED` repeats the choices, not the moments.

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::{Identity, Region, RegionOptions, coherence};
use cenote_pool::holder::{GrantRequest, GrantedMemory, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::node::MemoryNode;
use cenote_pool::store::file::FileStore;
use cenote_pool::store::{Change, GrantTableStore, Lead, Leadership, Stored};
use cenote_pool::{GrantView, NodeId, Phase, PoolStatus};
use cenote_space::EXTENT;
use common::{
    Process, Random, TIMEOUT, credentials, hold, manager_options, network, node_options, operator, say, seed, task,
    until_found,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LEASE: Nanos = Nanos::from_millis(2500);
const EXTENTS: u64 = 2;
/// Two lines far from each other: the first is flushed before the second is written.
const FIRST: u64 = 8192;
const SECOND: u64 = 1 << 20;

fn requested() -> GrantRequest {
    GrantRequest {
        mirror: true,
        ..common::requested("db", EXTENTS)
    }
}

/// The grant table in a file, in a store that can be told to know of another leader, as one does that a suspended
/// manager has not heard of.
struct Doubted {
    file: Arc<dyn Leadership>,
    doubt: Arc<Doubt>,
}

#[derive(Default)]
struct Doubt {
    other_leads: AtomicBool,
    /// How often that was said.
    refused: AtomicU64,
}

struct DoubtedStore(FileStore, Arc<Doubt>);

impl GrantTableStore for DoubtedStore {
    fn lead(&self, name: &str) -> Result<Lead> {
        Ok(match self.0.lead(name)? {
            Lead::Here(file) => Lead::Here(Arc::new(Doubted {
                file,
                doubt: Arc::clone(&self.1),
            })),
            elsewhere => elsewhere,
        })
    }
}

impl Leadership for Doubted {
    fn leads(&self) -> bool {
        self.file.leads()
    }

    fn confirm(&self) -> Result<()> {
        if self.doubt.other_leads.load(Ordering::SeqCst) {
            self.doubt.refused.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Lost("another leads".into()));
        }
        self.file.confirm()
    }

    fn read(&self) -> Result<Option<Stored>> {
        self.file.read()
    }

    fn write(&self, change: &Change) -> Result<()> {
        self.file.write(change)
    }

    fn resign(&self) {
        self.file.resign();
    }
}

struct Pool {
    doubt: Arc<Doubt>,
    directory: tempfile::TempDir,
    manager: Option<Manager>,
    address: String,
    nodes: Vec<Option<MemoryNode>>,
}

impl Pool {
    /// A manager, and so many memory nodes, each of a pod of its own.
    fn new(nodes: usize) -> Self {
        let mut pool = Self {
            doubt: Arc::default(),
            directory: tempfile::tempdir_in("/dev/shm").expect("a directory"),
            manager: None,
            address: "127.0.0.1:0".into(),
            nodes: Vec::new(),
        };
        pool.start_manager();
        (0..nodes).for_each(|_| pool.add_node());
        pool
    }

    fn start_manager(&mut self) {
        let options = manager_options(&self.directory.path().join("manager"), &self.address, LEASE);
        let store = DoubtedStore(FileStore::new(&options.directory), Arc::clone(&self.doubt));
        let manager = Manager::start_on(Arc::new(store), options, &Tcp).expect("a manager");
        self.address = manager.address().into();
        self.manager = Some(manager);
    }

    fn add_node(&mut self) {
        let n = self.nodes.len();
        self.nodes.push(None);
        self.start_node(n);
        assert!(
            self.nodes[n].as_ref().expect("started").wait_joined(TIMEOUT),
            "it joins"
        );
    }

    fn start_node(&mut self, n: usize) {
        let options = node_options(&self.node_directory(n), &self.address, &format!("pod-{n}"), 2 * EXTENTS);
        self.nodes[n] = Some(MemoryNode::start(options, network(), Box::new(Machine)).expect("a node"));
    }

    fn node_directory(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("node-{n}"))
    }

    fn ack_path(&self) -> PathBuf {
        self.directory.path().join("acknowledged")
    }

    /// The last number that a holder said to be safe.
    fn acknowledged(&self) -> u64 {
        let bytes = std::fs::read(self.ack_path()).unwrap_or_default();
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn operator(&self) -> Operator {
        operator(&self.address)
    }

    fn status(&self) -> PoolStatus {
        self.operator().status().expect("a status")
    }

    /// The label's grant.
    fn grant(&self) -> Option<GrantView> {
        self.status().grants.into_iter().find(|grant| grant.label == "db")
    }

    fn mirror(&self) -> Option<GrantView> {
        let status = self.status();
        let of = status.grants.iter().find(|grant| grant.label == "db")?.id;
        let is_it = |grant: &GrantView| grant.mirror_of == Some(of) && grant.phase != Phase::Freeing;
        status.grants.into_iter().find(is_it)
    }

    fn until<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        until_found(what, || found(self), || format!("{:?}", self.status().grants))
    }

    fn until_whole(&self) -> GrantView {
        self.until("a whole mirror", |pool| {
            pool.mirror().filter(|mirror| mirror.phase == Phase::Whole)
        })
    }

    /// Which of the nodes a grant lies on.
    fn place(&self, grant: &GrantView) -> usize {
        grant
            .pod
            .rsplit('-')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a pod's number")
    }

    /// Until the manager hears all nodes that run.
    fn until_joined(&self) {
        self.until("all nodes", |pool| {
            let nodes = pool.status().nodes;
            let is_there = |n: &usize| {
                nodes
                    .iter()
                    .any(|node| node.connected && node.pod == format!("pod-{n}"))
            };
            let mut running = (0..pool.nodes.len()).filter(|n| pool.nodes[*n].is_some());
            running.all(|n| is_there(&n)).then_some(())
        });
    }

    /// The node's process ends, its memory is gone, and an operator says so.
    fn lose(&mut self, n: usize) -> NodeId {
        let id = self.stop_node(n);
        std::fs::remove_dir_all(self.node_directory(n)).expect("removed");
        self.operator().forget(id).expect("forgotten");
        id
    }

    fn stop_node(&mut self, n: usize) -> NodeId {
        let pod = format!("pod-{n}");
        let id = self
            .status()
            .nodes
            .into_iter()
            .find(|node| node.pod == pod)
            .expect("a node")
            .id;
        self.nodes[n] = None;
        self.until("the manager misses it", |pool| {
            let nodes = pool.status().nodes;
            nodes.iter().any(|node| node.id == id && !node.connected).then_some(())
        });
        id
    }

    fn holder(&self, how: How) -> Process {
        Process::start_silent(&Task {
            manager: self.address.clone(),
            acknowledged: self.ack_path(),
            how,
        })
    }

    /// Writes until so much more is acknowledged.
    fn until_acknowledged(&self, more: u64) {
        let from = self.acknowledged();
        self.until("acknowledged writes", |pool| {
            (pool.acknowledged() > from + more).then_some(())
        });
    }

    fn audited(&self) {
        self.until("a clean audit", |pool| {
            let report = pool.operator().audit().expect("an audit");
            report.problems.is_empty().then_some(())
        });
    }
}

/// What a holder found.
struct Found {
    fresh: bool,
    first: u64,
    second: u64,
    epoch: u64,
}

impl Found {
    fn parse(said: &str) -> Self {
        let words: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [fresh, first, second, epoch] = words[..] else {
            panic!("{said}");
        };
        Self {
            fresh: fresh == 1,
            first,
            second,
            epoch,
        }
    }
}

fn found(holder: &Process) -> Found {
    Found::parse(&holder.says())
}

fn region_of(memory: &GrantedMemory, anew: bool) -> Result<Arc<Region>> {
    let (path, options) = (memory.path(), RegionOptions::default());
    let region = match anew {
        true => Region::create(&path, memory.bytes(), Identity::default(), options)?,
        false => Region::open(&path, options)?,
    };
    Ok(Arc::new(region))
}

/// What a holder is told.
#[derive(Serialize, Deserialize)]
struct Task {
    manager: String,
    /// The file for what is safe.
    acknowledged: PathBuf,
    how: How,
}

#[derive(PartialEq, Serialize, Deserialize)]
enum How {
    Run,
    /// It never begins to mirror.
    Alone,
    /// It makes the memory anew, and then writes nothing.
    Anew,
    /// It begins to mirror twice, and makes it anew after that.
    Twice,
}

/// What a holder does: opens, says what it finds, and writes numbers until it is ended.
#[test]
fn another_process() {
    let Some(Task {
        manager,
        acknowledged,
        how,
    }) = task()
    else {
        return;
    };
    let revoked = Box::new(|_: &Error| std::process::exit(3));
    let memory = match GrantedMemory::open(&network(), &credentials(&manager), requested(), revoked) {
        Ok(memory) => memory,
        Err(error) => return say(&format!("refused: {error}")),
    };
    let fresh = memory.is_fresh();
    let keeper = memory.mirror().expect("it was wished for");
    let anew = fresh || how == How::Anew;
    if anew {
        keeper.before_making().expect("the manager is there");
    }
    let region = region_of(&memory, anew).expect("the region");
    if how == How::Run || how == How::Twice {
        keeper.begin(&region).expect("mirrored, or not");
    }
    if how == How::Twice {
        let refused = (keeper.begin(&region).is_err(), keeper.before_making().is_err());
        return say(&format!("{refused:?}"));
    }
    region.reserve_to(2 << 20).expect("room");
    let word = |at: u64| region.span(at, 8).u64(0);
    let mut n = word(FIRST);
    say(&format!("{} {n} {} {}", u8::from(fresh), word(SECOND), memory.epoch()));
    if how == How::Anew {
        return hold();
    }
    let acknowledged = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(acknowledged);
    let acknowledged = acknowledged.expect("a file");
    loop {
        n += 1;
        for at in [FIRST, SECOND] {
            region.span(at, 8).set_u64(0, n);
            coherence::flush(&region, at, 8);
        }
        acknowledged.write_all_at(&n.to_le_bytes(), 0).expect("written");
    }
}

/// The next holder, when the one before has ended: nothing of what was acknowledged is missing, and nothing is ahead of
/// what was flushed before.
fn next_of(pool: &Pool) -> (Process, Found) {
    let safe = pool.acknowledged();
    // A node that was started again may not have been heard yet, or be heard no more.
    let is_on_its_way = |said: &str| ["lost", "is not", "taken back"].iter().any(|what| said.contains(what));
    let (holder, found) = pool.until("memory", |pool| {
        let holder = pool.holder(How::Run);
        let said = holder.says();
        let refused = said.starts_with("refused") && is_on_its_way(&said);
        (!refused).then(|| (holder, Found::parse(&said)))
    });
    assert!(!found.fresh, "it is the memory of before");
    assert!(
        found.first >= safe && found.second >= safe && found.first >= found.second,
        "{safe} was acknowledged, {} and {} were found",
        found.first,
        found.second
    );
    (holder, found)
}

/// A pool whose holder has a whole mirror, and has written.
fn running(nodes: usize) -> (Pool, Process) {
    let pool = Pool::new(nodes);
    let holder = pool.holder(How::Run);
    let found = found(&holder);
    assert!(found.fresh && found.epoch == 1);
    pool.until_whole();
    pool.until_acknowledged(100);
    (pool, holder)
}

/// The primary's machine is gone for good, with its memory. The next holder has the mirror, with all that was
/// acknowledged; and a mirror again, when there is a node for it.
#[test]
fn a_lost_primary_is_replaced_by_its_mirror() {
    let (mut pool, mut holder) = running(2);
    let (grant, mirror) = (pool.grant().expect("there"), pool.until_whole());
    assert_ne!(grant.node, mirror.node);
    pool.audited();
    holder.kill();
    pool.lose(pool.place(&grant));
    let (mut next, found) = next_of(&pool);
    assert!(found.epoch > grant.epoch);
    let now = pool.grant().expect("there");
    assert_eq!((now.id, now.node), (mirror.id, mirror.node));
    pool.until_acknowledged(100);
    pool.add_node();
    let again = pool.until_whole();
    assert_eq!(pool.place(&again), 2);
    pool.until_acknowledged(100);
    // And once more, from that one.
    next.kill();
    pool.lose(pool.place(&now));
    drop(next_of(&pool));
}

/// The file alone is gone, or its header is damaged, or its end is missing: the node is there, and would give new
/// memory, or none that can be opened.
#[test]
fn a_broken_file_is_replaced_by_the_mirror() {
    for broken in ["removed", "damaged", "cut"] {
        let (pool, mut holder) = running(2);
        let grant = pool.grant().expect("there");
        holder.kill();
        let file = pool
            .node_directory(pool.place(&grant))
            .join(format!("grant-{}", grant.id));
        let open = std::fs::OpenOptions::new().write(true).open(&file).expect("there");
        match broken {
            "removed" => std::fs::remove_file(&file).expect("removed"),
            "damaged" => open.write_all_at(&[0xa5; 4096], 0).expect("written"),
            _ => open.set_len(EXTENT).expect("cut"),
        }
        drop(open);
        let _next = next_of(&pool);
        assert_ne!(pool.grant().expect("there").id, grant.id);
        // What was broken is freed, and mirrors from then on.
        pool.until_whole();
        assert!(!file.exists());
        pool.audited();
    }
}

/// The mirror's node is lost: the holder goes on, and has a mirror elsewhere soon. That one is as good.
#[test]
fn a_lost_mirror_is_replaced() {
    let (mut pool, mut holder) = running(3);
    let mirror = pool.until_whole();
    pool.lose(pool.place(&mirror));
    pool.until_acknowledged(100);
    let another = pool.until_whole();
    assert_ne!((another.id, another.node), (mirror.id, mirror.node));
    pool.until_acknowledged(100);
    // The next one's file is removed under it.
    let file = pool
        .node_directory(pool.place(&another))
        .join(format!("grant-{}", another.id));
    std::fs::remove_file(file).expect("removed");
    pool.until("another mirror", |pool| {
        pool.mirror()
            .filter(|mirror| mirror.id != another.id && mirror.phase == Phase::Whole)
    });
    pool.until_acknowledged(100);
    assert!(!holder.has_ended(), "the holder was not ended");
    holder.kill();
    let grant = pool.grant().expect("there");
    pool.lose(pool.place(&grant));
    drop(next_of(&pool));
    pool.audited();
}

/// A mirror that lacks something never takes the place of what it mirrors: memory that is lost then is new memory.
#[test]
fn what_is_not_whole_is_never_promoted() {
    // It was never filled.
    let mut pool = Pool::new(2);
    let mut holder = pool.holder(How::Alone);
    found(&holder);
    pool.until_acknowledged(100);
    assert_eq!(pool.mirror().expect("there").phase, Phase::Filling);
    holder.kill();
    let grant = pool.grant().expect("there");
    pool.lose(pool.place(&grant));
    pool.add_node();
    let next = pool.holder(How::Run);
    let its = found(&next);
    assert!(its.fresh && its.first == 0, "{}", its.first);
    drop(next);

    // It was whole, and then the memory was made anew without it.
    let (mut pool, mut holder) = running(2);
    holder.kill();
    let mut anew = pool.holder(How::Anew);
    found(&anew);
    assert_eq!(pool.mirror().expect("there").phase, Phase::Filling);
    anew.kill();
    let grant = pool.grant().expect("there");
    pool.lose(pool.place(&grant));
    pool.add_node();
    assert!(found(&pool.holder(How::Run)).fresh);
}

/// A holder that is stopped maps both sides. When the primary is lost the mirror's node ends it before another process
/// has the mirror; it wakes up to nothing.
#[test]
fn a_stopped_holder_is_ended_before_its_mirror_is_granted() {
    let (mut pool, mut holder) = running(2);
    let grant = pool.grant().expect("there");
    holder.signal(Signal::STOP);
    let safe = pool.acknowledged();
    pool.lose(pool.place(&grant));
    let next = pool.holder(How::Run);
    let its = found(&next);
    assert!(holder.has_ended(), "it was ended before");
    assert!(!its.fresh && its.first >= safe, "{} of {safe}", its.first);
}

/// A holder restarts, and its mirror stays whole: between the start and the next fill nothing is lost either.
#[test]
fn a_mirror_stays_whole_over_a_restart() {
    let (mut pool, mut holder) = running(2);
    let mirror = pool.until_whole();
    let mut epoch = 1;
    for _ in 0..3 {
        holder.kill();
        let found;
        (holder, found) = next_of(&pool);
        assert_eq!(found.epoch, epoch + 1);
        epoch = found.epoch;
        let now = pool.mirror().expect("there");
        assert_eq!((now.id, now.phase), (mirror.id, Phase::Whole));
        pool.until_acknowledged(10);
    }
    holder.kill();
    let grant = pool.grant().expect("there");
    pool.lose(pool.place(&grant));
    drop(next_of(&pool));
}

/// Where there is one node, or no room, the request for a mirror says so.
#[test]
fn a_pool_of_one_node_has_no_mirrors() {
    let mut pool = Pool::new(1);
    let said = pool.holder(How::Run).says();
    assert!(
        said.contains("another memory node") && said.contains("of the 0 others"),
        "{said}"
    );
    assert_eq!(pool.status().grants, Vec::new());
    pool.add_node();
    let mut holder = pool.holder(How::Run);
    found(&holder);
    pool.until_whole();
    // A holder that does without later has no mirror any more.
    holder.kill();
    let alone = GrantRequest {
        mirror: false,
        ..requested()
    };
    let memory = GrantedMemory::open(&network(), &credentials(&pool.address), alone, Box::new(|_| {})).expect("there");
    assert!(memory.mirror().is_none() && !memory.is_fresh());
    pool.until("no mirror", |pool| {
        pool.status()
            .grants
            .iter()
            .all(|grant| grant.mirror_of.is_none())
            .then_some(())
    });
    pool.audited();
}

/// What a mirror's grant table said when the grant was opened is spent by the first region. A second one would be made
/// anew while the grant table calls its mirror whole.
#[test]
fn a_grant_is_mirrored_for_one_region() {
    let pool = Pool::new(2);
    assert_eq!(pool.holder(How::Twice).says(), "(true, true)");
}

/// A manager that was suspended, and has not heard that another leads, has an old grant table: what it takes for the
/// mirror is told to no client.
#[test]
fn a_former_manager_tells_no_holder_of_mirrors() {
    let pool = Pool::new(2);
    pool.doubt.other_leads.store(true, Ordering::SeqCst);
    let holder = pool.holder(How::Run);
    assert!(found(&holder).fresh);
    pool.until("refusals", |pool| {
        (pool.doubt.refused.load(Ordering::SeqCst) > 2).then_some(())
    });
    assert!(pool.mirror().is_none_or(|mirror| mirror.phase == Phase::Filling));
    pool.doubt.other_leads.store(false, Ordering::SeqCst);
    pool.until_whole();
}

/// Until the mirror is whole, with another holder if the one that there was has been ended.
fn until_mirrored(pool: &Pool, holder: &mut Process) {
    pool.until("a whole mirror", |pool| {
        if holder.has_ended() {
            pool.until_joined();
            *holder = next_of(pool).0;
        }
        pool.mirror().filter(|mirror| mirror.phase == Phase::Whole)
    });
}

/// Manager, nodes and holder are killed and started again at random moments, and now and then a node is lost with its
/// memory, while the mirror is whole. Nothing that was acknowledged is ever missing.
#[test]
fn no_kill_loses_what_was_acknowledged() {
    let mut random = Random(seed());
    let (mut pool, mut holder) = running(3);
    for _ in 0..12 {
        rt::sleep(Nanos::from_millis(random.below(60)));
        let nodes: Vec<usize> = (0..pool.nodes.len()).filter(|n| pool.nodes[*n].is_some()).collect();
        let n = nodes[random.below(nodes.len() as u64) as usize];
        match random.below(5) {
            0 => {
                pool.manager = None;
                rt::sleep(Nanos::from_millis(random.below(300)));
                pool.start_manager();
            }
            1 => {
                pool.nodes[n] = None;
                rt::sleep(Nanos::from_millis(random.below(300)));
                pool.start_node(n);
            }
            2 => {
                until_mirrored(&pool, &mut holder);
                // Whichever side it has, or none; a holder on it is ended, or goes on.
                pool.lose(n);
                pool.add_node();
            }
            _ => {}
        }
        if random.below(2) == 0 || holder.has_ended() {
            holder.kill();
            pool.until_joined();
            holder = next_of(&pool).0;
        }
    }
    holder.kill();
    pool.until_joined();
    holder = next_of(&pool).0;
    until_mirrored(&pool, &mut holder);
    pool.audited();
}

/// The files that nodes keep are what the grant table says: both sides of a grant that is freed are removed.
#[test]
fn both_sides_are_freed() {
    let (pool, mut holder) = running(2);
    let (grant, mirror) = (pool.grant().expect("there"), pool.until_whole());
    let file = |of: &GrantView| pool.node_directory(pool.place(of)).join(format!("grant-{}", of.id));
    let files = [file(&grant), file(&mirror)];
    assert!(files.iter().all(|file| Path::exists(file)));
    let by_itself = pool.operator().free(mirror.id);
    assert!(matches!(by_itself, Err(Error::Invalid(_))), "{by_itself:?}");
    pool.operator().free(grant.id).expect("freed");
    pool.until("all is freed", |pool| pool.status().grants.is_empty().then_some(()));
    assert!(holder.ended().code() != Some(0), "it was ended");
    assert!(!files.iter().any(|file| Path::exists(file)));
    pool.audited();
}
