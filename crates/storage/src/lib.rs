//! Storage: the redo log, the pages in files, and the control file, which says how they belong together.
//!
//! - [`redo`]: the changes of a mini-transaction, as bytes, and [`redo::apply`], which redoes them;
//! - [`log`]: the stream of redo, in a ring and in segment files; group commit; recovery of its end;
//! - [`pages`]: pages in files, with torn pages made good;
//! - [`control`]: the control file;
//! - [`branch`]: a database that shares pages with a snapshot on storage nodes;
//! - [`owner`]: who has the data directory, of several hosts that reach it;
//! - [`Storage`]: all of them in one data directory, as the buffer sees them.
//!
//! It knows no rows and no frames. The format of each file is drawn where it is written, and in
//! `docs/storage.md`.

pub mod archive;
pub mod asked;
mod backup;
pub mod branch;
mod codec;
pub mod control;
mod files;
pub mod follower;
mod load;
pub mod log;
mod node_pages;
pub mod nodes;
pub mod owner;
mod page_source;
pub mod pages;
mod poison;
mod reads;
pub mod redo;
mod storage;
#[cfg(test)]
mod testing;

pub use backup::{BackupReport, restore};
pub use control::{Control, ControlFile, ENGINE_WORDS, Origins};
pub use load::{LoadReport, load};
pub use log::{
    Appended, Chains, FIRST_LSN, Hold, Hook, Log, LogOptions, LogReport, Need, OwnedRecord, RING_HEADER, RING_MIN,
    RingPlace, RingUse, Scan, Survive,
};
pub use owner::{Claim, Holding, OnLost, Ownership};
pub use pages::{PageStore, PagesReport};
pub use storage::{CheckReport, DataDir, Pages, Storage, StorageOptions, StorageReport};
