//! The engine: storage, buffer, transactions and catalog of one database, and what all of its parts share.

use crate::analyze::shared::Automatic;
use crate::api::Direction;
use crate::catalog::Table;
use crate::catalog::state::CatalogState;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::follow::shared::Follow;
use crate::key::KeyRange;
use crate::left::LeftTransactions;
use crate::losers::Losers;
use crate::memory::Memory;
use crate::meta::cursor_at;
use crate::numbers::{Cursor, Numbered, Numbers};
use crate::pool::Need;
use crate::purge::shared::Purge;
use crate::readers::shared::Readers;
use crate::report::RecoveryReport;
use crate::sort::RunFiles;
use crate::system::META_SPACE;
use crate::tree::{BTree, LeafBatch};
use crate::tx::cts::CtsPages;
use crate::tx::locks::{CancelFlag, RowLocks, TableLocks, UniqueStripes, Waits};
use crate::tx::queue::RowQueues;
use crate::tx::slots::Slots;
use crate::tx::status::TxTable;
use crate::tx::unsettled::Unsettled;
use crate::undo::segments::Segments;
use crate::versions::VersionStore;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{HashMap, HashSet};
use cenote_base::{Cts, Lsn, PageId, TxId};
use cenote_buffer::BufferPool;
use cenote_storage::Storage;
use std::sync::Arc;

pub use cenote_buffer::{PodStats, PoolStats, RemotePart, RemoteSize, TierStats};

/// The storage as the engine uses it.
pub(crate) struct Store(pub Arc<Storage>, Option<AtomicU64>);

impl Store {
    /// That of a reader shows nothing at first.
    pub(crate) fn new(storage: Arc<Storage>) -> Store {
        let visible = storage.follower().map(|_| AtomicU64::new(0));
        Store(storage, visible)
    }

    /// Every commit below or at this is durable: what a snapshot sees.
    #[inline]
    pub(crate) fn durable(&self) -> Cts {
        match &self.1 {
            None => Cts::at(self.0.log().durable()),
            Some(visible) => Cts::from_raw(visible.load(Ordering::Acquire)),
        }
    }

    /// Commits up to here are visible at this reader.
    pub(crate) fn set_visible(&self, to: Cts) {
        if let Some(visible) = &self.1 {
            visible.fetch_max(to.raw(), Ordering::AcqRel);
        }
    }

    pub(crate) fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.0.log().wait_durable(lsn).map_err(|error| match error {
            cenote_base::Error::Poisoned(text) | cenote_base::Error::LogFailed(text) => Error::Poisoned(text),
            cenote_base::Error::Timeout(text) => {
                Error::OutcomeUnknown(format!("{text}: look before you repeat the change"))
            }
            cenote_base::Error::Full(text) => Error::DiskFull(format!(
                "{text}. The change is in the log's memory and becomes durable when there is space: look before you \
                     repeat it"
            )),
            other => Error::Poisoned(format!(
                "what was written could not be made durable ({other}), and the database takes no more changes: \
                 see to the disk, then restart"
            )),
        })
    }

    pub(crate) fn reserve_tx_ids(&self, ceiling: TxId) -> Result<()> {
        Ok(self
            .0
            .control()
            .update(|c| c.tx_ceiling = c.tx_ceiling.max(ceiling.raw()))?)
    }
}

/// The database.
pub struct Engine {
    pub(crate) pool: BufferPool,
    pub(crate) storage: Store,
    pub(crate) slots: Arc<Slots>,
    pub(crate) memory: Arc<Memory>,
    /// Files of sorts that memory does not hold.
    pub(crate) runs: RunFiles,
    pub(crate) txs: TxTable,
    pub(crate) cts: CtsPages,
    pub(crate) waits: Waits,
    pub(crate) table_locks: TableLocks,
    pub(crate) row_locks: RowLocks,
    pub(crate) row_queues: RowQueues,
    pub(crate) stripes: UniqueStripes,
    pub(crate) catalog: CatalogState,
    pub(crate) counters: Counters,
    pub(crate) segments: Segments,
    pub(crate) space_numbers: Numbers,
    pub(crate) object_numbers: Numbers,
    pub(crate) row_numbers: rt::Mutex<HashMap<u32, Arc<AtomicU64>>>,
    /// Spaces whose pending large values of the last run are gone.
    pub(crate) reclaimed: rt::Mutex<HashSet<u32>>,
    pub(crate) purge: Purge,
    pub(crate) unsettled: Unsettled,
    pub(crate) versions: VersionStore,
    /// Pages that purge gives back to the disk at a time, of commit timestamps and of an undo segment.
    pub(crate) give_back_pages: u32,
    pub(crate) losers: Losers,
    pub(crate) left: LeftTransactions,
    /// Changed rows from which on a rollback is left to the background.
    pub(crate) rollback_rows: u64,
    /// Changed rows below which it is not left behind another one.
    pub(crate) short_rollback_rows: u64,
    pub(crate) automatic: Automatic,
    /// What makes it a reader.
    pub(crate) follow: Option<Follow>,
    /// More is visible at a reader.
    pub(crate) visible_moved: rt::Event,
    pub(crate) readers: Readers,
    /// Age of the oldest snapshot from which on the ways to what it sees are cut short.
    pub(crate) cut_after: rt::Nanos,
    pub(crate) report: rt::Mutex<RecoveryReport>,
    pub(crate) stopping: AtomicBool,
    pub(crate) threads: rt::Mutex<Vec<rt::JoinHandle<()>>>,
}

impl Engine {
    /// The position of the log up to which commits are visible.
    pub fn visible_position(&self) -> u64 {
        self.storage.durable().raw()
    }

    /// Which start of the database this is, where storage nodes count them; `None`: they do not, or it is a reader.
    pub fn start_on_nodes(&self) -> Option<u64> {
        let start = self.storage.0.nodes().map_or(0, |nodes| nodes.start());
        (start > 0).then_some(start)
    }

    /// What statements may gather in memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// A statement begins on this thread: `cancel` stops what it waits for in memory, too, until
    /// [`Engine::heed_nothing`].
    #[inline]
    pub fn heed(&self, cancel: &Arc<CancelFlag>) {
        self.pool.heed(cancel);
    }

    /// The statement is over.
    #[inline]
    pub fn heed_nothing(&self) {
        self.pool.heed_nothing();
    }

    /// Rises with each committed definition statement: the key of plan caches. One atomic load.
    #[inline]
    pub fn catalog_version(&self) -> u64 {
        self.catalog.version()
    }

    /// What recovery did.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.report.lock().clone()
    }

    pub(crate) fn update_report(&self, change: impl FnOnce(&mut RecoveryReport)) {
        change(&mut self.report.lock());
    }

    /// The database's number.
    pub fn database(&self) -> u128 {
        self.storage.0.control().get().database
    }

    /// Counts of the buffer pool, for its tier.
    pub fn pool_stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Lets remote memory grow or shrink to a size; a thread carries it out.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if there is none, or it has one size.
    pub fn set_remote_size(&self, size: RemoteSize) -> cenote_base::Result<()> {
        self.pool.set_remote_size(size)
    }

    /// The parts of remote memory.
    pub fn remote_parts(&self) -> Vec<RemotePart> {
        self.pool.remote_parts()
    }

    /// How many transactions that write or lock are in progress.
    pub fn running_transactions(&self) -> usize {
        self.slots.running()
    }

    /// How many transactions wait for another one's end.
    pub fn waiting_transactions(&self) -> usize {
        self.slots.waiting()
    }

    /// How many transactions have ended without having been taken back yet: losers of the last run, large rollbacks of
    /// this one, and those that failed; and what the last attempt failed with.
    pub fn rollbacks_waiting(&self) -> (usize, Option<String>) {
        self.losers.waiting()
    }

    /// Table locks and explicit row locks that are held or waited for.
    pub fn locks_held(&self) -> usize {
        self.table_locks.held() + self.row_locks.held()
    }

    /// Why nothing is written to the log any more, for good.
    pub fn log_failure(&self) -> Option<String> {
        self.storage.0.log().check_poison().err().map(|error| error.to_string())
    }

    /// Why writes are refused, if they are.
    pub fn poisoned(&self) -> Option<String> {
        let storage = &self.storage.0;
        if let Some(follower) = storage.follower() {
            return follower.check().err().map(|error| error.to_string());
        }
        storage.check_writable(Need::Work).err().map(|error| error.to_string())
    }

    /// The buffer pool, for tools and tests.
    pub fn buffer(&self) -> &BufferPool {
        &self.pool
    }

    /// Writes all changed pages back and shortens the log.
    ///
    /// # Errors
    /// Those of writing pages and of the log.
    pub fn checkpoint(&self) -> Result<()> {
        self.refuse_reader("CHECKPOINT")?;
        self.pool.checkpoint()?;
        Ok(())
    }

    /// 25006 at a reader.
    pub(crate) fn refuse_reader(&self, what: &str) -> Result<()> {
        match self.is_reader() {
            true => Err(Error::ReadOnly(what.into())),
            false => Ok(()),
        }
    }

    /// Whether `halt` or `shutdown` was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    // ---- spaces and numbers ----

    /// Makes the file of a new space.
    pub(crate) fn create_space(&self) -> Result<u32> {
        let space = self.next_space()?;
        self.storage.0.pages().create_space(space)?;
        Ok(space)
    }

    /// Removes a space's pages and file.
    pub(crate) fn drop_space(&self, space: u32) -> Result<()> {
        self.row_numbers.lock().remove(&space);
        self.forget_freed(space);
        if planted(Fault::DropOrder) {
            self.pool.discard_space(space)?;
        }
        mark::pass(Mark::SpaceGoing);
        // The file first: while frames stand for it, checkpoints stay below its redo, so that a crash in between leaves
        // either a whole space or none.
        if self.storage.0.pages().has_space(space) {
            self.storage.0.pages().drop_space(space)?;
        }
        self.pool.discard_space(space)?;
        Ok(())
    }

    /// How far numbers have come.
    pub(crate) fn cursor(&self, of: Numbered) -> Result<Cursor> {
        let (next, round) = cursor_at(of);
        let guard = self.pool.shared(PageId::new(META_SPACE, 0))?;
        let (next, round) = (guard.view().u32(next), guard.view().u32(round));
        Ok(Cursor { next, round })
    }

    pub(crate) fn set_cursor(&self, of: Numbered, cursor: Cursor) -> Result<()> {
        let (next, round) = cursor_at(of);
        let mut m = self.pool.mtr();
        let h = m.exclusive(PageId::new(META_SPACE, 0))?;
        m.write_u32(h, next, cursor.next);
        m.write_u32(h, round, cursor.round);
        m.commit();
        Ok(())
    }

    /// Takes `count` hidden row numbers of a table without a primary key; gives the first.
    pub(crate) fn next_row_numbers(&self, table: &Table, count: u64) -> Result<u64> {
        if let Some(counter) = self.row_numbers.lock().get(&table.space) {
            return Ok(counter.fetch_add(count, Ordering::Relaxed));
        }
        let mut scan = BTree { space: table.space }
            .scan(KeyRange::all(), Direction::Backward)
            .batch_rows(1);
        let mut batch = LeafBatch::new();
        let mut next = 1;
        if scan.next_batch(&self.pool, &mut batch)? {
            let key: [u8; 8] = batch
                .key(0)
                .try_into()
                .map_err(|_| Error::Corrupt("hidden key of a row".into()))?;
            next = u64::from_be_bytes(key) + 1;
        }
        let mut counters = self.row_numbers.lock();
        let counter = counters
            .entry(table.space)
            .or_insert_with(|| Arc::new(AtomicU64::new(next)));
        Ok(counter.fetch_add(count, Ordering::Relaxed))
    }
}

impl Drop for Engine {
    /// May run on a background thread, so it waits for none.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.purge.signal.set();
        self.purge.crew.end();
        self.losers.wake();
        self.automatic.stop();
    }
}
