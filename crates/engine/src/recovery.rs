//! Recovery of transactions, after pages are whole.
//!
//! What lies behind a segment's `end` belongs to the transaction that had not ended: one loser a segment at most. It
//! gets a slot and stays *active*: its rows are locked by its number, no snapshot sees them. A thread rolls losers back
//! after `ready`, through the same steps as a rollback in life; a crash in between goes on where it stopped. All other
//! numbers of former runs are visible to everyone: the low-water mark starts at the least loser, or, where the database
//! has readers on other hosts, whose snapshots may be older than this start, where the former server had it.
//!
//! A large rollback in life is left to the same thread: its transaction becomes a loser, and the session goes on. So
//! does one that fails (a full disk, a page that cannot be read): the thread tries again until it succeeds, and until
//! then no transaction waits for it: it is told why. A row of any other loser is taken back by the transaction that
//! wants it.
//!
//! So the time until ready depends on the number of segments, tables and losers' records, not on the length of the log.

use crate::api::Direction;
use crate::catalog::Table;
use crate::catalog::state::{self, Definition};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::large;
use crate::left::state::{self as left_state, Left};
use crate::losers::{Locks, Loser, Origin};
use crate::pool::{BufferPool, Need};
use crate::system::FIRST_SPACE;
use crate::tree::{BTree, LeafBatch};
use crate::tx::Status;
use crate::tx::locks::{Waits, table_lock};
use crate::tx::read::Reader;
use crate::tx::rollback::{self, Rollback};
use crate::undo::record::{TRAILER, Trailer};
use crate::undo::{self, Ended, Segment, SegmentHeader, UndoPointer, Writer};
use cenote_base::rt;
use cenote_base::rt::HashSet;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, TxId};
use std::borrow::Cow;
use std::sync::{Arc, Weak};

/// Between two attempts at what could not be rolled back.
const RETRY: rt::Nanos = rt::Nanos::from_millis(200);

/// Reads the segments: the losers, and the least number never given.
pub(crate) fn find_losers(pool: &BufferPool, segments: &[Arc<Segment>], ceiling: TxId) -> Result<(Vec<Loser>, TxId)> {
    let (mut losers, mut ends) = (Vec::new(), Vec::new());
    for segment in segments {
        let header = undo::header(pool, segment.number)?;
        ends.push((segment, header));
        if let Some((position, end, record)) = undo::read_last(pool, segment, header.end)? {
            let last = UndoPointer::new(segment.number, position);
            losers.push(Loser {
                seq: record.tx,
                segment: segment.clone(),
                last,
                end,
                locks: Locks::default(),
                lease: None,
                origin: Origin::LastRun,
                left: left_state::read_state(pool, last)?.map(|state| Box::new(Left { state, hold: None })),
            });
        }
    }
    note_ends(pool, &ends, &losers);
    Ok((losers, ceiling.max(TxId::FIRST)))
}

/// What has ended is past for all, unless a transaction that was left reads by a snapshot of the last run: then it is
/// as if it ended now.
fn note_ends(pool: &BufferPool, ends: &[(&Arc<Segment>, SegmentHeader)], losers: &[Loser]) {
    let has_snapshot = |loser: &Loser| loser.left.as_ref().is_some_and(|left| left.state.snapshot.is_some());
    let at = match losers.iter().any(has_snapshot) {
        true => Cts::at(pool.storage().log().tail()),
        false => Cts::ZERO,
    };
    for (segment, header) in ends.iter().filter(|(_, header)| header.tail < header.end) {
        segment.note_end(Ended {
            end: header.end,
            at,
            tx: TxId::NONE,
        });
    }
}

/// Registers the losers as running and everything else as past; puts the segments that have none up for use.
pub(crate) fn adopt(engine: &Engine, losers: &mut [Loser], first: TxId) -> Result<()> {
    let mut low = engine.all_past_below(first);
    for loser in &mut *losers {
        let lease = engine.slots.lease_always();
        if planted(Fault::LoserAdopted) {
            loser.lease = Some(lease);
            continue;
        }
        engine.txs.adopt(&engine.slots, lease.slot, loser.seq);
        loser.lease = Some(lease);
        low = low.min(loser.seq);
        low = low.min(hold_if_left(engine, loser, low)?);
    }
    engine.txs.raise_low_water(low);
    engine.note_start(low)?;
    for segment in engine.segments.all() {
        if !losers.iter().any(|loser| loser.segment.number == segment.number) {
            let position = undo::header(&engine.pool, segment.number)?.end;
            engine.segments.give_back(Writer {
                segment: segment.clone(),
                position,
            });
        }
    }
    Ok(())
}

/// Holds locks and snapshot of a transaction that was left; the low-water mark that this needs, at most `low`.
fn hold_if_left(engine: &Engine, loser: &mut Loser, low: TxId) -> Result<TxId> {
    if loser.left.is_none() {
        return Ok(low);
    }
    if !engine.hold_left(loser) {
        engine.mark_taken(loser)?;
        loser.left = None;
        return Ok(low);
    }
    let (Some(left), Some(lease)) = (&mut loser.left, &loser.lease) else {
        return Ok(low);
    };
    let Some(snapshot) = left.state.snapshot.filter(|_| !planted(Fault::LeftSnapshot)) else {
        return Ok(low);
    };
    left.hold = Some(lease.hold(snapshot.at));
    // Statuses of numbers below are not to be had any more: all of them are past for the snapshot, too.
    Ok(low.min(snapshot.low_water.max(engine.cts.first_kept())))
}

/// Fills the cache of the catalog; knows every table that undo may lead to. Losers get the locks of the tables that
/// they were defining. Returns the spaces that any version of any definition names. Each version is decoded once.
pub(crate) fn read_catalog(engine: &Arc<Engine>, losers: &mut [Loser]) -> Result<HashSet<u32>> {
    let mut reader = Reader::new(engine);
    reader.refresh();
    let own = &engine.catalog.own;
    let mut scan = BTree { space: own.space }.scan(state::definition_keys(own), Direction::Forward);
    let (mut batch, mut changes, mut named) = (LeafBatch::new(), Vec::new(), HashSet::default());
    while scan.next_batch(&engine.pool, &mut batch)? {
        for (_, value) in batch.iter() {
            let versions = versions(engine, value)?;
            lock_defined(engine, losers, Trailer::of(value)?.tx, table_id(&versions));
            register_versions(engine, &versions, &mut named)?;
            changes.extend(visible(&reader, versions)?);
        }
    }
    engine.catalog.change(&changes);
    Ok(named)
}

/// A version of a definition.
type Version = (Trailer, Definition);

/// All versions of a definition, the newest first.
fn versions(engine: &Engine, value: &[u8]) -> Result<Vec<Version>> {
    let own = &engine.catalog.own;
    let mut versions = Vec::with_capacity(1);
    let mut version = Some((Trailer::of(value)?, Cow::Borrowed(&value[..value.len() - TRAILER])));
    while let Some((trailer, row)) = version {
        let row = match large::is_external(&row) {
            true => large::bring_in(&engine.pool, own, &row)?.into(),
            false => row,
        };
        versions.push((trailer, state::definition_of(own, &row)?));
        version = engine
            .version_before(trailer)?
            .map(|(trailer, row)| (trailer, row.into()));
    }
    Ok(versions)
}

/// The one that the reader sees, if there is one.
fn visible(reader: &Reader, versions: Vec<Version>) -> Result<Option<Definition>> {
    for (trailer, definition) in versions {
        if reader.sees(trailer)? {
            return Ok((!trailer.deleted()).then_some(definition));
        }
    }
    Ok(None)
}

fn table_id(versions: &[Version]) -> Option<u32> {
    versions.iter().find_map(|(_, definition)| match definition {
        Definition::Table(table) => Some(table.id),
        _ => None,
    })
}

/// A loser that was defining a table holds it alone again until it is taken back, as it did in life. Its definition is
/// the last of that table, which rollbacks and purge go by, while all others write by the one before: spaces of the one
/// go in the middle of another's rollback, and entries that were made by the other are not found again.
fn lock_defined(engine: &Engine, losers: &mut [Loser], by: TxId, table: Option<u32>) {
    let Some(table) = table.map(table_lock).filter(|_| !planted(Fault::LoserTables)) else {
        return;
    };
    if let Some(loser) = losers.iter_mut().find(|loser| loser.seq == by)
        && engine.table_locks.try_exclusive(table, by).is_ok()
    {
        loser.locks.tables.push(table);
    }
}

/// Registers each version of a table by its space, the newest last where they share one.
fn register_versions(engine: &Engine, versions: &[Version], named: &mut HashSet<u32>) -> Result<()> {
    for (at, (trailer, definition)) in versions.iter().enumerate().rev() {
        let Definition::Table(table) = definition else { continue };
        named.insert(table.space);
        named.extend(table.indexes.iter().map(|index| index.space));
        let Some(table) = with_files(engine, table) else {
            continue;
        };
        match at {
            0 if matches!(engine.status(trailer.tx)?, Status::Active(_)) => engine.catalog.register_uncommitted(&table),
            _ => engine.catalog.register(&table),
        }
    }
    Ok(())
}

/// A table as undo may work on it. A version that is not needed loses its files before the log that says so is durable:
/// after a crash it may be named again, without them.
fn with_files(engine: &Engine, table: &Arc<Table>) -> Option<Arc<Table>> {
    let exists = |space| engine.storage.0.pages().has_space(space);
    if !exists(table.space) {
        return None;
    }
    if table.indexes.iter().all(|index| exists(index.space)) {
        return Some(table.clone());
    }
    let mut def = table.def().clone();
    def.indexes.retain(|index| exists(index.space));
    Some(Arc::new(Table::new(def)))
}

/// Drops spaces that no version of any definition names: what a crash left of definitions that were being made.
pub(crate) fn drop_orphans(engine: &Engine, named: &HashSet<u32>) -> Result<u64> {
    let orphans = engine.storage.0.pages().spaces().into_iter();
    let mut dropped = 0;
    for space in orphans.filter(|s| (FIRST_SPACE..undo::SPACE_BASE).contains(s) && !named.contains(s)) {
        engine.drop_space(space)?;
        dropped += 1;
    }
    Ok(dropped)
}

/// The thread that rolls losers back.
pub(crate) fn roll_back(engine: &Weak<Engine>, signal: &rt::Event) {
    let mut left = true;
    loop {
        if left {
            signal.wait_timeout(RETRY);
        } else {
            signal.wait();
        }
        signal.reset();
        let Some(engine) = engine.upgrade() else { return };
        if engine.is_stopping() {
            return;
        }
        let waits = engine.give_up_late();
        left = engine.losers_round() || waits;
    }
}

/// How far the rollback of a loser went.
enum Went {
    /// All is taken back.
    Over,
    /// There is more to do.
    On,
    /// One of its rows has a newer version of another loser: that one first.
    Covered,
    /// The engine stops.
    Stopped,
}

/// Takes back some records.
fn roll_back_some(engine: &Engine, loser: &mut Loser, rollback: &mut Rollback<'_>) -> Result<Went> {
    let _need = engine.pool.begin_need(Need::Cleanup);
    for _ in 0..64 {
        if loser.last.is_none() {
            rollback::log_end(engine, &loser.segment, loser.end, loser.seq)?;
            end_loser(engine, loser)?;
            return Ok(Went::Over);
        }
        if loser.is_of_last_run() && rollback::is_covered(engine, loser.seq, loser.last)? {
            return Ok(Went::Covered);
        }
        mark::pass(Mark::LoserWaits);
        loser.last = rollback.take_back_beside_others(loser.last)?;
    }
    Ok(Went::On)
}

/// All is taken back: its locks go, and its waiters go on.
fn end_loser(engine: &Engine, loser: &Loser) -> Result<()> {
    if let Status::Active(slot) = engine.status(loser.seq)? {
        engine.txs.set_over(loser.seq, slot);
        engine.table_locks.release(&loser.locks.tables, loser.seq);
        for name in &loser.locks.rows {
            engine.row_locks.release(name, loser.seq);
        }
        Waits::ended(&engine.slots, slot);
    }
    engine.segments.give_back(Writer {
        segment: loser.segment.clone(),
        position: loser.end,
    });
    if loser.is_of_last_run() {
        engine.update_report(|report| report.transactions_rolled_back += 1);
    }
    Ok(())
}

impl Engine {
    /// Takes the losers back, each as far as it goes: one that fails (storage fails) keeps its rows locked and does not
    /// hold up the others. Says whether any is left.
    fn losers_round(&self) -> bool {
        let mut losers = self.losers.take_all();
        let mut left = Vec::new();
        loop {
            let (before, mut covered) = (losers.len(), Vec::new());
            for mut loser in losers {
                match self.roll_back_one(&mut loser) {
                    Ok(Went::Over) => self.losers.note_over(&loser),
                    Ok(Went::Covered) => covered.push(loser),
                    Ok(_) => left.push(loser),
                    Err(error) => {
                        self.losers.note_stuck(&loser, error);
                        left.push(loser);
                    }
                }
            }
            // Transactions that were covered are not any more, unless the one that covers them failed too.
            if covered.is_empty() || covered.len() == before {
                left.extend(covered);
                break;
            }
            losers = covered;
        }
        self.losers.put_back(left)
    }

    fn roll_back_one(&self, loser: &mut Loser) -> Result<Went> {
        let lease = loser
            .lease
            .clone()
            .ok_or_else(|| Error::Internal("a loser without a slot".into()))?;
        let mut rollback = Rollback::new(self, &lease);
        while !self.is_stopping() {
            match roll_back_some(self, loser, &mut rollback)? {
                Went::On => {}
                other => return Ok(other),
            }
        }
        Ok(Went::Stopped)
    }

    /// How many transactions of the last server wait for their sessions.
    pub fn left_transactions(&self) -> usize {
        self.left.waiting()
    }

    /// Registers a transaction that the last server left, which runs in its loser's slot: its locks are held from here
    /// on, and the snapshot that it reads by. False: another one's are in the way, so it is a loser.
    pub(crate) fn hold_left(&self, loser: &mut Loser) -> bool {
        let Some(state) = loser.left.as_ref().map(|left| &left.state) else {
            return false;
        };
        let shares = |table: &u64| self.table_locks.try_shared(*table, loser.seq).is_ok();
        if !state.tables.iter().all(shares) {
            self.table_locks.release(&state.tables, loser.seq);
            return false;
        }
        for (name, strength) in &state.locks {
            self.row_locks.add(name, loser.seq, *strength);
        }
        loser.locks.tables.extend_from_slice(&state.tables);
        loser
            .locks
            .rows
            .extend(state.locks.iter().map(|(name, _)| name.clone()));
        true
    }

    /// From here on the transaction is not as it was left: no start lets a session take it up again.
    pub(crate) fn mark_taken(&self, left: &Loser) -> Result<()> {
        rollback::mark(self, left.last).map(drop)
    }

    /// Gives up those that no session has come for: from here on they are losers. Says whether any waits still.
    pub(crate) fn give_up_late(&self) -> bool {
        for mut late in self.left.take_late(rt::now()) {
            match self.mark_taken(&late) {
                Ok(()) => {
                    late.left = None;
                    let slot = late.lease.as_ref().map(|lease| lease.slot);
                    let seq = late.seq;
                    self.losers.take_in(late);
                    // Its waiters take the rows back that they want.
                    slot.into_iter()
                        .for_each(|slot| self.waits.returned(&self.slots, (seq, slot)));
                }
                Err(error) => {
                    eprintln!("cenote: transaction {} could not be given up: {error}", late.seq.raw());
                    self.left.put_back(late);
                }
            }
        }
        self.left.waiting() > 0
    }

    /// Rolls back what is left of the last run and of rollbacks that failed, for tests without background threads.
    ///
    /// # Errors
    /// The error of a loser that could not be taken back.
    pub fn roll_back_losers(&self) -> Result<()> {
        self.give_up_late();
        self.losers_round();
        self.losers.check_all()
    }
}

#[cfg(test)]
mod tests {
    use crate::*;
    use std::path::Path;
    use std::sync::Arc;

    fn open(dir: &Path) -> Arc<Engine> {
        let mut options = EngineOptions::new(dir.join("data"), MemoryKind::Dram, 24 << 20);
        options.background = false;
        Engine::open(options).expect("the database opens")
    }

    fn new_table() -> NewTable {
        let column = |name: &str| ColumnDef {
            name: name.into(),
            ty: ColumnType::Int4,
            not_null: true,
            default: None,
        };
        NewTable {
            name: "t".into(),
            columns: vec![column("id"), column("n")],
            primary_key: Some(("p".into(), vec![0])),
            indexes: vec![NewIndex {
                name: "t_n".into(),
                columns: vec![1],
                unique: false,
                constraint: false,
            }],
        }
    }

    fn insert(tx: &mut Tx, table: &Table, id: i32) -> Result<Insert> {
        let mut row = Vec::new();
        table.layout().encode(&[Datum::Int4(id), Datum::Int4(7)], &mut row)?;
        tx.begin_statement();
        tx.insert(table, &row)
    }

    /// Found by world `ddl` (seed 51002591) as "there is no space 1031", and its silent sister. A process died in the
    /// middle of a definition of a table. After the restart sessions wrote rows by the definition before, while
    /// rollbacks went by the loser's: an index that it had made went away in the middle of a session's rollback;
    /// entries of an index that it had dropped stayed behind when a session took its row back. The loser holds the
    /// table alone again, until it is taken back.
    #[test]
    fn a_loser_holds_the_table_it_was_defining_until_it_is_rolled_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = open(dir.path());
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.create_table(new_table()).expect("made");
        insert(&mut tx, &table, 1).expect("inserted");
        tx.commit().expect("committed");
        tx.begin(Isolation::ReadCommitted);
        tx.drop_index(&table, 0).expect("dropped");
        engine.storage.0.log().flush_all().expect("durable");
        engine.halt();
        drop((tx, engine));

        let engine = open(dir.path());
        assert_eq!(engine.recovery_report().losers, 1);
        let mut tx = engine.begin(Isolation::ReadCommitted);
        tx.set_lock_timeout(30);
        let table = tx.table("t").expect("readable").expect("the drop was not committed");
        let early = insert(&mut tx, &table, 2);
        tx.rollback().expect("taken back");
        engine.roll_back_losers().expect("taken back");
        tx.begin(Isolation::ReadCommitted);
        insert(&mut tx, &table, 3).expect("free now");
        tx.rollback().expect("taken back");
        drop(tx);
        engine.vacuum().expect("purged");
        let report = engine.check().expect("readable");
        let clean = "index \"t_n\": 1 rows, 0 entries of other versions";
        assert!(report.summary.iter().any(|line| line == clean), "{:#?}", report.summary);
        assert!(matches!(early, Err(Error::LockNotAvailable(_))), "{early:?}");
        assert_eq!(engine.locks_held(), 0);
        engine.shutdown().expect("shut down");
    }
}
