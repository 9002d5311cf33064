//! Processes that write far memory under a lock are killed in the middle of it: what they leave is a beginning of what
//! they wrote, and the next holder is told.
//!
//! The processes are this test program started again, with `CENOTE_CACHES` set: then [`another_process`] is what it
//! does. They reach the memory by calls alone, over libfabric's tcp.

use crate::pods::at;
use crate::seed;
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Provider};
use cenote_space::EXTENT;
use cenote_space::{
    Channel, FarPart, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Mode, Neighbour, Part,
    PartOptions, Service, Session, Space,
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

const SPACE: u128 = 79;
/// Words of the object: writing each of them is more than two batches.
const WORDS: usize = 600;

/// What another process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    peer: String,
    keeper: PathBuf,
    lock: GlobalAddress,
    object: GlobalAddress,
    seed: u64,
}

/// Words that are equal while no writer is at work, and that each writer raises by one, from the first to the last.
fn visit(session: &Session, task: &Task, mode: Mode) -> u64 {
    let guard = session.lock(task.lock, mode).expect("a lock");
    let mut bytes = vec![0; 8 * WORDS];
    guard.read(task.object, &mut bytes).expect("read");
    let words = bytes
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let words: Vec<u64> = words.collect();
    let (first, last) = (words[0], words[WORDS - 1]);
    if guard.owner_died() {
        let raised = words.iter().take_while(|word| **word == first).count();
        let is_beginning = words[raised..].iter().all(|word| *word == last && last + 1 == first);
        assert!(is_beginning, "not a beginning of what was written: {words:?}");
        write(session, task, raised..WORDS, first);
    } else {
        assert!(
            words.iter().all(|word| *word == first),
            "no writer died, and they differ: {words:?}"
        );
    }
    if guard.mode() == Mode::Write {
        write(session, task, 0..WORDS, first + 1);
    }
    guard.unlock().expect("held");
    first
}

fn write(session: &Session, task: &Task, words: std::ops::Range<usize>, value: u64) {
    for n in words {
        session
            .write_locked(task.lock, at(task.object, 8 * n), &value.to_le_bytes())
            .expect("written");
    }
}

/// What another process does until it is killed.
#[test]
fn another_process() {
    let Ok(task) = std::env::var("CENOTE_CACHES") else {
        return;
    };
    let task: Task = serde_json::from_str(&task).expect("a task");
    let callers: Arc<dyn Callers> = Arc::new(Net::new(NetOptions::default()).expect("libfabric"));
    let hello = Hello {
        space: SPACE,
        part: 1,
        key: HostOptions::default().key,
        pod: "far".into(),
    };
    let part = FarPart {
        number: 1,
        pod: "near".into(),
        channel: Arc::new(Channel::new(callers, task.peer.as_str(), hello)),
    };
    let (space, keeper) = (Space::new(SPACE), Neighbour::connect(&task.keeper).expect("a keeper"));
    space.attach_far(part, Arc::new(keeper)).expect("attached");
    let (session, mut dice) = (space.session(), Random(task.seed));
    loop {
        let mode = [Mode::Read, Mode::Write, Mode::Write][dice.index(3)];
        visit(&session, &task, mode);
        let mut out = std::io::stdout().lock();
        out.write_all(b"\ncaches: visited\n").expect("written");
        out.flush().expect("written");
    }
}

/// Another process; killed when dropped.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(task: &Task, seed: u64) -> Self {
        let task = Task { seed, ..task.clone() };
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["killed::another_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("CENOTE_CACHES", serde_json::to_string(&task).expect("text"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    /// Reads so many reports. It must not end by itself.
    fn hear(&mut self, reports: usize) {
        let mut heard = 0;
        while heard < reports {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("readable") > 0, "it ended");
            heard += usize::from(line.trim() == "caches: visited");
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_killed_processes_wrote_is_a_beginning() {
    const PROCESSES: usize = 2;
    const ROUNDS: usize = 25;
    if let Err(error) = Net::new(NetOptions::default()) {
        println!("without libfabric: {error}");
        return;
    }
    let mut dice = Random(seed());
    let directory = tempfile::tempdir().expect("a directory");
    let options = PartOptions {
        space: SPACE,
        part: 1,
        tenant: 0,
        bytes: 8 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    let keeper = Arc::new(LocalKeeper::new(Arc::new(Part::dram(&options).expect("memory"))).expect("a keeper"));
    let options = HostOptions {
        every: Nanos::ZERO,
        ..HostOptions::default()
    };
    let host = Host::start(Arc::clone(&keeper), options).expect("a host");
    let (hosts, node) = (
        Hosts::default(),
        MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node"),
    );
    hosts.add(&host);
    node.serve(Arc::new(hosts));
    let _service = Service::start(&directory.path().join("keeper"), Arc::clone(&keeper) as _).expect("a socket");
    let space = Space::new(SPACE);
    space
        .attach(Arc::clone(host.part()), Arc::clone(&keeper) as _)
        .expect("attached");
    let session = space.session();
    let task = Task {
        peer: node.address().to_string(),
        keeper: directory.path().join("keeper"),
        lock: session.new_lock().expect("room"),
        object: session.alloc(8 * WORDS as u64).expect("room"),
        seed: 0,
    };
    let mut others: Vec<_> = (0..PROCESSES)
        .map(|_| Other::start(&task, dice.index(1 << 30) as u64))
        .collect();
    for _ in 0..ROUNDS {
        let victim = dice.index(PROCESSES);
        others[victim].hear(1 + dice.index(5));
        // Somewhere in what comes next.
        rt::sleep(Nanos(dice.index(3_000_000) as u64));
        others[victim] = Other::start(&task, dice.index(1 << 30) as u64);
        visit(&session, &task, Mode::Read);
    }
    drop(others);
    assert!(visit(&session, &task, Mode::Write) > 0, "a process wrote");
    assert_eq!(keeper.audit().expect("audited"), Vec::<String>::new());
}
