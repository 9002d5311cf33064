//! Rows that get other primary keys behind the snapshot of a statement that wants them: at read committed the statement
//! goes on with its row under the new key, as PostgreSQL does, and with no other row that has come to stand under the
//! former one.

use crate::common::*;
use cenote_engine::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows by primary key: which row it is (column k), whatever its key, and its text.
type Rows = BTreeMap<i32, (i32, String)>;

const KEYS: i32 = 12;

fn made(memory: MemoryKind) -> (tempfile::TempDir, Arc<Engine>, Arc<Table>) {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), memory);
    let table = create(&engine, "t", false);
    (dir, engine, table)
}

/// Gives the row another key.
fn rekey(tx: &mut Tx, table: &Table, from: i32, to: i32) -> Result<Outcome> {
    tx.modify(table, &key(table, from), &|old, _| {
        let (_, k, c) = values(table, old);
        Ok::<_, Error>(Change::Update(row(table, to, k, &c)))
    })
}

fn in_one(engine: &Arc<Engine>, work: impl FnOnce(&mut Tx)) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    work(&mut tx);
    tx.commit().unwrap();
}

/// What `late` meets, which wants the row with this key: (key, which row), the newest version that it is asked about.
fn reached(late: &mut Tx, table: &Table, id: i32) -> Option<(i32, i32)> {
    let asked = RefCell::new(None);
    let done = late
        .modify(table, &key(table, id), &|newest, _| {
            let (id, k, c) = values(table, newest);
            *asked.borrow_mut() = Some((id, k));
            Ok::<_, Error>(Change::Update(row(table, id, k, &format!("{c}+"))))
        })
        .unwrap();
    asked.into_inner().filter(|_| done == Outcome::Done)
}

/// What another transaction does behind the snapshot, and where rows 1 and 2 are then: key and `k`.
type Case = (&'static str, fn(&mut Tx, &Table), [Option<(i32, i32)>; 2]);

const TWO: Option<(i32, i32)> = Some((2, 2));

const CASES: [Case; 10] = [
    (
        "it gets another key",
        |tx, t| drop(rekey(tx, t, 1, 7)),
        [Some((7, 1)), TWO],
    ),
    (
        "several, one after the other, and changes between",
        |tx, t| {
            for (from, to) in [(1, 7), (7, 8), (8, 9)] {
                rekey(tx, t, from, to).unwrap();
                update(tx, t, to, 1, "changed").unwrap();
            }
        },
        [Some((9, 1)), TWO],
    ),
    (
        "another and the former one again",
        |tx, t| {
            rekey(tx, t, 1, 7).unwrap();
            rekey(tx, t, 7, 1).unwrap();
        },
        [Some((1, 1)), TWO],
    ),
    (
        "it is deleted under its new key",
        |tx, t| {
            rekey(tx, t, 1, 7).unwrap();
            delete(tx, t, 7).unwrap();
        },
        [None, TWO],
    ),
    (
        "another row is inserted where it was deleted",
        |tx, t| {
            rekey(tx, t, 1, 7).unwrap();
            delete(tx, t, 7).unwrap();
            insert(tx, t, 7, 70, "").unwrap();
            update(tx, t, 7, 70, "changed").unwrap();
        },
        [None, TWO],
    ),
    (
        "another row is inserted under its former key",
        |tx, t| {
            rekey(tx, t, 1, 7).unwrap();
            insert(tx, t, 1, 10, "").unwrap();
            update(tx, t, 1, 10, "changed").unwrap();
        },
        [Some((7, 1)), TWO],
    ),
    (
        "it is deleted, and another inserted under its key",
        |tx, t| {
            delete(tx, t, 1).unwrap();
            insert(tx, t, 1, 10, "").unwrap();
        },
        [None, TWO],
    ),
    (
        "it takes the key of a row that is deleted",
        |tx, t| {
            delete(tx, t, 2).unwrap();
            rekey(tx, t, 1, 2).unwrap();
        },
        [Some((2, 1)), None],
    ),
    (
        "two rows change their keys with each other",
        |tx, t| {
            for (from, to) in [(1, 9), (2, 1), (9, 2)] {
                rekey(tx, t, from, to).unwrap();
            }
        },
        [Some((2, 1)), Some((1, 2))],
    ),
    (
        "a key that was taken back",
        |tx, t| {
            rekey(tx, t, 1, 7).unwrap();
            let savepoint = tx.savepoint();
            rekey(tx, t, 7, 8).unwrap();
            rekey(tx, t, 2, 7).unwrap();
            tx.rollback_to(&savepoint).unwrap();
        },
        [Some((7, 1)), TWO],
    ),
];

/// An UPDATE at read committed passed over a row whose primary key another transaction had changed, and took one for it
/// that was inserted under the former key. Each case: what happens behind the snapshot of a statement that wants rows 1
/// and 2, and where they are.
#[test]
fn a_row_is_found_under_its_new_key() {
    for (name, behind, expected) in CASES {
        let (_dir, engine, table) = made(MemoryKind::Dram);
        in_one(&engine, |tx| {
            for id in [1, 2] {
                insert(tx, &table, id, id, "").unwrap();
            }
        });
        let mut locks = engine.begin(Isolation::ReadCommitted);
        let mut late = engine.begin(Isolation::ReadCommitted);
        let mut repeats = engine.begin(Isolation::RepeatableRead);
        for tx in [&mut locks, &mut late, &mut repeats] {
            tx.begin_statement();
            assert_eq!(all(tx, &table).len(), 2);
        }
        in_one(&engine, |tx| behind(tx, &table));
        engine.vacuum().unwrap();
        for (id, expected) in [1, 2].into_iter().zip(expected) {
            let mut found = Vec::new();
            let (strength, wait) = (LockStrength::Update, Wait::NoWait);
            let locked = locks
                .lock_row(&table, &key(&table, id), strength, wait, &mut found)
                .unwrap();
            let there = matches!(locked, Locked::Row { .. }).then(|| values(&table, &found));
            assert_eq!(there.map(|(id, k, _)| (id, k)), expected, "{name}: row {id} is locked");
        }
        locks.rollback().unwrap();
        for (id, expected) in [1, 2].into_iter().zip(expected) {
            assert_eq!(reached(&mut late, &table, id), expected, "{name}: row {id}");
        }
        late.commit().unwrap();
        let refused = update(&mut repeats, &table, 1, 0, "").unwrap_err();
        assert_eq!(refused.sqlstate(), "40001", "{name}");
        repeats.rollback().unwrap();
        drop((locks, late, repeats));
        check(&engine);
        engine.shutdown().unwrap();
    }
}

/// Random changes behind random snapshots, with transactions and savepoints taken back, purge, and the process lost in
/// the middle: each row of the snapshot is the one that is reached, wherever it is, and only once.
#[test]
fn rows_keep_their_identity_wherever_they_go() {
    for seed in 1..=12 {
        let memory = [MemoryKind::Dram, MemoryKind::Cxl][seed as usize % 2];
        let (dir, mut engine, mut table) = made(memory);
        let (mut random, mut rows, mut next) = (Random(seed), Rows::new(), 0);
        for round in 0..60 {
            let mut late = engine.begin(Isolation::ReadCommitted);
            late.begin_statement();
            let seen = rows.clone();
            assert_eq!(contents(&late, &table), seen, "seed {seed}, round {round}");
            for _ in 0..random.below(4) {
                other(&engine, &table, &mut random, &mut rows, &mut next);
                if random.below(3) == 0 {
                    engine.vacuum().unwrap();
                }
            }
            for (id, (identity, _)) in &seen {
                let place = rows.iter().find(|(_, (k, _))| k == identity).map(|(id, _)| *id);
                let met = reached(&mut late, &table, *id);
                assert_eq!(
                    met,
                    place.map(|id| (id, *identity)),
                    "seed {seed}, round {round}, row {id}"
                );
                if let Some(id) = place {
                    rows.get_mut(&id).unwrap().1.push('+');
                }
            }
            late.commit().unwrap();
            drop(late);
            if random.below(15) == 0 {
                let mut lost = engine.begin(Isolation::ReadCommitted);
                let (mut rows, mut next) = (rows.clone(), next);
                work(&mut lost, &table, &mut random, &mut rows, &mut next);
                engine.halt();
                drop((lost, table, engine));
                engine = open(dir.path(), memory);
                let tx = engine.begin(Isolation::ReadCommitted);
                table = tx.table("t").unwrap().unwrap();
            }
        }
        check(&engine);
        engine.shutdown().unwrap();
    }
}

fn contents(tx: &Tx, table: &Arc<Table>) -> Rows {
    all(tx, table).into_iter().map(|(id, k, c)| (id, (k, c))).collect()
}

/// A transaction that is committed, or not.
fn other(engine: &Arc<Engine>, table: &Table, random: &mut Random, rows: &mut Rows, next: &mut i32) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let before = rows.clone();
    work(&mut tx, table, random, rows, next);
    if random.below(5) == 0 {
        tx.rollback().unwrap();
        *rows = before;
    } else {
        tx.commit().unwrap();
    }
}

fn work(tx: &mut Tx, table: &Table, random: &mut Random, rows: &mut Rows, next: &mut i32) {
    let mut saved = None;
    for _ in 0..1 + random.below(6) {
        match random.below(8) {
            0 => saved = Some((tx.savepoint(), rows.clone())),
            1 => {
                if let Some((savepoint, then)) = &saved {
                    tx.rollback_to(savepoint).unwrap();
                    *rows = then.clone();
                }
            }
            _ => step(tx, table, random, rows, next),
        }
    }
}

fn step(tx: &mut Tx, table: &Table, random: &mut Random, rows: &mut Rows, next: &mut i32) {
    let mut any = || random.below(KEYS as u64) as i32;
    let (id, to) = (any(), any());
    let there = rows.get(&id).cloned();
    match (there, random.below(6)) {
        (None, _) => {
            *next += 1;
            insert(tx, table, id, *next, "").unwrap();
            rows.insert(id, (*next, String::new()));
        }
        (Some(_), 0) => {
            delete(tx, table, id).unwrap();
            rows.remove(&id);
        }
        (Some((k, _)), 1) => {
            update(tx, table, id, k, "changed").unwrap();
            rows.insert(id, (k, "changed".into()));
        }
        (Some(_), _) if to != id && rows.contains_key(&to) => {
            assert_eq!(rekey(tx, table, id, to).unwrap_err().sqlstate(), "23505");
        }
        (Some(row), _) => {
            rekey(tx, table, id, to).unwrap();
            rows.remove(&id);
            rows.insert(to, row);
        }
    }
}
