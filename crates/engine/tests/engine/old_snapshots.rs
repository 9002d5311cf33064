//! What old snapshots cost.

use crate::common::*;
use cenote_engine::*;

const UPDATES: i32 = 600;

/// An index has an entry for each version of a row: each leads to the row, whose versions are walked once all the same.
#[test]
fn a_scan_by_an_index_walks_a_rows_versions_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), MemoryKind::Dram);
    // As at a reader: versions are in undo alone.
    options.tuning.version_bytes = 0;
    let engine = Engine::open(options).unwrap();
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..3 {
        insert(&mut tx, &table, id, id, "first").unwrap();
    }
    tx.commit().unwrap();
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    let before = by_index(&old, &table, 0, KeyRange::all());
    for n in 1..=UPDATES {
        tx.begin(Isolation::ReadCommitted);
        match n {
            UPDATES => delete(&mut tx, &table, 2).unwrap(),
            _ => update(&mut tx, &table, n % 3, 10 * n, "later").unwrap(),
        };
        tx.commit().unwrap();
    }
    let hits = || engine.pool_stats().counts.hits;
    let hits_before = hits();
    assert_eq!(by_index(&old, &table, 0, KeyRange::all()), before);
    let taken = hits() - hits_before;
    // 200 versions of each row, for one entry of each; for all 600 they would be 60,000 pages at least.
    assert!(taken < 10 * UPDATES as u64, "{taken} pages were looked at");
    drop((old, tx));
    engine.shutdown().unwrap();
}
