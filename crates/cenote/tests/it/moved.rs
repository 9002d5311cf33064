//! A database changes hosts, and the one that it leaves is not told: its process stands still, and goes on later.

use crate::program::{Data, Process, cenote};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

/// A server on a host of that name. Hosts have no locks in common.
fn start_on(host: &str, data: &Path) -> Process {
    let _ = std::fs::remove_file(data.join("lock"));
    let mut command = cenote(&["run", "--memory", "dram", "--memory-size", "64MiB", "--host", host]);
    command.args(["--listen", "127.0.0.1:0", "--data"]).arg(data);
    Process::spawn(command)
}

/// A client that inserts one number after the other, until that fails.
pub struct Writer {
    acknowledged: Arc<AtomicI32>,
    is_stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Numbers from `from` on.
    pub fn start(server: &Process, from: i32) -> Self {
        let (acknowledged, is_stopping) = (Arc::new(AtomicI32::new(from)), Arc::new(AtomicBool::new(false)));
        let mut client = server.client();
        let thread = std::thread::spawn({
            let (acknowledged, is_stopping) = (Arc::clone(&acknowledged), Arc::clone(&is_stopping));
            move || {
                for number in from.. {
                    let insert = "INSERT INTO t VALUES ($1)";
                    if is_stopping.load(Ordering::SeqCst) || client.execute(insert, &[&number]).is_err() {
                        return;
                    }
                    acknowledged.store(number + 1, Ordering::SeqCst);
                }
            }
        });
        Self {
            acknowledged,
            is_stopping,
            thread,
        }
    }

    pub fn reaches(&self, number: i32) {
        let deadline = Instant::now() + TIMEOUT;
        while self.acknowledged.load(Ordering::SeqCst) < number {
            assert!(Instant::now() < deadline && !self.thread.is_finished());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Below this number all are acknowledged.
    pub fn acknowledged(&self) -> i32 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Whether its session has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    pub fn end(self) -> i32 {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// How many numbers there are of `from..to`.
pub fn count(server: &Process, from: i32, to: i32) -> i64 {
    let query = "SELECT count(*) FROM t WHERE n >= $1 AND n < $2";
    server.client().query_one(query, &[&from, &to]).unwrap().get(0)
}

pub fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).unwrap();
}

/// The former instance is stopped in the middle of its work, with the directory's lock, and woken up when another host
/// has gone on. It acknowledges nothing, ends by itself, and nothing of it is in what the other one has.
#[test]
fn an_instance_that_was_passed_over_ends_and_acknowledges_nothing() {
    const SECOND: i32 = 1_000_000;
    let data = Data::new();
    let mut former = start_on("a", data.path());
    former
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    let first = Writer::start(&former, 0);
    first.reaches(200);
    signal(&former, Signal::STOP);
    // The last answers may be on their way.
    std::thread::sleep(Duration::from_millis(300));
    let before = first.acknowledged();

    let mut next = start_on("b", data.path());
    assert!(
        count(&next, 0, SECOND) >= i64::from(before),
        "all that was acknowledged"
    );
    let found = count(&next, 0, SECOND);
    let second = Writer::start(&next, SECOND);
    second.reaches(SECOND + 100);
    signal(&former, Signal::CONT);
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        match former.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "the former instance goes on"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(!status.success(), "{status}");
    let first = first.end();
    // It may have been stopped between a commit that was durable and its answer: that row the other one has, too.
    let is_so = (before..=before + 1).contains(&first) && found >= i64::from(first);
    assert!(
        is_so,
        "{before} before, {first} at its end, {found} found by the other one"
    );

    second.reaches(second.acknowledged() + 100);
    let acknowledged = second.end();
    next.kill();
    let again = start_on("b", data.path());
    assert_eq!(
        count(&again, 0, SECOND),
        found,
        "nothing of the former instance came late"
    );
    assert!(count(&again, SECOND, i32::MAX) >= i64::from(acknowledged - SECOND));
}
