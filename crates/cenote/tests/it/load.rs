//! What the server itself costs: round trips a second with a statement that does nothing, and memory of idle sessions.

use crate::program::{Data, Process, cenote};
use crate::sessions::private_of;
use crate::stub::{Client, Host, bind_portal, execute, message, parse, rows};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// 100 idle sessions fit into little memory: the issue allows 150 MB for the whole process.
#[test]
fn a_hundred_idle_sessions_are_small() {
    let data = Data::new();
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path());
    let server = Process::spawn(command);
    let (pid, address) = (server.child.id(), SocketAddr::from(([127, 0, 0, 1], server.port)));
    let before = private_of(pid);
    let clients: Vec<Client> = (0..100).map(|_| Client::connect(address)).collect();
    let grown = private_of(pid).saturating_sub(before);
    assert!(grown < 20 << 20, "100 idle sessions took {grown} bytes");
    drop(clients);
}

/// Bind, Execute, Sync of a statement that answers at once, by 8 clients. Not an assertion: the machine may be busy.
#[test]
#[ignore = "a measurement: cargo test -p cenote --release -- --ignored --nocapture echo"]
fn echo_rate() {
    let host = Host::start();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let clients = 8;
    let total: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = host.client();
                    client.send(&[parse("s", &rows(1)), message(b'S', b"")].concat());
                    client.until_ready();
                    let request = [
                        bind_portal("", "s"),
                        message(b'D', b"P\0"),
                        execute("", 0),
                        message(b'S', b""),
                    ]
                    .concat();
                    let mut answer = [0; 4096];
                    let mut count = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        client.stream.write_all(&request).unwrap();
                        let mut last = 0;
                        // ReadyForQuery is the last six bytes.
                        while last < 6 || answer[last - 6] != b'Z' {
                            last += client.stream.read(&mut answer[last..]).unwrap();
                        }
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{} round trips a second by {clients} clients", total / 3);
    let _ = Instant::now();
}
