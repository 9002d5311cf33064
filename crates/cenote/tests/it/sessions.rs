//! Thousands of sessions: those that wait for their client have no thread, those that wait for each other have one
//! each.

use crate::program::{Data, Process, cenote};
use crate::stub::{COPY_IN, Client, Host, WAIT, bind_portal, execute, message, parse, query, rows, sqlstate, startup};
use cenote::server::Access;
use cenote::server::auth::Passwords;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Threads of a server whose sessions are all parked: those that wait for work, and those on their way.
const FEW_THREADS: usize = 16;
/// Files of this process that are no connections.
const FILES_RESERVED: u64 = 700;

/// Sets its flag also where an assert ends the test before.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

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
        let end = EndOfLoad(&stop);
        for client in &mut idle {
            client.send(&query(&rows(1)));
            assert_eq!(client.tags(), "TDCZ");
        }
        drop(end);
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

/// Ends the load, also where the test fails meanwhile.
struct EndOfLoad<'a>(&'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn round_trips(address: SocketAddr, stop: &AtomicBool) -> u64 {
    let mut client = Client::connect(address);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        client.send(&query(&rows(3)));
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
    clients.iter_mut().for_each(|client| client.send(&query(WAIT)));
    wait_until("all wait", || host.server.session_threads() > waiting);
    other.send(&query(&rows(1)));
    assert_eq!(other.tags(), "TDCZ");
    // A thread may not have begun its statement yet, and a cancel before that reaches nothing: it is sent until all have
    // answered.
    let answered = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !answered.load(Ordering::Relaxed) {
                host.server.registry.sessions().iter().for_each(|entry| entry.cancel());
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let _answered = SetWhenDropped(&answered);
        for client in &mut clients {
            assert_eq!(sqlstate(&client.until_ready()[0].1), "57014");
        }
    });
    wait_until("the threads end", || host.server.session_threads() <= FEW_THREADS);
}

/// A pause may come anywhere: in a message, between messages of a pipeline, inside a transaction, in COPY.
#[test]
fn a_pause_loses_nothing_wherever_it_comes() {
    let host = Host::start();
    let pause = || std::thread::sleep(Duration::from_millis(250));
    let mut client = host.client();
    let text = query(&rows(2));
    client.send(&text[..3]);
    pause();
    assert!(host.server.session_threads() <= FEW_THREADS);
    client.send(&text[3..]);
    assert_eq!(client.tags(), "TDDCZ");
    client.send(&[parse("", &rows(2)), bind_portal("", "")].concat());
    pause();
    client.send(&execute("", 1));
    pause();
    client.send(&[execute("", 0), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "12DsDCZ");
    client.send(&query("begin"));
    assert_eq!(client.until_ready().last().unwrap().1, b"T");
    pause();
    assert_eq!(host.server.registry.sessions()[0].state().word(), "idle in transaction");
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    pause();
    client.send(&message(b'd', b"a\nb\n"));
    pause();
    client.send(&message(b'c', b""));
    assert_eq!(client.tags(), "CZ");
    client.send(&query("commit"));
    assert_eq!(client.until_ready().last().unwrap().1, b"I");
}

/// A connection that sends nothing, or half a packet, delays no other; what it holds is given back when it leaves.
#[test]
fn silent_connections_delay_no_other() {
    let host = Host::with(None, 40);
    let mut silent: Vec<Client> = (0..30).map(|_| Client::raw(host.address)).collect();
    wait_until("all are parked", || host.server.session_threads() <= FEW_THREADS);
    silent[..10]
        .iter_mut()
        .for_each(|client| client.send(&startup(&[])[..5]));
    host.client().send(&query(&rows(1)));
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

/// What came together with the start-up had been read when its session was parked: its answer came never, or with the
/// client's next message.
#[test]
fn messages_that_come_with_the_start_up_are_answered() {
    let host = Host::start();
    let begin = startup(&[("user", "x"), ("database", "cenote")]);
    for cut in [0, 3, query(&rows(1)).len()] {
        let mut client = Client::raw(host.address);
        let statement = query(&rows(1));
        let (with, later) = statement.split_at(cut);
        client.send(&[&begin, with].concat());
        assert_eq!(client.until_ready().last().unwrap().1, b"I");
        std::thread::sleep(Duration::from_millis(20));
        client.send(later);
        assert_eq!(client.tags(), "TDCZ", "{cut} bytes came with the start-up");
    }
    wait_until("all are parked", || host.server.session_threads() <= FEW_THREADS);
}

/// Each of these had a thread: for up to 60 s in its start-up or password exchange, without end in COPY.
#[test]
fn clients_that_stall_have_no_threads_and_take_no_others_place() {
    let count = connections(2).saturating_sub(300).min(2000);
    let passwords = std::env::temp_dir().join(format!("cenote-stalled-{}", std::process::id()));
    std::fs::write(&passwords, "anna:open sesame\n").unwrap();
    let guarded = Host::with(Some(Passwords::read(&passwords).unwrap()), 100);
    std::fs::remove_file(&passwords).unwrap();
    let host = Host::with(None, count + 300);
    let (stop, address) = (AtomicBool::new(false), host.address);
    std::thread::scope(|scope| {
        let busy: Vec<_> = (0..4).map(|_| scope.spawn(|| round_trips(address, &stop))).collect();
        let mut starting: Vec<Client> = (0..count).map(|_| Client::raw(address)).collect();
        let half = startup(&[("user", "x"), ("database", "cenote")]);
        starting
            .iter_mut()
            .for_each(|client| client.send(&half[..half.len() / 2]));
        let copying: Vec<Client> = (0..200).map(|_| stalled_in_copy(&host)).collect();
        let mut unproven: Vec<Client> = (0..50).map(|_| Client::raw(guarded.address)).collect();
        for client in &mut unproven {
            client.send(&startup(&[("user", "anna"), ("database", "cenote")]));
            assert_eq!(client.next().unwrap().0, b'R');
        }
        wait_until("those that stall are parked", || {
            host.server.session_threads() <= FEW_THREADS && guarded.server.session_threads() <= FEW_THREADS
        });
        let mut honest = host.client();
        honest.send(&query(&rows(1)));
        assert_eq!(honest.tags(), "TDCZ");
        // Where they stalled they can go on.
        starting[0].send(&half[half.len() / 2..]);
        assert_eq!(starting[0].until_ready().last().unwrap().1, b"I");
        let mut back = copying.into_iter().next().unwrap();
        back.send(&[message(b'd', b"b\n"), message(b'c', b"")].concat());
        assert_eq!(back.until_ready()[0].1, b"COPY 2\0");
        stop.store(true, Ordering::Relaxed);
        for thread in busy {
            assert!(thread.join().unwrap() > 0);
        }
    });
}

fn stalled_in_copy(host: &Host) -> Client {
    let mut client = host.client();
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(&message(b'd', b"a\n"));
    client
}

/// A client in the middle of COPY heard a cancel request with its next data, or never.
#[test]
fn a_copy_whose_client_says_nothing_can_be_cancelled() {
    let host = Host::start();
    let mut client = stalled_in_copy(&host);
    wait_until("it is parked", || host.server.session_threads() <= 2);
    host.server.registry.sessions()[0].cancel();
    assert_eq!(sqlstate(&client.until_ready()[0].1), "57014");
    client.send(&[message(b'd', b"late\n"), query(&rows(1))].concat());
    assert_eq!(client.tags(), "TDCZ");
}

/// All connections that there may be took their 60 s, and a client that came meanwhile was closed unheard.
#[test]
fn those_that_never_begin_make_room_for_those_that_do() {
    let host = Host::with(None, 10);
    let silent: Vec<Client> = (0..60).map(|_| Client::raw(host.address)).collect();
    let sessions: Vec<Client> = (0..10).map(|_| host.client()).collect();
    let mut more = Client::raw(host.address);
    more.send(&startup(&[("user", "x"), ("database", "cenote")]));
    assert_eq!(more.last_words(), "53300");
    drop((silent, sessions));
}

/// A client that was told why it is sent away kept a thread for the half second that it has to read it.
#[test]
fn clients_that_are_sent_away_have_no_threads() {
    let host = Host::with(None, 400);
    let mut refused: Vec<Client> = (0..300).map(|_| Client::raw(host.address)).collect();
    refused.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\n"));
    for client in &mut refused {
        assert_eq!(client.next().unwrap().0, b'E');
        assert!(host.server.session_threads() <= FEW_THREADS);
    }
    let mut sent_more = refused.pop().unwrap();
    sent_more.stream.write_all(b"more that is not read\r\n").ok();
    assert!(sent_more.next().is_none());
}

fn with_threads(max_threads: usize) -> Host {
    Host::with_access(Access {
        passwords: None,
        max_connections: 100,
        max_threads,
    })
}

/// A session for whose statement there was no thread was ended, whatever it had done.
#[test]
fn sessions_wait_for_a_thread_in_turn_where_there_are_too_few() {
    let host = with_threads(4);
    let mut holder = host.client();
    holder.send(&query("begin"));
    assert_eq!(holder.tags(), "CZ");
    let mut waiting: Vec<Client> = (0..12).map(|_| host.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(&query(WAIT)));
    wait_until("all threads are in use", || running(&host) == 3);
    // The one that holds what they may wait for is served, those that begin their session are, and cancel requests are.
    for _ in 0..5 {
        holder.send(&query(&rows(1)));
        assert_eq!(holder.tags(), "TDCZ");
        host.client();
    }
    let mut answered = 0;
    while answered < waiting.len() {
        for client in &mut waiting {
            let cancel = [16, 80_877_102, client.id, client.secret]
                .map(i32::to_be_bytes)
                .concat();
            Client::raw(host.address).send(&cancel);
            client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            if client.id != 0 && client.stream.peek(&mut [0]).is_ok() {
                client.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                assert_eq!(sqlstate(&client.until_ready()[0].1), "57014");
                (client.id, answered) = (0, answered + 1);
            }
        }
    }
    assert!(host.server.session_threads() <= 4);
    for client in &mut waiting {
        client.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.send(&query(&rows(1)));
        assert_eq!(client.tags(), "TDCZ");
    }
}

fn running(host: &Host) -> usize {
    host.server.registry.active().len()
}

/// Where all threads wait and there is none for the session that they wait for, a statement gives its thread up, by
/// name.
#[test]
fn a_server_without_a_thread_to_go_on_stops_a_statement() {
    let host = with_threads(2);
    let mut first = host.client();
    let mut second = host.client();
    // It has no thread to give, though it came last and its statement runs.
    let _copying = stalled_in_copy(&host);
    first.send(&query("begin"));
    first.until_ready();
    second.send(&query(WAIT));
    wait_until("it runs", || running(&host) == 2);
    first.send(&query(WAIT));
    wait_until("both run", || running(&host) == 3);
    // Of the others, the session that came last loses its statement, and is still there.
    let answer = second.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "53000");
    second.send(&query(&rows(1)));
    host.server.registry.sessions()[0].cancel();
    assert_eq!(sqlstate(&first.until_ready()[0].1), "57014");
    assert_eq!(second.tags(), "TDCZ");
}

/// A pipeline's locks are held until its Sync, which waited for a thread behind those that wait for the locks.
#[test]
fn a_pipeline_that_has_begun_gets_a_thread_where_there_are_too_few() {
    let host = with_threads(2);
    let mut holder = host.client();
    let begun = [
        parse("", &rows(1)),
        bind_portal("", ""),
        execute("", 0),
        message(b'H', b""),
    ];
    holder.send(&begun.concat());
    let tags: Vec<u8> = (0..4).map(|_| holder.next().unwrap().0).collect();
    assert_eq!(tags, b"12DC");
    let mut waiting: Vec<Client> = (0..2).map(|_| host.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(&query(WAIT)));
    wait_until("one runs, beside the pipeline", || running(&host) == 2);
    std::thread::sleep(Duration::from_millis(50));
    holder.send(&message(b'S', b""));
    assert_eq!(holder.tags(), "Z");
    for entry in host.server.registry.sessions() {
        entry.cancel();
    }
}

/// A statement that ended just when it was to give its thread up left its session a mark, and the next that its client
/// cancelled was said to have been stopped for want of threads.
#[test]
fn a_statement_stopped_for_want_of_threads_does_not_name_the_next() {
    let host = with_threads(2);
    let mut first = host.client();
    let mut second = host.client();
    first.send(&query("begin"));
    first.until_ready();
    second.send(&query("deaf"));
    wait_until("it runs", || running(&host) == 1);
    first.send(&query(WAIT));
    assert_eq!(second.tags(), "CZ");
    host.server.registry.sessions()[0].cancel();
    assert_eq!(sqlstate(&first.until_ready()[0].1), "57014");
    second.send(&query(WAIT));
    wait_until("it runs", || running(&host) == 1);
    host.server.registry.sessions()[1].cancel();
    assert_eq!(sqlstate(&second.until_ready()[0].1), "57014");
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

/// The whole program: idle sessions by the thousand, and among them some that wait for a row that a parked one has
/// locked.
#[test]
fn a_parked_session_that_holds_a_lock_gets_a_thread_before_its_waiters() {
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

/// Bytes of a process's own memory. The region is not among them: it is made ready in the background after a start.
pub fn private_of(pid: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: Vec<usize> = statm.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let (resident, shared) = (pages[1], pages[2]);
    resident.saturating_sub(shared) * 4096
}

fn threads_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("Threads:")).unwrap();
    line["Threads:".len()..].trim().to_owned()
}

/// Point selects a second of 8 clients that send the next with the answer to the last.
fn selects_a_second(address: SocketAddr, time: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = || {
            let mut client = Client::connect(address);
            client.send(&[parse("s", "select n from t where id = 1"), message(b'S', b"")].concat());
            client.until_ready();
            let select = [bind_portal("", "s"), execute("", 0), message(b'S', b"")].concat();
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                client.send(&select);
                assert_eq!(client.tags(), "2DCZ");
                count += 1;
            }
            count
        };
        let busy: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        let begun = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let count: u64 = busy.into_iter().map(|thread| thread.join().unwrap()).sum();
        count as f64 / begun.elapsed().as_secs_f64()
    })
}

/// What idle sessions cost the busy ones: `cargo test -p cenote --release --test it idle_sessions_cost -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn what_idle_sessions_cost_the_busy_ones() {
    let count = connections(1).min(4900);
    let data = Data::new();
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0", "--data"]);
    command
        .arg(data.path())
        .args(["--max-sessions", &(count + 16).to_string()]);
    let server = Process::spawn(command);
    let (pid, address) = (server.child.id(), SocketAddr::from(([127, 0, 0, 1], server.port)));
    let mut setup = Client::connect(address);
    setup.send(&query(
        "create table t (id int primary key, n int); insert into t values (1, 0)",
    ));
    setup.until_ready();
    let time = Duration::from_secs(3);
    selects_a_second(address, time);
    let mut ratios = Vec::new();
    for round in 1..=5 {
        let alone = selects_a_second(address, time);
        let before = private_of(pid);
        let mut idle: Vec<Client> = (0..count).map(|_| Client::connect(address)).collect();
        for client in &mut idle {
            client.send(&query("select n from t where id = 1"));
            client.until_ready();
        }
        let bytes = private_of(pid).saturating_sub(before) / count;
        let beside = selects_a_second(address, time);
        println!(
            "round {round}: {alone:.0}/s alone, {beside:.0}/s beside {count} idle, ratio {:.2}; {} threads; {bytes} \
             bytes each",
            beside / alone,
            threads_of(pid)
        );
        ratios.push(beside / alone);
        drop(idle);
        std::thread::sleep(Duration::from_millis(500));
    }
    ratios.sort_by(f64::total_cmp);
    println!("ratio: median {:.2}, {:.2} to {:.2}", ratios[2], ratios[0], ratios[4]);
}
