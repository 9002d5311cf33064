//! The ground that every other crate stands on: identities, units, checksums, the common part of
//! errors, the trait by which frames reach storage, and [`rt`], the seam to time, threads,
//! waiting, randomness and files.
//!
//! Nothing in here knows what a database is. What it fixes from the first commit are the widths
//! and the byte order of the identities ([`ids`]), because they are written into every page,
//! record and region.

pub mod bytes;
pub mod crc;
pub mod error;
pub mod ids;
pub mod page_io;
pub mod random;
pub mod rt;
pub mod sip;
pub mod units;

pub use error::{Error, Result};
pub use ids::{Cts, Lsn, PAGE_SIZE, PageId, RecordAddr, TxId};
