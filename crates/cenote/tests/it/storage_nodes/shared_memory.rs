//! A cluster whose servers share the memory of memory nodes, reached over the fabric: `cenote up --memory-nodes`.

use crate::program::{cenote, has_fabric, output};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);
const ROWS: i64 = 40_000;
/// Pages, of some 900 that a server has in frames.
const REGISTERED: i64 = 600;

struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn up(&self) -> String {
        self.up_with(&["--memory-nodes", "1", "--shared-memory", "96MiB"])
    }

    fn up_with(&self, memory: &[&str]) -> String {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
            .to_string();
        let mut command = cenote(&["up", "--detach", "--readers", "1"]);
        if !memory.contains(&"--memory-size") {
            command.args(["--memory-size", "16MiB"]);
        }
        command.args(memory).args(["--port", &port]);
        let (ok, text) = output(command.arg("--dir").arg(self.dir.path()));
        assert!(ok, "{text}");
        text
    }

    fn down(&self, more: &[&str]) -> String {
        output(cenote(&["down", "--dir"]).arg(self.dir.path()).args(more)).1
    }

    fn pid(&self, name: &str) -> i32 {
        let text = std::fs::read_to_string(self.dir.path().join("processes")).unwrap();
        let line = text.lines().find(|line| line.ends_with(&format!(" {name}")));
        line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap()
    }

    fn kill(&self, name: &str) {
        self.signal(name, Signal::KILL);
    }

    fn signal(&self, name: &str, signal: Signal) {
        kill_process(Pid::from_raw(self.pid(name)).unwrap(), signal).unwrap();
    }

    fn plan(&self) -> toml::Table {
        let plan = std::fs::read_to_string(self.dir.path().join("cluster.toml")).unwrap();
        plan.parse().unwrap()
    }

    /// The memory node on which a grant lies, by its number from 1 on, and the grant's file.
    fn node_with(&self, grant: &str) -> Option<(usize, PathBuf)> {
        let plan = self.plan();
        let paths = plan["shared"]["memory"].as_array().unwrap().iter();
        let files = paths.map(|path| Path::new(path.as_str().unwrap()).join(grant));
        (1..).zip(files).find(|(_, file)| file.exists())
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// A client of a server, by its number from 1 on.
    fn server(&self, n: usize) -> Option<postgres::Client> {
        let port = self.plan()["servers"].as_array().unwrap()[n - 1].as_integer().unwrap();
        let mut config = postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(port as u16)
            .user("tester")
            .dbname("cenote");
        config.connect_timeout(Duration::from_secs(2));
        config.connect(postgres::NoTls).ok()
    }

    /// The server with this standing, once there is one: `true`: a reader.
    fn server_that(&self, reads: bool) -> (usize, postgres::Client) {
        until("a server of that role", || {
            (1..=2).find_map(|n| {
                let mut client = self.server(n)?;
                let row = client.query_one("SELECT pg_is_in_recovery()", &[]).ok()?;
                (row.get::<_, bool>(0) == reads).then_some((n, client))
            })
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.down(&["--remove"]);
    }
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Pages that a server had from the shared memory.
fn hits(client: &mut postgres::Client) -> i64 {
    let found = "SELECT hits FROM cenote_memory WHERE tier = 'rdma'";
    client.query_one(found, &[]).unwrap().get(0)
}

/// Pages that a reader had from the frames of the writer.
fn hits_in_pod(client: &mut postgres::Client) -> i64 {
    let found = "SELECT hits FROM cenote_memory WHERE tier = 'pod' AND bytes > 0";
    client.query_opt(found, &[]).unwrap().map_or(0, |row| row.get(0))
}

/// Pages that the shared memory has, as a server knows.
fn copies(client: &mut postgres::Client) -> i64 {
    let found = "SELECT frames_in_use FROM cenote_memory WHERE tier = 'rdma'";
    client.query_one(found, &[]).unwrap().get(0)
}

/// Makes the table, and reads it.
fn fill(writer: &mut postgres::Client) {
    let table = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, v text)";
    writer.batch_execute(table).unwrap();
    let rows = "INSERT INTO t SELECT i, 0, repeat('x', 500) FROM generate_series(0, $1::int - 1) AS s(i)";
    writer.execute(rows, &[&(ROWS as i32)]).unwrap();
    look(writer);
}

/// By key, more pages than a server has room for.
fn look(client: &mut postgres::Client) {
    let statement = client.prepare("SELECT length(v) FROM t WHERE id = $1").unwrap();
    for id in (0..ROWS as i32).step_by(20) {
        assert_eq!(client.query_one(&statement, &[&id]).unwrap().get::<_, i32>(0), 500);
    }
}

/// Pages that the writer has put there are a reader's, and never older than what it may show. A reader that takes the
/// database goes on with them; a memory node that is killed costs warmth alone.
#[test]
fn servers_share_the_memory_of_memory_nodes() {
    if !has_fabric() {
        return;
    }
    let cluster = Cluster {
        dir: tempfile::tempdir().unwrap(),
    };
    let text = cluster.up();
    assert!(text.contains("1 memory nodes with 96MiB that they share"), "{text}");
    let (has, mut writer) = cluster.server_that(false);
    until("the server has the shared memory", || {
        let found = "SELECT bytes FROM cenote_memory WHERE tier = 'rdma'";
        let bytes: i64 = writer.query_one(found, &[]).unwrap().get(0);
        (bytes > 0).then_some(())
    });
    fill(&mut writer);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    until("the reader has pages from the shared memory", || {
        look(&mut reader);
        (hits(&mut reader) > 100).then_some(())
    });
    changes_are_seen(&mut writer, &mut reader);

    cluster.kill(&format!("server-{has}"));
    let (now, mut writer) = cluster.server_that(false);
    assert_ne!(now, has);
    let said = cluster.log(&format!("server-{now}"));
    let kept = said
        .lines()
        .find(|line| line.contains("pages in remote memory are used"));
    let is_kept = kept.is_some_and(|kept| !kept.contains(" 0 pages in remote memory"));
    // A machine that stands still for seconds has it begin without.
    assert!(is_kept || said.contains("there was no way there within"), "{said}");
    look(&mut writer);
    assert!(hits(&mut writer) > 0);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    changes_are_seen(&mut writer, &mut reader);

    cluster.kill("memory-1");
    changes_are_seen(&mut writer, &mut reader);
    until("the shared memory is used again", || {
        look(&mut writer);
        let before = hits(&mut reader);
        look(&mut reader);
        (hits(&mut reader) > before + 100).then_some(())
    });
    changes_are_seen(&mut writer, &mut reader);

    // Empty once more: what the writer has in frames comes there by itself, and the rest for the reader alone.
    cluster.kill("memory-1");
    let mut id = 0;
    until("the writer notices", || {
        id = (id + 397) % ROWS as i32;
        writer.execute("UPDATE t SET n = n + 1 WHERE id = $1", &[&id]).unwrap();
        (copies(&mut writer) < REGISTERED).then_some(())
    });
    until("pages of the writer's frames are registered again", || {
        (copies(&mut writer) >= REGISTERED).then_some(())
    });
    until("the shared memory has what only the reader asks for", || {
        let before = hits(&mut reader);
        look(&mut reader);
        (hits(&mut reader) > before + 500).then_some(())
    });
    changes_are_seen(&mut writer, &mut reader);
    let text = cluster.down(&[]);
    assert!(text.contains("its shared memory is kept"), "{text}");
}

/// A cluster whose writer, by its number, has slabs on two nodes, and whose reader reads pages there.
fn with_slabs() -> (Cluster, usize, postgres::Client, postgres::Client) {
    let cluster = Cluster {
        dir: tempfile::tempdir().unwrap(),
    };
    let sizes = ["--shared-memory", "16MiB", "--memory-max", "80MiB"];
    cluster.up_with(&[&["--memory-nodes", "2"], &sizes[..]].concat());
    let (has, mut writer) = cluster.server_that(false);
    until("the server has the shared memory", || {
        writer.batch_execute("CENOTE MEMORY '80MiB'").ok()?;
        (slabs(&mut writer) == 4).then_some(())
    });
    fill(&mut writer);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    until("the reader has pages from slabs", || {
        look(&mut reader);
        (hits(&mut reader) > 100 && slabs(&mut reader) > 0).then_some(())
    });
    (cluster, has, writer, reader)
}

/// The writer's slabs lie on two nodes: the reader reads pages there, and goes on with all of them when it takes the
/// database; what lies on a node that is killed is read from storage nodes, and never old.
#[test]
fn servers_share_slabs_of_several_nodes() {
    if !has_fabric() {
        return;
    }
    let (cluster, has, mut writer, mut reader) = with_slabs();
    changes_are_seen(&mut writer, &mut reader);

    cluster.kill(&format!("server-{has}"));
    let (now, mut writer) = cluster.server_that(false);
    assert_ne!(now, has);
    until("the next server has all slabs", || {
        (slabs(&mut writer) == 4).then_some(())
    });
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    changes_are_seen(&mut writer, &mut reader);
    writer.batch_execute("CENOTE MEMORY '48MiB'").unwrap();
    until("it shrinks", || {
        changes_are_seen(&mut writer, &mut reader);
        (slabs(&mut writer) == 2).then_some(())
    });
    cluster.kill("memory-2");
    changes_are_seen(&mut writer, &mut reader);
    look(&mut writer);
    changes_are_seen(&mut writer, &mut reader);
}

/// The node of the first part stands still, for as long as it takes: the server writes the directory anew on the other
/// node, and pages of slabs there are used on, never old ones. What lies on the former node goes when that runs again.
#[test]
fn a_first_part_moves_from_a_lost_node() {
    if !has_fabric() {
        return;
    }
    let (cluster, has, mut writer, mut reader) = with_slabs();

    let (node, file) = cluster.node_with("grant-1").expect("the first part is the first grant");
    let memory = format!("memory-{node}");
    cluster.signal(&memory, Signal::STOP);
    let kept = until("the memory is in use again", || {
        changes_are_seen(&mut writer, &mut reader);
        let said = cluster.log(&format!("server-{has}"));
        let again = said
            .lines()
            .find(|line| line.contains("remote memory is in use again"))?;
        let kept = again.split("with ").nth(1)?.split(' ').next()?.parse().ok();
        Some(kept.unwrap_or(0))
    });
    assert!(kept > 100, "{kept} pages of slabs on the other node");
    until("the reader reads there", || {
        let before = hits(&mut reader);
        look(&mut reader);
        (hits(&mut reader) > before + 100).then_some(())
    });
    changes_are_seen(&mut writer, &mut reader);
    assert!(file.exists(), "its node is away");
    cluster.signal(&memory, Signal::CONT);
    until("what lay there is freed", || {
        changes_are_seen(&mut writer, &mut reader);
        (!file.exists()).then_some(())
    });
}

/// Servers map each other's memory: the reader reads pages in the writer's frames, never old ones. When the writer is
/// killed the reader takes its place with frames of its own, and the killed one comes back and reads those; then a
/// switch turns that round once more.
#[test]
fn readers_of_a_pod_read_the_writers_frames() {
    let cluster = Cluster {
        dir: tempfile::tempdir().unwrap(),
    };
    let text = cluster.up_with(&["--pod", "--memory-size", "48MiB"]);
    assert!(text.contains("2 servers of a pod"), "{text}");
    let (has, mut writer) = cluster.server_that(false);
    fill(&mut writer);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    until("the reader has found the writer's frames", || {
        let found = "SELECT 1 FROM cenote_memory WHERE tier = 'pod' AND bytes > 0";
        reader.query_opt(found, &[]).unwrap()
    });
    look(&mut reader);
    assert!(hits_in_pod(&mut reader) > 500, "{}", hits_in_pod(&mut reader));
    changes_are_seen(&mut writer, &mut reader);
    changes_are_seen(&mut writer, &mut reader);

    cluster.kill(&format!("server-{has}"));
    let (now, mut writer) = cluster.server_that(false);
    assert_ne!(now, has);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    until("the reader has pages from the next writer's frames", || {
        look(&mut writer);
        changes_are_seen(&mut writer, &mut reader);
        // Where the promotion could not keep the region, nothing is served.
        let is_private = cluster.log(&format!("server-{now}")).contains(" 0 frames kept");
        (is_private || hits_in_pod(&mut reader) > 500).then_some(())
    });
    changes_are_seen(&mut writer, &mut reader);
    let plan = cluster.plan();
    let nodes = plan["storage_nodes"].as_array().unwrap().iter();
    let nodes: Vec<String> = nodes.map(|port| format!("127.0.0.1:{port}")).collect();
    let (ok, text) = output(cenote(&["cluster", "switch", "--storage"]).arg(nodes.join(",")));
    assert!(ok, "{text}");
    let (after, mut writer) = cluster.server_that(false);
    assert_ne!(after, now);
    let (_, mut reader) = cluster.server_that(true);
    reader.batch_execute("SET cenote.strong_reads = on").unwrap();
    until(
        "the reader has pages from the frames of the one that was switched to",
        || {
            look(&mut writer);
            changes_are_seen(&mut writer, &mut reader);
            let is_private = cluster.log(&format!("server-{after}")).contains(" 0 frames kept");
            (is_private || hits_in_pod(&mut reader) > 500).then_some(())
        },
    );
    cluster.down(&[]);
    let left = plan["regions"].as_array().unwrap().iter();
    let left: Vec<_> = left
        .filter(|region| std::path::Path::new(region.as_str().unwrap()).exists())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

fn slabs(client: &mut postgres::Client) -> i64 {
    let found = "SELECT slabs FROM cenote_scaling";
    client.query_opt(found, &[]).unwrap().map_or(0, |row| row.get(0))
}

/// Of rows all over the table, each that is changed at the writer shows at the reader at once.
fn changes_are_seen(writer: &mut postgres::Client, reader: &mut postgres::Client) {
    let change = writer
        .prepare("UPDATE t SET n = n + 1 WHERE id = $1 RETURNING n")
        .unwrap();
    let find = reader.prepare("SELECT n FROM t WHERE id = $1").unwrap();
    for id in (0..ROWS as i32).step_by(397) {
        let new: i32 = writer.query_one(&change, &[&id]).unwrap().get(0);
        let seen: i32 = reader.query_one(&find, &[&id]).unwrap().get(0);
        assert_eq!(seen, new, "row {id}");
    }
    let sum = |client: &mut postgres::Client| -> i64 { client.query_one("SELECT sum(n) FROM t", &[]).unwrap().get(0) };
    assert_eq!(sum(reader), sum(writer));
}
