//! Hosts that share threads.

use super::super::Crew;
use super::*;
use cenote_base::rt::Mutex;
use cenote_fabric::rdma::call::{Answer, CallerId};

/// A node that takes calls and answers none, but the greeting.
#[derive(Default)]
struct Silent(Mutex<Vec<Answer>>);

impl Serve for Silent {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        match request.first() == Some(&super::super::wire::HELLO) {
            true => answer.with(&1u64.to_le_bytes()),
            false => self.0.lock().push(answer),
        }
    }
}

/// A part of a tenant, and its host, at a crew.
fn host(crew: &Arc<Crew>, nodes: &Nodes, (tenant, number): (u32, u8)) -> Host {
    let options = PartOptions {
        space: tenant.into(),
        part: number,
        tenant,
        bytes: 5 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    let keeper = LocalKeeper::new(Arc::new(Part::dram(&options).expect("memory"))).expect("a keeper");
    let options = HostOptions {
        key: KEY,
        timeout: Nanos::from_secs(600),
        ..HostOptions::default()
    };
    let host = Host::start_with(Arc::new(keeper), options, Arc::clone(crew)).expect("a host");
    let hosts = Hosts::default();
    hosts.add(&host);
    nodes.add(&format!("{tenant}-{number}")).serve(Arc::new(hosts));
    host
}

fn introduce(host: &Host, nodes: &Arc<Nodes>, (tenant, number): (u32, u8), address: &str) {
    let hello = Hello {
        space: tenant.into(),
        part: number,
        key: KEY,
        pod: "any".into(),
    };
    let channel = Channel::new(Arc::clone(nodes) as Arc<dyn Callers>, address, hello);
    let peer = Peer {
        pod: "any".into(),
        channel: Arc::new(channel),
    };
    host.set_peer(number, peer);
}

/// An extent of a host's part.
fn extent(host: &Host) -> GlobalAddress {
    let keeper = Arc::clone(host.keeper()) as Arc<dyn Keeper>;
    let space = Space::new(host.part().space());
    space.attach(Arc::clone(host.part()), keeper).expect("attached");
    let session = space.session();
    let address = session.alloc(1000).expect("room");
    core::mem::forget(session);
    address.extent()
}

/// Four threads a part ended a memory node at some two hundred parts. And however few threads there are: what a
/// tenant's parts wait for, a node that says nothing, delays no move of another tenant.
#[test]
fn a_tenant_whose_moves_wait_delays_no_other() {
    let (crew, nodes) = (Arc::new(Crew::new(2).expect("threads")), Arc::new(Nodes::default()));
    nodes.add("silent").serve(Arc::<Silent>::default());
    let stuck: Vec<Host> = (1..=8).map(|n| host(&crew, &nodes, (7, n))).collect();
    for host in &stuck {
        introduce(host, &nodes, (7, 99), "silent");
        let extent = extent(host);
        let (outcomes, told) = super::super::told_here();
        host.inner.add_request(extent, Some(99), told);
        assert!(outcomes.outcome.lock().is_none(), "it waits");
    }
    let [one, other] = [(8, 1), (8, 2)].map(|place| host(&crew, &nodes, place));
    introduce(&one, &nodes, (8, 2), "8-2");
    introduce(&other, &nodes, (8, 1), "8-1");
    let moving = extent(&one);
    one.relocate(moving, 2).expect("moved, while the others wait");
    assert_eq!(other.moved().came, 1);
    let under_way = stuck.iter().filter(|host| host.inner.under_way.lock().is_some());
    assert_eq!(under_way.count(), 1, "a tenant has all threads but one");
    assert_eq!(crew.threads(), 8, "as many as it was made with");
}

/// A host that ends while others go on waits for its own tasks alone, and none of it is run later.
#[test]
fn hosts_come_and_go() {
    let (crew, nodes) = (Arc::new(Crew::new(2).expect("threads")), Arc::new(Nodes::default()));
    for round in 1..=20u32 {
        let [one, other] = [(round, 1), (round, 2)].map(|place| host(&crew, &nodes, place));
        introduce(&one, &nodes, (round, 2), &format!("{round}-2"));
        introduce(&other, &nodes, (round, 1), &format!("{round}-1"));
        let moving = extent(&one);
        one.relocate(moving, 2).expect("moved");
        drop(one);
        let why = other.relocate(moving, 1).expect_err("it is not its own");
        assert!(matches!(why, Error::Invalid(_) | Error::Lost(_)), "{why}");
    }
    assert_eq!(Arc::strong_count(&crew), 1);
}
