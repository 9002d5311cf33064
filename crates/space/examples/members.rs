//! What it costs a memory's host to serve members alone (docs/fencing.md): requests as they come from the fabric, of so
//! many users one after the other, without and with a member's gate around them. ns of the processor a request,
//! medians of interleaved rounds; and memory a member.
//!
//! ```text
//! cargo run --release -p cenote-space --example members
//! ```

use cenote_base::rt::{self, Nanos};
use cenote_fabric::rdma::call::{Answer, Answered, Answering, CallerId, Serve};
use cenote_space::{EXTENT, GlobalAddress, Host, HostOptions, Hosts, LocalKeeper, Part, PartOptions, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SPACE: u128 = 7;
const KEY: u128 = 9;
const ROUNDS: usize = 21;
/// Requests of a round.
const REQUESTS: usize = 40_000;

/// Counts answers that were none.
#[derive(Default)]
struct Judge(AtomicU64);

impl Answering for Judge {
    fn answered(&self, _: CallerId, _: u64, answer: cenote_base::Result<Answered>) {
        self.0.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
    }
}

/// A part, its host, and so many users of it.
struct Served {
    hosts: Hosts,
    _host: Host,
    judge: Arc<Judge>,
    words: Vec<GlobalAddress>,
    /// By user, the last number of a request.
    numbers: Vec<u32>,
}

fn head(kind: u8, count: u16, number: u32) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

impl Served {
    fn new(users: usize, members_only: bool) -> Self {
        let options = PartOptions {
            space: SPACE,
            part: 1,
            tenant: 0,
            bytes: 8 * EXTENT,
            movable: true,
            region: Default::default(),
        };
        let part = Arc::new(Part::dram(&options).expect("memory"));
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part)).expect("a keeper"));
        let space = Space::new(SPACE);
        space.attach(part, Arc::clone(&keeper) as _).expect("attached");
        let session = space.session();
        let words = (0..users).map(|_| session.alloc(64).expect("room")).collect();
        let options = HostOptions {
            key: KEY,
            every: Nanos::ZERO,
            members_only,
            ..HostOptions::default()
        };
        let (hosts, host) = (Hosts::default(), Host::start(keeper, options).expect("a host"));
        hosts.add(&host);
        // The words stay, whoever has allocated them.
        drop(session);
        Self {
            hosts,
            _host: host,
            judge: Arc::default(),
            words,
            numbers: vec![0; users],
        }
    }

    fn ask(&self, user: usize, request: &[u8]) {
        let caller = CallerId(user as u64 + 1);
        self.hosts
            .serve(caller, request, Answer::new(caller, 0, Arc::clone(&self.judge) as _));
    }

    /// Each user says hello, as a member if members alone are served.
    fn greet(&self, epochs: Option<&[u64]>) {
        for user in 0..self.words.len() {
            let pass = epochs.map_or("null".to_owned(), |epochs| {
                format!(r#"{{"member":{},"epoch":{}}}"#, user + 1, epochs[user])
            });
            let hello = format!(r#"{{"space":{SPACE},"part":1,"key":{KEY},"pod":"west"}}"#);
            let greeting = format!(r#"{{"hello":{hello},"user":{},"turn":1,"pass":{pass}}}"#, user + 1);
            self.ask(user, &[head(1, 0, 0), greeting.into_bytes()].concat());
        }
    }

    fn admit(&self) -> Vec<u64> {
        let members = 1..=self.words.len() as u128;
        members
            .map(|member| self.hosts.admit(SPACE, member).expect("admitted"))
            .collect()
    }

    /// Stores, or loads, once for each request; ns a request.
    fn round(&mut self, is_store: bool) -> f64 {
        let begun = on_processor();
        let users = self.words.len();
        for n in 0..REQUESTS {
            // Far from the last one, so that its lines are not there already.
            let user = n.wrapping_mul(7919) % users;
            let number = match is_store {
                true => {
                    self.numbers[user] += 1;
                    self.numbers[user]
                }
                false => 0,
            };
            let mut request = head(2, 1, number);
            request.extend_from_slice(&[if is_store { 4 } else { 3 }, 0, 0, 0, 8, 0, 0, 0]);
            for word in [self.words[user].raw(), n as u64, 0] {
                request.extend_from_slice(&word.to_le_bytes());
            }
            self.ask(user, &request);
        }
        (on_processor() - begun) as f64 / REQUESTS as f64
    }

    fn check(&self) {
        assert_eq!(self.judge.0.load(Ordering::Relaxed), 0, "a request was refused");
    }
}

/// Nanoseconds that this thread was on a processor: others have their time too.
fn on_processor() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("nanoseconds")
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok())
        .expect("pages")
        * 4096
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn compare(users: usize) {
    let (mut plain, mut gated) = (Served::new(users, false), Served::new(users, true));
    plain.greet(None);
    gated.greet(Some(&gated.admit()));
    for (what, is_store) in [("store", true), ("load", false)] {
        let round = |_| [plain.round(is_store), gated.round(is_store)];
        let mut rounds: Vec<[f64; 2]> = (0..=ROUNDS).map(round).collect();
        rounds.remove(0);
        let of = |which: usize| median(rounds.iter().map(|round| round[which]).collect());
        println!(
            "{users:6} users  {what:6} without {:7.1} ns   with a gate {:7.1} ns",
            of(0),
            of(1)
        );
    }
    plain.check();
    gated.check();
}

/// In memory that nothing has used before.
fn weigh(users: usize) {
    let (plain, gated) = (Served::new(users, false), Served::new(users, true));
    let mut marks = vec![resident()];
    plain.greet(None);
    marks.push(resident());
    let epochs = gated.admit();
    marks.push(resident());
    gated.greet(Some(&epochs));
    marks.push(resident());
    let each: Vec<u64> = marks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / users as u64)
        .collect();
    println!(
        "{users:6} users  bytes: a user {}, a gate {}, a user with a gate {}",
        each[0], each[1], each[2]
    );
}

fn main() {
    rt::sleep(Nanos::from_millis(10));
    weigh(100_000);
    [1, 100, 10_000].into_iter().for_each(compare);
}
