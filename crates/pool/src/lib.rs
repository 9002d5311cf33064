//! The memory pool: memory as a service of its own.
//!
//! Three kinds of processes. A *memory node* ([`node`]) has memory of its pod and hands it out as files that hosts of
//! the pod map; a *manager* ([`manager`]) decides which process gets which part of it, keeps that in its
//! [`grant_table`], and sees to it that no process keeps memory that is not its own any more; *holders* ([`holder`]),
//! such as a database, ask the manager for a [grant](grant_table::Grant) and use it by load and store.
//!
//! ```text
//!             open, renew, release                    admit, fence, free
//!   holder ─────────────────────────▶ manager ─────────────────────────▶ memory node
//!     │                  grant table: grants, epochs, leases               │
//!     └─────────────── load, store ─── DIR/grant-7 (one file a grant) ───────┘
//! ```
//!
//! A [`space`](cenote_space) is what clients of one tenant make of grants: a heap that they share.
//!
//! `docs/pool.md` tells it at length, with what is not there yet.

mod acceptor;
pub mod agent;
pub mod client;
mod device;
mod follower;
pub mod grant_table;
pub mod holder;
pub mod host;
mod ids;
mod key;
pub mod limits;
pub mod manager;
mod managers;
mod member;
pub mod node;
mod service;
mod session;
pub mod settings;
pub mod store;
mod wire;

pub use grant_table::{GrantId, NodeId, Phase, SpaceId, SpacePhase};
pub use holder::RemoteReader;
pub use ids::slab_label;
pub use wire::{
    AuditReport, DeviceView, GrantView, HostView, NodeView, PartSummary, PoolStatus, SLABS_AT_ONCE, SpaceSummary,
    TenantView,
};
