//! Instructions of the hot paths, on request, under `valgrind --tool=callgrind` (as `measure_instructions` of the buffer's
//! tests): with `CENOTE_HITS` of n and of 2n; the difference is what n steps execute.

use crate::common::*;
use cenote_engine::*;

const ROWS: i32 = 1_000;

fn steps() -> i32 {
    let asked = std::env::var("CENOTE_HITS").ok().and_then(|s| s.parse().ok());
    asked.unwrap_or(10_000)
}

fn filled(dir: &std::path::Path) -> (std::sync::Arc<Engine>, std::sync::Arc<Table>) {
    let engine = Engine::open(EngineOptions {
        background: false,
        ..options(dir, MemoryKind::Cxl)
    })
    .expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..ROWS {
        insert(&mut tx, &table, id, id, "some text").expect("inserted");
    }
    tx.commit().expect("committed");
    (engine, table)
}

/// Point selects, each in a statement of its own.
#[test]
#[ignore = "for callgrind"]
fn measure_instructions_of_selects() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let (mut row, mut sum) = (Vec::new(), 0);
    for i in 0..steps() {
        tx.begin_statement();
        assert!(tx.get(&table, &key(&table, i % ROWS), &mut row).expect("readable"));
        sum += row.len();
        tx.end_statement();
    }
    println!("{sum}");
}

/// Updates of one row each, a hundred to a transaction; no index key changes.
#[test]
#[ignore = "for callgrind"]
fn measure_instructions_of_updates() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path());
    let mut tx = engine.tx();
    for i in 0..steps() {
        if i % 100 == 0 {
            tx.begin(Isolation::ReadCommitted);
        }
        tx.begin_statement();
        update(&mut tx, &table, i % ROWS, i % ROWS, "other text").expect("free");
        tx.end_statement();
        if i % 100 == 99 {
            tx.commit().expect("committed");
        }
    }
}

/// Each update of a row whose length stayed read all slots of a leaf that was three quarters full: half of its cost.
#[test]
fn an_update_in_place_reads_little_of_its_page() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let mut reads = Vec::new();
    for id in 0..ROWS {
        let (done, seen) = cenote_fabric::observe::seen_during(|| update(&mut tx, &table, id, id, "some texT"));
        done.expect("free");
        reads.push(seen.expect("counted").traffic.reads);
    }
    reads.sort_unstable();
    // A leaf has some 200 slots; a descent with the row, its undo and its log takes fewer reads.
    let most = reads[reads.len() * 9 / 10];
    assert!(most < 200, "{most} reads an update");
}

/// A million rows of some 130 bytes: how long a count of them takes, and an analysis.
#[test]
#[ignore = "a measurement"]
fn measure_an_analysis_and_a_count() {
    let dir = tempfile::tempdir().expect("dir");
    let engine = Engine::open(EngineOptions {
        memory_size: 1 << 30,
        ..options(dir.path(), MemoryKind::Dram)
    })
    .expect("the database opens");
    let table = create(&engine, "t", false);
    let text = "some text ".repeat(10);
    let mut tx = engine.tx();
    for chunk in 0..100 {
        tx.begin(Isolation::ReadCommitted);
        for id in chunk * 10_000..(chunk + 1) * 10_000 {
            insert(&mut tx, &table, id, id % 1000, &text).expect("inserted");
        }
        tx.commit().expect("committed");
    }
    for _ in 0..3 {
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        let (mut scan, mut batch, mut rows) =
            (tx.scan(&table, KeyRange::all(), Direction::Forward), RowBatch::new(), 0);
        let begun = std::time::Instant::now();
        while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
            rows += batch.len();
        }
        let counted = begun.elapsed();
        tx.end_statement();
        tx.commit().expect("ended");
        let begun = std::time::Instant::now();
        let analyzed = engine.analyze(&table, &Analysis::default()).expect("analyzed");
        println!(
            "count of {rows}: {counted:?}; analysis: {:?} {analyzed:?}",
            begun.elapsed()
        );
    }
}
