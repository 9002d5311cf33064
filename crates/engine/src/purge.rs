//! Purge: what no snapshot can see any more goes.
//!
//! 1. The horizon is the oldest snapshot in use. Transactions that ended at or below it are *past*: everybody sees what they
//!    made, nobody what they replaced.
//! 2. Each undo segment is read from its tail over its past transactions. For each record: index entries of the replaced
//!    version that no later version needs go; its large values are freed; a delete's row goes, if it is still the newest.
//!    All that is one mini-transaction, under the clustered leaf's latch (see `tx::rollback` for why that is enough).
//! 3. The tail moves on, and pages wholly below it are punched out of the file.
//! 4. The low-water mark rises to the least number that is neither over nor past, so that readers need no lookup for what
//!    is older.
//!
//! Every step may be repeated after a crash. A rolled-back record is passed by: its version is the row's again.

use crate::catalog::{Table, state};
use crate::engine::Engine;
use crate::error::Result;
use crate::large;
use crate::pool::Need;
use crate::tree::BTree;
use crate::tx::cts;
use crate::tx::rollback::{
    compact_entries, entries_of, keep_needed, latch_entries, remove_ahead, remove_entries, too_many,
};
use crate::undo::record::{Kind, TRAILER, Trailer, UndoRecord};
use crate::undo::{self, Ended, Segment};
use cenote_base::PageId;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Longest pause between two rounds.
const PAUSE: rt::Nanos = rt::Nanos::from_millis(50);
/// Pages below the tail that are worth punching.
const PUNCH: u32 = 64;

/// Pages emptied in one mini-transaction.
const EMPTIED_AT_ONCE: usize = 16;

/// State of purge.
#[derive(Default)]
pub(crate) struct Purge {
    /// Wakes the thread.
    pub signal: Arc<rt::Event>,
    /// One round at a time.
    round: rt::Mutex<()>,
    pub records: AtomicU64,
    /// What the last round failed with.
    pub error: rt::Mutex<Option<String>>,
}

/// The purge thread.
pub(crate) fn run(engine: &Weak<Engine>, signal: &rt::Event) {
    loop {
        signal.wait_timeout(PAUSE);
        signal.reset();
        let Some(engine) = engine.upgrade() else { return };
        if engine.stopping.load(Ordering::Acquire) {
            return;
        }
        // What failed is tried again in the next round; `check` reports it.
        let failed = engine.purge_round().err();
        *engine.purge.error.lock() = failed.map(|error| error.to_string());
    }
}

impl Engine {
    /// Removes all that no snapshot can see; returns how many undo records it passed.
    pub fn vacuum(&self) -> Result<u64> {
        self.purge_round()
    }

    fn purge_round(&self) -> Result<u64> {
        let _round = self.purge.round.lock();
        let _need = self.pool.begin_need(Need::Cleanup);
        let horizon = self.slots.horizon(self.storage.durable());
        self.raise_low_water(horizon);
        let segments: Vec<_> = self.segments.read().clone();
        let mut passed = 0;
        for segment in segments {
            passed += self.purge_segment(&segment, horizon)?;
        }
        if let Some(past) = self.cts.take_past(self.txs.low_water(), PUNCH) {
            for pages in past.pages.iter().cloned() {
                self.give_back(cts::SPACE, pages, cts::KIND_CTS)?;
            }
            self.cts.note_given_back(&self.pool, &past)?;
        }
        self.purge.records.fetch_add(passed, Ordering::Relaxed);
        Ok(passed)
    }

    /// Order matters: a transaction enters its slot before `next` passes it, and the segment's queue before it leaves the
    /// slot; so reading `next`, slots, queues in this order misses none.
    fn raise_low_water(&self, horizon: u64) {
        let next = self.txs.next();
        let mut low = self.slots.oldest_tx(next);
        for segment in self.segments.read().iter() {
            // Within a segment both positions and numbers rise (see `Ended::tx`).
            let ended = segment.ended.lock();
            let recent = ended.get(ended.partition_point(|e| e.at <= horizon));
            low = recent.map_or(low, |e| low.min(e.tx));
        }
        self.txs.raise_low_water(low);
    }

    fn purge_segment(&self, segment: &Segment, horizon: u64) -> Result<u64> {
        let mut passed = 0;
        while let Some(ended) = next_past(segment, horizon) {
            passed += self.purge_until(segment, ended.end)?;
            segment.ended.lock().pop_front();
            if self.stopping.load(Ordering::Acquire) {
                break;
            }
        }
        if passed > 0 {
            self.log_tail(segment)?;
        }
        let past = segment.past(u64::from(PUNCH));
        for pages in segment.pages(&past) {
            self.give_back(undo::SPACE_BASE + u32::from(segment.number), pages, undo::KIND_UNDO)?;
        }
        segment.note_given_back(past);
        Ok(passed)
    }

    fn purge_until(&self, segment: &Segment, end: u64) -> Result<u64> {
        let mut at = segment.tail.load(Ordering::Acquire);
        let mut passed = 0;
        while at < end {
            let Some((position, behind, record)) = undo::read_next(&self.pool, segment, at)? else {
                break;
            };
            if position >= end {
                break;
            }
            if !self.purge_record(undo::pointer_to(segment.number, position), &record)? {
                continue;
            }
            at = behind;
            segment.tail.store(at, Ordering::Release);
            passed += 1;
        }
        segment.tail.store(end, Ordering::Release);
        Ok(passed)
    }

    fn log_tail(&self, segment: &Segment) -> Result<()> {
        let mut m = self.pool.mtr();
        let h = undo::latch_header(&mut m, segment.number)?;
        undo::set_tail(&mut m, h, segment.tail.load(Ordering::Acquire));
        m.commit();
        Ok(())
    }

    /// Frees frames and file blocks of pages that nobody will read again. The log gets an empty page for each first, so that
    /// a replay never asks storage for a page that is gone; that has to be durable before the blocks go.
    fn give_back(&self, space: u32, pages: std::ops::Range<u32>, kind: u8) -> Result<()> {
        for step in pages.clone().step_by(EMPTIED_AT_ONCE) {
            let mut m = self.pool.mtr();
            let mut some = step..pages.end.min(step + EMPTIED_AT_ONCE as u32);
            // Should one fail, those before it are empty, which does no harm.
            let emptied = some.try_for_each(|page| m.create(PageId::new(space, page), kind, 0).map(drop));
            m.commit();
            emptied?;
        }
        self.storage.wait_durable(self.storage.0.log().tail().raw())?;
        self.pool.discard_pages(space, pages.clone())?;
        self.storage.0.pages().punch(space, pages)?;
        Ok(())
    }

    /// False if the table was defined otherwise in the middle, so that pages went away: the record is to be read anew, since it may say
    /// by now that part of this was done.
    fn purge_record(&self, pointer: u64, record: &UndoRecord) -> Result<bool> {
        if record.undone || record.plain || record.kind == Kind::Insert {
            return Ok(true);
        }
        let Some(table) = self.catalog.table_of_space(record.space) else {
            return Ok(true);
        };
        let mut removed = Vec::new();
        let done = loop {
            match self.purge_version(&table, pointer, record, &mut removed) {
                Ok(false) => {}
                done => break done,
            }
        };
        let now = self.catalog.table_of_space(record.space);
        match done {
            Err(_) if !now.is_some_and(|now| Arc::ptr_eq(&now, &table)) => Ok(false),
            done => done,
        }
    }

    /// Removes what only the version that the record holds needed. False where only some index entries went: to be called again, with
    /// the same `removed` (see `tx::rollback`).
    fn purge_version(
        &self,
        table: &Table,
        pointer: u64,
        record: &UndoRecord,
        removed: &mut Vec<(u32, Vec<u8>)>,
    ) -> Result<bool> {
        let tree = BTree { space: table.space };
        let live = !record.before.deleted();
        let mut entries = if live {
            entries_of(self, table, &record.key, &record.row)?
        } else {
            Vec::new()
        };
        let refs = if live {
            large::refs_of(table, &record.row)?
        } else {
            Vec::new()
        };
        // A long definition lies on overflow pages itself, which are about to go.
        let definition = if table.space == state::CATALOG_SPACE && live {
            state::table_of_stored(self, Some(&record.row))?
        } else {
            None
        };
        self.ready_for_large(table, &refs)?;
        let mut m = self.pool.mtr();
        let pos = tree.seek_write(&mut m, &record.key, 0)?;
        let mut current = Vec::new();
        let mut newest = None;
        if pos.found {
            tree.value(&m, &pos, &mut current);
            newest = Some(Trailer::of(&current)?);
            current.truncate(current.len() - TRAILER);
        }
        let survivors = newest.map(|trailer| (trailer, current));
        keep_needed(self, table, &record.key, survivors.clone(), pointer, &mut entries)?;
        if let Some(some) = too_many(&mut entries, removed) {
            return remove_ahead(self, m, some).map(|()| false);
        }
        // Under the latch, too: a DROP that is taken back meanwhile marks its record undone, and nothing leads from the deleted version
        // to those below it any more, one of which is the table's again.
        let gone = match definition {
            Some(gone) => Some((gone, self.spaces_of_survivors(survivors, pointer)?)),
            None => None,
        };
        let remove_row = newest.is_some_and(|trailer| trailer.deleted() && trailer.undo == pointer);
        let doomed = latch_entries(&mut m, entries)?;
        if !refs.is_empty() {
            // So that a repetition does not free them twice.
            let page = undo::latch_record(&mut m, pointer)?;
            large::orphan(&mut m, table, &refs)?;
            undo::mark_undone(&mut m, page, pointer);
        }
        let emptied = remove_row && tree.remove_at(&mut m, &pos);
        let thin = remove_entries(&mut m, doomed);
        m.commit();
        large::free(&self.pool, table, &refs)?;
        compact_entries(self, &thin)?;
        if emptied {
            tree.compact(&self.pool, &record.key)?;
        }
        if let Some((gone, staying)) = gone {
            state::purge_spaces(self, &gone, &staying)?;
        }
        Ok(true)
    }

    /// The spaces that the definitions name that are newer than the one that record `until` holds.
    fn spaces_of_survivors(&self, mut version: Option<(Trailer, Vec<u8>)>, until: u64) -> Result<Vec<u32>> {
        let mut spaces = Vec::new();
        while let Some((trailer, row)) = version {
            if !trailer.deleted()
                && let Some(table) = state::table_of_stored(self, Some(&row))?
            {
                spaces.extend(state::spaces_of(&table));
            }
            version = if trailer.undo == until {
                None
            } else {
                self.version_before(trailer)?
            };
        }
        Ok(spaces)
    }
}

fn next_past(segment: &Segment, horizon: u64) -> Option<Ended> {
    segment
        .ended
        .lock()
        .front()
        .copied()
        .filter(|ended| ended.at <= horizon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;

    /// Purge frees the overflow pages of a replaced definition, marks its record undone, and the process dies before the
    /// segment's tail is logged. The next start followed the catalog's versions to that record, read the freed pages, and
    /// refused to open the database.
    #[test]
    fn a_definition_half_purged_does_not_keep_the_database_from_opening() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || {
            let mut options = EngineOptions::new(dir.path().join("data"), MemoryKind::Cxl, 24 << 20);
            options.region = Some(dir.path().join("region"));
            options.background = false;
            Engine::open(options).expect("the database opens")
        };
        let engine = open();
        let column = |i| ColumnDef {
            name: format!("{i}{}", "x".repeat(40)),
            ty: ColumnType::Int4,
            not_null: true,
            default: None,
        };
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let columns = (0..120).map(column).collect();
        let new = NewTable {
            name: "wide".into(),
            columns,
            primary_key: Some(("wide_pkey".into(), vec![0])),
            indexes: vec![],
        };
        let table = tx.create_table(new).expect("made");
        tx.commit().expect("committed");
        tx.begin(Isolation::ReadCommitted);
        tx.truncate(&table).expect("truncated");
        tx.commit().expect("committed");
        drop(tx);
        let segments: Vec<_> = engine.segments.read().clone();
        for segment in &segments {
            while let Some(ended) = next_past(segment, u64::MAX) {
                engine.purge_until(segment, ended.end).expect("purged");
                segment.ended.lock().pop_front();
            }
        }
        engine.halt();
        drop(engine);
        let engine = open();
        let tx = engine.begin(Isolation::ReadCommitted);
        assert!(tx.table("wide").expect("read").is_some());
        drop(tx);
        engine.vacuum().expect("purged");
        assert_eq!(engine.check().expect("checked").problems, Vec::<String>::new());
        engine.shutdown().expect("shut down");
    }
}
