//! The tree against a model, alone and with several threads.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_base::PageId;
use cenote_base::random::Random;
use cenote_engine::tree::{BTree, Error, LargeRef, LeafBatch, MAX_KEY, MAX_VALUE, PAGE_SIZE, Scan};
use cenote_engine::{Direction, KeyRange};
use cenote_storage::DataDir;

mod tree_support;
use cenote_buffer::{BufferPool, Config, Kind, Pool};
use tree_support::Fixture;

fn put(tree: &BTree, pool: &Pool, key: &[u8], value: &[u8]) {
    let mut m = pool.mtr();
    let pos = tree.seek_write(&mut m, key, key.len() + value.len()).unwrap();
    if pos.found {
        tree.replace_at(&mut m, &pos, value).unwrap();
    } else {
        tree.insert_at(&mut m, &pos, key, value).unwrap();
    }
    m.commit();
}

fn delete(tree: &BTree, pool: &Pool, key: &[u8]) -> bool {
    let mut m = pool.mtr();
    let pos = tree.seek_write(&mut m, key, 0).unwrap();
    if !pos.found {
        return false;
    }
    let underfull = tree.remove_at(&mut m, &pos);
    m.commit();
    if underfull {
        tree.compact(pool, key).unwrap();
    }
    true
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn collect(tree: &BTree, pool: &Pool, range: KeyRange, direction: Direction, rows: usize) -> Rows {
    rest(tree.scan(range, direction).batch_rows(rows), pool)
}

fn rest(mut scan: Scan, pool: &Pool) -> Rows {
    let mut batch = LeafBatch::new();
    let mut out = Vec::new();
    while scan.next_batch(pool, &mut batch).unwrap() {
        out.extend(batch.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    out
}

/// A scan without keys gives the same values, of keys that it may cut.
fn gives_the_same_without_keys(tree: &BTree, pool: &Pool, range: KeyRange, rows: usize, expected: &Rows) {
    let found = rest(
        tree.scan(range, Direction::Forward).batch_rows(rows).without_keys(),
        pool,
    );
    assert_eq!(found.len(), expected.len(), "as many entries");
    for ((part, value), (key, expected)) in found.iter().zip(expected) {
        assert!(key.ends_with(part) && value == expected, "the entry of {key:?}");
    }
}

fn sound(tree: &BTree, pool: &Pool) -> cenote_engine::tree::CheckReport {
    let report = tree.check(pool).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.accounted);
    report
}

/// How keys and values of a run look.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Integers,
    Text,
    Huge,
}

fn key(shape: Shape, rng: &mut Random) -> Vec<u8> {
    match shape {
        Shape::Integers => [&[3][..], &(rng.below(3000) as u32).to_be_bytes()].concat(),
        Shape::Text => {
            let len = rng.below(40) as usize;
            let mut key = b"common/".to_vec();
            key.extend((0..len).map(|_| b"ab\0\xff"[rng.below(4) as usize]));
            key.truncate(rng.below(key.len() as u64 + 1) as usize);
            key
        }
        Shape::Huge => {
            let mut key = vec![b'k'; rng.below(MAX_KEY as u64 - 8) as usize];
            key.extend((rng.below(300)).to_be_bytes());
            key
        }
    }
}

fn value(shape: Shape, rng: &mut Random) -> Vec<u8> {
    let most = match shape {
        Shape::Integers => 200,
        Shape::Text => 300,
        Shape::Huge => MAX_VALUE as u64,
    };
    let byte = rng.word() as u8;
    vec![byte; rng.below(most + 1) as usize]
}

fn bound(shape: Shape, rng: &mut Random) -> Bound<Vec<u8>> {
    match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(shape, rng)),
        _ => Bound::Excluded(key(shape, rng)),
    }
}

fn model_range(model: &BTreeMap<Vec<u8>, Vec<u8>>, range: &KeyRange) -> Rows {
    let bounds = (range.lower.as_ref(), range.upper.as_ref());
    let inside = model
        .iter()
        .filter(|(key, _)| RangeBounds::<Vec<u8>>::contains(&bounds, *key));
    inside.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn against_model(shape: Shape, seed: u64, steps: usize) {
    println!("shape {shape:?} seed {seed}");
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let mut rng = Random(seed);
    let mut model = BTreeMap::new();
    let mut got = Vec::new();
    for step in 0..steps {
        let deleting = (step / 1500) % 2 == 1;
        let key = key(shape, &mut rng);
        match rng.below(20) {
            0..=11 if !deleting => {
                let value = value(shape, &mut rng);
                put(&tree, pool, &key, &value);
                model.insert(key, value);
            }
            0..=15 => assert_eq!(delete(&tree, pool, &key), model.remove(&key).is_some()),
            16..=18 => {
                let found = tree.get(pool, &key, &mut got).unwrap();
                assert_eq!(found.then_some(&got), model.get(&key), "key {key:?}");
            }
            _ => {
                let range = KeyRange {
                    lower: bound(shape, &mut rng),
                    upper: bound(shape, &mut rng),
                };
                let rows = if rng.below(2) == 0 {
                    usize::MAX
                } else {
                    1 + rng.below(5) as usize
                };
                let mut expected = model_range(&model, &range);
                assert_eq!(
                    collect(&tree, pool, range.clone(), Direction::Forward, rows),
                    expected,
                    "{range:?}"
                );
                gives_the_same_without_keys(&tree, pool, range.clone(), rows, &expected);
                expected.reverse();
                assert_eq!(
                    collect(&tree, pool, range.clone(), Direction::Backward, rows),
                    expected,
                    "{range:?}"
                );
            }
        }
        if step % 500 == 0 {
            assert_eq!(sound(&tree, pool).entries, model.len() as u64);
        }
    }
    for key in model.keys() {
        assert!(delete(&tree, pool, key));
    }
    let report = sound(&tree, pool);
    assert_eq!(
        (report.entries, report.leaves, report.inner),
        (0, 1, 0),
        "an emptied tree is a single leaf"
    );
}

#[test]
fn behaves_like_an_ordered_map_of_integers() {
    (1..4).for_each(|seed| against_model(Shape::Integers, seed, 6000));
}

#[test]
fn behaves_like_an_ordered_map_of_text() {
    (1..4).for_each(|seed| against_model(Shape::Text, seed, 6000));
}

#[test]
fn behaves_like_an_ordered_map_of_the_largest_entries() {
    (1..4).for_each(|seed| against_model(Shape::Huge, seed, 3000));
}

#[test]
fn ascending_inserts_leave_leaves_full() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    for i in 0..20_000u32 {
        put(&tree, pool, &i.to_be_bytes(), &[7; 180]);
    }
    let report = sound(&tree, pool);
    let full = 20_000 * (180 + 4 + 12) / 16_300 + 2;
    assert!(
        report.leaves <= full * 105 / 100,
        "{} leaves where {full} would do",
        report.leaves
    );
}

#[test]
fn a_bulk_load_is_the_same_tree_and_leaves_a_little_room() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let rows = (0..30_000u32).map(|i| Ok::<_, Error>((i.to_be_bytes(), [3u8; 60])));
    assert_eq!(tree.bulk_load(pool, rows).unwrap(), 30_000);
    let report = sound(&tree, pool);
    assert_eq!(report.entries, 30_000);
    assert!(report.leaves <= 30_000 * 76 / 15_000 + 2, "{report:?}");
    let again = tree.bulk_load(pool, [Ok::<_, Error>((5u32.to_be_bytes(), [0u8; 1]))]);
    assert!(matches!(again, Err(Error::NotSorted)));
    assert_eq!(
        collect(&tree, pool, KeyRange::all(), Direction::Backward, usize::MAX).len(),
        30_000
    );
}

#[test]
fn sizes_beyond_the_limits_are_refused_and_change_nothing() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let mut m = pool.mtr();
    assert!(matches!(
        tree.seek_write(&mut m, &vec![0; MAX_KEY + 1], 0),
        Err(Error::KeyTooLong(_))
    ));
    let pos = tree.seek_write(&mut m, b"k", 100).unwrap();
    assert!(matches!(
        tree.insert_at(&mut m, &pos, b"k", &vec![0; MAX_VALUE + 1]),
        Err(Error::ValueTooLong(_))
    ));
    tree.insert_at(&mut m, &pos, b"k", &vec![1; MAX_VALUE]).unwrap();
    m.commit();
    assert_eq!(sound(&tree, pool).entries, 1);
}

#[test]
fn large_values_come_back_and_their_pages_are_accounted_for() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let mut held: Vec<(LargeRef, Vec<u8>)> = Vec::new();
    let mut rng = Random(5);
    for round in 0..60 {
        let len = if round % 20 == 0 {
            3 << 20
        } else {
            rng.below(200_000) as usize
        };
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ round as u8).collect();
        let large = tree.put_large(pool, &bytes).unwrap();
        let mut m = pool.mtr();
        tree.adopt_large(&mut m, &[large]).unwrap();
        m.commit();
        held.push((large, bytes));
        if rng.below(2) == 0 {
            let (large, _) = held.swap_remove(rng.below(held.len() as u64) as usize);
            let mut m = pool.mtr();
            tree.orphan_large(&mut m, &[large]).unwrap();
            m.commit();
            tree.free_large(pool, &large).unwrap();
        }
    }
    let mut out = Vec::new();
    for (large, bytes) in &held {
        tree.get_large(pool, large, &mut out).unwrap();
        assert!(out == *bytes);
    }
    let report = sound(&tree, pool);
    assert_eq!(report.large.len(), held.len());
    assert_eq!(LargeRef::decode(&held[0].0.encode()), Some(held[0].0));
}

#[test]
fn what_is_still_pending_after_a_crash_is_reclaimed() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    tree.put_large(pool, &vec![1; 1 << 20]).unwrap();
    let adopted = tree.put_large(pool, &vec![2; 1 << 20]).unwrap();
    let mut m = pool.mtr();
    tree.adopt_large(&mut m, &[adopted]).unwrap();
    m.commit();
    assert_eq!(tree.reclaim_pending(pool).unwrap(), 1);
    let report = sound(&tree, pool);
    assert_eq!(report.large, [adopted.first]);
    assert!(report.free >= 64);
}

/// Writers own disjoint keys (their number is the remainder), so each knows what must be there; readers check that
/// scans rise and that values belong to their keys.
#[test]
fn threads_insert_delete_and_read_at_once() {
    let fixture = Arc::new(Fixture::new());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3u64).map(|me| spawn_writer(&fixture, me)).collect();
    let readers: Vec<_> = (0..2u64).map(|me| spawn_reader(&fixture, &stop, me)).collect();
    let alive: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(sound(&fixture.tree(), fixture.pool()).entries, alive);
}

fn spawn_writer(fixture: &Arc<Fixture>, me: u64) -> std::thread::JoinHandle<u64> {
    let fixture = Arc::clone(fixture);
    std::thread::spawn(move || {
        let (pool, tree) = (fixture.pool(), fixture.tree());
        let mut rng = Random(me + 77);
        let mut model = BTreeMap::new();
        let mut got = Vec::new();
        for step in 0..12_000 {
            let key = (rng.below(2000) * 3 + me).to_be_bytes();
            let growing = (step / 3000) % 2 == 0;
            match rng.below(4) {
                0 => assert_eq!(
                    tree.get(pool, &key, &mut got).unwrap().then_some(&got),
                    model.get(&key),
                    "seed {me}"
                ),
                1 if growing => assert_eq!(delete(&tree, pool, &key), model.remove(&key).is_some()),
                2..=3 if !growing => assert_eq!(delete(&tree, pool, &key), model.remove(&key).is_some()),
                _ => {
                    let value = vec![key[7]; rng.below(400) as usize];
                    put(&tree, pool, &key, &value);
                    model.insert(key, value);
                }
            }
        }
        model.len() as u64
    })
}

fn spawn_reader(fixture: &Arc<Fixture>, stop: &Arc<AtomicBool>, me: u64) -> std::thread::JoinHandle<()> {
    let (fixture, stop) = (Arc::clone(fixture), Arc::clone(stop));
    std::thread::spawn(move || {
        let direction = if me == 0 {
            Direction::Forward
        } else {
            Direction::Backward
        };
        while !stop.load(Ordering::Relaxed) {
            let rows = collect(&fixture.tree(), fixture.pool(), KeyRange::all(), direction, usize::MAX);
            let rising = rows
                .windows(2)
                .all(|two| (two[0].0 < two[1].0) == (direction == Direction::Forward));
            assert!(rising);
            assert!(rows.iter().all(|(key, value)| value.iter().all(|byte| *byte == key[7])));
            let values = rest(
                fixture.tree().scan(KeyRange::all(), direction).without_keys(),
                fixture.pool(),
            );
            let own = |(part, value): &(Vec<u8>, Vec<u8>)| {
                let last = part.last().copied().or(value.first().copied());
                value.iter().all(|byte| Some(*byte) == last)
            };
            assert!(values.iter().all(own), "values of their keys");
            let report = fixture.tree().check(fixture.pool()).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
        }
    })
}

/// Bits flip in the region, where no checksum sees them. Whatever they make of a page, operations on the tree answer
/// with a value or an error; none panics, and none goes on for ever.
#[test]
fn flipped_bytes_in_pages_give_errors_and_no_panic() {
    let mut errors = 0;
    for seed in 0..20 {
        let fixture = Fixture::sized(48 << 20);
        let (pool, tree) = (fixture.pool(), fixture.tree());
        let mut rng = Random(seed);
        for _ in 0..300 {
            put(&tree, pool, &key(Shape::Huge, &mut rng), &value(Shape::Text, &mut rng));
        }
        let pages = tree.check(pool).unwrap();
        let count = pages.leaves + pages.inner;
        for _ in 0..20 {
            let page = PageId::new(1000, 1 + rng.below(count) as u32);
            let near = [64, 400, PAGE_SIZE as u64][rng.below(3) as usize];
            let mut m = pool.mtr();
            let h = m.exclusive(page).unwrap();
            let at = (12 + rng.below(near - 12)) as usize;
            let at = if (16..24).contains(&at) { 32 } else { at };
            m.write(h, at, &[rng.word() as u8]);
            m.commit();
            errors += u64::from(survive(&tree, pool, &mut rng).is_err());
        }
        assert!(!tree.check(pool).unwrap().findings.is_empty() || errors < 20);
    }
    assert!(errors > 20, "{errors}");
}

/// Some of everything; stops at the first error.
fn survive(tree: &BTree, pool: &Pool, rng: &mut Random) -> Result<(), Error> {
    let mut out = Vec::new();
    let mut batch = LeafBatch::new();
    for direction in [Direction::Forward, Direction::Backward] {
        let mut scan = tree.scan(KeyRange::all(), direction);
        while scan.next_batch(pool, &mut batch)? {}
    }
    let mut values = tree.scan(KeyRange::all(), Direction::Forward).without_keys();
    while values.next_batch(pool, &mut batch)? {
        batch.iter().for_each(|(key, value)| drop([key, value].concat()));
    }
    for _ in 0..10 {
        let (key, value) = (key(Shape::Huge, rng), value(Shape::Text, rng));
        tree.get(pool, &key, &mut out)?;
        let mut m = pool.mtr();
        let pos = tree.seek_write(&mut m, &key, key.len() + value.len())?;
        match (pos.found, rng.below(2)) {
            (true, 0) => drop(tree.remove_at(&mut m, &pos)),
            (true, _) => tree.replace_at(&mut m, &pos, &value)?,
            (false, _) => tree.insert_at(&mut m, &pos, &key, &value)?,
        }
        m.commit();
        tree.compact(pool, &key)?;
    }
    Ok(())
}

#[test]
fn a_tree_several_times_larger_than_the_pool() {
    let fixture = Fixture::sized(24 << 20);
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let rows = 200_000u32;
    let entries = (0..rows).map(|i| Ok::<_, Error>((i.to_be_bytes(), [i as u8; 300])));
    assert_eq!(tree.bulk_load(pool, entries).unwrap(), u64::from(rows));
    let mut rng = Random(9);
    let mut out = Vec::new();
    for _ in 0..3000 {
        let row = rng.below(u64::from(rows)) as u32;
        assert!(tree.get(pool, &row.to_be_bytes(), &mut out).unwrap());
        assert_eq!((out.len(), out[0]), (300, row as u8));
        put(&tree, pool, &row.to_be_bytes(), &[row as u8; 300]);
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let mut scan = tree.scan(KeyRange::all(), direction);
        let mut batch = LeafBatch::new();
        let mut seen = 0;
        while scan.next_batch(pool, &mut batch).unwrap() {
            seen += batch.iter().filter(|(key, value)| value[0] == key[3]).count();
        }
        assert_eq!(seen, rows as usize);
    }
    sound(&tree, pool);
}

/// The process dies, its region stays: every mini-transaction that was committed is there, whether its redo had been
/// synced or not, and the tree is whole.
#[test]
fn what_was_done_before_the_process_died_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Random(21);
    let mut model = BTreeMap::new();
    let open = || {
        let config = Config {
            region: Some(dir.path().join("region")),
            ..Config::new(Kind::Cxl, 32 << 20)
        };
        BufferPool::open(config, DataDir::open(dir.path()).unwrap()).unwrap().0
    };
    let mut pool = open();
    pool.storage().pages().create_space(1000).unwrap();
    let tree = BTree::create(&pool, 1000).unwrap();
    for life in 0..8 {
        for _ in 0..rng.below(1500) {
            let shape = [Shape::Text, Shape::Huge][(life / 2) % 2];
            let (key, value) = (key(shape, &mut rng), value(shape, &mut rng));
            if rng.below(3) == 0 {
                assert_eq!(delete(&tree, &pool, &key), model.remove(&key).is_some());
            } else {
                put(&tree, &pool, &key, &value);
                model.insert(key, value);
            }
        }
        pool.abandon();
        drop(pool);
        pool = open();
        assert_eq!(sound(&tree, &pool).entries, model.len() as u64, "life {life}");
        assert_eq!(
            collect(&tree, &pool, KeyRange::all(), Direction::Forward, 7),
            Vec::from_iter(model.clone())
        );
    }
}

/// A row may hold more large values than a mini-transaction latches pages.
#[test]
fn one_row_holds_many_large_values() {
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let large: Vec<_> = (0..300)
        .map(|i| tree.put_large(pool, &vec![i as u8; 300 + i]).unwrap())
        .collect();
    let mut m = pool.mtr();
    tree.adopt_large(&mut m, &large).unwrap();
    m.commit();
    assert_eq!(sound(&tree, pool).large.len(), 300);
    let mut m = pool.mtr();
    tree.orphan_large(&mut m, &large).unwrap();
    m.commit();
    large.iter().for_each(|large| tree.free_large(pool, large).unwrap());
    let report = sound(&tree, pool);
    assert_eq!((report.large.len(), report.overflow), (0, 0));
}
