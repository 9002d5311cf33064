//! Three storage nodes, and a database that is a list of pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cenote_base::page_io::PageRead;
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr};
use cenote_fabric::message::tcp::Tcp;
use cenote_storage::nodes::{LogEnd, StorageNodes, Taken};
use cenote_storage::redo::{self, GroupBuilder, GroupRef};
use cenote_storage_node::{NodeOptions, NodesClient, StorageNode};

/// The nodes, some of which may be down.
pub struct Cluster {
    dir: tempfile::TempDir,
    addresses: BTreeMap<u64, String>,
    pub nodes: BTreeMap<u64, StorageNode>,
    /// Changed before a node is started, for tests of limits.
    pub tune: fn(&mut NodeOptions),
}

impl Cluster {
    pub fn new(count: u64, tune: fn(&mut NodeOptions)) -> Cluster {
        let ports = (1..).zip(free_ports(count as usize));
        let addresses = ports
            .map(|(number, port)| (number, format!("127.0.0.1:{port}")))
            .collect();
        let mut cluster = Cluster {
            dir: tempfile::tempdir().expect("a directory"),
            addresses,
            nodes: BTreeMap::new(),
            tune,
        };
        (1..=count).for_each(|number| cluster.start(number));
        cluster
    }

    pub fn dir(&self, number: u64) -> std::path::PathBuf {
        self.dir.path().join(number.to_string())
    }

    pub fn options(&self, number: u64) -> NodeOptions {
        let mut options = NodeOptions::new(self.dir(number), "test", number, self.addresses.clone());
        options.segment = 1 << 20;
        (self.tune)(&mut options);
        options
    }

    pub fn start(&mut self, number: u64) {
        let node = StorageNode::start(self.options(number), Arc::new(Tcp)).expect("the node starts");
        self.nodes.insert(number, node);
    }

    pub fn stop(&mut self, number: u64) {
        drop(self.nodes.remove(&number));
    }

    pub fn addresses(&self) -> Vec<String> {
        self.addresses.values().cloned().collect()
    }

    pub fn client(&self) -> Arc<NodesClient> {
        Arc::new(NodesClient::new(Arc::new(Tcp), "test", "", &self.addresses()))
    }

    /// The node that leads, once one does.
    pub fn leader(&self) -> u64 {
        let until = rt::now() + Nanos::from_secs(30);
        loop {
            let leads = |(number, node): (&u64, &StorageNode)| (node.status().leader == *number).then_some(*number);
            if let Some(leader) = self.nodes.iter().find_map(leads) {
                return leader;
            }
            assert!(rt::now() < until, "no node leads");
            rt::sleep(Nanos::from_millis(20));
        }
    }
}

/// Ports that no process listens on, below those that the system takes for connections: a port that was free a moment
/// ago and is one of those may be in use when it is bound again.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = || {
        let next = std::process::id().wrapping_mul(61) + NEXT.fetch_add(1, Ordering::SeqCst);
        10_000 + (next % 20_000) as u16
    };
    std::iter::repeat_with(next).filter(is_free).take(count).collect()
}

/// A start of a database whose pages are changed at random, and a model of them.
pub struct Database {
    pub nodes: Arc<dyn StorageNodes>,
    pub end: LogEnd,
    pub model: BTreeMap<PageId, (Vec<u8>, RecordAddr)>,
    pub random: Random,
}

pub const ORIGIN: Lsn = Lsn::from_raw(4096);

/// Takes the database, and makes it if there is none.
pub fn take(nodes: Arc<dyn StorageNodes>) -> (Arc<dyn StorageNodes>, Taken) {
    let owner = nodes.owner().expect("a majority answers");
    let mut taken = nodes.take(owner.epoch, b"a test").expect("taken");
    if taken.control.is_none() {
        nodes.begin(b"control", ORIGIN).expect("begun");
        taken.log = LogEnd::at_origin(ORIGIN);
    }
    (nodes, taken)
}

impl Database {
    pub fn begin(nodes: Arc<dyn StorageNodes>, seed: u64) -> Database {
        let (nodes, taken) = take(nodes);
        Database {
            nodes,
            end: taken.log,
            model: BTreeMap::new(),
            random: Random(seed),
        }
    }

    /// Goes on with another start: the model stays.
    pub fn taken_over(self, nodes: Arc<dyn StorageNodes>) -> Database {
        let (nodes, taken) = take(nodes);
        assert_eq!(taken.log, self.end, "the log ends where it was acknowledged");
        Database { nodes, ..self }
    }

    /// Groups that change pages of `space`, and the pages as they are then.
    pub fn groups(&mut self, space: u32, count: usize) -> (Vec<u8>, LogEnd) {
        let (mut bytes, mut end) = (Vec::new(), self.end);
        for _ in 0..count {
            let id = PageId::new(space, self.random.below(40) as u32);
            let mut builder = GroupBuilder::new();
            let known = self.model.get(&id).map(|(_, head)| *head);
            let record = builder.begin_page(id, known.unwrap_or(RecordAddr::NONE));
            if known.is_none() || self.random.one_in(20) {
                builder.init(record, 1, 0);
            }
            for _ in 0..=self.random.below(5) {
                let at = 64 + self.random.index(PAGE_SIZE - 600);
                let data: Vec<u8> = (0..self.random.below(500)).map(|_| self.random.word() as u8).collect();
                builder.write(record, at, &data);
            }
            let group = sealed(builder, end.end);
            self.note(&group, end.end);
            let parsed = GroupRef::parse(&group, end.end).expect("a group");
            end = LogEnd {
                end: parsed.end(),
                last_start: parsed.start(),
                last_checksum: parsed.checksum(),
            };
            bytes.extend_from_slice(&group);
        }
        (bytes, end)
    }

    fn note(&mut self, group: &[u8], at: Lsn) {
        for record in GroupRef::parse(group, at).expect("a group").records() {
            let record = record.expect("a record");
            let (page, head) = self
                .model
                .entry(record.page)
                .or_insert_with(|| (vec![0; PAGE_SIZE], RecordAddr::NONE));
            redo::apply(page, &record).expect("applied");
            redo::set_page_checksum(page);
            *head = record.address;
        }
    }

    pub fn append(&mut self, space: u32, count: usize) {
        let (bytes, end) = self.groups(space, count);
        self.nodes.append(self.end.end, &bytes, end).expect("appended");
        self.end = end;
    }

    /// Every page as the model has it, at the log's end.
    pub fn check(&self) {
        let wanted: Vec<(PageId, Lsn)> = self.model.keys().map(|id| (*id, self.end.end)).collect();
        let found = self.nodes.read_pages(&wanted);
        assert_eq!(found.len(), wanted.len());
        for ((id, (page, _)), answer) in self.model.iter().zip(found) {
            let (bytes, read) = answer.unwrap_or_else(|error| panic!("page {id}: {error}"));
            assert_eq!(read, PageRead::Present, "page {id}");
            let (lsn, wanted) = (redo::page_lsn(&bytes), redo::page_lsn(page));
            assert!(
                bytes[..] == page[..],
                "page {id} is as of {lsn}, the model as of {wanted}"
            );
        }
    }
}

/// A finished group at its place in the log.
fn sealed(mut builder: GroupBuilder, at: Lsn) -> Vec<u8> {
    builder.finish_at(at).expect("a group").to_vec()
}
