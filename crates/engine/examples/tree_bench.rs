//! Nanoseconds for each operation of a tree: `cargo run --release -p cenote-engine --example tree_bench [rows [name]]`.
//!
//! A second argument runs only the operations whose names contain it (`perf stat` then tells instructions).
//! Rows are like sysbench's: an integer key and 200 bytes. One thread, everything in the pool.

#[path = "../tests/tree_support/mod.rs"]
mod tree_support;

use cenote_base::random::Random;
use cenote_engine::tree::{Error, LeafBatch};
use cenote_engine::{Direction, KeyRange};
use std::ops::Bound;
use std::time::Instant;
use tree_support::Fixture;

fn key(row: u64) -> [u8; 5] {
    let [a, b, c, d] = (row as u32 ^ 0x8000_0000).to_be_bytes();
    [1, a, b, c, d]
}

fn timed(what: &str, count: u64, run: impl FnOnce()) {
    let wanted = std::env::args().nth(2).unwrap_or_default();
    if !what.contains(&wanted) && !what.contains("load") {
        return;
    }
    let start = Instant::now();
    run();
    println!(
        "{what:<34} {:>8.1} ns",
        start.elapsed().as_nanos() as f64 / count as f64
    );
}

fn main() {
    let rows: u64 = std::env::args()
        .nth(1)
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(250_000);
    let fixture = Fixture::new();
    let (pool, tree) = (fixture.pool(), fixture.tree());
    let mut rng = Random(1);
    let (mut out, mut batch) = (Vec::new(), LeafBatch::new());
    let value = [7u8; 200];

    timed("bulk load, a row", rows, || {
        let entries = (0..rows).map(|row| Ok::<_, Error>((key(row * 2), value)));
        tree.bulk_load(pool, entries).expect("keys rise");
    });
    let lookups = rows * 4;
    timed("get, random", lookups, || {
        (0..lookups).for_each(|_| assert!(tree.get(pool, &key(rng.below(rows) * 2), &mut out).expect("readable")));
    });
    timed("get, one key", lookups, || {
        (0..lookups).for_each(|_| assert!(tree.get(pool, &key(rows), &mut out).expect("readable")));
    });
    timed("scan, a row", rows, || {
        let mut scan = tree.scan(KeyRange::all(), Direction::Forward);
        let mut seen = 0;
        while scan.next_batch(pool, &mut batch).expect("readable") {
            seen += batch.len() as u64;
        }
        assert_eq!(seen, rows);
    });
    let ranges = rows / 12;
    timed("scan of 100 rows", ranges, || {
        for _ in 0..ranges {
            let from = rng.below(rows - 100) * 2;
            let range = KeyRange {
                lower: Bound::Included(key(from).to_vec()),
                upper: Bound::Excluded(key(from + 200).to_vec()),
            };
            let mut scan = tree.scan(range, Direction::Forward);
            while scan.next_batch(pool, &mut batch).expect("readable") {}
        }
    });
    let writes = rows / 2;
    timed("update in place, random", writes, || {
        for i in 0..writes {
            let key = key(rng.below(rows) * 2);
            let mut m = pool.mtr();
            let pos = tree.seek_write(&mut m, &key, 0).expect("readable");
            tree.write_value_bytes_at(&mut m, &pos, 20, &i.to_le_bytes());
            m.commit();
        }
    });
    timed("insert, random", writes, || {
        for _ in 0..writes {
            let key = key(rng.below(rows) * 2 + 1);
            let mut m = pool.mtr();
            let pos = tree.seek_write(&mut m, &key, 5 + value.len()).expect("room");
            if !pos.found {
                tree.insert_at(&mut m, &pos, &key, &value).expect("room");
            }
            m.commit();
        }
    });
    timed("insert, ascending", writes, || {
        for row in 0..writes {
            let key = key(rows * 2 + row);
            let mut m = pool.mtr();
            let pos = tree.seek_write(&mut m, &key, 5 + value.len()).expect("room");
            tree.insert_at(&mut m, &pos, &key, &value).expect("room");
            m.commit();
        }
    });
    let report = tree.check(pool).expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    println!(
        "{} entries in {} leaves, {} inner pages",
        report.entries, report.leaves, report.inner
    );
}
