//! The buffer pool: page frames in memory that outlives the process, and instant recovery.
//!
//! The pool is the only copy of its pages in memory: frames lie in a [`cenote_fabric::Region`] (CXL memory, shared
//! memory, or anonymous memory for the kind `dram`), and readers and writers work on them in place. When the
//! process dies, the next one finds frames, page hash, lists and redo ring as they were, repairs the few
//! pages that were being changed, and goes on (PolarRecv, sections 3.1 and 3.2 of the PolarCXLMem paper; design,
//! section 7, with its eight rules).
//!
//! | module | its idea |
//! |---|---|
//! | `layout` | what lies where in a region; descriptors of 64 bytes |
//! | `index`, `words`, `chain` | numbers of frames and slots; words of the region that hold a position, an address, a frame |
//! | `frame` | the region as slices of atomics and spans: the only unsafe code |
//! | `latch`, `slots` | the latch word; the holder of each latch, written down for recovery |
//! | `hash`, `lists` | from page to frame; free, warm and cold frames |
//! | `pool`, `guard`, `view` | hits and misses; optimistic and shared readers |
//! | `mtr` | mini-transactions: changes, redo, commit |
//! | `admit` | which may begin while the disk is full |
//! | `writeback`, `evict`, `checkpoint`, `background` | pages to storage, frames for others, a short log |
//! | `dirty`, `spaces`, `sweep` | which frames are dirty, and since when; which are of a space; how a start finds out |
//! | `discard` | pages that are given up |
//! | `lower`, `tiered` | what lies below the frames: storage, or remote memory and then storage |
//! | `overtaken`, `tell`, `known_changes` | which copies in remote memory lack changes: at the server, at its readers |
//! | `open`, `survey`, `recover`, `replay` | start-up: believe the region and repair, or replay the log |
//! | `access_trace` | which pages a workload asks for, for an observer and for a file |
//! | `check` | everything that must hold, verified |
//!
//! ```no_run
//! # fn main() -> cenote_base::Result<()> {
//! use cenote_base::PageId;
//! use cenote_buffer::{BufferPool, Config, Kind};
//! use cenote_storage::DataDir;
//!
//! let dir = DataDir::open("cenote-data".as_ref())?;
//! let (pool, report) = BufferPool::open(Config::new(Kind::Cxl, 1 << 30), dir)?;
//! println!("{report}");
//! let mut m = pool.mtr();
//! let page = m.create(PageId::new(1000, 1), 7, 0)?;
//! m.write_u64(page, 64, 42);
//! let lsn = m.commit();
//! pool.storage().log().wait_durable(lsn)?;
//! let guard = pool.optimistic(PageId::new(1000, 1))?;
//! let value = guard.view().u64(64);
//! assert!(guard.valid() && value == 42);
//! # Ok(())
//! # }
//! ```

mod access_trace;
mod admit;
mod background;
mod bring;
mod chain;
mod changed;
mod check;
mod checkpoint;
mod clean;
mod config;
mod dirty;
mod discard;
mod evict;
mod expectation;
mod fill;
mod filling;
mod follow;
mod frame;
mod frame_wait;
mod guard;
mod hash;
mod in_flight;
mod index;
mod interrupt;
mod known_changes;
mod known_frames;
mod latch;
mod layout;
mod lists;
mod lower;
mod misses;
mod mtr;
mod need;
mod open;
mod overtaken;
mod parts;
mod pod_frames;
mod pod_tier;
mod pool;
mod prefetch;
mod readers;
mod recover;
mod remote;
mod replay;
mod report;
mod slots;
mod spaces;
mod stats;
mod survey;
mod sweep;
mod tell;
mod tiered;
mod together;
mod view;
mod words;
mod writeback;

pub use access_trace::{AccessObserver, MARK_BYTES, PageAccess, TraceDecoder, TraceEncoder, TraceEvent, Traced};
pub use admit::Needing;
pub use check::CheckReport;
pub use config::{Config, Kept, Kind};
pub use guard::{OptGuard, Restart, SharedGuard};
pub use interrupt::Interrupt;
pub use layout::{FRAMES_LARGE, FRAMES_MIN, Geometry};
pub use lists::Hint;
pub use mtr::{CommitHook, Mtr, PAGES_MAX, Patch};
pub use open::BufferPool;
pub use parts::PageH;
pub use pool::Pool;
pub use remote::{PartState, RemotePart, RemoteSize};
pub use report::{Cause, Mode, RecoveryReport, Repaired};
pub use stats::{Counts, PodStats, PoolStats, TierStats};
pub use tiered::{Growth, RemoteLayout, RemoteProvider, RemoteSource, SLABS_MAX};
pub use view::PageView;

pub use cenote_fabric::observe;
pub use cenote_storage::{Need, Survive};
