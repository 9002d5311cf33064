//! Rows against index entries, without a descent for each of them.
//!
//! 1. Each entry has a digest: a hash of its bytes and of where its first part ends. The entries that the rows of a
//!    snapshot should have are added up by digest, in buckets; the entries that an index has are taken off again. A
//!    bucket that comes to zero has in the index what the rows say, and nothing else.
//! 2. Entries in other buckets are *open*: entries of other versions, entries that are missing or wrong, and rows' that
//!    have come into the same bucket. Each is looked at by a descent to its row.
//! 3. Where then an index does not lead to as many rows as the table has, each row with an open entry looks for it.
//! 4. In a unique index, entries that stand next to each other with one key are looked at, whatever their bucket.
//!
//! So a check costs a descent for each entry of another version, and for some 20 beside it; where all is at rest, none.
//! Two sets of entries that differ have one sum with a chance of 1 in 2^64.

use crate::api::{Direction, RowBatch};
use crate::catalog::{IndexDef, Table};
use crate::engine::Engine;
use crate::error::Result;
use crate::key::{self, KeyRange};
use crate::report::CheckReport;
use crate::tree::{BTree, LeafBatch};
use crate::tx::read::{Reader, split_entry};
use cenote_base::rt::FixedState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// Memory of all sums of a table, in buckets.
const BUCKETS_MAX: usize = 1 << 21;
/// Entries of a bucket, about, where there are buckets enough.
const ENTRIES: u64 = 16;

/// Entries whose digests have the same low bits.
#[derive(Clone, Default)]
struct Bucket {
    /// Of the rows' entries, less that of the index's.
    sum: u64,
    /// The rows' entries.
    rows: u64,
}

/// Sums of one index.
struct Sums {
    buckets: Vec<Bucket>,
}

/// What entries of a table's rows come to, by index.
pub(super) struct TableSums {
    of: Vec<Sums>,
    pub(super) scratch: Vec<u8>,
}

fn digest(entry: &[u8], split: usize) -> u64 {
    let mut hasher = FixedState.build_hasher();
    hasher.write_usize(split);
    hasher.write(entry);
    hasher.finish()
}

impl Sums {
    /// `buckets` is a power of two.
    fn new(buckets: usize) -> Sums {
        assert!(buckets.is_power_of_two(), "a bucket is named by a digest's low bits");
        Sums {
            buckets: vec![Bucket::default(); buckets],
        }
    }

    fn place(&self, digest: u64) -> usize {
        digest as usize & (self.buckets.len() - 1)
    }

    fn add(&mut self, digest: u64) {
        let place = self.place(digest);
        let bucket = &mut self.buckets[place];
        bucket.sum = bucket.sum.wrapping_add(digest);
        bucket.rows += 1;
    }

    fn take_off(&mut self, digest: u64) {
        let place = self.place(digest);
        let bucket = &mut self.buckets[place];
        bucket.sum = bucket.sum.wrapping_sub(digest);
    }

    fn is_open(&self, digest: u64) -> bool {
        self.buckets[self.place(digest)].sum != 0
    }

    fn any_open(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.sum != 0)
    }

    /// Entries in buckets that are not open: the rows' are the index's.
    fn closed(&self) -> u64 {
        let closed = self.buckets.iter().filter(|bucket| bucket.sum == 0);
        closed.map(|bucket| bucket.rows).sum()
    }
}

impl TableSums {
    /// For about so many rows.
    pub(super) fn new(table: &Table, rows: u64) -> TableSums {
        let indexes = table.indexes.len();
        let most = (BUCKETS_MAX / indexes.max(1)).max(1);
        let wanted = (rows / ENTRIES).clamp(1, most as u64) as usize;
        // The greatest power of two that is not above.
        let buckets = 1 << wanted.ilog2();
        TableSums {
            of: (0..indexes).map(|_| Sums::new(buckets)).collect(),
            scratch: Vec::new(),
        }
    }

    /// Adds the entries of a row.
    pub(super) fn add_row(&mut self, table: &Table, key: &[u8], row: &[u8]) -> Result<()> {
        for (index, sums) in table.indexes.iter().zip(&mut self.of) {
            table.index_key_of_row(index, row, &mut self.scratch)?;
            let split = self.scratch.len();
            self.scratch.extend_from_slice(key);
            sums.add(digest(&self.scratch, split));
        }
        Ok(())
    }
}

/// Entries in open buckets.
#[derive(Default)]
struct Open {
    entries: u64,
    /// Those that lead to their row.
    live: u64,
}

/// An entry that was looked at.
struct Look {
    is_live: bool,
    /// Whether it can stand beside others with the same key.
    has_null: bool,
}

/// Finds keys of a unique index that two rows have, among entries in their order.
#[derive(Default)]
struct Twins {
    prefix: Vec<u8>,
    /// The row of the first entry with this key, until it has been looked at.
    first: Option<Vec<u8>>,
    rows: u32,
}

impl Engine {
    /// Compares an index's entries with the rows that `sums` was made of, which were `rows`.
    pub(super) fn check_entries(
        &self,
        reader: &Reader,
        (table, at): (&Arc<Table>, usize),
        sums: &mut TableSums,
        rows: u64,
        report: &mut CheckReport,
    ) -> Result<()> {
        let (index, sums) = (&table.indexes[at], &mut sums.of[at]);
        let (has_twins, mut open) = (self.take_off_entries(index, sums)?, Open::default());
        if has_twins || sums.any_open() {
            self.look_at_entries(reader, (table, index), sums, &mut open, report)?;
        }
        let (live, hints) = (sums.closed() + open.live, open.entries - open.live);
        if live != rows {
            self.find_missing(reader, (table, index), sums, report)?;
            report.problems.push(format!(
                "index \"{}\" leads to {live} rows, its table has {rows}",
                index.name
            ));
        }
        report.entries_of_others += hints;
        report.summary.push(format!(
            "index \"{}\": {live} rows, {hints} entries of other versions",
            index.name
        ));
        Ok(())
    }

    /// Takes each entry of the index off the sums. Says whether a unique index has one key in entries that stand next to
    /// each other.
    fn take_off_entries(&self, index: &IndexDef, sums: &mut Sums) -> Result<bool> {
        let (mut has_twins, mut last) = (false, Vec::new());
        let (mut scan, mut batch) = (
            BTree { space: index.space }.scan(KeyRange::all(), Direction::Forward),
            LeafBatch::new(),
        );
        while scan.next_batch(&self.pool, &mut batch)? {
            for (entry, value) in batch.iter() {
                let (prefix, _) = split_entry(entry, value)?;
                sums.take_off(digest(entry, prefix.len()));
                if index.unique && !has_twins {
                    has_twins = is_twin(&last, prefix);
                    last.clear();
                    last.extend_from_slice(prefix);
                }
            }
        }
        Ok(has_twins)
    }

    /// Looks at the entries in open buckets, and at those that have one key in a unique index.
    fn look_at_entries(
        &self,
        reader: &Reader,
        (table, index): (&Table, &IndexDef),
        sums: &Sums,
        open: &mut Open,
        report: &mut CheckReport,
    ) -> Result<()> {
        let (mut looker, mut twins) = (Looker::new(reader, table, index), Twins::default());
        let (mut scan, mut batch) = (
            BTree { space: index.space }.scan(KeyRange::all(), Direction::Forward),
            LeafBatch::new(),
        );
        while scan.next_batch(&self.pool, &mut batch)? {
            for (entry, value) in batch.iter() {
                let (prefix, key) = split_entry(entry, value)?;
                if sums.is_open(digest(entry, prefix.len())) {
                    open.entries += 1;
                    open.live += u64::from(looker.look(prefix, key)?.is_live);
                }
                if index.unique && twins.meet(&mut looker, prefix, key)? {
                    report
                        .problems
                        .push(format!("unique index \"{}\" has key {} twice", index.name, hex(prefix)));
                }
            }
        }
        Ok(())
    }

    /// Names the rows whose entries the index lacks.
    fn find_missing(
        &self,
        reader: &Reader,
        (table, index): (&Arc<Table>, &IndexDef),
        sums: &Sums,
        report: &mut CheckReport,
    ) -> Result<()> {
        let (mut entry, mut value) = (Vec::new(), Vec::new());
        let (mut scan, mut batch) = (reader.scan(table, KeyRange::all(), Direction::Forward), RowBatch::new());
        while scan.next_batch(reader, &mut batch)? {
            for i in 0..batch.len() {
                table.index_key_of_row(index, batch.row(i), &mut entry)?;
                let split = entry.len();
                entry.extend_from_slice(batch.key(i));
                let is_open = sums.is_open(digest(&entry, split));
                if is_open && !(BTree { space: index.space }).get(&self.pool, &entry, &mut value)? {
                    let key = hex(batch.key(i));
                    report
                        .problems
                        .push(format!("index \"{}\" lacks the entry of row {key}", index.name));
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a key, for people.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether the key is that of the entry before, and stands for a value.
fn is_twin(before: &[u8], prefix: &[u8]) -> bool {
    before == prefix && prefix.first() != Some(&key::NULL)
}

/// Looks at the rows that entries lead to.
struct Looker<'a> {
    reader: &'a Reader,
    table: &'a Table,
    index: &'a IndexDef,
    row: Vec<u8>,
    seen: Vec<u8>,
}

impl<'a> Looker<'a> {
    fn new(reader: &'a Reader, table: &'a Table, index: &'a IndexDef) -> Looker<'a> {
        Looker {
            reader,
            table,
            index,
            row: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn look(&mut self, prefix: &[u8], key: &[u8]) -> Result<Look> {
        if !self.reader.get(self.table, key, &mut self.row)? {
            return Ok(Look {
                is_live: false,
                has_null: false,
            });
        }
        self.table.index_key_of_row(self.index, &self.row, &mut self.seen)?;
        Ok(Look {
            is_live: self.seen == prefix,
            has_null: self.table.index_key_has_null(self.index, &self.row)?,
        })
    }
}

impl Twins {
    /// The next entry; whether its row has the key of one before.
    fn meet(&mut self, looker: &mut Looker<'_>, prefix: &[u8], key: &[u8]) -> Result<bool> {
        if !is_twin(&self.prefix, prefix) {
            self.prefix.clear();
            self.prefix.extend_from_slice(prefix);
            (self.first, self.rows) = (Some(key.to_vec()), 0);
            return Ok(false);
        }
        let mut counts = |key: &[u8]| {
            let look = looker.look(prefix, key)?;
            Ok::<_, crate::Error>(look.is_live && !look.has_null)
        };
        if let Some(first) = self.first.take() {
            self.rows += u32::from(counts(&first)?);
        }
        let is_row = counts(key)?;
        self.rows += u32::from(is_row);
        Ok(is_row && self.rows > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_clean, indexed, key as key_of, row as row_of, write};
    use crate::undo::record::TRAILER;
    use crate::*;

    const ROWS: i32 = 2_000;

    /// The table of `indexed` with rows whose `n` is ten times their id.
    fn filled(dir: &std::path::Path) -> (Arc<Engine>, Arc<Table>) {
        let (engine, table) = indexed(dir);
        let mut tx = engine.begin(Isolation::ReadCommitted);
        (0..ROWS).for_each(|id| write(&mut tx, &table, id, std::iter::once(10 * id)));
        tx.commit().expect("committed");
        assert_clean(&engine, ROWS as usize);
        (engine, table)
    }

    /// The index's entry of a row, and where its first part ends.
    fn entry_of(table: &Table, id: i32, n: i32) -> (Vec<u8>, usize) {
        let mut entry = Vec::new();
        table
            .index_key_of_row(&table.indexes[0], &row_of(table, id, n), &mut entry)
            .expect("a row");
        let split = entry.len();
        entry.extend_from_slice(&key_of(table, id));
        (entry, split)
    }

    fn enter(engine: &Engine, table: &Table, (entry, split): (Vec<u8>, usize)) {
        let tree = BTree {
            space: table.indexes[0].space,
        };
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, &entry, entry.len() + 2).expect("a place");
        tree.insert_at(&mut m, &pos, &entry, &(split as u16).to_le_bytes())
            .expect("room");
        m.commit();
    }

    fn remove(engine: &Engine, table: &Table, (entry, _): (Vec<u8>, usize)) {
        let tree = BTree {
            space: table.indexes[0].space,
        };
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, &entry, 0).expect("a place");
        assert!(pos.found);
        tree.remove_at(&mut m, &pos);
        m.commit();
    }

    /// Gives a row another `n`, and its index nothing.
    fn change_row(engine: &Engine, table: &Table, id: i32, n: i32) {
        let (tree, key, mut value) = (BTree { space: table.space }, key_of(table, id), Vec::new());
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, &key, 0).expect("a place");
        tree.value(&m, &pos, &mut value);
        let trailer = value.split_off(value.len() - TRAILER);
        let mut new = row_of(table, id, n);
        new.extend_from_slice(&trailer);
        tree.replace_at(&mut m, &pos, &new).expect("of one length");
        m.commit();
    }

    fn problems(engine: &Arc<Engine>) -> Vec<String> {
        engine.check().expect("readable").problems
    }

    fn lacks(table: &Table, id: i32) -> String {
        format!("index \"t_n\" lacks the entry of row {}", hex(&key_of(table, id)))
    }

    fn leads_to(rows: i32) -> String {
        format!("index \"t_n\" leads to {rows} rows, its table has {ROWS}")
    }

    #[test]
    fn an_entry_that_is_missing_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = filled(dir.path());
        for id in [7, 1_234] {
            remove(&engine, &table, entry_of(&table, id, 10 * id));
        }
        let expected = [lacks(&table, 7), lacks(&table, 1_234), leads_to(ROWS - 2)];
        assert_eq!(problems(&engine), expected);
        // In the middle of many entries of other versions, too.
        (0..ROWS).for_each(|id| enter(&engine, &table, entry_of(&table, id, 10 * id + 1)));
        assert_eq!(problems(&engine), expected);
    }

    /// One entry in place of another: as many as there should be, and neither leads nowhere.
    #[test]
    fn an_entry_that_has_another_s_place_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = filled(dir.path());
        remove(&engine, &table, entry_of(&table, 7, 70));
        enter(&engine, &table, entry_of(&table, 7, 71));
        assert_eq!(problems(&engine), [lacks(&table, 7), leads_to(ROWS - 1)]);
        remove(&engine, &table, entry_of(&table, 7, 71));
        let (entry, split) = entry_of(&table, 7, 70);
        enter(&engine, &table, (entry, split - 1));
        // It is there, and does not lead to its row.
        assert_eq!(problems(&engine), [leads_to(ROWS - 1)]);
    }

    #[test]
    fn entries_of_other_versions_are_counted_one_by_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = filled(dir.path());
        let entries = [(7, 71), (7, 72), (ROWS, 3), (ROWS + 1, 3)];
        for (id, n) in entries {
            enter(&engine, &table, entry_of(&table, id, n));
        }
        let report = engine.check().expect("readable");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.entries_of_others, entries.len() as u64);
    }

    #[test]
    fn a_unique_key_of_two_rows_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = filled(dir.path());
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.drop_index(&table, 0).expect("dropped");
        let mut unique = crate::testing::new_index("t_n");
        unique.unique = true;
        let table = tx.create_index(&table, unique).expect("made");
        tx.commit().expect("committed");
        drop(tx);
        assert_eq!(problems(&engine), Vec::<String>::new());
        // An entry of another version stands beside the row's.
        enter(&engine, &table, entry_of(&table, 9, 80));
        assert_eq!(problems(&engine), Vec::<String>::new());
        remove(&engine, &table, entry_of(&table, 9, 90));
        change_row(&engine, &table, 9, 80);
        let (entry, split) = entry_of(&table, 9, 80);
        let twice = format!("unique index \"t_n\" has key {} twice", hex(&entry[..split]));
        assert_eq!(problems(&engine), std::slice::from_ref(&twice));
        // A third one, behind an entry of another version.
        enter(&engine, &table, entry_of(&table, 10, 80));
        remove(&engine, &table, entry_of(&table, 11, 110));
        change_row(&engine, &table, 11, 80);
        enter(&engine, &table, entry_of(&table, 11, 80));
        assert_eq!(problems(&engine), [twice.clone(), twice]);
    }
}
