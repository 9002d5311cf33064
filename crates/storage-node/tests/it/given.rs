//! Nodes that were away for longer than the others keep the log: they are given a state, and take pages from the
//! others.

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

/// A node lost its directory. It votes for none and acknowledges nothing until it was let in; what it had before counts
/// for nothing, and the directory that was lost is never let in again.
#[test]
fn a_node_that_lost_its_directory_takes_its_place_again() {
    let mut cluster = Cluster::new(3, tight);
    let mut database = Database::begin(cluster.client(), 13);
    for space in [7, 8] {
        database.nodes.make_space(space).expect("made");
        database.append(space, 100);
    }
    for lost in [3, cluster.leader(), 3] {
        cluster.stop(lost);
        let (dir, aside) = (cluster.dir(lost), cluster.dir(lost + 10));
        let _ = std::fs::remove_dir_all(&aside);
        std::fs::rename(&dir, &aside).expect("lost");
        let client = cluster.client();
        let error = client.replace(lost).expect_err("it is not there").to_string();
        assert!(error.contains("start it with its new directory"), "{error}");
        cluster.start(lost);
        database.append(7, 20);
        rt::sleep(Nanos::from_secs(1));
        assert_eq!(cluster.nodes[&lost].status().committed, 0, "it is not let in");
        client.replace(lost).expect("let in");
        client.replace(lost).expect("asked again");
        wait_whole(&cluster, lost, &mut database, 8);
        check_at(&cluster, lost, &database);
        // It counts, with one of the others.
        let other = (1..=3).find(|number| *number != lost).unwrap_or(1);
        cluster.stop(other);
        database.append(8, 20);
        database.check();
        cluster.start(other);
        database.append(7, 20);
    }
    // The directory of before comes back.
    let committed = |cluster: &Cluster, number: u64| cluster.nodes[&number].status().committed;
    cluster.stop(3);
    std::fs::remove_dir_all(cluster.dir(3)).expect("removed");
    std::fs::rename(cluster.dir(13), cluster.dir(3)).expect("back");
    cluster.start(3);
    let before = committed(&cluster, 3);
    (0..20).for_each(|_| database.append(7, 10));
    rt::sleep(Nanos::from_secs(1));
    assert!(committed(&cluster, 1) > before + 15);
    let leader = cluster.leader();
    cluster.stop(leader);
    rt::sleep(Nanos::from_secs(4));
    let leads = cluster.nodes.values().any(|node| node.status().leader != 0);
    assert!(
        !leads,
        "one node, and one that is none of the cluster's, are no majority"
    );
    cluster.start(leader);
    database.append(7, 10);
    database.check();
}
