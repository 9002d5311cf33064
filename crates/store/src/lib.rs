//! The store that everybody shares: values by key, on one table that lies in a space, used by any number of processes on
//! any hosts of any pods. No server stands in between.
//!
//! ```text
//!   process ── find ──► bucket of the table (a line in the space) ──► item: header, key, value or chunks
//!      │                     ▲ one compare-and-swap links, replaces, removes or evicts
//!      └── put: alloc ─► fill ─┘
//! ```
//!
//! Values are immutable and the first writer wins, unless a put [replaces](PutOptions::replaces). What is lost, damaged,
//! expired or evicted is a miss, never another value.
//!
//! ```
//! use cenote_space::{Space, SpaceOptions};
//! use cenote_store::{Options, Put, PutOptions, Store};
//!
//! let space = Space::dram(&SpaceOptions { bytes: 32 << 20, ..SpaceOptions::default() })?;
//! let store = Store::create(&space, Options::default())?;
//! assert_eq!(store.put(b"key", b"value", PutOptions::default())?, Put::Stored(1));
//! assert_eq!(store.put(b"key", b"other", PutOptions::default())?, Put::Exists);
//! assert_eq!(store.get(b"key")?.as_deref(), Some(&b"value"[..]));
//! # Ok::<(), cenote_base::Error>(())
//! ```

mod audit;
mod away;
mod batch;
mod borrow;
mod chains;
mod clear;
mod compare;
mod core;
mod counters;
mod each;
mod entry;
mod evict;
mod expect;
mod fill;
mod find;
mod grow;
mod heap;
mod item;
mod layout;
mod link;
mod many;
mod members;
mod metrics;
mod open;
mod options;
mod pool;
mod put;
mod queue;
mod read;
mod recover;
mod replicate;
mod retire;
mod scan;
mod spill;
mod squeeze;
mod stats;
mod sweep;
mod tier;

/// Two pods, for tests.
#[cfg(test)]
#[allow(
    dead_code,
    reason = "what tests of several crates have in common is more than one uses"
)]
#[path = "../../space/tests/caches/pods.rs"]
mod pods;

pub use audit::Owned;
pub use batch::Presence;
pub use borrow::{Allocation, Borrow, Pin};
pub use compare::Expected;
pub use heap::Visibility;
pub use item::{KEY_MAX, VALUE_MAX};
pub use open::Store;
pub use options::Options;
pub use put::{Put, PutOptions};
pub use queue::{Buffer, Completion, Keyed, Outcome, Queue, Request};
pub use read::Value;
pub use replicate::REPLICAS_MAX;
pub use scan::Scanned;
pub use stats::{StoreStats, TenantStats};
pub use tier::SpillOptions;
