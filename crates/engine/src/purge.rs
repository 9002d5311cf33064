//! Purge: what no snapshot can see any more goes.
//!
//! 1. The horizon is the oldest snapshot in use. Transactions that ended at or below it are *past*: all snapshots see
//!    what they made, none what they replaced.
//! 2. Each undo segment is read from its tail over its past transactions, by one thread; several threads share the
//!    segments (`crew`). For each record: index entries of the replaced version that no later version needs go
//!    (`tx::needed`); its large values are freed; a delete's row goes, if it is still the newest. All that is one
//!    mini-transaction, under the clustered leaf's latch (see `tx::rollback` for why that is enough).
//! 3. The tail moves on, and pages wholly below it are punched out of the file; so are runs of free pages
//!    (`give_back`).
//! 4. The low-water mark rises to the least number that is neither over nor past, so that readers need no lookup for
//!    what is older.
//! 5. Where an old snapshot keeps it from its work, the ways to what that one sees are cut short (`cut`).
//!
//! Lock order: `round` → `definitions` → clustered leaf → index leaves → undo page → space header.
//!
//! Every step may be repeated after a crash. A rolled-back record is passed by: its version is the row's again.

pub(crate) mod crew;
mod cut;
mod give_back;
pub(crate) mod shared;

use crate::catalog::{Table, spaces, state};
use crate::engine::Engine;
use crate::error::Result;
use crate::large;
use crate::pool::{Mtr, Need};
use crate::system::CATALOG_SPACE;
use crate::tree::{BTree, LeafPos};
use crate::tx::needed::{Entries, Memos, Row, Version};
use crate::tx::rollback::{compact_entries, latch_entries, remove_ahead, remove_entries, too_many};
use crate::tx::{CancelFlag, cts};
use crate::undo::record::{TRAILER, Trailer, UndoRecord};
use crate::undo::{self, Segment, UndoPointer};
use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, PageId, TxId};
use crew::{Crew, Round};
use std::sync::{Arc, Weak};

/// Longest pause between two rounds.
const PAUSE: rt::Nanos = rt::Nanos::from_millis(50);
/// Between two looks of a VACUUM at the round that another thread is at.
const TURN: rt::Nanos = rt::Nanos::from_millis(10);
/// Attempts at a walk of a row whose newest versions are taken back under it.
const TRIES: usize = 5;
/// Pages emptied in one mini-transaction.
const EMPTIED_AT_ONCE: usize = 16;
const _: () = assert!(
    EMPTIED_AT_ONCE <= cenote_buffer::PAGES_MAX,
    "a mini-transaction holds them"
);

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
        let failed = engine.purge_round(None).err();
        *engine.purge.error.lock() = failed.map(|error| error.to_string());
    }
}

/// A thread that helps it.
pub(crate) fn help(engine: &Weak<Engine>, crew: &Crew) {
    let mut seen = 0;
    while let Some(round) = crew.join(&mut seen) {
        crew.take_part(&round, || {
            if let Some(engine) = engine.upgrade() {
                engine.work_in(&round);
            }
        });
    }
}

/// The newest version of a row, whose leaf is latched.
struct Latched<'p> {
    m: Mtr<'p>,
    pos: LeafPos,
    newest: Option<Version>,
}

impl Engine {
    /// Removes all that no snapshot can see; returns how many undo records it passed.
    ///
    /// # Errors
    /// Those of reading and writing pages; what was purged before stays purged.
    pub fn vacuum(&self) -> Result<u64> {
        self.refuse_reader("VACUUM")?;
        self.note_all_freed();
        self.purge_round(None)
    }

    /// As `vacuum`, for a statement: `cancel` ends its wait for the round that another thread is at, and its own round
    /// between two records.
    ///
    /// # Errors
    /// 57014 when that is set; those of reading and writing.
    pub fn vacuum_until(&self, cancel: &Arc<CancelFlag>) -> Result<u64> {
        self.refuse_reader("VACUUM")?;
        self.note_all_freed();
        self.purge_round(Some(cancel))
    }

    pub(crate) fn begin_round(&self, cancel: Option<&Arc<CancelFlag>>) -> Result<rt::MutexGuard<'_, ()>> {
        let Some(cancel) = cancel else {
            return Ok(self.purge.round.lock());
        };
        loop {
            if let Some(round) = self.purge.round.try_lock() {
                return Ok(round);
            }
            cancel.check()?;
            rt::sleep(TURN);
        }
    }

    fn purge_round(&self, cancel: Option<&Arc<CancelFlag>>) -> Result<u64> {
        let _round = self.begin_round(cancel)?;
        let _need = self.pool.begin_need(Need::Cleanup);
        let Some(horizon) = self.begin_purge()? else {
            return Ok(0);
        };
        self.versions.forget_past(horizon);
        let passed = self.purge_segments(horizon, cancel)?;
        cancel.map_or(Ok(()), |cancel| cancel.check())?;
        if self.unsettled.any_waits() {
            self.unsettled.note_purged(self.first_not_purged());
        }
        if !self.left.any_leaves()
            && let Some(past) = self.cts.take_past(self.noted_low_water(), self.give_back_pages)
        {
            mark::pass(Mark::CtsGivenBack);
            for pages in past.pages.iter().cloned() {
                self.give_back(cts::SPACE, pages, cts::KIND_CTS)?;
            }
            self.cts.note_given_back(&self.pool, &past)?;
        }
        self.purge.records.fetch_add(passed, Ordering::Relaxed);
        self.give_back_freed()?;
        if passed > 0 {
            mark::pass(Mark::Purged);
        }
        self.cut_if_it_stands(horizon)?;
        Ok(passed)
    }

    /// Purges the segments that have something past, with the crew where they are several.
    fn purge_segments(&self, horizon: Cts, cancel: Option<&Arc<CancelFlag>>) -> Result<u64> {
        let mut segments = self.segments.all();
        segments.retain(|segment| segment.next_past(horizon).is_some());
        let round = Arc::new(Round::new(horizon, segments, cancel.cloned()));
        if round.is_shared() {
            self.purge.crew.open(&round);
        }
        self.work_in(&round);
        if round.is_shared() {
            self.purge.crew.close();
        }
        match round.failed.lock().take() {
            Some(error) => Err(error),
            None => Ok(round.passed.load(Ordering::Relaxed)),
        }
    }

    /// Purges segments of the round until each is taken. One that fails does not hold up the others.
    fn work_in(&self, round: &Round) {
        let _need = self.pool.begin_need(Need::Cleanup);
        let mut memos = Memos::new(round.horizon, usize::MAX);
        while let Some(segment) = round.take() {
            match self.purge_segment(segment, round, &mut memos) {
                Ok(passed) => drop(round.passed.fetch_add(passed, Ordering::Relaxed)),
                Err(error) => drop(round.failed.lock().get_or_insert(error)),
            }
        }
    }

    /// Order matters: a transaction enters its slot before `next` passes it, and the segment's queue before it leaves
    /// the slot; so reading `next`, slots, queues in this order misses none.
    pub(crate) fn raise_low_water(&self, horizon: Cts) {
        self.txs.raise_low_water(self.low_water_of(horizon));
    }

    /// The least number of a transaction that has not ended, or behind this horizon.
    pub(crate) fn low_water_of(&self, horizon: Cts) -> TxId {
        let next = self.txs.next();
        if planted(Fault::LowWater) {
            return next;
        }
        let running = self.slots.oldest_tx(next);
        self.segments.oldest_recent(running, horizon)
    }

    /// The least number of a transaction that has not ended, or that purge has not passed. In the order of
    /// `raise_low_water`.
    fn first_not_purged(&self) -> TxId {
        let next = self.txs.next();
        let running = self.slots.oldest_tx(next);
        self.segments.oldest_unpurged(running)
    }

    fn purge_segment(&self, segment: &Segment, round: &Round, memos: &mut Memos) -> Result<u64> {
        let mut passed = 0;
        while let Some(ended) = segment.next_past(memos.horizon) {
            passed += self.purge_until(segment, ended.end, round, memos)?;
            if segment.tail() < ended.end {
                break;
            }
            segment.note_passed();
            if self.stopping.load(Ordering::Acquire) {
                break;
            }
        }
        let past = segment.past(u64::from(self.give_back_pages));
        // No page that the header counts to the stream is given back.
        if passed > 0 || !past.is_empty() {
            self.log_tail(segment)?;
        }
        for pages in segment.pages(&past) {
            mark::pass(Mark::UndoGivenBack);
            self.give_back(undo::SPACE_BASE + u32::from(segment.number), pages, undo::KIND_UNDO)?;
        }
        segment.note_given_back(past);
        Ok(passed)
    }

    /// Stops before `end` where the round is to stop.
    fn purge_until(&self, segment: &Segment, end: u64, round: &Round, memos: &mut Memos) -> Result<u64> {
        let mut at = segment.tail();
        let mut passed = 0;
        while at < end {
            if round.is_canceled() {
                return Ok(passed);
            }
            let Some((position, behind, record)) = undo::read_next(&self.pool, segment, at)? else {
                break;
            };
            if position >= end {
                break;
            }
            if !self.purge_record(UndoPointer::new(segment.number, position), &record, memos)? {
                continue;
            }
            at = behind;
            segment.pass(at);
            self.unsettled.settle_all(&record)?;
            passed += 1;
        }
        segment.pass(end);
        Ok(passed)
    }

    fn log_tail(&self, segment: &Segment) -> Result<()> {
        let mut m = self.pool.mtr();
        let h = undo::latch_header(&mut m, segment.number)?;
        undo::set_tail(&mut m, h, segment.tail());
        m.commit();
        Ok(())
    }

    /// Frees frames and file blocks of pages that will not be read again. The log gets an empty page for each first, so
    /// that a replay never asks storage for a page that is gone; that has to be durable before the blocks go.
    fn give_back(&self, space: u32, pages: std::ops::Range<u32>, kind: u8) -> Result<()> {
        let emptied = pages
            .clone()
            .step_by(EMPTIED_AT_ONCE)
            .filter(|_| !planted(Fault::EmptiedPages));
        for step in emptied {
            let mut m = self.pool.mtr();
            let mut some = step..pages.end.min(step + EMPTIED_AT_ONCE as u32);
            // Should one fail, those before it are empty, which does no harm.
            let emptied = some.try_for_each(|page| m.create(PageId::new(space, page), kind, 0).map(drop));
            m.commit();
            emptied?;
        }
        self.storage.wait_durable(self.storage.0.log().tail())?;
        self.pool.discard_pages(space, pages.clone())?;
        self.storage.0.pages().punch(space, pages)?;
        mark::pass(Mark::PagesPunched);
        Ok(())
    }

    /// False if the table was defined otherwise in the middle, so that pages went away: the record is to be read anew,
    /// since it may say by now that part of this was done.
    fn purge_record(&self, pointer: UndoPointer, record: &UndoRecord, memos: &mut Memos) -> Result<bool> {
        if record.undone || record.plain || record.kind.is_insert() {
            return Ok(true);
        }
        let Some(table) = self.catalog.table_of_space(record.space) else {
            return Ok(true);
        };
        let mut removed = Vec::new();
        let done = loop {
            match self.purge_version(&table, pointer, record, memos, &mut removed) {
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

    /// Removes what only the version that the record holds needed. False where only some index entries went: to be
    /// called again, with the same `removed` (see `tx::rollback`).
    fn purge_version(
        &self,
        table: &Table,
        pointer: UndoPointer,
        record: &UndoRecord,
        memos: &mut Memos,
        removed: &mut Entries,
    ) -> Result<bool> {
        let tree = BTree { space: table.space };
        let live = !record.before.deleted();
        let refs = if live {
            large::refs_ending(&self.pool, table, &record.row, record.shared)?
        } else {
            Vec::new()
        };
        let is_definition = table.space == CATALOG_SPACE;
        let _definitions = is_definition.then(|| self.purge.definitions.lock());
        // A long definition lies on overflow pages itself, which are about to go.
        let definition = if is_definition && live {
            spaces::table_of_stored(self, Some(&record.row))?
        } else {
            None
        };
        self.ready_for_large(table, &refs)?;
        let (latched, mut entries) = self.latch_row(table, pointer, record, memos)?;
        let Latched { mut m, pos, newest } = latched;
        if let Some(some) = too_many(&mut entries, removed) {
            return remove_ahead(self, m, some).map(|()| false);
        }
        let remove_row = newest
            .as_ref()
            .is_some_and(|(trailer, _)| trailer.deleted() && trailer.undo == pointer);
        // Under the latch, too: a DROP that is taken back meanwhile marks its record undone, and nothing leads from the
        // deleted version to those below it any more, one of which is the table's again.
        let gone = match definition {
            Some(gone) => Some((gone, self.spaces_of_survivors(newest, pointer)?)),
            None => None,
        };
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
        if emptied || !refs.is_empty() {
            self.note_freed(table.space);
        }
        if let Some((gone, staying)) = gone {
            spaces::purge_spaces(self, &gone, &staying)?;
        }
        Ok(true)
    }

    /// Latches the row's leaf; gives its newest version, and those index entries of the replaced one that no later
    /// version needs.
    fn latch_row<'p>(
        &'p self,
        table: &Table,
        pointer: UndoPointer,
        record: &UndoRecord,
        memos: &mut Memos,
    ) -> Result<(Latched<'p>, Entries)> {
        let row = Row::new(self, table, &record.key);
        loop {
            let mut entries = row.entries(record.before, &record.row)?;
            let latched = self.latch_newest(table, &record.key)?;
            let newest = latched.newest.clone().filter(|_| !entries.is_empty());
            if memos.keep_needed(row, newest, pointer, &mut entries)? {
                return Ok((latched, entries));
            }
            drop(latched);
            // A version that is taken back under the walk may have lost what it had outside.
            let is_learnt = (1..TRIES).any(|_| memos.learn(row).is_ok());
            if !is_learnt {
                memos.learn(row)?;
            }
        }
    }

    fn latch_newest(&self, table: &Table, key: &[u8]) -> Result<Latched<'_>> {
        let tree = BTree { space: table.space };
        let mut m = self.pool.mtr();
        let pos = tree.seek_write(&mut m, key, 0)?;
        let mut newest = None;
        if pos.found {
            let mut row = Vec::new();
            tree.value(&m, &pos, &mut row);
            let trailer = Trailer::of(&row)?;
            row.truncate(row.len() - TRAILER);
            newest = Some((trailer, row));
        }
        Ok(Latched { m, pos, newest })
    }

    /// Purges one record, and does `between` before the segment's tail passes all that has ended there.
    #[cfg(test)]
    pub(crate) fn purge_with(&self, pointer: UndoPointer, between: impl FnOnce()) {
        let horizon = self.slots.horizon(self.storage.durable());
        self.purge.announce(horizon);
        let record = undo::read(&self.pool, pointer).expect("a record");
        let mut memos = Memos::new(horizon, usize::MAX);
        assert!(self.purge_record(pointer, &record, &mut memos).expect("purged"));
        between();
        let segment = self.segments.get(pointer.segment().into()).expect("its segment");
        while let Some(ended) = segment.next_past(Cts::MAX) {
            segment.pass(ended.end);
            segment.note_passed();
        }
    }

    /// The spaces that the definitions name that are newer than the one that record `until` holds.
    fn spaces_of_survivors(&self, mut version: Option<Version>, until: UndoPointer) -> Result<Vec<u32>> {
        let mut spaces = Vec::new();
        while let Some((trailer, row)) = version {
            if !trailer.deleted()
                && let Some(table) = spaces::table_of_stored(self, Some(&row))?
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_clean, change, indexed, row};
    use crate::*;

    /// Purge frees the overflow pages of a replaced definition, marks its record undone, and the process dies before
    /// the segment's tail is logged. The next start followed the catalog's versions to that record, read the freed
    /// pages, and refused to open the database.
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
        let segments = engine.segments.all();
        for segment in &segments {
            while let Some(ended) = segment.next_past(Cts::MAX) {
                let mut memos = Memos::new(Cts::MAX, usize::MAX);
                let round = Round::new(Cts::MAX, Vec::new(), None);
                engine
                    .purge_until(segment, ended.end, &round, &mut memos)
                    .expect("purged");
                segment.note_passed();
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

    /// 155,000 updates of one indexed row, and purge was not done after 52 s: for each record it walked all newer
    /// versions of the row, under the latch of its leaf, so that its work grew with their square and the row could not
    /// be had meanwhile. With an old snapshot in use, half of the records are past, and all of their entries have to be
    /// compared with all of the versions behind it.
    #[test]
    fn each_version_of_a_hot_row_is_walked_once() {
        const UPDATES: i32 = 1_500;
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        // Values come again, so that an entry may be needed by any later version.
        let value = |i: i32| if i % 3 == 0 { i % 7 } else { i };
        let mut tx = engine.tx();
        for from in (0..UPDATES).step_by(150) {
            change(&mut tx, &table, 1, (from..from + 150).map(value));
        }
        let mut reader = engine.begin(Isolation::RepeatableRead);
        reader.begin_statement();
        for from in (UPDATES..2 * UPDATES).step_by(150) {
            change(&mut tx, &table, 1, (from..from + 150).map(value));
        }
        assert!(engine.vacuum().expect("purged") >= UPDATES as u64 - 1);
        let walked = engine.purge.walked.load(Ordering::Relaxed);
        assert!(
            walked < 3 * UPDATES as u64,
            "{walked} versions walked for {UPDATES} records"
        );
        let (mut rows, mut batch) = (Vec::new(), RowBatch::new());
        let mut scan = reader.index_scan(&table, 0, KeyRange::all(), Direction::Forward);
        while scan.next_batch(reader.reader(), &mut batch).expect("readable") {
            rows.extend((0..batch.len()).map(|i| batch.row(i).to_vec()));
        }
        assert_eq!(
            rows,
            [row(&table, 1, value(UPDATES - 1))],
            "what the old snapshot sees by the index"
        );
        drop((scan, reader));
        assert!(engine.vacuum().expect("purged") >= UPDATES as u64);
        let walked = engine.purge.walked.load(Ordering::Relaxed) - walked;
        assert!(
            walked < 3 * UPDATES as u64,
            "{walked} versions walked for {UPDATES} records"
        );
        assert_clean(&engine, 1);
        drop(tx);
        engine.shutdown().expect("shut down");
    }

    /// VACUUM behind a round of another thread, and in the middle of its own, was deaf to cancel.
    #[test]
    fn a_vacuum_is_cancelled_behind_a_round_and_in_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        let mut tx = engine.tx();
        change(&mut tx, &table, 1, 0..50);
        let cancel = Arc::new(CancelFlag::default());
        cancel.set();
        let round = engine.purge.round.lock();
        assert!(
            matches!(engine.vacuum_until(&cancel), Err(Error::Canceled)),
            "behind a round"
        );
        drop(round);
        assert!(
            matches!(engine.vacuum_until(&cancel), Err(Error::Canceled)),
            "in its own"
        );
        cancel.clear();
        assert!(
            engine.vacuum_until(&cancel).expect("purged") >= 50,
            "nothing was passed before"
        );
        assert_clean(&engine, 1);
        drop(tx);
        engine.shutdown().expect("shut down");
    }

    /// Sessions that write make undo in as many segments; one thread purged them one after the other.
    #[test]
    fn threads_share_the_segments_of_a_round() {
        const SESSIONS: i32 = 6;
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        let mut sessions: Vec<_> = (0..SESSIONS).map(|_| engine.tx()).collect();
        for round in 0..20 {
            for (id, tx) in sessions.iter_mut().enumerate() {
                change(tx, &table, id as i32, (0..5).map(|n| round * 10 + n));
                // Rows of all are changed by all in turn.
                change(tx, &table, (id as i32 + round) % SESSIONS, std::iter::once(-round));
            }
        }
        let segments = engine.segments.all();
        assert!(segments.len() >= SESSIONS as usize);
        let horizon = engine.slots.horizon(engine.storage.durable());
        let round = Arc::new(Round::new(horizon, segments.clone(), None));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (engine, round) = (engine.clone(), round.clone());
                rt::spawn("purge help", move || engine.work_in(&round))
            })
            .collect();
        engine.work_in(&round);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(round.failed.lock().is_none());
        assert!(
            segments.iter().all(|segment| segment.next_past(Cts::MAX).is_none()),
            "all is past"
        );
        assert_eq!(engine.vacuum().expect("purged"), 0, "nothing is left");
        assert_clean(&engine, SESSIONS as usize);
        drop(sessions);
        engine.shutdown().expect("shut down");
    }
}
