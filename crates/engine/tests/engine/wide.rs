//! Tables with many columns and many indexes.

use crate::common::*;
use cenote_engine::*;
use std::sync::Arc;

/// The most columns that PostgreSQL gives a table.
const COLUMNS: usize = 1600;

/// `id` and columns of this type; `indexes` on the first of them, and on pairs.
fn wide(engine: &Arc<Engine>, columns: usize, ty: ColumnType, indexes: usize) -> Arc<Table> {
    let column = |i: usize| ColumnDef {
        name: format!("c{i}"),
        ty: if i == 0 { ColumnType::Int4 } else { ty },
        not_null: i == 0,
        default: None,
    };
    let index = |i: usize| NewIndex {
        name: format!("wide_{i}"),
        columns: vec![1 + i % (columns - 1), (i / (columns - 1)) % columns],
        unique: false,
        constraint: false,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let new = NewTable {
        name: "wide".into(),
        columns: (0..columns).map(column).collect(),
        primary_key: Some(("wide_pkey".into(), vec![0])),
        indexes: (0..indexes).map(index).collect(),
    };
    let table = tx.create_table(new).unwrap();
    tx.commit().unwrap();
    table
}

fn row_of(table: &Table, id: i32, value: &Datum) -> Vec<u8> {
    let mut values = vec![value.clone(); table.columns.len()];
    values[0] = Datum::Int4(id);
    let mut row = Vec::new();
    table.layout().encode(&values, &mut row).unwrap();
    row
}

fn change(tx: &mut Tx, table: &Table, id: i32, new: Option<Vec<u8>>) {
    let done = tx.modify(table, &key(table, id), &|_, _| {
        Ok::<_, Error>(match &new {
            Some(row) => Change::Update(row.clone()),
            None => Change::Delete,
        })
    });
    assert_eq!(done.unwrap(), Outcome::Done);
}

fn stored(tx: &Tx, table: &Table, id: i32) -> Option<Vec<u8>> {
    let mut row = Vec::new();
    tx.get(table, &key(table, id), &mut row).unwrap().then_some(row)
}

/// The life of a row of these values: inserted, changed, changed back, seen by an older snapshot, deleted, purged.
fn live(engine: &Arc<Engine>, table: &Arc<Table>, first: &Datum, second: &Datum) {
    let (one, two) = (row_of(table, 1, first), row_of(table, 1, second));
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.insert(table, &one).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    change(&mut tx, table, 1, Some(two.clone()));
    assert_eq!(stored(&tx, table, 1), Some(two.clone()));
    tx.rollback().unwrap();
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    assert_eq!(stored(&old, table, 1), Some(one.clone()), "taken back");
    tx.begin(Isolation::ReadCommitted);
    change(&mut tx, table, 1, Some(two.clone()));
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(tx.collect(table, KeyRange::all()).unwrap(), [two]);
    assert_eq!(stored(&old, table, 1), Some(one), "of the older snapshot");
    change(&mut tx, table, 1, None);
    tx.commit().unwrap();
    drop((tx, old));
    engine.vacuum().unwrap();
    check(engine);
}

/// 50 columns of 100 characters were "row is too big: 5250 bytes": values of up to 128 bytes never left a row. 1,600
/// columns did not fit with NULL in all of them.
#[test]
fn rows_of_many_columns_are_stored() {
    let text = |len: usize, with: &str| Datum::Text(with.repeat(len));
    for (columns, len) in [(50, 100), (50, 3_000), (COLUMNS, 0), (COLUMNS, 10), (COLUMNS, 200)] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), MemoryKind::Dram);
        // A key has 2,048 bytes at most.
        let indexes = if len < 1_000 { 2 } else { 0 };
        let table = wide(&engine, columns, ColumnType::Text, indexes);
        live(&engine, &table, &text(len, "a"), &text(len, "b"));
        live(&engine, &table, &Datum::Null, &text(len, "b"));
        engine.shutdown().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = wide(&engine, COLUMNS, ColumnType::Timestamp, 0);
    live(&engine, &table, &Datum::Timestamp(1), &Datum::Null);
    engine.shutdown().unwrap();
}

/// One mini-transaction removed all index entries of a version, so that a table could not have more than 56 indexes.
#[test]
fn a_table_has_more_indexes_than_a_mini_transaction_has_latches() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = open(dir.path(), MemoryKind::Cxl);
    let table = wide(&engine, 66, ColumnType::Int4, 130);
    assert_eq!(table.indexes.len(), 130);
    live(&engine, &table, &Datum::Int4(1), &Datum::Int4(2));
    // The process dies in the middle of a transaction, and the next one takes it back.
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.insert(&table, &row_of(&table, 2, &Datum::Int4(3))).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    change(&mut tx, &table, 2, Some(row_of(&table, 2, &Datum::Int4(4))));
    tx.insert(&table, &row_of(&table, 3, &Datum::Int4(3))).unwrap();
    engine.halt();
    drop((tx, engine));
    engine = open(dir.path(), MemoryKind::Cxl);
    engine.roll_back_losers().unwrap();
    let tx = engine.begin(Isolation::ReadCommitted);
    assert_eq!(stored(&tx, &table, 2), Some(row_of(&table, 2, &Datum::Int4(3))));
    assert_eq!(stored(&tx, &table, 3), None);
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}
