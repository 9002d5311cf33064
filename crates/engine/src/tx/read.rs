//! Reading by a snapshot.
//!
//! 1. The tree gives the newest version, its trailer behind the row.
//! 2. If the transaction that made it is below the low-water mark, the version is visible: no lookup. One's own version
//!    is visible if its undo record lies before the place where the statement began to write (`upto`): a transaction
//!    appends its records to one segment, so their positions say which of its statements came first.
//! 3. Otherwise its status decides: committed at or below the snapshot is visible. A transaction that had no number
//!    when the snapshot was taken commits behind it, so its status is not asked for.
//! 4. A version that is not visible leads, through its undo record, to the one before; an insert's record ends the
//!    walk. What an old snapshot sees may have been copied out of undo already (`versions`).
//! 5. A version marked deleted means: no row.
//!
//! A secondary index's entry is only a hint: the row version that the snapshot sees must have the entry's key, else the
//! entry belongs to another version. Rows are fetched in the order of their keys, a leaf's entries at a time, and a
//! long walk is made once for all entries of a row (`walked`). A reader of nothing but the index's columns visits only
//! rows that have changed of late (`unsettled`).
//!
//! Invariant: while a slot publishes a snapshot, or holds it, purge removes nothing that this walk can meet.

use super::CancelFlag;
use super::slots::{Hold, Lease, SlotIndex};
use super::status::Status;
use super::walk::Walk;
use super::walked::WalkedRows;
use crate::api::{Columns, Direction, RowBatch};
use crate::catalog::Table;
use crate::catalog::state::Catalog;
use crate::covered::EntryScratch;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::tree::{BTree, LeafBatch, Place};
use crate::undo::UndoPointer;
use crate::undo::record::{TRAILER, Trailer};
use crate::versions::Finger;
use crate::{large, undo};
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Cts, TxId};
use std::ops::Bound;
use std::sync::Arc;

/// What a statement sees: enough to read. A clone holds the snapshot for as long as it lives, whatever statement its
/// transaction goes on to, and may be used by other threads. It sees the transaction's own changes only while that
/// runs.
pub struct Reader {
    pub(crate) engine: Arc<Engine>,
    pub(crate) slot: SlotIndex,
    /// Durable position of the log that this reader sees up to.
    pub(crate) snapshot: Cts,
    /// Low-water mark when the snapshot was taken.
    pub(crate) low_water: TxId,
    /// The next transaction's number, read behind the snapshot: those from here on commit behind it.
    pub(crate) high_water: TxId,
    /// Number of the transaction, if it has one yet.
    pub(crate) own: TxId,
    /// The transaction's own versions are seen whose undo pointer is below this.
    pub(crate) upto: UndoPointer,
    pub(crate) cancel: Arc<CancelFlag>,
    pub(crate) lease: Arc<Lease>,
    /// Keeps a clone's snapshot; the transaction's own reader publishes its, and holds one beside that came from
    /// another server: purge may have gone by younger ones before.
    pub(super) hold: Option<Hold>,
    /// Repeatable read: the catalog as it was shortly before the snapshot was taken.
    pub(crate) seen: Option<Arc<Catalog>>,
    /// Of a transaction that goes on from the last run, in its place: tables (ids), and the spaces of their trees.
    pub(crate) seen_spaces: Option<Arc<HashMap<u32, u32>>>,
}

/// What a snapshot cannot reach behind.
pub(super) const REPLACED: &str = "TRUNCATE or ALTER TABLE";
/// Versions that a reader follows before it looks whether they are purged.
const STEPS_UNSETTLED: u32 = 64;
/// `Reader::upto` of a reader that sees all that its transaction has done.
pub(super) const ALL_OWN: UndoPointer = UndoPointer::MAX;

impl Clone for Reader {
    fn clone(&self) -> Reader {
        Reader {
            engine: self.engine.clone(),
            cancel: self.cancel.clone(),
            lease: self.lease.clone(),
            hold: Some(self.lease.hold(self.snapshot)),
            seen: self.seen.clone(),
            seen_spaces: self.seen_spaces.clone(),
            ..*self
        }
    }
}

impl Reader {
    /// A reader that sees nothing until `refresh`.
    pub(crate) fn new(engine: &Arc<Engine>) -> Reader {
        Reader::with(engine, engine.slots.lease_always())
    }

    /// As `new`, with a slot of its own.
    pub(super) fn with(engine: &Arc<Engine>, lease: Arc<Lease>) -> Reader {
        Reader {
            engine: engine.clone(),
            slot: lease.slot,
            snapshot: Cts::ZERO,
            low_water: TxId::NONE,
            high_water: TxId::NONE,
            own: TxId::NONE,
            upto: ALL_OWN,
            cancel: Arc::default(),
            lease,
            hold: None,
            seen: None,
            seen_spaces: None,
        }
    }

    /// Takes a new snapshot: everything durable now.
    pub(crate) fn refresh(&mut self) {
        let engine = &*self.engine;
        self.snapshot = engine.slots.publish(self.slot, || engine.storage.durable());
        self.note_marks();
    }

    /// Takes a new snapshot, and the catalog as of it, or as it was shortly before.
    pub(super) fn refresh_with_catalog(&mut self) {
        loop {
            self.seen = Some(self.engine.catalog.current());
            self.refresh();
            if self.engine.shows_definitions(self.snapshot) {
                return;
            }
            // A reader's definitions have come, and the position that they are of is about to be visible.
            rt::sleep(rt::Nanos::from_micros(20));
        }
    }

    /// Reads as of a position of a reader's log: for work that holds nothing.
    pub(crate) fn read_as_of(&mut self, snapshot: Cts) {
        self.snapshot = snapshot;
        self.note_marks();
    }

    /// Behind a snapshot that was taken.
    fn note_marks(&mut self) {
        self.low_water = self.engine.txs.low_water();
        self.high_water = match planted(Fault::HighWater) {
            true => self.low_water,
            false => self.engine.txs.next(),
        };
    }

    /// Reads by a younger snapshot from now on, which the held one covers: `taken` behind what is noted for that.
    pub(super) fn go_on_to(&mut self, taken: impl FnOnce() -> Cts) {
        if let Some(hold) = &mut self.hold {
            hold.cover();
        }
        self.snapshot = taken();
        self.note_marks();
    }

    /// The snapshot is not needed any more.
    pub(crate) fn withdraw(&mut self) {
        self.engine.slots.withdraw(self.slot);
        self.hold = None;
        self.snapshot = Cts::ZERO;
        self.low_water = TxId::NONE;
    }

    /// Reads the row with this primary key into `row`; false where the snapshot sees none.
    ///
    /// # Errors
    /// Those of reading pages; 57014; [`Error::Corrupt`].
    pub fn get(&self, table: &Table, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        self.get_columns(table, key, &Columns::All, row)
    }

    /// As `get`, for a reader of these columns only.
    ///
    /// # Errors
    /// Those of reading.
    #[inline]
    pub fn get_columns(&self, table: &Table, key: &[u8], columns: &Columns, row: &mut Vec<u8>) -> Result<bool> {
        self.settle(self.find(table, key, columns, row))
    }

    /// What was found, unless it was found too late: at a reader, whose server purges.
    #[inline]
    fn settle<T>(&self, found: Result<T>) -> Result<T> {
        self.engine.settle(self.snapshot, found)
    }

    #[inline]
    fn find(&self, table: &Table, key: &[u8], columns: &Columns, row: &mut Vec<u8>) -> Result<bool> {
        let tree = BTree { space: table.space };
        if !tree.get(&self.engine.pool, key, row)? {
            return Ok(false);
        }
        let newest = Trailer::of(row)?;
        let seen = match self.sees(newest)? {
            true => {
                row.truncate(row.len() - TRAILER);
                !newest.deleted()
            }
            false => self.older_version_of((table.space, key), newest, row)?,
        };
        Ok(seen && self.complete(table, row, columns)?)
    }

    /// Scans a table by primary key.
    pub fn scan(&self, table: &Arc<Table>, range: KeyRange, direction: Direction) -> RowScan {
        let scan = BTree { space: table.space }.scan(range, direction);
        RowScan::of(table, None, Walk::Range(scan))
    }

    /// Scans a table in the order of an index (position in `Table::indexes`); the range is over the index's columns
    /// (and the primary key behind them).
    pub fn index_scan(&self, table: &Arc<Table>, index: usize, range: KeyRange, direction: Direction) -> RowScan {
        let space = table.indexes[index].space;
        let scan = BTree { space }.scan(range, direction);
        RowScan::of(table, Some(index), Walk::Range(scan))
    }

    /// Looks up the rows whose primary key (or key in an index) begins with one of a part of `prefixes`, which rise;
    /// none begins another. Rows come in the order of these keys, some hundreds in a batch.
    pub fn look_up(
        &self,
        table: &Arc<Table>,
        index: Option<usize>,
        (prefixes, part): (Arc<[Vec<u8>]>, std::ops::Range<usize>),
    ) -> RowScan {
        let tree = BTree {
            space: space_of(table, index),
        };
        RowScan::of(table, index, Walk::Prefixes(tree.scan_prefixes(prefixes, part)))
    }

    /// About which share (0 to 1) of a table's rows lies in a range of its primary key, or of one of its indexes.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn share(&self, table: &Table, index: Option<usize>, range: &KeyRange) -> Result<f64> {
        let tree = BTree {
            space: space_of(table, index),
        };
        let below = |bound: &Bound<Vec<u8>>, open: f64| match bound {
            Bound::Unbounded => Ok(open),
            Bound::Included(key) | Bound::Excluded(key) => tree.share_below(&self.engine.pool, key),
        };
        let share = below(&range.upper, 1.0)? - below(&range.lower, 0.0)?;
        Ok(share.clamp(0.0, 1.0))
    }

    /// Cuts a range of a table's primary key, or of one of its indexes, into at most so many that hold about as many
    /// rows each. Together they are the range.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn cut(&self, table: &Table, index: Option<usize>, range: KeyRange, parts: usize) -> Result<Vec<KeyRange>> {
        let tree = BTree {
            space: space_of(table, index),
        };
        let first = match &range.lower {
            Bound::Unbounded => 0.0,
            Bound::Included(key) | Bound::Excluded(key) => tree.share_below(&self.engine.pool, key)?,
        };
        let width = self.share(table, index, &range)? / parts.max(1) as f64;
        let (mut ranges, mut rest) = (Vec::new(), range);
        for part in 1..parts {
            let at = tree.key_at(&self.engine.pool, first + width * part as f64)?;
            let Some(key) = at.filter(|key| rest.contains(key)) else {
                continue;
            };
            let upper = std::mem::replace(&mut rest.upper, Bound::Excluded(key.clone()));
            let lower = Bound::Included(key);
            ranges.push(std::mem::replace(&mut rest, KeyRange { lower, upper }));
        }
        ranges.push(rest);
        Ok(ranges)
    }

    /// Holds the oldest snapshot in use, of this server or of a reader of its database.
    ///
    /// # Errors
    /// Those of telling readers.
    pub(crate) fn hold_oldest(&self) -> Result<Hold> {
        self.engine.hold_oldest(&self.lease)
    }

    /// 40001 where TRUNCATE or ALTER TABLE has given the table new trees since the snapshot of a transaction at
    /// repeatable read was taken: they hold nothing that it could read, so the transaction has to run again.
    ///
    /// # Errors
    /// 40001, as said.
    pub fn refuse_replaced(&self, table: &Table) -> Result<()> {
        if let Some(seen) = &self.seen_spaces {
            let committed = self.engine.catalog.current();
            let now = committed.by_id.get(&table.id).map(|now| now.space);
            let then = seen.get(&table.id).copied();
            return match then.is_some() && now.is_some() && then != now {
                true => Err(Error::Serialization(REPLACED)),
                false => Ok(()),
            };
        }
        let Some(seen) = &self.seen else { return Ok(()) };
        let committed = self.engine.catalog.current();
        match (seen.by_id.get(&table.id), committed.by_id.get(&table.id)) {
            (Some(then), Some(now)) if then.space != now.space => Err(Error::Serialization(REPLACED)),
            // An index has no entries for what the server's own snapshots did not see when it was made.
            (Some(then), Some(now)) if self.engine.is_reader() && then.version != now.version => {
                Err(Error::Serialization("a definition of the table"))
            }
            _ => Ok(()),
        }
    }

    /// Whether this version is one that the statement sees, or one before such a version.
    #[inline]
    pub(crate) fn sees(&self, version: Trailer) -> Result<bool> {
        if version.tx < self.low_water {
            return Ok(true);
        }
        if version.tx == self.own {
            return Ok(version.undo < self.upto);
        }
        if version.tx >= self.high_water {
            return Ok(false);
        }
        Ok(matches!(self.engine.status(version.tx)?, Status::Committed(at) if at <= self.snapshot))
    }

    /// Makes of a clustered entry's value (newest version and trailer) the row that the snapshot sees; false: none.
    #[inline]
    pub(crate) fn visible_version(&self, value: &mut Vec<u8>) -> Result<bool> {
        let trailer = Trailer::of(value)?;
        if !self.sees(trailer)? {
            return Ok(self.older_version(trailer, value)?.0);
        }
        value.truncate(value.len() - TRAILER);
        Ok(!trailer.deleted())
    }

    /// The version that the snapshot sees of the row under a key of a table's tree, if it was copied out of undo: into
    /// `row`; false: no row; None: it was not. The reader does not see the newest version. What its transaction has
    /// written is not there: while that runs, its versions of a row are the newest ones.
    fn copied_version(
        &self,
        (space, key, finger): (u32, &[u8], &mut Finger),
        newest: Trailer,
        row: &mut Vec<u8>,
    ) -> Option<bool> {
        match newest.tx == self.own {
            true => None,
            false => finger.get(&self.engine.versions, space, key, self.snapshot, row),
        }
    }

    /// As `older_version`, of the row under this key of a table's tree.
    #[cold]
    fn older_version_of(&self, (space, key): (u32, &[u8]), newest: Trailer, value: &mut Vec<u8>) -> Result<bool> {
        match self.copied_version((space, key, &mut Finger::default()), newest, value) {
            Some(is_row) => Ok(is_row),
            None => Ok(self.older_version(newest, value)?.0),
        }
    }

    /// Also says how many versions were walked.
    #[cold]
    fn older_version(&self, mut trailer: Trailer, value: &mut Vec<u8>) -> Result<(bool, u32)> {
        let mut bytes = Vec::new();
        let mut steps = 0u32;
        loop {
            // What the server has purged leads anywhere, also round and round: a reader looks whether it has.
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(STEPS_UNSETTLED) {
                self.settle(Ok(()))?;
            }
            if trailer.undo.is_none() {
                // Copied into a tree that is younger than the snapshot: what the snapshot saw is in the former tree.
                return Err(Error::Serialization(REPLACED));
            }
            let Some(record) = undo::read_before(&self.engine.pool, trailer.undo, &mut bytes)? else {
                return Ok((false, steps));
            };
            trailer = record.before;
            if self.sees(trailer)? {
                value.clear();
                value.extend_from_slice(record.row);
                return Ok((!trailer.deleted(), steps));
            }
        }
    }

    /// Brings in the values that lie on overflow pages, as far as they are wanted. Always true.
    #[inline]
    pub(crate) fn complete(&self, table: &Table, row: &mut Vec<u8>, columns: &Columns) -> Result<bool> {
        if large::is_external(row) {
            let pool = &self.engine.pool;
            *row = large::bring_in_some(pool, table, large::open(pool, table, row)?, columns)?.into_owned();
        }
        Ok(true)
    }
}

impl Engine {
    /// Status of a transaction.
    pub(crate) fn status(&self, tx: TxId) -> Result<Status> {
        match self.follow {
            None => self.txs.status(tx, |seq| self.cts.read(&self.pool, seq)),
            Some(_) => self.txs.noted_status(tx, |seq| self.followed_commit(seq)),
        }
    }

    /// Whether every snapshot in use, and every later one, sees what transaction `tx` made; `horizon` is one that purge
    /// has worked with.
    pub(crate) fn is_seen_by_all(&self, tx: TxId, horizon: Cts) -> Result<bool> {
        if tx < self.txs.low_water() {
            return Ok(true);
        }
        Ok(matches!(self.status(tx)?, Status::Committed(at) if at <= horizon))
    }

    /// The version before the one with this trailer, unless every snapshot of `horizon` and later sees that one.
    pub(crate) fn older_version(&self, trailer: Trailer, horizon: Cts) -> Result<Option<(Trailer, Vec<u8>)>> {
        match self.is_seen_by_all(trailer.tx, horizon)? {
            true => Ok(None),
            false => self.version_before(trailer),
        }
    }

    /// The version before the one with this trailer, for callers that look at all that are left: none where purge has
    /// passed its record (it may do so while this looks; it marks the record undone when it frees large values), or
    /// where the row began.
    pub(crate) fn version_before(&self, trailer: Trailer) -> Result<Option<(Trailer, Vec<u8>)>> {
        if trailer.undo.is_none() || self.segments.is_purged(trailer.undo) {
            return Ok(None);
        }
        match undo::read(&self.pool, trailer.undo) {
            Ok(record) => Ok((!record.kind.is_insert() && !record.undone).then_some((record.before, record.row))),
            Err(_) if self.segments.is_purged(trailer.undo) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Where a table's rows lie (None), or the entries of one of its indexes.
fn space_of(table: &Table, index: Option<usize>) -> u32 {
    index.map_or(table.space, |i| table.indexes[i].space)
}

/// A scan in progress. It holds neither latch nor page between batches.
pub struct RowScan {
    table: Arc<Table>,
    index: Option<usize>,
    columns: Columns,
    walk: Walk,
    leaf: LeafBatch,
    scratch: Vec<u8>,
    fetch: Fetch,
    /// Rows are made of the index's entries where that can be done.
    entries: Option<Entries>,
    older: Older,
}

/// Bytes after which a batch ends within its leaves, beside what was copied of these: rows with large values may be of
/// a gigabyte each. What is left of the leaves is then read again, as it may be out of date by the next call.
const BATCH_BYTES: usize = 4 << 20;

impl RowScan {
    fn of(table: &Arc<Table>, index: Option<usize>, walk: Walk) -> RowScan {
        RowScan {
            table: table.clone(),
            index,
            columns: Columns::All,
            walk,
            leaf: LeafBatch::new(),
            scratch: Vec::new(),
            fetch: Fetch::default(),
            entries: None,
            older: Older::default(),
        }
    }

    /// Only these columns will be read.
    pub fn columns(mut self, columns: &Columns) -> RowScan {
        self.columns = columns.clone();
        self
    }

    /// Keys will not be read: those of a batch's rows may be cut.
    pub fn without_keys(mut self) -> RowScan {
        if self.index.is_none() {
            self.walk = self.walk.without_keys();
        }
        self
    }

    /// Fetch about so many rows at a time (at least 1), for callers that want few.
    pub fn batch_rows(mut self, rows: usize) -> RowScan {
        self.walk.set_batch_rows(rows);
        self
    }

    /// From now on, fetch about so many rows at a time (at least 1).
    pub fn set_batch_rows(&mut self, rows: usize) {
        self.walk.set_batch_rows(rows);
    }

    /// Only columns are read that the entries of the index give ([`Table::columns_of_entries`]). So the row of an entry is
    /// visited only where it has changed of late; else it is made of the entry, and has NULL in all other columns.
    pub fn index_only(mut self) -> RowScan {
        self.entries = self.index.map(|_| Entries::default());
        self
    }

    /// Goes on with another range of the same tree.
    ///
    /// # Panics
    /// If it is a look-up.
    pub fn restart(&mut self, range: KeyRange) {
        self.walk.restart(range);
    }

    /// The next rows; false (and an empty batch) at the end. `reader` is the one by which the scan was made, or a
    /// clone.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn next_batch(&mut self, reader: &Reader, batch: &mut RowBatch) -> Result<bool> {
        let found = self.find_batch(reader, batch);
        reader.settle(found)
    }

    fn find_batch(&mut self, reader: &Reader, batch: &mut RowBatch) -> Result<bool> {
        batch.clear();
        while batch.is_empty() {
            reader.cancel.check()?;
            if !self.next_leaf(reader)? {
                return Ok(false);
            }
            match self.index {
                None => self.take_rows(reader, batch)?,
                Some(index) => self.take_entries(reader, index, batch)?,
            }
            self.older.finger.let_go();
        }
        Ok(true)
    }

    /// Copies the entries of the next leaf; where rows may be made of them it says of each whether its row has unsettled
    /// changes (`tx::unsettled`).
    fn next_leaf(&mut self, reader: &Reader) -> Result<bool> {
        let (engine, leaf) = (&*reader.engine, &mut self.leaf);
        let (Some(entries), Some(index)) = (&mut self.entries, self.index) else {
            return Ok(self.walk.next_batch(&engine.pool, leaf)?);
        };
        let (space, index) = (self.table.space, &self.table.indexes[index]);
        let settled = &mut entries.settled;
        settled.clear();
        if !engine.unsettled.covers(index.space) {
            return Ok(self.walk.next_batch(&engine.pool, leaf)?);
        }
        let more = self.walk.next_batch_looking(&engine.pool, leaf, &mut |leaf, from| {
            settled.truncate(from);
            settled.extend((from..leaf.len()).map(|i| engine.unsettled.is_settled(space, row_key(leaf, i))));
        })?;
        if !engine.catalog.keeps_up(&self.table, index) {
            settled.clear();
        }
        Ok(more)
    }

    /// The batch takes over the bytes that the leaf's entries were copied to: a row that needs no other version is not
    /// copied again.
    fn take_rows(&mut self, reader: &Reader, batch: &mut RowBatch) -> Result<()> {
        self.leaf.swap_bytes(batch.bytes_mut());
        let copied = batch.bytes();
        for i in 0..self.leaf.len() {
            let (start, key_end, end) = self.leaf.place(i);
            match self.bring_up(reader, batch, (start, key_end, end))? {
                None => {}
                Some(Brought::InPlace(row_end)) => batch.push_place((start, key_end), (key_end, row_end)),
                Some(Brought::InScratch) => {
                    batch.push_row((start, key_end), &self.scratch);
                    if batch.bytes() - copied >= BATCH_BYTES && i + 1 < self.leaf.len() {
                        self.walk.return_to(&self.leaf.whole_key(batch.part(start, key_end)));
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The rows of the leaf's entries, in the order of the entries, but fetched in the order of their keys.
    fn take_entries(&mut self, reader: &Reader, index: usize, batch: &mut RowBatch) -> Result<()> {
        let table = self.table.clone();
        self.fetch(reader, batch)?;
        let fetched = batch.bytes();
        let mut have = std::mem::take(&mut self.fetch.key);
        for i in 0..self.leaf.len() {
            if self.is_settled(i) {
                self.push_entry(index, i, batch)?;
                continue;
            }
            let Some((start, key_end, end)) = self.fetch.places[i] else {
                continue;
            };
            let Some(brought) = self.bring_up(reader, batch, (start, key_end, end))? else {
                continue;
            };
            let row = match brought {
                Brought::InPlace(row_end) => batch.part(key_end, row_end),
                Brought::InScratch => &self.scratch[..],
            };
            table.index_key_of_row(&table.indexes[index], row, &mut have)?;
            if have != split_entry(self.leaf.key(i), self.leaf.value(i))?.0 {
                continue;
            }
            match brought {
                Brought::InPlace(row_end) => batch.push_place((start, key_end), (key_end, row_end)),
                Brought::InScratch => batch.push_row((start, key_end), &self.scratch),
            }
            if batch.bytes() - fetched >= BATCH_BYTES && i + 1 < self.leaf.len() {
                self.walk.return_to(self.leaf.key(i));
                break;
            }
        }
        self.fetch.key = have;
        Ok(())
    }

    /// Whether entry `i` of the leaf says all.
    #[inline]
    fn is_settled(&self, i: usize) -> bool {
        self.entries.as_ref().is_some_and(|e| e.settled.get(i) == Some(&true))
    }

    /// Appends the row that is made of entry `i`.
    fn push_entry(&mut self, index: usize, i: usize, batch: &mut RowBatch) -> Result<()> {
        let (entry, (_, key)) = (self.leaf.key(i), split_entry(self.leaf.key(i), self.leaf.value(i))?);
        let scratch = &mut self.entries.get_or_insert_default().scratch;
        let bytes = batch.bytes_mut();
        let start = bytes.len() as u32;
        bytes.extend_from_slice(key);
        let key_end = bytes.len() as u32;
        let rows = self.table.entry_rows(index);
        rows.push(self.table.layout(), entry, scratch, bytes)?;
        let row = (key_end, bytes.len() as u32);
        batch.push_place((start, key_end), row);
        Ok(())
    }

    /// Copies what stands under the keys of the leaf's entries into the batch, but for those that say all.
    fn fetch(&mut self, reader: &Reader, batch: &mut RowBatch) -> Result<()> {
        let Fetch { order, places, .. } = &mut self.fetch;
        let (leaf, settled) = (&self.leaf, self.entries.as_ref().map_or(&[][..], |e| &e.settled));
        order.clear();
        for i in (0..leaf.len()).filter(|i| settled.get(*i) != Some(&true)) {
            let (_, key) = split_entry(leaf.key(i), leaf.value(i))?;
            order.push((head(key), i as u32));
        }
        places.clear();
        places.resize(leaf.len(), None);
        let key = |i: usize| row_key(leaf, i);
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1 as usize).cmp(key(b.1 as usize))));
        let tree = BTree {
            space: self.table.space,
        };
        tree.get_many(&reader.engine.pool, (key, &order[..]), batch.bytes_mut(), places)?;
        Ok(())
    }

    /// Makes of a clustered entry's value in the batch the row that the snapshot sees; None where it sees none.
    #[inline]
    fn bring_up(&mut self, reader: &Reader, batch: &RowBatch, (start, from, to): Place) -> Result<Option<Brought>> {
        let value = batch.part(from, to);
        let trailer = Trailer::of(value)?;
        let is_seen = reader.sees(trailer)?;
        if is_seen && !large::is_external(value) {
            return Ok((!trailer.deleted()).then_some(Brought::InPlace(to - TRAILER as u32)));
        }
        let seen = match is_seen {
            true => {
                copy_to(&value[..value.len() - TRAILER], &mut self.scratch);
                !trailer.deleted()
            }
            false => self.bring_older(reader, (batch.part(start, from), value), trailer)?,
        };
        let seen = seen && reader.complete(&self.table, &mut self.scratch, &self.columns)?;
        Ok(seen.then_some(Brought::InScratch))
    }

    /// Puts the row that the snapshot sees into the scratch, of an entry of which it does not see the newest version.
    fn bring_older(&mut self, reader: &Reader, (key, value): (&[u8], &[u8]), newest: Trailer) -> Result<bool> {
        let Older {
            finger,
            key: whole,
            walked,
        } = &mut self.older;
        let key = match self.index {
            None => self.leaf.whole_key_in(key, whole),
            Some(_) => key,
        };
        if let Some(is_row) = reader.copied_version((self.table.space, key, finger), newest, &mut self.scratch) {
            return Ok(is_row);
        }
        // What the reader's own transaction has written is not held, as in `copied_version`.
        let is_others = newest.tx != reader.own;
        if is_others && let Some(is_row) = walked.get(key, &mut self.scratch) {
            return Ok(is_row);
        }
        copy_to(value, &mut self.scratch);
        let (is_row, steps) = reader.older_version(newest, &mut self.scratch)?;
        if self.index.is_some() && is_others {
            walked.note(key, is_row.then_some(&self.scratch[..]), steps);
        }
        Ok(is_row)
    }
}

/// Where a row lies that was brought up to what the snapshot sees.
enum Brought {
    /// Where it was, up to here.
    InPlace(u32),
    /// In the scan's scratch.
    InScratch,
}

/// How the rows of a leaf's entries are fetched: memory to use.
#[derive(Default)]
struct Fetch {
    /// The entries by their rows' keys: how a key begins, and which entry's it is.
    order: Vec<(u64, u32)>,
    /// What was found of each entry's row.
    places: Vec<Option<Place>>,
    /// The index key of a row.
    key: Vec<u8>,
}

/// What a scan needs to find versions that its snapshot sees: memory to use.
#[derive(Default)]
struct Older {
    finger: Finger,
    key: Vec<u8>,
    walked: WalkedRows,
}

fn copy_to(bytes: &[u8], to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(bytes);
}

/// What a scan needs that makes rows of entries.
#[derive(Default)]
struct Entries {
    /// Of each entry of the leaf, whether its row has no unsettled changes; empty where nothing is known of them.
    settled: Vec<bool>,
    scratch: EntryScratch,
}

/// How a key begins, as a number: keys are in the order of these, as far as they go.
fn head(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// The primary key of the row of an entry that has its lengths.
fn row_key(leaf: &LeafBatch, i: usize) -> &[u8] {
    split_entry(leaf.key(i), leaf.value(i)).map_or(&[], |(_, key)| key)
}

/// Index columns and primary key of an index entry; its value is the length of the first part.
pub(crate) fn split_entry<'a>(entry: &'a [u8], value: &[u8]) -> Result<(&'a [u8], &'a [u8])> {
    let split = match value {
        [low, high] => entry.split_at_checked(usize::from(u16::from_le_bytes([*low, *high]))),
        _ => None,
    };
    split.ok_or_else(|| Error::Corrupt("index entry without its lengths".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;

    /// Its caller looks between steps whether the statement was cancelled.
    #[test]
    fn a_look_up_of_keys_that_are_not_there_goes_in_steps() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = one_table(dir.path());
        let tx = engine.begin(Isolation::ReadCommitted);
        let mut prefixes = Vec::new();
        for id in 0..5_000 {
            let (mut row, mut key) = (Vec::new(), Vec::new());
            table.layout().encode(&[Datum::Int4(id)], &mut row).expect("a row");
            table.key_of_row(&row, &mut key).expect("a key");
            prefixes.push(key);
        }
        let mut scan = tx.reader().look_up(&table, None, (prefixes.into(), 0..5_000));
        let mut steps = 0;
        while scan.next_leaf(tx.reader()).expect("read") {
            assert_eq!(scan.leaf.len(), 0);
            steps += 1;
        }
        assert!(steps >= 4, "{steps}");
        drop(tx);
        engine.shutdown().expect("shut down");
    }

    /// A database whose work in the background stands still, with a table of one column, its key.
    fn one_table(dir: &std::path::Path) -> (Arc<Engine>, Arc<Table>) {
        let mut options = EngineOptions::new(dir.join("data"), MemoryKind::Dram, 24 << 20);
        options.background = false;
        let engine = Engine::open(options).expect("the database opens");
        let column = ColumnDef {
            name: "id".into(),
            ty: ColumnType::Int4,
            not_null: true,
            default: None,
        };
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let new = NewTable {
            name: "t".into(),
            columns: vec![column],
            primary_key: Some(("p".into(), vec![0])),
            indexes: vec![],
        };
        let table = tx.create_table(new).expect("made");
        tx.commit().expect("committed");
        drop(tx);
        (engine, table)
    }

    /// A transaction inserts a row, returns to a savepoint and ends, so nothing of it is left and it had left no trace
    /// of its end. A reader had copied the row before. Purge, which knew nothing of the transaction, raised the
    /// low-water mark over its number, and the reader took the row for one that all see.
    #[test]
    fn a_row_taken_back_to_a_savepoint_is_not_seen_by_a_reader_that_copied_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = one_table(dir.path());
        let mut tx = engine.begin(Isolation::ReadCommitted);
        tx.rollback().expect("ended");
        for (id, commit) in [(1, true), (2, false)] {
            let (mut row, mut key, mut copy) = (Vec::new(), Vec::new(), Vec::new());
            table.layout().encode(&[Datum::Int4(id)], &mut row).expect("a row");
            table.key_of_row(&row, &mut key).expect("a key");
            tx.begin(Isolation::ReadCommitted);
            let savepoint = tx.savepoint();
            tx.insert(&table, &row).expect("inserted");
            let other = engine.begin(Isolation::ReadCommitted);
            assert!(
                BTree { space: table.space }
                    .get(&engine.pool, &key, &mut copy)
                    .expect("read")
            );
            tx.rollback_to(&savepoint).expect("taken back");
            if commit { tx.commit() } else { tx.rollback() }.expect("ended");
            engine.vacuum().expect("purged");
            assert!(
                !other.reader().visible_version(&mut copy).expect("read"),
                "a row that was never committed"
            );
        }
        drop(tx);
        engine.shutdown().expect("shut down");
    }
}
