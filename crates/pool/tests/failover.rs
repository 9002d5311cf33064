//! Several managers on one etcd, of which one leads: it is killed, stopped, cut off from etcd, and another takes over;
//! no process that uses memory notices.
//!
//! What the processes of managers do is [`another_process`]. Where etcd is not installed each test says that it was
//! skipped.

mod common;
mod etcd_server;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::holder::{GrantedMemory, Operator};
use cenote_pool::manager::Manager;
use cenote_pool::node::MemoryNode;
use cenote_pool::store::etcd::{Answer, Endpoint, EtcdOptions, EtcdStore, Transport};
use cenote_pool::{Phase, PoolStatus};
use cenote_space::EXTENT;
use cenote_space::Space;
use common::{
    Process, TIMEOUT, client, credentials, hold, manager_options, network, node_options, operator, requested, say,
    started_node, task, until,
};
use etcd_server::{Etcd, TestTransport};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Longer than a takeover takes, on a busy machine too.
const LEASE: Nanos = Nanos::from_secs(30);
/// Seconds that a manager which is silent goes on to lead.
const TTL: u64 = 3;

/// What another process is told to be: a manager.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    etcd: String,
    listen: String,
}

fn store(etcd: &str, ttl: u64) -> Arc<EtcdStore> {
    let options = EtcdOptions {
        endpoints: vec![etcd.into()],
        ttl,
        ..EtcdOptions::default()
    };
    Arc::new(EtcdStore::over(&options, Arc::new(TestTransport)).expect("good options"))
}

fn manager(etcd: &str, listen: &str) -> Result<Manager> {
    manager_for(etcd, listen, TTL)
}

fn manager_for(etcd: &str, listen: &str, ttl: u64) -> Result<Manager> {
    let options = manager_options(Path::new(""), listen, LEASE);
    Manager::start_on(store(etcd, ttl), options, &Tcp)
}

#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let manager = manager(&task.etcd, &task.listen).expect("a manager");
    say(&format!("listens {}", manager.address()));
    hold();
}

/// A manager's process.
struct Other {
    process: Process,
    address: String,
}

impl Other {
    fn start(etcd: &str, listen: &str) -> Self {
        let process = Process::start(&Task {
            etcd: etcd.into(),
            listen: listen.into(),
        });
        let said = process.says();
        let address = said.strip_prefix("listens ").expect("it listens").to_owned();
        Self { process, address }
    }
}

fn node(directory: &tempfile::TempDir, managers: &str) -> MemoryNode {
    started_node(node_options(&directory.path().join("node"), managers, "a", 64)).expect("a node")
}

fn open(managers: &str, label: &str) -> Result<GrantedMemory> {
    GrantedMemory::open(
        &network(),
        &credentials(managers),
        requested(label, 1),
        Box::new(|_| {}),
    )
}

fn status(managers: &str) -> Result<PoolStatus> {
    Operator::connect(&Tcp, &credentials(managers))?.status()
}

/// Two managers, a memory node, a holder of a grant, and a client that reads and writes in a space all the time.
struct Pool {
    reader: Option<std::thread::JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    held: GrantedMemory,
    _node: MemoryNode,
    /// The first leads.
    managers: [Other; 2],
    etcd: Etcd,
    _directory: tempfile::TempDir,
}

impl Pool {
    fn start() -> Option<Self> {
        let etcd = Etcd::start()?;
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let first = Other::start(&etcd.url(), "127.0.0.1:0");
        until("the first leads", || status(&first.address).is_ok());
        let managers = [first, Other::start(&etcd.url(), "127.0.0.1:0")];
        let list = format!("{},{}", managers[1].address, managers[0].address);
        let node = node(&directory, &list);
        let held = open(&list, "held").expect("room");
        let client = client(&list, None).expect("connected");
        client.create_space("heap", 8 * EXTENT, None).expect("made");
        let space = client.open_space("heap").expect("opened");
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let reader = std::thread::spawn(move || use_space(&space, &stopped, &counted));
        Some(Self {
            reader: Some(reader),
            stop,
            rounds,
            held,
            _node: node,
            managers,
            etcd,
            _directory: directory,
        })
    }

    fn list(&self) -> String {
        format!("{},{}", self.managers[0].address, self.managers[1].address)
    }

    /// Processes that use memory go on.
    fn progress(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        until("reads and writes go on", || {
            self.rounds.load(Ordering::Relaxed) > before + 100
        });
    }

    fn until_status(&self, what: &str, wanted: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
        until(what, || status(&self.list()).is_ok_and(|status| wanted(&status)));
        status(&self.list()).expect("a status")
    }

    /// No process was fenced, memory is granted, and every byte is free or granted.
    fn sound(&self, label: &str) {
        self.progress();
        let status = self.until_status("the node has joined", |status| {
            status.nodes.iter().all(|node| node.connected)
        });
        let held = status.grants.iter().find(|grant| grant.label == "held").expect("kept");
        assert_eq!((held.phase, held.epoch, held.id), (Phase::Held, 1, self.held.id()));
        let next = open(&self.list(), label).expect("granted");
        assert!(
            status.grants.iter().all(|grant| grant.id < next.id()),
            "its number is new"
        );
        next.release(true).expect("released");
        assert_eq!(
            operator(&self.list()).audit().expect("an audit").problems,
            Vec::<String>::new()
        );
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let used = self.reader.take().map(std::thread::JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(used, Some(Ok(()))),
            "reads and writes were right"
        );
    }
}

/// Allocates, writes, reads and frees until it is told to stop.
fn use_space(space: &Space, stop: &AtomicBool, rounds: &AtomicU64) {
    let session = space.session();
    for round in 1.. {
        let address = session.alloc(1 + round % 3000).expect("room");
        session.store(address, round).expect("there");
        assert_eq!(session.load(address).expect("there"), round);
        session.free(address).expect("freed");
        rounds.store(round, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        rt::sleep(Nanos::from_millis(1));
    }
}

/// What a manager that does not lead answers.
fn refusal(manager: &Other) -> Option<String> {
    match status(&manager.address) {
        Err(Error::Lost(text)) => Some(text),
        _ => None,
    }
}

#[test]
fn when_the_manager_is_killed_another_takes_over() {
    let Some(mut pool) = Pool::start() else { return };
    let id = status(&pool.list()).expect("a status").pool;
    let said = refusal(&pool.managers[1]).expect("it does not lead");
    assert!(
        said.contains(&format!("the one at {} does", pool.managers[0].address)),
        "{said}"
    );
    pool.sound("before");
    for round in 0..2 {
        let [leads, follows] = if round == 0 { [0, 1] } else { [1, 0] };
        pool.managers[leads].process.kill();
        until("the other leads", || status(&pool.managers[follows].address).is_ok());
        pool.sound(&format!("after {round}"));
        assert_eq!(status(&pool.list()).expect("a status").pool, id);
        let address = pool.managers[leads].address.clone();
        pool.managers[leads] = Other::start(&pool.etcd.url(), &address);
        until("it knows the leader", || {
            refusal(&pool.managers[leads]).is_some_and(|text| text.contains(&pool.managers[follows].address))
        });
    }
    pool.sound("at last");
}

/// It wakes up and believes that it leads: no client hears so from it, and what it is asked for does not happen.
#[test]
fn a_manager_that_sleeps_past_its_lease_does_nothing() {
    let Some(pool) = Pool::start() else { return };
    let [slept, other] = &pool.managers;
    let operator = operator(&slept.address);
    assert_eq!(operator.status().expect("it leads").grants.len(), 2);
    slept.process.signal(Signal::STOP);
    until("the other leads", || status(&other.address).is_ok());
    pool.sound("meanwhile");
    slept.process.signal(Signal::CONT);
    let held = pool.held.id();
    assert!(operator.free(held).is_err(), "over a connection of before");
    for n in 0..20 {
        let refused = open(&slept.address, &format!("stale {n}"));
        assert!(refused.is_err(), "it grants memory");
    }
    until("it knows the leader", || {
        refusal(slept).is_some_and(|text| text.contains(&other.address))
    });
    pool.sound("after");
    let status = status(&other.address).expect("a status");
    assert!(
        status.grants.iter().all(|grant| !grant.label.starts_with("stale")),
        "{status:?}"
    );
}

/// A manager whose clock stood still believes that it leads, and knows nothing of the holders by now: it tells no
/// holder that its lease is over.
#[test]
fn a_former_manager_tells_no_holder_that_its_lease_is_over() {
    let Some(etcd) = Etcd::start() else { return };
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let former = manager_for(&etcd.url(), "127.0.0.1:0", 3600).expect("it leads");
    let at_first = node(&directory, former.address());
    let memory = open(former.address(), "db").expect("room");
    let (grant, epoch) = (memory.id(), memory.epoch());
    drop((memory, at_first));
    // "/cenote/pool/leader": as if its lease had lapsed.
    etcd.ask("/v3/kv/deleterange", r#"{"key":"L2Nlbm90ZS9wb29sL2xlYWRlcg=="}"#)
        .expect("deleted");
    let leads = manager(&etcd.url(), "127.0.0.1:0").expect("it leads");
    assert!(leads.pool().is_ok() && former.pool().is_ok(), "both believe so");
    let _node = node(&directory, leads.address());
    let memory = open(leads.address(), "db").expect("the same");
    assert!(memory.id() == grant && memory.epoch() > epoch);
    let connection = Tcp.connect(former.address(), TIMEOUT).expect("connected");
    let ask = |text: String| {
        connection.send(text.as_bytes()).expect("sent");
        String::from_utf8(connection.receive(TIMEOUT).expect("an answer")).expect("text")
    };
    let welcome = ask(r#"{"version":11,"role":{"Tenant":"default"},"secret":""}"#.into());
    assert!(welcome.contains("lease"), "{welcome}");
    let said = ask(format!(r#"{{"Renew":{{"grant":{grant},"epoch":{}}}}}"#, memory.epoch()));
    assert!(said.contains("Lost") && !said.contains("Revoked"), "{said}");
    until("it knows by now", || former.pool().is_err());
}

/// While etcd is away nothing is granted, and no holder is touched. Afterwards all is as it was.
#[test]
fn etcd_comes_and_goes() {
    let Some(mut pool) = Pool::start() else { return };
    let etcd = pool.etcd.url();
    pool.etcd.kill();
    let refused = open(&pool.managers[0].address, "late");
    assert!(matches!(&refused, Err(Error::Lost(_))), "{:?}", refused.err());
    until("no manager leads", || {
        pool.managers.iter().all(|manager| refusal(manager).is_some())
    });
    pool.progress();
    // A manager that is started meanwhile waits.
    let third = Other::start(&etcd, "127.0.0.1:0");
    assert!(refusal(&third).is_some());
    pool.progress();
    pool.etcd.restart();
    let all = format!("{},{}", pool.list(), third.address);
    until("one leads", || status(&all).is_ok());
    drop(third);
    pool.sound("again");
    let status = pool.until_status("one leads", |_| true);
    assert!(status.grants.iter().all(|grant| grant.label != "late"), "{status:?}");
}

/// What is no grant table is not taken for an empty one: a manager that finds it does not lead.
#[test]
fn a_damaged_book_is_refused() {
    let Some(etcd) = Etcd::start() else { return };
    drop(manager(&etcd.url(), "127.0.0.1:0").expect("it leads"));
    // "/cenote/pool/record/meta" and "garbage".
    let put = |value: &str| {
        let question = format!(r#"{{"key":"L2Nlbm90ZS9wb29sL3JlY29yZC9tZXRh","value":"{value}"}}"#);
        etcd.ask("/v3/kv/put", &question).expect("put");
    };
    for value in ["", "Z2FyYmFnZQ=="] {
        put(value);
        let refused = manager(&etcd.url(), "127.0.0.1:0").err();
        assert!(
            matches!(&refused, Some(Error::Mismatch(_) | Error::Corrupt(_))),
            "{refused:?}"
        );
    }
    // All between "/cenote/pool/" and "/cenote/pool0".
    let all = r#"{"key":"L2Nlbm90ZS9wb29sLw==","range_end":"L2Nlbm90ZS9wb29sMA=="}"#;
    etcd.ask("/v3/kv/deleterange", all).expect("deleted");
    let first = manager(&etcd.url(), "127.0.0.1:0").expect("it leads");
    let second = manager(&etcd.url(), "127.0.0.1:0").expect("it waits");
    put("Z2FyYmFnZQ==");
    drop(first);
    until("it says why it does not lead", || {
        second
            .pool()
            .is_err_and(|error| error.to_string().contains("grant table"))
    });
}

#[test]
fn of_managers_that_race_one_leads() {
    let Some(etcd) = Etcd::start() else { return };
    let url = etcd.url();
    let racers: Vec<_> = (0..4)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || manager(&url, "127.0.0.1:0").expect("it listens"))
        })
        .collect();
    let mut managers: Vec<_> = racers
        .into_iter()
        .map(|racer| racer.join().expect("no panic"))
        .collect();
    let mut pool = None;
    while !managers.is_empty() {
        let mut at = None;
        until("one leads", || {
            let leading: Vec<_> = (0..managers.len()).filter(|n| managers[*n].pool().is_ok()).collect();
            assert!(leading.len() < 2, "two lead");
            at = leading.first().copied();
            at.is_some()
        });
        let leads = managers.remove(at.expect("it was found"));
        let id = leads.pool().expect("it leads");
        assert_eq!(*pool.get_or_insert(id), id, "one pool");
    }
}
