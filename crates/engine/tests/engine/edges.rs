//! Interleavings that once went wrong. Each test opens with the story.

use crate::common::*;
use cenote_engine::*;
use std::path::Path;
use std::sync::Arc;

/// Without background threads: purge runs when a test says so.
fn quiet(dir: &Path) -> Arc<Engine> {
    let mut options = options(dir, MemoryKind::Dram);
    options.background = false;
    Engine::open(options).unwrap()
}

/// A locks a row, which draws its number; B, with a greater number, writes to an undo segment, commits, and leaves it
/// to A, which commits there behind it. Numbers in that segment fall. Purge, asking for the first end behind the
/// horizon only, set the low-water mark above A, and a snapshot older than both saw A's row.
#[test]
fn ends_in_a_segment_whose_numbers_fall() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let table = create(&engine, "t", false);
    engine.vacuum().unwrap();
    let mut a = engine.begin(Isolation::ReadCommitted);
    let mut row = Vec::new();
    a.lock_row(&table, &key(&table, 9), LockStrength::Update, Wait::Block, &mut row)
        .unwrap();
    let old = engine.begin(Isolation::RepeatableRead);
    let mut b = engine.begin(Isolation::ReadCommitted);
    insert(&mut b, &table, 1, 1, "b").unwrap();
    assert!(a.id() < b.id());
    b.commit().unwrap();
    drop(b);
    insert(&mut a, &table, 2, 2, "a").unwrap();
    a.commit().unwrap();
    engine.vacuum().unwrap();
    assert_eq!(all(&old, &table), vec![], "committed after the snapshot");
    drop((a, old));
    check(&engine);
    engine.shutdown().unwrap();
}

fn wide_table(name: &str) -> NewTable {
    let column = |i: usize| ColumnDef {
        name: format!("{name}_{i}_{}", "x".repeat(40)),
        ty: ColumnType::Int4,
        not_null: i == 0,
        default: None,
    };
    NewTable {
        name: name.into(),
        columns: (0..120).map(column).collect(),
        primary_key: Some((format!("{name}_pkey"), vec![0])),
        indexes: vec![],
    }
}

fn spaces(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("data/spaces")).unwrap().count()
}

/// A definition of some kilobytes is itself a large value of the catalog. Rollback and purge freed its pages, then read
/// them to learn which files to drop: ROLLBACK failed and left the session's locks for good, dropped tables kept their
/// files.
#[test]
fn wide_tables_are_taken_back_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.create_table(wide_table("w")).unwrap();
    tx.commit().unwrap();
    let before = spaces(dir.path());
    tx.begin(Isolation::ReadCommitted);
    tx.create_table(wide_table("taken_back")).unwrap();
    tx.rollback().unwrap();
    assert_eq!(spaces(dir.path()), before);
    tx.begin(Isolation::ReadCommitted);
    let w = tx.table("w").unwrap().unwrap();
    tx.truncate(&w).unwrap();
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    tx.truncate(&w).unwrap();
    tx.commit().unwrap();
    engine.vacuum().unwrap();
    assert_eq!(spaces(dir.path()), before, "the truncated tree's file");
    tx.begin(Isolation::ReadCommitted);
    let w = tx.table("w").unwrap().unwrap();
    tx.drop_table(&w).unwrap();
    tx.commit().unwrap();
    engine.vacuum().unwrap();
    assert_eq!(spaces(dir.path()), before - 1);
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

/// ADD PRIMARY KEY copies rows without undo. A snapshot older than that followed an undo pointer of zero in the new
/// tree and reported corruption. PostgreSQL shows an empty table to transactions that had not read it before and makes
/// ALTER wait for the others; readers lock nothing here, so both are told to run again.
#[test]
fn an_older_snapshot_looks_at_a_rebuilt_table() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let mut new = new_table("t", false);
    new.primary_key = None;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).unwrap();
    insert(&mut tx, &table, 1, 1, "x").unwrap();
    tx.commit().unwrap();
    let old = engine.begin(Isolation::RepeatableRead);
    tx.begin(Isolation::ReadCommitted);
    tx.add_primary_key(&table, "t_pkey", vec![0]).unwrap();
    tx.commit().unwrap();
    let keyed = old.table("t").unwrap().unwrap();
    assert_eq!(old.collect(&keyed, KeyRange::all()).unwrap_err().sqlstate(), "40001");
    assert_eq!(all(&old, &table).len(), 1, "by the former definition");
    drop(old);
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    assert_eq!(all(&old, &keyed).len(), 1);
    tx.begin(Isolation::ReadCommitted);
    tx.truncate(&keyed).unwrap();
    assert!(tx.table("t").is_ok(), "its own change");
    tx.commit().unwrap();
    old.begin_statement();
    assert_eq!(old.table("t").unwrap_err().sqlstate(), "40001");
    assert_eq!(old.reader().refuse_replaced(&keyed).unwrap_err().sqlstate(), "40001");
    drop((tx, old));
    engine.shutdown().unwrap();
}

/// Values of a sequence went to the client of a transaction that changed nothing else; its commit waited for nothing,
/// and after a crash the same values were given again.
#[test]
fn sequence_values_outlast_a_crash_though_nothing_else_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = quiet(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let id = tx.create_sequence(NewSequence::ascending("s", i64::MAX)).unwrap().id;
    tx.commit().unwrap();
    drop(tx);
    let mut last = 0;
    for round in 0..6 {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        for _ in 0..=round * 7 {
            let value = tx.nextval(id).unwrap();
            assert!(value > last, "{value} after {last}");
            last = value;
        }
        if round == 3 {
            last = 1000;
            tx.setval(id, last, true).unwrap();
        }
        tx.commit().unwrap();
        drop(tx);
        engine.halt();
        drop(engine);
        engine = quiet(dir.path());
    }
    engine.shutdown().unwrap();
}

/// Taking a row back latched a leaf of each index at once. With more indexes than a mini-transaction holds pages,
/// ROLLBACK failed, and so did recovery; then tables were refused more than 56 indexes. Entries go in as many steps as
/// it takes.
#[test]
fn a_rollback_takes_entries_out_of_any_number_of_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let index = |i: usize| NewIndex {
        name: format!("t_{i}"),
        columns: vec![1],
        unique: false,
        constraint: false,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = NewTable {
        indexes: (0..56).map(index).collect(),
        ..new_table("t", false)
    };
    let mut table = tx.create_table(table).unwrap();
    for i in 56..58 {
        table = tx.create_index(&table, index(i)).unwrap();
    }
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, &"x".repeat(10_000)).unwrap();
    tx.rollback().unwrap();
    check(&engine);
    tx.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, &"x".repeat(10_000)).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    delete(&mut tx, &table, 1).unwrap();
    tx.commit().unwrap();
    assert!(engine.vacuum().unwrap() > 0);
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

/// A leaf's rows were delivered together, however long: a hundred rows of fifty megabytes wrapped the batch's 32-bit
/// ends.
#[test]
fn batches_are_bounded_where_rows_are_long() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..7 {
        insert(&mut tx, &table, id, -id, &"long".repeat(400_000)).unwrap();
    }
    for direction in [Direction::Forward, Direction::Backward] {
        for index in [false, true] {
            let mut scan = match index {
                false => tx.scan(&table, KeyRange::all(), direction),
                true => tx.index_scan(&table, 0, KeyRange::all(), direction),
            };
            let (mut batch, mut ids) = (RowBatch::new(), Vec::new());
            while scan.next_batch(tx.reader(), &mut batch).unwrap() {
                assert!((1..=3).contains(&batch.len()));
                ids.extend((0..batch.len()).map(|i| values(&table, batch.row(i)).0));
            }
            let mut expected: Vec<i32> = (0..7).collect();
            if index != (direction == Direction::Backward) {
                expected.reverse();
            }
            assert_eq!(ids, expected);
        }
    }
    tx.rollback().unwrap();
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

/// Loses what is in the log only, as a power cut does.
fn cut_power(dir: &Path, engine: Arc<Engine>) -> Arc<Engine> {
    engine.halt();
    assert_eq!(Arc::strong_count(&engine), 1);
    drop(engine);
    quiet(dir)
}

/// Files go when a definition is taken back or purged, at once; the log that says why is flushed with the next commit.
/// A power cut in between brings the undo records back, without the trees they speak of: rollback of the loser failed
/// for ever, and definitions waited for it; purge failed for ever.
#[test]
fn undo_of_trees_whose_files_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let table = create(&engine, "t", false);
    let flush = |engine: &Arc<Engine>, id| {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        insert(&mut tx, &table, id, 1, "x").unwrap();
        tx.commit().unwrap();
    };
    create(&engine, "other", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let gone = tx.create_table(new_table("gone", false)).unwrap();
    insert(&mut tx, &gone, 1, 1, "x").unwrap();
    let other = tx.table("other").unwrap().unwrap();
    let index = NewIndex {
        name: "other_c".into(),
        columns: vec![2],
        unique: false,
        constraint: false,
    };
    let other = tx.create_index(&other, index).unwrap();
    insert(&mut tx, &other, 1, 1, "x").unwrap();
    flush(&engine, 1);
    tx.rollback().unwrap();
    drop(tx);
    let engine = cut_power(dir.path(), engine);
    engine.roll_back_losers().unwrap();
    let mut tx = engine.begin(Isolation::ReadCommitted);
    assert!(tx.table("gone").unwrap().is_none());
    let other = tx.table("other").unwrap().unwrap();
    assert_eq!((other.indexes.len(), all(&tx, &other)), (1, vec![]));
    delete(&mut tx, &table, 1).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    tx.truncate(&table).unwrap();
    tx.commit().unwrap();
    drop(tx);
    engine.vacuum().unwrap();
    let engine = cut_power(dir.path(), engine);
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

/// A deleted row is inserted again; purge passes the deletion and leaves the entry, which is the new row's; then that
/// insert is taken back. The deleted entry came back, and nothing was left to remove it.
#[test]
fn a_deleted_row_whose_second_life_is_taken_back_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let table = create(&engine, "t", true);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, &"x".repeat(10_000)).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    delete(&mut tx, &table, 1).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, &"y".repeat(10_000)).unwrap();
    engine.vacuum().unwrap();
    tx.rollback().unwrap();
    engine.vacuum().unwrap();
    let report = engine.check().unwrap();
    for name in ["table \"t\": 0 entries", "index \"t_k\": 0 entries"] {
        assert!(
            report.summary.iter().any(|line| line.starts_with(name)),
            "{:#?}",
            report.summary
        );
    }
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(insert(&mut tx, &table, 2, 1, "z").unwrap(), Insert::Done);
    tx.commit().unwrap();
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

/// TRUNCATE … RESTART IDENTITY set the sequence at once, outside the transaction: taken back, the rows
/// were there again and the sequence gave their numbers a second time.
#[test]
fn a_sequence_restarts_with_the_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.create_sequence(NewSequence::ascending("s", i64::MAX)).unwrap();
    tx.commit().unwrap();
    let next = |tx: &mut Tx| {
        let id = tx.sequence("s").unwrap().unwrap().id;
        tx.nextval(id).unwrap()
    };
    tx.begin(Isolation::ReadCommitted);
    assert_eq!((1..=5).map(|_| next(&mut tx)).last(), Some(5));
    let (savepoint, s) = (tx.savepoint(), tx.sequence("s").unwrap().unwrap());
    tx.restart_sequence(&s).unwrap();
    assert_eq!(next(&mut tx), 1);
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(next(&mut tx), 6);
    tx.restart_sequence(&s).unwrap();
    assert_eq!(next(&mut tx), 1);
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(next(&mut tx), 7);
    tx.commit().unwrap();
    drop(tx);
    let engine = cut_power(dir.path(), engine);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    assert!(next(&mut tx) > 7);
    let s = tx.sequence("s").unwrap().unwrap();
    tx.restart_sequence(&s).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(next(&mut tx), 1);
    tx.commit().unwrap();
    drop(tx);
    engine.shutdown().unwrap();
}

/// INSERT ... ON CONFLICT (id): another transaction is inserting that id, and another unique key collides with a row
/// that is there. The latter was reported (23505) though, once the former has committed, the conflict is on the id, and
/// has an answer.
#[test]
fn an_arbiter_in_progress_is_waited_for_before_other_keys_count() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path());
    let table = create(&engine, "t", true);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    insert(&mut holder, &table, 9, 5, "there").unwrap();
    holder.commit().unwrap();
    holder.begin(Isolation::ReadCommitted);
    insert(&mut holder, &table, 1, 1, "coming").unwrap();
    let (theirs, their_table) = (engine.clone(), table.clone());
    let waiter = std::thread::spawn(move || {
        let mut tx = theirs.begin(Isolation::ReadCommitted);
        tx.set_lock_timeout(20_000);
        tx.insert_unless(&their_table, &row(&their_table, 1, 5, "new"), &[None], &mut Vec::new())
            .unwrap()
    });
    while engine.waiting_transactions() == 0 && !waiter.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    holder.commit().unwrap();
    let duplicate = |index, id| Insert::Duplicate {
        index,
        existing_key: key(&table, id),
    };
    assert_eq!(waiter.join().unwrap(), duplicate(None, 1));
    // Where both collide, the one that is asked decides.
    holder.begin(Isolation::ReadCommitted);
    let both = row(&table, 1, 5, "new");
    assert_eq!(
        holder
            .insert_unless(&table, &both, &[Some(0)], &mut Vec::new())
            .unwrap(),
        duplicate(Some(0), 9)
    );
    assert_eq!(
        holder.insert_unless(&table, &both, &[None], &mut Vec::new()).unwrap(),
        duplicate(None, 1)
    );
    assert_eq!(holder.insert(&table, &both).unwrap(), duplicate(None, 1));
    drop(holder);
    check(&engine);
    engine.shutdown().unwrap();
}
