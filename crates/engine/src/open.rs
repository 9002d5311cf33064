//! How a database is opened, what its threads are, how transactions begin, and how it is shut down.
//!
//! Opening:
//! 1. the data directory is taken (a second server is refused), the pool opened, pages recovered (`buffer`);
//! 2. a new database gets its system spaces; a word in the control file says when that is complete;
//! 3. the undo segments' headers tell which transactions had not ended: losers. Their rows are theirs until the
//!    background, or who wants one, has rolled them back (`recovery`); all others are visible to everyone;
//! 4. the catalog is read, orphaned spaces are dropped;
//! 5. purge and rollback threads start; the engine is ready.
//!
//! System spaces: 0 meta page, 1 catalog, 2 counters, `undo::SPACE_BASE`.. undo segments, `cts::SPACE` CTS slots.
//! Objects' spaces from `FIRST_SPACE` to `undo::SPACE_BASE`; their numbers are used again when nothing names them
//! (`numbers`).

use crate::analyze;
use crate::analyze::shared::Automatic;
use crate::api::{EngineOptions, Isolation, MemoryKind, Survive};
use crate::catalog::state::CatalogState;
use crate::counters::Counters;
use crate::engine::{Engine, Store};
use crate::error::{Error, Result};
use crate::follow;
use crate::follow::shared::Follow;
use crate::left::LeftTransactions;
use crate::losers::{Loser, Losers};
use crate::memory::{self, Memory};
use crate::meta::{self, WORD_COMPLETE};
use crate::numbers::{Numbered, Numbers};
use crate::purge::shared::Purge;
use crate::purge::{self, crew};
use crate::readers::shared::Readers;
use crate::recovery;
use crate::report::RecoveryReport;
use crate::sort::RunFiles;
use crate::tx::Tx;
use crate::tx::cts::CtsPages;
use crate::tx::locks::{RowLocks, TableLocks, UniqueStripes, Waits};
use crate::tx::queue::RowQueues;
use crate::tx::slots::Slots;
use crate::tx::status::TxTable;
use crate::tx::unsettled::Unsettled;
use crate::undo::segments::Segments;
use crate::versions::VersionStore;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{HashMap, HashSet};
use cenote_base::{Lsn, TxId};
use cenote_buffer::{BufferPool, Config, Kept, Kind};
use cenote_storage::{Claim, DataDir, Storage};
use std::sync::Arc;

/// Where sorts put what memory does not hold, in the data directory.
const RUNS_DIR: &str = "sort-tmp";

impl Engine {
    /// Opens (or makes) a database.
    ///
    /// # Errors
    /// The directory or region is in use, belongs to another database, or is damaged.
    pub fn open(options: EngineOptions) -> Result<Arc<Engine>> {
        let dir = open_directory(&options)?;
        Engine::open_in(options, dir, None)
    }

    /// Opens it in a directory that was taken; `kept`: memory of a reader that this process has been.
    pub(crate) fn open_in(options: EngineOptions, dir: DataDir, kept: Option<Kept>) -> Result<Arc<Engine>> {
        let begun = rt::now();
        let mut config = config(&options);
        config.kept = kept;
        let (pool, report) = BufferPool::open(config, dir)?;
        let storage = pool.storage().clone();
        let follow = storage.follower().map(Follow::new);
        match (storage.control().get().engine[WORD_COMPLETE], &follow) {
            (0, None) => meta::create(&pool, &storage, &options.origins)?,
            (0, Some(_)) => {
                return Err(Error::Config(
                    "the database is being made: start the reader afterwards".into(),
                ));
            }
            _ => {}
        }
        let (segments, undo_from, (spaces, objects)) = meta::open(&pool)?;
        let (mut losers, first) = match follow {
            None => recovery::find_losers(&pool, &segments, TxId::from_raw(storage.control().get().tx_ceiling))?,
            // All numbers may be those of transactions that run.
            Some(_) => (Vec::new(), TxId::from_raw(TxId::SEQ_END)),
        };
        let found = losers.iter().filter(|loser| loser.left.is_none()).count() as u64;
        let engine = Engine {
            cts: CtsPages::open(&pool)?,
            readers: Readers::new(storage.log().durable(), meta::purged(&pool)?),
            storage: Store::new(storage),
            follow,
            visible_moved: rt::Event::new(),
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
            segments: Segments::new(segments, undo_from),
            space_numbers: Numbers::new(Numbered::Space, spaces),
            object_numbers: Numbers::new(Numbered::Object, objects),
            row_numbers: rt::Mutex::new(HashMap::default()),
            reclaimed: rt::Mutex::new(HashSet::default()),
            purge: Purge::default(),
            unsettled: Unsettled::new(first),
            versions: VersionStore::new(options.bytes_of_versions()),
            losers: Losers::default(),
            left: LeftTransactions::new(options.tuning.left_wait),
            rollback_rows: options.tuning.rollback_rows,
            short_rollback_rows: options.tuning.short_rollback_rows,
            automatic: Automatic::default(),
            cut_after: options.tuning.cut_after,
            report: rt::Mutex::new(RecoveryReport::of(&report, found)),
            stopping: AtomicBool::new(false),
            threads: rt::Mutex::new(Vec::new()),
            pool,
        };
        let engine = Arc::new(engine);
        if engine.is_reader() {
            engine.follow_from_now(&options)?;
            engine.update_report(|report| report.duration_ms = rt::now().since(begun).as_secs_f64() * 1000.0);
            return Ok(engine);
        }
        recovery::adopt(&engine, &mut losers, first)?;
        let orphans = recovery::drop_orphans(&engine, &recovery::read_catalog(&engine, &mut losers)?)?;
        engine.choose_numbers()?;
        engine.update_report(|report| {
            let dropped = || format!("{orphans} spaces that no definition named were dropped");
            report.notes.extend((orphans > 0).then(dropped));
            report.notes.extend(note_left(&losers));
            report.duration_ms = rt::now().since(begun).as_secs_f64() * 1000.0;
        });
        engine.start_threads(&options, losers);
        Ok(engine)
    }

    /// A reader's start, from its first definitions on.
    fn follow_from_now(self: &Arc<Self>, options: &EngineOptions) -> Result<()> {
        self.begin_following()?;
        let Some(follower) = self.storage.0.follower().filter(|_| options.background).cloned() else {
            return Ok(());
        };
        let (weak, followed) = (Arc::downgrade(self), follower.clone());
        let follows = rt::spawn("follow", move || follow::run(&weak, &followed));
        let weak = Arc::downgrade(self);
        let watches = rt::spawn("follow watch", move || follow::watch(&weak, &follower));
        self.threads.lock().extend([follows, watches]);
        self.catch_up_at_start()
    }

    fn start_threads(self: &Arc<Self>, options: &EngineOptions, losers: Vec<Loser>) {
        let losers = losers.into_iter();
        let losers = losers.filter_map(|loser| self.left.wait_for_session(loser)).collect();
        self.losers.of_last_run(losers, options.background);
        if !options.background {
            return;
        }
        let mut threads = self.threads.lock();
        assert!(threads.is_empty(), "the engine's threads are started once");
        let weak = Arc::downgrade(self);
        let signal = self.losers.signal();
        threads.push(rt::spawn("rollback", move || recovery::roll_back(&weak, &signal)));
        let weak = Arc::downgrade(self);
        let signal = self.purge.signal.clone();
        threads.push(rt::spawn("purge", move || purge::run(&weak, &signal)));
        for _ in 0..crew::helpers() {
            let (weak, crew) = (Arc::downgrade(self), self.purge.crew.clone());
            threads.push(rt::spawn("purge help", move || purge::help(&weak, &crew)));
        }
        if let Some(every) = options.analyze_every {
            let (weak, signal) = (Arc::downgrade(self), self.automatic.signal.clone());
            threads.push(rt::spawn("analyze", move || analyze::run(&weak, &signal, every)));
        }
    }

    /// An idle transaction, to be begun and ended many times. For tools and tests: it is never refused.
    pub fn tx(self: &Arc<Self>) -> Tx {
        Tx::new(self, self.slots.lease_always(), self.memory.account("a tool"))
    }

    /// An idle transaction for a session; `holder` is its name where others are refused what it holds.
    ///
    /// # Errors
    /// 53400: there are too many sessions.
    pub fn session(self: &Arc<Self>, holder: &str) -> Result<Tx> {
        Ok(Tx::new(self, self.slots.lease()?, self.memory.account(holder)))
    }

    /// A begun transaction.
    pub fn begin(self: &Arc<Self>, isolation: Isolation) -> Tx {
        let mut tx = self.tx();
        tx.begin(isolation);
        tx
    }

    /// Orderly end: everything written back, marked clean. No transaction may be active.
    ///
    /// # Errors
    /// Those of writing sequences and pages back; the next start recovers then.
    pub fn shutdown(&self) -> Result<()> {
        if self.is_reader() {
            // There is nothing that it could leave behind, and its sessions have ended.
            self.stopping.store(true, Ordering::Release);
            self.pool.end();
            self.stop_threads();
            return Ok(());
        }
        self.stop_threads();
        self.settle_sequences()?;
        Ok(self.pool.shutdown()?)
    }

    /// Ends the background threads and writes nothing: what is in memory stays as a crash would leave it.
    pub fn halt(&self) {
        self.stop_threads();
    }

    pub(crate) fn stop_threads(&self) {
        self.stopping.store(true, Ordering::Release);
        self.purge.signal.set();
        self.purge.crew.end();
        self.losers.wake();
        self.automatic.stop();
        let threads: Vec<_> = self.threads.lock().drain(..).collect();
        for thread in threads {
            // One that panicked has said so where it happened.
            let _ = thread.join();
        }
    }
}

fn note_left(losers: &[Loser]) -> Option<String> {
    let left = losers.iter().filter(|loser| loser.left.is_some()).count();
    (left > 0).then(|| format!("{left} transactions that the last server left wait for their sessions"))
}

fn open_directory(options: &EngineOptions) -> Result<DataDir> {
    let origins = &options.origins;
    origins.check()?;
    let origins = cenote_storage::Origins {
        log: Lsn::from_raw(origins.log),
        tx: origins.tx,
    };
    let claim = options.claim.clone().unwrap_or_else(Claim::machine);
    if let Some(name) = &options.reader {
        let nodes = options.nodes.clone();
        let nodes = nodes.ok_or_else(|| Error::Config("a reader has its database on storage nodes".into()))?;
        if options.memory == MemoryKind::Cxl && options.region.is_none() {
            let text =
                "a reader that has its pages in a region (cxl) has one of its own: the database's is the server's";
            return Err(Error::Config(text.into()));
        }
        return Ok(DataDir::reading(nodes, &options.data, name, &claim)?);
    }
    Ok(match &options.nodes {
        Some(nodes) => DataDir::on_nodes(nodes.clone(), &options.data, origins, &claim)?,
        None => DataDir::open_as(&options.data, origins, &claim)?.with_parent(options.parent.clone()),
    })
}

/// The directory of a reader, whose process takes the database.
pub(crate) fn open_directory_after(reader: &Storage, options: &EngineOptions) -> Result<DataDir> {
    let nodes = options.nodes.clone();
    let nodes = nodes.ok_or_else(|| Error::Config("a reader has its database on storage nodes".into()))?;
    let claim = options.claim.clone().unwrap_or_else(Claim::machine);
    Ok(DataDir::after_reading(reader, nodes, &claim)?)
}

fn config(options: &EngineOptions) -> Config {
    let kind = match options.memory {
        MemoryKind::Cxl => Kind::Cxl,
        MemoryKind::Dram => Kind::Dram,
        MemoryKind::Tiered => Kind::Tiered,
    };
    let mut config = Config::new(kind, options.memory_size);
    config.region = options.region.clone();
    config.range = options.range;
    config.pod_regions.clone_from(&options.pod_regions);
    config.remote = options.remote.clone();
    config.mirror = options.mirror.clone();
    config.origin = options.claim.as_ref().map(|claim| claim.host.clone());
    config.survive = match options.survive {
        Survive::Process => cenote_buffer::Survive::Process,
        Survive::Host => cenote_buffer::Survive::Host,
    };
    config.background = options.background;
    let tuning = options.tuning;
    (config.log_limit, config.segment_bytes) = (tuning.log_limit, tuning.segment_bytes);
    (config.flush_turn, config.scan_limit) = (tuning.flush_turn, tuning.scan_limit);
    (config.survey_part, config.brings) = (tuning.survey_part, tuning.brings);
    (config.numa_node, config.keeps_log) = (options.numa_node, options.archive_lag);
    config
}
