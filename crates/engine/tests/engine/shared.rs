//! Versions of a row that share large values.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Positions of the columns of `common::new_table`.
const TEXT: usize = 2;

/// Changes `k` of a row, by a statement that does not read the text.
fn update_k(tx: &mut Tx, table: &Table, id: i32, k: i32) -> Changed {
    let columns = Columns::Only([0, 1].into());
    tx.begin_statement();
    let done = tx.change_reading(table, &key(table, id), &columns, &|old, _| {
        let (layout, mut new) = (table.layout(), Vec::new());
        layout.with(old, |column| (column == 1).then_some(DatumRef::Int4(k)), &mut new)?;
        Ok::<_, Error>(Change::Update(new))
    });
    done.unwrap()
}

/// Bytes of redo that `work` writes.
fn redo(engine: &Engine, work: impl FnOnce()) -> u64 {
    let tail = || engine.buffer().storage().log().tail().raw();
    let before = tail();
    work();
    tail() - before
}

fn quiet(dir: &std::path::Path, memory: MemoryKind) -> Arc<Engine> {
    let mut options = options(dir, memory);
    options.background = false;
    Engine::open(options).expect("the database opens")
}

/// An update of an int beside a large value wrote the value again: 20 MB of redo for 4 bytes. Statements that do not
/// read it do not even bring it in.
#[test]
fn an_update_beside_a_large_value_leaves_it_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = options(dir.path(), MemoryKind::Dram);
    (settings.background, settings.memory_size) = (false, 64 << 20);
    let engine = Engine::open(settings).unwrap();
    let table = create(&engine, "t", false);
    let text = "0123456789abcdef".repeat(20 << 16);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 1, &text).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let written = redo(&engine, || {
        let Changed::Done { before, .. } = update_k(&mut tx, &table, 1, 2) else {
            panic!("the row is there");
        };
        assert!(table.layout().is_external(&before, TEXT).unwrap(), "not read");
        tx.commit().unwrap();
    });
    assert!(written < 4096, "{written} bytes of redo");
    // A statement that reads it, or assigns what it was.
    tx.begin(Isolation::ReadCommitted);
    let written = redo(&engine, || {
        update(&mut tx, &table, 1, 3, &text).unwrap();
        tx.commit().unwrap();
    });
    assert!(written < 4096, "{written} bytes of redo");
    tx.begin(Isolation::ReadCommitted);
    assert_eq!(get(&tx, &table, 1), Some((1, 3, text)));
    let written = redo(&engine, || {
        delete(&mut tx, &table, 1).unwrap();
        tx.commit().unwrap();
    });
    assert!(written < 4096, "{written} bytes of redo");
    check(&engine);
    drop(tx);
    engine.vacuum().unwrap();
    check(&engine);
    assert_eq!(overflow_pages(&engine), 0);
    engine.shutdown().unwrap();
}

/// Of a row of many short values, too, which leaves as a whole: what is written anew is the short ones.
#[test]
fn a_large_value_of_a_row_that_lies_outside_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path(), MemoryKind::Dram);
    let column = |i: usize| ColumnDef {
        name: format!("c{i}"),
        ty: if i == 0 { ColumnType::Int4 } else { ColumnType::Text },
        not_null: i == 0,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let new = NewTable {
        name: "t".into(),
        columns: (0..60).map(column).collect(),
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: vec![],
    };
    let table = tx.create_table(new).unwrap();
    tx.commit().unwrap();
    let row = |short: &str, long: usize| {
        let mut values = vec![Datum::Text(short.repeat(100)); 60];
        values[0] = Datum::Int4(1);
        values[30] = Datum::Text("x".repeat(long));
        let mut row = Vec::new();
        table.layout().encode(&values, &mut row).unwrap();
        row
    };
    let change = |tx: &mut Tx, new: Vec<u8>| {
        tx.begin_statement();
        let change = |_: &[u8], _: bool| Ok::<_, Error>(Change::Update(new.clone()));
        assert_eq!(tx.modify(&table, &key(&table, 1), &change).unwrap(), Outcome::Done);
    };
    tx.begin(Isolation::ReadCommitted);
    tx.insert(&table, &row("a", 5 << 20)).unwrap();
    tx.commit().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let written = redo(&engine, || {
        change(&mut tx, row("b", 5 << 20));
        tx.commit().unwrap();
    });
    assert!(written < 32 << 10, "{written} bytes of redo");
    engine.vacuum().unwrap();
    tx.begin(Isolation::ReadCommitted);
    change(&mut tx, row("c", 5 << 20));
    tx.rollback().unwrap();
    tx.begin(Isolation::ReadCommitted);
    let mut found = Vec::new();
    assert!(tx.get(&table, &key(&table, 1), &mut found).unwrap());
    assert_eq!(found, row("b", 5 << 20));
    change(&mut tx, row("d", 100));
    tx.commit().unwrap();
    drop(tx);
    engine.vacuum().unwrap();
    check(&engine);
    assert_eq!(overflow_pages(&engine), 1, "the row's own");
    engine.shutdown().unwrap();
}

/// As the check's summary tells of table `t`.
fn overflow_pages(engine: &Arc<Engine>) -> u64 {
    let report = engine.check().unwrap();
    let line = report
        .summary
        .iter()
        .find(|line| line.starts_with("table \"t\""))
        .unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let at = words.iter().position(|word| *word == "overflow").unwrap();
    words[at - 1].parse().unwrap()
}

/// The index on `k` has entries of versions whose text is freed by now: purge of several transactions goes in any
/// order.
#[test]
fn versions_that_wait_for_purge_do_not_need_what_their_successors_have_freed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = quiet(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let text = "x".repeat(10_000);
    let mut sessions: Vec<_> = (0..4).map(|_| engine.tx()).collect();
    sessions[0].begin(Isolation::ReadCommitted);
    insert(&mut sessions[0], &table, 1, 0, &text).unwrap();
    sessions[0].commit().unwrap();
    // Segments are purged by their numbers: the version that frees the text comes before those that have shared it.
    for (session, k) in [(3, 1), (2, 2), (1, 3)] {
        sessions[session].begin(Isolation::ReadCommitted);
        update_k(&mut sessions[session], &table, 1, k);
        sessions[session].commit().unwrap();
    }
    sessions[0].begin(Isolation::ReadCommitted);
    update(&mut sessions[0], &table, 1, 4, "short").unwrap();
    sessions[0].commit().unwrap();
    engine.buffer().storage().log().flush_all().unwrap();
    engine.vacuum().unwrap();
    check(&engine);
    assert_eq!(overflow_pages(&engine), 0);
    let report = engine.check().unwrap();
    assert_eq!(report.entries_of_others, 0, "{:#?}", report.summary);
    drop(sessions);
    engine.shutdown().unwrap();
}

type Row = (i32, String);
type Rows = BTreeMap<i32, Row>;

/// One of a few texts, some of which lie outside of their row.
fn text(random: &mut Random) -> String {
    let length = [10, 1500, 2100, 9_000, 50_000][random.below(5) as usize];
    let letter = (b'a' + random.below(26) as u8) as char;
    std::iter::repeat_n(letter, length).collect()
}

/// One change of a row, to the table and to the model.
fn step(random: &mut Random, tx: &mut Tx, table: &Table, rows: &mut Rows) {
    let (id, k) = (random.below(6) as i32, random.below(50) as i32);
    tx.begin_statement();
    match (rows.get(&id).cloned(), random.below(12)) {
        (None, _) => {
            let text = text(random);
            assert_eq!(insert(tx, table, id, k, &text).unwrap(), Insert::Done);
            rows.insert(id, (k, text));
        }
        (Some(_), 0) => {
            delete(tx, table, id).unwrap();
            rows.remove(&id);
        }
        (Some((_, old)), 1..=5) => {
            assert!(matches!(update_k(tx, table, id, k), Changed::Done { .. }));
            rows.insert(id, (k, old));
        }
        (Some((_, old)), 6..=7) => {
            update(tx, table, id, k, &old).unwrap();
            rows.insert(id, (k, old));
        }
        (Some((k, old)), 8) => {
            let to = 100 + random.below(20) as i32;
            if !rows.contains_key(&to) {
                move_row(tx, table, id, to);
                rows.remove(&id);
                rows.insert(to, (k, old));
            }
        }
        (Some(_), _) => {
            let new = text(random);
            update(tx, table, id, k, &new).unwrap();
            rows.insert(id, (k, new));
        }
    }
}

fn move_row(tx: &mut Tx, table: &Table, id: i32, to: i32) {
    let columns = Columns::Only([0].into());
    let done = tx.change_reading(table, &key(table, id), &columns, &|old, _| {
        let mut new = Vec::new();
        table
            .layout()
            .with(old, |column| (column == 0).then_some(DatumRef::Int4(to)), &mut new)?;
        Ok::<_, Error>(Change::Update(new))
    });
    assert!(matches!(done.unwrap(), Changed::Done { .. }));
}

fn expect(tx: &Tx, table: &Arc<Table>, rows: &Rows, when: &str) {
    let found: Rows = all(tx, table)
        .into_iter()
        .map(|(id, k, text)| (id, (k, text)))
        .collect();
    assert!(
        found == *rows,
        "{when}: rows {:?}, expected {:?}",
        found.keys(),
        rows.keys()
    );
}

/// A transaction of some changes, with returns to savepoints; true if it was committed.
fn transaction(random: &mut Random, tx: &mut Tx, table: &Table, rows: &mut Rows) -> bool {
    let mut now = rows.clone();
    let mut saved = None;
    for _ in 0..1 + random.below(8) {
        match (random.below(6), saved.take()) {
            (0, _) => saved = Some((tx.savepoint(), now.clone())),
            (1, Some((point, then))) => {
                tx.rollback_to(&point).unwrap();
                now = then;
            }
            (_, kept) => {
                saved = kept;
                step(random, tx, table, &mut now);
            }
        }
    }
    let commits = random.below(3) > 0;
    if commits {
        *rows = now;
    }
    commits
}

fn live(seed: u64, memory: MemoryKind) {
    let random = &mut Random(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut rows = Rows::new();
    let mut engine = quiet(dir.path(), memory);
    create(&engine, "t", false);
    for life in 0..4 {
        let when = format!("seed {seed}, life {life}");
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        let (mut others, mut old) = (vec![engine.tx(), engine.tx()], None);
        tx.rollback().unwrap();
        for turn in 0..30 {
            let session = &mut others[turn % 2];
            session.begin(Isolation::ReadCommitted);
            match transaction(random, session, &table, &mut rows) {
                true => session.commit().unwrap(),
                false => session.rollback().unwrap(),
            }
            if random.below(4) == 0 {
                engine.vacuum().unwrap();
            }
            if random.below(6) == 0 {
                let mut reader = engine.begin(Isolation::RepeatableRead);
                reader.begin_statement();
                old = Some((reader, rows.clone()));
            }
            if let Some((reader, then)) = &old {
                expect(reader, &table, then, &format!("{when}, an old snapshot"));
            }
        }
        drop(old);
        verify(&engine, &table, &rows, &when);
        // The process dies in the middle of a transaction.
        others[0].begin(Isolation::ReadCommitted);
        transaction(random, &mut others[0], &table, &mut rows.clone());
        if random.below(2) == 0 {
            engine.buffer().storage().log().flush_all().unwrap();
        }
        engine.halt();
        drop((tx, others, table, engine));
        engine = quiet(dir.path(), memory);
        engine.roll_back_losers().unwrap();
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        tx.rollback().unwrap();
        verify(&engine, &table, &rows, &format!("{when}, after the crash"));
    }
    engine.shutdown().unwrap();
}

/// Rows are those of the model, and no large value is lost or held twice, before and after what is past has gone.
fn verify(engine: &Arc<Engine>, table: &Arc<Table>, rows: &Rows, when: &str) {
    for _ in 0..2 {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        expect(&tx, table, rows, when);
        tx.rollback().unwrap();
        let report = engine.check().unwrap();
        assert!(report.problems.is_empty(), "{when}: {:#?}", report.problems);
        engine.buffer().storage().log().flush_all().unwrap();
        while engine.vacuum().unwrap() > 0 {}
    }
}

/// Updates that keep large values, change them, take them along to another key; savepoints, rollbacks, purge in
/// between, crashes.
#[test]
fn large_values_live_as_long_as_a_version_has_them() {
    for seed in 0..12 {
        live(
            seed,
            if seed % 3 == 0 {
                MemoryKind::Dram
            } else {
                MemoryKind::Cxl
            },
        );
    }
}
