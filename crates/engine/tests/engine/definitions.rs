//! Definitions: transactional, kept through restarts, files following the catalog.

use crate::common::*;
use cenote_engine::*;
use std::path::Path;

fn space_files(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("data/spaces")).unwrap().count()
}

#[test]
fn definitions_survive_a_restart_and_take_their_files_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    let version = engine.catalog_version();
    let table = create(&engine, "kept", true);
    assert!(engine.catalog_version() > version);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..100 {
        insert(&mut tx, &table, id, id, "x").unwrap();
    }
    assert_eq!(
        tx.create_table(new_table("kept", false)).unwrap_err().sqlstate(),
        "42P07"
    );
    tx.commit().unwrap();

    tx.begin(Isolation::ReadCommitted);
    let gone = tx.create_table(new_table("gone", false)).unwrap();
    insert(&mut tx, &gone, 1, 1, "x").unwrap();
    let other = engine.begin(Isolation::ReadCommitted);
    assert!(other.table("gone").unwrap().is_none(), "no other session sees it");
    assert!(tx.table("gone").unwrap().is_some());
    assert_ne!(tx.catalog_version(), other.catalog_version());
    drop(other);
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert!(tx.table("gone").unwrap().is_none());
    let dropped = tx.create_table(new_table("dropped", false)).unwrap();
    insert(&mut tx, &dropped, 1, 1, "x").unwrap();
    tx.commit().unwrap();

    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    tx.begin(Isolation::ReadCommitted);
    tx.drop_table(&dropped).unwrap();
    tx.truncate(&table).unwrap();
    let empty = tx.table("kept").unwrap().unwrap();
    assert_eq!(all(&tx, &empty).len(), 0);
    insert(&mut tx, &empty, 5, 5, "new").unwrap();
    tx.commit().unwrap();
    assert_eq!(
        all(&old, &dropped).len(),
        1,
        "an older snapshot still reads the dropped table"
    );
    assert_eq!(all(&old, &table).len(), 100);
    old.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(
        insert(&mut tx, &table, 6, 6, "x").unwrap_err().sqlstate(),
        "55000",
        "stale handle"
    );
    tx.rollback().unwrap();
    drop((tx, old));
    engine.vacuum().unwrap();
    // Meta, catalog, counters, CTS slots, undo segments; table and index; nothing of what was dropped, replaced, taken
    // back.
    let undo = engine
        .check()
        .unwrap()
        .summary
        .iter()
        .find_map(|l| l.split(" undo segments").next()?.parse::<usize>().ok())
        .unwrap();
    assert_eq!(space_files(dir.path()), 4 + undo + 2);
    check(&engine);
    engine.shutdown().unwrap();
    drop(engine);

    let engine = open(dir.path(), MemoryKind::Cxl);
    assert_eq!(engine.recovery_report().mode, "clean");
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("kept").unwrap().unwrap();
    assert_eq!(all(&tx, &table), vec![(5, 5, "new".into())]);
    assert!(tx.table("dropped").unwrap().is_none());
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn indexes_are_built_from_rows_and_refuse_what_they_must() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let mut new = new_table("t", false);
    new.indexes.clear();
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).unwrap();
    for id in 0..2000 {
        insert(&mut tx, &table, id, id / 2, "some text").unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let index = |name: &str, unique| NewIndex {
        name: name.into(),
        columns: vec![1],
        unique,
        constraint: false,
    };
    let refused = tx.create_index(&table, index("u", true)).unwrap_err();
    assert_eq!(refused.sqlstate(), "23505");
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let table = tx.create_index(&table, index("i", false)).unwrap();
    assert_eq!(by_index(&tx, &table, 0, k_range(&table, 7)).len(), 2);
    update(&mut tx, &table, 14, 70_000, "x").unwrap();
    tx.commit().unwrap();
    check(&engine);
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(by_index(&tx, &table, 0, k_range(&table, 7)).len(), 1);
    let table = tx.drop_index(&table, 0).unwrap();
    assert!(table.indexes.is_empty());
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    assert_eq!(
        by_index(&tx, &table, 0, k_range(&table, 70_000)).len(),
        1,
        "the index is back"
    );
    tx.rollback().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn a_table_without_a_key_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let mut new = new_table("t", false);
    new.primary_key = None;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).unwrap();
    for id in (0..300).rev() {
        insert(&mut tx, &table, id, id, &"long".repeat(id as usize * 4)).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let keyed = tx.add_primary_key(&table, "t_pkey", vec![0]).unwrap();
    assert_eq!(get(&tx, &keyed, 299).unwrap().2.len(), 299 * 16);
    assert_eq!(
        tx.add_primary_key(&keyed, "again", vec![0]).unwrap_err().sqlstate(),
        "42P16"
    );
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(
        all(&tx, &keyed).iter().map(|r| r.0).collect::<Vec<_>>(),
        (0..300).collect::<Vec<_>>()
    );
    assert_eq!(by_index(&tx, &keyed, 0, k_range(&keyed, 5)).len(), 1);
    tx.rollback().unwrap();
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn large_values_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let big = |n: usize, c: &str| c.repeat(n);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..20 {
        insert(&mut tx, &table, id, id, &big(50_000 + id as usize, "ä")).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(get(&tx, &table, 3).unwrap().2.len(), 2 * 50_003);
    for id in 0..20 {
        match id % 4 {
            0 => {
                update(&mut tx, &table, id, id, "short").unwrap();
            }
            1 => {
                delete(&mut tx, &table, id).unwrap();
            }
            2 => {
                update(&mut tx, &table, id, id + 1, &big(30_000, "b")).unwrap();
            }
            _ => {}
        }
    }
    tx.rollback().unwrap();
    check(&engine);
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(get(&tx, &table, 0).unwrap().2.len(), 100_000);
    for id in 0..20 {
        update(&mut tx, &table, id, id, "short").unwrap();
    }
    tx.commit().unwrap();
    drop(tx);
    engine.vacuum().unwrap();
    check(&engine);
    let report = engine.check().unwrap();
    assert!(
        report
            .summary
            .iter()
            .any(|line| line.contains("table \"t\"") && line.contains(" 0 overflow")),
        "{:?}",
        report.summary
    );
    engine.shutdown().unwrap();
}

#[test]
fn sequences_never_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let s = tx.create_sequence(NewSequence::ascending("s", i64::MAX)).unwrap();
    let down = tx
        .create_sequence(NewSequence {
            increment: -5,
            min: -12,
            max: 10,
            start: 3,
            ..NewSequence::ascending("d", 10)
        })
        .unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    for expected in 1..=100 {
        assert_eq!(tx.nextval(s.id).unwrap(), expected);
    }
    assert_eq!([3, -2, -7, -12].map(|_| tx.nextval(down.id).unwrap()), [3, -2, -7, -12]);
    assert_eq!(tx.nextval(down.id).unwrap_err().sqlstate(), "2200H");
    tx.rollback().unwrap();
    drop(tx);
    engine.shutdown().unwrap();
    drop(engine);
    let engine = open(dir.path(), MemoryKind::Cxl);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    assert_eq!(tx.nextval(s.id).unwrap(), 101, "a clean restart skips none");
    tx.setval(s.id, 500, true).unwrap();
    assert_eq!(tx.nextval(s.id).unwrap(), 501);
    tx.commit().unwrap();
    drop(tx);
    engine.halt();
    drop(engine);
    let engine = open(dir.path(), MemoryKind::Cxl);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    assert!(tx.nextval(s.id).unwrap() > 501);
    tx.rollback().unwrap();
    drop(tx);
    engine.shutdown().unwrap();
}

/// An index that is made beside old versions has their entries. Purge passed by the records of those versions, which
/// had changed no key of the indexes that there were, and their entries stayed for good.
#[test]
fn an_index_made_beside_old_versions_keeps_none_of_their_entries() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..50 {
        insert(&mut tx, &table, id, id, "first").unwrap();
    }
    tx.commit().unwrap();
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    for text in ["second", "third", "third", "first", "last"] {
        tx.begin(Isolation::ReadCommitted);
        for id in 0..50 {
            update(&mut tx, &table, id, id, text).unwrap();
        }
        tx.commit().unwrap();
    }
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let new = NewIndex {
        name: "t_c".into(),
        columns: vec![2],
        unique: false,
        constraint: false,
    };
    let table = tx.create_index(&table, new).unwrap();
    tx.commit().unwrap();
    let seen = by_index(&old, &table, 1, KeyRange::all());
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|row| row.2 == "first"));
    drop(old);
    engine.vacuum().unwrap();
    let report = engine.check().unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.entries_of_others, 0, "{:#?}", report.summary);
    drop(tx);
    engine.shutdown().unwrap();
}

/// While an index was being dropped purge knew nothing of it any more. The drop was taken back, and the entries of all
/// that purge had passed meanwhile stayed for good.
#[test]
fn an_index_whose_drop_is_taken_back_has_no_entries_of_what_was_purged_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    let table = create(&engine, "t", false);
    let mut tx = engine.tx();
    tx.begin(Isolation::ReadCommitted);
    for id in 0..50 {
        insert(&mut tx, &table, id, id, "c").unwrap();
    }
    tx.commit().unwrap();
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    tx.begin(Isolation::ReadCommitted);
    for id in 0..50 {
        update(&mut tx, &table, id, 1000 + id, "c").unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    tx.drop_index(&table, 0).unwrap();
    drop(old);
    engine.vacuum().unwrap();
    tx.rollback().unwrap();
    engine.vacuum().unwrap();
    let report = engine.check().unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.entries_of_others, 0, "{:#?}", report.summary);
    drop(tx);
    engine.shutdown().unwrap();
}
