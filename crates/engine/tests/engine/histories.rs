//! Random concurrent transactions, judged by what isolation promises.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const ACCOUNTS: i32 = 40;

fn accounts(engine: &Arc<Engine>) -> Arc<Table> {
    let table = create(engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..ACCOUNTS {
        insert(&mut tx, &table, id, 100, "").unwrap();
    }
    tx.commit().unwrap();
    table
}

fn add(tx: &mut Tx, table: &Table, id: i32, amount: i32) -> Result<Outcome> {
    tx.modify(table, &key(table, id), &|r, _| {
        let (id, k, c) = values(table, r);
        Ok::<_, Error>(Change::Update(row(table, id, k + amount, &c)))
    })
}

/// Money moves between accounts; every snapshot sees the same sum, by table and by index; nothing is lost.
fn transfers(isolation: Isolation, seed: u64) {
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = accounts(&engine);
    let stop = Arc::new(AtomicBool::new(false));
    let moved = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let (engine, table, moved) = (engine.clone(), table.clone(), moved.clone());
            std::thread::spawn(move || {
                let mut random = Random(seed * 100 + n);
                let mut tx = engine.tx();
                for _ in 0..400 {
                    tx.begin(isolation);
                    tx.begin_statement();
                    let (from, to) = (
                        random.below(ACCOUNTS as u64) as i32,
                        random.below(ACCOUNTS as u64) as i32,
                    );
                    let amount = random.below(20) as i32;
                    let done = add(&mut tx, &table, from, -amount).and_then(|_| {
                        tx.begin_statement();
                        if random.below(4) == 0 {
                            let point = tx.savepoint();
                            add(&mut tx, &table, to, 1_000_000)?;
                            tx.rollback_to(&point)?;
                        }
                        add(&mut tx, &table, to, amount)
                    });
                    match done {
                        Ok(outcome) if random.below(10) > 0 => {
                            assert_eq!(outcome, Outcome::Done);
                            tx.commit().unwrap();
                            moved.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => tx.rollback().unwrap(),
                        Err(error) => {
                            assert!(["40001", "40P01"].contains(&error.sqlstate()), "{error}");
                            tx.rollback().unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    let reader = {
        let (engine, table, stop) = (engine.clone(), table.clone(), stop.clone());
        std::thread::spawn(move || {
            let (mut tx, mut looks) = (engine.tx(), 0);
            while !stop.load(Ordering::Relaxed) {
                tx.begin(Isolation::RepeatableRead);
                tx.begin_statement();
                let first = all(&tx, &table);
                assert_eq!(first.iter().map(|r| r.1).sum::<i32>(), 100 * ACCOUNTS);
                let mut indexed = by_index(&tx, &table, 0, KeyRange::all());
                indexed.sort();
                assert_eq!(indexed, first, "the index shows another state than the table");
                let mut alone = by_index_alone(&tx, &table);
                alone.sort();
                let keys: Vec<_> = first.iter().map(|(id, k, _)| (*id, *k)).collect();
                assert_eq!(alone, keys, "the index alone shows another state");
                tx.begin_statement();
                assert_eq!(all(&tx, &table), first, "repeatable read");
                tx.commit().unwrap();
                looks += 1;
            }
            looks
        })
    };
    writers.into_iter().for_each(|w| w.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0 && moved.load(Ordering::Relaxed) > 100);
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn money_is_neither_made_nor_lost_at_read_committed() {
    transfers(Isolation::ReadCommitted, 21);
}

#[test]
fn money_is_neither_made_nor_lost_at_repeatable_read() {
    transfers(Isolation::RepeatableRead, 22);
}

/// Snapshot isolation admits write skew, and nothing worse.
#[test]
fn write_skew_is_admitted_lost_update_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = accounts(&engine);
    let (mut a, mut b) = (
        engine.begin(Isolation::RepeatableRead),
        engine.begin(Isolation::RepeatableRead),
    );
    a.begin_statement();
    b.begin_statement();
    assert_eq!(get(&a, &table, 2), get(&b, &table, 2));
    update(&mut a, &table, 1, 0, "").unwrap();
    update(&mut b, &table, 2, 0, "").unwrap();
    a.commit().unwrap();
    b.commit().unwrap();
    a.begin(Isolation::RepeatableRead);
    b.begin(Isolation::RepeatableRead);
    a.begin_statement();
    b.begin_statement();
    add(&mut a, &table, 3, 1).unwrap();
    a.commit().unwrap();
    assert_eq!(add(&mut b, &table, 3, 1).unwrap_err().sqlstate(), "40001");
    b.rollback().unwrap();
    engine.shutdown().unwrap();
}

/// Many insert the same unique keys at once: each key is there once, whichever won.
#[test]
fn races_for_unique_keys_have_one_winner() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", true);
    let winners = Arc::new(Mutex::new(BTreeMap::<i32, i32>::new()));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (engine, table, winners) = (engine.clone(), table.clone(), winners.clone());
            std::thread::spawn(move || {
                let mut random = Random(n);
                let mut tx = engine.tx();
                for k in 0..200 {
                    tx.begin(Isolation::ReadCommitted);
                    let id = k * 10 + n as i32;
                    match insert(&mut tx, &table, id, k, "") {
                        Ok(Insert::Done) if random.below(3) > 0 => {
                            tx.commit().unwrap();
                            assert!(winners.lock().unwrap().insert(k, id).is_none(), "two winners of {k}");
                        }
                        Ok(_) => tx.rollback().unwrap(),
                        Err(error) => {
                            assert_eq!(error.sqlstate(), "40P01");
                            tx.rollback().unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let tx = engine.begin(Isolation::ReadCommitted);
    let rows: BTreeMap<i32, i32> = all(&tx, &table).into_iter().map(|(id, k, _)| (k, id)).collect();
    assert_eq!(rows, *winners.lock().unwrap());
    drop(tx);
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

/// Transactions that change rows that only session `n` writes; what they leave.
fn change_own_rows(engine: &Arc<Engine>, n: i32) -> BTreeMap<i32, i32> {
    let (mut random, mut model) = (Random(31 + n as u64), BTreeMap::new());
    let mut tx = engine.tx();
    for _ in 0..300 {
        tx.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        let mut next: BTreeMap<i32, i32> = model.clone();
        let done = (0..random.below(8)).try_for_each(|_| {
            let (id, k) = (n * 1000 + random.below(60) as i32, random.below(30) as i32);
            tx.begin_statement();
            match random.below(3) {
                0 => match insert(&mut tx, &table, id, k, "text")? {
                    Insert::Done => assert!(next.insert(id, k).is_none()),
                    Insert::Duplicate { .. } => assert!(next.contains_key(&id)),
                },
                1 => match update(&mut tx, &table, id, k, "other")? {
                    Outcome::Done => assert!(next.insert(id, k).is_some()),
                    _ => assert!(!next.contains_key(&id)),
                },
                _ => assert_eq!(
                    delete(&mut tx, &table, id)? == Outcome::Done,
                    next.remove(&id).is_some()
                ),
            }
            Ok::<_, Error>(())
        });
        match done {
            Ok(()) if random.below(5) > 0 => {
                tx.commit().unwrap();
                model = next;
            }
            Ok(()) => tx.rollback().unwrap(),
            Err(error) => {
                assert!(["55000", "40P01"].contains(&error.sqlstate()), "{error}");
                tx.rollback().unwrap();
            }
        }
    }
    model
}

/// Definitions, row changes, index changes and purge at once; a model per session of the rows that only it writes.
#[test]
fn everything_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    create(&engine, "t", false);
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let engine = engine.clone();
            std::thread::spawn(move || change_own_rows(&engine, n))
        })
        .collect();
    let mut random = Random(77);
    let mut tx = engine.tx();
    for n in 0..30 {
        tx.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        let done = match table.index_named("extra") {
            Some(at) => tx.drop_index(&table, at).map(|_| ()),
            None => tx
                .create_index(
                    &table,
                    NewIndex {
                        name: "extra".into(),
                        columns: vec![2, 1],
                        unique: false,
                        constraint: false,
                    },
                )
                .map(|_| ()),
        };
        match done {
            Ok(()) if random.below(3) > 0 => tx.commit().unwrap(),
            _ => tx.rollback().unwrap(),
        }
        if n % 5 == 0 {
            engine.vacuum().unwrap();
        }
    }
    let mut expected = BTreeMap::new();
    threads.into_iter().for_each(|t| expected.extend(t.join().unwrap()));
    tx.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    let rows: BTreeMap<i32, i32> = all(&tx, &table).into_iter().map(|(id, k, _)| (id, k)).collect();
    assert_eq!(rows, expected);
    tx.rollback().unwrap();
    drop(tx);
    engine.vacuum().unwrap();
    check(&engine);
    engine.shutdown().unwrap();
}

/// Some delete a row or take its unique value away, and roll that back; others ask for the value. The row has it at
/// every moment. (In the order of threads that the simulator draws: crates/sim/tests/aborted.rs.)
#[test]
fn a_unique_value_stays_with_its_row_beside_rollbacks() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", true);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 5, "").unwrap();
    tx.commit().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let rolling_back = {
        let (engine, table, stop) = (engine.clone(), table.clone(), stop.clone());
        std::thread::spawn(move || {
            let (mut tx, mut random) = (engine.tx(), Random(41));
            while !stop.load(Ordering::Relaxed) {
                tx.begin(Isolation::ReadCommitted);
                tx.begin_statement();
                match random.below(2) {
                    0 => delete(&mut tx, &table, 1).unwrap(),
                    _ => update(&mut tx, &table, 1, 6, "").unwrap(),
                };
                tx.rollback().unwrap();
            }
        })
    };
    for _ in 0..2_000 {
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        let inserted = insert(&mut tx, &table, 2, 5, "").unwrap();
        assert!(
            matches!(inserted, Insert::Duplicate { index: Some(0), .. }),
            "{inserted:?}"
        );
        let kept = tx.modify(&table, &key(&table, 1), &|row, _| {
            let is_it = values(&table, row).1 == 5;
            Ok::<_, Error>(if is_it { Change::Keep } else { Change::Skip })
        });
        assert_eq!(kept.unwrap(), Outcome::Done);
        tx.rollback().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    rolling_back.join().unwrap();
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}
