//! Rows of a table with a unique secondary index, inserted together by several sessions that want the same keys. No two
//! rows have one key, at no time that a snapshot shows; each session finds what it has committed; index and rows agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt;
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Direction, Engine, EngineOptions, Error, Isolation, KeyRange,
    MemoryKind, NewIndex, NewRows, NewTable, Result, RowBatch, Table, Tx,
};
use cenote_sim::explore;

const SESSIONS: i32 = 3;
const ROUNDS: usize = 8;
/// Keys that they want.
const KEYS: u64 = 60;

/// (id primary key, owner, k unique).
fn new_table() -> NewTable {
    let column = |name: &str| ColumnDef {
        name: name.into(),
        ty: ColumnType::Int4,
        not_null: true,
        default: None,
    };
    NewTable {
        name: "t".into(),
        columns: vec![column("id"), column("owner"), column("k")],
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: vec![NewIndex {
            name: "t_k".into(),
            columns: vec![2],
            unique: true,
            constraint: true,
        }],
    }
}

fn row(table: &Table, values: [i32; 3]) -> Vec<u8> {
    let mut row = Vec::new();
    table
        .layout()
        .encode(&values.map(Datum::Int4), &mut row)
        .expect("a row");
    row
}

fn rows(engine: &Arc<Engine>, table: &Arc<Table>, by_index: bool) -> Vec<[i32; 3]> {
    let tx = engine.begin(Isolation::ReadCommitted);
    let mut scan = match by_index {
        true => tx.index_scan(table, 0, KeyRange::all(), Direction::Forward),
        false => tx.scan(table, KeyRange::all(), Direction::Forward),
    };
    let (mut batch, mut rows) = (RowBatch::new(), Vec::new());
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        rows.extend((0..batch.len()).map(|i| {
            std::array::from_fn(|at| match table.layout().column(batch.row(i), at) {
                Ok(DatumRef::Int4(value)) => value,
                other => panic!("no number: {other:?}"),
            })
        }));
    }
    rows
}

/// Some rows of this session's, with keys that others want.
fn draw(me: i32) -> BTreeMap<i32, i32> {
    let first = rt::random() % KEYS;
    let count = 1 + rt::random() % 20;
    (0..count)
        .map(|n| (me + SESSIONS * (rt::random() % 200) as i32, ((first + n) % KEYS) as i32))
        .collect()
}

/// What the session has committed, by id.
type Own = BTreeMap<i32, i32>;

/// One transaction; what the session has when it has committed it. None: it was refused, or gave it up.
fn transaction(tx: &mut Tx, table: &Table, me: i32, own: &Own) -> Result<Option<Own>> {
    let mut next = own.clone();
    tx.begin_statement();
    for id in own.keys().copied().filter(|_| rt::random().is_multiple_of(2)) {
        let mut key = Vec::new();
        table.key_of_values(&[Datum::Int4(id)], &mut key);
        tx.modify(table, &key, &|_, _| Ok::<_, Error>(Change::Delete))?;
        next.remove(&id);
    }
    let mut new = draw(me);
    new.retain(|id, _| !next.contains_key(id));
    let mut together = NewRows::default();
    new.iter().for_each(|(id, k)| together.push(&row(table, [*id, me, *k])));
    tx.begin_statement();
    let point = tx.savepoint();
    match tx.insert_rows(table, &together, &mut 0)? {
        None => next.extend(new),
        Some(_) => tx.rollback_to(&point)?,
    }
    Ok((!rt::random().is_multiple_of(4)).then_some(next))
}

fn session(engine: &Arc<Engine>, table: &Arc<Table>, me: i32) -> Own {
    let (mut tx, mut own) = (engine.tx(), Own::new());
    for _ in 0..ROUNDS {
        tx.begin(Isolation::ReadCommitted);
        match transaction(&mut tx, table, me, &own) {
            Ok(Some(next)) => {
                tx.commit().expect("committed");
                own = next;
            }
            Ok(None) | Err(Error::Deadlock(_)) => tx.rollback().expect("taken back"),
            Err(error) => panic!("{error}"),
        }
    }
    own
}

fn assert_unique(rows: &[[i32; 3]]) {
    let mut keys: Vec<i32> = rows.iter().map(|row| row[2]).collect();
    keys.sort_unstable();
    assert!(keys.is_sorted_by(|a, b| a < b), "two rows have one key: {rows:?}");
}

#[test]
fn sessions_that_insert_together_keep_a_key_unique() {
    explore(150, |_| {
        let mut options = EngineOptions::new("/data", MemoryKind::Dram, 16 << 20);
        options.background = !rt::random().is_multiple_of(3);
        let engine = Engine::open(options).expect("the engine opens");
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.create_table(new_table()).expect("made");
        tx.commit().expect("committed");
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|me| {
                let (engine, table) = (engine.clone(), table.clone());
                rt::spawn("session", move || session(&engine, &table, me))
            })
            .collect();
        (0..5).for_each(|_| assert_unique(&rows(&engine, &table, false)));
        let owned = sessions.into_iter().enumerate().flat_map(|(me, session)| {
            let own = session.join().expect("no panic");
            own.into_iter().map(move |(id, k)| [id, me as i32, k])
        });
        let mut expected: Vec<[i32; 3]> = owned.collect();
        expected.sort_unstable();
        assert_unique(&expected);
        assert_eq!(rows(&engine, &table, false), expected, "by the table");
        let mut by_index = rows(&engine, &table, true);
        by_index.sort_unstable();
        assert_eq!(by_index, expected, "by the index");
        drop(tx);
        engine.roll_back_losers().expect("taken back");
        engine.vacuum().expect("purged");
        assert_eq!(engine.check().expect("checked").problems, Vec::<String>::new());
        engine.halt();
    });
}
