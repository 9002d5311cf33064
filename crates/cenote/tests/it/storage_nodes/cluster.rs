//! Servers that are reader or writer as things go: one is lost, stopped, asked to leave the database, or wakes up.

use super::{Nodes, make_table};
use crate::moved::{Writer, signal};
use crate::program::{Data, Process, cenote, free_ports, output};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

/// Three servers, each on a port of its own, to which it comes back.
struct Servers {
    nodes: Nodes,
    data: Vec<Data>,
    ports: Vec<u16>,
    processes: Vec<Process>,
}

impl Servers {
    fn start() -> Servers {
        let nodes = Nodes::start();
        let ports = free_ports(3);
        let mut servers = Servers {
            nodes,
            data: (0..3).map(|_| Data::new()).collect(),
            ports,
            processes: Vec::new(),
        };
        for n in 0..3 {
            let process = servers.spawn(n);
            servers.processes.push(process);
        }
        servers
    }

    fn spawn(&self, n: usize) -> Process {
        let listen = format!("127.0.0.1:{}", self.ports[n]);
        let mut command = cenote(&["run", "--role", "auto", "--memory-size", "64MiB", "--listen", &listen]);
        command.args(["--storage", &self.nodes.addresses(), "--data", self.data[n].text()]);
        Process::spawn(command)
    }

    fn client(&self, n: usize) -> Option<postgres::Client> {
        let mut config = postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(self.ports[n])
            .user("tester")
            .dbname("cenote");
        config.connect_timeout(Duration::from_secs(2));
        config.connect(postgres::NoTls).ok()
    }

    /// The server that has the database and serves clients; not `other`.
    fn writer_but(&self, other: Option<usize>) -> usize {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            for n in (0..3).filter(|n| Some(*n) != other) {
                let answer = self
                    .client(n)
                    .and_then(|mut client| client.query_one("SELECT pg_is_in_recovery()", &[]).ok());
                if answer.is_some_and(|row| !row.get::<_, bool>(0)) {
                    return n;
                }
            }
            assert!(Instant::now() < deadline, "no server has the database");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn writer(&self) -> usize {
        self.writer_but(None)
    }

    /// 50 more rows are acknowledged: by this session, or by the next one of the same server.
    fn goes_on(&self, load: Writer, has: usize) -> Writer {
        let (mut load, deadline) = (load, Instant::now() + TIMEOUT);
        let mut reached = load.acknowledged();
        while load.acknowledged() < reached + 50 {
            assert!(Instant::now() < deadline, "nothing is acknowledged");
            std::thread::sleep(Duration::from_millis(2));
            if load.has_ended() {
                assert!(self.rows(has) >= i64::from(load.end()));
                // The row that was under way is there, or is not, or comes yet: then the next session ends, too.
                let next = i32::try_from(self.rows(has)).unwrap();
                (load, reached) = (Writer::start(&self.processes[has], next), next);
            }
        }
        load
    }

    /// The rows that a server shows which has caught up.
    fn rows(&self, n: usize) -> i64 {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.client(n).and_then(|mut client| {
                client.batch_execute("SET cenote.strong_reads = on").ok()?;
                client.query_one("SELECT count(*) FROM t", &[]).ok()
            });
            if let Some(row) = found {
                return row.get(0);
            }
            assert!(Instant::now() < deadline, "server {n} does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn cluster(&self, arguments: &[&str]) -> (bool, String) {
        output(
            cenote(&["cluster"])
                .args(arguments)
                .args(["--storage", &self.nodes.addresses()]),
        )
    }
}

/// The server that has the database is killed under load, again and again: another has it, with all that was
/// acknowledged, and the one that was killed comes back as a reader.
#[test]
fn a_reader_takes_the_database_of_a_killed_server() {
    let mut servers = Servers::start();
    let mut has = servers.writer();
    make_table(&servers.processes[has]);
    let mut from = 0;
    for _ in 0..3 {
        let load = Writer::start(&servers.processes[has], from);
        load.reaches(from + 100);
        servers.processes[has].kill();
        let acknowledged = load.end();
        let next = servers.writer_but(Some(has));
        let found = servers.rows(next);
        // The one that was under way may be there, too.
        assert!(
            (0..=1).contains(&(found - i64::from(acknowledged))),
            "{found} of {acknowledged}"
        );
        servers.processes[has] = servers.spawn(has);
        assert_eq!(servers.rows(has), found, "it reads");
        (from, has) = (found as i32, next);
    }
    let (ok, text) = servers.cluster(&["status"]);
    assert!(
        ok && text.matches("reader, may write").count() == 2 && text.contains("writer"),
        "{text}"
    );
}

/// The server that has the database stands still, and another takes it. Woken up, it shows nothing that is old: its
/// sessions end, and it is a reader.
#[test]
fn a_server_that_wakes_up_answers_nothing_that_is_old() {
    let servers = Servers::start();
    let has = servers.writer();
    make_table(&servers.processes[has]);
    let mut client = servers.processes[has].client();
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
    let mut sessions: Vec<postgres::Client> = (0..4).map(|_| servers.processes[has].client()).collect();
    for session in &mut sessions {
        assert_eq!(
            session
                .query_one("SELECT count(*) FROM t", &[])
                .unwrap()
                .get::<_, i64>(0),
            1
        );
    }
    signal(&servers.processes[has], Signal::STOP);
    // Asked while it stands still: each is answered when it wakes up, or never.
    let asked: Vec<_> = sessions
        .into_iter()
        .map(|mut session| std::thread::spawn(move || session.query_one("SELECT count(*) FROM t", &[])))
        .collect();
    let next = servers.writer_but(Some(has));
    servers.processes[next]
        .client()
        .batch_execute("INSERT INTO t SELECT g FROM generate_series(2, 50) g")
        .unwrap();
    signal(&servers.processes[has], Signal::CONT);
    for session in asked {
        let answer = session.join().unwrap();
        assert!(
            answer.is_err(),
            "an old answer: {:?}",
            answer.map(|row| row.get::<_, i64>(0))
        );
    }
    assert!(client.batch_execute("INSERT INTO t VALUES (77)").is_err());
    assert_eq!(servers.rows(has), 50, "the same process reads now");
    assert_eq!(servers.rows(next), 50);
}

/// Asked to, the server that has the database leaves it to another, and reads; what was acknowledged is there. A server
/// that is stopped in order leaves it, too.
#[test]
fn a_switch_leaves_the_database_to_the_one_that_was_named() {
    let mut servers = Servers::start();
    let mut has = servers.writer();
    make_table(&servers.processes[has]);
    let mut rows = 0;
    for to in [(has + 1) % 3, (has + 2) % 3, has] {
        let load = Writer::start(&servers.processes[has], rows);
        load.reaches(rows + 50);
        let (ok, text) = servers.cluster(&["switch", "--to", &format!("127.0.0.1:{}", servers.ports[to])]);
        assert!(ok && text.contains("has the database"), "{text}");
        let acknowledged = load.end();
        assert_eq!(servers.writer(), to);
        let found = servers.rows(to);
        assert!(
            (0..=1).contains(&(found - i64::from(acknowledged))),
            "{found} of {acknowledged}"
        );
        assert_eq!(servers.rows(has), found, "the former one reads");
        (rows, has) = (found as i32, to);
    }
    let (ok, text) = servers.cluster(&["switch", "--to", "nowhere"]);
    assert!(!ok && text.contains("there is no server \"nowhere\""), "{text}");
    assert!(servers.processes[has].stop().success());
    let next = servers.writer_but(Some(has));
    assert_eq!(servers.rows(next), i64::from(rows));
}

/// Clients of a proxy stay while the database goes from server to server. A switch shows them no error, a killed server
/// at most that what was under way may have been carried out; no row is lost, and none is there twice.
#[test]
fn clients_of_a_proxy_stay_while_the_database_moves() {
    let mut servers = Servers::start();
    let addresses = servers.nodes.addresses();
    let mut proxy = Process::spawn(cenote(&["proxy", "--listen", "127.0.0.1:0", "--storage", &addresses]));
    let mut client = proxy.client();
    client.batch_execute("CREATE TABLE t (n int PRIMARY KEY)").unwrap();
    let insert = client.prepare("INSERT INTO t VALUES ($1)").unwrap();
    let load = |client: &mut postgres::Client, from: i32, to: i32| -> Vec<String> {
        let errors = (from..to).filter_map(|n| client.execute(&insert, &[&n]).err());
        errors
            .map(|error| error.code().map_or(error.to_string(), |code| code.code().into()))
            .collect()
    };
    for round in 0..2 {
        let from = round * 1000;
        let addresses = servers.nodes.addresses();
        let switch = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            output(cenote(&["cluster", "switch", "--storage"]).arg(addresses))
        });
        let errors = load(&mut client, from, from + 1000);
        let (ok, text) = switch.join().unwrap();
        assert!(ok, "{text}");
        assert_eq!(errors, Vec::<String>::new(), "a switch shows no error");
    }
    let has = servers.writer();
    let id = rustix::process::Pid::from_child(&servers.processes[has].child);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        rustix::process::kill_process(id, Signal::KILL).unwrap();
    });
    let errors = load(&mut client, 2000, 4000);
    killer.join().unwrap();
    assert!(
        errors.len() <= 1 && errors.iter().all(|code| code == "40003"),
        "{errors:?}"
    );
    let found: i64 = client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
    assert!((4000 - errors.len() as i64..=4000).contains(&found), "{found}");
    servers.processes[has].kill();
    assert!(proxy.stop().success());
}

/// A server of another database that has come to the address of a killed one is none of the cluster's: clients of a
/// proxy get no answer of it, and wait for one that has their database.
#[test]
fn a_proxy_knows_a_server_of_another_database() {
    let nodes = Nodes::start();
    let (listen, addresses) = (format!("127.0.0.1:{}", free_ports(1)[0]), nodes.addresses());
    let data = [Data::new(), Data::new()];
    let start = |n: usize| {
        let mut command = cenote(&["run", "--memory", "dram", "--memory-size", "64MiB"]);
        command.args(["--listen", &listen, "--data", data[n].text()]);
        if n == 0 {
            command.args(["--role", "auto", "--storage", &addresses]);
        }
        Process::spawn(command)
    };
    let mut own = start(0);
    let mut proxy = cenote(&["proxy", "--listen", "127.0.0.1:0", "--wait", "2"]);
    proxy.args(["--storage", &addresses]);
    let mut proxy = Process::spawn(proxy);
    let mut client = proxy.client();
    client
        .batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        .unwrap();

    own.kill();
    let mut other = start(1);
    let mut its_own = other.client();
    its_own
        .batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (2)")
        .unwrap();
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let answer = client.query_one("SELECT n FROM t", &[]);
        let n = answer.as_ref().ok().map(|row| row.get::<_, i32>(0));
        assert_eq!(n, None, "an answer of another database");
    }
    other.kill();
    let _again = start(0);
    let until = Instant::now() + TIMEOUT;
    let found = loop {
        match client.query_one("SELECT n FROM t", &[]) {
            Ok(row) => break row.get::<_, i32>(0),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    assert_eq!(found, 1);
    assert!(proxy.stop().success());
}

/// Blocks move a sum between accounts, a statement at a time, while the database goes from server to server: no client
/// sees an error or a wait of seconds, and nothing is lost or moved twice.
#[test]
fn open_blocks_go_with_the_database() {
    const ACCOUNTS: i32 = 8;
    let servers = Servers::start();
    let addresses = servers.nodes.addresses();
    let mut proxy = Process::spawn(cenote(&["proxy", "--listen", "127.0.0.1:0", "--storage", &addresses]));
    let mut client = proxy.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        .unwrap();
    for id in 0..ACCOUNTS {
        client.execute("INSERT INTO t VALUES ($1, 1000)", &[&id]).unwrap();
    }
    let over = AtomicBool::new(false);
    let moved: Vec<i32> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (client, over) = (proxy.client(), &over);
                scope.spawn(move || moves(client, number, over))
            })
            .collect();
        for _ in 0..2 {
            let (client, over) = (proxy.client(), &over);
            scope.spawn(move || sums(client, i64::from(ACCOUNTS) * 1000, over));
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(400));
            let (ok, text) = servers.cluster(&["switch"]);
            assert!(ok, "{text}");
        }
        std::thread::sleep(Duration::from_millis(300));
        over.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(moved.iter().all(|blocks| *blocks > 3), "{moved:?}");
    // What others have committed, too.
    client.batch_execute("SET cenote.strong_reads = on").unwrap();
    let sums = client.query_one("SELECT sum(n)::int8, count(*) FROM t", &[]);
    let (sum, count): (i64, i64) = sums.map(|row| (row.get(0), row.get(1))).unwrap();
    assert_eq!((sum, count), (i64::from(ACCOUNTS) * 1000, i64::from(ACCOUNTS)));
    let mut moved_sum: Vec<i64> = vec![0; ACCOUNTS as usize];
    for (number, blocks) in moved.iter().enumerate() {
        moved_sum[number] -= i64::from(*blocks);
        moved_sum[number + 4] += i64::from(*blocks);
    }
    for (id, moved) in moved_sum.iter().enumerate() {
        let n: i32 = client
            .query_one("SELECT n FROM t WHERE id = $1", &[&(id as i32)])
            .unwrap()
            .get(0);
        assert_eq!(i64::from(n), 1000 + moved, "account {id}");
    }
    assert!(proxy.stop().success());
}

/// A block that cannot go is waited for, and its client sees nothing of the switch.
#[test]
fn a_switch_waits_for_a_block_that_cannot_go() {
    let servers = Servers::start();
    let addresses = servers.nodes.addresses();
    let mut proxy = Process::spawn(cenote(&["proxy", "--listen", "127.0.0.1:0", "--storage", &addresses]));
    let (mut client, mut other) = (proxy.client(), proxy.client());
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
        .unwrap();
    let mut block = client.transaction().unwrap();
    let portal = block.bind("SELECT n FROM t WHERE n > 0", &[]).unwrap();
    assert_eq!(block.query_portal(&portal, 1).unwrap().len(), 1);
    std::thread::scope(|scope| {
        let began = Instant::now();
        let switch = scope.spawn(|| servers.cluster(&["switch"]));
        std::thread::sleep(Duration::from_millis(300));
        let served = other.batch_execute("INSERT INTO t VALUES (4)");
        let rest = block.query_portal(&portal, 0);
        drop(portal);
        if began.elapsed() > Duration::from_secs(2) {
            // The machine is slower than the server waits.
            block.rollback().ok();
            return;
        }
        served.expect("it serves meanwhile");
        assert_eq!(rest.unwrap().len(), 2);
        block.batch_execute("UPDATE t SET n = 5 WHERE n = 1").unwrap();
        block.commit().unwrap();
        let (ok, text) = switch.join().unwrap();
        assert!(ok, "{text}");
    });
    let found: i64 = other
        .query_one("SELECT count(*) FROM t WHERE n > 1", &[])
        .unwrap()
        .get(0);
    assert!((2..=4).contains(&found), "{found}");
    drop((client, other));
    assert!(proxy.stop().success());
}

/// Reads the sum of all accounts again and again, in blocks that only read.
fn sums(mut client: postgres::Client, expected: i64, over: &AtomicBool) {
    client.batch_execute("SET cenote.strong_reads = on").unwrap();
    let sum = client.prepare("SELECT sum(n)::int8 FROM t").unwrap();
    let mut blocks = 0;
    while !over.load(Ordering::SeqCst) {
        let level = ["READ COMMITTED", "REPEATABLE READ"][blocks % 2];
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level} READ ONLY"))
            .expect("begun");
        for _ in 0..4 {
            match client.query_one(&sum, &[]) {
                Ok(row) => assert_eq!(row.get::<_, i64>(0), expected, "in a block at {level}"),
                // A writer that has just begun does not know of a reader that has, and purges.
                Err(error) if error.code().is_some_and(|code| code.code() == "72000") => break,
                Err(error) => panic!("in a block at {level}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(15));
        }
        client.batch_execute("ROLLBACK").expect("ended");
        blocks += 1;
    }
    assert!(blocks > 3, "{blocks}");
}

/// Moves one from account `number` to the fourth behind it, a block each time, with pauses between its statements.
fn moves(mut client: postgres::Client, number: i32, over: &AtomicBool) -> i32 {
    let update = client.prepare("UPDATE t SET n = n + $1 WHERE id = $2").unwrap();
    let commit = client.prepare("COMMIT").unwrap();
    let mut blocks = 0;
    while !over.load(Ordering::SeqCst) {
        let pause = || std::thread::sleep(Duration::from_millis(20));
        let level = ["READ COMMITTED", "REPEATABLE READ"][blocks as usize % 2];
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}"))
            .expect("begun");
        client.execute(&update, &[&-1, &number]).expect("taken");
        pause();
        client.batch_execute("SAVEPOINT a").expect("marked");
        client.execute(&update, &[&7, &(number + 4)]).expect("given");
        pause();
        client.batch_execute("ROLLBACK TO a").expect("taken back");
        pause();
        client.execute(&update, &[&1, &(number + 4)]).expect("given");
        client.execute(&commit, &[]).expect("committed");
        blocks += 1;
    }
    blocks
}

/// Storage nodes lead and end: no server is passed over that lives. Where no node leads for more than five seconds, as
/// on a busy machine, a session is told that its server does not know; the next one finds that it does.
#[test]
fn a_lost_storage_node_deposes_no_server() {
    let mut servers = Servers::start();
    let has = servers.writer();
    make_table(&servers.processes[has]);
    let mut load = Writer::start(&servers.processes[has], 0);
    for _ in 0..2 {
        let leader = servers.nodes.leader();
        servers.nodes.kill(leader);
        load = servers.goes_on(load, has);
        servers.nodes.start_node(leader);
        load = servers.goes_on(load, has);
    }
    let acknowledged = load.end();
    assert!(servers.rows(has) >= i64::from(acknowledged));
    assert_eq!(servers.writer(), has);
    let (ok, text) = servers.cluster(&["status"]);
    let start = text.split_whitespace().skip_while(|word| *word != "writer").nth(1);
    assert!(ok && start == Some("1"), "it is the first start still: {text}");
}

#[test]
fn a_server_of_both_roles_needs_storage_nodes() {
    let data = Data::new();
    let (ok, text) = output(cenote(&["run", "--role", "auto", "--data"]).arg(data.path()));
    assert!(
        !ok && text.contains("role is auto") && text.contains("--storage"),
        "{text}"
    );
    let (ok, text) = output(&mut cenote(&["cluster", "status", "--storage", "127.0.0.1:1"]));
    assert!(!ok && text.contains("127.0.0.1:1"), "{text}");
}

/// A cluster that `cenote up` has started, ended whatever happens.
struct Cluster {
    dir: tempfile::TempDir,
    port: u16,
}

impl Cluster {
    fn up(&self) -> (bool, String) {
        let port = self.port.to_string();
        let mut command = cenote(&[
            "up",
            "--detach",
            "--readers",
            "1",
            "--memory-size",
            "64MiB",
            "--port",
            &port,
        ]);
        output(command.arg("--dir").arg(self.dir.path()))
    }

    fn down(&self) -> (bool, String) {
        output(cenote(&["down", "--dir"]).arg(self.dir.path()))
    }

    /// Its processes, by name.
    fn processes(&self) -> Vec<(i32, String)> {
        let text = std::fs::read_to_string(self.dir.path().join("processes")).unwrap_or_default();
        let process = |line: &str| {
            let mut words = line.split(' ');
            Some((words.next()?.parse().ok()?, words.nth(1)?.to_owned()))
        };
        text.lines().filter_map(process).collect()
    }

    fn client(&self, ready: &str) -> postgres::Client {
        let port = ready
            .lines()
            .find_map(|line| line.strip_prefix("ready in ")?.rsplit(':').next()?.parse().ok());
        let mut config = postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(port.unwrap())
            .user("tester")
            .dbname("cenote");
        config.connect(postgres::NoTls).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.down();
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// `cenote up` starts a cluster that serves clients, starts again what is killed, and is one at a time; `cenote down` ends
/// all of it, also what a killed supervisor has left. Rows stay.
#[test]
fn a_cluster_goes_up_and_down() {
    let cluster = Cluster {
        dir: tempfile::tempdir().unwrap(),
        // `cenote up` takes those behind it, too: no other test's.
        port: free_ports(32)[0],
    };
    let (ok, text) = cluster.up();
    assert!(ok && text.contains("psql -h 127.0.0.1"), "{text}");
    let mut client = cluster.client(&text);
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1)")
        .unwrap();
    let (ok, text) = cluster.up();
    assert!(!ok && text.contains("runs already"), "{text}");
    let before = cluster.processes();
    assert_eq!(before.len(), 6, "{before:?}");
    for (pid, name) in before
        .iter()
        .filter(|(_, name)| name != "proxy" && !name.ends_with("-3"))
    {
        kill(*pid);
        let deadline = Instant::now() + TIMEOUT;
        let is_again = |(other, of): &(i32, String)| of == name && other != pid;
        while !cluster.processes().iter().any(is_again) {
            assert!(Instant::now() < deadline, "{name} is not started again");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The same connection all the time.
        let found: i64 = client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
        assert_eq!(found, 1, "{name} was killed");
    }
    let supervisor = std::fs::read_to_string(cluster.dir.path().join("supervisor.pid")).unwrap();
    kill(supervisor.trim().parse().unwrap());
    let left = cluster.processes();
    let (ok, text) = cluster.down();
    assert!(ok && text.contains("stopped"), "{text}");
    // One that has ended may wait for its parent to hear of it.
    let is_there = |(pid, _): &&(i32, String)| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    assert_eq!(left.iter().filter(is_there).count(), 0, "{left:?}");
    let (ok, text) = cluster.up();
    assert!(ok, "{text}");
    let found: i64 = cluster
        .client(&text)
        .query_one("SELECT count(*) FROM t", &[])
        .unwrap()
        .get(0);
    assert_eq!(found, 1);
    let (ok, text) = cluster.down();
    assert!(ok && text.contains("stopped in"), "{text}");
    assert!(cluster.down().1.contains("did not run"));
}
