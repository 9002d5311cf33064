//! Definition statements: transactional, with the table's lock held alone until the end.
//!
//! Each changes the catalog's row like any row, makes the trees it needs, and puts the result into the transaction's
//! overlay. Trees that were made and are not wanted (the statement fails, the definition is taken back, the process
//! dies) are dropped again: see `catalog::state`. TRUNCATE and ALTER give the table new spaces, so readers of older
//! snapshots keep the old ones until purge.
//!
//! Lock order: name locks before table locks; both wait with nothing latched.

use super::Tx;
use super::index::enter_one;
use super::locks::{name_lock, table_lock};
use super::needed::entries_of;
use crate::api::{Change, Columns, Direction, Insert};
use crate::catalog::state::{self, Catalog, Definition, Definitions};
use crate::catalog::{IndexDef, NewIndex, NewSequence, NewTable, PrimaryKey, SequenceDef, Table, TableDef};
use crate::error::{Error, Result};
use crate::key::{self, KeyRange};
use crate::large;
use crate::pool::Need;
use crate::sort::{Entry, Sorter};
use crate::system::CATALOG_SPACE;
use crate::tree::{BTree, LeafBatch};
use crate::undo::record::{TRAILER, Trailer};
use crate::undo::{self, UndoPointer};
use cenote_base::{Cts, TxId};
use std::sync::Arc;

impl Tx {
    fn catalog(&self) -> Arc<Catalog> {
        self.overlay.over(&self.engine().catalog).1
    }

    /// Version of the catalog that this transaction sees: the key of plan caches (its own uncommitted definitions
    /// included).
    #[inline]
    pub fn catalog_version(&self) -> u64 {
        if self.overlay.is_empty() {
            self.engine().catalog_version()
        } else {
            self.overlay.over(&self.engine().catalog).0
        }
    }

    /// A table by name, as this transaction sees the catalog.
    ///
    /// # Errors
    /// 40001: TRUNCATE or ALTER TABLE replaced the table behind the transaction's snapshot.
    pub fn table(&self, name: &str) -> Result<Option<Arc<Table>>> {
        let table = self.catalog().tables.get(name).cloned();
        table.iter().try_for_each(|table| self.reader.refuse_replaced(table))?;
        Ok(table)
    }

    /// All definitions, as this transaction sees the catalog.
    pub fn definitions(&self) -> Definitions {
        Definitions(self.catalog())
    }

    /// A table by object id.
    ///
    /// # Errors
    /// None: definitions are in memory.
    pub fn table_by_id(&self, id: u32) -> Result<Option<Arc<Table>>> {
        Ok(self.catalog().by_id.get(&id).cloned())
    }

    /// The definitions of all tables, by name. Before rows are read, [`Reader::refuse_replaced`] is asked.
    ///
    /// # Errors
    /// None: definitions are in memory.
    pub fn tables(&self) -> Result<Vec<Arc<Table>>> {
        Ok(self.catalog().tables.values().into_iter().cloned().collect())
    }

    /// The table of an index and the index's position in it.
    ///
    /// # Errors
    /// None: definitions are in memory.
    pub fn index(&self, name: &str) -> Result<Option<(Arc<Table>, usize)>> {
        Ok(self.catalog().index(name).map(|(table, index)| (table.clone(), index)))
    }

    /// A sequence by name.
    ///
    /// # Errors
    /// None: definitions are in memory.
    pub fn sequence(&self, name: &str) -> Result<Option<SequenceDef>> {
        Ok(self.catalog().sequences.get(name).map(|s| (**s).clone()))
    }

    /// All sequences, by name.
    ///
    /// # Errors
    /// None: definitions are in memory.
    pub fn sequences(&self) -> Result<Vec<SequenceDef>> {
        let catalog = self.catalog();
        Ok(catalog.sequences.values().into_iter().map(|s| (**s).clone()).collect())
    }

    /// Whether the handle is of the newest definition. The table's lock is held.
    pub(super) fn is_current(&mut self, table: &Table) -> bool {
        if self.checked.contains(&(table.id, table.version)) {
            return true;
        }
        let current = table.space == CATALOG_SPACE
            || self
                .catalog()
                .by_id
                .get(&table.id)
                .is_some_and(|t| t.version == table.version);
        if current {
            self.checked.push((table.id, table.version));
        }
        current
    }

    fn define(&mut self, change: Definition) {
        self.checked.clear();
        if let Definition::Table(table) = &change {
            self.engine().catalog.register_uncommitted(table);
        }
        self.overlay.push(change);
    }

    /// Takes a name for a relation that is about to be made.
    fn claim_name(&mut self, name: &str) -> Result<()> {
        self.ready_to_write()?;
        self.lock_table(name_lock(name), true)?;
        if self.catalog().has_relation(name) {
            Err(Error::DuplicateTable(name.to_string()))
        } else {
            Ok(())
        }
    }

    /// Takes the table alone for `statement`; its newest definition.
    fn claim_table(&mut self, table: &Table, statement: &str) -> Result<Arc<Table>> {
        self.ready_to_write()?;
        if self.in_use.contains(&table.id) {
            return Err(Error::InUse(format!(
                "cannot {statement} \"{}\" because it is being used by active queries in this session",
                table.name
            )));
        }
        self.wait_for_losers()?;
        self.lock_table(table_lock(table.id), true)?;
        self.table_by_id(table.id)?
            .ok_or_else(|| Error::UndefinedTable(table.name.clone()))
    }

    /// Losers of the last run hold no locks of tables whose rows they wrote: definitions wait until they are rolled
    /// back.
    fn wait_for_losers(&self) -> Result<()> {
        let losers = &self.engine().losers;
        while !losers.wait_a_little() {
            self.reader().cancel.check()?;
            losers.check_last_run()?;
        }
        Ok(())
    }

    fn new_tree(&self) -> Result<BTree> {
        let space = self.engine().create_space()?;
        Ok(BTree::create(&self.engine().pool, space)?)
    }

    fn new_index(&mut self, new: NewIndex) -> Result<IndexDef> {
        self.claim_name(&new.name)?;
        let id = self.engine().next_object()?;
        let NewIndex {
            name,
            columns,
            unique,
            constraint,
        } = new;
        Ok(IndexDef {
            id,
            name,
            space: self.new_tree()?.space,
            columns,
            unique,
            constraint,
        })
    }

    fn insert_definition(&mut self, row: &[u8]) -> Result<()> {
        let own = self.engine().catalog.own.clone();
        match self.insert(&own, row)? {
            Insert::Done => Ok(()),
            Insert::Duplicate { .. } => Err(Error::Internal("object id used twice".into())),
        }
    }

    fn change_definition(&mut self, id: u32, row: Option<Vec<u8>>) -> Result<()> {
        let own = self.engine().catalog.own.clone();
        let key = state::key_of(&own, id);
        let change = row.map_or(Change::Delete, Change::Update);
        self.change_newest(&own, &key, &Columns::All, &|_, _| Ok::<_, Error>(change.clone()))?;
        Ok(())
    }

    /// Replaces a table's definition.
    fn redefine(&mut self, mut def: TableDef) -> Result<Arc<Table>> {
        def.version += 1;
        let row = state::row_of_table(&self.engine().catalog.own, &def)?;
        self.change_definition(def.id, Some(row))?;
        let table = Arc::new(Table::new(def));
        self.define(Definition::Table(table.clone()));
        Ok(table)
    }

    /// Runs `make`; if it fails, drops the trees that were made for it.
    fn or_drop<T>(&mut self, spaces: &[u32], make: impl FnOnce(&mut Tx) -> Result<T>) -> Result<T> {
        let made = make(self);
        if made.is_err() {
            for space in spaces {
                self.engine().drop_space(*space)?;
            }
        }
        made
    }

    /// CREATE TABLE.
    ///
    /// # Errors
    /// The name is taken; a lock was not to be had; no number, memory or disk space is left.
    pub fn create_table(&mut self, new: NewTable) -> Result<Arc<Table>> {
        self.claim_name(&new.name)?;
        let id = self.engine().next_object()?;
        let primary_key = match new.primary_key {
            Some((name, columns)) => {
                self.claim_name(&name)?;
                Some(PrimaryKey {
                    id: self.engine().next_object()?,
                    name,
                    columns,
                })
            }
            None => None,
        };
        let space = self.new_tree()?.space;
        let mut spaces = vec![space];
        self.or_drop(&[space], |tx| {
            let mut indexes = Vec::new();
            for index in new.indexes {
                let index = tx.new_index(index)?;
                spaces.push(index.space);
                indexes.push(index);
            }
            let def = TableDef {
                id,
                name: new.name,
                space,
                columns: new.columns,
                primary_key,
                indexes,
                // Above those of a former table of this id, so that a handle of that one is never taken for this one's.
                version: tx.engine().catalog.version(),
            };
            let table = Arc::new(Table::new(def));
            // Known by its space before the row stands, so that taking it back finds it.
            tx.insert_definition(&state::row_of_table(&tx.engine().catalog.own, &table)?)?;
            tx.define(Definition::Table(table.clone()));
            Ok(table)
        })
    }

    /// DROP TABLE, with its indexes and owned sequences. The files go when no snapshot can reach them.
    ///
    /// # Errors
    /// The table is gone; a lock was not to be had; those of writing the definition.
    pub fn drop_table(&mut self, table: &Table) -> Result<()> {
        // It gives space back: allowed for longer than other work while the disk is full.
        let engine = self.engine().clone();
        let _need = engine.pool.begin_need(Need::Cleanup);
        let table = self.claim_table(table, "DROP TABLE")?;
        let owned = |s: &SequenceDef| s.owned_by.is_some_and(|(id, _)| id == table.id);
        let catalog = self.catalog();
        let sequences = catalog.sequences.iter().map(|(_, sequence)| sequence);
        for sequence in sequences.filter(|sequence| owned(sequence)) {
            self.change_definition(sequence.id, None)?;
            self.define(Definition::DropSequence(sequence.id));
        }
        self.drop_statistics(table.id)?;
        self.change_definition(table.id, None)?;
        self.define(Definition::DropTable(table.id));
        Ok(())
    }

    /// TRUNCATE: new, empty trees.
    ///
    /// # Errors
    /// As [`Tx::drop_table`], and those of making trees.
    pub fn truncate(&mut self, table: &Table) -> Result<()> {
        let engine = self.engine().clone();
        let _need = engine.pool.begin_need(Need::Cleanup);
        let table = self.claim_table(table, "TRUNCATE")?;
        let mut def = table.def().clone();
        def.space = self.new_tree()?.space;
        for index in &mut def.indexes {
            index.space = self.new_tree()?.space;
        }
        self.redefine(def)?;
        Ok(())
    }

    /// CREATE INDEX: builds it from the rows.
    ///
    /// # Errors
    /// The name is taken, two rows have one key of a unique index, a key is too long; a lock was not to be had; memory
    /// or disk space is short.
    pub fn create_index(&mut self, table: &Table, new: NewIndex) -> Result<Arc<Table>> {
        let table = self.claim_table(table, "CREATE INDEX")?;
        let index = self.new_index(new)?;
        // Until purge knows the index: it would leave there the entries of versions that it passes meanwhile.
        let hold = self.reader().hold_oldest()?;
        self.or_drop(&[index.space], |tx| {
            tx.build_index(&table, &index, hold.snapshot())?;
            let mut def = table.def().clone();
            def.indexes.push(index.clone());
            tx.redefine(def)
        })
    }

    /// DROP INDEX (position in `Table::indexes`).
    ///
    /// # Errors
    /// As [`Tx::drop_table`].
    pub fn drop_index(&mut self, table: &Table, index: usize) -> Result<Arc<Table>> {
        let wanted = table.indexes[index].id;
        let table = self.claim_table(table, "DROP INDEX")?;
        let mut def = table.def().clone();
        def.indexes.retain(|index| index.id != wanted);
        self.redefine(def)
    }

    /// Entries of all versions that a snapshot not before `horizon` may still see; the newest ones must be unique if
    /// the index is.
    fn build_index(&mut self, table: &Table, index: &IndexDef, horizon: Cts) -> Result<()> {
        let engine = self.engine().clone();
        engine.unsettled.wait_for(index.space, engine.txs.next());
        let (mut entries, mut entry) = (
            Sorter::new(&engine.runs, self.account(), &self.reader().cancel),
            Vec::new(),
        );
        let (mut scan, mut batch) = (
            BTree { space: table.space }.scan(KeyRange::all(), Direction::Forward),
            LeafBatch::new(),
        );
        while scan.next_batch(&engine.pool, &mut batch)? {
            self.reader().cancel.check()?;
            for (row_key, value) in batch.iter() {
                if !self.collect_entry(table, index, (row_key, value), horizon, (&mut entry, &mut entries))? {
                    self.collect_entries(table, index, (row_key, value), horizon, &mut entries)?;
                }
            }
        }
        let sorted = entries.finish()?;
        let mut before = None;
        let all = sorted.entries()?.map(|entry| {
            let entry = entry?;
            if index.unique && !entry.older {
                self.refuse_equal(table, index, &mut before, &entry)?;
            }
            Ok::<_, Error>((entry.key, entry.split.to_le_bytes()))
        });
        BTree { space: index.space }.bulk_load(&engine.pool, all)?;
        Ok(())
    }

    /// The entry of a row whose newest version every snapshot sees, and which has nothing outside. False: it is another.
    fn collect_entry(
        &self,
        table: &Table,
        index: &IndexDef,
        (row_key, value): (&[u8], &[u8]),
        horizon: Cts,
        (entry, entries): (&mut Vec<u8>, &mut Sorter<'_>),
    ) -> Result<bool> {
        let trailer = Trailer::of(value)?;
        let stored = &value[..value.len() - TRAILER];
        if large::is_external(stored) || !self.engine().is_seen_by_all(trailer.tx, horizon)? {
            return Ok(false);
        }
        if !trailer.deleted() {
            table.index_key_of_row(index, stored, entry)?;
            let split = entry.len() as u16;
            entry.extend_from_slice(row_key);
            key::check_len(entry)?;
            entries.push(entry, split, true)?;
        }
        Ok(true)
    }

    /// Entries of a row's versions, from the newest back to the first that every snapshot sees: purge has not passed
    /// the records between them. Where they differ purge has to look at a record that was plain before there was this
    /// index.
    fn collect_entries(
        &self,
        table: &Table,
        index: &IndexDef,
        (row_key, value): (&[u8], &[u8]),
        horizon: Cts,
        entries: &mut Sorter<'_>,
    ) -> Result<()> {
        let engine = self.engine();
        let mut version = Some((Trailer::of(value)?, value[..value.len() - TRAILER].to_vec()));
        let mut newer: Option<(Trailer, Option<Vec<u8>>)> = None;
        while let Some((trailer, stored)) = version {
            let (entry, split) = match trailer.deleted() {
                true => (None, 0),
                false => self.version_entry(table, index, (row_key, &stored))?,
            };
            let before = newer.as_ref().and_then(|(_, entry)| entry.as_ref());
            if let Some(entry) = entry.as_ref().filter(|entry| before != Some(entry)) {
                entries.push(entry, split, newer.is_none())?;
            }
            if let (Some((newer, Some(before))), Some(entry)) = (&newer, &entry)
                && before != entry
            {
                undo::unmark_plain(&engine.pool, newer.undo)?;
            }
            newer = Some((trailer, entry));
            version = engine.older_version(trailer, horizon)?;
        }
        Ok(())
    }

    /// Entry of a stored version, and the length of its first part.
    fn version_entry(
        &self,
        table: &Table,
        index: &IndexDef,
        (row_key, stored): (&[u8], &[u8]),
    ) -> Result<(Option<Vec<u8>>, u16)> {
        let row = large::bring_in_keys(&self.engine().pool, table, stored)?;
        if let Some(len) = large::too_long_for(table, index, &row)? {
            return Err(key::too_long(len));
        }
        let mut entry = Vec::new();
        table.index_key_of_row(index, &row, &mut entry)?;
        let split = entry.len() as u16;
        entry.extend_from_slice(row_key);
        key::check_len(&entry)?;
        Ok((Some(entry), split))
    }

    /// 23505 if the entry of a row's newest version has the same first part as the one before, which takes its place.
    fn refuse_equal(
        &self,
        table: &Table,
        index: &IndexDef,
        before: &mut Option<(Vec<u8>, u16)>,
        entry: &Entry<'_>,
    ) -> Result<()> {
        let (key, split) = before.get_or_insert_default();
        let at = usize::from(entry.split);
        let is_equal = at > 0 && key[..usize::from(*split)] == entry.key[..at];
        (*split, _) = (entry.split, key.clear());
        key.extend_from_slice(&entry.key);
        let mut row = Vec::new();
        if is_equal && self.newest_row(table, &entry.key[at..], &mut row)? && !table.index_key_has_null(index, &row)? {
            return Err(table.violation_of(&index.name, &index.columns, &row));
        }
        Ok(())
    }

    /// The newest version of a row, visible or not.
    fn newest_row(&self, table: &Table, row_key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        if !(BTree { space: table.space }).get(&self.engine().pool, row_key, row)? {
            return Ok(false);
        }
        let deleted = Trailer::of(row)?.deleted();
        row.truncate(row.len() - TRAILER);
        self.reader().complete(table, row, &Columns::Only([].into()))?;
        Ok(!deleted)
    }

    /// ALTER TABLE ADD PRIMARY KEY: rebuilds the table by the new key, in new spaces.
    ///
    /// # Errors
    /// The table has one already; two rows have one key, or a column is NULL; otherwise as [`Tx::create_index`].
    pub fn add_primary_key(&mut self, table: &Table, name: &str, columns: Vec<usize>) -> Result<Arc<Table>> {
        let table = self.claim_table(table, "ALTER TABLE")?;
        if table.primary_key.is_some() {
            return Err(Error::MultiplePrimaryKeys(table.name.clone()));
        }
        self.claim_name(name)?;
        let mut def = table.def().clone();
        def.primary_key = Some(PrimaryKey {
            id: self.engine().next_object()?,
            name: name.to_string(),
            columns: columns.clone(),
        });
        columns.iter().for_each(|c| def.columns[*c].not_null = true);
        def.space = self.new_tree()?.space;
        let mut spaces = vec![def.space];
        for index in &mut def.indexes {
            index.space = self.new_tree()?.space;
            spaces.push(index.space);
        }
        self.or_drop(&spaces, |tx| {
            tx.rebuild(&table, &Table::new(def.clone()))?;
            tx.redefine(def)
        })
    }

    /// Copies the newest rows of `from` to the empty trees of `to`. They have no undo: a transaction that does not see
    /// this transaction reads the old trees.
    fn rebuild(&mut self, from: &Table, to: &Table) -> Result<()> {
        let own = self.own_id()?;
        let engine = self.engine();
        let filled = to.indexes.iter().map(|index| index.space);
        filled.for_each(|space| engine.unsettled.wait_for(space, engine.txs.next()));
        let (mut scan, mut batch) = (
            BTree { space: from.space }.scan(KeyRange::all(), Direction::Forward),
            LeafBatch::new(),
        );
        let mut row_key = Vec::new();
        while scan.next_batch(&self.engine().pool, &mut batch)? {
            self.reader().cancel.check()?;
            for (_, value) in batch.iter() {
                if Trailer::of(value)?.deleted() {
                    continue;
                }
                let row = large::bring_in(&self.engine().pool, from, &value[..value.len() - TRAILER])?;
                refuse_nulls(to, &row)?;
                to.key_of_row(&row, &mut row_key)?;
                self.copy_row(to, &row_key, &row, own)?;
            }
        }
        Ok(())
    }

    fn copy_row(&self, to: &Table, row_key: &[u8], row: &[u8], own: TxId) -> Result<()> {
        let engine = self.engine();
        let tree = BTree { space: to.space };
        let stored = large::move_out(engine, to, row, None)?;
        let (mut value, refs) = (stored.row, stored.refs);
        value.extend_from_slice(
            &Trailer {
                tx: own,
                undo: UndoPointer::NONE,
                flags: 0,
            }
            .encode(),
        );
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, row_key, row_key.len() + value.len())?;
        if pos.found {
            return Err(to.unique_violation(None, row));
        }
        large::adopt(&mut m, to, &refs)?;
        tree.insert_at(&mut m, &pos, row_key, &value)?;
        m.commit();
        for (space, entry) in entries_of(engine, to, row_key, row)? {
            enter_one(engine, space, &entry, entry.len() - row_key.len())?;
        }
        Ok(())
    }

    /// CREATE SEQUENCE.
    ///
    /// # Errors
    /// The name is taken, or the numbers contradict each other.
    pub fn create_sequence(&mut self, new: NewSequence) -> Result<SequenceDef> {
        self.claim_name(&new.name)?;
        let NewSequence {
            name,
            start,
            increment,
            min,
            max,
            cycle,
            owned_by,
        } = new;
        if increment == 0 || min > max || !(min..=max).contains(&start) {
            return Err(Error::WrongState(format!(
                "sequence \"{name}\": start, increment and limits do not fit"
            )));
        }
        let def = SequenceDef {
            id: self.engine().next_object()?,
            name,
            start,
            increment,
            min,
            max,
            cycle,
            owned_by,
        };
        self.engine().set_value(def.id, start, false)?;
        self.insert_definition(&state::row_of_sequence(&self.engine().catalog.own, &def)?)?;
        self.define(Definition::Sequence(Arc::new(def.clone())));
        Ok(def)
    }

    /// DROP SEQUENCE.
    ///
    /// # Errors
    /// [`Error::UndefinedTable`]: there is none of this name.
    pub fn drop_sequence(&mut self, name: &str) -> Result<()> {
        self.ready_to_write()?;
        let def = self
            .sequence(name)?
            .ok_or_else(|| Error::UndefinedTable(name.to_string()))?;
        self.change_definition(def.id, None)?;
        self.define(Definition::DropSequence(def.id));
        Ok(())
    }

    /// TRUNCATE … RESTART IDENTITY: the sequence begins anew, unless that is taken back. So it is replaced by another
    /// object of the same name.
    ///
    /// # Errors
    /// Those of writing the definition and the value.
    pub fn restart_sequence(&mut self, sequence: &SequenceDef) -> Result<()> {
        self.ready_to_write()?;
        let def = SequenceDef {
            id: self.engine().next_object()?,
            ..sequence.clone()
        };
        self.engine().set_value(def.id, def.start, false)?;
        self.change_definition(sequence.id, None)?;
        self.define(Definition::DropSequence(sequence.id));
        self.insert_definition(&state::row_of_sequence(&self.engine().catalog.own, &def)?)?;
        self.define(Definition::Sequence(Arc::new(def)));
        Ok(())
    }

    /// The next value of a sequence (by object id); never taken back.
    ///
    /// # Errors
    /// The sequence is gone, or at its end and does not cycle (2200H).
    pub fn nextval(&mut self, sequence: u32) -> Result<i64> {
        let def = self.sequence_by_id(sequence)?;
        let (value, at) = self.engine().next_value(&def)?;
        self.drawn = self.drawn.max(at);
        Ok(value)
    }

    /// Sets a sequence; `called`: the next `nextval` goes on from `value`, else it gives `value` itself.
    ///
    /// # Errors
    /// The sequence is gone, or the value lies outside of its range (22003).
    pub fn setval(&mut self, sequence: u32, value: i64, called: bool) -> Result<()> {
        self.sequences_set += 1;
        let def = self.sequence_by_id(sequence)?;
        if !(def.min..=def.max).contains(&value) {
            let (name, min, max) = (&def.name, def.min, def.max);
            return Err(Error::OutOfRange(format!(
                "setval: value {value} is out of bounds for sequence \"{name}\" ({min}..{max})"
            )));
        }
        let at = self.engine().set_value(def.id, value, called)?;
        self.drawn = self.drawn.max(at);
        Ok(())
    }

    fn sequence_by_id(&self, id: u32) -> Result<Arc<SequenceDef>> {
        let found = self.catalog().sequence_by_id(id).cloned();
        found.ok_or_else(|| Error::UndefinedObject(format!("sequence {id}")))
    }
}

fn refuse_nulls(table: &Table, row: &[u8]) -> Result<()> {
    let columns = table
        .primary_key
        .as_ref()
        .map(|primary| primary.columns.as_slice())
        .unwrap_or_default();
    for column in columns {
        if table.layout().is_null(row, *column)? {
            return Err(Error::NotNull {
                table: table.name.clone(),
                column: table.columns[*column].name.clone(),
            });
        }
    }
    Ok(())
}
