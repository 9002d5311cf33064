//! How a pool is opened.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::{FileRange, MirrorKeeper, Origin, Region, coherence};
use cenote_storage::Survive;

use crate::known_changes::KnownChanges;
use crate::layout::Geometry;
use crate::tiered::RemoteSource;

/// Between two looks at the length of the log.
const FLUSH_TURN: Nanos = Nanos::from_millis(100);
/// Redo that a replay gathers before it applies it, in bytes.
const REPLAY_STRETCH: usize = 64 << 20;

/// Where the frames lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In a region that outlives the process: recovery is instant.
    Cxl,
    /// In memory of the process: the classic.
    Dram,
    /// In memory of the process, with remote memory between it and storage ([`Config::remote`]).
    Tiered,
}

impl Kind {
    /// `cxl` or `dram`: the tier that the frames are in.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cxl => "cxl",
            Kind::Dram | Kind::Tiered => "dram",
        }
    }
}

/// What a reader leaves to the server that its process becomes.
#[derive(Debug, Clone)]
pub struct Kept {
    pub(crate) region: Arc<Region>,
    /// Where it has read remote memory: as of when that is true.
    pub(crate) known: Option<KnownChanges>,
}

/// How to open a pool.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the frames lie.
    pub kind: Kind,
    /// Bytes of the region, all told; [`Geometry::len_for`] tells how many a certain number of frames take.
    pub size: u64,
    /// The way to remote memory: kind `tiered` needs one, the others have none.
    pub remote: Option<RemoteSource>,
    /// The region's file or device; `None`: a file in shared memory, named after the database.
    pub region: Option<PathBuf>,
    /// Of a reader: regions of servers of its pod, one of which may be that of the server that has the database. Its
    /// pages are read in the frames there.
    pub pod_regions: Vec<PathBuf>,
    /// The part of that file or device that it is, if it is not all of it.
    pub range: Option<FileRange>,
    /// Memory of a reader that this process has been: its frames have pages as of the end of
    /// the log that was found when the database was taken, and are kept.
    pub kept: Option<Kept>,
    /// What keeps the region mirrored, if anything does: kind `cxl` that survives its host, since what is not written
    /// back is not mirrored.
    pub mirror: Option<Arc<dyn MirrorKeeper>>,
    /// The host that this process is on, as its pool says; `None`: the machine, as long as it is not booted again.
    pub origin: Option<Origin>,
    /// Bind the memory to this NUMA node.
    pub numa_node: Option<u32>,
    /// What the region's bytes are to survive.
    pub survive: Survive,
    /// Bytes of the redo ring with its header; `None`: what suits the size.
    pub ring: Option<u64>,
    /// Redo that a recovery without the region may have to read, in bytes: beyond half of it pages are
    /// written back by age.
    pub log_limit: u64,
    /// How often the log's length is looked at.
    pub flush_turn: Nanos,
    /// Bytes of a log segment.
    pub segment_bytes: u64,
    /// Bytes of the log that are kept for an archive, until [`cenote_storage::Log::keep_from`] says what it has;
    /// `None`: there is none.
    pub keeps_log: Option<u64>,
    /// Whether the pool has threads of its own. Tests may do without.
    pub background: bool,
    /// Regions up to this many bytes have their descriptors validated one by one at an instant recovery, and
    /// the hash built anew from them.
    pub scan_limit: u64,
    /// Frames whose descriptors one thread looks at in one go, where all are looked at; several threads do so.
    pub survey_part: u32,
    /// Bytes of redo that a recovery from the log gathers in memory before it applies them.
    pub replay_stretch: usize,
    /// Whether pages that a thread is about to ask for are read together ([`crate::Pool::bring`]).
    pub brings: bool,
    /// How the processor writes cache lines back; a test may say that it cannot.
    pub write_back: coherence::WriteBack,
}

impl Config {
    /// The usual one.
    pub fn new(kind: Kind, size: u64) -> Self {
        Self {
            kind,
            size,
            remote: None,
            region: None,
            pod_regions: Vec::new(),
            range: None,
            kept: None,
            mirror: None,
            origin: None,
            numa_node: None,
            survive: Survive::Process,
            ring: None,
            log_limit: 1 << 30,
            flush_turn: FLUSH_TURN,
            segment_bytes: 16 << 20,
            keeps_log: None,
            background: true,
            scan_limit: 64 << 30,
            survey_part: 1 << 14,
            replay_stretch: REPLAY_STRETCH,
            brings: true,
            write_back: coherence::write_back_kind(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match (self.kind, &self.remote) {
            (Kind::Tiered, None) => Err(Error::Invalid("a tiered pool needs remote memory".into())),
            (Kind::Cxl | Kind::Dram, Some(_)) => Err(Error::Invalid("remote memory is for a tiered pool".into())),
            _ if self.mirror.is_some() && (self.kind, self.survive) != (Kind::Cxl, Survive::Host) => Err(
                Error::Invalid("a mirror gets what is written back: it is for a region that survives its host".into()),
            ),
            // A simulated device carries write-backs out itself.
            _ if self.survive == Survive::Host && !rt::simulated() => {
                coherence::require(self.write_back, "survival of the host (--survive host)")
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn geometry(&self, len: u64) -> Result<Geometry> {
        Geometry::plan(len, self.ring.unwrap_or_else(|| Geometry::ring_for(len)))
    }
}
