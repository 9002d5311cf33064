//! Nodes that were away for longer than the others keep the log: they are given a state, and take pages from the others.

use std::sync::Arc;

use crate::cluster::{Cluster, Database};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_storage_node::{NodeOptions, NodesClient};

/// Pages are merged soon, and little of the log is kept for others.
fn tight(options: &mut NodeOptions) {
    (options.memory, options.log_limit, options.log_kept) = (64 << 10, 1, 256 << 10);
}

/// Changes pages of these spaces until the nodes that are up have cut their logs beyond what node `away` has.
fn cut_beyond(cluster: &Cluster, database: &mut Database, spaces: &[u32], last: u64) {
    let until = rt::now() + Nanos::from_secs(120);
    while cluster.nodes.values().any(|node| node.status().first <= last + 1) {
        assert!(rt::now() < until, "the logs are not cut");
        spaces.iter().for_each(|space| database.append(*space, 40));
    }
}

fn wait_whole(cluster: &Cluster, number: u64, database: &mut Database, space: u32) {
    let until = rt::now() + Nanos::from_secs(60);
    loop {
        database.append(space, 3);
        let status = cluster.nodes[&number].status();
        if status.lacking_pages == 0 && status.ingested == database.end.end.raw() {
            return;
        }
        assert!(rt::now() < until, "node {number} lacks pages: {status:?}");
        assert!(cluster.nodes[&number].failure().is_none());
    }
}

/// What one node has of the database.
fn check_at(cluster: &Cluster, number: u64, database: &Database) {
    let address = cluster.addresses()[number as usize - 1].clone();
    let alone = NodesClient::new(Arc::new(Tcp), "test", "", &[address]);
    let (model, random) = (database.model.clone(), database.random.clone());
    Database {
        nodes: Arc::new(alone),
        end: database.end,
        model,
        random,
    }
    .check();
}

#[test]
fn a_node_that_was_away_for_too_long_comes_back() {
    let mut cluster = Cluster::new(3, tight);
    let mut database = Database::begin(cluster.client(), 11);
    for space in [7, 8, 9] {
        database.nodes.make_space(space).expect("made");
        database.append(space, 100);
    }
    database.check();
    let last = cluster.nodes[&3].status().last;
    cluster.stop(3);
    // Spaces go, and come with other pages, while it is away.
    for space in [8, 9] {
        database.nodes.drop_space(space).expect("dropped");
        database.model.retain(|page, _| page.space != space);
    }
    database.nodes.make_space(9).expect("made again");
    database.nodes.make_space(10).expect("made");
    cut_beyond(&cluster, &mut database, &[7, 9, 10], last);
    cluster.start(3);
    database.check();
    wait_whole(&cluster, 3, &mut database, 7);
    check_at(&cluster, 3, &database);
    // It counts: the others may go.
    let leader = cluster.leader();
    let other = (1..=2).find(|number| *number != leader).unwrap_or(1);
    cluster.stop(other);
    database.append(9, 10);
    check_at(&cluster, 3, &database);
    cluster.stop(3);
    cluster.start(3);
    database.append(10, 10);
    database.check();
    check_at(&cluster, 3, &database);
    let database = database.taken_over(cluster.client());
    database.check();
}

#[test]
fn a_node_may_be_stopped_while_it_takes_its_pages() {
    let mut cluster = Cluster::new(3, tight);
    let mut database = Database::begin(cluster.client(), 12);
    let spaces: Vec<u32> = (20..50).collect();
    for space in &spaces {
        database.nodes.make_space(*space).expect("made");
        database.append(*space, 60);
    }
    let last = cluster.nodes[&2].status().last;
    cluster.stop(2);
    cut_beyond(&cluster, &mut database, &spaces, last);
    let mut between = 0;
    for round in 0..12 {
        cluster.start(2);
        rt::sleep(Nanos::from_millis(100 * (round % 4 + 1)));
        database.append(spaces[round as usize], 20);
        if round == 5 {
            database.nodes.drop_space(25).expect("dropped");
            database.model.retain(|page, _| page.space != 25);
            database.nodes.make_space(25).expect("made again");
            database.append(25, 20);
        }
        between += u32::from(cluster.nodes[&2].status().lacking_pages > 0);
        cluster.stop(2);
    }
    cluster.start(2);
    wait_whole(&cluster, 2, &mut database, 20);
    check_at(&cluster, 2, &database);
    eprintln!("it was stopped {between} times before it had all pages");
}
