//! What storage nodes tell readers: changes since a moment, and pages as of one.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Lsn, PageId};
use cenote_storage::nodes::{Changes, FollowRequest, Moment, StorageNodes};
use cenote_storage::redo::page_lsn;
use cenote_storage_node::NodesClient;

use crate::cluster::{Cluster, Database};

/// A reader that keeps all pages, as of its moment.
struct Reader {
    nodes: Arc<NodesClient>,
    at: Moment,
    pages: BTreeMap<PageId, Box<[u8]>>,
}

fn follow(nodes: &NodesClient, since: Option<Moment>) -> Changes {
    let request = FollowRequest {
        reader: 7,
        name: "a test".into(),
        since,
        oldest: since.map_or(Lsn::ZERO, |at| at.end),
        wait: Nanos::from_millis(300),
        asked: Vec::new(),
    };
    nodes.follow(&request).expect("a node answers")
}

impl Reader {
    fn begin(nodes: Arc<NodesClient>) -> Reader {
        let changes = follow(&nodes, None);
        let anew = changes.anew.expect("it begins anew");
        assert_eq!(anew.control, b"control");
        assert_eq!(anew.log.end, changes.to.end);
        Reader {
            nodes,
            at: changes.to,
            pages: BTreeMap::new(),
        }
    }

    /// Follows until it is at `end`; drops what has changed.
    fn follow_to(&mut self, end: Lsn) {
        for _ in 0..1000 {
            if self.at.end >= end {
                return;
            }
            let changes = follow(&self.nodes, Some(self.at));
            assert!(changes.to >= self.at, "{changes:?} leads back from {:?}", self.at);
            match changes.anew {
                Some(_) => self.pages.clear(),
                None => changes.pages.iter().for_each(|page| _ = self.pages.remove(page)),
            }
            self.at = changes.to;
        }
        panic!("it does not come to {end}");
    }

    /// The page as of its moment; `None`: it is kept as of a later one.
    fn page(&mut self, id: PageId) -> Option<Box<[u8]>> {
        if let Some(page) = self.pages.get(&id) {
            return Some(page.clone());
        }
        match self.nodes.read_pages_at(self.at, &[id]).pop().expect("an answer") {
            Ok((page, PageRead::NeverWritten)) => Some(page),
            Ok((page, _)) => {
                assert!(page_lsn(&page) <= self.at.end, "page {id} is newer than was asked for");
                self.pages.insert(id, page.clone());
                Some(page)
            }
            Err(Error::Ahead(position)) => {
                assert!(position > self.at.end, "{position} is not ahead of {:?}", self.at);
                None
            }
            Err(error) => panic!("page {id}: {error}"),
        }
    }
}

fn ids() -> impl Iterator<Item = PageId> {
    (0..40).map(|page| PageId::new(7, page))
}

/// A reader that drops what it is told has changed, and no more, has each page as the database has it; nodes that are
/// started anew, and one that takes the place of the one it follows, tell it all that it needs.
#[test]
fn a_reader_that_drops_what_changed_has_every_page() {
    let mut cluster = Cluster::new(3, |options| {
        (options.memory, options.log_limit, options.log_kept) = (64 << 10, 1 << 20, 1 << 20)
    });
    let mut database = Database::begin(cluster.client(), 11);
    database.nodes.make_space(7).expect("made");
    database.append(7, 20);
    let mut reader = Reader::begin(cluster.client());
    for round in 0..12 {
        database.append(7, 1 + round * 7 % 40);
        reader.follow_to(database.end.end);
        assert_eq!(reader.at.end, database.end.end, "nothing else was appended");
        for id in ids() {
            let page = reader.page(id).expect("nothing is later");
            if let Some((expected, _)) = database.model.get(&id) {
                assert_eq!(page[12..], expected[12..], "round {round}, page {id}");
            }
        }
        let number = 1 + round as u64 % 3;
        if round % 4 == 3 {
            cluster.stop(number);
            cluster.start(number);
        }
    }
    assert_eq!(reader.nodes.newest().expect("a majority").end, database.end.end);
    let seen = reader.nodes.readers().expect("they answer");
    assert!(
        seen.iter().any(|seen| seen.reader == 7 && seen.name == "a test"),
        "{seen:?}"
    );
}

/// The server hears once of each page that readers have asked for, whichever nodes they follow.
#[test]
fn what_readers_have_asked_for_is_told_once() {
    let cluster = Cluster::new(3, |_| {});
    let mut database = Database::begin(cluster.client(), 13);
    database.nodes.make_space(7).expect("made");
    database.append(7, 20);
    let asked_by = |reader: u128, pages: &[u32]| {
        let request = FollowRequest {
            reader,
            name: "a test".into(),
            since: None,
            oldest: Lsn::ZERO,
            wait: Nanos::ZERO,
            asked: pages.iter().map(|page| PageId::new(7, *page)).collect(),
        };
        cluster.client().follow(&request).map(drop)
    };
    asked_by(1, &[5, 3]).expect("answered");
    asked_by(2, &[4, 3]).expect("answered");
    let told = database.nodes.take_asked().expect("they answer");
    assert_eq!(told, [3, 4, 5].map(|page| PageId::new(7, page)));
    assert_eq!(database.nodes.take_asked().expect("they answer"), []);
    let refused = asked_by(1, &vec![1; 1025]).expect_err("too many at a time");
    assert!(refused.to_string().contains("too many pages"), "{refused}");
}

/// A page as of a moment is that, or ahead; never another state of it.
#[test]
fn a_page_is_as_of_the_moment_or_ahead() {
    let cluster = Cluster::new(1, |options| (options.memory, options.log_limit) = (32 << 10, 64 << 10));
    let mut database = Database::begin(cluster.client(), 12);
    database.nodes.make_space(7).expect("made");
    database.append(7, 200);
    let mut reader = Reader::begin(cluster.client());
    reader.follow_to(database.end.end);
    let (mut as_of, mut ahead) = (0, 0);
    for _ in 0..60 {
        reader.pages.clear();
        let then = database.model.clone();
        assert_eq!(reader.at.end, database.end.end);
        // Behind the reader's back.
        database.append(7, 8);
        for id in ids() {
            match reader.page(id) {
                Some(page) => {
                    let expected = then.get(&id).map(|(page, _)| &page[12..]);
                    assert!(
                        expected.is_none_or(|expected| page[12..] == *expected),
                        "page {id} is of another moment"
                    );
                    as_of += 1;
                }
                None => ahead += 1,
            }
        }
        reader.follow_to(database.end.end);
    }
    assert!(
        as_of > 500 && ahead > 0,
        "{as_of} pages as of the moment, {ahead} ahead"
    );
}

/// Spaces come and go for a reader in the order in which they do.
#[test]
fn a_reader_hears_of_spaces() {
    let cluster = Cluster::new(1, |_| {});
    let mut database = Database::begin(cluster.client(), 13);
    database.nodes.make_space(7).expect("made");
    database.append(7, 5);
    // A node may be behind what was acknowledged when a reader begins.
    let mut reader = Reader::begin(cluster.client());
    reader.follow_to(database.end.end);
    database.nodes.drop_space(7).expect("dropped");
    database.nodes.make_space(7).expect("made");
    database.nodes.make_space(8).expect("made");
    database.nodes.drop_space(8).expect("dropped");
    let mut spaces = Vec::new();
    let mut at = reader.at;
    while spaces.len() < 4 {
        let changes = follow(&reader.nodes, Some(at));
        spaces.extend(changes.spaces);
        at = changes.to;
    }
    assert_eq!(spaces, vec![(7, false), (7, true), (8, true), (8, false)]);
    let gone = reader
        .nodes
        .read_pages_at(at, &[PageId::new(8, 0)])
        .pop()
        .expect("an answer");
    assert!(matches!(gone, Err(Error::Past(_))), "{gone:?}");
}
