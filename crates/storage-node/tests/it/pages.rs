//! Pages that nodes make of redo, through stops, other leaders and other starts of the database.

use crate::cluster::{Cluster, Database};
use cenote_base::rt::{self, Nanos};

#[test]
fn pages_are_read_as_redo_makes_them() {
    let cluster = Cluster::new(3, |_| {});
    let mut database = Database::begin(cluster.client(), 1);
    database.nodes.make_space(7).expect("made");
    for _ in 0..20 {
        database.append(7, 30);
        database.check();
    }
}

#[test]
fn what_was_acknowledged_survives_every_minority() {
    let mut cluster = Cluster::new(3, |options| {
        (options.memory, options.log_limit, options.log_kept) = (64 << 10, 1 << 20, 1 << 20)
    });
    let mut database = Database::begin(cluster.client(), 2);
    database.nodes.make_space(7).expect("made");
    for round in 0..9 {
        let down = match round % 3 {
            0 => cluster.leader(),
            n => n,
        };
        cluster.stop(down);
        (0..10).for_each(|_| database.append(7, 40));
        database.check();
        if round % 2 == 0 {
            database = database.taken_over(cluster.client());
        }
        cluster.start(down);
        database.append(7, 5);
        database.check();
    }
    let saved = |cluster: &Cluster| cluster.nodes.values().map(|node| node.status().saved).min();
    let until = rt::now() + Nanos::from_secs(20);
    while saved(&cluster) == Some(0) {
        assert!(rt::now() < until, "no node has merged pages");
        database.append(7, 40);
    }
    // All of them at once, as a power cut has it.
    (1..=3).for_each(|number| cluster.stop(number));
    (1..=3).for_each(|number| cluster.start(number));
    database.check();
    let database = database.taken_over(cluster.client());
    database.check();
}

#[test]
fn an_earlier_start_changes_nothing_any_more() {
    let cluster = Cluster::new(1, |_| {});
    let mut former = Database::begin(cluster.client(), 3);
    former.nodes.make_space(7).expect("made");
    former.append(7, 10);
    let (bytes, end) = former.groups(7, 3);
    let nodes = former.nodes.clone();
    let at = former.end.end;
    let (taken, found) = crate::cluster::take(cluster.client());
    assert_eq!(found.log.end, at);
    assert_eq!(found.spaces.len(), 1);
    for refused in [
        nodes.append(at, &bytes, end),
        nodes.set_control(b"late"),
        nodes.make_space(8),
        nodes.drop_space(7),
        nodes.check(),
    ] {
        let error = refused.expect_err("refused");
        assert!(matches!(error, cenote_base::Error::Revoked(_)), "{error}");
    }
    assert_eq!(taken.owner().expect("known").control, Some(b"control".to_vec()));
    taken.check().expect("it has it");
}

#[test]
fn a_space_that_is_dropped_is_gone_and_its_number_new() {
    let mut cluster = Cluster::new(1, |options| options.memory = 16 << 10);
    let mut database = Database::begin(cluster.client(), 4);
    for round in 0..4 {
        database.nodes.make_space(9).expect("made");
        (0..6).for_each(|_| database.append(9, 30));
        database.check();
        if round == 2 {
            cluster.stop(1);
            cluster.start(1);
            database.check();
        }
        database.nodes.drop_space(9).expect("dropped");
        let read = database
            .nodes
            .read_pages(&[(cenote_base::PageId::new(9, 0), database.end.end)]);
        assert!(matches!(read[0], Err(cenote_base::Error::Invalid(_))), "round {round}");
        database.model.clear();
    }
}

#[test]
fn strangers_are_refused_by_name() {
    let cluster = Cluster::new(1, |_| {});
    cluster.leader();
    let other = cenote_storage_node::NodesClient::new(
        std::sync::Arc::new(cenote_fabric::message::tcp::Tcp),
        "another",
        "",
        &cluster.addresses(),
    );
    let error = cenote_storage::nodes::StorageNodes::owner(&other)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("of the cluster \"test\", not of \"another\""), "{error}");
    let other = cenote_storage_node::NodesClient::new(
        std::sync::Arc::new(cenote_fabric::message::tcp::Tcp),
        "test",
        "guess",
        &cluster.addresses(),
    );
    let error = cenote_storage::nodes::StorageNodes::owner(&other)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("secret"), "{error}");
    let mut options = cluster.options(1);
    options.nodes.insert(2, "127.0.0.1:1".into());
    let error = cenote_storage_node::StorageNode::start(options, std::sync::Arc::new(cenote_fabric::message::tcp::Tcp));
    assert!(
        error
            .err()
            .expect("an even number")
            .to_string()
            .contains("1, 3, 5 or 7")
    );
}

/// Hot pages are merged to the last entry, so the state that is saved is ahead of what the log says is committed.
#[test]
fn a_node_alone_comes_back_from_each_stop() {
    let tight = |options: &mut cenote_storage_node::NodeOptions| {
        (options.memory, options.log_limit, options.log_kept) = (8 << 10, 1, 0);
    };
    let mut cluster = Cluster::new(1, tight);
    let mut database = Database::begin(cluster.client(), 5);
    database.nodes.make_space(7).expect("made");
    for _ in 0..4 {
        let before = cluster.nodes[&1].status().saved;
        let until = rt::now() + Nanos::from_secs(20);
        while cluster.nodes[&1].status().saved == before {
            assert!(rt::now() < until, "no state is saved");
            (0..70).for_each(|_| database.append(7, 2));
        }
        cluster.stop(1);
        cluster.start(1);
        database.check();
    }
}

/// Bytes of a page rot in the file of one node: another answers, and gives it the page when it changes next.
#[test]
fn a_page_that_is_damaged_at_one_node_is_taken_from_another() {
    let tight = |options: &mut cenote_storage_node::NodeOptions| {
        (options.memory, options.log_limit, options.log_kept) = (8 << 10, 1, 0);
    };
    let mut cluster = Cluster::new(3, tight);
    let mut database = Database::begin(cluster.client(), 6);
    database.nodes.make_space(7).expect("made");
    let merged = |cluster: &Cluster, database: &mut Database| {
        let before = cluster.nodes[&1].status().saved;
        let until = rt::now() + Nanos::from_secs(20);
        while cluster.nodes[&1].status().saved == before {
            assert!(rt::now() < until, "no state is saved");
            (0..70).for_each(|_| database.append(7, 2));
        }
    };
    merged(&cluster, &mut database);
    cluster.stop(1);
    let path = cluster.dir(1).join("spaces/00000007.pages");
    let mut bytes = std::fs::read(&path).expect("read");
    // In the middle of every page that was written.
    for page in bytes
        .chunks_mut(cenote_base::PAGE_SIZE)
        .filter(|page| page.iter().any(|byte| *byte != 0))
    {
        page[9000] ^= 1;
    }
    std::fs::write(&path, bytes).expect("damaged");
    std::fs::remove_file(cluster.dir(1).join("doublewrite")).expect("its copies are gone, too");
    cluster.start(1);
    database.check();
    (0..3).for_each(|_| merged(&cluster, &mut database));
    database.check();
    assert!(cluster.nodes[&1].failure().is_none());
}
