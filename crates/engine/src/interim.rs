//! A stand-in for the engine behind its public signatures: rows in ordered maps, no isolation, nothing durable.
//! It goes when the trees arrive.

use crate::api::*;
use crate::catalog::*;
use crate::error::{Error, Result};
use crate::key::KeyRange;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default, Clone)]
struct State {
    tables: BTreeMap<String, Arc<Table>>,
    rows: BTreeMap<u32, Rows>,
    sequences: BTreeMap<String, (SequenceDef, i64, bool)>,
    next_id: u32,
    next_row: u64,
}

/// Set from another thread to stop what the transaction waits for or scans.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicBool);

impl CancelFlag {
    /// Asks the running statement to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    /// Forgets the request.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
    /// Whether a stop is asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What recovery did at start.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// `clean`, `instant` or `log`.
    pub mode: String,
    /// Frames kept as they were.
    pub frames_kept: u64,
    /// Frames repaired from redo.
    pub frames_repaired: u64,
    /// Frames discarded.
    pub frames_discarded: u64,
    /// Redo read, in bytes.
    pub redo_bytes_read: u64,
    /// Transactions rolled back (rises in the background after start).
    pub transactions_rolled_back: u64,
    /// Time until ready, in milliseconds.
    pub duration_ms: f64,
    /// Further lines for people: what was repaired and why.
    pub notes: Vec<String>,
}

/// What `check` found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// What was looked at.
    pub summary: Vec<String>,
    /// What is wrong; empty where all is well.
    pub problems: Vec<String>,
}

/// The database.
pub struct Engine {
    state: Mutex<State>,
    version: AtomicU64,
}

impl Engine {
    /// Opens (or makes) a database.
    pub fn open(_options: EngineOptions) -> Result<Arc<Engine>> {
        let state = State { next_id: 16384, ..State::default() };
        Ok(Arc::new(Engine { state: Mutex::new(state), version: AtomicU64::new(1) }))
    }
    /// An idle transaction, to be begun and ended many times by one session.
    pub fn tx(self: &Arc<Self>) -> Tx {
        Tx { reader: Reader { engine: self.clone() }, isolation: Isolation::ReadCommitted, active: false, undo: Vec::new(), cancel: Arc::default(), read_only: false }
    }
    /// A begun transaction.
    pub fn begin(self: &Arc<Self>, isolation: Isolation) -> Tx {
        let mut tx = self.tx();
        tx.begin(isolation);
        tx
    }
    /// Rises with each committed definition statement: the key of plan caches. One atomic load.
    pub fn catalog_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
    /// What recovery did.
    pub fn recovery_report(&self) -> RecoveryReport {
        RecoveryReport { mode: "clean".into(), ..RecoveryReport::default() }
    }
    /// Verifies every tree, index and list.
    pub fn check(&self) -> Result<CheckReport> {
        Ok(CheckReport::default())
    }
    /// Removes old versions now.
    pub fn vacuum(&self) -> Result<()> {
        Ok(())
    }
    /// Counts a table's rows for the planner.
    pub fn analyze(&self, _table: &Table) -> Result<()> {
        Ok(())
    }
    /// Rows in a table, as last counted or estimated.
    pub fn row_estimate(&self, table: &Table) -> u64 {
        self.state().rows.get(&table.space).map_or(0, |r| r.len() as u64)
    }
    /// Writes a consistent copy of the database to an empty directory, while running.
    pub fn backup(&self, _dir: &std::path::Path) -> Result<()> {
        Err(Error::Unsupported("backup".into()))
    }
    /// Orderly end: everything written back, marked clean. No transaction may be active.
    pub fn shutdown(&self) -> Result<()> {
        Ok(())
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What a transaction sees: enough to read. Clones may be used by other threads while the transaction lives.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
}

impl Reader {
    /// Reads the row with this primary key; false where there is none.
    pub fn get(&self, table: &Table, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        row.clear();
        let state = self.engine.state();
        let found = state.rows.get(&table.space).and_then(|rows| rows.get(key));
        row.extend_from_slice(found.map(Vec::as_slice).unwrap_or_default());
        Ok(found.is_some())
    }
    /// Scans a table by primary key.
    pub fn scan(&self, table: &Arc<Table>, range: KeyRange, direction: Direction) -> RowScan {
        RowScan { table: table.clone(), index: None, range, direction, done: false }
    }
    /// Scans a table in the order of an index (position in `Table::indexes`); the range is over the index's columns.
    pub fn index_scan(&self, table: &Arc<Table>, index: usize, range: KeyRange, direction: Direction) -> RowScan {
        RowScan { table: table.clone(), index: Some(index), range, direction, done: false }
    }
}

/// A scan in progress. It holds no latch between batches.
pub struct RowScan {
    table: Arc<Table>,
    index: Option<usize>,
    range: KeyRange,
    direction: Direction,
    done: bool,
}

impl RowScan {
    /// The next rows; false (and an empty batch) at the end.
    pub fn next_batch(&mut self, reader: &Reader, batch: &mut RowBatch) -> Result<bool> {
        batch.clear();
        if std::mem::replace(&mut self.done, true) {
            return Ok(false);
        }
        let state = reader.engine.state();
        let Some(rows) = state.rows.get(&self.table.space) else { return Ok(false) };
        let mut found: Vec<(Vec<u8>, &Vec<u8>, &Vec<u8>)> = Vec::new();
        for (key, row) in rows {
            let mut sort = Vec::new();
            match self.index {
                None => sort.extend_from_slice(key),
                Some(i) => {
                    self.table.index_key_of_row(&self.table.indexes[i], row, &mut sort)?;
                    sort.extend_from_slice(key);
                }
            }
            if self.range.contains(&sort) {
                found.push((sort, key, row));
            }
        }
        found.sort();
        if self.direction == Direction::Backward {
            found.reverse();
        }
        found.iter().for_each(|(_, key, row)| batch.push(key, row));
        Ok(!batch.is_empty())
    }
}

/// A place in a transaction to which it can return.
#[derive(Debug, Clone)]
pub struct Savepoint(usize);

/// A transaction of one session. Reusable: after commit or rollback, `begin` starts the next.
pub struct Tx {
    reader: Reader,
    isolation: Isolation,
    active: bool,
    undo: Vec<State>,
    cancel: Arc<CancelFlag>,
    read_only: bool,
}

impl Tx {
    /// Starts a transaction. The snapshot is taken by the first `begin_statement` (read committed: by each).
    pub fn begin(&mut self, isolation: Isolation) {
        self.isolation = isolation;
        self.active = true;
    }
    /// Starts a statement: at read committed it sees what is committed now.
    pub fn begin_statement(&mut self) {}
    /// Whether `begin` was called and neither commit nor rollback since.
    pub fn is_active(&self) -> bool {
        self.active
    }
    /// Whether the transaction has changed anything.
    pub fn has_written(&self) -> bool {
        !self.undo.is_empty()
    }
    /// Isolation level.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }
    /// Refuses writes from here on (25006).
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }
    /// How long to wait for a lock, in milliseconds; 0: without end.
    pub fn set_lock_timeout(&mut self, _milliseconds: u64) {}
    /// The flag by which another thread stops this one.
    pub fn cancel_flag(&self) -> Arc<CancelFlag> {
        self.cancel.clone()
    }
    /// What this transaction reads by.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.reader.engine
    }
    /// Makes the changes durable and visible. On an error nothing of them is visible.
    pub fn commit(&mut self) -> Result<()> {
        self.active = false;
        self.undo.clear();
        Ok(())
    }
    /// Takes all changes back.
    pub fn rollback(&mut self) -> Result<()> {
        self.active = false;
        self.rollback_to(&Savepoint(0))
    }
    /// Marks a place to return to.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.undo.len())
    }
    /// Takes back all changes since the savepoint, which stays usable.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        if let Some(state) = self.undo.drain(savepoint.0..).next() {
            *self.reader.engine.state() = state;
            self.reader.engine.version.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
    fn writing(&mut self) -> Result<MutexGuard<'_, State>> {
        if self.read_only {
            return Err(Error::ReadOnly("a write".into()));
        }
        let state = self.reader.engine.state();
        self.undo.push(state.clone());
        Ok(state)
    }
    fn changed_catalog(&self) {
        self.reader.engine.version.fetch_add(1, Ordering::AcqRel);
    }

    /// As `Reader::get`.
    pub fn get(&self, table: &Table, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        self.reader.get(table, key, row)
    }
    /// As `Reader::scan`; deliver with `scan.next_batch(tx.reader(), ..)`.
    pub fn scan(&self, table: &Arc<Table>, range: KeyRange, direction: Direction) -> RowScan {
        self.reader.scan(table, range, direction)
    }
    /// As `Reader::index_scan`.
    pub fn index_scan(&self, table: &Arc<Table>, index: usize, range: KeyRange, direction: Direction) -> RowScan {
        self.reader.index_scan(table, index, range, direction)
    }
    /// Inserts a row. Waits for transactions in progress that hold the same keys.
    pub fn insert(&mut self, table: &Table, row: &[u8]) -> Result<Insert> {
        let mut state = self.writing()?;
        let mut key = Vec::new();
        if table.has_hidden_key() {
            state.next_row += 1;
            key.extend_from_slice(&state.next_row.to_be_bytes());
        } else {
            table.key_of_row(row, &mut key)?;
        }
        let rows = state.rows.entry(table.space).or_default();
        if let Some(duplicate) = find_duplicate(table, rows, &key, row, None)? {
            return Ok(duplicate);
        }
        rows.insert(key, row.to_vec());
        Ok(Insert::Done)
    }
    /// Changes the row with this primary key as `f` says, when it is this transaction's to change. `f` gets the newest
    /// version and whether it is another than the snapshot sees (then a condition has to be evaluated again).
    pub fn modify<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        f: &mut dyn FnMut(&[u8], bool) -> std::result::Result<Change, E>,
    ) -> std::result::Result<Outcome, E> {
        let mut state = self.writing()?;
        let rows = state.rows.entry(table.space).or_default();
        let Some(old) = rows.get(key).cloned() else { return Ok(Outcome::Gone) };
        match f(&old, false)? {
            Change::Keep => {}
            Change::Skip => return Ok(Outcome::Skipped),
            Change::Delete => {
                rows.remove(key);
            }
            Change::Update(new) => {
                let mut new_key = key.to_vec();
                if !table.has_hidden_key() {
                    table.key_of_row(&new, &mut new_key)?;
                }
                if let Some(Insert::Duplicate { index, .. }) = find_duplicate(table, rows, &new_key, &new, Some(key))? {
                    return Err(table.unique_violation(index, &new).into());
                }
                rows.remove(key);
                rows.insert(new_key, new);
            }
        }
        Ok(Outcome::Done)
    }
    /// Locks the row with this primary key and gives its newest version.
    pub fn lock_row(&mut self, table: &Table, key: &[u8], _strength: LockStrength, _wait: Wait, row: &mut Vec<u8>) -> Result<Locked> {
        Ok(if self.reader.get(table, key, row)? { Locked::Row { moved: false } } else { Locked::Gone })
    }

    /// A table by name, as this transaction sees the catalog.
    pub fn table(&self, name: &str) -> Result<Option<Arc<Table>>> {
        Ok(self.reader.engine.state().tables.get(name).cloned())
    }
    /// A table by object id.
    pub fn table_by_id(&self, id: u32) -> Result<Option<Arc<Table>>> {
        Ok(self.reader.engine.state().tables.values().find(|t| t.id == id).cloned())
    }
    /// All tables, by name.
    pub fn tables(&self) -> Result<Vec<Arc<Table>>> {
        Ok(self.reader.engine.state().tables.values().cloned().collect())
    }
    /// The table of an index and the index's position in it.
    pub fn index(&self, name: &str) -> Result<Option<(Arc<Table>, usize)>> {
        Ok(self.tables()?.into_iter().find_map(|t| t.index_named(name).map(|i| (t, i))))
    }
    /// A sequence by name.
    pub fn sequence(&self, name: &str) -> Result<Option<SequenceDef>> {
        Ok(self.reader.engine.state().sequences.get(name).map(|s| s.0.clone()))
    }
    /// All sequences, by name.
    pub fn sequences(&self) -> Result<Vec<SequenceDef>> {
        Ok(self.reader.engine.state().sequences.values().map(|s| s.0.clone()).collect())
    }
    /// Version of the catalog that this transaction sees: the key of plan caches (its own uncommitted definitions included).
    pub fn catalog_version(&self) -> u64 {
        self.reader.engine.catalog_version()
    }

    /// CREATE TABLE.
    pub fn create_table(&mut self, new: NewTable) -> Result<Arc<Table>> {
        self.changed_catalog();
        let mut state = self.writing()?;
        if state.tables.contains_key(&new.name) {
            return Err(Error::DuplicateTable(new.name));
        }
        let id = take_id(&mut state);
        let primary_key = new.primary_key.map(|(name, columns)| PrimaryKey { id: take_id(&mut state), name, columns });
        let indexes = new.indexes.into_iter().map(|i| new_index(&mut state, i)).collect();
        let def = TableDef { id, name: new.name.clone(), space: id, columns: new.columns, primary_key, indexes, version: 1 };
        let table = Arc::new(Table::new(def));
        state.tables.insert(new.name, table.clone());
        Ok(table)
    }
    /// DROP TABLE, with its indexes and owned sequences.
    pub fn drop_table(&mut self, table: &Table) -> Result<()> {
        self.changed_catalog();
        let mut state = self.writing()?;
        state.tables.remove(&table.name);
        state.rows.remove(&table.space);
        state.sequences.retain(|_, s| s.0.owned_by.is_none_or(|(id, _)| id != table.id));
        Ok(())
    }
    /// TRUNCATE.
    pub fn truncate(&mut self, table: &Table) -> Result<()> {
        self.writing()?.rows.remove(&table.space);
        Ok(())
    }
    /// CREATE INDEX: builds it from the rows.
    pub fn create_index(&mut self, table: &Table, new: NewIndex) -> Result<Arc<Table>> {
        self.changed_catalog();
        let mut state = self.writing()?;
        let index = new_index(&mut state, new);
        Ok(redefine(&mut state, table, |def| def.indexes.push(index)))
    }
    /// DROP INDEX (position in `Table::indexes`).
    pub fn drop_index(&mut self, table: &Table, index: usize) -> Result<Arc<Table>> {
        self.changed_catalog();
        let mut state = self.writing()?;
        Ok(redefine(&mut state, table, |def| {
            def.indexes.remove(index);
        }))
    }
    /// ALTER TABLE ADD PRIMARY KEY: rebuilds the table by the new key.
    pub fn add_primary_key(&mut self, table: &Table, name: &str, columns: Vec<usize>) -> Result<Arc<Table>> {
        self.changed_catalog();
        let mut state = self.writing()?;
        if table.primary_key.is_some() {
            return Err(Error::MultiplePrimaryKeys(table.name.clone()));
        }
        let id = take_id(&mut state);
        let new = redefine(&mut state, table, |def| def.primary_key = Some(PrimaryKey { id, name: name.into(), columns }));
        let old = state.rows.remove(&table.space).unwrap_or_default();
        let mut rows = Rows::new();
        for row in old.into_values() {
            let mut key = Vec::new();
            new.key_of_row(&row, &mut key)?;
            rows.insert(key, row);
        }
        state.rows.insert(table.space, rows);
        Ok(new)
    }
    /// CREATE SEQUENCE.
    pub fn create_sequence(&mut self, new: NewSequence) -> Result<SequenceDef> {
        let mut state = self.writing()?;
        if state.sequences.contains_key(&new.name) {
            return Err(Error::DuplicateTable(new.name));
        }
        let NewSequence { name, start, increment, min, max, cycle, owned_by } = new;
        let def = SequenceDef { id: take_id(&mut state), name, start, increment, min, max, cycle, owned_by };
        state.sequences.insert(def.name.clone(), (def.clone(), start, false));
        Ok(def)
    }
    /// DROP SEQUENCE.
    pub fn drop_sequence(&mut self, name: &str) -> Result<()> {
        self.writing()?.sequences.remove(name);
        Ok(())
    }
    /// The next value of a sequence (by object id); never taken back.
    pub fn nextval(&mut self, sequence: u32) -> Result<i64> {
        let mut state = self.reader.engine.state();
        let found = state.sequences.values_mut().find(|s| s.0.id == sequence);
        let (def, last, called) = found.ok_or_else(|| Error::UndefinedObject("sequence".into()))?;
        if *called {
            *last += def.increment;
        }
        *called = true;
        Ok(*last)
    }
    /// Sets a sequence; `called`: the next `nextval` goes on from `value`, else it gives `value` itself.
    pub fn setval(&mut self, sequence: u32, value: i64, called: bool) -> Result<()> {
        let mut state = self.reader.engine.state();
        let found = state.sequences.values_mut().find(|s| s.0.id == sequence);
        let entry = found.ok_or_else(|| Error::UndefinedObject("sequence".into()))?;
        (entry.1, entry.2) = (value, called);
        Ok(())
    }
}

fn take_id(state: &mut State) -> u32 {
    state.next_id += 1;
    state.next_id
}

fn new_index(state: &mut State, new: NewIndex) -> IndexDef {
    let id = take_id(state);
    IndexDef { id, name: new.name, space: id, columns: new.columns, unique: new.unique, constraint: new.constraint }
}

fn redefine(state: &mut State, table: &Table, change: impl FnOnce(&mut TableDef)) -> Arc<Table> {
    let mut def = table.def().clone();
    def.version += 1;
    change(&mut def);
    let new = Arc::new(Table::new(def));
    state.tables.insert(new.name.clone(), new.clone());
    new
}

fn find_duplicate(table: &Table, rows: &Rows, key: &[u8], row: &[u8], except: Option<&[u8]>) -> Result<Option<Insert>> {
    if rows.contains_key(key) && except != Some(key) {
        return Ok(Some(Insert::Duplicate { index: None, existing_key: key.to_vec() }));
    }
    for (position, index) in table.indexes.iter().enumerate().filter(|(_, i)| i.unique) {
        if table.index_key_has_null(index, row)? {
            continue;
        }
        let (mut wanted, mut have) = (Vec::new(), Vec::new());
        table.index_key_of_row(index, row, &mut wanted)?;
        for (other_key, other) in rows.iter().filter(|(k, _)| except != Some(k.as_slice())) {
            table.index_key_of_row(index, other, &mut have)?;
            if have == wanted && !table.index_key_has_null(index, other)? {
                return Ok(Some(Insert::Duplicate { index: Some(position), existing_key: other_key.clone() }));
            }
        }
    }
    Ok(None)
}
