//! Large values: columns that leave the row for overflow pages of the table's space.
//!
//! The longest values leave first, one by one, each with a chain of its own, until the rest is short. A row whose length comes from
//! many columns leaves as a whole, in one chain: a chain takes a page at least, so a page for each short value would cost more.
//!
//! 1. `move_out` writes the values that make a row too long as chains that are *pending* (reclaimed after a crash).
//! 2. The mini-transaction that writes the row adopts them (`adopt`).
//! 3. A version's values are freed when nobody can see the version any more: by purge when its undo record is purged, by
//!    rollback when the version is taken back (`orphan` in that mini-transaction, then `free`).
//!
//! What a crash leaves pending is freed before the first value of that space is made pending again (`reclaim_large`).
//!
//! A new version always has chains of its own, so each chain belongs to exactly one version.

use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pool::{BufferPool, Mtr};
use crate::row::{FLAG_EXTERNAL, FLAG_WHOLE};
use crate::tree::{Adoption, BTree, LargeRef};

/// Rows up to this many bytes stay whole.
const ROW_INLINE: usize = 2048;
/// Values up to this many bytes never leave the row.
const VALUE_INLINE: usize = 128;
/// Values that leave a row one by one, at most.
const VALUES_OUT: usize = 16;
/// A row that is longer without them leaves as a whole.
const ROW_MAX: usize = 3900;

fn tree(table: &Table) -> BTree {
    BTree { space: table.space }
}

/// The row as it is stored; values that have left it are pending.
pub(crate) fn move_out(engine: &Engine, table: &Table, row: &[u8]) -> Result<(Vec<u8>, Vec<LargeRef>)> {
    if row.len() <= ROW_INLINE {
        return Ok((row.to_vec(), Vec::new()));
    }
    engine.reclaim_large(table)?;
    let pool = &engine.pool;
    let layout = table.layout();
    let mut sizes: Vec<(usize, usize)> = Vec::new();
    for column in layout.variable_columns() {
        sizes.push((layout.variable(row, column)?.0.len(), column));
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let (mut len, mut out) = (row.len(), Vec::new());
    for (size, column) in sizes.into_iter().take(VALUES_OUT) {
        if len > ROW_INLINE && size > VALUE_INLINE {
            out.push(column);
            len -= size - LargeRef::SIZE;
        }
    }
    if len > ROW_MAX {
        let large = tree(table).put_large(pool, row)?;
        return Ok((handle_of_row(row, &large), vec![large]));
    }
    let mut refs = Vec::new();
    let moved = layout.rewrite_variables(row, |column, bytes, _, value| {
        if !out.contains(&column) {
            value.extend_from_slice(bytes);
            return Ok(false);
        }
        let large = tree(table).put_large(pool, bytes)?;
        value.extend_from_slice(&large.encode());
        refs.push(large);
        Ok(true)
    });
    match moved {
        Ok(row) => Ok((row, refs)),
        Err(error) => {
            free(pool, table, &refs)?;
            Err(error)
        }
    }
}

/// What is stored of a row that lies outside as a whole.
fn handle_of_row(row: &[u8], large: &LargeRef) -> Vec<u8> {
    let flags = row.first().copied().unwrap_or(0) | FLAG_EXTERNAL | FLAG_WHOLE;
    let mut stored = vec![flags];
    stored.extend_from_slice(&large.encode());
    stored
}

/// The chain of a row that lies outside as a whole.
fn whole_row(stored: &[u8]) -> Result<Option<LargeRef>> {
    match stored.split_first() {
        Some((flags, handle)) if flags & FLAG_WHOLE != 0 => LargeRef::decode(handle).map(Some).ok_or_else(not_a_handle),
        _ => Ok(None),
    }
}

fn not_a_handle() -> Error {
    Error::Corrupt("handle of a large value".into())
}

/// The whole row of a stored one.
pub(crate) fn bring_in(pool: &BufferPool, table: &Table, stored: &[u8]) -> Result<Vec<u8>> {
    if let Some(large) = whole_row(stored)? {
        let mut row = Vec::new();
        tree(table).get_large(pool, &large, &mut row)?;
        return Ok(row);
    }
    table.layout().rewrite_variables(stored, |_, bytes, external, value| {
        if external {
            let large = LargeRef::decode(bytes).ok_or_else(not_a_handle)?;
            tree(table).get_large(pool, &large, value)?;
        } else {
            value.extend_from_slice(bytes);
        }
        Ok(false)
    })
}

/// Chains that a stored row holds.
pub(crate) fn refs_of(table: &Table, stored: &[u8]) -> Result<Vec<LargeRef>> {
    if stored.first().is_none_or(|flags| flags & FLAG_EXTERNAL == 0) {
        return Ok(Vec::new());
    }
    if let Some(large) = whole_row(stored)? {
        return Ok(vec![large]);
    }
    let mut refs = Vec::new();
    for column in table.layout().variable_columns() {
        let (bytes, external) = table.layout().variable(stored, column)?;
        if external && !table.layout().is_null(stored, column)? {
            refs.push(LargeRef::decode(bytes).ok_or_else(not_a_handle)?);
        }
    }
    Ok(refs)
}

impl Engine {
    /// Before chains of the table's space are made pending for the first time in this run: frees what a crash left pending.
    /// Later that would free what others are about to adopt or free.
    pub(crate) fn reclaim_large(&self, table: &Table) -> Result<()> {
        let mut reclaimed = self.reclaimed.lock();
        if !reclaimed.contains(&table.space) {
            tree(table).reclaim_pending(&self.pool)?;
            reclaimed.insert(table.space);
        }
        Ok(())
    }

    /// `reclaim_large`, if there is anything to make pending.
    pub(crate) fn ready_for_large(&self, table: &Table, refs: &[LargeRef]) -> Result<()> {
        if refs.is_empty() {
            Ok(())
        } else {
            self.reclaim_large(table)
        }
    }
}

/// Looks up the chains that this mini-transaction will adopt, before its first change.
pub(crate) fn prepare_adoption(m: &mut Mtr<'_>, table: &Table, refs: &[LargeRef]) -> Result<Adoption> {
    tree(table).prepare_adoption(m, refs).map_err(Error::from)
}

/// Makes the chains part of the row that this mini-transaction writes.
pub(crate) fn adopt(m: &mut Mtr<'_>, table: &Table, refs: &[LargeRef]) -> Result<()> {
    tree(table).adopt_large(m, refs).map_err(Error::from)
}

/// Makes the chains pending, in the mini-transaction that removes the version that held them.
pub(crate) fn orphan(m: &mut Mtr<'_>, table: &Table, refs: &[LargeRef]) -> Result<()> {
    tree(table).orphan_large(m, refs).map_err(Error::from)
}

/// Frees pending chains.
pub(crate) fn free(pool: &BufferPool, table: &Table, refs: &[LargeRef]) -> Result<()> {
    refs.iter()
        .try_for_each(|large| tree(table).free_large(pool, large).map_err(Error::from))
}
