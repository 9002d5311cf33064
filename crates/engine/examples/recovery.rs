//! What a recovery reads and how long it takes, on real files: one process loads until it is killed, another opens.
//!
//! ```text
//! cargo build --release -p cenote-engine --example recovery
//! target/release/examples/recovery load /data/dir cxl 200000 &  sleep 20; kill -9 $!
//! for f in $(find /data/dir -type f); do dd of=$f oflag=nocache conv=notrunc,fdatasync count=0 status=none; done   # cold files
//! target/release/examples/recovery open /data/dir cxl
//! ```
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use cenote_base::random::Random;
use cenote_engine::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const THREADS: u64 = 8;

fn open(dir: &Path, kind: &str) -> Arc<Engine> {
    let memory = if kind == "cxl" {
        MemoryKind::Cxl
    } else {
        MemoryKind::Dram
    };
    let mut options = EngineOptions::new(dir.join("data"), memory, 512 << 20);
    options.region = (memory == MemoryKind::Cxl).then(|| {
        let name = dir.file_name().expect("a directory").to_string_lossy().into_owned();
        PathBuf::from(format!("/dev/shm/cenote-recovery-{name}"))
    });
    Engine::open(options).expect("opens")
}

fn table(engine: &Arc<Engine>, rows: i32) -> Arc<Table> {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx
        .create_table(NewTable {
            name: "t".into(),
            columns: vec![column("id", ColumnType::Int4), column("c", ColumnType::Char(120))],
            primary_key: Some(("t_pkey".into(), vec![0])),
            indexes: Vec::new(),
        })
        .expect("made");
    tx.commit().expect("committed");
    let mut row = Vec::new();
    for id in 0..rows {
        if id % 1000 == 0 {
            tx.begin(Isolation::ReadCommitted);
        }
        encode(&table, id, 0, &mut row);
        tx.insert(&table, &row).expect("inserted");
        if id % 1000 == 999 || id == rows - 1 {
            tx.commit().expect("committed");
        }
    }
    table
}

fn encode(table: &Table, id: i32, n: u64, row: &mut Vec<u8>) {
    let values = [Datum::Int4(id), Datum::Text(format!("{n:0120}"))];
    table.layout().encode(&values, row).expect("a row");
}

/// Updates rows, five a transaction, until the end.
fn update(engine: &Arc<Engine>, table: &Arc<Table>, rows: i32, seed: u64) {
    let (mut tx, mut key, mut row) = (engine.tx(), Vec::new(), Vec::new());
    let mut random = Random(seed);
    loop {
        tx.begin(Isolation::ReadCommitted);
        // In order, so that transactions do not wait for each other in circles.
        let mut ids: Vec<i32> = (0..5).map(|_| random.below(rows as u64) as i32).collect();
        ids.sort_unstable();
        for id in ids {
            key.clear();
            table.key_of_values(&[Datum::Int4(id)], &mut key);
            encode(table, id, random.word() >> 33, &mut row);
            tx.modify(table, &key, &|_, _| Ok::<_, Error>(Change::Update(row.clone())))
                .expect("changed");
        }
        tx.commit().expect("committed");
    }
}

fn load(dir: &Path, kind: &str, rows: i32) {
    let engine = open(dir, kind);
    let table = table(&engine, rows);
    println!("loaded");
    let start = |n| {
        let (engine, table) = (engine.clone(), table.clone());
        std::thread::spawn(move || update(&engine, &table, rows, n))
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// Calls that read, and their bytes, of this process so far.
fn reads() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").expect("Linux");
    let of = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)).expect("there");
        line.trim().parse().expect("a number")
    };
    (of("syscr:"), of("rchar:"))
}

fn recover(dir: &Path, kind: &str) {
    let (before, begun) = (reads(), Instant::now());
    let engine = open(dir, kind);
    let (took, after) = (begun.elapsed(), reads());
    let report = engine.recovery_report();
    println!(
        "{kind}: {:.1} ms, mode {}, {} pages, {:.1} MiB of redo; {} reads, {:.1} MiB",
        took.as_secs_f64() * 1e3,
        report.mode,
        report.frames_repaired,
        report.redo_bytes_read as f64 / f64::from(1 << 20),
        after.0 - before.0,
        (after.1 - before.1) as f64 / f64::from(1 << 20)
    );
    report.notes.iter().for_each(|note| println!("  {note}"));
    engine.shutdown().expect("ends");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, what, dir, kind, rest @ ..] = &arguments[..] else {
        eprintln!("recovery load|open DIRECTORY cxl|dram [ROWS]");
        return;
    };
    let rows = rest.first().and_then(|rows| rows.parse().ok()).unwrap_or(100_000);
    match &what[..] {
        "load" => load(dir.as_ref(), kind, rows),
        _ => recover(dir.as_ref(), kind),
    }
}
