//! Simulated verbs and messages: the contract under faults, published times, saturation, and deaths half-way.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::named;
use cenote_fabric::rdma::call::{Answer, Call, Caller, CallerId, Callers, Memory, Serve, Source};
use cenote_fabric::rdma::{Endpoint, Fabric, Remote, RemoteMemory, Work};
use cenote_sim::net::{self, Address, Messages};
use cenote_sim::rdma::{Faults, MemoryNode, Network, Port, Serving};
use cenote_sim::{Pace, Topology, World};
use cenote_testkit::contract::calls;
use cenote_testkit::contract::verbs::{self as contract, Bench};
use std::sync::{Arc, Mutex};

fn network(seed: u64) -> Network {
    Network::new(&named("rdma").expect("known"), seed)
}

/// A node and memory on it, seen from a host.
fn setting(network: &Network, len: u64) -> (MemoryNode, Arc<Port>, RemoteMemory) {
    let node = network.add_node("mem");
    let port = network.port(0);
    let endpoint = port.connect("mem").expect("there");
    let remote = RemoteMemory::new(endpoint, node.register(len));
    (node, port, remote)
}

struct Simulated {
    node: MemoryNode,
    port: Arc<Port>,
}

impl Bench for Simulated {
    fn connect(&self) -> Arc<dyn Endpoint> {
        self.port.connect(&self.node.name()).expect("reachable")
    }

    fn register(&self, len: u64) -> Remote {
        self.node.register(len)
    }

    fn revoke(&self, memory: Remote) {
        assert!(self.node.revoke(memory.key));
    }

    fn lose(&self) {
        self.node.lose();
    }
}

#[test]
fn the_contract_holds_whatever_the_network_does() {
    let rough = Faults {
        loss: 0.05,
        delay: Nanos::from_micros(20),
        reorder: true,
        ..Faults::default()
    };
    for faults in [Faults::default(), rough] {
        cenote_sim::explore(5, |sim| {
            let network = network(sim.seed());
            network.set_faults(faults);
            let (node, port) = (network.add_node("mem"), network.port(0));
            let bench: Arc<dyn Bench> = Arc::new(Simulated { node, port });
            contract::all(&bench);
        });
    }
}

impl calls::Bench for Simulated {
    fn caller(&self) -> Arc<dyn Caller> {
        self.port.caller(&self.node.name()).expect("reachable")
    }

    fn lose(&self) {
        self.node.lose();
    }
}

fn rough() -> Faults {
    Faults {
        loss: 0.05,
        delay: Nanos::from_micros(20),
        reorder: true,
        ..Faults::default()
    }
}

/// Of calls whose connection breaks under the first message some are done later, by the connection of then, while their
/// caller goes on by another.
#[test]
fn what_was_given_up_may_come_all_the_same_and_once() {
    let (mut late, mut never) = (0, 0);
    for seed in 0..100 {
        cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (node, port) = (network.add_node("mem"), network.port(0));
            let keeper = Arc::<Keeper>::default();
            let _server = served(&node, Arc::clone(&keeper) as _);
            let caller = port.caller("mem").expect("reachable");
            network.set_faults(Faults {
                breaks: 1.0,
                straggle: Nanos::from_millis(1),
                ..Faults::default()
            });
            let lost = caller.call(b"once", &mut Vec::new());
            assert!(matches!(lost, Err(Error::Lost(_))), "seed {seed}: {lost:?}");
            network.set_faults(Faults::default());
            let again = port.caller("mem").expect("reachable");
            again.call(b"other", &mut Vec::new()).expect("another connection");
            rt::sleep(Nanos::from_millis(2));
            let asked = *keeper.asked.lock().expect("no panic");
            assert!((1..=2).contains(&asked), "seed {seed}: {asked}");
            late += asked - 1;
            never += 2 - asked;
        });
    }
    assert!(late > 20 && never > 20, "{late} {never}");
}

/// A thread of this process serves until the node is lost.
fn served(node: &MemoryNode, program: Arc<dyn Serve>) -> rt::JoinHandle<()> {
    let theirs = node.clone();
    let server = rt::spawn("server", move || theirs.serve(&*program, Serving::default()));
    while !node.is_served() {
        rt::sleep(Nanos::from_micros(1));
    }
    server
}

#[test]
fn the_contract_of_calls_holds_whatever_the_network_does() {
    for faults in [Faults::default(), rough()] {
        cenote_sim::explore(20, |sim| {
            let network = network(sim.seed());
            network.set_faults(faults);
            let (node, port) = (network.add_node("mem"), network.port(0));
            let server = served(&node, Arc::<calls::Program>::default());
            let bench: Arc<dyn calls::Bench> = Arc::new(Simulated { node, port });
            calls::all(&bench);
            server.join().expect("no panic");
        });
    }
}

/// Counts what it is asked, keeps what says so, and notes whose end it was told.
#[derive(Default)]
struct Keeper {
    asked: Mutex<u64>,
    kept: Mutex<Vec<Answer>>,
    gone: Mutex<Vec<CallerId>>,
}

impl Serve for Keeper {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        *self.asked.lock().expect("no panic") += 1;
        match request {
            b"keep" => self.kept.lock().expect("no panic").push(answer),
            other => answer.with(other),
        }
    }

    fn ended(&self, caller: CallerId) {
        self.gone.lock().expect("no panic").push(caller);
    }
}

#[test]
fn a_call_that_times_out_was_carried_out_once_or_not_at_all() {
    let (mut done, mut not) = (0, 0);
    for seed in 0..200 {
        cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (node, port) = (network.add_node("mem"), network.port(0));
            let keeper = Arc::<Keeper>::default();
            let _server = served(&node, Arc::clone(&keeper) as _);
            network.set_faults(Faults {
                loss: 0.5,
                resends: 0,
                ..Faults::default()
            });
            let caller = port.caller("mem").expect("reachable");
            let result = caller.call(b"once", &mut Vec::new());
            let asked = *keeper.asked.lock().expect("no panic");
            match result {
                Ok(()) => assert_eq!(asked, 1, "seed {seed}"),
                Err(Error::Timeout(_)) => assert!(asked <= 1, "seed {seed}"),
                Err(other) => panic!("seed {seed}: {other}"),
            }
            done += asked;
            not += 1 - asked;
        });
    }
    assert!(done > 20 && not > 20, "{done} {not}");
}

/// A world of two hosts: a daemon that serves on the second.
fn with_daemon(
    seed: u64,
    body: impl FnOnce(&World, &Network, &MemoryNode, &Arc<Keeper>, &dyn Fn() -> cenote_sim::Process),
) {
    let world = World::new(seed, Pace::Explore, Topology::hosts(2, 2)).expect("possible");
    world.run(|w| {
        let network = network(seed);
        let (node, keeper) = (network.add_node("mem"), Arc::<Keeper>::default());
        let start = || {
            let (theirs, program) = (node.clone(), Arc::clone(&keeper));
            let daemon = w.process(1, "daemon", move || theirs.serve(&*program, Serving::default()));
            while !node.is_served() {
                rt::sleep(Nanos::from_micros(1));
            }
            daemon
        };
        body(w, &network, &node, &keeper, &start);
    });
}

#[test]
fn a_killed_daemon_is_lost_to_its_callers_and_another_does_not_know_them() {
    for seed in 0..50 {
        with_daemon(seed, |w, network, node, keeper, start| {
            let daemon = start();
            let caller = network.port(0).caller("mem").expect("reachable");
            caller.call(b"hello", &mut Vec::new()).expect("answered");
            let waiting = caller.post(vec![Call::new("keep").within(Nanos::from_secs(60))]);
            rt::sleep(Nanos(w.draw() % 8000));
            daemon.kill();
            assert!(matches!(network.port(0).caller("mem"), Err(Error::Lost(_))));
            let again = (w.draw() % 2 == 0).then(start);
            let kept = waiting.wait().remove(0);
            assert!(
                matches!(kept.result, Err(Error::Lost(_))),
                "seed {seed}: {:?}",
                kept.result
            );
            let error = caller.call(b"hello", &mut Vec::new()).expect_err("broken");
            assert!(matches!(error, Error::Lost(_)), "seed {seed}: {error}");
            if again.is_some() {
                let anew = network.port(0).caller("mem").expect("reachable");
                assert_ne!(anew.id(), caller.id());
                anew.call(b"hello", &mut Vec::new()).expect("answered");
            }
            assert!(
                keeper.gone.lock().expect("no panic").is_empty(),
                "its program is dead: no answer"
            );
            node.lose();
        });
    }
}

#[test]
fn the_end_of_a_killed_or_cut_off_caller_is_told_once_and_later_calls_are_not_served() {
    for seed in 0..50 {
        with_daemon(seed, |w, network, node, keeper, start| {
            let _daemon = start();
            let (net, id) = (network.clone(), Arc::new(Mutex::new(None)));
            let theirs = Arc::clone(&id);
            let process = w.process(0, "user", move || {
                let caller = net.port(0).caller("mem").expect("reachable");
                *theirs.lock().expect("no panic") = Some(caller.id());
                let _ = caller.call(b"hello", &mut Vec::new());
                let _ = caller
                    .post(vec![Call::new("keep").within(Nanos::from_secs(600))])
                    .wait();
                let error = caller.call(b"hello", &mut Vec::new()).expect_err("its end was told");
                assert!(matches!(error, Error::Lost(_)), "{error}");
            });
            rt::sleep(Nanos::from_millis(1));
            let kill = w.draw() % 2 == 0;
            if kill {
                process.kill();
            } else {
                network.cut(0, node);
                rt::sleep(Nanos::from_millis(200));
                network.mend(0, node);
                assert_eq!(process.join(), cenote_sim::Exit::Returned, "seed {seed}");
            }
            rt::sleep(Nanos::from_millis(200));
            let id = id.lock().expect("no panic").expect("it has called");
            assert_eq!(
                *keeper.gone.lock().expect("no panic"),
                [id],
                "seed {seed}, killed: {kill}"
            );
            assert_eq!(*keeper.asked.lock().expect("no panic"), 2, "seed {seed}");
            let kept = keeper.kept.lock().expect("no panic").pop();
            kept.into_iter().for_each(|answer| answer.with(b"to no one"));
            node.lose();
        });
    }
}

#[test]
fn runs_of_calls_with_faults_repeat() {
    let digest = |seed| {
        let outcome = cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (node, port) = (network.add_node("mem"), network.port(0));
            let server = served(&node, Arc::<calls::Program>::default());
            network.set_faults(Faults::random(seed));
            let caller = port.caller("mem").expect("reachable");
            let calls = (0..64).map(|i| Call::new(vec![b'e'; 1 + i * 100])).collect();
            let failed = caller.post(calls).wait().iter().filter(|c| c.result.is_err()).count();
            node.lose();
            server.join().expect("no panic");
            failed
        });
        (outcome.digest, outcome.time, outcome.value)
    };
    for seed in 0..20 {
        assert_eq!(digest(seed), digest(seed), "seed {seed}");
    }
}

#[test]
fn a_call_takes_the_ways_of_its_bytes_and_the_node_s_time() {
    projected(|_| {
        let network = network(1);
        let (node, port) = (network.add_node("mem"), network.port(0));
        let server = served(&node, Arc::<calls::Program>::default());
        let caller = port.caller("mem").expect("reachable");
        let took = |bytes: usize| {
            rt::sleep(Nanos::from_micros(50));
            let begin = rt::now();
            caller.call(&vec![b'e'; bytes], &mut Vec::new()).expect("answered");
            (rt::now() - begin).0
        };
        let (small, large) = (took(64), took(16384));
        assert!((4480..9000).contains(&small), "two messages, a switch or two: {small}");
        // Table 2: 16 KiB take 1640 ns more than 64 bytes to write; here there and back, over two cards each.
        assert!((small + 3000..small + 9000).contains(&large), "{small} {large}");
        node.lose();
        server.join().expect("no panic");
    });
}

/// Bytes in the answer, or from a source.
struct Bringer;

const BROUGHT: usize = 16 << 10;

impl Serve for Bringer {
    fn serve(&self, _: CallerId, request: &[u8], mut answer: Answer) {
        match request {
            b"answer" => {
                answer.bytes().resize(BROUGHT, 7);
                answer.send();
            }
            _ => answer.send_from(Box::new(Brought)),
        }
    }
}

struct Brought;

impl Source for Brought {
    fn size(&self) -> usize {
        BROUGHT
    }

    fn read(&mut self, _: usize, into: &mut [u8]) {
        into.fill(7);
    }
}

#[test]
fn a_processor_copies_what_its_card_does_not_fetch() {
    projected(|_| {
        let network = network(1);
        let (node, port) = (network.add_node("mem"), network.port(0));
        let (theirs, serving) = (
            node.clone(),
            Serving {
                copies: Some(1e9),
                ..Serving::default()
            },
        );
        let server = rt::spawn("server", move || theirs.serve(&Bringer, serving));
        while !node.is_served() {
            rt::sleep(Nanos::from_micros(1));
        }
        let caller = port.caller("mem").expect("reachable");
        let took = |request: &[u8], memory: Memory| {
            rt::sleep(Nanos::from_micros(50));
            let begin = rt::now();
            let call = caller.post(vec![Call::new(request).into_memory(memory)]).wait().pop();
            let call = call.expect("it comes back");
            call.result.expect("answered");
            let brought = if request == b"answer" {
                &call.answer[..]
            } else {
                &call.memory[..]
            };
            assert!(brought.len() == BROUGHT && brought.iter().all(|byte| *byte == 7));
            (rt::now() - begin).0
        };
        let answer = took(b"answer", Memory::default());
        let own = took(b"memory", vec![0; BROUGHT].into());
        let lent = took(b"memory", caller.lend(BROUGHT).expect("the card reaches it"));
        // A nanosecond a byte.
        assert!(answer.abs_diff(own) < 1000, "a copy each: {answer} and {own}");
        assert!(
            (BROUGHT as u64..2 * BROUGHT as u64).contains(&(own - lent + 2000)),
            "{own} {lent}"
        );
        node.lose();
        server.join().expect("no panic");
    });
}

#[test]
fn a_cut_is_waited_for_and_then_reported() {
    cenote_sim::explore(10, |sim| {
        let network = network(sim.seed());
        let (node, port, remote) = setting(&network, 4096);
        network.cut(0, &node);
        let (other, theirs) = (network.clone(), node.clone());
        let mender = rt::spawn("mender", move || {
            rt::sleep(Nanos::from_millis(3));
            other.mend(0, &theirs);
        });
        remote.write(0, &[1; 8]).expect("mended in time");
        mender.join().expect("no panic");
        network.cut(0, &node);
        let error = remote.write(0, &[2; 8]).expect_err("cut for good");
        assert!(matches!(error, Error::Lost(_)), "{error}");
        network.mend(0, &node);
        assert!(remote.load(0).is_err(), "this endpoint is broken");
        let again = RemoteMemory::new(port.connect("mem").expect("mended"), remote.memory());
        let mut seen = [0; 8];
        again.read(0, &mut seen).expect("read");
        assert_eq!(seen, [1; 8], "what could not get through was not done");
    });
}

#[test]
fn what_times_out_was_done_once_or_not_at_all() {
    let (mut done, mut not) = (0, 0);
    for seed in 0..200 {
        cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (node, _port, remote) = setting(&network, 64);
            network.set_faults(Faults {
                loss: 0.5,
                resends: 0,
                ..Faults::default()
            });
            let result = remote.fetch_add(0, 1);
            let added = node.inspect(remote.memory().key, |bytes| bytes[0]).expect("registered");
            match result {
                Ok(before) => assert_eq!((before, added), (0, 1)),
                Err(Error::Timeout(_)) => assert!(added <= 1),
                Err(other) => panic!("{other}"),
            }
            done += u32::from(added == 1);
            not += u32::from(added == 0);
        });
    }
    assert!(done > 20 && not > 20, "{done} {not}");
}

#[test]
fn a_write_of_a_dead_process_is_there_in_part_or_not_at_all() {
    let mut kinds = [0; 3];
    for seed in 0..100 {
        cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (node, port, remote) = setting(&network, 16384);
            drop(
                remote
                    .endpoint()
                    .post(vec![Work::write(remote.memory(), 0, vec![7; 16384].into())]),
            );
            port.close();
            rt::sleep(Nanos::from_millis(1));
            let written = node.inspect(remote.memory().key, |b| b.iter().take_while(|b| **b == 7).count());
            let kind = match written.expect("the memory outlives the process") {
                0 => 0,
                16384 => 2,
                _ => 1,
            };
            kinds[kind] += 1;
        });
    }
    assert!(kinds.iter().all(|n| *n > 10), "{kinds:?}");
}

#[test]
fn a_large_transfer_may_be_seen_half_done() {
    let mut torn = 0;
    for seed in 0..20 {
        cenote_sim::run(seed, |_| {
            let network = network(seed);
            let (_node, port, remote) = setting(&network, 16384);
            network.set_faults(Faults {
                reorder: true,
                ..Faults::default()
            });
            let theirs = RemoteMemory::new(port.connect("mem").expect("there"), remote.memory());
            let writer = rt::spawn("writer", move || {
                for round in 1..20 {
                    theirs.write(0, &[round; 16384]).expect("written");
                }
            });
            for _ in 0..20 {
                let page = remote.read_boxed(0, vec![0; 16384].into()).expect("read");
                assert!(page.chunks(4096).all(|packet| packet.iter().all(|b| *b == packet[0])));
                torn += u32::from(page.iter().any(|b| *b != page[0]));
            }
            writer.join().expect("no panic");
        });
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn runs_with_faults_repeat() {
    let digest = |seed| {
        let outcome = cenote_sim::run(seed, |_| {
            let network = network(seed);
            network.set_faults(Faults::random(seed));
            let (_node, _port, remote) = setting(&network, 1 << 20);
            let reads: Vec<u64> = (0..64).map(|i| i * 16384).collect();
            let _ = remote.read_many(&reads, 16384);
        });
        (outcome.digest, outcome.time)
    };
    for seed in 0..20 {
        assert_eq!(digest(seed), digest(seed), "seed {seed}");
    }
}

/// One host of many vCPUs, in the order of time.
fn projected<T>(body: impl FnOnce(&World) -> T) -> T {
    let world = World::new(1, Pace::Project, Topology::hosts(1, 192)).expect("possible");
    world.run(body).value
}

#[test]
fn table_2_comes_out_at_rest() {
    let table = [
        (64, 4550, 4480),
        (512, 4790, 4690),
        (1024, 4910, 4770),
        (4096, 5580, 5060),
        (16384, 7130, 6120),
    ];
    projected(|_| {
        let (_node, _port, remote) = setting(&network(1), 1 << 20);
        let took = |f: &dyn Fn()| {
            let begin = rt::now();
            f();
            (rt::now() - begin).0
        };
        for (bytes, read, write) in table {
            let buffer = || vec![0; bytes].into();
            for _ in 0..3 {
                rt::sleep(Nanos::from_micros(50));
                assert_eq!(
                    took(&|| _ = remote.read_boxed(0, buffer()).expect("read")),
                    read,
                    "reading {bytes}"
                );
                rt::sleep(Nanos::from_micros(50));
                assert_eq!(
                    took(&|| _ = remote.write_boxed(0, buffer()).expect("written")),
                    write,
                    "writing {bytes}"
                );
            }
        }
    });
}

/// GB/s of `instances` processes, of so many sessions each that read a page and think.
fn gigabytes(instances: usize, sessions: usize, think: Nanos) -> f64 {
    projected(|w| {
        let network = network(1);
        let node = network.add_node("mem");
        let memory = node.register(1 << 20);
        let instance = |_| {
            let network = network.clone();
            w.process(0, "instance", move || {
                let endpoint = network.port(0).connect("mem").expect("there");
                let session = |_| {
                    let remote = RemoteMemory::new(Arc::clone(&endpoint), memory);
                    rt::spawn("session", move || {
                        while rt::now() < Nanos::from_millis(1004) {
                            rt::spend(think);
                            remote.read_boxed(16384, vec![0; 16384].into()).expect("read");
                        }
                    })
                };
                let sessions: Vec<_> = (0..sessions).map(session).collect();
                sessions.into_iter().for_each(|s| s.join().expect("no panic"));
            })
        };
        let processes: Vec<_> = (0..instances).map(instance).collect();
        rt::sleep(Nanos::from_millis(1));
        let before = network.card(0).inbound.bytes;
        rt::sleep(Nanos::from_millis(2));
        let bytes = network.card(0).inbound.bytes - before;
        processes.iter().for_each(|p| _ = p.join());
        bytes as f64 / 2e6
    })
}

#[test]
fn instances_share_their_host_s_card_until_it_is_full() {
    let one = gigabytes(1, 1, Nanos(870));
    assert!((one - 16384.0 / 8000.0).abs() < 0.1, "a page each 8 us: {one}");
    let three = gigabytes(3, 1, Nanos(870));
    assert!((three / one - 3.0).abs() < 0.2, "{three} of three, {one} of one");
    for instances in [4, 12] {
        let full = gigabytes(instances, 16, Nanos(870));
        assert!((11.8..=12.1).contains(&full), "{instances} instances: {full}");
    }
}

#[test]
fn a_killed_process_leaves_its_works_to_chance() {
    let mut kinds = [0; 3];
    for seed in 0..100 {
        let world = World::new(seed, Pace::Project, Topology::hosts(1, 2)).expect("possible");
        let written = world.run(|w| {
            let network = network(seed);
            let node = network.add_node("mem");
            let memory = node.register(16384);
            let process = w.process(0, "dies", {
                let network = network.clone();
                move || {
                    let endpoint = network.port(0).connect("mem").expect("there");
                    let remote = RemoteMemory::new(endpoint, memory);
                    remote.write(0, &[7; 16384]).expect("never seen");
                }
            });
            rt::sleep(Nanos::from_micros(4));
            process.kill();
            rt::sleep(Nanos::from_millis(1));
            let written = |b: &mut [u8]| b.iter().take_while(|b| **b == 7).count();
            node.inspect(memory.key, written)
                .expect("the memory outlives the process")
        });
        kinds[match written.value {
            0 => 0,
            16384 => 2,
            _ => 1,
        }] += 1;
    }
    assert!(kinds.iter().all(|n| *n > 10), "{kinds:?}");
}

fn messages(seed: u64, faults: net::Faults) -> Messages {
    let network = Messages::new(&named("rdma").expect("known"), seed);
    network.set_faults(faults);
    network
}

const HERE: Address = Address { host: 0, port: 1 };
const THERE: Address = Address { host: 1, port: 1 };

/// What of 100 numbered messages arrives, in the order of arrival.
fn exchange(seed: u64, faults: net::Faults) -> Vec<u8> {
    let run = cenote_sim::run(seed, |_| {
        let network = messages(seed, faults);
        let (mine, theirs) = (network.bind(HERE), network.bind(THERE));
        let receiver = rt::spawn("receiver", move || {
            let next = || theirs.receive(Some(Nanos::from_secs(1)));
            std::iter::from_fn(next).map(|m| m.bytes[0]).collect::<Vec<u8>>()
        });
        (0..100).for_each(|i| mine.send(THERE, [i]));
        receiver.join().expect("no panic")
    });
    run.value
}

#[test]
fn messages_arrive_once_and_in_order_without_faults() {
    for seed in 0..10 {
        let delay = Nanos::from_micros(50);
        let late = net::Faults {
            delay,
            ..net::Faults::default()
        };
        for faults in [net::Faults::default(), late] {
            assert_eq!(exchange(seed, faults), (0..100).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn messages_are_lost_doubled_and_overtaken() {
    let arrived = exchange(
        3,
        net::Faults {
            loss: 0.2,
            ..net::Faults::default()
        },
    );
    assert!((60..95).contains(&arrived.len()) && arrived.is_sorted(), "{arrived:?}");
    let arrived = exchange(
        3,
        net::Faults {
            duplicate: 0.2,
            ..net::Faults::default()
        },
    );
    assert!((105..140).contains(&arrived.len()), "{arrived:?}");
    let mut arrived = exchange(
        3,
        net::Faults {
            delay: Nanos::from_millis(1),
            reorder: true,
            ..net::Faults::default()
        },
    );
    assert!(!arrived.is_sorted());
    arrived.sort_unstable();
    assert_eq!(arrived, (0..100).collect::<Vec<u8>>());
}

#[test]
fn a_partition_separates_its_sides_until_it_is_mended() {
    cenote_sim::explore(5, |sim| {
        let network = messages(sim.seed(), net::Faults::default());
        let boxes: Vec<_> = (0..3).map(|host| network.bind(Address { host, port: 1 })).collect();
        let short = Some(Nanos::from_millis(1));
        network.partition(&[0], &[1, 2]);
        boxes[0].send(boxes[1].address(), [1]);
        boxes[2].send(boxes[0].address(), [1]);
        assert_eq!((boxes[1].receive(short), boxes[0].receive(short)), (None, None));
        boxes[2].send(boxes[1].address(), [2]);
        assert_eq!(boxes[1].receive(short).expect("the same side").bytes, [2]);
        network.mend();
        boxes[1].send(boxes[0].address(), [4]);
        assert_eq!(boxes[0].receive(short).expect("mended").from, boxes[1].address());
        assert_eq!(network.sent(), (4, 2));
        let anew = network.bind(boxes[0].address());
        boxes[1].send(anew.address(), [5]);
        assert_eq!(
            (anew.receive(short).map(|m| m.bytes), boxes[0].receive(short)),
            (Some(vec![5]), None)
        );
    });
}
