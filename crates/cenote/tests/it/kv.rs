//! The key-value server as people use it: a small client of its own, killed servers, a pool.

use crate::pool::Pool;
use crate::program::{Process, cenote, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A client that speaks RESP. Answers are shown as text: `+OK`, `:1`, `"abc"`, `nil`, `[a, b]`.
pub struct Client {
    pub stream: BufReader<TcpStream>,
}

impl Client {
    pub fn new(server: &Process) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    pub fn answer(&mut self) -> String {
        let line = self.line();
        let (kind, rest) = line.split_at(line.len().min(1));
        match (kind, rest) {
            ("$" | "*", "-1") | ("_", _) => "nil".into(),
            ("$", len) => {
                let mut bytes = vec![0; len.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len() - 2]))
            }
            ("*", count) => self.answers(count.parse().unwrap()),
            ("%", count) => self.answers(2 * count.parse::<usize>().unwrap()),
            _ => line,
        }
    }

    fn answers(&mut self, count: usize) -> String {
        let all: Vec<_> = (0..count).map(|_| self.answer()).collect();
        format!("[{}]", all.join(", "))
    }

    pub fn ask(&mut self, words: &[&str]) -> String {
        self.send(&command(words));
        self.answer()
    }

    /// Words are separated by blanks.
    #[track_caller]
    pub fn says(&mut self, words: &str, wanted: &str) {
        let words: Vec<_> = words.split(' ').collect();
        let answer = self.ask(&words);
        assert!(
            answer == wanted || wanted.len() > 4 && answer.contains(wanted),
            "{words:?}: {answer}, not {wanted}"
        );
    }

    pub fn is_closed(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).is_ok()
    }
}

pub fn command(words: &[&str]) -> Vec<u8> {
    let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>()).into_bytes()
}

pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn start(directory: &Path) -> Process {
    let mut command = cenote(&["kv", "--listen", "127.0.0.1:0", "--memory-size", "64MiB", "--region"]);
    command.arg(directory.join("region"));
    Process::spawn(command)
}

/// Commands, and a part of what Redis 7 answers.
const COMMANDS: &[(&str, &str)] = &[
    ("PING", "+PONG"),
    ("ECHO hi", "\"hi\""),
    ("SELECT 0", "+OK"),
    ("SELECT 1", "out of range"),
    ("SET a 1", "+OK"),
    ("SET a 2 NX", "nil"),
    ("SET a 2 XX GET", "\"1\""),
    ("SET a 3 EX 0", "invalid expire time in 'set'"),
    ("SET a 3 NX XX", "syntax error"),
    ("SET a 3 PX 100000 KEEPTTL", "syntax error"),
    ("GET a", "\"2\""),
    ("INCRBY a 5", ":7"),
    ("DECR a", ":6"),
    ("APPEND a x", ":2"),
    ("INCR a", "-ERR value is not an integer or out of range"),
    ("SETRANGE s 3 abc", ":6"),
    ("GETRANGE s -3 -1", "\"abc\""),
    ("STRLEN s", ":6"),
    ("SET n 9223372036854775807", "+OK"),
    ("INCR n", "would overflow"),
    ("INCRBYFLOAT f 10.5", "\"10.5\""),
    ("INCRBYFLOAT f 0.1", "\"10.6\""),
    ("MSET k1 a k2 b", "+OK"),
    ("MSET k1 a k2", "wrong number of arguments for 'mset'"),
    ("MGET k1 k2 k3", "[\"a\", \"b\", nil]"),
    ("MSETNX k3 c k1 d", ":0"),
    ("GETDEL k1", "\"a\""),
    ("EXISTS k1 k2 k2", ":2"),
    ("TYPE k2", "+string"),
    ("HSET h f 1 g 2", ":2"),
    ("HSET h f 3 i 4", ":1"),
    ("HMGET h f x", "[\"3\", nil]"),
    ("HINCRBY h f 4", ":7"),
    ("HINCRBYFLOAT h g 0.5", "\"2.5\""),
    ("HLEN h", ":3"),
    ("HSTRLEN h g", ":3"),
    ("HSETNX h f 1", ":0"),
    ("HDEL h f g x", ":2"),
    ("HGETALL h", "[\"i\", \"4\"]"),
    ("HSCAN h 0", "[\"0\", [\"i\", \"4\"]]"),
    ("GET h", "-WRONGTYPE"),
    ("HGET s f", "-WRONGTYPE"),
    ("HDEL h i", ":1"),
    ("EXISTS h", ":0"),
    ("EXPIRE a 100", ":1"),
    ("TTL a", ":100"),
    ("EXPIRE a 50 GT", ":0"),
    ("PERSIST a", ":1"),
    ("TTL a", ":-1"),
    ("TTL none", ":-2"),
    ("EXPIRE a -1", ":1"),
    ("GET a", "nil"),
    ("RENAME none x", "-ERR no such key"),
    ("RENAME k2 k9", "+OK"),
    ("RENAMENX k9 s", ":0"),
    ("KEYS k[0-9]", "[\"k9\"]"),
    ("SCAN 0 MATCH k* COUNT 100", "[\"0\", [\"k9\"]]"),
    ("SCAN x", "invalid cursor"),
    ("OBJECT", "unknown command 'OBJECT'"),
    ("GET", "-ERR wrong number of arguments for 'get' command"),
    ("CLIENT SETNAME me", "+OK"),
    ("CLIENT GETNAME", "\"me\""),
    ("CONFIG GET save", "[\"save\", \"\"]"),
    ("COMMAND INFO get", "\"get\", :2"),
    ("INFO keyspace", "db0:keys=4"),
    ("FLUSHALL", "+OK"),
    ("DBSIZE", ":0"),
    ("HELLO 9", "-NOPROTO"),
    ("HELLO 3", "\"proto\", :3"),
    ("GET a", "nil"),
    ("QUIT", "+OK"),
];

#[test]
fn commands_answer_as_those_of_redis() {
    let directory = directory();
    let server = start(directory.path());
    let mut client = Client::new(&server);
    for (words, wanted) in COMMANDS {
        client.says(words, wanted);
    }
    assert!(client.is_closed());
}

#[test]
fn transactions_are_whole_or_not_at_all() {
    let directory = directory();
    let server = start(directory.path());
    let (mut client, mut other) = (Client::new(&server), Client::new(&server));
    client.says("EXEC", "without MULTI");
    client.says("MULTI", "+OK");
    client.says("MULTI", "nested");
    client.says("SET a 1", "+QUEUED");
    client.says("HGET a f", "+QUEUED");
    client.says("INCR a", "+QUEUED");
    other.says("GET a", "nil");
    client.says(
        "EXEC",
        "[+OK, -WRONGTYPE Operation against a key holding the wrong kind of value, :2]",
    );
    client.says("MULTI", "+OK");
    client.says("NOPE", "unknown command");
    client.says("EXEC", "-EXECABORT");
    for (change, wanted) in [
        ("SET w 2", "nil"),
        ("GET w", "[+OK]"),
        ("DEL a", "nil"),
        ("FLUSHALL", "nil"),
    ] {
        client.says("SET a 1", "+OK");
        client.says("WATCH w a", "+OK");
        other.ask(&change.split(' ').collect::<Vec<_>>());
        client.says("MULTI", "+OK");
        client.says("SET done 1", "+QUEUED");
        client.says("EXEC", wanted);
    }
    client.says("MULTI", "+OK");
    client.says("DISCARD", "+OK");
    client.says("GET done", "nil");
}

#[test]
fn commands_come_in_pieces_and_in_heaps_and_garbage_ends_a_connection() {
    let directory = directory();
    let server = start(directory.path());
    let mut client = Client::new(&server);
    let (large, mut heap) = ("x".repeat(3 << 20), Vec::new());
    heap.extend(command(&["SET", "large", &large]));
    (0..5000).for_each(|n| heap.extend(command(&["SET", &format!("k{n}"), &n.to_string()])));
    (0..10).for_each(|_| heap.extend(command(&["GET", "large"])));
    let mut writer = client.stream.get_ref().try_clone().unwrap();
    let writing = std::thread::spawn(move || heap.chunks(7919).try_for_each(|part| writer.write_all(part)));
    (0..5001).for_each(|_| assert_eq!(client.answer(), "+OK"));
    (0..10).for_each(|_| assert_eq!(client.answer().len(), large.len() + 2));
    writing.join().unwrap().unwrap();
    client.send(b"PING\r\nget 'k17'\r\n");
    assert_eq!((client.answer(), client.answer()), ("+PONG".into(), "\"17\"".into()));
    for garbage in ["*1\r\n:1\r\n", "*99999999\r\n", "*1\r\n$-5\r\n", "get 'a\r\n"] {
        let mut client = Client::new(&server);
        client.send(garbage.as_bytes());
        assert!(client.answer().starts_with("-ERR Protocol error"), "{garbage:?}");
        assert!(client.is_closed());
    }
    client.says("DBSIZE", ":5001");
}

/// All that comes at once is understood before the first of it is run: what ends a connection in the middle of it ends
/// it there.
#[test]
fn commands_behind_the_end_of_a_heap_are_not_run() {
    let directory = directory();
    let server = start(directory.path());
    let large = "x".repeat(100_000);
    let set = |n: usize| command(&["SET", &format!("k{n}"), &n.to_string()]);
    for (end, answer) in [("QUIT\r\n", "+OK"), ("*1\r\n!\r\n", "-ERR Protocol error")] {
        for before in [0, 1, 31, 32, 33, 70] {
            let mut client = Client::new(&server);
            client.says("FLUSHALL", "+OK");
            let mut heap: Vec<u8> = (0..before).flat_map(set).collect();
            heap.extend(end.as_bytes());
            heap.extend((1000..1050).flat_map(set));
            client.send(&heap);
            (0..before).for_each(|_| assert_eq!(client.answer(), "+OK"));
            assert!(client.answer().starts_with(answer), "{before} before {end:?}");
            assert!(client.is_closed());
            Client::new(&server).says("DBSIZE", &format!(":{before}"));
        }
    }
    // Answers that are not taken hold up the commands behind them, in the middle of what was understood: they are run
    // later, once.
    let mut client = Client::new(&server);
    client.says(&format!("SET large {large}"), "+OK");
    let pair = [command(&["GET", "large"]), command(&["INCR", "count"])].concat();
    client.send(&pair.repeat(300));
    for n in 1..=300 {
        assert_eq!(client.answer().len(), large.len() + 2);
        assert_eq!(client.answer(), format!(":{n}"));
    }
}

/// As `printf ... | nc -N` does: commands and the end of what a client says come together, and it waits for the answers
/// and for the end.
#[test]
fn a_client_that_closes_its_half_is_answered_and_let_go() {
    let directory = directory();
    let server = start(directory.path());
    let mut client = Client::new(&server);
    client.says("PING", "+PONG");
    // While the server stands, all of it gathers at its socket.
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &server.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    client.send(b"SET last word\r\nGET last\r\n");
    client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    signal("-CONT");
    client
        .stream
        .get_ref()
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!((client.answer(), client.answer()), ("+OK".into(), "\"word\"".into()));
    assert!(client.is_closed(), "it is let go");
}

/// A web page can make its reader's browser send lines to this address, behind the browser's first words.
#[test]
fn a_browser_is_not_listened_to() {
    let directory = directory();
    let server = start(directory.path());
    for first in ["POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n"] {
        let mut client = Client::new(&server);
        client.send(format!("{first}Content-Length: 14\r\n\r\nSET evil word\r\n").as_bytes());
        assert!(client.answer().starts_with("-ERR"), "{first}");
        assert!(client.is_closed(), "{first}");
    }
    Client::new(&server).says("DBSIZE", ":0");
}

/// A text that begins as a number, and is too long to be one.
#[test]
fn a_long_text_is_no_number() {
    let directory = directory();
    let server = start(directory.path());
    let mut client = Client::new(&server);
    let text = format!("1.{}x", "0".repeat(500));
    client.says(&format!("SET text {text}"), "+OK");
    client.says(&format!("HSET hash text {text}"), ":1");
    client.says("INCRBYFLOAT text 1", "value is not a valid float");
    client.says("HINCRBYFLOAT hash text 1", "hash value is not a float");
    client.says("STRLEN text", ":503");
}

/// The time that a WATCH took grew with the square of its keys: for so many it was an hour.
#[test]
fn a_client_may_watch_very_many_keys() {
    let directory = directory();
    let server = start(directory.path());
    let (mut client, mut other) = (Client::new(&server), Client::new(&server));
    let keys: Vec<_> = (0..1_000_000).map(|n| n.to_string()).collect();
    let words: Vec<_> = core::iter::once("WATCH")
        .chain(keys.iter().map(String::as_str))
        .collect();
    let timeout = Some(Duration::from_secs(300));
    client.stream.get_ref().set_read_timeout(timeout).unwrap();
    assert_eq!(client.ask(&words), "+OK");
    other.says("SET 777777 1", "+OK");
    client.says("MULTI", "+OK");
    client.says("EXEC", "nil");
}

/// More clients than descriptors: waiting clients are served when others have gone, though no new one comes.
#[test]
fn clients_that_wait_for_a_descriptor_are_served_in_the_end() {
    let directory = directory();
    let mut kv = cenote(&["kv", "--listen", "127.0.0.1:0", "--memory-size", "64MiB", "--region"]);
    kv.arg(directory.path().join("region"));
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 32; exec \"$0\" \"$@\""]);
    limited.arg(kv.get_program()).args(kv.get_args());
    let removed = kv.get_envs().filter(|(_, value)| value.is_none());
    removed.for_each(|(name, _)| _ = limited.env_remove(name));
    let server = Process::spawn(limited);
    let mut clients: Vec<_> = (0..40).map(|_| Client::new(&server)).collect();
    clients.iter_mut().for_each(|client| client.send(&command(&["PING"])));
    // The first clients are served; of the last ones some wait.
    let mut last = clients.split_off(30);
    clients[..10]
        .iter_mut()
        .for_each(|client| assert_eq!(client.answer(), "+PONG"));
    drop(clients);
    for client in &mut last {
        let timeout = Some(Duration::from_secs(120));
        client.stream.get_ref().set_read_timeout(timeout).unwrap();
        assert_eq!(client.answer(), "+PONG");
    }
}

/// A full memory refuses, and changes nothing.
#[test]
fn a_full_memory_is_an_error_in_words_of_redis() {
    let directory = directory();
    let server = start(directory.path());
    let mut client = Client::new(&server);
    let value = "v".repeat(5 << 20);
    let answers: Vec<_> = (0..20)
        .map(|n| client.ask(&["SET", &format!("k{n}"), &value]))
        .collect();
    let stored = answers.iter().filter(|answer| *answer == "+OK").count();
    let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
    assert!(
        stored > 5 && answers[stored..].iter().all(|answer| answer == refused),
        "{answers:?}"
    );
    let refused_all = client.ask(&["MSET", "small", "1", "k0", "new", "large", &value]);
    assert_eq!(refused_all, refused);
    client.says("GET small", "nil");
    client.says("DBSIZE", &format!(":{stored}"));
    client.says("DEL k0 k1", ":2");
    assert_eq!(client.ask(&["SET", "again", &value]), "+OK");
}

/// Small hashes that are written over and over, outside of transactions.
const SMALL: u64 = 7;

/// Their fields are of one HSET, and of none before the last that was answered.
fn small_hashes_are_whole(client: &mut Client, answered: u64) {
    for n in answered - SMALL + 1..=answered {
        let text = client.ask(&["HGET", &format!("small{}", n % SMALL), "a"]);
        let digits = text.trim_matches('"');
        let last: u64 = digits[..digits.len() / 20].parse().unwrap();
        assert!(last >= n && last % SMALL == n % SMALL, "{last}, not {n} or later");
        let wanted = format!("{:?}", last.to_string().repeat(20));
        client.says(
            &format!("HMGET small{} a b c", n % SMALL),
            &format!("[{wanted}, {wanted}, {wanted}]"),
        );
    }
}

/// Killed in the middle of writes, again and again: what was answered is there, and what was not is there wholly or not
/// at all.
#[test]
fn a_killed_server_loses_nothing_that_was_answered() {
    let directory = directory();
    let mut answered = 0u64;
    for round in 0..4 {
        let mut server = start(directory.path());
        let mut client = Client::new(&server);
        if round > 0 {
            let value = client.ask(&["GET", "count"]);
            let count: u64 = value.trim_matches('"').parse().unwrap();
            assert!(count >= answered, "{count} of {answered}");
            small_hashes_are_whole(&mut client, answered);
            answered = count;
            for n in (0..=count).step_by(97) {
                let wanted = format!("{:?}", n.to_string().repeat(1 + n as usize % 400));
                assert_eq!(client.ask(&["GET", &format!("key{n}")]), wanted);
                assert_eq!(
                    client.ask(&["HGET", "hash", &n.to_string()]),
                    format!("{:?}", n.to_string())
                );
            }
            client.says("HLEN hash", &format!(":{}", count + 1));
        }
        let mut writer = client.stream.get_ref().try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            for n in answered + u64::from(round > 0).. {
                let number = n.to_string();
                let value = number.repeat(1 + n as usize % 400);
                let mut bytes = b"MULTI\r\n".to_vec();
                bytes.extend(command(&["SET", &format!("key{n}"), &value]));
                bytes.extend(command(&["HSET", "hash", &number, &number]));
                bytes.extend(command(&["SET", "count", &number]));
                bytes.extend(b"EXEC\r\n");
                let (small, value) = (format!("small{}", n % SMALL), number.repeat(20));
                bytes.extend(command(&["HSET", &small, "a", &value, "b", &value, "c", &value]));
                if n > answered + 3000 || writer.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        for _ in 0..700 + round * 331 {
            let answers: Vec<_> = (0..6).map(|_| client.answer()).collect();
            assert!(answers[4].starts_with("[+OK, :1, +OK"), "{answers:?}");
        }
        answered += 699 + round * 331;
        server.kill();
        writing.join().unwrap();
    }
    let mut server = start(directory.path());
    let said = server.said.join("\n");
    assert!(said.contains("found after a kill"), "{said}");
    assert!(server.stop().success());
    let said = start(directory.path()).said.join("\n");
    assert!(said.contains("closed in order"), "{said}");
}

#[test]
fn it_lives_in_a_pool_and_finds_its_grant_again() {
    let pool = Pool::new();
    let arguments = [
        "kv",
        "--memory",
        "pool",
        "--listen",
        "127.0.0.1:0",
        "--memory-size",
        "64MiB",
        "--manager",
    ];
    let run = || {
        let mut command = cenote(&arguments);
        command.arg(&pool.address);
        command
    };
    let mut server = Process::spawn(run());
    Client::new(&server).says("SET a 1", "+OK");
    let (ok, text) = output(&mut run());
    assert!(!ok && text.contains("cenote"), "{text}");
    server.kill();
    let server = Process::spawn(run());
    Client::new(&server).says("GET a", "\"1\"");
}

#[test]
fn what_cannot_be_served_is_said() {
    let says = |arguments: &[&str], what: &str| {
        let (ok, text) = output(&mut cenote(arguments));
        assert!(!ok && text.contains(what), "{arguments:?}: {text}");
    };
    says(&["kv", "--listen", "0.0.0.0:0"], "--secret-file");
    says(&["kv", "--space", "a"], "--memory pool");
    says(&["kv", "--threads", "2"], "--space");
    says(&["kv", "--tls-cert", "a"], "--tls-key");
    says(&["kv", "--max-connections", "0"], "give at least 1");
    says(&["kv", "--secret-file", "/nowhere"], "/nowhere");
    says(&["kv", "--listen", "nowhere"], "127.0.0.1:6380");
    says(&["kv", "--memory", "pool"], "--manager");
    says(&["kv", "--label", "a"], "--memory pool");
    says(&["kv", "--memory-size", "1MiB", "--listen", "127.0.0.1:0"], "8MiB");
}
