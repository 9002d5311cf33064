//! Readers of a database on storage nodes, beside its server.

use super::{Nodes, make_table};
use crate::moved::Writer;
use crate::program::{Data, Process, cenote, output};
use postgres::error::SqlState;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

impl Nodes {
    pub fn reader(&self, data: &Data) -> Process {
        let mut command = self.run(data, "dram");
        command.args(["--role", "reader"]);
        Process::spawn(command)
    }
}

fn rows(client: &mut postgres::Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0)
}

fn strong(reader: &Process) -> postgres::Client {
    let mut client = reader.client();
    client.batch_execute("SET cenote.strong_reads = on").unwrap();
    client
}

fn code_of(error: &postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// Under load, while the server and the node that leads are killed: a strong read shows all that was acknowledged
/// before it, in the session that was there from the beginning.
#[test]
fn a_reader_shows_what_was_acknowledged_whoever_is_killed() {
    let mut nodes = Nodes::start();
    let (data, other, elsewhere) = (Data::new(), Data::new(), Data::new());
    let mut server = nodes.server(&data, "dram");
    make_table(&server);
    let mut reader = nodes.reader(&other);
    let mut client = strong(&reader);
    let look = |client: &mut postgres::Client, writer: &Writer| {
        let before = i64::from(writer.acknowledged());
        let found = rows(client);
        assert!(found >= before, "{found} rows are seen, {before} were acknowledged");
    };
    let writer = Writer::start(&server, 0);
    for goal in [50, 100, 200, 400] {
        writer.reaches(goal);
        look(&mut client, &writer);
    }
    let leader = nodes.leader();
    nodes.kill(leader);
    let reached = writer.acknowledged();
    writer.reaches(reached + 50);
    look(&mut client, &writer);
    nodes.start_node(leader);
    server.kill();
    let acknowledged = i64::from(writer.end());
    let next = nodes.server(&elsewhere, "dram");
    assert!(rows(&mut client) >= acknowledged);
    next.client().batch_execute("DELETE FROM t").unwrap();
    assert_eq!(rows(&mut client), 0);
    assert!(reader.stop().success());
}

/// A reader changes nothing, and says so as PostgreSQL's standby does.
#[test]
fn a_reader_refuses_what_changes_something() {
    let nodes = Nodes::start();
    let (data, other) = (Data::new(), Data::new());
    let server = nodes.server(&data, "dram");
    make_table(&server);
    server.client().batch_execute("CREATE SEQUENCE s").unwrap();
    let reader = nodes.reader(&other);
    let mut client = strong(&reader);
    let refused = [
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE u (n int)",
        "SELECT * FROM t FOR UPDATE",
        "SELECT nextval('s')",
        "TRUNCATE t",
        "VACUUM",
        "ANALYZE t",
        "COPY t FROM STDIN",
    ];
    for statement in refused {
        let error = client.batch_execute(statement).expect_err(statement);
        assert_eq!(code_of(&error), "25006", "{statement}: {error}");
    }
    let error = client.batch_execute("BEGIN READ WRITE").expect_err("no writes");
    assert_eq!(code_of(&error), "0A000", "{error}");
    let row = client
        .query_one("SELECT pg_is_in_recovery(), current_setting('in_hot_standby')", &[])
        .unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, &str>(1)), (true, "on"));
}

/// Definitions come to readers with the rows that they are of; plans of former ones are made anew.
#[test]
fn definitions_come_with_their_rows() {
    let nodes = Nodes::start();
    let (data, other) = (Data::new(), Data::new());
    let server = nodes.server(&data, "dram");
    make_table(&server);
    let reader = nodes.reader(&other);
    let (mut at, mut client) = (server.client(), strong(&reader));
    let count = client.prepare("SELECT count(*) FROM t").unwrap();
    at.batch_execute("INSERT INTO t SELECT g FROM generate_series(1, 1000) g")
        .unwrap();
    assert_eq!(client.query_one(&count, &[]).unwrap().get::<_, i64>(0), 1000);
    at.batch_execute(
        "CREATE TABLE u (n int PRIMARY KEY, m int); INSERT INTO u SELECT g, g % 7 FROM generate_series(1, 700) g",
    )
    .unwrap();
    let sevens = "SELECT count(*) FROM u WHERE m = 3";
    assert_eq!(client.query_one(sevens, &[]).unwrap().get::<_, i64>(0), 100);
    at.batch_execute("CREATE INDEX u_m ON u (m); TRUNCATE t").unwrap();
    assert_eq!(client.query_one(sevens, &[]).unwrap().get::<_, i64>(0), 100);
    assert_eq!(client.query_one(&count, &[]).unwrap().get::<_, i64>(0), 0);
    at.batch_execute("DROP TABLE u").unwrap();
    let error = client.query_one(sevens, &[]).expect_err("it is gone");
    assert_eq!(code_of(&error), "42P01", "{error}");
}

/// Strong reads wait before names are looked up, by each way that a statement comes.
#[test]
fn a_name_is_found_as_soon_as_it_was_acknowledged() {
    let nodes = Nodes::start();
    let (data, other) = (Data::new(), Data::new());
    let server = nodes.server(&data, "dram");
    make_table(&server);
    let mut reader = nodes.reader(&other);
    let (mut at, mut client) = (server.client(), strong(&reader));
    for round in 0..40 {
        at.batch_execute(&format!(
            "CREATE TABLE n{round} (n int); INSERT INTO n{round} VALUES ({round})"
        ))
        .unwrap();
        let query = format!("SELECT n FROM n{round}");
        if round % 2 == 0 {
            client.batch_execute(&query).unwrap();
        }
        assert_eq!(client.query_one(&query, &[]).unwrap().get::<_, i32>(0), round);
    }
    assert!(reader.stop().success());
}

/// What a reader's snapshot sees is kept while it is in use, and the server shows whose it is.
#[test]
fn the_server_keeps_what_a_readers_snapshot_sees() {
    let nodes = Nodes::start();
    let (data, other) = (Data::new(), Data::new());
    let server = nodes.server(&data, "dram");
    make_table(&server);
    let mut at = server.client();
    at.batch_execute("INSERT INTO t SELECT g FROM generate_series(1, 500) g")
        .unwrap();
    let reader = nodes.reader(&other);
    let mut client = strong(&reader);
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(rows(&mut client), 500);
    let seen =
        |at: &mut postgres::Client| -> i64 { at.query_one("SELECT count(*) FROM cenote_readers", &[]).unwrap().get(0) };
    let deadline = Instant::now() + TIMEOUT;
    while seen(&mut at) == 0 {
        assert!(Instant::now() < deadline, "the server hears of no reader");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Long enough for the server to have asked again since the snapshot was taken.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..5 {
        at.batch_execute("DELETE FROM t; INSERT INTO t SELECT g FROM generate_series(1, 500) g; DELETE FROM t")
            .unwrap();
        at.batch_execute("VACUUM").unwrap();
        assert_eq!(rows(&mut client), 500, "what the snapshot saw it sees again");
    }
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(rows(&mut client), 0);
}

/// Without storage nodes a reader answers for as long as the session lets it, and then says how far behind it is.
#[test]
fn a_reader_that_is_cut_off_says_so() {
    let mut nodes = Nodes::start();
    let (data, other) = (Data::new(), Data::new());
    let server = nodes.server(&data, "dram");
    make_table(&server);
    server.client().batch_execute("INSERT INTO t VALUES (1)").unwrap();
    let reader = nodes.reader(&other);
    let mut client = strong(&reader);
    assert_eq!(rows(&mut client), 1);
    // Until the server has purged, and nothing changes any more.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(rows(&mut client), 1);
    (0..3).for_each(|n| nodes.kill(n));
    client
        .batch_execute("SET cenote.strong_reads = off; SET cenote.max_staleness = 0")
        .unwrap();
    assert_eq!(rows(&mut client), 1, "what it has in memory");
    client.batch_execute("SET cenote.max_staleness = '700ms'").unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let error = loop {
        match client.query_one("SELECT count(*) FROM t", &[]) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "it answers without an end"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(code_of(&error), "72000", "{error}");
    let text = error.as_db_error().unwrap().message().to_owned();
    assert!(text.contains("ms behind") && text.contains("700 ms"), "{text}");
    (0..3).for_each(|n| nodes.start_node(n));
    let deadline = Instant::now() + TIMEOUT;
    while client.query_one("SELECT count(*) FROM t", &[]).is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_reader_without_a_database_is_refused_by_name() {
    let nodes = Nodes::start();
    let data = Data::new();
    let (ok, text) =
        output(cenote(&["run", "--role", "reader", "--data", data.text()]).args(["--listen", "127.0.0.1:0"]));
    assert!(!ok && text.contains("--storage"), "{text}");
    let (ok, text) = output(nodes.run(&data, "cxl").args(["--role", "reader"]));
    assert!(!ok && text.contains("private memory"), "{text}");
    let (ok, text) = output(nodes.run(&data, "dram").args(["--role", "reader"]));
    assert!(!ok && text.contains("no database"), "{text}");
}
