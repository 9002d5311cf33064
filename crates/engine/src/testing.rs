//! A small database, for tests that look inside of the engine.

use crate::*;
use std::path::Path;
use std::sync::Arc;

/// A table of (id primary key, n indexed), in a database without background threads.
pub(crate) fn indexed(dir: &Path) -> (Arc<Engine>, Arc<Table>) {
    indexed_where(dir, 0)
}

/// The same, where rollbacks of less than so many rows do not stand behind others.
pub(crate) fn indexed_where(dir: &Path, short_rollback_rows: u64) -> (Arc<Engine>, Arc<Table>) {
    let mut options = EngineOptions::new(dir.join("data"), MemoryKind::Dram, 24 << 20);
    options.background = false;
    options.tuning.short_rollback_rows = short_rollback_rows;
    let engine = Engine::open(options).expect("the database opens");
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
        indexes: vec![new_index("t_n")],
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    tx.commit().expect("committed");
    (engine, table)
}

/// An index of `n`.
pub(crate) fn new_index(name: &str) -> NewIndex {
    NewIndex {
        name: name.into(),
        columns: vec![1],
        unique: false,
        constraint: false,
    }
}

pub(crate) fn row(table: &Table, id: i32, n: i32) -> Vec<u8> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Int4(n)];
    table.layout().encode(&values, &mut row).expect("a row");
    row
}

pub(crate) fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

/// Gives the row these values of `n`, in the transaction; inserts it first where it is not there.
pub(crate) fn write(tx: &mut Tx, table: &Table, id: i32, values: impl Iterator<Item = i32>) {
    for n in values {
        let new = row(table, id, n);
        let decide = &mut |_: &[u8], _| Ok::<_, Error>(Change::Update(new.clone()));
        match tx
            .modify(table, &key(table, id), decide)
            .expect("no other transaction writes")
        {
            Outcome::Done => {}
            _ => drop(tx.insert(table, &new).expect("inserted")),
        }
    }
}

/// As `write`, in a transaction of its own.
pub(crate) fn change(tx: &mut Tx, table: &Table, id: i32, values: impl Iterator<Item = i32>) {
    tx.begin(Isolation::ReadCommitted);
    write(tx, table, id, values);
    tx.commit().expect("committed");
}

/// No problems, and of each index no entry but those of its table's rows.
pub(crate) fn assert_clean(engine: &Arc<Engine>, rows: usize) {
    let report = engine.check().expect("checked");
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.entries_of_others, 0, "{:#?}", report.summary);
    let clean = format!("index \"t_n\": {rows} rows, 0 entries of other versions");
    assert!(report.summary.contains(&clean), "{:#?}", report.summary);
}
