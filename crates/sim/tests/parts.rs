//! Accesses to several far parts at once, in virtual time: they take the time of one part's, whatever the machine that
//! the simulator runs on is busy with.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_fabric::profile::named;
use cenote_fabric::rdma::call::{Callers, Serve};
use cenote_sim::rdma::{MemoryNode, Network, Serving};
use cenote_sim::{Pace, Topology, World};
use cenote_space::{
    Channel, EXTENT, FarPart, FarReads, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Part,
    PartOptions, Read, Space, Write,
};
use std::sync::Arc;

const SPACE: u128 = 5;
const PARTS: u8 = 4;
const AT_ONCE: usize = 16;

/// A part on a node of its own, served by a thread.
struct Served {
    node: MemoryNode,
    keeper: Arc<LocalKeeper>,
    objects: Vec<GlobalAddress>,
    server: rt::JoinHandle<()>,
    _host: Host,
}

fn name(number: u8) -> String {
    format!("part{number}")
}

impl Served {
    fn new(network: &Network, number: u8) -> Self {
        let part = Part::dram(&PartOptions {
            space: SPACE,
            part: number,
            tenant: 0,
            bytes: 4 * EXTENT,
            movable: true,
            region: RegionOptions::default(),
        });
        let part = Arc::new(part.expect("memory"));
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part)).expect("a keeper"));
        let near = Space::new(SPACE);
        near.attach(part, Arc::clone(&keeper) as Arc<dyn Keeper>)
            .expect("attached");
        let session = near.session();
        let objects = (0..AT_ONCE).map(|_| session.alloc(64).expect("room")).collect();
        let options = HostOptions {
            every: Nanos::ZERO,
            ..HostOptions::default()
        };
        let (host, hosts) = (
            Host::start(Arc::clone(&keeper), options).expect("a host"),
            Hosts::default(),
        );
        hosts.add(&host);
        let node = network.add_node(&name(number));
        let (theirs, program): (_, Arc<dyn Serve>) = (node.clone(), Arc::new(hosts));
        let server = rt::spawn("server", move || theirs.serve(&*program, Serving::default()));
        while !node.is_served() {
            rt::sleep(Nanos::from_micros(1));
        }
        Self {
            node,
            keeper,
            objects,
            server,
            _host: host,
        }
    }

    fn attach(&self, space: &Space, network: &Network, number: u8) {
        let hello = Hello {
            space: SPACE,
            part: number,
            key: HostOptions::default().key,
            pod: "near".into(),
        };
        let callers = network.port(0) as Arc<dyn Callers>;
        let channel = Channel::new(callers, name(number), hello).reading(FarReads::Plain);
        let far = FarPart {
            number,
            pod: name(number),
            channel: Arc::new(channel),
        };
        let keeper = Arc::clone(&self.keeper) as Arc<dyn Keeper>;
        space.attach_far(far, keeper).expect("attached");
    }
}

/// Nanoseconds that 16 reads and 16 writes take, of so many parts.
fn times(space: &Space, parts: &[Served]) -> (u64, u64) {
    let objects: Vec<_> = (0..AT_ONCE)
        .map(|n| parts[n % parts.len()].objects[n / parts.len()])
        .collect();
    let mut bytes = [[0; 64]; AT_ONCE];
    let texts: [[u8; 64]; AT_ONCE] = core::array::from_fn(|n| [n as u8 + 1; 64]);
    let writes: Vec<_> = objects
        .iter()
        .zip(&texts)
        .map(|(address, from)| Write {
            address: *address,
            from,
        })
        .collect();
    let began = rt::now();
    space.write_many(&writes).expect("written");
    let written = rt::now();
    let mut reads: Vec<_> = objects
        .iter()
        .zip(&mut bytes)
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    space.read_many(&mut reads).expect("read");
    let read = rt::now();
    assert_eq!(bytes, texts);
    ((read - written).0, (written - began).0)
}

/// They were asked one after the other: four parts took four times as long as one.
#[test]
fn four_parts_take_at_most_half_as_long_again_as_one() {
    let world = World::new(1, Pace::Project, Topology::hosts(1, 192)).expect("possible");
    world.run(|_| {
        let network = Network::new(&named("rdma").expect("known"), 1);
        let parts: Vec<_> = (1..=PARTS).map(|number| Served::new(&network, number)).collect();
        let space = Space::new(SPACE);
        parts
            .iter()
            .zip(1..)
            .for_each(|(part, number)| part.attach(&space, &network, number));
        // The ways are open after this.
        times(&space, &parts);
        let ((read, written), (reads, writes)) = (times(&space, &parts[..1]), times(&space, &parts));
        println!("16 of one part: read in {read} ns, written in {written}; of {PARTS}: {reads}, {writes}");
        assert!(2 * reads <= 3 * read, "reads: {reads} ns, of one part {read}");
        assert!(2 * writes <= 3 * written, "writes: {writes} ns, of one part {written}");
        drop(space);
        for part in parts {
            part.node.lose();
            part.server.join().expect("no panic");
        }
    });
}
