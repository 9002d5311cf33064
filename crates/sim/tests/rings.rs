//! Message rings in the simulator: the contract of calls, and bytes of all lengths from several threads.

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Caller};
use cenote_fabric::ring::{Node, Options, Seat, User, UserOptions};
use cenote_testkit::contract::calls::{self as contract, Bench, Program};
use std::sync::Arc;

fn options() -> Options {
    Options {
        seats: 8,
        slots: 16,
        consumers: 2,
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
        let node = Node::start_here(options(), Arc::<Program>::default()).expect("a ring");
        let bench: Arc<dyn Bench> = Arc::new(Near(Mutex::new(Some(node))));
        contract::all(&bench);
    });
}

/// Bytes of all lengths, both ways, from several threads: each answer is that to its request.
#[test]
fn bytes_of_all_lengths_come_as_they_went() {
    cenote_sim::explore(5, |_| {
        let echo = |_, request: &[u8], answer: cenote_fabric::rdma::call::Answer| answer.with(request);
        let node = Node::start_here(options(), Arc::new(echo)).expect("a ring");
        let seat = node.admit(0).expect("a seat");
        let user = User::on(Arc::clone(node.region()), seat, user_options()).expect("it is there");
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
