//! Databases of data directories that go to storage nodes, and come back.

use super::{Nodes, make_table};
use crate::moved::{Writer, count};
use crate::program::{Data, Process, cenote, output};
use std::path::Path;
use std::process::Command;

const ROWS: i64 = 30_000;

/// A server on files with some MiB of rows and an index, more than nodes keep in memory; beside it, a table to write.
fn filled(data: &Data) -> Process {
    let server = Process::start(data.path());
    make_table(&server);
    let fill = format!(
        "CREATE TABLE wide (id int PRIMARY KEY, word text, filler text); \
         INSERT INTO wide SELECT n, 'word ' || n % 97, repeat('x', 300) FROM generate_series(1, {ROWS}) AS n; \
         CREATE INDEX by_word ON wide (word)"
    );
    server.client().batch_execute(&fill).unwrap();
    server
}

/// Rows, their sum, and those that the index finds.
fn wide(server: &Process) -> (i64, i64, i64) {
    let query = "SELECT count(*), sum(id)::bigint, (SELECT count(*) FROM wide WHERE word = 'word 5') FROM wide";
    let row = server.client().query_one(query, &[]).unwrap();
    (row.get(0), row.get(1), row.get(2))
}

fn load(data: &Data, nodes: &Nodes) -> Command {
    cenote(&[
        "storage",
        "load",
        "--data",
        data.text(),
        "--storage",
        &nodes.addresses(),
    ])
}

fn refused(command: &mut Command, why: &str) {
    let (ok, text) = output(command);
    assert!(!ok && text.contains(why), "{text}");
}

/// Makes a data directory of a backup, checks it, and starts a server there.
fn restored(backup: &Path, data: &Data) -> Process {
    let (ok, text) = output(cenote(&["restore", "--data", data.text()]).arg(backup));
    assert!(ok && text.contains("restored"), "{text}");
    let server = Process::start(data.path());
    let (ok, text) = output(&mut cenote(&["check", "--data", data.text()]));
    assert!(ok && text.contains("all is well"), "{text}");
    server
}

/// From a server that was killed to nodes; from there, under load, while nodes are killed, to files again.
#[test]
fn a_database_goes_to_nodes_and_comes_back() {
    let mut nodes = Nodes::start();
    let (before, there, back) = (Data::new(), Data::new(), Data::new());
    let mut server = filled(&before);
    let rows = wide(&server);
    assert_eq!((rows.0, rows.1), (ROWS, ROWS * (ROWS + 1) / 2));
    refused(&mut load(&before, &nodes), "in use by another server");
    server.kill();
    // A copy that is not finished is no database, and is begun again.
    let mut unfinished = load(&before, &nodes).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(150));
    unfinished.kill().unwrap();
    unfinished.wait().unwrap();
    let (ok, text) = output(&mut load(&before, &nodes));
    assert!(
        ok && text.contains("have it") || text.contains("have a database"),
        "{text}"
    );
    refused(&mut load(&before, &nodes), "have a database");

    let mut server = nodes.server(&there, "dram");
    assert_eq!(wide(&server), rows);
    let writer = Writer::start(&server, 0);
    writer.reaches(100);
    let acknowledged = i64::from(writer.acknowledged());
    let copy = there.path().join("copy");
    let mut backup = cenote(&["backup", "--data", there.text()]).arg(&copy).spawn().unwrap();
    let victim = nodes.leader();
    nodes.kill(victim);
    assert!(backup.wait().unwrap().success());
    nodes.start_node(victim);
    let reached = writer.acknowledged();
    writer.reaches(reached + 50);
    let last = i64::from(writer.end());
    {
        let server = restored(&copy, &back);
        assert_eq!(wide(&server), rows);
        let found = count(&server, 0, i32::MAX);
        assert!(
            (acknowledged..=last + 1).contains(&found),
            "{acknowledged} {found} {last}"
        );
    }
    // Without a server, and the other way once more: to nodes that are new.
    assert!(server.stop().success());
    let second = there.path().join("second");
    let mut offline = cenote(&["backup", "--data", there.text(), "--storage", &nodes.addresses()]);
    let (ok, text) = output(offline.arg(&second));
    assert!(ok && text.contains("on the storage nodes"), "{text}");
    let (again, others) = (Data::new(), Nodes::start());
    let mut server = restored(&second, &again);
    let found = count(&server, 0, i32::MAX);
    assert!(found >= last, "{found} of {last}");
    assert!(server.stop().success());
    let (ok, text) = output(&mut load(&again, &others));
    assert!(ok && text.contains("have it"), "{text}");
    let elsewhere = Data::new();
    let server = others.server(&elsewhere, "cxl");
    assert_eq!((wide(&server), count(&server, 0, i32::MAX)), (rows, found));
}

#[test]
fn what_cannot_be_loaded_is_refused_by_name() {
    let nodes = Nodes::start();
    let data = Data::new();
    refused(&mut load(&data, &nodes), "there is no database in");
    refused(
        &mut cenote(&["storage", "load", "--data", data.text()]),
        "--storage ADDR:PORT",
    );
    // Nodes that do not answer.
    let mut server = Process::start(data.path());
    assert!(server.stop().success());
    let mut stranger = load(&data, &nodes);
    refused(
        stranger.args(["--storage-cluster", "another"]),
        "of the cluster \"cenote\", not of \"another\"",
    );
    // A server made a database there.
    let own = Data::new();
    let mut server = nodes.server(&own, "dram");
    assert!(server.stop().success());
    refused(&mut load(&data, &nodes), "have a database");
    let mut server = nodes.server(&own, "dram");
    make_table(&server);
    assert!(server.stop().success());
    // Without --storage its directory is not one of a new database.
    let on_nodes = "name them with --storage";
    refused(
        &mut cenote(&["run", "--listen", "127.0.0.1:0", "--data", own.text()]),
        on_nodes,
    );
    refused(&mut cenote(&["check", "--data", own.text()]), on_nodes);
}
