//! Taking changes back, by undo record.
//!
//! One step undoes one record in one mini-transaction: the row gets its former version (or goes), index entries that no
//! other version needs go, large values of the version become pending, the record is marked undone. A crash between
//! steps loses nothing and repeats nothing.
//!
//! The record of several inserts is taken back a row a step, and marked behind the last one. Rows that are gone by then
//! do not go again: what stands under their keys, if anything, names another record.
//!
//! A mini-transaction holds a bounded number of pages. So of more than [`ENTRIES_AT_ONCE`] entries, the first go in
//! mini-transactions before, each under the clustered leaf's latch. An entry is a hint: a crash between them leaves a
//! row without some entries of a version that no snapshot sees any more.
//!
//! Latch order: clustered leaf → index leaves → undo page → space header. All versions are compared under the clustered
//! leaf's latch: a writer that gives the row another key enters its index entry after it has held that latch, so an
//! entry that is removed here is not needed or is entered again.
//!
//! A memo of a row's versions (`needed`) holds: the newest version is the rollback's own, so no other transaction puts
//! one above it. (One that takes the row back on demand does that to all of the loser's versions of it, and holds the
//! row's stripe.) Purge might pass versions that the memo counts, with the entry left in place for the newest one's
//! sake: it would then never be removed. So rollback holds the oldest snapshot in use from its first memo on.

use super::needed::{Entries, Memos, Row, Version};
use super::slots::{Hold, Lease};
use crate::catalog::{Table, spaces};
use crate::engine::Engine;
use crate::error::Result;
use crate::large;
use crate::pool::{Mtr, Need, PageH};
use crate::system::CATALOG_SPACE;
use crate::tree::{BTree, LeafPos};
use crate::tx::{CancelFlag, Status};
use crate::undo::record::{Kind, TRAILER, Trailer, UndoRecord};
use crate::undo::{self, Ended, Segment, UndoPointer};
use cenote_base::rt;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, Lsn, TxId};
use std::sync::Arc;

/// Index entries that one mini-transaction removes: with row, undo page and space header within what it can latch.
pub(crate) const ENTRIES_AT_ONCE: usize = 56;
const _: () = assert!(ENTRIES_AT_ONCE + 4 <= cenote_buffer::PAGES_MAX);

/// Between two attempts at a row's stripe.
const STRIPE_POLL: rt::Nanos = rt::Nanos::from_micros(200);
/// Versions that a memo of a rollback counts at most.
const COUNTED_MAX: usize = 1 << 19;

/// A rollback in progress, and what it remembers of the rows that it takes back.
pub(crate) struct Rollback<'e> {
    engine: &'e Engine,
    lease: &'e Arc<Lease>,
    hold: Option<Hold>,
    memos: Memos,
}

impl<'e> Rollback<'e> {
    /// Of the transaction that has this slot.
    pub(crate) fn new(engine: &'e Engine, lease: &'e Arc<Lease>) -> Rollback<'e> {
        Rollback {
            engine,
            lease,
            hold: None,
            memos: Memos::new(engine.purge.horizon(), COUNTED_MAX),
        }
    }

    /// Takes back the change of one record, unless that is done; returns the transaction's previous record.
    pub(crate) fn take_back_one(&mut self, pointer: UndoPointer) -> Result<UndoPointer> {
        let record = undo::read(&self.engine.pool, pointer)?;
        self.take_back(pointer, &record)?;
        Ok(record.prev)
    }

    /// The same, of a loser: others may take rows of it back at the same time.
    pub(crate) fn take_back_beside_others(&mut self, pointer: UndoPointer) -> Result<UndoPointer> {
        let record = undo::read(&self.engine.pool, pointer)?;
        if record.kind == Kind::InsertMany {
            self.take_back_many(pointer, &record, true)?;
        } else {
            let _row = self.engine.losers.stripe(record.space, &record.key).lock();
            self.take_back(pointer, &record)?;
        }
        Ok(record.prev)
    }

    /// Takes back the change of one record in the row with this key, whose stripe is held.
    fn take_back_in_row(&mut self, pointer: UndoPointer, key: &[u8]) -> Result<()> {
        let record = undo::read(&self.engine.pool, pointer)?;
        let table = self.engine.catalog.table_of_space(record.space);
        match table.filter(|_| record.kind == Kind::InsertMany && !record.undone) {
            Some(table) => self.restore_all(&table, pointer, &record.of_row(key.to_vec())),
            None => self.take_back(pointer, &record),
        }
    }

    fn take_back(&mut self, pointer: UndoPointer, record: &UndoRecord) -> Result<()> {
        if record.undone {
            return Ok(());
        }
        match record.kind {
            Kind::InsertMany => return self.take_back_many(pointer, record, false),
            Kind::Left => return mark(self.engine, pointer).map(drop),
            Kind::Insert | Kind::Update | Kind::Delete => {}
        }
        match self.engine.catalog.table_of_space(record.space) {
            Some(table) => self.restore_all(&table, pointer, record),
            None => mark_only(self.engine, pointer, record),
        }
    }

    /// The record of several inserts; `beside_others`: of a loser, whose rows others may take back at the same time.
    fn take_back_many(&mut self, pointer: UndoPointer, record: &UndoRecord, beside_others: bool) -> Result<()> {
        let engine = self.engine;
        if record.undone {
            return Ok(());
        }
        let Some(table) = engine.catalog.table_of_space(record.space) else {
            return mark_only(engine, pointer, record);
        };
        for key in record.keys()? {
            let stripe = beside_others.then(|| engine.losers.stripe(record.space, &key));
            let _row = stripe.map(|stripe| stripe.lock());
            self.restore_all(&table, pointer, &record.of_row(key))?;
        }
        // Each row was settled when it went.
        mark(engine, pointer).map(drop)
    }

    fn restore_all(&mut self, table: &Table, pointer: UndoPointer, record: &UndoRecord) -> Result<()> {
        let mut removed = Vec::new();
        while !self.restore(table, pointer, record, &mut removed)? {}
        Ok(())
    }

    /// Leaves in `entries`, those of the row's newest version, the ones that no version from `below` on needs. False:
    /// that takes more steps than are made under a latch. The row's leaf is latched.
    fn keep_needed(
        &mut self,
        row: Row<'_>,
        newest: Trailer,
        below: Option<Version>,
        entries: &mut Entries,
    ) -> Result<bool> {
        if self.memos.keep_last(row, newest, entries) {
            return Ok(true);
        }
        self.memos.horizon = self.engine.purge.horizon();
        self.memos.keep_needed(row, below, UndoPointer::NONE, entries)
    }

    fn learn(&mut self, row: Row<'_>) -> Result<()> {
        if self.hold.is_none() {
            self.hold = Some(self.engine.hold_oldest(self.lease)?);
        }
        self.memos.horizon = self.hold.as_ref().map_or(self.memos.horizon, |hold| hold.snapshot());
        self.memos.learn(row)
    }

    /// False where only some index entries went, or the row's versions were walked: the step is to be called again, with
    /// the same `removed`.
    fn restore(
        &mut self,
        table: &Table,
        pointer: UndoPointer,
        record: &UndoRecord,
        removed: &mut Entries,
    ) -> Result<bool> {
        let (engine, tree) = (self.engine, BTree { space: table.space });
        let version_of = Row::new(engine, table, &record.key);
        let mut value = record.row.clone();
        value.extend_from_slice(&record.before.encode());
        let room = match record.kind {
            Kind::Insert | Kind::InsertMany | Kind::Left => 0,
            Kind::Update | Kind::Delete => record.key.len() + value.len(),
        };
        engine.reclaim_large(table)?;
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, &record.key, room)?;
        let mut current = Vec::new();
        if pos.found {
            tree.value(&m, &pos, &mut current);
        }
        if !pos.found || Trailer::of(&current)?.undo != pointer {
            drop(m);
            return mark_one(engine, pointer, record).map(|()| true);
        }
        let trailer = Trailer::of(&current)?;
        let row = &current[..current.len() - TRAILER];
        // Read before large values go: a long definition lies on overflow pages itself.
        let definitions = if table.space == CATALOG_SPACE {
            Some(definitions(engine, (trailer, row), record)?)
        } else {
            None
        };
        let mut entries = version_of.entries(trailer, row)?;
        let fingerprints = self.memos.fingerprints(&entries);
        let below = (!record.kind.is_insert() && !entries.is_empty()).then(|| (record.before, record.row.clone()));
        if !self.keep_needed(version_of, trailer, below, &mut entries)? {
            drop(m);
            return self.learn(version_of).map(|()| false);
        }
        if let Some(some) = too_many(&mut entries, removed) {
            return remove_ahead(engine, m, some).map(|()| false);
        }
        let is_dead = record.before.deleted() && is_past(engine, record.before)?;
        let doomed = latch_entries(&mut m, entries)?;
        let undo_page = latch_to_mark(&mut m, pointer, record)?;
        let refs = if trailer.deleted() {
            Vec::new()
        } else {
            large::refs_begun(&engine.pool, table, row, (&record.row, record.shared))?
        };
        large::orphan(&mut m, table, &refs)?;
        let emptied = if record.kind.is_insert() || is_dead {
            tree.remove_at(&mut m, &pos)
        } else {
            tree.replace_at(&mut m, &pos, &value)?;
            false
        };
        let thin = remove_entries(&mut m, doomed);
        if let Some(page) = undo_page {
            undo::mark_undone(&mut m, page, pointer);
        }
        m.commit();
        engine.unsettled.settle(record);
        self.memos.took_back(version_of, &fingerprints, record.before);
        large::free(&engine.pool, table, &refs)?;
        compact_entries(engine, &thin)?;
        if emptied {
            tree.compact(&engine.pool, &record.key)?;
        }
        if emptied || !refs.is_empty() {
            engine.note_freed(table.space);
        }
        if let Some((gone, before)) = definitions {
            spaces::drop_spaces(engine, gone, before)?;
        }
        Ok(true)
    }
}

/// Takes back, on demand, what loser `of` made of a row: all of its versions, so that another transaction may put its
/// own on top of what was before. False: a step has left the row as it was, so the loser is to be waited for.
///
/// # Errors
/// Those of reading and writing pages; 57014.
pub(crate) fn take_back_row(
    engine: &Engine,
    lease: &Arc<Lease>,
    (table, key): (&Table, &[u8]),
    of: TxId,
    cancel: &CancelFlag,
) -> Result<bool> {
    let _need = engine.pool.begin_need(Need::Cleanup);
    let _row = hold_row(engine.losers.stripe(table.space, key), cancel)?;
    let mut rollback = Rollback::new(engine, lease);
    let (tree, mut value, mut before) = (BTree { space: table.space }, Vec::new(), None);
    while tree.get(&engine.pool, key, &mut value)? {
        let newest = Trailer::of(&value)?;
        if newest.tx != of {
            break;
        }
        if before.replace(newest) == Some(newest) {
            return Ok(false);
        }
        cancel.check()?;
        mark::pass(Mark::LoserRow);
        rollback.take_back_in_row(newest.undo, key)?;
    }
    Ok(true)
}

/// Holds a row's stripe: another thread may be at a row with many versions.
fn hold_row<'a>(stripe: &'a rt::Mutex<()>, cancel: &CancelFlag) -> Result<rt::MutexGuard<'a, ()>> {
    loop {
        if let Some(held) = stripe.try_lock() {
            return Ok(held);
        }
        cancel.check()?;
        rt::sleep(STRIPE_POLL);
    }
}

/// Whether the row of a loser's record has a newer version of another one in progress. A commit is visible to
/// transactions that want the row from the moment when it has its place in the log; one whose process dies before its
/// redo is complete is void, and both are losers: the version on top goes first, or the lower one would come back with
/// it.
pub(crate) fn is_covered(engine: &Engine, own: TxId, pointer: UndoPointer) -> Result<bool> {
    let record = undo::read(&engine.pool, pointer)?;
    let (Some(table), false) = (engine.catalog.table_of_space(record.space), record.undone) else {
        return Ok(false);
    };
    for key in record.keys()? {
        let mut value = Vec::new();
        if !(BTree { space: table.space }).get(&engine.pool, &key, &mut value)? {
            continue;
        }
        let newest = Trailer::of(&value)?;
        let is_of_another = newest.tx != own && matches!(engine.status(newest.tx)?, Status::Active(_));
        if is_of_another && (record.kind != Kind::InsertMany || lies_above(engine, newest, pointer)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the version is one of the row that this record's change made. A row of several that were inserted together
/// has no mark when it is taken back, and another may stand under its key then.
fn lies_above(engine: &Engine, mut version: Trailer, pointer: UndoPointer) -> Result<bool> {
    while let Some((before, _)) = engine.version_before(version)? {
        if before.undo == pointer {
            return Ok(true);
        }
        version = before;
    }
    Ok(false)
}

/// Marks the record undone, unless it is of several rows: one of them has been taken back.
fn mark_one(engine: &Engine, pointer: UndoPointer, record: &UndoRecord) -> Result<()> {
    match record.kind {
        Kind::InsertMany | Kind::Left => Ok(()),
        Kind::Insert | Kind::Update | Kind::Delete => mark_only(engine, pointer, record),
    }
}

/// Latches the record's page, where it is to be marked with the row.
fn latch_to_mark(m: &mut Mtr<'_>, pointer: UndoPointer, record: &UndoRecord) -> Result<Option<PageH>> {
    match record.kind {
        Kind::InsertMany | Kind::Left => Ok(None),
        Kind::Insert | Kind::Update | Kind::Delete => undo::latch_record(m, pointer).map(Some),
    }
}

/// There is nothing to restore: the table is gone, or another thread has taken the change back since the record was read.
fn mark_only(engine: &Engine, pointer: UndoPointer, record: &UndoRecord) -> Result<()> {
    if mark(engine, pointer)? {
        engine.unsettled.settle_all(record)?;
    }
    Ok(())
}

/// Marks the record undone; whether it was not.
pub(crate) fn mark(engine: &Engine, pointer: UndoPointer) -> Result<bool> {
    let mut m = engine.pool.mtr();
    let h = undo::latch_record(&mut m, pointer)?;
    let was_undone = undo::is_undone(&m, h, pointer);
    undo::mark_undone(&mut m, h, pointer);
    m.commit();
    Ok(!was_undone)
}

/// Whether purge has passed the deletion that this version is, or may be about to; the row's leaf is latched. Purge
/// leaves a deleted row that was inserted again to the rollback of that insert, and the segment's tail passes the
/// record some time later. What decides is the horizon, which purge announces before it latches its first row: if purge
/// had this row before, rollback knows, and removes it.
fn is_past(engine: &Engine, deletion: Trailer) -> Result<bool> {
    let horizon = engine.purge.horizon();
    Ok(engine.segments.is_purged(deletion.undo) || engine.is_seen_by_all(deletion.tx, horizon)?)
}

/// Leaves in `entries` those that have not been removed; where they are too many for one mini-transaction, takes out as
/// many as one can remove, and notes them.
pub(crate) fn too_many(entries: &mut Entries, removed: &mut Entries) -> Option<Entries> {
    entries.retain(|entry| !removed.contains(entry));
    if entries.len() <= ENTRIES_AT_ONCE {
        return None;
    }
    let some: Vec<_> = entries.drain(..ENTRIES_AT_ONCE).collect();
    removed.extend_from_slice(&some);
    Some(some)
}

/// Removes entries in this mini-transaction, which holds the latch of their row's leaf.
pub(crate) fn remove_ahead(engine: &Engine, mut m: Mtr<'_>, entries: Entries) -> Result<()> {
    let doomed = latch_entries(&mut m, entries)?;
    let thin = remove_entries(&mut m, doomed);
    m.commit();
    compact_entries(engine, &thin)
}

type Definition = Option<Arc<Table>>;

/// Of a change to the catalog that is to be taken back: the table that it defined, and the one before.
fn definitions(
    engine: &Engine,
    (trailer, row): (Trailer, &[u8]),
    record: &UndoRecord,
) -> Result<(Definition, Definition)> {
    let before = (!record.kind.is_insert() && !record.before.deleted()).then_some(record.row.as_slice());
    Ok((
        spaces::table_of_stored(engine, (!trailer.deleted()).then_some(row))?,
        spaces::table_of_stored(engine, before)?,
    ))
}

/// An index entry whose leaf is latched.
pub(crate) struct Doomed {
    tree: BTree,
    pos: LeafPos,
    entry: Vec<u8>,
}

/// Latches the leaves of those entries that exist.
pub(crate) fn latch_entries(m: &mut Mtr<'_>, entries: Entries) -> Result<Vec<Doomed>> {
    let mut found = Vec::new();
    let entries = if planted(Fault::EntryLeft) { Vec::new() } else { entries };
    for (space, entry) in entries {
        let tree = BTree { space };
        let pos = tree.seek_write(m, &entry, 0)?;
        if pos.found {
            found.push(Doomed { tree, pos, entry });
        } else {
            m.release(pos.h);
        }
    }
    Ok(found)
}

/// Removes entries that `latch_entries` found; returns those that leave their leaf thin.
pub(crate) fn remove_entries(m: &mut Mtr<'_>, mut entries: Vec<Doomed>) -> Vec<Doomed> {
    entries.retain(|doomed| doomed.tree.remove_at(m, &doomed.pos));
    entries
}

/// Merges leaves that became thin, after the mini-transaction.
pub(crate) fn compact_entries(engine: &Engine, thin: &[Doomed]) -> Result<()> {
    for doomed in thin {
        doomed.tree.compact(&engine.pool, &doomed.entry)?;
        engine.note_freed(doomed.tree.space);
    }
    Ok(())
}

/// Says in the log that transaction `seq`, whose records end at `end`, has been rolled back (or has published what it
/// defined), and to purge that it ended there. Returns that position.
pub(crate) fn log_end(engine: &Engine, segment: &Segment, end: u64, seq: TxId) -> Result<Lsn> {
    let mut m = engine.pool.mtr();
    let header = undo::latch_header(&mut m, segment.number)?;
    undo::set_end(&mut m, header, end, seq);
    let at = m.commit();
    // Behind every snapshot that may still walk the versions that were taken back: those were taken before this
    // position.
    segment.note_end(Ended {
        end,
        at: Cts::at(at),
        tx: seq,
    });
    Ok(at)
}

#[cfg(test)]
mod tests;
