//! Crashes: what was acknowledged is there, what was not is not half there, indexes and rows agree.
//!
//! A crash of the process leaves region and files as they are: the engine is halted (its threads end, nothing is
//! written) with transactions in flight and dropped. With `dram`, or the region removed, the log must do it.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Model = BTreeMap<i32, (i32, String)>;

fn contents(engine: &Arc<Engine>) -> Model {
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    let rows: Model = all(&tx, &table).into_iter().map(|(id, k, c)| (id, (k, c))).collect();
    let indexed: Model = by_index(&tx, &table, 0, KeyRange::all())
        .into_iter()
        .map(|(id, k, c)| (id, (k, c)))
        .collect();
    assert_eq!(rows, indexed, "rows and index disagree");
    rows
}

/// Random statements in one transaction, applied to the model too.
fn work(random: &mut Random, tx: &mut Tx, table: &Table, model: &mut Model, ids: std::ops::Range<i32>) {
    for _ in 0..1 + random.below(12) {
        let id = ids.start + random.below((ids.end - ids.start) as u64) as i32;
        let (k, c) = (random.below(50) as i32, "v".repeat(random.below(300) as usize));
        let c = if random.below(12) == 0 {
            "L".repeat(9_000 + random.below(60_000) as usize)
        } else {
            c
        };
        match random.below(4) {
            3 => insert_some(random, tx, table, model, ids.clone()),
            0 => match insert(tx, table, id, k, &c).unwrap() {
                Insert::Done => assert!(model.insert(id, (k, c)).is_none()),
                Insert::Duplicate { .. } => assert!(model.contains_key(&id)),
            },
            1 => match update(tx, table, id, k, &c).unwrap() {
                Outcome::Done => assert!(model.insert(id, (k, c)).is_some()),
                _ => assert!(!model.contains_key(&id)),
            },
            _ => assert_eq!(
                delete(tx, table, id).unwrap() == Outcome::Done,
                model.remove(&id).is_some()
            ),
        }
    }
}

/// Inserts several rows together, in no order; where one is there already, the statement is taken back.
fn insert_some(random: &mut Random, tx: &mut Tx, table: &Table, model: &mut Model, ids: std::ops::Range<i32>) {
    let mut rows: Vec<(i32, i32, String)> = (0..2 + random.below(30))
        .map(|_| {
            let len = if random.one_in(15) {
                5_000
            } else {
                random.below(200) as usize
            };
            let id = ids.start + random.below((ids.end - ids.start) as u64) as i32;
            (id, random.below(50) as i32, "t".repeat(len))
        })
        .collect();
    if random.one_in(2) {
        let mut seen: std::collections::BTreeSet<i32> = model.keys().copied().collect();
        rows.retain(|(id, ..)| seen.insert(*id));
    }
    let mut new = NewRows::default();
    rows.iter().for_each(|(id, k, c)| new.push(&row(table, *id, *k, c)));
    let point = tx.savepoint();
    let refused = tx.insert_rows(table, &new, &mut 0).unwrap();
    let mut after = model.clone();
    let first = rows
        .into_iter()
        .position(|(id, k, c)| after.insert(id, (k, c)).is_some());
    assert_eq!(
        refused.map(|refused| refused.row),
        first,
        "the first row that is there already"
    );
    match refused {
        Some(_) => tx.rollback_to(&point).unwrap(),
        None => *model = after,
    }
}

fn restart(dir: &Path, engine: Arc<Engine>, memory: MemoryKind, lose_region: bool) -> Arc<Engine> {
    engine.halt();
    assert_eq!(Arc::strong_count(&engine), 1, "a reference to the engine is left");
    drop(engine);
    if lose_region {
        std::fs::remove_file(dir.join("region")).unwrap();
    }
    open(dir, memory)
}

/// More seeds than usual: `CENOTE_SEEDS`.
fn crash_again_and_again(memory: MemoryKind, lose_region: bool, first_seed: u64, rounds: usize) {
    let seeds = std::env::var("CENOTE_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    for seed in (0..seeds).map(|n| first_seed + 100 * n) {
        crash_from(Origins::default(), memory, lose_region, seed, rounds);
    }
}

/// Transactions that end, then two that do not when the engine halts; `model` has what was committed.
fn work_until_the_crash(engine: &Arc<Engine>, random: &mut Random, model: &mut Model) {
    let mut tx = engine.tx();
    let mut lost = engine.tx();
    tx.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    tx.rollback().unwrap();
    for _ in 0..random.below(60) {
        tx.begin(Isolation::ReadCommitted);
        let mut next = model.clone();
        work(random, &mut tx, &table, &mut next, 0..200);
        match random.below(4) {
            0 => tx.rollback().unwrap(),
            1 => {
                let point = tx.savepoint();
                let mut undone = next.clone();
                work(random, &mut tx, &table, &mut undone, 0..200);
                tx.rollback_to(&point).unwrap();
                tx.commit().unwrap();
                *model = next;
            }
            _ => {
                tx.commit().unwrap();
                *model = next;
            }
        }
    }
    // Two that do not end: one of them half rolled back, one with a definition.
    tx.begin(Isolation::ReadCommitted);
    let mut unseen = model.clone();
    work(random, &mut tx, &table, &mut unseen, 0..100);
    let point = tx.savepoint();
    work(random, &mut tx, &table, &mut unseen.clone(), 0..100);
    tx.rollback_to(&point).unwrap();
    if random.below(2) == 0 {
        work(random, &mut tx, &table, &mut unseen, 0..100);
    }
    lost.begin(Isolation::ReadCommitted);
    let extra = lost.create_table(new_table("lost", false)).unwrap();
    insert(&mut lost, &extra, 1, 1, "x").unwrap();
    work(random, &mut lost, &table, &mut model.clone(), 100..200);
    if random.below(3) == 0 {
        engine.checkpoint().unwrap();
    }
    engine.halt();
}

fn crash_from(origins: Origins, memory: MemoryKind, lose_region: bool, seed: u64, rounds: usize) {
    println!("seed {seed}, {origins:?}");
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(seed);
    let begun = EngineOptions {
        origins,
        ..options(dir.path(), memory)
    };
    let mut engine = Engine::open(begun).expect("the database opens");
    create(&engine, "t", false);
    let mut model = Model::new();
    for round in 0..rounds {
        work_until_the_crash(&engine, &mut random, &mut model);
        engine = restart(dir.path(), engine, memory, lose_region);
        assert_eq!(contents(&engine), model, "round {round}");
        let report = engine.recovery_report();
        assert_eq!(
            report.mode,
            if memory == MemoryKind::Cxl && !lose_region {
                "instant"
            } else {
                "log"
            }
        );
        if random.below(3) == 0 {
            // Once more, in the middle of the losers' rollback.
            engine = restart(dir.path(), engine, memory, lose_region);
            assert_eq!(contents(&engine), model, "round {round}, after a second crash");
        }
        let report = engine.recovery_report();
        for _ in 0..500 {
            if engine.recovery_report().transactions_rolled_back == report.losers {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(contents(&engine), model, "round {round}, after the losers' rollback");
        check(&engine);
        if random.below(2) == 0 {
            engine.vacuum().unwrap();
            check(&engine);
            let undo = engine
                .check()
                .unwrap()
                .summary
                .iter()
                .find_map(|l| l.split(" undo segments").next()?.parse::<usize>().ok());
            let files = std::fs::read_dir(dir.path().join("data/spaces")).unwrap().count();
            assert_eq!(files, 4 + undo.unwrap() + 2, "files of tables that never were");
        }
    }
    engine.shutdown().unwrap();
}

#[test]
fn instant_recovery() {
    crash_again_and_again(MemoryKind::Cxl, false, 11, 12);
}

#[test]
fn recovery_from_the_log() {
    crash_again_and_again(MemoryKind::Dram, false, 12, 8);
}

#[test]
fn recovery_when_the_region_is_lost() {
    crash_again_and_again(MemoryKind::Cxl, true, 13, 6);
}

#[test]
fn a_second_server_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let second = Engine::open(options(dir.path(), MemoryKind::Dram));
    assert!(second.is_err_and(|e| e.to_string().contains("in use")));
    engine.shutdown().unwrap();
}

/// Several sessions, halted in the middle: each one's acknowledged commits are there, in order and whole.
#[test]
fn sessions_cut_off_in_the_middle() {
    for (round, memory) in [MemoryKind::Cxl, MemoryKind::Dram, MemoryKind::Cxl]
        .into_iter()
        .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), memory);
        let table = create(&engine, "t", false);
        let stop = Arc::new(AtomicBool::new(false));
        let sessions: Vec<_> = (0..4)
            .map(|s| {
                let (engine, table, stop) = (engine.clone(), table.clone(), stop.clone());
                std::thread::spawn(move || {
                    let (mut tx, mut acknowledged) = (engine.tx(), 0);
                    for n in 1.. {
                        tx.begin(Isolation::ReadCommitted);
                        for part in 0..3 {
                            let id = s * 1_000_000 + n * 3 + part;
                            insert(&mut tx, &table, id, n, "x").unwrap();
                        }
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        tx.commit().unwrap();
                        acknowledged = n;
                    }
                    acknowledged
                })
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(150));
        // From here on a transaction that ends with its thread leaves everything as a crash would.
        stop.store(true, Ordering::Relaxed);
        engine.halt();
        let acknowledged: Vec<i32> = sessions.into_iter().map(|s| s.join().unwrap()).collect();
        let engine = restart(dir.path(), engine, memory, false);
        let rows = contents(&engine);
        for (s, n) in acknowledged.iter().enumerate() {
            for part in 0..3 {
                assert!(
                    *n == 0 || rows.contains_key(&(s as i32 * 1_000_000 + n * 3 + part)),
                    "round {round}: lost"
                );
            }
        }
        let expected: i32 = acknowledged.iter().map(|n| n * 3).sum();
        assert_eq!(rows.len() as i32, expected, "round {round}: half a transaction");
        assert!(expected > 0);
        check(&engine);
        engine.shutdown().unwrap();
    }
}

/// Redo positions beyond 2^48 bytes and transaction numbers beyond 2^32 and 2^48 were cut off in the words that hold
/// them. What a database does is the same wherever its numbers begin.
#[test]
fn databases_whose_numbers_begin_high_crash_like_others() {
    let log = |log| Origins {
        log,
        ..Origins::default()
    };
    let tx = |tx| Origins {
        tx,
        ..Origins::default()
    };
    let near_the_end = Origins {
        cts_pages: 128,
        ..log((1 << 59) - (1 << 41))
    };
    let origins = [
        log((1 << 48) - (1 << 20)),
        tx((1 << 48) - 20),
        tx((1 << 52) - (1 << 20)),
        near_the_end,
    ];
    for (origins, seed) in origins.into_iter().zip(60..) {
        crash_from(origins, MemoryKind::Cxl, false, seed, 2);
        crash_from(origins, MemoryKind::Cxl, true, seed, 2);
    }
}

/// The last transaction numbers: writes are refused before a number would be another one's, and what is there is read.
#[test]
fn the_last_transaction_number_is_not_passed() {
    let dir = tempfile::tempdir().unwrap();
    let begun = EngineOptions {
        origins: Origins {
            tx: (1 << 52) - (1 << 16) - 1,
            ..Origins::default()
        },
        ..options(dir.path(), MemoryKind::Cxl)
    };
    let mut engine = Engine::open(begun).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, "one").unwrap();
    tx.commit().unwrap();
    drop((tx, table));
    // The block in use is left behind by a crash, and there is no room for another one.
    engine.halt();
    engine = restart(dir.path(), engine, MemoryKind::Cxl, false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    let refused = insert(&mut tx, &table, 2, 2, "two").expect_err("no number is left");
    assert_eq!(refused.sqlstate(), "54000", "{refused}");
    tx.rollback().unwrap();
    assert_eq!(contents(&engine).len(), 1);
    drop(tx);
    check(&engine);
}
