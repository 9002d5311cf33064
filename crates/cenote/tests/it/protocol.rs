//! The protocol in bytes: what clients do right, and all that they can do wrong.

use crate::stub::{COPY_IN, Client, Host, WAIT, bind_portal, execute, message, parse, query, rows, sqlstate, startup};
use cenote::server::auth::Passwords;
use cenote_sql::code;
use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

#[test]
fn a_simple_query_is_answered_in_order() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&query(&rows(3)));
    assert_eq!(client.tags(), "TDDDCZ");
    client.send(&query(""));
    assert_eq!(client.tags(), "IZ");
    client.send(&query("commit"));
    assert_eq!(client.tags(), "NCZ");
    client.send(&query("fail"));
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "22012");
    let text = String::from_utf8(answer[0].1.clone()).unwrap();
    assert!(
        text.starts_with("SERROR\0VERROR\0C22012\0Mdivision by zero\0HDo not.\0P3\0"),
        "{text:?}"
    );
}

#[test]
fn the_transaction_status_is_told() {
    let host = Host::start();
    let mut client = host.client();
    let mut status = |text: &str| {
        client.send(&query(text));
        client.until_ready().last().unwrap().1[0]
    };
    assert_eq!(status("begin"), b'T');
    assert_eq!(status("fail"), b'E');
    assert_eq!(status("commit"), b'I');
}

/// Adds rows to the table of numbers until it has `count`.
fn fill(client: &mut Client, count: usize) {
    let numbers: String = (10..count).map(|n| format!("{n}\n")).collect();
    let copy = [
        query("copy numbers from stdin"),
        message(b'd', numbers.as_bytes()),
        message(b'c', b""),
    ];
    client.send(&copy.concat());
    assert_eq!(client.tags(), "GCZ");
}

#[test]
fn a_failing_row_is_cut_off() {
    let host = Host::start();
    let mut client = host.client();
    fill(&mut client, 3_000);
    let wide = "x".repeat(100);
    client.send(&query(&format!("select n, '{wide}', 1 / (2013 - n) from numbers")));
    let tags = client.tags();
    assert!(tags.ends_with("DEZ"), "{}", &tags[tags.len() - 10..]);
    assert_eq!(tags.matches('D').count(), 2_013);
}

#[test]
fn a_pipeline_skips_to_sync_after_an_error() {
    let host = Host::start();
    let mut client = host.client();
    let good = [
        parse("", &rows(2)),
        bind_portal("", ""),
        message(b'D', b"P\0"),
        execute("", 0),
    ]
    .concat();
    let sync = message(b'S', b"");
    client.send(
        &[
            good.clone(),
            parse("", "syntax"),
            good.clone(),
            sync.clone(),
            good,
            sync,
        ]
        .concat(),
    );
    assert_eq!(client.tags(), "12TDDCEZ");
    assert_eq!(client.tags(), "12TDDCZ");
}

/// asyncpg sends Parse, Describe and Flush, and waits: the error of Parse stayed in the buffer until a Sync that never
/// came.
#[test]
fn flush_sends_the_error_that_came_before_it() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&[parse("s", "syntax"), message(b'D', b"Ss\0"), message(b'H', b"")].concat());
    let (tag, body) = client.next().expect("an error before Sync");
    assert_eq!((tag, sqlstate(&body)), (b'E', "42601".into()));
    client.send(&[parse("", &rows(1)), message(b'H', b""), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "Z", "skipped up to Sync, nothing said twice");
}

/// Errors waited for Flush or Sync: a client that sends COPY data without end was not told that its first line was bad.
#[test]
fn an_error_of_the_extended_protocol_goes_out_at_once() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&parse("s", "syntax"));
    let (tag, body) = client.next().expect("an error before Sync");
    assert_eq!((tag, sqlstate(&body)), (b'E', "42601".into()));
    client.send(&message(b'S', b""));
    assert_eq!(client.tags(), "Z");
    client.send(&[parse("", COPY_IN), bind_portal("", ""), execute("", 0)].concat());
    let tags: String = (0..3).map(|_| char::from(client.next().unwrap().0)).collect();
    assert_eq!(tags, "12G");
    client.send(&message(b'd', b"bad\tline\n"));
    let (tag, body) = client.next().expect("an error before CopyDone");
    assert_eq!((tag, sqlstate(&body)), (b'E', "22P04".into()));
    client.send(&[message(b'd', b"good\n"), message(b'c', b""), message(b'S', b"")].concat());
    assert_eq!(client.tags(), "Z");
}

/// Errors that were found before SQL saw the message failed no transaction: ReadyForQuery said T.
#[test]
fn a_message_that_cannot_be_read_fails_its_transaction() {
    let host = Host::start();
    let mut client = host.client();
    let sync = message(b'S', b"");
    for bad in [
        message(b'Q', b"\xff\0"),
        message(b'Q', b"no end"),
        message(b'F', b"\0\0\0\0"),
        [message(b'P', b"\0\xff\0\0\0"), sync.clone()].concat(),
        [message(b'B', b"\0\0\0\x01"), sync.clone()].concat(),
        [message(b'E', b"\0\0"), sync.clone()].concat(),
        [message(b'D', b"Xs\0"), sync.clone()].concat(),
    ] {
        client.send(&query("begin"));
        assert_eq!(client.until_ready().last().unwrap().1, b"T");
        client.send(&bad);
        assert_eq!(client.until_ready().last().unwrap().1, b"E", "{bad:?}");
        client.send(&query("commit"));
        client.until_ready();
    }
}

#[test]
fn a_portal_is_suspended_and_resumed() {
    let host = Host::start();
    let mut client = host.client();
    let sync = message(b'S', b"");
    client.send(
        &[
            parse("s", &rows(5)),
            bind_portal("p", "s"),
            execute("p", 2),
            execute("p", 2),
            message(b'H', b""),
        ]
        .concat(),
    );
    let tags: String = (0..8).map(|_| char::from(client.next().unwrap().0)).collect();
    assert_eq!(tags, "12DDsDDs", "Flush sends what waits");
    client.send(&[execute("p", 2), message(b'C', b"Pp\0"), execute("p", 0), sync.clone()].concat());
    let answer = client.until_ready();
    assert_eq!(
        answer.iter().map(|(tag, _)| char::from(*tag)).collect::<String>(),
        "DC3EZ"
    );
    assert_eq!(sqlstate(&answer[3].1), "34000");
    client.send(
        &[
            message(b'D', b"Ss\0"),
            message(b'C', b"Ss\0"),
            bind_portal("", "s"),
            sync,
        ]
        .concat(),
    );
    assert_eq!(client.tags(), "tT3EZ");
}

#[test]
fn copy_goes_both_ways() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&query("copy (select 1) to stdout"));
    assert_eq!(client.tags(), "HdcCZ");
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(
        &[
            message(b'd', b"one\ntw"),
            message(b'H', b""),
            message(b'd', b"o\n"),
            message(b'c', b""),
        ]
        .concat(),
    );
    let answer = client.until_ready();
    assert_eq!(answer[0].1, b"COPY 2\0");
}

#[test]
fn what_remains_of_a_failed_copy_is_swallowed() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(
        &[
            message(b'd', b"bad\tline\n"),
            message(b'd', b"more\n"),
            message(b'c', b""),
        ]
        .concat(),
    );
    assert_eq!(client.tags(), "EZ");
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(&message(b'f', b"changed my mind\0"));
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "57014");
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    client.send(&query(&rows(1)));
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "08P01");
    client.send(&query(&rows(1)));
    assert_eq!(client.tags(), "TDCZ");
}

#[test]
fn encryption_is_declined_and_the_session_goes_on() {
    let host = Host::start();
    let mut client = Client::raw(host.address);
    for code in [80_877_103i32, 80_877_104] {
        client.send(&[8i32.to_be_bytes(), code.to_be_bytes()].concat());
        let mut answer = [0];
        std::io::Read::read_exact(&mut client.stream, &mut answer).unwrap();
        assert_eq!(answer[0], b'N');
    }
    client.send(&startup(&[("user", "x"), ("database", "cenote")]));
    assert_eq!(client.tags().replace('S', ""), "RKZ");
}

#[test]
fn a_newer_protocol_and_unknown_extensions_are_negotiated() {
    let host = Host::start();
    let mut client = Client::raw(host.address);
    let mut packet = startup(&[("user", "x"), ("database", "cenote"), ("_pq_.fancy", "1")]);
    packet[7] = 2;
    client.send(&packet);
    let answer = client.until_ready();
    assert_eq!(answer[0], (b'v', b"\0\x03\0\0\0\0\0\x01_pq_.fancy\0".to_vec()));
}

/// 10,000 bytes became 400,000 that were kept until the client had proved its user, or its minute was over.
#[test]
fn a_startup_packet_has_few_settings() {
    let host = Host::start();
    for (count, setting, code) in [(200, "application_name", ""), (300, "a", "54000"), (3000, "a", "54000")] {
        let mut parameters = vec![("user", "x"), ("database", "cenote")];
        parameters.resize(count, (setting, ""));
        let mut client = Client::raw(host.address);
        client.send(&startup(&parameters));
        if code.is_empty() {
            client.until_ready();
        } else {
            assert_eq!(client.last_words(), code, "{count} settings");
        }
    }
}

#[test]
fn another_database_is_refused() {
    let host = Host::start();
    let mut client = Client::raw(host.address);
    client.send(&startup(&[("user", "x"), ("database", "postgres")]));
    assert_eq!(client.last_words(), "3D000");
    let mut client = Client::raw(host.address);
    client.send(&startup(&[("database", "cenote")]));
    assert_eq!(client.last_words(), "28000");
}

#[test]
fn garbage_is_refused_and_disturbs_no_other_session() {
    let host = Host::start();
    let mut bystander = host.client();
    let tls_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        tls_hello,
        b"\0\0\0\x04",
        b"\0\0\0\x08\0\x02\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut client = Client::raw(host.address);
        client.send(garbage);
        let state = client.last_words();
        assert!(state == "08P01" || state == "0A000", "{garbage:?}: {state:?}");
    }
    for garbage in [
        &b"\0\0\0\0\0"[..],
        b"Q\0\0\0\x01",
        b"Q\x7f\xff\xff\xff",
        b"S\0\x0f\xff\xff",
        b"Z\0\0\0\x05I",
        b"hello\n",
    ] {
        let mut client = host.client();
        client.send(garbage);
        assert_eq!(client.last_words(), "08P01", "{garbage:?}");
    }
    bystander.send(&query(&rows(1)));
    assert_eq!(bystander.tags(), "TDCZ");
    host.wait_alive(1);
}

#[test]
fn malformed_bodies_are_errors_of_the_message_only() {
    let host = Host::start();
    let mut client = host.client();
    let sync = message(b'S', b"");
    for (tag, body) in [
        (b'P', &b"no end"[..]),
        (b'P', b"\0x\0\0\x05"),
        (b'P', b"\0x\0\xff\xff"),
        (b'P', b"\0x\0\0\0trailing"),
        (b'B', b"\0\0\0\0\0\x01\0\0\0\x7f"),
        (b'B', b"\0\0\0\x01"),
        (b'D', b"Xname\0"),
        (b'D', b""),
        (b'E', b"\0\0\0"),
        (b'C', b"S"),
    ] {
        client.send(&[message(tag, body), sync.clone()].concat());
        let answer = client.until_ready();
        assert_eq!(sqlstate(&answer[0].1), "08P01", "{} {body:?}", char::from(tag));
    }
    client.send(&message(b'Q', b"no end"));
    assert_eq!(sqlstate(&client.until_ready()[0].1), "08P01");
    client.send(&message(b'Q', b"\xff\xfe\0"));
    assert_eq!(sqlstate(&client.until_ready()[0].1), "22021");
    client.send(&message(b'F', b"\0\0\0\0"));
    assert_eq!(sqlstate(&client.until_ready()[0].1), "0A000");
}

#[test]
fn a_client_that_vanishes_leaves_nothing() {
    let host = Host::start();
    let mut clients: Vec<Client> = (0..3).map(|_| host.client()).collect();
    for client in &mut clients {
        client.send(&query("begin"));
        client.until_ready();
    }
    host.wait_alive(3);
    clients[0].send(b"Q\0\0\0\x20half");
    clients[1].stream.shutdown(Shutdown::Both).unwrap();
    // Unread bytes in its buffer make the third one's close a reset.
    clients[2].send(&query(&rows(5)));
    std::thread::sleep(Duration::from_millis(50));
    drop(clients);
    host.wait_alive(0);
    assert!(host.server.registry.sessions().is_empty());
}

#[test]
fn a_client_that_stops_reading_and_leaves_ends_its_statement() {
    let host = Host::start();
    let mut client = host.client();
    fill(&mut client, 3_000);
    let wide = query(&format!("select n, '{}' from numbers", "x".repeat(100)));
    client.send(&wide);
    for _ in 0..100 {
        client.send(&wide);
    }
    std::thread::sleep(Duration::from_millis(100));
    drop(client);
    host.wait_alive(0);
}

/// A message took up to 256 MiB beyond every limit; all sessions' together took what the machine had.
#[test]
fn a_large_message_takes_of_what_its_session_may_hold() {
    const HELD_MAX: usize = 16 << 20;
    let host = Host::start();
    // A session gets half of it.
    host.engine.memory().set_limit(2 * HELD_MAX as u64);
    let mut client = host.client();
    let held = || host.engine.memory().used() as usize;
    let before = held();
    let text = |bytes| query(&"x".repeat(bytes));
    let fits = text(HELD_MAX / 4);
    let (most, rest) = fits.split_at(fits.len() - 1);
    client.send(most);
    wait_until("the message is accounted for", || held() >= fits.len());
    client.send(rest);
    assert_eq!(sqlstate(&client.until_ready()[0].1), "42601");
    let large = text(2 * HELD_MAX);
    let sync = message(b'S', b"");
    let (refused, sent) = (code::OUT_OF_MEMORY, "TDCZ");
    client.send(&[&large[..], &query(&rows(1))].concat());
    assert_eq!(sqlstate(&client.until_ready()[0].1), refused);
    assert_eq!(client.tags(), sent);
    for tag in [b'P', b'B'] {
        let mut large = large.clone();
        large[0] = tag;
        client.send(&[parse("", &rows(1)), large, parse("", &rows(1)), sync.clone()].concat());
        let answer = client.until_ready();
        assert_eq!((answer.len(), sqlstate(&answer[1].1).as_str()), (3, refused));
    }
    client.send(&query(COPY_IN));
    assert_eq!(client.next().unwrap().0, b'G');
    let mut data = large.clone();
    data[0] = b'd';
    client.send(&[&data[..], &data, &message(b'c', b""), &query(&rows(1))].concat());
    assert_eq!(sqlstate(&client.until_ready()[0].1), refused);
    assert_eq!(client.tags(), sent);
    // The rest of what is dropped may come later.
    client.send(&large[..HELD_MAX]);
    assert_eq!(sqlstate(&client.until_ready()[0].1), refused);
    std::thread::sleep(Duration::from_millis(250));
    client.send(&large[HELD_MAX..]);
    client.send(&query(&rows(1)));
    assert_eq!(client.tags(), sent);
    wait_until("what messages took is given back", || held() <= before);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_message_comes_in_pieces() {
    let host = Host::start();
    let mut client = host.client();
    for byte in query(&rows(2)) {
        client.stream.write_all(&[byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.tags(), "TDDCZ");
    let long = format!("{}{}", rows(1), " ".repeat(3_000_000));
    client.send(&query(long.trim_end()));
    assert_eq!(client.tags(), "TDCZ");
    client.send(&query(&"x".repeat(3_000_000)));
    assert_eq!(client.tags(), "EZ");
}

#[test]
fn a_statement_is_cancelled_by_another_connection() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&query(WAIT));
    std::thread::sleep(Duration::from_millis(30));
    let cancel = |id: i32, secret: i32| {
        let mut other = Client::raw(host.address);
        other.send(
            &[
                16i32.to_be_bytes(),
                80_877_102i32.to_be_bytes(),
                id.to_be_bytes(),
                secret.to_be_bytes(),
            ]
            .concat(),
        );
        assert!(other.next().is_none(), "a cancel request is not answered");
    };
    cancel(client.id, client.secret.wrapping_add(1));
    cancel(client.id + 1, client.secret);
    client
        .stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let mut byte = [0];
    assert!(client.stream.peek(&mut byte).is_err(), "a wrong secret cancels nothing");
    client.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    cancel(client.id, client.secret);
    let answer = client.until_ready();
    assert_eq!(sqlstate(&answer[0].1), "57014");
    client.send(&query(&rows(1)));
    assert_eq!(client.tags(), "TDCZ");
}

#[test]
fn a_panic_ends_one_session_with_xx000() {
    let host = Host::start();
    let mut bystander = host.client();
    let mut client = host.client();
    client.send(&query("panic"));
    assert_eq!(client.last_words(), "XX000");
    host.wait_alive(1);
    bystander.send(&query(&rows(1)));
    assert_eq!(bystander.tags(), "TDCZ");
}

#[test]
fn one_too_many_is_told_so() {
    let host = Host::with(None, 2);
    let (first, _second) = (host.client(), host.client());
    let mut third = Client::raw(host.address);
    third.send(&startup(&[("user", "x"), ("database", "cenote")]));
    assert_eq!(third.last_words(), "53300");
    drop(first);
    host.wait_alive(1);
    host.client();
}

#[test]
fn a_shutdown_tells_every_session() {
    let mut host = Host::start();
    let mut idle = host.client();
    let mut busy = host.client();
    busy.send(&query(WAIT));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(host.server.stop(Duration::from_secs(5)), 0);
    assert_eq!(idle.last_words(), "57P01");
    assert_eq!(busy.last_words(), "57P01");
}

/// Statements that had come before the shutdown ran on, with nothing to cancel them.
#[test]
fn a_shutdown_begins_no_statement_that_waits_in_the_buffer() {
    let mut host = Host::start();
    let mut client = host.client();
    client.send(&[query("deaf"), query(&rows(1))].concat());
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(host.server.stop(Duration::from_secs(5)), 0);
    let mut answer = Vec::new();
    while let Some(message) = client.next() {
        answer.push(message);
    }
    let tags: String = answer.iter().map(|(tag, _)| char::from(*tag)).collect();
    assert!(!tags.contains('D'), "{tags}");
    assert_eq!(sqlstate(&answer.last().unwrap().1), "57P01");
}

/// A COMMIT by the extended protocol was carried out just before its server handed over, and told as unknown: the Sync
/// behind it was dropped.
#[test]
fn a_batch_that_was_begun_ends_with_its_sync() {
    let mut host = Host::start();
    let (mut holder, mut client) = (host.client(), host.client());
    holder.send(&query("begin"));
    holder.until_ready();
    holder.send(&query("select n from numbers where n = 3 for update"));
    holder.until_ready();
    let sync = message(b'S', b"");
    let delete = [
        parse("", "delete from numbers where n = 3"),
        bind_portal("", ""),
        execute("", 0),
        sync,
    ];
    client.send(&delete.concat());
    std::thread::sleep(Duration::from_millis(50));
    // The holder's block ends at once, and the statement goes on.
    assert_eq!(
        host.server.hand_over(Duration::from_secs(20), Duration::from_secs(5)),
        0
    );
    let answer: Vec<(u8, Vec<u8>)> = std::iter::from_fn(|| client.next()).collect();
    let tags: String = answer.iter().map(|(tag, _)| char::from(*tag)).collect();
    assert_eq!(tags, "12CZE");
    assert_eq!(sqlstate(&answer[4].1), "57P01");
    assert_eq!(holder.last_words(), "57P01");
}

#[test]
fn passwords_are_asked_for_and_checked() {
    let passwords = std::env::temp_dir().join(format!("cenote-passwords-{}", std::process::id()));
    std::fs::write(&passwords, "anna:open sesame\n").unwrap();
    let host = Host::with(Some(Passwords::read(&passwords).unwrap()), 10);
    std::fs::remove_file(&passwords).unwrap();
    let connect = |user: &str, password: &str| {
        let mut config = postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(host.address.port())
            .user(user)
            .password(password)
            .dbname("cenote");
        config.connect(postgres::NoTls)
    };
    assert!(connect("anna", "open sesame").is_ok());
    for (user, password) in [("anna", "open says me"), ("bert", "open sesame")] {
        let error = connect(user, password).err().expect("not let in");
        assert_eq!(error.code().unwrap().code(), "28P01", "{error:?}");
    }
    let mut client = Client::raw(host.address);
    client.send(&startup(&[("user", "anna"), ("database", "cenote")]));
    assert_eq!(client.next().unwrap(), (b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0".to_vec()));
    client.send(&query(&rows(1)));
    assert_eq!(client.last_words(), "08P01");
    // A client without a password could make the server gather 256 MiB: the header alone is refused.
    for header in [&b"Q"[..], b"Q\x0f\xff\xff\xff", b"p\x0f\xff\xff\xff"] {
        let mut client = Client::raw(host.address);
        client.send(&startup(&[("user", "anna"), ("database", "cenote")]));
        assert_eq!(client.next().unwrap().0, b'R');
        client.send(header);
        assert_eq!(client.last_words(), "08P01");
    }
}

#[test]
fn only_the_loopback_interface_is_open() {
    let refused = cenote::server::bind("0.0.0.0:0", false).unwrap_err().to_string();
    assert!(refused.contains("--password-file"), "{refused}");
    assert!(cenote::server::bind("0.0.0.0:0", true).is_ok());
    assert!(cenote::server::bind("localhost:0", false).is_ok());
    assert!(cenote::server::bind("nonsense", false).is_err());
}

/// A session that waits for a row lock kept its own locks for as long as it waited, though its client was gone.
#[test]
fn a_client_that_vanishes_while_its_statement_waits_is_noticed() {
    let host = Host::start();
    let mut client = host.client();
    client.send(&query("begin"));
    client.until_ready();
    client.send(&query(WAIT));
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    host.wait_alive(0);
}

#[test]
fn what_runs_is_shown() {
    let host = Host::start();
    let mut client = host.client();
    let sync = message(b'S', b"");
    client.send(
        &[
            parse("a", &rows(1)),
            parse("b", &rows(2)),
            bind_portal("", "a"),
            execute("", 0),
            sync,
        ]
        .concat(),
    );
    client.until_ready();
    let shown = host.server.registry.sessions();
    assert_eq!(
        (shown[0].query(), shown[0].application_name()),
        (rows(1), "test".into())
    );
    client.send(&query("begin"));
    client.until_ready();
    let shown = host.server.registry.sessions();
    assert_eq!(
        (shown[0].query().as_str(), shown[0].state().word()),
        ("begin", "idle in transaction")
    );
}
