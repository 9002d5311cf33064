//! The B+tree with its threads interleaved at every atomic and at every touch of a page, by seed.
//!
//! A sink that ignores what it is told makes each access to a page a preemption point: readers see half-written pages, and
//! must never believe them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt;
use cenote_buffer::{BufferPool, Config, Kind, Pool};
use cenote_engine::tree::{BTree, LeafBatch};
use cenote_engine::{Direction, KeyRange};
use cenote_fabric::observe::{self, Access, Sink};
use cenote_storage::DataDir;

struct Ignore;

impl Sink for Ignore {
    fn touch(&self, _region: u32, _off: u64, _len: u32, _access: Access) {}
}

fn new_tree() -> (BufferPool, BTree) {
    let data = DataDir::open("/db".as_ref()).expect("an empty directory opens");
    let config = Config { background: false, ring: Some((4 << 20) + 4096), ..Config::new(Kind::Dram, 24 << 20) };
    let (pool, _) = BufferPool::open(config, data).expect("a new pool opens");
    pool.storage().pages().create_space(1000).expect("a new space");
    let tree = BTree::create(&pool, 1000).expect("an empty tree");
    (pool, tree)
}

fn put(tree: &BTree, pool: &Pool, key: &[u8], value: &[u8]) {
    let mut m = pool.mtr();
    let pos = tree.seek_write(&mut m, key, key.len() + value.len()).expect("room");
    if pos.found {
        tree.replace_at(&mut m, &pos, value).expect("room");
    } else {
        tree.insert_at(&mut m, &pos, key, value).expect("room");
    }
    m.commit();
}

fn delete(tree: &BTree, pool: &Pool, key: &[u8]) -> bool {
    let mut m = pool.mtr();
    let pos = tree.seek_write(&mut m, key, 0).expect("readable");
    if !pos.found {
        return false;
    }
    let underfull = tree.remove_at(&mut m, &pos);
    m.commit();
    if underfull {
        tree.compact(pool, key).expect("readable");
    }
    true
}

/// Keys so long that inner pages hold a few only, and the tree becomes three levels high.
fn key(key: u8) -> Vec<u8> {
    let mut long = vec![b'k'; 1500];
    long.push(key);
    long
}

/// A value that says which key it belongs to.
fn value(key: u8) -> Vec<u8> {
    vec![key; 1000 + 11 * key as usize % 1500]
}

/// Each writer owns the keys of one remainder: it knows what must be there.
fn write(tree: &BTree, pool: &Pool, me: u8) -> u64 {
    let mut model = BTreeMap::new();
    let mut got = Vec::new();
    for step in 0..60 {
        let name = (rt::random() % 24) as u8 * 2 + me;
        let key = &key(name)[..];
        match rt::random() % 3 {
            0 if step > 25 => assert_eq!(delete(tree, pool, key), model.remove(&name).is_some()),
            1 => assert_eq!(tree.get(pool, key, &mut got).expect("readable").then_some(&got), model.get(&name)),
            _ => {
                put(tree, pool, key, &value(name));
                model.insert(name, value(name));
            }
        }
    }
    model.len() as u64
}

fn scan(tree: &BTree, pool: &Pool, direction: Direction) {
    let mut batch = LeafBatch::new();
    for _ in 0..6 {
        let mut scan = tree.scan(KeyRange::all(), direction);
        let mut before: Option<u8> = None;
        while scan.next_batch(pool, &mut batch).expect("readable") {
            for (key, bytes) in batch.iter() {
                let name = key[key.len() - 1];
                let in_order = before.is_none_or(|before| (before < name) == (direction == Direction::Forward));
                assert!(in_order, "keys come in order");
                assert!(*bytes == value(name), "a value belongs to its key");
                before = Some(name);
            }
        }
    }
}

#[test]
fn writers_and_readers_interleave() {
    observe::install(Arc::new(Ignore));
    cenote_sim::explore(60, |_| {
        let (pool, tree) = new_tree();
        let pool = Arc::new(pool);
        let writers: Vec<_> = (0..2u8)
            .map(|me| {
                let pool = Arc::clone(&pool);
                rt::spawn("writer", move || write(&tree, &pool, me))
            })
            .collect();
        let readers: Vec<_> = [Direction::Forward, Direction::Backward]
            .map(|direction| {
                let pool = Arc::clone(&pool);
                rt::spawn("reader", move || scan(&tree, &pool, direction))
            })
            .into();
        let alive: u64 = writers.into_iter().map(|writer| writer.join().expect("no panic")).sum();
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        let report = tree.check(&pool).expect("readable");
        assert_eq!((report.findings, report.entries, report.accounted), (Vec::new(), alive, true));
    });
}
