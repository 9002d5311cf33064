//! What the engine's tests share: small databases in temporary directories.
#![allow(missing_docs, dead_code)]

pub use cenote_base::random::Random;
use cenote_engine::*;
use std::path::Path;
use std::sync::Arc;

pub const MEMORY: u64 = 24 << 20;

pub fn options(dir: &Path, memory: MemoryKind) -> EngineOptions {
    EngineOptions {
        region: Some(dir.join("region")),
        ..EngineOptions::new(dir.join("data"), memory, MEMORY)
    }
}

pub fn open(dir: &Path, memory: MemoryKind) -> Arc<Engine> {
    Engine::open(options(dir, memory)).expect("the database opens")
}

/// (id int4 primary key, k int4, c text), with an index on k.
pub fn new_table(name: &str, unique: bool) -> NewTable {
    let column = |name: &str, ty, not_null| ColumnDef {
        name: name.into(),
        ty,
        not_null,
        default: None,
    };
    NewTable {
        name: name.into(),
        columns: vec![
            column("id", ColumnType::Int4, true),
            column("k", ColumnType::Int4, false),
            column("c", ColumnType::Text, false),
        ],
        primary_key: Some((format!("{name}_pkey"), vec![0])),
        indexes: vec![NewIndex {
            name: format!("{name}_k"),
            columns: vec![1],
            unique,
            constraint: unique,
        }],
    }
}

pub fn create(engine: &Arc<Engine>, name: &str, unique: bool) -> Arc<Table> {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new_table(name, unique)).unwrap();
    tx.commit().unwrap();
    table
}

pub fn row(table: &Table, id: i32, k: i32, c: &str) -> Vec<u8> {
    let mut out = Vec::new();
    table
        .layout()
        .encode(&[Datum::Int4(id), Datum::Int4(k), Datum::Text(c.into())], &mut out)
        .unwrap();
    out
}

pub fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut out = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut out);
    out
}

pub fn values(table: &Table, row: &[u8]) -> (i32, i32, String) {
    let d = table.layout().decode(row).unwrap();
    match (&d[0], &d[1], &d[2]) {
        (Datum::Int4(id), Datum::Int4(k), Datum::Text(c)) => (*id, *k, c.clone()),
        other => panic!("unexpected row {other:?}"),
    }
}

pub fn get(tx: &Tx, table: &Table, id: i32) -> Option<(i32, i32, String)> {
    let mut out = Vec::new();
    tx.get(table, &key(table, id), &mut out)
        .unwrap()
        .then(|| values(table, &out))
}

pub fn insert(tx: &mut Tx, table: &Table, id: i32, k: i32, c: &str) -> Result<Insert> {
    tx.insert(table, &row(table, id, k, c))
}

pub fn update(tx: &mut Tx, table: &Table, id: i32, k: i32, c: &str) -> Result<Outcome> {
    let new = row(table, id, k, c);
    tx.modify(table, &key(table, id), &|_, _| {
        Ok::<_, Error>(Change::Update(new.clone()))
    })
}

pub fn delete(tx: &mut Tx, table: &Table, id: i32) -> Result<Outcome> {
    tx.modify(table, &key(table, id), &|_, _| Ok::<_, Error>(Change::Delete))
}

pub fn by_index(tx: &Tx, table: &Arc<Table>, index: usize, range: KeyRange) -> Vec<(i32, i32, String)> {
    let (mut scan, mut batch, mut out) = (
        tx.index_scan(table, index, range, Direction::Forward),
        RowBatch::new(),
        Vec::new(),
    );
    while scan.next_batch(tx.reader(), &mut batch).unwrap() {
        out.extend((0..batch.len()).map(|i| values(table, batch.row(i))));
    }
    out
}

/// (id, k) of all rows, by the index on k alone.
pub fn by_index_alone(tx: &Tx, table: &Arc<Table>) -> Vec<(i32, i32)> {
    let mut scan = tx
        .index_scan(table, 0, KeyRange::all(), Direction::Forward)
        .index_only();
    let (mut batch, mut out) = (RowBatch::new(), Vec::new());
    while scan.next_batch(tx.reader(), &mut batch).unwrap() {
        let column = |i, at| match table.layout().column(batch.row(i), at) {
            Ok(DatumRef::Int4(value)) => value,
            other => panic!("unexpected value {other:?}"),
        };
        out.extend((0..batch.len()).map(|i| (column(i, 0), column(i, 1))));
    }
    out
}

pub fn all(tx: &Tx, table: &Arc<Table>) -> Vec<(i32, i32, String)> {
    tx.collect(table, KeyRange::all())
        .unwrap()
        .iter()
        .map(|r| values(table, r))
        .collect()
}

pub fn k_range(table: &Table, k: i32) -> KeyRange {
    let mut out = Vec::new();
    table.index_key_of_values(&table.indexes[0], &[Datum::Int4(k)], &mut out);
    KeyRange::prefix(&out)
}

pub fn check(engine: &Arc<Engine>) {
    let report = engine.check().unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}
