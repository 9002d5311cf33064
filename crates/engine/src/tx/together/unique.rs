//! Rows of a table with unique secondary indexes, inserted together.
//!
//! 1. A *twin* has a unique key that a row before it in the call has. Rows before the first twin collide with no other
//!    of the call; when they stand, that one is inserted by itself, and so refused as a single one is.
//! 2. Rows go in parts. The stripes of a part's unique keys are held while these are looked for, the rows are inserted
//!    and their unique entries are entered: as for one row (`write`), for all of them at once.
//! 3. A part ends before a row whose key is not free, for whatever reason: a row that stands, a transaction to wait
//!    for. Without the stripes, that row goes the way of a single one.
//! 4. Keys of a part that begins with a row that goes alone (its primary key is there, or it has large values) are not
//!    looked for. Behind such a row a part has one row, then twice as many each time.
//!
//! A part is short: other transactions wait for its stripes.

use super::{RowSet, Tx, whole};
use crate::api::Direction;
use crate::error::Result;
use crate::key::KeyRange;
use crate::tree::batch::NewEntry;
use crate::tree::{BTree, LeafBatch};
use crate::tx::index;

/// Rows of a part at most.
pub(super) const PART: usize = 64;

/// The first row of which an earlier row has a unique key.
pub(super) fn first_twin(set: &RowSet<'_>) -> Result<Option<usize>> {
    let mut first = None::<usize>;
    for at in unique_indexes(set) {
        let mut rows = with_key(set, at, &mut (0..set.rows.len()))?;
        let key = |row: usize| set.entries[at].key(row);
        if rows.is_sorted_by(|a, b| key(*a) < key(*b)) {
            continue;
        }
        rows.sort_by(|a, b| key(*a).cmp(key(*b)));
        let twins = rows.windows(2).filter(|pair| key(pair[0]) == key(pair[1]));
        let later = twins.map(|pair| pair[1]).min();
        first = [first, later].into_iter().flatten().min();
    }
    Ok(first)
}

fn unique_indexes<'a>(set: &'a RowSet<'_>) -> impl Iterator<Item = usize> + 'a {
    (0..set.table.indexes.len()).filter(|at| set.table.indexes[*at].unique)
}

/// Those of the rows whose key in the index has no NULL: the others collide with none.
fn with_key(set: &RowSet<'_>, at: usize, rows: &mut dyn Iterator<Item = usize>) -> Result<Vec<usize>> {
    let mut with = Vec::new();
    for row in rows {
        if !set
            .table
            .index_key_has_null(&set.table.indexes[at], set.rows.row(row))?
        {
            with.push(row);
        }
    }
    Ok(with)
}

impl Tx {
    /// Inserts some of the rows from the first on, `most` at most, and enters them in the unique indexes; appends to
    /// `inserted` which. Where it appends none, the first is to be inserted by itself.
    pub(super) fn insert_part(
        &mut self,
        set: &RowSet<'_>,
        (order, sorted, most): (&[usize], &[NewEntry<'_>], usize),
        inserted: &mut Vec<usize>,
    ) -> Result<()> {
        let part = &order[..whole(&sorted[..sorted.len().min(most)])];
        let engine = self.engine().clone();
        if part.is_empty() || self.has_primary_key(set, part[0])? {
            return Ok(());
        }
        let unique = unique_keys(set, part)?;
        let _stripes = engine.stripes.hold(&unique);
        let free = self.free_rows(set, part)?;
        if free > 0 {
            index::note_free(&unique);
        }
        let mut taken = 0;
        let done = loop {
            match self.insert_some(set.table, &sorted[taken..free]) {
                Ok(0) => break Ok(()),
                Ok(some) => taken += some,
                Err(error) => break Err(error),
            }
        };
        inserted.extend_from_slice(&part[..taken]);
        done.and(set.enter(&engine, &part[..taken], true))
    }

    /// Whether anything stands under the row's primary key.
    fn has_primary_key(&self, set: &RowSet<'_>, row: usize) -> Result<bool> {
        let tree = BTree { space: set.table.space };
        Ok(tree.get(&self.engine().pool, set.keys.get(row), &mut Vec::new())?)
    }

    /// How many of the rows, from the first on, have unique keys that no row has or may come to have. Their stripes are
    /// held.
    fn free_rows(&self, set: &RowSet<'_>, part: &[usize]) -> Result<usize> {
        let mut free = part.len();
        for at in unique_indexes(set) {
            let mut rows = with_key(set, at, &mut part.iter().copied())?;
            rows.sort_by(|a, b| set.entries[at].key(*a).cmp(set.entries[at].key(*b)));
            if self.has_entries_between(set, at, &rows)? {
                free = self.free_in(set, at, (&part[..free], &rows))?;
            }
        }
        Ok(free)
    }

    /// Whether the index has an entry between the least and the greatest key of the rows, which are in its order: where
    /// a load appends to the index, it has none.
    fn has_entries_between(&self, set: &RowSet<'_>, at: usize, rows: &[usize]) -> Result<bool> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(false);
        };
        let key = |row: &usize| set.entries[at].key(*row);
        let range = KeyRange {
            lower: KeyRange::prefix(key(first)).lower,
            upper: KeyRange::prefix(key(last)).upper,
        };
        let tree = BTree {
            space: set.table.indexes[at].space,
        };
        let mut scan = tree.scan(range, Direction::Forward).batch_rows(1);
        Ok(scan.next_batch(&self.engine().pool, &mut LeafBatch::new())?)
    }

    /// How many rows of the part, from its first on, have a free key in the index; `rows`: those with a key, in its
    /// order.
    fn free_in(&self, set: &RowSet<'_>, at: usize, (part, rows): (&[usize], &[usize])) -> Result<usize> {
        let (mut free, mut probe) = (part.len(), index::Probe::default());
        for row in rows {
            let Some(place) = part[..free].iter().position(|other| other == row) else {
                continue;
            };
            let (key, own) = (set.entries[at].key(*row), set.keys.get(*row));
            if self.find_in_index(set.table, at, (key, own), &mut probe)?.is_some() {
                free = place;
            }
        }
        Ok(free)
    }
}

/// The keys of the rows that must be unique, with their index's space.
fn unique_keys(set: &RowSet<'_>, part: &[usize]) -> Result<Vec<(u32, Vec<u8>)>> {
    let mut keys = Vec::new();
    for at in unique_indexes(set) {
        let rows = with_key(set, at, &mut part.iter().copied())?;
        let space = set.table.indexes[at].space;
        keys.extend(rows.iter().map(|row| (space, set.entries[at].key(*row).to_vec())));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{indexed, key, new_index, row};
    use crate::*;

    /// Rows that are deleted and loaded again in one transaction: each of them cost a look for 64 keys, since its
    /// deleted version stood under its primary key.
    #[test]
    fn a_row_that_goes_alone_costs_no_look_for_its_neighbours() {
        const ROWS: i32 = 1_000;
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, like) = indexed(dir.path());
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let new = NewTable {
            name: "u".into(),
            columns: like.columns.clone(),
            primary_key: Some(("u_pkey".into(), vec![0])),
            indexes: vec![NewIndex {
                unique: true,
                ..new_index("u_n")
            }],
        };
        let table = tx.create_table(new).expect("made");
        let mut rows = NewRows::default();
        (0..ROWS).for_each(|id| rows.push(&row(&table, id, id * 7 % ROWS)));
        let probes = || index::PROBES.with(std::cell::Cell::get);
        assert_eq!(tx.insert_rows(&table, &rows, &mut 0).expect("inserted"), None);
        assert!((1..ROWS as u64).contains(&probes()), "{} of an empty index", probes());
        let before = probes();
        for id in 0..ROWS {
            let delete = |_: &[u8], _| Ok::<_, Error>(Change::Delete);
            tx.modify(&table, &key(&table, id), &delete).expect("its own");
        }
        assert_eq!(tx.insert_rows(&table, &rows, &mut 0).expect("inserted"), None);
        let probes = probes() - before;
        assert!(probes <= ROWS as u64 + PART as u64, "{probes} looks for {ROWS} keys");
        tx.commit().expect("committed");
        assert_eq!(engine.check().expect("checked").problems, Vec::<String>::new());
        drop(tx);
        engine.shutdown().expect("shut down");
    }
}
