//! One-sided verbs over libfabric: TCP, the shared memory of one machine, verbs, EFA, by name.
//!
//! ```text
//!   user                                                memory node
//!   Net ─ connect(address) ─► Connection                MemoryNode::start ─► address()
//!         few endpoints serve all threads                     progress thread, registry of keys
//!              │ Path::Served: works as messages, done by the node's progress thread, in order
//!              └ Path::OneSided: reads and writes by the network card; atomics as messages
//! ```
//!
//! Which path? The node's provider decides ([`Path::of`]). On TCP and shared memory libfabric's own "one-sided"
//! operations are code of the node's progress thread as well, and worse code for the [contract](cenote_fabric::rdma): a
//! wrong key ends the connection with all that is under way on it, a revocation does not wait for a transfer that has
//! begun, words come torn. So there works travel as messages: many of them in one, copied by whole words, each with an
//! answer of its own. A card on which one-sided operations are what they say does reads and writes; a refusal there is
//! explained by asking the node. Atomics are messages on all paths, done by the node's processor: what libfabric offers
//! for the endpoints used here is the same, in the provider, and two kinds of atomics on one word are none.
//!
//! Calls ([`call`](cenote_fabric::rdma::call)) are messages too, over the same endpoints and sessions: as many in one
//! as fit, large ones in parts.
//!
//! Users are not authenticated: keys are drawn at random and are all that protects memory, so nodes belong in trusted
//! networks. The default address is this machine's own.
//!
//! See `docs/decisions/libfabric.md` for what could have been otherwise.

#![allow(
    unsafe_code,
    reason = "the shim over libfabric, and memory that a network card writes to"
)]

mod address;
pub mod bare;
mod batch;
mod calls;
mod client;
mod fabric_endpoint;
mod net;
mod node;
mod options;
mod protocol;
mod registered_memory;
mod shim;

pub use address::{NodeAddress, Provider};
pub use net::Net;
pub use node::MemoryNode;
pub use options::{NetOptions, NodeOptions, Path};

use cenote_base::Result;

/// Whether RDMA is there: libfabric was there when this was built, and can be loaded.
///
/// # Errors
/// [`Error::Invalid`](cenote_base::Error::Invalid) with what to install, if libfabric is not there.
pub fn available() -> Result<()> {
    shim::load()
}
