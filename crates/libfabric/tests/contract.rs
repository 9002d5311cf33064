//! The contract of one-sided verbs over libfabric: TCP on loopback and shared memory, in one process and between two;
//! what happens to keys, peers and messages that are not what they should be.
//!
//! Between two processes, this program runs itself again as the memory node: [`a_memory_node`] is a test that does
//! nothing unless it is told what to be.

use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_fabric::rdma::call::{Answer, Call, Caller, CallerId, Callers, Serve};
use cenote_fabric::rdma::{Endpoint, Fabric, Key, Remote, RemoteMemory, Work};
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Path, Provider, available};
use cenote_testkit::contract::calls;
use cenote_testkit::contract::calls::Program;
use cenote_testkit::contract::verbs::{self as contract, Bench};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set for a process that is to be a memory node: provider and path.
const ROLE: &str = "CENOTE_TEST_MEMORY_NODE";
/// Set for a process that is to call the node at that address.
const CALLS: &str = "CENOTE_TEST_CALLS";

/// One at a time: each spins on processors of which there may be two.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether libfabric is there; says so where it is not.
fn is_here() -> bool {
    let here = available();
    if let Err(error) = &here {
        eprintln!("not tested: {error}");
    }
    here.is_ok()
}

fn options(provider: Provider, path: Option<Path>) -> NodeOptions {
    NodeOptions {
        path,
        writes: true,
        ..NodeOptions::new(provider)
    }
}

fn net(timeout_ms: u64) -> Arc<Net> {
    let options = NetOptions {
        timeout: Nanos::from_millis(timeout_ms),
        ..NetOptions::default()
    };
    Arc::new(Net::new(options).expect("libfabric is here"))
}

/// A node of this process.
struct Near {
    node: Mutex<Option<MemoryNode>>,
    address: String,
    net: Arc<Net>,
}

impl Near {
    fn new(provider: Provider, path: Option<Path>) -> Self {
        let node = MemoryNode::start(&options(provider, path)).expect("a node");
        node.serve(Arc::<Program>::default());
        Self {
            address: node.address().to_string(),
            node: Mutex::new(Some(node)),
            net: net(3000),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&MemoryNode) -> T) -> T {
        f(self.node.lock().expect("no panic").as_ref().expect("not lost"))
    }
}

impl Bench for Near {
    fn connect(&self) -> Arc<dyn Endpoint> {
        self.net.connect(&self.address).expect("reachable")
    }

    fn register(&self, len: u64) -> Remote {
        self.with(|n| n.register(len).expect("registered"))
    }

    fn revoke(&self, memory: Remote) {
        assert!(self.with(|n| n.revoke(memory.key)).expect("ended"));
    }

    fn lose(&self) {
        self.node.lock().expect("no panic").take().expect("not lost").close();
    }
}

impl calls::Bench for Near {
    fn caller(&self) -> Arc<dyn Caller> {
        self.net.caller(&self.address).expect("reachable")
    }

    fn lose(&self) {
        Bench::lose(self);
    }
}

impl calls::Bench for Far {
    fn caller(&self) -> Arc<dyn Caller> {
        self.net.caller(&self.address).expect("reachable")
    }

    fn lose(&self) {
        self.end();
    }
}

/// A node of another process, told what to do line by line.
struct Far {
    child: Mutex<Child>,
    answers: Mutex<Box<dyn BufRead + Send>>,
    address: String,
    net: Arc<Net>,
}

impl Far {
    fn new(provider: &str, path: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["a_memory_node", "--exact", "--nocapture"])
            .env(ROLE, format!("{provider} {path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let answers: Box<dyn BufRead + Send> = Box::new(BufReader::new(child.stdout.take().expect("piped")));
        let mut far = Self {
            child: Mutex::new(child),
            answers: Mutex::new(answers),
            address: String::new(),
            net: net(3000),
        };
        far.address = far.answer();
        far
    }

    /// The next line that is for us.
    fn answer(&self) -> String {
        let mut lines = self.answers.lock().expect("no panic");
        loop {
            let mut line = String::new();
            assert_ne!(
                lines.read_line(&mut line).expect("read"),
                0,
                "the memory node has ended"
            );
            if let Some((_, answer)) = line.trim_end().split_once("node: ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&self, line: &str) -> String {
        let mut child = self.child.lock().expect("no panic");
        let stdin = child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("told");
        drop(child);
        self.answer()
    }

    fn kill(&self) {
        let mut child = self.child.lock().expect("no panic");
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Ends it: by a kill, or over shared memory by asking. A process that is killed there may hold one of the
    /// provider's locks, and the next one that wants it waits for ever (docs/decisions/libfabric.md).
    fn end(&self) {
        let mut child = self.child.lock().expect("no panic");
        if self.address.starts_with("shm@") {
            // The end of its input ends it.
            drop(child.stdin.take());
            let end = Instant::now() + Duration::from_secs(30);
            while child.try_wait().expect("ours").is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(child);
        self.kill();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.end();
    }
}

impl Bench for Far {
    fn connect(&self) -> Arc<dyn Endpoint> {
        self.net.connect(&self.address).expect("reachable")
    }

    fn register(&self, len: u64) -> Remote {
        let key = self.ask(&format!("register {len}")).parse().expect("a key");
        Remote {
            key: Key(key),
            base: 0,
            len,
        }
    }

    fn revoke(&self, memory: Remote) {
        assert_eq!(self.ask(&format!("revoke {}", memory.key.0)), "true");
    }

    fn lose(&self) {
        self.end();
    }
}

/// Not a test but the other process.
#[test]
fn a_memory_node() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (provider, path) = role.split_once(' ').expect("provider and path");
    let path = if path == "one-sided" {
        Path::OneSided
    } else {
        Path::Served
    };
    let node = MemoryNode::start(&options(provider.parse().expect("a provider"), Some(path))).expect("a node");
    node.serve(Arc::<Program>::default());
    println!("node: {}", node.address());
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (verb, number) = line.split_once(' ').expect("verb and number");
        let number = number.parse().expect("a number");
        match verb {
            "register" => println!("node: {}", node.register(number).expect("registered").key.0),
            _ => println!("node: {}", node.revoke(Key(number)).expect("ended")),
        }
    }
    node.close();
}

fn near(provider: Provider, path: Path) {
    let _alone = alone();
    if is_here() {
        let bench: Arc<dyn Bench> = Arc::new(Near::new(provider, Some(path)));
        contract::all(&bench);
    }
}

fn near_calls(path: Path) {
    let _alone = alone();
    if is_here() {
        let bench: Arc<dyn calls::Bench> = Arc::new(Near::new(Provider::tcp(), Some(path)));
        calls::threads_lend_side_by_side(&bench);
        calls::all(&bench);
    }
}

fn far_calls(provider: &str, path: &str) {
    let _alone = alone();
    if is_here() {
        let bench: Arc<dyn calls::Bench> = Arc::new(Far::new(provider, path));
        assert!(bench.caller().lend(8).is_some(), "{provider} writes to callers' memory");
        if provider != "shm" {
            calls::threads_lend_side_by_side(&bench);
        }
        calls::all(&bench);
    }
}

#[test]
fn tcp_keeps_the_contract_of_calls() {
    near_calls(Path::Served);
}

#[test]
fn tcp_keeps_the_contract_of_calls_beside_its_own_operations() {
    near_calls(Path::OneSided);
}

#[test]
fn two_processes_keep_the_contract_of_calls_over_tcp() {
    far_calls("tcp;ofi_rxm", "served");
}

#[test]
fn two_processes_keep_the_contract_of_calls_over_shared_memory() {
    far_calls("shm", "served");
}

fn far(provider: &str, path: &str) {
    let _alone = alone();
    if is_here() {
        let bench: Arc<dyn Bench> = Arc::new(Far::new(provider, path));
        contract::all(&bench);
    }
}

#[test]
fn tcp_keeps_the_contract() {
    near(Provider::tcp(), Path::Served);
}

#[test]
fn tcp_keeps_the_contract_by_its_own_operations() {
    near(Provider::tcp(), Path::OneSided);
}

#[test]
fn two_processes_keep_the_contract_over_tcp() {
    far("tcp;ofi_rxm", "served");
}

#[test]
fn two_processes_keep_the_contract_over_tcp_by_its_own_operations() {
    far("tcp;ofi_rxm", "one-sided");
}

#[test]
fn two_processes_keep_the_contract_over_shared_memory() {
    far("shm", "served");
}

#[test]
fn shared_memory_within_one_process_is_refused() {
    let _alone = alone();
    if is_here() {
        let node = MemoryNode::start(&NodeOptions::new(Provider::shm())).expect("a node");
        let error = net(1000).connect_to(node.address()).expect_err("of this process");
        assert!(error.to_string().contains("loopback"), "{error}");
        node.close();
    }
}

fn tcp_node() -> MemoryNode {
    MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node")
}

#[test]
fn many_threads_share_one_rail() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let (node, net) = (tcp_node(), net(20_000));
    let memory = node.register(4096).expect("registered");
    let endpoint = net.connect_to(node.address()).expect("reachable");
    let work = |thread: u64| {
        let remote = RemoteMemory::new(Arc::clone(&endpoint), memory);
        for round in 1..=100 {
            remote.fetch_add(0, 1).expect("added");
            remote.write(8 * thread, &round_bytes(round)).expect("written");
            assert_eq!(remote.load(8 * thread).expect("loaded"), round, "of thread {thread}");
        }
    };
    std::thread::scope(|s| (1..=8).for_each(|t| drop(s.spawn(move || work(t)))));
    assert_eq!(RemoteMemory::new(endpoint, memory).load(0).expect("loaded"), 800);
    node.close();
}

fn round_bytes(round: u64) -> [u8; 8] {
    round.to_le_bytes()
}

#[test]
fn works_that_were_let_go_are_done_though_endpoint_and_net_are_gone() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let node = tcp_node();
    let memory = node.register(1 << 20).expect("registered");
    {
        let net = net(5000);
        let endpoint = net.connect_to(node.address()).expect("reachable");
        let works = (0..64).map(|i| Work::write(memory, i * 16384, vec![7; 16384].into()));
        let last = Work::fetch_add(memory, 0, 1).fenced();
        drop(endpoint.post(works.chain([last]).collect()));
    }
    let end = Instant::now() + Duration::from_secs(120);
    let mut word = [0; 8];
    while word != [8, 7, 7, 7, 7, 7, 7, 7] {
        assert!(Instant::now() < end, "not done: {word:?}");
        node.inspect(memory.key, 0, &mut word).expect("registered");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut end = [0; 16];
    node.inspect(memory.key, (1 << 20) - 16, &mut end).expect("registered");
    assert_eq!(end, [7; 16]);
    node.close();
}

/// Keeps every answer, and notes which callers have come and gone.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<Answer>>,
    came: Mutex<Vec<CallerId>>,
    gone: Mutex<Vec<CallerId>>,
}

impl Serve for Keeper {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        self.came.lock().expect("no panic").push(caller);
        match request {
            b"keep" => self.kept.lock().expect("no panic").push(answer),
            other => answer.with(other),
        }
    }

    fn ended(&self, caller: CallerId) {
        self.gone.lock().expect("no panic").push(caller);
    }
}

/// Not a test but another process, that calls a node and waits for what does not come.
#[test]
fn a_process_that_calls() {
    let Ok(address) = std::env::var(CALLS) else {
        return;
    };
    let caller = net(3000).caller(&address).expect("reachable");
    caller.call(b"hello", &mut Vec::new()).expect("answered");
    let waits = Call::new("keep").within(Nanos::from_secs(600));
    for call in caller.post(vec![waits]).wait() {
        assert!(matches!(call.result, Err(Error::Lost(_))), "{:?}", call.result);
    }
    let error = caller.call(b"hello", &mut Vec::new()).expect_err("its end was told");
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

/// Such a process, ended when dropped.
struct Calling(Child);

impl Calling {
    fn start(node: &MemoryNode) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["a_process_that_calls", "--exact"])
            .env(CALLS, node.address().to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("this program again"))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with so much timeout for callers.
fn keeping_node(silence: Nanos) -> (MemoryNode, Arc<Keeper>) {
    let node = MemoryNode::start(&NodeOptions {
        silence,
        ..NodeOptions::new(Provider::tcp())
    });
    let (node, keeper) = (node.expect("a node"), Arc::<Keeper>::default());
    node.serve(Arc::clone(&keeper) as _);
    (node, keeper)
}

#[test]
fn a_caller_that_stood_still_is_not_served_after_its_end_was_told() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let (node, keeper) = keeping_node(Nanos::from_secs(2));
    let mut calling = Calling::start(&node);
    wait_for("a call that is kept", || {
        keeper.kept.lock().expect("no panic").len() == 1
    });
    let signal = |name: &str| Command::new("kill").args([name, &calling.0.id().to_string()]).status();
    assert!(signal("-STOP").expect("sent").success());
    wait_for("its end", || !keeper.gone.lock().expect("no panic").is_empty());
    assert!(signal("-CONT").expect("sent").success());
    let exit = calling.0.wait().expect("ours");
    assert!(exit.success(), "it found out: {exit}");
    assert_eq!(
        keeper.came.lock().expect("no panic").len(),
        2,
        "what came after is not served"
    );
    assert_eq!(keeper.gone.lock().expect("no panic").len(), 1);
    node.close();
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_end_of_a_killed_caller_is_told_once_and_of_a_living_one_not() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let (node, keeper) = keeping_node(Nanos::from_secs(3));
    let lives = net(20_000).caller(&node.address().to_string()).expect("reachable");
    lives.call(b"hello", &mut Vec::new()).expect("answered");
    let calling = Calling::start(&node);
    wait_for("a call that is kept", || {
        keeper.kept.lock().expect("no panic").len() == 1
    });
    drop(calling);
    wait_for("its end", || !keeper.gone.lock().expect("no panic").is_empty());
    let gone = keeper.gone.lock().expect("no panic").clone();
    let dead = keeper.came.lock().expect("no panic")[1];
    assert_eq!(gone, [dead]);
    assert_ne!(lives.id(), dead);
    // An answer without a caller, and the node goes on.
    keeper.kept.lock().expect("no panic").remove(0).with(b"too late");
    lives.call(b"hello", &mut Vec::new()).expect("answered");
    node.close();
    assert_eq!(*keeper.gone.lock().expect("no panic"), [dead, lives.id()], "each once");
}

#[test]
fn answers_that_are_kept_do_not_keep_a_node() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let (node, keeper) = (tcp_node(), Arc::<Keeper>::default());
    let address = node.address().to_string();
    node.serve(Arc::clone(&keeper) as _);
    let caller = net(2000).caller(&address).expect("reachable");
    let called = caller.post(vec![Call::new("keep"), Call::new("now")]);
    wait_for("a call that is kept", || {
        keeper.kept.lock().expect("no panic").len() == 1
    });
    node.close();
    let calls = called.wait();
    assert!(matches!(calls[0].result, Err(Error::Lost(_))), "{:?}", calls[0].result);
    keeper.kept.lock().expect("no panic").remove(0).with(b"to no caller");
    assert!(matches!(net(1000).caller(&address), Err(Error::Lost(_))));
}

#[test]
fn works_and_calls_of_many_threads_share_one_rail() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let (node, net) = (tcp_node(), net(20_000));
    node.serve(Arc::<Program>::default());
    let (memory, address) = (node.register(1 << 20).expect("registered"), node.address().to_string());
    let (caller, endpoint) = (
        net.caller(&address).expect("reachable"),
        net.connect(&address).expect("reachable"),
    );
    let work = |thread: u8| {
        let remote = RemoteMemory::new(Arc::clone(&endpoint), memory);
        for round in 0..50u8 {
            let large = vec![round; 50_000 + usize::from(thread)];
            let calls = (0..4).map(|_| Call::new([b"e", &large[..]].concat()));
            let called = caller.post(calls.collect());
            remote.write(u64::from(thread) << 16, &large).expect("written");
            for call in called.wait() {
                assert!(
                    call.into_answer().expect("answered") == large,
                    "of thread {thread}, round {round}"
                );
            }
            let mut back = vec![0; large.len()];
            remote.read(u64::from(thread) << 16, &mut back).expect("read");
            assert!(back == large);
        }
    };
    std::thread::scope(|s| (0..6).for_each(|t| drop(s.spawn(move || work(t)))));
    node.close();
}

/// Threads that write until they cannot; what they were told in the end.
fn write_until_it_fails(far: &Far, memory: Remote) -> Vec<Error> {
    let endpoint = far.connect();
    let work = |_| {
        let remote = RemoteMemory::new(Arc::clone(&endpoint), memory);
        loop {
            if let Err(error) = remote.write_many((0..8).map(|i| (i * 4096, vec![1; 4096].into())).collect()) {
                return error;
            }
        }
    };
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|t| s.spawn(move || work(t))).collect();
        std::thread::sleep(Duration::from_millis(300));
        far.kill();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

#[test]
fn a_node_that_is_killed_under_load_is_lost_to_all_threads() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let far = Far::new("tcp;ofi_rxm", "served");
    let memory = far.register(1 << 20);
    for error in write_until_it_fails(&far, memory) {
        assert!(matches!(error, Error::Lost(_)), "{error}");
    }
    let again = far.net.connect(&far.address).expect_err("there is none");
    assert!(matches!(again, Error::Lost(_)), "{again}");
}

/// Whether all threads of a process are stopped.
fn stands(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("there");
    let stat = |thread: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(thread?.path().join("stat"));
    threads.map(stat).all(|text| text.is_ok_and(|t| t.contains(") T ")))
}

#[test]
fn a_node_that_stands_still_is_lost_in_time_and_can_be_reached_again() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let far = Far::new("tcp;ofi_rxm", "served");
    let remote = RemoteMemory::new(far.connect(), far.register(4096));
    remote.write(0, &[1; 8]).expect("written");
    let pid = far.child.lock().expect("no panic").id().to_string();
    let signal = |name: &str| Command::new("kill").args([name, &pid]).status().expect("sent");
    assert!(signal("-STOP").success());
    // It is sent, which is not that it stands.
    while !stands(&pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = remote.fetch_add(8, 1).expect_err("no answer");
    assert!(signal("-CONT").success());
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(remote.load(0).is_err(), "this endpoint is broken");
    let again = RemoteMemory::new(far.connect(), remote.memory());
    assert_eq!(again.load(0).expect("loaded"), 0x0101_0101_0101_0101);
    assert!(again.load(8).expect("loaded") <= 1, "done once, or not");
}

#[test]
fn an_address_without_a_node_is_an_error_in_time() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let node = tcp_node();
    let address = node.address().clone();
    node.close();
    let net = net(2000);
    let error = net.connect_to(&address).expect_err("no node");
    assert!(matches!(error, Error::Lost(_)), "{error}");
    let error = net.connect("tcp;ofi_rxm@nowhere").expect_err("no address");
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let error = net.connect("nothing@x00").expect_err("no such provider");
    assert!(error.to_string().contains("no such provider"), "{error}");
}

#[test]
fn memory_of_no_length_or_of_too_much_is_not_registered() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let node = tcp_node();
    assert!(matches!(node.register(0), Err(Error::Invalid(_))));
    assert!(node.register(u64::MAX).is_err());
    node.close();
}

/// Set for [`a_process_that_waits`].
const WAITS: &str = "CENOTE_WAITS_FOR_A_SIGNAL";

/// Not a test but another process, that has begun to use libfabric.
#[test]
fn a_process_that_waits() {
    if std::env::var(WAITS).is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let _caller = net(3000).caller(&node.address().to_string()).expect("reachable");
    println!("\nready");
    std::thread::sleep(Duration::from_secs(600));
}

/// A library of one of libfabric's providers took SIGTERM for itself as it was loaded, and ended the process with
/// status 1: `cenote mount` did not unmount.
#[test]
fn signals_are_the_programs() {
    let _alone = alone();
    if !is_here() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["a_process_that_waits", "--exact", "--nocapture"])
        .env(WAITS, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let output = child.stdout.take().expect("piped");
    let is_ready =
        std::io::BufRead::lines(std::io::BufReader::new(output)).any(|line| line.is_ok_and(|line| line == "ready"));
    let ended = Command::new("kill").arg(child.id().to_string()).status();
    let status = child.wait().expect("it ends");
    assert!(is_ready && ended.is_ok_and(|ended| ended.success()));
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(15),
        "{status:?}"
    );
}
