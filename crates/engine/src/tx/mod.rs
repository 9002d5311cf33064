//! Transactions.
//!
//! 1. `begin` takes a snapshot (a load of the log's durable position, published in the session's own slot). Nothing
//!    else.
//! 2. The first write draws a number (`status`) and takes an undo segment, which the session keeps for its next ones.
//! 3. Each row change is one mini-transaction of leaf and undo page (`write`).
//! 4. Commit is one mini-transaction: CTS slot and segment header. Inside the log's reservation the commit timestamp
//!    (its LSN) is patched in and the status word set. Then the waiters are woken; then we wait until the log is
//!    durable. No snapshot sees the commit before that, and a transaction that builds on it commits behind it in the
//!    log.
//! 5. Rollback, whole or to a savepoint, walks the undo records back (`rollback`).
//!
//! Transactions that only read end without a trace.

mod carry;
pub(crate) mod cts;
mod define;
mod follow;
mod index;
mod leave;
pub(crate) mod locks;
pub(crate) mod needed;
mod newest;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod rollback;
pub(crate) mod slots;
mod statistics;
pub(crate) mod status;
mod together;
pub(crate) mod unsettled;
mod walk;
mod walked;
mod write;

pub use carry::CarriedSnapshot;
pub use leave::TakenUp;
pub use locks::CancelFlag;
pub use read::{Reader, RowScan};
pub(crate) use status::Status;
pub use together::{NewRows, Refused};
pub use write::Decide;

use crate::api::{Columns, Direction, Isolation, RowBatch};
use crate::catalog::Table;
use crate::catalog::known_statistics::NewStatistics;
use crate::catalog::state::Overlay;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::losers::{Locks, Loser, Origin};
use crate::memory::{Account, Charge};
use crate::pool::Need;
use crate::undo::{self, Ended, UndoPointer, Writer};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, Lsn, TxId};
use locks::{Waiter, Waits};
use read::ALL_OWN;
use rollback::Rollback;
use slots::{Lease, SlotIndex, Waiting};
use std::sync::Arc;

/// A place in a transaction to which it can return.
#[derive(Debug, Clone)]
pub struct Savepoint {
    /// Undo record that was the newest.
    undo: UndoPointer,
    /// Definition changes made before.
    definitions: usize,
    /// Statistics written before.
    analyzed: usize,
    /// Rows changed before.
    rows: u64,
}

/// Lists and buffers that outlive a transaction, so that the next allocates nothing.
#[derive(Default)]
struct Scratch {
    old: Vec<u8>,
    value: Vec<u8>,
    record: Vec<u8>,
}

/// A transaction of one session. Reusable: after commit or rollback, `begin` starts the next.
pub struct Tx {
    reader: Reader,
    isolation: Isolation,
    active: bool,
    /// Repeatable read: whether the first statement has taken the snapshot.
    snapshot_fixed: bool,
    read_only: bool,
    lock_timeout: Option<rt::Nanos>,
    /// Undo segment, kept from transaction to transaction.
    writer: Option<Writer>,
    /// Newest undo record; none: nothing is written.
    last_undo: UndoPointer,
    /// Whether records were taken back: then readers may have met versions of this transaction, though none is left.
    taken_back: bool,
    /// Greatest timestamp of a commit that this transaction met behind its snapshot. Such a commit may not be durable
    /// yet: nothing that builds on it is shown to the client before it is.
    built_on: AtomicU64,
    /// `Waits::returns` when this transaction last came back from waiting: before it looked at whatever it waits for
    /// next.
    looked: AtomicU64,
    /// Position of the log behind which the sequence values that it drew are not given again: durable before it
    /// commits.
    drawn: Lsn,
    table_locks: Vec<u64>,
    /// Tables (id, version) known to be current; their locks are held.
    checked: Vec<(u32, u64)>,
    row_locks: Vec<Vec<u8>>,
    /// Memory of the row locks.
    lock_memory: Charge,
    account: Arc<Account>,
    /// Tables (ids) that suspended queries of the session read: definitions leave them alone.
    in_use: Vec<u32>,
    pub(crate) overlay: Overlay,
    /// Statistics that it has written.
    analyzed: Vec<NewStatistics>,
    /// Tables (ids) and how many of their rows it has changed; those that were taken back are counted.
    changed: Vec<(u32, u64)>,
    /// How often this session has set a sequence, which no rollback takes back.
    sequences_set: u64,
    /// How many rows it has changed, each time counted, without those that were taken back.
    rows: u64,
    scratch: Scratch,
    committed_at: Arc<AtomicU64>,
}

impl Tx {
    pub(crate) fn new(engine: &Arc<Engine>, lease: Arc<Lease>, account: Arc<Account>) -> Tx {
        Tx {
            reader: Reader::with(engine, lease),
            isolation: Isolation::ReadCommitted,
            active: false,
            snapshot_fixed: false,
            read_only: false,
            lock_timeout: None,
            writer: None,
            last_undo: UndoPointer::NONE,
            taken_back: false,
            built_on: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            drawn: Lsn::ZERO,
            table_locks: Vec::new(),
            checked: Vec::new(),
            row_locks: Vec::new(),
            lock_memory: Charge::new(&account),
            account,
            in_use: Vec::new(),
            overlay: Overlay::default(),
            analyzed: Vec::new(),
            changed: Vec::new(),
            sequences_set: 0,
            rows: 0,
            scratch: Scratch::default(),
            committed_at: Arc::default(),
        }
    }

    /// Starts a transaction. Call `begin_statement` before each statement.
    pub fn begin(&mut self, isolation: Isolation) {
        assert!(!self.active, "the former transaction has not ended");
        assert!(
            self.reader.own.is_none() && self.last_undo.is_none() && !self.taken_back,
            "the former transaction has left its number and its changes"
        );
        self.isolation = isolation;
        self.active = true;
        self.snapshot_fixed = false;
        (self.reader.seen, self.reader.seen_spaces) = (None, None);
        self.reader.upto = ALL_OWN;
        self.reader.refresh();
    }

    /// Starts a statement: at read committed it sees what is committed now, at repeatable read what was when the first
    /// statement started. What the transaction has built on is then durable, so the snapshot sees it. Of the
    /// transaction's own changes it sees those of former statements, none of its own and of later ones.
    pub fn begin_statement(&mut self) {
        self.reader.upto = self.written_upto();
        // A log that has failed is reported by the next write; reading goes on.
        if !planted(Fault::BuiltOnWait) {
            self.wait_built_on().ok();
        }
        if self.isolation == Isolation::RepeatableRead {
            if std::mem::replace(&mut self.snapshot_fixed, true) {
                return;
            }
            return self.reader.refresh_with_catalog();
        }
        self.reader.refresh();
    }

    /// Ends a statement: the snapshot is given up, unless it is the transaction's, so that a session that idles in its
    /// transaction does not keep purge from its work. Nothing may be read until the next `begin_statement`; readers
    /// cloned before go on.
    pub fn end_statement(&mut self) {
        if self.isolation == Isolation::ReadCommitted || !self.snapshot_fixed {
            self.reader.withdraw();
        }
    }

    /// Whether its statements see what the first one did: at repeatable read, once that has begun.
    pub fn has_fixed_snapshot(&self) -> bool {
        self.isolation == Isolation::RepeatableRead && self.snapshot_fixed
    }

    /// Takes a snapshot where there is none, between statements: for planning, which may look at rows.
    pub fn ensure_snapshot(&mut self) {
        if self.active && self.reader.snapshot == Cts::ZERO {
            self.reader.refresh();
        }
    }

    /// Where the next undo record goes: what lies before it was written by now.
    fn written_upto(&self) -> UndoPointer {
        self.writer.as_ref().map_or(UndoPointer::NONE, Writer::next_pointer)
    }

    /// Reads from here on as the statement did from which `view` was cloned: by its snapshot, and without the changes
    /// that this transaction has made since. Until `leave_view`, which has to come before `view` is dropped.
    pub fn enter_view(&mut self, view: &Reader) {
        assert!(Arc::ptr_eq(&self.reader.lease, &view.lease), "another transaction's");
        self.reader.snapshot = view.snapshot;
        (self.reader.low_water, self.reader.high_water) = (view.low_water, view.high_water);
        self.reader.upto = view.upto;
    }

    /// Reads again by the snapshot that was taken last.
    pub fn leave_view(&mut self) {
        self.reader.snapshot = self.engine().slots.published(self.reader.slot);
        self.reader.high_water = self.engine().txs.next();
        self.reader.upto = self.written_upto();
    }

    /// Waits until every commit that this transaction has met is durable: before rows that were read by `modify` are
    /// shown to the client ahead of a commit (RETURNING in a transaction block). Usually a comparison.
    ///
    /// # Errors
    /// The log has failed, or its drive does not answer.
    pub fn wait_built_on(&self) -> Result<()> {
        self.wait_durable(self.built_on().position())
    }

    /// Greatest commit that was met behind the snapshot.
    fn built_on(&self) -> Cts {
        Cts::from_raw(self.built_on.load(Ordering::Relaxed))
    }

    fn wait_durable(&self, at: Lsn) -> Result<()> {
        if at > self.engine().storage.durable().position() {
            self.engine().storage.wait_durable(at)
        } else {
            Ok(())
        }
    }

    /// Whether `begin` was called and neither commit nor rollback since.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Position of the log up to which the current statement sees commits.
    pub fn snapshot(&self) -> u64 {
        self.reader.snapshot.raw()
    }

    /// Where the timestamp of this session's last commit is noted as soon as it has its place in the log, which is
    /// before it is durable. 0: none yet. For tools and tests that want to know it even of a session that does not come
    /// back.
    pub fn committed_at(&self) -> Arc<AtomicU64> {
        self.committed_at.clone()
    }

    /// Whether the transaction has changed anything.
    pub fn has_written(&self) -> bool {
        !self.last_undo.is_none()
    }

    /// How often this session has set a sequence, which no rollback takes back.
    pub fn sequences_set(&self) -> u64 {
        self.sequences_set
    }

    /// How many rows the transaction has changed, each time counted, without those that were taken back.
    pub fn rows_changed(&self) -> u64 {
        self.rows
    }

    /// Whether it has made definitions or statistics.
    pub fn has_defined(&self) -> bool {
        let alone = || self.engine().table_locks.is_alone(&self.table_locks, self.reader.own);
        !self.overlay.is_empty() || !self.analyzed.is_empty() || alone()
    }

    /// Isolation level.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Number of the transaction, once it has written or locked.
    pub fn id(&self) -> Option<TxId> {
        (!self.reader.own.is_none()).then_some(self.reader.own)
    }

    /// Refuses definitions of these tables (by id; 55006) from here on, until told otherwise: queries that read them
    /// are suspended.
    pub fn set_in_use(&mut self, tables: Vec<u32>) {
        self.in_use = tables;
    }

    /// Refuses writes from here on (25006), until set otherwise.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// How long to wait for a lock, in milliseconds; 0: without end.
    pub fn set_lock_timeout(&mut self, milliseconds: u64) {
        self.lock_timeout = (milliseconds > 0).then(|| rt::Nanos::from_millis(milliseconds));
    }

    /// The flag by which another thread stops what this transaction waits for or scans.
    pub fn cancel_flag(&self) -> Arc<CancelFlag> {
        self.reader.cancel.clone()
    }

    /// From here on this flag stops it: another transaction's, on whose behalf it works.
    pub fn set_cancel_flag(&mut self, cancel: &Arc<CancelFlag>) {
        self.reader.cancel = cancel.clone();
    }

    /// What the session may gather in memory.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// What this transaction reads by.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// A reader of what is committed now, beside the statement's snapshot: to evaluate a condition again about a row
    /// that has changed since. It sees every commit that this transaction has met, durable or not: so the newest
    /// version of that row, and what came with it. Of the transaction's own changes it sees what the statement does.
    ///
    /// # Errors
    /// As [`Tx::wait_built_on`]; 57014.
    pub fn reader_of_now(&self) -> Result<Reader> {
        self.wait_until_bases_are_whole()?;
        let (engine, met) = (self.engine(), self.built_on());
        // It holds the statement's snapshot, and so all that a younger one sees.
        let mut reader = self.reader.clone();
        reader.go_on_to(|| engine.storage.durable().max(met));
        Ok(reader)
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.reader.engine
    }

    /// As `Reader::get`.
    ///
    /// # Errors
    /// As [`Reader::get`].
    #[inline]
    pub fn get(&self, table: &Table, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        self.reader.get(table, key, row)
    }

    /// As `Reader::get_columns`.
    ///
    /// # Errors
    /// Those of reading.
    pub fn get_columns(&self, table: &Table, key: &[u8], columns: &Columns, row: &mut Vec<u8>) -> Result<bool> {
        self.reader.get_columns(table, key, columns, row)
    }

    /// Brings in what a row that `change_reading` gave lacks. This transaction has to have the row still: locked,
    /// changed or seen.
    ///
    /// # Errors
    /// Those of reading.
    pub fn bring_in(&self, table: &Table, row: &mut Vec<u8>) -> Result<()> {
        self.reader.complete(table, row, &Columns::All).map(drop)
    }

    /// As `Reader::scan`; deliver with `scan.next_batch(tx.reader(), ..)`.
    pub fn scan(&self, table: &Arc<Table>, range: KeyRange, direction: Direction) -> RowScan {
        self.reader.scan(table, range, direction)
    }

    /// As `Reader::index_scan`.
    pub fn index_scan(&self, table: &Arc<Table>, index: usize, range: KeyRange, direction: Direction) -> RowScan {
        self.reader.index_scan(table, index, range, direction)
    }

    /// All rows of a range, for small ones.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn collect(&self, table: &Arc<Table>, range: KeyRange) -> Result<Vec<Vec<u8>>> {
        let (mut scan, mut batch, mut rows) =
            (self.scan(table, range, Direction::Forward), RowBatch::new(), Vec::new());
        while scan.next_batch(&self.reader, &mut batch)? {
            rows.extend((0..batch.len()).map(|i| batch.row(i).to_vec()));
        }
        Ok(rows)
    }

    /// Marks a place to return to.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint {
            undo: self.last_undo,
            definitions: self.overlay.len(),
            analyzed: self.analyzed.len(),
            rows: self.rows,
        }
    }

    /// Makes the changes durable and visible. On an error nothing of them will be visible, except where the log itself
    /// has failed: then it is unknown until the restart that the error asks for.
    ///
    /// # Errors
    /// Those of the log, see above; a version that the transaction has met could not be made durable.
    pub fn commit(&mut self) -> Result<()> {
        self.active = false;
        self.reader.withdraw();
        if self.last_undo.is_none() {
            let durable = self.wait_built_on().and(self.wait_durable(self.drawn));
            if self.reader.own.is_none() {
                self.drawn = Lsn::ZERO;
                return durable;
            }
            if self.taken_back {
                // Nothing is left, but its end has to be noted: readers may still hold a version that was taken back.
                return self.rollback().and(durable);
            }
            self.engine().txs.set_over(self.reader.own, self.reader.slot);
            self.release();
            return durable;
        }
        match self.log_commit() {
            Ok(at) => {
                let news = self.news_of_tables();
                let durable = self.acknowledge(at);
                self.tell_of_tables(news, at);
                durable
            }
            Err(error) => {
                self.rollback().ok();
                Err(error)
            }
        }
    }

    /// The commit's mini-transaction; its LSN.
    fn log_commit(&mut self) -> Result<Cts> {
        let Reader { engine, own, slot, .. } = &self.reader;
        let (engine, own, slot) = (&**engine, *own, *slot);
        assert!(!own.is_none(), "a transaction with undo records has a number");
        let writer = self
            .writer
            .as_ref()
            .ok_or_else(|| Error::Internal("a writer without a segment".into()))?;
        let is_on_top = mark::is_on() && self.is_base_incomplete();
        self.wait_until_bases_are_whole()?;
        let _need = engine.pool.begin_need(Need::Commit);
        engine.cts.make(&engine.pool, own)?;
        let mut m = engine.pool.mtr();
        let page = engine.cts.latch(&mut m, own)?;
        let header = undo::latch_header(&mut m, writer.segment.number)?;
        if !planted(Fault::CommitEnd) {
            undo::set_end(&mut m, header, writer.position, own);
        }
        engine.cts.mark(&mut m, page, own);
        let mut at = Cts::ZERO;
        let committed_at = &self.committed_at;
        m.commit_with(&mut |end, patch| {
            at = Cts::at(end);
            if planted(Fault::StaleCts) {
                at = engine.storage.durable();
            }
            committed_at.as_raw().store(at.raw(), Ordering::Relaxed);
            patch.set_all(at.raw());
            engine.txs.set_committed(own, slot, at);
        });
        if self.overlay.is_empty() {
            writer.segment.note_end(Ended {
                end: writer.position,
                at,
                tx: own,
            });
        }
        if is_on_top {
            mark::pass(Mark::BaseIncomplete);
        }
        Ok(at)
    }

    fn is_base_incomplete(&self) -> bool {
        let log = self.engine().storage.0.log();
        let base = self.built_on().position();
        base > log.durable() && log.is_incomplete(base)
    }

    /// A commit that this transaction has met is seen from its place in the log on, and its redo may still be being
    /// copied: a process that dies there makes it void. This one must not survive it.
    fn wait_until_bases_are_whole(&self) -> Result<()> {
        let log = self.engine().storage.0.log();
        match self.built_on().position() {
            base if base > log.durable() && !planted(Fault::BaseIncomplete) => Ok(log.wait_complete(base)?),
            _ => Ok(()),
        }
    }

    /// Waits until the commit is durable. Transactions that wait for rows go on before that; definitions are published
    /// after it.
    fn acknowledge(&mut self, at: Cts) -> Result<()> {
        let engine = self.engine().clone();
        if planted(Fault::EarlyAnswer) && self.overlay.is_empty() {
            self.release();
            return Ok(());
        }
        if self.overlay.is_empty() {
            self.release();
            return engine.storage.wait_durable(at.position());
        }
        let durable = engine.storage.wait_durable(at.position());
        mark::pass(Mark::DefinitionDurable);
        // What is only late stands in the log: a transaction that uses it is behind it there, and would be lost with
        // it.
        if matches!(durable, Ok(()) | Err(Error::OutcomeUnknown(_) | Error::DiskFull(_))) {
            engine.catalog.publish(&self.overlay);
        }
        self.note_definitions();
        self.release();
        durable
    }

    /// After definitions are published: transactions that took a snapshot before that, however late, may still use the
    /// former ones, so for purge the transaction ends here, at a position that none of their snapshots has reached.
    fn note_definitions(&self) {
        let Some(Writer { segment, position }) = &self.writer else {
            return;
        };
        let (engine, own) = (self.engine(), self.reader.own);
        if planted(Fault::EarlyDefinition) {
            let at = Cts::from_raw(self.committed_at.as_raw().load(Ordering::Relaxed));
            return segment.note_end(Ended {
                end: *position,
                at,
                tx: own,
            });
        }
        let _need = engine.pool.begin_need(Need::Commit);
        match rollback::log_end(engine, segment, *position, own) {
            Ok(at) => drop(engine.storage.wait_durable(at)),
            Err(_) => segment.note_end(Ended {
                end: *position,
                at: Cts::at(engine.storage.0.log().tail().advance(1)),
                tx: own,
            }),
        }
    }

    /// Takes all changes back. Of many the background does that: this returns at once, and other transactions take the
    /// rows back that they want.
    ///
    /// # Errors
    /// Those of reading and writing pages. The transaction stays a loser then, which the background takes back.
    pub fn rollback(&mut self) -> Result<()> {
        self.active = false;
        self.reader.withdraw();
        if self.reader.own.is_none() {
            self.drawn = Lsn::ZERO;
            return Ok(());
        }
        if self.is_large() && self.engine().losers.admit(self.is_short()) {
            self.hand_over();
            return Ok(());
        }
        match self.take_back_all() {
            Ok(()) => {
                self.engine().txs.set_over(self.reader.own, self.reader.slot);
                self.release();
                Ok(())
            }
            Err(error) => {
                self.give_up(&error);
                Err(error)
            }
        }
    }

    fn take_back_all(&mut self) -> Result<()> {
        self.take_back(UndoPointer::NONE)?;
        if !self.taken_back {
            return Ok(());
        }
        let writer = self
            .writer
            .as_ref()
            .ok_or_else(|| Error::Internal("a writer without a segment".into()))?;
        let engine = self.engine();
        let _need = engine.pool.begin_need(Need::Cleanup);
        rollback::log_end(engine, &writer.segment, writer.position, self.reader.own)?;
        Ok(())
    }

    /// Takes back all changes since the savepoint, which stays usable.
    ///
    /// # Errors
    /// As [`Tx::rollback`].
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        assert!(
            savepoint.undo <= self.last_undo
                && savepoint.definitions <= self.overlay.len()
                && savepoint.analyzed <= self.analyzed.len(),
            "a transaction returns to a savepoint of its own that it has not left"
        );
        let changed = self.last_undo != savepoint.undo;
        self.take_back(savepoint.undo)?;
        if changed {
            let own = (self.reader.own, self.reader.slot);
            self.engine().waits.returned(&self.engine().slots, own);
        }
        self.overlay.truncate(savepoint.definitions);
        self.analyzed.truncate(savepoint.analyzed);
        self.rows = savepoint.rows;
        self.checked.clear();
        Ok(())
    }

    fn take_back(&mut self, to: UndoPointer) -> Result<()> {
        let engine = self.engine().clone();
        let _need = engine.pool.begin_need(Need::Cleanup);
        let lease = self.reader.lease.clone();
        let mut rollback = Rollback::new(&engine, &lease);
        while self.last_undo != to {
            let pointer = self.last_undo;
            self.taken_back = true;
            self.last_undo = rollback.take_back_one(pointer)?;
        }
        Ok(())
    }

    /// Whether the client is not to wait for the rollback. A transaction with definitions holds names and tables alone,
    /// and is taken back at once; so is one of an engine that stops.
    fn is_large(&self) -> bool {
        let engine = self.engine();
        !self.last_undo.is_none()
            && self.rows >= engine.rollback_rows
            && self.overlay.is_empty()
            && !engine.is_stopping()
            && !engine.table_locks.is_alone(&self.table_locks, self.reader.own)
    }

    /// Whether it is done in a moment, once it is begun.
    fn is_short(&self) -> bool {
        self.rows < self.engine().short_rollback_rows
    }

    /// Leaves the rollback to the background, which has admitted it. Rows that were locked explicitly are free, and
    /// whoever waits for this transaction looks again: a row that it has changed is taken back on demand. It shares its
    /// tables until it is over, so that no definition meets its rows.
    fn hand_over(&mut self) {
        let engine = self.engine().clone();
        for name in self.row_locks.drain(..) {
            engine.row_locks.release(&name, self.reader.own);
        }
        self.lock_memory.clear();
        if let Some(loser) = self.become_loser(Origin::HandedOver) {
            engine.losers.hand_over(loser);
        }
        mark::pass(Mark::RollbackLeft);
        engine
            .waits
            .returned(&engine.slots, (self.reader.own, self.reader.slot));
        self.leave_number();
    }

    /// The rollback has failed: rows and locks stay with this number until the background has got through with it, or a
    /// restart. The session goes on with another slot and segment.
    fn give_up(&mut self, error: &Error) {
        let engine = self.engine().clone();
        if let Some(loser) = self.become_loser(Origin::GivenUp) {
            engine.losers.give_up(loser, error);
        }
        self.leave_number();
    }

    /// This transaction as one that is to be taken back, with its segment and locks.
    fn become_loser(&mut self, origin: Origin) -> Option<Loser> {
        let Writer { segment, position } = self.writer.take()?;
        let locks = Locks {
            tables: std::mem::take(&mut self.table_locks),
            rows: std::mem::take(&mut self.row_locks),
            _memory: Some(std::mem::replace(&mut self.lock_memory, Charge::new(&self.account))),
        };
        let (own, lease) = ((self.reader.own, origin), self.reader.lease.clone());
        Some(Loser::of_this_run(
            own,
            lease,
            segment,
            (self.last_undo, position),
            locks,
        ))
    }

    /// The number stays with a loser, and so does the slot.
    fn leave_number(&mut self) {
        let engine = self.engine().clone();
        self.reader.lease = engine.slots.lease_always();
        self.reader.slot = self.reader.lease.slot;
        self.reader.own = TxId::NONE;
        self.last_undo = UndoPointer::NONE;
        self.taken_back = false;
        self.table_locks.clear();
        self.checked.clear();
        self.row_locks.clear();
        self.overlay.truncate(0);
        self.analyzed.clear();
        self.changed.clear();
        self.rows = 0;
        self.built_on.store(0, Ordering::Relaxed);
        self.drawn = Lsn::ZERO;
    }

    /// Frees all locks and wakes the waiters.
    fn release(&mut self) {
        let Reader { engine, own, slot, .. } = &self.reader;
        if !self.table_locks.is_empty() {
            engine.table_locks.release(&self.table_locks, *own);
        }
        for name in &self.row_locks {
            engine.row_locks.release(name, *own);
        }
        Waits::ended(&engine.slots, *slot);
        // Not within a transaction: the positions of its records say in which order they were written.
        if let Some(full) = self.writer.take_if(|writer| !own.is_none() && !writer.has_room()) {
            engine.segments.give_back(full);
        }
        self.table_locks.clear();
        self.checked.clear();
        self.row_locks.clear();
        self.lock_memory.clear();
        self.overlay.truncate(0);
        self.analyzed.clear();
        self.changed.clear();
        self.rows = 0;
        self.reader.own = TxId::NONE;
        self.last_undo = UndoPointer::NONE;
        self.taken_back = false;
        self.built_on.store(0, Ordering::Relaxed);
        self.drawn = Lsn::ZERO;
    }

    // ---- what writers need ----

    /// Number of this transaction, drawn at the first need.
    pub(crate) fn own_id(&mut self) -> Result<TxId> {
        if self.reader.own.is_none() {
            self.engine().refuse_reader("a statement that writes or locks")?;
            if !self.active {
                return Err(Error::WrongState("no transaction is in progress".into()));
            }
            let engine = self.engine().clone();
            self.reader.own = engine.txs.start(&engine.slots, self.reader.slot, |to| {
                engine.cts.admit(to)?;
                engine.storage.reserve_tx_ids(to)
            })?;
        }
        Ok(self.reader.own)
    }

    /// Refuses a write where none is allowed; gives the transaction a number and a segment.
    pub(crate) fn ready_to_write(&mut self) -> Result<TxId> {
        if self.read_only {
            return Err(Error::ReadOnly("a statement that writes".into()));
        }
        self.engine().refuse_reader("a statement that writes or locks")?;
        if self.reader.own.is_none() {
            let engine = self.engine();
            engine.storage.0.pages().check()?;
            engine.pool.admit()?;
        }
        if self.writer.is_none() {
            let engine = self.engine();
            self.writer = Some(engine.segments.take(&engine.pool)?);
        }
        self.own_id()
    }

    /// Waits until transaction `seq` has ended: its rows are free then.
    pub(crate) fn wait_for(&self, seq: TxId) -> Result<()> {
        match self.engine().status(seq)? {
            Status::Active(slot) => self.wait_in(seq, slot),
            _ => Ok(()),
        }
    }

    /// Waits until transaction `seq` has freed its locks: with definitions, some time after it has ended.
    pub(crate) fn wait_for_locks(&self, seq: TxId) -> Result<()> {
        match self.engine().slots.slot_of(seq) {
            Some(slot) => self.wait_in(seq, slot),
            None => Ok(()),
        }
    }

    fn wait_in(&self, seq: TxId, target_slot: SlotIndex) -> Result<()> {
        self.wait_while((seq, target_slot), &|| true)
    }

    /// Waits until the transaction has ended or `still` says that there is no reason to wait any more.
    fn wait_while(&self, (seq, target_slot): Waiting, still: &dyn Fn() -> bool) -> Result<()> {
        let engine = self.engine();
        let waiter = Waiter {
            slot: self.reader.slot,
            seq: self.reader.own,
            timeout: self.lock_timeout,
            cancel: &self.reader.cancel,
            stuck: &|seq| engine.losers.check(seq),
            still,
            looked: self.looked.load(Ordering::Relaxed),
        };
        let slot_of = |seq| {
            Ok(match engine.status(seq)? {
                Status::Active(slot) => Some(slot),
                _ => None,
            })
        };
        let done = engine.waits.wait(&engine.slots, &waiter, (seq, target_slot), &slot_of);
        // Before the caller looks again.
        self.looked.store(engine.waits.returns(), Ordering::Relaxed);
        done
    }

    /// Shares (or takes alone) a table lock until the transaction ends.
    pub(crate) fn lock_table(&mut self, id: u64, exclusive: bool) -> Result<()> {
        let own = self.own_id()?;
        let engine = self.engine().clone();
        loop {
            let taken = if exclusive {
                engine.table_locks.try_exclusive(id, own)
            } else {
                engine.table_locks.try_shared(id, own)
            };
            let Err(by) = taken else { break };
            if let Err(error) = self.wait_for_locks(by) {
                engine.table_locks.stop_waiting(id, own);
                return Err(error);
            }
        }
        if !self.table_locks.contains(&id) {
            self.table_locks.push(id);
        }
        Ok(())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.engine().is_stopping() {
            // The process is about to end: as a crash would leave it.
            return;
        }
        if self.active || !self.reader.own.is_none() {
            self.rollback().ok();
        }
        if let Some(writer) = self.writer.take() {
            self.engine().segments.give_back(writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineOptions, MemoryKind};

    /// A definition's commit is in the log, and its locks are held until that is durable and published. A transaction
    /// that wanted one asked again and again without a pause, deaf to `lock_timeout` and cancel: the transaction it
    /// would wait for was over.
    #[test]
    fn a_lock_held_behind_a_commit_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = EngineOptions::new(dir.path().join("data"), MemoryKind::Dram, 24 << 20);
        options.background = false;
        let engine = Engine::open(options).expect("the database opens");
        let mut holder = engine.begin(Isolation::ReadCommitted);
        holder.lock_table(77, true).expect("free");
        engine
            .txs
            .set_committed(holder.reader.own, holder.reader.slot, Cts::from_raw(1));
        let mut other = engine.begin(Isolation::ReadCommitted);
        other.set_lock_timeout(30);
        assert!(matches!(other.lock_table(77, false), Err(Error::LockNotAvailable(_))));
        holder.release();
        other.lock_table(77, false).expect("free again");
        drop((holder, other));
        engine.shutdown().expect("shut down");
    }
}
