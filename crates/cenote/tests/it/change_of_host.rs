//! A database in the memory of a device that two hosts share: its host is lost, or it stands still there, and it goes
//! on on the other. Each host has namespaces of its own; the device, the data directory and the clients' sockets are
//! files that all reach.

use crate::program::{Process, cenote, output};
use cenote_testkit::hosts::{Host, Hosts, child_of};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const NAMES: [&str; 2] = ["a", "b"];
const PORT: u16 = 5440;
const TIMEOUT: Duration = Duration::from_secs(180);

/// A pod of two hosts, with a manager on the hub.
struct Rack {
    hosts: Hosts,
    dir: tempfile::TempDir,
    /// They end with their hosts, or when dropped.
    daemons: Vec<Process>,
}

impl Rack {
    /// `None` where hosts cannot be made.
    fn new() -> Option<Self> {
        let hosts = Hosts::new(2)?;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let tenants = "secret = \"pool\"\n[[tenant]]\nname = \"orders\"\nsecret = \"mine\"\nquota = \"1GiB\"\n";
        write("tenants", tenants);
        write("pool-secret", "pool\n");
        write("secret", "mine\n");
        let mut rack = Self {
            hosts,
            dir,
            daemons: Vec::new(),
        };
        let mut manager = cenote(&[
            "manager",
            "--lease",
            "1",
            "--listen",
            &format!("0.0.0.0:{PORT}"),
            "--dir",
        ]);
        manager.arg(rack.path("manager"));
        manager.arg("--tenants").arg(rack.path("tenants"));
        let manager = Process::daemon(on(rack.hosts.hub(), &manager)).expect("a manager");
        rack.daemons.push(manager);
        (0..2).for_each(|number| rack.start_agent(number));
        Some(rack)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn manager_of(&self, number: usize) -> String {
        format!("{}:{PORT}", self.hosts.hub_address(number))
    }

    fn start_agent(&mut self, number: usize) {
        let manager = self.manager_of(number);
        let mut agent = cenote(&["host", "--pod", "rack", "--name", NAMES[number], "--manager", &manager]);
        agent.args(["--size", "192MiB"]);
        agent.arg("--device").arg(self.path("device"));
        agent.arg("--secret-file").arg(self.path("pool-secret"));
        let agent = Process::daemon(on(self.hosts.host(number), &agent)).expect("an agent");
        self.daemons.push(agent);
    }

    fn run(&self, number: usize, survive: &str) -> Command {
        let (manager, socket) = (self.manager_of(number), self.path(&format!("socket-{number}")));
        std::fs::create_dir_all(&socket).unwrap();
        let mut run = cenote(&[
            "run",
            "--memory",
            "pool",
            "--memory-size",
            "64MiB",
            "--survive",
            survive,
        ]);
        run.args(["--manager", &manager, "--host", NAMES[number], "--tenant", "orders"]);
        run.args(["--listen", "127.0.0.1:5433", "--data"])
            .arg(self.path("data"));
        run.arg("--socket-dir").arg(socket);
        run.arg("--tenant-secret-file").arg(self.path("secret"));
        on(self.hosts.host(number), &run)
    }

    fn client(&self, number: usize) -> postgres::Client {
        let mut config = postgres::Config::new();
        config.host_path(self.path(&format!("socket-{number}")));
        config.port(5433).user("tester").dbname("cenote");
        config.connect(postgres::NoTls).unwrap()
    }

    /// The operator's word, as soon as the manager does not hear the host's agent any more.
    fn declare_lost(&self, host: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.try_operate(&["host-lost", host]) {
                (true, _) => return,
                (false, text) => assert!(text.contains("is connected") && Instant::now() < deadline, "{text}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// An operator's command, on the hub.
    fn operate(&self, what: &[&str]) -> String {
        let (ok, text) = self.try_operate(what);
        assert!(ok, "{what:?}: {text}");
        text
    }

    fn try_operate(&self, what: &[&str]) -> (bool, String) {
        let mut command = cenote(&["pool"]);
        command.args(what).args(["--manager", &format!("127.0.0.1:{PORT}")]);
        command.arg("--secret-file").arg(self.path("pool-secret"));
        output(&mut on(self.hosts.hub(), &command))
    }
}

/// The same command, on a host.
fn on(host: &Host, command: &Command) -> Command {
    let prefix = host.prefix();
    let mut there = Command::new(&prefix[0]);
    there
        .args(&prefix[1..])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CENOTE_")) {
        there.env_remove(name);
    }
    there
}

/// Inserts numbers until there are as many; each is acknowledged.
fn fill(client: &mut postgres::Client, from: i32, to: i32) {
    for number in from..to {
        let insert = "INSERT INTO t VALUES ($1, repeat('x', 400))";
        client.execute(insert, &[&number]).unwrap();
    }
}

fn count(client: &mut postgres::Client) -> i64 {
    client
        .query_one("SELECT count(*) FROM t WHERE length(v) = 400", &[])
        .unwrap()
        .get(0)
}

fn said(server: &Process) -> String {
    server.said.join("\n")
}

/// Host a is lost with all of its processes, while a client commits. On host b everything acknowledged is there: in the
/// memory where it was under `host`, out of the log under `process`.
fn lose_a_host(survive: &str, recovery: &str) {
    let Some(mut rack) = Rack::new() else { return };
    let mut first = started(&rack, 0, survive);
    let mut client = rack.client(0);
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY, v text)")
        .unwrap();
    fill(&mut client, 0, 500);
    rack.hosts.lose(0);
    first.kill();
    // The kernel ends a host's processes one after the other: on a busy machine the server may answer for a moment.
    let answers = (1..1000).take_while(|n: &i32| client.execute("INSERT INTO t VALUES ($1, '')", &[&-n]).is_ok());
    assert!(answers.count() < 999, "the server ends with its host");
    rack.declare_lost(NAMES[0]);

    let next = started(&rack, 1, survive);
    assert!(
        said(&next).contains(&format!("recovery   {recovery}")),
        "{}",
        said(&next)
    );
    let mut client = rack.client(1);
    assert_eq!(count(&mut client), 500);
    fill(&mut client, 500, 600);

    // Back again, in another life of host a, which is stopped in order this time: under either setting it is warm.
    drop(client);
    send(&next, Signal::KILL);
    rack.hosts.restart(0);
    rack.start_agent(0);
    let mut back = started(&rack, 0, survive);
    let mut client = rack.client(0);
    assert_eq!(count(&mut client), 600);
    drop(client);
    end_in_order(&mut back);
    let last = started(&rack, 1, survive);
    assert!(said(&last).contains("recovery   clean"), "{}", said(&last));
    assert_eq!(count(&mut rack.client(1)), 600);
    let audit = rack.operate(&["audit"]);
    assert!(audit.contains("0 problems"), "{audit}");
}

/// Starts it as soon as the pool has had it confirmed that the former instance is over.
fn started(rack: &Rack, number: usize, survive: &str) -> Process {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Process::daemon(rack.run(number, survive)) {
            Some(server) => return server,
            None => assert!(Instant::now() < deadline, "the memory does not become free"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// SIGTERM to the server that `nsenter` has started on its host.
fn end_in_order(server: &mut Process) {
    send(server, Signal::TERM);
    server.child.wait().unwrap();
}

fn send(server: &Process, signal: Signal) {
    let inner = child_of(server.id()).expect("nsenter has started it");
    let pid = Pid::from_raw(inner as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn what_survives_its_host_is_warm_on_another() {
    lose_a_host("host", "instant");
}

#[test]
fn what_survives_a_process_alone_is_recovered_from_the_log_on_another() {
    lose_a_host("process", "log");
}

/// The database stands still on host a, and host a lives: its agent ends it when its lease is over, and host b has the
/// memory then.
#[test]
fn a_database_that_stands_still_is_ended_before_another_host_goes_on() {
    let Some(rack) = Rack::new() else { return };
    let first = started(&rack, 0, "host");
    let mut client = rack.client(0);
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY, v text)")
        .unwrap();
    fill(&mut client, 0, 200);
    send(&first, Signal::STOP);
    let next = started(&rack, 1, "host");
    assert!(said(&next).contains("recovery   instant"), "{}", said(&next));
    assert_eq!(count(&mut rack.client(1)), 200);
    assert!(client.execute("INSERT INTO t VALUES (-1, '')", &[]).is_err());
}
