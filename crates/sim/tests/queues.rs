//! Rows that many wait for: every waiter gets its turn, whatever those before it do.

use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Engine, EngineOptions, Error, Insert, Isolation, LockStrength,
    Locked, MemoryKind, NewTable, Outcome, Table, Tx, Wait,
};
use cenote_sim::{run, seeds};

const ROWS: i32 = 2;
const SESSIONS: u64 = 8;
const ROUNDS: i32 = 12;

/// A table of (id primary key, n), with rows (0, 0) and (1, 0).
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
        indexes: vec![],
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    for id in 0..ROWS {
        assert_eq!(tx.insert(&table, &row(&table, id, 0)).expect("inserted"), Insert::Done);
    }
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

/// One of the things that are done to a row; how much it adds.
fn touch(tx: &mut Tx, table: &Table, id: i32) -> Result<i32, Error> {
    tx.begin_statement();
    let key = key(table, id);
    match rt::random() % 6 {
        0 => tx
            .lock_row(table, &key, LockStrength::Share, Wait::Block, &mut Vec::new())
            .map(|_| 0),
        1 => tx
            .lock_row(table, &key, LockStrength::Update, Wait::SkipLocked, &mut Vec::new())
            .map(|_| 0),
        2 => tx.modify(table, &key, &|_, _| Ok::<_, Error>(Change::Skip)).map(|_| 0),
        3 => tx
            .modify(table, &key, &|_, moved| {
                Ok::<_, Error>(if moved { Change::Skip } else { Change::Keep })
            })
            .map(|_| 0),
        _ => {
            let add = |found: &[u8], _| Ok::<_, Error>(Change::Update(row(table, id, n_of(table, found) + 1)));
            let done = tx.modify(table, &key, &add)?;
            assert_eq!(done, Outcome::Done, "no session deletes rows");
            Ok(1)
        }
    }
}

/// Touches both rows, in any order; what was added to each, if that was committed.
fn round(tx: &mut Tx, table: &Table) -> [i32; 2] {
    let mut added = [0; 2];
    tx.begin(Isolation::ReadCommitted);
    tx.set_lock_timeout(if rt::random().is_multiple_of(4) { 1 } else { 0 });
    for _ in 0..1 + rt::random() % 3 {
        let id = (rt::random() % 2) as usize;
        match touch(tx, table, id as i32) {
            Ok(n) => added[id] += n,
            Err(Error::Deadlock(_) | Error::LockNotAvailable(_)) => {
                tx.rollback().expect("ended");
                return [0; 2];
            }
            Err(error) => panic!("{error}"),
        }
        rt::sleep(Nanos(rt::random() % 300_000));
    }
    tx.commit().expect("committed");
    added
}

/// Sessions queue for two rows, change, share, skip or do not want them, time out and close cycles. Each of them ends
/// (a waiter that is never woken is found by the simulator), and no addition is lost.
#[test]
fn every_waiter_gets_its_turn() {
    for seed in seeds(40) {
        println!("CENOTE_SEED={seed}");
        run(seed, |_| {
            let (engine, table) = made();
            let sessions: Vec<_> = (0..SESSIONS)
                .map(|_| {
                    let (engine, table) = (engine.clone(), table.clone());
                    rt::spawn("session", move || {
                        let mut tx = engine.tx();
                        let rounds = (0..ROUNDS).map(|_| round(&mut tx, &table));
                        rounds.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
                    })
                })
                .collect();
            let mut sums = [0; 2];
            for session in sessions {
                let added = session.join().expect("ends");
                sums = [sums[0] + added[0], sums[1] + added[1]];
            }
            let tx = engine.begin(Isolation::ReadCommitted);
            for id in 0..ROWS {
                let mut found = Vec::new();
                assert!(tx.get(&table, &key(&table, id), &mut found).expect("readable"));
                assert_eq!(n_of(&table, &found), sums[id as usize], "row {id}");
            }
            drop(tx);
            assert_eq!(engine.waiting_transactions(), 0);
            engine.shutdown().expect("a clean end");
        });
    }
}

/// Deletes row 0 where it is there, and puts it back where it is not, now and then in vain. A statement that does not
/// see the row may not change it, nor lock it, whichever transaction queues for its key meanwhile.
fn come_and_go(tx: &mut Tx, table: &Table) {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let is_there = tx.get(table, &key(table, 0), &mut Vec::new()).expect("readable");
    let met = if rt::random().is_multiple_of(2) {
        let change = tx.modify(table, &key(table, 0), &|_, _| Ok::<_, Error>(Change::Delete));
        change.map(|outcome| outcome != Outcome::Gone)
    } else {
        let mut found = Vec::new();
        let locked = tx.lock_row(table, &key(table, 0), LockStrength::Update, Wait::Block, &mut found);
        locked.map(|locked| matches!(locked, Locked::Row { .. }))
    };
    assert!(
        is_there || !met.expect("nothing to wait for"),
        "a row was met that the snapshot has not"
    );
    if !is_there {
        tx.begin_statement();
        tx.insert(table, &row(table, 0, 0)).expect("done, or there is one");
    }
    rt::sleep(Nanos(rt::random() % 300_000));
    if rt::random().is_multiple_of(4) {
        tx.rollback()
    } else {
        tx.commit()
    }
    .expect("ended");
}

/// A statement whose snapshot saw the row's deletion queued for the key behind others, and took the row that was
/// inserted there in the meantime for its own.
#[test]
fn a_row_outside_the_snapshot_is_met_by_no_reader() {
    for seed in seeds(40) {
        println!("CENOTE_SEED={seed}");
        run(seed, |_| {
            let (engine, table) = made();
            let sessions: Vec<_> = (0..SESSIONS)
                .map(|_| {
                    let (engine, table) = (engine.clone(), table.clone());
                    rt::spawn("session", move || {
                        let mut tx = engine.tx();
                        (0..ROUNDS).for_each(|_| come_and_go(&mut tx, &table));
                    })
                })
                .collect();
            sessions.into_iter().for_each(|session| session.join().expect("ends"));
            engine.shutdown().expect("a clean end");
        });
    }
}
