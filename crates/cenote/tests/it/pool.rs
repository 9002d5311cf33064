//! A memory pool as people run it: manager, memory node, databases, operator, each a process of the program.

use crate::program::{Data, Process, cenote, has_fabric, output};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fs::{FileSystem, Owner};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::settings::DEFAULT_TENANT;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that says `ready` and then runs; killed by its id when dropped.
pub struct Daemon {
    child: Child,
    pub ready: String,
}

impl Daemon {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().expect("it says something").unwrap();
        let daemon = Self { child, ready };
        assert!(daemon.ready.starts_with("ready"), "{}", daemon.ready);
        daemon
    }

    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A manager with leases of a second.
pub fn start_manager(directory: &Path, listen: &str) -> Daemon {
    let mut command = cenote(&["manager", "--lease", "1", "--listen", listen, "--dir"]);
    command.arg(directory.join("manager"));
    Daemon::start(command)
}

/// 160 MiB in pod `rack`.
fn start_node(directory: &Path, manager: &str) -> Daemon {
    start_node_in(&directory.join("node"), "rack", manager)
}

fn start_node_in(region: &Path, pod: &str, manager: &str) -> Daemon {
    let arguments = ["memory", "--pod", pod, "--size", "160MiB", "--manager", manager];
    let mut command = cenote(&arguments);
    command.arg("--region").arg(region);
    Daemon::start(command)
}

pub struct Pool {
    directory: tempfile::TempDir,
    manager: Daemon,
    pub address: String,
    pub node: Daemon,
}

impl Pool {
    pub fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let manager = start_manager(directory.path(), "127.0.0.1:0");
        let address = manager.ready.rsplit(' ').next().unwrap().to_string();
        let node = start_node(directory.path(), &address);
        Self {
            directory,
            manager,
            address,
            node,
        }
    }

    /// Another node, with 160 MiB in a pod of its own.
    pub fn second_node(&self) -> Daemon {
        start_node_in(&self.directory.path().join("other"), "attic", &self.address)
    }

    /// Forgets the node that is gone.
    pub fn forget_lost(&self) {
        let gone = self.until("GONE");
        let number = gone.lines().find(|line| line.contains("GONE")).unwrap();
        let (ok, text) = self.ask(&["forget", number.split_whitespace().next().unwrap()]);
        assert!(ok, "{text}");
    }

    fn server(&self, data: &Data) -> Process {
        Process::spawn(self.run(data))
    }

    fn run(&self, data: &Data) -> Command {
        let listen = ["--memory-size", "64MiB", "--listen", "127.0.0.1:0"];
        let mut command = cenote(&["run", "--memory", "pool", "--manager", &self.address]);
        command.args(listen).args(["--data", data.text()]);
        command
    }

    pub fn ask(&self, what: &[&str]) -> (bool, String) {
        let mut command = cenote(&["pool"]);
        command.args(what).args(["--manager", &self.address]);
        output(&mut command)
    }

    pub fn until(&self, wanted: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let (ok, text) = self.ask(&["status"]);
            assert!(ok && Instant::now() < deadline, "{wanted} in {text}");
            if text.contains(wanted) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Two databases share a pod's memory; one is killed and finds its memory again; the pool is full for a third; what is
/// freed is free.
#[test]
fn databases_live_in_a_pool() {
    let pool = Pool::new();
    let (one, other, third) = (Data::new(), Data::new(), Data::new());
    let mut server = pool.server(&one);
    let mut neighbour = pool.server(&other);
    for server in [&server, &neighbour] {
        let said = server.said.join("\n");
        assert!(said.contains("granted by the memory pool"), "{said}");
        let mut client = server.client();
        let fill = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)";
        client.batch_execute(fill).unwrap();
    }
    let (ok, text) = output(&mut pool.run(&third));
    assert!(
        !ok && text.contains("no memory node") && text.contains("64MiB"),
        "{text}"
    );

    server.kill();
    let server = pool.server(&one);
    let said = server.said.join("\n");
    assert!(said.contains("recovery   instant"), "{said}");
    let rows = server.client().query("SELECT id FROM t", &[]).unwrap();
    assert_eq!(rows.len(), 2);
    let (ok, text) = pool.ask(&["audit"]);
    assert!(
        ok && text.contains("128MiB in 2 grants") && text.contains("0 problems"),
        "{text}"
    );

    assert!(neighbour.stop().success());
    let text = pool.until("idle");
    assert!(text.contains("held") && text.contains("32MiB"), "{text}");
    let grant = text.lines().find(|line| line.contains("idle")).unwrap();
    let grant = grant.split_whitespace().next().unwrap();
    let (ok, text) = pool.ask(&["free", grant]);
    assert!(ok, "{text}");
    let server = pool.server(&third);
    drop(server);
}

/// The manager and the memory node are killed and started again under a database, which goes on.
#[test]
fn the_pool_may_be_killed_under_a_database() {
    let mut pool = Pool::new();
    let data = Data::new();
    let server = pool.server(&data);
    let mut client = server.client();
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pool.manager.kill();
    pool.node.kill();
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    client.batch_execute("INSERT INTO t VALUES (2)").unwrap();
    pool.manager = start_manager(pool.directory.path(), &pool.address);
    pool.node = start_node(pool.directory.path(), &pool.address);
    std::thread::sleep(Duration::from_millis(1500));
    client.batch_execute("INSERT INTO t VALUES (3)").unwrap();
    let text = pool.until("held");
    assert!(text.contains("there"), "{text}");
}

/// A mirrored database: a node is lost with all of its memory, and the next start finds what was there on the other:
/// all that was acknowledged, warm. It has a mirror again when there is another node.
#[test]
fn a_mirrored_database_outlives_its_memory() {
    let mut pool = Pool::new();
    let data = Data::new();
    let (ok, text) = output(pool.run(&data).arg("--mirror"));
    assert!(!ok && text.contains("of the 0 others"), "{text}");
    let other = pool.directory.path().join("other");
    let mut second = pool.second_node();

    let mut server = Process::spawn({
        let mut command = pool.run(&data);
        command.arg("--mirror");
        command
    });
    let said = server.said.join("\n");
    assert!(
        said.contains("survives a lost host") && said.contains("mirrored"),
        "{said}"
    );
    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        .unwrap();
    let mut rows = 0;
    let mut fill = |client: &mut postgres::Client, count: i32| {
        for _ in 0..count {
            client
                .execute("INSERT INTO t VALUES ($1, repeat('x', 500))", &[&rows])
                .unwrap();
            rows += 1;
        }
        rows
    };
    fill(&mut client, 300);
    let text = pool.until(", whole");
    assert!(text.contains("mirror of"), "{text}");
    let count = fill(&mut client, 300);
    let (ok, text) = pool.ask(&["audit"]);
    assert!(ok && text.contains("0 problems"), "{text}");

    let held = pool.until("held");
    let pod = held.lines().find(|line| line.contains("held")).unwrap();
    let is_first = pod.split_whitespace().nth(3) == Some("rack");
    let (node, region) = match is_first {
        true => (&mut pool.node, pool.directory.path().join("node")),
        false => (&mut second, other.clone()),
    };
    server.kill();
    node.kill();
    std::fs::remove_dir_all(&region).unwrap();
    pool.forget_lost();

    let server = Process::spawn({
        let mut command = pool.run(&data);
        command.arg("--mirror");
        command
    });
    let said = server.said.join("\n");
    assert!(said.contains("recovery   instant"), "{said}");
    let mut client = server.client();
    let row = client.query_one("SELECT count(*), sum(length(v)) FROM t", &[]).unwrap();
    let (found, bytes): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!((found, bytes), (i64::from(count), i64::from(count) * 500));
    let _third = start_node_in(&region, "cellar", &pool.address);
    let text = pool.until(", whole");
    assert!(text.contains("cellar"), "{text}");
    fill(&mut client, 10);
}

/// What a tier has given and taken: hits, bytes read.
fn tier(client: &mut postgres::Client, tier: &str) -> (i64, i64) {
    let found = "SELECT hits, bytes_read FROM cenote_memory WHERE tier = $1";
    let row = client.query_one(found, &[&tier]).unwrap();
    (row.get(0), row.get(1))
}

/// All rows of table t, and the length of their texts.
fn whole(client: &mut postgres::Client) -> (i64, i64) {
    let row = client.query_one("SELECT count(*), sum(length(v)) FROM t", &[]).unwrap();
    (row.get(0), row.get(1))
}

/// By key: a scan that passes by takes no place in remote memory.
fn look(client: &mut postgres::Client) {
    let statement = client.prepare("SELECT length(v) FROM t WHERE id = $1").unwrap();
    for id in (0..40_000).step_by(20) {
        assert_eq!(client.query_one(&statement, &[&id]).unwrap().get::<_, i32>(0), 500);
    }
}

/// A database whose pages lie in the pool's memory, reached over the fabric: more than it has memory of its own. It is
/// killed, and finds them; its memory node is killed under it, and it goes on, and uses the next one.
#[test]
fn a_tiered_database_keeps_its_pages_in_the_pool() {
    if !has_fabric() {
        return;
    }
    let mut pool = Pool::new();
    let (data, address) = (Data::new(), pool.address.clone());
    let run = || {
        let sizes = [
            "--memory-size",
            "96MiB",
            "--local-memory-size",
            "16MiB",
            "--listen",
            "127.0.0.1:0",
        ];
        let mut command = cenote(&["run", "--memory", "tiered", "--manager", &address]);
        command.args(sizes).args(["--data", data.text()]);
        command
    };
    let mut server = Process::spawn(run());
    let said = server.said.join("\n");
    assert!(said.contains("16MiB of private memory in front of 96MiB"), "{said}");
    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        .unwrap();
    let fill = "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series($1::int, $1 + 9999) AS s(i)";
    (0..4).for_each(|n| _ = client.execute(fill, &[&(n * 10_000)]).unwrap());
    assert_eq!(whole(&mut client), (40_000, 40_000 * 500));
    look(&mut client);
    let before = tier(&mut client, "rdma");
    look(&mut client);
    let after = tier(&mut client, "rdma");
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    let text = pool.until("over the fabric, held");
    assert!(text.contains("rack"), "{text}");
    // One that does not get the data directory takes no memory from the one that has it.
    let (ok, text) = output(&mut run());
    assert!(!ok, "{text}");
    look(&mut client);
    let still = tier(&mut client, "rdma");
    assert!(still.0 > after.0, "{after:?} {still:?}");

    server.kill();
    let server = Process::spawn(run());
    let mut client = server.client();
    look(&mut client);
    let warm = tier(&mut client, "rdma");
    assert!(warm.0 > 0, "pages were there: {warm:?}");
    assert_eq!(whole(&mut client), (40_000, 40_000 * 500));

    pool.node.kill();
    look(&mut client);
    client.execute(fill, &[&40_000]).unwrap();
    pool.node = start_node(pool.directory.path(), &pool.address);
    let deadline = Instant::now() + Duration::from_secs(60);
    let lost = tier(&mut client, "rdma");
    loop {
        look(&mut client);
        if tier(&mut client, "rdma").0 > lost.0 {
            break;
        }
        assert!(Instant::now() < deadline, "remote memory is not used again");
    }
    assert_eq!(whole(&mut client), (50_000, 50_000 * 500));
    let (ok, text) = pool.ask(&["audit"]);
    assert!(ok && text.contains("0 problems"), "{text}");
}

/// Slabs that the server has, and those on nodes that are reached.
fn slabs(client: &mut postgres::Client) -> (i64, i64) {
    let found = "SELECT (SELECT slabs FROM cenote_scaling), \
                 (SELECT count(*) FROM cenote_remote_memory WHERE part <> 'first' AND state = 'serving')";
    let row = client.query_one(found, &[]).unwrap();
    (row.get(0), row.get(1))
}

fn until_slabs(client: &mut postgres::Client, is_so: impl Fn(i64) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (wanted, serving) = slabs(client);
        if is_so(wanted) && wanted == serving {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted} slabs, {serving} serving");
        look(client);
    }
}

/// Remote memory that grows by need and by hand, over two memory nodes; the server is killed, and goes on with its
/// slabs; a node with slabs is killed, and costs those; it shrinks, and the pool has the memory again.
#[test]
fn remote_memory_grows_over_memory_nodes() {
    if !has_fabric() {
        return;
    }
    let pool = Pool::new();
    let mut second = start_node_in(&pool.directory.path().join("second"), "rack", &pool.address);
    let data = Data::new();
    let run = || {
        let mut command = cenote(&["run", "--memory", "tiered", "--manager", &pool.address]);
        command.args([
            "--memory-size",
            "16MiB",
            "--memory-max",
            "80MiB",
            "--memory-slab",
            "16MiB",
        ]);
        command.args(["--memory-worth", "1", "--local-memory-size", "16MiB"]);
        command.args(["--listen", "127.0.0.1:0", "--data", data.text()]);
        command
    };
    let mut server = Process::spawn(run());
    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        .unwrap();
    let fill = "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series($1::int, $1 + 9999) AS s(i)";
    (0..8).for_each(|n| _ = client.execute(fill, &[&(n * 10_000)]).unwrap());
    assert_eq!(whole(&mut client), (80_000, 80_000 * 500));
    until_slabs(&mut client, |slabs| slabs >= 1);
    client.batch_execute("CENOTE MEMORY '80MiB'").unwrap();
    until_slabs(&mut client, |slabs| slabs == 4);
    let nodes = "SELECT count(DISTINCT node) FROM cenote_remote_memory";
    assert_eq!(
        client.query_one(nodes, &[]).unwrap().get::<_, i64>(0),
        2,
        "where most is free"
    );
    let refused = client.batch_execute("CENOTE MEMORY '1GiB'").unwrap_err();
    assert_eq!(
        refused.code().map(postgres::error::SqlState::code),
        Some("22023"),
        "{refused}"
    );

    server.kill();
    let server = Process::spawn(run());
    let mut client = server.client();
    assert_eq!(slabs(&mut client), (4, 4), "a start goes on with them");
    look(&mut client);
    let warm = tier(&mut client, "rdma");
    assert!(warm.0 > 0, "pages were there: {warm:?}");

    client.batch_execute("CENOTE MEMORY '80MiB'").unwrap();
    second.kill();
    look(&mut client);
    client.execute(fill, &[&80_000]).unwrap();
    assert_eq!(whole(&mut client), (90_000, 90_000 * 500));
    let _again = start_node_in(&pool.directory.path().join("second"), "rack", &pool.address);
    until_slabs(&mut client, |slabs| slabs == 4);
    assert_eq!(whole(&mut client), (90_000, 90_000 * 500));

    client.batch_execute("CENOTE MEMORY '16MiB'").unwrap();
    until_slabs(&mut client, |slabs| slabs == 0);
    let (ok, text) = pool.ask(&["status"]);
    assert!(ok && !text.contains("-slab-"), "{text}");
    assert_eq!(whole(&mut client), (90_000, 90_000 * 500));
    let (ok, text) = pool.ask(&["audit"]);
    assert!(ok && text.contains("0 problems"), "{text}");
}

/// A tenant's spaces, from the first to the last word about them; the nodes and the manager come and go between.
#[test]
fn spaces_are_made_grown_and_dropped() {
    let mut pool = Pool::new();
    let (ok, text) = pool.ask(&["space", "create", "heap", "--size", "32MiB", "--pods", "rack"]);
    assert!(
        ok && text.contains("heap") && text.contains("32MiB in rack") && text.contains("ready"),
        "{text}"
    );
    let (ok, text) = pool.ask(&["space", "grow", "heap", "--size", "8MiB"]);
    assert!(
        ok && text.contains("40MiB") && text.contains("2: 8MiB in rack"),
        "{text}"
    );
    pool.manager.kill();
    pool.node.kill();
    pool.manager = start_manager(pool.directory.path(), &pool.address);
    pool.node = start_node(pool.directory.path(), &pool.address);
    let text = pool.until("there");
    assert!(text.contains("kept") && text.contains("heap/2"), "{text}");
    let (ok, text) = pool.ask(&["space", "list"]);
    assert!(ok && text.contains("40MiB") && !text.contains("GONE"), "{text}");
    for audit in [&["audit"][..], &["space", "audit", "heap"]] {
        let (ok, text) = pool.ask(audit);
        assert!(ok && text.contains("0 problems"), "{text}");
    }
    let says = |arguments: &[&str], what: &str| {
        let (ok, text) = pool.ask(arguments);
        assert!(!ok && text.contains(what), "{arguments:?}: {text}");
    };
    says(
        &["space", "create", "heap", "--size", "4MiB"],
        "a space \"heap\" already",
    );
    says(&["space", "create", "big", "--size", "1GiB"], "120MiB free");
    says(
        &["space", "create", "far", "--size", "4MiB", "--pods", "rack,moon"],
        "pod moon",
    );
    says(&["space", "drop", "none"], "no space \"none\"");
    says(&["space", "audit", "none"], "no space \"none\"");
    says(&["space", "list", "--tenant", "x"], "no tenant \"x\"");
    let (ok, text) = pool.ask(&["space", "drop", "heap"]);
    assert!(ok && text.contains("being dropped"), "{text}");
    let text = pool.until("0B");
    assert!(!text.contains("heap") || text.contains("being dropped"), "{text}");
}

/// The node's part is broken on purpose: both audits say so, and end with an error.
#[test]
fn a_broken_part_is_found_by_the_audit() {
    let pool = Pool::new();
    let (ok, text) = pool.ask(&["space", "create", "heap", "--size", "8MiB"]);
    assert!(ok, "{text}");
    let grant = pool.directory.path().join("node/grant-1");
    // The state of slot 1: no state that there is.
    let file = std::fs::OpenOptions::new().write(true).open(grant).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], 8192 + 64).unwrap();
    for audit in [&["audit"][..], &["space", "audit", "heap"]] {
        let (ok, text) = pool.ask(audit);
        assert!(!ok && text.contains("slot 1") && text.contains("1 problems"), "{text}");
    }
}

/// A file system that is mounted nowhere, of which this process has the space open.
#[test]
fn a_file_system_in_a_space_is_checked() {
    const ME: Owner = Owner { user: 0, group: 0 };
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    // This process is a member: it is ended if it says nothing for a lease.
    let mut manager = cenote(&["manager", "--lease", "60", "--listen", "127.0.0.1:0", "--dir"]);
    manager.arg(directory.path().join("manager"));
    let manager = Daemon::start(manager);
    let address = manager.ready.rsplit(' ').next().unwrap();
    let _node = start_node(directory.path(), address);
    let check = |options: &[&str]| {
        let mut command = cenote(&["fs", "check", "--space", "files", "--manager", address]);
        output(command.args(options))
    };
    let (ok, text) = check(&[]);
    assert!(!ok && text.contains("no space \"files\""), "{text}");

    let credentials = Credentials {
        manager: address.into(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    };
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let pool = PoolClient::connect(&network, &credentials, ClientOptions::default()).unwrap();
    pool.create_space("files", 64 << 20, None).unwrap();
    let (ok, text) = check(&[]);
    assert!(!ok && text.contains("no file system"), "{text}");
    let space = pool.open_space("files").unwrap();
    let files = FileSystem::make(&space, ME).unwrap();
    let greeting = files.create(files.root(), b"greeting", 0o644, ME).unwrap();
    let (ok, text) = check(&["--free"]);
    assert!(
        ok && text.contains("1 directories, 1 files") && text.contains("no problems"),
        "{text}"
    );
    drop(files);
    space.session().alloc(100).unwrap();
    let (ok, text) = check(&["--free"]);
    assert!(ok && text.contains("freed 1 objects"), "{text}");
    space.free(greeting.inode.address).unwrap();
    let (ok, text) = check(&[]);
    assert!(!ok && text.contains("problem: \"greeting\" in directory 1"), "{text}");
    let (ok, text) = output(&mut cenote(&["fs", "check"]));
    assert!(!ok && text.contains("--region"), "{text}");
}

#[test]
fn what_cannot_be_is_said() {
    let pool = Pool::new();
    let data = Data::new();
    let says = |arguments: &[&str], what: &str| {
        let (ok, text) = output(&mut cenote(arguments));
        assert!(!ok && text.contains(what), "{arguments:?}: {text}");
    };
    let dir = pool.directory.path().join("other");
    let dir = dir.to_str().unwrap();
    says(&["manager", "--dir", dir, "--listen", "0.0.0.0:0"], "--tenants");
    says(&["manager", "--dir", dir, "--lease", "0"], "0.5 to 3600");
    says(
        &["manager", "--dir", dir, "--connections", "0"],
        "0 connections: give 1",
    );
    says(
        &[
            "memory",
            "--pod",
            "a",
            "--size",
            "1MiB",
            "--region",
            dir,
            "--threads",
            "5000",
        ],
        "5000 threads: give 0",
    );
    says(&["run", "--memory", "pool", "--data", data.text()], "--manager");
    says(
        &["run", "--manager", &pool.address, "--data", data.text()],
        "--memory pool",
    );
    says(
        &["memory", "--pod", "a", "--size", "1MiB", "--region", "/dev/null"],
        "no directory",
    );
    says(
        &[
            "memory",
            "--pod",
            "a",
            "--size",
            "1MiB",
            "--region",
            dir,
            "--listen",
            "0.0.0.0:0",
        ],
        "can reach",
    );
    says(&["pool", "free", "99", "--manager", &pool.address], "no grant 99");
    says(&["pool", "forget", "xyz", "--manager", &pool.address], "no number");
    says(&["pool", "status", "--manager", "127.0.0.1:1"], "127.0.0.1:1");
    let mut command = pool.run(&data);
    command.args(["--pod", "moon"]);
    let (ok, text) = output(&mut command);
    assert!(!ok && text.contains("pod moon"), "{text}");
}
