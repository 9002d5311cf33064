//! Storage nodes: the log of a database on a majority of several machines, and pages that each of them makes of it.
//!
//! - [`StorageNode`]: one of them: a replica of the log by Raft, and the pages that its redo builds;
//! - [`NodesClient`]: all of them, as a database sees them ([`cenote_storage::nodes::StorageNodes`]).
//!
//! PolarDB Serverless, section 3.4. `docs/storage-nodes.md` has the design, the formats and what was rejected.

mod awaited;
mod client;
mod codec;
mod command;
mod demand;
mod machine;
mod members;
mod node;
mod pages;
mod peers;
mod positions;
mod raft_log;
mod readers;
mod replica;
mod snapshot;
mod snapshots;
mod state_file;
mod turns;
mod usage;
mod wire;

pub use client::NodesClient;
pub use demand::{Demand, Demanded};
pub use members::{Membership, Server, ServerRole, ServerSeen};
pub use node::{NodeOptions, StorageNode};
pub use snapshots::{Snapshot, check_name};
pub use usage::Usage;
pub use wire::Status;
