//! Message rings in the simulator: the contract of calls on one host, and between hosts of a pod that has no coherence.

use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Caller, Serve};
use cenote_fabric::ring::{Node, Options, Reach, Seat, User, UserOptions};
use cenote_sim::{CacheSpec, DeviceSpec, Exit, Pace, Topology, World, seeds};
use cenote_testkit::contract::calls::{self as contract, Bench, Program};
use std::path::Path;
use std::sync::Arc;

const RING: &str = "/dev/sim/pool";

fn options(reach: Reach) -> Options {
    Options {
        seats: 8,
        slots: 16,
        reach,
        consumers: if reach == Reach::Host { 2 } else { 1 },
        ..Options::default()
    }
}

fn user_options() -> UserOptions {
    UserOptions {
        timeout: Nanos::from_secs(60),
        ..UserOptions::default()
    }
}

/// Asks again while the seats of users that left are cleared.
fn patiently(admit: impl Fn() -> Result<Seat>) -> Seat {
    loop {
        match admit() {
            Err(Error::Busy(_)) => rt::sleep(Nanos::from_millis(10)),
            seat => return seat.expect("a seat"),
        }
    }
}

struct Near(Mutex<Option<Node>>);

impl Bench for Near {
    fn caller(&self) -> Arc<dyn Caller> {
        let node = self.0.lock();
        let node = node.as_ref().expect("not lost");
        let seat = patiently(|| node.admit(0));
        User::on(Arc::clone(node.region()), seat, user_options()).expect("it is there")
    }

    fn lose(&self) {
        drop(self.0.lock().take());
    }
}

#[test]
fn rings_keep_the_contract_on_one_host() {
    cenote_sim::explore(5, |_| {
        let node = Node::start_here(options(Reach::Host), Arc::<Program>::default()).expect("a ring");
        let bench: Arc<dyn Bench> = Arc::new(Near(Mutex::new(Some(node))));
        contract::all(&bench);
    });
}

/// What is asked of the node's process, since a seat is given on its host.
#[derive(Default)]
struct Reception {
    state: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    wanted: bool,
    seat: Option<Result<Seat>>,
    is_over: bool,
    has_ended: bool,
}

impl Reception {
    fn serve(&self, node: Node) {
        let mut state = self.state.lock();
        while !state.is_over {
            if core::mem::take(&mut state.wanted) {
                drop(state);
                let seat = node.admit(0);
                state = self.state.lock();
                state.seat = Some(seat);
                self.changed.notify_all();
            } else {
                state = self.changed.wait(state);
            }
        }
        drop(state);
        drop(node);
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn ask(&self) -> Result<Seat> {
        let mut state = self.state.lock();
        state.wanted = true;
        self.changed.notify_all();
        loop {
            match state.seat.take() {
                Some(seat) => return seat,
                None => state = self.changed.wait(state),
            }
        }
    }
}

impl Bench for Reception {
    fn caller(&self) -> Arc<dyn Caller> {
        User::join(Path::new(RING), patiently(|| self.ask()), user_options()).expect("it is there")
    }

    fn lose(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        self.changed.notify_all();
        while !state.has_ended {
            state = self.changed.wait(state);
        }
    }
}

/// Small caches, so that lines go at any time.
fn pod() -> Topology {
    let mut topology = Topology::hosts(2, 2);
    for host in &mut topology.hosts {
        host.cache = CacheSpec {
            bytes: 64 << 10,
            ways: 8,
        };
    }
    topology.with_device(DeviceSpec::new("pool", 16 << 20, "cxl-switch").expect("a profile"))
}

/// A node on host 0, and `user` on host 1.
fn between_hosts(seed: u64, program: Arc<dyn Serve>, user: impl FnOnce(Arc<Reception>) + Send + 'static) {
    println!("CENOTE_SEED={seed}");
    let world = World::new(seed, Pace::Explore, pod()).expect("possible");
    world.run(|w| {
        let reception = Arc::<Reception>::default();
        let (theirs, users) = (Arc::clone(&reception), Arc::clone(&reception));
        let node = w.process(0, "node", move || {
            let node = Node::start(Path::new(RING), options(Reach::Pod), program).expect("a ring");
            theirs.serve(node);
        });
        let user = w.process(1, "user", move || user(users));
        assert_eq!(user.join(), Exit::Returned);
        reception.lose();
        assert_eq!(node.join(), Exit::Returned);
        let hazards = w.hazards();
        assert_eq!(hazards.total(), 0, "{:#?}", hazards.first);
    });
}

#[test]
fn rings_keep_the_contract_between_hosts_without_coherence() {
    for seed in seeds(5) {
        between_hosts(seed, Arc::<Program>::default(), |reception| {
            let bench: Arc<dyn Bench> = reception;
            contract::all(&bench);
        });
    }
}

/// Bytes of all lengths, both ways, from several threads: none of them is of before.
#[test]
fn no_line_of_before_is_believed() {
    for seed in seeds(5) {
        let echo = |_, request: &[u8], answer: cenote_fabric::rdma::call::Answer| answer.with(request);
        between_hosts(seed, Arc::new(echo), |reception| {
            let user = reception.caller();
            let ask = |n: u64| {
                let user = Arc::clone(&user);
                rt::spawn("user", move || {
                    for round in 0..40u64 {
                        let len = (rt::random() % 3 * 4000 + rt::random() % 300) as usize;
                        let request = vec![(n * 40 + round) as u8; len];
                        let call = user.post(vec![Call::new(request.clone())]).wait().remove(0);
                        assert!(call.into_answer().expect("answered") == request, "{len} bytes");
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(ask).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
    }
}
