//! Snapshots: the database as of earlier positions, while pages change, spaces go and nodes are started anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, PageId};
use cenote_fabric::message::tcp::Tcp;
use cenote_storage::nodes::StorageNodes;
use cenote_storage::redo;
use cenote_storage_node::{NodeOptions, NodesClient};

use crate::cluster::{Cluster, Database};

/// Pages are merged soon.
fn tight(options: &mut NodeOptions) {
    (options.memory, options.log_limit, options.log_kept) = (64 << 10, 1, 64 << 10);
}

/// What a snapshot is to have.
struct Expected {
    number: u64,
    name: String,
    spaces: BTreeSet<u32>,
    pages: BTreeMap<PageId, Vec<u8>>,
}

fn expected(name: &str, number: u64, spaces: &BTreeSet<u32>, database: &Database) -> Expected {
    let pages = database.model.iter().map(|(id, (page, _))| (*id, page.clone()));
    Expected {
        number,
        name: name.to_owned(),
        spaces: spaces.clone(),
        pages: pages.collect(),
    }
}

/// Every page that there could be, some that never were among them, as these nodes have it.
fn check(nodes: &NodesClient, expected: &Expected) {
    let spaces = nodes.snapshot_spaces(expected.number).expect("kept");
    let found: BTreeSet<u32> = spaces.iter().map(|extent| extent.space).collect();
    assert_eq!(found, expected.spaces, "snapshot {}", expected.name);
    let wanted: Vec<PageId> = found
        .iter()
        .flat_map(|space| (0..42).map(|page| PageId::new(*space, page)))
        .collect();
    for (id, answer) in wanted.iter().zip(nodes.read_snapshot(expected.number, &wanted)) {
        let (bytes, read) = answer.unwrap_or_else(|error| panic!("snapshot {}, page {id}: {error}", expected.name));
        let Some(page) = expected.pages.get(id) else {
            assert_eq!(read, PageRead::NeverWritten, "snapshot {}, page {id}", expected.name);
            continue;
        };
        assert_eq!(read, PageRead::Present, "snapshot {}, page {id}", expected.name);
        assert!(
            bytes[..] == page[..],
            "snapshot {}, page {id}: as of {}, and not of {}",
            expected.name,
            redo::page_lsn(&bytes),
            redo::page_lsn(page)
        );
    }
}

fn alone(cluster: &Cluster, number: u64) -> NodesClient {
    let address = cluster.addresses()[number as usize - 1].clone();
    NodesClient::new(Arc::new(Tcp), "test", "", &[address])
}

/// Waits until every node has come to the end of the log.
fn wait_all(cluster: &Cluster, database: &Database) {
    let until = rt::now() + Nanos::from_secs(60);
    let has_all = |status: cenote_storage_node::Status| status.ingested == database.end.end.raw();
    while !cluster.nodes.values().all(|node| has_all(node.status())) {
        assert!(rt::now() < until, "nodes do not come to the end");
        rt::sleep(Nanos::from_millis(10));
    }
}

/// Nodes come to the drop of a snapshot one after the other.
fn wait_gone(client: &NodesClient, number: u64) {
    let until = rt::now() + Nanos::from_secs(30);
    let read = || client.read_snapshot(number, &[PageId::new(7, 0)]).remove(0);
    while !matches!(read(), Err(Error::Past(_))) {
        assert!(rt::now() < until, "snapshot {number} is answered");
        rt::sleep(Nanos::from_millis(10));
    }
}

/// Changes, snapshots, spaces and starts by chance.
fn random_life(seed: u64) {
    let mut cluster = Cluster::new(3, tight);
    let client = cluster.client();
    let mut database = Database::begin(client.clone(), seed);
    let mut draw = Random(seed ^ 0x5EED);
    let (mut spaces, mut kept, mut made) = (BTreeSet::new(), Vec::<Expected>::new(), 0);
    for _ in 0..120 {
        let space = 7 + draw.below(3) as u32;
        match draw.below(12) {
            0 if kept.len() < 6 => {
                made += 1;
                let name = format!("snapshot {made}");
                let snapshot = client.make_snapshot(&name, made).expect("made");
                assert_eq!((snapshot.number, snapshot.end), (made, database.end.end));
                kept.push(expected(&name, snapshot.number, &spaces, &database));
            }
            1 if !kept.is_empty() => {
                let gone = kept.remove(draw.index(kept.len()));
                client.drop_snapshot(&gone.name, false).expect("dropped");
                wait_gone(&client, gone.number);
            }
            2 if spaces.remove(&space) => {
                database.nodes.drop_space(space).expect("dropped");
                database.model.retain(|page, _| page.space != space);
            }
            3 => {
                let node = 1 + draw.below(3);
                cluster.stop(node);
                cluster.start(node);
            }
            4 => kept.iter().for_each(|expected| check(&client, expected)),
            _ if spaces.insert(space) => database.nodes.make_space(space).expect("made"),
            _ => {
                let count = draw.pick(&[3, 30, 80]);
                database.append(space, count);
            }
        }
    }
    database.check();
    wait_all(&cluster, &database);
    for number in 1..=3 {
        let node = alone(&cluster, number);
        kept.iter().for_each(|expected| check(&node, expected));
        cluster.stop(number);
        cluster.start(number);
    }
    wait_all(&cluster, &database);
    (1..=3).for_each(|number| {
        kept.iter()
            .for_each(|expected| check(&alone(&cluster, number), expected))
    });
    // What they alone needed is freed.
    for gone in kept {
        client.drop_snapshot(&gone.name, false).expect("dropped");
    }
    let until = rt::now() + Nanos::from_secs(60);
    let bytes = |cluster: &Cluster| cluster.nodes.values().map(|node| node.status().snapshot_bytes).max();
    while bytes(&cluster) > Some(1 << 20) {
        assert!(rt::now() < until, "{:?} bytes are kept of no snapshot", bytes(&cluster));
        database.append(*spaces.first().expect("a space"), 20);
    }
    database.check();
}

#[test]
fn snapshots_stay_as_they_were_whatever_changes() {
    for seed in 1..=3 {
        eprintln!("seed {seed}");
        random_life(seed);
    }
}

#[test]
fn a_node_that_was_given_a_state_leaves_snapshots_from_before_to_the_others() {
    let mut cluster = Cluster::new(3, tight);
    let client = cluster.client();
    let mut database = Database::begin(client.clone(), 21);
    database.nodes.make_space(7).expect("made");
    database.append(7, 100);
    let first = client.make_snapshot("before", 1).expect("made");
    let before = expected("before", first.number, &BTreeSet::from([7]), &database);
    let last = cluster.nodes[&3].status().last;
    cluster.stop(3);
    let until = rt::now() + Nanos::from_secs(120);
    while cluster.nodes.values().any(|node| node.status().first <= last + 1) {
        assert!(rt::now() < until, "the logs are not cut");
        database.append(7, 40);
    }
    cluster.start(3);
    let until = rt::now() + Nanos::from_secs(60);
    loop {
        database.append(7, 3);
        let status = cluster.nodes[&3].status();
        if status.lacking_pages == 0 && status.ingested == database.end.end.raw() {
            break;
        }
        assert!(rt::now() < until, "node 3 lacks pages: {status:?}");
    }
    let second = client.make_snapshot("after", 2).expect("made");
    let after = expected("after", second.number, &BTreeSet::from([7]), &database);
    (0..10).for_each(|_| database.append(7, 40));
    wait_all(&cluster, &database);
    let here = |number| cluster.nodes[&number].status().snapshots;
    assert_eq!((here(1), here(3)), (vec![1, 2], vec![2]));
    check(&client, &before);
    check(&client, &after);
    check(&alone(&cluster, 3), &after);
    let refused = alone(&cluster, 3).read_snapshot(1, &[PageId::new(7, 1)]).remove(0);
    assert!(matches!(refused, Err(Error::Past(_))), "{refused:?}");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let cluster = Cluster::new(1, |_| {});
    let client = cluster.client();
    let why = |refused: cenote_base::Result<()>| refused.expect_err("refused").to_string();
    let none = why(client.make_snapshot("a", 1).map(drop));
    assert!(none.contains("no database"), "{none}");
    let database = Database::begin(client.clone(), 22);
    let first = client.make_snapshot("a", 1).expect("made");
    assert_eq!((first.end, &*first.control), (database.end.end, &b"control"[..]));
    let twice = why(client.make_snapshot("a", 1).map(drop));
    assert!(twice.contains("a snapshot \"a\" already"), "{twice}");
    assert!(client.make_snapshot("", 1).is_err() && client.make_snapshot(&"x".repeat(65), 1).is_err());
    client.add_branch(first.number, 5, "tests").expect("added");
    let held = why(client.drop_snapshot("a", false));
    assert!(held.contains("has branches") && held.contains("tests"), "{held}");
    client.drop_branch(5).expect("dropped");
    client.drop_snapshot("a", false).expect("dropped");
    let gone = why(client.drop_snapshot("a", false));
    assert!(gone.contains("no snapshot \"a\""), "{gone}");
    assert!(client.add_branch(first.number, 6, "late").is_err());
    wait_gone(&client, first.number);
    assert!(matches!(client.snapshot_spaces(first.number), Err(Error::Past(_))));
    assert!(client.snapshots().expect("none").is_empty());
}
