//! Thousands of sessions: those that wait for their client have no thread, those that wait for each other have one each.

use crate::program::{Data, Process, cenote};
use crate::stub::{Client, Host, bind_portal, execute, message, parse, query, sqlstate, startup};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Threads of a server whose sessions are all parked: those that wait for work, and those on their way.
const FEW_THREADS: usize = 16;
/// Files of this process that are no connections.
const FILES_RESERVED: u64 = 700;

/// How many connections this process can have, with so many files for each: 5,000 if it may.
fn connections(files_each: u64) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(FILES_RESERVED) / files_each;
    let count = most.min(5000) as usize;
    if count < 5000 {
        println!("{count} connections and not 5000: that is what the limit of open files allows");
    }
    count
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// There was a thread for each session, and at most 900 of them.
#[test]
fn five_thousand_idle_sessions_have_no_threads_and_can_all_run_a_statement() {
    let count = connections(2);
    let host = Host::with(None, count + 8);
    let before = resident_bytes();
    let mut idle: Vec<Client> = (0..count).map(|_| host.client()).collect();
    wait_until("the threads end", || host.server.session_threads() <= FEW_THREADS);
    println!(
        "{} bytes a session, clients' ends included",
        resident_bytes().saturating_sub(before) / count
    );
    let (stop, address) = (AtomicBool::new(false), host.address);
    std::thread::scope(|scope| {
        let busy: Vec<_> = (0..4).map(|_| scope.spawn(|| round_trips(address, &stop))).collect();
        for client in &mut idle {
            client.send(&query("rows 1"));
            assert_eq!(client.tags(), "TDCZ");
        }
        stop.store(true, Ordering::Relaxed);
        for thread in busy {
            assert!(thread.join().unwrap() > 0);
        }
    });
    assert_eq!(host.server.registry.sessions().len(), count + 4);
    wait_until("the threads end", || host.server.session_threads() <= FEW_THREADS);
    drop(idle);
    // The busy ones have not left.
    host.wait_alive(4);
}

fn round_trips(address: SocketAddr, stop: &AtomicBool) -> u64 {
    let mut client = Client::connect(address);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        client.send(&query("rows 3"));
        assert_eq!(client.tags(), "TDDDCZ");
        count += 1;
    }
    // It stays: the test counts it.
    std::mem::forget(client);
    count
}

/// Statements that wait have a thread each, however many they are, so that the one they wait for gets its own.
#[test]
fn statements_that_wait_keep_no_other_from_its_thread() {
    let waiting = 300;
    let host = Host::with(None, waiting + 1);
    let mut other = host.client();
    let mut clients: Vec<Client> = (0..waiting).map(|_| host.client()).collect();
    clients.iter_mut().for_each(|client| client.send(&query("wait")));
    wait_until("all wait", || host.server.session_threads() > waiting);
    other.send(&query("rows 1"));
    assert_eq!(other.tags(), "TDCZ");
    for entry in host.server.registry.sessions() {
        entry.cancel();
    }
    for client in &mut clients {
        assert_eq!(sqlstate(&client.until_ready()[0].1), "57014");
    }
    wait_until("the threads end", || host.server.session_threads() <= FEW_THREADS);
}

/// A pause may come anywhere: in a message, between messages of a pipeline, inside a transaction, in COPY.
#[test]
fn a_pause_loses_nothing_wherever_it_comes() {
    let host = Host::start();
    let pause = || std::thread::sleep(Duration::from_millis(250));
    let mut client = host.client();
    let text = query("rows 2");
    client.send(&text[..3]);
    pause();
    assert!(host.server.session_threads() <= FEW_THREADS);
    client.send(&text[3..]);
    assert_eq!(client.tags(), "TDDCZ");
    client.send(&[parse("", "rows 2"), bind_portal("", "")].concat());
    pause();
    client.send(&execute("", 1));
    pause();
    client.send(&[execute("", 1), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "12DsDCZ");
    client.send(&query("begin"));
    assert_eq!(client.until_ready().last().unwrap().1, b"T");
    pause();
    assert_eq!(host.server.registry.sessions()[0].state().word(), "idle in transaction");
    client.send(&query("copy in"));
    assert_eq!(client.next().unwrap().0, b'G');
    pause();
    client.send(&message(b'd', b"a\nb\n"));
    pause();
    client.send(&message(b'c', b""));
    assert_eq!(client.tags(), "CZ");
    client.send(&query("commit"));
    assert_eq!(client.until_ready().last().unwrap().1, b"I");
}

/// A connection that says nothing, or half a word, holds nobody up; what it holds itself is given back when it leaves.
#[test]
fn connections_that_say_nothing_hold_nobody_up() {
    let host = Host::with(None, 40);
    let mut silent: Vec<Client> = (0..30).map(|_| Client::raw(host.address)).collect();
    wait_until("all are parked", || host.server.session_threads() <= FEW_THREADS);
    silent[..10]
        .iter_mut()
        .for_each(|client| client.send(&startup(&[])[..5]));
    host.client().send(&query("rows 1"));
    drop(silent);
    let sessions: Vec<Client> = (0..40).map(|_| host.client()).collect();
    let mut more = Client::raw(host.address);
    more.send(&startup(&[("user", "x"), ("database", "cenote")]));
    let refusal = more.next().unwrap().1;
    let refusal = String::from_utf8_lossy(
        if refusal.len() == 4 {
            more.next().unwrap().1
        } else {
            refusal
        }
        .as_slice(),
    )
    .into_owned();
    assert!(
        refusal.contains("C53300\0Msorry, too many clients already\0") && refusal.contains("There are 40 sessions"),
        "{refusal:?}"
    );
    drop(sessions);
    host.wait_alive(0);
    host.client();
}

/// Parked sessions are told of a shutdown, too, and all at once.
#[test]
fn a_shutdown_tells_a_thousand_parked_sessions() {
    let count = connections(2).min(1000);
    let mut host = Host::with(None, count);
    // First of all: a connection that is not accepted yet is reset when the listener closes.
    let mut silent = Client::raw(host.address);
    let mut clients: Vec<Client> = (0..count).map(|_| host.client()).collect();
    wait_until("the threads end", || host.server.session_threads() <= FEW_THREADS);
    assert_eq!(host.server.stop(Duration::from_secs(30)), 0);
    for client in &mut clients {
        assert_eq!(client.last_words(), "57P01");
    }
    assert!(silent.next().is_none());
    assert_eq!(host.server.session_threads(), 0);
}

/// The whole program: idle sessions by the thousand, and among them some that wait for a row that a parked one has locked.
#[test]
fn a_parked_session_that_holds_a_lock_gets_a_thread_before_all_who_wait_for_it() {
    let count = connections(1);
    let data = Data::new();
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path()).args(["--max-sessions", &count.to_string()]);
    let server = Process::spawn(command);
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let run = |client: &mut Client, text: &str| {
        client.send(&query(text));
        client.tags()
    };
    let mut holder = Client::connect(address);
    run(
        &mut holder,
        "create table t (id int primary key, n int); insert into t values (1, 0)",
    );
    assert_eq!(run(&mut holder, "begin; update t set n = n + 1 where id = 1"), "CCZ");
    let mut idle: Vec<Client> = (0..count - 101).map(|_| Client::connect(address)).collect();
    let mut waiting: Vec<Client> = (0..100).map(|_| Client::connect(address)).collect();
    let update = query("update t set n = n + 1 where id = 1");
    waiting
        .iter_mut()
        .for_each(|client| client.stream.write_all(&update).unwrap());
    for client in &mut idle {
        assert_eq!(run(client, "select n from t where id = 1"), "TDCZ");
    }
    assert_eq!(run(&mut holder, "commit"), "CZ");
    for client in &mut waiting {
        client.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(client.tags(), "CZ");
    }
    holder.send(&query("select n from t where id = 1"));
    assert_eq!(holder.until_ready()[1].1[6..], *b"101");
    let mut more = Client::raw(address);
    more.send(&startup(&[("user", "x"), ("database", "cenote")]));
    assert_eq!(more.last_words(), "53300");
}
