//! A server in this process: what takes time is told to take little.

use super::*;
use cenote_space::{Space, SpaceOptions};
use cenote_store::{Options, PutOptions, Store};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const SOON: Duration = Duration::from_secs(60);

/// Serves a table until the returned value is dropped.
fn serve(threads: usize, settings: Settings) -> (SocketAddr, impl Drop) {
    let options = SpaceOptions {
        bytes: 16 << 20,
        ..SpaceOptions::default()
    };
    let space = Space::dram(&options).expect("memory");
    let store = Store::create(&space, Options::default()).expect("a store");
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
