//! The contract of calls over rings: in one process and between two; what is left when either side is killed.
//!
//! Between two processes this program runs itself again as the node: [`a_node`] is a test that does nothing unless it
//! is told to be one.

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Caller, CallerId};
use cenote_fabric::ring::{Node, Options, Seat, User, UserOptions};
use cenote_testkit::contract::calls::{self as contract, Bench, Program};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Set for a process that is to be a node: the ring's file.
const ROLE: &str = "CENOTE_TEST_RING";
/// Set for one that is to be a user: likewise.
const USER: &str = "CENOTE_TEST_RING_USER";

fn options(consumers: u32) -> Options {
    Options {
        seats: 8,
        consumers,
        is_there: Arc::new(|who| {
            who == 0
                || Path::new(&format!("/proc/{who}/fd"))
                    .read_dir()
                    .is_ok_and(|mut d| d.next().is_some())
        }),
        ..Options::default()
    }
}

fn user_options() -> UserOptions {
    UserOptions {
        timeout: Nanos::from_secs(60),
        ..UserOptions::default()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = rt::now() + Nanos::from_secs(120);
    while !is_so() {
        assert!(rt::now() < end, "{what}");
        rt::sleep(Nanos::from_millis(5));
    }
}

/// A node of this process.
struct Near(Mutex<Option<Node>>);

impl Near {
    fn start(options: Options) -> Arc<dyn Bench> {
        let node = Node::start_here(options, Arc::<Program>::default()).expect("a ring");
        Arc::new(Self(Mutex::new(Some(node))))
    }
}

impl Bench for Near {
    fn caller(&self) -> Arc<dyn Caller> {
        let node = self.0.lock().expect("no panic");
        let node = node.as_ref().expect("not lost");
        // Users that were dropped give their seats back within 100 ms.
        let mut seat = Err(Error::Busy(String::new()));
        until("there is a seat", || {
            seat = node.admit(0);
            seat.is_ok()
        });
        User::on(Arc::clone(node.region()), seat.expect("a seat"), user_options()).expect("it is there")
    }

    fn lose(&self) {
        drop(self.0.lock().expect("no panic").take());
    }
}

#[test]
fn rings_keep_the_contract_in_one_process() {
    for consumers in [1, 2] {
        contract::all(&Near::start(options(consumers)));
    }
}

/// Slots, chunks and seats are all there is of them, and calls wait for each other.
#[test]
fn a_small_ring_keeps_the_contract_too() {
    contract::all(&Near::start(Options { slots: 4, ..options(1) }));
}

/// A node of another process, told what to do line by line.
struct Far {
    child: Mutex<Child>,
    answers: Mutex<Box<dyn BufRead + Send>>,
    path: PathBuf,
    _directory: Directory,
}

impl Far {
    fn start() -> Self {
        let directory = Directory::new();
        let path = directory.0.join("ring");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["a_node", "--exact", "--nocapture"])
            .env(ROLE, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let answers: Box<dyn BufRead + Send> = Box::new(BufReader::new(child.stdout.take().expect("piped")));
        let far = Self {
            child: Mutex::new(child),
            answers: Mutex::new(answers),
            path,
            _directory: directory,
        };
        assert_eq!(far.answer(), "ready");
        far
    }

    fn answer(&self) -> String {
        let mut lines = self.answers.lock().expect("no panic");
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).expect("read"), 0, "the node has ended");
            if let Some((_, answer)) = line.trim_end().split_once("node: ") {
                return answer.to_owned();
            }
        }
    }

    fn admit(&self, who: u32) -> Seat {
        let mut seat = None;
        until("there is a seat", || {
            let stdin = &mut self.child.lock().expect("no panic").stdin;
            writeln!(stdin.as_mut().expect("piped"), "{who}").expect("told");
            seat = parse_seat(&self.answer());
            seat.is_some()
        });
        seat.expect("a seat")
    }

    fn kill(&self) {
        let mut child = self.child.lock().expect("no panic");
        child.kill().ok();
        child.wait().expect("ended");
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Bench for Far {
    fn caller(&self) -> Arc<dyn Caller> {
        let seat = self.admit(std::process::id());
        User::join(&self.path, seat, user_options()).expect("it is there")
    }

    fn lose(&self) {
        self.kill();
    }
}

/// In shared memory, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.into() } else { std::env::temp_dir() };
        let path = parent.join(format!("cenote-test-rings-{}-{:x}", std::process::id(), rt::random()));
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn parse_seat(line: &str) -> Option<Seat> {
    let words: Vec<u64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    let [number, epoch, caller, incarnation] = words[..] else {
        return None;
    };
    Some(Seat {
        number: number as u32,
        epoch: epoch as u32,
        caller,
        incarnation,
    })
}

fn say_seat(seat: Result<Seat>) -> String {
    match seat {
        Ok(seat) => format!("{} {} {} {}", seat.number, seat.epoch, seat.caller, seat.incarnation),
        Err(error) => error.to_string(),
    }
}

/// The node's process: admits whom it is told of, until its input ends.
#[test]
fn a_node() {
    let Some(path) = std::env::var_os(ROLE) else { return };
    let node = Node::start(Path::new(&path), options(2), Arc::<Program>::default()).expect("a ring");
    println!("node: ready");
    for line in std::io::stdin().lines() {
        let who = line.expect("read").parse().expect("a process");
        println!("node: {}", say_seat(node.admit(who)));
    }
}

/// A user's process: it is told its seat, and asks without end, from a few threads.
#[test]
fn a_user() {
    let Some(path) = std::env::var_os(USER) else { return };
    let told = std::io::stdin().lines().next().expect("a line").expect("read");
    let seat = parse_seat(&told).expect("a seat");
    let user = User::join(Path::new(&path), seat, user_options()).expect("it is there");
    let ask = |n: usize| {
        let user = Arc::clone(&user);
        rt::spawn("user", move || {
            loop {
                let calls = (0..8).map(|_| Call::new([b"e".as_slice(), &vec![n as u8; n * 3000]].concat()));
                drop(user.post(calls.collect()).wait());
            }
        })
    };
    // The end of one that has asked for nothing is not told.
    user.call(b"e", &mut Vec::new()).expect("served");
    let threads: Vec<_> = (0..3).map(ask).collect();
    println!("user: begun");
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

#[test]
fn rings_keep_the_contract_between_processes() {
    let bench: Arc<dyn Bench> = Arc::new(Far::start());
    contract::all(&bench);
}

/// Ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Running {
    /// A user that waits for its seat.
    fn user(path: &Path) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["a_user", "--exact", "--nocapture"])
            .env(USER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("this program again"))
    }

    fn tell(&mut self, seat: Seat) {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{}", say_seat(Ok(seat))).expect("told");
        let mut lines = BufReader::new(self.0.stdout.take().expect("piped")).lines();
        let has_begun = lines.any(|line| line.expect("read").contains("user: begun"));
        assert!(has_begun, "it asks");
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

/// Users that are killed in the middle of anything, more often than there are seats: the others go on, each end is told
/// once, and their seats come back.
#[test]
fn users_that_are_killed_hold_up_no_other() {
    let directory = Directory::new();
    let path = directory.0.join("ring");
    let program = Arc::<Ended>::default();
    let node = Node::start(&path, options(2), Arc::clone(&program) as _).expect("a ring");
    let seat = node.admit(0).expect("a seat");
    let other = User::on(Arc::clone(node.region()), seat, user_options()).expect("it is there");
    for round in 0..10u8 {
        let mut user = Running::user(&path);
        let mut seat = None;
        until("there is a seat", || {
            seat = node.admit(user.0.id().into()).ok();
            seat.is_some()
        });
        let seat = seat.expect("a seat");
        user.tell(seat);
        rt::sleep(Nanos::from_micros(rt::random() % 20_000));
        if round % 3 == 2 {
            // It is fenced first, and killed later.
            node.dismiss(CallerId(seat.caller));
        }
        user.kill();
        let mut answer = Vec::new();
        other.call(&[b'e', round], &mut answer).expect("it goes on");
        assert_eq!(answer, [round]);
        until("its end is told", || program.ended(seat) == 1);
        assert!(matches!(User::join(&path, seat, user_options()), Err(Error::Lost(_))));
    }
}

#[derive(Default)]
struct Ended(Program, Mutex<Vec<CallerId>>);

impl Ended {
    fn ended(&self, seat: Seat) -> usize {
        let ended = self.1.lock().expect("no panic");
        ended.iter().filter(|caller| caller.0 == seat.caller).count()
    }
}

impl cenote_fabric::rdma::call::Serve for Ended {
    fn serve(&self, caller: CallerId, request: &[u8], answer: cenote_fabric::rdma::call::Answer) {
        self.0.serve(caller, request, answer);
    }

    fn ended(&self, caller: CallerId) {
        self.1.lock().expect("no panic").push(caller);
    }
}

/// A user that is killed is found to be gone by the node itself.
#[test]
fn the_seat_of_a_killed_user_is_free_again() {
    let far = Far::start();
    let mut waiting = Command::new("sleep")
        .arg("1000")
        .spawn()
        .map(Running)
        .expect("a process");
    let seats: Vec<Seat> = (0..8).map(|_| far.admit(waiting.0.id())).collect();
    waiting.0.kill().expect("killed");
    waiting.0.wait().expect("ended");
    let again = far.admit(std::process::id());
    assert!(seats.iter().all(|seat| seat.epoch != again.epoch));
    let user = User::join(&far.path, again, user_options()).expect("it is there");
    user.call(b"e", &mut Vec::new()).expect("served");
    // A node that starts in its place knows no user, and the former ones hear of it.
    far.kill();
    assert!(matches!(user.call(b"e", &mut Vec::new()), Err(Error::Lost(_))));
}
