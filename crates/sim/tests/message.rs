//! Simulated connections: the contract, late messages, cut ways, and programs that die.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::{Connection, Network};
use cenote_fabric::profile;
use cenote_sim::message::{Endpoint, Faults, Net};
use cenote_sim::{Pace, Topology, World};
use cenote_testkit::contract::message::{self as contract, Bench};
use std::sync::{Arc, Mutex};

const TIMEOUT: Nanos = Nanos::from_secs(60);
const SOON: Nanos = Nanos::from_millis(20);

fn net(seed: u64) -> Net {
    Net::new(&profile::named("rdma").expect("a profile of this program"), seed)
}

struct Simulated(Arc<Endpoint>, Arc<Endpoint>);

impl Bench for Simulated {
    fn one(&self) -> Arc<dyn Network> {
        Arc::clone(&self.0) as Arc<dyn Network>
    }

    fn other(&self) -> Arc<dyn Network> {
        Arc::clone(&self.1) as Arc<dyn Network>
    }

    fn address(&self) -> String {
        "other:0".into()
    }
}

#[test]
fn the_contract_holds_however_late_messages_are() {
    for delay in [0, 50, 3_000] {
        cenote_sim::explore(10, |sim| {
            let net = net(sim.seed());
            net.set_faults(Faults {
                delay: Nanos::from_micros(delay),
                breaks: 0.0,
            });
            contract::all(&Simulated(net.endpoint("one", 0), net.endpoint("other", 0)));
        });
    }
}

/// A world of two hosts, with a program on the second that serves each connection.
fn world(
    seeds: u64,
    serve: impl Fn(&Arc<dyn Connection>) + Clone + Send + 'static,
    body: impl Fn(&World, &Net, &Arc<Endpoint>, &cenote_sim::Process),
) {
    for seed in cenote_sim::seeds(seeds) {
        let world = World::new(seed, Pace::Explore, Topology::hosts(2, 1)).expect("a possible topology");
        world.run(|w| {
            let net = net(seed);
            let (there, serve) = (net.endpoint("there", 1), serve.clone());
            let server = w.process(1, "server", move || {
                let listener = there.listen("there:1").expect("free");
                while let Ok(come) = listener.accept(TIMEOUT) {
                    come.iter().for_each(&serve);
                }
            });
            let here = net.endpoint("here", 0);
            rt::sleep(SOON);
            body(w, &net, &here, &server);
            server.kill();
        });
    }
}

fn echo(connection: &Arc<dyn Connection>) {
    while let Ok(message) = connection.receive(TIMEOUT) {
        if connection.send(&message).is_err() {
            return;
        }
    }
}

fn is_lost<T>(result: cenote_base::Result<T>) -> bool {
    matches!(result, Err(Error::Lost(_)))
}

/// Nothing comes through a cut; all of it after, once, in its order.
#[test]
fn what_a_cut_held_comes_late() {
    world(20, echo, |_, net, here, _| {
        let connection = here.connect("there:1", TIMEOUT).expect("connected");
        for (from, to) in [("here", "there"), ("there", "here")] {
            net.cut(from, to);
            (0..3u8).for_each(|n| connection.send(&[n]).expect("sent"));
            let nothing = connection.receive(Nanos::from_secs(5));
            assert!(matches!(nothing, Err(Error::Timeout(_))), "{nothing:?}");
            assert!(is_lost(here.connect("there:1", SOON)), "no connection over one way");
            net.mend(from, to);
            for n in 0..3u8 {
                assert_eq!(connection.receive(TIMEOUT).expect("it comes"), [n]);
            }
            assert!(connection.receive(SOON).is_err(), "and nothing else");
        }
    });
}

/// Also a thread that waits for a message when it happens; through a cut, after that.
#[test]
fn the_end_of_a_process_is_heard_of() {
    world(20, echo, |_, net, here, server| {
        let connection = here.connect("there:1", TIMEOUT).expect("connected");
        let waiting = Arc::clone(&connection);
        let waits = rt::spawn("waits", move || is_lost(waiting.receive(TIMEOUT)));
        rt::sleep(SOON);
        let began = rt::now();
        net.cut("there", "here");
        server.kill();
        rt::sleep(Nanos::from_secs(1));
        assert!(
            matches!(connection.receive(SOON), Err(Error::Timeout(_))),
            "not through a cut"
        );
        net.mend_all();
        assert!(waits.join().expect("no panic"));
        assert!(
            rt::now().since(began) < Nanos::from_secs(3),
            "it waited for no deadline"
        );
        assert!(is_lost(connection.send(b"to no one")));
        assert!(is_lost(here.connect("there:1", TIMEOUT)));
    });
}

/// Its address is free for the next one, and what was said to the former is not heard by the next.
#[test]
fn the_next_one_has_the_address() {
    world(10, echo, |w, net, here, server| {
        let former = here.connect("there:1", TIMEOUT).expect("connected");
        former.send(b"to the former").expect("sent");
        server.kill();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (there, theirs) = (net.endpoint("there", 1), Arc::clone(&heard));
        let next = w.process(1, "next", move || {
            let listener = there.listen("there:1").expect("the former is gone");
            let connection = listener.accept(TIMEOUT).expect("no error").expect("a caller comes");
            theirs.lock().expect("no panic").extend(connection.receive(TIMEOUT));
        });
        rt::sleep(SOON);
        let connection = here.connect("there:1", TIMEOUT).expect("connected");
        connection.send(b"to the next").expect("sent");
        next.join();
        assert_eq!(*heard.lock().expect("no panic"), [b"to the next".to_vec()]);
    });
}

/// What arrives is a beginning of what was sent, whatever breaks.
#[test]
fn a_connection_that_breaks_has_a_beginning() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&heard);
    let serve = move |connection: &Arc<dyn Connection>| {
        while let Ok(message) = connection.receive(TIMEOUT) {
            theirs.lock().expect("no panic").push(message);
        }
    };
    world(20, serve, |_, net, here, _| {
        heard.lock().expect("no panic").clear();
        net.set_faults(Faults {
            delay: Nanos::from_micros(500),
            breaks: 0.05,
        });
        let connection = here.connect("there:1", TIMEOUT).expect("connected");
        let mut sent = 0u32;
        while connection.send(&sent.to_le_bytes()).is_ok() {
            sent += 1;
            rt::sleep(Nanos::from_micros(300));
        }
        rt::sleep(SOON);
        let heard = heard.lock().expect("no panic");
        let in_order: Vec<_> = (0..heard.len() as u32).map(|n| n.to_le_bytes().to_vec()).collect();
        assert!(*heard == in_order && heard.len() as u32 <= sent, "{heard:?} of {sent}");
    });
}
