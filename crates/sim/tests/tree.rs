//! The B+tree with its threads interleaved at every atomic and at every touch of a page, by seed.
//!
//! A sink that ignores what it is told makes each access to a page a preemption point: readers see half-written pages,
//! and must never believe them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt;
use cenote_buffer::{BufferPool, Config, Kind, Pool};
use cenote_engine::tree::{BTree, CheckReport, LeafBatch};
use cenote_engine::{Direction, KeyRange};
use cenote_fabric::RegionMemory;
use cenote_fabric::observe::{self, Access, Sink};
use cenote_sim::{Sim, seeds};
use cenote_storage::DataDir;
use cenote_testkit::faulty::MemFs;

struct Ignore;

impl Sink for Ignore {
    fn touch(&self, _region: &RegionMemory, _off: u64, _len: u32, _access: Access) {}
}

fn open(background: bool) -> BufferPool {
    let data = DataDir::open("/db".as_ref()).expect("the directory opens");
    let config = Config {
        background,
        ring: Some((4 << 20) + 4096),
        ..Config::new(Kind::Dram, 24 << 20)
    };
    BufferPool::open(config, data).expect("the pool opens").0
}

fn new_tree(background: bool) -> (BufferPool, BTree) {
    let pool = open(background);
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
            1 => assert_eq!(
                tree.get(pool, key, &mut got).expect("readable").then_some(&got),
                model.get(&name)
            ),
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
        let (pool, tree) = new_tree(false);
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
        assert_eq!(
            (report.findings, report.entries, report.accounted),
            (Vec::new(), alive, true)
        );
    });
}

/// Writes, removes and reads large values, until the end of the world.
fn churn_large(tree: &BTree, pool: &Pool) {
    let mut out = Vec::new();
    loop {
        let bytes = vec![rt::random() as u8; (rt::random() % 500_000) as usize];
        let large = tree.put_large(pool, &bytes).expect("room");
        let mut m = pool.mtr();
        tree.adopt_large(&mut m, &[large]).expect("it is pending");
        m.commit();
        tree.get_large(pool, &large, &mut out).expect("it is there");
        assert!(out == bytes);
        let mut m = pool.mtr();
        tree.orphan_large(&mut m, &[large]).expect("it is held");
        m.commit();
        tree.free_large(pool, &large).expect("it is pending");
    }
}

/// The machine stops at any moment: between the mini-transactions of a split and its insert, within a large value. What
/// was synced is a whole tree in which every page belongs to something.
#[test]
fn a_crash_at_any_moment_leaves_a_whole_tree_and_no_orphans() {
    let mut pages = 0;
    for seed in seeds(8) {
        println!("CENOTE_SEED={seed}");
        let files = MemFs::new();
        Sim::new(seed).with_files(files.clone()).run(|_| work_until_the_end());
        let left = files.crash_clone_torn(seed);
        let report = Sim::new(seed).with_files(left).run(|_| recover_and_check()).value;
        pages += report.leaves + report.inner + report.overflow + report.free;
    }
    assert!(pages > 16, "the runs get somewhere: {pages} pages");
}

fn work_until_the_end() {
    let (pool, tree) = new_tree(true);
    pool.storage()
        .log()
        .wait_durable(pool.storage().log().tail())
        .expect("synced");
    let pool = Arc::new(pool);
    for me in 0..2u8 {
        let pool = Arc::clone(&pool);
        rt::spawn("writer", move || {
            loop {
                write(&tree, &pool, me);
                (0..24).for_each(|name| {
                    delete(&tree, &pool, &key(name * 2 + me));
                });
            }
        });
    }
    rt::spawn("large", {
        let pool = Arc::clone(&pool);
        move || churn_large(&tree, &pool)
    });
    // The log goes to the files whenever the scheduler lets this thread go on; at the last time the machine stops.
    for _ in 0..rt::random() % 25 {
        (0..rt::random() % 3000).for_each(|_| rt::preempt());
        pool.storage()
            .log()
            .wait_durable(pool.storage().log().tail())
            .expect("synced");
    }
    (0..rt::random() % 3000).for_each(|_| rt::preempt());
    std::mem::forget(pool);
}

fn recover_and_check() -> CheckReport {
    let pool = open(false);
    let tree = BTree { space: 1000 };
    tree.reclaim_pending(&pool).expect("readable");
    scan(&tree, &pool, Direction::Forward);
    let report = tree.check(&pool).expect("readable");
    assert_eq!((&report.findings, report.accounted), (&Vec::new(), true));
    report
}
