//! The server's Unix socket.

use crate::program::{Data, Process, cenote};
use postgres::{Client, Config, NoTls};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A server with a socket in `dir`, on the TCP port that is named.
fn start(data: &Data, dir: &Path, port: u16) -> Process {
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--data", data.text()]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--socket-dir").arg(dir);
    Process::spawn(command)
}

fn connect(dir: &Path, port: u16) -> Client {
    let mut config = Config::new();
    config.host_path(dir).port(port).user("tester").dbname("cenote");
    config.connect(NoTls).unwrap()
}

fn count(client: &mut Client, statement: &str) -> i64 {
    client.query_one(statement, &[]).unwrap().get(0)
}

#[test]
fn a_client_of_this_machine_is_served_as_one_of_the_network_is() {
    let (data, dir) = (Data::new(), tempfile::tempdir().unwrap());
    let server = start(&data, dir.path(), 0);
    let mut client = connect(dir.path(), server.port);
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
        .unwrap();
    let mut lines = client.copy_in("COPY t FROM STDIN").unwrap();
    (0..20_000).for_each(|id| writeln!(lines, "{id}\tname {id}").unwrap());
    assert_eq!(lines.finish().unwrap(), 20_000);
    let mut text = String::new();
    client
        .copy_out("COPY t TO STDOUT")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.lines().count() == 20_000 && text.contains("19999\tname 19999\n"));
    let addresses = client
        .query_one(
            "SELECT client_address FROM cenote_sessions WHERE id = pg_backend_pid()",
            &[],
        )
        .unwrap();
    assert_eq!(addresses.get::<_, String>(0), "[local]");
    let mut other = server.client();
    assert_eq!(count(&mut other, "SELECT count(*) FROM t"), 20_000);
}

#[test]
fn a_cancel_request_comes_by_the_socket_too() {
    let (data, dir) = (Data::new(), tempfile::tempdir().unwrap());
    let server = start(&data, dir.path(), 0);
    let mut client = connect(dir.path(), server.port);
    let cancel = client.cancel_token();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        cancel.cancel_query(NoTls).unwrap();
    });
    let error = client.batch_execute("SELECT pg_sleep(60)").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "57014", "{error}");
    canceller.join().unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM cenote_sessions"), 1);
}

#[test]
fn a_client_that_vanishes_while_it_waits_for_a_lock_gives_its_own_back() {
    let (data, dir) = (Data::new(), tempfile::tempdir().unwrap());
    let server = start(&data, dir.path(), 0);
    let mut holder = connect(dir.path(), server.port);
    holder
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2)")
        .unwrap();
    holder.batch_execute("BEGIN; UPDATE t SET n = 10 WHERE id = 1").unwrap();
    // A client whose process ends by itself in the middle of a statement that waits.
    let script = "BEGIN; UPDATE t SET n = 20 WHERE id = 2; UPDATE t SET n = 30 WHERE id = 1";
    let mut psql = std::process::Command::new("psql");
    psql.args([
        "-X",
        "-q",
        "-p",
        &server.port.to_string(),
        "-d",
        "cenote",
        "-c",
        script,
        "-h",
    ]);
    let Ok(mut psql) = psql.arg(dir.path()).stdin(std::process::Stdio::null()).spawn() else {
        eprintln!("psql is not installed: not tested with it");
        return;
    };
    let waits = "SELECT count(*) FROM cenote_sessions \
                 WHERE state = 'active' AND query LIKE '%n = 30%' AND id <> pg_backend_pid()";
    let mut watcher = connect(dir.path(), server.port);
    let deadline = Instant::now() + Duration::from_secs(30);
    while count(&mut watcher, waits) == 0 {
        assert!(Instant::now() < deadline, "the client's statement began");
        std::thread::sleep(Duration::from_millis(20));
    }
    psql.kill().unwrap();
    psql.wait().unwrap();
    // Waits until the server has noticed; the holder's lock is not touched.
    watcher
        .batch_execute("SET lock_timeout = '30s'; UPDATE t SET n = 40 WHERE id = 2")
        .unwrap();
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(count(&mut watcher, "SELECT n::bigint FROM t WHERE id = 1"), 10);
}

#[test]
fn the_socket_is_gone_after_a_stop_and_replaced_after_a_kill() {
    let (data, dir) = (Data::new(), tempfile::tempdir().unwrap());
    let mut server = start(&data, dir.path(), 0);
    let (port, path) = (server.port, dir.path().join(format!(".s.PGSQL.{}", server.port)));
    let mut idle = connect(dir.path(), port);
    assert_eq!(count(&mut idle, "SELECT 1::bigint"), 1);
    server.kill();
    assert!(path.exists(), "a killed server removes nothing");
    let mut server = start(&data, dir.path(), port);
    let mut idle = connect(dir.path(), port);
    assert_eq!(count(&mut idle, "SELECT 1::bigint"), 1);
    assert!(server.stop().success());
    assert!(idle.batch_execute("SELECT 1").is_err(), "the session was ended");
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "socket and lock are removed"
    );
}
