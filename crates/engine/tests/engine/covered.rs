//! Scans of an index alone, against a model: writers, savepoints, snapshots, purge and definitions in any order, by one
//! thread, so that a seed gives the same run again. A row that was made of an entry lacks its text: that tells it.

use crate::common::*;
use cenote_engine::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const IDS: u64 = 12;
const WRITERS: usize = 3;
const SNAPSHOTS: usize = 3;

/// Of an id its key, and a number that its text holds.
type Rows = BTreeMap<i32, (i32, i32)>;

struct Writer {
    tx: Tx,
    open: bool,
    /// Its changes, in order; None: a deletion.
    changes: Vec<(i32, Option<(i32, i32)>)>,
    points: Vec<(Savepoint, usize)>,
}

struct Snapshot {
    tx: Tx,
    table: Arc<Table>,
    rows: Rows,
}

struct World {
    engine: Arc<Engine>,
    table: Arc<Table>,
    random: Random,
    committed: Rows,
    writers: Vec<Writer>,
    snapshots: Vec<Snapshot>,
    /// Rows that were made of entries, and that were visited.
    made: usize,
    visited: usize,
    texts: i32,
}

fn begin(engine: &Arc<Engine>) -> Writer {
    Writer {
        tx: engine.tx(),
        open: false,
        changes: Vec::new(),
        points: Vec::new(),
    }
}

impl Writer {
    fn sees(&self, committed: &Rows) -> Rows {
        let mut rows = committed.clone();
        for (id, change) in &self.changes {
            match change {
                Some(row) => drop(rows.insert(*id, *row)),
                None => drop(rows.remove(id)),
            }
        }
        rows
    }
}

/// What an index scan gives: key, id, and the text's number where the row was visited.
fn scan(
    tx: &Tx,
    (table, index): (&Arc<Table>, usize),
    range: KeyRange,
    direction: Direction,
    few: usize,
) -> Vec<(i32, i32, Option<i32>)> {
    let mut scan = tx
        .index_scan(table, index, range, direction)
        .index_only()
        .batch_rows(few);
    let (mut batch, mut out) = (RowBatch::new(), Vec::new());
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        for i in 0..batch.len() {
            let row = table.layout().decode(batch.row(i)).expect("a row");
            let mut id_key = Vec::new();
            table.key_of_values(&row[..1], &mut id_key);
            assert_eq!(batch.key(i), id_key, "the key of the row");
            match (&row[0], &row[1], &row[2]) {
                (Datum::Int4(id), Datum::Int4(k), Datum::Text(text)) => {
                    out.push((*k, *id, Some(text.parse().expect("a number"))));
                }
                (Datum::Int4(id), Datum::Int4(k), Datum::Null) => out.push((*k, *id, None)),
                other => panic!("no row: {other:?}"),
            }
        }
    }
    out
}

impl World {
    fn new(dir: &std::path::Path, seed: u64) -> World {
        let mut options = options(dir, MemoryKind::Dram);
        options.background = false;
        let engine = Engine::open(options).expect("the database opens");
        let table = create(&engine, "t", false);
        World {
            writers: (0..WRITERS).map(|_| begin(&engine)).collect(),
            engine,
            table,
            random: Random(seed),
            committed: Rows::new(),
            snapshots: Vec::new(),
            made: 0,
            visited: 0,
            texts: 0,
        }
    }

    /// Whether another writer has changed the row.
    fn is_taken(&self, id: i32, by: usize) -> bool {
        let others = self.writers.iter().enumerate().filter(|(n, _)| *n != by);
        others.flat_map(|(_, w)| &w.changes).any(|(other, _)| *other == id)
    }

    fn write(&mut self, n: usize) {
        let (id, to) = (self.random.below(IDS) as i32, self.random.below(IDS) as i32);
        // Few keys, so that a row comes back to one that it had.
        let (k, what) = (self.random.below(4) as i32, self.random.below(10));
        if self.is_taken(id, n) || self.is_taken(to, n) {
            return;
        }
        self.texts += 1;
        let (text, table, writer) = (self.texts, self.table.clone(), &mut self.writers[n]);
        if !writer.open {
            writer.tx.begin(Isolation::ReadCommitted);
            writer.open = true;
        }
        writer.tx.begin_statement();
        let rows = writer.sees(&self.committed);
        let write = |new: &[u8]| Ok::<_, Error>(Change::Update(new.to_vec()));
        let tx = &mut writer.tx;
        let mut put = |at: i32, id: i32, k: i32| {
            let new = row(&table, id, k, &text.to_string());
            tx.modify(&table, &key(&table, at), &|_, _| write(&new))
                .expect("changed")
        };
        match (rows.get(&id), what) {
            (None, _) => {
                insert(tx, &table, id, k, &text.to_string()).expect("inserted");
                writer.changes.push((id, Some((k, text))));
            }
            (Some(_), 0 | 1) => {
                delete(tx, &table, id).expect("deleted");
                writer.changes.push((id, None));
            }
            (Some((k, _)), 2 | 3) => {
                put(id, id, *k);
                writer.changes.push((id, Some((*k, text))));
            }
            (Some(_), 4) if !rows.contains_key(&to) => {
                put(id, to, k);
                writer.changes.extend([(id, None), (to, Some((k, text)))]);
            }
            _ => {
                put(id, id, k);
                writer.changes.push((id, Some((k, text))));
            }
        }
    }

    fn end(&mut self, n: usize) {
        let writer = &mut self.writers[n];
        if !std::mem::replace(&mut writer.open, false) {
            return;
        }
        writer.points.clear();
        if self.random.one_in(3) {
            writer.tx.rollback().expect("rolled back");
        } else {
            self.committed = writer.sees(&self.committed);
            writer.tx.commit().expect("committed");
        }
        self.writers[n].changes.clear();
    }

    fn savepoint(&mut self, n: usize) {
        let writer = &mut self.writers[n];
        match writer.points.pop().filter(|_| self.random.one_in(2)) {
            Some((point, changes)) => {
                writer.tx.rollback_to(&point).expect("taken back");
                writer.changes.truncate(changes);
            }
            None if writer.open => writer.points.push((writer.tx.savepoint(), writer.changes.len())),
            None => {}
        }
    }

    /// Takes a snapshot, or lets the oldest go.
    fn snapshot(&mut self) {
        if self.snapshots.len() == SNAPSHOTS {
            drop(self.snapshots.remove(0));
            return;
        }
        let mut tx = self.engine.begin(Isolation::RepeatableRead);
        tx.begin_statement();
        self.snapshots.push(Snapshot {
            tx,
            table: self.table.clone(),
            rows: self.committed.clone(),
        });
    }

    /// Makes a second index, or drops it.
    fn define(&mut self) {
        (0..WRITERS).for_each(|n| self.end(n));
        let tx = &mut self.writers[0].tx;
        tx.begin(Isolation::ReadCommitted);
        let table = match self.table.indexes.len() {
            1 => tx.create_index(
                &self.table,
                NewIndex {
                    name: "t_more".into(),
                    columns: vec![1, 0],
                    unique: false,
                    constraint: false,
                },
            ),
            _ => tx.drop_index(&self.table, 1),
        };
        let table = table.expect("defined");
        if self.random.one_in(3) {
            tx.rollback().expect("rolled back");
        } else {
            tx.commit().expect("committed");
            self.table = table;
        }
    }

    fn look(&mut self) {
        let direction = self.random.pick(&[Direction::Forward, Direction::Backward]);
        let (few, k) = (1 + self.random.below(9) as usize, self.random.below(6) as i32);
        let mut looks = Vec::new();
        for snapshot in &self.snapshots {
            for table in [&snapshot.table, &self.table] {
                looks.push((&snapshot.tx, table.clone(), snapshot.rows.clone()));
            }
        }
        let n = self.random.below(WRITERS as u64) as usize;
        if self.writers[n].open {
            let rows = self.writers[n].sees(&self.committed);
            self.writers[n].tx.begin_statement();
            looks.push((&self.writers[n].tx, self.table.clone(), rows));
        }
        for (tx, table, rows) in looks {
            for index in 0..table.indexes.len() {
                let range = if k < 4 { k_range(&table, k) } else { KeyRange::all() };
                let found = scan(tx, (&table, index), range, direction, few);
                let wanted: BTreeSet<_> = rows.iter().map(|(id, (k, _))| (*k, *id)).collect();
                let mut wanted: Vec<_> = wanted.into_iter().filter(|(key, _)| k >= 4 || *key == k).collect();
                if direction == Direction::Backward {
                    wanted.reverse();
                }
                let keys: Vec<_> = found.iter().map(|(k, id, _)| (*k, *id)).collect();
                assert_eq!(keys, wanted, "index {index}, {found:?}");
                for (_, id, text) in &found {
                    assert!(text.is_none_or(|text| rows[id].1 == text), "another version's text");
                }
                let made = found.iter().filter(|(_, _, text)| text.is_none()).count();
                (self.made, self.visited) = (self.made + made, self.visited + found.len() - made);
            }
        }
    }

    fn step(&mut self) {
        let n = self.random.below(WRITERS as u64) as usize;
        match self.random.below(40) {
            0..=15 => self.write(n),
            16..=19 => self.end(n),
            20..=22 => self.savepoint(n),
            23..=26 => self.snapshot(),
            27..=30 => drop(self.engine.vacuum().expect("purged")),
            31 if self.random.one_in(4) => self.define(),
            _ => self.look(),
        }
    }

    /// With nothing under way, purged, each row is made of its entry.
    fn settle(mut self) {
        self.snapshots.clear();
        (0..WRITERS).for_each(|n| self.end(n));
        self.engine.vacuum().expect("purged");
        let mut tx = self.engine.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        for index in 0..self.table.indexes.len() {
            let found = scan(&tx, (&self.table, index), KeyRange::all(), Direction::Forward, 100);
            let rows = self.committed.iter().map(|(id, (k, _))| (*k, *id, None));
            let wanted: BTreeSet<_> = rows.collect();
            assert_eq!(found, wanted.into_iter().collect::<Vec<_>>(), "all rows are settled");
        }
        drop(tx);
        check(&self.engine);
        self.writers.clear();
        self.engine.shutdown().expect("shut down");
    }
}

/// Whatever is under way, a scan of an index alone gives what its snapshot has in the index's columns.
#[test]
fn an_index_alone_says_what_the_snapshot_has() {
    for seed in 1..=30 {
        println!("seed {seed}");
        let dir = tempfile::tempdir().expect("a directory");
        let mut world = World::new(dir.path(), seed);
        (0..700).for_each(|_| world.step());
        assert!(
            world.made > 20 && world.visited > 20,
            "{} {}",
            world.made,
            world.visited
        );
        world.settle();
    }
}

/// What the last run left is not counted: nothing is made of entries before purge has passed it. A row was made of an
/// entry of the version before, which a crash had kept purge from.
#[test]
fn the_history_of_the_last_run_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), MemoryKind::Cxl);
    options.background = false;
    let engine = Engine::open(options.clone()).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 10, "1").expect("inserted");
    insert(&mut tx, &table, 2, 20, "2").expect("inserted");
    tx.commit().expect("committed");
    tx.begin(Isolation::ReadCommitted);
    update(&mut tx, &table, 1, 11, "3").expect("changed");
    tx.commit().expect("committed");
    drop(tx);
    engine.halt();
    drop((table, engine));
    let engine = Engine::open(options).expect("the database opens");
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let table = tx.table("t").expect("read").expect("the table");
    let all = |tx: &Tx| scan(tx, (&table, 0), KeyRange::all(), Direction::Forward, 100);
    assert_eq!(all(&tx), [(11, 1, Some(3)), (20, 2, Some(2))]);
    engine.vacuum().expect("purged");
    assert_eq!(all(&tx), [(11, 1, None), (20, 2, None)]);
    drop(tx);
    engine.shutdown().expect("shut down");
}

/// An index that is made over rows which an old snapshot sees in other versions: the changes between were not counted as
/// changes of a key, for want of the index.
#[test]
fn a_new_index_covers_once_purge_has_passed_what_it_shows() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), MemoryKind::Dram);
    options.background = false;
    let engine = Engine::open(options).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 10, "1").expect("inserted");
    tx.commit().expect("committed");
    engine.vacuum().expect("purged");
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    tx.begin(Isolation::ReadCommitted);
    update(&mut tx, &table, 1, 10, "2").expect("changed");
    tx.commit().expect("committed");
    tx.begin(Isolation::ReadCommitted);
    let new = NewIndex {
        name: "t_c".into(),
        columns: vec![2],
        unique: false,
        constraint: false,
    };
    let table = tx.create_index(&table, new).expect("made");
    tx.commit().expect("committed");
    let texts = |tx: &Tx| {
        let mut scan = tx
            .index_scan(&table, 1, KeyRange::all(), Direction::Forward)
            .index_only();
        let (mut batch, mut out) = (RowBatch::new(), Vec::new());
        while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
            let row = |i| table.layout().decode(batch.row(i)).expect("a row");
            out.extend((0..batch.len()).map(|i| (row(i)[2].clone(), row(i)[1] == Datum::Null)));
        }
        out
    };
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    assert_eq!(texts(&old), [(Datum::Text("1".into()), false)]);
    assert_eq!(texts(&tx), [(Datum::Text("2".into()), false)]);
    engine.vacuum().expect("purged");
    assert_eq!(texts(&old), [(Datum::Text("1".into()), false)]);
    drop(old);
    engine.vacuum().expect("purged");
    assert_eq!(texts(&tx), [(Datum::Text("2".into()), true)]);
    drop(tx);
    engine.shutdown().expect("shut down");
}
