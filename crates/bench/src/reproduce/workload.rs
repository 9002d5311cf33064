//! sysbench's OLTP statements, at the level of the engine: no SQL text, no protocol.
//!
//! What SQL and protocol cost is a number that the session spends ([`Costs`]), once as measured from Cenote, once as
//! the paper's system had it. Everything below is the engine itself: trees, latches, undo, log, buffer pool.
//!
//! A table is sysbench's `sbtest`: an integer key, an integer `k` with an index, a text of 120 bytes and one of 60.
//! Rows are asked for uniformly, unless a figure asks for another [`Pick`]: as PolarCXLMem's bandwidths at 10 and 50%
//! of local memory imply (they are as 0.9 to 0.5).

use super::cost::Costs;
use super::mix::Mix;
use cenote_base::random::Random;
use cenote_base::rt;
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Direction, Engine, Error, Insert, Isolation, KeyRange, NewIndex,
    NewTable, Result, RowBatch, Table, Tx,
};
use std::ops::Bound;
use std::sync::Arc;

/// Rows of a range statement, as sysbench has it.
pub const RANGE_ROWS: i32 = 100;
/// Bytes of a row's text `c`, which is what a point-select returns.
pub const C_BYTES: usize = 120;
const PAD_BYTES: usize = 60;
/// Bytes of a reply around its rows, and around each row: what either protocol takes, about.
const REPLY_BYTES: u64 = 60;
const ROW_BYTES: u64 = C_BYTES as u64 + 11;

/// Which rows are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// Each as likely.
    Uniform,
    /// sysbench's distribution `special` with its defaults: three quarters from 1% of the ids, in the middle, the
    /// others by the mean of twelve numbers, so about the middle too.
    Special,
}

impl Pick {
    /// For tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Pick::Uniform => "uniform",
            Pick::Special => "skewed",
        }
    }

    /// A row of so many, from 1.
    fn id(self, rows: i32) -> i32 {
        match self {
            Pick::Uniform => random_id(rows),
            Pick::Special => special_id(rows),
        }
    }
}

/// Of the ids of [`Pick::Special`], one in so many are hot; and so many numbers have their mean taken for the others.
const SPECIAL: (i32, i32) = (100, 12);

fn special_id(rows: i32) -> i32 {
    let (share, draws) = SPECIAL;
    if rt::random().is_multiple_of(4) {
        let sum: i64 = (0..draws).map(|_| i64::from(random_id(rows))).sum();
        return (sum / i64::from(draws)) as i32;
    }
    let hot = (rows / share).max(1);
    (rows - hot) / 2 + random_id(hot)
}

/// What a session's statement needs of the world outside of the engine.
pub trait Client {
    /// The reply of one statement, so many bytes, goes to the client, and its next statement comes back.
    fn round_trip(&mut self, bytes: u64);
    /// Its reply is there, this long after it came to the server.
    fn done(&mut self, latency: rt::Nanos);
}

/// The tables of an instance.
pub struct Tables {
    tables: Vec<Arc<Table>>,
    rows: i32,
}

impl Tables {
    /// Makes and fills `count` tables of `rows` rows; `progress` hears how many rows there are.
    ///
    /// # Errors
    /// The engine's error, of the statement that failed.
    pub fn create(engine: &Arc<Engine>, count: u32, rows: i32, progress: &mut dyn FnMut(u64)) -> Result<Tables> {
        let mut made = 0;
        for number in 1..=count {
            let mut tx = engine.begin(Isolation::ReadCommitted);
            tx.begin_statement();
            let table = tx.create_table(definition(number))?;
            for id in 1..=rows {
                if id % 500 == 0 {
                    tx.commit()?;
                    progress(made);
                    tx.begin(Isolation::ReadCommitted);
                    tx.begin_statement();
                }
                expect_inserted(tx.insert(&table, &row(&table, id, random_id(rows)))?)?;
                made += 1;
            }
            tx.commit()?;
        }
        Tables::open(engine, count, rows)
    }

    /// The tables of a database that was filled before.
    ///
    /// # Errors
    /// The engine's error, of the statement that failed.
    pub fn open(engine: &Arc<Engine>, count: u32, rows: i32) -> Result<Tables> {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let find = |number| {
            let found = tx.table(&name(number))?;
            found.ok_or_else(|| Error::Corrupt(format!("table {} is missing", name(number))))
        };
        let tables = (1..=count).map(find).collect::<Result<_>>()?;
        tx.rollback()?;
        Ok(Tables { tables, rows })
    }

    /// Reads something of every page once, so that whatever can be near is near.
    ///
    /// # Errors
    /// The engine's error, of the statement that failed.
    pub fn warm_up(&self, engine: &Arc<Engine>) -> Result<()> {
        for table in &self.tables {
            let mut tx = engine.begin(Isolation::ReadCommitted);
            tx.begin_statement();
            self.touch_rows(&tx, table)?;
            self.touch_index(&tx, table)?;
            tx.rollback()?;
        }
        Ok(())
    }

    /// A page holds some seventy rows.
    fn touch_rows(&self, tx: &Tx, table: &Table) -> Result<()> {
        let mut row = Vec::new();
        for id in (1..=self.rows).step_by(16) {
            row.clear();
            tx.get(table, &key(table, id), &mut row)?;
        }
        Ok(())
    }

    /// A page of the index holds some hundreds of entries, whose `k` are spread as the keys are.
    fn touch_index(&self, tx: &Tx, table: &Arc<Table>) -> Result<()> {
        let mut batch = RowBatch::new();
        for k in (1..=self.rows).step_by(64) {
            let mut key = Vec::new();
            table.index_key_of_values(&table.indexes[0], &[Datum::Int4(k)], &mut key);
            let mut scan = tx.index_scan(table, 0, KeyRange::prefix(&key), Direction::Forward);
            scan.next_batch(tx.reader(), &mut batch)?;
        }
        Ok(())
    }
}

/// One client's connection.
pub struct Session<'a, C> {
    tables: &'a Tables,
    costs: &'a Costs,
    pick: Pick,
    client: C,
    tx: Tx,
    key: Vec<u8>,
    row: Vec<u8>,
    batch: RowBatch,
    began: rt::Nanos,
}

impl<'a, C: Client> Session<'a, C> {
    /// Connects.
    pub fn new(engine: &Arc<Engine>, tables: &'a Tables, costs: &'a Costs, client: C) -> Self {
        Session {
            tables,
            costs,
            pick: Pick::Uniform,
            client,
            tx: engine.tx(),
            key: Vec::new(),
            row: Vec::new(),
            batch: RowBatch::new(),
            began: rt::now(),
        }
    }

    /// The same, asking for these rows.
    #[must_use]
    pub fn with(self, pick: Pick) -> Self {
        Session { pick, ..self }
    }

    /// The client, to see what it has counted.
    pub fn client(&mut self) -> &mut C {
        &mut self.client
    }

    /// One transaction of the mix; a conflict rolls it back and counts as done, as sysbench has it.
    ///
    /// # Errors
    /// The engine's error, of the statement that failed. A conflict is none.
    pub fn transaction(&mut self, mix: Mix) -> Result<()> {
        match self.try_transaction(mix) {
            // A reader may say that a snapshot is too old (72000).
            Err(error) if error.sqlstate().starts_with("40") || error.sqlstate() == "72000" => {
                if self.tx.is_active() {
                    self.tx.rollback()?;
                }
                Ok(())
            }
            other => other,
        }
    }

    fn try_transaction(&mut self, mix: Mix) -> Result<()> {
        match mix {
            Mix::PointSelect => self.alone(Self::point),
            Mix::RangeSelect => self.alone(Self::range),
            Mix::ReadOnly => self.within(Self::reads),
            Mix::WriteOnly => self.within(Self::writes),
            Mix::ReadWrite => self.within(|s| s.reads().and_then(|()| s.writes())),
        }
    }

    /// A statement that is its own transaction.
    fn alone(&mut self, statement: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.tx.begin(Isolation::ReadCommitted);
        statement(self)?;
        self.tx.commit()
    }

    /// BEGIN, statements, COMMIT.
    fn within(&mut self, statements: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.begin_statement(self.costs.begin);
        self.tx.begin(Isolation::ReadCommitted);
        self.end_statement(0);
        statements(self)?;
        self.begin_statement(self.costs.commit);
        self.tx.commit()?;
        self.end_statement(0);
        Ok(())
    }

    fn reads(&mut self) -> Result<()> {
        for _ in 0..10 {
            self.point()?;
        }
        for _ in 0..4 {
            self.range()?;
        }
        Ok(())
    }

    fn writes(&mut self) -> Result<()> {
        self.update(|old, new| *old = new)?;
        self.update(|_, _| {})?;
        self.delete_and_insert()
    }

    fn begin_statement(&mut self, cost: rt::Nanos) {
        self.began = rt::now();
        rt::spend(cost);
    }

    fn end_statement(&mut self, rows: u64) {
        self.client.round_trip(REPLY_BYTES + rows * ROW_BYTES);
        self.client.done(rt::now().since(self.began));
    }

    fn point(&mut self) -> Result<()> {
        self.begin_statement(self.costs.point);
        let table = self.any_table();
        self.any_key(&table);
        self.tx.begin_statement();
        self.row.clear();
        let found = self.tx.get(&table, &self.key, &mut self.row)?;
        if found {
            table.layout().column(&self.row, 2)?;
        }
        self.end_statement(u64::from(found));
        Ok(())
    }

    fn range(&mut self) -> Result<()> {
        self.begin_statement(self.costs.range);
        let table = self.any_table();
        let first = self.pick.id((self.tables.rows - RANGE_ROWS).max(1));
        let (from, to) = (key(&table, first), key(&table, first + RANGE_ROWS - 1));
        self.tx.begin_statement();
        let range = KeyRange::between(Bound::Included(&from), Bound::Included(&to));
        let mut scan = self
            .tx
            .scan(&table, range, Direction::Forward)
            .batch_rows(RANGE_ROWS as usize);
        let mut rows = 0;
        while scan.next_batch(self.tx.reader(), &mut self.batch)? {
            for i in 0..self.batch.len() {
                table.layout().column(self.batch.row(i), 2)?;
            }
            rows += self.batch.len() as u64;
        }
        self.end_statement(rows);
        Ok(())
    }

    /// Changes `k` as told, or else `c`.
    fn update(&mut self, change_k: impl Fn(&mut i32, i32)) -> Result<()> {
        self.begin_statement(self.costs.update);
        let table = self.any_table();
        self.any_key(&table);
        let new_k = self.any_id();
        self.tx.begin_statement();
        self.tx.modify(&table, &self.key, &|old, _| {
            let (DatumRef::Int4(id), DatumRef::Int4(mut k)) =
                (table.layout().column(old, 0)?, table.layout().column(old, 1)?)
            else {
                return Err(Error::Corrupt("a row of other types".into()));
            };
            change_k(&mut k, new_k);
            Ok::<_, Error>(Change::Update(row(&table, id, k)))
        })?;
        self.end_statement(0);
        Ok(())
    }

    fn delete_and_insert(&mut self) -> Result<()> {
        self.begin_statement(self.costs.delete);
        let table = self.any_table();
        let id = self.any_id();
        let key = key(&table, id);
        self.tx.begin_statement();
        self.tx.modify(&table, &key, &|_, _| Ok::<_, Error>(Change::Delete))?;
        self.end_statement(0);
        self.begin_statement(self.costs.insert);
        self.tx.begin_statement();
        self.tx.insert(&table, &row(&table, id, self.any_id()))?;
        self.end_statement(0);
        Ok(())
    }

    fn any_table(&self) -> Arc<Table> {
        self.tables.tables[rt::random() as usize % self.tables.tables.len()].clone()
    }

    fn any_id(&self) -> i32 {
        self.pick.id(self.tables.rows)
    }

    fn any_key(&mut self, table: &Table) {
        self.key.clear();
        table.key_of_values(&[Datum::Int4(self.any_id())], &mut self.key);
    }
}

/// From 1 to `rows`, each as likely.
fn random_id(rows: i32) -> i32 {
    1 + (((rt::random() >> 33) * rows as u64) >> 31) as i32
}

fn name(number: u32) -> String {
    format!("sbtest{number}")
}

fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

fn row(table: &Table, id: i32, k: i32) -> Vec<u8> {
    let digits = |len: usize, seed: u64| -> String {
        let mut random = Random(seed);
        (0..len).map(|_| char::from(b'0' + random.below(10) as u8)).collect()
    };
    let mut row = Vec::new();
    let seed = (id as u64) << 32 | k as u64;
    let values = [
        Datum::Int4(id),
        Datum::Int4(k),
        Datum::Text(digits(C_BYTES, seed)),
        Datum::Text(digits(PAD_BYTES, !seed)),
    ];
    table
        .layout()
        .encode(&values, &mut row)
        .expect("values of the table's types");
    row
}

fn definition(number: u32) -> NewTable {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    NewTable {
        name: name(number),
        columns: vec![
            column("id", ColumnType::Int4),
            column("k", ColumnType::Int4),
            column("c", ColumnType::Text),
            column("pad", ColumnType::Text),
        ],
        primary_key: Some((format!("{}_pkey", name(number)), vec![0])),
        indexes: vec![NewIndex {
            name: format!("k_{number}"),
            columns: vec![1],
            unique: false,
            constraint: false,
        }],
    }
}

fn expect_inserted(insert: Insert) -> Result<()> {
    match insert {
        Insert::Done => Ok(()),
        Insert::Duplicate { .. } => Err(Error::Corrupt("a new table has rows".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_of_special_rows_are_hot() {
        let (rows, draws) = (100_000, 10_000);
        let ids: Vec<i32> = (0..draws).map(|_| Pick::Special.id(rows)).collect();
        assert!(ids.iter().all(|id| (1..=rows).contains(id)));
        let hot = ids.iter().filter(|id| (49_501..=50_500).contains(*id)).count();
        assert!((7_000..8_300).contains(&hot), "{hot} of {draws}");
    }
}
