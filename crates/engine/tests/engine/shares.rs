//! Where keys lie in a tree, as shares of its entries.

use crate::common::*;
use cenote_engine::*;

/// Ranges cut out of a tree hold its rows once, about as many each; a range's share is about what it holds.
#[test]
fn ranges_are_cut_evenly_and_hold_every_row_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    for (name, rows) in [("none", 0), ("one", 1), ("few", 40), ("many", 20_000)] {
        let table = create(&engine, name, false);
        let mut tx = engine.begin(Isolation::ReadCommitted);
        for id in 0..rows {
            insert(&mut tx, &table, id, id / 10, "some text").unwrap();
        }
        tx.commit().unwrap();
        tx.begin(Isolation::ReadCommitted);
        for parts in [1, 2, 7] {
            let ranges = tx.reader().cut(&table, None, KeyRange::all(), parts).unwrap();
            assert!(
                (1..=parts).contains(&ranges.len()),
                "{} ranges of {parts}",
                ranges.len()
            );
            let counts: Vec<usize> = ranges
                .iter()
                .map(|r| tx.collect(&table, r.clone()).unwrap().len())
                .collect();
            assert_eq!(counts.iter().sum::<usize>(), rows as usize, "{name} in {parts} parts");
            let even = rows as usize / parts;
            assert!(
                rows < 1000 || counts.iter().all(|n| n.abs_diff(even) < even / 3),
                "{counts:?}"
            );
        }
        if rows < 1000 {
            continue;
        }
        for (index, range, expected) in [
            (Some(0), k_range(&table, 500), 10.0),
            (None, KeyRange::prefix(&key(&table, 77)), 1.0),
            (
                None,
                KeyRange::between(
                    std::ops::Bound::Excluded(&key(&table, 14_999)),
                    std::ops::Bound::Unbounded,
                ),
                5000.0,
            ),
            (None, KeyRange::all(), 20_000.0),
        ] {
            let found = tx.reader().share(&table, index, &range).unwrap() * f64::from(rows);
            assert!(
                (expected / 2.0..=expected * 2.0).contains(&found),
                "{found} rows, not {expected}"
            );
        }
        // A part of a part.
        let upper = KeyRange::between(
            std::ops::Bound::Included(&key(&table, 10_000)),
            std::ops::Bound::Unbounded,
        );
        let ranges = tx.reader().cut(&table, None, upper, 2).unwrap();
        let counts: Vec<usize> = ranges
            .iter()
            .map(|r| tx.collect(&table, r.clone()).unwrap().len())
            .collect();
        assert!(
            counts.len() == 2 && counts.iter().sum::<usize>() == 10_000,
            "{counts:?}"
        );
        assert!(counts[0].abs_diff(5000) < 1500, "{counts:?}");
    }
    engine.shutdown().unwrap();
}

/// A scan that goes on with another range gives that range's rows, to the end and again.
#[test]
fn a_scan_is_restarted_on_other_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..3000 {
        insert(&mut tx, &table, id, id % 7, "text").unwrap();
    }
    delete(&mut tx, &table, 2000).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let reader = tx.reader();
    let mut scan = reader.scan(&table, KeyRange::all(), Direction::Forward);
    let mut batch = RowBatch::new();
    for id in [2999, 0, 5000, 2000, 1234, 0] {
        scan.restart(KeyRange::prefix(&key(&table, id)));
        let mut found = Vec::new();
        while scan.next_batch(reader, &mut batch).unwrap() {
            found.extend((0..batch.len()).map(|i| (batch.key(i).to_vec(), values(&table, batch.row(i)).0)));
        }
        let there = (id < 3000 && id != 2000).then(|| (key(&table, id), id));
        assert_eq!(found, there.into_iter().collect::<Vec<_>>());
    }
    engine.shutdown().unwrap();
}
