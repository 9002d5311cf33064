//! Point reads, range reads and updates through the engine: operations a second on one thread and on several.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use cenote_base::random::Random;
use cenote_engine::*;
use std::sync::Arc;
use std::time::Instant;

fn key(table: &Table, id: i32, out: &mut Vec<u8>) {
    table.key_of_values(&[Datum::Int4(id)], out);
}

fn main() {
    let rows: i32 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(100_000);
    let ops: u64 = std::env::args().nth(2).and_then(|a| a.parse().ok()).unwrap_or(300_000);
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = EngineOptions::new(dir.path().join("data"), MemoryKind::Dram, 512 << 20);
    options.region = Some(dir.path().join("region"));
    let engine = Engine::open(options).expect("opens");
    let table = prepare(&engine, rows);
    for threads in [1, 4] {
        measure("point read, autocommit", threads, ops, &engine, &table, rows, reads);
        measure(
            "range of 100, autocommit",
            threads,
            ops / 50,
            &engine,
            &table,
            rows,
            ranges,
        );
        measure("update, autocommit", threads, ops / 100, &engine, &table, rows, updates);
        measure(
            "10 updates a transaction",
            threads,
            ops / 100,
            &engine,
            &table,
            rows,
            ten_updates,
        );
    }
    engine.shutdown().expect("ends");
}

fn prepare(engine: &Arc<Engine>, rows: i32) -> Arc<Table> {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx
        .create_table(NewTable {
            name: "sbtest".into(),
            columns: vec![
                column("id", ColumnType::Int4),
                column("k", ColumnType::Int4),
                column("c", ColumnType::Char(120)),
                column("pad", ColumnType::Char(60)),
            ],
            primary_key: Some(("sbtest_pkey".into(), vec![0])),
            indexes: vec![NewIndex {
                name: "k".into(),
                columns: vec![1],
                unique: false,
                constraint: false,
            }],
        })
        .expect("made");
    tx.commit().expect("committed");
    let (begun, mut row) = (Instant::now(), Vec::new());
    for chunk in 0..rows / 1000 {
        tx.begin(Isolation::ReadCommitted);
        for id in chunk * 1000..(chunk + 1) * 1000 {
            encode(&table, id, id / 3, &mut row);
            tx.insert(&table, &row).expect("inserted");
        }
        tx.commit().expect("committed");
    }
    println!("insert: {:.0} rows/s", f64::from(rows) / begun.elapsed().as_secs_f64());
    table
}

fn encode(table: &Table, id: i32, k: i32, row: &mut Vec<u8>) {
    let c = format!("{id:0120}");
    table
        .layout()
        .encode(
            &[
                Datum::Int4(id),
                Datum::Int4(k),
                Datum::Text(c.clone()),
                Datum::Text(c[..60].into()),
            ],
            row,
        )
        .expect("a row");
}

type Work = fn(&Arc<Engine>, &Arc<Table>, i32, u64, u64);

fn measure(name: &str, threads: u64, ops: u64, engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, work: Work) {
    let begun = Instant::now();
    let all: Vec<_> = (0..threads)
        .map(|n| {
            let (engine, table) = (engine.clone(), table.clone());
            std::thread::spawn(move || work(&engine, &table, rows, n + 1, ops / threads))
        })
        .collect();
    all.into_iter().for_each(|t| t.join().expect("no panic"));
    let rate = ops as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{name}, {threads} threads: {rate:.0}/s, {:.2} us each",
        threads as f64 * 1e6 / rate
    );
}

fn next(random: &mut Random, below: i32) -> i32 {
    random.below(below as u64) as i32
}

fn reads(engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, seed: u64, ops: u64) {
    let mut random = Random(seed);
    let (mut tx, mut k, mut row) = (engine.tx(), Vec::new(), Vec::new());
    for _ in 0..ops {
        tx.begin(Isolation::ReadCommitted);
        key(table, next(&mut random, rows), &mut k);
        assert!(tx.get(table, &k, &mut row).expect("readable"));
        tx.commit().expect("committed");
    }
}

fn ranges(engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, seed: u64, ops: u64) {
    let mut random = Random(seed);
    let (mut tx, mut low, mut high, mut batch) = (engine.tx(), Vec::new(), Vec::new(), RowBatch::new());
    for _ in 0..ops {
        tx.begin(Isolation::ReadCommitted);
        let from = next(&mut random, rows - 100);
        key(table, from, &mut low);
        key(table, from + 99, &mut high);
        let range = KeyRange::between(std::ops::Bound::Included(&low), std::ops::Bound::Included(&high));
        let (mut scan, mut found) = (tx.scan(table, range, Direction::Forward), 0);
        while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
            found += batch.len();
        }
        assert_eq!(found, 100);
        tx.commit().expect("committed");
    }
}

fn update(tx: &mut Tx, table: &Arc<Table>, id: i32, k: &mut Vec<u8>) {
    key(table, id, k);
    tx.modify(table, k, &|old, _| {
        let Datum::Int4(indexed) = table.layout().column(old, 1)?.to_owned() else {
            return Ok::<_, Error>(Change::Skip);
        };
        let mut new = Vec::new();
        encode(table, id, indexed, &mut new);
        Ok(Change::Update(new))
    })
    .expect("updated");
}

fn updates(engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, seed: u64, ops: u64) {
    let mut random = Random(seed);
    let (mut tx, mut k) = (engine.tx(), Vec::new());
    for _ in 0..ops {
        tx.begin(Isolation::ReadCommitted);
        update(&mut tx, table, next(&mut random, rows), &mut k);
        tx.commit().expect("committed");
    }
}

fn ten_updates(engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, seed: u64, ops: u64) {
    let mut random = Random(seed);
    let (mut tx, mut k) = (engine.tx(), Vec::new());
    for _ in 0..ops / 10 {
        tx.begin(Isolation::ReadCommitted);
        // In order, so that transactions do not wait for each other in circles.
        let mut ids: Vec<i32> = (0..10).map(|_| next(&mut random, rows)).collect();
        ids.sort_unstable();
        ids.iter().for_each(|id| update(&mut tx, table, *id, &mut k));
        tx.commit().expect("committed");
    }
}
