//! The words that statements and the engine exchange: isolation, row locks, outcomes, batches, options.

use crate::error::{Error, Result};
use crate::system::{FIRST_OBJECT, FIRST_SPACE};
use crate::tx::cts;
use crate::tx::status::Sizes;
use crate::undo;
use cenote_base::TxId;
use cenote_base::rt::Nanos;
use cenote_buffer::Geometry;
use std::path::PathBuf;
use std::sync::Arc;

pub use cenote_buffer::{Growth, PartState, RemotePart, RemoteProvider, RemoteSize, RemoteSource};
pub use cenote_fabric::{FileRange, MirrorKeeper};
pub use cenote_storage::Claim;
pub use cenote_storage::nodes::StorageNodes;

/// Isolation level of a transaction, as PostgreSQL defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A new snapshot for each statement; changed rows are evaluated again on their newest version.
    ReadCommitted,
    /// One snapshot; writing a row changed after it is 40001.
    RepeatableRead,
}

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// By rising key.
    Forward,
    /// By falling key.
    Backward,
}

/// Result of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insert {
    /// The row is there.
    Done,
    /// A committed row (or one of this transaction) has the same key; nothing was changed.
    Duplicate {
        /// Position in `Table::indexes`; None: the primary key.
        index: Option<usize>,
        /// Primary key bytes of the row that is there.
        existing_key: Vec<u8>,
    },
}

/// The columns that a statement reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// Each: rows are whole.
    All,
    /// These: long values of others may stay outside of the rows that the statement gets, and are not read. Nor may the
    /// statement: it can only hand them on (`RowLayout::with`).
    Only(Arc<[usize]>),
}

impl Columns {
    /// Whether it is one of them.
    pub fn contains(&self, column: usize) -> bool {
        match self {
            Columns::All => true,
            Columns::Only(columns) => columns.contains(&column),
        }
    }
}

/// What a statement wants done with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Leave it as it is (it stays locked).
    Keep,
    /// Leave it; the newest version no longer qualifies.
    Skip,
    /// Put these bytes in its place (the primary key may change). A large value that is as it was keeps its place.
    Update(Vec<u8>),
    /// Remove it.
    Delete,
}

/// What became of a row that `change` was asked for, by the attempt that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The answer that was carried out, and the row before it.
    Done {
        /// What was done; never `Skip`.
        change: Change,
        /// The version that it was done to.
        before: Vec<u8>,
    },
    /// The caller answered `Skip`.
    Skipped,
    /// There is no such row any more.
    Gone,
}

/// What became of a row that `modify` was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Changed (or kept and locked).
    Done,
    /// The caller answered `Skip`, or the row was locked by another and the wait mode says to skip it.
    Skipped,
    /// There is no such row any more.
    Gone,
}

/// Strength of a row lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockStrength {
    /// FOR SHARE and FOR KEY SHARE: others may share, none may write.
    Share,
    /// FOR UPDATE and FOR NO KEY UPDATE: exclusive.
    Update,
}

/// What to do about a row that another transaction has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Wait (until `lock_timeout`).
    Block,
    /// 55P03.
    NoWait,
    /// Leave the row out.
    SkipLocked,
}

/// Result of `lock_row`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// Locked; the newest version was given. `moved`: it is not the one that the snapshot sees.
    Row {
        /// Whether a condition has to be evaluated again.
        moved: bool,
    },
    /// Locked by another, left out (`Wait::SkipLocked`).
    Skipped,
    /// There is no such row any more.
    Gone,
}

/// Keys and rows that a scan delivers together. Reused from call to call.
#[derive(Debug, Default)]
pub struct RowBatch {
    bytes: Vec<u8>,
    rows: Vec<RowPlace>,
}

/// Where a row and its key lie in a batch's bytes.
#[derive(Debug, Clone, Copy)]
struct RowPlace {
    key: (u32, u32),
    row: (u32, u32),
}

impl RowBatch {
    /// An empty batch.
    pub fn new() -> RowBatch {
        RowBatch::default()
    }

    /// Number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Primary key bytes of the i-th row.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let (start, end) = self.rows[i].key;
        &self.bytes[start as usize..end as usize]
    }

    /// The i-th row.
    #[inline]
    pub fn row(&self, i: usize) -> &[u8] {
        let (start, end) = self.rows[i].row;
        &self.bytes[start as usize..end as usize]
    }

    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    /// Bytes that it holds: keys, rows, and what lay between them in a page.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// A batch of one row, whose key is not known.
    pub fn of_row(row: &[u8]) -> RowBatch {
        let mut batch = RowBatch::new();
        batch.push(&[], row);
        batch
    }

    pub(crate) fn push(&mut self, key: &[u8], row: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.push_row((start, self.bytes.len() as u32), row);
    }

    /// Appends a row whose key is in the bytes already.
    pub(crate) fn push_row(&mut self, key: (u32, u32), row: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(row);
        let row = (start, self.bytes.len() as u32);
        self.rows.push(RowPlace { key, row });
    }

    /// Appends a row that is in the bytes already, as is its key.
    #[inline]
    pub(crate) fn push_place(&mut self, key: (u32, u32), row: (u32, u32)) {
        debug_assert!(row.1 as usize <= self.bytes.len(), "a row lies in the batch's bytes");
        self.rows.push(RowPlace { key, row });
    }

    /// What is to hold the bytes of rows that are pushed by their places.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// A part of the bytes.
    #[inline]
    pub(crate) fn part(&self, start: u32, end: u32) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }
}

/// Where the buffer pool lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// In a region that outlives the process.
    Cxl,
    /// In anonymous memory: the classic buffer pool and classic recovery.
    Dram,
    /// In anonymous memory, a local cache in front of remote memory (`EngineOptions::remote`): pages move whole, by
    /// one-sided verbs; recovery replays the log over what remote memory has kept.
    Tiered,
}

/// What the region's contents must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survive {
    /// A killed process.
    Process,
    /// A lost host.
    Host,
}

/// Where the numbers of a new database begin, and how large the circles are in which its undo and timestamp pages are
/// used. The defaults are what a database should have; tests and worlds begin near the ends. One that exists keeps its
/// own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origins {
    /// First position of the redo log: a multiple of 4096, below 2^59.
    pub log: u64,
    /// First number of a transaction, above zero, below 2^52.
    pub tx: u64,
    /// Pages of commit timestamps, of some 2,000 transactions each: 128 to 2^28.
    pub cts_pages: u32,
    /// Pages of an undo segment: 512 to 2^29 - 1. A transaction is refused that needs more, and may be from half of it
    /// on.
    pub undo_pages: u32,
    /// First lap of undo segments, below 254.
    pub undo_lap: u32,
    /// First number of a space of a table or index: 1000 or above.
    pub space: u32,
    /// Behind the last such number, at most 0xF0000000: then come those between 1000 and here that nothing names any
    /// more.
    pub space_end: u32,
    /// First id of a table, index or sequence: 16384 or above.
    pub object: u32,
    /// Behind the last such id: then come those between 16384 and here that nothing names any more.
    pub object_end: u32,
}

impl Default for Origins {
    fn default() -> Origins {
        Origins {
            log: cenote_storage::FIRST_LSN.raw(),
            tx: 1,
            cts_pages: cts::CIRCLE,
            undo_pages: undo::CIRCLE,
            undo_lap: 0,
            space: FIRST_SPACE,
            space_end: undo::SPACE_BASE,
            object: FIRST_OBJECT,
            object_end: u32::MAX,
        }
    }
}

impl Origins {
    /// Errors: nothing can begin there.
    pub(crate) fn check(&self) -> Result<()> {
        let sound = self.tx < TxId::SEQ_END
            && (cts::CIRCLE_MIN..=cts::CIRCLE).contains(&self.cts_pages)
            && (undo::CIRCLE_MIN..=undo::CIRCLE).contains(&self.undo_pages)
            && self.undo_lap < undo::LAPS - 2
            && (FIRST_SPACE..self.space_end).contains(&self.space)
            && self.space_end <= undo::SPACE_BASE
            && (FIRST_OBJECT..self.object_end).contains(&self.object);
        match sound {
            true => Ok(()),
            false => Err(Error::Config(format!("a database cannot begin at {self:?}"))),
        }
    }
}

/// Sizes at which something begins: a write-back, the reuse of a file, a look at another place. The usual ones suit a
/// server; the simulator and tests draw small ones, so that each threshold is crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Redo that a recovery without the region may have to read, in bytes: beyond half of it pages are written back by
    /// age.
    pub log_limit: u64,
    /// How often the log's length is looked at.
    pub flush_turn: Nanos,
    /// Bytes of a log segment, a multiple of 4096, at least 64 KiB; one that exists keeps its own.
    pub segment_bytes: u64,
    /// Regions up to so many bytes have their descriptors looked at one by one by an instant recovery.
    pub scan_limit: u64,
    /// Frames whose descriptors one thread looks at in one go, where all are looked at.
    pub survey_part: u32,
    /// Transactions whose status is found without a look at pages or at a table behind a lock.
    pub status_ring: u64,
    /// Transaction numbers that are reserved in the control file at a time.
    pub tx_block: u64,
    /// Pages of commit timestamps, and of an undo segment, that are given back to the disk at a time.
    pub give_back_pages: u32,
    /// Changed rows from which on a rollback is left to the background, and its client goes on.
    pub rollback_rows: u64,
    /// Changed rows below which a rollback is not left behind another one, which may be long.
    pub short_rollback_rows: u64,
    /// How long the oldest snapshot is in use before the ways to what it sees are cut short.
    pub cut_after: Nanos,
    /// Bytes of DRAM at most that versions seen by old snapshots are copied to; never more than a sixteenth of the
    /// memory.
    pub version_bytes: u64,
    /// How long a transaction that the last server left waits for its session.
    pub left_wait: Nanos,
    /// Whether pages that lookups of many keys are about to ask for are read together, where some are missing.
    pub brings: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            log_limit: 1 << 30,
            flush_turn: Nanos::from_millis(100),
            segment_bytes: 16 << 20,
            scan_limit: 64 << 30,
            survey_part: 1 << 14,
            status_ring: 1 << 16,
            tx_block: 1 << 16,
            give_back_pages: 64,
            rollback_rows: 200,
            short_rollback_rows: 20_000,
            cut_after: Nanos::from_secs(1),
            version_bytes: 1 << 30,
            left_wait: Nanos::from_secs(10),
            brings: true,
        }
    }
}

impl Tuning {
    pub(crate) fn status(&self) -> Sizes {
        Sizes {
            ring: self.status_ring,
            block: self.tx_block,
        }
    }
}

/// How to open a database.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Data directory; made if missing.
    pub data: PathBuf,
    /// Storage nodes that keep log and pages; then the data directory has what need not last. `None`: it has all.
    pub nodes: Option<Arc<dyn StorageNodes>>,
    /// Storage nodes with a snapshot of which the data directory may be a branch.
    pub parent: Option<Arc<dyn StorageNodes>>,
    /// What people call it, if it is a reader: the server of the database is another process, which it leaves alone.
    pub reader: Option<String>,
    /// Kind of memory.
    pub memory: MemoryKind,
    /// Bytes of memory; local ones for `Tiered`.
    pub memory_size: u64,
    /// The way to remote memory, for `Tiered` alone.
    pub remote: Option<RemoteSource>,
    /// Region file; None: a file in shared memory named after the database's id.
    pub region: Option<PathBuf>,
    /// The part of `region` that it is, if it is not all of that file or device.
    pub range: Option<FileRange>,
    /// Of a reader: regions of servers of its pod. While one of them is that of the server that has the database, pages
    /// are read in its frames.
    pub pod_regions: Vec<PathBuf>,
    /// As whom the data directory and the region are taken, where a pool says which host this is; `None`: as a process
    /// of this machine, as long as it is not booted again.
    pub claim: Option<Claim>,
    /// What keeps the region mirrored, if anything does; then it has to survive its host.
    pub mirror: Option<Arc<dyn MirrorKeeper>>,
    /// What the region survives.
    pub survive: Survive,
    /// Bind the memory to this NUMA node.
    pub numa_node: Option<u32>,
    /// Bytes of the log that are kept for an archive that does not have them yet ([`crate::Engine::archiver`]); `None`:
    /// there is no archive.
    pub archive_lag: Option<u64>,
    /// Whether threads work in the background (purge, rollback of losers, write-back). Tests may do without.
    pub background: bool,
    /// How often a thread in the background looks for tables that have changed much since they were analyzed, and
    /// analyzes them; None: only when asked.
    pub analyze_every: Option<Nanos>,
    /// Where the numbers of a new database begin.
    pub origins: Origins,
    /// Sizes at which something begins.
    pub tuning: Tuning,
}

impl EngineOptions {
    /// Defaults for a directory: a region of `memory_size` bytes in shared memory that survives the process.
    pub fn new(data: impl Into<PathBuf>, memory: MemoryKind, memory_size: u64) -> EngineOptions {
        EngineOptions {
            data: data.into(),
            nodes: None,
            parent: None,
            reader: None,
            memory,
            memory_size,
            remote: None,
            region: None,
            range: None,
            pod_regions: Vec::new(),
            claim: None,
            mirror: None,
            survive: Survive::Process,
            numa_node: None,
            archive_lag: None,
            background: true,
            analyze_every: None,
            origins: Origins::default(),
            tuning: Tuning::default(),
        }
    }

    /// Bytes that versions seen by old snapshots may take.
    pub(crate) fn bytes_of_versions(&self) -> usize {
        self.tuning
            .version_bytes
            .min(self.memory_size / 16)
            .min(u64::from(u32::MAX)) as usize
    }

    /// A tiered pool: `local_bytes` of local memory in front of what `remote` leads to.
    pub fn tiered(data: impl Into<PathBuf>, local_bytes: u64, remote: RemoteSource) -> EngineOptions {
        EngineOptions {
            remote: Some(remote),
            ..EngineOptions::new(data, MemoryKind::Tiered, local_bytes)
        }
    }

    /// The same, with exactly so many page frames.
    ///
    /// # Errors
    /// [`Error::Invalid`]: too few frames, or one of the few numbers that no size gives.
    pub fn with_frames(self, frames: u32) -> Result<EngineOptions> {
        Ok(EngineOptions {
            memory_size: Geometry::len_for(frames)?,
            ..self
        })
    }
}
