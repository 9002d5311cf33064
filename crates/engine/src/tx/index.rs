//! Secondary indexes, as writers see them.
//!
//! An entry is index columns + primary key; its value says where the first part ends. Entries are added after the row's
//! mini-transaction, each in one of its own, and never removed by writers: purge and rollback remove those that no
//! version needs. So an entry is a hint that some version of the row has, or had, this key.
//!
//! A unique key is checked, under its stripe, against the newest version of each row that an entry leads to: one by a
//! transaction in progress has to be waited for, whichever way it will end.

use super::newest::{Blocker, Newest};
use super::status::BELOW_LOW_WATER;
use super::{Status, Tx};
use crate::api::{Columns, Direction};
use crate::catalog::{IndexDef, Table};
use crate::engine::Engine;
use crate::error::Result;
use crate::key::{self, KeyRange};
use crate::tree::{BTree, LeafBatch, Scan};
use crate::tx::read::split_entry;
use crate::undo::record::TRAILER;
use cenote_base::TxId;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};

/// What stands in the way of a unique key.
pub(super) enum Obstacle {
    /// A row that has it: position of the index and the row's key.
    Duplicate(usize, Vec<u8>),
    /// A transaction that may give it or take it away.
    InProgress(Blocker),
}

/// What has become of the transaction that made a version, when it was asked for.
pub(super) enum Standing {
    /// It is this one, or the snapshot sees it: it was committed before the version was copied.
    Seen,
    /// It has committed, maybe behind the copy.
    Committed,
    /// It runs.
    InProgress(TxId),
    /// It was rolled back: the version does not stand any more.
    Over,
}

/// What looks for keys in one index, with its memory.
#[derive(Default)]
pub(super) struct Probe {
    scan: Option<Scan>,
    batch: LeafBatch,
}

#[cfg(test)]
thread_local! {
    /// How many keys this thread has looked for.
    pub(super) static PROBES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Keys that a change enters in indexes: (position of the index, its columns' bytes).
pub(super) type NewKeys = Vec<(usize, Vec<u8>)>;

/// Keys of a row in all indexes, or in those where it differs from `old`.
pub(super) fn new_keys(table: &Table, row: &[u8], old: Option<&[u8]>) -> Result<NewKeys> {
    let mut keys = Vec::new();
    let mut former = Vec::new();
    for (position, index) in table.indexes.iter().enumerate() {
        let mut key = Vec::new();
        table.index_key_of_row(index, row, &mut key)?;
        if let Some(old) = old {
            table.index_key_of_row(index, old, &mut former)?;
            if former == key {
                continue;
            }
        }
        keys.push((position, key));
    }
    Ok(keys)
}

/// Those of the keys that must be unique, with their index's space.
pub(super) fn unique_keys(table: &Table, row: &[u8], keys: &NewKeys) -> Result<Vec<(u32, Vec<u8>)>> {
    let mut unique = Vec::new();
    for (position, key) in keys {
        let index = &table.indexes[*position];
        if index.unique && !table.index_key_has_null(index, row)? {
            unique.push((index.space, key.clone()));
        }
    }
    Ok(unique)
}

/// These unique keys were found free, and are about to be entered.
pub(super) fn note_free(unique: &[(u32, Vec<u8>)]) {
    if !unique.is_empty() {
        mark::pass(Mark::UniqueFree);
    }
}

impl Tx {
    /// Looks whether another row has, or may come to have, one of these unique keys.
    pub(super) fn find_obstacle(
        &self,
        table: &Table,
        row: &[u8],
        own_key: &[u8],
        keys: &NewKeys,
    ) -> Result<Option<Obstacle>> {
        for (position, key) in keys {
            let index = &table.indexes[*position];
            if !index.unique || table.index_key_has_null(index, row)? {
                continue;
            }
            if let Some(obstacle) = self.find_in_index(table, *position, (key, own_key), &mut Probe::default())? {
                return Ok(Some(obstacle));
            }
        }
        Ok(None)
    }

    /// Looks whether another row than that of `own_key` has, or may come to have, this key in the index.
    pub(super) fn find_in_index(
        &self,
        table: &Table,
        position: usize,
        (key, own_key): (&[u8], &[u8]),
        probe: &mut Probe,
    ) -> Result<Option<Obstacle>> {
        #[cfg(test)]
        PROBES.with(|probes| probes.set(probes.get() + 1));
        let index = &table.indexes[position];
        let Probe { scan, batch } = probe;
        let scan = scan.get_or_insert_with(|| BTree { space: index.space }.scan(KeyRange::all(), Direction::Forward));
        scan.restart(KeyRange::prefix(key));
        while scan.next_batch(&self.engine().pool, batch)? {
            for (entry, value) in batch.iter() {
                let (prefix, row_key) = split_entry(entry, value)?;
                if prefix != key || row_key == own_key {
                    continue;
                }
                if let Some(obstacle) = self.judge(table, index, position, key, row_key)? {
                    return Ok(Some(obstacle));
                }
            }
        }
        Ok(None)
    }

    /// What the newest version of the row at `row_key` means for `key`.
    fn judge(
        &self,
        table: &Table,
        index: &IndexDef,
        position: usize,
        key: &[u8],
        row_key: &[u8],
    ) -> Result<Option<Obstacle>> {
        let mut value = Vec::new();
        let trailer = match self.newest(table, row_key, &mut value)? {
            Newest::Missing => return Ok(None),
            Newest::InProgress(by) => return Ok(Some(Obstacle::InProgress(Blocker::new(by, row_key)))),
            Newest::Row { trailer, .. } => trailer,
        };
        if trailer.deleted() {
            return Ok(None);
        }
        // The version stands, and this transaction's snapshot keeps purge from what it has outside.
        value.truncate(value.len() - TRAILER);
        self.reader().complete(table, &mut value, &Columns::Only([].into()))?;
        let mut have = Vec::new();
        table.index_key_of_row(index, &value, &mut have)?;
        Ok((have == key).then(|| Obstacle::Duplicate(position, row_key.to_vec())))
    }

    /// What has become of the transaction that made a version. Commits behind the snapshot are noted as built on.
    pub(super) fn standing(&self, tx: TxId) -> Result<Standing> {
        let reader = self.reader();
        if tx < reader.low_water || tx == reader.own {
            return Ok(Standing::Seen);
        }
        Ok(match self.engine().status(tx)? {
            Status::Active(_) if planted(Fault::WriteLock) => Standing::Seen,
            Status::Active(_) => Standing::InProgress(tx),
            Status::Committed(BELOW_LOW_WATER) => Standing::Committed,
            Status::Committed(at) if at <= reader.snapshot => Standing::Seen,
            Status::Committed(at) => {
                self.built_on.fetch_max(at.raw(), Ordering::Relaxed);
                Standing::Committed
            }
            Status::Over => Standing::Over,
        })
    }
}

/// Enters a row's keys in its indexes, where they are not there yet.
pub(super) fn enter(engine: &Engine, table: &Table, keys: &NewKeys, row_key: &[u8]) -> Result<()> {
    for (position, key) in keys {
        let mut entry = Vec::with_capacity(key.len() + row_key.len());
        entry.extend_from_slice(key);
        entry.extend_from_slice(row_key);
        enter_one(engine, table.indexes[*position].space, &entry, key.len())?;
    }
    Ok(())
}

/// Enters one entry whose first part has `split` bytes.
pub(crate) fn enter_one(engine: &Engine, space: u32, entry: &[u8], split: usize) -> Result<()> {
    let tree = BTree { space };
    let mut m = engine.pool.mtr();
    let pos = tree.seek_write(&mut m, entry, entry.len() + 2)?;
    if !pos.found {
        tree.insert_at(&mut m, &pos, entry, &(split as u16).to_le_bytes())?;
    }
    m.commit();
    Ok(())
}

/// Refuses keys that would be too long as entries, before anything is changed.
pub(super) fn check_lengths(keys: &NewKeys, row_key: &[u8]) -> Result<()> {
    keys.iter().try_for_each(|(_, key)| match key.len() + row_key.len() {
        len if len > key::MAX_KEY_BYTES => Err(key::too_long(len)),
        _ => Ok(()),
    })
}
