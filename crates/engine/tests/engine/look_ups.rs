//! Many keys looked up at once give what a scan of each of their ranges gives.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Found = Vec<(Vec<u8>, (i32, i32, String))>;

fn gathered(reader: &Reader, table: &Table, mut scan: RowScan) -> Found {
    let (mut batch, mut found) = (RowBatch::new(), Vec::new());
    while scan.next_batch(reader, &mut batch).unwrap() {
        found.extend((0..batch.len()).map(|i| (batch.key(i).to_vec(), values(table, batch.row(i)))));
    }
    found
}

/// What scans of the ranges under each prefix give, one after the other.
fn scanned(reader: &Reader, table: &Arc<Table>, index: Option<usize>, prefixes: &[Vec<u8>]) -> Found {
    let of = |prefix: &Vec<u8>| {
        let range = KeyRange::prefix(prefix);
        let scan = match index {
            None => reader.scan(table, range, Direction::Forward),
            Some(index) => reader.index_scan(table, index, range, Direction::Forward),
        };
        gathered(reader, table, scan)
    };
    prefixes.iter().flat_map(of).collect()
}

fn k_key(table: &Table, k: i32) -> Vec<u8> {
    let mut out = Vec::new();
    table.index_key_of_values(&table.indexes[0], &[Datum::Int4(k)], &mut out);
    out
}

fn some(random: &mut Random, count: u64, below: u64, key: impl Fn(i32) -> Vec<u8>) -> Arc<[Vec<u8>]> {
    let chosen: BTreeSet<_> = (0..count).map(|_| key(random.below(below) as i32 - 5)).collect();
    chosen.into_iter().collect()
}

/// Keys that are there and that are not, of one row and of thousands, close and far from each other.
#[test]
fn look_ups_give_what_scans_of_each_range_give() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..12_000 {
        // Every third has one value: its entries take many leaves.
        let k = if id % 3 == 0 { 7 } else { id / 5 };
        insert(&mut tx, &table, id, k, "some text").unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    for id in (0..12_000).step_by(11) {
        delete(&mut tx, &table, id).unwrap();
        update(&mut tx, &table, id + 1, id % 100, "another").unwrap();
    }
    let mut random = Random(41);
    let reader = tx.reader();
    for count in [0, 1, 2, 30, 2_000, 9_000] {
        let ids = some(&mut random, count, 13_000, |id| key(&table, id));
        let ks = some(&mut random, count, 2_600, |k| k_key(&table, k));
        for (index, prefixes) in [(None, ids), (Some(0), ks)] {
            let expected = scanned(reader, &table, index, &prefixes);
            let whole = (prefixes.clone(), 0..prefixes.len());
            assert!(gathered(reader, &table, reader.look_up(&table, index, whole)) == expected);
            let cut = prefixes.len() / 3;
            let parts = [0..cut, cut..cut, cut..prefixes.len()];
            let found = parts.map(|part| reader.look_up(&table, index, (prefixes.clone(), part)));
            let found: Found = found.into_iter().flat_map(|s| gathered(reader, &table, s)).collect();
            assert!(found == expected, "{count} keys in parts");
        }
    }
    drop(tx);
    engine.shutdown().unwrap();
}

/// Each page was read by itself, one after the other: by primary key, and by the entries of a secondary index.
#[test]
fn look_ups_of_what_is_not_near_read_pages_together() {
    let dir = tempfile::tempdir().unwrap();
    let small = EngineOptions::new(dir.path(), MemoryKind::Dram, 16 << 20);
    let engine = Engine::open(small.with_frames(301).unwrap()).unwrap();
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let mut random = Random(5);
    for id in 0..12_000 {
        insert(&mut tx, &table, id, random.below(12_000) as i32, &"text".repeat(200)).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let reader = tx.reader();
    let ids = some(&mut random, 300, 12_000, |id| key(&table, id));
    let ks = some(&mut random, 300, 12_000, |k| k_key(&table, k));
    let all: Arc<[Vec<u8>]> = (0..12_000).map(|id| key(&table, id)).collect();
    for (index, prefixes) in [(None, ids), (Some(0), ks)] {
        let expected = scanned(reader, &table, index, &prefixes);
        let mut seen = Vec::new();
        // How many are not near depends on how far the evictor is, which a busy machine lets wait.
        while !seen.iter().any(|(_, together)| *together > 3) && seen.len() < 20 {
            // More pages than there are frames.
            scanned(reader, &table, None, &all);
            let before = engine.pool_stats().counts;
            let found = gathered(
                reader,
                &table,
                reader.look_up(&table, index, (prefixes.clone(), 0..prefixes.len())),
            );
            let after = engine.pool_stats().counts;
            assert!(found == expected);
            let together = after.pages_prefetched - before.pages_prefetched;
            seen.push((after.misses - before.misses, together));
        }
        println!("{index:?}: pages by themselves, together: {seen:?}");
        assert!(seen.iter().any(|(_, together)| *together > 3), "{seen:?}");
    }
    drop(tx);
    engine.shutdown().unwrap();
}

/// A batch ends within a prefix where its rows are large: the walk returns to where it ended.
#[test]
fn look_ups_of_large_rows_miss_none() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..12 {
        insert(&mut tx, &table, id, id % 3, &"x".repeat(1_500_000)).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let reader = tx.reader();
    let ids: Arc<[Vec<u8>]> = (0..12).map(|id| key(&table, id)).collect();
    let ks: Arc<[Vec<u8>]> = (0..3).map(|k| k_key(&table, k)).collect();
    for (index, prefixes) in [(None, ids), (Some(0), ks)] {
        let scan = reader.look_up(&table, index, (prefixes.clone(), 0..prefixes.len()));
        let found: Vec<_> = gathered(reader, &table, scan)
            .into_iter()
            .map(|(_, row)| row.0)
            .collect();
        let expected: Vec<_> = scanned(reader, &table, index, &prefixes)
            .into_iter()
            .map(|(_, row)| row.0)
            .collect();
        assert_eq!(found, expected);
        assert_eq!(found.len(), 12);
    }
    drop(tx);
    engine.shutdown().unwrap();
}

/// Rows of some kilobytes each, thousands under one key: a batch gives what was fetched for it, and does not fetch the
/// same rows again for each.
#[test]
fn look_ups_of_many_wide_rows_fetch_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let columns = (0..31).map(|n| ColumnDef {
        name: format!("c{n}"),
        ty: if n < 2 { ColumnType::Int4 } else { ColumnType::Text },
        not_null: false,
        default: None,
    });
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let index = NewIndex {
        name: "wide_c1".into(),
        columns: vec![1],
        unique: false,
        constraint: false,
    };
    let new = NewTable {
        name: "wide".into(),
        columns: columns.collect(),
        primary_key: Some(("wide_pkey".into(), vec![0])),
        indexes: vec![index],
    };
    let table = tx.create_table(new).unwrap();
    let text = "x".repeat(100);
    for id in 0..3_000 {
        let numbers = [Datum::Int4(id), Datum::Int4(7)];
        let values: Vec<_> = numbers
            .into_iter()
            .chain((2..31).map(|_| Datum::Text(text.clone())))
            .collect();
        let mut row = Vec::new();
        table.layout().encode(&values, &mut row).unwrap();
        tx.insert(&table, &row).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let (reader, prefixes): (_, Arc<[Vec<u8>]>) = (tx.reader(), Arc::new([k_key(&table, 7)]));
    let mut scan = reader.look_up(&table, Some(0), (prefixes, 0..1));
    let (mut batch, mut batches, mut rows) = (RowBatch::new(), 0, 0);
    while scan.next_batch(reader, &mut batch).unwrap() {
        batches += 1;
        rows += batch.len();
    }
    assert_eq!(rows, 3_000);
    assert!(batches < 20, "{batches} batches");
    drop(tx);
    engine.shutdown().unwrap();
}

/// By the index alone, where rows change and leaves split meanwhile: the snapshot's rows, each time.
#[test]
fn look_ups_beside_writers_give_the_snapshots_rows() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..6_000 {
        insert(&mut tx, &table, 2 * id, id % 500, "some text").unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::RepeatableRead);
    let ks: Arc<[Vec<u8>]> = (0..500).step_by(3).map(|k| k_key(&table, k)).collect();
    let ids: Arc<[Vec<u8>]> = (0..12_000).step_by(7).map(|id| key(&table, id)).collect();
    let expected: Vec<_> = [(Some(0), &ks), (None, &ids)]
        .map(|(index, prefixes)| scanned(tx.reader(), &table, index, prefixes))
        .into();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_until(&engine, &table, &done));
        for _ in 0..60 {
            let found = [(Some(0), &ks), (None, &ids)].map(|(index, prefixes)| {
                let scan = tx
                    .reader()
                    .look_up(&table, index, (prefixes.clone(), 0..prefixes.len()));
                gathered(tx.reader(), &table, scan)
            });
            assert!(found[0] == expected[0] && found[1] == expected[1]);
            let alone = tx.reader().look_up(&table, Some(0), (ks.clone(), 0..ks.len()));
            let (mut scan, mut batch, mut rows) = (alone.index_only(), RowBatch::new(), Vec::new());
            while scan.next_batch(tx.reader(), &mut batch).unwrap() {
                rows.extend((0..batch.len()).map(|i| batch.key(i).to_vec()));
            }
            assert!(rows.iter().eq(expected[0].iter().map(|(key, _)| key)));
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(tx);
    engine.shutdown().unwrap();
}

fn write_until(engine: &Arc<Engine>, table: &Arc<Table>, done: &AtomicBool) {
    let mut random = Random(9);
    while !done.load(Ordering::Relaxed) {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        for _ in 0..20 {
            let id = random.below(12_000) as i32;
            match random.below(3) {
                0 => drop(insert(&mut tx, table, id, random.below(500) as i32, "new").unwrap()),
                1 => drop(update(&mut tx, table, id, random.below(500) as i32, &"y".repeat(300)).unwrap()),
                _ => drop(delete(&mut tx, table, id).unwrap()),
            }
        }
        tx.commit().unwrap();
    }
}
