//! A server that does as it is told: it closes connections, ends within a row, says nonsense. What comes to it is noted.

use super::{Proxy, writer_at};
use crate::stub::{Client, message, query, sqlstate};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server sends to a text before it closes the connection, or all of the answer.
enum Reaction {
    Answer(Vec<u8>),
    Close(Vec<u8>),
}

type Script = dyn Fn(&str, usize) -> Reaction + Send + Sync;

struct Fake {
    port: u16,
    /// Texts of clients, as they came.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// `script` is asked for each text, and how often it came before.
    fn start(script: impl Fn(&str, usize) -> Reaction + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, seen) = (
            listener.local_addr().unwrap().port(),
            Arc::<Mutex<Vec<String>>>::default(),
        );
        let (script, noted): (Arc<Script>, _) = (Arc::new(script), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, noted) = (script.clone(), noted.clone());
                std::thread::spawn(move || serve(stream, &*script, &noted));
            }
        });
        Fake { port, seen }
    }

    fn times(&self, text: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| *seen == text).count()
    }
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn serve(mut stream: TcpStream, script: &Script, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    stream
        .read_exact(&mut vec![0; i32::from_be_bytes(length) as usize - 4])
        .ok()?;
    let hello = [message(b'R', &[0; 4]), message(b'K', &[0; 8]), ready(b'I')].concat();
    stream.write_all(&hello).ok()?;
    loop {
        let mut header = [0; 5];
        stream.read_exact(&mut header).ok()?;
        let mut body = vec![0; i32::from_be_bytes(header[1..].try_into().ok()?) as usize - 4];
        stream.read_exact(&mut body).ok()?;
        let text = String::from_utf8(body).ok()?.trim_end_matches('\0').to_owned();
        if text.contains("_cenote") {
            stream
                .write_all(&[message(b'C', b"SET\0"), ready(b'I')].concat())
                .ok()?;
            continue;
        }
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(text.clone());
            seen.iter().filter(|other| **other == text).count() - 1
        };
        match script(&text, before) {
            Reaction::Answer(bytes) => stream.write_all(&bytes).ok()?,
            Reaction::Close(bytes) => return stream.write_all(&bytes).ok(),
        }
    }
}

fn done(status: u8) -> Vec<u8> {
    [message(b'C', b"DONE\0"), ready(status)].concat()
}

fn fatal(code: &str) -> Vec<u8> {
    message(b'E', format!("SFATAL\0VFATAL\0C{code}\0Mover\0\0").as_bytes())
}

fn row(bytes: usize) -> Vec<u8> {
    let value = [&[0, 1][..], &(bytes as i32).to_be_bytes(), &vec![b'x'; bytes]].concat();
    message(b'D', &value)
}

fn client(fake: &Fake) -> (Proxy, Client) {
    let proxy = Proxy::start(&writer_at(fake.port), &["--wait", "5"]);
    let client = Client::connect(([127, 0, 0, 1], proxy.process.port).into());
    (proxy, client)
}

/// Tags, and the SQLSTATE of the error.
fn ask(client: &mut Client, text: &str) -> (String, String) {
    client.send(&query(text));
    let answer = client.until_ready();
    let tags = answer.iter().map(|(tag, _)| char::from(*tag)).collect();
    let error = answer.iter().find(|(tag, _)| *tag == b'E');
    (tags, error.map_or(String::new(), |(_, body)| sqlstate(body)))
}

/// However a server is lost, what may have changed something comes to a server once, and a read comes to the next.
#[test]
fn what_changes_something_is_sent_once_and_reads_are_sent_again() {
    let ways: [fn() -> Vec<u8>; 5] = [
        Vec::new,
        || fatal("57P01"),
        || b"\0nonsense".to_vec(),
        || b"C\x7f\xff\xff\xff".to_vec(),
        || row(100)[..50].to_vec(),
    ];
    for way in ways {
        let fake = Fake::start(move |_, before| match before {
            0 => Reaction::Close(way()),
            _ => Reaction::Answer(done(b'I')),
        });
        let (_proxy, mut client) = client(&fake);
        assert_eq!(ask(&mut client, "SELECT 1"), ("CZ".into(), String::new()));
        assert_eq!(fake.times("SELECT 1"), 2);
        // A part of a row was passed on with it: nothing can follow.
        client.send(&query("INSERT 1"));
        let mut state = String::new();
        while let Some((tag, body)) = next_or_torn(&mut client) {
            match tag {
                b'E' => state = sqlstate(&body),
                b'Z' => break,
                _ => {}
            }
        }
        assert!(["40003", ""].contains(&&state[..]), "{state}");
        assert_eq!(fake.times("INSERT 1"), 1);
    }
}

/// A text may end its block, and do more: whether it did is not known. What is no COMMIT alone is told so, too.
#[test]
fn a_block_that_may_have_ended_is_not_told_as_failed() {
    let fake = Fake::start(|text, _| match text {
        "BEGIN" => Reaction::Answer(done(b'T')),
        "INSERT 1; COMMIT" | "ROLLBACK; INSERT 2" | "COMMIT AND CHAIN" => Reaction::Close(Vec::new()),
        ";SELECT 1; INSERT 3" => Reaction::Close(Vec::new()),
        _ => Reaction::Answer(done(b'I')),
    });
    let (_proxy, mut client) = client(&fake);
    for text in ["INSERT 1; COMMIT", "ROLLBACK; INSERT 2", "COMMIT AND CHAIN"] {
        assert_eq!(ask(&mut client, "BEGIN").0, "CZ");
        assert_eq!(ask(&mut client, text), ("EZ".into(), "40003".into()), "{text}");
    }
    assert_eq!(ask(&mut client, ";SELECT 1; INSERT 3").1, "40003");
    assert_eq!(fake.times(";SELECT 1; INSERT 3"), 1);
}

/// A server that ends says behind an answer that it has begun nothing since: that answer stands. Said instead of one, the
/// statement goes to the next server, whatever it is.
#[test]
fn a_server_that_ends_says_what_it_has_not_begun() {
    let not_begun = || {
        let text = cenote::server::session::NOT_BEGUN;
        message(b'E', format!("SFATAL\0VFATAL\0C57P01\0Mover\0D{text}\0\0").as_bytes())
    };
    let fake = Fake::start(move |text, before| match (text, before) {
        ("INSERT answered", 0) => Reaction::Close([done(b'I'), not_begun()].concat()),
        ("INSERT refused", 0) => Reaction::Close(not_begun()),
        ("INSERT lost", 0) => Reaction::Close(fatal("57P01")),
        _ => Reaction::Answer(done(b'I')),
    });
    let (_proxy, mut client) = client(&fake);
    assert_eq!(ask(&mut client, "INSERT answered").0, "CZ");
    assert_eq!(ask(&mut client, "INSERT refused").0, "CZ");
    assert_eq!(ask(&mut client, "INSERT lost"), ("EZ".into(), "40003".into()));
    let times = ["INSERT answered", "INSERT refused", "INSERT lost"].map(|text| fake.times(text));
    assert_eq!(times, [1, 2, 1]);
}

/// The next message; None where the connection ends, be it within one.
fn next_or_torn(client: &mut Client) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; 5];
    client.stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; i32::from_be_bytes(header[1..].try_into().ok()?) as usize - 4];
    client.stream.read_exact(&mut body).ok()?;
    Some((header[0], body))
}

/// A read of which much was passed on ends with 08006 between two rows, and with the connection within one.
#[test]
fn a_read_that_was_passed_on_is_not_begun_again() {
    let fake = Fake::start(|text, _| match text {
        "SELECT whole" => Reaction::Close(row(100_000)),
        "SELECT torn" => Reaction::Close(row(200_000)[..150_000].to_vec()),
        _ => Reaction::Answer(done(b'I')),
    });
    let (_proxy, mut client) = client(&fake);
    assert_eq!(ask(&mut client, "SELECT whole"), ("DEZ".into(), "08006".into()));
    assert_eq!(ask(&mut client, "SELECT 1").0, "CZ");
    client.send(&query("SELECT torn"));
    assert!(next_or_torn(&mut client).is_none());
    assert_eq!((fake.times("SELECT whole"), fake.times("SELECT torn")), (1, 1));
}

#[test]
fn a_session_that_the_server_ends_for_its_clients_sake_ends_the_client() {
    let fake = Fake::start(|text, _| match text {
        "BEGIN" => Reaction::Answer(done(b'T')),
        "SELECT slow" => Reaction::Close(fatal("25P04")),
        "COMMIT" => Reaction::Close(Vec::new()),
        _ => Reaction::Answer(done(b'I')),
    });
    let (proxy, mut client) = client(&fake);
    assert_eq!(ask(&mut client, "BEGIN").0, "CZ");
    client.send(&query("SELECT slow"));
    assert_eq!(client.last_words(), "25P04");
    let mut client = Client::connect(([127, 0, 0, 1], proxy.process.port).into());
    assert_eq!(ask(&mut client, "BEGIN").0, "CZ");
    assert_eq!(ask(&mut client, "COMMIT"), ("EZ".into(), "40003".into()));
    assert_eq!(fake.times("COMMIT"), 1);
    assert_eq!(ask(&mut client, "SELECT 1").0, "CZ");
}
