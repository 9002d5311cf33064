//! One session, then two: reading, writing, isolation, definitions, restarts.

use crate::common::*;
use cenote_engine::*;
use std::cell::RefCell;

/// Returns when a transaction waits for another.
fn until_one_waits(engine: &Engine) {
    while engine.waiting_transactions() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn rows_are_there_after_commit_and_gone_after_rollback() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..500 {
        assert_eq!(insert(&mut tx, &table, id, id % 10, "row").unwrap(), Insert::Done);
    }
    assert!(matches!(
        insert(&mut tx, &table, 7, 0, "again").unwrap(),
        Insert::Duplicate { index: None, .. }
    ));
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(get(&tx, &table, 123), Some((123, 3, "row".into())));
    assert_eq!(by_index(&tx, &table, 0, k_range(&table, 3)).len(), 50);
    for id in 0..500 {
        match id % 3 {
            0 => assert_eq!(
                update(&mut tx, &table, id, 77, "changed and longer than before").unwrap(),
                Outcome::Done
            ),
            1 => assert_eq!(delete(&mut tx, &table, id).unwrap(), Outcome::Done),
            _ => {}
        }
    }
    assert_eq!(by_index(&tx, &table, 0, k_range(&table, 77)).len(), 167);
    assert_eq!(all(&tx, &table).len(), 333);
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(all(&tx, &table).len(), 500);
    assert_eq!(by_index(&tx, &table, 0, k_range(&table, 77)).len(), 0);
    assert_eq!(get(&tx, &table, 3), Some((3, 3, "row".into())));
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn snapshots_and_savepoints() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut a = engine.begin(Isolation::ReadCommitted);
    insert(&mut a, &table, 1, 10, "one").unwrap();
    insert(&mut a, &table, 2, 20, "two").unwrap();
    a.commit().unwrap();

    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    a.begin(Isolation::ReadCommitted);
    let mut b = engine.begin(Isolation::ReadCommitted);
    update(&mut a, &table, 1, 11, "uno").unwrap();
    assert_eq!(get(&b, &table, 1), Some((1, 10, "one".into())), "no dirty read");
    let point = a.savepoint();
    delete(&mut a, &table, 2).unwrap();
    insert(&mut a, &table, 3, 30, "three").unwrap();
    update(&mut a, &table, 1, 12, "eins").unwrap();
    assert_eq!(all(&a, &table), vec![(1, 12, "eins".into()), (3, 30, "three".into())]);
    a.rollback_to(&point).unwrap();
    assert_eq!(all(&a, &table), vec![(1, 11, "uno".into()), (2, 20, "two".into())]);
    a.commit().unwrap();
    b.begin_statement();
    assert_eq!(get(&b, &table, 1), Some((1, 11, "uno".into())));
    old.begin_statement();
    assert_eq!(get(&old, &table, 1), Some((1, 10, "one".into())), "repeatable read");
    assert_eq!(by_index(&old, &table, 0, k_range(&table, 10)).len(), 1);
    assert_eq!(by_index(&old, &table, 0, k_range(&table, 11)).len(), 0);
    assert!(matches!(
        update(&mut old, &table, 1, 1, "x"),
        Err(Error::Serialization(_))
    ));
    old.rollback().unwrap();
    b.rollback().unwrap();
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn read_committed_asks_again_about_the_newest_version() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut a = engine.begin(Isolation::ReadCommitted);
    insert(&mut a, &table, 1, 10, "x").unwrap();
    a.commit().unwrap();
    a.begin(Isolation::ReadCommitted);
    update(&mut a, &table, 1, 11, "x").unwrap();
    let (e2, t2) = (engine.clone(), table.clone());
    let other = std::thread::spawn(move || {
        let mut b = e2.begin(Isolation::ReadCommitted);
        let asked = RefCell::new(Vec::new());
        b.modify(&t2, &key(&t2, 1), &|r, moved| {
            let (id, k, c) = values(&t2, r);
            asked.borrow_mut().push((k, moved));
            Ok::<_, Error>(Change::Update(row(&t2, id, k + 1, &c)))
        })
        .unwrap();
        b.commit().unwrap();
        asked.into_inner()
    });
    until_one_waits(&engine);
    a.commit().unwrap();
    assert_eq!(other.join().unwrap(), vec![(10, false), (11, true)]);
    a.begin(Isolation::ReadCommitted);
    assert_eq!(get(&a, &table, 1), Some((1, 12, "x".into())), "no lost update");
    a.rollback().unwrap();
    engine.shutdown().unwrap();
}

#[test]
fn deadlocks_timeouts_and_row_locks() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut a = engine.begin(Isolation::ReadCommitted);
    insert(&mut a, &table, 1, 1, "x").unwrap();
    insert(&mut a, &table, 2, 2, "x").unwrap();
    a.commit().unwrap();
    a.begin(Isolation::ReadCommitted);
    update(&mut a, &table, 1, 5, "a").unwrap();
    let (e2, t2) = (engine.clone(), table.clone());
    let other = std::thread::spawn(move || {
        let mut b = e2.begin(Isolation::ReadCommitted);
        update(&mut b, &t2, 2, 6, "b").unwrap();
        let outcome = update(&mut b, &t2, 1, 7, "b").map(|_| ());
        match outcome {
            Ok(()) => b.commit().unwrap(),
            Err(_) => b.rollback().unwrap(),
        }
        outcome.map_err(|e| e.sqlstate())
    });
    until_one_waits(&engine);
    let mine = update(&mut a, &table, 2, 8, "a").map(|_| ()).map_err(|e| e.sqlstate());
    if mine.is_ok() {
        a.commit().unwrap()
    } else {
        a.rollback().unwrap()
    }
    let theirs = other.join().unwrap();
    assert!(mine == Err("40P01") || theirs == Err("40P01"), "{mine:?} {theirs:?}");
    assert!(mine.is_ok() || theirs.is_ok());

    let mut b = engine.begin(Isolation::ReadCommitted);
    a.begin(Isolation::ReadCommitted);
    let mut r = Vec::new();
    assert!(matches!(
        a.lock_row(&table, &key(&table, 1), LockStrength::Share, Wait::Block, &mut r)
            .unwrap(),
        Locked::Row { .. }
    ));
    assert!(matches!(
        b.lock_row(&table, &key(&table, 1), LockStrength::Share, Wait::NoWait, &mut r)
            .unwrap(),
        Locked::Row { .. }
    ));
    assert_eq!(
        b.lock_row(&table, &key(&table, 1), LockStrength::Update, Wait::NoWait, &mut r)
            .unwrap_err()
            .sqlstate(),
        "55P03"
    );
    assert_eq!(
        b.lock_row(&table, &key(&table, 1), LockStrength::Update, Wait::SkipLocked, &mut r)
            .unwrap(),
        Locked::Skipped
    );
    b.set_lock_timeout(20);
    assert_eq!(delete(&mut b, &table, 1).unwrap_err().sqlstate(), "55P03");
    a.commit().unwrap();
    assert_eq!(delete(&mut b, &table, 1).unwrap(), Outcome::Done);
    b.rollback().unwrap();
    engine.shutdown().unwrap();
}

#[test]
fn unique_keys() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", true);
    let mut a = engine.begin(Isolation::ReadCommitted);
    insert(&mut a, &table, 1, 10, "x").unwrap();
    insert(&mut a, &table, 2, 20, "x").unwrap();
    assert!(matches!(
        insert(&mut a, &table, 3, 10, "x").unwrap(),
        Insert::Duplicate { index: Some(0), .. }
    ));
    let error = update(&mut a, &table, 2, 10, "x").unwrap_err();
    assert_eq!(error.sqlstate(), "23505");
    assert!(error.to_string().contains("t_k"));
    update(&mut a, &table, 1, 11, "x").unwrap();
    insert(&mut a, &table, 3, 10, "x").unwrap();
    delete(&mut a, &table, 3).unwrap();
    insert(&mut a, &table, 4, 10, "x").unwrap();
    a.commit().unwrap();
    // One that waits for a transaction in progress: free after its rollback, taken after its commit.
    for commits in [false, true] {
        a.begin(Isolation::ReadCommitted);
        insert(&mut a, &table, 50, 99, "x").unwrap();
        let (e2, t2) = (engine.clone(), table.clone());
        let other = std::thread::spawn(move || {
            let mut b = e2.begin(Isolation::ReadCommitted);
            let done = insert(&mut b, &t2, 51, 99, "x").unwrap();
            b.rollback().unwrap();
            done
        });
        until_one_waits(&engine);
        if commits {
            a.commit().unwrap()
        } else {
            a.rollback().unwrap()
        }
        assert_eq!(other.join().unwrap() == Insert::Done, !commits);
    }
    // NULLs never collide.
    let mut b = engine.begin(Isolation::ReadCommitted);
    for id in 60..63 {
        let mut r = Vec::new();
        table
            .layout()
            .encode(&[Datum::Int4(id), Datum::Null, Datum::Null], &mut r)
            .unwrap();
        assert_eq!(b.insert(&table, &r).unwrap(), Insert::Done);
    }
    b.commit().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn an_idle_transaction_does_not_hold_purge_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), MemoryKind::Dram);
    options.background = false;
    let engine = Engine::open(options).unwrap();
    let table = create(&engine, "t", false);
    let mut idle = engine.begin(Isolation::ReadCommitted);
    idle.begin_statement();
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, "x").unwrap();
    update(&mut tx, &table, 1, 2, "y").unwrap();
    tx.commit().unwrap();
    engine.vacuum().unwrap();
    assert_eq!(engine.vacuum().unwrap(), 0, "the snapshot is older");
    assert_eq!(all(&idle, &table).len(), 0);
    idle.end_statement();
    assert_eq!(engine.vacuum().unwrap(), 2);
    idle.begin_statement();
    assert_eq!(all(&idle, &table).len(), 1);
    idle.commit().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

/// A statement sees what its transaction did before it, and nothing that it does itself or that later statements do:
/// neither by key, nor by scans, nor by an index whose entries come in behind the scan. Rolled back to a savepoint, the
/// others' positions stay what they were.
#[test]
fn a_reader_sees_its_transaction_up_to_its_statement() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 10, "first").unwrap();
    tx.commit().unwrap();
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        tx.begin(isolation);
        tx.begin_statement();
        let none = tx.reader().clone();
        insert(&mut tx, &table, 2, 20, "second").unwrap();
        assert_eq!(get(&tx, &table, 2), None, "its own statement's");
        tx.begin_statement();
        let two = tx.reader().clone();
        update(&mut tx, &table, 1, 11, "changed").unwrap();
        delete(&mut tx, &table, 2).unwrap();
        let point = tx.savepoint();
        insert(&mut tx, &table, 3, 30, "taken back").unwrap();
        tx.rollback_to(&point).unwrap();
        tx.begin_statement();
        let last = tx.reader().clone();
        insert(&mut tx, &table, 2, 21, "again").unwrap();
        let seen = |reader: &Reader, index| {
            let mut scan = match index {
                false => reader.scan(&table, KeyRange::all(), Direction::Forward),
                true => reader.index_scan(&table, 0, KeyRange::all(), Direction::Forward),
            };
            let (mut batch, mut out) = (RowBatch::new(), Vec::new());
            while scan.next_batch(reader, &mut batch).unwrap() {
                out.extend((0..batch.len()).map(|i| values(&table, batch.row(i)).1));
            }
            out
        };
        for index in [false, true] {
            assert_eq!(seen(&none, index), [10]);
            assert_eq!(seen(&two, index), [10, 20]);
            assert_eq!(seen(&last, index), [11]);
        }
        tx.enter_view(&two);
        assert_eq!(all(&tx, &table).len(), 2);
        let mut row = Vec::new();
        let locked = tx.lock_row(&table, &key(&table, 1), LockStrength::Update, Wait::Block, &mut row);
        assert_eq!(locked.unwrap(), Locked::Gone, "a later statement has changed it");
        tx.leave_view();
        assert_eq!(all(&tx, &table).len(), 2);
        assert_eq!(get(&tx, &table, 2).unwrap().1, 21);
        drop((none, two, last));
        tx.rollback().unwrap();
        engine.vacuum().unwrap();
        check(&engine);
    }
    drop(tx);
    engine.shutdown().unwrap();
}

/// A clone of a reader holds its snapshot, though its transaction has gone on, has ended, or is no more.
#[test]
fn a_cloned_reader_keeps_its_snapshot_from_purge() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(EngineOptions {
        background: false,
        ..options(dir.path(), MemoryKind::Dram)
    })
    .unwrap();
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 0, "x").unwrap();
    tx.commit().unwrap();
    let mut readers = Vec::new();
    let mut session = engine.session("a test").unwrap();
    for k in 1..5 {
        session.begin(Isolation::ReadCommitted);
        session.begin_statement();
        readers.push(session.reader().clone());
        if k % 2 == 0 {
            session.commit().unwrap();
            session = engine.session("a test").unwrap();
        } else {
            session.rollback().unwrap();
        }
        tx.begin(Isolation::ReadCommitted);
        update(&mut tx, &table, 1, k, "x").unwrap();
        tx.commit().unwrap();
        engine.vacuum().unwrap();
    }
    drop(session);
    let mut row = Vec::new();
    for (k, reader) in readers.iter().enumerate() {
        assert!(reader.get(&table, &key(&table, 1), &mut row).unwrap());
        assert_eq!(values(&table, &row).1, k as i32);
    }
    drop(readers);
    assert_eq!(engine.vacuum().unwrap(), 4, "nothing is held any more");
    drop(tx);
    engine.shutdown().unwrap();
}
