//! Simulated verbs and messages: the contract under faults, published times, saturation, and who dies half-way.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::named;
use cenote_fabric::rdma::contract::{self, Bench};
use cenote_fabric::rdma::{Endpoint, Fabric, Remote, RemoteMemory, Work};
use cenote_sim::net::{self, Address, Messages};
use cenote_sim::rdma::{Faults, MemoryNode, Network, Port};
use cenote_sim::{Pace, Topology, World};
use std::sync::Arc;

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
        network.cut_one_way(0, 1);
        boxes[0].send(boxes[1].address(), [3]);
        boxes[1].send(boxes[0].address(), [4]);
        assert_eq!(
            boxes[0].receive(short).expect("this way is open").from,
            boxes[1].address()
        );
        assert_eq!(boxes[1].receive(short), None);
        assert_eq!(network.sent(), (5, 3));
        let anew = network.bind(boxes[0].address());
        boxes[1].send(anew.address(), [5]);
        assert_eq!(
            (anew.receive(short).map(|m| m.bytes), boxes[0].receive(short)),
            (Some(vec![5]), None)
        );
    });
}
