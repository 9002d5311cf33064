//! The engine: storage, buffer, transactions and catalog of one database.
//!
//! Opening:
//! 1. the data directory is taken (a second server is refused), the pool opened, pages recovered (`buffer`);
//! 2. a new database gets its system spaces; a word in the control file says when that is complete;
//! 3. the undo segments' headers tell which transactions had not ended: losers. Their rows are theirs until the
//!    background has rolled them back (`recovery`); all others are visible to everyone;
//! 4. the catalog is read, orphaned spaces are dropped;
//! 5. purge and rollback threads start; the engine is ready.
//!
//! System spaces: 0 meta page, 1 catalog, 2 counters, `undo::SPACE_BASE`.. undo segments, `cts::SPACE` CTS slots.
//! Objects' spaces from `FIRST_SPACE` to `undo::SPACE_BASE`; their numbers are used again when nothing names them
//! (`numbers`).

use crate::api::Direction;
use crate::api::{EngineOptions, Isolation, MemoryKind, Origins, Survive};
use crate::catalog::Table;
use crate::catalog::state::{CATALOG_SPACE, CatalogState};
use crate::circle::Circle;
use crate::counters::{COUNTERS_SPACE, Counters};
use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::memory::{self, Memory};
use crate::numbers::{Cursor, Numbered, Numbers};
use crate::pool::Need;
use crate::purge::{Purge, crew};
use crate::recovery::Losers;
use crate::report::RecoveryReport;
use crate::sort::RunFiles;
use crate::tree::{BTree, LeafBatch};
use crate::tx::Tx;
use crate::tx::cts::{self, CtsPages};
use crate::tx::locks::{CancelFlag, RowLocks, TableLocks, UniqueStripes, Waits};
use crate::tx::queue::RowQueues;
use crate::tx::slots::Slots;
use crate::tx::status::TxTable;
use crate::undo::{self, Segment, Writer};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{HashMap, HashSet};
use cenote_base::{Lsn, PageId};
use cenote_buffer::{BufferPool, Config, Kind};
use cenote_storage::{DataDir, Storage};
use std::ops::Range;
use std::sync::Arc;

pub use cenote_buffer::{PoolStats, TierStats};

/// Space of the meta page.
const META_SPACE: u32 = 0;
/// Spaces of tables and indexes begin here.
pub(crate) const FIRST_SPACE: u32 = 1000;
/// Ids of tables, indexes and sequences begin here, as PostgreSQL's do for what users make.
pub(crate) const FIRST_OBJECT: u32 = 16384;
const KIND_META: u8 = 0x23;
/// Where sorts put what memory does not hold, in the data directory.
const RUNS_DIR: &str = "sort-tmp";
const META_MAGIC: u64 = u64::from_le_bytes(*b"CenoteMt");
const AT_MAGIC: usize = 32;
const AT_NEXT_OBJECT: usize = 40;
const AT_NEXT_SPACE: usize = 44;
const AT_SEGMENTS: usize = 48;
const AT_SPACE_ROUND: usize = 52;
const AT_SPACE_END: usize = 56;
const AT_UNDO_PAGES: usize = 60;
const AT_UNDO_LAP: usize = 64;
const AT_OBJECT_ROUND: usize = 68;
/// Zero: all 32 bits.
const AT_OBJECT_END: usize = 72;
/// Engine word of the control file: 1 once the system spaces are complete.
const WORD_COMPLETE: usize = 0;

/// The storage as the engine uses it.
pub(crate) struct Store(pub Arc<Storage>);

impl Store {
    /// Every commit below or at this is durable: what a snapshot sees.
    #[inline]
    pub(crate) fn durable(&self) -> u64 {
        self.0.log().durable().raw()
    }

    pub(crate) fn wait_durable(&self, lsn: u64) -> Result<()> {
        self.0
            .log()
            .wait_durable(Lsn::from_raw(lsn))
            .map_err(|error| match error {
                cenote_base::Error::Poisoned(text) => Error::Poisoned(text),
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

    pub(crate) fn reserve_tx_ids(&self, ceiling: u64) -> Result<()> {
        Ok(self.0.control().update(|c| c.tx_ceiling = c.tx_ceiling.max(ceiling))?)
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
    pub(crate) segments: rt::RwLock<Vec<Arc<Segment>>>,
    free_segments: rt::Mutex<Vec<Writer>>,
    /// What a new segment is given: its circle, its first lap.
    undo_from: (Circle, u32),
    pub(crate) space_numbers: Numbers,
    pub(crate) object_numbers: Numbers,
    row_numbers: rt::Mutex<HashMap<u32, Arc<AtomicU64>>>,
    /// Spaces whose pending large values of the last run are gone.
    pub(crate) reclaimed: rt::Mutex<HashSet<u32>>,
    meta: rt::Mutex<()>,
    pub(crate) purge: Purge,
    /// Pages that purge gives back to the disk at a time, of commit timestamps and of an undo segment.
    pub(crate) give_back_pages: u32,
    pub(crate) losers: Losers,
    report: rt::Mutex<RecoveryReport>,
    pub(crate) stopping: AtomicBool,
    threads: rt::Mutex<Vec<rt::JoinHandle<()>>>,
}

impl Engine {
    /// Opens (or makes) a database. Errors: the directory or region is in use, belongs to another database, or is
    /// damaged.
    pub fn open(options: EngineOptions) -> Result<Arc<Engine>> {
        let begun = rt::now();
        let dir = open_directory(&options)?;
        let (pool, report) = BufferPool::open(config(&options), dir)?;
        let storage = pool.storage().clone();
        if storage.control().get().engine[WORD_COMPLETE] == 0 {
            create(&pool, &storage, &options.origins)?;
        }
        let (segments, undo_from, (spaces, objects)) = open_meta(&pool)?;
        let (mut losers, first) = crate::recovery::find_losers(&pool, &segments, storage.control().get().tx_ceiling)?;
        let found = losers.len() as u64;
        let engine = Engine {
            cts: CtsPages::open(&pool)?,
            storage: Store(storage),
            slots: Arc::new(Slots::new()),
            txs: TxTable::new(first, options.tuning.status()),
            give_back_pages: options.tuning.give_back_pages.max(1),
            memory: Memory::new(memory::DEFAULT_LIMIT, 2),
            runs: RunFiles::open(options.data.join(RUNS_DIR))?,
            waits: Waits::default(),
            table_locks: TableLocks::default(),
            row_locks: RowLocks::default(),
            row_queues: RowQueues::default(),
            stripes: UniqueStripes::default(),
            catalog: CatalogState::new(),
            counters: Counters::default(),
            segments: rt::RwLock::new(segments),
            free_segments: rt::Mutex::new(Vec::new()),
            undo_from,
            space_numbers: Numbers::new(Numbered::Space, spaces),
            object_numbers: Numbers::new(Numbered::Object, objects),
            row_numbers: rt::Mutex::new(HashMap::default()),
            reclaimed: rt::Mutex::new(HashSet::default()),
            meta: rt::Mutex::new(()),
            purge: Purge::default(),
            losers: Losers::default(),
            report: rt::Mutex::new(RecoveryReport::of(&report, found)),
            stopping: AtomicBool::new(false),
            threads: rt::Mutex::new(Vec::new()),
            pool,
        };
        let engine = Arc::new(engine);
        crate::recovery::adopt(&engine, &mut losers, first)?;
        let named = crate::recovery::read_catalog(&engine, &mut losers)?;
        let orphans = crate::recovery::drop_orphans(&engine, &named)?;
        engine.choose_numbers()?;
        engine.update_report(|report| {
            if orphans > 0 {
                report
                    .notes
                    .push(format!("{orphans} spaces that no definition named were dropped"));
            }
            report.duration_ms = rt::now().since(begun).as_secs_f64() * 1000.0;
        });
        engine.start_threads(options.background, losers);
        Ok(engine)
    }

    fn start_threads(self: &Arc<Self>, background: bool, losers: Vec<crate::recovery::Loser>) {
        self.losers.of_last_run(losers);
        if !background {
            return;
        }
        let mut threads = self.threads.lock();
        let weak = Arc::downgrade(self);
        let signal = self.losers.signal.clone();
        threads.push(rt::spawn("rollback", move || {
            crate::recovery::roll_back(&weak, &signal)
        }));
        let weak = Arc::downgrade(self);
        let signal = self.purge.signal.clone();
        threads.push(rt::spawn("purge", move || crate::purge::run(&weak, &signal)));
        for _ in 0..crew::helpers() {
            let (weak, crew) = (Arc::downgrade(self), self.purge.crew.clone());
            threads.push(rt::spawn("purge help", move || crate::purge::help(&weak, &crew)));
        }
    }

    /// An idle transaction, to be begun and ended many times. For tools and tests: it is never refused.
    pub fn tx(self: &Arc<Self>) -> Tx {
        Tx::new(self, self.slots.lease_always(), self.memory.account("a tool"))
    }

    /// An idle transaction for a session; `holder` is its name where others are refused what it holds. Errors: 53400,
    /// there are too many.
    pub fn session(self: &Arc<Self>, holder: &str) -> Result<Tx> {
        Ok(Tx::new(self, self.slots.lease()?, self.memory.account(holder)))
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

    /// A begun transaction.
    pub fn begin(self: &Arc<Self>, isolation: Isolation) -> Tx {
        let mut tx = self.tx();
        tx.begin(isolation);
        tx
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

    /// Counts of the buffer pool, for its tier.
    pub fn pool_stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// The database's own id, given when it was made.
    pub fn database_id(&self) -> u128 {
        self.storage.0.control().get().database
    }

    /// How many transactions that write or lock are in progress.
    pub fn running_transactions(&self) -> usize {
        self.slots.running()
    }

    /// How many transactions wait for another one's end.
    pub fn waiting_transactions(&self) -> usize {
        self.slots.waiting()
    }

    /// How many transactions have ended without having been taken back yet: losers of the last run, and those whose
    /// rollback failed; and what the last attempt failed with.
    pub fn rollbacks_waiting(&self) -> (usize, Option<String>) {
        self.losers.waiting()
    }

    /// Table locks and explicit row locks that somebody holds or waits for.
    pub fn locks_held(&self) -> usize {
        self.table_locks.held() + self.row_locks.held()
    }

    /// Why writes are refused, if they are.
    pub fn poisoned(&self) -> Option<String> {
        let storage = &self.storage.0;
        storage.check_writable(Need::Work).err().map(|error| error.to_string())
    }

    /// The buffer pool, for tools and tests.
    pub fn buffer(&self) -> &BufferPool {
        &self.pool
    }

    /// Writes all changed pages back and shortens the log.
    pub fn checkpoint(&self) -> Result<()> {
        self.pool.checkpoint()?;
        Ok(())
    }

    /// Orderly end: everything written back, marked clean. No transaction may be active.
    pub fn shutdown(&self) -> Result<()> {
        self.stop_threads();
        self.settle_sequences()?;
        Ok(self.pool.shutdown()?)
    }

    /// Ends the background threads and writes nothing: what is in memory stays as a crash would leave it.
    pub fn halt(&self) {
        self.stop_threads();
    }

    /// Whether `halt` or `shutdown` was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn stop_threads(&self) {
        self.stopping.store(true, Ordering::Release);
        self.purge.signal.set();
        self.purge.crew.end();
        self.losers.signal.set();
        let threads: Vec<_> = self.threads.lock().drain(..).collect();
        for thread in threads {
            // One that panicked has said so where it happened.
            let _ = thread.join();
        }
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

    /// The next hidden row number of a table without a primary key.
    pub(crate) fn next_row_number(&self, table: &Table) -> Result<u64> {
        if let Some(counter) = self.row_numbers.lock().get(&table.space) {
            return Ok(counter.fetch_add(1, Ordering::Relaxed));
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
        Ok(counter.fetch_add(1, Ordering::Relaxed))
    }

    // ---- undo segments ----

    /// A segment to write to: one that is free, or a new one.
    pub(crate) fn take_segment(&self) -> Result<Writer> {
        if let Some(writer) = self.free_segment() {
            return Ok(writer);
        }
        let _meta = self.meta.lock();
        let number = self.segments.read().len() as u32;
        if number >= undo::MAX_SEGMENTS {
            return Err(Error::Limit(format!(
                "all {} undo segments are in use: end transactions that write, or an old snapshot that keeps purge from them",
                undo::MAX_SEGMENTS
            )));
        }
        let space = undo::SPACE_BASE + number;
        if !self.storage.0.pages().has_space(space) {
            self.storage.0.pages().create_space(space)?;
        }
        let (circle, lap) = self.undo_from;
        let header = undo::create(&self.pool, number as u16, circle, lap)?;
        let mut m = self.pool.mtr();
        let h = m.exclusive(PageId::new(META_SPACE, 0))?;
        m.write_u32(h, AT_SEGMENTS, number + 1);
        m.commit();
        let segment = Arc::new(Segment::new(number as u16, &header));
        self.segments.write().push(segment.clone());
        Ok(Writer {
            segment,
            position: header.end,
        })
    }

    /// The one that was given back last, of those with room.
    fn free_segment(&self) -> Option<Writer> {
        let mut free = self.free_segments.lock();
        let index = free.iter().rposition(Writer::has_room)?;
        Some(free.remove(index))
    }

    /// The session needs its segment no more. One that is used up is not given out again.
    pub(crate) fn give_back_segment(&self, writer: Writer) {
        if !writer.is_used_up() {
            self.free_segments.lock().push(writer);
        }
    }

    /// Whether purge has passed the record.
    pub(crate) fn is_purged(&self, pointer: u64) -> bool {
        let (number, _) = undo::split(pointer);
        self.segments
            .read()
            .get(usize::from(number))
            .is_none_or(|segment| undo::is_purged(segment, pointer))
    }
}

impl Drop for Engine {
    /// May run on a background thread, so it waits for none.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.purge.signal.set();
        self.purge.crew.end();
        self.losers.signal.set();
    }
}

fn open_directory(options: &EngineOptions) -> Result<DataDir> {
    let origins = &options.origins;
    origins.check()?;
    let origins = cenote_storage::Origins {
        log: Lsn::from_raw(origins.log),
        tx: origins.tx,
    };
    Ok(DataDir::open_or_begin(&options.data, origins)?)
}

fn config(options: &EngineOptions) -> Config {
    let kind = match options.memory {
        MemoryKind::Cxl => Kind::Cxl,
        MemoryKind::Dram => Kind::Dram,
        MemoryKind::Tiered => Kind::Tiered,
    };
    let mut config = Config::new(kind, options.memory_size);
    config.region = options.region.clone();
    config.remote = options.remote.clone();
    config.mirror = options.mirror.clone();
    config.survive = match options.survive {
        Survive::Process => cenote_buffer::Survive::Process,
        Survive::Host => cenote_buffer::Survive::Host,
    };
    config.background = options.background;
    let tuning = options.tuning;
    (config.log_limit, config.segment_bytes) = (tuning.log_limit, tuning.segment_bytes);
    (config.flush_turn, config.scan_limit) = (tuning.flush_turn, tuning.scan_limit);
    config.survey_part = tuning.survey_part;
    config.numa_node = options.numa_node;
    config
}

/// Makes the system spaces; the control file says when they are durable. Begun anew after a crash in between.
fn create(pool: &BufferPool, storage: &Storage, origins: &Origins) -> Result<()> {
    for space in [META_SPACE, CATALOG_SPACE, COUNTERS_SPACE, cts::SPACE] {
        if !storage.pages().has_space(space) {
            storage.pages().create_space(space)?;
        }
    }
    BTree::create(pool, CATALOG_SPACE)?;
    BTree::create(pool, COUNTERS_SPACE)?;
    cts::create(pool, storage.control().get().tx_ceiling, origins.cts_pages)?;
    let mut m = pool.mtr();
    let h = m.create(PageId::new(META_SPACE, 0), KIND_META, 0)?;
    m.write_u64(h, AT_MAGIC, META_MAGIC);
    m.write_u32(h, AT_NEXT_OBJECT, origins.object);
    m.write_u32(h, AT_OBJECT_END, origins.object_end);
    m.write_u32(h, AT_NEXT_SPACE, origins.space);
    m.write_u32(h, AT_SPACE_END, origins.space_end);
    m.write_u32(h, AT_UNDO_PAGES, origins.undo_pages);
    m.write_u32(h, AT_UNDO_LAP, origins.undo_lap);
    m.write_u32(h, AT_SEGMENTS, 0);
    let end = m.commit();
    storage.log().wait_durable(end)?;
    Ok(storage.control().update(|c| c.engine[WORD_COMPLETE] = 1)?)
}

/// Where the meta page holds the next number and the round.
fn cursor_at(of: Numbered) -> (usize, usize) {
    match of {
        Numbered::Space => (AT_NEXT_SPACE, AT_SPACE_ROUND),
        Numbered::Object => (AT_NEXT_OBJECT, AT_OBJECT_ROUND),
    }
}

/// What the meta page says: the undo segments, what a new one is given, the ranges of spaces' and objects' numbers.
type Meta = (Vec<Arc<Segment>>, (Circle, u32), (Range<u32>, Range<u32>));

fn open_meta(pool: &BufferPool) -> Result<Meta> {
    let corrupt = || Error::Corrupt("the meta page".into());
    let guard = pool.shared(PageId::new(META_SPACE, 0))?;
    let view = guard.view();
    let (count, spaces) = (view.u32(AT_SEGMENTS), FIRST_SPACE..view.u32(AT_SPACE_END));
    let objects = FIRST_OBJECT..match view.u32(AT_OBJECT_END) {
        0 => u32::MAX,
        end => end,
    };
    let sound =
        view.u64(AT_MAGIC) == META_MAGIC && !spaces.is_empty() && spaces.end <= undo::SPACE_BASE && !objects.is_empty();
    let circle = Circle::new(view.u32(AT_UNDO_PAGES)).filter(|_| sound && count <= undo::MAX_SEGMENTS);
    let undo_from = (circle.ok_or_else(corrupt)?, view.u32(AT_UNDO_LAP));
    drop(guard);
    let open = |number: u16| Ok(Arc::new(Segment::new(number, &undo::header(pool, number)?)));
    let segments = (0..count).map(|number| open(number as u16)).collect::<Result<_>>()?;
    Ok((segments, undo_from, (spaces, objects)))
}
