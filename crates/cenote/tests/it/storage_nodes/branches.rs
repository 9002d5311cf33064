//! Snapshots of a database on storage nodes, and branches that begin with them: as people make, use and drop them.

use super::{Nodes, make_table};
use crate::moved::{Writer, count};
use crate::program::{Data, Process, cenote, output};
use std::path::Path;
use std::process::Command;

const ROWS: i64 = 20_000;

fn storage(nodes: &Nodes, arguments: &[&str]) -> Command {
    let mut command = cenote(&["storage"]);
    command.args(arguments).args(["--storage", &nodes.addresses()]);
    command
}

fn branch(arguments: &[&str], data: &Path) -> Command {
    let mut command = cenote(&["branch"]);
    command.args(arguments).arg("--data").arg(data);
    command
}

fn create(nodes: &Nodes, data: &Path, arguments: &[&str]) -> Command {
    let mut command = branch(&["create"], data);
    command.args(arguments).args(["--storage", &nodes.addresses()]);
    command
}

fn succeeds(command: &mut Command, says: &str) -> String {
    let (ok, text) = output(command);
    assert!(ok && text.contains(says), "{text}");
    text
}

fn refused(command: &mut Command, why: &str) {
    let (ok, text) = output(command);
    assert!(!ok && text.contains(why), "{text}");
}

/// Rows, their sum, and those that the index finds.
fn wide(server: &Process) -> (i64, i64, i64) {
    let query = "SELECT count(*), sum(id)::bigint, (SELECT count(*) FROM wide WHERE word = 'word 5') FROM wide";
    let row = server.client().query_one(query, &[]).unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// A server on nodes with more rows than those keep in memory, and a table to write.
fn filled(nodes: &Nodes, data: &Data) -> Process {
    let server = nodes.server(data, "dram");
    make_table(&server);
    let fill = format!(
        "CREATE TABLE wide (id int PRIMARY KEY, word text, filler text); \
         INSERT INTO wide SELECT n, 'word ' || n % 97, repeat('x', 300) FROM generate_series(1, {ROWS}) AS n; \
         CREATE INDEX by_word ON wide (word); CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (7)"
    );
    server.client().batch_execute(&fill).unwrap();
    server
}

/// A branch is made under load, with a transaction open; it goes on by itself through a kill, and so does its parent.
#[test]
fn a_branch_shares_the_pages_that_it_has_not_changed() {
    let mut nodes = Nodes::start();
    let (data, place) = (Data::new(), Data::new());
    let mut parent = filled(&nodes, &data);
    let rows = wide(&parent);
    let mut open = parent.client();
    open.batch_execute("BEGIN; DELETE FROM wide WHERE id <= 1000").unwrap();
    let writer = Writer::start(&parent, 0);
    writer.reaches(100);
    let acknowledged = i64::from(writer.acknowledged());
    let here = place.path().join("try");
    let text = succeeds(&mut create(&nodes, &here, &[]), "is a branch of snapshot");
    assert!(text.contains("MiB with it"), "{text}");
    refused(&mut create(&nodes, &here, &[]), "is not empty");

    let mut server = Process::start(&here);
    assert_eq!(wide(&server), rows, "what had not committed is rolled back");
    let found = count(&server, 0, i32::MAX);
    assert!(found >= acknowledged, "{found} rows of {acknowledged}");
    let own = std::fs::read_dir(here.join("spaces")).unwrap().map(|file| {
        use std::os::unix::fs::MetadataExt;
        file.unwrap().metadata().unwrap().blocks() * 512
    });
    let own: u64 = own.sum();
    assert!(own < 4 << 20, "{own} bytes of pages are copied");
    // Each changes what the other has.
    server
        .client()
        .batch_execute("UPDATE wide SET id = id + 1000000; DROP TABLE gone")
        .unwrap();
    open.batch_execute("COMMIT").unwrap();
    parent
        .client()
        .batch_execute("UPDATE wide SET word = 'other'; DROP TABLE gone")
        .unwrap();
    let changed = wide(&server);
    assert_eq!((changed.0, changed.2), (ROWS, rows.2));
    server.kill();
    let victim = nodes.leader();
    nodes.kill(victim);
    nodes.start_node(victim);
    let mut server = Process::start(&here);
    assert_eq!(wide(&server), changed);
    assert_eq!(count(&server, 0, i32::MAX), found);
    writer.end();
    assert_eq!(wide(&parent), (ROWS - 1000, (1001..=ROWS).sum::<i64>(), 0));
    let running = output(&mut branch(&["drop"], &here));
    assert!(
        !running.0 && running.1.contains("in use by another server"),
        "{}",
        running.1
    );
    let text = succeeds(&mut branch(&["status"], &here), "kept; made");
    assert!(text.contains("\"branch try of"), "{text}");
    succeeds(&mut cenote(&["check", "--data", here.to_str().unwrap()]), "all is well");
    // A copy of it is a database of its own.
    let copy = place.path().join("copy");
    succeeds(cenote(&["backup", "--data", here.to_str().unwrap()]).arg(&copy), "done");
    assert!(server.stop().success());
    let (again, others, elsewhere) = (place.path().join("again"), Nodes::start(), Data::new());
    let load = |data: &Path| {
        let mut load = cenote(&["storage", "load", "--storage", &others.addresses(), "--data"]);
        load.arg(data);
        load
    };
    succeeds(&mut load(&here), "have it");
    succeeds(&mut branch(&["drop"], &here), "is removed");
    let text = succeeds(&mut storage(&nodes, &["snapshots"]), "branches");
    assert!(!text.contains("branch try"), "its snapshot went with it: {text}");
    succeeds(
        cenote(&["restore", "--data", again.to_str().unwrap()]).arg(&copy),
        "restored",
    );
    assert_eq!(wide(&Process::start(&again)), changed);
    assert_eq!(wide(&others.server(&elsewhere, "dram")), changed);
    assert!(parent.stop().success());
}

#[test]
fn a_snapshot_is_kept_under_its_name_and_what_makes_no_sense_is_refused() {
    let nodes = Nodes::start();
    let (data, place) = (Data::new(), Data::new());
    refused(
        &mut storage(&nodes, &["snapshot", "monday"]),
        "no database to make a snapshot of",
    );
    let server = filled(&nodes, &data);
    let rows = wide(&server);
    succeeds(&mut storage(&nodes, &["snapshot", "monday"]), "snapshot \"monday\"");
    refused(
        &mut storage(&nodes, &["snapshot", "monday"]),
        "a snapshot \"monday\" already",
    );
    refused(&mut storage(&nodes, &["snapshot", ""]), "no name");
    refused(
        &mut storage(&nodes, &["drop-snapshot", "tuesday"]),
        "no snapshot \"tuesday\"",
    );
    refused(&mut cenote(&["storage", "snapshots"]), "--storage ADDR:PORT");
    server
        .client()
        .batch_execute("DROP TABLE wide; DROP TABLE gone")
        .unwrap();
    let text = succeeds(&mut storage(&nodes, &["snapshots"]), "monday");
    assert!(text.contains("1, 2, 3"), "every node has it: {text}");
    let here = place.path().join("monday");
    refused(
        &mut create(&nodes, &here, &["--snapshot", "tuesday"]),
        "no snapshot \"tuesday\"",
    );
    refused(&mut branch(&["status"], &here), "has no branch");
    succeeds(
        &mut create(&nodes, &here, &["--snapshot", "monday", "--name", "review"]),
        "\"monday\"",
    );
    let text = succeeds(&mut storage(&nodes, &["snapshots"]), "review");
    assert!(text.contains("monday"), "{text}");
    refused(
        &mut storage(&nodes, &["drop-snapshot", "monday"]),
        "has branches, which are lost",
    );
    let mut branched = Process::start(&here);
    assert_eq!(wide(&branched), rows, "as it was before the tables were dropped");
    assert!(branched.stop().success());
    // It finds the nodes where they are, and without its snapshot it is lost, by name.
    let mut moved = branch(&["move"], &here);
    succeeds(moved.args(["--storage", &nodes.addresses()]), "shares pages with");
    succeeds(
        &mut storage(&nodes, &["drop-snapshot", "monday", "--force"]),
        "is dropped",
    );
    succeeds(&mut branch(&["status"], &here), "gone");
    refused(
        cenote(&["run", "--listen", "127.0.0.1:0", "--memory-size", "64MiB", "--data"]).arg(&here),
        "the snapshot \"monday\" that this branch shares its pages with is gone",
    );
    succeeds(&mut branch(&["drop"], &here), "is removed");
}
