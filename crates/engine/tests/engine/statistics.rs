//! Statistics of tables: whether they are right, whether they last as long as their table and no longer, and that
//! taking them disturbs nobody.

use crate::common::*;
use cenote_engine::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rows 0 to `rows`: k is the id modulo 10, the text is equal in half of them and missing in none.
fn fill(engine: &Arc<Engine>, table: &Table, rows: std::ops::Range<i32>) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in rows {
        let text = if id % 2 == 0 {
            "even".to_string()
        } else {
            format!("text {id}")
        };
        insert(&mut tx, table, id, id % 10, &text).expect("inserted");
    }
    tx.commit().expect("committed");
}

fn filled(dir: &Path, rows: i32) -> (Arc<Engine>, Arc<Table>) {
    let engine = open(dir, MemoryKind::Dram);
    let table = create(&engine, "t", false);
    fill(&engine, &table, 0..rows);
    (engine, table)
}

fn analyze(engine: &Arc<Engine>, table: &Arc<Table>) -> Analyzed {
    engine.analyze(table, &Analysis::default()).expect("analyzed")
}

fn known(engine: &Arc<Engine>, table: &Table) -> Arc<Statistics> {
    engine.statistics(table).expect("the table is analyzed")
}

fn end(engine: Arc<Engine>) {
    check(&engine);
    engine.shutdown().expect("shut down");
}

#[test]
fn a_small_table_is_read_whole_and_its_statistics_are_exact() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path(), 5_000);
    assert_eq!(engine.statistics(&table), None);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..1000 {
        delete(&mut tx, &table, id).expect("deleted");
    }
    tx.commit().expect("committed");
    let analyzed = analyze(&engine, &table);
    assert_eq!((analyzed.rows, analyzed.sampled.0), (4000.0, 4000));
    assert_eq!(analyzed.leaves.0, analyzed.leaves.1);
    let found = known(&engine, &table);
    let (id, k, text) = (&found.columns[0], &found.columns[1], &found.columns[2]);
    let (id, k, text) = (id.as_ref().unwrap(), k.as_ref().unwrap(), text.as_ref().unwrap());
    assert_eq!((id.distinct, id.correlation, id.bounds.len()), (-1.0, Some(1.0), 101));
    assert_eq!(
        (id.bounds[0].clone(), id.bounds[100].clone()),
        (Datum::Int4(1000), Datum::Int4(4999))
    );
    assert_eq!((k.distinct, k.common.len()), (10.0, 10));
    assert!(k.common.iter().all(|(_, share)| *share == 0.1));
    assert_eq!(text.common, [(Datum::Text("even".into()), 0.5)]);
    assert_eq!(text.distinct, -2001.0 / 4000.0);
    let key = |id: u32, columns| found.distinct_keys(id, columns, 4000.0);
    let primary = table.primary_key.as_ref().unwrap().id;
    assert_eq!(
        (key(primary, 1), key(table.indexes[0].id, 1), key(primary, 2)),
        (Some(4000.0), Some(10.0), None)
    );
    end(engine);
}

/// Rows of different lengths in leaves of different fill, more of them than the sample has rows.
#[test]
fn a_sample_of_a_large_table_estimates_it() {
    let dir = tempfile::tempdir().expect("dir");
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut random = Random(11);
    let rows = 60_000;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..rows {
        let text = "x".repeat(if id < rows / 2 { 10 } else { 100 } + random.index(20));
        insert(
            &mut tx,
            &table,
            id,
            (random.below(200) * random.below(200) / 200) as i32,
            &text,
        )
        .expect("inserted");
    }
    for id in (0..rows).filter(|id| id % 3 == 0 && *id > rows / 2) {
        delete(&mut tx, &table, id).expect("deleted");
    }
    tx.commit().expect("committed");
    let live = rows - (0..rows).filter(|id| id % 3 == 0 && *id > rows / 2).count() as i32;
    let what = Analysis {
        target: 10,
        columns: None,
    };
    for _ in 0..3 {
        let analyzed = engine.analyze(&table, &what).expect("analyzed");
        assert!(analyzed.sampled.0 + analyzed.sampled.1 == 3_000, "{analyzed:?}");
        let error = (analyzed.rows - f64::from(live)).abs() / f64::from(live);
        assert!(error < 0.1, "{analyzed:?} of {live} rows");
        let found = known(&engine, &table);
        let id = found.column(0).expect("analyzed");
        assert_eq!(id.distinct, -1.0);
        assert_eq!(id.bounds.len(), 11);
        let texts = found.column(2).expect("analyzed");
        // 55.5 in all rows; a sample's mean strays by 0.9.
        assert!((51.0..60.0).contains(&texts.width), "{}", texts.width);
    }
    end(engine);
}

#[test]
fn leaves_are_chosen_where_there_are_more_than_rows_are_wanted() {
    let dir = tempfile::tempdir().expect("dir");
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let text = "y".repeat(1500);
    for id in 0..8_000 {
        insert(&mut tx, &table, id, id / 100, &text).expect("inserted");
    }
    tx.commit().expect("committed");
    let what = Analysis {
        target: 1,
        columns: None,
    };
    let analyzed = engine.analyze(&table, &what).expect("analyzed");
    assert_eq!(analyzed.leaves.1, 300, "{analyzed:?}");
    assert!(analyzed.leaves.0 > 700, "{analyzed:?}");
    assert_eq!(analyzed.sampled, (300, 0));
    assert!((analyzed.rows - 8_000.0).abs() < 800.0, "{analyzed:?}");
    let found = known(&engine, &table);
    // Sampled by some two rows a leaf: clustered values are found all the same.
    let distinct = found.distinct_keys(table.indexes[0].id, 1, 8_000.0).expect("known");
    assert!((60.0..100.0).contains(&distinct), "{distinct}");
    end(engine);
}

#[test]
fn long_values_are_counted_by_their_lengths() {
    let dir = tempfile::tempdir().expect("dir");
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..50 {
        insert(&mut tx, &table, id, id, &"z".repeat(100_000)).expect("inserted");
    }
    tx.commit().expect("committed");
    analyze(&engine, &table);
    let found = known(&engine, &table);
    let text = found.column(2).expect("analyzed");
    assert_eq!((text.width, text.distinct, text.bounds.len()), (100_000.0, -1.0, 0));
    end(engine);
}

#[test]
fn an_empty_table_and_one_without_a_primary_key_are_analyzed() {
    let dir = tempfile::tempdir().expect("dir");
    let engine = open(dir.path(), MemoryKind::Dram);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx
        .create_table(NewTable {
            primary_key: None,
            ..new_table("t", false)
        })
        .expect("made");
    tx.commit().expect("committed");
    assert_eq!(analyze(&engine, &table).rows, 0.0);
    let empty = known(&engine, &table);
    assert_eq!(empty.distinct_keys(table.indexes[0].id, 1, 10.0), None);
    fill(&engine, &table, 0..100);
    assert_eq!(analyze(&engine, &table).rows, 100.0);
    let found = known(&engine, &table);
    assert_ne!(found.serial, empty.serial);
    assert_eq!(found.distinct_keys(table.indexes[0].id, 1, 100.0), Some(10.0));
    end(engine);
}

#[test]
fn statistics_last_through_restarts_and_crashes() {
    for (memory, lose_region) in [
        (MemoryKind::Cxl, false),
        (MemoryKind::Cxl, true),
        (MemoryKind::Dram, false),
    ] {
        let dir = tempfile::tempdir().expect("dir");
        let engine = open(dir.path(), memory);
        let table = create(&engine, "t", false);
        fill(&engine, &table, 0..2_000);
        analyze(&engine, &table);
        let before = known(&engine, &table);
        engine.shutdown().expect("shut down");
        drop(engine);
        let engine = open(dir.path(), memory);
        let table = engine.tx().table("t").expect("readable").expect("there");
        assert_eq!(known(&engine, &table), before);

        // A crash in the middle of a transaction that has written others.
        fill(&engine, &table, 2_000..3_000);
        let mut lost = engine.begin(Isolation::ReadCommitted);
        lost.begin_statement();
        lost.analyze(&table, &Analysis::default()).expect("analyzed");
        assert_eq!(lost.statistics(&table).expect("its own").rows, 3000.0);
        assert_eq!(known(&engine, &table), before, "no other sees them");
        engine.halt();
        drop(lost);
        drop(engine);
        if lose_region {
            std::fs::remove_file(dir.path().join("region")).expect("removed");
        }
        let engine = open(dir.path(), memory);
        let table = engine.tx().table("t").expect("readable").expect("there");
        assert_eq!(known(&engine, &table), before);
        assert_eq!(analyze(&engine, &table).rows, 3000.0);
        // A crash behind the commit.
        let newest = known(&engine, &table);
        engine.halt();
        drop(engine);
        let engine = open(dir.path(), memory);
        assert_eq!(known(&engine, &table), newest);
        end(engine);
    }
}

#[test]
fn statistics_go_with_their_transaction_savepoint_and_table() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path(), 1000);
    let first = engine.statistics_epoch();
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let savepoint = tx.savepoint();
    tx.analyze(&table, &Analysis::default()).expect("analyzed");
    assert!(tx.statistics(&table).is_some() && tx.statistics_epoch() != first);
    tx.rollback_to(&savepoint).expect("back");
    assert_eq!((tx.statistics(&table), tx.statistics_epoch()), (None, first));
    tx.analyze(&table, &Analysis::default()).expect("analyzed");
    tx.rollback().expect("rolled back");
    assert_eq!((engine.statistics(&table), engine.statistics_epoch()), (None, first));

    analyze(&engine, &table);
    let found = known(&engine, &table);
    assert!(engine.statistics_epoch() > first);
    let catalog = engine.catalog_version();
    tx.begin(Isolation::ReadCommitted);
    tx.drop_table(&table).expect("dropped");
    assert_eq!(tx.statistics(&table), None);
    tx.rollback().expect("rolled back");
    assert_eq!(known(&engine, &table), found);
    assert_eq!(engine.catalog_version(), catalog, "statistics are no definitions");
    tx.begin(Isolation::ReadCommitted);
    tx.drop_table(&table).expect("dropped");
    tx.commit().expect("committed");
    assert_eq!(engine.statistics(&table), None);
    engine.vacuum().expect("purged");
    engine.shutdown().expect("shut down");
    drop((engine, tx));
    let engine = open(dir.path(), MemoryKind::Dram);
    assert_eq!(
        engine.statistics(&table),
        None,
        "nothing of them is left in the catalog"
    );
    end(engine);
}

/// A transaction at repeatable read can drop a table that was analyzed behind its snapshot, and analyze it.
#[test]
fn an_analysis_is_in_the_way_of_no_snapshot() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path(), 1000);
    analyze(&engine, &table);
    for drops in [false, true] {
        let mut tx = engine.begin(Isolation::RepeatableRead);
        tx.begin_statement();
        assert_eq!(all(&tx, &table).len(), 1000);
        fill(&engine, &table, if drops { 1100..1200 } else { 1000..1100 });
        analyze(&engine, &table);
        tx.begin_statement();
        match drops {
            true => tx.drop_table(&table).expect("dropped"),
            false => drop(tx.analyze(&table, &Analysis::default()).expect("analyzed")),
        }
        tx.rollback().expect("rolled back");
        if drops {
            break;
        }
        let mut tx = engine.begin(Isolation::ReadCommitted);
        for id in 1000..1100 {
            delete(&mut tx, &table, id).expect("deleted");
        }
        tx.commit().expect("committed");
    }
    end(engine);
}

#[test]
fn some_columns_are_analyzed_and_the_others_stay() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path(), 1000);
    let only = |column| Analysis {
        target: 50,
        columns: Some(vec![column]),
    };
    engine.analyze(&table, &only(1)).expect("analyzed");
    let first = known(&engine, &table);
    assert!(first.column(0).is_none() && first.column(1).is_some() && first.column(2).is_none());
    assert_eq!(first.keys.len(), 1, "the key of the index on k");
    engine.analyze(&table, &only(0)).expect("analyzed");
    let second = known(&engine, &table);
    assert_eq!(second.column(1), first.column(1));
    assert_eq!(second.column(0).expect("analyzed").bounds.len(), 51);
    assert_eq!(second.keys.len(), 2);
    end(engine);
}

/// A table that gets other trees while it is sampled: the new ones are looked at.
#[test]
fn a_table_that_is_truncated_keeps_what_was_known_and_is_analyzed_anew() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, former) = filled(dir.path(), 1000);
    analyze(&engine, &former);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.truncate(&former).expect("truncated");
    tx.commit().expect("committed");
    assert_eq!(known(&engine, &former).rows, 1000.0);
    assert_eq!(analyze(&engine, &former).rows, 0.0, "by the definition of now");
    let dropped = create(&engine, "u", false);
    tx.begin(Isolation::ReadCommitted);
    tx.drop_table(&dropped).expect("dropped");
    tx.commit().expect("committed");
    let refused = engine.analyze(&dropped, &Analysis::default());
    assert!(matches!(refused, Err(Error::UndefinedTable(_))), "{refused:?}");
    assert_eq!(engine.statistics(&dropped), None);
    end(engine);
}

#[test]
fn writers_and_analyses_go_on_beside_each_other() {
    let dir = tempfile::tempdir().expect("dir");
    let (engine, table) = filled(dir.path(), 5_000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (engine, table, stop) = (&engine, &table, &stop);
            scope.spawn(move || {
                let (mut tx, mut random) = (engine.tx(), Random(writer));
                while !stop.load(Ordering::Relaxed) {
                    tx.begin(Isolation::ReadCommitted);
                    tx.begin_statement();
                    let id = 3 * random.below(1666) as i32 + writer as i32;
                    let text = "w".repeat(random.index(400));
                    update(&mut tx, table, id, id % 10, &text).expect("free");
                    tx.end_statement();
                    tx.commit().expect("committed");
                }
            });
        }
        let analyzers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(analyze(&engine, &table).rows, 5000.0);
                        let found = known(&engine, &table);
                        assert_eq!(found.column(0).expect("analyzed").distinct, -1.0);
                        assert_eq!(found.distinct_keys(table.indexes[0].id, 1, 5000.0), Some(10.0));
                    }
                })
            })
            .collect();
        let ended: Vec<_> = analyzers.into_iter().map(|analyzer| analyzer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(|end| end.is_ok()), "an analysis has failed");
    });
    end(engine);
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tables_that_change_are_analyzed_by_themselves() {
    let dir = tempfile::tempdir().expect("dir");
    let watched = || {
        let mut options = options(dir.path(), MemoryKind::Dram);
        options.analyze_every = Some(cenote_base::rt::Nanos::from_millis(10));
        Engine::open(options).expect("the database opens")
    };
    let engine = watched();
    let (table, small) = (create(&engine, "t", false), create(&engine, "small", false));
    fill(&engine, &table, 0..1_000);
    fill(&engine, &small, 0..20);
    let rows = |table: &Table| engine.statistics(table).map(|found| found.rows);
    eventually("a table with rows is analyzed", || rows(&table) == Some(1000.0));
    assert_eq!(rows(&small), None, "too few rows to matter");
    // As many as the threshold are too few, one more is enough.
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..150 {
        delete(&mut tx, &table, id).expect("deleted");
    }
    tx.commit().expect("committed");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(rows(&table), Some(1000.0));
    tx.begin(Isolation::ReadCommitted);
    delete(&mut tx, &table, 150).expect("deleted");
    tx.commit().expect("committed");
    eventually("a table that has changed is analyzed", || rows(&table) == Some(849.0));
    // What is taken back counts for nothing.
    tx.begin(Isolation::ReadCommitted);
    for id in 200..800 {
        delete(&mut tx, &table, id).expect("deleted");
    }
    tx.rollback().expect("rolled back");
    let analyses = engine.automatic_analyses();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(engine.automatic_analyses(), analyses);
    drop(tx);
    engine.shutdown().expect("shut down");
    drop(engine);
    // The counts are gone with the process: only what is another size by now is looked at.
    let engine = watched();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(engine.automatic_analyses(), 0);
    fill(&engine, &small, 20..100);
    eventually("and what changes from here on", || {
        engine.statistics(&small).is_some_and(|s| s.rows == 100.0)
    });
    end(engine);
}

/// An analysis of a table that is being defined waits for it; the end of the engine does not.
#[test]
fn shutdown_stops_an_analysis_that_waits() {
    let dir = tempfile::tempdir().expect("dir");
    let mut options = options(dir.path(), MemoryKind::Dram);
    options.analyze_every = Some(cenote_base::rt::Nanos::from_millis(5));
    let engine = Engine::open(options).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.truncate(&table).expect("truncated");
    fill_beside(&engine);
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    tx.rollback().expect("rolled back");
    drop(tx);
    engine.shutdown().expect("shut down");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

fn fill_beside(engine: &Arc<Engine>) {
    let other = create(engine, "u", false);
    fill(engine, &other, 0..500);
}
