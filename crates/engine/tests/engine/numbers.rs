//! Numbers that come to their ends: undo segments whose pages go round, numbers of spaces and objects that are used
//! again.
//!
//! Ids of tables were refused at the end of their 32 bits. Undo positions ended with the file system's longest file,
//! and segments that had come there were given out again first. Numbers of spaces ran into those of undo segments.

use crate::common::*;
use cenote_engine::*;
use std::path::Path;
use std::sync::Arc;

fn begin(dir: &Path, origins: Origins) -> Arc<Engine> {
    let begun = EngineOptions {
        origins,
        ..options(dir, MemoryKind::Cxl)
    };
    Engine::open(begun).expect("the database opens")
}

/// As a crash leaves it, and opened again: instantly, or from the log.
fn crashed(dir: &Path, engine: Arc<Engine>, lose_region: bool) -> Arc<Engine> {
    engine.halt();
    assert_eq!(Arc::strong_count(&engine), 1, "a reference to the engine is left");
    drop(engine);
    if lose_region {
        std::fs::remove_file(dir.join("region")).unwrap();
    }
    open(dir, MemoryKind::Cxl)
}

fn segments(engine: &Arc<Engine>) -> usize {
    let summary = engine.check().unwrap().summary;
    let found = summary
        .iter()
        .find_map(|l| l.split(" undo segments").next()?.parse().ok());
    found.expect("a line about undo segments")
}

/// Rows of table `t`: one change of each takes sixteen pages of undo.
const ROWS: i32 = 120;

/// Changes all rows `times` times, each change a transaction with a record of two kilobytes for each row.
fn change_all(engine: &Arc<Engine>, from: i32, times: i32) {
    let mut tx = engine.tx();
    for k in from..from + times {
        tx.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        for id in 0..ROWS {
            assert_eq!(
                update(&mut tx, &table, id, k, &"u".repeat(1900)).unwrap(),
                Outcome::Done
            );
        }
        tx.commit().unwrap();
        engine.vacuum().unwrap();
    }
}

fn ks(tx: &Tx) -> Vec<i32> {
    let table = tx.table("t").unwrap().unwrap();
    all(tx, &table).into_iter().map(|(_, k, _)| k).collect()
}

#[test]
fn undo_pages_go_round_and_used_up_segments_are_left() {
    let dir = tempfile::tempdir().unwrap();
    // A lap is some thirty transactions. Two laps are left.
    let mut engine = begin(
        dir.path(),
        Origins {
            undo_pages: 512,
            undo_lap: 252,
            ..Origins::default()
        },
    );
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..ROWS {
        insert(&mut tx, &table, id, 0, "new").unwrap();
    }
    tx.commit().unwrap();
    drop((tx, table));
    let mut k = 0;
    for round in 0..5 {
        change_all(&engine, k + 1, 10);
        let mut old = engine.begin(Isolation::RepeatableRead);
        assert_eq!(ks(&old), [k + 10; ROWS as usize]);
        change_all(&engine, k + 11, 10);
        assert_eq!(ks(&old), [k + 10; ROWS as usize], "round {round}: by way of undo");
        old.rollback().unwrap();
        k += 20;
        // One that does not end, with records on both sides of what has ended.
        let mut lost = engine.begin(Isolation::ReadCommitted);
        let table = lost.table("t").unwrap().unwrap();
        for id in 0..ROWS {
            update(&mut lost, &table, id, -1, &"l".repeat(1900)).unwrap();
        }
        engine.halt();
        drop((lost, table, old));
        engine = crashed(dir.path(), engine, round % 2 == 1);
        assert_eq!(
            ks(&engine.begin(Isolation::ReadCommitted)),
            [k; ROWS as usize],
            "round {round}"
        );
        for _ in 0..500 {
            let report = engine.recovery_report();
            if report.transactions_rolled_back == report.losers {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        check(&engine);
    }
    assert!(segments(&engine) > 1, "the first segment has come to its last lap");
    for space in std::fs::read_dir(dir.path().join("data/spaces")).unwrap() {
        let length = space.unwrap().metadata().unwrap().len();
        assert!(length <= 513 * 16384 + (1 << 20), "a file of {length} bytes");
    }
    engine.shutdown().unwrap();
}

#[test]
fn a_transaction_whose_undo_does_not_fit_is_refused_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = begin(
        dir.path(),
        Origins {
            undo_pages: 512,
            ..Origins::default()
        },
    );
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..200 {
        insert(&mut tx, &table, id, 0, "kept").unwrap();
    }
    tx.commit().unwrap();
    for _ in 0..2 {
        tx.begin(Isolation::ReadCommitted);
        let refused = (0..5000).find_map(|k| update(&mut tx, &table, k % 200, k, &"u".repeat(1900)).err());
        let refused = refused.expect("the circle closes");
        assert_eq!(refused.sqlstate(), "54000", "{refused}");
        tx.rollback().unwrap();
        assert_eq!(
            get(&engine.begin(Isolation::ReadCommitted), &table, 1),
            Some((1, 0, "kept".into()))
        );
        engine.vacuum().unwrap();
    }
    change_one(&engine, &mut tx, &table);
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

fn change_one(engine: &Arc<Engine>, tx: &mut Tx, table: &Arc<Table>) {
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(update(tx, table, 1, 7, "changed").unwrap(), Outcome::Done);
    tx.commit().unwrap();
    engine.vacuum().unwrap();
}

/// Makes table `name` with one row, however long numbers have to be waited for.
fn make(engine: &Arc<Engine>, name: &str, k: i32) {
    for _ in 0..100 {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        match tx.create_table(new_table(name, false)) {
            Ok(table) => {
                insert(&mut tx, &table, 1, k, name).unwrap();
                return tx.commit().unwrap();
            }
            Err(error) => assert_eq!(error.sqlstate(), "53400", "{error}"),
        }
        tx.rollback().unwrap();
        engine.vacuum().unwrap();
    }
    panic!("no number of a space becomes free");
}

fn unmake(engine: &Arc<Engine>, name: &str) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table(name).unwrap().unwrap();
    tx.drop_table(&table).unwrap();
    tx.commit().unwrap();
}

#[test]
fn numbers_of_spaces_come_again_when_nothing_names_them() {
    for (space, space_end, tables) in [(1000, 1064, 90), (0xF000_0000 - 9, 0xF000_0000, 20)] {
        let dir = tempfile::tempdir().unwrap();
        let origins = Origins {
            space,
            space_end,
            ..Origins::default()
        };
        let mut engine = begin(dir.path(), origins);
        make(&engine, "kept", 77);
        let mut live = std::collections::VecDeque::new();
        for k in 0..tables {
            make(&engine, &format!("t{k}"), k);
            live.push_back(k);
            if live.len() > 6 {
                unmake(&engine, &format!("t{}", live.pop_front().unwrap()));
            }
            if k % 15 == 14 {
                engine = crashed(dir.path(), engine, k % 2 == 0);
            }
            let tx = engine.begin(Isolation::ReadCommitted);
            for k in &live {
                let table = tx.table(&format!("t{k}")).unwrap().unwrap();
                assert_eq!(all(&tx, &table), [(1, *k, format!("t{k}"))]);
                assert_eq!(by_index(&tx, &table, 0, KeyRange::all()).len(), 1);
            }
            let kept = tx.table("kept").unwrap().unwrap();
            assert_eq!(get(&tx, &kept, 1), Some((1, 77, "kept".into())));
        }
        check(&engine);
        engine.shutdown().unwrap();
    }
}

/// Ids of a table, its primary key and its indexes.
fn ids(table: &Table) -> Vec<u32> {
    let primary = table.primary_key.iter().map(|p| p.id);
    let indexes = table.indexes.iter().map(|i| i.id);
    std::iter::once(table.id).chain(primary).chain(indexes).collect()
}

#[test]
fn ids_of_objects_come_again_when_nothing_names_them() {
    for (object, object_end, tables) in [(16384, 16384 + 64, 90), (u32::MAX - 9, u32::MAX, 20)] {
        let dir = tempfile::tempdir().unwrap();
        let origins = Origins {
            object,
            object_end,
            ..Origins::default()
        };
        let mut engine = begin(dir.path(), origins);
        make(&engine, "kept", 77);
        let mut live = std::collections::VecDeque::new();
        for k in 0..tables {
            make(&engine, &format!("t{k}"), k);
            live.push_back(k);
            if live.len() > 6 {
                unmake(&engine, &format!("t{}", live.pop_front().unwrap()));
            }
            if k % 15 == 14 {
                engine = crashed(dir.path(), engine, k % 2 == 0);
            }
            let tx = engine.begin(Isolation::ReadCommitted);
            let all_ids: Vec<u32> = tx.tables().unwrap().iter().flat_map(|t| ids(t)).collect();
            let different: std::collections::BTreeSet<u32> = all_ids.iter().copied().collect();
            assert_eq!(different.len(), all_ids.len(), "an id stands twice: {all_ids:?}");
            assert!(
                different.iter().all(|id| (16384..object_end).contains(id)),
                "{different:?}"
            );
            for k in &live {
                let table = tx.table(&format!("t{k}")).unwrap().unwrap();
                assert_eq!(all(&tx, &table), [(1, *k, format!("t{k}"))]);
            }
            let kept = tx.table("kept").unwrap().unwrap();
            assert_eq!(get(&tx, &kept, 1), Some((1, 77, "kept".into())));
        }
        check(&engine);
        engine.shutdown().unwrap();
    }
}

#[test]
fn a_handle_of_a_former_table_is_not_taken_for_one_that_has_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let origins = Origins {
        object: 16384,
        object_end: 16384 + 32,
        ..Origins::default()
    };
    let engine = begin(dir.path(), origins);
    make(&engine, "first", 1);
    let handle = engine.begin(Isolation::ReadCommitted).table("first").unwrap().unwrap();
    unmake(&engine, "first");
    let mut heir = None;
    for k in 0..40 {
        let name = format!("t{k}");
        make(&engine, &name, k);
        let made = engine.begin(Isolation::ReadCommitted).table(&name).unwrap().unwrap();
        if made.id == handle.id {
            heir = Some(made);
            break;
        }
        unmake(&engine, &name);
    }
    let heir = heir.expect("the id comes again");
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let refused = insert(&mut tx, &handle, 2, 2, "lost").expect_err("the table is gone");
    assert!(matches!(refused, Error::StaleTable(_)), "{refused:?}");
    tx.rollback().unwrap();
    assert_eq!(all(&engine.begin(Isolation::ReadCommitted), &heir).len(), 1);
    engine.shutdown().unwrap();
}
