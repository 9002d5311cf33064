//! Servers that pause when they are not needed, and resume when they are: `cenote run --role auto --pause-after`.

use super::Nodes;
use crate::moved::signal;
use crate::program::{Data, Process, cenote, free_ports, output};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

/// Servers that pause a second after their last use, behind a proxy.
struct Servers {
    proxy: Process,
    processes: Vec<Process>,
    _data: Vec<Data>,
    nodes: Nodes,
}

impl Servers {
    fn start(count: usize) -> Servers {
        let nodes = Nodes::start();
        let ports = free_ports(count);
        let data: Vec<Data> = ports.iter().map(|_| Data::new()).collect();
        let spawn = |(port, data): (&u16, &Data)| {
            let mut command = cenote(&["run", "--role", "auto", "--memory-size", "64MiB"]);
            command.args(["--pause-after", "1", "--reads-per-server", "1"]);
            command.args(["--listen", &format!("127.0.0.1:{port}"), "--data", data.text()]);
            command.args(["--storage", &nodes.addresses()]);
            Process::spawn(command)
        };
        let processes = ports.iter().zip(&data).map(spawn).collect();
        let addresses = nodes.addresses();
        let proxy = cenote(&["proxy", "--listen", "127.0.0.1:0", "--storage", &addresses]);
        Servers {
            proxy: Process::spawn(proxy),
            processes,
            _data: data,
            nodes,
        }
    }

    fn cluster(&self, command: &str) -> (bool, String) {
        output(cenote(&["cluster", command]).args(["--storage", &self.nodes.addresses()]))
    }

    /// Waits until so many servers are paused.
    fn until_paused(&self, count: usize) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let (ok, text) = self.cluster("status");
            if ok && text.matches(" paused ").count() == count {
                return text;
            }
            assert!(Instant::now() < deadline, "{count} servers do not pause: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The value of a line of what was used.
    fn used(&self, what: &str) -> f64 {
        let (ok, text) = self.cluster("usage");
        let line = text.lines().find(|line| line.contains(what));
        let value = line.and_then(|line| line.split(what).nth(1)?.split_whitespace().next()?.parse().ok());
        assert!(ok && value.is_some(), "{what}: {text}");
        value.unwrap()
    }
}

fn count(client: &mut postgres::Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0)
}

/// All servers pause. A client that stays connected to the proxy sees nothing of it: its settings and its prepared
/// statement are there when it goes on. So does a client that connects to a paused server itself. What was used is
/// counted.
#[test]
fn all_servers_pause_and_the_next_statement_resumes_one() {
    let servers = Servers::start(2);
    let mut client = servers.proxy.client();
    client.batch_execute("CREATE TABLE t (n int PRIMARY KEY)").unwrap();
    client.batch_execute("SET TimeZone = 'Asia/Tokyo'").unwrap();
    let insert = client.prepare("INSERT INTO t VALUES ($1)").unwrap();
    for round in 0..2 {
        client.execute(&insert, &[&round]).unwrap();
        let text = servers.until_paused(2);
        assert!(text.contains("the first client that connects resumes it"), "{text}");
        assert_eq!(count(&mut client), i64::from(round) + 1);
        let zone: String = client.query_one("SHOW TimeZone", &[]).unwrap().get(0);
        assert_eq!(zone, "Asia/Tokyo");
    }
    for server in &servers.processes {
        servers.until_paused(2);
        let mut direct = server.client();
        assert_eq!(count(&mut direct), 2);
        // It has the database: no other server is there.
        let answer = direct.batch_execute("INSERT INTO t VALUES (77); DELETE FROM t WHERE n = 77");
        assert!(answer.is_ok(), "{answer:?}");
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(count(&mut direct), 2, "a client that is connected to it keeps it awake");
    }
    servers.until_paused(2);
    assert!(servers.used("servers that had the database") > 0.0);
    assert!(servers.used("paused servers") > 0.0);
    assert!(servers.used("memory of servers, while they served") > 0.0);
}

/// The one server that serves is killed, or stands still: a paused one takes the database, with all that was
/// acknowledged.
#[test]
fn a_paused_server_takes_the_database_of_one_that_is_lost() {
    let mut servers = Servers::start(2);
    let mut client = servers.proxy.client();
    client.batch_execute("CREATE TABLE t (n int PRIMARY KEY)").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = servers.proxy.client();
    let (stopping, begun) = (stop.clone(), Instant::now());
    // Without use for a moment now and then, which is no reason to pause.
    let load = std::thread::spawn(move || {
        let (mut acknowledged, mut errors) = (0, Vec::new());
        for n in 0.. {
            if stopping.load(Ordering::Relaxed) || begun.elapsed() > TIMEOUT {
                break;
            }
            match load.execute("INSERT INTO t VALUES ($1)", &[&n]) {
                Ok(_) => acknowledged += 1,
                Err(error) => errors.push(error.code().map_or(error.to_string(), |code| code.code().into())),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        (acknowledged, errors)
    });
    let text = servers.until_paused(1);
    let has = servers
        .processes
        .iter()
        .position(|process| is_writer(&text, process))
        .unwrap_or_else(|| panic!("none has the database: {text}"));
    servers.processes[has].kill();
    let deadline = Instant::now() + TIMEOUT;
    while !is_writer(&servers.cluster("status").1, &servers.processes[1 - has]) {
        assert!(Instant::now() < deadline, "the other one does not resume");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = count(&mut client);
    while count(&mut client) < before + 20 {
        assert!(Instant::now() < deadline, "nothing is inserted any more");
    }
    stop.store(true, Ordering::Relaxed);
    let (acknowledged, errors) = load.join().unwrap();
    assert!(
        errors.len() <= 1 && errors.iter().all(|code| code == "40003"),
        "{errors:?}"
    );
    let found = count(&mut client);
    assert!(
        (acknowledged..=acknowledged + errors.len() as i64).contains(&found),
        "{found} of {acknowledged}"
    );
}

fn is_writer(status: &str, process: &Process) -> bool {
    let address = format!("127.0.0.1:{}", process.port);
    let line = status.lines().find(|line| line.contains(&address));
    line.is_some_and(|line| line.contains(" writer "))
}

/// Work that stays resumes as many servers as it asks for; when it ends they pause again.
#[test]
fn as_many_servers_serve_as_the_load_asks_for() {
    let servers = Servers::start(3);
    drop(servers.proxy.client());
    servers.until_paused(3);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (mut client, stop) = (servers.proxy.client(), stop.clone());
            std::thread::spawn(move || {
                let begun = Instant::now();
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < TIMEOUT {
                    client.batch_execute("SELECT pg_sleep(0.1)").unwrap();
                }
            })
        })
        .collect();
    let deadline = Instant::now() + TIMEOUT;
    while servers.cluster("status").1.matches("reader, may write").count() < 2 {
        assert!(Instant::now() < deadline, "{}", servers.cluster("status").1);
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    servers.until_paused(3);
    // One that stands still in its pause is not waited for.
    signal(&servers.processes[0], Signal::STOP);
    std::thread::sleep(Duration::from_millis(400));
    let answer: i32 = servers.proxy.client().query_one("SELECT 1", &[]).unwrap().get(0);
    assert_eq!(answer, 1);
    signal(&servers.processes[0], Signal::CONT);
}
