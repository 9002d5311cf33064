//! Settings as clients see them: what they are told, and when; and the limits for those that pause.

use crate::program::{Data, Process, cenote};
use crate::stub::{Client, bind_portal, execute, message, parse, query, sqlstate, startup};
use std::net::SocketAddr;

struct Program {
    address: SocketAddr,
    _process: Process,
    _data: Data,
}

fn program() -> Program {
    let data = Data::new();
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path());
    let process = Process::spawn(command);
    Program {
        address: SocketAddr::from(([127, 0, 0, 1], process.port)),
        _process: process,
        _data: data,
    }
}

/// A message as `settings.txt` writes it.
fn shown(tag: u8, body: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match tag {
        b'S' => {
            let mut fields = body.split(|&byte| byte == 0).map(text);
            format!("S:{}={}", fields.next()?, fields.next()?)
        }
        b'E' | b'N' => format!("{}:{}", char::from(tag), sqlstate(body)),
        b'D' => format!("D:{}", text(&body[6..])),
        b'C' => text(&body[..body.len() - 1]),
        b'Z' => format!("Z{}", char::from(body[0])),
        _ => return None,
    })
}

/// SET was told at once and its end never: after ROLLBACK, RESET ALL, DISCARD ALL or the end of SET LOCAL a client
/// believed a value that was not in force. ROLLBACK TO SAVEPOINT took no setting back, nor did an error.
#[test]
fn settings_follow_transactions_and_clients_are_told_as_by_postgres() {
    let program = program();
    for (number, session) in include_str!("settings.txt").split("\n\n").skip(1).enumerate() {
        let mut client = Client::raw(program.address);
        client.send(&startup(&[
            ("user", "x"),
            ("database", "cenote"),
            ("application_name", "start"),
            ("TimeZone", "UTC"),
        ]));
        client.until_ready();
        for line in session.lines() {
            let (statement, expected) = line.split_once(" -> ").expect("a statement and its answer");
            client.send(&query(statement));
            let answer = client.until_ready();
            let answer: Vec<String> = answer.iter().filter_map(|(tag, body)| shown(*tag, body)).collect();
            assert_eq!(answer.join(" "), expected, "session {number}: {statement}");
        }
    }
}

#[test]
fn a_client_that_pauses_for_too_long_is_sent_away() {
    let program = program();
    for (setting, then, code) in [
        ("idle_in_transaction_session_timeout", "BEGIN", "25P03"),
        ("idle_in_transaction_session_timeout", "BEGIN; SELECT 1/0", "25P03"),
        ("idle_session_timeout", "SELECT 1", "57P05"),
    ] {
        let mut client = Client::connect(program.address);
        client.send(&query(&format!("SET {setting} = 300")));
        client.until_ready();
        client.send(&query(then));
        client.until_ready();
        assert_eq!(client.last_words(), code, "{setting}");
    }
    // A session that has not said a word yet, too.
    let mut client = Client::raw(program.address);
    client.send(&startup(&[
        ("user", "x"),
        ("database", "cenote"),
        ("options", "-c idle_session_timeout=300"),
    ]));
    client.until_ready();
    assert_eq!(client.last_words(), "57P05");
    // The one does not concern a session outside of a transaction, and the other none that works.
    let mut client = Client::connect(program.address);
    client.send(&query(
        "SET idle_in_transaction_session_timeout = 300; SET idle_session_timeout = '1h'",
    ));
    client.until_ready();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    client.send(&query("BEGIN; COMMIT"));
    assert_eq!(client.tags(), "CCZ");
}

/// COPY kept its thread and heard nothing while it waited for its client: no time limit, no cancel.
#[test]
fn a_copy_whose_client_says_nothing_runs_out_of_time() {
    let program = program();
    let mut client = Client::connect(program.address);
    client.send(&query(
        "CREATE TABLE t (id int PRIMARY KEY); SET statement_timeout = 200",
    ));
    client.until_ready();
    client.send(&query("COPY t FROM STDIN; SELECT 1"));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(&message(b'd', b"1\n"));
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "57014");
    let copy = [parse("", "COPY t FROM STDIN"), bind_portal("", ""), execute("", 0)].concat();
    client.send(&[copy, message(b'S', b"")].concat());
    let tags: Vec<u8> = (0..4).map(|_| client.next().unwrap().0).collect();
    assert_eq!(tags, b"12GE");
    client.send(&[message(b'd', b"2\n"), message(b'c', b""), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "Z");
    client.send(&query("SELECT count(*) FROM t"));
    assert_eq!(client.until_ready()[1].1[6..], *b"0");
    // The statements of a text go on behind a COPY, another COPY included.
    client.send(&query("RESET statement_timeout"));
    client.until_ready();
    client.send(&query("COPY t FROM STDIN; COPY t FROM STDIN; SELECT count(*) FROM t"));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(&[message(b'd', b"1\n2\n"), message(b'c', b"")].concat());
    assert_eq!((client.next().unwrap().0, client.next().unwrap().0), (b'C', b'G'));
    client.send(&[message(b'd', b"3\n"), message(b'c', b"")].concat());
    let answer = client.until_ready();
    let tags: String = answer.iter().map(|(tag, _)| char::from(*tag)).collect();
    assert_eq!((tags.as_str(), &answer[2].1[6..]), ("CTDCZ", &b"3"[..]));
}
