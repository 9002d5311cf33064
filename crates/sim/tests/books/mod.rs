//! Work for an engine whose results can be checked afterwards, whatever befell it: shared by several tests.
//!
//! Each session owns a range of ids and counts its commits; a commit of number `n` leaves all its rows at `n`. A shared
//! counter is the sum of what all sessions have committed to it. One more thread makes and drops a table with large
//! values, which fills the log. A commit is noted only after it was acknowledged.

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Direction, Engine, EngineOptions, Error, Insert, Isolation,
    KeyRange, MemoryKind, NewIndex, NewTable, Outcome, Result, RowBatch, Survive, Table, Tx,
};

pub const SESSIONS: usize = 3;
const ROWS: i32 = 4;
const SHARED: i32 = 9_999;

/// What was acknowledged, by session.
#[derive(Clone)]
pub struct Noted(Arc<Vec<AtomicU64>>);

impl Noted {
    pub fn new() -> Self {
        Self(Arc::new((0..SESSIONS).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn all(&self) -> Vec<u64> {
        self.0.iter().map(|n| n.as_raw().load(Ordering::SeqCst)).collect()
    }

    pub fn sum(&self) -> u64 {
        self.all().iter().sum()
    }
}

pub fn options(kind: MemoryKind, bytes: u64, survive: Survive) -> EngineOptions {
    let mut options = EngineOptions::new("/data", kind, bytes);
    options.region = Some(Path::new("/dev/sim/pool").to_owned());
    options.survive = survive;
    options
}

fn new_table() -> NewTable {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    NewTable {
        name: "t".into(),
        columns: vec![
            column("id", ColumnType::Int4),
            column("n", ColumnType::Int8),
            column("c", ColumnType::Text),
        ],
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: vec![NewIndex {
            name: "t_n".into(),
            columns: vec![1],
            unique: false,
            constraint: false,
        }],
    }
}

fn row(table: &Table, id: i32, n: i64) -> Vec<u8> {
    row_of(table, id, n, (id as usize * 37 + n as usize * 11) % 200)
}

fn row_of(table: &Table, id: i32, n: i64, len: usize) -> Vec<u8> {
    let mut row = Vec::new();
    let text = "x".repeat(len);
    table
        .layout()
        .encode(&[Datum::Int4(id), Datum::Int8(n), Datum::Text(text)], &mut row)
        .expect("a row");
    row
}

fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

fn number(table: &Table, row: &[u8]) -> (i32, i64) {
    match (table.layout().column(row, 0), table.layout().column(row, 1)) {
        (Ok(DatumRef::Int4(id)), Ok(DatumRef::Int8(n))) => (id, n),
        other => panic!("unexpected row {other:?}"),
    }
}

/// Makes the tables, if they are not there.
pub fn prepare(engine: &Arc<Engine>) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    if tx.table("t").expect("readable").is_none() {
        let table = tx.create_table(new_table()).expect("made");
        let first = row(&table, SHARED, 0);
        assert_eq!(tx.insert(&table, &first).expect("inserted"), Insert::Done);
        tx.commit().expect("committed");
    }
}

/// One transaction of session `me`: its rows go to number `n`, by update, or by delete and insert.
fn transaction(tx: &mut Tx, table: &Table, me: i32, n: i64) -> Result<()> {
    for part in 0..ROWS {
        let id = me * 100 + part;
        tx.begin_statement();
        let new = row(table, id, n);
        if rt::random().is_multiple_of(4) {
            let gone = tx.modify(table, &key(table, id), &|_, _| Ok::<_, Error>(Change::Delete))?;
            assert_eq!(gone == Outcome::Done, n > 1);
            assert_eq!(tx.insert(table, &new)?, Insert::Done);
        } else if n == 1 {
            assert_eq!(tx.insert(table, &new)?, Insert::Done);
        } else {
            let done = tx.modify(table, &key(table, id), &|_, _| {
                Ok::<_, Error>(Change::Update(new.clone()))
            })?;
            assert_eq!(done, Outcome::Done);
        }
    }
    tx.begin_statement();
    tx.modify(table, &key(table, SHARED), &|old, _| {
        let (id, n) = number(table, old);
        Ok::<_, Error>(Change::Update(row(table, id, n + 1)))
    })?;
    Ok(())
}

/// Goes on from where session `me` stands, until told to stop.
fn session(engine: &Arc<Engine>, me: i32, noted: &AtomicU64, stop: &AtomicBool) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("made");
    let rows = tx.collect(&table, KeyRange::all()).expect("readable");
    let numbers = rows.iter().map(|row| number(&table, row));
    let mut n = 1 + numbers.filter(|r| r.0 == me * 100).map(|r| r.1).max().unwrap_or(0);
    tx.rollback().expect("nothing to do");
    // What was found is durable, acknowledged or not: it counts from here on.
    noted.as_raw().fetch_max(n as u64 - 1, Ordering::SeqCst);
    while !stop.load(Ordering::SeqCst) {
        tx.begin(Isolation::ReadCommitted);
        if rt::random().is_multiple_of(3) {
            let point = tx.savepoint();
            transaction(&mut tx, &table, me, n).expect("no conflict but on the last row");
            tx.rollback_to(&point).expect("taken back");
        }
        transaction(&mut tx, &table, me, n).expect("no conflict but on the last row");
        if rt::random().is_multiple_of(4) {
            tx.rollback().expect("taken back");
            continue;
        }
        tx.commit().expect("committed");
        noted.store(n as u64, Ordering::SeqCst);
        n += 1;
    }
}

/// Makes and drops a table with three rows, again and again; sometimes takes it back. Values are large.
fn definer(engine: &Arc<Engine>, stop: &AtomicBool) {
    let mut tx = engine.tx();
    while !stop.load(Ordering::SeqCst) {
        tx.begin(Isolation::ReadCommitted);
        if let Some(old) = tx.table("d").expect("readable") {
            tx.modify(&old, &key(&old, 1), &|_, _| {
                Ok::<_, Error>(Change::Update(row_of(&old, 1, 2, 30_000)))
            })
            .expect("free");
            tx.drop_table(&old).expect("dropped");
            tx.commit().expect("committed");
            continue;
        }
        let table = tx.create_table(NewTable {
            name: "d".into(),
            indexes: Vec::new(),
            primary_key: Some(("d_pkey".into(), vec![0])),
            ..new_table()
        });
        let table = table.expect("made");
        for id in 0..3 {
            let large = row_of(&table, id, 1, 20_000);
            assert_eq!(tx.insert(&table, &large).expect("inserted"), Insert::Done);
        }
        match rt::random().is_multiple_of(3) {
            true => tx.rollback().expect("taken back"),
            false => tx.commit().expect("committed"),
        }
    }
}

/// Writes large values into a table of its own, again and again: the ring goes round.
fn filler(engine: &Arc<Engine>, stop: &AtomicBool) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = match tx.table("f").expect("readable") {
        Some(table) => table,
        None => tx
            .create_table(NewTable {
                name: "f".into(),
                indexes: Vec::new(),
                primary_key: Some(("f_pkey".into(), vec![0])),
                ..new_table()
            })
            .expect("made"),
    };
    tx.commit().expect("committed");
    while !stop.load(Ordering::SeqCst) {
        tx.begin(Isolation::ReadCommitted);
        for id in 0..8 {
            tx.begin_statement();
            let large = row_of(&table, id, 1, 25_000 + (rt::random() % 5000) as usize);
            let update = tx.modify(&table, &key(&table, id), &|_, _| {
                Ok::<_, Error>(Change::Update(large.clone()))
            });
            if update.expect("free") != Outcome::Done {
                assert_eq!(tx.insert(&table, &large).expect("inserted"), Insert::Done);
            }
        }
        tx.commit().expect("committed");
    }
}

/// As [`work`], and one more thread fills the log.
pub fn work_hard(engine: &Arc<Engine>, noted: &Noted, stop: &Arc<AtomicBool>) {
    let (theirs, until) = (engine.clone(), stop.clone());
    let filler = rt::spawn("filler", move || filler(&theirs, &until));
    work(engine, noted, stop);
    filler.join().expect("no panic");
}

/// Sessions and the definer, until told to stop.
pub fn work(engine: &Arc<Engine>, noted: &Noted, stop: &Arc<AtomicBool>) {
    prepare(engine);
    let mut threads: Vec<_> = (0..SESSIONS)
        .map(|me| {
            let (engine, noted, stop) = (engine.clone(), noted.clone(), stop.clone());
            rt::spawn("session", move || session(&engine, me as i32, &noted.0[me], &stop))
        })
        .collect();
    let (theirs, until) = (engine.clone(), stop.clone());
    threads.push(rt::spawn("definer", move || definer(&theirs, &until)));
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// All rows of the newest snapshot, once by the table and once by the index.
fn numbers(engine: &Arc<Engine>) -> Vec<(i32, i64)> {
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("made");
    let (mut rows, mut indexed, mut batch) = (Vec::new(), Vec::new(), RowBatch::new());
    let mut scan = tx.scan(&table, KeyRange::all(), Direction::Forward);
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        rows.extend((0..batch.len()).map(|i| number(&table, batch.row(i))));
    }
    let mut scan = tx.index_scan(&table, 0, KeyRange::all(), Direction::Backward);
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        indexed.extend((0..batch.len()).map(|i| number(&table, batch.row(i))));
    }
    indexed.sort_unstable();
    assert_eq!(rows, indexed, "index and rows disagree");
    rows
}

/// Looks at the books: `noted` was acknowledged, and nothing more than one commit of each session can be there beyond.
pub fn verify(engine: &Arc<Engine>, noted: &[u64], what: &str) {
    for round in 0..2 {
        let rows = numbers(engine);
        let mut committed = 0;
        for (me, noted) in noted.iter().enumerate() {
            let own: Vec<i64> = rows.iter().filter(|r| r.0 / 100 == me as i32).map(|r| r.1).collect();
            let n = own.first().copied().unwrap_or(0);
            let whole = own.is_empty() || own.len() == ROWS as usize;
            assert!(
                whole && own.iter().all(|other| *other == n),
                "{what}, round {round}: half a transaction: {rows:?}"
            );
            assert!(
                n == *noted as i64 || n == *noted as i64 + 1,
                "{what}, round {round}: {n} is there, {noted} acknowledged"
            );
            committed += n;
        }
        let shared = rows.iter().find(|r| r.0 == SHARED).map(|r| r.1);
        assert_eq!(shared, Some(committed), "{what}, round {round}: the shared counter");
        // Once more after the losers are gone and purge has been through.
        while engine.recovery_report().transactions_rolled_back < engine.recovery_report().losers {
            rt::sleep(Nanos::from_millis(1));
        }
        engine.vacuum().expect("purged");
        let report = engine.check().expect("readable");
        assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
    }
}
