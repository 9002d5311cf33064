//! Tests that look inside of rollback.

mod inserted;

use crate::testing::{assert_clean, change, indexed, indexed_where, key, new_index, row, write};
use crate::*;
use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use std::sync::Arc;

/// T1 changes two rows and commits: its commit has its place in the log, and T2, which sees it as committed,
/// changes one of the rows. The process dies before the redo of T1's commit is complete, so that it is void, and
/// both are losers. T1 was rolled back first, by the number of its undo segment; its record was passed by, because
/// the row was T2's; then T2's rollback brought T1's version back: half of a transaction that never was.
#[test]
fn what_was_built_on_a_void_commit_is_taken_back_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = EngineOptions::new(dir.path().join("data"), MemoryKind::Dram, 24 << 20);
    options.background = false;
    let engine = Engine::open(options.clone()).expect("the database opens");
    let column = |name: &str| ColumnDef {
        name: name.into(),
        ty: ColumnType::Int4,
        not_null: true,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let new = NewTable {
        name: "t".into(),
        columns: vec![column("id"), column("n")],
        primary_key: Some(("p".into(), vec![0])),
        indexes: vec![],
    };
    let table = tx.create_table(new).expect("made");
    let row = |id, n| {
        let mut row = Vec::new();
        let values = [Datum::Int4(id), Datum::Int4(n)];
        table.layout().encode(&values, &mut row).expect("a row");
        row
    };
    let key = |id| {
        let mut key = Vec::new();
        table.key_of_values(&[Datum::Int4(id)], &mut key);
        key
    };
    for id in [1, 2] {
        tx.insert(&table, &row(id, 0)).expect("inserted");
    }
    tx.commit().expect("committed");
    let change = |tx: &mut Tx, id, n| {
        tx.begin_statement();
        let new = row(id, n);
        tx.modify(&table, &key(id), &|_, _| Ok::<_, Error>(Change::Update(new.clone())))
            .expect("free")
    };
    let mut one = engine.begin(Isolation::ReadCommitted);
    let mut two = engine.begin(Isolation::ReadCommitted);
    change(&mut one, 1, 1);
    change(&mut one, 2, 1);
    let place = engine.storage.0.log().tail().advance(1);
    engine
        .txs
        .set_committed(one.reader.own, one.reader.slot, cenote_base::Cts::at(place));
    change(&mut two, 1, 2);
    engine.storage.0.log().flush_all().expect("durable");
    engine.halt();
    drop((tx, one, two));
    drop(engine);
    let engine = Engine::open(options).expect("the database opens");
    assert_eq!(engine.recovery_report().losers, 2);
    engine.roll_back_losers().expect("taken back");
    let tx = engine.begin(Isolation::ReadCommitted);
    for id in [1, 2] {
        let mut found = Vec::new();
        assert!(tx.get(&table, &key(id), &mut found).expect("readable"));
        assert_eq!(found, row(id, 0), "row {id} is of a transaction that was not committed");
    }
}

/// Purge had come by a deleted row while another transaction had inserted it again, and left it to that one's
/// rollback; the rollback fell between that and the moment when the segment's tail passed the record, took the
/// deletion for one that purge had still to come to, and put it back: it stayed for good.
#[test]
fn a_deleted_row_that_purge_has_come_by_does_not_stay_behind_a_rollback() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = indexed(dir.path());
    let (mut one, mut two) = (engine.tx(), engine.tx());
    change(&mut one, &table, 1, std::iter::once(7));
    one.begin(Isolation::ReadCommitted);
    let delete = |_: &[u8], _| Ok::<_, Error>(Change::Delete);
    one.modify(&table, &key(&table, 1), &delete).expect("free");
    let deletion = one.last_undo;
    one.commit().expect("committed");
    two.begin(Isolation::ReadCommitted);
    write(&mut two, &table, 1, std::iter::once(8));
    two.end_statement();
    engine.purge_with(deletion, || two.rollback().expect("taken back"));
    engine.vacuum().expect("purged");
    let mut value = Vec::new();
    let tree = crate::tree::BTree { space: table.space };
    assert!(!tree.get(&engine.pool, &key(&table, 1), &mut value).expect("readable"));
    assert_clean(&engine, 0);
    drop((one, two));
    engine.shutdown().expect("shut down");
}

/// Each of a transaction's changes of one indexed row was taken back with a look at all of its changes before:
/// 20,000 took minutes.
#[test]
fn each_version_of_a_row_that_is_taken_back_is_walked_once() {
    const UPDATES: i32 = 1_500;
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = indexed(dir.path());
    let walked = || engine.purge.walked.load(Ordering::Relaxed);
    // Values come again, so that an entry may be needed by any version below.
    let value = |i: i32| if i % 3 == 0 { i % 7 } else { i };
    let mut tx = engine.tx();
    change(&mut tx, &table, 1, std::iter::once(value(1)));
    for to_savepoint in [true, false] {
        tx.begin(Isolation::ReadCommitted);
        write(&mut tx, &table, 1, (0..UPDATES / 2).map(value));
        let savepoint = tx.savepoint();
        write(&mut tx, &table, 1, (UPDATES / 2..UPDATES).map(value));
        let before = walked();
        if to_savepoint {
            tx.rollback_to(&savepoint).expect("taken back");
            write(&mut tx, &table, 1, (0..20).map(value));
        }
        tx.rollback().expect("taken back");
        let walked = walked() - before;
        assert!(
            walked < 3 * UPDATES as u64,
            "{walked} versions walked for {UPDATES} records"
        );
        assert_clean(&engine, 1);
    }
    drop(tx);
    engine.shutdown().expect("shut down");
}

/// An index that goes and comes back in the middle of what is taken back: what was learnt of a row while there was
/// none says nothing of its entries.
#[test]
fn a_row_is_walked_again_where_the_indexes_have_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = indexed(dir.path());
    let mut tx = engine.tx();
    change(&mut tx, &table, 1, std::iter::once(5));
    tx.begin(Isolation::ReadCommitted);
    write(&mut tx, &table, 1, (0..60).map(|i| i % 40));
    let other = tx.create_index(&table, new_index("t_m")).expect("made");
    let without = tx.drop_index(&other, 0).expect("dropped");
    write(&mut tx, &without, 1, (0..60).map(|i| i % 50));
    tx.rollback().expect("taken back");
    engine.vacuum().expect("purged");
    assert_clean(&engine, 1);
    drop(tx);
    engine.shutdown().expect("shut down");
}
const ROWS: i32 = 600;

/// The table of `indexed`, with rows of `n` 0, in an engine that leaves large rollbacks to a thread that never comes.
fn without_a_thread(dir: &std::path::Path) -> (Arc<Engine>, Arc<Table>) {
    filled(indexed(dir))
}

fn filled((engine, table): (Arc<Engine>, Arc<Table>)) -> (Arc<Engine>, Arc<Table>) {
    engine.losers.of_last_run(Vec::new(), true);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    (0..ROWS).for_each(|id| write(&mut tx, &table, id, std::iter::once(0)));
    tx.commit().expect("committed");
    (engine, table)
}

/// Changes all rows, the first ten times; deletes row 5, gives row 6 the key 1006.
fn change_all(tx: &mut Tx, table: &Table) {
    tx.begin(Isolation::ReadCommitted);
    write(tx, table, 0, 1..10);
    (0..ROWS).for_each(|id| write(tx, table, id, std::iter::once(id + 1)));
    let delete = |_: &[u8], _| Ok::<_, Error>(Change::Delete);
    tx.modify(table, &key(table, 5), &delete).expect("its own");
    let rekeyed = row(table, 1006, 7);
    let rekey = |_: &[u8], _| Ok::<_, Error>(Change::Update(rekeyed.clone()));
    tx.modify(table, &key(table, 6), &rekey).expect("its own");
}

fn n_of(tx: &Tx, table: &Table, id: i32) -> Option<i32> {
    let mut found = Vec::new();
    let is_there = tx.get(table, &key(table, id), &mut found).expect("readable");
    is_there.then(|| match table.layout().decode(&found).expect("a row")[1] {
        Datum::Int4(n) => n,
        _ => unreachable!("an int4"),
    })
}

fn all(engine: &Arc<Engine>, table: &Table) -> Vec<Option<i32>> {
    let tx = engine.begin(Isolation::ReadCommitted);
    (0..ROWS).map(|id| n_of(&tx, table, id)).collect()
}

/// ROLLBACK of a million updates kept its client waiting for 55 s, and each transaction that wanted one of the rows.
#[test]
fn rows_of_a_rollback_in_the_background_are_taken_back_on_demand() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.tx();
    change_all(&mut tx, &table);
    tx.rollback().expect("left to the background");
    assert_eq!(engine.rollbacks_waiting(), (1, None));
    assert_eq!(
        all(&engine, &table),
        vec![Some(0); ROWS as usize],
        "readers see past it"
    );
    let mut other = engine.begin(Isolation::ReadCommitted);
    other.set_lock_timeout(1_000);
    (0..3).for_each(|id| write(&mut other, &table, id, std::iter::once(77)));
    for (id, wait) in [(3, Wait::NoWait), (4, Wait::SkipLocked), (7, Wait::Block)] {
        let locked = other.lock_row(&table, &key(&table, id), LockStrength::Update, wait, &mut Vec::new());
        assert_eq!(locked.expect("free"), Locked::Row { moved: false }, "row {id}");
    }
    for id in [5, 6] {
        let inserted = other.insert(&table, &row(&table, id, 1)).expect("not waited for");
        assert!(
            matches!(inserted, Insert::Duplicate { index: None, .. }),
            "row {id}: {inserted:?}"
        );
    }
    assert_eq!(
        other.insert(&table, &row(&table, 1006, 77)).expect("free"),
        Insert::Done
    );
    // The session goes on at once, also on rows that it has just given up.
    tx.begin(Isolation::ReadCommitted);
    write(&mut tx, &table, 8, std::iter::once(77));
    tx.commit().expect("committed");
    other.commit().expect("committed");
    engine.roll_back_losers().expect("taken back");
    assert_eq!((engine.rollbacks_waiting(), engine.locks_held()), ((0, None), 0));
    let expected = |id| Some(if id < 3 || id == 8 { 77 } else { 0 });
    assert_eq!(all(&engine, &table), (0..ROWS).map(expected).collect::<Vec<_>>());
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize + 1);
    drop((tx, other));
    engine.shutdown().expect("shut down");
}

/// A crash in the midst: what was taken back on demand is changed and committed; the rest is the next run's.
#[test]
fn a_crash_in_the_midst_of_a_rollback_in_the_background_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.tx();
    change_all(&mut tx, &table);
    tx.rollback().expect("left to the background");
    tx.begin(Isolation::ReadCommitted);
    (0..9)
        .step_by(2)
        .for_each(|id| write(&mut tx, &table, id, std::iter::once(77)));
    tx.commit().expect("committed");
    engine.halt();
    drop((tx, engine));
    let mut options = EngineOptions::new(dir.path().join("data"), MemoryKind::Dram, 24 << 20);
    options.background = false;
    let engine = Engine::open(options).expect("the database opens");
    assert_eq!(engine.recovery_report().losers, 1);
    // A loser of the last run is not waited for either.
    let mut other = engine.begin(Isolation::ReadCommitted);
    other.set_lock_timeout(1_000);
    let table = other.table("t").expect("readable").expect("there");
    write(&mut other, &table, 1, std::iter::once(78));
    other.commit().expect("committed");
    engine.roll_back_losers().expect("taken back");
    let expected = |id| match id {
        1 => Some(78),
        0..9 if id % 2 == 0 => Some(77),
        _ => Some(0),
    };
    assert_eq!(all(&engine, &table), (0..ROWS).map(expected).collect::<Vec<_>>());
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize);
    drop(other);
    engine.shutdown().expect("shut down");
}

/// One that has gone to sleep for the sake of a row is woken when its holder's rollback is left to the background, and
/// one that waits for an explicit lock.
#[test]
fn who_waits_for_a_row_is_woken_when_its_rollback_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let locked = tx.lock_row(
        &table,
        &key(&table, ROWS - 1),
        LockStrength::Update,
        Wait::Block,
        &mut Vec::new(),
    );
    locked.expect("free");
    (0..ROWS - 1).for_each(|id| write(&mut tx, &table, id, std::iter::once(9)));
    let waiters: Vec<_> = [1, 1, ROWS - 2, ROWS - 1]
        .into_iter()
        .map(|id| {
            let (engine, table) = (engine.clone(), table.clone());
            rt::spawn("waiter", move || {
                let mut tx = engine.begin(Isolation::ReadCommitted);
                tx.set_lock_timeout(20_000);
                tx.begin_statement();
                write(&mut tx, &table, id, std::iter::once(50));
                tx.commit().expect("committed");
            })
        })
        .collect();
    while engine.waiting_transactions() < waiters.len() {
        rt::sleep(rt::Nanos::from_millis(1));
    }
    tx.rollback().expect("left to the background");
    waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
    assert_eq!(engine.rollbacks_waiting().0, 1, "nobody has taken back the rest");
    engine.roll_back_losers().expect("taken back");
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize);
    drop(tx);
    engine.shutdown().expect("shut down");
}

/// A bounded number is left to the background; the next client waits for its own.
#[test]
fn rollbacks_in_the_background_are_bounded() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut sessions: Vec<_> = (0..18).map(|_| engine.tx()).collect();
    for (i, tx) in sessions.iter_mut().enumerate() {
        tx.begin(Isolation::ReadCommitted);
        (0..ROWS).for_each(|id| write(tx, &table, 1_000 * (i as i32 + 1) + id, std::iter::once(1)));
        tx.rollback().expect("ended");
        assert_eq!(engine.rollbacks_waiting().0, (i + 1).min(16));
    }
    engine.roll_back_losers().expect("taken back");
    change_all(&mut sessions[0], &table);
    sessions[0].rollback().expect("ended");
    assert_eq!(engine.rollbacks_waiting().0, 1, "there is room again");
    engine.roll_back_losers().expect("taken back");
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize);
    drop(sessions);
    engine.shutdown().expect("shut down");
}

/// A short rollback stood behind a long one, and a definition of its table waited for both.
#[test]
fn a_short_rollback_does_not_stand_behind_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = filled(indexed_where(dir.path(), 1_000));
    let (mut first, mut second) = (engine.tx(), engine.tx());
    change_all(&mut first, &table);
    first.rollback().expect("ended");
    assert_eq!(engine.rollbacks_waiting().0, 1, "nothing was under way");
    second.begin(Isolation::ReadCommitted);
    (0..ROWS).for_each(|id| write(&mut second, &table, 9_000 + id, std::iter::once(1)));
    second.rollback().expect("taken back");
    assert_eq!(engine.rollbacks_waiting().0, 1, "its client has done it");
    engine.roll_back_losers().expect("taken back");
    change_all(&mut second, &table);
    second.rollback().expect("ended");
    assert_eq!(engine.rollbacks_waiting().0, 1, "nothing was under way");
    engine.roll_back_losers().expect("taken back");
    assert_clean(&engine, ROWS as usize);
    drop((first, second));
    engine.shutdown().expect("shut down");
}

/// A transaction with definitions, and a small one, are taken back before the client goes on.
#[test]
fn what_is_not_left_to_the_background() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.begin(Isolation::ReadCommitted);
    write(&mut tx, &table, 1, std::iter::once(3));
    tx.rollback().expect("taken back");
    assert_eq!(engine.rollbacks_waiting().0, 0, "a small one");
    for to_savepoint in [false, true] {
        tx.begin(Isolation::ReadCommitted);
        let savepoint = tx.savepoint();
        let other = tx.create_index(&table, new_index("t_m")).expect("made");
        if to_savepoint {
            tx.rollback_to(&savepoint).expect("taken back");
        }
        let now = if to_savepoint { &table } else { &other };
        (0..ROWS).for_each(|id| write(&mut tx, now, id, std::iter::once(9)));
        tx.rollback().expect("taken back");
        assert_eq!(
            (engine.rollbacks_waiting().0, engine.locks_held()),
            (0, 0),
            "one that defined"
        );
    }
    assert_eq!(all(&engine, &table), vec![Some(0); ROWS as usize]);
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize);
    drop(tx);
    engine.shutdown().expect("shut down");
}

/// Several threads at one row with many versions, beside the one that takes all back: each version is walked once by
/// each of them at most.
#[test]
fn a_hot_row_is_taken_back_by_one_thread_at_a_time() {
    const UPDATES: i32 = 1_500;
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.tx();
    tx.begin(Isolation::ReadCommitted);
    write(
        &mut tx,
        &table,
        1,
        (0..UPDATES).map(|i| if i % 3 == 0 { i % 7 } else { i }),
    );
    let before = engine.purge.walked.load(Ordering::Relaxed);
    tx.rollback().expect("left to the background");
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (engine, table) = (engine.clone(), table.clone());
            rt::spawn("another", move || match i {
                0 => engine.roll_back_losers().expect("taken back"),
                _ => change(&mut engine.tx(), &table, 1, std::iter::once(50 + i)),
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let walked = engine.purge.walked.load(Ordering::Relaxed) - before;
    assert!(
        walked < 8 * UPDATES as u64,
        "{walked} versions walked for {UPDATES} records"
    );
    engine.roll_back_losers().expect("taken back");
    engine.vacuum().expect("purged");
    assert_clean(&engine, ROWS as usize);
    drop(tx);
    engine.shutdown().expect("shut down");
}
