//! Open blocks, while their server is restarted in order: they go on in sessions of the next start.

use super::{Proxy, code_of, free_port, server_at, writer_at};
use crate::program::{Data, Process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A writer at a port where it can be started again, with a table of ten rows.
fn writer() -> (Data, u16, Process) {
    let (data, port) = (Data::new(), free_port());
    let server = Process::spawn(server_at(&data, port));
    let made = "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE SEQUENCE s; \
                INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i";
    let rows: Vec<String> = (1..=10).map(|id| format!("({id}, 0)")).collect();
    let made = match server.client().batch_execute(made) {
        Ok(()) => return (data, port, server),
        // Without analytics.
        Err(_) => format!(
            "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE SEQUENCE s; INSERT INTO t VALUES {}",
            rows.join(",")
        ),
    };
    server.client().batch_execute(&made).unwrap();
    (data, port, server)
}

fn restarted(data: &Data, port: u16, mut server: Process) -> Process {
    assert!(server.stop().success());
    Process::spawn(server_at(data, port))
}

fn number(client: &mut postgres::Client, text: &str) -> i64 {
    match client.query_one(text, &[]).unwrap().try_get::<_, i64>(0) {
        Ok(number) => number,
        Err(_) => client.query_one(text, &[]).unwrap().get::<_, i32>(0).into(),
    }
}

fn shown(client: &mut postgres::Client, text: &str) -> String {
    let rows = client.simple_query(text).unwrap();
    let row = rows.iter().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    row.unwrap().get(0).unwrap().to_owned()
}

fn fails(client: &mut postgres::Client, text: &str, code: &str) {
    let error = client.batch_execute(text).expect_err(text);
    assert_eq!(code_of(&error), code, "{text}: {error}");
}

/// Changes, savepoints, settings, the time of the transaction, what `currval` answers, statements of both kinds: all is
/// there behind the restart, and behind a second one.
#[test]
fn a_block_goes_on_with_all_that_it_has() {
    let (data, port, mut server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let mut client = proxy.client();
    let by_protocol = client.prepare("SELECT n FROM t WHERE id = $1").unwrap();
    client.batch_execute("SET my.a = 'session'").unwrap();
    client
        .batch_execute("BEGIN; UPDATE t SET n = 5 WHERE id = 1; SELECT nextval('s'); SET LOCAL my.a = 'local'")
        .unwrap();
    client
        .batch_execute("PREPARE p AS SELECT n FROM t WHERE id = $1")
        .unwrap();
    client
        .batch_execute("SAVEPOINT a; UPDATE t SET n = 6 WHERE id = 2; SET my.b = 'behind'")
        .unwrap();
    client
        .batch_execute("SAVEPOINT \"B\"; UPDATE t SET n = 7 WHERE id = 3")
        .unwrap();
    let began = shown(&mut client, "SELECT now()");
    for _ in 0..2 {
        server = restarted(&data, port, server);
        assert_eq!(shown(&mut client, "SELECT now()"), began);
        assert_eq!(shown(&mut client, "SHOW my.a"), "local");
        assert_eq!(shown(&mut client, "SHOW my.b"), "behind");
        assert_eq!(shown(&mut client, "SELECT currval('s')"), "1");
        assert_eq!(shown(&mut client, "EXECUTE p (2)"), "6");
        assert_eq!(client.query_one(&by_protocol, &[&3]).unwrap().get::<_, i32>(0), 7);
    }
    client.batch_execute("ROLLBACK TO \"B\"").unwrap();
    assert_eq!(client.query_one(&by_protocol, &[&3]).unwrap().get::<_, i32>(0), 0);
    client.batch_execute("ROLLBACK TO a").unwrap();
    server = restarted(&data, port, server);
    client.batch_execute("UPDATE t SET n = 8 WHERE id = 4; COMMIT").unwrap();
    assert_eq!(shown(&mut client, "SHOW my.a"), "session");
    assert_eq!(code_of(&client.simple_query("SHOW my.b").unwrap_err()), "42704");
    let rows = proxy
        .client()
        .query("SELECT n FROM t WHERE id < 5 ORDER BY id", &[])
        .unwrap();
    let rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(rows, [5, 0, 0, 8]);
    assert!(server.stop().success());
}

#[test]
fn snapshots_locks_and_failures_go_on() {
    let (data, port, server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let mut clients: Vec<_> = (0..6).map(|_| proxy.client()).collect();
    let [old, locks, failed, saved, reads, prepared] = &mut clients[..] else {
        unreachable!()
    };
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT n FROM t WHERE id = 9")
        .unwrap();
    proxy.client().batch_execute("UPDATE t SET n = 1 WHERE id = 9").unwrap();
    locks
        .batch_execute("BEGIN; SELECT * FROM t WHERE id = 5 FOR UPDATE")
        .unwrap();
    failed.batch_execute("BEGIN").unwrap();
    fails(failed, "INSERT INTO t VALUES (1, 1)", "23505");
    saved
        .batch_execute("BEGIN; UPDATE t SET n = 3 WHERE id = 6; SAVEPOINT a")
        .unwrap();
    fails(saved, "INSERT INTO t VALUES (1, 1)", "23505");
    reads.batch_execute("BEGIN READ ONLY").unwrap();
    prepared
        .batch_execute("PREPARE p AS SELECT n FROM t WHERE id = 9")
        .unwrap();
    let mut server = restarted(&data, port, server);
    assert_eq!(number(old, "SELECT n FROM t WHERE id = 9"), 0);
    fails(old, "UPDATE t SET n = 2 WHERE id = 9", "40001");
    old.batch_execute("ROLLBACK").unwrap();
    let mut other = proxy.client();
    other.batch_execute("SET lock_timeout = 50").unwrap();
    fails(&mut other, "UPDATE t SET n = 1 WHERE id = 5", "55P03");
    assert_eq!(number(prepared, "EXECUTE p"), 1, "PREPARE goes, too, without a block");
    fails(failed, "SELECT 1", "25P02");
    failed.batch_execute("ROLLBACK").unwrap();
    fails(saved, "SELECT 1", "25P02");
    saved.batch_execute("ROLLBACK TO a; COMMIT").unwrap();
    assert_eq!(number(&mut other, "SELECT n FROM t WHERE id = 6"), 3);
    fails(reads, "UPDATE t SET n = 1 WHERE id = 7", "25006");
    reads.batch_execute("ROLLBACK").unwrap();
    locks.batch_execute("UPDATE t SET n = 4 WHERE id = 5; COMMIT").unwrap();
    other.batch_execute("UPDATE t SET n = n + 1 WHERE id = 5").unwrap();
    assert_eq!(number(&mut other, "SELECT n FROM t WHERE id = 5"), 5);
    assert!(server.stop().success());
}

/// Statements that wait for a row when the server goes are carried out behind the restart, once, alone and in blocks;
/// and what a block did before them is there.
#[test]
fn statements_that_are_cut_are_carried_out_at_the_next_server() {
    let (data, port, server) = writer();
    let proxy = Proxy::start(&writer_at(port), &["--pool-size", "3"]);
    let mut holder = proxy.client();
    holder
        .batch_execute("BEGIN; UPDATE t SET n = n + 1 WHERE id = 1")
        .unwrap();
    let (mut alone, mut block) = (proxy.client(), proxy.client());
    let alone = std::thread::spawn(move || alone.execute("UPDATE t SET n = n + 10 WHERE id = 1", &[]));
    let block = std::thread::spawn(move || {
        block.batch_execute("BEGIN; UPDATE t SET n = 70 WHERE id = 7")?;
        block.batch_execute("UPDATE t SET n = n + 100 WHERE id = 8; UPDATE t SET n = n + 100 WHERE id = 1")?;
        block.batch_execute("COMMIT")
    });
    super::eventually("both wait", || {
        let waiting = "SELECT count(*) FROM cenote_sessions WHERE state = 'active'";
        match server.client().query_one(waiting, &[]) {
            Ok(row) => row.get::<_, i64>(0) >= 3,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(500));
                true
            }
        }
    });
    let mut server = restarted(&data, port, server);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!alone.is_finished() && !block.is_finished(), "they wait again");
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(alone.join().unwrap().unwrap(), 1);
    block.join().unwrap().unwrap();
    let mut other = proxy.client();
    for (id, n) in [(1, 111), (7, 70), (8, 100)] {
        assert_eq!(number(&mut other, &format!("SELECT n FROM t WHERE id = {id}")), n);
    }
    assert!(server.stop().success());
}

/// What cannot go: a portal with rows to give, a definition. It ends with its server, and the client is told so.
#[test]
fn a_block_that_cannot_go_is_lost_as_a_failed_one() {
    let (data, port, server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let (mut defines, mut fetches) = (proxy.client(), proxy.client());
    defines
        .batch_execute("BEGIN; CREATE TABLE u (id int PRIMARY KEY)")
        .unwrap();
    let mut block = fetches.transaction().unwrap();
    let portal = block.bind("SELECT id FROM t WHERE id > 0", &[]).unwrap();
    assert_eq!(block.query_portal(&portal, 2).unwrap().len(), 2);
    let mut server = restarted(&data, port, server);
    let error = block.query_portal(&portal, 2).expect_err("the portal is gone");
    assert_eq!(code_of(&error), "08006", "{error}");
    block.rollback().unwrap();
    fails(&mut defines, "SELECT 1", "08006");
    defines.batch_execute("ROLLBACK").unwrap();
    fails(&mut defines, "SELECT * FROM u", "42P01");
    assert!(server.stop().success());
}

/// A portal that was bound, and waits to begin, is none that can be left out.
#[test]
fn a_bound_portal_keeps_its_block() {
    let (data, port, server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let mut raw = TcpStream::connect(("127.0.0.1", proxy.process.port)).unwrap();
    raw.write_all(&startup()).unwrap();
    until_ready(&mut raw);
    raw.write_all(&message(b'Q', b"BEGIN\0")).unwrap();
    assert_eq!(until_ready(&mut raw).1, b'T');
    let parse = message(b'P', b"\0SELECT id FROM t WHERE id = 3\0\0\0");
    let bind = message(b'B', b"\0\0\0\0\0\0\0\0");
    raw.write_all(&[parse, bind, message(b'S', b"")].concat()).unwrap();
    assert_eq!(until_ready(&mut raw).1, b'T');
    let mut server = restarted(&data, port, server);
    raw.write_all(&[message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat())
        .unwrap();
    let (answer, status) = until_ready(&mut raw);
    assert!(
        answer.windows(5).any(|part| part == b"08006"),
        "it is told as a lost block"
    );
    assert_eq!(status, b'E');
    assert!(server.stop().success());
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag], &(4 + body.len() as i32).to_be_bytes()[..], body].concat()
}

fn startup() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0postgres\0database\0cenote\0\0";
    [&(4 + body.len() as i32).to_be_bytes()[..], body].concat()
}

/// All up to ReadyForQuery, and what that says.
fn until_ready(raw: &mut TcpStream) -> (Vec<u8>, u8) {
    let mut all = Vec::new();
    loop {
        let mut head = [0; 5];
        raw.read_exact(&mut head).unwrap();
        let len = i32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
        let mut body = vec![0; len];
        raw.read_exact(&mut body).unwrap();
        if head[0] == b'Z' {
            return (all, body[0]);
        }
        all.extend_from_slice(&body);
    }
}

/// A client that has left does not keep its rows locked behind the restart, nor does one whose proxy is gone.
#[test]
fn a_block_without_a_client_ends() {
    let (data, port, mut server) = writer();
    let mut proxy = Proxy::start(&writer_at(port), &[]);
    let mut client = proxy.client();
    client.batch_execute("BEGIN; UPDATE t SET n = 1 WHERE id = 1").unwrap();
    // It cannot be told: the proxy is away when the server is there again.
    let other = Proxy::start(&writer_at(port), &[]);
    assert!(server.stop().success());
    proxy.process.kill();
    let mut server = Process::spawn(server_at(&data, port));
    other.client().batch_execute("UPDATE t SET n = 5 WHERE id = 1").unwrap();
    assert_eq!(number(&mut other.client(), "SELECT n FROM t WHERE id = 1"), 5);
    assert!(server.stop().success());
}

/// No client can take up what another one has left, or make one up.
#[test]
fn a_block_is_taken_up_by_its_proxy_alone() {
    let (_data, _port, mut server) = writer();
    let mut client = server.client();
    for text in ["SET \"_cenote.take_up\" = '0'", "SET \"_cenote.take_up\" = ':1'"] {
        fails(&mut client, text, "42704");
    }
    assert!(server.stop().success());
}
