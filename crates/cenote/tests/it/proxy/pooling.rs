//! Many clients on few sessions.

use super::{Proxy, code_of, eventually, pair, shows, writer_at};
use crate::program::{Data, Process, cenote, output};
use postgres::{Client, Config, NoTls};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn text(client: &mut Client, query: &str) -> String {
    client.query_one(query, &[]).unwrap().get(0)
}

/// Twenty clients on two sessions, each with settings and statements of its own, all of the same names.
#[test]
fn settings_and_statements_travel_among_sessions() {
    let (_data, _server, proxy) = pair(&["--pool-size", "2"]);
    std::thread::scope(|scope| {
        for number in 0..20 {
            let proxy = &proxy;
            scope.spawn(move || one_of_many(proxy.client(), number));
        }
    });
    let sessions: usize = proxy.shows("sessions").parse().unwrap();
    assert!(sessions <= 2, "{sessions} sessions");
}

fn one_of_many(mut client: Client, number: i32) {
    let name = format!("it's {number}");
    let set = format!(
        "SET application_name = 'it''s {number}'; SET my.number = {number}; SET lock_timeout = '{}s'",
        number + 1
    );
    client.batch_execute(&set).unwrap();
    let own = client.prepare(&format!("SELECT $1::int + {number}")).unwrap();
    let shared = client.prepare("SELECT current_setting('my.number'), $1::text").unwrap();
    for round in 0..40 {
        assert_eq!(
            client.query_one(&own, &[&round]).unwrap().get::<_, i32>(0),
            round + number
        );
        let row = client.query_one(&shared, &[&name]).unwrap();
        assert_eq!(
            (row.get::<_, String>(0), row.get::<_, String>(1)),
            (number.to_string(), name.clone())
        );
        assert_eq!(text(&mut client, "SELECT current_setting('application_name')"), name);
        let timeout = client.simple_query("SHOW lock_timeout").unwrap();
        let postgres::SimpleQueryMessage::Row(row) = timeout.into_iter().find(is_row).unwrap() else {
            unreachable!()
        };
        assert_eq!(row.get(0), Some(&format!("{}s", number + 1)[..]));
        if round == 20 {
            client.batch_execute("BEGIN; SET my.number = 77; ROLLBACK").unwrap();
        }
    }
    client.batch_execute("RESET ALL").unwrap();
    assert_eq!(text(&mut client, "SELECT current_setting('application_name')"), "");
    assert!(
        client.batch_execute("SHOW my.number").is_err(),
        "as if it had never been set"
    );
}

fn is_row(message: &postgres::SimpleQueryMessage) -> bool {
    matches!(message, postgres::SimpleQueryMessage::Row(_))
}

/// What a connection began with is what RESET goes back to, whatever session it has; what no server takes is refused.
#[test]
fn a_connections_start_is_its_own() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let config = |name: &str, options: &str| {
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(proxy.process.port)
            .user("tester")
            .dbname("cenote");
        config.application_name(name).options(options).connect(NoTls)
    };
    let (mut one, mut two) = (
        config("one", "-c my.a=1").unwrap(),
        config("two", "-c timezone=+02").unwrap(),
    );
    for _ in 0..3 {
        for (client, name) in [(&mut one, "one"), (&mut two, "two")] {
            client
                .batch_execute("SET application_name = 'x'; SET my.b = '2'")
                .unwrap();
            assert_eq!(text(client, "SELECT current_setting('application_name')"), "x");
            client.batch_execute("RESET application_name").unwrap();
            assert_eq!(text(client, "SELECT current_setting('application_name')"), name);
            client.batch_execute("DISCARD ALL").unwrap();
            assert!(client.batch_execute("SHOW my.b").is_err());
        }
        assert_eq!(text(&mut one, "SELECT current_setting('my.a')"), "1");
        assert_eq!(text(&mut two, "SELECT current_setting('TimeZone')"), "+02");
    }
    let refused = config("x", "-c nonsense=1").err().unwrap();
    assert_eq!(code_of(&refused), "42704", "{refused}");
}

#[test]
fn a_block_keeps_its_session_and_others_wait_for_it_no_longer_than_they_should() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1", "--wait", "1"]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    one.batch_execute("CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (1)")
        .unwrap();
    let began = Instant::now();
    let error = two.batch_execute("SELECT 1").unwrap_err();
    assert_eq!(code_of(&error), "53300", "{error}");
    assert!(error.as_db_error().unwrap().message().contains("--pool-size"));
    assert!((Duration::from_millis(900)..Duration::from_secs(5)).contains(&began.elapsed()));
    assert_eq!(shows(&mut two, "in_use"), "1");
    one.batch_execute("INSERT INTO t VALUES (2); COMMIT").unwrap();
    assert_eq!(two.query("SELECT * FROM t", &[]).unwrap().len(), 2);
    // PREPARE stays with its session, which stays with its client.
    one.batch_execute("PREPARE p AS SELECT 5").unwrap();
    assert!(two.batch_execute("SELECT 1").is_err());
    assert_eq!(one.simple_query("EXECUTE p").unwrap().len(), 3);
    one.batch_execute("DEALLOCATE p").unwrap();
    two.batch_execute("SELECT 1").unwrap();
}

/// Sequences: what `currval` answers is never another client's.
#[test]
fn drawn_values_are_no_other_clients() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    one.batch_execute("CREATE SEQUENCE s; SELECT nextval('s')").unwrap();
    one.batch_execute("SELECT currval('s')").unwrap();
    let error = two.batch_execute("SELECT currval('s')").unwrap_err();
    assert_eq!(code_of(&error), "55000", "{error}");
}

#[test]
fn statements_are_closed_and_made_again() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    for round in 0..1100 {
        let statement = one.prepare(&format!("SELECT {round}")).unwrap();
        assert_eq!(one.query_one(&statement, &[]).unwrap().get::<_, i32>(0), round);
    }
    let mine = one.prepare("SELECT 1 + $1::int").unwrap();
    two.batch_execute("DISCARD ALL").unwrap();
    assert_eq!(one.query_one(&mine, &[&1]).unwrap().get::<_, i32>(0), 2);
    assert!(one.prepare("SELECT nonsense").is_err());
    assert_eq!(one.query_one(&mine, &[&2]).unwrap().get::<_, i32>(0), 3);
    two.batch_execute("DEALLOCATE ALL").unwrap();
    assert_eq!(one.query_one(&mine, &[&3]).unwrap().get::<_, i32>(0), 4);
}

#[test]
fn a_cancel_reaches_the_session_that_runs_the_statement() {
    let (_data, _server, proxy) = pair(&["--pool-size", "2"]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    let (token, other) = (one.cancel_token(), two.cancel_token());
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| one.batch_execute("SELECT pg_sleep(30)").unwrap_err());
        eventually("it runs", || shows(&mut two, "in_use") == "1");
        other.cancel_query(NoTls).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!sleeps.is_finished(), "another client's");
        token.cancel_query(NoTls).unwrap();
        let error = sleeps.join().unwrap();
        assert_eq!(code_of(&error), "57014", "{error}");
    });
    token.cancel_query(NoTls).unwrap();
    two.batch_execute("SELECT 1").unwrap();
    one.batch_execute("SELECT 1").unwrap();
}

#[test]
fn copy_passes_both_ways_and_its_failure_too() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let mut client = proxy.client();
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY, v text)")
        .unwrap();
    let mut into = client.copy_in("COPY t FROM STDIN").unwrap();
    for number in 0..20_000 {
        writeln!(into, "{number}\tvalue {number}").unwrap();
    }
    assert_eq!(into.finish().unwrap(), 20_000);
    let mut out = String::new();
    client
        .copy_out("COPY t TO STDOUT")
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert_eq!(out.lines().count(), 20_000);
    let mut into = client.copy_in("COPY t FROM STDIN").unwrap();
    let failed = (0..5000).try_for_each(|_| writeln!(into, "not a number\tx"));
    assert!(into.finish().is_err() || failed.is_err());
    assert_eq!(
        client
            .query_one("SELECT count(*) FROM t", &[])
            .unwrap()
            .get::<_, i64>(0),
        20_000
    );
    drop(client.copy_in("COPY t FROM STDIN").unwrap());
    client.batch_execute("SELECT 1").unwrap();
    let mut other = proxy.client();
    assert_eq!(
        other.query_one("SELECT count(*) FROM t", &[]).unwrap().get::<_, i64>(0),
        20_000
    );
}

pub fn resident_kib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A thousand clients, of which each has said something, on two sessions.
#[test]
fn a_thousand_idle_clients_cost_little() {
    let (_data, _server, proxy) = pair(&["--pool-size", "2"]);
    let mut first = proxy.client();
    first.batch_execute("SELECT 1").unwrap();
    let before = resident_kib(&proxy.process);
    let hello = crate::stub::startup(&[("user", "tester"), ("database", "cenote")]);
    let mut clients: Vec<_> = (0..1000)
        .map(|_| crate::stub::Client::raw(([127, 0, 0, 1], proxy.process.port).into()))
        .collect();
    for client in &mut clients {
        client.send(&hello);
        client.until_ready();
    }
    for client in &mut clients {
        client.send(&crate::stub::query("SELECT 1"));
        client.until_ready();
    }
    let each = (resident_kib(&proxy.process) - before) * 1024 / 1000;
    println!("{each} bytes an idle client");
    assert!(each < 16 << 10, "{each} bytes an idle client");
    assert_eq!(shows(&mut first, "clients"), "1001");
    assert!(shows(&mut first, "sessions").parse::<usize>().unwrap() <= 2);
    drop(clients);
    eventually("they are forgotten", || shows(&mut first, "clients") == "1");
}

#[test]
fn passwords_are_asked_for_on_both_sides() {
    let data = Data::new();
    let file = data.path().join("passwords");
    std::fs::write(&file, "anna:open sesame\n").unwrap();
    let mut command = cenote(&[
        "run",
        "--memory",
        "dram",
        "--memory-size",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--data",
    ]);
    command.arg(data.path().join("d")).arg("--password-file").arg(&file);
    let server = Process::spawn(command);
    let proxy = Proxy::start(&writer_at(server.port), &["--password-file", file.to_str().unwrap()]);
    let connect = |user: &str, password: &str| {
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(proxy.process.port)
            .user(user)
            .password(password)
            .dbname("cenote");
        config.connect(NoTls)
    };
    let mut client = connect("anna", "open sesame").unwrap();
    assert_eq!(text(&mut client, "SELECT current_user"), "anna");
    for (user, password) in [("anna", "sesame"), ("bert", "open sesame")] {
        let error = connect(user, password).err().unwrap();
        assert_eq!(code_of(&error), "28P01", "{error}");
    }
    std::fs::write(&file, "anna:SCRAM-SHA-256$4096:AAAA$AAAA:AAAA\n").unwrap();
    let mut command = cenote(&[
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--servers",
        &writer_at(server.port),
        "--password-file",
    ]);
    let (ok, _) = output(command.arg(&file));
    assert!(!ok);
    let (ok, said) = output(&mut cenote(&[
        "proxy",
        "--listen",
        "0.0.0.0:0",
        "--servers",
        "writer=127.0.0.1:1",
    ]));
    assert!(!ok && said.contains("--password-file"), "{said}");
    let (ok, said) = output(&mut cenote(&["proxy", "--listen", "127.0.0.1:0"]));
    assert!(!ok && said.contains("--storage"), "{said}");
}

#[test]
fn a_stop_lets_transactions_end() {
    let (_data, server, mut proxy) = pair(&[]);
    let (mut busy, mut idle) = (proxy.client(), proxy.client());
    busy.batch_execute("CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (1)")
        .unwrap();
    idle.batch_execute("SELECT 1").unwrap();
    crate::moved::signal(&proxy.process, rustix::process::Signal::TERM);
    eventually("the idle one is sent away", || idle.batch_execute("SELECT 1").is_err());
    busy.batch_execute("INSERT INTO t VALUES (2); COMMIT").unwrap();
    assert!(proxy.process.child.wait().unwrap().success());
    let count: i64 = server.client().query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
    assert_eq!(count, 2);
}
