//! What `check` finds, and what it costs.

use crate::common::*;
use cenote_engine::*;
use std::sync::Arc;
use std::time::Instant;

/// (id primary key, k, c, d), with indexes on k, on (c) and on (d, k).
fn wide(engine: &Arc<Engine>) -> Arc<Table> {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: false,
        default: None,
    };
    let index = |name: &str, columns: &[usize]| NewIndex {
        name: name.into(),
        columns: columns.to_vec(),
        unique: false,
        constraint: false,
    };
    let new = NewTable {
        name: "wide".into(),
        columns: vec![
            ColumnDef {
                not_null: true,
                ..column("id", ColumnType::Int8)
            },
            column("k", ColumnType::Int4),
            column("c", ColumnType::Text),
            column("d", ColumnType::Date),
            column("n", ColumnType::Numeric(None)),
            column("note", ColumnType::Text),
        ],
        primary_key: Some(("wide_pkey".into(), vec![0])),
        indexes: vec![index("wide_k", &[1]), index("wide_c", &[2]), index("wide_d_k", &[3, 1])],
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    tx.commit().expect("committed");
    table
}

fn fill(engine: &Arc<Engine>, table: &Table, rows: i64) {
    let (mut tx, mut random, mut row) = (engine.tx(), Random(7), Vec::new());
    for id in 0..rows {
        if id % 1_000 == 0 {
            tx.begin(Isolation::ReadCommitted);
        }
        let values = [
            Datum::Int8(id),
            Datum::Int4(random.below(1 << 30) as i32),
            Datum::Text(format!("Customer#{:09}", random.below(rows as u64))),
            Datum::Date(random.below(2_500) as i32),
            Datum::Numeric(Numeric::parse("17.25").expect("a number")),
            Datum::Text("carefully final deposits".into()),
        ];
        table.layout().encode(&values, &mut row).expect("a row");
        tx.insert(table, &row).expect("inserted");
        if id % 1_000 == 999 || id + 1 == rows {
            tx.commit().expect("committed");
        }
    }
}

fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this process");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

/// A measurement: what a check of a table with three indexes costs. CENOTE_ROWS gives the number of rows, CENOTE_MIB
/// the memory.
#[test]
#[ignore = "a measurement: cargo test --release -p cenote-engine --test engine check_of_many -- --ignored --nocapture"]
fn check_of_many_rows() {
    let number = |name, usual| std::env::var(name).map_or(usual, |n| n.parse().expect("a number"));
    let (rows, memory) = (number("CENOTE_ROWS", 1_000_000), number("CENOTE_MIB", 1 << 10));
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), MemoryKind::Cxl);
    options.memory_size = (memory as u64) << 20;
    let engine = Engine::open(options).expect("the database opens");
    let table = wide(&engine);
    fill(&engine, &table, rows);
    engine.vacuum().expect("purged");
    engine.checkpoint().expect("written back");
    for _ in 0..2 {
        let (begun, before) = (Instant::now(), processor_time());
        let report = engine.check().expect("readable");
        assert_eq!(report.problems, Vec::<String>::new());
        let spent = processor_time() - before;
        println!(
            "{rows} rows, three indexes: {:?}, {spent:.2} s of processor time",
            begun.elapsed()
        );
    }
    engine.shutdown().expect("shut down");
}
