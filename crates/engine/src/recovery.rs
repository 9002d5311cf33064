//! Recovery of transactions, after pages are whole.
//!
//! What lies behind a segment's `end` belongs to the transaction that had not ended: one loser a segment at most. It gets a
//! slot and stays *active*: its rows are locked by its number, nobody sees them. A thread rolls losers back after `ready`,
//! through the same steps as a rollback in life; a crash in between goes on where it stopped. All other numbers of former
//! runs are visible to everyone: the low-water mark starts at the least loser.
//!
//! So the time until ready depends on the number of segments, tables and losers' records, not on the length of the log.

use crate::api::Direction;
use crate::catalog::Table;
use crate::catalog::state::{self, Definition, spaces_of};
use crate::engine::{Engine, FIRST_SPACE};
use crate::error::Result;
use crate::key::KeyRange;
use crate::large;
use crate::pool::BufferPool;
use crate::tree::{BTree, LeafBatch};
use crate::tx::locks::Waits;
use crate::tx::read::Reader;
use crate::tx::{Status, rollback};
use crate::undo::record::{TRAILER, Trailer};
use crate::undo::{self, Ended, Segment, Writer};
use cenote_base::rt;
use cenote_base::rt::HashSet;
use cenote_base::rt::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A transaction that had not ended when the last process did.
pub(crate) struct Loser {
    pub seq: u64,
    segment: Arc<Segment>,
    /// Its newest record.
    last: u64,
    /// Behind it.
    end: u64,
}

/// Whether losers are still being rolled back.
#[derive(Default)]
pub(crate) struct Losers {
    done: rt::Event,
    waiting: rt::Mutex<Vec<Loser>>,
}

impl Losers {
    pub(crate) fn done(&self) {
        self.done.set();
    }

    /// Returns true once all are rolled back, or false after a short while.
    pub(crate) fn wait_a_little(&self) -> bool {
        self.done.wait_timeout(rt::Nanos::from_millis(20))
    }

    /// Without background threads: they stay until `Engine::roll_back_losers`.
    pub(crate) fn set_waiting(&self, losers: Vec<Loser>) {
        if losers.is_empty() {
            self.done();
        }
        *self.waiting.lock() = losers;
    }
}

/// Reads the segments: the losers, and the least number never given.
pub(crate) fn find_losers(pool: &BufferPool, segments: &[Arc<Segment>], ceiling: u64) -> Result<(Vec<Loser>, u64)> {
    let mut losers = Vec::new();
    for segment in segments {
        let header = undo::header(pool, segment.number)?;
        if header.tail < header.end {
            segment.note_end(Ended {
                end: header.end,
                at: 0,
                tx: 0,
            });
        }
        if let Some((position, end, record)) = undo::read_last(pool, segment.number, header.end)? {
            let last = undo::pointer_to(segment.number, position);
            losers.push(Loser {
                seq: record.tx,
                segment: segment.clone(),
                last,
                end,
            });
        }
    }
    Ok((losers, ceiling.max(1)))
}

/// Registers the losers as running and everything else as past; puts the segments that have none up for use.
pub(crate) fn adopt(engine: &Engine, losers: &[Loser], first: u64) -> Result<()> {
    let mut low = first;
    for loser in losers {
        engine.txs.adopt(&engine.slots, engine.slots.acquire(), loser.seq);
        low = low.min(loser.seq);
    }
    engine.txs.raise_low_water(low);
    for segment in engine.segments.read().iter() {
        if !losers.iter().any(|loser| loser.segment.number == segment.number) {
            let position = undo::header(&engine.pool, segment.number)?.end;
            engine.give_back_segment(Writer {
                segment: segment.clone(),
                position,
            });
        }
    }
    Ok(())
}

/// Fills the cache of the catalog; knows every table that undo may lead to. Returns the spaces that any version of any
/// definition names.
pub(crate) fn read_catalog(engine: &Arc<Engine>) -> Result<HashSet<u32>> {
    let own = engine.catalog.own.clone();
    let mut reader = Reader::new(engine);
    reader.refresh();
    let mut scan = BTree { space: own.space }.scan(KeyRange::all(), Direction::Forward);
    let (mut batch, mut changes, mut named) = (LeafBatch::new(), Vec::new(), HashSet::default());
    while scan.next_batch(&engine.pool, &mut batch)? {
        for (_, value) in batch.iter() {
            register_versions(engine, value, &mut named)?;
            let mut row = value.to_vec();
            if reader.visible_version(&mut row)? && reader.complete(&own, &mut row)? {
                changes.push(state::definition_of(&own, &row)?);
            }
        }
    }
    engine.catalog.change(&changes);
    Ok(named)
}

/// Registers each version of a definition by its space, the newest last where they share one.
fn register_versions(engine: &Engine, value: &[u8], named: &mut HashSet<u32>) -> Result<()> {
    let own = &engine.catalog.own;
    let mut versions = Vec::new();
    let mut version = Some((Trailer::of(value)?, value[..value.len() - TRAILER].to_vec()));
    while let Some((trailer, row)) = version {
        versions.push(row);
        version = engine.version_before(trailer)?;
    }
    for row in versions.iter().rev() {
        if let Definition::Table(table) = state::definition_of(own, &large::bring_in(&engine.pool, own, row)?)? {
            named.extend(spaces_of(&table));
            if let Some(table) = with_files(engine, &table) {
                engine.catalog.register(&Arc::new(table));
            }
        }
    }
    Ok(())
}

/// A table as undo may work on it. A version that nobody needs loses its files before the log that says so is durable: after a
/// crash it may be named again, without them.
fn with_files(engine: &Engine, table: &Table) -> Option<Table> {
    let exists = |space| engine.storage.0.pages().has_space(space);
    let mut def = table.def().clone();
    def.indexes.retain(|index| exists(index.space));
    exists(def.space).then(|| Table::new(def))
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
pub(crate) fn roll_back_losers(engine: &Weak<Engine>, losers: Vec<Loser>) {
    for mut loser in losers {
        loop {
            let Some(engine) = engine.upgrade() else { return };
            if engine.stopping.load(Ordering::Acquire) {
                return;
            }
            match roll_back_some(&engine, &mut loser) {
                Ok(true) => break,
                Ok(false) => {}
                // Storage is in trouble: the rows stay locked; try again until it recovers or the process ends.
                Err(_) => rt::sleep(rt::Nanos::from_millis(200)),
            }
        }
    }
    if let Some(engine) = engine.upgrade() {
        engine.losers.done();
    }
}

/// Takes back some records; true when the loser is over.
fn roll_back_some(engine: &Engine, loser: &mut Loser) -> Result<bool> {
    for _ in 0..64 {
        if loser.last == 0 {
            rollback::log_end(engine, &loser.segment, loser.end, loser.seq)?;
            if let Status::Active(slot) = engine.status(loser.seq)? {
                engine.txs.set_over(loser.seq, slot);
                Waits::ended(&engine.slots, slot);
                engine.slots.release(slot);
            }
            engine.give_back_segment(Writer {
                segment: loser.segment.clone(),
                position: loser.end,
            });
            engine.update_report(|report| report.transactions_rolled_back += 1);
            return Ok(true);
        }
        loser.last = rollback::take_back_one(engine, loser.last)?;
    }
    Ok(false)
}

impl Engine {
    /// Rolls back the losers of the last run, for tests without background threads.
    pub fn roll_back_losers(&self) -> Result<()> {
        for mut loser in std::mem::take(&mut *self.losers.waiting.lock()) {
            while !roll_back_some(self, &mut loser)? {}
        }
        self.losers.done();
        Ok(())
    }
}
