//! Rows that are inserted together, where a secondary index is unique: as they would be one by one.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of an id its key, if it has one.
type Rows = BTreeMap<i32, Option<i32>>;

fn encoded(table: &Table, id: i32, k: Option<i32>, text: &str) -> Vec<u8> {
    let (mut out, k) = (Vec::new(), k.map_or(Datum::Null, Datum::Int4));
    let values = [Datum::Int4(id), k, Datum::Text(text.into())];
    table.layout().encode(&values, &mut out).expect("a row");
    out
}

/// Which of the new rows is refused, one by one: its number, and the index (None: the primary key).
fn refused_by(rows: &Rows, new: &[(i32, Option<i32>)]) -> Option<Refused> {
    let mut all = rows.clone();
    for (row, (id, k)) in new.iter().enumerate() {
        if all.contains_key(id) {
            return Some(Refused { row, index: None });
        }
        if k.is_some() && all.values().any(|other| other == k) {
            return Some(Refused { row, index: Some(1) });
        }
        all.insert(*id, *k);
    }
    None
}

fn table(engine: &Arc<Engine>) -> Arc<Table> {
    let mut new = new_table("t", true);
    let other = NewIndex {
        name: "t_k_id".into(),
        columns: vec![1, 0],
        unique: false,
        constraint: false,
    };
    new.indexes.insert(0, other);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    tx.commit().expect("committed");
    table
}

fn insert_together(tx: &mut Tx, table: &Table, new: &[(i32, Option<i32>)], text: &str) -> Result<Option<Refused>> {
    let mut rows = NewRows::default();
    new.iter().for_each(|(id, k)| rows.push(&encoded(table, *id, *k, text)));
    tx.insert_rows(table, &rows, &mut 0)
}

fn found(tx: &Tx, table: &Arc<Table>) -> Rows {
    let rows = tx.collect(table, KeyRange::all()).expect("readable");
    let decoded = rows.iter().map(|row| table.layout().decode(row).expect("a row"));
    let pair = decoded.map(|row| match (&row[0], &row[1]) {
        (Datum::Int4(id), Datum::Int4(k)) => (*id, Some(*k)),
        (Datum::Int4(id), Datum::Null) => (*id, None),
        other => panic!("no row: {other:?}"),
    });
    pair.collect()
}

fn draw(random: &mut Random, range: u64) -> Vec<(i32, Option<i32>)> {
    let (count, sorted) = (1 + random.below(300), random.below(2) == 0);
    let mut new: Vec<_> = (0..count)
        .map(|_| {
            let k = (random.below(8) > 0).then(|| random.below(range) as i32);
            (random.below(range) as i32, k)
        })
        .collect();
    if sorted {
        new.sort_unstable();
    }
    new
}

/// Calls of all sizes over few and over many keys; what a call left is taken back to a savepoint, or with all.
#[test]
fn rows_together_are_refused_as_one_by_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path(), MemoryKind::Dram);
    let (table, mut committed, mut random) = (table(&engine), Rows::new(), Random(7));
    let (mut tx, mut done) = (engine.tx(), 0);
    for turn in 0..150 {
        tx.begin(Isolation::ReadCommitted);
        let mut rows = committed.clone();
        for _ in 0..3 {
            tx.begin_statement();
            let range = random.pick(&[40, 3_000, 1 << 30]);
            let new = draw(&mut random, range);
            let point = tx.savepoint();
            let text = match turn % 10 {
                0 => "long ".repeat(1_600),
                _ => "short".to_string(),
            };
            let refused = insert_together(&mut tx, &table, &new, &text).expect("no error");
            assert_eq!(refused, refused_by(&rows, &new), "turn {turn}: {new:?}");
            match refused {
                Some(_) => tx.rollback_to(&point).expect("taken back"),
                None => rows.extend(new),
            }
            done += usize::from(refused.is_none());
            tx.begin_statement();
            for id in rows
                .keys()
                .copied()
                .filter(|_| random.below(8) == 0)
                .collect::<Vec<_>>()
            {
                assert_eq!(delete(&mut tx, &table, id).expect("deleted"), Outcome::Done);
                rows.remove(&id);
            }
        }
        tx.begin_statement();
        assert_eq!(found(&tx, &table), rows, "turn {turn}");
        match random.below(3) {
            0 => tx.rollback().expect("taken back"),
            _ => {
                tx.commit().expect("committed");
                committed = rows;
            }
        }
    }
    assert!((50..400).contains(&done), "{done} calls were not refused");
    engine.roll_back_losers().expect("taken back");
    engine.vacuum().expect("purged");
    check(&engine);
    drop(tx);
    engine.shutdown().expect("shut down");
}

/// A key that a transaction in progress has inserted, or whose row it has deleted, is waited for, whichever way that
/// one ends; meanwhile nobody waits for the keys of rows that stand before it.
#[test]
fn a_key_of_a_transaction_in_progress_is_waited_for() {
    for (inserts, commits) in [(true, true), (true, false), (false, true), (false, false)] {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = open(dir.path(), MemoryKind::Dram);
        let table = table(&engine);
        let mut other = engine.begin(Isolation::ReadCommitted);
        insert_together(&mut other, &table, &[(1_000, Some(777))], "").expect("inserted");
        if !inserts {
            other.commit().expect("committed");
            other.begin(Isolation::ReadCommitted);
            other.begin_statement();
            delete(&mut other, &table, 1_000).expect("deleted");
        }
        let waits = {
            let (engine, table) = (engine.clone(), table.clone());
            std::thread::spawn(move || {
                let new: Vec<_> = (0..200).map(|n| (n, Some(if n == 150 { 777 } else { n }))).collect();
                let mut tx = engine.begin(Isolation::ReadCommitted);
                let refused = insert_together(&mut tx, &table, &new, "").expect("no error");
                match refused {
                    None => tx.commit().expect("committed"),
                    Some(_) => tx.rollback().expect("taken back"),
                }
                refused
            })
        };
        while engine.waiting_transactions() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut third = engine.begin(Isolation::ReadCommitted);
        third.set_lock_timeout(10_000);
        insert_together(&mut third, &table, &[(5_000, Some(5_000))], "").expect("not held up");
        third.commit().expect("committed");
        match commits {
            true => other.commit().expect("committed"),
            false => other.rollback().expect("taken back"),
        }
        let refused = waits.join().expect("no panic");
        let expected = (inserts == commits).then_some(Refused {
            row: 150,
            index: Some(1),
        });
        assert_eq!(refused, expected, "inserts {inserts}, commits {commits}");
        engine.vacuum().expect("purged");
        check(&engine);
        drop((other, third));
        engine.shutdown().expect("shut down");
    }
}
