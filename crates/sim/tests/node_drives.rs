//! Storage nodes whose drives do not come back with a write or a sync for a while: elections and words go on. And one
//! whose directory is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_sim::message::Net;
use cenote_sim::{Pace, Process, Topology, World};
use cenote_storage_node::{NodeOptions, NodesClient, StorageNode, Usage};
use cenote_testkit::faulty::MemFs;

const NODES: usize = 3;
const SEEDS: u64 = 10;
/// A word that is late by more than this costs a server its lease, if the next ones are, too.
const WORD: Nanos = Nanos::from_millis(300);
const PATIENCE: Nanos = Nanos::from_secs(30);

fn name_of(host: usize) -> String {
    format!("host{host}")
}

fn address(host: usize) -> String {
    format!("{}:5450", name_of(host))
}

/// Nodes, and a client whose commands want their drives all the time.
struct Cluster<'w> {
    world: &'w World,
    net: Net,
    processes: Vec<Process>,
    client: NodesClient,
    /// Commands that were carried out.
    done: Arc<AtomicU64>,
}

fn client(net: &Net) -> NodesClient {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    NodesClient::new(net.endpoint(&name_of(NODES), NODES), "world", "", &addresses)
}

fn start_node(world: &World, net: &Net, host: usize) -> Process {
    let network = net.endpoint(&name_of(host), host);
    let nodes: BTreeMap<u64, String> = (0..NODES).map(|host| (host as u64 + 1, address(host))).collect();
    world.process(host, "node", move || {
        let options = NodeOptions::new("/node".into(), "world", host as u64 + 1, nodes);
        let node = StorageNode::start(options, network).expect("it starts");
        while node.failure().is_none() {
            rt::sleep(Nanos::from_millis(50));
        }
        panic!("the node ends: {:?}", node.failure());
    })
}

fn start_client(world: &World, net: &Net, done: &Arc<AtomicU64>) -> Process {
    let (client, done) = (client(net), Arc::clone(done));
    world.process(NODES, "client", move || {
        loop {
            let number = rt::random_u128();
            client.report_usage(number, Usage::default()).expect("carried out");
            done.fetch_add(1, SeqCst);
            rt::sleep(Nanos::from_millis(1));
        }
    })
}

impl Cluster<'_> {
    /// With these ways cut.
    fn new<'w>(world: &'w World, cut: &[(usize, usize)]) -> Cluster<'w> {
        let net = Net::new(
            &profile::named("rdma").expect("a profile of this program"),
            world.draw(),
        );
        cut.iter()
            .for_each(|(from, to)| net.cut(&name_of(*from), &name_of(*to)));
        let done = Arc::default();
        let mut processes: Vec<_> = (0..NODES).map(|host| start_node(world, &net, host)).collect();
        processes.push(start_client(world, &net, &done));
        let cluster = Cluster {
            world,
            processes,
            client: client(&net),
            net,
            done,
        };
        cluster.goes_on(PATIENCE);
        cluster
    }

    /// Commands are carried out; how long the first took.
    fn goes_on(&self, within: Nanos) -> Nanos {
        let (begun, from) = (rt::now(), self.done.load(SeqCst));
        while self.done.load(SeqCst) < from + 3 {
            assert!(rt::now().since(begun) < within, "no command within {within}");
            assert!(self.processes.iter().all(Process::is_running), "all run");
            rt::sleep(Nanos::from_millis(1));
        }
        rt::now().since(begun)
    }

    /// The node that leads, by its number, and its term, as a majority confirms as soon as a word has to be answered.
    fn leads(&self) -> (u64, u64) {
        let begun = rt::now();
        let term = self.client.members().expect("a majority answers").term;
        let took = rt::now().since(begun);
        assert!(took < WORD, "a word took {took}");
        let statuses = self.client.statuses().into_values().flatten();
        let mut led = statuses.filter(|status| status.leader == status.node);
        (led.next().expect("one leads").node, term)
    }

    /// Drives do not come back with writes and syncs for so long from here on.
    fn stall(&self, hosts: impl IntoIterator<Item = usize>, time: Nanos) {
        let until = rt::now() + time;
        hosts
            .into_iter()
            .for_each(|host| self.world.files(host).stall_until(until));
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        self.processes.iter().for_each(Process::kill);
    }
}

fn explore(cut: &[(usize, usize)], test: impl Fn(&mut Cluster<'_>)) {
    for seed in cenote_sim::seeds(SEEDS) {
        eprintln!("seed {seed}");
        let world = World::new(seed, Pace::Explore, Topology::hosts(NODES + 1, 2)).expect("a possible topology");
        world.run(|world| test(&mut Cluster::new(world, cut)));
    }
}

/// Commands wait, words do not: the node that leads does so still, and servers keep their leases.
#[test]
fn while_all_drives_stand_still_words_are_answered() {
    explore(&[], |cluster| {
        let before = cluster.leads();
        cluster.stall(0..NODES, Nanos::from_secs(4));
        let begun = rt::now();
        rt::sleep(Nanos::from_millis(100));
        let done = cluster.done.load(SeqCst);
        while rt::now().since(begun) < Nanos::from_millis(3_800) {
            assert_eq!(cluster.leads(), before);
            rt::sleep(Nanos::from_millis(20));
        }
        assert_eq!(cluster.done.load(SeqCst), done, "commands wait for a drive");
        cluster.goes_on(PATIENCE);
        assert_eq!(cluster.leads(), before);
    });
}

/// Its own drive alone holds commands up: another node leads.
#[test]
fn a_leader_whose_drive_stands_still_lets_another_lead() {
    explore(&[], |cluster| {
        let (leader, _) = cluster.leads();
        cluster.stall([leader as usize - 1], Nanos::MAX);
        cluster.goes_on(Nanos::from_secs(3));
        let (next, _) = cluster.leads();
        assert_ne!(next, leader);
        cluster.goes_on(Nanos::from_millis(200));
        cluster.stall([leader as usize - 1], Nanos::ZERO);
        cluster.goes_on(Nanos::from_millis(200));
    });
}

/// A drive of another node does nothing.
#[test]
fn a_follower_whose_drive_stands_still_holds_nothing_up() {
    explore(&[], |cluster| {
        let (leader, term) = cluster.leads();
        cluster.stall([leader as usize % NODES], Nanos::MAX);
        for _ in 0..100 {
            cluster.goes_on(Nanos::from_millis(200));
        }
        assert_eq!(cluster.leads(), (leader, term));
    });
}

/// A node that never heard of another one, since the ways between them were cut, does not take an empty directory for
/// that one's: the two would be a majority that has forgotten what was acknowledged.
#[test]
fn a_node_knows_the_directories_of_nodes_that_it_never_met() {
    let cut = [(1, 0), (0, 1)];
    let tries = AtomicU64::new(0);
    explore(&cut, |cluster| {
        if cluster.leads().0 != 3 {
            // One of the two that are cut off lacks all.
            return;
        }
        tries.fetch_add(1, SeqCst);
        // All nodes have all there is, and know it.
        rt::sleep(Nanos::from_secs(2));
        cluster.processes[1].kill();
        cluster.processes[2].kill();
        cluster.world.set_files(1, &MemFs::new());
        cut.iter()
            .for_each(|(from, to)| cluster.net.mend(&name_of(*from), &name_of(*to)));
        cluster.processes[1] = start_node(cluster.world, &cluster.net, 1);
        let done = cluster.done.load(SeqCst);
        rt::sleep(Nanos::from_secs(8));
        assert!(cluster.done.load(SeqCst) <= done + 1, "no majority is there");
        cluster.processes[2] = start_node(cluster.world, &cluster.net, 2);
        cluster.goes_on(PATIENCE);
    });
    assert!(
        tries.into_inner() > 0,
        "the node between the two led in none of the seeds"
    );
}
