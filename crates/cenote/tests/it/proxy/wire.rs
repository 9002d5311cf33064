//! The proxy on raw sockets.

use super::pair;
use crate::stub::{Client, bind_portal, execute, message, parse, query, sqlstate, startup};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn address(proxy: &super::Proxy) -> SocketAddr {
    ([127, 0, 0, 1], proxy.process.port).into()
}

#[test]
fn garbage_and_half_packets_end_their_connection_and_no_other() {
    let (_data, _server, proxy) = pair(&[]);
    let mut bystander = proxy.client();
    let hello = startup(&[("user", "a"), ("database", "cenote")]);
    let beginnings: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x08\x12\x34",
        &[0xff; 64],
        b"\0\0\0\x09\0\x03\0\0\0",
        b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02",
        b"\x16\x03\x01\x02\0",
        &hello[..hello.len() - 3],
    ];
    for beginning in beginnings {
        let mut stream = TcpStream::connect(address(&proxy)).unwrap();
        stream.write_all(beginning).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    }
    // After a start that is right.
    for garbage in [
        &b"\xffxxxx"[..],
        b"Q\0\0\0\x02",
        b"P\0\0\0\x05x",
        b"B\0\0\0\x04",
        b"p\0\0\0\x04",
        b"Q\x7f\xff\xff\xff",
    ] {
        let mut client = Client::connect(address(&proxy));
        client.send(&[garbage, &message(b'S', b"")].concat());
        assert_eq!(client.last_words(), "08P01", "{garbage:?}");
    }
    let mut client = Client::connect(address(&proxy));
    client.send(&message(b'F', b"\0\0\0\x01\0\0\0\0\0\0"));
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "0A000");
    bystander.batch_execute("SELECT 1").unwrap();
}

#[test]
fn a_pipelined_batch_is_answered_in_order() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let (mut client, mut other) = (Client::connect(address(&proxy)), Client::connect(address(&proxy)));
    let sync = message(b'S', b"");
    let run = |name: &str| [bind_portal("", name), execute("", 0)].concat();
    let one = [
        parse("a", "SELECT 1"),
        parse("b", "SELECT 2"),
        run("a"),
        run("b"),
        run("a"),
        sync.clone(),
    ]
    .concat();
    client.send(&one);
    assert_eq!(client.tags(), "112DC2DC2DCZ");
    // Several batches at once, one byte after the other; the other client has the same name for something else.
    other.send(&[parse("a", "SELECT 'x'"), run("a"), sync.clone()].concat());
    assert_eq!(other.tags(), "12DCZ");
    let several = [run("a"), sync.clone(), run("b"), sync.clone(), query("SELECT 3")].concat();
    several.iter().for_each(|byte| client.send(&[*byte]));
    assert_eq!(
        (client.tags(), client.tags(), client.tags()),
        ("2DCZ".into(), "2DCZ".into(), "TDCZ".into())
    );
    // A batch that fails: what came behind the failure was not done, names included.
    let failing = [
        parse("c", "SELECT 1/0 + $1"),
        parse("d", "SELECT nonsense"),
        parse("e", "SELECT 5"),
        sync.clone(),
    ];
    client.send(&failing.concat());
    assert_eq!(client.tags(), "1EZ");
    client.send(&[run("e"), sync.clone()].concat());
    assert_eq!(client.tags(), "EZ");
    client.send(&[parse("a", "SELECT 9"), sync.clone()].concat());
    assert_eq!(client.tags(), "EZ", "the name is in use");
    client.send(&[message(b'C', b"Sa\0"), parse("a", "SELECT 9"), run("a"), sync.clone()].concat());
    assert_eq!(client.tags(), "312DCZ");
    // The statement without a name lives on, on whichever session.
    client.send(&[parse("", "SELECT 6"), sync.clone()].concat());
    assert_eq!(client.tags(), "1Z");
    other.send(&[parse("", "SELECT 7, 8"), run(""), sync.clone()].concat());
    assert_eq!(other.tags(), "12DCZ");
    client.send(&[run(""), sync].concat());
    assert_eq!(client.tags(), "2DCZ");
}

#[test]
fn a_flush_is_answered_before_sync() {
    let (_data, _server, proxy) = pair(&[]);
    let mut client = Client::connect(address(&proxy));
    client.send(&[parse("", "SELECT 1"), message(b'D', b"S\0"), message(b'H', b"")].concat());
    let tags: String = (0..3).map(|_| char::from(client.next().unwrap().0)).collect();
    assert_eq!(tags, "1tT");
    client.send(&[bind_portal("", ""), execute("", 0), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "2DCZ");
    // All is dropped from an error up to Sync, whenever it comes.
    client.send(&[parse("", "SELECT nonsense"), message(b'H', b"")].concat());
    assert_eq!(client.next().unwrap().0, b'E');
    client.send(&[parse("a", "SELECT 1"), bind_portal("", "a"), message(b'H', b"")].concat());
    client.send(&[execute("", 0), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "Z");
    client.send(&[bind_portal("", "a"), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "EZ");
}

/// A session that was another's in between has no statement without a name; one that a name of the proxy's finds is none
/// of the client's.
#[test]
fn statements_of_others_are_not_to_be_had_and_ones_own_stay() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let (mut client, mut other) = (Client::connect(address(&proxy)), Client::connect(address(&proxy)));
    let sync = message(b'S', b"");
    let run = |name: &str| [bind_portal("", name), execute("", 0), message(b'S', b"")].concat();
    client.send(&[parse("", "SELECT 6"), sync.clone()].concat());
    assert_eq!(client.tags(), "1Z");
    // Another state: the session is handed over, and back.
    other.send(&query("SET lock_timeout = 77"));
    other.tags();
    other.send(&[parse("a", "SELECT 7"), sync.clone()].concat());
    assert_eq!(other.tags(), "1Z");
    client.send(&run(""));
    assert_eq!(client.tags(), "2DCZ");
    let mut third = Client::connect(address(&proxy));
    for name in ["", "_cenote_1", "_cenote_2", "_cenote_3"] {
        third.send(&run(name));
        let answer = third.until_ready();
        assert_eq!(sqlstate(&answer[0].1), "26000", "{name:?}");
    }
    third.send(&[message(b'C', b"S_cenote_2\0"), sync].concat());
    assert_eq!(third.tags(), "3Z");
    other.send(&run("a"));
    assert_eq!(other.tags(), "2DCZ");
}

/// The data of a COPY, and its end, may come in front of the server's answer.
#[test]
fn a_copy_may_be_pipelined() {
    let (_data, _server, proxy) = pair(&[]);
    let mut client = Client::connect(address(&proxy));
    client.send(&query("CREATE TABLE t (n int)"));
    client.tags();
    let copy = [
        parse("", "COPY t FROM STDIN"),
        bind_portal("", ""),
        execute("", 0),
        message(b'd', b"1\n2\n"),
        message(b'd', b"3\n"),
        message(b'c', b""),
        message(b'S', b""),
    ];
    client.send(&copy.concat());
    assert_eq!(client.tags(), "12GCZ");
    client.send(&query("SELECT n FROM t"));
    assert_eq!(client.tags(), "TDDDCZ");
}

/// What sessions tell the proxy is not a client's to say.
#[test]
fn a_client_says_nothing_in_a_sessions_name() {
    let (_data, _server, proxy) = pair(&["--pool-size", "1"]);
    let mut client = proxy.client();
    for text in [
        "SET _cenote.holds = ''",
        "SET \"_CENOTE.unset\" = 'lock_timeout'",
        "SELECT set_config('_cenote.position', '9', false)",
    ] {
        let error = client.batch_execute(text).expect_err(text);
        assert_eq!(super::code_of(&error), "42704", "{text}: {error}");
    }
    let error = client.batch_execute("SET \"_cenote.state\" = 's8:TimeZone3:+09'");
    assert_eq!(super::code_of(&error.expect_err("refused")), "42501");
    let parameters = [("user", "a"), ("database", "cenote"), ("_CENOTE.unset", "TimeZone")];
    let mut client = Client::raw(address(&proxy));
    client.send(&startup(&parameters));
    client.until_ready();
}

/// A large result passes at the pace of its client, and is gathered nowhere.
#[test]
fn a_slow_client_costs_no_memory() {
    let (_data, _server, proxy) = pair(&[]);
    let mut maker = proxy.client();
    maker
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY, v text)")
        .unwrap();
    let wide = "x".repeat(100_000);
    let insert = maker.prepare("INSERT INTO t VALUES ($1, $2)").unwrap();
    for n in 0..400 {
        maker.execute(&insert, &[&n, &wide]).unwrap();
    }
    let mut client = Client::connect(address(&proxy));
    let before = super::pooling::resident_kib(&proxy.process);
    client.send(&query("SELECT * FROM t"));
    std::thread::sleep(Duration::from_millis(500));
    let grown = super::pooling::resident_kib(&proxy.process).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB");
    maker.batch_execute("SELECT 1").unwrap();
    let rows = client.until_ready().iter().filter(|(tag, _)| *tag == b'D').count();
    assert_eq!(rows, 400);
}
