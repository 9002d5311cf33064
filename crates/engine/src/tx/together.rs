//! Inserting several rows at a time.
//!
//! 1. The rows are sorted by their keys. As many as a leaf takes go there in one mini-transaction, with one undo record
//!    (`undo::keys`): COPY mostly appends, so that is a leaf's worth.
//! 2. A row whose key is there, whatever stands under it (a duplicate, a deleted row, one of a transaction in progress),
//!    goes the way of a single one; so does one with large values.
//! 3. Then the rows' entries of secondary indexes, index by index and sorted, as many as a leaf takes in one
//!    mini-transaction.
//!
//! Where a secondary index is unique, rows go in parts whose keys are checked and entered under their stripes
//! (`unique`).
//!
//! Latch order: clustered leaf → undo page. Index leaves one at a time, with nothing else latched.

mod unique;

use super::Tx;
use super::write::no_segment;
use crate::api::Insert;
use crate::catalog::{IndexDef, Table};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key;
use crate::large;
use crate::tree::BTree;
use crate::tree::batch::NewEntry;
use crate::undo::keys;
use crate::undo::record::{Kind, NewRecord, TRAILER, Trailer};
use crate::undo::shared::Shared;

/// Rows that are to be inserted together, one after the other in one buffer.
#[derive(Debug, Default)]
pub struct NewRows(Pieces);

impl NewRows {
    /// Adds a row.
    pub fn push(&mut self, row: &[u8]) {
        self.0.bytes.extend_from_slice(row);
        self.0.end();
    }

    /// The row with this number, from 0 on.
    pub fn row(&self, number: usize) -> &[u8] {
        self.0.get(number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.0.bytes.len()
    }

    /// Forgets the rows; keeps up to `kept` bytes of memory.
    pub fn clear(&mut self, kept: usize) {
        self.0.bytes.clear();
        self.0.bytes.shrink_to(kept);
        self.0.ends.clear();
    }
}

/// Bytes of some length each, end to end.
#[derive(Debug, Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// What was added to the bytes is a piece.
    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn get(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }
}

/// A row that collides with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Its number among the rows.
    pub row: usize,
    /// Position in `Table::indexes`; None: the primary key.
    pub index: Option<usize>,
}

impl Tx {
    /// Inserts rows as [`Tx::insert`] does one. A row that collides with another, or with one before it, comes back: the
    /// first of them, if several do. Others may have been inserted then, so the statement is to be taken back. `at`
    /// becomes the number of the row in hand: that of which an error tells.
    ///
    /// # Errors
    /// As [`Tx::insert`]; some of the rows may have been inserted.
    pub fn insert_rows(&mut self, table: &Table, rows: &NewRows, at: &mut usize) -> Result<Option<Refused>> {
        self.write_table(table)?;
        if rows.is_empty() {
            return Ok(None);
        }
        let keys = self.keys_of(table, rows, at)?;
        let entries = entries_of(table, rows, &keys, at)?;
        let set = RowSet {
            table,
            rows,
            keys: &keys,
            entries: &entries,
        };
        let twin = unique::first_twin(&set)?;
        let mut order: Vec<usize> = (0..twin.unwrap_or(rows.len())).collect();
        if !order.is_sorted_by_key(|row| keys.get(*row)) {
            order.sort_by_key(|row| keys.get(*row));
        }
        let mut inserted = Vec::with_capacity(order.len());
        let refused = self.insert_sorted(&set, &order, (at, &mut inserted));
        // The others' entries were made with them.
        self.count_changes(table, inserted.len() as u64);
        let entered = set.enter(self.engine(), &inserted, false);
        let refused = refused?;
        entered?;
        match (refused, twin) {
            (None, Some(twin)) => {
                *at = twin;
                let refused = self.insert_alone(&set, twin)?;
                refused
                    .map(Some)
                    .ok_or_else(|| Error::Internal("two rows have one unique key".into()))
            }
            (refused, _) => Ok(refused),
        }
    }

    fn insert_alone(&mut self, set: &RowSet<'_>, row: usize) -> Result<Option<Refused>> {
        let inserted = self.insert_keyed(set.table, (set.rows.row(row), set.keys.get(row)), &[])?;
        Ok(match inserted {
            Insert::Done => None,
            Insert::Duplicate { index, .. } => Some(Refused { row, index }),
        })
    }

    fn keys_of(&self, table: &Table, rows: &NewRows, at: &mut usize) -> Result<Pieces> {
        let mut keys = Pieces::default();
        if table.has_hidden_key() {
            let first = self.engine().next_row_numbers(table, rows.len() as u64)?;
            for number in first..first + rows.len() as u64 {
                keys.bytes.extend_from_slice(&number.to_be_bytes());
                keys.end();
            }
            return Ok(keys);
        }
        let mut key = Vec::new();
        for row in 0..rows.len() {
            *at = row;
            table.key_of_row(rows.row(row), &mut key)?;
            keys.bytes.extend_from_slice(&key);
            keys.end();
        }
        Ok(keys)
    }

    /// Inserts the rows in this order of their keys; notes in `inserted` those whose entries in indexes that are not
    /// unique are to follow.
    fn insert_sorted(
        &mut self,
        set: &RowSet<'_>,
        order: &[usize],
        (in_hand, inserted): (&mut usize, &mut Vec<usize>),
    ) -> Result<Option<Refused>> {
        let entry = |row: &usize| NewEntry {
            key: set.keys.get(*row),
            value: set.rows.row(*row),
        };
        let sorted: Vec<NewEntry<'_>> = order.iter().map(entry).collect();
        let has_unique = set.table.indexes.iter().any(|index| index.unique);
        let (mut at, mut refused, mut part) = (0, None::<Refused>, unique::PART);
        while at < order.len() {
            let row = order[at];
            *in_hand = row;
            if refused.is_some_and(|refused| refused.row < row) {
                // Only a row before that one could come back in its place.
                at += 1;
                continue;
            }
            let before = inserted.len();
            let done = match has_unique {
                true => self.insert_part(set, (&order[at..], &sorted[at..], part), inserted),
                false => self.insert_some(set.table, &sorted[at..]).map(|taken| {
                    inserted.extend_from_slice(&order[at..at + taken]);
                }),
            };
            done?;
            let taken = inserted.len() - before;
            at += taken;
            part = (2 * part).min(unique::PART);
            if taken == 0 {
                // Its neighbours are likely to be like it.
                part = 1;
                refused = self.insert_alone(set, row)?.or(refused);
                at += 1;
            }
        }
        Ok(refused)
    }

    /// Inserts as many of the rows as go into the leaf of the first; returns how many: 0 where that one is to be
    /// inserted by itself.
    fn insert_some(&mut self, table: &Table, rows: &[NewEntry<'_>]) -> Result<usize> {
        let rows = &rows[..whole(rows)];
        let Some(first) = rows.first() else { return Ok(0) };
        let engine = self.engine().clone();
        let tree = BTree { space: table.space };
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, first.key, first.key.len() + first.value.len() + TRAILER)?;
        if pos.found {
            return Ok(0);
        }
        let most = keys::fitting(rows.iter().map(|row| row.key));
        let plan = tree.plan(&m, &pos, &rows[..most], TRAILER)?;
        assert!(plan.count > 0, "the leaf has room for the first");
        let scratch = &mut self.scratch;
        scratch.old.clear();
        let (kind, key) = match &rows[..plan.count] {
            [one] => (Kind::Insert, one.key),
            many => (
                Kind::InsertMany,
                keys::pack(many.iter().map(|row| row.key), &mut scratch.old),
            ),
        };
        let record = NewRecord {
            kind,
            plain: true,
            counted: true,
            tx: self.reader.own,
            prev: self.last_undo,
            space: table.space,
            before: Trailer::default(),
            shared: Shared::default(),
            key,
            row: &scratch.old,
            new_key: &[],
        };
        let writer = self.writer.as_mut().ok_or_else(no_segment)?;
        let place = writer.prepare(&mut m, record.len())?;
        let trailer = Trailer {
            tx: self.reader.own,
            undo: writer.pointer(&place),
            flags: 0,
        };
        self.last_undo = writer.append(&mut m, &place, &record, &mut scratch.record)?;
        tree.insert_all(&mut m, &pos, rows, &plan, &trailer.encode());
        let counted = rows[..plan.count].iter();
        counted.for_each(|row| engine.unsettled.count(self.reader.own, table.space, row.key));
        m.commit();
        Ok(plan.count)
    }
}

/// How many rows, from the first on, have all their values within.
fn whole(rows: &[NewEntry<'_>]) -> usize {
    let stays_whole = |row: &&NewEntry<'_>| large::stays_whole(row.value.len());
    rows.iter().take_while(stays_whole).count()
}

/// The rows of one call, with what is made of them.
struct RowSet<'a> {
    table: &'a Table,
    rows: &'a NewRows,
    keys: &'a Pieces,
    /// Of each index of the table.
    entries: &'a [Entries],
}

impl RowSet<'_> {
    /// Enters these rows in the unique indexes, or in the others.
    fn enter(&self, engine: &Engine, rows: &[usize], unique: bool) -> Result<()> {
        let indexes = self.table.indexes.iter().zip(self.entries);
        for (index, entries) in indexes.filter(|(index, _)| index.unique == unique) {
            enter_sorted(engine, index, entries, rows)?;
        }
        Ok(())
    }
}

/// Index entries of rows, and the lengths of their first parts.
struct Entries {
    entries: Pieces,
    splits: Vec<[u8; 2]>,
}

impl Entries {
    /// The index's columns of a row's entry.
    fn key(&self, row: usize) -> &[u8] {
        &self.entries.get(row)[..usize::from(u16::from_le_bytes(self.splits[row]))]
    }
}

/// The entries of all rows in each index. Errors: one is too long.
fn entries_of(table: &Table, rows: &NewRows, keys: &Pieces, at: &mut usize) -> Result<Vec<Entries>> {
    let of_index = |index| {
        let (mut entries, mut splits, mut key) = (Pieces::default(), Vec::with_capacity(rows.len()), Vec::new());
        for row in 0..rows.len() {
            *at = row;
            table.index_key_of_row(index, rows.row(row), &mut key)?;
            splits.push((key.len() as u16).to_le_bytes());
            key.extend_from_slice(keys.get(row));
            key::check_len(&key)?;
            entries.bytes.extend_from_slice(&key);
            entries.end();
        }
        Ok(Entries { entries, splits })
    };
    table.indexes.iter().map(of_index).collect()
}

/// Enters the entries of these rows in an index, where they are not there yet.
fn enter_sorted(engine: &Engine, index: &IndexDef, entries: &Entries, rows: &[usize]) -> Result<()> {
    let entry = |row: &usize| NewEntry {
        key: entries.entries.get(*row),
        value: &entries.splits[*row],
    };
    let mut sorted: Vec<NewEntry<'_>> = rows.iter().map(entry).collect();
    sorted.sort_unstable_by_key(|entry| entry.key);
    let tree = BTree { space: index.space };
    let mut rest = &sorted[..];
    while let Some(first) = rest.first() {
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, first.key, first.key.len() + first.value.len())?;
        let mut taken = 1;
        if !pos.found {
            let plan = tree.plan(&m, &pos, rest, 0)?;
            tree.insert_all(&mut m, &pos, rest, &plan, &[]);
            taken = plan.count;
        }
        m.commit();
        rest = &rest[taken..];
    }
    Ok(())
}
