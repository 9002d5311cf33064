//! Large rollbacks, which the background does.

use crate::common::*;
use cenote_engine::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn made(options: EngineOptions, rows: i32) -> (Arc<Engine>, Arc<Table>) {
    let engine = Engine::open(options).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..rows {
        insert(&mut tx, &table, id, id, "some text").expect("inserted");
    }
    tx.commit().expect("committed");
    (engine, table)
}

fn update_all(tx: &mut Tx, table: &Table, rows: i32) {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    for id in 0..rows {
        update(tx, table, id, -id, "some text").expect("free");
    }
}

fn until_rolled_back(engine: &Engine) {
    while engine.rollbacks_waiting().0 > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sessions that give up all they did, one after the other, beside others that want the same rows; the process is
/// halted in the midst, and the next one goes on.
#[test]
fn sessions_go_on_beside_rollbacks_in_the_background() {
    const ROWS: i32 = 2_000;
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = made(options(dir.path(), MemoryKind::Cxl), ROWS);
    let sessions: Vec<_> = (0..3)
        .map(|n| {
            let (engine, table) = (engine.clone(), table.clone());
            std::thread::spawn(move || {
                let (mut tx, mut random, mut sum) = (engine.tx(), Random(n), 0);
                for round in 0..40 {
                    tx.begin(Isolation::ReadCommitted);
                    tx.begin_statement();
                    let mut ids: Vec<_> = (0..300).map(|_| random.below(ROWS as u64) as i32).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    let keeps = round % 4 == 3;
                    for id in ids {
                        let change = |old: &[u8], _| {
                            let (id, k, c) = values(&table, old);
                            Ok::<_, Error>(Change::Update(row(&table, id, k + if keeps { 1 } else { 5_000 }, &c)))
                        };
                        tx.modify(&table, &key(&table, id), &change).expect("in one order");
                        sum += i64::from(keeps);
                    }
                    if keeps { tx.commit() } else { tx.rollback() }.expect("ended");
                }
                sum
            })
        })
        .collect();
    let added: i64 = sessions
        .into_iter()
        .map(|session| session.join().expect("no panic"))
        .sum();
    let sum = |engine: &Arc<Engine>| {
        let tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").expect("readable").expect("there");
        all(&tx, &table).iter().map(|(_, k, _)| i64::from(*k)).sum::<i64>()
    };
    let expected = i64::from(ROWS - 1) * i64::from(ROWS) / 2 + added;
    assert_eq!(sum(&engine), expected);
    let mut tx = engine.tx();
    update_all(&mut tx, &table, ROWS);
    tx.rollback().expect("left to the background");
    engine.halt();
    drop((tx, engine));
    let engine = open(dir.path(), MemoryKind::Cxl);
    assert_eq!(sum(&engine), expected);
    until_rolled_back(&engine);
    assert_eq!(sum(&engine), expected);
    engine.vacuum().expect("purged");
    check(&engine);
    engine.shutdown().expect("shut down");
}

/// A measurement: how long the client of a large rollback waits, and a transaction that wants one of its rows.
/// CENOTE_UPDATES gives the number of rows, CENOTE_ROLLBACK_ROWS from how many on it is left to the background.
#[test]
#[ignore = "a measurement: cargo test --release -p cenote-engine --test engine large_rollback -- --ignored --nocapture"]
fn wait_for_a_large_rollback() {
    let rows: i32 = std::env::var("CENOTE_UPDATES").map_or(1_000_000, |n| n.parse().expect("a number"));
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), MemoryKind::Cxl);
    options.memory_size = 1 << 30;
    if let Ok(rows) = std::env::var("CENOTE_ROLLBACK_ROWS") {
        options.tuning.rollback_rows = rows.parse().expect("a number");
    }
    let (engine, table) = made(options, rows);
    let mut tx = engine.tx();
    let begun = Instant::now();
    update_all(&mut tx, &table, rows);
    println!("{rows} updates of an indexed column: {:?}", begun.elapsed());
    let rolling = {
        let begun = Instant::now();
        std::thread::spawn(move || {
            tx.rollback().expect("left to the background");
            println!("the client of ROLLBACK waited {:?}", begun.elapsed());
        })
    };
    let rolled = Instant::now();
    let (mut other, mut waits) = (engine.tx(), Vec::new());
    for id in (0..rows).step_by((rows as usize / 100).max(1)) {
        let begun = Instant::now();
        other.begin(Isolation::ReadCommitted);
        update(&mut other, &table, id, 5, "other text").expect("had");
        other.commit().expect("committed");
        waits.push(begun.elapsed());
    }
    waits.sort();
    println!(
        "{} updates of its rows, committed: median {:?}, longest {:?}",
        waits.len(),
        waits[waits.len() / 2],
        waits[waits.len() - 1]
    );
    rolling.join().expect("no panic");
    until_rolled_back(&engine);
    println!("all was taken back after {:?}", rolled.elapsed());
    drop(other);
    engine.shutdown().expect("shut down");
}
