//! Servers on the table that all share: two of them, clients of the store beside them, killed servers.

use crate::kv::{Client, command};
use crate::pool::Pool;
use crate::program::{Process, cenote, output};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_store::{Options, PutOptions, Store};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server on the table in space `cache`, which the first one makes.
fn server_of(pool: &Pool) -> Command {
    let arguments = ["kv", "--memory", "pool", "--space", "cache", "--memory-size", "96MiB"];
    let mut command = cenote(&arguments);
    command.args(["--listen", "127.0.0.1:0", "--threads", "2", "--metrics", "127.0.0.1:0"]);
    command.args(["--manager", &pool.address]);
    command
}

/// Two that start at the same moment: one of them makes the space and the table.
fn two() -> (Pool, [Process; 2]) {
    let pool = Pool::new();
    let servers = std::thread::scope(|scope| {
        let starting = [(); 2].map(|()| scope.spawn(|| Process::spawn(server_of(&pool))));
        starting.map(|server| server.join().unwrap())
    });
    (pool, servers)
}

/// Commands to one server and the other in turn, and a part of what Redis 7 answers.
const COMMANDS: &[(&str, &str)] = &[
    ("SET a 1", "+OK"),
    ("SET a 2 NX", "nil"),
    ("SET a 2 XX GET", "\"1\""),
    ("SET b 2 XX", "nil"),
    ("SET a 3 EX 0", "invalid expire time in 'set'"),
    ("SET a 3 NX XX", "syntax error"),
    ("GET a", "\"2\""),
    ("INCRBY a 5", ":7"),
    ("DECR a", ":6"),
    ("APPEND a x", ":2"),
    ("INCR a", "-ERR value is not an integer or out of range"),
    ("SETRANGE s 3 abc", ":6"),
    ("GETRANGE s -3 -1", "\"abc\""),
    ("GETRANGE s 5 2", "\"\""),
    ("STRLEN s", ":6"),
    ("SET n 9223372036854775807", "+OK"),
    ("INCR n", "would overflow"),
    ("GET n", "\"9223372036854775807\""),
    ("INCRBYFLOAT f 10.5", "\"10.5\""),
    ("INCRBYFLOAT f 0.1", "\"10.6\""),
    ("MSET k1 a k2 b", "+OK"),
    ("MSET k1 a k2", "wrong number of arguments for 'mset'"),
    ("MGET k1 none k2", "[\"a\", nil, \"b\"]"),
    ("SETNX k1 c", ":0"),
    ("SETNX k3 c", ":1"),
    ("GETSET k3 d", "\"c\""),
    ("GETDEL k3", "\"d\""),
    ("GETDEL k3", "nil"),
    ("EXISTS k1 k2 k2 none", ":3"),
    ("TYPE k2", "+string"),
    ("TYPE none", "+none"),
    ("EXPIRE a 100", ":1"),
    ("APPEND a y", ":3"),
    ("TTL a", ":100"),
    ("EXPIRE a 50 GT", ":0"),
    ("EXPIRE none 50 NX GT", "not compatible"),
    ("SET a new KEEPTTL", "+OK"),
    ("TTL a", ":100"),
    ("GETEX a PERSIST", "\"new\""),
    ("TTL a", ":-1"),
    ("TTL none", ":-2"),
    ("PERSIST a", ":0"),
    ("EXPIRE a -1", ":1"),
    ("GET a", "nil"),
    ("SCAN 0 MATCH k* COUNT 10000", "[\"0\", ["),
    ("SCAN x", "invalid cursor"),
    ("KEYS k[12]", "[\"k1\", \"k2\"]"),
    ("HSET h f 1", "-ERR 'hset' is not there on a table that servers share"),
    ("MULTI", "-ERR 'multi' is not there"),
    ("RENAME k1 k2", "-ERR 'rename' is not there"),
    ("LPUSH l 1", "unknown command 'LPUSH'"),
    ("GET", "-ERR wrong number of arguments for 'get' command"),
    ("CONFIG GET maxclients", "[\"maxclients\", \"10000\"]"),
    ("INFO stats", "keyspace_hits:"),
    ("DEL k1 k2 none", ":2"),
    ("FLUSHALL", "+OK"),
    ("DBSIZE", ":0"),
    ("RANDOMKEY", "nil"),
    ("SELECT 1", "out of range"),
    ("HELLO 3", "\"proto\", :3"),
];

#[test]
fn two_servers_answer_as_one_and_the_stores_clients_see_the_same() {
    let (pool, servers) = two();
    let mut clients = [Client::new(&servers[0]), Client::new(&servers[1])];
    for (n, (words, wanted)) in COMMANDS.iter().enumerate() {
        clients[n % 2].says(words, wanted);
    }
    let store = store_of(&pool);
    store.put(b"of a program", b"bytes", PutOptions::default()).unwrap();
    clients[0].says("SET of-a-client text", "+OK");
    assert_eq!(clients[1].ask(&["GET", "of a program"]), "\"bytes\"");
    assert_eq!(store.get(b"of-a-client").unwrap().as_deref(), Some(&b"text"[..]));
    let text = metrics_of(&servers[1]);
    for line in ["cenote_kv_threads 2\n", "cenote_store_"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let long = "k".repeat(5000);
    clients[0].says(&format!("SET {long} v"), "-ERR a key of 5000 bytes");
}

fn metrics_of(server: &Process) -> String {
    let said = server
        .said
        .iter()
        .find_map(|line| line.strip_prefix("metrics    http://"));
    let address = said.and_then(|said| said.strip_suffix("/metrics")).unwrap();
    let (mut stream, mut text) = (TcpStream::connect(address).unwrap(), String::new());
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The table as a program opens it, without a server.
fn store_of(pool: &Pool) -> Store {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let credentials = Credentials {
        manager: pool.address.clone(),
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    };
    let client = PoolClient::connect(&network, &credentials, ClientOptions::default()).unwrap();
    Store::open(&client.open_space("cache").unwrap(), Options::default()).unwrap()
}

/// A pipeline's commands are run in their order, whatever of them is one call of the store.
#[test]
fn a_pipeline_is_run_in_its_order() {
    let (_pool, servers) = two();
    let mut client = Client::new(&servers[0]);
    let (mut heap, mut wanted) = (Vec::new(), Vec::new());
    for n in 0..200 {
        let value = n.to_string();
        for words in [["SET", "k", &value], ["SET", "l", &value]] {
            heap.extend(command(&words));
            wanted.push("+OK".to_owned());
        }
        for key in ["k", "none", "l"] {
            heap.extend(command(&["GET", key]));
        }
        wanted.extend([format!("{value:?}"), "nil".into(), format!("{value:?}")]);
        heap.extend(command(&["INCR", "k"]));
        wanted.push(format!(":{}", n + 1));
    }
    client.send(&heap);
    for wanted in wanted {
        assert_eq!(client.answer(), wanted);
    }
}

#[test]
fn sums_of_two_servers_are_exact_and_a_counter_expires_when_it_was_said() {
    const EACH: usize = 500;
    let (_pool, servers) = two();
    Client::new(&servers[0]).says("SET sum 0 EX 1000", "+OK");
    let adders: Vec<_> = (0..4)
        .map(|n| {
            let mut client = Client::new(&servers[n % 2]);
            std::thread::spawn(move || {
                client.send(&command(&["INCR", "sum"]).repeat(EACH));
                (0..EACH).for_each(|_| assert!(client.answer().starts_with(':')));
            })
        })
        .collect();
    adders.into_iter().for_each(|adder| adder.join().unwrap());
    let mut client = Client::new(&servers[1]);
    client.says("GET sum", &format!("\"{}\"", 4 * EACH));
    let left: u64 = client.ask(&["PTTL", "sum"])[1..].parse().unwrap();
    assert!(left <= 1_000_000, "{left}");
}

/// `kill -9`: for the other server and for the next one all keys are there, at once.
#[test]
fn keys_outlive_their_server() {
    const KEYS: usize = 2000;
    let (pool, mut servers) = two();
    let mut client = Client::new(&servers[0]);
    let value = |n: usize| n.to_string().repeat(1 + n % 300);
    let heap: Vec<u8> = (0..KEYS)
        .flat_map(|n| command(&["SET", &format!("k{n}"), &value(n)]))
        .collect();
    let mut writer = client.stream.get_ref().try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&heap));
    (0..KEYS).for_each(|_| assert_eq!(client.answer(), "+OK"));
    writing.join().unwrap().unwrap();
    // In the middle of others' writes.
    client.send(&command(&["SET", "last", "word"]).repeat(100));
    servers[0].kill();
    let successor = Process::spawn(server_of(&pool));
    for server in [&servers[1], &successor] {
        let (mut client, mut hits) = (Client::new(server), 0);
        for n in 0..KEYS {
            match client.ask(&["GET", &format!("k{n}")]) {
                answer if answer == format!("{:?}", value(n)) => hits += 1,
                answer => assert_eq!(answer, "nil"),
            }
        }
        assert!(hits * 100 >= KEYS * 99, "{hits} of {KEYS}");
    }
    assert!(
        successor.said.join("\n").contains("keys in the table"),
        "{:?}",
        successor.said
    );
    drop(servers);
}

#[test]
fn large_values_garbage_and_clients_that_do_not_listen_harm_none_but_themselves() {
    let (_pool, servers) = two();
    let (mut client, mut other) = (Client::new(&servers[0]), Client::new(&servers[1]));
    let large = "x".repeat(20 << 20);
    assert_eq!(client.ask(&["SET", "large", &large]), "+OK");
    assert_eq!(other.ask(&["GET", "large"]).len(), large.len() + 2);
    assert_eq!(other.ask(&["GETRANGE", "large", "-3", "-1"]), "\"xxx\"");
    // Of more than the space has: refused, and what was there stays.
    let too_large = "y".repeat(120 << 20);
    assert!(client.ask(&["SET", "large", &too_large]).starts_with("-OOM"));
    // It does not take what it asks for: its server serves others.
    let mut deaf: Vec<_> = (0..4).map(|_| Client::new(&servers[1])).collect();
    deaf.iter_mut()
        .for_each(|client| client.send(&command(&["GET", "large"]).repeat(3)));
    for garbage in ["*1\r\n:1\r\n", "*99999999\r\n", "*1\r\n$-5\r\n", "get 'a\r\n"] {
        let mut client = Client::new(&servers[1]);
        client.send(garbage.as_bytes());
        assert!(client.answer().starts_with("-ERR Protocol error"), "{garbage:?}");
        assert!(client.is_closed());
    }
    let mut half = Client::new(&servers[1]);
    half.send(b"SET last word\r\nGET last\r\n");
    half.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    half.stream
        .get_ref()
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!((half.answer(), half.answer()), ("+OK".into(), "\"word\"".into()));
    assert!(half.is_closed());
    other.says("PING", "+PONG");
    for mut client in deaf {
        (0..3).for_each(|_| assert_eq!(client.answer().len(), large.len() + 2));
    }
}

/// Without its memory node a table answers what is there still, or nothing, never something else; and its server ends
/// when it is told to.
#[test]
fn a_lost_memory_node_is_misses_and_never_another_value() {
    let (mut pool, mut servers) = two();
    let mut client = Client::new(&servers[0]);
    (0..200).for_each(|n| client.says(&format!("SET k{n} value-{n}"), "+OK"));
    pool.node.kill();
    for n in 0..200 {
        let answer = client.ask(&["GET", &format!("k{n}")]);
        assert!(answer == "nil" || answer == format!("\"value-{n}\""), "{answer}");
    }
    let server = rustix::process::Pid::from_child(&servers[0].child);
    let told = Instant::now();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    let ended = (0..1500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        servers[0].child.try_wait().unwrap().is_some()
    });
    assert!(ended, "it waits for its memory node");
    // It says for three seconds that it leaves: the metrics' threads, which outlive it, do not keep it in the space.
    assert!(told.elapsed() > Duration::from_secs(2), "it has not left");
}

/// A mirrored space is made by the operator or by the server; the table outlives a memory node with all of its memory,
/// and what is away meanwhile is an error and no miss.
#[test]
fn a_mirrored_table_outlives_a_memory_node() {
    const KEYS: usize = 50;
    let mut pool = Pool::new();
    let _second = pool.second_node();
    let (ok, text) = pool.ask(&["space", "create", "plain", "--size", "8MiB"]);
    assert!(ok, "{text}");
    let (ok, text) = pool.ask(&["space", "create", "cache", "--size", "32MiB", "--mirror"]);
    assert!(ok && text.contains("mirrored"), "{text}");
    let mut refused = cenote(&["kv", "--memory", "pool", "--space", "plain", "--mirror"]);
    refused.args(["--listen", "127.0.0.1:0", "--manager", &pool.address]);
    let (ok, text) = output(&mut refused);
    assert!(!ok && text.contains("is not mirrored"), "{text}");

    let mut mirrored = server_of(&pool);
    mirrored.arg("--mirror");
    let server = Process::spawn(mirrored);
    assert!(server.said.join("\n").contains("cache, mirrored"), "{:?}", server.said);
    let mut client = Client::new(&server);
    (0..KEYS).for_each(|n| client.says(&format!("SET k{n} value-{n}"), "+OK"));
    pool.until(", whole");
    pool.node.kill();
    pool.forget_lost();
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match client.ask(&["GET", "k0"]) {
            answer if answer == "\"value-0\"" => break,
            answer => assert!(answer.starts_with('-'), "{answer}"),
        }
        assert!(Instant::now() < until, "its mirror has not taken its place");
        std::thread::sleep(Duration::from_millis(50));
    }
    (1..KEYS).for_each(|n| client.says(&format!("GET k{n}"), &format!("\"value-{n}\"")));
    // A pipeline of puts to another node, in its order.
    let heap = (0..64).flat_map(|n| command(&["SET", &format!("k{}", n % 7), &n.to_string()]));
    client.send(&heap.collect::<Vec<_>>());
    (0..64).for_each(|_| assert_eq!(client.answer(), "+OK"));
    (57..64).for_each(|n| client.says(&format!("GET k{}", n % 7), &format!("\"{n}\"")));
}

#[test]
fn a_space_that_is_not_there_is_said() {
    let pool = Pool::new();
    let mut command = cenote(&["kv", "--memory", "pool", "--space", "none", "--listen", "127.0.0.1:0"]);
    command.args(["--manager", &pool.address]);
    let (ok, text) = output(&mut command);
    assert!(!ok && text.contains("cenote pool space create none"), "{text}");
}
