//! The writer goes, and comes back, here or elsewhere.

use super::{Proxy, code_of, free_port, server_at, writer_at};
use crate::program::{Data, Process};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A writer at a port where it can be started again.
fn writer() -> (Data, u16, Process) {
    let (data, port) = (Data::new(), free_port());
    let server = Process::spawn(server_at(&data, port));
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    (data, port, server)
}

/// Killed three times under the load of eight clients: connections stay, each row that was acknowledged is there, and
/// what fails is told as what it is.
#[test]
fn clients_survive_their_writer() {
    let (data, port, mut server) = writer();
    let proxy = Proxy::start(&writer_at(port), &["--pool-size", "4"]);
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let acknowledged: Vec<i32> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let (client, over, done) = (proxy.client(), &over, &done);
                scope.spawn(move || load(client, number, over, done))
            })
            .collect();
        for _ in 0..3 {
            let goal = done.load(Ordering::SeqCst) + 200;
            let deadline = Instant::now() + super::TIMEOUT;
            while done.load(Ordering::SeqCst) < goal {
                assert!(Instant::now() < deadline, "nothing is done any more");
                std::thread::sleep(Duration::from_millis(5));
            }
            server.kill();
            std::thread::sleep(Duration::from_millis(100));
            server = Process::spawn(server_at(&data, port));
        }
        std::thread::sleep(Duration::from_millis(300));
        over.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let rows = server.client().query("SELECT n FROM t", &[]).unwrap();
    let there: std::collections::BTreeSet<i32> = rows.iter().map(|row| row.get(0)).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|number| !there.contains(number)).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", acknowledged.len());
}

/// Inserts, alone and in blocks, and reads; the numbers that were acknowledged.
fn load(mut client: postgres::Client, number: i32, over: &AtomicBool, done: &AtomicUsize) -> Vec<i32> {
    let mut acknowledged = Vec::new();
    let insert = client.prepare("INSERT INTO t VALUES ($1)").unwrap();
    for round in 0.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let n = round * 8 + number;
        let inserted = match round % 3 {
            0 => client.execute(&insert, &[&n]).map(drop),
            1 => in_block(&mut client, n),
            _ => {
                // A read is never the client's to repeat.
                client
                    .query("SELECT n FROM t WHERE n = $1", &[&n])
                    .map(drop)
                    .expect("a read");
                continue;
            }
        };
        match inserted {
            Ok(()) => acknowledged.push(n),
            Err(error) => assert!(["40003", "08006"].contains(&code_of(&error)), "{error}"),
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

fn in_block(client: &mut postgres::Client, n: i32) -> Result<(), postgres::Error> {
    let done = client
        .batch_execute("BEGIN")
        .and_then(|()| client.execute("INSERT INTO t VALUES ($1)", &[&n]).map(drop))
        .and_then(|()| client.batch_execute("COMMIT"));
    if done.is_err() {
        client.batch_execute("ROLLBACK").expect("the block is over");
    }
    done
}

#[test]
fn a_block_is_lost_as_a_failed_one() {
    let (data, port, mut server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let mut clients: Vec<_> = (0..4).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.batch_execute("SET my.a = 'kept'").unwrap();
        client
            .batch_execute("BEGIN; SET my.a = 'taken back'; SELECT 1")
            .unwrap();
    }
    server.kill();
    let failed = |client: &mut postgres::Client, text: &str, code: &str| {
        let error = client.batch_execute(text).expect_err(text);
        assert_eq!(code_of(&error), code, "{text}: {error}");
    };
    let [one, two, three, four] = &mut clients[..] else {
        unreachable!()
    };
    failed(one, "SELECT 1", "08006");
    failed(one, "SELECT 1", "25P02");
    failed(one, "ROLLBACK TO a", "25P02");
    let error = one.query("SELECT 1", &[]).expect_err("by the other protocol");
    assert_eq!(code_of(&error), "25P02", "{error}");
    one.batch_execute("ROLLBACK").unwrap();
    failed(two, "COMMIT", "08006");
    three.batch_execute("ROLLBACK").unwrap();
    let error = four.query("SELECT 1", &[]).expect_err("by the other protocol");
    assert_eq!(code_of(&error), "08006", "{error}");
    four.query("COMMIT", &[]).expect("it is answered ROLLBACK");
    let _server = Process::spawn(server_at(&data, port));
    for client in &mut clients {
        let kept: String = client.query_one("SELECT current_setting('my.a')", &[]).unwrap().get(0);
        assert_eq!(kept, "kept");
    }
}

#[test]
fn what_is_in_flight_is_told_as_what_it_is() {
    let (data, port, mut server) = writer();
    let proxy = Proxy::start(&writer_at(port), &[]);
    let (mut reads, mut writes, mut blocks) = (proxy.client(), proxy.client(), proxy.client());
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reads.batch_execute("SELECT pg_sleep(0.6)"));
        let write = scope.spawn(|| writes.batch_execute("INSERT INTO t SELECT 1 FROM (SELECT pg_sleep(5)) s"));
        let block = scope.spawn(|| {
            blocks.batch_execute("BEGIN").unwrap();
            blocks.batch_execute("SELECT pg_sleep(5)")
        });
        std::thread::sleep(Duration::from_millis(300));
        server.kill();
        server = Process::spawn(server_at(&data, port));
        read.join().unwrap().expect("it is sent again");
        for (failed, code) in [(write.join().unwrap(), "40003"), (block.join().unwrap(), "08006")] {
            let error = failed.expect_err("lost");
            // Without analytics the insert may be refused before it runs.
            assert!([code, "0A000"].contains(&code_of(&error)), "{error}");
        }
    });
    blocks.batch_execute("ROLLBACK; SELECT 1").unwrap_err();
    blocks.batch_execute("ROLLBACK").unwrap();
    writes.batch_execute("SELECT 1").unwrap();
}

#[test]
fn without_a_writer_statements_wait_and_are_refused_by_name() {
    let (data, port, mut server) = writer();
    let proxy = Proxy::start(&writer_at(port), &["--wait", "1"]);
    let mut client = proxy.client();
    server.kill();
    let error = client
        .batch_execute("INSERT INTO t VALUES (1)")
        .expect_err("there is none");
    assert_eq!(code_of(&error), "57P03", "{error}");
    proxy.name("");
    let error = client.batch_execute("SELECT 1").expect_err("there is none");
    let text = error.as_db_error().unwrap().message();
    assert!(code_of(&error) == "57P03" && text.contains("no writer"), "{text}");
    // A start that a server has accepted before needs none.
    let error = proxy.client().query("SELECT 1", &[]).expect_err("there is none");
    assert_eq!(code_of(&error), "57P03", "{error}");
    proxy.name(&writer_at(port));
    let _server = Process::spawn(server_at(&data, port));
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
}

/// Another server takes the database, says the directory, while the one before still answers: nothing more of a client
/// goes to that.
#[test]
fn the_directory_decides_which_writer_is_asked() {
    let (_data, _, first) = writer();
    let (_other_data, _, second) = writer();
    let proxy = Proxy::start(&writer_at(first.port), &[]);
    let (mut client, mut block) = (proxy.client(), proxy.client());
    client.batch_execute("INSERT INTO t VALUES (1)").unwrap();
    block.batch_execute("BEGIN; INSERT INTO t VALUES (2)").unwrap();
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| client.batch_execute("INSERT INTO t VALUES (3); SELECT pg_sleep(30)"));
        std::thread::sleep(Duration::from_millis(200));
        proxy.name(&format!("{}@2", writer_at(second.port)));
        let error = sleeps.join().unwrap().expect_err("its server is none any more");
        assert_eq!(code_of(&error), "40003", "{error}");
    });
    let error = block.batch_execute("COMMIT").expect_err("its server is none any more");
    assert_eq!(code_of(&error), "08006", "{error}");
    for client in [&mut client, &mut block] {
        assert_eq!(client.query("SELECT * FROM t", &[]).unwrap().len(), 0);
    }
}
