//! Versions of transactions that are rolled back while a reader looks at them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{self, Fault};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Engine, EngineOptions, Error, Insert, Isolation, LockStrength,
    Locked, MemoryKind, NewIndex, NewTable, Outcome, Table, Tx, Wait,
};
use cenote_sim::{run, seeds};

/// A table of (id primary key, n unique), with the row (1, 5).
fn made() -> (Arc<Engine>, Arc<Table>) {
    let mut options = EngineOptions::new("/data", MemoryKind::Dram, 16 << 20);
    options.background = false;
    let engine = Engine::open(options).expect("the engine opens");
    let column = |name: &str| ColumnDef {
        name: name.into(),
        ty: ColumnType::Int4,
        not_null: true,
        default: None,
    };
    let new = NewTable {
        name: "t".into(),
        columns: vec![column("id"), column("n")],
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: vec![NewIndex {
            name: "t_n".into(),
            columns: vec![1],
            unique: true,
            constraint: true,
        }],
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    let inserted = tx.insert(&table, &row(&table, 1, 5)).expect("inserted");
    assert_eq!(inserted, Insert::Done);
    tx.commit().expect("committed");
    (engine, table)
}

fn row(table: &Table, id: i32, n: i32) -> Vec<u8> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Int4(n)];
    table.layout().encode(&values, &mut row).expect("a row");
    row
}

fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

fn n_of(table: &Table, row: &[u8]) -> i32 {
    match table.layout().column(row, 1) {
        Ok(DatumRef::Int4(n)) => n,
        other => panic!("unexpected value {other:?}"),
    }
}

fn change(tx: &mut Tx, table: &Table, to: Change) {
    let changed = tx.modify(table, &key(table, 1), &|_, _| Ok::<_, Error>(to.clone()));
    assert_eq!(changed.expect("no other transaction writes"), Outcome::Done);
}

/// Deletes the row or gives it another value, and takes that back: whole, or to a savepoint before a commit.
fn change_and_take_back(tx: &mut Tx, table: &Table) {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let whole = rt::random().is_multiple_of(2);
    if !whole {
        let other = row(table, 7, 70 + (rt::random() % 1000) as i32);
        tx.insert(table, &other).expect("a row of its own");
    }
    let savepoint = tx.savepoint();
    match rt::random() % 2 {
        0 => change(tx, table, Change::Delete),
        _ => change(tx, table, Change::Update(row(table, 1, 6))),
    }
    tx.rollback_to(&savepoint).expect("taken back");
    if whole { tx.rollback() } else { tx.commit() }.expect("ended");
}

/// Asks in three ways whether the row (1, 5) stands: by an insert of its unique value, a condition, and a lock.
fn ask(tx: &mut Tx, table: &Table) {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let inserted = tx.insert(table, &row(table, 2, 5)).expect("no conflict");
    assert!(
        matches!(inserted, Insert::Duplicate { index: Some(0), .. }),
        "two rows with n = 5"
    );
    tx.begin_statement();
    let met = tx.modify(table, &key(table, 1), &|found, _| {
        Ok::<_, Error>(match n_of(table, found) {
            5 => Change::Keep,
            _ => Change::Skip,
        })
    });
    assert_eq!(
        met.expect("no conflict"),
        Outcome::Done,
        "UPDATE ... WHERE id = 1 AND n = 5"
    );
    tx.rollback().expect("ended");
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let (mut found, strength) = (Vec::new(), LockStrength::Share);
    let locked = tx.lock_row(table, &key(table, 1), strength, Wait::Block, &mut found);
    assert!(
        matches!(locked.expect("no conflict"), Locked::Row { .. }),
        "the row is gone"
    );
    assert_eq!(n_of(table, &found), 5);
    tx.rollback().expect("ended");
}

/// A row was copied without a latch, and its transaction's status asked for behind that; where the transaction was
/// rolled back in between, it was over, and the copy of what never was counted as the newest version. Beside DELETE and
/// ROLLBACK an INSERT of the same unique value succeeded; `UPDATE ... WHERE id = 1 AND n = 5` beside
/// `UPDATE ... SET n = 6` and ROLLBACK answered UPDATE 0. After a return to a savepoint and a commit, the version that
/// was taken back counted as committed.
#[test]
fn a_version_that_was_taken_back_is_believed_by_no_reader() {
    for seed in seeds(SEEDS) {
        println!("CENOTE_SEED={seed}");
        run_beside_rollbacks(seed);
    }
}

/// The same without the second look: some seed must show it.
#[test]
fn without_a_second_look_it_is() {
    let _planted = fault::plant(Fault::AbortedVersion);
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run_beside_rollbacks(*seed))).is_err();
    let found = (1..=SEEDS_PLANTED).find(fails);
    println!("found by seed {found:?}");
    assert!(found.is_some(), "not found by {SEEDS_PLANTED} seeds");
}

fn run_beside_rollbacks(seed: u64) {
    let _rare = fault::plant(Fault::StalledLook);
    run(seed, |_| {
        let (engine, table) = made();
        let stop = Arc::new(AtomicBool::new(false));
        let (until, theirs) = (stop.clone(), (engine.clone(), table.clone()));
        let aborter = rt::spawn("aborter", move || {
            let mut tx = theirs.0.tx();
            while !until.load(Ordering::SeqCst) {
                change_and_take_back(&mut tx, &theirs.1);
                rt::sleep(Nanos(rt::random() % 2_000));
                remove(&mut tx, &theirs.1);
            }
        });
        let mut tx = engine.tx();
        (0..30).for_each(|_| ask(&mut tx, &table));
        stop.store(true, Ordering::SeqCst);
        aborter.join().expect("ends");
        drop(tx);
        let report = engine.check().expect("readable");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        engine.shutdown().expect("a clean end");
    });
}

/// Removes the row that a transaction with a savepoint has left.
fn remove(tx: &mut Tx, table: &Table) {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let removed = tx.modify(table, &key(table, 7), &|_, _| Ok::<_, Error>(Change::Delete));
    removed.expect("its own row");
    tx.commit().expect("committed");
}

const SEEDS: u64 = 20;
/// More, since each change of the engine shifts what a seed meets.
const SEEDS_PLANTED: u64 = 200;
