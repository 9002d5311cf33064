//! Large values: columns that leave the row for overflow pages of the table's space.
//!
//! The longest values leave first, one by one, each with a chain of its own, until the rest is short. What is too long
//! even so (many columns) leaves as a whole, in one chain; values that fill half a page keep chains of their own then,
//! too. (A chain takes a page at least, so a page for each short value would cost more.)
//!
//! 1. `move_out` writes the values that make a row too long as chains that are *pending* (reclaimed after a crash).
//! 2. The mini-transaction that writes the row adopts them (`adopt`).
//! 3. A new version of the row shares with the one before it the chains of long values that it does not change. The
//!    undo record says which ([`Shared`]).
//! 4. A version's chains are freed when no snapshot can see the version any more: by purge when its undo record is
//!    purged, but for those that the next version shares; by rollback when the version is taken back, but for those
//!    that it shares with the version that comes back (`orphan` in that mini-transaction, then `free`).
//!
//! What a crash leaves pending is freed before the first value of that space is made pending again (`reclaim_large`).
//!
//! Invariants:
//! - A chain belongs to one version, or to versions of one row that followed each other; the last of them frees it. A
//!   row that gets another primary key gets chains of its own.
//! - Transactions are purged in any order, so a version that waits for purge may name a chain that its successors have
//!   freed. Purge reads columns of indexes, so a value that may lie in an index is never shared (`may_be_shared`), nor
//!   is one of the catalog.

use crate::api::Columns;
use crate::catalog::{IndexDef, Table};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key::MAX_KEY_BYTES;
use crate::pool::{BufferPool, Mtr};
use crate::row::{self, FLAG_EXTERNAL, FLAG_WHOLE, MAX_ROW_BYTES};
use crate::system::CATALOG_SPACE;
use crate::tree::{Adoption, BTree, LargeRef};
use crate::types::ColumnType;
use crate::undo::shared::Shared;
use cenote_base::rt::fault::{Fault, planted};
use std::borrow::Cow;

/// Rows up to this many bytes stay whole.
const ROW_INLINE: usize = 2048;
/// Values up to this many bytes never leave the row.
const VALUE_INLINE: usize = 128;
/// Values that leave a row one by one, at most.
const VALUES_OUT: usize = 16;
/// A row that is longer without them leaves as a whole.
const ROW_MAX: usize = 3900;
/// Of a row that leaves as a whole, values above this size have chains of their own.
const VALUE_ALONE: usize = 8 << 10;
const _: () = assert!(VALUES_OUT < Shared::MAX);
const _: () = assert!(
    VALUE_INLINE < ROW_INLINE && ROW_INLINE <= ROW_MAX,
    "a row that stays has values that stay"
);

/// A row as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub row: Vec<u8>,
    /// Chains that were begun for it; they are pending.
    pub refs: Vec<LargeRef>,
    /// Chains that it has from the version that it replaces.
    pub shared: Shared,
    /// It has all chains of that version.
    pub shares_all: bool,
}

/// A version that is replaced.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    /// What `open` made of it.
    pub opened: &'a [u8],
    /// Whether it lay outside as a whole.
    pub was_whole: bool,
    /// The row as the statement saw it, with some or all values brought in.
    pub seen: &'a [u8],
}

/// Whether a new row of so many bytes is stored as it is.
pub(crate) fn stays_whole(len: usize) -> bool {
    len <= ROW_INLINE
}

fn tree(table: &Table) -> BTree {
    BTree { space: table.space }
}

pub(crate) fn is_external(row: &[u8]) -> bool {
    row.first().is_some_and(|flags| flags & FLAG_EXTERNAL != 0)
}

/// Whether versions may share a value of this length: no index can have it.
fn may_be_shared(table: &Table, column: usize, len: u64) -> bool {
    // A numeric's key may be shorter than the value, a char(n)'s lacks trailing blanks.
    let is_as_long_as_its_key = !matches!(
        table.layout().column_type(column),
        ColumnType::Numeric(_) | ColumnType::Char(_)
    );
    len > MAX_KEY_BYTES as u64 && is_as_long_as_its_key && table.space != CATALOG_SPACE
}

/// The row as it is stored; values that have left it are pending, but for those that it shares with the version
/// `before` it.
/// Values of `row` that were not brought in are that version's.
pub(crate) fn move_out(engine: &Engine, table: &Table, row: &[u8], before: Option<Before<'_>>) -> Result<Stored> {
    let kept = Kept::of(table, row, before)?;
    if row.len() <= ROW_INLINE && kept.columns.is_empty() {
        return Ok(kept.stored(row.to_vec(), Vec::new()));
    }
    let (mut len, sizes) = kept.sizes(table, row)?;
    let mut out = Vec::new();
    for (size, column) in sizes.into_iter().take(kept.vacant()) {
        if len > ROW_INLINE && size > VALUE_INLINE {
            out.push((size, column));
            len -= size - LargeRef::SIZE;
        }
    }
    let whole = len > ROW_MAX;
    out.retain(|(size, _)| !whole || *size > VALUE_ALONE);
    if whole || !out.is_empty() {
        engine.reclaim_large(table)?;
    }
    let mut refs = Vec::new();
    let moved = kept
        .replace_values(engine, table, row, &out, &mut refs)
        .and_then(|row| match whole {
            true => put_whole(engine, table, &row, &mut refs),
            false => Ok(row),
        });
    match moved {
        Ok(row) => Ok(kept.stored(row, refs)),
        Err(error) => {
            free(&engine.pool, table, &refs)?;
            Err(error)
        }
    }
}

/// What a new version keeps of the one before it.
struct Kept {
    /// Columns and their chains.
    columns: Vec<(usize, LargeRef)>,
    shared: Shared,
    shares_all: bool,
}

impl Kept {
    fn of(table: &Table, row: &[u8], before: Option<Before<'_>>) -> Result<Kept> {
        let mut kept = Kept {
            columns: Vec::new(),
            shared: Shared::default(),
            shares_all: true,
        };
        let has_chains = before.is_some_and(|before| before.was_whole || is_external(before.opened));
        if let Some(before) = before.filter(|_| has_chains) {
            kept.look(table, row, before)?;
        }
        let mut handles = Vec::new();
        if is_external(row) {
            handles = external_columns(table, row)?;
        }
        let forged = |handle: &(usize, LargeRef)| !kept.columns.contains(handle);
        match handles.iter().any(forged) {
            true => Err(Error::Internal("a row with a large value of another version".into())),
            false => Ok(kept),
        }
    }

    fn look(&mut self, table: &Table, row: &[u8], before: Before<'_>) -> Result<()> {
        let first = usize::from(before.was_whole);
        self.shares_all = first == 0;
        for (position, (column, large)) in (first..).zip(external_columns(table, before.opened)?) {
            let can = position < Shared::MAX && may_be_shared(table, column, large.len);
            if can && is_unchanged(table, row, &before, (column, &large))? {
                self.columns.push((column, large));
                self.shared.add(position);
            } else {
                self.shares_all = false;
            }
        }
        Ok(())
    }

    fn chain_of(&self, column: usize) -> Option<&LargeRef> {
        let found = self.columns.iter().find(|(kept, _)| *kept == column);
        found.map(|(_, large)| large)
    }

    /// The row's length without what it keeps, and the sizes of its other values, longest first. Errors: with what it
    /// keeps it is too large; a statement that does not read long values has not counted them.
    fn sizes(&self, table: &Table, row: &[u8]) -> Result<(usize, Vec<(usize, usize)>)> {
        let (layout, mut len, mut sizes) = (table.layout(), row.len(), Vec::new());
        let mut whole = 0_u64;
        for column in layout.variable_columns() {
            let size = layout.variable(row, column)?.0.len();
            match self.chain_of(column) {
                Some(large) => {
                    len = len - size + LargeRef::SIZE;
                    whole = whole.saturating_add(large.len);
                }
                None => {
                    whole = whole.saturating_add(size as u64);
                    sizes.push((size, column));
                }
            }
        }
        if whole > MAX_ROW_BYTES as u64 {
            return Err(row::too_big());
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        Ok((len, sizes))
    }

    /// Values that may leave the row beside those that are kept; one position is the row's as a whole.
    fn vacant(&self) -> usize {
        VALUES_OUT.min((Shared::MAX - 1).saturating_sub(self.columns.len()))
    }

    /// The row with handles in place of what is kept, and of the values of `out`, whose chains are added to `refs`.
    fn replace_values(
        &self,
        engine: &Engine,
        table: &Table,
        row: &[u8],
        out: &[(usize, usize)],
        refs: &mut Vec<LargeRef>,
    ) -> Result<Vec<u8>> {
        table.layout().rewrite_variables(row, |column, bytes, _, value| {
            let large = match self.chain_of(column) {
                Some(large) => *large,
                None if out.iter().any(|(_, out)| *out == column) => {
                    let large = tree(table).put_large(&engine.pool, bytes)?;
                    refs.push(large);
                    large
                }
                None => {
                    value.extend_from_slice(bytes);
                    return Ok(false);
                }
            };
            value.extend_from_slice(&large.encode());
            Ok(true)
        })
    }

    fn stored(self, row: Vec<u8>, refs: Vec<LargeRef>) -> Stored {
        Stored {
            row,
            refs,
            shared: self.shared,
            shares_all: self.shares_all,
        }
    }
}

/// Whether `row` has the value that `before` has in a chain.
fn is_unchanged(table: &Table, row: &[u8], before: &Before<'_>, (column, large): (usize, &LargeRef)) -> Result<bool> {
    let layout = table.layout();
    if layout.is_null(row, column)? {
        return Ok(false);
    }
    let (bytes, external) = layout.variable(row, column)?;
    match external {
        true => Ok(LargeRef::decode(bytes) == Some(*large)),
        false => Ok(layout.variable(before.seen, column)? == (bytes, false)),
    }
}

/// Puts a row outside, as a whole; gives what is stored of it.
fn put_whole(engine: &Engine, table: &Table, row: &[u8], refs: &mut Vec<LargeRef>) -> Result<Vec<u8>> {
    let large = tree(table).put_large(&engine.pool, row)?;
    refs.push(large);
    let flags = row.first().copied().unwrap_or(0) | FLAG_EXTERNAL | FLAG_WHOLE;
    let mut stored = vec![flags];
    stored.extend_from_slice(&large.encode());
    Ok(stored)
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

/// The row of a stored one; its values may lie outside still.
pub(crate) fn open<'a>(pool: &BufferPool, table: &Table, stored: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    if !is_external(stored) {
        return Ok(stored.into());
    }
    let Some(large) = whole_row(stored)? else {
        return Ok(stored.into());
    };
    let mut row = Vec::new();
    tree(table).get_large(pool, &large, &mut row)?;
    Ok(row.into())
}

/// Columns of an opened row whose values lie outside, with their chains.
fn external_columns(table: &Table, opened: &[u8]) -> Result<Vec<(usize, LargeRef)>> {
    let (layout, mut found) = (table.layout(), Vec::new());
    if !is_external(opened) {
        return Ok(found);
    }
    for column in layout.variable_columns() {
        let (bytes, external) = layout.variable(opened, column)?;
        if external && !layout.is_null(opened, column)? {
            found.push((column, LargeRef::decode(bytes).ok_or_else(not_a_handle)?));
        }
    }
    Ok(found)
}

/// Bytes of an opened row's value that lies outside; None: it lies in the row.
pub(crate) fn len_outside(table: &Table, opened: &[u8], column: usize) -> Result<Option<u64>> {
    if !is_external(opened) || !table.layout().is_external(opened, column)? {
        return Ok(None);
    }
    let (bytes, _) = table.layout().variable(opened, column)?;
    LargeRef::decode(bytes)
        .map(|large| Some(large.len))
        .ok_or_else(not_a_handle)
}

/// Brings in those values of an opened row that are wanted.
fn load<'a>(
    pool: &BufferPool,
    table: &Table,
    opened: Cow<'a, [u8]>,
    mut wanted: impl FnMut(usize, &LargeRef) -> bool,
) -> Result<Cow<'a, [u8]>> {
    if !is_external(&opened) {
        return Ok(opened);
    }
    let row = table
        .layout()
        .rewrite_variables(&opened, |column, bytes, external, value| {
            if external {
                let large = LargeRef::decode(bytes).ok_or_else(not_a_handle)?;
                if wanted(column, &large) {
                    tree(table).get_large(pool, &large, value)?;
                    return Ok(false);
                }
            }
            value.extend_from_slice(bytes);
            Ok(external)
        })?;
    Ok(row.into())
}

/// The row of an opened one for a reader of these columns: what else is long enough to be shared stays where it is.
pub(crate) fn bring_in_some<'a>(
    pool: &BufferPool,
    table: &Table,
    opened: Cow<'a, [u8]>,
    columns: &Columns,
) -> Result<Cow<'a, [u8]>> {
    let in_a_key = |column: usize| {
        let primary = table.primary_key.iter().flat_map(|key| &key.columns);
        primary
            .chain(table.indexes.iter().flat_map(|index| &index.columns))
            .any(|key| *key == column)
    };
    let mut seen = 0;
    load(pool, table, opened, |column, large| {
        seen += 1;
        let can_stay = seen < Shared::MAX && may_be_shared(table, column, large.len) && !in_a_key(column);
        columns.contains(column) || !can_stay
    })
}

/// The whole row of a stored one.
pub(crate) fn bring_in(pool: &BufferPool, table: &Table, stored: &[u8]) -> Result<Vec<u8>> {
    let opened = open(pool, table, stored)?;
    Ok(load(pool, table, opened, |_, _| true)?.into_owned())
}

/// The row of a stored one for the writer of its index entries: what is outside still is in no index. Reads no chain
/// that is shared.
pub(crate) fn bring_in_keys<'a>(pool: &BufferPool, table: &Table, stored: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    let opened = open(pool, table, stored)?;
    load(pool, table, opened, |column, large| {
        !may_be_shared(table, column, large.len)
    })
}

/// The length of a value of the index that `bring_in_keys` has left outside: no key is that long.
pub(crate) fn too_long_for(table: &Table, index: &IndexDef, row: &[u8]) -> Result<Option<usize>> {
    let outside = external_columns(table, row)?;
    let found = outside.into_iter().find(|(column, _)| index.columns.contains(column));
    Ok(found.map(|(_, large)| large.len as usize))
}

/// Chains that a stored row holds: its own as a whole first, then those of its columns.
pub(crate) fn refs_of(pool: &BufferPool, table: &Table, stored: &[u8]) -> Result<Vec<LargeRef>> {
    if !is_external(stored) {
        return Ok(Vec::new());
    }
    let opened = open(pool, table, stored)?;
    let columns = external_columns(table, &opened)?.into_iter().map(|(_, large)| large);
    Ok(whole_row(stored)?.into_iter().chain(columns).collect())
}

/// Chains that end with a version that its successor has replaced.
pub(crate) fn refs_ending(pool: &BufferPool, table: &Table, stored: &[u8], shared: Shared) -> Result<Vec<LargeRef>> {
    let shared = match shared {
        Shared(1..) if planted(Fault::SharedChain) => Shared::default(),
        shared => shared,
    };
    Ok(shared.select(refs_of(pool, table, stored)?, false))
}

/// Chains that end with a version that is taken back; `before` is what it had replaced, `shared` what it has of that.
pub(crate) fn refs_begun(
    pool: &BufferPool,
    table: &Table,
    stored: &[u8],
    (before, shared): (&[u8], Shared),
) -> Result<Vec<LargeRef>> {
    let mut refs = refs_of(pool, table, stored)?;
    if shared != Shared::default() && !planted(Fault::SharedRollback) {
        let kept = shared.select(refs_of(pool, table, before)?, true);
        refs.retain(|large| !kept.contains(large));
    }
    Ok(refs)
}

impl Engine {
    /// Before chains of the table's space are made pending for the first time in this run: frees what a crash left
    /// pending. Later that would free what others are about to adopt or free.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{ColumnDef, TableDef};
    use crate::types::Datum;

    /// Of a row whose long values a statement had not read, only their handles were counted: each column could be given
    /// a gigabyte in an update of its own, and beyond two of them no statement could read the row any more, since the
    /// end of a value has 31 bits.
    #[test]
    fn what_a_row_keeps_counts_for_its_length() {
        let column = |name: &str| ColumnDef {
            name: name.into(),
            ty: ColumnType::Text,
            not_null: false,
            default: None,
        };
        let table = Table::new(TableDef {
            id: 1,
            name: "t".into(),
            space: 1000,
            columns: vec![column("a"), column("b")],
            primary_key: None,
            indexes: Vec::new(),
            version: 1,
        });
        let mut row = Vec::new();
        let short = 1000;
        let values = [Datum::Text("a".into()), Datum::Text("b".repeat(short))];
        table.layout().encode(&values, &mut row).expect("a row");
        let keeping = |len: u64| Kept {
            columns: vec![(0, LargeRef { first: 7, len })],
            shared: Shared::default(),
            shares_all: true,
        };
        let most = (MAX_ROW_BYTES - short) as u64;
        assert!(keeping(most).sizes(&table, &row).is_ok());
        for len in [most + 1, u64::MAX] {
            let refused = keeping(len).sizes(&table, &row);
            assert!(matches!(refused, Err(Error::TooLarge(_))), "{len} bytes");
        }
    }
}
