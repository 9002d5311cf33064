//! How bytes move between the hosts of a pod: regions of memory that outlive a process and, on
//! CXL, are shared by hosts.
//!
//! - [`Region`]: a mapped span with a validated header: a shared-memory file, an fsdax file, a
//!   devdax device, or anonymous memory, each optionally bound to a NUMA node;
//! - [`Span`]: bounds-checked access to a part of it, in a way that is sound while others write;
//! - [`HostAtomicU64`], [`HostAtomicU32`]: atomics in a region, among the threads of one host; [`PodAtomicU64`],
//!   [`PodAtomicU32`]: among hosts, inside the region's hardware-coherent [`Window`] only; [`Words`]: many of them;
//! - [`coherence`]: flush, invalidate, uncached access, with the real instructions;
//! - [`mirror`]: a second memory that gets the lines which are written back;
//! - [`observe`]: every access may be announced to a sink; not asking costs nothing;
//! - [`emulate`]: a sink that makes accesses take as long as on a device;
//! - [`profile`]: what devices are known to cost, as data;
//! - [`rdma`]: one-sided verbs towards the memory of another machine, as a contract;
//! - [`ring`]: message rings in region memory: calls between processes of a pod;
//! - [`message`]: messages between nodes.
//!
//! Unsafe code lives here so that nothing above needs it for memory: the raw accesses are in `raw`, the mapping in
//! `map`, the instructions in `instructions`, and safe types over them in `span`, `host`, `words`.

#![allow(unsafe_code, reason = "the low layer whose safe types the others use")]

mod backing;
pub mod coherence;
mod device_range;
pub mod emulate;
mod foothold;
mod header;
mod host;
mod instructions;
mod listing;
mod map;
mod memory;
pub mod message;
pub mod mirror;
mod mirror_keeper;
pub mod observe;
mod origin;
pub mod profile;
mod range;
mod raw;
pub mod rdma;
mod region;
pub mod ring;
mod rows;
mod shared_device;
mod span;
mod window;
mod words;

pub use backing::{Kind, boot};
pub use foothold::Foothold;
pub use header::{FORMAT_VERSION, GEOMETRY_WORDS, HEADER_SIZE, Identity, State};
pub use host::{HostAtomicU32, HostAtomicU64, PodAtomicU32, PodAtomicU64};
pub use listing::{Found, SHM_DIR, default_path, is_blank, is_blank_at, list, peek, peek_at, remove};
pub use map::Mapping;
pub use memory::{FlushSink, RegionMemory};
pub use mirror::{MirrorFile, RemoteMirror, Side};
pub use mirror_keeper::MirrorKeeper;
pub use origin::Origin;
pub use range::FileRange;
pub use region::{Region, RegionOptions};
pub use rows::{Line, Lines, Row, RowTable, Rows, RowsAt};
pub use shared_device::SharedDevice;
pub use span::{Block, Fixed, Length, Quiet, Span};
pub use window::Window;
pub use words::Words;

/// Bytes of a cache line: what is flushed, fetched and lost at once.
pub const LINE: usize = 64;
