//! A pool whose manager, memory nodes and clients are processes that share a space, and are killed, stopped and lied
//! to.
//!
//! What the processes do is [`another_process`].

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Connection, Network};
use cenote_pool::client::PoolClient;
use cenote_pool::holder::{GrantedMemory, Operator};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::node::MemoryNode;
use cenote_pool::{Phase, SpacePhase};
use cenote_space::EXTENT;
use cenote_space::{GlobalAddress, Lifetime, Space};
use common::{
    Process, Random, TIMEOUT, client, credentials, hold, manager_options, network, node_options, objects_beside,
    operator, requested, say, seed, tables, take_out, task, until, until_found, work,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Long enough that a busy machine is not taken for a silent process.
const LEASE: Nanos = Nanos::from_secs(4);

/// What another process is told to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Task {
    Manager {
        directory: PathBuf,
        listen: String,
    },
    Node {
        directory: PathBuf,
        manager: String,
        pod: String,
        extents: u64,
    },
    Client {
        manager: String,
        space: String,
        table: GlobalAddress,
        seed: u64,
    },
    /// Opens a space, and holds on.
    Idler {
        manager: String,
        space: String,
    },
}

/// What another process does until it is killed.
#[test]
fn another_process() {
    match task() {
        None => {}
        Some(Task::Manager { directory, listen }) => {
            let manager = Manager::start(manager_options(&directory, &listen, LEASE), &Tcp).expect("a manager");
            say(&format!("ready {}", manager.address()));
            hold();
        }
        Some(Task::Node {
            directory,
            manager,
            pod,
            extents,
        }) => {
            let options = node_options(&directory, &manager, &pod, extents);
            let node = MemoryNode::start(options, network(), Box::new(Machine)).expect("a node");
            say(&format!("ready {}", node.address()));
            assert!(node.wait_joined(TIMEOUT), "it joins");
            say("joined");
            hold();
        }
        Some(Task::Client {
            manager,
            space,
            table,
            seed,
        }) => {
            let space = open(&manager, &space, None).expect("a space");
            work(&space, table, seed);
        }
        Some(Task::Idler { manager, space }) => {
            let _space = open(&manager, &space, None).expect("a space");
            say("ready");
            hold();
        }
    }
}

fn open(manager: &str, space: &str, pod: Option<&str>) -> Result<Space> {
    client(manager, pod)?.open_space(space)
}

struct Pool {
    directory: tempfile::TempDir,
    address: String,
    manager: Process,
    nodes: Vec<Process>,
    pods: Vec<String>,
    extents: u64,
}

impl Pool {
    /// A manager, and a memory node of so many extents for each of `pods`.
    fn new(pods: &[&str], extents: u64) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let manager = start_manager(directory.path(), "127.0.0.1:0");
        let said = manager.says();
        let address = said.strip_prefix("ready ").expect("its address").to_owned();
        let mut pool = Self {
            directory,
            address,
            manager,
            nodes: Vec::new(),
            pods: pods.iter().map(ToString::to_string).collect(),
            extents,
        };
        for n in 0..pods.len() {
            let node = pool.start_node(n);
            assert!(node.says().starts_with("ready"));
            assert_eq!(node.says(), "joined");
            pool.nodes.push(node);
        }
        pool
    }

    fn start_node(&self, n: usize) -> Process {
        Process::start(&Task::Node {
            directory: self.node_directory(n),
            manager: self.address.clone(),
            pod: self.pods[n].clone(),
            extents: self.extents,
        })
    }

    fn node_directory(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("node-{n}"))
    }

    fn restart_node(&mut self, n: usize) {
        self.nodes[n].kill();
        self.nodes[n] = self.start_node(n);
    }

    fn restart_manager(&mut self) {
        self.manager.kill();
        self.manager = start_manager(self.directory.path(), &self.address);
        assert!(self.manager.says().starts_with("ready"));
    }

    fn client(&self) -> PoolClient {
        client(&self.address, None).expect("connected")
    }

    fn worker(&self, space: &str, table: GlobalAddress, seed: u64) -> Process {
        Process::start(&Task::Client {
            manager: self.address.clone(),
            space: space.into(),
            table,
            seed,
        })
    }

    fn operator(&self) -> Operator {
        operator(&self.address)
    }

    /// Waits until all nodes are connected and the audit finds nothing.
    fn audited(&self) {
        let is_clean = || {
            let status = self.operator().status().expect("a status");
            let report = self.operator().audit().expect("an audit");
            (status.nodes.iter().all(|node| node.connected) && report.problems.is_empty()).then_some(())
        };
        until_found("a clean audit", is_clean, || format!("{:?}", self.operator().audit()));
    }

    fn until(&self, wanted: impl Fn(&cenote_pool::PoolStatus) -> bool) {
        let is_so = || wanted(&self.operator().status().expect("a status")).then_some(());
        until_found("the status", is_so, || format!("{:?}", self.operator().status()));
    }
}

fn start_manager(directory: &Path, listen: &str) -> Process {
    Process::start(&Task::Manager {
        directory: directory.join("manager"),
        listen: listen.into(),
    })
}

/// Checks everything, takes all objects out of the tables, and waits until no more than `most` are left beyond these.
fn settle(space: &Space, tables: &[GlobalAddress], most: u64) {
    take_out(space, tables);
    let left = || objects_beside(space, tables);
    let is_settled = || (left() <= most).then_some(());
    until_found("the end of what sessions had", is_settled, || {
        format!("{} objects are left, {most} may be", left())
    });
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// A manager that was stopped has heard no holder: that is no holder's fault. Its next turn took all leases for lapsed,
/// and had their holders ended.
#[test]
fn a_manager_that_was_stopped_fences_no_holder() {
    let pool = Pool::new(&["a"], 4);
    let memory = GrantedMemory::open(
        &network(),
        &credentials(&pool.address),
        requested("db", 1),
        Box::new(|_| {}),
    );
    let memory = memory.expect("room");
    pool.manager.signal(rustix::process::Signal::STOP);
    rt::sleep(Nanos(LEASE.raw() * 3 / 2));
    pool.manager.signal(rustix::process::Signal::CONT);
    // As long as a lease that was not given back would take to be noticed, and a renewal to come.
    rt::sleep(Nanos(LEASE.raw() / 2));
    let status = pool.operator().status().expect("a status");
    assert_eq!((status.grants[0].phase, status.grants[0].epoch), (Phase::Held, 1));
    memory.release(true).expect("it is the holder's");
}

#[test]
fn two_processes_share_a_space_on_two_memory_nodes() {
    let pool = Pool::new(&["a", "b"], 40);
    let client = pool.client();
    client.create_space("heap", 64 * EXTENT, None).expect("made");
    let space = client.open_space("heap").expect("opened");
    assert_eq!(space.parts().count(), 2);
    let tables = tables(&space, 2);
    space.set_root(tables[0]).expect("set");
    let mut workers: Vec<_> = tables
        .iter()
        .zip(1..)
        .map(|(table, seed)| pool.worker("heap", *table, seed))
        .collect();
    workers.iter_mut().for_each(|worker| worker.progress(20));
    let other = pool.client().open_space("heap").expect("opened again");
    assert_eq!(other.root().expect("a root"), tables[0]);
    drop(other);
    workers.iter_mut().for_each(Process::kill);
    settle(&space, &tables, 2);
    pool.audited();
    let status = pool.operator().status().expect("a status");
    assert_eq!(status.spaces.len(), 1);
    assert_eq!(
        (status.spaces[0].phase, status.spaces[0].parts.len()),
        (SpacePhase::Ready, 2)
    );
}

/// Clients, memory nodes and the manager are killed in turn, at any moment; survivors go on. In the end every extent is
/// accounted for, all that the survivors noted is there, and nothing of any session is left.
#[test]
fn after_any_kill_the_others_go_on() {
    const ROUNDS: u64 = 14;
    let seed = seed();
    let mut random = Random(seed);
    let mut pool = Pool::new(&["a", "b"], 80);
    pool.client().create_space("heap", 128 * EXTENT, None).expect("made");
    let space = pool.client().open_space("heap").expect("opened");
    let tables = tables(&space, 3);
    let start =
        |pool: &Pool, n: usize, round: u64| pool.worker("heap", tables[n], seed.wrapping_add(100 * round + n as u64));
    let mut workers: Vec<_> = (0..tables.len()).map(|n| start(&pool, n, 0)).collect();
    let mut killed = 0;
    for round in 1..=ROUNDS {
        for worker in &mut workers {
            worker.progress(1 + random.below(10));
        }
        let n = random.below(tables.len() as u64) as usize;
        let action = random.below(5);
        match action {
            0 => {
                workers[n].kill();
                workers[n] = start(&pool, n, round);
            }
            1 => pool.restart_node(n % 2),
            2 => pool.restart_manager(),
            3 => {
                // No node is there to see the client die.
                pool.nodes.iter_mut().for_each(Process::kill);
                workers[n].kill();
                (0..2).for_each(|n| pool.nodes[n] = pool.start_node(n));
                pool.nodes
                    .iter()
                    .for_each(|node| assert!(node.says().starts_with("ready")));
                workers[n] = start(&pool, n, round);
            }
            _ => {
                // The node starts without the manager, and serves its members.
                pool.manager.kill();
                pool.restart_node(n % 2);
                workers.iter_mut().for_each(|worker| worker.progress(2));
                pool.restart_manager();
            }
        }
        killed += u64::from(matches!(action, 0 | 3));
    }
    workers.iter_mut().for_each(|worker| worker.progress(2));
    workers.iter_mut().for_each(Process::kill);
    pool.audited();
    settle(&space, &tables, killed + 3);
    pool.audited();
}

/// A client that says nothing for a lease is ended before what its sessions had is free. The others are not touched.
#[test]
fn a_stopped_member_alone_is_fenced() {
    let pool = Pool::new(&["a"], 80);
    pool.client().create_space("heap", 70 * EXTENT, None).expect("made");
    let space = pool.client().open_space("heap").expect("opened");
    let tables = tables(&space, 2);
    let mut stopped = pool.worker("heap", tables[0], 1);
    let mut other = pool.worker("heap", tables[1], 2);
    stopped.progress(5);
    stopped.signal(rustix::process::Signal::STOP);
    let status = stopped.ended();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "{status:?}"
    );
    other.progress(20);
    other.kill();
    settle(&space, &tables, 2);
    pool.audited();
}

/// The story: clients asked the manager where their memory node is, as it was away. The manager hung, they waited for
/// its answer longer than a lease, did not come back to the node in time, and were ended.
#[test]
fn a_manager_that_hangs_keeps_no_member_from_its_memory_node() {
    let mut pool = Pool::new(&["a"], 80);
    pool.client().create_space("heap", 70 * EXTENT, None).expect("made");
    let space = pool.client().open_space("heap").expect("opened");
    let tables = tables(&space, 1);
    drop(space);
    let mut worker = pool.worker("heap", tables[0], 1);
    worker.progress(5);
    pool.manager.signal(rustix::process::Signal::STOP);
    pool.nodes[0].kill();
    // Signs of life come four times a lease: it misses the node.
    rt::sleep(Nanos(LEASE.raw() / 2));
    pool.nodes[0] = pool.start_node(0);
    assert!(pool.nodes[0].says().starts_with("ready"));
    rt::sleep(Nanos(2 * LEASE.raw()));
    worker.progress(20);
    pool.manager.signal(rustix::process::Signal::CONT);
    worker.kill();
    let space = pool.client().open_space("heap").expect("opened");
    settle(&space, &tables, 1);
    pool.audited();
}

/// One that is stopped while its memory node starts anew does not come back in time: it maps what it is no member of,
/// and is ended.
#[test]
fn a_member_that_misses_the_nodes_restart_is_ended() {
    let mut pool = Pool::new(&["a"], 80);
    pool.client().create_space("heap", 70 * EXTENT, None).expect("made");
    let space = pool.client().open_space("heap").expect("opened");
    let tables = tables(&space, 2);
    let mut stopped = pool.worker("heap", tables[0], 1);
    let mut other = pool.worker("heap", tables[1], 2);
    stopped.progress(5);
    stopped.signal(rustix::process::Signal::STOP);
    pool.restart_node(0);
    assert!(!stopped.ended().success());
    other.progress(20);
    other.kill();
    settle(&space, &tables, 2);
    pool.audited();
}

/// A session that has nothing yet is nowhere in the memory: it goes on all the same when its keeper is another.
#[test]
fn sessions_outlive_their_keeper() {
    let mut pool = Pool::new(&["a"], 20);
    pool.client().create_space("heap", 16 * EXTENT, None).expect("made");
    let space = pool.client().open_space("heap").expect("opened");
    let keeper = space.keeper(1).expect("attached");
    let (empty, ended) = (keeper.begin().expect("begun"), keeper.begin().expect("begun"));
    keeper.end(ended).expect("ended");
    let session = space.session();
    let address = session.alloc_in(1000, Lifetime::Session).expect("room");
    pool.restart_node(0);
    assert!(keeper.is_alive(empty).expect("asked"));
    // The node does not know that it has ended, and finds out: no member comes back with it.
    until("the end of what has ended", || !keeper.is_alive(ended).expect("asked"));
    assert!(keeper.is_alive(empty).expect("asked"));
    space.write(address, b"it is there").expect("still");
    session.alloc(1000).expect("it goes on");
    keeper.end(empty).expect("ended");
    let other = pool.client().open_space("heap").expect("opened");
    let (id, other) = (session.ids()[0].1, other.keeper(1).expect("attached"));
    assert!(other.is_alive(id).expect("asked"), "others see it");
    let refused = other.end(id);
    assert!(
        matches!(&refused, Err(Error::Revoked(text)) if text.contains("not this member's")),
        "{refused:?}"
    );
    session.close().expect("closed");
    assert!(space.read(address, &mut [0]).is_err(), "it was the session's");
    pool.audited();
}

/// Every process that has it open is ended, and its memory is free; no other is touched.
#[test]
fn a_space_in_use_is_dropped() {
    let pool = Pool::new(&["a", "b"], 16);
    let client = pool.client();
    for name in ["doomed", "other"] {
        client.create_space(name, 16 * EXTENT, None).expect("made");
    }
    let other = client.open_space("other").expect("opened");
    let mut idler = Process::start(&Task::Idler {
        manager: pool.address.clone(),
        space: "doomed".into(),
    });
    assert_eq!(idler.says(), "ready");
    let full = client.create_space("third", 4 * EXTENT, None);
    assert!(
        matches!(&full, Err(Error::Full(text)) if text.contains("8MiB") && text.contains("free")),
        "{full:?}"
    );
    let grant = pool.operator().status().expect("a status").spaces[0].parts[0].grant;
    let part = pool.operator().free(grant);
    assert!(
        matches!(&part, Err(Error::Invalid(text)) if text.contains("doomed")),
        "{part:?}"
    );
    client.drop_space("doomed").expect("dropped");
    assert!(!idler.ended().success());
    // Its name and its memory are free as soon as the nodes say so.
    client.create_space("doomed", 16 * EXTENT, None).expect("made again");
    assert!(
        client
            .open_space("doomed")
            .expect("opened")
            .root()
            .expect("a root")
            .is_null()
    );
    other.session().alloc(100).expect("it goes on");
    let twice = client.create_space("other", 4 * EXTENT, None);
    assert!(
        matches!(&twice, Err(Error::Invalid(text)) if text.contains("\"other\" already")),
        "{twice:?}"
    );
    for unknown in [
        client.open_space("none").map(drop),
        client.drop_space("none"),
        client.grow_space("none", 1, None),
    ] {
        assert!(
            matches!(&unknown, Err(Error::Invalid(text)) if text.contains("\"none\"")),
            "{unknown:?}"
        );
    }
    let moon = client.create_space("far", 4 * EXTENT, Some(&["moon".into()]));
    assert!(
        matches!(&moon, Err(Error::Full(text)) if text.contains("moon")),
        "{moon:?}"
    );
    client.drop_space("doomed").expect("dropped");
    pool.until(|status| status.spaces.len() == 1 && status.grants.len() == 2);
    assert!(client.open_space("doomed").is_err());
    pool.audited();
}

/// A process that has it open finds new memory when there is none elsewhere, or by an address there.
#[test]
fn a_space_grows_under_its_users() {
    let pool = Pool::new(&["a", "b"], 16);
    let client = pool.client();
    client
        .create_space("heap", 4 * EXTENT, Some(&["a".into()]))
        .expect("made");
    let (space, other) = (
        client.open_space("heap").expect("opened"),
        client.open_space("heap").expect("opened"),
    );
    let session = space.session();
    let full = (0..100)
        .map(|_| session.alloc(EXTENT))
        .find_map(Result::err)
        .expect("full");
    assert!(matches!(full, Error::Full(_)), "{full}");
    client
        .grow_space("heap", 8 * EXTENT, Some(&["b".into()]))
        .expect("grown");
    let address = session.alloc(EXTENT).expect("room");
    assert_eq!(
        (address.part(), space.parts().count(), other.parts().count()),
        (2, 2, 1)
    );
    space.write(address, b"new").expect("there");
    let mut bytes = [0; 3];
    other.read(address, &mut bytes).expect("found");
    assert_eq!(&bytes, b"new");
    other.free(address).expect("freed");
    let never = GlobalAddress::new(9, 0, 0, 1).expect("an address");
    assert!(matches!(other.read(never, &mut bytes), Err(Error::Invalid(_))));
    let summary = &client.spaces().expect("asked")[0];
    assert_eq!((summary.bytes(), summary.parts[1].pod.as_str()), (12 * EXTENT, "b"));
    pool.audited();
}

/// A client of one pod maps what lies there, on one machine too.
#[test]
fn pods_can_be_tried_on_one_machine() {
    let pool = Pool::new(&["a", "b"], 8);
    let created = pool.client().create_space("heap", 16 * EXTENT, None);
    created.expect("made");
    let [a, b] = ["a", "b"].map(|pod| open(&pool.address, "heap", Some(pod)).expect("opened"));
    assert_eq!((a.parts().count(), b.parts().count()), (1, 1));
    let numbers = [&a, &b].map(|space| space.parts().next().expect("one").number());
    assert_ne!(numbers[0], numbers[1]);
    let roots = [a.root(), b.root()];
    assert_eq!(
        roots.iter().filter(|root| root.is_ok()).count(),
        1,
        "the root lies in one part: {roots:?}"
    );
}

/// Spaces are made and dropped while manager and nodes are killed: what was told to no client is undone, and nothing is
/// left in the end.
#[test]
fn nothing_leaks_from_spaces_that_are_made_and_dropped() {
    const ROUNDS: u64 = 10;
    let mut random = Random(seed());
    let mut pool = Pool::new(&["a", "b"], 16);
    let address = pool.address.clone();
    let stop = Arc::new(AtomicU64::new(0));
    let made = Arc::new(AtomicU64::new(0));
    let (ending, making) = (Arc::clone(&stop), Arc::clone(&made));
    let maker = std::thread::spawn(move || {
        let mut known: Vec<String> = Vec::new();
        let mut n = 0;
        while ending.load(Ordering::Relaxed) == 0 {
            let Ok(client) = client(&address, None) else { continue };
            n += 1;
            let name = format!("space-{n}");
            if client.create_space(&name, 8 * EXTENT, None).is_ok() {
                known.push(name);
                making.fetch_add(1, Ordering::Relaxed);
            }
            // Those that were told to be there are there, whichever process was killed since.
            let there: Option<Vec<String>> = client
                .spaces()
                .ok()
                .map(|all| all.into_iter().map(|s| s.name).collect());
            if let Some(there) = there {
                known
                    .iter()
                    .for_each(|name| assert!(there.contains(name), "{name} is not in {there:?}"));
                there.iter().for_each(|name| _ = client.drop_space(name));
                known.clear();
            }
        }
    });
    for _ in 0..ROUNDS {
        let before = made.load(Ordering::Relaxed);
        rt::sleep(Nanos::from_micros(random.below(60_000)));
        match random.below(3) {
            0 => pool.restart_node(random.below(2) as usize),
            _ => pool.restart_manager(),
        }
        while made.load(Ordering::Relaxed) == before && !maker.is_finished() {
            rt::sleep(Nanos::from_millis(1));
        }
    }
    stop.store(1, Ordering::Relaxed);
    maker.join().expect("no panic");
    let client = pool.client();
    for space in client.spaces().expect("asked") {
        match client.drop_space(&space.name) {
            // It was being dropped when it was listed, and is gone since.
            Err(Error::Invalid(_)) => {}
            dropped => dropped.expect("dropped"),
        }
    }
    pool.until(|status| status.spaces.is_empty() && status.grants.is_empty());
    pool.audited();
    for n in 0..2 {
        let names = std::fs::read_dir(pool.node_directory(n))
            .expect("a directory")
            .flatten();
        let left: Vec<_> = names
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().contains('-'))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A client that does not know the key, breaks the protocol, or is another than it says gets nothing, and the node goes
/// on.
#[test]
fn strangers_get_nothing() {
    let pool = Pool::new(&["a"], 8);
    let other_pool = Pool::new(&["a"], 8);
    pool.client().create_space("heap", 8 * EXTENT, None).expect("made");
    let (id, key, node) = (space_id(&pool), key_of(&pool), address_of(&pool));
    let key = key.as_str();
    let hello = |key: &str, pid: u32, sessions: &str| {
        let parts = format!(
            r#""version":11,"space":{id},"key":{key},"member":77,"parts":[1],"machine":{}"#,
            cenote_fabric::boot()
        );
        format!(r#"{{{parts},"process":{{"pid":{pid},"start":1}},"name":"x","sessions":{sessions}}}"#)
    };
    let ask = |node: &str, text: &str| {
        let connection = Tcp.connect(node, TIMEOUT).expect("connected");
        connection.send(text.as_bytes()).expect("sent");
        connection
            .receive(TIMEOUT)
            .map(|bytes| String::from_utf8(bytes).expect("text"))
    };
    let wrong = ask(&node, &hello("5", 1, "[]")).expect("an answer");
    assert!(wrong.contains("no space of this number and key"), "{wrong}");
    let elsewhere = ask(&address_of(&other_pool), &hello(key, 1, "[]")).expect("an answer");
    assert_eq!(elsewhere, wrong, "it is told no more");
    let unseen = ask(&node, &hello(key, 1, "[]")).expect("an answer");
    assert!(unseen.contains("PID namespace"), "{unseen}");
    for text in ["", "{}", "[1,2", "\"Ping\"", &hello(key, 1, "[[1,\"x\"]]")] {
        assert!(ask(&node, text).is_err(), "{text}");
    }
    // A machine of its own: it maps nothing, and is let in with the key, but not to what is another's.
    let far = |sessions: &str| {
        hello(key, 1, sessions).replace(&format!("\"machine\":{}", cenote_fabric::boot()), "\"machine\":1")
    };
    let stolen = ask(&node, &far("[[1,1]]")).expect("an answer");
    assert!(stolen.contains("Revoked"), "{stolen}");
    let space = pool.client().open_space("heap").expect("opened");
    let session = space.session();
    session.alloc(100).expect("room");
    let id = session.ids()[0].1.0;
    let connection = Tcp.connect(&node, TIMEOUT).expect("connected");
    let say = |text: &str| {
        connection.send(text.as_bytes()).expect("sent");
        connection
            .receive(TIMEOUT)
            .map(|bytes| String::from_utf8(bytes).expect("text"))
    };
    assert!(say(&far("[]")).expect("an answer").contains("lease"));
    assert!(
        say(&format!(r#"{{"End":{{"part":1,"session":{id}}}}}"#))
            .expect("an answer")
            .contains("Revoked")
    );
    assert!(
        say(r#"{"FreeRun":{"part":1,"address":12345678901}}"#)
            .expect("an answer")
            .contains("Invalid")
    );
    assert!(say(r#"{"Begin":{"part":2}}"#).expect("an answer").contains("Revoked"));
    assert!(say(r#"{"Begin":{"part":"#).is_err());
    session.alloc(100).expect("it goes on");
    pool.audited();
}

/// A member of another machine is not ended when it is fenced. What it had is not its own any more, also for the node's
/// next process.
#[test]
fn a_fenced_member_that_lives_on_does_not_come_back() {
    let mut pool = Pool::new(&["a"], 8);
    pool.client().create_space("heap", 8 * EXTENT, None).expect("made");
    let (space, key) = (space_id(&pool), key_of(&pool));
    let hello = |member: u32, session: &str| {
        format!(
            r#"{{"version":11,"space":{space},"key":{key},"member":{member},"parts":[1],"machine":1,"process":{{"pid":1,"start":1}},"name":"x","sessions":[{session}]}}"#
        )
    };
    let connect = |member: u32, session: &str, wanted: &str| {
        let began = rt::now();
        loop {
            assert!(rt::now().since(began) < TIMEOUT, "{wanted}");
            let Ok(connection) = Tcp.connect(&address_of(&pool), TIMEOUT) else {
                continue;
            };
            if let Ok(said) = exchange(&*connection, &hello(member, session))
                && !said.contains("Busy")
            {
                assert!(said.contains(wanted), "{said}");
                return connection;
            }
        }
    };
    let begin = |connection: &dyn Connection| {
        let said = exchange(connection, r#"{"Begin":{"part":1}}"#).expect("an answer");
        let number = said.trim_start_matches(r#"{"Begun":"#).trim_end_matches('}');
        (number.to_owned(), format!("[1,{number}]"))
    };
    let fenced = connect(1, "", "lease");
    let (number, mine) = begin(&*fenced);
    let taken = format!(r#"{{"Take":{{"part":1,"session":{number},"class":3,"lifetime":"Session"}}}}"#);
    assert!(exchange(&*fenced, &taken).expect("an answer").contains("Slab"));
    fenced.close();
    // In time it comes back with what it had; then not.
    let back = connect(1, &mine, "lease");
    assert!(exchange(&*back, &taken).expect("an answer").contains("Slab"));
    let alive = format!(r#"{{"IsAlive":{{"part":1,"session":{number}}}}}"#);
    let began = rt::now();
    loop {
        assert!(rt::now().since(began) < TIMEOUT, "it is fenced");
        let other = connect(2, "", "lease");
        if exchange(&*other, &alive).expect("an answer").contains("false") {
            break;
        }
        rt::sleep(Nanos::from_millis(50));
    }
    let lasting = connect(3, "", "lease");
    let (_, its) = begin(&*lasting);
    connect(1, &mine, "Revoked");
    pool.nodes[0].kill();
    pool.nodes[0] = pool.start_node(0);
    assert!(pool.nodes[0].says().starts_with("ready"));
    let connect = |member: u32, session: &str, wanted: &str| {
        let connection = Tcp.connect(&address_of(&pool), TIMEOUT).expect("connected");
        let said = exchange(&*connection, &hello(member, session)).expect("an answer");
        assert!(said.contains(wanted), "{said}");
    };
    // A member that waits for what the lasting one holds, and is back first, does not hear that it is dead.
    let first = Tcp.connect(&address_of(&pool), TIMEOUT).expect("connected");
    assert!(exchange(&*first, &hello(6, "")).expect("an answer").contains("lease"));
    let number = its.trim_start_matches("[1,").trim_end_matches(']');
    let alive = format!(r#"{{"IsAlive":{{"part":1,"session":{number}}}}}"#);
    let said = exchange(&*first, &alive).expect("an answer");
    assert!(said.contains("true"), "{said}");
    connect(1, &mine, "Revoked");
    connect(4, &format!("{},{its}", its.replace("[1,", "[1,9")), "Revoked");
    connect(3, &its, "lease");
    connect(5, &its, "Revoked");
    pool.audited();
}

fn exchange(connection: &dyn Connection, text: &str) -> Result<String> {
    connection.send(text.as_bytes())?;
    connection
        .receive(TIMEOUT)
        .map(|bytes| String::from_utf8(bytes).expect("text"))
}

fn space_id(pool: &Pool) -> u128 {
    pool.operator().status().expect("a status").spaces[0].id.0
}

/// The key of the first space, out of the manager's grant table.
fn key_of(pool: &Pool) -> String {
    let grant_table = std::fs::read_to_string(pool.directory.path().join("manager/pool.records")).expect("a book");
    let key = grant_table
        .split("\"key\":")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    key.expect("a key").to_owned()
}

/// Where the first memory node listens for members.
fn address_of(pool: &Pool) -> String {
    let text = std::fs::read_to_string(pool.node_directory(0).join("node.json")).expect("readable");
    let address = text
        .split("\"members\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    address.expect("an address").to_owned()
}
