//! A writer and a reader on storage nodes, behind a proxy.

use super::{Proxy, code_of, eventually};
use crate::program::{Data, Process};
use crate::storage_nodes::Nodes;
use postgres::Client;

struct Cluster {
    proxy: Proxy,
    reader: Process,
    writer: Process,
    _data: [Data; 2],
    _nodes: Nodes,
}

fn cluster(reads: &str) -> Cluster {
    let nodes = Nodes::start();
    let data = [Data::new(), Data::new()];
    let writer = nodes.server(&data[0], "dram");
    writer
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY); CREATE SEQUENCE s")
        .unwrap();
    let reader = nodes.reader(&data[1]);
    let servers = format!("writer=127.0.0.1:{},reader=127.0.0.1:{}", writer.port, reader.port);
    Cluster {
        proxy: Proxy::start(&servers, &["--reads", reads]),
        reader,
        writer,
        _data: data,
        _nodes: nodes,
    }
}

fn is_at_reader(client: &mut Client) -> bool {
    client.query_one("SELECT pg_is_in_recovery()", &[]).unwrap().get(0)
}

fn rows(client: &mut Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0)
}

#[test]
fn a_client_reads_its_own_writes_at_a_reader() {
    let cluster = cluster("session");
    let mut client = cluster.proxy.client();
    assert!(is_at_reader(&mut client));
    let insert = client.prepare("INSERT INTO t VALUES ($1)").unwrap();
    let count = client.prepare("SELECT count(*) FROM t").unwrap();
    for number in 0..100 {
        client.execute(&insert, &[&number]).unwrap();
        assert_eq!(
            client.query_one(&count, &[]).unwrap().get::<_, i64>(0),
            i64::from(number) + 1
        );
    }
    // A table that was made just now is found, too.
    for round in 0..10 {
        client.batch_execute(&format!("CREATE TABLE u{round} (n int)")).unwrap();
        client.query(&format!("SELECT * FROM u{round}"), &[]).unwrap();
    }
    assert!(is_at_reader(&mut client));
}

#[test]
fn what_only_the_writer_can_do_goes_there() {
    let cluster = cluster("session");
    let mut client = cluster.proxy.client();
    for round in 1..4i64 {
        assert_eq!(
            client.query_one("SELECT nextval('s')", &[]).unwrap().get::<_, i64>(0),
            round
        );
        client.query("SELECT * FROM t FOR UPDATE", &[]).unwrap();
        client
            .batch_execute(&format!("EXPLAIN ANALYZE INSERT INTO t VALUES ({round})"))
            .unwrap();
        client
            .simple_query("SELECT nextval('s'); SELECT setval('s', 1)")
            .unwrap();
        client.query_one("SELECT setval('s', $1)", &[&round]).unwrap();
    }
    let named = client.prepare("SELECT nextval('s')").unwrap();
    assert_eq!(client.query_one(&named, &[]).unwrap().get::<_, i64>(0), 4);
    assert_eq!(rows(&mut client), 3);
    assert!(is_at_reader(&mut client));
    client.batch_execute("BEGIN").unwrap();
    assert!(!is_at_reader(&mut client));
    client.batch_execute("COMMIT; BEGIN READ ONLY").unwrap();
    client.batch_execute("ROLLBACK").unwrap();
    client.batch_execute("BEGIN READ ONLY").unwrap();
    assert!(is_at_reader(&mut client));
    let error = client
        .batch_execute("SELECT nextval('s')")
        .expect_err("it is read only");
    assert_eq!(code_of(&error), "25006", "{error}");
    client.batch_execute("ROLLBACK").unwrap();
    client.batch_execute("SET my.a = 'x'").unwrap();
    let known = client
        .query_one("SELECT current_setting('my.a'), pg_is_in_recovery()", &[])
        .unwrap();
    assert_eq!((known.get::<_, &str>(0), known.get::<_, bool>(1)), ("x", true));
}

#[test]
fn a_lost_reader_is_not_missed() {
    let mut cluster = cluster("strong");
    let mut client = cluster.proxy.client();
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(rows(&mut cluster.proxy.client()), 1);
    assert!(is_at_reader(&mut client));
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| client.batch_execute("SELECT pg_sleep(1)"));
        let mut other = cluster.proxy.client();
        eventually("it runs at the reader", || {
            other.simple_query("SHOW cenote.proxy").is_ok_and(|rows| {
                rows.iter().any(|row| {
                    matches!(row, postgres::SimpleQueryMessage::Row(row)
                if row.get("role") == Some("reader") && row.get("in_use") == Some("1"))
                })
            })
        });
        cluster.reader.kill();
        sleeps.join().unwrap().expect("it is sent to another");
    });
    assert!(!is_at_reader(&mut client));
    assert_eq!(rows(&mut client), 1);
}

/// A reader that goes in order ends no block: it goes on at the writer, with its snapshot, settings and savepoints.
#[test]
fn a_block_at_a_reader_that_goes_goes_on_elsewhere() {
    let mut cluster = cluster("session");
    let mut asks = cluster.writer.client();
    eventually("the writer knows its reader, and purges nothing that it sees", || {
        let known = asks.query_one("SELECT count(*) FROM cenote_readers", &[]).unwrap();
        known.get::<_, i64>(0) == 1
    });
    let [mut repeats, mut commits, mut fails, mut writes] = [(); 4].map(|()| cluster.proxy.client());
    writes
        .batch_execute("INSERT INTO t VALUES (1); SELECT set_config('my.a', 'other', false)")
        .unwrap();
    for (client, level) in [
        (&mut repeats, "REPEATABLE READ"),
        (&mut commits, "READ COMMITTED"),
        (&mut fails, "REPEATABLE READ"),
    ] {
        let begin = format!("SET cenote.strong_reads = on; BEGIN ISOLATION LEVEL {level} READ ONLY");
        let (set, begin) = begin.split_once("; ").unwrap();
        client.batch_execute(set).unwrap();
        client.batch_execute(begin).unwrap();
        assert_eq!(rows(client), 1, "{level}");
        assert!(is_at_reader(client));
        client
            .batch_execute("SET LOCAL my.a = 'x'; SAVEPOINT a; SET LOCAL my.a = 'y'")
            .unwrap();
    }
    fails.batch_execute("SELECT nosuch").expect_err("it fails");
    writes.batch_execute("INSERT INTO t VALUES (2)").unwrap();
    assert!(cluster.reader.stop().success());
    for (client, count) in [(&mut repeats, 1), (&mut commits, 2)] {
        assert_eq!(rows(client), count);
        assert!(!is_at_reader(client));
        assert_eq!(setting(client), "y");
    }
    let refused = fails.batch_execute("SELECT 1").expect_err("it has failed");
    assert_eq!(code_of(&refused), "25P02", "{refused}");
    for (client, count) in [(&mut repeats, 1), (&mut commits, 2), (&mut fails, 1)] {
        client.batch_execute("ROLLBACK TO a").unwrap();
        assert_eq!((rows(client), setting(client).as_str()), (count, "x"));
        let refused = client.batch_execute("DELETE FROM t").expect_err("it is read only");
        assert_eq!(code_of(&refused), "25006", "{refused}");
        client.batch_execute("ROLLBACK TO a; COMMIT").unwrap();
        assert_eq!((rows(client), setting(client).as_str()), (2, ""));
    }
}

fn setting(client: &mut Client) -> String {
    let found = "SELECT coalesce(current_setting('my.a', true), '')";
    client.query_one(found, &[]).unwrap().get(0)
}

#[test]
fn reads_of_the_writer_stay_there() {
    let cluster = cluster("writer");
    assert!(!is_at_reader(&mut cluster.proxy.client()));
}
