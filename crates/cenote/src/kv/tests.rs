//! A server in this process: what takes time is told to take little.

use super::*;
use cenote_space::{Space, SpaceOptions};
use cenote_store::{Options, PutOptions, Store};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const SOON: Duration = Duration::from_secs(60);

/// Serves a table until the returned value is dropped.
fn serve(threads: usize, settings: Settings) -> (SocketAddr, impl Drop) {
    let store = store();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let tables = vec![Table::new(store, PutOptions::default()); threads];
    let server = Server::new(listener, tables, &TABLE_COMMANDS, settings).expect("made");
    let stop = server.stopper().guard();
    std::thread::spawn(move || server.run().map(drop));
    (address, stop)
}

fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("set");
    stream
}

fn answer(stream: &mut TcpStream) -> String {
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n") && stream.read(&mut byte).expect("an answer, or the end") > 0 {
        answer.push(byte[0]);
    }
    String::from_utf8(answer).expect("text")
}

/// One that opens connections and says nothing, or half of a word, takes no place for long; one that has said the
/// secret may be idle.
#[test]
fn who_does_not_say_the_secret_in_time_is_let_go() {
    let settings = Settings {
        secret: Some(Secret::new("secret")),
        arrival_time: Duration::from_millis(300),
        ..Settings::default()
    };
    let (address, _stop) = serve(1, settings);
    let mut known = client(address);
    known.write_all(b"AUTH secret\r\n").expect("sent");
    assert_eq!(answer(&mut known), "+OK\r\n");
    let (mut silent, mut slow) = (client(address), client(address));
    slow.write_all(b"*2\r\n$4\r\nAU").expect("sent");
    assert_eq!((answer(&mut silent), answer(&mut slow)), (String::new(), String::new()));
    known.write_all(b"PING\r\n").expect("sent");
    assert_eq!(answer(&mut known), "+PONG\r\n");
}

#[test]
fn clients_are_spread_over_all_threads_and_the_end_of_one_thread_is_the_servers() {
    let (address, stop) = serve(3, Settings::default());
    let mut clients: Vec<_> = (0..6).map(|_| client(address)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client
            .write_all(format!("INCR count\r\nECHO {n}\r\n").as_bytes())
            .expect("sent");
        assert_eq!(answer(client), format!(":{}\r\n", n + 1));
        assert_eq!(answer(client), "$1\r\n");
        assert_eq!(answer(client), format!("{n}\r\n"));
    }
    drop(stop);
    assert_eq!(clients[5].read(&mut [0]).expect("the end"), 0);
}

fn store() -> Store {
    let options = SpaceOptions {
        bytes: 16 << 20,
        ..SpaceOptions::default()
    };
    let space = Space::dram(&options).expect("memory");
    Store::create(&space, Options::default()).expect("a store")
}

/// What a thread answers that looked at the clock ten seconds ago.
fn answers_late<D: Data>(data: D, commands: &'static [Command<D>], said: &[u8]) -> String {
    let board = Arc::new(Board::new(1, 1, None, 0));
    let mut shared = dispatch::Shared::new(data, commands, &board, 0);
    shared.now = clock::now() - 10_000;
    let (mut batch, mut request) = (batch::Batch::default(), request::Request::default());
    let mut client = client::Client {
        is_admitted: true,
        ..client::Client::default()
    };
    let mut reply = reply::Reply::default();
    assert!(batch.gather(&shared, &mut request, said, 0).1.is_ok());
    batch.run(&mut shared, &mut client, said, &mut reply, usize::MAX);
    String::from_utf8(reply.bytes).expect("text")
}

/// The commands of others that are run first take nothing of the time that a key has.
#[test]
fn a_key_lives_from_its_command_on() {
    const SAID: &[u8] =
        b"SET a v PX 8000\r\nPTTL a\r\nPSETEX b 8000 v\r\nPTTL b\r\nSET c v\r\nPEXPIRE c 8000\r\nPTTL c\r\n";
    let space = Space::dram(&SpaceOptions {
        bytes: 16 << 20,
        ..SpaceOptions::default()
    });
    let own = cenote_kv::Store::open(&space.expect("memory")).expect("a store");
    let shared = Table::new(store(), PutOptions::default());
    for answers in [
        answers_late(own, &COMMANDS, SAID),
        answers_late(shared, &TABLE_COMMANDS, SAID),
    ] {
        let left = answers.lines().filter_map(|line| line.strip_prefix(':'));
        let left: Vec<i64> = left.map(|left| left.parse().expect("a number")).collect();
        let [a, b, 1, c] = left[..] else {
            panic!("{answers}");
        };
        for left in [a, b, c] {
            assert!((1..=8000).contains(&left), "{answers}");
        }
    }
}

/// A thread that answers with metrics outlives the server: the store is left all the same.
#[test]
fn metrics_do_not_hold_a_store() {
    let store = Arc::new(store());
    let metrics = metrics_of_table(&store);
    assert!(metrics().contains("cenote_store_"));
    let store = Arc::into_inner(store);
    assert!(store.is_some() && metrics().is_empty());
}

#[test]
fn scan_tells_of_a_part_at_a_time_however_many_are_asked_for() {
    let store = store();
    for n in 0..600 {
        let key = format!("{n:04000}");
        store.put(key.as_bytes(), b"v", PutOptions::default()).expect("room");
    }
    let table = Table::new(store, PutOptions::default());
    let answer = answers_late(table, &TABLE_COMMANDS, b"SCAN 0 COUNT 1000000000\r\n");
    assert!(!answer.contains("\r\n0\r\n"), "there is more to come");
    assert!((1 << 20..2 << 20).contains(&answer.len()), "{}", answer.len());
}
