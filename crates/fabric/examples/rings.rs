//! What a message ring costs, beside a Unix socket and TCP on the loopback interface, all to a node in another process;
//! and short requests beside long ones that are answered late.
//!
//! `cargo run --release -p cenote-fabric --example rings -- [SECONDS]`: so long for each cell, 1 unless told. With
//! `RINGS=shared` the ring shares its thread with 100 others, each of which has a user that does nothing.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::rdma::call::{Answer, Call, Caller, CallerId, Serve};
use cenote_fabric::ring::{Node, Options, Seat, Servers, User, UserOptions};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Bytes of a short request, and of a long one.
const SHORT: usize = 64;
const LONG: usize = 64 << 10;
/// How long the far side takes: what a read over RDMA does, and the daemon's part of it.
const FAR: Nanos = Nanos::from_micros(20);
/// Calls with one doorbell.
const BATCH: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [role, directory] if role == "node" => serve(Path::new(directory)),
        _ => measure(arguments.first().and_then(|s| s.parse().ok()).unwrap_or(1.0)),
    }
}

// ---- the node's process ----

/// Echoes short requests at once, and long ones when the far side has answered.
#[derive(Default)]
struct Daemon {
    far: Mutex<VecDeque<(Nanos, Answer)>>,
    posted: Condvar,
}

impl Serve for Daemon {
    fn serve(&self, _: CallerId, request: &[u8], mut answer: Answer) {
        if request.len() <= SHORT {
            return answer.with(request);
        }
        answer.bytes().extend_from_slice(&request[..SHORT]);
        self.far.lock().expect("no panic").push_back((rt::now() + FAR, answer));
        self.posted.notify_one();
    }
}

impl Daemon {
    /// The far side: one after the other is answered, each when its time has come.
    fn forward(&self) {
        loop {
            let (due, answer) = {
                let mut far = self.far.lock().expect("no panic");
                loop {
                    match far.pop_front() {
                        Some(next) => break next,
                        None => far = self.posted.wait(far).expect("no panic"),
                    }
                }
            };
            rt::sleep(due.since(rt::now()));
            answer.send();
        }
    }
}

/// Rings that share a thread with the one that is measured, and their thread.
type Others = (Vec<Node>, Servers);

fn start_shared(path: &Path, options: Options, daemon: &Arc<Daemon>) -> (Node, Option<Others>) {
    let servers = Servers::new(1, options.spin).expect("a thread");
    let other = |_| {
        let node = Node::start_here_with(options.clone(), Arc::clone(daemon) as _, &servers).expect("a ring");
        node.admit(0).expect("a seat");
        node
    };
    let others = (0..100).map(other).collect();
    let node = Node::start_with(path, options.clone(), Arc::clone(daemon) as _, &servers).expect("a ring");
    (node, Some((others, servers)))
}

fn serve(directory: &Path) {
    let daemon = Arc::<Daemon>::default();
    let far = Arc::clone(&daemon);
    drop(rt::spawn("far", move || far.forward()));
    let options = Options {
        seats: 8,
        ..Options::default()
    };
    let path = directory.join("ring");
    let (node, _others) = match std::env::var("RINGS").as_deref() {
        Ok("shared") => start_shared(&path, options, &daemon),
        _ => (Node::start(&path, options, daemon).expect("a ring"), None),
    };
    let unix = UnixListener::bind(directory.join("unix")).expect("a socket");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
    println!("{}", tcp.local_addr().expect("bound"));
    drop(rt::spawn("unix", move || {
        unix.incoming().for_each(|s| echo(s.expect("a connection")))
    }));
    drop(rt::spawn("tcp", move || {
        tcp.incoming().for_each(|s| {
            let stream = s.expect("a connection");
            stream.set_nodelay(true).expect("set");
            echo(stream);
        });
    }));
    for line in std::io::stdin().lines() {
        line.expect("read");
        let seat = node.admit(0).expect("a seat");
        println!("{} {} {} {}", seat.number, seat.epoch, seat.caller, seat.incarnation);
    }
}

/// A thread for each connection.
fn echo(mut stream: impl Read + Write + Send + 'static) {
    drop(rt::spawn("echo", move || {
        let mut message = [0; SHORT];
        while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
    }));
}

// ---- the measuring process ----

struct Far {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    directory: PathBuf,
    tcp: String,
}

impl Far {
    fn start() -> Self {
        let directory = PathBuf::from(format!("/dev/shm/cenote-rings-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("node")
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut tcp = String::new();
        lines.read_line(&mut tcp).expect("an address");
        Self {
            child,
            lines,
            directory,
            tcp: tcp.trim().into(),
        }
    }

    fn user(&mut self) -> Arc<dyn Caller> {
        writeln!(self.child.stdin.as_mut().expect("piped")).expect("told");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a seat");
        let words: Vec<u64> = line
            .trim()
            .split(' ')
            .map(|word| word.parse().expect("a number"))
            .collect();
        let seat = Seat {
            number: words[0] as u32,
            epoch: words[1] as u32,
            caller: words[2],
            incarnation: words[3],
        };
        User::join(&self.directory.join("ring"), seat, UserOptions::default()).expect("it is there")
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

/// Something that asks once, and waits.
type Ask = Box<dyn FnMut() + Send>;

/// Runs them side by side: nanoseconds that each took, of all.
fn run(seconds: f64, asks: Vec<Ask>) -> Vec<u64> {
    let until = rt::now() + Nanos((seconds * 1e9) as u64);
    let threads = asks.into_iter().map(|mut ask| {
        rt::spawn("asks", move || {
            let mut took = Vec::with_capacity(1 << 20);
            while rt::now() < until {
                let begun = rt::now();
                ask();
                took.push(rt::now().since(begun).raw());
            }
            took
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut all: Vec<u64> = threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("no panic"))
        .collect();
    all.sort_unstable();
    all
}

fn at(sorted: &[u64], share: f64) -> f64 {
    let place = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(place).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

fn row(what: &str, times: usize, seconds: f64, took: &[u64]) {
    println!(
        "| {what} | {:.0} | {:.1} | {:.1} | {:.1} |",
        (took.len() * times) as f64 / seconds / 1000.0,
        at(took, 0.5),
        at(took, 0.99),
        at(took, 0.999)
    );
}

fn short(user: &Arc<dyn Caller>) -> Ask {
    let (user, mut answer) = (Arc::clone(user), Vec::new());
    Box::new(move || user.call(&[7; SHORT], &mut answer).expect("answered"))
}

fn batch(user: &Arc<dyn Caller>) -> Ask {
    let user = Arc::clone(user);
    Box::new(move || {
        let calls = (0..BATCH).map(|_| Call::new(vec![7; SHORT])).collect();
        assert!(user.post(calls).wait().iter().all(|call| call.result.is_ok()));
    })
}

fn over(mut stream: impl Read + Write + Send + 'static) -> Ask {
    let mut message = [7; SHORT];
    Box::new(move || {
        stream.write_all(&message).expect("sent");
        stream.read_exact(&mut message).expect("received");
    })
}

fn measure(seconds: f64) {
    let mut far = Far::start();
    println!("| {SHORT} bytes there and back | 1000/s | p50 us | p99 us | p999 us |\n|---|---|---|---|---|");
    for producers in [1, 2, 4] {
        let user = far.user();
        let took = run(seconds, (0..producers).map(|_| short(&user)).collect());
        row(&format!("ring, {producers} threads"), 1, seconds, &took);
        let took = run(seconds, (0..producers).map(|_| batch(&user)).collect());
        row(&format!("ring, {producers} threads, by {BATCH}"), BATCH, seconds, &took);
        let unix = (0..producers).map(|_| over(UnixStream::connect(far.directory.join("unix")).expect("connected")));
        row(
            &format!("Unix socket, {producers} threads"),
            1,
            seconds,
            &run(seconds, unix.collect()),
        );
        let tcp = (0..producers).map(|_| {
            let stream = TcpStream::connect(&far.tcp).expect("connected");
            stream.set_nodelay(true).expect("set");
            over(stream)
        });
        row(
            &format!("TCP, {producers} threads"),
            1,
            seconds,
            &run(seconds, tcp.collect()),
        );
    }
    println!(
        "\n| short ones beside {LONG} bytes that take {FAR} more | 1000/s | p50 us | p99 us | p999 us |\n|---|---|---|---|---|"
    );
    for long in [1, 2] {
        short_beside_long(&mut far, long, seconds);
    }
}

/// The machine does other things beside: medians of the rounds' percentiles are told.
const ROUNDS: usize = 9;
/// Of the user that posts long ones: one in so much time.
const PACE: Nanos = Nanos::from_micros(300);

fn short_beside_long(far: &mut Far, long: usize, seconds: f64) {
    let users: Vec<_> = (0..=long).map(|_| far.user()).collect();
    let rounds: Vec<_> = (0..ROUNDS).map(|_| beside(&users, seconds)).collect();
    let median = |figure: &dyn Fn(&[u64]) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(|took| figure(took)).collect();
        figures.sort_unstable_by(f64::total_cmp);
        figures[ROUNDS / 2]
    };
    let rate = median(&|took| took.len() as f64 / seconds / 1000.0);
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| median(&|took| at(took, share)));
    println!("| {long} that post long ones | {rate:.0} | {p50:.2} | {p99:.1} | {p999:.1} |");
}

/// Short requests of one thread while others post long ones, each over its own seat.
fn beside(users: &[Arc<dyn Caller>], seconds: f64) -> Vec<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let others = users[1..].iter().map(|user| {
        let (user, stop) = (Arc::clone(user), Arc::clone(&stop));
        rt::spawn("long", move || {
            let (request, mut answer) = (vec![7; LONG], Vec::new());
            let mut due = rt::now();
            while !stop.load(Ordering::Relaxed) {
                user.call(&request, &mut answer).expect("answered");
                due += PACE;
                rt::sleep(due.since(rt::now()));
            }
        })
    });
    let others: Vec<_> = others.collect();
    let took = run(seconds, vec![short(&users[0])]);
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|thread| thread.join().expect("no panic"));
    took
}
